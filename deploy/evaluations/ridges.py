"""The ridge of boosted trees of numbers and counts: ``python -m evaluations.ridges``.

Whole studies of ``gbdt`` without encryption, on records dealt to four sites. The table has R² on the quarter that
was held out.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.metrics import r2_score

from evaluations.studies import SITES, complete_records, study_of
from evaluations.tables import line, print_table
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import METHODS
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_participant.applying.model import Model
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn

RIDGES = (1.0, 2.0, 4.0, 6.0, 8.0, 12.0)
EPSILONS = (8.0, 2.0)
DIABETES = (
    (18, 80), (1, 2), (18, 42), (60, 135), (90, 305), (30, 245), (20, 100), (2, 10), (3, 6.5), (55, 125), (25, 350),
)  # fmt: skip
"""Public bounds of scikit-learn's diabetes, and of its outcome."""


class BoundedTable(NamedTuple):
    """Numbers (n, d) within bounds (d, 2), the last of them the outcome, and its loss."""

    values: Floats
    bounds: Floats
    loss: str


def diabetes() -> BoundedTable:
    """442 x 10."""
    x, y = load_diabetes(return_X_y=True, scaled=False)
    return BoundedTable(np.column_stack([x, y]), np.array(DIABETES, dtype=np.float64), "squared")


def friedman() -> BoundedTable:
    """Friedman's first function: 3,000 x 8, of which five matter."""
    x, y = make_friedman1(3000, n_features=8, noise=1.0, random_state=0)
    return BoundedTable(np.column_stack([x, y]), np.array([(0.0, 1.0)] * 8 + [(0.0, 30.0)]), "squared")


def counts() -> BoundedTable:
    """4,000 x 4: counts of mean 2.8 with an interaction."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (4000, 4))
    y = rng.poisson(np.exp(0.5 + 1.2 * x[:, 0] + 0.8 * np.sign(x[:, 1] * x[:, 2])))
    return BoundedTable(np.column_stack([x, y]), np.array([(-1.0, 1.0)] * 4 + [(0.0, 30.0)]), "poisson")


def rare_counts() -> BoundedTable:
    """4,000 x 6: counts of mean 0.6."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1.0, 1.0, (4000, 6))
    y = rng.poisson(np.exp(-1.0 + x[:, 0] - 0.8 * x[:, 3] + 0.5 * (x[:, 4] > 0.3)))
    return BoundedTable(np.column_stack([x, y]), np.array([(-1.0, 1.0)] * 6 + [(0.0, 10.0)]), "poisson")


TABLES: dict[str, Callable[[], BoundedTable]] = {
    "diabetes": diabetes, "Friedman": friedman, "counts": counts, "rare counts": rare_counts,
}  # fmt: skip


def score(table: BoundedTable, epsilon: float, ridge: float, seed: int) -> float:
    """R² of one study on held-out records."""
    low, high = table.bounds.T
    values = np.clip(table.values, low, high)
    columns = [NumberColumn(name=f"c{k}", low=float(a), high=float(b)) for k, (a, b) in enumerate(zip(low, high, strict=True))]
    order = np.random.default_rng(seed).permutation(len(values))
    held, kept = order[: len(order) // 4], order[len(order) // 4 :]
    schema = DatasetSchema(columns=tuple(columns), max_records=len(values))
    parameters = {"outcome": {"column": columns[-1].name, "loss": table.loss}, "ridge": ridge}
    study = study_of("gbdt", schema, len(kept), epsilon, parameters=parameters)
    scaled = 2.0 * (values - low) / (high - low) - 1.0
    dealt = zip(SITES, np.array_split(kept, len(SITES)), strict=True)
    sites = {name: PlainSite(complete_records(scaled[own])) for name, own in dealt}
    model = Model.from_result(METHODS["gbdt"].run(PlainFederation(study, sites)))
    return float(r2_score(values[held, -1], model.estimates(complete_records(scaled[held, :-1]))))


def rows(seeds: int) -> Iterator[str]:
    """A row for each table and epsilon."""
    for name, make in TABLES.items():
        table = make()
        for epsilon in EPSILONS:
            means = [np.mean([score(table, epsilon, ridge, seed) for seed in range(seeds)]) for ridge in RIDGES]
            yield line([name, f"{epsilon:g}", *(f"{mean:.2f}" for mean in means)])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    print_table(["data", "epsilon", *(f"{ridge:g}" for ridge in RIDGES)], rows(asked.seeds), texts=2)


if __name__ == "__main__":
    main()
