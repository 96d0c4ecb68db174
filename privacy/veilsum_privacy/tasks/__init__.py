"""The registered tasks: what a study may ask for by name. Nothing outside this list is ever computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from veilsum_node.config import did_you_mean, explain
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import LARGEST, SMALLEST, Frozen
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study, TaskDeclaration
from veilsum_privacy.tasks.aligned_moments import AlignedMoments
from veilsum_privacy.tasks.barycenter_step import BarycenterStep
from veilsum_privacy.tasks.base import Alignment, DerivedTask, FeatureParameters, RecordTask, SiteTask, Task, TrainingTask
from veilsum_privacy.tasks.class_mixtures import ClassMixtures
from veilsum_privacy.tasks.class_moments import ClassMoments
from veilsum_privacy.tasks.evaluation import Evaluation
from veilsum_privacy.tasks.feature_means import FeatureMeans
from veilsum_privacy.tasks.gaussian_moments import GaussianMoments
from veilsum_privacy.tasks.gradient import Gradient
from veilsum_privacy.tasks.grams import Grams
from veilsum_privacy.tasks.local_head import LocalHead
from veilsum_privacy.tasks.local_training import LocalTraining
from veilsum_privacy.tasks.power_moments import PowerMoments, PowerMomentsParameters
from veilsum_privacy.tasks.prototypes import Prototypes
from veilsum_privacy.tasks.statistics import Statistics
from veilsum_privacy.tasks.two_way_step import TwoWayStep
from veilsum_privacy.tasks.within_moments import WithinMoments, WithinMomentsParameters

_ALL: tuple[type[Task], ...] = (
    Statistics,
    FeatureMeans,
    GaussianMoments,
    ClassMoments,
    Prototypes,
    ClassMixtures,
    LocalHead,
    LocalTraining,
    Gradient,
    Grams,
    BarycenterStep,
    TwoWayStep,
    AlignedMoments,
    PowerMoments,
    WithinMoments,
    Evaluation,
)

TASKS: Mapping[str, type[Task]] = {task.name: task for task in _ALL}
"""Every task by name."""


def build_task(name: str, parameters: Mapping[str, Any], schema: DatasetSchema) -> Task:
    """Build a task as a study declares it.

    Raises:
        HostileInput: no such task, parameters that it does not accept, or a schema that it does not fit.
    """
    if name not in TASKS:
        raise HostileInput(f"There is no task {name!r}.", did_you_mean(name, TASKS))
    kind = TASKS[name]
    try:
        return kind(kind.Parameters.model_validate(dict(parameters)), schema)
    except ValidationError as error:
        raise HostileInput(f"Task {name!r} has invalid parameters: {' '.join(explain(error, kind.Parameters))}") from error
    except Misuse as error:
        raise HostileInput(error.message, error.advice) from error
    except ArithmeticError as error:  # a number so small, or so large, that nothing can be computed from it
        raise HostileInput(f"Task {name!r} has parameters out of range: {error}.") from error


_BUILT: dict[tuple[int, int], tuple[Study, TaskDeclaration, type[Task] | None, Task]] = {}
_MOST_BUILT = 64


def build_declared(study: Study, declaration: TaskDeclaration) -> Task:
    """Build a task of a study and check that the declaration suits its kind. Remembered for the very same study and
    declaration, for every message of a round needs it.

    Only a derived task may go without noise in a study that has noise, for it reads no record. Features that an encoder or an
    alignment made come only to tasks that state their width, and are aligned only as declared.

    Raises:
        HostileInput: the task cannot be built, or its declaration contradicts it.
    """
    key, kind = (id(study), id(declaration)), TASKS.get(declaration.task)
    known = _BUILT.get(key)
    if known is not None and known[0] is study and known[1] is declaration and known[2] is kind:
        return known[3]
    task = _build_declared(study, declaration)
    if len(_BUILT) >= _MOST_BUILT:
        _BUILT.clear()
    _BUILT[key] = study, declaration, kind, task
    return task


def _build_declared(study: Study, declaration: TaskDeclaration) -> Task:
    task = build_task(declaration.task, declaration.parameters, study.data)
    what = f"Task {declaration.label!r}"
    _check_magnitudes(task, declaration)
    if declaration.disclosure not in task.disclosures:
        raise HostileInput(f"{what} cannot be disclosed {declaration.disclosure}.")
    derived = isinstance(task, DerivedTask)
    if derived and (declaration.source is None or declaration.variance != 0 or declaration.keep):
        raise HostileInput(f"{what} computes from what a site kept; it needs a source and has no noise of its own.")
    if not derived and declaration.variance == 0 and study.privacy.noise != "none":
        raise HostileInput(f"{what} reads records and must have noise.")
    if not derived and declaration.grid > LARGEST_SENSITIVITY:
        raise HostileInput(f"{what} has a grid above 2^26.")
    if isinstance(task, SiteTask | TrainingTask) and declaration.keep:
        raise HostileInput(f"{what} cannot be kept: it is no sum over records.")
    if derived and declaration.sampling_rate < 1:
        raise HostileInput(f"{what} reads no record that could be sampled.")
    trains, noisy = isinstance(task, TrainingTask), study.privacy.noise != "none"
    if (declaration.local_steps > 0) != (trains and noisy) or (declaration.resolution > 0) != trains:
        raise HostileInput(f"{what} has steps and a resolution exactly if it trains at the site, steps only with noise.")
    if isinstance(task, TrainingTask) and noisy and declaration.local_steps != task.noised_sums():
        raise HostileInput(f"{what} takes {task.noised_sums()} noised steps a release; the study declares another number.")
    if isinstance(task, TrainingTask) and noisy and declaration.grid < 2 * math.sqrt(task.step_size()):
        raise HostileInput(f"{what} has too coarse a grid for steps of {task.step_size()} values.")
    if task.weighted() and (derived or isinstance(task, RecordTask) or declaration.disclosure != "joint"):
        raise HostileInput(f"{what} cannot be weighted: it is no joint sum of one vector a site.")
    if study.privacy.noise != "none" and (reason := task.only_without_noise()) is not None:
        raise HostileInput(f"{what} {reason}; that is for studies without noise only.")
    width = study.data.width if study.encoder is None else study.encoder.width
    if declaration.source is not None:
        _check_source(study, declaration, task, width)
    parameters = TASKS[declaration.task].Parameters.model_validate(dict(declaration.parameters))
    if not isinstance(parameters, FeatureParameters):
        return task
    alignment = parameters.alignment
    moved = alignment is not None and alignment.moments is None
    if parameters.width is None and (study.encoder is not None or moved):
        raise HostileInput(f"{what} must state the width of the features that an encoder or an alignment makes.")
    if parameters.width not in (None, width):
        raise HostileInput(f"{what} has a width of {parameters.width}; its features have {width} dimensions.")
    own = alignment is not None and alignment.kind != "broadcast"
    if own != (declaration.source is not None):
        raise HostileInput(f"{what} needs a source exactly if the site makes its own alignment.")
    return task


def _check_magnitudes(task: Task, declaration: TaskDeclaration) -> None:
    """Insist that no number of the task is so small, or so large, that arithmetic could fail on some records only."""
    try:
        unit, clip = grid_unit(task, declaration), task.clip()
        numbers = [clip, unit, task.step_clip() if isinstance(task, TrainingTask) else clip]
        for block in task.layout().blocks:
            numbers += [block.weight, clip / block.weight, unit / block.weight]
    except ArithmeticError as error:
        raise HostileInput(f"Task {declaration.label!r} has parameters out of range: {error}.") from error
    if odd := [number for number in numbers if not SMALLEST <= number <= LARGEST]:
        raise HostileInput(
            f"Task {declaration.label!r} leads to a bound, a weight or a unit of {odd[0]:g}.",
            f"All of them must lie within {SMALLEST:g} and {LARGEST:g}: change its clip norm or its weights.",
        )


def _check_source(study: Study, declaration: TaskDeclaration, task: Task, width: int) -> None:
    """Insist that a source is of a task, and of features, that can be computed from."""
    try:
        source = study.task(declaration.source or "")
    except KeyError as error:
        raise HostileInput(f"The study has no task {declaration.source!r} for {declaration.label!r}.") from error
    parameters = TASKS[declaration.task].Parameters.model_validate(dict(declaration.parameters))
    alignment = getattr(parameters, "alignment", None)
    names = task.sources if isinstance(task, DerivedTask) else ("gaussian-moments", "class-moments")
    if alignment is not None and alignment.kind in ("two-way", "slopes"):
        names = ("class-moments",)
    elif alignment is not None and alignment.kind == "moments":
        names = ("power-moments",)
    given = TASKS[source.task].Parameters.model_validate(dict(source.parameters)) if source.task in names else None
    own = given.dimension(study.data) if isinstance(given, FeatureParameters) else 0
    wanted = task.dimension if isinstance(task, DerivedTask) else width
    if own != wanted or getattr(given, "second", "pooled") not in ("pooled", "class"):
        raise HostileInput(f"Task {declaration.label!r} cannot compute from what {source.label!r} keeps.")
    if isinstance(given, PowerMomentsParameters) and not _same_moments(parameters, alignment, given):
        raise HostileInput(f"Task {declaration.label!r} takes other moments than {source.label!r} keeps.")


def _same_moments(parameters: Frozen, alignment: Alignment | None, given: PowerMomentsParameters) -> bool:
    """Whether a task reads the power sums of a source as that source makes them."""
    if isinstance(parameters, WithinMomentsParameters):
        return parameters.channels == given.channels and parameters.width == given.width
    use = None if alignment is None else alignment.moments
    if use is None or use.order > given.order:
        return False
    in_box = isinstance(parameters, FeatureParameters) and parameters.width == given.width
    return in_box and use.channels == given.channels and use.bound == given.clip


def grid_unit(task: Task, declaration: TaskDeclaration) -> float:
    """What one grid unit is worth in the task's weighted vector.

    A record's vector is truncated towards zero, so its norm bound C becomes the whole grid c. A site's vector is rounded,
    which moves each of its d values by half a unit at most: two such vectors that differ by C come to differ by at most
    C / u + sqrt(d) units, which is c for u = C / (c - sqrt(d)).

    Raises:
        HostileInput: the grid is too coarse for a vector of this length.
    """
    if isinstance(task, TrainingTask):
        return task.clip() / declaration.resolution  # rounded, with its noise in it already
    if not isinstance(task, SiteTask):
        return task.clip() / declaration.grid
    left = declaration.grid - math.sqrt(task.layout().size)
    if left < declaration.grid / 2:
        raise HostileInput(f"Task {declaration.label!r} has too coarse a grid for a vector of {task.layout().size} values.")
    return task.clip() / left


LARGEST_SENSITIVITY = 2**26
"""Largest grid of a task that reads records."""
