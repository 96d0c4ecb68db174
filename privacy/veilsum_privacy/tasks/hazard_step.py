"""The task "hazard-step": score and information of a proportional hazards model at a broadcast point, for one Newton step."""

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput
from veilsum_node.fields import Frozen
from veilsum_privacy.mechanism.rows.symbols import (
    Record,
    Symbol,
    clip,
    cumulated,
    exp,
    joined,
    length,
    maximum,
    minimum,
    only,
    product,
    search,
    square,
    total,
    where,
)
from veilsum_privacy.study.schema import ColumnName, DatasetSchema
from veilsum_privacy.study.study import Disclosure
from veilsum_privacy.tasks.designs import Design, DesignParameters, DesignTask, broadcast_arrays
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.queries.cells import number_cells

WHITEN, CENTRE, POINT, PERIODS, HAZARDS = "cox.whiten", "cox.centre", "cox.point", "cox.periods", "cox.hazards"
"""Broadcast arrays: W (p, p), the centre (p,), gamma (p,), the ends of the periods (P + 1,) in [0, 1], log hazards (P,)."""

HAZARD, CROSS, INFORMATION = 0.25, 0.4, 0.75
"""Weights of the hazards' score, and of the information of hazards with terms, and of terms, beside the terms' score."""

MOST = 3.0
"""M: a record is followed until so many events were expected of it."""

STEEPEST = 60.0
"""Largest log of a record's hazard; e^60 in any period ends the following at once."""


class HazardStepParameters(DesignParameters):
    """Parameters of :class:`HazardStep`; all public and independent of the data.

    Attributes:
        query: as the base has it; its outcome is the condition that the time ended with the event.
        time: numeric column; who reaches its upper bound is past the horizon.
        periods: P, pieces of time with one hazard each.
    """

    time: ColumnName
    periods: int = Field(ge=1, le=256)


class Expected(NamedTuple):
    """What is expected of a record.

    Attributes:
        terms: x, (p,).
        mean: mu_j, (P,).
        residual: r_j, (P,).
    """

    terms: Symbol
    mean: Symbol
    residual: Symbol


