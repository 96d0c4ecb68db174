"""A task tried without records: what it would fail on is found, and refused, before anything of a site's data is read.

A refusal tells whoever chose the task whatever it depends on. So all that can go wrong for a declaration or a broadcast has to
go wrong here, on no record and on made-up ones; afterwards a site contributes
(:func:`veilsum_privacy.computation.contribution.contribute`).

Tasks whose rows the kernel computes are traced, and nothing that a record holds can make a graph fail. Those that compute on
records themselves are tried on records that nobody has, which follow from what is public alone: each column absent alone, each
level, each class and bounds; and what no reader gives. The same ones are made every time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.alignment import example_reference
from veilsum_aggregation.arrays import Floats, Integers
from veilsum_aggregation.feature_moments import FeatureMoments, reference_arrays
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.computation.contribution import (
    Evaluations,
    Graphs,
    SitePlace,
    compute_sum,
    no_records,
    own_rows,
)
from veilsum_privacy.computation.purity import impurity
from veilsum_privacy.mechanism.factors import left_of
from veilsum_privacy.mechanism.rows.evaluation import Evaluation, OpaqueMap
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.mechanism.steps import StepNoise, Steps
from veilsum_privacy.study.encoder import Program, Projection
from veilsum_privacy.study.projections import projection_digest
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study, TaskDeclaration
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask, RoundPlan
from veilsum_privacy.tasks.base import Records, RowTask, Task, TrainingTask
from veilsum_privacy.tasks.feature_maps import (
    ALIGNMENT_MATRIX,
    ALIGNMENT_OFFSET,
    ALIGNMENT_SCALE,
    ENCODER_MATRIX,
    ENCODER_OFFSET,
    SALT,
)
from veilsum_privacy.tasks.model_tables import ModelTables
from veilsum_privacy.tasks.parameters import PartParameters
from veilsum_privacy.tasks.power_moments import columns_of_moments
from veilsum_privacy.training.arrays import from_broadcast
from veilsum_privacy.training.released import model_digest
from veilsum_privacy.training.weights import made_up

MOST = 256
"""Most made-up records of a task."""

MOST_VALUES = 2**19
"""Most values of their vectors together, which is what they take in time; :data:`LEAST` records are made of any task."""

LEAST = 6
"""Fewest made-up records."""

FEW = 8
"""Made-up records that a task is tried on again."""

_TRIED, _ALONE = 8, 2
"""Made-up records on which opaque maps are tried, and how many of them alone: a wide network takes time for each."""

MOST_CELLS = 2**22
"""Most cells of all made-up records together: of schemas with thousands of features there are fewer of them."""

Row = dict[str, float]
"""A made-up value of each column that is not at its middle, by name: scaled, or a level; NaN where it is missing."""


LOG = logging.getLogger("veilsum.participant")

COPIES = 1000
"""How often made-up records are counted in a made-up kept statistic, so that it stands out from its noise."""


SMALL = 2**14
"""Values of a broadcast up to which a task is tried on a few records again, for each round's values; beyond, on none."""


@made_up()  # frozen weights are a file of whoever meets records
def rehearse(
    agreed: AgreedTask,
    broadcast: Mapping[str, Floats] | None = None,
    *,
    again: Records | None = None,
    graphs: Graphs | None = None,
    evaluations: Evaluations | None = None,
) -> Mapping[str, Floats]:
    """Trace a task, or run it on no record and on made-up ones; training takes one step for each of its rounds.

    Args:
        broadcast: what a round broadcasts; None for a made-up legal one.
        again: of a task that was tried on all made-up records before, with arrays of these names and shapes: those of
            :func:`few_records`. It is computed on them for what depends on the values of the broadcast, without noise in
            training; on no record where there are more than :data:`SMALL` values, each of which would cost as much as the
            round's own. A task that is a graph is traced, and no more.
        graphs: where the round's graph is kept once it was traced.
        evaluations: of the task, which keep the graph ready for the round's records; None to make them for this alone.

    Returns:
        The broadcast that it was tried with.

    Raises:
        HostileInput: it fails. No record had a part in that.
        Misuse: its noise or its encoding cannot be planned.
    """
    tried, label = _shortened(agreed), agreed.label
    tried, arrays = made_up_broadcast(tried) if broadcast is None else (tried, broadcast)
    if broadcast is None and arrays:
        graphs = None  # what was made up may be of another study, which names it by its digest
    study, task = tried.study, tried.task
    plan = tried.plan(study.sites, study.sites)
    none = _none(study, _width(study, task))
    few = none if again is None or _values(arrays) > SMALL else again
    given, copies = ([none, _made_up(study, task)], (0, COPIES)) if again is None else ([few], (COPIES,))
    try:
        if again is None:
            _try_purity(plan, arrays)
        if _is_traced(task, arrays):  # and nothing that a record holds makes a graph fail
            if again is not None:
                (evaluations or Evaluations(graphs, agreed)).graph(agreed, own_rows(agreed, arrays, 0), SitePlace().given)
                return arrays
            given = [none]
        kept_ready = Evaluations(graphs, agreed)
        for number in copies if tried.source else copies[:1]:
            steps = Steps if again is None else _Quiet
            place = SitePlace(0, made_up_statistics(tried, number), steps=steps, evaluations=kept_ready)
            for records in given:
                with np.errstate(all="ignore"):
                    compute_sum(plan, records, arrays, place)
    except (HostileInput, Misuse) as error:
        raise HostileInput(f"Task {label!r} cannot be computed: {error.message}", error.advice) from error
    except Exception as error:
        LOG.warning("task %r fails on made-up records", label, exc_info=True)
        raise HostileInput(f"Task {label!r} fails on made-up records: {type(error).__name__}.") from error
    return arrays


