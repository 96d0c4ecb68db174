"""Hostile participants and analysts before the first round: submissions, enrolments, boxes. The honest ones still finish."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.hostile import NAMES, HostileChannel, altered
from veilsum.drafts import absences, draft_connected
from veilsum.local.federation import LocalChannel, as_directive
from veilsum.remote import CoordinatorInfo
from veilsum_coordinator.protocol.machine import StudyMachine
from veilsum_coordinator.protocol.members import MemberState, StudyPhase
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service.hub import Hub
from veilsum_node.errors import HostileInput, RefusalCode, StateError, Unavailable
from veilsum_node.identity import Authority, Label, Role, SigningKey, new_key_and_csr, verify_certificate
from veilsum_privacy.securesum.boxes import Box, BoxKey
from veilsum_privacy.securesum.roster import enrol
from veilsum_privacy.study.study import Study
from veilsum_proto import federation_pb2 as pb


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    return make_bed(tmp_path, make_data(), waits=Waits(grace=0))


def _study(bed: TestBed) -> Study:
    return bed.compile(make_request(schema_of(2), min_cohort=2))


def _submitted(bed: TestBed) -> tuple[bytes, StudyMachine]:
    key = bed.local.submit(_study(bed), bed.analyst)
    return key, bed.hub.studies[key].machine


def _own(bed: TestBed, name: str, key: bytes, public: bytes | None = None) -> Any:
    credentials = bed.sites[name].credentials
    return enrol(key, credentials.identity, public or BoxKey.generate().public, credentials.signing_key)


def _finishes(bed: TestBed, key: bytes) -> tuple[str, ...]:
    """The honest rest of the study; returns the cohort of its release."""
    release = bed.local.prepare(key).sum("statistics")
    assert bed.hub.studies[key].machine.rounds[-1].phase == "released"
    for name in release.cohort:
        bed.sites[name].ledger.verify()
        assert sum(entry.kind == "charge" for entry in bed.sites[name].ledger.entries()) == 1
    return release.cohort


def _signed(bed: TestBed, agreed: Study, **changes: bytes) -> pb.StudyObject:
    found = bed.signed(agreed)
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def test_submissions(bed: TestBed) -> None:
    """Another analyst's, a forged, foreign, expired or replayed study is refused; nothing of it is kept."""
    study, hub = _study(bed), bed.hub
    site = bed.sites["a"].credentials
    data = study.to_bytes()
    cases: list[tuple[str, pb.StudyObject]] = [
        ("other", _signed(bed, study)),
        ("a", bed.signed(study, site)),
        ("analyst", _signed(bed, study, signature=b"")),
        ("analyst", _signed(bed, study, signature=bed.analyst.signing_key.sign(Label.RECEIPT, data))),
        ("analyst", _signed(bed, study, study=data + b" ")),
        ("analyst", _signed(bed, study, certificate=b"")),
        ("analyst", _signed(bed, study, certificate=site.identity.certificate)),
        ("analyst", _signed(bed, altered(study, federation="0" * 64))),
        ("analyst", _signed(bed, altered(study, coordinator="elsewhere"))),
        ("analyst", _signed(bed, altered(study, created=1, expires=2))),
        ("analyst", pb.StudyObject()),
    ]
    for caller, message in cases:
        with pytest.raises(HostileInput):
            hub.submit(caller, message)
    assert hub.studies == {}
    key = hub.submit("analyst", _signed(bed, study))
    with pytest.raises(HostileInput, match="before"):
        hub.submit("analyst", _signed(bed, study))
    assert _finishes(bed, key) == NAMES
    with pytest.raises(HostileInput, match="before"):
        hub.submit("analyst", _signed(bed, study))


