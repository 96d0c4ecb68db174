"""What a participant must remember across a crash: studies, keys, attempts with their payloads, peers' receipt numbers; which
studies wait for the operator's word, how far the coordinator's mirror was read, what was kept or trained for later rounds, and
which cohorts a population's sums had.

The tables lie in the file of the site's ledger, so that a payload and its reservation, or a consent and its charge, are one
transaction. The migrations make them. This module stores and finds; what may be stored when is decided in :mod:`.membership`,
:mod:`.contributions`, :mod:`.openings`, :mod:`.approval` and :mod:`.recovery`.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    Result,
    Select,
    String,
    Table,
    Text,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from veilsum_node.database import Database
from veilsum_node.errors import Damage, HostileInput
from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.study.study import parse_study

Integers = NDArray[np.int64]


class StudyState(StrEnum):
    """Where a site stands in a study; it holds the study's keys while it is enrolled or ready."""

    ENROLLED = "enrolled"
    READY = "ready"
    LEFT = "left"
    ENDED = "ended"


class AttemptState(StrEnum):
    """Where a site stands in an attempt at a round."""

    RESERVED = "reserved"
    PAYLOAD = "payload"
    TOMBSTONE = "tombstone"
    CONSENTED = "consented"
    RELEASED = "released"
    RECOVERED = "recovered"


class PendingState(StrEnum):
    """Where the operator's word on a study stands."""

    WAITING = "waiting"
    APPROVED = "approved"
    DECLINED = "declined"
    REFUSED = "refused"


TAKING_PART = (StudyState.ENROLLED, StudyState.READY)

OPEN = (AttemptState.RESERVED, AttemptState.PAYLOAD)
"""States of an attempt whose reservation is open."""

PAID = (AttemptState.CONSENTED, AttemptState.RELEASED, AttemptState.RECOVERED)
"""States of an attempt that was charged; ``recovered`` is known from its receipt only."""

Value = TypeVar("Value", bytes, str)


def promised(value: Value | None) -> Value:
    """A column that is never empty in the row's present state.

    Raises:
        Damage: it is empty.
    """
    if value is None:
        raise Damage("The store lacks data that the state of a study or attempt requires.", "Restore a backup.")
    return value


@dataclass(frozen=True, repr=False)
class StudyRow:
    """A study that the site enrolled in. It holds keys and seeds, so it shows nothing of itself."""

    digest: bytes
    status: StudyState
    study: bytes
    analyst: str
    enrolment: bytes  # JSON of hexadecimal: certificate, body, signature
    box_key: bytes | None
    roster: bytes | None  # JSON: list of enrolments
    roster_time: int | None  # when the whole roster was verified
    secret_key: bytes | None
    tag_key: bytes | None
    dealer: str | None
    shares: bytes | None  # JSON: name -> hexadecimal; this site's own of the pairs' seeds
    seeds: bytes | None  # JSON: name -> hexadecimal
    receipts: int = 0
    round: int = 0
    attempt: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", StudyState(self.status))


@dataclass(frozen=True, repr=False)
class AttemptRow:
    """One attempt at a round."""

    study: bytes
    attempt: int
    round: int
    state: AttemptState
    context: bytes
    assignment: bytes
    deadline: int
    label: str
    self_seed: bytes | None
    consent: bytes | None
    sizes: str | None  # JSON: sizes of the ciphertexts in order
    receipt: bytes | None
    receipt_signature: bytes | None
    decrypted: bytes | None  # digest of the sum that was decrypted for this context
    consent_digest: bytes | None  # SHA-256 of the consent; outlives it, to know it again
    payload: bytes | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", AttemptState(self.state))

    @property
    def ciphertexts(self) -> list[bytes]:
        """The stored payload's, in order."""
        data = io.BytesIO(promised(self.payload))
        return [data.read(size) for size in json.loads(promised(self.sizes))]

    @property
    def signed_receipt(self) -> SignedReceipt:
        """The site's own receipt; there is one as soon as there is a payload."""
        return SignedReceipt(promised(self.receipt), promised(self.receipt_signature))


