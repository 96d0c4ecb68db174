"""How commands print: a table for people, JSON for programs, and errors that say what to do.

No control character reaches a terminal, whatever a name, a file or a peer says.
"""

import json
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from veilsum_node.errors import Refusal, VeilsumError

EXIT_REFUSED = 2
"""A typed error: the message says what is wrong, the advice what to do."""

EXIT_INTERNAL = 70
"""A fault of veilsum itself."""

_WIDEST = 320  # a sentence with a long path fits, a list of all tasks does not

ConfigOption = Annotated[Path, typer.Option("--config", help="The party's configuration.")]

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
"""The ``--json`` flag that every command with a result takes."""

DialectOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dialect",
        metavar="KEY=VALUE",
        help='How a file of text is written, where not as UTF-8 with commas: delimiter=";", decimal=",", encoding=cp1252,'
        " compression=gzip; repeat it for several.",
    ),
]


def print_rows(rows: Sequence[Mapping[str, object]], *, title: str, as_json: bool, empty: str = "Nothing to show.") -> None:
    """Print rows of like keys: a table whose headings are the keys, or a JSON list of objects."""
    if as_json:
        print_json(list(rows))
    elif not rows:
        print_line(empty)
    else:
        table = Table(title=terminal_text(title), title_justify="left")
        for heading in rows[0]:
            table.add_column(terminal_text(heading), overflow="fold", max_width=_widest())
        for row in rows:
            table.add_row(*(terminal_text(_cell(value)) for value in row.values()))
        _console().print(table)


def print_fields(fields: Mapping[str, object], *, title: str, as_json: bool) -> None:
    """Print one result: a table of two columns, or a JSON object."""
    if as_json:
        print_json(fields)
        return
    table = Table(title=terminal_text(title), title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=_widest())
    for key, value in fields.items():
        table.add_row(terminal_text(key), terminal_text(_cell(value)))
    _console().print(table)


def print_json(value: object, *, compact: bool = False) -> None:
    """Print JSON to standard output; paths become strings. ``compact``: on one line, where several objects follow."""
    indent = None if compact else 2
    ascii_only = not _writes_unicode(sys.stdout)
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, allow_nan=False, default=_json_default)
    typer.echo(_escaped(text))


def print_line(text: str) -> None:
    """Print a line for people to standard output."""
    Console(soft_wrap=True).print(terminal_text(text))


def moment(seconds: int) -> str:
    """Unix seconds as a date and time in UTC, ISO 8601."""
    known = min(max(seconds, 0), 253402300799)  # the years that a datetime knows
    return datetime.fromtimestamp(known, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


PAGES = Path(sys.prefix) / "share" / "doc" / "veilsum"
"""Where an installed distribution has the documentation."""


def _with_places(text: str) -> str:
    """Name the pages that a message refers to by where they are on this machine, if they are there."""
    return re.sub(r"\bdocs/[\w/-]+\.md", lambda named: str(page) if (page := PAGES / named[0]).exists() else named[0], text)


def report_error(error: VeilsumError, *, as_json: bool) -> int:
    """Print a typed error to standard error and return the exit status."""
    message, advice = _with_places(error.message), _with_places(error.advice)
    if as_json:
        body: dict[str, Any] = {"error": type(error).__name__, "message": message, "advice": advice}
        if isinstance(error, Refusal):
            body["code"] = error.code.value
        typer.echo(_escaped(json.dumps(body, ensure_ascii=not _writes_unicode(sys.stderr))), err=True)
    else:
        console = Console(stderr=True, soft_wrap=True)
        console.print(Text("Error: ", style="bold red") + terminal_text(message, style="default"))
        if advice:
            console.print(terminal_text(advice))
    return EXIT_REFUSED


def report_crash(error: Exception, *, as_json: bool) -> int:
    """Print what to do about a fault of veilsum itself and return the exit status; the whole trace only under VEILSUM_DEBUG=1.

    The exception's text stays out, for it may quote a record.
    """
    message = f"Internal error: {type(error).__name__}."
    advice = "Run again with VEILSUM_DEBUG=1 for the full trace."
    if os.environ.get("VEILSUM_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
        advice = ""
    report_error(VeilsumError(message, advice), as_json=as_json)
    return EXIT_INTERNAL


def terminal_text(text: str, style: str = "") -> Text:
    """A text for a terminal, in which everything that is not printable but line breaks and tabs is replaced."""
    shown = (letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return Text("".join(shown), style)


def _escaped(text: str) -> str:
    """JSON in which everything that is not printable is escaped, as JSON itself does only below the space."""
    return "".join(letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1] for letter in text)


def _writes_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


def _console() -> Console:
    """Fit a terminal; let nothing wrap in a pipe or a log."""
    return Console() if sys.stdout.isatty() else Console(width=1000)


def _widest() -> int | None:
    """Columns of the widest cell: in a pipe one long list must not widen every line of its table."""
    return None if sys.stdout.isatty() else _WIDEST


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return "" if value is None else str(value)


def _json_default(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
