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

from simulation.books import PAID, Book, require
from simulation.disks import Disk
from simulation.parties import Process
from veilsum_node.errors import RefusalCode
from veilsum_participant.protocol.payloads import Payload
from veilsum_privacy.ledger import LedgerReader, verify_ledger
from veilsum_privacy.ledger.receipts import parse_receipt
from veilsum_privacy.results.whole_sums import total_from_bytes, total_to_bytes
from veilsum_privacy.securesum.context import parse_assignment
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.opening import Total
from veilsum_privacy.securesum.sum_plan import OneTimePlan

if TYPE_CHECKING:
    from simulation.ground import Ground

Integers = NDArray[np.int64]

_ATTEMPTS = "SELECT attempt, round, state, context, consent, agreed FROM participant_attempt WHERE study = ?"

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

RESTORED = frozenset({RefusalCode.LEDGER, RefusalCode.KEYS, RefusalCode.ROSTER})
"""What a site may say besides that was restored from a backup: nobody vouched for its ledger yet, its keys are older or it
has no roster, or it enrolled under keys that it lost."""

_KEPT = {
    "consented": PAID, "released": PAID, "recovered": ("recovery",), "tombstone": ("free",), "reserved": ("reserve",),
    "payload": ("reserve",),
}  # fmt: skip
"""The ledger's last word about an attempt in each state."""


