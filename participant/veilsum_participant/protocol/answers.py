"""How often an analyst is told whether a population bears a study: enough to work with, too seldom to search by.

Whoever may submit studies learns one bit of what is left by each that is let in or refused, and a bisection needs few. So an
answer counts for a day, by analyst and population, until everything that its study declares is paid: an accepted study that
releases less than it declared told as much as a refused one, for less. Who has had ``policy.max_budget_answers`` of them is
refused without a look at the budget, and at the cohorts of earlier sums, which a study that allows one cohort only tells of.
An unlimited budget bears everything, and has nothing to find but these: there an answer is about whom such a study invites.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, RowMapping, delete, or_, select
from sqlalchemy.dialects.sqlite import insert as upsert

from veilsum_node.canonical import digest
from veilsum_node.errors import Refusal, RefusalCode
from veilsum_participant.protocol.budgets import remaining
from veilsum_participant.protocol.cohorts import is_held
from veilsum_participant.site import LOG, Site
from veilsum_participant.store.populations import ANSWERS
from veilsum_participant.store.studies import find_study
from veilsum_privacy.study.study import Study, parse_study

DAY = 86_400


def answer_fault(connection: Connection, site: Site, key: bytes, study: Study, analyst: str) -> Refusal | None:
    """Why the analyst is not told today whether the population bears a study; None if it may be looked at.

    Args:
        key: the study's digest; its own answers do not count, so that it may be asked again.
        analyst: certified name.
    """
    if (about := _about(connection, site, key, study, analyst)) is None:
        return None
    population, most = site.config.population(study.dataset), site.config.policy.max_budget_answers
    recent = connection.execute(
        select(ANSWERS)
        .where(ANSWERS.c.analyst == analyst, ANSWERS.c.population == population)
        .where(ANSWERS.c.study != about, ~_gone(site.clock()))
    )
    unpaid = sum(not _is_paid(connection, row) for row in recent.mappings().all())
    if unpaid < most:
        return None
    LOG.warning("analyst %s has asked for the budget of population %s %d times within a day", analyst, population, unpaid)
    return Refusal(
        RefusalCode.ASKED,
        f"Analyst {analyst!r} was told {most} times within a day (policy.max_budget_answers) whether the population"
        f" {population} bears a study that was not paid since; its budget and cohorts were not looked at for this one.",
        "Let running studies release what they declare, ask again tomorrow, or let the operator raise the policy's bound.",
    )


def keep_answer(connection: Connection, site: Site, key: bytes, study: Study, analyst: str, *, fits: bool) -> None:
    """Remember an answer to a study, once for what it is about; former days' are dropped."""
    if (about := _about(connection, site, key, study, analyst)) is None:
        return
    now = site.clock()
    connection.execute(delete(ANSWERS).where(_gone(now)))
    values = {"analyst": analyst, "population": site.config.population(study.dataset), "time": now}
    kept = upsert(ANSWERS).values(study=about, fits=fits, **values)
    connection.execute(kept.on_conflict_do_update(index_elements=["study", "fits"], set_=values))


def _gone(now: int) -> ColumnElement[bool]:
    """Whether an answer counts no more: it is a day old, or a clock that was wrong dated it more than a day ahead."""
    return or_(ANSWERS.c.time <= now - DAY, ANSWERS.c.time >= now + DAY)


def _about(connection: Connection, site: Site, key: bytes, study: Study, analyst: str) -> bytes | None:
    """What an answer tells of: the study, or whom it invites; None where it tells nothing of the population's past."""
    if study.dataset not in site.config.datasets:
        return None
    population = site.config.population(study.dataset)
    budget = site.ledger.budget(population, connection)
    if budget is None or budget.epsilon is not None:
        return key
    invited = (name.encode() for name in (analyst, population, *sorted(study.participants)))
    return digest("veilsum/1/invited", *invited) if is_held(study) else None


def _is_paid(connection: Connection, row: RowMapping) -> bool:
    """Whether all that the study declared was paid; then the answer is dropped."""
    study = find_study(connection, row["study"]) if row["fits"] else None
    if study is None or remaining(connection, row["study"], parse_study(study.study), paid_only=True):
        return False
    connection.execute(delete(ANSWERS).where(ANSWERS.c.study == row["study"], ANSWERS.c.fits.is_(True)))
    return True
