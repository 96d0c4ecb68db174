"""What fails on a unit stays with it: every task, both units, faults planted at each depth, and the halving by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.neighbours import SETTINGS, Setting, random_records, spoil
from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse
from veilsum_privacy.computation.contribution import SitePlace, contribute
from veilsum_privacy.mechanism.units import Faults, Rows, in_parts, unit_edges
from veilsum_privacy.tasks.base import Records


def broadcast_of(setting: Setting, sites: int) -> dict[str, Floats]:
    return {**setting.broadcast, **{name: np.stack([row] * sites) for name, row in setting.given.items()}}


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
    with pytest.raises(Misuse, match="stand together"):
        list(in_parts(compute, 3, np.array([1, 0, 1]), Faults()))
