"""Cells of columns as conditions and questions read them, and the values that a column can have.

Cells are symbols of one record's (:mod:`veilsum_privacy.mechanism.rows`); where only the truth of a condition is looked for,
as for the combinations that can occur, they are arrays (n,).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Value


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
