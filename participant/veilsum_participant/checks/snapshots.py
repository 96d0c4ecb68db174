"""Whether the records that a query yields now are those that a release was computed from, told from the site's own ledger."""

import hmac
from collections.abc import Iterator
from dataclasses import dataclass

from veilsum_node.errors import VeilsumError
from veilsum_participant.datasets import SNAPSHOT_PURPOSE, keyed_snapshot
from veilsum_participant.site import Site
from veilsum_participant.store.studies import find_study
from veilsum_privacy.ledger.entries import Entry, Kind


@dataclass(frozen=True)
class Compared:
    """A release's snapshot beside the dataset of today.

    Attributes:
        entry: of the ledger.
        same: whether it names the records that the query yields now; None where that cannot be told.
    """

    entry: Entry
    same: bool | None
    why: str = ""


def compare_snapshots(site: Site) -> Iterator[Compared]:
    """Compare every snapshot of the ledger with its dataset as it is now; a dataset is read once for each schema."""
    key = site.credentials.signing_key.secret(SNAPSHOT_PURPOSE)
    keys = site.ledger.entries(kind=Kind.KEY)
    since = keys[-1].seq if keys else 0
    for entry in site.ledger.entries(kind=Kind.SNAPSHOT):
        release = entry.reservation
        with site.database.reading() as connection:
            row = find_study(connection, release.study)
        if entry.seq < since:
            yield Compared(entry, None, "written under an earlier key of the site")
        elif row is None:
            yield Compared(entry, None, "its study is not known")
        elif _names(entry, b"", key):
            yield Compared(entry, None, "its records could not be read to their end")
        elif release.dataset not in site.config.datasets:
            yield Compared(entry, None, "its dataset is not offered any more")
        else:
            try:
                reading = site.batches(release.dataset, site.agreed(row.study).study.data, by_subject=True)
                for _ in reading:
                    pass
                digest = reading.digest
            except VeilsumError as error:
                yield Compared(entry, None, error.message)
                continue
            if digest is None:
                yield Compared(entry, None, "its dataset is a file now")
            else:
                yield Compared(entry, _names(entry, digest, key))


def _names(entry: Entry, digest: bytes, key: bytes) -> bool:
    told = keyed_snapshot(digest, key, entry.reservation.context).hex()
    return hmac.compare_digest(told, str(entry.detail["digest"]))
