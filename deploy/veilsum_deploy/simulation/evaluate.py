"""Run a sweep to its end, or to where the user stops it, and leave its tables and plots behind.

The results folder of a sweep: every run as it ends, then the tables and the plots; and how a sweep is taken up again.

Each run is appended to runs.csv the moment it is there, so whatever ends a sweep costs only the runs under way.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

from veilsum_deploy.collections import TEST_SHARE, Collection
from veilsum_deploy.simulation.baseline_names import BASELINES
from veilsum_deploy.simulation.deal import site_names
from veilsum_deploy.simulation.engines import Engine
from veilsum_deploy.simulation.jobs import Job, RunRecord, Status, load_source, plan_jobs, run_jobs
from veilsum_deploy.simulation.plots import PlottedTable, draw
from veilsum_deploy.simulation.progress import Progress
from veilsum_deploy.simulation.report import SUMMARY, TABLE_CSV, TABLE_MARKDOWN, check_empty
from veilsum_deploy.simulation.scores import ACCURACY, NAMES, spread
from veilsum_deploy.simulation.study import draft_of
from veilsum_deploy.simulation.sweep import EPSILON, Sweep, shown
from veilsum_deploy.simulation.tables import SweepRow, as_values, tabulate, to_csv, to_markdown
from veilsum_node.errors import Misuse, StateError
from veilsum_node.identity.files import replace_file
from veilsum_node.spreadsheets import defused, line, restored, write_csv

RUNS = "runs.csv"
HELD_OUT = tuple(name for name in NAMES if name != ACCURACY)
_FIGURES = ("AVG", "STD", "epsilon", "seconds", "records", "note")
_ADVICE = "Name another folder, or resume its sweep with the same --vary keys."


def evaluate(sweep: Sweep, out: Path | None, engine: Engine, progress: Progress, *, resume: bool = False) -> Results:
    """Run what is not there yet, and write everything into ``out``.

    An interruption from the keyboard ends the runs under way; the results are those of the runs that are done, and
    :attr:`~veilsum_deploy.simulation.evaluate.Results.complete` is False.

    Args:
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
        content, given = sweep.data_content_of(group), {"program": sweep.program, "weights": sweep.weights}
        draft_of(content, sweep.base, collection.schema, source="the study", **given)
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


