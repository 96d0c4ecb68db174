"""What a model of numbers, counts or times is trained on: a column of the schema that is not one of its features."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.schema import CategoryColumn, ColumnName, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.parameters import FeatureParameters
from veilsum_privacy.training.losses import Hazards, Huber, OutcomeLoss, Poisson, Squared, intervals
from veilsum_privacy.training.models import ModelSpec

HUBER_BEND = 0.1
"""Default of ``bend``, in half ranges of the column."""


class Outcome(Frozen):
    """An outcome as a study states it.

    Attributes:
        column: a numeric column: the number, the count, or the time, whose upper bound is the horizon.
        loss: ``squared`` or ``huber`` of a number, ``poisson`` of a count, ``hazard`` of a time.
        bend: of ``huber``: the error, in the column's unit, beyond which the loss is linear; by default a tenth of half its
            range.
        event: of ``hazard``, the categorical column that tells how the time ended.
        censored: its levels that do not count as the event.
        cuts: of ``hazard``, times between periods whose hazards have scores of their own; none for one period.
    """

    column: ColumnName
    loss: Literal["squared", "huber", "poisson", "hazard"]
    bend: Real | None = Field(default=None, gt=0)
    event: ColumnName | None = None
    censored: tuple[str, ...] = ()
    cuts: tuple[Real, ...] = Field(default=(), max_length=64)

    @model_validator(mode="after")
    def _of_its_loss(self) -> Self:
        if (self.loss == "hazard") != (self.event is not None):
            raise ValueError('an outcome names an event exactly if its loss is "hazard"')
        if self.loss != "hazard" and (self.censored or self.cuts):
            raise ValueError('censored and cuts are of the loss "hazard"')
        if self.loss != "huber" and self.bend is not None:
            raise ValueError('bend is of the loss "huber"')
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The schema's columns that it takes, which are not features."""
        return (self.column,) if self.event is None else (self.column, self.event)

    def check(self, schema: DatasetSchema) -> None:
        """Insist that the schema has these columns, and features beside them.

        Raises:
            Misuse: it has not; the message says what is missing.
        """
        by_name = {column.name: column for column in schema.columns}
        number = by_name.get(self.column)
        if not isinstance(number, NumberColumn):
            raise Misuse(f"The outcome {self.column!r} is not a numeric column of the schema.", "Name one of its numbers.")
        if self.loss in ("poisson", "hazard") and number.low < 0:
            raise Misuse(f"The outcome {self.column!r} may be negative, which counts and times are not.", "Set its low to 0.")
        if len(schema.columns) <= len(self.columns):
            raise Misuse("The schema has no columns beside the outcome's.", "Add columns to predict it from.")
        if self.event is None:
            return
        event = by_name.get(self.event)
        if not isinstance(event, CategoryColumn):
            raise Misuse(f"The event {self.event!r} is not a categorical column of the schema.", "Name one of its categories.")
        if unknown := sorted(set(self.censored) - set(event.categories)):
            raise Misuse(f"The event {self.event!r} has no category {unknown[0]!r}.", f"It has {', '.join(event.categories)}.")
        if not set(event.categories) - set(self.censored):
            raise Misuse(f"All categories of {self.event!r} are censored.", "Leave out those that are events.")
        edges = (0.0, *self.cuts, number.high)
        if any(low >= high for low, high in pairwise(edges)):
            raise Misuse("The outcome's cuts must rise between 0 and the column's high.", "Correct them.")

    def features(self, schema: DatasetSchema) -> DatasetSchema:
        """The schema of the features: without the outcome's columns and without a label."""
        kept = tuple(column for column in schema.columns if column.name not in self.columns)
        return schema.model_copy(update={"columns": kept, "label": None})

    def places(self, schema: DatasetSchema) -> NDArray[np.intp]:
        """Which of the schema's features are features here."""
        own = (at for column, at in schema.places() if column.name not in self.columns)
        kept = [place for at in own for place in range(at.start, at.stop)]
        return np.array(kept, dtype=np.intp)

    def number(self, schema: DatasetSchema) -> NumberColumn:
        """The numeric column."""
        return next(column for column in schema.columns if column.name == self.column and isinstance(column, NumberColumn))

    def build(self, schema: DatasetSchema) -> OutcomeLoss:
        if self.loss == "squared":
            return Squared()
        if self.loss == "huber":
            number = self.number(schema)
            half = number.high / 2.0 - number.low / 2.0
            return Huber(HUBER_BEND if self.bend is None else float(self.bend) / half)
        return Poisson() if self.loss == "poisson" else Hazards(len(self.cuts) + 1)

    def predictor(self, scores: Floats, schema: DatasetSchema, most: float | None = None) -> Floats:
        """What scores (n, k) predict, (n,): the number, or the logarithm of the mean count or of the cumulative hazard.

        Numbers and counts are in the column's unit; the hazard is that up to the horizon.

        Args:
            scores: of a model, finite.
            most: of counts, what larger means are taken as.
        """
        number = self.number(schema)
        half = number.high / 2.0 - number.low / 2.0
        if self.loss in ("squared", "huber"):
            return number.low + (np.clip(scores[:, 0], -1.0, 1.0) + 1.0) * half
        if self.loss == "poisson":
            logarithm: Floats = scores[:, 0] + math.log(half)
            return logarithm if most is None else np.minimum(logarithm, math.log(most))
        lengths = np.diff([0.0, *self.cuts, number.high]) / number.high
        largest: Floats = scores.max(axis=1)
        parts = np.ascontiguousarray(np.exp(scores - largest[:, None]) * lengths)
        return np.asarray(largest + np.log(np.add.reduce(parts, axis=1)), dtype=np.float64)

    def told(self, schema: DatasetSchema) -> dict[str, Any]:
        """How a result says what its scores predict, as JSON."""
        number = self.number(schema)
        about: dict[str, Any] = {"column": self.column, "loss": self.loss, "low": number.low, "high": number.high}
        if self.event is not None:
            about |= {"event": self.event, "censored": list(self.censored), "cuts": list(self.cuts)}
        return {**about, "unit": number.unit}

    def split(self, records: Records, schema: DatasetSchema) -> Parted:
        """Records' features and outcomes, each record's by itself."""
        features = np.clip(records.features, -1.0, 1.0)
        kept, first = self.places(schema), 0
        column, known = np.zeros(len(records)), np.ones(len(records), dtype=np.bool_)
        events: NDArray[np.bool_] = np.zeros(len(records), dtype=np.bool_)
        for own in schema.columns:
            last = first + own.width
            if own.name in self.columns:
                known &= np.logical_and.reduce(records.present[:, first:last], axis=1)
            if own.name == self.column:
                column = features[:, first]
            elif own.name == self.event and isinstance(own, CategoryColumn):
                counted = [first + place for place, level in enumerate(own.categories) if level not in self.censored]
                events = np.logical_or.reduce(features[:, counted] > 0.5, axis=1)
            first = last
        finite = np.isfinite(column)
        outcomes = self._outcomes(np.where(finite, column, 0.0), events, self.number(schema))
        mine = replace(records, features=records.features[:, kept], present=records.present[:, kept], labels=None)
        return Parted(mine, outcomes, known & finite)

    def _outcomes(self, scaled: Floats, events: NDArray[np.bool_], number: NumberColumn) -> Floats:
        """Outcomes (n, t) of the column as a feature (n,) in [-1, 1]."""
        if self.loss in ("squared", "huber"):
            return scaled[:, None]
        half = number.high / 2.0 - number.low / 2.0
        values = np.maximum(number.low + (scaled + 1.0) * half, 0.0)
        if self.loss == "poisson":
            return values[:, None] / half
        return intervals(values, events, (0.0, *self.cuts, number.high))


class Parted(NamedTuple):
    """Records as a model of outcomes takes them.

    Attributes:
        records: with the features alone.
        outcomes: (n, t) as the loss takes them.
        known: (n,) whether the record has its outcome.
    """

    records: Records
    outcomes: Floats
    known: NDArray[np.bool_]


def outcome_model(
    parameters: FeatureParameters, outcome: Outcome, model: ModelSpec, schema: DatasetSchema
) -> tuple[OutcomeLoss, int]:
    """The loss of a task that trains a model on an outcome, and how many features the model takes.

    Raises:
        Misuse: schema, features or model do not suit an outcome.
    """
    outcome.check(schema)
    if parameters.width is not None or parameters.alignment is not None:
        raise Misuse("A model of an outcome takes the schema's own features.", "Leave out the encoder and the alignment.")
    if model.name not in ("linear", "mlp"):
        raise Misuse(f"The model {model.name!r} tells classes apart.", "Take linear or mlp for an outcome.")
    return outcome.build(schema), len(outcome.places(schema))
