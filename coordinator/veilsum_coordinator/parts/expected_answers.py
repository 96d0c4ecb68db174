"""What a plan says of answers to queries: the same readers on the sums that are expected, without any data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.figures import Row
from veilsum_coordinator.parts.expectations import OFFSET, SPREAD, Expectation
from veilsum_coordinator.parts.query_answers import TABLES
from veilsum_privacy.securesum.agreed import AgreedStudy
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.queries.base import QueryKind, ReleasedPart
from veilsum_privacy.tasks.queries.cells import NumberDomain
from veilsum_privacy.tasks.queries.kinds.correlations import Correlations
from veilsum_privacy.tasks.queries.kinds.discrimination import Discrimination
from veilsum_privacy.tasks.queries.kinds.effects import Effect
from veilsum_privacy.tasks.queries.kinds.means import SHIFT, Means
from veilsum_privacy.tasks.queries.kinds.missing import Missing
from veilsum_privacy.tasks.queries.kinds.quantiles import Quantiles
from veilsum_privacy.tasks.queries.kinds.regression import LinearRegression
from veilsum_privacy.tasks.queries.kinds.survival import Survival
from veilsum_privacy.tasks.queries.kinds.synthetic import Synthetic
from veilsum_privacy.tasks.queries.kinds.tables import CountTable
from veilsum_privacy.tasks.queries.language import Query
from veilsum_privacy.tasks.tables import questions_of

Floats = NDArray[np.float64]

UNITS = ("coefficient", "mean", "standard", "quantile", "median", "restricted", "time")
"""Beginnings of quantities that have their column's unit."""


def expected_answers(
    study: Study,
    cohort: int,
    records: int,
    label: str = TABLES,
    read: Callable[[Any, ReleasedPart], Iterator[Row]] = lambda question, part: question.answer(part),
) -> Sequence[Expectation]:
    """The same readers on the sums that are expected: every group alike, numbers where schemas mostly have them.

    Half widths are of both errors at the expected number of records, as the result will print them.
    """
    agreed = AgreedStudy(study).task(label)
    noise = agreed.block_std(math.sqrt(agreed.released_variance(cohort)))
    found: list[Expectation] = []
    main = _main_parts(questions_of(agreed.task))
    for question in questions_of(agreed.task):
        values = expected_blocks(question, float(records))
        names = {f"{question.query.name}/{name}": array for name, array in values.items()}
        rows = list(read(question, ReleasedPart(question.query, names, noise)))
        found += _expectations(question, rows, noise, records, main)
    return found


def _main_parts(questions: Sequence[QueryKind]) -> tuple[str, ...]:
    """What a study is run for: shares and counts only where it asks nothing else."""
    kinds = {question.query.kind for question in questions}
    if kinds - {"count", "histogram", "independence"}:
        return (
            "means",
            "quantiles",
            "survival",
            "correlations",
            "coefficients",
            "missing values",
            "discrimination",
            "effects",
        )
    return ("shares",) if any(question.query.over for question in questions) else ("counts",)


def _expectations(
    question: QueryKind, rows: Sequence[Row], noise: Mapping[str, float], records: int, main: tuple[str, ...]
) -> Iterator[Expectation]:
    """One for each kind of figure in the rows that are alike."""
    query = question.query
    seen: Counter[tuple[str, str, str, str, float, float]] = Counter()
    for row in rows:
        for key, figure in row.items():
            if isinstance(figure, Mapping):
                quantity, (width, size) = _quantity(key, row, query), _width(figure, row, question)
                unit = str(row.get("unit", "")) if quantity.startswith(UNITS) else ""
                seen[_part(key, row), quantity, unit, _basis(key, row, query), size, width] += 1
    for (part, quantity, unit, basis, size, width), number in seen.items():
        block = f"{part} of {query.part_of or query.name}" if query.over else query.name
        yield Expectation(block, quantity, size, width, unit, basis, number, main=part in main)
    if isinstance(question, Synthetic):
        yield _expected_pairs(question, noise[f"{query.name}/pairs"], records)
    elif not rows:
        yield Expectation(query.name, "test", 1.0, 0.0, basis="a p-value is valid at any noise", main=True)


