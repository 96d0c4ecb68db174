"""Read npz archives of NumPy's arrays."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilsum_node.errors import DataError, Misuse, raising
from veilsum_participant.data import typed
from veilsum_participant.data.formats import readable
from veilsum_participant.data.objects import unchanged
from veilsum_participant.data.reader import FileReader, Found, RowRequest, SourcePart, check_held
from veilsum_participant.data.table import require_columns, wanted_columns
from veilsum_privacy.study.schema import DatasetSchema

_HEADERS = threading.Lock()
"""While numpy reads the headers of arrays: two threads that parse syntax at once can fail, before Python 3.11.8
(https://github.com/python/cpython/issues/106905)."""

_SHORT = 2**20  # bytes of an array


@dataclass
class NpzReader(FileReader):
    """Reads an npz archive of NumPy's arrays: one a column, or ``X`` with all features and ``y`` with the classes.

    Attributes:
        path: the archive.
        schema: whose columns those of ``X`` are, in order; without one nothing can be read.
        subject: a further column, which tells whose record each is.
    """

    path: Path
    schema: DatasetSchema | None
    subject: str | None

    def columns(self) -> list[str] | None:
        """None: they have no names but what a schema gives them."""
        with readable(self.path):
            return None

    def layout(self) -> list[Found]:
        """The names, types and shapes in the arrays' headers."""
        with readable(self.path):
            places, dtypes = self._places()
        fields = [pa.field(name, typed.arrow_type(dtypes[array])) for name, (array, _) in places.items()]
        return [Found(str(self.path), f"{self.path} has", pa.schema(fields))]

    def parts(self, asked: RowRequest) -> Iterator[SourcePart]:
        """See :meth:`OpenRows.parts`; all is one."""
        with readable(self.path), unchanged(self.path, self.seen):
            places = {name: place for name, place in self._places()[0].items() if name in asked.names}
            with _HEADERS, zipfile.ZipFile(self.path) as archive:
                members = {array: _member(archive, array) for array, _ in places.values()}
                check_held(self.path, sum(member.file_size for member in members.values()))
                arrays = {name: _array(archive, member) for name, member in members.items()}
            columns = {
                name: typed.from_numpy(arrays[array] if column is None else arrays[array][:, column])
                for name, (array, column) in places.items()
            }
            yield SourcePart(pa.table(columns))

    def _places(self) -> tuple[dict[str, tuple[str, int | None]], dict[str, np.dtype[Any]]]:
        """For each column to read the array that holds it, and which column of that one, None for all; and arrays' types."""
        path, schema = self.path, self.schema
        if schema is None:
            raise Misuse("An npz archive is read under a schema.")
        features = [column.source for column in schema.columns]
        wanted = wanted_columns(schema, self.subject)
        shapes, dtypes = _npz_headers(path, {*wanted, "X", "y"})
        places: dict[str, tuple[str, int | None]] = {name: (name, None) for name in shapes}
        if "X" in shapes and not all(name in shapes for name in features):
            if len(shapes["X"]) != 2 or shapes["X"][1] != len(features):
                shape = ", ".join(["n", *map(str, shapes["X"][1:])])
                raise DataError(
                    f"{path}: array 'X' has shape ({shape}), the schema has {len(features)} columns.",
                    "X needs one row for each record and one column for each column of the schema, in its order.",
                )
            places |= {name: ("X", index) for index, name in enumerate(features)}
            if schema.label is not None and "y" in shapes:
                places.setdefault(schema.label.column, ("y", None))
        require_columns(f"{path} has", wanted, list(places))
        places = {name: places[name] for name in wanted}
        flat = all(len(shapes[array]) == (1 if column is None else 2) for array, column in places.values())
        if not flat or len({shapes[array][0] for array, _ in places.values()}) != 1:
            raise DataError(
                f"{path}: its arrays are not all one-dimensional and equally long.", "Store one value for each record."
            )
        return places, dtypes


def _npz_headers(path: Path, names: set[str]) -> tuple[dict[str, tuple[int, ...]], dict[str, np.dtype[Any]]]:
    """Shapes and types of those arrays of an archive that have one of the names, from their headers alone."""
    shapes, dtypes = dict[str, tuple[int, ...]](), dict[str, np.dtype[Any]]()
    with path.open("rb") as file:  # by its path, a file that may not be read would only be "no archive"
        if not zipfile.is_zipfile(file):
            raise DataError(f"{path}: is not an npz archive.", "Save named arrays together, with numpy.savez.")
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            if name not in names:
                continue
            if name in shapes:
                raise DataError(f"{path}: array {name!r} occurs more than once.", "Rename or remove all but one.")
            with archive.open(member) as file:
                with raising(DataError(f"{path}: {name!r} is not an array.", "Write it with numpy.savez."), on=ValueError):
                    version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                with _HEADERS:
                    shapes[name], _, dtypes[name] = read(file)
    return shapes, dtypes


def _member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    return archive.getinfo(f"{name}.npy" if f"{name}.npy" in archive.NameToInfo else name)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """An array of an archive; a short one, of which there may be thousands, is decompressed before its header is read."""
    with BytesIO(archive.read(member)) if member.file_size <= _SHORT else archive.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array
