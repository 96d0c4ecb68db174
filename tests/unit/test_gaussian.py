"""Gaussians in polar form: distance, map and geodesic against closed forms and POT, and what must hold for any covariances."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from veilsum_aggregation import polar as polars
from veilsum_aggregation.gaussian import (
    AffineMap,
    Gaussian,
    push,
    transport_map,
    wasserstein2,
)
from veilsum_aggregation.polar import CovarianceError, factor, polar

RNG = np.random.default_rng(17)
CONDITIONS = (1e2, 1e6, 1e10)

# Random Gaussians: what hypothesis shrinks is a seed's small parameters, never a matrix.
cases = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 12), st.floats(0.0, 8.0), st.floats(-3.0, 3.0))


def orthogonal(d: int, rng: np.random.Generator = RNG) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def compose(basis: np.ndarray, values: np.ndarray) -> np.ndarray:
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2


def spd(d: int, condition: float = 1e3, rng: np.random.Generator = RNG) -> np.ndarray:
    values = np.logspace(0, -math.log10(condition), d) if d > 1 else np.ones(1)
    return compose(orthogonal(d, rng), rng.permutation(values))


def gaussian(d: int, condition: float = 1e3, rng: np.random.Generator = RNG) -> Gaussian:
    return Gaussian(rng.standard_normal(d), spd(d, condition, rng))


def several(case: tuple[int, int, float, float], number: int) -> list[Gaussian]:
    seed, d, decades, scale = case
    rng = np.random.default_rng(seed)
    made = [gaussian(d, 10**decades, rng) for _ in range(number)]
    return [Gaussian(10**scale * one.mean, 10 ** (2 * scale) * one.covariance) for one in made]


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


# Factors and polar factors


def test_factor_is_batched_and_takes_singular_covariances() -> None:
    thin = RNG.standard_normal((2, 3, 6, 2))
    covariances = thin @ thin.swapaxes(-2, -1)
    factors = factor(covariances)
    assert factors.shape == (2, 3, 6, 6)
    np.testing.assert_allclose(factors @ factors.swapaxes(-2, -1), covariances, atol=1e-13 * np.abs(covariances).max())
    assert np.linalg.matrix_rank(factors[1, 2]) == 2
    assert np.count_nonzero(np.linalg.norm(factors[1, 2], axis=0)) == 2  # eigenvalues of rounding are exactly 0


@pytest.mark.parametrize("condition", [1e1, 1e4, 1e5, 1e7, 1e12])
@pytest.mark.parametrize("shape", [(20, 20), (20, 7)])
def test_polar_is_orthonormal_and_leaves_a_positive_factor(condition: float, shape: tuple[int, int]) -> None:
    values = np.logspace(0, -math.log10(condition), shape[1])
    m = orthogonal(shape[0])[:, : shape[1]] * values @ orthogonal(shape[1])
    u = polar(m)
    h = u.T @ m
    np.testing.assert_allclose(u.T @ u, np.eye(shape[1]), atol=1e-13)
    np.testing.assert_allclose(h, h.T, atol=1e-14)
    np.testing.assert_allclose(h, scipy.linalg.polar(m)[1], atol=1e-14)
    np.testing.assert_allclose(u, scipy.linalg.polar(m)[0], atol=1e-14 * condition)


def test_polar_of_singular_extreme_and_batched_matrices() -> None:
    thin = RNG.standard_normal((8, 3)) @ RNG.standard_normal((3, 8))
    u = polar(thin)
    np.testing.assert_allclose(u.T @ u, np.eye(8), atol=1e-13)
    assert np.linalg.eigvalsh((u.T @ thin + thin.T @ u) / 2)[0] > -1e-12
    np.testing.assert_array_equal(polar(np.zeros((4, 4))), np.eye(4))
    m = RNG.standard_normal((5, 5))
    for scale in (1e-200, 1e200):
        np.testing.assert_allclose(polar(scale * m), polar(m), atol=1e-13)
    batch = RNG.standard_normal((3, 2, 5, 5))
    np.testing.assert_allclose(polar(batch)[2, 1], scipy.linalg.polar(batch[2, 1])[0], atol=1e-12)


@pytest.mark.parametrize("condition", [1e1, 1e6])
def test_a_followed_polar_factor_is_the_polar_factor_after_small_and_large_moves(condition: float) -> None:
    left = factor(spd(15, condition))
    followed = polars.Followed(left)
    q = factor(spd(15, condition)).T
    for move in (0.0, 1e-6, 1e-3, 3.0, 1e-2, 1e-4, 1e-8, 0.0):
        q = q @ scipy.linalg.expm(move * RNG.standard_normal((15, 15)) / 15)
        term = followed.term(q)
    expected = scipy.linalg.polar(q @ left)[0] @ left.T
    np.testing.assert_allclose(term, expected, atol=1e-10 * np.abs(expected).max())
    assert 2 <= followed.decompositions < 8


@pytest.mark.parametrize("rank", [1, 4, 14])
def test_a_followed_polar_factor_of_a_thin_matrix_leaves_its_span_with_it(rank: int) -> None:
    """A correction within the span of the last columns alone would stand still, and say that nothing changes."""
    left = RNG.standard_normal((15, rank))
    followed = polars.Followed(left)
    q = factor(spd(15, 1e2)).T
    for move in (0.0, 1e-3, 3.0, 1e-2, 1e-2, 1e-3, 1e-6, 0.0, 0.0):
        q = q @ scipy.linalg.expm(move * RNG.standard_normal((15, 15)) / 15)
        term = followed.term(q)
    expected = scipy.linalg.polar(q @ left)[0] @ left.T
    np.testing.assert_allclose(term, expected, atol=1e-10 * np.abs(expected).max())
    assert followed.decompositions < 8


def test_a_correction_refuses_what_is_no_maximum() -> None:
    """P^T M symmetric is not enough: -I and a reflection are stationary for M = I, and must not be kept."""
    for wrong in (-np.eye(3), np.diag([1.0, 1.0, -1.0]), np.eye(3)[[1, 0, 2]]):
        assert polars.corrected(wrong, np.eye(3)) is None
    assert polars.corrected(np.eye(3), np.eye(3)) is not None


# The distance


@settings(max_examples=60, deadline=None)
@given(cases)
def test_distance_is_a_metric_that_motions_do_not_change(case: tuple[int, int, float, float]) -> None:
    a, b, c = several(case, 3)
    d, scale = a.dimension, wasserstein2(a, b) + wasserstein2(b, c)
    assert wasserstein2(a, b) == pytest.approx(wasserstein2(b, a), rel=1e-9)
    assert wasserstein2(a, a) <= 1e-13 * (math.sqrt(np.trace(a.covariance)) + np.linalg.norm(a.mean))
    assert wasserstein2(a, c) <= scale * (1 + 1e-12)
    rng = np.random.default_rng(case[0])
    motion = AffineMap(orthogonal(d, rng), 10 ** case[3] * rng.standard_normal(d))
    assert wasserstein2(push(motion, a), push(motion, b)) == pytest.approx(wasserstein2(a, b), rel=1e-8)


@settings(max_examples=30, deadline=None)
@given(cases)
def test_distance_between_commuting_covariances(case: tuple[int, int, float, float]) -> None:
    seed, d, decades, _ = case
    rng = np.random.default_rng(seed)
    basis, s, t = orthogonal(d, rng), 10 ** -rng.uniform(0, decades, d), 10 ** -rng.uniform(0, decades, d)
    a, b = Gaussian(np.zeros(d), compose(basis, s)), Gaussian(np.ones(d), compose(basis, t))
    assert wasserstein2(a, b) == pytest.approx(math.sqrt(d + np.sum((np.sqrt(s) - np.sqrt(t)) ** 2)), rel=1e-9)


def test_distance_equals_pot() -> None:
    for d in (1, 3, 30):
        a, b = gaussian(d), gaussian(d)
        expected = ot.gaussian.bures_wasserstein_distance(a.mean, b.mean, a.covariance, b.covariance)
        assert wasserstein2(a, b) == pytest.approx(float(expected), rel=1e-9)


def test_distance_keeps_its_digits_where_the_difference_of_traces_has_none() -> None:
    """Variances that differ by 1e-10 of themselves: W2^2 = 2.5e-21 d of a trace of d, far below its rounding."""
    d, basis = 20, orthogonal(20)
    a, b = (Gaussian(np.zeros(d), compose(basis, values)) for values in (np.full(d, 1.0), np.full(d, 1.0 + 1e-10)))
    assert wasserstein2(a, b) == pytest.approx(math.sqrt(d) * 5e-11, rel=1e-3)


def test_distance_to_a_point() -> None:
    g = gaussian(5)
    point = Gaussian(np.zeros(5), np.zeros((5, 5)))
    assert wasserstein2(g, point) == pytest.approx(math.sqrt(g.mean @ g.mean + np.trace(g.covariance)), rel=1e-12)


# Maps


@pytest.mark.parametrize("condition", CONDITIONS)
def test_map_between_commuting_covariances(condition: float) -> None:
    d, basis = 40, orthogonal(40)
    values = np.logspace(0, -math.log10(condition), d)
    targets = values * np.exp(RNG.standard_normal(d))
    a, b = Gaussian(RNG.standard_normal(d), compose(basis, values)), Gaussian(np.zeros(d), compose(basis, targets))
    t = transport_map(a, b)
    # A rounding error of the covariances themselves changes the ratio of small variances by as much as it changes them.
    expected = compose(basis, np.sqrt(targets / values))
    assert relative(t.matrix, expected) <= max(1e-11, 1e-15 * condition)
    exact = t.matrix.astype(np.longdouble)
    assert relative((exact @ a.covariance @ exact.T).astype(np.float64), b.covariance) <= 1e-11


@pytest.mark.parametrize("condition", CONDITIONS)
def test_map_pushes_and_is_the_gradient_of_a_convex_function(condition: float) -> None:
    a, b = gaussian(60, condition), gaussian(60, 1e2)
    t = transport_map(a, b)
    pushed = push(t, a)
    assert relative(pushed.covariance, b.covariance) <= 1e-11
    np.testing.assert_allclose(pushed.mean, b.mean, atol=1e-13 * float(np.linalg.norm(t.matrix)))
    np.testing.assert_allclose(t.matrix, t.matrix.T, atol=1e-15 * condition**0.5 * np.abs(t.matrix).max())
    assert np.linalg.eigvalsh((t.matrix + t.matrix.T) / 2)[0] > 0
    # The cost of the coupling is W2^2: the map is optimal, not only right in its image.
    displacement = (t.matrix - np.eye(60)) @ factor(a.covariance)
    cost = math.hypot(float(np.linalg.norm(displacement)), float(np.linalg.norm(a.mean - b.mean)))
    assert cost == pytest.approx(wasserstein2(a, b), rel=1e-8)


def test_map_equals_pot() -> None:
    a, b = gaussian(10, 1e2), gaussian(10, 1e2)
    matrix, offset = ot.gaussian.bures_wasserstein_mapping(a.mean, b.mean, a.covariance, b.covariance)
    t = transport_map(a, b)
    np.testing.assert_allclose(t.matrix, matrix, atol=1e-11)
    np.testing.assert_allclose(t.offset, np.ravel(offset), atol=1e-11)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("tau", [0.0, 0.25, 0.4, 0.9])
def test_interpolation_contracts_the_distance(condition: float, tau: float) -> None:
    a, b = gaussian(30, condition), gaussian(30, condition)
    moved = push(transport_map(a, b).interpolate(tau), a)
    assert wasserstein2(moved, b) == pytest.approx((1 - tau) * wasserstein2(a, b), rel=1e-8)


@settings(max_examples=40, deadline=None)
@given(cases, st.floats(0, 1), st.floats(0, 1))
def test_geodesic_has_constant_speed(case: tuple[int, int, float, float], s: float, t: float) -> None:
    a, b = several(case, 2)
    full = wasserstein2(a, b)
    first, second = (push(transport_map(a, b).interpolate(tau), a) for tau in (s, t))
    assert wasserstein2(first, second) == pytest.approx(abs(s - t) * full, rel=1e-7, abs=1e-9 * full)


def test_affine_maps_apply() -> None:
    f = AffineMap(RNG.standard_normal((3, 3)), RNG.standard_normal(3))
    x = RNG.standard_normal((7, 3))
    np.testing.assert_array_equal(AffineMap.identity(3).apply(x), x)
    np.testing.assert_allclose(f.interpolate(0.3).apply(x), 0.7 * x + 0.3 * f.apply(x), atol=1e-13)
    pushed = push(f, Gaussian(x.mean(axis=0), np.cov(x.T, bias=True)))
    np.testing.assert_allclose(pushed.mean, f.apply(x).mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(pushed.covariance, np.cov(f.apply(x).T, bias=True), atol=1e-12)


# Singular covariances


def test_map_from_a_line_to_a_line_turns_it() -> None:
    """The source has variance along e_1 only, the target along e_theta: A = (s_t / s_1 cos theta) e_theta e_theta^T."""
    e = np.array([math.cos(0.5), math.sin(0.5)])
    a, b = Gaussian(np.zeros(2), np.diag([4.0, 0.0])), Gaussian(np.ones(2), 9.0 * np.outer(e, e))
    t = transport_map(a, b)
    np.testing.assert_allclose(t.matrix, 1.5 / math.cos(0.5) * np.outer(e, e), atol=1e-5)
    np.testing.assert_allclose(push(t, a).covariance, b.covariance, atol=1e-10)


def test_map_of_singular_covariances_is_finite_and_pushes_what_it_can() -> None:
    thin = RNG.standard_normal((8, 3))
    regular, singular = gaussian(8), Gaussian(np.ones(8), thin @ thin.T)
    assert relative(push(transport_map(regular, singular), regular).covariance, singular.covariance) <= 1e-11
    t = transport_map(singular, regular)  # no map makes eight dimensions of three
    assert np.isfinite(t.matrix).all()
    assert np.linalg.matrix_rank(push(t, singular).covariance, tol=1e-9) == 3
    np.testing.assert_allclose(push(t, singular).mean, regular.mean, atol=1e-6)
    same = transport_map(singular, singular)
    assert relative(push(same, singular).covariance, singular.covariance) <= 1e-11


def test_a_point_is_translated() -> None:
    point, g = Gaussian(np.full(4, 2.0), np.zeros((4, 4))), gaussian(4)
    t = transport_map(point, g)
    np.testing.assert_array_equal(t.matrix, np.eye(4))
    np.testing.assert_allclose(t.apply(point.mean[None])[0], g.mean, atol=1e-15)
    np.testing.assert_array_equal(transport_map(g, point).matrix, np.zeros((4, 4)))


# Refusals


@pytest.mark.parametrize(
    "covariance",
    [
        np.ones((2, 3)),
        np.ones(3),
        np.zeros((0, 0)),
        np.array([[1.0, np.nan], [np.nan, 1.0]]),
        np.array([[np.inf, 0.0], [0.0, 1.0]]),
        np.array([[1.0, 0.2], [0.1, 1.0]]),
        np.diag([1.0, -1e-6]),
        np.array([[0.0, 1.0], [1.0, 0.0]]),
    ],
)
def test_what_is_no_covariance_is_refused(covariance: np.ndarray) -> None:
    with pytest.raises(CovarianceError):
        factor(covariance)
    with pytest.raises(CovarianceError):
        wasserstein2(Gaussian(np.zeros(len(covariance)), covariance), gaussian(max(1, len(covariance))))


def test_rounding_is_no_reason_to_refuse() -> None:
    rounded = np.diag([1.0, -1e-13]) + np.array([[0.0, 1e-13], [0.0, 0.0]])
    assert factor(rounded)[:, 0] == pytest.approx(0.0)


def test_shapes_and_values_are_checked() -> None:
    g = gaussian(3)
    with pytest.raises(ValueError, match="do not fit"):
        Gaussian(np.zeros(2), np.eye(3))
    with pytest.raises(ValueError, match="do not fit"):
        Gaussian(np.zeros(3), np.ones((2, 3, 3)))
    with pytest.raises(ValueError, match="finite"):
        Gaussian(np.array([0.0, np.nan, 0.0]), np.eye(3))
    with pytest.raises(ValueError, match="do not fit"):
        AffineMap(np.eye(3), np.zeros(2))
    with pytest.raises(ValueError, match="finite"):
        AffineMap(np.eye(3), np.full(3, np.inf))
    with pytest.raises(ValueError, match="dimensions"):
        wasserstein2(g, gaussian(4))
    with pytest.raises(ValueError, match="dimensions"):
        transport_map(g, gaussian(4))
    with pytest.raises(ValueError, match="dimension"):
        push(AffineMap.identity(2), g)
    with pytest.raises(ValueError, match="rows"):
        polar(np.ones((2, 3)))
    with pytest.raises(ValueError, match="finite"):
        polar(np.full((2, 2), np.nan))
