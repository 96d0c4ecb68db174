"""Datasets that are not one file: folders and globs of Parquet, and queries on files by DuckDB.

What a query yields is compared with the same records in one file, and every check of structure is repeated on files without
records and with odd ones: it must say the same.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tables import SCHEMA, groups_of, rows_of
from veilsum_node.errors import ConfigurationError, DataError, Unavailable
from veilsum_participant.data import check_dataset, check_structure, load_records, reader, sources
from veilsum_participant.data.sources import query_rows, read_table
from veilsum_participant.data.stream import stream_records
from veilsum_participant.settings.config import load_participant_config
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.query import SourceQuery, origin
from veilsum_privacy.study.schema import DatasetSchema, DateColumn

ROWS = [("p1", 60.0, "Köln", "0"), ("p2", 61.5, "Ulm", "1"), ("p1", 62.0, None, "1"), ("p3", None, "Ulm", "0")]
NAMES = ("who", "age", "town", "ill")


def table(rows: list[tuple[object, ...]], age: object = None) -> pa.Table:
    columns = [[row[index] for row in rows] for index in range(4)]
    types = [pa.string(), age or pa.float64(), pa.string(), pa.string()]
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, types, strict=True)], names=list(NAMES))


def one_file(directory: Path) -> Path:
    parquet.write_table(table(ROWS), directory / "whole.parquet")
    return directory / "whole.parquet"


def test_a_folder_and_a_glob_of_parquet_are_read_as_one_file(tmp_path: Path) -> None:
    want = read_table(one_file(tmp_path), SCHEMA, subject="who")
    months = tmp_path / "months" / "2024"
    months.mkdir(parents=True)
    parquet.write_table(table(ROWS[:2]), months / "01.parquet")
    parquet.write_table(table(ROWS[2:]), months / "02.parquet")
    (months / "notes.txt").write_text("no records")
    for path in (tmp_path / "months", tmp_path / "months" / "*" / "0?.parquet", months / "*.parquet"):
        check_structure(path, SCHEMA, subject="who", header=True)
        found = read_table(path, SCHEMA, subject="who", header=True)
        assert rows_of(found) == rows_of(want)
        assert found.rows == 4
        assert check_dataset(path, SCHEMA, subject="who").records == 4


def test_parts_may_differ_in_how_they_store_numbers_but_not_in_what_a_column_is(tmp_path: Path) -> None:
    """Months without a missing value are stored as integers, months without any value as nulls."""
    parquet.write_table(table([("p1", 60, "Ulm", "0")], pa.int64()), tmp_path / "1.parquet")
    parquet.write_table(table([("p2", 61.5, "Ulm", "1")]), tmp_path / "2.parquet")
    parquet.write_table(table([("p3", None, "Ulm", "1")], pa.null()), tmp_path / "3.parquet")
    check_structure(tmp_path, SCHEMA, subject="who")
    assert read_table(tmp_path, SCHEMA, subject="who").columns["age"].to_pylist() == [60.0, 61.5, None]
    parquet.write_table(table([("p4", "62", "Ulm", "1")], pa.string()), tmp_path / "4.parquet")
    for read in (check_structure, read_table):
        with pytest.raises(DataError, match="column 'age' holds double and int64 and null and string"):
            read(tmp_path, SCHEMA, subject="who")


def test_whom_a_record_is_of_is_told_by_one_type(tmp_path: Path) -> None:
    """Were 7 and "7" joined, or long numbers made float64, two persons could become one."""
    for name, kind in (("1", pa.int64()), ("2", pa.int32())):
        column = pa.array([7], kind)
        parquet.write_table(table([ROWS[0]]).set_column(0, "who", column), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="column 'who' holds int32 and int64"):
        check_structure(tmp_path, SCHEMA, subject="who")
    check_structure(tmp_path, SCHEMA)


@pytest.mark.parametrize("name", ["absent", "absent/*.parquet", "absent.parquet", "empty"])
def test_no_part_at_all_is_a_fault_of_structure(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    for read in (check_structure, read_table):
        with pytest.raises(DataError, match=r"there is no such file|holds no Parquet|no file has such a name"):
            read(tmp_path / name, SCHEMA)


JOINED = """
WITH visits AS (SELECT who, try_cast(age AS DOUBLE) AS age, town FROM admissions)
SELECT visits.who, visits.age, visits.town, diagnoses.json->>'$.ill' AS ill
FROM visits JOIN diagnoses ON diagnoses.json->>'$.who' = visits.who AND CAST(diagnoses.json->>'$.age' AS DOUBLE) = visits.age
"""


def joined(directory: Path, rows: list[tuple[object, ...]], text: str = JOINED, **changes: object) -> SourceQuery:
    """A query that joins a CSV file and an ndjson file of one row for each of ``rows``."""
    lines = [",".join("" if cell is None else str(cell) for cell in row[:3]) for row in rows]
    (directory / "admissions.csv").write_text("\n".join(["who,age,town", *lines, ""]))
    said = [json.dumps({"who": row[0], "age": row[1], "ill": row[3]}) for row in rows]
    (directory / "diagnoses.ndjson").write_text("\n".join(said))
    files = {"admissions": directory / "admissions.csv", "diagnoses": directory / "diagnoses.ndjson"}
    return SourceQuery("records", text, files=files, **changes)  # type: ignore[arg-type]


def test_a_query_joins_files_and_yields_what_one_file_holds(tmp_path: Path) -> None:
    rows = [row for row in ROWS if row[1] is not None]
    parquet.write_table(table(rows), tmp_path / "whole.parquet")
    query = joined(tmp_path, rows)
    check_structure(query, SCHEMA, subject="who")
    assert sorted(groups_of(query, SCHEMA)) == sorted(groups_of(tmp_path / "whole.parquet", SCHEMA))
    records, _ = load_records(query, SCHEMA, "who")
    assert (len(records), len(np.unique(records.subjects))) == (3, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [[], ROWS, [("", 'x"', "\x00", "?")], [("p", 1e400, "a", {"b": 1})] * 3])
def test_records_have_no_part_in_whether_a_query_is_accepted(tmp_path: Path, rows: list[tuple[object, ...]]) -> None:
    """With types guessed from records, a column of digits would be a number, and trim() of it an error."""
    good = joined(tmp_path, rows, "SELECT trim(who) AS who, age, town, '0' AS ill FROM admissions")
    check_structure(good, SCHEMA, subject="who")
    wrong = joined(tmp_path, rows, "SELECT who, age + 1 AS age, town, '0' AS ill FROM admissions")
    with pytest.raises(DataError, match="The query of dataset records: Binder Error"):
        check_structure(wrong, SCHEMA, subject="who")


def test_a_query_on_parquet_folders(tmp_path: Path) -> None:
    (tmp_path / "it's").mkdir()
    parquet.write_table(table(ROWS[:2]), tmp_path / "it's" / "1.parquet")
    parquet.write_table(table(ROWS[2:]), tmp_path / "it's" / "2.parquet")
    text = "SELECT who, sum(CAST(age AS INTEGER)) AS age, max(town) AS town, max(ill) AS ill FROM visits GROUP BY who"
    query = SourceQuery("records", text, files={"visits": tmp_path / "it's"})
    check_structure(query, SCHEMA, subject="who")
    found = read_table(query, SCHEMA, subject="who")
    assert sorted(rows_of(found), key=str) == [
        (122.0, "Köln", "1", "p1"), (62.0, "Ulm", "1", "p2"), (None, "Ulm", "0", "p3"),
    ]  # fmt: skip
    parquet.write_table(table(ROWS[2:], pa.float32()), tmp_path / "it's" / "2.parquet")
    with pytest.raises(DataError, match=r"are not those of 1\.parquet"):
        check_structure(query, SCHEMA, subject="who")


INFERRED: dict[str, tuple[list[Any], str]] = {
    "numbers": ([pa.array([1, 2]), pa.array([1.5, None]), pa.nulls(2)], "CAST(x AS DOUBLE)"),
    "long numbers": ([pa.array([2**60, -(2**60)]), pa.array([float("nan"), 1e308]), pa.nulls(2)], "CAST(x AS DOUBLE) + 1"),
    "texts": ([pa.array(["7", ""]), pa.nulls(2)], "length(trim(x))"),
    "days": ([pa.array([dt.date(2024, 2, 29), None]), pa.nulls(2)], "year(CAST(x AS DATE))"),
    "times": ([pa.array([0, None], pa.timestamp("us")), pa.nulls(2)], "year(CAST(x AS TIMESTAMP))"),
    "truths": ([pa.array([True, None]), pa.nulls(2)], "CAST(x AS INTEGER)"),
    "decimals": (
        [
            pa.array([Decimal("1.5"), Decimal("-2.25")]),
            pa.array([Decimal("1234.125"), Decimal("20.000")], pa.decimal128(9, 3)),
            pa.nulls(2),
        ],
        "CAST(x AS DOUBLE)",
    ),
    "lists": (
        [pa.array([[1, 2], []]), pa.array([[1.5], None]), pa.array([[], [None]]), pa.nulls(2)],
        "CAST(len(x) + coalesce(x[1], 0) AS DOUBLE)",
    ),
    "lists of lists": ([pa.array([[[]], None]), pa.array([[[1]], []]), pa.nulls(2)], "CAST(len(x) AS DOUBLE)"),
}
"""What a column may be in files that were written without types, by what its records hold; and what is asked of it."""


@pytest.mark.parametrize("which", ["one", "two", "three unlike", pytest.param("three", marks=pytest.mark.system)])
@pytest.mark.parametrize("column", INFERRED)
def test_what_a_writer_infers_from_records_decides_on_no_query(tmp_path: Path, column: str, which: str) -> None:
    """Whichever types it found in which file, the query yields what files of the widest one yield, one by one."""
    found, asked = INFERRED[column]
    wide = found[1 if len(found) > 2 else 0].type

    def yielded(folder: Path, parts: Sequence[Any]) -> list[str]:
        folder.mkdir()
        for place, part in enumerate(parts):
            parquet.write_table(pa.table({"x": part}), folder / f"{place}.parquet")
        query = SourceQuery("records", f"SELECT {asked} AS age FROM t", files={"t": folder})  # noqa: S608
        check_structure(query, AGES)
        return [str(row) for row in rows_of(read_table(query, AGES))]

    stated = [yielded(tmp_path / f"stated {place}", [part.cast(wide, safe=False)]) for place, part in enumerate(found)]
    places = range(len(found))
    if which == "three unlike":
        chosen = list(itertools.permutations(places, 3))
    else:
        chosen = list(itertools.product(places, repeat=["one", "two", "three"].index(which) + 1))
    for number, files in enumerate(chosen):
        want = [row for place in files for row in stated[place]]
        assert yielded(tmp_path / f"{number}", [found[place] for place in files]) == want


AGES = DatasetSchema(columns=SCHEMA.columns[:1])


def alike(subjects: Any) -> list[int]:
    """Which records are of one person, whatever number that has."""
    return np.unique(subjects, return_inverse=True)[1].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("chosen", list(itertools.product(range(3), repeat=3)))
@pytest.mark.parametrize("exact", [False, True], ids=["floating", "decimal"])
def test_what_a_writer_infers_from_records_decides_on_no_folder(
    tmp_path: Path, chosen: tuple[int, ...], *, exact: bool
) -> None:
    """Of numbers of persons, and of ages, of which some file lacks one or all."""
    parts = [pa.array([3, 1, 3, 2**53]), pa.array([1.0, None, 3.0, 7.5]), pa.nulls(4)]
    if exact:
        parts = [
            pa.array([Decimal(text) for text in texts]) for texts in (("3", "1", "10", "30"), ("3.00", "-1.5", "10", "0.25"))
        ]
        parts.append(pa.nulls(4))
    for folder, wide in (("inferred", None), ("stated", pa.decimal128(30, 9) if exact else pa.float64())):
        (tmp_path / folder).mkdir()
        for place, which in enumerate(chosen):
            part = parts[which] if wide is None else parts[which].cast(wide)
            parquet.write_table(pa.table({"who": part, "age": part}), tmp_path / folder / f"{place}.parquet")
        check_structure(tmp_path / folder, AGES, subject="who")
    inferred, stated = (load_records(tmp_path / folder, AGES, "who")[0] for folder in ("inferred", "stated"))
    assert alike(inferred.subjects) == alike(stated.subjects)
    np.testing.assert_array_equal(inferred.features, stated.features)
    for rows in (2, 5, 100):
        streamed = [
            [(alike(batch.subjects), batch.features.tolist()) for batch in read]
            for read in (stream_records(tmp_path / folder, AGES, "who", rows=rows) for folder in ("inferred", "stated"))
        ]
        assert streamed[0] == streamed[1]


def test_columns_that_no_file_has_become_what_a_file_would_hold(tmp_path: Path) -> None:
    """Decimals, sums beyond 64 bits, enumerations and dates; a list is refused by its type."""
    parquet.write_table(table(ROWS[:1]), tmp_path / "1.parquet")
    text = (
        "SELECT sum(7::BIGINT) AS age, 'Ulm'::ENUM('Köln', 'Ulm') AS town, true AS ill, uuid() AS who,"
        " DATE '2024-02-29' AS day FROM t"
    )
    query = SourceQuery("records", text, files={"t": tmp_path / "1.parquet"})
    schema = SCHEMA.model_copy(
        update={"columns": (*SCHEMA.columns, DateColumn(name="day", origin="2024-01-01", low=0, high=366))}
    )
    check_structure(query, schema, subject="who")
    assert rows_of(read_table(query, schema))[0] == (7.0, "Ulm", "2024-02-29", "1")
    records, _ = load_records(query, schema)
    assert records.present.all()
    listed = SourceQuery("records", text.replace("sum(7::BIGINT)", "[7]"), files=query.files)
    with pytest.raises(DataError, match=r"The query of dataset records: column 'age' holds list\."):
        check_structure(listed, SCHEMA)


@pytest.mark.parametrize(
    "log", ["_delta_log/00000000000000000000.json", ".hoodie/hoodie.properties", "metadata/00000-1.metadata.json"]
)
@pytest.mark.parametrize("asked", ["folder", "glob", "partition", "query"])
def test_the_files_of_a_table_with_a_log_are_not_all_records(tmp_path: Path, log: str, asked: str) -> None:
    """Rows that were changed or deleted stay in files of which the log alone says that they do not count any more."""
    (tmp_path / "t" / "year=2024").mkdir(parents=True)
    parquet.write_table(table(ROWS), tmp_path / "t" / "year=2024" / "part-0.parquet")
    folder = tmp_path / "t"
    source: Any = {"glob": folder / "*" / "*.parquet", "partition": folder / "year=2024"}.get(asked, folder)
    if asked == "query":
        source = SourceQuery("records", "SELECT * FROM t", files={"t": folder})
    assert read_table(source, SCHEMA).rows == len(ROWS)
    (folder / log).parent.mkdir()
    (folder / log).write_text("{}")
    for read in (check_structure, read_table):
        with pytest.raises(DataError, match="is a table of Delta Lake, Iceberg or Hudi, whose log says which"):
            read(source, SCHEMA)


@pytest.mark.parametrize("name", ["_temporary/0/part-0.parquet", ".staging/part-0.parquet", "_part-1.parquet"])
def test_what_a_broken_write_leaves_in_a_folder_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """Spark, Hive and Arrow leave it aside; with it, records would count twice."""
    parquet.write_table(table(ROWS), tmp_path / "part-0.parquet")
    (tmp_path / "_SUCCESS").touch()
    assert read_table(tmp_path, SCHEMA).rows == len(ROWS)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table(ROWS), tmp_path / name)
    for read in (check_structure, read_table):
        with pytest.raises(DataError, match=r"holds Parquet in names that begin with \. or _"):
            read(tmp_path, SCHEMA)
    assert read_table(tmp_path / "part*.parquet", SCHEMA).rows == len(ROWS)


def test_a_query_does_not_see_integers_that_are_none(tmp_path: Path) -> None:
    """DuckDB gives a stay of a day as 86,400 million."""
    stays = pa.array([86_400_000_000] * len(ROWS)).cast(pa.duration("us"))
    parquet.write_table(table(ROWS).append_column('st"ay', stays), tmp_path / "t.parquet")
    query = SourceQuery("records", "SELECT * FROM t", files={"t": tmp_path / "t.parquet"})
    assert query_rows(query).column_names == list(NAMES)
    assert read_table(query, SCHEMA).rows == len(ROWS)
    with pytest.raises(DataError, match="Binder Error: Referenced column"):
        check_structure(replace(query, text='SELECT "st""ay" AS age, town, ill FROM t'), SCHEMA)
    parquet.write_table(pa.table({"stay": stays}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="none of its columns holds numbers or texts"):
        check_structure(query, SCHEMA)


@pytest.mark.parametrize(
    ("zone", "ours"),
    [
        *((None, dt.UTC), ("UTC", dt.UTC), ("+05:30", dt.timezone(dt.timedelta(hours=5.5)))),
        *(
            ("-09:30", dt.timezone(dt.timedelta(hours=-9.5))),
            *((name, ZoneInfo(name)) for name in ("Asia/Tokyo", "US/Eastern")),
        ),
    ],
)
def test_a_query_tells_the_days_of_its_files_zone(tmp_path: Path, zone: str | None, ours: dt.tzinfo) -> None:
    """Parquet holds moments; which day one is of only Arrow's note says, which DuckDB does not read."""
    moments = [dt.datetime(2024, 3, 10, hour, 30) for hour in (1, 12, 19, 23)]  # noqa: DTZ001  of UTC
    parquet.write_table(pa.table({"d": pa.array(moments, pa.timestamp("us", zone))}), tmp_path / "t.parquet")
    schema = DatasetSchema(columns=(DateColumn(name="d", low=0, high=9, origin="2024-03-09"),), max_records=9)
    want = [str(moment.replace(tzinfo=dt.UTC).astimezone(ours).date()) for moment in moments]
    text = "SELECT * FROM t ORDER BY d"
    for source in (tmp_path / "t.parquet", SourceQuery("records", text, files={"t": tmp_path / "t.parquet"})):
        assert read_table(source, schema).columns["d"].to_pylist() == want


