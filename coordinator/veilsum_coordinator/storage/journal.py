"""What the coordinator remembers: studies, complete sums, answers, consents, releases, outcomes.

A sum is durable before anyone is shown its digest, all answers before anyone is asked for consent, a release before a member
is told that it may forget its payload. What each sum cost whom goes into the mirror of the participants' ledgers, in the same
transactions. What a running study needs beside that to go on after a restart is :mod:`.records`'s. Every write first reads
what is there, or puts the same in its place, so that one whose commit got no answer can be done again.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    LargeBinary,
    RowMapping,
    String,
    Table,
    Text,
    bindparam,
    delete,
    insert,
    or_,
    select,
    update,
)

from veilsum_aggregation.arrays import Integers
from veilsum_coordinator.storage.long_values import LONG, METADATA, SUM_PIECES, drop_pieces, write_pieces
from veilsum_coordinator.storage.outage import CALL_SECONDS, Outage
from veilsum_coordinator.storage.records import (
    CONSENTS,
    RELEASES,
    ROUNDS,
    SUMS,
    KeptProof,
    KeptRelease,
    KeptStudy,
    RoundStart,
    answers_text,
    boxes_data,
    read_kept,
    read_kept_releases,
    read_state,
    write_boxes,
    write_end,
    write_enrolment,
    write_progress,
)
from veilsum_coordinator.storage.releases import read_digest, read_releases, read_values, write_release
from veilsum_node.database import Database
from veilsum_node.errors import Damage, HostileInput, StateError, Unavailable
from veilsum_node.identity import Credentials
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.context import Assignment
from veilsum_privacy.securesum.roster import Enrolment
from veilsum_proto import federation_pb2 as pb

Result = TypeVar("Result")

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
    Column("roster", LargeBinary),  # of a study that is over and released something, for its proof
)


# Made once: to put a statement together takes longer than the database takes to carry it out.
_CONSENT = insert(CONSENTS)
_CONSENTED = select(CONSENTS.c.participant).where(
    *(CONSENTS.c[name] == bindparam(name) for name in ("study", "round", "participant"))
)


class NotStoredError(Unavailable):
    """What a participant sent could not be made durable, and was not taken: it should send it again."""


class SqlJournal:
    """The journal in a database, and the mirror beside it.

    Args:
        database: from :func:`veilsum_node.database.open_database`.
        mirror: in the same database.
        outage: what a server that is away costs.
    """

    def __init__(self, database: Database, mirror: Mirror, outage: Outage | None = None) -> None:
        self.database = database
        self.mirror = mirror
        self.outage = outage or Outage()
        # a file is on this machine; a server may be silent, which nobody who holds a lock may wait out
        self._try = self.outage.bounded if database.on_server else self.outage.attempt
        self._idle = threading.Condition()
        self._writing, self._closed = 0, False
        self._sealed: dict[tuple[bytes, str], bytes] = {}  # digests of boxes that are stored, of studies that run
        database.migrate("veilsum_coordinator.migrations", "coordinator")

    def close(self, seconds: float) -> bool:
        """Take no more writes, wait up to ``seconds`` for those that run, and close the connections; whether all ended."""
        self.outage.stop()
        end = time.monotonic() + seconds
        with self._idle:
            self._closed = True
            while self._writing and (left := end - time.monotonic()) > 0:
                self._idle.wait(left)
            done = not self._writing
        self.database.close()
        return done

    def add_study(self, key: bytes, data: bytes, analyst: str, submitted: int) -> None:
        """Store a submitted study; waits for a server that is away, so never call it with a lock held.

        Raises:
            HostileInput: it was submitted before.
        """
        tries = 0

        def work(connection: Connection) -> None:
            nonlocal tries
            tries += 1
            found = connection.execute(select(STUDIES).where(STUDIES.c.digest == key)).mappings().first()
            if found is None:
                values = {"digest": key, "object": data, "analyst": analyst, "submitted": submitted}
                connection.execute(insert(STUDIES).values(phase="enrolling", reason="", **values))
            elif tries == 1 or (bytes(found["object"]), found["submitted"]) != (data, submitted):
                raise HostileInput(
                    "That study was submitted before.",
                    "Submit study.toml again: it gets a new nonce and counts as a new study.",
                )

        self.outage.wait(lambda: self._transact(work), CALL_SECONDS)

    def renew(self, credentials: Credentials) -> None:
        """Let the mirror sign with renewed credentials from here on.

        Raises:
            StateError: a new key could not be named in the mirror; try again.
        """
        self.mirror.renew(credentials, self._write)

    def studies(self) -> Sequence[RowMapping]:
        """All studies, oldest first, without what was signed, which is long."""
        columns = [column for column in STUDIES.c if column.name not in ("object", "roster")]
        with self.database.reading() as connection:
            return connection.execute(select(*columns).order_by(STUDIES.c.submitted)).mappings().all()

    def submitted(self, key: bytes) -> pb.StudyObject:
        """A study as its analyst signed it.

        Raises:
            StateError: there is none.
        """
        with self.database.reading() as connection:
            found = connection.scalar(select(STUDIES.c.object).where(STUDIES.c.digest == key))
        if found is None:
            raise StateError("The study is not in the database any more.")
        return pb.StudyObject.FromString(found)

    def keep_sum(
        self,
        study: bytes,
        assignment: Assignment,
        size: int,
        total: Callable[[], Iterable[bytes]],
        receipts: Sequence[SignedReceipt],
        certificates: Mapping[str, bytes],
    ) -> SignedReceipt:
        """Make a complete sum durable and its receipts a part of the mirror; returns the coordinator's countersignature.

        The coordinator's word on the sum follows from these bytes: it can be given again, and no other.

        Args:
            size: of the sum in bytes.
            total: makes its bytes in blocks of at most :data:`LONG`, so that a long one is never held whole.
            certificates: of the cohort, DER by name.

        Raises:
            DatabaseAwayError: the server is away for the moment; nothing is known to be stored.
        """
        signed = json.dumps([[receipt.body.hex(), receipt.signature.hex()] for receipt in receipts])
        number = assignment.round
        here = (SUMS.c.study == study, SUMS.c.round == number)

        def work(connection: Connection) -> SignedReceipt:
            kept = connection.execute(select(SUMS.c.attempt, SUMS.c.receipts).where(*here)).first()
            if kept is not None and tuple(kept) != (assignment.attempt, signed):
                if kept.attempt >= assignment.attempt:
                    raise StateError("A different sum of this attempt is already stored.", "Run `veilsum coordinator check`.")
                drop_pieces(connection, SUM_PIECES, study, number)
                connection.execute(delete(SUMS).where(*here))  # of an attempt that was given up: nobody was asked for consent
                kept = None
            if kept is None:
                long = size >= LONG
                connection.execute(
                    insert(SUMS).values(
                        study=study,
                        round=number,
                        attempt=assignment.attempt,
                        assignment=assignment.to_bytes(),
                        total=b"" if long else b"".join(total()),
                        receipts=signed,
                        size=size,
                    )
                )
                if long:
                    for place, block in enumerate(total()):
                        write_pieces(connection, SUM_PIECES, study, number, [block], place)
            return self.mirror.show(connection, receipts, certificates)

        return self._write(work)

    def keep_answers(self, study: bytes, assignment: Assignment, answers: Sequence[tuple[tuple[int, ...], bytes]]) -> None:
        """Make the answers of the whole cohort durable, in its order, words and signature.

        Raises:
            DatabaseAwayError: the server is away for the moment; nothing is known to be stored.
        """
        text, here = answers_text(answers), (SUMS.c.study == study, SUMS.c.round == assignment.round)

        def work(connection: Connection) -> None:
            kept = connection.execute(select(SUMS.c.attempt, SUMS.c.answers).where(*here)).one()
            if kept.attempt != assignment.attempt or kept.answers not in (None, text):
                raise StateError("Other answers about this sum are already stored.", "Run `veilsum coordinator check`.")
            if kept.answers is None:
                connection.execute(update(SUMS).where(*here).values(answers=text))

        self._write(work)

    def keep_consent(self, study: bytes, number: int, context: bytes, name: str, consent: bytes, signature: bytes) -> None:
        """Make a member's consent durable, with its signature under the answers that it is given to.

        Raises:
            NotStoredError: the database is locked, full or out of reach; the member has paid, so it is to send it again.
        """
        row = {"study": study, "round": number, "participant": name}

        def work(connection: Connection) -> None:
            self.mirror.consented(connection, context, name, consent)
            if connection.execute(_CONSENTED, row).first() is None:  # else by a try whose commit got no answer
                connection.execute(_CONSENT, {**row, "signature": signature})

        self._take("consent", lambda: self._transact(work))

    def keep_enrolment(self, study: bytes, name: str, enrolment: Enrolment) -> None:
        """Make a member's enrolment durable.

        Raises:
            NotStoredError: the database is locked, full or out of reach; the member is to send it again.
        """
        self._take("enrolment", lambda: self._transact(lambda connection: write_enrolment(connection, study, name, enrolment)))

    def keep_boxes(self, study: bytes, name: str, boxes: Sequence[Box]) -> None:
        """Make what a member sealed durable.

        Raises:
            NotStoredError: the database is locked, full or out of reach; the member is to send it again.
        """
        data = boxes_data(boxes)
        digest = hashlib.sha256(data).digest()
        if self._sealed.get((study, name)) == digest:  # a try whose caller had gone stored them
            return

        def store() -> None:
            self._transact(lambda connection: write_boxes(connection, study, name, data))
            self._sealed[study, name] = digest

        self._take("sealed boxes", store)

    def keep_progress(self, study: bytes, state: dict[str, Any], begun: RoundStart | None, *, sealed: bool) -> None:
        """Make a study's decisions durable, with the attempt that they begin; ``sealed``: no box is needed any more.

        Raises:
            DatabaseAwayError: the server is away for the moment; nothing is known to be stored.
        """
        self._write(lambda connection: write_progress(connection, study, state, begun, sealed=sealed))

    def end_study(self, key: bytes, state: dict[str, Any], *, told: int = 0, **values: Any) -> dict[int, KeptRelease]:
        """Store a study's outcome (phase, reason, status) and drop what it needs no longer.

        Args:
            told: the last round of whose release its members are told by this state, or were before; 0 for none.

        Returns:
            Releases of later rounds, by round. If there are any, nothing is stored: their members are to be told as well.
        """

        def work(connection: Connection) -> dict[int, KeptRelease]:
            if later := read_kept_releases(connection, key, told):
                return later
            new = or_(STUDIES.c.status.is_(None), STUDIES.c.status != values["status"])
            connection.execute(update(STUDIES).where(STUDIES.c.digest == key, new).values(**values))
            write_end(connection, key, state)
            return {}

        later = self._write(work)
        if not later:
            self._sealed = {place: digest for place, digest in self._sealed.items() if place[0] != key}
        return later

    def revise_state(self, study: bytes, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Put something else in the place of the decisions that are kept of a study; nothing of one that was deleted.

        Raises:
            DatabaseAwayError: the server is away for the moment; nothing is known to be stored.
        """

        def work(connection: Connection) -> None:
            if connection.scalar(select(STUDIES.c.phase).where(STUDIES.c.digest == study)) is not None:
                write_progress(connection, study, change(read_state(connection, study)), None, sealed=False)

        self._write(work)

    def complete_study(self, key: bytes, **values: Any) -> None:
        """Store that a study which had failed has a result (phase, reason, status)."""
        self._write(lambda connection: connection.execute(update(STUDIES).where(STUDIES.c.digest == key).values(**values)))

    def digests(self) -> set[bytes]:
        """Digests of all studies that are held."""
        with self.database.reading() as connection:
            return {bytes(digest) for digest in connection.scalars(select(STUDIES.c.digest))}

    def released(self, study: bytes) -> list[dict[str, Any]]:
        """Round, cohort, digest and assignment of a study's releases, in order; not their values."""
        columns = (RELEASES.c.round, RELEASES.c.cohort, RELEASES.c.digest, SUMS.c.assignment)
        same = (SUMS.c.study == RELEASES.c.study) & (SUMS.c.round == RELEASES.c.round)
        query = select(*columns).join_from(RELEASES, SUMS, same & (SUMS.c.attempt == RELEASES.c.attempt))
        with self.database.reading() as connection:
            found = connection.execute(query.where(RELEASES.c.study == study).order_by(RELEASES.c.round))
            return [dict(row) for row in found.mappings()]

    def kept(self, study: bytes) -> KeptStudy:
        """All that is kept of a study that runs."""
        with self.database.reading() as connection:
            return read_kept(connection, study)

    def kept_state(self, study: bytes) -> dict[str, Any]:
        """The decisions that are kept of a study; empty if none are."""
        with self.database.reading() as connection:
            return read_state(connection, study)

    def find_release(self, study: bytes, number: int) -> bytes:
        """The digest of a round's release; waits for a server that is away, so never call it with a lock held."""

        def work() -> bytes | None:
            with self.database.reading() as connection:
                return read_digest(connection, study, number)

        if (digest := self.outage.wait(work)) is None:
            raise StateError(f"Round {number} has no release.", "Run `veilsum coordinator check`.")
        return digest

    def release_values(self, study: bytes, number: int, start: int, stop: int) -> Integers:
        """Some of the integers of a round's release, (stop - start,) int64.

        It waits for a server that is away, so never call it with a lock held.
        """

        def work() -> Integers:
            with self.database.reading() as connection:
                return read_values(connection, study, number, start, stop)

        return self.outage.wait(work)

    def release(
        self,
        study: bytes,
        number: int,
        attempt: int,
        label: str,
        cohort: Sequence[str],
        context: bytes,
        values: Integers,
        time: int,
        received: int = 0,
        *,
        proof: KeptProof,
    ) -> bytes:
        """Make a release durable; returns its digest. The sum stays, for its proof.

        Args:
            values: (size,) the opened sum, in grid units.
            received: bytes of contributions, over all attempts of the round.
            proof: what it can be proven with later.

        The cohort has paid for it, so it waits for a server that is away: never call it with a lock held.
        """

        def work(connection: Connection) -> bytes:
            stored = read_digest(connection, study, number)
            if stored is None and connection.scalar(select(STUDIES.c.status).where(STUDIES.c.digest == study)) is not None:
                raise StateError("The study is over; its last sum is not released.")
            row = {
                "attempt": attempt,
                "label": label,
                "cohort": json.dumps(list(cohort)),
                "time": time,
                "proof": proof.to_text(),
            }
            key = write_release(connection, study, number, row, values, stored)
            connection.execute(
                update(ROUNDS).where(ROUNDS.c.study == study, ROUNDS.c.round == number).values(received=received)
            )
            self.mirror.released(connection, context, key)
            return key

        return self.outage.wait(lambda: self._transact(work))

    def releases(self, study: bytes) -> list[dict[str, Any]]:
        """A study's releases in order, with all their values."""
        return read_releases(self.database, study)

    def _take(self, what: str, store: Callable[[], object]) -> None:
        """One transaction for a participant, which sends it again if it fails."""
        try:
            self._try(store)
        except (StateError, Unavailable, Damage) as error:
            raise NotStoredError(f"The {what} could not be stored. {error.message}", error.advice) from error

    def _write(self, work: Callable[[Connection], Result]) -> Result:
        """One transaction of a caller that cannot wait."""
        return self._try(lambda: self._transact(work))

    def _transact(self, work: Callable[[Connection], Result]) -> Result:
        with self._admitted(), self.database.transaction() as connection:
            return work(connection)

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        with self._idle:
            if self._closed:
                raise StateError("The coordinator is stopping.", "Try again when it is back.")
            self._writing += 1
        try:
            yield
        finally:
            with self._idle:
                self._writing -= 1
                self._idle.notify_all()
