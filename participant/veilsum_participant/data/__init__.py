"""A site's data: read files and databases, check them against the agreed schema, and turn them into records for a task."""

from veilsum_participant.data.check import CheckReport, FindingKind, check_dataset
from veilsum_participant.data.encode import load_records
from veilsum_participant.data.sources import check_structure

__all__ = [
    "CheckReport",
    "FindingKind",
    "check_dataset",
    "check_structure",
    "load_records",
]
