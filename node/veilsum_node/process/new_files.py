"""Text files that a command makes: whole or not at all, and never over another one unless that is asked for."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from veilsum_node.errors import StateError
from veilsum_node.phrases import unwritable
from veilsum_node.whole_files import whole_file


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[IO[str]]:
    """Write a text file, readable by its owner only, that appears whole at the end of the block or not at all.

    Raises:
        StateError: it exists and ``force`` is not set, or it cannot be written.
    """
    require_new(path, force=force)
    try:
        with whole_file(path, replace=force) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            yield text
            text.detach()
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        raise StateError(f"{path} {unwritable(error)}.", "Check the directory, its permissions and its space.") from error


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
