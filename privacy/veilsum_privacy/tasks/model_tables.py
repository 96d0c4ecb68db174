"""The task "model-tables": tables of records beside what a released model of an outcome predicts of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, StringConstraints

from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Floats, Integers, Records
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.tasks.tables import TablesParameters, TableTask
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import ModelSpec, build_architecture, check_resolved
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.models.trees import Trees
from veilsum_privacy.training.released import broadcast_model

SCORE = "prediction"
"""Name of the column that the model makes."""

CHUNK = 4096
"""Records that are scored at a time; public."""


class ModelTablesParameters(TablesParameters):
    """What is asked, and of which model.

    Attributes:
        model: what predicts; every option stated.
        sha256: :func:`veilsum_privacy.training.released.model_digest` of the model.
        outcome: what it predicts.
        most: of counts, what larger predictions are taken as, in the column's unit.
        missing: ``skip``: a record with an absent feature has no prediction; ``centre``: an absent feature is 0.
        low, high: bounds that predictions are cut to: of the number, of the logarithm of the mean count, or of that of the
            cumulative hazard (:meth:`veilsum_privacy.tasks.outcomes.Outcome.predictor`).
    """

    model: ModelSpec
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    outcome: Outcome
    most: Real | None = Field(default=None, gt=0, le=1e100, exclude_if=lambda stated: stated is None)
    missing: Literal["skip", "centre"]
    low: Real
    high: Real


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


class ModelTables(TableTask[ModelTablesParameters]):
    """Tables of the schema's columns and one more, :data:`SCORE`: the prediction of the broadcast model for each record.

    A record without a prediction has none in that column, as if the value were missing. The broadcast holds the model in
    arrays ``model.<name>``. What a record adds is bounded as of any table, whatever the model says of it, and depends on the
    record and the broadcast alone: perceptrons and trees score rows exactly.
    """

    name = "model-tables"
    Parameters: ClassVar[type[Frozen]] = ModelTablesParameters

    def __init__(self, parameters: ModelTablesParameters, schema: DatasetSchema) -> None:
        p = parameters
        p.outcome.check(schema)
        super().__init__(parameters, schema, scored_schema(schema, p.low, p.high))
        try:
            check_resolved(p.model)
            features, scores = p.outcome.features(schema), p.outcome.build(schema).scores
            self.architecture = build_architecture(p.model, features.width, scores, trained=False)
        except HostileInput as error:
            raise Misuse(error.message, error.advice) from error
        if not isinstance(self.architecture, Perceptron | Trees):
            raise Misuse(f"The model {p.model.name!r} predicts no outcome.", "Evaluate a perceptron or trees.")

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return to_broadcast(self.architecture.initial(0))

    def vectors(self, records: Records, broadcast: Mapping[str, Floats]) -> Iterator[Integers]:
        arrays = broadcast_model(self.architecture, broadcast, self.parameters.sha256)
        records, counted = self.counted(records)
        for start in range(0, len(records), CHUNK):
            part = slice(start, min(start + CHUNK, len(records)))
            yield from self._rows(self._scored(records.take(part), arrays), counted[part])

    def _scored(self, records: Records, arrays: Mapping[str, Floats]) -> Records:
        """The records with one feature more, the prediction between its bounds."""
        from veilsum_privacy.training.predict import scores

        p = self.parameters
        own = p.outcome.split(records, self.schema).records
        whole = np.logical_and.reduce(own.present, axis=1) if p.missing == "skip" else np.ones(len(own), dtype=np.bool_)
        x = np.where(own.present & whole[:, None], np.clip(own.features, -1.0, 1.0), 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            z = scores(self.architecture, arrays, x)
        known = whole & np.logical_and.reduce(np.isfinite(z), axis=1)
        h = p.outcome.predictor(np.where(known[:, None], z, 0.0), self.schema, p.most)
        half = p.high / 2.0 - p.low / 2.0
        scaled = np.where(known, (np.clip(h, p.low, p.high) - p.low) / half - 1.0, 0.0)
        return Records(
            np.column_stack([records.features, scaled]), np.column_stack([records.present, known]), records.labels, None
        )
