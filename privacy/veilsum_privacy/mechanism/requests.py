"""Noised sums on request: how a task trains at a site without ever holding a record.

Training is a generator. It yields what it wants the sum of, as a graph of a record's factors, and is sent that sum with the
site's noise in it: here samples are drawn by unit of privacy, and factors computed, clipped, added and noised. So all that it
knows, and all that it gives, is a function of noised sums and of what is public.
"""

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.mechanism.factors import FactorSums, Products
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.rows.evaluation import TALL, Evaluation, OpaqueMap
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.mechanism.steps import Steps
from veilsum_privacy.study.study import Unit

T = TypeVar("T")

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


@dataclass
class Counts:
    """What stays at the site.

    Attributes:
        clipped, invalid: records that were scaled down, and that were not finite, over all sums.
        fault: what an opaque map raised first.
    """

    clipped: int = 0
    invalid: int = 0
    fault: Exception | None = None


def block_of(most: float) -> int:
    """Records of a block where no more than ``most``, by what is public, are expected: a power of two."""
    return min(TALL, 1 << math.ceil(math.log2(max(FEWEST, most))))


def answered(
    training: Generator[Request, Floats, T],
    steps: Steps,
    load: Callable[[], Records],
    most: float,
    *,
    unit: Unit,
    evaluate: Callable[[RowGraph, Mapping[str, OpaqueMap], int], Evaluation] = Evaluation,
) -> tuple[T, Counts]:
    """Answer what training asks for until it is done.

    Args:
        training: asks first before a record is read.
        steps: samples and noise, for so many requests and no more.
        load: gives all of the site's records, once.
        most: records that a sample is expected to have at most, public.
        unit: of privacy. A ``site``, whose records are one unit, is drawn whole or not at all, and each of its sums is
            computed in either case: otherwise how long it takes would tell the draw, which the price of sampling rests on.
        evaluate: makes a graph ready, with its maps, for blocks of so many records.
    """
    block, counts = block_of(most), Counts()

    def ready(request: Request) -> FactorSums:
        evaluation = evaluate(request.graph, request.maps, block)
        return FactorSums(evaluation, request.products, steps.units(request.products.size))

    with closing(training):
        sums = ready(next(training))
        records = load()
        subjects = None if unit == "record" else records.subjects
        while True:
            taken = steps.sample(len(records), subjects)
            added = np.ones_like(taken) if unit == "site" else taken
            sums.add(records.take(added), None if subjects is None else subjects[added])
            total = sums.total()
            if unit == "site" and not taken.all():
                total = np.zeros_like(total)
            counts.clipped, counts.invalid = counts.clipped + sums.clipped, counts.invalid + sums.invalid
            counts.fault = counts.fault or sums.fault
            try:
                sums = ready(training.send(steps.noised(total)))
            except StopIteration as done:
                return done.value, counts
