"""How often a study may ask this site for anything: one consent a round, bounded attempts, declared releases, lost charges.

What is counted are the attempts in the store, so that a coordinator which lets everything fail grows neither store nor ledger
without end. Each check yields a :class:`Refusal` for what is exceeded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Connection

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Refusal, RefusalCode
from veilsum_participant.protocol.budgets import releases_used
from veilsum_participant.protocol.cohorts import VECTORS, Weights
from veilsum_participant.protocol.open_studies import OpenStudy
from veilsum_participant.store.attempts import PAID, AttemptState, tally
from veilsum_participant.store.kept import attempt_state
from veilsum_privacy.computation.contribution import SitePlace
from veilsum_privacy.computation.declared import DeclaredTask
from veilsum_privacy.computation.weights import cohort_factors, largest_share
from veilsum_privacy.securesum.context import Assignment, decode_broadcast

if TYPE_CHECKING:
    from veilsum_participant.settings.config import Policy

TRIED_AGAIN = 256
"""Releases of a study for which ``policy.max_attempts`` are allowed, one at each other: a failure is two entries."""

FACTORS = "participation.factors"
"""Array of a weighted task's state: the factors of its last paid round."""


def count_faults(
    connection: Connection, opened: OpenStudy, assignment: Assignment, policy: Policy, *, resumed: bool
) -> Iterator[Refusal]:
    """What an assignment asks too often.

    Args:
        assignment: of a task that the study declares.
        resumed: it was answered before and is asked for again, so it is not a further attempt.
    """
    key, study = opened.digest, opened.study
    counted = tally(connection, key, assignment.round)
    if counted.total(PAID, present=True):
        yield Refusal(RefusalCode.ROUND, "This site consented in this round already.")
    if releases_used(connection, key, study, assignment.label, counted):
        yield Refusal(RefusalCode.TASK, "The task's releases are used up.")
    source = study.task(assignment.label).source
    if source is not None and not counted.labels(PAID)[source]:
        yield Refusal(RefusalCode.TASK, f"The task computes from {source!r}, which was not released yet.")
    lost = counted.total((AttemptState.CONSENTED,))
    if lost >= policy.max_lost:
        yield Refusal(RefusalCode.LOST, f"{lost} charges of this study were followed by no release.")
    if resumed:
        return
    tries = counted.total(tuple(AttemptState), present=True)
    if tries >= policy.max_attempts:
        yield Refusal(
            RefusalCode.ATTEMPTS,
            f"Round {assignment.round} was tried {tries} times; policy.max_attempts is {policy.max_attempts}.",
        )
    releases = sum(task.releases for task in study.tasks)
    most = policy.max_attempts * min(releases, TRIED_AGAIN) + max(0, releases - TRIED_AGAIN)
    if counted.total(tuple(AttemptState)) >= most:
        yield Refusal(RefusalCode.ATTEMPTS, f"The study made {most} attempts, as many as its releases could need.")


def weight_faults(
    agreed: DeclaredTask, broadcast: Mapping[str, Floats], place: SitePlace, policy: Policy
) -> Iterator[Refusal]:
    """Whether one member weighs so much in a weighted sum as if fewer than the policy's ``min_cohort`` took part; and, in a
    study of one cohort, whether its members had other weights before: sums of one cohort at unlike weights can be solved for
    what each member adds, as sums of unlike cohorts can.
    """
    study = agreed.study
    if not agreed.terms.weighted:
        return
    try:
        factors = cohort_factors(broadcast, place.cohort or tuple(range(study.sites)), study.sites)
    except HostileInput as error:
        yield Refusal(RefusalCode.CONTEXT, error.message)
        return
    if (share := largest_share(factors)) > (1.0 + 1e-9) / policy.min_cohort:
        yield Refusal(
            RefusalCode.DISCLOSURE,
            f"A member has {share:.3g} of the sum's weight, above 1 / min_cohort = 1/{policy.min_cohort}.",
        )
    if study.privacy.cohort_difference != "strict":
        return
    vectors = [own for own in agreed.agreed.tasks if own.terms.kind in VECTORS]
    if len(vectors) > 1:
        yield Refusal(RefusalCode.COHORT_CHANGED, "A weighted sum stands alone in a study that allows one cohort only.")
    before = place.state.get(FACTORS)
    if before is not None and not np.array_equal(before, factors):
        yield Refusal(
            RefusalCode.COHORT_CHANGED, "The study allows one cohort only, and its members had other weights before."
        )


def sum_weights(agreed: DeclaredTask, names: Sequence[str], factors: Floats | None) -> Weights | None:
    """What a task's sum multiplies each member's vector by; None of sums over records, and where factors are not known.

    Args:
        factors: (n,) of a weighted task's sum.
    """
    if agreed.terms.kind not in VECTORS or (agreed.terms.weighted and factors is None):
        return None
    return dict(zip(names, map(float, factors), strict=True)) if factors is not None else dict.fromkeys(names, 1.0)


def paid_weights(connection: Connection, agreed: DeclaredTask, attempt: int, names: Sequence[str]) -> Weights | None:
    """:func:`sum_weights` of an attempt, by what this site kept of it; of a study that is not strict it keeps none."""
    kept = attempt_state(connection, agreed.agreed.digest, attempt) if agreed.terms.weighted else None
    return sum_weights(agreed, names, decode_broadcast(kept or b"").get(FACTORS))


def kept_weights(agreed: DeclaredTask, broadcast: Mapping[str, Floats], place: SitePlace) -> Mapping[str, Floats]:
    """What a round's state must hold for :func:`weight_faults` of the next one."""
    study = agreed.study
    if study.privacy.cohort_difference != "strict" or not agreed.terms.weighted:
        return {}
    return {FACTORS: cohort_factors(broadcast, place.cohort or tuple(range(study.sites)), study.sites)}
