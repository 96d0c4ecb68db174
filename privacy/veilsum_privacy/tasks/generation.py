"""What a site generates to train on beside its records (GGEUR): samples in the directions of broadcast class geometries."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput
from veilsum_node.fields import Frozen

DIRECTIONS = "geometry.directions"
"""Broadcast array (K, d, d): a deviation of class c is directions[c] times standard normal numbers; zeros repeat samples."""

PROTOTYPES, USE = "geometry.prototypes", "geometry.use"
"""Broadcast arrays (P, K, d) of class prototypes, and (sites, P, K), 0 where a site generates none around one."""

Labels = NDArray[np.int64]

MOST_GENERATED = 2**28
"""Most values of samples that a site generates in one round: 2 GiB."""


class Generation(Frozen):
    """What a site generates in the directions of the broadcast class geometries (GGEUR).

    Attributes:
        fill: records of each class that the site has are joined by samples around them up to this number; None for none. How
            often a record is copied then depends on how many there are: without noise only.
        copies: samples around each record, a public constant.
        prototypes: samples around each prototype that the site is told to use.
    """

    fill: int | None = Field(default=None, ge=1, le=100_000)
    copies: int = Field(default=0, ge=0, le=10_000)
    prototypes: int = Field(default=0, ge=0, le=100_000)

    def most(self, records: int, classes: int) -> int:
        """Most samples that a site with so many records generates; of what is public alone."""
        return self.copies * records + classes * ((self.fill or 0) + self.prototypes)


def generate(
    generation: Generation, x: Floats, labels: Labels, classes: int, broadcast: Mapping[str, Floats], rng: np.random.Generator
) -> tuple[Floats, Labels]:
    """The records (n, d) with labels (n,), and after them what is generated around them and around prototypes.

    Raises:
        HostileInput: the broadcast lacks what it takes, or makes a site generate too much.
    """
    d = x.shape[1]
    directions = finite_array(broadcast, DIRECTIONS, (classes, d, d))
    centres, names = [x], [labels]
    for c in range(classes):
        mine = x[labels == c]
        wanted = generation.copies * len(mine)
        if generation.fill is not None and len(mine):
            wanted += max(0, generation.fill - len(mine) - wanted)
        around = [mine[np.arange(wanted) % max(len(mine), 1)]] if wanted else []
        if generation.prototypes:
            around += _around(broadcast, c, classes, d, generation.prototypes)
        for place in around:
            centres.append(place + rng.standard_normal(place.shape) @ directions[c].T)
            names.append(np.full(len(place), c, dtype=np.int64))
    return np.concatenate(centres), np.concatenate(names)


def _around(broadcast: Mapping[str, Floats], c: int, k: int, d: int, number: int) -> list[Floats]:
    """The prototypes of class c that the site uses, each ``number`` times."""
    known = broadcast.get(PROTOTYPES)
    sets = 0 if known is None or known.ndim == 0 else len(known)
    if sets * k * d * number > MOST_GENERATED:
        raise HostileInput(f"The broadcast's {PROTOTYPES} make a site generate too much.")
    prototypes = finite_array(broadcast, PROTOTYPES, (sets, k, d))
    use = finite_array(broadcast, USE, (len(prototypes), k))
    return [np.tile(prototypes[i, c], (number, 1)) for i in np.flatnonzero(use[:, c])]


def finite_array(broadcast: Mapping[str, Floats], name: str, shape: Sequence[int]) -> Floats:
    """An array of the broadcast.

    Raises:
        HostileInput: it is missing, has another shape, or is not finite.
    """
    array = broadcast.get(name)
    if array is None or array.shape != tuple(shape) or not np.isfinite(array).all():
        raise HostileInput(f"The broadcast must hold {name} of shape {tuple(shape)}, finite.")
    return array
