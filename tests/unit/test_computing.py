"""A site's part of a round: per-site blocks, kept statistics, and declarations that no site computes."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from support.neighbours import SETTINGS, TASK_LABEL, Setting, exact_norm, moments_parameters, random_records
from support.randomness import SeededRandom
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.mechanism.noise_plan import task_noise
from veilsum_privacy.study.study import Study, TaskDeclaration, parse_study
from veilsum_privacy.tasks import TASKS, build_task
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan
from veilsum_privacy.tasks.base import DerivedTask
from veilsum_privacy.tasks.class_mixtures import CENTRES
from veilsum_privacy.tasks.formulas import FACTOR, TOTAL

FIRST = next(s for s in SETTINGS if s.task == "prototypes")
D = FIRST.schema.width
MOMENTS = moments_parameters(2.0, 1, 1, 1, 1)
MAPPED = {"width": D}
TWO_WAY = {"alignment": {"kind": "two-way", "tau": 0.4}}


def declare(label: str, task: str, parameters: dict[str, Any], **more: Any) -> TaskDeclaration:
    values = {"label": label, "task": task, "parameters": parameters, "disclosure": "joint", "releases": 1}
    return TaskDeclaration.model_validate({**values, "grid": 2**20, "variance": 0, **more})


def study_of(*tasks: TaskDeclaration, noise: str = "none") -> Study:
    base = FIRST.study("record", grid=1, variance=0 if noise == "none" else 10**9, noise=noise)  # type: ignore[arg-type]
    privacy = base.privacy.model_copy(update={"cohort_difference": "strict"}).model_dump()
    return Study.model_validate({**base.model_dump(), "privacy": privacy, "tasks": [task.model_dump() for task in tasks]})


def plan_of(study: Study, label: str) -> RoundPlan:
    return AgreedStudy(study).task(label).plan(study.sites, study.sites)


def records(n: int = 50, seed: int = 0) -> Any:
    return random_records(np.random.default_rng(seed), n, FIRST.schema, complete=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "setting", [s for s in SETTINGS if "per-site" in TASKS[s.task].disclosures], ids=lambda s: f"{s.task}-{s.name}"
)
def test_a_per_site_vector_has_its_own_block_alone(setting: Setting) -> None:
    joint = setting.study("record", grid=2**16, variance=0, noise="none")
    each = joint.model_copy(update={"tasks": (joint.tasks[0].model_copy(update={"disclosure": "per-site"}),)})
    some = random_records(np.random.default_rng(1), 9, setting.schema, complete=True)
    rows = {name: np.stack([row] * 4) for name, row in setting.given.items()}
    broadcast = {**setting.broadcast, **rows}
    alone = setting.total(joint, some)
    assert alone.any()
    for index in range(4):
        found = compute_sum(plan_of(each, TASK_LABEL), some, broadcast, SitePlace(index)).total.reshape(4, -1)
        np.testing.assert_array_equal(found[index], alone)
        assert not np.delete(found, index, axis=0).any()
        np.testing.assert_array_equal(AgreedStudy(each).tasks[0].kept_part(found.ravel(), index), alone)
        assert exact_norm(found.ravel()) == exact_norm(alone), "a block costs what a joint sum does"
    np.testing.assert_array_equal(AgreedStudy(joint).tasks[0].kept_part(alone, 3), alone)


@pytest.mark.parametrize("kind", ["distributed", "local"])
@pytest.mark.parametrize("keep", [False, True])
def test_noise_of_a_per_site_sum_is_the_sites_own(kind: str, keep: bool) -> None:
    """Old studies' noise has variance n S^2 / h in every block, h = n - 1 or 1; that of new ones S^2, of one draw."""
    declared = declare("a", "prototypes", dict(FIRST.parameters), disclosure="per-site", keep=keep, variance=10**9)
    task = AgreedStudy(study_of(declared.model_copy(update={"own_noise": True}), noise=kind)).task("a")
    old = AgreedStudy(study_of(declared, noise=kind)).task("a")
    plan, honest = task.plan(4, 4), 3 if kind == "distributed" and not keep else 1
    assert (plan.noise.kind, plan.noise.share_variance, plan.noise.honest) == ("local", 10**9, 1)
    assert (task.released_variance(4), task.released_variance(3)) == (10**9, 10**9)
    assert old.released_variance(4) == Fraction(4 * 10**9, honest)
    for index in range(4):
        drawn = plan.draw_noise(index, SeededRandom(b"own")).reshape(4, -1)
        assert drawn[index].any()
        assert not np.delete(drawn, index, axis=0).any()
        np.testing.assert_array_equal(drawn[index], plan.noise.draw(drawn.shape[1], SeededRandom(b"own")))