def _is_traced(task: Task[Any], arrays: Mapping[str, Floats]) -> bool:
    """Whether all that a task computes is a graph, of public arrays and a record."""
    return isinstance(task, RowTask) and not task.computes_from() and not task.maps(arrays)


def _try_purity(plan: RoundPlan, arrays: Mapping[str, Floats]) -> None:
    """Insist that opaque maps treat each record alike in any company, as far as made-up records show it."""
    for graph, maps in _opaque_graphs(plan, arrays):
        evaluation = Evaluation(graph, maps, _TRIED)

        def compute(features: Floats, evaluation: Evaluation = evaluation) -> Floats:
            classes = len(plan.task.study.data.classes)
            labels = np.minimum(np.floor((features[:, 0] + 1.0) / 2.0 * classes), classes - 1.0).astype(np.int64)
            records = Records(features, np.ones(features.shape, dtype=np.bool_), labels if classes else None)
            with np.errstate(all="ignore"):
                return np.concatenate(list(evaluation.rows(records)))

        how = impurity(compute, _width(plan.task.study, plan.task.task), tried=_TRIED, alone=_ALONE)
        if how is not None:
            which = " and ".join(maps)
            told = f"its {which} gives a record other values {how}, so that one could change what others count for."
            raise HostileInput(told, "Take a model that treats every record by itself.")


def _opaque_graphs(plan: RoundPlan, arrays: Mapping[str, Floats]) -> Iterator[tuple[RowGraph, Mapping[str, OpaqueMap]]]:
    """A task's graphs that have opaque maps, with these; of training, answered by zeros, the first request of each kind."""
    task, declared = plan.task.task, plan.declaration
    arrays = own_rows(plan.task, arrays, 0)
    if isinstance(task, RowTask) and (maps := task.maps(arrays)):
        yield task.traced(arrays), maps
    if isinstance(task, TrainingTask) and plan.noise.kind == "training":
        course = StepNoise(declared.local_steps, declared.sampling_rate, task.step_clip(), declared.grid, plan.noise.share_std)
        training, known = task.train(arrays, {}, course), set[frozenset[str]]()
        with suppress(StopIteration):
            request = next(training)
            while True:
                if request.maps and (names := frozenset(request.maps)) not in known:
                    known.add(names)
                    yield request.graph, request.maps
                request = training.send(np.zeros(request.products.size))


def _values(arrays: Mapping[str, Floats]) -> int:
    return sum(array.size for array in arrays.values())


class _Quiet(Steps):
    """Steps whose sums get no noise, which costs the most of them and depends on no value."""

    def noised(self, total: Integers) -> Floats:
        self.taken += 1
        quiet: Floats = total.astype(np.float64) * (self.clip / left_of(self.grid, total.size))
        return quiet


def made_up_statistics(agreed: AgreedTask, copies: int = COPIES) -> dict[str, NDArray[np.int64]]:
    """What a site with so many copies of the made-up records would have kept of the task that another one computes from.

    Returns:
        The vector without noise, in grid units, by its task's label; empty for a task that computes from none.
    """
    if agreed.source is None:
        return {}
    source, arrays = made_up_broadcast(agreed.source)
    study = source.study
    records = plain_records(study.data.width if study.encoder is None else study.encoder.size, len(study.data.classes))
    total = compute_sum(source.plan(study.sites, study.sites), records, arrays, SitePlace(0)).total
    return {source.label: copies * source.kept_part(total, 0)}