@dataclass(frozen=True)
class PendingRow:
    """A study that waits for the operator's word, or had it."""

    digest: bytes
    study: bytes
    signature: bytes
    certificate: bytes  # the analyst's, DER
    coordinator: str
    analyst: str
    time: int  # when it came
    state: PendingState
    reason: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", PendingState(self.state))


Row = TypeVar("Row", StudyRow, AttemptRow, PendingRow)

METADATA = MetaData()
_KINDS = {bytes: LargeBinary, int: Integer}


def _table(name: str, row: type[Row], *keys: str) -> Table:
    """The table of such rows, as the migrations make it: a column for each field."""
    hints, columns = get_type_hints(row), list[Column[Any]]()
    for item in fields(row):
        kind, *rest = get_args(hints[item.name]) or (hints[item.name],)
        default = None if item.default is MISSING else item.default
        key = item.name in keys
        columns.append(Column(item.name, _KINDS.get(kind, Text), primary_key=key, nullable=bool(rest), default=default))
    return Table(name, METADATA, *columns)


STUDIES = _table("participant_study", StudyRow, "digest")
ATTEMPTS = _table("participant_attempt", AttemptRow, "study", "attempt")
PENDING = _table("participant_pending", PendingRow, "digest")

PEERS = Table(
    "participant_peer",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("head", LargeBinary(32), nullable=False),
)


COHORTS = Table(
    "participant_cohort",
    METADATA,
    Column("context", LargeBinary(32), primary_key=True),
    Column("study", LargeBinary(32), nullable=False),
    Column("dataset", String(64), nullable=False),
    Column("population", String(64), nullable=False),
    Column("members", Text),  # JSON: name -> key fingerprint; null where a restored backup does not know them
)

ANSWERS = Table(
    "participant_answer",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("fits", Boolean, primary_key=True),  # whether the budget bore the study
    Column("analyst", String(64), nullable=False),
    Column("population", String(64), nullable=False),
    Column("time", Integer, nullable=False),
)

KEPT = Table(
    "participant_kept",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("label", String(64), primary_key=True),
    Column("vector", LargeBinary, nullable=False),  # the site's own noised vector, int64 little-endian
    Column("whole", LargeBinary),  # all that the site adds to the round's sum, where that is more
    Column("origin", LargeBinary(32)),  # digest of what it was computed from beside the records
)

STATES = Table(
    "participant_state",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("label", String(64), nullable=False),
    Column("arrays", LargeBinary, nullable=False),  # safetensors
)

MIRRORS = Table(
    "participant_mirror",
    METADATA,
    Column("coordinator", String(64), primary_key=True),
    Column("entry", Integer, nullable=False),  # every receipt of ours up to this entry of its mirror is settled here
)


def _all(kind: type[Row], found: Result[Any]) -> list[Row]:
    return [kind(**row) for row in found.mappings()]


def _one(kind: type[Row], found: Result[Any]) -> Row | None:
    row = found.mappings().first()
    return None if row is None else kind(**row)


def create_tables(database: Database) -> None:
    """Create what is missing, and bring an older version's tables up to date.

    Raises:
        StateError: the tables are of a newer version.
    """
    database.migrate("veilsum_participant.migrations", "participant")


def add_study(connection: Connection, **values: Any) -> None:
    """Store a new study; a digest is enrolled once (primary key)."""
    connection.execute(insert(STUDIES), values)


# Statements are made once: to put one together takes longer than the database takes to carry it out.
_STUDY = select(STUDIES).where(STUDIES.c.digest == bindparam("digest"))
_METHOD = select(STUDIES.c.study).where(STUDIES.c.digest == bindparam("digest"))
_ATTEMPT = select(ATTEMPTS).where(ATTEMPTS.c.study == bindparam("study"), ATTEMPTS.c.attempt == bindparam("attempt"))
_CONTEXT = select(ATTEMPTS).where(ATTEMPTS.c.context == bindparam("context"))
_OPEN_STUDIES = select(STUDIES).where(STUDIES.c.status.in_(TAKING_PART))
_SIGNED_STUDIES = select(STUDIES.c.digest, STUDIES.c.study).where(STUDIES.c.status.in_(TAKING_PART))
_CHANGE_STUDY = update(STUDIES).where(STUDIES.c.digest == bindparam("of_digest"))
_ADD_ATTEMPT = insert(ATTEMPTS)
_CHANGE_ATTEMPT = update(ATTEMPTS).where(
    ATTEMPTS.c.study == bindparam("of_study"), ATTEMPTS.c.attempt == bindparam("of_attempt")
)
_IN_STATES = (
    select(*(column for column in ATTEMPTS.c if column.name != "payload"))
    .where(ATTEMPTS.c.state.in_(bindparam("states", expanding=True)))
    .order_by(ATTEMPTS.c.attempt)
)
_LATE = select(ATTEMPTS.c.attempt).where(ATTEMPTS.c.state.in_(OPEN), ATTEMPTS.c.deadline <= bindparam("now")).limit(1)
_IN_STATES_OF_STUDY = _IN_STATES.where(ATTEMPTS.c.study == bindparam("study"))


