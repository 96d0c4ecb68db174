"""A task tried without records: what it would fail on is found, and refused, before anything of a site's data is read.

A refusal tells whoever chose the task whatever it depends on. So all that can go wrong for a declaration or a broadcast has to
go wrong here, on no record and on made-up ones; afterwards a site contributes
(:func:`veilsum_privacy.computation.contribution.contribute`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.alignment import example_reference
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.feature_moments import FeatureMoments, reference_arrays
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.computation.contribution import SitePlace, compute_sum, no_records
from veilsum_privacy.computation.made_up import FEW, encoded_records, how_many, made_up_records, plain_records
from veilsum_privacy.mechanism.steps import Steps
from veilsum_privacy.securesum.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.study.encoder import Projection, projection_digest
from veilsum_privacy.study.study import Study, TaskDeclaration
from veilsum_privacy.tasks.base import Records, RowTask, Task, TrainingTask
from veilsum_privacy.tasks.feature_maps import ALIGNMENT_MATRIX, ALIGNMENT_OFFSET, ENCODER_MATRIX, ENCODER_OFFSET
from veilsum_privacy.tasks.model_tables import ModelTables
from veilsum_privacy.tasks.power_moments import columns_of_moments
from veilsum_privacy.training.arrays import from_broadcast
from veilsum_privacy.training.released import model_digest

LOG = logging.getLogger("veilsum.participant")

COPIES = 1000
"""How often made-up records are counted in a made-up kept statistic, so that it stands out from its noise."""


SMALL = 2**14
"""Values of a broadcast up to which a task is tried on a few records again, for each round's values; beyond, on none."""


def rehearse(
    agreed: AgreedTask, broadcast: Mapping[str, Floats] | None = None, *, again: Records | None = None
) -> Mapping[str, Floats]:
    """Trace a task, or run it on no record and on made-up ones; training takes one step for each of its rounds.

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
        if isinstance(task, RowTask) and not task.maps(arrays) and not task.computes_from():
            given = [none]  # it is traced, and nothing that a record holds makes a graph fail
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
    """The first of the made-up records of a task: complete ones, at bounds."""
    return _made_up(agreed.study, agreed.task, few=True)


def _made_up(study: Study, task: Task[Any], *, few: bool = False) -> Records:
    """Records to try a task on: as the site reads them, or already encoded where a program does that."""
    encoder = study.encoder
    if task.features is not None and not (encoder is None or isinstance(encoder, Projection)):
        return encoded_records(encoder.width, len(study.data.classes))
    most = FEW if few else how_many(task.layout().size, study.data.width)
    return made_up_records(study.data, most, first=few)


def _width(study: Study, task: Task[Any]) -> int:
    """Features of the records that a task is given."""
    encoder = study.encoder
    return study.data.width if task.features is None or encoder is None or isinstance(encoder, Projection) else encoder.width
