"""What the tasks of a study cost by what it declares: all of it, or what was released so far."""

import math
from collections.abc import Mapping
from fractions import Fraction

from veilsum_privacy.accounting.accountant import Adaptive, Course, GaussianEvent, epsilon_of
from veilsum_privacy.study.study import Study, TaskDeclaration


def study_rule(study: Study) -> Adaptive:
    """The rule by which a study states its epsilon."""
    return "gaussian" if study.privacy.accounting == "gaussian" else "standard"


def declared_event(declaration: TaskDeclaration, releases: int | None = None) -> GaussianEvent:
    """All declared releases of a task with noise, or the first ``releases`` of them, as one event.

    Raises:
        Misuse: it has no noise, or its numbers are out of range.
    """
    steps = declaration.steps * (declaration.releases if releases is None else releases)
    rate, course = declaration.sampling_rate, Course.of(declaration.steps * declaration.releases, declaration.slack)
    return GaussianEvent(declaration.grid, Fraction(declaration.variance), rate, steps, course)


def study_epsilon(study: Study, delta: float, releases: Mapping[str, int] | None = None) -> float:
    """Epsilon at ``delta`` by the study's own rule of all that it declares, or of so many ``releases`` of each label; infinite
    where one is without noise, 0 where there is none."""
    taken = {task.label: task.releases if releases is None else releases.get(task.label, 0) for task in study.tasks}
    costly = [task for task in study.tasks if taken[task.label] and (study.privacy.noise == "none" or not task.derived)]
    if any(task.variance == 0 for task in costly):
        return math.inf
    return epsilon_of([declared_event(task, taken[task.label]) for task in costly], delta, study_rule(study))
