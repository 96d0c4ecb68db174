"""A query on Parquet sees what the file as a dataset holds, and no record of it makes the query fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tables import rows_of, text_array
from veilsum_node.errors import DataError
from veilsum_participant.data import duck
from veilsum_participant.data.lines import as_text
from veilsum_participant.data.parquet_files import ParquetReader
from veilsum_participant.data.reader import RowRequest, SourcePart
from veilsum_participant.data.sources import check_structure, query_rows, read_table
from veilsum_participant.settings.query import SourceQuery
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, DateColumn, NumberColumn

EXAMPLES = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
EDGES = (-(2**63), -(2**62), -(2**53) - 1, -1, 0, 1, 86_399_999, 86_400_000, 2**31 - 1, 2**53 + 1, 2**62, 2**63 - 2, 2**63 - 1)
TEXTS = (None, b"", b"a", "é".encode(), b"\xe9", b"\xff\xfe", b"a\x00b", b"\xed\xa0\x80", b"{", b'{"a": 1}', b"NaN", b"042")
MEASURES = (None, 0.1, 1.1, 65504.0, 999.9, 6e-8, -0.0, float("nan"), float("inf"))
Kind = tuple[tuple[Any, ...], Callable[[list[Any]], Any]]


def counted(kind: Any) -> Kind:
    """Integers, and what makes of them a column of a type that stores these."""
    bits = kind.bit_width
    inside = [edge for edge in EDGES if -(2 ** (bits - 1)) <= edge < 2 ** (bits - 1)]
    stored = pa.int32() if bits == 32 else pa.int64()
    return (None, *inside), lambda cells: pa.array(cells, stored).cast(kind)


def lists(cells: list[bytes | None]) -> Any:
    """A list of none, one or two texts in each row; some are null."""
    sizes = [len(cell or b"") % 3 for cell in cells]
    values = [cell for cell, size in zip(cells, sizes, strict=True) for _ in range(size)]
    made = pa.ListArray.from_arrays(np.cumsum([0, *sizes]).astype(np.int32), text_array(values, pa.string()))
    return pc.if_else(pa.array([cell is not None for cell in cells]), made, pa.scalar(None, made.type))


def structs(cells: list[bytes | None]) -> Any:
    inner = pa.StructArray.from_arrays([text_array(cells, pa.string()), lists(cells)], ["t", "l"])
    return pa.StructArray.from_arrays([inner], ["s"], mask=pa.array([cell == b"" for cell in cells]))


def maps(cells: list[bytes | None]) -> Any:
    keys = text_array([cell or b"" for cell in cells], pa.string())
    return pa.MapArray.from_arrays(np.arange(len(cells) + 1, dtype=np.int32), keys, text_array(cells, pa.string()))


UNITS = (pa.timestamp(unit, zone) for unit in ("ms", "us", "ns") for zone in (None, "UTC", "Asia/Tokyo"))
DATES: dict[str, Kind] = {str(kind): counted(kind) for kind in (pa.date32(), *UNITS)}
VALUES: dict[str, Kind] = {
    "text": (TEXTS, lambda cells: text_array(cells, pa.string())),
    "bytes": (TEXTS, lambda cells: text_array(cells, pa.binary())),
    "json": (TEXTS, lambda cells: pa.ExtensionArray.from_storage(pa.json_(), text_array(cells, pa.string()))),
    "half": (MEASURES, lambda cells: pa.array([cell and np.float16(cell) for cell in cells], pa.float16())),
    "float": (MEASURES, lambda cells: pa.array(cells, pa.float32())),
    "double": ((*MEASURES, 5e-324, 1e308, 2.0**53), lambda cells: pa.array(cells, pa.float64())),
    "integer": ((None, -(2**63), 2**53 + 1, 2**63 - 1, 0), lambda cells: pa.array(cells, pa.int64())),
    "unsigned": ((None, 2**64 - 1, 2**63, 0), lambda cells: pa.array(cells, pa.uint64())),
    "decimal": ((None, Decimal("1.10"), Decimal("-0.01")), lambda cells: pa.array(cells, pa.decimal128(38, 2))),
    "boolean": ((None, True, False), lambda cells: pa.array(cells, pa.bool_())),
    "nothing": ((None,), lambda cells: pa.nulls(len(cells))),
}
OTHERS: dict[str, Kind] = {
    "list": (TEXTS, lists), "struct": (TEXTS, structs), "map": (TEXTS, maps),
    **{str(kind): counted(kind) for kind in (pa.time32("ms"), pa.time64("us"), pa.time64("ns"))},
}  # fmt: skip
KINDS = {**DATES, **VALUES, **OTHERS}
NUMBER = DatasetSchema(columns=(NumberColumn(name="x", low=0, high=9),))
OLD = {"use_deprecated_int96_timestamps": True}


def write(path: Path, column: Any, **options: Any) -> Path:
    parquet.write_table(pa.table({"x": column, "place": pa.array(range(len(column)))}), path, **options)
    return path


def ask(path: Path, text: str) -> list[Any]:
    return query_rows(SourceQuery("records", text, files={"t": path}))["x"].to_pylist()  # type: ignore[no-any-return]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", [*DATES, *VALUES])
@EXAMPLES
@given(data=st.data(), old=st.booleans())
def test_a_query_sees_what_the_file_holds(tmp_path: Path, kind: str, data: st.DataObject, *, old: bool) -> None:
    """As dates, categories, numbers and whom a record is of."""
    known, made = KINDS[kind]
    cells = data.draw(st.lists(st.sampled_from(known), max_size=6))
    options = OLD if old and kind.startswith("timestamp[us") else {}
    path = write(tmp_path / "t.parquet", made(cells), row_group_size=3, **options)
    columns: list[Any] = [CategoryColumn(name="x", categories=("042", "a", "é", "1.1")), NumberColumn(name="x", low=0, high=9)]
    if kind in DATES:
        columns = [DateColumn(name="x", low=-1e7, high=1e7, origin="1970-01-01")]
    for column in columns:
        schema = DatasetSchema(columns=(column,))
        subject = None if kind in DATES else "x"
        query = SourceQuery("records", "SELECT * FROM t ORDER BY place", files={"t": path})
        check_structure(query, schema, subject=subject)
        own, asked = (read_table(source, schema, subject=subject) for source in (path, query))
        assert rows_of(own) == rows_of(asked)
        assert asked.rows == len(cells)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", KINDS)
@settings(EXAMPLES, max_examples=4)
@given(data=st.data())
def test_no_cell_makes_a_query_fail_or_changes_another(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    """DuckDB's own reader of Parquet fails on one text that is not UTF-8, one JSON that is none, one time out of its range."""
    known, made = KINDS[kind]
    text = "SELECT CAST(x AS VARCHAR) AS x FROM t ORDER BY place"
    path = tmp_path / "t.parquet"
    alone = [ask(write(path, made([cell])), text) for cell in known]
    for _ in range(5):
        places = data.draw(st.lists(st.integers(0, len(known) - 1), min_size=2, max_size=9))
        found = ask(write(path, made([known[place] for place in places]), row_group_size=4), text)
        assert found == [cell for place in places for cell in alone[place]]


