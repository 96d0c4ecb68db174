"""Where records end in complete trees of public splits, and what their leaves add up to: each record by itself."""

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers


def walked(x: Floats, features: Integers, thresholds: Floats) -> Integers:
    """The leaf (n, K) in which each record (n, d) ends in each of K trees, from the left.

    Args:
        x: values; one that is not at least a node's threshold goes left.
        features, thresholds: (K, 2^D - 1), of the inner nodes level by level; features are places below d.
    """
    found = np.empty((len(x), len(features)), dtype=np.int64)
    for tree in range(len(features)):
        found[:, tree] = _leaf(x, features[tree], thresholds[tree])
    return found


def margin_of(
    x: Floats, features: Integers, thresholds: Floats, leaves: NDArray[np.float32], base: NDArray[np.float32]
) -> Floats:
    """The base (C,) plus each tree's leaf, tree by tree in single precision, for records (n, d): (n, C).

    Args:
        x, features, thresholds: as :func:`walked` takes them.
        leaves: (K, 2^D, C); trees without a leaf other than 0 are passed over.
        base: (C,).
    """
    total = np.empty((len(x), len(base)), dtype=np.float32)
    total[:] = base
    for tree in np.flatnonzero(leaves.any(axis=(1, 2))):
        total += leaves[tree, _leaf(x, features[tree], thresholds[tree])]
    return total.astype(np.float64)


def _leaf(x: Floats, features: Integers, thresholds: Floats) -> Integers:
    rows, node = np.arange(len(x)), np.zeros(len(x), dtype=np.int64)
    for _ in range(int(len(features) + 1).bit_length() - 1):
        node = 2 * node + 1 + (x[rows, features[node]] >= thresholds[node])
    return node - len(features)
