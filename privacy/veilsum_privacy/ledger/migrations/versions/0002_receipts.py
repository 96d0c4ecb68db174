"""Receipts and certificates are kept beside the entries that cover them; a context is recovered, shown and consented to once.

A kept receipt never changes, but that a mirror sets its consent once; a receipt that is edited all the same no longer fits the
entry that covers it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "ledger_receipt",
        sa.Column("entry", _BIG, primary_key=True, autoincrement=False),
        sa.Column("position", _BIG, primary_key=True, autoincrement=False),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("participant", sa.Text, nullable=False),
        sa.Column("study", sa.Text, nullable=False),
        sa.Column("round", _BIG, nullable=False),
        sa.Column("attempt", _BIG, nullable=False),
        sa.Column("number", _BIG, nullable=False),
        sa.Column("head", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("signature", sa.Text, nullable=False),
        sa.Column("certificate", sa.Text, nullable=False),
        sa.Column("consent", sa.Text),
        sa.UniqueConstraint("context", "participant"),
        sa.UniqueConstraint("study", "participant", "number"),
    )
    op.create_index("ledger_receipt_participant", "ledger_receipt", ["participant", "entry"])
    op.create_table(
        "ledger_certificate",
        sa.Column("fingerprint", sa.Text, primary_key=True),
        sa.Column("certificate", sa.Text, nullable=False),
    )
    for name, kind in (
        ("ledger_one_recovery", "recovery"),
        ("ledger_one_showing", "receipts"),
        ("ledger_one_consent", "consent"),
    ):
        where = sa.text(f"kind = '{kind}'")
        op.create_index(name, "ledger", ["context"], unique=True, sqlite_where=where, postgresql_where=where)
    op.create_index("ledger_round", "ledger", ["study", "round", "kind"])
    for statement in _POSTGRESQL if op.get_bind().dialect.name == "postgresql" else _SQLITE:
        op.execute(statement)


_FAULT = "the ledger''s receipts are append-only"
_KEPT = (
    "entry", "position", "context", "participant", "study", "round", "attempt", "number", "head", "body", "signature",
    "certificate",
)  # fmt: skip

_CHANGED = " OR ".join(f"NEW.{name} <> OLD.{name}" for name in _KEPT)
_NOT_FIRST_CONSENT = f"OLD.consent IS NOT NULL OR NEW.consent IS NULL OR {_CHANGED}"

_SQLITE = (
    f"CREATE TRIGGER ledger_receipt_no_update BEFORE UPDATE ON ledger_receipt WHEN {_NOT_FIRST_CONSENT} "
    f"BEGIN SELECT RAISE(ABORT, '{_FAULT}'); END",
    f"CREATE TRIGGER ledger_receipt_no_delete BEFORE DELETE ON ledger_receipt BEGIN SELECT RAISE(ABORT, '{_FAULT}'); END",
    f"CREATE TRIGGER ledger_certificate_no_update BEFORE UPDATE ON ledger_certificate "
    f"BEGIN SELECT RAISE(ABORT, '{_FAULT}'); END",
    f"CREATE TRIGGER ledger_certificate_no_delete BEFORE DELETE ON ledger_certificate "
    f"BEGIN SELECT RAISE(ABORT, '{_FAULT}'); END",
)

_POSTGRESQL = (
    "CREATE FUNCTION ledger_receipt_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ "
    f"BEGIN RAISE EXCEPTION '{_FAULT}'; END $$",
    "CREATE TRIGGER ledger_receipt_no_update BEFORE UPDATE ON ledger_receipt FOR EACH ROW "
    f"WHEN ({_NOT_FIRST_CONSENT}) EXECUTE FUNCTION ledger_receipt_append_only()",
    "CREATE TRIGGER ledger_receipt_no_delete BEFORE DELETE ON ledger_receipt "
    "FOR EACH ROW EXECUTE FUNCTION ledger_receipt_append_only()",
    "CREATE TRIGGER ledger_receipt_no_truncate BEFORE TRUNCATE ON ledger_receipt "
    "FOR EACH STATEMENT EXECUTE FUNCTION ledger_receipt_append_only()",
    "CREATE TRIGGER ledger_certificate_no_change BEFORE UPDATE OR DELETE ON ledger_certificate "
    "FOR EACH ROW EXECUTE FUNCTION ledger_receipt_append_only()",
    "CREATE TRIGGER ledger_certificate_no_truncate BEFORE TRUNCATE ON ledger_certificate "
    "FOR EACH STATEMENT EXECUTE FUNCTION ledger_receipt_append_only()",
)
