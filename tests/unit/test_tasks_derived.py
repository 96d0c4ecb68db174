"""Derived tasks: functions of what a site kept, equal to plain numpy's and to what a coordinator would compute per site."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from sklearn.linear_model import Ridge

from support.neighbours import schema
from veilsum_aggregation.alignment import class_statistics, local_map, reference_arrays, site_gaussian, stack
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.gaussian import barycenter
from veilsum_aggregation.moments import symmetric
from veilsum_aggregation.two_way import fit_two_way, two_way_update, whitening
from veilsum_node.errors import HostileInput
from veilsum_privacy.tasks import TASKS, build_task
from veilsum_privacy.tasks.base import DerivedTask
from veilsum_privacy.tasks.formulas import CENTRE, FACTOR, TOTAL

M, K, SITES = 3, 3, 4
STEP = {"width": M, "bound": 50.0}
REACH = {"width": M, "reach": 50.0}


def make(name: str, parameters: dict[str, Any]) -> DerivedTask:
    task = build_task(name, parameters, schema(M).model_copy(update={"max_records": 1000}))
    assert isinstance(task, DerivedTask)
    return task


def site_records(seed: int, n: int = 400) -> tuple[Floats, np.ndarray]:
    """Features and labels of one site, with a spread and a shift of its own."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, K, n)
    means = 2 * np.random.default_rng(99).normal(size=(K, M))
    return means[y] + rng.normal(size=M) + rng.normal(size=(n, M)) @ (np.eye(M) + 0.3 * rng.normal(size=(M, M))), y


def moments(x: Floats, y: np.ndarray | None = None) -> dict[str, Floats]:
    """Blocks of gaussian-moments, or of class-moments where labels are given."""
    second = x.T @ x
    pooled = {"squares": np.diag(second).copy(), "products": second[np.triu_indices(M, 1)]}
    if y is None:
        return {"count": np.array([float(len(x))]), "sum": x.sum(axis=0), **pooled}
    counts = np.array([float((y == c).sum()) for c in range(K)])
    return {"counts": counts, "sums": np.array([x[y == c].sum(axis=0) for c in range(K)]), **pooled}


def split(task: DerivedTask, *arguments: Any) -> dict[str, Floats]:
    vector = task.vector(*arguments)
    assert np.abs(vector).max() <= task.clip()
    return task.layout().split(vector)


def test_every_derived_task_names_its_sources_and_dimension() -> None:
    derived = {name for name, task in TASKS.items() if issubclass(task, DerivedTask)}
    assert derived == {"barycenter-step", "two-way-step", "aligned-moments", "within-moments", "ridge-head"}
    for name in derived:
        assert set(TASKS[name].sources) <= {"gaussian-moments", "class-moments", "power-moments"}  # type: ignore[attr-defined]


def test_barycenter_steps_end_in_the_barycenter() -> None:
    kept = [moments(site_records(seed, 100 * (seed + 2))[0]) for seed in range(SITES)]
    total = sum(blocks["count"] for blocks in kept)
    task, q = make("barycenter-step", STEP), None
    for _ in range(60):
        broadcast = {TOTAL: total, **({} if q is None else {FACTOR: q})}
        parts = [split(task, blocks, {}, broadcast) for blocks in kept]
        assert sum(part["weight"][0] for part in parts) == pytest.approx(1)
        q = sum(part["term"] for part in parts)
    assert q is not None
    proxies = [site_gaussian(blocks, {}) for blocks in kept]
    found = [proxy for proxy in proxies if proxy is not None]
    numbers = np.array([number for number, _ in found])
    expected = barycenter(
        np.array([g.mean for _, g in found]), np.array([g.covariance for _, g in found]), numbers / numbers.sum()
    )
    s = q.T @ q
    np.testing.assert_allclose(s, expected.gaussian.covariance, rtol=1e-9, atol=1e-12)
    # The fixed point in square roots, which nothing above uses.
    root = sqrtm(s)
    fixed = sum(n / numbers.sum() * sqrtm(root @ g.covariance @ root) for n, g in found)
    np.testing.assert_allclose(np.real(fixed), s, atol=1e-8)


