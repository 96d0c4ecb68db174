"""The part of many sites in a round of a simulation, computed together where that is the same sum.

A task of one vector a record is a sum over all records, whoever holds them: rows depend on their own record alone and are
integers before they are added, so records of many sites are summed as one, to the bit. A task of one vector a site may offer
``vectors_of_sites`` (:class:`BatchTask`). Perceptrons are trained side by side, the same up to rounding
(:mod:`veilsum_deploy.simulation.trainer`). All else goes site by site, as at a participant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from veilsum_deploy.simulation.engines import Shared
from veilsum_deploy.simulation.gradients import Vectors, perceptron_vectors
from veilsum_deploy.simulation.trainer import SiteTraining, site_training
from veilsum_deploy.simulation.walk import of_system
from veilsum_node.errors import Misuse
from veilsum_node.randomness import RandomSource
from veilsum_privacy.computation.contribution import SitePlace, compute_sum, on_grid
from veilsum_privacy.mechanism.clipping import scattered_sum, site_sum
from veilsum_privacy.mechanism.noise import NoisePlan, discrete_gaussian, gaussian_around
from veilsum_privacy.mechanism.steps import poisson_sample
from veilsum_privacy.mechanism.weights import cohort_factors
from veilsum_privacy.securesum.agreed import AgreedStudy, AgreedTask, RoundPlan
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Floats, Records, RecordTask, Task
from veilsum_privacy.tasks.feature_maps import ENCODER_MATRIX, ENCODER_OFFSET, Encode, map_records
from veilsum_privacy.tasks.parameters import FeatureParameters

Integers = NDArray[np.int64]
State = Mapping[str, Floats]

LARGEST_STACK = 2**27
"""Most values of the vectors of sites that are held at a time."""


@runtime_checkable
class BatchTask(Protocol):
    """What a task of one vector a site may offer where many sites are computed faster together."""

    def vectors_of_sites(self, records: Records, offsets: Integers, broadcast: Mapping[str, Floats]) -> Floats:
        """The vectors (n, size) of n sites; row i is that of records[offsets[i]:offsets[i + 1]], to rounding.

        Args:
            records: of all the sites, one after the other; each record is a unit of its own.
            offsets: (n + 1,) where each site's records begin, and the end.
            broadcast: arrays that everyone received.
        """
        ...


@dataclass(frozen=True)
class Sites:
    """What stays the same in all rounds of a simulation.

    Attributes:
        study: that is simulated.
        records: of each participant, in the study's order; encoded already where ``encode`` is None.
        encode: the study's program.
    """

    study: Study
    records: tuple[Records, ...]
    encode: Encode | None = None


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


class Remembered:
    """What this process remembers of a simulation: its tasks, and records of many sites as one."""

    def __init__(self, sites: Sites) -> None:
        self.sites, self.agreed = sites, AgreedStudy(sites.study)
        self.prepared = lru_cache(maxsize=64)(self._prepared)
        self.pooled = lru_cache(maxsize=2)(self._pooled)
        self._mapped: dict[tuple[tuple[int, ...], str], tuple[list[Floats | None], Records | None]] = {}

    def _prepared(self, label: str, cohort: int) -> Prepared:
        agreed = self.agreed.task(label)
        task = agreed.task
        vectors = task.vectors_of_sites if isinstance(task, BatchTask) else perceptron_vectors(task)
        together = _alike(agreed) and (isinstance(task, RecordTask) or vectors is not None)
        return Prepared(task, agreed.plan(cohort, cohort), vectors, task.features, together, site_training(agreed))

    def _pooled(self, members: tuple[int, ...]) -> Records:
        """The records of sites as one; ``subjects`` says whose each is: 0 for the first of the members and so on."""
        parts = [self.sites.records[index] for index in members]
        labels = [part.labels for part in parts if part.labels is not None]
        owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        features, present = np.concatenate([part.features for part in parts]), np.concatenate([part.present for part in parts])
        return Records(features, present, np.concatenate(labels) if len(labels) == len(parts) else None, owner)

    def features(
        self, members: tuple[int, ...], parameters: FeatureParameters, broadcast: Mapping[str, Floats]
    ) -> Records | None:
        """The pooled records' features where the study's encoder alone makes them, which is the same in every round; None
        where there is nothing to remember, or where a task's part of the records is not all of them."""
        study = self.sites.study
        if study.encoder is None:
            return None
        arrays = [broadcast.get(name) for name in (ENCODER_MATRIX, ENCODER_OFFSET)]
        key = (members, parameters.model_dump_json())
        held = self._mapped.get(key)
        if held is not None and all(_same(one, other) for one, other in zip(held[0], arrays, strict=True)):
            return held[1]
        pooled = self.pooled(members)
        whole = map_records(study, parameters, pooled, broadcast, index=0, encode=self.sites.encode)
        self._mapped = {key: (arrays, whole if len(whole) == len(pooled) else None)}
        return self._mapped[key][1]


