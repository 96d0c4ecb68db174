"""From a noised integer vector to masked words: lanes, pairwise masks and the self-mask of the sender's consent.

This is the second lock. It stands whether one-time keys are known or not: without the self-mask, keys that were given away
would open a sum that nobody consented to.
"""

from __future__ import annotations

import numpy as np

from veilsum_aggregation.arrays import Integers, Words
from veilsum_privacy.securesum.key_shares import DATA, MemberMasks
from veilsum_privacy.securesum.lanes import pack_lanes
from veilsum_privacy.securesum.sum_plan import OneTimePlan


def mask_values(values: Integers, plan: OneTimePlan, masks: MemberMasks) -> Words:
    """The masked words y of a contribution of (size,) clamped and noised values: (plan.words,) below t."""
    modulus = plan.ring.plain_modulus
    words = masks.all(DATA, plan.words, modulus)
    words[0] += np.uint64(1)
    words[1:] += pack_lanes(values, plan, plan.offset, modulus)
    words -= words // np.uint64(modulus) * np.uint64(modulus)
    return words
