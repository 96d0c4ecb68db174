"""How many cells of which column mean nothing under a schema: exact figures, for a site's own eyes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veilsum_aggregation.arrays import Bools
from veilsum_participant.data.cells import judge_table
from veilsum_participant.data.sources import opened
from veilsum_participant.data.table import Table
from veilsum_participant.settings.query import Source
from veilsum_privacy.study.schema import DatasetSchema

_ROWS = 1 << 16


@dataclass
class ColumnCells:
    """The cells of one column.

    Attributes:
        column: its name.
        read: how many there are.
        missing: of these, without a value.
        outside: numbers out of their bounds.
        unmatched: no number, category, class or date.
        texts: how often which of the latter occurs.
    """

    column: str
    read: int = 0
    missing: int = 0
    outside: int = 0
    unmatched: int = 0
    texts: Counter[str] = field(default_factory=Counter, repr=False)

    def add(self, missing: Bools, outside: Bools, unmatched: Bools, array: Any = None) -> None:
        """Count some cells (n,) of the column; their ``texts`` too, where the ``array`` that was judged is given."""
        self.read += len(missing)
        self.missing += int(np.count_nonzero(missing))
        self.outside += int(np.count_nonzero(outside))
        self.unmatched += int(np.count_nonzero(unmatched))
        if array is not None and unmatched.any():
            told = pc.cast(array.filter(pa.array(unmatched)), pa.large_string()).value_counts().to_pylist()
            self.texts.update({str(item["values"]): item["counts"] for item in told})

    @property
    def share(self) -> float:
        """Which share of cells with a value is unmatched."""
        given = self.read - self.missing
        return self.unmatched / given if given else 0.0


def count_cells(tables: Iterable[Table], schema: DatasetSchema, *, texts: bool = True) -> list[ColumnCells]:
    """Count the cells of tables of one source, by column of the schema and of its classes; with their ``texts``, if wanted."""
    found: dict[str, ColumnCells] = {}
    for table in tables:
        for judged in judge_table(table.columns, schema):
            array = table.columns[judged.source] if texts else None
            cells = found.setdefault(judged.name, ColumnCells(judged.name))
            cells.add(judged.missing, judged.outside, judged.invalid, array)
    return list(found.values())


def most_unmatched(source: Source, schema: DatasetSchema, *, subject: str | None, header: bool) -> float:
    """The largest share of unmatched cells in any column of a source, which is read in batches.

    Raises:
        DataError, Unavailable, ConfigurationError: as :func:`veilsum_participant.data.sources.opened`.
    """
    with opened(source, schema, subject=subject, header=header) as tables:
        return max((cells.share for cells in count_cells(tables.read(_ROWS), schema, texts=False)), default=0.0)
