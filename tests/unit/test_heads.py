"""Linear discriminants equal to scikit-learn's with the same moments, shrinkage and priors; averages of heads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from veilsum_aggregation import moments
from veilsum_aggregation.heads import LinearHead, average_heads, lda_head, noise_in_weights

RNG = np.random.default_rng(11)


def sample(n: int = 300, d: int = 6, k: int = 3) -> tuple[np.ndarray, np.ndarray]:
    y = RNG.integers(0, k, n)
    return RNG.standard_normal((n, d)) @ RNG.standard_normal((d, d)) + 2 * RNG.standard_normal((k, d))[y], y


def moments_of(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    counts = np.bincount(y, minlength=k).astype(np.float64)
    sums = np.array([x[y == c].sum(axis=0) for c in range(k)])
    return counts, sums, moments.within_covariance(counts, sums, x.T @ x)


@pytest.mark.parametrize("solver", ["lsqr", "eigen"])
@pytest.mark.parametrize("shrinkage", [None, 0.3])
@pytest.mark.parametrize("priors", [None, [0.2, 0.5, 0.3]])
def test_equals_scikit_learn(solver: str, shrinkage: float | None, priors: list[float] | None) -> None:
    x, y = sample()
    counts, sums, within = moments_of(x, y, 3)
    reference = LinearDiscriminantAnalysis(solver=solver, shrinkage=shrinkage, priors=priors).fit(x, y)
    if shrinkage is not None:
        # scikit-learn shrinks each class's covariance to its own mean variance before it weighs them by the priors.
        shares = counts / counts.sum() if priors is None else np.array(priors)
        parts = [np.cov(x[y == c].T, bias=True) for c in range(3)]
        parts = [(1 - shrinkage) * part + shrinkage * np.trace(part) / 6 * np.eye(6) for part in parts]
        within = sum(share * part for share, part in zip(shares, parts, strict=True))
    elif priors is not None:
        within = sum(p * np.cov(x[y == c].T, bias=True) for c, p in enumerate(priors))
    head = lda_head(sums / counts[:, None], within, counts if priors is None else np.array(priors), ("a", "b", "c"))
    fresh, _ = sample()
    ours, theirs = head.scores(fresh), reference.decision_function(fresh)
    np.testing.assert_allclose(ours - ours[:, :1], theirs - theirs[:, :1], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(head.predict(fresh), reference.predict(fresh))


def test_scores_are_log_posteriors_up_to_a_constant() -> None:
    means, spread, priors = RNG.standard_normal((3, 4)), RNG.standard_normal((4, 4)), np.array([0.1, 0.6, 0.3])
    covariance = spread @ spread.T + np.eye(4)
    head = lda_head(means, covariance, 7 * priors, ("a", "b", "c"))
    x = RNG.standard_normal((20, 4))
    log = np.column_stack([multivariate_normal(m, covariance).logpdf(x) for m in means]) + np.log(priors)
    scores = head.scores(x)
    np.testing.assert_allclose(scores - scores[:, :1], log - log[:, :1], atol=1e-9)


def test_noise_in_weights_is_what_classes_of_one_mean_show() -> None:
    counts, std = np.array([80.0, 300.0, 150.0]), 12.0
    root = RNG.standard_normal((8, 8))
    covariance = root @ root.T + 0.1 * np.eye(8)
    common, norms = RNG.standard_normal(8), []
    exact, explained = counts[:, None] * common, 0
    for _ in range(2000):
        sums = exact + std * RNG.standard_normal((3, 8))
        found = noise_in_weights(counts, sums, covariance, std)
        explained += found.explains
        means = sums / counts[:, None]
        weights = lda_head(means - (counts**2) @ means / np.sum(counts**2), covariance, counts, ("a", "b", "c")).weights
        norms.append(np.einsum("k,kd,de,ke->", (counts / std) ** 2, weights, covariance, weights))
    # The share's denominator is the norm of the head itself, and its numerator that norm's mean.
    assert found.share == pytest.approx(min(1.0, np.mean(norms) / norms[-1]), rel=0.03)
    assert 0.92 < explained / 2000 < 0.99
    apart = exact + counts[:, None] * RNG.standard_normal((3, 8))
    assert not noise_in_weights(counts, apart, covariance, std).explains
    assert noise_in_weights(counts, apart, covariance, 0.0).share == 0.0
    # A direction taken for nearly none is full of noise, and explains the whole head.
    assert noise_in_weights(counts, apart, np.diag([1.0] * 7 + [1e-9]), 1e3).explains


def test_unusable_moments_are_refused() -> None:
    with pytest.raises(ValueError, match="positive definite"):
        lda_head(np.zeros((2, 2)), -np.eye(2), np.ones(2), ("a", "b"))
    with pytest.raises(ValueError, match="priors"):
        lda_head(np.zeros((2, 2)), np.eye(2), np.array([0.0, 1.0]), ("a", "b"))
    with pytest.raises(ValueError, match="do not fit"):
        LinearHead(np.zeros((2, 3)), np.zeros(3), ("a", "b"))


def softmax_like(rng: np.random.Generator, classes: tuple[str, ...], d: int = 3) -> LinearHead:
    weights, bias = rng.standard_normal((len(classes), d)), rng.standard_normal(len(classes))
    return LinearHead(weights - weights.mean(axis=0), bias - bias.mean(), classes)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 5))
def test_average_of_heads_over_the_same_classes_is_the_mean(seed: int, s: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    heads = [softmax_like(rng, tuple(f"c{i}" for i in range(k))) for _ in range(s)]
    average = average_heads(heads)
    np.testing.assert_allclose(average.weights, np.mean([h.weights for h in heads], axis=0), atol=1e-14)
    np.testing.assert_allclose(average.bias, np.mean([h.bias for h in heads], axis=0), atol=1e-14)


def test_heads_vote_on_the_classes_that_they_name() -> None:
    one, two = softmax_like(RNG, ("a", "b")), softmax_like(RNG, ("c", "b"))
    average = average_heads([one, two])
    assert average.classes == ("a", "b", "c")
    expected = [one.weights[0], (one.weights[1] + two.weights[1]) / 2, two.weights[0]]
    np.testing.assert_allclose(average.weights, expected)
    np.testing.assert_allclose(average.bias, [one.bias[0], (one.bias[1] + two.bias[1]) / 2, two.bias[0]])


def test_heads_that_cannot_be_averaged_are_refused() -> None:
    head = softmax_like(RNG, ("a", "b"))
    for heads in ([], [head, softmax_like(RNG, ("a", "b"), 4)]):
        with pytest.raises(ValueError, match="same features"):
            average_heads(heads)


def test_a_clipped_head_scores_shortened_features() -> None:
    weights, bias, centre, clip = RNG.standard_normal((3, 5)), RNG.standard_normal(3), RNG.standard_normal(5), 0.8
    x = np.vstack([centre, centre + 0.1, RNG.standard_normal((6, 5))])
    head = LinearHead(weights, bias, ("a", "b", "c"), centre, clip)
    for row, scores in zip(x, head.scores(x), strict=True):
        apart = row - centre
        length = float(np.sqrt(apart @ apart))
        short = apart if length <= clip else apart / length * clip
        np.testing.assert_allclose(scores, weights @ short + bias, atol=1e-12)
    for wrong in ({"centre": centre}, {"clip": clip}, {"centre": centre[:4], "clip": clip}):
        with pytest.raises(ValueError, match="or neither"):
            LinearHead(weights, bias, ("a", "b", "c"), **wrong)  # type: ignore[arg-type]


def test_means_shrunk_by_the_share_of_noise_lie_nearer_to_the_true_ones() -> None:
    """What :func:`veilsum_coordinator.methods.fedcgs.discriminant` makes of them: in the metric in which scores are."""
    counts, d = np.array([20.0, 200.0, 60.0]), 12
    means, spread = 0.5 * RNG.standard_normal((3, d)), RNG.standard_normal((d, d))
    covariance = spread @ spread.T + np.eye(d)
    inverse = np.linalg.inv(covariance)
    means -= counts @ means / counts.sum()
    for std in (20.0, 60.0):
        gains = np.zeros(400)
        for draw in range(len(gains)):
            noised = means * counts[:, None] + std * RNG.standard_normal((3, d))
            kept = 1.0 - noise_in_weights(counts, noised, covariance, std).share
            raw, shrunk = noised / counts[:, None] - means, kept * noised / counts[:, None] - means
            precision = (counts / std) ** 2
            gains[draw] = precision @ (
                np.einsum("kd,de,ke->k", raw, inverse, raw) - np.einsum("kd,de,ke->k", shrunk, inverse, shrunk)
            )
        assert gains.mean() > 3.0 * gains.std() / np.sqrt(len(gains))
