"""Check a site's file or query against a schema before a study, and name what violates it, with row and column.

The report is for the site's operator: it names places and what was expected there, never a value, and it is not sent anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Bools
from veilsum_participant.data.cells import JudgedColumn, judge_table
from veilsum_participant.data.lines import MAX_LINE, Fault
from veilsum_participant.data.quality import ColumnCells
from veilsum_participant.data.sources import read_table, reader_of
from veilsum_participant.data.subjects import number_subjects, rounded, spelled_alike
from veilsum_participant.settings.query import Source
from veilsum_privacy.study.schema import CodeColumn, DatasetSchema, DateColumn, NumberColumn

SHOWN = 3
"""Places of each fault in each column that a report lists."""


_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?")

_UNUSED = {
    Fault.CELLS: "the row is not used",
    Fault.QUOTE: "the row is not used; a cell cannot reach beyond its line, so store texts with line breaks as Parquet",
    Fault.LENGTH: f"the row is not used; it is longer than {MAX_LINE >> 20} MiB",
}


_CUT = (
    "sums are cut off at what {} records can reach, counts and sums apart, so that means are biased: ask for a schema with a"
    " larger max_records, or state most_records with the dataset"
)


class FindingKind(StrEnum):
    """What is wrong with a cell, a row or the file."""

    NOT_A_NUMBER = "not a number"
    OUT_OF_BOUNDS = "out of bounds"
    UNKNOWN_CATEGORY = "unknown category"
    UNKNOWN_CLASS = "unknown class"
    MISSING = "missing value"
    OTHER_CODE = "code of no group"
    ROUNDED = "rounded identifier"
    ALIKE = "identifier spelled in several ways"
    BROKEN_ROW = Fault.CELLS.value
    OPEN_QUOTE = Fault.QUOTE.value
    LONG_LINE = Fault.LENGTH.value
    TOO_MANY_RECORDS = "too many records"


AGREED = (FindingKind.MISSING, FindingKind.OTHER_CODE)
"""What the schema says what becomes of."""


@dataclass(frozen=True)
class Finding:
    """One fault in one column, or of whole rows.

    Attributes:
        column: None for whole rows.
        kind: what is wrong.
        count: of places with it.
        places: the first of them, by 1-based data row, with the line of a CSV file.
        expected: what is expected there.
    """

    column: str | None
    kind: FindingKind
    count: int
    places: Mapping[int, int | None]
    expected: str

    def __str__(self) -> str:
        rows = [f"row {row}" if line is None else f"row {row} (line {line})" for row, line in self.places.items()]
        return f"{self.kind}: {self.count:,} ({', '.join(rows)}{', ...' * (len(rows) < self.count)}); {self.expected}"


@dataclass(frozen=True)
class CheckReport:
    """What a check found.

    Attributes:
        records: data rows of the file, broken ones included.
        findings: by column in the schema's order, then those of whole rows.
        per_person: (p,) how many records each person has, one without an identifier being a person's; None without a column
            of subjects.
        cells: of each column; what its unmatched cells say is for the site's own eyes alone.
        advice: what to declare of a file of text that does not look as it is declared; empty where nothing stands out.
        unread: how many records have an image without pixels, by reason.
    """

    records: int
    findings: tuple[Finding, ...]
    per_person: NDArray[np.int64] | None
    cells: tuple[ColumnCells, ...]
    advice: str
    unread: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether nothing but what was agreed on was found."""
        return all(finding.kind in AGREED for finding in self.findings)


