"""Cells of columns as conditions and questions read them, and the values that a column can have.

Cells are symbols of one record's (:mod:`veilsum_privacy.mechanism.rows`); where only the truth of a condition is looked for,
as for the combinations that can occur, they are arrays (n,).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, Value, joined, where


@dataclass(frozen=True)
class ScaledNumbers:
    """Values of a numeric column, scaled by its public bounds: ``x`` in [-1, 1] and ``present``."""

    x: Value
    present: Value


@dataclass(frozen=True)
class LevelCells:
    """Levels of a categorical column: ``codes``, -1 where the value is missing."""

    codes: Value

    @property
    def present(self) -> Value:
        """Where there is a value."""
        return self.codes >= 0


Cells = ScaledNumbers | LevelCells


class RecordCells(dict[str, Cells]):
    """The cells of a record by column, each read when it is first asked for.

    Args:
        record: whose they are.
        places: of the schema's numeric columns among the record's features.
        read: adds the cells of a column to those that are known.
    """

    def __init__(self, record: Record, places: Mapping[str, int], read: Callable[[str, dict[str, Cells]], None]) -> None:
        super().__init__()
        self._record, self._places, self._read = record, places, read

    def __missing__(self, name: str) -> Cells:
        self._read(name, self)
        return self[name]

    def numbers(self, names: Sequence[str]) -> ScaledNumbers:
        """Numeric columns side by side (m,): the schema's are read as one block, as if there were one column of them."""
        block = [place for place, name in enumerate(names) if name in self._places]
        block = block if len(block) > 1 else []
        others = [place for place in range(len(names)) if place not in {*block}]
        found = [number_cells(self, names[place]) for place in others]
        if block:
            at = np.array([self._places[names[place]] for place in block])
            found.insert(0, within_bounds(self._record.features[at], self._record.present[at]))
        order = np.argsort([*block, *others])
        x, present = joined(*(each.x for each in found)), joined(*(each.present for each in found))
        return ScaledNumbers(x[order], present[order])

    def present(self, names: Sequence[str]) -> Symbol:
        """Which of some columns' values are there, side by side (m,)."""
        block = [place for place, name in enumerate(names) if name in self._places]
        others = [place for place in range(len(names)) if place not in {*block}]
        parts: list[Value] = [self[names[place]].present for place in others]
        if block:
            parts.insert(0, self.numbers([names[place] for place in block]).present)
        return joined(*parts)[np.argsort([*block, *others])]


def within_bounds(x: Value, present: Value) -> ScaledNumbers:
    """Numbers within the bounds; what is not finite is missing."""
    present = present & np.isfinite(x)
    return ScaledNumbers(where(present, np.clip(where(present, x, 0.0), -1.0, 1.0), 0.0), present)


def number_cells(cells: Mapping[str, Cells], name: str) -> ScaledNumbers:
    """The cells of a numeric column."""
    found = cells[name]
    if not isinstance(found, ScaledNumbers):
        raise HostileInput(f"{name!r} is not a numeric column.")
    return found


def level_cells(cells: Mapping[str, Cells], name: str) -> LevelCells:
    """The cells of a categorical column."""
    found = cells[name]
    if not isinstance(found, LevelCells):
        raise HostileInput(f"{name!r} is not a categorical column.")
    return found


@dataclass(frozen=True)
class NumberDomain:
    """What values a numeric column can have: ``low`` to ``high`` in its unit."""

    low: float
    high: float
    unit: str = ""

    @property
    def half(self) -> float:
        """What 1 stands for in scaled cells."""
        return self.high / 2.0 - self.low / 2.0

    @property
    def middle(self) -> float:
        """What 0 stands for."""
        return self.low + self.half

    def scale(self, value: float) -> float:
        """A value as its cells are scaled, the same to the last bit; beyond the bounds it lies beyond -1 and 1."""
        if value <= self.low or value >= self.high:
            beyond = (value - self.high if value >= self.high else value - self.low) / self.half
            return (1.0 if value >= self.high else -1.0) + beyond
        return min(max((value - self.low) / self.half - 1.0, -1.0), 1.0)

    def value(self, x: float) -> float:
        """The value in the column's unit of a scaled one."""
        return self.low + (x + 1.0) * self.half


@dataclass(frozen=True)
class LevelDomain:
    """What values a categorical column can have."""

    levels: tuple[str, ...]


Domain = NumberDomain | LevelDomain
