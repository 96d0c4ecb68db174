"""Public hashes of each record's own content: one splits records alike for every task, others draw for each record.

Which part a record belongs to depends on no other record: adding or removing one moves none of the others, and what is proven
for all records holds for a part of them. A split does not make two releases cheaper: one record is in one part only, but who
sees the releases does not know in which. Both are charged in full.
"""

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats

_PART, _DRAW = b"veilsum.parts.1", b"veilsum.draws.1"


def hash_is_low(features: Floats, present: NDArray[np.bool_], labels: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Which records (n,) have a hash among the lowest ``share`` of all hashes.

    Of each record its features (n, d), which of them are present, and its label (n,), -1 where there is none, are hashed.
    What is absent does not enter, and 0 has no sign.
    """
    limit = int(share * 2.0**64)
    hashes = _hashes(features, present, labels, person=_PART, salt=b"")
    return np.fromiter((own < limit for own in hashes), dtype=np.bool_, count=len(features))


def drawn(features: Floats, present: NDArray[np.bool_], labels: NDArray[np.int64], salt: int) -> Floats:
    """What is drawn for each record (n,) under a public salt, in [0, 1): a hash of what :func:`hash_is_low` hashes.

    A multiple of 2^-53. Another salt, below 2^63, draws anew, and no draw tells the part that a record is in.
    """
    hashes = _hashes(features, present, labels, person=_DRAW, salt=salt.to_bytes(8, "little"))
    return np.fromiter((own >> 11 for own in hashes), dtype=np.float64, count=len(features)) * 2.0**-53


def _hashes(
    features: Floats, present: NDArray[np.bool_], labels: NDArray[np.int64], *, person: bytes, salt: bytes
) -> Iterator[int]:
    rows = np.ascontiguousarray(np.where(present, features, 0.0) + 0.0, dtype="<f8")
    flags = np.packbits(present, axis=1)
    marks = np.ascontiguousarray(labels, dtype="<i8")
    for index in range(len(rows)):
        digest = blake2b(rows[index].tobytes(), digest_size=8, person=person, salt=salt)
        digest.update(flags[index].tobytes())
        digest.update(marks[index].tobytes())
        yield int.from_bytes(digest.digest(), "little")
