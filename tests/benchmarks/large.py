"""Sums over 10 million records of 50 columns in batches, from Parquet and from queries on PostgreSQL, Parquet and CSV: time
and peak memory, a process for each."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as parquet
from adbc_driver_postgresql import dbapi
from pydantic import SecretStr

from benchmarks.memory import peak
from support.neighbours import Setting, moments_parameters
from support.postgres import server
from veilsum_participant.data.stream import stream_records
from veilsum_participant.datasets import BATCH, record_bytes
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.query import Source, SourceQuery
from veilsum_privacy.computation.contribution import compute_sum
from veilsum_privacy.study.schema import ClassValues, DatasetSchema, LabelColumn, NumberColumn

COLUMNS = 50
RECORDS, QUICK = 10_000_000, 200_000
VISITS = 4
"""Records of a person in the mean."""

LABEL = LabelColumn(column="y", classes=tuple(ClassValues(name=name, values=(str(i),)) for i, name in enumerate("ab")))
SCHEMA = DatasetSchema(
    columns=tuple(NumberColumn(name=f"x{i}", low=-4, high=4) for i in range(COLUMNS)), label=LABEL, max_records=RECORDS
)
HISTOGRAMS = tuple(
    {"name": f"h{i}", "kind": "histogram", "over": (f"x{i}",), "edges": tuple(range(-3, 4)), "scale": 64} for i in range(4)
)
TASKS = {
    "feature-means": Setting(
        "", "feature-means", SCHEMA, {"clip": 3.0, "missing": "centre", "count_weight": 1.0, "sum_weight": 1.0}
    ),
    "four histograms": Setting("", "tables", SCHEMA, {"queries": HISTOGRAMS, "sensitivity": 128}),
    "gaussian-moments": Setting("", "gaussian-moments", SCHEMA, moments_parameters(3.0, 1, 1, 1, 1)),
}
RUNS = (
    ("feature-means", None),
    ("four histograms", None),
    ("gaussian-moments", None),
    ("feature-means", "sorted"),
    ("feature-means", "anywhere"),
)
"""A task, and the column of subjects if these are the unit."""

ASKING = [(place, subject) for place in ("PostgreSQL", "Parquet", "CSV") for subject in (None, "anywhere")]
"""Where a query's records are, and the column of subjects; the task is the means."""


def write(path: Path, records: int) -> int:
    """Write made-up records in groups of a million rows, as Arrow does by default; return the file's bytes."""
    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, records, 1 << 20):
        rows = min(1 << 20, records - start)
        columns: dict[str, Any] = {f"x{i}": rng.normal(size=rows).astype(np.float32) for i in range(COLUMNS)}
        columns |= {"y": rng.integers(0, 2, rows, dtype=np.int8), "sorted": np.arange(start, start + rows) // VISITS}
        table = pa.table(columns | {"anywhere": rng.integers(0, records // VISITS, rows)})
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return path.stat().st_size


def measure(*, quick: bool) -> dict[str, Any]:
    """Every run's seconds, processor seconds and peak MiB."""
    records = QUICK if quick else RECORDS
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "records.parquet")
        found: dict[str, Any] = {"records": records, "columns": COLUMNS, "file, MB": write(path, records) / 1e6}
        for task, subject in RUNS:
            command = [sys.executable, "-m", "benchmarks.large", str(path), task, *([subject] if subject else [])]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            name = task if subject is None else f"{task} by subject, {subject}"
            found[name] = json.loads(done.stdout)
        sources = {"PostgreSQL": fill(path), "Parquet": str(path), "CSV": copy(path)}
        found["CSV, MB"] = Path(sources["CSV"]).stat().st_size / 1e6
        for place, subject in ASKING:
            command = [sys.executable, "-m", "benchmarks.large", sources[place], "asked", *([subject] if subject else [])]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            name = f"query, {place}" + (f", by subject, {subject}" if subject else "")
            found[name] = json.loads(done.stdout)
    return found


def fill(path: Path) -> str:
    """Copy a Parquet file into a table of PostgreSQL; return the URL."""
    url = server().new_database()
    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        for table in groups(path):
            cursor.adbc_ingest("records", table, mode="create_append")
        connection.commit()
    return url


def copy(path: Path) -> str:
    """Copy a Parquet file into one of CSV; return its name."""
    place = path.with_suffix(".csv")
    with pacsv.CSVWriter(place, parquet.read_schema(path)) as writer:
        for table in groups(path):
            writer.write_table(table)
    return str(place)


def groups(path: Path) -> Iterator[Any]:
    """The groups of rows of a Parquet file, one after another."""
    with parquet.ParquetFile(path) as file:
        for index in range(file.num_row_groups):
            yield file.read_row_group(index)


def main(place: str, task: str, subject: str | None = None) -> None:
    """One run, in the default memory of a dataset."""
    path: Source = Path(place)
    if task == "asked":
        text, away = "SELECT * FROM records", place.startswith("postgresql:")
        path = (
            SourceQuery("d", text, SecretStr(place), timeout=3600)
            if away
            else SourceQuery("d", text, files={"records": Path(place)}, timeout=3600)
        )
        task = "feature-means"
    setting = TASKS[task]
    study = setting.study("record" if subject is None else "subject", grid=2**20, variance=10**9)
    memory = DatasetConfig(path=Path("x")).memory << 20
    persons, rows = memory // record_bytes(SCHEMA), BATCH // record_bytes(SCHEMA)
    start, processor = time.perf_counter(), time.process_time()
    batches = stream_records(path, SCHEMA, subject, rows=rows, persons=persons)
    total = compute_sum(setting.plan(study), batches, {}).total
    assert total.any()
    seconds = {"elapsed, s": time.perf_counter() - start, "processor, s": time.process_time() - processor}
    print(json.dumps(seconds | {"peak, MiB": peak() / 2**20}))


if __name__ == "__main__":
    main(*sys.argv[1:])
