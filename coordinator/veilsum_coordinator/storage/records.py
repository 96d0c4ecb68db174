"""What the journal keeps of a study that runs, so that a coordinator which was killed goes on with it.

Members' enrolments and sealed boxes as they came; one row of decisions, rewritten whenever one is taken; a row for each round
with its last attempt. Broadcasts are kept as digests only: the method computes them again from the releases. All of it but the
decisions is dropped when the study ends.
"""

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

from veilsum_coordinator.storage.long_values import METADATA, SUM_PIECES, drop_pieces, read_whole
from veilsum_coordinator.storage.messages import box_message, enrolment_message, parse_boxes, parse_enrolment
from veilsum_privacy.ledger.kept_receipts import last_numbers
from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.ledger.tables import receipt_table
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.check_words import Signed
from veilsum_privacy.securesum.context import Assignment, parse_assignment
from veilsum_privacy.securesum.roster import Enrolment
from veilsum_proto import federation_pb2 as pb

PROTOCOL = 6
"""Version of the protocol whose decisions are kept."""

SUMS = Table(
    "coordinator_sum",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("assignment", LargeBinary, nullable=False),
    Column("total", LargeBinary),  # of a long one its size stands in "size" alone, and it lies in pieces
    Column("receipts", Text, nullable=False),
    Column("size", BigInteger),  # of the total in bytes; none where it is not kept
    Column("answers", Text),  # JSON: words and signature of every member in the cohort's order, once all are in
)

CONSENTS = Table(
    "coordinator_consent",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("participant", String(64), primary_key=True),
    Column("signature", LargeBinary, nullable=False),  # under the answers that it consented to; the consent is in the mirror
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
    Column("proof", Text),  # JSON: a KeptProof, or a FormerProof; none of releases by software that had none
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
    Column("received", BigInteger, nullable=False),  # bytes of contributions, of earlier attempts while the last one runs
)


@dataclass(frozen=True)
class RoundStart:
    """A round as it was begun, with its last attempt.

    Attributes:
        assignment: of that attempt; names round, label and broadcast.
        allowed: who may be in a cohort.
        started: unix seconds.
        received: bytes of contributions of earlier attempts.
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
    def parse(cls, row: RowMapping) -> "RoundStart":
        """Read such a row."""
        allowed = frozenset(json.loads(row["allowed"]))
        return cls(parse_assignment(row["assignment"]), allowed, row["attempts"], row["started"], row["received"])


@dataclass(frozen=True)
class KeptSum:
    """A complete sum whose digest members may have been shown.

    Attributes:
        total: its bytes.
        receipts: of the cohort, in its order.
        answers: of the cohort, in its order, words and signature; empty unless consent may have been asked for.
        consents: that came, by member.
        agreed: signatures under the answers that these were given to, by member.
    """

    total: bytes = field(repr=False)
    receipts: list[SignedReceipt]
    answers: list[tuple[tuple[int, ...], bytes]] = field(repr=False)
    consents: dict[str, bytes] = field(repr=False)
    agreed: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class KeptRelease:
    """A release without its values: attempt, cohort, when."""

    attempt: int
    cohort: tuple[str, ...]
    time: int


@dataclass(frozen=True)
class KeptProof:
    """What a release is proven with, beside its sum, receipts, answers and consents, which are kept where they were.

    Attributes:
        countersigned: the coordinator's word on the receipts that it showed to the cohort.
        coordinator: certificate of who gave that word; DER.
        fixed: its word on the sum.
    """

    countersigned: SignedReceipt
    coordinator: bytes
    fixed: Signed

    def to_text(self) -> str:
        """JSON."""
        words = [[item.body.hex(), item.signature.hex()] for item in (self.countersigned, self.fixed)]
        return json.dumps({"v": 6, "coordinator": self.coordinator.hex(), "countersigned": words[0], "fixed": words[1]})


@dataclass(frozen=True)
class FormerProof:
    """What a release of protocol 5 or before is proven with, beside receipts and consents.

    Attributes:
        keys: digest of the keys that the cohort shared.
        signatures: over each word on what was opened, by the name of who gave it.
        countersigned, coordinator: as of :class:`KeptProof`.
    """

    keys: bytes = field(repr=False)
    signatures: dict[str, bytes]
    countersigned: SignedReceipt
    coordinator: bytes


def read_proof(text: str) -> KeptProof | FormerProof:
    """Read what :meth:`KeptProof.to_text` wrote, or software that spoke an earlier version."""
    value = json.loads(text)
    if isinstance(value, dict):
        countersigned, fixed = (tuple(map(bytes.fromhex, value[name])) for name in ("countersigned", "fixed"))
        return KeptProof(SignedReceipt(*countersigned), bytes.fromhex(value["coordinator"]), Signed(*fixed))
    keys, signatures, countersigned, coordinator = value
    return FormerProof(
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

    @property
    def former(self) -> bool:
        """Whether somebody joined it under an earlier version of the protocol, so that nobody can go on with it."""
        return bool(self.state or self.numbers) and self.state.get("protocol") != PROTOCOL


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
    """Drop what an ended study needs no longer: members, rounds, and of a sum that will not be opened all but its receipts."""
    _write_state(connection, study, state)
    released = select(RELEASES.c.round).where(RELEASES.c.study == study)
    here = (SUMS.c.study == study, SUMS.c.round.not_in(released))
    for number in connection.scalars(select(SUMS.c.round).where(*here, SUMS.c.size.is_not(None))).all():
        drop_pieces(connection, SUM_PIECES, study, number)
    connection.execute(update(SUMS).where(*here, SUMS.c.size.is_not(None)).values(total=None, size=None, answers=None))
    connection.execute(delete(CONSENTS).where(CONSENTS.c.study == study, CONSENTS.c.round.not_in(released)))
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
    releases = read_kept_releases(connection, study, 0)
    rounds = connection.execute(select(ROUNDS).where(ROUNDS.c.study == study).order_by(ROUNDS.c.round)).mappings()
    state = read_state(connection, study)
    sealed = [row for row in members if row["boxes"] is not None and state.get("protocol") == PROTOCOL]
    return KeptStudy(
        state=state,
        enrolments={row["name"]: parse_enrolment(row["enrolment"]) for row in members},
        boxes={row["name"]: parse_boxes(row["boxes"]) for row in sealed},
        rounds=[_round(connection, row, releases.get(row["round"])) for row in rounds],
        numbers=last_numbers(connection, study),
    )


def read_kept_releases(connection: Connection, study: bytes, after: int) -> dict[int, KeptRelease]:
    """Releases of a study's rounds after a given one, by round."""
    columns = (RELEASES.c.round, RELEASES.c.attempt, RELEASES.c.cohort, RELEASES.c.time)
    found = connection.execute(select(*columns).where(RELEASES.c.study == study, RELEASES.c.round > after))
    return {row.round: KeptRelease(row.attempt, tuple(json.loads(row.cohort)), row.time) for row in found}


