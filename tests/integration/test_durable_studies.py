"""A coordinator that dies at every write of its journal goes on to the same result, paid for once; what a replay insists on.

Every method in every phase is in ``test_durable_methods``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from support.durable import NAMES, WAITS, WIDTH, Died, Trial, die_at, make_trial, rounds_in, same
from support.durable_studies import STUDIES
from support.federation import TestBed, make_request, schema_of
from support.hostile import encoded
from support.postgres import server
from veilsum.compile import StudyRequest
from veilsum.local.federation import results_directory
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.protocol.machine import RESTART_SECONDS
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.restoration import ReplayError
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.storage import outage
from veilsum_coordinator.storage.records import MEMBERS, PROGRESS, ROUNDS
from veilsum_node.database import open_database
from veilsum_node.errors import RefusalCode
from veilsum_privacy.ledger import Kind
from veilsum_privacy.results.result import Result, load_result
from veilsum_privacy.securesum.context import broadcast_digest
from veilsum_proto import federation_pb2 as pb

METHODS = ("fedcgs", "fedsgd", "hfedatm", "slot-align")
"""One-shot, iterated, with rounds of stations whose members differ, with a statistic that sites keep for later rounds."""

DYING = [
    *(pytest.param(method, "file", marks=pytest.mark.system) for method in METHODS),
    ("fedsgd", "server"),
]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk is none that is away: what a site in this process is told then, nobody asks again."""
    monkeypatch.setattr(outage, "HOLD_SECONDS", 120.0)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, NDArray[np.float64]]]:
    """A method's arrays where the coordinator never dies."""
    known: dict[str, dict[str, NDArray[np.float64]]] = {}

    def of(method: str) -> dict[str, NDArray[np.float64]]:
        if method not in known:
            trial = make_trial(tmp_path_factory.mktemp("expected"), STUDIES[method])
            known[method] = trial.finish(trial.submit())
        assert known[method]
        return known[method]

    return of


@pytest.mark.system
@pytest.mark.parametrize(("method", "place"), DYING)
def test_dying_after_every_second_write(tmp_path: Path, expected: Any, method: str, place: str) -> None:
    """No process of the coordinator writes more than twice, and the study ends as if one had done it all."""
    trial = make_trial(tmp_path, STUDIES[method], server().new_database() if place == "server" else "")
    key = trial.submit()
    status = None
    while status is None:
        try:
            status = trial.live(trial.open(2, after=True), key)
        except Died:
            assert trial.lives < 200
    assert trial.lives > 12
    assert (status.phase, status.reason) == ("finished", "")
    same(dict(load_result(results_directory(trial.results, key)).arrays), expected(method))
    trial.audit(key)


@pytest.mark.parametrize("method", ["fedcgs", pytest.param("slot-align", marks=pytest.mark.system)])
def test_dying_before_a_later_write_each_time(tmp_path: Path, expected: Any, method: str) -> None:
    """What was not written is done again, wherever that was."""
    trial = make_trial(tmp_path, STUDIES[method])
    key, status = trial.submit(), None
    while status is None:
        try:
            status = trial.live(trial.open(trial.lives), key)
        except Died:
            continue
    assert trial.lives > 5
    assert (status.phase, status.reason) == ("finished", "")
    same(dict(load_result(results_directory(trial.results, key)).arrays), expected(method))
    trial.audit(key)


# -- one thing at a time ---------------------------------------------------------------------------------------------------


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return make_trial(tmp_path, lambda bed: bed.compile(_releases(bed, 3)))


def _releases(bed: TestBed, count: int) -> StudyRequest:
    """A study whose one task may be asked for ``count`` times."""
    request = make_request(schema_of(WIDTH, max_records=40), "fedsgd", 2.0, min_cohort=2, cohort_difference="allowed")
    return request.model_copy(
        update={"parameters": {"steps": count, "centre": False, "followed": False, "gradient_clip": 0.5}}
    )


def model(value: float) -> dict[str, NDArray[np.float64]]:
    return {"model.head.weight": np.full((2, WIDTH), value), "model.head.bias": np.zeros(2)}


def begun(trial: Trial) -> tuple[bytes, list[Release]]:
    """A study with two releases, whose coordinator has died since."""
    key = trial.submit()
    federation = trial.open().prepare(key)
    return key, [federation.sum("gradient", model(value)) for value in (0.0, 1.0)]


