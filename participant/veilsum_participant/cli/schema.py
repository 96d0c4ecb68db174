"""The ``veilsum schema`` commands: a first draft of a schema, with its bounds left open for a person to set.

A draft comes from a data dictionary or from public records; from private ones only with ``--local``. Bounds are never taken
from records, and what a draft leaves open every reader of schemas refuses (:mod:`veilsum_privacy.study.schema`).
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilsum_node.errors import DataError, Misuse
from veilsum_node.process.console import JsonOption, print_fields, print_line
from veilsum_node.wording import unreadable

if TYPE_CHECKING:
    from veilsum_privacy.study.schema import DatasetSchema

LEAST = 10
"""Private records that must name a category before a draft does."""

MAX_DICTIONARY_BYTES = 1 << 24
"""Largest data dictionary that is read, in bytes."""

MAX_CATEGORIES, MAX_CODES, MAX_NAME = 256, 5, 128
"""Categories that a column may have; of those, whole numbers that count as codes; characters of a column's name."""

GIVES_AWAY = (
    "Drafted from private records. The draft gives away the columns' names; what most of a column's cells are (numbers, dates"
    f" or texts), and whether they repeat; and every category, codes included, that at least {LEAST} records name, sorted."
    " Records are counted, not persons: a text that one patient has in that many records is named. It gives away no count,"
    " and of numbers and dates neither the smallest nor the largest. A schema is signed into each study that uses it; every"
    " site, the coordinator and the analyst see it: remove what they may not see. Set bounds by medicine or measurement: those"
    " of your own records would tell the values of the most extreme patients."
)
"""What ``--local`` prints, and writes at the head of the draft."""

_ROLES = {
    "name": (
        *("variablefieldname", "variablename", "variable", "fieldname", "field", "columnname", "column", "varname", "name"),
    ),
    "type": ("fieldtype", "datatype", "variabletype", "columntype", "vartype", "type", "kind"),
    "unit": ("unit", "units", "unitofmeasure", "unitofmeasurement"),
    "low": ("textvalidationmin", "minimum", "minimumvalue", "minvalue", "min", "lowerbound", "lower", "low"),
    "high": ("textvalidationmax", "maximum", "maximumvalue", "maxvalue", "max", "upperbound", "upper", "high"),
    "choices": (
        *("choicescalculationsorsliderlabels", "choicesorcalculations", "choices", "categories", "levels", "valuelabels"),
        *("permissiblevalues", "permittedvalues", "allowedvalues", "codes", "values", "enum"),
    ),
    "label": ("fieldlabel", "variablelabel", "label", "title", "description", "definition"),
    "validation": ("textvalidationtypeorshowslidernumber", "textvalidationtype"),
    "identifier": ("identifier",),
}
"""Spellings of a dictionary's headings, in small letters and digits, the preferred ones first."""

