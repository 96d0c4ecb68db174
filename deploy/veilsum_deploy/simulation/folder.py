"""The results folder of a sweep: every run as it ends, then the tables and the plots; and how a sweep is taken up again.

Each run is appended to runs.csv the moment it is there, so whatever ends a sweep costs only the runs under way.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

from veilsum_deploy.simulation.jobs import Job, RunRecord, Status
from veilsum_deploy.simulation.plots import PlottedTable, draw
from veilsum_deploy.simulation.report import SUMMARY, TABLE_CSV, TABLE_MARKDOWN, check_empty
from veilsum_deploy.simulation.scores import ACCURACY, NAMES, spread
from veilsum_deploy.simulation.sweep import Sweep, shown
from veilsum_deploy.simulation.tables import SweepRow, as_values, to_csv, to_markdown
from veilsum_node.errors import StateError
from veilsum_node.identity.files import replace_file
from veilsum_node.spreadsheets import defused, line, restored, write_csv

RUNS = "runs.csv"
HELD_OUT = tuple(name for name in NAMES if name != ACCURACY)
_FIGURES = ("AVG", "STD", "epsilon", "seconds", "records", "note")
_ADVICE = "Name another folder, or resume its sweep with the same --vary keys."


@dataclass(frozen=True)
class Results:
    """What a sweep came to.

    Attributes:
        sweep, jobs: what was planned.
        domains: of the collection.
        rows: of the table.
        complete: whether every run is there.
        title, about: what the sweep is, for people.
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
        sweep: what is run.
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
