"""What a guard asks of the process that traces a study's tasks: terms, graphs, and what training does with noised sums.

It is given what is public or noised, and no record: the study's text, what was broadcast, vectors that the site kept with
their noise in them, and noised sums. What it gives is held to the declaration and to the kernel's bounds by the guard.

=======================  ========================  ==========================================================================
request                  answer                    what crosses
=======================  ========================  ==========================================================================
:class:`TakeStudy`       :class:`StudySaid`        out: a study's text; in: the terms of each task, or what is wrong with it
:class:`TakeBroadcast`   :class:`CompilerDone`     out: arrays that later requests mean, unless it showed them itself
:class:`TryTask`         :class:`CompilerDone`     a task is tried on what nobody has
:class:`AskGraph`        :class:`GraphSaid`        out: the site's place, kept vectors; in: a graph of primitives
:class:`AskDerived`      :class:`VectorSaid`       out: a kept vector; in: what derives from it
:class:`BeginTraining`   :class:`TrainingSaid`     out: the kept state; in: the first sum that is asked for
:class:`AnswerTraining`  :class:`TrainingSaid`     out: a noised sum; in: the next one that is asked for, or what was trained
:class:`TrainOnNone`     :class:`TrainingSaid`     in: what a site without records trains
:class:`AskFollowed`     :class:`FollowedSaid`     out: a model that the site follows, a released sum; in: the model after it
:class:`AskWords`        :class:`WordsSaid`        out: a study's text; in: what it asks, in words for the operator
=======================  ========================  ==========================================================================

Besides its own, each answer may be :class:`CompilerFault`: a refusal in words, which follows from what was given.
"""

from veilsum_participant.boundary.encoding import Inquiry, Message, number, octets, optional_octets, real, several, text, texts
from veilsum_proto import MAX_OBJECT_BYTES

SMALL = 1024
MOST = 2 * MAX_OBJECT_BYTES
MOST_TASKS, MOST_TERMS = 256, 1024 * 1024
MOST_STUDY = 2 * 1024 * 1024
LABEL = 256
WORDS, ADVICE = 8000, 4000
"""Bytes of a refusal, and of what to do about it."""

TRYING = 900.0
"""Seconds that loading torch and trying a network may take."""

TRACING = 300.0
"""Seconds that a graph, or a step of training without records, may take."""


class CompilerFault(Message):
    """It cannot be done, and why: ``refused`` is 1 where the study or the broadcast is at fault."""

    refused: int = number(1, 1)
    words: str = text(2, WORDS)
    advice: str = text(3, ADVICE)


class CompilerDone(Message):
    """It was done."""


class TaskSaid(Message):
    """A task's terms, JSON of :class:`veilsum_privacy.computation.terms.TaskTerms`; or empty, and what is wrong with it."""

    terms: bytes = octets(1, MOST_TERMS)
    words: str = text(2, WORDS)
    advice: str = text(3, ADVICE)


class StudySaid(Message):
    """The tasks of a study, in its order."""

    tasks: tuple[TaskSaid, ...] = several(1, TaskSaid, MOST_TASKS)


class GraphSaid(Message):
    """A graph's bytes (:meth:`veilsum_privacy.mechanism.rows.graph.RowGraph.from_bytes`); of :class:`AskGraph` it may name the
    arrays that are meant."""

    graph: bytes = octets(1, MOST)


class VectorSaid(Message):
    """A vector, float64."""

    vector: bytes | memoryview = octets(1, MAX_OBJECT_BYTES, seen=True)


class TrainingSaid(Message):
    """What training asks for, or what it gave at its end.

    Attributes:
        graph, products: of the sum that it wants; the products as JSON.
        named, at: which of the graph's maps are to be made anew, at which values, float64.
        over: 1 at its end.
        vector, state: what it gave then.
    """

    graph: bytes = octets(1, MOST)
    products: bytes = octets(2, MOST_TERMS)
    named: tuple[str, ...] = texts(3, 64, 64)
    at: bytes = octets(4, MAX_OBJECT_BYTES)
    over: int = number(5, 1)
    vector: bytes = octets(6, MAX_OBJECT_BYTES)
    state: bytes = octets(7, MAX_OBJECT_BYTES)


class Fact(Message):
    """A fact by its name."""

    name: str = text(1, LABEL)
    told: str = text(2, MOST_STUDY)


class WordsSaid(Message):
    """What a study asks."""

    facts: tuple[Fact, ...] = several(1, Fact, 64)


class FollowedSaid(Message):
    """The model's task and steps taken; of LOOK, what is broadcast next; after BEGIN and STEP, what is kept of it."""

    state: bytes = octets(1, MOST)
    label: str = text(2, LABEL)
    taken: int = number(3, 2**40)
    broadcast: bytes = octets(4, MAX_OBJECT_BYTES)


class KeptVectorGiven(Message):
    """A noised vector that the site kept, int64, of a task."""

    label: str = text(1, LABEL)
    vector: bytes | memoryview = octets(2, MAX_OBJECT_BYTES, seen=True)


