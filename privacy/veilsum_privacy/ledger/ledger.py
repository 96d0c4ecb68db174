"""The ledger of one site: what its releases cost, in the site's own database.

Every call that writes takes the :class:`~sqlalchemy.Connection` of the caller's transaction
(:func:`veilsum_node.database.transaction`), so that a charge and the consent it pays for are one transaction. A reservation
that the budget does not bear raises, and that undoes the caller's transaction; the caller then records it in a second one:

    try:
        with database.transaction() as connection:
            ledger.reserve(connection, reservation)
    except Refusal as refusal:
        with database.transaction() as connection:
            ledger.refuse(connection, refusal, reservation=reservation)
        raise

This module opens no file and sends nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from veilsum_node.database import Database
from veilsum_node.errors import HostileInput, Misuse, Refusal, StateError
from veilsum_node.identity import Credentials, Role
from veilsum_node.randomness import RandomSource
from veilsum_privacy.ledger.chain import Chain
from veilsum_privacy.ledger.entries import Kind, Mechanism, Reservation
from veilsum_privacy.ledger.gate import PAID, Gate, about, release_columns, reserved_of
from veilsum_privacy.ledger.reader import LedgerReader
from veilsum_privacy.ledger.statements import LONGEST_TEXT, RequestedStudy

if TYPE_CHECKING:
    from veilsum_privacy.ledger.checks import CheckedReceipt
    from veilsum_privacy.ledger.receipts import SignedReceipt, Witness

MOST_ITEMS = 16
"""Reasons of a refusal, and mechanisms of its cost, that an entry holds: whoever asks decides how many there are."""


class Ledger(Gate, LedgerReader):
    """A site's ledger, to write and to read; created with its first entry if the database has none.

    Arguments and errors are those of :class:`~veilsum_privacy.ledger.chain.Chain`. With credentials of another key than
    before, a ``key`` entry names their certificate.
    """

    def __init__(
        self, database: Database, *, credentials: Credentials, clock: Callable[[], int], random: RandomSource
    ) -> None:
        if credentials.identity.role is not Role.PARTICIPANT:
            raise Misuse("Only a participant has a ledger of its own.", "A coordinator has a mirror.")
        chain = Chain(database, credentials=credentials, clock=clock, random=random)
        LedgerReader.__init__(self, database)
        Gate.__init__(self, chain, self._totals)

    def renew(self, credentials: Credentials, run: Callable[[Callable[[Connection], object]], object]) -> None:
        """Sign with renewed credentials from here on; see :meth:`veilsum_privacy.ledger.chain.Chain.renew`."""
        self._chain.renew(credentials, run)

    def charge(self, connection: Connection, context: bytes, witness: Witness | None = None) -> int:
        """Spend a reservation for good; belongs into the transaction that makes the consent durable.

        Args:
            connection: of the caller's transaction.
            context: of the attempt, 32 bytes.
            witness: what the cohort and the coordinator signed; verified, and kept with the entry.

        Returns:
            The entry's number; that of the first call if it was charged before.

        Raises:
            Refusal: ``BUDGET``: the budget was lowered since and no longer bears what is charged and open.
            StateError: nothing is reserved for the context, it was freed, or the round was charged under another context.
            HostileInput: a receipt or the countersignature is forged, old, or for another sum.
        """
        if witness is None:
            return self._charge(connection, context)
        from veilsum_privacy.ledger.checks import check_cohort, check_countersignature, own_receipt  # of whoever has a study
        from veilsum_privacy.ledger.kept_receipts import check_numbers, keep_certificate, keep_receipts
        from veilsum_privacy.ledger.receipts import receipts_digest

        now, checked = self._chain.now(), list["CheckedReceipt"]()

        def witnessed(reserved: Reservation) -> dict[str, Any]:
            authority = self._chain.credentials.authority
            checked.extend(check_cohort(witness.receipts, witness.certificates, authority, now))
            if self.position(own_receipt(checked, self._chain.name, reserved).head, connection) is None:
                raise HostileInput("This site's own receipt does not name an entry of this ledger.")
            check_numbers(connection, [item.receipt for item in checked])
            coordinator = check_countersignature(witness, checked, authority, now)
            return {
                "receipts": receipts_digest(witness.receipts),
                "countersigned": [witness.countersigned.body, witness.countersigned.signature],
                "coordinator": keep_certificate(connection, coordinator.certificate),
            }

        entry = self._charge(connection, context, witnessed, now=now)
        if checked:
            keep_receipts(connection, entry, checked)
        return entry

    def snapshot(self, connection: Connection, context: bytes, digest: bytes) -> int:
        """Record which records a release was computed from, with its charge. Returns the entry's number, that of the first
        call if repeated.

        Args:
            digest: 32 bytes that tell nothing without a secret of the site's: an export holds the entry.

        Raises:
            StateError: nothing is reserved for the context, or it was charged or freed.
        """
        found = about(connection, context)
        reserved = reserved_of(found)
        if Kind.SNAPSHOT in found:
            return int(found[Kind.SNAPSHOT]["seq"])
        if len(digest) != 32:
            raise Misuse("A snapshot is named by 32 bytes.")
        if Kind.FREE in found or any(kind in found for kind in PAID):
            raise StateError("A release that was charged or freed is not computed any more.")
        return self._chain.append(connection, Kind.SNAPSHOT, release_columns(reserved), {"digest": digest}).seq

    def release_seen(self, connection: Connection, context: bytes, digest: bytes | None = None) -> int:
        """Record that the release paid for was seen, and the digest of what was shown; later calls change nothing.

        Raises:
            StateError: the context was not charged.
        """
        found = about(connection, context)
        if Kind.RELEASE_SEEN in found:
            return int(found[Kind.RELEASE_SEEN]["seq"])
        charged = found.get(Kind.CHARGE) or found.get(Kind.RECOVERY)
        if charged is None:
            raise StateError("A release was seen that was never charged.")
        detail = {} if digest is None else {"digest": digest}
        return self._chain.append(connection, Kind.RELEASE_SEEN, release_columns(charged), detail).seq

    def refuse(
        self,
        connection: Connection,
        refusal: Refusal,
        *,
        population: str | None = None,
        reservation: Reservation | None = None,
        study: bytes | None = None,
        dataset: str | None = None,
        cost: Sequence[Mechanism] = (),
        asked: RequestedStudy | None = None,
    ) -> int:
        """Record a refusal with the budget's figures, which stay here. Returns the entry's number.

        Args:
            connection: of the caller's transaction.
            refusal: why; all its reasons if it has several.
            population: whose budget was asked for.
            reservation: the release that was refused.
            study: digest of the study that was refused as a whole, at enrolment; instead of a reservation.
            dataset: what that study wanted to use.
            cost: all releases that it declared.
            asked: that study in words, of which nothing else may be left here.
        """
        columns: dict[str, Any] = {"study": None if study is None else study.hex(), "dataset": dataset}
        if reservation is not None:
            columns, population = reservation.columns(), reservation.population
            cost = [reservation.mechanism]
        columns["population"] = population
        detail: dict[str, Any] = _refusal_detail(refusal) | ({} if asked is None else asked.detail())
        counted = Counter(cost)
        if reservation is None and counted:
            told = list(counted.items())[:MOST_ITEMS]
            detail["cost"] = [[item.to_json(), item.noise.colluders, count] for item, count in told]
            detail |= {"more_cost": more} if (more := counted.total() - sum(count for _, count in told)) else {}
        if population is not None:
            budget, figures = self._totals.epsilon_held(connection, population, {}, counted)
            if budget is not None:
                columns["delta"] = budget.delta
                reserved, after = map(_finite, figures)
                detail["figures"] = {"budget": budget.epsilon, "reserved": reserved, "after": after}
        return self._chain.append(connection, Kind.REFUSAL, columns, detail).seq

    def decide(
        self, connection: Connection, asked: RequestedStudy, *, approved: bool, operator: str, reason: str, shown: bytes
    ) -> int:
        """Record somebody's word on a study that waited for it. Returns the entry's number.

        Args:
            approved: whether it was a yes.
            operator: who decided.
            reason: why, in their words; may be empty for a yes.
            shown: SHA-256 of the text by which they decided (32 bytes).
        """
        if not operator or not (reason or approved) or len(shown) != 32:
            raise Misuse("A decision needs a name, a digest of what was shown, and a reason where it is a no.")
        detail = {**asked.detail(), "operator": operator, "reason": reason, "shown": shown}
        return self._chain.append(connection, Kind.APPROVAL if approved else Kind.DECLINE, asked.columns(), detail).seq

    def expire(self, connection: Connection, asked: RequestedStudy, *, since: int, why: str) -> int:
        """Record that a study that waited ended without an answer. Returns the entry's number.

        Args:
            since: when it came, unix seconds.
            why: it ended.
        """
        return self._chain.append(
            connection, Kind.EXPIRED, asked.columns(), {**asked.detail(), "since": since, "why": why}
        ).seq

    def record_policy(self, connection: Connection, policy: Mapping[str, str]) -> int | None:
        """Record what of the site's policy is not as the ledger has it. Returns the entry's number; None if nothing changed.

        Args:
            policy: by key, each value as a text.
        """
        known = self.policy(connection)
        changed = {
            key: [known.get(key), policy.get(key)] for key in sorted({*known, *policy}) if known.get(key) != policy.get(key)
        }
        return self._chain.append(connection, Kind.POLICY, detail={"changes": changed}).seq if changed else None

    def recover(
        self, connection: Connection, receipt: SignedReceipt, population: str, *, certificate: bytes | None = None
    ) -> int | None:
        """Charge what an own receipt shows and this ledger does not know as charged: it was restored from a backup.

        What was consented to is spent, whatever the budget says.

        Args:
            connection: of the caller's transaction.
            receipt: one that this site signed.
            population: whose budget it draws on, unless the ledger still knows its reservation.
            certificate: of the key that signed it, DER or PEM, if none that the ledger names did.

        Returns:
            The entry's number, or None if it was charged already.

        Raises:
            HostileInput: this site did not sign it, or it does not fit the reservation of its context.
        """
        from veilsum_privacy.ledger.checks import find_signer
        from veilsum_privacy.ledger.kept_receipts import keep_certificate

        parsed = receipt.read()

        def signed(named: str) -> tuple[Reservation, dict[str, Any]]:
            candidates = [*self._chain.own_certificates(connection), *([] if certificate is None else [certificate])]
            signer = find_signer(receipt, self._chain.name, candidates, self._chain.credentials.authority)
            kept = keep_certificate(connection, signer.certificate)
            return parsed.reservation(named), {"receipt": [receipt.body, receipt.signature], "certificate": kept}

        return self._recover(connection, parsed.context, population, signed)

    def checkpoint(self, connection: Connection | None = None) -> int:
        """Record where every population stands, up to which entry. Returns the entry's number.

        Without a connection the figures are computed before the write lock is taken: the estimate can take seconds.

        Raises:
            StateError: the ledger was rolled back meanwhile.
        """
        if connection is not None:
            return self._append_checkpoint(connection, self._figures(connection))
        with self.database.reading() as reader:
            figures = self._figures(reader)
        with self.database.transaction() as writer:
            return self._append_checkpoint(writer, figures)

    def _figures(self, connection: Connection) -> dict[str, Any]:
        upto, head = self._last(connection)
        populations = {name: self.spending(name, connection) for name in self.populations(connection)}
        return {
            "upto": upto,
            "head": head,
            "populations": {
                name: {"spent": _finite(item.spent), "estimate": item.estimate, "releases": item.releases}
                for name, item in populations.items()
            },
        }

    def _append_checkpoint(self, connection: Connection, figures: Mapping[str, Any]) -> int:
        if self.position(figures["head"], connection) != figures["upto"]:
            raise StateError("The ledger changed while its checkpoint was computed.", "Try again.")
        return self._chain.append(connection, Kind.CHECKPOINT, detail=figures).seq


def _refusal_detail(refusal: Refusal) -> dict[str, Any]:
    """Its words; of many reasons the first, and the codes of the others."""
    detail: dict[str, Any] = {"code": refusal.code.value, "message": refusal.message[:LONGEST_TEXT]}
    told, more = refusal.reasons[:MOST_ITEMS], refusal.reasons[MOST_ITEMS:]
    if len(told) > 1:
        most = min(LONGEST_TEXT, 4 * LONGEST_TEXT // len(told))
        detail["reasons"] = [
            {"code": item.code.value, "message": item.message[:most], "advice": item.advice[:most]} for item in told
        ]
    detail |= {"more_reasons": [*Counter(item.code.value for item in more).items()]} if more else {}
    return detail


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
