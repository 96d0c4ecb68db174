"""The task "model-tables": tables of records beside what a released model predicts of them, an outcome or a class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints, model_validator

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Disclosure
from veilsum_privacy.tasks.base import Records, batches
from veilsum_privacy.tasks.features import clipped, usable
from veilsum_privacy.tasks.lookups import looked_up
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.tasks.parameters import Alignment, FeatureParameters
from veilsum_privacy.tasks.queries.branches import Branches
from veilsum_privacy.tasks.tables import TablesParameters, TableTask
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import ModelSpec, build_architecture, check_resolved
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.models.trees import Trees
from veilsum_privacy.training.released import broadcast_model

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
        outcome: what it predicts.
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
    Parameters: ClassVar[type[Frozen]] = ModelTablesParameters

    def __init__(self, parameters: ModelTablesParameters, schema: DatasetSchema) -> None:
        p = parameters
        if p.outcome is None:
            super().__init__(parameters, schema, classified_schema(schema, p.classes, p.largest_loss))
            width, scores = self.dimension, len(p.classes)
            own = [p.classes.index(name) if name in p.classes else -1 for name in schema.classes]
            self._own = np.array(own)
            """By the schema's class the model's; -1 for one that it does not know."""
        else:
            p.outcome.check(schema)
            super().__init__(parameters, schema, scored_schema(schema, p.low, p.high))
            width, scores = p.outcome.features(schema).width, p.outcome.build(schema).scores
        try:
            check_resolved(p.model)
            self.architecture = build_architecture(p.model, width, scores, trained=False)
        except HostileInput as error:
            raise Misuse(error.message, error.advice) from error
        if p.outcome is not None and not isinstance(self.architecture, Perceptron | Trees):
            raise Misuse(f"The model {p.model.name!r} predicts no outcome.", "Evaluate a perceptron or trees.")

    @property
    def features(self) -> FeatureParameters | None:
        return super().features if self.parameters.outcome is None else None

    def branches(self) -> Branches | None:
        return None if self.parameters.outcome is None else super().branches()

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return to_broadcast(self.architecture.initial(0))

    def vectors(self, records: Records, broadcast: Mapping[str, Floats]) -> Iterator[Integers]:
        arrays, outcome = broadcast_model(self.architecture, broadcast, self.parameters.sha256), self.parameters.outcome
        records, counted = self.counted(records)
        for part in batches(len(records), self._schema.width):
            taken = records.take(part)
            read = self._classified(taken, arrays) if outcome is None else self._scored(taken, outcome, arrays)
            yield from self._rows(read, counted[part])

    def _scored(self, records: Records, outcome: Outcome, arrays: Mapping[str, Floats]) -> Records:
        """The records with one feature more, the prediction between its bounds."""
        from veilsum_privacy.training.predict import scores

        p = self.parameters
        own = outcome.split(records, self.schema).records
        whole = np.logical_and.reduce(own.present, axis=1) if p.missing == "skip" else np.ones(len(own), dtype=np.bool_)
        x = np.where(own.present & whole[:, None], np.clip(own.features, -1.0, 1.0), 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            z = scores(self.architecture, arrays, x)
        known = whole & np.logical_and.reduce(np.isfinite(z), axis=1)
        h = outcome.predictor(np.where(known[:, None], z, 0.0), self.schema, p.most)
        scaled = np.where(known, _scaled(h, p.low, p.high), 0.0)
        return Records(
            np.column_stack([records.features, scaled]), np.column_stack([records.present, known]), records.labels, None
        )

    def _classified(self, records: Records, arrays: Mapping[str, Floats]) -> Records:
        """What is known of the records, as :func:`classified_schema` has it."""
        from veilsum_privacy.training.predict import scores

        if records.labels is None:
            raise Misuse("A classifier's evaluation needs labelled records.")
        p, every = self.parameters, slice(0, len(records))
        used = usable(p, records, every, len(self.schema.classes))
        with np.errstate(over="ignore", invalid="ignore"):
            z = scores(self.architecture, arrays, clipped(p, records, every, used))
        return self.of_scores(z, used, records.labels)

    def of_scores(self, z: Floats, used: NDArray[np.bool_], labels: Integers) -> Records:
        """What a classifier's scores (n, M) say of records of these classes (n,), as :func:`classified_schema` has it; nothing
        of those that are not ``used`` or whose scores are not finite."""
        p = self.parameters
        known = used & np.logical_and.reduce(np.isfinite(z), axis=1)
        z, label = np.where(known[:, None], z, 0.0), np.where(known, labels, 0)
        own, predicted = looked_up(self._own, label), np.argmax(z, axis=1)
        shifted = np.ascontiguousarray(z - z.max(axis=1, keepdims=True))
        exponents = np.exp(shifted)
        total = np.add.reduce(exponents, axis=1)
        two = same_two(self.schema, p.classes)
        score = (exponents[:, self._own[1]] if two else 1.0) / total
        columns = [
            predicted[:, None] == np.arange(len(p.classes)),
            np.stack([own != predicted, own == predicted], axis=1),
            _scaled(score, 0.0 if two else 1.0 / len(p.classes), 1.0)[:, None],
        ]
        if p.largest_loss:
            loss = np.log(total) - shifted[np.arange(len(z)), own]
            columns.append(_scaled(np.where(own >= 0, loss, p.largest_loss), 0.0, p.largest_loss)[:, None])
        features = np.hstack(columns).astype(np.float64) * known[:, None]
        return Records(features, np.broadcast_to(known[:, None], features.shape), np.where(known, label, -1), None)


def _scaled(values: Floats, low: float, high: float) -> Floats:
    """Values cut to their bounds, as a column's are scaled."""
    scaled: NDArray[np.float64] = (np.clip(values, low, high) - low) / (high / 2.0 - low / 2.0) - 1.0
    return scaled