def _shortened(agreed: AgreedTask) -> AgreedTask:
    """The task with all records in every sample, and its training cut to the shortest that there is."""
    declared = agreed.declaration
    if isinstance(agreed.task, TrainingTask):
        parameters = {**declared.parameters, "local_steps": 1, "epochs": 1}
        steps = declared.local_steps - int(declared.parameters["local_steps"]) + 1 if declared.local_steps else 0
        declared = declared.model_copy(update={"parameters": parameters, "local_steps": steps})
    return _changed(agreed.study, declared.model_copy(update={"sampling_rate": 1.0}))


def made_up_broadcast(agreed: AgreedTask) -> tuple[AgreedTask, dict[str, Floats]]:
    """A legal broadcast for a task, and the task that it is legal for: where that names arrays by their digest, these."""
    study, task, declared = agreed.study, agreed.task, agreed.declaration
    arrays = task.example_broadcast(study.sites)
    if isinstance(task, ModelTables):
        model = from_broadcast(arrays, task.architecture.shapes())
        parameters = {**declared.parameters, "sha256": model_digest(task.architecture, model)}
        declared = declared.model_copy(update={"parameters": parameters})
    if isinstance(study.encoder, Projection):
        shape = (study.encoder.width, study.encoder.inputs)
        matrix, offset = np.eye(*shape), np.zeros(shape[0])
        encoder = study.encoder.model_copy(update={"sha256": projection_digest(matrix, offset)})
        study = study.model_copy(update={"encoder": encoder})
        arrays |= {ENCODER_MATRIX: matrix, ENCODER_OFFSET: offset}
    return _changed(study, declared), arrays | _alignment(study, task)


def _alignment(study: Study, task: Task[Any]) -> dict[str, Floats]:
    features, alignment, width = task.features, task.alignment, task.dimension
    resplit = isinstance(features, PartParameters) and features.resplit
    if features is None or alignment is None:
        return {SALT: np.zeros(2)} if resplit else {}
    if alignment.kind == "broadcast" and alignment.moments is None:
        matrices = np.broadcast_to(np.eye(width), (study.sites, width, width))
        return {ALIGNMENT_MATRIX: matrices, ALIGNMENT_OFFSET: np.zeros((study.sites, width))}
    if alignment.moments is None:
        return example_reference(alignment.kind, width, len(study.data.classes))
    channels = alignment.moments.channels
    m = len(columns_of_moments(study.data, features.width, channels)) if channels is None else channels
    if alignment.kind == "broadcast":
        maps = {ALIGNMENT_SCALE: np.ones((study.sites, m)), ALIGNMENT_OFFSET: np.zeros((study.sites, m))}
        return {**maps, SALT: np.zeros(2)}
    told = np.full(m, 2, dtype=np.int64)
    return reference_arrays(FeatureMoments(1.0, np.zeros(m), np.ones(m), np.zeros(m), np.full(m, 3.0), told, np.zeros((4, m))))


def _changed(study: Study, declaration: TaskDeclaration) -> AgreedTask:
    """A task of a study under another declaration."""
    tasks = tuple(declaration if task.label == declaration.label else task for task in study.tasks)
    return AgreedStudy(study.model_copy(update={"tasks": tasks})).task(declaration.label)


def _none(study: Study, width: int) -> Records:
    empty = no_records(study)
    return Records(np.zeros((0, width)), np.zeros((0, width), dtype=np.bool_), empty.labels, empty.subjects)


def few_records(agreed: AgreedTask) -> Records:
    """The first of the made-up records of a task: complete ones, at bounds."""
    return _made_up(agreed.study, agreed.task, few=True)


def _made_up(study: Study, task: Task[Any], *, few: bool = False) -> Records:
    """Records to try a task on: as the site reads them, or already encoded where a program does that."""
    encoder = study.encoder
    if task.features is not None and isinstance(encoder, Program):
        return encoded_records(encoder.width, len(study.data.classes))
    most = FEW if few else how_many(task.layout().size, study.data.width)
    return made_up_records(study.data, most, first=few)


def _width(study: Study, task: Task[Any]) -> int:
    """Features of the records that a task is given."""
    encoder = study.encoder
    return encoder.width if task.features is not None and isinstance(encoder, Program) else study.data.width


