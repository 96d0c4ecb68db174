"""A site's data: read files and databases, check them against the agreed schema, and turn them into records for a task."""

import pyarrow

from veilsum_participant.data.check import CheckReport, FindingKind, Violation, check_dataset
from veilsum_participant.data.encode import LocalCounts, load_records
from veilsum_participant.data.sources import check_structure

# Its first conversion imports pandas where that is installed: not while records are read, and not in one of several threads.
pyarrow.array([])

__all__ = ["CheckReport", "FindingKind", "LocalCounts", "Violation", "check_dataset", "check_structure", "load_records"]
