"""Whether the site takes part in a study: by its policy and budget, and where the policy says so by the operator's own word.

With ``approval = "manual"`` a study that policy and budget bear waits in the store, neither enrolled nor refused. The
operator's commands act on the same file while the participant runs; it sees their word at its next tick and holds the study
against everything once more before it enrols. This module says nothing to the coordinator.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection

from veilsum_node.errors import HostileInput, Misuse, Refusal, RefusalCode
from veilsum_node.identity import Label, Role, verify, verify_certificate
from veilsum_node.phrases import listed
from veilsum_node.telemetry.logs import about
from veilsum_participant.protocol.answers import answer_fault, keep_answer
from veilsum_participant.protocol.budgets import budget_faults, promised, record_refused_study, too_many
from veilsum_participant.protocol.cohorts import joining_faults
from veilsum_participant.protocol.open_studies import check_directory
from veilsum_participant.protocol.policy import study_faults
from veilsum_participant.protocol.shown import shown_text
from veilsum_participant.site import LOG, Site
from veilsum_participant.store.pending import (
    PendingRow,
    PendingState,
    add_pending,
    change_pending,
    drop_pending,
    find_pending,
    pending_studies,
)
from veilsum_participant.store.studies import studies_of
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.computation.declared import DeclaredStudy
from veilsum_privacy.ledger import Kind, Mechanism
from veilsum_privacy.ledger.entries import Entry
from veilsum_privacy.ledger.statements import RequestedStudy, declared_mechanisms
from veilsum_privacy.study.study import Study, parse_study, study_digest

MOST_WAITING = 256
"""Studies that wait for the operator's word at most; further ones are refused."""

MOST_SUCH = 1000
"""Further studies of the same price that are counted at most."""

UNDECIDED = (PendingState.WAITING, PendingState.APPROVED)
"""States of a study that may still be enrolled in; ``declined`` becomes ``refused`` once the coordinator is told."""

_PREFIX = 4  # hexadecimal digits that an operator gives at least
_LONGEST_REASON = 500
_LONGEST_NAME = 100


@dataclass(frozen=True)
class SignedStudy:
    """A study as the coordinator sent it.

    Attributes:
        data: the exact bytes that the analyst signed.
        signature: the analyst's.
        certificate: DER of the analyst's certificate.
        coordinator: certified name of the coordinator that sent it.
        seconds_left: how long that still waits for an answer, by its word; 0 where it does not say.
    """

    data: bytes
    signature: bytes
    certificate: bytes
    coordinator: str
    seconds_left: int = 0

    def deadline(self, now: int, study: Study) -> int | None:
        """Until when the coordinator waits: at most until the study ends."""
        return min(now + self.seconds_left, study.expires) if self.seconds_left else None


def verify_study(site: Site, key: bytes, signed: SignedStudy) -> tuple[DeclaredStudy, str]:
    """Verify a study's digest, signature, federation, coordinator and time; returns it with its analyst's certified name.

    Raises:
        Refusal: with the code of the first thing that is wrong: what is not signed is not read further.
    """
    now = site.clock()
    if key != study_digest(signed.data):
        raise Refusal(RefusalCode.STUDY_INVALID, "The coordinator sent a different study than it announced.")
    try:
        analyst = verify_certificate(signed.certificate, site.credentials.authority, now, Role.ANALYST)
        verify(analyst.public_key, Label.STUDY, signed.data, signed.signature)
    except HostileInput as error:
        raise Refusal(RefusalCode.STUDY_SIGNATURE, error.message) from error
    if site.directory is not None:
        check_directory(site)
        listed = site.directory.keys(Role.ANALYST)
        if listed.get(analyst.name, analyst.fingerprint) != analyst.fingerprint:
            raise Refusal(RefusalCode.ANALYST, f"Analyst {analyst.name!r} has another key than the directory's.")
    try:
        agreed = site.agreed(signed.data)
    except HostileInput as error:
        raise Refusal(RefusalCode.STUDY_INVALID, error.message) from error
    study = agreed.study
    if study.federation != site.credentials.federation_id or study.coordinator != signed.coordinator:
        raise Refusal(RefusalCode.STUDY_REPLAYED, "The study is for another federation or coordinator.")
    if not study.created - 300 <= now < study.expires:
        raise Refusal(RefusalCode.STUDY_EXPIRED, "The study has expired, or this site's clock is behind.")
    return agreed, analyst.name


def policy_refusals(connection: Connection, site: Site, agreed: DeclaredStudy, analyst: str) -> list[Refusal]:
    """Everything that speaks against a verified study, but for what its population has spent."""
    study = agreed.study
    delta = site.budget_delta(study.dataset, connection)
    faults = [*study_faults(agreed, analyst, site.config, site.name, delta)]
    if site.withheld(study.dataset):
        told = f"Dataset {study.dataset!r} is withheld: its records do not suit this site's own schema of it."
        faults.append(
            Refusal(RefusalCode.DATASET, told, "Ask the site; `veilsum participant check` shows it what to correct.")
        )
    return [*faults, *joining_faults(connection, study, site.config, site.name)]