def _round(connection: Connection, row: RowMapping, release: KeptRelease | None) -> KeptRound:
    start = RoundStart.parse(row)
    if release is not None:
        return KeptRound(start, release=release)
    return KeptRound(start, sum=_sum(connection, row["study"], start.assignment))


def _sum(connection: Connection, study: bytes, assignment: Assignment) -> KeptSum | None:
    here = (SUMS.c.study == study, SUMS.c.round == assignment.round, SUMS.c.attempt == assignment.attempt)
    row = connection.execute(select(SUMS).where(*here)).mappings().first()
    if row is None or row["size"] is None:
        return None  # none, or of an attempt that was given up before anyone was asked for consent
    receipts = read_receipts(row["receipts"])
    consents = read_consents(connection, receipts[0].read().context)
    total = read_total(connection, study, assignment.round, row["total"])
    return KeptSum(total, receipts, read_answers(row["answers"]), consents, read_agreed(connection, study, assignment.round))


def read_total(connection: Connection, study: bytes, number: int, short: bytes) -> bytes:
    """A sum's bytes; ``short``: of its row, which holds those of a short one."""
    return bytes(short) or read_whole(connection, SUM_PIECES, study, number)


def answers_text(answers: Sequence[tuple[tuple[int, ...], bytes]]) -> str:
    """All members' answers, words and signature, as they are kept."""
    return json.dumps([[words, signature.hex()] for words, signature in answers])


def read_answers(text: str | None) -> list[tuple[tuple[int, ...], bytes]]:
    """The answers of :func:`answers_text`; none while not all of them are in."""
    return [(tuple(words), bytes.fromhex(signature)) for words, signature in json.loads(text or "[]")]


def read_agreed(connection: Connection, study: bytes, number: int) -> dict[str, bytes]:
    """Signatures under the answers to a round's challenge, which came with consents; by member."""
    query = select(CONSENTS.c.participant, CONSENTS.c.signature)
    found = connection.execute(query.where(CONSENTS.c.study == study, CONSENTS.c.round == number))
    return {str(name): bytes(signature) for name, signature in found}


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