def check_dataset(
    source: Source,
    schema: DatasetSchema,
    *,
    subject: str | None = None,
    header: bool | None = None,
    most_records: int = 0,
) -> CheckReport:
    """Compare every cell of the schema's columns with the schema, and look for records without an identifier in ``subject``.

    More records than ``max_records`` are a fault, unless the site states ``most_records``: then, more than these.

    Raises:
        DataError: the file's structure is wrong: missing, unreadable, without a column of the schema or of subjects, or, if
            its owner says so by ``header``, not with the first line that the schema says; or the query fails.
        Unavailable: the database is away.
    """
    table = read_table(source, schema, subject=subject, header=header)
    numbers = table.row_numbers()
    found: list[tuple[str | None, FindingKind, Sequence[int] | NDArray[np.int64], str]] = []
    cells = []
    for judged in judge_table(table.columns, schema):
        cells.append(ColumnCells(judged.name))
        cells[-1].add(judged.missing, judged.outside, judged.invalid, table.columns[judged.source], len(table.broken))
        found += [(judged.name, kind, numbers[mask], expected) for kind, mask, expected in _faults(judged, schema)]
    per_person = None
    if subject is not None:
        persons, nobody = number_subjects([table.subjects])
        per_person = np.unique(persons, return_counts=True)[1]
        found.append((subject, FindingKind.MISSING, numbers[nobody], "the record counts as a person of its own"))
        told = "several persons may share it, as one: store texts with all digits"
        found.append((subject, FindingKind.ROUNDED, numbers[rounded(table.subjects)], told))
        told = "each spelling is a person of its own: if they are one person's, write them alike, or its loss is a multiple"
        found.append((subject, FindingKind.ALIKE, numbers[spelled_alike(table.subjects)], told))
    for fault in dict.fromkeys(table.broken.values()):
        rows = [row for row, other in table.broken.items() if other is fault]
        found.append((None, FindingKind(fault.value), rows, _UNUSED[fault]))
    beyond = numbers[max(schema.max_records, most_records) :]
    found.append((None, FindingKind.TOO_MANY_RECORDS, beyond, _CUT.format(schema.max_records)))
    reader = reader_of(source, schema)
    first = [[int(row) for row in rows[: 1 if rows is beyond else SHOWN]] for _, _, rows, _ in found]
    lines = reader.lines({row for rows in first for row in rows})
    findings = tuple(
        Finding(column, kind, len(rows), {row: lines.get(row) for row in shown}, expected)
        for (column, kind, rows, expected), shown in zip(found, first, strict=True)
        if shown
    )
    lost = len(table.broken) > table.rows or all(one.share == 1.0 for one in cells)
    advice = reader.declared() if lost else ""
    return CheckReport(
        len(numbers) + len(table.broken), findings, per_person, tuple(cells), advice or _commas(cells), table.unread
    )


def _commas(cells: Sequence[ColumnCells]) -> str:
    """What to declare where hardly a number has a point."""
    commas = [one.column for one in cells if 2 * sum(1 for text in one.texts if _COMMA.fullmatch(text)) > len(one.texts) > 0]
    return f'Numbers of column {commas[0]!r} have a decimal comma: state decimal = ",".' if commas else ""


def _faults(judged: JudgedColumn, schema: DatasetSchema) -> Iterator[tuple[FindingKind, Bools, str]]:
    """Each kind of fault that a column can have, which cells (n,) have it, and what is expected."""
    column, missing = judged.column, "the record counts for no class"
    if isinstance(column, NumberColumn):
        kind = "date after so many days" if isinstance(column, DateColumn) else "number"
        expected = f"expected a {kind} in [{column.low:g}, {column.high:g}]{' ' + column.unit if column.unit else ''}"
        yield FindingKind.NOT_A_NUMBER, judged.invalid, expected
        yield FindingKind.OUT_OF_BOUNDS, judged.outside, expected
    elif column is not None:
        expected = f"expected one of {_listed(column.categories)}"
        if isinstance(column, CodeColumn):
            form = "a code" if column.system == "any" else f"a code of {column.system}"
            expected = f"expected {form}{' of one of its groups' if column.other is None else ''}"
            if column.other is not None:
                yield FindingKind.OTHER_CODE, judged.values == column.other_place, f"it counts as {column.other!r}"
        yield FindingKind.UNKNOWN_CATEGORY, judged.invalid, expected
    elif schema.label is not None:
        expected = f"expected one of {_listed(tuple(value for item in schema.label.classes for value in item.values))}"
        yield FindingKind.UNKNOWN_CLASS, judged.invalid, expected
    if column is not None and column.impute is None:
        missing = "the value contributes nothing"
    elif column is not None:
        missing = f"{column.impute if isinstance(column.impute, str) else format(column.impute, 'g')} is taken instead"
    yield FindingKind.MISSING, judged.missing, missing


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(repr(value) for value in values[:10]) + (", ..." if len(values) > 10 else "")
