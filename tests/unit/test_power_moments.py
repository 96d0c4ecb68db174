"""The tasks power-moments and within-moments, the parts of records, and alignment by moments at a site."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.neighbours import random_records, spoil
from support.neighbours import schema as small
from support.rows import in_statistics_part
from support.studies import complete
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.feature_moments import REFERENCE_MEAN, moment_terms, moments_of_sums, reference_arrays
from veilsum_aggregation.moment_alignment import moment_map
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.mechanism.parts import drawn, hash_is_low
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import NoiseKind, PrivacyDemand, Study, TaskDeclaration
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import DerivedTask, Records, RowTask
from veilsum_privacy.tasks.feature_maps import map_records
from veilsum_privacy.tasks.parameters import Alignment, FeatureParameters, MomentUse, Part, PartParameters

COMMON = {"clip": 1.0, "missing": "skip", "order": 4, "count_weight": 1.5, "power_weight": 0.7}
MOMENTS = {
    "clip": 1e3,
    "missing": "centre",
    "count_weight": 1.0,
    "sum_weight": 1.0,
    "square_weight": 1.0,
    "product_weight": 1.0,
}


def schema(numbers: int, **changes: Any) -> DatasetSchema:
    """As the neighbours' schema, for more records."""
    return small(numbers, **changes).model_copy(update={"max_records": 4096})


def make(parameters: dict[str, Any], agreed: DatasetSchema) -> RowTask:
    task = build_task("power-moments", parameters, agreed)
    assert isinstance(task, RowTask)
    return task


def rows(task: RowTask, records: Records) -> Floats:
    return np.concatenate(list(task_rows(task, records, {})))


def blocks(task: RowTask, records: Records) -> dict[str, Floats]:
    return task.layout().split(rows(task, records).sum(axis=0))


def chebyshev(x: Floats) -> Floats:
    table: Floats = np.polynomial.chebyshev.chebvander(x, 4).astype(np.float64)
    return table


@pytest.mark.parametrize("missing", ["skip", "centre"])
def test_sums_equal_numpy_and_indicators_stay_out(missing: str) -> None:
    agreed = schema(3, categories=(2,))
    records = random_records(np.random.default_rng(0), 2000, agreed)
    got = blocks(make({**COMMON, "missing": missing}, agreed), records)
    keep = records.present.all(axis=1) if missing == "skip" else np.ones(2000, dtype=np.bool_)
    assert 0 < keep.sum() < 2000 or missing == "centre"
    table = chebyshev(records.features[keep, :3]).sum(axis=0)
    assert got["count"][0] == pytest.approx(keep.sum())
    for k in (1, 2, 3, 4):
        np.testing.assert_allclose(got[f"t{k}"], table[:, k], rtol=1e-10, atol=1e-9)


def test_two_moments_release_no_more() -> None:
    layout = make({**COMMON, "order": 2}, schema(3)).layout()
    assert [block.name for block in layout.blocks] == ["count", "t1", "t2"]


def test_a_channel_has_the_moments_of_its_pixels() -> None:
    agreed = schema(6)
    records = random_records(np.random.default_rng(1), 500, agreed, complete=True)
    got = blocks(make({**COMMON, "channels": 2}, agreed), records)
    for channel in (0, 1):
        pixels = records.features[:, 3 * channel : 3 * channel + 3].ravel()
        moments = moments_of_sums(got, {})
        assert moments.mean[channel] == pytest.approx(pixels.mean())
        assert moments.variance[channel] == pytest.approx(pixels.var())
        np.testing.assert_allclose(
            [got[f"t{k}"][channel] for k in (1, 2, 3, 4)], chebyshev(pixels).sum(axis=0)[1:] / 3, rtol=1e-10
        )


def test_features_of_an_encoder_are_cut_to_their_bound() -> None:
    rng = np.random.default_rng(2)
    x = 2 * rng.normal(size=(400, 2))
    records = complete(x)
    got = blocks(make({**COMMON, "clip": 3.0, "width": 2}, schema(4, label=False)), records)
    assert np.abs(x).max() > 3
    np.testing.assert_allclose(got["t3"], chebyshev(np.clip(x / 3, -1, 1)).sum(axis=0)[:, 3], rtol=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 4]), st.sampled_from([None, 1, 2, 3, 6]), st.floats(0.1, 5))
