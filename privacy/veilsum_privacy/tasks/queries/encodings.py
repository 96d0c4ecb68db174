"""Which encoding each kind of query has; what all have in common is in :mod:`veilsum_privacy.tasks.queries.base`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from veilsum_node.errors import HostileInput
from veilsum_privacy.tasks.queries.base import Encoding
from veilsum_privacy.tasks.queries.cell_encodings import (
    DiscriminationEncoding,
    SurvivalEncoding,
    SyntheticEncoding,
    TableEncoding,
)
from veilsum_privacy.tasks.queries.language import Columns, Query
from veilsum_privacy.tasks.queries.number_encodings import CorrelationEncoding, MeanEncoding, MissingEncoding, QuantileEncoding
from veilsum_privacy.tasks.queries.outcome_encodings import EffectEncoding, LinearEncoding

ENCODINGS: Mapping[str, type[Encoding]] = {
    "count": TableEncoding,
    "histogram": TableEncoding,
    "independence": TableEncoding,
    "quantiles": QuantileEncoding,
    "mean": MeanEncoding,
    "compare": MeanEncoding,
    "correlation": CorrelationEncoding,
    "missing": MissingEncoding,
    "survival": SurvivalEncoding,
    "logrank": SurvivalEncoding,
    "synthetic": SyntheticEncoding,
    "linear": LinearEncoding,
    "discrimination": DiscriminationEncoding,
    "effect": EffectEncoding,
}


def build_encoding(query: Query, columns: Columns) -> Encoding:
    """A query's part of the vector.

    Raises:
        HostileInput: it names columns that are not there, or asks for what its kind cannot give.
    """
    return ENCODINGS[query.kind](query, columns)


def build_encodings(queries: Sequence[Query], columns: Columns) -> tuple[Encoding, ...]:
    """All queries' parts, in order.

    Raises:
        HostileInput: as :func:`build_encoding`; or two queries have one name.
    """
    names = [query.name for query in queries]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise HostileInput(f"Two queries are named {repeated[0]!r}.", "Give each a name of its own.")
    return tuple(build_encoding(query, columns) for query in queries)
