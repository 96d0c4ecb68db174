"""Tasks of moments on features: bounds against a search for longer records, sums against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.covariance import ledoit_wolf

from support.neighbours import moments_parameters, random_records, schema, spoil
from support.plain_sums import site_sum
from support.studies import complete
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.moments import covariance, symmetric
from veilsum_aggregation.shrinkage import centred_fourth, shrink_ledoit_wolf
from veilsum_node.errors import HostileInput
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.sums import rows_sum
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records, RowTask
from veilsum_privacy.tasks.class_mixtures import CENTRES
from veilsum_privacy.tasks.features import second_moment_bound
from veilsum_privacy.tasks.parameters import FeatureParameters

WIDTH = 4
MAPPED = {"width": WIDTH}


def make(name: str, parameters: dict[str, Any], agreed: Any = None) -> RowTask:
    task = build_task(name, parameters, schema(WIDTH) if agreed is None else agreed)
    assert isinstance(task, RowTask)
    return task


def blocks(task: RowTask, records: Records, broadcast: dict[str, Floats] | None = None) -> dict[str, Floats]:
    rows = np.concatenate(list(task_rows(task, records, broadcast or {})))
    assert np.linalg.norm(rows, axis=1).max(initial=0.0) <= task.clip() * (1 + 1e-12)
    return task.layout().split(rows.sum(axis=0))


def mapped_records(seed: int, n: int, scale: float = 3.0) -> Records:
    """Records with features as a map leaves them: of any size, there as a whole or not at all."""
    rng = np.random.default_rng(seed)
    present = np.repeat(rng.random(n)[:, None] < 0.9, WIDTH, axis=1)
    return Records(np.where(present, scale * rng.normal(size=(n, WIDTH)), 0.0), present, rng.integers(-1, 3, n))


def clipped_rows(records: Records, clip: float, *, box: bool, keep: np.ndarray) -> Floats:
    x = np.clip(records.features, -1, 1) if box else records.features
    return np.array([row * min(1.0, clip / max(float(np.sqrt(row @ row)), 1e-300)) for row in x[keep]])


def second_moments(x: Floats) -> tuple[Floats, Floats]:
    second = x.T @ x
    return np.diag(second), second[np.triu_indices(len(second), 1)]


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("missing", ["skip", "centre"])
def test_gaussian_moments_equal_numpy(mapped: bool, missing: str) -> None:
    records = mapped_records(0, 3000) if mapped else random_records(np.random.default_rng(0), 3000, schema(WIDTH))
    parameters = moments_parameters(1.3, 0.7, 1.1, 2.0, 0.4, missing) | (MAPPED if mapped else {})
    got = blocks(make("gaussian-moments", parameters), records)
    whole = records.present.all(axis=1)
    keep = whole if missing == "skip" or mapped else np.ones(len(records), dtype=np.bool_)
    assert keep.sum() < len(records) or missing == "centre"
    x = clipped_rows(records, 1.3, box=not mapped, keep=keep)
    squares, products = second_moments(x)
    np.testing.assert_allclose(got["count"], [keep.sum()], rtol=1e-12)
    for name, expected in (("sum", x.sum(axis=0)), ("squares", squares), ("products", products)):
        np.testing.assert_allclose(got[name], expected, rtol=1e-10, atol=1e-9)


def test_gaussian_moments_read_no_label() -> None:
    records = mapped_records(1, 200)
    task = make("gaussian-moments", moments_parameters(2, 1, 1, 1, 1) | MAPPED)
    unlabelled = Records(records.features, records.present, None)
    np.testing.assert_array_equal(next(task_rows(task, records, {})), next(task_rows(task, unlabelled, {})))
    make("gaussian-moments", moments_parameters(2, 1, 1, 1, 1), schema(WIDTH, label=False))


def test_fourth_moments_give_ledoit_wolf() -> None:
    records = mapped_records(2, 40)
    task = make("gaussian-moments", moments_parameters(20, 1, 1, 1, 1) | MAPPED | {"fourth": True})
    got = blocks(task, records)
    number, second = float(got["count"][0]), symmetric(got["squares"], got["products"])
    fourth = centred_fourth(number, got["sum"], second, got["cubic"], float(got["quartic"][0]))
    found = shrink_ledoit_wolf(covariance(number, got["sum"], second), number, fourth)
    np.testing.assert_allclose(found, ledoit_wolf(records.features[records.present.all(axis=1)])[0], rtol=1e-9)
    assert task.only_without_noise()


@pytest.mark.parametrize("mapped", [False, True])
def test_second_moments_of_each_class_equal_numpy(mapped: bool) -> None:
    records = mapped_records(3, 2000) if mapped else random_records(np.random.default_rng(3), 2000, schema(WIDTH))
    parameters = moments_parameters(1.3, 0.7, 1.1, 2.0, 0.4) | (MAPPED if mapped else {})
    each, diagonal, pooled, none = (
        blocks(make("class-moments", parameters | {"second": second}), records)
        for second in ("class", "class-diagonal", "pooled", "none")
    )
    assert records.labels is not None
    for c in range(3):
        keep = (records.labels == c) & records.present.all(axis=1)
        x = clipped_rows(records, 1.3, box=not mapped, keep=keep)
        squares, products = second_moments(x)
        np.testing.assert_allclose(each["squares"][c], squares, rtol=1e-10)
        np.testing.assert_allclose(each["products"][c], products, atol=1e-9)
        np.testing.assert_allclose(each["counts"][c], len(x))
        np.testing.assert_allclose(each["sums"][c], x.sum(axis=0), atol=1e-9)
    np.testing.assert_allclose(diagonal["squares"], each["squares"], rtol=1e-12)
    np.testing.assert_allclose(pooled["squares"], each["squares"].sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(pooled["products"], each["products"].sum(axis=0), atol=1e-9)
    assert set(none) == {"counts", "sums"}
    assert set(diagonal) == {"counts", "sums", "squares"}
    prototypes = {"clip": 1.3, "missing": "skip", "count_weight": 0.7, "sum_weight": 1.1} | (MAPPED if mapped else {})
    found = blocks(make("prototypes", prototypes), records)
    for name in none:
        np.testing.assert_array_equal(found[name], none[name])


def longest_found(clip: float, width: int, square: float, product: float, *, box: bool, seed: int) -> float:
    """The largest squared norm of a record's second moments that a search finds, starting from several places."""
    rng = np.random.default_rng(seed)

    def feasible(v: Floats) -> Floats:
        x = np.clip(v, -1, 1) if box else v
        return x * min(1.0, clip / max(float(np.linalg.norm(x)), 1e-12))

    def squared(v: Floats) -> float:
        x2 = feasible(v) ** 2
        return float(square**2 * np.sum(x2**2) + product**2 * (np.sum(x2) ** 2 - np.sum(x2**2)))

    starts = [*(clip * rng.normal(size=(12, width))), np.full(width, clip), clip * np.eye(width)[0], *np.tri(width)]
    found = [minimize(lambda v: -squared(v), start, method="Nelder-Mead", options={"maxiter": 400}) for start in starts]
    return max(-result.fun for result in found)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.2, 3), st.integers(1, 3), st.floats(0.1, 3), st.floats(0.1, 3), st.booleans(), st.integers(0, 1000))
