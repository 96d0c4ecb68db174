"""The shipped queries for OMOP CDM 5.4, on a small database of that layout in PostgreSQL and on its tables as Parquet files.

What they yield is worked out again, person by person, in plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from support.omop import LAYOUT, LESS, MEASURES, TABLES, Row, Rows, expected, fill, known, make_persons, stay_days, visit_kind
from support.postgres import server
from support.tables import totals
from veilsum_node.errors import DataError
from veilsum_participant.cli.participant import app
from veilsum_participant.data import check_dataset, check_structure, load_records
from veilsum_participant.data.duck import risks
from veilsum_participant.data.sources import query_rows, read_table, reader_of
from veilsum_participant.settings.query import SourceQuery
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.schema_file import load_schema

PERSONS = 200
QUERIES = ("persons", "conditions", "drugs", "measurements", "visits", "cohort")
Ask = Callable[[str], SourceQuery]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recipe")
    ran = CliRunner().invoke(app, ["recipe", "omop", str(directory)])
    assert ran.exit_code == 0, ran.output
    assert {path.name for path in directory.iterdir()} == {
        *(f"{name}.{end}" for name in QUERIES for end in ("sql", "toml")),
        "misses.sql",
    }
    return directory


@pytest.fixture(scope="module")
def rows() -> Rows:
    return make_persons(PERSONS)


@pytest.fixture(scope="module")
def database(rows: Rows) -> str:
    return fill(rows)


@pytest.fixture(scope="module")
def export(database: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tables as Parquet files."""
    directory = tmp_path_factory.mktemp("cdm")
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(database) as connection, connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"SELECT * FROM {table}")  # noqa: S608
            found = cursor.fetch_arrow_table()
            storage = [
                pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
                if isinstance(column.type, pa.BaseExtensionType)
                else column
                for column in found.columns
            ]
            numbers = [
                column.cast(pa.float64()) if name in ("value_as_number", "quantity", "range_low", "range_high") else column
                for name, column in zip(found.column_names, storage, strict=True)
            ]
            parquet.write_table(pa.table(numbers, names=found.column_names), directory / f"{table}.parquet")
    return directory


@pytest.fixture(params=["postgres", "parquet"])
def ask(request: pytest.FixtureRequest, recipe: Path, database: str, export: Path) -> Ask:
    def asked(name: str) -> SourceQuery:
        text = (recipe / f"{name}.sql").read_text()
        if request.param == "postgres":
            return SourceQuery(name, text, dsn=SecretStr(database))
        return SourceQuery(name, text, files={table: export / f"{table}.parquet" for table in TABLES})

    return asked


def plain(schema: DatasetSchema, rows: list[Row]) -> list[tuple[object, ...]]:
    """Rows in the schema's columns, numbers as rounded floats, in an order that both sides share."""
    texts = {column.name for column in schema.columns if column.kind == "category"} | {"died"}
    names = [*schema.file_columns, "person_id"]
    found = [
        tuple(
            row[name] if name in texts or row[name] is None else round(float(row[name]), 9) for name in names
        )
        for row in rows
    ]  # fmt: skip
    return sorted(found, key=repr)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_yields_what_it_says(ask: Ask, recipe: Path, rows: Rows, name: str) -> None:
    schema = load_schema(recipe / f"{name}.toml")
    query = ask(name)
    check_structure(query, schema, subject="person_id")
    table = read_table(query, schema, subject="person_id")
    read = {**{column: array.to_pylist() for column, array in table.columns.items()}, "person_id": table.subjects.to_pylist()}
    found = [dict(zip(read, values, strict=True)) for values in zip(*read.values(), strict=True)]
    want = expected(name, rows)
    assert plain(schema, found) == plain(schema, want)
    assert len(want) > PERSONS / 2


