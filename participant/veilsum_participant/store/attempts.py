"""Attempts at rounds: their payloads, receipts and consents, and how many there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Index, bindparam, func, insert, select, update

from veilsum_participant.store.tables import all_rows, one_row, promised, table
from veilsum_privacy.ledger.entries import Kind
from veilsum_privacy.ledger.gate import PAID as CHARGES
from veilsum_privacy.ledger.tables import ledger_table

if TYPE_CHECKING:
    from veilsum_privacy.ledger.receipts import SignedReceipt
    from veilsum_privacy.securesum.check_words import Answered


class AttemptState(StrEnum):
    """Where a site stands in an attempt at a round."""

    RESERVED = "reserved"
    PAYLOAD = "payload"
    TOMBSTONE = "tombstone"
    CONSENTED = "consented"
    RELEASED = "released"
    RECOVERED = "recovered"


OPEN = (AttemptState.RESERVED, AttemptState.PAYLOAD)
"""States of an attempt whose reservation is open."""

PAID = (AttemptState.CONSENTED, AttemptState.RELEASED, AttemptState.RECOVERED)
"""States of an attempt that was charged; ``recovered`` is known from its receipt only."""


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
    consent: bytes | None  # the secret of the self streams
    receipt: bytes | None
    receipt_signature: bytes | None
    payload: bytes | None = None  # as it is sent: key share, then coefficients
    words: bytes | None = None  # masked words of the payload, until a challenge about them was answered
    fixed: bytes | None = None  # digest of the sum whose challenge was answered
    challenge: bytes | None = None
    answer: bytes | None = None  # body of the signed answer
    answer_signature: bytes | None = None
    shown: bytes | None = None  # JSON: by what the sum was checked, and is charged
    agreed: bytes | None = None  # signature that went with the consent
    snapshot: bytes | None = None  # of the records that it was computed from, for the ledger once it is charged

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", AttemptState(self.state))

    @property
    def answered(self) -> Answered | None:
        """The challenge that the site answered for this context, if it answered one."""
        if self.answer is None:
            return None
        from veilsum_privacy.securesum.check_words import Answered, Signed

        signed = Signed(self.answer, promised(self.answer_signature))
        return Answered(promised(self.fixed), promised(self.challenge), signed)

    @property
    def signed_receipt(self) -> SignedReceipt:
        """The site's own receipt; there is one as soon as there is a payload."""
        from veilsum_privacy.ledger.receipts import SignedReceipt

        return SignedReceipt(promised(self.receipt), promised(self.receipt_signature))


ATTEMPTS = table("participant_attempt", AttemptRow, "study", "attempt", unique="context")
Index("participant_attempt_open", ATTEMPTS.c.state, ATTEMPTS.c.deadline)
Index("participant_attempt_round", ATTEMPTS.c.study, ATTEMPTS.c.round)
Index("participant_attempt_label", ATTEMPTS.c.study, ATTEMPTS.c.label, ATTEMPTS.c.state)

LONG = ("payload", "words", "shown")
"""Columns that grow with the vector or the cohort; none is needed once an attempt is over."""

# Statements are made once: to put one together takes longer than the database takes to carry it out.
_ATTEMPT = select(ATTEMPTS).where(ATTEMPTS.c.study == bindparam("study"), ATTEMPTS.c.attempt == bindparam("attempt"))
_CONTEXT = select(ATTEMPTS).where(ATTEMPTS.c.context == bindparam("context"))
_ADD_ATTEMPT = insert(ATTEMPTS)
_CHANGE_ATTEMPT = update(ATTEMPTS).where(
    ATTEMPTS.c.study == bindparam("of_study"), ATTEMPTS.c.attempt == bindparam("of_attempt")
)
_IN_STATES = (
    select(*(column for column in ATTEMPTS.c if column.name not in LONG))
    .where(ATTEMPTS.c.state.in_(bindparam("states", expanding=True)))
    .order_by(ATTEMPTS.c.attempt)
)
_LATE = select(ATTEMPTS.c.attempt).where(ATTEMPTS.c.state.in_(OPEN), ATTEMPTS.c.deadline <= bindparam("now")).limit(1)
_PRESENT = ATTEMPTS.c.round == bindparam("round")
_TALLY = (  # read off an index in its order: a study of many steps has as many attempts
    select(ATTEMPTS.c.label, ATTEMPTS.c.state, func.count())
    .where(ATTEMPTS.c.study == bindparam("study"))
    .group_by(ATTEMPTS.c.label, ATTEMPTS.c.state)
)
_TALLY_PRESENT = select(ATTEMPTS.c.label, ATTEMPTS.c.state).where(ATTEMPTS.c.study == bindparam("study"), _PRESENT)
_PAID_ATTEMPT = select(ATTEMPTS.c.attempt).where(ATTEMPTS.c.study == bindparam("study"), ATTEMPTS.c.state.in_(PAID), _PRESENT)


