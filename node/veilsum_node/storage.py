"""What a party's state has and needs of a disk, and when it was last backed up: for its checks, its metrics and its pages.

The time of a backup lies in a file beside the state, which every backup of this program writes; a copy that is made in another
way leaves none.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from veilsum_node.errors import ConfigurationError, Damage
from veilsum_node.identity.files import replace_file

NEARLY_FULL, FULL = 1 << 30, 64 << 20
"""Bytes that are free on the state's file system below which an operator is warned, and below which a check fails: a study of
a million values writes 16 MB, and a backup that is verified beside the state needs the state's size again."""

OLD_BACKUP = 7 * 86400
"""Seconds after which a backup counts as old."""


@dataclass(frozen=True)
class Storage:
    """A state on its file system.

    Attributes:
        free: bytes that this user may still write there; 0 also where the folder is read-only or somebody else's.
        disk: bytes of the whole file system.
        state: bytes of the state, with the log of its database and what else lies in its folder if it is one.
        backed_up: Unix seconds of the last backup; None where none is known.
    """

    free: int
    disk: int
    state: int
    backed_up: int | None


def backup_record(state: Path) -> Path:
    """The file beside a state that says when it was last backed up."""
    return state.with_name(f"{state.name}.backup.json")


def record_backup(state: Path, made: int, head: str) -> None:
    """Remember that a state was backed up at ``made`` (Unix seconds) with a ledger that ended in ``head``.

    Raises:
        StateError: the file cannot be written.
    """
    replace_file(backup_record(state), json.dumps({"made": made, "head": head}).encode(), mode=0o600)


def last_backup(state: Path) -> int | None:
    """When a state was last backed up, Unix seconds; None where no backup is known."""
    try:
        made = json.loads(backup_record(state).read_bytes())["made"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return made if type(made) is int and made >= 0 else None


def look_at(state: Path, folder: Path | None = None) -> Storage:
    """What a state has and needs.

    Args:
        state: file of the database, which need not be there.
        folder: what belongs to the state beside it, such as a coordinator's results.

    Raises:
        ConfigurationError: the folder does not exist.
        Damage: the file system does not answer.
    """
    place = state.parent
    try:
        found = os.statvfs(place)
    except FileNotFoundError as error:
        raise ConfigurationError(f"The folder {place} does not exist.", "Make it, or mount what shall lie there.") from error
    except OSError as error:
        raise Damage(f"{place} cannot be looked at ({error.strerror}).", "Check the disk.") from error
    files = [state, *(state.with_name(state.name + suffix) for suffix in ("-wal", "-shm"))]
    size = sum(map(_size, files))
    if folder is not None:
        size += sum(_size(Path(root, name)) for root, _, names in os.walk(folder) for name in names)
    free = os.access(place, os.W_OK) * found.f_bavail * found.f_frsize
    return Storage(free, found.f_blocks * found.f_frsize, size, last_backup(state))


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # it went away meanwhile
        return 0
