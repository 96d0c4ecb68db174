"""One coordinator on a database, and no word of one that has lost it.

Two things, each for its own purpose:

- A lock keeps a second coordinator from starting beside the first: on PostgreSQL an advisory lock of a session, on a
  connection of its own; beside an SQLite file the operating system's. A lock can be lost while its holder lives: a server
  restarts, a connection is ended, a file is removed.
- An epoch keeps a coordinator that lost its lock from writing. Who starts writes a token of its own into one row of the
  database. Every write transaction reads that row first, under the lock by which write transactions queue; another token
  undoes it. So after the successor's token is committed, no transaction of the predecessor is, whatever it believes about
  its lock.

PostgreSQL's advisory lock that a coordinator holds for as long as it runs, on a connection of its own.
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable

import sqlalchemy as sa

from veilsum_coordinator.storage.long_values import METADATA
from veilsum_node.database import Database, open_database
from veilsum_node.database_places import database_file
from veilsum_node.driver_faults import typed_faults
from veilsum_node.errors import Unavailable, VeilsumError
from veilsum_node.state_lock import StateLock, process_name, wait_to_hold
from veilsum_node.telemetry.logs import about

_CLASS: sa.BindParameter[int] = sa.bindparam("class", 0x7665696C)
"""The first half of the lock's key. The second is the schema, so that coordinators in schemas of one database do not meet."""

_TAKE = sa.text("SELECT pg_try_advisory_lock(:class, hashtext(coalesce(current_schema(), '')))").bindparams(_CLASS)
_HELD = sa.text(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
    " AND classid::bigint = :class AND objsubid = 2"
).bindparams(_CLASS)
_HOLDING = sa.text(
    "SELECT a.pid, a.application_name, a.client_addr::text,"
    " to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"
    " FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.classid::bigint = :class AND l.objsubid = 2"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND l.objid::bigint = (hashtext(coalesce(current_schema(), ''))::bigint & 4294967295)"
).bindparams(_CLASS)

_KEEPALIVE = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
"""A holder whose machine vanished is given up by the server within half a minute, where the systems' own default is hours."""

LOG = logging.getLogger("veilsum.coordinator")

WATCH_SECONDS = 1.0
"""How often the lock's connection is looked after."""

FENCE = sa.Table(
    "coordinator_fence",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),  # rises with every start
    sa.Column("token", sa.LargeBinary(16), nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
)

_HOLDER = sa.select(FENCE.c.token, FENCE.c.holder)  # made once: every write transaction asks

_ADVICE = (
    "Stop the other coordinator first, or do not start this one. If its machine is gone, the database soon ends its session;"
    " pg_terminate_backend with the session named here ends it at once."
)
_FILE_ADVICE = "Stop the other coordinator first, or do not start this one: a database has one coordinator."


class FencedError(Unavailable):
    """Another coordinator has taken the database over. This process can write nothing any more, and is about to end."""


