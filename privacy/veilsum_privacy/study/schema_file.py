"""Read a dataset's schema from a TOML file. It says nothing about the data itself."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from veilsum_node.config import did_you_mean, read_toml, refuse_zeros, validate
from veilsum_node.errors import ConfigurationError, raising
from veilsum_node.identity.files import read_file, stated_file
from veilsum_privacy.study.schema import MAX_CODES, DatasetSchema

MAX_BYTES = 1 << 24
"""Bytes of a file of groups."""

_HEADER = ["code", "group"]
_FORM = 'A file of groups is CSV: a line "code,group", then a line for each code or range, such as "E10..E14,diabetes".'


def load_schema(path: Path) -> DatasetSchema:
    """Load a schema, with the groups of codes that lie in files beside it.

    Raises:
        ConfigurationError: a file cannot be read or is not valid; the message names file and keys.
    """
    return validate(with_groups(read_toml(path), path.parent, str(path)), DatasetSchema, source=str(path))


def with_groups(schema: Mapping[str, Any], base: Path, source: str) -> Mapping[str, Any]:
    """A schema as parsed, in which groups of codes stand in place of the file that holds them.

    Args:
        schema: unchecked; of a column ``groups = {file = "groups.csv", sha256 = "..."}`` is replaced; the digest is optional.
        base: directory that the files' paths are relative to.
        source: what the schema stands in, for messages.

    Raises:
        ConfigurationError: a file of groups cannot be read, is none, or is another than its digest says.
    """
    columns = schema.get("columns")
    if not isinstance(columns, list):
        return schema
    return {**schema, "columns": [_with_groups(column, base, source) for column in columns]}


def _with_groups(column: Any, base: Path, source: str) -> Any:
    if not isinstance(column, dict) or not isinstance(named := column.get("groups"), dict):
        return column
    refuse_zeros(named, source)
    where = f"{source}, column {column.get('name')!r}, groups"
    if unknown := sorted(named.keys() - {"file", "sha256"}):
        raise ConfigurationError(f"{where}: unknown key {unknown[0]!r}.", did_you_mean(unknown[0], ("file", "sha256")))
    if not all(isinstance(named.get(key, ""), str) for key in ("file", "sha256")) or not named.get("file"):
        raise ConfigurationError(f"{where}: `file` is missing or no text.", _FORM)
    return {**column, "groups": _read_groups(base / named["file"], named.get("sha256"))}


def _read_groups(path: Path, sha256: str | None) -> list[dict[str, Any]]:
    """The groups of a file, in the order of their first codes."""
    if sha256 is None:
        data = read_file(path, "file of groups", advice=_FORM, most=MAX_BYTES)
    else:
        data = stated_file(
            path, "file of groups", sha256, by="the schema states", advice="Get the file that it means.", most=MAX_BYTES
        )
    with raising(ConfigurationError(f"{path} is not CSV in UTF-8.", _FORM), on=(UnicodeDecodeError, csv.Error)):
        rows = [row for row in csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True) if row]
    if not rows or [cell.strip().lower() for cell in rows[0]] != _HEADER:
        raise ConfigurationError(f"{path}: its first line is not code,group.", _FORM)
    if len(rows) > MAX_CODES + 1:
        raise ConfigurationError(f"{path} has more than {MAX_CODES:,} codes.", "A code stands for all below it.")
    groups: dict[str, dict[str, None]] = {}
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(_HEADER) or not all(len(cell.strip().splitlines()) == 1 for cell in row):
            raise ConfigurationError(f"{path}: its record {number} is not a code and a group.", _FORM)
        groups.setdefault(row[1].strip(), {})[row[0].strip()] = None
    return [{"name": name, "codes": list(codes)} for name, codes in groups.items()]
