"""What the journal keeps of a study that runs, so that a coordinator which was killed goes on with it.

Members' enrolments and sealed boxes as they came; one row of decisions, rewritten whenever one is taken; a row for each round
with its last attempt. Broadcasts are kept as digests only: the method computes them again from the releases. All of it but the
decisions is dropped when the study ends.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    RowMapping,
    String,
    Table,
    Text,
    bindparam,
    delete,
    insert,
    select,
    update,
)

from veilsum_coordinator.storage.long_values import METADATA, SUM_PIECES, drop_pieces, read_pieces
from veilsum_coordinator.storage.messages import box_message, enrolment_message, parse_boxes, parse_enrolment
from veilsum_privacy.ledger.receipts import SignedReceipt, parse_receipt
from veilsum_privacy.ledger.tables import receipt_table
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.context import Assignment, parse_assignment
from veilsum_privacy.securesum.roster import Enrolment
from veilsum_proto import federation_pb2 as pb

SUMS = Table(
    "coordinator_sum",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("assignment", LargeBinary, nullable=False),
    Column("ciphertexts", LargeBinary),
    Column("receipts", Text, nullable=False),
    Column("sizes", Text),  # JSON: sizes of the ciphertexts in order
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
    Column("proof", Text),  # JSON: a KeptProof; none of releases by software that had none
)

MEMBERS = Table(
    "coordinator_member",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("enrolment", LargeBinary, nullable=False),
    Column("boxes", LargeBinary),  # what the member sealed for others; dropped once everyone has opened its own
)

PROGRESS = Table(
    "coordinator_progress",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("state", Text, nullable=False),  # JSON
)

ROUNDS = Table(
    "coordinator_round",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("attempts", Integer, nullable=False),
    Column("broadcast", LargeBinary(32), nullable=False),  # its digest
    Column("allowed", Text, nullable=False),  # JSON: who may be in a cohort, sorted
    Column("assignment", LargeBinary, nullable=False),  # of the last attempt
    Column("started", BigInteger, nullable=False),
    Column("received", BigInteger, nullable=False),  # bytes of ciphertexts, of earlier attempts while the last one runs
)


@dataclass(frozen=True)
class RoundStart:
    """A round as it was begun, with its last attempt.

    Attributes:
        assignment: of that attempt; names round, label and broadcast.
        allowed: who may be in a cohort.
        attempts: how many there were.
        started: unix seconds.
        received: bytes of ciphertexts of earlier attempts.
    """

    assignment: Assignment
    allowed: frozenset[str]
    attempts: int
    started: int
    received: int

    def columns(self) -> dict[str, Any]:
        """Its row of :data:`ROUNDS`, but for the study."""
        return {
            "round": self.assignment.round,
            "broadcast": self.assignment.broadcast,
            "assignment": self.assignment.to_bytes(),
            "allowed": json.dumps(sorted(self.allowed)),
            "attempts": self.attempts,
            "started": self.started,
            "received": self.received,
        }

    @classmethod
    def parse(cls, row: RowMapping) -> RoundStart:
        """Read such a row."""
        allowed = frozenset(json.loads(row["allowed"]))
        return cls(parse_assignment(row["assignment"]), allowed, row["attempts"], row["started"], row["received"])


@dataclass(frozen=True)
class KeptSum:
    """A complete sum that consent may have been asked for.

    Attributes:
        ciphertexts: in order.
        receipts: of the cohort, in its order.
        consents: that came, by member.
    """

    ciphertexts: list[bytes] = field(repr=False)
    receipts: list[SignedReceipt]
    consents: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class KeptRelease:
    """A release without its values: attempt, cohort, when."""

    attempt: int
    cohort: tuple[str, ...]
    time: int


@dataclass(frozen=True)
class KeptProof:
    """What a release is proven with, beside its receipts and consents, which the mirror keeps.

    Attributes:
        keys: digest of the dealt keys.
        signatures: over each decryptor's word on what it decrypted, by its name.
        countersigned: the coordinator's word on the receipts that it showed to the cohort.
        coordinator: certificate of who gave that word; DER.
    """

    keys: bytes = field(repr=False)
    signatures: dict[str, bytes]
    countersigned: SignedReceipt
    coordinator: bytes

    def to_text(self) -> str:
        """JSON."""
        countersigned = [self.countersigned.body.hex(), self.countersigned.signature.hex()]
        signatures = {name: signature.hex() for name, signature in self.signatures.items()}
        return json.dumps([self.keys.hex(), signatures, countersigned, self.coordinator.hex()])

    @classmethod
    def parse(cls, text: str) -> KeptProof:
        """Read what :meth:`to_text` wrote."""
        keys, signatures, countersigned, coordinator = json.loads(text)
        return cls(
            bytes.fromhex(keys),
            {name: bytes.fromhex(signature) for name, signature in signatures.items()},
            SignedReceipt(*map(bytes.fromhex, countersigned)),
            bytes.fromhex(coordinator),
        )


@dataclass(frozen=True)
class KeptRound:
    """A round of the journal: as it began, and the sum or the release that it came to."""

    start: RoundStart
    sum: KeptSum | None = None
    release: KeptRelease | None = None


@dataclass(frozen=True)
class KeptStudy:
    """All that the journal keeps of a study that runs.

    Attributes:
        state: decisions, as :meth:`veilsum_coordinator.protocol.machine.StudyMachine.progress` wrote them; empty before the
            first.
        enrolments: by member.
        boxes: that each sealed.
        rounds: in order; every one but the last was released.
        numbers: of each member's last receipt that was shown to a cohort.
    """

    state: dict[str, Any]
    enrolments: dict[str, Enrolment]
    boxes: dict[str, list[Box]] = field(repr=False)
    rounds: list[KeptRound]
    numbers: dict[str, int]


# Statements of every member are made once: to put one together takes longer than the database takes to carry it out.
_OF_MEMBER = (MEMBERS.c.study == bindparam("of_study"), MEMBERS.c.name == bindparam("of_name"))
_ENROLMENT = select(MEMBERS.c.enrolment).where(*_OF_MEMBER)
_DROP_MEMBER = delete(MEMBERS).where(*_OF_MEMBER)
_ADD_MEMBER = insert(MEMBERS)
_KEEP_BOXES = update(MEMBERS).where(*_OF_MEMBER)


def write_enrolment(connection: Connection, study: bytes, name: str, enrolment: Enrolment) -> None:
    """Keep a member's enrolment; one that came before, without an answer, gives way."""
    here, data = {"of_study": study, "of_name": name}, enrolment_message(enrolment).SerializeToString()
    known = connection.scalar(_ENROLMENT, here)
    if known == data:  # by a try that ended late: nothing to wait for
        return
    if known is not None:
        connection.execute(_DROP_MEMBER, here)
    connection.execute(_ADD_MEMBER, {"study": study, "name": name, "enrolment": data})


