"""A task tried without records: what it would fail on is found, and refused, before anything of a site's data is read.

A refusal tells whoever chose the task whatever it depends on. So all that can go wrong for a declaration or a broadcast has to
go wrong here, on no record and on made-up ones; afterwards a site contributes
(:func:`veilsum_privacy.computation.contribution.contribute`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.alignment import example_reference
from veilsum_aggregation.feature_moments import FeatureMoments, reference_arrays
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.computation.contribution import Place, compute_sum, kept_part, no_records
from veilsum_privacy.securesum.context import plan_round
from veilsum_privacy.study.encoder import Projection, projection_digest
from veilsum_privacy.study.study import Study, TaskDeclaration
from veilsum_privacy.tasks import build_declared
from veilsum_privacy.tasks.base import FeatureParameters, Floats, Records, Task, TrainingTask
from veilsum_privacy.tasks.evaluation import Evaluation
from veilsum_privacy.tasks.feature_maps import ALIGNMENT_MATRIX, ALIGNMENT_OFFSET, ENCODER_MATRIX, ENCODER_OFFSET
from veilsum_privacy.tasks.power_moments import columns_of_moments
from veilsum_privacy.training.arrays import from_broadcast
from veilsum_privacy.training.released import model_digest

COPIES = 1000
"""How often made-up records are counted in a made-up kept statistic, so that it stands out from its noise."""


def rehearse(study: Study, label: str, broadcast: Mapping[str, Floats] | None = None) -> None:
    """Run a declared task on no record and on made-up ones; training takes one step for each of its rounds.

    Args:
        study: as agreed.
        label: of the task.
        broadcast: what a round broadcasts; None for a made-up legal one.

    Raises:
        HostileInput: it fails. No record had a part in that.
        Misuse: its noise or its encoding cannot be planned.
    """
    declared = study.task(label)
    build_declared(study, declared)
    tried = _shortened(study, label)
    tried, arrays = _made_up(tried, label) if broadcast is None else (tried, broadcast)
    plan = plan_round(tried, label, tried.sites, tried.sites)
    width = tried.data.width if tried.encoder is None or isinstance(tried.encoder, Projection) else tried.encoder.width
    try:
        for number in (0, COPIES) if declared.source else (0,):
            place = Place(0, _kept(tried, plan.declaration, number))
            for records in (_none(tried, width), _records(tried, width)):
                compute_sum(tried, plan, records, arrays, place)
    except (HostileInput, Misuse) as error:
        raise HostileInput(f"Task {label!r} cannot be computed: {error.message}", error.advice) from error
    except Exception as error:
        raise HostileInput(f"Task {label!r} fails on made-up records: {type(error).__name__}.") from error


def legal_broadcast(study: Study, label: str) -> dict[str, Floats]:
    """A made-up broadcast of everything that a task reads, but for arrays that the study names by their digest.

    Raises:
        HostileInput: the study's declaration of the task is wrong.
    """
    return _made_up(study, label)[1]


def made_up_statistics(study: Study, label: str) -> dict[str, NDArray[np.int64]]:
    """What a site with many copies of the made-up records would have kept of the task that another one computes from.

    Returns:
        The vector without noise, in grid units, by its task's label; empty for a task that computes from none.
    """
    return _kept(study, study.task(label), COPIES)


def _shortened(study: Study, label: str) -> Study:
    """The study with all records in every sample, and its training cut to the shortest that there is."""
    declared = study.task(label)
    if isinstance(build_declared(study, declared), TrainingTask):
        parameters = {**declared.parameters, "local_steps": 1, "epochs": 1}
        steps = declared.local_steps - int(declared.parameters["local_steps"]) + 1 if declared.local_steps else 0
        declared = declared.model_copy(update={"parameters": parameters, "local_steps": steps})
    return _with_task(study, declared.model_copy(update={"sampling_rate": 1.0}))


def _made_up(study: Study, label: str) -> tuple[Study, dict[str, Floats]]:
    """A legal broadcast for a task, and the study that it is legal for: where that names arrays by their digest, these."""
    declared, sites = study.task(label), study.sites
    task = build_declared(study, declared)
    arrays = task.example_broadcast(sites)
    if isinstance(task, Evaluation):
        model = from_broadcast(arrays, task.architecture.shapes())
        parameters = {**declared.parameters, "sha256": model_digest(task.architecture, model)}
        study = _with_task(study, declared.model_copy(update={"parameters": parameters}))
    if isinstance(study.encoder, Projection):
        shape = (study.encoder.width, study.encoder.inputs)
        matrix, offset = np.eye(*shape), np.zeros(shape[0])
        encoder = study.encoder.model_copy(update={"sha256": projection_digest(matrix, offset)})
        study = study.model_copy(update={"encoder": encoder})
        arrays |= {ENCODER_MATRIX: matrix, ENCODER_OFFSET: offset}
    return study, arrays | _alignment(study, task)


def _alignment(study: Study, task: Task) -> dict[str, Floats]:
    parameters: Any = getattr(task, "parameters", None)
    if not isinstance(parameters, FeatureParameters) or parameters.alignment is None:
        return {}
    alignment, width = parameters.alignment, parameters.dimension(study.data)
    if alignment.kind == "broadcast":
        matrices = np.broadcast_to(np.eye(width), (study.sites, width, width))
        return {ALIGNMENT_MATRIX: matrices, ALIGNMENT_OFFSET: np.zeros((study.sites, width))}
    if alignment.moments is None:
        return example_reference(alignment.kind, width, len(study.data.classes))
    channels = alignment.moments.channels
    m = len(columns_of_moments(study.data, parameters.width, channels)) if channels is None else channels
    told = np.full(m, 2, dtype=np.int64)
    return reference_arrays(FeatureMoments(1.0, np.zeros(m), np.ones(m), np.zeros(m), np.full(m, 3.0), told, np.zeros((4, m))))


def _with_task(study: Study, declaration: TaskDeclaration) -> Study:
    tasks = tuple(declaration if task.label == declaration.label else task for task in study.tasks)
    return study.model_copy(update={"tasks": tasks})


def _kept(study: Study, declaration: TaskDeclaration, copies: int) -> dict[str, NDArray[np.int64]]:
    """The vector that a site with so many copies of the made-up records would have kept, without noise."""
    if declaration.source is None:
        return {}
    source, arrays = _made_up(study, declaration.source)
    plan = plan_round(source, declaration.source, source.sites, source.sites)
    records = _records(source, source.data.width if source.encoder is None else source.encoder.size)
    total = compute_sum(source, plan, records, arrays, Place(0)).total
    return {declaration.source: copies * kept_part(source, plan.declaration, total, 0)}


def _none(study: Study, width: int) -> Records:
    empty = no_records(study)
    return Records(np.zeros((0, width)), np.zeros((0, width), dtype=np.bool_), empty.labels, empty.subjects)


def _records(study: Study, width: int) -> Records:
    """Made-up records: in the middle, at both ends of all bounds, of every pattern of low and high, and with nothing known."""
    features = np.array([[0.0], [1.0], [-1.0], [1.0], [0.0]]) * np.ones(width)
    features[3, ::2] = -1.0
    present = np.ones(features.shape, dtype=np.bool_)
    present[4] = False
    classes = len(study.data.classes)
    labels = np.array([0, classes - 1, 0, classes - 1, -1], dtype=np.int64) if classes else None
    return Records(features, present, labels, np.array([0, 1, 2, 2, 3], dtype=np.int64))
