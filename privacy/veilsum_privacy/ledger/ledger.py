"""The ledger of one site: append-only entries in the site's own database.

Every call that writes takes the :class:`~sqlalchemy.Connection` of the caller's transaction
(:func:`veilsum_privacy.database.transaction`), so that a charge and the consent it pays for are one transaction. A reservation
that the budget does not bear raises, and that undoes the caller's transaction; the caller then records it in a second one:

    try:
        with transaction(engine) as connection:
            ledger.reserve(connection, reservation)
    except Refusal as refusal:
        with transaction(engine) as connection:
            ledger.refuse(connection, reservation, refusal)
        raise

This module opens no file and sends nothing.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, Engine, exists, insert, select

from veilsum_privacy.canonical import canonical
from veilsum_privacy.database import transaction
from veilsum_privacy.errors import Misuse, Refusal, RefusalCode, StateError
from veilsum_privacy.ledger.entries import NO_HASH, Budget, Kind, Mechanism, Reservation, hash_row, read_row, total_epsilon
from veilsum_privacy.ledger.reading import LedgerReader, first_row
from veilsum_privacy.ledger.tables import create_ledger_table, ledger_table
from veilsum_privacy.randomness import RandomSource

_COLUMNS = ledger_table.c
_RELEASE = (
    "study", "round", "attempt", "context", "population", "dataset", "event", "delta", "unit", "cohort_size", "colluders",
)  # fmt: skip
"""Columns that describe a release: its reservation's, repeated by every later entry about it."""


