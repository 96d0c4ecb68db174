"""Run a sweep's studies on the cores, each in one thread, and hand over every run as it ends.

What a method refuses, or cannot estimate, is a run like any other, with a status that says so.
"""

from __future__ import annotations

import math
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, cast

from veilsum_deploy.collections import Collection
from veilsum_deploy.simulation.baseline_names import OF_CELLS
from veilsum_deploy.simulation.baselines import beside
from veilsum_deploy.simulation.deal import Deal, Setting, deal, site_names
from veilsum_deploy.simulation.engines import Engine, Shared
from veilsum_deploy.simulation.plain import run_plain
from veilsum_deploy.simulation.scores import ACCURACY, Scores, complete, guessed, score
from veilsum_deploy.simulation.study import SimulationDraft, draft_of, with_stations
from veilsum_deploy.simulation.sweep import Cell, Sweep
from veilsum_node.errors import VeilsumError

Kind = Literal["cell", "alone", "pooled", "trained-alone", "trained-pooled", "central", "personal"]
Status = Literal["ok", "not-estimable", "refused", "failed"]

LEFT_OUT = "test records with a missing value count as wrong"
"""Noted where the study leaves them out; sites alone and pooled records take the middle of the bounds there."""


@dataclass(frozen=True)
class Job:
    """One run to do: a cell's study or a baseline, for a seed; ``run`` is what it is known by."""

    kind: Kind
    cell: Cell
    seed: int
    run: str


@dataclass(frozen=True)
class RunRecord:
    """What came of a job.

    Attributes:
        status: ``ok``; ``not-estimable`` where noise left no classifier; ``refused`` with the reason in ``note``; ``failed``
            where veilsum itself is at fault.
        accuracies: share of test records classified rightly, by domain; where it is not estimable that of the constant guess;
            empty otherwise, and where outcomes are predicted.
        held_out: figures by their names in :data:`.scores.NAMES`, but for accuracy; as accuracies.
        epsilon: what the study costs each site; None without noise and for other kinds.
        seconds: that the study took, without dealing and testing.
        records: training records of all sites.
        note: why there are no figures, which sites were given a record, or :data:`LEFT_OUT`.
    """

    status: Status
    accuracies: dict[str, float] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)
    epsilon: float | None = None
    seconds: float = 0.0
    records: int = 0
    note: str = ""


def plan_jobs(sweep: Sweep) -> list[Job]:
    """All runs of a sweep; seed by seed, so that what is done after an interruption compares all cells."""
    stages = {
        "cell": 1,
        **dict.fromkeys(OF_CELLS, 2),
    }  # what stands beside a setting comes first, what stands beside each cell last
    planned = sorted(sweep.lines(), key=lambda line: stages.get(line[0], 0))
    return [
        Job(cast(Kind, kind), cell, seed, sweep.run_id(kind, cell, seed)) for seed in sweep.seeds for kind, cell in planned
    ]


def load_source(sweep: Sweep, what: str = "the study") -> Collection:
    """The records of a sweep, whose study is named ``what`` in errors."""
    schema = None
    if sweep.source.kind in ("file", "sites"):
        content = {key: value for key, value in sweep.data_content_of(Cell(())).items() if key != "encoder"}
        schema = draft_of(content, sweep.base, None, source=what).schema
    return sweep.source.load(schema)


