"""The alignment of sites' features, as every method puts it in front: what it releases, the reference, and each site's map.

``one-shot``: one release per site; reference and maps are computed here, and every site fetches its own. ``iterated``: each
site keeps its own noised moments, the reference is found over secure sums of what sites compute from these, and each site makes
its own map. Both cost one release and give the same reference. After SLOT-Align (reference "paper"), and with a reference that
tells class means and site shifts apart (reference "two-way", veilsum_aggregation.two_way).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.alignment import class_statistics, local_map, reference_arrays, site_gaussian, stack
from veilsum_aggregation.gaussian import AffineMap, Gaussian, barycenter
from veilsum_aggregation.two_way import TwoWay, fit_two_way
from veilsum_coordinator.federation import Federation, Release
from veilsum_coordinator.methods.base import Inputs, TaskPlan
from veilsum_coordinator.methods.distances import gaussian_rows, two_way_rows, unaligned_row
from veilsum_coordinator.methods.iterating import iterate_barycenter, iterate_two_way, step_plans
from veilsum_coordinator.methods.moment_plans import Missing, class_moments, gaussian_moments, need_label
from veilsum_privacy.errors import ConfigurationError
from veilsum_privacy.features import ALIGNMENT_MATRIX, ALIGNMENT_OFFSET
from veilsum_privacy.schema import Frozen, Real
from veilsum_privacy.tasks.base import Alignment

Floats = NDArray[np.float64]

LABEL = "alignment"
"""Label of the release that an alignment is made from."""

TOLERANCE = 1e-12
"""Residual at which a barycenter that is computed here has converged."""


class AlignmentParameters(Frozen):
    """The ``[parameters.alignment]`` table; all public.

    Attributes:
        reference: ``two-way`` fits class means and site shifts together, so that a site's mix of classes is not taken for a
            shift; it needs a label. ``paper`` is the Wasserstein barycenter of the sites' pooled features (SLOT-Align).
        mode: ``one-shot`` releases each site's moments per site, noised; ``iterated`` releases sums only.
        tau: how far covariances (``paper``: means as well) move to the reference, in [0, 1]; by default 0.4.
        rounds: of the two-way fit, by default 10; of the barycenter's fixed point, by default 200 in one-shot mode and 20 in
            iterated mode, where each is a round of all sites.
        shrinkage: of each site's covariance; ``auto`` is OAS without noise and by the noise's size with it, and what iterated
            mode takes. ``ledoit-wolf`` needs fourth moments, which are not released.
        share: part of the budget that the alignment's release takes where the method makes releases of its own; 0 to 1.
    """

    reference: Literal["two-way", "paper"] = "two-way"
    mode: Literal["one-shot", "iterated"] = "one-shot"
    tau: Real = Field(default=0.4, ge=0, le=1)
    rounds: int | None = Field(default=None, ge=1, le=1000)
    shrinkage: Literal["auto", "oas", "noised", "ridge", "ledoit-wolf"] = "auto"
    share: Real = Field(default=0.5, gt=0, lt=1)


@dataclass(frozen=True)
class Aligned:
    """What an alignment found, for a method to build on.

    Attributes:
        broadcast: arrays that later sums over aligned features need.
        release: what it was made from.
        maps: of each site of ``release.cohort``, in its order; empty where sites make their own.
        reference: arrays of the reference; empty where it could not be estimated.
        application: how a result says it (the key ``alignment``).
        arrays: of the result.
        summary: of the result: convergence, and one row a site.
    """

    broadcast: Mapping[str, Floats]
    release: Release
    maps: tuple[AffineMap, ...]
    reference: Mapping[str, Floats]
    application: Mapping[str, Any]
    arrays: Mapping[str, Floats]
    summary: Mapping[str, Any] = field(default_factory=dict)


def resolve_alignment(parameters: AlignmentParameters, inputs: Inputs) -> AlignmentParameters:
    """Fill in the defaults that depend on the inputs.

    Raises:
        ConfigurationError: the parameters contradict each other or the inputs.
    """
    if parameters.reference == "two-way":
        need_label(inputs, 'alignment with reference = "two-way"')
    if parameters.shrinkage == "ledoit-wolf":
        reason = (
            "no release with noise holds fourth moments, and clear ones would break the privacy of all that follows"
            if inputs.private
            else "no task releases the fourth moments that it needs"
        )
        raise ConfigurationError(
            f'alignment.shrinkage = "ledoit-wolf" cannot be had: {reason}.', 'Leave it out, or use "oas".'
        )
    if inputs.private and parameters.shrinkage == "oas":
        raise ConfigurationError(
            'alignment.shrinkage = "oas" knows sampling errors only, and this study has noise.',
            'Leave it out, or use "noised" or "ridge".',
        )
    if not inputs.private and parameters.shrinkage in ("noised", "ridge"):
        raise ConfigurationError(
            f'alignment.shrinkage = "{parameters.shrinkage}" is made for noise, and this study has none.', "Leave it out."
        )
    if parameters.mode == "iterated" and parameters.shrinkage != "auto":
        raise ConfigurationError(
            "An iterated alignment's covariances are shrunk by the sites, always by the default.", "Leave shrinkage out."
        )
    if parameters.rounds is not None:
        return parameters
    rounds = 10 if parameters.reference == "two-way" else 200 if parameters.mode == "one-shot" else 20
    return parameters.model_copy(update={"rounds": rounds})


def task_alignment(parameters: AlignmentParameters | None) -> tuple[Alignment | None, str | None]:
    """What a later task on aligned features states: its alignment, and the label of its source."""
    if parameters is None:
        return None, None
    if parameters.mode == "one-shot":
        return Alignment(kind="broadcast", tau=parameters.tau), None
    return Alignment(kind=_kind(parameters), tau=parameters.tau), LABEL


def alignment_plans(
    parameters: AlignmentParameters, inputs: Inputs, clip: float, missing: Missing, *, classes: bool = False, share: float = 1.0
) -> tuple[TaskPlan, ...]:
    """The release that the alignment is made from, and in iterated mode the steps, which cost nothing.

    Args:
        parameters: resolved.
        clip, missing: of the release's features, which are not aligned.
        classes: take class moments whatever the reference, for a method that builds on them.
        share: of the budget, against the shares of the method's other releases.
    """
    by_class = classes or parameters.reference == "two-way"
    task = "class-moments" if by_class else "gaussian-moments"
    values = (class_moments if by_class else gaussian_moments)(inputs, clip, missing)
    if parameters.mode == "one-shot":
        return (TaskPlan(LABEL, task, values, disclosure="per-site", share=share),)
    kept = TaskPlan(LABEL, task, values, keep=True, share=share)
    return kept, *step_plans(_kind(parameters), inputs, clip, LABEL, parameters.rounds or 1)


def align(federation: Federation, parameters: AlignmentParameters) -> Aligned:
    """Run the alignment's rounds; ``parameters`` are resolved.

    Where every site's moments are within their noise there is no reference: nothing is aligned, and the summary says so.
    """
    release = federation.sum(LABEL)
    if parameters.mode == "one-shot":
        return _one_shot(release, federation.study.participants, parameters)
    return _iterated(federation, release, parameters)


def _kind(parameters: AlignmentParameters) -> Literal["barycenter", "two-way"]:
    return "barycenter" if parameters.reference == "paper" else "two-way"


def site_blocks(release: Release) -> list[dict[str, Floats]]:
    """The blocks of each site of a per-site release, in the cohort's order."""
    return [{name: values[row] for name, values in release.values.items()} for row in range(len(release.cohort))]


