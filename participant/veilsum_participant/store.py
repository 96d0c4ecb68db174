"""What a participant must remember across a crash: studies, keys, attempts with their payloads, peers' receipt numbers.

The tables lie in the file of the site's ledger, so that a payload and its reservation, or a consent and its charge, are one
transaction. This module stores and finds; what may be stored when is decided in :mod:`.site`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    String,
    Table,
    Text,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert

METADATA = MetaData()

STUDIES = Table(
    "participant_study",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("status", String(16), nullable=False),  # enrolled, ready, left, ended
    Column("study", LargeBinary, nullable=False),
    Column("analyst", String(64), nullable=False),
    Column("enrolment", LargeBinary, nullable=False),  # JSON of hexadecimal: certificate, body, signature
    Column("box_key", LargeBinary),
    Column("roster", LargeBinary),  # JSON: list of enrolments
    Column("roster_time", Integer),  # when the whole roster was verified
    Column("secret_key", LargeBinary),
    Column("tag_key", LargeBinary),
    Column("dealer", String(64)),
    Column("seeds", LargeBinary),  # JSON: name -> hexadecimal
    Column("strict_cohort", Text),  # JSON: names of the first consented cohort
    Column("receipts", Integer, nullable=False, default=0),
    Column("round", Integer, nullable=False, default=0),
    Column("attempt", Integer, nullable=False, default=0),
)

ATTEMPTS = Table(
    "participant_attempt",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("round", Integer, nullable=False),
    Column("state", String(16), nullable=False),  # reserved, payload, tombstone, consented, released
    Column("context", LargeBinary(32), nullable=False, unique=True),
    Column("assignment", LargeBinary, nullable=False),
    Column("deadline", Integer, nullable=False),
    Column("label", String(64), nullable=False),
    Column("self_seed", LargeBinary(32)),
    Column("consent", LargeBinary(32)),
    Column("sizes", Text),  # JSON: sizes of the ciphertexts in order
    Column("payload", LargeBinary),
    Column("receipt", LargeBinary),
    Column("receipt_signature", LargeBinary),
    Column("decrypted", LargeBinary(32)),  # digest of the sum that was decrypted for this context
)

PEERS = Table(
    "participant_peer",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("head", LargeBinary(32), nullable=False),
)


def create_tables(engine: Engine) -> None:
    """Create what is missing."""
    METADATA.create_all(engine)


def add_study(connection: Connection, **values: Any) -> None:
    """Store a new study; a digest is enrolled once (primary key)."""
    connection.execute(insert(STUDIES).values(**values))


def find_study(connection: Connection, digest: bytes) -> RowMapping | None:
    """The study's row."""
    return connection.execute(select(STUDIES).where(STUDIES.c.digest == digest)).mappings().first()


def open_studies(connection: Connection) -> Sequence[RowMapping]:
    """Studies that hold keys."""
    return connection.execute(select(STUDIES).where(STUDIES.c.status.in_(("enrolled", "ready")))).mappings().all()


def change_study(connection: Connection, digest: bytes, **values: Any) -> None:
    """Update the study's row."""
    connection.execute(update(STUDIES).where(STUDIES.c.digest == digest).values(**values))


def add_attempt(connection: Connection, **values: Any) -> None:
    """Store a new attempt."""
    connection.execute(insert(ATTEMPTS).values(**values))


def find_attempt(connection: Connection, study: bytes, attempt: int) -> RowMapping | None:
    """The attempt's row."""
    query = select(ATTEMPTS).where(ATTEMPTS.c.study == study, ATTEMPTS.c.attempt == attempt)
    return connection.execute(query).mappings().first()


def attempts_in(connection: Connection, states: Sequence[str], study: bytes | None = None) -> Sequence[RowMapping]:
    """Attempts in one of the states, payloads left out."""
    columns = [column for column in ATTEMPTS.c if column.name != "payload"]
    query = select(*columns).where(ATTEMPTS.c.state.in_(states)).order_by(ATTEMPTS.c.attempt)
    if study is not None:
        query = query.where(ATTEMPTS.c.study == study)
    return connection.execute(query).mappings().all()


def count_attempts(connection: Connection, study: bytes, states: Sequence[str], **equal: Any) -> int:
    """How many attempts of the study are in one of the states, with the given columns equal."""
    query = select(func.count()).select_from(ATTEMPTS).where(ATTEMPTS.c.study == study, ATTEMPTS.c.state.in_(states))
    for name, value in equal.items():
        query = query.where(ATTEMPTS.c[name] == value)
    return int(connection.execute(query).scalar_one())


def change_attempt(connection: Connection, study: bytes, attempt: int, **values: Any) -> None:
    """Update the attempt's row."""
    connection.execute(update(ATTEMPTS).where(ATTEMPTS.c.study == study, ATTEMPTS.c.attempt == attempt).values(**values))


def split_payload(row: RowMapping) -> list[bytes]:
    """The ciphertexts of a stored payload, in order."""
    parts, offset = [], 0
    for size in json.loads(row["sizes"]):
        parts.append(row["payload"][offset : offset + size])
        offset += size
    return parts


def peer_number(connection: Connection, study: bytes, name: str) -> int:
    """The last receipt number seen from a peer in this study; 0 for none."""
    query = select(PEERS.c.number).where(PEERS.c.study == study, PEERS.c.name == name)
    return int(connection.execute(query).scalar() or 0)


def keep_peer(connection: Connection, study: bytes, name: str, number: int, head: bytes) -> None:
    """Remember a peer's receipt number and ledger head."""
    statement = upsert(PEERS).values(study=study, name=name, number=number, head=head)
    connection.execute(
        statement.on_conflict_do_update(index_elements=["study", "name"], set_={"number": number, "head": head})
    )
