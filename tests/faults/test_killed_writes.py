"""A participant that is killed at every single write of a round: before and after each statement, commit and message.

After each death it starts again from its file and the study goes on to the right sum. Its ledger then charges exactly what it
consented to, once, and holds no reservation open.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import delete, select

from support.federation import TestBed, make_bed, make_request, schema_of
from support.killing import KillableSite, MortalFederation
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service.runner import run_study
from veilsum_node.database import open_database
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.store.attempts import ATTEMPTS
from veilsum_participant.store.populations import COHORTS
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.reader import LedgerReader
from veilsum_privacy.ledger.receipts import parse_receipt
from veilsum_privacy.ledger.verification import verify_ledger
from veilsum_privacy.results.result import load_result
from veilsum_proto import federation_pb2 as pb

VICTIM = "a"
ROWS = 5
GRACE = 30
DATA = {name: (np.full((ROWS, 1), 0.5), np.arange(ROWS) % 2) for name in "abc"}


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    return make_bed(tmp_path, DATA, waits=Waits(grace=GRACE))


def _federation(bed: TestBed, victim: KillableSite, names: str = "abc") -> MortalFederation:
    cores = {name: ParticipantCore(bed.sites[name]) for name in names if name != VICTIM}
    return MortalFederation(bed.hub, {VICTIM: victim, **cores}, bed.clock)  # type: ignore[dict-item]


def _whole_round(bed: TestBed, victim: KillableSite, key: bytes) -> int:
    """All three contribute; returns how many the release sums."""
    federation = _federation(bed, victim)
    run_study(bed.hub, key, federation.prepare(key), bed.kit.directory / "results")
    federation.settle()
    return 3


def _freed_attempt(bed: TestBed, victim: KillableSite, key: bytes) -> int:
    """One participant leaves after the victim has uploaded: that attempt is freed, the next goes on without it."""
    federation = _federation(bed, victim)
    started = federation.prepare(key)
    here = _federation(bed, victim, "ab")
    left = False

    def advance() -> None:
        nonlocal left
        current = bed.hub.studies[key].machine.round
        if not left and current is not None and current.accumulator.uploads[VICTIM].complete:
            left = True
            bed.hub.disconnect("c", bed.hub.sessions["c"].serial)
            bed.clock.now += GRACE
        here.step()

    started._wait = advance
    run_study(bed.hub, key, started, bed.kit.directory / "results")
    here.settle()
    assert left
    return 2


@pytest.mark.parametrize(
    ("history", "first", "stride"),
    [  # together at every twelfth or thirteenth
        (_whole_round, 1, 50),
        (_freed_attempt, 26, 50),
        pytest.param(_whole_round, 1, 1, marks=pytest.mark.system),
        pytest.param(_freed_attempt, 1, 1, marks=pytest.mark.system),
    ],
)
def test_every_death_leaves_exactly_what_was_consented_to(
    bed: TestBed, history: Callable[[TestBed, KillableSite, bytes], int], first: int, stride: int
) -> None:
    fatal, deaths = first, 0
    while True:
        study = bed.compile(make_request(schema_of(1), epsilon=None, min_cohort=2))
        for site in bed.sites.values():  # an exact sum allows no other cohort near it; each history is the first of its sites
            with site.database.transaction() as connection:
                connection.execute(delete(COHORTS))
        key = bed.local.submit(study, bed.analyst)
        victim = KillableSite(bed.hub, bed.sites[VICTIM].config, VICTIM, bed.clock, fatal)
        summed = history(bed, victim, key)
        passed = victim.stop()
        where = f"death {fatal}"
        status = bed.hub.shown.status(key)
        assert status.phase == "finished", f"{where}: {status.phase}: {status.reason}"
        (release,) = bed.hub.journal.releases(key)
        assert np.frombuffer(release["values"], dtype="<i8")[0] / study.tasks[0].grid > 0
        assert _records(bed, key) == pytest.approx(summed * ROWS, abs=1e-3), where
        _check_ledger(bed, key, where)
        if victim.deaths == 0:
            assert fatal > passed
            break
        assert victim.deaths == 1
        deaths += 1
        fatal += stride
    assert fatal > 40  # fewer points than this would mean that the harness no longer sees the writes
    _check_whole(bed)


def _records(bed: TestBed, key: bytes) -> float:
    result = load_result(bed.kit.directory / "results" / key.hex())
    return float(result.summary["records"][0]["count"]["value"])


def _check_ledger(bed: TestBed, key: bytes, where: str) -> None:
    with open_database(bed.sites[VICTIM].config.state) as database:
        ledger = LedgerReader(database)
        with database.engine.connect() as connection:
            rows = connection.execute(select(ATTEMPTS).where(ATTEMPTS.c.study == key)).mappings().all()
        by_kind = {
            kind: [entry.context for entry in ledger.entries(kind=kind, study=key)]
            for kind in (Kind.RESERVE, Kind.CHARGE, Kind.FREE, Kind.RELEASE_SEEN)
        }
        consented = [row["context"] for row in rows if row["state"] in ("consented", "released")]
        mirrored = [item for item in bed.hub.journal.mirror.mirrored(VICTIM) if item.consent is not None]
        receipts = [parse_receipt(item.receipt.body) for item in mirrored]
        contexts = {receipt.context for receipt in receipts if receipt.study == key}
        assert by_kind[Kind.CHARGE] == consented, where
        assert len(consented) == 1, where
        assert contexts == set(consented), where
        assert sorted(by_kind[Kind.RESERVE]) == sorted(by_kind[Kind.CHARGE] + by_kind[Kind.FREE]), where
        assert by_kind[Kind.RELEASE_SEEN] == consented, where


def _check_whole(bed: TestBed) -> None:
    databases = [open_database(bed.sites[name].config.state) for name in "ab"]
    try:
        own, peer = (LedgerReader(database) for database in databases)
        verify_ledger(own, against=[peer])
    finally:
        for database in databases:
            database.close()


def test_the_harness_would_see_a_charge_apart_from_its_consent(bed: TestBed) -> None:
    """A directive that dies is answered again, so the harness itself must report the death."""
    study = bed.compile(make_request(schema_of(1), epsilon=None, min_cohort=2))
    key = bed.local.submit(study, bed.analyst)
    victim = KillableSite(bed.hub, bed.sites[VICTIM].config, VICTIM, bed.clock, 1)
    (directive,) = bed.hub.directives(VICTIM)
    assert directive.kind == pb.DIRECTIVE_KIND_ENROL
    victim.handle(directive)
    assert victim.deaths == 1
    assert bed.hub.studies[key].machine.seats[VICTIM].enrolment is None
    victim.handle(directive)
    assert bed.hub.studies[key].machine.seats[VICTIM].enrolment is not None
    victim.stop()
