"""What the tasks of a study cost by what it declares: all of it, or what was released so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from veilsum_privacy.accounting.accountant import GaussianEvent, rdp_epsilon
from veilsum_privacy.study.study import Study, TaskDeclaration


def declared_event(declaration: TaskDeclaration, releases: int | None = None) -> GaussianEvent:
    """All declared releases of a task with noise, or the first ``releases`` of them, as one event.

    Raises:
        Misuse: it has no noise, or its numbers are out of range.
    """
    steps = declaration.steps * (declaration.releases if releases is None else releases)
    return GaussianEvent(declaration.grid, Fraction(declaration.variance), declaration.sampling_rate, steps)


def study_epsilon(study: Study, delta: float, releases: Mapping[str, int] | None = None) -> float:
    """Epsilon by RDP at ``delta`` of all that a study declares, or of so many ``releases`` of each label; infinite where one
    is without noise, 0 where there is none."""
    taken = {task.label: task.releases if releases is None else releases.get(task.label, 0) for task in study.tasks}
    costly = [task for task in study.tasks if taken[task.label] and (study.privacy.noise == "none" or not task.derived)]
    if any(task.variance == 0 for task in costly):
        return math.inf
    return rdp_epsilon([declared_event(task, taken[task.label]) for task in costly], delta)
