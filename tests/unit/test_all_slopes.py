"""The Wald test of all slopes of a fit whose last step is solved in cells: its size, and statsmodels where noise is little."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from veilsum_aggregation.cells import Cells
from veilsum_aggregation.families import Family, mean_of
from veilsum_aggregation.figures import Figure, NotEstimable
from veilsum_aggregation.figures import Test as Wald
from veilsum_aggregation.newton import NewtonFit, NewtonRelease, first_point, whitening
from veilsum_aggregation.regression import Fit, told_directions

RECORDS, MEAN, MOST = 1000, 2.0, 15.0

FIRST, SCORES, INFORMATION = (12.2, 8.6), (313.0, 271.0, 180.0), (454.0, 393.0, 262.0)
"""Standard deviations of the noise that a study of these records and three terms has at epsilon 3, counts being at most 30: on
the diagonal of its moments and beside it, and of three steps."""


def terms(rng: np.random.Generator) -> np.ndarray:
    """A constant, a number, an arm, and a level that a twentieth of the records have, (n, 4)."""
    number = np.clip(0.4 * rng.normal(size=RECORDS), -1.0, 1.0)
    return np.column_stack([np.ones(RECORDS), number, rng.random((RECORDS, 2)) < (0.5, 0.05)])


def counts(rng: np.random.Generator, x: np.ndarray, slopes: Sequence[float]) -> np.ndarray:
    return rng.poisson(MEAN * np.exp(x[:, 1:] @ slopes)).astype(float)


def noised(rng: np.random.Generator, matrix: np.ndarray, std: float) -> np.ndarray:
    above = np.triu(rng.normal(size=matrix.shape), 1) * std / math.sqrt(2.0)
    return np.asarray(matrix + above + above.T + np.diag(rng.normal(size=len(matrix)) * std))


def fitted(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, noise: float, steps: int = 3) -> NewtonFit:
    """A fit of counts by released sums that are drawn here, with ``noise`` times that of epsilon 3."""
    gram = noised(rng, x.T @ x, noise * FIRST[0])
    whiten, (_, untold) = whitening(gram, noise * FIRST[0]), told_directions(gram, noise * FIRST[0])
    events = x.T @ y + rng.normal(size=x.shape[1]) * noise * FIRST[1] * MOST
    levels = tuple((place,) for place in range(2, x.shape[1]))
    point, released, white = first_point("poisson", gram, events, whiten, MOST), list[NewtonRelease](), x @ whiten
    for step in range(steps):
        score_std, information_std = noise * SCORES[min(step, 2)], noise * INFORMATION[min(step, 2)]
        mean, variance = mean_of("poisson", white @ point, MOST)
        score = white.T @ (y - mean) + rng.normal(size=len(point)) * score_std
        information = noised(rng, (white * variance[:, None]).T @ white, information_std)
        released.append(NewtonRelease(point, score, information, score_std, information_std))
        fit = NewtonFit(whiten, tuple(released), left_out=untold, cells=Cells("poisson", gram, levels, MOST))
        point = fit.point
    return fit


def test_it_rejects_no_oftener_than_it_says_where_noise_is_most() -> None:
    """Where no slope is there, with the noise of epsilon 1.6: about 6% of the studies are told, and of the step alone the test
    is wrong."""
    rng, p_values, of_step = np.random.default_rng(1), list[float](), list[float]()
    for _ in range(3000):
        x = terms(rng)
        fit = fitted(rng, x, counts(rng, x, (0.0, 0.0, 0.0)), 1.9)
        found, step = fit.all_slopes(), fit.drowned or Fit.wald(fit, *fit.covariances)
        if isinstance(found, Wald) and isinstance(step, Wald):
            p_values.append(found.p_value)
            of_step.append(step.p_value)
            assert found.degrees + len(found.left_out) == step.degrees
    assert len(p_values) >= 100
    most = 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / len(p_values))
    assert 0.0 < np.mean(np.array(p_values) < 0.05) <= most
    assert np.mean(np.array(of_step) < 0.05) > most


@pytest.mark.parametrize("slopes", [(0.1, 0.05, 0.2), (0.0, 0.3, -0.6), (0.0, 0.0, 0.0)])
def test_it_is_statsmodels_where_noise_is_little_or_none(slopes: tuple[float, ...]) -> None:
    """With V = S + N of sampling and noise, b' V^-1 b has from b's noise a standard deviation of 2 (b' V^-1 N V^-1 b)^(1/2),
    at most 2 (W t)^(1/2) with t = trace(N V^-1); four of those, and (W + 10) t for what is of second order, are allowed."""
    import statsmodels.api as sm

    rng = np.random.default_rng(7)
    x = terms(rng)
    y = counts(rng, x, slopes)
    wanted = sm.GLM(y, x, family=sm.families.Poisson()).fit(tol=1e-12).wald_test(np.eye(4)[1:], scalar=True)
    exact = fitted(rng, x, y, 0.0, steps=6).all_slopes()
    assert isinstance(exact, Wald)
    assert exact.statistic == pytest.approx(wanted.statistic, rel=1e-6)
    assert exact.p_value == pytest.approx(wanted.pvalue, rel=1e-6)
    for _ in range(5):
        found = fitted(rng, x, y, 0.01).all_slopes()
        assert isinstance(found, Wald)
        assert (found.degrees, found.left_out) == (3, ())
        trace = 3.0 * found.noise_share
        assert 0.0 < trace < 0.01
        moved = 8.0 * math.sqrt(wanted.statistic * trace) + (wanted.statistic + 10.0) * trace
        assert found.statistic == pytest.approx(wanted.statistic, abs=moved)


def test_of_one_slope_it_is_the_slopes_own_p_value() -> None:
    rng, open_ends = np.random.default_rng(3), 0
    for _ in range(100):
        x = terms(rng)[:, [0, 3]]
        fit = fitted(rng, x, counts(rng, x, (-0.5,)), 0.8)
        own, found = fit.combination(np.eye(2)[1]), fit.all_slopes()
        if isinstance(own, Figure) and math.isfinite(own.towards_zero):
            assert isinstance(found, Wald)
            assert found.p_value == pytest.approx(own.p_value, rel=1e-9)
        elif fit.drowned is None:
            open_ends += 1
            assert isinstance(found, NotEstimable)
    assert 0 < open_ends < 100


@pytest.mark.parametrize("family", ["poisson", "logistic"])
@pytest.mark.parametrize("events", [*itertools.product((-30.0, -3.0, 1.0), repeat=2)])
def test_no_figure_is_not_a_number_where_cells_may_have_no_events(family: Family, events: tuple[float, ...]) -> None:
    """Noise may leave several levels fewer events than none: their difference is anything, and no end of it is told."""
    sizes = np.array([10_000.0, 30.0, 30.0, 500.0])
    gram = np.diag(sizes)
    gram[0, 1:] = gram[1:, 0] = sizes[1:]
    whiten, start = whitening(gram, 0.0), np.array([-2.0, 0.0, 0.0, 0.0])
    rate = math.exp(-2.0) if family == "poisson" else 1.0 / (1.0 + math.exp(2.0))
    cells = np.array([sizes[0] - sizes[1:].sum(), *sizes[1:]])
    score = np.array([rate * cells[0], *events, rate * cells[3]]) - rate * cells
    variance = rate if family == "poisson" else rate * (1.0 - rate)
    step = whiten.T @ np.array([score.sum(), *score[1:]]), whiten.T @ (variance * gram) @ whiten
    release = NewtonRelease(np.linalg.pinv(whiten) @ start, *step, 1.0, 1.0)
    fit = NewtonFit(whiten, [release], tuple("1bcd"), cells=Cells(family, gram, ((1, 2, 3),)))
    noise, sampling = fit.covariances
    for weights in map(np.array, ([0, 1, 0, 0], [0, 1, -1, 0], [0, 0, 1, -1], [0, -1, 0, 1])):
        told = fit.figure(weights, float(weights @ noise @ weights), float(weights @ sampling @ weights))
        if isinstance(told, Figure):
            assert not any(map(math.isnan, (told.value, told.noise_error, told.low, told.high, told.p_value)))
            assert told.low <= told.value <= told.high
