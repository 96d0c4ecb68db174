"""Text in CSV files that people open in spreadsheets, which run a cell that begins with one of a few signs as a formula.

The signs are those of OWASP's page on CSV injection. An apostrophe before the text, which spreadsheets take off again or show,
makes it a text. A number is none: neither one that is written as a number, nor a text that is nothing but a number.

A spreadsheet set up for a country whose numbers have a comma splits these files at semicolons, or asks and is told tabs. To it
a line's quotation marks are letters, so that a cell begins within a text, behind each of these and each end of a line.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

_RUN = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
_MARKED = re.compile(r"'+[=+\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-][0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_RUN_WITHIN = re.compile(r"(?<=[;\t\r\n])(?='*[=+\-@＝＋－＠])")
_MARKED_WITHIN = re.compile(r"(?<=[;\t\r\n])'(?='*[=+\-@＝＋－＠])")


def defused(value: Any) -> Any:
    """A cell that no spreadsheet runs: a text that one might has an apostrophe before it, and before each part of it that one
    might take for a cell and run. Anything but a text stays."""
    if not isinstance(value, str):
        return value
    within = _RUN_WITHIN.sub("'", value)
    return within if _RUN.match(value) is None or _NUMBER.fullmatch(value) else f"'{within}"


def restored(text: str) -> str:
    """The text that :func:`defused` was given."""
    return _MARKED_WITHIN.sub("", text[1:] if _MARKED.match(text) else text)


def write_csv(stream: IO[str], names: Sequence[str], rows: Iterable[Mapping[str, Any]], *, end: str = "\n") -> None:
    """Write a table of these columns, names and texts :func:`defused`; cells are by column, empty where a row has none.

    Raises:
        ValueError: a row has a cell of another column.
    """
    known = set(names)

    def cells(row: Mapping[str, Any]) -> list[Any]:
        if others := row.keys() - known:
            raise ValueError(f"cells of no column: {sorted(others)}")
        return [row.get(name, "") for name in names]

    write_rows(stream, names, map(cells, rows), end=end)


def write_rows(stream: IO[str], names: Sequence[str], rows: Iterable[Iterable[Any]], *, end: str = "\n") -> None:
    """:func:`write_csv` of cells in the columns' order; ``stream`` is opened with ``newline=""``, ``end`` is a line's."""
    stream.write(line(map(defused, names), end=end))
    stream.writelines(line(map(defused, row), end=end) for row in rows)


def line(cells: Iterable[Any], *, end: str = "\n") -> str:
    """One line of CSV. A cell with a carriage return or a line feed is quoted whatever ends the line: Python's writer leaves
    one that does not belong to the end as it is, and what follows it would be a cell of another line."""
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\r\n").writerow(cells)
    return stream.getvalue()[:-2] + end