def test_a_replay_gets_the_very_releases(trial: Trial) -> None:
    key, before = begun(trial)
    local = trial.open()
    machine = local.hub.studies[key].machine
    shown = local.hub.shown.status(key)
    assert (shown.phase, shown.released, len(shown.rounds)) == ("running", 2, 2)
    assert all(item.bytes_received > 0 for item in shown.rounds)
    assert not any(
        directive.kind == pb.DIRECTIVE_KIND_CONTRIBUTE for name in NAMES for directive in local.hub.directives(name)
    )
    federation = local.prepare(key)
    assert machine.replay.releases
    for value, former in zip((0.0, 1.0), before, strict=True):
        again = federation.sum("gradient", model(value))
        assert (again.label, again.round, again.cohort, again.digest) == (
            former.label, former.round, former.cohort, former.digest
        )  # fmt: skip
        assert again.noise_std == former.noise_std
        same(again.values, former.values)
    assert not machine.replay.releases
    assert federation.sum("gradient", model(2.0)).round == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("label", "value", "members", "reason"),
    [
        ("gradient", 0.5, None, "its broadcast differs"),
        ("other", 0.0, None, "it was 'gradient' and is 'other' now"),
        ("gradient", 0.0, "abc", "the participants that may take part differ"),
    ],
)
def test_a_method_that_does_otherwise_cannot_go_on(
    trial: Trial, label: str, value: float, members: str | None, reason: str
) -> None:
    key, _ = begun(trial)
    local = trial.open()
    federation = local.prepare(key)
    with pytest.raises(ReplayError, match=reason):
        federation.sum(label, model(value), members=members)


@pytest.mark.parametrize("phase", [RoundPhase.CONTRIBUTING, RoundPhase.CONSENTING])
def test_a_round_under_way_is_held_against_the_journal_too(trial: Trial, phase: RoundPhase) -> None:
    """Nobody is asked for consent before the method has asked for that very round again."""
    key, local = trial.submit(), trial.open()
    die_at(local, key, rounds_in(phase, 1))
    with pytest.raises(Died):
        local.prepare(key).sum("gradient", model(0.0))
    local = trial.open()
    federation = local.prepare(key)
    for _ in range(3):
        local.step()
    with pytest.raises(ReplayError, match="round 1"):
        federation.sum("gradient", model(0.5))
    assert not any(site.ledger.entries(kind=Kind.CHARGE) for site in trial.bed.sites.values())