def find_study(connection: Connection, digest: bytes) -> StudyRow | None:
    """The study's row."""
    return _one(StudyRow, connection.execute(_STUDY, {"digest": digest}))


def find_method(connection: Connection, digest: bytes) -> str | None:
    """The method of a study; None if the site does not know it, or an older version wrote it in another way."""
    study = connection.execute(_METHOD, {"digest": digest}).scalar()
    try:
        return None if study is None else parse_study(study).method
    except HostileInput:
        return None


def count_open(connection: Connection) -> tuple[int, int]:
    """How many studies the site is enrolled in, and how many wait for the operator's word."""
    enrolled = select(func.count()).where(STUDIES.c.status.in_(TAKING_PART))
    waiting = select(func.count()).where(PENDING.c.state == PendingState.WAITING)
    return int(connection.scalar(enrolled) or 0), int(connection.scalar(waiting) or 0)


def open_studies(connection: Connection) -> list[StudyRow]:
    """Studies that hold keys."""
    return _all(StudyRow, connection.execute(_OPEN_STUDIES))


def signed_studies(connection: Connection) -> list[tuple[bytes, bytes]]:
    """Digest and signed bytes of the studies that hold keys: their rows hold whole rosters, and are looked at every second."""
    return [(bytes(digest), bytes(study)) for digest, study in connection.execute(_SIGNED_STUDIES)]


def change_study(connection: Connection, digest: bytes, **values: Any) -> None:
    """Update the study's row."""
    connection.execute(_CHANGE_STUDY, {"of_digest": digest, **values})


def add_attempt(connection: Connection, **values: Any) -> None:
    """Store a new attempt."""
    connection.execute(_ADD_ATTEMPT, values)


def find_attempt(connection: Connection, study: bytes, attempt: int) -> AttemptRow | None:
    """The attempt's row."""
    return _one(AttemptRow, connection.execute(_ATTEMPT, {"study": study, "attempt": attempt}))


def attempts_in(connection: Connection, states: Sequence[AttemptState], study: bytes | None = None) -> list[AttemptRow]:
    """Attempts in one of the states, payloads left out."""
    if study is None:
        return _all(AttemptRow, connection.execute(_IN_STATES, {"states": states}))
    return _all(AttemptRow, connection.execute(_IN_STATES_OF_STUDY, {"states": states, "study": study}))


def is_late(connection: Connection, now: int) -> bool:
    """Whether an attempt whose reservation is open is past its deadline."""
    return connection.execute(_LATE, {"now": now}).first() is not None


def count_attempts(connection: Connection, study: bytes, states: Sequence[AttemptState], **equal: Any) -> int:
    """How many attempts of the study are in one of the states, with the given columns equal."""
    return int(connection.execute(_count(tuple(equal)), {"of_study": study, "states": states, **equal}).scalar_one())


@lru_cache(maxsize=16)
def _count(equal: tuple[str, ...]) -> Select[Any]:
    """Count a study's attempts in some states, with the named columns equal to parameters of their names."""
    query = select(func.count()).select_from(ATTEMPTS).where(ATTEMPTS.c.study == bindparam("of_study"))
    query = query.where(ATTEMPTS.c.state.in_(bindparam("states", expanding=True)))
    return query.where(*(ATTEMPTS.c[name] == bindparam(name) for name in equal))


