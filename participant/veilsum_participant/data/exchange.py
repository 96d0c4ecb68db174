"""Columns of Parquet as a query is given them: of types that DuckDB has, and without a cell at which it would fail.

Nothing here raises because of what a cell holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from veilsum_participant.data.lines import as_texts
from veilsum_participant.data.typed import from_halves

_INFINITY = 2**63 - 1
"""Microseconds that DuckDB takes for infinity."""


def holds(kind: Any) -> bool:
    """Whether DuckDB can hold a column of an Arrow type: no durations, whose integers others take for numbers, no decimals of
    more than 38 digits, and nothing that only Arrow's note tells of.
    """
    if pa.types.is_nested(kind):
        return all(holds(kind.field(place).type) for place in range(kind.num_fields))
    return not isinstance(kind, pa.DurationType | pa.OpaqueType | pa.Decimal256Type)


def common(kinds: Sequence[Any]) -> Any:
    """The Arrow type of parts of one column that are of these types, if none of them loses anything; else None.

    Software that is told no types finds them by what a record holds or lacks: integers are fractions where one part has
    these, a part of nothing is of the others' type, decimals have the most digits of any, and lists what theirs have.
    """
    held = list(dict.fromkeys(kind for kind in kinds if not pa.types.is_null(kind))) or [pa.null()]
    if len(held) == 1:
        return held[0]
    if all(map(pa.types.is_list, held)):
        inner = common([kind.value_type for kind in held])
        return None if inner is None else pa.list_(inner)
    if all(map(pa.types.is_decimal, held)):
        scale = max(kind.scale for kind in held)
        digits = max(kind.precision - kind.scale for kind in held) + scale
        return pa.decimal128(digits, scale) if digits <= 38 else None
    return pa.float64() if set(held) == {pa.int64(), pa.float64()} else None


def given(cells: Any) -> Any:
    """An array of a type that DuckDB :func:`holds`, each cell by itself: texts in UTF-8, and JSON as text, for it may be none;
    times of day that are none as nothing, and moments beyond DuckDB's as its infinity.
    """
    kind = cells.type
    if isinstance(kind, pa.BaseExtensionType):
        return cells if isinstance(kind, pa.UuidType) else given(cells.storage)
    if pa.types.is_struct(kind):
        names = [kind.field(place).name for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays([*map(given, cells.flatten())], names, mask=cells.is_null())
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        parts = (cells.keys, cells.items) if pa.types.is_map(kind) else (cells.values,)
        made = type(cells).from_arrays(cells.offsets, *map(given, parts))
        return pc.if_else(cells.is_valid(), made, pa.scalar(None, made.type)) if cells.null_count else made
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return as_texts(cells.cast(pa.large_binary()))
    if pa.types.is_float16(kind):
        return from_halves(cells)
    if pa.types.is_time(kind):
        day = pa.scalar(86_400 * {"ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit], pa.int64())
        counts = cells.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64()).cast(pa.int64())
        told = pc.and_(pc.greater_equal(counts, 0), pc.less(counts, day))
        return pc.if_else(told, cells, pa.scalar(None, kind))
    if pa.types.is_timestamp(kind) and kind.unit == "ms":
        counts, most = cells.cast(pa.int64()), _INFINITY // 1000
        beyond = pc.or_(pc.greater(counts, most), pc.less(counts, -most))
        return pc.if_else(beyond, _INFINITY, pc.multiply(counts, 1000)).cast(pa.timestamp("us", kind.tz))
    return cells
