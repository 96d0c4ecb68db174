"""Columns of Parquet and npz files: a type decides whether one is read, and a cell nothing but itself."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from support.tables import (
    ORDER,
    SCHEMA,
    assert_one_group_changed,
    assert_one_more,
    groups_of,
    records_of,
    rows_of,
    text_array,
    totals,
    trimmed,
)
from veilsum_node.errors import DataError
from veilsum_participant.data import FindingKind, check_dataset, load_records
from veilsum_participant.data.lines import as_text
from veilsum_participant.data.sources import check_structure, query_rows, read_table
from veilsum_participant.settings.query import SourceQuery

EXAMPLES = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def texts(cells: list[bytes | None], form: str) -> Any:
    if form != "dictionary":
        return text_array(cells, pa.binary() if form == "binary" else pa.string())
    known = list(dict.fromkeys(cell for cell in cells if cell is not None))
    indices = pa.array([None if cell is None else known.index(cell) for cell in cells], pa.int32())
    return pa.DictionaryArray.from_arrays(indices, text_array([*known], pa.string()))


ANY_TEXT = st.one_of(
    st.none(), st.binary(max_size=8), st.sampled_from([b"Ulm", "Köln".encode(), b"K\xf6ln", b"\xff", b"0", b"1"])
)
ANY_NUMBER = st.one_of(st.none(), st.floats(), st.integers(-(2**63), 2**63 - 1).map(float), st.sampled_from([0.0, 1.0, 50.0]))
ROWS = st.tuples(ANY_TEXT, ANY_NUMBER, ANY_TEXT, ANY_TEXT)


@pytest.mark.sampled(2)
@settings(EXAMPLES, max_examples=50)
@given(before=st.lists(ROWS, max_size=4), after=st.lists(ROWS, max_size=4), added=ROWS)
@pytest.mark.parametrize("form", ["plain", "dictionary", "binary"])
def test_one_row_more_of_a_parquet_file_is_one_record_more(
    tmp_path: Path, form: str, before: list[Any], after: list[Any], added: Any
) -> None:
    found = []
    for name, rows in (("without", [*before, *after]), ("with", [*before, added, *after])):
        who, age, town, ill = ([row[place] for row in rows] for place in range(4))
        columns = {
            "who": texts(who, form),
            "age": pa.array(age, pa.float64()),
            "town": texts(town, form),
            "ill": texts(ill, form),
        }
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(pa.table(columns), path)
        check_structure(path, SCHEMA, subject="who")
        table = read_table(path, SCHEMA, subject="who")
        found.append((rows_of(table), records_of(path, SCHEMA), groups_of(path, SCHEMA)))
        for read, (_, _, place, _) in zip(table.columns["town"].to_pylist(), rows, strict=True):
            assert read == (None if place is None else trimmed(as_text(place)))
    assert len(found[1][0]) - len(found[0][0]) == len(found[1][1]) - len(found[0][1]) == 1
    assert_one_more(found[0][0], found[1][0])
    assert_one_more(found[0][1], found[1][1])
    assert_one_group_changed(found[0][2], found[1][2])


KINDS = [
    pa.array([2**64 - 1, 0, None], pa.uint64()),
    pa.array([-128, 0, None], pa.int8()),
    pa.array([np.float16(-0.0), np.float16("inf"), None], pa.float16()),
    pa.array([float("nan"), 1e308, None], pa.float32()),
    pa.array([Decimal("9" * 38), Decimal("-1"), None], pa.decimal128(38, 0)),
    pa.array([Decimal("9" * 76), Decimal("-1"), None], pa.decimal256(76, 0)),
    pa.array([Decimal("1.25"), Decimal("-1"), None], pa.decimal32(9, 2)),
    pa.array([True, False, None]),
    pa.array([None, None, None], pa.null()),
    pa.array(["a", "b", None], pa.large_string()),
    pa.array(["a", "b", None], pa.string_view()),
    pa.array([5, 7, None]).dictionary_encode(),
    pa.array([1.5, -0.0, None]).dictionary_encode(),
]


@pytest.mark.parametrize("column", KINDS, ids=lambda column: str(column.type))
def test_a_type_that_the_structure_admits_is_read_as_value_label_and_identifier(tmp_path: Path, column: Any) -> None:
    path = tmp_path / "kinds.parquet"
    parquet.write_table(pa.table(dict.fromkeys(ORDER, column)), path)
    check_structure(path, SCHEMA, subject="who")
    records, counts = load_records(path, SCHEMA, "who")
    assert len(records) == 3
    assert counts["age"].missing >= 1
    assert totals(check_dataset(path, SCHEMA, subject="who"))["who"][FindingKind.MISSING] >= 1
    assert np.isfinite(records.features).all()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1]]),
        pa.array([{"x": 1}]),
        pa.array([0], pa.date32()),
        pa.array([0], pa.timestamp("us")),
        pa.array([b"ab"], pa.binary(2)),
        pa.array([0], pa.time32("s")),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("name", ["age", "who"])
def test_a_type_that_is_neither_number_nor_text_is_refused_by_structure(tmp_path: Path, column: Any, name: str) -> None:
    path = tmp_path / "kinds.parquet"
    parquet.write_table(pa.table({**dict.fromkeys(ORDER, pa.array([1])), name: column}), path)
    for read in (check_structure, read_table):
        with pytest.raises(DataError, match=f"column '{name}' holds"):
            read(path, SCHEMA, subject="who")


class Months(pa.ExtensionType):  # type: ignore[misc]
    """As pandas stores its periods: months since 1970."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "pandas.period")

    def __arrow_ext_serialize__(self) -> bytes:
        return b'{"freq": "M"}'

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Months:
        return cls()


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_numbers_that_mean_another_type_are_refused_by_name(tmp_path: Path, *, known: bool) -> None:
    """A month of 2024 is no 650; whether the process knows the type is no matter. Truths in bytes are 0 and 1."""
    path, months = tmp_path / "t.parquet", pa.ExtensionArray.from_storage(Months(), pa.array([650, None]))
    truths = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8()))
    parquet.write_table(pa.table({"age": months, "town": ["Ulm", "Ulm"], "ill": truths}), path)
    if known:
        pa.register_extension_type(Months())
    try:
        for read in (check_structure, read_table):
            with pytest.raises(DataError, match="column 'age' holds an extension of Arrow's"):
                read(path, SCHEMA)
        table = read_table(path, SCHEMA.model_copy(update={"columns": SCHEMA.columns[1:]}))
    finally:
        if known:
            pa.unregister_extension_type("pandas.period")
    assert table.columns["ill"].to_pylist() == ["1", "0"]


