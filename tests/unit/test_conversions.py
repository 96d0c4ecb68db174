"""A conversion of a query on files is named if a cell can make it fail, as DuckDB tells of cells at the ends of each type."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from support.tables import ORDER, SCHEMA
from veilsum_node.process.check import CheckOutcome
from veilsum_participant.checks.datasets import dataset
from veilsum_participant.data.conversions import risky_casts
from veilsum_participant.data.duck import risks
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.query import SourceQuery

DECIMALS = ((4, 1), (18, 3), (38, 0), (38, 37))
CELLS = {
    "BOOLEAN": ["true", "false"],
    **{
        f"{sign}{kind}": [str(0 if sign else -(2 ** (bits - 1))), str(2**bits - 1 if sign else 2 ** (bits - 1) - 1)]
        for kind, bits in {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}.items()
        for sign in ("", "U")
    },
    "FLOAT": ["nan", "inf", "3.4e38", "-3.4e38"],
    "DOUBLE": ["nan", "-inf", "1.7e308", "-1.7e308"],
    **{
        f"DECIMAL({wide},{scale})": [f"{sign}{'9' * (wide - scale)}.{'9' * scale}" for sign in ("", "-")]
        for wide, scale in DECIMALS
    },
    "VARCHAR": ["odd", "", "1e999", "\0"],
    "JSON": ['{"a": 1}', '"odd"', "null"],
    "DATE": ["5881580-07-10", "5877642-06-25 (BC)", "infinity"],
    "TIMESTAMP": ["294247-01-10 04:00:54", "290309-12-22 (BC)", "infinity"],
    "TIMESTAMPTZ": ["294247-01-10 04:00:54+00", "290309-12-22 (BC) 00:00:00+00", "infinity"],
    "TIME": ["24:00:00", "00:00:00"],
    "INTEGER[]": ["[2147483647]", "[]"],
    "VARCHAR[]": ["[odd]"],
    "STRUCT(a INTEGER)": ["{a: -2147483648}"],
    "STRUCT(a BIGINT, b VARCHAR)": ["{a: 9223372036854775807, b: odd}"],
}  # fmt: skip
"""The least and the greatest values of DuckDB's types, and what is none of another's."""


def test_a_conversion_is_named_if_a_cell_can_make_it_fail() -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'America/New_York'")
    named = 0
    for kind, cells in CELLS.items():
        connection.execute(f"CREATE OR REPLACE TABLE t (x {kind})")
        for other in CELLS:
            query = f"SELECT CAST(x AS {other}) AS y FROM t"  # noqa: S608
            (told,) = connection.execute("SELECT json_serialize_plan($1)", [query]).fetchone() or ("",)
            if (plan := json.loads(told))["error"]:
                continue  # no cell of the one type is one of the other, which is told before any is read
            found, fails = list(risky_casts(plan)), []
            for cell in cells:
                connection.execute("DELETE FROM t")
                connection.execute(f"INSERT INTO t SELECT CAST($1 AS {kind})", [cell])
                try:
                    connection.execute(f"SELECT count(y) FROM ({query})").fetchall()  # noqa: S608
                except duckdb.Error:
                    fails.append(cell)
            assert bool(found) == bool(fails), (kind, other, found, fails)
            named += bool(found)
            tried = connection.execute("SELECT json_serialize_plan($1)", [query.replace("CAST", "TRY_CAST")]).fetchone()
            assert not list(risky_casts(json.loads(tried[0]))), "it gives NULL"  # type: ignore[index]
    assert named > 100


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT who, age, town, ill FROM t", []),
        ("SELECT who, TRY_CAST(age AS DOUBLE) AS age, town, ill FROM t WHERE TRY_CAST(ill AS INTEGER) IN (0, 1)", []),
        ("SELECT who, CAST(age AS DOUBLE) AS age, town, ill FROM t", ["age: VARCHAR as DOUBLE"]),
        ("SELECT who, age, town, ill FROM t WHERE ill IN (0, 1)", ["ill: VARCHAR as INTEGER"]),
        ("SELECT who, age, town, ill FROM t JOIN p ON t.who = p.n", ["who: VARCHAR as BIGINT"]),
        ("SELECT who, age, town, CASE ill WHEN 1 THEN '1' ELSE '0' END AS ill FROM t", ["ill: VARCHAR as INTEGER"]),
        ("SELECT who, CAST(n AS INTEGER) AS age, town, ill FROM t, p", ["n: BIGINT as INTEGER"]),
        ("SELECT who, age, town, ill FROM t JOIN j ON CAST(json->>'$.id' AS BIGINT) = 1", ["VARCHAR as BIGINT"]),
        ("SELECT who, age, town, ill FROM t WHERE TRY_CAST(age AS DATE) < TIMESTAMP '2020-01-01'", ["DATE as TIMESTAMP"]),
        ("SELECT who, 1 + CAST('1' AS INTEGER) AS age, town, ill FROM t", []),
    ],
)
def test_a_sites_check_names_what_one_cell_can_make_fail(tmp_path: Path, text: str, found: list[str]) -> None:
    (tmp_path / "t.csv").write_text("who,age,town,ill\n1,30,Ulm,1\n")
    (tmp_path / "j.ndjson").write_text('{"id": 1}\n')
    parquet.write_table(pa.table({"n": [1]}), tmp_path / "p.parquet")
    files = {"t": tmp_path / "t.csv", "p": tmp_path / "p.parquet", "j": tmp_path / "j.ndjson"}
    assert risks(SourceQuery("d", text, files=files)) == found
    (tmp_path / "q.sql").write_text(text)
    offered = DatasetConfig(
        source="sql", query_file=tmp_path / "q.sql", subject="who", joined=False, files=files, columns=ORDER
    )
    for schema in (None, SCHEMA):
        lines = [check for check in dataset("d", offered, schema) if "a cell that it cannot convert" in check.detail]
        assert [check.status for check in lines] == [CheckOutcome.WARNING] * bool(found)
        assert all(one in check.detail for one in found for check in lines)
