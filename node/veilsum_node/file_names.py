"""Names that come from somewhere else, and files that they become: the one place where such a name is made part of a path.

A name out of a result, a study or a peer's message is a text like any other. :func:`file_name` makes a name of it that is good
on every system that people unpack files on; :func:`write_files` writes below a folder, nowhere else, and over nothing.
"""

import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Collection, Mapping
from pathlib import Path

from veilsum_node.errors import HostileInput, StateError, Unavailable
from veilsum_node.phrases import unreadable, unwritable
from veilsum_node.whole_files import whole_file

MAX_NAME = 200
"""Characters of the longest name of a table."""

LONGEST = 120
"""UTF-8 bytes of a file's name that are made of a name, before its suffix; systems allow 255."""

_RESERVED = re.compile(r"(con|prn|aux|nul|clock\$|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(\.|$)", re.IGNORECASE)
"""Devices of Windows, which have these names in every folder and with every ending."""

_DRIVE = re.compile(r"[A-Za-z]:")
_UNWANTED = re.compile(r'[\s/\\:*?"<>|%$`~\'&;!#{}]|[^\w.,+=@()\[\] -]')
"""What a path, a shell or Windows reads as more than a letter."""

_PART = re.compile(r"[^/\\\x00-\x1f\x7f]{1,255}")


def is_name(text: object) -> bool:
    """Whether a text can name a table: 1 to 200 printable characters without a separator of paths, a drive before it, a space
    at an end or a dot at the beginning."""
    return (
        isinstance(text, str)
        and 0 < len(text) <= MAX_NAME
        and text.isprintable()
        and text == text.strip()
        and not text.startswith(".")
        and not set(text) & set("/\\")
        and _DRIVE.match(text) is None
    )


def file_name(name: str, suffix: str = "", *, taken: Collection[str] = ()) -> str:
    """The file that something of this name is written to: one part of a path, never a path, whatever the name is.

    Letters, digits and a few signs stay, everything else becomes a hyphen. No file is hidden, none is a device of Windows, and
    none is longer than :data:`LONGEST` bytes and the suffix. What is cut off is told apart by a digest.

    Args:
        name: any text.
        suffix: with its dot.
        taken: files that there are; the new one differs from each by more than capitals and composed letters, by a number.

    Returns:
        The file's name, NFC.
    """
    text = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode())
    stem = re.sub(r"-*\.\.+-*", "-", _UNWANTED.sub("-", text)).strip(" .-") or "unnamed"
    stem = f"_{stem}" if _RESERVED.match(stem) or stem[0] in "=+@" else stem
    if len(stem.encode()) > LONGEST:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        stem = f"{stem.encode()[: LONGEST - 17].decode(errors='ignore').rstrip(' .')}-{digest}"
    used, number, found = {_alike(other) for other in taken}, 1, f"{stem}{suffix}"
    while _alike(found) in used:
        number += 1
        found = f"{stem}-{number}{suffix}"
    return found


def write_files(
    directory: Path, files: Mapping[str, bytes], *, replace: bool = False, confidential: bool = False
) -> list[Path]:
    """Write files below a folder, which is made where there is none. Each appears whole or not at all.

    A file that is there already with the same content is left as it is. One with other content is an error before anything is
    written, unless ``replace`` is set. No symbolic link below the folder is followed: one in a file's place counts as another
    file, and one in a folder's place is an error.

    Args:
        directory: of the files; the caller's own choice, which may be a link.
        files: contents by name; a name may have one folder before it, ``proof/study.json``.
        replace: replace files that are there.
        confidential: only their owner can read them; otherwise everybody.

    Returns:
        The files' paths, in order.

    Raises:
        HostileInput: a name would lead out of the folder.
        StateError: another file is there.
        Unavailable: the folder cannot be written.
    """
    places = {name: _place(directory, name) for name in files}
    known = {name for name, place in places.items() if _holds(place, files[name])}
    others = [name for name, place in places.items() if name not in known and os.path.lexists(place)]
    for name in others:
        if places[name].is_dir() and not places[name].is_symlink():
            raise StateError(f"{places[name]} is a folder, not a file.", "Choose another directory.")
    if others and not replace:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise StateError(
            f"{places[others[0]]}{more} would be replaced.",
            "Choose another directory, move it away, or replace it: --force, in Python replace=True.",
        )
    for name, place in places.items():
        if name not in known:
            _write(directory, place, files[name], replace=replace, mode=0o600 if confidential else 0o644)
    return list(places.values())


def _alike(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _place(directory: Path, name: str) -> Path:
    parts = name.split("/")
    if len(parts) > 2 or not all(_PART.fullmatch(part) and part.strip(". ") and not _DRIVE.match(part) for part in parts):
        raise HostileInput(f"{name[:MAX_NAME]!r} names no file below {directory}.", "Do not trust whoever sent this name.")
    if len(parts) == 2 and (directory / parts[0]).is_symlink():
        raise StateError(f"{directory / parts[0]} leads out of {directory}.", "Choose another directory.")
    return directory.joinpath(*parts)


def _holds(place: Path, data: bytes) -> bool:
    """Whether a file is there that holds just this, and is not a link."""
    try:
        status = place.lstat()
        return stat.S_ISREG(status.st_mode) and status.st_size == len(data) and place.read_bytes() == data
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise Unavailable(f"{place} {unreadable(error)}.", "Check the directory and its permissions.") from error


def _write(directory: Path, place: Path, data: bytes, *, replace: bool, mode: int) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if place.parent != directory:
            place.parent.mkdir(exist_ok=True)
            _place(directory, place.relative_to(directory).as_posix())  # nobody put a link there meanwhile
        with whole_file(place, mode=mode, replace=replace) as file:
            file.write(data)
    except FileExistsError as error:
        raise StateError(f"{place} is there already.", "Choose another directory.") from error
    except OSError as error:
        raise Unavailable(f"{place} {unwritable(error)}.", "Check path, permissions and space.") from error
