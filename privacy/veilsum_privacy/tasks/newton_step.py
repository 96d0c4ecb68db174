"""The task "newton-step": score and information of a generalised linear model at a broadcast point, for one Newton step."""

import math
from collections.abc import Mapping
from operator import not_

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.families import Family, mean_of, variance_bound
from veilsum_node.errors import HostileInput
from veilsum_node.fields import Real
from veilsum_privacy.mechanism.rows.symbols import (
    Record,
    Symbol,
    Value,
    joined,
    length,
    maximum,
    only,
    product,
    square,
    symbol,
)
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.designs import DesignParameters, DesignTask, broadcast_arrays
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.queries.cells import NumberDomain
from veilsum_privacy.tasks.queries.kinds.regression import LinearRegression

WHITEN, POINT = "newton.whiten", "newton.point"
"""Broadcast arrays: W (p, p) and gamma (p,), of released sums, so that they are constants for each record."""

EXCESS = "excess_"
"""How blocks of the information's excess are called, before the information's name."""


class NewtonStepParameters(DesignParameters):
    """Parameters of :class:`NewtonStep`; all public and independent of the data.

    Attributes:
        family: of the outcome's distribution.
        most: M, largest mean of a count: larger ones are taken as M; 1 of a ``logistic`` model.
        length: C, to which a record's whitened terms are shortened.
        information_share: kappa, the information's share of a record's norm against the score's.
        excess_share: lambda, the same of what the information exceeds the score's variance by; 0 for none of it.
    """

    family: Family
    most: Real = Field(default=1.0, gt=0, le=1e6)
    length: Real = Field(ge=1e-3, le=1e6)
    information_share: Real = Field(ge=1e-3, le=1e3)
    excess_share: Real = Field(default=0.0, ge=0, le=1e3, exclude_if=not_)  # studies signed before do not state it


