"""Whether a release is paid for: what is reserved, charged, given back and recovered, within a population's budget.

A release is reserved before anything that depends on records leaves, and charged with the consent that opens it. The budget
bears what is charged and open together, or the reservation is refused. A round is charged once, under one context; what was
charged stays charged. Every call takes the :class:`~sqlalchemy.Connection` of the caller's transaction: a refusal undoes it.

What else a site's ledger keeps and says, :class:`~veilsum_privacy.ledger.ledger.Ledger` writes beside it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, or_, select

from veilsum_node.errors import HostileInput, Misuse, Refusal, RefusalCode, StateError
from veilsum_node.phrases import rounded
from veilsum_privacy.accounting.accountant import Adaptive
from veilsum_privacy.ledger.chain import Chain
from veilsum_privacy.ledger.entries import Budget, Kind, Mechanism, Reservation, read_kind, why_infinite
from veilsum_privacy.ledger.rows import read_row
from veilsum_privacy.ledger.tables import ledger_table
from veilsum_privacy.ledger.totals import Follower

_COLUMNS = ledger_table.c
_RELEASE = (
    "study", "round", "attempt", "context", "population", "dataset", "event", "delta", "unit", "cohort_size", "colluders",
)  # fmt: skip
"""Columns that describe a release: its reservation's, repeated by every later entry about it."""

PAID = (Kind.CHARGE, Kind.RECOVERY)

_ABOUT = select(ledger_table).where(_COLUMNS.context == bindparam("context"), _COLUMNS.kind != Kind.REFUSAL.value)
_ROUND = select(_COLUMNS.kind, _COLUMNS.attempt).where(
    _COLUMNS.study == bindparam("study"),
    _COLUMNS.round == bindparam("round"),
    or_(*(_COLUMNS.kind == kind.value for kind in (Kind.RESERVE, *PAID))),
)
"""Kind and attempt of a round's reservations and charges."""

Rows = Mapping[Kind, Mapping[str, Any]]
"""The entries about one context, by kind."""


