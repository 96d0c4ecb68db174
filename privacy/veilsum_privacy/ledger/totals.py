"""What the releases of each population come to: running totals that follow the ledger's entries, forwards and back.

One set of rules serves the gate, the reports and the verification. :class:`Follower` keeps totals in step with a table that
others write to as well: it remembers the hash of the last entry it took in, takes in what came after it, and takes back what a
rolled-back transaction never wrote. Nothing here is stored; every figure can be derived from the entries again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, case, select

from veilsum_node.canonical import parse_canonical
from veilsum_node.errors import HostileInput
from veilsum_privacy.ledger.entries import Budget, Kind, Mechanism, read_kind
from veilsum_privacy.ledger.rows import read_mechanism
from veilsum_privacy.ledger.sums import Sum
from veilsum_privacy.ledger.tables import ledger_table

_TRAIL = 256
"""Entries that can be taken back without reading the ledger anew."""

_COLUMNS = ledger_table.c


@dataclass
class Standing:
    """One population.

    Attributes:
        budget: in force now, None before the first.
        charged: charged releases, those recovered from receipts included.
        held: charged releases and open reservations.
    """

    budget: Budget | None = None
    charged: Sum = field(default_factory=Sum)
    held: Sum = field(default_factory=Sum)


@dataclass(frozen=True)
class BudgetStep:
    """What an entry that sets a budget means for totals.

    Attributes:
        population: whose totals.
        budget: in force from here on.
    """

    population: str
    budget: Budget


@dataclass(frozen=True)
class ReleaseStep:
    """What an entry about a release means for totals.

    Attributes:
        kind: of the entry, one of ``COUNTED``.
        population: whose totals.
        context: the release's, in hexadecimal.
        mechanism: the release's.
    """

    kind: Kind
    population: str
    context: str
    mechanism: Mechanism


Step = BudgetStep | ReleaseStep


class Totals:
    """All populations, after the entries applied so far."""

    def __init__(self) -> None:
        self.populations: dict[str, Standing] = {}
        self.open: set[str] = set()

    def of(self, population: str) -> Standing:
        """A population's standing; an empty one if nothing concerns it."""
        return self.populations.get(population) or Standing()

    def apply(self, step: Step) -> Any:
        """Take an entry in. Returns what :meth:`undo` needs to take it back."""
        standing = self.populations.setdefault(step.population, Standing())
        if isinstance(step, BudgetStep):
            before, standing.budget = standing.budget, step.budget
            return before
        was_open = step.context in self.open
        charged, held = _effect(step.kind, was_open)
        if charged:
            standing.charged.add(step.mechanism, charged)
        if held:
            standing.held.add(step.mechanism, held)
        if step.kind is Kind.RESERVE:
            self.open.add(step.context)
        else:
            self.open.discard(step.context)
        return was_open

    def undo(self, step: Step, before: Any) -> None:
        """Take the last entry back."""
        standing = self.populations[step.population]
        if isinstance(step, BudgetStep):
            standing.budget = before
            return
        charged, held = _effect(step.kind, before)
        if charged:
            standing.charged.add(step.mechanism, -charged)
        if held:
            standing.held.add(step.mechanism, -held)
        if before:
            self.open.add(step.context)
        else:
            self.open.discard(step.context)


def _effect(kind: Kind, was_open: bool) -> tuple[int, int]:
    """How the charged and the held releases change; a recovery pays an open reservation or what was never reserved."""
    match kind:
        case Kind.RESERVE:
            return 0, 1
        case Kind.FREE:
            return 0, -1
        case Kind.CHARGE:
            return 1, 0
        case _:
            return 1, 0 if was_open else 1


COUNTED = (Kind.BUDGET, Kind.RESERVE, Kind.CHARGE, Kind.FREE, Kind.RECOVERY)
"""Kinds that change totals."""

_QUERY = select(
    _COLUMNS.seq, _COLUMNS.hash, _COLUMNS.kind, _COLUMNS.population, _COLUMNS.event, _COLUMNS.delta, _COLUMNS.colluders,
    _COLUMNS.context, case((_COLUMNS.kind == Kind.BUDGET.value, _COLUMNS.detail)).label("detail"),
).where(_COLUMNS.seq >= bindparam("first")).order_by(_COLUMNS.seq)  # fmt: skip


class Follower:
    """Totals in step with the table of entries; one for each process and ledger, safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._totals = Totals()
        self._seq, self._hash = 0, ""
        self._trail: deque[tuple[int, str, Step | None, Any]] = deque(maxlen=_TRAIL)

    def standing(self, connection: Connection, population: str) -> Standing:
        """A copy of where a population stands as ``connection`` sees the ledger.

        Raises:
            HostileInput: an entry is malformed.
        """
        with self._lock:
            self._follow(connection)
            found = self._totals.of(population)
            return Standing(found.budget, found.charged.copy(), found.held.copy())

    def epsilon_held(
        self, connection: Connection, population: str, *more: Mapping[Mechanism, int]
    ) -> tuple[Budget | None, list[float]]:
        """The budget in force, and epsilon of all charged and open releases with each of ``more``; none without a budget.

        Raises:
            HostileInput: an entry is malformed.
        """
        with self._lock:
            self._follow(connection)
            found = self._totals.of(population)
            if found.budget is None:
                return None, []
            return found.budget, [found.held.epsilon(found.budget, item) for item in more]

    def _follow(self, connection: Connection) -> None:
        try:
            rows = connection.execute(_QUERY, {"first": self._seq}).all()
            while self._seq and (not rows or (rows[0].seq, rows[0].hash) != (self._seq, self._hash)):
                self._take_back()  # others, or this process before it rolled back, saw entries that are not there
                rows = connection.execute(_QUERY, {"first": self._seq}).all()
            for row in rows[1 if self._seq else 0 :]:
                self._take(row)
        except BaseException:
            self._forget()
            raise

    def _take(self, row: Any) -> None:
        try:
            step = _read_step(row)
        except (AttributeError, TypeError, ValueError) as error:
            raise HostileInput(f"Ledger entry {row.seq} is damaged.", "Run veilsum ledger verify.") from error
        before = None if step is None else self._totals.apply(step)
        self._trail.append((self._seq, self._hash, step, before))
        self._seq, self._hash = row.seq, row.hash

    def _take_back(self) -> None:
        if not self._trail:
            self._forget()
            return
        self._seq, self._hash, step, before = self._trail.pop()
        if step is not None:
            self._totals.undo(step, before)


def _read_step(row: Any) -> Step | None:
    kind = read_kind(row.kind)
    if kind not in COUNTED:
        return None
    if not isinstance(row.population, str):
        raise HostileInput(f"Ledger entry {row.seq} is damaged: it names no population.", "Run veilsum ledger verify.")
    if kind is Kind.BUDGET:
        detail = parse_canonical(str(row.detail).encode(), what="ledger entry")
        return BudgetStep(row.population, Budget.from_detail(detail, row.delta))
    if not isinstance(row.context, str):
        raise HostileInput(f"Ledger entry {row.seq} is damaged: it names no context.", "Run veilsum ledger verify.")
    return ReleaseStep(kind, row.population, row.context, read_mechanism(row.event, row.colluders))
