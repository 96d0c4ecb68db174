"""Draft a schema of a data dictionary: a CSV file with a line for each variable, as REDCap and others write it."""

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from veilsum_node.errors import ConfigurationError, DataError, told_as
from veilsum_node.identity.files import read_file
from veilsum_participant.drafting.draft import (
    MAX_CATEGORIES,
    MAX_NAME,
    NUMBER,
    Drafted,
    SchemaDraft,
    checked_draft,
    recognised,
)

MAX_DICTIONARY_BYTES = 1 << 24
"""Largest data dictionary that is read, in bytes."""

_CODE = re.compile(r"[^\s,]*\w[^\s,]*")
_ROLES = {
    "name": (
        *("variablefieldname", "variablename", "variable", "fieldname", "field", "columnname", "column", "varname", "name"),
    ),
    "type": ("fieldtype", "datatype", "variabletype", "columntype", "vartype", "type", "kind"),
    "unit": ("unit", "units", "unitofmeasure", "unitofmeasurement"),
    "low": ("textvalidationmin", "minimum", "minimumvalue", "minvalue", "min", "lowerbound", "lower", "low"),
    "high": ("textvalidationmax", "maximum", "maximumvalue", "maxvalue", "max", "upperbound", "upper", "high"),
    "coded": ("choicescalculationsorsliderlabels", "selectchoicesorcalculations", "choicesorcalculations"),
    "choices": (
        *("choices", "categories", "levels", "valuelabels"),
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
_LEFT_OUT = {"text": "free text", "none": "neither number, date nor category"}
"""Kinds that make no column, and why."""

_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words}
_RECORDS = "If the file holds records, say --public where anyone may see them, or --local where they are private."


def draft_dictionary(path: Path) -> SchemaDraft:
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
    return checked_draft(path, columns, left_out)


def _dictionary(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The variables of a dictionary by role, each with the number of the line on which it ends."""
    with told_as(DataError, ConfigurationError):
        data = read_file(path, "data dictionary", most=MAX_DICTIONARY_BYTES)
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
            raise DataError(f"{path} is not a data dictionary.", f"{headings} {_RECORDS}")
        for row in lines:
            if any(cell.strip() for cell in row):
                yield (
                    lines.line_num,
                    {role: row[roles[role]].strip() if roles.get(role, len(row)) < len(row) else "" for role in _ROLES},
                )
    except csv.Error as error:
        raise DataError(
            f"{path}: line {lines.line_num} is not CSV.", "Close quotation marks, and double those inside."
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
    word = re.sub("[^a-z0-9]", "", row["type"].lower())
    kind = _KIND_OF.get(word)
    if kind is None:
        return None
    if row["identifier"].lower() in ("y", "yes", "1", "true"):
        return "identifier"
    choices = _offered(word, row)
    if kind == "text":
        kind = _kind_of_text(row["validation"].lower(), choices)
    if kind in _LEFT_OUT:
        return _LEFT_OUT[kind]
    if len(choices) > MAX_CATEGORIES:
        if kind == "category" and (table := recognised(dict.fromkeys(choices, 1), 1)) is not None:
            return [Drafted(row["name"], "codes", groups=table, note=f"{row['label']}: codes, by a public table")]
        return f'more than {MAX_CATEGORIES} categories: group them, kind = "codes"'
    if kind == "checkbox":
        return _boxes(row, choices) or "no boxes"
    if kind == "category":
        told = "; ".join(f"{code} = {label}" for code, label in choices.items() if label)
        note = " | ".join(filter(None, (row["label"], told)))
        return [Drafted(row["name"], kind, categories=tuple(choices), note=note)]
    if kind == "date":
        return [Drafted(row["name"], kind, note=row["label"])]
    low, high = _bounds(row["name"], row["low"], row["high"])
    return [Drafted(row["name"], kind, low, high, row["unit"], note=row["label"])]


def _offered(word: str, row: Mapping[str, str]) -> dict[str, str]:
    """The choices of a variable whose type is this word."""
    if word in ("calc", "slider"):  # REDCap keeps a formula, or the slider's labels, in the same cell
        return {}
    if row["coded"]:  # of REDCap: a code, a comma and a label, each after a bar; of text it names an ontology
        halves = [] if word == "text" else [part.partition(",") for part in row["coded"].split("|") if part.strip()]
        choices = {code.strip(): label.strip() for code, _, label in halves}
    else:
        choices = _choices(row["choices"])
    return choices or {"0": "", "1": ""} if word in ("yesno", "truefalse") else choices


def _kind_of_text(validation: str, choices: Mapping[str, str]) -> str:
    """What a variable of text is, by how its entries are validated and whether there are choices."""
    if validation.startswith(("date_", "datetime_")):
        return "date"
    if validation.startswith(("integer", "number", "float")):
        return "number"
    return "category" if choices else "text"


def _boxes(row: Mapping[str, str], choices: Mapping[str, str]) -> list[Drafted]:
    """A column for each box, as REDCap exports them."""
    boxes = {re.sub("[^a-z0-9_]", "_", code.lower()): label for code, label in choices.items()}
    return [
        Drafted(f"{row['name']}___{code}", "category", categories=("0", "1"), note=f"{row['label']}: {label}")
        for code, label in boxes.items()
    ]


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
        if len(found) == len(parts) and all(middle for _, middle, _ in halves) and all(map(_CODE.fullmatch, found)):
            return found
    return dict.fromkeys(parts, "")


def _unicode(value: object) -> str:
    """A JSON value as text; half of a surrogate pair becomes a question mark."""
    return str(value).encode(errors="replace").decode()


def _bounds(name: str, low: str, high: str) -> tuple[float | None, float | None]:
    """A dictionary's bounds; None for what is not a number, and for both where they bound nothing."""
    from pydantic import ValidationError

    from veilsum_node.fields import LARGEST, SMALLEST
    from veilsum_privacy.study.schema import NumberColumn

    ends: list[float | None] = []
    for text in (low, high):
        point = text.replace(",", ".") if text.count(",") == 1 and "." not in text else text
        value = float(point) if NUMBER.fullmatch(point) else math.nan
        ends.append(value if value == 0.0 or SMALLEST <= abs(value) <= LARGEST else None)
    if ends[0] is not None and ends[1] is not None:
        try:
            NumberColumn(name=name, low=ends[0], high=ends[1])
        except ValidationError:
            return None, None
    return ends[0], ends[1]
