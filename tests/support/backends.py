"""Where a ledger can lie, for tests that must hold everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support import postgres

BACKENDS = ("memory", "file", "postgres")
SHARED = ("file", "postgres")
"""Those that several processes can open."""


def new_place(backend: str, directory: Path) -> str:
    """A place for a new database, as ``open_database`` takes it."""
    makers: dict[str, Callable[[], str]] = {
        "memory": lambda: ":memory:",
        "file": lambda: str(directory / f"state-{len(list(directory.iterdir()))}.db"),
        "postgres": lambda: postgres.server().new_database(),
    }
    return makers[backend]()
