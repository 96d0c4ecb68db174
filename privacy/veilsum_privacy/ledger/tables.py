"""The ledger's tables, with the indexes that hold them; what makes them adds triggers (:mod:`.triggers`).

``ledger`` holds the entries. ``ledger_receipt`` keeps the receipts that an entry covers by their digest, one row for each
member of the cohort, and ``ledger_certificate`` the certificates that they are verified with.

Triggers and indexes hold what the ledger promises even against a faulty caller: nothing in it changes, no round is charged
twice, and a context is recovered, shown and consented to once. A kept receipt never changes, but that a mirror sets its
consent once. They do not stop someone who owns the file; the chain of hashes shows that.
"""

import sqlalchemy as sa

metadata = sa.MetaData()

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _once(what: str, condition: str, *columns: str) -> sa.Index:
    """At most one entry of this condition has the same columns."""
    where = sa.text(condition)
    return sa.Index(f"ledger_one_{what}", *columns, unique=True, sqlite_where=where, postgresql_where=where)


ledger_table = sa.Table(
    "ledger",
    metadata,
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
    sa.Index("ledger_population", "population", "kind"),
    sa.Index("ledger_context", "context", "kind"),
    sa.Index("ledger_round", "study", "round", "kind"),
    _once("reservation", "kind = 'reserve'", "context"),
    _once("attempt", "kind = 'reserve'", "study", "round", "attempt"),
    _once("end", "kind IN ('charge', 'free')", "context"),
    _once("charge", "kind = 'charge'", "study", "round"),
    _once("release", "kind = 'release-seen'", "context"),
    _once("recovery", "kind = 'recovery'", "context"),
    _once("showing", "kind = 'receipts'", "context"),
    _once("consent", "kind = 'consent'", "context"),
)

receipt_table = sa.Table(
    "ledger_receipt",
    metadata,
    sa.Column("entry", _BIG, primary_key=True, autoincrement=False),  # number of the entry that covers it
    sa.Column("position", _BIG, primary_key=True, autoincrement=False),  # in the cohort, from 0
    sa.Column("context", sa.Text, nullable=False),
    sa.Column("participant", sa.Text, nullable=False),
    sa.Column("study", sa.Text, nullable=False),
    sa.Column("round", _BIG, nullable=False),
    sa.Column("attempt", _BIG, nullable=False),
    sa.Column("number", _BIG, nullable=False),
    sa.Column("head", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("signature", sa.Text, nullable=False),
    sa.Column("certificate", sa.Text, nullable=False),  # fingerprint in ledger_certificate
    sa.Column("consent", sa.Text),  # in a mirror: what the participant consented with
    sa.UniqueConstraint("context", "participant"),
    sa.UniqueConstraint("study", "participant", "number"),
    sa.Index("ledger_receipt_participant", "participant", "entry"),
)

certificate_table = sa.Table(
    "ledger_certificate",
    metadata,
    sa.Column("fingerprint", sa.Text, primary_key=True),  # SHA-256 of the certificate
    sa.Column("certificate", sa.Text, nullable=False),  # DER in hexadecimal
)
