"""Columns of dates count days since an origin, whatever the file's format, and one cell never changes how another is read."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.edges import SITES
from support.studies import agreed, demand, federation, split_records
from support.tables import told
from veilsum.compile import StudyRequest
from veilsum_coordinator.methods import METHODS
from veilsum_participant.data.check import check_dataset
from veilsum_participant.data.encode import load_records
from veilsum_privacy.study.schema import DatasetSchema, DateColumn

SCHEMA = DatasetSchema(
    columns=(
        DateColumn(name="death", origin="admitted", low=0, high=1000),
        DateColumn(name="admitted", origin="2020-01-01", low=0, high=2000),
    )
)
ROWS = (
    "2020-02-01,2020-01-01",
    "2020-02-30,2020-01-01",
    "NA,2020-03-01T10:00",
    "2019-01-01,2020-01-02",
    "soon,",
    "2024-02-29 10:11,2023-02-28",
)


def days(path: Path, schema: DatasetSchema = SCHEMA) -> np.ndarray:
    """(n, 2) days, not a number where missing."""
    records, _ = load_records(path, schema)
    return np.where(records.present, (records.features + 1) / 2 * [1000, 2000], np.nan)


def test_dates_become_days(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("\n".join(["death,admitted", *ROWS]) + "\n")
    expected = [[31, 0], [np.nan, 0], [np.nan, 60], [0, 1], [np.nan, np.nan], [366, 1154]]
    np.testing.assert_allclose(days(path), expected)
    _, counts = load_records(path, SCHEMA)
    assert told(counts, "unmatched") == {"death": 1, "admitted": 0}
    assert told(counts, "missing") == {"death": 2, "admitted": 1}
    assert told(counts, "outside") == {"death": 1, "admitted": 0}
    assert "a date after so many days" in str(check_dataset(path, SCHEMA).findings)


def test_a_date_is_read_the_same_beside_any_other(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.csv", tmp_path / "one.csv"
    whole.write_text("\n".join(["death,admitted", *ROWS]) + "\n")
    for place, row in enumerate(ROWS):
        path.write_text(f"death,admitted\n{row}\n")
        np.testing.assert_array_equal(days(path)[0], days(whole)[place])


def test_typed_dates_of_parquet_are_dates(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    table = pa.table(
        {"death": [date(2020, 2, 1), None], "admitted": pa.array([datetime(2020, 1, 1, 23, 59, tzinfo=UTC), None])}
    )
    parquet.write_table(table, path)
    np.testing.assert_allclose(days(path), [[31, 0], [np.nan, np.nan]])


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_day_that_stands_for_none_does_so_with_a_time(tmp_path: Path, form: str) -> None:
    """Databases export a date with a time: as text the day that means "none" was one of 1900, as a timestamp it was none."""
    path, schema = tmp_path / f"d.{form}", SCHEMA.model_copy(update={"missing": ("1900-01-01",)})
    if form == "csv":
        path.write_text("death,admitted\n1900-01-01 00:00:00,2020-01-01\n2020-01-02T00:00:00,1900-01-01T00:00\n")
    else:
        none, day = datetime(1900, 1, 1), datetime(2020, 1, 1)  # noqa: DTZ001  in no zone
        parquet.write_table(pa.table({"death": [none, day + timedelta(1)], "admitted": [day, none]}), path)
    np.testing.assert_allclose(days(path, schema), [[np.nan, 0], [np.nan, np.nan]])
    _, counts = load_records(path, schema)
    assert (told(counts, "missing"), told(counts, "outside")) == ({"death": 2, "admitted": 1}, {"death": 0, "admitted": 0})


def test_times_of_twelve_bytes_are_of_any_year(tmp_path: Path) -> None:
    """Spark, Hive and Impala write them, and the year 9999 for "for ever", which no int64 of nanoseconds holds."""
    moments = [datetime(9999, 12, 31, 23, 59), datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59), None]  # noqa: DTZ001
    schema = DatasetSchema(columns=(DateColumn(name="d", origin="1970-01-01", low=-1e6, high=3e6),))
    column = pa.array(moments, pa.timestamp("us"))
    parquet.write_table(pa.table({"d": column}), tmp_path / "d.parquet", use_deprecated_int96_timestamps=True)
    assert "int96" in str(parquet.ParquetFile(tmp_path / "d.parquet").schema)
    records, _ = load_records(tmp_path / "d.parquet", schema)
    found = (records.features[:3, 0] + 1) / 2 * 4e6 - 1e6
    first = date(1970, 1, 1).toordinal()
    np.testing.assert_allclose(found, [moment.toordinal() - first for moment in moments if moment is not None], atol=1e-6)


def test_a_schema_of_dates_keeps_its_form() -> None:
    assert DatasetSchema.model_validate(SCHEMA.model_dump(mode="json")) == SCHEMA
    assert SCHEMA.file_columns == ("death", "admitted")
    with pytest.raises(ValueError, match="to name every column; missing: admitted"):
        DatasetSchema(columns=SCHEMA.columns[:1], header=False, order=("death",))


DAY = "2024-02-29"


@pytest.mark.parametrize(
    "tail",
    [
        "", "T10", " 10:11", "T10:11:12", "t101112", " 10:11:12.5", " 10:11:12,500", "T10:11:12Z", "T10:11:12.000+01:00",
        " 10:11:12+01", " 10:11:12 +0100", " 00:00:00 UTC", " 10:11 PM", "T10:11:12+01:00[Europe/Berlin]",
    ],
)  # fmt: skip
def test_a_time_of_a_day_is_of_that_day(tmp_path: Path, tail: str) -> None:
    (tmp_path / "d.csv").write_text(f'death,admitted\n"{DAY}{tail}",2024-02-28\n')
    np.testing.assert_allclose(days(tmp_path / "d.csv"), [[1, 1519]], atol=1e-9)


@pytest.mark.parametrize(
    "tail",
    [
        " - 2024-03-05",
        "/2024-03-05",
        " bis 05.03.",
        " BC",
        " 00:00:00 BC",
        "T",
        " ",
        " ?",
        "x",
        " 10:11 or so",
        " 1",
        "T1:2",
        "-01",
    ],
)
def test_what_is_no_one_day_is_none(tmp_path: Path, tail: str) -> None:
    """Its first ten letters alone would be a day that the cell does not say; a space behind a day says nothing."""
    (tmp_path / "d.csv").write_text(f'death,admitted\n"{DAY}{tail}",2024-02-28\n')
    found, counts = load_records(tmp_path / "d.csv", SCHEMA)
    assert (found.present[0].tolist(), counts["death"].unmatched) == ([not tail.strip(), True], int(bool(tail.strip())))


ASKED = """
import pyarrow as pa
from veilsum_participant.data.sources import query_rows
from veilsum_participant.settings.query import SourceQuery
text = "SELECT '2024-02-28 23:30:00+00'::TIMESTAMPTZ AS at, '2024-02-28 23:30:00+00'::TIMESTAMPTZ::DATE::VARCHAR AS day"
found = query_rows(SourceQuery("d", text))
print(found.schema.field("at").type, found["day"][0])
"""


def test_the_machine_s_zone_decides_no_day() -> None:
    asked = [sys.executable, "-c", ASKED]
    ran = subprocess.run(asked, env={**os.environ, "TZ": "Asia/Tokyo"}, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["timestamp[us,", "tz=UTC]", "2024-02-28"]


def test_dates_are_days_in_every_question(tmp_path: Path) -> None:
    """A mean, an age by a derived number, a condition, terms and an outcome: pandas' days have the figures."""
    n, rng = 400, np.random.default_rng(0)
    born = pd.Timestamp("1930-01-01") + pd.to_timedelta(rng.integers(0, 25_000, n), "D")
    admitted = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1800, n), "D")
    stay = rng.integers(0, 200, n)
    path = tmp_path / "d.csv"
    frame = pd.DataFrame({"born": born, "admitted": admitted, "death": admitted + pd.to_timedelta(stay, "D")})
    frame.astype(str).to_csv(path, index=False)
    columns = *SCHEMA.columns, DateColumn(name="born", origin="1970-01-01", low=-20_000, high=20_000)
    schema = DatasetSchema(columns=columns, max_records=n)
    sites = split_records(load_records(path, schema)[0], 4)
    fixed = {"name": "dates", "dataset": "d", "data": schema, "expected_records": n // 4, "privacy": demand(None)}

    def summary(method: str, **keys: object) -> dict[str, Any]:
        study = agreed(StudyRequest.model_validate({**fixed, "method": method, **keys}), list(SITES))
        return METHODS[method].run(federation(study, sites, 0, {})).summary

    age = ((admitted - born) / pd.Timedelta(days=1)).to_numpy() / 365.25
    years = 18_262 / 365.25  # from 1970 to 2020
    derive = {"age": {"number": f"admitted / 365.25 - born / 365.25 + {years!r}", "low": 0, "high": 120}}
    asked = [
        {"name": "all", "kind": "mean", "over": ["age", "born", "death"]},
        {"name": "later", "kind": "mean", "over": "age", "where": "admitted >= 366"},
    ]
    answers = summary("statistics", query=asked, derive=derive)
    found = [row["mean"]["value"] for row in (*answers["all"], *answers["later"])]
    days = [((born - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)).to_numpy(), stay]
    later = age[admitted >= pd.Timestamp("2021-01-01")]
    np.testing.assert_allclose(found, [age.mean(), days[0].mean(), stay.mean(), later.mean()], rtol=1e-8)

    fit = summary("regression", parameters={"family": "linear", "outcome": "death", "over": ["admitted", "born"]})
    since = ((admitted - pd.Timestamp("2020-01-01")) / pd.Timedelta(days=1)).to_numpy()
    expected = np.linalg.lstsq(np.column_stack([np.ones(n), since, days[0]]), stay, rcond=None)[0]
    slopes = [row["coefficient"]["value"] for row in fit["coefficients"]]
    np.testing.assert_allclose(slopes, expected, rtol=1e-6)
