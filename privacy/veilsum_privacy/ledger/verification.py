"""Prove a ledger from what stands in it: offline, without a key, from a database or an export.

Verification trusts nothing that a database enforces and nothing that was stored as a result. Alone, a ledger proves its chain
up to its last entry. That this is the last one, and that no second version exists, only others can say: whoever knows a
head, the coordinator's mirror, and the members of its cohorts (``against``). Whose the keys are, only the authority's
certificate can say (``authority``); without it, the one that the ledger names is taken.

The receipts and countersignatures that entries cover: all there, signed, about the entry's release, never seen before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509

from veilsum_node.errors import HostileInput, VeilsumError
from veilsum_node.identity import Label, Role, federation_id, verify
from veilsum_privacy.ledger.entries import Entry, Kind
from veilsum_privacy.ledger.faults import LedgerFault, require
from veilsum_privacy.ledger.keys import KeyRing
from veilsum_privacy.ledger.receipts import (
    Countersignature,
    Receipt,
    SignedReceipt,
    consents_digest,
    receipts_digest,
    verify_countersignature,
)
from veilsum_privacy.ledger.rows import HIDING, NO_HASH, Row, check_types, facts, hash_facts, read_row, unhex
from veilsum_privacy.ledger.rules import Rules, SiteRules, described, described_by
from veilsum_privacy.ledger.statements import estimate_of
from veilsum_privacy.ledger.totals import Standing
from veilsum_privacy.ledger.walking import ChainStep, KeptReceipt, KeptRow, LedgerSource

ADVICE = "Keep the file as it is and compare it with the mirror."


@dataclass(frozen=True)
class Verification:
    """What was proven.

    Attributes:
        site: whose ledger it is. role: participant, or coordinator for a mirror. entries: how many. head: hash of the last
        one (32 bytes). receipts: how many of them were kept and verified, those recovered included. keys: fingerprints of
        the keys that signed, in order. federation: SHA-256 of the authority's certificate, 64 hexadecimal digits. populations:
        where each of them stands by now.
        set_back: numbers of entries whose time is before that of the entry before: the clock was set back there. The chain
            alone says what came first.
        bare: how many entries lack random bytes, as those of versions up to 0.2 do; the first entry is none of them. Who
            knows the hashes before and after some of them can try what they say.
    """

    site: str
    role: Role
    entries: int
    head: bytes
    receipts: int
    keys: tuple[str, ...]
    federation: str
    populations: Mapping[str, Standing] = field(compare=False, repr=False)
    set_back: tuple[int, ...] = ()
    bare: int = 0

    @property
    def spending(self) -> dict[str, tuple[float, float | None]]:
        """What each population with a budget has spent by now: epsilon by its budget's rule, and by the tighter accountant
        (None where that cannot tell), at its budget's delta."""
        return {
            name: (standing.charged.epsilon(standing.budget), estimate_of(standing.charged, standing.budget))
            for name, standing in sorted(self.populations.items())
            if standing.budget is not None
        }


def verify_ledger(
    source: LedgerSource,
    *,
    authority: x509.Certificate | None = None,
    head: bytes | None = None,
    against: Sequence[LedgerSource] = (),
) -> Verification:
    """Check every entry, in order:

    1. sequence numbers rise by one from 1, each entry names the previous one's hash, and its own is the SHA-256 of its
       content;
    2. it is signed by the key that the ledger named last, whose certificate the authority issued for the ledger's name and
       role;
    3. its columns are well-formed, and it holds random bytes if any entry before it does, or the first one says that all do;
    4. it is allowed after what came before (:mod:`veilsum_privacy.ledger.rules`): reservations and charges within the budget
       then in force, no round charged twice, checkpoints with the figures that follow from the entries;
    5. the receipts that it covers are all there, signed by their members, about its release, numbered upwards, never seen
       before; the coordinator signed for exactly these; the site's own names an earlier entry of this ledger.

    Then the chain ends at ``head``, and the ledger fits all others.

    Args:
        source: a :class:`~veilsum_privacy.ledger.LedgerReader` or what ``read_export`` returned.
        authority: the federation's, if it is known for sure.
        head: hash of the entry that should be the last (32 bytes).
        against: other parties' ledgers, mirrors or exports, and other copies of this one; each must verify itself.

    Raises:
        LedgerFault: names the first entry that fails.
        Unavailable, Damage: a database cannot be read.
    """
    if not against:
        return _ending_in(head, source, authority, Heads())
    from veilsum_privacy.ledger.comparison import compare  # for whoever has others' ledgers
    from veilsum_privacy.ledger.summary import Summary

    summary = Summary()
    verified = _ending_in(head, source, authority, summary)
    for other in against:
        others = Summary()
        try:
            found = _examine(other, authority, others)
        except LedgerFault as error:
            fault = f"A ledger that was given to compare with does not verify itself. {error.message}"
            raise LedgerFault(fault, error.advice, entry=error.entry, site=error.site) from error
        if found.federation != verified.federation:
            raise LedgerFault(f"The ledger of {found.site} belongs to another federation.", "Compare within one federation.")
        compare(summary, others)
    return verified


