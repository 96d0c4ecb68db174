"""Files of the encryption library: in memory, kept by nobody, and written as this project knows them or not used."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tenseal import sealapi

from veilsum_node.errors import StateError
from veilsum_privacy.securesum.products import _context, _templates
from veilsum_privacy.securesum.ring import RINGS, RingParameters
from veilsum_privacy.securesum.seal_files import Scratch, Template, inflate

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
