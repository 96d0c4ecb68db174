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


def delta_warning(study: Study, records: int | None = None) -> str:
    """Why a study's delta guarantees too little to so many records of a site; empty where it does not.

    Publishing each record outright with the chance delta is (0, delta)-private, so from 1 / n on a guarantee bears that a
    record is published for certain (Dwork and Roth 2014, section 2.3).

    Args:
        study: whose delta.
        records: n, expected of a site; by default the public bound of its schema.
    """
    n, delta = records or study.data.max_records, study.privacy.delta
    if study.privacy.noise == "none" or delta <= 1.0 / n:
        return ""
    found = "" if records else ", the schema's max_records"
    return (
        f"Delta {delta:g} is above 1 / {n:,}{found}: publishing each record outright with probability {delta:g}, about"
        f" {delta * n:,.0f} of them at a site, would keep this guarantee. Ask for a delta well below that"
        f" (delta = {min(1e-5, 10.0 ** math.floor(math.log10(0.1 / n))):g} under [privacy])."
    )


def study_epsilon(study: Study, delta: float, releases: Mapping[str, int] | None = None) -> float:
    """Epsilon at ``delta`` by the study's own rule of all that it declares, or of so many ``releases`` of each label; infinite
    where one is without noise, 0 where there is none."""
    taken = {task.label: task.releases if releases is None else releases.get(task.label, 0) for task in study.tasks}
    costly = [task for task in study.tasks if taken[task.label] and (study.privacy.noise == "none" or not task.derived)]
    if any(task.variance == 0 for task in costly):
        return math.inf
    return epsilon_of([declared_event(task, taken[task.label]) for task in costly], delta, study_rule(study))
