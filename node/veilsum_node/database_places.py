"""Where a database may lie beside a file of its owner's: on a server, in memory, or in a file that is only read.

What holds a site's keys opens its own file, and loads none of this.
"""

import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool, StaticPool

from veilsum_node.database import BUSY_SECONDS, SPILLS_NOWHERE, Database, begin, check_version, file_engine
from veilsum_node.errors import ConfigurationError, StateError

CONNECT_SECONDS = 5
"""How long a server may take to accept a connection. Who can wait for it longer tries again."""

SILENT_SECONDS = 30
"""How long a server may leave what was sent to it unacknowledged."""

_MEMORY = ":memory:"


def engine_of(url_or_path: str) -> Engine:
    """An engine that may write, as of :func:`~veilsum_node.database.open_database`."""
    url = _parse_url(url_or_path)
    if url.get_backend_name() != "sqlite":
        return _create_server_engine(url)
    if url.database == _MEMORY:
        return create_engine(
            "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}, hide_parameters=True
        )
    return file_engine(Path(str(url.database)))


def open_readonly(url_or_path: str | Path) -> Database:
    """Open an existing database to read, without the right to write to it or to its directory; nothing is created or changed.

    A file that a running process writes is read as of its last commit. A file without a write-ahead log is taken as it lies:
    start nothing on it meanwhile. One whose log was left behind is read as a private copy.

    Raises:
        ConfigurationError: the URL is malformed or its driver missing.
        StateError: the database does not exist, this user may not read it, or it is a newer version's.
        Unavailable, Damage: it cannot be read now, or at all.
    """
    url = _parse_url(url_or_path)
    if url.get_backend_name() != "sqlite":
        database = Database(_create_server_engine(url, "-c default_transaction_read_only=on"))
    else:
        database = Database(_open_file_readonly(Path(str(url.database))))
    try:
        with database.reading() as connection:
            check_version(connection)
    except BaseException:
        database.close()
        raise
    return database


def database_file(url_or_path: str | Path) -> Path | None:
    """The file of an SQLite database that outlives its process; None for a server's.

    Raises:
        ConfigurationError: the URL is malformed, or names a database in memory.
    """
    url = _parse_url(url_or_path)
    if url.get_backend_name() != "sqlite":
        return None
    if url.database in (None, "", _MEMORY):
        raise ConfigurationError(
            "A database in memory would be lost with its process.", "Name a file, or a PostgreSQL database by its URL."
        )
    return Path(str(url.database))


def _parse_url(url_or_path: str | Path) -> URL:
    text = str(url_or_path)
    if "://" not in text:
        if text.startswith(("//", "postgres", "sqlite:")) and ("@" in text or ":/" in text):
            raise ConfigurationError("The database URL is malformed.", "Use a path or a URL such as postgresql://host/name.")
        return URL.create("sqlite", database=text)
    try:
        url = make_url(text)
        backend = url.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise ConfigurationError(
            "The database URL is malformed.", "Use a path or a URL such as postgresql://host/name."
        ) from error
    if backend == "sqlite":
        return URL.create("sqlite", database=url.database or _MEMORY)
    if backend != "postgresql":
        raise ConfigurationError(f"Databases of kind {backend[:32]!r} are not supported.", "Use SQLite or PostgreSQL.")
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _create_server_engine(url: URL, options: str = "") -> Engine:
    settings = f"-c lock_timeout={int(BUSY_SECONDS * 1000)} -c synchronous_commit=on {options}".strip()
    arguments = {
        "connect_timeout": CONNECT_SECONDS,
        "tcp_user_timeout": 1000 * SILENT_SECONDS,  # a server whose machine vanished is given up, not waited for by the hour
        "application_name": "veilsum",
        "options": settings,
    }
    try:
        return create_engine(
            url, connect_args=arguments, hide_parameters=True, pool_pre_ping=True, isolation_level="READ COMMITTED"
        )
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigurationError(
            "The database URL is malformed.", "Use a path or a URL such as postgresql://host/name."
        ) from error
    except ImportError as error:
        raise ConfigurationError("The database's driver is not installed.", f"Install {error.name}.") from error


def _open_file_readonly(path: Path) -> Engine:
    if not path.is_file():
        said = f"The database {path} is a folder, not a file." if path.is_dir() else f"The database {path} does not exist."
        raise StateError(said, "Check the path.")
    log, index = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))
    try:
        logged = log.is_file() and log.stat().st_size > 0
        if logged and not index.is_file():
            # Nobody has it open, and reading it in place would finish what the log holds: that is the owner's to do.
            copies = Path(tempfile.mkdtemp(prefix="veilsum-"))
            copies.chmod(0o700)
            for source in (path, log):
                shutil.copyfile(source, copies / source.name)
            engine = _readonly_engine(copies / path.name, "mode=ro")
            event.listen(engine, "engine_disposed", lambda _: shutil.rmtree(copies, ignore_errors=True))
            return engine
    except OSError as error:
        raise StateError(f"The database {path} cannot be read: {error.strerror}.", "Ask its owner for an export.") from error
    return _readonly_engine(path, "mode=ro" if logged or index.is_file() else "mode=ro&immutable=1")


def _readonly_engine(path: Path, parameters: str) -> Engine:
    place = f"file:{quote(str(path.absolute()))}?{parameters}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(place, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)

    engine = create_engine("sqlite://", creator=connect, hide_parameters=True, poolclass=NullPool)
    event.listen(engine, "connect", _configure_reader)
    event.listen(engine, "begin", begin)
    return engine


def _configure_reader(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    connection.execute(SPILLS_NOWHERE)
    connection.execute("PRAGMA query_only=ON")
