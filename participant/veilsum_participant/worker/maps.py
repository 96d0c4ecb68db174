"""Computes opaque maps on features: networks, and programs that encode (:mod:`veilsum_participant.boundary.maps`)."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.boundary.framing import SealedMemory
from veilsum_participant.boundary.maps import Apply, EncodeBy, Learned, Made, Point, Prepare, Train
from veilsum_participant.boundary.reader import WorkerDone
from veilsum_participant.data.encoders import hold_weights, load_encoder
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.securesum.context import decode_broadcast, encode_broadcast
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import RowTask, Task, TrainingTask
from veilsum_privacy.tasks.feature_maps import ENCODER
from veilsum_privacy.training import device

LOG = logging.getLogger("veilsum.participant")


class MapComputer:
    """Answers for one study, or one program."""

    def __init__(self) -> None:
        self._task: Task[Any] | None = None
        self._broadcast: Mapping[str, Floats] = {}
        self._state: Mapping[str, Floats] = {}
        self._at: Callable[[Floats], Mapping[str, OpaqueMap]] | None = None
        self._maps: Mapping[str, OpaqueMap] = {}

    def answer(self, request: Inquiry[Message]) -> Message:
        """Answer a request.

        Raises:
            Exception: whatever a network or a program raises.
        """
        match request:
            case Prepare():
                self._prepare(request)
                return WorkerDone()
            case Point(at):
                if not isinstance(self._task, TrainingTask):
                    raise Misuse("Nothing that trains was prepared.")
                if self._at is None:
                    self._at = self._task.maps_at(self._broadcast, self._state)
                self._maps = self._at(np.frombuffer(at, np.float64))
                return WorkerDone()
            case EncodeBy(where, path, declared):
                device.choose(where)
                self._maps = {ENCODER: load_encoder(Path(path), Program.model_validate_json(declared))}
                return WorkerDone()
            case Apply():
                return self._apply(request)
            case Train():
                return self._train(request)
        raise Misuse("A map is asked for that there is not.")

    def _prepare(self, request: Prepare) -> None:
        device.choose(request.device)
        agreed = AgreedStudy.parse(request.study).task(request.label)
        if request.weights:
            hold_weights(Path(request.weights), agreed)
        self._task = agreed.task
        self._broadcast, self._state = decode_broadcast(request.broadcast), decode_broadcast(request.state)
        self._at, self._maps = None, {}
        if isinstance(self._task, RowTask) and self._broadcast:
            self._maps = self._task.maps(self._broadcast)

    def _apply(self, request: Apply) -> Made:
        given = np.frombuffer(b"" if request.memory is None else request.memory.view(), np.float64)
        with np.errstate(all="ignore"):  # as where graphs are evaluated
            found = self._maps[request.name](given.reshape(request.rows, -1).copy())
        if found.ndim != 2 or len(found) != request.rows:
            raise Misuse("A map gives an array of another shape.")
        memory = SealedMemory.of(np.ascontiguousarray(found, dtype=np.float64).data) if found.size else None
        return Made(found.shape[1], memory)

    def _train(self, request: Train) -> Learned:
        if not isinstance(self._task, TrainingTask):
            raise Misuse("Nothing that trains was prepared.")
        rows, cells = request.rows, request.rows * request.width
        view = memoryview(b"") if request.memory is None else request.memory.view()
        features = np.frombuffer(view, np.float64, cells).reshape(rows, request.width)
        present = np.frombuffer(view, np.uint8, cells, 8 * cells).view(np.bool_).reshape(rows, request.width)
        end = 9 * cells + -cells % 8
        labels: NDArray[np.int64] | None = np.frombuffer(view, np.int64, rows, end) if request.labelled else None
        faults: list[Exception] = []
        trained = self._task.train_plainly(Records(features, present, labels), self._broadcast, self._state, faults.append)
        for fault in faults:
            LOG.error("training failed on a record", exc_info=fault)
        vector = np.ascontiguousarray(trained.vector, dtype=np.float64).tobytes()
        return Learned(vector, encode_broadcast(trained.state), int(bool(faults)))
