"""JSON files, which are tables of a query: a value a line, or one document. A file's name says which.

Any of them may be compressed by gzip, or in UTF-16 with its byte order mark: its first bytes say so, and begin no JSON.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from veilsum_participant.data.objects import AnyFile, open_file

MAX_DOCUMENT = 1 << 28
"""Bytes of the longest document that is used; a longer one is taken for no JSON."""

_GZIP = b"\x1f\x8b"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_UTF_8 = b"\xef\xbb\xbf"


def is_json(path: Path) -> bool:
    """Whether a file of a name, or a glob of several, holds JSON."""
    return is_document(path) or _suffix(path) in (".ndjson", ".jsonl")


def is_document(path: Path) -> bool:
    """Whether a file holds one JSON document, in any number of lines."""
    return _suffix(path) == ".json"


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


@contextmanager
def opened(path: AnyFile) -> Iterator[BinaryIO]:
    """A file's content without compression, and as UTF-8 where its first bytes say that it is UTF-16.

    Raises:
        OSError, EOFError, zlib.error: it cannot be read, or the compressed file is damaged.
    """
    with open_file(path) as raw:
        packed = _begins(raw, _GZIP)
        file = cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=raw))) if packed else raw
        yield cast(BinaryIO, _Recoded(file)) if _begins(file, *_UTF_16) else file


def _begins(file: BinaryIO, *marks: bytes) -> bool:
    start = file.read(2)
    file.seek(0)
    return start in marks


class _Recoded:
    """UTF-16 read as UTF-8. What is no character of it is replaced."""

    def __init__(self, file: BinaryIO) -> None:
        self._text = io.TextIOWrapper(file, "utf-16", "replace", newline="\n")

    def readline(self, size: int = -1) -> bytes:
        """A line, or so many characters of it."""
        return self._text.readline(size).encode()

    def read(self, size: int = -1) -> bytes:
        """So many characters."""
        return self._text.read(size).encode()


def document(path: AnyFile) -> bytes:
    """The document in a file, without a byte order mark; empty where it is longer than :data:`MAX_DOCUMENT`.

    Raises:
        OSError, EOFError, zlib.error: as :func:`opened`.
    """
    with opened(path) as file:
        data = file.read(MAX_DOCUMENT + 1)
    return data.removeprefix(_UTF_8) if len(data) <= MAX_DOCUMENT else b""
