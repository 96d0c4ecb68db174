"""What a study would bring and cost, before anything is signed: a verdict that a scientist can act on.

Its figures are those of a rehearsal on typical records (:mod:`veilsum.rehearsal`). The rule, applied to each part of a result,
which is one question or one term of a model. A quantity's interval is its 95% half-width as a share of the size that the
quantity is expected to have; a quantity that is not estimable in more than half of the runs has none.

- A part tells nothing if the interval of more than half of its quantities exceeds their size, or they have none.
- It is weak if the interval of more than half of them exceeds a quarter of their size, or if more than half of them are not
  told in nine of ten runs, and good otherwise.
- A study is judged by its main parts, what it is run for. It is worth its epsilon if all of them are good, and not if
  more than half of them tell nothing. So a part that is known well makes up for no other.
- Of training at the sites, or in many steps, nothing is forecast: neither a verdict nor the epsilon for an error.

Everything comes from public values. Whether a site will agree, and how much of its budget is left, only the site knows.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from veilsum.compile import StudyDraft
from veilsum.costs import StudyCost, study_cost
from veilsum.forecasts import OFTEN, Forecast
from veilsum.privacy_loss import ParticipantLoss, affordable, epsilon_alone, finite, participant_losses
from veilsum.quantisation import ROUNDING
from veilsum.typical import guess_levels
from veilsum_privacy.accounting.accountant import epsilon_of
from veilsum_privacy.accounting.deltas import delta_warning
from veilsum_privacy.accounting.prices import declared_event, study_rule
from veilsum_privacy.dossier.figures import cost as rounded_up
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.mechanism.noise_plan import task_noise
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import DerivedTask
from veilsum_privacy.tasks.newton_step import NewtonStep
from veilsum_privacy.tasks.tables import questions_of

NOTHING_SHARE = 1.0
"""Interval as a share of the expected size beyond which a quantity is lost in the noise."""

WEAK_SHARE = 0.25
"""The same beyond which it is known roughly only."""

USUAL_BUDGET, MOST_STUDIES = 10.0, 1000
"""Epsilon of the budget in the example of a site's configuration, what a site has being private; studies that are counted."""

SITES_OF_NOISE = 3.0
"""How many times as long as the noise the sum of all sites is to be, where each counts as one."""

WANTED_ERROR = 0.1
"""Error that a plan prices unless it is told another."""


class Outlook(StrEnum):
    """What a part of a result will tell."""

    GOOD = "good"
    WEAK = "weak"
    NOTHING = "tells nothing"


class Verdict(StrEnum):
    """What becomes of a study's epsilon."""

    EXACT = "exact, without any guarantee"
    WORTH = "worth it"
    WEAK = "weak"
    NOT_WORTH = "not worth its epsilon"
    NOT_FORECAST = "not forecast"


