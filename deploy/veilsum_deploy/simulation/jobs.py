"""Run a sweep's studies on the cores, each in one thread, and hand over every run as it ends.

What a method refuses, or cannot estimate, is a run like any other, with a status that says so.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from veilsum_deploy.collections import Collection
from veilsum_deploy.simulation.dealing import Deal, Setting, deal, site_names
from veilsum_deploy.simulation.scoring import alone, complete, domain_accuracies, pooled
from veilsum_deploy.simulation.study import Draft, draft_of, run_plain
from veilsum_deploy.simulation.sweep import Cell, Sweep
from veilsum_privacy.errors import StateError, VeilsumError

Kind = Literal["cell", "alone", "pooled"]
Status = Literal["ok", "not-estimable", "refused", "failed"]

KINDS_BESIDE: Mapping[Kind, str] = {"alone": "each site alone", "pooled": "pooled"}
"""What stands beside the cells, in words."""

LEFT_OUT = "test records with a missing value count as wrong"
"""Noted where the study leaves them out; sites alone and pooled records take the middle of the bounds there."""

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ARROW_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """One run to do: a cell's study, or sites alone or pooled records in a cell's setting, for a seed."""

    kind: Kind
    cell: Cell
    seed: int
    run: str


@dataclass(frozen=True)
class RunRecord:
    """What came of a job.

    Attributes:
        run: id of the job.
        kind, seed: of the job.
        status: ``ok``; ``not-estimable`` where noise left no classifier; ``refused`` with the reason in ``note``; ``failed``
            where veilsum itself is at fault.
        accuracies: share of test records classified rightly, by domain; empty unless ok.
        epsilon: what the study costs each site; None without noise and for other kinds.
        seconds: that the study took, without dealing and testing.
        records: training records of all sites.
        note: why there are no accuracies, which sites were given a record, or :data:`LEFT_OUT`.
    """

    run: str
    kind: Kind
    seed: int
    status: Status
    accuracies: dict[str, float] = field(default_factory=dict)
    epsilon: float | None = None
    seconds: float = 0.0
    records: int = 0
    note: str = ""


def plan_jobs(sweep: Sweep) -> list[Job]:
    """All runs of a sweep; seed by seed, so that what is done after an interruption compares all cells."""
    jobs = []
    for seed in sweep.seeds:
        for group in sweep.groups():
            jobs += [Job(kind, group, seed, sweep.run_id(kind, group, seed)) for kind in KINDS_BESIDE]
        jobs += [Job("cell", cell, seed, sweep.run_id("cell", cell, seed)) for cell in sweep.cells()]
    return jobs


def load_source(sweep: Sweep) -> Collection:
    """The records of a sweep, turned into features once."""
    draft = None
    if sweep.source.kind == "file":
        draft = draft_of(sweep.data_content_of(Cell(())), sweep.base, None, source="the study", program=sweep.program)
    collection = sweep.source.load(None if draft is None else draft.schema)
    for domain in collection.domains:
        _ = domain.train.records, None if domain.test is None else domain.test.records
    return collection


class Worker:
    """Runs jobs of one sweep on records that are loaded once."""

    def __init__(self, sweep: Sweep, collection: Collection) -> None:
        self._sweep, self._collection = sweep, collection
        self._deal = lru_cache(maxsize=2)(self._dealt)

    def run(self, job: Job) -> RunRecord:
        """Run a job; every failure becomes a record."""
        try:
            return self._run(job)
        except VeilsumError as error:
            return RunRecord(job.run, job.kind, job.seed, "refused", note=" ".join(error.message.split()))
        except Exception as error:  # noqa: BLE001  one faulty method must not cost the other cells
            if os.environ.get("VEILSUM_DEBUG") == "1":
                traceback.print_exception(error)
            return RunRecord(job.run, job.kind, job.seed, "failed", note=f"internal error: {type(error).__name__}")

    def _run(self, job: Job) -> RunRecord:
        draft = self._draft(job)
        dealt = self._deal(self._sweep.setting_of(job.cell), job.seed, draft.request.participants)
        if not dealt.tests:
            return RunRecord(job.run, job.kind, job.seed, "refused", note="there are no records to test on; state --holdout")
        records = sum(dataset.table.num_rows for dataset in dealt.training.values())
        forced = f"given one record: {', '.join(dealt.forced)}" if dealt.forced else ""
        started = time.perf_counter()
        if job.kind != "cell":
            shares = (alone if job.kind == "alone" else pooled)(dealt, draft.schema, draft.encode)
            seconds = time.perf_counter() - started
            return RunRecord(job.run, job.kind, job.seed, "ok", shares, None, seconds, records, forced)
        study, result, kept = run_plain(draft, dealt, lambda: int(time.time()))
        seconds, epsilon = time.perf_counter() - started, study.privacy.epsilon
        if "not_estimable" in result.summary:
            note = str(result.summary["not_estimable"])
            return RunRecord(job.run, job.kind, job.seed, "not-estimable", {}, epsilon, seconds, records, note)
        found = domain_accuracies(result, dealt, draft.schema, kept, draft.program)
        if found is None or not all(map(math.isfinite, found.values())):
            note = f"the method {study.method} makes no classifier"
            return RunRecord(job.run, job.kind, job.seed, "refused", {}, epsilon, seconds, records, note)
        left_out = study.parameters.get("missing") == "skip" and not all(map(complete, dealt.tests.values()))
        note = "; ".join(filter(None, [forced, LEFT_OUT if left_out else ""]))
        return RunRecord(job.run, job.kind, job.seed, "ok", found, epsilon, seconds, records, note)

    def _draft(self, job: Job) -> Draft:
        setting, sweep = self._sweep.setting_of(job.cell), self._sweep
        content = sweep.content_of(job.cell) if job.kind == "cell" else sweep.data_content_of(job.cell)
        schema = self._collection.schema
        if setting.most_records is not None and setting.most_records < schema.max_records:
            schema = schema.model_copy(update={"max_records": setting.most_records})
        return draft_of(content, sweep.base, schema, source="the study", program=sweep.program)

    def _dealt(self, setting: Setting, seed: int, participants: Sequence[str]) -> Deal:
        return deal(self._collection, setting, seed, site_names(self._collection, setting, participants))


def run_jobs(sweep: Sweep, collection: Collection, jobs: Sequence[Job], processes: int) -> Iterator[RunRecord]:
    """Run jobs in so many processes and yield each record as it is there.

    Raises:
        StateError: a process ended by itself.
        KeyboardInterrupt: the user wants no more; the processes have been ended.
    """
    if processes == 1 or len(jobs) <= 1:
        with _one_thread_here():
            worker = Worker(sweep, collection)
            for job in jobs:
                yield worker.run(job)
        return
    with _one_thread_in_children():
        # Processes start afresh: a forked one would inherit the threads' locks of the libraries loaded here.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(processes, len(jobs)), context, _start, (sweep,))
        try:
            futures = [pool.submit(_run_job, job) for job in jobs]
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            advice = "If memory ran out, use fewer --jobs; --resume goes on from here."
            raise StateError("A process of the simulation ended by itself.", advice) from error
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_worker: Worker | None = None
"""Of this process, where it is one of several."""


def _start(sweep: Sweep) -> None:
    """Make this process a worker. Ctrl-C reaches it too and must end it without a word."""
    global _worker
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    _worker = Worker(sweep, load_source(sweep))


def _run_job(job: Job) -> RunRecord:
    if _worker is None:
        raise StateError("The process has no sweep.")
    return _worker.run(job)


@contextmanager
def _one_thread_here() -> Iterator[None]:
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):
        yield


@contextmanager
def _one_thread_in_children() -> Iterator[None]:
    """What the numerical libraries read when a process starts."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
