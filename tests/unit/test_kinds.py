"""A kind of question is one class in one file: all are registered once, and one that a test makes is asked like any other."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import ValidationError

from support.studies import agreed, demand, drafted, federation, split_records
from veilsum.compile import StudyRequest
from veilsum.exports import tables_of, to_csv
from veilsum.plan import plan_study
from veilsum_aggregation import tables
from veilsum_aggregation.figures import Figure, Row
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.parts.query_requests import QueryRequest, expand
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_privacy.mechanism.rows.symbols import Symbol, where
from veilsum_privacy.results.result import Result, result_files
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.queries import kinds
from veilsum_privacy.tasks.queries.base import CellKind, QueryKind, ReleasedPart
from veilsum_privacy.tasks.queries.cells import Cells, number_cells
from veilsum_privacy.tasks.queries.kinds import KINDS, build_question
from veilsum_privacy.tasks.queries.language import Columns, Query

SITES = [f"site-{index}" for index in range(3)]
SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=90, unit="years"),
        CategoryColumn(name="sex", categories=("f", "m")),
    ),
    max_records=2000,
)


class Halves(CellKind):
    """By group, how many records lie in each half of a number's bounds: all that a new kind has to say."""

    names: ClassVar = {"halves": ()}

    def prepare(self, query: Query, columns: Columns) -> None:
        self.domain = columns.number(self._one_column(), self.what)

    def blocks(self) -> tuple[Block, ...]:
        return (self._block("halves", self.group_count, 2),)

    def figures(self) -> int:
        return self.size

    def cell(self, cells: Mapping[str, Cells], group: Symbol) -> Symbol:
        number = number_cells(cells, self.query.over[0])
        return where((group >= 0) & number.present, 2 * group + (number.x >= 0.0), -1)

    def answer(self, part: ReleasedPart) -> Iterator[Row]:
        for levels, (below, above) in zip(self.group_levels(), part.block("halves"), strict=True):
            share = tables.share(float(above), float(below + above), std=part.std("halves"))
            yield {**levels, "column": self.query.over[0], "above": part.cell(float(below + above), share)}


def records(n: int) -> tuple[Records, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x, sex, known = rng.uniform(-1, 1, n), rng.integers(0, 2, n), rng.random(n) < 0.9
    features = np.column_stack([np.where(known, x, 0.0), np.eye(2)[sex]])
    present = np.column_stack([known, np.ones((n, 2), dtype=np.bool_)])
    return Records(features, present, None), np.where(known, x, np.nan), sex


def request(epsilon: float | None, **query: Any) -> StudyRequest:
    asked = {"name": "upper", "kind": "halves", "over": "age", "by": "sex", **query}
    fixed = {"name": "toy", "method": "statistics", "dataset": "d", "data": SCHEMA, "expected_records": 400}
    return StudyRequest.model_validate(
        {**fixed, "privacy": demand(epsilon), "query": [asked, {"kind": "mean", "over": "age"}]}
    )


def run(epsilon: float | None) -> tuple[Result, np.ndarray, np.ndarray]:
    own, x, sex = records(1200)
    study = agreed(request(epsilon), SITES)
    return METHODS["statistics"].run(federation(study, split_records(own, SITES))), x, sex


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**KINDS, "halves": Halves}  # the one line
    monkeypatch.setattr("veilsum_privacy.tasks.queries.kinds.KINDS", known)
    monkeypatch.setattr("veilsum_coordinator.parts.query_requests.KINDS", known)


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_a_new_kind_is_one_class_and_one_line(epsilon: float | None) -> None:
    result, x, sex = run(epsilon)
    assert result_files(result)
    assert [row["kind"] for row in result.summary["queries"]] == ["halves", "mean"]
    rows = tables_of(result)["upper"]
    assert [(row["sex"], row["column"]) for row in rows] == [("f", "age"), ("m", "age")]
    for place, row in enumerate(rows):
        own = x[(sex == place) & ~np.isnan(x)]
        truth = float(np.mean(own >= 0.0))
        figure = row["above"]
        assert figure["low"] < figure["value"] < figure["high"]
        assert abs(figure["value"] - truth) <= 7.0 * figure["noise_error"] + 1e-12
        assert (figure["noise_error"] > 0.0) == (epsilon is not None)
    assert to_csv(rows).startswith("sex,column,above,")


