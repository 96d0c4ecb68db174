"""Alignment by moments as methods put it in front: defaults, plans, the reference from a release."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from support.neighbours import random_records, schema
from support.studies import compiled, federation, shifted_sites
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.feature_moments import moment_terms, moments_of_sums, read_reference
from veilsum_coordinator.parts.base import Inputs, Method, TaskPlan, task_parameters
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.moment_alignment import (
    LABEL,
    WITHIN_LABEL,
    MomentAlignment,
    align_moments,
    aligned_parameters,
    moment_plans,
    moment_reference,
    moment_share,
    resolve_moments,
)
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import Program, Projection
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import RowTask
from veilsum_privacy.tasks.parameters import PartParameters

IMAGE = (3, 2, 2)
INPUTS = Inputs(schema(12))


def test_images_are_aligned_by_channel_and_tables_by_feature() -> None:
    images = resolve_moments(MomentAlignment(), INPUTS, IMAGE)
    assert (images.per, images.channels, images.bound) == ("channel", 3, 1.0)
    pixels = resolve_moments(MomentAlignment(per="feature"), INPUTS, IMAGE)
    assert (pixels.per, pixels.channels) == ("feature", None)
    table = resolve_moments(MomentAlignment(), INPUTS)
    assert (table.per, table.channels) == ("feature", None)
    assert resolve_moments(MomentAlignment(channels=2), INPUTS).per == "channel"
    encoded = Inputs(schema(12), Projection(inputs=12, width=4, sha256="0" * 64))
    assert resolve_moments(MomentAlignment(), encoded).bound == 2.0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (MomentAlignment(per="feature", channels=3), "know no channels"),
        (MomentAlignment(per="channel"), "needs to know"),
        (MomentAlignment(channels=5), "not 5 channels"),
        (MomentAlignment(order=4, adjust="mean"), "adjusts mean and variance both"),
        (MomentAlignment(bound=2.0), "bounds its own"),
    ],
)
def test_what_cannot_be_is_refused(parameters: MomentAlignment, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resolve_moments(parameters, INPUTS)


def test_a_program_needs_a_bound() -> None:
    inputs = Inputs(schema(12), Program(format="exported", inputs=(12,), width=4, sha256="0" * 64))
    with pytest.raises(ConfigurationError, match="bound"):
        resolve_moments(MomentAlignment(), inputs)
    assert resolve_moments(MomentAlignment(bound=3.0), inputs).bound == 3.0


@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("within", [False, True])
def test_plans_and_what_training_states_fit_together(order: int, within: bool) -> None:
    reference = "within" if within else "pooled"
    asked = MomentAlignment.model_validate({"order": order, "reference": reference, "records": 0.3})
    resolved = resolve_moments(asked, INPUTS, IMAGE)
    plans = moment_plans(resolved, INPUTS, "skip", share=7.0)
    assert [plan.label for plan in plans] == [LABEL, WITHIN_LABEL][: 1 + within]
    assert plans[0].keep
    assert plans[0].share == 7.0
    task = build_task(plans[0].task, plans[0].parameters.model_dump(mode="json"), INPUTS.schema)
    assert task.layout().size == 1 + 3 * order
    if within:
        assert plans[1].derived
        assert plans[1].source == LABEL
    stated = PartParameters.model_validate({"clip": 1.0, "missing": "skip", **aligned_parameters(resolved)})
    assert (stated.part, stated.part_share) == ("training", 0.3)
    assert isinstance(plans[0].parameters, PartParameters)
    assert (plans[0].parameters.part, plans[0].parameters.part_share) == ("statistics", 0.3)
    assert stated.alignment is not None
    assert stated.alignment.moments is not None
    assert (stated.alignment.moments.order, stated.alignment.moments.channels) == (order, 3)
    everything = aligned_parameters(resolved.model_copy(update={"records": 1.0}))
    assert everything["part"] == "all"
    assert aligned_parameters(None)["alignment"] is None


@pytest.mark.parametrize(("steps", "rate"), [(1, 1.0), (200, 1.0), (1500, 0.02)])
def test_the_share_of_the_budget_is_about_what_was_asked(steps: int, rate: float) -> None:
    """The moments' release costs about a share of the whole in the squared mu of Gaussian privacy."""
    share = moment_share(0.2, steps, rate)
    noise = 3.0 * np.sqrt(steps) * rate  # training at an equivalent multiplier of 3
    moments = noise / np.sqrt(share)
    whole = rho(noise, steps, rate) + rho(moments, 1, 1.0)
    assert rho(moments, 1, 1.0) / whole == pytest.approx(0.2, abs=0.06)


def rho(multiplier: float, steps: int, rate: float) -> float:
    """Cost of steps, up to a factor: squared mu of the central limit theorem for sampled Gaussians, steps / z^2 at rate 1."""
    return steps / multiplier**2 if rate == 1.0 else steps * rate**2 * np.expm1(1.0 / multiplier**2)


