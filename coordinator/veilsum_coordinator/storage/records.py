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

import sqlalchemy as sa

from veilsum_coordinator.storage.long_values import METADATA, SUM_PIECES, drop_pieces, read_pieces
from veilsum_coordinator.storage.messages import box_message, enrolment_message, parse_boxes, parse_enrolment
from veilsum_privacy.ledger.receipts import SignedReceipt, parse_receipt
from veilsum_privacy.ledger.tables import receipt_table
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.context import Assignment, parse_assignment
from veilsum_privacy.securesum.roster import Enrolment
from veilsum_proto import federation_pb2 as pb

SUMS = sa.Table(
    "coordinator_sum",
    METADATA,
    sa.Column("study", sa.LargeBinary(32), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("assignment", sa.LargeBinary, nullable=False),
    sa.Column("ciphertexts", sa.LargeBinary),
    sa.Column("receipts", sa.Text, nullable=False),
    sa.Column("sizes", sa.Text),  # JSON: sizes of the ciphertexts in order
)

RELEASES = sa.Table(
    "coordinator_release",
    METADATA,
    sa.Column("study", sa.LargeBinary(32), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("label", sa.String(64), nullable=False),
    sa.Column("cohort", sa.Text, nullable=False),
    sa.Column("values", sa.LargeBinary, nullable=False),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    sa.Column("time", sa.BigInteger, nullable=False),
    sa.Column("proof", sa.Text),  # JSON: a KeptProof; none of releases by software that had none
)

MEMBERS = sa.Table(
    "coordinator_member",
    METADATA,
    sa.Column("study", sa.LargeBinary(32), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("enrolment", sa.LargeBinary, nullable=False),
    sa.Column("boxes", sa.LargeBinary),  # what the member sealed for others; dropped once everyone has opened its own
)

PROGRESS = sa.Table(
    "coordinator_progress",
    METADATA,
    sa.Column("study", sa.LargeBinary(32), primary_key=True),
    sa.Column("state", sa.Text, nullable=False),  # JSON
)

ROUNDS = sa.Table(
    "coordinator_round",
    METADATA,
    sa.Column("study", sa.LargeBinary(32), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("broadcast", sa.LargeBinary(32), nullable=False),  # its digest
    sa.Column("allowed", sa.Text, nullable=False),  # JSON: who may be in a cohort, sorted
    sa.Column("assignment", sa.LargeBinary, nullable=False),  # of the last attempt
    sa.Column("started", sa.BigInteger, nullable=False),
    sa.Column("received", sa.BigInteger, nullable=False),  # bytes of ciphertexts, of earlier attempts while the last one runs
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
    def parse(cls, row: sa.RowMapping) -> RoundStart:
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
_OF_MEMBER = (MEMBERS.c.study == sa.bindparam("of_study"), MEMBERS.c.name == sa.bindparam("of_name"))
_ENROLMENT = sa.select(MEMBERS.c.enrolment).where(*_OF_MEMBER)
_DROP_MEMBER = sa.delete(MEMBERS).where(*_OF_MEMBER)
_ADD_MEMBER = sa.insert(MEMBERS)
_KEEP_BOXES = sa.update(MEMBERS).where(*_OF_MEMBER)


def write_enrolment(connection: sa.Connection, study: bytes, name: str, enrolment: Enrolment) -> None:
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


def write_boxes(connection: sa.Connection, study: bytes, name: str, data: bytes) -> None:
    """Keep what a member sealed, in place of what it sealed before."""
    connection.execute(_KEEP_BOXES, {"of_study": study, "of_name": name, "boxes": data})


def write_progress(
    connection: sa.Connection, study: bytes, state: dict[str, Any], begun: RoundStart | None, *, sealed: bool
) -> None:
    """Keep a study's decisions and the attempt that they begin.

    Args:
        sealed: whether all members have opened their boxes, so that these are needed no longer.
    """
    _write_state(connection, study, state)
    if begun is not None:
        number = begun.assignment.round
        here = (ROUNDS.c.study == study, ROUNDS.c.round == number)
        if connection.scalar(sa.select(ROUNDS.c.assignment).where(*here)) == begun.assignment.to_bytes():
            return
        connection.execute(sa.delete(ROUNDS).where(*here))
        connection.execute(sa.insert(ROUNDS).values(study=study, **begun.columns()))
    elif sealed:
        held = (MEMBERS.c.study == study, MEMBERS.c.boxes.is_not(None))
        connection.execute(sa.update(MEMBERS).where(*held).values(boxes=None))


def write_end(connection: sa.Connection, study: bytes, state: dict[str, Any]) -> None:
    """Drop what an ended study needs no longer: members, rounds, ciphertexts of a sum that will not be opened."""
    _write_state(connection, study, state)
    held = (SUMS.c.study == study, SUMS.c.ciphertexts.is_not(None))
    connection.execute(sa.update(SUMS).where(*held).values(ciphertexts=None, sizes=None))
    drop_pieces(connection, SUM_PIECES, study)
    for table in (MEMBERS, ROUNDS):
        connection.execute(sa.delete(table).where(table.c.study == study))


def _write_state(connection: sa.Connection, study: bytes, state: dict[str, Any]) -> None:
    text, here = json.dumps(state), PROGRESS.c.study == study
    known = connection.scalar(sa.select(PROGRESS.c.state).where(here))
    if known is None:
        connection.execute(sa.insert(PROGRESS).values(study=study, state=text))
    elif known != text:  # a transaction that writes nothing has no disk to wait for
        connection.execute(sa.update(PROGRESS).where(here).values(state=text))


def read_state(connection: sa.Connection, study: bytes) -> dict[str, Any]:
    """A study's decisions; empty if none were kept."""
    found = connection.scalar(sa.select(PROGRESS.c.state).where(PROGRESS.c.study == study))
    return {} if found is None else dict(json.loads(found))


def read_kept(connection: sa.Connection, study: bytes) -> KeptStudy:
    """All that is kept of a study that runs."""
    members = connection.execute(sa.select(MEMBERS).where(MEMBERS.c.study == study)).mappings().all()
    columns = [column for column in RELEASES.c if column.name not in ("values", "proof")]
    found = connection.execute(sa.select(*columns).where(RELEASES.c.study == study)).mappings()
    releases = {row["round"]: row for row in found}
    rounds = connection.execute(sa.select(ROUNDS).where(ROUNDS.c.study == study).order_by(ROUNDS.c.round)).mappings()
    return KeptStudy(
        state=read_state(connection, study),
        enrolments={row["name"]: parse_enrolment(row["enrolment"]) for row in members},
        boxes={row["name"]: parse_boxes(row["boxes"]) for row in members if row["boxes"] is not None},
        rounds=[_round(connection, row, releases.get(row["round"])) for row in rounds],
        numbers=_numbers(connection, study),
    )


def _round(connection: sa.Connection, row: sa.RowMapping, release: sa.RowMapping | None) -> KeptRound:
    start = RoundStart.parse(row)
    if release is not None:
        cohort = tuple(json.loads(release["cohort"]))
        return KeptRound(start, release=KeptRelease(release["attempt"], cohort, release["time"]))
    return KeptRound(start, sum=_sum(connection, row["study"], start.assignment))


def _sum(connection: sa.Connection, study: bytes, assignment: Assignment) -> KeptSum | None:
    here = (SUMS.c.study == study, SUMS.c.round == assignment.round, SUMS.c.attempt == assignment.attempt)
    row = connection.execute(sa.select(SUMS).where(*here)).mappings().first()
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


def read_consents(connection: sa.Connection, context: bytes) -> dict[str, bytes]:
    """The consents that came for a context, by member."""
    given = connection.execute(
        sa.select(receipt_table.c.participant, receipt_table.c.consent).where(
            receipt_table.c.context == context.hex(), receipt_table.c.consent.is_not(None)
        )
    )
    return {str(name): bytes.fromhex(consent) for name, consent in given}


def read_receipts(text: str) -> list[SignedReceipt]:
    """A sum's receipts, in the cohort's order."""
    return [SignedReceipt(bytes.fromhex(body), bytes.fromhex(signature)) for body, signature in json.loads(text)]


def _numbers(connection: sa.Connection, study: bytes) -> dict[str, int]:
    """Numbers of the members' last receipts; they rise from round to round, whoever takes part."""
    numbers: dict[str, int] = {}
    rows = connection.execute(sa.select(SUMS.c.receipts).where(SUMS.c.study == study))
    for (text,) in rows:
        for signed in read_receipts(text):
            receipt = parse_receipt(signed.body)
            numbers[receipt.participant] = max(receipt.number, numbers.get(receipt.participant, 0))
    return numbers