def how_many(size: int, width: int) -> int:
    """How many made-up records a task whose vector has so many values is tried on, of a schema of so many features."""
    return max(LEAST, min(MOST, MOST_VALUES // max(size, 1), MOST_CELLS // max(width, 1)))


def made_up_records(schema: DatasetSchema, most: int, *, first: bool = False) -> Records:
    """So many made-up records of a schema at most; some share a subject.

    Args:
        most: how many there may be.
        first: only those that come first, complete ones, without odd ones.
    """
    width, classes = schema.width, len(schema.classes)
    made = [plain_records(width, classes)]
    made = [made[0].take(slice(1, 4))] if first else [*made, poisoned(width, classes)]
    left = most - sum(map(len, made))
    if left > 0:
        plan = _Plan(schema)
        made.append(plan.records(list(islice(plan.rows(), left))))
    return _one_after_another(made).take(slice(0, most))


def encoded_records(width: int, classes: int) -> Records:
    """Made-up features of an encoder, which treats all alike."""
    return _one_after_another([plain_records(width, classes), poisoned(width, classes)])


def _one_after_another(parts: Sequence[Records]) -> Records:
    features, present = np.concatenate([part.features for part in parts]), np.concatenate([part.present for part in parts])
    labels = [part.labels for part in parts if part.labels is not None]
    subjects = np.arange(len(features))
    subjects[3] = subjects[2]  # those at opposite bounds
    subjects[-3:] = subjects[-3]
    return Records(features, present, np.concatenate(labels) if labels else None, subjects)


def plain_records(width: int, classes: int) -> Records:
    """In the middle, at both ends of all bounds, of every pattern of low and high, and with nothing known."""
    features = np.array([[0.0], [1.0], [-1.0], [1.0], [0.0]]) * np.ones(width)
    features[3, ::2] = -1.0
    present = np.ones(features.shape, dtype=np.bool_)
    present[4] = False
    labels = np.array([0, classes - 1, 0, classes - 1, -1], dtype=np.int64) if classes else None
    return Records(features, present, labels, np.array([0, 1, 2, 2, 3], dtype=np.int64))


def poisoned(width: int, classes: int) -> Records:
    """What no reader gives: values that are no numbers, infinite or far beyond all bounds, and classes that there are not."""
    features = np.zeros((7, width))
    features[0], features[1], features[2], features[3] = np.nan, np.inf, -np.inf, 1e300
    features[4, :1], features[5, -1:] = np.nan, -1e300
    labels = np.array([0, 0, 0, 0, 0, classes, 2**40]) if classes else None
    return Records(features, np.ones(features.shape, dtype=np.bool_), labels, np.arange(7))


@dataclass(frozen=True)
class _Column:
    """A column of the schema or its label.

    Attributes:
        place: of its features; None of the label.
        levels: how many it has; 0 of a number.
        values: that are tried, NaN for a missing one, which comes first.
    """

    place: slice | None
    levels: int
    values: tuple[float, ...]


class _Plan:
    """Which values are tried in which records."""

    def __init__(self, schema: DatasetSchema) -> None:
        self._schema = schema
        self._columns: dict[str, _Column] = {}
        for column, place in schema.places():
            number = isinstance(column, NumberColumn)
            values = (-1.0, 1.0, 0.0) if number else tuple(map(float, range(column.width)))
            self._columns[column.name] = _Column(place, 0 if number else column.width, (np.nan, *values))
        if schema.label is not None:
            classes = len(schema.classes)
            self._columns[schema.label.column] = _Column(None, classes, (np.nan, *map(float, range(classes))))

    def rows(self) -> Iterator[Row]:
        """All columns at their middle; each absent alone; then each of their values in turn."""
        yield {}
        for name in self._columns:
            yield {name: np.nan}
        for turn in range(1, max((len(column.values) for column in self._columns.values()), default=0)):
            for name, column in self._columns.items():
                if turn < len(column.values) and column.values[turn] != 0.0:
                    yield {name: column.values[turn]}

    def records(self, rows: Sequence[Row]) -> Records:
        """Records of these values; the others are in the middle, or the first level or class."""
        named = frozenset[str]().union(*rows)
        return self._of_values(len(rows), {name: np.array([row.get(name, 0.0) for row in rows]) for name in named})

    def _of_values(self, n: int, given: Mapping[str, Floats]) -> Records:
        """So many records of the given columns' values (n,)."""
        features, labels = np.zeros((n, self._schema.width)), np.zeros(n, dtype=np.int64)
        present: NDArray[np.bool_] = np.ones(features.shape, dtype=np.bool_)
        for name, column in self._columns.items():
            values = given.get(name)
            if values is None:
                if column.levels and column.place is not None:
                    features[:, column.place.start] = 1.0
                continue
            known = ~np.isnan(values)
            if column.place is None:
                labels = np.where(known, values, -1.0).astype(np.int64)
            elif column.levels:
                features[:, column.place] = values[:, None] == np.arange(column.levels)
                present[:, column.place] = known[:, None]
            else:
                features[:, column.place.start] = np.where(known, values, 0.0)
                present[:, column.place.start] = known
        return Records(features, present, labels if self._schema.classes else None, None)
