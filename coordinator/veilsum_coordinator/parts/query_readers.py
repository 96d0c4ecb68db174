"""A reader for each kind of query: it reads the query's blocks of a released sum and gives the rows of its answer, and tests.

Nothing here knows records; the formulas are those of :mod:`veilsum_aggregation`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation import correlations, group_means, quantiles, ratios, survival, tables, weighted_means
from veilsum_aggregation.concordance import area, concordance
from veilsum_aggregation.figures import Answer, NotEstimable, Row, test_row
from veilsum_aggregation.group_means import NumberSums
from veilsum_aggregation.moments import symmetric
from veilsum_aggregation.regression import Fit, LinearFit
from veilsum_aggregation.survival import SurvivalCounts
from veilsum_aggregation.synthetic import PairTree, pair_tree
from veilsum_aggregation.weighted_means import WeightedSums, difference
from veilsum_coordinator.parts.coefficients import coefficients, score_row, term_names, told_of
from veilsum_coordinator.parts.federation import Release
from veilsum_privacy.tasks.queries.base import Encoding
from veilsum_privacy.tasks.queries.cell_encodings import (
    DiscriminationEncoding,
    SurvivalEncoding,
    SyntheticEncoding,
    TableEncoding,
)
from veilsum_privacy.tasks.queries.number_encodings import (
    SHIFT,
    CorrelationEncoding,
    MeanEncoding,
    MissingEncoding,
    QuantileEncoding,
)
from veilsum_privacy.tasks.queries.outcome_encodings import EffectEncoding, LinearEncoding

Floats = NDArray[np.float64]

PAIRS, SCALE, NOISE = ".pairs", ".scale", ".noise_std"
"""After its name: the released contrasts of all pairs, what they are multiplied by, and the noise in each."""

MOST_RECORDS = 1_000_000
"""Synthetic records of one result."""


_RATIOS: Mapping[str, Callable[[Floats, float, Sequence[str]], Answer]] = {
    "odds ratio": ratios.odds_ratio,
    "risk ratio": ratios.risk_ratio,
    "risk difference": ratios.risk_difference,
}
_POOLED_RATIOS: Mapping[str, Callable[[Floats, float], Answer]] = {
    "odds ratio": ratios.pooled_odds_ratio,
    "risk ratio": ratios.pooled_risk_ratio,
    "risk difference": ratios.pooled_risk_difference,
}


@dataclass(frozen=True)
class QueryReader(ABC):
    """Reads one query's blocks of a release.

    Attributes:
        encoding: of the query.
        release: of the sum that it is in.
        smallest: count below which no cell is printed; 0 prints all.
        missing: whether tests compare missing values, where they have a cell, as a level of their own.
    """

    encoding: Any
    release: Release
    smallest: int
    missing: bool = True

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """The answer, row by row."""

    def tests(self) -> Iterator[Row]:
        """Tests that the query asks for."""
        yield from ()

    def ratios(self) -> Iterator[Row]:
        """Odds ratios and their like, where the query's table gives any."""
        yield from ()

    def block(self, name: str) -> Floats:
        """A block's released values."""
        return self.release.values[f"{self.encoding.query.name}/{name}"]

    def std(self, name: str) -> float:
        """Standard deviation of the noise in a block's values."""
        return float(self.release.noise_std[f"{self.encoding.query.name}/{name}"])

    @property
    def grain(self) -> float:
        """What rounding changes a sum by at most, for each record, in units of numbers in [-1, 1]; 0 where noise hides it."""
        return 0.0 if any(self.release.noise_std.values()) else 0.5 / self.encoding.scale

    def groups(self) -> list[dict[str, str]]:
        """The level of each grouping column, group by group, in the order of the blocks."""
        axes = self.encoding.groups
        return [
            {axis.column: level for axis, level in zip(axes, levels, strict=True)}
            for levels in product(*(axis.levels for axis in axes))
        ]

    def cell(self, value: float, figure: Mapping[str, Any]) -> Mapping[str, Any]:
        """A cell's figure, or that it is below the smallest that may be printed."""
        return {"below": self.smallest} if self.small(value) else figure

    def small(self, value: float) -> bool:
        """Whether so few records are not to be shown."""
        return self.smallest > 0 and value < self.smallest


