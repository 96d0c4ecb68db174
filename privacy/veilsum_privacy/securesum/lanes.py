"""Lanes: several values of a vector in one word, each shifted so that its sum over the cohort is never negative.

A plan is a function of public quantities (dimension, bound, noise, cohort, modulus), so every party computes the same one, and
no floating point decides it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from veilsum_aggregation.arrays import Integers, Words
from veilsum_node.errors import Misuse

_BLOCK = 1 << 13  # words at a time

TAIL_SIGMAS = 12
"""The range check allows the whole sum's noise this many standard deviations (a tail below 1e-32 a value)."""


@dataclass(frozen=True)
class LanePlan:
    """How the values of one round's vector lie in words.

    Attributes:
        size: d, number of values.
        bound: each site's values are clamped to [-bound, bound] before noise, in grid units.
        reach: largest absolute value of the opened sum, noise tails included.
        cohort: n, number of summands.
        offset: added to every value so that the sum of a lane is never negative.
        width: bits of one lane.
        lanes: lanes of one word.
    """

    size: int
    bound: int
    reach: int
    cohort: int
    offset: int
    width: int
    lanes: int

    @property
    def slots(self) -> int:
        """Words that carry values."""
        return -(-self.size // self.lanes)

    @property
    def narrowest(self) -> type[np.signedinteger[Any]]:
        """The type in which the values of the opened sum take the least memory."""
        return np.int32 if self.reach < 1 << 31 else np.int64

    def to_context(self) -> dict[str, object]:
        """What the round's context binds."""
        return {
            "size": self.size,
            "bound": str(self.bound),
            "reach": str(self.reach),
            "offset": str(self.offset),
            "width": self.width,
            "lanes": self.lanes,
        }


def plan_lanes(size: int, bound: int, variance: Fraction, cohort: int, modulus: int, most: int) -> LanePlan:
    """Choose the narrowest lanes that hold the cohort's sum with its noise.

    Args:
        size: number of values, at least 1.
        bound: largest absolute value of one site's sum before noise, in grid units, at least 1.
        variance: variance of the whole cohort's noise, in grid units squared.
        cohort: number of summands, 2 to ``most``.
        modulus: words are below it.
        most: the largest cohort that can be summed.

    Raises:
        Misuse: out of range, or one lane does not fit a word.
    """
    if size < 1 or bound < 1 or variance < 0:
        raise Misuse("A vector needs at least one value, a positive bound and a variance that is not negative.")
    if not 2 <= cohort <= most:
        raise Misuse(f"A cohort of {cohort} cannot be summed; it must have 2 to {most} members.")
    reach = cohort * bound + TAIL_SIGMAS * (math.isqrt(math.ceil(variance)) + 1 if variance else 0)
    offset = -(-reach // cohort)
    largest = 2 * cohort * offset
    width = largest.bit_length()
    lanes = 0
    packed = 0
    while True:
        packed += largest << (width * lanes)
        if packed >= modulus:
            break
        lanes += 1
    if lanes == 0:
        raise Misuse(
            f"A sum that reaches {reach} grid units does not fit a slot of {modulus.bit_length()} bits.",
            "Use a coarser grid, a smaller max_records or a smaller cohort.",
        )
    return LanePlan(size, bound, reach, cohort, offset, width, lanes)


def pack_lanes(values: Integers, plan: LanePlan, offset: int, modulus: int) -> Words:
    """Pack (size,) values into (slots,) words mod ``modulus``: lanes of ``value + offset``, low lane first.

    Raises:
        Misuse: another number of values, or one too large for its lane.
    """
    if values.shape != (plan.size,):
        raise Misuse(f"The plan is for {plan.size} values, the vector has shape {values.shape}.")
    words, most = np.empty(plan.slots, dtype=np.uint64), 1 << (62 - plan.width * (plan.lanes - 1))
    for start in range(0, plan.slots, _BLOCK):  # a long vector is not held several times over
        part = values[start * plan.lanes : (start + _BLOCK) * plan.lanes]
        lanes = np.zeros((min(_BLOCK, plan.slots - start), plan.lanes), dtype=np.int64)
        lanes.reshape(-1)[: len(part)] = part
        lanes += offset
        if max(int(lanes.max()), -int(lanes.min())) >= most:
            raise Misuse("A noised value is too large for its lane.")  # a tail beyond any planned probability
        packed = lanes[:, 0].copy()
        for lane in range(1, plan.lanes):
            packed += lanes[:, lane] << np.int64(plan.width * lane)
        packed -= packed // modulus * modulus
        words[start : start + _BLOCK] = packed.view(np.uint64)
    return words
