"""An analyst's own studies on the demo's hospitals: real processes over mutual TLS, in place of the demo's studies.

What is found comes from where it belongs: results from the coordinator's service, epsilon from the hospitals' ledgers, each
verified entry by entry, and releases from the coordinator's journal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from veilsum.compile import StudyRequest
from veilsum.request import with_projection
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import METHODS
from veilsum_deploy.demo.directory import DELTA, Terms
from veilsum_deploy.demo.findings import accuracies_in_the_clear, released
from veilsum_deploy.demo.hospitals import Hospitals
from veilsum_deploy.demo.interruption import Interruption
from veilsum_deploy.demo.processes import Process
from veilsum_deploy.demo.run import Analyst, Finished, running, spending, wait_for_ledgers
from veilsum_node.config import did_you_mean, read_toml, validate
from veilsum_node.database import open_readonly
from veilsum_node.errors import Misuse, VeilsumError
from veilsum_participant.applying.model import Model
from veilsum_participant.data import load_records
from veilsum_participant.store.kept import kept_vector
from veilsum_privacy.securesum.agreed import AgreedStudy
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records

Progress = Callable[[str, float], None]

LARGEST_STUDY = 100.0
"""Epsilon of one study that the hospitals agree to; their budgets bear all studies that are asked for."""


def read_requests(paths: Sequence[Path], hospitals: Hospitals) -> list[tuple[Path, StudyRequest]]:
    """Read study files; dataset and schema are the hospitals', whatever the files say.

    Raises:
        ConfigurationError: a file is missing or invalid.
        Misuse: a study without noise; the demo's hospitals agree to none.
    """
    some = next(iter(hospitals.sites.values()))
    requests = []
    for path in paths:
        content = {key: value for key, value in read_toml(path).items() if key not in ("schema", "data")}
        request = validate({**content, "dataset": some.name, "data": some.schema}, StudyRequest, source=str(path))
        if request.privacy.noise == "none":
            raise Misuse(f"{path}: the demo's hospitals release nothing without noise.", "Use veilsum simulate.")
        requests.append((path, request))
    return requests


def run_own_studies(
    directory: Path,
    hospitals: Hospitals,
    paths: Sequence[Path],
    progress: Progress,
    clock: Callable[[], int],
    interrupted: str | None = None,
) -> dict[str, Any]:
    """Run the studies one after the other in a claimed directory. Returns the findings as plain values.

    Args:
        directory: that was claimed.
        hospitals: their data.
        paths: of the study files.
        progress: told what is being done.
        clock: Unix seconds.
        interrupted: hospital that is killed and started again in every study of ten rounds or more; None for none.

    Raises:
        Misuse: there is no hospital of that name.
        StateError: a process failed.
        VeilsumError: a study file is invalid.
    """
    started = time.monotonic()
    requests = read_requests(paths, hospitals)
    terms = Terms(
        LARGEST_STUDY * len(requests), LARGEST_STUDY, tuple(METHODS), ("distributed", "local"), ("joint", "per-site")
    )
    if interrupted is not None and interrupted not in hospitals.sites:
        raise Misuse(f"There is no site {interrupted!r}.", did_you_mean(interrupted, hospitals.sites))
    rows: list[dict[str, Any]] = []
    done: list[Finished] = []
    with running(directory, hospitals, progress, clock, terms) as (analyst, processes):
        for number, (path, request) in enumerate(requests):
            progress(f"Study {request.name} ({request.method})", 0.3 + 0.65 * number / len(requests))
            try:
                study = analyst.compile_request(with_projection(request, path.parent))
                finished, interruption = _run(analyst, study, processes, interrupted)
            except VeilsumError as error:
                rows.append({"study": request.name, "method": request.method, "fault": error.message})
                continue
            done.append(finished)
            found = _found(finished, hospitals, directory)
            rows.append({"study": request.name, "method": request.method, "interruption": interruption, **found})
        received = analyst.remote.describe().received
        wait_for_ledgers(analyst.kit, done)
        kit = analyst.kit
    progress("Verifying ledgers", 0.97)
    baselines: dict[str, float] = {}
    if hospitals.tests:
        alone, pooled = accuracies_in_the_clear(hospitals, directory)
        baselines = {**{f"{site} alone": share for site, share in alone.items()}, "pooled": pooled}
    return {
        "data": hospitals.source,
        "studies": rows,
        "baselines": baselines,
        "epsilon": spending(kit, hospitals),
        "delta": DELTA,
        "bytes_sent": received,
        "releases": released(kit, done),
        "directory": str(directory),
        "seconds": round(time.monotonic() - started, 1),
    }


def _run(
    analyst: Analyst, study: Study, processes: dict[str, Process], interrupted: str | None
) -> tuple[Finished, dict[str, Any] | None]:
    """Run a study; interrupt a hospital in it, if one is named."""
    key = analyst.submit(study)
    if interrupted is None:
        return analyst.finish(study, key), None
    rounds = sum(task.releases for task in study.tasks)
    interruption = Interruption(interrupted, processes[interrupted], analyst.processes.restart, rounds)
    try:
        finished = analyst.finish(study, key, killed=interruption.killed, observe=interruption.watch)
    finally:
        interruption.end()
        processes[interrupted] = interruption.process
    return finished, interruption.found(finished.info)


def _found(done: Finished, hospitals: Hospitals, directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "epsilon": done.study.privacy.epsilon,
        "proof": done.proof.to_json(),
        "rounds": len(done.info.rounds),
        "disclosure": sorted({task.disclosure for task in done.study.tasks}),
        "accuracy": None,
        "by_site": {},
    }
    if not hospitals.tests or not done.result.application.get("head"):
        return found
    model = Model.from_result(done.result)
    right = []
    for site, records in _test_records(hospitals, directory).items():
        if records.labels is None or not len(records):
            continue
        predicted = model.predict(records, site=site, kept=_kept(done, site, directory))
        classes = np.array([hospitals.held_out.schema.classes.index(name) for name in model.classes])
        hits = (predicted >= 0) & (classes[np.maximum(predicted, 0)] == records.labels)
        right.append(hits[records.labels >= 0])
        found["by_site"][site] = round(float(np.mean(right[-1])), 4)
    found["accuracy"] = round(float(np.mean(np.concatenate(right))), 4) if right else None
    return found


def _kept(done: Finished, site: str, directory: Path) -> dict[str, Floats] | None:
    """What the site itself would apply the result with: the noised statistic in its own state."""
    source = next((task.source for task in done.study.tasks if task.source is not None), None)
    if source is None:
        return None
    with open_readonly(directory / "participants" / site / "participant.db") as database, database.reading() as connection:
        vector = kept_vector(connection, done.key, source)
    return None if vector is None else AgreedStudy(done.study).task(source).kept_blocks(vector)[0]


def _test_records(hospitals: Hospitals, directory: Path) -> dict[str, Records]:
    return {
        site: load_records(dataset.write(directory / "held-out", site), dataset.schema)[0]
        for site, dataset in hospitals.tests.items()
    }
