"""The ledger's tables, as queries name them; the migrations beside this module create them.

``ledger`` holds the entries. ``ledger_receipt`` keeps the receipts that an entry covers by their digest, one row for each
member of the cohort, and ``ledger_certificate`` the certificates that they are verified with.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Integer, MetaData, Table, Text

metadata = MetaData()

_BIG = BigInteger().with_variant(Integer, "sqlite")

ledger_table = Table(
    "ledger",
    metadata,
    Column("seq", _BIG, primary_key=True, autoincrement=False),
    Column("time", _BIG, nullable=False),
    Column("kind", Text, nullable=False),
    Column("study", Text),
    Column("round", _BIG),
    Column("attempt", _BIG),
    Column("population", Text),
    Column("dataset", Text),
    Column("event", Text),
    Column("delta", Float),
    Column("unit", Text),
    Column("cohort_size", _BIG),
    Column("colluders", _BIG),
    Column("context", Text),
    Column("detail", Text, nullable=False),
    Column("previous", Text, nullable=False, unique=True),
    Column("hash", Text, nullable=False, unique=True),
    Column("signature", Text, nullable=False),
)

receipt_table = Table(
    "ledger_receipt",
    metadata,
    Column("entry", _BIG, primary_key=True, autoincrement=False),  # number of the entry that covers it
    Column("position", _BIG, primary_key=True, autoincrement=False),  # in the cohort, from 0
    Column("context", Text, nullable=False),
    Column("participant", Text, nullable=False),
    Column("study", Text, nullable=False),
    Column("round", _BIG, nullable=False),
    Column("attempt", _BIG, nullable=False),
    Column("number", _BIG, nullable=False),
    Column("head", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("signature", Text, nullable=False),
    Column("certificate", Text, nullable=False),  # fingerprint in ledger_certificate
    Column("consent", Text),  # in a mirror: what the participant consented with
)

certificate_table = Table(
    "ledger_certificate",
    metadata,
    Column("fingerprint", Text, primary_key=True),  # SHA-256 of the certificate
    Column("certificate", Text, nullable=False),  # DER in hexadecimal
)
