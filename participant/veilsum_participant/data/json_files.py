"""JSON files, which are tables of a query: a value a line, or one document. A file's name says which.

How a file of lines is written its name and its owner say, as of CSV: what begins it may be a record, and one record must not
decide how others are read. A document is one value; where nothing is declared, its own first bytes say it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from veilsum_participant.data.dialects import HEAD, compression_of, encoding_of
from veilsum_participant.data.formats import readable
from veilsum_participant.data.lines import MARK, Fault, as_text, open_text, texts
from veilsum_participant.data.objects import AnyFile, StoredFile, open_file, unchanged
from veilsum_participant.data.parquet_files import file_parts
from veilsum_participant.settings.forms import PLAIN, Dialect, compression_named, is_document

MAX_DOCUMENT = 1 << 28
"""Bytes of the longest document that is used; a longer one is taken for no JSON."""


def json_texts(path: Path, dialect: Dialect, left_out: Counter[Fault], seen: dict[Path, tuple[int, ...]]) -> Iterator[Any]:
    """The lines of a file or of a glob of several, in Arrow arrays of text, or their documents, one an array.

    Args:
        path: the files.
        dialect: as declared.
        left_out: counts lines that are too long.
        seen: the files that were read before, for :func:`.objects.unchanged`.

    Raises:
        DataError: the file does not exist, or it cannot be read.
    """
    for part in file_parts(path):
        with readable(path if isinstance(part, StoredFile) else part), unchanged(part, seen):
            own = _dialect(part, dialect)
            if is_document(path):
                with open_text(part, own) as file:
                    data = file.read(MAX_DOCUMENT + 1)
                document = as_text(data.removeprefix(MARK)) if len(data) <= MAX_DOCUMENT else ""
                yield pa.array([document], pa.large_string())
            else:
                yield from texts(part, own, left_out)


def has_key_twice(text: str) -> bool:
    """Whether an object in a text of JSON has one key twice."""
    found = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len(dict(pairs)) < len(pairs)

    with suppress(ValueError, RecursionError):  # what only DuckDB reads
        json.loads(text, object_pairs_hook=look, parse_int=len, parse_float=len)
    return found


_OPENINGS = {"utf-16-le": (b"{\0", b"[\0"), "utf-16-be": (b"\0{", b"\0[")}
"""What opens an object or a list, without a mark of the encoding before it."""


def _dialect(file: AnyFile, declared: Dialect) -> Dialect:
    """How a file of JSON is written."""
    name = Path(str(file))
    if not is_document(name):
        return replace(declared, compression=declared.compression or compression_named(name))
    return _recognised(file) if declared.encoding == PLAIN.encoding and not declared.compression else declared


def _recognised(file: AnyFile) -> Dialect:
    """How a document of JSON is written, by its first bytes."""
    with open_file(file) as raw:
        dialect = replace(PLAIN, compression=compression_of(raw.read(HEAD)))
    with open_text(file, dialect) as text:
        start = text.read(HEAD)
    encoding = encoding_of(start)
    if encoding in _OPENINGS and not any(opening in start for opening in _OPENINGS[encoding]):
        encoding = ""  # zeros between its lines, and no text of two bytes a character
    return replace(dialect, encoding=encoding or PLAIN.encoding)
