"""The database file: private, durable, one writer at a time, and clear about what it cannot open."""

from __future__ import annotations

import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from sqlalchemy import Engine

from veilsum_privacy.database import SCHEMA_VERSION, open_database, scrub, transaction
from veilsum_privacy.errors import ConfigurationError, StateError


def pragma(engine: Engine, name: str) -> object:
    with engine.connect() as connection:
        return connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()


@pytest.mark.parametrize("form", ["path", "text", "url"])
def test_a_file_is_private_and_durable(tmp_path: Path, form: str) -> None:
    path = tmp_path / "state.db"
    engine = open_database({"path": path, "text": str(path), "url": f"sqlite:///{path}"}[form])
    with transaction(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE t (x INTEGER)")
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    assert pragma(engine, "journal_mode") == "wal"
    assert pragma(engine, "synchronous") == 2
    assert pragma(engine, "foreign_keys") == 1
    assert pragma(engine, "busy_timeout") == 30_000
    assert pragma(engine, "user_version") == SCHEMA_VERSION
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_a_file_that_others_can_read_is_narrowed(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.touch(mode=0o644)
    path.chmod(0o644)
    open_database(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_exception_undoes_the_transaction() -> None:
    engine = open_database(":memory:")
    with transaction(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE t (x INTEGER)")

    def fail() -> None:
        with transaction(engine) as connection:
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one() == 0


def test_reads_before_a_write_hold_until_the_commit(tmp_path: Path) -> None:
    """Read-then-write from eight threads loses no update: the lock is taken at the beginning."""
    path = tmp_path / "state.db"
    with transaction(open_database(path)) as connection:
        connection.exec_driver_sql("CREATE TABLE t (x INTEGER)")
        connection.exec_driver_sql("INSERT INTO t VALUES (0)")

    def count() -> None:
        engine = open_database(path)
        for _ in range(5):
            with transaction(engine) as connection:
                value = connection.exec_driver_sql("SELECT x FROM t").scalar_one()
                connection.exec_driver_sql("UPDATE t SET x = ?", (value + 1,))

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open_database(path).connect() as connection:
        assert connection.exec_driver_sql("SELECT x FROM t").scalar_one() == 40


def test_a_newer_file_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as raw:
        raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StateError, match="newer version"):
        open_database(path)
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to have the room for a header of one hundred bytes" * 10)
    with pytest.raises(StateError):
        open_database(path)
    assert path.read_text().startswith("not a database")


@pytest.mark.parametrize("place", ["missing/state.db", "."])
def test_a_place_that_cannot_hold_a_file(tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        open_database(tmp_path / place)


@pytest.mark.parametrize("url", ["://", "nothing://host/name", "oracle://host/name"])
def test_urls_that_cannot_be_opened(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_database(url)


def test_errors_name_no_values() -> None:
    engine = open_database(":memory:")
    with pytest.raises(StateError) as caught, transaction(engine) as connection:
        connection.exec_driver_sql("INSERT INTO nowhere VALUES (?)", ("a secret",))
    assert "a secret" not in str(caught.value)
    assert "a secret" not in str(caught.value.__cause__)


def test_a_log_that_cannot_be_emptied_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    engine = open_database(path)
    scrub(engine)
    engine.dispose()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StateError, match="write-ahead log"):
        scrub(engine)