class Heads:
    """The number of each verified entry by its hash; a summary, by which ledgers are compared, takes in more.

    Attributes:
        heads: by hash.
    """

    def __init__(self) -> None:
        self.heads: dict[bytes, int] = {}

    def begin(self, name: str, role: Role) -> None:
        """Take in whose ledger it is."""

    def add(self, entry: Entry) -> None:
        """Take in a verified entry."""
        self.heads[entry.hash] = entry.seq

    def add_receipt(self, kept: KeptReceipt) -> None:
        """Take in a verified receipt."""

    def add_countersignature(self, entry: int, word: Countersignature) -> None:
        """Take in a verified countersignature and the entry that holds it."""


def _ending_in(head: bytes | None, source: LedgerSource, authority: x509.Certificate | None, heads: Heads) -> Verification:
    """What is proven of a ledger, which ends in the named head if one is named."""
    verified = _examine(source, authority, heads)
    if head is not None and head != verified.head:
        known = heads.heads.get(head)
        if known is None:
            fault = f"The ledger does not hold the named head; it ends at entry {verified.entries}."
            raise LedgerFault(f"{fault} Entries were removed or replaced.", ADVICE, entry=verified.entries + 1)
        fault = f"The named head is that of entry {known}; the ledger goes on to entry {verified.entries}."
        raise LedgerFault(fault, "Compare with the later head.", entry=known + 1)
    return verified


def _examine(source: LedgerSource, authority: x509.Certificate | None, heads: Heads) -> Verification:
    examination = _Examination(authority, heads)
    with source.walk() as walk:
        for step in walk.steps:
            examination.take(step, walk.certificates)
    return examination.end()