class HazardStep(DesignTask[HazardStepParameters]):
    """Score and information of a hazard exp(alpha_j + z' gamma) in period j, z = W (terms - centre), at a broadcast point.

    With the time u in [0, 1] and o_j of it within period j, mu_j = o_j exp(alpha_j + z' gamma) events are expected there. A
    record is followed until the mu_j add up to min(M, 1 / |z|), or its time ends; d_j is 1 in the period of an event before
    that. Where the following ends depends on terms and point alone, so residuals r_j = d_j - mu_j stay a martingale's, and
    the score has the mean 0 at the true point. Terms are shortened to length 1: x = z min(1, 1 / |z|).

    Blocks: ``score`` (p,) sum x sum_j r_j; ``hazards`` (P,) r_j; ``cross`` (P, p) mu_j x; ``diagonal`` (p,) and ``upper``
    (p (p - 1) / 2,) of x x' sum_j mu_j, the entries above the diagonal row by row with sqrt 2 times the weight.

    Sensitivity. Let L = sum_j mu_j <= min(M, 1 / |x|), and a, b, k be the weights. Without an event the squared norm is at
    most L^2 (|x|^2 + a^2 + b^2 |x|^2 + k^2 |x|^4). It grows with L, and at the largest L first with |x|, up to 1 / M; from
    there it is convex in |x|^2. So it is at most the larger of n(1 / M) = 1 + a^2 M^2 + b^2 + k^2 / M^2 and
    n(1) = 1 + a^2 + b^2 + k^2. With an event |x|^2 (1 - L)^2 stands for |x|^2 L^2, and sum_j r_j^2 <= 1 + L^2 for L^2: convex
    in L, so at most 1 + a^2 at L = 0; at the largest L, which is 1 or more, (1 - L)^2 <= L^2, so at most a^2 more than
    without. Together D^2 = a^2 + max(n(1 / M), n(1)), for any broadcast. A person whose records count at most m times changes
    the sum by m D.

    A record without one of the terms, its time or how it ended, or that does not meet the condition, adds zero.
    """

    name = "hazard-step"
    disclosures: ClassVar[tuple[Disclosure, ...]] = ("joint",)
    Parameters: ClassVar[type[Frozen]] = HazardStepParameters

    def __init__(self, parameters: HazardStepParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        self.beside = (parameters.time,)
        self.columns.number(parameters.time, self.question.what)
        if self.question.event is None:
            raise HostileInput(f"{self.question.what}: the outcome {parameters.query.outcome!r} is a number, and no event.")
        if parameters.time in {*parameters.query.over, *self.question.explained}:
            raise HostileInput(
                f"{self.question.what}: the time {parameters.time!r} explains itself.", "Leave it out of `over`."
            )

    @property
    def p(self) -> int:
        """Number of coefficients; the model has no constant."""
        return len(self.question.terms)

    def layout(self) -> Layout:
        periods = self.parameters.periods
        blocks = (
            Block("score", (self.p,), 1.0),
            Block("hazards", (periods,), HAZARD),
            Block("cross", (periods, self.p), CROSS),
            Block("diagonal", (self.p,), INFORMATION),
            Block("upper", (self.p * (self.p - 1) // 2,), INFORMATION * math.sqrt(2.0)),
        )
        return Layout(tuple(block for block in blocks if block.size))

    def clip(self) -> float:
        common = HAZARD**2 + 1.0 + CROSS**2
        few = (HAZARD * MOST) ** 2 + (INFORMATION / MOST) ** 2
        return math.sqrt(common + max(few, HAZARD**2 + INFORMATION**2)) * self.most_rows

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        periods = self.parameters.periods
        point = {WHITEN: np.eye(self.p), CENTRE: np.zeros(self.p), POINT: np.zeros(self.p)}
        return {**point, PERIODS: np.linspace(0.0, 1.0, periods + 1), HAZARDS: np.zeros(periods)}

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        given, design = self.given(broadcast, self.shapes()), self.design(record)
        return only(self._weighted(self.expected(design, given)), design.known)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the broadcast arrays."""
        p, periods = self.p, self.parameters.periods
        return {WHITEN: (p, p), CENTRE: (p,), POINT: (p,), PERIODS: (periods + 1,), HAZARDS: (periods,)}

    @staticmethod
    def given(broadcast: Mapping[str, Floats], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
        """The broadcast arrays, held against all that is asked of them before any record is looked at.

        Raises:
            HostileInput: as of :func:`.designs.broadcast_arrays`; or the periods do not ascend from 0 to 1.
        """
        given = broadcast_arrays(broadcast, shapes)
        ends = given[PERIODS]
        if ends[0] < 0.0 or ends[-1] > 1.0 or np.any(np.diff(ends) < 0.0):
            raise HostileInput(f"{PERIODS} must ascend from 0 to 1.")
        return given

    def expected(self, design: Design, given: Mapping[str, Floats]) -> Expected:
        """What was expected of a record."""
        ends = given[PERIODS]
        time = number_cells(design.cells, self.parameters.time).x / 2.0 + 0.5
        white = product(design.z[1:] - given[CENTRE], given[WHITEN])
        slopes = product(white, given[POINT][:, None])
        spent = clip(time, ends[:-1], ends[1:]) - ends[:-1]
        expected = cumulated(spent * exp(clip(given[HAZARDS] + slopes, -STEEPEST, STEEPEST)))
        long = length(white)
        white = white * (1.0 / maximum(long, 1.0))
        limit = 1.0 / clip(long, 1.0 / MOST, 1.0)
        died = (design.outcome > 0.0) & (expected[-1] <= limit) & (time <= ends[-1]) & (time < 1.0)
        reached = joined(0.0, minimum(expected, limit))
        mean = reached[1:] - reached[:-1]
        period = clip(search(ends, time) - 1, 0, len(ends) - 2)
        residual = where(np.arange(len(ends) - 1) == period, -mean + died, -mean)
        return Expected(white, mean, residual)

    def _weighted(self, found: Expected) -> Symbol:
        white, mean, residual = found
        whole, both = total(mean), total(residual)
        one, other = np.triu_indices(self.p, 1)
        values = {
            "score": white * both,
            "hazards": residual,
            "cross": mean[:, None] * white,
            "diagonal": square(white) * whole,
            "upper": white[one] * white[other] * whole,
        }
        return joined(*(block.weight * values[block.name] for block in self.layout().blocks))
