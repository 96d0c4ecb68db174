"""A noised mean of the features, released first and taken off them: what is left is shorter, and so needs less noise."""

from __future__ import annotations

import math

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.base import Inputs, TaskPlan
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.parts.moment_plans import GENEROUS, Missing
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.feature_means import FeatureMeansParameters

MEANS = "means"
"""Label of the release."""

CENTRE_CLIP, CENTRE_COUNT = 0.7, 0.3
"""Norm that a record's features are clipped to for their mean, where sqrt(d) is 1, and weight of the count."""


def centre_plan(inputs: Inputs, missing: Missing, clip: float, share: float, *, classes: bool = False) -> TaskPlan:
    """The release, of the schema's own features or of an encoder's.

    Args:
        clip: of an encoder's features, a norm that hardly a record exceeds.
        share: of the budget.
        classes: whether records are counted by class, which costs nothing more.
    """
    boxed = inputs.encoder is None
    norm = CENTRE_CLIP * (math.sqrt(inputs.width) if boxed else clip / GENEROUS)
    means = FeatureMeansParameters(
        width=None if boxed else inputs.width,
        clip=norm,
        missing=missing,
        count_weight=CENTRE_COUNT,
        sum_weight=CENTRE_CLIP / norm,
        classes=classes,
    )
    return TaskPlan(MEANS, "feature-means", means, share=share)


def released_centre(release: Release, study: Study) -> Floats:
    """The noised mean (d,), within the bounds of what it is of."""
    counts = release.values["count"]
    count = max(float(counts.sum()), release.noise_std["count"] * math.sqrt(len(counts)), 1e-9)
    bound = 1.0 if study.encoder is None else float(FeatureMeansParameters.model_validate(study.task(MEANS).parameters).clip)
    centre: Floats = np.clip(release.values["sum"] / count, -bound, bound)
    return centre
