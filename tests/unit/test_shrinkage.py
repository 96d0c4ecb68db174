"""Shrinkage: equal to scikit-learn's from moments alone, and what it must refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.covariance import ledoit_wolf, oas

from veilsum_aggregation import moments, shrinkage

RNG = np.random.default_rng(21)


def centred(x: np.ndarray) -> tuple[np.ndarray, float]:
    deviation = x - x.mean(axis=0)
    return deviation.T @ deviation / len(x), float(np.sum(np.sum(deviation**2, axis=1) ** 2))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.integers(2, 30), st.floats(0.0, 3.0), st.integers(0, 2**32 - 1))
def test_ledoit_wolf_equals_scikit_learn(n: int, d: int, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d)) * np.exp(spread * rng.standard_normal(d)) + rng.standard_normal(d)
    expected, _ = ledoit_wolf(x)
    shrunk = shrinkage.shrink_ledoit_wolf(*centred(x)[:1], n, centred(x)[1])
    np.testing.assert_allclose(shrunk, expected, rtol=1e-9, atol=1e-12 * np.trace(expected))


def test_ledoit_wolf_of_records_without_spread() -> None:
    np.testing.assert_array_equal(shrinkage.shrink_ledoit_wolf(np.zeros((3, 3)), 4, 0.0), np.zeros((3, 3)))
    np.testing.assert_array_equal(shrinkage.shrink_ledoit_wolf(np.eye(1), 4, 9.0), np.eye(1))


def test_fourth_moment_from_raw_sums() -> None:
    x = RNG.standard_normal((80, 5)) * [1, 2, 3, 1, 1] + [0, 3, -1, 0, 2]
    norms = np.sum(x**2, axis=1)
    fourth = shrinkage.centred_fourth(80, x.sum(axis=0), x.T @ x, norms @ x, float(np.sum(norms**2)))
    assert fourth == pytest.approx(centred(x)[1], rel=1e-12)


def test_oas_of_more_features_than_records() -> None:
    x = RNG.standard_normal((7, 40))
    np.testing.assert_allclose(shrinkage.shrink_oas(centred(x)[0], 7), oas(x)[0], rtol=1e-10, atol=1e-14)


def test_ridge_covers_the_noise_it_is_made_for() -> None:
    d, n, std = 30, 500, 40.0
    ridge = shrinkage.noise_ridge(std, d, n)
    assert ridge == pytest.approx(std * np.sqrt(60) / 500)
    for _ in range(20):
        noise = std * RNG.standard_normal((d, d))
        shrunk = shrinkage.shrink_ridge(np.eye(d) + (np.triu(noise) + np.triu(noise, 1).T) / n, ridge)
        values = np.linalg.eigvalsh(shrunk)
        assert values.min() >= ridge * (1 - 1e-12)
        # Wigner's edge is 2 std sqrt(d) / n; the ridge sits at 0.71 of it, so the largest is that and the ridge above 1.
        assert values.max() < 1 + ridge * (1 + 1.2 * np.sqrt(2))


def test_what_no_records_can_give_is_refused() -> None:
    with pytest.raises(ValueError, match="fourth"):
        shrinkage.shrink_ledoit_wolf(np.eye(2), 10, 39.0)
    with pytest.raises(ValueError, match="records"):
        shrinkage.shrink_ledoit_wolf(np.eye(2), 0.5, 100.0)
    with pytest.raises(ValueError, match="negative"):
        shrinkage.shrink_ridge(np.eye(2), -1e-3)
    with pytest.raises(ValueError, match="records"):
        shrinkage.noise_ridge(1.0, 3, 0.0)


def test_noised_shrinkage_never_breaks_a_discriminant() -> None:
    """1,000 draws over many spectra; the accuracy of a head w of two normal classes is Phi(w.d / (2 sqrt(w.S w))).

    Against the difference of the noised means itself, the head of no covariance, little is ever lost, and something won.
    """
    rng, lost = np.random.default_rng(7), []
    for _ in range(1000):
        d, n = int(rng.integers(2, 33)), int(rng.integers(200, 3000))
        values = np.exp(-rng.uniform(0.0, 7.0) * np.sort(rng.random(d)))
        truth = np.diag(values / values.sum())
        if rng.random() < 0.3:
            turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
            truth = turn @ truth @ turn.T
        apart = np.linalg.cholesky(truth) @ rng.standard_normal(d) * 3.0 / np.sqrt(d)
        std = n * np.exp(rng.uniform(-8.0, -1.0))
        upper = np.triu(std * rng.standard_normal((d, d)))
        noised = truth + (upper + np.triu(upper, 1).T) / n
        difference = apart + 2.0 * std / n * rng.standard_normal(d)
        shrunk = moments.shrink_noised(noised, n, std, std)

        def accuracy(w: np.ndarray, apart: np.ndarray = apart, truth: np.ndarray = truth) -> float:
            return float(norm.cdf(w @ apart / 2.0 / np.sqrt(w @ truth @ w)))

        lost.append(accuracy(difference) - accuracy(np.linalg.solve(shrunk, difference)))
    assert max(lost) < 0.15
    assert np.mean(lost) < -0.02


def test_former_names_stay() -> None:
    assert moments.shrink_oas is shrinkage.shrink_oas
    assert moments.shrink_noised is shrinkage.shrink_noised
    assert moments.project_psd is shrinkage.project_psd