class Checks:
    """Follows one history.

    Args:
        ground: whose disks these are.
        keys: digests of the studies.
        processes: the participants.
        journal: the coordinator's disk.
        bears: how many releases the sites' budget bears, 0 for any number.

    Attributes:
        left: who left a study.
    """

    def __init__(
        self, ground: Ground, keys: Sequence[bytes], processes: Mapping[str, Process], journal: Disk, bears: int = 0
    ) -> None:
        self._ground, self._keys, self._processes, self._journal = ground, tuple(keys), processes, journal
        self._bears = bears
        self.left: set[str] = set()
        self.books = {name: Book(process.disk) for name, process in processes.items()}
        for book in self.books.values():
            book.refuses = bool(bears)
        self.mirror = Book(journal)
        self._encoded: dict[tuple[str, bytes], Integers] = {}  # by name and context
        self._nonces: dict[tuple[str, bytes], bytes] = {}  # of the process that encoded it
        self._payloads: dict[tuple[str, bytes], bytes] = {}
        self._sent: dict[tuple[str, bytes], bytes] = {}
        self._answers: dict[tuple[str, bytes], tuple[bytes, tuple[int, ...]]] = {}  # challenge and words, by name and context
        self._consents: defaultdict[tuple[str, bytes, int], set[bytes]] = defaultdict(set)  # that left a site, by round
        self._opened: defaultdict[tuple[bytes, int], set[bytes]] = defaultdict(set)  # contexts opened, by round
        self._newest: dict[tuple[str, bytes], int] = {}  # attempt of each site's newest payload
        self._states: dict[tuple[str, bytes], dict[int, tuple[Any, ...]]] = {}
        self._released: dict[bytes, dict[int, bytes]] = {key: {} for key in keys}
        self._owed: dict[str, set[str]] = {}
        self.refusals: list[tuple[str, str]] = []

    # -- what passes -------------------------------------------------------------------------------------------------------

    def encoded(self, name: str, context: bytes, values: Integers) -> None:
        """A site's vector with its noise, as it goes behind the masks."""
        core = self._processes[name].core
        self._nonces[name, context] = b"" if core is None else core.site.nonce
        require((name, context) not in self._encoded, f"{name} made two payloads under one context")
        self._encoded[name, context] = values.copy()

    def assigned(self, study: bytes, assignment: bytes) -> None:
        """A site reads an assignment: the coordinator must know it after whatever becomes of its process."""
        kept = self._journal.rows("SELECT assignment FROM coordinator_round WHERE study = ?", study)
        require((assignment,) in kept, "an assignment is sent that the journal does not hold")

    def answered(self, process: Process, study: bytes, before: int) -> None:
        """A site answered a directive: what it wrote to its ledger, from an entry on, is about that study only."""
        written = process.disk.rows("SELECT DISTINCT study FROM ledger WHERE seq > ? AND study IS NOT NULL", before)
        require(written in ([], [(study.hex(),)]), f"{process.name} answered one study and wrote about another")

    def uploading(self, process: Process, study: bytes, payload: Payload) -> None:
        """A payload is about to leave its site."""
        self._whole(process)
        receipt = parse_receipt(payload.receipt.body)
        own = (process.name, receipt.context)
        rows = process.disk.rows(
            "SELECT state, assignment, payload FROM participant_attempt WHERE context = ?", receipt.context
        )
        require(len(rows) == 1 and rows[0][0] == "payload", f"{process.name} sends a payload that it does not keep")
        _, assignment, kept = rows[0]
        require(bytes(kept) == b"".join(payload.pieces), f"{process.name} sends another payload than it keeps")
        if own not in self._payloads:
            newest = self._newest.get((process.name, study), 0)
            stale = f"{process.name} answers a stale cohort: attempt {payload.attempt} after {newest}"
            require(payload.attempt > newest, stale)
            self._newest[process.name, study] = payload.attempt
            nonce = dict(parse_assignment(assignment).cohort)[process.name]
            require(nonce == self._nonces[own], f"{process.name} answers an assignment of a stale session")
        require(
            self._payloads.setdefault(own, receipt.payload) == receipt.payload, f"{process.name}: two payloads of one context"
        )
        self._sent.setdefault(own, bytes(kept))

    def checked(self, process: Process, study: bytes, attempt: int, words: tuple[int, ...], signature: bytes) -> None:
        """An answer is about to leave its site: it must be durable, and the only one for its context."""
        name, where = process.name, f"{process.name}: the answer of attempt {attempt}"
        query = "SELECT context, challenge, answer, answer_signature FROM participant_attempt WHERE study = ? AND attempt = ?"
        rows = process.disk.rows(query, study, attempt)
        require(len(rows) == 1 and rows[0][2] is not None, f"{where} is not durable")
        context, challenge, body, signed = map(bytes, rows[0])
        require((tuple(json.loads(body)["words"]), signed) == (words, signature), f"{where} is another than the one kept")
        known = self._answers.setdefault((name, context), (challenge, words))
        require(known == (challenge, words), f"{where} is a second one of one context")
        require((name, context) in self._payloads, f"{where} is about a sum that it is not in")

    def _answers_kept(self, study: bytes, number: int, attempt: int) -> bool:
        """Whether the journal holds what everybody answered about a sum."""
        query = "SELECT attempt FROM coordinator_sum WHERE study = ? AND round = ? AND answers IS NOT NULL"
        return (attempt,) in self._journal.rows(query, study, number)

    def consenting(self, process: Process, study: bytes, number: int, attempt: int, consent: bytes, signature: bytes) -> None:
        """A consent is about to leave its site: it must be durable, and paid for, and all must have answered alike."""
        name = process.name
        where = f"{name}: the consent of round {number}, attempt {attempt}"
        found = [row for row in process.disk.rows(_ATTEMPTS, study) if row[0] == attempt]
        require(len(found) == 1 and found[0][2] in ("consented", "released"), f"{where} is not durable")
        context = bytes(found[0][3])
        require(bytes(found[0][4]) == consent, f"{where} is another than the one that is kept")
        require(bytes(found[0][5]) == signature, f"{where} has another signature than the one that is kept")
        asked = {self._answers.get((member, context), (b"", ()))[0] for member in self._cohort(context)}
        require(len(asked) == 1 and b"" not in asked, f"{where} leaves before all members answered one challenge")
        require(self._answers_kept(study, number, attempt), f"{where} leaves before the journal holds all answers")
        rows = process.disk.rows("SELECT kind FROM ledger WHERE context = ? ORDER BY seq", context.hex())
        kinds = [kind for (kind,) in rows if kind != "refusal"]  # one whose message was lost is answered anew when asked again
        paid = kinds[:2] in (["reserve", "charge"], ["reserve", "recovery"])
        require(paid, f"{where} leaves before its charge: {rows}")
        self._consents[name, study, number].add(context)
        require(len(self._consents[name, study, number]) == 1, f"{name} consented to two attempts of round {number}")
        require((name, context) in self._payloads, f"{where} is of a sum that it is not in")

    def opening(self, total: Contribution, plan: OneTimePlan, context: bytes, consents: Sequence[bytes]) -> None:
        """A sum is opened: every member of exactly its cohort must have consented, and paid, and it must be their sum."""
        cohort, (study, number, attempt) = self._cohort(context), self._cohort_of(context.hex())
        key = bytes.fromhex(study)
        where = f"round {number}, attempt {attempt}"
        require(len(consents) == len(cohort), f"{where} is opened with {len(consents)} consents")
        for name in cohort:
            require(context in self._consents[name, key, number], f"{where} is opened without the consent of {name}")
            require((name, context) in self._payloads, f"{where} is opened, but {name} sent no payload for it")
        self._opened[key, number].add(context)
        require(len(self._opened[key, number]) == 1, f"two sums of round {number} are opened")
        require(
            total_to_bytes(total, plan) == self._sum(plan, context, cohort),
            f"{where}: the sum is not that of exactly its cohort",
        )

    def refused(self, process: Process, codes: Sequence[RefusalCode]) -> None:
        """A participant refuses."""
        self.refusals += [(process.name, code.value) for code in codes]
        honest = HONEST | (RESTORED if self.books[process.name].restored else set())
        honest |= {RefusalCode.BUDGET} if self._bears else set()
        for code in codes:
            require(code in honest, f"{process.name} refuses with {code.value}, though all are honest")

    # -- after every step --------------------------------------------------------------------------------------------------

    def after(self) -> None:
        """Everything that can be told from the disks.

        Raises:
            Violation: something does not hold.
        """
        changed = [name for name, book in self.books.items() if book.follow(name)]
        for name in changed:
            for key in self._keys:
                self._attempts(name, key)
            if self._bears:
                held = [context for context, last in self.books[name].last.items() if last in ("reserve", *PAID)]
                require(len(held) <= self._bears, f"{name}: {len(held)} releases on a budget that bears {self._bears}")
        if self.mirror.follow("mirror"):
            for key in self._keys:
                self._releases(key)

    def _attempts(self, name: str, key: bytes) -> None:
        """The store and the ledger say the same; what was consented to stays so."""
        book, process = self.books[name], self._processes[name]
        now: dict[int, tuple[Any, ...]] = {}
        for attempt, number, state, context, *_ in process.disk.rows(_ATTEMPTS, key):
            where = f"{name}: round {number}, attempt {attempt}"
            last = book.last.get(bytes(context).hex())
            require(last in _KEPT[state], f"{where} is {state}, but the ledger's last word is {last}")
            now[attempt] = (state, bytes(context))
            if state == "tombstone":
                given = set() if book.restored else self._consents.get((name, key, number), set())
                require(bytes(context) not in given, f"{where} is freed, but its consent left the site")
        for attempt, (state, _) in self._states.get((name, key), {}).items():
            after = now.get(attempt, ("gone", b""))[0]
            ended = ("consented", "released", "tombstone")
            if state in ended:
                allowed = ("consented", "released") if state == "consented" else (state,)
                require(after in allowed, f"{name}: attempt {attempt} was {state} and is {after}")
        self._states[name, key] = now

    def _releases(self, key: bytes) -> None:
        for context in self.mirror.consented:
            for name in self._cohort(bytes.fromhex(context)):
                paid = self.books[name].last.get(context) in PAID or self.books[name].restored
                require(paid, f"the mirror shows a consent that {name} did not pay for")
        query = 'SELECT round, attempt, cohort, "values" FROM coordinator_release WHERE study = ?'
        rows, released = self._journal.rows(query, key), self._released[key]
        for number, attempt, cohort, values in rows:
            if number in released:
                require(released[number] == bytes(values), f"the release of round {number} changed")
                continue
            released[number] = bytes(values)
            self._release(key, number, attempt, tuple(json.loads(cohort)), np.frombuffer(values, dtype="<i8"))
        require({row[0] for row in rows} == set(released), "a release is gone")

    def _release(self, key: bytes, number: int, attempt: int, cohort: tuple[str, ...], values: Integers) -> None:
        where = f"release of round {number}"
        contexts = [context for context in self.mirror.seen if self._cohort_of(context) == (key.hex(), number, attempt)]
        require(len(contexts) == 1, f"{where}: the mirror shows {len(contexts)}")
        context = bytes.fromhex(contexts[0])
        require(cohort == self._cohort(context), f"{where} names another cohort than the receipts")
        for name in cohort:
            paid = self.books[name].paid.get((key.hex(), number))
            require(paid == contexts[0] or self.books[name].restored, f"{where}: {name} did not pay exactly once")
        total = sum(self._encoded[name, context] for name in cohort)
        require(bool(np.array_equal(total, values)), f"{where} is not the sum of what its cohort encoded")

    def _cohort(self, context: bytes) -> tuple[str, ...]:
        query = "SELECT participant FROM ledger_receipt WHERE context = ? ORDER BY position"
        return tuple(name for (name,) in self._journal.rows(query, context.hex()))

    def _cohort_of(self, context: str) -> tuple[str, int, int]:
        query = "SELECT study, round, attempt FROM ledger WHERE context = ? AND kind = 'receipts'"
        ((study, number, attempt),) = self._journal.rows(query, context)
        return study, number, attempt

    def _sum(self, plan: OneTimePlan, context: bytes, cohort: Sequence[str]) -> bytes:
        total = Total(plan)
        for name in cohort:
            total.add(total_from_bytes(self._sent[name, context], plan))
        return total_to_bytes(total.contribution, plan)

    # -- at the end --------------------------------------------------------------------------------------------------------

    def settled(self, finished: bool, *, whole: bool) -> None:
        """Nothing is left open; with ``whole``, the product's own verification of every ledger against the mirror.

        Args:
            finished: whether every study is.

        Raises:
            Violation: something is.
        """
        for name, book in self.books.items():
            require("reserve" not in book.last.values(), f"{name}: a reservation is open after the study's end")
            paid = {context for context, last in book.last.items() if last in PAID}
            if finished and not book.restored and name not in self.left:
                require(paid == book.seen, f"{name}: paid for what it did not see released")
            require(book.seen <= self.mirror.seen, f"{name}: saw a release that there is none of")
        if finished:
            require(sum(map(len, self._released.values())) == len(self.mirror.seen), "a finished study lacks a release")
        if whole:
            self.verify()

    def verify(self) -> None:
        """Prove every ledger, and the mirror against all of them that were never set back."""
        for name, process in self._processes.items():
            if self.books[name].restored:
                verify_ledger(LedgerReader(process.disk.database), authority=self._ground.authority)
        whole = [process for name, process in self._processes.items() if not self.books[name].restored]
        readers = [LedgerReader(process.disk.database) for process in whole]
        verify_ledger(LedgerReader(self._journal.database), authority=self._ground.authority, against=readers)

    # -- sites that were restored ------------------------------------------------------------------------------------------

    def restored(self, name: str) -> None:
        """A site runs on an older copy of its disk from here on: its ledger is followed from the beginning again."""
        self.books[name] = Book(self._processes[name].disk)
        self.books[name].restored, self.books[name].refuses = True, bool(self._bears)
        self._states = {place: states for place, states in self._states.items() if place[0] != name}

    def caught_up(self, process: Process) -> None:
        """A site has read the mirror: what it shows of it, consent for consent, is paid for in its ledger."""
        if self.books[process.name].restored:
            query = "SELECT context FROM ledger_receipt WHERE participant = ? AND consent IS NOT NULL"
            self._owed[process.name] = {context for (context,) in self._journal.rows(query, process.name)}
            self.books[process.name].follow(process.name)
            self._complete(process.name)

    def _complete(self, name: str) -> None:
        """All that a restored site consented to, as the mirror had it at last, stands in its ledger as paid."""
        for context in self._owed.get(name, ()):
            paid = self.books[name].last.get(context) in PAID
            require(paid, f"{name} was restored and goes on, but what it consented to is not in its ledger: {context[:12]}")

    def _whole(self, process: Process) -> None:
        """What leaves a restored site that depends on records leaves after its ledger was completed."""
        if self.books[process.name].restored:
            marked = process.disk.rows("SELECT name FROM sqlite_master WHERE name = 'participant_restored'")
            standing = process.disk.rows("SELECT made FROM participant_restored") if marked else []
            require(not standing, f"{process.name} was restored and releases before anybody vouched for its ledger")
            self.books[process.name].follow(process.name)
            self._complete(process.name)
