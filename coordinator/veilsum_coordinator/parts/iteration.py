"""The reference of an alignment over secure sums: sites compute each step from moments that they keep, and only sums are seen.

The steps are post-processing of one noised statistic a site, so they cost bytes and no epsilon. The reference is that which
follows from per-site releases of the same moments, but for the grid; those make it here too, with each site's map to it and
what the alignment did to the site.

Distances are Wasserstein distances between Gaussians, in the units of the features. Everything comes from released moments,
and a site whose moments are within their noise keeps its features as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from veilsum_aggregation import moments
from veilsum_aggregation.alignment import (
    CLASS_MEANS,
    COVARIANCE,
    MEAN,
    SCALARS,
    WITHIN,
    Kind,
    class_statistics,
    local_map,
    local_step,
    reference_arrays,
    site_gaussian,
    stack,
)
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.gaussian import (
    Acceleration,
    AffineMap,
    Gaussian,
    barycenter,
    barycenter_residual,
    push,
    transport_map,
    wasserstein2,
)
from veilsum_aggregation.shrinkage import centred_fourth, shrink_ledoit_wolf
from veilsum_aggregation.two_way import fit_two_way, relative_change, slope_variance, two_way_update, whitening
from veilsum_coordinator.parts.base import Inputs, TaskPlan, task_parameters
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_privacy.tasks.formulas import CENTRE, FACTOR, TOTAL

Blocks = Mapping[str, Floats]
Shrinkage = Literal["auto", "oas", "noised", "ridge", "ledoit-wolf"]

TOLERANCE = 1e-12
"""Residual at which a barycenter that is computed here has converged."""

FITTED = 1e-2
"""Relative change of the class means in the last round at which a two-way fit has converged: far below sampling errors."""


@dataclass(frozen=True)
class SiteReference:
    """A reference and what it means for each site of a cohort.

    Attributes:
        arrays: by the names that sites know (:mod:`veilsum_aggregation.alignment`).
        maps: one a site, in the cohort's order.
        convergence: of the fit, for a summary.
        rows: one a site, for a summary.
    """

    arrays: dict[str, Floats]
    maps: tuple[AffineMap, ...]
    convergence: dict[str, Any]
    rows: list[dict[str, Any]]


def site_blocks(release: Release) -> list[dict[str, Floats]]:
    """The blocks of each site of a per-site release, in the cohort's order."""
    return [{name: values[row] for name, values in release.values.items()} for row in range(len(release.cohort))]


def barycenter_reference(
    release: Release, *, tau: float, shrinkage: Shrinkage, rounds: int, plain: bool = False
) -> SiteReference | None:
    """The Wasserstein barycenter of the sites' Gaussians, weighted by their counts; None where every count is within noise.

    ``plain`` takes the mean of their covariances in its place.
    """
    found = [_gaussian(blocks, release.noise_std, shrinkage) for blocks in site_blocks(release)]
    known = [item for item in found if item is not None]
    if not known:
        return None
    means = np.array([gaussian.mean for _, gaussian in known])
    covariances = np.array([gaussian.covariance for _, gaussian in known])
    numbers = np.array([number for number, _ in known])
    if plain:
        target = Gaussian(*(np.average(each, axis=0, weights=numbers) for each in (means, covariances)))
        convergence: dict[str, Any] = {"converged": True}
    else:
        fitted = barycenter(means, covariances, numbers, tolerance=TOLERANCE, max_iterations=rounds)
        target = fitted.gaussian
        convergence = {"iterations": fitted.iterations, "residual": fitted.residual, "converged": fitted.converged}
    maps, rows = [], []
    for name, item in zip(release.cohort, found, strict=True):
        if item is None:
            maps.append(AffineMap.identity(target.dimension))
            rows.append(unaligned_row(name))
            continue
        number, source = item
        maps.append(transport_map(source, target).interpolate(tau))
        shift = float(np.linalg.norm(source.mean - target.mean))
        before, after = wasserstein2(source, target), wasserstein2(push(maps[-1], source), target)
        rows.append(_row(name, number, shift, before, after))
    return SiteReference(reference_arrays(target), tuple(maps), convergence, rows)