def boxes_data(boxes: Sequence[Box]) -> bytes:
    """What a member sealed, as it is kept."""
    return pb.BoxesObject(boxes=[box_message(box) for box in boxes]).SerializeToString()


def write_boxes(connection: Connection, study: bytes, name: str, data: bytes) -> None:
    """Keep what a member sealed, in place of what it sealed before."""
    connection.execute(_KEEP_BOXES, {"of_study": study, "of_name": name, "boxes": data})


def write_progress(
    connection: Connection, study: bytes, state: dict[str, Any], begun: RoundStart | None, *, sealed: bool
) -> None:
    """Keep a study's decisions and the attempt that they begin.

    Args:
        sealed: whether all members have opened their boxes, so that these are needed no longer.
    """
    _write_state(connection, study, state)
    if begun is not None:
        number = begun.assignment.round
        here = (ROUNDS.c.study == study, ROUNDS.c.round == number)
        if connection.scalar(select(ROUNDS.c.assignment).where(*here)) == begun.assignment.to_bytes():
            return
        connection.execute(delete(ROUNDS).where(*here))
        connection.execute(insert(ROUNDS).values(study=study, **begun.columns()))
    elif sealed:
        held = (MEMBERS.c.study == study, MEMBERS.c.boxes.is_not(None))
        connection.execute(update(MEMBERS).where(*held).values(boxes=None))


def write_end(connection: Connection, study: bytes, state: dict[str, Any]) -> None:
    """Drop what an ended study needs no longer: members, rounds, ciphertexts of a sum that will not be opened."""
    _write_state(connection, study, state)
    held = (SUMS.c.study == study, SUMS.c.ciphertexts.is_not(None))
    connection.execute(update(SUMS).where(*held).values(ciphertexts=None, sizes=None))
    drop_pieces(connection, SUM_PIECES, study)
    for table in (MEMBERS, ROUNDS):
        connection.execute(delete(table).where(table.c.study == study))


