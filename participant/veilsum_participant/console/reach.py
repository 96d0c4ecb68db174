"""Whether the console's user may read a record: then it does not start, whatever the rest of its code would do."""

import os
from collections.abc import Iterator, Mapping
from glob import glob, has_magic
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from veilsum_node.errors import StateError
from veilsum_participant.settings.config import ParticipantConfig

HARMLESS = frozenset({"schema_file", "query_file", "misses_file", "ca_file"})
"""Files that a dataset names and that hold no record and no way to one."""


def check_reach(config: ParticipantConfig) -> None:
    """Insist that no file of records, and none with a password to them, can be opened by this process.

    Raises:
        StateError: one can.
    """
    for name, dataset in config.datasets.items():
        for place in _places(dataset):
            if place is None:
                said = f"The configuration holds the password of dataset {name}'s database, and this user reads it."
                raise StateError(said, "Keep it in a file of its own (dsn_file) that the console's user may not read.")
            if _readable(place):
                raise StateError(
                    f"This user may read {place}, of dataset {name}: the console keeps no record within its reach.",
                    "Run it as a user of its own (docs/console.md); for a trial with made-up records say --records-in-reach.",
                )


def _places(value: Any, key: str = "") -> Iterator[Path | None]:
    """Every file that a part of the configuration names; None for a secret that stands in it."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _places(getattr(value, name), name)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _places(item, key)
    elif isinstance(value, SecretStr):
        if _has_password(value.get_secret_value()):
            yield None
    elif isinstance(value, Path) and key not in HARMLESS:
        yield value


def _has_password(url: str) -> bool:
    try:
        return urlsplit(url).password is not None or "password" in url
    except ValueError:
        return True


def _readable(place: Path) -> bool:
    """Whether the file, or anything in the folder or under the pattern, can be opened."""
    found = map(Path, glob(str(place), recursive=True)) if has_magic(str(place)) else iter([place])
    for path in found:
        if path.is_dir():
            if any(os.access(item, os.R_OK) for item in path.rglob("*") if not item.is_dir()):
                return True
        elif os.access(path, os.R_OK):
            return True
    return False
