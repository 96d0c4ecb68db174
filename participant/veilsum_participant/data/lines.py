"""The lines of a CSV file, each read by itself: what one line holds cannot reach another line's record.

A record is one line, ended by LF, CR or CRLF; an empty line is none. Cells are separated by commas, or by what the file's
owner declares (:class:`veilsum_participant.settings.forms.Dialect`, as are its encoding and compression). A cell may stand in
quotation marks, but not reach beyond its line: where a quotation mark is left open, that line alone is not used. A quotation
mark in a cell that does not begin with one is a letter. A line that is not UTF-8 is Latin-1, which reads any bytes. A byte
order mark at the beginning of a line does not belong to it.

A parser gets a part of a file as it is, which nearly always comes to the same; where it does not, it gets it mended.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veilsum_node.errors import DataError
from veilsum_participant.data.objects import AnyFile, open_file
from veilsum_participant.settings.forms import PLAIN, Dialect

MAX_LINE = 1 << 24
"""Bytes of the longest line that is used. A record or a header beyond it is taken for no CSV."""

BATCH = 1 << 24
"""Bytes of lines that are read at a time."""

_READ = 1 << 18
MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8."""
_FIRST = re.compile(rb"(?:\xef\xbb\xbf|[\r\n])*+([^\r\n]*+)(?:\r\n?|\n)?")


class Fault(StrEnum):
    """Why a line does not make a record."""

    CELLS = "wrong number of cells"
    QUOTE = "quotation mark not closed"
    LENGTH = "line too long"


def split_line(line: bytes, delimiter: str = ",") -> list[bytes] | None:
    """The cells of one line; None where a quotation mark is not closed in it."""
    mark = re.escape(delimiter.encode())
    cell = re.compile(rb'(?:"((?:[^"]++|"")*+)"|(?!"))([^' + mark + rb"]*+)(" + mark + rb"|\Z)")
    cells = []
    place = 0
    while (match := cell.match(line, place)) is not None:
        quoted, rest, end = match.groups(b"")
        cells.append(quoted.replace(b'""', b'"') + rest)
        if not end:
            return cells
        place = match.end()
    return None


