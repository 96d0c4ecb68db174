"""Checking a file: every violation is found and placed, also in files with broken rows and blank lines."""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from support.tables import places, totals
from veilsum_node.errors import DataError
from veilsum_participant.checks.datasets import dataset
from veilsum_participant.data import FindingKind, check_dataset, load_records, table
from veilsum_participant.data.check import SHOWN
from veilsum_participant.data.subjects import spelled_alike
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.schema_file import load_schema

SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=100, unit="years"),
        CategoryColumn(name="sex", categories=("f", "m")),
    ),
    label=LabelColumn(column="ill", classes=(ClassValues(name="no", values=("0",)), ClassValues(name="yes", values=("1",)))),
    max_records=6,
)


def write(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "data.csv"
    path.write_text(content, encoding="utf-8")
    return path


def test_what_a_schema_names_is_gathered_as_often_for_many_columns_as_for_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked up column by column, it took longer than all else where there are a thousand of them."""
    real, calls = table.named_texts, []

    def counted(*given: Any) -> Any:
        calls[-1] += 1
        return real(*given)

    monkeypatch.setattr(table, "named_texts", counted)
    for width in (2, 200):
        names = [f"x{index}" for index in range(width)]
        columns = tuple(NumberColumn(name=name, low=0, high=1) for name in names)
        path = write(tmp_path, f"{','.join(names)},ill\n{','.join(['0.5'] * width)},1\n")
        calls.append(0)
        records, _ = load_records(path, SCHEMA.model_copy(update={"columns": columns}))
        assert (records.features == 0).all()
        assert records.features.shape == (1, width)
    assert calls[0] == calls[1] > 0


def test_clean_file(tmp_path: Path) -> None:
    report = check_dataset(write(tmp_path, "age,sex,ill\n20,f,0\n100,m,1\n"), SCHEMA)
    assert report.ok
    assert report.records == 2
    assert report.findings == ()


def test_every_violation_is_placed(tmp_path: Path) -> None:
    lines = [
        "age,sex,ill",  # line 1
        "30,f,0",  # row 1
        "",  # blank: no row
        "abc,m,0",  # row 2, line 4
        "40,m",  # row 3, line 5: broken
        "19.5,f,1",  # row 4, line 6
        "40,x,1",  # row 5, line 7
        "",
        "40,f,2",  # row 6, line 9
        "?,f,1",  # row 7, line 10
        "40,f,1",  # row 8, line 11: beyond max_records = 6, since row 3 is not a record
    ]
    report = check_dataset(write(tmp_path, "\n".join(lines) + "\n"), SCHEMA)
    assert places(report) == [
        (2, 4, "age", FindingKind.NOT_A_NUMBER),
        (3, 5, None, FindingKind.BROKEN_ROW),
        (4, 6, "age", FindingKind.OUT_OF_BOUNDS),
        (5, 7, "sex", FindingKind.UNKNOWN_CATEGORY),
        (6, 9, "ill", FindingKind.UNKNOWN_CLASS),
        (7, 10, "age", FindingKind.MISSING),
        (8, 11, None, FindingKind.TOO_MANY_RECORDS),
    ]
    assert not report.ok
    assert report.records == 8
    assert totals(report) == {
        "age": {FindingKind.NOT_A_NUMBER: 1, FindingKind.OUT_OF_BOUNDS: 1, FindingKind.MISSING: 1},
        "sex": {FindingKind.UNKNOWN_CATEGORY: 1},
        "ill": {FindingKind.UNKNOWN_CLASS: 1},
        None: {FindingKind.BROKEN_ROW: 1, FindingKind.TOO_MANY_RECORDS: 1},
    }
    texts = [str(finding) for finding in report.findings]
    assert texts[1] == "out of bounds: 1 (row 4 (line 6)); expected a number in [20, 100] years"
    assert not any(value in text for value in ("19.5", "abc", "'x'", "'2'") for text in texts)


def test_records_without_an_identifier_are_placed(tmp_path: Path) -> None:
    path = write(tmp_path, "who,age,sex,ill\na,30,f,0\n,40,m,1\na,50,m,1\nNA,60,f,0\n")
    report = check_dataset(path, SCHEMA, subject="who")
    assert report.ok
    (finding,) = report.findings
    assert (finding.column, finding.kind, finding.count, finding.places) == ("who", FindingKind.MISSING, 2, {2: 3, 4: 5})
    assert "counts as a person of its own" in str(finding)
    assert check_dataset(path, SCHEMA).findings == ()
    with pytest.raises(DataError, match="column 'patient' is missing"):
        check_dataset(path, SCHEMA, subject="patient")


TEXTS = ["1.23457E+12", "4,03e+15", "5E+11", "1.2E12", "12E+4", "a1E+5", "1234567890123", "", None]


@pytest.mark.parametrize(
    ("cells", "rows"),
    [
        (pa.array(TEXTS), [1, 2, 3]),
        (pa.array([2.0**53, -(2.0**60), 2.0**53 - 1, None, np.nan]), [1, 2]),
        (pa.array([2.0**24, 2.0**24 - 1], pa.float32()), [1]),
        (pa.array([2**53, 2**63 - 1]), []),
        (pa.array([Decimal(2**60)]), []),
        (pa.array([True, False]), []),
    ],
)
def test_identifiers_that_were_rounded_are_named(tmp_path: Path, cells: Any, rows: list[int]) -> None:
    """Persons whose numbers a spreadsheet shortened alike count as one."""
    columns = {"who": cells, "age": [50] * len(cells), "sex": ["f"] * len(cells), "ill": ["0"] * len(cells)}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    report = check_dataset(tmp_path / "t.parquet", SCHEMA.model_copy(update={"max_records": 100}), subject="who")
    assert [[*found.places] for found in report.findings if found.kind is FindingKind.ROUNDED] == ([rows] if rows else [])
    assert report.ok == (not rows)


SPELLINGS = [
    "P7",
    "p7 ",
    "7",
    "007",
    "7.0",
    "x\u200b1",
    "X1",
    "\uff11\uff12",
    "12",
    "10",
    "1",
    "e\u0301",
    "\u00e9",
    "",
    "NA",
    None,
]


@pytest.mark.parametrize(
    ("cells", "rows"),
    [
        (SPELLINGS, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (["a", "b", "a", None, "", "na"], []),
        (["7", None], []),
        ([None, None], []),
        ([7, 70, 7], []),
        ([7.0, 0.7], []),
    ],
)
def test_identifiers_that_are_spelled_in_several_ways_are_named(tmp_path: Path, cells: list[Any], rows: list[int]) -> None:
    """Each spelling is a person of its own, and no query can tell whether it should be."""
    columns = {"who": cells, "age": [50] * len(cells), "sex": ["f"] * len(cells), "ill": ["0"] * len(cells)}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    report = check_dataset(tmp_path / "t.parquet", SCHEMA.model_copy(update={"max_records": 100}), subject="who")
    counts = {finding.kind: (finding.count, [*finding.places]) for finding in report.findings}
    assert counts.get(FindingKind.ALIKE) == ((len(rows), rows[:SHOWN]) if rows else None)
    assert report.ok == (not rows)


@settings(max_examples=300)
@given(st.lists(st.text("aA\u00c9e\u0301 0017.-\u200b\u00a0\ufeff\ufb01\uff11", max_size=5), max_size=12))
def test_what_readers_pass_over_makes_identifiers_alike(cells: list[str]) -> None:
    """Held against the standard library's tables of characters."""

    def read(text: str) -> str:
        text = unicodedata.normalize("NFKC", text).lower()
        text = "".join(letter for letter in text if unicodedata.category(letter)[0] not in "ZC")
        whole, point, rest = text.partition(".")
        if point and rest and not rest.strip("0") and whole.isascii() and whole.isdigit():
            text = whole
        return re.sub("(?<![0-9])0+(?=[0-9])", "", text)

    held = [None if cell.strip() == "" else unicodedata.normalize("NFC", cell) for cell in map(str.strip, cells)]
    ways = {read(cell): {other for other in held if other is not None and read(other) == read(cell)} for cell in held if cell}
    expected = [cell is not None and len(ways[read(cell)]) > 1 for cell in held]
    assert spelled_alike(pa.array(held, pa.string())).tolist() == expected


def test_missing_values_alone_are_ok(tmp_path: Path) -> None:
    report = check_dataset(write(tmp_path, "age,sex,ill\n,f,0\n30,,\n"), SCHEMA)
    assert report.ok
    assert len(places(report)) == 3


def test_how_records_are_spread_over_persons(tmp_path: Path) -> None:
    path = write(tmp_path, "who,age,sex,ill\na,30,f,0\n,40,m,1\na,50,m,1\nNA,60,f,0\nb,60,f\nb,60,f,1\na,61,f,1\n")
    spread = check_dataset(path, SCHEMA, subject="who").per_person
    assert spread is not None
    assert sorted(spread.tolist()) == [1, 1, 1, 3]
    assert check_dataset(path, SCHEMA).per_person is None
    empty = write(tmp_path, "who,age,sex,ill\n")
    nobody = check_dataset(empty, SCHEMA, subject="who").per_person
    assert nobody is not None
    assert len(nobody) == 0


def test_shown_is_capped_and_totals_are_not(tmp_path: Path) -> None:
    schema = SCHEMA.model_copy(update={"max_records": 10_000})
    report = check_dataset(write(tmp_path, "age,sex,ill\n" + "5,q,7\n" * 500), schema)
    assert [place[:2] for place in places(report)] == [(row, row + 1) for row in (1, 2, 3) for _ in range(3)]
    assert totals(report)["sex"] == {FindingKind.UNKNOWN_CATEGORY: 500}


def test_other_formats_have_no_lines(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", age=[30.0, 300.0], sex=["f", "m"], ill=[0, 1])
    assert places(check_dataset(tmp_path / "d.npz", SCHEMA)) == [(2, None, "age", FindingKind.OUT_OF_BOUNDS)]


ROOT = Path(__file__).parents[2]
HEART = ROOT.parent / "shared" / "data" / "heart_disease"


@pytest.mark.skipif(not HEART.is_dir(), reason="the UCI Heart Disease files are not beside the checkout")
@pytest.mark.parametrize(("name", "rows"), [("cleveland", 303), ("hungarian", 294), ("switzerland", 123), ("va", 200)])
def test_heart_disease(name: str, rows: int) -> None:
    path = HEART / f"processed.{name}.data"
    schema = load_schema(ROOT / "deploy" / "veilsum_deploy" / "demo_data" / "heart_disease.toml")
    lines = [line.split(",") for line in path.read_text(encoding="utf-8").split()]
    records, counts = load_records(path, schema)
    assert len(records) == rows == len(lines)
    assert not any(cells.unmatched for cells in counts.values())
    assert records.present.all()
    np.testing.assert_array_equal(records.labels, [int(float(line[-1]) > 0) for line in lines])
    np.testing.assert_allclose(records.features[:, 0], [(float(line[0]) - 55) / 35 for line in lines], atol=1e-12)
    report = check_dataset(path, schema)
    assert {finding.kind for finding in report.findings} <= {FindingKind.MISSING, FindingKind.OUT_OF_BOUNDS}
    assert totals(report)["chol"].get(FindingKind.MISSING, 0) == sum(line[4] in ("?", "-9") for line in lines)


def test_a_query_of_misses_on_any_database(tmp_path: Path) -> None:
    """SQLite yields texts: a missing number is not a record of nothing, and 0 is not true."""
    with sqlite3.connect(tmp_path / "clinic.db") as connection:
        connection.execute("CREATE TABLE people (age, sex, ill)")
        connection.execute("INSERT INTO people VALUES (30, 'f', 0)")
    rows = ("'all', NULL, 1200, 0", "'lost\x1b', 1200, 3400, 0", "'aside', 2, 3, 1", "'none', 0, 3, 0", "'odd', 'x', 3, NULL")
    (tmp_path / "misses.sql").write_text(
        "SELECT '' AS what, NULL AS number, NULL AS of, 0 AS meant WHERE 0"
        + "".join(f" UNION ALL SELECT {row}" for row in rows)
    )
    offered = DatasetConfig(
        source="sql", dsn=SecretStr(f"sqlite:///{tmp_path}/clinic.db"), query="SELECT age, sex, ill FROM people", joined=False,
        columns=("age", "sex", "ill"), misses_file=tmp_path / "misses.sql",
    )  # fmt: skip
    told = [(item.detail, item.status.value) for item in dataset("clinic", offered, SCHEMA)][1:]
    assert told == [
        ("all: 1,200", "ok"), ("lost\ufffd: 1,200 of 3,400", "warning"), ("aside: 2 of 3", "ok"), ("odd: 3", "ok"),
        ("1 other kind of misses looked for, none found", "ok"),
    ]  # fmt: skip
