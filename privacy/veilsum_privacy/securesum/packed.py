"""Numbers of so many bits each, one behind the other, little-endian: how key shares and coefficients travel and are hashed."""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import NDArray

from veilsum_node.errors import HostileInput

Words = NDArray[np.uint64]


def packed_size(count: int, width: int) -> int:
    """Bytes of so many numbers."""
    return (count * width + 7) // 8


def pack_numbers(numbers: Words, width: int) -> bytes:
    """Pack (n,) numbers below 2^width, of 1 to 58 or 60 bits; the last byte is filled with zeros."""
    group, size = _group(width)
    count = len(numbers)
    words = np.zeros((-(-count // group), group), dtype="<u8")
    words.reshape(-1)[:count] = numbers
    out = np.zeros((len(words), size), dtype=np.uint8)
    for place in range(group):
        start, shift = divmod(place * width, 8)
        length = (shift + width + 7) // 8
        shifted = np.ascontiguousarray(words[:, place] << np.uint64(shift))
        out[:, start : start + length] |= shifted.view(np.uint8).reshape(-1, 8)[:, :length]
    return out.tobytes()[: packed_size(count, width)]


def unpack_numbers(data: bytes | memoryview, count: int, width: int, what: str) -> Words:
    """The (count,) numbers of :func:`pack_numbers`.

    Raises:
        HostileInput: another length, or a bit is set behind the last number.
    """
    if len(data) != packed_size(count, width):
        raise HostileInput(f"A {what} of {count} numbers has {len(data)} bytes instead of {packed_size(count, width)}.")
    if count * width % 8 and data[-1] >> (count * width % 8):
        raise HostileInput(f"A {what} has bits behind its last number.")
    group, size = _group(width)
    groups = -(-count // group)
    raw = np.zeros((groups, size + 8), dtype=np.uint8)
    flat = np.zeros(groups * size, dtype=np.uint8)
    flat[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    raw[:, :size] = flat.reshape(groups, size)
    numbers = np.empty((groups, group), dtype=np.uint64)
    cut = np.uint64((1 << width) - 1)
    for place in range(group):
        start, shift = divmod(place * width, 8)
        part = np.ascontiguousarray(raw[:, start : start + 8]).view("<u8").reshape(-1)
        numbers[:, place] = (part >> np.uint64(shift)) & cut
    return numbers.reshape(-1)[:count]


def _group(width: int) -> tuple[int, int]:
    """How many numbers fill whole bytes, and how many bytes. No number of it is spread over more than 64 bits."""
    group = 8 // gcd(width, 8)
    if not 1 <= width <= 61 or any((place * width) % 8 + width > 64 for place in range(group)):
        raise ValueError(f"numbers of {width} bits cannot be packed")
    return group, group * width // 8
