"""Studies that wait for the operator's word: what they ask and cost here, and the word itself.

For commands and consoles, and for the site's own command that is told of them; a participant that runs answers studies without
it (:mod:`veilsum_participant.protocol.approval`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, select

from veilsum_node.errors import Misuse, Refusal, RefusalCode
from veilsum_participant.protocol.approval import (
    UNDECIDED,
    SignedStudy,
    approvals,
    declined,
    requested,
    study_refusal,
    verify_study,
)
from veilsum_participant.protocol.budgets import promised, record_refused_study
from veilsum_participant.protocol.four_eyes import check_second
from veilsum_participant.protocol.membership import Membership
from veilsum_participant.protocol.shown import shown_text
from veilsum_participant.site import Site
from veilsum_participant.store.pending import PendingRow, PendingState, change_pending, find_pending, pending_studies
from veilsum_participant.store.studies import STUDIES, StudyState, open_studies
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.ledger import Mechanism
from veilsum_privacy.ledger.statements import declared_mechanisms
from veilsum_privacy.study.study import Study, parse_study

MOST_SUCH = 1000
"""Further studies of the same price that are counted at most."""

_PREFIX = 4  # hexadecimal digits that an operator gives at least


@dataclass(frozen=True)
class Waiting:
    """A study that waits for the operator's word, or has it.

    Attributes:
        analyst: certified name of who signed it.
        time: when it came, unix seconds.
        state: waiting, approved, declined or refused.
        epsilon: what it costs by its own rule at the budget's delta; infinite without noise.
        before: epsilon that the population stands at with what other studies here may still ask for.
        after: the same with this study.
        obstacle: what speaks against it now.
        approved_by: who said yes to it so far.
        needs: how many people have to.
        deadline: until when the coordinator waits for an answer, by its own word; None where it did not say.
        delta: of the population's budget; None without one.
        leaves: how many more such studies the budget bears after this one, :data:`MOST_SUCH` at most; None where it has no
            bound, or was not asked for.
        earlier: the newest study of the analyst on the dataset that this site was enrolled in before; None for none.
        asked: what a study asks, in words.
    """

    digest: bytes
    study: Study
    analyst: str
    time: int
    state: str
    epsilon: float
    before: float | None
    after: float | None
    obstacle: Refusal | None
    asked: Callable[[Study], Mapping[str, str]] = field(repr=False)
    approved_by: tuple[str, ...] = ()
    needs: int = 1
    deadline: int | None = None
    delta: float | None = None
    leaves: int | None = None
    earlier: Study | None = None


def waiting_studies(site: Site) -> list[Waiting]:
    """Every study that waits or was decided on lately, oldest first."""
    with site.database.reading() as connection:
        return [_waiting(connection, site, row) for row in pending_studies(connection)]


def shown_study(site: Site, name: str) -> Waiting:
    """A study that waits or was decided on, with all that somebody is shown who decides.

    Args:
        name: the first digits of its digest.

    Raises:
        Misuse: no study, or several, wait under that name.
    """
    with site.database.reading() as connection:
        return _waiting(connection, site, _find(connection, name, tuple(PendingState)), whole=True)


def approve(site: Site, name: str, operator: str, reason: str = "") -> Waiting:
    """Give somebody's word for a study; the running participant enrols at its next tick once all have given it who must.

    Args:
        name: the first digits of its digest.
        operator: who decides, up to 100 characters.
        reason: for the record, up to 500 characters.

    Raises:
        Misuse: no study, or several, wait under that name; the operator's name or the reason is not such a text; or the study
            needs another person's word, by a name that is not taken for the first one's.
        Refusal: policy or budget speak against it now.
    """
    operator, reason = _operator(operator), _reason(reason) if reason else ""
    shown = _shown(site, name, (PendingState.WAITING,))
    with site.database.transaction() as connection:
        row = _find(connection, name, (PendingState.WAITING,))
        found = _waiting(connection, site, row)
        if found.obstacle is not None:
            raise found.obstacle
        if found.needs > 1:
            check_second(operator, found.approved_by)
        asked = requested(site, row.digest, found.study, row.analyst)
        site.ledger.decide(connection, asked, approved=True, operator=operator, reason=reason, shown=shown)
        if len(found.approved_by) + 1 >= found.needs:
            change_pending(connection, row.digest, state=PendingState.APPROVED)
        return _waiting(connection, site, _row(connection, row.digest))


def decline(site: Site, name: str, operator: str, reason: str) -> Waiting:
    """Refuse a study for good; the ledger keeps name and reason, the coordinator hears a code.

    Arguments as of :func:`approve`.

    Raises:
        Misuse: no study, or several, wait under that name; or the operator's name or the reason is empty or too long.
    """
    operator, reason = _operator(operator), _reason(reason)
    shown = _shown(site, name, UNDECIDED)
    with site.database.transaction() as connection:
        row = _find(connection, name, UNDECIDED)
        found = _waiting(connection, site, row)
        asked = requested(site, row.digest, found.study, row.analyst)
        site.ledger.decide(connection, asked, approved=False, operator=operator, reason=reason, shown=shown)
        change_pending(connection, row.digest, state=PendingState.DECLINED, reason=reason)
        refusal = Refusal(RefusalCode.APPROVAL, declined(reason))
        record_refused_study(connection, site, asked, found.study, refusal, by_operator=True)
        return _waiting(connection, site, _row(connection, row.digest))


def _shown(site: Site, name: str, states: tuple[PendingState, ...]) -> bytes:
    """SHA-256 of what is shown of a study; its figures take time, so they are computed before the write lock is taken."""
    with site.database.reading() as connection:
        item = _waiting(connection, site, _find(connection, name, states), whole=True)
    return hashlib.sha256(shown_text(item).encode()).digest()


def _operator(name: str) -> str:
    return _text(name, 100, "Who decides is a name", "Give the name of the person with --as.")


def _reason(reason: str) -> str:
    return _text(reason, 500, "A reason is a text", "Say in a sentence why the site decides so.")


def _text(text: str, longest: int, what: str, advice: str) -> str:
    text = " ".join(text.split())
    if not 0 < len(text) <= longest or not text.isprintable():
        raise Misuse(f"{what} of 1 to {longest} characters.", advice)
    return text


def _find(connection: Connection, name: str, states: tuple[PendingState, ...]) -> PendingRow:
    rows = [row for row in pending_studies(connection) if row.state in states]
    found = [row for row in rows if len(name) >= _PREFIX and row.digest.hex().startswith(name.lower())]
    if len(found) == 1:
        return found[0]
    advice = "Give more of its digits; `veilsum participant studies` lists them." if rows else "None waits now."
    raise Misuse(f"{'No study waits' if not found else 'Several studies wait'} under {name!r}.", advice)


def _row(connection: Connection, digest: bytes) -> PendingRow:
    row = find_pending(connection, digest)
    assert row is not None  # noqa: S101  read in the transaction that found it
    return row


def most_borne(bears: Callable[[int], bool], most: int) -> int:
    """How many more studies a budget bears, ``most`` at most: ``bears`` says it of a number, and is true below it as well."""
    low, high = 0, 1
    while high <= most and bears(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bears(middle) else (low, middle)
    return min(low, most)


def _such_studies(connection: Connection, site: Site, population: str, others: Counter[Mechanism], study: Study) -> int | None:
    """How many studies of the same price the budget bears on top of ``others``; None where it has no bound."""
    price = declared_mechanisms(study)

    def bears(count: int) -> bool:
        asked = others + Counter({mechanism: releases * count for mechanism, releases in price.items()})
        return site.ledger.headroom(population, asked, connection).admits

    if site.ledger.headroom(population, others, connection).budget.epsilon is None:
        return None
    return most_borne(bears, MOST_SUCH)


def _earlier(connection: Connection, study: Study, key: bytes, analyst: str) -> Study | None:
    """The newest study that the analyst had on the dataset before."""
    others = select(STUDIES.c.study).where(STUDIES.c.analyst == analyst, STUDIES.c.digest != key)
    known = (parse_study(bytes(data)) for data in connection.scalars(others))
    return max((item for item in known if item.dataset == study.dataset), key=lambda item: item.created, default=None)


def _waiting(connection: Connection, site: Site, row: PendingRow, *, whole: bool = False) -> Waiting:
    signed = SignedStudy(row.study, row.signature, row.certificate, row.coordinator)
    agreed, analyst, obstacle = site.agreed(row.study), row.analyst, None
    study = agreed.study
    try:
        verify_study(site, row.digest, signed)
        obstacle = study_refusal(connection, site, agreed, analyst)
    except Refusal as refusal:  # its certificate or its time has run out since
        obstacle = refusal
    delta = site.budget_delta(study.dataset, connection)
    before, after, leaves = None, None, None
    if delta is not None:
        population = site.config.population(study.dataset)
        others = promised(connection, site.config, population, row.digest)
        before = site.ledger.headroom(population, others, connection).after
        after = site.ledger.headroom(population, others + declared_mechanisms(study), connection).after
        if whole and study.privacy.noise != "none":
            leaves = _such_studies(connection, site, population, others + declared_mechanisms(study), study)
    epsilon = study_epsilon(study, study.privacy.delta if delta is None else delta)
    above = site.config.policy.four_eyes_above
    return Waiting(
        asked=site.studies.asked,
        approved_by=tuple(str(entry.detail["operator"]) for entry in approvals(connection, site, row)),
        deadline=row.deadline,
        delta=delta,
        leaves=leaves,
        earlier=_earlier(connection, study, row.digest, analyst) if whole else None,
        needs=1 if above is None or epsilon <= above else 2,
        digest=row.digest,
        study=study,
        analyst=analyst,
        time=row.time,
        state=row.state,
        epsilon=epsilon,
        before=before,
        after=after,
        obstacle=obstacle,
    )


def leave_study(site: Site, name: str) -> bytes:
    """Leave the one open study whose digest begins with ``name`` (hexadecimal); returns its digest.

    Raises:
        Misuse: no open study or several begin so.
    """
    with site.database.reading() as connection:
        keys = [bytes(row.digest) for row in open_studies(connection)]
    found = [key for key in keys if len(name) >= 4 and key.hex().startswith(name.lower())]
    if len(found) != 1:
        known = ", ".join(key.hex()[:12] for key in keys) or "none"
        raise Misuse(f"{len(found)} open studies begin with {name!r}.", f"Open studies: {known}.")
    Membership(site).leave(found[0], StudyState.LEFT)
    return found[0]
