"""Two parts of a site's records, for statistics (U_k) and for training (S_k), that every task of every study splits alike.

Which part a record belongs to is a public hash of its own content. So it depends on no other record: adding or removing one
moves none of the others, and what is proven for all records holds for a part of them. Equal records stand on one side. A split
does not make the two releases cheaper: one record is in one part only, but nobody who sees the releases knows in which, and a
ledger that priced the parts in parallel would have to know. Both are charged in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from veilsum_privacy.mechanism.parts import hash_is_low

if TYPE_CHECKING:  # tasks import this module
    from veilsum_privacy.tasks.base import Records
    from veilsum_privacy.tasks.parameters import Part


def in_statistics_part(records: Records, share: float) -> NDArray[np.bool_]:
    """Which records (n,) are for statistics: those whose hash is among the lowest ``share`` of all hashes.

    Of each record its features, which of them are present, and its label are hashed, as they are before the study's encoder
    and any alignment; a site that keeps encoded records hashes these. What is absent does not enter, and 0 has no sign.
    """
    labels = np.full(len(records), -1) if records.labels is None else records.labels
    return hash_is_low(records.features, records.present, labels, share)


def part_of(records: Records, part: Part, share: float) -> Records:
    """The records of a part, in their order; ``share`` as in :func:`in_statistics_part`."""
    if part == "all":
        return records
    kept = in_statistics_part(records, share)
    if part == "training":
        kept = ~kept
    return records.take(kept)
