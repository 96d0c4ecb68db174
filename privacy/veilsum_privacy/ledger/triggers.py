"""Makes a ledger's tables with the triggers that hold them; once for each ledger, so that who opens one does without."""

import sqlalchemy as sa

from veilsum_privacy.ledger.tables import ledger_table, metadata, receipt_table

_FAULT = "the ledger is append-only"
_KEPT_FAULT = "the ledger''s receipts are append-only"
_CHANGED = " OR ".join(f"NEW.{column.name} <> OLD.{column.name}" for column in receipt_table.c if column.name != "consent")
_NOT_FIRST_CONSENT = f"OLD.consent IS NOT NULL OR NEW.consent IS NULL OR {_CHANGED}"

# ruff: noqa: S608 - fixed text only
_SQLITE = (
    f"CREATE TRIGGER IF NOT EXISTS ledger_no_update BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, '{_FAULT}'); END",
    f"CREATE TRIGGER IF NOT EXISTS ledger_no_delete BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, '{_FAULT}'); END",
    "CREATE TRIGGER IF NOT EXISTS ledger_in_order BEFORE INSERT ON ledger "
    "WHEN NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM ledger) "
    f"BEGIN SELECT RAISE(ABORT, '{_FAULT}'); END",
    f"CREATE TRIGGER ledger_receipt_no_update BEFORE UPDATE ON ledger_receipt WHEN {_NOT_FIRST_CONSENT} "
    f"BEGIN SELECT RAISE(ABORT, '{_KEPT_FAULT}'); END",
    f"CREATE TRIGGER ledger_receipt_no_delete BEFORE DELETE ON ledger_receipt BEGIN SELECT RAISE(ABORT, '{_KEPT_FAULT}'); END",
    f"CREATE TRIGGER ledger_certificate_no_update BEFORE UPDATE ON ledger_certificate "
    f"BEGIN SELECT RAISE(ABORT, '{_KEPT_FAULT}'); END",
    f"CREATE TRIGGER ledger_certificate_no_delete BEFORE DELETE ON ledger_certificate "
    f"BEGIN SELECT RAISE(ABORT, '{_KEPT_FAULT}'); END",
)

_POSTGRESQL = (
    f"CREATE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '{_FAULT}'; END $$",
    "CREATE FUNCTION ledger_follows() RETURNS trigger LANGUAGE plpgsql AS $$ "
    "BEGIN IF NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM ledger) THEN "
    f"RAISE EXCEPTION '{_FAULT}'; END IF; RETURN NEW; END $$",
    "CREATE TRIGGER ledger_no_change BEFORE UPDATE OR DELETE ON ledger FOR EACH ROW EXECUTE FUNCTION ledger_append_only()",
    "CREATE TRIGGER ledger_no_truncate BEFORE TRUNCATE ON ledger FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()",
    "CREATE TRIGGER ledger_in_order BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION ledger_follows()",
    "CREATE FUNCTION ledger_receipt_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ "
    f"BEGIN RAISE EXCEPTION '{_KEPT_FAULT}'; END $$",
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


def create(connection: sa.Connection) -> None:
    """Make all tables; of a file of the first layout, which had entries and no versions, what it lacks."""
    metadata.create_all(connection)
    for index in ledger_table.indexes:
        index.create(connection, checkfirst=True)
    for statement in _POSTGRESQL if connection.dialect.name == "postgresql" else _SQLITE:
        connection.exec_driver_sql(statement)
