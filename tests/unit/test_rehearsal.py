"""Made-up records take every branch: a fault planted behind any of them is found before a record is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.neighbours import SETTINGS, TASK_LABEL, Setting, schema
from veilsum_node.errors import HostileInput
from veilsum_privacy.computation import rehearsal
from veilsum_privacy.computation.contribution import compute_sum
from veilsum_privacy.computation.rehearsal import (
    LEAST,
    MOST,
    MOST_CELLS,
    MOST_VALUES,
    SMALL,
    few_records,
    how_many,
    made_up_records,
    rehearse,
)
from veilsum_privacy.securesum.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.base import Records, RecordTask
from veilsum_privacy.tasks.queries.branches import Branches
from veilsum_privacy.tasks.queries.cells import level_cells, number_cells
from veilsum_privacy.tasks.queries.language import Columns
from veilsum_privacy.tasks.tables import Tables

Bools = NDArray[np.bool_]
_PLAIN = schema(3, categories=(2, 4))
DATA = _PLAIN.model_copy(
    update={"columns": (*_PLAIN.columns[:2], NumberColumn(name="n2", low=0, high=10), *_PLAIN.columns[3:])}
)
DERIVED = (
    {"name": "cut", "of": "n1", "edges": (0.2, 0.21, 0.9)},
    {"name": "sum", "number": "n0 + 2 * n1 - n2", "low": -1.0, "high": 3.0},
    {"name": "odd", "number": "(k0 = 'b') * n2 * 1e308 - (k0 = 'b') * n2 * 1e308", "low": -1.0, "high": 1.0},
)
"""The last one is undefined where n2 is above 1.8, and 0 below."""

WHERES = (
    "",
    "n0 >= 0.9",
    "n0 > 0.5 and n0 < 0.501",
    "n0 = 0.123 and n2 = 0.987",
    "k1 = 'd' and y = 'c2'",
    "k1 in ('a', 'c') and not (k0 = 'b') and n0 is missing",
    "cut = '0.2 to 0.21'",
    "sum > 2.5 and k0 is not missing",
    "not (sum > -0.5)",
    "odd is missing",
    "n0 > 0.3 and n1 > 0.31 and n2 > 0.32 and k0 = 'a' and k1 = 'b' and y = 'c1' and cut = '0.9 to 1'",
    "(n0 = 0.25 or n1 = 0.75) and (k0 = 'a' or k1 = 'd') and not (n2 is missing) and y is missing",
)


def agreed_of(setting: Setting, unit: Any = "record") -> AgreedTask:
    return AgreedStudy(setting.study(unit, grid=2**20, variance=0, noise="none")).task(TASK_LABEL)


def asked(where: str = "", data: DatasetSchema = DATA, **more: Any) -> Setting:
    query = {"name": "q", "kind": "count", "over": ("k0",), "where": where, "missing": "level", **more}
    derived = DERIVED if data is DATA else ()
    return Setting("asked", "tables", data, {"queries": [query], "derived": derived, "sensitivity": 64})


def planted(monkeypatch: pytest.MonkeyPatch, fails: Callable[[Records], Bools]) -> None:
    """Let tables fail on records of which ``fails`` says so."""
    real = Tables.vectors

    def vectors(self: RecordTask, records: Any, broadcast: Any) -> Any:
        if fails(records).any():
            raise IndexError("somebody is here")
        return real(self, records, broadcast)  # type: ignore[arg-type]

    monkeypatch.setattr(Tables, "vectors", vectors)


def found(monkeypatch: pytest.MonkeyPatch, setting: Setting, fails: Callable[[Records], Bools]) -> bool:
    with monkeypatch.context() as patched:
        planted(patched, fails)
        try:
            rehearse(agreed_of(setting))
        except HostileInput as error:
            return "fails on made-up records: IndexError" in error.message
    return False


# -- planted faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", WHERES)
def test_a_fault_behind_a_condition_is_found_whether_it_holds_or_not(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Also behind a condition with each column absent beside it, which is where it was that records failed."""
    setting = asked(where, over=("k0", "k1"), by=("y",))
    task = agreed_of(setting).task
    assert isinstance(task, Tables)
    condition, columns = task.questions[0].condition, Columns(DATA, task.parameters.derived)

    def holds(records: Records) -> Bools:
        if condition is None:
            return np.ones(len(records), dtype=np.bool_)
        return condition.holds(columns.cells(records, condition.columns))

    assert found(monkeypatch, setting, holds)
    if condition is not None:
        assert found(monkeypatch, setting, lambda records: ~holds(records))
    for name in {"k0", "k1", "y"} - (set() if condition is None else set(condition.columns)):

        def lacks(records: Records, name: str = name) -> Bools:
            return holds(records) & ~columns.cells(records, [name])[name].present

        assert found(monkeypatch, setting, lacks), name


