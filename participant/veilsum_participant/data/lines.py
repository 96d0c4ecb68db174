"""The lines of a CSV file, each read by itself: what one line holds cannot reach another line's record.

A record is one line, ended by LF, CR or CRLF; an empty line is none. Cells are separated by commas, or by what the file's
owner declares (:class:`veilsum_participant.settings.forms.Dialect`, as are its encoding and compression). A cell may stand in
quotation marks, but not reach beyond its line: where a quotation mark is left open, that line alone is not used. A quotation
mark in a cell that does not begin with one is a letter. A line that is not UTF-8 is Latin-1, which reads any bytes. A byte
order mark at the beginning of a line does not belong to it.

A parser gets a file as it is where that comes to the same, which is nearly always; else, it gets it mended.
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
from itertools import chain
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

_READ = 1 << 18  # what is looked at again and again stays in the processor's cache
MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8."""
_LINE = re.compile(rb"[^\r\n]*+")
_ENDS = np.isin(np.arange(256), list(b"\n\r"))


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


class Lines:
    """The lines of an open file of text, from its first on."""

    def __init__(self, file: BinaryIO, delimiter: str = ",") -> None:
        self._file, self._delimiter, self._left = file, delimiter, b""

    def names(self, label: object) -> list[str]:
        """The trimmed cells of the first line that is not empty; no more is taken.

        Args:
            label: of the file, in messages.

        Raises:
            DataError: the file ends before that line, or it is too long or leaves a quotation mark open.
        """
        while data := self._file.readline(MAX_LINE + 1):
            text = _bare(data).lstrip(b"\r\n")
            if not text:
                continue
            line = _LINE.match(text)[0]  # type: ignore[index]  # it matches anything
            if len(line) > MAX_LINE:
                raise DataError(f"{label}: its first line is longer than {MAX_LINE >> 20} MiB.", "Is it really a CSV file?")
            cells = split_line(line, self._delimiter)
            if cells is None:
                raise DataError(f"{label}: a quotation mark in its first line is not closed.", "Correct the column names.")
            self._left = text[len(line) :]
            return [as_text(cell).strip() for cell in cells]
        raise DataError(f"{label}: is empty.", "A CSV file's first line holds the names of its columns.")

    def parts(self, cells: int, size: int) -> Iterator[tuple[bytes, dict[int, Fault]]]:
        """The records such that a parser reads each line by itself, in parts of whole lines of about ``size`` bytes, one at
        least.

        A line that cannot be used is replaced by one with a cell too many, so that the parser leaves it out and its count of
        lines stays right.

        Args:
            cells: of a record.
            size: of a part.

        Yields:
            UTF-8 in which every quotation mark is closed in its line; and what is wrong with which of a part's lines that are
            not empty, counted from 1.
        """
        unusable, closed = self._delimiter.encode() * cells, _Closed(self._delimiter)
        parts, length = [b"\n"], 0  # no record, but a table, which no bytes at all are not
        faults: dict[int, Fault] = {}
        row, uncounted = 0, list[bytes]()
        for block in self.blocks():
            if closed(block):
                uncounted.append(block)
                parts += (block, b"\n")
            else:
                row += sum(1 for before in uncounted for _ in _lines(before))
                uncounted.clear()
                for line in _lines(block):
                    row += 1
                    record = self._record(line)
                    if isinstance(record, Fault):
                        faults[row] = record
                        record = unusable
                    parts += (record, b"\n")
            length += len(block)
            if length >= size:
                yield b"".join(parts), faults
                parts, length, faults, row = [b"\n"], 0, {}, 0
                uncounted.clear()
        yield b"".join(parts), faults

    def _record(self, line: bytes) -> bytes | Fault:
        """A line as a parser may have it, or why it may not."""
        if len(line) > MAX_LINE:
            return Fault.LENGTH
        if b'"' in line and split_line(line, self._delimiter) is None:
            return Fault.QUOTE
        return as_text(line).encode()

    def blocks(self) -> Iterator[bytes]:
        """What is left in blocks of whole lines; of a line that is too long, no more than shows that it is."""
        rest = bytearray()
        for data in filter(None, chain([self._left], iter(lambda: self._file.read(_READ), b""))):
            if rest.endswith(b"\r") and not data.startswith(b"\n"):
                yield bytes(rest)
                rest.clear()
            end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1  # the LF of a CR at the end may come yet
            if end:
                yield bytes(rest) + data[:end]
                rest = bytearray(data[end:])
            elif len(rest) <= MAX_LINE:
                rest += data
            elif data.endswith(b"\r"):
                rest += b"\r"
        if rest:
            yield bytes(rest)


def texts(path: AnyFile, dialect: Dialect, left_out: Counter[Fault]) -> Iterator[Any]:
    """The lines of a file that LF ends, as Arrow arrays of text, some :data:`BATCH` bytes at a time.

    Those longer than :data:`MAX_LINE` are left out, and counted in ``left_out``.
    """
    rest = b""
    with open_text(path, dialect) as file:
        for data in chain(iter(lambda: file.read(BATCH), b""), [b"\n"]):
            block = rest + data if rest else data
            end = block.rfind(b"\n")
            rest = block[end + 1 :][: MAX_LINE + 1]  # no more of a line than shows that it is too long
            if end < 0:
                continue
            ends = pa.py_buffer(np.array([0, end], np.int64))
            whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(block)])  # not copied
            lines = pc.split_pattern(whole, "\n").values
            short = pc.less_equal(pc.binary_length(lines), MAX_LINE)
            if short.false_count:
                lines = lines.filter(short)
                left_out[Fault.LENGTH] += short.false_count
            yield as_texts(lines, mark=MARK in block)


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
    for block in Lines(file).blocks():
        for line in block.splitlines():
            number += 1
            if _bare(line):
                row += 1
                if row in wanted:
                    found[row] = number
        if len(found) == len(wanted):
            break
    return found


def _lines(block: bytes) -> Iterator[bytes]:
    """The lines of a block that are not empty."""
    return filter(None, map(_bare, block.splitlines()))


def _bare(line: bytes) -> bytes:
    while line.startswith(MARK):
        line = line.removeprefix(MARK)
    return line


class _Closed:
    """Tells whether every line of a block is a record as it stands; if not, each has to be looked at."""

    def __init__(self, delimiter: str) -> None:
        self._opens = np.isin(np.arange(256), list(b'\n\r"' + delimiter.encode()))

    def __call__(self, block: bytes) -> bool:
        if not block.isascii():
            if any(start + MARK in block for start in (b"\n", b"\r")) or block.startswith(MARK):
                return False
            try:
                block.decode()
            except UnicodeDecodeError:
                return False
        start = 0
        while len(block) - start > MAX_LINE:
            end = max(block.rfind(end, start, start + MAX_LINE + 1) for end in (b"\n", b"\r"))
            if end < 0:
                return False
            start = end + 1
        return b'"' not in block or self._quotes(block)

    def _quotes(self, block: bytes) -> bool:
        """Whether each line has an even number of quotation marks, every other of which begins a cell or follows a mark.

        Then each of these opens a quoted part, or is the second of a pair within one, and the mark after it ends that part or
        is the first of such a pair; so nothing is open where a line ends.
        """
        data = np.frombuffer(block, np.uint8)
        marks = np.flatnonzero(data == ord('"'))
        ends = np.flatnonzero(data <= ord("\r"))
        ends = ends[_ENDS[data[ends]]]
        if len(marks) % 2 or (np.searchsorted(marks, ends) & 1).any():
            return False
        opening = marks[2 * (marks[0] == 0) :: 2]
        return bool(self._opens[data[opening - 1]].all())
