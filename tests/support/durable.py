"""Studies whose coordinator dies at a chosen place and goes on as another process, in a federation of one process.

Participants live on. Their noise depends on the round alone, so that another attempt yields what the first one had, and a
result can be compared to the bit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.federation import TestBed, make_bed, make_data
from support.fresh import COORDINATOR, LEDGER, fresh_database
from support.proving import proven
from support.randomness import SeededRandom
from veilsum.local.federation import LocalFederation, results_directory
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service import runner
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_coordinator.storage.records import CONSENTS, MEMBERS, PROGRESS, RELEASES, ROUNDS, SUMS
from veilsum_node.database import Database, open_database
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.boundary.front import Directive
from veilsum_participant.protocol.core import Channel, ParticipantCore
from veilsum_privacy.ledger import Kind, LedgerReader
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.ledger.verification import verify_ledger
from veilsum_privacy.results.result import Result, load_result
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.queries.kinds.synthetic import RECORDS
from veilsum_proto import federation_pb2 as pb

NAMES, WIDTH = "abcd", 3
WAITS = Waits(enrol=50, seal=50, contribute=50, consent=50, check=50, grace=5)

Arrays = dict[str, NDArray[np.float64]]


class Died(BaseException):
    """The coordinator's process is gone; no code of the product catches it."""


class SameNoise(ParticipantCore):
    """A participant whose draws depend on the round alone."""

    def handle(self, directive: Directive, channel: Channel) -> None:
        if directive.kind == pb.DIRECTIVE_KIND_CONTRIBUTE:
            self.site.noise_random = SeededRandom(f"{self.site.name} {directive.round}".encode())
        super().handle(directive, channel)


class MortalJournal(SqlJournal):
    """Counts transactions that write; the process dies before or after the ``fatal``-th, or as a sum of round ``unreleased``
    was opened and is about to be released."""

    def __init__(self, *args: Any, fatal: int = 0, after: bool = False) -> None:
        self.writes, self.fatal, self.after, self.dead = 0, fatal, after, False
        self.unreleased = 0
        super().__init__(*args)

    def release(self, study: bytes, number: int, *args: Any, **named: Any) -> bytes:
        self._live(number == self.unreleased)
        return super().release(study, number, *args, **named)

    def _transact(self, work: Any) -> Any:
        self.writes += 1
        self._live(self.writes == self.fatal and not self.after)
        result = super()._transact(work)
        self._live(self.writes == self.fatal)
        return result

    def _live(self, dying: bool) -> None:
        self.dead = self.dead or dying
        if self.dead:
            raise Died


@dataclass
class Trial:
    """One study whose coordinator may die: what lies on disk, and the participants, which live on."""

    bed: TestBed
    study: Study
    results: Path
    place: Path | str
    cores: dict[str, ParticipantCore] = field(init=False)
    lives: int = 0
    opened: Database | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.cores = {name: SameNoise(site) for name, site in self.bed.sites.items()}

    def open(self, fatal: int = 0, *, after: bool = False) -> LocalFederation:
        """A new process of the coordinator; nothing is left of an earlier one but its journal."""
        self.lives += 1
        if self.opened is not None:
            self.opened.close()  # a process that ends loses its connections
        self.opened = database = fresh_database(self.place, LEDGER, COORDINATOR)
        mirror = Mirror(database, credentials=self.bed.hub.credentials, clock=self.bed.clock, random=SYSTEM_RANDOM)
        journal = MortalJournal(database, mirror, fatal=fatal, after=after)
        hub = Hub(self.bed.hub.credentials, journal, waits=WAITS, clock=self.bed.clock)
        return LocalFederation(hub, self.cores, self.bed.clock)

    def submit(self) -> bytes:
        return self.open().submit(self.study, self.bed.analyst)

    def live(self, local: LocalFederation, key: bytes) -> pb.StudyStatus:
        """Let a process run the study to its end, or to its own; one that finds it over tells the members."""
        if key in local.hub.studies and not local.hub.studies[key].machine.phase.over:
            federation = local.prepare(key, self.results)
            federation._results = self.results
            runner.run_study(local.hub, key, federation, self.results)
        local.settle()
        return local.hub.shown.status(key)

    def live_status(self, key: bytes) -> pb.StudyStatus:
        """What a new process shows of a study."""
        return self.open().hub.shown.status(key)

    def finish(self, key: bytes) -> Arrays:
        """Let a process that does not die run the study to its end; its arrays."""
        status = self.live(self.open(), key)
        assert (status.phase, status.reason) == ("finished", "")
        directory = results_directory(self.results, key)
        found = proven(self.open().hub.journal, directory, self.bed.analyst.authority, self.results)
        assert found.comparison.exact
        assert found.replayed
        return dict(self.result(key).arrays)

    def result(self, key: bytes) -> Result:
        """The result on disk."""
        return load_result(results_directory(self.results, key))

    def audit(self, key: bytes) -> None:
        """Every release is paid for exactly once and seen by everyone, nothing stays reserved, all ledgers agree."""
        with ExitStack() as stack:
            journal, *ledgers = (
                stack.enter_context(open_database(place))
                for place in (self.place, *(site.config.state for site in self.bed.sites.values()))
            )
            self._audit(key, journal, [LedgerReader(ledger) for ledger in ledgers])

    def _audit(self, key: bytes, journal: Database, sites: list[LedgerReader]) -> None:
        with journal.reading() as connection:
            rounds = len(connection.exec_driver_sql("SELECT round FROM coordinator_release").all())
            for table in (MEMBERS, ROUNDS):  # an ended study keeps none of it
                assert not connection.execute(table.select()).all()
            released = {row.round for row in connection.execute(RELEASES.select())}
            assert all((row.total is not None) == (row.round in released) for row in connection.execute(SUMS.select()))
            assert {row.round for row in connection.execute(CONSENTS.select())} == released
            assert len(connection.execute(PROGRESS.select()).all()) == 1
        mirror = LedgerReader(journal)
        verify_ledger(mirror, against=sites)
        for site in sites:
            verify_ledger(site, against=[mirror, *sites])
            kinds = Counter(entry.kind for entry in site.entries(study=key))
            paid = Counter(entry.reservation.round for entry in site.entries(kind=Kind.CHARGE))
            assert set(paid.values()) <= {1}
            assert kinds[Kind.CHARGE] == kinds[Kind.RELEASE_SEEN] == len(paid)
            assert kinds[Kind.RESERVE] == kinds[Kind.CHARGE] + kinds[Kind.FREE]
            assert len(paid) <= rounds

    def released(self, key: bytes) -> int:
        """How many rounds of the study were released."""
        return len(self.open().hub.journal.releases(key))


