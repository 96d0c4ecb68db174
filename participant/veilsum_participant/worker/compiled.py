"""Studies and tasks that another process traces, and the process that does.

A compiler is of one study, and is ended after :data:`.keeping.IDLE` seconds without work. It meets no record, so that it
fails follows from what is public or noised. Whoever takes it over can have another question asked of a study's columns than
the study says, at the price that the study declares: what it says of a task is held to the declaration
(:func:`veilsum_privacy.computation.terms.check_terms`), its graphs are made anew of the kernel's primitives and name columns
of the study's schema alone, and rows are clipped and noised as any. One that ends, or breaks a bound, is started once more; a
study whose tasks cannot be traced twice is refused.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput, Misuse, told_as
from veilsum_node.telemetry.logs import printable
from veilsum_participant.boundary.calls import BrokenError, CallFailedError
from veilsum_participant.boundary.compiler import (
    BEGIN,
    LOOK,
    STEP,
    AnswerTraining,
    AskDerived,
    AskFollowed,
    AskGraph,
    AskWords,
    BeginTraining,
    CompilerFault,
    FollowedSaid,
    KeptVectorGiven,
    TakeBroadcast,
    TakeStudy,
    TaskSaid,
    TrainingSaid,
    TrainOnNone,
    TryTask,
)
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.worker.keeping import Kept
from veilsum_participant.worker.starting import WorkerStarter
from veilsum_privacy.computation.declared import ENCODER, DeclaredStudy, DeclaredTask, Given, Note
from veilsum_privacy.computation.terms import TaskTerms, check_graph, opaque_names, products_from_json
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.requests import MapAt, Request, Trained, Training
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.mechanism.steps import StepNoise
from veilsum_privacy.securesum.context import Broadcast, Pieces, decode_broadcast, encode_broadcast
from veilsum_privacy.study.study import TaskDeclaration

LOG = logging.getLogger("veilsum.participant")

_R = TypeVar("_R", bound=Message)
_NONE: Mapping[str, Floats] = {}


class Compiling(Kept):
    """The compiler of one study; started when it is needed.

    Args:
        starter: of processes.
        study: its bytes.
    """

    def __init__(self, starter: WorkerStarter, study: bytes) -> None:
        super().__init__(starter, "compiler", CompilerFault)
        self._study = study
        self._said: tuple[TaskSaid, ...] | None = None
        self._meant: Mapping[str, Floats] | None = None
        self._state: bytes | None = None  # of the model that the compiler goes on with
        self._last = b""  # broadcast that it showed
        self._shown: dict[str, FollowedSaid] = {}

    def said(self, index: int) -> TaskSaid:
        """What was said of a task by its place in the study.

        Raises:
            HostileInput: the study's tasks cannot be traced.
            Unavailable: no compiler can be started.
        """
        with self.lock:
            if self._said is None:
                self._twice(lambda: None)
            if self._said is None or index >= len(self._said):
                raise HostileInput("The study's tasks cannot be traced.")
            return self._said[index]

    def ask(
        self, request: Inquiry[_R], broadcast: Mapping[str, Floats] | None = None, task: "CompiledTask | None" = None
    ) -> _R:
        """Ask about the study, and about these arrays, which the task is broadcast.

        Raises:
            HostileInput, Misuse: it refuses, by what it is given; or it cannot do it.
            Unavailable: no compiler can be started.
        """
        with self.lock:
            return self._twice(lambda: self._asked(request, broadcast, task))

    def once(self, request: Inquiry[_R]) -> _R:
        """:meth:`ask` of a compiler that went on from what it was asked before: one that ends does not begin anew."""
        with self.lock:
            try:
                return self._told(request)
            except BrokenError as error:
                self.end()
                raise Misuse("What traces the study's tasks ended.") from error

    def follow(self, state: bytes, move: AskFollowed) -> FollowedSaid:
        """The model of this state, and what a move makes of it; raises what :meth:`ask` does. It crosses unless the compiler
        came to it by itself."""
        with self.lock:
            return self._twice(lambda: self._moved(state, move))

    def asked(self, study: bytes) -> Mapping[str, str]:
        """What a study asks, each fact by its name."""
        return {fact.name: printable(fact.told) for fact in self.ask(AskWords(study)).facts}

    def _twice(self, work: Callable[[], _R | None]) -> _R:
        for last in (False, True):
            try:
                self._begin()
                return work()  # type: ignore[return-value]
            except BrokenError as error:
                self.end()
                if last:
                    raise HostileInput(
                        "The study's tasks cannot be traced: the process that does it ends each time."
                    ) from error
                LOG.warning("what traces a study's tasks ended and is started once more: %s", error)
        raise AssertionError

    def _begin(self) -> None:
        if self.begin() is None:
            return
        self._meant, self._state, self._last = None, None, b""
        tasks = self._told(TakeStudy(self._study)).tasks
        if self._said is not None and tasks != self._said:
            raise BrokenError("A study's tasks are not what they were said to be.")
        self._said = tasks

    def _moved(self, state: bytes, move: AskFollowed) -> FollowedSaid:
        if self._state != state:
            self._shown, move = {}, replace(move, state=state)
        if move.move == LOOK and move.label in self._shown:
            return self._shown[move.label]
        self._state = None  # if it fails, nobody knows how far it came
        said = self._told(move)
        self._state, self._last = state if move.move == LOOK else said.state, said.broadcast or self._last
        self._shown = {**self._shown, move.label: said} if move.move == LOOK else {}
        return said

    def _asked(self, request: Inquiry[_R], broadcast: Mapping[str, Floats] | None, task: "CompiledTask | None") -> _R:
        if broadcast is not None and task is not None and not _same(broadcast, self._meant):
            data = broadcast.encoded if isinstance(broadcast, Broadcast) else encode_broadcast(broadcast, task.single)
            self._told(TakeBroadcast(None if data == self._last else data, task.label))
            self._meant = broadcast
        return self._told(request)

    def _told(self, request: Inquiry[_R]) -> _R:
        try:
            return self.call(request)
        except CallFailedError as error:
            if not isinstance(error.failure, CompilerFault):
                raise Misuse("What traces the study's tasks failed.") from error
            words, advice = printable(error.failure.words), printable(error.failure.advice)
            raise (HostileInput if error.failure.refused else Misuse)(words, advice) from error


@dataclass(frozen=True)
class CompiledStudy(DeclaredStudy):
    """A study whose tasks another process traces.

    Attributes:
        compiler: gives that process.
    """

    compiler: Callable[[], Compiling] = field(repr=False, compare=False)

    def _made(self, declaration: TaskDeclaration) -> "CompiledTask":
        said = self.compiler().said(self.study.tasks.index(declaration))
        if not said.terms:
            raise HostileInput(printable(said.words) or "A task cannot be traced.", printable(said.advice))
        try:
            value = json.loads(said.terms)
        except (ValueError, RecursionError) as error:
            raise HostileInput("A task's terms are not what they have to be.") from error
        return CompiledTask(self, declaration, TaskTerms.from_json(value))


class CompiledModel:
    """A model that another process goes on with, of which what is kept lies here: one that ends is started once more.

    Args:
        compiler: gives that process.
        kept: the model; empty before the first release.
    """

    def __init__(self, compiler: Callable[[], Compiling], kept: bytes) -> None:
        self._compiler, self._state = compiler, kept
        found = compiler().follow(kept, AskFollowed(LOOK))
        self.label, self.taken = found.label, found.taken

    def broadcast(self, label: str) -> Pieces:
        """See :class:`veilsum_privacy.computation.following.Following`."""
        return (self._compiler().follow(self._state, AskFollowed(LOOK, label=label)).broadcast,)

    def begin_with(self, broadcast: bytes) -> None:
        """See :class:`veilsum_privacy.computation.following.Following`."""
        self._move(AskFollowed(BEGIN, data=broadcast))

    def take(self, label: str, values: Integers, cohort: int) -> None:
        """See :class:`veilsum_privacy.computation.following.Following`."""
        self._move(AskFollowed(STEP, label, np.ascontiguousarray(values, dtype=np.int64).data, cohort))

    def to_pieces(self) -> Pieces:
        """See :class:`veilsum_privacy.computation.following.Following`."""
        return (self._state,)

    def _move(self, move: AskFollowed) -> None:
        found = self._compiler().follow(self._state, move)
        self._state, self.taken = found.state, found.taken


@dataclass(frozen=True)
class CompiledTask(DeclaredTask):
    """A task that another process traces."""

    agreed: CompiledStudy = field(repr=False)

    def rehearse(self, arrays: Mapping[str, Floats] | None) -> None:
        """As :meth:`veilsum_participant.studies.Studies.rehearse`."""
        with told_as(HostileInput, Misuse, what=f"Task {self.label!r}"):
            self._compiler.ask(TryTask(self.label, int(arrays is None)), arrays, self)

    def row_graph(self, broadcast: Mapping[str, Floats], given: Given) -> RowGraph:
        products = self.terms.products
        size = self.terms.size if products is None else products.given
        return self._graph(broadcast, given, size, mapped=False)

    def row_maps(self, broadcast: Mapping[str, Floats], graph: RowGraph) -> Mapping[str, OpaqueMap]:
        return {name: _elsewhere for name in opaque_names(graph) if name != ENCODER}

    def mapped_graph(self, broadcast: Mapping[str, Floats], given: Given) -> RowGraph:
        return self._graph(broadcast, given, None, mapped=True)

    def derived(self, broadcast: Mapping[str, Floats], kept: Mapping[str, Integers]) -> Floats:
        return _vector(self._compiler.ask(AskDerived(self.label, self._kept(kept)), broadcast, self).vector)

    def train(self, broadcast: Mapping[str, Floats], state: Mapping[str, Floats], course: StepNoise) -> Training:
        compiler = self._compiler
        with compiler.lock:  # nobody asks anything else of it in between
            begun = BeginTraining(
                self.label, encode_broadcast(state), course.number, course.rate, course.clip, course.grid, course.share_std
            )
            said = compiler.ask(begun, broadcast, self)
            while not said.over:
                total = yield self._request(said)
                said = compiler.once(AnswerTraining(np.ascontiguousarray(total, dtype=np.float64).data))
        return _trained(said)

    def train_plainly(
        self, records: Records, broadcast: Mapping[str, Floats], state: Mapping[str, Floats], note: Note
    ) -> Trained:
        if len(records):
            raise Misuse("No record is trained on where tasks are traced.")
        return _trained(self._compiler.ask(TrainOnNone(self.label, encode_broadcast(state)), broadcast, self))

    @property
    def _compiler(self) -> Compiling:
        return self.agreed.compiler()

    def _kept(self, kept: Mapping[str, Integers]) -> tuple[KeptVectorGiven, ...]:
        source = self.declaration.source
        if source is None or source not in kept:
            return ()
        return (KeptVectorGiven(source, np.ascontiguousarray(kept[source], dtype=np.int64).data),)

    def _graph(self, broadcast: Mapping[str, Floats], given: Given, size: int | None, *, mapped: bool) -> RowGraph:
        asked = AskGraph(self.label, int(mapped), given.index, int(given.encode is not None), self._kept(given.kept))
        graph = self._checked(self._compiler.ask(asked, broadcast, self).graph, size, self.width(given), broadcast)
        if given.encode is None and ENCODER in opaque_names(graph):
            raise HostileInput("A graph takes a program that the study does not name.")
        return graph

    def _checked(self, data: bytes, size: int | None, width: int, known: Mapping[str, Floats] = _NONE) -> RowGraph:
        graph = RowGraph.from_bytes(data, known)
        if size is None and (graph.root.spec.size % 2 != 1 or graph.root.spec.size < 3):
            raise HostileInput("A graph gives no features and what of them is present.")
        size = graph.root.spec.size if size is None else size
        check_graph(graph, size=size, width=width, labelled=self.study.data.label is not None)
        return graph

    def _request(self, said: TrainingSaid) -> Request:
        try:
            products = products_from_json(json.loads(said.products))
        except (ValueError, RecursionError) as error:
            raise HostileInput("Products of factors are not what they have to be.") from error
        graph = self._checked(said.graph, products.given, self._trained_width())
        at = _vector(said.at)
        maps = {name: MapAt(_elsewhere, at) if name in said.named else _elsewhere for name in opaque_names(graph)}
        return Request(graph, products, maps)

    def _trained_width(self) -> int:
        """Features of the records that training is given, which an encoder or an alignment may have made."""
        return self.study.width if self.terms.mapped else self.study.data.width


def _elsewhere(_: Floats) -> Floats:
    """Stands for a map that is computed where its network is (:mod:`veilsum_participant.worker.elsewhere`)."""
    raise Misuse("A network does not run in the process that holds keys.")


def _vector(data: bytes | memoryview) -> Floats:
    if len(data) % 8:
        raise HostileInput("The bytes given hold no vector.")
    return np.frombuffer(data, np.float64).copy()


def _trained(said: TrainingSaid) -> Trained:
    return Trained(_vector(said.vector), decode_broadcast(said.state))


def _same(broadcast: Mapping[str, Floats], meant: Mapping[str, Floats] | None) -> bool:
    return meant is not None and meant.keys() == broadcast.keys() and all(meant[name] is broadcast[name] for name in meant)
