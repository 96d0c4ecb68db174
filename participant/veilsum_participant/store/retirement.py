"""What a site forgets of studies that are over, after the days that its operator named. The ledger is never touched.

Attempts stay: they hold digests and numbers, and without them a receipt of an attempt that cost nothing would count as one of
a site that had lost its memory, and be charged.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, select

from veilsum_node.errors import HostileInput
from veilsum_participant.store.kept import KEPT, STATES
from veilsum_participant.store.studies import STUDIES, TAKING_PART
from veilsum_privacy.study.study import parse_study

DAY = 86400

_OVER = select(STUDIES.c.digest, STUDIES.c.study).where(STUDIES.c.status.not_in(TAKING_PART))
_DROP_STUDY = delete(STUDIES).where(STUDIES.c.digest == bindparam("study"))
_DROP_KEPT = tuple(delete(table).where(table.c.study == bindparam("study")) for table in (KEPT, STATES))


@dataclass(frozen=True)
class Forgotten:
    """How many studies, and kept vectors of studies, were erased."""

    studies: int
    vectors: int


def forget_ended(connection: Connection, now: int, *, studies: int | None, kept_vectors: int | None) -> Forgotten:
    """Erase what is held of studies that are over here and expired so many days ago.

    Args:
        now: Unix seconds.
        studies: days after which signed studies go, with their rosters and kept vectors; None to keep them.
        kept_vectors: days after which noised vectors go that alignments kept; None to keep them as long as the study.
    """
    gone = vectors = 0
    for digest, data in connection.execute(_OVER).all():
        try:
            since = now - parse_study(data).expires
        except HostileInput:  # as an older version wrote it
            continue
        whole = studies is not None and since >= DAY * studies
        if whole or (kept_vectors is not None and since >= DAY * kept_vectors):
            vectors += sum(connection.execute(query, {"study": digest}).rowcount for query in _DROP_KEPT)
        if whole:
            gone += connection.execute(_DROP_STUDY, {"study": digest}).rowcount
    return Forgotten(gone, vectors)
