"""What the runs of a sweep come to: means, standard errors and paired gains of every cell, as CSV and Markdown.

Shares are from 0 to 1 in CSV and JSON, and points (hundredths) in Markdown. A mean is over the seeds whose run could tell; its
standard error is the standard deviation (n - 1) over the root of their number. A gain is paired: seed by seed, over the seeds
that both cells have.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from veilsum_deploy.simulation.baseline_names import BASELINES
from veilsum_deploy.simulation.held_out import LEADING, NAMES, SHARES
from veilsum_deploy.simulation.jobs import Job, RunRecord, Status
from veilsum_deploy.simulation.scores import spread
from veilsum_deploy.simulation.sweep import EPSILON, LEFT_OUT, Cell, Sweep, short, shown

LEAVE_OUT = "leave_out"
OVER_LEFT_OUT = "left-out"
WORDS = {**BASELINES, OVER_LEFT_OUT: "mean over those left out"}
"""Every row but a cell's in words."""

GUESS = "accuracy_of_constant_guess"
HEADS = {
    **NAMES,
    "auc": "area",
    "root_mean_squared_error": "RMSE",
    GUESS: "guess",
}
"""Headings of the figures."""


@dataclass(frozen=True)
class MeanOfRuns:
    """A mean over runs with its standard error, None for fewer than two; ``runs`` is how many."""

    mean: float
    error: float | None
    runs: int


@dataclass(frozen=True)
class SweepRow:
    """One line of the table.

    Attributes:
        kind: ``cell``, or the name of a baseline; ``left-out`` of the mean over cells that leave a domain out.
        cell: the combination; of a baseline only what it depends on.
        figures: of all test records, by their names in :data:`.held_out.NAMES`.
        domains: accuracy by domain.
        average, spread: AVG and STD over domains (n in the denominator), means over runs; None where no run could tell.
        gain, spread_gain: paired differences of AVG and STD to the baseline; None without one, or without a common seed. Where
            no classes are predicted, ``gain`` is of the figure that leads.
        epsilon: mean over runs; None without noise.
        seconds: mean over runs.
        planned, done: runs asked for, and those that are there.
        statuses: how many runs ended in each status but ``ok``.
        notes: the distinct notes.
    """

    kind: str
    cell: Cell
    domains: dict[str, float]
    average: MeanOfRuns | None
    spread: MeanOfRuns | None
    gain: MeanOfRuns | None
    spread_gain: MeanOfRuns | None
    epsilon: float | None
    seconds: float
    planned: int
    done: int
    statuses: dict[Status, int]
    notes: tuple[str, ...]
    figures: dict[str, MeanOfRuns] = field(default_factory=dict)

    @property
    def told(self) -> int:
        """Runs that came to figures."""
        return self.done - sum(self.statuses.values())

    @property
    def classes(self) -> bool:
        """Whether classes were predicted."""
        return self.average is not None


def tabulate(sweep: Sweep, jobs: Sequence[Job], records: Mapping[str, RunRecord]) -> list[SweepRow]:
    """One row for each cell and each baseline: those of a setting before the setting's cells, "central" after its own cell.

    Args:
        sweep, jobs: what was planned.
        records: by run, those that are there.
    """
    lines: list[tuple[str, Cell]] = []
    for group in sweep.groups():
        cells = [cell for cell in sweep.cells() if cell.group == group]
        beside = list(dict.fromkeys(own for cell in cells for own in sweep.baselines_of(cell)))
        lines += [own for own in beside if own[0] != "central"]
        for cell in cells:
            lines.append(("cell", cell))
            lines += [own for own in beside if own == ("central", cell)]
    found = [_row(sweep, kind, cell, jobs, records) for kind, cell in lines]
    return found + [_left_out(sweep, cells, jobs, records) for cells in left_out_cells(sweep)]


def left_out_cells(sweep: Sweep) -> list[list[Cell]]:
    """Cells that differ in the domain that they leave out only, where two domains or more are left out."""
    found: dict[Cell, list[Cell]] = {}
    for cell in sweep.cells():
        if cell.value(LEAVE_OUT) is not None and cell.value(LEAVE_OUT) not in LEFT_OUT:
            found.setdefault(cell.with_value(LEAVE_OUT, None), []).append(cell)
    return [cells for cells in found.values() if len(cells) > 1]


