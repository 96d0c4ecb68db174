"""Outcomes of one record, and what scores predict of it, as rows are computed: :class:`~.outcomes.Outcome` traced."""

import math
from typing import NamedTuple

import numpy as np

from veilsum_privacy.mechanism.rows.symbols import (
    Record,
    Symbol,
    clip,
    every,
    exp,
    finite,
    joined,
    largest,
    log,
    maximum,
    minimum,
    real,
    search,
    some,
    symbol,
    total,
    where,
)
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema
from veilsum_privacy.tasks.outcomes import Outcome


class PartedRecord(NamedTuple):
    """A record as a model of outcomes takes it.

    Attributes:
        record: with the features alone, and no label.
        outcome: the column as the loss takes it: in [-1, 1], or a count in half ranges of the column; of a time in [-1, 1].
        known: whether the record has its outcome.
    """

    record: Record
    outcome: Symbol
    known: Symbol


def parted(outcome: Outcome, record: Record, schema: DatasetSchema) -> PartedRecord:
    """A record's features and its number or count; of a time the column alone."""
    known, own = symbol(np.True_), slice(0, 0)
    for column, place in schema.places():
        if column.name in outcome.columns:
            known = known & every(record.present[place])
        if column.name == outcome.column:
            own = place
    scaled = clip(record.features[own.start], -1.0, 1.0)
    valued = finite(scaled)
    scaled = where(valued, scaled, 0.0)
    if outcome.loss == "poisson":
        number = outcome.number(schema)
        half = number.high / 2.0 - number.low / 2.0
        scaled = maximum(number.low + (scaled + 1.0) * half, 0.0) / half
    kept = outcome.places(schema)
    return PartedRecord(Record(record.features[kept], record.present[kept], None), scaled, known & valued)


def targets(outcome: Outcome, record: Record, schema: DatasetSchema) -> Symbol:
    """The outcome (t,) of a record as the loss takes it; see :func:`veilsum_privacy.training.losses.intervals` of times."""
    column = parted(outcome, record, schema).outcome
    if outcome.loss != "hazard":
        return joined(column)
    number, counted = outcome.number(schema), list[int]()
    for own, place in schema.places():
        if own.name == outcome.event and isinstance(own, CategoryColumn):
            counted = [place.start + at for at, level in enumerate(own.categories) if level not in outcome.censored]
    event = some(clip(record.features[np.array(counted)], -1.0, 1.0) > 0.5)
    time = maximum(number.low + (column + 1.0) * (number.high / 2.0 - number.low / 2.0), 0.0)
    starts, ends = np.array([0.0, *outcome.cuts]), np.array([*outcome.cuts, number.high])
    at_risk = clip(time - starts, 0.0, ends - starts) / float(ends[-1])
    fell = (search(ends, time) == np.arange(len(ends))) & (event & (time < float(ends[-1])))
    return joined(at_risk, real(fell))


def predicted(outcome: Outcome, scores: Symbol, schema: DatasetSchema, most: float | None) -> Symbol:
    """What finite scores (k,) predict: :meth:`~.outcomes.Outcome.predictor` of a record."""
    number = outcome.number(schema)
    half = number.high / 2.0 - number.low / 2.0
    if outcome.loss in ("squared", "huber"):
        return number.low + (clip(scores[0], -1.0, 1.0) + 1.0) * half
    if outcome.loss == "poisson":
        logarithm = scores[0] + math.log(half)
        return logarithm if most is None else minimum(logarithm, math.log(most))
    lengths = np.diff([0.0, *outcome.cuts, number.high]) / number.high
    most_likely = largest(scores)
    return most_likely + log(total(exp(scores - most_likely) * lengths))
