"""What the tasks of a regression share: terms and outcome of a site's records, and what a broadcast tells of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records, batches
from veilsum_privacy.tasks.persons import PersonParameters, PersonTask
from veilsum_privacy.tasks.queries.branches import Branches
from veilsum_privacy.tasks.queries.cells import Cells
from veilsum_privacy.tasks.queries.kinds.regression import LinearRegression
from veilsum_privacy.tasks.queries.language import MAX_QUERIES, Columns, DerivedColumn, Query

LARGEST_ENTRY = 1e6
"""Of a broadcast array: products of two then stay finite."""

MOST_COEFFICIENTS = 128
"""p^2 is what a record costs in time, and p^2 / 2 what it sends."""


class DesignParameters(PersonParameters):
    """Terms and outcome of a model; public and independent of the data.

    Attributes:
        query: of kind ``linear``: terms, outcome and condition.
        derived: columns that it uses beside the schema's.
    """

    query: Query
    derived: tuple[DerivedColumn, ...] = Field(default=(), max_length=MAX_QUERIES)


D = TypeVar("D", bound=DesignParameters)


class Design(NamedTuple):
    """Some records as a model sees them.

    Attributes:
        cells: of the columns that were asked for.
        z: (1, terms), (b, p).
        outcome: in [-1, 1], (b,).
        known: which records have them all and meet the condition, (b,); the others are 0.
    """

    cells: Mapping[str, Cells]
    z: Floats
    outcome: Floats
    known: NDArray[np.bool_]


class DesignTask(PersonTask[D]):
    """A task of the terms and the outcome of a model.

    Attributes:
        question: of both.
    """

    beside: tuple[str, ...] = ()
    """Columns that a record must have beside the model's own."""

    def __init__(self, parameters: D, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        self.columns = Columns(schema, parameters.derived)
        if parameters.query.kind != "linear":
            raise HostileInput(f"A regression explains an outcome; its query is of kind {parameters.query.kind!r}.")
        self.question = LinearRegression(parameters.query, self.columns)
        if self.p > MOST_COEFFICIENTS:
            raise HostileInput(f"The model has {self.p} coefficients; at most {MOST_COEFFICIENTS} can be.", "Use fewer terms.")

    @property
    def p(self) -> int:
        """Number of coefficients, with the constant."""
        return len(self.question.terms) + 1

    def branches(self) -> Branches:
        return Branches.of(self.schema, self.columns, [self.question], self.beside)

    def designs(self, records: Records) -> Iterator[Design]:
        """The records that count, batch by batch, in their order."""
        records, counted = self.counted(records)
        reads = sorted(self.question.reads | {*self.beside})
        for part in batches(len(records), self.layout().size):
            cells = self.columns.cells(records.take(part), reads)
            group = np.where(counted[part], 0, -1)
            for name in self.beside:
                group = np.where(cells[name].present, group, -1)
            if self.question.condition is not None:
                group = np.where(self.question.condition.holds(cells), group, -1)
            yield Design(cells, *self.question.design(cells, group))


def row_products(rows: Floats, matrix: Floats) -> Floats:
    """``rows @ matrix``, each row's to the last bit the same whatever rows stand beside it, as BLAS' are not."""
    found = np.zeros((len(rows), matrix.shape[1]))
    for place in range(matrix.shape[0]):
        found += rows[:, place, None] * matrix[place]
    return found


def broadcast_arrays(broadcast: Mapping[str, Floats], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    """Arrays of a broadcast, of these shapes.

    Raises:
        HostileInput: one is missing, of another shape, or holds what is not finite or beyond :data:`LARGEST_ENTRY`.
    """
    found = {}
    for name, shape in shapes.items():
        array = broadcast.get(name)
        if array is None or array.shape != shape or not np.isfinite(array).all() or np.abs(array).max() > LARGEST_ENTRY:
            raise HostileInput(f"The broadcast must hold {name} of shape {shape}, of numbers up to {LARGEST_ENTRY:g}.")
        found[name] = array
    return found
