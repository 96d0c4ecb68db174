"""Whether the site takes part in a study: by its policy and budget, and where the policy says so by the operator's own word.

With ``approval = "manual"`` a study that policy and budget bear waits in the store, neither enrolled nor refused. The
operator's commands (:mod:`veilsum_participant.protocol.decisions`) act on the same file while the participant runs; it sees
their word at its next tick and holds the study against everything once more before it enrols. This module says nothing to the
coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from veilsum_node.errors import HostileInput, Refusal, RefusalCode
from veilsum_node.identity import Label, Role, verify, verify_certificate
from veilsum_node.phrases import listed
from veilsum_node.telemetry.logs import about
from veilsum_participant.protocol.answers import answer_fault, keep_answer
from veilsum_participant.protocol.budgets import budget_faults, record_refused_study, too_many
from veilsum_participant.protocol.cohorts import joining_faults
from veilsum_participant.protocol.open_studies import check_directory
from veilsum_participant.protocol.policy import analyst_faults, study_faults
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
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.entries import Entry
from veilsum_privacy.ledger.statements import RequestedStudy
from veilsum_privacy.study.study import Study, parse_study, study_digest

if TYPE_CHECKING:
    from veilsum_privacy.computation.declared import DeclaredStudy

MOST_WAITING = 256
"""Studies that wait for the operator's word at most; further ones are refused."""

UNDECIDED = (PendingState.WAITING, PendingState.APPROVED)
"""States of a study that may still be enrolled in; ``declined`` becomes ``refused`` once the coordinator is told."""


@dataclass(frozen=True)
class SignedStudy:
    """A study as the coordinator sent it.

    Attributes:
        data: the exact bytes that the analyst signed.
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
    if site.directory is not None and not any(analyst_faults(analyst.name, site.config.policy)):  # else that is all it is told
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


def study_refusal(
    connection: Connection, site: Site, agreed: DeclaredStudy, analyst: str, *, bounded: bool = False
) -> Refusal | None:
    """What in policy and budget speaks against a verified study, as one refusal; None for nothing.

    Whose study breaks the policy is told nothing that records or former studies decide: whether the dataset is withheld, which
    cohorts its sums had, what was spent of its budget.

    Args:
        bounded: whether it is an answer to the analyst, which tells something of the past and so is not given without end.
    """
    key, study, config = agreed.digest, agreed.study, site.config
    refusal = Refusal.of(study_faults(agreed, analyst, config, site.name, site.budget_delta(study.dataset, connection)))
    if refusal is not None:
        return refusal
    faults = []
    if site.withheld(study.dataset):
        told = f"Dataset {study.dataset!r} is withheld: its records do not suit this site's own schema of it."
        advice = "Ask the site; `veilsum participant check` shows it what to correct."
        faults.append(Refusal(RefusalCode.DATASET, told, advice))
    asked = answer_fault(connection, site, key, study, analyst) if bounded else None
    if asked is not None:  # budget and cohorts are not looked at, so that nothing about this refusal depends on them
        return Refusal.of([*faults, asked])
    past = [
        *joining_faults(connection, agreed, config, site.name),
        *budget_faults(connection, config, site.ledger, key, study),
    ]
    if bounded:
        keep_answer(connection, site, key, study, analyst, fits=not past)
    return Refusal.of([*faults, *past])


def rehearsal_faults(site: Site, agreed: DeclaredStudy) -> Iterator[Refusal]:
    """What would go wrong in any round of a study that the policy accepts, found without reading a record."""
    study = agreed.study
    yield from site.structure_faults(study.dataset, study.data)
    yield from site.encoder_faults(study)
    for declaration in study.tasks:
        task = agreed.task(declaration.label)
        try:
            site.hold_weights(task)
            site.studies.rehearse(task, None)
        except Refusal as refusal:
            yield refusal
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
        return Refusal(RefusalCode.APPROVAL, declined(row.reason))
    approved = row is not None and row.state == PendingState.APPROVED  # the operator's word, which no bound holds back
    if row is not None and approved:
        names = listed([entry.detail["operator"] for entry in approvals(connection, site, row)] or ["the operator"])
        LOG.info("study %s (%s) was approved by %s", study.name, analyst, names, extra=about("approved", digest=key))
    refusal = study_refusal(connection, site, agreed, analyst, bounded=not approved)
    refusal = refusal or Refusal.of(rehearsal_faults(site, agreed))
    if refusal is not None:
        drop_pending(connection, key)
        record_refused_study(connection, site, requested(site, key, study, analyst), study, refusal)
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


def end_waiting(connection: Connection, site: Site, row: PendingRow, why: str) -> None:
    """Forget a study that waited or was decided on; if nobody decided, ledger and log say that it ended without an answer.

    Args:
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
        site.ledger.expire(connection, requested(site, row.digest, study, row.analyst), since=row.time, why=why)


def requested(site: Site, key: bytes, study: Study, analyst: str) -> RequestedStudy:
    """What the ledger keeps of a study that is asked for."""
    population = site.config.population(study.dataset) if study.dataset in site.config.datasets else None
    return RequestedStudy(
        key, study.name, study.method, study.dataset, analyst, population, study.data.file_columns, study.purpose
    )


def declined(reason: str) -> str:
    """A refusal by the operator's word."""
    return f"The operator declined the study: {reason}"


def approvals(connection: Connection, site: Site, row: PendingRow) -> list[Entry]:
    """Who approved a study since it came; what was said of it before it had ended once does not count."""
    ended = site.ledger.entries(kind=Kind.EXPIRED, study=row.digest, connection=connection)
    after = ended[-1].seq if ended else 0
    found = site.ledger.entries(kind=Kind.APPROVAL, study=row.digest, connection=connection)
    return [entry for entry in found if entry.seq > after and entry.time >= row.time]
