"""How well a score ranks an event, or the time to one."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from veilsum_aggregation import tables
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Row
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Symbol, symbol, where, whole
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.queries.base import Axis, CellKind, OutcomeKind, ReleasedPart, codes_within
from veilsum_privacy.tasks.queries.cells import Cells, NumberDomain
from veilsum_privacy.tasks.queries.conditions import parse_condition
from veilsum_privacy.tasks.queries.kinds.survival import Survival, check_times
from veilsum_privacy.tasks.queries.language import Columns, Query, even_edges, interval_names, scaled

SCORES = 16
"""Intervals of a score."""


class Discrimination(CellKind, OutcomeKind):
    """One cell a record of group x level of the score x what happened: no event or one, or when and how a time ended.

    A score is a number, cut into :data:`SCORES` equal intervals, or a category whose levels ascend.
    """

    names: ClassVar = {"discrimination": ("edges", "outcome", "event", "censored")}

    def prepare(self, query: Query, columns: Columns) -> None:
        if not query.outcome:
            raise HostileInput(
                f"{self.what}: `outcome` names nothing that the score should rank.",
                "A condition, such as outcome = \"died = 'yes'\"; or a time, with `event`, `censored` and `edges`.",
            )
        if query.event or query.censored or query.edges:
            check_times(query, "a time to an event")
        name = self._one_column()
        domain = columns.domains.get(name)
        if isinstance(domain, NumberDomain):
            complete = even_edges(domain.low, domain.high, SCORES)
            self.score = Axis(name, interval_names(complete), scaled(complete, domain))
        else:
            self.score = self._level_axis(name, gaps=False)
        self.event = None
        self.times: Survival | None = None
        if query.event:
            times = {"name": query.name, "kind": "survival", "over": (query.outcome,), "event": query.event}
            more = {"edges": query.edges, "censored": query.censored}
            self.times = Survival(Query.model_validate(times | more), columns)
        else:
            self.event = parse_condition(query.outcome, columns.domains)

    @property
    def ends(self) -> int:
        """What can happen: of a condition none and one, of a time the cells of its survival."""
        return 2 if self.times is None else self.times.size

    def blocks(self) -> tuple[Block, ...]:
        return (self._block("ends", self.group_count, len(self.score.levels), self.ends),)

    def figures(self) -> int:
        return self.group_count * len(self.score.levels)

    def cell(self, cells: Mapping[str, Cells], group: Symbol) -> Symbol:
        level, end = codes_within(group, [self.score], cells), self._end(cells)
        return where((level >= 0) & (end >= 0), level * self.ends + end, -1)

    def _end(self, cells: Mapping[str, Cells]) -> Symbol:
        """What happened to a record; -1 where that is missing."""
        if self.event is None:
            return symbol(-1) if self.times is None else self.times.cell(cells, symbol(0))
        return where(self.event.known(cells), whole(self.event.holds(cells)), -1)

    # -- what is read of the sum -------------------------------------------------------------------------------------------

    def times_of(self, ends: Floats) -> tuple[Floats, Floats]:
        """A group's block of a time: by level, interval and ending, and those past the horizon."""
        bins = 1 if self.times is None else self.times.bins
        return ends[:, :-1].reshape(len(ends), bins, -1), ends[:, -1]

    def answer(self, part: ReleasedPart) -> Iterator[Row]:
        """How well the score ranks in each group; for a condition, the share with the event at each level too."""
        from veilsum_aggregation.concordance import area, concordance

        std, score = part.std("ends"), self.score
        for levels, ends in zip(self.group_levels(), part.block("ends"), strict=True):
            about, number = {**levels, "score": score.column}, float(ends.sum())
            if self.times is not None:
                answer = concordance(*self.times_of(ends), std)
                yield {**about, "figure": "concordance", "level": "", "value": part.cell(number, answer)}
                continue
            answer = area(ends[:, 0], ends[:, 1], std)
            yield {**about, "figure": "area under the ROC curve", "level": "", "value": part.cell(number, answer)}
            for level, counts in zip(score.levels, ends, strict=True):
                share = tables.shares(counts, std)[1]
                value = part.cell(float(counts.sum()), share)
                yield {**about, "figure": "share with the event", "level": level, "value": value}
