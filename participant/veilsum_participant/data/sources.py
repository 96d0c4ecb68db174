"""Read a dataset, whatever it comes from: every source gives rows through one interface, which mean the same under a schema.

Whether a source can be read is a matter of its structure, which :func:`check_structure` looks at without reading a record.
Beyond it nothing raises because of what a record holds, and none changes how another is read; only a file that is damaged, or
changes while it is read, or a query that fails, ends in a :class:`DataError` then. Nothing is pickled, no code from a file
runs, and no column is kept but the schema's and the one that tells subjects apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from veilsum_aggregation.arrays import Bools
from veilsum_node.errors import DataError, Unavailable, raising
from veilsum_participant.data import typed
from veilsum_participant.data.csv_files import CsvReader
from veilsum_participant.data.images import check_images, pixel_columns
from veilsum_participant.data.npz_files import NpzReader
from veilsum_participant.data.objects import written_to
from veilsum_participant.data.parquet_files import ParquetReader
from veilsum_participant.data.reader import OpenRows, Reader, RowRequest, check_held, missing_package, yielded
from veilsum_participant.data.table import Table, check_found, joined_tables, typed_table, wanted_columns
from veilsum_participant.data.texts import load_tokenizer, token_columns
from veilsum_participant.settings.forms import PLAIN
from veilsum_participant.settings.query import Bucket, Derived, Images, Source, SourceQuery, TextFile, is_csv, is_npz
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, header_conflict

PAUSES = (1.0, 5.0)
"""Seconds between the tries of a source whose connection breaks while records are read: what fails after them is charged."""

_Read = TypeVar("_Read")
_Asked = ParamSpec("_Asked")


def reader_of(source: Source, schema: DatasetSchema | None = None, subject: str | None = None) -> Reader:
    """What reads a source; without a schema a CSV file's first line names its columns."""
    table = _table(source)
    if isinstance(table, SourceQuery):
        return _query_reader(table)
    if is_npz(table):
        return NpzReader(Path(str(table)), schema, subject)
    if not is_csv(table):
        return ParquetReader(table)  # type: ignore[arg-type]  # a file of text is CSV
    file, dialect = (table.file, table.dialect) if isinstance(table, TextFile) else (table, PLAIN)
    return CsvReader(file, None if schema is None or schema.header else schema.order, dialect)


def check_structure(
    source: Source,
    schema: DatasetSchema,
    *,
    subject: str | None = None,
    header: bool | None = None,
    columns: Sequence[str] = (),
) -> Reader:
    """Check that a source can be read under a schema, by its structure alone; no record is read, and none changes the outcome.

    That is, of a CSV file its first line if it names the columns, else nothing but that the file is there; of a Parquet file
    the columns and types in its footer; of an npz archive the names, types and shapes in its arrays' headers; of a query what
    its database says without running it.

    Args:
        source, schema: what is read, and the columns wanted.
        subject: a further column, which tells whose record each is.
        header: whether its owner says that a CSV file's first line names the columns. Were it the schema's word alone, a first
            record could be held against a study's column names. None where the schema is the owner's own.
        columns: all that the owner says that a CSV file's first line, or a query, names: what is wrong with these is wrong for
            every study, whatever columns it asks for.

    Returns:
        What reads it.

    Raises:
        DataError: the file or a column is missing, of a type that holds neither numbers nor texts, or not in the format;
            schema and owner differ about a CSV file's first line; or the database does not accept the query.
        Unavailable: the database, or the store, is away.
        ConfigurationError: the database's URL, or a package that it needs, is missing.
    """
    if isinstance(source, Derived):
        check_derived(source)
    own = _beside_derived(source, schema) if isinstance(source, Derived) else schema
    reader = reader_of(source, own, subject)
    if isinstance(reader, CsvReader) and header not in (None, schema.header):
        advice = "State `header` under [datasets] in participant.toml as the file is, or use a schema that fits it."
        raise DataError(f"{_table(source)}: {header_conflict(schema)}", advice)
    stated = columns if isinstance(reader, CsvReader) or asked_query(source) is not None else ()
    check_found(source, reader.layout(), own, subject, stated)
    return reader


@dataclass(frozen=True)
class SourceTables:
    """A source that is being read under a schema."""

    source: Source
    rows: OpenRows
    schema: DatasetSchema
    subject: str | None

    def identifiers(self, rows: int) -> Iterator[Any]:
        """The column that tells subjects apart, in arrays of about so many rows, one at least."""
        if self.subject is not None:
            read = 0
            for part in self.rows.parts(RowRequest([self.subject], rows)):
                read += part.table.num_rows
                check_held(self.source, 8 * read)
                yield typed.identifiers(part.table[self.subject])

    def read(
        self,
        rows: int | None = None,
        *,
        subjects: bool = True,
        ordered: bool = False,
        keep: Callable[[int, int, Any], Bools] | None = None,
        wanted: Callable[[int, int], bool] | None = None,
    ) -> Iterator[Table]:
        """Tables of about so many rows, or of as many as the source pleases; there is one at least, unless none is wanted.

        Args:
            rows: of a table.
            subjects: whether to read the column that tells subjects apart.
            ordered: whether they are sorted by it.
            keep: which rows of a table are wanted, by the place of its first row among all, their number and their subjects.
            wanted: whether any row from one place to before another is; others may be left out.
        """
        made = self.source if isinstance(self.source, Derived) else None
        own = self.schema if made is None else _beside_derived(made, self.schema)
        subject = self.subject if subjects else None
        source, query = _table(self.source), asked_query(self.source)
        decimal = source.dialect.decimal if isinstance(source, TextFile) else PLAIN.decimal
        asked = RowRequest(wanted_columns(own, subject), rows, subject if ordered else None, wanted)
        for part in self.rows.parts(asked):
            if query is not None:
                check_found(query, [yielded(query, part.table.schema)], own, subject)
            table = typed_table(part, own, subject, decimal)
            if keep is not None:
                kept = keep(part.place, table.rows, table.subjects)
                if table.rows and not kept.any():
                    continue
                table = table if kept.all() else table.filter(kept)
            yield table if made is None else _with_derived(made, table, self.schema)


