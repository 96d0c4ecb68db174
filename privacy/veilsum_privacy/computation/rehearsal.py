"""A task tried without records: what it would fail on is found, and refused, before anything of a site's data is read.

A refusal tells whoever chose the task whatever it depends on. So all that can go wrong for a declaration or a broadcast has to
go wrong here, on no record and on made-up ones; afterwards a site contributes
(:func:`veilsum_privacy.computation.contribution.contribute`).

Records that nobody has: what a task is tried on before any record is read. They follow from what is public alone.

A task may fail on a record only where its code takes a branch, so they take as many as there are: each column absent alone,
each level, each class, bounds, constants of conditions and edges with the values beside them; and what conditions hold for,
as well as what they do not hold for, with each column that is read then absent alone. The same ones are made every time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.alignment import example_reference
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.feature_moments import FeatureMoments, reference_arrays
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.computation.contribution import SitePlace, compute_sum, no_records
from veilsum_privacy.mechanism.steps import Steps
from veilsum_privacy.securesum.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.study.encoder import Projection, projection_digest
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study, TaskDeclaration
from veilsum_privacy.tasks.base import Records, Task, TrainingTask
from veilsum_privacy.tasks.feature_maps import ALIGNMENT_MATRIX, ALIGNMENT_OFFSET, ENCODER_MATRIX, ENCODER_OFFSET
from veilsum_privacy.tasks.model_tables import ModelTables
from veilsum_privacy.tasks.power_moments import columns_of_moments
from veilsum_privacy.tasks.queries.branches import Branch, Branches
from veilsum_privacy.tasks.queries.cells import Cells
from veilsum_privacy.tasks.queries.conditions import Both, Condition, Not
from veilsum_privacy.training.arrays import from_broadcast
from veilsum_privacy.training.released import model_digest

MOST = 256
"""Most made-up records of a task."""

MOST_VALUES = 2**19
"""Most values of their vectors together, which is what they take in time; :data:`LEAST` records are made of any task."""

LEAST, LEAST_BRANCHED = 6, 64
"""Fewest made-up records; of a task with branches, if there are so many."""

FEW = 8
"""Made-up records that a task is tried on again."""

MOST_CELLS = 2**22
"""Most cells of all made-up records together: of schemas with thousands of features there are fewer of them."""

POINTS = 24
"""Most values of one numeric column beside its bounds that are tried."""

POOL = 256
"""Records of values at random among which one that meets a condition is looked for."""

CLIMBS = 64
"""Conditions for which, if none of these meets it, it is searched for one value after another."""

STEPS = 24
"""Values that are changed in such a search."""

Row = dict[str, float]
"""A made-up value of each column that is not at its middle, by name: scaled, or a level; NaN where it is missing."""

LOG = logging.getLogger("veilsum.participant")

COPIES = 1000
"""How often made-up records are counted in a made-up kept statistic, so that it stands out from its noise."""


SMALL = 2**14
"""Values of a broadcast up to which a task is tried on a few records again, for each round's values; beyond, on none."""


def rehearse(
    agreed: AgreedTask, broadcast: Mapping[str, Floats] | None = None, *, again: Records | None = None
) -> Mapping[str, Floats]:
    """Run a task on no record and on made-up ones; training takes one step for each of its rounds.

    Args:
        agreed: the task.
        broadcast: what a round broadcasts; None for a made-up legal one.
        again: of a task that was tried on all made-up records before, with arrays of these names and shapes: those of
            :func:`few_records`. It is computed on them for what depends on the values of the broadcast, without noise in
            training; on no record where there are more than :data:`SMALL` values, each of which would cost as much as the
            round's own.

    Returns:
        The broadcast that it was tried with.

    Raises:
        HostileInput: it fails. No record had a part in that.
        Misuse: its noise or its encoding cannot be planned.
    """
    tried, label = _shortened(agreed), agreed.label
    tried, arrays = made_up_broadcast(tried) if broadcast is None else (tried, broadcast)
    study, task = tried.study, tried.task
    plan = tried.plan(study.sites, study.sites)
    none = _none(study, _width(study, task))
    few = none if again is None or _values(arrays) > SMALL else again
    given, copies = ([none, _made_up(study, task)], (0, COPIES)) if again is None else ([few], (COPIES,))
    try:
        for number in copies if tried.source else copies[:1]:
            place = SitePlace(0, made_up_statistics(tried, number), steps=Steps if again is None else _Quiet)
            for records in given:
                with np.errstate(all="ignore"):
                    compute_sum(plan, records, arrays, place)
    except (HostileInput, Misuse) as error:
        raise HostileInput(f"Task {label!r} cannot be computed: {error.message}", error.advice) from error
    except Exception as error:
        LOG.warning("task %r fails on made-up records", label, exc_info=True)
        raise HostileInput(f"Task {label!r} fails on made-up records: {type(error).__name__}.") from error
    return arrays


