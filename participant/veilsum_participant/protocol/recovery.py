"""What a site restored from a backup charges before it goes on: everything that its own receipts show and its ledger misses.

A receipt leaves the site before its consent, so a receipt alone does not prove a charge; but a site that does not know a
context that it signed for has lost what it knew, and takes it for spent. For a context that it knows, only the consent itself
proves that it was given: the digest of each is kept. Who shows the receipts is not trusted: the site's signature on each is
verified, so a lying mirror can cost no more than what the site once signed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from veilsum_node.errors import HostileInput, VeilsumError
from veilsum_node.identity import key_fingerprint
from veilsum_node.identity.certificate import common_name, load_certificate, p256_key
from veilsum_node.telemetry.logs import about
from veilsum_participant.protocol.cohorts import VECTORS, Cohort, Weights, is_held, remember
from veilsum_participant.protocol.contributions import give_up_open
from veilsum_participant.site import COMPLETE, ELSEWHERE, LOG, Site
from veilsum_participant.store.attempts import (
    OPEN,
    PAID,
    UNCHARGED,
    UNHELD,
    AttemptRow,
    AttemptState,
    add_attempt,
    attempts_in,
    find_attempt,
    find_context,
    finish_attempt,
)
from veilsum_participant.store.mirrors import keep_mirror_entry, mirror_entry
from veilsum_participant.store.studies import StudyRow, change_study, find_study, load_enrolments
from veilsum_participant.store.tables import all_rows
from veilsum_privacy.backup.restored import put_mark, read_mark
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.receipts import Receipt, SignedReceipt, consent_proof
from veilsum_privacy.securesum.context import parse_assignment
from veilsum_privacy.study.study import parse_study

LARGEST_ENTRY = 2**53 - 1

BATCH = 1000
"""Receipts that are settled in one transaction: the operator's commands need not wait for a long mirror."""


@dataclass(frozen=True)
class MirroredReceipt:
    """One of the site's own receipts as a mirror shows it.

    Attributes:
        receipt: as this site signed it.
        entry: number of the mirror's entry that holds it.
        consent: the consent that came for it, empty if none did.
    """

    receipt: SignedReceipt
    entry: int
    consent: bytes = field(repr=False)


def settle(site: Site, coordinator: str, shown: Sequence[MirroredReceipt]) -> list[int]:
    """Charge what a mirror shows and the ledger does not know as charged; remember how far the mirror is settled.

    A receipt of an attempt that is still open stays unsettled: its consent may come later. One that was signed with a ledger
    whose head is not on this chain proves that another copy of this state has been at work: the site is marked as a restored
    one is, and releases nothing until somebody vouched for it.

    Returns:
        Numbers of the ledger's new entries.
    """
    valid = [item for item in shown if 0 < item.entry <= LARGEST_ENTRY]
    outcomes: list[_Outcome] = []
    for start in range(0, len(valid), BATCH):
        with site.database.transaction() as connection:
            found = [
                settle_one(connection, site, item.receipt, consent_proof(item.consent))
                for item in valid[start : start + BATCH]
            ]
            if any(outcome.elsewhere for outcome in found):
                _mark(connection, site)
            outcomes += found
    unsettled = [item.entry for item, outcome in zip(valid, outcomes, strict=True) if outcome.again]
    settled = min([max((item.entry for item in valid), default=0), *(entry - 1 for entry in unsettled)])
    with site.database.transaction() as connection:
        if settled > mirror_entry(connection, coordinator):
            keep_mirror_entry(connection, coordinator, settled)
    return tell(outcomes)


def begin_restored(site: Site) -> None:
    """Charge what this store says was consented to and its ledger does not know, end what it has open and its ledger has not,
    and give up what a restored state has open.

    A ledger that lacks a charge is older than its store, or was cut: what else it lacks nobody knows, so it is marked as a
    restored one. A reservation of which the store knows nothing stays: nobody knows whether it was consented to.
    """
    with site.database.transaction() as connection:
        uncharged, unheld = (all_rows(AttemptRow, connection.execute(query)) for query in (UNCHARGED, UNHELD))
        outcomes = [settle_one(connection, site, row.signed_receipt, None) for row in uncharged]
        for row in unheld:
            if site.ledger.entries(kind=Kind.CHARGE, context=row.context, connection=connection):
                finish_attempt(connection, row.study, row.attempt, AttemptState.RECOVERED)
            else:
                give_up_open(connection, site, row.study, row.attempt)
        if outcomes:
            _mark(connection, site)
        _give_up_restored(connection, site)
    tell(outcomes)


def _mark(connection: Connection, site: Site) -> None:
    """Take a state for a restored one, if it is not yet."""
    if read_mark(connection) is None:
        put_mark(connection, site.clock(), site.ledger.head(connection))
        _give_up_restored(connection, site)
        LOG.error("%s %s", ELSEWHERE, COMPLETE, extra=about("recovered"))