@contextmanager
def opened(
    source: Source, schema: DatasetSchema, *, subject: str | None = None, header: bool | None = None
) -> Iterator[SourceTables]:
    """Open a source to read the schema's columns, and the column ``subject``.

    Args:
        source, schema, subject, header: as in :func:`check_structure`.

    Raises:
        DataError, Unavailable, ConfigurationError: as :func:`check_structure`, here or as tables are taken; or the file is
            damaged, or the query fails.
    """
    query = asked_query(source) is not None
    if query and isinstance(source, Derived):
        check_derived(source)
    reader = reader_of(source, schema, subject) if query else check_structure(source, schema, subject=subject, header=header)
    with reader.opened() as rows:
        yield SourceTables(source, rows, schema, subject)


def tried(read: Callable[_Asked, _Read]) -> Callable[_Asked, _Read]:
    """Try again, after :data:`PAUSES`, what breaks before it returns: nothing has been taken for anything else yet."""

    @wraps(read)
    def again(*args: _Asked.args, **kwargs: _Asked.kwargs) -> _Read:
        for pause in PAUSES:
            try:
                return read(*args, **kwargs)
            except Unavailable:
                time.sleep(pause)
        return read(*args, **kwargs)

    return again


@tried
def read_table(source: Source, schema: DatasetSchema, *, subject: str | None = None, header: bool | None = None) -> Table:
    """Read the schema's columns, and the column ``subject``, from a source: the join of its tables.

    Args:
        source, schema, subject, header: as in :func:`check_structure`.

    Raises:
        DataError, Unavailable, ConfigurationError: as :func:`opened`. A connection that breaks is tried again after
            :data:`PAUSES`.
    """
    parts, rows = list[Table](), 0
    with opened(source, schema, subject=subject, header=header) as tables:
        for table in tables.read():
            rows += table.rows
            check_held(source, 8 * rows * len(table.columns))
            parts.append(table)
    return joined_tables(parts)


def query_rows(query: SourceQuery, names: Sequence[str] = ()) -> Any:
    """What a query of the owner's yields, as one Arrow table; of the columns ``names`` alone, if these are among its own.

    Raises:
        DataError, Unavailable, ConfigurationError: as :func:`opened`.
    """
    with reader_of(query).opened() as rows:
        return pa.concat_tables([part.table for part in rows.parts(RowRequest(names))])


def asked_query(source: Source) -> SourceQuery | None:
    """The query that a source is, or that its images or texts are of; None without one."""
    table = _table(source)
    return table if isinstance(table, SourceQuery) else None


def changed(source: Source) -> DataError:
    """The error where a source has other rows than a moment ago."""
    if asked_query(source) is not None:
        advice = "It must not depend on chance or on the time, and its files must not be written to."
        return DataError(f"{source}: yields other rows than a moment ago.", advice)
    return written_to(source)


def _query_reader(query: SourceQuery) -> Reader:
    """What asks the database that a query names."""
    if not query.url:
        with raising(missing_package("duckdb", "sql"), on=ImportError):
            from veilsum_participant.data.duck import DuckReader

        return DuckReader(query)
    if query.url.partition(":")[0] in ("postgresql", "postgres"):
        from veilsum_participant.data.postgres import PostgresReader

        return PostgresReader(query)
    from veilsum_participant.data.engines import EngineReader

    return EngineReader(query)


def _table(source: Source) -> Path | Bucket | TextFile | SourceQuery:
    """What a source's columns are read from, but for pixels and tokens."""
    return source.table if isinstance(source, Derived) else source


def check_derived(source: Derived) -> None:
    """Check that what makes pixels or tokens is there.

    Raises:
        DataError, ConfigurationError: it is not.
    """
    check_images(source) if isinstance(source, Images) else load_tokenizer(source)


def _beside_derived(source: Derived, schema: DatasetSchema) -> DatasetSchema:
    """The schema of what is read from the table itself: without pixels or tokens, with what they are made of."""
    derived = set(source.derived)
    columns = [column for column in schema.columns if column.name not in derived]
    if source.column not in {column.name for column in columns}:
        columns.append(CategoryColumn(name=source.column, categories=("a text", "another")))  # whatever it says
    return schema.model_copy(update={"columns": tuple(columns)})


def _with_derived(source: Derived, table: Table, schema: DatasetSchema) -> Table:
    wanted = [name for name in schema.file_columns if name not in table.columns]
    cells = table.columns[source.column]
    if isinstance(source, Images):  # no file has the name of a missing one; a text may be any
        gone = pa.array([text.strip() for text in schema.missing], pa.large_string())
        cells = pc.if_else(pc.is_in(cells, value_set=gone), pa.scalar(None, cells.type), cells)
        made, unread = pixel_columns(source, cells, wanted)
    else:
        made, unread = token_columns(source, cells, wanted)
    columns = table.columns | made
    return replace(table, columns={name: columns[name] for name in schema.file_columns}, unread=unread)
