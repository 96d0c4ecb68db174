"""What a draft of a schema is, and its text: a schema file whose open keys are comments, so that no reader accepts it yet."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from veilsum_node.errors import DataError
from veilsum_privacy.study.codes import SYSTEMS, TABLES, Groups

MAX_CATEGORIES, MAX_NAME = 256, 128
"""Categories that a column may have; characters of a column's name."""

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Drafted:
    """A column of a draft.

    Attributes:
        name: of the column.
        kind: ``number``, ``date``, ``category`` or ``codes``.
        low: lower bound in the column's unit; None where it is open, as a date's always is.
        high: upper bound, likewise.
        unit: of a number; may be empty.
        categories: known ones; fewer than two are open.
        note: a line for the reader; may be empty.
        groups: of codes, a public table; without one ``categories`` are the prefixes that count.
    """

    name: str
    kind: str
    low: float | None = None
    high: float | None = None
    unit: str = ""
    categories: tuple[str, ...] = ()
    note: str = ""
    groups: str = ""

    @property
    def open(self) -> bool:
        """Whether a person has to fill something in."""
        if self.kind == "codes":
            return False
        return len(self.categories) < 2 if self.kind == "category" else self.low is None or self.high is None

    def lines(self) -> Iterator[str]:
        """The column's table in TOML; open keys are comments."""
        yield "[[columns]]"
        if self.note:
            yield f"# {_one_line(self.note)}"
        yield f"kind = {_quoted(self.kind)}"
        yield f"name = {_quoted(self.name)}"
        if self.kind == "codes":
            yield from self._codes()
            return
        if self.kind == "category":
            yield f"{'# ' if self.open else ''}categories = [{', '.join(map(_quoted, self.categories))}]"
            return
        if self.kind == "date":
            yield '# origin = ""'
        for key, bound in (("low", self.low), ("high", self.high)):
            yield f"# {key} = " if bound is None else f"{key} = {number_text(bound)}"
        if self.unit:
            yield f"unit = {_quoted(self.unit)}"

    def _codes(self) -> Iterator[str]:
        other = "other"
        while other in self.categories:
            other += "_"
        if self.groups:
            yield f"groups = {_quoted(self.groups)}"
        else:
            yield f"prefix = {len(self.categories[0])}"
            yield f"categories = [{', '.join(map(_quoted, self.categories))}]"
        yield f"other = {_quoted(other)}"


@dataclass(frozen=True)
class SchemaDraft:
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


def checked_draft(path: object, columns: Sequence[Drafted], left_out: Mapping[str, str]) -> SchemaDraft:
    """The draft of a file.

    Raises:
        DataError: a name stands twice or is too long, or a schema has no such number of columns.
    """
    names = [column.name for column in columns]
    if len({*names, *left_out}) != len(names) + len(left_out):
        raise DataError(f"{path}: a column stands twice.", "Remove all but one.")
    if any(len(name) > MAX_NAME for name in names):
        raise DataError(f"{path}: a column's name is longer than {MAX_NAME} characters.", "Shorten the variable's name.")
    check_count(path, len(columns))
    return SchemaDraft(tuple(columns), left_out)


def check_count(path: object, count: int) -> None:
    """Insist on a number of columns that a schema can have."""
    if not 0 < count <= 4096:
        raise DataError(f"{path}: makes {count} columns; a schema has 1 to 4096.", "Choose the columns that the study needs.")


def _quoted(text: str) -> str:
    """TOML's basic string: JSON's, with DEL escaped as well."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _one_line(text: str) -> str:
    """Text for a comment, which holds no line break or control character."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def number_text(value: float) -> str:
    """A number in one spelling, whole ones without a point."""
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def recognised(texts: Mapping[str, int], least: int) -> str | None:
    """The public table that suits texts, with how often each occurs; None for none.

    19 in 20 are codes of its system, of three or more groups with ``least`` of them each, or they may be identifiers. As many
    have to look like this system's alone: undotted codes of ICD-9-CM are numbers, long ones of ATC are like ICD-10-CM's, short
    ones like ICD-10's.
    """
    for table, own in (("atc-main-groups", r".{4,}"), ("icd-9-cm-chapters", r".*[^0-9].*"), ("icd-10-chapters", r".*")):
        system, groups = TABLES[table]
        known, found = SYSTEMS[system], Groups(SYSTEMS[system], ((group.name, group.codes) for group in groups))
        sizes: Counter[int] = Counter()
        telling = 0
        for text, count in texts.items():
            if (code := known.normal(text)) is not None:
                sizes[found.find(code)] += count
                telling += count if re.fullmatch(own, text.strip()) else 0
        spread = sum(size >= least for place, size in sizes.items() if place >= 0)
        if spread >= 3 and telling >= least and 20 * sizes.total() >= 19 * sum(texts.values()):
            return table
    return None