class _Examination:
    """One pass over a ledger, which ``heads`` takes in."""

    def __init__(self, authority: x509.Certificate | None, heads: Heads) -> None:
        self._keys = KeyRing(authority)
        self._unsigned: list[Entry] = []  # entries of the first layout, before one names their key
        self._rules: Rules | None = None
        self._witnesses: Witnesses | None = None
        self._previous, self._count = NO_HASH, 0
        self._time, self._set_back = 0, list[int]()
        self._hiding, self._bare = False, 0
        self._heads = heads

    def take(self, step: ChainStep, certificates: Mapping[str, bytes]) -> None:
        if not step.row:
            kept = step.kept[0].entry
            raise self._fault(f"A receipt is kept with entry {kept}, which does not exist.", self._count + 1)
        self._count += 1
        try:
            entry = self._read(step.row)
            self._check(entry, step.kept, certificates)
        except LedgerFault:
            raise
        except VeilsumError as error:
            raise self._fault(f"Ledger entry {self._count} fails: {error.message}", self._count) from error

    def end(self) -> Verification:
        if self._rules is None or self._witnesses is None:
            raise self._fault("The ledger is empty: it lacks even its first entry.", 1)
        if self._unsigned:
            fault = "Ledger entry 1 fails: the ledger names no certificate, so that nothing shows who signed it."
            raise self._fault(fault, 1, "Let the site open it once with this version of the software, which adds it.")
        return Verification(
            site=self._keys.name,
            role=self._keys.role,
            entries=self._count,
            head=bytes.fromhex(self._previous),
            receipts=self._witnesses.count,
            keys=tuple(self._keys.fingerprints),
            federation=federation_id(self._keys.authority),
            populations=self._rules.populations,
            set_back=tuple(self._set_back),
            bare=self._bare,
        )

    def _read(self, row: Row) -> Entry:
        check_types(row)
        require(row["seq"] == self._count, "its number does not follow: an entry was removed, added or moved")
        require(row["previous"] == self._previous, "it does not name the hash of the entry before it")
        values = facts(row)
        require(row["hash"] == hash_facts(values), "it was changed after it was written: its hash is not that of its content")
        self._previous = row["hash"]
        entry = read_row(row, values)
        if entry.time < self._time:
            self._set_back.append(entry.seq)
        self._time = entry.time
        return entry

    def _check(self, entry: Entry, kept: Sequence[KeptRow], certificates: Mapping[str, bytes]) -> None:
        if self._rules is None or self._witnesses is None:
            require(entry.kind is Kind.GENESIS, "the ledger must begin with its one genesis entry")
            self._keys.begin(entry)
            self._rules = SiteRules() if self._keys.role is Role.PARTICIPANT else _mirror_rules()
            self._witnesses = Witnesses(self._keys, self._heads)
            self._heads.begin(self._keys.name, self._keys.role)
        elif entry.kind is Kind.KEY:
            self._keys.change(entry)
        self._check_signature(entry)
        self._rules.check(entry)
        self._witnesses.check(entry, kept, certificates)
        self._check_hiding(entry)
        self._heads.add(entry)

    def _check_signature(self, entry: Entry) -> None:
        key = self._keys.current
        if key is None:
            self._unsigned.append(entry)
            return
        for waiting in (*self._unsigned, entry):
            try:
                verify(key, Label.LEDGER, waiting.hash, waiting.signature)
            except HostileInput as error:
                fault = "its signature is not by the key that the ledger names"
                raise self._fault(f"Ledger entry {waiting.seq} fails: {fault}.", waiting.seq) from error
        self._unsigned.clear()

    def _check_hiding(self, entry: Entry) -> None:
        """Where an entry has random bytes, all that follow do: older software does not write behind it."""
        if entry.kind is Kind.GENESIS:
            self._hiding = bool(entry.detail.get(HIDING))
        elif entry.random is not None:
            self._hiding = True
        else:
            require(not self._hiding, "it lacks the random bytes that every entry of this ledger must have by then")
            self._bare += 1

    def _fault(self, message: str, entry: int, advice: str = ADVICE) -> LedgerFault:
        return LedgerFault(message, advice, entry=entry, site=self._keys.name or None)


def _mirror_rules() -> Rules:
    from veilsum_privacy.ledger.mirror_rules import MirrorRules  # for who reads a coordinator's ledger

    return MirrorRules()