def test_enrolments(bed: TestBed) -> None:
    """Under another name, for another study, by the uninvited, altered: refused, and the seat stays free."""
    key, machine = _submitted(bed)
    good = _own(bed, "d", key)
    wrong: list[tuple[str, Any]] = [
        ("d", _own(bed, "c", key)),
        ("d", _own(bed, "d", bytes(32))),
        ("d", replace(good, signature=b"")),
        ("d", replace(good, body=good.body[:-1])),
        ("d", replace(good, body=b"")),
        ("d", replace(good, certificate=b"")),
        ("d", replace(good, certificate=bed.analyst.identity.certificate)),
        ("d", _own(bed, "d", key, public=bytes(10))),
        ("stranger", good),
        ("analyst", good),
    ]
    for name, enrolment in wrong:
        with pytest.raises(HostileInput):
            bed.hub.enrol(name, key, enrolment)
    with pytest.raises(HostileInput, match="no such study"):
        bed.hub.enrol("d", bytes(32), good)
    assert all(seat.enrolment is None for seat in machine.seats.values())
    assert _finishes(bed, key) == NAMES
    with pytest.raises(HostileInput):
        bed.hub.enrol("stranger", key, good)


def test_two_enrolments_with_one_key(bed: TestBed) -> None:
    """A copied HPKE key once made the roster fail at every tick, and with it the clock of every study of the coordinator."""
    key, machine = _submitted(bed)
    other, _ = _submitted(bed)
    shared = BoxKey.generate().public
    bed.hub.enrol("c", key, _own(bed, "c", key, shared))
    with pytest.raises(HostileInput, match="another participant"):
        bed.hub.enrol("d", key, _own(bed, "d", key, shared))
    assert machine.seats["d"].enrolment is None
    bed.hub.refuse("d", key, "study-invalid", 0, 0)
    bed.hub.tick()
    assert _finishes(bed, other) == NAMES


def test_certificate_that_expires_while_others_enrol(bed: TestBed) -> None:
    """One member's expired certificate costs that member its seat; neither the study nor any other study stops."""
    key, machine = _submitted(bed)
    authority = Authority.load(bed.kit.authority, bed.clock)
    pem, csr = new_key_and_csr("d", Role.PARTICIPANT)
    signed = load_pem_x509_certificate(authority.sign(csr, role=Role.PARTICIPANT, name="d", replace=True, days=1))
    identity = verify_certificate(signed.public_bytes(Encoding.DER), authority.certificate, bed.clock(), Role.PARTICIPANT)
    bed.hub.enrol("d", key, enrol(key, identity, BoxKey.generate().public, SigningKey.from_pem(pem)))
    for name in ("a", "b"):
        bed.hub.enrol(name, key, _own(bed, name, key))
    machine.study = altered(machine.study, expires=machine.study.expires + 10 * 86400)
    bed.clock.now += 86400 + 60
    bed.hub.tick()
    assert machine.phase is StudyPhase.SEALING
    assert machine.roster is not None
    assert machine.roster.names == ("a", "b")
    assert machine.seats["d"].refusal == "roster-invalid"


def test_an_enrolment_that_was_stored_too_late_does_not_count_after_a_restart(bed: TestBed) -> None:
    """Its write ended after enrolment had closed without it: a restarted coordinator goes on with the roster that was told."""
    key, machine = _submitted(bed)
    for name in ("a", "b", "c"):
        bed.hub.enrol(name, key, _own(bed, name, key))
    bed.clock.now += Waits().enrol
    bed.hub.tick()
    assert machine.members.fixed_roster().names == ("a", "b", "c")
    told = machine.members.fixed_roster().digest
    bed.hub.journal.keep_enrolment(key, "d", _own(bed, "d", key))
    again = Hub(bed.hub.credentials, bed.hub.journal, waits=Waits(grace=0), clock=bed.clock).studies[key].machine
    assert again.phase is StudyPhase.SEALING
    assert again.members.fixed_roster().digest == told
    assert again.seats["d"].enrolment is None
    assert all(again.seats[name].enrolment is not None for name in "abc")
    with pytest.raises(HostileInput, match="over"):
        again.enrol("d", _own(bed, "d", key))


