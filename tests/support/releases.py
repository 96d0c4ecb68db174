"""Releases that tests of accounting have in common."""

from __future__ import annotations

from fractions import Fraction

from veilsum_privacy.accounting.accountant import GaussianEvent


def event(sigma: float, rate: float = 1.0, steps: int = 1) -> GaussianEvent:
    """Releases of a sensitivity of 1000 grid units, with noise of ``sigma`` times it."""
    return GaussianEvent(1000, Fraction(round((1000 * sigma) ** 2)), rate, steps)


ONE = [event(4.0)]
FIFTY = [event(8.0, steps=50)]
SAMPLED = [event(1.1, 0.01, 1000)]