def _values(arrays: Mapping[str, Floats]) -> int:
    return sum(array.size for array in arrays.values())


class _Quiet(Steps):
    """Steps whose sums get no noise, which costs the most of them and depends on no value."""

    def noised(self, total: Floats) -> Floats:
        self.taken += 1
        return np.where(np.isfinite(total).all(), total, 0.0)


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
    if features is None or alignment is None:
        return {}
    if alignment.kind == "broadcast":
        matrices = np.broadcast_to(np.eye(width), (study.sites, width, width))
        return {ALIGNMENT_MATRIX: matrices, ALIGNMENT_OFFSET: np.zeros((study.sites, width))}
    if alignment.moments is None:
        return example_reference(alignment.kind, width, len(study.data.classes))
    channels = alignment.moments.channels
    m = len(columns_of_moments(study.data, features.width, channels)) if channels is None else channels
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
    """The first of the made-up records of a task: complete ones, at bounds and where conditions hold and do not."""
    return _made_up(agreed.study, agreed.task, few=True)


def _made_up(study: Study, task: Task[Any], *, few: bool = False) -> Records:
    """Records to try a task on: as the site reads them, or already encoded where a program does that."""
    encoder, branches = study.encoder, task.branches()
    if task.features is not None and not (encoder is None or isinstance(encoder, Projection)):
        return encoded_records(encoder.width, len(study.data.classes))
    schema = study.data if branches is None else branches.schema
    most = FEW if few else how_many(task.layout().size, schema.width, branches is not None)
    made = made_up_records(schema, branches, most, first=few)
    return replace(made, features=made.features[:, : study.data.width], present=made.present[:, : study.data.width])


def _width(study: Study, task: Task[Any]) -> int:
    """Features of the records that a task is given."""
    encoder = study.encoder
    return study.data.width if task.features is None or encoder is None or isinstance(encoder, Projection) else encoder.width


