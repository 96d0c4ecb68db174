"""What a dataset is read from: a file, or a query of the operator's own and the database that answers it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pydantic import SecretStr

from veilsum_node.errors import ConfigurationError, raising
from veilsum_node.identity.files import read_private

_CSV_URL = re.compile(r"\.(csv|tsv|txt)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)


@dataclass(frozen=True)
class Dialect:
    """How a file of text is written, as its owner declares.

    Attributes:
        delimiter: what separates the cells of a CSV file's line.
        decimal: the mark between a number's whole and its decimal places, "." or ",".
        encoding: of its characters, one of :data:`ENCODINGS`.
        compression: of its bytes, one of :data:`COMPRESSIONS`; empty for none.
    """

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    compression: str = ""


PLAIN = Dialect()
"""UTF-8 with commas and points, and not compressed; a line that is not UTF-8 is Latin-1."""

ENCODINGS = (
    *("utf-8", "utf-16", "utf-16-le", "utf-16-be", "ascii", "latin-1", "cp1250", "cp1251", "cp1252", "cp1253"),
    *("cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp437", "cp850", "cp852", "cp866", "iso8859-2", "iso8859-5"),
    *("iso8859-7", "iso8859-8", "iso8859-9", "iso8859-15", "koi8-r", "koi8-u", "mac-roman", "gb18030", "gbk", "big5"),
    *("cp932", "shift_jis", "euc-jp", "cp949", "euc-kr"),
)
"""Encodings in which no character, broken or not, reaches beyond its line."""

COMPRESSIONS = ("gzip", "bzip2", "xz", "zstd")


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
        return _CSV_URL.search(self.url) is not None and not any(letter in self.url for letter in "*?[")


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


def token_names(sha256: str, length: int) -> list[str]:
    """Names of the columns of a text's tokens, in order: with the beginning of the tokenizer's hash, so that sites which have
    different ones offer different columns."""
    return [f"token{place}_{sha256[:8]}" for place in range(length)]


def pixel_names(shape: tuple[int, int, int]) -> list[str]:
    """Names of the columns of an image's pixels, ``pixel0`` first; the last axis runs fastest."""
    return [f"pixel{place}" for place in range(math.prod(shape))]


Derived = Images | Texts
"""A table, and columns that are made of one of its own."""

Source: TypeAlias = Path | Bucket | TextFile | SourceQuery | Derived
"""A file, a folder or a glob of Parquet files; the same in S3; a query; or one of these with images or tokens."""

PARQUET = (".parquet", ".pq")
"""Suffixes of Parquet files."""


def is_csv(file: Path | Bucket | TextFile) -> bool:
    """Whether a file counts as CSV: all but Parquet and npz files do, by their suffix; a folder holds Parquet.

    In S3 an object of CSV ends in .csv.
    """
    if isinstance(file, Path):
        return file.suffix.lower() not in (*PARQUET, ".npz") and not file.is_dir()
    return isinstance(file, TextFile) or file.csv


def is_npz(file: Path | Bucket | TextFile) -> bool:
    """Whether a file is an archive of NumPy's arrays."""
    return isinstance(file, Path) and file.suffix.lower() == ".npz"


def is_json(path: Path) -> bool:
    """Whether a file of a name, or a glob of several, holds JSON."""
    return is_document(path) or _suffix(path) in (".ndjson", ".jsonl")


def is_document(path: Path) -> bool:
    """Whether a file holds one JSON document, in any number of lines."""
    return _suffix(path) == ".json"


def _suffix(path: Path) -> str:
    """The last suffix, before that of a compression."""
    name = path.name.lower()
    for packed in (".gz", ".bz2", ".xz", ".zst"):
        name = name.removesuffix(packed)
    return Path(name).suffix
