"""Local training in a study without noise: in epochs, on records. No study with noise loads this module."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.symbols import joined, real, traced
from veilsum_privacy.tasks.base import Records, Trained
from veilsum_privacy.tasks.generation import generate
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.training.epochs import Targets, descend, mean_gradient
from veilsum_privacy.training.objectives.base import Received

if TYPE_CHECKING:
    from veilsum_privacy.tasks.local_training import LocalTraining

TOGETHER = 1024
"""Records whose rows are held at once."""


def _targets(values: Floats, outcome: Outcome | None) -> Targets:
    """Labels (n,), or outcomes (n, t), of values (n, t)."""
    return values[:, 0].astype(np.int64) if outcome is None else values


def train_plainly(task: LocalTraining, records: Records, received: Received, note: Callable[[Exception], object]) -> Trained:
    """One round on all of a site's records; the start where none counts.

    Where that raises, each record is trained on alone, for one epoch and without samples around it, always and all of them.
    Those that raise are left out, and the round begins anew: it gives what it would give had they never been there. Where all
    do, so does this.
    """
    x, target, used = task.record
    told = [batch.copy() for batch in Evaluation(traced(joined(used, x, real(target)))).rows(records)]
    values = np.concatenate(told) if told else np.zeros((0, 1 + x.shape[0] + math.prod(target.shape)))
    values = values[values[:, 0] > 0.0, 1:]
    width, outcome = x.shape[0], task.parameters.outcome
    while True:
        features, labels = np.ascontiguousarray(values[:, :width]), _targets(values[:, width:], outcome)
        try:
            return _trained(task, features, labels, received)
        except Exception as error:
            apart = [slice(place, place + 1) for place in range(len(values))]
            alone = np.array([not _raises(task, features[own], labels[own], received) for own in apart], dtype=np.bool_)
            if alone.all() or not alone.any():  # it is no record's fault
                raise
            note(error)
            values = values[alone]


def _raises(task: LocalTraining, features: Floats, labels: Targets, received: Received) -> bool:
    """Whether training on one record raises."""
    try:
        _trained(task, features, labels, received, tried=True)
    except Exception:  # noqa: BLE001  whatever it is, it must not be seen
        return True
    return False


def _trained(task: LocalTraining, features: Floats, labels: Targets, received: Received, *, tried: bool = False) -> Trained:
    p = task.parameters
    share = len(features) / task.schema.max_records if p.weighting == "records" else 1.0
    if p.generation is not None and not tried:  # of an outcome nothing is generated
        rng = np.random.default_rng(received.generated)
        features, labels = generate(p.generation, features, labels, task.classes, received.broadcast, rng)
    objective = task.objective.begin(received)
    gradient = mean_gradient(task.architecture, objective, p.class_weights, task.loss)
    descent = replace(p.descent, epochs=1) if tried else p.descent
    rng = np.random.default_rng(received.seed)
    found = task.bounded(received.start, descend(received.start, features, labels, gradient, objective, descent, rng))
    total = np.zeros(task.objective.row_size())
    if objective.rows is not None:
        rows = objective.rows(found.end)
        for first in range(0, len(features), TOGETHER):
            part = slice(first, first + TOGETHER)
            total += rows(features[part], labels[part]).sum(axis=0)
    return task.reported(received.start, found, share, objective, total, features, labels)
