"""What one unit adds to an exact sum is no longer than its study declares: every task that reads records, of every method.

Noise is taken out: sums are compared before it, and a step of training that is to be noised is answered by what was drawn
before any record was read, so that both worlds go on from the same model, as composition assumes of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.durable_studies import STUDIES
from support.federation import TestBed, make_bed, make_data
from support.neighbours import exact_norm, join, random_records
from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_privacy.computation import contribution
from veilsum_privacy.computation.contribution import Evaluations, SitePlace, compute_sum
from veilsum_privacy.computation.rehearsal import made_up_broadcast, made_up_statistics
from veilsum_privacy.mechanism.factors import FineUnits
from veilsum_privacy.mechanism.noise import CENTRE_BITS
from veilsum_privacy.mechanism.rows.sums import rows_sum
from veilsum_privacy.mechanism.steps import Steps
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study, Unit, parse_study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import Records

HELD = np.array(
    [0.0, -0.0, 5e-324, -5e-324, 2.2e-308, 1.0, -1.0, 1.0 + 2.0**-52, 1e16, 1e155, -1.7e308, np.inf, -np.inf, np.nan]
)
CLASSES = np.array([-(2**63), -2, -1, 0, 1, 7, 2**63 - 1])
INDEX = 1
"""The site's place among the participants."""


class _Answered(Steps):
    """Steps of all records, whose sums are kept and answered by what is drawn from the step's number."""

    def __init__(self, seen: list[Integers], *given: Any) -> None:
        super().__init__(*given)
        self._seen = seen

    def sample(self, count: int, subjects: Integers | None = None) -> NDArray[np.bool_]:
        return np.ones(count, dtype=np.bool_)

    def noised(self, total: Integers) -> Floats:
        self._seen.append(np.clip(total, -self.bound, self.bound))
        self.taken += 1
        return np.random.default_rng(self.taken).normal(0.0, 0.1 * self.clip, total.size)


class Sums:
    """The exact integers that a site's records give a task, of one declaration and one broadcast."""

    def __init__(self, agreed: AgreedTask) -> None:
        self.agreed, self.broadcast = made_up_broadcast(agreed)
        self.kept, self._evaluations = made_up_statistics(self.agreed), Evaluations()
        study = self.agreed.study
        self.plan = self.agreed.plan(study.sites, study.sites)

    def of(self, records: Records, most_records: int) -> list[Integers]:
        """Of the release, and of each noised step before it; for a dataset of which its operator stated a size."""
        seen: list[Integers] = []

        def steps(*given: Any) -> Steps:
            return _Answered(seen, *given)

        place = SitePlace(INDEX, self.kept, steps=steps, most_records=most_records, evaluations=self._evaluations)
        with np.errstate(all="ignore"):
            total = compute_sum(self.plan, records, self.broadcast, place).total
        if self.agreed.per_site:
            blocks = total.reshape(self.agreed.study.sites, -1)
            total = blocks[INDEX]
            assert np.count_nonzero(blocks) == np.count_nonzero(total), "a site fills its own block alone"
        return [total, *seen]


def tasks_of(study: Study, unit: Unit) -> Iterator[Sums]:
    """Each task of a study that reads records, for a unit, with all records in every sample."""
    value = parse_canonical(study.to_bytes(), what="study")
    value["privacy"]["unit"] = unit
    for task in value["tasks"]:
        task["sampling_rate"] = 1.0
        task.pop("slack", None)
    agreed = AgreedStudy(parse_study(canonical(value)))
    for task in agreed.tasks:
        if task.terms.kind != "derived" and (task.terms.kind != "training" or task.declaration.variance):
            yield Sums(task)  # training without noise declares no bound on what one unit changes


def hostile(rng: np.random.Generator, schema: DatasetSchema, n: int) -> Records:
    """Records as a reader gives them, at bounds, or with values, gaps and classes that no reader gives."""
    records = random_records(rng, n, schema)
    features, present = records.features, records.present
    ways = rng.integers(0, 5, n)[:, None]
    features = np.where(ways == 0, np.sign(rng.normal(size=features.shape)), features)
    features = np.where((ways == 1) & (rng.random(features.shape) < 0.4), rng.choice(HELD, features.shape), features)
    features = np.where(ways == 2, rng.choice(HELD, (n, 1)), features)
    present = np.where(ways == 3, rng.random(present.shape) < 0.5, present | (ways < 3))
    labels = records.labels
    if labels is not None:
        odd = rng.random(n) < 0.2
        labels = np.where(odd, rng.choice(CLASSES, n), rng.integers(0, max(1, len(schema.classes)), n))
    return replace(records, features=features, present=present, labels=labels)