def study_refusal(connection: Connection, site: Site, agreed: DeclaredStudy, analyst: str) -> Refusal | None:
    """Everything in policy and budget that speaks against a verified study, as one refusal; None for nothing."""
    budget = budget_faults(connection, site.config, site.ledger, agreed.digest, agreed.study)
    return Refusal.of([*policy_refusals(connection, site, agreed, analyst), *budget])


def _answer(connection: Connection, site: Site, agreed: DeclaredStudy, analyst: str) -> Refusal | None:
    """What an analyst is told of a study, which says something of the budget and so is not told without end."""
    key, study = agreed.digest, agreed.study
    policy, asked = policy_refusals(connection, site, agreed, analyst), answer_fault(connection, site, key, study, analyst)
    if asked is not None:  # the budget is not looked at, so that nothing about this refusal depends on it
        return Refusal.of([*policy, asked])
    budget = list(budget_faults(connection, site.config, site.ledger, key, study))
    keep_answer(connection, site, key, study, analyst, fits=not budget)
    return Refusal.of([*policy, *budget])


def rehearsal_faults(site: Site, agreed: DeclaredStudy) -> Iterator[Refusal]:
    """What would go wrong in any round of a study that the policy accepts, found without reading a record."""
    study = agreed.study
    yield from site.structure_faults(study.dataset, study.data)
    yield from site.encoder_faults(study)
    for declaration in study.tasks:
        task = agreed.task(declaration.label)
        try:
            site.studies.rehearse(task, None)
        except HostileInput as error:
            yield Refusal(RefusalCode.STUDY_INVALID, error.message, error.advice)


def decide(connection: Connection, site: Site, signed: SignedStudy, agreed: DeclaredStudy, analyst: str) -> Refusal | None:
    """Decide on a verified study in the caller's transaction, which may enrol at once if it does not wait in the store.

    Returns:
        Why it is refused, entered into the ledger; None if it is accepted or waits.
    """
    key, study = agreed.digest, agreed.study
    row = find_pending(connection, key)
    if row is not None and row.state not in UNDECIDED:
        change_pending(connection, key, state=PendingState.REFUSED)
        return Refusal(RefusalCode.APPROVAL, _declined(row.reason))
    approved = row is not None and row.state == PendingState.APPROVED  # the operator's word, which no bound holds back
    if row is not None and approved:
        names = listed([entry.detail["operator"] for entry in _approvals(connection, site, row)] or ["the operator"])
        LOG.info("study %s (%s) was approved by %s", study.name, analyst, names, extra=about("approved", digest=key))
    refusal = (study_refusal if approved else _answer)(connection, site, agreed, analyst)
    refusal = refusal or Refusal.of(rehearsal_faults(site, agreed))
    if refusal is not None:
        drop_pending(connection, key)
        record_refused_study(connection, site, _asked(site, key, study, analyst), study, refusal)
        return refusal
    waits = site.config.policy.approval == "manual" and not approved
    if not waits:
        drop_pending(connection, key)
    elif row is None:
        if sum(item.state in UNDECIDED for item in pending_studies(connection)) >= MOST_WAITING:
            return Refusal(RefusalCode.APPROVAL, f"{MOST_WAITING} studies wait for the operator's word already.")
        add_pending(
            connection,
            digest=key,
            study=signed.data,
            signature=signed.signature,
            certificate=signed.certificate,
            coordinator=signed.coordinator,
            analyst=analyst,
            time=site.clock(),
            state=PendingState.WAITING,
            deadline=signed.deadline(site.clock(), study),
        )
        fields = about("waiting", study=study.name, digest=key)
        LOG.warning("study %s (%s) waits: veilsum participant approve %s", study.name, analyst, key.hex()[:12], extra=fields)
    elif signed.seconds_left:  # asked again: a restarted coordinator begins to wait anew
        change_pending(connection, key, deadline=signed.deadline(site.clock(), study))
    return None


@dataclass(frozen=True)
class Waiting:
    """A study that waits for the operator's word, or has it.

    Attributes:
        digest: of the study.
        study: what it asks for.
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
            needs another person's word.
        Refusal: policy or budget speak against it now.
    """
    operator, reason = _operator(operator), _reason(reason) if reason else ""
    shown = _shown(site, name, (PendingState.WAITING,))
    with site.database.transaction() as connection:
        row = _find(connection, name, (PendingState.WAITING,))
        found = _waiting(connection, site, row)
        if found.obstacle is not None:
            raise found.obstacle
        if operator.casefold() in map(str.casefold, found.approved_by):
            raise Misuse(
                f"{operator} approved this study already; it needs {found.needs} people.", "Let somebody else approve it, too."
            )
        asked = _asked(site, row.digest, found.study, row.analyst)
        site.ledger.decide(connection, asked, approved=True, operator=operator, reason=reason, shown=shown)
        if len(found.approved_by) + 1 >= found.needs:
            change_pending(connection, row.digest, state=PendingState.APPROVED)
        return _waiting(connection, site, _row(connection, row.digest))


