"""How often intervals of hazard ratios cover lifelines' Cox coefficients: ``python -m evaluations.cox``.

Records are drawn with replacement from gbsg2 (686 women with breast cancer) and rossi (432 released prisoners), which come
with lifelines, so that the truth is what lifelines fits to the data set itself; ties are Efron's there. With --follow-up
records are made up: about 1,000 with about 150 events, Weibull hazards, and follow-up that depends on the terms; with --apart
they have strata whose hazards have shapes of their own, enter late, or both. With --rare they are
made up as well: a number, an arm, and a level that a twentieth has, of whose hazards the ratios are known.
"""

import math
from collections.abc import Collection, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from lifelines import CoxPHFitter
from lifelines.datasets import load_gbsg2, load_rossi

from evaluations.exposures import ends_of
from evaluations.studies import Sums, complete_records, study_of
from evaluations.tables import print_table, run_options
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study

SIZES = (500, 5000, 50_000)
HORIZON, STEPS = {"gbsg2": 6.0, "rossi": 52.0}, {"gbsg2": 40, "rossi": 52}


def data_set(name: str) -> tuple[Floats, Floats, Floats]:
    """Terms (n, p) within -1 and 1, times, and 1 for an event within the horizon."""
    if name == "gbsg2":
        d = load_gbsg2()
        columns = [d.horTh == "yes", (d.age - 20) / 35 - 1, d.tsize / 60 - 1, np.log1p(d.pnodes) / 2 - 1]
        columns.append(np.log1p(d.progrec) / 4 - 1)
        time, event = d.time / 365.25, d.cens
    else:
        d = load_rossi()
        columns = [d.fin, (d.age - 16) / 15 - 1, d.mar, d.prio / 9 - 1]
        time, event = d.week, d.arrest
    terms = np.clip(np.column_stack([np.asarray(column, dtype=np.float64) for column in columns]), -1.0, 1.0)
    within = np.asarray(time) <= HORIZON[name]
    return terms, np.minimum(time, HORIZON[name]).to_numpy(dtype=np.float64), (event * within).to_numpy(dtype=np.float64)


def lifelines_fit(
    terms: Floats, time: Floats, event: Floats, entry: Floats | None = None, stratum: Floats | None = None
) -> tuple[Floats, Floats]:
    """Coefficients and their standard errors."""
    frame = {**{str(place): column for place, column in enumerate(terms.T)}, "time": time, "event": event}
    more: dict[str, Any] = {}
    if entry is not None:
        frame, more["entry_col"] = frame | {"entry": entry}, "entry"
    if stratum is not None:
        frame, more["strata"] = frame | {"stratum": stratum}, ["stratum"]
    model = CoxPHFitter().fit(pd.DataFrame(frame), "time", "event", **more)
    return model.params_.to_numpy(), model.standard_errors_.to_numpy()


def compiled(name: str, p: int, n: int, epsilon: float) -> Study:
    """The study; the time's bound lies beyond the horizon, so that events at the horizon count."""
    numbers = [NumberColumn(name=f"x{place}", low=-1, high=1) for place in range(p)]
    time = NumberColumn(name="time", low=0, high=1.25 * HORIZON[name])
    schema = DatasetSchema(columns=(*numbers, time, CategoryColumn(name="end", categories=("no", "yes"))), max_records=2 * n)
    edges = {"from": 0, "to": HORIZON[name], "steps": STEPS[name]}
    parameters = {"family": "cox", "outcome": "time", "event": "end", "censored": ["no"], "edges": edges}
    return study_of("regression", schema, n, epsilon, parameters=parameters | {"over": [column.name for column in numbers]})


