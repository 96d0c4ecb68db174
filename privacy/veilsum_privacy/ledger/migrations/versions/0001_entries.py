"""The table of entries, as files had it before there were migrations; such a file keeps its own.

Triggers and indexes hold what the ledger promises even against a faulty caller: nothing in it changes, and no round is charged
twice. They do not stop someone who owns the file; the chain of hashes shows that.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    if sa.inspect(op.get_bind()).has_table("ledger"):
        return
    op.create_table(
        "ledger",
        sa.Column("seq", _BIG, primary_key=True, autoincrement=False),
        sa.Column("time", _BIG, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("study", sa.Text),
        sa.Column("round", _BIG),
        sa.Column("attempt", _BIG),
        sa.Column("population", sa.Text),
        sa.Column("dataset", sa.Text),
        sa.Column("event", sa.Text),
        sa.Column("delta", sa.Float),
        sa.Column("unit", sa.Text),
        sa.Column("cohort_size", _BIG),
        sa.Column("colluders", _BIG),
        sa.Column("context", sa.Text),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("previous", sa.Text, nullable=False, unique=True),
        sa.Column("hash", sa.Text, nullable=False, unique=True),
        sa.Column("signature", sa.Text, nullable=False),
    )
    op.create_index("ledger_population", "ledger", ["population", "kind"])
    op.create_index("ledger_context", "ledger", ["context", "kind"])
    for name, columns, condition in (
        ("ledger_one_reservation", ["context"], "kind = 'reserve'"),
        ("ledger_one_attempt", ["study", "round", "attempt"], "kind = 'reserve'"),
        ("ledger_one_end", ["context"], "kind IN ('charge', 'free')"),
        ("ledger_one_charge", ["study", "round"], "kind = 'charge'"),
        ("ledger_one_release", ["context"], "kind = 'release-seen'"),
    ):
        where = sa.text(condition)
        op.create_index(name, "ledger", columns, unique=True, sqlite_where=where, postgresql_where=where)
    for statement in _POSTGRESQL if op.get_bind().dialect.name == "postgresql" else _SQLITE:
        op.execute(statement)


_FAULT = "the ledger is append-only"

# ruff: noqa: S608 - fixed text only
_SQLITE = (
    f"CREATE TRIGGER ledger_no_update BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, '{_FAULT}'); END",
    f"CREATE TRIGGER ledger_no_delete BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, '{_FAULT}'); END",
    "CREATE TRIGGER ledger_in_order BEFORE INSERT ON ledger "
    "WHEN NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM ledger) "
    f"BEGIN SELECT RAISE(ABORT, '{_FAULT}'); END",
)

_POSTGRESQL = (
    f"CREATE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '{_FAULT}'; END $$",
    "CREATE FUNCTION ledger_follows() RETURNS trigger LANGUAGE plpgsql AS $$ "
    "BEGIN IF NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM ledger) THEN "
    f"RAISE EXCEPTION '{_FAULT}'; END IF; RETURN NEW; END $$",
    "CREATE TRIGGER ledger_no_change BEFORE UPDATE OR DELETE ON ledger FOR EACH ROW EXECUTE FUNCTION ledger_append_only()",
    "CREATE TRIGGER ledger_no_truncate BEFORE TRUNCATE ON ledger FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()",
    "CREATE TRIGGER ledger_in_order BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION ledger_follows()",
)
