"""The task "hazard-step": score and information of a proportional hazards model at a broadcast point, for one Newton step."""

import math
from collections.abc import Iterator, Mapping
from operator import not_
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import (
    Record,
    Symbol,
    Value,
    clip,
    cumulated,
    exp,
    joined,
    length,
    log,
    maximum,
    minimum,
    only,
    product,
    search,
    some,
    square,
    symbol,
    total,
    where,
)
from veilsum_privacy.study.schema import ColumnName, DatasetSchema
from veilsum_privacy.study.study import Disclosure
from veilsum_privacy.tasks.designs import Design, DesignParameters, DesignTask, broadcast_arrays
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.queries.cells import level_cells, number_cells
from veilsum_privacy.tasks.queries.language import Text

WHITEN, CENTRE, POINT, PERIODS, HAZARDS = "cox.whiten", "cox.centre", "cox.point", "cox.periods", "cox.hazards"
POWERS = "cox.powers"
"""Broadcast arrays: W (p, p), the centre (p,), gamma (p,), the ends of the periods (P + 1,) in [0, 1], log hazards (P,), and
the power k of each stratum, by which its time is warped."""

HAZARD, CROSS, INFORMATION = 0.25, 0.4, 0.75
"""Weights of the hazards' score, and of the information of hazards with terms, and of terms, beside the terms' score."""

MOST = 3.0
"""M: a record is followed until so many events were expected of it."""

LEAST_POWER, LARGEST_POWER = 0.1, 10.0
"""Bounds on k."""

ROUNDING = 1e-9
"""Time of 0 to 1 from entry to end that is none."""

STEEPEST = 60.0
"""Largest log of a record's hazard; e^60 in any period ends the following at once."""


class HazardStepParameters(DesignParameters):
    """Parameters of :class:`HazardStep`; all public and independent of the data.

    Attributes:
        query: as the base has it; its outcome is the condition that the time ended with the event.
        time: numeric column; who reaches its upper bound is past the horizon.
        entry: numeric column with the same bounds, from when on a record was followed; empty for the start.
        strata: category whose levels have hazards of their own; empty for none.
        periods: P, pieces of time with one hazard each.
    """

    time: ColumnName
    periods: int = Field(ge=1, le=256)
    entry: Text = Field(default="", exclude_if=not_)  # studies signed before state neither
    strata: Text = Field(default="", exclude_if=not_)


