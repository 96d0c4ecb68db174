"""Images decoded in a process that may end: a decoder that crashes or hangs on a file costs that record its pixels, no more.

A reader forks a nursery before it reads anything, confined as it is but without a network; the nursery forks a decoder, which
decodes image after image. Each has :data:`CPU_SECONDS` of the processor and :data:`WALL_SECONDS` in all: the kernel ends a
decoder that takes longer, in whatever code it is, and the nursery forks the next one. No decoder has more than :data:`MEMORY`.
Where a new one does not even say that there is no image the nursery ends, and with it the reading: no record is to blame.
What a decoder says is a reason of a fixed list, or as many numbers as the shape has. A decoder that was taken over is confined
as its reader is, but without a network, and becomes no other process.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from veilsum_node.process.hardening import end_with_parent

if TYPE_CHECKING:
    from veilsum_aggregation.arrays import Floats
    from veilsum_node.process.confinement import Bounds
    from veilsum_participant.data.slices import NoPixels

CPU_SECONDS, WALL_SECONDS = 60.0, 300.0
"""What one image may take; public, so that which one is absent depends on it alone and on the machine."""

MEMORY = 12 << 30
"""Bytes that a decoder may hold; the largest image that is read takes less."""

_ASKED, _ANSWERED = struct.Struct("<I"), struct.Struct("<BQ")
_PIXELS, _REASON, _ENDED = 0, 1, 2
_LONGEST = 1 << 16


class Decoders:
    """Decodes images by way of a nursery.

    Args:
        line: to it.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def read_image(self, folder: Path, name: object, shape: tuple[int, int, int]) -> Floats | NoPixels:
        """As :func:`veilsum_participant.data.images.read_image`.

        Raises:
            OSError: the nursery itself is gone.
        """
        import numpy as np

        from veilsum_participant.data.slices import NoPixels

        if not isinstance(name, str) or not name:
            return NoPixels.ABSENT
        asked = json.dumps([str(folder), name, shape]).encode()
        if len(asked) > _LONGEST:
            return NoPixels.ABSENT
        self._line.sendall(_ASKED.pack(len(asked)) + asked)
        kind, data = _answer(self._line, shape)
        if kind == _PIXELS:
            pixels: Floats = np.frombuffer(data, np.float64).reshape(shape)
            return pixels
        known = list(NoPixels)
        place = data[0] if kind == _REASON and data else len(known)
        return known[place] if place < len(known) else NoPixels.DAMAGED


def start_nursery(bounds: Bounds | None) -> socket.socket:
    """Fork the nursery of a process that has one thread, has read nothing yet, and is not confined; returns the line to it.

    Args:
        bounds: of this process; None to confine nothing.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    reader = os.getpid()
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            ours.close()
            end_with_parent(parent=reader)
            _be_nursery(theirs, bounds)
        os._exit(0)
    theirs.close()
    return ours


def _be_nursery(line: socket.socket, bounds: Bounds | None) -> NoReturn:
    from veilsum_node.process.confinement import confine

    if bounds is not None:
        bounds = replace(bounds, network=False, dial=(), local=False)
        confine(replace(bounds, forks=True), keep=(line.fileno(),))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes its children away
    decoder: socket.socket | None = None
    while True:
        asked = _exactly(line, _ASKED.unpack(_exactly(line, _ASKED.size))[0])
        if decoder is None:
            decoder = _fork_decoder(line, bounds)
            _decoded(decoder, b'["", "", [1, 1, 1]]')  # of no image: one that cannot say so decodes none of anybody's
        kind, data = _ENDED, b""
        try:
            kind, data = _decoded(decoder, asked)
        except (OSError, EOFError):
            decoder.close()
            decoder = None
        line.sendall(_ANSWERED.pack(kind, len(data)) + data)


def _decoded(decoder: socket.socket, asked: bytes) -> tuple[int, bytes]:
    decoder.sendall(_ASKED.pack(len(asked)) + asked)
    return _answer(decoder, json.loads(asked)[2])


def _fork_decoder(line: socket.socket, bounds: Bounds | None) -> socket.socket:
    """A decoder, which has the images' packages from its parent."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads is not forked; jemalloc's own is made for it
    from veilsum_participant.data.images import preload

    preload()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.settimeout(WALL_SECONDS + 30.0)  # longer than the kernel lets it live
    nursery = os.getpid()
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            ours.close()
            line.close()
            end_with_parent(parent=nursery)
            _be_decoder(theirs, bounds)
        os._exit(0)
    theirs.close()
    return ours


def _be_decoder(line: socket.socket, bounds: Bounds | None) -> NoReturn:
    from veilsum_node.process.confinement import filter_calls
    from veilsum_participant.data.images import read_image
    from veilsum_participant.data.slices import NoPixels

    if bounds is not None:
        filter_calls(bounds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it would be of records
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    known = list(NoPixels)
    while True:
        folder, name, shape = json.loads(_exactly(line, _ASKED.unpack(_exactly(line, _ASKED.size))[0]))
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        found = read_image(Path(folder), name, tuple(shape))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        data = bytes([known.index(found)]) if isinstance(found, NoPixels) else found.astype("f8").tobytes()
        line.sendall(_ANSWERED.pack(_REASON if isinstance(found, NoPixels) else _PIXELS, len(data)) + data)


def _answer(line: socket.socket, shape: tuple[int, int, int]) -> tuple[int, bytes]:
    """What a decoder says, of the size that the shape has or of one byte; of another size it has ended."""
    kind, size = _ANSWERED.unpack(_exactly(line, _ANSWERED.size))
    if size != {_PIXELS: 8 * shape[0] * shape[1] * shape[2], _REASON: 1, _ENDED: 0}.get(kind):
        raise EOFError
    return kind, _exactly(line, size)


def _exactly(line: socket.socket, size: int) -> bytes:
    """So many bytes.

    Raises:
        EOFError: the other side has ended.
    """
    data = bytearray()
    while len(data) < size:
        part = line.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
