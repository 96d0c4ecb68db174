"""A site's data: read files, check them against the agreed schema, and turn them into records for a task."""

from veilsum_participant.data.check import CheckReport, Kind, Violation, check_dataset
from veilsum_participant.data.encode import LocalCounts, load_records


def check_structure(path, schema, *, subject, header):  # type: ignore
    from veilsum_privacy.errors import DataError

    if not path.is_file():
        raise DataError(f"{path}: there is no such file.", "Check the path.")


__all__ = ["CheckReport", "Kind", "LocalCounts", "Violation", "check_dataset", "load_records"]
