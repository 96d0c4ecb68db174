"""Site shifts and slopes against the stacked mixed model, the additive formulas, their likelihood, and planted effects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, ortho_group

from veilsum_aggregation.two_way import (
    ClassStatistics,
    fit_two_way,
    slope_variance,
    two_way_local,
    two_way_map,
    two_way_update,
    whitening,
)


def drawn(
    seed: int, s: int, k: int, d: int, v_d: float = 0.5, v_e: float = 0.2, records: float = 30
) -> tuple[ClassStatistics, np.ndarray, np.ndarray, np.ndarray]:
    """Sites from the model with v_b = v_d / s^2 and within-class covariance I; shifts, slopes and class means as planted."""
    rng = np.random.default_rng(seed)
    counts = np.round(rng.gamma(0.5, records, (s, k)))
    counts[np.arange(s), rng.integers(0, k, s)] += 5
    class_means = 3 * rng.standard_normal((k, d))
    spread = class_means - class_means.mean(axis=0)
    v_b = v_d / max(np.sum(spread**2) / k, 1e-3)
    shifts, slopes = np.sqrt(v_d) * rng.standard_normal((s, d)), np.sqrt(v_b) * rng.standard_normal((s, d, d))
    noise = np.sqrt(v_e + 1 / np.maximum(counts, 1))[:, :, None] * rng.standard_normal((s, k, d))
    means = class_means + shifts[:, None, :] + np.einsum("sde,ke->skd", slopes, spread) + noise
    means[counts == 0] = np.nan  # never read
    return ClassStatistics(counts, means, np.tile(np.eye(d), (s, 1, 1)), counts.sum(axis=1)), shifts, slopes, class_means


def log_likelihood(site: ClassStatistics, m: np.ndarray, spread: np.ndarray, v_d: float, v_e: float, v_b: float) -> float:
    """Of the observed class means, all effects integrated out; the coordinates are independent."""
    total = 0.0
    for counts, mine in zip(site.counts, site.means, strict=True):
        here = counts > 0
        covariance = v_d + v_b * spread[here] @ spread[here].T + np.diag(v_e + 1 / counts[here])
        deviation = (mine - m)[here].T.reshape(-1, here.sum())
        total += float(np.sum(multivariate_normal(np.zeros(here.sum()), covariance).logpdf(deviation)))
    return total


def summed(site: ClassStatistics, m: np.ndarray | None, *variances: float) -> dict[str, np.ndarray]:
    return {name: part.sum(axis=0) for name, part in two_way_local(site.counts, site.means, m, *variances)[1].items()}


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 4), st.floats(0.01, 5), st.floats(0.01, 5), st.floats(0, 5)
)
def test_effects_are_the_blups_of_the_stacked_system(seed: int, k: int, d: int, v_d: float, v_e: float, v_b: float) -> None:
    """u = (delta, vec B, e): G Z^T V^-1 (y - m) and G - G Z^T V^-1 Z G, all coordinates and classes in one vector."""
    rng = np.random.default_rng(seed)
    counts, y, m = np.round(rng.gamma(1, 5, k)), rng.standard_normal((k, d)), 2 * rng.standard_normal((k, d))
    here = np.flatnonzero(counts > 0)
    spread = m - m.mean(axis=0)
    effects, sums = two_way_local(counts, y, m, v_d, v_e, v_b)
    assert effects.slope.shape == (d, d)
    if not len(here):
        assert not np.any(effects.shift)
        assert not np.any(effects.slope)
        np.testing.assert_array_equal(sums["shift"], 0)
        return
    p = len(here)
    design = np.hstack(
        [np.kron(np.ones((p, 1)), np.eye(d)), np.vstack([np.kron(np.eye(d), spread[c][None]) for c in here]), np.eye(p * d)]
    )
    prior = np.diag(np.concatenate([np.full(d, v_d), np.full(d * d, v_b), np.full(p * d, v_e)]))
    marginal = design @ prior @ design.T + np.diag(np.repeat(1 / counts[here], d))
    gain = prior @ design.T @ np.linalg.inv(marginal)
    mean, left = gain @ (y - m)[here].ravel(), prior - gain @ design @ prior
    np.testing.assert_allclose(effects.shift, mean[:d], atol=1e-8)
    np.testing.assert_allclose(effects.slope, mean[d : d + d * d].reshape(d, d), atol=1e-8)
    fitted = (design[:, : d + d * d] @ mean[: d + d * d]).reshape(p, d)
    np.testing.assert_allclose(sums["weighted"][here], (y[here] - fitted) / (v_e + 1 / counts[here])[:, None], atol=1e-6)
    np.testing.assert_array_equal(np.delete(sums["weighted"], here, axis=0), 0)
    moved = (mean[:d] @ mean[:d] + np.trace(left[:d, :d])) / d
    residual, rest = mean[d + d * d :], left[d + d * d :, d + d * d :]
    assert sums["shift"] == pytest.approx([moved, 1], abs=1e-8)
    assert sums["residual"] == pytest.approx([(residual @ residual + np.trace(rest)) / d, p], abs=1e-8)


@pytest.mark.parametrize("seed", range(8))
def test_without_slopes_it_is_the_additive_fit(seed: int) -> None:
    """The scalar formulas of the additive model, site by site, over ten rounds."""
    site, *_ = drawn(seed, 5, 6, 8)
    v_d, v_e, shifts, m = 0.3, 0.3, np.zeros((5, 8)), np.zeros((6, 8))
    for fitted in range(11):
        a = np.where(site.counts > 0, 1 / (v_e + 1 / np.maximum(site.counts, 1)), 0)
        y = np.nan_to_num(site.means)
        if fitted:
            precision = 1 / v_d + a.sum(axis=1)
            shifts = np.einsum("sk,skd->sd", a, y - m) / precision[:, None]
            rest = v_e * a[:, :, None] * (y - m - shifts[:, None])
            variance = np.where(a > 0, v_e - v_e**2 * a + (v_e * a) ** 2 / precision[:, None], 0)
            new = np.mean(np.mean(shifts**2, axis=1) + 1 / precision), (np.sum(rest**2) / 8 + variance.sum()) / np.sum(a > 0)
        total = a.sum(axis=0)
        m = np.einsum("sk,skd->kd", a, y - shifts[:, None]) / np.where(total > 0, total, 1)[:, None]
        m[total == 0] = m[total > 0].mean(axis=0)
        v_d, v_e = new if fitted else (v_d, v_e)
    fit = fit_two_way(site)
    np.testing.assert_allclose(fit.class_means, m, atol=1e-12)
    assert (fit.shift_variance, fit.residual_variance) == pytest.approx((v_d, v_e), rel=1e-12)
    assert fit.slopes is None
    assert fit.slope_variance is None
    flat = fit_two_way(site, slopes=True)
    assert flat.slopes is not None
    assert np.abs(flat.class_means - m).max() > 1e-3  # the slopes of these sites are seen


@settings(max_examples=24, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.integers(1, 8), st.integers(1, 10), st.booleans())
def test_each_step_of_a_round_raises_the_likelihood(seed: int, s: int, k: int, d: int, slopes: bool) -> None:
    """The class means for the structure and variances of the round; the variances of shifts and residuals for the rest.

    Both are steps of expectation maximisation. The structure and v_b follow afterwards, by definition and not by likelihood.
    """
    rng = np.random.default_rng(seed)
    site, *_ = drawn(seed, s, k, d, *np.exp(rng.uniform(-3, 1, 2)))
    v_d, v_e, v_b, start = 0.3, 0.3, 0.0, summed(site, None, 0.3, 0.3)
    m, *_ = two_way_update(start, v_d, v_e)
    v_b = slope_variance(start, m, v_d) if slopes else 0.0
    for _ in range(8):
        spread = m - m.mean(axis=0)
        sums = summed(site, m, v_d, v_e, v_b)
        new, new_d, new_e = two_way_update(sums, v_d, v_e)
        before = log_likelihood(site, m, spread, v_d, v_e, v_b)
        slack = 1e-9 * (1 + abs(before))
        assert log_likelihood(site, new, spread, v_d, v_e, v_b) >= before - slack
        assert log_likelihood(site, m, spread, new_d, v_e, v_b) >= before - slack
        assert log_likelihood(site, m, spread, v_d, new_e, v_b) >= before - slack
        assert log_likelihood(site, m, spread, new_d, new_e, v_b) >= before - slack
        m, v_d, v_e = new, new_d, new_e
        v_b = slope_variance(sums, m, v_d) if slopes else 0.0


def test_additive_rounds_raise_the_likelihood_one_by_one() -> None:
    for seed in range(10):
        site, *_ = drawn(seed, 4, 5, 3)
        fits = [fit_two_way(site, rounds=rounds) for rounds in range(1, 12)]
        values = [log_likelihood(site, f.class_means, f.class_means, f.shift_variance, f.residual_variance, 0.0) for f in fits]
        assert np.diff(values).min() > -1e-9


def test_ten_rounds_with_slopes_end_above_one_and_above_the_additive_fit() -> None:
    """From round to round the likelihood may fall a little, since v_b is tied to v_d; over ten it rises here."""
    for seed in range(10):
        site, *_ = drawn(seed, 5, 6, 8)
        one, ten, flat = fit_two_way(site, rounds=1, slopes=True), fit_two_way(site, slopes=True), fit_two_way(site)
        values = [
            log_likelihood(
                site,
                fit.class_means,
                fit.class_means - fit.centre,
                fit.shift_variance,
                fit.residual_variance,
                fit.slope_variance or 0.0,
            )
            for fit in (one, ten, flat)
        ]
        assert values[1] > values[0]
        assert values[1] > values[2]


def test_planted_slopes_are_found_as_records_and_classes_grow() -> None:
    errors = []
    for records, k, v_e in ((20, 4, 0.3), (200, 8, 0.03), (20000, 24, 0.0003)):
        site, _, slopes, class_means = drawn(5, 12, k, 3, v_e=v_e, records=records)
        fit = fit_two_way(site, rounds=40, slopes=True)
        assert fit.slopes is not None
        # What all sites have in common is in the class means: compare what a site does to the structure with the others.
        spread, found = class_means - class_means.mean(axis=0), fit.class_means - fit.centre
        true, seen = np.einsum("sde,ke->skd", slopes, spread), np.einsum("sde,ke->skd", fit.slopes, found)
        true, seen = true - true.mean(axis=0), seen - seen.mean(axis=0)
        errors.append(float(np.mean((seen - true) ** 2) / np.mean(true**2)))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.02
    assert fit.slope_variance == pytest.approx(np.mean(slopes**2), rel=0.5)


def test_maps_bring_class_means_of_sites_together() -> None:
    """Records wholly moved by x -> c + delta + (I + B)(x - c): of the differences that shifts leave, slopes leave a part."""
    d = 3
    site, shifts, slopes, class_means = drawn(7, 12, 8, d, v_e=0.01, records=2000)
    stretch = np.eye(d) + slopes
    site = ClassStatistics(site.counts, site.means, stretch @ np.swapaxes(stretch, 1, 2), site.degrees)
    centre = class_means.mean(axis=0)
    left = []
    for flag in (False, True):
        fit = fit_two_way(site, slopes=flag)
        moved = []
        for k in range(12):
            slope = None if fit.slopes is None else fit.slopes[k]
            own = two_way_map(fit.shifts[k], fit.centre, site.within[k], fit.within, site.degrees[k], slope=slope)
            moved.append(own.apply(centre + shifts[k] + (class_means - centre) @ stretch[k].T))
        left.append(np.sum(np.var(moved, axis=0)))
    assert left[1] < 0.3 * left[0]


def test_shift_and_slope_move_a_usual_class_alike() -> None:
    site, *_ = drawn(6, 5, 7, 4)
    site = ClassStatistics(site.counts * (np.arange(7) != 2), site.means, site.within, site.degrees)  # no site has class 2
    fit = fit_two_way(site, slopes=True)
    assert fit.slope_variance is not None
    assert fit.slopes is not None
    seen = np.delete(fit.class_means, 2, axis=0)
    size = np.mean(np.sum((seen - seen.mean(axis=0)) ** 2, axis=1))
    assert fit.slope_variance * size == pytest.approx(fit.shift_variance, rel=1e-9)
    np.testing.assert_allclose(fit.class_means[2], seen.mean(axis=0))
    assert np.isfinite(fit.slopes).all()


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_one_class_or_equal_class_means_have_no_slope(offset: float) -> None:
    rng = np.random.default_rng(1)
    y = offset + rng.standard_normal((3, 4, 2))
    counts = np.zeros((3, 4))
    counts[:, 1] = [10, 20, 30]
    for means, n in ((y, counts), (offset + np.tile(rng.standard_normal(2), (3, 4, 1)), np.full((3, 4), 9.0))):
        site = ClassStatistics(n, means, np.tile(np.eye(2), (3, 1, 1)), n.sum(axis=1))
        fit, flat = fit_two_way(site, slopes=True), fit_two_way(site)
        assert fit.slope_variance == 0.0
        np.testing.assert_array_equal(fit.slopes, 0)
        np.testing.assert_array_equal(fit.shifts, flat.shifts)


def test_a_class_that_a_site_lacks_has_no_say_in_its_slope() -> None:
    site, *_ = drawn(8, 1, 5, 3)
    counts, m = np.array([4.0, 0.0, 6.0, 0.0, 9.0]), np.random.default_rng(2).standard_normal((5, 3))
    other = np.where(counts[:, None] > 0, site.means[0], 1e9)
    one, two = (
        two_way_local(counts, np.nan_to_num(y), m, 0.4, 0.2, 0.7)
        for y in (np.where(counts[:, None] > 0, m + 1, np.nan), other * 0 + m + 1)
    )
    np.testing.assert_array_equal(one[0].slope, two[0].slope)
    np.testing.assert_array_equal(one[0].scores[[1, 3]], 0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_maps_follow_an_affine_change_of_the_features(seed: int) -> None:
    """x -> G x + g: the map T becomes G T G^-1, also for G that is not orthogonal."""
    rng = np.random.default_rng(seed)
    d, s = 4, 3
    site, *_ = drawn(seed, s, 5, d)
    site = ClassStatistics(
        site.counts, site.means, np.array([r @ r.T + np.eye(d) for r in rng.standard_normal((s, d, d))]), site.degrees
    )
    turns = ortho_group(d, seed=rng).rvs(2)
    matrix, offset = turns[0] @ np.diag(np.exp(rng.uniform(-1, 1, d))) @ turns[1], rng.standard_normal(d)
    other = ClassStatistics(site.counts, site.means @ matrix.T + offset, matrix @ site.within @ matrix.T, site.degrees)
    one, two = fit_two_way(site, slopes=True), fit_two_way(other, slopes=True)
    assert one.slopes is not None
    assert two.slopes is not None
    np.testing.assert_allclose(two.slopes, matrix @ one.slopes @ np.linalg.inv(matrix), atol=1e-8)
    assert two.slope_variance == pytest.approx(one.slope_variance, rel=1e-8)
    x = rng.standard_normal((20, d))
    for k in range(s):
        first = two_way_map(one.shifts[k], one.centre, site.within[k], one.within, site.degrees[k], slope=one.slopes[k])
        second = two_way_map(two.shifts[k], two.centre, other.within[k], two.within, site.degrees[k], slope=two.slopes[k])
        np.testing.assert_allclose(
            second.apply(x @ matrix.T + offset), first.apply(x) @ matrix.T + offset, atol=1e-6 * np.abs(first.matrix).max()
        )


def test_map_takes_shift_and_slope_out() -> None:
    """x = c + delta + (I + B)(z - c) comes back as z where the covariance part is not applied, or has nothing to do."""
    rng = np.random.default_rng(3)
    d = 5
    slope, root = 0.15 * rng.standard_normal((d, d)), rng.standard_normal((d, d))
    pooled, shift, centre, z = (
        root @ root.T + np.eye(d),
        rng.standard_normal(d),
        rng.standard_normal(d),
        rng.standard_normal((9, d)),
    )
    stretch = np.eye(d) + slope
    x = centre + shift + (z - centre) @ stretch.T
    moved = stretch @ pooled @ stretch.T  # H carries it onto the pooled one
    plain = two_way_map(shift, centre, moved, pooled, 1e12, tau=0.0, slope=slope)
    np.testing.assert_allclose(plain.apply(x), z, atol=1e-9)
    np.testing.assert_allclose(two_way_map(shift, centre, moved, pooled, 1e12, slope=slope).apply(x), z, atol=1e-6)
    # Where the slope is not in the records' own spread, all of tau takes the spread to the pooled one after H.
    own = root.T @ root + np.eye(d)
    whole = two_way_map(shift, centre, own, pooled, 40.0, tau=1.0, slope=slope).matrix
    shrunk = (own * 40 + pooled * d) / (40 + d)
    np.testing.assert_allclose(whole @ shrunk @ whole.T, pooled, atol=1e-8)
    none = two_way_map(shift, centre, own, pooled, 0.0, tau=0.0, slope=np.zeros((d, d)))
    np.testing.assert_allclose(none.matrix, np.eye(d), atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([-1e-12, 0.0, 1e-12, 1e-3, 0.05, 0.1, 8.0, 1e6]))
def test_slopes_near_singular_are_taken_out_within_bounds(seed: int, least: float) -> None:
    rng = np.random.default_rng(seed)
    d = 4
    left, right = ortho_group(d, seed=rng).rvs(2)
    root = rng.standard_normal((d, d))
    pooled = root @ root.T + 0.5 * np.eye(d)
    whiten, colour, _ = whitening(pooled)
    values = np.array([1.0, 0.5, 3.0, least])
    slope = colour @ (left @ np.diag(values) @ right - np.eye(d)) @ whiten
    found = two_way_map(np.zeros(d), np.zeros(d), pooled, pooled, 100.0, tau=0.0, slope=slope).matrix
    inside = whiten @ found @ colour
    expected = right.T @ np.diag([1.0, 2.0, 1 / 3, 100 * least if least < 0.1 else max(1 / least, 0.1)]) @ left.T
    np.testing.assert_allclose(inside, expected, atol=1e-6)
    for tau in (0.4, 1.0):
        assert np.isfinite(two_way_map(np.zeros(d), np.zeros(d), pooled, pooled, 100.0, tau=tau, slope=slope).matrix).all()


def test_noised_counts_shrink_shifts_and_slopes() -> None:
    """Noise on class sums is as fewer records: the effects go to 0, and no slope is made of noise alone."""
    site, *_ = drawn(9, 4, 6, 5)
    sizes = []
    for std in (0.0, 30.0, 3000.0):
        fit = fit_two_way(ClassStatistics(site.counts, site.means, site.within, site.degrees, std), slopes=True)
        assert fit.slopes is not None
        assert np.isfinite(fit.slopes).all()
        sizes.append((np.linalg.norm(fit.shifts), np.linalg.norm(fit.slopes)))
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2][1] < 1e-2 * sizes[0][1]
