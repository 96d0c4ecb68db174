"""What monitoring shows of a ledger: entries by kind, where each population stands, and what a mirror has seen released.

Reads are short and use a connection of their own; totals follow the entries, so that a second reading costs what was added
since. Nothing here writes.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from veilsum_node.database import Database
from veilsum_privacy.accounting.accountant import Adaptive
from veilsum_privacy.ledger.entries import Budget, Kind, Mechanism
from veilsum_privacy.ledger.rows import read_mechanism
from veilsum_privacy.ledger.sums import total_epsilon
from veilsum_privacy.ledger.tables import ledger_table, receipt_table
from veilsum_privacy.ledger.totals import Follower

MIRROR_DELTA = 1e-5
"""Delta at which the epsilon of a coordinator's releases is shown: a mirror knows no budget and so no delta of its own."""

SITE_KINDS = tuple(kind for kind in Kind if kind not in (Kind.RECEIPTS, Kind.CONSENT))
"""Kinds of entries that a site's own ledger holds."""

_COLUMNS = ledger_table.c
_KEPT = receipt_table.c


@dataclass(frozen=True)
class PopulationFigures:
    """Where a population stands; every epsilon by its budget's rule and delta.

    Attributes:
        budget: in force now.
        spent: epsilon of all charged releases.
        reserved: epsilon of charged and open releases together.
    """

    budget: Budget
    spent: float
    reserved: float

    @property
    def left(self) -> float:
        """The budget's epsilon less ``reserved``, not below 0; infinite without a bound."""
        return math.inf if self.budget.epsilon is None else max(0.0, self.budget.epsilon - self.reserved)


@dataclass(frozen=True)
class LedgerFigures:
    """A site's ledger as one state of it.

    Attributes:
        entries: how many of each kind.
        populations: those that have a budget, by name.
    """

    entries: Mapping[Kind, int]
    populations: Mapping[str, PopulationFigures]


class LedgerWatch:
    """Reads a site's ledger again and again. Not thread-safe.

    Args:
        database: of the database it lies in.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._totals = Follower()
        self._forget()

    def read(self) -> LedgerFigures:
        """The figures now.

        Raises:
            Unavailable, Damage: the database cannot be read.
            HostileInput: an entry is malformed.
        """
        with self._database.reading() as connection:
            self._count(connection)
            populations = {}
            for name in sorted(self._names):
                standing = self._totals.standing(connection, name)
                if (budget := standing.budget) is not None:
                    spent, reserved = standing.charged.epsilon(budget), standing.held.epsilon(budget)
                    populations[name] = PopulationFigures(budget, spent, reserved)
        return LedgerFigures({kind: self._kinds[kind.value] for kind in SITE_KINDS}, populations)

    def _forget(self) -> None:
        self._kinds: Counter[str] = Counter()
        self._names: set[str] = set()
        self._last, self._hash = 0, ""

    def _count(self, connection: Connection) -> None:
        found = connection.scalar(select(_COLUMNS.hash).where(_COLUMNS.seq == self._last)) if self._last else ""
        if found != self._hash:  # another ledger lies in its place
            self._forget()
        new = _COLUMNS.seq > self._last
        for kind, count in connection.execute(select(_COLUMNS.kind, func.count()).where(new).group_by(_COLUMNS.kind)):
            self._kinds[str(kind)] += int(count)
        budgets = select(_COLUMNS.population).where(new, _COLUMNS.kind == Kind.BUDGET.value).distinct()
        self._names.update(str(name) for name in connection.scalars(budgets))
        last = connection.execute(select(_COLUMNS.seq, _COLUMNS.hash).order_by(_COLUMNS.seq.desc()).limit(1)).first()
        if last is not None:
            self._last, self._hash = int(last.seq), str(last.hash)


@dataclass(frozen=True)
class MirrorFigures:
    """A coordinator's mirror as one state of it.

    Attributes:
        entries: how many.
        epsilon: by participant and dataset, of all releases that the participant consented to, at :data:`MIRROR_DELTA`, by
            RDP or by the rule ``gaussian``, whichever is smaller; infinite where one of them has no noise.
    """

    entries: int
    epsilon: Mapping[tuple[str, str], float]


def read_mirror(database: Database) -> MirrorFigures:
    """The figures of the mirror in a coordinator's database; its releases are counted by the database.

    Raises:
        Unavailable, Damage: the database cannot be read.
        HostileInput: an entry is malformed.
    """
    columns = (_KEPT.participant, _COLUMNS.dataset, _COLUMNS.event, _COLUMNS.colluders)
    joined = receipt_table.join(ledger_table, _COLUMNS.seq == _KEPT.entry)
    query = select(*columns, func.count()).select_from(joined).where(_KEPT.consent.is_not(None)).group_by(*columns)
    counts: defaultdict[tuple[str, str], Counter[Mechanism]] = defaultdict(Counter)
    with database.reading() as connection:
        last = connection.scalar(select(func.max(_COLUMNS.seq)))
        for participant, dataset, event, colluders, count in connection.execute(query):
            counts[str(participant), str(dataset)][read_mechanism(event, colluders)] += int(count)
    rules: tuple[Adaptive, Adaptive] = ("standard", "gaussian")
    epsilon = {key: min(total_epsilon(found, MIRROR_DELTA, rule) for rule in rules) for key, found in counts.items()}
    return MirrorFigures(int(last or 0), epsilon)
