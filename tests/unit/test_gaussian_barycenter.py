"""The barycenter against the closed form of commuting covariances, POT, a computation in 60 digits, and its own condition."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from veilsum_aggregation.gaussian import (
    Acceleration,
    Barycenter,
    Gaussian,
    WeightsError,
    barycenter,
    barycenter_residual,
    barycenter_term,
    push,
    transport_map,
    wasserstein2,
)
from veilsum_aggregation.polar import CovarianceError, factor

RNG = np.random.default_rng(23)
CONDITIONS = (1e2, 1e6, 1e10)


def orthogonal(d: int, rng: np.random.Generator = RNG) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def compose(basis: np.ndarray, values: np.ndarray) -> np.ndarray:
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2


def spd(d: int, condition: float, rng: np.random.Generator = RNG) -> np.ndarray:
    return compose(orthogonal(d, rng), np.logspace(0, -math.log10(condition), d))


def spds(number: int, d: int, condition: float, rng: np.random.Generator = RNG) -> np.ndarray:
    return np.array([spd(d, condition, rng) for _ in range(number)])


def of(covariances: np.ndarray, weights: np.ndarray | None = None, **options: float) -> Barycenter:
    number, d, _ = covariances.shape
    return barycenter(np.zeros((number, d)), covariances, np.ones(number) if weights is None else weights, **options)  # type: ignore[arg-type]


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def check_pushes(covariances: np.ndarray, result: Barycenter, direct: float = 1e-8) -> None:
    """A S_k A^T is the barycenter's, to 1e-8 by the factor of S_k and to ``direct`` by S_k itself.

    The rounding of S_k and of the product are worth up to eps |A|^2 |S_k|, 2e-6 where A is 1e5 and S_k is 1: that is not A's.
    """
    for covariance in covariances:
        source = Gaussian(np.zeros(len(covariance)), covariance)
        t = transport_map(source, result.gaussian)
        assert relative(push(t, source).covariance, result.gaussian.covariance) <= 1e-8
        assert relative(t.matrix @ covariance @ t.matrix.T, result.gaussian.covariance) <= direct


def commuting(number: int, d: int, condition: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Covariances, weights, and the barycenter's covariance (sum_k w_k S_k^1/2)^2."""
    basis, weights = orthogonal(d, rng), rng.dirichlet(np.ones(number))
    values = np.array([rng.permutation(np.logspace(0, -math.log10(condition), d)) for _ in range(number)])
    return np.array([compose(basis, v) for v in values]), weights, compose(basis, (weights @ np.sqrt(values)) ** 2)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("d", [2, 48])
def test_commuting_covariances_have_a_closed_form(condition: float, d: int) -> None:
    covariances, weights, expected = commuting(4, d, condition, RNG)
    result = of(covariances, weights)
    assert result.converged
    assert result.iterations <= 4
    assert relative(result.gaussian.covariance, expected) <= 1e-10
    check_pushes(covariances, result, direct=1e-6 if condition > 1e6 else 1e-8)


@pytest.mark.parametrize("dimension", [128, pytest.param(512, marks=pytest.mark.system)])
@threadpool_limits.wrap(limits=1)  # two BLAS threads on a busy machine wait for each other most of the time
def test_large_dimensions_at_condition_1e10(dimension: int) -> None:
    """Two commuting covariances with a closed form, and two that do not commute, pushed on their barycenter."""
    rng = np.random.default_rng(1)
    covariances, weights, expected = commuting(2, dimension, 1e10, rng)
    result = of(covariances, weights)
    assert result.converged
    assert relative(result.gaussian.covariance, expected) <= 1e-8
    check_pushes(covariances[:1], result, direct=1e-6)
    covariances = spds(2, dimension, 1e10, rng)
    result = of(covariances, tolerance=1e-9)
    assert result.converged
    check_pushes(covariances, result)


