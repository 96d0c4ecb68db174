"""Numbers of so many bits each, one behind the other, little-endian: how key shares and coefficients travel and are hashed."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

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
    shape = _groups(len(numbers), width)
    if len(numbers) * width <= _FEW_TO_PACK:
        bits = np.unpackbits(np.ascontiguousarray(numbers, "<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
        return np.packbits(bits[:, :width], bitorder="little").tobytes()
    groups = np.zeros((shape.groups, shape.numbers), dtype="<u8")
    groups.reshape(-1)[: len(numbers)] = numbers
    packed = _pack_words(groups, width, shape) if shape.words else _pack_bytes(groups, width, shape)
    return packed.tobytes()[: packed_size(len(numbers), width)]


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
    shape = _groups(count, width)
    if count * width <= _FEW_TO_UNPACK:
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=count * width, bitorder="little").reshape(count, width)
        octets = np.zeros((count, 8), dtype=np.uint8)
        octets[:, : -(-width // 8)] = np.packbits(bits, axis=1, bitorder="little")
        return octets.view("<u8").reshape(-1).astype(np.uint64, copy=False)
    raw = np.zeros(shape.groups * shape.bytes, dtype=np.uint8)
    raw[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    groups = raw.reshape(shape.groups, shape.bytes)
    numbers = _unpack_words(groups, width, shape) if shape.words else _unpack_bytes(groups, width, shape)
    return numbers.reshape(-1)[:count]


_BLOCK = 1 << 17  # numbers at a time, which fill whole bytes: a long vector is not held several times over


class _Shape(NamedTuple):
    """Numbers in groups that fill whole bytes, or of a long vector whole words of 64 bits, which takes half the time there."""

    groups: int
    numbers: int
    bytes: int
    words: bool


_LONG = 1 << 13
_FEW_TO_PACK, _FEW_TO_UNPACK = 1 << 15, 1 << 14  # bits up to which taking every bit by itself is soonest


def _groups(count: int, width: int) -> _Shape:
    unit = 64 if count >= _LONG else 8
    numbers = unit // gcd(width, unit)
    if not 1 <= width <= 60 or width == 59:  # of which some would lie in nine bytes
        raise ValueError(f"numbers of {width} bits cannot be packed")
    return _Shape(-(-count // numbers), numbers, numbers * width // 8, unit == 64)


def _pack_words(groups: Words, width: int, shape: _Shape) -> Words:
    columns = np.ascontiguousarray(groups.T)
    out = np.zeros((shape.bytes // 8, shape.groups), dtype="<u8")
    for place in range(shape.numbers):
        word, shift = divmod(place * width, 64)
        out[word] |= columns[place] << np.uint64(shift)
        if shift + width > 64:
            out[word + 1] |= columns[place] >> np.uint64(64 - shift)
    return np.ascontiguousarray(out.T)


def _unpack_words(groups: NDArray[np.uint8], width: int, shape: _Shape) -> Words:
    columns = np.ascontiguousarray(groups.view("<u8").T)
    out = np.empty((shape.numbers, shape.groups), dtype=np.uint64)
    for place in range(shape.numbers):
        word, shift = divmod(place * width, 64)
        number = columns[word] >> np.uint64(shift)
        if shift + width > 64:
            number |= columns[word + 1] << np.uint64(64 - shift)
        np.bitwise_and(number, np.uint64((1 << width) - 1), out=out[place])
    return np.ascontiguousarray(out.T)


def _pack_bytes(groups: Words, width: int, shape: _Shape) -> NDArray[np.uint8]:
    out = np.zeros((shape.groups, shape.bytes), dtype=np.uint8)
    for place in range(shape.numbers):
        start, shift = divmod(place * width, 8)
        length = (shift + width + 7) // 8
        shifted = np.ascontiguousarray(groups[:, place] << np.uint64(shift))
        out[:, start : start + length] |= shifted.view(np.uint8).reshape(-1, 8)[:, :length]
    return out


def _unpack_bytes(groups: NDArray[np.uint8], width: int, shape: _Shape) -> Words:
    padded = np.zeros((shape.groups, shape.bytes + 8), dtype=np.uint8)
    padded[:, : shape.bytes] = groups
    numbers = np.empty((shape.groups, shape.numbers), dtype=np.uint64)
    for place in range(shape.numbers):
        start, shift = divmod(place * width, 8)
        part = np.ascontiguousarray(padded[:, start : start + 8]).view("<u8").reshape(-1)
        numbers[:, place] = (part >> np.uint64(shift)) & np.uint64((1 << width) - 1)
    return numbers