def test_no_record_is_longer_than_the_bound_and_rows_stand_alone(
    seed: int, order: int, channels: int | None, weight: float
) -> None:
    rng, agreed = np.random.default_rng(seed), schema(6)
    task = make({**COMMON, "order": order, "channels": channels, "power_weight": weight}, agreed)
    records = spoil(random_records(rng, 40, agreed), rng)
    found = rows(task, records)
    lengths = np.linalg.norm(found, axis=1)
    assert np.nanmax(lengths) <= task.clip() * (1 + 1e-12)
    order_of = rng.permutation(40)
    np.testing.assert_array_equal(rows(task, records.take(order_of)), found[order_of])
    for row in range(0, 40, 7):
        np.testing.assert_array_equal(rows(task, records.take(np.array([row])))[0], found[row])


def test_parameters_that_cannot_be() -> None:
    for parameters, agreed, message in (
        ({"clip": 2.0}, schema(2), "clip = 1"),
        ({"channels": 2}, schema(3), "2 channels"),
        ({"channels": 2}, schema(3, categories=(3,)), "categories"),
        ({}, schema(0, categories=(2,)), "needs? numbers"),
        ({"alignment": {"kind": "broadcast", "tau": "0x1p+0"}, "width": 2}, schema(2), "not aligned"),
    ):
        with pytest.raises(HostileInput, match=message):
            make({**COMMON, **parameters}, agreed)


def test_a_part_is_a_function_of_each_record_alone() -> None:
    rng, agreed = np.random.default_rng(3), schema(4)
    records = random_records(rng, 4000, agreed)
    picked = in_statistics_part(records, 0.3)
    assert abs(picked.mean() - 0.3) < 4 * (0.21 / 4000) ** 0.5
    order = rng.permutation(4000)
    np.testing.assert_array_equal(in_statistics_part(records.take(order), 0.3), picked[order])
    np.testing.assert_array_equal(in_statistics_part(records.take(np.arange(50)), 0.3), picked[:50])
    assert (in_statistics_part(records, 0.5) >= picked).all()
    same = replace(records, features=np.where(records.present, records.features, np.nan))
    np.testing.assert_array_equal(in_statistics_part(same, 0.3), picked)
    zeros = replace(records, features=np.zeros((4000, 4)))
    np.testing.assert_array_equal(
        in_statistics_part(replace(zeros, features=-zeros.features), 0.3), in_statistics_part(zeros, 0.3)
    )
    assert records.labels is not None
    other = replace(records, labels=(records.labels + 1) % 3)
    assert (in_statistics_part(other, 0.3) != picked).any()


def study(tasks: list[dict[str, Any]], agreed: DatasetSchema, noise: NoiseKind = "none", **changes: Any) -> Study:
    declared = []
    for task in tasks:
        values = {"disclosure": "joint", "releases": 1, "grid": 2**20, "variance": 0 if noise == "none" else 2**30}
        declared.append(TaskDeclaration.model_validate({**values, **task}))
    demand = PrivacyDemand(
        epsilon=None if noise == "none" else 1.0,
        delta=1e-5,
        noise=noise,
        assumed_colluders=1,
        min_cohort=2,
        cohort_difference="strict",
        unit="record",
    )
    names = ("a", "b")
    return Study(
        version=1,
        name="moments",
        federation="0" * 64,
        coordinator="coordinator",
        nonce="0" * 32,
        created=0,
        expires=1,
        method="moments",
        parameters={},
        dataset="records",
        data=agreed,
        privacy=demand,
        tasks=tuple(declared),
        participants=names,
        weights=dict.fromkeys(names, 1),
        **changes,
    )


def by_moments(order: int = 2, tau: float = 1.0, **use: Any) -> dict[str, Any]:
    return {"kind": "moments", "tau": tau, "moments": {"order": order, "adjust": "both", **use}}


SOURCE = {"label": "power-moments", "task": "power-moments", "parameters": COMMON, "keep": True}


def aligned(alignment: dict[str, Any] | None, source: str | None = "power-moments", **parameters: Any) -> dict[str, Any]:
    return {
        "label": "sums",
        "task": "class-moments",
        "parameters": {**MOMENTS, "alignment": alignment, **parameters},
        "source": source,
    }


