"""What must hold after every step of a history, told from the disks and from what passes on the network.

Everything is read beside the product's code: rows of the parties' databases, and the vectors, sums and consents as they go by.
Ledgers are followed entry by entry; :meth:`Checks.verify` proves them whole with the product's own verification.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulation.parties import Disk, Process
from simulation.toy import RING, ToyAdder
from veilsum_participant.contributions import Payload
from veilsum_privacy.errors import RefusalCode
from veilsum_privacy.ledger import LedgerReader, verify_ledger
from veilsum_privacy.ledger.receipts import parse_receipt
from veilsum_privacy.ledger.rows import NO_HASH, facts, hash_facts
from veilsum_privacy.ledger.tables import ledger_table
from veilsum_privacy.securesum.context import parse_assignment

if TYPE_CHECKING:
    from simulation.ground import Ground

Integers = NDArray[np.int64]

_COLUMNS = tuple(column.name for column in ledger_table.columns)
_ENTRIES = f"SELECT {', '.join(_COLUMNS)} FROM ledger WHERE seq > ? ORDER BY seq"  # noqa: S608
_ATTEMPTS = "SELECT attempt, round, state, context, consent, consent_digest, receipt FROM participant_attempt WHERE study = ?"

HONEST = frozenset(
    {
        RefusalCode.ROUND,
        RefusalCode.CONTEXT,
        RefusalCode.CLOSED,
        RefusalCode.ATTEMPTS,
        RefusalCode.LOST,
        RefusalCode.COHORT_CHANGED,
        RefusalCode.STUDY_REPLAYED,
        RefusalCode.STUDY_EXPIRED,
        RefusalCode.TASK,  # its releases are used up, when an assignment is heard again after the last of them
    }
)
"""Codes that crashes, losses and clocks can lead to; any other would accuse somebody, and all are honest here."""

_KEPT = {"consented": "charge", "released": "charge", "tombstone": "free", "reserved": "reserve", "payload": "reserve"}
"""The ledger's last word about an attempt in each state."""


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
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.count, self.head = 0, NO_HASH
        self.last: dict[str, str] = {}
        self.paid: dict[tuple[str, int], str] = {}
        self.seen: set[str] = set()
        self.shown: set[str] = set()
        self.consented: set[str] = set()
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
                require(last == "charge" or context in self.consented, f"{where} after {last}")
                self.seen.add(context)
                return
            case "receipts":
                self.shown.add(context)
                return
            case "consent":
                require(context in self.shown, f"{where} before its receipts")
                self.consented.add(context)
                return
            case "recovery" | "refusal":
                raise Violation(f"{where}, of which there is no cause")
            case _:
                return
        self.last[context] = kind


