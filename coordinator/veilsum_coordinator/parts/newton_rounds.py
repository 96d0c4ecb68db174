"""Odds and rate ratios as rounds of a study: a release a Newton step, from the first release's moments on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from veilsum_aggregation import newton
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.moments import symmetric
from veilsum_aggregation.newton import NewtonFit, NewtonRelease
from veilsum_aggregation.regression import told_directions
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.first_moments import FirstMoments
from veilsum_privacy.tasks.newton_step import EXCESS, POINT, WHITEN
from veilsum_privacy.tasks.queries.coefficients import term_names


def fit_newton(
    federation: Federation, first: FirstMoments, steps: Sequence[str], family: newton.Family, most: float
) -> NewtonFit:
    """Run the rounds of these labels; W and the first point are of the moments.

    Args:
        federation: of the study.
        first: what the first release told; its cohort takes part.
        steps: labels of the rounds.
        family: of the regression.
        most: the largest mean of counts.
    """
    gram, std, grain = first.gram, first.std, first.part.grain
    whiten, (_, untold) = newton.whitening(gram, std, grain), told_directions(gram, std, grain)
    point, released = newton.first_point(family, gram, first.events, whiten, most), list[NewtonRelease]()
    for label in steps:
        broadcast = {WHITEN: newton.padded(whiten, len(gram)), POINT: newton.padded(point, len(gram))}
        released.append(newton_release(federation.sum(label, broadcast, members=first.release.cohort), point))
        fit = NewtonFit(whiten, tuple(released), term_names(first.question), untold)
        point = fit.point
    return fit


def newton_release(release: Release, at: Floats) -> NewtonRelease:
    """What a round at a point (k,) tells; further values are zeros and noise."""
    values, stds, k = release.values, release.noise_std, len(at)

    def matrix(before: str = "") -> Floats:
        diagonal = values[f"{before}diagonal"]
        none = np.zeros(len(diagonal) * (len(diagonal) - 1) // 2)
        return symmetric(diagonal, values.get(f"{before}cross", none))[:k, :k]

    found = NewtonRelease(at, values["score"][:k], matrix(), stds["score"], stds["diagonal"])
    if f"{EXCESS}diagonal" not in values:
        return found
    return replace(found, excess=matrix(EXCESS), excess_std=stds[f"{EXCESS}diagonal"])
