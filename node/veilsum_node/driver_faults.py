"""What a database's driver raises and what its tables are too new for, as errors of ours: the cause in words, what to do, and
no statement and no value."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from veilsum_node.errors import Damage, StateError, Unavailable, VeilsumError


class DatabaseAwayError(Unavailable):
    """The database's server is away, restarting or gave a transaction up, or its disk is full, failed a write or can only be
    read: nothing was decided, and the same transaction may succeed once somebody has seen to it.

    Whether the transaction was committed is not known where the connection broke at its end: who tries again first reads what
    is there.
    """


class DatabaseDamagedError(Damage):
    """The database cannot be made sense of; nothing is written to it any more."""


_LOST = ("There is no connection to the database", "Check that its server runs, its address, name, user and password.")
_AGAIN = "Try again; nothing was written."
_BUSY = ("The database server has no free connection", "Try again later, or raise its limit of connections.")
_FULL = ("The database is out of space", "Free space on the disk, then try again; nothing was written.")
_HELD = ("Another process holds the database", "Wait for it to finish, then try again.")
_DAMAGED = ("The database is damaged, or is not a database at all", "Keep it as it is, and restore a backup.")
_READ_ONLY = ("The database is read-only", "Check that its disk is mounted writable and that its owner runs this.")

_CAUSES = {
    "08": _LOST,
    "57": _LOST,
    "53300": _BUSY,
    "53": _FULL,
    "40001": ("The transaction conflicted with another one", _AGAIN),
    "40P01": ("The transaction was aborted to end a deadlock", _AGAIN),
    "55P03": _HELD,
    "25006": _READ_ONLY,
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
    "SQLITE_BUSY": _HELD,
    "SQLITE_LOCKED": _HELD,
    "SQLITE_FULL": _FULL,
    "SQLITE_IOERR": ("The disk failed", "Check the disk; nothing was written."),
    "SQLITE_CORRUPT": _DAMAGED,
    "SQLITE_NOTADB": _DAMAGED,
    "SQLITE_READONLY": _READ_ONLY,
    "SQLITE_CANTOPEN": ("The database cannot be opened", "Check its disk, the path and its permissions."),
}
"""Causes by PostgreSQL's condition code or its class, and by SQLite's name of a code without what follows."""


_lock = threading.Lock()
_met = 0  # of the process, not of a database: one that cannot be opened has faults as well


def fault_count() -> int:
    """How many exceptions of the driver this process has met."""
    return _met


def _count_fault() -> None:
    global _met
    with _lock:
        _met += 1


_PASSING = ("08", "57", "40", "53", "25006", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY")
"""Conditions that pass, by themselves or once somebody has seen to them: of PostgreSQL (25006 is met where a server's standby
is not yet its successor), and a file's whose disk is full, failed or is mounted to be read only."""


def _explain(error: DBAPIError) -> VeilsumError:
    """The typed error; of a server's message only the first line, for the others hold values."""
    original = error.orig
    text = str(getattr(getattr(original, "diag", None), "message_primary", None) or original or "no reason given")
    code = getattr(original, "sqlstate", None) or "_".join(str(getattr(original, "sqlite_errorname", "")).split("_")[:2])
    cause = _CAUSES.get(code) or _CAUSES.get(code[:2])
    lost = getattr(sys.modules.get("psycopg"), "OperationalError", ())  # of a server's driver, where one was needed
    if cause is None and (error.connection_invalidated or isinstance(original, lost)) and not code:
        cause = _LOST
    text = text.splitlines()[0].rstrip(".")
    if cause is None and (text.startswith("no such column") or code == "42703"):
        return StateError(f"The state was not upgraded to this version yet: {text}.", "Back it up, and start this version.")
    if cause is None:
        advice = "Check that no other process holds it, that the disk has room, and that it is intact."
        return Damage(f"The database refused a transaction: {text}.", advice)
    passing = code.startswith(_PASSING) if code else cause is _LOST
    kind = DatabaseAwayError if passing else DatabaseDamagedError if cause is _DAMAGED else Unavailable
    return kind(f"{cause[0]}: {text}.", cause[1])


@contextmanager
def typed_faults() -> Iterator[None]:
    """Turn the driver's exceptions into ours; statements and their values never show.

    Raises:
        Unavailable: the fault may pass; :class:`DatabaseAwayError` where waiting for it is worthwhile.
        Damage: in place of any other exception of the driver.
    """
    try:
        yield
    except DBAPIError as error:
        _count_fault()
        raise _explain(error) from error
    except PoolTimeoutError as error:
        _count_fault()
        raise DatabaseAwayError("Too many transactions wait for the database.", "Try again later.") from error


def unreleased_version(component: str, found: str) -> StateError:
    """The error for tables that software between two released versions has made."""
    return StateError(
        f"The {component}'s tables are of version {found[:32]!r}, which no released version has.",
        "Open them once with version 0.2 if they are older, or restore a backup that a released version made.",
    )


def newer_version(component: str, found: str) -> StateError:
    """The error for tables that newer software has upgraded."""
    return StateError(
        f"The {component}'s tables were upgraded by a newer version (to {found[:32]!r}, which this software does not know).",
        "Install the newer version, or restore the backup that was made before it was installed.",
    )