def rows(name: str, runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Coverage, and the root mean squared error of a coefficient beside lifelines' own standard error at that size."""
    terms, time, event = data_set(name)
    truth, errors = lifelines_fit(terms, time, event)
    features = np.column_stack([terms, time / (0.625 * HORIZON[name]) - 1.0, event == 0.0, event])
    for epsilon in (1.0, 3.0):
        for n in SIZES:
            study, covered, off, told = compiled(name, len(truth), n, epsilon), list[bool](), list[float](), 0
            for _ in range(runs if n < SIZES[-1] else max(1, runs // 2)):
                records = complete_records(features[rng.integers(0, len(features), n)])
                summary = METHODS["regression"].run(Sums(study, records, rng)).summary
                for row, value in zip(summary["coefficients"], truth, strict=True):
                    off.append(row["log"].get("value", row.get("without_interval", math.nan)) - value)
                    if "value" in row["log"]:
                        told += 1
                        low, high = ends_of(row["log"])
                        covered.append(low <= value <= high)
            share = f"{np.mean(covered):.3f}" if told > len(off) // 4 else "–"
            alone = math.sqrt(float(np.mean(errors**2)) * len(features) / n)
            error = math.sqrt(np.mean(np.square(off)))
            yield f"| {name} | {epsilon:g} | {n:,} | {share} | {told / len(off):.0%} | {error:.3f} | {alone:.3f} |"


RECORDS, EVENTS, YEARS = 1000, 0.151, 10.0
TRUTH = np.array([0.03, 0.55])
"""Log hazard ratios of a year of age, and of the second arm."""

FOLLOW_UP = {"none": 0.0, "shorter": -0.2, "much shorter": -0.6, "longer": 0.2}
"""What a standard deviation of age does to the log of the mean follow-up."""


SHARES, SHIFTS = np.array([0.5, 0.3, 0.2]), np.array([0.0, 3.0, -3.0])
"""Of three strata: the parts of the records, and how many years older they are. More strata are such threes again."""

HAZARDS, SHAPES = np.array([0.0, 0.6, -0.5]), np.array([1.0, 1.3, 0.8])
"""What is added to the log hazard, and what the shape is multiplied by."""

LATE, LATEST = 0.5, 3.0
"""Share of the records that enter late, evenly within so many years."""


class MadeUp(NamedTuple):
    """Records: terms (n, 2), times and events; entries and strata where there are any."""

    terms: Floats
    times: Floats
    event: Floats
    entry: Floats | None
    stratum: Floats | None


class Setting(NamedTuple):
    """How records are made up.

    Attributes:
        shape: of the hazard.
        slope: what a standard deviation of age, and the second arm, do to the log of the mean follow-up.
        strata: how many there are; 0 for none.
        late: whether some enter late; of those whose time ends before nobody knows.
    """

    shape: float
    slope: float
    strata: int = 0
    late: bool = False


def made_up(setting: Setting, base: float, n: int, rng: np.random.Generator) -> MadeUp:
    """``base`` is the log hazard at the horizon of age 60 between the arms."""
    drawn, k = 2 * n if setting.late else n, setting.strata
    shares, shifts, hazards, shapes = (np.resize(each, max(k, 1)) for each in (SHARES, SHIFTS, HAZARDS, SHAPES))
    stratum = rng.choice(k, drawn, p=shares / shares.sum()) if k else np.zeros(drawn, dtype=np.intp)
    terms = np.column_stack([(rng.normal(60, 12, drawn) + shifts[stratum]).clip(20, 90), rng.integers(0, 2, drawn)])
    centred = terms - [60.0, 0.5]
    left = 5.0 * rng.exponential(size=drawn) * np.exp(setting.slope * centred[:, 0] / 12 + setting.slope * centred[:, 1])
    hazard = np.exp(base + hazards[stratum] + centred @ TRUTH)
    died = YEARS * (rng.exponential(size=drawn) / hazard) ** (1.0 / (setting.shape * shapes[stratum]))
    event = ((died <= left) & (died < YEARS)).astype(np.float64)
    times = np.minimum(np.minimum(died, left), YEARS)
    if not setting.late:
        return MadeUp(terms, times, event, None, stratum.astype(np.float64) if k else None)
    entry = np.where(rng.random(drawn) < LATE, rng.uniform(0.0, LATEST, drawn), 0.0)
    seen = np.flatnonzero(times > entry)[:n]
    return MadeUp(terms[seen], times[seen], event[seen], entry[seen], stratum[seen].astype(np.float64) if k else None)


def base_of(setting: Setting) -> float:
    """The log hazard at which :data:`EVENTS` of the records have the event."""
    low, high = -8.0, 6.0
    for _ in range(30):
        middle = (low + high) / 2.0
        few = made_up(setting, middle, 100_000, np.random.default_rng(1)).event.mean() < EVENTS
        low, high = (middle, high) if few else (low, middle)
    return low


def follow_up_rows(runs: int, seed: int) -> Iterator[str]:
    """Each with random numbers of its own."""
    for place, (shape, name, epsilon) in enumerate(product((0.6, 1.0, 1.8), FOLLOW_UP, (3.0, 8.0))):
        cells = follow_up_row(Setting(shape, FOLLOW_UP[name]), epsilon, runs, np.random.default_rng((seed, place)))
        yield f"| {shape:g} | {name} | {epsilon:g} | {cells} |"


APART = {"strata": (3, False), "late entry": (0, True), "both": (3, True), "6 strata": (6, False), "12 strata": (12, False)}


def apart_rows(runs: int, seed: int, kinds: Collection[str]) -> Iterator[str]:
    """The same with so many strata, late entry, and both."""
    for place, (kind, name, epsilon) in enumerate(product(APART, ("none", "shorter"), (3.0, 8.0))):
        if kind in kinds:
            setting = Setting(1.2, FOLLOW_UP[name], *APART[kind])
            cells = follow_up_row(setting, epsilon, runs, np.random.default_rng((seed, place)))
            yield f"| {kind} | {name} | {epsilon:g} | {cells} |"


def follow_up_row(setting: Setting, epsilon: float, runs: int, rng: np.random.Generator) -> str:
    """Coverage and told of both terms, bias of each in units of its standard error, and lifelines' of the same records."""
    numbers = [NumberColumn(name="age", low=20, high=90), NumberColumn(name="arm", low=0, high=1)]
    numbers += [NumberColumn(name=name, low=0, high=YEARS) for name in ("time", "entry")[: 1 + setting.late]]
    levels = [CategoryColumn(name="end", categories=("no", "yes"))]
    if setting.strata:
        levels.append(CategoryColumn(name="centre", categories=tuple(f"c{place}" for place in range(setting.strata))))
    schema = DatasetSchema(columns=(*numbers, *levels), max_records=2 * RECORDS)
    asked: dict[str, Any] = {"family": "cox", "outcome": "time", "event": "end", "censored": ["no"], "over": ["age", "arm"]}
    asked |= {"entry": "entry"} if setting.late else {}
    asked |= {"strata": "centre"} if setting.strata else {}
    study, base = study_of("regression", schema, RECORDS, epsilon, parameters=asked), base_of(setting)
    off, errors, plain, covers = [], [], [], []
    for _ in range(runs):
        made = made_up(setting, base, RECORDS, rng)
        scaled = [(made.terms[:, 0] - 20) / 35 - 1, made.terms[:, 1] * 2 - 1, made.times / (YEARS / 2) - 1]
        scaled += [] if made.entry is None else [made.entry / (YEARS / 2) - 1]
        scaled += [made.event == 0.0, made.event]
        scaled += [] if made.stratum is None else [made.stratum == place for place in range(setting.strata)]
        records = complete_records(np.column_stack(scaled).astype(np.float64))
        figures = [row["log"] for row in METHODS["regression"].run(Sums(study, records, rng)).summary["coefficients"]]
        plain.append(lifelines_fit(*made)[0] - TRUTH)
        if all("value" in each for each in figures):
            off.append([each["value"] - value for each, value in zip(figures, TRUTH, strict=True)])
            errors.append([math.hypot(each["noise_error"], each["sampling_error"]) for each in figures])
            ends = zip(map(ends_of, figures), TRUTH, strict=True)
            covers.append([low <= value <= high for (low, high), value in ends])
    if not off:
        return "– | – | 0% | – | – | – | –"
    error, covered = np.mean(errors, axis=0), np.mean(covers, axis=0)
    bias, exact = np.mean(off, axis=0) / error, np.mean(plain, axis=0) / error
    cells = [*(f"{each:.3f}" for each in covered), f"{len(off) / runs:.0%}", *(f"{each:+.2f}" for each in bias)]
    return " | ".join([*cells, *(f"{each:+.2f}" for each in exact)])


RARE, RATIOS, HAZARD = 0.05, (0.3, 0.4, 0.5), -1.2
"""Share of the rare level, log hazard ratios, and the log hazard of ten years: about 15% have the event."""

RARE_SIZES = ((1000, 3.0), (1000, 8.0), (4000, 1.0))
"""Records and epsilon."""


def rare_rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Of each term the share told, covered, with the truth below and above the interval, and with an open end."""
    levels = (CategoryColumn(name=name, categories=("no", "yes")) for name in ("arm", "rare", "end"))
    numbers = NumberColumn(name="age", low=-1, high=1), NumberColumn(name="time", low=0, high=YEARS)
    asked = {"family": "cox", "outcome": "time", "event": "end", "censored": ["no"], "over": ["age", "arm", "rare"]}
    schema = DatasetSchema(columns=(*numbers, *levels), max_records=10_000)
    for n, epsilon in RARE_SIZES:
        study, ends = study_of("regression", schema, n, epsilon, parameters=asked), []
        for _ in range(runs):
            age, arm, rare = np.clip(0.4 * rng.normal(size=n), -1, 1), rng.random(n) < 0.5, rng.random(n) < RARE
            left = 5.0 * rng.exponential(size=n)
            died = YEARS * rng.exponential(size=n) / np.exp(HAZARD + np.column_stack([age, arm, rare]) @ RATIOS)
            event, time = (died <= left) & (died < YEARS), np.minimum(np.minimum(died, left), YEARS)
            records = complete_records(
                np.column_stack([age, time / (YEARS / 2) - 1, ~arm, arm, ~rare, rare, ~event, event]).astype(np.float64)
            )
            summary = METHODS["regression"].run(Sums(study, records, rng)).summary
            ends.append([ends_of(row["log"]) for row in summary["coefficients"][-3:]])
        low, high = np.moveaxis(np.array(ends, dtype=np.float64), -1, 0)
        for place, (name, value) in enumerate(zip(("age", "arm", "rare"), RATIOS, strict=True)):
            own = ~np.isnan(low[:, place])
            one, other = low[own, place], high[own, place]
            shares = np.array([(one <= value) & (other >= value), other < value, one > value, np.isinf(other - one)]).mean(
                axis=1
            )
            yield f"| {name} | {epsilon:g} | {n:,} | {own.mean():.2f} | {' | '.join(f'{each:.3f}' for each in shares)} |"


def main() -> None:
    """Print the table."""
    parser = run_options("cox", __doc__, 200)
    parser.add_argument("--follow-up", action="store_true", help="made-up records whose follow-up depends on the terms")
    parser.add_argument("--apart", nargs="*", metavar="KIND", help=f"the same with these ({', '.join(APART)}), or all")
    parser.add_argument("--rare", action="store_true", help="made-up records of which a twentieth has a level")
    options = parser.parse_args()
    if options.rare:
        heads = ["term", "epsilon", "records", "told", "covered", "lies above", "lies below", "open"]
        print_table(heads, rare_rows(options.runs, np.random.default_rng(options.seed)))
        return
    if options.follow_up or options.apart is not None:
        heads = ["follow-up of older records", "epsilon"]
        heads += ["covered: age", "arm", "told", "bias: age", "arm", "lifelines' bias: age", "arm"]
        if options.follow_up:
            print_table(["shape", *heads], follow_up_rows(options.runs, options.seed), 2)
        else:
            print_table(["with", *heads], apart_rows(options.runs, options.seed, options.apart or APART), 2)
        return
    heads = ["data", "epsilon", "records", "covered", "told", "error", "without noise"]
    print_table(heads, (row for name in HORIZON for row in rows(name, options.runs, np.random.default_rng(options.seed))))


if __name__ == "__main__":
    main()