class _TableReader(QueryReader):
    encoding: TableEncoding

    def rows(self) -> Iterator[Row]:
        table, std = self.block("table"), self.std("table")
        flat = table.reshape(self.encoding.group_count, -1)
        cells = [
            {axis.column: level for axis, level in zip(self.encoding.axes, levels, strict=True)}
            for levels in product(*(axis.levels for axis in self.encoding.axes))
        ]
        for group, counts in zip(self.groups(), flat, strict=True):
            parts: list[Answer] = tables.shares(counts, std) if len(cells) > 1 else []
            for place, (cell, value) in enumerate(zip(cells, counts, strict=True)):
                row: Row = {**group, **cell, "count": self.cell(value, tables.count(float(value), std).to_json())}
                if parts:
                    row["share"] = self.cell(value, parts[place].to_json())
                yield row

    def tests(self) -> Iterator[Row]:
        query, std = self.encoding.query, self.std("table")
        table = self.block("table")
        if query.kind == "independence":
            for group, square in zip(self.groups(), table.reshape(-1, *table.shape[-2:]), strict=True):
                yield self._independence(" and ".join(query.over), square, std, group)
            yield from self._strata_tests()
        elif query.part_of and query.by and len(self.encoding.axes) == 1 and self.encoding.group_count > 1:
            axes = *self.encoding.groups, *self.encoding.axes
            kept = [len(axis.levels) - (axis.missing and not self.missing) for axis in axes]
            table = table[tuple(map(slice, kept))]
            flat = table.reshape(-1, table.shape[-1])
            yield self._independence(f"{query.over[0]} by {', '.join(query.by)}", flat, std, {})

    def ratios(self) -> Iterator[Row]:
        """Of an event of two levels: each level of the first column against its first, by group and over all groups."""
        if self.encoding.query.kind != "independence":
            return
        exposure, event = self.encoding.axes
        levels, ends = (axis.levels[:-1] if axis.missing else axis.levels for axis in (exposure, event))
        if len(ends) != 2:
            return
        std, squares = self.std("table"), self.block("table").reshape(self.encoding.group_count, -1, len(event.levels))
        for place in range(1, len(levels)):
            tables = squares[:, [place, 0], :][:, :, [1, 0]]
            about = {"of": f"{event.column}: {ends[1]}", "compared": f"{exposure.column}: {levels[place]} against {levels[0]}"}
            cells = [
                f"{exposure.column} = {level} and {event.column} = {end}"
                for level in (levels[place], levels[0])
                for end in ends[::-1]
            ]
            for group, table in zip(self.groups(), tables, strict=True):
                found = {name: figure(table, std, cells) for name, figure in _RATIOS.items()}
                yield from self._ratio_rows(group | about, found, float(table.min()))
            if len(tables) > 1:
                everywhere = dict.fromkeys((axis.column for axis in self.encoding.groups), "all strata")
                found = {f"{name} (Mantel-Haenszel)": figure(tables, std) for name, figure in _POOLED_RATIOS.items()}
                yield from self._ratio_rows(everywhere | about, found, float(tables.sum()))

    def _ratio_rows(self, about: Row, found: Mapping[str, Answer], records: float) -> Iterator[Row]:
        for name, answer in found.items():
            told = None if self.small(records) else answer.p_value
            yield about | {"figure": name, "value": self.cell(records, answer.to_json()), "p_value": told}

    def _strata_tests(self) -> Iterator[Row]:
        exposure, event = self.encoding.axes
        if [len(axis.levels) - axis.missing for axis in (exposure, event)] == [2, 2] and self.encoding.group_count > 1:
            by = ", ".join(self.encoding.query.by)
            tables = self.block("table").reshape(self.encoding.group_count, len(exposure.levels), -1)[:, 1::-1, 1::-1]
            found = ratios.no_association(tables, self.std("table"))
            everywhere = dict.fromkeys(self.encoding.query.by, "all strata")
            of = f"{' and '.join(self.encoding.query.over)} within {by}"
            yield test_row(
                "no association in any stratum (Mantel-Haenszel)", of, found, detectable_cramers_v=None, **everywhere
            )

    @staticmethod
    def _independence(of: str, table: Floats, std: float, group: Mapping[str, str]) -> Row:
        found = tables.independence(table, std)
        rows, columns = (int(np.count_nonzero(table.any(axis=axis))) for axis in (1, 0))
        effect = None if isinstance(found, NotEstimable) else tables.cramers_v(found, float(table.sum()), (rows, columns))
        return test_row("independence (chi-squared)", of, found, detectable_cramers_v=effect, **group)


