"""What a coordinator and a site take: memory of their processes, idle and in two studies, and what their databases grow by.

Three sites, processes of their own over gRPC and mutual TLS, SQLite: figures of docs/deployment/operator.md and hospital.md.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.rounds import features_for
from benchmarks.steps import records_of
from support.federation import make_request, schema_of
from support.processes import Process, Processes
from veilsum_coordinator.protocol.settings import Waits

SITES = 3
MODEL = (20, 2)
"""Features and classes of a linear head of 42 values."""

MODEL_RECORDS, LARGE_RECORDS = 200, 100
STEPS = 20
LARGE, QUICK = 1_000_000, 100_000
WAITS = Waits(enrol=3600, seal=3600, contribute=3600, consent=3600)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """MiB and kB of the coordinator and of the site that took most; ``quick`` sums a tenth of the values."""
    features = features_for(QUICK if quick else LARGE)
    small = make_request(schema_of(*MODEL), "fedsgd", epsilon=3.0)
    small = small.model_copy(update={"parameters": {"steps": STEPS, "centre": False}})
    large = make_request(schema_of(features, max_records=1000), "pca", epsilon=3.0)
    found = {}
    for name, request, (width, classes), records in (
        (f"a model of {(MODEL[0] + 1) * MODEL[1]} values, {STEPS} steps", small, MODEL, MODEL_RECORDS),
        (f"pca of {features} columns", large, (features, 2), LARGE_RECORDS),
    ):
        found[name] = _study(request, width, classes, records)
    return found


def _study(request: Any, features: int, classes: int, records: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        data = records_of(features, classes, SITES, records)
        parties = Processes(Path(directory), data, waits=WAITS, budget=(None, 1e-5), max_peer_streams=16, forked=False)
        try:
            parties.heal()
            assert parties.coordinator is not None
            began = {name: _of(process) for name, process in parties.participants.items()}
            idle, before = _of(parties.coordinator), _disk(parties)
            study = parties.compile(request)
            key = parties.submit(study)
            shown = parties.await_end(key)
            assert shown.phase == "finished", shown.reason
            for name in parties.names:
                parties.await_over(name, key)
            after = _disk(parties)
            releases = sum(release.phase == "released" for release in shown.rounds)
            return {
                "releases": releases,
                "coordinator idle, MiB": idle["VmRSS"],
                "coordinator peak, MiB": _of(parties.coordinator)["VmHWM"],
                "site idle, MiB": max(one["VmRSS"] for one in began.values()),
                "site peak, MiB": max(_of(process)["VmHWM"] for process in parties.participants.values()),
                "coordinator's database, kB a release": (after[0] - before[0]) / 1e3 / releases,
                "site's database, kB a release": (after[1] - before[1]) / 1e3 / releases,
            }
        finally:
            parties.stop()


def _of(process: Process) -> dict[str, float]:
    """MiB by the names of ``/proc/PID/status``."""
    lines = (line.split() for line in Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines())
    return {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines if words[0] in ("VmRSS:", "VmHWM:")}


def _disk(parties: Processes) -> tuple[int, int]:
    """Bytes of the coordinator's database and of the largest site's, without their logs of writes (4 MB at most)."""
    coordinator = _sized(parties.kit.coordinator.directory / "state" / "coordinator.db")
    return coordinator, max(_sized(parties.directory(name) / "participant.db") for name in parties.names)


def _sized(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages * size)
