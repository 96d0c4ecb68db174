"""A site's part in a round of training, which is loaded with the first such round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_privacy.computation.contribution import SitePart, SitePlace, programs_of
from veilsum_privacy.computation.declared import DeclaredPlan, DeclaredTask, Note, mapped_records
from veilsum_privacy.mechanism.answering import Counts, answered
from veilsum_privacy.mechanism.records import Records, join_batches
from veilsum_privacy.mechanism.rows.evaluation import Evaluation, OpaqueMap
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.securesum.array_bytes import in_range

_Evaluate = Callable[[RowGraph, Mapping[str, OpaqueMap], int], Evaluation]


def train(
    plan: DeclaredPlan,
    batches: Iterable[Records],
    broadcast: Mapping[str, Floats],
    place: SitePlace,
    factor: float,
    note: Note,
) -> SitePart:
    """A round of training: its requests are answered by noised sums; the first is made before the first record is read."""
    agreed, terms, counts = plan.task, plan.task.terms, Counts()
    declared, study = plan.declaration, agreed.study
    mapped = _mapping(agreed, broadcast, place)

    def load() -> Records:
        records = join_batches(batches)
        return records if mapped is None else mapped_records(mapped, records, note)

    if plan.noise.kind == "training":
        bound, rate = declared.grid * study.data.max_records, declared.sampling_rate
        steps = place.steps(declared.local_steps, rate, plan.noise, declared.grid, terms.step_clip, bound, place.random)
        training, most = agreed.train(broadcast, place.state, steps.course), rate * study.data.max_records
        evaluate: _Evaluate = Evaluation if place.evaluations is None else place.evaluations.requested
        if (elsewhere := place.elsewhere) is not None:
            evaluate = _elsewhere(evaluate, lambda maps: elsewhere.maps(agreed, broadcast, place.state, maps))
        trained, counts = answered(training, steps, load, most, unit=study.privacy.unit, evaluate=evaluate)
        if counts.fault is not None:
            note(counts.fault)
    elif place.elsewhere is not None:
        trained = place.elsewhere.train(agreed, replace(load(), subjects=None), broadcast, place.state, note)
    else:
        trained = agreed.train_plainly(replace(load(), subjects=None), broadcast, place.state, note)
    if trained.vector.shape != (terms.size,) or not np.isfinite(trained.vector).all():
        raise Misuse("A task gave a vector that is not finite or has the wrong length.")
    if any(not in_range(array) for array in trained.state.values()):
        raise Misuse("A task trained something that is not finite, or out of range.")
    scaled = np.clip(factor * trained.vector / terms.clip, -1.0, 1.0) * plan.declaration.resolution
    return SitePart(np.rint(scaled).astype(np.int64), counts.clipped, counts.invalid, state=trained.state)


def _mapping(agreed: DeclaredTask, broadcast: Mapping[str, Floats], place: SitePlace) -> Evaluation | None:
    """What the site makes of a record before training is given it; None where that is nothing."""
    if not agreed.terms.mapped:
        return None
    graph = agreed.mapped_graph(broadcast, place.given)
    return Evaluation(graph, programs_of(graph, place.given))


def _elsewhere(evaluate: _Evaluate, maps: Callable[[Mapping[str, OpaqueMap]], Mapping[str, OpaqueMap]]) -> _Evaluate:
    return lambda graph, given, most: evaluate(graph, maps(given), most)
