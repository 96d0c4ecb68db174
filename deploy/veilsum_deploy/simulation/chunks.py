"""The part of many sites in a round of a simulation, computed together where that is the same sum.

A task of one vector a record is a sum over all records, whoever holds them: rows depend on their own record alone and are
integers before they are added, so records of many sites are summed as one, to the bit. So is a site's vector that is a sum
over its records, as of gradients; there each site rounds to the grid once, and all of them together once, so that the sum is
the same up to half a grid unit a site. All else goes site by site, as at a participant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_deploy.evaluation import pool
from veilsum_deploy.simulation.engines import Shared
from veilsum_node.randomness import RandomSource, SystemRandom
from veilsum_privacy.computation.contribution import Evaluations, SitePlace, compute_sum
from veilsum_privacy.mechanism.noise import discrete_gaussian, gaussian_around
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan
from veilsum_privacy.tasks.base import Records, RowTask, Task
from veilsum_privacy.tasks.feature_maps import Encode

State = Mapping[str, Floats]

LARGEST_BOUND = 2**62
"""Largest absolute value of a sum over records."""


@dataclass(frozen=True)
class Chunk:
    """Some sites of a round's cohort.

    Attributes:
        sites, broadcast: shared by all chunks.
        cohort: places of all members among the study's participants.
        sources: where the members' samples and noise come from.
        states: what they trained in their last round of the task.
        kept: noised vectors that they kept, by label.
        batched: whether they may be computed together.
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


class Sites:
    """What stays the same in all rounds of a simulation, and what this process remembers of it.

    Sent to another process, it begins there without what it remembers.

    Args:
        records: of each participant, in the study's order; encoded already where ``encode`` is None.
    """

    def __init__(self, study: Study, records: tuple[Records, ...], encode: Encode | None = None) -> None:
        self.study, self.records, self.encode, self.agreed = study, records, encode, AgreedStudy(study)
        self.pooled = lru_cache(maxsize=2)(self._pooled)

    def __reduce__(self) -> tuple[type[Sites], tuple[Study, tuple[Records, ...], Encode | None]]:
        return Sites, (self.study, self.records, self.encode)

    def plan(self, label: str, cohort: int) -> RoundPlan:
        """The plan of a task's rounds with a cohort of this size."""
        return self.agreed.task(label).plan(cohort, cohort)

    def _pooled(self, members: tuple[int, ...]) -> Records:
        """The records of sites as one's."""
        return pool([self.records[index] for index in members])


def compute_chunk(chunk: Chunk) -> Part:
    """The part of a chunk's sites, with their noise."""
    sites, broadcast = chunk.sites.get(), chunk.broadcast.get()
    plan = sites.plan(chunk.label, len(chunk.cohort))
    if chunk.batched and _together(sites, chunk, plan):
        as_one = SitePlace(encode=sites.encode, random=chunk.sources[0])
        total = compute_sum(for_many(plan, len(chunk.members)), sites.pooled(chunk.members), broadcast, as_one).total
        return Part(_all_noised(plan, chunk, total), chunk.sources, chunk.states)
    total = np.zeros(plan.encoding.size, dtype=np.int64)
    states, kept, evaluations = [], [], Evaluations()
    once = all(map(of_system, chunk.sources)) and not plan.declaration.keep
    for place, source, state, held in zip(chunk.members, chunk.sources, chunk.states, chunk.kept, strict=True):
        records = sites.records[place]
        where = SitePlace(
            place, held, sites.encode, chunk.cohort, state, source, most_records=len(records), evaluations=evaluations
        )
        part = compute_sum(plan, records, broadcast, where)
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


def adds_up(task: Task[Any]) -> bool:
    """Whether a site's vector is a sum over its records, so that the vector of all records is the sites' sum."""
    return isinstance(task, RowTask)


def for_many(plan: RoundPlan, sites: int) -> RoundPlan:
    """A round's plan with room for a sum over the records of so many sites."""
    bound = min(plan.encoding.bound * sites, LARGEST_BOUND)
    return replace(plan, encoding=replace(plan.encoding, bound=bound))


def of_system(source: RandomSource) -> bool:
    """Whether a source is the operating system's, whose numbers no one can tell apart by the call that they come from."""
    return isinstance(source, SystemRandom)


def _together(sites: Sites, chunk: Chunk, plan: RoundPlan) -> bool:
    """Whether the sites' records may stand side by side, as one site's.

    They may where sites do the same whoever they are, what they compute is a sum over records, none of them has so many
    records that its own sum could reach the clamp, and samples come from a source that does not tell sites apart.
    """
    task, declaration = plan.task.task, plan.declaration
    if plan.task.per_site or declaration.keep or plan.task.source is not None or task.site_arrays() or task.weighted():
        return False
    if sites.study.privacy.unit != "record" or task.alignment is not None or not adds_up(task):
        return False
    drawn = declaration.sampling_rate < 1 or declaration.unrounded
    if drawn and not all(map(of_system, chunk.sources)):
        return False
    return max(len(sites.records[index]) for index in chunk.members) <= sites.study.data.max_records


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