def _left_out(sweep: Sweep, cells: Sequence[Cell], jobs: Sequence[Job], records: Mapping[str, RunRecord]) -> SweepRow:
    """How good a study is on a domain that no site has: of each domain the accuracy in the cell that left it out."""
    runs = {str(cell.value(LEAVE_OUT)): _records_of("cell", cell, jobs, records) for cell in cells}
    seeds = [seed for seed in sweep.seeds if all(seed in own for own in runs.values())]
    shares = [
        {domain: own[seed].accuracies[domain] for domain, own in runs.items()}
        for seed in seeds
        if all(own[seed].status == "ok" and domain in own[seed].accuracies for domain, own in runs.items())
    ]
    spreads = [spread(each) for each in shares]
    own = [record for each in runs.values() for record in each.values()]
    epsilons = [record.epsilon for record in own if record.epsilon is not None]
    lost = len(seeds) - len(shares)
    return SweepRow(
        kind=OVER_LEFT_OUT,
        cell=Cell(tuple((key, value) for key, value in cells[0].values if key != LEAVE_OUT)),
        domains={name: statistics.fmean(each[name] for each in shares) for name in runs} if shares else {},
        average=estimate([mean for mean, _ in spreads]),
        spread=estimate([std for _, std in spreads]),
        gain=None,
        spread_gain=None,
        epsilon=statistics.fmean(epsilons) if epsilons else None,
        seconds=statistics.fmean(record.seconds for record in own) if own else 0.0,
        planned=len(sweep.seeds),
        done=len(seeds),
        statuses={"not-estimable": lost} if lost else {},
        notes=(),
    )


def _row(sweep: Sweep, kind: str, cell: Cell, jobs: Sequence[Job], records: Mapping[str, RunRecord]) -> SweepRow:
    own = _records_of(kind, cell, jobs, records)
    told = {seed: record for seed, record in own.items() if record.status == "ok"}
    gain = spread_gain = None
    baseline = sweep.baseline_of(cell) if kind == "cell" else None
    if baseline is not None:
        others = {
            seed: record for seed, record in _records_of("cell", baseline, jobs, records).items() if record.status == "ok"
        }
        pairs = [(told[seed], others[seed]) for seed in told if seed in others]
        of_classes = [(spread(mine.accuracies), spread(theirs.accuracies)) for mine, theirs in pairs if _both(mine, theirs)]
        gain = estimate([mine[0] - theirs[0] for mine, theirs in of_classes])
        spread_gain = estimate([mine[1] - theirs[1] for mine, theirs in of_classes])
        if gain is None:
            gain = estimate([_led(mine) - _led(theirs) for mine, theirs in pairs if _led_alike(mine, theirs)])
    spreads = [spread(record.accuracies) for record in told.values() if record.accuracies]
    domains = list(next(iter(told.values())).accuracies) if told else []
    held = {name: [record.held_out[name] for record in told.values() if name in record.held_out] for name in NAMES}
    figures = {name: estimate(values) for name, values in held.items()}
    epsilons = [record.epsilon for record in own.values() if record.epsilon is not None]
    failed = [record.status for record in own.values() if record.status != "ok"]
    return SweepRow(
        kind=kind,
        cell=cell,
        domains={name: statistics.fmean(record.accuracies[name] for record in told.values()) for name in domains},
        average=estimate([mean for mean, _ in spreads]),
        spread=estimate([std for _, std in spreads]),
        gain=gain,
        spread_gain=spread_gain,
        epsilon=statistics.fmean(epsilons) if epsilons else None,
        seconds=statistics.fmean(record.seconds for record in own.values()) if own else 0.0,
        planned=len(sweep.seeds),
        done=len(own),
        statuses={status: failed.count(status) for status in dict.fromkeys(failed)},
        notes=tuple(dict.fromkeys(record.note for record in own.values() if record.note)),
        figures={name: found for name, found in figures.items() if found is not None},
    )


def leading(record: RunRecord) -> str | None:
    """The figure that tells most of a run without classes; None where there is none."""
    return next((name for name in LEADING if name in record.held_out), None)


def _led(record: RunRecord) -> float:
    return record.held_out[str(leading(record))]


