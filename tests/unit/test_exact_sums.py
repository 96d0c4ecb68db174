"""Without noise means and sums are numpy's; a site with more records than ``max_records`` keeps its means.

The oracle is numpy on the columns in their own units, scaled as a site scales them.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from support.rows import of_values, question_rows
from support.studies import agreed, complete, demand, federation, split_records
from veilsum.compile import StudyRequest
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.parts.federation import StoredBlocks
from veilsum_node.errors import HostileInput
from veilsum_participant.data.encode import scale
from veilsum_privacy.computation.contribution import SitePlace, compute_sum, shrunk
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.mechanism.rows.symbols import whole
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.queries.language import WORD_SCALE

SITES = [f"site-{index}" for index in range(4)]
NEAR = 1e-9  # of the range
ROUNDED: tuple[dict[str, Any], ...] = (
    {"kind": "mean", "name": "means", "over": ["x", "z"]},
    {"kind": "compare", "name": "by-arm", "over": ["x", "z"], "by": "arm"},
    {"kind": "correlation", "name": "together", "over": ["x", "z"]},
    {"kind": "linear", "name": "line", "outcome": "z", "over": ["x", "arm"]},
    {"kind": "effect", "name": "effect", "over": "x", "by": "arm", "outcome": "z"},
)
COUNTED: tuple[dict[str, Any], ...] = (
    {"kind": "quantiles", "name": "quartiles", "over": "x", "edges": {"from": -1, "to": 1, "steps": 200}},
    {"kind": "count", "name": "arms", "over": "arm"},
)


def schema_of(low: float, high: float, max_records: int = 1000) -> DatasetSchema:
    x, z = NumberColumn(name="x", low=low, high=high), NumberColumn(name="z", low=-1, high=1)
    return DatasetSchema(columns=(x, z, CategoryColumn(name="arm", categories=("a", "b"))), max_records=max_records)


def records_of(x: np.ndarray, z: np.ndarray, arm: np.ndarray, schema: DatasetSchema) -> Records:
    numbers = [scale(values, column) for values, column in zip((x, z), schema.columns, strict=False)]  # type: ignore[arg-type]
    return complete(np.column_stack([*numbers, arm == 0, arm == 1]))


def study_of(
    schema: DatasetSchema, queries: tuple[dict[str, Any], ...], epsilon: float | None = None, sites: list[str] = SITES
) -> Study:
    fixed = {"name": "s", "method": "statistics", "dataset": "d", "data": schema, "privacy": demand(epsilon)}
    return agreed(StudyRequest.model_validate(fixed | {"query": queries}), sites)


def answers(study: Study, records: Records) -> dict[str, Any]:
    summary = METHODS["statistics"].run(federation(study, split_records(records, 4))).summary
    return dict(json.loads(json.dumps(summary)))


def table_task(study: Study) -> AgreedTask:
    (found,) = AgreedStudy(study).tasks
    return found


@settings(max_examples=25, deadline=None)
@given(
    bounds=st.sampled_from([(-1e12, 1e12), (-1.0, 1.0), (0.0, 1.0), (20.0, 80.0), (1e-6, 1e-3), (0.0, 1e6), (1e6, 1e6 + 1.0)]),
    shares=arrays.arrays(np.float64, st.integers(4, 40), elements=st.floats(0, 1)),
    constant=st.booleans(),
)
def test_without_noise_means_and_deviations_are_numpys(
    bounds: tuple[float, float], shares: np.ndarray, *, constant: bool
) -> None:
    low, high = bounds
    width = high - low
    x = np.clip(low + width * (np.full_like(shares, shares[0]) if constant else shares), low, high)
    z, arm = np.resize([0.3, -0.7, 0.1], len(x)), np.arange(len(x)) % 2
    schema = schema_of(low, high)
    found = answers(study_of(schema, ROUNDED[:3]), records_of(x, z, arm, schema))
    rows = [(row, slice(None)) for row in found["means"] if row["column"] == "x"]
    rows += [(row, arm == "ab".index(row["arm"])) for row in found["by-arm"] if row["column"] == "x"]
    assert len(rows) == 3
    for row, own in rows:
        assert row["count"]["value"] == len(x[own])
        mean, deviation = row["mean"], row["standard_deviation"]
        assert abs(mean["value"] - x[own].mean()) <= NEAR * width
        last = 1e-15 * max(abs(low), abs(high))  # bits of float64 in which sums in another order differ
        assert mean["low"] - last <= x[own].mean() <= mean["high"] + last
        assert abs(deviation["value"] - x[own].std()) <= 1e-7 * width  # a square's last bit is its root's eighth digit
        assert deviation["low"] - NEAR * width <= x[own].std() <= deviation["high"] + NEAR * width
    told = found["together"][0]["correlation"]
    if np.ptp(x) == 0.0:
        assert "does not vary" in told["not_estimable"]
    elif x.std() > 1e-3 * width:
        assert told["value"] == pytest.approx(np.corrcoef(x, z)[0, 1], abs=NEAR)


def test_without_noise_a_million_records_sum_as_exactly() -> None:
    rng, n = np.random.default_rng(5), 1_000_000
    x, z, arm = np.full(n, 3.0), rng.beta(0.5, 4.0, n) * 2 - 1, rng.integers(0, 2, n)
    schema = schema_of(-1e12, 1e12, max_records=n)
    found = answers(study_of(schema, ROUNDED[:1]), records_of(x, z, arm, schema))["means"]
    assert all(
        abs(row["mean"]["value"] - truth) <= NEAR * width
        for row, truth, width in zip(found, (3.0, z.mean()), (2e12, 2.0), strict=True)
    )


def test_without_noise_an_effect_and_a_regression_are_their_formulas() -> None:
    rng, n = np.random.default_rng(6), 3000
    x, z, arm = rng.uniform(-1, 1, n), rng.beta(2, 5, n) * 2 - 1, rng.integers(0, 2, n)
    schema = schema_of(-1, 1)
    found = answers(study_of(schema, ROUNDED), records_of(x, z, arm, schema))
    w = 1.0 + np.exp(np.where(arm == 1, -x, x))
    for row in found["effect"][:2]:
        own = arm == "ab".index(row["arm"])
        assert row["value"]["value"] == pytest.approx(np.average(z[own], weights=w[own]), abs=NEAR)
        assert row["effective_records"] == pytest.approx(w[own].sum() ** 2 / (w[own] ** 2).sum(), rel=NEAR)
    design = np.column_stack([np.ones(n), x, arm])
    truth = np.linalg.lstsq(design, z, rcond=None)[0]  # no record is shortened where length costs nothing
    assert [row["coefficient"]["value"] for row in found["line"]] == pytest.approx(truth.tolist(), abs=1e-8)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("max_records", "sites"), [(10, 2), (100_000, 4), (2**20, 4), (2**24, 64), (2**20, 1024)])
def test_limbs_hold_every_row_within_what_is_declared(max_records: int, sites: int) -> None:
    """At each corner, the middle and next to them: limbs give the values back, and no row is longer than the declared norm."""
    schema = schema_of(-1, 1, max_records)
    study = study_of(schema, ROUNDED + COUNTED, sites=[f"site-{index}" for index in range(sites)])
    task = table_task(study).task
    layout = task.layout()
    near = np.array([-1, -1 + 1e-16, -0.5, -1e-16, 0, 1e-9, 0.7**0.5, 1 / 3, 1 - 1e-9, 1])
    x, z, arm = (part.ravel() for part in np.meshgrid(near, near, [0, 1]))
    records = records_of(x, z, arm, schema)
    rows = np.concatenate(list(task_rows(task, records, {})))
    lengths = [math.isqrt(sum(value * value for value in row)) for row in rows.tolist()]
    assert max(lengths) <= task.clip() == task.integer_norm()
    fine = np.hstack([question_rows(question, task._columns, records) for question in task.questions])
    weights = [2 ** (layout.limb_bits * limb) for limb in range(layout.limbs)]
    joined = [
        [sum(w * v for w, v in zip(weights, limbs, strict=True)) for limbs in zip(*row, strict=True)]
        for row in rows.reshape(len(rows), layout.limbs, -1).tolist()
    ]
    assert joined == fine.tolist()
    assert table_task(study).plan(sites, sites).encoding.lanes >= 1


@given(
    rows=arrays.arrays(np.int64, (3, 5), elements=st.integers(-(2**52), 2**52)),
    limbs=st.integers(1, 6),
    bits=st.integers(1, 25),
)
def test_values_are_the_sum_of_their_limbs(rows: np.ndarray, limbs: int, bits: int) -> None:
    layout = Layout((Block("p", (2,), 1.0), Block("q", (3, 1), 4.0)), limbs, bits if limbs > 1 else 0)
    fine = np.column_stack([np.floor(rows / 2.0**26), rows % 2**26])  # as reals, of which no sum is rounded
    found = of_values(lambda row: layout.in_limbs(whole(row[:5]) * 2**26 + whole(row[5:])), fine)
    assert found.shape == (3, layout.size)
    assert (np.abs(found[:, : -layout.width]) <= 2 ** (bits - 1)).all()
    for row, written in zip(rows, found.astype(np.float64), strict=True):
        blocks = layout.split(written)
        assert np.concatenate([blocks["p"], 4.0 * blocks["q"][:, 0]]).tolist() == row.tolist()
        stored = StoredBlocks(layout, lambda start, stop, written=written: written[start:stop])
        assert all(np.array_equal(stored[name], blocks[name]) for name in blocks)
        assert np.array_equal(stored.part("q", slice(1, 3)), blocks["q"].ravel()[1:3])


def test_limbs_are_for_studies_without_noise_alone() -> None:
    exact, noised = (study_of(schema_of(-1, 1), ROUNDED, epsilon) for epsilon in (None, 1.0))
    (limbs,), (words,) = (study.tasks for study in (exact, noised))
    assert "limbs" not in words.parameters
    assert all(query["scale"] <= WORD_SCALE for query in words.parameters["queries"])
    norm = limbs.parameters["sensitivity"]
    stolen = words.model_copy(update={"parameters": limbs.parameters, "grid": norm, "variance": norm**2})
    with pytest.raises(HostileInput, match="limbs; that is for studies without noise only"):
        _ = AgreedStudy(noised.model_copy(update={"tasks": (stolen,)})).tasks
    for change in ({"limbs": 1}, {"limb_bits": 0}):
        with pytest.raises(ValueError, match="limbs"):
            type(table_task(exact).task).Parameters.model_validate(limbs.parameters | change)


# -- more records than max_records -------------------------------------------------------------------------------------------


@given(a=st.integers(-(2**60), 2**60), b=st.integers(-(2**60), 2**60), kept=st.integers(1, 2**24), more=st.integers(0, 2**35))
def test_what_is_shrunk_moves_no_further_than_it_did(a: int, b: int, kept: int, more: int) -> None:
    of = kept + more
    first, second = shrunk(np.array([a, b]), kept, of).tolist()
    assert abs(first - second) <= abs(a - b)
    assert abs(2 * first * of - 2 * a * kept) <= of  # the exact share, to the nearest integer


@given(a=st.integers(-(2**50), 2**50), step=st.integers(0, 3), kept=st.integers(1, 100), more=st.integers(0, 100))
def test_neighbouring_values_stay_neighbours(a: int, step: int, kept: int, more: int) -> None:
    first, second = shrunk(np.array([a, a + step]), kept, kept + more).tolist()
    assert 0 <= second - first <= step


@pytest.mark.parametrize(("stated", "counted"), [({"at_most": 2}, 8), ({"person": "mean"}, 4), ({"at_most": 3}, 12)])
def test_without_noise_persons_count_as_stated(stated: dict[str, Any], counted: int) -> None:
    """Of three alike records each."""
    schema = schema_of(-1e12, 1e12)
    fixed = {"name": "s", "method": "statistics", "dataset": "d", "data": schema, "query": ROUNDED[:1]}
    privacy = demand(None).model_copy(update={"unit": "subject"})
    study = agreed(StudyRequest.model_validate(fixed | {"privacy": privacy, "parameters": stated}), SITES)
    own = replace(records_of(np.full(3, 3.0), np.ones(3), np.zeros(3), schema), subjects=np.zeros(3, np.int64))
    summary = METHODS["statistics"].run(federation(study, dict.fromkeys(SITES, own))).summary
    row = next(row for row in summary["means"] if row["column"] == "x")
    assert row["count"]["value"] == counted
    assert row["mean"]["value"] == pytest.approx(3.0, abs=NEAR * 2e12)


def overfull(n: int, x: float = 1.0) -> tuple[DatasetSchema, Records]:
    schema = schema_of(0, 10, max_records=500)
    return schema, records_of(np.full(n, x), np.full(n, 0.25), np.arange(n) % 2, schema)


@pytest.mark.parametrize("n", [500, 501, 1500, 20_000])
def test_without_noise_a_mean_of_too_many_records_is_a_mean(n: int) -> None:
    schema, records = overfull(n)
    study = study_of(schema, ROUNDED[:2], sites=SITES[:2])
    sites = dict.fromkeys(study.participants, records)
    rows = METHODS["statistics"].run(federation(study, sites)).summary["means"]
    assert [row["mean"]["value"] for row in rows] == pytest.approx([1.0, 0.25], abs=1e-6)
    assert rows[0]["standard_deviation"]["value"] == pytest.approx(0.0, abs=1e-2)
    part = compute_sum(table_task(study).plan(2, 2), records, {})
    assert (part.cut > 0) == (n == 20_000)  # the declared norm is longer than these rows are
    assert np.abs(part.total).max() <= table_task(study).plan(2, 2).encoding.bound


@pytest.mark.parametrize("n", [1500, 20_000])
def test_with_noise_a_mean_stays_one_where_the_site_states_its_size(n: int) -> None:
    schema, records = overfull(n)
    agreed_task = table_task(study_of(schema, ROUNDED[:1], 8.0))
    plan = agreed_task.plan(4, 4)
    means = {}
    for stated in (0, n, 2 * n):
        part = compute_sum(plan, records, {}, SitePlace(most_records=stated))
        blocks = agreed_task.blocks(part.total)
        means[stated] = blocks["means/sum"][0, 0] / blocks["means/records"][0]
        assert (part.cut > 0) == (stated == 0)
    few = agreed_task.blocks(compute_sum(plan, records.take(slice(0, 400)), {}).total)
    right = few["means/sum"][0, 0] / few["means/records"][0]  # -0.8 as it stands on the grid
    assert [means[n], means[2 * n]] == pytest.approx([right, right], abs=1e-5)
    assert abs(means[0] - right) > 0.1  # each value clamped by itself


@pytest.mark.parametrize("n", [1500, 20_000])
def test_simulated_sites_state_how_many_records_they_have(n: int) -> None:
    schema, records = overfull(n)
    study = study_of(schema, ROUNDED[:1], 1e4)
    rows = METHODS["statistics"].run(federation(study, dict.fromkeys(study.participants, records))).summary["means"]
    assert [row["mean"]["value"] for row in rows] == pytest.approx([1.0, 0.25], abs=5e-2)


def test_what_one_record_changes_stays_within_the_declared_norm_where_there_are_too_many() -> None:
    rng, n = np.random.default_rng(8), 700
    schema = schema_of(-1, 1, max_records=500)
    agreed_task = table_task(study_of(schema, ROUNDED[:3], 1.0))
    plan = agreed_task.plan(4, 4)
    for stated in (0, 600, 700, 5000):
        place = SitePlace(most_records=stated)
        same = rng.random() < 0.5
        x = np.ones(n) if same else rng.choice([-1.0, 1.0, 0.3], n)
        records = records_of(x, x, rng.integers(0, 2, n), schema)
        whole = compute_sum(plan, records, {}, place).total
        for gone in range(0, n, 50):
            less = compute_sum(plan, records.take(np.arange(n) != gone), {}, place).total
            assert sum(int(v) ** 2 for v in whole - less) <= agreed_task.declaration.grid**2


def test_a_size_below_the_bound_changes_no_integer() -> None:
    schema, records = overfull(400)
    plan = table_task(study_of(schema, ROUNDED, 1.0)).plan(4, 4)
    plain = compute_sum(plan, records, {})
    assert all(
        np.array_equal(plain.total, compute_sum(plan, records, {}, SitePlace(most_records=stated)).total)
        for stated in (0, 1, 400, 500)
    )
    assert plain.cut == 0


@pytest.mark.parametrize("stated", [0, 600, 20_000])
def test_one_record_moves_no_other_cell_of_a_full_table(stated: int) -> None:
    """A factor that followed the fullest cell would move all cells for one record of it."""
    cells = CategoryColumn(name="k", categories=tuple(f"c{index}" for index in range(20)))
    schema = DatasetSchema(columns=(cells,), max_records=500)
    agreed_task = table_task(study_of(schema, ({"kind": "count", "name": "cells", "over": "k"},), 1.0))
    records = complete(np.eye(20)[np.append(np.repeat(np.arange(20), 600), 0)])
    plan, place = agreed_task.plan(4, 4), SitePlace(most_records=stated)
    more, less = (compute_sum(plan, own, {}, place).total for own in (records, records.take(slice(0, 12_000))))
    assert sum(int(v) ** 2 for v in more - less) <= agreed_task.declaration.grid**2
