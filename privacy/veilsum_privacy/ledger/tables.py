"""The ledger's table in SQLite: nothing in it changes, and no round is charged twice.

Triggers and indexes hold what :class:`Ledger` promises even against a faulty caller. They do not stop someone who owns the
file; the chain of hashes shows that (:mod:`veilsum_privacy.ledger.verification`).
"""

from __future__ import annotations

from sqlalchemy import Column, Connection, Float, Index, Integer, MetaData, Table, Text, text

metadata = MetaData()

ledger_table = Table(
    "ledger",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("time", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("study", Text),
    Column("round", Integer),
    Column("attempt", Integer),
    Column("population", Text),
    Column("dataset", Text),
    Column("event", Text),
    Column("delta", Float),
    Column("unit", Text),
    Column("cohort_size", Integer),
    Column("colluders", Integer),
    Column("context", Text),
    Column("detail", Text, nullable=False),
    Column("previous", Text, nullable=False, unique=True),
    Column("hash", Text, nullable=False, unique=True),
    Column("signature", Text, nullable=False),
)

_KIND = ledger_table.c.kind
Index("ledger_population", ledger_table.c.population, _KIND)
Index("ledger_context", ledger_table.c.context, _KIND)
Index("ledger_one_reservation", ledger_table.c.context, unique=True, sqlite_where=_KIND == "reserve")
Index("ledger_one_attempt", *(ledger_table.c[name] for name in ("study", "round", "attempt")),
      unique=True, sqlite_where=_KIND == "reserve")  # fmt: skip
Index("ledger_one_end", ledger_table.c.context, unique=True, sqlite_where=_KIND.in_(["charge", "free"]))
Index("ledger_one_charge", ledger_table.c.study, ledger_table.c.round, unique=True, sqlite_where=_KIND == "charge")
Index("ledger_one_release", ledger_table.c.context, unique=True, sqlite_where=_KIND == "release-seen")

_TRIGGERS = (
    "CREATE TRIGGER IF NOT EXISTS ledger_no_update BEFORE UPDATE ON ledger "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER IF NOT EXISTS ledger_no_delete BEFORE DELETE ON ledger "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER IF NOT EXISTS ledger_in_order BEFORE INSERT ON ledger "
    "WHEN NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM ledger) "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
)


def create_ledger_table(connection: Connection) -> None:
    """Create table, indexes and triggers where they do not exist."""
    metadata.create_all(connection)
    for trigger in _TRIGGERS:
        connection.execute(text(trigger))
