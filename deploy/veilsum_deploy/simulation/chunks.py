"""The part of many sites in a round of a simulation, computed together where that is the same sum.

A task of one vector a record is a sum over all records, whoever holds them: rows depend on their own record alone and are
integers before they are added, so records of many sites are summed as one, to the bit. Of perceptrons gradients are computed
(:mod:`veilsum_deploy.simulation.gradients`) and models trained side by side, the latter the same up to rounding
(:mod:`veilsum_deploy.simulation.trainer`). All else goes site by site, as at a participant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_deploy.evaluation import pool
from veilsum_deploy.simulation.engines import Shared
from veilsum_deploy.simulation.gradients import Vectors, perceptron_vectors
from veilsum_deploy.simulation.trainer import SiteTraining, site_training
from veilsum_deploy.simulation.walk import of_system, sampled
from veilsum_node.errors import Misuse
from veilsum_node.randomness import RandomSource
from veilsum_privacy.computation.contribution import Evaluations, SitePlace, compute_sum, on_grid, task_sum
from veilsum_privacy.mechanism.noise import NoisePlan, discrete_gaussian, gaussian_around
from veilsum_privacy.mechanism.weights import cohort_factors
from veilsum_privacy.securesum.agreed import AgreedStudy, AgreedTask, RoundPlan
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records, RowTask, Task
from veilsum_privacy.tasks.feature_maps import ENCODER_MATRIX, ENCODER_OFFSET, Encode, map_records
from veilsum_privacy.tasks.parameters import FeatureParameters

State = Mapping[str, Floats]

LARGEST_STACK = 2**27
"""Most values of the vectors of sites that are held at a time."""


@dataclass(frozen=True)
class Chunk:
    """Some sites of a round's cohort.

    Attributes:
        sites, broadcast: shared by all chunks.
        label: of the task.
        cohort: places of all members among the study's participants.
        members: those of the chunk.
        sources: where the members' samples and noise come from.
        states: what they trained in their last round of the task.
        kept: noised vectors that they kept, by label.
        batched: whether they may be computed together.
        rounded: whether even where that is the same up to rounding only.
    """

    sites: Shared[Sites]
    broadcast: Shared[Mapping[str, Floats]]
    label: str
    cohort: tuple[int, ...]
    members: tuple[int, ...]
    sources: tuple[RandomSource, ...]
    states: tuple[State, ...]
    kept: tuple[Mapping[str, Integers], ...]
    batched: bool = True
    rounded: bool = True


class Part(NamedTuple):
    """A chunk's part of a round.

    Attributes:
        total: sum of the members' noised vectors, in grid units.
        sources: of the members, as the round left them.
        states: of the members after the round.
        kept: what each member keeps of this task; empty unless the task is kept.
    """

    total: Integers
    sources: tuple[RandomSource, ...]
    states: tuple[State, ...]
    kept: tuple[Integers, ...] = ()


class Prepared(NamedTuple):
    """What a task's rounds with cohorts of one size have in common.

    Attributes:
        vectors: gives the vectors of many sites at once; None where the task goes site by site.
        together: whether a chunk's sites may be computed as one: nothing that a site does depends on which site it is.
        training: trains many sites at once, up to rounding; None where sites do not train, or one by one.
    """

    task: Task[Any]
    plan: RoundPlan
    vectors: Vectors | None
    parameters: FeatureParameters | None
    together: bool
    training: SiteTraining | None


class Sites:
    """What stays the same in all rounds of a simulation, and what this process remembers of it.

    Sent to another process, it begins there without what it remembers.

    Args:
        study: that is simulated.
        records: of each participant, in the study's order; encoded already where ``encode`` is None.
        encode: the study's program.
    """

    def __init__(self, study: Study, records: tuple[Records, ...], encode: Encode | None = None) -> None:
        self.study, self.records, self.encode, self.agreed = study, records, encode, AgreedStudy(study)
        self.prepared = lru_cache(maxsize=64)(self._prepared)
        self.pooled = lru_cache(maxsize=2)(self._pooled)
        self._mapped: dict[tuple[tuple[int, ...], str], tuple[list[Floats | None], Records | None]] = {}

    def __reduce__(self) -> tuple[type[Sites], tuple[Study, tuple[Records, ...], Encode | None]]:
        return Sites, (self.study, self.records, self.encode)

    def _prepared(self, label: str, cohort: int) -> Prepared:
        agreed = self.agreed.task(label)
        task = agreed.task
        vectors = perceptron_vectors(task)
        together = _alike(agreed) and (isinstance(task, RowTask) or vectors is not None)
        return Prepared(task, agreed.plan(cohort, cohort), vectors, task.features, together, site_training(agreed))

    def _pooled(self, members: tuple[int, ...]) -> Records:
        """The records of sites as one; ``subjects`` says whose each is: 0 for the first of the members and so on."""
        parts = [self.records[index] for index in members]
        return replace(pool(parts), subjects=np.repeat(np.arange(len(parts)), [len(part) for part in parts]))

    def features(
        self, members: tuple[int, ...], parameters: FeatureParameters, broadcast: Mapping[str, Floats]
    ) -> Records | None:
        """The pooled records' features where the study's encoder alone makes them, which is the same in every round; None
        where there is nothing to remember, or where a task's part of the records is not all of them."""
        if self.study.encoder is None:
            return None
        arrays = [broadcast.get(name) for name in (ENCODER_MATRIX, ENCODER_OFFSET)]
        key = (members, parameters.model_dump_json())
        held = self._mapped.get(key)
        if held is not None and all(_same(one, other) for one, other in zip(held[0], arrays, strict=True)):
            return held[1]
        pooled = self.pooled(members)
        whole = map_records(self.study, parameters, pooled, broadcast, index=0, encode=self.encode)
        self._mapped = {key: (arrays, whole if len(whole) == len(pooled) else None)}
        return self._mapped[key][1]


