"""Read CSV files: each line by itself, as text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pacsv

from veilsum_node.errors import DataError
from veilsum_participant.data import lines
from veilsum_participant.data.dialects import HEAD, advice
from veilsum_participant.data.formats import readable
from veilsum_participant.data.lines import BATCH, Fault, open_text
from veilsum_participant.data.objects import AnyFile, open_file, stored_files, unchanged
from veilsum_participant.data.reader import FileReader, Found, RowRequest, SourcePart
from veilsum_participant.settings.forms import PLAIN, Dialect
from veilsum_participant.settings.query import Bucket

_BLOCK = 1 << 26
"""Bytes that are parsed at a time; any part is shorter, as Latin-1 too."""

_FIRST_LINE = "If its first line holds a record, state header = false, here and in the schema."


@dataclass
class CsvReader(FileReader):
    """Reads a CSV file, whose columns are texts.

    Attributes:
        file: the file.
        names: of its columns, in order; None where its first line names them.
        dialect: how it is written.
    """

    file: Path | Bucket
    names: Sequence[str] | None = None
    dialect: Dialect = PLAIN

    def layout(self) -> list[Found]:
        """The names of all its columns; without a header line nothing but that the file is there."""
        what = "its first line" if self.names is None else "the order of the schema"
        with readable(self.file), open_text(self._stored(), self.dialect) as file:
            try:
                names, _ = self._columns(file)
            except DataError as error:
                raise DataError(error.message, self.declared() or error.advice) from None
        fields = pa.schema([(name, pa.large_string()) for name in names])
        return [Found(str(self.file), f"{self.file}: {what} names", fields, self._advice)]

    def _advice(self) -> str:
        return "" if self.names is not None else self.declared() or _FIRST_LINE

    def declared(self) -> str:
        with readable(self.file):
            with open_file(self._stored()) as raw:
                head = raw.read(HEAD)
            with open_text(self._stored(), self.dialect) as file:
                return advice(head, file.readline(HEAD), self.dialect)

    def columns(self) -> list[str] | None:
        """See :meth:`Reader.columns`.

        Raises:
            DataError: as there; or a column stands twice.
        """
        names = super().columns() or []
        if len(set(names)) < len(names):
            raise DataError(
                f"{self.file}: two cells of its first line, which names the columns, are alike.", "Rename or remove one."
            )
        return names

    def parts(self, asked: RowRequest) -> Iterator[SourcePart]:
        with readable(self.file), unchanged(self._stored(), self.seen), open_text(self._stored(), self.dialect) as file:
            every, left = self._columns(file)
            place = records = 0
            block = b""
            for block in lines.blocks(file, BATCH, left):
                table, broken = self._parsed(block, every, asked.names)
                yield SourcePart(table, place, {records + row: fault for row, fault in broken.items()})
                place += table.num_rows
                records += table.num_rows + len(broken)
            if not block:
                yield SourcePart(self._parsed(block, every, asked.names)[0])

    def lines(self, numbers: Collection[int]) -> dict[int, int]:
        with readable(self.file), open_text(self._stored(), self.dialect) as file:
            return lines.line_numbers(file, numbers, header=self.names is None)

    def _stored(self) -> AnyFile:
        return stored_files(self.file)[0] if isinstance(self.file, Bucket) else self.file

    def _columns(self, file: BinaryIO) -> tuple[list[str], bytes]:
        """The names of the columns, and what was read beyond them."""
        return lines.first_line(file, self.file, self.dialect.delimiter) if self.names is None else (list(self.names), b"")

    def _parsed(self, block: bytes, every: list[str], names: Sequence[str]) -> tuple[Any, dict[int, Fault]]:
        """The columns wanted of a block, and which lines do not make records."""
        places = [str(every.index(name)) for name in names]
        broken: dict[int, Fault] = {}
        text, faults = block, dict[int, Fault]()

        def skip(row: Any) -> str:
            broken[row.number] = faults.get(row.number, Fault.CELLS)
            return "skip"

        read = pacsv.ReadOptions(column_names=[str(place) for place in range(len(every))], block_size=_BLOCK)
        parse = pacsv.ParseOptions(delimiter=self.dialect.delimiter, newlines_in_values=False)
        convert = pacsv.ConvertOptions(
            column_types=dict.fromkeys(places, pa.large_string()), include_columns=places, strings_can_be_null=False
        )
        plain = lines.is_plain(block)
        if not plain:
            text, faults = lines.mended(block, parse.delimiter, len(every))
        # Arrow's threads get nothing of Python's: one that lets go of it while the interpreter ends aborts the process
        try:
            table = pacsv.read_csv(pa.BufferReader(text), read_options=read, parse_options=parse, convert_options=convert)
            if plain and b'"' in block and table.num_rows != lines.count_lines(block, parse.delimiter):
                raise pa.ArrowInvalid
        except pa.ArrowInvalid:  # a row has too few or too many cells, or a quotation mark is open
            if plain:
                text, faults = lines.mended(block, parse.delimiter, len(every))
            read.use_threads = False  # one thread numbers the rows as well
            parse.invalid_row_handler = skip
            table = pacsv.read_csv(pa.BufferReader(text), read_options=read, parse_options=parse, convert_options=convert)
        return table.rename_columns(list(names)), broken
