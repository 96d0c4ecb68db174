"""Files of the encryption library: in memory, kept by nobody, and written as this project knows them or not used."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tenseal import sealapi

from veilsum_node.errors import StateError
from veilsum_privacy.securesum.products import BATCH, KeyProducts, _context, _templates, common_products
from veilsum_privacy.securesum.ring import RING_4096, RINGS, RingParameters
from veilsum_privacy.securesum.seal_files import Passage, Scratch, Template, inflate

WHOLE = b"\x5e\xa1\x10\x10\x04\x01\x02\x00" + bytes(40)
HEAD, NUMBERS = 30, 64


def inflated(rest: bytes = b"") -> bytes:
    """Something, then the header of an array and its numbers."""
    return bytes(range(HEAD)) + WHOLE[:5] + bytes(3) + bytes(8) + bytes(8) + bytes(NUMBERS) + rest


def test_what_is_written_stands_around_the_numbers() -> None:
    content, numbers = inflated(), bytes(range(NUMBERS))
    written = Template.of(content, WHOLE, NUMBERS).fill(numbers)
    assert written == WHOLE[:5] + bytes(3) + (16 + len(content)).to_bytes(8, "little") + content[:-NUMBERS] + numbers


def test_a_library_that_writes_otherwise_is_not_used() -> None:
    for content in (
        inflated(b"\1"),
        inflated(bytes(64)),
        inflated()[:-1],
        inflated().replace(WHOLE[:5], b"\x5e\xa1\x10\x04\x02"),
        bytes(200),
    ):
        with pytest.raises(StateError):
            Template.of(content, WHOLE, NUMBERS)


@pytest.mark.parametrize("ring", RINGS)
@pytest.mark.parametrize("polynomials", [1, 2, 16])
def test_the_library_reads_what_it_wrote(ring: RingParameters, polynomials: int) -> None:
    """A frame of Zstandard as the library writes one inflates to the numbers that were put in."""
    scratch, context = Scratch(), _context(ring)
    numbers = (np.arange(1, 1 + polynomials * ring.degree) * 7919 % (1 << 19) + 1).astype("<u8").tobytes()
    item = sealapi.Plaintext() if polynomials == 1 else sealapi.Ciphertext()
    scratch.load(_templates(ring, polynomials).fill(numbers), lambda path: item.load(context, path))
    assert inflate(scratch.dump(item)) == scratch.content(item)
    assert scratch.content(item).endswith(numbers)


def test_a_system_without_files_in_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(StateError, match="files in memory"):
        Scratch().load(b"", lambda path: None)
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(StateError, match="files in memory"):
        Scratch().load(b"", lambda path: None)


def files_in_memory() -> list[str]:
    """Files of the scratch that this process has open."""
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the folder itself, and what others close in between
            names.append(str(entry.readlink()))
    return [name for name in names if "memfd:veilsum" in name]


def test_the_scratch_file_keeps_nothing() -> None:
    """What passes through a file in memory is gone with it at once, also when the library refuses it; no file stays open."""
    scratch, seen = Scratch(), []
    scratch.dump(sealapi.Plaintext("1x^5"))

    def refuse(path: str) -> None:
        assert Path(path).read_bytes() == b"secret"
        assert "memfd:veilsum" in str(Path(path).readlink())
        assert len(files_in_memory()) == 1
        seen.append(path)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        scratch.load(b"secret", refuse)
    assert len(seen) == 1
    assert not files_in_memory()


def descriptors() -> set[tuple[str, str]]:
    """Which files in memory and ends of pipes this process has open, by number and name."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add((entry.name, str(entry.readlink())))
    return {(number, name) for number, name in found if "memfd:veilsum" in name or name.startswith("pipe:")}


class Unwritten:
    """An object of the library whose file cannot be opened where it is a pipe, of which the library says nothing."""

    def __init__(self, item: Any) -> None:
        self._item = item

    def save(self, path: str) -> None:
        if "pipe:" not in str(Path(path).readlink()):
            self._item.save(path)


@pytest.mark.parametrize("pipe", ["whole", "small", "closed"])
@pytest.mark.parametrize("ring", RINGS)
def test_objects_pass_one_after_another(ring: RingParameters, pipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through what stays open each gets its own numbers and no other's, whatever the sizes before it, and nothing remains."""
    if pipe == "small":

        def refuse(*_: object) -> int:
            raise PermissionError

        monkeypatch.setattr(fcntl, "fcntl", refuse)
    before = descriptors()
    passage, context, random = Passage(), _context(ring), np.random.default_rng(0)
    for polynomials in (16, 2, 7, 16):
        numbers = random.integers(0, ring.prime, polynomials * ring.degree).astype("<u8")
        template, item = _templates(ring, polynomials), sealapi.Ciphertext()
        half = len(numbers) // 2
        passage.load(template.parts(numbers[:half].data, numbers[half:].data), lambda path: item.load(context, path))  # noqa: B023
        shown = Unwritten(item) if pipe == "closed" else item
        content = passage.content(shown, len(template.head) + numbers.nbytes)
        assert content == template.head + numbers.tobytes() == Scratch().content(item)
    assert len(descriptors() - before) == 3  # the file, and both ends of the pipe
    del passage
    assert descriptors() <= before


def test_products_leave_nothing_open() -> None:
    """Neither when all were taken nor when their reader stops half way."""
    before, key = descriptors(), np.arange(RING_4096.degree) % 7 - 3
    words = 2 * BATCH * RING_4096.degree + 5
    products = common_products(key, bytes(32), RING_4096, words, KeyProducts)
    assert sum(part.stop - part.start for part, _ in products) == words
    assert descriptors() <= before
    half = common_products(key, bytes(32), RING_4096, words, KeyProducts)
    next(half)
    assert descriptors() - before
    half.close()
    assert descriptors() <= before
