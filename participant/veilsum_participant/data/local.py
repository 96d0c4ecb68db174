"""Datasets that are read in the process that asks for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow

from veilsum_participant.data.encode import load_records
from veilsum_participant.data.quality import most_unmatched
from veilsum_participant.data.snapshot import RecordsDigest, records_digest
from veilsum_participant.data.sources import check_structure
from veilsum_participant.data.stream import stream_records
from veilsum_participant.datasets import DAY, Batches, Datasets, Snapshot
from veilsum_participant.settings.dataset_config import DatasetConfig, EncoderConfig
from veilsum_participant.settings.encoder_files import WEIGHTS, find_path
from veilsum_participant.settings.query import origin
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.schema_file import load_schema

if TYPE_CHECKING:
    from veilsum_privacy.tasks.feature_maps import Encode

LOG = logging.getLogger("veilsum.participant")


class LocalDatasets(Datasets):
    """Reads where it is; see :class:`veilsum_participant.datasets.Datasets`."""

    def __init__(self) -> None:
        super().__init__()
        # Arrow's first conversion imports pandas where that is installed: not while records are read, nor in a thread.
        pyarrow.array([])

    def check(self, name: str, offered: DatasetConfig, schema: DatasetSchema) -> None:
        source = origin(offered, name)
        check_structure(source, schema, subject=offered.subject, header=offered.header, columns=offered.columns)

    def load(self, name: str, offered: DatasetConfig, schema: DatasetSchema, *, seconds: float = DAY) -> Snapshot:
        records, _ = load_records(origin(offered, name), schema, offered.subject, header=offered.header)
        LOG.info("dataset %s is read", name)
        return Snapshot(records, records_digest(records) if offered.source == "sql" else None)

    def stream(
        self, name: str, offered: DatasetConfig, schema: DatasetSchema, subject: str | None, *,
        rows: int, persons: int, seconds: float = DAY,
    ) -> Batches:  # fmt: skip
        found = stream_records(origin(offered, name), schema, subject, header=offered.header, rows=rows, persons=persons)
        return _digested(found, wanted=offered.source == "sql")

    def load_encoder(self, name: str, encoders: Mapping[str, EncoderConfig], declared: Program, device: str) -> Encode:
        from veilsum_participant.data.encoders import find_encoder  # what only reads does without

        return find_encoder(encoders, declared)

    def hold_weights(self, name: str, encoders: Mapping[str, EncoderConfig], task: Any, device: str) -> None:
        from veilsum_participant.data import encoders as files  # as above, and without tasks

        files.hold_weights(find_path(encoders, task.terms.weights, WEIGHTS), task)

    def unmatched(self, name: str, offered: DatasetConfig) -> float:
        if offered.schema_file is None:
            return 0.0
        schema = load_schema(offered.schema_file)
        return most_unmatched(origin(offered, name), schema, subject=offered.subject, header=offered.header)


def _digested(batches: Iterable[Records], *, wanted: bool) -> Batches:
    growing = RecordsDigest()
    for batch in batches:
        if wanted:
            growing.add(batch)
        yield batch
        del batch  # before the next one is read
    return growing.digest() if wanted else None
