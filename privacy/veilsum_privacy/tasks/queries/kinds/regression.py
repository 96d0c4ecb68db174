"""Linear regression: moments of terms and outcome."""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Row, normal_figure, test_row
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Symbol, Value, joined, length, maximum, minimum, real, symbol, where
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.queries.base import OutcomeKind, ReleasedPart, outcome_of, products
from veilsum_privacy.tasks.queries.cells import Cells, NumberDomain, RecordCells, level_cells, number_cells
from veilsum_privacy.tasks.queries.coefficients import coefficients, score_row, term_names, told_of
from veilsum_privacy.tasks.queries.language import Columns, Query

if TYPE_CHECKING:
    from veilsum_aggregation.regression import Fit, LinearFit


class LinearRegression(OutcomeKind):
    """z z' of z = c (1, terms, outcome), as of correlations, of records that have them all; and who is at the bounds.

    Terms are numbers in [-1, 1], and an indicator of each level of a category but the first. c = min(1, C / |(1, terms)|)
    shortens by the terms alone, so the regression stays unbiased (design: statistics.md, section 5). The norm of z z' is
    |z|^2 <= C^2 + 1; no record is shortened where C^2 is 1 and the number of terms. Rounding adds half a unit a value at most.
    Beside them each record counts in one of two cells, whatever its length: of a number whether it is at a bound, of an event
    whether it happened. The first moment of the constant is less than their number where records are shortened.
    """

    names: ClassVar = {"linear": ("outcome",)}
    least_scale, rounded = 16, True

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
        typical = numbers / 3.0 + (len(domains) - numbers) / 2.0
        self.longest = math.sqrt(1.0 + (len(domains) if query.unshortened else typical))

    @property
    def numeric(self) -> frozenset[str]:
        """Terms that are numbers."""
        return frozenset(name for name, level in self.terms if not level)

    @property
    def categories(self) -> tuple[tuple[int, ...], ...]:
        """Places in (1, terms) of each category's levels but the first."""
        names = [name for name, level in self.terms if level]
        return tuple(
            tuple(place for place, (own, _) in enumerate(self.terms, 1) if own == name) for name in dict.fromkeys(names)
        )

    @property
    def _entries(self) -> int:
        return (len(self.terms) + 2) * (len(self.terms) + 3) // 2

    def blocks(self) -> tuple[Block, ...]:
        return *self._products(len(self.terms) + 2), self._block("bounds", 1 + self.query.counted, weight=float(self._light))

    @property
    def _light(self) -> int:
        return max(1, round(self.scale / 2))

    def norm(self) -> int:
        reach = self.scale * (self.longest**2 + 1.0) + math.sqrt(self._entries) / 2.0
        return math.floor(reach * reach) + self._light**2

    def figures(self) -> int:
        return len(self.terms)

    def design(self, cells: Mapping[str, Cells], group: Symbol) -> tuple[Symbol, Symbol, Symbol]:
        """(1, terms) as (p,), the outcome in [-1, 1], and whether the record has them all; 0 of one that lacks any."""
        known = group >= 0
        z: list[Value] = [1.0]
        for name, level in self.terms:
            if level:
                found = level_cells(cells, name)
                z.append(found.codes == self.columns.level_names(name).index(level))
                known = known & found.present
            else:
                number = number_cells(cells, name)
                z.append(number.x)
                known = known & number.present
        known = known & self.told(cells)
        if self.event is None:
            outcome = number_cells(cells, self.query.outcome).x
        else:
            outcome = where(self.event.holds(cells), 1.0, -1.0)
        return real(joined(*z)) * known, outcome * known, known

    def values(self, cells: RecordCells, group: Symbol) -> Symbol:
        z, outcome, known = self.design(cells, group)
        short = minimum(1.0, self.longest / maximum(length(z), 1.0))
        first = known & (outcome > 0.0) if self.event is not None else known & (abs(outcome) >= 1.0)
        if self.query.counted:  # one of two cells: as long as one alone
            return joined(products(joined(z, outcome) * short, self.scale), self._light * joined(first, known & ~first))
        bound = first if self.event is None else np.False_
        return joined(products(joined(z, outcome) * short, self.scale), self._light * symbol(bound))

    # -- what is read of the sum -------------------------------------------------------------------------------------------

    def fit(self, part: ReleasedPart) -> "LinearFit":
        """That of the moments."""
        from veilsum_aggregation.regression import LinearFit

        return LinearFit(part.moments, part.std("diagonal"), term_names(self), part.grain, self.numeric)

    def score(self, part: ReleasedPart, gram: Floats) -> Iterator[Row]:
        """The prediction as a derived number."""
        yield from score_row(self.fit(part), self, gram, self.outcome.half, self.outcome.middle)

    def answer(
        self, part: ReleasedPart, fit: "Fit | None" = None, reference: Mapping[str, str] = MappingProxyType({})
    ) -> Iterator[Row]:
        """In the columns' own units."""
        outcome, count = self.outcome, float(part.block("diagonal")[0])
        told = fit or self.fit(part)
        for found in coefficients(told, self, outcome.half, outcome.middle, reference=reference):
            unit = f"{outcome.unit or 1} per {found.per}" if found.per else outcome.unit
            row: Row = {"term": found.term, "unit": unit, "coefficient": part.cell(count, found.answer)}
            yield row | told_of(found)

    def tests(self, part: ReleasedPart) -> Iterator[Row]:
        count = float(part.block("bounds")[0]) if self.event is None else 0.0
        records = float(part.block("bounds").sum() if self.query.counted else part.block("diagonal")[0])
        of, share = self.query.outcome, min(max(count / records, 0.0), 1.0) if records > 0.0 else None
        note = f"{of} is at a bound in {share:.1%} of the records, which biases the fit" if share and share > 0.02 else ""
        fit = self.fit(part)
        told = {"r_squared": fit.r_squared().to_json(), "at_bound": share, **self.numbers(part)}
        row = test_row("all slopes are 0 (Wald)", of, fit.all_slopes(), **told)
        yield row | {"note": "; ".join(text for text in (row["note"], note) if text)}

    def numbers(self, part: ReleasedPart) -> dict[str, dict[str, Any]]:
        """How many ``records`` the moments are of, and of an event how many ``events``; nothing where they are not counted."""
        if not self.query.counted:
            return {}
        (first, other), std = part.block("bounds"), part.std("bounds")
        records, events = (
            normal_figure(n, m * std**2, 0.0).within(0.0, math.inf) for n, m in ((first + other, 2), (first, 1))
        )
        found = {"records": part.cell(first + other, records)}
        return found if self.event is None else found | {"events": part.cell(min(first, other), events)}