def _same(one: Floats | None, other: Floats | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


def compute_chunk(chunk: Chunk) -> Part:
    """The part of a chunk's sites, with their noise."""
    sites, broadcast = chunk.sites.get(), chunk.broadcast.get()
    own = sites.prepared(chunk.label, len(chunk.cohort))
    task, plan = own.task, own.plan
    total: Integers | None = None
    vectors, training = own.vectors, own.training
    if chunk.batched and own.together:
        if vectors is not None and _in_one_call(chunk, plan):
            total = _vector_sum(sites, chunk, own, broadcast, lambda x, offsets, _: vectors(x, offsets, broadcast))
        elif isinstance(task, RowTask) and _unclamped(sites, chunk):
            total = _record_sum(sites, chunk, own, task, broadcast)
    elif chunk.batched and chunk.rounded and training is not None and _in_one_call(chunk, plan):

        def trained(x: Records, offsets: Integers, part: slice) -> Floats:
            return training.vectors(x, offsets, broadcast, chunk.members[part], plan.noise, chunk.sources[part])

        total = _vector_sum(sites, chunk, own, broadcast, trained)
    if total is not None:
        return Part(_all_noised(plan, chunk, total), chunk.sources, chunk.states)
    total = np.zeros(plan.encoding.size, dtype=np.int64)
    states, kept, evaluations = [], [], Evaluations()
    once = all(map(of_system, chunk.sources)) and not plan.declaration.keep
    for place, source, state, held in zip(chunk.members, chunk.sources, chunk.states, chunk.kept, strict=True):
        where = SitePlace(place, held, sites.encode, chunk.cohort, state, source, evaluations=evaluations)
        part = compute_sum(plan, sites.records[place], broadcast, where)
        states.append(part.state or state)
        if once:
            total += part.total
            continue
        noised = plan.noised(part.total, place, source)
        total += noised
        if plan.declaration.keep:
            kept.append(plan.task.kept_part(noised, place))
    if once:
        total = _all_noised(plan, chunk, total)
    return Part(total, chunk.sources, tuple(states), tuple(kept))


def _in_one_call(chunk: Chunk, plan: RoundPlan) -> bool:
    """Whether sites may draw together what depends on their records: from seeded sources each draws its own, by itself."""
    apart = plan.noise.kind == "training" or plan.declaration.unrounded
    return not apart or all(map(of_system, chunk.sources))


def _all_noised(plan: RoundPlan, chunk: Chunk, total: Integers) -> Integers:
    """The members' parts with their noise, in grid units, from the sum of :attr:`SitePart.total`.

    Of unrounded vectors the sum is drawn at once around the real sum, from the system's source: that it is distributed alike
    is proven at :func:`veilsum_privacy.mechanism.noise.gaussian_around`.
    """
    if not plan.declaration.unrounded:
        return total + _all_noise(plan, chunk)
    shares = 1 if plan.declaration.own_noise else len(chunk.members)
    return gaussian_around(total, shares * plan.spread, chunk.sources[0])


def _all_noise(plan: RoundPlan, chunk: Chunk) -> Integers:
    """What the chunk's members add, added up; each in its own block where the noise belongs there."""
    if not plan.declaration.own_noise:
        return _noise(plan.noise, plan.encoding.size, chunk.sources)
    total = np.zeros(plan.encoding.size, dtype=np.int64)
    for place, source in zip(chunk.members, chunk.sources, strict=True):
        total += plan.draw_noise(place, source)
    return total


def _noise(plan: NoisePlan, size: int, sources: Sequence[RandomSource]) -> Integers:
    """The members' noise, added up.

    From the system's source it is drawn as one discrete Gaussian of their variances' sum. For shares of a standard deviation
    of at least 4 grid units, the least that a plan accepts, the ratio of the two distributions is within
    10 n exp(-pi^2 16) < 1e-64 of 1 everywhere (Kairouz, Liu and Steinke 2021, "The distributed discrete Gaussian mechanism").
    """
    if not plan.drawn:
        return np.zeros(size, dtype=np.int64)
    if all(map(of_system, sources)):
        return discrete_gaussian(len(sources) * plan.share_variance, size, sources[0])
    total = np.zeros(size, dtype=np.int64)
    for source in sources:
        total += plan.draw(size, source)
    return total


def _alike(agreed: AgreedTask) -> bool:
    """Whether sites do the same whoever they are, so that their records may stand side by side."""
    if agreed.per_site or agreed.declaration.keep or agreed.source is not None or agreed.task.site_arrays():
        return False
    return agreed.study.privacy.unit == "record" and agreed.task.alignment is None


def _unclamped(sites: Sites, chunk: Chunk) -> bool:
    """Whether no site's sum over records can reach the clamp: it has no more records than the clamp was made for."""
    most = max((len(sites.records[index]) for index in chunk.members), default=0)
    return most <= sites.study.data.max_records


def _features(sites: Sites, chunk: Chunk, own: Prepared, broadcast: Mapping[str, Floats]) -> Records:
    """The records that take part, of all the chunk's sites, as the task sees them."""
    records = sites.pooled(chunk.members)
    known = None if own.parameters is None else sites.features(chunk.members, own.parameters, broadcast)
    if own.plan.declaration.sampling_rate < 1 and own.training is None:  # who trains draws its own samples
        counts = np.array([len(sites.records[index]) for index in chunk.members])
        taken = np.flatnonzero(sampled(own.plan.declaration.sampling_rate, counts, chunk.sources))
        records, known = records.take(taken), None if known is None else known.take(taken)
    if known is not None:
        return known
    if own.parameters is None:
        return records
    return map_records(sites.study, own.parameters, records, broadcast, index=0, encode=sites.encode)


def _record_sum(sites: Sites, chunk: Chunk, own: Prepared, task: RowTask[Any], broadcast: Mapping[str, Floats]) -> Integers:
    records = replace(_features(sites, chunk, own, broadcast), subjects=None)
    return task_sum(task, records, broadcast, own.plan.declaration.grid).total


def _vector_sum(
    sites: Sites,
    chunk: Chunk,
    own: Prepared,
    broadcast: Mapping[str, Floats],
    vectors_of: Callable[[Records, Integers, slice], Floats],
) -> Integers:
    """Vectors of all sites, each weighed, on the grid and clamped as at its own site, added up.

    Args:
        sites, chunk, own, broadcast: of the round.
        vectors_of: gives vectors (n, size) of n sites: of their records, where each site's begin (n + 1,), and which of the
            chunk's members they are.
    """
    count, size, plan = len(chunk.members), own.task.layout().size, own.plan
    records, factors = _features(sites, chunk, own, broadcast), _factors(sites, chunk, own.task, broadcast)
    owners = np.zeros(0, dtype=np.int64) if records.subjects is None else records.subjects
    offsets = np.searchsorted(owners, np.arange(count + 1)).astype(np.int64)
    plain, total = replace(records, subjects=None), np.zeros(size, dtype=np.int64)
    step = max(1, LARGEST_STACK // size)
    for start in range(0, count, step):
        part = slice(start, min(start + step, count))
        borders = offsets[part.start : part.stop + 1]
        vectors = vectors_of(plain.take(slice(int(borders[0]), int(borders[-1]))), borders - borders[0], part)
        if vectors.shape != (part.stop - part.start, size) or not np.isfinite(vectors).all():
            raise Misuse("A task gave a vector that is not finite or has the wrong length.")
        total += on_grid(plan, factors[part, None] * vectors / plan.task.unit).sum(axis=0)
    return total


def _factors(sites: Sites, chunk: Chunk, task: Task[Any], broadcast: Mapping[str, Floats]) -> Floats:
    """What the members' vectors are multiplied by."""
    if not task.weighted():
        return np.ones(len(chunk.members))
    where = {place: index for index, place in enumerate(chunk.cohort)}
    factors = cohort_factors(broadcast, chunk.cohort, sites.study.sites)
    return factors[[where[place] for place in chunk.members]]
