"""Records in memory that one process fills and another one reads, without a copy at the reader's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from veilsum_participant.boundary.calls import BrokenError
from veilsum_participant.boundary.encoding import Sealed
from veilsum_participant.boundary.framing import SealedMemory
from veilsum_participant.boundary.reader import SealedRows
from veilsum_privacy.mechanism.records import Records

if TYPE_CHECKING:
    from veilsum_privacy.study.schema import DatasetSchema


def sealed_rows(records: Records, digest: bytes | None = None) -> SealedRows:
    """Records as they cross; a copy of them is made.

    Raises:
        OSError, MemoryError: the memory for that cannot be had.
    """
    present = np.ascontiguousarray(records.present).view(np.uint8)
    parts: list[Any] = [np.ascontiguousarray(records.features).data, present.data, bytes(-present.size % 8)]
    parts += [np.ascontiguousarray(array).data for array in (records.labels, records.subjects) if array is not None]
    memory = SealedMemory.of(*(part for part in parts if len(part)))
    return SealedRows(len(records), int(records.subjects is not None), 0, digest or b"", memory)


def opened_rows(found: SealedRows, schema: DatasetSchema, *, subjects: bool) -> Records:
    """Records that came, held to their schema: how many bytes there are, which values what is there or not may have, and that
    a subject's stand together.

    Features are taken as they are: whatever they hold, not finite or beyond their bounds, is zeros or is pulled in where rows
    are made of them.

    Args:
        found: what came.
        schema: of the records.
        subjects: whether it has to be told whose they are.

    Raises:
        BrokenError: they are not such records.
    """
    rows, width, labelled = found.rows, schema.width, schema.label is not None
    cells, memory = rows * width, found.memory
    padded = cells + -cells % 8
    size = 8 * cells + padded + 8 * rows * (labelled + subjects)
    if bool(found.subjects) != subjects or (0 if memory is None else memory.size) != size:
        raise BrokenError("A reader sent records of another size than their schema says.")
    view = _view(memory)
    features = np.frombuffer(view, np.float64, cells).reshape(rows, width)
    present = np.frombuffer(view, np.uint8, cells, 8 * cells)
    if present.max(initial=0) > 1:
        raise BrokenError("A reader sent records whose values are neither there nor not.")
    end = 8 * cells + padded
    labels = np.frombuffer(view, np.int64, rows, end) if labelled else None
    whose = np.frombuffer(view, np.int64, rows, end + 8 * rows * labelled) if subjects else None
    if whose is not None and (whose[1:] < whose[:-1]).any():
        raise BrokenError("A reader sent records whose subjects do not stand together.")
    return Records(features, present.view(np.bool_).reshape(rows, width), labels, whose)


def _view(memory: Sealed | None) -> memoryview:
    if memory is None:
        return memoryview(b"")
    view = memory.view()
    if isinstance(memory, SealedMemory):
        memory.close()  # the mapping stays as long as an array does
    return view
