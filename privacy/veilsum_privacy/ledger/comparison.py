"""Hold ledgers against each other: what one party signed for another must still stand in its own ledger.

Every receipt names the head of its signer's ledger, every countersignature that of the coordinator's mirror, and others
keep both. A ledger that was truncated, restored from an older copy, forked or made anew lacks the entries that they name. Each
ledger is verified by itself before it is compared.
"""

from veilsum_node.identity import Role
from veilsum_privacy.ledger.faults import LedgerFault
from veilsum_privacy.ledger.summary import Summary, Word

_REWOUND = "Later entries were removed or replaced: the file was edited, or restored from an older copy."
_RECOVER = "If it was restored, charge what its receipts show: veilsum ledger recover."


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
