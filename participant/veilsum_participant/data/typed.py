"""Bring typed columns of files and queries to text or float64, each cell by itself; dates to ISO 8601.

A number is what its shortest text says: 999.9 in four bytes is 999.9, and no number close to it.

Whether a column can be read is a matter of its type alone. Nothing here raises because of what a cell holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veilsum_participant.data import spellings
from veilsum_participant.data.lines import as_texts
from veilsum_participant.data.spellings import exact

_COMMA = r"^[+-]?([0-9]+,[0-9]*|,[0-9]+)([eE][+-]?[0-9]+)?$"
_POINT = r"^[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_TEXTS = ("string", "large_string", "binary", "large_binary")
_FIRST, _END = -62_135_596_800, 253_402_300_800
"""Seconds from 1970 to the beginning of the year 1 and to the end of the year 9999."""


def plain(kind: Any) -> Any:
    """What a column of an Arrow type holds: of a dictionary its values, of an extension of texts the texts, UUIDs as texts."""
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        # JSON, and PostgreSQL's NUMERIC
        texts = _is(kind.storage_type, "string", "large_string") or isinstance(kind, pa.UuidType)
        return pa.large_string() if texts else kind
    if pa.types.is_timestamp(kind) and (kind.tz or "").startswith(("GMT+", "GMT-")):  # as DuckDB calls an offset
        return pa.timestamp(kind.unit, kind.tz[3:])
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_float16(kind):
        return pa.float32()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def readable(kind: Any) -> bool:
    """Whether a column of an Arrow type holds numbers or texts."""
    return _is(plain(kind), "integer", "floating", "decimal", "boolean", "null", *_TEXTS)


def is_date(kind: Any) -> bool:
    """Whether a column of an Arrow type holds days, or times of days, in a zone that this machine knows."""
    kind = plain(kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            pc.strftime(pa.array([0], kind))
        except pa.ArrowInvalid:
            return False
    return _is(kind, "date", "timestamp")


def arrow_type(dtype: np.dtype[Any]) -> Any:
    """What :func:`from_numpy` makes of a type of NumPy's; of one that holds neither numbers nor texts one that says so."""
    if dtype.kind not in "biufSU":
        return pa.opaque(pa.null(), dtype.name, "NumPy")
    texts = {"U": pa.large_string(), "S": pa.large_binary(), "f": pa.float64() if dtype.itemsize > 8 else None}
    return texts.get(dtype.kind) or pa.from_numpy_dtype(dtype.newbyteorder("="))


def values(column: Any, decimal: str = ".", missing: Sequence[str] = ()) -> Any:
    """A chunked column as one array of float64, or of trimmed text; null where a cell is.

    Args:
        column: of one Arrow type.
        decimal: the mark before the decimal places of numbers in text; where it is a comma, those of the result have a point.
        missing: trimmed texts that stand for no value, and so for no number.
    """
    found = []
    for chunk in _plain(column):
        held = chunk
        if is_text(chunk.type):
            held = chunk if decimal == "." else _with_points(chunk, missing)
        elif is_date(chunk.type):
            held = _days(chunk)
        else:
            if pa.types.is_boolean(chunk.type):
                held = pc.cast(chunk, pa.int8())
            elif pa.types.is_decimal(chunk.type) or chunk.type == pa.float32():
                held = pc.cast(chunk, pa.large_string())
            held = pc.cast(held, pa.float64(), safe=False)
        found.append(held)
    return joined(found)


def texts(column: Any, known: Sequence[tuple[str, int]]) -> Any:
    """A chunked column as one array of trimmed text; what is stored as another type as the ``known`` text that it stands for.

    Args:
        column: of one Arrow type.
        known: the texts that a schema names, with their codes.
    """
    kind = plain(column.type)
    meant = {} if is_text(kind) else spellings.stored(known, kind)
    return joined([_texts(chunk, meant) for chunk in _plain(column)])


def identifiers(column: Any) -> Any:
    """A chunked column as one array of trimmed text, which decimals are as well, so that 7 and 7.00 are one; or of its own
    numbers: as float64 long ones would run together.
    """
    found = joined([*_plain(column)])
    if is_numeric(column.type) or pa.types.is_decimal(found.type):
        found = pc.cast(found, pa.large_string())
        found = pc.utf8_rtrim(pc.replace_substring_regex(found, r"(\.[0-9]*?)0+$", r"\1"), ".")
    return found


def is_numeric(kind: Any) -> bool:
    """Whether a column of an Arrow type holds PostgreSQL's NUMERIC: text, in which 7 and 7.00 are one number."""
    return isinstance(kind, pa.OpaqueType) and kind.type_name == "numeric"


def common(kinds: Sequence[Any], *, numbered: bool) -> bool:
    """Whether parts of these Arrow types make one column of numbers or texts; one of nothing but nulls goes with any.

    Integers go with fractions, for that a record lacks its number makes them so where types are inferred.

    Args:
        kinds: of the parts.
        numbered: whether all numbers are float64 (:func:`values`), or keep their type (:func:`identifiers`).
    """
    return len({_becomes(plain(kind), numbered) for kind in kinds if not pa.types.is_null(kind)}) <= 1


def _becomes(kind: Any, numbered: bool) -> Any:
    if is_text(kind) or is_date(kind):
        return pa.large_string()
    if numbered or kind == pa.int64():
        return pa.float64()
    return pa.decimal256(76) if pa.types.is_decimal(kind) else kind


