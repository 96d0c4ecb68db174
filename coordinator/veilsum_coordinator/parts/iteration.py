"""The reference of an alignment over secure sums: sites compute each step from moments that they keep, and only sums are seen.

The steps are post-processing of one noised statistic a site, so they cost bytes and no epsilon. The reference is that which
:mod:`veilsum_coordinator.parts.references` computes from per-site releases of the same moments, but for the grid.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from veilsum_aggregation import moments
from veilsum_aggregation.alignment import CLASS_MEANS, COVARIANCE, MEAN, SCALARS, WITHIN, Kind
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.gaussian import Acceleration, barycenter_residual
from veilsum_aggregation.two_way import relative_change, slope_variance, two_way_update, whitening
from veilsum_coordinator.parts.base import Inputs, TaskPlan
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.moment_plans import task_parameters
from veilsum_coordinator.parts.references import two_way_convergence
from veilsum_privacy.tasks.formulas import CENTRE, FACTOR, TOTAL

Found = tuple[dict[str, Floats], dict[str, Any]]

STEP, WITHIN_STEP = "alignment-step", "alignment-within"
"""Labels of the steps."""

START = 0.3
"""Both variances of the two-way fit before its first round, as where it is fitted in one place."""

SETTLED = 1e-9
"""Residual at which the steps of a barycenter end: the grid of its sums lets it fall little further."""

ROOM = 4.0
"""How far above the clip norm a site's values may lie before they are clamped. Noise and maps take them beyond it."""

WHITENED = 1e3
"""The same for class means about the mean of all records, in standard deviations within classes."""

NOT_ESTIMABLE = "the sites' moments are within their noise; there is no reference to align to"


def step_plans(kind: Kind, inputs: Inputs, clip: float, source: str, rounds: int) -> tuple[TaskPlan, ...]:
    """The derived tasks of the steps; ``clip`` is that of the kept task ``source``."""
    if kind == "barycenter":
        step = task_parameters("barycenter-step", width=inputs.width, bound=ROOM * clip)
        return (TaskPlan(STEP, "barycenter-step", step, releases=rounds, source=source),)
    within = task_parameters("two-way-step", step="within", width=inputs.width, bound=(ROOM * clip) ** 2)
    effects = task_parameters("two-way-step", step="effects", width=inputs.width, bound=WHITENED)
    return (
        TaskPlan(WITHIN_STEP, "two-way-step", within, source=source),
        TaskPlan(STEP, "two-way-step", effects, releases=rounds + 1, source=source),
    )


def iterate(kind: Kind, federation: Federation, release: Release, rounds: int) -> Found:
    """Run the steps.

    Args:
        kind: of the reference.
        federation: whose study declares the steps.
        release: the sum of what the sites kept.
        rounds: at most.

    Returns:
        The reference's arrays, empty where it cannot be estimated; and for a summary its convergence, or why there is none.
    """
    if kind == "barycenter":
        found = _barycenter(federation, release, rounds)
    else:
        found = _two_way(federation, release, rounds, slopes=kind == "slopes")
    return ({}, {"not_estimable": NOT_ESTIMABLE}) if found is None else found


def _barycenter(federation: Federation, release: Release, rounds: int) -> Found | None:
    """Q <- sum_k w_k polar(Q L_k) L_k^T as secure sums, accelerated between them (:mod:`veilsum_aggregation.gaussian`)."""
    by_class = "counts" in release.values
    counts = release.values["counts" if by_class else "count"]
    sums = release.values["sums"].sum(axis=0) if by_class else release.values["sum"]
    number = float(counts.sum())
    if moments.within_noise(number, release.noise_std["counts" if by_class else "count"] * len(counts) ** 0.5):
        return None
    accelerate, iterations, residual = Acceleration(), 0, np.inf
    q: Floats | None = None
    best: Floats | None = None
    while iterations < rounds and residual > SETTLED:
        broadcast = {TOTAL: np.array([number]), **({} if q is None else {FACTOR: q})}
        step = federation.sum(STEP, broadcast).values
        weight = float(step["weight"][0])
        if not weight > 1e-6:  # every site's own count is within its own noise
            return None
        iterations += 1
        image = step["term"] / weight
        if q is None:  # from the identity the first step gives the mean of square roots, from which the iteration starts
            q = best = image
            continue
        change = barycenter_residual(q, image)
        if change < residual:
            best, residual = image, change
        q = accelerate.next(q, image)
    if best is None:
        return None
    reference = {MEAN: sums / number, COVARIANCE: best.T @ best}
    finite = float(residual) if np.isfinite(residual) else None
    return reference, {"iterations": iterations, "residual": finite, "converged": residual <= SETTLED}


def _two_way(federation: Federation, release: Release, rounds: int, *, slopes: bool) -> Found | None:
    """The rounds of :func:`veilsum_aggregation.two_way.fit_two_way`, each a secure sum; one before them for the spread."""
    spread = federation.sum(WITHIN_STEP).values
    degrees, number = float(spread["degrees"][0]), float(release.values["counts"].sum())
    if not (degrees > 0.5 and number > 0.0):
        return None
    centre = release.values["sums"].sum(axis=0) / number
    scalars = np.array([START, START] + [0.0] * slopes)
    class_means: Floats | None = None
    change: float | None = None
    try:
        _, colour, within = whitening(spread["within"] / degrees)
        for _ in range(rounds + 1):
            known = {} if class_means is None else {CLASS_MEANS: class_means}
            sums = federation.sum(STEP, {WITHIN: within, SCALARS: scalars, CENTRE: centre, **known}).values
            whitened, v_d, v_e = two_way_update(sums, float(scalars[0]), float(scalars[1]))
            scalars = np.array([v_d, v_e] + [slope_variance(sums, whitened, v_d)] * slopes)
            updated: Floats = whitened @ colour
            change = None if class_means is None else relative_change(class_means + centre, updated + centre)
            class_means = updated
    except ValueError:  # no spread within classes, or no class that any site has
        return None
    if class_means is None:
        return None
    reference = {CLASS_MEANS: class_means + centre, WITHIN: within, SCALARS: scalars}
    return reference, two_way_convergence(rounds, change, scalars)
