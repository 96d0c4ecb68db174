"""The task "tree-gradients": gradients and Hessians of a loss by the leaves of broadcast trees, one round of boosting."""

import math
from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Real
from veilsum_privacy.mechanism.rows.symbols import (
    Record,
    Symbol,
    clip,
    every,
    exp,
    finite,
    joined,
    largest,
    leaves,
    placed,
    real,
    spread,
    symbol,
    where,
)
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import RowTask
from veilsum_privacy.tasks.designs import LARGEST_ENTRY
from veilsum_privacy.tasks.feature_rows import usable
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.newton_step import means
from veilsum_privacy.tasks.outcome_rows import parted
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.tasks.parameters import FeatureParameters
from veilsum_privacy.training.arrays import MODEL
from veilsum_privacy.training.models.base import Shapes
from veilsum_privacy.training.models.trees import FEATURES, THRESHOLDS, tree_shapes
from veilsum_privacy.training.traced import named_features, traced_margin

Loss = Literal["logistic", "softmax", "squared", "poisson"]

GRADIENTS, HESSIANS = "gradients", "hessians"
"""Names of the blocks."""

FREE = {"logistic": 0.83, "poisson": 0.86}
"""kappa: as much Hessian as lengthens no record's vector; of counts where M is half of the largest one."""

OF_CLASSES = (1.0 / math.sqrt(2.0), math.sqrt(2.0))
"""Weights of the softmax: as much Hessian as lengthens no record's vector."""

COUNTED = 0.5
"""Weight of the Hessian of the squared loss, which is 1: it costs an eighth of the gradient's noise."""

MOST_VALUES = 2**18
"""The most values of a release."""


class TreeGradientsParameters(FeatureParameters):
    """Parameters of :class:`TreeGradients`; all public and independent of the data.

    Attributes:
        loss: ``logistic`` of a label with two classes, ``softmax`` with more, ``squared`` or ``poisson`` of a numeric column.
        outcome: that column, which then is not a feature; empty for the label.
        most: M, the largest mean of a count, in the column's unit: larger ones are taken as M; 1 of the other losses.
        trees: B, which a release is of.
        depth: D; a tree has 2^D leaves.
        largest_model: most trees that a broadcast may hold, the B included.
    """

    loss: Loss
    outcome: str = Field(default="", exclude_if=lambda column: not column)
    most: Real = Field(default=1.0, gt=0, le=1e100, exclude_if=lambda stated: stated == 1.0)
    trees: int = Field(ge=1, le=4096)
    depth: int = Field(ge=1, le=8)
    largest_model: int = Field(ge=1, le=100_000)