def test_times_of_several_zones_or_of_an_unknown_one_are_of_utc_or_refused(tmp_path: Path) -> None:
    schema = DatasetSchema(columns=(DateColumn(name="d", low=0, high=9, origin="2024-03-09"),), max_records=9)
    late = [dt.datetime(2024, 3, 10, 23, 30)]  # noqa: DTZ001  of UTC
    for name, zone in (("a", "Asia/Kolkata"), ("b", "America/New_York"), ("odd", "Nowhere/It's")):
        parquet.write_table(pa.table({"d": pa.array(late, pa.timestamp("us", zone))}), tmp_path / f"{name}.parquet")
    two = {name: tmp_path / f"{name}.parquet" for name in ("a", "b")}
    found = read_table(SourceQuery("records", "SELECT a.d FROM a, b", files=two), schema)
    assert found.columns["d"].to_pylist() == ["2024-03-10"]
    with pytest.raises(DataError, match="in a zone that DuckDB does not know"):
        check_structure(SourceQuery("records", "SELECT * FROM t", files={"t": tmp_path / "odd.parquet"}), schema)


@pytest.mark.parametrize("name", ["t[1].parquet", "t*.parquet", "t?.parquet", "[t]/t.parquet"])
def test_a_query_takes_no_files_name_for_a_pattern(tmp_path: Path, name: str) -> None:
    """A browser calls a second download t[1].parquet, by which DuckDB itself would read t1.parquet, here twice."""
    (tmp_path / "[t]").mkdir()
    for path, rows in ((tmp_path / name, ROWS[:1]), (tmp_path / "t1.parquet", ROWS[1:])):
        parquet.write_table(table(rows), path)
    for path, rows in ((tmp_path, len(ROWS)), (tmp_path / name, 1)):
        assert read_table(SourceQuery("records", "SELECT age, town, ill FROM t", files={"t": path}), SCHEMA).rows == rows