def _one_shot(release: Release, participants: Sequence[str], parameters: AlignmentParameters) -> Aligned:
    sites = site_blocks(release)
    width = release.values["squares"].shape[-1]
    found = _fit_two_way(sites, release, parameters) if _kind(parameters) == "two-way" else _fit(sites, release, parameters)
    maps = [AffineMap.identity(width) for _ in sites]
    reference: dict[str, Floats] = {}
    summary: dict[str, Any] = {"reference": parameters.reference, "mode": parameters.mode, "tau": parameters.tau}
    if found is None:
        summary["not_estimable"] = "every site's moments are within their noise; nothing is aligned"
        rows = [unaligned_row(name) for name in release.cohort]
    else:
        target, convergence = found
        reference = reference_arrays(target)
        maps = [
            local_map(
                _kind(parameters), blocks, release.noise_std, reference,
                tau=parameters.tau, shrinkage=_shrinkage(parameters),
            )
            for blocks in sites
        ]  # fmt: skip
        summary |= convergence
        describe = gaussian_rows if isinstance(target, Gaussian) else two_way_rows
        rows = describe(release, sites, maps, reference, _shrinkage(parameters))
    summary["sites"] = rows + [unaligned_row(name) for name in participants if name not in release.cohort]
    matrix, offset = np.tile(np.eye(width), (len(participants), 1, 1)), np.zeros((len(participants), width))
    for name, own in zip(release.cohort, maps, strict=True):
        index = participants.index(name)
        matrix[index], offset[index] = own.matrix, own.offset
    arrays = {ALIGNMENT_MATRIX: matrix, ALIGNMENT_OFFSET: offset}
    application = {"kind": "maps", "sites": list(participants), "matrix": ALIGNMENT_MATRIX, "offset": ALIGNMENT_OFFSET}
    return Aligned(arrays, release, tuple(maps), reference, application, {**arrays, **reference}, summary)


