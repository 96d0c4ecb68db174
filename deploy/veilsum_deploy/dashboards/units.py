"""Numbers as Grafana writes them, for the units that the dashboards use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_SECONDS = ((1.0, "s"), (60.0, "min"), (3600.0, "hours"), (86400.0, "days"), (604800.0, "weeks"))
_SMALL = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
_BYTES = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))


def write(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit.

    Args:
        value: as the query returned it.
        unit: Grafana's id: none, s, percentunit, decbytes, Bps, sci, or ``suffix:`` and a word.
        decimals: how many; None chooses by the value's size.
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if unit == "s":
        return _seconds(value, decimals)
    if unit == "percentunit":
        return f"{_digits(100 * value, decimals)}%"
    if unit in ("decbytes", "Bps"):
        scaled, name = _scaled(value, _BYTES)
        return f"{_digits(scaled, decimals)} {name}{'/s' if unit == 'Bps' else ''}"
    if unit == "sci":
        return f"{value:.0e}" if value else "0"
    return f"{_digits(value, decimals)}{unit.removeprefix('suffix:') if unit.startswith('suffix:') else ''}"


def _seconds(value: float, decimals: int | None) -> str:
    if value and abs(value) < 1:
        scaled, name = _scaled(value, _SMALL)
    else:
        scaled, name = _scaled(value, _SECONDS)
    return f"{_digits(scaled, decimals)} {name}"


def _scaled(value: float, scale: Sequence[tuple[float, str]]) -> tuple[float, str]:
    size, name = next(((size, name) for size, name in reversed(scale) if abs(value) >= size), scale[0])
    return value / size, name


def _digits(value: float, decimals: int | None) -> str:
    """Two or three digits that count, unless it is said how many follow the point."""
    if decimals is None:
        size = abs(value)
        decimals = 0 if size >= 100 or value == round(value) else 1 if size >= 10 else 2 if size >= 0.1 else 3
        text = f"{value:.{decimals}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if not float(text) else text


def mapped(value: float, config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Text and colour that a field's mappings give a value, if any does."""
    for mapping in config.get("mappings") or ():
        if mapping["type"] == "value":
            for exact, result in mapping["options"].items():
                if float(exact) == value:
                    return result["text"], result["color"]
    return None


def threshold_colour(value: float, config: Mapping[str, Any]) -> str:
    """Colour that a field's thresholds give a value; none without thresholds, or for what is no number."""
    steps = (config.get("thresholds") or {}).get("steps") or ()
    if math.isnan(value):
        return ""
    colour = ""
    for step in steps:
        if step.get("value") is None or value >= step["value"]:
            colour = str(step["color"])
    return colour


def shown(value: float, config: Mapping[str, Any]) -> tuple[str, str]:
    """Text and colour of a value under a field's configuration."""
    found = mapped(value, config)
    if found is not None:
        return found
    return write(value, str(config.get("unit", "none")), config.get("decimals")), threshold_colour(value, config)
