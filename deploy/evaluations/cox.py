"""How often intervals of hazard ratios cover lifelines' Cox coefficients: ``python -m evaluations.cox``.

Records are drawn with replacement from gbsg2 (686 women with breast cancer) and rossi (432 released prisoners), which come
with lifelines, so that the truth is what lifelines fits to the data set itself; ties are Efron's there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from lifelines import CoxPHFitter
from lifelines.datasets import load_gbsg2, load_rossi

from evaluations.studies import Floats, Sums, complete_records, study_of
from evaluations.tables import print_table, run_options
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


def lifelines_fit(terms: Floats, time: Floats, event: Floats) -> tuple[Floats, Floats]:
    """Coefficients and their standard errors."""
    frame = {**{str(place): column for place, column in enumerate(terms.T)}, "time": time, "event": event}
    model = CoxPHFitter().fit(pd.DataFrame(frame), "time", "event")
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
                        covered.append(row["log"]["low"] <= value <= row["log"]["high"])
            share = f"{np.mean(covered):.3f}" if told > len(off) // 4 else "–"
            alone = math.sqrt(float(np.mean(errors**2)) * len(features) / n)
            error = math.sqrt(np.mean(np.square(off)))
            yield f"| {name} | {epsilon:g} | {n:,} | {share} | {told / len(off):.0%} | {error:.3f} | {alone:.3f} |"


def main() -> None:
    """Print the table."""
    options = run_options("cox", __doc__, 200).parse_args()
    heads = ["data", "epsilon", "records", "covered", "told", "error", "without noise"]
    print_table(heads, (row for name in HORIZON for row in rows(name, options.runs, np.random.default_rng(options.seed))))


if __name__ == "__main__":
    main()
