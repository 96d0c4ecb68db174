"""The unit of privacy "site": all records of a site are one unit, whatever they hold, and however they are read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.federation import DATASET, make_bed, make_data, make_request, schema_of
from support.neighbours import NEIGHBOURS, SETTINGS, Setting, exact_norm, join, random_records, repeated
from support.studies import SITES, compiled, federation, shifted_sites
from veilsum.plan import SITES_OF_NOISE, notes, site_shares
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.query_requests import check_persons
from veilsum_node.errors import ConfigurationError, VeilsumError
from veilsum_privacy.accounting.accountant import epsilon_of
from veilsum_privacy.accounting.prices import declared_event
from veilsum_privacy.audit.canaries import as_unit, made_up_company
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.ledger import Kind
from veilsum_privacy.mechanism.answering import answered
from veilsum_privacy.mechanism.factors import Entries, Products
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.mechanism.requests import Request
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.symbols import record_of, traced
from veilsum_privacy.mechanism.steps import Steps
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records, RowTask

EVERY = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.task}-{setting.name}")
HOSTILE = [math.nan, math.inf, -math.inf, 1.7e308, 5e-324, -0.0, 1.0, -1.0]


def site_study(setting: Setting, grid: int = 2**20) -> Study:
    return setting.study("site", grid=grid, variance=0, noise="none")


def hostile(setting: Setting, rng: np.random.Generator, n: int) -> Records:
    """The task's own worst record, random ones, and some with a value that nothing should hold."""
    records = join(random_records(rng, n, setting.schema), repeated(NEIGHBOURS[setting.task].worst(setting), max(1, n // 2)))
    features = records.features.copy()
    spoilt = rng.random(features.shape) < 0.05
    features[spoilt] = rng.choice(HOSTILE, int(spoilt.sum()))
    return replace(records, features=features, subjects=rng.integers(0, 3, len(records)).cumsum())


@pytest.mark.sampled(9)
@EVERY
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 60), grid=st.integers(64, 2**26))
def test_all_records_of_a_site_change_a_sum_by_at_most_the_grid(setting: Setting, seed: int, n: int, grid: int) -> None:
    rng, study = np.random.default_rng(seed), site_study(setting, grid)
    records = hostile(setting, rng, n)
    whole = setting.total(study, records) - setting.total(study, records.take(np.arange(0)))
    assert exact_norm(whole) <= study.tasks[0].grid
    # Which records are of one person makes no difference, nor is there need to know.
    np.testing.assert_array_equal(setting.total(study, replace(records, subjects=None)), setting.total(study, records))


@pytest.mark.sampled(9)
@EVERY
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(0, 60))
def test_one_record_changes_it_by_no_more_but_for_its_rounding(setting: Setting, seed: int, n: int) -> None:
    """Pulling sums in brings none further from another, and cutting off moves each value by less than a grid unit."""
    rng, study = np.random.default_rng(seed), site_study(setting)
    others, one = hostile(setting, rng, n + 1), hostile(setting, rng, 1).take(np.arange(1))
    without, with_it = setting.total(study, others), setting.total(study, join(others, one))
    bound = study.tasks[0].grid + math.sqrt(len(without)) * (1 + setting.rounded)
    assert exact_norm(with_it - without) <= bound


@pytest.mark.sampled(9)
@EVERY
def test_the_worst_site_reaches_the_grid_and_a_site_is_one_subject(setting: Setting) -> None:
    for times in (1, 7, 30):
        records = repeated(NEIGHBOURS[setting.task].worst(setting), times)
        study = site_study(setting)
        total = setting.total(study, records)
        assert 0.95 * study.tasks[0].grid <= exact_norm(total - setting.total(study, records.take(np.arange(0))))
        subjects = setting.study("subject", grid=2**20, variance=0, noise="none")
        one = setting.total(subjects, replace(records, subjects=np.zeros(times, dtype=np.int64)))
        np.testing.assert_array_equal(total, one)


def test_a_site_that_is_read_in_batches_is_one_unit_still() -> None:
    """As many batches as there are would be as many units, each clipped by itself."""
    setting = next(own for own in SETTINGS if own.task == "power-moments")
    study, records = site_study(setting), hostile(setting, np.random.default_rng(1), 90)
    plan = setting.plan(study)

    def batches(size: int) -> Iterator[Records]:
        for begin in range(0, len(records), size):
            yield records.take(np.arange(begin, min(begin + size, len(records))))

    expected = compute_sum(plan, records, setting.broadcast, SitePlace()).total
    for size in (1, 7, 200):
        np.testing.assert_array_equal(compute_sum(plan, batches(size), setting.broadcast, SitePlace()).total, expected)
    assert exact_norm(expected) <= study.tasks[0].grid


