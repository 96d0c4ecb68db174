"""The outside of what SEAL serialises: its header and the one compressed frame, walked without inflating anything; then what
stands around its numbers.

SEAL reads every compression mode it knows and sizes that the bytes themselves state. So every byte that steers its parser is
pinned and the frame's blocks are counted first: no other mode, no skippable frame, no size or window beyond one object of
exactly the expected size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilsum_node.errors import HostileInput, StateError

_SEAL_MAGIC = b"\x5e\xa1\x10"
_SEAL_STORED, _SEAL_ZSTD = 0, 2
_SEAL_HEADER = 16
SEED_BYTES = 64
"""Bytes of the seed that stands for a fresh ciphertext's second polynomial."""

_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_MAX_BLOCKS = 4  # a block inflates to at most 128 KiB; an honest object has one or two


@dataclass(frozen=True)
class FrameSize:
    """What an honest object measures.

    Attributes:
        least, largest: bytes as serialised.
        content: bytes once inflated, exactly.
    """

    least: int
    largest: int
    content: int


def numbers_to_bytes(numbers: NDArray[np.uint64], width: int) -> bytes:
    """Numbers below 2^(8 width) as they travel: little-endian, ``width`` bytes each."""
    return numbers.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def numbers_from_bytes(data: bytes | memoryview, width: int) -> NDArray[np.uint64]:
    """The numbers of :func:`numbers_to_bytes`; of a length that is a multiple of ``width``."""
    if width == 8:
        return np.frombuffer(data, dtype="<u8").astype(np.uint64, copy=False)
    whole = np.zeros((len(data) // width, 8), dtype=np.uint8)
    whole[:, :width] = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)
    return whole.view("<u8").reshape(-1).astype(np.uint64, copy=False)


def _stated(data: bytes) -> tuple[int, int]:
    """The size that a compressed frame states, and where its blocks begin."""
    start = _SEAL_HEADER + 4
    width = (1, 2, 4, 8)[data[start] >> 6]
    content = int.from_bytes(data[start + 1 : start + 1 + width], "little") + (256 if width == 2 else 0)
    return content, start + 1 + width


def stated_size(data: bytes) -> int:
    """Bytes of an honest object once inflated, as its frame states them."""
    return _stated(data)[0]


def check_frame(data: bytes, size: FrameSize, what: str) -> None:
    """Check length, header and blocks of a serialised object.

    Raises:
        HostileInput: wrong length, not the expected header, another size inflated, or more blocks than an honest object has.
    """
    if not size.least <= len(data) <= size.largest:
        raise HostileInput(f"A {what} of {len(data)} bytes is outside the {size.least} to {size.largest} of its parameters.")
    if (
        data[:3] != _SEAL_MAGIC
        or data[5:8] != bytes([_SEAL_ZSTD, 0, 0])
        or int.from_bytes(data[8:_SEAL_HEADER], "little") != len(data)
        or data[_SEAL_HEADER : _SEAL_HEADER + 4] != _ZSTD_MAGIC
    ):
        raise HostileInput(f"A {what} does not start with the header of the study's parameters.")
    descriptor = data[_SEAL_HEADER + 4]
    content, position = _stated(data)
    if not descriptor & 0x20 or descriptor & 3 or content != size.content:
        raise HostileInput(f"A {what}'s compressed frame does not state the size that it must have.")
    for _ in range(_MAX_BLOCKS):
        header = int.from_bytes(data[position : position + 3], "little")
        kind, length = header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == 1 else length)
        if position > len(data):
            break
        if header & 1:
            if position + 4 * (descriptor >> 2 & 1) == len(data):
                return
            break
    raise HostileInput(f"A {what}'s compressed frame is truncated, padded or split into too many blocks.")


@dataclass(frozen=True)
class Template:
    """What stands around the numbers of an inflated object: the same in every honest one of its kind.

    Attributes:
        head: before the numbers: parameters, sizes, flags and the header of the array.
        numbers: bytes of the polynomials' numbers.
        middle: between them and a seed: the header of the generator; empty where there is no seed.
        outside: SEAL's header of the object without compression.
    """

    head: bytes
    numbers: int
    middle: bytes
    outside: bytes

    @classmethod
    def of(cls, content: bytes, whole: bytes, numbers: int) -> Template:
        """The template of an honest object, inflated and as serialised, with ``numbers`` bytes of polynomials.

        Raises:
            StateError: the library writes it in another way than this module knows.
        """
        at = content.find(_SEAL_MAGIC) + _SEAL_HEADER + 8
        rest = content[at + numbers :]
        if not _SEAL_MAGIC + whole[3:5] == content[at - _SEAL_HEADER - 8 : at - 19] or 0 < len(rest) <= SEED_BYTES:
            raise StateError("The encryption library writes its objects in an unknown way.")
        stated = (_SEAL_HEADER + len(content)).to_bytes(8, "little")
        return cls(content[:at], numbers, rest[:-SEED_BYTES], whole[:5] + bytes([_SEAL_STORED, 0, 0]) + stated)

    def check(self, content: bytes, what: str) -> bytes:
        """The object without compression.

        Raises:
            HostileInput: another byte than the library's own stands around the numbers.
        """
        end = len(self.head) + self.numbers
        size = end + (len(self.middle) + SEED_BYTES if self.middle else 0)
        if len(content) != size or content[: len(self.head)] != self.head or content[end:][: len(self.middle)] != self.middle:
            raise HostileInput(f"A {what} does not have the layout that the study's parameters give.")
        return self.outside + content

    def fill(self, numbers: bytes, seed: bytes = b"") -> bytes:
        """An object without compression, of its polynomials' numbers and the seed that follows them, if one does."""
        return self.outside + self.head + numbers + self.middle + seed
