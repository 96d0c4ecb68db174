"""Networks that compute the same with their channels in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.channel_groups import ChannelGroup
from veilsum_aggregation.filters import Permutation, check_groups, renumber


def scores(layers: Sequence[Floats], x: Floats) -> Floats:
    """Scores (n, K) of features (n, d): weight and bias of each layer in turn, and ReLU between layers."""
    for index in range(0, len(layers), 2):
        x = (np.maximum(x, 0.0) if index else x) @ layers[index].T + layers[index + 1]
    return x


def permute(
    arrays: Mapping[str, Floats], groups: Sequence[ChannelGroup], permutations: Mapping[str, Permutation]
) -> dict[str, Floats]:
    """A network that computes the same with its channels in another order: channel c is what was ``permutation[c]``.

    Args:
        arrays: by name; those of no group are handed through.
        groups: symmetries of the network.
        permutations: by group (size,); groups without one stay as they are. With several blocks, a permutation must map blocks
            onto blocks.

    Raises:
        ValueError: groups and arrays do not fit, or a permutation is none, or tears a block apart.
    """
    check_groups(arrays, groups)
    unknown = permutations.keys() - {group.name for group in groups}
    if unknown:
        raise ValueError(f"permutations of unknown groups: {sorted(unknown)}")
    result = dict(arrays)
    for group in groups:
        if group.name in permutations:
            renumber(result, group, permutations[group.name])
    return result