def _fit_two_way(
    sites: list[dict[str, Floats]], release: Release, parameters: AlignmentParameters
) -> tuple[TwoWay, dict[str, Any]] | None:
    """The two-way reference of those sites that can be told from noise; None without any."""
    rounds = parameters.rounds or 1
    each = [class_statistics(blocks, release.noise_std, shrinkage=_shrinkage(parameters)) for blocks in sites]
    known = [statistics for statistics in each if statistics is not None]
    try:
        fitted = fit_two_way(stack(known), rounds=rounds)
        before = fit_two_way(stack(known), rounds=max(rounds - 1, 1)).class_means
    except ValueError:  # no site, or none with a class of two records: nothing tells a spread within classes
        return None
    change = _change(before, fitted.class_means) if rounds > 1 else None
    return fitted, two_way_convergence(rounds, change, fitted.shift_variance, fitted.residual_variance)


def _fit(
    sites: list[dict[str, Floats]], release: Release, parameters: AlignmentParameters
) -> tuple[Gaussian, dict[str, Any]] | None:
    """The barycenter of those sites that can be told from noise, weighted by their counts; None without any."""
    each = [site_gaussian(blocks, release.noise_std, shrinkage=_shrinkage(parameters)) for blocks in sites]
    known = [item for item in each if item is not None]
    if not known:
        return None
    found = barycenter(
        np.array([g.mean for _, g in known]),
        np.array([g.covariance for _, g in known]),
        np.array([number for number, _ in known]),
        tolerance=TOLERANCE,
        max_iterations=parameters.rounds or 1,
    )
    return found.gaussian, {
        "iterations": found.iterations,
        "residual": found.residual,
        "converged": found.converged,
    }


def two_way_convergence(rounds: int, change: float | None, shift: float, residual: float) -> dict[str, Any]:
    """What a summary says of a two-way fit; ``change`` is that of the class means in the last round."""
    return {
        "iterations": rounds,
        "residual": change,
        "converged": change is not None and change <= 1e-2,
        "variance_of_shifts": shift,
        "variance_of_residuals": residual,
    }


def _iterated(federation: Federation, release: Release, parameters: AlignmentParameters) -> Aligned:
    rounds = parameters.rounds or 1
    run = iterate_barycenter if _kind(parameters) == "barycenter" else iterate_two_way
    reference, convergence = run(federation, release, rounds)
    summary: dict[str, Any] = {"reference": parameters.reference, "mode": parameters.mode, "tau": parameters.tau, **convergence}
    # A site's own noise, of which the sum holds one a member.
    noise = {name: std / len(release.cohort) ** 0.5 for name, std in release.noise_std.items()}
    application = {
        "kind": _kind(parameters),
        "source": LABEL,
        "tau": parameters.tau,
        "reference": {name: name for name in reference},
        "noise_std": noise,
    }
    return Aligned(reference, release, (), reference, application, dict(reference), summary)


def _change(old: Floats, new: Floats) -> float:
    return float(np.linalg.norm(new - old) / max(float(np.linalg.norm(new)), np.finfo(np.float64).tiny))


def _shrinkage(parameters: AlignmentParameters) -> Literal["auto", "oas", "noised", "ridge"]:
    return "auto" if parameters.shrinkage == "ledoit-wolf" else parameters.shrinkage
