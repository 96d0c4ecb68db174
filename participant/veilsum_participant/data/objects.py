"""Files in S3, or in a store that speaks its protocol, by Arrow's own client: Parquet as an object, all below a prefix, or a
glob; and CSV as an object.

Objects are listed, opened and read, never written. Which there are counts as structure, as the files of a folder do.
"""

from __future__ import annotations

import fnmatch
import io
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast
from urllib.parse import urlsplit

from veilsum_node.errors import ConfigurationError, DataError, Unavailable, raising
from veilsum_node.identity.files import read_file, read_private
from veilsum_participant.settings.query import Bucket

_FETCH = 1 << 22
"""Bytes of an object that are fetched at a time, where they are read in order."""

_CERTIFICATES = 1 << 24
"""Bytes of the largest file of certificates."""

LOGS = ("_delta_log", ".hoodie")
"""Folders beside the files of a table of Delta Lake, or of Hudi."""

_LOGGED = re.compile(r"(^|/)(_delta_log|\.hoodie)/|/metadata/[^/]*\.metadata\.json$")

_AWAY = ("NETWORK_CONNECTION", "SERVICE_UNAVAILABLE", "SLOW_DOWN", "THROTTLING", "INTERNAL_FAILURE", "REQUEST_TIMEOUT")
"""Words of the client for what passes by itself."""


@dataclass(frozen=True)
class StoredFile:
    """One object; opened as a file is."""

    bucket: Bucket
    key: str
    filesystem: Any = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"s3://{self.key}"

    def open(self) -> Any:
        """To read it from any place."""
        return self.filesystem.open_input_file(self.key)


AnyFile: TypeAlias = Path | StoredFile


def open_file(file: AnyFile) -> BinaryIO:
    """Open a file, or an object as one, to read its bytes from any place."""
    if isinstance(file, Path):
        return file.open("rb")
    return cast(BinaryIO, io.BufferedReader(file.open(), _FETCH))


@contextmanager
def unchanged(file: AnyFile, seen: dict[Path, tuple[int, ...]]) -> Iterator[None]:
    """Insist that a file on a disk is the one that was ``seen`` before, if it was, and is not written to while it is read.

    Raises:
        DataError: it is another, or was written to.
    """
    if not isinstance(file, Path):
        yield
        return
    with file.open("rb") as held:  # what is renamed over it meanwhile is not what is read
        before = seen.setdefault(file, state_of(held.fileno()))
        if before == state_of(held.fileno()):
            yield
        if before != state_of(held.fileno()):
            raise written_to(file)


def written_to(file: object) -> DataError:
    """The error where a file is another than a moment ago."""
    return DataError(f"{file}: was changed while it was read.", "Write it under another name, then rename it.")


def state_of(file: Path | int) -> tuple[int, ...]:
    """What tells a file, or an open one, from another, and from itself once it was written to."""
    found = os.stat(file)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def stored_files(bucket: Bucket) -> list[StoredFile]:
    """The objects that a URL means, in the order of their keys.

    Raises:
        DataError: there is none, or the store does not let this site list them.
        Unavailable: the store is away.
        ConfigurationError: its keys cannot be read.
    """
    from pyarrow import fs

    place = bucket.url.removeprefix("s3://").rstrip("/")
    filesystem = _filesystem(bucket)
    with reachable(bucket):
        if not any(letter in place for letter in "*?["):
            (info,) = filesystem.get_file_info([place])
            if info.type == fs.FileType.File:
                return [StoredFile(bucket, place, filesystem)]
            if bucket.csv:
                raise DataError(f"{bucket}: there is no such object.", "Check the URL.")
            pattern, base = f"{place}/*", place
        else:
            parts = place.split("/")
            fixed = next(index for index, part in enumerate(parts) if any(letter in part for letter in "*?["))
            pattern, base = place, "/".join(parts[:fixed])
        if not base:
            raise DataError(f"{bucket}: the bucket itself must be named.", "url = 's3://bucket/folder/*.parquet'")
        infos = filesystem.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
    keys = sorted(info.path for info in infos if info.type == fs.FileType.File)
    found = [key for key in keys if fnmatch.fnmatchcase(key, pattern) and key.lower().endswith((".parquet", ".pq"))]
    if not found:
        raise DataError(f"{bucket}: no Parquet object has such a name.", "Check the URL.")
    below = [key.removeprefix(base) for key in found] if pattern != place else ()
    check_whole(bucket, below, logged=any(map(_LOGGED.search, keys)))
    return [StoredFile(bucket, key, filesystem) for key in found]


def check_whole(label: object, names: Iterable[str], *, logged: bool) -> None:
    """Insist that files which were found together are all records, each once: other software leaves some aside.

    Args:
        label: of them, in messages.
        names: of those that no glob chose, from the folder on that they were found in.
        logged: whether a table's log lies beside them.

    Raises:
        DataError: that log says which of the files count; or what begins with . or _ is left of a broken write.
    """
    if logged:
        told = f"{label}: is a table of Delta Lake, Iceberg or Hudi, whose log says which of its files count."
        raise DataError(told, "Write what it holds now as Parquet elsewhere.")
    if any(part[:1] in (".", "_") for name in names for part in name.split("/")):
        told = f"{label}: holds Parquet in names that begin with . or _, as what a broken write leaves."
        raise DataError(told, "Move it away, or name the files by a glob.")


@contextmanager
def reachable(bucket: Bucket) -> Iterator[None]:
    """Tell a store that is away from one that refuses; no record has been read yet."""
    try:
        yield
    except OSError as error:
        if any(word in str(error) for word in _AWAY):
            raise Unavailable(
                f"{bucket}: the store cannot be reached.", "Check that it is there, and the endpoint."
            ) from error
        raise DataError(f"{bucket}: cannot be read.", "Check the URL, and what its keys may read.") from error


def _filesystem(bucket: Bucket) -> Any:
    from pyarrow import fs

    named: dict[str, Any] = {"region": bucket.region} if bucket.region else {}
    if bucket.endpoint:
        parts = urlsplit(bucket.endpoint)
        named |= {"scheme": parts.scheme, "endpoint_override": parts.netloc}
    if bucket.ca_file is not None:
        read_file(bucket.ca_file, "file of the store's certificates", advice="Check `ca_file`.", most=_CERTIFICATES)
        named["tls_ca_file_path"] = str(bucket.ca_file)
    if bucket.key_file is not None:
        with raising(ConfigurationError(f"The S3 key {bucket.key_file} is not ASCII text."), on=UnicodeDecodeError):
            words = read_private(bucket.key_file, "S3 key").decode("ascii").split()
        if len(words) not in (2, 3):
            advice = "One line each: the access key, the secret key, and a session token if there is one."
            raise ConfigurationError(f"The S3 key {bucket.key_file} does not hold two or three words.", advice)
        named |= dict(zip(("access_key", "secret_key", "session_token"), words, strict=False))
    return fs.S3FileSystem(**named)