@pytest.mark.system
@pytest.mark.parametrize("condition", [1e2, 1e10])
def test_equals_a_computation_in_sixty_digits(condition: float) -> None:
    """The plain textbook iteration, three covariances of dimension 3: no rounding to speak of, at any condition."""
    covariances, weights = spds(3, 3, condition, np.random.default_rng(1)), np.array([0.2, 0.3, 0.5])

    def root(matrix: mp.matrix) -> mp.matrix:
        values, vectors = mp.eigsy(matrix)
        return vectors * mp.diag([mp.sqrt(value) for value in values]) * vectors.T

    with mp.workdps(60):
        exact = [mp.matrix(covariance.tolist()) for covariance in covariances]
        s = sum((mp.mpf(w) * root(c) for w, c in zip(weights, exact, strict=True)), mp.zeros(3)) ** 2
        for _ in range(400):
            half = root(s)
            inverse = half**-1
            mean = sum((mp.mpf(w) * root(half * c * half) for w, c in zip(weights, exact, strict=True)), mp.zeros(3))
            after = inverse * mean * mean * inverse
            after, before = (after + after.T) / 2, s
            s = after
            if mp.norm(after - before) < 1e-15:
                break
        expected = np.array(s.tolist(), dtype=np.float64)
    result = of(covariances, weights)
    assert result.converged
    assert relative(result.gaussian.covariance, expected) <= 1e-10


@pytest.mark.parametrize(("number", "d"), [(2, 3), (5, 12), (10, 24)])
def test_equals_pot(number: int, d: int) -> None:
    covariances, weights, means = spds(number, d, 10, RNG), RNG.dirichlet(np.ones(number)), RNG.standard_normal((number, d))
    mean, covariance = ot.gaussian.bures_wasserstein_barycenter(means, covariances, weights, num_iter=5000, eps=1e-11)
    result = barycenter(means, covariances, weights)
    assert relative(result.gaussian.covariance, covariance) <= 1e-8
    np.testing.assert_allclose(result.gaussian.mean, mean, atol=1e-13)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 10), st.floats(0, 5), st.floats(-4, 4))
