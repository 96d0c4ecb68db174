"""What a task is tried on before a record is read: graphs are traced; others run on records that nobody has."""

from __future__ import annotations

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
from veilsum_privacy.study.schema import NumberColumn
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import Records, RowTask

Bools = NDArray[np.bool_]


def agreed_of(setting: Setting, unit: Any = "record") -> AgreedTask:
    return AgreedStudy(setting.study(unit, grid=2**20, variance=0, noise="none")).task(TASK_LABEL)


# -- the records themselves ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.task}-{setting.name}")
def test_they_follow_from_what_is_public_and_are_few(setting: Setting) -> None:
    """The same every time; subjects never descend, and some of them have two records."""
    first, second = (made_up_records(setting.schema, MOST) for _ in range(2))
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
    ("size", "width", "number"),
    [(1, 3, MOST), (10**6, 3, LEAST), (51_300, 512, MOST_VALUES // 51_300), (1, 10**6, LEAST), (1, MOST_CELLS // 100, 100)],
)
def test_how_many_there_are_is_bounded_by_what_they_take(size: int, width: int, number: int) -> None:
    assert how_many(size, width) == number


def test_they_take_every_level_and_bound_of_each_column_and_its_absence() -> None:
    data = schema(3, categories=(2, 4))
    made = made_up_records(data, MOST)
    for column, place in data.places():
        assert not made.present[:, place].all()
        shown = made.features[made.present[:, place.start], place]
        values = [[-1.0], [0.0], [1.0]] if isinstance(column, NumberColumn) else np.eye(column.width).tolist()
        assert all((shown == value).all(axis=1).any() for value in values)
    assert made.labels is not None
    assert {-1, 0, 1, 2} <= set(made.labels.tolist())


def test_a_wide_schema_and_hundreds_of_conditions_stay_cheap() -> None:
    data = schema(300, categories=(8,) * 40)
    queries = [
        {"name": f"q{i}", "kind": "count", "over": (f"k{i % 40}",), "where": f"n{i % 300} > 0.{i % 7 + 1} and k{i % 39} = 'c'"}
        for i in range(200)
    ]
    setting = Setting("many", "tables", data, {"queries": queries, "sensitivity": 64})
    assert len(made_up_records(data, MOST)) == MOST
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
    traced = isinstance(agreed.task, RowTask)
    assert seen == [0 if traced else len(few)]
    assert 3 <= len(few) <= 8
    monkeypatch.setattr(rehearsal, "SMALL", -1)
    rehearse(agreed, arrays, again=few)
    assert seen[1:] == [0]
    if "sha256" in setting.parameters:
        changed = {name: array + (1.0 if array.size else 0.0) for name, array in arrays.items()}
        for limit in (SMALL, -1):
            monkeypatch.setattr(rehearsal, "SMALL", limit)
            with pytest.raises(HostileInput, match="the one that"):
                rehearse(agreed, changed, again=few)