def decline(site: Site, name: str, operator: str, reason: str) -> Waiting:
    """Refuse a study for good; the ledger keeps name and reason, the coordinator hears a code.

    Args:
        name: the first digits of its digest.
        operator: who decides, up to 100 characters.
        reason: for the record, up to 500 characters.

    Raises:
        Misuse: no study, or several, wait under that name; or the operator's name or the reason is empty or too long.
    """
    operator, reason = _operator(operator), _reason(reason)
    shown = _shown(site, name, UNDECIDED)
    with site.database.transaction() as connection:
        row = _find(connection, name, UNDECIDED)
        found = _waiting(connection, site, row)
        asked = _asked(site, row.digest, found.study, row.analyst)
        site.ledger.decide(connection, asked, approved=False, operator=operator, reason=reason, shown=shown)
        change_pending(connection, row.digest, state=PendingState.DECLINED, reason=reason)
        refusal = Refusal(RefusalCode.APPROVAL, _declined(reason))
        record_refused_study(connection, site, asked, found.study, refusal, by_operator=True)
        return _waiting(connection, site, _row(connection, row.digest))


def waiting_digests(site: Site) -> list[bytes]:
    """Digests of the studies that wait for somebody's word, oldest first."""
    with site.database.reading() as connection:
        return [row.digest for row in pending_studies(connection) if row.state is PendingState.WAITING]


def decided_studies(site: Site) -> list[bytes]:
    """Digests of studies that the operator decided on and the coordinator has not heard of."""
    with site.database.reading() as connection:
        return [
            row.digest for row in pending_studies(connection) if row.state in (PendingState.APPROVED, PendingState.DECLINED)
        ]


def end_waiting(connection: Connection, site: Site, row: PendingRow, why: str) -> None:
    """Forget a study that waited or was decided on; if nobody decided, ledger and log say that it ended without an answer.

    Args:
        connection: of a write transaction.
        why: it ended, for the record.
    """
    drop_pending(connection, row.digest)
    if row.state not in UNDECIDED:
        return
    study, waited = parse_study(row.study), max(0, site.clock() - row.time)
    fields = about("expired", study=study.name, digest=row.digest)
    LOG.warning(
        "study %s (%s) ended after waiting for %d s, %s: %s",
        study.name,
        row.analyst,
        waited,
        "approved but not joined" if row.state is PendingState.APPROVED else "without an answer",
        why,
        extra=fields,
    )
    if not too_many(connection, site, Kind.EXPIRED):
        site.ledger.expire(connection, _asked(site, row.digest, study, row.analyst), since=row.time, why=why)


def _asked(site: Site, key: bytes, study: Study, analyst: str) -> RequestedStudy:
    population = site.config.population(study.dataset) if study.dataset in site.config.datasets else None
    return RequestedStudy(
        key, study.name, study.method, study.dataset, analyst, population, study.data.file_columns, study.purpose
    )


def _approvals(connection: Connection, site: Site, row: PendingRow) -> list[Entry]:
    """Who approved a study since it came; what was said of it before it had ended once does not count."""
    ended = site.ledger.entries(kind=Kind.EXPIRED, study=row.digest, connection=connection)
    after = ended[-1].seq if ended else 0
    found = site.ledger.entries(kind=Kind.APPROVAL, study=row.digest, connection=connection)
    return [entry for entry in found if entry.seq > after and entry.time >= row.time]


def _shown(site: Site, name: str, states: tuple[PendingState, ...]) -> bytes:
    """SHA-256 of what is shown of a study; its figures take time, so they are computed before the write lock is taken."""
    with site.database.reading() as connection:
        item = _waiting(connection, site, _find(connection, name, states), whole=True)
    return hashlib.sha256(shown_text(item).encode()).digest()


def _operator(name: str) -> str:
    name = " ".join(name.split())
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise Misuse(f"Who decides is a name of 1 to {_LONGEST_NAME} characters.", "Give the name of the person with --as.")
    return name


def _reason(reason: str) -> str:
    reason = " ".join(reason.split())
    if not 0 < len(reason) <= _LONGEST_REASON or not reason.isprintable():
        raise Misuse(f"A reason is a text of 1 to {_LONGEST_REASON} characters.", "Say in a sentence why the site decides so.")
    return reason


def _declined(reason: str) -> str:
    return f"The operator declined the study: {reason}"


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
    known = (parse_study(data) for digest, data in studies_of(connection, analyst) if digest != key)
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
        approved_by=tuple(str(entry.detail["operator"]) for entry in _approvals(connection, site, row)),
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
