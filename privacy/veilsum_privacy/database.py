"""The database file that holds a party's state: durable, private to its owner, one writer at a time.

SQLite files are opened in write-ahead mode with full synchronisation, so that a committed transaction survives a power cut.
Ledger and protocol state share one file and one transaction. Other URLs (PostgreSQL) pass through unchanged. This module
defines no tables.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import StaticPool

from veilsum_privacy.errors import ConfigurationError, StateError

SCHEMA_VERSION = 1
"""Version of all tables in a file (``PRAGMA user_version``); raised with every change that old software cannot read."""

BUSY_SECONDS = 30.0
"""How long a transaction waits for another process's."""

_MEMORY = ":memory:"
_BEGIN = "veilsum_begin"


def open_database(url_or_path: str | Path) -> Engine:
    """Open, and create if needed, a database.

    Args:
        url_or_path: a file's path, ``:memory:`` (one connection, for tests), or an SQLAlchemy URL.

    Raises:
        ConfigurationError: the URL is malformed, its driver missing, or the file's directory missing or not writable.
        StateError: the file is no database, or a newer version's.
    """
    text = str(url_or_path)
    if "://" in text:
        try:
            url = make_url(text)
            if url.get_backend_name() != "sqlite":
                return create_engine(url, hide_parameters=True)
        except (ArgumentError, NoSuchModuleError) as error:
            raise ConfigurationError(
                "The database URL is malformed.", "Use a path or, say, postgresql://host/name."
            ) from error
        except ImportError as error:
            raise ConfigurationError("The database's driver is not installed.", f"Install {error.name}.") from error
        text = url.database or _MEMORY
    if text == _MEMORY:
        engine = create_engine(
            "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}, hide_parameters=True
        )
    else:
        _create_private(Path(text))
        engine = create_engine(f"sqlite:///{text}", connect_args={"timeout": BUSY_SECONDS}, hide_parameters=True)
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    try:
        _check_version(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """One durable write transaction: committed at the end of the block, undone by an exception.

    On SQLite it takes the write lock at once, so what is read inside stays true until the commit.

    Raises:
        StateError: the database is locked, full, damaged, or forbids what was written.
    """
    try:
        with engine.connect().execution_options(**{_BEGIN: "BEGIN IMMEDIATE"}) as connection, connection.begin():
            yield connection
    except DBAPIError as error:
        raise StateError(
            f"The database refused a transaction: {error.orig}.",
            "Check that no other process holds it, that the disk has room, and that the file is intact.",
        ) from error


def scrub(engine: Engine) -> None:
    """Empty SQLite's write-ahead log, so that what was just erased is not found there; a busy log is emptied later.

    Raises:
        StateError: the disk is full or the file damaged.
    """
    if engine.dialect.name == "sqlite":
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        except DBAPIError as error:
            raise StateError(
                f"The write-ahead log cannot be emptied: {error.orig}.", "Check the disk and the file."
            ) from error


def _configure(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's events begin transactions, not the driver
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "recursive_triggers=ON", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))


def _create_private(path: Path) -> None:
    """Create the file with mode 0600 before SQLite would with a wider one; narrow an existing file's mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)
    except OSError as error:
        raise ConfigurationError(
            f"The database {path} cannot be opened: {error.strerror}.", "Check the directory and its owner."
        ) from error


def _check_version(engine: Engine) -> None:
    with transaction(engine) as connection:
        version = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
        if version > SCHEMA_VERSION:
            raise StateError(
                f"The database was written by a newer version (schema {version}, this software knows {SCHEMA_VERSION}).",
                "Install the newer version.",
            )
        if version < SCHEMA_VERSION:
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
