"""What keeps a coordinator's work from growing with the square of its members and with all the studies it ever had."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.hostile import NAMES
from veilsum.local.federation import LocalChannel, as_directive
from veilsum_coordinator.protocol.machine import StudyMachine
from veilsum_coordinator.protocol.members import Members, StudyPhase
from veilsum_coordinator.protocol.rounds import Round
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service import fetching
from veilsum_coordinator.service.coordination import REST, Coordination, _Session
from veilsum_coordinator.service.endings import HEARD_SECONDS
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.status import study_status
from veilsum_node.errors import HostileInput
from veilsum_node.randomness import SYSTEM_RANDOM, spread
from veilsum_proto import federation_pb2 as pb

KEY = bytes(32)
SHARED = pb.OBJECT_KIND_ROSTER, pb.OBJECT_KIND_FIXED, pb.OBJECT_KIND_ANSWERS


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    return make_bed(tmp_path, make_data())


def _directive(kind: int = 1, attempt: int = 0) -> pb.Directive:
    return pb.Directive(kind=cast(Any, kind), study=KEY, attempt=attempt)


class _Hub:
    """Counts how often it is asked what is open."""

    def __init__(self, names: list[str]) -> None:
        self.open: dict[str, list[pb.Directive]] = {name: [] for name in names}
        self.asked = 0
        self.changed: Any = None

    def listen(self, listener: Any) -> None:
        self.changed = listener

    def directives(self, name: str) -> list[pb.Directive]:
        self.asked += 1
        return self.open[name]


def _watched(names: list[str]) -> tuple[_Hub, Coordination]:
    hub = _Hub(names)
    service = Coordination(cast(Hub, hub), cast(Any, None), lambda: 0)
    service._sessions = {name: _Session() for name in names}
    return hub, service


def test_a_burst_of_changes_is_one_look_and_wakes_only_whom_it_concerns() -> None:
    async def main() -> None:
        names = [f"site-{index}" for index in range(100)]
        hub, service = _watched(names)
        for cause in (None, "site-3"):
            for _ in range(100):
                hub.open["site-7"] = [_directive()]
                hub.changed(cause)
        await asyncio.sleep(0.05)
        assert hub.asked == len(names)
        assert [name for name, session in service._sessions.items() if session.waker.is_set()] == ["site-7"]

    asyncio.run(main())


def test_only_those_whom_changes_name_are_looked_at() -> None:
    async def main() -> None:
        hub, service = _watched([f"site-{index}" for index in range(100)])
        hub.open["site-7"] = hub.open["site-8"] = [_directive()]
        for name in ("site-7", "site-9", "nobody"):
            hub.changed(name)
        await asyncio.sleep(0.05)
        assert hub.asked == 2
        assert [name for name, session in service._sessions.items() if session.waker.is_set()] == ["site-7"]

    asyncio.run(main())


def test_nobody_but_whom_a_change_names_is_asked_for_something_new(bed: TestBed, tmp_path: Path) -> None:
    hub, open_before, changes = bed.hub, dict[str, set[bytes]](), list[tuple[str | None, set[str]]]()
    told = [hub.changes]

    def look(name: str | None) -> None:
        assert (hub.changes > told[-1]) == (name is None), "a study's method is woken by what concerns more than one"
        told.append(hub.changes)
        news = set()
        for each in NAMES:
            now = {item.SerializeToString(deterministic=True) for item in hub.directives(each)}
            if now - open_before.get(each, set()):
                news.add(each)
            open_before[each] = now
        changes.append((name, news))

    hub.listen(look)
    study = bed.compile(make_request(schema_of(2), min_cohort=2, cohort_difference="allowed"))
    key = bed.local.submit(study, bed.analyst)
    federation = bed.local.prepare(key)
    federation.sum("statistics")
    with hub.changing(key):
        hub.studies[key].machine.abort("enough")
    bed.local.settle()
    assert hub.shown.status(key).phase == "aborted"
    assert all(name is None or news <= {name} for name, news in changes)
    assert sum(name is None for name, _ in changes) < len(changes) / 2


def test_looks_leave_most_of_the_time_to_others() -> None:
    async def main() -> None:
        hub, _ = _watched(["a"])
        look, slow = hub.directives, 0.02

        def directives(name: str) -> list[pb.Directive]:
            time.sleep(slow)
            return look(name)

        hub.directives = directives  # type: ignore[method-assign]
        hub.changed(None)
        while not hub.asked:
            await asyncio.sleep(0.001)
        ended = time.monotonic()
        hub.changed(None)
        while hub.asked < 2:
            await asyncio.sleep(0.001)
        assert time.monotonic() - ended >= REST * slow  # the clock's own; a busy machine only makes it longer

    asyncio.run(main())


def test_a_change_after_a_look_is_looked_at_however_soon_it_comes() -> None:
    async def main() -> None:
        hub, service = _watched(["a", "b"])
        for attempt in range(50):
            session = service._sessions["a"]
            session.waker.clear()
            hub.open["a"] = [_directive(4, attempt)]
            hub.changed("a" if attempt % 2 else None)
            async with asyncio.timeout(5):
                await session.waker.wait()
            assert [item.attempt for item in session.news(hub.open["a"])] == [attempt]

    asyncio.run(main())


@given(st.lists(st.frozensets(st.integers(0, 3)), max_size=12), st.data())
def test_a_session_sends_what_opened_and_again_what_closed_between(shown: list[frozenset[int]], data: st.DataObject) -> None:
    session, sent = _Session(), set[int]()
    for numbers in shown:
        now = [_directive(4, number) for number in sorted(numbers)]
        assert session.has_news(now) == bool(numbers - sent)
        sent &= numbers
        if data.draw(st.booleans()):
            assert {item.attempt for item in session.news(now)} == numbers - sent
            sent = set(numbers)


def test_an_ended_study_is_looked_at_no_more(bed: TestBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = bed.local
    status = local.run(bed.compile(make_request(schema_of(2))), bed.analyst, tmp_path / "results")
    assert status.phase == "finished"
    assert [bed.hub.directives(name) for name in NAMES] == [[]] * len(NAMES)

    def touched(*_: object) -> None:
        raise AssertionError("an ended study was looked at")

    for method in ("tick", "marks", "directives", "connected", "disconnected"):
        monkeypatch.setattr(StudyMachine, method, touched)
    bed.hub.tick()
    for name in NAMES:
        assert bed.hub.directives(name) == []
        bed.hub.disconnect(name, bed.hub.connect(name, bytes(16)))


@pytest.mark.parametrize("absent", ["", NAMES[-1]])
def test_an_ended_study_is_let_go_of_and_shown_as_before(bed: TestBed, absent: str) -> None:
    """Its machine, study, members and rounds go, also where somebody has yet to hear of the end."""
    local, hub = bed.local, bed.hub
    key = local.submit(bed.compile(make_request(schema_of(2), min_cohort=2)), bed.analyst)
    federation = local.prepare(key)
    federation.sum("statistics")
    machine = hub.studies[key].machine
    parts = (machine, machine.members, machine.agreed, machine.rounds[0], hub.studies[key])
    gone = [weakref.ref(part) for part in parts]
    left = local.cores.pop(absent, None)
    local.settle()
    before = study_status(hub.studies[key])
    hub.abort(key, "enough")
    del machine, parts, federation
    local.settle()
    gc.collect()
    assert [ref() for ref in gone] == [None] * len(gone)
    assert hub.stored(key)
    assert set(hub.ended[key].seats) == ({absent} if absent else set())
    shown = hub.shown.status(key)
    assert (shown.phase, shown.reason, list(shown.enrolled)) == ("aborted", "enough", list(NAMES))
    assert shown.rounds == before.rounds
    assert hub.shown.all() == [shown]
    again = Hub(hub.credentials, hub.journal, waits=Waits(), clock=bed.clock)
    assert again.shown.status(key) == shown
    assert hub.journal.kept_state(key)["roster"] == list(NAMES)
    hub.abort(key, "again")  # nothing happens
    assert hub.shown.status(key) == shown
    for name in NAMES:
        with pytest.raises(HostileInput, match="over"):
            hub.ready(name, key)
        with pytest.raises(HostileInput, match="over"):
            hub.objects.fetch(name, pb.OBJECT_KIND_STUDY, key, 0, 0)
        if name != absent:
            hub.confirm(name, key, pb.DIRECTIVE_KIND_END, 0, 0)
    for ask in (
        lambda: hub.confirm("stranger", key, pb.DIRECTIVE_KIND_END, 0, 0),
        lambda: hub.objects.fetch("stranger", 1, key, 0, 0),
    ):
        with pytest.raises(HostileInput, match="not invited"):
            ask()
    if left is not None:  # it comes back late, and hears of its last release before the end
        kinds = [item.kind for item in hub.directives(absent)]
        assert kinds[-1] == pb.DIRECTIVE_KIND_END
        local.cores[absent] = left
        local.settle()
        assert not hub.ended[key].seats
    assert not any(hub.directives(name) for name in NAMES)


def test_a_release_that_was_stored_before_the_study_was_stopped_is_told_after_it(bed: TestBed) -> None:
    local, hub = bed.local, bed.hub
    key = local.submit(bed.compile(make_request(schema_of(2), min_cohort=2)), bed.analyst)
    federation = local.prepare(key)
    released = hub.released

    def stopped(of: bytes, machine: StudyMachine, current: Round) -> None:
        hub.abort(of, "enough")
        assert hub.stored(of)
        both = [pb.DIRECTIVE_KIND_RELEASED, pb.DIRECTIVE_KIND_END]
        for process in (hub, Hub(hub.credentials, hub.journal, waits=Waits(), clock=bed.clock)):
            told = {name: [item.kind for item in process.directives(name)] for name in NAMES}
            assert told == {name: both if name in current.cohort else both[1:] for name in NAMES}
        local.settle()
        released(of, machine, current)

    hub.released = stopped  # type: ignore[method-assign]
    assert federation.sum("statistics").cohort
    assert not any(hub.directives(name) for name in NAMES)
    assert not hub.ended[key].seats
    shown = hub.shown.status(key)
    assert (shown.phase, shown.released, [item.phase for item in shown.rounds]) == ("aborted", 1, ["released"])


def test_who_heard_of_a_study_s_end_is_not_told_again_after_a_restart(bed: TestBed, tmp_path: Path) -> None:
    local, absent = bed.local, NAMES[-1]
    key = local.submit(bed.compile(make_request(schema_of(2))), bed.analyst)
    bed.hub.abort(key, "enough")
    core = local.cores.pop(absent)
    local.settle()
    for past, told in ((HEARD_SECONDS - 1, list(NAMES)), (HEARD_SECONDS, [absent])):
        bed.clock.now += past
        bed.hub.tick()
        again = Hub(bed.hub.credentials, bed.hub.journal, waits=Waits(), clock=bed.clock)
        assert [name for name in NAMES if again.directives(name)] == told
        bed.clock.now -= past
    local.cores[absent] = core
    local.settle()
    bed.hub.tick()  # the last one: at once
    again = Hub(bed.hub.credentials, bed.hub.journal, waits=Waits(), clock=bed.clock)
    assert not any(again.directives(name) for name in NAMES)


def test_boxes_are_let_go_of_once_everyone_has_opened_its_own(bed: TestBed) -> None:
    local, hub = bed.local, bed.hub
    key = local.submit(bed.compile(make_request(schema_of(2))), bed.analyst)
    machine = hub.studies[key].machine
    members, seen = machine.members, set[tuple[int, bool]]()
    for name, core in cycle(local.cores.items()):
        for directive in hub.directives(name):
            core.handle(as_directive(directive), LocalChannel(hub, name))
            if members.roster is not None and machine.phase is StudyPhase.SEALING:
                _check_boxes(members, seen)
        hub.tick()
        if machine.phase is StudyPhase.RUNNING:
            break
    assert {(0, True), (1, False), (1, True)} <= seen
    assert not any(seat.boxes for seat in members.seats.values())


def _check_boxes(members: Members, seen: set[tuple[int, bool]]) -> None:
    """Hold what is asked often against what it means; ``seen``: how many had not sealed, and whether all live ones had."""
    for name in NAMES:
        expected = [
            box.sender for seat in members.seats.values() for recipient, box in (seat.boxes or {}).items() if recipient == name
        ]
        assert sorted(box.sender for box in members.boxes_for(name)) == sorted(expected)
        seat, gone = members.seats[name], members.seats[name].gone
        for seat.gone in (True, gone):  # also of who was given up on
            sealed = all(members.seats[live].boxes is not None for live in members.live())
            assert members.all_sealed() == sealed
            seen.add((sum(seat.boxes is None for seat in members.seats.values()), sealed))


def test_what_all_members_fetch_is_put_together_once(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, fetched = bed.hub, dict[int, list[bytes]]()
    local = bed.local
    original = hub.objects.fetch

    def fetch(name: str, kind: pb.ObjectKind.ValueType, key: bytes, number: int, attempt: int) -> bytes:
        data = original(name, kind, key, number, attempt)
        fetched.setdefault(kind, []).append(data)
        return data

    hub.objects.fetch = fetch  # type: ignore[method-assign]
    made: list[list[bytes]] = []
    for name in ("fixed_parts", "answer_parts"):
        honest = getattr(fetching, name)
        monkeypatch.setattr(fetching, name, lambda item, honest=honest: made.append(honest(item)) or made[-1])
    release = local.prepare(local.submit(bed.compile(make_request(schema_of(2))), bed.analyst)).sum("statistics")
    assert [len(fetched[kind]) for kind in SHARED] == [len(release.cohort)] * 3
    assert all(data is fetched[pb.OBJECT_KIND_ROSTER][0] for data in fetched[pb.OBJECT_KIND_ROSTER])
    assert len(made) == 2
    for kind, parts in zip(SHARED[1:], made, strict=True):  # each member has its own part
        cut = [b"".join(part if at != place else b"\x0a\0" for at, part in enumerate(parts)) for place in range(len(NAMES))]
        assert fetched[kind] == cut


def test_what_all_members_fetch_is_cut_into_messages_once(bed: TestBed) -> None:
    hub, local = bed.hub, bed.local
    key = local.submit(bed.compile(make_request(schema_of(2), min_cohort=2)), bed.analyst)
    local.prepare(key)
    first, second = (hub.objects.messages(name, pb.OBJECT_KIND_ROSTER, key, 0, 0) for name in NAMES[:2])
    assert first is second
    sent = [pb.Chunk.FromString(message) for message in first]
    whole = hub.objects.fetch(NAMES[0], pb.OBJECT_KIND_ROSTER, key, 0, 0)
    assert b"".join(chunk.data for chunk in sent) == whole
    assert {chunk.total for chunk in sent} == {len(whole)}
    hub.abort(key, "enough")
    assert not hub.objects._cut  # of a study that is over nothing is held


def test_who_has_nothing_to_give_up_takes_no_lock_to_look(bed: TestBed) -> None:
    """Every site looks at its deadlines every second."""
    local = bed.local
    local.prepare(local.submit(bed.compile(make_request(schema_of(2))), bed.analyst))
    for name, core in local.cores.items():

        def written(_: object) -> None:
            raise AssertionError("a write transaction was begun")

        bed.sites[name].database.guard = written
        core.expire()


def test_what_is_made_of_something_else_is_put_together_anew(bed: TestBed) -> None:
    found, made = bed.hub.objects, iter([b"first", b"second", b"third", b"fourth"])
    first, second = object(), object()
    asked = (first, first, second, second, first)
    shown = [found.once(KEY, 6, source, lambda: next(made)) for source in asked]
    assert shown == [b"first", b"first", b"second", b"second", b"third"]
    found.renew()
    assert found.once(KEY, 6, first, lambda: next(made)) == b"fourth"


def test_a_roster_finds_its_members_by_name(bed: TestBed) -> None:
    local = bed.local
    key = local.submit(bed.compile(make_request(schema_of(2))), bed.analyst)
    local.prepare(key)
    roster = bed.hub.studies[key].machine.members.fixed_roster()
    assert roster.names == tuple(NAMES)
    assert [roster.member(name) for name in roster.names] == list(roster.members)
    with pytest.raises(HostileInput):
        roster.member("nobody")


@given(st.floats(0.5, 30))
def test_a_pause_before_dialling_again_is_spread_and_never_longer(pause: float) -> None:
    drawn = np.array([spread(pause, SYSTEM_RANDOM) for _ in range(40)])
    assert ((pause / 2 <= drawn) & (drawn <= pause)).all()
    assert len(set(drawn)) > 10
