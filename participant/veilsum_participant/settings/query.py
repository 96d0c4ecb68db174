"""What a dataset is read from: a file, or a query of the operator's own and the database that answers it.

Whoever reads needs it; a guard hands on what is configured, and knows none of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pydantic import SecretStr

from veilsum_node.errors import ConfigurationError, raising
from veilsum_node.identity.files import read_file, read_private
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.forms import PLAIN, Dialect, csv_path, csv_url, npz_path, pixel_names, token_names


@dataclass(frozen=True)
class TextFile:
    """A file of text that is not written as :data:`PLAIN` says."""

    file: Path | Bucket
    dialect: Dialect

    def __str__(self) -> str:
        return str(self.file)


@dataclass(frozen=True)
class SourceQuery:
    """A query and where it is asked.

    Attributes:
        dataset: the dataset's name, for messages.
        text: one SELECT statement.
        dsn: URL of the database; None for DuckDB on ``files``.
        dsn_file: private file that holds the URL instead; read for each connection, so that a password can be changed.
        files: the tables of a DuckDB query by name: Parquet, CSV with a header, or ndjson.
        columns: what the query yields, where the database cannot say it without a record.
        timeout: seconds for which it may run.
        dialect: how ``files`` of text are written.
    """

    dataset: str
    text: str = field(repr=False)
    dsn: SecretStr | None = None
    dsn_file: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    timeout: int = 300
    dialect: Dialect = PLAIN

    def __str__(self) -> str:
        return f"query of dataset {self.dataset}"

    @property
    def url(self) -> str:
        """The database's URL, empty without one; may hold a password.

        Raises:
            ConfigurationError: its file cannot be read, or others can read it.
        """
        if self.dsn_file is None:
            return "" if self.dsn is None else self.dsn.get_secret_value()
        data = read_private(self.dsn_file, "database URL")
        with raising(ConfigurationError(f"The database URL {self.dsn_file} is not UTF-8 text."), on=UnicodeDecodeError):
            return data.decode().strip()


@dataclass(frozen=True)
class Bucket:
    """Parquet or CSV in S3, or in a store that speaks its protocol.

    Attributes:
        url: ``s3://bucket/key``: of an object, of all Parquet objects below it, or a glob; or of an
            object of CSV, whose key ends in .csv, .tsv or .txt, before any suffix of its compression.
        endpoint: the store's https://host:port; empty for AWS.
        region: of the bucket; empty for what AWS's own settings say.
        key_file: private file of access key and secret key, one a line; None for AWS's environment variables and files.
        ca_file: certificates in PEM that the store's is held against; None for the system's.
    """

    url: str
    endpoint: str = ""
    region: str = ""
    key_file: Path | None = None
    ca_file: Path | None = None

    def __str__(self) -> str:
        return self.url

    @property
    def csv(self) -> bool:
        """Whether it is an object of CSV, compressed perhaps."""
        return csv_url(self.url)


@dataclass(frozen=True)
class Images:
    """Images that a table names, one a record.

    Attributes:
        table: what is read for all columns but the pixels.
        folder: where the files are.
        column: the table's column that names each record's file, relative to the folder.
        shape: channels or slices, rows and columns that every image is brought to.
    """

    table: Path | Bucket | TextFile | SourceQuery
    folder: Path
    column: str
    shape: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.table} with the images of {self.folder}"

    @property
    def derived(self) -> list[str]:
        """Names of the columns that it adds."""
        return pixel_names(self.shape)


@dataclass(frozen=True)
class Texts:
    """A table's column of texts, as tokens.

    Attributes:
        table: what is read for all columns but the tokens.
        column: the table's column of texts.
        tokenizer: file of a SentencePiece model.
        sha256: of that file.
        length: tokens of a text that are kept.
    """

    table: Path | Bucket | TextFile | SourceQuery
    column: str
    tokenizer: Path
    sha256: str
    length: int

    def __str__(self) -> str:
        return f"{self.table} with the tokens of {self.column!r}"

    @property
    def derived(self) -> list[str]:
        """Names of the columns that it adds."""
        return token_names(self.sha256, self.length)


Derived = Images | Texts
"""A table, and columns that are made of one of its own."""

Source: TypeAlias = Path | Bucket | TextFile | SourceQuery | Derived
"""A file, a folder or a glob of Parquet files; the same in S3; a query; or one of these with images or tokens."""


def is_csv(file: Path | Bucket | TextFile) -> bool:
    """Whether a file counts as CSV: all but Parquet and npz files do, by their suffix; a folder holds Parquet.

    In S3 an object of CSV ends in .csv.
    """
    if isinstance(file, Path):
        return csv_path(file)
    return isinstance(file, TextFile) or file.csv


def is_npz(file: Path | Bucket | TextFile) -> bool:
    """Whether a file is an archive of NumPy's arrays."""
    return isinstance(file, Path) and npz_path(file)


MISSES = ("what", "number", "of", "meant")
"""What a query of misses yields: of how many things how many are so, and whether the query means to leave them aside."""


def origin(offered: DatasetConfig, name: str) -> Source:
    """What the offered dataset of a name is read from.

    Raises:
        ConfigurationError: the file of the query cannot be read.
    """
    table = _table(offered, name)
    if offered.images is not None:
        return Images(table, offered.images.folder, offered.images.column, offered.images.shape)
    return table if offered.texts is None else Texts(table, **dict(offered.texts))


def misses(offered: DatasetConfig, name: str) -> SourceQuery | None:
    """The query about what the dataset's own leaves aside; None without one.

    Raises:
        ConfigurationError: its file cannot be read.
    """
    return None if offered.misses_file is None else _asked(offered, name, _query_text(offered.misses_file, name), MISSES)


def _table(offered: DatasetConfig, name: str) -> Path | Bucket | TextFile | SourceQuery:
    file = offered.path if offered.s3 is None else Bucket(**dict(offered.s3))
    if file is not None:
        return file if offered.dialect == PLAIN else TextFile(file, offered.dialect)
    text = (offered.query or "") if offered.query_file is None else _query_text(offered.query_file, name)
    return _asked(offered, name, text, offered.columns)


def _asked(offered: DatasetConfig, name: str, text: str, columns: tuple[str, ...]) -> SourceQuery:
    return SourceQuery(name, text, offered.dsn, offered.dsn_file, offered.files, columns, offered.timeout, offered.dialect)


def _query_text(path: Path, name: str) -> str:
    with raising(ConfigurationError(f"The query {path} is not UTF-8 text."), on=UnicodeDecodeError):
        return read_file(path, f"query of dataset {name}").decode()
