"""Local training in a study without noise: in epochs, on records. No study with noise loads this module."""

from __future__ import annotations

import math
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


def train_plainly(task: LocalTraining, records: Records, received: Received) -> Trained:
    """One round on all of a site's records; the start where none counts."""
    p, (x, target, used) = task.parameters, task.record
    told = [batch.copy() for batch in Evaluation(traced(joined(used, x, real(target)))).rows(records)]
    values = np.concatenate(told) if told else np.zeros((0, 1 + x.shape[0] + math.prod(target.shape)))
    values = values[values[:, 0] > 0.0]
    features, labels = np.ascontiguousarray(values[:, 1 : 1 + x.shape[0]]), _targets(values[:, 1 + x.shape[0] :], p.outcome)
    share = len(features) / task.schema.max_records if p.weighting == "records" else 1.0
    if p.generation is not None:  # of an outcome nothing is generated
        rng = np.random.default_rng(received.generated)
        features, labels = generate(p.generation, features, labels, task.classes, received.broadcast, rng)
    objective = task.objective.begin(received)
    gradient = mean_gradient(task.architecture, objective, p.class_weights, task.loss)
    rng = np.random.default_rng(received.seed)
    found = task.bounded(received.start, descend(received.start, features, labels, gradient, objective, p.descent, rng))
    total = np.zeros(task.objective.row_size())
    if objective.rows is not None:
        rows = objective.rows(found.end)
        for first in range(0, len(features), TOGETHER):
            part = slice(first, first + TOGETHER)
            total += rows(features[part], labels[part]).sum(axis=0)
    return task.reported(received.start, found, share, objective, total, features, labels)