def _sealing(bed: TestBed) -> tuple[bytes, StudyMachine, dict[str, list[Box]]]:
    """A study whose members' boxes are made and kept back."""
    key, machine = _submitted(bed)
    local = bed.local
    for name, core in local.cores.items():
        [directive] = bed.hub.directives(name)
        core.handle(as_directive(directive), LocalChannel(bed.hub, name))
    bed.hub.tick()
    assert machine.phase is StudyPhase.SEALING
    made = {}
    for name, core in local.cores.items():
        channel = HostileChannel()
        channel.objects = {pb.OBJECT_KIND_ROSTER: bed.hub.objects.fetch(name, pb.OBJECT_KIND_ROSTER, key, 0, 0)}
        [directive] = bed.hub.directives(name)
        core.handle(as_directive(directive), channel)
        made[name] = channel.said[-1].values[1]
    return key, machine, made


def test_boxes_missing_doubled_or_for_strangers(bed: TestBed) -> None:
    """A member sends exactly the boxes that it owes, complete or not at all."""
    key, machine, made = _sealing(bed)
    hub, first = bed.hub, made["a"]
    seed = first[0]
    wrong: list[tuple[str, list[Box]]] = [
        ("a", []),
        ("a", first[:-1]),
        ("a", [*first, first[0]]),
        ("a", [*first[:-1], first[0]]),
        ("a", [*first, replace(seed, recipient="x")]),
        ("a", [*first, replace(seed, recipient="a")]),
        ("a", [replace(box, sender="b") for box in first]),
        ("b", first),
        ("b", [*made["b"], replace(first[0], sender="b")]),
        ("d", [replace(seed, sender="d", recipient="a")]),
        ("x", first),
    ]
    for name, boxes in wrong:
        with pytest.raises(HostileInput):
            hub.seal(name, key, boxes)
        assert machine.seats["a"].boxes is machine.seats["b"].boxes is machine.seats["d"].boxes is None
    for name in ("a", "x"):
        with pytest.raises(HostileInput):
            hub.ready(name, key)
    for name in NAMES:
        hub.seal(name, key, made[name])
    kept = machine.seats["a"].boxes
    hub.seal("a", key, [])  # a repetition changes nothing
    assert machine.seats["a"].boxes == kept
    assert _finishes(bed, key) == NAMES
    with pytest.raises(HostileInput, match="outside"):
        hub.seal("a", key, first)


def test_ready_before_there_are_keys(bed: TestBed) -> None:
    """A member that says it is ready too early would enter a cohort without keys."""
    key, machine = _submitted(bed)
    with pytest.raises(HostileInput):
        bed.hub.ready("d", key)
    assert not machine.seats["d"].ready
    assert _finishes(bed, key) == NAMES


def test_a_member_that_seals_nothing_is_left_out(bed: TestBed) -> None:
    """At its deadline the rest go on without it."""
    key, machine, made = _sealing(bed)
    for name in ("b", "c", "d"):
        bed.hub.seal(name, key, made[name])
    bed.clock.now += Waits().seal
    bed.hub.tick()
    assert machine.seats["a"].gone
    local = bed.local
    local.cores.pop("a")
    assert local.prepare(key).sum("statistics").cohort == ("b", "c", "d")


def test_rubbish_boxes_stop_only_their_recipient(bed: TestBed) -> None:
    """A box that does not open makes its recipient refuse; the others finish."""
    key, machine, made = _sealing(bed)
    spoiled = [replace(box, signature=b"") if box.recipient == "b" else box for box in made["a"]]
    bed.hub.seal("a", key, spoiled)
    for name in ("b", "c", "d"):
        bed.hub.seal(name, key, made[name])
    assert _finishes(bed, key) == ("a", "c", "d")
    assert machine.seats["b"].refusal == "keys-invalid"


