"""What releases of moments are asked for: how their budget is split among counts, sums and second moments.

A noised mean of the features, released first and taken off them: what is left is shorter, and so needs less noise.
"""

import math

from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.base import GENEROUS, Inputs, Missing, TaskPlan, task_parameters
from veilsum_coordinator.parts.federation import Release
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.encoder import Encoder, RandomFeatures
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.feature_means import FeatureMeansParameters, released_mean
from veilsum_privacy.tasks.layout import balanced_weights

IMPORTANCE = (10.0, 1.0, 0.03, 0.003)
"""Importance of counts, sums, squares and products in the split of the budget.

A count stands under a whole class mean, so its noise matters most. Class means say where the classes lie, covariances only
refine the direction between them, and there are many more of these: with equal importance the products would take most of
the budget and, shrunk by their noise, give little back. Fixed constants, the same for every study.
"""


class Split(Frozen):
    """The ``[parameters.split]`` table: how the cost of one release is shared out; public, and only in proportion.

    Attributes:
        counts, sums, second: parts of class counts, class sums, and second moments.
    """

    counts: Real = Field(gt=0, le=1e6)
    sums: Real = Field(gt=0, le=1e6)
    second: Real = Field(gt=0, le=1e6)


DEFAULT_SPLIT = Split(counts=0.15, sums=0.65, second=0.2)
"""Split for pooled class moments: the best on average of the sweep in docs/results.md."""

TWO_CLASSES_SPLIT = Split(counts=0.1, sums=0.55, second=0.35)
"""Split for pooled class moments of two classes' centred features: fewer sums, so second moments gain more."""


def class_moments(inputs: Inputs, clip: float, missing: Missing, split: Split | None = None) -> Frozen:
    """Parameters of "class-moments", second moments pooled, on features that are not aligned; :data:`DEFAULT_SPLIT` unless
    another one is given."""
    # A study without an encoder is stated as it always was: in the box [-1, 1]^d, where the bound is tighter.
    width, weights = None if inputs.encoder is None else inputs.width, _split_weights(split or DEFAULT_SPLIT, clip)
    return task_parameters("class-moments", width=width, clip=clip, missing=missing, second="pooled", **weights)


def gaussian_moments(inputs: Inputs, clip: float, missing: Missing, *, fourth: bool = False) -> Frozen:
    """Parameters of "gaussian-moments" on features that are not aligned; ``fourth`` adds fourth moments."""
    d = inputs.width
    weights = _weights(inputs, clip, (1, d, d, max(1, d * (d - 1) // 2)))
    width = None if inputs.encoder is None else d
    return task_parameters("gaussian-moments", width=width, clip=clip, missing=missing, fourth=fourth, **weights)


def _split_weights(split: Split, clip: float) -> dict[str, float]:
    """Block weights whose squared norms are in the split's proportion: 1 for counts, C for sums, C^2 for second moments."""
    total = split.counts + split.sums + split.second
    second = math.sqrt(split.second / total) / clip**2
    return {
        "count_weight": math.sqrt(split.counts / total),
        "sum_weight": math.sqrt(split.sums / total) / clip,
        "square_weight": second,
        "product_weight": second,
    }


def _weights(inputs: Inputs, clip: float, sizes: tuple[int, int, int, int]) -> dict[str, float]:
    """Block weights for counts, sums, squares and products of these sizes."""
    boxed, d = inputs.encoder is None, inputs.width
    squares_norm = min(clip, math.sqrt(d)) * min(clip, 1.0) if boxed else clip**2
    counts, sums, squares, products = balanced_weights((1.0, clip, squares_norm, clip**2), sizes, IMPORTANCE)
    return {"count_weight": counts, "sum_weight": sums, "square_weight": squares, "product_weight": products}


MEANS = "means"
"""Label of the release."""

CENTRE_CLIP, CENTRE_COUNT = 0.7, 0.3
"""Norm that a record's features are clipped to for their mean, where sqrt(d) is 1, and weight of the count."""


def centre_plan(inputs: Inputs, missing: Missing, clip: float, share: float, *, classes: bool = False) -> TaskPlan:
    """The release, of the schema's own features or of an encoder's.

    Args:
        clip: of an encoder's features, a norm that hardly a record exceeds.
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
    bound = 1.0 if study.encoder is None else float(FeatureMeansParameters.model_validate(study.task(MEANS).parameters).clip)
    return released_mean(release.values["count"], release.values["sum"], release.noise_std["count"], bound)


def centred_clip(schema: DatasetSchema, encoder: Encoder | None = None) -> float:
    """The clip norm of features from which their mean was taken, V^1/2 of the schema's own; measured in docs/results.md.

    Of random features it is (1 - exp(-2 gamma V))^1/2: what two records apart by 2 V have not in common.
    """
    numbers = sum(isinstance(column, NumberColumn) for column in schema.columns)
    variance = numbers / 30.0 + (len(schema.columns) - numbers) / 2.0
    if isinstance(encoder, RandomFeatures):
        return math.sqrt(-math.expm1(-2.0 * float(encoder.gamma or 0.0) * variance))
    return math.sqrt(variance)