_KINDS = {
    "number": (
        *("number", "numeric", "integer", "int", "bigint", "smallint", "float", "double", "decimal", "real", "continuous"),
        *("quantitative", "count", "slider", "calc"),
    ),
    "category": (
        *("category", "categorical", "factor", "radio", "dropdown", "select", "enum", "nominal", "ordinal", "coded"),
        *("boolean", "bool", "binary", "yesno", "truefalse"),
    ),
    "checkbox": ("checkbox",),
    "date": ("date", "datetime", "timestamp"),
    "text": ("text", "string", "str", "char", "character", "varchar", "freetext", "notes"),
    "none": ("descriptive", "file", "signature", "sql", "time", "id", "identifier"),
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?", re.DOTALL)
_RECORDS = "If the file holds records, say --public where anyone may see them, or --local where they are private."

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def schema() -> None:
    """Draft a schema."""


@app.command()
def draft(
    file: Annotated[Path, typer.Argument(help="A data dictionary (CSV), or records with --public or --local.")],
    out: Annotated[Path, typer.Option("--out", help="New file for the draft.")] = Path("schema.toml"),
    public: Annotated[
        bool, typer.Option("--public", help="The file holds records that anyone may see: CSV or Parquet.")
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="The file holds private records; says what a draft of them gives away.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Draft a schema of a data dictionary or of public records; bounds stay open for a person to set."""
    if public and local:
        raise Misuse("--public and --local exclude each other.", "Records that not everyone may see are private.")
    if local and not as_json:
        print_line(GIVES_AWAY)
    found = draft_records(file, private=local) if public or local else draft_dictionary(file)
    from veilsum_node.identity.files import write_new

    write_new(out, found.text(GIVES_AWAY if local else "").encode())
    fields: dict[str, object] = {"file": str(out), "columns": len(found.columns), "open": found.open}
    fields["left out"] = found.left_out if as_json else [f"{name} ({why})" for name, why in found.left_out.items()]
    print_fields(fields | ({"gives away": GIVES_AWAY} if local and as_json else {}), title="Draft", as_json=as_json)


@dataclass(frozen=True)
class Drafted:
    """A column of a draft.

    Attributes:
        name: of the column.
        kind: ``number``, ``date`` or ``category``.
        low: lower bound in the column's unit; None where it is open, as a date's always is.
        high: upper bound, likewise.
        unit: of a number; may be empty.
        categories: known ones; fewer than two are open.
        note: a line for the reader; may be empty.
    """

    name: str
    kind: str
    low: float | None = None
    high: float | None = None
    unit: str = ""
    categories: tuple[str, ...] = ()
    note: str = ""

    @property
    def open(self) -> bool:
        """Whether a person has to fill something in."""
        return len(self.categories) < 2 if self.kind == "category" else self.low is None or self.high is None

    def lines(self) -> Iterator[str]:
        """The column's table in TOML; open keys are comments."""
        yield "[[columns]]"
        if self.note:
            yield f"# {_one_line(self.note)}"
        yield f"kind = {_quoted(self.kind)}"
        yield f"name = {_quoted(self.name)}"
        if self.kind == "category":
            yield f"{'# ' if self.open else ''}categories = [{', '.join(map(_quoted, self.categories))}]"
            return
        if self.kind == "date":
            yield '# origin = ""'
        for key, bound in (("low", self.low), ("high", self.high)):
            yield f"# {key} = " if bound is None else f"{key} = {_number_text(bound)}"
        if self.unit:
            yield f"unit = {_quoted(self.unit)}"


@dataclass(frozen=True)
class Draft:
    """Columns of a schema to be, and by name why others of the source are none."""

    columns: tuple[Drafted, ...]
    left_out: Mapping[str, str]

    @property
    def open(self) -> list[str]:
        """Columns that a person has to complete."""
        return [column.name for column in self.columns if column.open]

    def text(self, warning: str = "") -> str:
        """The draft as a schema file; ``warning`` stands at its head."""
        lines = ["# A draft: review each column; complete what is commented out. Until then no command accepts it."]
        lines += [
            "# low, high: in the column's unit, from medicine or measurement, never from records; values beyond are clamped.",
            "# origin of a date: a date column, or a date as 2024-02-29; low and high are in days from it.",
            "# Not drafted: label (the class column) and max_records (bound on a site's records; 100000 unless stated).",
        ]
        if warning:
            lines.append(f"# {warning}")
        lines += [f"# Left out: {_one_line(name)} ({why})" for name, why in self.left_out.items()]
        for column in self.columns:
            lines += ["", *column.lines()]
        return "\n".join(lines) + "\n"


def draft_dictionary(path: Path) -> Draft:
    """Draft the columns that a data dictionary describes; a line in it describes one variable.

    Raises:
        DataError: it cannot be read, has no headings for name and type, or a line has an unknown type or a name twice. No
            message quotes the file: it may hold records by mistake.
    """
    columns: list[Drafted] = []
    left_out: dict[str, str] = {}
    for number, row in _dictionary(path):
        name = row["name"]
        if not 0 < len(name) <= MAX_NAME:
            raise DataError(f"{path}: line {number}: the name is empty or longer than {MAX_NAME} characters.", "Correct it.")
        made = _described(row)
        if made is None:
            advice = f"Known: {', '.join(_KIND_OF)}. {_RECORDS}"
            raise DataError(f"{path}: line {number}: the type is none that is known.", advice)
        if name in left_out:
            raise DataError(f"{path}: line {number}: the name stands twice.", "Remove all but one.")
        if isinstance(made, str):
            left_out[name] = made
        else:
            columns += made
    return _checked(path, columns, left_out)


def draft_records(path: Path, *, private: bool) -> Draft:
    """Draft the columns of a file of records: kinds and categories, never a bound.

    A column is what most of its cells are: numbers, dates or texts. Values *repeat* that at least two records name, of private
    records at least :data:`LEAST`. Texts are categories if at most 256 values repeat and they make up half of the cells; whole
    numbers are if two to five repeat and make up 95 %. A draft lists all values of public records, of private ones those that
    repeat.

    Args:
        path: CSV whose first line names the columns, or Parquet.
        private: whether not everyone may see the records.

    Raises:
        DataError: the file cannot be read, or its first line holds no names.
    """
    from veilsum_participant.data.readers import csv_names, is_csv, parquet_schema, read_table
    from veilsum_participant.data.typed import is_date, readable
    from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, DateColumn

    if path.suffix.lower() == ".npz":
        raise DataError(
            f"{path}: is neither CSV nor Parquet.", "An npz archive names no categories; write its schema by hand."
        )
    left_out: dict[str, str] = {}
    dates: set[str] = set()
    if is_csv(path):
        names = csv_names(path)
        if any(not name or _NUMBER.fullmatch(name) or _DATE.fullmatch(name) for name in names):
            raise DataError(
                f"{path}: its first line does not name the columns.", "Put a line with their names before the records."
            )
    else:
        found = parquet_schema(path)[1]
        dates = {name for name in found.names if is_date(found.field(name).type)}
        names = [name for name in found.names if name in dates or readable(found.field(name).type)]
        left_out = {name: "neither numbers, texts nor dates" for name in found.names if name not in names}
    left_out |= {name: "name too long" for name in names if not 0 < len(name) <= MAX_NAME}
    names = [name for name in names if name not in left_out]
    _check_count(path, len(names))
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
    return _checked(path, columns, left_out)


def _counts(array: Any, schema: DatasetSchema) -> Counter[str]:
    """How many cells hold each value that is not missing; a number in one spelling."""
    counts: Counter[str] = Counter()
    for item in array.value_counts().to_pylist():
        value = item["values"]
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            continue
        text = _number_text(value) if isinstance(value, float) else value
        if text in schema.missing or text.lower() == "nan":
            continue
        if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
            text = _number_text(float(text))
        counts[text] += item["counts"]
    return counts


def _observed(name: str, counts: Counter[str], *, private: bool) -> Drafted | str:
    """A column of records by what its cells hold, or why it is none."""
    cells = counts.total()
    numbers = sum(count for value, count in counts.items() if _NUMBER.fullmatch(value))
    dates = sum(count for value, count in counts.items() if _DATE.fullmatch(value))
    repeated = [value for value, count in counts.items() if count >= (LEAST if private else 2)]
    covered = sum(counts[value] for value in repeated)
    listed = tuple(sorted(repeated if private else counts, key=_order))
    if 2 * dates > cells:
        return Drafted(name, "date")
    if 2 * numbers > cells:
        whole = all(_NUMBER.fullmatch(value) and float(value).is_integer() for value in repeated)
        if whole and 2 <= len(repeated) <= MAX_CODES and covered >= 0.95 * cells:
            return Drafted(
                name, "category", categories=listed, note="Whole numbers: codes, or does the column count something?"
            )
        return Drafted(name, "number")
    if not repeated or 2 * covered < cells or len(listed) > MAX_CATEGORIES:
        return "texts of too many kinds, or none"
    return Drafted(name, "category", categories=listed)


def _order(value: str) -> tuple[float, str]:
    return (float(value), "") if _NUMBER.fullmatch(value) else (math.inf, value)


def _dictionary(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The variables of a dictionary by role, each with the number of the line on which it ends."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DICTIONARY_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path}: {unreadable(error)}.", "Check path and permissions.") from error
    if len(data) > MAX_DICTIONARY_BYTES:
        raise DataError(f"{path}: larger than {MAX_DICTIONARY_BYTES >> 20} MiB: no data dictionary.", _RECORDS)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    first = text.partition("\n")[0]
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), strict=True)
    try:
        roles = _roles(next(lines, []))
        if not {"name", "type"} <= roles.keys():
            headings = "A data dictionary has headings for name and type: `name` and `type`, or REDCap's."
            raise DataError(f"{path}: is no data dictionary.", f"{headings} {_RECORDS}")
        for row in lines:
            if any(cell.strip() for cell in row):
                yield (
                    lines.line_num,
                    {role: row[roles[role]].strip() if roles.get(role, len(row)) < len(row) else "" for role in _ROLES},
                )
    except csv.Error as error:
        raise DataError(
            f"{path}: line {lines.line_num}: is not CSV.", "Close quotation marks, and double those inside."
        ) from error


def _roles(headings: Sequence[str]) -> dict[str, int]:
    """Which cell of a line has which role, by the dictionary's headings."""
    known = [re.sub("[^a-z0-9]", "", heading.lower()) for heading in headings]
    return {
        role: known.index(spelling[0])
        for role, spellings in _ROLES.items()
        if (spelling := [word for word in spellings if word in known])
    }


def _described(row: Mapping[str, str]) -> list[Drafted] | str | None:
    """The columns of one variable of a dictionary; or why it is none; None where its type is unknown."""
    name, word = row["name"], re.sub("[^a-z0-9]", "", row["type"].lower())
    kind = _KIND_OF.get(word)
    if kind is None:
        return None
    if row["identifier"].lower() in ("y", "yes", "1", "true"):
        return "identifier"
    validation = row["validation"].lower()
    choices = {} if word in ("calc", "slider") else _choices(row["choices"])
    if word in ("yesno", "truefalse"):
        choices = choices or {"0": "", "1": ""}
    if kind == "text":
        if validation.startswith(("date_", "datetime_")):
            kind = "date"
        elif validation.startswith(("integer", "number", "float")):
            kind = "number"
        elif choices:
            kind = "category"
        else:
            return "free text"
    if kind == "none":
        return "neither number, date nor category"
    if len(choices) > MAX_CATEGORIES:
        return f"more than {MAX_CATEGORIES} categories"
    if kind == "checkbox":  # REDCap exports a column for each box
        boxes = {re.sub("[^a-z0-9_]", "_", code.lower()): label for code, label in choices.items()}
        return [
            Drafted(f"{name}___{code}", "category", categories=("0", "1"), note=f"{row['label']}: {label}")
            for code, label in boxes.items()
        ] or "no boxes"
    if kind == "category":
        told = "; ".join(f"{code} = {label}" for code, label in choices.items() if label)
        return [Drafted(name, kind, categories=tuple(choices), note=" | ".join(filter(None, (row["label"], told))))]
    if kind == "date":
        return [Drafted(name, kind, note=row["label"])]
    low, high = _bounds(name, row["low"], row["high"])
    return [Drafted(name, kind, low, high, row["unit"], note=row["label"])]


def _choices(text: str) -> dict[str, str]:
    """Categories and their labels, in the dictionary's order: ``1, Male | 2, Female``, ``1=M; 2=F``, ``a, b``, or JSON."""
    if text.startswith(("[", "{")):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = []
        pairs = value.items() if isinstance(value, dict) else ((item, "") for item in value)
        return {_unicode(code).strip(): _unicode(label) for code, label in pairs if _unicode(code).strip()}
    separator = next((mark for mark in ("|", "\n", ";") if mark in text), ",")
    parts = [part.strip() for part in text.split(separator) if part.strip()]
    for mark in ("=", ",", ":"):
        halves = [part.partition(mark) for part in parts]
        found = {code.strip(): label.strip() for code, _, label in halves}
        if len(found) == len(parts) and all(middle for _, middle, _ in halves) and all(map(_is_code, found)):
            return found
    return dict.fromkeys(parts, "")


def _unicode(value: object) -> str:
    """A JSON value as text; half of a surrogate pair becomes a question mark."""
    return str(value).encode(errors="replace").decode()


def _is_code(text: str) -> bool:
    return re.fullmatch(r"\S+", text) is not None


def _bounds(name: str, low: str, high: str) -> tuple[float | None, float | None]:
    """A dictionary's bounds; None for what is no number, and for both where they bound nothing."""
    from pydantic import ValidationError

    from veilsum_node.fields import LARGEST, SMALLEST
    from veilsum_privacy.study.schema import NumberColumn

    ends: list[float | None] = []
    for text in (low, high):
        point = text.replace(",", ".") if text.count(",") == 1 and "." not in text else text
        value = float(point) if _NUMBER.fullmatch(point) else math.nan
        ends.append(value if value == 0.0 or SMALLEST <= abs(value) <= LARGEST else None)
    if ends[0] is not None and ends[1] is not None:
        try:
            NumberColumn(name=name, low=ends[0], high=ends[1])
        except ValidationError:
            return None, None
    return ends[0], ends[1]


def _checked(path: Path, columns: Sequence[Drafted], left_out: Mapping[str, str]) -> Draft:
    names = [column.name for column in columns]
    if len({*names, *left_out}) != len(names) + len(left_out):
        raise DataError(f"{path}: a column stands twice.", "Remove all but one.")
    if any(len(name) > MAX_NAME for name in names):
        raise DataError(f"{path}: a column's name is longer than {MAX_NAME} characters.", "Shorten the variable's name.")
    _check_count(path, len(columns))
    return Draft(tuple(columns), left_out)


def _check_count(path: Path, count: int) -> None:
    if not 0 < count <= 4096:
        raise DataError(f"{path}: makes {count} columns; a schema has 1 to 4096.", "Choose the columns that the study needs.")


def _quoted(text: str) -> str:
    """TOML's basic string: JSON's, with DEL escaped as well."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _one_line(text: str) -> str:
    """Text for a comment, which holds no line break or control character."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _number_text(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
