"""Networks and programs computed in a process apart: the guard's side.

A process is of one dataset and of one study, or one program, and is ended after :data:`.keeping.IDLE` seconds without work,
or when :data:`.keeping.MOST` others were needed since. It holds torch, the features of the batch that it is given, and what a
program remembers of features; never identifiers, columns of another dataset, keys or sums.

A map that raises, and a process that ends or hangs in a batch, are alike: the batch failed, and the kernel has each of its
records computed alone, in a process that is started anew where that is needed
(:mod:`veilsum_privacy.mechanism.rows.evaluation`). So a record that ends the process is that record's absence, and no other's.
What is left of the round's time, which is public, ends all of it, as do zeros on which a new process fails: the site
contributes what one without records does.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, VeilsumError
from veilsum_participant.boundary.calls import BrokenError, CallFailedError
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.boundary.framing import SealedMemory
from veilsum_participant.boundary.maps import FIRST, Apply, EncodeBy, Made, Point, Prepare, Train
from veilsum_participant.boundary.reader import WorkerFault
from veilsum_participant.worker.keeping import Kept, Pool
from veilsum_participant.worker.rows import sealed_rows
from veilsum_participant.worker.starting import WorkerStarter
from veilsum_privacy.computation.declared import ENCODER, DeclaredTask, Encode, Note
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.requests import MapAt, Trained
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.securesum.context import decode_broadcast, encode_broadcast

LATER = 60.0
"""Seconds that a batch of at most 64 records may take, but for the first one of a process (:data:`.maps.FIRST`)."""

_R = TypeVar("_R", bound=Message)


class MapFailedError(VeilsumError):
    """A map could not be computed elsewhere."""


class Compute(Kept):
    """A process that computes maps of one dataset's records for one study, or by one program; started when it is needed."""

    def __init__(self, starter: WorkerStarter, dataset: str) -> None:
        super().__init__(starter, "maps", WorkerFault, dataset)
        self._ready: dict[type[Inquiry[Any]], Inquiry[Any]] = {}
        self._warm = False

    def ready(self, *requests: Inquiry[Any], seconds: float = FIRST) -> None:
        """Have the process prepared by these requests, which follow one another.

        Raises:
            MapFailedError: it cannot be.
        """
        with self.lock:
            anew = False
            for request in requests:
                if anew or self._ready.get(type(request)) is not request or self.broken:
                    anew = True
                    self._ask(request, seconds)
                    self._ready[type(request)] = request

    def apply(self, prepared: Sequence[Inquiry[Any]], name: str, given: Floats, until: float | None = None) -> Floats:
        """A map of values (n, m) to (n, size). Of zeros, which are no record, it is tried in a new process, too.

        Raises:
            MapFailedError: it raised, or the process is gone, late, or gave something else.
        """
        with self.lock:
            try:
                return self._apply(prepared, name, given, until)
            except MapFailedError:
                if given.any():
                    raise
                self.end()
                return self._apply(prepared, name, given, until)

    def _apply(self, prepared: Sequence[Inquiry[Any]], name: str, given: Floats, until: float | None) -> Floats:
        left = FIRST if until is None else until - time.monotonic()
        self.ready(*prepared, seconds=min(FIRST, left))
        memory = SealedMemory.of(np.ascontiguousarray(given, dtype=np.float64).data) if given.size else None
        found = self._ask(Apply(name, len(given), memory), min(LATER if self._warm else FIRST, left))
        self._warm = True
        if found.size > 2**32 or (0 if found.memory is None else found.memory.size) != 8 * len(given) * found.size:
            self.end()
            raise MapFailedError("A map has another size than it says.")
        return _array(found, len(given))

    def train(self, prepared: Sequence[Inquiry[Any]], records: Records, until: float) -> tuple[Floats, bytes, bool]:
        """A vector and a state that were trained without noise, and whether a record was left out.

        Raises:
            MapFailedError: as of :meth:`apply`.
        """
        with self.lock:
            self.ready(*prepared, seconds=min(FIRST, until - time.monotonic()))
            rows = sealed_rows(records)
            request = Train(rows.rows, records.features.shape[1], int(records.labels is not None), rows.memory)
            found = self._ask(request, until - time.monotonic())
            if len(found.vector) % 8:
                raise MapFailedError("What was trained is not a vector.")
            return np.frombuffer(found.vector, np.float64).copy(), found.state, bool(found.failed)

    def _ask(self, request: Inquiry[_R], seconds: float) -> _R:
        try:
            if self.begin() is not None:
                self._ready, self._warm = {}, False
            return self.call(request, max(0.0, seconds))
        except CallFailedError as error:
            raise MapFailedError("A map cannot be computed on a batch, or a process not be prepared.") from error
        except (BrokenError, VeilsumError) as error:
            self.end()
            raise MapFailedError("A process that computes maps ended, or took too long.") from error