class _MeanReader(QueryReader):
    encoding: MeanEncoding

    def _sums(self, group: int, place: int) -> NumberSums:
        name = self.encoding.query.over[place]
        records, std = float(self.block("records")[group]), self.std("records")
        if name in self.encoding.open:
            absent = float(self.block("absent")[group, self.encoding.open.index(name)])
            records, std = records - absent, math.hypot(std, self.std("absent"))
        sums = float(self.block("sum")[group, place]), float(self.block("square")[group, place])
        return NumberSums(records, *sums, SHIFT, std, self.std("sum"), self.std("square"))

    def rows(self) -> Iterator[Row]:
        for group, levels in enumerate(self.groups()):
            for place, name in enumerate(self.encoding.query.over):
                domain = self.encoding.columns.number(name, self.encoding.what)
                half, sums = domain.high / 2.0 - domain.low / 2.0, self._sums(group, place)
                mean, variance = group_means.mean(sums), group_means.variance(sums)
                row: Row = {**levels, "column": name, "unit": domain.unit}
                row["count"] = self.cell(sums.count, tables.count(sums.count, sums.count_std).to_json())
                row["mean"] = self.cell(sums.count, mean.widened(self.grain).scaled(half, domain.low + half).to_json())
                deviation = variance.widened(4.0 * self.grain).root()
                row["standard_deviation"] = self.cell(sums.count, deviation.scaled(half, 0.0).to_json())
                yield row

    def tests(self) -> Iterator[Row]:
        query = self.encoding.query
        if not query.by or not (query.kind == "compare" or query.part_of) or self.encoding.group_count < 2:
            return
        for place, name in enumerate(query.over):
            groups = [self._sums(group, place) for group in range(self.encoding.group_count)]
            yield test_row("equal means (score)", f"{name} by {', '.join(query.by)}", group_means.equal_means(groups))


class _QuantileReader(QueryReader):
    encoding: QuantileEncoding

    def rows(self) -> Iterator[Row]:
        query, std = self.encoding.query, self.std("prefix")
        for levels, sums in zip(self.groups(), self.block("prefix"), strict=True):
            found = quantiles.quantiles(sums, self.encoding.column(), std, self.encoding.edges, query.at)
            count = float((quantiles.prefix_matrix(self.encoding.column()) @ sums)[-1])
            for q, answer in zip(query.at, found, strict=True):
                about = {"column": query.over[0], "unit": self.encoding.domain.unit, "quantile": q}
                yield {**levels, **about, "value": self.cell(count, answer.to_json())}


class _CorrelationReader(QueryReader):
    encoding: CorrelationEncoding

    def rows(self) -> Iterator[Row]:
        names, diagonal = self.encoding.query.over, self.block("diagonal")
        matrix = symmetric(diagonal, self.block("cross"))
        for i in range(len(names)):
            for j in range(i + 1, len(names)):
                found = correlations.correlation(matrix, i, j, self.std("diagonal"), self.std("cross"), self.grain)
                yield {"column": names[i], "with": names[j], "correlation": self.cell(float(diagonal[0]), found.to_json())}


@dataclass(frozen=True)
class LinearReader(QueryReader):
    """Reads a linear regression.

    Attributes:
        told: the fit whose errors the coefficients have; None for that of the moments.
    """

    encoding: LinearEncoding
    told: Fit | None = None

    def fit(self) -> LinearFit:
        matrix, std = symmetric(self.block("diagonal"), self.block("cross")), self.std("diagonal")
        return LinearFit(matrix, std, term_names(self.encoding), self.grain)

    def score(self, gram: Floats) -> Iterator[Row]:
        """The prediction as a derived number."""
        outcome = self.encoding.outcome
        half = outcome.high / 2.0 - outcome.low / 2.0
        yield from score_row(self.fit(), self.encoding, gram, half, outcome.low + half)

    def rows(self) -> Iterator[Row]:
        """In the columns' own units."""
        outcome, count = self.encoding.outcome, float(self.block("diagonal")[0])
        half = outcome.high / 2.0 - outcome.low / 2.0
        for found in coefficients(self.told or self.fit(), self.encoding, half, outcome.low + half):
            unit = f"{outcome.unit or 1} per {found.per}" if found.per else outcome.unit
            row: Row = {"term": found.term, "unit": unit, "coefficient": self.cell(count, found.answer.to_json())}
            yield row | told_of(found)

    def tests(self) -> Iterator[Row]:
        count, records = float(self.block("bounds")[0]), float(self.block("diagonal")[0])
        of, share = self.encoding.query.outcome, min(max(count / records, 0.0), 1.0) if records > 0.0 else None
        note = f"{of} is at a bound in {share:.1%} of the records, which biases the fit" if share and share > 0.02 else ""
        fit = self.fit()
        told = {"r_squared": fit.r_squared().to_json(), "at_bound": share}
        row = test_row("all slopes are 0 (Wald)", of, fit.all_slopes(), **told)
        yield row | {"note": "; ".join(part for part in (row["note"], note) if part)}


