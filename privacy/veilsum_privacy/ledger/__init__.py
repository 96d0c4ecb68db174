"""The append-only record of what each release cost: each participant's own, and the coordinator's mirror of its studies.

:class:`Ledger` and :class:`Mirror` write, :class:`LedgerReader` reads either without a key, :func:`verify_ledger` proves one
from its entries alone. Names are looked up when they are asked for, so that who writes entries does not load who exports them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veilsum_privacy.ledger.entries import Budget, Entry, Kind, Mechanism, Reservation
    from veilsum_privacy.ledger.export import Exported, read_export, write_csv, write_jsonl
    from veilsum_privacy.ledger.faults import LedgerFault
    from veilsum_privacy.ledger.ledger import Ledger
    from veilsum_privacy.ledger.mirror import Mirror, Mirrored
    from veilsum_privacy.ledger.reader import LedgerReader
    from veilsum_privacy.ledger.receipts import Receipt, SignedReceipt, Witness
    from veilsum_privacy.ledger.statements import Headroom, Spending
    from veilsum_privacy.ledger.verification import Verification, verify_ledger
    from veilsum_privacy.ledger.walking import KeptReceipt, LedgerSource

_WHERE = {
    "Budget": "entries", "Entry": "entries", "Exported": "export", "Headroom": "statements", "KeptReceipt": "walking",
    "Kind": "entries", "Ledger": "ledger", "LedgerFault": "faults", "LedgerReader": "reader", "LedgerSource": "walking",
    "Mechanism": "entries", "Mirror": "mirror", "Mirrored": "mirror", "Receipt": "receipts", "Reservation": "entries",
    "SignedReceipt": "receipts", "Spending": "statements", "Verification": "verification", "Witness": "receipts",
    "read_export": "export", "verify_ledger": "verification", "write_csv": "export", "write_jsonl": "export",
}  # fmt: skip
"""The module of each name."""

__all__ = [
    "Budget", "Entry", "Exported", "Headroom", "KeptReceipt", "Kind", "Ledger", "LedgerFault", "LedgerReader", "LedgerSource",
    "Mechanism", "Mirror", "Mirrored", "Receipt", "Reservation", "SignedReceipt", "Spending", "Verification", "Witness",
    "read_export", "verify_ledger", "write_csv", "write_jsonl",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
