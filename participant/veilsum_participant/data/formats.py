"""What may go wrong in reading a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veilsum_node.errors import DataError, VeilsumError
from veilsum_node.phrases import unreadable
from veilsum_participant.data.objects import reachable
from veilsum_participant.settings.query import Bucket, is_csv, is_npz

CHECK_FORMAT = "Is it really a CSV, Parquet or npz file, and whole?"


@contextmanager
def readable(file: Path | Bucket) -> Iterator[None]:
    """Turn what reading a file may raise into a DataError; or into Unavailable where a store is away."""
    try:
        if isinstance(file, Bucket):
            with reachable(file):
                yield
            return
        if (is_npz(file) or is_csv(file)) and not file.is_file():
            raise no_file(file)
        yield
    except OSError as error:
        advice = "Check path, user and permissions." if isinstance(error, PermissionError) else CHECK_FORMAT
        raise DataError(f"{file}: {unreadable(error)}.", advice) from error
    except VeilsumError:
        raise
    except Exception as error:  # what the formats' libraries raise is many things and undocumented
        form = ("CSV" if file.csv else "Parquet") if isinstance(file, Bucket) else file.suffix.lower() or "CSV"
        raise DataError(f"{file}: cannot be read as {form} ({type(error).__name__}).", CHECK_FORMAT) from error


def no_file(path: Path) -> DataError:
    """The error where a path is no file; a pipe is none, for what is in it is read once."""
    told = (
        "is a folder, not a file" if path.is_dir() else "is a pipe or a device" if path.exists() else "there is no such file"
    )
    return DataError(f"{path}: {told}.", "Check the path.")
