"""Writes whose caller was told that nothing is known: what they come to is found, and nothing is decided against it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, event, func, select

from support.durable import WAITS, WIDTH, Died, Trial, die_at, make_trial, rounds_in
from support.federation import TestBed, make_bed, make_request, schema_of
from support.hostile import encoded
from support.network import wait_for
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_coordinator.service.runner import RoundLostError
from veilsum_coordinator.storage import outage
from veilsum_coordinator.storage.records import RELEASES
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.errors import RefusalCode, StateError, Unavailable
from veilsum_privacy.securesum.boxes import BoxKey
from veilsum_privacy.securesum.roster import enrol
from veilsum_privacy.study.study import Study
from veilsum_proto import federation_pb2 as pb

MODEL = {"model.head.weight": np.zeros((2, WIDTH)), "model.head.bias": np.zeros(2)}
STUDY = bytes(32)


def training(bed: TestBed) -> Study:
    request = make_request(schema_of(WIDTH, max_records=40), "fedsgd", 2.0, min_cohort=2, cohort_difference="allowed")
    parameters = {"steps": 3, "centre": False, "gradient_clip": 0.5}
    return bed.compile(request.model_copy(update={"parameters": parameters}))


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return make_trial(tmp_path, training)


def test_a_decision_that_is_not_stored_yet_when_a_kept_sum_is_gone_on_with(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored later, and then directives are open: taken for stored, no member would ever be asked again."""
    key, local = trial.submit(), trial.open()
    federation = local.prepare(key)
    die_at(local, key, rounds_in(RoundPhase.CONSENTING, 1))
    with pytest.raises(Died):
        federation.sum("gradient", MODEL)
    local = trial.open()
    hub = local.hub
    for name, core in trial.cores.items():
        hub.connect(name, core.site.nonce)
    with monkeypatch.context() as away:
        away.setattr(hub.journal, "_try", _refuse)
        hub.refuse("d", key, RefusalCode.CLOSED.value, 0, 0)
        machine = hub.studies[key].machine
        with hub.changing(key):
            machine.start_round("gradient", [encoded(machine.study, "gradient", MODEL)], None)
        assert not hub.directives("a")
    hub.tick()
    hub.tick()
    current = hub.studies[key].machine.round
    assert current is not None
    assert current.phase is RoundPhase.CONSENTING
    for name in set("abc") - set(current.consents):
        assert pb.DIRECTIVE_KIND_CONSENT in [directive.kind for directive in hub.directives(name)]
    assert trial.bed.clock() < current.deadline <= trial.bed.clock() + WAITS.contribute + WAITS.consent


def _refuse(work: Callable[[], Any]) -> Any:
    raise DatabaseAwayError("The database is temporarily unreachable.", "Try again.")


def test_a_stopped_study_releases_no_sum_that_waited_for_the_database(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is stored and told, so what sites and analyst know of its cost stands."""
    key, local = trial.submit(), trial.open()
    hub, release = local.hub, local.hub.journal.release

    def stopped(*arguments: Any, **named: Any) -> bytes:
        hub.abort(key, "stopped by its analyst")
        local.settle()
        return release(*arguments, **named)

    federation = local.prepare(key)
    monkeypatch.setattr(hub.journal, "release", stopped)
    with pytest.raises((StateError, RoundLostError), match="is over"):
        federation.sum("gradient", MODEL)
    assert hub.shown.status(key).phase == StudyPhase.ABORTED.value
    with hub.journal.database.reading() as connection:
        assert connection.scalar(select(func.count()).select_from(RELEASES)) == 0


@pytest.mark.parametrize("what", ["progress", "enrolment", "end"])
def test_a_write_that_is_always_late_is_known_to_be_stored_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Where each commit takes longer than its caller may wait, the next try finds what the one before has done."""
    bed = make_bed(tmp_path, {name: (np.zeros((4, 3)), np.zeros(4, dtype=np.int64)) for name in "ab"})
    journal, site = bed.hub.journal, bed.sites["a"]
    for name, value in (("HOLD_SECONDS", 0.1), ("HOLD_AWAY_SECONDS", 0.05), ("REST_SECONDS", 0.01)):
        monkeypatch.setattr(outage, name, value)
    monkeypatch.setattr(journal, "_try", journal.outage.bounded)
    changes, slow = {"before": 0}, list[float]()

    def begin(connection: Connection) -> None:
        changes["before"] = _changes(connection)

    def commit(connection: Connection) -> None:
        if _changes(connection) != changes["before"]:
            slow.append(time.monotonic())
            time.sleep(0.5)

    event.listen(journal.database.engine, "begin", begin)
    event.listen(journal.database.engine, "commit", commit)
    enrolment = enrol(STUDY, site.credentials.identity, BoxKey.generate().public, site.credentials.signing_key)
    calls: dict[str, Callable[[], object]] = {
        "progress": lambda: journal.keep_progress(STUDY, {"phase": "running"}, None, sealed=True),
        "enrolment": lambda: journal.keep_enrolment(STUDY, "a", enrolment),
        "end": lambda: journal.end_study(STUDY, {"phase": "failed"}, phase="failed", reason="so", status=b"over"),
    }
    with pytest.raises(Unavailable):
        calls[what]()

    def known() -> bool:
        try:
            calls[what]()
        except Unavailable:
            return False
        return True

    wait_for(known, "that it is known to be stored")
    assert len(slow) == 1


def _changes(connection: Connection) -> int:
    return int(connection.connection.driver_connection.total_changes)  # type: ignore[union-attr]
