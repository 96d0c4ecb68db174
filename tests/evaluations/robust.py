"""How often intervals of robust errors cover, and how long they are: ``python -m evaluations.robust``.

Made-up records of four sites with the real noise and without encryption. A level of some of the records is explained: an
event of other risks there, by ``linear``; a number whose spread is three times as large there, gamma's with a shape of 1; and
counts of a gamma's mean, 1.5 times and more as variable as Poisson's. With --rare the level is of 20 to 200 records. Beside it
stand the intervals of the same studies by the model's errors, which have the whole budget for the fit.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from evaluations.exposures import ends_of
from evaluations.studies import Sums, complete_records, study_of
from evaluations.tables import print_table, run_options
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

HIGH = 40.0
SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="stay", low=0, high=HIGH),
        CategoryColumn(name="ward", categories=("usual", "other")),
        CategoryColumn(name="died", categories=("no", "yes")),
    ),
    max_records=20_000,
)
ASKED: dict[str, dict[str, Any]] = {
    "event": {"family": "linear", "outcome": "died = 'yes'"},
    "number": {"family": "linear", "outcome": "stay"},
    "count": {"family": "poisson", "outcome": "stay", "most": 20.0},
}
TRUTH = {"event": 0.3, "number": 4.0, "count": math.log(5 / 3)}


class Setting(NamedTuple):
    """What is explained, epsilon, all records and those of the level."""

    kind: str
    epsilon: float
    records: int
    level: int


COMMON = (
    *(Setting("event", epsilon, 1650, 330) for epsilon in (1.0, 3.0)),
    *(Setting("event", epsilon, 5000, 1000) for epsilon in (1.0, 3.0, 8.0)),
    *(Setting("number", epsilon, 5000, 1000) for epsilon in (1.0, 3.0, 8.0)),
    *(Setting("count", 3.0, n, n // 5) for n in (1650, 5000)),
)
RARE = tuple(Setting(kind, epsilon, 1650, n) for kind in ASKED for epsilon in (3.0, 8.0) for n in (20, 60, 200))


def drawn(setting: Setting, rng: np.random.Generator) -> Records:
    """Records whose level has :data:`TRUTH` more."""
    own = rng.permutation(setting.records) < setting.level
    died = rng.random(setting.records) < 0.05 + TRUTH["event"] * own
    stay: Floats = np.zeros(setting.records)
    if setting.kind == "number":
        stay = 4.0 + TRUTH["number"] * own + (rng.gamma(1.0, 1.0, setting.records) - 1.0) * np.where(own, 6.0, 2.0)
    elif setting.kind == "count":
        stay = rng.poisson(np.where(own, 5.0, 3.0) * rng.gamma(2.0, 0.5, setting.records)).astype(np.float64)
    columns = [np.clip(stay, 0.0, HIGH) / (HIGH / 2.0) - 1.0, ~own, own, ~died, died]
    return complete_records(np.column_stack(columns).astype(np.float64))


def rows(runs: int, seed: int, settings: tuple[Setting, ...]) -> Iterator[str]:
    """Of each setting the shares told and covered, and the length against the model's."""
    for setting in settings:
        ends = {}
        for errors in ("robust", "model"):
            parameters = {**ASKED[setting.kind], "over": ["ward"], "errors": errors}
            study = study_of("regression", SCHEMA, setting.records, setting.epsilon, parameters=parameters)
            rng, found = np.random.default_rng(seed), []
            for _ in range(runs):
                summary = METHODS["regression"].run(Sums(study, drawn(setting, rng), rng)).summary
                row = summary["coefficients"][1]
                found.append(ends_of(row["log"] if "log" in row else row["coefficient"]))
            ends[errors] = np.array(found)
        cells, lengths, truth = [], [], TRUTH[setting.kind]
        if setting.kind == "number":
            exact = np.random.default_rng(1).gamma(1.0, 1.0, 1_000_000) - 1.0  # cut at 0 and HIGH, as the column is
            low, high = (np.clip(4.0 + shift + exact * spread, 0, HIGH).mean() for shift, spread in ((0.0, 2.0), (4.0, 6.0)))
            truth = float(high - low)
        for own in ends.values():
            told = ~np.isnan(own[:, 0])
            covered = (own[told, 0] <= truth) & (truth <= own[told, 1])
            cells += [f"{told.mean():.2f}", f"{covered.mean():.3f}" if told.any() else "–"]
            lengths.append(float(np.median(np.diff(own[told]))) if told.any() else math.inf)
        about = f"| {setting.kind} | {setting.epsilon:g} | {setting.records:,} | {setting.level:,} | "
        length = f"{lengths[0] / lengths[1]:.2f}" if all(map(math.isfinite, lengths)) else "–"
        yield about + f"{' | '.join(cells)} | {length} |"


def main() -> None:
    """Print the table."""
    parser = run_options("robust", __doc__, 200)
    parser.add_argument("--rare", action="store_true", help="a level of few records")
    options = parser.parse_args()
    heads = ["outcome", "epsilon", "records", "of the level", "told", "robust covers", "the model's: told", "covers", "length"]
    print_table(heads, rows(options.runs, options.seed, RARE if options.rare else COMMON))


if __name__ == "__main__":
    main()
