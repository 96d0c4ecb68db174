"""Training's requests are answered by noised sums, and by nothing else."""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.mechanism.factors import FactorSums
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.requests import Request, block_of
from veilsum_privacy.mechanism.rows.evaluation import Evaluation, OpaqueMap
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.mechanism.steps import Steps
from veilsum_privacy.study.study import Unit

T = TypeVar("T")


@dataclass
class Counts:
    """What stays at the site: records that were scaled down, or not finite, over all sums; what a map raised first."""

    clipped: int = 0
    invalid: int = 0
    fault: Exception | None = None


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
