"""How often intervals of ratios cover where a level is rare or exposures differ: ``python -m evaluations.exposures``.

Made-up records of four sites with the real noise and without encryption: a number, a binary arm, a level that a twentieth of
the records has. Counts are Poisson's of a mean about 2, over no exposure, one of 180 +- 60 days, or of 10 to 400 days evenly
on the logarithm's scale; events have a probability of about .3. Errors are each family's default ones.
"""

import math
from collections.abc import Iterator

import numpy as np

from evaluations.studies import Sums, complete_records, study_of
from evaluations.tables import print_table, run_options
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

TERMS, TRUTH, RARE = ("age", "arm", "rare"), (0.3, 0.4, 0.5), 0.05
DAYS, MOST, MEAN = (10.0, 400.0), 30.0, 2.0
EXPOSURES = ("events", "none", "moderate", "wide")
SIZES = {1.0: 8000, 3.0: 4000, 8.0: 2000}
SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=-1, high=1),
        NumberColumn(name="days", low=DAYS[0], high=DAYS[1]),
        NumberColumn(name="visits", low=0, high=MOST),
        *(CategoryColumn(name=name, categories=("no", "yes")) for name in ("arm", "rare", "died")),
    ),
    max_records=20_000,
)


def drawn(exposure: str, n: int, rng: np.random.Generator) -> Records:
    """Records whose outcome follows :data:`TRUTH`."""
    age, arm, rare = np.clip(0.4 * rng.normal(size=n), -1, 1), rng.random(n) < 0.5, rng.random(n) < RARE
    days = np.clip(rng.normal(180.0, 60.0, n), *DAYS)
    if exposure == "wide":
        days = np.exp(rng.uniform(math.log(DAYS[0]), math.log(DAYS[1]), n))
    eta = np.column_stack([age, arm, rare]) @ TRUTH
    visits, died = np.zeros(n), rng.random(n) < 1.0 / (1.0 + np.exp(1.1 - eta))
    if exposure != "events":
        rates = MEAN * np.exp(eta) * (1.0 if exposure == "none" else days / 180.0)
        visits = np.minimum(rng.poisson(rates), MOST).astype(np.float64)
    half = (DAYS[1] - DAYS[0]) / 2.0
    features = [age, (days - DAYS[0]) / half - 1.0, visits / (MOST / 2.0) - 1.0, ~arm, arm, ~rare, rare, ~died, died]
    return complete_records(np.column_stack(features).astype(np.float64))


def rows(runs: int, seed: int) -> Iterator[str]:
    """By outcome and epsilon the share told and covered of each term, of all, and of intervals with an open end."""
    for exposure in EXPOSURES:
        family = "logistic" if exposure == "events" else "poisson"
        asked: dict[str, object] = {
            "family": family,
            "outcome": "died = 'yes'" if exposure == "events" else "visits",
            "over": list(TERMS),
        }
        if exposure in ("moderate", "wide"):
            lows = [math.log(end) for end in DAYS]
            asked |= {"offset": "exposure", "derive": {"exposure": {"number": "log(days)", "low": lows[0], "high": lows[1]}}}
        for epsilon, n in SIZES.items():
            study, rng, ends = study_of("regression", SCHEMA, n, epsilon, parameters=asked), np.random.default_rng(seed), []
            for _ in range(runs):
                summary = METHODS["regression"].run(Sums(study, drawn(exposure, n, rng), rng)).summary
                ends.append([ends_of(row["log"]) for row in summary["coefficients"][1:]])
            low, high = np.moveaxis(np.array(ends, dtype=np.float64), -1, 0)  # (runs, terms)
            told, covered = ~np.isnan(low), (low <= TRUTH) & (high >= TRUTH)
            share = covered.sum(axis=0) / np.maximum(told.sum(axis=0), 1)
            cells = [*(f"{each:.2f}" for each in told.mean(axis=0)), *(f"{each:.3f}" for each in share)]
            cells += [f"{covered.sum() / max(told.sum(), 1):.3f}", f"{np.isinf(high - low)[told].mean():.3f}"]
            yield f"| {exposure} | {epsilon:g} | {n:,} | {' | '.join(cells)} |"


def ends_of(figure: dict[str, float | None]) -> tuple[float, float]:
    """Both ends of a figure's interval, infinite where they are open; no numbers where it is not estimable."""
    if "value" not in figure:
        return math.nan, math.nan
    low, high = figure["low"], figure["high"]
    return -math.inf if low is None else low, math.inf if high is None else high


def main() -> None:
    """Print the table."""
    options = run_options("exposures", __doc__, 400).parse_args()
    heads = ["exposure", "epsilon", "records", *(f"told: {name}" for name in TERMS)]
    print_table([*heads, *(f"covered: {name}" for name in TERMS), "all", "open"], rows(options.runs, options.seed))


if __name__ == "__main__":
    main()
