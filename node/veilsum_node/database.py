"""The database that holds a party's state: durable, private to its owner, one writer at a time.

SQLite files are opened in write-ahead mode with full synchronisation, so that a committed transaction survives a power cut.
Ledger and protocol state share one file and one transaction. A coordinator may use PostgreSQL instead; there an advisory lock
makes writers queue as SQLite's write lock does (:mod:`veilsum_node.database_places`). This module defines no tables: each
component brings its own migrations (:meth:`Database.migrate`).
"""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, create_engine, event, insert, inspect
from sqlalchemy.engine import URL

from veilsum_node.driver_faults import DatabaseAwayError, DatabaseDamagedError, newer_version, typed_faults, unreleased_version
from veilsum_node.errors import ConfigurationError, StateError, VeilsumError
from veilsum_node.phrases import unwritable

SCHEMA_VERSION = 2
"""Layout of a file as a whole (``PRAGMA user_version``), so that old software refuses it. 1: tables were made in place; 2: by
migrations, whose versions each component counts in a table of its own."""

BUSY_SECONDS = 30.0
"""How long a transaction waits for another process's."""

_BEGIN = "veilsum_begin"
_LOCK = 0x7665696C73756D  # PostgreSQL's advisory lock of every write transaction in one database


class Database:
    """One open database, and what is known of its health; from :func:`open_database` or
    :func:`~veilsum_node.database_places.open_readonly`. Thread-safe.

    Attributes:
        guard: begins every write transaction, under its lock; what it raises undoes the transaction.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.guard: Callable[[Connection], object] | None = None
        self._fault: VeilsumError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; another use opens new ones."""
        self.engine.dispose()

    @property
    def on_server(self) -> bool:
        """Whether a server holds it, rather than a file."""
        return self.engine.dialect.name != "sqlite"

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One durable write transaction: committed at the end of the block, undone by an exception.

        It takes the write lock at once (on PostgreSQL an advisory lock), so what is read inside stays true until the commit.

        Raises:
            Unavailable: the database is locked; as :class:`DatabaseAwayError`, the server is away for the moment, or the disk
                full or failing, and whether a commit was done must be read back.
            Damage: the database is damaged, or forbids what was written.
        """
        wrote = True
        try:
            with typed_faults():
                options = {} if self.on_server else {_BEGIN: "BEGIN IMMEDIATE"}
                with self.engine.connect().execution_options(**options) as connection, connection.begin():
                    if self.on_server:
                        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
                    if self.guard is not None:
                        self.guard(connection)
                    before = _changes(connection)
                    yield connection
                    wrote = before is None or _changes(connection) != before
        except (DatabaseAwayError, DatabaseDamagedError) as error:
            self._fault = error
            raise
        # one that changed nothing says nothing about the disk, and damage does not pass
        if wrote and not isinstance(self._fault, DatabaseDamagedError):
            self._fault = None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection whose reads all see one committed state; it never waits for a writer.

        Raises:
            Unavailable, Damage: the database is out of reach, or damaged.
        """
        with typed_faults():
            options = {"isolation_level": "REPEATABLE READ"} if self.on_server else {}
            with self.engine.connect().execution_options(**options) as connection:
                yield connection

    @property
    def write_fault(self) -> str:
        """Why the last transaction that should have written could not, with what to do; empty if it could."""
        return "" if self._fault is None else str(self._fault)

    def probe(self) -> None:
        """Write what stands there already, so that :attr:`write_fault` tells how it is now.

        Raises:
            Unavailable, Damage: the database still takes nothing.
        """
        if isinstance(self._fault, DatabaseDamagedError):
            raise self._fault
        with self.transaction() as connection:
            if not self.on_server:
                connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._fault = None

    def answers(self) -> bool:
        """Ask the database anything; one that could not be written to lately must take something first.

        Raises:
            Unavailable, Damage: it is out of reach, full or can only be read; or it is damaged.
        """
        if self.write_fault:
            self.probe()
        with self.reading() as connection:
            return connection.exec_driver_sql("SELECT 1").scalar() == 1

    def migrate(self, package: str, component: str) -> None:
        """Bring a component's tables to the layout that this software knows; one transaction, nothing to do if they have it.

        A component is a set of tables with one line of versions, counted in the table ``<component>_version``. Its package
        makes new tables by ``create(connection)``; older ones are upgraded by the Alembic scripts in its ``versions``, of
        which ``HEAD`` names the last. Components of one database upgrade on their own.

        Args:
            package: the migrations' package, for example ``veilsum_privacy.ledger.migrations``.
            component: its name, for example ``ledger``.

        Raises:
            StateError: a newer version has been at these tables, or one that was never released.
            Unavailable, Damage: the database refuses.
        """
        made = import_module(package)
        head: str = made.HEAD
        with self.transaction() as connection:
            found = _component_version(connection, component)
            if found == head:
                return
            if found is None:
                made.create(connection)
                _stamp(connection, component, head)
                return
            from veilsum_node.migration import upgrade  # with Alembic, which takes longer to load than new tables to make

            upgrade(connection, package, component, found)

    def scrub(self) -> None:
        """Empty SQLite's write-ahead log, so that what was just erased is not found there; a busy log is emptied later.

        Raises:
            DatabaseAwayError: the disk is full or failing.
            Damage: the file is damaged.
        """
        if not self.on_server:
            with typed_faults(), self.engine.connect() as connection:
                # it holds the write lock while it waits for readers, so it must not wait: the next one empties the log
                connection.exec_driver_sql("PRAGMA busy_timeout = 0")
                try:
                    connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
                finally:
                    connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")


