"""The statistics that judge words which ought to be uniform."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from support.randomness import RARE

ALPHA = RARE
"""Bound on the p-values of :func:`uniform_p_value`: two statistics at this level, so a false alarm stays below 1e-9."""

BINS = 64


def uniform_p_value(words: NDArray[np.uint64], modulus: int) -> float:
    """Smaller p-value of two chi-square tests of uniformity below ``modulus``: leading bits, and residues mod 64.

    Bins differ in their probability by less than BINS / modulus, far below what any sample here can see.
    """
    flat = words.reshape(-1)
    leading = np.bincount((flat // np.uint64(-(-modulus // BINS))).astype(np.int64), minlength=BINS)
    trailing = np.bincount((flat % np.uint64(BINS)).astype(np.int64), minlength=BINS)
    return min(float(stats.chisquare(leading).pvalue), float(stats.chisquare(trailing).pvalue))