@pytest.mark.parametrize("form", ["csv", "parquet", "npz", "query"])
def test_more_records_than_memory_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Where all are held, or all persons told apart; batches hold their own, however many there are."""
    frame = pa.table(
        {"who": [f"p{row}" for row in range(2_000)], "age": [1.0] * 2_000, "town": ["Ulm"] * 2_000, "ill": ["0"] * 2_000}
    )
    path = tmp_path / f"t.{form}"
    {"csv": pacsv.write_csv, "npz": write_npz}.get(form, parquet.write_table)(frame, path)
    source = (
        SourceQuery("records", "SELECT * FROM t", files={"t": path.rename(tmp_path / "t.parquet")})
        if form == "query"
        else path
    )
    reads = [load_records, check_dataset, lambda *given: list(stream_records(*given, "who", rows=10, persons=10_000))]
    for read in reads:
        read(source, SCHEMA)
    monkeypatch.setattr(reader, "_memory", lambda: 20_000)
    if form != "npz":
        assert sum(map(len, stream_records(source, SCHEMA, None, rows=10))) == len(frame)
    for read in reads[: 2 if form == "query" else 3]:
        with pytest.raises(DataError, match=r"holds more records than fit into this machine's memory"):
            read(source, SCHEMA)


def write_npz(frame: Any, path: Path) -> None:
    numpy = {name: frame[name].to_numpy() for name in frame.column_names}
    np.savez(path, **{name: cells if name == "age" else cells.astype("U9") for name, cells in numpy.items()})


@pytest.mark.parametrize("kind", ["UHUGEINT", "BIT"])
def test_what_another_software_takes_for_another_value_is_refused_by_its_type(tmp_path: Path, kind: str) -> None:
    """DuckDB gives its largest number as -1, and bits as letters."""
    text = f"SELECT CAST('1' AS {kind}) AS age, town, ill FROM t"  # noqa: S608
    query = SourceQuery("records", text, files={"t": one_file(tmp_path)})
    for read in (check_structure, read_table):
        with pytest.raises(DataError, match=f"yields a column of {kind}, which"):
            read(query, SCHEMA)


@pytest.mark.parametrize("names", [("age", "Age"), ("Age", "age"), ("ill", "ILL"), ("town", "town")])
def test_a_query_that_yields_two_columns_of_one_name_is_refused_before_it_runs(tmp_path: Path, names: tuple[str, str]) -> None:
    """By either name DuckDB would give the first."""
    text = f'SELECT age, town, ill, 1 AS "{names[0]}", 2 AS "{names[1]}" FROM t'  # noqa: S608
    query = SourceQuery("records", text, files={"t": one_file(tmp_path)})
    for read in (check_structure, read_table):
        with pytest.raises(DataError, match=r"The query of dataset records has two columns of one name, capitals aside"):
            read(query, SCHEMA)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_columns_that_differ_in_capitals_alone_are_no_table_of_a_query(tmp_path: Path, form: str) -> None:
    """DuckDB would give the first of them by either name. By themselves they are read as they are called."""
    path = tmp_path / f"t.{form}"
    for names in (["Age", "age", "town", "ill"], ["\u00e9", "\u00c9", "age", "town", "ill"]):
        cells = dict(zip(names, ["1", "2", "3", "4", "5"], strict=False))
        cells |= {"town": "Ulm", "ill": "0"}
        path.write_text(f"{','.join(cells)}\n{','.join(cells.values())}\n")
        if form == "parquet":
            parquet.write_table(pa.table({name: [cell] for name, cell in cells.items()}), path)
        assert read_table(path, SCHEMA).columns["age"].to_pylist() == [cells["age"]]
        query = SourceQuery("records", "SELECT age, town, ill FROM t", files={"t": path})
        if names[0] == "Age":
            with pytest.raises(DataError, match=rf"t\.{form} has two columns of one name, capitals aside"):
                check_structure(query, SCHEMA)
        else:
            assert read_table(query, SCHEMA).columns["age"].to_pylist() == ["3"]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM '{secret}'",
        "COPY t TO '{out}'",
        "SELECT 1; SELECT 2",
        "",
        "ATTACH '{out}'",
        "CREATE TABLE other AS FROM t",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT pa FROM pa",
    ],
)
def test_a_query_sees_its_tables_and_writes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret.csv").write_text("age,town,ill\n1,Ulm,0\n")
    path = one_file(tmp_path)
    before = sorted(tmp_path.iterdir())
    query = SourceQuery("records", text.format(secret=tmp_path / "secret.csv", out=tmp_path / "out"), files={"t": path})
    for read in (check_structure, read_table):
        with pytest.raises(DataError):
            read(query, SCHEMA)
    assert sorted(tmp_path.iterdir()) == before


def test_what_fails_on_a_record_says_no_more_than_its_kind(tmp_path: Path) -> None:
    query = joined(
        tmp_path, [("Smith", "Jones", "Ulm", "0")], "SELECT CAST(age AS DOUBLE) AS age, town, '0' AS ill FROM admissions"
    )
    check_structure(query, SCHEMA)
    with pytest.raises(DataError) as caught:
        read_table(query, SCHEMA)
    assert "ConversionException" in str(caught.value)
    assert "Jones" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_query_ends_in_time(tmp_path: Path) -> None:
    many = "range(1000000000)"
    text = f"SELECT 1 AS age, 'Ulm' AS town, '0' AS ill FROM t, {many} a, {many} b WHERE hash(a.range, b.range) = 3"  # noqa: S608
    query = SourceQuery("records", text, files={"t": one_file(tmp_path)}, timeout=30)
    check_structure(query, SCHEMA)  # which does not run it
    with pytest.raises(DataError, match="did not end within 1 s"):
        read_table(replace(query, timeout=1), SCHEMA)


def test_a_connection_that_breaks_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where the database is away: a query that fails is not repeated."""
    tried: list[int] = []

    class Away:
        def opened(self) -> NoReturn:
            tried.append(1)
            raise Unavailable("away") if len(tried) < 3 else DataError("failed")

    monkeypatch.setattr(sources, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(sources, "_query_reader", lambda query: Away())
    with pytest.raises(DataError, match="failed"):
        read_table(SourceQuery("records", "SELECT 1"), SCHEMA)
    assert len(tried) == 3
    with pytest.raises(DataError, match="failed"):
        read_table(SourceQuery("records", "SELECT 1"), SCHEMA)
    assert len(tried) == 4


def test_a_dataset_is_a_file_or_a_query(tmp_path: Path) -> None:
    path = tmp_path / "participant.toml"

    def load(lines: str) -> DatasetConfig:
        path.write_text(f'coordinator = "localhost:1"\n[datasets.records]\n{lines}\n')
        return load_participant_config(path).datasets["records"]

    query = 'source = "sql"\nfiles = {visits = "data/visits"}\n'
    offered = load(query + 'query_file = "cohort.sql"\nsubject = "who"')
    (tmp_path / "cohort.sql").write_text("SELECT 1")
    assert origin(offered, "records") == SourceQuery("records", "SELECT 1", files={"visits": tmp_path / "data/visits"})
    assert offered.several_rows
    assert not load(query + 'query = "SELECT 1"\njoined = false').several_rows
    assert not load('path = "records.csv"').several_rows
    assert origin(load('path = "records.csv"'), "records") == tmp_path / "records.csv"
    assert offered.in_batches
    pixels = {"images": {"folder": tmp_path, "shape": (1, 2, 2)}}
    archives: list[dict[str, Any]] = [{"path": tmp_path / "records.npz"}, {"path": tmp_path / "RECORDS.NPZ"}]
    for archive in (*archives, {**archives[0], **pixels}):
        assert not DatasetConfig(**archive).in_batches, "an archive of arrays is read whole"
    for name in ("records.csv", "records.parquet", "folder", "records.npz.csv"):
        others: list[dict[str, Any]] = [{"path": tmp_path / name}, {"s3": {"url": f"s3://hospital/{name}"}}]
        assert all(DatasetConfig(**given).in_batches for given in others)
    for lines, told in (
        ("", "needs a path"),
        ('path = "a.csv"\nquery = "SELECT 1"', 'query is for source = "sql"'),
        (query, "needs query or query_file"),
        (query + 'query = "SELECT 1"', "needs the column subject, or joined = false"),
        (query.replace("}", ', VISITS = "b"}') + 'query = "SELECT 1"\njoined = false', "knows no capitals in the names"),
        (query + 'query = "SELECT 1"\njoined = false\npath = "a.csv"', 'path and header are for source = "file"'),
        (query + 'query = "SELECT 1"\njoined = false\ndsn = "sqlite:///secret"', "needs one of dsn, dsn_file and files"),
    ):
        with pytest.raises(ConfigurationError, match=told) as caught:
            load(lines)
        assert "secret" not in str(caught.value)


def test_a_byte_order_mark_hides_no_line(tmp_path: Path) -> None:
    """At the head of a file, or where two files were put together: a first resource is not lost."""
    lines = [b'{"age": 61}', b'{"age": 62}', b'{"age": 63}']
    mark = b"\xef\xbb\xbf"
    (tmp_path / "t.ndjson").write_bytes(mark + lines[0] + b"\n" + lines[1] + b"\n" + mark + lines[2] + b"\n")
    text = "SELECT (json->>'age')::DOUBLE AS age, 'Ulm' AS town, 1 AS ill FROM t ORDER BY 1"
    table = read_table(SourceQuery("records", text, files={"t": tmp_path / "t.ndjson"}), SCHEMA)
    assert table.columns["age"].to_pylist() == [61.0, 62.0, 63.0]


TIME = dt.datetime.fromisoformat("2020-05-06T07:08:09.000001")
CELLS: dict[str, tuple[Any, list[Any]]] = {
    "double": (pa.float64(), [-1.5, 0.0, -0.0, 1.0, 7.0, 1e300, float("nan"), float("inf"), float("-inf")]),
    "float": (pa.float32(), [-1.5, 0.0, -0.0, 1.0, 7.0, float("nan"), float("inf"), float("-inf")]),
    "half": (pa.float16(), [np.float16(value) for value in (-1.5, 0.0, -0.0, 1.0, 7.0, float("nan"), float("inf"))]),
    "integer": (pa.int64(), [-(2**63), -1, 0, 1, 5, 7, 2**63 - 1]),
    "unsigned": (pa.uint64(), [0, 1, 5, 7, 2**63, 2**64 - 1]),
    "decimal": (pa.decimal128(9, 2), [Decimal("-1.50"), Decimal("0"), Decimal("5"), Decimal("7.01")]),
    "text": (pa.string(), ["", "5", "NaN", "a" * 99, "a" * 98 + "b", "ö", "\U0010ffff", "\U0010ffff" * 40]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(2020, 5, 6), dt.date(9999, 12, 31)]),
    "time": (pa.timestamp("us"), [TIME.replace(year=1), TIME, TIME.replace(microsecond=2), TIME.replace(year=9999)]),
    "nanosecond": (pa.timestamp("ns"), [TIME, TIME.replace(microsecond=2), TIME.replace(year=1970)]),
    "boolean": (pa.bool_(), [True, False]),
}
CONDITIONS = (
    "x > {}",
    "x >= {}",
    "NOT x < {}",
    "x = {}",
    "x <> {}",
    "x BETWEEN {} AND {}",
    "x IN ({}, {})",
    "x IS DISTINCT FROM {}",
)
ANSWERS = (
    "count(*)",
    "count(x)",
    "max(x)::text",
    "min(x)::text",
    "count(*) FILTER (WHERE {})",
    "count(CASE WHEN {} THEN 1 END)",
)


