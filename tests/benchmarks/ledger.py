"""A ledger of ten thousand entries: what the gate takes for each decision, the report, and the whole verification.

Entries are mixed: reservations, charges with a cohort's receipts, freed ones, refusals, budgets, checkpoints; of several
studies, with and without sampling. Times are CPU seconds of one process; committing to a disk comes on top, measured apart.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.timing import took
from support.ledgers import COORDINATOR, GRID, credentials_of, make_reservation, open_ledger, set_budget
from veilsum_node.database_places import open_readonly
from veilsum_node.errors import Refusal, RefusalCode
from veilsum_node.identity import Role
from veilsum_privacy.ledger import Ledger, LedgerReader, Reservation, Witness, read_export, write_jsonl
from veilsum_privacy.ledger.countersigning import countersign
from veilsum_privacy.ledger.receipts import Countersignature, Receipt, receipts_digest, sign_receipt

ENTRIES = 10_000
MEMBERS = ("north", "south", "east", "west")
BATCH = 50  # decisions in one transaction, so that the disk's share stays apart
STUDIES = 20


def measure(entries: int = ENTRIES, mechanisms: int = 100, directory: Path | None = None) -> dict[str, Any]:
    """Build a ledger of so many entries with so many distinct mechanisms, report, export and verify it."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        path = Path(place) / "participant.db"
        builder = _Builder(open_ledger(path), mechanisms)
        builder.fill(entries)
        reader = LedgerReader(open_readonly(path))
        figures: dict[str, Any] = {
            "entries": reader.verify().entries,
            "mechanisms": mechanisms,
            "receipts": len(reader.receipts()),
            "bytes_per_entry": path.stat().st_size / entries,
        }
        for name, times in builder.times.items():
            figures[f"{name}_ms"] = 1e3 * sum(times) / len(times)
            figures[f"{name}_late_ms"] = 1e3 * sum(times[-500:]) / len(times[-500:])
        figures["gate_ms"] = 1e3 * builder.gate(500) / 500
        figures["commit_ms"] = 1e3 * _commit(builder.ledger)
        figures["first_gate_s"] = took(lambda: LedgerReader(reader.database).budget("heart"))
        figures["report_s"] = took(lambda: LedgerReader(reader.database).spending("heart"))
        figures["report_again_s"] = took(lambda: reader.spending("heart"))
        figures["verify_s"] = took(reader.verify)
        export = Path(place) / "export.jsonl"
        figures["export_s"] = took(lambda: _export(reader, export))
        figures["export_bytes"] = export.stat().st_size
        figures["read_and_verify_export_s"] = took(lambda: read_export(export).verify())
        return figures


def _export(reader: LedgerReader, path: Path) -> None:
    with path.open("w") as stream:
        write_jsonl(reader, stream)


def _commit(ledger: Ledger) -> float:
    """Elapsed seconds of a durable transaction that changes one page."""
    start = time.perf_counter()
    for _ in range(20):
        with ledger.database.transaction() as connection:
            connection.exec_driver_sql("PRAGMA user_version = 2")
    return (time.perf_counter() - start) / 20


class _Builder:
    """Makes a site's decisions and times them."""

    def __init__(self, ledger: Ledger, mechanisms: int) -> None:
        self.ledger, self._mechanisms = ledger, mechanisms
        self.times: defaultdict[str, list[float]] = defaultdict(list)
        self._parties = [credentials_of(name) for name in MEMBERS]
        self._coordinator = credentials_of(COORDINATOR, role=Role.COORDINATOR)
        everyone = (*self._parties, self._coordinator)
        self._certificates = {item.identity.name: item.identity.certificate for item in everyone}
        self._rounds: defaultdict[bytes, int] = defaultdict(int)
        set_budget(ledger, 1e7)

    def fill(self, entries: int) -> None:
        """Write until there are so many entries."""
        written, step = 2, 0
        while written < entries:
            with self.ledger.database.transaction() as connection:
                for _ in range(BATCH):
                    if written >= entries:
                        return
                    step += 1
                    written += self._step(connection, step)

    def gate(self, times: int) -> float:
        """CPU seconds of so many bare decisions on the whole ledger: what would stand after one more release."""
        releases = [self._release(bytes(32), number + 1, number) for number in range(times)]
        with self.ledger.database.transaction() as connection:
            return took(lambda: [self.ledger.headroom("heart", {item.mechanism: 1}, connection) for item in releases])

    def _step(self, connection: Any, step: int) -> int:
        study = hashlib.sha256(b"study %d" % (step % STUDIES)).digest()
        self._rounds[study] += 1
        release = self._release(study, self._rounds[study], step)
        if step % 50 == 0:
            refusal = Refusal(RefusalCode.BUDGET, "too much")
            self._time("refuse", lambda: self.ledger.refuse(connection, refusal, reservation=release))
            return 1
        self._time("reserve", lambda: self.ledger.reserve(connection, release))
        if step % 3 == 0:
            self._time("free", lambda: self.ledger.free(connection, release.context))
        elif step % 3 == 1:
            witness = self._witness(release, self.ledger.head(connection))
            self._time("charge_with_receipts", lambda: self.ledger.charge(connection, release.context, witness))
        else:
            self._time("charge", lambda: self.ledger.charge(connection, release.context))
        return 2

    def _release(self, study: bytes, number: int, step: int) -> Reservation:
        which = step % self._mechanisms
        if which % 2:
            return make_reservation(number, study=study, multiplier=30 + which / 7, rate=0.001 * (1 + which % 9), steps=10)
        return make_reservation(number, study=study, multiplier=200 + which)

    def _witness(self, release: Reservation, head: bytes) -> Witness:
        payload = hashlib.sha256(release.context).digest()
        receipts = tuple(
            sign_receipt(
                Receipt(
                    study=release.study, participant=party.identity.name, round=release.round, attempt=release.attempt,
                    context=release.context, payload=payload, number=release.round, head=head, dataset=release.dataset,
                    mechanism=release.mechanism, unit=release.unit, cohort_size=release.cohort_size, consent=payload,
                ),
                party.signing_key,
            )
            for party in self._parties
        )  # fmt: skip
        word = Countersignature(
            release.study, COORDINATOR, release.round, release.attempt, release.context, receipts_digest(receipts), 1, head
        )
        return Witness(receipts, countersign(word, self._coordinator.signing_key), self._certificates)

    def _time(self, name: str, act: Callable[[], object]) -> None:
        start = time.process_time()
        act()
        self.times[name].append(time.process_time() - start)


def main() -> None:
    """Print the figures."""
    for mechanisms in (10, 100, 1000):
        print(f"-- {mechanisms} mechanisms, grid {GRID}, {os.cpu_count()} CPUs")
        for name, value in measure(mechanisms=mechanisms).items():
            print(f"{name:28} {value:.4g}")


if __name__ == "__main__":
    main()