def joined(arrays: Sequence[Any]) -> Any:
    """The arrays of a column's parts as one: integers and fractions as float64; those of another type hold only nulls."""
    if len(arrays) == 1:
        return arrays[0]
    held = [array.type for array in arrays if array.null_count < len(array)] or [arrays[0].type]
    kind = pa.float64() if pa.float64() in held else held[0]
    return pa.concat_arrays([_of_type(array, kind) for array in arrays])


def _of_type(array: Any, kind: Any) -> Any:
    if array.type == pa.int64() and kind == pa.float64():
        return array.cast(kind, safe=False)
    return array if array.type == kind else pa.nulls(len(array), kind)


def from_numpy(array: Any) -> Any:
    """A one-dimensional array of NumPy's as a chunked column."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    kind = array.dtype.kind
    if kind == "f" and array.dtype.itemsize > 8:
        with np.errstate(all="ignore"):  # a long double may be beyond float64
            array = array.astype(np.float64)
    elif kind == "U" and array.dtype.itemsize:
        points = array.view(np.uint32)
        odd = (points > 0x10FFFF) | ((points >= 0xD800) & (points < 0xE000))  # no characters: memory holds any number
        if odd.any():
            array = np.where(odd, np.uint32(0xFFFD), points).view(array.dtype)
    made = pa.array(array, arrow_type(array.dtype))
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])


def is_text(kind: Any) -> bool:
    """Whether a column of an Arrow type holds texts, of characters or bytes."""
    return _is(kind, *_TEXTS)


def _is(kind: Any, *names: str) -> bool:
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)


def _plain(column: Any) -> Iterator[Any]:
    """The chunks of a column, one at least, of the type that :func:`plain` tells; texts trimmed, of whatever bytes."""
    for chunk in column.chunks or [pa.nulls(0, column.type)]:
        held = chunk
        while pa.types.is_dictionary(held.type) or isinstance(held.type, pa.BaseExtensionType):
            if isinstance(held.type, pa.UuidType):
                cells = held.storage.cast(pa.binary()).to_pylist()
                held = pa.array([None if cell is None else str(UUID(bytes=cell)) for cell in cells], pa.large_string())
            else:
                held = held.dictionary_decode() if pa.types.is_dictionary(held.type) else held.storage
        kind = plain(held.type)
        if not is_text(kind):
            yield from_halves(held) if pa.types.is_float16(held.type) else held if kind == held.type else held.cast(kind)
            continue
        cells = held.cast(pa.large_binary())  # whatever the column's type promises of them
        try:
            held = cells.cast(pa.large_string())
        except pa.ArrowInvalid:  # some cell is not UTF-8
            held = as_texts(cells)
        yield pc.utf8_trim_whitespace(held)


def _days(chunk: Any) -> Any:
    """Days in the zone that their times are in, as ISO 8601; what no year of four digits holds is a text that is no date."""
    if pa.types.is_date(chunk.type):
        chunk = pc.cast(chunk, pa.timestamp("s" if pa.types.is_date32(chunk.type) else "ms"))
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[chunk.type.unit]
    most = 2**63 - 1 - 86_400 * second  # a zone moves what is told by less than a day
    first, last = max(_FIRST * second, -most), min(_END * second - 1, most)
    counts = pc.cast(chunk, pa.int64())
    told = pc.and_(pc.greater_equal(counts, first), pc.less_equal(counts, last))  # beyond, Arrow's years wrap around
    return pc.if_else(told, pc.strftime(pc.if_else(told, chunk, pa.scalar(None, chunk.type)), format="%Y-%m-%d"), "beyond")


def _with_points(cells: Any, missing: Sequence[str]) -> Any:
    """Texts of numbers with a comma before their decimal places as those with a point; what has one already is none."""
    comma = pc.fill_null(pc.match_substring_regex(cells, _COMMA), False)
    comma = pc.and_not(comma, pc.is_in(cells, value_set=pa.array(missing, cells.type)))
    point = pc.fill_null(pc.match_substring_regex(cells, _POINT), False)
    cells = pc.if_else(comma, pc.replace_substring(cells, ",", "."), cells)
    return pc.if_else(point, pc.replace_substring(cells, ".", "?"), cells)


def _texts(chunk: Any, meant: Mapping[Any, str]) -> Any:
    if is_text(chunk.type):
        return chunk
    if pa.types.is_boolean(chunk.type):
        yes, no = (pa.scalar(meant.get(truth, str(truth).lower()), pa.large_string()) for truth in (True, False))
        return pc.if_else(chunk, yes, no)
    distinct = chunk.dictionary_encode()
    spelled = [
        None if text is None else meant.get(exact(text, padded=True), text)
        for text in pc.cast(distinct.dictionary, pa.large_string()).to_pylist()
    ]
    return pa.array(spelled, pa.large_string()).take(distinct.indices)


def from_halves(cells: Any) -> Any:
    """Half floats as float32 of the same shortest text; Arrow itself does little with them."""
    distinct = cells.dictionary_encode()  # there are 65,536 at most
    values = [float(str(value)) for value in distinct.dictionary.to_numpy(zero_copy_only=False)]
    return pa.array(values, pa.float32()).take(distinct.indices)
