"""Alignment maps from blocks of moments: equal to the map built from the records, robust to noise and to empty sites."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import oas

from veilsum_aggregation import alignment
from veilsum_aggregation.alignment import class_statistics, local_map, local_step, reference_arrays, site_gaussian, stack
from veilsum_aggregation.gaussian import AffineMap, Gaussian, push, transport_map
from veilsum_aggregation.shrinkage import shrink_noised
from veilsum_aggregation.two_way import fit_two_way, slope_variance, two_way_map, two_way_update, whitening

RNG = np.random.default_rng(71)
D, K = 5, 4
UPPER = np.triu_indices(D, 1)
Blocks = dict[str, np.ndarray]


def records(seed: int, n: int = 300, lacking: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, K, n)
    y[y == lacking] = 0
    centres = 2 * np.random.default_rng(0).standard_normal((K, D))
    x = rng.standard_normal((n, D)) @ (np.eye(D) + 0.3 * rng.standard_normal((D, D)))
    return x + centres[y] + rng.standard_normal(D), y


def gaussian_blocks(x: np.ndarray) -> Blocks:
    second = x.T @ x
    return {"count": np.array([len(x)], float), "sum": x.sum(0), "squares": np.diag(second).copy(), "products": second[UPPER]}


def class_blocks(x: np.ndarray, y: np.ndarray) -> Blocks:
    blocks = gaussian_blocks(x)
    counts, sums = np.bincount(y, minlength=K).astype(float), np.array([x[y == c].sum(0) for c in range(K)])
    return {"counts": counts, "sums": sums, "squares": blocks["squares"], "products": blocks["products"]}


def noised(blocks: Blocks, std: dict[str, float], rng: np.random.Generator) -> Blocks:
    return {name: value + std[name] * rng.standard_normal(value.shape) for name, value in blocks.items()}


def reference() -> Gaussian:
    root = RNG.standard_normal((D, D))
    return Gaussian(RNG.standard_normal(D), root @ root.T + 0.1 * np.eye(D))


def test_gaussian_from_blocks_is_that_of_the_records() -> None:
    x, y = records(1)
    for blocks in (gaussian_blocks(x), class_blocks(x, y)):
        found = site_gaussian(blocks, {})
        assert found is not None
        assert found[0] == 300
        np.testing.assert_allclose(found[1].mean, x.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(found[1].covariance, oas(x)[0], atol=1e-11)


def test_barycenter_map_is_the_optimal_map_of_the_shrunk_gaussian() -> None:
    x, _ = records(2)
    target = reference()
    own = Gaussian(x.mean(axis=0), oas(x)[0])
    whole = local_map("barycenter", gaussian_blocks(x), {}, reference_arrays(target), tau=1.0)
    np.testing.assert_allclose(push(whole, own).covariance, target.covariance, atol=1e-9)
    np.testing.assert_allclose(push(whole, own).mean, target.mean, atol=1e-9)
    part, expected = local_map("barycenter", gaussian_blocks(x), {}, reference_arrays(target)), transport_map(own, target)
    np.testing.assert_allclose(part.matrix, 0.6 * np.eye(D) + 0.4 * expected.matrix, atol=1e-9)
    np.testing.assert_allclose(part.offset, 0.4 * expected.offset, atol=1e-9)


def test_class_statistics_are_those_of_the_records() -> None:
    x, y = records(3, n=40, lacking=2)
    found = class_statistics(class_blocks(x, y), {})
    assert found is not None
    np.testing.assert_array_equal(found.counts, np.bincount(y, minlength=K))
    deviation = x - np.array([x[y == c].mean(axis=0) if np.any(y == c) else np.zeros(D) for c in range(K)])[y]
    np.testing.assert_allclose(found.within, deviation.T @ deviation / (40 - 3), atol=1e-11)
    assert found.degrees == 37
    np.testing.assert_array_equal(found.means[2], 0)
    np.testing.assert_allclose(found.means[0], x[y == 0].mean(axis=0), atol=1e-12)


def test_second_moments_per_class_add_up() -> None:
    x, y = records(4)
    pooled = class_blocks(x, y)
    seconds = [x[y == c].T @ x[y == c] for c in range(K)]
    parts = {"squares": np.array([np.diag(s) for s in seconds]), "products": np.array([s[UPPER] for s in seconds])}
    one, two = class_statistics(pooled, {}), class_statistics({**pooled, **parts}, {})
    assert one is not None
    assert two is not None
    np.testing.assert_allclose(one.within, two.within, atol=1e-11)
    diagonal = class_statistics({**pooled, "squares": parts["squares"], "products": np.zeros((K, D * (D - 1) // 2))}, {})
    missing = class_statistics({name: value for name, value in pooled.items() if name != "products"}, {})
    assert diagonal is not None
    assert missing is not None
    np.testing.assert_allclose(missing.within, diagonal.within, atol=1e-11)


@pytest.mark.parametrize("kind", ["two-way", "slopes"])
def test_site_finds_the_map_that_the_coordinator_would_give_it(kind: alignment.Kind) -> None:
    blocks = [class_blocks(*records(seed, lacking=seed % K)) for seed in range(4)]
    statistics = [class_statistics(item, {}) for item in blocks]
    assert all(item is not None for item in statistics)
    fit = fit_two_way(stack([item for item in statistics if item is not None]), slopes=kind == "slopes")
    for index, item in enumerate(statistics):
        assert item is not None
        slope = None if fit.slopes is None else fit.slopes[index]
        expected = two_way_map(fit.shifts[index], fit.centre, item.within, fit.within, item.degrees, slope=slope)
        found = local_map(kind, blocks[index], {}, reference_arrays(fit))
        np.testing.assert_allclose(found.matrix, expected.matrix, atol=1e-9)
        np.testing.assert_allclose(found.offset, expected.offset, atol=1e-9)


@pytest.mark.parametrize("slopes", [False, True])
def test_rounds_over_sums_of_local_steps_give_the_reference(slopes: bool) -> None:
    """The iterated mode: one sum for the pooled covariance, one for the first class means, one for each round."""
    statistics = [class_statistics(class_blocks(*records(seed)), {}) for seed in range(3)]
    known = [item for item in statistics if item is not None]
    fit = fit_two_way(stack(known), rounds=5, slopes=slopes)
    scatter, degrees = np.sum([s.within * s.degrees for s in known], axis=0), sum(s.degrees for s in known)
    _, colour, within = whitening(scatter / degrees)
    arrays = {alignment.WITHIN: within, alignment.SCALARS: np.array([0.3, 0.3])}
    for _ in range(6):
        steps = [local_step(s, arrays)[1] for s in known]
        total = {name: np.sum([step[name] for step in steps], axis=0) for name in steps[0]}
        class_means, v_d, v_e = two_way_update(total, *arrays[alignment.SCALARS][:2])
        scalars = [v_d, v_e, *([slope_variance(total, class_means, v_d)] if slopes else [])]
        arrays |= {alignment.CLASS_MEANS: class_means @ colour, alignment.SCALARS: np.array(scalars)}
    assert arrays.keys() == reference_arrays(fit).keys()
    for name, value in reference_arrays(fit).items():
        np.testing.assert_allclose(arrays[name], value, atol=1e-9)


def test_alignment_brings_sites_that_were_moved_back_together() -> None:
    x, y = records(5, n=4000)
    sites = [(x[i::4] + shift, y[i::4]) for i, shift in enumerate(3 * RNG.standard_normal((4, D)))]
    blocks = [class_blocks(*site) for site in sites]
    statistics = [item for item in (class_statistics(item, {}) for item in blocks) if item is not None]
    arrays = reference_arrays(fit_two_way(stack(statistics)))
    before = np.array([part[label == 1].mean(axis=0) for part, label in sites])
    after = [
        local_map("two-way", item, {}, arrays).apply(part)[label == 1]
        for item, (part, label) in zip(blocks, sites, strict=True)
    ]
    assert np.std([part.mean(axis=0) for part in after], axis=0).max() < 0.1 * np.std(before, axis=0).max()


@pytest.mark.parametrize("kind", ["barycenter", "two-way", "slopes"])
def test_site_within_its_noise_is_left_as_it_is(kind: alignment.Kind) -> None:
    blocks = class_blocks(*records(6, n=10))
    arrays = {**reference_arrays(reference())}
    scalars = np.array([0.3, 0.3] + [0.1] * (kind == "slopes"))
    arrays |= {alignment.CLASS_MEANS: np.ones((K, D)), alignment.WITHIN: np.eye(D), alignment.SCALARS: scalars}
    std = {"counts": 10.0, "sums": 1.0, "squares": 1.0, "products": 1.0}
    for empty in (blocks, {name: np.zeros_like(value) for name, value in blocks.items()}):
        found = local_map(kind, empty, std, arrays)
        np.testing.assert_array_equal(found.matrix, np.eye(D))
        np.testing.assert_array_equal(found.offset, np.zeros(D))
    none = {name: np.zeros_like(value) for name, value in blocks.items()}
    assert local_map(kind, none, {}, arrays).matrix.tolist() == AffineMap.identity(D).matrix.tolist()


def test_one_record_or_equal_records_are_shifted_only() -> None:
    target, x = reference(), RNG.standard_normal((1, D)) * 7
    for part in (x, np.repeat(x, 3, axis=0), np.repeat(x + 1e3, 7, axis=0)):
        found = local_map("barycenter", gaussian_blocks(part), {}, reference_arrays(target))
        np.testing.assert_allclose(found.matrix, np.eye(D), atol=1e-12)
        np.testing.assert_allclose(found.offset, 0.4 * (target.mean - part[0]), rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1.0, 10.0, 100.0, 1e4]),
    st.sampled_from(["auto", "oas", "noised", "ridge"]),
    st.sampled_from([1, 12, 300]),
)
def test_whatever_the_noise_maps_are_finite_and_covariances_usable(
    seed: int, std: float, shrinkage: alignment.Shrinkage, n: int
) -> None:
    x, y = records(seed, n=n, lacking=1)
    noise = dict.fromkeys(("count", "sum", "counts", "sums", "squares", "products"), std)
    rng = np.random.default_rng(seed)
    flat, classes = noised(gaussian_blocks(x), noise, rng), noised(class_blocks(x, y), noise, rng)
    found = site_gaussian(flat, noise, shrinkage=shrinkage)
    if found is not None:
        assert np.linalg.eigvalsh(found[1].covariance).min() >= -1e-10 * np.trace(found[1].covariance)
    first = local_map("barycenter", flat, noise, reference_arrays(reference()), shrinkage=shrinkage)
    assert np.all(np.isfinite(first.matrix))
    statistics = class_statistics(classes, noise, shrinkage=shrinkage)
    kinds: tuple[alignment.Kind, ...] = ("two-way", "slopes")
    if statistics is not None and statistics.degrees > 0 and np.trace(statistics.within) > 0:
        for kind in kinds:
            arrays = reference_arrays(fit_two_way(stack([statistics, statistics]), slopes=kind == "slopes"))
            found_map = local_map(kind, classes, noise, arrays, shrinkage=shrinkage)
            assert np.all(np.isfinite(found_map.matrix))
            assert np.all(np.isfinite(found_map.offset))
        assert np.linalg.eigvalsh(statistics.within).min() >= -1e-10 * np.trace(statistics.within)


def test_noise_of_the_sums_is_given_back() -> None:
    x = RNG.standard_normal((300, D))
    x -= x.mean(axis=0)  # about 0 the noise enters squared only, and nothing is left to project
    clean, noise = gaussian_blocks(x), {"sum": 60.0}
    traces = []
    for _ in range(3000):
        found = site_gaussian({**clean, "sum": clean["sum"] + 60 * RNG.standard_normal(D)}, noise, shrinkage="oas")
        assert found is not None
        traces.append(np.trace(found[1].covariance))
    # Without the correction the mean trace would be low by D (60 / 300)^2 = 0.2.
    error = np.std(traces) / np.sqrt(len(traces))
    assert np.mean(traces) == pytest.approx(np.trace(np.cov(x.T, bias=True)), abs=5 * error)
    assert 5 * error < 0.05


def test_noise_of_classes_and_of_all_together() -> None:
    """Blocks per class carry sqrt K times the noise once they are added up, and shrinkage must be told so."""
    x, y = records(9)
    per_class = class_blocks(x, y)
    seconds = [x[y == c].T @ x[y == c] for c in range(K)]
    per_class |= {"squares": np.array([np.diag(s) for s in seconds]), "products": np.array([s[UPPER] for s in seconds])}
    found = site_gaussian(per_class, {"squares": 6.0, "products": 4.0})
    assert found is not None
    expected = shrink_noised(np.cov(x.T, bias=True), 300, 12.0, 8.0)
    np.testing.assert_allclose(found[1].covariance, expected, atol=1e-10)


def test_refusals() -> None:
    x, y = records(10)
    arrays = reference_arrays(reference())
    with pytest.raises(ValueError, match="tau"):
        local_map("barycenter", gaussian_blocks(x), {}, arrays, tau=1.5)
    with pytest.raises(ValueError, match="alignment"):
        local_map("centroid", gaussian_blocks(x), {}, arrays)  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        local_map("two-way", class_blocks(x, y), {}, arrays)
    for kind, number in (("two-way", 3), ("slopes", 2), ("slopes", 4)):
        other = {alignment.CLASS_MEANS: np.ones((K, D)), alignment.WITHIN: np.eye(D), alignment.SCALARS: np.ones(number)}
        with pytest.raises(ValueError, match="reference"):
            local_map(kind, class_blocks(x, y), {}, other)  # type: ignore[arg-type]
    wrong = {alignment.CLASS_MEANS: np.ones((K + 1, D)), alignment.WITHIN: np.eye(D), alignment.SCALARS: np.ones(2)}
    with pytest.raises(ValueError, match="reference"):
        local_map("two-way", class_blocks(x, y), {}, wrong)


@pytest.mark.parametrize("kind", ["two-way", "slopes"])
def test_directions_without_spread_magnify_no_error_of_the_grid(kind: alignment.Kind) -> None:
    """Indicators of a category sum to 1: the within-class covariance is singular there."""
    rng = np.random.default_rng(11)
    labels = rng.integers(0, 2, 400)
    category = np.eye(4)[np.where(rng.random(400) < 0.3, labels, rng.integers(0, 4, 400))]
    x = np.column_stack([category, rng.normal(labels[:, None], 0.5, (400, 3))])
    x -= x.mean(axis=0)
    member = np.eye(2)[labels]
    second, d = x.T @ x, x.shape[1]
    blocks = {
        "counts": member.sum(axis=0),
        "sums": member.T @ x,
        "squares": np.diag(second),
        "products": second[np.triu_indices(d, 1)],
    }
    means = blocks["sums"] / blocks["counts"][:, None]
    within = np.cov((x - means[labels]).T)
    assert np.linalg.eigvalsh(within)[0] < 1e-12

    def found(error: float) -> AffineMap:
        noise = rng.normal(0.0, error, (d, d))
        reference = {
            "reference.class_means": 0.9 * means + rng.normal(0.0, error, means.shape),
            "reference.within": whitening(within + (noise + noise.T) / 2.0)[2],  # as the iterated mode states it
            "reference.scalars": np.full(2 if kind == "two-way" else 3, 0.05),
        }
        return local_map(kind, blocks, {}, reference)

    exact, rounded = found(0.0), found(1e-8)
    assert np.abs(exact.matrix).max() < 3.0
    np.testing.assert_allclose(rounded.matrix, exact.matrix, atol=0.01)
    np.testing.assert_allclose(rounded.offset, exact.offset, atol=0.01)


def unmixed(shift: np.ndarray, shares: np.ndarray, seed: int, n: int = 4000) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Records of a site with this shift and mix of classes, and a reference with their class means and covariance."""
    rng = np.random.default_rng(seed)
    means, root = 6 * np.random.default_rng(1).standard_normal((K, D)), 0.5 * np.random.default_rng(2).standard_normal((D, D))
    y = rng.choice(K, n, p=shares)
    known = {"reference.class_means": means, "reference.within": root @ root.T, "reference.scalars": np.array([9.0, 1e-3])}
    return means[y] + shift + rng.standard_normal((n, D)) @ root.T, known


