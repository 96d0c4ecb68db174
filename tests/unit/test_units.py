"""What fails on a unit stays with it: every task, both units, faults planted at each depth, and the halving by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.neighbours import NEIGHBOURS, SETTINGS, Setting, add_unit, random_records, spoil, with_subjects
from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse
from veilsum_privacy.computation import contribution
from veilsum_privacy.computation.contribution import SitePlace, compute_sum, contribute
from veilsum_privacy.mechanism.units import Faults, Rows, in_parts, together, unit_edges
from veilsum_privacy.study.study import Unit
from veilsum_privacy.tasks.agreed import RoundPlan
from veilsum_privacy.tasks.base import Records, SiteTask

RAISED = (ArithmeticError, IndexError, MemoryError, RecursionError, Misuse)
BOTH_UNITS = pytest.mark.parametrize("unit", ["record", "subject"])
FALLIBLE = [s for s in SETTINGS if not s.additive]
"""All but those whose rows are graphs, in which nothing can fail."""
EVERY = pytest.mark.parametrize("setting", FALLIBLE, ids=lambda setting: f"{setting.task}-{setting.name}")

Predicate = Callable[[Records], bool]


def broadcast_of(setting: Setting, sites: int) -> dict[str, Floats]:
    return {**setting.broadcast, **{name: np.stack([row] * sites) for name, row in setting.given.items()}}


def plant(monkeypatch: pytest.MonkeyPatch, plan: RoundPlan, fails: Predicate, where: str, error: type[Exception]) -> None:
    """Let the task, or what maps records for it, raise where ``fails`` says so of the records that it is given."""
    task = plan.task.task
    if where == "mapping":
        real = contribution._mapped

        def mapped(agreed: Any, records: Records, *rest: Any) -> Records:
            if fails(records):
                raise error("somebody is here")
            return real(agreed, records, *rest)

        monkeypatch.setattr(contribution, "_mapped", mapped)
        return

    method = task.vector  # type: ignore[attr-defined]

    def raising(records: Records, broadcast: Mapping[str, Floats]) -> Any:
        if fails(records):
            raise error("somebody is here")
        return method(records, broadcast)

    monkeypatch.setattr(task, "vector", raising)


def marked_at(records: Records, unit: Unit, marks: Integers) -> tuple[Records, Predicate, Any]:
    """Records of which those at ``marks`` can be told from all others, who can tell, and which records are of their units."""
    features = records.features.copy()
    features[:, 0] = np.where(features[:, 0] == -0.12345, 0.0, features[:, 0])
    features[marks, 0] = -0.12345
    present = records.present.copy()
    present[marks, 0] = True
    marked = Records(features, present, records.labels, records.subjects)
    theirs = np.zeros(len(records), dtype=np.bool_)
    theirs[marks] = True
    if unit == "subject" and records.subjects is not None:
        theirs = np.isin(records.subjects, records.subjects[marks])
    return marked, lambda given: bool((given.features[:, 0] == -0.12345).any()), theirs


@pytest.mark.sampled(11)
@EVERY
@BOTH_UNITS
@pytest.mark.parametrize("where", ["task", "mapping"])
@pytest.mark.parametrize("seed", range(3))
def test_a_unit_that_fails_counts_as_zeros_and_all_others_as_without_it(
    setting: Setting, unit: Unit, where: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same integers to the bit as of the records of all other units; one, some, or all of them fail."""
    rng = np.random.default_rng(seed)
    n = 40
    records = with_subjects(NEIGHBOURS[setting.task].random(setting, rng, n), rng)
    number = (1, 6, n)[seed]
    marked, fails, theirs = marked_at(records, unit, np.sort(rng.choice(n, number, replace=False)))
    study = setting.study(unit, grid=2**16, variance=10**9)
    plan, broadcast = setting.plan(study), broadcast_of(setting, study.sites)
    want = compute_sum(plan, marked.take(~theirs), broadcast)
    plant(monkeypatch, plan, fails, where, RAISED[seed % len(RAISED)])
    found = contribute(plan, lambda: marked, broadcast, SitePlace())
    np.testing.assert_array_equal(found.total, want.total)
    if where == "mapping" or found.fault is not None:  # a record of another part than the task takes never comes to it
        assert isinstance(found.fault, RAISED[seed % len(RAISED)])


