"""Noised sums on request: how a task trains at a site without ever holding a record.

Training is a generator. It yields what it wants the sum of, as a graph of a record's factors, and is sent that sum with the
site's noise in it: here samples are drawn by unit of privacy, and factors computed, clipped, added and noised. So all that it
knows, and all that it gives, is a function of noised sums and of what is public.
"""

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.mechanism.factors import Products
from veilsum_privacy.mechanism.rows.evaluation import TALL, OpaqueMap
from veilsum_privacy.mechanism.rows.graph import RowGraph

FEWEST = 64
"""Records of a block of steps that sample fewer."""


class Request(NamedTuple):
    """A noised sum over a fresh sample.

    Attributes:
        graph: of a record's factors.
        products: what is made of them.
        maps: the graph's opaque maps, by name.
    """

    graph: RowGraph
    products: Products
    maps: Mapping[str, OpaqueMap] = MappingProxyType({})


class Trained(NamedTuple):
    """What training gives.

    Attributes:
        vector: (size,) weighted, for the sum.
        state: arrays that stay at the site and come back in its next round of the task.
    """

    vector: Floats
    state: Mapping[str, Floats] = MappingProxyType({})


Training = Generator[Request, Floats, Trained]
"""Training under noise: it asks for sums, is sent each with its noise (size,), in its own units, and gives what it trained."""


@dataclass(frozen=True)
class MapAt:
    """An opaque map that training asks for at some values.

    Attributes:
        at: the values (size,), by which it can be made anew elsewhere.
    """

    compute: OpaqueMap
    at: Floats = field(repr=False)

    def __call__(self, given: Floats) -> NDArray[np.floating]:
        """The map of (n, m)."""
        return self.compute(given)


def block_of(most: float) -> int:
    """Records of a block where no more than ``most``, by what is public, are expected: a power of two."""
    return min(TALL, 1 << math.ceil(math.log2(max(FEWEST, most))))
