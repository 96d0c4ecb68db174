"""The digest of the records that a release was computed from: the site can make it again, nobody else learns from it."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

import numpy as np
import pytest

from veilsum_node.identity.signatures import SigningKey
from veilsum_participant.data.snapshot import records_digest
from veilsum_participant.datasets import keyed_snapshot
from veilsum_privacy.tasks.base import Records


def make_records(order: list[int] | None = None, subjects: bool = True) -> Records:
    """Five records of three persons; those of each stand together, whatever the order."""
    people = np.array([2, 0, 1, 0, 1])
    records = Records(np.arange(10.0).reshape(5, 2) / 10, np.ones((5, 2), np.bool_), np.arange(5) % 2, people)
    taken = records.take(np.array([0, 1, 2, 3, 4] if order is None else order))
    assert taken.subjects is not None
    first = {who: place for place, who in reversed(list(enumerate(taken.subjects.tolist())))}
    numbered = np.unique([first[who] for who in taken.subjects.tolist()], return_inverse=True)[1]
    grouped = np.argsort(numbered, kind="stable")
    found = replace(taken, subjects=numbered).take(grouped)
    return found if subjects else replace(found, subjects=None)


@pytest.mark.parametrize("subjects", [True, False])
@pytest.mark.parametrize("order", [[4, 3, 2, 1, 0], [1, 3, 0, 2, 4], [2, 4, 0, 3, 1]])
def test_the_order_of_a_querys_rows_does_not_count(order: list[int], subjects: bool) -> None:
    assert records_digest(make_records(order, subjects)) == records_digest(make_records(None, subjects))


def test_everything_else_does() -> None:
    records = make_records()
    assert records.labels is not None
    features, present, labels = records.features.copy(), records.present.copy(), records.labels.copy()
    features[3, 1], present[0, 0], labels[2] = 0.55, False, 1 - labels[2]
    others = [
        replace(records, features=features),
        replace(records, present=present),
        replace(records, labels=labels),
        replace(records, labels=None),
        replace(records, subjects=np.array([0, 0, 1, 1, 2])),
        replace(records, subjects=None),
        records.take(slice(4)),
        records.take(slice(0)),
    ]
    digests = {records_digest(item) for item in [records, *others]}
    assert len(digests) == 1 + len(others)


def test_one_record_alone_by_hand() -> None:
    alone = Records(np.array([[0.5]]), np.array([[True]]), np.array([1]))
    row = hashlib.sha256(np.float64(0.5).tobytes() + b"\1" + (1).to_bytes(8, "little")).digest()
    assert records_digest(alone) == hashlib.sha256(row).digest()


def test_nobody_without_the_sites_key_can_try_a_guess() -> None:
    key, other = SigningKey.generate(), SigningKey.generate()
    digest, context = records_digest(make_records()), bytes(range(32))
    told = keyed_snapshot(digest, key.secret("snapshot"), context)
    assert told == hmac.new(key.secret("snapshot"), context + digest, hashlib.sha256).digest()
    assert told == keyed_snapshot(digest, SigningKey.from_pem(key.to_pem()).secret("snapshot"), context)
    assert (
        len(
            {told, keyed_snapshot(digest, other.secret("snapshot"), context), keyed_snapshot(digest, key.secret("x"), context)}
        )
        == 3
    )
    assert told != keyed_snapshot(digest, key.secret("snapshot"), bytes(32)), "unchanged records show in no two entries"