@pytest.mark.parametrize("cell", [cell for cell in TEXTS if cell])
def test_a_text_within_others_is_read_as_any_text(tmp_path: Path, cell: bytes) -> None:
    table = pa.table({"x": structs([cell, None]), "m": maps([cell, None]), "r": lists([b"a", cell])})
    parquet.write_table(table, tmp_path / "t.parquet")
    told = as_text(cell)
    found = ask(tmp_path / "t.parquet", "SELECT [x.s.t, x.s.l[1], map_values(m)[1], map_keys(m)[1]] AS x FROM t")
    assert found[0] == [told, told if len(cell) % 3 else None, told, told]
    assert ask(tmp_path / "t.parquet", "SELECT r[1] AS x FROM t")[1] == (told if len(cell) % 3 else None)


def test_what_duckdb_cannot_hold_is_not_shown(tmp_path: Path) -> None:
    """Nor within lists and structures; of more than 38 digits DuckDB made fractions, in which long numbers run together."""
    long = pa.array([Decimal("1" * 50), Decimal("2")], pa.decimal256(60, 0))
    stay = pa.array([1, 2], pa.int64()).cast(pa.duration("us"))
    held = {"n": long, "s": stay, "l": pa.ListArray.from_arrays([0, 1, 2], long), "x": pa.array([1, 2])}
    held["o"] = pa.StructArray.from_arrays([held["l"]], ["l"])
    parquet.write_table(pa.table(held), tmp_path / "t.parquet")
    query = SourceQuery("records", "SELECT * FROM t", files={"t": tmp_path / "t.parquet"})
    assert query_rows(query).column_names == ["x"]
    with pytest.raises(DataError, match="Binder Error: Referenced column"):
        check_structure(
            replace(query, text="SELECT n AS x FROM t"), DatasetSchema(columns=(NumberColumn(name="x", low=0, high=9),))
        )


def test_a_geometry_is_refused_by_its_type(tmp_path: Path) -> None:
    """As bytes it would be a text of letters."""
    path = write(tmp_path / "t.parquet", pa.array(["POINT (1 2)"]))
    for asked, told in (("x::GEOMETRY", "yields a column of GEOMETRY"), ("'1'::BIGNUM", "holds bignum")):
        query = SourceQuery("records", f"SELECT {asked} AS x FROM t", files={"t": path})  # noqa: S608
        with pytest.raises(DataError, match=told):
            check_structure(query, DatasetSchema(columns=(CategoryColumn(name="x", categories=("a", "b")),)))


@pytest.mark.parametrize("asked", ["x", "count(*) AS x", "*", "b.x", "place AS x"])
def test_only_what_a_query_needs_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """Its columns are what DuckDB asks for by its own interface; without that, all are read, which gives the same."""
    path = write(tmp_path / "t.parquet", pa.array([1.5, 2.5]))
    seen: list[set[str]] = []
    parts = ParquetReader.parts

    def spied(self: ParquetReader, wanted: RowRequest) -> Iterator[SourcePart]:
        seen.append({*wanted.names})
        return parts(self, wanted)

    monkeypatch.setattr(ParquetReader, "parts", spied)
    whole = duck._Shown.stream
    text = f"SELECT {asked} FROM t AS b WHERE b.place < 9"  # noqa: S608
    found = ask(path, text)
    needed = {"count(*) AS x": {"place"}, "place AS x": {"place"}}
    assert seen == [needed.get(asked, {"x", "place"})]
    monkeypatch.setattr(duck._Shown, "stream", lambda self, *_: (self.__arrow_c_stream__(), False))
    monkeypatch.setattr(duck._Shown, "__arrow_c_stream__", lambda self, _=None: whole(self, None, ())[0])
    assert ask(path, text) == found
    assert seen[1:] == [{"x", "place"}]
