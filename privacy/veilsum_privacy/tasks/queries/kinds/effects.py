"""The effect of a treatment under weights by its inverse probability."""

import math
from collections.abc import Iterator
from typing import ClassVar

from veilsum_aggregation.figures import Row
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Symbol, clip, exp, joined, minimum, placed, real, rounded, where, whole
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.queries.base import OutcomeKind, ReleasedPart, outcome_of
from veilsum_privacy.tasks.queries.cells import RecordCells, number_cells
from veilsum_privacy.tasks.queries.language import Columns, Query

LARGEST_LOG_ODDS = 20.0
"""Largest log odds of a treatment; with larger ones, single records would carry the weights."""

ARMS = 2
"""Treatments that are compared."""


class Effect(OutcomeKind):
    """For each treatment, w (1, y) and w^2 (1, y, y^2) of each record: w is its inverse-probability weight over the largest.

    The score in ``over`` is the log odds of the treatment's second level; its bounds bound the weights. Outcomes y are numbers
    in [-1, 1], or 1 with the event and 0 without. With w and y at 1 a row has two values of ``scale`` and three of 2/5 of it.

    A record without its treatment adds nothing, whatever the query's ``missing`` says: it has no probability of the treatment
    it had, and a third arm has nothing to be compared by.
    """

    names: ClassVar = {"effect": ("outcome",)}
    least_scale, rounded, open_groups = 256, True, False

    def prepare(self, query: Query, columns: Columns) -> None:
        self.outcome, self.event = outcome_of(query, columns)
        self.odds = columns.number(self._one_column(), f"{self.what}, over")
        if len(query.by) != 1 or len(columns.levels(query.by[0], f"{self.what}, by")) != 2:
            raise HostileInput(
                f"{self.what}: `by` names the treatment, a category of two levels.", "The second is the treated."
            )
        self.largest = 1.0 + math.exp(min(max(abs(self.odds.low), abs(self.odds.high)), LARGEST_LOG_ODDS))

    @property
    def light(self) -> int:
        """What 1 counts among the squares."""
        return max(1, round(0.4 * self.scale))

    def blocks(self) -> tuple[Block, ...]:
        return self._block("sums", ARMS, 2), self._block("squares", ARMS, 3, weight=float(self.light))

    def norm(self) -> int:
        return 2 * self.scale**2 + 3 * self.light**2

    def figures(self) -> int:
        return 4

    def values(self, cells: RecordCells, group: Symbol) -> Symbol:
        odds = number_cells(cells, self.query.over[0])
        known = (group >= 0) & odds.present & self.told(cells)
        log_odds = self.odds.low + (odds.x + 1.0) * self.odds.half
        against = clip(where(group == 1, -log_odds, log_odds), -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
        w = minimum((1.0 + exp(against)) / self.largest, 1.0)
        y = number_cells(cells, self.query.outcome).x if self.event is None else real(self.event.holds(cells))
        linear = joined(self.scale * w, self.scale * w * y)
        squares = joined(*(self.light * w * w * power for power in (1.0, y, y * y)))
        arm = where(known, group, -1)
        return joined(*(placed(whole(rounded(each)), arm, ARMS) for each in (linear, squares)))

    # -- what is read of the sum -------------------------------------------------------------------------------------------

    def answer(self, part: ReleasedPart) -> Iterator[Row]:
        """The weighted mean of each treatment, then their difference, and of an event their ratio."""
        from veilsum_aggregation.weighted_means import WeightedSums, difference, ratio

        outcome, name = self.outcome, self.groups[0].key
        half, middle, unit = (outcome.half, outcome.middle, outcome.unit) if self.event is None else (1.0, 0.0, "")
        least_mean = -1.0 if self.event is None else 0.0
        arms = list[WeightedSums]()
        for (weights, outcomes), (one, linear, square) in zip(part.block("sums"), part.block("squares"), strict=True):
            squares = float(one), float(linear), float(square)
            stds = part.std("sums"), part.std("squares")
            arms.append(WeightedSums(float(weights), float(outcomes), squares, *stds, self.largest))
        means = [arm.mean(share=self.event is not None).within(least_mean, 1.0) for arm in arms]
        levels = [group[name] for group in self.group_levels()]
        least = min((arm.effective() or 0.0 for arm in arms), default=0.0)
        for level, arm, mean in zip(levels, arms, means, strict=True):
            value = part.cell(arm.effective() or 0.0, mean.scaled(half, middle).within(outcome.low, outcome.high))
            yield {name: level, "effect": "weighted mean", "unit": unit, "value": value, "effective_records": arm.effective()}
        compared = {name: f"{levels[1]} against {levels[0]}", "unit": unit, "effective_records": None}
        apart = difference(means[1], means[0])
        row = compared | {"effect": "difference", "value": part.cell(least, apart.scaled(half, 0.0))}
        yield row | {"p_value": apart.p_value}
        if self.event is not None:
            found = ratio(means[1], means[0])
            yield compared | {"effect": "risk ratio", "value": part.cell(least, found), "p_value": None}