@pytest.mark.parametrize("name", ["conditions", "drugs", "visits", "cohort"])
def test_a_concept_that_the_vocabulary_does_not_place_below_itself_counts(
    tmp_path: Path, recipe: Path, export: Path, name: str
) -> None:
    """Athena's files say of each standard concept that it is its own ancestor; a vocabulary that was cut down may not."""
    files = {table: export / f"{table}.parquet" for table in TABLES}
    query = SourceQuery(name, (recipe / f"{name}.sql").read_text(), files=files)
    whole = parquet.read_table(export / "concept_ancestor.parquet")
    below = whole.filter(pc.not_equal(whole["ancestor_concept_id"], whole["descendant_concept_id"]))
    assert 0 < below.num_rows < whole.num_rows
    parquet.write_table(below, tmp_path / "below.parquet")
    cut = replace(query, files={**files, "concept_ancestor": tmp_path / "below.parquet"})
    assert sorted(map(repr, query_rows(cut).to_pylist())) == sorted(map(repr, query_rows(query).to_pylist()))


def test_what_is_left_aside_is_counted(ask: Ask, rows: Rows) -> None:
    found = {row["what"]: (row["number"], row["of"]) for row in query_rows(ask("misses")).to_pylist()}
    persons = {row["person_id"]: row["year_of_birth"] for row in rows["person"]}
    died = {row["person_id"]: row["death_date"] for row in rows["death"]}
    observed = {row["person_id"] for row in rows["observation_period"]}
    assert found["person: stands twice"] == (len(rows["person"]) - len(persons), len(rows["person"])) != (0, 0)
    assert found["person: has no observation period"] == (len(persons.keys() - observed), len(persons))
    tables = {
        "condition_occurrence": ("condition_concept_id", "condition_start_date"),
        "drug_exposure": ("drug_concept_id", "drug_exposure_start_date"),
        "measurement": ("measurement_concept_id", "measurement_date"),
        "visit_occurrence": ("visit_concept_id", "visit_start_date"),
    }
    for table, (concept, start) in tables.items():
        own = rows[table]
        twice = len(own) - len({row[f"{table}_id"] for row in own})
        wrong = sum(
            row[start].year < persons.get(row["person_id"], 0) or row[start] > died.get(row["person_id"], date.max)  # type: ignore[attr-defined, operator]
            for row in own
        )
        assert found[f"{table}: read"] == (None, len(own))
        assert found[f"{table}: stands twice"] == (twice, len(own)) != (0, len(own))
        assert found[f"{table}: is of no person"] == (sum(row["person_id"] not in persons for row in own), len(own))
        assert found[f"{table}: has no concept (0)"] == (sum(row[concept] == 0 for row in own), len(own))
        assert found[f"{table}: begins before its person was born, or after their death"] == (wrong, len(own))
    visits = rows["visit_occurrence"]
    assert found["visit_occurrence: is of no person"][0] > 0
    assert found["visit_occurrence: ends before it begins, or never"][0] == sum(stay_days(row) is None for row in visits) > 0
    kinds = [visit_kind(row["visit_concept_id"]) for row in visits if row["visit_concept_id"]]
    assert found["visit_occurrence: is of a kind other than inpatient, outpatient and emergency"][0] == kinds.count(None) > 0
    units = {"hba1c": "%", "creatinine": "mg/dL", "systolic": "mmHg", "bmi": "kg/m2"}
    for kind, (code, unit) in MEASURES.items():
        own = [row for row in rows["measurement"] if row["measurement_concept_id"] == code]
        other = sum(row["unit_concept_id"] != unit for row in own)
        assert found[f"measurement: {kind} in another unit than {units[kind]}"] == (other, len(own))
        assert (
            found[f"measurement: {kind} with an operator, such as <"][0]
            == sum(row["operator_concept_id"] == LESS for row in own)
            > 0
        )
        assert found[f"measurement: {kind} without a value"][0] == sum(known(row) is None for row in own)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", QUERIES)
