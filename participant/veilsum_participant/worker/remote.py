"""Datasets that another process reads: the guard's side, which imports no reader of data.

A reader is of one dataset and of one reading: it is started when a dataset is to be looked at, may wait :data:`IDLE` seconds
for the reading that follows, and is ended once records were read. They stay in sealed memory that the guard maps, so that
another round reads nothing anew and no process waits beside them.

That a reader fails, and how, may depend on records. So nothing follows from it once a release was reserved but that the site
contributes what one without records does; before, no record is read. A reader that ends before it gave a record is started
once more.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from veilsum_node.errors import ConfigurationError, DataError, Unavailable, VeilsumError
from veilsum_participant.boundary.calls import BrokenError, CallFailedError
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.boundary.reader import (
    AskShare,
    BeginRows,
    CheckStructure,
    FaultKind,
    LoadRows,
    NextRows,
    OpenDataset,
    SealedRows,
    WorkerFault,
)
from veilsum_participant.datasets import Batches, Datasets, Snapshot
from veilsum_participant.settings.told import plain
from veilsum_participant.worker.keeping import Kept
from veilsum_participant.worker.rows import opened_rows
from veilsum_participant.worker.starting import WorkerStarter

if TYPE_CHECKING:
    from veilsum_participant.settings.dataset_config import DatasetConfig, EncoderConfig
    from veilsum_participant.worker.elsewhere import Computing
    from veilsum_privacy.computation.contribution import Elsewhere
    from veilsum_privacy.computation.declared import DeclaredTask, Encode
    from veilsum_privacy.study.encoder import Program
    from veilsum_privacy.study.schema import DatasetSchema

LOG = logging.getLogger("veilsum.participant")

IDLE = 60.0
"""Seconds that a reader waits for the reading that follows a check."""

_R = TypeVar("_R", bound=Message)

_SEEN = "The reader's own log says why; so does `veilsum participant check`, which looks at the dataset as the reader does."


class _Reader(Kept):
    """A reader's process; ``waited`` for what followed a check, if it did."""

    waited = False