class _MissingReader(QueryReader):
    encoding: MissingEncoding

    def rows(self) -> Iterator[Row]:
        for group, levels in enumerate(self.groups()):
            records, std = float(self.block("records")[group]), self.std("absent")
            for name, absent in zip(self.encoding.query.over, self.block("absent")[group], strict=True):
                share = tables.share_of(float(absent), records, std, self.std("records"))
                row: Row = {**levels, "column": name}
                row["missing"] = self.cell(absent, tables.count(float(absent), std).to_json())
                yield row | {"share": self.cell(absent, share.to_json())}


class _SurvivalReader(QueryReader):
    encoding: SurvivalEncoding

    def _counts(self) -> list[SurvivalCounts]:
        ends, beyond = self.block("ends"), self.block("beyond")
        return [
            SurvivalCounts(table, float(last), self.std("ends"), self.encoding.query.edges)
            for table, last in zip(ends, beyond, strict=True)
        ]

    def rows(self) -> Iterator[Row]:
        if self.encoding.query.kind == "logrank":
            return
        unit = self.encoding.domain.unit
        for levels, counts in zip(self.groups(), self._counts(), strict=True):
            number = float(counts.vector.sum())
            for name, time, figure, risk in self._figures(counts):
                about = number if risk is None else min(risk, number)
                at_risk = None if risk is None or self.small(about) else round(risk, 1)
                value = self.cell(about, figure)
                yield {**levels, "figure": name, "time": time, "unit": unit, "value": value, "at_risk": at_risk}

    def _figures(self, counts: SurvivalCounts) -> Iterator[tuple[str, float | None, Mapping[str, Any], float | None]]:
        """Of one group: what is told, at which time, its figure, and how many are at risk."""
        curve = survival.survival_curve(counts)
        if isinstance(curve, NotEstimable):
            yield "survival", None, curve.to_json(), None
            return
        for q in self.encoding.query.at:
            name = "median survival" if q == 0.5 else f"time by which {q:g} had an event"
            yield name, None, survival.survival_quantile(curve, counts.edges[0], q).to_json(), None
        yield "restricted mean", counts.edges[-1], survival.restricted_mean(counts).to_json(), None
        for time, figure, risk in zip(curve.times, curve.survival, curve.at_risk, strict=True):
            yield "survival", time, figure.to_json(), risk
        if len(self.encoding.causes) > 1:
            for cause, name in enumerate(self.encoding.causes, 1):
                incidence = survival.cumulative_incidence(counts, cause)
                for time, figure, risk in zip(curve.times, incidence, curve.at_risk, strict=True):
                    yield f"cumulative incidence of {name}", time, figure.to_json(), risk

    def tests(self) -> Iterator[Row]:
        query = self.encoding.query
        if query.by and self.encoding.group_count > 1:
            yield test_row("log-rank", f"{query.over[0]} by {', '.join(query.by)}", survival.log_rank(self._counts()))


class _DiscriminationReader(QueryReader):
    encoding: DiscriminationEncoding

    def rows(self) -> Iterator[Row]:
        """By group how well the score ranks, and of a condition the share with the event at each level."""
        std, score = self.std("ends"), self.encoding.score
        for levels, ends in zip(self.groups(), self.block("ends"), strict=True):
            about, number = {**levels, "score": score.column}, float(ends.sum())
            if (times := self.encoding.times) is not None:
                inside = ends[:, :-1].reshape(len(ends), times.bins, -1)
                answer = concordance(inside, ends[:, -1], std)
                yield {**about, "figure": "concordance", "level": "", "value": self.cell(number, answer.to_json())}
                continue
            answer = area(ends[:, 0], ends[:, 1], std)
            yield {**about, "figure": "area under the ROC curve", "level": "", "value": self.cell(number, answer.to_json())}
            for level, counts in zip(score.levels, ends, strict=True):
                share = tables.shares(counts, std)[1]
                value = self.cell(float(counts.sum()), share.to_json())
                yield {**about, "figure": "share with the event", "level": level, "value": value}


