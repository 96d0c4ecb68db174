"""How often intervals of regressions cover, and how far coefficients are off: ``python -m evaluations.regression``.

Studies are compiled and run as in a federation of four sites, from the task's rows to the method's result; only the encryption
is left out, and the noise is drawn by numpy. Covariates are like those of a heart study: numbers and indicators.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from evaluations.studies import SITES, SiteSums, Sums, complete_records, study_of
from evaluations.tables import print_table, run_options
from veilsum_aggregation.figures import MODEL_ERRORS
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
DIFFERS = 0.1
"""Standard deviation of the sites' slopes."""

OUTCOMES = {"linear": "visits", "logistic": "event = 'yes'", "poisson": "visits"}


def drawn(family: str, n: int, rng: np.random.Generator, differs: float = 0.0) -> Records:
    """Records whose outcome follows the family, with slopes off the truth by ``differs`` as a standard deviation."""
    common = rng.normal(size=n)
    numbers = np.column_stack([np.clip(0.15 * common + 0.35 * rng.normal(size=n) + at, -1, 1) for at in (0.0, 0.1, -0.4)])
    signs = np.column_stack([rng.random(n) < share for share in (0.6, 0.4, 0.3)])
    slopes = TRUTHS[family] + differs * np.append(0.0, rng.normal(size=len(TRUTHS[family]) - 1))
    linear = np.hstack([np.ones((n, 1)), numbers, signs]) @ slopes
    visits = np.full(n, 4.0)
    if family == "linear":
        visits = np.clip(linear + 0.8 * rng.normal(size=n), 0, 8)
    elif family == "poisson":
        visits = np.minimum(rng.poisson(np.exp(linear)), 8).astype(np.float64)
    event = rng.random(n) < 1.0 / (1.0 + np.exp(-linear)) if family == "logistic" else np.zeros(n, dtype=np.bool_)
    indicators = [column for sign in (*signs.T, event) for column in (~sign, sign)]
    features = np.column_stack([numbers, visits / 4.0 - 1.0, *indicators]).astype(np.float64)
    return complete_records(features)


def compiled(family: str, n: int, epsilon: float, sites: Sequence[str] = SITES, **more: str) -> Study:
    """The study of a family, of n records at all sites together."""
    parameters = {"family": family, "outcome": OUTCOMES[family], "over": [*NUMBERS, *SIGNS], **more}
    return study_of("regression", SCHEMA, n, epsilon, sites, parameters=parameters)


def rows(runs: int, seed: int, families: Sequence[str]) -> Iterator[str]:
    """Coverage of slopes, in the column's own units, and their root mean squared error; each with numbers drawn apart."""
    for place, (family, epsilon, n) in enumerate(product(TRUTHS, (1.0, 3.0), SIZES)):
        if family not in families:
            continue
        rng, truth = np.random.default_rng((seed, place)), TRUTHS[family]
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


def clustered_rows(runs: int, rng: np.random.Generator, families: Sequence[str]) -> Iterator[str]:
    """Coverage and half-width of a slope's intervals: those clustered by site and those for independent records.

    Sites' slopes differ by :data:`DIFFERS`, and in the last four columns not at all.
    """
    for family in families:
        for sites in (3, 4, 8, 16):
            for each in (1000, 5000):
                for epsilon in (1.0, 3.0, 1e4):
                    names = [f"site-{index:02}" for index in range(sites)]
                    study = compiled(family, sites * each, epsilon, names, errors="clustered")
                    shown, number = list[str](), 0
                    for differs in (DIFFERS, 0.0):
                        found = [_clustered(study, family, each, differs, rng) for _ in range(runs)]
                        told = np.array([run for run in found if run])  # (runs, slopes, both errors, covered and half-width)
                        number += len(told)
                        if not len(told):
                            shown.append("– | – | – | –")
                            continue
                        covered, width = told[..., 0].mean(axis=(0, 1)), np.median(told[..., 1], axis=(0, 1))
                        shown.append(f"{covered[0]:.3f} | {width[0]:.3f} | {covered[1]:.3f} | {width[1]:.3f}")
                    yield f"| {family} | {sites} | {each:,} | {epsilon:g} | {number / (2 * runs):.0%} | {' | '.join(shown)} |"


def _clustered(
    study: Study, family: str, each: int, differs: float, rng: np.random.Generator
) -> list[list[tuple[bool, float]]]:
    """Whether both kinds of errors cover each slope, and their half-widths; empty where a slope is not told."""
    records = [drawn(family, each, rng, differs) for _ in study.participants]
    summary = METHODS["regression"].run(SiteSums(study, records, rng)).summary
    found = []
    for place, slope in enumerate(TRUTHS[family][1:], 1):
        rows = summary["coefficients"][place], summary[f"coefficients {MODEL_ERRORS}"][place]
        figures = [row["coefficient" if family == "linear" else "log"] for row in rows]
        if any("value" not in figure for figure in figures):
            return []
        found.append([(each["low"] <= slope <= each["high"], (each["high"] - each["low"]) / 2) for each in figures])
    return found


def main() -> None:
    """Print the table."""
    parser = run_options("regression", __doc__, 200)
    parser.add_argument("--clustered", nargs="*", metavar="FAMILY", help="of errors clustered by site, of these families")
    parser.add_argument("--families", nargs="*", choices=list(TRUTHS), help="of these alone, in place of all")
    options = parser.parse_args()
    if options.clustered is not None:
        columns = ["clustered", "half-width", "independent", "half-width"]
        columns += ["alike: clustered", *columns[1:]]
        families = options.clustered or list(TRUTHS)
        found = clustered_rows(options.runs, np.random.default_rng(options.seed), families)
        print_table(["family", "sites", "records each", "epsilon", "told", *columns], found)
        return
    heads = ["family", "epsilon", "records", "covered", "told", "error of a slope"]
    print_table(heads, rows(options.runs, options.seed, options.families or list(TRUTHS)))


if __name__ == "__main__":
    main()
