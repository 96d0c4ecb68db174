"""Widths and coverage of two kinds of query at their defaults, by whole studies: ``python -m evaluations.queries``.

First ratios and the risk difference of one exposure, then what strata have in common, Mantel and Haenszel's odds ratio, beside
statsmodels' intervals of the same records without noise; then quartiles of columns as they come: skewed, with a spike at zero,
whole numbers, and rounded ones.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from statsmodels.stats.contingency_tables import StratifiedTable, Table2x2
from statsmodels.stats.proportion import confint_proportions_2indep

from evaluations.exposures import ends_of
from evaluations.studies import Sums, complete_records, study_of
from evaluations.tables import print_table, run_options
from veilsum_aggregation.arrays import Bools, Floats
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

RECORDS, EPSILON = 1650, 1.0
UNEQUAL = (0.5, 0.3, 0.15, 0.05)
"""Of strata that are of unequal sizes: the parts of the records."""

SETTINGS = (
    (2, "alike", 1.0), (3, "alike", 1.0), (2, "confounded", 1.0), (3, "confounded", 1.0), (4, "confounded", 1.0),
    (6, "confounded", 1.0), (2, "confounded", 2.0), (3, "confounded", 2.0), (6, "confounded", 2.0), (4, "unequal", 1.0),
)  # fmt: skip
"""Strata, their kind and the odds ratio. Alike: 9% with the event without exposure, and half exposed; confounded: 9 to 20%
with the event and 35 to 65% exposed; unequal: 12%, and half exposed."""


def strata_rows(runs: int, seed: int) -> Iterator[str]:
    """Each with random numbers of its own: median width over that without noise, coverage, told, and bias over the error."""
    for place, (strata, kind, odds) in enumerate(SETTINGS):
        rng = np.random.default_rng((seed, place))
        low, high = {"alike": (0.09, 0.09), "confounded": (0.09, 0.2), "unequal": (0.12, 0.12)}[kind]
        risks = np.linspace(low, high, strata)
        exposed = np.linspace(0.35, 0.65, strata) if kind == "confounded" else np.full(strata, 0.5)
        sizes = np.array(UNEQUAL) if kind == "unequal" else np.full(strata, 1.0 / strata)
        levels = [(f"centre {k}" for k in range(strata)), ("no", "yes"), ("no", "yes")]
        names = ("centre", "exposed", "event")
        columns = [CategoryColumn(name=name, categories=tuple(own)) for name, own in zip(names, levels, strict=True)]
        schema = DatasetSchema(columns=tuple(columns), max_records=2 * RECORDS)
        query = {"name": "q", "kind": "independence", "over": ["exposed", "event"], "by": ["centre"]}
        study, found = study_of("statistics", schema, RECORDS, EPSILON, query=[query]), []
        for _ in range(runs):
            k = rng.choice(strata, RECORDS, p=sizes)
            x = (rng.random(RECORDS) < exposed[k]).astype(np.int64)
            chance = risks[k] * odds**x
            y = (rng.random(RECORDS) < chance / (1.0 - risks[k] + chance)).astype(np.int64)
            records = complete_records(np.hstack([np.eye(strata)[k], np.eye(2)[x], np.eye(2)[y]]))
            (row,) = (each for each in answers(study, records, rng, "q ratios") if each["figure"].startswith("odds ratio (M"))
            counts = np.zeros((strata, 2, 2))
            np.add.at(counts, (k, 1 - x, 1 - y), 1.0)
            exact = StratifiedTable(list(counts)).oddsratio_pooled_confint()
            if "low" in row["value"]:
                ends = row["value"]["low"], row["value"]["high"]
                width = math.log(ends[1] / ends[0]) / math.log(exact[1] / exact[0])
                found.append((width, ends[0] <= odds <= ends[1], math.log(row["value"]["value"] / odds)))
        widths, covered, logs = np.array(found, dtype=np.float64).T
        cells = f"{np.median(widths):.3f} | {covered.mean():.3f} | {len(found) / runs:.0%} | {logs.mean() / logs.std():+.2f}"
        yield f"| {strata}, {kind} | {odds:g} | {cells} |"


FOURFOLD = ((0.09, 0.5, 1.0), (0.09, 0.5, 2.0), (0.3, 0.5, 1.0), (0.09, 0.3, 1.5))
"""The risk of those without the exposure, the share that is exposed, and the odds ratio."""


def fourfold_rows(runs: int, seed: int) -> Iterator[str]:
    """Each figure of one exposure: share told, coverage, and the median width over that without noise."""
    columns = tuple(CategoryColumn(name=name, categories=("no", "yes")) for name in ("exposed", "event"))
    query = {"name": "q", "kind": "independence", "over": ["exposed", "event"]}
    study = study_of("statistics", DatasetSchema(columns=columns, max_records=2 * RECORDS), RECORDS, EPSILON, query=[query])
    for place, (risk, exposed, odds) in enumerate(FOURFOLD):
        rng, found = np.random.default_rng((seed, 100 + place)), dict[str, list[tuple[float, bool]]]()
        other = risk * odds / (1.0 - risk + risk * odds)
        truths = {"odds ratio": odds, "risk ratio": other / risk, "risk difference": other - risk}
        for _ in range(runs):
            x = (rng.random(RECORDS) < exposed).astype(np.int64)
            y = (rng.random(RECORDS) < np.where(x == 1, other, risk)).astype(np.int64)
            counts = np.zeros((2, 2))
            np.add.at(counts, (1 - x, 1 - y), 1.0)
            apart = confint_proportions_2indep(*counts[0].cumsum(), *counts[1].cumsum(), method="newcomb", compare="diff")
            exact = {
                "odds ratio": Table2x2(counts).oddsratio_confint(),
                "risk ratio": Table2x2(counts).riskratio_confint(),
                "risk difference": np.exp(apart),
            }
            for row in answers(study, complete_records(np.hstack([np.eye(2)[x], np.eye(2)[y]])), rng, "q ratios"):
                name, (low, high) = row["figure"], ends_of(row["value"])
                if math.isfinite(low) and math.isfinite(high):
                    width = high - low if name == "risk difference" else math.log(high / low)
                    found.setdefault(name, []).append(
                        (width / math.log(exact[name][1] / exact[name][0]), low <= truths[name] <= high)
                    )
        for name, told in found.items():
            widths, covered = np.array(told, dtype=np.float64).T
            cells = f"{np.median(widths):.3f} | {covered.mean():.3f} | {len(told) / runs:.0%}"
            yield f"| {name} | {risk:g} | {exposed:g} | {odds:g} | {cells} |"


def answers(study: Any, records: Records, rng: np.random.Generator, table: str) -> list[dict[str, Any]]:
    """A table of the result."""
    found: list[dict[str, Any]] = METHODS["statistics"].run(Sums(study, records, rng)).summary[table]
    return found


def _log_normal(n: int, rng: np.random.Generator) -> Floats:
    return rng.lognormal(1.5, 0.9, n)


def _spike(n: int, rng: np.random.Generator) -> Floats:
    return np.where(rng.random(n) < 0.2, 0.0, rng.exponential(5.0, n))


def _counts(n: int, rng: np.random.Generator) -> Floats:
    return rng.poisson(rng.gamma(1.5, 2.0, n)).astype(np.float64)


def _ages(n: int, rng: np.random.Generator) -> Floats:
    """Years, of which two fifths are given to the nearest five."""
    years, rough = np.rint(100.0 - rng.gamma(5.5, 6.8, n)), rng.random(n) < 0.4
    return np.where(rough, 5.0 * np.rint(years / 5.0), years)


COLUMNS: dict[str, tuple[float, float, Callable[[int, np.random.Generator], Floats]]] = {
    "log-normal": (0.0, 60.0, _log_normal),
    "exponential, a fifth 0": (0.0, 60.0, _spike),
    "counts": (0.0, 60.0, _counts),
    "ages, heaped": (18.0, 100.0, _ages),
}
QUARTILES = (0.25, 0.5, 0.75)


def quartile_rows(runs: int, seed: int) -> Iterator[str]:
    """Of each quartile the coverage of that of a million draws, and the median width of its interval."""
    for place, (name, (low, high, draw)) in enumerate(COLUMNS.items()):
        whole = np.clip(draw(1_000_000, np.random.default_rng(1)), low, high)
        truths = np.quantile(whole, QUARTILES, method="inverted_cdf")
        schema = DatasetSchema(columns=(NumberColumn(name="x", low=low, high=high),), max_records=4000)
        for epsilon in (1.0, 3.0):
            for n in (300, 1000, 2000):
                rng = np.random.default_rng((seed, place, round(epsilon), n))
                study = study_of("statistics", schema, n, epsilon, query=[{"name": "q", "kind": "quantiles", "over": ["x"]}])
                covered: list[Bools] = []
                widths: list[Floats] = []
                for _ in range(runs):
                    x = np.clip(draw(n, rng), low, high)
                    found = answers(study, complete_records((2.0 * (x - low) / (high - low) - 1.0)[:, np.newaxis]), rng, "q")
                    ends = np.clip([ends_of(row["value"]) for row in found], low, high)
                    covered.append((ends[:, 0] <= truths) & (truths <= ends[:, 1]))
                    widths.append(ends[:, 1] - ends[:, 0])
                told, middle = ~np.isnan(widths).any(axis=1), np.nanmedian(widths, axis=0)
                cells = [f"{each:.3f}" for each in np.mean(np.array(covered)[told], axis=0)]
                cells += [f"{each:.2f}" for each in middle]
                yield f"| {name} | {epsilon:g} | {n:,} | {told.mean():.0%} | {' | '.join(cells)} |"


def main() -> None:
    """Print the tables."""
    options = run_options("queries", __doc__, 400).parse_args()
    heads = ["figure", "risk", "exposed", "odds ratio", "width", "covered", "told"]
    print_table(heads, fourfold_rows(options.runs, options.seed))
    print()
    print_table(["strata", "odds ratio", "width", "covered", "told", "bias"], strata_rows(options.runs, options.seed))
    print()
    heads = [f"{what}: {q:g}" for what in ("covered", "width") for q in QUARTILES]
    print_table(["column", "epsilon", "records", "told", *heads], quartile_rows(options.runs, options.seed))


if __name__ == "__main__":
    main()