@dataclass(frozen=True)
class PlannedPart:
    """One part of a result.

    Attributes:
        typical: share that half of its quantities keep within (their median, the lower one of two).
        widest: the largest share.
        told: chance of being told that half of its quantities have (the lower one of two).
        outlook: by the rule.
        main: whether it counts for the study's verdict.
    """

    name: str
    typical: float
    widest: float
    told: float
    outlook: Outlook
    main: bool
    forecasts: tuple[Forecast, ...]

    @staticmethod
    def of(name: str, forecasts: Sequence[Forecast]) -> "PlannedPart":
        """The part of these quantities."""
        shares, told = (sorted(values) for values in ([f.share for f in forecasts], [f.told for f in forecasts]))
        middle = (len(forecasts) - 1) // 2
        typical, main = shares[middle], any(item.main for item in forecasts)
        outlook = Outlook.GOOD
        if typical > NOTHING_SHARE:
            outlook = Outlook.NOTHING
        elif typical > WEAK_SHARE or told[middle] < OFTEN:
            outlook = Outlook.WEAK
        return PlannedPart(name, typical, shares[-1], told[middle], outlook, main, tuple(forecasts))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "part": self.name,
            "quantities": len(self.forecasts),
            "typical_share": finite(self.typical),
            "widest_share": finite(self.widest),
            "told": self.told,
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
        error_epsilon: smallest epsilon of the whole study that reaches it; None where none does, or nothing is forecast.
        losses: of each participant, by the caller's studies of the dataset; None where that is not known.
        assumed: names of columns of which nothing was guessed, which lie as :mod:`veilsum.typical` says.
        weights: by query, where several are asked, its part of what one record adds.
        affordable: how many such studies a budget of :data:`USUAL_BUDGET` bears from its start; None without noise.
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
    assumed: tuple[str, ...]
    weights: Mapping[str, float]
    affordable: int | None
    notes: tuple[str, ...]

    @property
    def blame(self) -> tuple[PlannedPart, ...]:
        """The main parts that keep the study from being worth its epsilon, the worst first."""
        found = [part for part in self.parts if part.main and part.outlook is not Outlook.GOOD]
        return tuple(sorted(found, key=lambda part: (part.told if part.told < OFTEN else 1.0, -part.typical)))

    @property
    def costliest(self) -> str | None:
        """The query for which more than half of what a record adds is."""
        return next((name for name, share in self.weights.items() if 0.5 < share < 1.0), None)

    @property
    def colluder_cost(self) -> float | None:
        """How much noisier sums are because k participants' shares are not counted: sqrt(n / h) - 1.

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
            **self.study.statements,
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
            "quantities": [item.to_json() for part in self.parts for item in part.forecasts],
            "verdict": self.verdict.value,
            "rule": {"tells_nothing_above": NOTHING_SHARE, "weak_above": WEAK_SHARE},
            "blame": [part.name for part in self.blame],
            "assumed": list(self.assumed),
            "affordable": {"budget": USUAL_BUDGET, "studies": self.affordable},
            "wanted": {"error": self.error, "epsilon": self.error_epsilon},
            "notes": list(self.notes),
        }


def plan_study(
    draft: StudyDraft, study: Study, *, error: float | None = None, spent: Mapping[str, Mapping[Mechanism, int]] | None = None
) -> StudyPlan:
    """Plan a study.

    Args:
        error: to price; by default the one that the study asks for, or :data:`WANTED_ERROR`.
        spent: releases of the dataset so far, by participant; None: not known.

    Raises:
        Misuse: a sum does not fit the encryption's parameters.
        ConfigurationError: the sites of a federation would refuse the study.
    """
    draft.method.check_federation(study)
    wanted = error or draft.request.privacy.error or WANTED_ERROR
    parts = divide(draft.forecast(study))
    reached: Study | None = study if wanted == draft.request.privacy.error else None
    if reached is None and parts:
        reached = draft.compile_for(wanted)
    return StudyPlan(
        study=study,
        records=draft.records,
        records_stated=draft.request.expected_records is not None,
        cost=study_cost(study, draft.records),
        alone=epsilon_alone(study),
        parts=parts,
        verdict=verdict(study, parts),
        error=wanted,
        error_epsilon=None if reached is None else reached.privacy.epsilon,
        losses=None if spent is None else participant_losses(study, spent),
        assumed=tuple(name for name in guess_levels(draft.schema) if name not in draft.request.expected),
        weights=draft.rehearsal.weights(study) if parts and len(draft.request.query) > 1 else {},
        affordable=None if study.privacy.epsilon is None else affordable(study, USUAL_BUDGET, MOST_STUDIES),
        notes=tuple(notes(study, draft.records)),
    )


def notes(study: Study, records: int) -> Iterator[str]:
    """Sentences on a delta that guarantees too little, on conditions that say nothing, on mean counts that are cut, on what a
    study shows of single sites, and on alignment in vain.

    Args:
        records: expected of each site.
    """
    if warning := delta_warning(study, records):
        yield warning
    yield from _settled(study)
    yield from _cut_means(study)
    yield from _disclosures(study)
    yield from _units(study)
    yield from _secure_steps(study)
    if study.privacy.noise != "none" and any(task.task == "power-moments" for task in study.tasks):
        from veilsum_coordinator.parts.moment_alignment import records_to_align

        needed = records_to_align(study)
        never = study.privacy.unit == "site" and (needed or 2) > 1  # a site's sum is as long as one record's
        yield from _vain_alignment(records, None if never else needed)


def _cut_means(study: Study) -> Iterator[str]:
    """A largest mean of counts that is stated below what is taken by default: nobody sees before the study whether it cuts."""
    steps = [task.task for task in AgreedStudy(study).tasks if isinstance(task.task, NewtonStep)]
    for task in [step for step in steps if step.parameters.family == "poisson"][:1]:
        outcome, most, largest = task.question.query.outcome, float(task.parameters.most), task.question.outcome.high
        if most < largest / 2.0:
            yield (
                f"Mean counts of {outcome!r} are taken as {most:g} at most, and a count may be {largest:g}:"
                " records of a larger mean bias the fit. Leave out `most` unless there are none."
            )


def _settled(study: Study) -> Iterator[str]:
    """Comparisons whose outcome the schema's bounds decide, which is hardly meant."""
    questions = [each for task in AgreedStudy(study).tasks for each in questions_of(task.task)]
    leaves = [(leaf, each.columns.domains) for each in questions for told in each.conditions for leaf in told.leaves()]
    for text in dict.fromkeys(leaf.settled(domains[leaf.column]) for leaf, domains in leaves):
        if text:
            yield f"A condition says nothing: {text}."


