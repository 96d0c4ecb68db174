"""Let nothing wait for the disk, from its import on: a process that dies loses nothing by that, and no test takes power away.

Each federation under test would wait some sixty times for its keys alone. SQLite is told so before it is told anything else,
since its first setting writes; ``fresh_database`` tells it once more after the product's own settings.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from sqlalchemy import event
from sqlalchemy.pool import Pool


def unsynchronized(connection: Any, _record: Any) -> None:
    """Take from a new connection that it waits; a server's settings are the server's."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


if not event.contains(Pool, "connect", unsynchronized):
    event.listen(Pool, "connect", unsynchronized)
    os.fsync = lambda descriptor, /: None