def test_uninvited_callers(bed: TestBed) -> None:
    """Every call of a participant that the study does not name is refused."""
    key, machine = _submitted(bed)
    hub = bed.hub
    calls: list[Callable[[], object]] = [
        lambda: hub.ready("x", key),
        lambda: hub.seal("x", key, []),
        lambda: hub.refuse("x", key, "study-invalid", 0, 0),
        lambda: hub.refuse("a", key, "", 0, 0),
        lambda: hub.refuse("a", key, "Budget: 0.37 of 1.0", 0, 0),
        lambda: hub.confirm("x", key, pb.DIRECTIVE_KIND_END, 0, 0),
        lambda: hub.confirm("a", key, 99, 0, 0),  # type: ignore[arg-type]
        lambda: hub.objects.fetch("x", pb.OBJECT_KIND_STUDY, key, 0, 0),
        lambda: hub.objects.fetch("a", pb.OBJECT_KIND_ROSTER, key, 0, 0),
        lambda: hub.upload_status("a", key, 1),
        lambda: hub.upload("a", key, 1, 0, b""),
        lambda: hub.answer("a", key, 1, (1, 2, 3), b""),
        lambda: hub.consent("a", key, 1, bytes(32), b""),
        lambda: hub.connect("a", b"short"),
        lambda: hub.shown.status(key[:8]),
        lambda: hub.shown.status(bytes(32)),
    ]
    for call in calls:
        with pytest.raises(HostileInput):
            call()
    assert machine.phase is StudyPhase.ENROLLING
    assert machine.refusals == []
    assert _finishes(bed, key) == NAMES


def test_too_few_who_enrol(bed: TestBed) -> None:
    """Refusals can stop a study, in words, but not hang it."""
    key, machine = _submitted(bed)
    for name in ("b", "c", "d"):
        bed.hub.refuse(name, key, "budget-exceeded", 0, 0)
    with pytest.raises(StateError, match="enrolled"):
        bed.local.prepare(key)
    assert machine.phase is StudyPhase.FAILED
    with pytest.raises(HostileInput, match="over"):
        bed.hub.enrol("b", key, _own(bed, "b", key))


def test_absent_member_that_sealed_does_not_stop_the_clock(bed: TestBed) -> None:
    """One member sealed and went for good, another is there and never seals: the second is dropped at its deadline."""
    key, machine, made = _sealing(bed)
    for name in NAMES:
        serial = bed.hub.connect(name, bytes(16))
    for name in ("a", "b", "c"):
        bed.hub.seal(name, key, made[name])
    bed.hub.disconnect("a", serial)
    for _ in range(3):
        bed.clock.now += Waits().seal // 2
        bed.hub.tick()
    assert machine.seats["d"].gone
    assert not machine.seats["b"].gone


def test_boxes_are_taken_only_while_they_are_exchanged(bed: TestBed) -> None:
    """A stream of boxes is turned away at its first message, before it is kept in memory."""
    key, _, made = _sealing(bed)
    assert bed.hub.boxes_owed("a", key) >= len(made["a"])
    assert _finishes(bed, key) == NAMES
    with pytest.raises(HostileInput, match="outside"):
        bed.hub.boxes_owed("a", key)


def test_fault_in_one_study_does_not_stop_the_clock_of_the_others(bed: TestBed) -> None:
    def broken() -> int:
        raise ArithmeticError

    first, faulty = _submitted(bed)
    _, other = _submitted(bed)
    assert next(iter(bed.hub.studies)) == first
    faulty._clock = broken
    bed.clock.now += Waits().enrol
    bed.hub.tick()
    assert faulty.phase is other.phase is StudyPhase.FAILED
    assert "internal" in faulty.reason
    assert "0 of 4 enrolled" in other.reason


