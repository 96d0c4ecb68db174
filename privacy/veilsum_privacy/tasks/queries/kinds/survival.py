"""Survival curves and log-rank tests: a table of when and how times ended."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from veilsum_aggregation.figures import Answer, NotEstimable, Row, test_row
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Symbol, lookup, maximum, search, where
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.queries.base import CellKind, ReleasedPart
from veilsum_privacy.tasks.queries.cells import Cells, level_cells, number_cells
from veilsum_privacy.tasks.queries.language import Columns, Query, complete_edges, scaled

if TYPE_CHECKING:
    from veilsum_aggregation.survival import SurvivalCounts


class Survival(CellKind):
    """One cell a record of group x interval of time x (censored, causes), and one cell a group for who is past the horizon.

    Intervals are (e_b, e_b+1], the first one from the column's lower bound on; a time beyond the last edge, or at the column's
    upper bound, to which longer ones are clamped, is past the horizon.
    """

    names: ClassVar = {"survival": ("edges", "at", "event", "censored"), "logrank": ("edges", "event", "censored")}

    @classmethod
    def defaults(cls, query: Query, columns: Columns) -> dict[str, Any]:
        return {"at": (0.5,)} if query.kind == "survival" else {}

    def prepare(self, query: Query, columns: Columns) -> None:
        check_times(query, f"a query of kind {query.kind}")
        if query.kind == "logrank" and not query.by:
            raise HostileInput(f"{self.what}: `by` names no groups to compare.", 'by = "arm"')
        self.domain = columns.number(self._one_column(), self.what)
        if len(query.edges) < 2 or query.edges[0] < self.domain.low or query.edges[-1] > self.domain.high:
            raise HostileInput(
                f"{self.what}: edges must be two times or more within {self.domain.low:g} and {self.domain.high:g}.",
                "The last one is the horizon.",
            )
        complete_edges(query.edges, self.domain, self.what)
        levels = columns.levels(query.event, f"{self.what}, event")
        unknown = [name for name in query.censored if name not in levels]
        if unknown or not query.censored or len(set(query.censored)) >= len(levels):
            raise HostileInput(
                f"{self.what}: `censored` must name the categories of {query.event!r} other than the event.",
                f"Categories: {', '.join(levels)}.",
            )
        self.causes = tuple(name for name in levels if name not in query.censored)
        self._kind_of = np.array([0 if name in query.censored else 1 + self.causes.index(name) for name in levels])
        self._edges = scaled(query.edges, self.domain)

    @property
    def bins(self) -> int:
        """Number of intervals."""
        return len(self.query.edges) - 1

    def blocks(self) -> tuple[Block, ...]:
        inside = self._block("ends", self.group_count, self.bins, len(self.causes) + 1)
        return inside, self._block("beyond", self.group_count)

    def figures(self) -> int:
        return self.group_count * self.bins

    def cell(self, cells: Mapping[str, Cells], group: Symbol) -> Symbol:
        times, ends = number_cells(cells, self.query.over[0]), level_cells(cells, self.query.event)
        kinds, per = len(self.causes) + 1, self.bins * (len(self.causes) + 1)
        interval = maximum(search(self._edges, times.x) - 1, 0)
        beyond = (times.x > self._edges[-1]) | (times.x >= 1.0)
        known = (group >= 0) & times.present & (ends.present | beyond)
        inside = group * per + interval * kinds + lookup(self._kind_of, ends.codes)
        return where(known, where(beyond, self.group_count * per + group, inside), -1)

    # -- what is read of the sum -------------------------------------------------------------------------------------------

    def _counts(self, part: ReleasedPart) -> "list[SurvivalCounts]":
        from veilsum_aggregation.survival import SurvivalCounts

        ends, beyond = part.block("ends"), part.block("beyond")
        return [
            SurvivalCounts(table, float(last), part.std("ends"), (self.domain.low, *self.query.edges[1:]))
            for table, last in zip(ends, beyond, strict=True)
        ]

    def answer(self, part: ReleasedPart) -> Iterator[Row]:
        if self.query.kind == "logrank":
            return
        unit = self.domain.unit
        for levels, counts in zip(self.group_levels(), self._counts(part), strict=True):
            number = float(counts.vector.sum())
            for name, time, figure, risk in self._figures(counts):
                about = number if risk is None else min(risk, number)
                at_risk = None if risk is None or part.small(about) else round(risk, 1)
                value = part.cell(about, figure)
                yield {**levels, "figure": name, "time": time, "unit": unit, "value": value, "at_risk": at_risk}

    def _figures(self, counts: "SurvivalCounts") -> Iterator[tuple[str, float | None, Answer, float | None]]:
        """Figures of one group: what is told, at which time, its figure, and how many are at risk."""
        from veilsum_aggregation import survival

        curve = survival.survival_curve(counts)
        if isinstance(curve, NotEstimable):
            yield "survival", None, curve, None
            return
        for q in self.query.at:
            name = "median survival" if q == 0.5 else f"time by which {q:g} had an event"
            yield name, None, survival.survival_quantile(curve, counts.edges[0], q), None
        yield "restricted mean", counts.edges[-1], survival.restricted_mean(counts), None
        for time, figure, risk in zip(curve.times, curve.survival, curve.at_risk, strict=True):
            yield "survival", time, figure, risk
        if len(self.causes) > 1:
            for cause, name in enumerate(self.causes, 1):
                incidence = survival.cumulative_incidence(counts, cause)
                for time, figure, risk in zip(curve.times, incidence, curve.at_risk, strict=True):
                    yield f"cumulative incidence of {name}", time, figure, risk

    def tests(self, part: ReleasedPart) -> Iterator[Row]:
        from veilsum_aggregation.survival import log_rank

        query = self.query
        if query.by and self.group_count > 1:
            yield test_row("log-rank", f"{query.over[0]} by {', '.join(query.by)}", log_rank(self._counts(part)))


def check_times(query: Query, what: str) -> None:
    """Insist that a query states all that a time to an event takes.

    Raises:
        HostileInput: it does not.
    """
    if not (query.event and query.censored and query.edges):
        raise HostileInput(
            f"query {query.name!r}: {what} states `event`, `censored` and `edges`.",
            "In the unit of the time, edges = { from = 0, to = HORIZON, steps = 12 } in a file, and in Python"
            ' edges={"from": 0, "to": HORIZON, "steps": 12}.',
        )