def test_its_schema_fits_what_it_yields(ask: Ask, recipe: Path, rows: Rows, name: str) -> None:
    """Columns vary within their bounds, and nothing is wrong but what was made up outside of them."""
    schema = load_schema(recipe / f"{name}.toml")
    report = check_dataset(ask(name), schema, subject="person_id")
    assert "person_id" not in totals(report)
    wrong = {finding.column for finding in report.findings if finding.kind != "missing value"}
    assert wrong <= {"systolic", "bmi", "creatinine", "hba1c"}, "the made-up measurements are all between 4 and 15"
    records, _ = load_records(ask(name), schema, "person_id")
    assert records.subjects is not None
    assert (len(np.unique(records.subjects)) < len(records)) == (name in ("measurements", "visits")), (
        "joined = false suits the others"
    )
    assert (records.features.max(axis=0) > records.features.min(axis=0)).all() or name == "measurements"


DAY, DAYS = date(2010, 1, 1), 14_610
"""A day, and how many after 1970 it is."""
BENIGN: dict[str, dict[str, Any]] = {
    "person": {"person_id": 0, "gender_concept_id": 8507, "year_of_birth": 1950},
    "observation_period": {
        "observation_period_id": 0, "person_id": 0, "observation_period_start_date": DAY, "observation_period_end_date": DAY,
    },
    "condition_occurrence": {
        "condition_occurrence_id": 0, "person_id": 0, "condition_concept_id": 201820, "condition_start_date": DAY,
    },
    "drug_exposure": {"drug_exposure_id": 0, "person_id": 0, "drug_concept_id": 1503297, "drug_exposure_start_date": DAY},
    "measurement": {
        "measurement_id": 0, "person_id": 0, "measurement_concept_id": 3004410, "measurement_date": DAY,
        "operator_concept_id": 0, "value_as_number": 7, "unit_concept_id": 8554,
    },
    "visit_occurrence": {
        "visit_occurrence_id": 0, "person_id": 0, "visit_concept_id": 9201, "visit_start_date": DAY, "visit_end_date": DAY,
    },
    "death": {"person_id": 0, "death_date": DAY},
}  # fmt: skip
"""A row of each table that the queries use; a hostile cell stands in one of these, so that nothing else keeps it out."""


def sort_of(column: str) -> str:
    return "day" if column.endswith("_date") else "value" if column == "value_as_number" else "whole"


def hostile_rows(cells: dict[str, list[Any]]) -> Rows:
    """A person with nothing odd; for each column and each cell one who has it twice; for each column one who has them all."""
    rows: Rows = {table: [] for table in BENIGN}

    def add(odd: str = "", column: str = "", some: list[Any] = []) -> None:  # noqa: B006  # not changed
        person = len(rows["person"]) + 1
        for table, row in BENIGN.items():
            for cell in some if table == odd else [None]:
                own = {"person_id": person, f"{table}_id": len(rows[table]) + 1, **({column: cell} if table == odd else {})}
                rows[table].append({**row, **{name: value for name, value in own.items() if name in row}})

    add()
    for table, row in BENIGN.items():
        for column in row:
            found = cells[sort_of(column)]
            for some in (*([cell, cell] for cell in found), found):
                add(table, column, some)
    return rows


def answers(recipe: Path, ask: Callable[[str, str], SourceQuery]) -> dict[str, list[str]]:
    """What each query says of the person with nothing odd, or why it is refused, whatever the tables hold."""
    found = {}
    for name in (*QUERIES, "misses"):
        query = ask(name, (recipe / f"{name}.sql").read_text())
        try:
            reader_of(query).layout()
        except DataError:
            continue
        rows = query_rows(query).to_pylist()
        found[name] = [repr({key: str(cell) for key, cell in row.items()}) for row in rows if row.get("person_id") == 1]
    return found


