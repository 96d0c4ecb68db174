"""Prove a ledger from its rows alone: hashes, chain, signatures, and that no entry breaks a rule.

Verification trusts nothing that the database enforces. It proves the chain up to its head; that the head is the last one, only
a mirror or peers who saw a later one can say. Receipts are not looked at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from veilsum_privacy.errors import HostileInput, VeilsumError
from veilsum_privacy.ledger.entries import (
    NO_HASH,
    Budget,
    Entry,
    Kind,
    Mechanism,
    Reservation,
    hash_row,
    read_row,
    total_epsilon,
)

SignatureCheck = Callable[[bytes, bytes], bool]
"""(data, signature) -> whether the site's key signed the data; the data is the entry's hash."""


def verify_rows(
    rows: Iterable[Mapping[str, Any]],
    *,
    site: str | None = None,
    head: bytes | None = None,
    verify_signature: SignatureCheck | None = None,
) -> int:
    """Check every entry, in order:

    1. sequence numbers rise by one from 1, and each entry names the previous one's hash;
    2. its own hash is the SHA-256 of its canonical JSON;
    3. its signature is the site's, if ``verify_signature`` is given;
    4. its columns are well-formed;
    5. it is allowed after what came before: one genesis, of ``site`` if given; reservations and charges within the budget
       then in force; a charge or freeing of an open reservation, with the same release; no round charged twice.

    Last, the chain ends at ``head`` if given.

    Returns:
        The number of entries.

    Raises:
        HostileInput: names the first entry that fails.
    """
    rules = _Rules(site)
    previous = NO_HASH
    count = 0
    for row in rows:
        count += 1
        try:
            _require(row["seq"] == count, "its number does not follow")
            _require(row["previous"] == previous, "it does not name the hash of the entry before it")
            _require(row["hash"] == hash_row(row), "its hash is not that of its content")
            entry = read_row(row)
            signed = verify_signature is None or verify_signature(entry.hash, entry.signature)
            _require(signed, "its signature is not the site's")
            rules.check(entry)
        except VeilsumError as error:
            raise HostileInput(
                f"Ledger entry {count} fails: {error.message}", "Keep the file as it is and compare it with the mirror."
            ) from error
        previous = row["hash"]
    if count == 0:
        raise HostileInput("The ledger is empty: it lacks even its first entry.")
    if head is not None and head.hex() != previous:
        raise HostileInput(f"The ledger ends at entry {count}, which is not the named head.")
    return count


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise HostileInput(fault + ".")


class _Rules:
    """What may follow what."""

    def __init__(self, site: str | None) -> None:
        self._site = site
        self._started = False
        self._budgets: dict[str, Budget] = {}
        self._reserved: dict[bytes, Entry] = {}
        self._ended: dict[bytes, Kind] = {}
        self._seen: set[bytes] = set()
        self._attempts: set[tuple[bytes, int, int]] = set()
        self._charged: set[tuple[bytes, int]] = set()
        self._spent: defaultdict[str, Counter[Mechanism]] = defaultdict(Counter)

    def check(self, entry: Entry) -> None:
        _require((entry.kind is Kind.GENESIS) != self._started, "the ledger must begin with its one genesis entry")
        match entry.kind:
            case Kind.GENESIS:
                self._genesis(entry)
            case Kind.BUDGET:
                _require(entry.population is not None, "it sets the budget of no population")
                self._budgets[str(entry.population)] = entry.budget
            case Kind.RESERVE:
                self._reserve(entry)
            case Kind.CHARGE | Kind.FREE:
                self._end(entry)
            case Kind.RELEASE_SEEN:
                release = self._reserved_release(entry)
                _require(self._ended.get(release.context) is Kind.CHARGE, "it releases what was never charged")
                _require(release.context not in self._seen, "it releases what was released before")
                self._seen.add(release.context)
            case Kind.REFUSAL:
                pass

    def _genesis(self, entry: Entry) -> None:
        random = entry.detail.get("random")
        _require(isinstance(random, str) and len(random) == 64, "its 32 random bytes are missing")
        _require(self._site in (None, entry.detail.get("site")), "it is another site's")
        self._started = True

    def _reserve(self, entry: Entry) -> None:
        release = entry.reservation
        attempt = (release.study, release.round, release.attempt)
        _require(release.context not in self._reserved, "its context was reserved before")
        _require(attempt not in self._attempts, "its attempt was reserved before")
        _require((release.study, release.round) not in self._charged, "its round was charged before")
        _require(release.population in self._budgets, "its population had no budget")
        _require(entry.delta == self._budgets[release.population].delta, "its delta is not the budget's")
        self._spent[release.population][release.mechanism] += 1
        self._within_budget(release.population)
        self._reserved[release.context] = entry
        self._attempts.add(attempt)

    def _end(self, entry: Entry) -> None:
        release = self._reserved_release(entry)
        _require(release.context not in self._ended, "its reservation was charged or freed before")
        self._ended[release.context] = entry.kind
        if entry.kind is Kind.CHARGE:
            _require((release.study, release.round) not in self._charged, "its round was charged before")
            self._charged.add((release.study, release.round))
            self._within_budget(release.population)
        else:
            self._spent[release.population][release.mechanism] -= 1

    def _reserved_release(self, entry: Entry) -> Reservation:
        """The release of ``entry``, which repeats that of a reservation without a change."""
        release = entry.reservation
        reserved = self._reserved.get(release.context)
        if reserved is None:
            raise HostileInput("it names no reservation.")
        same = (reserved.reservation, reserved.delta) == (release, entry.delta)
        _require(same, "its release is not the one that was reserved")
        return release

    def _within_budget(self, population: str) -> None:
        budget = self._budgets[population]
        total = total_epsilon(self._spent[population], budget.delta)
        _require(budget.admits(total), "it exceeded the budget")
