"""New databases with their tables already in them: copies of one that was migrated in this process before.

Migrations take longer than most tests; those of ``test_upgrading.py`` and ``test_ledger_layouts.py`` run them all the same.
"""

from __future__ import annotations

import sqlite3
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Engine, event

from support.postgres import server
from support.unsynced import unsynchronized
from veilsum_node.database import Database, open_database

LEDGER = ("veilsum_privacy.ledger.migrations", "ledger")
PARTICIPANT = ("veilsum_participant.migrations", "participant")
COORDINATOR = ("veilsum_coordinator.migrations", "coordinator")

_SHARED: dict[str, tuple[Any, Any]] = {}


def fresh_database(place: str | Path, *components: tuple[str, str]) -> Database:
    """Open a database; a new file, or one in memory, has the components' tables.

    SQLite's all share their compiled statements, as those of a process that opens one database do: put together for every
    database of every test, they take a fifth of the time.
    """
    database = _open(place, *components)
    engine = database.engine
    if not database.on_server:
        _hurry(engine)
        engine.dialect, engine._compiled_cache = _SHARED.setdefault("sqlite", (engine.dialect, engine._compiled_cache))
    return database


def _hurry(engine: Engine) -> None:
    event.listen(engine, "connect", unsynchronized)
    opened = engine.raw_connection()  # the one that opening it has made
    unsynchronized(opened.driver_connection, None)
    opened.close()


def _open(place: str | Path, *components: tuple[str, str]) -> Database:
    if str(place) == ":memory:":
        database = open_database(place)
        with database.engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            driver.deserialize(_content(*components))
        return database
    if "://" not in str(place) and (path := Path(place)).parent.is_dir() and not path.exists():
        path.write_bytes(_content(*components))
    return open_database(place)


def fresh_server_database(*components: tuple[str, str]) -> str:
    """The URL of a new database of this process's server that has the components' tables."""
    return server().new_database(_template(*components))


@cache
def _template(*components: tuple[str, str]) -> str:
    name = "_".join(("template", *(component for _, component in components)))
    server().create(name)
    with open_database(server().url(name)) as database:
        for package, component in components:
            database.migrate(package, component)
    return name


@cache
def _content(*components: tuple[str, str]) -> bytes:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "state.db"
        with open_database(path) as database:
            for package, component in components:
                database.migrate(package, component)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode=DELETE")  # what uses a log of its own cannot be read into memory
        connection.close()
        return path.read_bytes()
