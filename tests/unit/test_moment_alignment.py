"""Alignment by moments: against scipy's moments, exact integration of normals, and roots found by bisection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.hermite_e import hermegauss
from scipy import stats
from scipy.optimize import brentq

from veilsum_aggregation.feature_moments import (
    REFERENCE_ORDER,
    REFERENCE_VARIANCE,
    FeatureMoments,
    mean_of_moments,
    moment_terms,
    moments_of_sums,
    read_reference,
    reference_arrays,
)
from veilsum_aggregation.moment_alignment import LARGEST_RATIO, fit_cubics, local_map, moment_map
from veilsum_aggregation.moment_maps import Cubics

Floats = np.ndarray[Any, np.dtype[np.float64]]

NODES, WEIGHTS = hermegauss(20)
"""Integrates polynomials up to degree 39 against the standard normal exactly."""


def sums(x: Floats, order: int = 4) -> dict[str, Floats]:
    """Power sums of x (n, m) in [-1, 1], by numpy's own Chebyshev polynomials."""
    table = np.polynomial.chebyshev.chebvander(x, order).sum(axis=0)
    return {"count": np.array([float(len(x))]), **{f"t{k}": table[:, k] for k in range(1, order + 1)}}


def add(parts: list[dict[str, Floats]]) -> dict[str, Floats]:
    return {name: sum((part[name] for part in parts), start=np.zeros_like(parts[0][name])) for name in parts[0]}


def moments_of(x: Floats, order: int = 4) -> FeatureMoments:
    return moments_of_sums(sums(x, order), {})


def stated(skewness: list[float], kurtosis: list[float], mean: float = 0.0, deviation: float = 0.1) -> FeatureMoments:
    """Moments without a sample, all told."""
    m = len(skewness)
    order, errors = np.full(m, 4, dtype=np.int64), np.zeros((4, m))
    return FeatureMoments(
        100.0, np.full(m, mean), np.full(m, deviation**2), np.array(skewness), np.array(kurtosis), order, errors
    )


FAMILIES: dict[str, Any] = {
    "laplace": stats.laplace,
    "logistic": stats.logistic,
    "lognormal": stats.lognorm(0.35),
    "left": stats.lognorm(0.5),
    "gumbel": stats.gumbel_r,
    "student": stats.t(6),
    "inverse": stats.invgauss(0.3),
}
"""Whose skewness and kurtosis rising cubics have; none of them is such a cubic."""


def sample(name: str, size: float = 0.08, centre: float = 0.0, n: int = 5000) -> Floats:
    """A column of n evenly spaced quantiles of a family, with this standard deviation and mean; far from the bounds."""
    x = FAMILIES[name].ppf((np.arange(n) + 0.5) / n) * (-1.0 if name == "left" else 1.0)
    values: Floats = np.clip(centre + size * (x - x.mean()) / x.std(), -1, 1)[:, None]
    return values