@pytest.mark.parametrize("kind", ["two-way", "slopes"])
def test_a_new_sites_shift_is_found_whatever_its_mix_of_classes(kind: alignment.Kind) -> None:
    """The planted shift, to sampling error; the difference of means would be off by the mix, which is far from even here."""
    shift, shares = np.array([0.4, -0.3, 0.2, 0.0, 0.3]), np.array([0.85, 0.05, 0.05, 0.05])
    x, known = unmixed(shift, shares, 3)
    if kind == "slopes":
        known["reference.scalars"] = np.array([9.0, 1e-3, 0.1])
    found = alignment.unlabelled_map(kind, x, known)
    np.testing.assert_array_equal(found.matrix, np.eye(D))
    np.testing.assert_allclose(-found.offset, shift, atol=0.06)
    naive = x.mean(axis=0) - known["reference.class_means"].mean(axis=0)
    assert np.abs(naive - shift).max() > 1.0


def test_a_new_site_is_carried_to_a_barycenter_as_one_that_took_part() -> None:
    x, _ = records(9)
    known = reference_arrays(reference())
    found, expected = alignment.unlabelled_map("barycenter", x, known), local_map("barycenter", gaussian_blocks(x), {}, known)
    np.testing.assert_allclose(found.matrix, expected.matrix, atol=1e-10)
    np.testing.assert_allclose(found.offset, expected.offset, atol=1e-10)


def test_one_record_or_far_ones_give_a_finite_map() -> None:
    for n, far in ((1, 0.0), (3, 1e6)):
        x, known = unmixed(np.full(D, far), np.full(K, 0.25), 4, n)
        assert np.isfinite(alignment.unlabelled_map("two-way", x, known).offset).all()
    with pytest.raises(ValueError, match="must have 3 columns"):
        alignment.unlabelled_map("two-way", x[:, :3], known)