@pytest.mark.parametrize("changes", [{"disclosure": "joint"}, {"variance": 0}, {"variance": 0, "source": "a"}])
def test_noise_of_its_own_is_for_per_site_sums_with_noise(changes: dict[str, Any]) -> None:
    values = {"disclosure": "per-site", "variance": 10**9, "own_noise": True, **changes}
    first = declare("a", "prototypes", dict(FIRST.parameters), variance=10**9, keep=True)
    with pytest.raises(ValidationError, match="noise of its own block"):
        study_of(first, declare("b", "prototypes", dict(FIRST.parameters), **values), noise="local")


def test_studies_without_noise_of_its_own_keep_their_bytes() -> None:
    declared = declare("a", "prototypes", dict(FIRST.parameters), disclosure="per-site", variance=10**9)
    assert b"own_noise" not in study_of(declared, noise="local").to_bytes()
    study = study_of(declared.model_copy(update={"own_noise": True}), noise="local")
    assert parse_study(study.to_bytes()).tasks[0].own_noise
    stated = study.to_bytes().replace(b'"own_noise":true', b'"own_noise":false')
    with pytest.raises(HostileInput, match="leave something to defaults"):
        parse_study(stated)


COUNTED = {
    "queries": [{"name": "n", "kind": "histogram", "over": ["n0"], "edges": [0.0], "scale": 1}],
    "derived": [],
    "sensitivity": 1,
}


def test_tables_are_joint_only() -> None:
    with pytest.raises(HostileInput, match="cannot be disclosed per-site"):
        AgreedStudy(study_of(declare("a", "tables", COUNTED, disclosure="per-site"))).task("a")


def test_a_task_is_given_its_own_row() -> None:
    mixed = {"clip": 2.0, "missing": "skip", "count_weight": 1, "sum_weight": 1, "square_weight": 1, "components": 2}
    study = study_of(declare("m", "class-mixtures", {**mixed, "centres": "site"}))
    centres = np.random.default_rng(0).normal(size=(4, 3, 2, D))
    joint = study_of(declare("m", "class-mixtures", mixed))
    sums = []
    for index in range(4):
        own = compute_sum(plan_of(study, "m"), records(), {CENTRES: centres}, SitePlace(index)).total
        sums.append(compute_sum(plan_of(joint, "m"), records(), {CENTRES: centres[index]}).total)
        np.testing.assert_array_equal(own, sums[-1])
    assert any((sums[0] != other).any() for other in sums[1:])
    for wrong in ({}, {CENTRES: centres[:3]}, {CENTRES: np.array(1.0)}):
        with pytest.raises(HostileInput, match="one row for each participant"):
            compute_sum(plan_of(study, "m"), records(), wrong, SitePlace(0))


def kept_study(noise: str = "none", **source: Any) -> Study:
    variance = 0 if noise == "none" else 2**40
    kept = declare("kept", "class-moments", {**MOMENTS, **MAPPED}, keep=True, variance=variance, **source)
    step = declare("step", "barycenter-step", {"width": D, "bound": 4.0}, source="kept", grid=2**30, releases=5)
    aligned = declare("aligned", "prototypes", _prototypes(), source="kept", variance=variance)
    return study_of(kept, step, aligned, noise=noise)


def _prototypes() -> dict[str, Any]:
    return {"clip": 2.0, "missing": "skip", "count_weight": 1, "sum_weight": 1, **MAPPED, **TWO_WAY}


def test_subjects_are_of_no_matter_where_the_unit_is_the_record() -> None:
    """A dataset may name them all the same; records then weigh alike."""
    some = records(30)
    grouped = replace(some, subjects=np.sort(np.random.default_rng(3).integers(0, 5, 30)))
    study = study_of(declare("t", "class-moments", {**MOMENTS, **MAPPED}))
    found = [compute_sum(plan_of(study, "t"), own, {}).total for own in (some, grouped)]
    assert found[0].any()
    np.testing.assert_array_equal(*found)


