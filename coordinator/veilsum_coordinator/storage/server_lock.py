"""PostgreSQL's advisory lock that a coordinator holds for as long as it runs, on a connection of its own."""

from __future__ import annotations

import os
import socket

from sqlalchemy import BindParameter, Connection, bindparam
from sqlalchemy import text as sql

from veilsum_node.database import Database, open_database
from veilsum_node.driver_faults import typed_faults
from veilsum_node.errors import VeilsumError

_CLASS: BindParameter[int] = bindparam("class", 0x7665696C)
"""The first half of the lock's key. The second is the schema, so that coordinators in schemas of one database do not meet."""

_TAKE = sql("SELECT pg_try_advisory_lock(:class, hashtext(coalesce(current_schema(), '')))").bindparams(_CLASS)
_HELD = sql(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
    " AND classid::bigint = :class AND objsubid = 2"
).bindparams(_CLASS)
_HOLDER = sql(
    "SELECT a.pid, a.application_name, a.client_addr::text,"
    " to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"
    " FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.classid::bigint = :class AND l.objsubid = 2"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND l.objid::bigint = (hashtext(coalesce(current_schema(), ''))::bigint & 4294967295)"
).bindparams(_CLASS)

_KEEPALIVE = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
"""A holder whose machine vanished is given up by the server within half a minute, where the systems' own default is hours."""


class ServerLock:
    """PostgreSQL's advisory lock of one session.

    Args:
        url: of the database.
        party: who wants it.
    """

    def __init__(self, url: str, party: str) -> None:
        self._url = url
        self._name = f"veilsum {party} {socket.gethostname()}/{os.getpid()}"[:63]
        self._database: Database | None = None
        self._connection: Connection | None = None

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
                connection.execute(sql("SELECT set_config('application_name', :name, false)"), {"name": self._name})
                if connection.scalar(_TAKE):
                    return ""
                row = connection.execute(_HOLDER).first()
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
