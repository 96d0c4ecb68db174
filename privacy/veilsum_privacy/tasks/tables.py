"""The task "tables": the answers to a study's queries, from one sum of small public integers."""

from collections.abc import Mapping
from typing import ClassVar, Self, TypeVar

from pydantic import Field, model_validator

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, joined
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Disclosure
from veilsum_privacy.tasks.layout import Layout
from veilsum_privacy.tasks.persons import PersonParameters, PersonTask
from veilsum_privacy.tasks.queries.base import QueryKind
from veilsum_privacy.tasks.queries.kinds import build_questions
from veilsum_privacy.tasks.queries.language import MAX_QUERIES, WORD_SCALE, Columns, DerivedColumn, Query

MAX_VALUES = 100_000
"""Values of the whole vector."""


class TablesParameters(PersonParameters):
    """What is asked.

    Attributes:
        queries: with their integer scales.
        derived: columns that queries use beside the schema's.
        sensitivity: D, an integer that no record's row exceeds in L2 norm, as the analyst computed it
            (:mod:`veilsum_privacy.tasks.queries.sensitivity`). A row that did would be scaled down to it.
        limbs, limb_bits: of a study without noise, in how many words each value is written, and how wide they are, where one
            word is too narrow for steps that nobody sees (:meth:`veilsum_privacy.tasks.layout.Layout.in_limbs`).
    """

    queries: tuple[Query, ...] = Field(min_length=1, max_length=MAX_QUERIES)
    derived: tuple[DerivedColumn, ...] = Field(default=(), max_length=MAX_QUERIES)
    sensitivity: int = Field(ge=1, le=2**26)
    limbs: int = Field(default=1, ge=1, le=32, exclude_if=lambda limbs: limbs == 1)
    limb_bits: int = Field(default=0, ge=0, le=32, exclude_if=lambda bits: bits == 0)

    @model_validator(mode="after")
    def _scales(self) -> Self:
        """Insist on limbs that have bits, and on limbs where a scale is larger than a word takes."""
        if (self.limbs > 1) != (self.limb_bits > 0):
            raise ValueError("limbs need bits, and one word has none")
        if self.limbs == 1 and any(query.scale > WORD_SCALE for query in self.queries):
            raise ValueError(f"a scale above {WORD_SCALE} needs limbs")
        return self


T = TypeVar("T", bound=TablesParameters)


class TableTask(PersonTask[T]):
    """Sums over records of each query's question (:mod:`veilsum_privacy.tasks.queries.kinds`), in integers.

    Blocks: those of the queries, in order, named ``QUERY/BLOCK``.

    Sensitivity. A record's row is an integer vector. Where its norm is at most D, it is summed as it is; a longer one is
    clipped to D, as any record is. So D bounds what a record changes, whoever computed it and however.
    A person whose records count at most m times changes the sum by m D.
    """

    disclosures: ClassVar[tuple[Disclosure, ...]] = ("joint",)

    def __init__(self, parameters: T, schema: DatasetSchema, read: DatasetSchema | None = None) -> None:
        """See the base; ``read`` is the schema of what queries read, where that is more than the records."""
        super().__init__(parameters, schema)
        self._schema = schema if read is None else read
        self._columns = Columns(self._schema, parameters.derived)
        self.questions = build_questions(parameters.queries, self._columns)
        blocks = tuple(block for question in self.questions for block in question.blocks())
        self._layout = Layout(blocks, parameters.limbs, parameters.limb_bits)
        if self._layout.width > MAX_VALUES:
            raise HostileInput(
                f"The queries ask for {self._layout.width} values together; at most {MAX_VALUES} can be.",
                "Ask for fewer groups, levels or edges.",
            )

    def layout(self) -> Layout:
        return self._layout

    def clip(self) -> float:
        return float(self.integer_norm())

    def integer_norm(self) -> int:
        return self.parameters.sensitivity * self.most_rows

    def only_without_noise(self) -> str | None:
        return "writes values in limbs" if self.parameters.limbs > 1 else None

    def _answered(self, record: Record) -> Symbol:
        """The row of a record as queries read it."""
        cells = self._columns.cells(record)
        return self._layout.in_limbs(joined(*(question.row(cells) for question in self.questions)))


def questions_of(task: object) -> tuple[QueryKind, ...]:
    """The questions of a task on tables; none of another."""
    return task.questions if isinstance(task, TableTask) else ()


class Tables(TableTask[TablesParameters]):
    """Tables of the records themselves."""

    name = "tables"

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        return self._answered(record)