class Witnesses:
    """Follows what other parties signed, as a ledger keeps it.

    Args:
        keys: of the ledger.
        heads: of the entries so far; takes what others' ledgers are compared with.

    Attributes:
        count: receipts verified so far.
    """

    def __init__(self, keys: KeyRing, heads: Heads) -> None:
        self._keys, self._heads = keys, heads
        self._last: dict[tuple[bytes, str], int] = {}
        self._consents: dict[bytes, list[bytes | None]] = {}
        self.count = 0

    def check(self, entry: Entry, kept: Sequence[KeptRow], certificates: Mapping[str, bytes]) -> None:
        """Check what an entry covers.

        Raises:
            HostileInput: something is missing, forged, replayed or too much.
        """
        covers = entry.kind in (Kind.CHARGE, Kind.RECEIPTS) and "receipts" in entry.detail
        require(covers or not kept, "receipts are kept with it, but it covers none")
        if covers:
            items = self._check_receipts(entry, [row.read(certificates) for row in kept])
            if entry.kind is Kind.CHARGE:
                self._check_charge(entry, items, certificates)
            else:
                self._check_shown(entry, items)
        else:
            require(entry.kind is not Kind.RECEIPTS, "it names no receipts")
        if entry.kind is Kind.CONSENT:
            self._check_consent(entry)
        if entry.kind is Kind.RECOVERY:
            self._check_recovery(entry, certificates)

    def _check_receipts(self, entry: Entry, items: Sequence[KeptReceipt]) -> Sequence[KeptReceipt]:
        order = [item.position for item in items]
        require(order == list(range(len(items))) and all(item.entry == entry.seq for item in items), "a receipt is missing")
        digest = receipts_digest([item.receipt for item in items]).hex()
        require(
            digest == entry.detail["receipts"], "its receipts are not those that it covers: one was changed, lost or swapped"
        )
        names = [item.parsed.participant for item in items]
        require(len(set(names)) == len(names) == entry.cohort_size, "there is not one receipt for each member of the cohort")
        for item in items:
            receipt = item.parsed
            signer = self._keys.identity(item.certificate, Role.PARTICIPANT, entry.time)
            require(signer.name == receipt.participant, f"the receipt of {receipt.participant} is signed by {signer.name}")
            _verify(item.receipt, signer.public_key, receipt.participant)
            same = described_by(receipt) == described(entry)
            require(same, f"the receipt of {receipt.participant} is for another release")
            self._check_number(receipt)
            self._heads.add_receipt(item)
        self.count += len(items)
        return items

    def _check_number(self, receipt: Receipt) -> None:
        key = (receipt.study, receipt.participant)
        new = receipt.number > self._last.get(key, 0)
        require(new, f"the receipt of {receipt.participant} is replayed: its number {receipt.number} was seen before")
        self._last[key] = receipt.number

    def _check_charge(self, entry: Entry, items: Sequence[KeptReceipt], certificates: Mapping[str, bytes]) -> None:
        own = [item.parsed for item in items if item.parsed.participant == self._keys.name]
        require(len(own) == 1, "the site's own receipt is not among its receipts")
        require(all(item.consent is None for item in items), "a consent is kept with it, which only a mirror does")
        head = self._heads.heads.get(own[0].head)
        require(head is not None, "the site's own receipt names an entry that this ledger does not hold")
        signed = _signed(entry.detail.get("countersigned"), "countersignature")
        certificate = certificates.get(str(entry.detail.get("coordinator")))
        if certificate is None:
            raise HostileInput("the certificate of its coordinator is missing.")
        signer = self._keys.identity(certificate, Role.COORDINATOR, entry.time)
        receipt = items[0].parsed
        word = verify_countersignature(signed, signer, receipt.study, receipt.context, [item.receipt for item in items])
        same = (word.round, word.attempt) == (receipt.round, receipt.attempt)
        require(same, "the countersignature is for another round or attempt")
        self._heads.add_countersignature(entry.seq, word)

    def _check_shown(self, entry: Entry, items: Sequence[KeptReceipt]) -> None:
        names = [item.parsed.participant for item in items]
        require(entry.detail.get("cohort") == names, "its receipts are not those of the cohort that it names")
        self._consents[items[0].parsed.context] = [item.consent for item in items]
        for item in items:
            given = item.consent is None or item.parsed.commits_to(item.consent)
            require(given, f"the consent kept of {item.parsed.participant} is not the one that its receipt commits it to")

    def _check_consent(self, entry: Entry) -> None:
        consents = self._consents.pop(bytes(entry.context or b""), [])
        known = [consent for consent in consents if consent is not None]
        complete = bool(known) and len(known) == len(consents)
        fault = "the consents kept for it are not those that it covers: one was changed, lost or swapped"
        require(complete and consents_digest(known).hex() == entry.detail.get("consents"), fault)

    def _check_recovery(self, entry: Entry, certificates: Mapping[str, bytes]) -> None:
        signed = _signed(entry.detail.get("receipt"), "receipt")
        certificate = certificates.get(str(entry.detail.get("certificate")))
        if certificate is None:
            raise HostileInput("the certificate of its receipt is missing.")
        signer = self._keys.identity(certificate, Role.PARTICIPANT, None)
        receipt = signed.read()
        require(signer.name == receipt.participant == self._keys.name, "its receipt is not the site's own")
        _verify(signed, signer.public_key, receipt.participant)
        require(described_by(receipt) == described(entry), "its receipt is for another release")
        self.count += 1


def _verify(signed: SignedReceipt, key: Any, name: str) -> None:
    try:
        verify(key, Label.RECEIPT, signed.body, signed.signature)
    except HostileInput as error:
        raise HostileInput(f"the receipt of {name} is not signed by that member.") from error


def _signed(value: Any, what: str) -> SignedReceipt:
    try:
        body, signature = value
        return SignedReceipt(unhex(body), unhex(signature))
    except (TypeError, ValueError) as error:
        raise HostileInput(f"its {what} is missing or malformed.") from error