def test_the_sum_is_that_of_numpy() -> None:
    """Rows as the task has them, each pulled in to C, added, and the sum pulled in to C again."""
    study = compiled(
        "fedavg", {"rounds": 1, "model": {"name": "linear"}, "moments": {"records": 1.0}}, unit="site", noise="none"
    )
    setting = next(own for own in SETTINGS if own.task == "gaussian-moments")
    declared = site_study(setting, grid=2**26)
    records = random_records(np.random.default_rng(2), 70, setting.schema, complete=True)
    plan = setting.plan(declared)
    task: Any = plan.task.task
    assert isinstance(task, RowTask)
    rows, clip = np.concatenate(list(task_rows(task, records, setting.broadcast))), task.clip()
    rows = rows * np.minimum(1.0, clip / np.linalg.norm(rows, axis=1))[:, None]
    total = rows.sum(axis=0)
    expected = total * min(1.0, clip / np.linalg.norm(total)) / clip * declared.tasks[0].grid
    assert np.linalg.norm(total) > 5 * clip
    np.testing.assert_allclose(setting.total(declared, records), expected, atol=len(records) + 2)
    assert study.privacy.unit == "site"


def test_a_site_is_sampled_whole_or_not_at_all() -> None:
    study = compiled(
        "fedsgd", {"steps": 40, "sampling_rate": 0.5, "centre": False, "followed": False}, epsilon=8.0, unit="site"
    )
    running = federation(study, shifted_sites(60))
    result = get_method("fedsgd").run(running)
    assert result.summary["steps"] == 40
    assert study.privacy.unit == "site"
    assert epsilon_of([declared_event(study.tasks[0])], 1e-5, "gaussian") == pytest.approx(8.0, rel=1e-3)


class Alike:
    """A source of one byte only."""

    def __init__(self, byte: int) -> None:
        self._byte = bytes([byte])

    def bytes(self, count: int) -> bytes:
        return self._byte * count


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records a graph is computed on, each time."""
    seen, blocks = list[int](), Evaluation.blocks

    def counting(self: Evaluation, records: Records, counted: Any = None) -> Any:
        seen.append(len(records))
        return blocks(self, records, counted)

    monkeypatch.setattr(Evaluation, "blocks", counting)
    return seen


@pytest.mark.parametrize("task", ["gradient", "power-moments"])
def test_a_site_that_is_not_drawn_computes_as_much_as_one_that_is(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """How long it takes would tell the draw of each step, and what is not drawn is what sampling is cheaper by."""
    setting = next(own for own in SETTINGS if own.task == task)
    study = setting.study("site", grid=2**16, variance=2**32)
    study = study.model_copy(update={"tasks": (study.tasks[0].model_copy(update={"sampling_rate": 0.5}),)})
    records, seen = random_records(np.random.default_rng(3), 40, setting.schema, complete=True), watched(monkeypatch)
    drawn, left = (
        compute_sum(setting.plan(study), records, setting.seen, SitePlace(random=Alike(byte))).total for byte in (0, 255)
    )
    assert drawn.any()
    assert not left.any()
    assert seen == [40, 40]
    assert exact_norm(drawn) <= study.tasks[0].grid


def test_a_site_that_trains_computes_as_much_in_steps_that_it_is_not_drawn_for(monkeypatch: pytest.MonkeyPatch) -> None:
    records, seen = shifted_sites(40)["a"], watched(monkeypatch)
    graph, sums = traced(record_of(records.features.shape[1], labelled=True).features), list[Any]()
    products = Products((Entries(records.features.shape[1]),), 1.0)

    class Told(Steps):
        def noised(self, total: Any) -> Any:
            sums.append(total)
            return total.astype(np.float64)

    def training() -> Any:
        for _ in range(12):
            yield Request(graph, products)
        return None

    steps = Told(12, 0.5, NoisePlan("none", 0, 1, 1), 2**20, 1.0, 2**40, np.random.default_rng(5))
    one = replace(records, subjects=np.zeros(len(records), dtype=np.int64))
    answered(training(), steps, lambda: one, 40, unit="site")
    assert seen == [40] * 12
    whole = next(total for total in sums if total.any())
    assert 1 <= sum(not total.any() for total in sums) <= 11
    for total in sums:
        np.testing.assert_array_equal(total, whole if total.any() else 0)


def test_the_vector_of_a_large_site_is_as_long_as_that_of_any_other() -> None:
    """Sums of records shrink where a site has more of them than the study counts on; one unit's has no more than its grid."""
    setting = next(own for own in SETTINGS if own.task == "power-moments")
    study = setting.study("site", grid=2**20, variance=2**40)
    records = random_records(np.random.default_rng(6), 50, setting.schema, complete=True)
    small, large = (
        compute_sum(setting.plan(study), records, setting.seen, SitePlace(most_records=most)).total
        for most in (50, 100 * study.data.max_records)
    )
    np.testing.assert_array_equal(large, small)