POINTS = st.one_of(
    st.integers(0, 2**32 - 1), st.sampled_from([0xD800, 0xDFFF, 0x110000, ord("U"), ord("0"), ord("1"), 0x20, 0xF6])
)
TEXTS = st.lists(POINTS, min_size=3, max_size=3)


@settings(EXAMPLES, max_examples=50)
@given(before=st.lists(TEXTS, max_size=4), after=st.lists(TEXTS, max_size=4), added=TEXTS, kind=st.sampled_from("US"))
def test_one_row_more_of_an_npz_archive_is_one_record_more(
    tmp_path: Path, before: list[list[int]], after: list[list[int]], added: list[int], kind: str
) -> None:
    """An array of texts holds any numbers as characters, and not all are."""
    found = []
    for name, rows in (("without", [*before, *after]), ("with", [*before, added, *after])):
        points = np.array(rows, dtype=np.uint64).reshape(-1, 3)
        array = points.astype(np.uint32).view("<U3")[:, 0] if kind == "U" else points.astype(np.uint8).view("S3")[:, 0]
        path = tmp_path / f"{name}.npz"
        np.savez(path, **dict.fromkeys(ORDER, array))
        check_structure(path, SCHEMA, subject="who")
        found.append((rows_of(read_table(path, SCHEMA, subject="who")), records_of(path, SCHEMA), groups_of(path, SCHEMA)))
    assert len(found[1][1]) - len(found[0][1]) == 1
    assert_one_more(found[0][0], found[1][0])
    assert_one_more(found[0][1], found[1][1])
    assert_one_group_changed(found[0][2], found[1][2])


