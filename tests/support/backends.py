"""Where a database can lie, for tests that must hold everywhere."""

from __future__ import annotations

from pathlib import Path

from support.fresh import fresh_server_database

BACKENDS = ("file", "postgres")


def new_place(backend: str, directory: Path, *components: tuple[str, str]) -> str:
    """A place for a new database, as ``open_database`` takes it; on a server the components' tables are in it already."""
    if backend == "postgres":
        return fresh_server_database(*components)
    return str(directory / f"state-{len(list(directory.iterdir()))}.db")