_KIND, _LEDGER, _TEXT = ledger_table.c.kind, select(ledger_table.c.context), func.lower(func.hex(ATTEMPTS.c.context))
_ENDED = _LEDGER.where(_KIND.in_((*CHARGES, Kind.FREE)))
_HELD = _LEDGER.where(_KIND == Kind.RESERVE, ledger_table.c.context.not_in(_ENDED))
UNCHARGED = select(ATTEMPTS).where(ATTEMPTS.c.state.in_(PAID), _TEXT.not_in(_LEDGER.where(_KIND.in_(CHARGES))))
UNHELD = select(ATTEMPTS).where(ATTEMPTS.c.state.in_(OPEN), _TEXT.not_in(_HELD))
"""Attempts that were consented to and are not charged, and open ones that the ledger holds no reservation for."""


def add_attempt(connection: Connection, **values: Any) -> None:
    """Store a new attempt."""
    connection.execute(_ADD_ATTEMPT, values)


def find_attempt(connection: Connection, study: bytes, attempt: int) -> AttemptRow | None:
    return one_row(AttemptRow, connection.execute(_ATTEMPT, {"study": study, "attempt": attempt}))


def paid_attempt(connection: Connection, study: bytes, number: int) -> int | None:
    """The attempt of a round that the site consented to, if it consented to one."""
    found = connection.execute(_PAID_ATTEMPT, {"study": study, "round": number}).scalar()
    return None if found is None else int(found)


def find_context(connection: Connection, context: bytes) -> AttemptRow | None:
    return one_row(AttemptRow, connection.execute(_CONTEXT, {"context": context}))


def is_mixed(connection: Connection) -> bool:
    """Whether there are any of these, as in a file that was put together of a store and a ledger of different times."""
    return any(connection.execute(query.limit(1)).first() is not None for query in (UNCHARGED, UNHELD))


def attempts_in(connection: Connection, states: Sequence[AttemptState], study: bytes | None = None) -> list[AttemptRow]:
    """Attempts in one of the states, without :data:`LONG` columns; few are open, and a study may have had many."""
    found = all_rows(AttemptRow, connection.execute(_IN_STATES, {"states": states}))
    return [row for row in found if study in (None, row.study)]


def is_late(connection: Connection, now: int) -> bool:
    """Whether an attempt whose reservation is open is past its deadline."""
    return connection.execute(_LATE, {"now": now}).first() is not None


def recovered_receipts(connection: Connection, study: bytes) -> list[bytes]:
    """The study's receipts that were charged after a backup was restored."""
    query = select(ATTEMPTS.c.receipt).where(ATTEMPTS.c.study == study, ATTEMPTS.c.state == AttemptState.RECOVERED)
    return [bytes(receipt) for receipt in connection.scalars(query)]


def finish_attempt(connection: Connection, study: bytes, attempt: int, state: AttemptState, **more: Any) -> None:
    """The attempt ended so: what it held for its sum is erased, a consent that was given stays. ``more`` changes with that."""
    change_attempt(connection, study, attempt, state=state, snapshot=None, **dict.fromkeys(LONG), **more)


def change_attempt(connection: Connection, study: bytes, attempt: int, **values: Any) -> None:
    """Update the attempt's row."""
    connection.execute(_CHANGE_ATTEMPT, {"of_study": study, "of_attempt": attempt, **values})


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


def tally(connection: Connection, study: bytes, number: int) -> AttemptTally:
    """Count the study's attempts; ``number``: of the round to tell apart."""
    present = connection.execute(_TALLY_PRESENT, {"study": study, "round": number})
    here = Counter((str(label), AttemptState(state)) for label, state in present)
    counts = Counter({(*kind, True): count for kind, count in here.items()})
    for label, state, count in connection.execute(_TALLY, {"study": study}):
        kind = str(label), AttemptState(state)
        if elsewhere := int(count) - here[kind]:
            counts[*kind, False] = elsewhere
    return AttemptTally(counts)
