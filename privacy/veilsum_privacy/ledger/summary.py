"""What a verified ledger says about others: what ledgers are compared by (:mod:`.comparison`)."""

from collections import defaultdict
from dataclasses import dataclass

from veilsum_node.identity import Role
from veilsum_privacy.ledger.entries import Entry, Kind
from veilsum_privacy.ledger.receipts import Countersignature
from veilsum_privacy.ledger.verification import Heads
from veilsum_privacy.ledger.walking import KeptReceipt


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


class Summary(Heads):
    """What a verified ledger says about others, and what others' words must fit.

    Attributes:
        name, role: of its owner.
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
        super().__init__()
        self.name, self.role = "", Role.PARTICIPANT
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
        super().add(entry)
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
