"""From a noised integer vector to masked words: lanes, pairwise masks and the self-mask of the sender's consent.

This is the second lock. It stands whether one-time keys are known or not: without the self-mask, keys that were given away
would open a sum that nobody consented to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Integers
from veilsum_node.errors import HostileInput
from veilsum_privacy.securesum.key_shares import DATA, MemberMasks
from veilsum_privacy.securesum.lanes import pack_lanes, unpack_lanes
from veilsum_privacy.securesum.streams import WordStream
from veilsum_privacy.securesum.sum_plan import OneTimePlan

Words = NDArray[np.uint64]

_BLOCK = 1 << 14


def mask_values(values: Integers, plan: OneTimePlan, masks: MemberMasks) -> Words:
    """The masked words y of a contribution of (size,) clamped and noised values: (plan.words,) below t."""
    modulus = plan.ring.plain_modulus
    words = masks.all(DATA, plan.words, modulus)
    words[0] += np.uint64(1)
    words[1:] += pack_lanes(values, plan, plan.offset, modulus)
    words %= np.uint64(modulus)
    return words


def unmask_values(words: Words, plan: OneTimePlan, context: bytes, consents: Sequence[bytes]) -> Integers:
    """Take the self-masks off the opened words of a sum, check it and unpack it: (size,) in grid units.

    Args:
        words: (plan.words,) below t.
        plan: the round's encoding.
        context: the digest c.
        consents: of every member of the cohort.

    Raises:
        HostileInput: the count is not the cohort's size, or a value is out of range: no value may be used.
    """
    values, done = np.empty(plan.size, dtype=np.int64), 0
    for block in unmasked_blocks(words, plan, context, consents):
        values[done : done + len(block)] = block
        done += len(block)
    return values


def unmasked_blocks(words: Words, plan: OneTimePlan, context: bytes, consents: Sequence[bytes]) -> Iterator[Integers]:
    """The same in blocks of values, none of which may be used before all are there."""
    modulus, left = plan.ring.plain_modulus, plan.size
    if words.shape != (plan.words,) or len(consents) != plan.cohort:
        raise HostileInput("A sum needs the consent of every member of its cohort and all of its words.")
    streams = [WordStream(consent, DATA.own, context, bound=modulus) for consent in consents]
    for start in range(0, plan.words, _BLOCK):  # a long vector is not held several times over
        total = words[start : start + _BLOCK].copy()
        for stream in streams:  # 4,096 words of 47 bits, 1,024 of 48 or 16 of 51: no overflow before
            total += np.uint64(modulus) - stream.take(len(total))
        total %= np.uint64(modulus)
        if start == 0 and int(total[0]) != plan.cohort:
            raise HostileInput("The count is not the size of the cohort: the masks did not cancel.")
        found = unpack_lanes(total[1:] if start == 0 else total, plan, left)
        left -= len(found)
        yield found
