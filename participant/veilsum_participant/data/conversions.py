"""What of a query on files can fail on a single cell: conversions between types not all of whose values have one in the other.

They are told from the plan that DuckDB makes of the query, so that those count too that nobody wrote, as where a column of
texts is compared with a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

_BITS: dict[str, tuple[float, float]] = {
    "BOOLEAN": (0, 1), "TINYINT": (7, 7), "SMALLINT": (15, 15), "INTEGER": (31, 31), "BIGINT": (63, 63),
    "HUGEINT": (127, 127), "UTINYINT": (0, 8), "USMALLINT": (0, 16), "UINTEGER": (0, 32), "UBIGINT": (0, 64),
    "UHUGEINT": (0, 128), "FLOAT": (1024, 1024), "DOUBLE": (1024, 1024),
}  # fmt: skip
"""Bits of the integral part of a type's numbers, below zero and above; of a large DOUBLE DuckDB makes an infinite FLOAT."""


def risky_casts(plan: object) -> Iterator[str]:
    """The conversions in a plan of DuckDB's, as JSON, that can fail on a cell, such as ``age: VARCHAR as DOUBLE``."""
    if isinstance(plan, dict):
        if plan.get("type") == "OPERATOR_CAST" and not plan["function_data"]["try_cast"]:
            (cell,), kind = plan["children"], plan["return_type"]
            if "return_type" in cell and not _total(cell["return_type"], kind):  # a constant has none
                name = f"{cell['alias']}: " if cell.get("alias") else ""
                yield f"{name}{_named(cell['return_type'])} as {_named(kind)}"
        plan = list(plan.values())
    for part in plan if isinstance(plan, list) else ():
        yield from risky_casts(part)


def _total(kind: Any, other: Any) -> bool:
    """Whether each value of a type has one of another type."""
    of, to = _told(kind), _told(other)
    if kind["id"] == other["id"] == "LIST":
        return _total(of["child_type"], to["child_type"])
    if kind["id"] == other["id"] == "STRUCT":
        others = {part["first"]: part["second"] for part in to["child_types"]}
        return all(_total(part["second"], others.get(part["first"], part["second"])) for part in of["child_types"])
    if (bits := _bits(kind)) and (room := _bits(other)):
        return other["id"] == "BOOLEAN" or (bits[0] <= room[0] and bits[1] <= room[1])
    if other["id"] == "VARCHAR":
        return bool(to.get("alias") != "JSON" or kind["id"] != "VARCHAR" or of.get("alias") == "JSON")
    return bool(kind == other or kind["id"] == "SQLNULL" or (kind["id"].startswith("TIMESTAMP") and other["id"] == "DATE"))


def _bits(kind: Any) -> tuple[float, float] | None:
    if kind["id"] != "DECIMAL":
        return _BITS.get(kind["id"])
    bits = (_told(kind)["width"] - _told(kind)["scale"]) * math.log2(10)
    return bits, bits


def _named(kind: Any) -> str:
    return _told(kind).get("alias") or str(kind["id"])


def _told(kind: Any) -> Any:
    return kind.get("type_info") or {}