def as_text(data: bytes) -> str:
    """Bytes as UTF-8, or as Latin-1 where they are not."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


@contextmanager
def open_text(file: AnyFile, dialect: Dialect = PLAIN) -> Iterator[BinaryIO]:
    """Open a file of text, of which bytes in UTF-8 are read, or bytes as they stand where nothing else is declared.

    Raises:
        DataError: as the file is read: it is damaged, or not compressed so.
    """
    with open_file(file) as raw:
        if (dialect.compression, dialect.encoding) == (PLAIN.compression, PLAIN.encoding):
            yield raw
        else:
            data = (
                _unpacked(raw, str(file), dialect.compression) if dialect.compression else iter(lambda: raw.read(_READ), b"")
            )
            if dialect.encoding != PLAIN.encoding:  # bytes that encode no character become U+FFFD
                told = codecs.iterdecode(data, dialect.encoding, "replace")
                data = (text.encode(errors="replace") for text in told)
            yield cast(BinaryIO, io.BufferedReader(_Joined(data), _READ))


@dataclass
class _Joined(io.RawIOBase):
    """Parts of a file, of which none is empty, as a file."""

    parts: Iterator[bytes]
    left: bytes = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.left = self.left or next(self.parts, b"")
        taken, self.left = self.left[: len(buffer)], self.left[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def _unpacked(raw: BinaryIO, label: str, compression: str) -> Iterator[bytes]:
    """What a compressed file holds, in parts that are not empty."""
    try:
        if compression in _STREAMS:
            yield from filter(None, _streams(raw, _STREAMS[compression]))
        else:
            opened = gzip.GzipFile(fileobj=raw) if compression == "gzip" else pa.CompressedInputStream(raw, compression)
            yield from iter(lambda: opened.read(_READ), b"")
    except Exception as error:  # each library has its own
        message = f"{label}: is not compressed with {compression}, or not whole."
        raise DataError(message, "Correct `compression`, or the file.") from error


_STREAMS: dict[str, Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]] = {
    "bzip2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor,
}  # fmt: skip


def _streams(raw: BinaryIO, new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> Iterator[bytes]:
    """The streams of a file of bzip2 or xz, one after another. What else stands there but padding is a fault: the standard
    library's own readers end before it, and so before the records of a stream that is damaged where it begins.
    """
    stream, given = new(), b""
    while given or not (stream.eof or stream.needs_input) or (given := raw.read(_READ)):
        if stream.eof:
            if not (given := given.lstrip(b"\0")):
                continue
            stream = new()
        yield stream.decompress(given, _READ)
        given = stream.unused_data
    if not stream.eof:
        raise EOFError


def first_line(file: BinaryIO, label: object, delimiter: str = ",") -> tuple[list[str], bytes]:
    """The trimmed cells of the first line that is not empty, and what was read of an open file beyond it.

    Args:
        label: of the file, in messages.

    Raises:
        DataError: the file ends before that line, or it is too long or leaves a quotation mark open.
    """
    while data := file.readline(MAX_LINE + 1):
        found = _FIRST.match(data)
        if found is None or not found[1]:
            continue
        if found.end(1) == len(data) > MAX_LINE:
            raise DataError(f"{label}: its first line is longer than {MAX_LINE >> 20} MiB.", "Is it really a CSV file?")
        cells = split_line(found[1], delimiter)
        if cells is None:
            raise DataError(f"{label}: a quotation mark in its first line is not closed.", "Correct the column names.")
        return [as_text(cell).strip() for cell in cells], data[found.end() :]
    raise DataError(f"{label}: is empty.", "A CSV file's first line holds the names of its columns.")


def is_plain(block: bytes) -> bool:
    """Whether a parser may have a block as it is, if it then makes a record of each of its lines (:func:`count_lines`)."""
    with suppress(UnicodeDecodeError):
        block.decode()
        return len(block) <= MAX_LINE and (block.isascii() or MARK not in block)
    return False


def count_lines(block: bytes, delimiter: str) -> int:
    """How many records a parser makes of a block if it reads each line by itself.

    A quotation mark that is open takes in the next line, so that there are fewer; in the last line, it counts as one more.
    """
    end = len(block.rstrip(b"\r\n"))
    last = block[max(block.rfind(b"\n", 0, end), block.rfind(b"\r", 0, end)) + 1 : end]
    count = block.count(b"\n") + (end == len(block)) + (split_line(last, delimiter) is None)
    return count + block.count(b"\r") - block.count(b"\r\n") if b"\r" in block else count


def mended(block: bytes, delimiter: str, cells: int) -> tuple[Any, dict[int, Fault]]:
    """A block such that a parser reads each line by itself: in UTF-8, every quotation mark closed in its line.

    A line that cannot be used is replaced by one with a cell too many, so that the parser leaves it out and its count of
    lines stays right.

    Args:
        cells: of a record.

    Returns:
        The bytes, and what is wrong with which of the lines that are not empty, counted from 1.
    """
    bare = rf'(?:[^"{re.escape(delimiter)}][^{re.escape(delimiter)}]*)?'
    cell = rf'(?:"(?:[^"]|"")*")?{bare}'
    unusable = pa.scalar(delimiter.encode() * cells, pa.large_binary())
    lines = _split(block.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    lines = pc.replace_substring_regex(lines, f"^(?:{MARK.decode()})+", "")
    lines = lines.filter(pc.not_equal(lines, b""))
    long = pc.greater(pc.binary_length(lines), MAX_LINE)
    lines = pc.if_else(long, unusable, lines)
    closed = pc.match_substring_regex(lines, f"^{cell}(?:{re.escape(delimiter)}{cell})*$")
    lines = as_texts(pc.if_else(closed, lines, unusable))
    faults = {Fault.LENGTH: long, Fault.QUOTE: pc.invert(closed)}
    found = {row + 1: fault for fault, mask in faults.items() for row in pc.indices_nonzero(mask).to_pylist()}
    text = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), pa.scalar("\n", lines.type))[0].as_buffer()
    return text if text.size else b"\n", found  # no record, but a table, which no bytes at all are not


def blocks(file: BinaryIO, size: int, left: bytes = b"", *, returns: bool = True) -> Iterator[bytes]:
    """What is ``left`` and a file's bytes in blocks of whole lines, of ``size`` bytes if no line has more; of one that is too
    long, no more than shows that it is. LF ends a line, and what ``returns`` with or without it.
    """
    while data := file.read(size - len(left) % size):
        block = left + data
        end = block.rfind(b"\n") + 1
        if returns:
            end = max(end, block.rfind(b"\r", end, -1) + 1)  # the LF of a CR at the end may come yet
        if end:
            yield block[:end]
        left = block[end:]
        if len(left) > 2 * MAX_LINE:
            left = left[: 2 * MAX_LINE] + left[-1:]
    if left:
        yield left


def _split(block: bytes) -> Any:
    """The lines of a block that LF ends, as an Arrow array of bytes."""
    ends = pa.py_buffer(np.array([0, len(block) - block.endswith(b"\n")], np.int64))
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(block)])  # not copied
    return pc.split_pattern(whole, "\n").values


def texts(path: AnyFile, dialect: Dialect, left_out: Counter[Fault]) -> Iterator[Any]:
    """The lines of a file that LF ends, as Arrow arrays of text, some :data:`BATCH` bytes at a time.

    Those longer than :data:`MAX_LINE` are left out, and counted in ``left_out``.
    """
    with open_text(path, dialect) as file:
        for block in blocks(file, BATCH, returns=False):
            lines = _split(block)
            short = pc.less_equal(pc.binary_length(lines), MAX_LINE)
            left_out[Fault.LENGTH] += short.false_count
            yield as_texts(lines.filter(short), mark=MARK in block)


def as_texts(cells: Any, *, mark: bool = False) -> Any:
    """An Arrow array of bytes as one of large strings, each cell by itself as :func:`as_text` does, perhaps after a mark."""
    if not mark:
        with suppress(pa.ArrowInvalid):  # some cell is not UTF-8
            return cells.cast(pa.large_string())
    read = (None if cell is None else as_text(cell.removeprefix(MARK) if mark else cell) for cell in cells.to_pylist())
    return pa.array(read, pa.large_string())


def line_numbers(file: BinaryIO, rows: Collection[int], *, header: bool) -> dict[int, int]:
    """On which line of an open file each of some data rows stands; both are counted from 1, and empty lines are skipped."""
    wanted, found = set(rows), dict[int, int]()
    row, number = -int(header), 0
    for block in blocks(file, BATCH):
        for line in block.splitlines():
            number += 1
            if line.replace(MARK, b""):
                row += 1
                if row in wanted:
                    found[row] = number
        if len(found) == len(wanted):
            break
    return found