def how_many(size: int, width: int, branched: bool) -> int:
    """How many made-up records a task whose vector has so many values is tried on, of a schema of so many features."""
    least = LEAST_BRANCHED if branched else LEAST
    return max(LEAST, min(MOST, max(least, MOST_VALUES // max(size, 1)), MOST_CELLS // max(width, 1)))


def made_up_records(schema: DatasetSchema, branches: Branches | None, most: int, *, first: bool = False) -> Records:
    """So many made-up records of a schema at most; some share a subject.

    Args:
        schema: of the records.
        branches: where the task's rows take branches by columns; None for a task of features, which treats all alike.
        most: how many there may be.
        first: only those that come first, complete ones and where conditions hold and do not, without odd ones.
    """
    width, classes = schema.width, len(schema.classes)
    made = [plain_records(width, classes)]
    made = [made[0].take(slice(1, 4))] if first else [*made, poisoned(width, classes)]
    left = most - sum(map(len, made))
    if left > 0:
        plan = _Plan(schema, branches)
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

    def __init__(self, schema: DatasetSchema, branches: Branches | None) -> None:
        self._schema, self._branches = schema, branches
        points = {} if branches is None else branches.points()
        self._columns: dict[str, _Column] = {}
        for column, place in schema.places():
            if isinstance(column, NumberColumn):
                values = (np.nan, -1.0, 1.0, 0.0, *_around(points.get(column.name, ())))
                self._columns[column.name] = _Column(place, 0, values)
            else:
                levels = tuple(float(level) for level in range(column.width))
                self._columns[column.name] = _Column(place, column.width, (np.nan, *levels))
        if schema.label is not None:
            classes = len(schema.classes)
            levels = tuple(float(level) for level in range(classes))
            self._columns[schema.label.column] = _Column(None, classes, (np.nan, *levels))

    def rows(self) -> Iterator[Row]:
        """What is most likely to be a branch first: columns absent alone and levels where each condition holds, and beside."""
        around = [self._varied({}, list(self._columns))]
        if self._branches is not None:
            starts = self._starts(self._branches.branches)
            around = [self._varied(row, read) for row, read in starts] + around
        yield from _round_robin(around)

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

    def _varied(self, row: Row, names: Iterable[str]) -> Iterator[Row]:
        """The row, each of these columns absent alone, then each of their values in turn."""
        known = [name for name in names if name in self._columns]
        yield row
        for name in known:
            yield {**row, name: np.nan}
        longest = max((len(self._columns[name].values) for name in known), default=0)
        for turn in range(1, longest):
            for name in known:
                values = self._columns[name].values
                if turn < len(values) and values[turn] != row.get(name, 0.0):
                    yield {**row, name: values[turn]}

    # -- conditions -------------------------------------------------------------------------------------------------------

    def _starts(self, branches: Sequence[Branch]) -> Iterator[tuple[Row, list[str]]]:
        """Of each branch a row that meets its condition, and one that does not, with the columns that are read then."""
        conditions: dict[str, tuple[Condition | None, set[str]]] = {}
        for branch in branches:  # one condition may stand above many queries
            read = conditions.setdefault(repr(branch.condition), (branch.condition, set()))[1]
            read |= branch.reads
        for number, (condition, read) in enumerate(conditions.values()):
            names = sorted(read)
            if condition is None:
                yield {}, names
                continue
            for wanted in (True, False):
                row = self._meeting(condition, wanted, climb=number < CLIMBS)
                if row is not None:
                    yield row, names if wanted else []

    @cached_property
    def _pool(self) -> tuple[dict[str, Floats], Records]:
        """Values at random of the columns that conditions are about, all of them in the middle first, and these records."""
        rng = np.random.default_rng(0)
        asked = frozenset() if self._branches is None else self._branches.asked
        drawn = {name: rng.choice(column.values, POOL) for name, column in self._columns.items() if name in asked}
        for values in drawn.values():
            values[0] = 0.0
        return drawn, self._of_values(POOL, drawn)

    def _meeting(self, condition: Condition, wanted: bool, *, climb: bool) -> Row | None:
        """A row that meets a condition, or does not; None if none is found."""
        drawn, records = self._pool
        read = [name for name in self._bases(condition) if name in self._columns]
        degrees = self._degrees(condition, wanted, records)
        best = int(degrees.argmax())
        row, degree = {name: float(drawn[name][best]) for name in read}, float(degrees[best])
        for _ in range(STEPS if climb else 0):
            if degree >= 1.0:
                break
            tried = [{**row, name: value} for name in read for value in self._columns[name].values]
            if not tried:
                break
            degrees = self._degrees(condition, wanted, self.records(tried))
            best = int(degrees.argmax())
            if degrees[best] <= degree:
                break
            row, degree = tried[best], float(degrees[best])
        return row if degree >= 1.0 else None

    def _bases(self, condition: Condition) -> list[str]:
        return [] if self._branches is None else sorted(self._branches.bases(condition.columns))

    def _degrees(self, condition: Condition, wanted: bool, records: Records) -> Floats:
        """How nearly each record meets a condition, from 0 to 1, which it is exactly where it does."""
        if self._branches is None:
            return np.zeros(len(records))
        return _degree(condition, wanted, self._branches.cells(records, condition.columns))


def _degree(condition: Condition, wanted: bool, cells: Mapping[str, Cells]) -> Floats:
    """The share of what has to hold together that does; of alternatives the largest."""
    if isinstance(condition, Not):
        return _degree(condition.part, not wanted, cells)
    if isinstance(condition, Both):
        parts = np.array([_degree(part, wanted, cells) for part in condition.parts])
        if condition.any_of == wanted:
            return np.asarray(parts.max(axis=0), dtype=np.float64)
        return np.asarray(np.where((parts >= 1.0).all(axis=0), 1.0, np.minimum(parts.mean(axis=0), 0.999)), dtype=np.float64)
    return np.asarray(condition.holds(cells) == wanted, dtype=np.float64)


def _around(points: Iterable[float]) -> list[float]:
    """Points within the bounds, and what lies between them; evenly spread ones where there are too many."""
    inner = sorted({float(point) for point in points if -1.0 < point < 1.0})
    ends = [-1.0, *inner, 1.0]
    found = [*inner, *((a + b) / 2.0 for a, b in pairwise(ends))] if inner else []
    if len(found) <= POINTS:
        return found
    return [found[int(place)] for place in np.linspace(0, len(found) - 1, POINTS)]


def _round_robin(rows: Sequence[Iterator[Row]]) -> Iterator[Row]:
    """One of each in turn, until all are at their end."""
    left = list(rows)
    while left:
        going = []
        for each in left:
            row = next(each, None)
            if row is not None:
                going.append(each)
                yield row
        left = going
