"""An analyst's own studies on the demo's hospitals: real processes over mutual TLS, in place of the demo's studies.

What is found comes from where it belongs: results from the coordinator's service, epsilon from the hospitals' ledgers, each
verified entry by entry, and releases from the coordinator's journal.

A hospital whose process is killed in the middle of a study and comes back: training goes on without it, then with it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from veilsum.compile import StudyRequest
from veilsum.remote import StudyInfo
from veilsum.request import with_projection
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import METHODS
from veilsum_deploy.demo.directory import DELTA, Terms
from veilsum_deploy.demo.findings import accuracies_in_the_clear, released
from veilsum_deploy.demo.hospitals import Hospitals
from veilsum_deploy.demo.processes import Process
from veilsum_deploy.demo.run import Analyst, Finished, running, spending, wait_for_ledgers
from veilsum_node.config import did_you_mean, read_toml, validate
from veilsum_node.database_places import open_readonly
from veilsum_node.errors import Misuse, VeilsumError
from veilsum_participant.applying.model import Model
from veilsum_participant.data import load_records
from veilsum_participant.store.kept import kept_vector
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy

KILL_AT, RETURN_AT = 0.3, 0.6
"""Parts of a study's rounds after which the hospital is killed, and started again."""

FEWEST_ROUNDS = 10
"""A study with fewer rounds is left alone: nothing of it would be left to come back to."""

AWAY_SECONDS, MOST_AWAY_SECONDS = 6.0, 12.0
"""After which it is started again if rounds went on without it, and in any case: a round that asked it for consent waits 20 s
for it."""

MOST_KILLS = 3
"""How often it is killed until a round misses it: one that was killed as it was asked for consent is waited for."""

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
    isolation: str = "none",
) -> dict[str, Any]:
    """Run the studies one after the other in a claimed directory. Returns the findings as plain values.

    Args:
        paths: of the study files.
        progress: told what is being done.
        clock: Unix seconds.
        interrupted: hospital that is killed and started again in every study of ten rounds or more; None for none.
        isolation: of every hospital.

    Raises:
        Misuse: no hospital has that name.
        StateError: a process failed.
        VeilsumError: a study file is invalid.
    """
    started = time.monotonic()
    requests = read_requests(paths, hospitals)
    noise, disclosures = ("distributed", "local"), ("joint", "per-site")
    terms = Terms(LARGEST_STUDY * len(requests), LARGEST_STUDY, tuple(METHODS), noise, disclosures, isolation)
    if interrupted is not None and interrupted not in hospitals.sites:
        raise Misuse(f"No site is called {interrupted!r}.", did_you_mean(interrupted, hospitals.sites))
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
        received = analyst.bytes_sent()
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
    for site, dataset in hospitals.tests.items():
        records, _ = load_records(dataset.write(directory / "held-out", site), dataset.schema)
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


class _State(StrEnum):
    BEFORE = "before"
    AWAY = "away"
    BACK = "back"


@dataclass
class Interruption:
    """Watches one study and interrupts one hospital in it.

    Attributes:
        process: its present process.
        start: starts another in the place of one that was killed, with the same files.
        rounds: that the study may release at most.
    """

    hospital: str
    process: Process
    start: Callable[[Process], Process]
    rounds: int

    def __post_init__(self) -> None:
        self._state = _State.BEFORE
        self._victims: list[Process] = []
        self._killed = self._returned = self._seen = 0
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def watch(self, info: StudyInfo) -> None:
        """Take notice of the study's state, and act if it is time."""
        self._seen = sum(item.phase == "released" for item in info.rounds)
        if self.rounds < FEWEST_ROUNDS:
            return
        if (
            self._state is _State.BACK
            and self._seen > self._returned
            and len(self._victims) < MOST_KILLS
            and all(self.hospital in item.cohort for item in info.rounds if item.phase == "released")
        ):
            self._state = _State.BEFORE
        if self._state is _State.BEFORE and self._seen >= KILL_AT * self.rounds:
            with self._lock:
                self._victims.append(self.process)  # first: who looks after the processes must not miss it
                self.process.kill()
                self._state, self._killed = _State.AWAY, self._seen
            self._wait(AWAY_SECONDS)
        elif self._state is _State.AWAY and self._seen >= max(RETURN_AT * self.rounds, self._killed + 1):
            self.come_back()

    def killed(self, process: Process) -> bool:
        """Whether it was killed here, so that its end is not a fault."""
        return process in self._victims

    def _wait(self, seconds: float, left: float = MOST_AWAY_SECONDS) -> None:
        """Come back in ``seconds``, if a round was released meanwhile; later if not, for then nothing was missed yet."""

        def due() -> None:
            if self._seen > self._killed or left <= seconds:
                self.come_back()
            elif self._state is _State.AWAY:
                self._wait(1.0, left - seconds)

        self._timer = threading.Timer(seconds, due)
        self._timer.daemon = True
        self._timer.start()

    def come_back(self) -> None:
        """Start the hospital again if it is away."""
        with self._lock:
            if self._state is _State.AWAY:
                self.process = self.start(self.process)
                self._state, self._returned = _State.BACK, self._seen

    def end(self) -> None:
        """The study is over: nothing is left to wait for, and the hospital runs."""
        if self._timer is not None:
            self._timer.cancel()
        self.come_back()

    def found(self, info: StudyInfo) -> dict[str, Any] | None:
        """What happened: after how many releases the hospital was killed and was back, and how many it was part of; None
        where it was left alone."""
        if not self._victims:
            return None
        cohorts = [item.cohort for item in info.rounds if item.phase == "released"]
        took_part = [self.hospital in cohort for cohort in cohorts]
        return {
            "hospital": self.hospital,
            "killed_after": self._killed,
            "back_after": self._returned,
            "part_of": sum(took_part),
            "of": len(took_part),
            "part_of_last": bool(took_part and took_part[-1]),
        }
