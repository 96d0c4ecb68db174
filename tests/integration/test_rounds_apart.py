"""Rounds of sites whose records are read apart: the same releases and ledgers, also where a reader is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from support.apart import Answer, ThreadStarter
from support.federation import DATASET, TestBed, make_bed, make_data, make_request, schema_of
from support.hostile import Adversary
from veilsum_node.errors import Unavailable
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.checks.snapshots import compare_snapshots
from veilsum_participant.data.local import LocalDatasets
from veilsum_participant.datasets import Datasets
from veilsum_participant.protocol import payloads
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.worker.remote import WorkerDatasets
from veilsum_privacy.study.study import Unit

SCHEMA = schema_of(2).model_copy(update={"max_records": 100_000})
NAMES = "abc"


@pytest.fixture
def beds(tmp_path: Path) -> Iterator[Any]:
    """Makes federations whose sites read a folder of Parquet, a CSV file and a query."""
    made: list[TestBed] = []

    def make(where: str, datasets: Any, memory: int, unit: Unit = "record", **options: Any) -> TestBed:
        bed = make_bed(tmp_path / where, make_data(NAMES, 60), units=("record", "subject"), **options)
        made.append(bed)
        bed.know_noise()
        for number, name in enumerate(NAMES):
            features, labels = make_data(NAMES, 60)[name]
            people = np.random.default_rng(number).integers(0, 9, 60)
            table = pa.table({"x0": features[:, 0], "x1": features[:, 1], "y": labels, "patient": people})
            place = bed.directory(name)
            parquet.write_table(table, place / "r.parquet", row_group_size=7)
            rows = "".join(f"{x0},{x1},{y},{who}\n" for x0, x1, y, who in zip(*table.to_pydict().values(), strict=True))
            (place / "r.csv").write_text("x0,x1,y,patient\n" + rows)
            told: dict[str, Any] = {"subject": "patient"} if unit == "subject" else {}
            offered = {
                "a": {"path": place / "r.parquet", **told},
                "b": {"path": place / "r.csv", "columns": ("x0", "x1", "y"), **told},
                "c": {"source": "sql", "query": "SELECT * FROM t", "files": {"t": place / "r.parquet"}}
                | (told or {"joined": False}),
            }[name]
            site = bed.sites[name]
            site.config = site.config.model_copy(update={"datasets": {DATASET: DatasetConfig(memory=memory, **offered)}})
            site.datasets = datasets()
        return bed

    yield make
    for bed in made:
        for site in bed.sites.values():
            site.datasets.close()


def release(bed: TestBed, unit: Unit) -> list[Any]:
    request = make_request(SCHEMA, unit=unit)
    request = request.model_copy(update={"parameters": {"person": "first"} if unit == "subject" else {}})
    key = bed.local.submit(bed.compile(request), bed.analyst)
    values = bed.local.prepare(key).sum("statistics").values
    kinds = [[entry.kind for entry in bed.sites[name].ledger.entries()] for name in NAMES]
    return [{name: np.ravel(block).tolist() for name, block in values.items()}, kinds]


@pytest.mark.sampled(3)  # records that are streamed, subjects that are held
@pytest.mark.parametrize("unit", ["record", "subject"])
@pytest.mark.parametrize("memory", [1, 64], ids=["streamed", "held"])
def test_releases_ledgers_and_snapshots_are_those_of_one_process(beds: Any, memory: int, unit: Unit) -> None:
    apart = beds("apart", lambda: WorkerDatasets(ThreadStarter()), memory, unit)
    assert release(apart, unit) == release(beds("here", LocalDatasets, memory, unit), unit)
    site = apart.sites["c"]
    assert [item.same for item in compare_snapshots(site)] == [True]
    site.datasets.let_go()
    parquet.write_table(parquet.read_table(apart.directory("c") / "r.parquet").slice(1), apart.directory("c") / "r.parquet")
    assert [item.same for item in compare_snapshots(site)] == [False]


class Killing:
    """Ends a reader at a request of a name: as it comes, or once it was worked on; so many times from the nth on."""

    def __init__(self, name: str, *, worked: bool, nth: int = 1, times: int = 1) -> None:
        self.name, self.worked, self.first, self.last = name, worked, nth, nth + times
        self.seen = 0
        self._lock = threading.Lock()

    def __call__(self, request: Inquiry[Any], honest: Answer) -> Message | None:
        if type(request).__name__ != self.name:
            return honest(request)
        with self._lock:
            self.seen += 1
            dies = self.first <= self.seen < self.last
        if not dies:
            return honest(request)
        if self.worked:
            honest(request)
        return None


def killed(beds: Any, where: str, memory: int, kill: Killing | None) -> tuple[Adversary, Datasets]:
    bed = beds(where, LocalDatasets, memory)
    attack = Adversary(bed, bed.compile(make_request(SCHEMA)))
    attack.set_up()
    site = bed.sites["a"]
    site.datasets = WorkerDatasets(ThreadStarter(kill))
    return attack, site.datasets


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Vectors with their noise, which is the same in every world, as they are masked."""
    seen: list[list[int]] = []
    real = payloads._draw

    def draw(site: Any, opened: Any, checked: Any, values: Any) -> Any:
        seen.append(values.tolist())
        return real(site, opened, checked, values)

    monkeypatch.setattr(payloads, "_draw", draw)
    return seen


