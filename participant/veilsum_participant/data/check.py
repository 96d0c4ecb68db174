"""Check a site's file or query against a schema before a study, and name what violates it, with row and column.

The report is for the site's operator: it names places and what was expected there, never a value, and it is not sent anywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from veilsum_participant.data.cells import judge_table
from veilsum_participant.data.lines import MAX_LINE, Fault
from veilsum_participant.data.quality import ColumnCells, count_cells
from veilsum_participant.data.sources import found_advice, found_lines, read_table
from veilsum_participant.data.subjects import number_subjects
from veilsum_participant.data.table import Table
from veilsum_participant.settings.query import Source
from veilsum_privacy.study.schema import CategoryColumn, CodeColumn, DatasetSchema, DateColumn, NumberColumn

SHOWN = 3
"""Places of each fault in each column that a report lists unless told otherwise."""


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
    BROKEN_ROW = Fault.CELLS.value
    OPEN_QUOTE = Fault.QUOTE.value
    LONG_LINE = Fault.LENGTH.value
    TOO_MANY_RECORDS = "too many records"


AGREED = (FindingKind.MISSING, FindingKind.OTHER_CODE)
"""What the schema says what becomes of."""


@dataclass(frozen=True)
class Violation:
    """One place of a file: the 1-based data ``row``, the ``line`` of a CSV file, and what is ``expected`` there."""

    source: Source
    kind: FindingKind
    row: int
    line: int | None
    column: str | None
    expected: str

    @property
    def place(self) -> str:
        """The row, with its line in a CSV file."""
        return f"row {self.row}" + (f" (line {self.line})" if self.line is not None else "")

    def __str__(self) -> str:
        column = f", column {self.column!r}" if self.column is not None else ""
        return f"{self.source}, {self.place}{column}: {self.kind}; {self.expected}"


@dataclass(frozen=True)
class PerPerson:
    """How a file's records are spread over persons: exact figures, for the site's operator alone.

    Attributes:
        persons: how many there are; a record without an identifier is a person of its own.
        several: how many of them have more than one record.
        most: the most records of one person.
    """

    persons: int
    several: int
    most: int


@dataclass(frozen=True)
class CheckReport:
    """What a check found.

    Attributes:
        source: the file, or the query.
        records: data rows of the file, broken ones included.
        violations: in the order of rows the first of each kind in each column, as many of them as were asked for.
        totals: by column (None for whole rows and the file) and kind, how many there are in all.
        per_person: None without a column of subjects.
        cells: of each column; what its unmatched cells say is for the site's own eyes alone.
        advice: what to declare of a file of text that does not look as it is declared; empty where nothing stands out.
        unread: how many records have an image without pixels, by reason.
    """

    source: Source
    records: int
    violations: tuple[Violation, ...]
    totals: dict[str | None, dict[FindingKind, int]]
    per_person: PerPerson | None = None
    cells: tuple[ColumnCells, ...] = ()
    advice: str = ""
    unread: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing but what was agreed on was found."""
        return all(kind in AGREED for kinds in self.totals.values() for kind in kinds)


@dataclass(frozen=True)
class _Places:
    """All places in one column with one fault: ``rows`` are 0-based positions in the table."""

    kind: FindingKind
    column: str
    rows: NDArray[np.intp]
    expected: str


