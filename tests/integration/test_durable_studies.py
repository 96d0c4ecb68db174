"""A coordinator that dies at every write of its journal and in every phase goes on to the same result, paid for once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.federation import TestBed, make_bed, make_request, schema_of
from support.postgres import server
from support.randomness import SeededRandom
from veilsum_coordinator.federation import Release
from veilsum_coordinator.hub import Hub
from veilsum_coordinator.journal import SqlJournal
from veilsum_coordinator.keeping import MEMBERS, PROGRESS, ROUNDS, SUMS
from veilsum_coordinator.machine import RETURN_SECONDS
from veilsum_coordinator.members import StudyPhase
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.methods.compile import StudyRequest
from veilsum_coordinator.restoring import ReplayError
from veilsum_coordinator.rounds import RoundPhase
from veilsum_coordinator.runner import run_study
from veilsum_coordinator.settings import Waits
from veilsum_deploy.local import LocalFederation, results_directory
from veilsum_participant.core import Channel, ParticipantCore
from veilsum_privacy.database import open_database, reading, transaction
from veilsum_privacy.errors import RefusalCode
from veilsum_privacy.ledger import Kind, LedgerReader
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.ledger.verification import verify_ledger
from veilsum_privacy.randomness import SYSTEM_RANDOM
from veilsum_privacy.results import Result, load_result, saved_checkpoints
from veilsum_privacy.securesum.context import broadcast_digest, encode_broadcast
from veilsum_privacy.study import Study
from veilsum_proto import federation_pb2 as pb

NAMES, WIDTH = "abcd", 3
WAITS = Waits(enrol=50, seal=50, contribute=50, consent=50, decrypt=50, grace=5)


class Died(BaseException):
    """The coordinator's process is gone; no code of the product catches it."""


class SameNoise(ParticipantCore):
    """A participant whose draws depend on the round alone, so that a second attempt yields what the first one had."""

    def handle(self, directive: pb.Directive, channel: Channel) -> None:
        if directive.kind == pb.DIRECTIVE_KIND_CONTRIBUTE:
            self.site.noise_random = SeededRandom(f"{self.site.name} {directive.round}".encode())
        super().handle(directive, channel)


class MortalJournal(SqlJournal):
    """Counts transactions that write; the process dies before or after the ``fatal``-th."""

    def __init__(self, *args: Any, fatal: int = 0, after: bool = False) -> None:
        self.writes, self.fatal, self.after, self.dead = 0, fatal, after, False
        super().__init__(*args)

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

    def __post_init__(self) -> None:
        self.cores = {name: SameNoise(site) for name, site in self.bed.sites.items()}

    def open(self, fatal: int = 0, *, after: bool = False) -> LocalFederation:
        """A new process of the coordinator; nothing is left of an earlier one but its journal."""
        self.lives += 1
        engine = open_database(self.place)
        mirror = Mirror(engine, credentials=self.bed.hub.credentials, clock=self.bed.clock, random=SYSTEM_RANDOM)
        journal = MortalJournal(engine, mirror, fatal=fatal, after=after)
        hub = Hub(self.bed.hub.credentials, journal, waits=WAITS, clock=self.bed.clock)
        return LocalFederation(hub, self.cores, self.bed.clock)

    def submit(self) -> bytes:
        return self.open().submit(self.study, self.bed.analyst)

    def live(self, local: LocalFederation, key: bytes) -> pb.StudyStatus:
        """Let a process run the study to its end, or to its own."""
        federation = local.prepare(key, self.results)
        federation._results = self.results
        run_study(local.hub, key, federation, self.results)
        local.settle()
        return local.hub.status(key)

    def live_status(self, key: bytes) -> pb.StudyStatus:
        """What a new process shows of a study."""
        return self.open().hub.status(key)

    def finish(self, key: bytes) -> dict[str, NDArray[np.float64]]:
        """Let a process that does not die run the study to its end; its arrays."""
        status = self.live(self.open(), key)
        assert (status.phase, status.reason) == ("finished", "")
        return dict(load_result(results_directory(self.results, key)).arrays)

    def audit(self, key: bytes) -> None:
        """Every release is paid for exactly once and seen by everyone, nothing stays reserved, all ledgers agree."""
        journal = open_database(self.place)
        with reading(journal) as connection:
            rounds = len(connection.exec_driver_sql("SELECT round FROM coordinator_release").all())
            for table in (MEMBERS, ROUNDS):  # an ended study keeps none of it
                assert not connection.execute(table.select()).all()
            assert all(row.ciphertexts is None for row in connection.execute(SUMS.select()))
            assert len(connection.execute(PROGRESS.select()).all()) == 1
        mirror = LedgerReader(journal)
        sites = [LedgerReader(open_database(site.config.state)) for site in self.bed.sites.values()]
        verify_ledger(mirror, against=sites)
        for site in sites:
            verify_ledger(site, against=[mirror, *sites])
            kinds = Counter(entry.kind for entry in site.entries(study=key))
            paid = Counter(entry.reservation.round for entry in site.entries(kind=Kind.CHARGE))
            assert set(paid.values()) <= {1}
            assert kinds[Kind.CHARGE] == kinds[Kind.RELEASE_SEEN] == len(paid)
            assert kinds[Kind.RESERVE] == kinds[Kind.CHARGE] + kinds[Kind.FREE]
            assert len(paid) <= rounds