def _led_alike(mine: RunRecord, theirs: RunRecord) -> bool:
    return leading(mine) is not None and leading(mine) == leading(theirs)


def _both(mine: RunRecord, theirs: RunRecord) -> bool:
    return bool(mine.accuracies and theirs.accuracies)


def _records_of(kind: str, cell: Cell, jobs: Sequence[Job], records: Mapping[str, RunRecord]) -> dict[int, RunRecord]:
    return {job.seed: records[job.run] for job in jobs if job.kind == kind and job.cell == cell and job.run in records}


def estimate(values: Sequence[float]) -> MeanOfRuns | None:
    """Mean and standard error; None of nothing."""
    if not values:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return MeanOfRuns(statistics.fmean(values), error, len(values))


def as_values(row: SweepRow) -> dict[str, Any]:
    """A row as plain values for JSON."""
    found = asdict(row)
    found["cell"] = dict(row.cell.values)
    found["label"] = _label(row)
    return found


def to_csv(sweep: Sweep, rows: Sequence[SweepRow]) -> str:
    """The table as CSV: shares from 0 to 1; empty where there is nothing to tell."""
    domains = _domains(rows)
    keys = [axis.key for axis in sweep.axes]
    parts = ("mean", "error")
    heads = ["average", "spread", "gain", "spread_gain"]
    stream = io.StringIO()
    writer = csv.writer(stream)
    named = [f"{head}.{part}" for head in heads for part in parts]
    accuracies = [f"accuracy.{name}" for name in domains]
    known = _known(rows)
    told = [f"{name}.{part}" for name in known for part in parts]
    writer.writerow(["kind", *keys, *told, *accuracies, *named, "pairs", "epsilon", "seconds", "runs", "planned", "notes"])
    for row in rows:
        values = {key: shown(value) for key, value in row.cell.values}
        figures = [
            None if one is None else getattr(one, part)
            for one in (row.average, row.spread, row.gain, row.spread_gain)
            for part in parts
        ]
        held = [getattr(row.figures[name], part) if name in row.figures else None for name in known for part in parts]
        pairs = None if row.gain is None else row.gain.runs
        line = [row.kind, *(values.get(key) for key in keys), *held, *(row.domains.get(name) for name in domains), *figures]
        writer.writerow([*line, pairs, row.epsilon, round(row.seconds, 4), row.told, row.planned, "; ".join(row.notes)])
    return stream.getvalue()


def to_markdown(sweep: Sweep, title: str, about: Sequence[str], rows: Sequence[SweepRow]) -> str:
    """The table in points, with what it was made from above it and what its columns mean below."""
    found = table_rows(sweep, rows)
    lines = [f"# {title}", "", *about, ""]
    if found:
        heads = list(found[0])
        texts = len(sweep.axes) or 1
        lines += [_line(heads), _line(["---"] * texts + ["---:"] * (len(heads) - texts))]
        lines += [_line(str(value) for value in row.values()) for row in found]
    lines += ["", *legend(sweep)]
    found_problems = problems(rows)
    if found_problems:
        lines += ["", "Notes on some of the runs:", "", *(f"- {text}" for text in found_problems)]
    return "\n".join(lines) + "\n"


def table_rows(sweep: Sweep, rows: Sequence[SweepRow]) -> list[dict[str, str]]:
    """The table as texts, in points, one column for each varied key, each domain and each figure."""
    domains = _domains(rows)
    costs = EPSILON not in sweep.headings and any(row.epsilon is not None for row in rows)
    known = _known(rows)
    found = []
    for row in rows:
        values = dict(row.cell.values)
        line = {head: shown(values[key]) if key in values else "" for key, head in sweep.headings.items()}
        if row.kind != "cell":
            free = next((name for name, text in line.items() if not text), None)
            words, head = WORDS[row.kind], sweep.headings.get(LEAVE_OUT) if row.kind == OVER_LEFT_OUT else free
            line = {**line, head: words} if head is not None else {**line, "records": words}
        found.append((line, row))
    heads = list(dict.fromkeys(name for line, _ in found for name in line)) or ["records"]
    return [
        {
            **{head: line.get(head, "" if sweep.axes else "study") for head in heads},
            **_figures(sweep, row, domains, costs, known),
        }
        for line, row in found
    ]


