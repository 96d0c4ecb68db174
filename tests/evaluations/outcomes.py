"""What fedavg reaches on numbers, counts and times beside fedsgd: ``python -m evaluations.outcomes``.

Six public tables that come with scikit-learn, statsmodels and lifelines, over four sites, with the real noise and without
encryption; on 30% of the records, which no site has, R squared, explained Poisson deviance, or Harrell's C.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import statsmodels.api as sm
from lifelines.datasets import load_gbsg2, load_rossi
from sklearn.datasets import load_breast_cancer, load_diabetes

from evaluations.studies import SITES, complete_records, study_of
from evaluations.tables import line, print_table, run_options
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import METHODS
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_participant.applying.measurement import outcome_headline
from veilsum_participant.applying.model import Model
from veilsum_privacy.study.schema import CategoryColumn, Column, DatasetSchema, NumberColumn

# Of an outcome the linear model is the default, with its scale and constant.
WAYS: tuple[tuple[str, str], ...] = (("fedavg", "mlp"), ("fedavg", "linear"), ("fedsgd", "linear"))
TOLD = {"squared": "r_squared", "poisson": "deviance_explained", "hazard": "concordance"}
Table = tuple[str, str, Floats, Floats, Floats | None]


def tables() -> Iterator[Table]:
    """Name, loss, features, outcome and whether it was an event."""
    diabetes, cancer = load_diabetes(scaled=False), load_breast_cancer()
    yield "diabetes", "squared", diabetes.data, diabetes.target, None
    yield "breast cancer, radius", "squared", cancer.data[:, [1, 4, 5, 8, 9, 11]], cancer.data[:, 0], None
    fair, visits = (of.load_pandas().data.to_numpy(dtype=np.float64) for of in (sm.datasets.fair, sm.datasets.randhie))
    yield "fair, rating", "squared", fair[:, 1:], fair[:, 0], None
    yield "randhie, visits", "poisson", visits[:5000, 1:], visits[:5000, 0], None
    g, r = load_gbsg2(), load_rossi()
    terms = np.column_stack([g.horTh == "yes", g.age, g.tsize, np.log1p(g.pnodes), np.log1p(g.progrec)]).astype(np.float64)
    yield "gbsg2", "hazard", terms, g.time.to_numpy(dtype=np.float64), g.cens.to_numpy(dtype=np.float64)
    own = r[["fin", "age", "race", "wexp", "mar", "paro", "prio"]].to_numpy(dtype=np.float64)
    yield "rossi", "hazard", own, r.week.to_numpy(dtype=np.float64), r.arrest.to_numpy(dtype=np.float64)


def reached(table: Table, method: str, model: str, epsilon: float, seed: int) -> float:
    """The figure of one study; bounds are those of the table, of the outcome its 99.9% point."""
    _, loss, x, y, events = table
    order = np.random.default_rng(seed).permutation(len(x))
    train = int(0.7 * len(x))
    low, high = x.min(axis=0), x.max(axis=0)
    bottom, top = float(y.min()) if loss == "squared" else 0.0, float(np.percentile(y, 99.9))
    features = np.column_stack(
        [2 * (x - low) / np.where(high > low, high - low, 1) - 1, 2 * (y - bottom) / (top - bottom) - 1]
    )
    columns: list[Column] = [NumberColumn(name=f"x{place}", low=-1, high=1) for place in range(x.shape[1])]
    columns.append(NumberColumn(name="y", low=bottom, high=top))
    outcome: dict[str, Any] = {"column": "y", "loss": loss}
    if events is not None:
        columns.append(CategoryColumn(name="event", categories=("no", "yes")))
        features = np.column_stack([features, events == 0, events == 1])
        outcome |= {"event": "event", "censored": ["no"]}
    features = np.clip(features, -1.0, 1.0)[order]
    stated = {"model": {"name": model}} if model != "linear" else {}
    schema = DatasetSchema(columns=tuple(columns), max_records=20_000)
    study = study_of(method, schema, train, epsilon, parameters={"outcome": outcome, **stated})
    parts = zip(SITES, np.array_split(features[:train], len(SITES)), strict=True)
    sites = {name: PlainSite(complete_records(part)) for name, part in parts}
    result = METHODS[method].run(PlainFederation(study, sites))
    said = Model.from_result(result).estimates(complete_records(features[train:, : x.shape[1]]))
    happened = None if events is None else events[order][train:] > 0
    return outcome_headline(loss, said, y[order][train:], happened)[TOLD[loss]]


def rows(seeds: Sequence[int]) -> Iterator[str]:
    """A row for each table and epsilon."""
    for table in tables():
        for epsilon in (1.0, 3.0):
            means = [np.mean([reached(table, *way, epsilon, seed) for seed in seeds]) for way in WAYS]
            yield line([table[0], f"{len(table[2]):,}", f"{epsilon:g}", *(f"{mean:.2f}" for mean in means)])


def main() -> None:
    """Print the table."""
    options = run_options("outcomes", __doc__, 3).parse_args()
    heads = ["table", "records", "epsilon", *(f"{method}, {model}" for method, model in WAYS)]
    print_table(heads, rows(range(options.seed, options.seed + options.runs)))


if __name__ == "__main__":
    main()
