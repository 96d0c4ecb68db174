"""A value's way from its file to a record is short: how many functions get it or give it, and how often it comes back."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from veilsum_participant.data import load_records
from veilsum_participant.data.stream import stream_records
from veilsum_participant.settings.query import Source, SourceQuery
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn

VALUE = 0.40625  # within [-1, 1], which features are too, so that it is the same number all the way
SCHEMA = DatasetSchema(
    columns=(NumberColumn(name="x", low=-1, high=1), CategoryColumn(name="kind", categories=("a", "b"))), max_records=10
)
PACKAGE = "veilsum_participant.data"


def holds(thing: Any, depth: int = 4) -> bool:
    """Whether the value is in something that a function gets or gives."""
    if isinstance(thing, bytes | bytearray):
        return b"0.40625" in thing
    if isinstance(thing, str):
        return "0.40625" in thing
    if isinstance(thing, float):
        return thing == VALUE
    if isinstance(thing, np.ndarray):
        return thing.dtype.kind == "f" and bool((thing == VALUE).any())
    if isinstance(thing, pa.Array | pa.ChunkedArray):
        return any(cell == VALUE or holds(cell, 0) for cell in thing.to_pylist())
    if isinstance(thing, pa.Table | pa.RecordBatch):
        return any(map(holds, thing.columns))
    if not depth:
        return False
    if isinstance(thing, Mapping):
        return any(holds(item, depth - 1) for item in thing.values())
    if isinstance(thing, list | tuple):
        return any(holds(item, depth - 1) for item in thing)
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return any(holds(getattr(thing, field.name), depth - 1) for field in dataclasses.fields(thing))
    return False


def way(read: Callable[[], Any]) -> list[tuple[str, str]]:
    """Module and name of each call in the data package that gets or gives the value, in the order in which they have it."""
    read()  # what is imported and kept the first time is not part of it
    met: dict[FrameType, tuple[str, str]] = {}

    def profile(frame: FrameType, event: str, given: Any) -> None:
        module, code = str(frame.f_globals.get("__name__", "")), frame.f_code
        own = module.startswith(PACKAGE) and not code.co_filename.startswith("<")  # nobody wrote a data class's own
        if frame in met or not own or event not in ("call", "return") or code.co_name.startswith("<"):
            return
        words = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if holds(given) if event == "return" else any(holds(frame.f_locals[word]) for word in words):
            met[frame] = module, code.co_qualname

    sys.setprofile(profile)
    try:
        read()
    finally:
        sys.setprofile(None)
    return list(met.values())


def returns(modules: list[str]) -> int:
    """How often a value comes back into a module that it left."""
    left, count = set[str](), 0
    for before, module in pairwise(modules):
        if module != before:
            left.add(before)
            count += module in left
    return count


@pytest.fixture(params=["data.csv", "data.parquet", "query of data.csv", "query of data.parquet"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    path = tmp_path / request.param.rpartition(" ")[2]
    if path.suffix == ".csv":
        path.write_text(f"x,kind,who\n0.5,a,p\n{VALUE},b,q\n0.25,a,p\n")
    else:
        parquet.write_table(pa.table({"x": [0.5, VALUE, 0.25], "kind": ["a", "b", "a"], "who": ["p", "q", "p"]}), path)
    return SourceQuery("d", "SELECT * FROM t", files={"t": path}) if "query" in request.param else path


@pytest.mark.parametrize("subject", [None, "who"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "batches"])
def test_a_values_way_is_short(source: Source, subject: str | None, *, whole: bool) -> None:
    found = way(lambda: load_records(source, SCHEMA, subject) if whole else list(stream_records(source, SCHEMA, subject)))
    assert 8 <= len(set(found)) <= 20
    assert returns([module for module, _ in found]) <= 8
