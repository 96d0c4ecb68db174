"""A site's part of a round before noise: its task on its records, bounded, on the grid, in the place that disclosure gives it.

Everything that is released passes through :func:`compute_sum`; the participant and the simulation call the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_privacy.clipping import scattered_sum, site_sum
from veilsum_privacy.errors import HostileInput, Misuse
from veilsum_privacy.features import Encode, map_records
from veilsum_privacy.noise import task_noise
from veilsum_privacy.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_privacy.securesum.context import RoundPlan
from veilsum_privacy.steps import Steps, poisson_sample
from veilsum_privacy.study import Study, TaskDeclaration
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
from veilsum_privacy.weights import cohort_factors

Integers = NDArray[np.int64]


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
    """

    total: Integers
    clipped: int = 0
    invalid: int = 0
    state: Mapping[str, Floats] = MappingProxyType({})


def compute_sum(
    study: Study,
    plan: RoundPlan,
    records: Records,
    broadcast: Mapping[str, Floats],
    place: Place | None = None,
    *,
    task: Task | None = None,
) -> SitePart:
    """Run a round's task at a site: sampled and bounded by the study's unit, on the grid, clamped; before noise is added.

    Args:
        study, plan, records, broadcast, place: of the round and the site.
        task: as :func:`~veilsum_privacy.tasks.build_declared` builds it, for a caller with many sites; None to build it.

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
        mapped = _records(study, declaration, records, broadcast, place)
        if isinstance(task, TrainingTask):
            found = _train(study, plan, task, mapped, broadcast, place, factor)
        else:
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
    return SitePart(*site_sum(task.vectors(records, broadcast), size, task.clip(), declaration.grid, bound, subjects))


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
