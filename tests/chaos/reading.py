"""Reads a party's database beside its process, with the driver alone: SQLite files read-only, PostgreSQL by its URL."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

Row = dict[str, Any]


def rows(place: Path | str, query: str, *arguments: Any) -> list[Row]:
    """Rows of a query whose parameters are written as question marks.

    Raises:
        sqlite3.Error, psycopg.Error: it cannot be read now, or its tables are not made yet.
    """
    if isinstance(place, Path):
        connection = sqlite3.connect(f"file:{place}?mode=ro", uri=True, timeout=5)
        try:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query, arguments)]
        finally:
            connection.close()
    with psycopg.connect(place, row_factory=dict_row, connect_timeout=5) as server:
        found = server.execute(query.replace("?", "%s"), arguments).fetchall()
        return [
            {name: bytes(value) if isinstance(value, memoryview) else value for name, value in row.items()} for row in found
        ]


def glimpse(place: Path | str, query: str, *arguments: Any) -> list[Row]:
    """The same for who looks again and again; nothing where it cannot be read at the moment."""
    try:
        return rows(place, query, *arguments)
    except (sqlite3.Error, psycopg.Error):
        return []
