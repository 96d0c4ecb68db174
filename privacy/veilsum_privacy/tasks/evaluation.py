"""The task "evaluation": how a released model classifies records, as counts of true and predicted classes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints

from veilsum_aggregation.classification import bin_of
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Floats, Records, RecordTask, batches
from veilsum_privacy.tasks.features import clipped, usable
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.lookups import looked_up
from veilsum_privacy.tasks.parameters import FeatureParameters
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import ModelSpec, build_architecture, check_resolved
from veilsum_privacy.training.released import broadcast_model

CONFUSION, SCORES, LOSS = "confusion", "scores", "loss"
"""Names of the blocks."""


class EvaluationParameters(FeatureParameters):
    """Parameters of :class:`Evaluation`; all public and independent of the data.

    Attributes:
        clip: norm that features are scaled down to before they are scored, as they were in training; large for none.
        model: what is evaluated; every option stated.
        sha256: :func:`veilsum_privacy.training.released.model_digest` of the model.
        classes: names of the model's classes in the order of its scores, each one of the schema's.
        bins: of the block ``scores``; even, 0 for no such block.
        score_weight: of that block, against 1 for the block ``confusion``.
        largest_loss: L, what a record's log loss is cut to, in nats; 0 for no block ``loss``.
        loss_weight: of that block.
    """

    model: ModelSpec
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    classes: tuple[Name, ...] = Field(min_length=2)
    bins: int = Field(default=0, ge=0, le=1000, multiple_of=2)
    score_weight: Real = Field(default=1.0, gt=0, le=1e6)
    largest_loss: Real = Field(default=0.0, ge=0, le=1000)
    loss_weight: Real = Field(default=1.0, gt=0, le=1e6)


class Evaluation(RecordTask[EvaluationParameters]):
    """Counts of records by true and predicted class, and by how sure the model was; the sum of their log losses.

    Blocks: ``confusion`` (K, M), of the schema's K classes and the model's M, weight 1; with ``bins`` = B ``scores`` (2, B),
    weight b; with ``largest_loss`` = L ``loss`` (1,), weight c. The broadcast holds the model in arrays ``model.<name>``.

    ``scores``: where schema and model have the same two classes, row i counts records of the model's i-th class by the
    probability of the second one, in B equal bins of [0, 1]. Otherwise row 0 counts wrong and row 1 right predictions by the
    probability of the predicted class, in B equal bins of [1 / M, 1]. Probabilities are the softmax of the scores. A record's
    loss is -log of the probability of its class, at most L; L where the model does not know the class.

    Sensitivity. A record adds 1 to one cell of ``confusion``, 1 to one cell of ``scores`` and at most L to ``loss``: its
    squared weighted norm is at most 1 + b^2 + (c L)^2. One whose loss is L or more reaches it. The row depends on the record
    and the broadcast alone: perceptrons score rows exactly, other networks in batches of one padded size.
    """

    name = "evaluation"
    Parameters: ClassVar[type[Frozen]] = EvaluationParameters

    def __init__(self, parameters: EvaluationParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        if len(schema.classes) < 2:
            raise Misuse("The task evaluation needs a label with two classes or more.", "Add a [label] table with classes.")
        names = parameters.classes
        if len(set(names)) < len(names) or not set(names) <= set(schema.classes):
            raise Misuse(
                "The model's classes are not distinct classes of the schema.", f"The schema has: {', '.join(schema.classes)}."
            )
        self._classes = len(schema.classes)
        self._columns = np.array([names.index(name) if name in names else -1 for name in schema.classes])
        """By the schema's class the model's; -1 for one that it does not know."""
        try:
            check_resolved(parameters.model)
            self.architecture = build_architecture(parameters.model, self.dimension, len(names), trained=False)
        except HostileInput as error:
            raise Misuse(error.message, error.advice) from error

    @property
    def two(self) -> bool:
        """Whether there are two classes, the same ones in schema and model."""
        return self._classes == 2 and len(self.parameters.classes) == 2

    def layout(self) -> Layout:
        p = self.parameters
        blocks = [Block(CONFUSION, (self._classes, len(p.classes)))]
        if p.bins:
            blocks.append(Block(SCORES, (2, p.bins), p.score_weight))
        if p.largest_loss:
            blocks.append(Block(LOSS, (1,), p.loss_weight))
        return Layout(tuple(blocks))

    def clip(self) -> float:
        p = self.parameters
        return math.sqrt(1.0 + (p.score_weight**2 if p.bins else 0.0) + (p.loss_weight * p.largest_loss) ** 2)

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return to_broadcast(self.architecture.initial(0))

    def vectors(self, records: Records, broadcast: Mapping[str, Floats]) -> Iterator[Floats]:
        if records.labels is None:
            raise Misuse("The task evaluation needs labelled records.")
        arrays = broadcast_model(self.architecture, broadcast, self.parameters.sha256)
        return self._rows(records, records.labels, arrays)

    def _rows(self, records: Records, labels: NDArray[np.int64], arrays: Mapping[str, Floats]) -> Iterator[Floats]:
        from veilsum_privacy.training.predict import scores

        p = self.parameters
        for part in batches(len(records), self.layout().size):
            used = usable(p, records, part, self._classes)
            z = scores(self.architecture, arrays, clipped(p, records, part, used))
            known: NDArray[np.bool_] = np.asarray(np.isfinite(z).all(axis=1))
            label = np.where(used, labels[part], 0)
            rows = self.counted(np.where(known[:, None], z, 0.0), label) * used[:, None]
            rows[used & ~known] = np.nan  # counted at the site as invalid, and adds zero
            yield rows

    def counted(self, z: Floats, label: NDArray[np.int64]) -> Floats:
        """Weighted rows (b, size) of finite scores (b, M) of records of these classes (b,)."""
        p, every, own = self.parameters, np.arange(len(z)), looked_up(self._columns, label)
        predicted = np.argmax(z, axis=1)
        blocks = [_cells((self._classes, len(p.classes)), label, predicted)]
        shifted = np.ascontiguousarray(z - z.max(axis=1, keepdims=True))
        exponents = np.exp(shifted)
        total = np.add.reduce(exponents, axis=1)
        if p.bins and self.two:
            blocks.append(p.score_weight * _cells((2, p.bins), own, bin_of(exponents[:, 1] / total, p.bins, 0.0)))
        elif p.bins:
            place = bin_of(1.0 / total, p.bins, 1.0 / len(p.classes))
            blocks.append(p.score_weight * _cells((2, p.bins), (own == predicted).astype(np.int64), place))
        if p.largest_loss:
            loss = np.log(total) - shifted[every, own]
            loss = np.where(own >= 0, np.clip(loss, 0.0, p.largest_loss), p.largest_loss)
            blocks.append(p.loss_weight * loss[:, None])
        return np.hstack([values.reshape(len(z), -1) for values in blocks])


def _cells(shape: tuple[int, int], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Floats:
    """One cell of a table set to 1 for each record: (b, *shape)."""
    table = np.zeros((len(rows), *shape))
    table[np.arange(len(rows)), rows, columns] = 1.0
    return table
