"""Discriminants that score records clipped or whole: ``python -m evaluations.discriminants --heart FOLDER``.

Whole studies of ``fedcgs``, without encryption, on records dealt to four sites: with its defaults, and as they were before,
with records scored whole. The table has the accuracy on the 30% of each class that was held out, that of the constant guess,
and of two classes the area under the ROC curve, in points; both ways take the same splits, each with noise of its own.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from evaluations.studies import run_on_sites, study_of
from evaluations.tables import line, print_table
from evaluations.trees import EPSILONS, TABLES, Table, figure
from veilsum_deploy.datasets import packaged_dataset, take_records
from veilsum_deploy.simulation.partition import hold_out
from veilsum_participant.applying.model import Model
from veilsum_privacy.tasks.base import Records

BEFORE: dict[str, object] = {"scored": "whole", "split": {"counts": 0.15, "sums": 0.65, "second": 0.2}}
WAYS: dict[str, dict[str, object]] = {"whole": BEFORE, "clipped": {}}


def digits(_: Path) -> Table:
    """Optical digits: 1,797 x 64, ten classes."""
    dataset = packaged_dataset("digits")
    return dataset.schema, dataset.records


def tried() -> dict[str, Callable[[Path], Table]]:
    """The tables by name."""
    return {**TABLES, "digits": digits}


def measured(table: Table, epsilon: float, parameters: dict[str, object], seed: int) -> tuple[float, float]:
    """Accuracy and area in percent: the constant guess and 50 where no head is estimable, and no area of many classes."""
    schema, records = table
    kept, held = hold_out(_labels(records), 0.3, seed)
    train, test = take_records(records, kept), take_records(records, held)
    result = run_on_sites(study_of("fedcgs", schema, len(kept), epsilon, parameters=parameters), train, seed)
    labels, two = _labels(test), len(schema.classes) == 2
    if not result.application:
        return guess(labels), 50.0 if two else np.nan
    model = Model.from_result(result)
    places = np.array([schema.classes.index(name) for name in model.classes])
    right = 100.0 * float(np.mean(places[model.predict(test)] == labels))
    if not two or len(model.classes) < 2:
        return right, 50.0 if two else np.nan
    scores = model.scores(test)
    return right, 100.0 * float(roc_auc_score(labels, scores[:, 1] - scores[:, 0]))


def guess(labels: np.ndarray) -> float:
    """Accuracy of the most frequent class, in percent."""
    return 100.0 * float(np.bincount(labels).max()) / len(labels)


def _labels(records: Records) -> np.ndarray:
    return np.zeros(0, dtype=np.int64) if records.labels is None else records.labels


def rows(asked: argparse.Namespace) -> Iterator[str]:
    """A row for each table and epsilon."""
    for name in asked.tables:
        table = tried()[name](asked.heart)
        for epsilon in EPSILONS:
            found = {
                way: np.array([measured(table, epsilon, more, asked.seed + k) for k in range(asked.seeds)])
                for way, more in WAYS.items()
            }
            cells = [figure(found[way][:, column]) for column in (0, 1) for way in WAYS]
            told = [cell if "not estimable" not in cell else "–" for cell in cells]
            yield line([name, f"{epsilon:g}", f"{guess(_labels(table[1])):.1f}", *told])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--heart", type=Path, required=True, help="folder of the processed files of UCI Heart Disease")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tables", nargs="*", default=list(tried()), choices=list(tried()))
    asked = parser.parse_args()
    print_table(["data", "epsilon", "guess", "whole", "clipped", "area, whole", "area, clipped"], rows(asked), texts=2)


if __name__ == "__main__":
    main()
