"""Reading and writing the few files that identities live in: keys, certificates, requests.

Private files are created with mode 0600 and refused when others can read them. A file of root's may be readable by its group:
so systemd (credentials) and Kubernetes (Secrets) hand a key to one service's user. Contents are not interpreted here.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from veilsum_node.errors import ConfigurationError, StateError
from veilsum_node.phrases import unreadable, unwritable

MAX_FILE_BYTES = 64 * 1024
"""Largest key, certificate or request file that is read, in bytes."""


def read_file(path: Path, what: str, *, advice: str = "Check the path.", most: int = MAX_FILE_BYTES) -> bytes:
    """Return the contents of a small regular file, of so many bytes at most.

    Raises:
        ConfigurationError: missing, unreadable, not a regular file, empty or too large; names the file.
    """
    return _read(path, what, advice, most, private=False)


def read_private(path: Path, what: str, *, advice: str = "Check the path.") -> bytes:
    """As :func:`read_file`, and refuse a file that is :func:`open_to_others`."""
    return _read(path, what, advice, MAX_FILE_BYTES, private=True)


def open_to_others(status: os.stat_result) -> bool:
    """Whether a private file may be read or written by its group or others.

    Its group may read it where root owns it and this process is another user's: root alone can have chosen that group.
    """
    handed = status.st_uid == 0 and os.geteuid() != 0
    return bool(status.st_mode & (0o037 if handed else 0o077))


def write_new(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Create ``path`` with ``mode`` and make it durable; an existing file is never touched.

    Raises:
        StateError: the file exists or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # the umask may have taken bits away
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except FileExistsError as error:
        if path.is_dir():
            raise StateError(f"{path} is a folder, not a file.", "Name a file.") from error
        raise StateError(f"{path} already exists.", "Choose another directory, or move the file away first.") from error
    except OSError as error:
        raise StateError(f"{path} {unwritable(error)}.", "Check the directory and its permissions.") from error


def replace_file(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file, over an older one if there is one: readers see the old or the new contents, never half of it.

    Raises:
        StateError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        write_new(temporary, data, mode=mode)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StateError(f"{path} {unwritable(error)}.", "Check the directory and its permissions.") from error


def _without_waiting(path: str, flags: int) -> int:
    """Open without waiting for a writer, should the path be a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read(path: Path, what: str, advice: str, most: int, *, private: bool) -> bytes:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigurationError(f"The {what} {path} is not a regular file.", advice)
            if private and open_to_others(status):
                raise ConfigurationError(f"The {what} {path} can be read by others.", f"Run: chmod 600 {path}")
            data = file.read(most + 1)
    except FileNotFoundError as error:
        raise ConfigurationError(f"The {what} {path} does not exist.", advice) from error
    except OSError as error:
        raise ConfigurationError(f"The {what} {path} {unreadable(error)}.", advice) from error
    if not 0 < len(data) <= most:
        raise ConfigurationError(f"The {what} {path} is empty or larger than {most} bytes.", advice)
    return data
