"""The clipped gradient sum of a named model: what a step of DP-SGD adds up at a site, before noise.

Perceptrons have their gradients in closed form, under cross-entropy and losses of outcomes; other models, and losses of
networks, go through Opacus. Nothing
here draws noise or samples records. torch and Opacus are imported where a network is used: they take seconds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse
from veilsum_privacy.training import closed_form
from veilsum_privacy.training.arrays import load
from veilsum_privacy.training.batches import LARGEST_BATCH, compute_module, computed_as, physical_batch
from veilsum_privacy.training.clipped_sums import ClippedGradients, ClippedSum, relative_slack
from veilsum_privacy.training.losses import OutcomeLoss
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.models.perceptrons import Perceptron

if TYPE_CHECKING:
    from torch import Tensor, nn

    from veilsum_privacy.training.per_record import PerRecordGradients

__all__ = ["ClippedSum", "Loss", "clipped_gradient_sum", "clipped_outcome_sum", "cross_entropy", "engine", "summation_slack"]


Loss = Callable[["nn.Module", "Tensor", "Tensor"], "Tensor"]
"""Network, features (B, width) and labels (B,) to losses (B,), each of its own record alone."""

_KEPT = 4  # engines kept by each thread


def clipped_gradient_sum(
    architecture: Architecture,
    arrays: Mapping[str, Floats],
    x: Floats,
    labels: Integers,
    clip: float,
    *,
    groups: Integers | None = None,
    loss: Loss | None = None,
    weights: Floats | None = None,
) -> ClippedSum:
    """Sum over records of the loss's gradient by all of the model's values, each record's clipped to an L2 norm of ``clip``.

    Sensitivity: one record, or with ``groups`` one subject with all its records, added or removed changes the sum by at most
    clip * (1 + summation_slack(architecture, n)) in L2, for sums of n records at most
    (:class:`veilsum_privacy.training.clipped_sums.ClippedGradients`).

    Args:
        architecture: of the model.
        arrays: its values; public.
        x: (n, width); n may be 0. A record that is not finite contributes zero and is counted.
        labels: (n,) from 0 to K - 1; a record with another label contributes zero and is counted.
        clip: C, from 1e-100 to 1e100.
        groups: (n,) whose record each one is, never descending. A subject's clipped gradients are added and clipped again.
        loss: cross-entropy if None.
        weights: (n,) in [0, 1], what a record's clipped gradient is multiplied by; a function of the record and public values.
            1 if None.

    Raises:
        Misuse: shapes that do not fit, or a loss that :class:`.PerRecordGradients` refuses.
    """
    if x.ndim != 2 or x.shape[1] != architecture.width or labels.shape != (len(x),):
        raise Misuse(f"Records come as rows of {architecture.width} features, with one label each.")
    if groups is not None and groups.shape != labels.shape:
        raise Misuse("Subjects were given for a different number of records.")
    if weights is not None and weights.shape != labels.shape:
        raise Misuse("Weights were given for a different number of records.")
    labels = np.where(labels < architecture.classes, labels, -1)
    if loss is None and isinstance(architecture, Perceptron):
        usable = labels >= 0
        names = np.where(usable, labels, 0)

        def by_scores(z: Floats, place: slice) -> Floats:
            return closed_form.cross_entropy_by_scores(z, names[place])

        return _perceptron_sum(architecture, arrays, x, usable, by_scores, clip, groups, weights)
    if loss is None:
        found = engine(architecture)
        load(found.module, arrays)
        return found.clipped_sum(
            lambda features, names: cross_entropy(found.module, features, names), x, labels, clip, groups, weights
        )
    from veilsum_privacy.training.per_record import PerRecordGradients

    own = PerRecordGradients(compute_module(architecture))
    load(own.module, arrays)
    return own.clipped_sum(lambda features, names: loss(own.module, features, names), x, labels, clip, groups, weights)


def summation_slack(architecture: Architecture, max_records: int) -> float:
    """What rounding adds to the sensitivity of :func:`clipped_gradient_sum`, as a share of ``clip``.

    Derived in :func:`veilsum_privacy.training.clipped_sums.relative_slack`: about 2 n k 2^-53 for n records, where k is the
    number of additions that a term goes through. For a million records it is about 1e-6, for a thousand below 1e-9.

    Args:
        architecture: of the model.
        max_records: most records of a sum, public.
    """
    return relative_slack(max_records, max(closed_form.BATCH, LARGEST_BATCH))


def cross_entropy(module: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each record, (B,)."""
    from torch.nn import functional

    return functional.cross_entropy(module(x), labels, reduction="none")


def engine(architecture: Architecture) -> PerRecordGradients:
    """This thread's engine for cross-entropy of this architecture; made and checked once, then kept with the last few."""
    from veilsum_privacy.training.per_record import PerRecordGradients

    kept: OrderedDict[object, PerRecordGradients] = _LOCAL.__dict__.setdefault("engines", OrderedDict())
    key = computed_as(architecture)
    found = kept.pop(key, None)
    if found is None:
        found = PerRecordGradients(compute_module(architecture))
    kept[key] = found
    if len(kept) > _KEPT:
        kept.popitem(last=False)
    return found


_LOCAL = threading.local()


def clipped_outcome_sum(
    architecture: Perceptron,
    arrays: Mapping[str, Floats],
    x: Floats,
    outcomes: Floats,
    known: NDArray[np.bool_],
    loss: OutcomeLoss,
    clip: float,
    *,
    groups: Integers | None = None,
) -> ClippedSum:
    """As :func:`clipped_gradient_sum`, of a loss of numbers, counts or times; its sensitivity is the same.

    Args:
        outcomes: (n, t) as the loss takes them.
        known: (n,) whether a record has its outcome; one that has none contributes zero.
        loss: of the model's scores.

    Raises:
        Misuse: shapes that do not fit.
    """
    if x.ndim != 2 or x.shape[1] != architecture.width or outcomes.shape != (len(x), loss.outcomes):
        raise Misuse(f"Records come as rows of {architecture.width} features, with {loss.outcomes} outcomes each.")
    if architecture.classes != loss.scores or known.shape != (len(x),):
        raise Misuse(f"The loss takes a model of {loss.scores} scores, and of each record whether its outcome is known.")
    usable = known & np.isfinite(outcomes).all(axis=1)
    told = np.where(usable[:, None], outcomes, 0.0)

    def by_scores(z: Floats, place: slice) -> Floats:
        return loss.gradient(z, told[place])

    return _perceptron_sum(architecture, arrays, x, usable, by_scores, clip, groups, None)


def _perceptron_sum(
    architecture: Perceptron,
    arrays: Mapping[str, Floats],
    x: Floats,
    usable: NDArray[np.bool_],
    by_scores: Callable[[Floats, slice], Floats],
    clip: float,
    groups: Integers | None,
    weights: Floats | None,
) -> ClippedSum:
    """The sum of clipped gradients; ``by_scores`` gives the derivatives by the scores of the records at a place."""
    total = ClippedGradients(architecture.shapes(), clip, groups)
    usable = np.isfinite(x).all(axis=1) & usable
    step = closed_form.BATCH if groups is None else physical_batch(architecture.size)
    for start in range(0, len(x), step):
        place = slice(start, start + step)
        mine = usable[place]
        rows = np.where(mine[:, None], x[place], 0.0)
        parts = closed_form.factors(architecture, arrays, rows, lambda z, place=place: by_scores(z, place))  # type: ignore[misc]
        total.add(parts, mine, None if weights is None else weights[place])
    return total.result()
