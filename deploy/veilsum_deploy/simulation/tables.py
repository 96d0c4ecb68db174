"""What the runs of a sweep come to: means, standard errors and paired gains of every cell, as CSV and Markdown.

Shares are from 0 to 1 in CSV and JSON, and points (hundredths) in Markdown. A mean is over all runs that came to an end; one
that is not estimable counts as the constant guess of a class, which is what is left without a model: a mean over the others
would hide it. Where that is no figure, and where no run is estimable, there is no mean. Its standard error is the standard
deviation (n - 1) over the root of their number. A gain is paired: seed by seed, over the seeds that both cells have.
"""

import io
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from veilsum.texts import number_text
from veilsum_deploy.simulation.baseline_names import BASELINES
from veilsum_deploy.simulation.jobs import Job, RunRecord, Status
from veilsum_deploy.simulation.scores import LEADING, NAMES, SHARES, spread
from veilsum_deploy.simulation.sweep import EPSILON, LEFT_OUT, Cell, Sweep, short, shown
from veilsum_node.spreadsheets import write_csv
from veilsum_privacy.dossier.figures import cost

LEAVE_OUT = "leave_out"
OVER_LEFT_OUT = "left-out"
WORDS = {**BASELINES, OVER_LEFT_OUT: "mean over those left out"}
"""Every row but a cell's in words."""

ALL = "AVG of all runs"
"""Heading of the AVG where some run is not estimable."""

GUESS = "accuracy_of_constant_guess"
HEADS = {**NAMES, "auc": "area", "root_mean_squared_error": "RMSE", GUESS: "guess"}
"""Headings of the figures."""


@dataclass(frozen=True)
class MeanOfRuns:
    """A mean over runs with its standard error, None for fewer than two; ``runs`` is how many."""

    mean: float
    error: float | None
    runs: int


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One line of the table.

    Attributes:
        kind: ``cell``, or the name of a baseline; ``left-out`` of the mean over cells that leave a domain out.
        cell: the combination; of a baseline only what it depends on.
        figures: of all test records, by their names in :data:`.scores.NAMES`.
        domains: accuracy by domain, over the runs in which it has records to test on.
        average, spread: AVG and STD over domains (n in the denominator), means over all runs; None where no run could tell, or
            one is neither estimable nor a guess.
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
    gain: MeanOfRuns | None = None
    spread_gain: MeanOfRuns | None = None
    epsilon: float | None
    seconds: float
    planned: int
    done: int
    statuses: dict[Status, int]
    notes: tuple[str, ...] = ()
    figures: dict[str, MeanOfRuns] = field(default_factory=dict)

    @property
    def told(self) -> int:
        """Runs that came to figures."""
        return self.done - sum(self.statuses.values())

    @property
    def classes(self) -> bool:
        """Whether classes were predicted."""
        return self.average is not None


V = TypeVar("V")

Runs = Mapping[int, RunRecord]
"""What came of one line of the plan, by seed."""


def tabulate(sweep: Sweep, jobs: Sequence[Job], records: Mapping[str, RunRecord]) -> list[SweepRow]:
    """One row for each cell and each baseline: those of a setting before the setting's cells, others after their own.

    Args:
        records: by run, those that are there.
    """
    runs: dict[tuple[str, Cell], dict[int, RunRecord]] = {line: {} for line in sweep.lines()}
    for job in jobs:
        if job.run in records:
            runs[job.kind, job.cell][job.seed] = records[job.run]
    rows = []
    for (kind, cell), own in runs.items():
        baseline = sweep.baseline_of(cell) if kind == "cell" else None
        rows.append(_row(sweep, kind, cell, own, None if baseline is None else runs["cell", baseline]))
    return rows + [_left_out(sweep, cells, [runs["cell", cell] for cell in cells]) for cells in left_out_cells(sweep)]


def left_out_cells(sweep: Sweep) -> list[list[Cell]]:
    """Cells that differ in the domain that they leave out only, where two domains or more are left out."""
    found: dict[Cell, list[Cell]] = {}
    for cell in sweep.cells():
        if cell.value(LEAVE_OUT) is not None and cell.value(LEAVE_OUT) not in LEFT_OUT:
            found.setdefault(cell.with_value(LEAVE_OUT, None), []).append(cell)
    return [cells for cells in found.values() if len(cells) > 1]


