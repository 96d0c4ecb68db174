"""Tables to try veilsum on: packaged ones, or a file; held-out rows, and one file for each site.

Rows keep the cells of their source; the participant's own reader and the schema judge them later. Nothing is downloaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from veilsum.tables import read_used
from veilsum_deploy.data_names import PACKAGED
from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError, DataError, Misuse, raising
from veilsum_participant.data.cells import judge_texts
from veilsum_participant.data.encode import encode_tables
from veilsum_participant.data.table import Table
from veilsum_participant.settings.query import Source
from veilsum_privacy.study.schema import ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.schema_file import load_schema
from veilsum_privacy.tasks.base import Records

EXTRA = "Install it with: pip install 'veilsum[simulation]'"
"""Advice where a package of the extra is missing."""

LARGEST_CSV = 2**20
"""Most cells that are written as text; a larger table is written as Parquet."""

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class TableWithSchema:
    """A table with its schema.

    Attributes:
        name: as a study and a participant's configuration name it.
        table: an Arrow table of the schema's columns.
        subject: a further column of it, which tells whose record each is; None where nothing does.
    """

    name: str
    schema: DatasetSchema
    table: Any
    subject: str | None = None

    @cached_property
    def records(self) -> Records:
        """What the participant's reader makes of the table once it is written: the same records, to the bit."""
        return encode_tables([self.read], self.schema)[0]

    @property
    def read(self) -> Table:
        """What the participant's reader makes of the table once it is written, before its cells are judged."""
        columns = {name: self.table[name].combine_chunks() for name in self.table.column_names}
        return Table(columns, self.table.num_rows, None if self.subject is None else columns[self.subject])

    @property
    def classes(self) -> NDArray[np.int64]:
        """Class index of each row, -1 where the label is missing; all 0 without a label."""
        label = self.schema.label
        if label is None:
            return np.zeros(self.table.num_rows, dtype=np.int64)
        if self._in_order and self.records.labels is not None:
            return self.records.labels
        if label.column not in self.table.column_names:
            raise DataError(f"The data set {self.name} has no column {label.column!r}.", "Use the schema that belongs to it.")
        return judge_texts(label, self.table[label.column].combine_chunks(), self.schema.missing).values

    @property
    def _in_order(self) -> bool:
        """Whether the records are made, in the order of the table's rows; those with subjects stand by subject."""
        return "records" in self.__dict__ and self.subject is None

    def take(self, rows: Rows) -> "TableWithSchema":
        """The data set of some rows; records that are made already are not made again."""
        taken = TableWithSchema(self.name, self.schema, self.table.take(rows), self.subject)
        if self._in_order:
            taken.__dict__["records"] = take_records(self.records, rows)
        return taken

    def write(self, directory: Path, stem: str) -> Path:
        """Write ``stem``.csv, or .parquet where it is large, a text breaks a line or the schema says that it has no header.

        Returns:
            The path.
        """
        directory.mkdir(parents=True, exist_ok=True)
        small = self.table.num_rows * self.table.num_columns <= LARGEST_CSV
        if small and self.schema.header and not _breaks_lines(self.table):
            path = directory / f"{stem}.csv"
            pacsv.write_csv(self.table, path)
        else:
            path = directory / f"{stem}.parquet"
            parquet.write_table(self.table, path)
        return path


def _breaks_lines(table: Any) -> bool:
    """Whether a name or text has a line break, which a cell of a CSV file cannot have."""
    texts = [
        column for column in table.columns if not pa.types.is_floating(column.type) and not pa.types.is_integer(column.type)
    ]
    found = any(pc.any(pc.match_substring_regex(column, r"[\r\n]"), min_count=0).as_py() for column in texts)
    return found or any(letter in name for name in table.column_names for letter in "\r\n")


def take_records(records: Records, rows: Rows) -> Records:
    """Some records, in the order of ``rows``."""
    labels = None if records.labels is None else records.labels[rows]
    return Records(records.features[rows], records.present[rows], labels)


def concatenate(parts: Sequence[TableWithSchema]) -> TableWithSchema:
    """The rows of several data sets of one schema, in one."""
    tables = pa.concat_tables([part.table for part in parts], promote_options="permissive")
    whole = TableWithSchema(parts[0].name, parts[0].schema, tables, parts[0].subject)
    if parts[0].schema.label is not None and all(part._in_order for part in parts):
        found = [part.records for part in parts]
        whole.__dict__["records"] = Records(
            np.concatenate([one.features for one in found]),
            np.concatenate([one.present for one in found]),
            np.concatenate([one.labels for one in found if one.labels is not None]),
        )
    return whole


def read_dataset(path: Source, schema: DatasetSchema, name: str) -> TableWithSchema:
    """Read a CSV, Parquet or npz file.

    Raises:
        DataError: it cannot be read, lacks a column of the schema, or none of its rows has as many cells as columns.
    """
    return TableWithSchema(name, schema, pa.table(read_used(path, schema).columns))


def packaged_dataset(name: str) -> TableWithSchema:
    """A data set with its schema: ``breast-cancer`` (569 x 30), or scikit-learn's ``digits`` (1797 x 64).

    Raises:
        ConfigurationError: there is none of this name.
        Misuse: it needs scikit-learn, which is not installed.
    """
    if name not in PACKAGED:
        raise ConfigurationError(f"No packaged data set is called {name!r}.", did_you_mean(name, PACKAGED))
    if name == "digits":
        values, target, schema = *_digits(), _digits_schema()
    else:
        with resources.as_file(resources.files("veilsum_deploy") / "demo_data") as folder:
            schema = load_schema(folder / "breast_cancer.toml")
            cells = np.loadtxt(folder / "breast_cancer.csv", delimiter=",", skiprows=1)
        values, target = cells[:, :-1], cells[:, -1].astype(np.int64)
    columns = {column.name: values[:, index] for index, column in enumerate(schema.columns)}
    return TableWithSchema(name, schema, pa.table({**columns, "target": target.astype(str)}))


def _digits() -> tuple[NDArray[np.float64], Rows]:
    with raising(Misuse("scikit-learn, which brings the digits, is not installed.", EXTRA), on=ImportError):
        from sklearn import datasets  # takes a second: only here
    bunch = datasets.load_digits()
    return bunch.data, bunch.target


def _digits_schema() -> DatasetSchema:
    columns = tuple(NumberColumn(name=f"pixel_{row}_{column}", low=0, high=16) for row in range(8) for column in range(8))
    classes = tuple(ClassValues(name=f"digit-{digit}", values=(str(digit),)) for digit in range(10))
    return DatasetSchema(columns=columns, label=LabelColumn(column="target", classes=classes), max_records=2000)