def test_sites_align_by_what_they_kept_to_what_was_summed() -> None:
    """Two sites with other gains: kept sums, their reference, and a task on aligned records, as the framework runs it."""
    rng, agreed = np.random.default_rng(4), schema(3, categories=(2,))
    asked = study([SOURCE, aligned(by_moments(4))], agreed)
    sites = [random_records(rng, 600, agreed) for _ in range(2)]
    for records, (gain, offset) in zip(sites, ((0.5, 0.2), (0.9, -0.05)), strict=True):
        records.features[:, :3] = np.where(records.present[:, :3], offset + gain * records.features[:, :3] ** 3, 0.0)
    plan = AgreedStudy(asked).task("power-moments").plan(2, 2)
    kept = [compute_sum(plan, records, {}, SitePlace(index)).total for index, records in enumerate(sites)]
    own = [AgreedStudy(asked).task("power-moments").kept_blocks(vector) for vector in kept]
    total = {name: own[0][0][name] + own[1][0][name] for name in own[0][0]}
    reference = moments_of_sums(total, {})
    plan = AgreedStudy(asked).task("sums").plan(2, 2)
    for index, records in enumerate(sites):
        place = SitePlace(index, {"power-moments": kept[index]})
        got = compute_sum(plan, records, reference_arrays(reference), place).total
        task = AgreedStudy(asked).task("sums").task
        unit = task.clip() / 2**20
        found = moment_map(moments_of_sums(*own[index]), reference, order=4)
        x = records.features.copy()
        x[:, :3] = np.where(records.present[:, :3], np.clip(found(x[:, :3]), -1, 1), 0.0)
        labelled = records.labels >= 0 if records.labels is not None else np.zeros(600, dtype=np.bool_)
        sums = task.layout().split((got * unit).astype(np.float64))["sums"].sum(axis=0)
        np.testing.assert_allclose(sums, x[labelled].sum(axis=0), atol=600 * unit)
        assert np.abs(x[:, :3] - records.features[:, :3]).max() > 0.1
        with pytest.raises(Misuse, match="kept no statistic"):
            compute_sum(plan, records, reference_arrays(reference), SitePlace(index))
        with pytest.raises(HostileInput, match="reference"):
            compute_sum(plan, records, {REFERENCE_MEAN: np.zeros(3)}, place)


def test_a_box_is_kept_and_what_is_absent_stays_absent() -> None:
    rng, agreed = np.random.default_rng(5), schema(2)
    asked = study([SOURCE, aligned(by_moments())], agreed)
    records = spoil(random_records(rng, 300, agreed), rng)
    narrow, wide = (np.clip(c + s * rng.normal(size=(900, 2)), -1, 1) for c, s in ((0.5, 0.02), (-0.4, 0.4)))
    own, target = (blocks(make(COMMON, agreed), complete(x)) for x in (narrow, wide))
    parameters = FeatureParameters(clip=9.0, missing="centre", alignment=Alignment.model_validate(by_moments()))
    arrays = reference_arrays(moments_of_sums(target, {}))
    got = map_records(asked, parameters, records, arrays, index=0, kept=own, noise_std={})
    np.testing.assert_array_equal(got.present, records.present)
    assert (got.features[~records.present] == 0).all()
    present = got.features[records.present]
    assert np.nanmax(np.abs(present)) == 1.0
    np.testing.assert_array_equal(np.isnan(present), np.isnan(records.features[records.present]))
    order = rng.permutation(300)
    again = map_records(asked, parameters, records.take(order), arrays, index=0, kept=own, noise_std={})
    np.testing.assert_array_equal(again.features, got.features[order])
    broadcast = parameters.model_copy(update={"alignment": Alignment(kind="broadcast", tau=1.0)})
    with pytest.raises(HostileInput, match="by moments only"):
        map_records(asked, broadcast, records, arrays, index=0)


