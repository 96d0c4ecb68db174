"""What a guard asks of the process that computes opaque maps on features: networks and programs that encode.

It is given features and classes, never whose they are. What it gives is a row or factors of a record, which the guard clips,
adds and noises as it does its own.

=================  =======================  =====================================================================
request            answer                   what crosses
=================  =======================  =====================================================================
:class:`Prepare`   :class:`WorkerDone`      out: a study, which of its tasks, what was broadcast, the kept state, the site's
                                            file of frozen weights
:class:`Point`     :class:`WorkerDone`      out: at which values training wants its maps
:class:`EncodeBy`  :class:`WorkerDone`      out: which program, and from which of the site's own files
:class:`Apply`     :class:`Made`            out: values of some records, in sealed memory; in: what a map makes of them
:class:`Train`     :class:`Learned`         of a study without noise alone. out: features and classes of all records; in:
                                            what was trained on them
=================  =======================  =====================================================================

Besides its own, each answer may be :class:`.WorkerFault`, which has no words.
"""

from veilsum_participant.boundary.encoding import Inquiry, Message, Sealed, memory, number, octets, text
from veilsum_participant.boundary.reader import DAY, MOST_MEMORY, MOST_ROWS, SMALL, WorkerDone
from veilsum_proto import MAX_OBJECT_BYTES

MOST = 2 * MAX_OBJECT_BYTES
FIRST = 900.0
"""Seconds that a process may take to load torch and a network, and to try it."""


class Made(Message):
    """What a map made of the records: (rows, size) float64."""

    size: int = number(1, 2**32)
    memory: Sealed | None = memory(MOST_MEMORY)


class Learned(Message):
    """What was trained: the vector, float64, and the state; ``failed`` is 1 if a record was left out on which it raised."""

    vector: bytes = octets(1, MAX_OBJECT_BYTES)
    state: bytes = octets(2, MAX_OBJECT_BYTES)
    failed: int = number(3, 1)


class Prepare(Inquiry[WorkerDone]):
    """Be ready for the maps of a task, in place of one before.

    Attributes:
        device: where networks are computed.
        study: its bytes.
        label: of the task.
        broadcast, state: arrays, as they are encoded for a broadcast; with none the task is not ready, but its weights are.
        weights: path of the file of its model's frozen weights, which is held to the model's shapes; empty for none.
    """

    code, answer, most, most_answered, seconds = 1, WorkerDone, MOST, SMALL, FIRST
    device: str = text(1, 64)
    study: bytes = octets(2, 2 * 1024 * 1024)
    label: str = text(3, 256)
    broadcast: bytes = octets(4, MAX_OBJECT_BYTES)
    state: bytes = octets(5, MAX_OBJECT_BYTES)
    weights: str = text(6, 4096)


class Point(Inquiry[WorkerDone]):
    """Take the maps of training at these values, float64."""

    code, answer, most, most_answered, seconds = 2, WorkerDone, MOST, SMALL, FIRST
    at: bytes = octets(1, MAX_OBJECT_BYTES)


class EncodeBy(Inquiry[WorkerDone]):
    """Be ready to encode by a program (JSON of the study), from a file."""

    code, answer, most, most_answered, seconds = 3, WorkerDone, 64 * SMALL, SMALL, FIRST
    device: str = text(1, 64)
    path: str = text(2, 4096)
    declared: bytes = octets(3, 32 * SMALL)


class Apply(Inquiry[Made]):
    """Compute a map of records' values (rows, m) float64, by its name; of what was prepared last, or of the program."""

    code, answer, most, most_answered, seconds = 4, Made, SMALL, SMALL, FIRST
    name: str = text(1, 64)
    rows: int = number(2, 2**20)
    memory: Sealed | None = memory(MOST_MEMORY)


class Train(Inquiry[Learned]):
    """Train without noise on all records, whose memory is that of :class:`veilsum_participant.boundary.reader.SealedRows`."""

    code, answer, most, most_answered, seconds = 5, Learned, SMALL, MOST, DAY
    rows: int = number(1, MOST_ROWS)
    width: int = number(2, 2**32)
    labelled: int = number(3, 1)
    memory: Sealed | None = memory(MOST_MEMORY)


REQUESTS: tuple[type[Inquiry[Message]], ...] = (Prepare, Point, EncodeBy, Apply, Train)
"""Every request that a process of maps answers."""