def test_equal_weights_and_counts_within_their_noise() -> None:
    blocks, task = moments(site_records(0)[0]), make("barycenter-step", {**STEP, "weights": "equal"})
    assert split(task, blocks, {}, {})["weight"][0] == pytest.approx(1)
    drowned = {"count": 200.0, "sum": 1.0, "squares": 1.0, "products": 1.0}
    assert not task.vector(blocks, drowned, {}).any()
    more = make("barycenter-step", STEP)
    assert split(more, blocks, {}, {TOTAL: np.array([100.0])})["weight"][0] == 1.0, "a share is at most the whole"


@pytest.mark.parametrize(
    "broadcast",
    [
        {},
        {TOTAL: np.array([0.0])},
        {TOTAL: np.array([np.nan])},
        {TOTAL: np.ones(2)},
        {TOTAL: np.ones(1), FACTOR: np.eye(M + 1)},
        {TOTAL: np.ones(1), FACTOR: np.full((M, M), np.inf)},
    ],
)
def test_a_broadcast_that_does_not_fit_a_step_is_refused(broadcast: dict[str, Floats]) -> None:
    with pytest.raises(HostileInput, match="broadcast"):
        make("barycenter-step", STEP).vector(moments(site_records(0)[0]), {}, broadcast)


def test_two_way_steps_end_in_the_reference_of_per_site_moments() -> None:
    kept = [moments(*site_records(seed)) for seed in range(SITES)]
    statistics = [item for item in (class_statistics(blocks, {}) for blocks in kept) if item is not None]
    expected = fit_two_way(stack(statistics), rounds=10)
    first = [split(make("two-way-step", {**STEP, "step": "within"}), blocks, {}, {}) for blocks in kept]
    degrees = sum(part["degrees"][0] for part in first)
    assert degrees == sum(item.degrees for item in statistics)
    within = sum(part["within"] for part in first) / degrees
    np.testing.assert_allclose(within, expected.within, atol=1e-12)
    task, scalars = make("two-way-step", {**STEP, "step": "effects"}), np.array([0.3, 0.3])
    _, colour, _ = whitening(within)
    reference: dict[str, Floats] = {"reference.within": within}
    for _ in range(11):
        parts = [split(task, blocks, {}, {**reference, "reference.scalars": scalars}) for blocks in kept]
        sums = {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}
        assert sums["weights"].max() <= SITES
        whitened, v_d, v_e = two_way_update(sums, float(scalars[0]), float(scalars[1]))
        reference["reference.class_means"], scalars = whitened @ colour, np.array([v_d, v_e])
    np.testing.assert_allclose(reference["reference.class_means"], expected.class_means, atol=1e-10)
    np.testing.assert_allclose(scalars, [expected.shift_variance, expected.residual_variance], rtol=1e-10)


def test_a_centre_moves_the_class_means_alone() -> None:
    task, blocks = make("two-way-step", {**STEP, "step": "effects"}), moments(*site_records(1))
    means, centre, within = np.arange(K * M).reshape(K, M) / 4.0, np.array([3.0, -1.0, 2.0]), np.diag([1.0, 2.0, 0.5])
    given = {"reference.within": within, "reference.scalars": np.array([0.4, 0.2])}
    plain = split(task, blocks, {}, {**given, "reference.class_means": means})
    moved = split(task, blocks, {}, {**given, "reference.class_means": means - centre, CENTRE: centre})
    for name in ("weights", "shift", "residual"):
        np.testing.assert_allclose(moved[name], plain[name], rtol=1e-10)
    whitened = centre / np.sqrt(np.diag(within))
    np.testing.assert_allclose(moved["weighted"], plain["weighted"] - plain["weights"][:, None] * whitened, atol=1e-10)


@pytest.mark.parametrize("name", ["reference.within", "reference.scalars", "reference.class_means"])
@pytest.mark.parametrize("wrong", [np.zeros((2, 2)), np.full((M, M), np.nan), -np.eye(M), -np.ones(2)])
def test_a_reference_that_does_not_fit_is_refused(name: str, wrong: Floats) -> None:
    good = {
        "reference.within": np.eye(M),
        "reference.scalars": np.ones(2),
        "reference.class_means": np.zeros((K, M)),
    }
    task, blocks = make("two-way-step", {**STEP, "step": "effects"}), moments(*site_records(1))
    task.vector(blocks, {}, good)
    if name == "reference.class_means" and wrong.shape == (K, M) and np.isfinite(wrong).all():
        return  # any finite class means will do
    with pytest.raises(HostileInput, match="reference"):
        task.vector(blocks, {}, {**good, name: wrong})


