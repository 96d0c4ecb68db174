"""Encodings of queries that explain an outcome: regressions, and effects of a treatment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.clipping import row_norms
from veilsum_privacy.tasks.base import Floats
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.lookups import looked_up
from veilsum_privacy.tasks.queries.base import Bools, Integers, OutcomeEncoding
from veilsum_privacy.tasks.queries.cells import Cells, NumberDomain, level_cells, number_cells
from veilsum_privacy.tasks.queries.conditions import Condition, parse_condition
from veilsum_privacy.tasks.queries.language import Columns, Query

LARGEST_LOG_ODDS = 20.0
"""Of a treatment; weights of larger ones would be those of single records."""


class LinearEncoding(OutcomeEncoding):
    """z z' of z = c (1, terms, outcome), as of correlations, of records that have them all; and who is at the bounds.

    Terms are numbers in [-1, 1], and an indicator of each level of a category but the first. c = min(1, C / |(1, terms)|)
    shortens by the terms alone, so the regression stays unbiased (design: statistics.md, section 5). The norm of z z' is
    |z|^2 <= C^2 + 1; rounding adds half a unit a value at most.
    """

    def prepare(self, query: Query, columns: Columns) -> None:
        self.outcome, self.event = outcome_of(query, columns)
        if not query.over or self.explained & set(query.over) or len(set(query.over)) != len(query.over):
            raise HostileInput(
                f"{self.what}: `over` names the terms that explain {query.outcome!r}, each once.", 'over = ["age", "sex"]'
            )
        if query.by:
            raise HostileInput(
                f"{self.what}: a regression is not given by group.", "Name the group among the terms, or use `where`."
            )
        domains = [columns.domains.get(name) or columns.number(name, self.what) for name in query.over]
        self.terms = tuple(
            (name, level)
            for name, domain in zip(query.over, domains, strict=True)
            for level in ("",) * isinstance(domain, NumberDomain) + columns.level_names(name)[1:]
        )
        numbers = sum(isinstance(domain, NumberDomain) for domain in domains)
        self.longest = math.sqrt(1.0 + numbers / 3.0 + (len(domains) - numbers) / 2.0)

    @property
    def _entries(self) -> int:
        return (len(self.terms) + 2) * (len(self.terms) + 3) // 2

    def blocks(self) -> tuple[Block, ...]:
        size = len(self.terms) + 2
        return (
            Block(self._name("diagonal"), (size,), float(self.scale)),
            Block(self._name("cross"), (size * (size - 1) // 2,), self.scale * math.sqrt(2.0)),
            Block(self._name("bounds"), (1,), float(self._light)),
        )

    @property
    def _light(self) -> int:
        return max(1, round(self.scale / 2))

    def norm(self) -> int:
        reach = self.scale * (self.longest**2 + 1.0) + math.sqrt(self._entries) / 2.0
        return math.floor(reach * reach) + self._light**2

    def figures(self) -> int:
        return len(self.terms)

    def design(self, cells: Mapping[str, Cells], group: Integers) -> tuple[Floats, Floats, Bools]:
        """(1, terms) as (b, p), the outcome in [-1, 1] as (b,), and which records have them all; 0 in those that lack one."""
        known = group >= 0
        z = np.ones((len(group), len(self.terms) + 1))
        for place, (name, level) in enumerate(self.terms, 1):
            if level:
                found = level_cells(cells, name)
                z[:, place] = found.codes == self.columns.level_names(name).index(level)
                known = known & found.present
            else:
                number = number_cells(cells, name)
                z[:, place] = number.x
                known = known & number.present
        for name in self.explained:
            known = known & cells[name].present
        if self.event is None:
            outcome = number_cells(cells, self.query.outcome).x
        else:
            outcome = np.where(self.event.holds(cells), 1.0, -1.0)
        return z * known[:, None], outcome * known, known

    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        z, outcome, known = self.design(cells, group)
        short = np.minimum(1.0, self.longest / np.maximum(row_norms(z), 1.0))
        rotated = np.hstack([z, outcome[:, None]]) * short[:, None]
        size = rotated.shape[1]
        upper = np.triu_indices(size, 1)
        rows[:, :size] = np.rint(self.scale * rotated * rotated)
        cross = self.scale * math.sqrt(2.0)
        rows[:, size:-1] = np.rint(cross * rotated[:, upper[0]] * rotated[:, upper[1]])
        if self.event is None:
            rows[:, -1] = self._light * (known & (np.abs(outcome) >= 1.0))


_PLACES = np.array([[0, 1, 4, 5, 6], [2, 3, 7, 8, 9]])
"""Of an effect, by treatment: where w, w y, w^2, w^2 y and w^2 y^2 stand in the row."""


class EffectEncoding(OutcomeEncoding):
    """By treatment w (1, y) and w^2 (1, y, y^2) of each record: w its inverse-probability weight as a share of the largest.

    The score in ``over`` is the log odds of the treatment's second level; its bounds bound the weights. Outcomes y are numbers
    in [-1, 1], or 1 with the event and 0 without. With w and y at 1 a row has two values of ``scale`` and three of 2/5 of it.

    A record without its treatment adds nothing, whatever the query's ``missing`` says: it has no probability of the treatment
    it had, and a third arm has nothing to be compared by.
    """

    open_groups: ClassVar[bool] = False

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
        return (Block(self._name("sums"), (2, 2), float(self.scale)), Block(self._name("squares"), (2, 3), float(self.light)))

    def norm(self) -> int:
        return 2 * self.scale**2 + 3 * self.light**2

    def figures(self) -> int:
        return 4

    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        odds = number_cells(cells, self.query.over[0])
        known = (group >= 0) & (group < len(_PLACES)) & odds.present
        for name in self.explained:
            known = known & cells[name].present
        log_odds = self.odds.low + (odds.x + 1.0) * (self.odds.high / 2.0 - self.odds.low / 2.0)
        against = np.clip(np.where(group == 1, -log_odds, log_odds), -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
        w = np.minimum((1.0 + np.exp(against)) / self.largest, 1.0)
        y = number_cells(cells, self.query.outcome).x if self.event is None else self.event.holds(cells).astype(np.float64)
        values = [self.scale * w, self.scale * w * y, *(self.light * w * w * power for power in (1.0, y, y * y))]
        chosen = np.flatnonzero(known)
        rows[chosen[:, None], looked_up(_PLACES, group[chosen])] = np.rint(np.stack(values, axis=1))[chosen]


def outcome_of(query: Query, columns: Columns) -> tuple[NumberDomain, Condition | None]:
    """The domain of a query's outcome, and the condition if it is an event."""
    if query.outcome in columns.domains and not columns.level_names(query.outcome):
        return columns.number(query.outcome, f"query {query.name!r}, outcome"), None
    if query.outcome in columns.domains or not query.outcome.strip():
        raise HostileInput(
            f"query {query.name!r}: the outcome {query.outcome!r} is neither a number nor a condition.",
            "For an event: outcome = \"died = 'yes'\".",
        )
    return NumberDomain(0.0, 1.0), parse_condition(query.outcome, columns.domains)
