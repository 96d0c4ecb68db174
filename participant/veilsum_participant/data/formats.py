"""Which format a file has, by its name, and what may go wrong in reading one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veilsum_node.errors import DataError, VeilsumError
from veilsum_node.phrases import unreadable
from veilsum_participant.data.objects import reachable
from veilsum_participant.query import Bucket, TextFile

CHECK_FORMAT = "Is it really a CSV, Parquet or npz file, and whole?"

PARQUET = (".parquet", ".pq")
"""Suffixes of Parquet files."""


def is_csv(file: Path | Bucket | TextFile) -> bool:
    """Whether a file counts as CSV: all but Parquet and npz files do, by their suffix; a folder holds Parquet.

    In S3 an object of CSV ends in .csv.
    """
    if isinstance(file, Path):
        return file.suffix.lower() not in (*PARQUET, ".npz") and not file.is_dir()
    return isinstance(file, TextFile) or file.csv


def is_npz(file: Path | Bucket | TextFile) -> bool:
    """Whether a file is an archive of NumPy's arrays."""
    return isinstance(file, Path) and file.suffix.lower() == ".npz"


@contextmanager
def readable(file: Path | Bucket) -> Iterator[None]:
    """Turn what reading a file may raise into a DataError; or into Unavailable where a store is away."""
    try:
        if isinstance(file, Bucket):
            with reachable(file):
                yield
            return
        if (is_npz(file) or is_csv(file)) and not file.is_file():
            raise DataError(
                f"{file}: {'is a folder, not a file' if file.is_dir() else 'there is no such file'}.", "Check the path."
            )
        yield
    except OSError as error:
        advice = "Check path, user and permissions." if isinstance(error, PermissionError) else CHECK_FORMAT
        raise DataError(f"{file}: {unreadable(error)}.", advice) from error
    except VeilsumError:
        raise
    except Exception as error:  # what the formats' libraries raise is many things and undocumented
        form = ("CSV" if file.csv else "Parquet") if isinstance(file, Bucket) else file.suffix.lower() or "CSV"
        raise DataError(f"{file}: cannot be read as {form} ({type(error).__name__}).", CHECK_FORMAT) from error
