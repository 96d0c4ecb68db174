"""Clipped gradient sums of many sites at once, for perceptrons: what the task "gradient" computes at each of them.

A record's gradient depends on it alone, to the last bit, so all sites' records go through the closed form together; only the
sum over a site's own records is left to be done site by site, in the task's own order. The vectors are the task's, to the bit
wherever the linear algebra library multiplies equal matrices alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse
from veilsum_privacy.tasks.base import Records, Task
from veilsum_privacy.tasks.features import class_weights
from veilsum_privacy.tasks.gradient import COUNT_WEIGHT, Gradient
from veilsum_privacy.training import closed_form
from veilsum_privacy.training.arrays import MODEL, from_broadcast
from veilsum_privacy.training.clipped_sums import clip_weights
from veilsum_privacy.training.models import build_architecture
from veilsum_privacy.training.models.perceptrons import Perceptron

Vectors = Callable[[Records, Integers, Mapping[str, Floats]], Floats]

ROWS = 2**15
"""Records whose gradients are held at once, unless one site has more."""


def perceptron_vectors(task: Task[Any]) -> Vectors | None:
    """A function that gives the vectors of many sites; None unless the task is "gradient" of a perceptron of classes."""
    if not isinstance(task, Gradient) or task.parameters.outcome is not None:
        return None
    shapes = {block.name: block.shape for block in task.layout().blocks}
    weight, bias = [name for name in shapes if name.endswith(".weight")], [name for name in shapes if name.endswith(".bias")]
    others = [name for name in shapes if not name.startswith(MODEL)]
    if not weight or not bias or others != ["count"] * task.parameters.count:
        return None
    classes, width = shapes[weight[-1]][0], shapes[weight[0]][-1]
    architecture = build_architecture(task.parameters.model, width, classes)
    if not isinstance(architecture, Perceptron):
        return None

    def vectors(records: Records, offsets: Integers, broadcast: Mapping[str, Floats]) -> Floats:
        return _vectors(task, architecture, records, offsets, broadcast)

    return vectors


def _vectors(
    task: Gradient, architecture: Perceptron, records: Records, offsets: Integers, broadcast: Mapping[str, Floats]
) -> Floats:
    if records.labels is None:
        raise Misuse("The task gradient needs labelled records.")
    shapes = architecture.shapes()
    arrays = from_broadcast(broadcast, shapes)
    x, used = task.inputs(records, broadcast)
    sites, size = len(offsets) - 1, sum(math.prod(shape) for shape in shapes.values())
    found = np.zeros((sites, task.layout().size))
    if task.parameters.count:
        counted = np.concatenate([[0], np.cumsum(used)]).astype(np.float64)
        found[:, size] = COUNT_WEIGHT * task.parameters.gradient_clip * np.diff(counted[offsets])
    used = used & np.isfinite(x).all(axis=1)
    first = 0
    while first < sites:
        last = int(np.searchsorted(offsets, offsets[first] + ROWS, side="right")) - 1
        last = min(max(last, first + 1), sites)
        rows = slice(int(offsets[first]), int(offsets[last]))
        own = np.where(used[rows, None], x[rows], 0.0)
        labels = np.where(used[rows], records.labels[rows], 0)
        weights = class_weights(broadcast, labels, architecture.classes) if task.parameters.class_weights else None
        found[first:last, :size] = _sums(
            task, architecture, arrays, own, labels, used[rows], offsets[first : last + 1] - offsets[first], weights
        )
        first = last
    return found


def _sums(
    task: Gradient,
    architecture: Perceptron,
    arrays: Mapping[str, Floats],
    x: Floats,
    labels: Integers,
    used: NDArray[np.bool_],
    offsets: Integers,
    own_weights: Floats | None,
) -> Floats:
    """The sums (n, P) of n sites over their records x[offsets[i]:offsets[i + 1]], each record's gradient clipped."""
    parts = closed_form.factors(architecture, arrays, x, lambda z: closed_form.cross_entropy_by_scores(z, labels))
    with np.errstate(over="ignore", invalid="ignore"):
        squares = sum((part.squares() for part in parts), start=np.zeros(len(x)))
        used = used & np.isfinite(squares)
    if not used.all():
        parts = [part.without(~used) for part in parts]
        squares = np.where(used, squares, 0.0)
    weights, _ = clip_weights(np.sqrt(squares), task.parameters.gradient_clip)
    weights = weights if own_weights is None else weights * own_weights
    places, place = {}, 0
    for name, shape in architecture.shapes().items():
        places[name] = slice(place, place + math.prod(shape))
        place += math.prod(shape)
    found = np.zeros((len(offsets) - 1, place))
    scaled = [weights[:, None] * part.delta for part in parts]
    for site, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        row = found[site]
        for begin in range(start, stop, closed_form.BATCH):  # as the task adds up
            end = min(begin + closed_form.BATCH, stop)
            for part, delta in zip(parts, scaled, strict=True):
                own = delta[begin:end]
                row[places[part.weight]] += (own.T @ part.entering[begin:end]).ravel()
                if part.bias is not None:
                    row[places[part.bias]] += part.constant * own.sum(axis=0)
    return found
