"""A study with all records in one place: the same tasks and the same accounting, with a release's noise drawn once.

It is what a study would be if records could be pooled: for the method "fedsgd" it is central DP-SGD of noise S. It is for
comparison only. A study in which sites differ, by alignment or by what each discloses, has no such counterpart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.service.runner import RoundLostError
from veilsum_deploy.simulation.chunks import adds_up, for_many
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.mechanism.noise import NoisePlan
from veilsum_privacy.results.proof_files import release_digest
from veilsum_privacy.securesum.agreed import AgreedStudy, AgreedTask, RoundPlan
from veilsum_privacy.securesum.context import decode_broadcast, encode_broadcast
from veilsum_privacy.study.study import Study, study_digest
from veilsum_privacy.tasks.base import Records, TrainingTask
from veilsum_privacy.tasks.feature_maps import Encode

EXPECTED = "expected_records"
"""Parameter of tasks that train: how many records a site is expected to have."""


class CentralFederation:
    """Implements :class:`~veilsum_coordinator.parts.federation.Federation` on records in one place.

    A sum over records comes as that of all participants whose records are here. Any other vector, as a trained model's, comes
    as that of one.

    Args:
        study: the compiled study, as the sites would run it.
        records: of all of them, or of one for what it reaches alone.
        encoder: arrays of the study's projection.
        holders: how many sites the records are of.
        encode: the study's program.
        random: where samples and noise come from.

    Raises:
        Misuse: the study has no central counterpart.
    """

    def __init__(
        self,
        study: Study,
        records: Records,
        encoder: Mapping[str, Floats] | None = None,
        *,
        holders: int | None = None,
        encode: Encode | None = None,
        random: RandomSource = SYSTEM_RANDOM,
    ) -> None:
        if any(task.disclosure != "joint" or task.keep or task.source is not None for task in study.tasks):
            raise Misuse("A study whose sites align or disclose by themselves cannot be run with records in one place.")
        self._study, self._records, self._encoder = study, records, dict(encoder or {})
        self._encode, self._random = encode, random
        self._released: Counter[str] = Counter()
        self._states: dict[str, Mapping[str, Floats]] = {}
        self._key = study_digest(study.to_bytes())
        self._holders = study.sites if holders is None else holders
        self._prepared = {task.label: self._prepare(task) for task in AgreedStudy(study).tasks}

    @property
    def study(self) -> Study:
        """The study that is simulated."""
        return self._study

    @property
    def encoder(self) -> Mapping[str, Floats]:
        """Arrays of the study's projection; empty without one."""
        return self._encoder

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        """Run one round of a declared task on all records, whoever is asked for.

        Raises:
            HostileInput: the study declares no such task.
            RoundLostError: its releases are used up.
        """
        if label not in self._prepared:
            raise HostileInput("The study declares no task with that label.")
        plan = self._prepared[label]
        task = plan.task
        if self._released[label] >= plan.declaration.releases:
            raise RoundLostError(f"The releases of {label} are used up.")
        arrays = decode_broadcast(encode_broadcast({**self._encoder, **(broadcast or {})}, task.single), task.single)
        place = SitePlace(0, {}, self._encode, (0,), self._states.get(label, {}), self._random)
        part = compute_sum(plan, self._records, arrays, place)
        if part.state:
            self._states[label] = part.state
        total = plan.noised(part.total, 0, self._random)
        self._released[label] += 1
        cohort = self._study.participants[: self._holders if adds_up(task.task) else 1]
        number = self._released.total()
        digest = release_digest(self._key, number, number, total.astype("<i8").tobytes())
        std = task.block_std(math.sqrt(plan.spread if plan.noise.drawn else 0))
        return Release(label, number, task.blocks(total), std, tuple(cohort), digest)

    def checkpoint(self, arrays: Mapping[str, Floats], summary: Mapping[str, Any]) -> None:
        """Keeps nothing."""

    def _prepare(self, task: AgreedTask) -> RoundPlan:
        """The plan of a round with room for all records and the whole noise in one draw."""
        plan = task.plan(task.study.sites, task.study.sites)
        if isinstance(task.task, TrainingTask):
            return replace(plan, task=self._pooled(task))
        if plan.noise.drawn:
            plan = replace(plan, noise=NoisePlan("local", plan.noise.variance, 1, plan.noise.colluders))
        return for_many(plan, self._holders)

    def _pooled(self, task: AgreedTask) -> AgreedTask:
        """A task that trains, at a site with all records: it may hold that many, and expects that many."""
        data, parameters = task.study.data, dict(task.declaration.parameters)
        if EXPECTED in parameters:  # steps are divided by it
            parameters[EXPECTED] = int(parameters[EXPECTED]) * self._holders
        data = data.model_copy(update={"max_records": data.max_records * self._holders})
        whole = AgreedStudy(task.study.model_copy(update={"data": data}))
        return AgreedTask(whole, task.declaration.model_copy(update={"parameters": parameters}))
