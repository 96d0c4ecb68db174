"""Products in whole numbers are those of the encryption library, for every ring and up to every bound."""

from __future__ import annotations

import numpy as np
import pytest

from veilsum_aggregation.arrays import Integers
from veilsum_node.errors import Misuse
from veilsum_privacy.securesum.integer_products import IntegerProducts
from veilsum_privacy.securesum.products import KeyProducts
from veilsum_privacy.securesum.ring import RINGS, RingParameters

LARGEST = (1 << 19) - 1


def keys(degree: int) -> dict[str, Integers]:
    """By name: the extremes of every coefficient, and one drawn."""
    draw, ends = np.random.default_rng(7), np.array([LARGEST, -LARGEST])
    two = np.zeros(degree, dtype=np.int64)
    two[[0, -1]] = 1, -1
    return {
        "zero": np.zeros(degree, dtype=np.int64),
        "largest": np.full(degree, LARGEST),
        "smallest": np.full(degree, -LARGEST),
        "signs in turn": np.resize(ends, degree),
        "1 - X^(N-1)": two,
        "drawn": draw.integers(-LARGEST, LARGEST, degree, endpoint=True),
    }


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: f"{ring.degree}-{ring.plain_modulus}")
def test_they_are_those_of_the_library(ring: RingParameters) -> None:
    drawn = np.random.default_rng(3).integers(0, ring.prime, ring.degree, dtype=np.uint64)
    polynomials = np.stack([np.full(ring.degree, ring.prime - 1, dtype=np.uint64), drawn, np.zeros_like(drawn)])
    for name, key in keys(ring.degree).items():
        found = IntegerProducts(key, ring).times(polynomials)
        assert np.array_equal(found, KeyProducts(key, ring).times(polynomials)), name


@pytest.mark.parametrize("factor", [3, -3, LARGEST, -LARGEST])
@pytest.mark.parametrize("ring", RINGS[:2], ids=lambda ring: str(ring.degree))
def test_they_are_those_of_paper_and_pencil(ring: RingParameters, factor: int) -> None:
    """X^N = -1: a key of one term moves coefficients, and turns the sign of those that come round."""
    row = np.arange(ring.degree, dtype=np.uint64)
    key = np.zeros(ring.degree, dtype=np.int64)
    key[1] = factor
    expected = [-factor * (ring.degree - 1), *(factor * place for place in range(ring.degree - 1))]
    for kind in (IntegerProducts, KeyProducts):  # the library itself is wrong where the factor is negative
        assert kind(key, ring).times(row[None])[0].tolist() == [value % ring.prime for value in expected]


@pytest.mark.parametrize("wrong", [np.zeros(7, dtype=np.int64), np.full(2048, LARGEST + 1), np.full(2048, -LARGEST - 1)])
def test_it_takes_the_keys_that_the_library_takes(wrong: Integers) -> None:
    for kind in (IntegerProducts, KeyProducts):
        with pytest.raises(Misuse):
            kind(wrong, RINGS[0])