def test_moments_equal_scipy() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.beta(2, 5, 4000), 2 * rng.beta(0.7, 0.7, 4000) - 1, np.tanh(rng.normal(size=4000))])
    got = moments_of(x)
    assert got.number == 4000
    assert (got.order == 4).all()
    np.testing.assert_allclose(got.mean, x.mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(got.variance, x.var(axis=0), rtol=1e-12)
    np.testing.assert_allclose(got.skewness, stats.skew(x), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(got.kurtosis, stats.kurtosis(x, fisher=False), rtol=1e-9)
    two = moments_of(x, 2)
    np.testing.assert_array_equal(two.variance, got.variance)
    assert (two.order == 2).all()
    assert (two.skewness == 0).all()
    assert (two.kurtosis == 3).all()


def test_pooled_moments_hold_the_spread_between_sites_and_the_mean_of_moments_does_not() -> None:
    rng = np.random.default_rng(1)
    sites = [
        np.clip(centre + size * rng.normal(size=(n, 2)), -1, 1) for n, centre, size in ((300, -0.5, 0.1), (700, 0.4, 0.2))
    ]
    together = np.concatenate(sites)
    pooled = moments_of_sums(add([sums(x) for x in sites]), {})
    np.testing.assert_allclose(pooled.variance, together.var(axis=0), rtol=1e-12)
    np.testing.assert_allclose(pooled.skewness, stats.skew(together), rtol=1e-9)
    within = mean_of_moments(add([moment_terms(moments_of(x)) for x in sites]))
    expected = (
        0.3 * sites[0].var(axis=0) + 0.7 * sites[1].var(axis=0),
        0.3 * stats.skew(sites[0]) + 0.7 * stats.skew(sites[1]),
    )
    np.testing.assert_allclose(within.mean, together.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(within.variance, expected[0], rtol=1e-12)
    np.testing.assert_allclose(within.skewness, expected[1], rtol=1e-8)
    assert (within.order == 4).all()
    assert (within.variance < 0.5 * pooled.variance).all()


def test_a_site_that_cannot_tell_a_feature_does_not_enter_its_mean_of_moments() -> None:
    rng = np.random.default_rng(2)
    first, second = np.clip(0.2 * rng.normal(size=(400, 2)), -1, 1), np.clip(0.3 + 0.1 * rng.normal(size=(500, 2)), -1, 1)
    second[:, 1] = 0.25
    within = mean_of_moments(add([moment_terms(moments_of(x)) for x in (first, second)]))
    assert within.mean[1] == pytest.approx(first[:, 1].mean())
    assert within.variance[1] == pytest.approx(first[:, 1].var())
    nobody = mean_of_moments(add([moment_terms(moments_of(np.full((9, 2), 0.1)))]))
    assert (nobody.order == 0).all()


@pytest.mark.system
def test_errors_are_those_that_noise_causes() -> None:
    rng = np.random.default_rng(3)
    x = np.column_stack([2 * rng.beta(2, 6, 5000) - 1, np.clip(0.3 * rng.normal(size=5000), -1, 1)])
    clear, noise = sums(x), {"count": 12.0, "t1": 8.0, "t2": 5.0, "t3": 7.0, "t4": 6.0}
    stated = moments_of_sums(clear, noise).errors
    found = []
    for _ in range(3000):
        noised = {name: values + noise[name] * rng.normal(size=values.shape) for name, values in clear.items()}
        got = moments_of_sums(noised, noise)
        found.append([got.mean, got.variance, got.skewness, got.kurtosis])
    np.testing.assert_allclose(np.std(found, axis=0), stated, rtol=0.1)
    # The noise of the sum would make every variance too small on average.
    np.testing.assert_allclose(np.mean(found, axis=0)[1], x.var(axis=0), rtol=0, atol=4 * stated[1].max() / 3000**0.5)


def test_what_cannot_be_told_is_not_told() -> None:
    rng = np.random.default_rng(4)
    columns = [
        np.clip(0.2 * rng.normal(size=900), -1, 1),
        np.full(900, 0.3),
        rng.integers(0, 2, 900) * 0.6,
        rng.integers(0, 2, 900) * 2.0 - 1,
    ]
    blocks = sums(np.column_stack(columns))
    assert moments_of_sums(blocks, {}).order.tolist() == [4, 0, 0, 0]
    two = moments_of_sums({name: blocks[name] for name in ("count", "t1", "t2")}, {})
    assert two.order.tolist() == [2, 0, 2, 0]  # two values within the bounds look like any others to two moments
    noised = moments_of_sums(blocks, {"t3": 200.0, "t4": 200.0})
    assert noised.order[0] == 2
    assert noised.skewness[0] == 0
    assert noised.errors[2, 0] == np.inf
    assert moments_of_sums(blocks, {"t2": 60.0}).order[0] == 0
    assert moments_of_sums(blocks, {"count": 301.0}).order.tolist() == [0] * 4
    with pytest.raises(ValueError, match="one value a feature"):
        moments_of_sums({**blocks, "t2": np.zeros(3)}, {})


def normal_moments(b: float, c: float, d: float) -> tuple[float, float, float]:
    """Variance, skewness and excess kurtosis of P(w), by quadrature."""
    weights = WEIGHTS / WEIGHTS.sum()
    values = -c + b * NODES + c * NODES**2 + d * NODES**3
    mean = weights @ values
    m2, m3, m4 = (float(weights @ (values - mean) ** k) for k in (2, 3, 4))
    assert mean == pytest.approx(0, abs=1e-12)
    return m2, m3 / m2**1.5, m4 / m2**2 - 3


@settings(max_examples=80, deadline=None)
@given(st.floats(0.002, 3.0), st.floats(-0.99, 0.99))
def test_every_rising_cubic_is_found_from_its_moments(steepness: float, lean: float) -> None:
    b, d = 1.0, steepness
    c = lean * (3 * b * d) ** 0.5
    variance, skewness, excess = normal_moments(b, c, d)
    b, c, d = b / variance**0.5, c / variance**0.5, d / variance**0.5
    got = fit_cubics(np.array([skewness]), np.array([excess]))
    if excess > 42 or abs(skewness) > 3.9:  # near the end of what any rising cubic has
        return
    assert got.monotone[0]
    np.testing.assert_allclose([got.b[0], got.c[0], got.d[0]], [b, c, d], atol=2e-6)


def test_moments_beyond_rising_cubics_are_refused_and_within_are_met() -> None:
    rng = np.random.default_rng(6)
    skewness = rng.uniform(-3.8, 3.8, 400)
    edge = 1.53 * skewness**2 + 0.008 * skewness**4
    excess = edge + rng.uniform(0.15, 1.0, 400) * (41.0 - edge)
    got = fit_cubics(skewness, excess)
    assert got.monotone.all()
    for index in range(0, 400, 7):
        np.testing.assert_allclose(
            normal_moments(got.b[index], got.c[index], got.d[index]), (1, skewness[index], excess[index]), rtol=1e-8, atol=1e-8
        )
    assert not fit_cubics(skewness, edge - 0.05 - 0.05 * edge).monotone.any()
    beyond = np.array([0.0, 5.0, 0.0, np.nan, 0.0, 1e300])
    assert not fit_cubics(beyond, np.array([-0.1, 40.0, 50.0, 1.0, np.inf, 1e300])).monotone.any()
    normal = fit_cubics(np.zeros(1), np.zeros(1))
    assert normal.monotone[0]
    assert normal.d[0] == 0
    np.testing.assert_array_equal(normal.inverse(np.linspace(-9, 9, 7)[:, None]), np.linspace(-9, 9, 7)[:, None])


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-8, 3.0), st.floats(-1, 1), st.floats(-40, 40))
def test_the_inverse_is_the_root_that_bisection_finds(steepness: float, lean: float, z: float) -> None:
    b, d = 0.8, steepness
    c = lean * (3 * b * d) ** 0.5
    cubic = Cubics(np.array([b]), np.array([c]), np.array([d]), np.array([True]))
    got = cubic.inverse(np.array([[z]]))

    def value(w: float) -> float:
        return float(((d * w + c) * w + b) * w - c - z)

    root = brentq(value, -1e3, 1e3, xtol=1e-13, rtol=1e-14)
    # At the only point where a rising cubic can be flat its root is known to the cube root of the precision.
    assert abs(got[0, 0] - root) < 1e-9 or abs(value(float(got[0, 0]))) < 1e-11
    np.testing.assert_allclose(cubic.value(got)[0, 0], z, rtol=1e-10, atol=1e-10)


def test_the_inverse_of_what_no_record_may_hold() -> None:
    cubic = fit_cubics(np.array([1.0]), np.array([3.0]))
    got = cubic.inverse(np.array([[np.nan], [np.inf], [1e300], [-1e300], [0.0]]))
    assert np.isnan(got[0, 0])
    assert not np.isfinite(got[1, 0])
    assert np.isfinite(got[4, 0])
    assert got[2, 0] > 1e90
    assert got[3, 0] < -1e90


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 5), st.sampled_from([0.3, 1.0]))
def test_a_row_is_the_same_in_any_company(seed: int, n: int, pixels: int, tau: float) -> None:
    rng = np.random.default_rng(seed)
    own, target = stated([0.0, 1.0, -0.9], [6.0, 5.0, 4.5]), stated([-0.5, 0.0, 1.1], [4.0, 3.5, 5.5])
    found = moment_map(own, target, order=4, tau=tau)
    assert found.columns() == {"four": 3, "two": 0, "none": 0}
    x = rng.uniform(-1, 1, (n, 3 * pixels)) * 10.0 ** rng.uniform(-9, 9, (n, 3 * pixels))
    together = found(x)
    order = rng.permutation(n)
    np.testing.assert_array_equal(found(np.asfortranarray(x[order])), together[order])
    for row in range(n):
        np.testing.assert_array_equal(found(x[row : row + 1])[0], together[row])


