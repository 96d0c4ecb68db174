"""Images decoded in a process that may end: one that ends it has no pixels, and no other image changes."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from veilsum_node.process.confinement import Bounds, offered
from veilsum_participant.data import images
from veilsum_participant.data.images import read_image
from veilsum_participant.data.slices import NoPixels
from veilsum_participant.worker import decoding
from veilsum_participant.worker.decoding import Decoders

SHAPE = (1, 4, 4)
GOOD = [f"good-{number}.png" for number in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in [*GOOD, "bad.png"]:
        Image.fromarray(rng.integers(0, 255, (5, 6), dtype=np.uint8), "L").save(tmp_path / name)
    (tmp_path / "text.png").write_text("no image")
    return tmp_path


BAD: dict[str, str] = {
    "ends": "os._exit(3)",
    "crashes": "os.kill(os.getpid(), signal.SIGSEGV)",
    "turns": "[None for _ in iter(int, 1)]",
    "sleeps": "time.sleep(600)",
    "swallows": "bytearray(3 << 30)",
}

CHILD = """
import os, signal, socket, sys, time
from veilsum_node.process.confinement import Bounds
from veilsum_participant.worker import decoding
line = socket.socket(fileno=int(sys.argv[1]))
decoding.CPU_SECONDS, decoding.WALL_SECONDS, decoding.MEMORY = 1.0, 4.0, 2 << 30
real_decoder = decoding._be_decoder
def be_decoder(line, bounds):
    import veilsum_participant.data.images as images
    real = images.read_image
    def read(folder, name, shape):
        if name == "bad.png":
            {bad}
        return real(folder, name, shape)
    images.read_image = read
    real_decoder(line, bounds)
decoding._be_decoder = be_decoder
bounds = Bounds.from_text(sys.argv[2]) if len(sys.argv) > 2 else None
decoding._be_nursery(line, bounds)
"""
"""A nursery in an interpreter of its own, whose decoder is out of order on one file."""


@pytest.fixture
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Decoders]]:
    import subprocess
    import sys

    made: list[Any] = []

    def make(bad: str, bounds: Bounds | None = None) -> Decoders:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-c", CHILD.format(bad=bad), str(theirs.fileno())]
        command += [] if bounds is None else [bounds.to_text()]
        made.append((subprocess.Popen(command, pass_fds=(theirs.fileno(),)), ours))
        theirs.close()
        ours.settimeout(120)
        return Decoders(ours)

    yield make
    for process, line in made:
        line.close()
        process.wait(30)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("bad", sorted(BAD))
def test_an_image_that_ends_its_decoder_is_absent_and_others_are_as_they_were(
    folder: Path, nursery: Callable[..., Decoders], bad: str
) -> None:
    decoders = nursery(BAD[bad])
    again = ["bad.png"] if bad != "sleeps" else []  # which takes long
    for name in [GOOD[0], "bad.png", GOOD[1], "text.png", *again, "missing.png", GOOD[2]]:
        found = decoders.read_image(folder, name, SHAPE)
        if name == "bad.png":
            assert found is NoPixels.DAMAGED
            continue
        here = read_image(folder, name, SHAPE)
        assert type(found) is type(here)
        assert np.array_equal(found, here) if isinstance(here, np.ndarray) else found is here
    assert decoders.read_image(folder, None, SHAPE) is NoPixels.ABSENT


def test_no_image_is_absent_because_no_decoder_can_be_had(folder: Path, nursery: Callable[..., Decoders]) -> None:
    """One by one they would be those of a site without images, in a sum without noise too: the reading fails instead."""
    decoders = nursery("pass\n        os._exit(3)")  # whatever it is asked for
    with pytest.raises((EOFError, OSError)):
        decoders.read_image(folder, GOOD[0], SHAPE)


@pytest.mark.skipif(not offered().enough, reason="this kernel cannot confine")
def test_a_confined_decoder_reads_its_folder_and_nothing_else(
    folder: Path, nursery: Callable[..., Decoders], tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    Image.new("L", (5, 6), 9).save(other / "x.png")
    decoders = nursery(BAD["ends"], Bounds(read=(folder,)))
    assert isinstance(decoders.read_image(folder, GOOD[0], SHAPE), np.ndarray)
    assert decoders.read_image(other, "x.png", SHAPE) is NoPixels.ABSENT
    assert decoders.read_image(folder, "bad.png", SHAPE) is NoPixels.DAMAGED
    assert isinstance(decoders.read_image(folder, GOOD[1], SHAPE), np.ndarray)


@pytest.mark.skipif(not offered().enough, reason="this kernel cannot confine")
def test_a_confined_decoder_becomes_no_second_process(folder: Path, nursery: Callable[..., Decoders]) -> None:
    """Its nursery may; one that was taken over could fill the user's processes, or outlive who started it."""
    forking = "exec('try: os.fork()\\nexcept PermissionError: pass\\nelse: os._exit(1)')"
    assert isinstance(nursery(forking, Bounds(read=(folder,))).read_image(folder, "bad.png", SHAPE), np.ndarray)
    assert nursery(forking).read_image(folder, "bad.png", SHAPE) is NoPixels.DAMAGED


def said(kind: int, data: bytes, size: int | None = None) -> bytes:
    return struct.pack("<BQ", kind, len(data) if size is None else size) + data


LIES = {
    "a pixel less": said(0, bytes(8 * 15)),
    "single precision": said(0, bytes(4 * 16)),
    "2^60 bytes": said(0, b"", 2**60),
    "another kind": said(9, b"x"),
    "a reason that is none": said(1, b"\xff"),
    "two reasons": said(1, b"\x00\x01"),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_what_a_nursery_says_is_of_one_size(folder: Path, lie: str) -> None:
    ours, theirs = socket.socketpair()

    def answer() -> None:
        theirs.recv(1 << 16)
        theirs.sendall(LIES[lie])

    thread = threading.Thread(target=answer)
    thread.start()
    if lie == "a reason that is none":
        assert Decoders(ours).read_image(folder, "x", SHAPE) is NoPixels.DAMAGED
    else:
        with pytest.raises((EOFError, OSError)):
            Decoders(ours).read_image(folder, "x", SHAPE)
    thread.join()
    ours.close()
    theirs.close()


def test_images_are_read_by_whoever_is_said_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    from veilsum_participant.settings.query import Images

    asked: list[object] = []

    def decode(place: Path, name: object, shape: tuple[int, int, int]) -> Any:
        asked.append(name)
        return read_image(place, name, shape)

    monkeypatch.setattr(images._reading, "decode", images._reading.decode)
    images.decode_by(decode)
    table = Images(folder / "t.csv", folder, "file", SHAPE)
    columns, _ = images.pixel_columns(table, pa.array([GOOD[0], None]), ["pixel0", "pixel5"])
    assert asked == [GOOD[0], None]
    assert columns["pixel0"][0].as_py() == read_image(folder, GOOD[0], SHAPE).ravel()[0]  # type: ignore[union-attr]
    assert decoding.CPU_SECONDS < decoding.WALL_SECONDS
