"""The database: private, durable, one writer at a time, readable without the right to write, clear about what is wrong."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event, make_url, text

from support import postgres
from support.backends import BACKENDS, new_place
from support.network import PATIENCE
from veilsum_node import database as module
from veilsum_node.database import SCHEMA_VERSION, Database, open_database
from veilsum_node.database_places import open_readonly
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.errors import ConfigurationError, Damage, StateError, Unavailable, VeilsumError


def pragma(database: Database, name: str) -> object:
    with database.engine.connect() as connection:
        return connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()


@pytest.mark.parametrize("form", ["path", "text", "url"])
def test_a_file_is_private_and_durable(tmp_path: Path, form: str) -> None:
    path = tmp_path / "state.db"
    database = open_database({"path": path, "text": str(path), "url": f"sqlite:///{path}"}[form])
    with database.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x INTEGER)")
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    assert pragma(database, "journal_mode") == "wal"
    assert pragma(database, "synchronous") == 2
    assert pragma(database, "foreign_keys") == 1
    assert pragma(database, "busy_timeout") == 30_000
    assert pragma(database, "user_version") == SCHEMA_VERSION
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_a_file_that_others_can_read_is_narrowed(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.touch(mode=0o644)
    path.chmod(0o644)
    open_database(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("folder", "before", "after"),
    [
        (0o700, None, 0o600), (0o2770, None, 0o660), (0o2770, 0o660, 0o660), (0o2770, 0o666, 0o660), (0o2770, 0o600, 0o600),
        (0o770, 0o660, 0o600), (0o750, 0o640, 0o600),
    ],
)  # fmt: skip
def test_a_group_shares_a_file_where_its_directory_says_so(
    folder: int, before: int | None, after: int, tmp_path: Path
) -> None:
    """A setgid directory, and none else; nobody besides the group ever, and a file that is narrower stays so."""
    place = tmp_path / "state"
    place.mkdir()
    place.chmod(folder)
    path = place / "state.db"
    if before is not None:
        path.touch()
        path.chmod(before)
    with open_database(path) as database, database.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x INTEGER)")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in place.iterdir()}
    assert modes == dict.fromkeys(("state.db", "state.db-wal", "state.db-shm"), after)


def test_an_exception_undoes_the_transaction() -> None:
    database = open_database(":memory:")
    with database.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x INTEGER)")

    def fail() -> None:
        with database.transaction() as connection:
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_reads_before_a_write_hold_until_the_commit(backend: str, tmp_path: Path) -> None:
    """Read-then-write from eight threads loses no update: the lock is taken at the beginning."""
    path = new_place(backend, tmp_path)
    with open_database(path).transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x INTEGER)")
        connection.exec_driver_sql("INSERT INTO t VALUES (0)")

    def count() -> None:
        database = open_database(path)
        for _ in range(5):
            with database.transaction() as connection:
                value = connection.exec_driver_sql("SELECT x FROM t").scalar_one()
                connection.execute(text("UPDATE t SET x = :x"), {"x": value + 1})

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open_database(path).engine.connect() as connection:
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
    with pytest.raises(Damage):
        open_database(path)
    assert path.read_text().startswith("not a database")


@pytest.mark.parametrize("place", ["missing/state.db", "."])
def test_a_place_that_cannot_hold_a_file(tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be written|is a folder, not a file"):
        open_database(tmp_path / place)


@pytest.mark.parametrize(
    "url", ["://", "nothing://host/name", "oracle://host/name", "mysql://h/n", "postgresql://host:port/name"]
)
def test_urls_that_cannot_be_opened(url: str) -> None:
    for opening in (open_database, open_readonly):
        with pytest.raises(ConfigurationError):
            opening(url)


def test_errors_name_no_values() -> None:
    database = open_database(":memory:")
    with pytest.raises(Damage) as caught, database.transaction() as connection:
        connection.exec_driver_sql("INSERT INTO nowhere VALUES (?)", ("a secret",))
    assert "a secret" not in str(caught.value)
    assert "a secret" not in str(caught.value.__cause__)


def test_a_log_that_cannot_be_emptied_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    database = open_database(path)
    database.scrub()
    database.close()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(Damage, match="damaged"):
        database.scrub()


# -- whatever the driver says is a typed error


@pytest.fixture
def server(tmp_path: Path) -> Database:
    return open_database(new_place("postgres", tmp_path))


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    for opening in (open_database, open_readonly):
        with pytest.raises(Unavailable, match="There is no connection to the database") as caught:
            opening(f"postgresql://someone:secret@/name?host={tmp_path}")
        assert "secret" not in str(caught.value) + str(caught.value.__cause__)
        assert "\n" not in str(caught.value)


def test_a_server_that_refuses_the_connection_has_lost_none(tmp_path: Path) -> None:
    """A database, or a user, that it does not know: what is told is to look at the name, and no password is shown."""
    url = make_url(new_place("postgres", tmp_path))
    for wrong in (url.set(database="nothere"), url.set(username="nobody", password="secret")):
        with pytest.raises(Unavailable, match=r"There is no connection .*(nothere|nobody)") as caught:
            open_database(wrong.render_as_string(hide_password=False))
        assert "name, user and password" in caught.value.advice
        assert "secret" not in str(caught.value)


def test_a_connection_that_is_lost_takes_nothing_with_it(server: Database) -> None:
    """The server ends it in the middle of a transaction: typed, undone, and the next one works."""
    with server.transaction() as connection:
        connection.execute(text("CREATE TABLE t (x INTEGER)"))

    def lose(statement: str) -> None:
        with server.transaction() as connection:
            connection.execute(text("INSERT INTO t VALUES (1)"))
            number = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            postgres.server().execute(f"SELECT pg_terminate_backend({number}, 5000)")
            if statement:
                connection.execute(text(statement))

    for statement in ("INSERT INTO t VALUES (2)", ""):  # it shows in the next statement, or in the commit
        with pytest.raises(Unavailable, match="There is no connection to the database"):
            lose(statement)
    with server.transaction() as connection:
        assert connection.execute(text("SELECT count(*) FROM t")).scalar_one() == 0


@pytest.mark.parametrize(
    ("code", "message", "passes"),
    [
        ("08006", "no connection to", True),
        ("25006", "is read-only", True),
        ("40001", "conflicted with another", True),
        ("53100", "is out of space", True),
        ("53300", "has no free connection", True),
        ("57P01", "no connection to", True),
        ("XX001", "is damaged", False),
        ("23505", "refused a transaction", False),
    ],
)
def test_conditions_that_the_server_reports(server: Database, code: str, message: str, passes: bool) -> None:
    statement = f"DO $$ BEGIN RAISE EXCEPTION 'row 7' USING ERRCODE = '{code}', DETAIL = 'Key (x)=(a secret)'; END $$"
    with pytest.raises((Unavailable, Damage), match=message) as caught, server.transaction() as connection:
        connection.execute(text(statement))
    assert "a secret" not in str(caught.value)
    assert caught.value.advice
    assert isinstance(caught.value, DatabaseAwayError) == passes  # what passes is waited out


def test_a_deadlock_is_ended_with_a_typed_error(server: Database) -> None:
    with server.transaction() as connection:
        connection.execute(text("CREATE TABLE t (x INTEGER)"))
    with psycopg.connect(str(server.engine.url.render_as_string(False)).replace("+psycopg", "")) as other:
        other.execute("SET deadlock_timeout = '60s'")
        other.execute("LOCK TABLE t")
        locked = threading.Event()

        def wait() -> None:
            locked.wait(PATIENCE)
            other.execute(f"SELECT pg_advisory_xact_lock({module._LOCK})")

        thread = threading.Thread(target=wait)
        thread.start()

        def fall_into_it() -> None:
            with server.transaction() as connection:
                connection.execute(text("SET LOCAL deadlock_timeout = '200ms'"))
                locked.set()
                connection.execute(text("LOCK TABLE t"))

        with pytest.raises(Unavailable, match="end a deadlock"):
            fall_into_it()
        thread.join(PATIENCE)
        other.rollback()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_writer_does_not_wait_for_ever(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = new_place(backend, tmp_path)
    patient = open_database(place)
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.05 if backend == "file" else 1.0)
    hasty = open_database(place)
    with patient.transaction(), pytest.raises(Unavailable, match="Another process holds"), hasty.transaction():
        pass
    with hasty.transaction():
        pass


def test_a_full_disk(tmp_path: Path) -> None:
    database = open_database(tmp_path / "state.db")

    def fill() -> None:
        with database.transaction() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 5")
            connection.exec_driver_sql("CREATE TABLE t (x BLOB)")
            connection.exec_driver_sql("INSERT INTO t VALUES (zeroblob(100000))")

    with pytest.raises(Unavailable, match="is out of space") as caught:
        fill()
    assert "disk" in caught.value.advice


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    database = open_database(path)
    with database.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
        connection.exec_driver_sql("INSERT INTO t SELECT hex(randomblob(500)) FROM pragma_function_list LIMIT 200")
    database.scrub()
    database.close()
    data = bytearray(path.read_bytes())
    data[4096 * 2 :] = b"\xff" * (len(data) - 4096 * 2)
    path.write_bytes(data)
    with pytest.raises(Damage, match="damaged"), open_readonly(path).reading() as connection:
        connection.exec_driver_sql("SELECT x FROM t").all()


# -- reading without the right to write


def _filled(path: Path) -> Database:
    database = open_database(path)
    with database.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x INTEGER)")
        connection.exec_driver_sql("INSERT INTO t VALUES (41)")
    return database


def _count(path: Path) -> int:
    with open_readonly(path) as database, database.reading() as connection:
        return int(connection.exec_driver_sql("SELECT sum(x) FROM t").scalar_one())


def _state(directory: Path) -> dict[str, tuple[str, int]]:
    """Content and time of every file; of SQLite's index of the log, which holds the locks, that it is there."""
    return {
        file.name: ("", 0)
        if file.name.endswith("-shm")
        else (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns)
        for file in sorted(directory.iterdir())
    }