def _expected_pairs(question: Synthetic, std: float, records: int) -> Expectation:
    """How far the tables of pairs lie from the records', in total variation, by noise alone."""
    count = len(question.axes)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    distance = [float(question.plan.cell_std(i, j, std).sum()) * math.sqrt(2.0 / math.pi) / 2.0 / records for i, j in pairs]
    basis = "all of a table's probability"
    return Expectation(
        question.query.name, "distance of a pair's table", 1.0, float(np.mean(distance)), "", basis, len(pairs), main=True
    )


def _part(key: str, row: Row) -> str:
    """What kind of figure it is."""
    if "score" in row:
        return "shares" if row["level"] else "discrimination"
    if "effect" in row:
        return "effects" if "p_value" in row else "weighted means"
    if "quantile" in row or "figure" in row:
        return "quantiles" if "quantile" in row else "survival"
    return "missing values" if key == "missing" else f"{key.replace('_', ' ')}s"


def _quantity(key: str, row: Row, query: Query) -> str:
    """A figure of a row in a scientist's words."""
    if query.kind in ("count", "histogram", "independence"):
        return f"{key} of each {' and '.join(query.over)}" if query.over else "number of records"
    if "term" in row:
        return f"coefficient of {row['term']}"
    if "quantile" in row:
        return f"quantile {row['quantile']:g} of {row['column']}"
    if "score" in row or "effect" in row:
        return str(row["figure" if "score" in row else "effect"])
    if "figure" in row:
        return str(row["figure"]) if row["time"] is None else f"{row['figure']} at {row['time']:g}"
    of = f" of {row['column']}" if "column" in row else ""
    return key.replace("_", " ") + of


def _width(figure: Mapping[str, Any], row: Row, question: QueryKind) -> tuple[float, float]:
    """Half width of a figure's interval, and what it is measured against."""
    value = abs(float(figure.get("value", 1.0) or 1.0))
    size = value
    name = row.get("column")
    domain = question.columns.domains.get(name) if isinstance(name, str) else None
    if "correlation" in row:
        size = 1.0
    if row.get("level") == "":
        size = 0.5
    if isinstance(question, Effect):
        half = question.outcome.high / 2.0 - question.outcome.low / 2.0
        size = 1.0 if row["effect"] == "risk ratio" else half
    if isinstance(domain, NumberDomain) and ("mean" in row or "quantile" in row):
        size = (domain.high - domain.low) / 2.0 if figure is not row.get("count") else value
    if "term" in row:
        size = _steepest(row["term"], question)
    if "not_estimable" in figure or figure["low"] is None or figure["high"] is None:
        return math.inf, max(size, 1e-12)
    return (figure["high"] - figure["low"]) / 2.0, max(size, 1e-12)


def _steepest(term: str, question: Any) -> float:
    """The coefficient of a term that explains the whole outcome by itself."""
    half = float(question.outcome.high / 2.0 - question.outcome.low / 2.0)
    domain = question.columns.domains.get(term)
    return half / (domain.high / 2.0 - domain.low / 2.0) if isinstance(domain, NumberDomain) else half


def expected_regression(question: LinearRegression, records: float) -> dict[str, Floats]:
    """Terms and outcome that do not depend on one another; those of one category exclude each other."""
    mean, second = [1.0], [1.0]
    for name, level in question.terms:
        share = 1.0 / len(question.columns.level_names(name)) if level else OFFSET
        mean.append(share)
        second.append(share if level else OFFSET**2 + SPREAD**2)
    z = np.outer([*mean, OFFSET], [*mean, OFFSET])
    for i, (name, level) in enumerate(question.terms, 1):
        for j, (other, _) in enumerate(question.terms, 1):
            z[i, j] = 0.0 if level and name == other else z[i, j]
    np.fill_diagonal(z, [*second, OFFSET**2 + SPREAD**2])
    cross = z[np.triu_indices(len(z), 1)]
    return {"diagonal": records * np.diag(z), "cross": records * cross, "bounds": np.zeros(1)}


