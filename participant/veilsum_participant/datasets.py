"""A site's datasets as its guard asks for them: records come as arrays, and nothing here knows what they are read from.

What reads them is handed to a site: :class:`veilsum_participant.data.local.LocalDatasets` in the same process, or
:class:`veilsum_participant.worker.remote.WorkerDatasets` in one of its own.
"""

from __future__ import annotations

import hmac
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from veilsum_node.errors import ConfigurationError, DataError, Refusal, RefusalCode, VeilsumError
from veilsum_privacy.mechanism.records import Records

if TYPE_CHECKING:
    from veilsum_participant.settings.dataset_config import DatasetConfig, EncoderConfig
    from veilsum_privacy.computation.contribution import Elsewhere
    from veilsum_privacy.computation.declared import DeclaredTask, Encode
    from veilsum_privacy.study.encoder import Program
    from veilsum_privacy.study.schema import DatasetSchema

BATCH = 1 << 24
"""Bytes of records that are read at a time."""

DAY = 86400.0
"""Seconds that reading may take where nothing else is said."""

Batches: TypeAlias = Generator[Records, None, bytes | None]
"""Records in batches; at their end, of a query, the digest of all of them (32 bytes)."""


SNAPSHOT_PURPOSE = "snapshot"


def keyed_snapshot(digest: bytes, key: bytes, context: bytes) -> bytes:
    """HMAC-SHA256 of a release's context (32 bytes) and the digest of its records, under the site's secret (32 bytes).

    The site can make it again, and it tells nobody else anything: a ledger is exported, and whoever knows all records but one
    could try a plain hash. Two releases of the same records do not show that nothing changed between them.

    Args:
        digest: 32 bytes; or none, for records that could not be read to their end.
    """
    return hmac.digest(key, context + digest, "sha256")


def record_bytes(schema: DatasetSchema) -> int:
    """Bytes of one record in memory."""
    return 9 * schema.width + 16


class Reading:
    """A dataset's records in batches, to be read once.

    Attributes:
        digest: of a query's records (32 bytes), once all were read; None before, and of a file.
    """

    def __init__(self, batches: Batches | None = None) -> None:
        self._batches = batches
        self.digest: bytes | None = None

    def __iter__(self) -> Iterator[Records]:
        if self._batches is not None:
            self.digest = yield from self._batches


class Snapshot(NamedTuple):
    """A dataset as it was when it was read; ``digest`` is that of a query's records, 32 bytes, and None for a file."""

    records: Records
    digest: bytes | None