class Checks:
    """Follows one history.

    Args:
        ground: whose disks these are.
        key: digest of the study.
        processes: the participants.
        journal: the coordinator's disk.
    """

    def __init__(self, ground: Ground, key: bytes, processes: Mapping[str, Process], journal: Disk) -> None:
        self._ground, self._key, self._processes, self._journal = ground, key, processes, journal
        self.books = {name: Book(process.disk) for name, process in processes.items()}
        self.mirror = Book(journal)
        self._encoded: dict[tuple[str, bytes], Integers] = {}  # by name and context
        self._nonces: dict[tuple[str, bytes], bytes] = {}  # of the process that encoded it
        self._payloads: dict[tuple[str, bytes], bytes] = {}
        self._ciphertexts: dict[tuple[str, bytes], list[bytes]] = {}
        self._consents: defaultdict[tuple[str, int], set[bytes]] = defaultdict(set)  # that left a site, by round
        self._opened: defaultdict[int, set[bytes]] = defaultdict(set)  # contexts decrypted, by round
        self._newest: dict[str, int] = {}  # attempt of each site's newest payload
        self._states: dict[str, dict[int, tuple[Any, ...]]] = {}
        self._released: dict[int, bytes] = {}
        self.refusals: list[tuple[str, str]] = []

    # -- what passes -------------------------------------------------------------------------------------------------------

    def encoded(self, name: str, context: bytes, values: Integers) -> None:
        """A site's vector with its noise, as it goes behind the masks."""
        core = self._processes[name].core
        self._nonces[name, context] = b"" if core is None else core.site.nonce
        require((name, context) not in self._encoded, f"{name} made two payloads under one context")
        self._encoded[name, context] = values.copy()

    def uploading(self, process: Process, payload: Payload) -> None:
        """A payload is about to leave its site."""
        receipt = parse_receipt(payload.receipt.body)
        own = (process.name, receipt.context)
        rows = process.disk.rows(
            "SELECT state, assignment, payload FROM participant_attempt WHERE context = ?", receipt.context
        )
        require(len(rows) == 1 and rows[0][0] == "payload", f"{process.name} sends a payload that it does not keep")
        _, assignment, kept = rows[0]
        require(bytes(kept) == b"".join(payload.ciphertexts), f"{process.name} sends another payload than it keeps")
        if own not in self._payloads:
            newest = self._newest.get(process.name, 0)
            stale = f"{process.name} answers a stale cohort: attempt {payload.attempt} after {newest}"
            require(payload.attempt > newest, stale)
            self._newest[process.name] = payload.attempt
            nonce = dict(parse_assignment(assignment).cohort)[process.name]
            require(nonce == self._nonces[own], f"{process.name} answers an assignment of a stale session")
        require(
            self._payloads.setdefault(own, receipt.payload) == receipt.payload, f"{process.name}: two payloads of one context"
        )
        self._ciphertexts.setdefault(own, payload.ciphertexts)

    def consenting(self, process: Process, study: bytes, number: int, attempt: int, consent: bytes) -> None:
        """A consent is about to leave its site: it must be durable, and paid for."""
        name = process.name
        where = f"{name}: the consent of round {number}, attempt {attempt}"
        found = [row for row in process.disk.rows(_ATTEMPTS, study) if row[0] == attempt]
        require(len(found) == 1 and found[0][2] in ("consented", "released"), f"{where} is not durable")
        context = bytes(found[0][3])
        require(bytes(found[0][4]) == consent, f"{where} is another than the one that is kept")
        rows = process.disk.rows("SELECT kind FROM ledger WHERE context = ? ORDER BY seq", context.hex())
        require([kind for (kind,) in rows][:2] == ["reserve", "charge"], f"{where} leaves before its charge: {rows}")
        self._consents[name, number].add(context)
        require(len(self._consents[name, number]) == 1, f"{name} consented to two attempts of round {number}")
        require((name, context) in self._payloads, f"{where} is of a sum that it is not in")

    def decrypted(self, process: Process, study: bytes, number: int, attempt: int) -> None:
        """Words of a sum are about to leave a site: every member of exactly its cohort must have consented, and paid."""
        (row,) = [row for row in process.disk.rows(_ATTEMPTS, study) if row[0] == attempt]
        context = bytes(row[3])
        cohort = self._cohort(context)
        where = f"round {number}, attempt {attempt}"
        for name in cohort:
            require(context in self._consents[name, number], f"{where} is opened without the consent of {name}")
            require((name, context) in self._payloads, f"{where} is opened, but {name} sent no payload for it")
        self._opened[number].add(context)
        require(len(self._opened[number]) == 1, f"two sums of round {number} are opened")
        total = self._journal.rows("SELECT ciphertexts FROM coordinator_sum WHERE study = ? AND round = ?", study, number)
        if total and total[0][0] is not None:
            require(bytes(total[0][0]) == self._sum(context, cohort), f"{where}: the sum is not that of exactly its cohort")

    def refused(self, process: Process, codes: Sequence[RefusalCode]) -> None:
        """A participant refuses."""
        self.refusals += [(process.name, code.value) for code in codes]
        for code in codes:
            require(code in HONEST, f"{process.name} refuses with {code.value}, though all are honest")

    # -- after every step --------------------------------------------------------------------------------------------------

    def after(self) -> None:
        """Everything that can be told from the disks.

        Raises:
            Violation: something does not hold.
        """
        changed = [name for name, book in self.books.items() if book.follow(name)]
        for name in changed:
            self._attempts(name)
        if self.mirror.follow("mirror"):
            self._releases()

    def _attempts(self, name: str) -> None:
        """The store and the ledger say the same; what was consented to stays so."""
        book, process = self.books[name], self._processes[name]
        now: dict[int, tuple[Any, ...]] = {}
        for attempt, number, state, context, *_ in process.disk.rows(_ATTEMPTS, self._key):
            where = f"{name}: round {number}, attempt {attempt}"
            last = book.last.get(bytes(context).hex())
            require(last == _KEPT.get(state), f"{where} is {state}, but the ledger's last word is {last}")
            now[attempt] = (state, bytes(context))
            if state == "tombstone":
                given = self._consents.get((name, number), set())
                require(bytes(context) not in given, f"{where} is freed, but its consent left the site")
        for attempt, (state, _) in self._states.get(name, {}).items():
            after = now.get(attempt, ("gone", b""))[0]
            ended = ("consented", "released", "tombstone")
            if state in ended:
                allowed = ("consented", "released") if state == "consented" else (state,)
                require(after in allowed, f"{name}: attempt {attempt} was {state} and is {after}")
        self._states[name] = now

    def _releases(self) -> None:
        for context in self.mirror.consented:
            for name in self._cohort(bytes.fromhex(context)):
                require(
                    self.books[name].last.get(context) == "charge", f"the mirror shows a consent that {name} did not pay for"
                )
        query = 'SELECT round, attempt, cohort, "values" FROM coordinator_release WHERE study = ?'
        rows = self._journal.rows(query, self._key)
        for number, attempt, cohort, values in rows:
            if number in self._released:
                require(self._released[number] == bytes(values), f"the release of round {number} changed")
                continue
            self._released[number] = bytes(values)
            self._release(number, attempt, tuple(json.loads(cohort)), np.frombuffer(values, dtype="<i8"))
        require({row[0] for row in rows} == set(self._released), "a release is gone")

    def _release(self, number: int, attempt: int, cohort: tuple[str, ...], values: Integers) -> None:
        where = f"release of round {number}"
        contexts = [context for context in self.mirror.seen if self._cohort_of(context) == (number, attempt)]
        require(len(contexts) == 1, f"{where}: the mirror shows {len(contexts)}")
        context = bytes.fromhex(contexts[0])
        require(cohort == self._cohort(context), f"{where} names another cohort than the receipts")
        for name in cohort:
            paid = self.books[name].paid.get((self._key.hex(), number))
            require(paid == contexts[0], f"{where}: {name} did not pay exactly once")
        total = sum(self._encoded[name, context] for name in cohort)
        require(bool(np.array_equal(total, values)), f"{where} is not the sum of what its cohort encoded")

    def _cohort(self, context: bytes) -> tuple[str, ...]:
        query = "SELECT participant FROM ledger_receipt WHERE context = ? ORDER BY position"
        return tuple(name for (name,) in self._journal.rows(query, context.hex()))

    def _cohort_of(self, context: str) -> tuple[int, int]:
        ((number, attempt),) = self._journal.rows(
            "SELECT round, attempt FROM ledger WHERE context = ? AND kind = 'receipts'", context
        )
        return number, attempt

    def _sum(self, context: bytes, cohort: Sequence[str]) -> bytes:
        adder, parts = ToyAdder(RING), []
        for index in range(len(self._ciphertexts[cohort[0], context])):
            total: Any = None
            for name in cohort:
                total = adder.add(total, adder.parse(self._ciphertexts[name, context][index]))
            parts.append(adder.serialise(total))
        return b"".join(parts)

    # -- at the end --------------------------------------------------------------------------------------------------------

    def settled(self, phase: str, *, whole: bool) -> None:
        """Nothing is left open; with ``whole``, the product's own verification of every ledger against the mirror.

        Raises:
            Violation: something is.
        """
        for name, book in self.books.items():
            require("reserve" not in book.last.values(), f"{name}: a reservation is open after the study's end")
            paid = {context for context, last in book.last.items() if last == "charge"}
            if phase == "finished":
                require(paid == book.seen, f"{name}: paid for what it did not see released")
            require(book.seen <= self.mirror.seen, f"{name}: saw a release that there is none of")
        if phase == "finished":
            require(len(self._released) == len(self.mirror.seen), "a finished study lacks a release")
        if whole:
            self.verify()

    def verify(self) -> None:
        """Prove every ledger, and the mirror against all of them."""
        readers = [LedgerReader(process.disk.engine) for process in self._processes.values()]
        verify_ledger(LedgerReader(self._journal.engine), authority=self._ground.authority, against=readers)
