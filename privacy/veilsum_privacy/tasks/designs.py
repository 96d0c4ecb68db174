"""What the tasks of a regression share: terms and outcome of a record, and what a broadcast tells of the model."""

from collections.abc import Mapping
from operator import not_
from typing import NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, Value, symbol, where
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.persons import PersonParameters, PersonTask
from veilsum_privacy.tasks.queries.cells import Cells, number_cells
from veilsum_privacy.tasks.queries.kinds.regression import LinearRegression
from veilsum_privacy.tasks.queries.language import MAX_QUERIES, Columns, DerivedColumn, Query, Text

LARGEST_ENTRY = 1e6
"""Largest entry of a broadcast array: products of two then stay finite."""

MOST_COEFFICIENTS = 128
"""p^2 is what a record costs in time, and p^2 / 2 what it sends."""


class DesignParameters(PersonParameters):
    """Terms and outcome of a model; public and independent of the data.

    Attributes:
        query: of kind ``linear``: terms, outcome and condition.
        derived: columns that it uses beside the schema's.
        offset: of a model of counts, a number that is added to the linear predictor, in its own unit; empty for none.
    """

    query: Query
    derived: tuple[DerivedColumn, ...] = Field(default=(), max_length=MAX_QUERIES)
    offset: Text = Field(default="", exclude_if=not_)  # studies signed before do not state it


D = TypeVar("D", bound=DesignParameters)


class Design(NamedTuple):
    """A record as a model sees it.

    Attributes:
        cells: of the columns that were asked for.
        z: (1, terms), (p,).
        outcome: in [-1, 1].
        known: whether the record has them all and meets the condition; the others are 0 where not.
        offset: in its own unit; 0 where there is none.
    """

    cells: Mapping[str, Cells]
    z: Symbol
    outcome: Symbol
    known: Symbol
    offset: Value


class DesignTask(PersonTask[D]):
    """A task of the terms and the outcome of a model."""

    beside: tuple[str, ...] = ()
    """Columns that a record must have beside the model's own."""

    def __init__(self, parameters: D, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        self.columns = Columns(schema, parameters.derived)
        if parameters.query.kind != "linear":
            raise HostileInput(f"A regression explains an outcome; its query is of kind {parameters.query.kind!r}.")
        self.question = LinearRegression(parameters.query, self.columns)
        if parameters.offset:
            self.columns.number(parameters.offset, f"{self.question.what}, offset")
            self.beside = (*self.beside, parameters.offset)
        if self.p > MOST_COEFFICIENTS:
            raise HostileInput(f"The model has {self.p} coefficients; at most {MOST_COEFFICIENTS} can be.", "Use fewer terms.")

    @property
    def p(self) -> int:
        """Number of coefficients, with the constant."""
        return len(self.question.terms) + 1

    def design(self, record: Record) -> Design:
        """A record's terms and outcome."""
        cells = self.columns.cells(record)
        group = symbol(0)
        for name in self.beside:
            group = where(cells[name].present, group, -1)
        if self.question.condition is not None:
            group = where(self.question.condition.holds(cells), group, -1)
        offset: Value = 0.0
        if name := self.parameters.offset:
            number, domain = number_cells(cells, name), self.columns.number(name, "offset")
            offset = where(number.present, domain.low + (number.x + 1.0) * domain.half, 0.0)
        return Design(cells, *self.question.design(cells, group), offset)


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