def two_way_reference(
    release: Release,
    *,
    tau: float,
    shrinkage: Literal["auto", "oas", "noised", "ridge"],
    rounds: int,
    kind: Literal["slopes", "two-way"] = "two-way",
) -> SiteReference | None:
    """Class means, pooled within-class covariance and site effects; None where nothing tells a spread within classes.

    A site's distance is that of its shift and its within-class covariance to no shift and the pooled covariance. The fitted
    shift is taken out whole, so what is left after the map is the difference between the spreads. A slope is not in it.
    """
    sites, noise = site_blocks(release), release.noise_std
    found = [class_statistics(blocks, noise, shrinkage=shrinkage) for blocks in sites]
    known = [statistics for statistics in found if statistics is not None]
    if not known:
        return None
    try:
        fitted = fit_two_way(stack(known), rounds=rounds, slopes=kind == "slopes")
    except ValueError:  # no class of two records at any site
        return None
    arrays = reference_arrays(fitted)
    maps = tuple(local_map(kind, blocks, noise, arrays, tau=tau, shrinkage=shrinkage) for blocks in sites)
    centre = np.zeros(len(fitted.within))
    target = Gaussian(centre, fitted.within)
    rows = []
    for name, statistics, own in zip(release.cohort, found, maps, strict=True):
        if statistics is None:
            rows.append(unaligned_row(name))
            continue
        shift = local_step(statistics, arrays)[0].shift
        after = Gaussian(centre, push(own, Gaussian(centre, statistics.within)).covariance)
        before = wasserstein2(Gaussian(shift, statistics.within), target)
        number = float(statistics.counts.sum())
        rows.append(_row(name, number, float(np.linalg.norm(shift)), before, wasserstein2(after, target)))
    return SiteReference(arrays, maps, two_way_convergence(rounds, fitted.change, arrays[SCALARS]), rows)


def two_way_convergence(rounds: int, change: float | None, scalars: Floats) -> dict[str, Any]:
    """What a summary says of a two-way fit; ``change`` is that of the class means in the last round.

    The scalars are the variances of shifts, of residuals, and of slopes where sites have them.
    """
    variances = zip(("variance_of_shifts", "variance_of_residuals", "variance_of_slopes"), scalars, strict=False)
    return {
        "iterations": rounds,
        "residual": change,
        "converged": change is not None and change <= FITTED,
        **{name: float(value) for name, value in variances},
    }


def unaligned_row(name: str) -> dict[str, Any]:
    """The row of a site whose features stay as they are: it is not in the cohort, or its count is within its noise."""
    return _row(name, None, None, None, None)


def _row(name: str, number: float | None, shift: float | None, before: float | None, after: float | None) -> dict[str, Any]:
    return {
        "site": name,
        "aligned": number is not None,
        "records": number,
        "shift": shift,
        "distance_before": before,
        "distance_after": after,
    }


def _gaussian(blocks: Blocks, noise: Mapping[str, float], shrinkage: Shrinkage) -> tuple[float, Gaussian] | None:
    """Count and shrunk Gaussian of one site; for Ledoit-Wolf its release holds fourth moments."""
    if shrinkage != "ledoit-wolf":
        return site_gaussian(blocks, noise, shrinkage=shrinkage)
    number, total = float(blocks["count"][0]), blocks["sum"]
    if moments.within_noise(number, 0.0) or number < 1.0:
        return None
    second = moments.symmetric(blocks["squares"], blocks.get("products", np.zeros(0)))
    matrix = moments.project_psd(moments.covariance(number, total, second))
    fourth = centred_fourth(number, total, second, blocks["cubic"], float(blocks["quartic"][0]))
    # One record, or equal ones: the grid leaves less fourth moment than the covariance needs, and no spread to shrink.
    least = number * float(np.trace(matrix)) ** 2
    return number, Gaussian(total / number, shrink_ledoit_wolf(matrix, number, max(fourth, least)))


def maps_arrays(participants: Sequence[str], cohort: Sequence[str], maps: Sequence[AffineMap]) -> tuple[Floats, Floats]:
    """Matrices (sites, m, m) and offsets (sites, m), one row for every study participant; the identity for an absent one."""
    width = len(maps[0].offset)
    matrix, offset = np.tile(np.eye(width), (len(participants), 1, 1)), np.zeros((len(participants), width))
    for name, own in zip(cohort, maps, strict=True):
        index = participants.index(name)
        matrix[index], offset[index] = own.matrix, own.offset
    return matrix, offset


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