Compile = Callable[[TestBed], Study]


def fedcgs(bed: TestBed) -> Study:
    return bed.compile(make_request(schema_of(WIDTH, max_records=40), "fedcgs", 2.0))


def fedsgd(bed: TestBed) -> Study:
    request = make_request(schema_of(WIDTH, max_records=40), "fedsgd", 2.0)
    parameters = {"steps": 3, "sampling_rate": 0.5, "gradient_clip": 0.5}
    return bed.compile(request.model_copy(update={"parameters": parameters}))


def slot_align(bed: TestBed) -> Study:
    """Sites keep their noised statistic from the first round to the others."""
    request = make_request(schema_of(WIDTH, max_records=40), "slot-align", 900.0)
    alignment = {"alignment": {"reference": "paper", "mode": "iterated", "rounds": 3}}
    return bed.compile(request.model_copy(update={"parameters": alignment}))


def hfedatm(bed: TestBed) -> Study:
    """Rounds of stations, whose members differ."""
    request = make_request(schema_of(WIDTH, max_records=40), "hfedatm", None, min_cohort=2)
    model = {"name": "linear", "options": {"scale": 0.5, "bias": 0.7}}
    parameters = {"stations": {"one": ["a", "b"], "two": ["c", "d"]}, "rounds": 2, "model": model}
    return bed.compile(request.model_copy(update={"parameters": parameters}))


METHODS: dict[str, Compile] = {"fedcgs": fedcgs, "fedsgd": fedsgd, "hfedatm": hfedatm, "slot-align": slot_align}


def make_trial(directory: Path, compile_it: Compile, place: str = "") -> Trial:
    rng = np.random.default_rng(3)
    data = {name: (rng.uniform(-1, 1, (24, WIDTH)), rng.integers(0, 2, 24)) for name in NAMES}
    bed = make_bed(directory, data, waits=WAITS)
    return Trial(bed, compile_it(bed), directory / "results", place or directory / "journal.db")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, NDArray[np.float64]]]:
    """A method's arrays where the coordinator never dies."""
    known: dict[str, dict[str, NDArray[np.float64]]] = {}

    def of(method: str) -> dict[str, NDArray[np.float64]]:
        if method not in known:
            trial = make_trial(tmp_path_factory.mktemp("expected"), METHODS[method])
            known[method] = trial.finish(trial.submit())
        assert known[method]
        return known[method]

    return of