DRAWN = (st.sampled_from(CONDITIONS), st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=2, unique=True))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data(), kind=st.sampled_from([*CELLS]), group=st.integers(1, 5), index=st.booleans())
def test_what_a_file_says_of_its_records_decides_on_none(
    tmp_path: Path, data: st.DataObject, kind: str, group: int, index: bool
) -> None:
    """A query on Parquet, whose footer tells least and greatest values, answers as it does on a table in memory."""
    stored, known = CELLS[kind]
    cells = data.draw(st.lists(st.sampled_from([None, *known]), max_size=12))
    _compare_with_memory(tmp_path, pa.array(cells, stored), group, index, *map(data.draw, DRAWN))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("others", [[], [1.0], [7.0], [1.0, 7.0]])
def test_nobody_elses_number_decides_on_a_nan(tmp_path: Path, condition: str, others: list[float]) -> None:
    cells = [float("nan"), *others]
    _compare_with_memory(tmp_path, pa.array(cells, pa.float64()), 9, True, condition, ANSWERS)


@pytest.mark.parametrize("kind", [*CELLS])
def test_the_greatest_value_is_a_record_s_own(tmp_path: Path, kind: str) -> None:
    """A file that may hold a NaN is no file that does: that is no answer to the question of the greatest number."""
    stored, known = CELLS[kind]
    for cells in (known[:1], [*known[:4], None], [None]):
        _compare_with_memory(tmp_path, pa.array(cells, stored), 2, False, "x IS NULL", ("max(x)::text", "min(x)::text"))


