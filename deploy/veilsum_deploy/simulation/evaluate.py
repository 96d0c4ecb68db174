"""Run a sweep to its end, or to where the user stops it, and leave its tables and plots behind."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from veilsum_deploy.collections import TEST_SHARE, Collection
from veilsum_deploy.simulation.baseline_names import BASELINES
from veilsum_deploy.simulation.deal import site_names
from veilsum_deploy.simulation.engines import Engine
from veilsum_deploy.simulation.folder import Folder, Results
from veilsum_deploy.simulation.jobs import RunRecord, load_source, plan_jobs, run_jobs
from veilsum_deploy.simulation.progress import Progress
from veilsum_deploy.simulation.study import draft_of
from veilsum_deploy.simulation.sweep import EPSILON, Sweep
from veilsum_deploy.simulation.tables import tabulate
from veilsum_node.errors import Misuse, StateError


def evaluate(sweep: Sweep, out: Path | None, engine: Engine, progress: Progress, *, resume: bool = False) -> Results:
    """Run what is not there yet, and write everything into ``out``.

    An interruption from the keyboard ends the runs under way; the results are those of the runs that are done, and
    :attr:`~veilsum_deploy.simulation.folder.Results.complete` is False.

    Args:
        sweep: what to run.
        out: new or empty folder, or with ``resume`` one that holds runs of this sweep; None to write nothing.
        engine: where runs are done.
        progress: told of every run.

    Raises:
        Misuse, DataError, ConfigurationError: settings, records and study do not fit together.
        StateError: the folder is not as needed, or a process ended by itself; what is done is written.
    """
    for cell in sweep.cells():
        sweep.baselines_of(cell)  # reads its study, and says what is wrong with it
    progress("Reading the records", 0.0)
    collection = load_source(sweep)
    for domain in collection.domains:  # turned into features once, here
        _ = domain.train.records, None if domain.test is None else domain.test.records
    sweep = sweep.with_each_domain([domain.name for domain in collection.domains])
    values = {axis.key: axis.values for axis in sweep.axes}
    if sweep.baseline is not None and sweep.baseline[1] not in values[sweep.baseline[0]]:
        advice = "Vary leave_out=without,each and use --baseline leave_out=without, or name one domain in both."
        raise Misuse("The baseline leave_out=each is every domain in turn, and a gain is over one cell.", advice)
    for group in sweep.groups():
        site_names(collection, sweep.setting_of(group))
        # What is wrong for every cell of a group is said before anything runs.
        draft_of(sweep.data_content_of(group), sweep.base, collection.schema, source="the study", program=sweep.program)
    domains = [domain.name for domain in collection.domains]
    jobs = plan_jobs(sweep)
    folder = None if out is None else Folder(out, sweep, domains, resume=resume)
    records: dict[str, RunRecord] = {} if folder is None else folder.earlier()
    due = [job for job in jobs if job.run not in records]
    trouble: StateError | None = None
    with nullcontext(lambda *_: None) if folder is None else folder.writing() as append:
        try:
            for number, (job, record) in enumerate(run_jobs(sweep, collection, due, engine), start=1):
                records[job.run] = record
                append(job, record)
                what = job.cell.label() if job.kind == "cell" else BASELINES[job.kind]
                end = f": {record.status}" if record.status != "ok" else ""
                progress(f"Run {number} of {len(due)}: {what}, seed {job.seed}{end}", number / len(due))
        except KeyboardInterrupt:
            pass
        except StateError as error:
            trouble = error
    complete = all(job.run in records for job in jobs)
    title, about = f"{sweep.content.get('name', 'study')} on {collection.name}", _about(sweep, collection, complete)
    results = Results(sweep, jobs, domains, tabulate(sweep, jobs, records), complete, title, about)
    if folder is not None:
        folder.finish(results, records)
    if trouble is not None:
        raise trouble
    return results


def check_sweep(sweep: Sweep, *, encryption: bool | None, repeat: int) -> None:
    """Refuse what a sweep does not do.

    Raises:
        Misuse: with what to do instead.
    """
    if encryption:
        advice = "The released integers are the same without it; run one cell by itself to see the protocol."
        raise Misuse("A sweep runs without encryption.", advice)
    if repeat != 1:
        raise Misuse("A sweep runs every cell once for each seed.", "State more --seeds in place of --repeat.")
    if len({axis.key for axis in sweep.axes}) < len(sweep.axes):
        raise Misuse("A key is varied twice.", "Name all values of a key in one --vary.")


def _about(sweep: Sweep, collection: Collection, complete: bool) -> list[str]:
    """What was the same in every run, in words: what a key says unless it is varied."""
    setting, privacy, first = sweep.setting, sweep.content.get("privacy"), sweep.seeds[0]
    share = TEST_SHARE if setting.holdout is None else setting.holdout
    by = "by seed" if setting.split is None else f"one split for all seeds ({setting.split})"
    noise = ""
    if isinstance(privacy, dict):
        stated = privacy.get("epsilon")
        noise = "no noise" if privacy.get("noise") == "none" else f"epsilon {stated}" if stated else "noise as the study says"
    parts = [
        ("partition", f"partition {setting.partition}"),
        ("limit", "all records" if setting.limit is None else f"at most {setting.limit} training records a site"),
        ("cap", "" if setting.cap is None else f"at most {setting.cap} after the skew"),
        ("leave_out", "" if setting.leave_out is None else f"{setting.leave_out} left out"),
        (
            "--holdout",
            f"{100 * share:g}% of each class held out for testing, {by}"
            if any(domain.test is None for domain in collection.domains)
            else "",
        ),
        ("--seeds", f"seeds {first} to {sweep.seeds[-1]}" if len(sweep.seeds) > 1 else f"seed {first}"),
        ("method", f"method {sweep.content['method']}" if "method" in sweep.content else ""),
        (EPSILON, noise),
    ]
    varied = {axis.key for axis in sweep.axes}
    told = ", ".join(text for key, text in parts if text and key not in varied)
    lines = [f"Simulated without encryption: {told}."]
    if not complete:
        lines += ["", "**Not complete: the sweep was ended before all its runs were done.**"]
    return lines