class Computing:
    """The processes of a site that compute maps.

    Attributes:
        close: ends all of them.
        weights: paths of files of frozen weights, by their hash.
    """

    def __init__(self, starter: WorkerStarter) -> None:
        self._kept: Pool[tuple[str, str], Compute] = Pool(lambda key: Compute(starter, key[0]), wait=True)
        self.close = self._kept.close
        self.weights: dict[str, str] = {"": ""}

    def of(self, dataset: str, purpose: str) -> Compute:
        """The process of a dataset for a purpose."""
        return self._kept.of((dataset, purpose))

    def forget(self, digest: bytes) -> None:
        """End what computed for a study that is over."""
        self._kept.drop(lambda key: key[1] == digest.hex())


class ProgramElsewhere:
    """A program that encodes, in a process of its own."""

    def __init__(self, computing: Computing, dataset: str, sha256: str, request: EncodeBy) -> None:
        self._computing, self._dataset, self._purpose, self._request = computing, dataset, f"encoder {sha256}", request

    def ready(self) -> None:
        """Have it loaded.

        Raises:
            MapFailedError: it cannot be.
        """
        self._computing.of(self._dataset, self._purpose).ready(self._request)

    def __call__(self, given: Floats, until: float | None = None) -> Floats:
        """Features (n, width) of columns (n, inputs).

        Raises:
            MapFailedError: the process is gone or late.
        """
        return self._computing.of(self._dataset, self._purpose).apply([self._request], ENCODER, given, until)


class RoundMaps:
    """Maps of one round; implements :class:`veilsum_privacy.computation.contribution.Elsewhere`."""

    def __init__(self, computing: Computing, dataset: str, device: str, seconds: float) -> None:
        self._computing, self._dataset, self._device = computing, dataset, device
        self._until = time.monotonic() + seconds
        self._asked = False
        self._last: tuple[DeclaredTask, Mapping[str, Floats], Mapping[str, Floats], Prepare] | None = None

    @property
    def spent(self) -> bool:
        """Whether the round's time was over while maps were still asked for."""
        return self._asked and time.monotonic() >= self._until

    def encode(self, encode: Encode | None) -> Encode | None:
        """A program, within the round's time."""
        if not isinstance(encode, ProgramElsewhere):
            return encode
        self._asked = True
        return lambda given: encode(given, self._until)

    def maps(
        self, agreed: DeclaredTask, broadcast: Mapping[str, Floats], state: Mapping[str, Floats], maps: Mapping[str, OpaqueMap]
    ) -> Mapping[str, OpaqueMap]:
        """See :class:`.Elsewhere`."""
        if not maps:
            return maps
        compute, prepare = self._prepared(agreed, broadcast, state)

        def elsewhere(name: str, here: OpaqueMap) -> OpaqueMap:
            asked: list[Inquiry[Any]] = [prepare]
            if isinstance(here, MapAt):
                asked.append(Point(here.at.astype(np.float64).tobytes()))
            return lambda given: compute.apply(asked, name, given, self._until)

        return {name: elsewhere(name, here) for name, here in maps.items()}

    def train(
        self, agreed: DeclaredTask, records: Records, broadcast: Mapping[str, Floats], state: Mapping[str, Floats], note: Note
    ) -> Trained:
        """See :class:`.Elsewhere`."""
        compute, prepare = self._prepared(agreed, broadcast, state)
        vector, kept, failed = compute.train([prepare], records, self._until)
        if failed:
            note(MapFailedError("Training failed on a record, which was left out."))
        try:
            return Trained(vector, decode_broadcast(kept))
        except HostileInput as error:
            raise MapFailedError("What was trained holds something that is not finite, or out of range.") from error

    def _prepared(
        self, agreed: DeclaredTask, broadcast: Mapping[str, Floats], state: Mapping[str, Floats]
    ) -> tuple[Compute, Prepare]:
        self._asked = True
        last = self._last
        if last is None or last[0] is not agreed or last[1] is not broadcast or last[2] is not state:
            given = encode_broadcast(broadcast), encode_broadcast(state)
            weights = self._computing.weights[agreed.terms.weights]
            prepare = Prepare(self._device, agreed.agreed.study.to_bytes(), agreed.label, *given, weights)
            self._last = last = agreed, broadcast, state, prepare
        return self._computing.of(self._dataset, agreed.agreed.digest.hex()), last[3]


def _array(found: Made, rows: int) -> Floats:
    if found.memory is None:
        return np.zeros((rows, found.size))
    array: Floats = np.frombuffer(found.memory.view(), np.float64).reshape(rows, found.size)
    if isinstance(found.memory, SealedMemory):
        found.memory.close()
    return array
