"""Datasets that a study's schema lets be larger than a site's memory: the same releases, read anew and never held whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from support.federation import DATASET, TestBed, make_bed, make_data, make_request, schema_of
from veilsum_participant.checks.snapshots import compare_snapshots
from veilsum_participant.data import local as local_module
from veilsum_participant.data.snapshot import records_digest
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_privacy.ledger.entries import Kind
from veilsum_privacy.study.study import Unit

SCHEMA = schema_of(2).model_copy(update={"max_records": 100_000})
LARGE, SMALL = 1, 64
"""MiB of which the schema's records, of 34 bytes, are more, and less."""


def offer(bed: TestBed, name: str, memory: int, **dataset: Any) -> None:
    offered = {DATASET: DatasetConfig(memory=memory, **dataset)}
    bed.sites[name].config = bed.sites[name].config.model_copy(update={"datasets": offered})


def bed_of(directory: Path, memory: int, unit: Unit) -> TestBed:
    """A site with folders of Parquet, one with CSV, one with a query on files, one whose npz file is always held."""
    bed = make_bed(directory, make_data(rows=60), units=("record", "subject"))
    bed.know_noise()
    for number, name in enumerate("abc"):
        features, labels = make_data(rows=60)[name]
        people = np.random.default_rng(number).integers(0, 9, 60)
        table = pa.table({"x0": features[:, 0], "x1": features[:, 1], "y": labels, "patient": people})
        place = bed.directory(name) / "export"
        place.mkdir()
        for part in range(3):
            parquet.write_table(table.slice(20 * part, 20), place / f"{part}.parquet", row_group_size=6)
        rows = "".join(f"{x0},{x1},{y},{who}\n" for x0, x1, y, who in zip(*table.to_pydict().values(), strict=True))
        (bed.directory(name) / "records.csv").write_text("x0,x1,y,patient\n" + rows)
    subject = {"subject": "patient"} if unit == "subject" else {}
    offer(bed, "a", memory, path=bed.directory("a") / "export", **subject)
    offer(bed, "b", memory, path=bed.directory("b") / "records.csv", columns=("x0", "x1", "y"), **subject)
    joined = subject or {"joined": False}
    asked = {"source": "sql", "query": "SELECT * FROM t", "files": {"t": bed.directory("c") / "export"}}
    offer(bed, "c", memory, **asked, **joined)
    return bed


def release(bed: TestBed, unit: Unit) -> dict[str, list[float]]:
    request = make_request(SCHEMA, unit=unit)
    person = {"person": "first"} if unit == "subject" else {}
    sites = "abc" if unit == "subject" else "abcd"
    key = bed.local.submit(bed.compile(request.model_copy(update={"parameters": person}), list(sites)), bed.analyst)
    values = bed.local.prepare(key).sum("statistics").values
    return {name: np.ravel(block).tolist() for name, block in values.items()}


@pytest.mark.parametrize("unit", [pytest.param("record", marks=pytest.mark.system), "subject"])
def test_a_release_is_the_same_whether_records_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: Unit) -> None:
    held = release(bed_of(tmp_path / "held", SMALL, unit), unit)
    bed = bed_of(tmp_path / "streamed", LARGE, unit)
    real, read = local_module.load_records, []

    def watched(source: Any, *given: Any, **named: Any) -> Any:
        read.append(str(source))
        return real(source, *given, **named)

    monkeypatch.setattr(local_module, "load_records", watched)
    assert release(bed, unit) == held
    assert read == ([] if unit == "subject" else [str(bed.directory("d") / "records.npz")])
    assert all(not site.datasets.holds for name, site in bed.sites.items() if name in "abc")


def test_a_querys_snapshot_is_that_of_its_records(tmp_path: Path) -> None:
    bed = bed_of(tmp_path, LARGE, "record")
    release(bed, "record")
    site = bed.sites["c"]
    reading = site.batches(DATASET, SCHEMA, by_subject=False)
    assert reading.digest is None, "nothing was read"
    assert sum(map(len, reading)) == 60
    assert reading.digest == records_digest(site.records(DATASET, SCHEMA))
    site.datasets.let_go()
    assert [item.same for item in compare_snapshots(site)] == [True]
    (bed.directory("c") / "export" / "1.parquet").unlink()
    assert [item.same for item in compare_snapshots(site)] == [False]


@pytest.mark.parametrize(("name", "query"), [("a", []), pytest.param("c", [Kind.SNAPSHOT], marks=pytest.mark.system)])
def test_what_fails_in_the_midst_of_a_file_is_charged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, query: list[Kind]
) -> None:
    """The ledger says no more of it than of a release from whole files; the site can still tell a query's."""
    bed = bed_of(tmp_path, LARGE, "record")
    site = bed.sites[name]
    place = bed.directory(name) / "export" / "1.parquet"
    data = bytearray(place.read_bytes())
    data[4:200] = bytes(196)  # pages, not the footer
    place.write_bytes(data)
    release(bed, "record")
    assert "round 1 (statistics) failed on this site's records" in caplog.text
    assert [entry.kind for entry in site.ledger.entries()][-2 - len(query) :] == [Kind.RESERVE, *query, Kind.CHARGE]
    assert [item.why for item in compare_snapshots(site)] == ["its records could not be read to their end"] * len(query)
