"""Reading and writing files whole: those that identities live in, and what else has a bound or a known digest.

Private files are created with mode 0600 and refused when others can read them. A file of root's may be readable by its group:
so systemd (credentials) and Kubernetes (Secrets) hand a key to one service's user. Contents are not interpreted here.
"""

import hashlib
import hmac
import os
import pwd
import stat
from pathlib import Path

from veilsum_node.errors import ConfigurationError, StateError
from veilsum_node.phrases import unreadable, unwritable

MAX_FILE_BYTES = 64 * 1024
"""Largest key, certificate or request file that is read, in bytes."""

_EXISTS = "Choose another directory, or move the file away first."
_KEY_EXISTS = "It is never replaced, and cannot be made again: keep it where it is. Choose another directory for another one."
_DAMAGED = "Put it back from a backup, or from where it was made; keep this one until that is done."


def read_file(path: Path, what: str, *, advice: str = "Check the path.", most: int = MAX_FILE_BYTES) -> bytes:
    """Return the contents of a small regular file, of so many bytes at most.

    Args:
        what: names it for people.
        advice: how to come by it where there is none; no other fault is met with it, since a file that is there must not be
            lost for a mode or a typing error.
        most: bytes.

    Raises:
        ConfigurationError: missing, unreadable, not a regular file, empty or too large; names the file.
    """
    return _read(path, what, advice, most, private=False)


def stated_file(path: Path, what: str, stated: str, *, by: str, advice: str, most: int = MAX_FILE_BYTES) -> bytes:
    """As :func:`read_file`, of the one file whose SHA-256 ``by`` says that it is ``stated``, 64 hexadecimal digits.

    Raises:
        ConfigurationError: as there; or it is another file.
    """
    data = read_file(path, what, advice=advice, most=most)
    found = hashlib.sha256(data).hexdigest()
    if not hmac.compare_digest(found, stated.lower()):
        raise ConfigurationError(f"{path}: its SHA-256 is {found}; {by} {stated}.", advice)
    return data


def read_private(path: Path, what: str, *, advice: str = "Check the path.") -> bytes:
    """As :func:`read_file`, and refuse a file that is :func:`open_to_others`."""
    return _read(path, what, advice, MAX_FILE_BYTES, private=True)


def file_advice(path: Path, error: OSError) -> str:
    """What to do about a file that is there and cannot be read, by cause; nothing that loses it."""
    if isinstance(error, PermissionError):
        who = f"{_user_name(os.geteuid())}, who runs this,"
        return f"It may well be there: keep it, and let {who} read it, or run this as its owner. See: namei -l {path}"
    return "Keep what is there, and check path and disk."


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
        raise StateError(f"{path} already exists.", _EXISTS if mode & 0o077 else _KEY_EXISTS) from error
    except OSError as error:
        raise StateError(f"{path} {unwritable(error)}.", "Check the directory, its permissions and its space.") from error


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
        raise StateError(f"{path} {unwritable(error)}.", "Check the directory, its permissions and its space.") from error


def _read(path: Path, what: str, advice: str, most: int, *, private: bool) -> bytes:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # or a pipe waits
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigurationError(f"The {what} {path} is not a regular file.", f"Name a file; see: ls -l {path}")
            if private and open_to_others(status):
                raise ConfigurationError(f"The {what} {path} can be read by others.", f"Run: chmod 600 {path}")
            data = file.read(most + 1)
    except FileNotFoundError as error:
        raise ConfigurationError(f"The {what} {path} does not exist.", advice) from error
    except OSError as error:
        raise ConfigurationError(f"The {what} {path} {unreadable(error)}.", file_advice(path, error)) from error
    if not data:
        raise ConfigurationError(f"The {what} {path} is empty.", _DAMAGED)
    if len(data) > most:
        raise ConfigurationError(
            f"The {what} {path} is larger than {most:,} bytes.", "Check the path: another file was named."
        )
    return data


def _user_name(number: int) -> str:
    """The name of a user of this machine, or ``user 10001`` where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
