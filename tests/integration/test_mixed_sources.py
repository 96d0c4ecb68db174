"""One study over sites whose records lie in PostgreSQL, in Parquet behind DuckDB, and in a CSV file, each a process of its
own, gives the integers that one process gives on the same records in plain files.
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

from support.federation import DATASET, make_bed, make_request, schema_of
from support.postgres import server
from support.processes import Processes
from veilsum.compile import StudyRequest
from veilsum_coordinator.protocol.settings import Waits
from veilsum_participant.cli.participant import app
from veilsum_participant.config import DatasetConfig
from veilsum_privacy.ledger.entries import Kind

SITES = ("csv", "files", "postgres")
PEOPLE, ROWS = 12, 40
Records = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]  # type: ignore[type-arg]


def make_records() -> Records:
    """Numbers that a decimal text holds exactly, classes, and whose each record is."""
    rng = np.random.default_rng(7)
    return {
        name: (rng.integers(-64, 65, (ROWS, 2)) / 64, rng.integers(0, 2, ROWS), rng.integers(0, PEOPLE, ROWS))
        for name in SITES
    }


def request() -> StudyRequest:
    asked = make_request(schema_of(2), epsilon=None, unit="subject")
    return asked.model_copy(update={"parameters": {"person": "max"}})


def one_process(directory: Path, records: Records) -> list[int]:
    """The released integers of the records in npz files."""
    bed = make_bed(directory, {name: (x, y) for name, (x, y, _) in records.items()})
    for name, site in bed.sites.items():
        path = site.config.datasets[DATASET].path
        assert path is not None
        features, labels, people = records[name]
        np.savez(path, X=features, y=labels.astype(str), patient=people.astype(str))
        datasets = {DATASET: DatasetConfig(path=path, subject="patient")}
        site.config = site.config.model_copy(update={"datasets": datasets})
    local = bed.local
    key = local.submit(bed.compile(request()), bed.analyst)
    local.prepare(key).sum("statistics")
    (release,) = bed.hub.journal.releases(key)
    return np.frombuffer(release["values"], "<i8").tolist()  # type: ignore[no-any-return]


def offer(processes: Processes, name: str, dataset: str, files: str = "") -> None:
    """Put a dataset in place of the npz file that the site was set up with."""
    path = processes.directory(name) / "participant.toml"
    text = path.read_text()
    before, given, after = text.partition('path = "records.npz"\n')
    assert given
    path.write_text(f"{before}{dataset}{files}{after}")


def lay_out(processes: Processes, records: Records, url: str) -> None:
    features, labels, people = records["csv"]
    lines = [f"{x0},{x1},{label},{who}" for (x0, x1), label, who in zip(features.tolist(), labels, people, strict=True)]
    (processes.directory("csv") / "records.csv").write_text("\n".join(["x0,x1,y,patient", *lines, ""]))
    offer(processes, "csv", 'path = "records.csv"\nsubject = "patient"\n')

    features, labels, people = records["files"]
    export = processes.directory("files") / "export"
    export.mkdir()
    for part in range(2):
        rows = slice(part, None, 2)
        table = pa.table(
            {"x0": features[rows, 0], "x1": features[rows, 1], "visit": np.arange(ROWS)[rows], "who": people[rows]}
        )
        parquet.write_table(table, export / f"{part}.parquet")
    classes = "".join(f"{visit},{label}\n" for visit, label in enumerate(labels))
    (processes.directory("files") / "classes.csv").write_text(f"visit,y\n{classes}")
    text = "SELECT x0, x1, y, 'p' || who AS patient FROM visits JOIN classes ON visits.visit = try_cast(classes.visit AS INT)"
    tables = f'[datasets.{DATASET}.files]\nvisits = "export"\nclasses = "classes.csv"\n'
    offer(processes, "files", f'source = "sql"\nquery = "{text}"\nsubject = "patient"\n', tables)

    features, labels, people = records["postgres"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE person (id int PRIMARY KEY, name text)")
        connection.execute("CREATE TABLE visit (person int, x0 numeric, x1 float8, y smallint)")
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO person VALUES (%s, %s)", [(who, f"person {who}") for who in range(PEOPLE)])
            values = zip(people.tolist(), *features.T.tolist(), labels.tolist(), strict=True)
            cursor.executemany("INSERT INTO visit VALUES (%s, %s, %s, %s)", list(values))
    directory = processes.directory("postgres")
    (directory / "cohort.sql").write_text("SELECT x0, x1, y, name AS patient FROM visit JOIN person ON person = id;\n")
    (directory / "clinic.url").write_text(url + "\n")
    (directory / "clinic.url").chmod(0o600)
    dataset = 'source = "sql"\ndsn_file = "clinic.url"\nquery_file = "cohort.sql"\nsubject = "patient"\n'
    offer(processes, "postgres", dataset)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    data = {name: (np.zeros((1, 2)), np.zeros(1, dtype=np.int64)) for name in SITES}
    made = Processes(tmp_path / "processes", data, waits=Waits(), budget=(None, 1e-5), max_peer_streams=16, units=("subject",))
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.system  # each source is held to the same records in files by default
def test_sites_with_other_sources_give_the_integers_of_one_process(tmp_path: Path, processes: Processes) -> None:
    records = make_records()
    url = server().new_database()
    lay_out(processes, records, url)
    processes.heal()
    key = processes.submit(processes.compile(request()))
    status = processes.await_end(key)
    assert status.phase == "finished", (status.reason, status.refusals)
    (release,) = processes.releases(key)
    assert release.values.tolist() == one_process(tmp_path / "one", records)
    assert release.values.any()
    for name in SITES:
        kinds = [entry.kind for entry in processes.entries(name, key)]
        assert (kinds.count(Kind.RESERVE), kinds.count(Kind.CHARGE), kinds.count(Kind.FAULT)) == (1, 1, 0)
        assert kinds.count(Kind.SNAPSHOT) == (name != "csv")
        log = (processes.directory(name) / "log").read_text()
        assert url not in log
        assert "person 1" not in log
    processes.stop()
    for name, expected in (("postgres", True), ("files", True)):
        assert told(processes, name, 0) == [expected]
    assert told(processes, "csv", 0) == []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM visit WHERE ctid = (SELECT min(ctid) FROM visit)")
    assert told(processes, "postgres", 1) == [False]


def told(processes: Processes, name: str, status: int) -> list[bool | None]:
    """What the command says of a site's snapshots, and how it ends."""
    config = processes.directory(name) / "participant.toml"
    ran = CliRunner().invoke(app, ["snapshots", "--config", str(config), "--json"])
    assert ran.exit_code == status, ran.output
    return [item["same"] for item in json.loads(ran.stdout)]
