"""The shipped queries for OMOP CDM 5.4, on a small database of that layout in PostgreSQL and on its tables as Parquet files.

What they yield is worked out again, person by person, in plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

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
from veilsum_participant.cli.participant import app
from veilsum_participant.data import check_dataset, check_structure, load_records
from veilsum_participant.data.sources import query_rows, read_table
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


def test_no_record_makes_a_query_fail(recipe: Path) -> None:
    """Numbers at the ends of their types, dates that never end, and nothing at all."""
    url = server().new_database()
    ends = {
        "integer": ["-2147483648", "2147483647", "0"],
        "date": ["'infinity'", "'-infinity'", "'4713-01-01 BC'"],
        "numeric": ["'NaN'", "1e300", "-1e300"],
    }
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(LAYOUT.encode())
        for table, columns in TABLES.items():
            for place in range(3):
                values = {name: ends[kind][place] for name, kind in columns.items() if kind in ends}
                if "person_id" in values:
                    values["person_id"] = "1"
                text = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(values.values())})"  # noqa: S608
                connection.execute(text.encode())
            connection.execute(f"INSERT INTO {table} DEFAULT VALUES".encode())
    for name in QUERIES:
        query = SourceQuery(name, (recipe / f"{name}.sql").read_text(), dsn=SecretStr(url))
        load_records(query, load_schema(recipe / f"{name}.toml"), "person_id")
    query_rows(SourceQuery("misses", (recipe / "misses.sql").read_text(), dsn=SecretStr(url)))
