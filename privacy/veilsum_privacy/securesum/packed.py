"""Numbers of so many bits each, one behind the other, little-endian: how key shares and coefficients travel and are hashed."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Words
from veilsum_node.errors import HostileInput


def packed_size(count: int, width: int) -> int:
    """Bytes of so many numbers."""
    return (count * width + 7) // 8


def pack_numbers(numbers: Words, width: int) -> bytes:
    """Pack (n,) numbers below 2^width, of 1 to 58 or 60 bits; the last byte is filled with zeros."""
    return b"".join(packed_blocks(numbers, width))


def packed_blocks(numbers: Words, width: int) -> Iterator[bytes]:
    """The bytes of :func:`pack_numbers` in blocks of less than a mebibyte, of which one at a time is made."""
    return (_packed(numbers[start : start + _BLOCK], width) for start in range(0, len(numbers), _BLOCK))


def _packed(numbers: Words, width: int) -> bytes:
    size, group = packed_size(len(numbers), width), _group(width)
    if len(numbers) * width <= _FEW_TO_PACK:
        bits = np.unpackbits(np.ascontiguousarray(numbers, "<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
        return np.packbits(bits[:, :width], bitorder="little").tobytes()
    octets = np.zeros(size + _REACH, dtype=np.uint8)
    for places, words, shift in _columns(octets, len(numbers), width, group):
        np.bitwise_or(words, numbers[places] << shift, out=words)
    return octets[:size].tobytes()


def unpack_numbers(data: bytes | memoryview, count: int, width: int, what: str) -> Words:
    """The (count,) numbers of :func:`pack_numbers`.

    Raises:
        HostileInput: another length, or a bit is set behind the last number.
    """
    if len(data) != packed_size(count, width):
        raise HostileInput(f"A {what} of {count} numbers has {len(data)} bytes instead of {packed_size(count, width)}.")
    if count * width % 8 and data[-1] >> (count * width % 8):
        raise HostileInput(f"A {what} has bits behind its last number.")
    numbers = np.empty(count, dtype=np.uint64)
    for start in range(0, count, _BLOCK):
        part = memoryview(data)[start * width // 8 : (start + _BLOCK) * width // 8]
        numbers[start : start + _BLOCK] = _unpacked(part, min(_BLOCK, count - start), width)
    return numbers


def _unpacked(data: bytes | memoryview, count: int, width: int) -> Words:
    group = _group(width)
    if count * width <= _FEW_TO_UNPACK:
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=count * width, bitorder="little").reshape(count, width)
        wide = np.zeros((count, 8), dtype=np.uint8)
        wide[:, : -(-width // 8)] = np.packbits(bits, axis=1, bitorder="little")
        return wide.view("<u8").reshape(-1).astype(np.uint64, copy=False)
    octets = np.empty(len(data) + _REACH, dtype=np.uint8)
    octets[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    numbers = np.empty(count, dtype=np.uint64)
    for places, words, shift in _columns(octets, count, width, group):
        np.bitwise_and(words >> shift, np.uint64((1 << width) - 1), out=numbers[places])
    return numbers


_BLOCK = 1 << 15  # numbers at a time, which fill whole bytes and stay in a cache: a long vector is not held several times over

_REACH = 8  # bytes behind the last number that the word in which it lies may reach over

_FEW_TO_PACK, _FEW_TO_UNPACK = 1 << 15, 1 << 14  # bits up to which taking every bit by itself is soonest


def _group(width: int) -> int:
    """How many numbers fill whole bytes, eight or more: words of eight bytes that begin one group apart do not overlap."""
    if not 1 <= width <= 60 or width == 59:  # of which some would lie in nine bytes
        raise ValueError(f"numbers of {width} bits cannot be packed")
    least = 8 // gcd(width, 8)
    return least * -(-64 // (least * width))


def _columns(octets: NDArray[np.uint8], count: int, width: int, group: int) -> Iterator[tuple[slice, Words, np.uint64]]:
    """For every place in a group: which of so many numbers have it, the words of eight bytes in which they lie, wherever these
    begin, and how far from their lowest bit."""
    for place in range(min(group, count)):
        start, shift = divmod(place * width, 8)
        words = np.ndarray((-(-(count - place) // group),), "<u8", octets, start, (group * width // 8,))
        yield slice(place, None, group), words, np.uint64(shift)
