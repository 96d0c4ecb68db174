"""What the coordinator remembers: studies, complete sums before consent is asked for, consents, releases, outcomes.

A sum is durable before the first consent request leaves; a release before a member is told that it may forget its payload.
What each sum cost whom goes into the mirror of the participants' ledgers, in the same transactions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    String,
    Table,
    Text,
    insert,
    select,
    update,
)

from veilsum_privacy.canonical import digest
from veilsum_privacy.database import migrate, transaction
from veilsum_privacy.errors import HostileInput, StateError
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.securesum.context import Assignment

METADATA = MetaData()

STUDIES = Table(
    "coordinator_study",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("object", LargeBinary, nullable=False),
    Column("analyst", String(64), nullable=False),
    Column("submitted", BigInteger, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Column("status", LargeBinary),
)

SUMS = Table(
    "coordinator_sum",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("assignment", LargeBinary, nullable=False),
    Column("ciphertexts", LargeBinary),
    Column("receipts", Text, nullable=False),
)

RELEASES = Table(
    "coordinator_release",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("label", String(64), nullable=False),
    Column("cohort", Text, nullable=False),
    Column("values", LargeBinary, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("time", BigInteger, nullable=False),
)


def release_digest(study: bytes, number: int, attempt: int, values: bytes) -> bytes:
    """Digest of a release (32 bytes); ``values`` are the opened sum's integers, little-endian int64."""
    return digest("veilsum/1/release", study, number.to_bytes(8, "big"), attempt.to_bytes(8, "big"), values)


class NotStoredError(StateError):
    """What a participant sent could not be made durable, and was not taken: it should send it again."""


class Journal(Protocol):
    """Where a study's machine makes things durable."""

    def keep_sum(
        self,
        study: bytes,
        number: int,
        assignment: Assignment,
        ciphertexts: Sequence[bytes],
        receipts: Sequence[SignedReceipt],
        certificates: Mapping[str, bytes],
    ) -> SignedReceipt:
        """Make a complete sum durable and its receipts a part of the mirror; returns the coordinator's countersignature."""
        ...

    def keep_consent(self, context: bytes, name: str, consent: bytes) -> None:
        """Make a member's consent durable.

        Raises:
            NotStoredError: the database is locked, full or out of reach; the member has paid, so it is to send it again.
        """
        ...


class SqlJournal:
    """The journal in a database, and the mirror beside it.

    Args:
        engine: from :func:`veilsum_privacy.database.open_database`.
        mirror: in the same database.
    """

    def __init__(self, engine: Engine, mirror: Mirror) -> None:
        self._engine = engine
        self.mirror = mirror
        migrate(engine, "veilsum_coordinator.migrations", "coordinator")

    def add_study(self, key: bytes, data: bytes, analyst: str, submitted: int) -> None:
        """Store a submitted study.

        Raises:
            HostileInput: it was submitted before.
        """
        with transaction(self._engine) as connection:
            if connection.execute(select(STUDIES.c.digest).where(STUDIES.c.digest == key)).first() is not None:
                raise HostileInput("That study was submitted before.", "Submit study.toml again: a new nonce makes it new.")
            connection.execute(
                insert(STUDIES).values(
                    digest=key, object=data, analyst=analyst, submitted=submitted, phase="enrolling", reason=""
                )
            )

    def studies(self) -> Sequence[RowMapping]:
        """All studies, oldest first."""
        with self._engine.connect() as connection:
            return connection.execute(select(STUDIES).order_by(STUDIES.c.submitted)).mappings().all()

    def change_study(self, key: bytes, **values: Any) -> None:
        """Update phase, reason or status."""
        with transaction(self._engine) as connection:
            connection.execute(update(STUDIES).where(STUDIES.c.digest == key).values(**values))

    def keep_sum(
        self,
        study: bytes,
        number: int,
        assignment: Assignment,
        ciphertexts: Sequence[bytes],
        receipts: Sequence[SignedReceipt],
        certificates: Mapping[str, bytes],
    ) -> SignedReceipt:
        """Make a complete sum durable and its receipts a part of the mirror; returns the coordinator's countersignature.

        Args:
            certificates: of the cohort, DER by name.
        """
        signed = json.dumps([[receipt.body.hex(), receipt.signature.hex()] for receipt in receipts])
        with transaction(self._engine) as connection:
            connection.execute(
                insert(SUMS).values(
                    study=study,
                    round=number,
                    attempt=assignment.attempt,
                    assignment=assignment.to_bytes(),
                    ciphertexts=b"".join(ciphertexts),
                    receipts=signed,
                )
            )
            return self.mirror.show(connection, receipts, certificates)

    def keep_consent(self, context: bytes, name: str, consent: bytes) -> None:
        """Make a member's consent durable.

        Raises:
            NotStoredError: the database is locked, full or out of reach; the member has paid, so it is to send it again.
        """
        try:
            with transaction(self._engine) as connection:
                self.mirror.consented(connection, context, name, consent)
        except StateError as error:
            raise NotStoredError(f"The consent could not be stored. {error.message}", error.advice) from error

    def release(
        self,
        study: bytes,
        number: int,
        attempt: int,
        label: str,
        cohort: Sequence[str],
        context: bytes,
        values: bytes,
        time: int,
    ) -> bytes:
        """Make a release durable and drop its ciphertexts; returns the release's digest."""
        key = release_digest(study, number, attempt, values)
        with transaction(self._engine) as connection:
            connection.execute(
                insert(RELEASES).values(
                    study=study,
                    round=number,
                    attempt=attempt,
                    label=label,
                    cohort=json.dumps(list(cohort)),
                    values=values,
                    digest=key,
                    time=time,
                )
            )
            connection.execute(update(SUMS).where(SUMS.c.study == study, SUMS.c.round == number).values(ciphertexts=None))
            self.mirror.released(connection, context, key)
        return key

    def releases(self, study: bytes) -> Sequence[RowMapping]:
        """A study's releases in order."""
        return read_releases(self._engine, study)


def read_releases(engine: Engine, study: bytes) -> Sequence[RowMapping]:
    """A study's releases in order."""
    with engine.connect() as connection:
        query = select(RELEASES).where(RELEASES.c.study == study).order_by(RELEASES.c.round)
        return connection.execute(query).mappings().all()
