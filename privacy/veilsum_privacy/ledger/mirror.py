"""The coordinator's mirror: what it showed to whom, who consented, what was released, of its own studies and nothing else.

It has the form of a site's ledger and is verified like one, but it holds no budgets and decides nothing. Its entries are the
receipts of each attempt, as the coordinator countersigns them, the cohort's consent, and the release. A site whose ledger was
restored from a backup learns here what it signed for and consented to since; a rewound, forked or edited ledger, on either
side, no longer fits the other.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, select, update

from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.database import Database
from veilsum_node.errors import HostileInput, Misuse, StateError
from veilsum_node.identity import Credentials, Role
from veilsum_node.randomness import RandomSource
from veilsum_privacy.ledger.chain import Appended, Chain
from veilsum_privacy.ledger.checks import check_cohort
from veilsum_privacy.ledger.countersigning import countersign
from veilsum_privacy.ledger.entries import Kind, Mechanism
from veilsum_privacy.ledger.kept_receipts import check_numbers, keep_receipts
from veilsum_privacy.ledger.reader import ChainReader
from veilsum_privacy.ledger.receipts import (
    CONSENT_BYTES,
    Countersignature,
    Receipt,
    SignedReceipt,
    consents_digest,
    parse_receipt,
    receipts_digest,
)
from veilsum_privacy.ledger.rows import unhex
from veilsum_privacy.ledger.tables import ledger_table, receipt_table
from veilsum_privacy.ledger.walking import KeptRow

_COLUMNS = ledger_table.c
_KEPT = receipt_table.c
_COVERED = _KEPT.entry == bindparam("entry")
_RECEIPT = select(receipt_table).where(_KEPT.context == bindparam("context"), _KEPT.participant == bindparam("participant"))
_OWED = select(_KEPT.position).where(_COVERED, _KEPT.consent.is_(None)).limit(1)
_CONSENTS = select(_KEPT.consent).where(_COVERED).order_by(_KEPT.position)
_CONSENT = update(receipt_table).where(_KEPT.entry == bindparam("of_entry"), _KEPT.position == bindparam("of_position"))
_ENTRY = select(ledger_table).where(_COLUMNS.context == bindparam("context"), _COLUMNS.kind == bindparam("kind"))
_MIRRORED = (
    select(_KEPT.body, _KEPT.signature, _KEPT.entry, _KEPT.consent)
    .where(_KEPT.participant == bindparam("participant"), _KEPT.entry > bindparam("after"))
    .order_by(_KEPT.entry)
)


@dataclass(frozen=True)
class Mirrored:
    """One participant's own receipt in the mirror.

    Attributes:
        receipt: as it was signed.
        entry: number of the mirror's entry that covers it; rises.
        consent: what the participant consented with, None if nothing came.
    """

    receipt: SignedReceipt
    entry: int
    consent: bytes | None = field(repr=False)


class Mirror(ChainReader):
    """A coordinator's mirror, to write and to read; created with its first entry if the database has none.

    Arguments and errors are those of :class:`~veilsum_privacy.ledger.chain.Chain`.
    """

    def __init__(
        self, database: Database, *, credentials: Credentials, clock: Callable[[], int], random: RandomSource
    ) -> None:
        if credentials.identity.role is not Role.COORDINATOR:
            raise Misuse("Only a coordinator has a mirror.", "A participant has a ledger of its own.")
        self._chain = Chain(database, credentials=credentials, clock=clock, random=random)
        super().__init__(database)

    @property
    def credentials(self) -> Credentials:
        """What it signs with at present."""
        return self._chain.credentials

    def renew(self, credentials: Credentials, run: Callable[[Callable[[Connection], object]], object]) -> None:
        """Sign with renewed credentials from here on; see :meth:`veilsum_privacy.ledger.chain.Chain.renew`."""
        self._chain.renew(credentials, run)

    def show(
        self, connection: Connection, receipts: Sequence[SignedReceipt], certificates: Mapping[str, bytes]
    ) -> SignedReceipt:
        """Record an attempt's receipts, before they are shown to its cohort, and countersign them.

        Asked again for the same receipts it writes nothing and signs the same words.

        Args:
            connection: of the caller's transaction.
            receipts: of every member in the cohort's order.
            certificates: of every member, by name; DER or PEM.

        Returns:
            The countersignature.

        Raises:
            HostileInput: a receipt is forged, old, or about another sum than the others; the message names whose.
            StateError: other receipts were shown for this context.
        """
        if not receipts:
            raise HostileInput("There are no receipts.")
        first = receipts[0].read()
        shown = receipts_digest(receipts)
        found = self._find(connection, Kind.RECEIPTS, first.context)
        if found is not None:
            if _detail(found).get("receipts") != shown.hex():
                raise StateError("Other receipts were shown for this context.", "An attempt has one set of receipts.")
            return self._countersign(first, shown, Appended(found["seq"], bytes.fromhex(found["hash"])))
        now = self._chain.now()
        checked = check_cohort(receipts, certificates, self._chain.credentials.authority, now)
        check_numbers(connection, [item.receipt for item in checked])
        cohort = [item.receipt.participant for item in checked]
        detail = {"receipts": shown, "cohort": cohort}
        entry = self._chain.append(connection, Kind.RECEIPTS, _release_columns(first), detail, now=now)
        keep_receipts(connection, entry.seq, checked)
        return self._countersign(first, shown, entry)

    def consented(self, connection: Connection, context: bytes, participant: str, consent: bytes) -> int | None:
        """Keep a member's consent; with the last one the cohort's consent becomes an entry. Repeating it changes nothing.

        Returns:
            The entry's number once all have consented, None before.

        Raises:
            Misuse: the consent does not have 32 bytes.
            HostileInput: the participant consented with other bytes before, or its receipt commits it to another consent.
            StateError: no receipt of the participant was shown for this context.
        """
        if len(consent) != CONSENT_BYTES:
            raise Misuse(f"A consent has {CONSENT_BYTES} bytes.")
        row = connection.execute(_RECEIPT, {"context": context.hex(), "participant": participant}).mappings().first()
        if row is None:
            raise StateError(f"No receipt of {participant} was shown for this context.")
        known, covered = row["consent"], {"entry": row["entry"]}
        if known is not None and not compare_digest(known, consent.hex()):
            raise HostileInput(f"{participant} consented with other bytes before.")
        if known is None:
            parse_receipt(str(row["body"]).encode()).hold(consent)
            mine = {"of_entry": row["entry"], "of_position": row["position"]}
            connection.execute(_CONSENT, {**mine, "consent": consent.hex()})
        if connection.execute(_OWED, covered).first() is not None:  # the rest are read once, not with every member's consent
            return None
        found, shown = (self._find(connection, kind, context) for kind in (Kind.CONSENT, Kind.RECEIPTS))
        if found is not None:
            return int(found["seq"])
        if shown is None:
            raise StateError("There is no entry of the receipts that were shown for this context.")
        hashes = [bytes.fromhex(KeptRow.hash_consent(str(value))) for value in connection.scalars(_CONSENTS, covered)]
        detail = {"consents": consents_digest(hashes)}
        return self._chain.append(connection, Kind.CONSENT, _repeated(shown), detail).seq

    def released(self, connection: Connection, context: bytes, digest: bytes | None = None) -> int:
        """Record that the sum was released, and the digest of what was released; later calls change nothing.

        Raises:
            StateError: not all of the cohort consented to it.
        """
        found = self._find(connection, Kind.RELEASE_SEEN, context)
        if found is not None:
            return int(found["seq"])
        consent = self._find(connection, Kind.CONSENT, context)
        if consent is None:
            raise StateError("A sum was released that not all of its cohort consented to.")
        detail = {} if digest is None else {"digest": digest}
        return self._chain.append(connection, Kind.RELEASE_SEEN, _repeated(consent), detail).seq

    def mirrored(self, participant: str, after: int = 0) -> list[Mirrored]:
        """A participant's own receipts whose entries' numbers lie above ``after``, in order."""
        with self.database.reading() as reader:
            rows = reader.execute(_MIRRORED, {"participant": participant, "after": after}).all()
        try:
            return [
                Mirrored(
                    SignedReceipt(row.body.encode(), unhex(row.signature)),
                    row.entry,
                    None if row.consent is None else unhex(row.consent),
                )
                for row in rows
            ]
        except (AttributeError, TypeError, ValueError) as error:
            raise HostileInput("A receipt in the mirror is damaged.", "Run veilsum ledger verify.") from error

    def spending(
        self, dataset: str, studies: Collection[bytes] | None = None, connection: Connection | None = None
    ) -> dict[str, Counter[Mechanism]]:
        """What each participant consented to release of a dataset: mechanisms, counted.

        Args:
            studies: digests of those that count; None for all of this coordinator's.
        """
        counted = None if studies is None else {study.hex() for study in studies}
        query = select(_KEPT.participant, _KEPT.body, _COLUMNS.study).where(_KEPT.consent.is_not(None))
        entries = query.join(ledger_table, _COLUMNS.seq == _KEPT.entry).where(_COLUMNS.dataset == dataset)
        counts: defaultdict[str, Counter[Mechanism]] = defaultdict(Counter)
        with self._reading(connection) as reader:
            for name, body, study in reader.execute(entries):
                if counted is None or study in counted:
                    counts[str(name)][parse_receipt(body.encode()).mechanism] += 1
        return dict(counts)

    def _countersign(self, receipt: Receipt, shown: bytes, entry: Appended) -> SignedReceipt:
        signed = Countersignature(
            study=receipt.study,
            coordinator=self._chain.name,
            round=receipt.round,
            attempt=receipt.attempt,
            context=receipt.context,
            receipts=shown,
            entry=entry.seq,
            head=entry.hash,
        )
        return countersign(signed, self._chain.credentials.signing_key)

    @staticmethod
    def _find(connection: Connection, kind: Kind, context: bytes) -> RowMapping | None:
        return connection.execute(_ENTRY, {"context": context.hex(), "kind": kind.value}).mappings().first()


_RELEASE = ("study", "round", "attempt", "context", "dataset", "event", "unit", "cohort_size", "colluders")


def _release_columns(receipt: Receipt) -> dict[str, Any]:
    mechanism = receipt.mechanism
    return {
        "study": receipt.study.hex(),
        "round": receipt.round,
        "attempt": receipt.attempt,
        "context": receipt.context.hex(),
        "dataset": receipt.dataset,
        "event": canonical(mechanism.to_json()).decode(),
        "unit": receipt.unit,
        "cohort_size": receipt.cohort_size,
        "colluders": mechanism.noise.colluders,
    }


def _repeated(row: RowMapping) -> dict[str, Any]:
    return {name: row[name] for name in _RELEASE}


def _detail(row: RowMapping) -> Mapping[str, Any]:
    value = parse_canonical(str(row["detail"]).encode(), what="ledger entry")
    return value if isinstance(value, dict) else {}