def test_the_bound_of_second_moments_is_the_maximum(
    clip: float, width: int, square: float, product: float, box: bool, seed: int
) -> None:
    parameters = FeatureParameters(width=None if box else width, clip=clip, missing="skip")
    e = 0.0 if width == 1 else product
    bound = second_moment_bound(parameters, schema(width), square, e)
    found = longest_found(clip, width, square, e, box=box, seed=seed)
    assert found <= bound * (1 + 1e-9)
    assert found >= 0.995 * bound


@pytest.mark.sampled(5)
@pytest.mark.parametrize("clip", [0.4, 1.0, 1.7, 9.0])
@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (0.1, 0.1, 3.0, 0.2), (0.1, 0.1, 0.2, 3.0)])
@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("class-moments", "class"),
        ("class-moments", "class-diagonal"),
        ("class-moments", "none"),
        ("gaussian-moments", "pooled"),
    ],
)
def test_the_worst_mapped_record_reaches_the_bound(
    clip: float, weights: tuple[float, float, float, float], name: str, second: str
) -> None:
    more = {"second": second} if name == "class-moments" else {}
    task = make(name, moments_parameters(clip, *weights) | MAPPED | more)
    rows = clip * np.array([np.eye(WIDTH)[0], np.full(WIDTH, WIDTH**-0.5)])
    records = complete(10 * rows, np.array([0, 2]))
    reached = np.linalg.norm(next(task_rows(task, records, {})), axis=1).max()
    assert 0.9999 * task.clip() <= reached <= task.clip() * (1 + 1e-12)


MIXED = {"clip": 2.0, "missing": "skip", "count_weight": 0.5, "sum_weight": 2.0, "square_weight": 1.5, **MAPPED}