@pytest.mark.parametrize("worked", [False, True])
@pytest.mark.parametrize("name", ["OpenDataset", "CheckStructure"])
@pytest.mark.parametrize("memory", [1, 64], ids=["streamed", "held"])
def test_a_reader_killed_before_a_reservation_charges_nothing(beds: Any, name: str, worked: bool, memory: int) -> None:
    attack, _ = killed(beds, "killed", memory, Killing(name, worked=worked))
    with pytest.raises(Unavailable):
        attack.assign("a", attack.assignment(NAMES))
    assert not attack.kinds("a")["reserve"]
    assert attack.assign("a", attack.assignment(NAMES)).call == "upload"
    assert (attack.kinds("a")["reserve"], attack.kinds("a")["free"]) == (1, 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("worked", [False, True])
@pytest.mark.parametrize(("name", "memory", "nth", "times"), [
    ("LoadRows", 64, 1, 1), ("LoadRows", 64, 1, 2), ("BeginRows", 1, 1, 1), ("BeginRows", 1, 1, 2),
    ("NextRows", 1, 1, 1), ("NextRows", 1, 2, 1),
])  # fmt: skip
def test_a_reader_killed_after_a_reservation_gives_all_records_or_none(
    beds: Any, drawn: list[list[int]], name: str, memory: int, nth: int, times: int, worked: bool
) -> None:
    """Once in its place another one reads; else the round is of no record. Paid for in both cases, and nobody is told."""
    attack, _ = killed(beds, "killed", memory, Killing(name, worked=worked, nth=nth, times=times))
    said = attack.assign("a", attack.assignment(NAMES))
    assert said.call == "upload"
    assert (attack.kinds("a")["reserve"], attack.kinds("a")["free"]) == (1, 0)
    again = times == 1 and name != "NextRows"
    other, _ = killed(beds, "other", memory, None)
    if not again:
        path = other.bed.sites["a"].config.datasets[DATASET].path
        assert path is not None
        parquet.write_table(parquet.read_table(path).slice(0, 0), path)
    assert other.assign("a", other.assignment(NAMES)).call == "upload"
    assert drawn[0] == drawn[1]


class Asked(LocalDatasets):
    """Counts who asks where networks meet records, which is here."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def elsewhere(self, name: str, device: str, seconds: float) -> None:
        assert seconds > 0
        self.asked += 1


NETWORK = {"name": "lenet5", "inputs": [1, 12, 12], "options": {"conv1": 2, "conv2": 2, "fc1": 5, "fc2": 4}}


@pytest.mark.parametrize(
    ("method", "parameters", "width", "noise", "asks"),
    [
        ("statistics", {}, 2, "distributed", 0),
        ("fedsgd", {"steps": 2, "gradient_clip": 0.5}, 2, "distributed", 0),
        ("fedsgd", {"steps": 2, "gradient_clip": 0.5, "model": NETWORK}, 144, "distributed", 2),
        ("fedavg", {"rounds": 2, "local_steps": 1, "model": {"name": "linear"}}, 2, "local", 2),
    ],
    ids=["statistics", "graph", "network", "training"],
)
def test_rounds_with_networks_and_training_alone_ask_where_they_meet_records(
    tmp_path: Path, method: str, parameters: dict[str, Any], width: int, noise: str, asks: int
) -> None:
    bed = make_bed(tmp_path, make_data(NAMES, 24, width))
    datasets = [Asked() for _ in NAMES]
    for site, own in zip(bed.sites.values(), datasets, strict=True):
        site.datasets = own
    request = make_request(schema_of(width, 2, 40), method, 20.0, noise=noise)
    bed.local.run(bed.compile(request.model_copy(update={"parameters": parameters})), bed.analyst, tmp_path / "results")
    assert [own.asked for own in datasets] == [asks] * len(NAMES)
