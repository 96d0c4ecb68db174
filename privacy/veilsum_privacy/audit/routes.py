"""Ways that a site's records take to what others see, with all of the site's code on them: what an audit measures.

A route computes on made-up records by :func:`veilsum_privacy.computation.contribution.contribute`, adds the plan's own noise
and, if asked, masks, encrypts, adds up, checks and opens, with keys that live as long as the audit. What it compares with is
the same sum before noise. Nothing leaves, and nothing is charged.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse
from veilsum_node.randomness import RandomSource
from veilsum_privacy.computation.contribution import Evaluations, SitePlace, contribute
from veilsum_privacy.mechanism.factors import left_of
from veilsum_privacy.mechanism.noise import CENTRE_BITS
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.mechanism.steps import Steps
from veilsum_privacy.securesum.check_words import check_words, verify_check_words
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.data_masks import mask_values
from veilsum_privacy.securesum.key_shares import MemberMasks, consent_of, mask_key
from veilsum_privacy.securesum.one_time_keys import encrypt_words
from veilsum_privacy.securesum.opening import Total, open_words, unmask_values
from veilsum_privacy.securesum.short_keys import draw_key
from veilsum_privacy.securesum.streams import SECRET_BYTES
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan
from veilsum_privacy.tasks.base import FactorTask, Records, TrainingTask

Way = Literal["own share", "shared noise", "steps"]


class AuditedRelease(NamedTuple):
    """One release.

    Attributes:
        values: (size,) what the adversary is left with after all that it knows, in grid units.
        known: (size,) the site's own sum before noise.
    """

    values: Floats
    known: Floats


class ReleaseRoute(ABC):
    """One way to a release.

    Attributes:
        sensitivity: what the ledger books that one unit changes, in grid units.
        std: standard deviation of the noise that it books, in grid units.
    """

    def __init__(self, plan: RoundPlan, broadcast: Mapping[str, Floats], place: SitePlace) -> None:
        self.plan, self._broadcast, self._place = plan, broadcast, replace(place, evaluations=Evaluations())
        self.sensitivity = float(plan.declaration.grid)
        whole = plan.declaration.model_copy(update={"sampling_rate": 1.0})
        study = plan.task.study
        tasks = tuple(whole if task.label == whole.label else task for task in study.tasks)
        agreed = AgreedStudy(study.model_copy(update={"tasks": tasks})).task(whole.label)
        self._whole = replace(plan, task=agreed)

    @property
    def rounding(self) -> float:
        """The most grid units by which each value of a sum before noise was rounded after it was added up."""
        whole = isinstance(self.plan.task.task, FactorTask | TrainingTask) and not self.plan.declaration.unrounded
        return 0.5 if whole else 0.0

    @property
    def most_records(self) -> int:
        """How many records a sum takes before it may be cut off."""
        return self.plan.task.study.data.max_records

    @property
    @abstractmethod
    def std(self) -> float: ...

    @abstractmethod
    def before(self, records: Records) -> Floats:
        """What the site would add to the sum without sampling and without noise: (size,) in grid units."""

    @abstractmethod
    def release(self, records: Records) -> AuditedRelease:
        """One release of these records, with fresh samples and noise."""

    def _computed(self, plan: RoundPlan, records: Records, place: SitePlace) -> Integers:
        part = contribute(plan, lambda: records, self._broadcast, place)
        if part.fault is not None:
            what = type(part.fault).__name__
            raise Misuse(f"The canaries of task {plan.task.label!r} cannot be computed on: {what}.") from part.fault
        return part.total


class SumRoute(ReleaseRoute):
    """A noised sum.

    Args:
        way: whether the adversary is left with the site's own noise alone, or with that of all honest shares.
        sealed: how many releases are encrypted and opened, the first ones; their sum must be the plain one to the last unit.
    """

    def __init__(
        self, plan: RoundPlan, broadcast: Mapping[str, Floats], place: SitePlace, way: Way = "own share", sealed: int = 0
    ) -> None:
        super().__init__(plan, broadcast, place)
        if not plan.noise.drawn:
            raise Misuse(f"Task {plan.task.label!r} adds no noise to a sum.")
        self._way, self._left = way, sealed
        self._seal: _Sealing | None = None
        self._totals: dict[bytes, Integers] = {}

    @property
    def std(self) -> float:
        noise = self.plan.noise
        return math.sqrt(noise.share_variance if self._way == "own share" else noise.variance)

    def before(self, records: Records) -> Floats:
        return self._own(self._in_units(self._total(self._whole, records, remember=False)))

    def release(self, records: Records) -> AuditedRelease:
        plan = self.plan
        total = self._total(plan, records, remember=plan.declaration.sampling_rate == 1)
        own = plan.noised(total, self._place.index, self._place.random)
        values, honest = own.copy(), 1 if self._way == "own share" else plan.noise.honest
        members = [place for place in range(plan.task.study.sites) if place != self._place.index]
        others = [self._empty(place) for place in members[: (plan.encoding.cohort if self._left else honest) - 1]]
        for vector in others[: honest - 1]:
            values += vector
        if self._left:
            self._left -= 1
            self._seal = self._seal or _Sealing.fresh(plan, self._place.random)
            opened = self._seal.through([own, *others], self._place.random)
            opened = opened - sum(others[honest - 1 :], np.zeros_like(own))  # what the adversary knows of the rest
            if not np.array_equal(opened, values):
                raise Misuse(f"The encrypted sum of task {plan.task.label!r} did not open to what was put in.")
        return AuditedRelease(self._own(values.astype(np.float64)), self._own(self._in_units(total)))

    def _own(self, values: Floats) -> Floats:
        """The site's own block, where the site adds noise to that alone: everywhere else it must have put nothing."""
        if not self.plan.declaration.own_noise:
            return values
        width = len(values) // self.plan.task.study.sites
        start = width * self._place.index
        own: Floats = values[start : start + width]
        if np.count_nonzero(values) > np.count_nonzero(own):
            raise Misuse(f"Task {self.plan.task.label!r} puts a value where it has no noise.")
        return own

    def _empty(self, index: int) -> Integers:
        """Another member's part, without a record."""
        return self.plan.noised(np.zeros(self.plan.encoding.size, dtype=np.int64), index, self._place.random)

    def _total(self, plan: RoundPlan, records: Records, *, remember: bool = True) -> Integers:
        """The sum before noise; of the same canaries it is worked out once."""
        key = b"" if records.subjects is None else records.subjects.tobytes()
        if not remember or len(key) > 2**18:
            return self._computed(plan, records, self._place)
        if key not in self._totals:
            if len(self._totals) >= 8:
                self._totals.clear()
            self._totals[key] = self._computed(plan, records, self._place)
        return self._totals[key]

    def _in_units(self, total: Integers) -> Floats:
        return total.astype(np.float64) * (2.0**-CENTRE_BITS if self.plan.declaration.unrounded else 1.0)


