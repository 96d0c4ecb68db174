"""A ledger as plain rows that a test can change as it likes, and chain and sign anew as the site itself could."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from veilsum_node.canonical import canonical
from veilsum_node.identity import Credentials, Label
from veilsum_privacy.ledger import LedgerSource
from veilsum_privacy.ledger.walking import ChainStep, ChainWalk, KeptRow


@dataclass
class Copy:
    """A ledger's rows.

    Attributes:
        rows: entries in order, by column.
        kept: the receipts kept with each.
        certificates: DER by fingerprint.
    """

    rows: list[dict[str, Any]]
    kept: list[list[dict[str, Any]]]
    certificates: dict[str, bytes]

    @staticmethod
    def of(source: LedgerSource) -> Copy:
        """Everything that a ledger holds."""
        with source.walk() as walk:
            steps = list(walk.steps)
            rows, kept = [dict(step.row) for step in steps], [[dict(item.values) for item in step.kept] for step in steps]
            return Copy(rows, kept, dict(walk.certificates))

    def again(self) -> Copy:
        """A copy of it."""
        return copy.deepcopy(self)

    @contextmanager
    def walk(self) -> Iterator[ChainWalk]:
        """As a ledger is read."""
        steps = (ChainStep(row, [KeptRow(item) for item in kept]) for row, kept in zip(self.rows, self.kept, strict=True))
        yield ChainWalk(self.certificates, steps)

    def drop(self, number: int) -> None:
        """Take an entry out."""
        del self.rows[number - 1], self.kept[number - 1]

    def insert(self, number: int, row: Mapping[str, Any], kept: list[dict[str, Any]] | None = None) -> None:
        """Put an entry where it will be number ``number``."""
        self.rows.insert(number - 1, dict(row))
        self.kept.insert(number - 1, copy.deepcopy(kept or []))

    def swap(self, number: int) -> None:
        """Exchange an entry with the next one."""
        for items in (self.rows, self.kept):
            items[number - 1], items[number] = items[number], items[number - 1]  # type: ignore[index]

    def cut(self, length: int) -> None:
        """Take everything after an entry away."""
        del self.rows[length:], self.kept[length:]

    def detail(self, number: int, **values: Any) -> None:
        """Change what an entry's detail says; None takes it out."""
        content = {**json.loads(self.rows[number - 1]["detail"]), **values}
        content = {name: value for name, value in content.items() if value is not None}
        self.rows[number - 1]["detail"] = canonical(content).decode()

    def event(self, number: int, **values: Any) -> None:
        """Change what an entry's event says."""
        content = {**json.loads(self.rows[number - 1]["event"]), **values}
        self.rows[number - 1]["event"] = canonical(content).decode()

    def resign(self, *keys: tuple[int, Credentials]) -> Copy:
        """Number, chain and sign everything anew; an independent reading of how an entry is hashed.

        Args:
            keys: from which entry on whose key signs.
        """
        previous = "0" * 64
        for number, row in enumerate(self.rows, 1):
            row["seq"], row["previous"] = number, previous
            content = {name: value for name, value in row.items() if name not in ("hash", "signature")}
            for name in ("event", "detail"):
                content[name] = None if content[name] is None else json.loads(str(content[name]))
            previous = row["hash"] = hashlib.sha256(canonical(content)).hexdigest()
            (signer,) = [credentials for first, credentials in keys if first <= number][-1:]
            row["signature"] = signer.signing_key.sign(Label.LEDGER, bytes.fromhex(previous)).hex()
            for item in self.kept[number - 1]:
                item["entry"] = number
        return self


Change = Callable[[Copy], None]