def references() -> dict[str, dict[str, Floats]]:
    kept = [moments(*site_records(seed)) for seed in range(SITES)]
    statistics = [item for item in (class_statistics(blocks, {}) for blocks in kept) if item is not None]
    found = [item for item in (site_gaussian(blocks, {}) for blocks in kept) if item is not None]
    target = barycenter(np.array([g.mean for _, g in found]), np.array([g.covariance for _, g in found]), np.ones(SITES))
    return {"two-way": reference_arrays(fit_two_way(stack(statistics))), "barycenter": reference_arrays(target.gaussian)}


@pytest.mark.parametrize("kind", ["two-way", "barycenter"])
@pytest.mark.parametrize("each", [False, True])
def test_aligned_moments_are_those_of_the_aligned_records(kind: Any, each: bool) -> None:
    x, y = site_records(2)
    kept, reference = moments(x, y), references()[kind]
    own = local_map(kind, kept, {}, reference, tau=0.4)
    assert np.abs(own.matrix - np.eye(M)).max() > 1e-3
    if each:
        parts = [moments(x[y == c]) for c in range(K)]
        kept |= {name: np.array([part[name] for part in parts]) for name in ("squares", "products")}
    got = split(make("aligned-moments", {**REACH, "alignment": {"kind": kind, "tau": 0.4}}), kept, {}, reference)
    expected = moments(x @ own.matrix.T + own.offset, y)
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-9, atol=1e-8)
    assert got["gain"][0] == pytest.approx(np.trace(own.matrix @ own.matrix.T) / M)


def test_a_site_within_its_noise_keeps_its_moments_as_they_are() -> None:
    kept, drowned = moments(*site_records(3)), {"counts": 500.0, "sums": 1.0, "squares": 1.0, "products": 1.0}
    task = make("aligned-moments", {**REACH, "alignment": {"kind": "two-way", "tau": 0.4}})
    got = split(task, kept, drowned, references()["two-way"])
    for name, values in kept.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-12, atol=1e-9)
    assert got["gain"] == pytest.approx(1)


def test_aligned_moments_need_a_reference_and_a_map_of_their_own() -> None:
    task = make("aligned-moments", {**REACH, "alignment": {"kind": "two-way", "tau": 0.4}})
    with pytest.raises(HostileInput, match="no reference"):
        task.vector(moments(*site_records(3)), {}, {})
    with pytest.raises(HostileInput, match="its own map"):
        make("aligned-moments", {**REACH, "alignment": {"kind": "broadcast", "tau": 0.4}})
    by_moments = {"kind": "moments", "tau": 0.4, "moments": {"order": 2, "adjust": "both"}}
    with pytest.raises(HostileInput, match="its own map"):
        make("aligned-moments", {**REACH, "alignment": by_moments})


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6), st.floats(0.01, 1e4), st.sampled_from(["barycenter-step", "within", "effects", "aligned-moments"])
)
def test_noised_moments_of_any_size_give_finite_vectors(seed: int, noise: float, kind: str) -> None:
    rng = np.random.default_rng(seed)
    kept = {name: values + noise * rng.normal(size=values.shape) for name, values in moments(*site_records(seed)).items()}
    std = dict.fromkeys(kept, noise)
    if kind == "aligned-moments":
        name, parameters = kind, {**REACH, "alignment": {"kind": "two-way", "tau": 0.4}}
    elif kind == "barycenter-step":
        name, parameters = kind, STEP
    else:
        name, parameters = "two-way-step", {**STEP, "step": kind}
    broadcast = {**references()["two-way"], TOTAL: np.array([1600.0])}
    assert np.isfinite(make(name, parameters).vector(kept, std, broadcast)).all()


def test_products_may_be_absent() -> None:
    task = build_task("aligned-moments", {"reach": 5, "alignment": {"kind": "two-way", "tau": 0.4}}, schema(1))
    assert [block.name for block in task.layout().blocks] == ["counts", "sums", "squares", "gain"]
    np.testing.assert_array_equal(symmetric(np.ones(1), np.zeros(0)), [[1]])


# Heads of a site's own moments.

RIDGE = {"width": M, "ridge": 0.05, "bias": 0.4, "prior": 0.3, "reach": 50.0}


