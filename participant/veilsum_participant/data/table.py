"""The columns that are read of a source: whether a schema's can be, by names and types, and what their cells mean under it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilsum_node.errors import DataError
from veilsum_node.phrases import counted, listed
from veilsum_participant.data import typed
from veilsum_participant.data.lines import Fault
from veilsum_participant.data.reader import Found, SourcePart
from veilsum_participant.data.spellings import clash, known_texts
from veilsum_privacy.study.schema import CategoryColumn, CodeColumn, DatasetSchema


@dataclass(frozen=True)
class Table:
    """The columns that are read of a source.

    Attributes:
        columns: by name, an array of trimmed text (missing cells null or as written) or float64 (missing cells null or NaN);
            of categories and classes always of text.
        rows: number of rows read.
        subjects: the column that tells whose record each row is: trimmed text, or numbers in the source's own type, which
            keeps long numbers apart; None if none was asked for.
        broken: 1-based data rows of a CSV file that are not among ``rows``, in order, and why.
        unread: how many rows name an image that gives no pixels, by reason; for the site's own eyes.
    """

    columns: dict[str, Any]
    rows: int
    subjects: Any = None
    broken: Mapping[int, Fault] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)

    def filter(self, keep: NDArray[np.bool_]) -> Table:
        """The rows (rows,) that are True, but for what is told of broken ones."""
        mask = pa.array(keep)
        columns = {name: column.filter(mask) for name, column in self.columns.items()}
        return Table(columns, int(keep.sum()), None if self.subjects is None else self.subjects.filter(mask))

    def row_numbers(self) -> NDArray[np.int64]:
        """The 1-based data row of each row: broken rows were skipped when it was read."""
        every = np.arange(1, self.rows + len(self.broken) + 1, dtype=np.int64)
        return np.setdiff1d(every, np.array([*self.broken], dtype=np.int64), assume_unique=True)


def typed_table(part: SourcePart, schema: DatasetSchema, subject: str | None = None, decimal: str = ".") -> Table:
    """What a source's rows mean under a schema.

    Args:
        part: the rows, with the columns of :func:`wanted_columns`.
        schema, subject: of these.
        decimal: the mark between whole and decimal places of numbers that stand as text.
    """
    columns, named, missing = {}, named_texts(schema), [text.strip() for text in schema.missing]
    for name in schema.file_columns:
        known, cells = named.get(name), part.table[name]
        columns[name] = typed.values(cells, decimal, missing) if known is None else typed.texts(cells, known)
    subjects = None if subject is None else typed.identifiers(part.table[subject])
    return Table(columns, part.table.num_rows, subjects, part.broken)


def joined_tables(tables: Sequence[Table]) -> Table:
    """Tables of one source, of which there is one at least, as one."""
    if len(tables) == 1:
        return tables[0]
    first = tables[0]
    columns = {name: typed.joined([table.columns[name] for table in tables]) for name in first.columns}
    subjects = None if first.subjects is None else typed.joined([table.subjects for table in tables])
    broken = {row: fault for table in tables for row, fault in table.broken.items()}
    unread = sum((Counter(table.unread) for table in tables), Counter())
    return Table(columns, sum(table.rows for table in tables), subjects, broken, unread)


def named_texts(schema: DatasetSchema) -> Mapping[str, Sequence[tuple[str, int]]]:
    """The categories or values of classes that the schema names for each column of a file, with their codes.

    Of a column of codes, which is text, none; a column of which there is nothing here may hold numbers.
    """
    found: dict[str, Sequence[tuple[str, int]]] = {}
    for column in schema.columns:
        if isinstance(column, CodeColumn):
            found[column.source] = ()
        elif isinstance(column, CategoryColumn):
            found.setdefault(column.name, known_texts(column))
    if schema.label is not None:
        found.setdefault(schema.label.column, known_texts(schema.label))
    return found


def check_found(
    source: object, found: Sequence[Found], schema: DatasetSchema, subject: str | None, stated: Sequence[str] = ()
) -> None:
    """Check that what a source has can be read under a schema.

    Args:
        source: the source, in messages.
        found: what each of its files, or its query, has.
        schema, subject: of the columns to read.
        stated: all columns that its owner says that there are.

    Raises:
        DataError: a column is missing, of a type that holds neither numbers nor texts, or of one in which two categories are
            the same or codes lose zeros; or of types in two files that do not go together.
    """
    wanted, named = wanted_columns(schema, subject), named_texts(schema)
    for one in found:
        require_columns(one.says, [*wanted, *stated], one.schema.names, one.advice)
        for name in wanted:
            stored = one.schema.field(name).type
            told = f"{one.label}: column {name!r} holds {_outer(typed.plain(stored))}"
            if not (typed.readable(stored) or (typed.is_date(stored) and name in schema.date_columns)):
                if name == subject:
                    raise DataError(f"{told}, by which subjects cannot be told apart.", "Store texts or numbers.")
                raise DataError(f"{told}.", "Store numbers or texts; a query can CAST.")
            check_texts(told, typed.plain(stored), named.get(name))
    for name in wanted if len(found) > 1 else ():
        kinds = [one.schema.field(name).type for one in found]
        if not typed.common(kinds, numbered=name != subject) and (name == subject or name not in named):
            told = " and ".join(sorted({str(kind) for kind in kinds}))
            raise DataError(f"{source}: column {name!r} holds {told}.", "Store it as the same type in all files.")


def check_texts(told: str, kind: Any, named: Sequence[tuple[str, int]] | None) -> None:
    """Check that a column of an Arrow type, of which it is ``told``, can hold the texts :func:`named <named_texts>` of it.

    Raises:
        DataError: two of them are one number, or one truth; or they are codes, and the column no text.
    """
    if named is None or typed.is_text(kind):
        return
    if not named and not pa.types.is_null(kind):
        raise DataError(f"{told}; codes are texts, of which no zero is lost.", "Store texts.")
    if (alike := clash(named, kind)) is not None:
        raise DataError(f"{told}, in which {alike[0]!r} and {alike[1]!r} are the same.", "Store texts.")


def _outer(kind: object) -> str:
    """A type without what it holds: the names of fields in it may come from records."""
    if isinstance(kind, pa.OpaqueType):
        return str(kind.type_name)  # a database's own, or NumPy's
    return str(kind).partition("<")[0].partition("[(")[0].strip()


def wanted_columns(schema: DatasetSchema, subject: str | None) -> list[str]:
    """The names of all columns to read, once each."""
    return list(dict.fromkeys([*schema.file_columns, *([] if subject is None else [subject])]))


def require_columns(what: str, names: Sequence[str], present: Sequence[str], advice: Callable[[], str] = str) -> None:
    """Insist that every named column is there, once.

    What a source calls its columns may be a record, as in a CSV file without the header that it should have. So nothing of it
    is told but how many of ``names`` are there, which are not, and whether that is a matter of capitals, accents and spaces.

    Args:
        what: the source, and the verb that how many there are is said with.
        names: wanted.
        present: in the source.
        advice: gives it for columns that are missing.
    """
    times = Counter(present)
    if missing := [name for name in dict.fromkeys(names) if not times[name]]:
        wanted = len(set(names))
        spelled = {_folded(name) for name in present}
        other = [name for name in missing if _folded(name) in spelled]
        hint = f"Look at capitals, accents and spaces in {_named(other)}." if other else ""
        several = f"columns {_named(missing)} are" if len(missing) > 1 else f"column {missing[0]!r} is"
        raise DataError(
            f"{what} {wanted - len(missing)} of the {counted(wanted, 'column')} wanted: {several} missing.",
            f"{hint} {advice()}".strip(),
        )
    for name in names:
        if times[name] > 1:
            raise DataError(f"{what} a column twice: column {name!r} occurs more than once.", "Rename or remove all but one.")


def _named(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:_TOLD]]
    return listed([*shown, f"{len(names) - _TOLD} more"] if len(names) > _TOLD else shown)


def _folded(name: str) -> str:
    return "".join(normalize("NFKC", name).split()).casefold().replace("_", "").replace("-", "")


_TOLD = 5
"""Missing columns that are named."""