def _left_out(sweep: Sweep, cells: Sequence[Cell], runs: Sequence[Runs]) -> SweepRow:
    """How good a study is on a domain that no site has: of each domain the accuracy in the cell that left it out."""
    by_domain = {str(cell.value(LEAVE_OUT)): own for cell, own in zip(cells, runs, strict=True)}
    seeds = [seed for seed in sweep.seeds if all(seed in own for own in runs)]
    shares = [
        {domain: own[seed].accuracies[domain] for domain, own in by_domain.items()}
        for seed in seeds
        if all(own[seed] in counted(own) and domain in own[seed].accuracies for domain, own in by_domain.items())
    ]
    lost = sum(any(own[seed].status != "ok" for own in runs) for seed in seeds)
    return SweepRow(
        kind=OVER_LEFT_OUT,
        cell=Cell(tuple((key, value) for key, value in cells[0].values if key != LEAVE_OUT)),
        **_accuracies(shares if len(shares) == len(seeds) else []),
        **_costs([record for own in runs for record in own.values()]),
        planned=len(sweep.seeds),
        done=len(seeds),
        statuses={"not-estimable": lost} if lost else {},
    )


def _row(sweep: Sweep, kind: str, cell: Cell, runs: Runs, baseline: Runs | None) -> SweepRow:
    told = counted(runs)
    gain, spread_gain = (None, None) if baseline is None else _gains(runs, baseline)
    held = {name: estimate(_of_all([record.held_out.get(name) for record in told])) for name in NAMES}
    statuses = Counter[Status](record.status for record in runs.values() if record.status != "ok")
    return SweepRow(
        kind=kind,
        cell=cell,
        **_accuracies(_of_all([record.accuracies or None for record in told])),
        gain=gain,
        spread_gain=spread_gain,
        **_costs(runs.values()),
        planned=len(sweep.seeds),
        done=len(runs),
        statuses=dict(statuses),
        notes=tuple(dict.fromkeys(record.note for record in runs.values() if record.note)),
        figures={name: found for name, found in held.items() if found is not None},
    )


def counted(runs: Runs) -> list[RunRecord]:
    """The runs that means are over: estimable ones, and the others beside them; none where no run is estimable."""
    ended = [record for record in runs.values() if record.status in ("ok", "not-estimable")]
    return ended if any(record.status == "ok" for record in ended) else []


def _of_all(values: Sequence[V | None]) -> list[V]:
    """The values, unless one is missing: then none."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def _accuracies(runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """A row's ``domains``, ``average`` and ``spread``."""
    spreads, names = [spread(accuracies) for accuracies in runs], dict.fromkeys(name for each in runs for name in each)
    return {
        "domains": {name: statistics.fmean(each[name] for each in runs if name in each) for name in names},
        "average": estimate([mean for mean, _ in spreads]),
        "spread": estimate([std for _, std in spreads]),
    }


def _costs(runs: Collection[RunRecord]) -> dict[str, Any]:
    """A row's ``epsilon`` and ``seconds``."""
    epsilons = [record.epsilon for record in runs if record.epsilon is not None]
    return {
        "epsilon": statistics.fmean(epsilons) if epsilons else None,
        "seconds": statistics.fmean(record.seconds for record in runs) if runs else 0.0,
    }


def _gains(runs: Runs, baseline: Runs) -> tuple[MeanOfRuns | None, MeanOfRuns | None]:
    """Paired differences of AVG and STD; without classes of the figure that leads, and none of STD."""
    mine_counted, theirs_counted = counted(runs), counted(baseline)
    pairs = [(runs[seed], baseline[seed]) for seed in runs if seed in baseline]
    pairs = [(mine, theirs) for mine, theirs in pairs if mine in mine_counted and theirs in theirs_counted]
    of_classes = [
        (spread(mine.accuracies), spread(theirs.accuracies)) for mine, theirs in pairs if mine.accuracies and theirs.accuracies
    ]
    if of_classes:
        average = estimate([mine[0] - theirs[0] for mine, theirs in of_classes])
        return average, estimate([mine[1] - theirs[1] for mine, theirs in of_classes])
    led = [(leading(mine), mine.held_out, leading(theirs), theirs.held_out) for mine, theirs in pairs]
    return estimate([mine[name] - theirs[name] for name, mine, same, theirs in led if name is not None and name == same]), None


