"""The two-way reference against dense Gaussian conditioning, its likelihood, and known shifts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, ortho_group

from veilsum_aggregation.gaussian import Gaussian, push
from veilsum_aggregation.two_way import (
    ClassStatistics,
    TwoWay,
    effective_counts,
    fit_two_way,
    pooled_within,
    two_way_local,
    two_way_map,
    two_way_update,
    whitening,
)

RNG = np.random.default_rng(61)


def random_counts(rng: np.random.Generator, s: int, k: int) -> np.ndarray:
    """Counts with absent classes, but no site without any."""
    counts = np.round(rng.gamma(0.5, 30, (s, k)))
    counts[np.arange(s), rng.integers(0, k, s)] += 5
    return counts


def white_sites(
    seed: int, s: int = 5, k: int = 6, d: int = 8, v_d: float = 0.5, v_e: float = 0.2
) -> tuple[ClassStatistics, np.ndarray]:
    """Sites from the model itself, with within-class covariance I, and their true shifts."""
    rng = np.random.default_rng(seed)
    counts = random_counts(rng, s, k)
    shifts = np.sqrt(v_d) * rng.standard_normal((s, d))
    noise = np.sqrt(v_e + 1 / np.maximum(counts, 1))[:, :, None] * rng.standard_normal((s, k, d))
    means = 3 * rng.standard_normal((k, d)) + shifts[:, None, :] + noise
    means[counts == 0] = np.nan  # never read
    return ClassStatistics(counts, means, np.tile(np.eye(d), (s, 1, 1)), counts.sum(axis=1)), shifts


def moved(site: ClassStatistics, matrix: np.ndarray, offset: np.ndarray) -> ClassStatistics:
    within = matrix @ site.within @ matrix.T
    return ClassStatistics(site.counts, site.means @ matrix.T + offset, (within + within.transpose(0, 2, 1)) / 2, site.degrees)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.floats(0.01, 5), st.floats(0.01, 5))
def test_local_step_is_the_posterior_by_dense_conditioning(seed: int, k: int, v_d: float, v_e: float) -> None:
    """One coordinate: y = m + delta 1 + e + noise. Means and variances of delta and e given y, from the joint covariance."""
    rng = np.random.default_rng(seed)
    counts, y, m = np.round(rng.gamma(1, 5, k)), rng.standard_normal((k, 1)), rng.standard_normal((k, 1))
    present = counts > 0
    effects, sums = two_way_local(counts, y, m, v_d, v_e)
    shift = effects.shift
    n, r = counts[present], (y - m)[present, 0]
    p = len(n)
    covariance = v_d * np.ones((p, p)) + np.diag(v_e + 1 / np.maximum(n, 1))
    gain = np.linalg.inv(covariance) if p else np.zeros((0, 0))
    delta = v_d * gain.sum(axis=0) @ r
    assert shift[0] == pytest.approx(delta, abs=1e-9)
    residual, left = v_e * gain @ r, v_e * np.eye(p) - v_e**2 * gain
    if p:
        assert sums["shift"] == pytest.approx([delta**2 + v_d - v_d**2 * gain.sum(), 1], abs=1e-9)
    else:
        np.testing.assert_array_equal(sums["shift"], [0, 0])
    assert sums["residual"] == pytest.approx([residual @ residual + np.trace(left), p], abs=1e-9)
    np.testing.assert_allclose(sums["weights"][present], 1 / (v_e + 1 / n))
    np.testing.assert_array_equal(sums["weights"][~present], 0)
    np.testing.assert_allclose(sums["weighted"], sums["weights"][:, None] * (y - shift))


def log_likelihood(site: ClassStatistics, means: np.ndarray, v_d: float, v_e: float) -> float:
    """Of the observed class means, shifts and residuals integrated out, coordinate by coordinate."""
    total = 0.0
    for counts, mine in zip(site.counts, site.means, strict=True):
        here = counts > 0
        covariance = v_d * np.ones((here.sum(),) * 2) + np.diag(v_e + 1 / counts[here])
        total += float(np.sum(multivariate_normal(np.zeros(here.sum()), covariance).logpdf((mine - means)[here].T)))
    return total


def test_converges_to_a_stationary_point_of_the_likelihood() -> None:
    site, _ = white_sites(3, d=5)
    fit = fit_two_way(site, rounds=4000)

    def at(step: float, what: str) -> float:
        shifted = fit.class_means + step * np.eye(*fit.class_means.shape) * (what == "means")
        return log_likelihood(
            site, shifted, fit.shift_variance + step * (what == "v_d"), fit.residual_variance + step * (what == "v_e")
        )

    size = abs(at(0.05, "v_e") - at(0, "v_e")) + abs(at(0.05, "means") - at(0, "means"))
    assert size > 0.01  # the test could see a slope
    for what in ("means", "v_d", "v_e"):
        assert abs(at(1e-4, what) - at(-1e-4, what)) / 2e-4 < 1e-3
        assert at(0, what) >= max(at(0.01, what), at(-0.01, what))


def test_ten_rounds_raise_the_likelihood_and_find_the_shifts() -> None:
    errors, naive, gains = [], [], []
    for seed in range(12):
        site, shifts = white_sites(seed)
        first, last = (fit_two_way(site, rounds=rounds) for rounds in (1, 10))
        gains.append(
            log_likelihood(site, last.class_means, last.shift_variance, last.residual_variance)
            - log_likelihood(site, first.class_means, first.shift_variance, first.residual_variance)
        )
        centred = shifts - shifts.mean(axis=0)
        found = last.shifts - last.shifts.mean(axis=0)
        # The pooled means differ by label shift as well as by shift.
        pooled = np.einsum("sk,skd->sd", site.counts / site.counts.sum(axis=1)[:, None], np.nan_to_num(site.means))
        errors.append(np.mean((found - centred) ** 2))
        naive.append(np.mean((pooled - pooled.mean(axis=0) - centred) ** 2))
    assert min(gains) > 0
    assert np.mean(errors) < 0.25
    assert np.mean(errors) < 0.1 * np.mean(naive)


def test_label_shift_alone_moves_nothing() -> None:
    k, d = 5, 4
    means = 4 * RNG.standard_normal((k, d))
    counts = random_counts(RNG, 6, k) * 1000
    site = ClassStatistics(counts, np.tile(means, (6, 1, 1)), np.tile(np.eye(d), (6, 1, 1)), counts.sum(axis=1))
    fit = fit_two_way(site, rounds=50)
    np.testing.assert_allclose(fit.shifts, 0, atol=1e-12)
    known = counts.sum(axis=0) > 0
    np.testing.assert_allclose(fit.class_means[known], means[known], atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_equivariant_under_affine_maps_and_order(seed: int) -> None:
    site, _ = white_sites(seed, s=4, k=3, d=4)
    rng = np.random.default_rng(seed)
    turns = ortho_group(4, seed=rng).rvs(2)
    matrix = turns[0] @ np.diag(np.exp(rng.uniform(-1, 1, 4))) @ turns[1]
    offset, order = rng.standard_normal(4), rng.permutation(4)
    one, two = fit_two_way(site), fit_two_way(moved(site, matrix, offset))
    np.testing.assert_allclose(two.shifts, one.shifts @ matrix.T, atol=1e-9)
    np.testing.assert_allclose(two.class_means, one.class_means @ matrix.T + offset, atol=1e-8)
    np.testing.assert_allclose(two.within, matrix @ one.within @ matrix.T, atol=1e-9)
    assert (two.shift_variance, two.residual_variance) == pytest.approx((one.shift_variance, one.residual_variance), rel=1e-8)
    again = fit_two_way(ClassStatistics(site.counts[order], site.means[order], site.within[order], site.degrees[order]))
    np.testing.assert_allclose(again.shifts, one.shifts[order], atol=1e-10)


def test_fit_is_its_own_steps_over_sums() -> None:
    """What secure sums would do: local steps, added up, and the update; the shift of a site from the reference alone."""
    site, _ = white_sites(9)
    fit = fit_two_way(site, rounds=3)
    class_means, v_d, v_e = None, 0.3, 0.3
    for _ in range(4):
        total: dict[str, np.ndarray] = {}
        for counts, means in zip(site.counts, site.means, strict=True):
            for name, part in two_way_local(counts, means, class_means, v_d, v_e)[1].items():
                total[name] = total.get(name, 0.0) + part
        class_means, v_d, v_e = two_way_update(total, v_d, v_e)
    np.testing.assert_allclose(fit.class_means, class_means, atol=1e-10)
    assert (fit.shift_variance, fit.residual_variance) == pytest.approx((v_d, v_e))
    effects, _ = two_way_local(site.counts[2], site.means[2], class_means, v_d, v_e)
    np.testing.assert_allclose(fit.shifts[2], effects.shift, atol=1e-10)
    earlier = fit_two_way(site, rounds=2).class_means
    assert fit.change == pytest.approx(np.linalg.norm(fit.class_means - earlier) / np.linalg.norm(fit.class_means), rel=1e-9)
    assert fit_two_way(site, rounds=1).change is None


def test_class_that_no_site_has_gets_the_centre() -> None:
    site, _ = white_sites(4)
    counts = site.counts.copy()
    counts[:, 1] = 0
    fit = fit_two_way(ClassStatistics(counts, site.means, site.within, site.degrees))
    others = np.delete(fit.class_means, 1, axis=0)
    np.testing.assert_allclose(fit.class_means[1], others.mean(axis=0))
    np.testing.assert_allclose(fit.centre, others.mean(axis=0))
    assert np.all(np.isfinite(fit.shifts))


def test_noise_counts_as_fewer_records() -> None:
    d, n, std = 4, 50.0, 9.0
    root = RNG.standard_normal((d, d)) + 2 * np.eye(d)
    whiten, colour, within = whitening(root @ root.T)
    np.testing.assert_allclose(within, root @ root.T, atol=1e-12)
    np.testing.assert_allclose(whiten @ colour, np.eye(d), atol=1e-10)
    effective = effective_counts(np.array([n, 0.0, -3.0]), std, whiten)
    np.testing.assert_array_equal(effective[1:], 0)
    draws = (RNG.standard_normal((200_000, d)) @ colour * np.sqrt(n) + std * RNG.standard_normal((200_000, d))) / n @ whiten
    assert 1 / effective[0] == pytest.approx(np.mean(draws**2), rel=0.01)
    np.testing.assert_array_equal(effective_counts(np.array([7.0]), 0.0, whiten), [7.0])


def test_map_takes_the_shift_out_and_carries_the_covariance() -> None:
    d, degrees = 6, 240.0
    own, pooled = (r @ r.T + 0.1 * np.eye(d) for r in RNG.standard_normal((2, d, d)))
    shift, centre = RNG.standard_normal((2, d))
    shrunk = (1 - d / degrees) * own + d / degrees * pooled
    full = two_way_map(shift, centre, own, pooled, degrees, tau=1.0)
    np.testing.assert_allclose(full.matrix @ shrunk @ full.matrix.T, pooled, atol=1e-9)
    part = two_way_map(shift, centre, own, pooled, degrees)
    np.testing.assert_allclose(part.apply((centre + shift)[None])[0], centre, atol=1e-12)
    np.testing.assert_allclose(part.matrix, 0.6 * np.eye(d) + 0.4 * full.matrix, atol=1e-12)
    np.testing.assert_allclose(full.matrix, full.matrix.T, atol=1e-9)  # optimal: the gradient of a convex function
    assert np.linalg.eigvalsh(full.matrix).min() > 0
    diagonal = two_way_map(np.zeros(2), np.zeros(2), np.diag([4.0, 1.0]), np.diag([1.0, 9.0]), 1e12, tau=0.5)
    np.testing.assert_allclose(diagonal.matrix, np.diag([0.75, 2.0]), atol=1e-9)
    none = two_way_map(shift, centre, own, pooled, float(d))
    np.testing.assert_array_equal(none.matrix, np.eye(d))
    np.testing.assert_allclose(none.offset, -shift, atol=1e-12)
    np.testing.assert_array_equal(two_way_map(shift, centre, own, pooled, 0.0).matrix, np.eye(d))
    with pytest.raises(ValueError, match="tau"):
        two_way_map(shift, centre, own, pooled, 10.0, tau=1.1)


def test_rank_deficient_within_covariances() -> None:
    d = 5
    site, _ = white_sites(12, d=d)
    flat = np.diag([1.0, 1, 1, 1, 0])
    fit = fit_two_way(ClassStatistics(site.counts, site.means * flat.diagonal(), site.within * flat, site.degrees))
    assert np.all(np.isfinite(fit.shifts))
    np.testing.assert_allclose(fit.shifts[:, 4], 0, atol=1e-12)
    found = two_way_map(fit.shifts[0], fit.centre, flat, fit.within, 1000.0)
    assert np.all(np.isfinite(found.matrix))
    assert np.linalg.norm(push(found, Gaussian(np.zeros(d), flat)).covariance) < 10


def test_refusals() -> None:
    site, _ = white_sites(1)
    for arguments in (
        (site.counts[:, :2], site.means, site.within, site.degrees),
        (site.counts, site.means, site.within[:2], site.degrees),
        (np.zeros_like(site.counts), site.means, site.within, site.degrees),
        (site.counts, site.means, site.within, np.zeros(5)),
        (site.counts, site.means, site.within, -site.degrees),
    ):
        with pytest.raises(ValueError, match=r"fit|records"):
            fit_two_way(ClassStatistics(*arguments))
    with pytest.raises(ValueError, match="round"):
        fit_two_way(site, rounds=0)
    with pytest.raises(ValueError, match="spread"):
        whitening(np.zeros((3, 3)))
    with pytest.raises(ValueError, match="weight"):
        two_way_update({"weights": np.zeros(2), "weighted": np.zeros((2, 3))}, 0.3, 0.3)
    assert pooled_within(site.within, site.degrees).shape == (8, 8)
    assert isinstance(fit_two_way(site), TwoWay)