def _compare_with_memory(directory: Path, cells: Any, group: int, index: bool, condition: str, answers: Sequence[str]) -> None:
    import duckdb

    path = directory / "t.parquet"
    parquet.write_table(pa.table({"x": cells}), path, row_group_size=group, write_page_index=index, data_page_size=8)
    kept = duckdb.connect()
    kept.execute("SET TimeZone = 'UTC'")
    memory = pa.table({"x": cells.cast(pa.float32()) if cells.type == pa.float16() else cells})
    kept.register("given", memory)
    kept.execute("CREATE TABLE t AS SELECT * FROM given")
    ((_, name, *_),) = kept.execute("DESCRIBE t").fetchall()
    texts: dict[str, None] = {}
    for bound in ("5", "NaN") if "FLOAT" in name or "DOUBLE" in name else ("5",):
        told = {"DATE": "2020-05-06", "BOOLEAN": "true"}.get(name, "2020-05-06 07:08:09.000001" if "TIME" in name else bound)
        where = condition.replace("{}", f"CAST('{told}' AS {name})")
        for answer in answers:
            text = f"SELECT {answer.replace('{}', where)} AS n FROM t"  # noqa: S608
            texts |= {text: None, f"{text} WHERE {where}": None}  # not every one names the bound
    for asked in texts:
        found = query_rows(SourceQuery("q", asked, files={"t": path})).to_pylist()
        assert [tuple(row.values()) for row in found] == kept.execute(asked).fetchall(), asked
