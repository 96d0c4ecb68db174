"""What every source of records is to those who read it: columns and types that are told without a record, and rows in parts.

There is a reader for each kind of source, and :mod:`veilsum_participant.data.sources` picks it. A part is an Arrow table with
the types in which the source stores its columns; what its cells mean is decided once, for all sources, by
:mod:`veilsum_participant.data.table`.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from veilsum_node.errors import ConfigurationError, DataError, VeilsumError
from veilsum_participant.data.lines import Fault
from veilsum_participant.settings.query import SourceQuery

_PART = 1 << 24
"""Numbers of a part, where a source may please: 128 MiB."""


@dataclass(frozen=True)
class Found:
    """What one file of a source, or its query, has.

    Attributes:
        label: of it, in messages.
        says: how a message begins on how many of its columns there are.
        schema: Arrow's names and types of its columns.
        advice: gives it where a column is missing.
    """

    label: str
    says: str
    schema: Any
    advice: Callable[[], str] = str


@dataclass(frozen=True)
class SourcePart:
    """Some rows of a source.

    Attributes:
        table: an Arrow table of the columns asked for, or of all that a query yields.
        place: of a file, of the first row among all.
        broken: lines of a CSV file that do not make records, and why, each by its number, from 1, among all lines that
            hold a record or should.
    """

    table: Any
    place: int = 0
    broken: Mapping[int, Fault] = field(default_factory=dict)


@dataclass(frozen=True)
class RowRequest:
    """What is asked of a source.

    Attributes:
        names: of columns; a query of which others are asked yields all that it has.
        rows: of a part, about; of CSV the file's bytes decide. None for as many as the source pleases.
        order: a column to sort by, where :meth:`OpenRows.orders` says so.
        wanted: of a file, whether any row from one place to before another is asked for; others may be left out.
    """

    names: Sequence[str]
    rows: int | None = None
    order: str | None = None
    wanted: Callable[[int, int], bool] | None = None

    @property
    def most(self) -> int:
        """Rows of a part of typed columns."""
        return self.rows or max(1, _PART // max(1, len(self.names)))


class OpenRows(ABC):
    """The rows of a source: of a file that nobody changes, or of a transaction."""

    steady = False
    """Whether they come in the same order each time."""

    @abstractmethod
    def parts(self, asked: RowRequest) -> Iterator[SourcePart]:
        """Read rows part by part; there is one part at least, unless none is wanted."""

    def orders(self, subject: str) -> bool:
        """Whether :meth:`parts` can sort by a column, as :func:`veilsum_participant.data.subjects.told` compares it."""
        return False


class Reader(ABC):
    """Reads one source."""

    @abstractmethod
    def layout(self) -> list[Found]:
        """The columns of each of its files, or of its query; no record is read, and none changes the outcome.

        Raises:
            DataError: the file is missing, damaged or not in its format; or the database does not accept the query.
            Unavailable: the database or the store is away.
            ConfigurationError: its URL, or a package that it needs, is missing.
        """

    @abstractmethod
    def opened(self) -> AbstractContextManager[OpenRows]:
        """Its rows.

        Raises:
            DataError, Unavailable, ConfigurationError: as :meth:`layout`, here or as parts are taken; or a file is damaged, or
                the query fails or does not end in time: then the message says no more than the kind of fault.
        """

    def columns(self) -> list[str] | None:
        """The names of its columns as they stand in it, for its owner's eyes alone; None where it has none of its own.

        Raises:
            DataError, Unavailable, ConfigurationError: as :meth:`layout`.
        """
        return list(self.layout()[0].schema.names)

    def lines(self, numbers: Collection[int]) -> dict[int, int]:
        """On which line of a file of text each of some records stands, both counted from 1; none of other sources."""
        return {}

    def declared(self) -> str:
        """What the owner of a file of text had better declare, by its first line; empty where nothing stands out."""
        return ""


@dataclass
class FileReader(Reader, OpenRows):
    """Reads a file, or several, whose rows keep their order.

    Attributes:
        seen: the files that were read, for :func:`.objects.unchanged`.
    """

    steady = True
    seen: dict[Path, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def opened(self) -> AbstractContextManager[OpenRows]:
        return nullcontext(self)


@dataclass
class QueryReader(Reader):
    """Asks a database a query."""

    query: SourceQuery

    def layout(self) -> list[Found]:
        """The columns of the query, as its database tells them without running it."""
        return [yielded(self.query, self._schema())]

    @abstractmethod
    def _schema(self) -> Any:
        """Names and types of what it yields."""


@dataclass
class QueryRows(OpenRows):
    """What a query yields, for which its time as a whole is waited."""

    connection: Any
    query: SourceQuery

    @abstractmethod
    def tables(self, asked: RowRequest) -> Iterator[Any]:
        """Arrow tables of about so many rows, one at least."""

    @abstractmethod
    def told(self, error: Exception) -> VeilsumError | None:
        """What is told of an error of the database's, whose own words may hold a record's; None where it is none of these."""

    def parts(self, asked: RowRequest) -> Iterator[SourcePart]:
        left, ended, tables = float(self.query.timeout), threading.Event(), self.tables(asked)

        def stop() -> None:
            ended.set()
            self.connection.interrupt()

        while True:
            began, watch = time.monotonic(), threading.Timer(max(0.0, left), stop)
            if hasattr(self.connection, "interrupt"):  # DuckDB's and SQLite's have it
                watch.start()
            try:
                table = next(tables, None)
            except Exception as error:
                if (told := self.told(error)) is None:
                    raise
                raise slow(self.query) if ended.is_set() else told from None
            finally:
                watch.cancel()
            if table is None:
                return
            left -= time.monotonic() - began
            yield SourcePart(table)


def yielded(query: SourceQuery, schema: Any) -> Found:
    """What a query has, of an Arrow schema."""
    return Found(f"The {query}", f"The {query} yields", schema)


def check_held(source: object, size: int) -> None:
    """Insist that so many bytes, of which copies are made, are no more than the memory of the machine, or of its container.

    Raises:
        DataError: they are. Without this the kernel would end the process, at the same number of records.
    """
    if 2 * size > _memory():
        raise DataError(f"{source}: holds more records than fit into this machine's memory.", "Read it where there is more.")


@cache
def _memory() -> int:
    """Bytes of memory that this process may have."""
    told = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # there is none, or "max"
            told.append(int(Path(file).read_text()))
    return min(told)


def slow(query: SourceQuery) -> DataError:
    """The error where a query does not end in time."""
    return DataError(f"The {query} did not end within {query.timeout} s.", "Make it faster, or raise its timeout.")


def failed(query: SourceQuery, kind: str) -> DataError:
    """The error where a query fails on records, by the kind of fault alone: what the database says may hold a value."""
    return DataError(f"The {query} failed ({kind}).", "Run the query yourself. Records that it cannot convert must give NULL.")


def missing_package(name: str, extra: str) -> ConfigurationError:
    """The error where a package of one of the distribution's extras is not installed."""
    return ConfigurationError(f"The package {name} is not installed.", f"Install veilsum with its extra {extra!r}.")
