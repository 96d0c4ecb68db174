"""Tasks: what one record changes never exceeds the stated bound and can reach it; sums equal plain numpy's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from support.neighbours import (
    NEIGHBOURS,
    SETTINGS,
    Setting,
    add_unit,
    check_rows_stand_alone,
    exact_norm,
    join,
    moments_parameters,
    random_records,
    repeated,
    schema,
    with_subjects,
)
from support.studies import complete
from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.accounting.accountant import GaussianEvent
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.study.known_tasks import FORMER
from veilsum_privacy.study.study import NoiseKind, Unit
from veilsum_privacy.tasks import TASKS, build_task
from veilsum_privacy.tasks.base import Records, RowTask, Task
from veilsum_privacy.tasks.layout import Block, Layout, balanced_weights
from veilsum_privacy.tasks.outcomes import Outcome


def total(task: Task, records: Records) -> Floats:
    result = np.zeros(task.layout().size)
    assert isinstance(task, RowTask)
    for batch in task_rows(task, records, {}):
        assert batch.shape[1] == task.layout().size
        assert np.linalg.norm(batch, axis=1).max(initial=0.0) <= task.clip() * (1 + 1e-12)
        result += batch.sum(axis=0)
    return result


def test_registry() -> None:
    derived = {"barycenter-step", "two-way-step", "aligned-moments", "within-moments", "ridge-head"}
    assert set(TASKS) == set(NEIGHBOURS) | derived | {"local-training"}
    with pytest.raises(HostileInput, match="Did you mean 'tables'"):
        build_task("table", {}, schema(2))
    with pytest.raises(HostileInput, match=r"clap: unknown key. Did you mean 'clip'"):
        build_task("class-moments", {**moments_parameters(1, 1, 1, 1, 1), "clap": 1}, schema(2))
    for parameters in ({}, moments_parameters(-1, 1, 1, 1, 1), moments_parameters(float("nan"), 1, 1, 1, 1)):
        with pytest.raises(HostileInput):
            build_task("class-moments", parameters, schema(2))
    with pytest.raises(HostileInput, match="needs a label"):
        build_task("class-moments", moments_parameters(1, 1, 1, 1, 1), schema(2, label=False))
    for former in FORMER:
        with pytest.raises(HostileInput, match=r"removed after version 0\.2") as caught:
            build_task(former, {}, schema(2))
        assert FORMER[former].now in caught.value.advice
        assert FORMER[former].now in TASKS


def test_every_loss_and_family_has_its_neighbours() -> None:
    """What is predicted is a branch of a task's vector: each has a setting of its own, for fuzzing and for audits."""

    def stated(task: str, key: str) -> set[object]:
        return {setting.parameters.get(key) for setting in SETTINGS if setting.task == task}

    def losses(kind: object) -> set[object]:
        return set(get_args(kind))

    outcomes = [setting.parameters.get("outcome") for setting in SETTINGS if setting.task == "gradient"]
    assert {outcome["loss"] for outcome in outcomes if outcome} == losses(Outcome.model_fields["loss"].annotation)
    assert None in outcomes
    assert stated("tree-gradients", "loss") == losses(TASKS["tree-gradients"].Parameters.model_fields["loss"].annotation)
    assert stated("newton-step", "family") == losses(TASKS["newton-step"].Parameters.model_fields["family"].annotation)
    assert stated("site-scores", "family") == losses(TASKS["site-scores"].Parameters.model_fields["family"].annotation)
    assert {"hazard-step", "site-hazard-scores"} <= {setting.task for setting in SETTINGS}
    queries = [query for setting in SETTINGS if setting.task == "tables" for query in setting.parameters["queries"]]
    assert "linear" in {query["kind"] for query in queries}
    models = [setting.parameters["model"]["name"] for setting in SETTINGS if setting.task == "model-tables"]
    assert {"linear", "mlp", "discriminant", "trees"} <= set(models)


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


WEIGHT = st.floats(0.05, 5)
VALUES = arrays(np.float64, (2, 6), elements=st.floats(-1, 1) | st.sampled_from([-1.0, 0.0, 1.0]))


@settings(max_examples=150, deadline=None)
@given(st.floats(0.05, 6), st.tuples(WEIGHT, WEIGHT, WEIGHT, WEIGHT), VALUES, st.integers(0, 2))
def test_class_moments_neighbours_stay_within_the_bound(
    clip: float, weights: tuple[float, float, float, float], values: Floats, label: int
) -> None:
    task = build_task("class-moments", moments_parameters(clip, *weights), schema(6))
    both = complete(values, np.array([label, (label + 1) % 3]))
    one = Records(values[:1], both.present[:1], np.array([label]))
    change = total(task, both) - total(task, one)
    assert np.linalg.norm(change) <= task.clip() * (1 + 1e-9)