def test_the_reason_is_told_and_the_study_ends(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an upgrade that changes a method in the middle of a study: its second model is another one here."""
    key, _ = begun(trial)
    status = trial.live(trial.open(), key)
    assert status.phase == "failed"
    assert "does not continue as before the restart: round 2" in status.reason
    monkeypatch.setattr(type(get_method("fedsgd")), "run", lambda self, federation: pytest.fail("it is over"))
    assert trial.live_status(key) == status
    trial.audit(key)


def test_a_method_that_ends_too_early_has_no_result(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = begun(trial)
    monkeypatch.setattr(type(get_method("fedsgd")), "run", lambda self, federation: Result("fedsgd", {}))
    status = trial.live(trial.open(), key)
    assert (status.phase, status.results) == ("failed", [])
    assert "ended before round 1" in status.reason


def test_attempts_only_rise_and_the_old_one_is_given_up(trial: Trial) -> None:
    key = trial.submit()
    for expected in (1, 2, 3):
        local = trial.open()
        die_at(local, key, rounds_in(RoundPhase.CONTRIBUTING, 1, 2))
        with pytest.raises(Died):
            local.prepare(key).sum("gradient", model(0.0))
        assert local.hub.studies[key].machine.rounds[0].attempts == expected
    local = trial.open()
    kinds = {item.kind for name in "ab" for item in local.hub.directives(name)}
    assert kinds == {pb.DIRECTIVE_KIND_GIVE_UP}
    local.step()  # before the method has asked for anything
    for name in NAMES:
        entries = Counter(entry.kind for entry in trial.bed.sites[name].ledger.entries())
        assert entries[Kind.RESERVE] == entries[Kind.FREE]
    federation = local.prepare(key)
    assert federation.sum("gradient", model(0.0)).round == 1
    (current,) = local.hub.studies[key].machine.rounds
    assert (current.assignment.attempt, current.attempts) == (4, 4)


def test_rounds_wait_for_members_that_dial_again(trial: Trial) -> None:
    """Longer than for a broken connection, but not for ever."""
    key, _ = begun(trial)
    hub = trial.open().hub
    for name in NAMES:
        hub.disconnect(name, hub.sessions[name].serial)
    hub = Hub(trial.bed.hub.credentials, hub.journal, waits=WAITS, clock=trial.bed.clock)
    machine = hub.studies[key].machine
    for name in "abc":
        hub.connect(name, trial.bed.sites[name].nonce)
    trial.bed.clock.now += RESTART_SECONDS - 1
    hub.tick()
    assert (machine.phase, machine.returning) == (StudyPhase.RUNNING, True)
    trial.bed.clock.now += 1
    assert not machine.returning
    for value in (0.0, 1.0):
        machine.replayed("gradient", broadcast_digest(encoded(machine.study, "gradient", model(value))), None)
    with hub.changing(key):
        current = machine.start_round("gradient", [encoded(machine.study, "gradient", model(2.0))])
    assert current is not None
    assert current.cohort == tuple("abc")


def test_who_refused_or_was_given_up_on_stays_so(trial: Trial) -> None:
    key = trial.submit()
    local = trial.open()
    local.prepare(key)
    local.hub.refuse("d", key, RefusalCode.BUDGET.value, 0, 0)
    seats = trial.open().hub.studies[key].machine.seats
    assert seats["d"].refusal == RefusalCode.BUDGET
    assert trial.open().hub.studies[key].machine.refusals == [("d", RefusalCode.BUDGET.value, 0)]
    assert trial.open().prepare(key).sum("gradient", model(0.0)).cohort == tuple("abc")
    assert [seat.name for seat in trial.open().hub.studies[key].machine.seats.values() if not seat.active] == ["d"]


def test_a_study_that_cannot_begin_any_more_ends_soon_after_a_restart_too(trial: Trial) -> None:
    key = trial.submit()
    for name in "bcd":
        trial.open().hub.refuse(name, key, RefusalCode.BUDGET.value, 0, 0)
    hub = trial.open().hub
    machine = hub.studies[key].machine
    for seconds, phase in ((0, "enrolling"), (WAITS.grace - 1, "enrolling"), (1, "failed")):
        trial.bed.clock.now += seconds
        hub.tick()
        assert machine.phase == phase
    assert machine.reason == "0 of 4 enrolled, 2 are needed (b: budget-exceeded, c: budget-exceeded, d: budget-exceeded)"


def test_a_release_is_told_to_whom_it_was_not(trial: Trial) -> None:
    """A member that was away while a round was released hears of it, whatever happened to the coordinator meanwhile."""
    key, _ = begun(trial)
    for _ in range(2):
        local = trial.open()
        pending = {name: local.hub.studies[key].machine.seats[name].released for name in NAMES}
        assert all((2, 2) in numbers for numbers in pending.values())
    local.settle()
    assert not any(seat.released for seat in local.hub.studies[key].machine.seats.values())
    for site in trial.bed.sites.values():
        assert len(site.ledger.entries(kind=Kind.RELEASE_SEEN)) == 2


@pytest.mark.parametrize("end", ["stopped", "unreadable"])
def test_a_release_is_told_once_where_the_coordinator_died_before_it_told_of_it(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The study was stopped as the release was stored, or the next process cannot go on with it: its members have paid."""
    key, local = trial.submit(), trial.open()
    federation, journal = local.prepare(key), local.hub.journal
    release = journal.release

    def died(*arguments: Any, **named: Any) -> bytes:
        release(*arguments, **named)
        if end == "stopped":
            local.hub.abort(key, "enough")
        journal.dead = True  # type: ignore[attr-defined]
        raise Died

    monkeypatch.setattr(journal, "release", died)
    with pytest.raises(Died):
        federation.sum("gradient", model(0.0))
    if end == "unreadable":
        with open_database(trial.place).transaction() as connection:
            state = json.loads(connection.execute(select(PROGRESS.c.state)).scalar_one())
            connection.execute(PROGRESS.update().values(state=json.dumps(state | {"phase": "dreaming"})))
    assert not any(site.ledger.entries(kind=Kind.RELEASE_SEEN) for site in trial.bed.sites.values())
    local = trial.open()
    shown = local.hub.shown.status(key)
    assert shown.phase == {"stopped": "aborted", "unreadable": "failed"}[end]
    if end == "stopped":
        assert (shown.released, [item.phase for item in shown.rounds]) == (1, ["released"])
    local.settle()
    assert not local.hub.ended[key].seats
    local.hub.tick()
    assert not any(trial.open().hub.directives(name) for name in NAMES)
    trial.audit(key)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("version", ["0.1", "0.2", "enrolling"])
def test_a_study_of_an_earlier_version_of_the_protocol_ends(trial: Trial, version: str) -> None:
    """Nobody speaks it any more: it ends with the reason, is told to its members, and what it released stays."""
    key, _ = begun(trial)
    with open_database(trial.place).transaction() as connection:
        if version == "0.1":  # whose journal did not say where it was
            for table in (PROGRESS, ROUNDS, MEMBERS):
                connection.execute(table.delete())
        else:
            state = json.loads(connection.execute(select(PROGRESS.c.state)).scalar_one())
            del state["protocol"]
            former = {"protocol": 5} if version == "enrolling" else state | {"dealer": "a"}
            connection.execute(PROGRESS.update().values(state=json.dumps(former)))
    local = trial.open()
    status = local.hub.shown.status(key)
    assert status.phase == "failed"
    assert "earlier version of the protocol" in status.reason
    assert len(local.hub.journal.releases(key)) == 2
    local.settle()
    assert [trial.live_status(key).phase, trial.lives > 2] == ["failed", True]
    assert not local.hub.ended[key].seats


def test_a_journal_that_cannot_be_read_ends_that_study_alone(trial: Trial) -> None:
    key, _ = begun(trial)
    local = trial.open()
    other = local.submit(trial.bed.compile(_releases(trial.bed, 2)), trial.bed.analyst)
    assert local.prepare(other).sum("gradient", model(0.0)).round == 1
    with open_database(trial.place).transaction() as connection:
        connection.execute(PROGRESS.update().where(PROGRESS.c.study == key).values(state='{"phase": "dreaming"}'))
    hub = trial.open().hub
    assert "cannot be used" in hub.shown.status(key).reason
    assert (hub.shown.status(other).phase, hub.shown.status(other).released) == ("running", 1)
