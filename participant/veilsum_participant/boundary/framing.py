"""Frames between two processes of a site: one datagram each on a connected Unix socket (SOCK_SEQPACKET), large ones in memory.

A frame is a header and a message's bytes. What is longer than :data:`INLINE` goes as a sealed memory file (memfd_create(2)) by
its descriptor: whoever gets it checks the seals and the size before it looks, so that nothing changes or ends under its eyes;
and that the memory is there, for a hole is filled for whoever looks, at its expense. Up to :data:`LANE` it goes by memory that
the side that asks lends for a call, and uses again. Nothing holds who answers from changing that: it is copied whole before
any of it is read, by pread(2), which neither shortening nor a hole can disturb. One side asks, the other answers. The side
that asks believes nothing: an answer that nobody asked for, a second one, one of another kind, size or form, or none in
time, ends the connection (:class:`BrokenError`), and whoever keeps the other process ends that too.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from veilsum_node.errors import HostileInput
from veilsum_participant.boundary.calls import BrokenError, CallFailedError
from veilsum_participant.boundary.encoding import Inquiry, Message, read

INLINE = 48 * 1024
"""Bytes of a message that go in its datagram."""

LANE = 32 * 1024 * 1024
"""Bytes of a message that go by the memory which its call was lent, whose pages the kernel need not find and clear again."""

_LENT_FROM = 2 * 1024 * 1024  # bytes that a call may ask or answer beyond which it is lent memory

SEND_SECONDS = 30
"""How long the other side may let the socket be full."""

MOST_CALLS = 64
"""Calls at a time."""

FAILED = 0xFFFF
"""The code of an answer that says that its call failed."""

_HEADER = struct.Struct("<2sHIQ")
_SEALED, _BESIDE, _LANED, _LENDS = 1, 2, 4, 8
_FLAGS = {b"v%x" % flags: flags for flags in range(16)}
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_FD = struct.Struct("i")
_MOST_FDS = 3

R = TypeVar("R", bound=Message)


class SealedMemory:
    """A sealed memory file; implements :class:`~veilsum_participant.boundary.encoding.Sealed`.

    Attributes:
        size: bytes.
        descriptor: closed with this object.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor, self.size = descriptor, size

    @classmethod
    def of(cls, *parts: bytes | memoryview) -> SealedMemory:
        """Memory that holds these bytes.

        Raises:
            OSError: there is none.
        """
        made = cls(os.memfd_create("veilsum", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), 0)
        made.size = _written(made.descriptor, parts)
        fcntl.fcntl(made.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return made

    @classmethod
    def received(cls, descriptor: int) -> SealedMemory:
        """What came by a descriptor, which is closed where it is not such memory.

        Raises:
            HostileInput: it is not a sealed memory file, or has holes.
        """
        found = cls(descriptor, 0)
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            found.size = os.fstat(descriptor).st_size
            # sealed against writing, so that none is punched later; blocks are no proof, for there may be some behind the end
            filled = os.lseek(descriptor, 0, os.SEEK_HOLE) if found.size else 0
        except OSError as error:
            raise HostileInput("A descriptor is not one of sealed memory.") from error
        if seals & _SEALS != _SEALS:
            raise HostileInput("A descriptor is not one of sealed memory.")
        if filled != found.size:
            raise HostileInput("Sealed memory has holes.")
        return found

    def view(self) -> memoryview:
        """Its bytes."""
        if not self.size:
            return memoryview(b"")
        return memoryview(mmap.mmap(self.descriptor, self.size, prot=mmap.PROT_READ))

    def close(self) -> None:
        """Let go of the descriptor; views stay."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def _written(descriptor: int, parts: Iterable[bytes | memoryview]) -> int:
    """Write parts to a memory file from its beginning; returns their bytes."""
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.seek(0)
        file.writelines(parts)  # large ones from where they are
        return file.tell()


class Lane:
    """Memory that is lent for calls, one at a time; closed with this object."""

    def __init__(self, descriptor: int = -1) -> None:
        self.descriptor = os.memfd_create("veilsum", os.MFD_CLOEXEC) if descriptor < 0 else descriptor

    def read(self, size: int) -> bytes:
        """A copy of its first bytes; HostileInput where it has fewer, or more are asked for than it may carry."""
        data = os.pread(self.descriptor, size, 0) if size <= LANE else b""
        if len(data) != size:
            raise HostileInput("Memory that was lent holds another size than its frame says.")
        return data

    def __del__(self) -> None:
        os.close(self.descriptor)


@dataclass(frozen=True)
class ReceivedFrame:
    """A frame as it came: ``code`` of a request or its answer, ``call`` its number, ``body`` in the datagram or beside it, or
    ``laned`` in what its call was lent; a request brings that along as ``lane``."""

    code: int
    call: int
    size: int
    inline: bytes
    body: SealedMemory | None
    beside: SealedMemory | None
    laned: bool
    lane: Lane | None

    def read(self, of: type[R], most: int, lane: Lane | None) -> R:
        """The message in it.

        Args:
            of, most: its class, and bytes that it may have.
            lane: what its call was lent.

        Raises:
            HostileInput: it is not one of the class, or larger than ``most``.
        """
        if self.size > most:
            raise HostileInput(f"{of.__name__} has more than {most} bytes.")
        if self.laned:
            if lane is None:
                raise HostileInput(f"{of.__name__} is said to be in memory that was not lent.")
            return read(lane.read(self.size), of, self.beside)
        if self.body is None:
            return read(self.inline, of, self.beside)
        if self.body.size != self.size:
            raise HostileInput(f"{of.__name__} has another size than its frame says.")
        view = self.body.view()
        try:
            return read(view, of, self.beside)
        finally:
            self.body.close()


class FramedSocket:
    """A connected socket that carries frames."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._sending = threading.Lock()
        connected.setblocking(True)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))

    def send(self, code: int, call: int, message: Message, lane: Lane | None = None, *, lends: bool = False) -> None:
        """Send a message.

        Args:
            code, call, message: as of :class:`ReceivedFrame`.
            lane: what the call was lent; with ``lends`` it goes along.

        Raises:
            BrokenError: the other side is gone, or takes nothing.
            HostileInput: the message breaks its bounds; nothing was sent.
        """
        parts, beside = message.to_pieces(), message.memory
        size, body, flags = sum(map(len, parts)), None, _LENDS * lends
        try:
            if lane is not None and INLINE < size <= LANE:
                flags |= _LANED
                _written(lane.descriptor, parts)
            elif size > INLINE:
                body = SealedMemory.of(*parts)
            flags |= _SEALED * (body is not None) | _BESIDE * (beside is not None)
            held = lane if lends else None, body, beside
            passed = [item.descriptor for item in held if isinstance(item, Lane | SealedMemory)]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(map(_FD.pack, passed)))] if passed else []
            data = [_HEADER.pack(b"v%x" % flags, code, call, size), b"".join(parts) if size <= INLINE else b""]
            with self._sending:
                self._socket.sendmsg(data, rights, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise BrokenError(f"The other side takes nothing: {type(error).__name__}.") from error
        finally:
            if body is not None:
                body.close()

    def receive(self) -> ReceivedFrame | None:
        """The next frame; None where the other side ended.

        Raises:
            HostileInput: its bytes do not make a frame.
            OSError: the socket was closed here.
        """
        data, rights, flags, _ = self._socket.recvmsg(
            _HEADER.size + INLINE, socket.CMSG_SPACE(_FD.size * _MOST_FDS), socket.MSG_CMSG_CLOEXEC
        )
        descriptors = [
            descriptor
            for level, kind, value in rights
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for (descriptor,) in _FD.iter_unpack(value[: len(value) // _FD.size * _FD.size])
        ]
        memory: list[SealedMemory] = []
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise HostileInput("A frame is longer than it may be.")
            if not data:
                if descriptors:
                    raise HostileInput("Descriptors came without a frame.")
                return None
            if len(data) < _HEADER.size:
                raise HostileInput("A frame is shorter than its header.")
            magic, code, call, size = _HEADER.unpack_from(data)
            if magic not in _FLAGS:
                raise HostileInput("A frame does not begin as one.")
            sealed, has_beside, laned, lends = (bool(_FLAGS[magic] & flag) for flag in (_SEALED, _BESIDE, _LANED, _LENDS))
            if len(descriptors) != sealed + has_beside + lends or (sealed and laned):
                raise HostileInput("A frame has other descriptors than it says.")
            inline = data[_HEADER.size :]
            if len(inline) != (0 if sealed or laned else size):
                raise HostileInput("A frame has another size than it says.")
            lane = Lane(descriptors.pop(0)) if lends else None
            while descriptors:
                memory.append(SealedMemory.received(descriptors.pop(0)))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        body, beside = memory[0] if sealed else None, memory[-1] if has_beside else None
        return ReceivedFrame(code, call, size, inline, body, beside, laned, lane)

    def close(self) -> None:
        """End the connection; whoever waits for a frame is woken."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the socket itself, once nobody waits at it."""
        self._socket.close()


@dataclass
class _Slot:
    arrived: threading.Event = field(default_factory=threading.Event)
    frame: ReceivedFrame | None = None


class Caller:
    """Asks another process; implements :class:`~veilsum_participant.boundary.calls.Peer`.

    Args:
        line: to it.
        failure: the class of messages by which it says that it failed, of at most 64 KiB.
    """

    def __init__(self, line: FramedSocket, failure: type[Message]) -> None:
        self._line, self._failure = line, failure
        self._lock = threading.Lock()
        self._waiting: dict[int, _Slot] = {}
        self._last = 0
        self._broken = ""
        self._free: Lane | None = None
        threading.Thread(target=self._listen, name="boundary", daemon=True).start()

    @property
    def broken(self) -> str:
        """Why it is not spoken to any more; empty while it is."""
        return self._broken

    def call(self, request: Inquiry[R], seconds: float | None = None) -> R:
        """See :class:`~veilsum_participant.boundary.calls.Peer`."""
        seconds = request.seconds if seconds is None else min(seconds, request.seconds)
        slot, lane = _Slot(), None
        with self._lock:
            if self._broken:
                raise BrokenError(self._broken)
            if len(self._waiting) >= MOST_CALLS:
                raise HostileInput("More calls wait for the other process than it is asked at a time.")
            self._last = self._last % (2**32 - 1) + 1
            call = self._last
            self._waiting[call] = slot
            if max(request.most, request.most_answered) > _LENT_FROM:
                lane, self._free = self._free or Lane(), None
        try:
            self._line.send(request.code, call, request, lane, lends=lane is not None)
        except HostileInput:
            with self._lock:
                self._waiting.pop(call, None)
            raise
        except BrokenError as error:
            self._break(str(error))
            raise BrokenError(self._broken) from error  # what ended it first, where the other thread closed it meanwhile
        if not slot.arrived.wait(seconds):
            self._break(f"{type(request).__name__} was not answered within {seconds:.0f} s.")
        if slot.frame is None:
            raise BrokenError(self._broken)
        try:
            return self._answer(slot.frame, request, lane)
        finally:
            if lane is not None and not self._broken and os.fstat(lane.descriptor).st_size <= LANE:
                self._free = lane  # another that is free goes

    def _answer(self, frame: ReceivedFrame, request: Inquiry[R], lane: Lane | None) -> R:
        failure: Message | None = None
        try:
            if frame.code == FAILED:
                failure = frame.read(self._failure, INLINE, lane)
            elif frame.code == request.code:
                answer: Any = frame.read(request.answer, request.most_answered, lane)
                return answer  # type: ignore[no-any-return]
            else:
                raise HostileInput(f"{type(request).__name__} was answered by something else.")
        except HostileInput as error:
            self._break(str(error))
            raise BrokenError(str(error)) from error
        raise CallFailedError(failure)

    def _listen(self) -> None:
        why = "The other process ended."
        try:
            while (frame := self._line.receive()) is not None:
                with self._lock:
                    slot = None if frame.lane is not None else self._waiting.pop(frame.call, None)
                if slot is None:
                    raise HostileInput("An answer came that nobody waits for.")
                slot.frame = frame
                slot.arrived.set()
        except HostileInput as error:
            why = str(error)
        except OSError:
            pass
        self._break(why)
        self._line.release()

    def _break(self, why: str) -> None:
        with self._lock:
            self._broken = self._broken or why
            waiting, self._waiting, self._free = self._waiting, {}, None
        for slot in waiting.values():
            slot.arrived.set()
        self._line.close()

    def close(self) -> None:
        """See :class:`~veilsum_participant.boundary.calls.Peer`."""
        self._break("The connection was closed.")


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets: one for this process, and one for another to inherit."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