@pytest.mark.parametrize("noise", ["distributed", "local"])
def test_the_plan_says_how_many_sites_it_takes(noise: str) -> None:
    """By the definition: noise of so many values is as long as S sqrt(d), and a site's vector as D."""
    study = compiled("pca", {"width": 2}, epsilon=2.0, unit="site", noise=noise)
    task, values = study.tasks[0], 6 * 7 // 2 + 6 + 1
    cohort, honest = len(SITES), len(SITES) - 1
    std = math.sqrt(task.variance * (cohort if noise == "local" else cohort / honest))
    if task.disclosure == "per-site":
        std = math.sqrt(task.variance)
    share, enough = site_shares(study)[task.label]
    assert share == pytest.approx(std * math.sqrt(values) / task.grid)
    expected = (SITES_OF_NOISE * share) ** 2 / cohort if noise == "local" else SITES_OF_NOISE * share
    assert enough == math.ceil(expected)
    said = " ".join(notes(study, 100))
    assert "for all records of a site together" in said
    assert f"{enough:,} sites" in said
    assert "too few for that" in said
    assert "of a site together" not in " ".join(notes(compiled("pca", {"width": 2}, epsilon=2.0, noise=noise), 100))


def test_moments_of_sites_that_count_as_one_are_said_to_be_released_in_vain() -> None:
    """However many records there are: the count beneath the moments is that of a vector of one."""
    asked, said = {"steps": 2, "optimiser": {"learning_rate": 1.0}, "centre": False, "moments": {}}, {}
    for unit in ("record", "site"):
        study = compiled("fedsgd", asked, epsilon=8.0, unit=unit, noise="local", expected=800)
        said[unit] = "Alignment by moments will not pay" in " ".join(notes(study, 800))
    assert said == {"record": False, "site": True}


@pytest.mark.parametrize(
    ("method", "parameters"), [("statistics", {}), ("fedcgs", {"describe": True}), ("federated-evaluation", {})]
)
def test_what_describes_records_is_refused(method: str, parameters: dict[str, Any]) -> None:
    if method == "federated-evaluation":
        study = compiled("fedsgd", {"steps": 2}, epsilon=3.0, unit="site").model_copy(update={"method": method})
        with pytest.raises(ConfigurationError, match="no count is right"):
            check_persons(None, 0, study)
        return
    with pytest.raises(ConfigurationError, match="shortened together"):
        compiled(method, parameters, epsilon=3.0, unit="site")


def test_canaries_of_a_site_are_whole_sites() -> None:
    record = shifted_sites(1)["a"]
    schema = compiled("fedsgd", {}).data
    assert len(as_unit(record, "site", 3)) == len(as_unit(record, "subject", 3)) > 1
    assert len(made_up_company([as_unit(record, "site", 0)], schema, "site", np.random.default_rng(0))) == 0


def test_sites_agree_to_it_by_name_and_book_it_so(tmp_path: Any) -> None:
    """A site that does not list the unit refuses; one that does books it, and needs no column of persons."""
    for units in (("record", "subject"), ("site",)):
        bed = make_bed(tmp_path / units[0], make_data("abc", 60), units=units)
        study = bed.compile(make_request(schema_of(2), "pca", 2.0, noise="distributed", unit="site"))
        local = bed.local
        if "site" not in units:
            with pytest.raises(VeilsumError, match="unit-not-accepted"):
                get_method("pca").run(local.prepare(local.submit(study, bed.analyst)))
            continue
        bed.know_noise()
        get_method("pca").run(local.prepare(local.submit(study, bed.analyst)))
        for site in bed.sites.values():
            charged = list(site.ledger.entries(kind=Kind.CHARGE))
            assert [entry.unit for entry in charged] == ["site"] * len(charged)
            assert charged
            assert site.ledger.verify().spending[DATASET][0] == pytest.approx(study.privacy.epsilon)


@pytest.mark.parametrize(("method", "noise", "said"), [("fedavg", "none", 1), ("fedavg", "local", 0), ("pca", "none", 0)])
def test_a_plan_says_that_training_without_noise_may_show_a_site(method: str, noise: str, said: int) -> None:
    parameters = {"rounds": 1, "model": {"name": "linear"}} if method == "fedavg" else {}
    study = compiled(method, parameters, noise=noise) if noise == "none" else compiled(method, parameters, epsilon=3.0)
    assert len([note for note in notes(study, 100) if "show one site's own: a site takes part only if" in note]) == said
