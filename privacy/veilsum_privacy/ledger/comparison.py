"""Hold ledgers against each other: what one party signed for another must still stand in its own ledger.

Every receipt names the head of its signer's ledger, every countersignature that of the coordinator's mirror, and others
keep both. A ledger that was truncated, restored from an older copy, forked or made anew lacks the entries that they name. Each
ledger is verified by itself before it is compared.
"""

from collections import defaultdict
from dataclasses import dataclass

from veilsum_node.identity import Role
from veilsum_privacy.ledger.entries import Entry, Kind
from veilsum_privacy.ledger.faults import LedgerFault
from veilsum_privacy.ledger.kept_receipts import KeptReceipt
from veilsum_privacy.ledger.receipts import Countersignature

_REWOUND = "Later entries were removed or replaced: the file was edited, or restored from an older copy."
_RECOVER = "If it was restored, charge what its receipts show: veilsum ledger recover."


@dataclass(frozen=True)
class Word:
    """A receipt that another ledger keeps: what is compared of it."""

    context: bytes
    head: bytes
    study: bytes
    round: int
    number: int
    entry: int
    consented: bool


class Summary:
    """What a verified ledger says about others, and what others' words must fit.

    Attributes:
        name, role: of its owner.
        heads: number of each entry by its hash.
        hashes: of all entries in order.
        known: contexts that were reserved or recovered.
        paid: contexts that were charged or recovered.
        recovered: contexts that were charged from receipts: the ledger admits that it was restored.
        freed: number of the entry that freed a context.
        shown: what was shown to the cohort of a context: the receipts' digest, and the entry.
        words: receipts kept of each participant.
        countersigned: coordinators' words kept, each with the entry that holds it.
    """

    def __init__(self) -> None:
        self.name, self.role = "", Role.PARTICIPANT
        self.heads: dict[bytes, int] = {}
        self.hashes: list[bytes] = []
        self.known: set[bytes] = set()
        self.paid: set[bytes] = set()
        self.recovered: set[bytes] = set()
        self.freed: dict[bytes, int] = {}
        self.shown: dict[bytes, tuple[str, int]] = {}
        self.words: defaultdict[str, list[Word]] = defaultdict(list)
        self.countersigned: list[tuple[int, Countersignature]] = []

    def begin(self, name: str, role: Role) -> None:
        """Take in whose ledger it is."""
        self.name, self.role = name, role

    def add(self, entry: Entry) -> None:
        """Take in a verified entry."""
        self.heads[entry.hash] = entry.seq
        self.hashes.append(entry.hash)
        context = entry.context
        if context is None:
            return
        if entry.kind in (Kind.RESERVE, Kind.RECOVERY):
            self.known.add(context)
        if entry.kind in (Kind.CHARGE, Kind.RECOVERY):
            self.paid.add(context)
        if entry.kind is Kind.RECOVERY:
            self.recovered.add(context)
        if entry.kind is Kind.FREE:
            self.freed[context] = entry.seq
        if "receipts" in entry.detail:
            self.shown[context] = (str(entry.detail["receipts"]), entry.seq)

    def add_receipt(self, kept: KeptReceipt) -> None:
        """Take in a verified receipt."""
        receipt, consented = kept.parsed, kept.consent is not None
        word = Word(receipt.context, receipt.head, receipt.study, receipt.round, receipt.number, kept.entry, consented)
        self.words[receipt.participant].append(word)

    def add_countersignature(self, entry: int, word: Countersignature) -> None:
        """Take in a verified countersignature and the entry that holds it."""
        self.countersigned.append((entry, word))


def compare(one: Summary, other: Summary) -> None:
    """Hold two verified ledgers of one federation against each other, in both directions.

    Raises:
        LedgerFault: names whose entry fails, the first of ``one`` if both do.
    """
    if (one.name, one.role) == (other.name, other.role):
        _compare_copies(one, other)
    for mine, theirs in ((one, other), (other, one)):
        _check_receipts(mine, theirs)
        _check_countersignatures(mine, theirs)
    _check_showings(one, other)


def _compare_copies(one: Summary, other: Summary) -> None:
    common = 0
    for mine, theirs in zip(one.hashes, other.hashes, strict=False):
        if mine != theirs:
            fault = f"There are two versions of the ledger of {one.name}: they agree up to entry {common} and no further."
            raise LedgerFault(fault, "Only one can be true; ask the mirror and the peers.", entry=common + 1, site=one.name)
        common += 1
    if common < len(other.hashes):
        fault = f"The ledger of {one.name} ends at entry {common}, but another copy of it goes on to {len(other.hashes)}."
        raise LedgerFault(fault, "Entries were removed, or this is an older copy.", entry=common + 1, site=one.name)


def _check_receipts(mine: Summary, theirs: Summary) -> None:
    """Receipts that others keep of this site: first that its chain still holds what they name, then that it paid."""
    if mine.role is not Role.PARTICIPANT:
        return
    words = [word for word in theirs.words.get(mine.name, []) if word.context not in mine.recovered]
    common = 0
    for word in words:
        at = mine.heads.get(word.head)
        if at is None:
            fault = (
                f"The ledger of {mine.name} lacks the entry that was the last one when {_what(word, mine, theirs)} was signed."
            )
            fault += f" The last entry that both know is {common}. {_REWOUND}"
            raise LedgerFault(fault, _RECOVER, entry=common + 1, site=mine.name)
        if word.context not in mine.known:
            fault = f"The ledger of {mine.name} holds no reservation for {_what(word, mine, theirs)}. {_REWOUND}"
            raise LedgerFault(fault, _RECOVER, entry=at, site=mine.name)
        common = max(common, at)
    for word in words:
        if word.consented and word.context not in mine.paid:
            fault = f"The ledger of {mine.name} has not charged {_what(word, mine, theirs)},"
            fault += f" though {theirs.name} holds its consent."
            raise LedgerFault(fault, _RECOVER, entry=mine.freed.get(word.context), site=mine.name)


def _what(word: Word, mine: Summary, theirs: Summary) -> str:
    return (
        f"receipt number {word.number} of {mine.name} for round {word.round} of study {word.study.hex()[:12]} "
        f"(entry {word.entry} of the ledger of {theirs.name})"
    )


def _check_countersignatures(mine: Summary, theirs: Summary) -> None:
    """Words of this coordinator that sites keep."""
    if mine.role is not Role.COORDINATOR:
        return
    common = 0
    for entry, word in sorted(theirs.countersigned, key=lambda item: item[1].entry):
        if word.coordinator != mine.name:
            continue
        if mine.heads.get(word.head) != word.entry:
            fault = f"The mirror of {mine.name} lacks its entry {word.entry}, which it countersigned for entry {entry} of the "
            fault += f"ledger of {theirs.name}. The last entry that both know is {common}. {_REWOUND}"
            advice = "Ask the coordinator for a mirror that holds what it signed."
            raise LedgerFault(fault, advice, entry=common + 1, site=mine.name)
        common = word.entry


def _check_showings(one: Summary, other: Summary) -> None:
    """One context, one set of receipts: whoever was shown another was lied to."""
    for context, (digest, entry) in one.shown.items():
        theirs = other.shown.get(context)
        if theirs is not None and theirs[0] != digest:
            fault = f"Entry {entry} of the ledger of {one.name} and entry {theirs[1]} of that of {other.name} hold different"
            fault += " receipts for one and the same sum."
            raise LedgerFault(fault, "The coordinator showed them different things.", entry=entry, site=one.name)