@pytest.mark.sampled(5)
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
        record = complete(row[None], np.array([1]))
        reached.append(np.linalg.norm(total(task, record)))
    assert max(reached) <= task.clip() * (1 + 1e-12)
    assert max(reached) >= 0.9999 * task.clip()


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.additive], ids=lambda setting: f"{setting.task}-{setting.name}")
def test_no_records_give_no_batch(setting: Setting) -> None:
    task = build_task(setting.task, setting.parameters, setting.schema)
    assert isinstance(task, RowTask)
    width = setting.schema.width
    empty = Records(np.zeros((0, width)), np.zeros((0, width), dtype=np.bool_), np.zeros(0, dtype=np.int64))
    assert not list(task_rows(task, empty, setting.seen))


# Every registered task, through the sum as a participant computes it. A later task joins by tests/support/neighbours.py.

EVERY = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.task}-{setting.name}")
EVERY_SUM = pytest.mark.parametrize(
    "setting", [s for s in SETTINGS if s.additive], ids=lambda setting: f"{setting.task}-{setting.name}"
)
BOTH_UNITS = pytest.mark.parametrize("unit", ["record", "subject"])


@pytest.mark.sampled(11)
@EVERY
@BOTH_UNITS
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), base=st.integers(0, 30), added=st.integers(0, 8), grid=st.integers(1, 2**26))
def test_neighbours_change_a_sum_by_at_most_the_grid(
    setting: Setting, unit: Unit, seed: int, base: int, added: int, grid: int
) -> None:
    rng = np.random.default_rng(seed)
    every = NEIGHBOURS[setting.task]
    some = every.random(setting, rng, added if unit == "subject" else 1)
    without, with_it = add_unit(every.random(setting, rng, base), some, unit, rng)
    # Rounding a site's whole vector takes a part of the grid that a coarse one does not have.
    study = setting.study(unit, grid=max(grid, 64) if setting.rounded else grid, variance=0, noise="none")
    change = setting.total(study, with_it) - setting.total(study, without)
    assert exact_norm(change) <= study.tasks[0].grid
    if not setting.additive:
        return
    alone = some if unit == "record" else replace(some, subjects=np.zeros(len(some), dtype=np.int64))
    off = np.abs(change - setting.total(study, alone)).max()
    assert off <= setting.rounded, "what one adds does not depend on the others, but for a sum's rounding"


@pytest.mark.sampled(11)
@EVERY
@BOTH_UNITS
def test_the_worst_neighbours_reach_the_grid(setting: Setting, unit: Unit) -> None:
    every = NEIGHBOURS[setting.task]
    rng = np.random.default_rng(0)
    for grid in (2**12, 2**20, 2**26):
        study = setting.study(unit, grid=grid, variance=0, noise="none")
        for times in (1,) if unit == "record" else (1, 2, 7):
            unit_records = repeated(every.worst(setting), times)
            without, with_it = add_unit(every.company(setting, rng, 10), unit_records, unit, rng)
            change = exact_norm(setting.total(study, with_it) - setting.total(study, without))
            assert 0.95 * grid <= change <= grid


@pytest.mark.sampled(11)
@EVERY
@BOTH_UNITS
def test_more_records_than_agreed_cost_no_privacy(setting: Setting, unit: Unit) -> None:
    """All records count, and the sum is clamped; to leave out those beyond ``max_records`` would let one push out another."""
    every = NEIGHBOURS[setting.task]
    worst = every.worst(setting)
    study = setting.study(unit, grid=1000, variance=0, noise="none")
    bound = setting.plan(study).encoding.bound
    rng = np.random.default_rng(0)
    for n in (setting.schema.max_records - 1, setting.schema.max_records, 3 * setting.schema.max_records):
        without, with_it = add_unit(repeated(worst, n), worst, unit, rng)
        totals = [setting.total(study, records) for records in (without, with_it)]
        assert exact_norm(totals[1] - totals[0]) <= study.tasks[0].grid <= 1000
        assert max(np.abs(total).max() for total in totals) <= bound