def _write_state(connection: Connection, study: bytes, state: dict[str, Any]) -> None:
    text, here = json.dumps(state), PROGRESS.c.study == study
    known = connection.scalar(select(PROGRESS.c.state).where(here))
    if known is None:
        connection.execute(insert(PROGRESS).values(study=study, state=text))
    elif known != text:  # a transaction that writes nothing has no disk to wait for
        connection.execute(update(PROGRESS).where(here).values(state=text))


def read_state(connection: Connection, study: bytes) -> dict[str, Any]:
    """A study's decisions; empty if none were kept."""
    found = connection.scalar(select(PROGRESS.c.state).where(PROGRESS.c.study == study))
    return {} if found is None else dict(json.loads(found))


def read_kept(connection: Connection, study: bytes) -> KeptStudy:
    """All that is kept of a study that runs."""
    members = connection.execute(select(MEMBERS).where(MEMBERS.c.study == study)).mappings().all()
    columns = [column for column in RELEASES.c if column.name not in ("values", "proof")]
    found = connection.execute(select(*columns).where(RELEASES.c.study == study)).mappings()
    releases = {row["round"]: row for row in found}
    rounds = connection.execute(select(ROUNDS).where(ROUNDS.c.study == study).order_by(ROUNDS.c.round)).mappings()
    return KeptStudy(
        state=read_state(connection, study),
        enrolments={row["name"]: parse_enrolment(row["enrolment"]) for row in members},
        boxes={row["name"]: parse_boxes(row["boxes"]) for row in members if row["boxes"] is not None},
        rounds=[_round(connection, row, releases.get(row["round"])) for row in rounds],
        numbers=_numbers(connection, study),
    )


def _round(connection: Connection, row: RowMapping, release: RowMapping | None) -> KeptRound:
    start = RoundStart.parse(row)
    if release is not None:
        cohort = tuple(json.loads(release["cohort"]))
        return KeptRound(start, release=KeptRelease(release["attempt"], cohort, release["time"]))
    return KeptRound(start, sum=_sum(connection, row["study"], start.assignment))


def _sum(connection: Connection, study: bytes, assignment: Assignment) -> KeptSum | None:
    here = (SUMS.c.study == study, SUMS.c.round == assignment.round, SUMS.c.attempt == assignment.attempt)
    row = connection.execute(select(SUMS).where(*here)).mappings().first()
    if row is None or row["ciphertexts"] is None or row["sizes"] is None:
        return None  # none, or of an attempt that was given up before anyone was asked for consent
    receipts = read_receipts(row["receipts"])
    context = parse_receipt(receipts[0].body).context
    consents = read_consents(connection, context)
    sizes, data = json.loads(row["sizes"]), io.BytesIO(row["ciphertexts"])
    if row["ciphertexts"]:
        return KeptSum([data.read(size) for size in sizes], receipts, consents)
    pieces = read_pieces(connection, SUM_PIECES, study, assignment.round, range(len(sizes)))
    return KeptSum(list(pieces), receipts, consents)


def read_consents(connection: Connection, context: bytes) -> dict[str, bytes]:
    """The consents that came for a context, by member."""
    given = connection.execute(
        select(receipt_table.c.participant, receipt_table.c.consent).where(
            receipt_table.c.context == context.hex(), receipt_table.c.consent.is_not(None)
        )
    )
    return {str(name): bytes.fromhex(consent) for name, consent in given}


def read_receipts(text: str) -> list[SignedReceipt]:
    """A sum's receipts, in the cohort's order."""
    return [SignedReceipt(bytes.fromhex(body), bytes.fromhex(signature)) for body, signature in json.loads(text)]


def _numbers(connection: Connection, study: bytes) -> dict[str, int]:
    """Numbers of the members' last receipts; they rise from round to round, whoever takes part."""
    numbers: dict[str, int] = {}
    rows = connection.execute(select(SUMS.c.receipts).where(SUMS.c.study == study))
    for (text,) in rows:
        for signed in read_receipts(text):
            receipt = parse_receipt(signed.body)
            numbers[receipt.participant] = max(receipt.number, numbers.get(receipt.participant, 0))
    return numbers
