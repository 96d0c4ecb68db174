"""Where records end in trees, and what the leaves add up to: each record by itself, in float32 as XGBoost adds them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput
from veilsum_privacy.training.models.trees import BASE, FEATURES, LEAVES, THRESHOLDS


def leaves_of(x: Floats, features: Floats, thresholds: Floats) -> Integers:
    """The leaf (n, K) in which each record (n, d) ends in each of K trees; ``features`` and ``thresholds`` are (K, 2^D - 1).

    Raises:
        HostileInput: a feature that there is not, or a threshold that is not finite.
    """
    named = _named(features, thresholds, x.shape[1])
    found = np.zeros((len(x), len(named)), dtype=np.int64)
    for tree in range(len(named)):
        found[:, tree] = _leaf(x, named[tree], thresholds[tree])
    return found


def tree_margin(arrays: Mapping[str, Floats], x: Floats) -> Floats:
    """The base plus each tree's leaf, tree by tree in float32, for records (n, d): (n,), or (n, C) where leaves have a value a
    class. Trees without a leaf other than 0 are passed over.

    Raises:
        HostileInput: as :func:`leaves_of`, or a leaf beyond float32.
    """
    named = _named(arrays[FEATURES], arrays[THRESHOLDS], x.shape[1])
    with np.errstate(over="ignore"):
        values, base = arrays[LEAVES].astype(np.float32), arrays[BASE].astype(np.float32)
    if not (np.isfinite(values).all() and np.isfinite(base).all()):
        raise HostileInput("A leaf of the trees does not fit a float32.")
    total = np.empty((len(x), *values.shape[2:]), dtype=np.float32)
    total[:] = base if values.ndim > 2 else base[0]
    for tree in np.flatnonzero(values.reshape(len(values), -1).any(axis=1)):
        total += values[tree, _leaf(x, named[tree], arrays[THRESHOLDS][tree])]
    return total.astype(np.float64)


def _leaf(x: Floats, features: Integers, thresholds: Floats) -> Integers:
    rows, node = np.arange(len(x)), np.zeros(len(x), dtype=np.int64)
    for _ in range(int(len(features) + 1).bit_length() - 1):
        node = 2 * node + 1 + (x[rows, features[node]] >= thresholds[node])
    return node - len(features)


def _named(features: Floats, thresholds: Floats, width: int) -> Integers:
    named: Integers = np.rint(features).astype(np.int64)
    if (named != features).any() or (named < 0).any() or (named >= width).any() or not np.isfinite(thresholds).all():
        raise HostileInput(f"The trees split features that the records, which have {width}, do not have.")
    return named