class StepRoute(ReleaseRoute):
    """The first noised sum of a round of training at the site, as the training gets it."""

    def __init__(self, plan: RoundPlan, broadcast: Mapping[str, Floats], place: SitePlace) -> None:
        super().__init__(plan, broadcast, place)
        if plan.noise.kind != "training":
            raise Misuse(f"Task {plan.task.label!r} takes no noised steps.")

    @property
    def std(self) -> float:
        return self.plan.noise.share_std

    def before(self, records: Records) -> Floats:
        return self._first(self._whole, records).known

    def release(self, records: Records) -> AuditedRelease:
        return self._first(self.plan, records)

    def _first(self, plan: RoundPlan, records: Records) -> AuditedRelease:
        seen: list[AuditedRelease] = []

        def watched(
            number: int, rate: float, noise: NoisePlan, grid: int, clip: float, bound: int, source: RandomSource
        ) -> _WatchedSteps:
            return _WatchedSteps(number, rate, noise, grid, clip, bound, source, seen=seen)

        self._computed(plan, records, replace(self._place, steps=watched))
        if not seen:
            raise Misuse(f"Task {plan.task.label!r} took no noised step.")
        return seen[0]


@dataclass
class _WatchedSteps(Steps):
    """Steps that keep the first sum before and after its noise, in grid units."""

    seen: list[AuditedRelease] = field(default_factory=list, repr=False)

    def noised(self, total: Integers) -> Floats:
        found = super().noised(total)
        if not self.seen:
            unit = self.clip / left_of(self.grid, total.size)
            self.seen.append(AuditedRelease(found / unit, total.astype(np.float64)))
        return found


@dataclass(frozen=True)
class _Sealing:
    """Keys of a cohort that exists in this process alone."""

    plan: RoundPlan
    names: tuple[str, ...]
    pairs: Mapping[frozenset[str], bytes] = field(repr=False)

    @staticmethod
    def fresh(plan: RoundPlan, random: RandomSource) -> _Sealing:
        names = tuple(f"member-{index:04d}" for index in range(plan.encoding.cohort))
        pairs = {frozenset((a, b)): random.bytes(SECRET_BYTES) for a in names for b in names if a < b}
        return _Sealing(plan, names, pairs)

    def through(self, vectors: list[Integers], random: RandomSource) -> Integers:
        """Mask and encrypt every member's vector, add the contributions up, check the sum and open it."""
        plan, context, rho = self.plan.encoding, random.bytes(32), random.bytes(32)
        total, consents, answers = Total(plan), [], []
        for name, vector in zip(self.names, vectors, strict=True):
            consent = consent_of(random.bytes(SECRET_BYTES), context)
            seeds = {other: self.pairs[frozenset((name, other))] for other in self.names if other != name}
            masks = MemberMasks(context, name, self.names, seeds, consent)
            words, key = mask_values(vector, plan, masks), draw_key(plan.ring, random)
            share = mask_key(key, plan.ring, plan.cohort, masks)
            total.add(Contribution(share, np.concatenate(list(encrypt_words(words, key, context, plan.ring, random)))))
            answers.append(check_words(words, plan.ring.plain_modulus, rho, masks))
            consents.append(consent)
        opened = open_words(total.contribution, plan, context, consents)
        verify_check_words(opened, plan.ring.plain_modulus, context, rho, answers, consents)
        return unmask_values(opened, plan, context, consents)