def test_mean_and_variance_and_either_alone() -> None:
    rng = np.random.default_rng(8)
    x = np.clip(np.array([0.2, -0.3]) + np.array([0.1, 0.2]) * rng.normal(size=(5000, 2)), -1, 1)
    y = np.clip(np.array([-0.1, 0.1]) + np.array([0.25, 0.15]) * rng.normal(size=(5000, 2)), -1, 1)
    own, target = moments_of(x, 2), moments_of(y, 2)
    both = moment_map(own, target)(x)
    np.testing.assert_allclose([both.mean(axis=0), both.std(axis=0)], [y.mean(axis=0), y.std(axis=0)], rtol=1e-10)
    mean = moment_map(own, target, adjust="mean")(x)
    np.testing.assert_allclose([mean.mean(axis=0), mean.std(axis=0)], [y.mean(axis=0), x.std(axis=0)], rtol=1e-10)
    variance = moment_map(own, target, adjust="variance")(x)
    np.testing.assert_allclose([variance.mean(axis=0), variance.std(axis=0)], [x.mean(axis=0), y.std(axis=0)], rtol=1e-10)
    half = moment_map(own, target, tau=0.5)(x)
    np.testing.assert_allclose(half, (x + both) / 2, rtol=1e-12)
    np.testing.assert_array_equal(moment_map(own, target, tau=0.0)(x), x)


