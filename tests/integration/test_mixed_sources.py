"""One study over sites whose records lie in an OMOP database on PostgreSQL, in Parquet behind DuckDB, and in a CSV file, each
a process of its own, gives the integers that one process gives on the same records in plain files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from support.federation import DATASET, make_bed, make_request
from support.omop import MEASURES, Row, expected, fill, make_persons
from support.processes import Processes
from veilsum.compile import StudyRequest
from veilsum_coordinator.protocol.settings import Waits
from veilsum_participant.cli.participant import app
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_privacy.ledger.entries import Kind
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.schema_file import load_schema

SITES = ("csv", "files", "omop")
PERSONS, MOST = 40, 1000
NAMES = ("person_id", "kind", "value", "age")


def one_process(directory: Path, schema: DatasetSchema, records: dict[str, list[Row]]) -> list[int]:
    """The released integers of the records in npz files."""
    bed = make_bed(directory, NOTHING)
    for name, site in bed.sites.items():
        path = site.config.datasets[DATASET].path
        assert path is not None
        columns = {column: [row[column] for row in records[name]] for column in NAMES}
        values = np.array([np.nan if value is None else value for value in columns["value"]])
        np.savez(path, kind=columns["kind"], value=values, age=columns["age"], who=columns["person_id"])
        datasets = {DATASET: DatasetConfig(path=path, subject="who", most_records=MOST)}
        site.config = site.config.model_copy(update={"datasets": datasets})
    local = bed.local
    key = local.submit(bed.compile(request(schema)), bed.analyst)
    local.prepare(key).sum("statistics")
    (release,) = bed.hub.journal.releases(key)
    return np.frombuffer(release["values"], "<i8").tolist()  # type: ignore[no-any-return]


NOTHING = {name: (np.zeros((1, 2)), np.zeros(1, dtype=np.int64)) for name in SITES}


def request(schema: DatasetSchema) -> StudyRequest:
    asked = make_request(schema, epsilon=None, unit="subject")
    return asked.model_copy(update={"parameters": {"person": "max"}})


def offer(processes: Processes, name: str, dataset: str, files: str = "") -> None:
    """Put a dataset in place of the npz file that the site was set up with."""
    path = processes.directory(name) / "participant.toml"
    text = path.read_text()
    before, given, after = text.partition('path = "records.npz"\nmost_records = 1\n')
    assert given
    path.write_text(f"{before}most_records = {MOST}\n{dataset}{files}{after}")


def lay_out(processes: Processes, records: dict[str, list[Row]], recipe: Path, url: str) -> None:
    lines = [",".join("" if row[name] is None else str(row[name]) for name in NAMES) for row in records["csv"]]
    (processes.directory("csv") / "records.csv").write_text("\n".join([",".join(NAMES), *lines, ""]))
    offer(processes, "csv", 'path = "records.csv"\nsubject = "person_id"\ncolumns = ["kind", "value", "age"]\n')

    export = processes.directory("files") / "export"
    export.mkdir()
    codes = {kind: code for code, kind in enumerate(MEASURES)}
    for part in range(2):
        rows = [row | {"code": codes[row["kind"]]} for row in records["files"][part::2]]
        columns = {name: [row[name] for row in rows] for name in ("person_id", "code", "value", "age")}
        parquet.write_table(pa.table(columns), export / f"{part}.parquet")
    (processes.directory("files") / "kinds.csv").write_text(
        "code,kind\n" + "".join(f"{code},{kind}\n" for kind, code in codes.items())
    )
    text = "SELECT 'p' || person_id AS who, kind, value, age FROM taken JOIN kinds ON taken.code = try_cast(kinds.code AS INT)"
    tables = f'[datasets.{DATASET}.files]\ntaken = "export"\nkinds = "kinds.csv"\n'
    offer(
        processes, "files", f'source = "sql"\nquery = "{text}"\nsubject = "who"\ncolumns = ["kind", "value", "age"]\n', tables
    )

    directory = processes.directory("omop")
    (directory / "clinic.url").write_text(url + "\n")
    (directory / "clinic.url").chmod(0o600)
    (directory / "measurements.sql").write_text((recipe / "measurements.sql").read_text())
    offer(
        processes, "omop", 'source = "sql"\ndsn_file = "clinic.url"\nquery_file = "measurements.sql"\nsubject = "person_id"\n'
    )


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(
        tmp_path / "processes", NOTHING, waits=Waits(), budget=(None, 1e-5), max_peer_streams=16, units=("subject",)
    )
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.system  # each source is held to the same records in files by default
def test_sites_with_other_sources_give_the_integers_of_one_process(tmp_path: Path, processes: Processes) -> None:
    ran = CliRunner().invoke(app, ["recipe", "omop", str(tmp_path / "recipe")])
    assert ran.exit_code == 0, ran.output
    schema = load_schema(tmp_path / "recipe" / "measurements.toml")
    persons = {name: make_persons(PERSONS, seed) for seed, name in enumerate(SITES)}
    records = {name: expected("measurements", rows) for name, rows in persons.items()}
    url = fill(persons["omop"])
    lay_out(processes, records, tmp_path / "recipe", url)
    processes.heal()
    key = processes.submit(processes.compile(request(schema)))
    status = processes.await_end(key)
    assert status.phase == "finished", (status.reason, status.refusals)
    (release,) = processes.releases(key)
    assert release.values.tolist() == one_process(tmp_path / "one", schema, records)
    assert release.values.any()
    for name in SITES:
        kinds = [entry.kind for entry in processes.entries(name, key)]
        assert (kinds.count(Kind.RESERVE), kinds.count(Kind.CHARGE)) == (1, 1)
        assert kinds.count(Kind.SNAPSHOT) == (name != "csv")
        log = (processes.directory(name) / "log").read_text()
        assert url not in log
        assert "failed on this site's records" not in log
    processes.stop()
    for name in ("omop", "files"):
        assert told(processes, name, 0) == [True]
    assert told(processes, "csv", 0) == []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM measurement WHERE measurement_id <= 20")
    assert told(processes, "omop", 1) == [False]


def told(processes: Processes, name: str, status: int) -> list[bool | None]:
    """What the command says of a site's snapshots, and how it ends."""
    config = processes.directory(name) / "participant.toml"
    ran = CliRunner().invoke(app, ["snapshots", "--config", str(config), "--json"])
    assert ran.exit_code == status, ran.output
    return [item["same"] for item in json.loads(ran.stdout)]