def test_a_whole_study_waits_for_its_end_to_be_stored(bed: TestBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end, tries = bed.hub.journal.end_study, itertools.count()

    def away(*args: Any, **kwargs: Any) -> None:
        if next(tries) < 20:
            raise Unavailable("The database is away.")
        end(*args, **kwargs)

    monkeypatch.setattr(bed.hub.journal, "end_study", away)
    assert bed.local.run(_study(bed), bed.analyst, tmp_path / "results").phase == "finished"
    assert next(tries) == 21


def test_outcome_that_cannot_be_stored_is_stored_later(bed: TestBed) -> None:
    """Who waits hears of a change; of an end, once no crash can take it back."""
    key, machine = _submitted(bed)
    heard: list[bool] = []
    bed.hub.listen(lambda _: heard.append(True))
    database = bed.hub.journal.database
    with database.transaction() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER full BEFORE UPDATE ON coordinator_study BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    bed.hub.abort(key, "enough")
    assert heard
    shown = bed.hub.shown.status(key)
    assert (shown.phase, shown.reason) == ("enrolling", "aborted, not yet stored in the database: enough")
    assert not bed.hub.stored(key)
    assert [row["phase"] for row in bed.hub.journal.studies()] == ["enrolling"]
    with database.transaction() as connection:
        connection.exec_driver_sql("DROP TRIGGER full")
    bed.hub.connect("a", bytes(16))
    assert [row["phase"] for row in bed.hub.journal.studies()] == ["aborted"]
    assert bed.hub.shown.status(key).phase == "aborted"
    machine.finish()
    assert machine.phase is StudyPhase.ABORTED


@pytest.mark.parametrize("connected", list(itertools.product([True, False], repeat=2)))
def test_who_did_not_enrol_is_named(bed: TestBed, connected: tuple[bool, bool]) -> None:
    """One enrolled, one refused, two were silent: each is named with what is known of it."""
    key = bed.local.submit(bed.compile(make_request(schema_of(2), min_cohort=3)), bed.analyst)
    machine = bed.hub.studies[key].machine
    machine.enrol("a", _own(bed, "a", key))
    machine.refuse("b", RefusalCode.BUDGET, 0, 0)
    for name, there in zip("cd", connected, strict=True):
        machine.seats[name].connected = there
    bed.clock.now += Waits().enrol + 1
    machine.tick()
    said = {True: "no answer", False: "not connected"}
    silent = "; ".join(
        f"{words}: {', '.join(names)}"
        for there, words in said.items()
        if (names := [name for name, state in zip("cd", connected, strict=True) if state is there])
    )
    assert machine.phase is StudyPhase.FAILED
    assert machine.reason == f"1 of 4 enrolled, 3 are needed (b: budget-exceeded; {silent})"


_EVENTS = st.one_of(
    st.tuples(st.just("enrol"), st.sampled_from(NAMES)),
    st.tuples(st.just("refuse"), st.sampled_from(NAMES)),
    st.tuples(st.just("away"), st.sampled_from(NAMES)),
    st.tuples(st.just("wait"), st.integers(0, 25)),
)
_ENROL, _GRACE = 60, 9


@pytest.fixture(scope="module")
def enrolling(tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    return make_bed(tmp_path_factory.mktemp("enrolling"), make_data(), waits=Waits(enrol=_ENROL, grace=_GRACE))


@given(needed=st.integers(2, len(NAMES)), events=st.lists(_EVENTS, max_size=16))
@example(needed=4, events=[("enrol", "a"), ("refuse", "a"), ("wait", 8), ("enrol", "b"), ("wait", 1)])
@example(needed=4, events=[("refuse", "a"), ("wait", 8), ("refuse", "b"), ("wait", 1)])
@example(
    needed=3,
    events=[("refuse", "a"), ("away", "b"), ("wait", 25), ("wait", 25), ("enrol", "b"), ("enrol", "c"), ("enrol", "d")],
)
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_enrolment_ends_early_exactly_if_too_few_are_left(enrolling: TestBed, needed: int, events: list[Any]) -> None:
    """Never while enough may still enrol, whoever is silent or away; else the grace period after the decisive refusal, and
    then only who refused is named."""
    key = enrolling.local.submit(enrolling.compile(make_request(schema_of(2), min_cohort=needed)), enrolling.analyst)
    machine = enrolling.hub.studies[key].machine
    enrolled, refused = set[str](), set[str]()
    start, decided = enrolling.clock.now, None
    for what, about in [*events, ("wait", _ENROL)]:
        if what == "enrol" and about in refused - enrolled:
            with pytest.raises(HostileInput, match="over"):  # a refusal is not taken back
                machine.enrol(about, _own(enrolling, about, key))
        elif what == "enrol":
            machine.enrol(about, _own(enrolling, about, key))
            enrolled.add(about)
        elif what == "refuse":
            machine.refuse(about, RefusalCode.APPROVAL, 0, 0)
            refused.add(about)
        elif what == "away":
            machine.disconnected(about)
        else:
            enrolling.clock.now += about
        machine.tick()
        now = enrolling.clock.now
        if len(NAMES) - len(refused) < needed:
            decided = now if decided is None else decided
        answered = len(enrolled | refused) == len(NAMES)
        if not answered and now - start < _ENROL and (decided is None or now - decided < _GRACE):
            assert machine.phase is StudyPhase.ENROLLING
            continue
        left = enrolled - refused
        assert (machine.roster is not None) == (len(left) >= needed)
        if machine.roster is None:
            assert machine.phase is StudyPhase.FAILED
        if decided is not None:
            told = ", ".join(f"{name}: approval-declined" for name in NAMES if name in refused)
            assert machine.reason == f"{len(left)} of 4 enrolled, {needed} are needed ({told})"
        break
    machine.abort("the example is over")


def test_who_is_left_out_of_a_cohort_is_named(bed: TestBed) -> None:
    """By what is known of each: refused, given up on, not ready, not connected; members of the roster only."""
    members = bed.hub.studies[bed.local.submit(_study(bed), bed.analyst)].machine.members
    members.seats = {name: MemberState(name, enrolled=True, connected=True) for name in "abcdefg"}
    members.names = tuple("abcdef")
    members.seats["b"].refusal = "budget-exceeded"
    members.seats["c"].gone = True
    members.seats["d"].connected = False
    members.seats["f"].connected = False
    assert members.left_out("a") == "b: budget-exceeded; given up on: c; not ready: e; not connected: d, f"
    assert members.left_out("abcdef") == ""


def test_a_thousand_silent_sites_are_counted(bed: TestBed) -> None:
    seats = {f"site-{number:04d}": MemberState(f"site-{number:04d}") for number in range(1000)}
    members = bed.hub.studies[bed.local.submit(_study(bed), bed.analyst)].machine.members
    members.seats = seats
    assert members.missing.startswith("not connected: site-0000, site-0001, ")
    assert members.missing.endswith("site-0019 and 980 more")


class _Coordinator:
    """What a coordinator says of who is there; nothing else is asked of it."""

    def __init__(self, connected: tuple[str, ...], known: tuple[str, ...]) -> None:
        self._info = CoordinatorInfo("coordinator", connected, known, {})

    def describe(self) -> CoordinatorInfo:
        return self._info


@pytest.mark.parametrize("named", [(), ("a", "b", "c"), ("a", "b", "d")])
def test_who_is_not_there_is_named_before_a_study_is_signed(named: tuple[str, ...]) -> None:
    request = make_request(schema_of(2), min_cohort=2).model_copy(update={"participants": named})
    coordinator: Any = _Coordinator(("a", "b", "c"), ("a", "b", "c", "d", "e"))
    draft, away, left_out = draft_connected(request, coordinator, "0" * 64)
    assert draft.members == (named or ("a", "b", "c"))
    assert away == tuple(name for name in named if name == "d")
    assert left_out == (() if named else ("d", "e"))
    said = " ".join(absences(away, left_out))
    assert ("d" in away) == ("d. The study waits" in said)
    assert bool(left_out) == ("not asked: d, e." in said)