@pytest.mark.sampled(11)
@EVERY
@BOTH_UNITS
@pytest.mark.parametrize("who", ["others fail", "the unit fails", "both fail", "in company"])
def test_faults_do_not_raise_what_a_unit_changes(
    setting: Setting, unit: Unit, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D and D + r under faults of r, of others, of both, and of any five records together: at most one grid."""
    rng = np.random.default_rng(7)
    random = NEIGHBOURS[setting.task].random
    others = with_subjects(random(setting, rng, 40), rng)
    worst = NEIGHBOURS[setting.task].worst(setting)
    base, with_unit = add_unit(others, worst.take(np.zeros(3, dtype=np.intp)) if unit == "subject" else worst, unit, rng)
    study = setting.study(unit, grid=2**16, variance=10**9)
    plan, broadcast = setting.plan(study), broadcast_of(setting, study.sites)
    task = plan.task.task
    of_worst = worst.features[0]
    often = np.median(base.features[np.isfinite(base.features[:, 0]), 0])

    def fails(given: Records) -> bool:
        if who == "in company":
            return len(given) >= 5
        own = bool((given.features == of_worst).all(axis=1).any())
        other = bool(((given.features[:, 0] > often) & (given.features != of_worst).any(axis=1)).any())
        return (own and who != "others fail") or (other and who != "the unit fails")

    if who == "in company" and isinstance(task, SiteTask) and not task.additive:
        pytest.skip("nothing joins its parts; it is shown not to fail in company")
    plant(monkeypatch, plan, fails, "task", IndexError)
    totals = [contribute(plan, lambda given=given: given, broadcast, SitePlace()).total for given in (base, with_unit)]  # type: ignore[misc]
    step = (totals[1] - totals[0]).astype(object)
    assert math.isqrt(int((step * step).sum())) <= plan.declaration.grid


def test_a_persons_records_stay_together() -> None:
    """The first of each person's records counts, whatever other records hold; one by one each would be its person's first."""
    setting = next(s for s in SETTINGS if s.task == "tables")
    parameters = {
        "queries": [{"name": "persons", "kind": "count", "over": ["k0"], "scale": 1}],
        "sensitivity": 1,
        "at_most": 1,
    }
    tables = Setting("persons", "tables", setting.schema, parameters)
    study = tables.study("subject", grid=2**10, variance=10**9)
    plan = tables.plan(study)
    rng = np.random.default_rng(0)
    people, visits = 50, 30
    records = random_records(rng, people * visits, setting.schema, complete=True)
    records = Records(records.features, records.present, records.labels, np.repeat(np.arange(people), visits))
    for place, value in ((7, np.nan), (7, np.inf), (0, np.nan), (visits * people - 1, 1e308)):
        spoilt = Records(records.features.copy(), records.present, records.labels, records.subjects)
        spoilt.features[place, 0] = value
        found = contribute(plan, lambda spoilt=spoilt: spoilt, {}, SitePlace())  # type: ignore[misc]
        assert found.fault is None
        assert found.total.sum() == (people - (place == 0)) * plan.declaration.grid


def test_a_planted_fault_in_each_record_of_the_most_hostile_data() -> None:
    """Nothing is planted here: poisoned records alone, in every task, raise nothing that would need any of this."""
    for setting in SETTINGS[::7]:
        rng = np.random.default_rng(1)
        study = setting.study("record", grid=2**16, variance=10**9)
        plan = setting.plan(study)
        records = spoil(random_records(rng, 60, setting.schema), rng)
        assert contribute(plan, lambda records=records: records, broadcast_of(setting, 4), SitePlace()).fault is None  # type: ignore[misc]


# -- halving ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    sizes=st.lists(st.integers(1, 4), max_size=40),
    bad=st.sets(st.integers(0, 39)),
    crowd=st.integers(1, 60),
    grouped=st.booleans(),
)
def test_halving_keeps_exactly_the_units_that_do_not_raise_alone(
    sizes: list[int], bad: set[int], crowd: int, grouped: bool
) -> None:
    subjects = np.repeat(np.arange(len(sizes)), sizes).astype(np.int64) * 3
    count = len(subjects)
    edges = unit_edges(count, subjects if grouped else None)
    alone = np.array([int(unit in bad) for unit in range(len(edges) - 1)])
    whose = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    calls = []

    def compute(rows: Rows) -> Integers:
        units = np.unique(whose[rows])
        assert all(np.isin(np.flatnonzero(whose == unit), np.arange(count)[rows]).all() for unit in units), "a unit is cut"
        calls.append(len(units))
        if alone[units].any():
            raise ValueError(units)
        if len(units) > crowd:
            raise MemoryError
        return np.bincount(whose[rows], minlength=len(alone))

    want = np.where(alone, 0, np.diff(edges))
    faults = Faults()
    parts = list(in_parts(compute, count, subjects if grouped else None, faults))
    np.testing.assert_array_equal(sum((found for _, found in parts), start=np.zeros(len(alone), dtype=np.int64)), want)
    assert [place.start for place, _ in parts] == sorted(place.start for place, _ in parts)
    assert faults.records == int((alone * np.diff(edges)).sum())
    assert (faults.first is None) == (not alone.any() and len(alone) <= crowd)
    assert not alone.any() or isinstance(faults.first, ValueError)
    np.testing.assert_array_equal(together(compute, count, subjects if grouped else None, Faults(), np.add), want)


@pytest.mark.parametrize("failing", [1, 3])
def test_halving_takes_a_few_calls_a_fault(failing: int) -> None:
    count, taken, calls = 4096, [0], [0]
    bad = np.random.default_rng(0).choice(count, failing, replace=False)

    def compute(rows: slice) -> int:
        calls[0] += 1
        taken[0] += rows.stop - rows.start
        if np.isin(bad, np.arange(rows.start, rows.stop)).any():
            raise ValueError
        return rows.stop - rows.start

    assert sum(found for _, found in in_parts(compute, count, None, Faults())) == count - failing
    assert calls[0] <= 1 + failing * 2 * math.log2(count)
    assert taken[0] <= (1 + 2 * failing) * count


def test_without_a_taker_faults_are_raised() -> None:
    def compute(rows: Rows) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(in_parts(compute, 3, None, None))
    with pytest.raises(ZeroDivisionError):
        together(compute, 3, None, None)
    with pytest.raises(ZeroDivisionError):
        together(compute, 3, None, Faults(), np.add)
    with pytest.raises(Misuse, match="stand together"):
        list(in_parts(compute, 3, np.array([1, 0, 1]), Faults()))
