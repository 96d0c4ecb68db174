"""Ledgers as they are followed entry by entry, beside the product's code, and what may follow what in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulation.disks import Disk
from veilsum_privacy.ledger.rows import NO_HASH, facts, hash_facts
from veilsum_privacy.ledger.tables import ledger_table

_COLUMNS = tuple(column.name for column in ledger_table.columns)
_ENTRIES = f"SELECT {', '.join(_COLUMNS)} FROM ledger WHERE seq > ? ORDER BY seq"  # noqa: S608

PAID = ("charge", "recovery")
"""Kinds of entries by which an attempt is paid for."""


class Violation(BaseException):
    """Something does not hold; no code of the product catches it."""


def require(holds: bool, message: str) -> None:
    """Insist.

    Raises:
        Violation: it does not hold.
    """
    if not holds:
        raise Violation(message)


class Book:
    """A ledger as followed so far.

    Attributes:
        last: by context, the last of reserve, charge and free.
        paid: contexts charged, by round.
        seen: contexts whose release was seen.
        shown: of a mirror, contexts whose receipts were shown; ``consented`` and ``seen`` likewise.
        restored: whether it is that of a site that was restored from a backup.
        refuses: whether there is cause to refuse a release: a budget that does not bear all.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.count, self.head = 0, NO_HASH
        self.last: dict[str, str] = {}
        self.paid: dict[tuple[str, int], str] = {}
        self.seen: set[str] = set()
        self.shown: set[str] = set()
        self.consented: set[str] = set()
        self.restored = self.refuses = False
        self.changes = -1

    def follow(self, owner: str) -> bool:
        """Read on; returns whether anything in the database changed.

        Raises:
            Violation: an entry breaks the chain, or may not follow those before it.
        """
        changes = self.disk.raw.total_changes
        if changes == self.changes:
            return False
        self.changes = changes
        for values in self.disk.rows(_ENTRIES, self.count):
            row = dict(zip(_COLUMNS, values, strict=True))
            self.count += 1
            require(row["seq"] == self.count, f"{owner}: entry {row['seq']} came where {self.count} was due")
            require(row["previous"] == self.head, f"{owner}: entry {self.count} does not continue the chain")
            require(row["hash"] == hash_facts(facts(row)), f"{owner}: the hash of entry {self.count} is wrong")
            self.head = row["hash"]
            self._take(owner, row)
        (count, head), *_ = self.disk.rows("SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1")
        require((count, head) == (self.count, self.head), f"{owner}: the ledger lost entries")
        return True

    def _take(self, owner: str, row: Mapping[str, Any]) -> None:
        kind, context = row["kind"], row["context"]
        where = f"{owner}: round {row['round']}, attempt {row['attempt']}: {kind}"
        last = self.last.get(context)
        match kind:
            case "reserve":
                require(last is None, f"{where} after {last}")
                require((row["study"], row["round"]) not in self.paid, f"{where} in a round that was paid")
            case "charge":
                require(last == "reserve", f"{where} after {last}")
                require(self.paid.setdefault((row["study"], row["round"]), context) == context, f"{where}: paid twice")
            case "free":
                require(last == "reserve", f"{where} after {last}")
            case "release-seen":
                require(last in PAID or context in self.consented, f"{where} after {last}")
                self.seen.add(context)
                return
            case "receipts":
                self.shown.add(context)
                return
            case "consent":
                require(context in self.shown, f"{where} before its receipts")
                self.consented.add(context)
                return
            case "recovery":
                require(self.restored, f"{where}, though the site was never restored")
                require(last not in PAID, f"{where} after {last}")
                self.paid.setdefault((row["study"], row["round"]), context)
            case "refusal":
                require(self.refuses, f"{where}, which has no cause")
                return
            case _:
                return
        self.last[context] = kind
