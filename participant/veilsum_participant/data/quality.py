"""How many cells of which column mean nothing under a schema: exact figures, for a site's own eyes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veilsum_aggregation.arrays import Bools
from veilsum_participant.data.cells import judge_table
from veilsum_participant.data.sources import asked_query, opened
from veilsum_participant.data.table import Table
from veilsum_participant.settings.forms import is_json
from veilsum_participant.settings.query import Source, is_csv
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
        unmatched: no number, category, class or date; or of a row that is not used.
        texts: how often which of them occurs in a row that is used.
    """

    column: str
    read: int = 0
    missing: int = 0
    outside: int = 0
    unmatched: int = 0
    texts: Counter[str] = field(default_factory=Counter, repr=False)

    def add(self, missing: Bools, outside: Bools, unmatched: Bools, array: Any = None, broken: int = 0) -> None:
        """Count some cells (n,) of the column, and those of ``broken`` rows, which mean nothing.

        Their ``texts`` too, where the ``array`` that was judged is given.
        """
        self.read += len(missing) + broken
        self.missing += int(np.count_nonzero(missing))
        self.outside += int(np.count_nonzero(outside))
        self.unmatched += int(np.count_nonzero(unmatched)) + broken
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
            cells.add(judged.missing, judged.outside, judged.invalid, array, len(table.broken))
    return list(found.values())


def most_unmatched(source: Source, schema: DatasetSchema, *, subject: str | None, header: bool) -> float:
    """The largest share of unmatched cells in any column of a source, which is read in batches; or of what is left out of the
    lines of a file of text that it queries.

    Raises:
        DataError, Unavailable, ConfigurationError: as :func:`veilsum_participant.data.sources.opened`.
    """
    with opened(source, schema, subject=subject, header=header) as tables:
        shares = [cells.share for cells in count_cells(tables.read(_ROWS), schema, texts=False)]
    shares += [left_out / (read + left_out) for _, _, read, left_out, _ in count_lines(source) if left_out]
    return max(shares, default=0.0)


def count_lines(source: Source) -> Iterator[tuple[str, Path, int, int, int]]:
    """Each table that is a file of text of the query that a source asks: name, file, and :func:`.duck.count_texts` of it.

    Raises:
        DataError: one does not exist, or cannot be read.
    """
    if (query := asked_query(source)) is None:
        return
    for table, path in query.files.items():
        if is_json(path) or is_csv(path):
            from veilsum_participant.data.duck import count_texts  # what asks no query does without

            yield table, path, *count_texts(path, query.dialect)