def test_class_mixtures_equal_numpy() -> None:
    records = mapped_records(4, 4000)
    centres = np.random.default_rng(5).normal(size=(3, 5, WIDTH))
    got = blocks(make("class-mixtures", {**MIXED, "components": 5}), records, {CENTRES: centres})
    assert records.labels is not None
    keep = (records.labels >= 0) & records.present.all(axis=1)
    x, y = clipped_rows(records, 2.0, box=False, keep=keep), records.labels[keep]
    nearest = np.array([np.argmin(((row - centres[c]) ** 2).sum(axis=1)) for row, c in zip(x, y, strict=True)])
    for c in range(3):
        for g in range(5):
            mine = x[(y == c) & (nearest == g)]
            np.testing.assert_allclose(got["counts"][c, g], len(mine))
            np.testing.assert_allclose(got["sums"][c, g], mine.sum(axis=0), atol=1e-9)
            np.testing.assert_allclose(got["squares"][c, g], (mine**2).sum(axis=0), atol=1e-9)


def test_one_component_is_the_class_and_needs_no_centres() -> None:
    records = mapped_records(6, 500)
    got = blocks(make("class-mixtures", {**MIXED, "components": 1}), records)
    parameters = moments_parameters(2.0, 0.5, 2.0, 1.5, 1.0) | MAPPED | {"second": "class-diagonal"}
    expected = blocks(make("class-moments", parameters), records)
    for name in ("counts", "sums", "squares"):
        np.testing.assert_array_equal(got[name][:, 0], expected[name])


def test_the_component_is_the_same_in_any_company() -> None:
    """Records halfway between two centres: a last bit would move them."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(3, 2, WIDTH))
    n = 600
    labels = rng.integers(0, 3, n)
    apart = centres[labels, 1] - centres[labels, 0]
    along = rng.normal(size=(n, WIDTH))
    along -= (np.sum(along * apart, axis=1) / np.sum(apart * apart, axis=1))[:, None] * apart
    x = centres[labels].mean(axis=1) + 0.3 * along
    task = make("class-mixtures", {**MIXED, "clip": 50.0, "components": 2})
    records = complete(np.asfortranarray(x), labels)
    together = np.concatenate(list(task_rows(task, records, {CENTRES: centres})))
    first = together[:, [0, 2, 4]].sum(axis=1) > 0
    assert 0.1 < first.mean() < 0.9, "rounding decides, or the test shows nothing"
    for order in (np.arange(n)[::-1], rng.permutation(n), *np.arange(0, n, 23)[:, None]):
        rows = np.concatenate(list(task_rows(task, records.take(order), {CENTRES: centres})))
        np.testing.assert_array_equal(rows, together[order])


@pytest.mark.parametrize("centres", [None, np.zeros((3, 2)), np.full((3, 5, WIDTH), np.nan)])
def test_wrong_centres_are_refused(centres: Floats | None) -> None:
    task = make("class-mixtures", {**MIXED, "components": 5})
    with pytest.raises(HostileInput, match="mixture"):
        next(task_rows(task, mapped_records(8, 3), {} if centres is None else {CENTRES: centres}))


def test_features_too_long_to_square_do_no_harm() -> None:
    records = complete(np.array([[1e300, -1e300, 0, 0]]), np.array([1]))
    for name, parameters in (
        ("gaussian-moments", moments_parameters(2, 1, 1, 1, 1)),
        ("class-moments", moments_parameters(2, 1, 1, 1, 1)),
        ("class-mixtures", {**MIXED, "components": 1}),
    ):
        row = next(task_rows(make(name, {**parameters, **MAPPED}), records, {}))
        assert np.isfinite(row).all()


@pytest.mark.parametrize("second", ["class", "class-diagonal", "none"])
def test_class_by_class_is_the_same_sum(second: str) -> None:
    """What the kernel adds up without zeros is what it would with them."""
    agreed = schema(4, imputed=1)
    parameters = {**moments_parameters(1.1, 1, 1, 1, 1, "centre"), "second": second}
    task = build_task("class-moments", parameters, agreed)
    assert isinstance(task, RowTask)
    records = spoil(random_records(np.random.default_rng(7), 400, agreed), np.random.default_rng(8))
    found = rows_sum(Evaluation(task.traced({})), records, task.clip(), 2**20, persons=None, units=None)
    whole = site_sum(task_rows(task, records, {}), task.layout().size, task.clip(), 2**20, 2**40)
    assert np.abs(found.total - whole.total).max() <= 4
    assert abs(found.clipped - whole.clipped) <= 8  # a vector at the bound is longer by a last bit one way, not the other
    assert found.invalid == whole.invalid > 0
