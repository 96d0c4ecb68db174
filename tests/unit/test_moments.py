"""Statistics from sums: equal to numpy and scikit-learn without noise, and their standard errors are true with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.covariance import oas

from veilsum_aggregation import moments
from veilsum_aggregation.figures import Answer, Figure, NotEstimable, ratio_figure
from veilsum_aggregation.tables import count

RNG = np.random.default_rng(5)


def bounded_mean(total: float, number: float, total_std: float, number_std: float, low: float, high: float) -> Answer:
    """Fieller's rule, with the largest variance that a mean m leaves values in [low, high]: (m - low) (high - m)."""
    m = min(max(total / number, low), high) if number > 0.0 else low
    spread = max(number, 0.0) * (m - low) * (high - m)
    found = ratio_figure(total, number, (total_std**2, 0.0, number_std**2), (spread, 0.0, 0.0))
    return found.within(low, high)


def value(answer: Answer) -> float:
    assert isinstance(answer, Figure)
    return answer.value


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(-1, 1)))
def test_a_mean_without_noise_is_numpys(x: np.ndarray) -> None:
    estimate = bounded_mean(x.sum(), len(x), 0, 0, -1, 1)
    assert isinstance(estimate, Figure)
    assert (estimate.value, estimate.noise_error) == (pytest.approx(x.mean(), abs=1e-12), 0.0)


def test_standard_errors_match_simulation() -> None:
    x = RNG.beta(2, 5, 2000) * 2 - 1
    draws, total_std, count_std = 16_000, 20.0, 30.0
    noisy = x.sum() + total_std * RNG.standard_normal(draws), len(x) + count_std * RNG.standard_normal(draws)
    means = [value(bounded_mean(a, c, total_std, count_std, -1, 1)) for a, c in zip(*noisy, strict=True)]
    mean = bounded_mean(x.sum(), len(x), total_std, count_std, -1, 1)
    assert isinstance(mean, Figure)
    assert np.std(means) == pytest.approx(mean.noise_error, rel=0.03)


def test_within_noise_is_not_a_number_but_a_statement() -> None:
    for number in (-5.0, 0.0, 29.0):
        assert isinstance(bounded_mean(1, number, 1, 10, -1, 1), NotEstimable)
    assert isinstance(bounded_mean(1, 31, 1, 10, -1, 1), Figure)
    assert isinstance(bounded_mean(1, 0, 0, 0, -1, 1), NotEstimable)
    assert isinstance(bounded_mean(1, float("nan"), 1, 1, -1, 1), NotEstimable)


def test_estimates_stay_in_range() -> None:
    assert value(bounded_mean(500, 100, 1, 1, -1, 1)) == 1
    assert (value(count(-3.0, 2.0)), count(-3.0, 2.0).noise_error) == (-3.0, 2.0)


def test_covariances_equal_numpy() -> None:
    x, y = RNG.standard_normal((200, 4)) @ RNG.standard_normal((4, 4)) + 3, RNG.integers(0, 3, 200)
    second = x.T @ x
    packed = moments.symmetric(np.diag(second).copy(), second[np.triu_indices(4, 1)])
    np.testing.assert_allclose(packed, second)
    np.testing.assert_allclose(moments.covariance(200, x.sum(0), second), np.cov(x.T, bias=True), atol=1e-9)
    counts = np.array([np.sum(y == k) for k in range(3)], dtype=np.float64)
    sums = np.array([x[y == k].sum(axis=0) for k in range(3)])
    within = sum(np.sum(y == k) * np.cov(x[y == k].T, bias=True) for k in range(3)) / 200
    np.testing.assert_allclose(moments.within_covariance(counts, sums, second), within, atol=1e-9)


def test_within_covariance_is_unbiased_under_noise_of_the_sums() -> None:
    counts, sums, std = np.array([50.0, 80.0]), RNG.standard_normal((2, 3)) * 20, 12.0
    second = np.eye(3) * 300
    clean = moments.within_covariance(counts, sums, second)
    noisy = [moments.within_covariance(counts, sums + std * RNG.standard_normal((2, 3)), second, std) for _ in range(20_000)]
    np.testing.assert_allclose(np.mean(noisy, axis=0), clean, atol=0.003)
    off = std**2 * np.sum(1 / counts) / np.sum(counts)  # on the diagonal, if nothing were given back
    assert off > 10 * 0.003


def test_oas_equals_scikit_learn() -> None:
    for n, d in ((5, 20), (50, 8), (1000, 3)):
        x = RNG.standard_normal((n, d)) * np.linspace(1, 3, d)
        expected, _ = oas(x)
        np.testing.assert_allclose(moments.shrink_oas(np.cov(x.T, bias=True), n), expected, rtol=1e-10, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, (5, 5), elements=st.floats(-10, 10)), st.floats(0, 2))
@example(np.full((5, 5), 1.02347215e-161) + 3.0 * (np.arange(25) == 1).reshape(5, 5), 0.0)
def test_psd_projection(matrix: np.ndarray, floor: float) -> None:
    symmetric = (matrix + matrix.T) / 2
    projected = moments.project_psd(matrix, floor)
    values = np.linalg.eigvalsh(projected)
    assert values.min() >= floor - 1e-9
    # The nearest point of a convex set: what was added is semidefinite too, and orthogonal to what lies above the floor.
    # Eigenvalues alone are no oracle: where squares of entries underflow, eigvalsh gives 1.499 for 1.5.
    added = projected - symmetric
    assert np.linalg.eigvalsh(added).min() >= -1e-9
    assert np.sum(added * (projected - floor * np.eye(5))) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("noise", [0.0, 2.0, 20.0, 300.0, 3e5])
def test_noised_shrinkage_is_definite_and_helps(noise: float) -> None:
    d, n = 12, 400
    root = np.eye(d) + 0.4 * RNG.standard_normal((d, d))
    truth = root.T @ root
    errors, shrunk_errors = [], []
    for _ in range(40):
        upper = noise * RNG.standard_normal((d, d))
        sampled = np.cov((RNG.standard_normal((n, d)) @ root).T, bias=True)
        noisy = sampled + (np.triu(upper) + np.triu(upper, 1).T) / n
        shrunk = moments.shrink_noised(noisy, n, noise, noise)
        np.linalg.cholesky(shrunk)
        errors.append(np.linalg.norm(noisy - truth))
        shrunk_errors.append(np.linalg.norm(shrunk - truth))
    # Small noise leaves little to gain; at 300 raised eigenvalues cost much of it again; beyond, most of the error must go.
    gain = {0.0: 1.05, 2.0: 1.05, 20.0: 1.05, 300.0: 0.95, 3e5: 0.6}
    assert np.mean(shrunk_errors) < gain[noise] * np.mean(errors)


def test_noised_shrinkage_without_any_variance_left() -> None:
    shrunk = moments.shrink_noised(-np.eye(3), 10, 5.0, 5.0)
    np.testing.assert_allclose(shrunk, 0.5 * np.eye(3))
    assert np.linalg.eigvalsh(moments.shrink_noised(np.zeros((2, 2)), 10, 0.0, 0.0)).min() > 0
