"""Text files that a command makes: whole or not at all, and never over another one unless that is asked for."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from veilsum_node.errors import StateError
from veilsum_node.phrases import unwritable


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[IO[str]]:
    """Write a text file, readable by its owner only, that appears whole at the end of the block or not at all.

    Raises:
        StateError: it exists and ``force`` is not set, or it cannot be written.
    """
    require_new(path, force=force)
    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8", newline=""
        ) as file:
            temporary = Path(file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not force:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # fails if somebody made it meanwhile
        temporary.replace(path)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        raise StateError(f"{path} {unwritable(error)}.", "Check the directory and its permissions.") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def require_new(path: Path, *, force: bool = False) -> None:
    """Refuse a place that :func:`new_file` would refuse, before any work is done for it.

    Raises:
        StateError: it is a directory, or it exists and ``force`` is not set.
    """
    if path.is_dir():
        raise StateError(f"{path} is a folder, not a file.", "Name a file.")
    if not force and os.path.lexists(path):
        raise _exists(path)


def _exists(path: Path) -> StateError:
    return StateError(f"{path} already exists.", "Name another file, or add --force to replace it.")
