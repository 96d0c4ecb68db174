"""The ring of protocol 6, R_q = Z_q[X] / (X^N + 1): the parameter sets, and the sizes and bounds that follow from them.

What multiplies in it is in :mod:`.products`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from veilsum_node.errors import Misuse
from veilsum_privacy.securesum.packed import packed_size

KEY_VARIANCE = 42
"""Variance of a one-time key's coefficients and of the errors: half of the half of it is the tables' 3.2^2 (decision 109)."""

ERROR_SIGMAS_SQUARED = 96
"""Square of how many standard deviations of its error a sum may show: 9.8, a tail below 2^-68 a coefficient."""

KEY_SIGMAS = 12
"""How many standard deviations a coefficient of the sum of keys may show: a tail below 2^-102 a coefficient."""


@dataclass(frozen=True)
class RingParameters:
    """One of the parameter sets of one-time encryption; q and t are primes, q = 1 mod 2N.

    Attributes:
        degree: N.
        prime: q, the modulus of every coefficient.
        plain_modulus: t, the modulus of every word, a prime just below 2^k; q / t exceeds 2^9 for up to 16 members, 2^12 for
            up to 1,024 and 2^13 beyond: their errors add up.
        most_members: the largest cohort whose sum's error stays within its bound.
    """

    degree: int
    prime: int
    plain_modulus: int
    most_members: int

    @property
    def coefficient_bits(self) -> int:
        """Bits of a coefficient as it travels."""
        return self.prime.bit_length()

    def polynomials(self, words: int) -> int:
        """How many polynomials hold so many words."""
        return -(-words // self.degree)

    def share_bits(self, members: int) -> int:
        """w: bits of a coefficient of a key share, the least with 2^(w-1) > 12 sqrt(42 n)."""
        return self.most_key(members).bit_length() + 1

    @staticmethod
    def most_key(members: int) -> int:
        """Largest absolute value of a coefficient of a sum of keys: floor(12 sqrt(42 n))."""
        return math.isqrt(KEY_SIGMAS * KEY_SIGMAS * KEY_VARIANCE * members)

    def most_error(self, members: int) -> int:
        """Largest absolute value of t times the error of a coefficient of a sum, exactly: floor(9.8 sqrt(42 n) t)."""
        return math.isqrt(ERROR_SIGMAS_SQUARED * KEY_VARIANCE * members * self.plain_modulus**2)

    def share_size(self, members: int) -> int:
        """Bytes of a key share, and of the sum of all: N coefficients and a count."""
        return packed_size(self.degree + 1, self.share_bits(members))

    def coefficients_size(self, count: int) -> int:
        """Bytes of so many coefficients."""
        return packed_size(count, self.coefficient_bits)

    def check_members(self, members: int) -> None:
        """Check that a cohort's sum can be opened.

        Raises:
            Misuse: it is too small or too large for these parameters.
        """
        if not 2 <= members <= self.most_members:
            raise Misuse(f"A cohort of {members} cannot be summed; it must have 2 to {self.most_members} members.")

    def to_context(self) -> dict[str, object]:
        """What the round's context binds."""
        return {"degree": self.degree, "prime": str(self.prime), "plain_modulus": str(self.plain_modulus)}


RING_2048_FEW = RingParameters(2048, 2251799813640193, 4398046510961, 16)
RING_4096_FEW = RingParameters(4096, 1152921504606830593, 2251799813685119, 16)
RING_2048 = RingParameters(2048, 2251799813640193, 549755813869, 1024)
RING_4096 = RingParameters(4096, 1152921504606830593, 281474976710597, 1024)
RING_2048_LARGE = RingParameters(2048, 2251799813640193, 274877906899, 4096)
RING_4096_LARGE = RingParameters(4096, 1152921504606830593, 140737488355213, 4096)

RINGS = (RING_2048_FEW, RING_4096_FEW, RING_2048, RING_4096, RING_2048_LARGE, RING_4096_LARGE)