def _as_nobody(act: Callable[[], object]) -> str:
    """What ``act`` returns or raises in a process without any right here, as text."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            said = str(act())
        except VeilsumError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException as error:  # noqa: BLE001 - told to the test
            said = repr(error)
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@contextmanager
def _open_folder(mode: int) -> Iterator[Path]:
    """A folder of a test's own that everybody can come to; pytest's are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="veilsum-test-"))
    path.chmod(mode)
    try:
        yield path
    finally:
        path.chmod(0o755)
        shutil.rmtree(path)


@pytest.fixture
def directory() -> Iterator[Path]:
    with _open_folder(0o755) as path:
        yield path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What this process and its forks take for the machine's temporary directory, where other processes come and go.

    Pytest chooses its own folders first: ``tmp_path`` is asked for here.
    """
    with _open_folder(0o777) as path:
        monkeypatch.setattr(tempfile, "tempdir", str(path))
        yield path


def _let_others_read(directory: Path) -> None:
    for file in directory.iterdir():
        file.chmod(0o444)
    directory.chmod(0o555)


def test_an_auditor_reads_a_file_at_rest(directory: Path) -> None:
    path = directory / "state.db"
    _filled(path).close()
    _let_others_read(directory)
    before = _state(directory)
    assert [file.name for file in directory.iterdir()] == ["state.db"]
    assert _as_nobody(lambda: _count(path)) == "41"
    assert _count(path) == 41
    assert _state(directory) == before


def test_an_auditor_reads_beside_a_running_writer(directory: Path) -> None:
    """What the writer committed a moment ago, though it lies in the log only."""
    path = directory / "state.db"
    writer = _filled(path)
    with writer.transaction() as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    _let_others_read(directory)
    before = _state(directory)
    assert set(before) == {"state.db", "state.db-wal", "state.db-shm"}
    assert _as_nobody(lambda: _count(path)) == "42"
    assert _state(directory) == before
    directory.chmod(0o755)
    with writer.transaction() as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        assert _count(path) == 42, "what is not committed is not seen"
    assert _count(path) == 43
    assert _as_nobody(lambda: _count(path)) == "43"
    writer.close()


def test_an_auditor_reads_a_file_whose_log_was_left_behind(
    directory: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of file and log, or what a power cut left: the log is read, and neither is changed."""
    path = directory / "state.db"
    with _Writing(tmp_path / "state.db") as (source, log):
        shutil.copyfile(source, path)
        shutil.copyfile(log, directory / "state.db-wal")
    _let_others_read(directory)
    before, copied = _state(directory), list[Path]()
    copy = shutil.copyfile
    monkeypatch.setattr(shutil, "copyfile", lambda source, target: copied.append(target) or copy(source, target))
    assert _as_nobody(lambda: _count(path)) == "42"
    assert list(temporary.iterdir()) == [], "no copy is left"
    assert _count(path) == 42
    assert [(file.parent.parent, file.name) for file in copied] == [(temporary, "state.db"), (temporary, "state.db-wal")]
    assert list(temporary.iterdir()) == [], "no copy is left"
    assert _state(directory) == before