class TakeStudy(Inquiry[StudySaid]):
    """Be the compiler of a study, in place of one before."""

    code, answer, most, most_answered, seconds = 1, StudySaid, MOST_STUDY + SMALL, MOST, TRYING
    study: bytes = octets(1, MOST_STUDY)


class TakeBroadcast(Inquiry[CompilerDone]):
    """Mean these arrays from here on, as they are encoded for a broadcast of a task; None for those that it showed last."""

    code, answer, most, most_answered, seconds = 2, CompilerDone, MOST, SMALL, TRACING
    broadcast: bytes | None = optional_octets(1, MAX_OBJECT_BYTES)
    label: str = text(2, LABEL)


class TryTask(Inquiry[CompilerDone]):
    """Try a task without records, on the arrays that are meant; or, with ``made_up``, on made-up ones."""

    code, answer, most, most_answered, seconds = 3, CompilerDone, SMALL, SMALL, TRYING
    label: str = text(1, LABEL)
    made_up: int = number(2, 1)


class AskGraph(Inquiry[GraphSaid]):
    """Trace a task.

    Attributes:
        label: of the task.
        mapped: 1 for the graph of what training is given in place of a record.
        index: the site's place among the participants.
        encoded: 1 where the study's program is a part of the graph.
        kept: what the site kept.
    """

    code, answer, most, most_answered, seconds = 4, GraphSaid, MOST, MOST, TRACING
    label: str = text(1, LABEL)
    mapped: int = number(2, 1)
    index: int = number(3, 4096)
    encoded: int = number(4, 1)
    kept: tuple[KeptVectorGiven, ...] = several(5, KeptVectorGiven, MOST_TASKS)


class AskDerived(Inquiry[VectorSaid]):
    """Compute what derives from a kept vector."""

    code, answer, most, most_answered, seconds = 5, VectorSaid, MOST, MAX_OBJECT_BYTES + SMALL, TRACING
    label: str = text(1, LABEL)
    kept: tuple[KeptVectorGiven, ...] = several(2, KeptVectorGiven, MOST_TASKS)


class BeginTraining(Inquiry[TrainingSaid]):
    """Begin a round of training under noise.

    Attributes:
        label: of the task.
        state: that was kept of it.
        steps, rate, clip, grid, share_std: as of :class:`veilsum_privacy.mechanism.steps.StepNoise`.
    """

    code, answer, most, most_answered, seconds = 6, TrainingSaid, MOST, 2 * MOST, TRACING
    label: str = text(1, LABEL)
    state: bytes = octets(2, MAX_OBJECT_BYTES)
    steps: int = number(3, 2**40)
    rate: float = real(4)
    clip: float = real(5)
    grid: int = number(6, 2**40)
    share_std: float = real(7)


class AnswerTraining(Inquiry[TrainingSaid]):
    """Go on with a noised sum, float64."""

    code, answer, most, most_answered, seconds = 7, TrainingSaid, MOST, 2 * MOST, TRACING
    total: bytes | memoryview = octets(1, MAX_OBJECT_BYTES, seen=True)


class TrainOnNone(Inquiry[TrainingSaid]):
    """Train without noise as a site without records does."""

    code, answer, most, most_answered, seconds = 8, TrainingSaid, MOST, 2 * MOST, TRYING
    label: str = text(1, LABEL)
    state: bytes = octets(2, MAX_OBJECT_BYTES)


class AskFollowed(Inquiry[FollowedSaid]):
    """Go on with the model of a study that declares its steps: the one that came last, as far as it got since.

    Attributes:
        move: one of :data:`LOOK`, :data:`BEGIN` and :data:`STEP`.
        label: of the task that broadcasts next, or whose release it is; empty to look at no broadcast.
        data: of BEGIN, the first broadcast of the model; of STEP, the released sum, int64.
        cohort: of STEP, of how many members the sum is.
        state: the model to go on with, in safetensors, empty before the first release; None for the one that came last.
    """

    code, answer, most, most_answered, seconds = 10, FollowedSaid, 2 * MOST, 2 * MOST, TRACING
    move: int = number(1, 2)
    label: str = text(2, LABEL)
    data: bytes | memoryview = octets(3, MAX_OBJECT_BYTES, seen=True)
    cohort: int = number(4, 4096)
    state: bytes | None = optional_octets(5, MOST)


LOOK, BEGIN, STEP = 0, 1, 2


class AskWords(Inquiry[WordsSaid]):
    """Say what a study asks; another one than that which was taken, perhaps."""

    code, answer, most, most_answered, seconds = 9, WordsSaid, MOST_STUDY + SMALL, 64 * 128 * 1024, TRACING
    study: bytes = octets(1, MOST_STUDY)


REQUESTS: tuple[type[Inquiry[Message]], ...] = (
    TakeStudy, TakeBroadcast, TryTask, AskGraph, AskDerived, BeginTraining, AnswerTraining, TrainOnNone, AskWords, AskFollowed,
)  # fmt: skip
"""Every request that a compiler answers."""