def open_database(url_or_path: str | Path) -> Database:
    """Open, and create if needed, a database.

    Args:
        url_or_path: a file's path, ``:memory:`` (one connection, for tests), or an SQLAlchemy URL of SQLite or PostgreSQL.

    Raises:
        ConfigurationError: the URL is malformed, its driver missing, or the file's directory missing or not writable.
        StateError: the file is a newer version's, or a database of another software, which gets no table.
        Unavailable: the server cannot be reached.
        Damage: the file is not a database.
    """
    if isinstance(url_or_path, Path):
        engine = file_engine(url_or_path)
    else:
        from veilsum_node.database_places import engine_of  # which a site does without: it names a file

        engine = engine_of(url_or_path)
    database = Database(engine)
    if not database.on_server:
        event.listen(engine, "connect", _configure)
        event.listen(engine, "begin", begin)
    try:
        with database.transaction() as connection:
            if (found := check_version(connection)) < SCHEMA_VERSION:
                if not found and connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1").first() is not None:
                    raise StateError("The file is a database of another software.", "Name a state of veilsum, or no file yet.")
                connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        database.close()
        raise
    return database


def file_engine(path: Path) -> Engine:
    """An engine of a file, which is made if there is none.

    Raises:
        ConfigurationError: the file's directory is missing or not writable.
    """
    _create_private(path)
    return create_engine(
        URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_SECONDS}, hide_parameters=True
    )


def after_commit(connection: Connection, action: Callable[[], None]) -> None:
    """Let ``action`` follow if the transaction of this connection is committed, and not if it is undone."""
    event.listen(connection, "commit", lambda _: action(), once=True)


def check_component(connection: Connection, package: str, component: str) -> str | None:
    """The version of a component's tables, None where migrations have not made them; to read what one cannot migrate.

    Raises:
        StateError: a newer version has been at these tables.
    """
    found = _component_version(connection, component)
    if found is not None and found > import_module(package).HEAD:
        raise newer_version(component, found)
    return found


def _changes(connection: Connection) -> int | None:
    """Rows that an SQLite connection has changed so far; None for a server's."""
    driver = connection.connection.driver_connection
    return driver.total_changes if isinstance(driver, sqlite3.Connection) else None


SPILLS_NOWHERE = "PRAGMA temp_store=MEMORY"
"""What a statement sorts or may have to undo lies beside no database, in a folder that a confined process may not write to."""


def _configure(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's events begin transactions, not the driver
    connection.execute(SPILLS_NOWHERE)
    connection.execute("PRAGMA page_size=8192")  # of a new file: vectors of megabytes are written, and erased, page by page
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "recursive_triggers=ON", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")


def begin(connection: Connection) -> None:
    """Begin a transaction as its options say."""
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))


def _create_private(path: Path) -> None:
    """Create the file with mode 0600 before SQLite would with a wider one; narrow an existing file's mode.

    In a directory whose group was made its files' (setgid), the group may read and write: so a state is shared with a console
    of another user. SQLite gives its other files the mode of this one.
    """
    try:
        shared = path.parent.stat().st_mode & stat.S_ISGID
        most = 0o660 if shared else 0o600
        if not path.exists():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            if shared:
                path.chmod(most)
        else:
            os.close(os.open(path, os.O_RDWR))
        if stat.S_IMODE(path.stat().st_mode) & 0o077 & ~most:
            path.chmod(stat.S_IMODE(path.stat().st_mode) & most)
    except OSError as error:
        raise ConfigurationError(f"The database {path} {unwritable(error)}.", "Check directory, owner and space.") from error


def check_version(connection: Connection) -> int:
    """The layout's version, the present one for a server's databases."""
    if connection.dialect.name != "sqlite":
        return SCHEMA_VERSION
    version = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    if version > SCHEMA_VERSION:
        raise StateError(
            f"The database was written by a newer version (schema {version}, this software knows {SCHEMA_VERSION}).",
            "Install the newer version.",
        )
    return version


def make_tables(connection: Connection, component: str, metadata: MetaData) -> None:
    """Make all tables of a component, as yet without a version.

    Raises:
        StateError: some are there: tables without a version were never released.
    """
    if metadata.tables.keys() & set(inspect(connection).get_table_names()):
        raise unreleased_version(component, "none")
    metadata.create_all(connection, checkfirst=False)


def _component_version(connection: Connection, component: str) -> str | None:
    table = f"{component}_version"
    if not inspect(connection).has_table(table):
        return None
    version = connection.exec_driver_sql(f"SELECT version_num FROM {table}").scalar()  # noqa: S608 - a component's own name
    return None if version is None else str(version)


def _stamp(connection: Connection, component: str, version: str) -> None:
    """Note the version of new tables, where and as Alembic counts it."""
    kept = Column("version_num", String(32), primary_key=True)
    table = Table(f"{component}_version", MetaData(naming_convention={"pk": "%(table_name)s_pkc"}), kept)
    table.create(connection, checkfirst=False)
    connection.execute(insert(table), {"version_num": version})
