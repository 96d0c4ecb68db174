"""What a process that has verified a site's ledger says of it: one message over a pipe, and then it ends."""

from veilsum_participant.boundary.encoding import Message, number, numbers, text

MOST_SHOWN = 20
"""Entries that a warning names."""

MOST_SAID = 16 * 1024
"""Bytes of the message at most; a pipe holds as many."""

LONGEST_WORDS = 1000
"""Characters of each text."""

SECONDS = 6 * 3600.0
"""How long a ledger may take."""


class LedgerSaid(Message):
    """What was found.

    Attributes:
        entries, receipts: how many were proven.
        set_back: numbers of the first entries whose time is before that of the entry before.
        fault: what is wrong with the ledger; empty where nothing was found.
        unread: why it could not be verified; empty where it was.
    """

    entries: int = number(1, 2**53)
    receipts: int = number(2, 2**53)
    set_back: tuple[int, ...] = numbers(3, MOST_SHOWN, 2**53)
    fault: str = text(4, 4 * LONGEST_WORDS)
    unread: str = text(5, 4 * LONGEST_WORDS)