ENDS = {"whole": ["-2147483648", "2147483647", "0", "NULL"], "day": ["'infinity'", "'-infinity'", "'4713-01-01 BC'", "NULL"]}
VALUES = {
    "numeric": ["'NaN'", "1e300", "-1e300", "1e-300", f"{'9' * 131_072}", f"1e-{16_383}", "'infinity'"],
    "float8": ["'NaN'", "1.7e308", "-1.7e308", "5e-324", "1e200", "-1e200", "'infinity'"],
    "real": ["'NaN'", "3.4e38", "-3.4e38", "1e-45", "'-infinity'"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
}


@pytest.mark.parametrize(("value", "day"), [*zip(VALUES, ["date", "timestamp", "timestamptz", "date"], strict=True)])
def test_no_cell_makes_a_query_of_postgresql_fail(recipe: Path, value: str, day: str) -> None:
    """Numbers at the ends of their types, dates that never end, and nothing at all, each in a row that a query uses."""
    url = server().new_database()

    def ask(name: str, text: str) -> SourceQuery:
        return SourceQuery(name, text, dsn=SecretStr(url))

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(LAYOUT.encode())
        for table, row in BENIGN.items():
            for column, kind in {name: day if sort_of(name) == "day" else value for name in row}.items():
                if sort_of(column) != "whole":
                    connection.execute(f"ALTER TABLE {table} ALTER {column} TYPE {kind}".encode())
        rows = hostile_rows({**ENDS, "value": ["NULL", *VALUES[value]]})
        found = []
        for some in (slice(0, 1), slice(1, None)):
            for table, made in rows.items():
                for row in made[some]:
                    cells = (f"'{cell}'" if isinstance(cell, date) else str(cell) for cell in row.values())
                    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(cells)})".encode())  # noqa: S608
            found.append(answers(recipe, ask))
    assert found[0].keys() == {*QUERIES, "misses"}
    assert all(name == "misses" or found[0][name] for name in found[0])
    assert found[1] == found[0]
    for name in QUERIES:
        load_records(ask(name, (recipe / f"{name}.sql").read_text()), load_schema(recipe / f"{name}.toml"), "person_id")


FLOATS = [float("nan"), float("inf"), -float("inf"), 1.7e308, -1.7e308, 5e-324, 1e200, -1e200, None]
LONG, SHORT = 2**63 - 1, 2**31 - 1
NINES = {
    scale: [*map(Decimal, (f"{'9' * (38 - scale)}.{'9' * scale}", f"-{'9' * (38 - scale)}.{'9' * scale}"))]
    for scale in (0, 10, 37)
}
CELLS: dict[Any, list[Any]] = {
    pa.int16(): [-32768, 32767, 0, None], pa.int32(): [-SHORT - 1, SHORT, 0, None], pa.int64(): [-LONG - 1, LONG, 0, -1, None],
    pa.uint64(): [2**64 - 1, 0], pa.float32(): [3.4e38, -3.4e38, *FLOATS[:3]], pa.float64(): FLOATS,
    **{pa.decimal128(38, scale): cells for scale, cells in NINES.items()},
    pa.string(): ["odd", "", "NaN", "1e999", "\0", None],
    pa.date32(): [-SHORT - 1, -SHORT, 1 - SHORT, 2 - SHORT, SHORT - 1, SHORT, None],
    **{
        pa.timestamp(unit, zone): [-LONG - 1, -LONG, 1 - LONG, -(2**62), 2**62, LONG - 1, LONG, None]
        for unit in ("ms", "us", "ns") for zone in (None, "UTC")
    },
}  # fmt: skip
"""Cells at the ends of Arrow's types, days and moments as the numbers that are stored."""
TYPES = {
    "whole": [pa.int64(), pa.int32(), pa.uint64(), pa.float64(), pa.decimal128(38, 0), pa.decimal128(38, 10)],
    "day": [kind for kind in CELLS if pa.types.is_date(kind) or pa.types.is_timestamp(kind)],
    "value": [pa.float64(), pa.float32(), *(pa.decimal128(38, scale) for scale in NINES), pa.int64(), pa.uint64()],
}


