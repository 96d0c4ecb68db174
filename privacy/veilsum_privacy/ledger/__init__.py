"""The append-only record of what each release cost; a participant's own is the authority.

:class:`Ledger` writes it, :class:`LedgerReader` reads it without a key, :func:`verify_rows` proves rows from elsewhere.
"""

from veilsum_privacy.ledger.entries import Budget, Entry, Kind, Mechanism, Reservation, Spending
from veilsum_privacy.ledger.ledger import Ledger
from veilsum_privacy.ledger.reading import LedgerReader
from veilsum_privacy.ledger.verification import SignatureCheck, verify_rows

__all__ = [
    "Budget",
    "Entry",
    "Kind",
    "Ledger",
    "LedgerReader",
    "Mechanism",
    "Reservation",
    "SignatureCheck",
    "Spending",
    "verify_rows",
]