PUBLIC = np.array(
    [0.0, -0.0, 5e-324, -1e-308, 1e-100, 1e-16, 0.5, -0.5, 1.0, -1.0, 2.0, 3.0, 999999.0, 1e6, -1e6, 1e100, -1e100]
)
HELD = np.array([0.0, -0.0, 5e-324, 1e-300, 0.5, -1.0, 1.0 + 2.0**-52, 2.0, 1e16, 1e155, -1e155, 1.7e308, np.inf, np.nan])
CLASSES = np.array([-(2**63), -2, -1, 3, 7, 2**62, 2**63 - 1])


def hostile_broadcast(broadcast: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
    """Arrays of a broadcast as they are, here and there replaced, drawn anew, or multiplied; numbers that say places stay."""
    found, public = dict[str, Floats](), PUBLIC if rng.random() < 0.2 else PUBLIC[:-2]  # which tasks with bounds refuse
    for name, array in broadcast.items():
        drawn = rng.choice(public, size=array.shape)
        ways = (array, np.where(rng.random(array.shape) < 0.2, drawn, array), drawn, array * rng.choice(public[2:]))
        found[name] = array if "features" in name else np.clip(ways[rng.integers(4)], -1e100, 1e100)
    return found


def hostile_records(records: Records, rng: np.random.Generator) -> Records:
    """Records with values, gaps and classes here and there that no reader gives."""
    features = np.where(
        rng.random(records.features.shape) < 0.2, rng.choice(HELD, size=records.features.shape), records.features
    )
    present, labels = records.present ^ (rng.random(features.shape) < 0.1), records.labels
    if labels is not None:
        labels = np.where(rng.random(labels.shape) < 0.1, rng.choice(CLASSES, size=labels.shape), labels)
    return replace(records, features=features, present=present, labels=labels)


@pytest.mark.sampled(11)
@EVERY
@pytest.mark.parametrize("unit", ["record", "subject", "site"])
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    base=st.sampled_from([0, 1, 5, 40, 64, 130, 300]),
    added=st.integers(1, 8),
    grid=st.sampled_from([64, 1000, 2**20, 2**26]),
    most_records=st.sampled_from([0, 64, 65, 1000]),
    noised=st.booleans(),
)
def test_no_broadcast_beside_no_records_moves_a_sum_by_more_than_the_grid(
    setting: Setting, unit: Unit, seed: int, base: int, added: int, grid: int, most_records: int, noised: bool
) -> None:
    """Also where a sum is cut, or shrunk for a dataset of more records than a study's; what is refused is so for all alike."""
    rng, every = np.random.default_rng(seed), NEIGHBOURS[setting.task]
    added = 1 if unit == "record" else added
    some = repeated(every.worst(setting), added) if rng.random() < 0.5 else every.random(setting, rng, added)
    some, company = hostile_records(some, rng), hostile_records(every.random(setting, rng, base), rng)
    if base > setting.schema.max_records:  # for which a sum may have no room
        company = repeated(every.worst(setting), base)
    if unit == "site":
        without, with_it = company.take(np.zeros(0, dtype=np.intp)), some
    else:
        without, with_it = add_unit(company, some, unit, rng)
    study = setting.study(unit, grid=grid, variance=16 * grid**2 if noised else 0, noise="local" if noised else "none")
    rows = {name: np.stack([row] * study.sites) for name, row in hostile_broadcast(setting.given, rng).items()}
    broadcast, plan = {**hostile_broadcast(setting.broadcast, rng), **rows}, setting.plan(study)
    found: list[NDArray[np.int64] | str] = []
    for records in (without, with_it):
        try:
            with np.errstate(all="ignore"):
                found.append(compute_sum(plan, records, broadcast, SitePlace(most_records=most_records)).total)
        except HostileInput as error:
            found.append(error.message)
    one, other = found
    if isinstance(one, str) or isinstance(other, str):
        assert isinstance(one, str)
        assert one == other
    elif noised or len(with_it) <= setting.schema.max_records:  # an exact sum of more is not bounded, but by who is let in
        assert exact_norm(other - one) <= study.tasks[0].grid


@pytest.mark.sampled(3)
@EVERY_SUM
def test_no_record_moves_a_sum_at_its_bound_by_more_than_the_grid(setting: Setting) -> None:
    """One that a bound cuts for all values together, as by a factor, would move by up to a third more."""
    every, study = NEIGHBOURS[setting.task], setting.study("record", grid=2**12, variance=2**28)
    bound, worst = setting.plan(study).encoding.bound, every.worst(setting)
    fits = bound // int(np.abs(setting.total(study, worst)).max())
    for count in (fits, fits + 1, fits + 5):
        full = repeated(worst, int(count))
        whole = setting.total(study, full)
        assert np.abs(whole).max() <= bound
        for seed in range(20):
            one = every.random(setting, np.random.default_rng(seed), 1)
            assert exact_norm(setting.total(study, join(full, one)) - whole) <= study.tasks[0].grid


