"""Where the rows of tasks that read columns take branches: conditions, and what is read where they hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.queries.base import QueryKind
from veilsum_privacy.tasks.queries.cells import Cells
from veilsum_privacy.tasks.queries.conditions import Condition
from veilsum_privacy.tasks.queries.language import Columns


@dataclass(frozen=True)
class Branch:
    """A condition, None for all records, and the columns of the schema that are read where it holds."""

    condition: Condition | None
    reads: frozenset[str]


@dataclass(frozen=True)
class Branches:
    """All branches of a task.

    Attributes:
        schema: of what is read; it may have columns beside those of the records.
        columns: that conditions are about, the derived ones among them.
        branches: by condition.
        edges: scaled, by numeric column: where the rows change beside constants of conditions.
    """

    schema: DatasetSchema
    columns: Columns
    branches: tuple[Branch, ...]
    edges: tuple[tuple[str, tuple[float, ...]], ...] = ()

    @classmethod
    def of(
        cls, schema: DatasetSchema, columns: Columns, questions: Iterable[QueryKind], beside: Iterable[str] = ()
    ) -> Branches:
        """Those of questions, each of which reads ``beside`` as well."""
        branches, edges, more = list[Branch](), list[tuple[str, tuple[float, ...]]](), frozenset(beside)
        for question in questions:
            read = frozenset[str]().union(*(columns.bases(name) for name in question.reads | more))
            branches += [Branch(condition, read) for condition in question.conditions or (None,)]
            edges += question.points().items()
        return cls(schema, columns, tuple(branches), tuple(edges))

    @property
    def asked(self) -> frozenset[str]:
        """Columns of the schema that some condition is about."""
        return self.bases(name for condition in self._conditions() for name in condition.columns)

    def bases(self, names: Iterable[str]) -> frozenset[str]:
        """Columns of the schema that these are computed from."""
        return frozenset[str]().union(*(self.columns.bases(name) for name in names))

    def points(self) -> dict[str, set[float]]:
        """By numeric column of the schema, the scaled values at which some row or condition changes."""
        found: dict[str, set[float]] = {}
        for name, points in self.edges:
            found.setdefault(name, set()).update(points)
        for condition in self._conditions():
            for leaf in condition.leaves():
                if leaf.operator is not None:
                    found.setdefault(leaf.column, set()).add(leaf.value)
        for name in self.columns.domains:
            if cuts := self.columns.cuts(name):
                found.setdefault(self.columns.sources(name)[0], set()).update(cuts)
        return found

    def cells(self, records: Records, names: Collection[str]) -> dict[str, Cells]:
        """The cells of some columns."""
        return self.columns.cells(records, names)

    def _conditions(self) -> Iterator[Condition]:
        return (branch.condition for branch in self.branches if branch.condition is not None)
