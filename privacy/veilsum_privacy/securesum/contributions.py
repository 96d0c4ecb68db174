"""A contribution as it travels, or the sum of several: a key share and coefficients, and what hides the words in these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from veilsum_aggregation.arrays import Integers, Words
from veilsum_privacy.securesum.check_words import sum_digest
from veilsum_privacy.securesum.integer_products import IntegerProducts
from veilsum_privacy.securesum.key_shares import share_digest, share_to_bytes
from veilsum_privacy.securesum.one_time_keys import coefficients_digest
from veilsum_privacy.securesum.products import KeyProducts, common_products, is_installed
from veilsum_privacy.securesum.sum_plan import OneTimePlan


@dataclass(frozen=True)
class Contribution:
    """One member's contribution as it travels, or the sum of several.

    Attributes:
        share: (N + 1,) key share, below 2^w.
        coefficients: (plan.words,) below q.
    """

    share: Words = field(repr=False)
    coefficients: Words = field(repr=False)

    def digest(self, plan: OneTimePlan, context: bytes) -> bytes:
        """D, of a sum."""
        share = share_digest(share_to_bytes(self.share, plan.ring, plan.cohort))
        return sum_digest(context, share, coefficients_digest(self.coefficients, plan.ring))


def key_pads(keys: Integers, plan: OneTimePlan, context: bytes) -> Iterator[tuple[slice, Words]]:
    """The products of the common polynomials and a sum of keys (N,), below q: some words' places, and as many numbers."""
    multiplier = KeyProducts if is_installed() else IntegerProducts
    return common_products(keys, context, plan.ring, plan.words, multiplier)