def _figures(sweep: Sweep, row: SweepRow, domains: Sequence[str], costs: bool, known: Sequence[str]) -> dict[str, str]:
    figures = {HEADS[name]: _figure(row, name) for name in known if name != GUESS}
    if domains:
        figures |= {name: _points(row.domains.get(name)) for name in domains} if len(domains) > 1 else {}
        figures["AVG"] = _with_error(row.average)
    if len(domains) > 1:
        figures["STD"] = _points(None if row.spread is None else row.spread.mean)
    if GUESS in known:
        figures[HEADS[GUESS]] = _figure(row, GUESS)
    if sweep.baseline is not None:
        figures["gain"] = _with_error(row.gain, signed=True)
        if len(domains) > 1:
            figures["gain in STD"] = _with_error(row.spread_gain, signed=True)
    if costs:
        figures["cost"] = "" if row.epsilon is None else f"{row.epsilon:.3g}"
    figures["runs"] = str(row.told) if row.told == row.planned else f"{row.told} of {row.planned}"
    return figures


def _known(rows: Sequence[SweepRow]) -> list[str]:
    """The figures that any row has."""
    return [name for name in NAMES if any(name in row.figures for row in rows)]


def _figure(row: SweepRow, name: str) -> str:
    """A mean over runs: in points where it is a share, with its error where it leads."""
    found = row.figures.get(name)
    if found is None:
        return ""
    if name in LEADING:
        return _with_error(found)
    return _points(found.mean) if name in SHARES or row.classes else f"{found.mean:.4g}"


def legend(sweep: Sweep) -> list[str]:
    """What the columns mean."""
    kinds = {kind for cell in sweep.cells() for kind, _ in sweep.baselines_of(cell)}
    lines = [
        "Area under the ROC curve (of more than two classes the mean of each against all others), R squared, deviance",
        "explained and concordance: of all test records, in points. Mean predicted and observed: of two classes the",
        "probability and share of the second one, of more the probability of the predicted class and how often it is right,",
        "of numbers and counts in their unit. Accuracy: on each domain's test records in points; AVG is their mean, each",
        "domain counted once, STD their standard deviation; guess is what naming the most frequent class reaches. ± is the",
        'standard error over seeds, which decide the split. "each site alone" and "pooled" are linear discriminants of one',
        "site's records and of all records, in the clear.",
    ]
    if left_out_cells(sweep):
        words = WORDS[OVER_LEFT_OUT]
        lines += [f'"{words}": of each domain the accuracy in the cell that left it out; AVG and STD of these.']
    if kinds & {"trained-alone", "trained-pooled"}:
        lines += ["\"Same model\" trains the cell's model without noise, on one site's records or on all in one place."]
    if "central" in kinds:
        lines += [
            '"Pooled, same epsilon" is the cell above it with all records in one place, and a release\'s noise drawn once.',
        ]
    if sweep.baseline is not None:
        key, value = sweep.baseline
        lines += [f"A gain is over the cell with {short(key)} {shown(value)} and the same otherwise, paired by seed."]
    return lines


def problems(rows: Sequence[SweepRow]) -> list[str]:
    """What some runs could not tell, a line for each cell and reason."""
    found = []
    for row in rows:
        parts = [f"{number} of {row.planned} runs {status}" for status, number in row.statuses.items()]
        if row.done < row.planned:
            parts.append(f"{row.planned - row.done} of {row.planned} runs not done")
        if parts or row.notes:
            found.append(f"{_label(row)}: {'; '.join([*parts, *row.notes])}")
    return found


def _label(row: SweepRow) -> str:
    label = row.cell.label()
    if row.kind == "cell":
        return label
    return WORDS[row.kind] + (f", {label}" if row.cell.values else "")


def _domains(rows: Sequence[SweepRow]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.domains))


def _points(share: float | None) -> str:
    return "" if share is None else f"{100.0 * share:.1f}"


def _with_error(value: MeanOfRuns | None, *, signed: bool = False) -> str:
    if value is None:
        return ""
    text = f"{100.0 * value.mean:+.1f}" if signed else f"{100.0 * value.mean:.1f}"
    return text if value.error is None else f"{text} ± {100.0 * value.error:.1f}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
