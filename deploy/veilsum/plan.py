"""What a study would bring and cost, before anything is signed: a verdict that a scientist can act on.

The rule, applied to each part of a result (its counts, its means, ...). A quantity's interval is the 95% half-width that the
noise alone causes, as a share of the size that the quantity is expected to have.

- A part tells nothing if the interval of more than half of its quantities exceeds their size: whatever noise comes out, it
  looks alike.
- It is weak if the interval of more than half of them exceeds a quarter of their size, and good otherwise.
- A study is judged by its main part, which its method names: one that tells nothing is not worth its epsilon.
- Where all that is known in advance is the noise of one step of training, nothing is forecast of the model: neither a verdict
  nor the epsilon for an error.

Everything comes from public values. Whether a site will agree, and how much of its budget is left, only the site knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from veilsum.compile import StudyDraft
from veilsum.costs import StudyCost, study_cost
from veilsum.privacy_loss import ParticipantLoss, epsilon_alone, participant_losses
from veilsum.quantisation import ROUNDING
from veilsum_coordinator.parts.expectations import Expectation, finite
from veilsum_coordinator.parts.expected_moments import DIRECTIONS
from veilsum_coordinator.parts.moment_alignment import LABEL as POWER_MOMENTS
from veilsum_coordinator.parts.moment_alignment import records_to_align
from veilsum_privacy.accounting.accountant import epsilon_of
from veilsum_privacy.accounting.prices import declared_event, delta_warning, study_rule
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.mechanism.noise import task_noise
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.base import DerivedTask

NOTHING_SHARE = 1.0
"""Interval as a share of the expected size beyond which a quantity is lost in the noise."""

WEAK_SHARE = 0.25
"""The same beyond which it is known roughly only."""

WANTED_ERROR = 0.1
"""Error that a plan prices unless it is told another."""


class Outlook(StrEnum):
    """What a part of a result will tell."""

    EXACT = "exact"
    GOOD = "good"
    WEAK = "weak"
    NOTHING = "tells nothing"
    NOT_FORECAST = "not forecast"


class Verdict(StrEnum):
    """What becomes of a study's epsilon."""

    EXACT = "exact, without any guarantee"
    WORTH = "worth it"
    WEAK = "weak"
    NOT_WORTH = "not worth its epsilon"
    NOT_FORECAST = "not forecast"


_VERDICTS = {
    Outlook.EXACT: Verdict.EXACT,
    Outlook.GOOD: Verdict.WORTH,
    Outlook.WEAK: Verdict.WEAK,
    Outlook.NOTHING: Verdict.NOT_WORTH,
    Outlook.NOT_FORECAST: Verdict.NOT_FORECAST,
}


@dataclass(frozen=True)
class PlannedPart:
    """One part of a result.

    Attributes:
        name: the expectations' block.
        number: quantities in it.
        typical: share that half of its quantities keep within (their median, the lower one of two).
        widest: the largest share.
        outlook: by the rule.
        main: whether it decides the study's verdict; several main parts count as one.
        expectations: what it is made of.
    """

    name: str
    number: int
    typical: float
    widest: float
    outlook: Outlook
    main: bool
    expectations: tuple[Expectation, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "part": self.name,
            "quantities": self.number,
            "typical_share": finite(self.typical),
            "widest_share": finite(self.widest),
            "outlook": self.outlook.value,
            "main": self.main,
        }