class Gate:
    """Reservations and charges of one site; its ledger is one that keeps more.

    Args:
        chain: that entries are written to.
        totals: what all releases come to, in step with it.
    """

    def __init__(self, chain: Chain, totals: Follower) -> None:
        self._chain, self._totals = chain, totals

    def set_budget(
        self,
        connection: Connection,
        population: str,
        epsilon: float | None,
        delta: float,
        *,
        reason: str,
        operator: str,
        adaptive: Adaptive = "standard",
    ) -> int:
        """Set or change a population's budget; it holds for everything released so far. Returns the entry's number.

        A budget below what is spent is allowed: it stops every further release. The entry says so.

        Raises:
            Misuse: an epsilon or delta out of range, or no population, reason or operator.
        """
        budget = Budget(epsilon, delta, adaptive)
        if not (population and reason and operator):
            raise Misuse("A budget needs a population, a reason and an operator.")
        detail: dict[str, Any] = {"epsilon": budget.epsilon, "reason": reason, "operator": operator}
        if budget.adaptive != "standard":
            detail["adaptive"] = budget.adaptive
        if not budget.admits(self._totals.standing(connection, population).charged.epsilon(budget)):
            detail["below_spent"] = True
        return self._chain.append(connection, Kind.BUDGET, {"population": population, "delta": budget.delta}, detail).seq

    def reserve(self, connection: Connection, reservation: Reservation) -> int:
        """Set a release's cost aside before anything that depends on records leaves; open reservations count as spent.

        Returns:
            The entry's number; that of the first call if this release was reserved before.

        Raises:
            Refusal: ``BUDGET``: the population has no budget, or not enough is left.
            StateError: the round was charged, or the attempt or context reserved for another release or ended.
        """
        found = about(connection, reservation.context)
        if Kind.RECOVERY in found:
            raise StateError("The attempt was charged from its receipt.", "Only a new round can take part.")
        if Kind.RESERVE in found:
            if read_row(found[Kind.RESERVE]).reservation != reservation:
                raise StateError("The context was reserved for another release.")
            if Kind.FREE in found:
                raise StateError("The attempt's reservation was freed.", "Only a new attempt can take part.")
            return int(found[Kind.RESERVE]["seq"])
        columns = reservation.columns()
        for kind, attempt in _round(connection, columns):
            if kind in PAID:
                raise StateError("The round was charged before.", "Only a new round or attempt can take part.")
            if attempt == reservation.attempt:
                fault = "The attempt was reserved under another context."
                raise StateError(fault, "Only a new round or attempt can take part.")
        budget = self._admit(connection, reservation.population, reservation.mechanism)
        return self._chain.append(connection, Kind.RESERVE, {**columns, "delta": budget.delta}).seq

    def _charge(
        self,
        connection: Connection,
        context: bytes,
        witnessed: Callable[[Reservation], Mapping[str, Any]] | None = None,
        *,
        now: int | None = None,
    ) -> int:
        """Spend a reservation for good; see :meth:`veilsum_privacy.ledger.ledger.Ledger.charge`.

        Args:
            witnessed: what else the entry says of the release; where that does not hold it raises, and nothing is charged.
            now: the entry's time, if it was read already.
        """
        found = about(connection, context)
        done = found.get(Kind.CHARGE) or found.get(Kind.RECOVERY)
        if done is not None:
            return int(done["seq"])
        reserved = reserved_of(found)
        if Kind.FREE in found:
            raise StateError("A reservation that was freed cannot be charged.")
        if any(kind in PAID for kind, _ in _round(connection, reserved)):
            raise StateError("The round was charged under another context.", "A round is charged once.")
        self._admit(connection, str(reserved["population"]))
        detail = {} if witnessed is None else witnessed(read_row(reserved).reservation)
        return self._chain.append(connection, Kind.CHARGE, release_columns(reserved), detail, now=now).seq

    def free(self, connection: Connection, context: bytes, *, reason: str = "") -> int:
        """Give a reservation back that never got consent. Returns the entry's number, that of the first call if repeated.

        Raises:
            StateError: nothing is reserved for the context, or it was charged.
        """
        found = about(connection, context)
        reserved = reserved_of(found)
        if any(kind in found for kind in PAID):
            raise StateError("A reservation that was charged cannot be freed.")
        if Kind.FREE in found:
            return int(found[Kind.FREE]["seq"])
        detail = {"reason": reason} if reason else {}
        return self._chain.append(connection, Kind.FREE, release_columns(reserved), detail).seq

    def _recover(
        self,
        connection: Connection,
        context: bytes,
        population: str,
        shown: Callable[[str], tuple[Reservation, Mapping[str, Any]]],
    ) -> int | None:
        """Charge what was consented to, whatever the budget says; see :meth:`veilsum_privacy.ledger.ledger.Ledger.recover`.

        Args:
            shown: the release, for a population's name, and what else the entry says; where these do not hold it raises, and
                nothing is charged.
        """
        found = about(connection, context)
        if any(kind in found for kind in PAID):
            return None
        if Kind.RESERVE in found:
            columns, known = release_columns(found[Kind.RESERVE]), read_row(found[Kind.RESERVE]).reservation
            reservation, detail = shown(known.population)
            if reservation != known:
                fault = "The site's own receipt describes a different release than the one reserved for its context."
                raise HostileInput(fault)
        else:
            reservation, detail = shown(population)
            budget = self._totals.standing(connection, population).budget
            columns = {**reservation.columns(), "delta": None if budget is None else budget.delta}
        return self._chain.append(connection, Kind.RECOVERY, columns, detail).seq

    def _admit(self, connection: Connection, population: str, mechanism: Mechanism | None = None) -> Budget:
        """Refuse if what is charged and open, with ``mechanism``, exceeds the budget."""
        found, after = self._totals.epsilon_held(connection, population, {} if mechanism is None else {mechanism: 1})
        budget = require_budget(found, population)
        if not budget.admits(after[0]):
            raise Refusal(
                RefusalCode.BUDGET,
                f"The population {population} would come to epsilon {rounded(after[0])} of {budget.epsilon:.15g} "
                f"at delta {budget.delta:g}.{why_infinite(after[0])}",
                "Ask for more noise or fewer releases, or let the operator raise the budget.",
            )
        return budget


def about(connection: Connection, context: bytes) -> Rows:
    """The entries about one context."""
    found = connection.execute(_ABOUT, {"context": context.hex()}).mappings()
    return {read_kind(row["kind"]): dict(row) for row in found}


def _round(connection: Connection, columns: Mapping[str, Any]) -> list[tuple[str, int]]:
    found = connection.execute(_ROUND, {"study": columns["study"], "round": columns["round"]})
    return [(kind, attempt) for kind, attempt in found]


def reserved_of(found: Rows) -> Mapping[str, Any]:
    """The reservation among the entries about a context.

    Raises:
        StateError: there is none.
    """
    if Kind.RESERVE not in found:
        raise StateError("Nothing is reserved for this context.", "Reserve before anything is uploaded.")
    return found[Kind.RESERVE]


def release_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of an entry about a release that every later one repeats."""
    return {name: row[name] for name in _RELEASE}


def require_budget(budget: Budget | None, population: str) -> Budget:
    """The budget, if there is one.

    Raises:
        Refusal: ``BUDGET``: there is none.
    """
    if budget is None:
        raise Refusal(RefusalCode.BUDGET, f"The population {population} has no budget.", "The operator sets one.")
    return budget