class Datasets(ABC):
    """What a site asks of its datasets. The records of one dataset under one schema are held."""

    def __init__(self) -> None:
        self._held: tuple[tuple[str, str], Snapshot] | None = None
        self._latest: tuple[str, DatasetSchema, Snapshot] | None = None
        self._encoders: dict[tuple[str, Program], Encode] = {}
        self._caches = threading.Lock()

    # -- what reads ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def check(self, name: str, offered: DatasetConfig, schema: DatasetSchema) -> None:
        """Check that a dataset can be read under a schema, by its structure alone; no record is read.

        Raises:
            DataError, ConfigurationError: it cannot.
            Unavailable: its database is away.
        """

    @abstractmethod
    def load(self, name: str, offered: DatasetConfig, schema: DatasetSchema, *, seconds: float) -> Snapshot:
        """Read all records, within so many seconds where another process reads.

        Raises:
            DataError, Unavailable, ConfigurationError: they cannot be read.
        """

    @abstractmethod
    def stream(
        self,
        name: str,
        offered: DatasetConfig,
        schema: DatasetSchema,
        subject: str | None,
        *,
        rows: int,
        persons: int,
        seconds: float,
    ) -> Batches:
        """Read records in batches of about so many, each with all records of its subjects if these count; within so many
        seconds in all where another process reads.

        Raises:
            DataError, Unavailable, ConfigurationError: they cannot be read; as they are taken.
        """

    @abstractmethod
    def load_encoder(self, name: str, encoders: Mapping[str, EncoderConfig], declared: Program, device: str) -> Encode:
        """The program of a study, from the site's own file, for records of a dataset.

        Raises:
            ConfigurationError: the file does not exist, or cannot be loaded.
        """

    @abstractmethod
    def hold_weights(self, name: str, encoders: Mapping[str, EncoderConfig], task: DeclaredTask, device: str) -> None:
        """Have the frozen weights of a task's model, from the site's own file, where networks meet records of a dataset.

        Raises:
            ConfigurationError: the file does not exist, or does not hold what the model needs.
        """

    @abstractmethod
    def unmatched(self, name: str, offered: DatasetConfig) -> float:
        """The largest share of a column's cells that match nothing in the site's own schema; 0 where it states none.

        Raises:
            DataError, Unavailable, ConfigurationError: the schema, or the dataset, cannot be read.
        """

    def forget(self, digest: bytes) -> None:  # noqa: B027  where it is read here nothing is kept for one study
        """Let go of what was kept for a study that is over."""

    def close(self) -> None:
        """Let go of everything."""
        self.let_go()

    # -- what a site asks ------------------------------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """Whether records are held."""
        return self._held is not None

    def let_go(self) -> None:
        """Hold no records any more."""
        with self._caches:
            self._held = self._latest = None

    def known(self, name: str, schema: DatasetSchema) -> Snapshot | None:
        """The records that were read last, if they are of this dataset and this very schema, which needs no comparison."""
        latest = self._latest
        return latest[2] if latest is not None and latest[0] == name and latest[1] is schema else None

    def read(self, name: str, offered: DatasetConfig, schema: DatasetSchema, *, seconds: float = DAY) -> Snapshot:
        """The dataset under a schema; read once for each schema."""
        with self._caches:
            if (known := self.known(name, schema)) is not None:
                return known
            key = (name, schema.model_dump_json())
            if self._held is None or self._held[0] != key:
                self._held = self._latest = None  # before others are read beside them
                self._held = key, self.load(name, offered, schema, seconds=seconds)
            self._latest = (name, schema, self._held[1])
            return self._held[1]

    def batches(
        self, name: str, offered: DatasetConfig, schema: DatasetSchema, *, by_subject: bool, seconds: float = DAY
    ) -> Reading:
        """:meth:`read` in batches, each with all records of its subjects if they are to be ``by_subject``. A dataset that the
        schema lets be larger than its ``memory`` is read as they are taken, and not kept.

        Args:
            by_subject: whether subjects count.
            seconds: how long reading may take where another process reads; it follows from what is public.

        Raises:
            DataError, Unavailable, ConfigurationError: the dataset cannot be read; here, or as batches are taken.
        """
        subject = offered.subject if by_subject or offered.source == "sql" else None
        with self._caches:
            known = self.known(name, schema)
        large = record_bytes(schema) * schema.max_records > offered.memory << 20
        if known is None and large and offered.in_batches:
            rows = max(1, min(BATCH, (offered.memory << 20) // 4) // record_bytes(schema))
            persons = max(1, (offered.memory << 20) // record_bytes(schema))
            return Reading(self.stream(name, offered, schema, subject, rows=rows, persons=persons, seconds=seconds))
        return self.whole(name, offered, schema, seconds=seconds)

    def whole(self, name: str, offered: DatasetConfig, schema: DatasetSchema, *, seconds: float = DAY) -> Reading:
        """:meth:`read` in one batch."""
        return Reading(_one(self.read(name, offered, schema, seconds=seconds)))

    def structure_faults(self, name: str, offered: DatasetConfig, schema: DatasetSchema) -> Iterator[Refusal]:
        """Whether an offered dataset can be read under a schema, told without reading a record of it.

        The schema's columns are among those that the site states, where it has to
        (:func:`veilsum_participant.protocol.policy.column_faults`).

        Raises:
            Unavailable: its database is away.
        """
        if self.known(name, schema) is None:
            try:
                self.check(name, offered, schema)
            except (DataError, ConfigurationError) as error:
                yield Refusal(RefusalCode.DATASET, error.message, error.advice)

    def elsewhere(self, name: str, device: str, seconds: float) -> Elsewhere | None:
        """Where networks meet records of a dataset, for one round that may take so many seconds; None for this process."""
        return None

    def encoder(self, name: str, encoders: Mapping[str, EncoderConfig], declared: Program, device: str) -> Encode:
        """:meth:`load_encoder`, once for a program.

        Raises:
            Refusal: the site has no such program, or it cannot be loaded.
        """
        with self._caches:
            if (name, declared) not in self._encoders:
                try:
                    self._encoders = {(name, declared): self.load_encoder(name, encoders, declared, device)}
                except VeilsumError as error:
                    raise Refusal(RefusalCode.TASK, error.message, error.advice) from error
            return self._encoders[name, declared]


def _one(snapshot: Snapshot) -> Batches:
    yield snapshot.records
    return snapshot.digest