@dataclass(frozen=True)
class Results:
    """What a sweep came to.

    Attributes:
        complete: whether every run is there.
    """

    sweep: Sweep
    jobs: Sequence[Job]
    domains: Sequence[str]
    rows: Sequence[SweepRow]
    complete: bool
    title: str
    about: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Plain values: the whole sweep and its table; shares from 0 to 1."""
        sweep = self.sweep
        setting = sweep.setting
        return {
            "study": dict(sweep.content),
            "source": sweep.source.name,
            "setting": asdict(setting),
            "encryption": False,
            "seeds": list(sweep.seeds),
            "vary": {axis.key: list(axis.values) for axis in sweep.axes},
            "baseline": None if sweep.baseline is None else dict([sweep.baseline]),
            "domains": list(self.domains),
            "complete": self.complete,
            "rows": [as_values(row) for row in self.rows],
        }


class Folder:
    """A results folder.

    Args:
        path: the folder; made with the first run.
        domains: names of the collection's domains.
        resume: whether runs that lie there are kept; otherwise the folder must be new or empty.

    Raises:
        StateError: the folder holds something else.
    """

    def __init__(self, path: Path, sweep: Sweep, domains: Sequence[str], *, resume: bool) -> None:
        self.path, self._domains = path, tuple(domains)
        self._keys = [axis.key for axis in sweep.axes]
        if not resume or not (path / RUNS).exists():
            check_empty(path)

    @property
    def _header(self) -> list[str]:
        shares = [f"accuracy.{name}" for name in self._domains]
        return ["run", "kind", *self._keys, "seed", "status", *HELD_OUT, *shares, *_FIGURES]

    def earlier(self) -> dict[str, RunRecord]:
        """The runs that are there, by id; those that were refused or failed are left out, to be tried again.

        Raises:
            StateError: the file is another sweep's.
        """
        found = {line["run"]: self._record(line) for line in self._lines()}
        return {run: record for run, record in found.items() if record.status in ("ok", "not-estimable")}

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """Yield a function of (job, record) that appends a run.

        Raises:
            StateError: the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            replace_file(self.path / RUNS, self._text(self._lines()).encode())  # without a line that was cut off
            with (self.path / RUNS).open("a", newline="", encoding="utf-8") as file:

                def append(job: Job, record: RunRecord) -> None:
                    cells = self._line(job, record)
                    file.write(line(defused(cells.get(name, "")) for name in self._header))
                    file.flush()

                yield append
        except OSError as error:
            raise StateError(
                f"{self.path} cannot be written ({error.strerror}).", "Check the folder and its space."
            ) from error

    def finish(self, results: Results, records: Mapping[str, RunRecord]) -> list[Path]:
        """Write runs in the order of the plan, table, summary and plots; returns the plots' paths.

        Raises:
            StateError: the folder cannot be written.
        """
        planned = {job.run for job in results.jobs}
        others = [line for line in self._lines() if line["run"] not in planned]
        known = [self._line(job, records[job.run]) for job in results.jobs if job.run in records]
        replace_file(self.path / RUNS, self._text([*known, *others]).encode())
        replace_file(self.path / TABLE_CSV, to_csv(results.sweep, results.rows).encode())
        text = to_markdown(results.sweep, results.title, results.about, results.rows)
        replace_file(self.path / TABLE_MARKDOWN, text.encode())
        found = json.dumps(results.to_json(), indent=2, ensure_ascii=False, default=str)
        replace_file(self.path / SUMMARY, (found + "\n").encode())
        return draw(self.path, PlottedTable(results.sweep, results.rows, results.title))

    def _lines(self) -> list[dict[str, str]]:
        """Whole lines of the file, the last of each run."""
        path = self.path / RUNS
        if not path.exists():
            return []
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(f"{path} cannot be read.", _ADVICE) from error
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
        if [restored(name) for name in reader.fieldnames or ()] != self._header:
            raise StateError(f"{path} has the columns of another sweep.", _ADVICE)
        whole = (line for line in reader if None not in line and None not in line.values())
        read = ({restored(name): restored(text) for name, text in line.items()} for line in whole)
        lines = {line["run"]: line for line in read}
        return list(lines.values())

    def _text(self, lines: Sequence[Mapping[str, Any]]) -> str:
        stream = io.StringIO()
        write_csv(stream, self._header, lines)
        return stream.getvalue()

    def _line(self, job: Job, record: RunRecord) -> dict[str, Any]:
        average, std = spread(record.accuracies) if record.accuracies else ("", "")
        return {
            "run": job.run,
            "kind": job.kind,
            **{key: shown(value) for key, value in job.cell.values},
            "seed": job.seed,
            "status": record.status,
            **record.held_out,
            **{f"accuracy.{name}": share for name, share in record.accuracies.items()},
            "AVG": average,
            "STD": std,
            "epsilon": record.epsilon,
            "seconds": round(record.seconds, 4),
            "records": record.records,
            "note": record.note,
        }

    def _record(self, line: Mapping[str, str]) -> RunRecord:
        try:
            if line["status"] not in get_args(Status):
                raise ValueError(line["status"])
            return RunRecord(
                status=cast(Status, line["status"]),
                accuracies={name: float(share) for name in self._domains if (share := line[f"accuracy.{name}"])},
                held_out={name: float(line[name]) for name in HELD_OUT if line[name]},
                epsilon=float(line["epsilon"]) if line["epsilon"] else None,
                seconds=float(line["seconds"]),
                records=int(line["records"]),
                note=line["note"],
            )
        except ValueError as error:
            raise StateError(f"{self.path / RUNS} holds a line that is not a run.", _ADVICE) from error