@dataclass(frozen=True)
class AttemptTally:
    """A study's attempts, counted in one reading.

    Attributes:
        counts: by label, state and whether they are of the round that was asked about.
    """

    counts: Counter[tuple[str, AttemptState, bool]]

    def total(self, states: Sequence[AttemptState], *, present: bool = False) -> int:
        """How many are in one of the states; ``present``: of the round only."""
        return sum(count for (_, state, here), count in self.counts.items() if state in states and (here or not present))

    def labels(self, states: Sequence[AttemptState]) -> Counter[str]:
        """Those in one of the states, by the task's label."""
        found = Counter[str]()
        for (label, state, _), count in self.counts.items():
            found[label] += count if state in states else 0
        return found


_PRESENT = ATTEMPTS.c.round == bindparam("round")
_TALLY = (
    select(ATTEMPTS.c.label, ATTEMPTS.c.state, _PRESENT, func.count())
    .where(ATTEMPTS.c.study == bindparam("study"))
    .group_by(ATTEMPTS.c.label, ATTEMPTS.c.state, _PRESENT)
)


def tally(connection: Connection, study: bytes, number: int) -> AttemptTally:
    """Count the study's attempts; ``number``: of the round to tell apart."""
    rows = connection.execute(_TALLY, {"study": study, "round": number})
    return AttemptTally(
        Counter({(str(label), AttemptState(state), bool(here)): int(count) for label, state, here, count in rows})
    )


def find_context(connection: Connection, context: bytes) -> AttemptRow | None:
    """The row of the attempt with this context."""
    return _one(AttemptRow, connection.execute(_CONTEXT, {"context": context}))


def took_part(connection: Connection, study: bytes) -> bool:
    """Whether there is any attempt of the study."""
    return count_attempts(connection, study, tuple(AttemptState)) > 0


def recovered_receipts(connection: Connection, study: bytes) -> list[bytes]:
    """The study's receipts that were charged after a backup was restored."""
    query = select(ATTEMPTS.c.receipt).where(ATTEMPTS.c.study == study, ATTEMPTS.c.state == AttemptState.RECOVERED)
    return [bytes(receipt) for receipt in connection.scalars(query)]


def change_attempt(connection: Connection, study: bytes, attempt: int, **values: Any) -> None:
    """Update the attempt's row."""
    connection.execute(_CHANGE_ATTEMPT, {"of_study": study, "of_attempt": attempt, **values})


_NUMBERS = select(PEERS.c.name, PEERS.c.number).where(PEERS.c.study == bindparam("study"))
_PEER = upsert(PEERS)
_KEEP_PEER = _PEER.on_conflict_do_update(
    index_elements=["study", "name"], set_={"number": _PEER.excluded.number, "head": _PEER.excluded.head}
)


def peer_numbers(connection: Connection, study: bytes) -> Counter[str]:
    """The last receipt number seen from each peer in this study; 0 for none."""
    return Counter({str(name): int(number) for name, number in connection.execute(_NUMBERS, {"study": study})})


def keep_peers(connection: Connection, study: bytes, shown: Sequence[tuple[str, int, bytes]]) -> None:
    """Remember peers' receipt numbers and ledger heads, given as (name, number, head)."""
    rows = [{"study": study, "name": name, "number": number, "head": head} for name, number, head in shown]
    connection.execute(_KEEP_PEER, rows)


@dataclass(frozen=True)
class KeptVector:
    """A task's noised vector that the site keeps.

    Attributes:
        own: the site's block, in grid units.
        whole: all that the site adds to the task's round.
        origin: :func:`~veilsum_privacy.securesum.context.kept_origin` of what it was computed from; None if an older version
            kept it, which did not say.
    """

    own: Integers = field(repr=False)
    whole: Integers = field(repr=False)
    origin: bytes | None


def keep_vector(connection: Connection, study: bytes, label: str, kept: KeptVector) -> None:
    """Keep a task's noised vector; once for each study and label."""
    rest = None if len(kept.whole) == len(kept.own) else kept.whole.astype("<i8").tobytes()
    own = kept.own.astype("<i8").tobytes()
    connection.execute(insert(KEPT).values(study=study, label=label, vector=own, whole=rest, origin=kept.origin))


