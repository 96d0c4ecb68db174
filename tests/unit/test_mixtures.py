"""Mixtures from moments and their samples: closed-form moments of a mixture, scikit-learn's sampling, and noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture

from veilsum_aggregation.mixtures import Mixture, mixture_from_moments, sample

RNG = np.random.default_rng(51)


def component_sums(x: np.ndarray, assigned: np.ndarray, g: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    parts = [x[assigned == i] for i in range(g)]
    counts = np.array([len(part) for part in parts], dtype=np.float64)
    return counts, np.array([p.sum(axis=0) for p in parts]), np.array([(p**2).sum(axis=0) for p in parts])


def moments_of(mixture: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a mixture, in closed form."""
    mean = mixture.weights @ mixture.means
    spread = mixture.covariances if mixture.covariances is not None else np.array([np.diag(v) for v in mixture.variances])
    deviation = mixture.means - mean
    return mean, np.einsum("g,gij->ij", mixture.weights, spread + deviation[:, :, None] * deviation[:, None, :])


def random_mixture(g: int, d: int, *, full: bool) -> Mixture:
    weights = RNG.dirichlet(np.ones(g))
    roots = RNG.standard_normal((g, d, d))
    covariances = roots @ roots.transpose(0, 2, 1)
    if full:
        return Mixture(weights, RNG.standard_normal((g, d)), covariances=covariances)
    return Mixture(weights, RNG.standard_normal((g, d)), covariances.diagonal(axis1=1, axis2=2))


