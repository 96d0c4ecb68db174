"""Read a ledger, a site's or a coordinator's mirror: what was spent, every entry, the receipts kept with them, and the proof.

Reads open their own connection, or use that of a transaction they belong to. Nothing here writes, and no key is needed: a
database from :func:`veilsum_node.database_places.open_readonly` will do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from cryptography import x509
from sqlalchemy import Connection, Select, bindparam, func, inspect, select

from veilsum_node.canonical import parse_canonical
from veilsum_node.database import Database, check_component
from veilsum_node.errors import Damage, HostileInput, StateError
from veilsum_node.identity import Role
from veilsum_privacy.ledger.entries import Budget, Entry, Kind, Mechanism
from veilsum_privacy.ledger.gate import require_budget
from veilsum_privacy.ledger.migrations import COMPONENT, PACKAGE
from veilsum_privacy.ledger.rows import read_row
from veilsum_privacy.ledger.statements import Headroom, Spending, change_policy, estimate_of
from veilsum_privacy.ledger.tables import ledger_table, receipt_table
from veilsum_privacy.ledger.totals import Follower

if TYPE_CHECKING:
    from veilsum_privacy.ledger.verification import Verification
    from veilsum_privacy.ledger.walking import ChainWalk, KeptReceipt, LedgerSource

_COLUMNS = ledger_table.c
_LAST = select(_COLUMNS.seq, _COLUMNS.hash).order_by(_COLUMNS.seq.desc()).limit(1)
_POSITION = select(_COLUMNS.seq).where(_COLUMNS.hash == bindparam("hash"))


class ChainReader:
    """Entries and kept receipts, of a site's ledger or of a mirror.

    Args:
        database: of the database it lies in.

    Raises:
        StateError: it holds no ledger, or it is a newer version's.
        Unavailable, Damage: it cannot be read.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        with database.reading() as connection:
            check_component(connection, PACKAGE, COMPONENT)
            tables = set(inspect(connection).get_table_names())
        if ledger_table.name not in tables:
            raise StateError("The database holds no ledger.", "Name a participant's or coordinator's state file.")
        self._keeps_receipts = receipt_table.name in tables  # a file of the first layout has none yet

    @property
    def site(self) -> str:
        """The site that the ledger's first entry names; ``unknown`` if it names none, as verification finds out."""
        return str(self._genesis().get("site", "unknown"))

    @property
    def role(self) -> Role:
        """Role of its owner: a participant's own ledger, or a coordinator's mirror."""
        try:
            return Role(self._genesis().get("role", Role.PARTICIPANT.value))
        except ValueError as error:
            raise HostileInput("The ledger's first entry names an unknown role.") from error

    def lost_charges(self, study: bytes) -> int:
        """How many rounds of a study were charged whose release was never seen."""
        query = select(_COLUMNS.kind, func.count()).where(_COLUMNS.study == study.hex()).group_by(_COLUMNS.kind)
        with self.database.reading() as reader:
            counts = {str(kind): int(count) for kind, count in reader.execute(query)}
        return counts.get("charge", 0) + counts.get("recovery", 0) - counts.get("release-seen", 0)

    def entries(
        self,
        *,
        kind: Kind | None = None,
        study: bytes | None = None,
        population: str | None = None,
        dataset: str | None = None,
        context: bytes | None = None,
        since: int | None = None,
        until: int | None = None,
        first: int = 1,
        connection: Connection | None = None,
    ) -> list[Entry]:
        """Entries that fit every filter, in order.

        Args:
            kind, study, population, dataset, context: what they must have.
            since: earliest time, Unix seconds.
            until: time before which they were written, Unix seconds.
            first: number of the first that is wanted.
            connection: of a transaction to read in.

        Raises:
            HostileInput: an entry is malformed.
        """
        wanted = {
            "kind": None if kind is None else kind.value,
            "study": None if study is None else study.hex(),
            "population": population,
            "dataset": dataset,
            "context": None if context is None else context.hex(),
        }
        query = select(ledger_table).where(_COLUMNS.seq >= first).order_by(_COLUMNS.seq)
        for name, value in wanted.items():
            if value is not None:
                query = query.where(_COLUMNS[name] == value)
        if since is not None:
            query = query.where(_COLUMNS.time >= since)
        if until is not None:
            query = query.where(_COLUMNS.time < until)
        with self._reading(connection) as reader:
            return [read_row(row) for row in rows_of(reader, query)]

    def receipts(
        self,
        *,
        study: bytes | None = None,
        participant: str | None = None,
        context: bytes | None = None,
        entry: int | None = None,
        first: int = 1,
        connection: Connection | None = None,
    ) -> list[KeptReceipt]:
        """Receipts kept with entries from number ``first`` on that fit every filter, in order.

        Raises:
            HostileInput: what is kept is malformed.
        """
        wanted = {
            "study": None if study is None else study.hex(),
            "participant": participant,
            "context": None if context is None else context.hex(),
            "entry": entry,
        }
        if not self._keeps_receipts:
            return []
        from veilsum_privacy.ledger.walking import kept_receipts  # which a site does without

        with self._reading(connection) as reader:
            return kept_receipts(reader, first, wanted)

    def head(self, connection: Connection | None = None) -> bytes:
        """Hash of the last entry (32 bytes): names the whole ledger."""
        with self._reading(connection) as reader:
            return self._last(reader)[1]

    def position(self, head: bytes, connection: Connection | None = None) -> int | None:
        """Number of the entry with this hash; None if it is not on this chain."""
        with self._reading(connection) as reader:
            found = reader.scalar(_POSITION, {"hash": head.hex()})
        return None if found is None else int(found)

    def verify(
        self, *, authority: x509.Certificate | None = None, head: bytes | None = None, against: Sequence[LedgerSource] = ()
    ) -> Verification:
        """Re-read and check everything (:func:`veilsum_privacy.ledger.verification.verify_ledger`).

        Raises:
            LedgerFault: names the first entry that fails.
            Unavailable, Damage: the database cannot be read.
        """
        from veilsum_privacy.ledger.verification import verify_ledger  # which who books does without

        return verify_ledger(self, authority=authority, head=head, against=against)

    @contextmanager
    def walk(self) -> Iterator[ChainWalk]:
        """Everything, as one state of the database: for verification and export.

        Raises:
            Unavailable, Damage: the database cannot be read.
        """
        from veilsum_privacy.ledger.walking import walked

        with self.database.reading() as reader:
            yield walked(reader, keeps=self._keeps_receipts)

    def _reading(self, connection: Connection | None) -> AbstractContextManager[Connection]:
        return self.database.reading() if connection is None else nullcontext(connection)

    def _genesis(self) -> Mapping[str, Any]:
        with self.database.reading() as reader:
            detail = reader.scalar(select(_COLUMNS.detail).where(_COLUMNS.seq == 1))
        value = None if detail is None else parse_canonical(str(detail).encode(), what="ledger entry")
        return value if isinstance(value, dict) else {}

    @staticmethod
    def _last(connection: Connection) -> tuple[int, bytes]:
        last = connection.execute(_LAST).first()
        if last is None:
            raise Damage("The ledger is empty: it lacks even its first entry.", "Restore the file.")
        return int(last.seq), bytes.fromhex(last.hash)


