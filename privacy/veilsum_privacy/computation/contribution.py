"""A site's part of a round before noise: its task on its records, bounded, on the grid, in the place that disclosure gives it.

Everything that is released passes through :func:`compute_sum`; the participant and the simulation call the same. A
participant calls it by way of :func:`contribute`, which gives a vector whatever the records are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_privacy.mechanism.clipping import scattered_sum, site_sum
from veilsum_privacy.mechanism.noise import task_noise
from veilsum_privacy.mechanism.steps import Steps, poisson_sample
from veilsum_privacy.mechanism.weights import cohort_factors
from veilsum_privacy.securesum.context import RoundPlan, in_range
from veilsum_privacy.study.study import Study, TaskDeclaration
from veilsum_privacy.tasks import TASKS, build_declared, grid_unit
from veilsum_privacy.tasks.base import (
    DerivedTask,
    FeatureParameters,
    Floats,
    Records,
    RecordTask,
    SiteTask,
    Task,
    TrainingTask,
)
from veilsum_privacy.tasks.feature_maps import Encode, map_records

Integers = NDArray[np.int64]

LOG = logging.getLogger("veilsum.participant")


@dataclass(frozen=True)
class Place:
    """What a site brings to a round besides its records.

    Attributes:
        index: its place among the study's participants.
        kept: noised vectors that it kept, in grid units, by label.
        encode: the study's program, if the records are not encoded yet.
        cohort: places of the round's members among the study's participants; None for all of them.
        state: what it trained in its last paid round of the task.
        random: where samples, and noise within training, come from.
    """

    index: int = 0
    kept: Mapping[str, Integers] = field(default_factory=dict, repr=False)
    encode: Encode | None = None
    cohort: tuple[int, ...] | None = None
    state: Mapping[str, Floats] = field(default_factory=dict, repr=False)
    random: RandomSource = field(default=SYSTEM_RANDOM, repr=False)


class SitePart(NamedTuple):
    """A site's part of a round.

    Attributes:
        total: the vector as it is summed, in grid units, (size,) int64.
        clipped: how many rows were scaled down.
        invalid: how many rows were not finite and counted as zero.
        state: what the site keeps of its training until the round is paid for.
        fault: what went wrong while it was computed; stays at the site.
    """

    total: Integers
    clipped: int = 0
    invalid: int = 0
    state: Mapping[str, Floats] = MappingProxyType({})
    fault: Exception | None = None


def contribute(
    study: Study, plan: RoundPlan, load: Callable[[], Records], broadcast: Mapping[str, Floats], place: Place
) -> SitePart:
    """:func:`compute_sum` as a total function: a site whose records cannot be read, or computed on, takes part all the same.

    That a site takes part, and what it sends in which size, must not depend on its records: who chooses the task could ask
    for one that fails on a record of interest. Where a task of one vector a record fails, each record is tried by itself,
    and those that fail count as zeros, as invalid ones do. Everything else that fails contributes what a site without
    records would.

    Args:
        load: reads the records.
        study, plan, broadcast, place: as for :func:`compute_sum`; what can fail without records was tried before
            (:mod:`veilsum_privacy.computation.rehearsal`).
    """
    fault: Exception
    try:
        records = load()
    except Exception as error:  # noqa: BLE001  whatever it is, it must not be seen
        records, fault = no_records(study), error
    else:
        try:
            return compute_sum(study, plan, records, broadcast, place)
        except Exception as error:  # noqa: BLE001
            fault = error
        try:
            if isinstance(build_declared(study, plan.declaration), RecordTask):
                return compute_sum(study, plan, records, broadcast, place, singly=True)._replace(fault=fault)
        except Exception:
            LOG.debug("the records cannot be computed on one by one either", exc_info=True)
    try:
        return compute_sum(study, plan, no_records(study), broadcast, place)._replace(fault=fault)
    except Exception:
        LOG.debug("there is no contribution without records either", exc_info=True)
        return SitePart(np.zeros(plan.encoding.size, dtype=np.int64), fault=fault)


def no_records(study: Study) -> Records:
    """What a site without records computes on."""
    empty = np.zeros((0, study.data.width))
    whose = np.zeros(0, dtype=np.int64)
    return Records(empty, np.zeros(empty.shape, dtype=np.bool_), None if study.data.label is None else whose, whose)


def compute_sum(
    study: Study,
    plan: RoundPlan,
    records: Records,
    broadcast: Mapping[str, Floats],
    place: Place | None = None,
    *,
    task: Task | None = None,
    singly: bool = False,
) -> SitePart:
    """Run a round's task at a site: sampled and bounded by the study's unit, on the grid, clamped; before noise is added.

    Args:
        study, plan, records, broadcast, place: of the round and the site.
        task: as :func:`~veilsum_privacy.tasks.build_declared` builds it, for a caller with many sites; None to build it.
        singly: compute on each record by itself, and take it for invalid if that fails; only of a :class:`RecordTask`.

    Returns:
        the vector as it is summed, with one block a site where it is disclosed per site.

    Raises:
        Misuse: the study protects subjects, and nothing tells which records are of one; or nothing was kept.
        HostileInput: the broadcast is not what the task needs.
    """
    place = Place() if place is None else place
    declaration = plan.declaration
    task = build_declared(study, declaration) if task is None else task
    whole_broadcast, broadcast = broadcast, _own_rows(study, task, broadcast, place.index)
    factor = _factor(study, whole_broadcast, place) if task.weighted() else 1.0
    if isinstance(task, DerivedTask):
        found = SitePart(_derive(study, declaration, task, broadcast, place))
    else:
        if declaration.sampling_rate < 1 and not isinstance(task, TrainingTask):
            records = _sampled(study, declaration, records, place.random)
        if singly and isinstance(task, RecordTask):
            rows = _one_by_one(study, declaration, task, records, broadcast, place)
            found = _summed(study, declaration, task, rows, _unit_subjects(study, records), plan)
        elif isinstance(task, TrainingTask):
            mapped = _records(study, declaration, records, broadcast, place)
            found = _train(study, plan, task, mapped, broadcast, place, factor)
        else:
            mapped = _records(study, declaration, records, broadcast, place)
            found = _compute(study, declaration, task, mapped, broadcast, plan, factor)
    if declaration.disclosure == "joint":
        return found
    whole = np.zeros((study.sites, task.layout().size), dtype=np.int64)
    whole[place.index] = found.total
    return found._replace(total=whole.ravel())


def kept_part(study: Study, declaration: TaskDeclaration, noised: Integers, index: int) -> Integers:
    """What a site keeps of its noised vector: its own block."""
    if declaration.disclosure == "joint":
        return noised
    own: Integers = noised.reshape(study.sites, -1)[index].copy()
    return own


def kept_blocks(study: Study, label: str, vector: Integers) -> tuple[dict[str, Floats], dict[str, float]]:
    """Blocks of a kept vector in their own units, and the standard deviation of the site's own noise in each.

    Raises:
        HostileInput: the vector is not one of this task.
    """
    declaration = study.task(label)
    task = build_declared(study, declaration)
    layout, unit = task.layout(), grid_unit(task, declaration)
    if vector.shape != (layout.size,):
        raise HostileInput("A kept vector has another length than its task's.")
    std = task_noise(study, declaration, study.sites).share_std * unit
    return layout.split((vector * unit).astype(np.float64)), layout.noise_std(std)


def _own_rows(study: Study, task: Task, broadcast: Mapping[str, Floats], index: int) -> Mapping[str, Floats]:
    """The broadcast with the site's own row in place of arrays that have one for each participant."""
    rows: dict[str, Floats] = {}
    for name in task.site_arrays():
        array = broadcast.get(name)
        if array is None or array.ndim < 1 or len(array) != study.sites:
            raise HostileInput(f"The broadcast must hold {name}, one row for each participant.")
        rows[name] = array[index]
    return {**broadcast, **rows}


