"""From version 0.1 to 0.2: cohorts by population, out of studies, charges and receipts; shares of seeds; origins; answers."""

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

revision = "0008"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "participant_cohort",
        sa.Column("context", sa.LargeBinary(32), primary_key=True),
        sa.Column("study", sa.LargeBinary(32), nullable=False),
        sa.Column("dataset", sa.String(64), nullable=False),
        sa.Column("population", sa.String(64), nullable=False),
        sa.Column("members", sa.Text),
    )
    _remember(op.get_bind())
    op.drop_column("participant_study", "strict_cohort")
    op.add_column("participant_study", sa.Column("shares", sa.LargeBinary))
    op.add_column("participant_kept", sa.Column("origin", sa.LargeBinary(32)))
    op.create_table(
        "participant_answer",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("fits", sa.Boolean, primary_key=True),
        sa.Column("analyst", sa.String(64), nullable=False),
        sa.Column("population", sa.String(64), nullable=False),
        sa.Column("time", sa.Integer, nullable=False),
    )


def _remember(connection: sa.Connection) -> None:
    tables = set(sa.inspect(connection).get_table_names())
    paid = connection.execute(
        sa.text(
            "SELECT a.study, a.context, a.receipt, s.study AS signed, s.strict_cohort FROM participant_attempt AS a"
            " LEFT JOIN participant_study AS s ON s.digest = a.study"
            " WHERE a.state IN ('consented', 'released', 'recovered') ORDER BY a.attempt"
        )
    )
    known: set[tuple[bytes, str]] = set()
    for row in paid.all():
        strict, dataset = _terms(row)
        if not strict or not dataset:
            continue
        members = _members(connection, row, tables)
        text = None if members is None else json.dumps(dict(sorted(members.items())))
        if text is not None and (row.study, text) in known:
            continue
        known.add((row.study, text or ""))
        connection.execute(
            sa.text("INSERT INTO participant_cohort VALUES (:context, :study, :dataset, :population, :members)"),
            {
                "context": row.context,
                "study": row.study,
                "dataset": dataset,
                "population": _population(connection, row.context, tables) or dataset,
                "members": text,
            },
        )


def _terms(row: Any) -> tuple[bool, str]:
    """Whether the study allowed one cohort only, and its dataset; one that is known by its receipts alone may have done so."""
    if row.signed is not None:
        study = json.loads(row.signed)
        return study["privacy"]["cohort_difference"] == "strict", str(study["dataset"])
    return True, "" if row.receipt is None else str(json.loads(row.receipt)["dataset"])


def _members(connection: sa.Connection, row: Any, tables: set[str]) -> dict[str, str] | None:
    """Names with fingerprints by the receipts that the charge kept; names alone where it kept none."""
    found = {}
    if "ledger_receipt" in tables:
        kept = connection.execute(
            sa.text(
                "SELECT r.participant, c.certificate FROM ledger_receipt AS r JOIN ledger_certificate AS c"
                " ON c.fingerprint = r.certificate WHERE r.context = :context"
            ),
            {"context": row.context.hex()},
        )
        found = {str(name): _fingerprint(bytes.fromhex(certificate)) for name, certificate in kept}
    if not found and row.strict_cohort is not None:
        found = dict.fromkeys(json.loads(row.strict_cohort), "")
    return found or None


def _fingerprint(certificate: bytes) -> str:
    key = x509.load_der_x509_certificate(certificate).public_key()
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _population(connection: sa.Connection, context: bytes, tables: set[str]) -> str | None:
    if "ledger" not in tables:
        return None
    found = connection.execute(
        sa.text("SELECT population FROM ledger WHERE context = :context AND kind IN ('charge', 'recovery')"),
        {"context": context.hex()},
    ).scalar()
    return None if found is None else str(found)
