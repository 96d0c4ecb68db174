"""Parameters of the tasks that release moments: the clip norm, and how the budget is split among counts, sums and moments.

Everything here follows from public values. It declares nothing: methods put these parameters into their plans.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from veilsum_coordinator.parts.base import Inputs
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.layout import balanced_weights

Missing = Literal["skip", "centre"]
Second = Literal["pooled", "class", "class-diagonal", "none"]

IMPORTANCE = (10.0, 1.0, 0.03, 0.003)
"""Importance of counts, sums, squares and products in the split of the budget.

A count stands under a whole class mean, so its noise matters most. Class means say where the classes lie, covariances only
refine the direction between them, and there are many more of these: with equal importance the products would take most of
the budget and, shrunk by their noise, give little back. Fixed constants, the same for every study.
"""


class FeatureRules(Frozen):
    """How a method takes a record's features.

    Attributes:
        clip: L2 norm that they are scaled down to, after any alignment; by default one that hardly a record exceeds where
            models are trained on gradients, else as in the method fedcgs.
        missing: ``skip`` leaves a record with an absent feature out, ``centre`` takes the middle of the bounds.
    """

    clip: Real | None = Field(default=None, gt=0, le=1e6)
    missing: Missing = "skip"


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

PROJECTED = 0.7
"""Clip norm of a projection's features under noise, whose root mean square norm is about 1: from the same sweep."""

GENEROUS = 8.0
"""Clip norm of a projection's features without noise: their root mean square norm is about 1, so hardly one is clipped."""


def default_clip(schema: DatasetSchema) -> float:
    """Root mean square L2 norm of a record whose numbers are uniform in [-1, 1] and whose categories are all present."""
    numbers = sum(isinstance(column, NumberColumn) for column in schema.columns)
    return math.sqrt(numbers / 3.0 + (len(schema.columns) - numbers))


def centred_clip(schema: DatasetSchema) -> float:
    """The clip norm of features from which their mean was taken; measured in docs/results.md."""
    numbers = sum(isinstance(column, NumberColumn) for column in schema.columns)
    return math.sqrt(numbers / 30.0 + (len(schema.columns) - numbers) / 2.0)


def resolved_clip(clip: float | None, inputs: Inputs) -> float:
    """The clip norm, or in place of None the default of these inputs.

    The schema's own features: :func:`default_clip` under noise, sqrt(width) without, which no record exceeds. Features of a
    released projection, whose root mean square norm is about 1: :data:`PROJECTED` under noise, :data:`GENEROUS` without,
    since a clip that saves no noise only loses.

    Raises:
        ConfigurationError: a program makes the features, whose scale nobody can know.
    """
    if clip is not None:
        return clip
    if inputs.encoder is None:
        return default_clip(inputs.schema) if inputs.private else math.sqrt(inputs.width)
    if isinstance(inputs.encoder, Program):
        raise ConfigurationError(
            "A study whose features a program makes must state parameters.clip.",
            "Take the norm that most feature vectors keep within, known from other data than the sites'.",
        )
    return PROJECTED if inputs.private else GENEROUS


def typical_norm(inputs: Inputs, clip: float) -> float:
    """Root mean square norm that a record's features are expected to have before clipping."""
    if inputs.encoder is None:
        return default_clip(inputs.schema)
    return clip if isinstance(inputs.encoder, Program) else 1.0


OF_OUTCOMES = (
    "Numbers, counts and times are what regression explains, and what gbdt, fedsgd and fedavg predict"
    " with [parameters.outcome]."
)
"""Which methods do what those of classes cannot."""


def need_label(inputs: Inputs, what: str, instead: str = "") -> None:
    """Insist on classes.

    Raises:
        ConfigurationError: the schema has no label.
    """
    if inputs.schema.label is None:
        advice = f"Add a [label] table with classes to the schema{instead}."
        other = "" if instead else f" It tells classes apart. {OF_OUTCOMES}"
        raise ConfigurationError(f"{what[:1].upper()}{what[1:]} needs a label.", advice + other)


def task_parameters(task: str, **values: Any) -> Frozen:
    """Parameters of a registered task, as its own model."""
    return TASKS[task].Parameters.model_validate(values)


def class_moments(
    inputs: Inputs, clip: float, missing: Missing, second: Second = "pooled", split: Split | None = None
) -> Frozen:
    """Parameters of "class-moments" on features that are not aligned; without a ``split`` pooled ones take
    :data:`DEFAULT_SPLIT`, and for moments by class :data:`IMPORTANCE` makes it.
    """
    k, d = len(inputs.classes), inputs.width
    pairs = max(1, d * (d - 1) // 2)
    per_class = k if second in ("class", "class-diagonal") else 1
    if split is None and second == "pooled":
        split = DEFAULT_SPLIT
    if split is None:
        weights = _weights(inputs, clip, (k, k * d, per_class * d, per_class * pairs))
    else:
        weights = _split_weights(split, clip)
    # A study without an encoder is stated as it always was: in the box [-1, 1]^d, where the bound is tighter.
    width = None if inputs.encoder is None else d
    return task_parameters("class-moments", width=width, clip=clip, missing=missing, second=second, **weights)


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
