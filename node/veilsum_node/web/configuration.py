"""A configuration as a page shows it: every key that holds, its value, and the file and line that says so."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from veilsum_node.overrides import Loaded, effective


def setting_rows(loaded: Loaded[Any], path: Path) -> list[dict[str, str]]:
    """Rows of key, value and source, first what is set; secrets are hidden."""
    lines = key_lines(path.read_text(encoding="utf-8"))
    rows = []
    for key, value, source in effective(loaded):
        number = next((lines[key[:end]] for end in range(len(key), 0, -1) if key[:end] in lines), None)
        where = f"{path.name}, line {number}" if source == "file" and number else source
        rows.append({"key": ".".join(key), "value": _text(value), "set in": where})
    return sorted(rows, key=lambda row: row["set in"] == "default")


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line on which each key of a TOML file begins.

    A line belongs to the keys that the file gains by it: what is read up to there is read again, so that strings and lists of
    many lines, dotted keys and inline tables are TOML's own affair.
    """
    found: dict[tuple[str, ...], int] = {}
    lines, begun, seen = text.splitlines(), 1, 0
    for number in range(1, len(lines) + 1):
        try:
            table = tomllib.loads("\n".join(lines[:number]) + "\n")
        except tomllib.TOMLDecodeError:
            continue  # within a value of several lines, which begins where the last whole part ended
        keys = _keys(table)
        if len(keys) > seen:
            for key in keys:
                found.setdefault(key, begun)
            seen = len(keys)
        begun = number + 1
    return found


def _keys(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, value in table.items():
        found.append((*above, name))
        if isinstance(value, Mapping):
            found += _keys(value, (*above, name))
    return found


def _text(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    return str(value) if isinstance(value, str | Path) else json.dumps(value)
