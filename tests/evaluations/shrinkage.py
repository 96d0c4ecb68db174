"""Discriminants of noised covariances over many spectra: ``python -m evaluations.shrinkage``.

Whole studies of ``fedcgs``, without encryption: normal classes whose variances fall in four ways along the features, or along
rotated ones. The table says how accurate the heads are on records that were not used, the worst of them, how many lie less
than a third of the way from chance to the discriminant of the same records in the clear, and how many are not estimable.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from evaluations.studies import Sums, complete_records, study_of
from evaluations.tables import line, mean_with_error, print_table
from veilsum_aggregation.heads import LinearHead
from veilsum_coordinator.methods import METHODS
from veilsum_deploy.evaluation import result_head
from veilsum_privacy.study.schema import ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.tasks.base import Records

WIDTH = 64
SPECTRA = {
    "flat": np.ones(WIDTH),
    "power": 1.0 / np.arange(1, WIDTH + 1),
    "exponential": np.exp(-6.0 * np.arange(WIDTH) / WIDTH),
    "step": np.where(np.arange(WIDTH) < WIDTH // 4, 1.0, 0.01),
}
SETTINGS = ((7, 1500, 3.0, 4.0), (2, 2000, 1.0, 2.0))
"""Classes, records, epsilon, and distance of the class means in standard deviations."""

METHODS_TRIED: dict[str, dict[str, object]] = {"noised": {}, "ridge": {"shrinkage": "ridge"}, "generation": {"generation": {}}}


def schema(classes: int) -> DatasetSchema:
    """Numbers in [-1, 1], and a class."""
    names = [f"c{index}" for index in range(classes)]
    return DatasetSchema(
        columns=tuple(NumberColumn(name=f"x{index}", low=-1, high=1) for index in range(WIDTH)),
        label=LabelColumn(column="y", classes=tuple(ClassValues(name=name, values=(name,)) for name in names)),
        max_records=2000,
    )


def drawn(spectrum: str, rotated: bool, classes: int, n: int, apart: float, rng: np.random.Generator) -> Iterator[Records]:
    """Records to train on, and others to test on."""
    spread = np.sqrt(SPECTRA[spectrum] / SPECTRA[spectrum].sum())
    means = rng.standard_normal((classes, WIDTH)) * spread
    means *= apart / np.sqrt(np.mean(np.sum((means / spread) ** 2, axis=1)))
    turn = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0] if rotated else np.eye(WIDTH)
    scale = 1.0 / np.sqrt(np.mean(np.sum(means**2, axis=1)) + 1.0)
    for number in (n, 4000):
        y = rng.integers(0, classes, number)
        x = scale * (means[y] + spread * rng.standard_normal((number, WIDTH))) @ turn
        yield complete_records(x.clip(-1.0, 1.0), y)


def accuracy(head: LinearHead, test: Records) -> float:
    """Accuracy of a head, in percent."""
    return 100.0 * float(np.mean(head.predict(test.features) == test.labels))


def rows(way: str, studies: int, seed: int) -> Iterator[str]:
    """A row for each setting."""
    tried = [(s, r, k) for s in SPECTRA for r in (False, True) for k in range(len(SETTINGS))]
    found: dict[int, list[tuple[float | None, float]]] = {index: [] for index in range(len(SETTINGS))}
    for index in range(studies):
        spectrum, rotated, which = tried[index % len(tried)]
        classes, n, epsilon, apart = SETTINGS[which]
        rng = np.random.default_rng((seed, index))
        train, test = drawn(spectrum, rotated, classes, n, apart, rng)
        study = study_of("fedcgs", schema(classes), n, epsilon, parameters=METHODS_TRIED[way])
        result = METHODS["fedcgs"].run(Sums(study, train, rng))
        clear = LinearDiscriminantAnalysis().fit(train.features, train.labels)
        best = 100.0 * float(np.mean(clear.predict(test.features) == test.labels))
        threshold = 100.0 / classes + (best - 100.0 / classes) / 3.0
        made = result_head(result)
        found[which].append((None if made is None else accuracy(made, test), threshold))
    for which, runs in found.items():
        classes, _, epsilon, _ = SETTINGS[which]
        told = np.array([head for head, _ in runs if head is not None])
        collapsed = sum(head is not None and head < threshold for head, threshold in runs)
        cells = [len(runs), mean_with_error(told), f"{told.min():.1f}", collapsed, len(runs) - len(told)]
        yield line([way, f"{classes}, {epsilon:g}", *cells])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=200, help="of each way of shrinking")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", nargs="*", default=list(METHODS_TRIED), choices=list(METHODS_TRIED))
    asked = parser.parse_args()
    heads = ["shrinkage", "classes, epsilon", "studies", "accuracy", "worst", "collapsed", "not estimable"]
    print_table(heads, (row for way in asked.ways for row in rows(way, asked.studies, asked.seed)), texts=2)


if __name__ == "__main__":
    main()