def _factor(study: Study, broadcast: Mapping[str, Floats], place: Place) -> float:
    """What the site's vector is multiplied by, in [0, 1]."""
    cohort = tuple(range(study.sites)) if place.cohort is None else place.cohort
    return float(cohort_factors(broadcast, cohort, study.sites)[cohort.index(place.index)])


def _unit_subjects(study: Study, records: Records) -> Integers | None:
    """Whose record each one is, where the unit of privacy is the subject; None where it is the record."""
    if study.privacy.unit != "subject":
        return None
    if records.subjects is None:
        raise Misuse("The study's unit is the subject, and the dataset names no column that tells subjects apart.")
    return records.subjects


def _sampled(study: Study, declaration: TaskDeclaration, records: Records, random: RandomSource) -> Records:
    """A Poisson sample of the records, drawn by the study's unit."""
    taken = poisson_sample(declaration.sampling_rate, len(records), random, _unit_subjects(study, records))
    labels = None if records.labels is None else records.labels[taken]
    subjects = None if records.subjects is None else records.subjects[taken]
    return Records(records.features[taken], records.present[taken], labels, subjects)


def _train(
    study: Study,
    plan: RoundPlan,
    task: TrainingTask,
    records: Records,
    broadcast: Mapping[str, Floats],
    place: Place,
    factor: float,
) -> SitePart:
    declaration = plan.declaration
    bound = declaration.grid * study.data.max_records
    steps = Steps(
        declaration.local_steps, declaration.sampling_rate, plan.noise, declaration.grid, task.step_clip(), bound, place.random
    )
    trained = task.train(replace(records, subjects=_unit_subjects(study, records)), broadcast, place.state, steps)
    if trained.vector.shape != (task.layout().size,) or not np.isfinite(trained.vector).all():
        raise Misuse("A task gave a vector that is not finite or has the wrong length.")
    if any(not in_range(array) for array in trained.state.values()):
        raise Misuse("A task trained something that is not finite, or out of range.")
    scaled = np.clip(factor * trained.vector / task.clip(), -1.0, 1.0) * declaration.resolution
    return SitePart(np.rint(scaled).astype(np.int64), state=trained.state)


