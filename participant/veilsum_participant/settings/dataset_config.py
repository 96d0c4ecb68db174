"""What ``participant.toml`` says of the data: datasets, the images and buckets that they come from, and encoders."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    StrictBool,
    StrictInt,
    StrictStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from veilsum_node.fields import Frozen, Name
from veilsum_participant.settings.forms import (
    ENCODINGS,
    PLAIN,
    Dialect,
    csv_path,
    csv_url,
    is_json,
    is_text,
    npz_path,
    pixel_names,
    token_names,
)
from veilsum_privacy.study.schema import ColumnName

Side = Annotated[StrictInt, Field(ge=1, le=4096)]

TableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


def _known_encoding(value: str) -> str:
    if value not in ENCODINGS:
        raise ValueError(f"is none of {', '.join(ENCODINGS)}")
    return value


Encoding = Annotated[str, AfterValidator(_known_encoding)]

_OF_QUERIES = ("dsn", "dsn_file", "query", "query_file", "misses_file", "files", "joined")
"""Keys of a dataset that only a query may set."""


class ImagesConfig(Frozen):
    """Images of a dataset, which become its columns ``pixel0``, ``pixel1`` and so on.

    Attributes:
        folder: where the files are: PNG, JPEG, DICOM (.dcm) or NIfTI (.nii, .nii.gz).
        column: the dataset's column that names each record's file, relative to the folder.
        shape: channels or slices, rows and columns; every image is brought to it.
    """

    folder: Path
    column: ColumnName = "file"
    shape: tuple[Side, Side, Side]

    @field_validator("shape")
    @classmethod
    def _columns(cls, value: tuple[int, int, int]) -> tuple[int, int, int]:
        if math.prod(value) > 4096:
            raise ValueError("a schema has at most 4096 columns, one a pixel")
        return value


class TextsConfig(Frozen):
    """A column of texts, which becomes columns of tokens.

    Attributes:
        column: the dataset's column of texts.
        tokenizer: file of a SentencePiece model, relative to the configuration file.
        sha256: of that file; its first eight digits are part of the columns' names.
        length: tokens of a text that are kept, the first ones.
    """

    column: ColumnName = "text"
    tokenizer: Path
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    length: StrictInt = Field(ge=1, le=4096)


class BucketConfig(Frozen):
    """Parquet or CSV in S3, or in a store that speaks its protocol; see :class:`veilsum_participant.settings.query.Bucket`.

    Attributes:
        url: ``s3://bucket/key``: an object, all Parquet objects below it, or a glob; or one object of CSV (``.csv``).
        endpoint: ``https://host:port`` of a store other than AWS; without TLS on this machine only.
        region: of the bucket.
        key_file: private file of access key, secret key and, if there is one, session token, one a line. Without it AWS's own
            environment variables and files are asked.
        ca_file: certificates that the store's is held against, in place of the system's.
    """

    url: Annotated[str, StringConstraints(pattern=r"^s3://[^/*?\[\s]+/\S+$")]
    endpoint: StrictStr = ""
    region: StrictStr = ""
    key_file: Path | None = None
    ca_file: Path | None = None

    @field_validator("endpoint")
    @classmethod
    def _with_tls(cls, value: str) -> str:
        parts = urlsplit(value)
        here = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
        if value and (not parts.netloc or parts.path or "@" in value or not (here or parts.scheme == "https")):
            raise ValueError("must be https://host:port; http:// only of this machine")
        return value


class DatasetConfig(Frozen):
    """A dataset that the site offers: a file, or what a query of the site's own yields.

    Attributes:
        source: "file", or "sql" for a query.
        path: the file (CSV, Parquet or npz), or a folder or glob of Parquet files, relative to the configuration file.
        s3: in its place, Parquet or CSV in S3 or a store like it.
        population: whose records they are; all datasets of one population share one budget. Defaults to the dataset's name.
        subject: the column that tells which person a record is of; it never leaves the site. Studies with the unit "subject"
            need it.
        header: whether the first line of a CSV file names its columns. A study whose schema says otherwise is refused; were
            it believed, the file's first record would be held against the study's column names.
        delimiter, decimal: of CSV, what separates cells, "," unless stated (tab is "\\t"), and the mark before the decimal
            places of numbers, "." unless it is ",".
        encoding, compression: of CSV and ndjson, how characters and bytes are written
            (:class:`veilsum_participant.settings.forms.Dialect`). None of the four is guessed from a file: one record could
            decide it.
        dsn, dsn_file: of a query, the database's URL, or a private file that holds it; without one DuckDB reads ``files``.
        query, query_file: one SELECT statement, or a file of it.
        misses_file: a further query on the same tables, which `participant check --schema` alone asks: how much of what the
            tables hold the query leaves aside. It yields :data:`veilsum_participant.settings.query.MISSES`.
        files: of a query on files, the table that each becomes: Parquet (or a folder or glob of it), CSV with a header,
            or JSON, whose values are in the column ``json``: ndjson, or a document a file.
        columns: what studies may ask for. A study's column names are held against these, and never against what stands in the
            data. A CSV file whose first line names its columns, and a query on one, has to state them: were that line a record
            after all, an analyst could guess at it by names. Of a CSV file without a header they are all columns, in order; of
            a query on a database other than PostgreSQL and DuckDB, what it yields, in order.
        timeout: seconds for which a query may run.
        joined: whether a person may have several of a query's rows, as where tables are joined. Then the dataset needs
            ``subject``, and studies must have the unit "subject". The default of a query is true.
        images: files that the records name, whose pixels are further columns.
        texts: a column of texts, whose tokens are further columns.
        memory: MiB of records that are held. Where a study's schema admits more, sums over records read the dataset anew for
            each release, in batches (:mod:`veilsum_participant.data.stream`). That follows from the schema's ``max_records``
            and columns, never from the records.
        most_records: how many records the dataset may come to hold: its operator's own word, not counted, with room to grow.
            In a study with noise whose schema's ``max_records`` is less, sums are multiplied by that share, so that a mean
            stays a mean (:func:`veilsum_privacy.computation.contribution.shrunk`).
        schema_file, most_unmatched: a schema of the site's own, and the largest share of any column's cells with a value that
            may match nothing in it. The dataset is held against it where a participant starts, before any study and whatever
            studies ask; beyond the share none is accepted. That tells who asks one thing of the records, at the site's own
            will: so leave room between the share and what `veilsum participant check` shows.
    """

    source: Literal["file", "sql"] = "file"
    path: Path | None = None
    s3: BucketConfig | None = None
    population: Name | None = None
    subject: ColumnName | None = None
    header: StrictBool = True
    delimiter: Annotated[str, StringConstraints(pattern=r"^[\t\x1f !#$%&*/:;<=>?@^_`|~,-]$")] = PLAIN.delimiter
    decimal: Literal[".", ","] = "."
    encoding: Encoding = "utf-8"
    compression: Literal["", "gzip", "bzip2", "xz", "zstd"] = ""
    dsn: SecretStr | None = None
    dsn_file: Path | None = None
    query: StrictStr | None = None
    query_file: Path | None = None
    misses_file: Path | None = None
    files: dict[TableName, Path] = Field(default_factory=dict)
    columns: tuple[ColumnName, ...] = ()
    timeout: StrictInt = Field(default=300, ge=1, le=86400)
    joined: StrictBool | None = None
    images: ImagesConfig | None = None
    texts: TextsConfig | None = None
    memory: StrictInt = Field(default=512, ge=1, le=1 << 24)
    most_records: StrictInt = Field(default=0, ge=0, le=1 << 36)
    schema_file: Path | None = None
    most_unmatched: float | None = Field(default=None, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("columns names one twice")
        return self

    @model_validator(mode="after")
    def _derived_once(self) -> Self:
        if self.images is not None and self.texts is not None:
            raise ValueError("images and texts are of two datasets")
        return self

    @model_validator(mode="after")
    def _held_against(self) -> Self:
        if (self.schema_file is None) != (self.most_unmatched is None):
            raise ValueError("schema_file and most_unmatched go together")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.source == "file":
            if (self.path is None) == (self.s3 is None):
                raise ValueError('needs a path, or s3, or source = "sql" and a query; and one of them')
            if given := [name for name in _OF_QUERIES if getattr(self, name) not in (None, (), {})]:
                raise ValueError(f'{given[0]} is for source = "sql"')
            return self
        if self.path is not None or self.s3 is not None or not self.header:
            raise ValueError('s3, path and header are for source = "file"; a query names its tables under files')
        if (self.query is None) == (self.query_file is None):
            raise ValueError("needs query or query_file, one of them")
        if (self.dsn is not None) + (self.dsn_file is not None) + bool(self.files) != 1:
            raise ValueError("needs one of dsn, dsn_file and files")
        if len({name.lower() for name in self.files}) < len(self.files):
            raise ValueError("files: a query knows no capitals in the names of tables, of which two differ in these alone")
        if self.several_rows and self.subject is None:
            raise ValueError("needs the column subject, or joined = false where each row is one person's and nobody has two")
        return self

    @model_validator(mode="after")
    def _dialect_of_text(self) -> Self:
        if self.dialect == PLAIN:
            return self
        if self.delimiter == self.decimal:
            raise ValueError("delimiter and decimal are the same mark")
        if self.source == "sql":
            if self.decimal != PLAIN.decimal:
                raise ValueError("decimal is for a file; a query converts texts itself")
            if not any(map(is_text, self.files.values())):
                raise ValueError("delimiter, encoding and compression are for CSV and ndjson")
        elif not (is_text(self.path) if self.path is not None else self.csv):
            raise ValueError("delimiter, decimal, encoding and compression are for CSV")
        return self

    @property
    def dialect(self) -> Dialect:
        """How its files of text are written."""
        return Dialect(self.delimiter, self.decimal, self.encoding, self.compression)

    @property
    def several_rows(self) -> bool:
        """Whether one person may have several records that only ``subject`` tells apart from other people's."""
        return self.source == "sql" and self.joined is not False

    @property
    def csv(self) -> bool:
        """Whether it is read from a file that counts as CSV: in S3 from an object whose name ends in .csv."""
        if self.path is not None:
            return csv_path(self.path)
        return self.s3 is not None and csv_url(self.s3.url)

    @property
    def named_in_records(self) -> bool:
        """Whether the names of its columns stand in a line that could be a record: of CSV, and of a query on CSV."""
        if self.source == "file":
            return self.header and self.csv
        return any(csv_path(path) and not is_json(path) for path in self.files.values())

    @property
    def in_batches(self) -> bool:
        """Whether it takes less memory to read it in batches than all its records do: everything but an npz file."""
        return self.path is None or not npz_path(self.path)

    @property
    def derived(self) -> Sequence[str]:
        """Names of the columns that are made of others: pixels, or tokens."""
        if self.images is not None:
            return pixel_names(self.images.shape)
        return () if self.texts is None else token_names(self.texts.sha256, self.texts.length)


class EncoderConfig(Frozen):
    """A frozen encoder, or base weights, that studies may name by their hash; see :mod:`veilsum_participant.data.encoders`.

    Attributes:
        path: a TorchScript file, a program of torch.export or a file of safetensors, relative to the configuration file.
    """

    path: Path