def test_channels_share_the_map_of_their_column() -> None:
    rng = np.random.default_rng(9)
    x = np.clip(np.repeat([0.3, -0.2], 6) + 0.2 * rng.normal(size=(400, 12)), -1, 1)
    flat = np.column_stack([x[:, :6].ravel(), x[:, 6:].ravel()])
    target = moments_of(np.clip(0.1 * rng.normal(size=(500, 2)), -1, 1))
    found = moment_map(moments_of(flat), target)
    got = found(x)
    np.testing.assert_array_equal(got[:, :6].ravel(), found(flat)[:, 0])
    np.testing.assert_array_equal(got[:, 6:].ravel(), found(flat)[:, 1])
    with pytest.raises(ValueError, match="2 columns"):
        found(x[:, :5])


def test_spreads_change_by_a_bounded_factor_and_what_cannot_be_told_stays() -> None:
    rng = np.random.default_rng(10)
    x = np.column_stack(
        [0.02 * rng.normal(size=3000), 0.9 * rng.uniform(-1, 1, 3000), np.full(3000, 0.4), rng.integers(0, 2, 3000)]
    )
    y = np.column_stack([x[:, 1], x[:, 0], rng.uniform(-1, 1, 3000), rng.uniform(-1, 1, 3000)])
    found = moment_map(moments_of(x), moments_of(y))
    got = found(x)
    np.testing.assert_allclose(got[:, :2].std(axis=0) / x[:, :2].std(axis=0), [LARGEST_RATIO, 1 / LARGEST_RATIO], rtol=1e-10)
    np.testing.assert_array_equal(got[:, 2:], x[:, 2:])
    assert found.columns() == {"four": 0, "two": 2, "none": 2}


def shape_errors(values: Floats, target: Floats) -> Floats:
    """Errors of skewness, kurtosis, and the mean one of the quantiles in standard deviations of the target."""
    at = np.linspace(0.01, 0.99, 99)
    quantiles = np.abs(np.quantile(values, at) - np.quantile(target, at)).mean() / target.std()
    return np.array(
        [abs(stats.skew(values) - stats.skew(target)), abs(stats.kurtosis(values) - stats.kurtosis(target)), quantiles]
    )


@pytest.mark.system
def test_four_moments_leave_at_most_a_third_of_the_errors_of_two() -> None:
    """Over all ordered pairs of distributions whose moments rising cubics have."""
    columns = {name: sample(name, centre=0.05 * index) for index, name in enumerate(FAMILIES)}
    errors = []
    for name, x in columns.items():
        for other, y in columns.items():
            if name == other:
                continue
            own, target = moments_of(x), moments_of(y)
            four = moment_map(own, target, order=4)
            assert four.columns()["four"] == 1
            pair = [shape_errors(found(x)[:, 0], y[:, 0]) for found in (moment_map(own, target), four)]
            np.testing.assert_allclose(four(x).mean(), y.mean(), atol=0.05 * y.std())
            errors.append(pair)
    two, four_errors = np.mean(errors, axis=0)
    assert (four_errors <= two / 3).all(), four_errors / two


