"""What a site's part of a round follows from beside its records: the unit drawn, its place, what its operator stated."""

from __future__ import annotations

import numpy as np
import pytest

from support.neighbours import SETTINGS, Setting, random_records
from support.randomness import SeededRandom
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.study.study import Study, Unit
from veilsum_privacy.tasks.base import Records

MEANS = next(setting for setting in SETTINGS if setting.task == "feature-means")
GIVEN = [setting for setting in SETTINGS if setting.given]
GRID = 2**16


def study_of(unit: Unit, setting: Setting = MEANS, **changes: object) -> Study:
    study = setting.study(unit, grid=GRID, variance=10**9)
    return study.model_copy(update={"tasks": tuple(task.model_copy(update=changes) for task in study.tasks)})


@pytest.mark.parametrize("seed", range(5))
def test_a_person_is_drawn_with_all_records_or_with_none(seed: int) -> None:
    """Of persons whose two records cancel each other, any that was drawn by halves would be left in the sums."""
    width, persons = MEANS.schema.width, 40
    half = np.full((persons, width), 0.5)
    features = np.stack([half, -half], axis=1).reshape(2 * persons, width)
    records = Records(features, np.ones(features.shape, dtype=np.bool_), None, np.repeat(np.arange(persons), 2))
    if MEANS.schema.label is not None:
        records = Records(features, records.present, np.zeros(2 * persons, dtype=np.int64), records.subjects)
    for rate in (0.3, 0.7):
        plan = MEANS.plan(study_of("subject", sampling_rate=rate))
        total = compute_sum(plan, records, {}, SitePlace(random=SeededRandom(seed))).total
        sums = total[np.flatnonzero(compute_sum(MEANS.plan(study_of("subject")), records, {}).total == 0)]
        assert len(sums) >= width
        assert not sums.any()
        assert total.any()


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_the_size_that_an_operator_states_shortens_sums_of_all_records_alone(rate: float) -> None:
    """A sampled sum is priced and bounded by its rate, and its mean is not over what a site may come to hold."""
    records = random_records(np.random.default_rng(1), 30, MEANS.schema, complete=True)
    plan = MEANS.plan(study_of("record", sampling_rate=rate))
    stated = [0, MEANS.schema.max_records, 2 * MEANS.schema.max_records]
    usual, same, larger = (
        compute_sum(plan, records, {}, SitePlace(random=SeededRandom(3), most_records=most)).total for most in stated
    )
    assert usual.tolist() == same.tolist()
    assert (usual.tolist() == larger.tolist()) == (rate < 1.0)
    assert np.abs(larger - usual * (1.0 if rate < 1.0 else 0.5)).max() <= 1.0


def test_a_sites_block_is_in_its_own_place() -> None:
    records = random_records(np.random.default_rng(2), 30, MEANS.schema)
    joint, apart = MEANS.plan(study_of("record")), MEANS.plan(study_of("record", disclosure="per-site"))
    own = compute_sum(joint, records, {}).total
    for index in range(apart.task.study.sites):
        blocks = compute_sum(apart, records, {}, SitePlace(index=index)).total.reshape(-1, len(own))
        assert blocks[index].tolist() == own.tolist()
        assert not np.delete(blocks, index, axis=0).any()


@pytest.mark.parametrize("setting", GIVEN, ids=lambda setting: f"{setting.task}-{setting.name}")
def test_a_site_takes_its_own_row_of_what_is_broadcast_for_each(setting: Setting) -> None:
    study = setting.study("record", grid=GRID, variance=0, noise="none")
    records, plan = random_records(np.random.default_rng(4), 30, setting.schema, complete=True), setting.plan(study)
    others = {name: np.stack([row] * study.sites) for name, row in setting.given.items()}
    expected = compute_sum(plan, records, {**setting.broadcast, **others}, SitePlace(random=SeededRandom(1))).total
    for index in range(study.sites):
        rows = {name: np.zeros((study.sites, *row.shape)) for name, row in setting.given.items()}
        for name, row in setting.given.items():
            rows[name][index] = row
        place = SitePlace(index=index, random=SeededRandom(1))
        assert compute_sum(plan, records, {**setting.broadcast, **rows}, place).total.tolist() == expected.tolist()
