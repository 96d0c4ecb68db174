"""Read a dataset's schema from a TOML file. It says nothing about the data itself."""

from __future__ import annotations

from pathlib import Path

from veilsum_node.config import load_toml
from veilsum_privacy.study.schema import DatasetSchema


def load_schema(path: Path) -> DatasetSchema:
    """Load a schema.

    Raises:
        ConfigurationError: the file cannot be read or is not a valid schema; the message names file and keys.
    """
    return load_toml(path, DatasetSchema)
