"""Draft a schema of a file of records: kinds of columns and categories, never a bound."""

import math
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veilsum_node.errors import DataError
from veilsum_participant.data.spellings import exact
from veilsum_participant.drafting.draft import (
    MAX_CATEGORIES,
    MAX_NAME,
    NUMBER,
    Drafted,
    SchemaDraft,
    check_count,
    checked_draft,
    recognised,
)
from veilsum_privacy.study.codes import SYSTEMS

if TYPE_CHECKING:
    from veilsum_participant.settings.query import TextFile
    from veilsum_privacy.study.schema import DatasetSchema

LEAST = 10
"""Private records that must name a category before a draft does."""

MAX_CODES = 5
"""Whole numbers of a column that count as codes, at most."""

LONGEST_CODE = 12
"""Characters of a code that a draft rolls up by a prefix."""

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?", re.DOTALL)


def draft_records(path: "Path | TextFile", *, private: bool) -> SchemaDraft:
    """Draft the columns of a file of records: kinds and categories, never a bound.

    A column is what most of its cells are: numbers, dates or texts. Values *repeat* that at least two records name, of private
    records at least :data:`LEAST`. Texts are categories if at most 256 values repeat and they make up half of the cells; whole
    numbers are if two to five repeat and make up 95 %. A draft lists all values of public records, of private ones those that
    repeat. Codes of more kinds are rolled up, by a public table or by prefixes that repeat.

    Args:
        path: CSV whose first line names the columns, also where written as somebody declares, or Parquet.
        private: whether not everyone may see the records.

    Raises:
        DataError: the file cannot be read, or its first line holds no names.
    """
    from veilsum_participant.data.sources import read_table
    from veilsum_participant.settings.query import is_npz
    from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, DateColumn

    if is_npz(path):
        raise DataError(f"{path} is neither CSV nor Parquet.", "An npz archive names no categories; write its schema by hand.")
    names, dates, left_out = _readable_columns(path)
    check_count(path, len(names))
    read = DatasetSchema(
        columns=tuple(
            DateColumn(name=name, low=0.0, high=1.0, origin="1970-01-01")
            if name in dates
            else CategoryColumn(name=name, categories=("0", "1"))
            for name in names
        )
    )
    columns: list[Drafted] = []
    table = read_table(path, read)
    for name in names:
        made = _observed(name, _counts(table.columns[name], read), private=private)
        if isinstance(made, str):
            left_out[name] = made
        else:
            columns.append(made)
    return checked_draft(path, columns, left_out)


def _readable_columns(path: "Path | TextFile") -> tuple[list[str], set[str], dict[str, str]]:
    """Names of the columns that a draft may have, those of them that hold dates, and why others are left out.

    Raises:
        DataError: the file cannot be read, or its first line holds no names.
    """
    from veilsum_participant.data.csv_files import CsvReader
    from veilsum_participant.data.sources import reader_of
    from veilsum_participant.data.typed import is_date, readable

    left_out: dict[str, str] = {}
    dates: set[str] = set()
    reader = reader_of(path)
    if isinstance(reader, CsvReader):
        names = reader.columns() or []
        if len(names) == 1 and (advice := reader.declared()):
            raise DataError(f"{path}: its first line names one column.", advice)
        if any(not name or NUMBER.fullmatch(name) or _DATE.fullmatch(name) for name in names):
            raise DataError(
                f"{path}: its first line does not name the columns.", "Put a line with their names before the records."
            )
    else:
        found = reader.layout()[0].schema
        dates = {name for name in found.names if is_date(found.field(name).type)}
        names = [name for name in found.names if name in dates or readable(found.field(name).type)]
        left_out = {name: "neither numbers, texts nor dates" for name in found.names if name not in names}
    left_out |= {name: "name too long" for name in names if not 0 < len(name) <= MAX_NAME}
    return [name for name in names if name not in left_out], dates, left_out


def _counts(array: Any, schema: "DatasetSchema") -> Counter[str]:
    """How many cells hold each value that is not missing; a number in one spelling, a code with leading zeros in its own."""
    counts: Counter[str] = Counter()
    for item in array.value_counts().to_pylist():
        text = item["values"]
        if text is None or text in schema.missing or text.lower() in ("nan", "inf", "-inf"):
            continue
        number = exact(text)
        counts[text if number is None else number.text] += item["counts"]
    return counts


def _observed(name: str, counts: Counter[str], *, private: bool) -> Drafted | str:
    """A column of records by what its cells hold, or why it is none."""
    cells = counts.total()
    numbers = sum(count for value, count in counts.items() if exact(value) is not None)
    dates = sum(count for value, count in counts.items() if _DATE.fullmatch(value))
    repeated = [value for value, count in counts.items() if count >= (LEAST if private else 2)]
    covered = sum(counts[value] for value in repeated)
    listed = tuple(sorted(repeated if private else counts, key=_order))
    if 2 * dates > cells:
        return Drafted(name, "date")
    padded = any(exact(value, padded=True) is not None and exact(value) is None for value in repeated)
    if 2 * numbers > cells and not padded:
        whole = all(NUMBER.fullmatch(value) and float(value).is_integer() for value in repeated)
        if whole and 2 <= len(repeated) <= MAX_CODES and covered >= 0.95 * cells:
            return Drafted(
                name, "category", categories=listed, note="Whole numbers: codes, or does the column count something?"
            )
        return Drafted(name, "number")
    if not repeated or 2 * covered < cells or len(listed) > MAX_CATEGORIES:
        return _rolled_up(name, counts, private=private) or "texts of too many kinds, or none"
    return Drafted(name, "category", categories=listed)


def _rolled_up(name: str, counts: Counter[str], *, private: bool) -> Drafted | None:
    """A column of codes of too many kinds, rolled up; None where its texts are none.

    Codes of a public table's system take that table. Others take the longest prefix of which few enough repeat and make up
    most cells, unless nearly every cell holds one of its own, as identifiers do.
    """
    table = recognised(counts, LEAST if private else 1)
    if table is not None:
        return Drafted(name, "codes", groups=table, note=f"Codes, by the public table {table}: or state groups of your own.")
    cells = counts.total()
    known = SYSTEMS["any"].normal
    codes: Counter[str] = Counter()
    for text, count in counts.items():
        code = known(text)
        if code is not None and len(code) <= LONGEST_CODE and not code.isalpha():
            codes[code] += count
    if 20 * codes.total() < 19 * cells or 2 * len(codes) > cells:
        return None
    for length in range(4, 0, -1):
        prefixes: Counter[str] = Counter()
        for code, count in codes.items():
            if len(code) >= length:
                prefixes[code[:length]] += count
        repeated = sorted(prefix for prefix, count in prefixes.items() if count >= (LEAST if private else 2))
        if 2 <= len(repeated) < MAX_CATEGORIES and 10 * sum(prefixes[item] for item in repeated) >= 9 * cells:
            told = f"Codes, by their first {length} characters: or state groups of your own."
            return Drafted(name, "codes", categories=tuple(repeated), note=told)
    return None


def _order(value: str) -> tuple[float, str]:
    return (float(value), "") if NUMBER.fullmatch(value) else (math.inf, value)