HOSTILE_STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "barycenter-step": ("barycenter", {"bound": 4.0}),
    "two-way-step": ("slopes", {"step": "effects", "bound": 1e3}),
    "ridge-head": (
        "slopes",
        {"alignment": {"kind": "slopes", "tau": 0.4}, "ridge": 0.01, "bias": 0.3, "prior": 0.3, "reach": 8.0},
    ),
    "aligned-moments": ("slopes", {"alignment": {"kind": "slopes", "tau": 0.4}, "reach": 8.0}),
    "prototypes": ("slopes", {**_prototypes(), "alignment": {"kind": "slopes", "tau": 0.4}}),
    "class-moments": ("two-way", {**MOMENTS, **TWO_WAY}),
}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(HOSTILE_STEPS)), st.integers(0, 10**6))
def test_a_hostile_reference_ends_in_a_typed_error_or_a_bounded_vector(task: str, seed: int) -> None:
    """Of any size and shape, also far beyond what the site computes on, and where the site's count is within its noise."""
    rng = np.random.default_rng(seed)
    kind, parameters = HOSTILE_STEPS[task]
    derived = issubclass(TASKS[task], DerivedTask)
    kept = declare("kept", "class-moments", {**MOMENTS, **MAPPED}, keep=True, variance=2**40)
    step = declare("t", task, {**parameters, **MAPPED}, source="kept", variance=0 if derived else 2**40)
    study = study_of(kept, step, noise="local")
    vector = compute_sum(plan_of(study, "kept"), records(), {}).total
    place = SitePlace(0, {"kept": vector * int(rng.choice([0, 1, 100]))})

    def array(*shape: int) -> Any:
        if rng.random() < 0.1:
            shape = [(), (0, 0), (D + 1, D), (200_000, 1), (200_000,)][rng.integers(0, 5)]
        values = np.asarray(rng.normal(size=shape)) * 10.0 ** float(rng.choice([-300, -20, 0, 0, 0, 20, 150, 307]))
        with np.errstate(all="ignore"):
            return values @ values.T if values.shape == (D, D) else np.abs(values)

    broadcast = {
        "reference.mean": array(D),
        "reference.covariance": array(D, D),
        "reference.class_means": array(3, D),
        "reference.within": array(D, D),
        "reference.scalars": array(2 if kind == "two-way" else 3),
        "reference.centre": array(D),
        FACTOR: array(D, D),
        TOTAL: array(1),
    }
    broadcast = {name: np.clip(np.nan_to_num(values), -1e308, 1e308) for name, values in broadcast.items()}
    tracemalloc.start()
    try:
        with np.errstate(all="ignore"):
            found = compute_sum(plan_of(study, "t"), records(), broadcast, place).total
        assert np.abs(found).max(initial=0) <= plan_of(study, "t").encoding.bound
    except HostileInput:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_study_that_keeps_is_strict_whoever_wrote_it() -> None:
    study = kept_study("local")
    allowed = {**study.model_dump(), "privacy": {**study.privacy.model_dump(), "cohort_difference": "allowed"}}
    with pytest.raises(ValidationError, match="always strict"):
        Study.model_validate(allowed)
    kept_nothing = [{**task, "keep": False, "source": None} for task in allowed["tasks"][:1]]
    assert Study.model_validate({**allowed, "tasks": kept_nothing}).privacy.cohort_difference == "allowed"


def test_kept_blocks_are_the_released_ones_in_their_own_units() -> None:
    for noise in ("none", "local", "distributed"):
        study = kept_study(noise)
        total = compute_sum(plan_of(study, "kept"), records(), {}).total
        blocks, std = AgreedStudy(study).task("kept").kept_blocks(total)
        task = AgreedStudy(study).task("kept").task
        unit = task.clip() / 2**20
        for name, values in task.layout().split(total * unit).items():
            np.testing.assert_array_equal(blocks[name], values)
        assert std["counts"] == pytest.approx(0.0 if noise == "none" else 2**20 * unit, rel=1e-12)
    np.testing.assert_allclose(blocks["counts"].sum(), 50, atol=1e-3)
    with pytest.raises(HostileInput, match="different length"):
        AgreedStudy(study).task("kept").kept_blocks(total[1:])