class Stratum(NamedTuple):
    """Where a stratum's periods lie among all.

    Attributes:
        ends: of its periods, (P + 1,), in [0, 1].
        power: k of its time.
        within: whether the record is of the stratum.
    """

    ends: Floats
    power: float
    within: Symbol


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

    With the time u in [0, 1] and o_j of u^k within period j, mu_j = o_j exp(alpha_j + z' gamma) events are expected there: the
    hazard in a period is a constant times u^(k - 1). A record is followed until the mu_j add up to min(M, 1 / |z|), or its
    time ends; d_j is 1 in the period of an event before that. Where the following ends depends on terms and point alone, so
    residuals r_j = d_j - mu_j stay a martingale's, and the score has the mean 0 at the true point. Terms are shortened to
    length 1: x = z min(1, 1 / |z|).

    Blocks: ``score`` (p,) sum x sum_j r_j; ``hazards`` (P,) r_j; ``cross`` (P, p) mu_j x; ``diagonal`` (p,) and ``upper``
    (p (p - 1) / 2,) of x x' sum_j mu_j, the entries above the diagonal row by row with sqrt 2 times the weight.

    Sensitivity. Let L = sum_j mu_j <= min(M, 1 / |x|), and a, b, k be the weights. Without an event the squared norm is at
    most L^2 (|x|^2 + a^2 + b^2 |x|^2 + k^2 |x|^4). It grows with L, and at the largest L first with |x|, up to 1 / M; from
    there it is convex in |x|^2. So it is at most the larger of n(1 / M) = 1 + a^2 M^2 + b^2 + k^2 / M^2 and
    n(1) = 1 + a^2 + b^2 + k^2. With an event |x|^2 (1 - L)^2 stands for |x|^2 L^2, and sum_j r_j^2 <= 1 + L^2 for L^2: convex
    in L, so at most 1 + a^2 at L = 0; at the largest L, which is 1 or more, (1 - L)^2 <= L^2, so at most a^2 more than
    without. Together D^2 = a^2 + max(n(1 / M), n(1)), for any broadcast. A person whose records count at most m times changes
    the sum by m D.

    With late entry, o_j is the part of period j between entry and time. With strata each stratum has periods and a power of
    its own, one after another, and the o_j of the others' are 0. All of these only say which o_j >= 0 there are, and an event
    still falls in one period at most, so nothing above changes.

    A record without one of the terms, its time or how it ended, that enters no earlier than its time ends, or that does not
    meet the condition, adds zero.
    """

    name = "hazard-step"
    disclosures: ClassVar[tuple[Disclosure, ...]] = ("joint",)

    def __init__(self, parameters: HazardStepParameters, schema: DatasetSchema) -> None:
        self.beside = (parameters.time, *filter(None, (parameters.entry, parameters.strata)))
        super().__init__(parameters, schema)
        own = self.columns.number(parameters.time, self.question.what)
        self.levels = self.columns.levels(parameters.strata, self.question.what) if parameters.strata else ("",)
        if parameters.periods % len(self.levels):
            raise HostileInput(f"{self.question.what}: {parameters.periods} periods are not as many for each stratum.")
        if parameters.entry:
            entered = self.columns.number(parameters.entry, self.question.what)
            if (entered.low, entered.high) != (own.low, own.high):
                raise HostileInput(f"{self.question.what}: the entry and the time have other bounds.")
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
        ends = np.linspace(0.0, 1.0, periods // len(self.levels) + 1)
        time = {PERIODS: np.tile(ends, len(self.levels)), POWERS: np.ones(len(self.levels))}
        return {**point, **time, HAZARDS: np.zeros(periods)}

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        given, design = self.given(broadcast, self.shapes()), self.design(record)
        return only(self._weighted(self.expected(design, given)), self.followed(design))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the broadcast arrays."""
        p, periods = self.p, self.parameters.periods
        time = {PERIODS: (periods + len(self.levels),), POWERS: (len(self.levels),)}
        return {WHITEN: (p, p), CENTRE: (p,), POINT: (p,), **time, HAZARDS: (periods,)}

    def given(self, broadcast: Mapping[str, Floats], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
        """The broadcast arrays, held against all that is asked of them before any record is looked at.

        Raises:
            HostileInput: as of :func:`.designs.broadcast_arrays`; or the periods do not ascend from 0 to 1, or a power is
                beyond its bounds.
        """
        given = broadcast_arrays(broadcast, shapes)
        ends = given[PERIODS].reshape(len(self.levels), -1)
        if np.any(ends[:, 0] < 0.0) or np.any(ends[:, -1] > 1.0) or np.any(np.diff(ends) < 0.0):
            raise HostileInput(f"{PERIODS} must ascend from 0 to 1.")
        if np.any(given[POWERS] < LEAST_POWER) or np.any(given[POWERS] > LARGEST_POWER):
            raise HostileInput(f"{POWERS} must lie between {LEAST_POWER:g} and {LARGEST_POWER:g}.")
        return given

    def _time(self, design: Design, name: str) -> Symbol:
        time: Symbol = number_cells(design.cells, name).x / 2.0 + 0.5
        return time

    def followed(self, design: Design) -> Symbol:
        """Whether a record counts: it is known, and was followed for some time, which rounding of columns' bounds is not."""
        if not self.parameters.entry:
            return design.known
        spent = self._time(design, self.parameters.time) - self._time(design, self.parameters.entry)
        return design.known & (spent > ROUNDING)

    def _strata(self, design: Design, given: Mapping[str, Floats]) -> Iterator[Stratum]:
        """Each stratum, with whether the record is of it; the only one, of everybody, without any."""
        every = given[PERIODS].reshape(len(self.levels), -1)
        for place, (own, power) in enumerate(zip(every, given[POWERS], strict=True)):
            within = symbol(np.True_)
            if self.parameters.strata:
                within = level_cells(design.cells, self.parameters.strata).codes == place
            yield Stratum(own, float(power), within)

    def expected(self, design: Design, given: Mapping[str, Floats]) -> Expected:
        """What was expected of a record."""
        strata = list(self._strata(design, given))
        time = self._time(design, self.parameters.time)
        entry: Value = self._time(design, self.parameters.entry) if self.parameters.entry else 0.0
        white = product(design.z[1:] - given[CENTRE], given[WHITEN])
        slopes = product(white, given[POINT][:, None])
        spent = joined(*(self._spent(time, entry, stratum) for stratum in strata))
        expected = cumulated(spent * exp(clip(given[HAZARDS] + slopes, -STEEPEST, STEEPEST)))
        long = length(white)
        white = white * (1.0 / maximum(long, 1.0))
        limit = 1.0 / clip(long, 1.0 / MOST, 1.0)
        died = (design.outcome > 0.0) & (expected[-1] <= limit) & (time < 1.0)
        over = joined(*(stratum.within & (time <= stratum.ends[-1]) for stratum in strata))
        died = died & some(over)
        reached = joined(0.0, minimum(expected, limit))
        mean = reached[1:] - reached[:-1]
        fell = joined(*(self._fell(time, stratum) for stratum in strata))
        residual = where(fell, -mean + died, -mean)
        return Expected(white, mean, residual)

    def _spent(self, time: Symbol, entry: Value, stratum: Stratum) -> Symbol:
        """Warped time (P,) within each of a stratum's periods."""
        every = stratum.ends**stratum.power
        time, entry, starts, ends = _warped(time, stratum.power), _warped(entry, stratum.power), every[:-1], every[1:]
        if not self.parameters.entry:
            spent = clip(time, starts, ends) - starts
        else:
            spent = maximum(clip(time, starts, ends) - clip(entry, starts, ends), 0.0)
        return where(stratum.within, spent, 0.0) if self.parameters.strata else spent

    def _fell(self, time: Symbol, stratum: Stratum) -> Symbol:
        """In which of a stratum's periods (P,) the time ended."""
        period = clip(search(stratum.ends, time) - 1, 0, len(stratum.ends) - 2)
        fell: Symbol = np.arange(len(stratum.ends) - 1) == period
        return fell & stratum.within if self.parameters.strata else fell

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


def _warped(time: Value, power: float) -> Value:
    """time^k of a time in [0, 1]."""
    return time if power == 1.0 else exp(log(maximum(time, np.finfo(np.float64).tiny)) * power)