def _disclosures(study: Study) -> Iterator[str]:
    private = study.privacy.noise != "none"
    apart = [task.label for task in study.tasks if task.disclosure == "per-site"]
    if apart:
        shown = "noised, by site" if private else "of each site, exactly and without noise"
        yield (
            f"Disclosed per site: {', '.join(apart)}. Everyone who sees the sums sees these figures {shown}. A site takes part"
            " only if its policy allows per-site disclosure."
        )
    if not private and any(task.resolution for task in study.tasks):
        yield (
            "Training at sites without noise can be made to show one site's own: a site takes part only if its policy allows"
            " per-site disclosure."
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
    if study.privacy.noise != "none" and study.privacy.unit == "site":
        yield from _whole_sites(study)
    if study.privacy.noise != "none" and study.privacy.unit == "subject":
        twice = twofold_epsilon(study)
        cost = "the study costs more" if twice is None else f"epsilon is {rounded_up(twice)}"
        yield (
            "The guarantee is for one person at one site. Sites cannot know who else's patient a person is: for someone whose"
            f" records lie at two of the sites {cost}."
        )


def site_shares(study: Study) -> dict[str, tuple[float, int]]:
    """By label, what the noise of one release amounts to where each site counts as one.

    First, of how many sites the vectors are together as long, all in one direction, as the noise: a site's is no longer than
    the grid D, or than D times its steps where it trains, and d values of noise of standard deviation S are S sqrt(d) long.
    Second, with how many sites the noise is a third of their sum; noise that each site adds in full grows with the root of
    their number.
    """
    found = {}
    for task in (AgreedStudy(study).task(declared.label) for declared in study.tasks if not declared.derived):
        declared, cohort = task.declaration, study.sites
        trains, steps = declared.local_steps > 0, max(1, declared.local_steps)
        variance = cohort * declared.variance if trains else float(task.released_variance(cohort))
        share = math.sqrt(variance * task.shape.size / steps) / declared.grid
        alone = trains or study.privacy.noise == "local"
        found[task.label] = share, math.ceil((SITES_OF_NOISE * share) ** 2 / cohort if alone else SITES_OF_NOISE * share)
    return found


def _whole_sites(study: Study) -> Iterator[str]:
    label, (share, enough) = max(site_shares(study).items(), key=lambda item: item[1][1])
    verdict = "enough for that" if study.sites >= enough else "too few for that: expect noise"
    yield (
        "The guarantee is for all records of a site together; that a site takes part is not hidden. Each site counts as one,"
        f" however many records it has. The noise of a release of {label} is as long as the vectors of {share:,.1f} sites, and"
        f" with about {enough:,} sites it is a third of their sum at best: {study.sites} are {verdict}."
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
            " the parameter moments, or state a larger share."
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


def divide(forecasts: Sequence[Forecast]) -> tuple[PlannedPart, ...]:
    """Forecasts by part, in the order in which the parts come first."""
    names = dict.fromkeys(item.part for item in forecasts)
    return tuple(PlannedPart.of(name, [item for item in forecasts if item.part == name]) for name in names)


def verdict(study: Study, parts: Sequence[PlannedPart]) -> Verdict:
    """What becomes of the study's epsilon, by the module's rule."""
    main = [part.outlook for part in parts if part.main]
    if study.privacy.epsilon is None:
        return Verdict.EXACT
    if not main:
        return Verdict.NOT_FORECAST
    if all(outlook is Outlook.GOOD for outlook in main):
        return Verdict.WORTH
    return Verdict.NOT_WORTH if main.count(Outlook.NOTHING) > len(main) / 2 else Verdict.WEAK
