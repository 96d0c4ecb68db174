"""No unit, whatever it holds, changes the exact sum of a regression's release by more than the accountant is told.

Of every release of every family, in all variants, with any broadcast that its task takes: the sum over some others and this
one, less that over the others, in whole grid units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.studies import agreed, demand
from veilsum.compile import StudyRequest
from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.computation.rehearsal import made_up_broadcast
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.mechanism.noise import CENTRE_BITS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records

pytestmark = pytest.mark.usefixtures("few_rehearsals")

SITES = [f"site-{index}" for index in range(4)]
SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=90),
        NumberColumn(name="visits", low=0, high=8),
        NumberColumn(name="weight", low=-2, high=3),
        NumberColumn(name="time", low=0, high=12),
        NumberColumn(name="start", low=0, high=12),
        CategoryColumn(name="arm", categories=("a", "b")),
        CategoryColumn(name="stage", categories=("I", "II", "III")),
        CategoryColumn(name="end", categories=("alive", "died")),
    ),
    max_records=200,
)
OVER = ["age", "arm", "stage"]
DIED, STAYED = {"outcome": "end = 'died'"}, {"outcome": "visits"}
COX = {"family": "cox", "outcome": "time", "event": "end", "censored": ["alive"]}
CASES: dict[str, dict[str, Any]] = {
    "linear": {"family": "linear", **STAYED},
    "linear, of an event": {"family": "linear", **DIED},
    "linear, robust": {"family": "linear", **STAYED, "errors": "robust"},
    "linear, by site": {"family": "linear", **STAYED, "errors": "clustered"},
    "logistic": {"family": "logistic", **DIED},
    "logistic, robust": {"family": "logistic", **DIED, "errors": "robust"},
    "logistic, by site": {"family": "logistic", **DIED, "errors": "clustered"},
    "poisson": {"family": "poisson", **STAYED},
    "poisson, of the model": {"family": "poisson", **STAYED, "errors": "model"},
    "poisson, with an offset": {"family": "poisson", **STAYED, "offset": "weight"},
    "cox": COX,
    "cox, from later": COX | {"entry": "start"},
    "cox, in strata": COX | {"strata": "stage", "over": ["age", "arm"]},
    "cox, in strata, from later": COX | {"strata": "stage", "over": ["age", "arm"], "entry": "start"},
    "cox, by site": COX | {"errors": "clustered"},
}
WHERE = ("", "age > 40 and not stage = 'II'")
PERSONS: dict[str, tuple[str, dict[str, Any]]] = {
    "record": ("record", {}),
    "mean": ("subject", {"person": "mean"}),
    "max": ("subject", {"person": "max"}),
    "at most": ("subject", {"at_most": 2}),
    "first": ("subject", {"person": "first"}),
}


@cache
def study_of(case: str, where: str, unit: str) -> Study:
    counts, persons = PERSONS[unit]
    parameters = {"over": OVER, **CASES[case], **persons} | ({"where": where} if where else {})
    privacy = demand(8.0).model_copy(update={"unit": counts})
    return agreed(
        StudyRequest(name="fit", method="regression", dataset="records", data=SCHEMA, parameters=parameters, privacy=privacy),
        SITES,
    )


EDGES = (-1.0, -0.999, -1e-300, 0.0, 0.5, 0.999, 1.0)
ODD = (np.nan, np.inf, -np.inf, 1e308, -7.0)


@st.composite
def records(draw: st.DrawFn, most: int) -> Records:
    """Records as they are read; sometimes such as are never read."""
    count = draw(st.integers(1, most))
    number = st.sampled_from(EDGES) | st.floats(-1, 1)
    if draw(st.integers(0, 9)) == 0:
        number |= st.sampled_from(ODD)
    features, present = np.zeros((count, SCHEMA.width)), np.ones((count, SCHEMA.width), dtype=np.bool_)
    for row in range(count):
        features[row, :5] = draw(st.lists(number, min_size=5, max_size=5))
        for start, size in ((5, 2), (7, 3), (10, 2)):
            level = draw(st.integers(-1, size - 1))
            features[row, start + max(level, 0)] = level >= 0
            present[row, start : start + size] = level >= 0
        present[row, :5] = draw(st.lists(st.sampled_from([True, True, True, False]), min_size=5, max_size=5))
    return Records(np.where(present, features, 0.0), present, None, np.zeros(count, dtype=np.int64))


@st.composite
def broadcasts(draw: st.DrawFn, made_up: Mapping[str, Floats]) -> dict[str, Floats]:
    """The arrays of a legal broadcast, of any size."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    found = {}
    for name, array in made_up.items():
        size = draw(st.sampled_from([0.0, 1e-6, 0.3, 1.0, 3.0, 30.0, 1e3, 1e6]))
        found[name] = array + size * rng.uniform(-1, 1, array.shape) if draw(st.booleans()) else array
    return found