class Ledger(LedgerReader):
    """A site's ledger, to write and to read; created with its first entry if the database has none.

    Args:
        engine: from :func:`veilsum_privacy.database.open_database`, SQLite.
        site: whose ledger it is.
        sign: signs an entry's hash with the site's key.
        clock: unix seconds.
        random: for the 32 bytes that the chain begins with.

    Raises:
        StateError: the ledger in the database is another site's, or its first entry is damaged.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        site: str,
        sign: Callable[[bytes], bytes],
        clock: Callable[[], int],
        random: RandomSource,
    ) -> None:
        super().__init__(engine, site=site)
        self._sign, self._clock = sign, clock
        with transaction(engine) as connection:
            create_ledger_table(connection)
            first = first_row(connection, select(ledger_table).where(_COLUMNS.seq == 1))
            if first is None:
                self._append(connection, Kind.GENESIS, detail={"random": random.bytes(32), "site": site})
                return
        if first["kind"] != Kind.GENESIS or first["hash"] != hash_row(first):
            raise StateError("The ledger's first entry is damaged.", "Restore the file and charge what the receipts show.")
        owner = json.loads(first["detail"]).get("site")
        if owner != site:
            raise StateError(f"The ledger is that of {owner}, not of {site}.", "Check the site's name and the file.")

    def set_budget(
        self, connection: Connection, population: str, epsilon: float | None, delta: float, *, reason: str, operator: str
    ) -> int:
        """Set or change a population's budget; it holds for everything released so far. Returns the entry's number.

        Raises:
            Misuse: an epsilon or delta out of range, or no reason or operator.
        """
        budget = Budget(epsilon, delta)
        if not (population and reason and operator):
            raise Misuse("A budget needs a population, a reason and an operator.")
        detail = {"epsilon": budget.epsilon, "reason": reason, "operator": operator}
        return self._append(connection, Kind.BUDGET, {"population": population, "delta": delta}, detail)

    def reserve(self, connection: Connection, reservation: Reservation) -> int:
        """Set a release's cost aside before anything that depends on records leaves; open reservations count as spent.

        Returns:
            The entry's number; that of the first call if this release was reserved before.

        Raises:
            Refusal: ``BUDGET``: the population has no budget, or not enough is left.
            StateError: the round was charged, or the attempt or context reserved for another release or freed.
        """
        found = self._find(connection, Kind.RESERVE, reservation.context)
        if found is not None:
            if read_row(found).reservation != reservation:
                raise StateError("The context was reserved for another release.")
            if self._find(connection, Kind.FREE, reservation.context) is not None:
                raise StateError("The attempt's reservation was freed.", "Only a new attempt can take part.")
            return int(found["seq"])
        columns = reservation.columns()
        for kind, names, fault in (
            (Kind.CHARGE, ("study", "round"), "The round was charged before."),
            (Kind.RESERVE, ("study", "round", "attempt"), "The attempt was reserved under another context."),
        ):
            if connection.scalar(select(exists().where(_COLUMNS.kind == kind, *(_COLUMNS[n] == columns[n] for n in names)))):
                raise StateError(fault, "Only a new round or attempt can take part.")
        budget = self._require_budget(connection, reservation.population)
        _admit(budget, reservation.population, self._mechanisms(connection, reservation.population), reservation.mechanism)
        return self._append(connection, Kind.RESERVE, {**columns, "delta": budget.delta})

    def charge(self, connection: Connection, context: bytes) -> int:
        """Spend a reservation for good; belongs into the transaction that makes the consent durable.

        Returns:
            The entry's number; that of the first call if it was charged before.

        Raises:
            Refusal: ``BUDGET``: the budget was lowered since and no longer bears what is charged and open.
            StateError: nothing is reserved for the context, it was freed, or the round was charged under another context.
        """
        done, reserved = self._end(connection, Kind.CHARGE, context)
        if done is not None:
            return done
        same_round = exists().where(
            _COLUMNS.kind == Kind.CHARGE, _COLUMNS.study == reserved["study"], _COLUMNS.round == reserved["round"]
        )
        if connection.scalar(select(same_round)):
            raise StateError("The round was charged under another context.", "A round is charged once.")
        population = str(reserved["population"])
        _admit(self._require_budget(connection, population), population, self._mechanisms(connection, population))
        return self._append(connection, Kind.CHARGE, reserved)

    def free(self, connection: Connection, context: bytes, *, reason: str = "") -> int:
        """Give a reservation back that never got consent. Returns the entry's number, that of the first call if repeated.

        Raises:
            StateError: nothing is reserved for the context, or it was charged.
        """
        done, reserved = self._end(connection, Kind.FREE, context)
        if done is not None:
            return done
        return self._append(connection, Kind.FREE, reserved, {"reason": reason} if reason else {})

    def release_seen(self, connection: Connection, context: bytes, digest: bytes | None = None) -> int:
        """Record that the release paid for was seen, and the digest of what was shown; later calls change nothing.

        Raises:
            StateError: the context was not charged.
        """
        seen = self._find(connection, Kind.RELEASE_SEEN, context)
        if seen is not None:
            return int(seen["seq"])
        charged = self._find(connection, Kind.CHARGE, context)
        if charged is None:
            raise StateError("A release was seen that was never charged.")
        return self._append(
            connection, Kind.RELEASE_SEEN, _release_columns(charged), {} if digest is None else {"digest": digest}
        )

    def refuse(self, connection: Connection, reservation: Reservation, refusal: Refusal) -> int:
        """Record that a release was refused, with the budget's figures, which stay here. Returns the entry's number."""
        columns = reservation.columns()
        detail: dict[str, Any] = {"code": refusal.code.value, "message": refusal.message}
        budget = self._budget(connection, reservation.population)
        if budget is not None:
            spent = self._mechanisms(connection, reservation.population)
            columns["delta"] = budget.delta
            detail["figures"] = {
                "budget": budget.epsilon,
                "reserved": _finite(total_epsilon(spent, budget.delta)),
                "after": _finite(total_epsilon(spent + Counter([reservation.mechanism]), budget.delta)),
            }
        return self._append(connection, Kind.REFUSAL, columns, detail)

    def _append(
        self,
        connection: Connection,
        kind: Kind,
        columns: Mapping[str, Any] | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> int:
        last = connection.execute(select(_COLUMNS.seq, _COLUMNS.hash).order_by(_COLUMNS.seq.desc()).limit(1)).first()
        row: dict[str, Any] = dict.fromkeys(column.name for column in ledger_table.columns)
        row |= dict(columns or {})
        row |= {
            "seq": 1 if last is None else last.seq + 1,
            "time": self._clock(),
            "kind": kind.value,
            "detail": canonical(detail or {}).decode(),
            "previous": NO_HASH if last is None else last.hash,
        }
        row["hash"] = hash_row(row)
        row["signature"] = self._sign(bytes.fromhex(row["hash"])).hex()
        connection.execute(insert(ledger_table).values(row))
        return int(row["seq"])

    def _find(self, connection: Connection, kind: Kind, context: bytes) -> dict[str, Any] | None:
        return first_row(connection, select(ledger_table).where(_COLUMNS.context == context.hex(), _COLUMNS.kind == kind))

    def _end(self, connection: Connection, kind: Kind, context: bytes) -> tuple[int | None, dict[str, Any]]:
        """The number of the entry that ended the reservation in this way before, and the reservation's columns."""
        reserved = self._find(connection, Kind.RESERVE, context)
        if reserved is None:
            raise StateError("Nothing is reserved for this context.", "Reserve before anything is uploaded.")
        other = Kind.FREE if kind is Kind.CHARGE else Kind.CHARGE
        if self._find(connection, other, context) is not None:
            raise StateError(f"A reservation that was ended by {other} cannot be ended by {kind}.")
        done = self._find(connection, kind, context)
        return None if done is None else int(done["seq"]), _release_columns(reserved)

    def _require_budget(self, connection: Connection, population: str) -> Budget:
        budget = self._budget(connection, population)
        if budget is None:
            raise Refusal(RefusalCode.BUDGET, f"The population {population} has no budget.", "The operator sets one.")
        return budget


def _admit(budget: Budget, population: str, spent: Counter[Mechanism], new: Mechanism | None = None) -> None:
    """Refuse if what is charged and open, with ``new``, exceeds the budget."""
    after = total_epsilon(spent + Counter([] if new is None else [new]), budget.delta)
    if not budget.admits(after):
        raise Refusal(
            RefusalCode.BUDGET,
            f"The population {population} would come to epsilon {after:.6g} of {budget.epsilon:g} at delta {budget.delta:g}.",
            "Ask for more noise or fewer releases, or let the operator raise the budget.",
        )


def _release_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _RELEASE}


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