def test_the_maps_from_the_barycenter_average_to_the_identity(
    seed: int, number: int, d: int, decades: float, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    covariances = 10 ** (2 * scale) * spds(number, d, 10**decades, rng)
    weights, means = rng.dirichlet(np.ones(number)), rng.standard_normal((number, d))
    result = barycenter(means, covariances, weights)
    assert result.converged
    assert result.residual <= 1e-12
    np.testing.assert_allclose(result.factor.T @ result.factor, result.gaussian.covariance, rtol=1e-12, atol=1e-300)
    maps = [transport_map(result.gaussian, Gaussian(m, c)) for m, c in zip(means, covariances, strict=True)]
    average = sum(w * t.matrix for w, t in zip(weights, maps, strict=True))
    np.testing.assert_allclose(average, np.eye(d), atol=1e-7)
    check_pushes(covariances, result)


def test_is_the_least_mean_squared_distance() -> None:
    covariances, weights = spds(4, 6, 1e3), np.array([0.1, 0.2, 0.3, 0.4])
    result = of(covariances, weights)
    sites = [Gaussian(np.zeros(6), covariance) for covariance in covariances]

    def cost(g: Gaussian) -> float:
        return sum(w * wasserstein2(g, site) ** 2 for w, site in zip(weights, sites, strict=True))

    least = cost(result.gaussian)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(5):
            moved = (np.eye(6) + size * RNG.standard_normal((6, 6))) @ factor(result.gaussian.covariance)
            assert cost(Gaussian(np.zeros(6), moved @ moved.T)) > least


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 8))
def test_motions_and_units_carry_over(seed: int, number: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    covariances, turn = spds(number, d, 1e3, rng), orthogonal(d, rng)
    turned = np.array([(m + m.T) / 2 for m in 1e-6 * turn @ covariances @ turn.T])
    expected = 1e-6 * turn @ of(covariances).gaussian.covariance @ turn.T
    assert relative(of(turned).gaussian.covariance, expected) <= 1e-9


@pytest.mark.parametrize("scale", [1e-250, 1e250])
def test_units_may_be_extreme(scale: float) -> None:
    covariances = spds(3, 5, 1e3)
    result = of(scale * covariances)
    assert result.converged
    expected = of(covariances)
    assert result.iterations == pytest.approx(expected.iterations, abs=1)
    assert relative(result.gaussian.covariance / scale, expected.gaussian.covariance) <= 1e-11


def test_one_and_equal_and_weightless_covariances() -> None:
    covariances = spds(3, 12, 1e8)
    alone = of(covariances[:1])
    assert (alone.converged, alone.iterations) == (True, 1)
    assert relative(alone.gaussian.covariance, covariances[0]) <= 1e-13
    equal = of(np.repeat(covariances[:1], 5, axis=0), np.array([1.0, 2, 3, 4, 5]))
    assert relative(equal.gaussian.covariance, covariances[0]) <= 1e-13
    without = of(covariances, np.array([1.0, 0.0, 3.0]))
    expected = of(covariances[[0, 2]], np.array([0.25, 0.75]))
    np.testing.assert_array_equal(without.gaussian.covariance, expected.gaussian.covariance)
    larger = of(covariances, np.array([1e300, 0.0, 3e300]))
    assert relative(larger.gaussian.covariance, expected.gaussian.covariance) <= 1e-12


def test_a_constant_feature_stays_constant() -> None:
    """All are singular in the same direction: the barycenter is that of the others, with nothing in that direction."""
    small = spds(4, 6, 1e4)
    wide = np.zeros((4, 8, 8))
    wide[:, 1:7, 1:7] = small
    result = of(wide)
    assert result.converged
    np.testing.assert_allclose(result.gaussian.covariance[1:7, 1:7], of(small).gaussian.covariance, atol=1e-13)
    assert np.abs(result.gaussian.covariance[[0, 7]]).max() <= 1e-15
    points = of(np.zeros((3, 5, 5)))
    assert points.converged
    np.testing.assert_array_equal(points.gaussian.covariance, np.zeros((5, 5)))


def test_singular_covariances_of_closed_form() -> None:
    """Diagonal ones, of ranks 2 and 1, and a point: (sum_k w_k S_k^1/2)^2 holds for them too."""
    covariances = np.array([np.diag([1.0, 4.0, 0.0]), np.diag([0.0, 0.0, 9.0]), np.zeros((3, 3))])
    result = of(covariances, np.array([0.5, 0.25, 0.25]))
    assert result.converged
    np.testing.assert_allclose(result.gaussian.covariance, np.diag([0.25, 1.0, 0.5625]), atol=1e-13)


def test_singular_covariances_that_do_not_commute() -> None:
    """Slow, but finite and no worse than any of the sites, or their mean, as a barycenter."""
    thin = RNG.standard_normal((4, 10, 4))
    covariances = thin @ thin.swapaxes(-2, -1)
    result = of(covariances)
    sites = [Gaussian(np.zeros(10), covariance) for covariance in covariances]

    def cost(g: Gaussian) -> float:
        return sum(wasserstein2(g, site) ** 2 for site in sites)

    assert np.isfinite(result.gaussian.covariance).all()
    assert result.residual < 1e-3
    others = [*sites, Gaussian(np.zeros(10), covariances.mean(axis=0)), of(covariances, max_iterations=1).gaussian]
    assert all(cost(result.gaussian) <= cost(other) * (1 + 1e-9) for other in others)


@given(
    st.integers(0, 2**32 - 1), st.integers(2, 6), st.floats(-1, 1), st.floats(0.05, 0.95), st.sampled_from([1e-12, 1.0, 1e12])
)
def test_of_two_lines_it_is_the_line_between_them(seed: int, d: int, cosine: float, weight: float, unit: float) -> None:
    """N(0, a a^T) and N(0, b b^T) are coupled by the sign of a.b, so the barycenter is N(0, c c^T), c = w a +- v b."""
    a, b = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, 2)))[0].T
    b = cosine * a + math.sqrt(1.0 - cosine**2) * b
    a, b, weights = unit * a, 3.0 * unit * b, np.array([weight, 1.0 - weight])
    covariances = np.array([np.outer(a, a), np.outer(b, b)])
    result = of(covariances, weights)
    middle = weights[0] * a + math.copysign(weights[1], a @ b) * b
    best, found = (
        mean_squared_distance(covariances, weights, of) for of in (np.outer(middle, middle), result.gaussian.covariance)
    )
    assert result.converged or abs(cosine) < 0.1
    assert found <= best * (1.0 + (1e-9 if result.converged else 0.01))


def mean_squared_distance(covariances: np.ndarray, weights: np.ndarray, of: np.ndarray) -> float:
    """sum_k w_k W2^2(N(0, of), N(0, S_k)), weights as they are."""
    centre, at = np.zeros(len(of)), Gaussian(np.zeros(len(of)), of)
    return sum(w * wasserstein2(at, Gaussian(centre, s)) ** 2 for w, s in zip(weights, covariances, strict=True))


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_whatever_the_ranks_no_step_towards_a_site_is_nearer_to_all(seed: int, d: int, ranks: list[int]) -> None:
    """The condition of first order, by the objective itself: for covariances of any ranks, 0 among them, and other units."""
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((d, min(rank, d))) * 10.0 ** rng.choice([-6, 0, 6]) for rank in ranks]
    covariances, weights = np.array([f @ f.T for f in factors]), rng.dirichlet(np.ones(len(ranks)))
    result = of(covariances, weights).gaussian
    assert np.isfinite(result.covariance).all()
    assert np.linalg.eigvalsh(result.covariance)[0] >= -1e-9 * np.abs(result.covariance).max()
    least = mean_squared_distance(covariances, weights, result.covariance)
    for site in covariances:
        step = transport_map(result, Gaussian(np.zeros(d), site)).interpolate(0.01)
        nearer = mean_squared_distance(covariances, weights, push(step, result).covariance)
        assert nearer >= least * (1.0 - 1e-6) - 1e-10 * np.abs(covariances).max()


