"""The tasks "site-scores" and "site-hazard-scores": the score of a fitted model, for errors that are clustered by site; and
"score-products", for robust ones.

A study declares the first two per site. Each is a function of one record and of constants, whose vector is shortened to
length 1: the sensitivity rests on nothing else.
"""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.fields import Real
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, joined, length, maximum, only, product, square, total
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.designs import Design, DesignParameters, DesignTask, broadcast_arrays
from veilsum_privacy.tasks.hazard_step import HazardStep
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.newton_step import POINT, WHITEN, check_outcome, in_units, means

SCALE, BASELINE = "scores.scale", "scores.baseline"
"""Broadcast arrays: 1 / B as (1,), B the score that has length 1; and by period (P, p) what the hazards' score explains."""


class SiteScoresParameters(DesignParameters):
    """Parameters of :class:`SiteScores`; all public and independent of the data.

    Attributes:
        family: of the outcome's distribution; a ``linear`` one is a number or an event in [-1, 1].
        most: M, largest mean of a count; 1 of all others.
        length: C, to which a record's terms are shortened: in their own coordinates of a ``linear`` model, else whitened.
    """

    family: Literal["linear", "logistic", "poisson"]
    most: Real = Field(default=1.0, gt=0, le=1e6)
    length: Real = Field(ge=1e-3, le=1e6)


class SiteScores(DesignTask[SiteScoresParameters]):
    """The sum over records of c^2 z_w (y - mu) / B, each shortened to length 1, weighted as the fit weighs it.

    The broadcast holds W and gamma of :class:`~veilsum_privacy.tasks.newton_step.NewtonStep`, and 1 / B; z_w = W z, mu is of
    the linear predictor z_w' gamma, c shortens z_w to C. Of a linear model c shortens z to C, and the score is
    (W c z)(c y - c z_w' gamma).

    Block: ``score`` (p,).

    Sensitivity. A record's vector is multiplied by min(1, 1 / its length), so its norm is at most 1 for any broadcast, and the
    sum changes by at most 1 with it; by m with a person whose records count at most m times. The weight is 1.

    A record without one of the terms, or the outcome, or that does not meet the condition, adds zero.
    """

    name = "site-scores"

    def __init__(self, parameters: SiteScoresParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        if parameters.family != "linear":
            check_outcome(parameters.family, self.question)

    def layout(self) -> Layout:
        return Layout((Block("score", (self.p,)),))

    def clip(self) -> float:
        return float(self.most_rows)

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return {WHITEN: np.eye(self.p), POINT: np.zeros(self.p), SCALE: np.ones(1)}

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        given = broadcast_arrays(broadcast, {WHITEN: (self.p, self.p), POINT: (self.p,), SCALE: (1,)})
        design = self.design(record)
        return only(shortened(self._score(design, given) * given[SCALE]), design.known)

    def _score(self, design: Design, given: Mapping[str, Floats]) -> Symbol:
        family, longest = self.parameters.family, float(self.parameters.length)
        if family == "linear":
            short = longest / maximum(length(design.z), longest)
            white = product(design.z * short, given[WHITEN])
            return white * (design.outcome * short - product(white, given[POINT][:, None])[0])
        white = product(design.z, given[WHITEN])
        mean, _ = means(family, product(white, given[POINT][:, None])[0] + design.offset, float(self.parameters.most))
        residual: Symbol = in_units(design.outcome, self.question.outcome) - mean
        return white * (residual * square(longest / maximum(length(white), longest)))


class ScoreProducts(SiteScores):
    """The sum over records of s s', s being the score of :class:`SiteScores`, shortened to length 1: for robust errors.

    Blocks: ``diagonal`` (p,); ``cross`` (p (p - 1) / 2,), the products of different values, row by row.

    Sensitivity. The vector of a record has the values s_i^2 and sqrt 2 s_i s_j, i < j, whose squares add up to |s|^4, at
    most 1 for any broadcast; with a person whose records count at most m times the sum changes by at most m.

    A record without one of the terms, or the outcome, or that does not meet the condition, adds zero.
    """

    name = "score-products"
    disclosures = ("joint",)

    def layout(self) -> Layout:
        blocks = (Block("diagonal", (self.p,)), Block("cross", (self.p * (self.p - 1) // 2,), math.sqrt(2.0)))
        return Layout(tuple(block for block in blocks if block.size))

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        score, (one, other) = super().row(record, broadcast), np.triu_indices(self.p, 1)
        return joined(square(score), math.sqrt(2.0) * score[one] * score[other])


class SiteHazardScores(HazardStep):
    """The sum over records of (x sum_j r_j - sum_j e_j r_j) / B, each shortened to length 1.

    That is the score of the terms less what the hazards' score explains of it, with e_j by period from the released
    information; x and r_j are those of :class:`~veilsum_privacy.tasks.hazard_step.HazardStep`, and so is the broadcast, beside
    1 / B and the e_j.

    Block: ``score`` (p,).

    Sensitivity. As of :class:`SiteScores`: no record's vector is longer than 1, for any broadcast.
    """

    name = "site-hazard-scores"
    disclosures = ("joint", "per-site")

    def layout(self) -> Layout:
        return Layout((Block("score", (self.p,)),))

    def clip(self) -> float:
        return float(self.most_rows)

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        added = {BASELINE: np.zeros((self.parameters.periods, self.p)), SCALE: np.ones(1)}
        return super().example_broadcast(sites) | added

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        shapes = {**self.shapes(), BASELINE: (self.parameters.periods, self.p), SCALE: (1,)}
        given, design = self.given(broadcast, shapes), self.design(record)
        terms, _, residual = self.expected(design, given)
        score = terms * total(residual) - product(residual, given[BASELINE])
        return only(shortened(score * given[SCALE]), self.followed(design))


def shortened(row: Symbol) -> Symbol:
    """A row no longer than 1."""
    return row / maximum(length(row), 1.0)
