"""A study with all records in one place: the same tasks and the same accounting, with a release's noise drawn once.

It is what a study would be if records could be pooled: for the method "fedsgd" it is central DP-SGD of noise S. It is for
comparison only. A study in which sites differ, by alignment or by what each discloses, has no such counterpart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.service.runner import RoundLostError
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_privacy.computation.contribution import Place, compute_sum
from veilsum_privacy.mechanism.noise import NoisePlan
from veilsum_privacy.results.proof_files import release_digest
from veilsum_privacy.securesum.context import RoundPlan, decode_broadcast, encode_broadcast, plan_round
from veilsum_privacy.study.study import Study, study_digest
from veilsum_privacy.tasks import build_declared, grid_unit
from veilsum_privacy.tasks.base import Floats, Records, RecordTask, Task, TrainingTask
from veilsum_privacy.tasks.feature_maps import Encode

ADDITIVE = frozenset({"gradient"})
"""Tasks of one vector a site whose vectors are sums over records, so that the vector of all records is the sites' sum."""

EXPECTED = "expected_records"
"""Parameter of tasks that train: how many records a site is expected to have."""

LARGEST_BOUND = 2**62


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
        watch: told of every label that was released.

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
        watch: Callable[[str], None] | None = None,
    ) -> None:
        if any(task.disclosure != "joint" or task.keep or task.source is not None for task in study.tasks):
            raise Misuse("A study whose sites align or disclose by themselves cannot be run with records in one place.")
        self._study, self._records, self._encoder = study, records, dict(encoder or {})
        self._encode, self._random, self._watch = encode, random, watch
        self._released: Counter[str] = Counter()
        self._states: dict[str, Mapping[str, Floats]] = {}
        self._key = study_digest(study.to_bytes())
        self._holders = study.sites if holders is None else holders
        # Of its schema only the number of records that one place may hold is another.
        most = study.data.max_records * self._holders
        self._whole = study.model_copy(update={"data": study.data.model_copy(update={"max_records": most})})
        self._prepared = {task.label: self._prepare(task.label) for task in study.tasks}

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
            raise HostileInput("The study declares no task of that label.")
        task, plan = self._prepared[label]
        if self._released[label] >= plan.declaration.releases:
            raise RoundLostError(f"The releases of {label} are used up.")
        arrays = decode_broadcast(encode_broadcast({**self._encoder, **(broadcast or {})}))
        place = Place(0, {}, self._encode, (0,), self._states.get(label, {}), self._random)
        part = compute_sum(self._whole, plan, self._records, arrays, place, task=task)
        if part.state:
            self._states[label] = part.state
        total = part.total + plan.noise.draw(plan.encoding.size, self._random)
        self._released[label] += 1
        if self._watch is not None:
            self._watch(label)
        unit, layout = grid_unit(task, plan.declaration), task.layout()
        std = math.sqrt(plan.noise.total_variance(1)) * unit
        additive = isinstance(task, RecordTask) or task.name in ADDITIVE
        cohort = self._study.participants[: self._holders if additive else 1]
        number = self._released.total()
        digest = release_digest(self._key, number, number, total.astype("<i8").tobytes())
        values = layout.split((total * unit).astype(np.float64))
        return Release(label, number, values, layout.noise_std(std), tuple(cohort), digest)

    def checkpoint(self, arrays: Mapping[str, Floats], summary: Mapping[str, Any]) -> None:
        """Keeps nothing."""

    def _prepare(self, label: str) -> tuple[Task, RoundPlan]:
        """The task, and its plan with room for all records and the whole noise in one draw."""
        study = self._study
        plan = plan_round(study, label, study.sites, study.sites)
        task = build_declared(study, plan.declaration)
        if isinstance(task, TrainingTask):
            # Steps are divided by the number of records that a site is expected to have: here it is that of all of them.
            parameters = dict(plan.declaration.parameters)
            if EXPECTED in parameters:
                parameters[EXPECTED] = int(parameters[EXPECTED]) * self._holders
            declaration = plan.declaration.model_copy(update={"parameters": parameters})
            return build_declared(self._whole, declaration), replace(plan, declaration=declaration)
        if plan.noise.drawn:
            plan = replace(plan, noise=NoisePlan("local", plan.noise.variance, 1, plan.noise.colluders))
        bound = min(plan.encoding.bound * self._holders, LARGEST_BOUND)
        return task, replace(plan, encoding=replace(plan.encoding, bound=bound))
