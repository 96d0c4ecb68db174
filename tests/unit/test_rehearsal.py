"""What a task is tried on before a record is read: graphs are traced; others run on records that nobody has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.neighbours import SETTINGS, TASK_LABEL, Setting, schema
from veilsum_node.errors import HostileInput
from veilsum_participant.local_studies import LocalStudies
from veilsum_privacy.computation import rehearsal
from veilsum_privacy.computation.contribution import MOST_KEPT, Evaluations, Graphs, SitePlace, compute_sum
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
from veilsum_privacy.mechanism.rows import symbols as s
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.mechanism.rows.symbols import record_of, traced
from veilsum_privacy.study.encoder import Projection
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


@pytest.mark.sampled(5)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.task}-{setting.name}")
def test_what_a_task_says_of_values_it_says_again(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """On few records or, of large arrays, on none; a graph is traced alone. The broadcast that passes is the one that passed
    before."""
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
    assert seen == ([] if traced else [len(few)])
    assert 3 <= len(few) <= 8
    monkeypatch.setattr(rehearsal, "SMALL", -1)
    rehearse(agreed, arrays, again=few)
    assert seen[1:] == ([] if traced else [0])
    if "sha256" in setting.parameters:
        changed = {name: array + (1.0 if array.size else 0.0) for name, array in arrays.items()}
        for limit in (SMALL, -1):
            monkeypatch.setattr(rehearsal, "SMALL", limit)
            with pytest.raises(HostileInput, match="the one that"):
                rehearse(agreed, changed, again=few)


# -- graphs that are kept -----------------------------------------------------------------------------------------------------

ROWS = [setting for setting in SETTINGS if isinstance(agreed_of(setting).task, RowTask)]


def place_of(graphs: Graphs, agreed: AgreedTask) -> SitePlace:
    return SitePlace(0, evaluations=Evaluations(graphs, agreed))


def whole_broadcast(setting: Setting, sites: int) -> dict[str, Any]:
    return {**setting.broadcast, **{name: np.stack([row] * sites) for name, row in setting.given.items()}}


@pytest.mark.parametrize("setting", ROWS, ids=lambda setting: f"{setting.task}-{setting.name}")
def test_a_round_takes_the_graph_of_its_rehearsal_and_sums_are_those_without(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed, graphs, traced = agreed_of(setting), Graphs(), list[str]()
    real = RowTask.traced
    monkeypatch.setattr(RowTask, "traced", lambda task, *given: (traced.append(task.name), real(task, *given))[1])
    sites = agreed.study.sites
    plan, arrays = agreed.plan(sites, sites), whole_broadcast(setting, sites)
    rehearse(agreed, arrays, graphs=graphs)
    traced.clear()
    records = made_up_records(setting.schema, 60)
    found = compute_sum(plan, records, arrays, place_of(graphs, agreed))
    assert not traced
    np.testing.assert_array_equal(found.total, compute_sum(plan, records, arrays, SitePlace(0)).total)
    for name, array in arrays.items():  # any other value is another graph
        if array.size:
            changed = {**arrays, name: array.copy()}
            changed[name].flat[0] = -0.0 if array.flat[0] else 0.5
            traced.clear()
            with suppress(HostileInput):
                compute_sum(plan, records, changed, place_of(graphs, agreed))
            assert traced, name


def test_sites_of_one_process_share_what_follows_from_public_arrays_and_others_keep_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting = next(each for each in ROWS if each.task == "gradient")
    made = list[Evaluation]()
    real = Evaluation.__init__
    monkeypatch.setattr(Evaluation, "__init__", lambda self, *given: (made.append(self), real(self, *given))[1])
    batches = [made_up_records(setting.schema, count) for count in (60, 7)]
    for shared in (True, False):
        studies = LocalStudies(shared=shared)
        agreed = studies.agreed(agreed_of(setting).study.to_bytes()).task(TASK_LABEL)
        sites = agreed.study.sites
        plan, arrays = agreed.plan(sites, sites), whole_broadcast(setting, sites)
        studies.rehearse(agreed, arrays)  # tried on all made-up records once
        made.clear()
        for index, records in enumerate(batches):
            place = SitePlace(index, evaluations=studies.evaluations(agreed))
            studies.rehearse(agreed, {name: array.copy() for name, array in arrays.items()})
            found = compute_sum(plan, records, arrays, place)
            np.testing.assert_array_equal(found.total, compute_sum(plan, records, arrays, SitePlace(index)).total)
        alone = len(batches)  # those without, beside which
        assert len(made) == alone + (1 if shared else len(batches))
        del place
        assert (studies.evaluations(agreed) is studies.evaluations(agreed)) is shared


def test_what_is_made_up_of_arrays_that_a_study_names_is_not_kept() -> None:
    """A study names its projection by a digest; another one, which it was rehearsed with, must not pass for it."""
    agreed = agreed_of(next(each for each in ROWS if each.task == "class-moments"))
    encoder = Projection(inputs=agreed.study.data.width, width=agreed.study.data.width, sha256="0" * 64)
    (task,) = agreed.study.tasks
    parameters = {**task.parameters, "width": encoder.width}
    study = agreed.study.model_copy(
        update={"encoder": encoder, "tasks": (task.model_copy(update={"parameters": parameters}),)}
    )
    named, graphs = AgreedStudy(study).task(TASK_LABEL), Graphs()
    made_up = rehearse(named, graphs=graphs)
    assert made_up
    with pytest.raises(HostileInput, match="projection"):
        rehearse(named, made_up, graphs=graphs)


def test_what_is_kept_is_bounded() -> None:
    agreed, graphs = agreed_of(ROWS[0]), Graphs()
    graph = traced(record_of(2, labelled=False).features * np.ones(2))
    large = traced(s.product(record_of(2, labelled=False).features, np.ones((2, MOST_KEPT // 32))))
    asked = list[int]()

    def made(of: RowGraph) -> Callable[[], RowGraph]:
        return lambda: (asked.append(1), of)[1]

    assert graphs.of(agreed, "a", made(graph)) is graphs.of(agreed, "a", made(graph))
    assert len(asked) == 1
    for _ in range(2):
        graphs.of(agreed, "b", made(large))
        graphs.of(agreed, "c", made(large))
        assert graphs.size <= MOST_KEPT
    assert len(asked) == 5
