"""Two parts of a site's records that every task of every study splits alike, by a public hash of each record's own content."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats

_PERSON = b"veilsum.parts.1"


def hash_is_low(features: Floats, present: NDArray[np.bool_], labels: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Which records (n,) have a hash among the lowest ``share`` of all hashes.

    Of each record its features (n, d), which of them are present, and its label (n,), -1 where there is none, are hashed.
    What is absent does not enter, and 0 has no sign.
    """
    rows = np.ascontiguousarray(np.where(present, features, 0.0) + 0.0, dtype="<f8")
    flags = np.packbits(present, axis=1)
    marks = np.ascontiguousarray(labels, dtype="<i8")
    limit = int(share * 2.0**64)
    found = np.zeros(len(rows), dtype=np.bool_)
    for index in range(len(rows)):
        digest = blake2b(rows[index].tobytes(), digest_size=8, person=_PERSON)
        digest.update(flags[index].tobytes())
        digest.update(marks[index].tobytes())
        found[index] = int.from_bytes(digest.digest(), "little") < limit
    return found