@dataclass(frozen=True)
class StudyPlan:
    """A priced study.

    Attributes:
        study: as it would be signed.
        records: that each site is expected to have.
        records_stated: whether the analyst said so, or it is the schema's bound.
        cost: what it asks of each participant.
        alone: epsilon against all other parties together; None without noise.
        parts: of the result, in order.
        verdict: by the rule.
        error: that was asked about.
        error_epsilon: smallest epsilon of the whole study that reaches it; None where none does, or nothing is forecast.
        losses: of each participant, by this coordinator's studies of the dataset; None where that is not known.
        notes: what else must be known before it is signed, in sentences.
    """

    study: Study
    records: int
    records_stated: bool
    cost: StudyCost
    alone: float | None
    parts: tuple[PlannedPart, ...]
    verdict: Verdict
    error: float
    error_epsilon: float | None
    losses: tuple[ParticipantLoss, ...] | None
    notes: tuple[str, ...] = ()

    @property
    def colluder_cost(self) -> float | None:
        """By how much sums are noisier because k participants' shares are not counted: sqrt(n / h) - 1.

        All n add shares of which h reach the noise that is charged for. None where no noise is shared.
        """
        plans = [task_noise(self.study, task, self.study.sites) for task in self.study.tasks]
        ratios = [plan.total_variance(self.study.sites) / plan.variance for plan in plans if plan.kind == "distributed"]
        return math.sqrt(max(ratios)) - 1.0 if ratios else None

    @property
    def coarse(self) -> bool:
        """Whether truncation to the grid can add more than 1% of the noise."""
        return self.cost.epsilon is not None and self.cost.rounding > ROUNDING

    def to_json(self) -> dict[str, Any]:
        """Plain values; None stands for what is infinite or not known."""
        return {
            "name": self.study.name,
            "method": self.study.method,
            "dataset": self.study.dataset,
            "cost": self.cost.to_json(),
            "guarantees": {
                "against_coordinator_and_readers": self.cost.epsilon,
                "colluding_participants": self.study.privacy.assumed_colluders,
                "against_all_others_together": self.alone,
                "noise_added_for_colluders": self.colluder_cost,
            },
            "participants": None if self.losses is None else [loss.to_json() for loss in self.losses],
            "records_per_site": {"expected": self.records, "stated": self.records_stated},
            "parts": [part.to_json() for part in self.parts],
            "quantities": [item.to_json() for part in self.parts for item in part.expectations],
            "verdict": self.verdict.value,
            "rule": {"tells_nothing_above": NOTHING_SHARE, "weak_above": WEAK_SHARE},
            "wanted": {"error": self.error, "epsilon": self.error_epsilon},
            "notes": list(self.notes),
        }


def plan_study(
    draft: StudyDraft,
    study: Study,
    *,
    error: float | None = None,
    spent: Mapping[str, Mapping[Mechanism, int]] | None = None,
) -> StudyPlan:
    """Plan a study.

    Args:
        draft: what the study was compiled from.
        study: compiled.
        error: to price; by default the one that the study asks for, or :data:`WANTED_ERROR`.
        spent: releases of the dataset so far, by participant; None: not known.

    Raises:
        Misuse: a sum does not fit the encryption's parameters.
        ConfigurationError: the sites of a federation would refuse the study.
    """
    draft.method.check_federation(study)
    wanted = error or draft.request.privacy.error or WANTED_ERROR
    expectations = draft.expectations(study)
    parts = divide(expectations)
    verdict = _VERDICTS[outlook([item for item in expectations if item.main])] if study.privacy.epsilon else Verdict.EXACT
    reached: Study | None = None
    if wanted == draft.request.privacy.error:
        reached = study
    elif all(item.forecast for item in expectations if item.main):
        reached = draft.compile_for(wanted)
    return StudyPlan(
        study=study,
        records=draft.records,
        records_stated=draft.request.expected_records is not None,
        cost=study_cost(study, draft.records),
        alone=epsilon_alone(study),
        parts=parts,
        verdict=verdict,
        error=wanted,
        error_epsilon=None if reached is None else reached.privacy.epsilon,
        losses=None if spent is None else participant_losses(study, spent),
        notes=tuple(notes(study, parts, draft.records)),
    )


def notes(study: Study, parts: Sequence[PlannedPart], records: int) -> Iterator[str]:
    """Sentences on a delta that guarantees too little, on what a study shows of single sites, on covariances that drown in
    the noise, and on alignment in vain.

    Args:
        records: expected of each site.
    """
    if warning := delta_warning(study, records):
        yield warning
    yield from _disclosures(study)
    yield from _units(study)
    yield from _secure_steps(study)
    if study.privacy.noise != "none" and any(task.label == POWER_MOMENTS for task in study.tasks):
        yield from _vain_alignment(records, records_to_align(study))
    for part in parts:
        if part.name == DIRECTIONS and part.outlook in (Outlook.NOTHING, Outlook.WEAK):
            yield _drowned_covariances(study, part)


def _disclosures(study: Study) -> Iterator[str]:
    private = study.privacy.noise != "none"
    apart = [task.label for task in study.tasks if task.disclosure == "per-site"]
    if apart:
        shown = "noised, by site" if private else "of each site, exactly and without noise"
        yield (
            f"Disclosed per site: {', '.join(apart)}. Everyone who sees the sums sees these figures {shown}. A site takes part"
            " only if its policy allows per-site disclosure."
        )
    if study.privacy.cohort_difference == "strict":
        kind = "of one cohort only" if private else "without noise"
        yield (
            f"A study {kind} is held to the cohorts of earlier such studies of the same population: two sums over cohorts that"
            " differ in few sites show these sites' own numbers, so a site refuses a sum whose cohort differs from an earlier"
            " one by fewer sites than its policy.min_cohort. Invite the same sites again."
        )