def together(one: Records, other: Records) -> Records:
    assert one.subjects is not None
    assert other.subjects is not None
    return Records(
        np.vstack([one.features, other.features]),
        np.vstack([one.present, other.present]),
        None,
        np.concatenate([one.subjects, other.subjects + 1]),
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("unit", PERSONS)
@pytest.mark.parametrize("where", WHERE, ids=["all", "some"])
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_unit_changes_a_sum_by_more_than_the_accountant_is_told(
    case: str, where: str, unit: str, data: st.DataObject
) -> None:
    study = study_of(case, where, unit)
    place = data.draw(st.integers(0, len(study.tasks) - 1))
    task = AgreedStudy(study).task(study.tasks[place].label)
    plan = task.plan(len(SITES), len(SITES))
    broadcast = data.draw(broadcasts(made_up_broadcast(task)[1]))
    own = data.draw(records(1 if unit == "record" else 5))
    others = data.draw(records(3))
    site = SitePlace(data.draw(st.integers(0, len(SITES) - 1)))
    try:
        without = compute_sum(plan, others, broadcast, site).total
    except HostileInput:  # of the broadcast
        return
    changed = compute_sum(plan, together(own, others), broadcast, site).total - without
    assert share_of_bound(study, place, changed) <= 1.0


def share_of_bound(study: Study, place: int, changed: Integers) -> float:
    """The norm of a change of a release's sum as a share of what the accountant is told of it; infinite if any longer."""
    declaration = study.tasks[place]
    told = Mechanism.of(declaration, AgreedStudy(study).task(declaration.label).plan(len(SITES), len(SITES)).noise)
    most = told.sensitivity * (1 << CENTRE_BITS if declaration.unrounded else 1)
    squared = sum(int(value) ** 2 for value in changed)
    return math.sqrt(squared) / most if squared <= most**2 else math.inf


@pytest.mark.parametrize("unit", ["record", "at most"])
@pytest.mark.parametrize("case", ["linear", "linear, of an event", "logistic", "poisson", "cox"])
def test_some_unit_changes_a_sum_by_almost_as_much(case: str, unit: str) -> None:
    """So that a bound that is told too small would show above: the moments of a record at the ends of its columns."""
    study, count = study_of(case, "", unit), 1 if unit == "record" else 2
    features = np.array([[1.0, 1.0, 1.0, 1.0, -1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]] * count)
    own = Records(features, np.ones(features.shape, dtype=np.bool_), None, np.zeros(count, dtype=np.int64))
    found = []
    for place, declaration in enumerate(study.tasks):
        task = AgreedStudy(study).task(declaration.label)
        plan = task.plan(len(SITES), len(SITES))
        changed = compute_sum(plan, own, made_up_broadcast(task)[1], SitePlace(0)).total
        found.append(share_of_bound(study, place, changed))
    assert 0.8 < max(found) <= 1.0, found