def test_a_derived_vector_is_a_function_of_what_was_kept_alone() -> None:
    """Other records, or none: the same vector. And it is that of the task, on the grid."""
    study = kept_study("local")
    kept = compute_sum(plan_of(study, "kept"), records(), {}).total
    place = SitePlace(0, {"kept": kept})
    given = {TOTAL: np.array([200.0])}
    found = [
        compute_sum(plan_of(study, "step"), some, given, place).total for some in (records(), records(7, seed=9), records(0))
    ]
    assert found[0].any()
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    task = AgreedStudy(study).task("step").task
    assert isinstance(task, DerivedTask)
    vector = task.vector(*AgreedStudy(study).task("kept").kept_blocks(kept), given)
    np.testing.assert_array_equal(found[0], np.rint(np.clip(vector / 4.0, -1, 1) * 2**30))
    with pytest.raises(Misuse, match="kept no statistic"):
        compute_sum(plan_of(study, "step"), records(), given, SitePlace(0))


def test_a_derived_vector_is_clamped() -> None:
    study = kept_study()
    kept = compute_sum(plan_of(study, "kept"), records(), {}).total
    loud = kept.copy()
    loud[9:11] *= 10**6  # the squares
    found = compute_sum(plan_of(study, "step"), records(), {TOTAL: np.array([50.0])}, SitePlace(0, {"kept": loud})).total
    assert np.abs(found).max() == 2**30


def test_a_kept_task_has_the_sites_own_noise_and_a_derived_one_none() -> None:
    study = kept_study("distributed")
    kept, step, aligned = (task_noise(study, task, 4) for task in study.tasks)
    assert (kept.kind, kept.share_variance) == ("local", 2**40)
    assert (step.kind, step.share_variance, step.drawn) == ("kept", 0, False)
    assert (aligned.kind, aligned.share_variance) == ("distributed", Fraction(2**40, 3))


def test_a_site_aligns_by_its_noised_statistic_and_not_by_its_records() -> None:
    study = kept_study("local")
    reference = {"reference.class_means": np.zeros((3, D)), "reference.within": np.eye(D), "reference.scalars": np.ones(2)}
    kept = compute_sum(plan_of(study, "kept"), records(seed=4), {}).total * 100  # above its noise
    noised = kept + 10**5
    one = records(1, seed=8)
    sums = [
        compute_sum(plan_of(study, "aligned"), some, reference, SitePlace(0, {"kept": vector})).total
        for some, vector in ((one, kept), (one, noised))
    ]
    assert (sums[0] != sums[1]).any(), "what is kept makes the map"
    both = records(20, seed=3)
    whole = compute_sum(plan_of(study, "aligned"), both, reference, SitePlace(0, {"kept": kept})).total
    rows = [type(both)(both.features[i : i + 1], both.present[i : i + 1], both.labels[i : i + 1]) for i in range(20)]
    each = [compute_sum(plan_of(study, "aligned"), row, reference, SitePlace(0, {"kept": kept})).total for row in rows]
    np.testing.assert_array_equal(whole, np.sum(each, axis=0))


# Rule 1: no map from clear moments.


def refused(study: Study, label: str, match: str) -> None:
    with pytest.raises(HostileInput, match=match):
        AgreedStudy(study).task(label)
    with pytest.raises(HostileInput, match=match):
        plan_of(study, label)


@pytest.mark.parametrize("kind", ["barycenter", "two-way"])
def test_an_alignment_of_a_sites_own_needs_a_kept_source(kind: str) -> None:
    own = {**_prototypes(), "alignment": {"kind": kind, "tau": 0.4}}
    refused(study_of(declare("p", "prototypes", own)), "p", "must name a source")
    moments = declare("moments", "class-moments", {**MOMENTS, **MAPPED})
    with pytest.raises(ValidationError, match="not a kept task before it"):
        study_of(moments, declare("p", "prototypes", own, source="moments"))
    with pytest.raises(ValidationError, match="not a kept task before it"):
        study_of(declare("p", "prototypes", own, source="later"), declare("later", "class-moments", MOMENTS, keep=True))


