"""Where records end in trees, and what the leaves add up to: each record by itself, in float32 as XGBoost adds them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.trees import margin_of
from veilsum_privacy.training.models.trees import BASE, FEATURES, LEAVES, THRESHOLDS


def tree_margin(arrays: Mapping[str, Floats], x: Floats) -> Floats:
    """The base plus each tree's leaf, tree by tree in float32, for records (n, d): (n,), or (n, C) where leaves have a value a
    class. Trees without a leaf other than 0 are passed over.

    Raises:
        HostileInput: a feature that there is not, a threshold that is not finite, or a leaf beyond float32.
    """
    named = _named(arrays[FEATURES], arrays[THRESHOLDS], x.shape[1])
    with np.errstate(over="ignore"):
        values, base = arrays[LEAVES].astype(np.float32), arrays[BASE].astype(np.float32)
    if not (np.isfinite(values).all() and np.isfinite(base).all()):
        raise HostileInput("A leaf of the trees does not fit a float32.")
    total = margin_of(x, named, arrays[THRESHOLDS], values.reshape(*values.shape[:2], -1), base)
    return total if values.ndim > 2 else total[:, 0]


def _named(features: Floats, thresholds: Floats, width: int) -> Integers:
    named: Integers = np.rint(features).astype(np.int64)
    if (named != features).any() or (named < 0).any() or (named >= width).any() or not np.isfinite(thresholds).all():
        raise HostileInput(f"The trees split features that the records, which have {width}, do not have.")
    return named
