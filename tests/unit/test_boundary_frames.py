"""Frames between two processes: whatever the other side sends, the guard gets what it asked for or breaks off."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import mmap
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.network import PATIENCE
from veilsum_node.errors import HostileInput
from veilsum_participant.boundary import front as says
from veilsum_participant.boundary.calls import BrokenError, CallFailedError
from veilsum_participant.boundary.direct import Direct
from veilsum_participant.boundary.encoding import Inquiry, Message, memory, number, octets
from veilsum_participant.boundary.framing import (
    FAILED,
    INLINE,
    LANE,
    MOST_CALLS,
    Caller,
    FramedSocket,
    Lane,
    ReceivedFrame,
    SealedMemory,
    pair,
)
from veilsum_participant.boundary.serving import serve

HEADER = struct.Struct("<2sHIQ")
PLAIN, IN_MEMORY, BESIDE = b"v0", b"v1", b"v2"


class Echoed(Message):
    """What was asked."""

    data: bytes = octets(1, 4 * INLINE)
    block: SealedMemory | None = memory(4 * INLINE)


class Echo(Inquiry[Echoed]):
    """Say the same again."""

    code, answer, most, most_answered, seconds = 100, Echoed, 5 * INLINE, 5 * INLINE, PATIENCE
    data: bytes = octets(1, 4 * INLINE)
    fails: int = number(2, 1)
    block: SealedMemory | None = memory(4 * INLINE)


class Seen(Message):
    """What was asked, as it lies in the message."""

    data: bytes | memoryview = octets(1, LANE, seen=True)
    block: SealedMemory | None = memory(4 * INLINE)


class Lent(Echo):
    """The same, of so large an answer that memory is lent for it."""

    code, answer, most, most_answered = 102, Seen, LANE, 2 * LANE  # type: ignore[assignment]
    data: bytes = octets(1, LANE)


class Soon(Echo):
    """The same, for which nobody waits long."""

    code, seconds = 101, 0.2


def echo(request: Inquiry[Any]) -> Message:
    assert isinstance(request, Echo)
    if request.fails:
        raise ArithmeticError("with words that stay here")
    return Echoed(request.data, request.block)


def told(error: Exception) -> says.Failed:
    return says.Failed(status=2, details=type(error).__name__)


@contextmanager
def served(**named: Any) -> Iterator[Caller]:
    """Who asks, and who answers in a thread."""
    ours, theirs = pair()
    thread = threading.Thread(
        target=serve, args=(FramedSocket(theirs), (Echo, Soon, Lent), echo, told), kwargs=named, daemon=True
    )
    thread.start()
    caller = Caller(FramedSocket(ours), says.Failed)
    try:
        yield caller
    finally:
        caller.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def descriptors() -> set[str]:
    """What is open in this process."""
    gc.collect()
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:  # the directory's own
            continue
    return found


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 7, INLINE - 8, INLINE, INLINE + 1, 3 * INLINE]), st.booleans()), max_size=6))
def test_calls_of_many_threads_get_their_own_answers(asked: list[tuple[int, bool]]) -> None:
    """Of every size, in the datagram and in memory, with a block beside and without."""
    with served() as caller:
        found: dict[int, object] = {}

        def call(place: int, size: int, beside: bool) -> None:
            data = bytes([place]) * size
            block = SealedMemory.of(data, b"!") if beside else None
            answer = caller.call(Echo(data, block=block))
            shown = None if answer.block is None else bytes(answer.block.view())
            found[place] = (answer.data == data, shown == (data + b"!" if beside else None))

        threads = [threading.Thread(target=call, args=(place, *item)) for place, item in enumerate(asked)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert found == dict.fromkeys(range(len(asked)), (True, True))


SMALL_LANE = 3 * INLINE


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from([0, INLINE - 8, INLINE + 1, SMALL_LANE - 8, SMALL_LANE + 1]), st.booleans()), max_size=5
    ),
    st.booleans(),
)
def test_calls_that_are_lent_memory_get_their_own_answers(
    monkeypatch: pytest.MonkeyPatch, asked: list[tuple[int, bool]], together: bool
) -> None:
    """One after the other, which use it again, or at once; longer ones than it carries, with a block beside and without."""
    monkeypatch.setattr("veilsum_participant.boundary.framing.LANE", SMALL_LANE)
    with served() as caller:
        found: dict[int, object] = {}

        def call(place: int, size: int, beside: bool) -> None:
            data = bytes([place + 1]) * size
            answer = caller.call(Lent(data, block=SealedMemory.of(data[: 2 * INLINE], b"!") if beside else None))
            shown = None if answer.block is None else bytes(answer.block.view())
            found[place] = (answer.data == data, shown == (data[: 2 * INLINE] + b"!" if beside else None))

        threads = [threading.Thread(target=call, args=(place, *item)) for place, item in enumerate(asked)]
        for thread in threads:
            thread.start()
            if not together:
                thread.join(PATIENCE)
        for thread in threads:
            thread.join(PATIENCE)
        assert found == dict.fromkeys(range(len(asked)), (True, True))


def taken_over(play: Callable[[FramedSocket, ReceivedFrame], None], calls: int = 1) -> list[object]:
    """What calls that are lent memory give, one after the other, if that is at the other side."""
    ours, theirs = pair()
    caller, line = Caller(FramedSocket(ours), says.Failed), FramedSocket(theirs)
    found: list[object] = []

    def call() -> None:
        for _ in range(calls):
            try:
                found.append(caller.call(Lent(bytes(2 * INLINE))))
            except BrokenError as error:
                found.append(error)
        caller.close()

    thread = threading.Thread(target=call)
    thread.start()
    while (frame := line.receive()) is not None:
        play(line, frame)
    thread.join(PATIENCE)
    theirs.close()
    return found


def lent(frame: ReceivedFrame) -> Lane:
    assert frame.lane is not None
    return frame.lane


def said_of(line: FramedSocket, frame: ReceivedFrame, size: int, flags: bytes = b"4") -> None:
    line._socket.send(HEADER.pack(b"v" + flags, frame.code, frame.call, size))


def shortened(line: FramedSocket, frame: ReceivedFrame) -> None:
    os.ftruncate(lent(frame).descriptor, len(LONG) - 1)
    said_of(line, frame, len(LONG))


def said_larger(line: FramedSocket, frame: ReceivedFrame) -> None:
    os.ftruncate(lent(frame).descriptor, LANE + 1)  # of nothing
    said_of(line, frame, LANE + 1)


def lends_back(line: FramedSocket, frame: ReceivedFrame) -> None:
    line.send(frame.code, frame.call, Echoed(b"right"), Lane(), lends=True)


def garbled(line: FramedSocket, frame: ReceivedFrame) -> None:
    os.pwrite(lent(frame).descriptor, b"\xff" * 64, 0)
    said_of(line, frame, 64)


def in_both(line: FramedSocket, frame: ReceivedFrame) -> None:
    os.pwrite(lent(frame).descriptor, LONG, 0)
    line._socket.sendmsg(
        [HEADER.pack(b"v5", frame.code, frame.call, len(LONG))],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", sealed(LONG)))],
    )


@pytest.mark.parametrize("play", [shortened, said_larger, lends_back, garbled, in_both], ids=lambda play: play.__name__)
def test_memory_that_was_lent_and_is_no_answer_ends_the_connection(
    play: Callable[[FramedSocket, ReceivedFrame], None],
) -> None:
    (found,) = taken_over(play)
    assert isinstance(found, BrokenError)


def test_an_answer_in_memory_that_was_not_lent_ends_the_connection() -> None:
    ours, theirs = pair()
    caller = Caller(FramedSocket(ours), says.Failed)
    found: list[BrokenError] = []

    def call() -> None:
        with pytest.raises(BrokenError, match="not lent") as raised:
            caller.call(Echo())
        found.append(raised.value)

    thread = threading.Thread(target=call)
    thread.start()
    _, code, number_, _ = HEADER.unpack_from(theirs.recv(1 << 16))
    theirs.send(HEADER.pack(b"v4", code, number_, len(LONG)))
    thread.join(PATIENCE)
    theirs.close()
    assert found


def test_what_was_read_of_memory_that_is_lent_is_not_changed_by_who_answered() -> None:
    """Who asked has it to itself: one after the other writes over what it holds, and so does who answers, at any time."""
    kept: list[Lane] = []

    def play(line: FramedSocket, frame: ReceivedFrame) -> None:
        kept.append(lent(frame))
        line.send(frame.code, frame.call, Echoed(bytes([len(kept)]) * (2 * INLINE)), frame.lane)
        for lane in kept[:-1]:
            os.pwrite(lane.descriptor, bytes(2 * INLINE), 8)  # beside its head

    first, second, third = taken_over(play, 3)
    assert isinstance(first, Seen)
    assert first.data == bytes([1]) * (2 * INLINE)
    assert all(isinstance(each, Seen | BrokenError) for each in (second, third))
    assert len({os.fstat(lane.descriptor).st_ino for lane in kept}) == 1, "it is lent again"


def test_memory_that_who_answers_made_longer_is_not_lent_again() -> None:
    nodes: list[int] = []

    def play(line: FramedSocket, frame: ReceivedFrame) -> None:
        nodes.append(os.fstat(lent(frame).descriptor).st_ino)
        os.ftruncate(lent(frame).descriptor, LANE + 1)
        line.send(frame.code, frame.call, Echoed(b"right"), frame.lane)

    assert taken_over(play, 2) == [Seen(b"right")] * 2
    assert len(set(nodes)) == 2


def test_who_answers_can_neither_have_memory_grow_in_the_guard_nor_hold_it_from_being_written() -> None:
    """How the file is written is common to both sides: one that has all writes appended is asked nonsense, and no more."""
    sizes: list[int] = []

    def play(line: FramedSocket, frame: ReceivedFrame) -> None:
        sizes.append(os.fstat(lent(frame).descriptor).st_size)
        fcntl.fcntl(lent(frame).descriptor, fcntl.F_SETFL, os.O_APPEND)
        if len(sizes) == 1:
            os.ftruncate(lent(frame).descriptor, LANE)
        line.send(frame.code, frame.call, Echoed(b"right"), frame.lane)

    assert taken_over(play, 4) == [Seen(b"right")] * 4
    assert max(sizes) <= LANE + 3 * INLINE, "one that has grown is let go"
    lane = Lane()
    for change in (fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SHRINK):
        with pytest.raises(PermissionError):
            fcntl.fcntl(lane.descriptor, fcntl.F_ADD_SEALS, change)


def test_a_fault_comes_over_as_a_message_and_the_next_call_goes_on() -> None:
    for peer in (Direct(echo, told), None):
        with served() as caller:
            asked = peer or caller
            with pytest.raises(CallFailedError) as raised:
                asked.call(Echo(fails=1))
            assert raised.value.failure == says.Failed(status=2, details="ArithmeticError")
            assert asked.call(Echo(b"on")).data == b"on"


def test_a_request_beyond_its_bounds_is_not_sent_and_breaks_nothing() -> None:
    for peer in (Direct(echo, told), None):
        with served() as caller:
            asked = peer or caller
            with pytest.raises(HostileInput, match=r"Echo\.data"):
                asked.call(Echo(bytes(4 * INLINE + 1)))
            assert asked.call(Echo(b"on")).data == b"on"


def test_an_answer_beyond_its_bounds_is_a_failure_of_who_answers() -> None:
    ours, theirs = pair()
    answering = threading.Thread(
        target=serve, args=(FramedSocket(theirs), (Echo,), lambda _: Echoed(bytes(5 * INLINE)), told), daemon=True
    )
    answering.start()
    caller = Caller(FramedSocket(ours), says.Failed)
    with pytest.raises(CallFailedError):
        caller.call(Echo())
    caller.close()
    answering.join(PATIENCE)


def frame(code: int, call: int, body: bytes = b"", *, magic: bytes = PLAIN, size: int | None = None) -> bytes:
    return HEADER.pack(magic, code, call, len(body) if size is None else size) + body


def unsealed(data: bytes) -> int:
    descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.write(descriptor, data)
    return descriptor


def plain_file(data: bytes) -> int:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return os.dup(file.fileno())


def sealed(data: bytes) -> int:
    made = SealedMemory.of(data)
    return os.dup(made.descriptor)


def laid_out(pages: Sequence[str], *, behind: int = 0, short: int = 0) -> int:
    """Sealed memory whose pages are ``data``, a ``hole``, or ``had`` without having been written, with some behind its end."""
    descriptor, page = os.memfd_create("hostile", os.MFD_ALLOW_SEALING), mmap.PAGESIZE
    os.ftruncate(descriptor, max(0, page * len(pages) - short))
    for place, kind in enumerate([*pages, *["had"] * behind]):
        if kind == "data":
            os.pwrite(descriptor, b"x", page * place)
        elif kind == "had":
            keep_size, libc = 1, ctypes.CDLL(None, use_errno=True)
            assert libc.fallocate(descriptor, keep_size, ctypes.c_long(page * place), ctypes.c_long(page)) == 0
    fcntl.fcntl(
        descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    )
    return descriptor


RIGHT = Echoed(b"right").to_bytes()
LONG = Echoed(bytes(INLINE + 1)).to_bytes()

HOSTILE: dict[str, Callable[[int, int], list[tuple[bytes, list[int]]]]] = {
    "nothing of a header": lambda code, call: [(b"v", [])],
    "a header cut off": lambda code, call: [(frame(code, call)[:-1], [])],
    "another magic": lambda code, call: [(frame(code, call, RIGHT, magic=b"v9"), [])],
    "a body cut off": lambda code, call: [(frame(code, call, RIGHT)[:-1], [])],
    "more than it says": lambda code, call: [(frame(code, call, RIGHT) + b"\x00", [])],
    "a size that is not there": lambda code, call: [(frame(code, call, RIGHT, size=2**63), [])],
    "longer than a datagram": lambda code, call: [(frame(code, call, bytes(INLINE + 1)), [])],
    "a number that nobody waits for": lambda code, call: [(frame(code, call + 1, RIGHT), [])],
    "no number": lambda code, call: [(frame(code, 0, RIGHT), [])],
    "another answer": lambda code, call: [(frame(code + 1, call, RIGHT), [])],
    "no answer that there is": lambda code, call: [(frame(0, call, RIGHT), [])],
    "another message": lambda code, call: [(frame(code, call, b"\x10\x01"), [])],
    "garbage": lambda code, call: [(frame(code, call, b"\xff" * 20), [])],
    "a failure that is none": lambda code, call: [(frame(FAILED, call, b"\x08\x7f"), [])],
    "a failure that is too long": lambda code, call: [(frame(FAILED, call, b"\x12\x81\x10" + b"a" * 2049), [])],
    "memory that is not sealed": lambda code, call: [(frame(code, call, magic=IN_MEMORY, size=len(LONG)), [unsealed(LONG)])],
    "a file": lambda code, call: [(frame(code, call, magic=IN_MEMORY, size=len(LONG)), [plain_file(LONG)])],
    "a device": lambda code, call: [(frame(code, call, magic=IN_MEMORY, size=1), [os.open("/dev/zero", os.O_RDONLY)])],
    "memory of another size": lambda code, call: [(frame(code, call, magic=IN_MEMORY, size=len(LONG) + 1), [sealed(LONG)])],
    "memory that is too large": lambda code, call: [
        (frame(code, call, magic=IN_MEMORY, size=6 * INLINE), [sealed(bytes(6 * INLINE))])
    ],
    "memory that is not there": lambda code, call: [(frame(code, call, magic=IN_MEMORY, size=len(LONG)), [])],
    "memory that is not announced": lambda code, call: [(frame(code, call, RIGHT), [sealed(b"x")])],
    "memory and a body": lambda code, call: [(frame(code, call, RIGHT, magic=IN_MEMORY), [sealed(RIGHT)])],
    "three descriptors": lambda code, call: [(frame(code, call, RIGHT, magic=b"v3"), [sealed(b"x") for _ in range(3)])],
    "many descriptors": lambda code, call: [(frame(code, call, RIGHT), [sealed(b"x") for _ in range(60)])],
    "a block that is too large": lambda code, call: [
        (frame(code, call, RIGHT, magic=BESIDE), [sealed(bytes(4 * INLINE + 1))])
    ],
    "a block of holes": lambda code, call: [(frame(code, call, RIGHT, magic=BESIDE), [laid_out(["hole"] * 4)])],
    "a block of holes with memory behind its end": lambda code, call: [
        (frame(code, call, RIGHT, magic=BESIDE), [laid_out(["hole"] * 4, behind=4)])
    ],
    "an end": lambda code, call: [],
}


def answered(how: list[tuple[bytes, list[int]]], line: socket.socket) -> None:
    for data, passed in how:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(passed)}i", *passed))] if passed else []
        line.sendmsg([data], rights)
        for descriptor in passed:
            os.close(descriptor)
    line.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("how", HOSTILE)
def test_what_is_no_answer_ends_the_connection(how: str) -> None:
    """The call that waits, one beside it and all that come later; nothing stays open."""
    before = descriptors()
    ours, theirs = pair()
    caller = Caller(FramedSocket(ours), says.Failed)
    ended: list[str] = []

    def call() -> None:
        with pytest.raises(BrokenError):
            caller.call(Echo())
        ended.append(how)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    calls = [HEADER.unpack_from(theirs.recv(1 << 16))[1:3] for _ in threads]
    answered(HOSTILE[how](calls[0][0], calls[0][1] if "nobody" not in how else max(calls)[1]), theirs)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(ended) == 2
    assert caller.broken
    with pytest.raises(BrokenError):
        caller.call(Echo())
    theirs.close()
    for thread in [item for item in threading.enumerate() if item.name == "boundary"]:
        thread.join(PATIENCE)
    assert descriptors() <= before


def test_a_second_answer_ends_the_connection() -> None:
    ours, theirs = pair()
    caller = Caller(FramedSocket(ours), says.Failed)
    got: list[Echoed] = []
    thread = threading.Thread(target=lambda: got.append(caller.call(Echo())))
    thread.start()
    _, code, call, _ = HEADER.unpack_from(theirs.recv(1 << 16))
    theirs.send(frame(code, call, RIGHT))
    thread.join(PATIENCE)
    assert got == [Echoed(b"right")]
    assert not caller.broken
    theirs.send(frame(code, call, RIGHT))
    with pytest.raises(BrokenError, match="nobody waits"):
        caller.call(Echo())
    theirs.close()


@pytest.mark.parametrize("closes", [False, True])
def test_no_answer_in_time_ends_the_connection_and_every_call_on_it(closes: bool) -> None:
    ours, theirs = pair()
    caller = Caller(FramedSocket(ours), says.Failed)
    ended = threading.Event()

    def long() -> None:
        with pytest.raises(BrokenError):
            caller.call(Echo())
        ended.set()

    threading.Thread(target=long).start()
    theirs.recv(1 << 16)
    if closes:
        threading.Timer(0.05, caller.close).start()
    with pytest.raises(BrokenError, match="closed" if closes else "Soon was not answered within 0 s"):
        caller.call(Soon())
    assert ended.wait(PATIENCE)
    theirs.close()


def test_who_reads_nothing_holds_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilsum_participant.boundary.framing.SEND_SECONDS", 1)
    ours, theirs = pair()
    caller = Caller(FramedSocket(ours), says.Failed)
    ended: list[bool] = []

    def call() -> None:
        with pytest.raises(BrokenError):
            caller.call(Echo(bytes(INLINE - 64)))
        ended.append(True)

    threads = [threading.Thread(target=call) for _ in range(20)]  # more than the socket takes
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(ended) == 20
    theirs.close()


def test_no_more_calls_wait_than_may() -> None:
    ours, theirs = pair()
    caller = Caller(FramedSocket(ours), says.Failed)

    def call() -> None:
        with pytest.raises(BrokenError):
            caller.call(Echo())

    threads = [threading.Thread(target=call) for _ in range(MOST_CALLS)]
    for thread in threads:
        thread.start()
    for _ in threads:
        theirs.recv(1 << 16)
    with pytest.raises(HostileInput, match="More calls"):
        caller.call(Echo())
    caller.close()
    for thread in threads:
        thread.join(PATIENCE)
    theirs.close()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_the_right_answer_or_the_end(data: bytes, framed: bool) -> None:
    ours, theirs = pair()
    caller = Caller(FramedSocket(ours), says.Failed)
    found: list[object] = []

    def call() -> None:
        try:
            found.append(caller.call(Echo()))
        except (BrokenError, CallFailedError) as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    _, code, number_, _ = HEADER.unpack_from(theirs.recv(1 << 16))
    theirs.send(frame(code, number_, data) if framed else data or b"\x00")
    theirs.close()
    thread.join(PATIENCE)
    (last,) = found
    assert isinstance(last, BrokenError) or (isinstance(last, Echoed) and last.to_bytes() and framed) or last == Echoed()


@pytest.mark.parametrize("data", [b"\x00", frame(99, 1), frame(100, 1, b"\xff"), frame(100, 1, b"\x10\x02")])
def test_who_answers_ends_at_what_is_no_request(data: bytes) -> None:
    ours, theirs = pair()
    ours.send(data)
    with pytest.raises(HostileInput):
        serve(FramedSocket(theirs), (Echo,), echo, told)
    assert ours.recv(16) == b""
    ours.close()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(["data", "data", "data", "hole", "had"]), max_size=6), st.integers(0, 6), st.integers(0, 4000))
def test_memory_that_is_taken_is_there_and_whoever_looks_has_none_made(pages: list[str], behind: int, short: int) -> None:
    """Whatever its maker did to have as many blocks counted as it has bytes."""
    descriptor = laid_out(pages, behind=behind, short=short)
    try:
        taken = SealedMemory.received(os.dup(descriptor))
    except HostileInput:
        assert set(pages) - {"data"}
    else:
        before = os.fstat(descriptor).st_blocks
        bytes(taken.view())
        assert os.fstat(descriptor).st_blocks == before
        assert taken.size == max(0, mmap.PAGESIZE * len(pages) - short)
    finally:
        os.close(descriptor)


def test_sealed_memory_cannot_be_changed() -> None:
    made = SealedMemory.of(b"as", memoryview(b" it is"))
    assert (bytes(made.view()), made.size) == (b"as it is", 8)
    for change in (lambda: os.pwrite(made.descriptor, b"x", 0), lambda: os.ftruncate(made.descriptor, 1)):
        with pytest.raises(PermissionError):
            change()
    view = made.view()
    with pytest.raises(TypeError):
        view[0] = 1
    made.close()
    assert bytes(view) == b"as it is"
    assert bytes(SealedMemory.of().view()) == b""
