"""Every error that veilsum raises on purpose.

Five families, by what is to be done about them:

- :class:`HostileInput`: a peer, a file or a message is wrong. Reject it.
- :class:`Misuse`: the caller, the operator or a configuration is wrong. Correct it; trying again does not help.
- :class:`Refusal`: a participant will not take part. Only its codes, from a fixed list, ever leave the site.
- :class:`Unavailable`: a server, a disk or a network is out of order. Wait and try again, or see to it.
- :class:`Damage`: what is stored cannot be made sense of. Keep it as it is, and restore a backup.

Each carries advice for its reader. None is a kind of another, so who catches one family catches nothing of the others.

This module imports nothing from the project.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum


class VeilsumError(Exception):
    """Base of all typed errors.

    Args:
        message: what is wrong, in one sentence, without a secret or a record's value.
        advice: what to do about it; may be empty.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".strip()


class HostileInput(VeilsumError):
    """Input from outside this process is malformed, forged, replayed or out of bounds."""


class Misuse(VeilsumError):
    """The caller, an operator or a configuration file asked for something that cannot be done."""


class ConfigurationError(Misuse):
    """A configuration, schema or study file is wrong; the message names file and key."""


class DataError(Misuse):
    """A site's data cannot be read or violates its schema; the message names file, row and column."""


class StateError(Misuse):
    """A call came in a state that does not allow it."""


class Unavailable(VeilsumError):
    """Something outside this process is away, full or in use: nothing was decided, and the same may succeed later."""


class Damage(VeilsumError):
    """What is stored is broken, and does not mend by itself."""


@contextmanager
def told_as(kind: type[VeilsumError], *of: type[VeilsumError], what: object = "") -> Iterator[None]:
    """Raise what the block raises ``of`` these families as an error of another ``kind``, with ``what`` before its message."""
    try:
        yield
    except of as error:
        raise kind(f"{what}: {error.message}" if what else error.message, error.advice) from error


@contextmanager
def raising(told: VeilsumError, *, on: type[Exception] | tuple[type[Exception], ...]) -> Iterator[None]:
    """Raise an error that says what to do, in place of what the block raises of these kinds."""
    try:
        yield
    except on as error:
        raise told from error


class RefusalCode(StrEnum):
    """Why a participant refuses: all that anyone outside the site is told."""

    STUDY_INVALID = "study-invalid"
    STUDY_EXPIRED = "study-expired"
    STUDY_REPLAYED = "study-replayed"
    STUDY_SIGNATURE = "study-signature"
    ANALYST = "analyst-not-allowed"
    PURPOSE = "purpose-not-stated"
    METHOD = "method-not-allowed"
    DATASET = "dataset-not-offered"
    SCHEMA = "schema-not-accepted"
    DISCLOSURE = "disclosure-not-allowed"
    NOISE = "noise-not-accepted"
    PRECISION = "precision-not-accepted"
    COHORT_SMALL = "cohort-too-small"
    COHORT_TRUST = "cohort-not-trusted"
    COHORT_CHANGED = "cohort-changed"
    MASKS = "masks-not-accepted"
    EPSILON = "epsilon-too-large"
    BUDGET = "budget-exceeded"
    ASKED = "asked-too-often"
    UNIT = "unit-not-accepted"
    WEIGHTS = "weights-not-accepted"
    ROSTER = "roster-invalid"
    KEYS = "keys-invalid"
    TASK = "task-not-declared"
    ROUND = "round-replayed"
    ATTEMPTS = "too-many-attempts"
    APPROVAL = "approval-declined"
    CONTEXT = "context-mismatch"
    BROADCAST = "broadcast-not-followed"
    RECEIPT = "receipt-invalid"
    CHECK = "check-invalid"
    LOST = "too-many-lost-charges"
    CLOSED = "study-closed"
    LEDGER = "ledger-not-verified"
    INTERNAL = "internal-error"


class Refusal(VeilsumError):
    """A participant declines; codes may leave the site, the words stay in its own log and ledger.

    Args:
        reasons: where several rules are broken, one refusal for each; see :meth:`of`.
    """

    def __init__(self, code: RefusalCode, message: str, advice: str = "", reasons: Sequence[Refusal] = ()) -> None:
        super().__init__(message, advice)
        self.code = code
        self._reasons = tuple(reasons)

    @property
    def reasons(self) -> tuple[Refusal, ...]:
        """Every rule that is broken, in the order of the codes; itself where it is one."""
        return self._reasons or (self,)

    @property
    def codes(self) -> tuple[RefusalCode, ...]:
        """The codes of all reasons, each once, in the order of :class:`RefusalCode`: all that leaves the site."""
        named = {reason.code for reason in self.reasons}
        return tuple(code for code in RefusalCode if code in named)

    @staticmethod
    def of(reasons: Iterable[Refusal]) -> Refusal | None:
        """One refusal for all reasons, None for none; its code is the first in the list's order, its words are everyone's."""
        order = list(RefusalCode)
        found = {(reason.code, reason.message): reason for given in reasons for reason in given.reasons}
        parts = sorted(found.values(), key=lambda reason: order.index(reason.code))
        if len(parts) < 2:
            return parts[0] if parts else None
        advice = dict.fromkeys(part.advice for part in parts if part.advice)
        return Refusal(parts[0].code, " ".join(part.message for part in parts), " ".join(advice), parts)
