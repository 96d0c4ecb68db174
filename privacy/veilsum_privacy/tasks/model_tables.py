"""The task "model-tables": tables of records beside what a released model predicts of them, an outcome or a class."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, StringConstraints, model_validator

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse, told_as
from veilsum_node.fields import Name, Real
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
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
    lookup,
    place_of_largest,
    real,
    spread,
    symbol,
    total,
    where,
)
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Disclosure
from veilsum_privacy.tasks.feature_rows import clipped, usable
from veilsum_privacy.tasks.outcome_rows import parted, predicted
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.tasks.parameters import Alignment, FeatureParameters
from veilsum_privacy.tasks.tables import TablesParameters, TableTask
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture, check_resolved
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.models.trees import Trees
from veilsum_privacy.training.released import broadcast_model
from veilsum_privacy.training.traced import opaque_scores, traced_scores

SCORE = "prediction"
"""Name of the column that the model makes; of a classifier a probability."""

CLASS, PREDICTED, RIGHT, LOSS = "class", "predicted", "right", "loss"
"""Names of the other columns of a classifier: the true class, the predicted one, whether they agree, and the log loss."""

NO, YES = "no", "yes"
"""Levels of :data:`RIGHT`."""

UNCLIPPED = 1e6
"""A clip norm that no feature of a record reaches."""


class ModelTablesParameters(FeatureParameters, TablesParameters):
    """What is asked, and of which model: one of an outcome, with ``outcome``, or one of classes, with ``classes``.

    Attributes:
        width, alignment, clip: of a classifier's features; a model of an outcome takes the schema's own as they are.
        model: what predicts; every option stated.
        sha256: :func:`veilsum_privacy.training.released.model_digest` of the model.
        most: of counts, what larger predictions are taken as, in the column's unit.
        missing: ``skip``: a record with an absent feature has no prediction; ``centre``: an absent feature is 0.
        low, high: bounds that predictions are cut to: of the number, of the logarithm of the mean count, or of that of the
            cumulative hazard (:meth:`veilsum_privacy.tasks.outcomes.Outcome.predictor`); of a probability.
        classes: names of the model's classes in the order of its scores, each one of the schema's.
        largest_loss: L, what a record's log loss is cut to, in nats; 0 for no column of it.
    """

    width: int | None = Field(default=None, ge=1, le=4096, exclude_if=lambda stated: stated is None)
    alignment: Alignment | None = Field(default=None, exclude_if=lambda stated: stated is None)
    clip: Real = Field(default=UNCLIPPED, gt=0, le=UNCLIPPED, exclude_if=lambda stated: stated == UNCLIPPED)
    model: ModelSpec
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    outcome: Outcome | None = Field(default=None, exclude_if=lambda stated: stated is None)
    most: Real | None = Field(default=None, gt=0, le=1e100, exclude_if=lambda stated: stated is None)
    low: Real
    high: Real
    classes: tuple[Name, ...] = Field(default=(), exclude_if=lambda stated: not stated)
    largest_loss: Real = Field(default=0.0, ge=0, le=1000, exclude_if=lambda stated: not stated)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.outcome is None) != bool(self.classes):
            raise ValueError("a model predicts an outcome or tells classes apart: state `outcome` or `classes`")
        if self.outcome is None and self.most is not None:
            raise ValueError("`most` is of a model that predicts counts")
        own = self.width is None and self.alignment is None and self.clip == UNCLIPPED and not self.largest_loss
        if self.outcome is not None and not own:
            raise ValueError("a model of an outcome takes the schema's own features, and has no loss of classes")
        if self.width is not None and self.person in ("max", "mean"):
            raise ValueError('features of an encoder are not joined: state person = "first" or "last", or at_most')
        return self


def scored_schema(schema: DatasetSchema, low: float, high: float) -> DatasetSchema:
    """The schema of records beside their predictions, which lie between these bounds.

    Raises:
        HostileInput: the bounds do not rise, or a column has the prediction's name.
    """
    if not low < high:
        raise HostileInput("The bounds of the predictions must rise.", "State low < high.")
    if any(column.name == SCORE for column in schema.columns):
        raise HostileInput(f"The schema has a column {SCORE!r}, as predictions are called here.", "Give it another name.")
    return schema.model_copy(update={"columns": (*schema.columns, NumberColumn(name=SCORE, low=low, high=high))})


def same_two(schema: DatasetSchema, classes: tuple[str, ...]) -> bool:
    """Whether there are two classes, the same ones in schema and model: predictions are then probabilities of the schema's
    second, otherwise of the predicted class."""
    return len(schema.classes) == len(classes) == 2


def classified_schema(schema: DatasetSchema, classes: tuple[str, ...], largest_loss: float) -> DatasetSchema:
    """What is known of records by a classifier of these classes, in place of the columns that it reads.

    Raises:
        Misuse: the schema has no two classes, or lacks one of the model's.
    """
    if schema.label is None or len(schema.classes) < 2:
        raise Misuse("A classifier's evaluation needs a label with two classes or more.", "Add a [label] table with classes.")
    if len(classes) < 2 or len(set(classes)) < len(classes) or not set(classes) <= set(schema.classes):
        raise Misuse(
            "The model's classes are not distinct classes of the schema.", f"The schema has: {', '.join(schema.classes)}."
        )
    low = 0.0 if same_two(schema, classes) else 1.0 / len(classes)
    columns = (
        CategoryColumn.model_construct(name=PREDICTED, categories=classes),  # there may be more than of a column that is read
        CategoryColumn(name=RIGHT, categories=(NO, YES)),
        NumberColumn(name=SCORE, low=low, high=1.0),
        *([NumberColumn(name=LOSS, low=0.0, high=largest_loss)] if largest_loss else []),
    )
    label = schema.label.model_copy(update={"column": CLASS})
    return DatasetSchema(columns=columns, label=label, max_records=schema.max_records)


class ModelTables(TableTask[ModelTablesParameters]):
    """Tables of what a broadcast model says of each record.

    Of a model of an outcome: of the schema's columns and one more, :data:`SCORE`, its prediction. A record without a
    prediction has none in that column, as if the value were missing.

    Of a classifier: of :func:`classified_schema`'s columns alone. :data:`SCORE` is the probability of the schema's second
    class where schema and model have the same two classes, otherwise that of the predicted class; probabilities are the
    softmax of the scores. A record's loss is -log of the probability of its class, at most L; L where the model does not know
    the class. A record that cannot be scored, or has no class, has none of them.

    The broadcast holds the model in arrays ``model.<name>``. What a record adds is bounded as of any table, whatever the model
    says of it, and depends on the record and the broadcast alone: perceptrons and trees score rows exactly, other networks in
    batches of one padded size.
    """

    name = "model-tables"
    disclosures: ClassVar[tuple[Disclosure, ...]] = ("joint", "per-site")
    architecture: Architecture

    def __init__(self, parameters: ModelTablesParameters, schema: DatasetSchema) -> None:
        p = parameters
        if p.outcome is None:
            super().__init__(parameters, schema, classified_schema(schema, p.classes, p.largest_loss))
            width, scores = self.dimension, len(p.classes)
            own = [p.classes.index(name) if name in p.classes else -1 for name in schema.classes]
            self._own = np.array(own)
            """The model's class for each class of the schema; -1 for one that it does not know."""
        else:
            p.outcome.check(schema)
            super().__init__(parameters, schema, scored_schema(schema, p.low, p.high))
            width, scores = p.outcome.features(schema).width, p.outcome.build(schema).scores
        with told_as(Misuse, HostileInput):
            check_resolved(p.model)
            self.architecture = build_architecture(p.model, width, scores, trained=False)
        if p.outcome is not None and not isinstance(self.architecture, Perceptron | Trees):
            raise Misuse(f"The model {p.model.name!r} predicts no outcome.", "Evaluate a perceptron or trees.")

    @property
    def features(self) -> FeatureParameters | None:
        return super().features if self.parameters.outcome is None else None

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return to_broadcast(self.architecture.initial(0))

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        arrays, outcome = self._model(broadcast), self.parameters.outcome
        return self._answered(self._classified(record, arrays) if outcome is None else self._scored(record, outcome, arrays))

    def maps(self, broadcast: Mapping[str, Floats]) -> Mapping[str, OpaqueMap]:
        return opaque_scores(self.architecture, self._model(broadcast))

    def _model(self, broadcast: Mapping[str, Floats]) -> Mapping[str, Floats]:
        return broadcast_model(self.architecture, broadcast, self.parameters.sha256)

    def _scored(self, record: Record, outcome: Outcome, arrays: Mapping[str, Floats]) -> Record:
        """The record with one feature more, the prediction between its bounds."""
        p = self.parameters
        own = parted(outcome, record, self.schema).record
        whole = every(own.present) if p.missing == "skip" else symbol(np.True_)
        z = traced_scores(self.architecture, arrays, where(own.present & whole, clip(own.features, -1.0, 1.0), 0.0))
        known = whole & every(finite(z))
        h = predicted(outcome, where(known, z, 0.0), self.schema, p.most)
        scaled = where(known, _scaled(h, p.low, p.high), 0.0)
        return Record(joined(record.features, scaled), joined(record.present, known), record.label)

    def _classified(self, record: Record, arrays: Mapping[str, Floats]) -> Record:
        """What is known of a record, as :func:`classified_schema` has it."""
        used = usable(self.parameters, record, len(self.schema.classes))
        z = traced_scores(self.architecture, arrays, clipped(self.parameters, record, used))
        return self.of_scores(z, used, symbol(-1) if record.label is None else record.label)

    def of_scores(self, z: Symbol, used: Symbol, label: Symbol) -> Record:
        """What a classifier's scores (M,) say of a record of this class, as :func:`classified_schema` has it; nothing of one
        that is not ``used`` or whose scores are not finite."""
        p = self.parameters
        known = used & every(finite(z))
        z, label = where(known, z, 0.0), where(known, label, 0)
        own, likeliest, places = lookup(self._own, label), place_of_largest(z), np.arange(len(p.classes))
        shifted = z - largest(z)
        exponents = exp(shifted)
        whole = total(exponents)
        two = same_two(self.schema, p.classes)
        score = (exponents[int(self._own[1])] if two else 1.0) / whole
        low = 0.0 if two else 1.0 / len(p.classes)
        columns = [likeliest == places, own != likeliest, own == likeliest, _scaled(score, low, 1.0)]
        if p.largest_loss:
            loss = log(whole) - total(where(own == places, shifted, 0.0))
            columns.append(_scaled(where(own >= 0, loss, p.largest_loss), 0.0, p.largest_loss))
        features = real(joined(*columns)) * known
        return Record(features, spread(known, *features.shape), where(known, label, -1))


def _scaled(value: Symbol, low: float, high: float) -> Symbol:
    """A value cut to its bounds, as a column's are scaled."""
    return (clip(value, low, high) - low) / (high / 2.0 - low / 2.0) - 1.0
