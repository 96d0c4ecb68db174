"""Tables and records of neighbouring files, and what one record more may change in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veilsum_participant.data import CheckReport, FindingKind, load_records
from veilsum_participant.data.quality import ColumnCells
from veilsum_participant.data.table import Table
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn

ORDER = ("who", "age", "town", "ill")
SCHEMA = DatasetSchema(
    columns=(NumberColumn(name="age", low=0, high=100), CategoryColumn(name="town", categories=("Köln", "Ulm"))),
    label=LabelColumn(column="ill", classes=(ClassValues(name="no", values=("0",)), ClassValues(name="yes", values=("1",)))),
)


def text_array(cells: list[bytes | None], kind: Any) -> Any:
    """A text array of any bytes: its type promises UTF-8, and nothing checks it."""
    offsets = np.cumsum([0, *(len(cell or b"") for cell in cells)]).astype(np.int32)
    present = np.packbits(np.array([cell is not None for cell in cells], dtype=np.bool_), bitorder="little")
    buffers = [pa.py_buffer(data) for data in (present.tobytes(), offsets.tobytes(), b"".join(cell or b"" for cell in cells))]
    return pa.Array.from_buffers(kind, len(cells), buffers)


def told(counts: Mapping[str, ColumnCells], what: str) -> dict[str, int]:
    """One of the figures of each column."""
    return {name: getattr(cells, what) for name, cells in counts.items()}


def totals(report: CheckReport) -> dict[str | None, dict[FindingKind, int]]:
    """How many places a report tells of, by column and kind."""
    found: dict[str | None, dict[FindingKind, int]] = {}
    for finding in report.findings:
        found.setdefault(finding.column, {})[finding.kind] = finding.count
    return found


def places(report: CheckReport) -> list[tuple[int, int | None, str | None, FindingKind]]:
    """Row, line, column and kind of each place that a report shows, in the order of rows."""
    found = [(row, line, finding.column, finding.kind) for finding in report.findings for row, line in finding.places.items()]
    return sorted(found, key=lambda place: place[0])


def rows_of(table: Table) -> list[tuple[object, ...]]:
    """The rows as read, without a number's NaN, which is not itself."""
    columns = [*table.columns.values(), *([] if table.subjects is None else [table.subjects])]
    cells = [[None if value != value else value for value in column.to_pylist()] for column in columns]
    return list(zip(*cells, strict=True))


def records_of(path: Path, schema: DatasetSchema) -> list[tuple[object, ...]]:
    """Values, presence and class of each record."""
    records, counts = load_records(path, schema)
    assert records.labels is not None
    assert {cells.read for cells in counts.values()} == {len(records)}
    parts = zip(records.features.tolist(), records.present.tolist(), records.labels.tolist(), strict=True)
    return [(*features, *present, label) for features, present, label in parts]


def groups_of(path: Path, schema: DatasetSchema) -> list[tuple[object, ...]]:
    """The records of each subject, in order; subjects in any order, for their numbers mean nothing."""
    records, _ = load_records(path, schema, "who")
    assert records.subjects is not None
    assert records.labels is not None
    groups: dict[int, list[object]] = {}
    for subject, features, label in zip(records.subjects, records.features.tolist(), records.labels, strict=True):
        groups.setdefault(int(subject), []).append((*features, int(label)))
    return [tuple(group) for group in groups.values()]


def assert_one_more(before: list[Any], after: list[Any]) -> None:
    """``after`` is ``before``, in its order, with one more at most."""
    assert len(after) - len(before) in (0, 1)
    same = next((place for place, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(before))
    assert before[same:] == after[same + len(after) - len(before) :]


def assert_one_group_changed(before: list[Any], after: list[Any]) -> None:
    """One subject has one record more, or there is one more subject, or nothing has changed."""
    gone, new = list(before), list(after)
    for group in before:
        if group in new:
            gone.remove(group)
            new.remove(group)
    assert len(gone) <= len(new) <= 1
    assert_one_more(list(gone[0]) if gone else [], list(new[0]) if new else [])


def trimmed(text: str) -> str:
    """Without white space at the ends, as Arrow knows it: all that Unicode calls so but the separators of ASCII."""
    array = pa.array([text], pa.large_string())
    return str(pc.utf8_trim_whitespace(array)[0].as_py())