class TreeGradients(RowTask[TreeGradientsParameters]):
    """Sums over the records of each leaf of g = dl/df and h = d2l/df2, of the loss l at the model's prediction f so far.

    Blocks: ``gradients`` (B, 2^D) and ``hessians`` (B, 2^D); of a softmax over C classes (B, 2^D, C) each, where h is the
    diagonal of the Hessian. The broadcast holds trees as a released model does
    (:class:`veilsum_privacy.training.models.trees.Trees`), ``model.<name>``: B of them or more, of which the last B are those
    that the release is of, and have leaves of 0. Their splits are public: they were drawn at random, or made of earlier sums.

    With p, mu the prediction's mean, g = p - y and h = p (1 - p) of an event, and of each class, where y is 1 of the record's
    own and 0 of others; g = mu - y and h = mu of a count up to Y, with mu at most M, all in half ranges of the column
    (:class:`veilsum_privacy.tasks.outcomes.Outcome`); and of a number scaled to u in [-1, 1] g is f - u cut to [-1, 1], and
    h = 1.

    Sensitivity: sqrt(B) times a factor. A record ends in one leaf of each tree, so its squared norm is B (a^2 g^2 + b^2 h^2),
    of a softmax with the squares summed over classes.
    Of an event, a = 1, b = 4 kappa; of a count, a = 1 / max(Y, M), b = kappa / M: a^2 g^2 + b^2 h^2 <= 1 up to the kappa that
    :class:`veilsum_privacy.tasks.newton_step.NewtonStep` proves for the same residual and variance, and at most
    max(1, max(Y - M, M)^2 / max(Y, M)^2 + kappa^2) of a count with another M. Of a number, a = 1 and b = 1/2: 1 + 1/4.
    Of a softmax, a^2 = 1/2, b^2 = 2. With s the sum of p_k^2 and y the label's class, |g|^2 = 1 - 2 p_y + s; and 4 p (1 - p)
    is at most 1, so 4 |h|^2 <= sum p_k (1 - p_k) = 1 - s. The factor's square, (|g|^2 + 4 |h|^2) / 2, is thus at most 1 - p_y;
    it is 1 where another class is certain, and where two others have 1/2.
    So at equal noise the Hessians of events, classes and counts come free.

    A record without one of the features under ``skip``, or without its outcome, adds zero; under ``centre`` an absent feature
    is 0. The row depends on the record and the broadcast alone.
    """

    name = "tree-gradients"
    disclosures = ("joint",)

    def __init__(self, parameters: TreeGradientsParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        if parameters.width is not None or parameters.alignment is not None:
            raise Misuse("Trees split the columns themselves; an encoder or an alignment has no public bins.")
        if (parameters.outcome == "") != (parameters.loss in ("logistic", "softmax")):
            raise Misuse(
                "Logistic and softmax are of the label, other losses of a numeric column.", "State `outcome` accordingly."
            )
        classes = len(schema.classes)
        if (parameters.loss == "logistic" and classes != 2) or (parameters.loss == "softmax" and classes < 3):
            raise Misuse(
                f"The logistic loss is of two classes, softmax of more; the label has {classes}.", "State the other loss."
            )
        self._outcome: Outcome | None = None
        self._width = schema.width
        if parameters.loss in ("squared", "poisson"):
            self._outcome = Outcome(column=parameters.outcome, loss=parameters.loss)
            self._outcome.check(schema)
            self._width = self._outcome.features(schema).width
        if parameters.largest_model < parameters.trees:
            raise Misuse("The largest model has fewer trees than a release.")
        if self.layout().size > MOST_VALUES:
            raise Misuse(f"A release of {self.layout().size} values is too large.", "Use fewer or flatter trees.")

    @property
    def leaves(self) -> int:
        """Leaves of a tree."""
        return int(2**self.parameters.depth)

    @property
    def scores(self) -> int:
        """Predictions of a record: one a class of a softmax, or one."""
        return len(self.schema.classes) if self.parameters.loss == "softmax" else 1

    @property
    def _counts(self) -> tuple[float, float]:
        """Y and M of a count, in half ranges of its column; 1 and 1 of other outcomes."""
        if self._outcome is None or self.parameters.loss != "poisson":
            return 1.0, 1.0
        column = self._outcome.number(self.schema)
        half = column.high / 2.0 - column.low / 2.0
        return column.high / half, float(self.parameters.most) / half

    @property
    def weights(self) -> tuple[float, float]:
        """a and b."""
        p = self.parameters
        if p.loss == "logistic":
            return 1.0, 4.0 * FREE["logistic"]
        if p.loss == "softmax":
            return OF_CLASSES
        if p.loss == "squared":
            return 1.0, COUNTED
        return 1.0 / max(self._counts), FREE["poisson"] / self._counts[1]

    def layout(self) -> Layout:
        (a, b), each = self.weights, () if self.scores == 1 else (self.scores,)
        shape = (self.parameters.trees, self.leaves, *each)
        return Layout((Block(GRADIENTS, shape, a), Block(HESSIANS, shape, b)))

    def clip(self) -> float:
        p = self.parameters
        longest = 1.0
        if p.loss == "squared":
            longest = math.hypot(1.0, COUNTED)
        elif p.loss == "poisson":
            high, most = self._counts
            longest = max(1.0, math.hypot(max(high - most, most) / max(high, most), FREE["poisson"]))
        return math.sqrt(p.trees) * longest

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return {MODEL + name: np.zeros(shape) for name, shape in self._shapes(self.parameters.trees).items()}

    def model(self, broadcast: Mapping[str, Floats]) -> dict[str, Floats]:
        """The broadcast trees by the names of their arrays.

        Raises:
            HostileInput: an array is missing, or has another shape or values than trees have.
        """
        features = broadcast.get(MODEL + FEATURES)
        trees = 0 if features is None or features.ndim != 2 else len(features)
        if not self.parameters.trees <= trees <= self.parameters.largest_model:
            raise HostileInput(f"The broadcast must hold {MODEL}{FEATURES} of {self.parameters.trees} trees or more.")
        found = {}
        for name, shape in self._shapes(trees).items():
            array = broadcast.get(MODEL + name)
            if array is None or array.shape != shape or not np.isfinite(array).all() or np.abs(array).max() > LARGEST_ENTRY:
                raise HostileInput(f"The broadcast must hold {MODEL}{name} of shape {shape}, of moderate finite numbers.")
            found[name] = np.asarray(array, dtype=np.float64)
        return found

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        arrays, trees = self.model(broadcast), self.parameters.trees
        record, classes, outcome, known = self._parted(record)
        used = usable(self.parameters, record, classes) & known
        outcome = where(used, outcome, 0.0)
        x = clip(record.features, -1.0, 1.0)
        valued = every(finite(x))
        x = where(record.present & used & valued, x, 0.0)
        margin = traced_margin(arrays, x)
        gradient, hessian = self._derivatives(margin if self.scores > 1 else margin[0], outcome)
        leaf = where(used, leaves(x, named_features(arrays)[-trees:], arrays[THRESHOLDS][-trees:]), -1)
        # One that is not finite is counted at the site as invalid, and adds zero.
        values = (where(valued, weight * each, np.nan) for weight, each in zip(self.weights, (gradient, hessian), strict=True))
        return joined(*(placed(spread(value, trees), leaf, self.leaves) for value in values))

    def _parted(self, record: Record) -> tuple[Record, int | None, Symbol, Symbol]:
        """The record with its features alone, how many classes there are, its outcome, and whether it has one."""
        if self._outcome is None:
            label = symbol(-1) if record.label is None else record.label
            return record, len(self.schema.classes), real(label), symbol(np.True_)
        own = parted(self._outcome, record, self.schema)
        return own.record, None, own.outcome, own.known

    def _derivatives(self, margin: Symbol, outcome: Symbol) -> tuple[Symbol, Symbol]:
        """g and h, as the margin () or (C,)."""
        p = self.parameters
        if p.loss == "softmax":
            return softmax_derivatives(margin, outcome)
        if p.loss == "squared":
            return clip(margin - outcome, -1.0, 1.0), symbol(1.0)
        mean, variance = means(p.loss, margin, self._counts[1])
        return mean - outcome, variance

    def _shapes(self, trees: int) -> Shapes:
        """Shapes of the arrays of a model of so many trees."""
        return tree_shapes(trees, self.parameters.depth, max(2, self.scores))


def softmax_derivatives(scores: Symbol, label: Symbol) -> tuple[Symbol, Symbol]:
    """Gradient and diagonal of the Hessian of the cross-entropy, (C,) each, at scores (C,)."""
    p = exp(scores - largest(scores))
    p = p / reduce(add, (p[place] for place in range(p.shape[0])))
    return p - (np.arange(p.shape[0]) == label), p * (1.0 - p)