def _basis(key: str, row: Row, query: Query) -> str:
    """What the expected size of a figure rests on."""
    if "effect" in row:
        return "half of the outcome's range; weights of 2"
    if "score" in row:
        return "scores evenly spread, half with the event" if row["level"] else "from chance to a perfect score"
    if "figure" in row:
        return "times evenly spread to the horizon"
    if query.kind == "missing":
        return "a tenth is missing"
    if key in ("count", "share"):
        tables = query.kind in ("count", "histogram", "independence")
        return "equal groups" if query.by or (tables and query.over) else "all records"
    if key == "coefficient":
        return "half of the outcome's range over half of the term's"
    return "a perfect one" if key == "correlation" else "half of the column's range"


def expected_blocks(question: QueryKind, records: float) -> dict[str, Floats]:
    """The blocks of so many records: all groups and cells alike; numbers evenly spread about a third off the middle."""
    each = records / question.group_count
    groups = question.group_count
    if isinstance(question, CountTable):
        shape = question.blocks()[0].shape
        return {"table": np.full(shape, records / math.prod(shape))}
    if isinstance(question, Means):
        m = len(question.query.over)
        second = OFFSET**2 + SPREAD**2 - SHIFT
        found = {"records": np.full(groups, each), "sum": np.full((groups, m), OFFSET * each)}
        found["square"] = np.full((groups, m), second * each)
        return found | ({"absent": np.zeros((groups, len(question.open)))} if question.open else {})
    if isinstance(question, Quantiles):
        counts = np.full(question.bins, each / question.bins)
        column = question.column()
        places = np.subtract.outer(np.arange(question.bins), np.arange(question.bins))
        matrix = np.where(places >= 0, column[np.maximum(places, 0)], 0)
        return {"prefix": np.tile(matrix @ counts, (groups, 1))}
    if isinstance(question, Correlations):
        d = len(question.query.over)
        z = np.eye(d + 1) * SPREAD**2 + np.outer([1.0, *[OFFSET] * d], [1.0, *[OFFSET] * d])
        z[0, 0] = 1.0
        return {"diagonal": records * np.diag(z), "cross": records * z[np.triu_indices(d + 1, 1)]}
    if isinstance(question, LinearRegression):
        return expected_regression(question, records)
    if isinstance(question, Synthetic):
        cells = [np.full(block.shape[0], records / block.shape[0]) @ block for block in question.plan.blocks.values()]
        return {"pairs": np.concatenate(cells)}
    if isinstance(question, Effect):
        w, mean = 2.0 / question.largest, OFFSET if question.event is None else 0.5
        second = OFFSET**2 + SPREAD**2 if question.event is None else 0.5
        return {
            "sums": np.full((2, 1), records / 2.0) * w * np.array([1.0, mean]),
            "squares": np.full((2, 1), records / 2.0) * w**2 * np.array([1.0, mean, second]),
        }
    if isinstance(question, Discrimination):
        return {"ends": np.full(question.blocks()[0].shape, records / question.size)}
    if isinstance(question, Survival):
        kinds = len(question.causes) + 1
        share = np.full((groups, question.bins, kinds), each / (question.bins + 1) / kinds)
        return {"ends": share, "beyond": np.full(groups, each / (question.bins + 1))}
    if isinstance(question, Missing):
        shape = (groups, len(question.query.over))
        return {"records": np.full(groups, each), "absent": np.full(shape, 0.1 * each)}
    return {block.name.split("/")[1]: np.full(block.shape, records / question.size) for block in question.blocks()}