def test_what_is_kept_is_noised_where_the_study_has_noise() -> None:
    clear = declare("kept", "class-moments", {**MOMENTS, **MAPPED}, keep=True)
    with pytest.raises(ValidationError, match="contradicts variance 0"):
        study_of(clear, noise="local")
    hidden = declare("kept", "class-moments", {**MOMENTS, **MAPPED}, keep=True, variance=2**40)
    sneaked = declare("again", "class-moments", {**MOMENTS, **MAPPED}, source="kept", keep=True)
    refused(study_of(hidden, sneaked, noise="local"), "again", "reads records and must have noise")


def test_a_broadcast_map_has_no_source_and_an_own_map_needs_a_width() -> None:
    kept = declare("kept", "class-moments", {**MOMENTS, **MAPPED}, keep=True)
    given = {**_prototypes(), "alignment": {"kind": "broadcast", "tau": 0.4}}
    refused(study_of(kept, declare("p", "prototypes", given, source="kept")), "p", "must name a source")
    bare = {**_prototypes(), "width": None}
    refused(study_of(kept, declare("p", "prototypes", bare, source="kept")), "p", "must state the width")
    wide = {**_prototypes(), "width": D + 1}
    refused(study_of(kept, declare("p", "prototypes", wide, source="kept")), "p", "cannot compute from|has a width of")


@pytest.mark.parametrize(
    ("source", "derived", "parameters"),
    [
        ({"task": "prototypes"}, "barycenter-step", {"bound": 4.0}),
        ({"second": "none"}, "barycenter-step", {"bound": 4.0}),
        ({"second": "class-diagonal"}, "aligned-moments", {"reach": 4.0, **TWO_WAY}),
        ({"task": "gaussian-moments"}, "two-way-step", {"bound": 4.0, "step": "within"}),
        ({"task": "gaussian-moments"}, "aligned-moments", {"reach": 4.0, **TWO_WAY}),
        ({}, "barycenter-step", {"bound": 4.0, "width": D + 1}),
    ],
)
def test_a_source_must_suit(source: dict[str, str], derived: str, parameters: dict[str, Any]) -> None:
    given = dict(source)
    task = given.pop("task", "class-moments")
    values = {**MOMENTS, **given}
    if task == "prototypes":
        values = {name: values[name] for name in ("clip", "missing", "count_weight", "sum_weight")}
    kept = declare("kept", task, values, keep=True)
    refused(study_of(kept, declare("d", derived, parameters, source="kept")), "d", "cannot compute from what")


def test_a_derived_task_has_a_source_no_noise_and_is_not_kept() -> None:
    kept = declare("kept", "class-moments", MOMENTS, keep=True, variance=2**40)
    step = {"bound": 4.0}
    with pytest.raises(ValidationError, match="contradicts variance 0"):
        study_of(declare("d", "barycenter-step", step), noise="local")
    for more in ({"variance": 2**40}, {"keep": True}):
        study = study_of(kept, declare("d", "barycenter-step", step, source="kept", **more), noise="local")
        refused(study, "d", "needs a source and has no noise")


# Rules 2 and 3: no multiplicity that depends on n, and no Ledoit-Wolf, under noise.


@pytest.mark.parametrize(
    ("task", "allowed", "change", "match"),
    [
        ("gaussian-moments", MOMENTS, {"fourth": True}, "fourth moments, for Ledoit-Wolf"),
    ],
)
def test_what_only_studies_without_noise_may_ask(
    task: str, allowed: dict[str, Any], change: dict[str, Any], match: str
) -> None:
    asked = {**allowed, **change}
    AgreedStudy(study_of(declare("t", task, asked))).task("t")
    for noise in ("local", "distributed"):
        refused(study_of(declare("t", task, asked, variance=2**40), noise=noise), "t", match)
        fine = study_of(declare("t", task, allowed, variance=2**40), noise=noise)
        AgreedStudy(fine).task("t")


def test_no_task_that_noise_allows_releases_fourth_moments() -> None:
    for setting in SETTINGS:
        task = build_task(setting.task, setting.parameters, setting.schema)
        assert not {"cubic", "quartic"} & {block.name for block in task.layout().blocks}
        assert task.only_without_noise() is None
