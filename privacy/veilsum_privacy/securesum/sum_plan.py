"""The plan of a sum under one-time keys: lanes in words, words in polynomials, and what each message then measures.

The first word counts the cohort; the others carry lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from veilsum_node.errors import Misuse
from veilsum_privacy.securesum.lanes import LanePlan, plan_lanes
from veilsum_privacy.securesum.ring import RINGS, RingParameters

PIECE = 8
"""Polynomials of a piece: their coefficients fill whole bytes, 240 KiB at most."""


@dataclass(frozen=True)
class OneTimePlan(LanePlan):
    """The layout of one round's vector in polynomials.

    Attributes:
        ring: the parameters of the encryption.
    """

    ring: RingParameters

    @property
    def words(self) -> int:
        """The count and the words that carry values."""
        return 1 + self.slots

    @property
    def payload_bytes(self) -> int:
        """Bytes of a contribution: its key share and its coefficients. A sum of contributions has as many."""
        return self.ring.share_size(self.cohort) + self.ring.coefficients_size(self.words)

    @property
    def pieces(self) -> int:
        """In how many pieces a contribution travels: the key share, then coefficients of :data:`PIECE` polynomials each."""
        return 1 + -(-self.words // (PIECE * self.ring.degree))

    def piece_words(self, index: int) -> slice:
        """Which words the coefficients of a piece are of; ``index``: of the piece, from 1."""
        size = PIECE * self.ring.degree
        return slice((index - 1) * size, min(index * size, self.words))

    def piece_bytes(self, index: int) -> int:
        """Bytes of a piece. All but the last are whole bytes, so that the pieces in order are the payload."""
        if index == 0:
            return self.ring.share_size(self.cohort)
        part = self.piece_words(index)
        return self.ring.coefficients_size(part.stop - part.start)


def plan_sum(size: int, bound: int, variance: Fraction, cohort: int, ring: RingParameters) -> OneTimePlan:
    """Choose the narrowest lanes that hold the cohort's sum with its noise; arguments as of :func:`.lanes.plan_lanes`.

    Raises:
        Misuse: out of range, or one lane does not fit a word.
    """
    plan = plan_lanes(size, bound, variance, cohort, ring.plain_modulus, ring.most_members)
    return OneTimePlan(**vars(plan), ring=ring)


def choose_ring(sums: list[tuple[int, int, Fraction]], participants: int) -> RingParameters:
    """The parameter set of a study: that in which its tasks' contributions have the fewest bytes at the full roster.

    Args:
        sums: (size, bound, variance of the whole noise) of each task.
        participants: size of the roster.

    Raises:
        Misuse: some task fits neither set.
    """
    fitting = [ring for ring in RINGS if participants <= ring.most_members]
    small, large = fitting[:2] or RINGS[-2:]

    def cost(ring: RingParameters) -> int:
        return sum(plan_sum(size, bound, variance, participants, ring).payload_bytes for size, bound, variance in sums)

    most = cost(large)
    try:
        return small if cost(small) <= most else large
    except Misuse:
        return large