@pytest.mark.system
def test_sites_are_brought_to_the_pooled_distribution() -> None:
    """The same where the target is the mixture of three sites that differ in shape, place and size, but not in which way
    they lean: the tail of one that leans the other way is not well enough known from four moments."""
    rng = np.random.default_rng(0)
    errors, seen = [], 0
    for _ in range(8):
        names = rng.choice([name for name in FAMILIES if name != "left"], 3, replace=False)
        sites = [sample(name, rng.uniform(0.05, 0.08), rng.uniform(-0.02, 0.02)) for name in names]
        together = np.concatenate(sites)
        target = moments_of_sums(add([sums(x) for x in sites]), {})
        for x in sites:
            seen += 1
            four = moment_map(moments_of(x), target, order=4)
            if four.columns()["four"]:
                maps = (moment_map(moments_of(x), target), four)
                errors.append([shape_errors(found(x)[:, 0], together[:, 0]) for found in maps])
    assert len(errors) >= 0.8 * seen
    two, left = np.mean(errors, axis=0)
    assert (left[:2] <= two[:2] / 3).all(), left / two
    assert left[2] <= two[2] / 2


def test_a_far_value_is_not_thrown_further() -> None:
    """A cubic follows values to 4 standard deviations of its normal variable; beyond, the map has slope 1."""
    own, target = stated([1.3], [5.7]), stated([0.5], [12.0])
    found = moment_map(own, target, order=4)
    x = np.linspace(-3, 3, 6001)[:, None]
    assert found.columns()["four"] == 1
    got = found(x)
    assert (np.diff(got, axis=0) > 0).all()
    np.testing.assert_allclose(np.diff(got, axis=0)[[0, -1]], np.diff(x, axis=0)[[0, -1]], rtol=1e-9)
    edges = fit_cubics(np.array([1.3]), np.array([2.7])).value(np.array([[-4.0], [4.0]]))[:, 0]
    inside = (x[:, 0] > 0.1 * edges[0]) & (x[:, 0] < 0.1 * edges[1])
    w = fit_cubics(np.array([1.3]), np.array([2.7])).inverse(x[inside] / 0.1)
    np.testing.assert_allclose(got[inside], 0.1 * fit_cubics(np.array([0.5]), np.array([9.0])).value(w), atol=1e-12)


def test_a_map_of_a_normal_site_is_the_cubic_itself() -> None:
    own, target = stated([0.0], [3.0], 0.1, 0.2), stated([1.0], [6.0], -0.2, 0.1)
    cubic = fit_cubics(np.ones(1), np.array([3.0]))
    z = np.linspace(-3, 3, 50)[:, None]
    np.testing.assert_allclose(moment_map(own, target, order=4)(0.1 + 0.2 * z), -0.2 + 0.1 * cubic.value(z), atol=1e-14)


def test_shapes_that_no_rising_cubic_has_take_mean_and_variance() -> None:
    rng = np.random.default_rng(11)
    x = np.column_stack([rng.uniform(-1, 1, 4000), sample("laplace", n=4000)[:, 0]])
    y = np.column_stack([sample("laplace", n=4000)[:, 0], rng.uniform(-1, 1, 4000)])
    four = moment_map(moments_of(x), moments_of(y), order=4)
    assert four.columns() == {"four": 0, "two": 2, "none": 0}
    np.testing.assert_array_equal(four(x), moment_map(moments_of(x), moments_of(y))(x))


def test_a_reference_goes_through_a_broadcast() -> None:
    rng = np.random.default_rng(12)
    x, y = (np.clip(rng.normal(c, 0.2, (600, 3)), -1, 1) for c in (0.2, -0.1))
    arrays = reference_arrays(moments_of(y))
    got = local_map(sums(x), {}, arrays, order=4)(x)
    np.testing.assert_array_equal(got, moment_map(moments_of(x), moments_of(y), order=4)(x))
    bad: list[dict[str, Floats]] = [
        {REFERENCE_ORDER: np.array([0.0, 2.0, 3.0])},
        {REFERENCE_VARIANCE: np.array([0.1, -0.1, 0.1])},
        {REFERENCE_VARIANCE: np.array([0.1, np.nan, 0.1])},
        {REFERENCE_VARIANCE: np.full(2, 0.1)},
    ]
    for wrong in bad:
        with pytest.raises(ValueError, match="reference"):
            read_reference({**arrays, **wrong}, 3)
    with pytest.raises(KeyError):
        read_reference({REFERENCE_ORDER: np.zeros(3)}, 3)
    own, target = moments_of(x), moments_of(y)
    with pytest.raises(ValueError, match="tau"):
        moment_map(own, target, tau=1.5)
    with pytest.raises(ValueError, match="four moments"):
        moment_map(own, target, order=4, adjust="mean")
    with pytest.raises(ValueError, match="reference for"):
        moment_map(own, moments_of(y[:, :2]))