class Worker:
    """Runs jobs of one sweep on records that are loaded once; in another process it begins without what it remembers."""

    def __init__(self, sweep: Sweep, collection: Collection) -> None:
        self._sweep, self._collection = sweep, collection
        self._deal = lru_cache(maxsize=2)(self._dealt)

    def __reduce__(self) -> tuple[type[Worker], tuple[Sweep, Collection]]:
        return Worker, (self._sweep, self._collection)

    def prepared(self, job: Job) -> SimulationDraft | None:
        """A job's study, ready to be sent; None where it cannot be made or sent."""
        if self._sweep.program is not None or self._sweep.weights is not None:
            return None
        try:
            return self._draft(job)
        except VeilsumError:
            return None

    def run(self, job: Job, draft: SimulationDraft | None = None) -> RunRecord:
        """Run a job; every failure becomes a record."""
        try:
            return self._run(job, self._draft(job) if draft is None else draft)
        except VeilsumError as error:
            return RunRecord("refused", note=" ".join(error.message.split()))
        except Exception as error:  # noqa: BLE001  one faulty method must not cost the other cells
            if os.environ.get("VEILSUM_DEBUG") == "1":
                traceback.print_exception(error)
            return RunRecord("failed", note=f"internal error: {type(error).__name__}")

    def _run(self, job: Job, draft: SimulationDraft) -> RunRecord:
        dealt = self._deal(self._sweep.setting_of(job.cell), job.seed, draft.request.participants)
        if not dealt.tests:
            return RunRecord("refused", note="there are no records to test on; state --holdout")
        records = sum(dataset.table.num_rows for dataset in dealt.training.values())
        forced = f"given one record: {', '.join(dealt.forced)}" if dealt.forced else ""
        started = time.perf_counter()

        def told(status: Status, epsilon: float | None, *notes: str, scores: Scores | None = None) -> RunRecord:
            found = Scores() if scores is None else scores
            figures = {name: value for name, value in found.held_out.items() if name != ACCURACY}
            return RunRecord(status, found.accuracies, figures, epsilon, seconds, records, "; ".join(filter(None, notes)))

        if job.kind != "cell":
            baseline = beside(job.kind, draft, dealt, lambda: int(time.time()))
            seconds, found = time.perf_counter() - started, baseline.scores
            status: Status = "ok" if found.accuracies or found.held_out else "refused"
            return told(status, baseline.epsilon, forced, baseline.note, scores=found)
        study, result, kept = run_plain(draft, dealt, lambda: int(time.time()))
        seconds, epsilon = time.perf_counter() - started, study.privacy.epsilon
        if "not_estimable" in result.summary:
            guess = guessed(dealt, draft.schema) if draft.schema.classes else Scores()
            return told("not-estimable", epsilon, str(result.summary["not_estimable"]), scores=guess)
        found = score(result, dealt, draft.schema, kept, draft.program)
        values = [*found.accuracies.values(), *found.held_out.values()]
        if not values or not all(map(math.isfinite, values)):
            return told("refused", epsilon, f"the method {study.method} predicts nothing")
        skips = bool(found.accuracies) and study.parameters.get("missing") == "skip"
        left_out = skips and not all(map(complete, dealt.tests.values()))
        return told("ok", epsilon, forced, LEFT_OUT if left_out else "", scores=found)

    def _draft(self, job: Job) -> SimulationDraft:
        setting, sweep = self._sweep.setting_of(job.cell), self._sweep
        content = with_stations(sweep.content_for(job.kind, job.cell), self._collection, setting)
        schema = self._collection.schema
        if setting.most_records is not None and setting.most_records < schema.max_records:
            schema = schema.model_copy(update={"max_records": setting.most_records})
        return draft_of(content, sweep.base, schema, source="the study", program=sweep.program, weights=sweep.weights)

    def _dealt(self, setting: Setting, seed: int, participants: Sequence[str]) -> Deal:
        return deal(self._collection, setting, seed, site_names(self._collection, setting, participants))


@dataclass(frozen=True)
class SentJob:
    """A job as it is sent to a worker.

    Attributes:
        worker: shared by all jobs.
        draft: its study, so that a worker on another machine needs no file of this one; None where it cannot be made, which
            running the job will say, or holds a program, whose file is then needed at the same path.
    """

    worker: Shared[Worker]
    job: Job
    draft: SimulationDraft | None


def run_jobs(sweep: Sweep, collection: Collection, jobs: Sequence[Job], engine: Engine) -> Iterator[tuple[Job, RunRecord]]:
    """Run jobs on an engine and yield each with its record as it is there.

    Raises:
        StateError: a worker ended by itself.
        KeyboardInterrupt: the user wants no more; the workers have been ended.
    """
    here = Worker(sweep, collection)
    worker = engine.share(here)
    items = [SentJob(worker, job, None if engine.workers == 1 else here.prepared(job)) for job in jobs]
    yield from engine.map(_run_job, items, ordered=False)


def _run_job(item: SentJob) -> tuple[Job, RunRecord]:
    return item.job, item.worker.get().run(item.job, item.draft)