def test_tells_when_it_did_not_converge() -> None:
    covariances = spds(5, 10, 1e6)
    result = of(covariances, max_iterations=3)
    assert (result.iterations, result.converged) == (3, False)
    assert result.residual > 1e-12
    assert not of(covariances, tolerance=0.0).converged
    assert of(covariances, tolerance=1e-2).iterations < of(covariances).iterations


def test_acceleration_takes_fewer_steps_to_the_same_point() -> None:
    covariances = spds(5, 20, 1e3)
    factors = factor(covariances)

    def step(q: np.ndarray) -> np.ndarray:
        return sum(barycenter_term(q, one, 0.2) for one in factors)

    def run(accelerate: Acceleration | None) -> tuple[np.ndarray, int]:
        q, steps = np.eye(20), 0
        image = step(q)
        while barycenter_residual(q, image) > 1e-11 and steps < 200:
            q = image if accelerate is None else accelerate.next(q, image)
            image, steps = step(q), steps + 1
        return image, steps

    plain, accelerated = run(None), run(Acceleration())
    expected = of(covariances).gaussian.covariance
    for q, _ in (plain, accelerated):
        assert relative(q.T @ q, expected) <= 1e-9
    assert accelerated[1] <= 0.6 * plain[1]


def test_sites_terms_make_the_step() -> None:
    """One step of the iteration by its parts, in the textbook's form: S' = S^-1/2 (sum w (S^1/2 S_k S^1/2)^1/2)^2 S^-1/2."""
    covariances, weights, s = spds(3, 7, 50), np.array([0.2, 0.3, 0.5]), spd(7, 20)

    def root(matrix: np.ndarray) -> np.ndarray:
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        return (vectors * np.sqrt(values)) @ vectors.T

    half = root(s)
    mean = sum(w * root(half @ c @ half) for w, c in zip(weights, covariances, strict=True))
    expected = np.linalg.inv(half) @ mean @ mean @ np.linalg.inv(half)
    q = orthogonal(7) @ half  # any factor of S will do
    after = sum(barycenter_term(q, factor(c), w) for w, c in zip(weights, covariances, strict=True))
    np.testing.assert_allclose(after.T @ after, expected, atol=1e-12)
    assert barycenter_residual(q, q) == 0.0
    assert barycenter_residual(np.zeros((2, 2)), 3 * np.eye(2)) == pytest.approx(1.0)
    assert barycenter_residual(np.zeros((2, 2)), np.zeros((2, 2))) == 0.0


@pytest.mark.parametrize("weights", [[1.0], [1.0, -0.1], [0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [[0.5], [0.5]]])
def test_weights_are_checked(weights: list[float]) -> None:
    with pytest.raises(WeightsError):
        of(np.array([np.eye(2), np.eye(2)]), np.array(weights))


def test_input_is_checked() -> None:
    two = np.array([np.eye(2), np.eye(2)])
    with pytest.raises(CovarianceError, match="indefinite"):
        of(np.array([np.eye(2), np.diag([1.0, -1.0])]))
    with pytest.raises(CovarianceError, match="symmetric"):
        of(np.array([np.eye(2), [[1.0, 0.5], [0.0, 1.0]]]))
    with pytest.raises(CovarianceError, match="finite"):
        of(np.array([np.eye(2), np.full((2, 2), np.nan)]))
    with pytest.raises(CovarianceError, match="square"):
        barycenter(np.zeros((2, 3)), np.ones((2, 3, 2)), np.ones(2))
    for means, covariances in ((np.zeros((3, 2)), two), (np.zeros((2, 2)), two[0]), (np.zeros((0, 2)), two[:0])):
        with pytest.raises(ValueError, match="do not fit"):
            barycenter(means, covariances, np.ones(len(means)))
    with pytest.raises(ValueError, match="finite"):
        barycenter(np.array([[0.0, np.nan], [0.0, 0.0]]), two, np.ones(2))
    with pytest.raises(ValueError, match="iteration"):
        of(two, max_iterations=0)