class LedgerReader(ChainReader):
    """An existing ledger, to read: what populations spent, and everything else that stands in it. Reads a mirror as well."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._totals = Follower()

    def budget(self, population: str, connection: Connection | None = None) -> Budget | None:
        """The population's budget now in force, or None."""
        with self._reading(connection) as reader:
            return self._totals.standing(reader, population).budget

    def policy(self, connection: Connection | None = None) -> dict[str, str]:
        """The site's policy at its last start, each value as a text by its key; empty where none was recorded.

        Raises:
            HostileInput: an entry is malformed.
        """
        held: dict[str, str] = {}
        for entry in self.entries(kind=Kind.POLICY, connection=connection):
            change_policy(held, entry)
        return held

    def populations(self, connection: Connection | None = None) -> list[str]:
        """Populations that ever had a budget, sorted."""
        with self._reading(connection) as reader:
            query = select(_COLUMNS.population).where(_COLUMNS.kind == Kind.BUDGET.value).distinct()
            return sorted(str(name) for name in reader.scalars(query))

    def spending(self, population: str, connection: Connection | None = None) -> Spending:
        """Where a population stands.

        Raises:
            StateError: it has no budget.
        """
        with self._reading(connection) as reader:
            standing = self._totals.standing(reader, population)
        budget = standing.budget
        if budget is None:
            raise StateError(f"The population {population} has no budget.", "Set one first.")
        reserved = standing.held.epsilon(budget)
        return Spending(
            population=population,
            budget=budget,
            spent=standing.charged.epsilon(budget),
            estimate=estimate_of(standing.charged, budget),
            reserved=reserved,
            left=math.inf if budget.epsilon is None else max(0.0, budget.epsilon - reserved),
            releases=standing.charged.counts.total(),
            alone=standing.charged.alone(budget),
        )

    def headroom(self, population: str, mechanisms: Mapping[Mechanism, int], connection: Connection | None = None) -> Headroom:
        """Where a population would stand if these releases came on top of all that is charged and open.

        Raises:
            Refusal: ``BUDGET``: the population has no budget.
        """
        with self._reading(connection) as reader:
            budget, figures = self._totals.epsilon_held(reader, population, {}, mechanisms)
        return Headroom(require_budget(budget, population), *figures)


def rows_of(connection: Connection, query: Select[Any]) -> Iterator[dict[str, Any]]:
    """The rows of a query, as they are read."""
    for row in connection.execute(query.execution_options(yield_per=1000)).mappings():
        yield {str(name): value for name, value in row.items()}
