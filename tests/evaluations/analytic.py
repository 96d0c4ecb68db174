"""Ridge regression on class indicators, from the sums that ``fedcgs`` releases: ``python -m evaluations.analytic``.

It is the head of AFL (He et al., Analytic Federated Learning, CVPR 2025), W = (G + r I)^-1 X'Y with the sites' Grams G and
cross-products X'Y added up. Both heads are made of the same releases; under noise r is what noise can add to a direction of G.
The table has the accuracy of each on records held out, in percent, with the standard error over splits, and of the difference.
"""

import argparse
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from evaluations.studies import Sums, study_of
from evaluations.tables import line, mean_with_error, print_table
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.heads import LinearHead, indicator_ridge
from veilsum_aggregation.moments import symmetric
from veilsum_aggregation.shrinkage import noise_ridge
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.methods.fedcgs import MOMENTS
from veilsum_coordinator.parts.federation import Release
from veilsum_deploy.data_names import PACKAGED
from veilsum_deploy.datasets import packaged_dataset
from veilsum_deploy.evaluation import accuracy, result_head

EPSILONS = (0.5, 1.0, 3.0, 8.0)


class LastSums(Sums):
    """It remembers its last release of class moments."""

    moments: Release

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        release = super().sum(label, broadcast, members=members)
        if label == MOMENTS:
            self.moments = release
        return release


def analytic_head(release: Release, classes: tuple[str, ...], like: LinearHead) -> LinearHead:
    """The ridge, of the same features as ``like``; they are centred at their mean and indicators at the classes' shares."""
    values, std = release.values, release.noise_std
    counts, sums = np.maximum(values["counts"], 0.0), values["sums"]
    ridge = noise_ridge(std["squares"], sums.shape[1], 1.0)
    head = indicator_ridge(counts, sums, symmetric(values["squares"], values["products"]), ridge, classes)
    return replace(head, centre=like.centre, clip=like.clip)


def split(name: str, epsilon: float, seed: int) -> tuple[float, float]:
    """Accuracy of the discriminant and of the ridge, of one study on 70% of the records."""
    dataset = packaged_dataset(name)
    rng = np.random.default_rng((seed, 1))
    order = rng.permutation(len(dataset.records))
    held, used = np.split(order, [round(0.3 * len(order))])
    federation = LastSums(study_of("fedcgs", dataset.schema, len(used), epsilon), dataset.records.take(used), rng)
    result = METHODS["fedcgs"].run(federation)
    head, test = result_head(result), dataset.records.take(held)
    if head is None:
        raise SystemExit("a study's release told no classes apart")
    ridge = analytic_head(federation.moments, dataset.schema.classes, head)
    return 100.0 * accuracy(head, test, dataset.schema), 100.0 * accuracy(ridge, test, dataset.schema)


def rows(splits: int) -> Iterator[str]:
    """A row for each data set and epsilon."""
    for name in PACKAGED:
        for epsilon in EPSILONS:
            both = np.array([split(name, epsilon, seed) for seed in range(splits)])
            cells = [mean_with_error(of) for of in (*both.T, both[:, 1] - both[:, 0])]
            yield line([name, f"{epsilon:g}", *cells])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=40)
    asked = parser.parse_args()
    print_table(["data", "epsilon", "discriminant", "ridge", "difference"], rows(asked.splits))


if __name__ == "__main__":
    main()
