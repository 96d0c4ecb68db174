"""Sums of clipped gradients of models, by the kernel, with nothing of a task between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_privacy.mechanism.factors import FactorSums, FineUnits, Products
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.symbols import (
    Symbol,
    every,
    finite,
    joined,
    lookup,
    only,
    opaque,
    real,
    record_of,
    traced,
    where,
)
from veilsum_privacy.training.gradients import ModelGradient
from veilsum_privacy.training.losses import OutcomeLoss
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.per_record import LossOf, PerRecordGradients
from veilsum_privacy.training.traced import NETWORK

GRID, PLACES = 2**22, 20


class ClippedSum(NamedTuple):
    """A sum (P,) in its own units, and how many records, or sums of subjects, were clipped and how many are not finite."""

    total: Floats
    clipped: int
    invalid: int
    integers: Integers


def factor_sum(
    row: Symbol,
    maps: Mapping[str, Any],
    products: Products,
    records: Records,
    groups: Integers | None = None,
    *,
    raises: bool = True,
) -> ClippedSum:
    """The exact sum of records' products, to 2^-42 of the clip; what an opaque map raises is raised again if ``raises``."""
    room = 1.0 + 2.0**-12  # as tasks have it: what is as long as C is not pulled in
    fine = FineUnits.of(products.norm * room, GRID, products.size, places=PLACES)
    sums = FactorSums(Evaluation(traced(row), maps), products, fine)
    sums.add(records, groups)
    if raises and sums.fault is not None:
        raise sums.fault
    unit = 2.0 ** (fine.shift - PLACES) / fine.scale
    total = sums.total()
    return ClippedSum(total * unit, sums.clipped, sums.invalid, total)


def records_of(x: Floats, labels: Integers) -> Records:
    """Records of these features, all there."""
    return Records(x, np.ones(x.shape, dtype=np.bool_), labels)


def used_of(x: Symbol, label: Symbol, classes: int) -> Symbol:
    """Whether a record is finite and of a class."""
    return every(finite(x)) & (label >= 0) & (label < classes)


def clipped_gradient_sum(
    architecture: Architecture,
    arrays: Mapping[str, Floats],
    x: Floats,
    labels: Integers,
    clip: float,
    *,
    groups: Integers | None = None,
    loss: Any = None,
    weights: Floats | None = None,
) -> ClippedSum:
    """The sum of the gradients of labelled records, each clipped; ``weights`` (K,) are of classes."""
    record = record_of(architecture.width, labelled=True)
    assert record.label is not None
    used = used_of(record.features, record.label, architecture.classes)
    gradient = ModelGradient(architecture, loss=loss)
    label = only(record.label, used)
    row = gradient.row(arrays, where(used, record.features, 0.0), label)
    if weights is not None:
        row = joined(lookup(weights, label), row)
    products = Products(gradient.terms, clip, weights is not None)
    return factor_sum(only(row, used), gradient.maps(arrays), products, records_of(x, labels), groups)


def clipped_outcome_sum(
    architecture: Architecture,
    arrays: Mapping[str, Floats],
    x: Floats,
    outcomes: Floats,
    known: NDArray[np.bool_],
    loss: OutcomeLoss,
    clip: float,
    *,
    groups: Integers | None = None,
) -> ClippedSum:
    """The sum of the gradients of records with outcomes (n, t), each clipped."""
    width = architecture.width
    record = record_of(width + loss.outcomes, labelled=True)
    assert record.label is not None
    used = every(finite(record.features)) & (record.label >= 0)
    values = where(used, record.features, 0.0)
    gradient = ModelGradient(architecture, outcome=loss)
    row = only(gradient.row(arrays, values[:width], values[width:]), used)
    records = records_of(np.hstack([x, outcomes]), np.where(known, 0, -1))
    return factor_sum(row, {}, Products(gradient.terms, clip), records, groups)


def engine_sum(
    made: PerRecordGradients,
    loss_of: LossOf,
    x: Floats,
    labels: Integers,
    clip: float,
    groups: Integers | None = None,
) -> ClippedSum:
    """The sum of a network's gradients by an engine."""
    record = record_of(x.shape[1], labelled=True)
    assert record.label is not None
    used = used_of(record.features, record.label, 2**30)
    terms = made.terms(loss_of, x.shape[1:])
    given = joined(where(used, record.features, 0.0), real(only(record.label, used)))
    row = opaque(NETWORK, given, sum(term.given for term in terms))

    def factors(values: Floats) -> NDArray[np.floating]:
        return made.factors(loss_of, values[:, :-1], values[:, -1].astype(np.int64))

    return factor_sum(only(row, used), {NETWORK: factors}, Products(terms, clip), records_of(x, labels), groups)


def task_vector(task: Any, records: Records, broadcast: Mapping[str, Floats]) -> Floats:
    """The vector (size,) of a task of factors, exact to 2^-42 of its clip; by subject where records have subjects."""
    fine = FineUnits.of(task.clip(), GRID, task.layout().size, places=PLACES)
    sums = FactorSums(Evaluation(task.traced(broadcast), task.maps(broadcast)), task.products(), fine)
    sums.add(records, records.subjects)
    return sums.total() * (2.0 ** (fine.shift - PLACES) / fine.scale)
