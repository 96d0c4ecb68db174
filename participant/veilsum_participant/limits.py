"""How often a study may ask this site for anything: one consent a round, bounded attempts, declared releases, lost charges.

What is counted are the attempts in the store, so that a coordinator which lets everything fail grows neither store nor ledger
without end. Each check yields a :class:`Refusal` for what is exceeded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection

from veilsum_participant import store
from veilsum_participant.budgets import releases_used
from veilsum_participant.config import Policy
from veilsum_participant.site import OpenStudy
from veilsum_privacy.errors import Refusal, RefusalCode
from veilsum_privacy.securesum.context import Assignment


def count_faults(
    connection: Connection, opened: OpenStudy, assignment: Assignment, policy: Policy, *, resumed: bool
) -> Iterator[Refusal]:
    """What an assignment asks too often.

    Args:
        assignment: of a task that the study declares.
        resumed: it was answered before and is asked for again, so it is no further attempt.
    """
    key, study = opened.digest, opened.study
    if store.count_attempts(connection, key, store.PAID, round=assignment.round):
        yield Refusal(RefusalCode.ROUND, "This site consented in this round already.")
    if releases_used(connection, key, study, assignment.label):
        yield Refusal(RefusalCode.TASK, "The task's releases are used up.")
    source = study.task(assignment.label).source
    if source is not None and not store.labels(connection, key, store.PAID)[source]:
        yield Refusal(RefusalCode.TASK, f"The task computes from {source!r}, which was not released yet.")
    lost = store.count_attempts(connection, key, ("consented",))
    if lost >= policy.max_lost:
        yield Refusal(RefusalCode.LOST, f"{lost} charges of this study were followed by no release.")
    if resumed:
        return
    tries = store.count_attempts(connection, key, store.ALL, round=assignment.round)
    if tries >= policy.max_attempts:
        yield Refusal(
            RefusalCode.ATTEMPTS,
            f"Round {assignment.round} was tried {tries} times; policy.max_attempts is {policy.max_attempts}.",
        )
    most = policy.max_attempts * sum(task.releases for task in study.tasks)
    if store.count_attempts(connection, key, store.ALL) >= most:
        yield Refusal(RefusalCode.ATTEMPTS, f"The study made {most} attempts, as many as its releases could need.")


def cohort_faults(connection: Connection, opened: OpenStudy, names: Sequence[str]) -> Iterator[Refusal]:
    """Whether a study of one cohort only asks for another than it had."""
    if opened.study.privacy.cohort_difference != "strict":
        return
    first = opened.row["strict_cohort"]
    if first is not None and json.loads(first) != list(names):
        yield Refusal(RefusalCode.COHORT_CHANGED, "The study allows one cohort only, and this is another.")
    if first is None and store.count_attempts(connection, opened.digest, store.PAID):
        yield Refusal(
            RefusalCode.COHORT_CHANGED, "The study allows one cohort only, and a restored backup does not know which it was."
        )