class WorkerDatasets(Datasets):
    """Reads in processes of their own; see :class:`veilsum_participant.datasets.Datasets`."""

    def __init__(self, starter: WorkerStarter) -> None:
        super().__init__()
        self._starter = starter
        self._waiting: dict[tuple[str, bytes], tuple[_Reader, threading.Timer]] = {}
        self._lock = threading.Lock()
        self._computing: Computing | None = None

    # -- what is asked ---------------------------------------------------------------------------------------------------

    def check(self, name: str, offered: DatasetConfig, schema: DatasetSchema) -> None:
        key = (name, offered_bytes(offered))
        reader = self._reader(key)
        try:
            self._ask(reader, name, CheckStructure(_schema_bytes(schema)))
        except BaseException:
            reader.end()
            raise
        self._wait(key, reader)

    def load(self, name: str, offered: DatasetConfig, schema: DatasetSchema, *, seconds: float) -> Snapshot:
        until = time.monotonic() + seconds
        request = LoadRows(_schema_bytes(schema))
        reader, found = self._begun(name, offered, request, until)
        try:
            records = opened_rows(found, schema, subjects=offered.subject is not None)
        except BrokenError as error:
            raise Unavailable(f"The reader of dataset {name} is out of order: {error}") from error
        finally:
            reader.end()
        LOG.info("dataset %s is read", name)
        return Snapshot(records, _digest(name, offered, found))

    def stream(
        self, name: str, offered: DatasetConfig, schema: DatasetSchema, subject: str | None, *,
        rows: int, persons: int, seconds: float,
    ) -> Batches:  # fmt: skip
        until = time.monotonic() + seconds
        reader, _ = self._begun(name, offered, BeginRows(_schema_bytes(schema), subject or "", rows, persons), until)
        try:
            while True:
                found = self._ask(reader, name, NextRows(), until)
                if found.over:
                    return _digest(name, offered, found)
                try:
                    yield opened_rows(found, schema, subjects=subject is not None)
                except BrokenError as error:
                    raise Unavailable(f"The reader of dataset {name} is out of order: {error}") from error
        finally:
            reader.end()

    def unmatched(self, name: str, offered: DatasetConfig) -> float:
        if offered.schema_file is None:
            return 0.0
        reader = self._reader((name, offered_bytes(offered)))
        try:
            share = self._ask(reader, name, AskShare()).share
        finally:
            reader.end()
        if not 0.0 <= share <= 1.0:
            raise Unavailable(f"The reader of dataset {name} is out of order: it names no share.")
        return share

    def load_encoder(self, name: str, encoders: Mapping[str, EncoderConfig], declared: Program, device: str) -> Encode:
        from veilsum_participant.boundary.maps import EncodeBy  # which a site does without where no study has a network
        from veilsum_participant.settings.encoder_files import find_path
        from veilsum_participant.worker.elsewhere import MapFailedError, ProgramElsewhere

        path = find_path(encoders, declared.sha256).absolute()
        request = EncodeBy(device, str(path), declared.model_dump_json().encode())
        encode = ProgramElsewhere(self._maps(), name, declared.sha256, request)
        try:
            encode.ready()
        except MapFailedError as error:
            told = f"The encoder {path} cannot be loaded as the study's program."
            raise ConfigurationError(told, "The log of the process that loads it says why.") from error
        return encode

    def hold_weights(self, name: str, encoders: Mapping[str, EncoderConfig], task: DeclaredTask, device: str) -> None:
        from veilsum_participant.boundary.maps import Prepare  # as above
        from veilsum_participant.settings.encoder_files import WEIGHTS, find_path
        from veilsum_participant.worker.elsewhere import MapFailedError

        path, maps = find_path(encoders, task.terms.weights, WEIGHTS).absolute(), self._maps()
        maps.weights[task.terms.weights] = str(path)
        request = Prepare(device, task.study.to_bytes(), task.label, weights=str(path))
        try:
            maps.of(name, task.agreed.digest.hex()).ready(request)
        except MapFailedError as error:
            told = f"The base weights {path} are not those that the study's model needs."
            raise ConfigurationError(told, "The log of the process that loads them says why.") from error

    def elsewhere(self, name: str, device: str, seconds: float) -> Elsewhere:
        from veilsum_participant.worker.elsewhere import RoundMaps

        return RoundMaps(self._maps(), name, device, seconds)

    def _maps(self) -> Computing:
        """The processes that compute networks and programs, of which none runs before one is asked for."""
        from veilsum_participant.worker.elsewhere import Computing

        with self._lock:
            self._computing = self._computing or Computing(self._starter)
            return self._computing

    def forget(self, digest: bytes) -> None:
        if self._computing is not None:
            self._computing.forget(digest)

    def close(self) -> None:
        """End all readers, and let go of records."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for reader, timer in waiting.values():
            timer.cancel()
            reader.end()
        if self._computing is not None:
            self._computing.close()
        self.let_go()

    # -- readers ---------------------------------------------------------------------------------------------------------

    def _begun(self, name: str, offered: DatasetConfig, request: Inquiry[_R], until: float) -> tuple[_Reader, _R]:
        """The answer to the first request of a reading, and the reader that gave it; one that is gone is started once more."""
        key = (name, offered_bytes(offered))
        for last in (False, True):
            reader = self._reader(key)
            try:
                return reader, self._ask(reader, name, request, until)
            except BaseException as error:
                reader.end()
                again = reader.waited or isinstance(error.__cause__, BrokenError)  # its file may be another one since
                if last or not again or time.monotonic() >= until:
                    raise
                LOG.warning("the reader of dataset %s ended and is started once more", name)
        raise AssertionError

    def _reader(self, key: tuple[str, bytes]) -> _Reader:
        """A reader of the dataset that waits, or a new one."""
        with self._lock:
            found = self._waiting.pop(key, None)
        if found is not None:
            found[1].cancel()
            if not found[0].broken:
                return found[0]
            found[0].end()
        name, offered = key
        reader = _Reader(self._starter, "reader", WorkerFault, name)
        reader.begin()
        try:
            self._ask(reader, name, OpenDataset(name, offered))
        except BaseException:
            reader.end()
            raise
        return reader

    def _wait(self, key: tuple[str, bytes], reader: _Reader) -> None:
        """Let a reader wait for a reading; one at most for a dataset."""
        timer = threading.Timer(IDLE, self._expire, (key, reader))
        timer.daemon = True
        with self._lock:
            before = self._waiting.pop(key, None)
            reader.waited = True
            self._waiting[key] = reader, timer
        timer.start()
        if before is not None:
            before[1].cancel()
            before[0].end()

    def _expire(self, key: tuple[str, bytes], reader: _Reader) -> None:
        with self._lock:
            found = self._waiting.get(key)
            if found is None or found[0] is not reader:
                return
            del self._waiting[key]
        reader.end()

    @staticmethod
    def _ask(reader: _Reader, name: str, request: Inquiry[_R], until: float | None = None) -> _R:
        """Ask a reader.

        Raises:
            DataError, ConfigurationError, Unavailable: it fails, by the kind that it names; or it is out of order.
        """
        left = None if until is None else max(0.0, until - time.monotonic())
        try:
            return reader.call(request, left)
        except CallFailedError as failed:
            raise _failure(name, failed.failure) from failed
        except BrokenError as error:
            raise Unavailable(f"The reader of dataset {name} is gone: {error}") from error


def _failure(name: str, failure: Message) -> VeilsumError:
    kind = failure.kind if isinstance(failure, WorkerFault) else FaultKind.OTHER
    match kind:
        case FaultKind.SOURCE:
            return DataError(f"Dataset {name} cannot be read under the schema.", _SEEN)
        case FaultKind.SETTINGS:
            return ConfigurationError(f"Dataset {name} cannot be read as it is configured.", _SEEN)
        case FaultKind.AWAY:
            return Unavailable(f"What dataset {name} is read from is away.", _SEEN)
        case FaultKind.MEMORY:
            return DataError(f"Dataset {name} could not be read for want of memory, or of a file.", _SEEN)
        case _:
            return DataError(f"Dataset {name} cannot be read.", _SEEN)


def _digest(name: str, offered: DatasetConfig, found: SealedRows) -> bytes | None:
    """The digest of a query's records; whether there is one depends on the configuration alone."""
    if len(found.digest) != (32 if offered.source == "sql" else 0):
        raise Unavailable(f"The reader of dataset {name} is out of order: it names no digest, or one of a file.")
    return found.digest or None


def _schema_bytes(schema: DatasetSchema) -> bytes:
    return schema.model_dump_json().encode()


def offered_bytes(offered: DatasetConfig) -> bytes:
    """What is configured of a dataset, as JSON, with what is secret in it: for its own reader."""
    return json.dumps(plain(offered), sort_keys=True).encode()