def check_dataset(
    source: Source,
    schema: DatasetSchema,
    *,
    shown: int = SHOWN,
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
    findings = [finding for finding in _findings(table, schema, subject) if len(finding.rows)]
    records = table.rows + len(table.broken)
    numbers = table.row_numbers()
    totals: dict[str | None, dict[FindingKind, int]] = {}
    for finding in findings:
        totals.setdefault(finding.column, {})[finding.kind] = len(finding.rows)
    places: list[tuple[int, FindingKind, str | None, str]] = [
        (int(numbers[position]), finding.kind, finding.column, finding.expected)
        for finding in findings
        for position in finding.rows[:shown]
    ]
    whole = Counter(FindingKind(fault.value) for fault in table.broken.values())
    for fault in dict.fromkeys(table.broken.values()):
        rows = (row for row, other in table.broken.items() if other is fault)
        places += [(row, FindingKind(fault.value), None, _UNUSED[fault]) for row in islice(rows, shown)]
    most = max(schema.max_records, most_records)
    if table.rows > most:
        whole[FindingKind.TOO_MANY_RECORDS] = table.rows - most
        places.append((int(numbers[most]), FindingKind.TOO_MANY_RECORDS, None, _CUT.format(schema.max_records)))
    if whole:
        totals[None] = dict(whole)
    places.sort(key=lambda place: place[0])
    lines = found_lines(source, schema, {place[0] for place in places})
    violations = tuple(
        Violation(source, kind, row, lines.get(row), column, expected) for row, kind, column, expected in places
    )
    per_person = None if subject is None else _per_person(table)
    cells = tuple(count_cells([table], schema))
    return CheckReport(
        source, records, violations, totals, per_person, cells, _advice(source, schema, table, cells), table.unread
    )


def _advice(source: Source, schema: DatasetSchema, table: Table, cells: tuple[ColumnCells, ...]) -> str:
    """What to declare, where hardly a row has its cells, or numbers hardly a point."""
    if len(table.broken) > table.rows and (told := found_advice(source, schema)):
        return told
    commas = [one.column for one in cells if 2 * sum(1 for text in one.texts if _COMMA.fullmatch(text)) > len(one.texts) > 0]
    return f'Numbers of column {commas[0]!r} have a decimal comma: state decimal = ",".' if commas else ""


def _per_person(table: Table) -> PerPerson:
    counts = np.bincount(number_subjects(table.subjects)[0])
    counts = counts[counts > 0]
    return PerPerson(len(counts), int((counts > 1).sum()), int(counts.max(initial=0)))


def _findings(table: Table, schema: DatasetSchema, subject: str | None) -> Iterator[_Places]:
    for judged in judge_table(table.columns, schema):
        name, column = judged.name, judged.column
        if isinstance(column, NumberColumn):
            kind = "date after so many days" if isinstance(column, DateColumn) else "number"
            expected = f"expected a {kind} in [{column.low:g}, {column.high:g}]{' ' + column.unit if column.unit else ''}"
            yield _Places(FindingKind.NOT_A_NUMBER, name, np.flatnonzero(judged.invalid), expected)
            yield _Places(FindingKind.OUT_OF_BOUNDS, name, np.flatnonzero(judged.outside), expected)
        elif column is not None:
            expected = f"expected one of {_listed(column.categories)}"
            if isinstance(column, CodeColumn):
                form = "a code" if column.system == "any" else f"a code of {column.system}"
                expected = f"expected {form}{' of one of its groups' if column.other is None else ''}"
                if column.other is not None:
                    others = np.flatnonzero(judged.values == column.other_place)
                    yield _Places(FindingKind.OTHER_CODE, name, others, f"it counts as {column.other!r}")
            yield _Places(FindingKind.UNKNOWN_CATEGORY, name, np.flatnonzero(judged.invalid), expected)
        elif schema.label is not None:
            expected = f"expected one of {_listed(tuple(value for item in schema.label.classes for value in item.values))}"
            yield _Places(FindingKind.UNKNOWN_CLASS, name, np.flatnonzero(judged.invalid), expected)
        missing = "the record counts for no class" if column is None else _substitute(column)
        yield _Places(FindingKind.MISSING, name, np.flatnonzero(judged.missing), missing)
    if subject is not None:
        missing_rows = np.flatnonzero(number_subjects(table.subjects)[1])
        yield _Places(FindingKind.MISSING, subject, missing_rows, "the record counts as a person of its own")


def _substitute(column: NumberColumn | CategoryColumn) -> str:
    if column.impute is None:
        return "the value contributes nothing"
    return f"{column.impute if isinstance(column.impute, str) else format(column.impute, 'g')} is taken instead"


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(repr(value) for value in values[:10]) + (", ..." if len(values) > 10 else "")