class NewtonStep(DesignTask[NewtonStepParameters]):
    """Sums over records of c^2 z_w (y - mu) and c^2 v z_w z_w' (:mod:`veilsum_aggregation.newton`).

    Blocks: ``score`` (p,), ``diagonal`` (p,) and ``cross`` (p (p - 1) / 2,), the entries above the diagonal row by row, whose
    weight is sqrt 2 times that of the diagonal. Where they are asked for, ``excess_diagonal`` and ``excess_cross`` are the
    same of c^2 (1 - c^2) v z_w z_w': the score's variance is the information less this.
    The broadcast holds W and gamma; z_w = W z, of z = (1, terms), and mu and v are of the linear predictor z_w' gamma, to
    which the record's offset is added, if there is one. mu and v are within their bounds at any linear predictor.

    Both have the same weights, so that the information is the derivative of the score, however many records are shortened.

    Sensitivity. |c^2 z_w| <= |c z_w| <= C, so with weights 1 / (C r) and kappa / (C^2 v_max) a squared norm is at most
    (y - mu)^2 / r^2 + kappa^2 v^2 / v_max^2, for any broadcast; r is the largest residual, 1 of an event, max(Y, M) of a count
    of at most Y.
    Of an event the larger residual is m = max(mu, 1 - mu), and m^2 (1 + 16 kappa^2 (1 - m)^2) is 1 at m = 1; between it has
    one maximum, at m = (3 - sqrt(1 - 1 / (2 kappa^2))) / 4, if kappa^2 >= 1/2. Of a count v = mu, and a sum of squares that
    are convex in mu is largest at an end: at most 1 at mu = 0, and max(Y - M, M)^2 / r^2 + kappa^2 at mu = M.
    So up to kappa = phi^(5/2) / 4 = 0.83 of events, phi the golden ratio, and 0.86 of counts with M = Y / 2, the information
    is free beside the score.
    Of a shortened record, |c z_w| = C, the score has c^2 (y - mu)^2 / r^2 and the excess, of weight lambda / (C^2 v_max),
    lambda^2 (1 - c^2)^2 v^2 / v_max^2: together they are convex in c^2, and so largest at c = 1, without an excess, or
    at 0, where kappa^2 + lambda^2 bounds what there is. With lambda = (1 - kappa^2)^(1/2) it is free as well.
    A person whose records count at most m times changes the sum by m times as much.

    A record without one of the terms, or the outcome, or that does not meet the condition, adds zero.
    """

    name = "newton-step"
    disclosures = ("joint",)

    def __init__(self, parameters: NewtonStepParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        check_outcome(parameters.family, self.question)

    def layout(self) -> Layout:
        parameters = self.parameters
        bound = variance_bound(parameters.family, parameters.most)
        kappa, excess = parameters.information_share, parameters.excess_share
        return step_layout(self.p, parameters.length, self.residual, kappa, bound, excess)

    @property
    def residual(self) -> float:
        """r."""
        logistic = self.parameters.family == "logistic"
        return 1.0 if logistic else max(self.question.outcome.high, float(self.parameters.most))

    def clip(self) -> float:
        kappa, most = float(self.parameters.information_share), float(self.parameters.most)
        shortened = math.hypot(kappa, self.parameters.excess_share)
        if self.parameters.family == "poisson":
            farthest = max(self.question.outcome.high - most, most) / self.residual
            return max(1.0, math.hypot(farthest, kappa), shortened) * self.most_rows
        return max(event_norm(kappa), shortened) * self.most_rows

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return {WHITEN: np.eye(self.p), POINT: np.zeros(self.p)}

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        given, p = broadcast_arrays(broadcast, {WHITEN: (self.p, self.p), POINT: (self.p,)}), self.parameters
        design = self.design(record)
        outcome = in_units(design.outcome, self.question.outcome)
        at = given[WHITEN], given[POINT]
        row = step_row(self.layout(), p.family, p.most, p.length, design.z, outcome, *at, offset=design.offset)
        return only(row, design.known)


def step_layout(p: int, length: float, residual: float, kappa: float, bound: float, excess: float = 0.0) -> Layout:
    """Score and information of p coefficients, of the weights 1 / (C r) and kappa / (C^2 v_max), and its excess.

    Args:
        length: C.
        residual: r.
        kappa: the information's share.
        bound: v_max.
        excess: lambda.
    """
    blocks = [Block("score", (p,), 1.0 / (length * residual))]
    for share, before in ((kappa, ""), (excess, EXCESS)):
        weight = share / (length**2 * bound)
        if share:
            blocks.append(Block(f"{before}diagonal", (p,), weight))
            blocks.append(Block(f"{before}cross", (p * (p - 1) // 2,), weight * math.sqrt(2.0)))
    return Layout(tuple(block for block in blocks if block.size))


def event_norm(kappa: float) -> float:
    """What bounds the norm of a record's vector if the outcome is an event, as :class:`NewtonStep` proves."""
    inner = (3.0 - math.sqrt(max(0.0, 1.0 - 0.5 / kappa**2))) / 4.0
    return max(1.0, inner * math.hypot(1.0, 4.0 * kappa * (1.0 - inner)))


def step_row(
    layout: Layout,
    family: Family,
    most: float,
    longest: float,
    z: Symbol,
    outcome: Symbol,
    whiten: Floats,
    point: Floats,
    offset: Value = 0.0,
) -> Symbol:
    """The weighted row (size,) of terms z (p,) and an outcome in its own units."""
    white = product(z, whiten)
    mean, variance = means(family, product(white, point[:, None])[0] + offset, most)
    short = longest / maximum(length(white), longest)
    residual = short * (outcome - mean)
    white = white * short
    one, other = np.triu_indices(z.shape[0], 1)
    values = {"score": white * residual}
    for before, factor in (("", variance), (EXCESS, variance * (1.0 - short * short))):
        values[f"{before}diagonal"] = square(white) * factor
        values[f"{before}cross"] = white[one] * white[other] * factor
    return joined(*(block.weight * values[block.name] for block in layout.blocks))


def means(family: Family, slopes: Symbol, most: float) -> tuple[Symbol, Symbol]:
    """:func:`veilsum_aggregation.families.mean_of` a record."""
    formula: Value = mean_of  # of arrays; it is traced
    mean, variance = formula(family, slopes, most)
    return symbol(mean), symbol(variance)


def check_outcome(family: Family, question: LinearRegression) -> None:
    """Insist that an outcome can have the distribution of a family.

    Raises:
        HostileInput: it cannot.
    """
    what = repr(question.query.outcome)
    if family == "logistic" and question.event is None:
        raise HostileInput(
            f"A logistic regression explains an event; {what} is a number.", 'Make it one: outcome = "stay > 14".'
        )
    if family == "poisson" and (question.event is not None or question.outcome.low < 0.0):
        raise HostileInput(f"A Poisson regression explains a number that is 0 or more; {what} is not.")


def in_units(outcome: Value, domain: NumberDomain) -> Value:
    """An outcome in [-1, 1] as the column has it; of an event 0 or 1."""
    return (outcome + 1.0) * (domain.high / 2.0 - domain.low / 2.0) + domain.low