Compile = Callable[[TestBed], Study]


def make_trial(directory: Path, compile_it: Compile, place: str = "") -> Trial:
    """Four sites with data of their own, and a study."""
    data = make_data(NAMES, 24, WIDTH)
    bed = make_bed(directory, data, waits=WAITS, disclosures=("joint", "per-site"))
    return Trial(bed, compile_it(bed), directory / "results", place or directory / "journal.db")


def same(found: Arrays, wanted: Arrays) -> None:
    """Insist on equal arrays, to the bit."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert array.tobytes() == found[name].tobytes(), name


def same_result(found: Result, wanted: Result) -> None:
    """Insist on equal results, to the bit: numbers of the summary are written as the shortest text that gives them back."""
    # Synthetic records are drawn by the release's digest, which is another in every study.
    same(*({name: array for name, array in each.arrays.items() if not name.endswith(RECORDS)} for each in (found, wanted)))
    assert json.dumps(found.summary) == json.dumps(wanted.summary)
    assert found.application == wanted.application
    assert found.arrays or found.summary


# -- places to die at ------------------------------------------------------------------------------------------------------

Doom = Callable[[LocalFederation, bytes, int], None]
"""Dooms a process to die at a place; arguments: the process, the study's digest, number of the round that is meant."""


def die_at(local: LocalFederation, key: bytes, reached: Callable[[Any], bool]) -> None:
    """Let the process die as soon as a study has come so far."""

    def listener(_: str | None) -> None:
        if key in local.hub.studies and reached(local.hub.studies[key].machine):
            local.hub.journal.dead = True  # type: ignore[attr-defined]
            raise Died

    local.hub.listen(listener)


def rounds_in(phase: RoundPhase, number: int, least: int = 0) -> Callable[[Any], bool]:
    """Whether a round is in a phase, with so many uploads, consents or answers in."""

    def reached(machine: Any) -> bool:
        if len(machine.rounds) < number or machine.rounds[number - 1].phase is not phase:
            return False
        current = machine.rounds[number - 1]
        uploads = sum(upload.complete for upload in current.accumulator.uploads.values())
        return {
            RoundPhase.CONTRIBUTING: uploads,
            RoundPhase.CHECKING: len(current.answers),
            RoundPhase.CONSENTING: len(current.consents),
        }.get(phase, 0) >= least

    return reached


def members_in(phase: StudyPhase, what: str, least: int) -> Callable[[Any], bool]:
    """Whether a study is in a phase in which so many members have done something."""

    def reached(machine: Any) -> bool:
        return machine.phase is phase and sum(bool(getattr(seat, what)) for seat in machine.seats.values()) >= least

    return reached


def _in_phase(phase: StudyPhase, what: str) -> Doom:
    return lambda local, key, _: die_at(local, key, members_in(phase, what, 2))


def _in_round(phase: RoundPhase, least: int = 0) -> Doom:
    return lambda local, key, number: die_at(local, key, rounds_in(phase, number, least))


def _unreleased(local: LocalFederation, _key: bytes, number: int) -> None:
    local.hub.journal.unreleased = number  # type: ignore[attr-defined]


def _at_result(written: bool) -> Doom:
    def doom(local: LocalFederation, _key: bytes, _number: int) -> None:
        real = runner.save_result

        def save(directory: Path, result: Result, **named: Any) -> None:
            if "checkpoints" in directory.parts:
                real(directory, result, **named)
                return
            runner.save_result = real  # type: ignore[attr-defined]
            if written:
                real(directory, result, **named)
            local.hub.journal.dead = True  # type: ignore[attr-defined]
            raise Died

        runner.save_result = save  # type: ignore[attr-defined]

    return doom


OF_STUDY: dict[str, Doom] = {
    "enrolling": _in_phase(StudyPhase.ENROLLING, "enrolment"),
    "sealing": _in_phase(StudyPhase.SEALING, "boxes"),
    "unsealing": _in_phase(StudyPhase.SEALING, "ready"),
}
"""Places before the first round."""

OF_ROUND: dict[str, Doom] = {
    "contributing": _in_round(RoundPhase.CONTRIBUTING, 1),
    "checking": _in_round(RoundPhase.CHECKING),
    "some answers": _in_round(RoundPhase.CHECKING, 1),
    "consenting": _in_round(RoundPhase.CONSENTING),
    "some consents": _in_round(RoundPhase.CONSENTING, 1),
    "consented": _in_round(RoundPhase.OPENING),
    "opened": _unreleased,
    "released": _in_round(RoundPhase.RELEASED),
}
"""Places in a round, and between two."""

OF_RESULT: dict[str, Doom] = {"result": _at_result(written=False), "result written": _at_result(written=True)}
"""Places after the last round."""
