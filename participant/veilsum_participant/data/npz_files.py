"""Read npz archives of numpy arrays. What libraries raise :mod:`.readers` makes a :class:`DataError`."""

from __future__ import annotations

import threading
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_node.errors import DataError
from veilsum_participant.data import typed
from veilsum_participant.data.table import Table, check_texts, require_columns, typed_table, unreadable_column, wanted_columns
from veilsum_privacy.study.schema import DatasetSchema

_HEADERS = threading.Lock()
"""While numpy reads the headers of arrays: two threads that parse syntax at once can fail, before Python 3.11.8
(https://github.com/python/cpython/issues/106905)."""


_SHORT = 2**20  # bytes of an array


def npz_layout(path: Path, schema: DatasetSchema, subject: str | None) -> dict[str, tuple[str, int | None]]:
    """For each column to read: the array of an npz archive that holds it, and which column of that one, None for all of it."""
    features = [column.source for column in schema.columns]
    wanted = wanted_columns(schema, subject)
    shapes, dtypes = _npz_headers(path, {*wanted, "X", "y"})
    layout: dict[str, tuple[str, int | None]] = {name: (name, None) for name in shapes}
    if "X" in shapes and not all(name in shapes for name in features):
        if len(shapes["X"]) != 2 or shapes["X"][1] != len(features):
            shape = ", ".join(["n", *map(str, shapes["X"][1:])])
            raise DataError(
                f"{path}: array 'X' has shape ({shape}), the schema has {len(features)} columns.",
                "X needs one row for each record and one column for each column of the schema, in its order.",
            )
        layout |= {name: ("X", index) for index, name in enumerate(features)}
        if schema.label is not None and "y" in shapes:
            layout.setdefault(schema.label.column, ("y", None))
    require_columns(f"{path} has", wanted, list(layout))
    layout = {name: layout[name] for name in wanted}
    for name, (array, _) in layout.items():
        if not typed.readable_dtype(dtypes[array]):
            raise unreadable_column(path, name, dtypes[array], subject)
        check_texts(path, name, typed.arrow_type(dtypes[array]), schema)
    flat = all(len(shapes[array]) == (1 if column is None else 2) for array, column in layout.values())
    if not flat or len({shapes[array][0] for array, _ in layout.values()}) != 1:
        raise DataError(
            f"{path}: its arrays are not all one-dimensional and equally long.", "Store one value for each record."
        )
    return layout


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
                try:
                    version = np.lib.format.read_magic(file)
                except ValueError as error:
                    raise DataError(f"{path}: {name!r} is not an array.", "Write it with numpy.savez.") from error
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                with _HEADERS:
                    shapes[name], _, dtypes[name] = read(file)
    return shapes, dtypes


def read_npz(path: Path, schema: DatasetSchema, subject: str | None) -> Table:
    """See :func:`.readers.read_table`."""
    layout = npz_layout(path, schema, subject)
    with _HEADERS, zipfile.ZipFile(path) as archive:
        arrays = {name: _array(archive, name) for name in {array for array, _ in layout.values()}}
    columns = {
        name: typed.from_numpy(arrays[array] if column is None else arrays[array][:, column])
        for name, (array, column) in layout.items()
    }
    return typed_table(path, schema, subject, columns, len(columns[schema.file_columns[0]]))


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of an archive; a short one, of which there may be thousands, is decompressed before its header is read."""
    member = archive.getinfo(f"{name}.npy" if f"{name}.npy" in archive.NameToInfo else name)
    with BytesIO(archive.read(member)) if member.file_size <= _SHORT else archive.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array