def leading(record: RunRecord) -> str | None:
    """The figure that tells most of a run without classes; None where there is none."""
    return next((name for name in LEADING if name in record.held_out), None)


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
    keys, domains, known = [axis.key for axis in sweep.axes], _domains(rows), _known(rows)
    of_classes = ("average", "spread", "gain", "spread_gain")
    figures, means = ([f"{name}.{part}" for name in names for part in ("mean", "error")] for names in (known, of_classes))
    accuracies = [f"accuracy.{name}" for name in domains]
    heads = ["kind", *keys, *figures, *accuracies, *means, "pairs", "epsilon", "seconds", "runs", "planned", "notes"]
    stream = io.StringIO()
    lines = []
    for row in rows:
        line: dict[str, Any] = {
            "kind": row.kind,
            **{key: shown(value) for key, value in row.cell.values},
            **{f"accuracy.{name}": share for name, share in row.domains.items()},
            "pairs": None if row.gain is None else row.gain.runs,
            "epsilon": row.epsilon,
            "seconds": round(row.seconds, 4),
            "runs": row.told,
            "planned": row.planned,
            "notes": "; ".join(row.notes),
        }
        for name, mean in {**row.figures, **{name: getattr(row, name) for name in of_classes}}.items():
            if mean is not None:
                line |= {f"{name}.mean": mean.mean, f"{name}.error": mean.error}
        lines.append(line)
    write_csv(stream, heads, lines, end="\r\n")
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
    if any("not-estimable" in row.statuses for row in rows):
        lines += [
            f'"{ALL}" has the runs that are not estimable in it, each as the constant guess, whose area is a half; so do the',
            "other means. Runs are those that are estimable. There is no mean where none is.",
        ]
    found_problems = problems(rows)
    if found_problems:
        lines += ["", "Notes on some of the runs:", "", *(f"- {text}" for text in found_problems)]
    return "\n".join(lines) + "\n"


def table_rows(sweep: Sweep, rows: Sequence[SweepRow]) -> list[dict[str, str]]:
    """The table as texts, in points, one column for each varied key, each domain and each figure."""
    domains, known = _domains(rows), _known(rows)
    several, gains = len(domains) > 1, sweep.baseline is not None
    lost = any("not-estimable" in row.statuses for row in rows)
    costs = EPSILON not in sweep.headings and any(row.epsilon is not None for row in rows)
    labels = [_labels(sweep, row) for row in rows]
    heads, blank = list(dict.fromkeys(head for line in labels for head in line)) or ["records"], "" if sweep.axes else "study"
    found = []
    for row, line in zip(rows, labels, strict=True):
        figures = [  # whether the table has it, its heading, its text
            *((True, HEADS[name], _figure(row, name)) for name in known if name != GUESS),
            *((several, name, _points(row.domains.get(name))) for name in domains),
            (bool(domains), ALL if lost else "AVG", _with_error(row.average)),
            (several, "STD", _points(None if row.spread is None else row.spread.mean)),
            (GUESS in known, HEADS[GUESS], _figure(row, GUESS)),
            (gains, "gain", _with_error(row.gain, signed=True)),
            (gains and several, "gain in STD", _with_error(row.spread_gain, signed=True)),
            (costs, "cost", "" if row.epsilon is None else cost(row.epsilon)),
            (True, "runs", str(row.told) if row.told == row.planned else f"{row.told} of {row.planned}"),
        ]
        told = {head: text for wanted, head, text in figures if wanted}
        found.append({**{head: line.get(head, blank) for head in heads}, **told})
    return found


def _labels(sweep: Sweep, row: SweepRow) -> dict[str, str]:
    """What tells a row from others, by heading: the varied keys; where no cell is meant, words in one that is free."""
    values = dict(row.cell.values)
    found = {head: shown(values[key]) if key in values else "" for key, head in sweep.headings.items()}
    if row.kind != "cell":
        free = next((head for head, text in found.items() if not text), "records")
        found[sweep.headings.get(LEAVE_OUT, free) if row.kind == OVER_LEFT_OUT else free] = WORDS[row.kind]
    return found


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
    return _points(found.mean) if name in SHARES or row.classes else number_text(found.mean)


def legend(sweep: Sweep) -> list[str]:
    """What the columns mean."""
    kinds = {kind for kind, _ in sweep.lines()}
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
            '"Pooled, same epsilon" is the cell above it with all records in one place, and a release\'s noise drawn once.'
        ]
    if "personal" in kinds:
        lines += ['"Each site, personal" is a run of the cell above it, moved at each site by its own records.']
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