@pytest.mark.usefixtures("halves")
def test_a_new_kind_is_planned_and_checked_as_others_are() -> None:
    draft = drafted(request(2.0), SITES)
    plan = plan_study(draft, draft.compile())
    assert any("upper" in item.part for part in plan.parts for item in part.forecasts)
    with pytest.raises(ConfigurationError, match="is over one column"):
        drafted(request(2.0, over=["age", "sex"]), SITES)
    with pytest.raises(ConfigurationError, match="no 'outcome'"):
        drafted(request(2.0, outcome="sex = 'f'"), SITES)


def test_without_its_line_there_is_no_such_kind() -> None:
    with pytest.raises(ConfigurationError, match=r"no kind of question is called 'halves'\. Known: .*table-one"):
        drafted(request(2.0), SITES)
    with pytest.raises(HostileInput, match="no kind of question is called 'halves'"):
        build_question(Query(name="q", kind="halves", over=("age",)), Columns(SCHEMA))
    with pytest.raises(ValidationError, match="Did you mean 'count'"):
        QueryRequest.model_validate({"kind": "cont"})


def concrete(question: type[QueryKind]) -> Iterator[type[QueryKind]]:
    for other in question.__subclasses__():
        yield from concrete(other)
    if not inspect.isabstract(question):
        yield question


def test_every_kind_is_registered_exactly_once_in_a_file_of_its_own() -> None:
    package = kinds.__name__
    files = [f"{package}.{module.name}" for module in pkgutil.iter_modules(kinds.__path__)]
    for name in files:
        importlib.import_module(name)
    own = {question for question in concrete(QueryKind) if question.__module__.startswith(package)}
    assert sorted(question.__module__ for question in own) == sorted(files)
    names = [name for question in own for name in question.names]
    assert sorted(names) == sorted(KINDS)
    assert all(KINDS[name] is question for question in own for name in question.names)


KEYS: dict[str, Any] = {"edges": [30, 60], "at": [0.5], "outcome": "sex = 'f'", "event": "sex", "censored": "f"}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_kind_takes_the_keys_that_it_names_and_no_others(kind: str) -> None:
    for key, value in KEYS.items():
        asked = QueryRequest.model_validate({"name": "q", "kind": kind, "over": "age", key: value})
        if key in KINDS[kind].names[kind]:
            asked.check()
        else:
            with pytest.raises(ConfigurationError, match=f"kind {kind} has no '{key}'"):
                expand([asked], Columns(SCHEMA))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"kind": "survival", "over": "age", "event": "sex", "edges": [20, 60]}, "states `event`, `censored` and `edges`"),
        ({"kind": "logrank", "over": "age", "event": "sex", "censored": "f", "edges": [20, 60]}, "no groups to compare"),
        ({"kind": "discrimination", "over": "age", "outcome": "age", "event": "sex"}, "a time to an event states"),
        ({"kind": "discrimination", "over": "age"}, "nothing that the score should rank"),
        ({"kind": "linear", "over": "age"}, "nothing to explain"),
        ({"kind": "effect", "over": "age", "by": "sex"}, "nothing to explain"),
        ({"kind": "compare", "over": "age"}, "no groups to compare"),
    ],
)
def test_what_a_kind_needs_it_says_itself(asked: dict[str, Any], said: str) -> None:
    fixed = {"name": "toy", "method": "statistics", "dataset": "d", "data": SCHEMA, "expected_records": 400}
    with pytest.raises(ConfigurationError, match=said):
        drafted(StudyRequest.model_validate({**fixed, "privacy": demand(1.0), "query": [asked]}), SITES)


def test_figures_are_told_as_figures_or_as_below_the_smallest() -> None:
    part = ReleasedPart(Query(name="q", kind="count"), {}, {}, smallest=5)
    figure = Figure(4.0, 1.0, 0.0, 2.0, 6.0)
    assert part.cell(4.0, figure) == {"below": 5}
    assert part.cell(5.0, figure) == figure.to_json()