@pytest.mark.parametrize("full", [False, True])
def test_samples_have_the_moments_of_the_mixture_and_scikit_learn_agrees(full: bool) -> None:
    mixtures, n = [random_mixture(3, 4, full=full), None, random_mixture(1, 4, full=full)], 60_000
    x, labels = sample(mixtures, [n, 0, n // 2], np.random.default_rng(7))
    np.testing.assert_array_equal(labels, np.repeat([0, 2], [n, n // 2]))
    for index in (0, 2):
        mixture, mine = mixtures[index], x[labels == index]
        assert mixture is not None
        mean, covariance = moments_of(mixture)
        spread = np.sqrt(np.diag(covariance))
        # Fourth moments of these mixtures are below those of twice the normal's: hence the factor of 2.
        errors = 2 * np.sqrt((np.outer(spread, spread) ** 2 + covariance**2) / len(mine))
        assert np.all(np.abs(mine.mean(axis=0) - mean) < 5 * spread / np.sqrt(len(mine)))
        assert np.all(np.abs(np.cov(mine.T) - covariance) < 5 * errors)
        theirs = GaussianMixture(len(mixture.weights), covariance_type="full" if full else "diag", random_state=1)
        theirs.weights_, theirs.means_ = mixture.weights, mixture.means
        theirs.covariances_ = mixture.covariances if full else mixture.variances
        other, _ = theirs.sample(n)
        assert np.all(np.abs(np.cov(other.T) - np.cov(mine.T)) < 10 * errors)


def test_moments_of_a_large_class_equal_numpy() -> None:
    x = RNG.standard_normal((90_000, 3)) * [1, 2, 3]
    assigned = (x[:, 0] > 0).astype(np.int64)
    mixture = mixture_from_moments(*component_sums(x, assigned, 2))
    assert mixture is not None
    np.testing.assert_allclose(mixture.weights, np.bincount(assigned) / 90_000)
    for g in range(2):
        np.testing.assert_allclose(mixture.means[g], x[assigned == g].mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(mixture.variances[g], x[assigned == g].var(axis=0), rtol=0.02)  # barely shrunk


def test_one_component_is_numpy_exactly() -> None:
    x = RNG.standard_normal((40, 5)) * [1, 2, 3, 4, 5] + 3
    mixture = mixture_from_moments(*component_sums(x, np.zeros(40, dtype=int), 1))
    assert mixture is not None
    np.testing.assert_allclose(mixture.means, x.mean(axis=0)[None])
    np.testing.assert_allclose(mixture.variances, x.var(axis=0)[None])


def test_component_of_one_record_takes_the_pooled_variances() -> None:
    x = np.vstack([RNG.standard_normal((500, 4)) * [1, 2, 3, 4], 50 * np.ones((1, 4))])
    mixture = mixture_from_moments(*component_sums(x, np.repeat([0, 1], [500, 1]), 2))
    assert mixture is not None
    pooled = x[:500].var(axis=0) * 500 / 501
    np.testing.assert_allclose(mixture.variances[1], pooled)


def test_no_spread_leaves_no_zero_variance_that_divides() -> None:
    mixture = mixture_from_moments(np.array([2.0]), np.array([[2.0, 4.0]]), np.array([[2.0, 8.0]]))
    assert mixture is not None
    assert np.all(mixture.variances > 0)
    assert np.all(mixture.variances < 1e-100)
    flat = mixture_from_moments(np.array([4.0]), np.zeros((1, 2)), np.array([[4.0, 0.0]]))
    assert flat is not None
    np.testing.assert_allclose(flat.variances, [[1, 0.5e-4]])


def test_noise_leaves_components_out_or_takes_them_together() -> None:
    sums, squares = np.array([[10.0, 0.0], [3.0, 1.0]]), np.array([[120.0, 110.0], [30.0, 20.0]])
    kept = mixture_from_moments(np.array([100.0, 5.0]), sums, squares, counts_std=2.0, sums_std=1.0, squares_std=1.0)
    assert kept is not None
    np.testing.assert_allclose(kept.means, [[0.1, 0]])
    assert kept.weights == pytest.approx([1.0])
    together = mixture_from_moments(np.array([50.0, 40.0]), sums, squares, counts_std=20.0)
    assert together is not None
    np.testing.assert_allclose(together.means, [[13 / 90, 1 / 90]])
    assert mixture_from_moments(np.array([50.0, 20.0]), sums, squares, counts_std=20.0) is None
    assert mixture_from_moments(np.array([-50.0, np.nan]), sums, squares, counts_std=20.0) is None


def test_noise_of_the_sums_is_given_back() -> None:
    x = RNG.standard_normal((100, 3)) * [1, 2, 3]
    x -= x.mean(axis=0)
    counts, sums, squares = component_sums(x, np.zeros(100, dtype=int), 1)
    found = []
    for _ in range(4000):
        mixture = mixture_from_moments(counts, sums + 30 * RNG.standard_normal((1, 3)), squares, sums_std=30.0)
        assert mixture is not None
        found.append(mixture.variances[0])
    # Without the correction each would be low by (30 / 100)^2 = 0.09.
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert np.all(np.abs(np.mean(found, axis=0) - x.var(axis=0)) < 5 * error)
    assert np.all(5 * error < 0.03)
    # Two components taken together carry sqrt 2 times the noise of one: here it is all that there is.
    together = mixture_from_moments(np.array([50.0, 40.0]), np.zeros((2, 3)), np.zeros((2, 3)), counts_std=20.0, sums_std=9.0)
    assert together is not None
    np.testing.assert_allclose(together.variances, 2 * (9 / 90) ** 2 * np.ones((1, 3)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 30.0, 1e3, 1e6]))
def test_whatever_the_noise_the_mixture_can_be_sampled(seed: int, std: float) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((60, 3))
    parts = component_sums(x, rng.integers(0, 4, 60), 4)
    counts, sums, squares = (part + std * rng.standard_normal(part.shape) for part in parts)
    mixture = mixture_from_moments(counts, sums, squares, counts_std=std, sums_std=std, squares_std=std)
    if mixture is not None:
        points, _ = sample([mixture], [20], rng)
        assert np.all(np.isfinite(points))
        assert np.all(mixture.variances > 0)


def test_shrinkage_helps_under_noise() -> None:
    truth = np.array([1.0, 0.5, 2.0, 1.0])
    shrunk, plain = [], []
    for _ in range(60):
        x = RNG.standard_normal((400, 4)) * np.sqrt(truth)
        parts = component_sums(x, RNG.integers(0, 4, 400), 4)
        counts, sums, squares = (
            parts[0],
            parts[1] + 5 * RNG.standard_normal((4, 4)),
            parts[2] + 60 * RNG.standard_normal((4, 4)),
        )
        mixture = mixture_from_moments(counts, sums, squares, sums_std=5.0, squares_std=60.0)
        assert mixture is not None
        shrunk.append(np.linalg.norm(mixture.variances - truth))
        raw = squares / counts[:, None] - (sums / counts[:, None]) ** 2
        plain.append(np.linalg.norm(np.maximum(raw, 1e-4) - truth))
    assert np.mean(shrunk) < 0.7 * np.mean(plain)


def test_refusals() -> None:
    one = Mixture(np.ones(1), np.zeros((1, 2)), np.ones((1, 2)))
    with pytest.raises(ValueError, match="either"):
        Mixture(np.ones(1), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="negative"):
        Mixture(np.ones(1), np.zeros((1, 2)), -np.ones((1, 2)))
    with pytest.raises(ValueError, match="sum to 1"):
        Mixture(np.array([0.5, 0.6]), np.zeros((2, 2)), np.ones((2, 2)))
    with pytest.raises(ValueError, match="do not fit"):
        Mixture(np.ones(1), np.zeros((1, 2)), covariances=np.ones((1, 2, 3)))
    with pytest.raises(ValueError, match="no mixture"):
        sample([one, None], [1, 1], RNG)
    for mixtures, numbers in (([None], [0]), ([one], [1, 2]), ([one], [-1])):
        with pytest.raises(ValueError, match="sampled"):
            sample(mixtures, numbers, RNG)
    with pytest.raises(ValueError, match="do not fit"):
        mixture_from_moments(np.ones(2), np.ones((2, 3)), np.ones((3, 2)))
