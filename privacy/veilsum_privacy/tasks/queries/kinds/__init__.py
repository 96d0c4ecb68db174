"""The kinds of question: each class in a file of its own, registered in one line."""

from collections.abc import Mapping, Sequence

from veilsum_node.config import did_you_mean
from veilsum_node.errors import HostileInput
from veilsum_privacy.tasks.queries.base import QueryKind
from veilsum_privacy.tasks.queries.kinds.correlations import Correlations
from veilsum_privacy.tasks.queries.kinds.discrimination import Discrimination
from veilsum_privacy.tasks.queries.kinds.effects import Effect
from veilsum_privacy.tasks.queries.kinds.means import Means
from veilsum_privacy.tasks.queries.kinds.missing import Missing
from veilsum_privacy.tasks.queries.kinds.quantiles import Quantiles
from veilsum_privacy.tasks.queries.kinds.regression import LinearRegression
from veilsum_privacy.tasks.queries.kinds.survival import Survival
from veilsum_privacy.tasks.queries.kinds.synthetic import Synthetic
from veilsum_privacy.tasks.queries.kinds.tables import CountTable
from veilsum_privacy.tasks.queries.language import Columns, Query

CLASSES: tuple[type[QueryKind], ...] = (
    CountTable,
    Quantiles,
    Means,
    Correlations,
    Missing,
    Survival,
    Synthetic,
    LinearRegression,
    Discrimination,
    Effect,
)

KINDS: Mapping[str, type[QueryKind]] = {kind: question for question in CLASSES for kind in question.names}
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