def ridges(x: Floats, y: np.ndarray, ridge: float = 0.05, bias: float = 0.4) -> tuple[Floats, Floats]:
    """Weights (K, M) and biases (K,) by scikit-learn's ridge regression on indicators of classes, of records."""
    wide = np.column_stack([x, np.full(len(x), bias)])
    fit = Ridge(alpha=ridge * len(x), fit_intercept=False, solver="svd").fit(wide, K * np.eye(K)[y] - 1.0)
    return fit.coef_[:, :M], 0.3 * (K * np.bincount(y, minlength=K) / len(y) - 1) - fit.coef_[:, :M] @ x.mean(axis=0)


@pytest.mark.parametrize("seed", range(4))
def test_a_head_of_moments_is_scikit_learns_of_the_records(seed: int) -> None:
    x, y = site_records(seed)
    if seed == 1:
        y = np.where(y == 2, 0, y)  # a site that lacks a class
    if seed == 2:
        x[:, 2] = x[:, 1]  # and features that say the same twice
    found = split(make("ridge-head", RIDGE), moments(x, y), {}, {})
    weights, bias = ridges(x, y)
    np.testing.assert_allclose(found["weights"], weights, atol=1e-9)
    np.testing.assert_allclose(found["bias"], bias, atol=1e-9)
    assert found["noise"][0] == 0.0


def test_a_head_after_the_sites_own_map_is_that_of_mapped_records() -> None:
    kept = [moments(*site_records(seed)) for seed in range(SITES)]
    statistics = [item for item in (class_statistics(blocks, {}) for blocks in kept) if item is not None]
    reference = reference_arrays(fit_two_way(stack(statistics), rounds=10))
    asked = {**RIDGE, "alignment": {"kind": "two-way", "tau": 0.4}}
    for seed, blocks in enumerate(kept):
        x, y = site_records(seed)
        own = local_map("two-way", blocks, {}, reference, tau=0.4)
        weights, bias = ridges(x @ own.matrix.T + own.offset, y)
        found = split(make("ridge-head", asked), blocks, {}, reference)
        np.testing.assert_allclose(found["weights"], weights, atol=1e-7)
        np.testing.assert_allclose(found["bias"], bias, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(-6, 6), st.floats(-4, 4))
def test_no_moments_make_a_head_longer_than_is_clamped(seed: int, size: float, noise: float) -> None:
    """Of records of all sizes, and of what noise alone gives, which need not be moments of anything."""
    rng = np.random.default_rng(seed)
    x, y = site_records(seed, int(rng.integers(1, 60)))
    task = make("ridge-head", {**RIDGE, "ridge": 10.0 ** rng.uniform(-6, 3), "bias": 10.0 ** rng.uniform(-3, 3)})
    blocks, std = moments(x * 10.0**size, y), {}
    clear = split(task, blocks, {}, {})
    assert np.linalg.norm(clear["weights"], axis=1).max() <= task.clip() * (1 + 1e-9)
    if seed % 2:
        std = dict.fromkeys(blocks, 10.0**noise)
        blocks = {name: array + std[name] * rng.normal(size=array.shape) for name, array in blocks.items()}
    assert np.isfinite(task.vector(blocks, std, {})).all()


@pytest.mark.parametrize("second", [0.0, 20.0])
def test_the_stated_noise_of_a_head_is_what_noise_in_moments_makes(second: float) -> None:
    x, y = site_records(0, 4000)
    blocks, std = moments(x, y), {"counts": 3.0, "sums": 5.0, "squares": second, "products": second / 2**0.5}
    task, rng = make("ridge-head", RIDGE), np.random.default_rng(1)
    clear, drawn = split(task, blocks, std, {}), []
    for _ in range(400):
        changed = {name: array + std.get(name, 0.0) * rng.normal(size=array.shape) for name, array in blocks.items()}
        drawn.append(float(((split(task, changed, std, {})["weights"] - clear["weights"]) ** 2).sum()))
    # to first order, and of 400 draws of some 9 degrees of freedom
    assert np.mean(drawn) == pytest.approx(clear["noise"][0], rel=0.25)


def test_a_site_within_its_noise_gives_no_head_and_odd_alignments_are_refused() -> None:
    blocks = moments(*site_records(0))
    assert not make("ridge-head", RIDGE).vector(blocks, {"counts": 200.0}, {}).any()
    with pytest.raises(HostileInput, match="makes its own map"):
        make("ridge-head", {**RIDGE, "alignment": {"kind": "broadcast", "tau": 1.0}})
    with pytest.raises(HostileInput, match="label"):
        build_task("ridge-head", RIDGE, schema(M, label=False))
