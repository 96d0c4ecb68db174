"""A digest of records, which a site can make again; what leaves it is :func:`veilsum_participant.datasets.keyed_snapshot`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from veilsum_privacy.mechanism.records import Records


class RecordsDigest:
    """SHA-256 of records as the study's schema reads them, whatever order a source gives them in; 32 bytes are held a person.

    Each record is hashed, a person's hashes are sorted and hashed, and so are all persons'; without subjects each record is a
    person's.
    """

    def __init__(self) -> None:
        self._persons = bytearray()

    def add(self, records: Records) -> None:
        """Take some of the records; a person's must come together."""
        singles = [hashlib.sha256(row).digest() for row in _rows(records)]
        if records.subjects is not None:
            parts: dict[int, list[bytes]] = {}
            for subject, single in zip(records.subjects.tolist(), singles, strict=True):
                parts.setdefault(subject, []).append(single)
            singles = [hashlib.sha256(b"".join(sorted(part))).digest() for part in parts.values()]
        self._persons += b"".join(singles)

    def digest(self) -> bytes:
        """Digest of all that was added (32 bytes)."""
        words = np.frombuffer(self._persons, dtype=">u8").reshape(-1, 4)
        order = np.lexsort(words.T[::-1])  # as bytes are sorted
        return hashlib.sha256(words[order].tobytes()).digest()


def records_digest(records: Records) -> bytes:
    """See :class:`RecordsDigest`."""
    found = RecordsDigest()
    found.add(records)
    return found.digest()


def _rows(records: Records) -> Iterator[bytes]:
    labels = np.full(len(records), -2) if records.labels is None else records.labels
    features, present = records.features.astype("<f8"), records.present.astype(np.uint8)
    for values, known, label in zip(features, present, labels.astype("<i8"), strict=True):
        yield values.tobytes() + known.tobytes() + label.tobytes()
