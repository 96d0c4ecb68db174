"""A sum as it opened, in few bytes: the sum of the keys, the values, and the errors of the words, in the bits that they take.

Nothing is lost: with the consents all of it gives the sum to the bit as it was added up, key share and coefficients, and so
the digest that its members answered for. A value takes the bits of its noise, not those of a whole lane and of q over t:
members who need the sum are sent half of what it was. Who reads it needs nobody's word, for another digest is another sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from veilsum_aggregation.arrays import Integers, Words
from veilsum_node.errors import HostileInput
from veilsum_privacy.securesum.contributions import Contribution, key_pads
from veilsum_privacy.securesum.key_shares import self_masks
from veilsum_privacy.securesum.lanes import pack_lanes
from veilsum_privacy.securesum.packed import packed_size, unpack_numbers
from veilsum_privacy.securesum.ring import RingParameters
from veilsum_privacy.securesum.streams import StreamPurpose
from veilsum_privacy.securesum.sum_plan import OneTimePlan

_WIDEST = 58
BLOCK = 1 << 17
"""Numbers at a time."""

_SOME = 1 << 13  # words whose phases are computed at a time
_HEAD = 13  # bytes: the mean, how many bits stand by themselves, and the bytes of the others
ZEROS = 4
"""Most of the bits that stand by themselves, for each number."""


class OpenedSum(NamedTuple):
    """A sum, and what it opens to with the consents of its cohort.

    Attributes:
        total: as it was added up.
        words: the words M (plan.words,) below t, the self-masks of the data still on.
        values: (size,) in grid units.
    """

    total: Contribution
    words: Words
    values: Integers


def opened_from_bytes(data: bytes | memoryview, plan: OneTimePlan, context: bytes, consents: Sequence[bytes]) -> OpenedSum:
    """The sum of :func:`.opened_to_bytes`, and what :func:`.open_words` and :func:`.unmask_values` give of it.

    Whether it is the sum that members answered for is what its digest says.

    Raises:
        HostileInput: malformed, or nothing that such a sum opens to.
    """
    if len(consents) != plan.cohort:
        raise HostileInput("A sum needs the consent of every member of its cohort.")
    ring, modulus, prime = plan.ring, plan.ring.plain_modulus, np.uint64(plan.ring.prime)
    keys, rest = _unpacked(data, ring.degree)
    values, rest = _unpacked(rest, plan.size)
    rests, rest = _unpacked(rest, plan.words)
    if len(rest):
        raise HostileInput("An opened sum has bytes behind its last number.")
    if int(np.abs(keys).max()) > ring.most_key(plan.cohort):
        raise HostileInput("The sum of the one-time keys is larger than keys of this cohort can be.")
    if int(np.abs(values).max(initial=0)) > plan.reach:
        raise HostileInput("A value of the sum lies outside the range that the cohort can reach.")
    words = self_masks(StreamPurpose.SELF_DATA, context, consents, plan.words, modulus)
    words[0] += np.uint64(plan.cohort)
    words[1:] += pack_lanes(values, plan, plan.cohort * plan.offset, modulus)  # within its reach a value fits its lane
    words -= words // np.uint64(modulus) * np.uint64(modulus)
    bound, most = 1 << ring.share_bits(plan.cohort), ring.most_error(plan.cohort)
    share = np.append(keys, np.int64(plan.cohort)) % bound
    masks = self_masks(StreamPurpose.SELF_KEY, context, consents, ring.degree + 1, bound)
    coefficients = np.empty(plan.words, dtype=np.uint64)
    if int(np.abs(rests).max()) > most // modulus + 2:
        raise HostileInput(f"A sum holds more error than {plan.cohort} contributions leave: it is not of exactly this cohort.")
    for whole, pads in key_pads(keys, plan, context):
        for start in range(0, len(pads), _SOME):
            pad = pads[start : start + _SOME]
            part = slice(whole.start + start, whole.start + start + len(pad))
            phase = nearest(words[part], ring)
            phase += rests[part].view(np.uint64)
            error = phase * np.uint64(modulus)
            error -= words[part] * prime  # right modulo 2^64, and far below that
            if max(int(error.view(np.int64).max()), -int(error.view(np.int64).min())) > most:
                raise HostileInput(f"A sum holds more error than {plan.cohort} contributions leave.")
            phase += prime  # the phase of a word near 0 may be negative
            phase += pad
            coefficients[part] = phase - phase // prime * prime
    total = Contribution((share.view(np.uint64) + masks) % np.uint64(bound), coefficients)
    return OpenedSum(total, words, values)


def nearest(words: Words, ring: RingParameters) -> Words:
    """About q w / t, to 1, by steps that come out alike on every machine; at most q.

    A float64 finds it to 2^8 for the largest q, and what is missing is right modulo 2^64, because it is below 2^60.
    """
    prime, modulus = ring.prime, ring.plain_modulus
    near = words.astype(np.float64)
    near *= prime / modulus
    found = np.rint(near, out=near).astype(np.uint64)
    missing = words * np.uint64(prime)
    missing -= found * np.uint64(modulus)
    np.divide(missing.view(np.int64), modulus, out=near)
    found += np.rint(near, out=near).astype(np.int64).view(np.uint64)
    return found


def _unpacked(data: bytes | memoryview, count: int) -> tuple[Integers, memoryview]:
    """So many numbers, and what stands behind them."""
    view, numbers = memoryview(data), np.empty(count, dtype=np.int64)
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        if len(view) < _HEAD or not 1 <= (low := view[8]) <= _WIDEST:
            raise HostileInput("An opened sum is malformed.")
        centre, length = (int.from_bytes(view[:8], "little", signed=True), int.from_bytes(view[9:_HEAD], "little"))
        end = _HEAD + packed_size(size, low)
        if abs(centre) >= 1 << 60 or 8 * length > ZEROS * size + 7 or len(view) < end + length:
            raise HostileInput("An opened sum has a number out of range.")
        folded = unpack_numbers(view[_HEAD:end], size, low, "part of an opened sum")
        if length:
            bits = np.unpackbits(np.frombuffer(view[end : end + length], dtype=np.uint8))
            ends = np.flatnonzero(bits.view(np.bool_))  # of truths, which takes a tenth of the time
            if len(ends) != size or ends[-1] // 8 + 1 != length:
                raise HostileInput("An opened sum is malformed.")
            rest = np.empty(size, dtype=np.int64)
            np.subtract(ends[1:], ends[:-1], out=rest[1:])
            rest[0] = ends[0] + 1
            rest -= 1
            if int(rest.max()).bit_length() + low > _WIDEST:
                raise HostileInput("An opened sum is malformed.")
            rest <<= low
            folded |= rest.view(np.uint64)
        part = numbers[start : start + size]
        np.bitwise_and(folded.view(np.int64), 1, out=part)
        np.negative(part, out=part)
        folded >>= np.uint64(1)
        part ^= folded.view(np.int64)
        part += centre
        view = view[end + length :]
    return numbers, view