def _units(study: Study) -> Iterator[str]:
    if study.data.joined:
        yield "A person may have several rows (joined = true in the schema): the unit is a person with all of them."
    if study.privacy.noise != "none" and study.privacy.unit == "subject":
        twice = twofold_epsilon(study)
        cost = "the study costs more" if twice is None else f"epsilon is {twice:.3g}"
        yield (
            "The guarantee is for one person at one site. Sites cannot know who else's patient a person is: for someone whose"
            f" records lie at two of the sites {cost}."
        )


def _secure_steps(study: Study) -> Iterator[str]:
    if not any(issubclass(TASKS[task.task], DerivedTask) and task.source is not None for task in study.tasks):
        return
    if study.privacy.noise == "none":
        yield (
            "Steps over secure sums hide no site's covariance here: without noise, the sums of several steps determine the"
            " covariance of each site. They only spare sending it."
        )
    else:
        yield (
            "Every site keeps its own noised moments, with all the noise that its records need; the steps computed from them"
            " cost nothing more. Sums of several steps may show these noised moments of a site, and no more."
        )


def _vain_alignment(records: int, needed: int | None) -> Iterator[str]:
    if needed is None or records < needed:
        found = "however many it has" if needed is None else f"with fewer than about {needed:,}"
        yield (
            f"Alignment by moments will not pay: a site of {records:,} records cannot tell its variances from the noise,"
            f" {found}. It then leaves the features as they are, and the release of moments is spent in vain. Leave out"
            " [parameters.moments], or state a larger share."
        )


def _drowned_covariances(study: Study, part: PlannedPart) -> str:
    drowned = "drown in the noise" if part.outlook is Outlook.NOTHING else "stand little above the noise"
    advice = "Use fewer columns"
    if study.method != "pca":
        advice = "Use fewer features (an encoder of smaller width, as a study of method pca releases one)"
    return (
        f"Covariances {drowned}: along the worst direction noise shows {part.widest:.2g} times the variance that features are"
        f" expected to have. {advice}, more records a site, or a larger epsilon; without that, what is made of covariances is"
        " shrunk towards one common variance."
    )


def twofold_epsilon(study: Study) -> float | None:
    """Epsilon of a study with noise for someone who is a unit at two of its sites; None where records are sampled.

    A sum under one noise moves up to twice as far. Where each site adds all the noise that its own unit needs, the two sites'
    vectors are two releases, of which the sum tells no more than both.
    """
    events = []
    for task in study.tasks:
        if task.derived:
            continue
        event = declared_event(task)
        if event.sampling_rate < 1:
            return None
        if study.privacy.noise == "local" or task.local_steps or task.keep:
            events.append(replace(event, steps=2 * event.steps))
        else:
            events.append(replace(event, sensitivity=2 * event.sensitivity))
    return epsilon_of(events, study.privacy.delta, study_rule(study))


def divide(expectations: Sequence[Expectation]) -> tuple[PlannedPart, ...]:
    """Expectations by block, in the order in which the blocks come first."""
    parts = []
    for name in dict.fromkeys(item.block for item in expectations):
        items = tuple(item for item in expectations if item.block == name)
        parts.append(
            PlannedPart(
                name=name,
                number=sum(item.number for item in items),
                typical=typical_share(items),
                widest=max(item.share for item in items),
                outlook=outlook(items),
                main=any(item.main for item in items),
                expectations=items,
            )
        )
    return tuple(parts)


def outlook(expectations: Sequence[Expectation]) -> Outlook:
    """What these quantities will tell together, by the module's rule."""
    if all(item.half_width == 0 for item in expectations):
        return Outlook.EXACT
    if not all(item.forecast for item in expectations):
        return Outlook.NOT_FORECAST
    share = typical_share(expectations)
    if share > NOTHING_SHARE:
        return Outlook.NOTHING
    return Outlook.WEAK if share > WEAK_SHARE else Outlook.GOOD


def typical_share(expectations: Sequence[Expectation]) -> float:
    """The smallest share that at least half of the quantities keep within, each counted as often as it stands for one."""
    ordered = sorted(expectations, key=lambda item: item.share)
    half, seen = sum(item.number for item in ordered) / 2.0, 0
    for item in ordered:
        seen += item.number
        if seen >= half:
            break
    return item.share