class AlignedSums(Method):
    """Moments in front of class sums of every site, which stand in for a training."""

    name = "aligned-sums"
    Parameters: ClassVar[type[Frozen]] = MomentAlignment

    def resolve(self, parameters: Frozen, inputs: Inputs) -> Frozen:
        return resolve_moments(MomentAlignment.model_validate(parameters.model_dump()), inputs)

    def declare(self, parameters: Frozen, inputs: Inputs) -> tuple[TaskPlan, ...]:
        assert isinstance(parameters, MomentAlignment)
        alignment = aligned_parameters(parameters)["alignment"]
        weights = {"count_weight": 1.0, "sum_weight": 1.0}
        values = task_parameters("prototypes", clip=10.0, missing="skip", alignment=alignment, **weights)
        return (
            *moment_plans(parameters, inputs, "skip"),
            TaskPlan("sums", "prototypes", values, disclosure="per-site", source=LABEL),
        )

    def compute(self, federation: Federation) -> Result:
        raise AssertionError("the method is declared and compiled, never run")


@pytest.mark.parametrize("reference", ["pooled", "within"])
@pytest.mark.parametrize("noise", [{}, {"epsilon": 40.0, "delta": 1e-5, "noise": "distributed"}])
def test_sites_of_a_compiled_study_come_to_have_one_mean(
    monkeypatch: pytest.MonkeyPatch, reference: str, noise: dict[str, Any]
) -> None:
    monkeypatch.setattr("veilsum.compile.get_method", lambda name: AlignedSums())
    study = compiled("aligned-sums", {"reference": reference, "records": 1.0}, **noise)
    assert study.privacy.cohort_difference == "strict"
    sites = shifted_sites(800, shift=0.3)
    running = federation(study, sites)
    found = align_moments(running, MomentAlignment.model_validate(study.parameters))
    release = running.sum("sums", found.broadcast)
    means = release.values["sums"].sum(axis=1) / release.values["counts"].sum(axis=1)[:, None]
    before = np.array([own.features.mean(axis=0) for own in sites.values()])
    target = np.concatenate([own.features for own in sites.values()]).mean(axis=0)
    apart = np.abs(before - target).mean()
    assert np.abs(means - target).mean() < (0.25 if noise else 0.05) * apart  # some values end at the bounds
    assert found.summary["columns"]["two"] == 6


class Sums:
    """A federation of two sites in the clear."""

    def __init__(self, blocks: list[dict[str, Floats]]) -> None:
        self.blocks = blocks

    def sum(self, label: str, *, members: tuple[str, ...] = ()) -> Release:
        parts = self.blocks if label == LABEL else [moment_terms(moments_of_sums(part, {})) for part in self.blocks]
        total = {name: parts[0][name] + parts[1][name] for name in parts[0]}
        return Release(label, 1, total, dict.fromkeys(total, 0.0), ("a", "b"), b"")


@pytest.mark.parametrize("reference", ["pooled", "within"])
def test_the_reference_is_of_all_records_or_the_mean_of_the_sites(reference: str) -> None:
    resolved = resolve_moments(MomentAlignment.model_validate({"reference": reference}), INPUTS)
    plan = moment_plans(resolved, INPUTS, "skip")[0]
    values = {**plan.parameters.model_dump(), "part": "all"}
    task = build_task(plan.task, values, INPUTS.schema)
    assert isinstance(task, RowTask)
    rng = np.random.default_rng(0)
    sites = [random_records(rng, n, INPUTS.schema, complete=True) for n in (300, 500)]
    sites[0].features[:] = 0.3 * sites[0].features + 0.5
    blocks = [task.layout().split(np.concatenate(list(task_rows(task, records, {}))).sum(axis=0)) for records in sites]
    found = align_moments(Sums(blocks), resolved)  # type: ignore[arg-type]
    x = [records.features for records in sites]
    if reference == "pooled":
        expected = np.concatenate(x).var(axis=0)
    else:
        expected = (300 * x[0].var(axis=0) + 500 * x[1].var(axis=0)) / 800
    broadcast = read_reference(found.broadcast, 12)
    np.testing.assert_allclose(broadcast.variance, expected, rtol=1e-9)
    np.testing.assert_allclose(broadcast.mean, np.concatenate(x).mean(axis=0), rtol=1e-9)
    assert found.summary["columns"] == {"four": 0, "two": 12, "none": 0}
    assert found.summary["records"] == pytest.approx(800)
    assert set(found.application["reference"]) == set(found.broadcast)


def test_where_nothing_can_be_told_the_summary_says_so() -> None:
    resolved = resolve_moments(MomentAlignment(), INPUTS)
    blocks = {"count": np.array([50.0]), "t1": np.zeros(12), "t2": np.zeros(12)}
    release = Release(LABEL, 1, blocks, {"count": 40.0, "t1": 40.0, "t2": 40.0}, ("a", "b", "c", "d"), b"")
    found = moment_reference(release, resolved)
    assert found.summary["columns"] == {"four": 0, "two": 0, "none": 12}
    assert "nothing is aligned" in found.summary["not_estimable"]
    assert found.application["noise_std"]["t1"] == 20.0
