"""Linear regression from noised moments: intervals cover where they are given, tests reject as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm

from veilsum_aggregation.figures import Figure, NotEstimable, Test
from veilsum_aggregation.regression import LinearFit

SLOPES = np.array([0.1, 0.25, -0.2, 0.0, 0.15])
LONGEST = math.sqrt(1.0 + 4.0 / 3.0)


def moments(n: int, std: float, rng: np.random.Generator, slopes: np.ndarray = SLOPES) -> LinearFit:
    """Rows shortened by their four terms, residuals of 0.2, noise as a release has it."""
    x = np.column_stack([np.ones(n), rng.uniform(-0.6, 0.6, (n, len(slopes) - 1))])
    z = np.column_stack([x, x @ slopes + 0.2 * rng.standard_normal(n)])
    z *= np.minimum(1.0, LONGEST / np.linalg.norm(x, axis=1))[:, None]
    noise = np.triu(rng.standard_normal((len(slopes) + 1,) * 2) * std / math.sqrt(2.0), 1)
    return LinearFit(z.T @ z + noise + noise.T + np.diag(rng.standard_normal(len(slopes) + 1) * std), std)


def test_without_noise_it_is_weighted_least_squares() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(300), rng.uniform(-1, 1, (300, 3))])
    y = x @ [0.1, 0.2, 0.3, -0.4] + 0.1 * rng.standard_normal(300)
    c = np.minimum(1.0, 1.2 / np.linalg.norm(x, axis=1))
    z = np.column_stack([x, y]) * c[:, None]
    fit = LinearFit(z.T @ z, 0.0)
    expected, residues, *_ = np.linalg.lstsq(x * c[:, None], y * c)
    np.testing.assert_allclose(fit.coefficients, expected, rtol=1e-9)
    assert fit.residual_variance == pytest.approx(residues[0] / (c @ c - 4), rel=1e-9)


@pytest.mark.parametrize("spread", [0.1, 1e-3, 2e-5])
def test_without_noise_errors_are_statsmodels_however_wide_the_bounds_are(spread: float) -> None:
    """A column whose bounds are a hundred thousand times as far apart as its values lie from the fit."""
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(300), rng.uniform(-1, 1, (300, 2))])
    y = x @ [0.1, 0.2, -0.3] + spread * rng.standard_normal(300)
    z = np.column_stack([x, y])
    fit = LinearFit(z.T @ z, 0.0, grain=2.0**-48)
    expected = sm.OLS(y, x).fit()
    errors = [fit.combination(weights).sampling_error for weights in np.eye(3)]  # type: ignore[union-attr]
    np.testing.assert_allclose(errors, expected.bse, rtol=1e-3)


def test_an_exact_fit_has_errors_that_rounding_may_make() -> None:
    x = np.column_stack([np.ones(50), np.linspace(-1, 1, 50), np.cos(np.arange(50.0))])
    z = np.column_stack([x, x @ [0.1, 0.2, 0.0]])
    answer = LinearFit(z.T @ z, 0.0, grain=2.0**-48).combination(np.array([0.0, 0.0, 1.0]))
    assert isinstance(answer, Figure)
    assert answer.low < 0.0 < answer.high
    assert answer.p_value > 0.05


@pytest.mark.system
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("n", "std"), [(3000, 10.0), (3000, 20.0), (20_000, 10.0)])
def test_intervals_cover_both_errors(n: int, std: float) -> None:
    rng = np.random.default_rng(n)
    covered = []
    for _ in range(400):
        fit = moments(n, std, rng)
        assert fit.drowned is None
        for place, truth in enumerate(SLOPES):
            answer = fit.combination(np.eye(len(SLOPES))[place])
            assert isinstance(answer, Figure)
            covered.append(answer.low <= truth <= answer.high)
    assert 0.935 <= np.mean(covered) <= 0.985


def test_the_test_of_all_slopes_rejects_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    none = np.array([0.1, 0.0, 0.0, 0.0, 0.0])
    tests = [moments(4000, 20.0, rng, none).all_slopes() for _ in range(500)]
    rejected = [test.p_value < 0.05 for test in tests if isinstance(test, Test)]
    assert len(rejected) == 500
    assert 0.02 <= np.mean(rejected) <= 0.085
    found = moments(4000, 20.0, rng).all_slopes()
    assert isinstance(found, Test)
    assert found.p_value < 1e-6


def test_what_noise_drowns_has_a_ridge_and_no_interval() -> None:
    rng = np.random.default_rng(6)
    for n in (30, 300):
        fit = moments(n, 60.0, rng)
        answer = fit.combination(np.eye(len(SLOPES))[1])
        assert isinstance(answer, NotEstimable)
        assert isinstance(fit.all_slopes(), NotEstimable)
        assert np.abs(fit.coefficients).max() < 1.5
    drowned = moments(1000, 60.0, rng).drowned
    assert drowned is not None
    assert "times the records" in drowned.advice


def test_r_squared_covers_and_is_the_share_explained() -> None:
    rng = np.random.default_rng(8)
    exact = moments(200_000, 0.0, rng).r_squared()
    assert isinstance(exact, Figure)
    explained = float(np.sum(SLOPES[1:] ** 2)) * 0.12
    assert exact.value == pytest.approx(explained / (explained + 0.04), rel=0.02)
    covered = []
    for _ in range(300):
        answer = moments(4000, 15.0, rng).r_squared()
        assert isinstance(answer, Figure)
        covered.append(answer.low <= exact.value <= answer.high)
    assert 0.91 <= np.mean(covered) <= 0.99
    assert isinstance(moments(300, 60.0, rng).r_squared(), NotEstimable)
    assert isinstance(moments(5000, 15.0, rng, np.array([0.1, 0.0, 0.0, 0.0, 0.0])).r_squared(), Figure)


def test_a_drowned_term_is_called_by_its_name_whatever_that_holds() -> None:
    fit = moments(4000, 1.0, np.random.default_rng(5))
    drowned = fit.moments.copy()
    drowned[2, :] = drowned[:, 2] = 0.0
    names = ("constant", "age", "bs(bmi, knots=[25, 30])[1]", "sex", "dose", "days")
    found = LinearFit(drowned, 1.0, names=names[: len(drowned) - 1])
    told, untold = found.combination(np.eye(found.p)[1]), found.combination(np.eye(found.p)[2])
    assert isinstance(told, Figure)
    assert isinstance(untold, NotEstimable)
    assert untold.reason == "no record has bs(bmi, knots=[25, 30])[1], or too few against the noise"
