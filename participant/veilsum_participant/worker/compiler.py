"""Traces a study's tasks (:mod:`veilsum_participant.boundary.compiler`): all of their code runs here, beside no record, key or
ledger."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput, Misuse, VeilsumError
from veilsum_participant.boundary.compiler import (
    ADVICE,
    BEGIN,
    LOOK,
    WORDS,
    AnswerTraining,
    AskDerived,
    AskFollowed,
    AskGraph,
    AskWords,
    BeginTraining,
    CompilerDone,
    CompilerFault,
    Fact,
    FollowedSaid,
    GraphSaid,
    KeptVectorGiven,
    StudySaid,
    TakeBroadcast,
    TakeStudy,
    TaskSaid,
    TrainingSaid,
    TrainOnNone,
    TryTask,
    VectorSaid,
    WordsSaid,
)
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_privacy.computation.contribution import Evaluations, no_records
from veilsum_privacy.computation.declared import Given
from veilsum_privacy.computation.said_terms import products_to_json, terms_to_json
from veilsum_privacy.computation.tried import Tried
from veilsum_privacy.dossier.asked import asked_facts
from veilsum_privacy.mechanism.requests import MapAt, Request, Trained, Training
from veilsum_privacy.mechanism.steps import StepNoise
from veilsum_privacy.securesum.context import decode_broadcast, encode_broadcast
from veilsum_privacy.study.study import parse_study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.followed import FollowedModel, followed_model
from veilsum_privacy.training import weights

LOG = logging.getLogger("veilsum.participant")


class Compiler:
    """Answers for one study."""

    def __init__(self) -> None:
        self._study: AgreedStudy | None = None
        self._tried = Tried()
        self._broadcast: Mapping[str, Floats] = {}
        self._shown = b""  # broadcast, last
        self._evaluations: dict[str, Evaluations] = {}  # of tasks with the arrays that are meant
        self._training: Training | None = None
        self._model: FollowedModel | None = None

    def answer(self, request: Inquiry[Message]) -> Message:
        """Answer a request.

        Raises:
            VeilsumError: it cannot be answered; see :func:`told`.
        """
        with weights.made_up():  # neither records nor a site's files come here
            return self._answer(request)

    def _answer(self, request: Inquiry[Message]) -> Message:
        match request:
            case TakeStudy(study):
                return self._take(study)
            case TakeBroadcast(broadcast, label):
                data = self._shown if broadcast is None else broadcast
                self._broadcast, self._evaluations = decode_broadcast(data, self._task(label).single), {}
                return CompilerDone()
            case TryTask(label, made_up):
                task = self._task(label)
                self._tried.rehearse(task, None if made_up else self._broadcast, self._evaluations_of(task))
                return CompilerDone()
            case AskGraph():
                return self._graph(request)
            case AskDerived(label, kept):
                return VectorSaid(_octets(self._task(label).derived(self._broadcast, _vectors(kept))))
            case BeginTraining() | AnswerTraining():
                return self._train(request)
            case TrainOnNone(label, state):
                task = self._task(label)
                none = no_records(task.study)
                return _ended(task.train_plainly(none, self._broadcast, decode_broadcast(state), lambda _: None))
            case AskFollowed():
                return self._follow(request)
            case AskWords(study):
                return WordsSaid(tuple(Fact(name, words) for name, words in asked_facts(parse_study(study)).items()))
        raise Misuse("A compiler is asked for what there is not.")

    def _take(self, data: bytes) -> StudySaid:
        self._study = study = AgreedStudy.parse(data)
        self._broadcast, self._shown, self._evaluations, self._training, self._model = {}, b"", {}, None, None
        said = []
        for declaration in study.study.tasks:
            try:
                terms = study.task(declaration.label).terms
                said.append(TaskSaid(json.dumps(terms_to_json(terms)).encode()))
            except HostileInput as error:
                said.append(TaskSaid(b"", _cut(error.message, WORDS), _cut(error.advice, ADVICE)))
        return StudySaid(tuple(said))

    def _task(self, label: str) -> AgreedTask:
        if self._study is None:
            raise Misuse("The compiler has no study yet.")
        return self._study.task(label)

    def _graph(self, request: AskGraph) -> GraphSaid:
        task = self._task(request.label)
        given = Given(request.index, _vectors(request.kept), _program if request.encoded else None)
        if request.mapped:
            return GraphSaid(task.mapped_graph(self._broadcast, given).to_bytes(self._broadcast))
        return GraphSaid(self._evaluations_of(task).graph(task, self._broadcast, given).to_bytes(self._broadcast))

    def _evaluations_of(self, task: AgreedTask) -> Evaluations:
        """What keeps the digests of arrays, for a task with those that are meant."""
        return self._evaluations.setdefault(task.label, Evaluations(self._tried.graphs, task))

    def _follow(self, request: AskFollowed) -> FollowedSaid:
        if self._study is None:
            raise Misuse("The compiler has no study yet.")
        model, self._model = self._model, None  # until the move is done
        if request.state is not None:
            model = followed_model(self._study, request.state)
        if model is None:
            raise Misuse("The study declares no steps, or no model of it was taken.")
        state = shown = b""
        if request.move == LOOK:
            shown = b"".join(model.broadcast(request.label)) if request.label else b""
        elif request.move == BEGIN:
            model.begin_with(bytes(request.data))
        else:
            model.take(request.label, np.frombuffer(request.data, np.int64), request.cohort)
        if request.move != LOOK:
            state = b"".join(model.to_pieces())
        self._model, self._shown = model, shown or self._shown
        return FollowedSaid(state, model.label, model.taken, shown)

    def _train(self, request: BeginTraining | AnswerTraining) -> TrainingSaid:
        training = self._training
        try:
            if isinstance(request, BeginTraining):
                course = StepNoise(request.steps, request.rate, request.clip, request.grid, request.share_std)
                task = self._task(request.label)
                self._training = training = task.train(self._broadcast, decode_broadcast(request.state), course)
                return _asked(next(training))
            if training is None:
                raise Misuse("Nothing is trained.")
            return _asked(training.send(np.frombuffer(request.total, np.float64).copy()))
        except StopIteration as end:
            self._training = None
            return _ended(end.value)


def told(error: Exception) -> CompilerFault:
    """What is said of an exception across the boundary."""
    if isinstance(error, HostileInput | Misuse):
        return CompilerFault(int(isinstance(error, HostileInput)), _cut(error.message, WORDS), _cut(error.advice, ADVICE))
    LOG.error("the compiler failed", exc_info=error)
    words = error.message if isinstance(error, VeilsumError) else f"The tasks cannot be traced: {type(error).__name__}."
    return CompilerFault(0, _cut(words, WORDS))


def _asked(request: Request) -> TrainingSaid:
    at = {name: own.at.astype(np.float64).tobytes() for name, own in request.maps.items() if isinstance(own, MapAt)}
    if len({*at.values()}) > 1:
        raise Misuse("A sum asks for maps at several values.")
    products = json.dumps(products_to_json(request.products)).encode()
    return TrainingSaid(request.graph.to_bytes(), products, tuple(at), next(iter(at.values()), b""))


def _ended(trained: Trained) -> TrainingSaid:
    return TrainingSaid(over=1, vector=_octets(trained.vector), state=encode_broadcast(trained.state))


def _vectors(kept: Sequence[KeptVectorGiven]) -> dict[str, Integers]:
    return {item.label: np.frombuffer(item.vector, np.int64) for item in kept}


def _octets(vector: Floats) -> bytes:
    return np.ascontiguousarray(vector, dtype=np.float64).tobytes()


def _program(_: Any) -> Any:
    """Stands for a program, which is a part of a graph here and runs elsewhere."""
    raise Misuse("A program does not run where graphs are traced.")


def _cut(words: str, most: int) -> str:
    return words.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
