"""The kinds of question: each class in a file of its own, registered in one line for each of its kinds and loaded when one is
first asked."""

from collections.abc import Sequence

from veilsum_node.config import did_you_mean
from veilsum_node.errors import HostileInput
from veilsum_node.process.imports import Registry
from veilsum_privacy.tasks.queries.base import QueryKind
from veilsum_privacy.tasks.queries.language import Columns, Query

KINDS: Registry[type[QueryKind]] = Registry(
    __name__,
    {
        "count": "tables:CountTable",
        "histogram": "tables:CountTable",
        "independence": "tables:CountTable",
        "quantiles": "quantiles:Quantiles",
        "mean": "means:Means",
        "compare": "means:Means",
        "correlation": "correlations:Correlations",
        "missing": "missing:Missing",
        "survival": "survival:Survival",
        "logrank": "survival:Survival",
        "synthetic": "synthetic:Synthetic",
        "linear": "regression:LinearRegression",
        "discrimination": "discrimination:Discrimination",
        "effect": "effects:Effect",
    },
    lambda kind: kind,
)
"""The class of each kind, by name."""


def build_question(query: Query, columns: Columns) -> QueryKind:
    """A query on columns.

    Raises:
        HostileInput: it names columns or a kind that are not there, or asks for what its kind cannot give.
    """
    if query.kind not in KINDS:
        raise HostileInput(
            f"query {query.name!r}: no kind of question is called {query.kind!r}.", did_you_mean(query.kind, KINDS)
        )
    return KINDS[query.kind](query, columns)


def build_questions(queries: Sequence[Query], columns: Columns) -> tuple[QueryKind, ...]:
    """All queries, in order.

    Raises:
        HostileInput: as :func:`build_question`; or two queries have one name.
    """
    names = [query.name for query in queries]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise HostileInput(f"Two queries are named {repeated[0]!r}.", "Give each a name of its own.")
    return tuple(build_question(query, columns) for query in queries)
