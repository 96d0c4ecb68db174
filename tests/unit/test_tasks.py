"""Tasks: what one record changes never exceeds the stated bound and can reach it; sums equal plain numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from veilsum_privacy.errors import HostileInput
from veilsum_privacy.schema import CategoryColumn, ClassValues, Column, DatasetSchema, Label, NumberColumn
from veilsum_privacy.tasks import TASKS, build_task
from veilsum_privacy.tasks.base import Block, Floats, Layout, Records, Task, balanced_weights, batches

LABEL = Label(column="y", classes=tuple(ClassValues(name=f"c{i}", values=(str(i),)) for i in range(3)))


def schema(numbers: int, *, imputed: int = 0, categories: tuple[int, ...] = (), label: bool = True) -> DatasetSchema:
    columns: list[Column] = [
        NumberColumn(name=f"n{i}", low=0, high=1, impute=0.5 if i < imputed else None) for i in range(numbers)
    ]
    columns += [CategoryColumn(name=f"k{i}", categories=tuple("abcdefgh"[:k])) for i, k in enumerate(categories)]
    return DatasetSchema(columns=tuple(columns), label=LABEL if label else None)


def moments_parameters(clip: float, a: float, b: float, c: float, e: float, missing: str = "skip") -> dict[str, object]:
    weights = {"count_weight": a, "sum_weight": b, "square_weight": c, "product_weight": e}
    return {"clip": clip, "missing": missing, **weights}


def total(task: Task, records: Records) -> Floats:
    result = np.zeros(task.layout().size)
    for batch in task.vectors(records, {}):
        assert batch.shape[1] == task.layout().size
        assert np.linalg.norm(batch, axis=1).max(initial=0.0) <= task.clip() * (1 + 1e-12)
        result += batch.sum(axis=0)
    return result


def random_records(rng: np.random.Generator, n: int, agreed: DatasetSchema, *, complete: bool = False) -> Records:
    features, present = np.zeros((n, agreed.width)), np.zeros((n, agreed.width), dtype=np.bool_)
    offset = 0
    for column in agreed.columns:
        known = np.ones(n, dtype=np.bool_) if complete else rng.random(n) < 0.8
        if isinstance(column, NumberColumn):
            values = rng.uniform(-1, 1, (n, 1))
        else:
            values = np.eye(column.width)[rng.integers(0, column.width, n)]
        features[:, offset : offset + column.width] = values * known[:, None]
        present[:, offset : offset + column.width] = known[:, None]
        offset += column.width
    low = 0 if complete else -1
    return Records(features, present, rng.integers(low, 3, n) if agreed.label is not None else None)


def test_registry() -> None:
    assert set(TASKS) >= {"statistics", "class-moments"}
    with pytest.raises(HostileInput, match="Did you mean 'statistics'"):
        build_task("statistic", {}, schema(2))
    with pytest.raises(HostileInput, match=r"clap: unknown key. Did you mean 'clip'"):
        build_task("class-moments", {**moments_parameters(1, 1, 1, 1, 1), "clap": 1}, schema(2))
    for parameters in ({}, moments_parameters(-1, 1, 1, 1, 1), moments_parameters(float("nan"), 1, 1, 1, 1)):
        with pytest.raises(HostileInput):
            build_task("class-moments", parameters, schema(2))
    with pytest.raises(HostileInput, match="needs a label"):
        build_task("class-moments", moments_parameters(1, 1, 1, 1, 1), schema(2, label=False))
    with pytest.raises(HostileInput):
        build_task("statistics", {"anything": 1}, schema(2))


def test_statistics_equals_numpy() -> None:
    agreed = schema(3, imputed=1, categories=(2, 4))
    records = random_records(np.random.default_rng(0), 5000, agreed)
    task = build_task("statistics", {}, agreed)
    got = task.layout().split(total(task, records))
    x, present = records.features, records.present
    assert records.labels is not None
    np.testing.assert_allclose(got["records"], [5000], rtol=1e-12)
    np.testing.assert_array_equal(got["present"], present[:, 1:3].sum(axis=0))
    np.testing.assert_allclose(got["t1"], x[:, :3].sum(axis=0), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose((got["t2"] + present[:, :3].sum(axis=0)) / 2, (x[:, :3] ** 2).sum(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(got["categories"], x[:, 3:].sum(axis=0))
    np.testing.assert_allclose(got["classes"], [np.sum(records.labels == k) for k in range(3)], rtol=1e-12)


@pytest.mark.parametrize("missing", ["skip", "centre"])
@pytest.mark.parametrize("numbers", [1, 5])
def test_class_moments_equals_numpy(missing: str, numbers: int) -> None:
    agreed = schema(numbers)
    records = random_records(np.random.default_rng(1), 9000, agreed)
    task = build_task("class-moments", moments_parameters(1.3, 0.7, 1.1, 2.0, 0.4, missing), agreed)
    got = task.layout().split(total(task, records))
    assert records.labels is not None
    keep = records.labels >= 0
    if missing == "skip":
        keep &= records.present.all(axis=1)
    x, y = records.features[keep].copy(), records.labels[keep]
    for index, row in enumerate(x):
        if (norm := np.sqrt(np.sum(row**2))) > 1.3:
            x[index] = row * 1.3 / norm
    second = x.T @ x
    np.testing.assert_allclose(got["counts"], [np.sum(y == k) for k in range(3)])
    np.testing.assert_allclose(got["sums"], [x[y == k].sum(axis=0) for k in range(3)], atol=1e-9)
    np.testing.assert_allclose(got["squares"], np.diag(second))
    if numbers > 1:
        np.testing.assert_allclose(got["products"], second[np.triu_indices(numbers, 1)], atol=1e-9)


def test_known_sensitivities() -> None:
    for clip in (0.3, 1.0):  # beyond 1 the bounds of single features make it smaller
        task = build_task("class-moments", moments_parameters(clip, 1, 1, 1, 1), schema(7))
        assert task.clip() == pytest.approx(np.sqrt(1 + clip**2 + clip**4), rel=1e-12)
    # 3 presences, 4 numbers, 1 categorical column; records and classes an eighth of that each
    assert build_task("statistics", {}, schema(4, imputed=1, categories=(3,))).clip() == pytest.approx(
        np.sqrt((3 + 8 + 1) * (1 + 2 / 8))
    )
    assert build_task("statistics", {}, schema(4, imputed=4, label=False)).clip() == pytest.approx(3.0)


WEIGHT = st.floats(0.05, 5)
VALUES = arrays(np.float64, (2, 6), elements=st.floats(-1, 1) | st.sampled_from([-1.0, 0.0, 1.0]))


@settings(max_examples=150, deadline=None)
@given(st.floats(0.05, 6), st.tuples(WEIGHT, WEIGHT, WEIGHT, WEIGHT), VALUES, st.integers(0, 2))
def test_class_moments_neighbours_stay_within_the_bound(
    clip: float, weights: tuple[float, float, float, float], values: Floats, label: int
) -> None:
    task = build_task("class-moments", moments_parameters(clip, *weights), schema(6))
    both = Records(values, np.ones(values.shape, dtype=np.bool_), np.array([label, (label + 1) % 3]))
    one = Records(values[:1], both.present[:1], np.array([label]))
    change = total(task, both) - total(task, one)
    assert np.linalg.norm(change) <= task.clip() * (1 + 1e-9)


@pytest.mark.parametrize("clip", [0.2, 1.0, 1.7, 2.0, 2.3, 9.0])
@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (0.1, 0.1, 3.0, 0.2), (0.1, 0.1, 0.2, 3.0), (2.0, 1.0, 0.5, 0.1)])
def test_class_moments_worst_record_reaches_the_bound(clip: float, weights: tuple[float, float, float, float]) -> None:
    width = 6
    task = build_task("class-moments", moments_parameters(clip, *weights), schema(width))
    squared = min(clip**2, width)
    concentrated, left = np.zeros(width), squared
    for i in range(width):
        concentrated[i] = np.sqrt(min(1.0, left))
        left = max(0.0, left - concentrated[i] ** 2)
    spread = np.full(width, np.sqrt(squared / width))
    reached = []
    for row in (concentrated, spread):
        record = Records(row[None], np.ones((1, width), dtype=np.bool_), np.array([1]))
        reached.append(np.linalg.norm(total(task, record)))
    assert max(reached) <= task.clip() * (1 + 1e-12)
    assert max(reached) >= 0.9999 * task.clip()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.booleans())
def test_statistics_records_stay_within_the_bound(seed: int, imputed: int, label: bool) -> None:
    agreed = schema(4, imputed=imputed, categories=(2, 5), label=label)
    task = build_task("statistics", {}, agreed)
    records = random_records(np.random.default_rng(seed), 30, agreed)
    total(task, records)  # checks every row


@pytest.mark.parametrize(("imputed", "label"), [(0, True), (2, False)])
def test_statistics_worst_record_reaches_the_bound(imputed: int, label: bool) -> None:
    agreed = schema(4, imputed=imputed, categories=(2, 5), label=label)
    task = build_task("statistics", {}, agreed)
    records = random_records(np.random.default_rng(0), 1, agreed, complete=True)
    records.features[:, :4] = [1, -1, 1, -1]
    assert np.linalg.norm(total(task, records)) == pytest.approx(task.clip(), rel=1e-12)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_no_records_give_no_batch(name: str) -> None:
    agreed = schema(2)
    parameters = moments_parameters(1, 1, 1, 1, 1) if name == "class-moments" else {}
    empty = Records(np.zeros((0, 2)), np.zeros((0, 2), dtype=np.bool_), np.zeros(0, dtype=np.int64))
    assert not list(build_task(name, parameters, agreed).vectors(empty, {}))


def test_layout_divides_weights_out() -> None:
    layout = Layout((Block("a", (2,), 4.0), Block("b", (1, 2))))
    blocks = layout.split(np.array([4.0, 8.0, 3.0, 5.0]))
    np.testing.assert_array_equal(blocks["a"], [1, 2])
    np.testing.assert_array_equal(blocks["b"], [[3, 5]])
    assert layout.noise_std(2.0) == {"a": 0.5, "b": 2.0}
    with pytest.raises(ValueError, match="4 values"):
        layout.split(np.zeros(3))


def test_batches_cover_every_record_once() -> None:
    for records, size in ((10_000, 3), (5, 2**23), (0, 1)):
        rows = np.concatenate([np.arange(records)[part] for part in batches(records, size)] or [np.zeros(0)])
        np.testing.assert_array_equal(rows, np.arange(records))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 10), st.integers(1, 1000), st.floats(0.01, 10)), min_size=2, max_size=4), st.data())
def test_balanced_weights_are_optimal(blocks: list[tuple[float, int, float]], data: st.DataObject) -> None:
    norms, sizes, importances = zip(*blocks, strict=True)
    best = np.array(balanced_weights(norms, sizes, importances))

    def error(weights: Floats) -> float:
        cost = np.sum(weights**2 * np.array(norms) ** 2)
        return float(cost * np.sum(np.array(importances) * np.array(sizes) / weights**2))

    factors = data.draw(arrays(np.float64, len(blocks), elements=st.floats(0.5, 2)))
    assert error(best) <= error(best * factors) * (1 + 1e-9)
    shares = best**2 * np.array(norms) ** 2
    expected = np.array(norms) * np.sqrt(np.array(importances) * np.array(sizes))
    np.testing.assert_allclose(shares / shares.sum(), expected / expected.sum())


def test_balanced_weights_reproduce_the_published_split() -> None:
    d = 64  # norms 1, one class, C = 1: 1.8, 14.7 and 83.5 % for count, sum and second moments
    shares = np.array(balanced_weights((1, 1, 1), (1, d, d * (d + 1) // 2), (1, 1, 1))) ** 2
    np.testing.assert_allclose(100 * shares / shares.sum(), [1.8, 14.7, 83.5], atol=0.1)
