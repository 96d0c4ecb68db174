"""Softmax regression against scikit-learn and scipy at the same objective, and its guarantee on the gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad, minimize
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

from veilsum_aggregation.softmax import SoftmaxFit, fit_softmax

RNG = np.random.default_rng(41)


def sample(n: int, d: int, k: int, gap: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    y = RNG.integers(0, k, n)
    return RNG.standard_normal((n, d)) + gap * RNG.standard_normal((k, d))[y], y


def objective(v: np.ndarray, x: np.ndarray, y: np.ndarray, w: np.ndarray, k: int, ridge: float, b: float) -> float:
    matrix = v.reshape(k, -1)
    scores = np.column_stack([x, np.full(len(x), b)]) @ matrix.T
    return float(w @ (logsumexp(scores, axis=1) - scores[np.arange(len(x)), y]) + ridge / 2 * np.sum(matrix**2))


def gradient(v: np.ndarray, x: np.ndarray, y: np.ndarray, w: np.ndarray, k: int, ridge: float, b: float) -> np.ndarray:
    matrix, x1 = v.reshape(k, -1), np.column_stack([x, np.full(len(x), b)])
    scores = x1 @ matrix.T
    p = np.exp(scores - logsumexp(scores, axis=1, keepdims=True)) - np.eye(k)[y]
    return ((p * w[:, None]).T @ x1 + ridge * matrix).ravel()


def flat(fit: SoftmaxFit, b: float) -> np.ndarray:
    return np.column_stack([fit.weights, fit.bias / b]).ravel()


@pytest.mark.parametrize("classes", [3, 4])  # with four, one has no samples
def test_equals_scipy_at_the_same_objective(classes: int) -> None:
    x, y = sample(150, 5, 3)
    w, ridge, b = RNG.uniform(0, 2, 150), 0.7, 1.0
    fit = fit_softmax(x, y, w, classes, ridge, tolerance=1e-9)
    arguments = (x, y, w, classes, ridge, b)
    assert check_grad(objective, gradient, RNG.standard_normal(classes * 6), *arguments) < 1e-3
    reference = minimize(objective, np.zeros(classes * 6), arguments, method="BFGS", jac=gradient, options={"gtol": 1e-8})
    np.testing.assert_allclose(flat(fit, b), reference.x, atol=1e-6)
    assert np.linalg.norm(gradient(flat(fit, b), *arguments)) == pytest.approx(fit.gradient_norm, rel=0.5)


def test_equals_scikit_learn() -> None:
    """Scikit-learn leaves the bias free; a constant feature in its place has a ridge, as ours has."""
    x, y = sample(300, 4, 3)
    fit = fit_softmax(x, y, None, 3, 2.0, tolerance=1e-7)
    reference = LogisticRegression(C=0.5, tol=1e-10, max_iter=10_000, fit_intercept=False)
    reference.fit(np.column_stack([x, np.ones(len(x))]), y)
    np.testing.assert_allclose(np.column_stack([fit.weights, fit.bias]), reference.coef_, atol=2e-5)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 40),
    st.integers(1, 6),
    st.integers(1, 5),
    st.sampled_from([1e-6, 1e-2, 1.0, 1e4]),
    st.sampled_from([1e-2, 1.0, 30.0]),
)
def test_the_tolerance_is_met(seed: int, n: int, d: int, k: int, ridge: float, size: float) -> None:
    """Whatever the data: separable, of one class, of large features, empty."""
    rng = np.random.default_rng(seed)
    x, y = size * rng.standard_normal((n, d)), rng.integers(0, k, n)
    tolerance = 1e-8 * max(1.0, size * n)
    fit = fit_softmax(x, y, None, k, ridge, tolerance=tolerance)
    found = np.linalg.norm(gradient(flat(fit, 1.0), x, y, np.ones(n), k, ridge, 1.0))
    assert found <= tolerance * (1 + 1e-3) + 1e-10
    assert fit.gradient_norm <= tolerance
    np.testing.assert_allclose(fit.weights.sum(axis=0), 0, atol=2 * tolerance / ridge)


def test_distance_from_the_minimiser_is_bounded_by_the_gradient() -> None:
    x, y = sample(200, 6, 4)
    exact = flat(fit_softmax(x, y, None, 4, 0.5, tolerance=1e-11), 1.0)
    for tolerance in (10.0, 0.1, 1e-3):
        fit = fit_softmax(x, y, None, 4, 0.5, tolerance=tolerance)
        assert np.linalg.norm(flat(fit, 1.0) - exact) <= fit.gradient_norm / 0.5 + 1e-9


def test_one_record_moves_the_minimiser_by_at_most_its_lipschitz_constant_over_the_ridge() -> None:
    ridge, b, c = 3.0, 1.0, 1.0
    x, y = sample(60, 4, 3)
    x *= (c / np.maximum(np.linalg.norm(x, axis=1), c))[:, None]
    most = 0.0
    for label in range(3):
        for direction in np.vstack([np.eye(4), -np.eye(4)]) * c:
            more = fit_softmax(np.vstack([x, direction]), np.append(y, label), None, 3, ridge, tolerance=1e-10)
            less = fit_softmax(x, y, None, 3, ridge, tolerance=1e-10)
            most = max(most, float(np.linalg.norm(flat(more, b) - flat(less, b))))
    bound = np.sqrt(2) * np.sqrt(c**2 + b**2) / ridge
    assert 0.1 * bound < most <= bound


def test_same_to_the_last_bit_again_and_of_any_weighting_that_means_the_same() -> None:
    x, y = sample(400, 8, 5)
    one, two = (fit_softmax(x, y, None, 5, 0.1, tolerance=1e-8) for _ in range(2))
    np.testing.assert_array_equal(one.weights, two.weights)
    w = RNG.integers(0, 3, 400)
    repeated = fit_softmax(np.repeat(x, w, axis=0), np.repeat(y, w), None, 5, 0.1, tolerance=1e-9)
    weighted = fit_softmax(x, y, w.astype(np.float64), 5, 0.1, tolerance=1e-9)
    np.testing.assert_allclose(weighted.weights, repeated.weights, atol=1e-7)


def test_many_features_and_separable_classes() -> None:
    x, y = sample(3000, 64, 10, gap=2.0)
    fit = fit_softmax(x, y, None, 10, 1e-3, tolerance=1e-6)
    assert np.mean(np.argmax(x @ fit.weights.T + fit.bias, axis=1) == y) == 1.0
    assert np.linalg.norm(gradient(flat(fit, 1.0), x, y, np.ones(3000), 10, 1e-3, 1.0)) <= 1.001e-6


def test_a_tolerance_that_cannot_be_met_is_no_result() -> None:
    x, y = sample(100, 5, 3)
    with pytest.raises(ArithmeticError, match="gradient"):
        fit_softmax(x, y, None, 3, 1.0, tolerance=1e-30)


def test_refusals() -> None:
    x, y = sample(10, 2, 2)
    for arguments in (
        (x, y + 1, None, 2, 1.0),
        (x, y - 1, None, 2, 1.0),
        (x, y[:5], None, 2, 1.0),
        (np.where(x > 0, np.nan, x), y, None, 2, 1.0),
        (x, y, -np.ones(10), 2, 1.0),
        (x, y, None, 2, 0.0),
        (x, y, None, 2, float("nan")),
        (x, y, None, 0, 1.0),
    ):
        with pytest.raises(ValueError, match=r"fit|finite|label|ridge"):
            fit_softmax(*arguments, tolerance=1e-3)
    with pytest.raises(ValueError, match="tolerance"):
        fit_softmax(x, y, None, 2, 1.0, tolerance=0.0)