def same(found: dict[str, NDArray[np.float64]], wanted: dict[str, NDArray[np.float64]]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert array.tobytes() == found[name].tobytes(), name


@pytest.mark.parametrize(("method", "place"), [*((method, "file") for method in METHODS), ("fedsgd", "server")])
def test_dying_after_every_second_write(tmp_path: Path, expected: Any, method: str, place: str) -> None:
    """No process of the coordinator writes more than twice, and the study ends as if one had done it all."""
    trial = make_trial(tmp_path, METHODS[method], server().new_database() if place == "server" else "")
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


@pytest.mark.parametrize("method", ["fedcgs", "slot-align"])
def test_dying_before_a_later_write_each_time(tmp_path: Path, expected: Any, method: str) -> None:
    """What was not written is done again, wherever that was."""
    trial = make_trial(tmp_path, METHODS[method])
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


def rounds_in(phase: RoundPhase, number: int, least: int = 0) -> Callable[[Any], bool]:
    def reached(machine: Any) -> bool:
        if len(machine.rounds) < number or machine.rounds[number - 1].phase is not phase:
            return False
        current = machine.rounds[number - 1]
        uploads = sum(upload.complete for upload in current.accumulator.uploads.values())
        return {
            RoundPhase.CONTRIBUTING: uploads,
            RoundPhase.CONSENTING: len(current.consents),
            RoundPhase.DECRYPTING: len(current.answers),
        }.get(phase, 0) >= least

    return reached


def members_in(phase: StudyPhase, what: str, least: int) -> Callable[[Any], bool]:
    def reached(machine: Any) -> bool:
        return machine.phase is phase and sum(bool(getattr(seat, what)) for seat in machine.seats.values()) >= least

    return reached


PLACES = {
    "enrolling": members_in(StudyPhase.ENROLLING, "enrolment", 2),
    "sealing": members_in(StudyPhase.SEALING, "boxes", 2),
    "unsealing": members_in(StudyPhase.SEALING, "ready", 2),
    "contributing": rounds_in(RoundPhase.CONTRIBUTING, 1, 1),
    "consenting": rounds_in(RoundPhase.CONSENTING, 1),
    "some consents": rounds_in(RoundPhase.CONSENTING, 1, 1),
    "decrypting": rounds_in(RoundPhase.DECRYPTING, 1),
    "one decryption": rounds_in(RoundPhase.DECRYPTING, 1, 1),
    "opening": rounds_in(RoundPhase.OPENING, 1),
    "released": rounds_in(RoundPhase.RELEASED, 1),
    "contributing later": rounds_in(RoundPhase.CONTRIBUTING, 2, 1),
    "consenting later": rounds_in(RoundPhase.CONSENTING, 2, 1),
    "decrypting later": rounds_in(RoundPhase.DECRYPTING, 2, 1),
    "released later": rounds_in(RoundPhase.RELEASED, 2),
}


def die_at(local: LocalFederation, key: bytes, reached: Callable[[Any], bool]) -> None:
    """Let the process die as soon as a study has come so far."""

    def listener() -> None:
        if reached(local.hub.studies[key].machine):
            local.hub.journal.dead = True  # type: ignore[attr-defined]
            raise Died

    local.hub.listen(listener)


@pytest.mark.parametrize("method", METHODS)
def test_dying_in_every_phase(tmp_path: Path, expected: Any, method: str) -> None:
    """One study, whose coordinator dies at every place that there is."""
    trial = make_trial(tmp_path, METHODS[method])
    key = trial.submit()
    for place, reached in PLACES.items():
        if method == "fedcgs" and place.endswith("later"):
            continue
        local = trial.open()
        die_at(local, key, reached)
        with pytest.raises(Died):
            trial.live(local, key)
    same(trial.finish(key), expected(method))
    trial.audit(key)
    assert len(saved_checkpoints(trial.results, key)) <= 3


# -- one thing at a time ---------------------------------------------------------------------------------------------------


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return make_trial(tmp_path, lambda bed: bed.compile(_releases(bed, 3)))


def _releases(bed: TestBed, count: int) -> StudyRequest:
    """A study whose one task may be asked for ``count`` times."""
    request = make_request(schema_of(WIDTH, max_records=40), "fedsgd", 2.0, min_cohort=2, cohort_difference="allowed")
    return request.model_copy(update={"parameters": {"steps": count, "centre": False, "gradient_clip": 0.5}})


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
    shown = local.hub.status(key)
    assert (shown.phase, shown.released, len(shown.rounds)) == ("running", 2, 2)
    assert all(item.bytes_received > 0 for item in shown.rounds)
    assert not any(
        directive.kind == pb.DIRECTIVE_KIND_CONTRIBUTE for name in NAMES for directive in local.hub.directives(name)
    )
    federation = local.prepare(key)
    assert machine.replaying
    for value, former in zip((0.0, 1.0), before, strict=True):
        again = federation.sum("gradient", model(value))
        assert (again.label, again.round, again.cohort, again.digest) == (
            former.label, former.round, former.cohort, former.digest
        )  # fmt: skip
        assert again.noise_std == former.noise_std
        same(again.values, former.values)
    assert not machine.replaying
    assert federation.sum("gradient", model(2.0)).round == 3


@pytest.mark.parametrize(
    ("label", "value", "members", "reason"),
    [
        ("gradient", 0.5, None, "its broadcast is another one"),
        ("other", 0.0, None, "it was 'gradient' and is 'other' now"),
        ("gradient", 0.0, "abc", "others may take part in it"),
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
    assert "does not go on as before the restart: round 2" in status.reason
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
    trial.bed.clock.now += RETURN_SECONDS - 1
    hub.tick()
    assert (machine.phase, machine.returning) == (StudyPhase.RUNNING, True)
    trial.bed.clock.now += 1
    assert not machine.returning
    for value in (0.0, 1.0):
        machine.replayed("gradient", broadcast_digest(encode_broadcast(model(value))), None)
    with hub.change(key):
        current = machine.start_round("gradient", encode_broadcast(model(2.0)))
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


def test_a_study_of_an_earlier_version_ends(trial: Trial) -> None:
    """Its journal does not say where it was."""
    key, _ = begun(trial)
    with transaction(open_database(trial.place)) as connection:
        for table in (PROGRESS, ROUNDS, MEMBERS):
            connection.execute(table.delete())
    status = trial.live_status(key)
    assert (status.phase, status.reason) == ("failed", "an older version left the study in the middle of its rounds")


def test_a_journal_that_cannot_be_read_ends_that_study_alone(trial: Trial) -> None:
    key, _ = begun(trial)
    other = trial.open().submit(trial.bed.compile(_releases(trial.bed, 2)), trial.bed.analyst)
    with transaction(open_database(trial.place)) as connection:
        connection.execute(PROGRESS.update().values(state='{"phase": "dreaming"}'))
    hub = trial.open().hub
    assert "cannot be used" in hub.status(key).reason
    assert hub.status(other).phase == "enrolling"
