"""Two studies in a row, propensities and then an effect: ``python -m evaluations.effects``.

Patients are treated by age and severity. The table says how often the interval of a risk difference holds what the treatment
did (0.1 fewer deaths), and how far off the crude difference is. Of epsilon squared the first study has three quarters.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from evaluations.studies import Sums, complete_records, study_of
from evaluations.tables import print_table, run_options
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

EFFECT = -0.1
LARGEST = 2.5
"""Log odds at which propensities are cut; the true ones stay within 2.3."""

SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=-1, high=1),
        NumberColumn(name="severity", low=-1, high=1),
        CategoryColumn(name="arm", categories=("usual", "new")),
        CategoryColumn(name="end", categories=("alive", "died")),
    ),
    max_records=50_000,
)


def drawn(n: int, rng: np.random.Generator) -> tuple[Records, float]:
    """Patients, and the crude difference."""
    age, severity = rng.uniform(-1, 1, n), np.clip(rng.normal(0, 0.4, n), -1, 1)
    new = rng.random(n) < 1.0 / (1.0 + np.exp(-1.2 * age - 1.0 * severity))
    died = rng.random(n) < 0.4 + 0.15 * age + 0.15 * severity + EFFECT * new
    features = np.column_stack([age, severity, ~new, new, ~died, died]).astype(np.float64)
    return complete_records(features), float(died[new].mean() - died[~new].mean())


def run(method: str, records: Records, epsilon: float, rng: np.random.Generator, **asked: Any) -> dict[str, Any]:
    """A study's summary."""
    study = study_of(method, SCHEMA, len(records), epsilon, **asked)
    return dict(METHODS[study.method].run(Sums(study, records, rng)).summary)


def rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Lines of a table."""
    model = {"family": "logistic", "outcome": "arm = 'new'", "over": ["age", "severity"]}
    query = {"kind": "effect", "name": "death", "outcome": "end = 'died'", "by": "arm", "over": "propensity"}
    for epsilon in (1.0, 3.0):
        first, second = epsilon * math.sqrt(0.75), epsilon * math.sqrt(0.25)
        for n in (2000, 5000, 50_000):
            figures, crude = list[Any](), list[float]()
            for _ in range(runs):
                records, apart = drawn(n, rng)
                crude.append(apart - EFFECT)
                (score,) = run("regression", records, first, rng, parameters=model)["score"]
                derive = {"propensity": {**score, "low": -LARGEST, "high": LARGEST}}
                found = run("statistics", records, second, rng, query=[query], derive=derive)
                figures.append(found["death"][2]["value"])
            told = [figure for figure in figures if "value" in figure]
            covered = np.mean([figure["low"] <= EFFECT <= figure["high"] for figure in told])
            width = np.median([figure["high"] - figure["low"] for figure in told]) / 2
            error = math.sqrt(np.mean([(figure["value"] - EFFECT) ** 2 for figure in told]))
            shown = f"{covered:.3f} | {len(told) / runs:.0%} | {width:.3f} | {error:.4f} | {np.mean(crude):+.3f}"
            yield f"| {epsilon:g} | {n:,} | {shown} |"


if __name__ == "__main__":
    options = run_options("effects", __doc__, 200).parse_args()
    heads = ["epsilon", "records", "covered", "told", "half-width", "error", "crude bias"]
    print_table(heads, rows(options.runs, np.random.default_rng(options.seed)), texts=0)