def _give_up_restored(connection: Connection, site: Site) -> None:
    """Give up what a state that is restored has open, if it bears the mark: what it knows of these attempts is old. It may
    have answered a challenge since, and must not answer a second one of the same context."""
    if read_mark(connection) is not None:
        for study in {row.study for row in attempts_in(connection, OPEN)}:
            give_up_open(connection, site, study)


@dataclass(frozen=True)
class _Outcome:
    """What became of a receipt: the entry that charged it now, why it was passed over, whether to look at it again, and
    whether it was signed with a ledger that went on from this one, or from an earlier one, on another host."""

    entry: int | None = None
    fault: str = ""
    again: bool = False
    elsewhere: bool = False


def tell(outcomes: Sequence[_Outcome]) -> list[int]:
    entries = [outcome.entry for outcome in outcomes if outcome.entry is not None]
    faults = [outcome.fault for outcome in outcomes if outcome.fault]
    if entries:
        told = "charges recovered from receipts: %d; this site was restored from an older copy"
        LOG.warning(told, len(entries), extra=about("recovered"))
    if faults:
        LOG.error("%d receipts were skipped; the first: %s", len(faults), faults[0])
    return entries


def settle_one(
    connection: Connection, site: Site, signed: SignedReceipt, proof: bytes | None, certificate: bytes | None = None
) -> _Outcome:
    """Settle one receipt.

    Args:
        proof: SHA-256 of the consent that came for it, which nobody knows whom it was not given.
        certificate: of the key that signed it, if known.
    """
    try:
        receipt = signed.read()
    except HostileInput as error:
        return _Outcome(fault=error.message)
    if receipt.participant != site.name:
        return _Outcome(fault=f"It is of {receipt.participant}.")
    row = find_context(connection, receipt.context)
    paid = row is not None and row.state in PAID
    if row is not None and not paid and (proof is None or not receipt.commits_to(proof)):
        return _Outcome(again=row.state in OPEN)
    try:  # charges nothing before the signature is verified
        entry = site.ledger.recover(connection, signed, _population(connection, site, receipt), certificate=certificate)
    except HostileInput as error:
        return _Outcome(fault=error.message)
    except VeilsumError as error:
        return _Outcome(fault=str(error), again=True)
    if not paid:
        _remember(connection, site, receipt, signed, row)
    return _Outcome(entry, elsewhere=entry is not None and site.ledger.position(receipt.head, connection) is None)


def _population(connection: Connection, site: Site, receipt: Receipt) -> str:
    reserved = site.ledger.entries(kind=Kind.RESERVE, context=receipt.context, connection=connection)
    if reserved:
        return str(reserved[0].population)
    if receipt.dataset in site.config.datasets:
        return site.config.population(receipt.dataset)
    LOG.warning("dataset %s is no longer offered: its receipts are charged to a population of that name", receipt.dataset)
    return receipt.dataset


def _remember(connection: Connection, site: Site, receipt: Receipt, signed: SignedReceipt, row: AttemptRow | None) -> None:
    """Keep the attempt as paid, and let rounds, attempts and receipts go on above it."""
    study = receipt.study
    if row is not None:  # what it answered and agreed to is not known, and it must not say anything else
        finish_attempt(connection, study, row.attempt, AttemptState.RECOVERED)
    elif find_attempt(connection, study, receipt.attempt) is None:
        add_attempt(
            connection, study=study, attempt=receipt.attempt, round=receipt.round, state=AttemptState.RECOVERED,
            context=receipt.context, assignment=b"", deadline=0, label="", receipt=signed.body,
            receipt_signature=signed.signature,
        )  # fmt: skip
    kept = find_study(connection, study)
    if kept is not None:
        highest = {name: max(getattr(kept, name), getattr(receipt, name)) for name in ("round", "attempt")}
        change_study(connection, study, receipts=max(kept.receipts, receipt.number), **highest)
    signed_study = None if kept is None else parse_study(kept.study)
    if signed_study is None or is_held(signed_study):
        members = None if row is None or kept is None else _members(row, kept)
        population = _population(connection, site, receipt)
        weights = None if members is None else known_weights(connection, site, study, members)
        remember(connection, study, receipt.dataset, population, receipt.context, members, weights)


def known_weights(connection: Connection, site: Site, study: bytes, members: Cohort) -> Weights | None:
    """What receipts tell of a sum's weights: that it has none, where all of its study's are sums over records."""
    kept = find_study(connection, study)
    try:
        if kept is not None and not any(task.terms.kind in VECTORS for task in site.agreed(kept.study).tasks):
            return None
    except HostileInput:
        pass  # of an earlier version, whose tasks are not known any more
    return dict.fromkeys(members, math.nan)


def _members(row: AttemptRow, kept: StudyRow) -> Cohort:
    """The cohort of an attempt that the site knows; keys as far as it still has the roster."""
    enrolled = [load_certificate(item.certificate) for item in load_enrolments(kept.roster or b"[]")]
    keys = {
        common_name(certificate.subject, "certificate"): key_fingerprint(p256_key(certificate.public_key(), "enrolled key"))
        for certificate in enrolled
    }
    return {name: keys.get(name, "") for name in parse_assignment(row.assignment).names}