def test_features_of_an_encoder_are_aligned_in_units_of_their_bound() -> None:
    rng, agreed = np.random.default_rng(6), schema(2)
    program = Program(format="exported", sha256="0" * 64, inputs=(2,), width=3)
    asked = study(
        [SOURCE | {"parameters": {**COMMON, "width": 3, "clip": 4.0}}, aligned(by_moments(bound=4.0), width=3)],
        agreed,
        encoder=program,
    )
    for declaration in asked.tasks:
        AgreedTask(AgreedStudy(asked), declaration)
    x = 0.5 + 0.7 * rng.normal(size=(800, 3))
    records = complete(x)
    y = np.clip(-0.1 + 0.2 * rng.normal(size=(800, 3)), -1, 1)
    own = blocks(make({**COMMON, "width": 3, "clip": 4.0}, agreed), records)
    target = moments_of_sums(blocks(make({**COMMON, "width": 3}, agreed), Records(y, records.present, None)), {})
    parameters = FeatureParameters(
        clip=9.0, missing="skip", width=3, alignment=Alignment.model_validate(by_moments(bound=4.0))
    )
    got = map_records(asked, parameters, records, reference_arrays(target), index=0, kept=own, noise_std={})
    np.testing.assert_allclose(got.features.mean(axis=0), 4 * y.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(got.features.std(axis=0), 4 * y.std(axis=0), rtol=1e-9)


def test_a_task_sees_its_part_only() -> None:
    agreed = schema(3)
    records = random_records(np.random.default_rng(7), 1000, agreed)
    asked = study([SOURCE], agreed)
    parts = {}
    known: tuple[Part, ...] = ("all", "statistics", "training")
    for part in known:
        parameters = PartParameters(clip=1.0, missing="skip", part=part, part_share=0.3)
        parts[part] = map_records(asked, parameters, records, {}, index=0)
    assert len(parts["all"]) == 1000 == len(parts["statistics"]) + len(parts["training"])
    picked = in_statistics_part(records, 0.3)
    np.testing.assert_array_equal(parts["statistics"].features, records.features[picked])
    assert parts["training"].labels is not None
    assert records.labels is not None
    np.testing.assert_array_equal(parts["training"].labels, records.labels[~picked])
    counted = study(
        [SOURCE | {"parameters": {**COMMON, "missing": "centre", "part": "statistics", "part_share": 0.3}}], agreed
    )
    total = compute_sum(AgreedStudy(counted).task("power-moments").plan(2, 2), records, {}).total
    assert AgreedStudy(counted).task("power-moments").kept_blocks(total)[0]["count"][0] == pytest.approx(
        picked.sum(), abs=0.01
    )


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([SOURCE, aligned({"kind": "moments", "tau": 1.0})], "exactly if"),
        ([SOURCE, aligned(by_moments() | {"kind": "broadcast"})], "name a source if, and only if"),
        ([aligned(by_moments(4) | {"kind": "broadcast"}, None)], "by mean and variance"),
        ([SOURCE, aligned(by_moments(drawn=True))], "drawn from a broadcast"),
        ([SOURCE, aligned(by_moments(), None)], "must name a source"),
        ([SOURCE, aligned(by_moments(channels=1))], "cannot compute from what"),
        ([SOURCE, aligned(by_moments(bound=2.0))], "cannot compute from what"),
        ([SOURCE, aligned(by_moments(4, adjust="mean"))], "both"),
        ([SOURCE | {"parameters": {**COMMON, "order": 2}}, aligned(by_moments(4))], "cannot compute from what"),
        ([SOURCE | {"task": "class-moments", "parameters": MOMENTS}, aligned(by_moments())], "cannot compute"),
        (
            [SOURCE, {"label": "w", "task": "within-moments", "parameters": {"channels": 3}, "source": "power-moments"}],
            "cannot compute from what",
        ),
    ],
)
def test_declarations_that_do_not_fit_are_refused(tasks: list[dict[str, Any]], message: str) -> None:
    asked = study(tasks, schema(3))
    with pytest.raises(HostileInput, match=message):
        _ = AgreedStudy(asked).tasks


def test_sums_of_what_sites_tell_are_those_of_their_moments() -> None:
    rng, agreed = np.random.default_rng(8), schema(2)
    task = build_task("within-moments", {}, agreed)
    assert isinstance(task, DerivedTask)
    own = blocks(make(COMMON, agreed), random_records(rng, 60, agreed, complete=True))
    vector = task.vector(own, {}, {})
    assert np.abs(vector).max() <= task.clip()
    got, expected = task.layout().split(vector), moment_terms(moments_of_sums(own, {}))
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-12)
    untold = task.layout().split(task.vector(own, {"t2": 60.0}, {}))
    assert (untold["spread"] == 0).all()
    with pytest.raises(ValueError, match="other features"):
        task.vector({name: np.zeros(3 if name != "count" else 1) for name in own}, {}, {})


def test_moments_are_stated_with_their_use() -> None:
    use = MomentUse(order=2, adjust="both")
    assert Alignment(kind="moments", tau=1.0, moments=use).moments == use
    assert use.bound == 1.0


def test_what_is_absent_and_the_sign_of_zero_decide_no_part() -> None:
    """Two spellings of one record are in one part, and have one draw."""
    present, labels = np.array([[True, False, True]] * 3), np.array([1, 1, -1])
    features = np.array([[0.0, 0.25, 1.0], [-0.0, -7.0, 1.0], [0.0, 0.25, 1.0]])
    draws = drawn(features, present, labels, 5)
    assert draws[0] == draws[1] != draws[2]
    for share in np.linspace(0.0, 1.0, 33):
        low = hash_is_low(features, present, labels, float(share))
        assert low[0] == low[1]