@pytest.mark.parametrize("dtype", [">i8", "<u8", ">f4", "f2", "g", "?", ">U3", "S2", "i1"])
def test_each_numpy_type_that_the_structure_admits_is_read(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "kinds.npz"
    values = np.array([1, 0, 1]).astype(dtype)
    np.savez(path, **dict.fromkeys(ORDER, values))
    check_structure(path, SCHEMA, subject="who")
    records, _ = load_records(path, SCHEMA, "who")
    assert records.labels is not None
    assert sorted(records.labels) == ([-1] * 3 if dtype in (">U3", "S2") and str(values[0]) == "T" else [0, 1, 1])
    assert records.subjects is not None
    assert len(np.unique(records.subjects)) == 2


def test_a_long_double_beyond_float64_is_no_number(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **dict.fromkeys(ORDER, np.array([np.longdouble("1e4000"), 50])))
    with np.errstate(all="raise"):
        _, counts = load_records(tmp_path / "g.npz", SCHEMA, "who")
    assert counts["age"].unmatched == (1 if np.finfo(np.longdouble).max > 1e308 else 0)


def test_a_page_with_another_checksum_is_damage(tmp_path: Path) -> None:
    """Arrow reads it unless it is told to look."""
    path = tmp_path / "records.parquet"
    columns = {"age": pa.array([1.0, 2.0, 3.0]), "town": pa.array(["Ulm"] * 3), "ill": pa.array([0, 1, 0])}
    parquet.write_table(pa.table(columns), path, write_page_checksum=True, compression="none", use_dictionary=False)
    assert len(records_of(path, SCHEMA)) == 3
    data = bytearray(path.read_bytes())
    place = data.index(np.float64(2.0).tobytes())
    data[place : place + 8] = np.float64(40.0).tobytes()
    path.write_bytes(data)
    assert parquet.read_table(path)["age"].to_pylist() == [1.0, 40.0, 3.0]
    for source in (path, SourceQuery("records", "SELECT * FROM t", files={"t": path})):  # as DuckDB reads it as well
        with pytest.raises(DataError, match="cannot be read"):
            read_table(source, SCHEMA)


@EXAMPLES
@given(
    rows=st.integers(1, 40),
    form=st.fixed_dictionaries(
        {
            "compression": st.sampled_from(["none", "snappy", "zstd"]),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "use_dictionary": st.booleans(),
            "row_group_size": st.integers(1, 40),
            "data_page_size": st.sampled_from([8, 1 << 20]),
            "write_batch_size": st.integers(1, 9),
        }
    ),
    asked=st.sets(st.sampled_from(["age", "x.y", "é \n'", "parts"]), min_size=1),
    where=st.floats(0, 1, exclude_max=True),
)
def test_a_query_meets_every_damaged_page_that_it_reads_and_no_other(
    tmp_path: Path, rows: int, form: dict[str, Any], asked: set[str], where: float
) -> None:
    """Of a file in which one byte is another, Arrow says whether what is asked for agrees with its checksums."""
    path = tmp_path / "records.parquet"
    columns = {
        "age": pa.array([float(row) if row % 3 else None for row in range(rows)]),
        "x.y": pa.array([f"town {row % 4}" for row in range(rows)]),
        "é \n'": pa.array(range(rows)),
        "parts": pa.array([{"low": row, "high": [row, 1]} for row in range(rows)]),
    }
    parquet.write_table(pa.table(columns), path, write_page_checksum=True, **form)
    names = [name for name in columns if name in asked]
    quoted = ", ".join(f'"{name}"' for name in names)
    source = SourceQuery("records", f"SELECT {quoted} FROM t", files={"t": path})  # noqa: S608
    assert query_rows(source).num_rows == rows
    data = bytearray(path.read_bytes())
    data[4 + int(where * (len(data) - 12 - int.from_bytes(data[-8:-4], "little")))] ^= 1
    path.write_bytes(data)
    assume("CRC" in checked(path, list(columns)))
    if checked(path, names):
        with pytest.raises(DataError, match="cannot be read"):
            query_rows(source)
    else:
        assert query_rows(source).num_rows == rows


def checked(path: Path, names: list[str]) -> str:
    """What Arrow says where columns of a file do not agree with their checksums."""
    try:
        parquet.ParquetFile(path, page_checksum_verification=True).read(columns=names)
    except (OSError, pa.ArrowException) as error:
        return str(error)
    return ""
