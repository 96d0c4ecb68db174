"""How often intervals of regressions cover, and how far coefficients are off: ``python -m evaluations.regression``.

Studies are compiled and run as in a federation of four sites, from the task's rows to the method's result; only the encryption
is left out, and the noise is drawn by numpy. Covariates are like those of a heart study: numbers and indicators.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import numpy as np

from evaluations.studies import Sums, compile_for_sites
from veilsum.compile import PrivacyRequest, StudyRequest
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records

SIZES = (500, 5000, 50_000)
NUMBERS, SIGNS = ("age", "rate", "depression"), ("sex", "pain", "angina")
SCHEMA = DatasetSchema(
    columns=(
        *(NumberColumn(name=name, low=-1, high=1) for name in NUMBERS),
        NumberColumn(name="visits", low=0, high=8),
        *(CategoryColumn(name=name, categories=("no", "yes")) for name in (*SIGNS, "event")),
    ),
    max_records=50_000,
)
TRUTHS = {
    "linear": np.array([4.0, 0.4, -0.3, 0.5, 0.3, 0.4, -0.4]),
    "logistic": np.array([-0.6, 0.7, -0.9, 0.6, 0.7, 0.9, 0.8]),
    "poisson": np.array([0.2, 0.3, -0.3, 0.3, 0.3, 0.3, -0.4]),
}
OUTCOMES = {"linear": "visits", "logistic": "event = 'yes'", "poisson": "visits"}


def drawn(family: str, n: int, rng: np.random.Generator) -> Records:
    """Records whose outcome follows the family."""
    common = rng.normal(size=n)
    numbers = np.column_stack([np.clip(0.15 * common + 0.35 * rng.normal(size=n) + at, -1, 1) for at in (0.0, 0.1, -0.4)])
    signs = np.column_stack([rng.random(n) < share for share in (0.6, 0.4, 0.3)])
    linear = np.hstack([np.ones((n, 1)), numbers, signs]) @ TRUTHS[family]
    visits = np.full(n, 4.0)
    if family == "linear":
        visits = np.clip(linear + 0.8 * rng.normal(size=n), 0, 8)
    elif family == "poisson":
        visits = np.minimum(rng.poisson(np.exp(linear)), 8).astype(np.float64)
    event = rng.random(n) < 1.0 / (1.0 + np.exp(-linear)) if family == "logistic" else np.zeros(n, dtype=np.bool_)
    indicators = [column for sign in (*signs.T, event) for column in (~sign, sign)]
    features = np.column_stack([numbers, visits / 4.0 - 1.0, *indicators]).astype(np.float64)
    return Records(features, np.ones(features.shape, dtype=np.bool_), None)


def compiled(family: str, n: int, epsilon: float) -> Study:
    """The study of a family."""
    parameters = {"family": family, "outcome": OUTCOMES[family], "over": [*NUMBERS, *SIGNS]}
    request = StudyRequest(
        name="fit", method="regression", dataset="heart", data=SCHEMA, parameters=parameters,
        privacy=PrivacyRequest(epsilon=epsilon), expected_records=n // 4,
    )  # fmt: skip
    return compile_for_sites(request)


def rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Coverage of slopes, in the column's own units, and their root mean squared error."""
    for family, truth in TRUTHS.items():
        for epsilon in (1.0, 3.0):
            for n in SIZES:
                study, covered, errors, told = compiled(family, n, epsilon), list[bool](), list[float](), 0
                for _ in range(runs if n < SIZES[-1] else max(1, runs // 4)):
                    summary = METHODS["regression"].run(Sums(study, drawn(family, n, rng), rng)).summary
                    for row, slope in zip(summary["coefficients"][1:], truth[1:], strict=True):
                        figure = row["coefficient"] if family == "linear" else row["log"]
                        errors.append(figure.get("value", row.get("without_interval", math.nan)) - slope)
                        if "value" in figure:
                            told += 1
                            covered.append(figure["low"] <= slope <= figure["high"])
                share = f"{np.mean(covered):.3f}" if told > len(errors) // 4 else "–"
                error = math.sqrt(np.mean(np.square(errors)))
                yield f"| {family} | {epsilon:g} | {n:,} | {share} | {told / len(errors):.0%} | {error:.3f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="evaluations.regression", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| family | epsilon | records | covered | told | error of a slope |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for row in rows(options.runs, np.random.default_rng(options.seed)):
        print(row, flush=True)


if __name__ == "__main__":
    main()