def _compute(
    study: Study,
    declaration: TaskDeclaration,
    task: Task,
    records: Records,
    broadcast: Mapping[str, Floats],
    plan: RoundPlan,
    factor: float,
) -> SitePart:
    subjects = _unit_subjects(study, records)
    size, bound = task.layout().size, plan.encoding.bound
    if isinstance(task, SiteTask):
        scaled = factor * task.vector(replace(records, subjects=subjects), broadcast) / grid_unit(task, declaration)
        if scaled.shape != (size,) or not np.isfinite(scaled).all():
            raise Misuse("A task gave a vector that is not finite or has the wrong length.")
        return SitePart(np.rint(np.clip(scaled, -bound, bound)).astype(np.int64))
    if not isinstance(task, RecordTask):
        raise Misuse(f"The task {task.name} is of no known kind.")
    pieces = None if subjects is not None else task.pieces(records, broadcast)
    if pieces is not None:
        return SitePart(*scattered_sum(pieces, size, task.clip(), declaration.grid, bound))
    return _summed(study, declaration, task, task.vectors(records, broadcast), subjects, plan)


def _summed(
    study: Study,
    declaration: TaskDeclaration,
    task: RecordTask,
    rows: Iterator[Floats],
    subjects: Integers | None,
    plan: RoundPlan,
) -> SitePart:
    size = task.layout().size
    return SitePart(*site_sum(rows, size, task.clip(), declaration.grid, plan.encoding.bound, subjects))


def _one_by_one(
    study: Study,
    declaration: TaskDeclaration,
    task: RecordTask,
    records: Records,
    broadcast: Mapping[str, Floats],
    place: Place,
) -> Iterator[Floats]:
    """A row (1, size) for each record, computed as if it were the only one; not a number where that fails."""
    size = task.layout().size
    for index in range(len(records)):
        one = slice(index, index + 1)
        alone = Records(
            records.features[one],
            records.present[one],
            None if records.labels is None else records.labels[one],
            None if records.subjects is None else records.subjects[one],
        )
        try:
            found = [np.zeros((0, size)), *task.vectors(_records(study, declaration, alone, broadcast, place), broadcast)]
            row = np.concatenate(found)
        except Exception:  # noqa: BLE001  one record's fault is that record's alone
            row = np.full((1, size), np.nan)
        yield row if row.shape == (1, size) else np.zeros((1, size))


def _records(
    study: Study, declaration: TaskDeclaration, records: Records, broadcast: Mapping[str, Floats], place: Place
) -> Records:
    parameters = TASKS[declaration.task].Parameters.model_validate(dict(declaration.parameters))
    if not isinstance(parameters, FeatureParameters):
        return records
    own: dict[str, Any] = {}
    if declaration.source is not None:
        blocks, std = kept_blocks(study, declaration.source, _kept(declaration.source, place))
        own = {"kept": blocks, "noise_std": std}
    return map_records(study, parameters, records, broadcast, index=place.index, encode=place.encode, **own)


def _derive(
    study: Study, declaration: TaskDeclaration, task: DerivedTask, broadcast: Mapping[str, Floats], place: Place
) -> Integers:
    source = declaration.source or ""
    blocks, std = kept_blocks(study, source, _kept(source, place))
    try:
        vector = task.vector(blocks, std, broadcast)
    except (ValueError, ArithmeticError) as error:  # what it computes from is noised, so that it fails tells no more
        raise HostileInput(f"The task {task.name} cannot use what was broadcast.") from error
    if vector.shape != (task.layout().size,) or not np.isfinite(vector).all():
        raise HostileInput("What was broadcast gives no finite vector.")
    scaled = np.clip(vector / task.clip(), -1.0, 1.0) * declaration.grid
    return np.rint(scaled).astype(np.int64)


def _kept(label: str, place: Place) -> Integers:
    if label not in place.kept:
        raise Misuse(f"This site kept no statistic of the task {label!r}.", "It has to take part in that task's round.")
    return place.kept[label]