def stored(kind: Any, cells: list[Any]) -> Any:
    """An Arrow array of cells; of a day or a moment either a date or the number that is stored."""
    if not pa.types.is_date(kind) and not pa.types.is_timestamp(kind):
        return pa.array([str(cell) if pa.types.is_string(kind) and cell is not None else cell for cell in cells], kind)
    day = {"ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}[kind.unit] if pa.types.is_timestamp(kind) else 1
    numbers = [DAYS * day if isinstance(cell, date) else cell for cell in cells]
    return pa.array(numbers, pa.int32() if pa.types.is_date(kind) else pa.int64()).view(kind)


def write_tables(directory: Path, rows: Rows, kinds: dict[str, Any]) -> dict[str, Path]:
    """Tables as Parquet, of these types by :func:`sort_of`, identifiers as integers."""
    files = {}
    for table, row in BENIGN.items():
        own = {name: pa.int64() if name in ("person_id", f"{table}_id") else kinds[sort_of(name)] for name in row}
        columns = {name: stored(kind, [one[name] for one in rows[table]]) for name, kind in own.items()}
        files[table] = directory / f"{table}.parquet"
        parquet.write_table(pa.table(columns), files[table])
    pair = {"ancestor_concept_id": [201820], "descendant_concept_id": [201820]}
    parquet.write_table(pa.table(pair), directory / "concept_ancestor.parquet")
    return {**files, "concept_ancestor": directory / "concept_ancestor.parquet"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("turn", range(7))
def test_no_cell_makes_a_query_on_parquet_fail(tmp_path: Path, recipe: Path, turn: int) -> None:
    kinds = {sort: found[turn % len(found)] for sort, found in TYPES.items()}
    rows = hostile_rows({sort: CELLS[kind] for sort, kind in kinds.items()})
    for table, made in rows.items():  # who is whose is told by integers of one type
        for row in made:
            for name in {"person_id", f"{table}_id"} & row.keys():
                row[name] = row[name] if isinstance(row[name], int) and abs(row[name]) <= LONG else None  # type: ignore[arg-type]
    found = []
    for some in (slice(0, 1), slice(0, None)):
        files = write_tables(tmp_path, {table: made[some] for table, made in rows.items()}, kinds)
        found.append(answers(recipe, lambda name, text: SourceQuery(name, text, files=files)))  # noqa: B023  # asked here
    assert found[0].keys() == {*QUERIES, "misses"}
    assert all(name == "misses" or found[0][name] for name in found[0])
    assert found[1] == found[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("column", [*dict.fromkeys(name for row in BENIGN.values() for name in row)])
def test_of_texts_where_the_layout_has_none_a_check_names_what_can_fail(tmp_path: Path, recipe: Path, column: str) -> None:
    """DuckDB compares a text with an integer by a conversion that nobody wrote, and fails on the first text that is none."""
    kinds = {"whole": pa.int64(), "day": pa.date32(), "value": pa.float64()}
    rows = hostile_rows({sort: [None] for sort in kinds})
    files = write_tables(tmp_path, rows, kinds)
    queries = [SourceQuery(name, (recipe / f"{name}.sql").read_text(), files=files) for name in (*QUERIES, "misses")]
    assert not any(map(risks, queries)), "the layout's own types"
    for table in (table for table, row in BENIGN.items() if column in row):
        write_tables(tmp_path, rows, kinds)
        found = parquet.read_table(files[table])
        texts = [None, *CELLS[pa.string()]] * len(found)
        parquet.write_table(
            found.set_column(found.column_names.index(column), column, pa.array(texts[: len(found)], pa.string())),
            files[table],
        )
        for query in queries:
            try:
                reader_of(query).layout()
            except DataError:
                continue
            if not risks(query):
                query_rows(query)