@pytest.mark.sampled(3)
@EVERY
def test_one_record_each_is_the_same_in_both_units(setting: Setting) -> None:
    records = NEIGHBOURS[setting.task].random(setting, np.random.default_rng(3), 50)
    distinct = replace(records, subjects=np.arange(len(records)))
    sums = [
        setting.total(setting.study(unit, grid=2**20, variance=0, noise="none"), distinct) for unit in ("record", "subject")
    ]
    # Where a record is the unit factors are rounded, where a subject is their products: by less than 2^-20 of C a record.
    assert np.abs(sums[0] - sums[1]).max() <= setting.rounded
    assert sums[0].any()


@pytest.mark.sampled(5)
@EVERY
@BOTH_UNITS
def test_nothing_that_a_record_holds_raises(setting: Setting, unit: Unit) -> None:
    study = setting.study(unit, grid=2**20, variance=0, noise="none")
    width = setting.schema.width
    records = with_subjects(
        random_records(np.random.default_rng(0), 3, setting.schema, complete=True), np.random.default_rng(0)
    )
    whole = setting.total(study, records)
    for value in (np.nan, np.inf, -np.inf, 1.7e308):
        odd = replace(records.take(np.array([0])), features=np.full((1, width), value), subjects=np.array([99]))
        change = setting.total(study, join(records, odd)) - whole
        assert exact_norm(change) <= 2**20
        if np.isnan(value):
            assert not change.any()
    missing = replace(records, present=np.zeros_like(records.present), features=np.zeros_like(records.features))
    setting.total(study, missing)
    nobody = setting.total(study, records.take(np.zeros(0, dtype=np.intp)))
    assert not nobody.any()


def test_a_study_by_subject_needs_to_know_the_subjects() -> None:
    setting = SETTINGS[0]
    study = setting.study("subject", grid=1000, variance=0, noise="none")
    records = random_records(np.random.default_rng(0), 4, setting.schema)
    with pytest.raises(Misuse, match="no column that tells subjects apart"):
        compute_sum(setting.plan(study), records, setting.broadcast)


@pytest.mark.sampled(2)  # each in one of the layouts
@EVERY_SUM
@pytest.mark.parametrize("layout", ["C", "F"])
def test_a_row_is_the_same_in_any_company(setting: Setting, layout: str) -> None:
    task = build_task(setting.task, setting.parameters, setting.schema)
    assert isinstance(task, RowTask)
    records = random_records(np.random.default_rng(4), 200, setting.schema, complete=True)
    records = replace(records, features=np.array(records.features, order=layout))
    check_rows_stand_alone(task, records, setting.seen)


@pytest.mark.sampled(5)
@EVERY
@BOTH_UNITS
@pytest.mark.parametrize(("noise", "cohort", "colluders"), [("local", 4, 1), ("distributed", 4, 1), ("distributed", 5, 2)])
def test_the_booked_event_is_the_plans(setting: Setting, unit: Unit, noise: NoiseKind, cohort: int, colluders: int) -> None:
    study = setting.study(unit, grid=1234, variance=10**7, noise=noise, participants=cohort, colluders=colluders)
    plan = setting.plan(study)
    mechanism = Mechanism(plan.declaration.grid, plan.noise)
    grid = study.tasks[0].grid
    assert mechanism.event == GaussianEvent(grid, Fraction(10**7))
    shares = cohort - colluders if noise == "distributed" else 1
    assert plan.noise.share_variance * shares == 10**7
    assert mechanism.event_alone == GaussianEvent(grid, Fraction(10**7, shares))


def test_layout_divides_weights_out() -> None:
    layout = Layout((Block("a", (2,), 4.0), Block("b", (1, 2))))
    blocks = layout.split(np.array([4.0, 8.0, 3.0, 5.0]))
    np.testing.assert_array_equal(blocks["a"], [1, 2])
    np.testing.assert_array_equal(blocks["b"], [[3, 5]])
    assert layout.noise_std(2.0) == {"a": 0.5, "b": 2.0}
    with pytest.raises(ValueError, match="4 values"):
        layout.split(np.zeros(3))


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
