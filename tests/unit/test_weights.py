"""A round's public weights: factors that lengthen no vector, whatever the broadcast holds."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from veilsum_node.errors import HostileInput
from veilsum_privacy.computation.weights import SCORES, WEIGHTS, cohort_factors, largest_share

ODD = (0.0, -0.0, 1.0, -1.0, 5e-324, -5e-324, 1e-300, 1e300, -1e300, 700.0, -700.0, math.nan, math.inf, -math.inf)
SITES = 4
LEGAL = st.floats(0.0, 1e100) | st.sampled_from((0.0, 5e-324, 0.25, 3.0))
VALUES = st.one_of(
    *(
        st.lists(each, min_size=SITES, max_size=SITES)
        for each in (LEGAL, LEGAL | st.sampled_from(ODD), LEGAL | st.floats(-1e100, 1e100), st.floats())
    )
)
COHORTS = st.lists(st.integers(0, SITES - 1), min_size=1, max_size=SITES, unique=True).map(sorted)


@given(st.sampled_from([SCORES, WEIGHTS]), VALUES, COHORTS)
@example(WEIGHTS, [-10.0, 1.0, 1.0, 1.0], [0, 1])
@example(WEIGHTS, [-10.0, 1.0, 1.0, 1.0], [1, 2])
@example(WEIGHTS, [0.0, 1.0, 1.0, 1.0], [0])
def test_a_factor_lengthens_no_vector_or_the_broadcast_is_refused(name: str, values: list[float], cohort: list[int]) -> None:
    own = [values[place] for place in cohort]
    legal = all(map(math.isfinite, values)) and (name == SCORES or (min(own) >= 0.0 and max(own) > 0.0))
    broadcast = {name: np.array(values)}
    if not legal:
        with pytest.raises(HostileInput, match=name):
            cohort_factors(broadcast, cohort, SITES)
        return
    factors = cohort_factors(broadcast, cohort, SITES)
    assert factors.shape == (len(cohort),)
    assert factors.min() >= 0.0
    assert factors.max() == 1.0
    if name == WEIGHTS:
        expected = [float(Fraction(value) / Fraction(max(own))) for value in own]
    else:
        expected = [math.exp(value - max(own)) for value in own]
    np.testing.assert_allclose(factors, expected, rtol=1e-13, atol=1e-320)
    assert largest_share(factors) == pytest.approx(1.0 / math.fsum(expected), rel=1e-13)


@pytest.mark.parametrize(
    "broadcast",
    [
        {},
        {SCORES: np.zeros(SITES), WEIGHTS: np.ones(SITES)},
        {SCORES: np.zeros(SITES - 1)},
        {WEIGHTS: np.ones(SITES + 1)},
        {WEIGHTS: np.ones((SITES, 1))},
        {WEIGHTS: np.float64(1.0)},
    ],
)
def test_weights_that_are_not_one_for_each_participant_are_refused(broadcast: dict[str, np.ndarray]) -> None:
    with pytest.raises(HostileInput, match=r"either|one finite number for each participant"):
        cohort_factors(broadcast, [0, 1], SITES)
