"""What a guard asks of the process that reads a dataset, and what it may answer.

Each reader is of one dataset, which :class:`OpenDataset` names first.

=======================  =======================  ==============  ===========================================
request                  answer                   largest answer  what crosses
=======================  =======================  ==============  ===========================================
:class:`OpenDataset`     :class:`WorkerDone`      1 KiB           out: what ``participant.toml`` says of it
:class:`CheckStructure`  :class:`WorkerDone`      1 KiB           out: a schema; no record is read
:class:`AskShare`        :class:`UnmatchedShare`  1 KiB           in: one share, for the operator
:class:`LoadRows`        :class:`SealedRows`      1 KiB, memory   in: all records, in sealed memory
:class:`BeginRows`       :class:`WorkerDone`      1 KiB           out: how batches are to be made
:class:`NextRows`        :class:`SealedRows`      1 KiB, memory   in: the next records, in sealed memory
=======================  =======================  ==============  ===========================================

Besides its own, each answer may be :class:`WorkerFault`, which has no words. How long an answer is waited for is the
caller's: it follows from what is public.
"""

from enum import IntEnum

from veilsum_participant.boundary.encoding import Inquiry, Message, Sealed, memory, number, octets, real, text

SMALL = 1024
SCHEMA = 16 * 1024 * 1024
LONGEST_NAME = 256
MOST_ROWS = 2**36
MOST_MEMORY = 2**46
DAY = 86400.0


class FaultKind(IntEnum):
    """Why a reader could not do what it was asked; more than this is in its own log."""

    OTHER = 1
    SOURCE = 2
    SETTINGS = 3
    AWAY = 4
    MEMORY = 5


class WorkerFault(Message):
    """It failed, and of which kind of a fixed list (:class:`FaultKind`) that is."""

    kind: int = number(1, max(FaultKind))


class WorkerDone(Message):
    """It was done."""


class UnmatchedShare(Message):
    """The largest share of a column's cells that match nothing."""

    share: float = real(1)


class SealedRows(Message):
    """Records, or that there are no more.

    Attributes:
        rows: how many.
        memory: features (rows, width) float64, whether each is there (rows, width) uint8, padded to 8 bytes, then classes
            (rows,) int64 if the schema has some, then whose they are (rows,) int64 if ``subjects``; in the machine's order.
        subjects: 1 if it is told whose they are.
        over: 1 behind the last.
        digest: of all records, 32 bytes, where the dataset is a query and this is the end, or all of them.
    """

    rows: int = number(1, MOST_ROWS)
    subjects: int = number(2, 1)
    over: int = number(3, 1)
    digest: bytes = octets(4, 32)
    memory: Sealed | None = memory(MOST_MEMORY)


class OpenDataset(Inquiry[WorkerDone]):
    """Be the reader of a dataset.

    Attributes:
        name: of the dataset.
        offered: its table in ``participant.toml``, as JSON, with what is secret.
    """

    code, answer, most, most_answered, seconds = 1, WorkerDone, SCHEMA, SMALL, 120.0
    name: str = text(1, LONGEST_NAME)
    offered: bytes = octets(2, 1024 * 1024)


class CheckStructure(Inquiry[WorkerDone]):
    """Check that it can be read under a schema (JSON), by its structure."""

    code, answer, most, most_answered, seconds = 2, WorkerDone, SCHEMA, SMALL, 600.0
    data: bytes = octets(1, SCHEMA - SMALL)


class AskShare(Inquiry[UnmatchedShare]):
    """Hold it against the site's own schema."""

    code, answer, most, most_answered, seconds = 3, UnmatchedShare, SMALL, SMALL, DAY


class LoadRows(Inquiry[SealedRows]):
    """Read all records under a schema (JSON)."""

    code, answer, most, most_answered, seconds = 4, SealedRows, SCHEMA, SMALL, DAY
    data: bytes = octets(1, SCHEMA - SMALL)


class BeginRows(Inquiry[WorkerDone]):
    """Begin to read in batches.

    Attributes:
        data: the schema, JSON.
        subject: the column that tells whose a record is; empty if that does not count.
        rows, persons: as :func:`veilsum_participant.data.stream.stream_records` takes them.
    """

    code, answer, most, most_answered, seconds = 5, WorkerDone, SCHEMA, SMALL, DAY
    data: bytes = octets(1, SCHEMA - SMALL)
    subject: str = text(2, 4096)
    rows: int = number(3, MOST_ROWS)
    persons: int = number(4, MOST_ROWS)


class NextRows(Inquiry[SealedRows]):
    """Read the next batch."""

    code, answer, most, most_answered, seconds = 6, SealedRows, SMALL, SMALL, DAY


REQUESTS: tuple[type[Inquiry[Message]], ...] = (OpenDataset, CheckStructure, AskShare, LoadRows, BeginRows, NextRows)
"""Every request that a reader answers."""