def worlds(rng: np.random.Generator, schema: DatasetSchema, unit: Unit, n: int) -> tuple[Records, Records, Records]:
    """Without a unit, with it, and with another in its place; the others are ``n`` records."""
    counts = (1, 1) if unit == "record" else rng.choice([1, 2, 9], 2)
    base, *units = (hostile(rng, schema, int(count)) for count in (0 if unit == "site" else n, *counts))
    base = replace(base, subjects=np.sort(2 * rng.integers(0, max(1, n // 3), len(base))))
    number = int(2 * rng.integers(-1, n // 3 + 1) + 1)
    one, other = (join(base, replace(added, subjects=np.full(len(added), number))) for added in units)
    return base, one, other


def largest(sums: Sums, unit: Unit, seeds: range) -> float:
    """The longest change that was found of adding one unit, as a share of what is declared; of an exchange it is the half."""
    found, declared = 0.0, sums.agreed.declaration
    for seed, n in itertools.product(seeds, (0, 1, 20, 90)):
        rng, records = np.random.default_rng(seed), sums.agreed.study.data.max_records
        if n > records and not declared.variance:  # an exact sum of more is not bounded, but by who is let in
            continue
        stated = int(rng.choice([0, records + 1, 10 * records])) if n > records else 0
        three = [sums.of(each, stated) for each in worlds(rng, sums.agreed.study.data, unit, n)]
        bound = declared.grid << (CENTRE_BITS if declared.unrounded else 0)
        assert {len(each) for each in three} == {1 + declared.local_steps}
        for at, (none, one, other) in enumerate(zip(*three, strict=True)):
            if at == 0 and declared.local_steps:  # what is trained follows from noised sums
                assert np.array_equal(none, one)
                assert np.array_equal(none, other)
            lengths = [exact_norm(one - none) / bound, exact_norm(other - none) / bound, exact_norm(other - one) / bound / 2]
            assert max(lengths) <= 1.0, (sums.agreed.label, seed, n, at, lengths)
            found = max(found, *lengths)
    return found


UNITS: tuple[Unit, ...] = ("record", "subject", "site")


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    return make_bed(tmp_path_factory.mktemp("kit"), make_data("abcd", width=3), disclosures=("joint", "per-site"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", STUDIES)
def test_a_unit_changes_no_sum_of_a_study_by_more_than_it_declares(bed: TestBed, method: str) -> None:
    """And by more than half of that: a bound declared twice too small would be exceeded."""
    study = STUDIES[method](bed)
    for unit in UNITS:
        for sums in tasks_of(study, unit):
            assert largest(sums, unit, range(4)) > 0.5, (sums.agreed.label, unit)


@pytest.mark.system  # the same of ten times as many draws
@pytest.mark.parametrize("method", STUDIES)
def test_nor_of_many_hostile_draws(bed: TestBed, method: str) -> None:
    study = STUDIES[method](bed)
    for unit in UNITS:
        for sums in tasks_of(study, unit):
            largest(sums, unit, range(4, 44))


@pytest.mark.parametrize(
    ("method", "unit", "where"),
    [
        ("statistics", "record", "rows"),
        ("regression", "record", "rows"),
        ("regression", "subject", "units"),
        ("gbdt of classes", "subject", "units"),
        ("fedsgd", "record", "factors"),
        ("fedavg prox", "record", "steps"),
    ],
)
def test_a_bound_twice_too_small_is_found(
    bed: TestBed, monkeypatch: pytest.MonkeyPatch, method: str, unit: Unit, where: str
) -> None:
    """Planted where a unit is held to the grid: twice of it, or each of a subject's records by itself."""
    rows, fine, steps = rows_sum, FineUnits.of, Steps.units

    def planted(evaluation: Any, records: Records, clip: float, grid: int, **given: Any) -> Any:
        if where == "units":
            return rows(evaluation, records, clip, grid, **{**given, "units": None})
        return rows(evaluation, records, clip, 2 * grid, **given)

    match where:
        case "rows" | "units":
            monkeypatch.setattr(contribution, "rows_sum", planted)
        case "factors":
            monkeypatch.setattr(FineUnits, "of", lambda clip, grid, size, **given: fine(clip, 2 * grid, size, **given))
        case "steps":
            monkeypatch.setattr(Steps, "units", lambda own, size: steps(_doubled(own), size))
    tasks = list(tasks_of(STUDIES[method](bed), unit))
    with pytest.raises(AssertionError, match=r"\(.*, \d+, \d+, \d+, \["):
        _ = [largest(sums, unit, range(4)) for sums in tasks]


def _doubled(steps: Steps) -> Steps:
    found = copy(steps)
    found.grid *= 2
    return found