def kept_vector(connection: Connection, study: bytes, label: str) -> Integers | None:
    """The noised vector that the site kept of a task, in grid units; None if it kept none."""
    found = find_kept(connection, study, label)
    return None if found is None else found.own


def find_kept(connection: Connection, study: bytes, label: str) -> KeptVector | None:
    """What the site kept of a task; None if it kept nothing."""
    row = connection.execute(select(KEPT).where(KEPT.c.study == study, KEPT.c.label == label)).first()
    if row is None:
        return None
    own, whole = (np.frombuffer(data, dtype="<i8").astype(np.int64) for data in (row.vector, row.whole or row.vector))
    return KeptVector(own, whole, row.origin)


def keep_state(connection: Connection, study: bytes, attempt: int, label: str, arrays: bytes) -> None:
    """Keep what an attempt trained, beside what the label's last paid attempt did; what other attempts of it did is erased."""
    paid = connection.execute(_PAID_STATE, {"study": study, "label": label}).first()
    base = None if paid is None else paid.attempt
    stale = STATES.c.attempt != (attempt if base is None else base)
    connection.execute(delete(STATES).where(STATES.c.study == study, STATES.c.label == label, stale))
    connection.execute(
        upsert(STATES).values(study=study, attempt=attempt, label=label, arrays=arrays).on_conflict_do_nothing()
    )


def paid_state(connection: Connection, study: bytes, label: str) -> bytes | None:
    """What the last paid attempt of a task trained; None if there is none."""
    paid = connection.execute(_PAID_STATE, {"study": study, "label": label}).first()
    return None if paid is None else bytes(paid.arrays)


def drop_states(connection: Connection, study: bytes) -> None:
    """Forget all that was trained in a study."""
    connection.execute(_DROP_STATES, {"study": study})


_DROP_STATES = delete(STATES).where(STATES.c.study == bindparam("study"))
_PAID_STATE = (
    select(STATES.c.attempt, STATES.c.arrays)
    .join(ATTEMPTS, (STATES.c.study == ATTEMPTS.c.study) & (STATES.c.attempt == ATTEMPTS.c.attempt))
    .where(STATES.c.study == bindparam("study"), STATES.c.label == bindparam("label"), ATTEMPTS.c.state.in_(PAID))
    .order_by(STATES.c.attempt.desc())
    .limit(1)
)


def add_pending(connection: Connection, **values: Any) -> None:
    """Store a study that waits for the operator's word; once for each digest."""
    connection.execute(upsert(PENDING).values(**values).on_conflict_do_nothing())


def find_pending(connection: Connection, digest: bytes) -> PendingRow | None:
    """The row of a study that waits, was approved or declined."""
    return _one(PendingRow, connection.execute(_FIND_PENDING, {"digest": digest}))


def pending(connection: Connection) -> list[PendingRow]:
    """All such rows, oldest first."""
    return _all(PendingRow, connection.execute(_PENDING))


_FIND_PENDING = select(PENDING).where(PENDING.c.digest == bindparam("digest"))
_PENDING = select(PENDING).order_by(PENDING.c.time, PENDING.c.digest)


def change_pending(connection: Connection, digest: bytes, **values: Any) -> None:
    """Update such a row."""
    connection.execute(update(PENDING).where(PENDING.c.digest == digest).values(**values))


def drop_pending(connection: Connection, digest: bytes) -> None:
    """Forget such a row."""
    connection.execute(delete(PENDING).where(PENDING.c.digest == digest))


def mirror_entry(connection: Connection, coordinator: str) -> int:
    """The entry of a coordinator's mirror up to which everything is settled; 0 at first."""
    return int(connection.execute(_MIRROR, {"coordinator": coordinator}).scalar() or 0)


_MIRROR = select(MIRRORS.c.entry).where(MIRRORS.c.coordinator == bindparam("coordinator"))


def keep_mirror_entry(connection: Connection, coordinator: str, entry: int) -> None:
    """Remember that entry."""
    statement = upsert(MIRRORS).values(coordinator=coordinator, entry=entry)
    connection.execute(statement.on_conflict_do_update(index_elements=["coordinator"], set_={"entry": entry}))
