"""What ``participant.toml`` says of the data: datasets, the images and buckets that they come from, and encoders."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    Field,
    SecretStr,
    StrictBool,
    StrictInt,
    StrictStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen, Name
from veilsum_node.identity.files import read_file
from veilsum_participant.query import Bucket, Images, Source, SourceQuery
from veilsum_privacy.study.schema import ColumnName

Side = Annotated[StrictInt, Field(ge=1, le=4096)]

TableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]

_OF_QUERIES = ("dsn", "dsn_file", "query", "query_file", "files", "joined")
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


class BucketConfig(Frozen):
    """Parquet or CSV in S3, or in a store that speaks its protocol; see :class:`veilsum_participant.query.Bucket`.

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
        dsn, dsn_file: of a query, the database's URL, or a private file that holds it; without one DuckDB reads ``files``.
        query, query_file: one SELECT statement, or a file of it.
        files: of a query on files, the table that each becomes: Parquet (or a folder or glob of it), CSV with a header,
            or ndjson, whose lines are in the column ``json``.
        columns: what studies may ask for. A study's column names are held against these, and never against what stands in the
            data. A CSV file whose first line names its columns, and a query on one, has to state them: were that line a record
            after all, an analyst could guess at it by names. Of a CSV file without a header they are all columns, in order; of
            a query on a database other than PostgreSQL and DuckDB, what it yields, in order.
        timeout: seconds for which a query may run.
        joined: whether a person may have several of a query's rows, as where tables are joined. Then the dataset needs
            ``subject``, and studies must have the unit "subject". The default of a query is true.
        images: files that the records name, whose pixels are further columns.
        memory: MiB of records that are held. Where a study's schema admits more, sums over records read the dataset anew for
            each release, in batches (:mod:`veilsum_participant.data.stream`). That follows from the schema's ``max_records``
            and columns, never from the records.
        most_records: how many records the dataset may come to hold: its operator's own word, not counted, with room to grow.
            In a study with noise whose schema's ``max_records`` is less, sums are multiplied by that share, so that a mean
            stays a mean (:func:`veilsum_privacy.computation.contribution.shrunk`).
    """

    source: Literal["file", "sql"] = "file"
    path: Path | None = None
    s3: BucketConfig | None = None
    population: Name | None = None
    subject: ColumnName | None = None
    header: StrictBool = True
    dsn: SecretStr | None = None
    dsn_file: Path | None = None
    query: StrictStr | None = None
    query_file: Path | None = None
    files: dict[TableName, Path] = Field(default_factory=dict)
    columns: tuple[ColumnName, ...] = ()
    timeout: StrictInt = Field(default=300, ge=1, le=86400)
    joined: StrictBool | None = None
    images: ImagesConfig | None = None
    memory: StrictInt = Field(default=512, ge=1, le=1 << 24)
    most_records: StrictInt = Field(default=0, ge=0, le=1 << 36)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("columns names one twice")
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
        if self.several_rows and self.subject is None:
            raise ValueError("needs the column subject, or joined = false where each row is one person's and nobody has two")
        return self

    @property
    def several_rows(self) -> bool:
        """Whether one person may have several records that only ``subject`` tells apart from other people's."""
        return self.source == "sql" and self.joined is not False

    @property
    def file(self) -> Path | Bucket | None:
        """What it is read from, unless that is a query."""
        return self.path if self.s3 is None else Bucket(**dict(self.s3))

    def origin(self, name: str) -> Source:
        """What the dataset of a name is read from.

        Raises:
            ConfigurationError: the file of the query cannot be read.
        """
        table = self._table(name)
        return table if self.images is None else Images(table, self.images.folder, self.images.column, self.images.shape)

    def _table(self, name: str) -> Path | Bucket | SourceQuery:
        if self.file is not None:
            return self.file
        text = self.query or ""
        if self.query_file is not None:
            try:
                text = read_file(self.query_file, f"query of dataset {name}").decode()
            except UnicodeDecodeError as error:
                raise ConfigurationError(f"The query {self.query_file} is not UTF-8 text.") from error
        return SourceQuery(name, text, self.dsn, self.dsn_file, self.files, self.columns, self.timeout)


class EncoderConfig(Frozen):
    """A frozen encoder that studies may name by its hash; see :mod:`veilsum_participant.data.encoders`.

    Attributes:
        path: a TorchScript file or a program of torch.export, relative to the configuration file.
    """

    path: Path