def _same(one: Floats | None, other: Floats | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


def compute_chunk(chunk: Chunk) -> Part:
    """The part of a chunk's sites, with their noise."""
    return compute_members(_memory(chunk.sites.get()), chunk)


def compute_members(memory: Remembered, chunk: Chunk) -> Part:
    """:func:`compute_chunk` with what the process remembers."""
    broadcast = chunk.broadcast.get()
    own = memory.prepared(chunk.label, len(chunk.cohort))
    task, plan = own.task, own.plan
    total: Integers | None = None
    if chunk.batched and own.together:
        if own.vectors is not None and _in_one_call(chunk, plan):
            total = _site_sums(memory, chunk, own, own.vectors, broadcast)
        elif isinstance(task, RecordTask) and _unclamped(memory, chunk):
            total = _record_sum(memory, chunk, own, task, broadcast)
    elif chunk.batched and chunk.rounded and own.training is not None and _in_one_call(chunk, plan):
        total = _trained_sum(memory, chunk, own, own.training, broadcast)
    if total is not None:
        return Part(_all_noised(plan, chunk, total), chunk.sources, chunk.states)
    total = np.zeros(plan.encoding.size, dtype=np.int64)
    states, kept = [], []
    once = all(map(of_system, chunk.sources)) and not plan.declaration.keep
    for place, source, state, held in zip(chunk.members, chunk.sources, chunk.states, chunk.kept, strict=True):
        where = SitePlace(place, held, memory.sites.encode, chunk.cohort, state, source)
        part = compute_sum(plan, memory.sites.records[place], broadcast, where)
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


_latest: list[Remembered] = []


def _memory(sites: Sites) -> Remembered:
    """What is remembered of these sites; a worker receives them once and has the same object every round."""
    if not _latest or _latest[0].sites is not sites:
        _latest[:] = [Remembered(sites)]
    return _latest[0]


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


def _unclamped(memory: Remembered, chunk: Chunk) -> bool:
    """Whether no site's sum over records can reach the clamp: it has no more records than the clamp was made for."""
    most = max((len(memory.sites.records[index]) for index in chunk.members), default=0)
    return most <= memory.sites.study.data.max_records


def _sampled(memory: Remembered, chunk: Chunk, plan: RoundPlan) -> NDArray[np.bool_]:
    """Which of the chunk's records take part; each site draws from its own source."""
    rate, sizes = plan.declaration.sampling_rate, [len(memory.sites.records[index]) for index in chunk.members]
    if all(map(of_system, chunk.sources)):
        return poisson_sample(rate, sum(sizes), chunk.sources[0])
    return np.concatenate([poisson_sample(rate, size, own) for size, own in zip(sizes, chunk.sources, strict=True)])


def _features(memory: Remembered, chunk: Chunk, own: Prepared, broadcast: Mapping[str, Floats]) -> Records:
    """The records that take part, of all the chunk's sites, as the task sees them."""
    records = memory.pooled(chunk.members)
    known = None if own.parameters is None else memory.features(chunk.members, own.parameters, broadcast)
    if own.plan.declaration.sampling_rate < 1 and own.training is None:  # who trains draws its own samples
        taken = np.flatnonzero(_sampled(memory, chunk, own.plan))
        records, known = records.take(taken), None if known is None else known.take(taken)
    if known is not None:
        return known
    if own.parameters is None:
        return records
    return map_records(memory.sites.study, own.parameters, records, broadcast, index=0, encode=memory.sites.encode)


def _record_sum(
    memory: Remembered, chunk: Chunk, own: Prepared, task: RecordTask[Any], broadcast: Mapping[str, Floats]
) -> Integers:
    records = replace(_features(memory, chunk, own, broadcast), subjects=None)
    size, grid = task.layout().size, own.plan.declaration.grid
    bound = min(own.plan.encoding.bound * len(chunk.members), 2**62)
    pieces = task.pieces(records, broadcast)
    if pieces is not None:
        return scattered_sum(pieces, size, task.clip(), grid, bound).total
    return site_sum(task.vectors(records, broadcast), size, task.clip(), grid, bound).total


def _site_sums(
    memory: Remembered, chunk: Chunk, own: Prepared, vectors_of: Vectors, broadcast: Mapping[str, Floats]
) -> Integers:
    """Vectors of all sites, each on the grid and clamped as at its own site, added up."""
    records, task, plan = _features(memory, chunk, own, broadcast), own.task, own.plan
    count, size = len(chunk.members), task.layout().size
    offsets, factors = _offsets(records, count), _factors(memory, chunk, task, broadcast)
    plain, unit = replace(records, subjects=None), plan.task.unit
    total = np.zeros(size, dtype=np.int64)
    step = max(1, LARGEST_STACK // size)
    for start in range(0, count, step):
        stop = min(start + step, count)
        rows = np.arange(offsets[start], offsets[stop], dtype=np.intp)
        part = plain if stop - start == count else plain.take(rows)
        vectors = vectors_of(part, offsets[start : stop + 1] - offsets[start], broadcast)
        if vectors.shape != (stop - start, size) or not np.isfinite(vectors).all():
            raise Misuse("A task gave a vector that is not finite or has the wrong length.")
        scaled = factors[start:stop, None] * vectors / unit
        total += on_grid(plan, scaled).sum(axis=0)
    return total


def _trained_sum(
    memory: Remembered, chunk: Chunk, own: Prepared, training: SiteTraining, broadcast: Mapping[str, Floats]
) -> Integers:
    """Vectors of all sites after training, each weighed and rounded as at its own site, added up."""
    records, task, declaration = _features(memory, chunk, own, broadcast), own.task, own.plan.declaration
    size, total = task.layout().size, np.zeros(task.layout().size, dtype=np.int64)
    offsets, factors = _offsets(records, len(chunk.members)), _factors(memory, chunk, task, broadcast)
    plain, step = replace(records, subjects=None), max(1, LARGEST_STACK // size)
    for start in range(0, len(chunk.members), step):
        part = slice(start, min(start + step, len(chunk.members)))
        rows = np.arange(offsets[part.start], offsets[part.stop], dtype=np.intp)
        own_offsets = offsets[part.start : part.stop + 1] - offsets[part.start]
        members, sources = chunk.members[part], chunk.sources[part]
        vectors = training.vectors(plain.take(rows), own_offsets, broadcast, members, own.plan.noise, sources)
        if vectors.shape != (len(members), size) or not np.isfinite(vectors).all():
            raise Misuse("A task gave a vector that is not finite or has the wrong length.")
        scaled = np.clip(factors[part, None] * vectors / task.clip(), -1.0, 1.0) * declaration.resolution
        total += np.rint(scaled).astype(np.int64).sum(axis=0)
    return total


def _offsets(records: Records, sites: int) -> Integers:
    """Where each site's records begin among pooled ones, and the end, (sites + 1,)."""
    owners = np.zeros(0, dtype=np.int64) if records.subjects is None else records.subjects
    return np.searchsorted(owners, np.arange(sites + 1)).astype(np.int64)


def _factors(memory: Remembered, chunk: Chunk, task: Task[Any], broadcast: Mapping[str, Floats]) -> Floats:
    """What the members' vectors are multiplied by."""
    if not task.weighted():
        return np.ones(len(chunk.members))
    where = {place: index for index, place in enumerate(chunk.cohort)}
    factors = cohort_factors(broadcast, chunk.cohort, memory.sites.study.sites)
    return factors[[where[place] for place in chunk.members]]
