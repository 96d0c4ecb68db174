"""What a compiled study asks of each participant: releases, values, noise, epsilon and bytes, before anything is signed.

Everything follows from the study alone. Noise and bytes are those of a round of all its participants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from veilsum_privacy.securesum.context import plan_round
from veilsum_privacy.study import Study
from veilsum_privacy.tasks import build_task


@dataclass(frozen=True)
class TaskCost:
    """One task of a study.

    Attributes:
        values: length of the vector.
        clip: L2 bound on what one record contributes, in the task's units.
        noise: standard deviation of the released sum's noise by block, in the block's units.
        upload: bytes that one participant sends over all releases.
    """

    label: str
    task: str
    disclosure: str
    releases: int
    values: int
    clip: float
    noise: dict[str, float]
    upload: int


@dataclass(frozen=True)
class StudyCost:
    """A whole study; ``epsilon`` None: released without noise, no guarantee."""

    epsilon: float | None
    delta: float
    noise: str
    min_cohort: int
    participants: tuple[str, ...]
    tasks: tuple[TaskCost, ...]

    @property
    def upload(self) -> int:
        """Bytes that one participant sends."""
        return sum(task.upload for task in self.tasks)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise": self.noise,
            "min_cohort": self.min_cohort,
            "participants": list(self.participants),
            "upload_bytes": self.upload,
            "tasks": [
                {
                    "label": task.label,
                    "task": task.task,
                    "disclosure": task.disclosure,
                    "releases": task.releases,
                    "values": task.values,
                    "clip": task.clip,
                    "noise_std": task.noise,
                    "upload_bytes": task.upload,
                }
                for task in self.tasks
            ],
        }


def study_cost(study: Study) -> StudyCost:
    """Price a compiled study.

    Raises:
        Misuse: a sum does not fit the encryption's parameters.
    """
    cohort = len(study.participants)
    tasks = []
    for declaration in study.tasks:
        task = build_task(declaration.task, declaration.parameters, study.data)
        plan = plan_round(study, declaration.label, cohort, cohort)
        unit = task.clip() / declaration.grid
        std = math.sqrt(plan.noise.total_variance(cohort)) * unit
        largest = plan.encoding.parameters.fresh.largest
        tasks.append(
            TaskCost(
                label=declaration.label,
                task=declaration.task,
                disclosure=declaration.disclosure,
                releases=declaration.releases,
                values=task.layout().size,
                clip=task.clip(),
                noise=task.layout().noise_std(std),
                upload=declaration.releases * plan.encoding.ciphertexts * largest,
            )
        )
    privacy = study.privacy
    return StudyCost(
        privacy.epsilon, privacy.delta, privacy.noise, privacy.min_cohort, tuple(study.participants), tuple(tasks)
    )
