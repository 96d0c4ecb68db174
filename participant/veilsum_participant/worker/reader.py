"""The reader of one dataset: answers what a guard asks (:mod:`veilsum_participant.boundary.reader`).

It knows what ``participant.toml`` says of its dataset and nothing else of the site: no key, no ledger, no study but the schema
that it reads under. What went wrong stays in its own log; across the boundary goes one number of a fixed list.
"""

import logging

from veilsum_node.errors import ConfigurationError, DataError, Misuse, Unavailable, VeilsumError
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
    UnmatchedShare,
    WorkerDone,
    WorkerFault,
)
from veilsum_participant.datasets import DAY, Batches, Datasets
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.worker.rows import sealed_rows
from veilsum_privacy.study.schema import DatasetSchema

LOG = logging.getLogger("veilsum.participant")


class DatasetReader:
    """Answers for one dataset.

    Args:
        datasets: what reads it, in this process.
    """

    def __init__(self, datasets: Datasets) -> None:
        self._datasets = datasets
        self._opened: tuple[str, DatasetConfig] | None = None
        self._batches: Batches | None = None

    def answer(self, request: Inquiry[Message]) -> Message:
        """Answer a request.

        Raises:
            VeilsumError, OSError, MemoryError: it cannot be answered; see :func:`told`.
        """
        if isinstance(request, OpenDataset):
            if self._opened is not None:
                raise Misuse("The reader has its dataset already.")
            self._opened = request.name, DatasetConfig.model_validate_json(request.offered)
            return WorkerDone()
        if self._opened is None:
            raise Misuse("The reader has no dataset yet.")
        name, offered = self._opened
        match request:
            case CheckStructure():
                self._datasets.check(name, offered, _schema(request.data))
                return WorkerDone()
            case AskShare():
                return UnmatchedShare(self._datasets.unmatched(name, offered))
            case LoadRows():
                found = self._datasets.load(name, offered, _schema(request.data), seconds=DAY)
                return sealed_rows(found.records, found.digest)
            case BeginRows(data, subject, rows, persons):
                schema = _schema(data)
                self._batches = self._datasets.stream(
                    name, offered, schema, subject or None, rows=rows, persons=persons, seconds=DAY
                )
                return WorkerDone()
            case NextRows() if self._batches is not None:
                return self._next(self._batches)
        raise Misuse("The reader is asked for what there is not.")

    @staticmethod
    def _next(batches: Batches) -> SealedRows:
        try:
            return sealed_rows(next(batches))
        except StopIteration as end:
            return SealedRows(over=1, digest=end.value or b"")


def told(error: Exception) -> WorkerFault:
    """What is said of an exception across the boundary: its kind. All else goes to the reader's log."""
    if isinstance(error, VeilsumError):
        LOG.error("the reader failed: %s", error)
    else:
        LOG.error("the reader failed", exc_info=error)
    match error:
        case DataError():
            return WorkerFault(FaultKind.SOURCE)
        case ConfigurationError():
            return WorkerFault(FaultKind.SETTINGS)
        case Unavailable():
            return WorkerFault(FaultKind.AWAY)
        case MemoryError() | OSError():
            return WorkerFault(FaultKind.MEMORY)
        case _:
            return WorkerFault(FaultKind.OTHER)


def _schema(data: bytes) -> DatasetSchema:
    return DatasetSchema.model_validate_json(data)