class _Writing:
    """A file with a transaction that lies in its log only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> tuple[Path, Path]:
        self.database = _filled(self.path)
        self.database.scrub()
        with self.database.transaction() as connection:
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        return self.path, self.path.with_name(self.path.name + "-wal")

    def __exit__(self, *_: object) -> None:
        self.database.close()
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reader_cannot_write(backend: str, tmp_path: Path) -> None:
    place = new_place(backend, tmp_path)
    owner = open_database(place)
    with owner.transaction() as connection:
        connection.execute(text("CREATE TABLE t (x INTEGER)"))
    database = open_readonly(place)
    for statement in ("INSERT INTO t VALUES (1)", "DROP TABLE t", "CREATE TABLE u (x INTEGER)"):
        with pytest.raises(Unavailable, match="is read-only"), database.reading() as connection:
            connection.execute(text(statement))
    with pytest.raises(VeilsumError), database.transaction() as connection:
        connection.execute(text("INSERT INTO t VALUES (1)"))
    with owner.transaction() as connection:
        assert connection.execute(text("SELECT count(*) FROM t")).scalar_one() == 0


def test_another_softwares_database_is_refused_and_gets_no_table(directory: Path) -> None:
    """No table of ours is added to it; a file that is empty, or of any version of ours, is none."""
    path = directory / "theirs.db"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE patient (name TEXT)")
        theirs.commit()
    for _ in range(2):
        with pytest.raises(StateError, match="another software"):
            open_database(path)
    with closing(sqlite3.connect(path)) as theirs:
        assert theirs.execute("SELECT name FROM sqlite_master").fetchall() == [("patient",)]
        assert theirs.execute("PRAGMA user_version").fetchone() == (0,)
        theirs.execute("PRAGMA user_version = 1")
    open_database(path).close()
    (directory / "empty.db").touch()
    open_database(directory / "empty.db").close()


def test_what_cannot_be_read(directory: Path) -> None:
    for path, why in ((directory / "missing.db", "does not exist"), (directory, "is a folder, not a file")):
        with pytest.raises(StateError, match=why):
            open_readonly(path)
    assert list(directory.iterdir()) == []
    secret = directory / "secret.db"
    _filled(secret).close()
    if os.geteuid() == 0:
        assert _as_nobody(lambda: _count(secret)).startswith("Unavailable: The database cannot be opened")
    text_file = directory / "notes.txt"
    text_file.write_text("not a database, but long enough to have room for a header of one hundred bytes" * 10)
    with pytest.raises(Damage, match="damaged, or is not"):
        open_readonly(text_file)
    newer = directory / "newer.db"
    with sqlite3.connect(newer) as raw:
        raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    raw.close()
    with pytest.raises(StateError, match="newer version"):
        open_readonly(newer)


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "what?.db", "a#b.db"])
def test_names_that_mean_something_in_a_url(tmp_path: Path, name: str) -> None:
    _filled(tmp_path / name).close()
    assert _count(tmp_path / name) == 41
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_read_sees_one_state(backend: str, tmp_path: Path) -> None:
    place = new_place(backend, tmp_path)
    database = open_database(place)
    with database.transaction() as connection:
        connection.execute(text("CREATE TABLE t (x INTEGER)"))
    with database.reading() as reader:
        before = reader.execute(text("SELECT count(*) FROM t")).scalar_one()
        with open_database(place).transaction() as connection:
            connection.execute(text("INSERT INTO t VALUES (1)"))
        assert reader.execute(text("SELECT count(*) FROM t")).scalar_one() == before
    with database.reading() as reader:
        assert reader.execute(text("SELECT count(*) FROM t")).scalar_one() == before + 1


def test_scrubbing_beside_a_reader_holds_nobody_up(tmp_path: Path) -> None:
    """Waiting for readers would keep the write lock; a busy log is left for the next time."""
    database = open_database(tmp_path / "state.db")
    with database.transaction() as connection:
        connection.execute(text("CREATE TABLE secret (value TEXT)"))
    waits: list[str] = []
    with database.reading() as reader:
        assert reader.execute(text("SELECT count(*) FROM secret")).scalar() == 0
        with database.transaction() as connection:
            connection.execute(text("INSERT INTO secret VALUES ('x')"))

        def watch(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if "wal_checkpoint" in statement:
                waits.append(str(_cursor.connection.execute("PRAGMA busy_timeout").fetchone()[0]))  # type: ignore[attr-defined]

        event.listen(database.engine, "before_cursor_execute", watch)
        database.scrub()
    assert waits == ["0"]
    with database.engine.connect() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == module.BUSY_SECONDS * 1000
    database.scrub()
    assert (tmp_path / "state.db-wal").stat().st_size == 0


@pytest.mark.parametrize("place", ["postgresql:/u:pw@h/x", "//u:pw@h/x", "postgres:u:pw@h"])
def test_what_looks_like_a_url_is_never_taken_for_a_path(place: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_database(place)
    assert "pw" not in str(caught.value)