def test_a_fault_of_any_one_column_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent alone, at each level or class, at both bounds, and at the edges of the query and beside them."""
    columns = Columns(DATA, [])
    setting = asked(kind="histogram", over=("n0",), edges=(0.2, 0.4, 0.8), by=("k1",))
    for name in columns.domains:

        def alone(records: Records, name: str = name) -> Bools:
            cells = columns.cells(records, columns.domains)
            others = [cells[other].present for other in columns.domains if other != name]
            return ~cells[name].present & np.logical_and.reduce(others)

        assert found(monkeypatch, setting, alone), name
        levels = columns.level_names(name)
        for code in range(len(levels)):
            assert found(
                monkeypatch, setting, lambda r, name=name, code=code: level_cells(columns.cells(r, [name]), name).codes == code
            ), (name, levels[code])
        for x in () if levels else (-1.0, 0.0, 1.0, *((-0.6, -0.2, 0.6, -0.8, -0.4, 0.2) if name == "n0" else ())):

            def at(records: Records, name: str = name, x: float = x) -> Bools:
                cells = number_cells(columns.cells(records, [name]), name)
                return cells.present & (np.abs(cells.x - x) < 1e-9)

            assert found(monkeypatch, setting, at), (name, x)


def test_a_fault_of_an_undefined_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    task = agreed_of(asked("odd is missing")).task
    assert isinstance(task, Tables)
    columns = Columns(DATA, task.parameters.derived)
    assert found(
        monkeypatch, asked("n0 > 0.5", over=("cut",)), lambda records: ~columns.cells(records, ["odd"])["odd"].present
    )


@pytest.mark.parametrize(
    "fails",
    [
        lambda records: np.isnan(records.features).any(axis=1),
        lambda records: np.isinf(records.features).any(axis=1),
        lambda records: (np.abs(records.features) > 1).any(axis=1),
        lambda records: (records.labels >= 3) | (records.labels < 0),
    ],
)
def test_a_fault_of_values_that_no_reader_gives_is_found(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[Records], Bools]
) -> None:
    assert found(monkeypatch, asked(), fails)


# -- the records themselves ---------------------------------------------------------------------------------------------------


def branches_of(setting: Setting) -> Branches | None:
    return agreed_of(setting).task.branches()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.task}-{setting.name}")
def test_they_follow_from_what_is_public_and_are_few(setting: Setting) -> None:
    """The same every time; subjects never descend, and some of them have two records."""
    branches = branches_of(setting)
    read = setting.schema if branches is None else branches.schema
    first, second = (made_up_records(read, branches, MOST) for _ in range(2))
    assert LEAST <= len(first) <= MOST
    for one, other in zip(
        (first.features, first.present, first.labels, first.subjects),
        (second.features, second.present, second.labels, second.subjects),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    assert first.subjects is not None
    assert (np.diff(first.subjects) >= 0).all()
    assert len(np.unique(first.subjects)) < len(first)
    assert (first.labels is None) == (setting.schema.label is None)


@pytest.mark.parametrize(
    ("size", "width", "branched", "number"),
    [
        (1, 3, True, MOST),
        (10**6, 3, True, 64),
        (10**6, 3, False, LEAST),
        (51_300, 512, False, MOST_VALUES // 51_300),
        (1, 10**6, False, LEAST),
        (10**5, 4096, True, 64),
        (1, MOST_CELLS // 100, True, 100),
    ],
)
def test_how_many_there_are_is_bounded_by_what_they_take(size: int, width: int, branched: bool, number: int) -> None:
    assert how_many(size, width, branched) == number


def test_a_wide_schema_and_hundreds_of_conditions_stay_cheap() -> None:
    data = schema(300, categories=(8,) * 40)
    queries = [
        {"name": f"q{i}", "kind": "count", "over": (f"k{i % 40}",), "where": f"n{i % 300} > 0.{i % 7 + 1} and k{i % 39} = 'c'"}
        for i in range(200)
    ]
    setting = Setting("many", "tables", data, {"queries": queries, "sensitivity": 64})
    assert len(made_up_records(data, branches_of(setting), MOST)) == MOST
    rehearse(agreed_of(setting))


# -- again, with a later round's values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.task}-{setting.name}")
def test_what_a_task_says_of_values_it_says_again(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """On few records or, of large arrays, on none; the broadcast that passes is the one that passed before."""
    agreed = agreed_of(setting)
    rows = {name: np.stack([row] * 4) for name, row in setting.given.items()}
    arrays, few = {**setting.broadcast, **rows}, few_records(agreed)
    seen: list[int] = []
    real = compute_sum

    def counted(plan: Any, records: Records, *rest: Any) -> Any:
        seen.append(len(records))
        return real(plan, records, *rest)

    monkeypatch.setattr(rehearsal, "compute_sum", counted)
    rehearse(agreed, arrays, again=few)
    assert seen == [len(few)]
    assert 3 <= seen[0] <= 8
    monkeypatch.setattr(rehearsal, "SMALL", -1)
    rehearse(agreed, arrays, again=few)
    assert seen[1:] == [0]
    if "sha256" in setting.parameters:
        changed = {name: array + (1.0 if array.size else 0.0) for name, array in arrays.items()}
        for limit in (SMALL, -1):
            monkeypatch.setattr(rehearsal, "SMALL", limit)
            with pytest.raises(HostileInput, match="the one that"):
                rehearse(agreed, changed, again=few)


def test_every_task_of_columns_says_where_it_branches() -> None:
    """Those that read columns by name have branches; those of features, whose columns are all treated alike, have none."""
    for setting in SETTINGS:
        named = not {"queries", "query"}.isdisjoint(TASKS[setting.task].Parameters.model_fields)
        named &= "classes" not in setting.parameters  # queries about a classifier read what it says, and no column
        assert (branches_of(setting) is not None) == named, setting.task
