"""The lines of a CSV file, each read by itself: what one line holds cannot reach another line's record.

A record is one line, ended by LF, CR or CRLF; an empty line is none. Cells are separated by commas. A cell may stand in
quotation marks, but not reach beyond its line: where a quotation mark is left open, that line alone is not used. A quotation
mark in a cell that does not begin with one is a letter. A line that is not UTF-8 is Latin-1, which reads any bytes. A byte
order mark at the beginning of a line is no part of it.

A parser gets a file as it is where that comes to the same, which is nearly always; else, it gets it mended.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import BinaryIO

import numpy as np

from veilsum_node.errors import DataError
from veilsum_participant.data.json_files import opened
from veilsum_participant.data.objects import AnyFile, open_file

MAX_LINE = 1 << 24
"""Bytes of the longest line that is used. A record or a header beyond it is taken for no CSV."""

BATCH = 1 << 24
"""Bytes of lines that are read at a time."""

_READ = 1 << 18  # what is looked at again and again stays in the processor's cache
_MARK = b"\xef\xbb\xbf"
_LINE = re.compile(rb"[^\r\n]*+")
_CELL = re.compile(rb'(?:"((?:[^"]++|"")*+)"|(?!"))([^,]*+)(,|\Z)')
_ENDS = np.isin(np.arange(256), list(b"\n\r"))
_OPENS = np.isin(np.arange(256), list(b'\n\r,"'))


class Fault(StrEnum):
    """Why a line is no record."""

    CELLS = "wrong number of cells"
    QUOTE = "quotation mark not closed"
    LENGTH = "line too long"


def split_line(line: bytes) -> list[bytes] | None:
    """The cells of one line; None where a quotation mark is not closed in it."""
    cells = []
    place = 0
    while (match := _CELL.match(line, place)) is not None:
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


def read_header(path: AnyFile) -> tuple[list[str], int]:
    """The trimmed names in a CSV file's first line that is not empty, and the place of the byte after it; no more is read.

    Raises:
        DataError: there is no such line, or it is too long or leaves a quotation mark open.
    """
    with open_file(path) as file:
        place = file.seek(first_byte(path))
        while data := file.readline(MAX_LINE + 1):
            text = data.lstrip(b"\r\n")
            place += len(data) - len(text)
            if not text:
                continue
            line = _LINE.match(text)[0]  # type: ignore[index]  # it matches anything
            if len(line) > MAX_LINE:
                raise DataError(f"{path}: its first line is longer than {MAX_LINE >> 20} MiB.", "Is it really a CSV file?")
            cells = split_line(line)
            if cells is None:
                raise DataError(f"{path}: a quotation mark in its first line is not closed.", "Correct the column names.")
            return [as_text(cell).strip() for cell in cells], place + len(line)
    raise DataError(f"{path}: is empty.", "A CSV file's first line holds the names of its columns.")


def first_byte(path: AnyFile) -> int:
    """Where the first line of a CSV file begins: after a byte order mark."""
    with open_file(path) as file:
        return len(_MARK) if file.read(len(_MARK)) == _MARK else 0


def mended(path: AnyFile, start: int, cells: int) -> tuple[bytes | None, dict[int, Fault]]:
    """Make a CSV file's records, from the byte ``start`` on, such that a parser reads each line by itself.

    A line that cannot be used is replaced by one with a cell too many, so that the parser leaves it out and its count of lines
    stays right.

    Returns:
        UTF-8 in which every quotation mark is closed in its line, None where the file is so already; and what is wrong with
        which of the lines that are not empty, counted from 1.
    """
    empty = b"\n"  # no record, but a table, which no bytes at all are not
    with open_file(path) as file:
        file.seek(start)
        plain = [_plain(block) for block in _blocks(file)]
        if all(plain):
            return (None if plain else empty), {}
        file.seek(start)
        parts = [empty]
        faults: dict[int, Fault] = {}
        row = 0
        for block, is_plain in zip(_blocks(file), plain, strict=True):
            for line in () if is_plain else _lines(block):
                row += 1
                record = _record(line)
                if isinstance(record, Fault):
                    faults[row] = record
                    record = b"," * cells
                parts += (record, b"\n")
            if is_plain:
                row += sum(map(bool, block.splitlines()))
                parts += (block, b"\n")
    return b"".join(parts), faults


def mended_parts(path: AnyFile, start: int, cells: int, size: int) -> Iterator[bytes]:
    """The same records in parts of whole lines, of about ``size`` bytes; there is one part at least."""
    parts, length = [b"\n"], 0
    with open_file(path) as file:
        file.seek(start)
        for block in _blocks(file):
            is_plain = _plain(block)
            for line in (block,) if is_plain else _lines(block):
                record = block if is_plain else _record(line)
                parts += (b"," * cells if isinstance(record, Fault) else record, b"\n")
            length += len(block)
            if length >= size:
                yield b"".join(parts)
                parts, length = [b"\n"], 0
    yield b"".join(parts)


def texts(path: AnyFile, left_out: Counter[Fault] | None = None) -> Iterator[list[str]]:
    """The lines of a file of JSON that LF ends, some :data:`BATCH` bytes at a time.

    Those longer than :data:`MAX_LINE` are left out, and counted in ``left_out``.
    """
    found: list[str] = []
    length = 0
    with opened(path) as file:
        while line := file.readline(MAX_LINE + 1):
            if len(line) > MAX_LINE and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE)
                if left_out is not None:
                    left_out[Fault.LENGTH] += 1
                continue
            found.append(as_text(line.removesuffix(b"\n").removeprefix(_MARK)))
            length += len(line)
            if length >= BATCH:
                yield found
                found, length = [], 0
    yield found


def line_numbers(path: AnyFile, rows: Collection[int], *, header: bool) -> dict[int, int]:
    """On which line of a CSV file each of some data rows stands; both are counted from 1, and empty lines are no rows."""
    wanted, found = set(rows), dict[int, int]()
    row, number = -int(header), 0
    with open_file(path) as file:
        for block in _blocks(file):
            for line in block.splitlines():
                number += 1
                if _bare(line):
                    row += 1
                    if row in wanted:
                        found[row] = number
            if len(found) == len(wanted):
                break
    return found


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """The rest of a file in blocks of whole lines; of a line that is too long, no more than shows that it is."""
    rest = bytearray()
    while data := file.read(_READ):
        if data.endswith(b"\r") and (after := file.read(1)):
            if after == b"\n":
                data += after
            else:
                file.seek(-1, os.SEEK_CUR)
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end:
            yield bytes(rest) + data[:end]
            rest = bytearray(data[end:])
        elif len(rest) <= MAX_LINE:
            rest += data
    if rest:
        yield bytes(rest)


def _lines(block: bytes) -> Iterator[bytes]:
    """The lines of a block that are not empty."""
    return filter(None, map(_bare, block.splitlines()))


def _bare(line: bytes) -> bytes:
    while line.startswith(_MARK):
        line = line.removeprefix(_MARK)
    return line


def _record(line: bytes) -> bytes | Fault:
    """A line as a parser may have it, or why it may not."""
    if len(line) > MAX_LINE:
        return Fault.LENGTH
    if b'"' in line and split_line(line) is None:
        return Fault.QUOTE
    return as_text(line).encode()


def _plain(block: bytes) -> bool:
    """Whether every line of a block is a record as it stands; if it is False, each has to be looked at."""
    if not block.isascii():
        if any(start + _MARK in block for start in (b"\n", b"\r")) or block.startswith(_MARK):
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
    return b'"' not in block or _closed(block)


def _closed(block: bytes) -> bool:
    """Whether each line has an even number of quotation marks, every other of which begins a cell or follows a mark.

    Then each of these opens a quoted part, or is the second of a pair within one, and the mark after it ends that part or is
    the first of such a pair; so nothing is open where a line ends.
    """
    data = np.frombuffer(block, np.uint8)
    marks = np.flatnonzero(data == ord('"'))
    ends = np.flatnonzero(data <= ord("\r"))
    ends = ends[_ENDS[data[ends]]]
    if len(marks) % 2 or (np.searchsorted(marks, ends) & 1).any():
        return False
    opening = marks[2 * (marks[0] == 0) :: 2]
    return bool(_OPENS[data[opening - 1]].all())
