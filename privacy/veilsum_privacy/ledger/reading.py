"""Read and check a ledger: what was spent, every entry, proof and export.

Reads open their own connection, or use that of a transaction they belong to. Nothing here writes, and no key is needed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any

from sqlalchemy import Connection, Engine, Select, exists, func, select
from sqlalchemy.exc import DBAPIError

from veilsum_privacy.accounting import estimated_epsilon
from veilsum_privacy.canonical import canonical
from veilsum_privacy.errors import Misuse, StateError
from veilsum_privacy.ledger.entries import (
    Budget,
    Entry,
    Kind,
    Mechanism,
    Spending,
    facts,
    read_mechanism,
    read_row,
    total_epsilon,
)
from veilsum_privacy.ledger.tables import ledger_table
from veilsum_privacy.ledger.verification import SignatureCheck, verify_rows

_COLUMNS = ledger_table.c
_ALL = select(ledger_table).order_by(_COLUMNS.seq)


class LedgerReader:
    """An existing ledger, to read.

    Args:
        engine: from :func:`veilsum_privacy.database.open_database`, SQLite.
        site: whose ledger it should be, checked by :meth:`verify`; None takes any.
    """

    def __init__(self, engine: Engine, *, site: str | None = None) -> None:
        if engine.dialect.name != "sqlite":
            raise Misuse("A ledger lives in an SQLite file.", "Give a path instead of a database URL.")
        self._engine, self._site = engine, site

    def budget(self, population: str, connection: Connection | None = None) -> Budget | None:
        """The population's budget now in force, or None."""
        with self._reading(connection) as reader:
            return self._budget(reader, population)

    def populations(self, connection: Connection | None = None) -> list[str]:
        """Populations that ever had a budget, sorted."""
        with self._reading(connection) as reader:
            query = select(_COLUMNS.population).where(_COLUMNS.kind == Kind.BUDGET).distinct().order_by(_COLUMNS.population)
            return [str(name) for name in reader.scalars(query)]

    def spending(self, population: str, connection: Connection | None = None) -> Spending:
        """Where a population stands.

        Raises:
            StateError: it has no budget.
        """
        with self._reading(connection) as reader:
            budget = self._budget(reader, population)
            if budget is None:
                raise StateError(f"The population {population} has no budget.", "Set one first.")
            charged = self._mechanisms(reader, population, charged=True)
            reserved = total_epsilon(self._mechanisms(reader, population), budget.delta)
        spent = total_epsilon(charged, budget.delta)
        events = [event for mechanism in charged.elements() if (event := mechanism.event) is not None]
        left = math.inf if budget.epsilon is None else max(0.0, budget.epsilon - reserved)
        return Spending(
            population=population,
            budget=budget,
            spent=spent,
            estimate=estimated_epsilon(events, budget.delta) if math.isfinite(spent) else None,
            reserved=reserved,
            left=left,
            releases=charged.total(),
        )

    def lost_charges(self, study: bytes, connection: Connection | None = None) -> int:
        """How many rounds of a study were charged whose release was never seen."""
        with self._reading(connection) as reader:
            counts = {
                kind: reader.scalar(
                    select(func.count()).select_from(ledger_table).where(_COLUMNS.kind == kind, _COLUMNS.study == study.hex())
                )
                for kind in (Kind.CHARGE, Kind.RELEASE_SEEN)
            }
        return int(counts[Kind.CHARGE] or 0) - int(counts[Kind.RELEASE_SEEN] or 0)

    def entries(
        self,
        *,
        kind: Kind | None = None,
        study: bytes | None = None,
        population: str | None = None,
        context: bytes | None = None,
        first: int = 1,
        connection: Connection | None = None,
    ) -> list[Entry]:
        """Entries from number ``first`` on that fit every filter, in order.

        Raises:
            HostileInput: an entry is malformed.
        """
        wanted = {
            "kind": kind,
            "study": None if study is None else study.hex(),
            "population": population,
            "context": None if context is None else context.hex(),
        }
        query = select(ledger_table).where(_COLUMNS.seq >= first).order_by(_COLUMNS.seq)
        for name, value in wanted.items():
            if value is not None:
                query = query.where(_COLUMNS[name] == value)
        with self._reading(connection) as reader:
            return [read_row(row) for row in _rows(reader, query)]

    def head(self, connection: Connection | None = None) -> bytes:
        """Hash of the last entry (32 bytes): names the whole ledger."""
        with self._reading(connection) as reader:
            last = reader.scalar(select(_COLUMNS.hash).order_by(_COLUMNS.seq.desc()).limit(1))
        return bytes.fromhex(str(last))

    def verify(self, verify_signature: SignatureCheck | None = None, *, head: bytes | None = None) -> int:
        """Re-read and check every entry (:func:`veilsum_privacy.ledger.verification.verify_rows`); returns their number.

        Raises:
            HostileInput: names the first entry that fails.
            StateError: the file cannot be read.
        """
        with self._reading(None) as reader:
            return verify_rows(_rows(reader, _ALL), site=self._site, head=head, verify_signature=verify_signature)

    def export_jsonl(self, stream: IO[str]) -> int:
        """Write one entry a line, as canonical JSON with hash and signature; returns their number."""
        count = 0
        with self._reading(None) as reader:
            for row in _rows(reader, _ALL):
                line = canonical({**facts(row), "hash": row["hash"], "signature": row["signature"]})
                stream.write(line.decode() + "\n")
                count += 1
        return count

    def _reading(self, connection: Connection | None) -> AbstractContextManager[Connection]:
        return self._engine.connect() if connection is None else nullcontext(connection)

    def _budget(self, connection: Connection, population: str) -> Budget | None:
        query = select(ledger_table).where(_COLUMNS.kind == Kind.BUDGET, _COLUMNS.population == population)
        row = first_row(connection, query.order_by(_COLUMNS.seq.desc()).limit(1))
        return None if row is None else read_row(row).budget

    def _mechanisms(self, connection: Connection, population: str, *, charged: bool = False) -> Counter[Mechanism]:
        """Mechanisms of the population's charged releases, and of its open reservations unless ``charged``."""
        freed = ledger_table.alias()
        query = select(_COLUMNS.event, _COLUMNS.colluders, func.count().label("releases")).where(
            _COLUMNS.population == population
        )
        if charged:
            query = query.where(_COLUMNS.kind == Kind.CHARGE)
        else:
            query = query.where(
                _COLUMNS.kind == Kind.RESERVE,
                ~exists().where(freed.c.context == _COLUMNS.context, freed.c.kind == Kind.FREE),
            )
        counts: Counter[Mechanism] = Counter()
        for row in connection.execute(query.group_by(_COLUMNS.event, _COLUMNS.colluders)):
            counts[read_mechanism(row.event, row.colluders)] += row.releases
        return counts


def first_row(connection: Connection, query: Select[Any]) -> dict[str, Any] | None:
    """The first row by column name, or None."""
    row = connection.execute(query).mappings().first()
    return None if row is None else {str(name): value for name, value in row.items()}


def _rows(connection: Connection, query: Select[Any]) -> Iterator[Mapping[str, Any]]:
    try:
        for row in connection.execute(query.execution_options(yield_per=1000)).mappings():
            yield {str(name): value for name, value in row.items()}
    except DBAPIError as error:
        raise StateError(f"The ledger cannot be read: {error.orig}.", "Check the file.") from error
