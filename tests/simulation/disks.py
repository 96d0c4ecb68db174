"""Databases in memory that outlive their processes: points of death, and transactions that are refused.

A process dies at a point: before a statement that writes, before or after a commit, before or after a message. Death is an
exception that no code of the product catches; what a dead process still tries to write or send raises it again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from simulation.memory import Quick, faults
from veilsum_node.database import Database, _configure, after_commit, open_database
from veilsum_node.driver_faults import DatabaseAwayError


class Died(BaseException):
    """A process met its death."""


class Disk:
    """A party's database in memory: what is committed outlives the process. Counts points, and kills at one of them.

    For each image that a history can begin with there is a database, under one transaction that never ends: to begin again is
    to roll it back, which leaves SQLite's compiled statements as they are. What the product takes for transactions are
    savepoints in it.

    Attributes:
        database: what the product knows it by.
        raw: the driver's connection to the present database, to read beside the product's code.
        quick: whether the product's transactions are carried out here; before, tables are made through its engine.
        writing: whether one runs.
    """

    def __init__(self) -> None:
        self.passed, self._fatal = 0, 0
        self.dead = self.quick = self.writing = self._lost = False
        self._refusing = 0
        self.database = MortalDatabase(self)
        with self.database.engine.connect() as connection:
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, sqlite3.Connection)
            self.raw: sqlite3.Connection = raw
        self._images: dict[bytes, sqlite3.Connection] = {}

    def load(self, image: bytes, *, once: bool = False) -> None:
        """Begin with an image; ``once``: it is not begun with again."""
        self.quick, self.writing, self._refusing = True, False, 0
        found = self._images.get(image)
        if found is None:
            found = sqlite3.connect(":memory:", cached_statements=512, check_same_thread=False)
            found.deserialize(image)
            _configure(found, None)
            if not once:
                self._images[image] = found
        else:
            found.execute("ROLLBACK")
        found.execute("BEGIN")
        self.raw = found
        self.revive()

    def image(self) -> bytes:
        """All that is committed."""
        assert not self.writing
        if not self.quick:
            return bytes(self.raw.serialize())
        self.raw.execute("COMMIT")
        self._images = {image: raw for image, raw in self._images.items() if raw is not self.raw}  # it is changed for good
        image = bytes(self.raw.serialize())
        self.raw.execute("BEGIN")
        return image

    @contextmanager
    def transaction(self) -> Iterator[Quick]:
        """A transaction of the product's: its process can die before and after the commit."""
        assert not self.writing
        if self._refusing and not self._lost:
            self._refusing -= 1
            raise DatabaseAwayError("The database takes nothing.")
        quick = Quick(self.raw, self.point)
        with faults():
            self.raw.execute("SAVEPOINT product")
            self.writing = True
            try:
                yield quick
                self.point()
                for action in quick.afterwards:
                    action()
            except BaseException:
                self.raw.execute("ROLLBACK TO product")
                raise
            finally:
                self.raw.execute("RELEASE product")
                self.writing = False
        self.point()
        if self._refusing:
            self._refusing -= 1
            raise DatabaseAwayError("The connection broke when the transaction was committed.")

    def refuse(self, transactions: int, *, lost: bool = False) -> None:
        """Refuse so many transactions; ``lost``: they are committed, and their answers are lost."""
        self._refusing, self._lost = transactions, lost

    def revive(self) -> None:
        """A new process opens it."""
        self.dead, self._fatal = False, 0

    def doom(self, points: int) -> None:
        """The process dies at its ``points``-th point from here on."""
        self._fatal = self.passed + points

    def spare(self) -> None:
        """It does not die after all, and takes what comes."""
        self._fatal = self._refusing = 0

    def kill(self) -> None:
        """It is dead now."""
        self.dead = True

    def point(self) -> None:
        """One point.

        Raises:
            Died: the process is dead, or dies here.
        """
        self.passed += 1
        if self.passed == self._fatal:
            self.dead = True
        if self.dead:
            raise Died

    def rows(self, query: str, *values: Any) -> list[Any]:
        """What is committed, read beside the product's code."""
        return self.raw.execute(query, values).fetchall()


class MortalDatabase(Database):
    """What the product knows a disk by. Once an image is loaded, transactions are the disk's and every table is made."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(open_database(":memory:").engine)
        self._disk = disk

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self._disk.transaction() if self._disk.quick else super().transaction() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Any]:
        if not self._disk.quick:
            with super().reading() as connection:
                yield connection
            return
        assert not self._disk.writing
        with faults():
            yield Quick(self._disk.raw, self._disk.point)

    def migrate(self, package: str, component: str) -> None:
        if not self._disk.quick:
            super().migrate(package, component)

    def scrub(self) -> None:
        """A database in memory has no log beside it."""


_AFTER_COMMIT = after_commit


def quick_after_commit(connection: Any, action: Callable[[], None]) -> None:
    """In the place of :func:`veilsum_node.database.after_commit`."""
    if isinstance(connection, Quick):
        connection.afterwards.append(action)
    else:
        _AFTER_COMMIT(connection, action)
