"""The site's policy held against a study, a roster and a cohort. Pure checks; each failure is a Refusal with one code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from veilsum_participant.config import ParticipantConfig, Policy
from veilsum_privacy.accounting import GaussianEvent, rdp_epsilon
from veilsum_privacy.errors import HostileInput, Misuse, Refusal, RefusalCode
from veilsum_privacy.identity import Identity
from veilsum_privacy.noise import NoisePlan
from veilsum_privacy.securesum.context import study_parameters
from veilsum_privacy.securesum.roster import Member
from veilsum_privacy.study import Study
from veilsum_privacy.tasks import build_task

MAX_VALUES = 2**26
"""Longest vector of a task; a longer one would take gigabytes of a site's memory for each record."""


def study_epsilon(study: Study, delta: float) -> float:
    """What all declared releases cost together by RDP at ``delta``; infinite if one is without noise."""
    if any(task.variance == 0 for task in study.tasks):
        return math.inf
    return rdp_epsilon([GaussianEvent(task.grid, Fraction(task.variance), steps=task.releases) for task in study.tasks], delta)


def check_study(study: Study, analyst: Identity, config: ParticipantConfig, own: str, delta: float | None) -> None:
    """Hold a study against the policy before enrolment.

    Args:
        delta: of the dataset's budget, None if it has none; see :func:`check_terms`.

    Raises:
        Refusal: with the code of the first rule it breaks.
    """
    check_analyst(analyst.name, config.policy)
    check_terms(study, config, own, delta)


def check_analyst(name: str, policy: Policy) -> None:
    """Check that the site accepts studies of this analyst.

    Raises:
        Refusal: it does not.
    """
    if "*" not in policy.analysts and name not in policy.analysts:
        raise Refusal(RefusalCode.ANALYST, f"Analyst {name!r} is not among policy.analysts.")


def check_terms(study: Study, config: ParticipantConfig, own: str, delta: float | None) -> None:
    """Hold what a study asks for against the policy: before enrolment, and again before consent, for the operator may have
    made the policy stricter.

    The study's own epsilon is an analyst's word; what counts is computed from the noise that its tasks declare, at the delta
    of the dataset's budget (the study's where there is no budget, and then nothing can be reserved).

    Raises:
        Refusal: with the code of the first rule it breaks.
    """
    policy = config.policy
    if own not in study.participants:
        raise Refusal(RefusalCode.STUDY_INVALID, "The study does not name this participant.")
    if study.method not in policy.methods:
        raise Refusal(RefusalCode.METHOD, f"Method {study.method!r} is not among policy.methods.")
    if study.expires - study.created > 86400 * policy.study_days:
        raise Refusal(RefusalCode.STUDY_INVALID, f"The study stays open for more than {policy.study_days} days.")
    if study.dataset not in config.datasets:
        raise Refusal(RefusalCode.DATASET, f"Dataset {study.dataset!r} is not offered here.")
    if study.privacy.noise not in policy.noise:
        raise Refusal(RefusalCode.NOISE, f"Noise {study.privacy.noise!r} is not among policy.noise.")
    if study.privacy.noise != "none":
        cost = study_epsilon(study, study.privacy.delta)
        if study.privacy.epsilon is None or cost > study.privacy.epsilon * (1 + 1e-9):
            raise Refusal(RefusalCode.STUDY_INVALID, "The study costs more than its epsilon says.")
        if delta is not None:
            cost = study_epsilon(study, delta)
        if cost > policy.max_epsilon:
            raise Refusal(
                RefusalCode.BUDGET, f"The study costs epsilon {cost:.3f}; policy.max_epsilon is {policy.max_epsilon}."
            )
    elif study.privacy.epsilon is not None:
        raise Refusal(RefusalCode.STUDY_INVALID, "The study states an epsilon, but has no noise.")
    if any(weight != 1 for weight in study.weights.values()):
        raise Refusal(RefusalCode.WEIGHTS, "The study weighs sites unequally.")
    for declaration in study.tasks:
        if declaration.task not in policy.tasks:
            raise Refusal(RefusalCode.TASK, f"Task {declaration.task!r} is not among policy.tasks.")
        try:
            task = build_task(declaration.task, declaration.parameters, study.data)
        except HostileInput as error:
            raise Refusal(RefusalCode.STUDY_INVALID, error.message) from error
        if (size := task.layout().size) > MAX_VALUES:
            raise Refusal(RefusalCode.STUDY_INVALID, f"A task's vector of {size} values is larger than any site computes.")
        if declaration.disclosure not in policy.disclosures or declaration.disclosure != task.disclosure:
            raise Refusal(RefusalCode.DISCLOSURE, f"Disclosure {declaration.disclosure!r} is not accepted.")
    try:
        study_parameters(study, len(study.participants))
    except Misuse as error:
        raise Refusal(RefusalCode.PRECISION, error.message) from error


def trusted(members: Sequence[Member], policy: Policy, own: str) -> int:
    """How many of the members are trusted: pinned by key fingerprint, and this site itself."""
    return sum(member.name == own or policy.trusted.get(member.name) == member.identity.fingerprint for member in members)


def check_members(members: Sequence[Member], study: Study, policy: Policy, own: str) -> None:
    """Hold a roster or a cohort against the policy.

    Raises:
        Refusal: too small, too few trusted, or a pinned name under another key.
    """
    smallest = max(policy.min_cohort, study.privacy.min_cohort)
    if len(members) < smallest:
        raise Refusal(RefusalCode.COHORT_SMALL, f"A cohort of {len(members)} is below the smallest of {smallest}.")
    for member in members:
        pinned = policy.trusted.get(member.name)
        if pinned is not None and pinned != member.identity.fingerprint:
            raise Refusal(
                RefusalCode.COHORT_TRUST,
                f"{member.name!r} has another key than the one pinned.",
                "If the site changed its key, confirm the new fingerprint with its operator and pin it.",
            )
    count = trusted(members, policy, own)
    if count < policy.min_trusted:
        raise Refusal(RefusalCode.COHORT_TRUST, f"{count} of the cohort are trusted, below min_trusted {policy.min_trusted}.")


def check_noise(noise: NoisePlan, members: Sequence[Member], policy: Policy, own: str) -> None:
    """Check that the trusted shares, colluders taken off, carry the noise that the event counts.

    Raises:
        Refusal: fewer trusted shares than the plan calls honest.
    """
    if noise.kind not in policy.noise:
        raise Refusal(RefusalCode.NOISE, f"Noise {noise.kind!r} is not among policy.noise.")
    if noise.kind != "distributed" or noise.honest == 1:
        return
    counted = trusted(members, policy, own) - noise.colluders
    if counted < noise.honest:
        raise Refusal(
            RefusalCode.NOISE,
            f"The plan counts {noise.honest} honest shares; trusted peers less colluders give {counted}.",
            'Pin the peers\' key fingerprints under policy.trusted, or ask for a study with noise = "local".',
        )
