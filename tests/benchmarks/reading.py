"""Reading a million records of ten numbers and two codes, at once and in batches: rows a second of processor time.

Beside each file the same one read by pandas, with no more done to it: no cell is judged, and one line's quotation mark may
take in the next. PostgreSQL's own processor time is its server's and not counted.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as parquet
from adbc_driver_postgresql import dbapi
from pydantic import SecretStr

from benchmarks.timing import took
from support.postgres import server
from veilsum_participant.data import load_records
from veilsum_participant.data.stream import stream_records
from veilsum_participant.settings.forms import Dialect
from veilsum_participant.settings.query import Source, SourceQuery, TextFile
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn

RECORDS, QUICK = 1_000_000, 50_000
NUMBERS = tuple(f"x{place}" for place in range(10))
SCHEMA = DatasetSchema(
    columns=(
        *(NumberColumn(name=name, low=-4, high=4) for name in NUMBERS),
        CategoryColumn(name="sex", categories=("f", "m")),
        CategoryColumn(name="code", categories=tuple(map(str, range(9)))),
    ),
    max_records=RECORDS,
)
ASKED = f"SELECT {', '.join((*NUMBERS, 'sex', 'code'))} FROM records"  # noqa: S608  the benchmark's own


def measure(*, quick: bool = False, runs: int = 3) -> list[dict[str, Any]]:
    """Rows a second of each source, the best of so many runs."""
    rows = QUICK if quick else RECORDS
    figures = []
    with tempfile.TemporaryDirectory() as place:
        files, peers = _written(Path(place), rows)
        url = server().new_database()
        _stored(url, files["Parquet"])  # type: ignore[arg-type]  # a path
        duck = SourceQuery("d", ASKED, files={"records": Path(place) / "t.parquet"}, timeout=3600)
        asked = SourceQuery("d", ASKED, dsn=SecretStr(url), timeout=3600)
        for name, source in {**files, "Parquet by DuckDB": duck, "PostgreSQL": asked}.items():
            row: dict[str, Any] = {"source": name, "rows": rows, "at_once": 0.0, "in_batches": 0.0, "pandas": None}
            for _ in range(runs):  # in turn, so that other load meets all alike
                row["at_once"] = max(row["at_once"], rows / took(lambda: load_records(source, SCHEMA)))  # noqa: B023
                row["in_batches"] = max(row["in_batches"], rows / took(lambda: _batches(source)))  # noqa: B023
                if name in peers:
                    row["pandas"] = max(row["pandas"] or 0.0, rows / took(peers[name]))
            figures.append(row)
    return figures


def table(figures: list[dict[str, Any]]) -> str:
    """The figures in Markdown, in thousands of rows."""
    lines = ["", "| source | at once | in batches | pandas |", "| --- | ---: | ---: | ---: |"]
    for row in figures:
        shown = [f"{row[key] / 1000:,.0f}" if row[key] else "" for key in ("at_once", "in_batches", "pandas")]
        lines.append(f"| {row['source']} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _batches(source: Source) -> None:
    for _ in stream_records(source, SCHEMA, None):
        pass


def _written(place: Path, rows: int) -> tuple[dict[str, Source], dict[str, Callable[[], object]]]:
    """The same records in each form, and how pandas reads it."""
    rng = np.random.default_rng(5)
    columns: dict[str, Any] = {name: rng.normal(size=rows).round(4) for name in NUMBERS}
    columns["sex"] = np.array(["f", "m"])[rng.integers(0, 2, rows)]
    columns["code"] = rng.integers(0, 9, rows)
    records = pa.table(columns)
    path = place / "t.parquet"
    parquet.write_table(records, path)
    pacsv.write_csv(records, place / "t.csv", pacsv.WriteOptions(quoting_style="none"))
    pacsv.write_csv(records, place / "q.csv", pacsv.WriteOptions(quoting_style="all_valid"))
    text = (place / "t.csv").read_bytes()
    (place / "t.csv.gz").write_bytes(gzip.compress(text, 6))
    (place / "w.csv").write_bytes(text.decode().encode("utf-16"))
    files: dict[str, Source] = {
        "CSV": place / "t.csv",
        "CSV, quoted": place / "q.csv",
        "CSV, gzip": TextFile(place / "t.csv.gz", Dialect(compression="gzip")),
        "CSV, UTF-16": TextFile(place / "w.csv", Dialect(encoding="utf-16")),
        "Parquet": path,
    }
    return files, {
        "CSV": lambda: pd.read_csv(place / "t.csv"),
        "CSV, quoted": lambda: pd.read_csv(place / "q.csv"),
        "CSV, gzip": lambda: pd.read_csv(place / "t.csv.gz"),
        "CSV, UTF-16": lambda: pd.read_csv(place / "w.csv", encoding="utf-16"),
        "Parquet": lambda: pd.read_parquet(path),
    }


def _stored(url: str, path: Path) -> None:
    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("records", parquet.read_table(path))
        connection.commit()