class _EffectReader(QueryReader):
    encoding: EffectEncoding

    def rows(self) -> Iterator[Row]:
        """The weighted mean of each treatment, then their difference, and of an event their ratio."""
        outcome, name = self.encoding.outcome, self.encoding.query.by[0]
        half = 1.0 if self.encoding.event is not None else outcome.high / 2.0 - outcome.low / 2.0
        middle = 0.0 if self.encoding.event is not None else outcome.low + half
        arms, unit = list[WeightedSums](), "" if self.encoding.event is not None else outcome.unit
        for (weights, outcomes), (one, linear, square) in zip(self.block("sums"), self.block("squares"), strict=True):
            squares = float(one), float(linear), float(square)
            stds = self.std("sums"), self.std("squares")
            arms.append(WeightedSums(float(weights), float(outcomes), squares, *stds, self.encoding.largest))
        means = [arm.mean() for arm in arms]
        levels = [group[name] for group in self.groups()]
        least = min((arm.effective() or 0.0 for arm in arms), default=0.0)
        for level, arm, mean in zip(levels, arms, means, strict=True):
            value = self.cell(arm.effective() or 0.0, mean.scaled(half, middle).to_json())
            yield {name: level, "effect": "weighted mean", "unit": unit, "value": value, "effective_records": arm.effective()}
        compared = {name: f"{levels[1]} against {levels[0]}", "unit": unit, "effective_records": None}
        apart = difference(means[1], means[0])
        row = compared | {"effect": "difference", "value": self.cell(least, apart.scaled(half, 0.0).to_json())}
        yield row | {"p_value": apart.p_value}
        if self.encoding.event is not None:
            found = weighted_means.ratio(means[1], means[0])
            yield compared | {"effect": "risk ratio", "value": self.cell(least, found.to_json()), "p_value": None}


class SyntheticReader(QueryReader):
    """Reads synthetic records, which are drawn of the released pairs of columns."""

    encoding: SyntheticEncoding

    def _tree(self) -> tuple[PairTree, Floats, float]:
        plan, released = self.encoding.plan, self.block("pairs")
        std = self.std("pairs")
        tree, _ = pair_tree(plan.levels, lambda i, j: plan.table(released, i, j), lambda i, j: plan.cell_std(i, j, std))
        return tree, released, float(plan.table(released, 0, 1).sum())

    def rows(self) -> Iterator[Row]:
        names = self.encoding.query.over
        for edge in self._tree()[0].edges:
            note = "taken as independent" if edge.kept == 0 else ""
            yield {"column": names[edge.parent], "with": names[edge.child], "association_kept": edge.kept, "note": note}

    def records(self) -> NDArray[np.int64]:
        """As many records as were counted, drawn by the release itself, so that whoever repeats it gets the same ones."""
        tree, _, count = self._tree()
        random = np.random.default_rng(int.from_bytes(self.release.digest, "big"))
        return tree.sample(int(min(max(count, 0.0), MOST_RECORDS)), random)

    def scales(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """What a reader of the released sums needs beside the levels, (1,) each."""
        yield f"{self.encoding.query.name}{SCALE}", np.array([self.encoding.query.scale])
        yield f"{self.encoding.query.name}{NOISE}", np.array([self.std("pairs")])

    def levels(self) -> Iterator[Row]:
        """What the numbers of the records mean."""
        for axis in self.encoding.axes:
            yield {"column": axis.column, "levels": list(axis.levels)}


READERS: Mapping[type[Encoding], type[QueryReader]] = {
    TableEncoding: _TableReader,
    MeanEncoding: _MeanReader,
    QuantileEncoding: _QuantileReader,
    CorrelationEncoding: _CorrelationReader,
    LinearEncoding: LinearReader,
    MissingEncoding: _MissingReader,
    SurvivalEncoding: _SurvivalReader,
    SyntheticEncoding: SyntheticReader,
    DiscriminationEncoding: _DiscriminationReader,
    EffectEncoding: _EffectReader,
}
