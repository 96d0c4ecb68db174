"""The first coefficients of a polynomial times a short key, for sums of few words: exact, by products of matrices.

A sum of 60 words uses 60 of a product's 2,048 coefficients, and each of them is a sum of N terms a_i s_j. Coefficients of a
are cut into halves, so that every such sum and each part of it is an integer below 2^53: float64 holds it exactly, in whatever
order it is added up. Terms that share an index are laid out as the rows of matrices, which the linear algebra library
multiplies; its time depends on the sizes alone.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from veilsum_aggregation.arrays import Integers, Words
from veilsum_privacy.securesum.ring import RingParameters

MOST = 1024
"""Coefficients up to which this takes less time than the encryption library."""

_ROWS = 32
_COLUMNS = 256  # at a time: small enough that the library uses one thread


def fits(words: int, key: Integers, ring: RingParameters) -> bool:
    """Whether so many first coefficients of a product are found exactly, and sooner than by a whole product."""
    return words <= min(MOST, ring.degree) and ring.degree * int(np.abs(key).max()) << _low_bits(ring) < 1 << 53


def first_coefficients(polynomial: Words, key: Integers, words: int, ring: RingParameters) -> Words:
    """The (words,) first coefficients of polynomial times key, mod q.

    Coefficient k is the sum over i of s_i A[k - i], where A[d] is a_d, and -a_(d + N) below 0. With i = u B + v these are
    sums over v of entries (v, k - v) of the matrix product of s, by v and u, and A[d - u B], by u and d.

    Args:
        polynomial: (N,) coefficients below q.
        key: (N,) short ones, which fit.
        words: how many, at most N.
        ring: their ring.
    """
    rows, low = min(_ROWS, ring.degree), np.uint64(_low_bits(ring))
    halves = np.empty((2, ring.degree + words))
    halves[0, : ring.degree] = polynomial & ((np.uint64(1) << low) - np.uint64(1))
    halves[1, : ring.degree] = polynomial >> low
    halves[:, ring.degree :] = halves[:, :words]
    halves[:, : ring.degree] *= -1.0
    factors = key.astype(np.float64).reshape(-1, rows).T
    found = np.empty((2, words), dtype=np.int64)
    part, one = halves.strides
    for start in range(0, words, _COLUMNS):
        count = min(_COLUMNS, words - start)
        shifted = as_strided(
            halves[:, ring.degree + start - (rows - 1) :],
            (2, ring.degree // rows, rows - 1 + count),
            (part, -rows * one, one),
            writeable=False,
        )
        products = factors @ shifted
        half, row, column = products.strides
        found[:, start : start + count] = as_strided(
            products[:, :, rows - 1 :], (2, rows, count), (half, row - column, column), writeable=False
        ).sum(axis=1)
    return _joined(found, int(low), ring.prime)


def _joined(halves: Integers, low: int, prime: int) -> Words:
    """halves[0] + 2^low halves[1] mod q, of integers below 2^53."""
    total, left, most = halves[1] % prime, low, 63 - prime.bit_length()
    while left:
        step = min(left, most)
        total = (total << step) % prime
        left -= step
    words: Words = ((total + halves[0]) % prime).view(np.uint64)
    return words


def _low_bits(ring: RingParameters) -> int:
    return -(-ring.coefficient_bits // 2)