class Fence:
    """What this process holds of a coordinator's database.

    Args:
        place: a URL, or a file's path.
        party: who holds it, as in ``coordinator hub``.
        clock: unix seconds.

    Raises:
        ConfigurationError: the place is malformed, or nothing that lasts.
    """

    def __init__(self, place: str, party: str, clock: Callable[[], int]) -> None:
        self._party, self._clock = party, clock
        file = database_file(place)
        self._lock: ServerLock | StateLock = ServerLock(place, party) if file is None else StateLock(file, party)
        self._what = "the coordinator's database" if file is None else str(file)
        self._token, self.epoch = secrets.token_bytes(16), 0
        self._database: Database | None = None
        self._listeners: list[Callable[[], object]] = []
        self._ending = threading.Event()
        self._watching: threading.Thread | None = None
        self.lost = ""

    def hold(self, stopping: threading.Event | None = None) -> None:
        """Take the lock, before anything of the database is touched.

        Raises:
            HeldError: another coordinator keeps it.
            DatabaseAwayError: the server is away.
            ConfigurationError: the file cannot be locked.
        """
        advice = _ADVICE if isinstance(self._lock, ServerLock) else _FILE_ADVICE
        wait_to_hold(self._lock.take, self._what, advice, LOG, stopping)

    def claim(self, database: Database) -> None:
        """Begin an epoch: from here on this process writes, and no earlier one. The lock is held.

        Raises:
            StateError: the database is of a newer version.
            Unavailable, Damage: it refuses.
        """
        database.migrate("veilsum_coordinator.migrations", "coordinator")
        self._database = database
        with database.transaction() as connection:
            before = connection.execute(sa.select(FENCE.c.epoch)).scalar()
            values = {
                "epoch": (before or 0) + 1,
                "token": self._token,
                "holder": process_name(self._party),
                "since": self._clock(),
            }
            connection.execute(
                sa.insert(FENCE).values(id=1, **values) if before is None else sa.update(FENCE).values(**values)
            )
        self.epoch = (before or 0) + 1
        database.guard = self._check

    def watch(self) -> None:
        """Look after the lock from here on: nobody else takes it beside this any more."""
        if isinstance(self._lock, ServerLock) and self._watching is None:
            self._watching = threading.Thread(target=self._watch, name="fence", daemon=True)
            self._watching.start()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` once if the database is taken over, from the thread that finds it."""
        self._listeners.append(listener)
        if self.lost:
            listener()

    def release(self) -> None:
        """Let another coordinator begin; nothing is written any more."""
        self._ending.set()
        if self._watching is not None and self._watching is not threading.current_thread():
            self._watching.join(timeout=5)
        self._lock.release()

    def error(self) -> FencedError:
        """That the database was taken over, and by whom."""
        return FencedError(
            f"Another coordinator has taken over the database: {self.lost}. This one no longer writes.",
            "Stop one of the two for good; studies continue with the other.",
        )

    def _check(self, connection: sa.Connection) -> None:
        """Insist on this process's epoch: at the start of every write transaction, under the lock by which they queue.

        Raises:
            FencedError: another coordinator has begun an epoch.
        """
        row = connection.execute(_HOLDER).first()
        if row is None or row.token != self._token:
            self._lose("no holder on record" if row is None else row.holder)
            raise self.error()

    def _lose(self, holder: str) -> None:
        if self.lost:
            return
        self.lost = holder
        LOG.error("another coordinator has taken over the database: %s; this one exits", holder, extra=about("database"))
        for listener in self._listeners:
            listener()

    def _watch(self) -> None:
        """Keep the lock, or find out that somebody else has it.

        A session that ended does not end the epoch, so writes go on being checked and going through until somebody else
        begins one; the lock is taken again so that nobody does so unasked.
        """
        lock, since = self._lock, 0.0
        while not self._ending.wait(WATCH_SECONDS) and not self.lost:
            if not isinstance(lock, ServerLock) or lock.holds():
                continue
            if not since:
                since = time.monotonic()
                LOG.warning("the database lock was lost with its session; acquiring it again", extra=about("database"))
            try:
                holder = lock.take()
                if self._ending.is_set():
                    lock.release()
                    return
                self._look()
            except VeilsumError:
                continue  # the server is away, so nobody else can take it either
            if not holder and not self.lost:
                away, since = time.monotonic() - since, 0.0
                LOG.info("the database lock was acquired again after %.1f s", away, extra=about("database"))

    def _look(self) -> None:
        if self._database is None:
            return
        with self._database.reading() as connection, contextlib.suppress(FencedError):
            self._check(connection)


class ServerLock:
    """PostgreSQL's advisory lock of one session.

    Args:
        party: who wants it.
    """

    def __init__(self, url: str, party: str) -> None:
        self._url = url
        self._name = f"veilsum {party} {socket.gethostname()}/{os.getpid()}"[:63]
        self._database: Database | None = None
        self._connection: sa.Connection | None = None

    def take(self) -> str:
        """Take it, if no other session holds it; returns who does, empty if it was taken.

        Raises:
            DatabaseAwayError: the server is away.
        """
        self.release()
        self._database = open_database(self._url)
        try:
            with typed_faults():
                connection = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                self._connection = connection
                connection.exec_driver_sql(_KEEPALIVE)
                connection.execute(sa.text("SELECT set_config('application_name', :name, false)"), {"name": self._name})
                if connection.scalar(_TAKE):
                    return ""
                row = connection.execute(_HOLDING).first()
        except BaseException:
            self.release()
            raise
        self.release()
        if row is None:
            return "a session that has just ended"
        pid, name, address, since = row
        return f"{name or 'a coordinator'} (session {pid} of the database, from {address or 'its own host'}, since {since})"

    def holds(self) -> bool:
        """Whether the session still lives and has the lock."""
        if self._connection is None:
            return False
        try:
            with typed_faults():
                return bool(self._connection.scalar(_HELD))
        except VeilsumError:
            return False

    def release(self) -> None:
        """End the session; does nothing without one."""
        connection, self._connection = self._connection, None
        database, self._database = self._database, None
        if connection is not None:
            connection.invalidate()  # closed, not given back to the pool: the lock must not outlive this
            connection.close()
        if database is not None:
            database.close()
