"""What a panel shows: its queries' answers as named series, or as the rows of a table, joined and named as Grafana does."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from veilsum_deploy.dashboards.checking import ask
from veilsum_deploy.dashboards.filling import Window
from veilsum_deploy.dashboards.prometheus import Prometheus, Series
from veilsum_deploy.dashboards.reading import Panel, Target


@dataclass(frozen=True)
class Named:
    """A series as a panel shows it.

    Attributes:
        name: from the query's legend.
        config: unit, decimals, mappings and thresholds, with the overrides for this name.
    """

    name: str
    series: Series
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """A table: columns with their configuration, and rows of texts and numbers."""

    columns: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    rows: tuple[tuple[str | float, ...], ...] = ()


@dataclass(frozen=True)
class Filled:
    """A panel with its data."""

    panel: Panel
    series: tuple[Named, ...] = ()
    grid: Grid = field(default_factory=Grid)


def fetch(panel: Panel, choice: Mapping[str, str], prometheus: Prometheus, window: Window) -> Filled:
    """Run a panel's queries.

    Raises:
        HostileInput, StateError: Prometheus refuses one, or does not answer.
    """
    found = [
        (target, ask(prometheus, window.fill(target.expr, choice), window, instant=target.instant)) for target in panel.targets
    ]
    if panel.kind == "table":
        return Filled(panel, grid=_grid(panel, found))
    named = []
    for target, series in found:
        for each in series:
            name = _name(target.legend, each.labels, panel.title)
            named.append(Named(name, each, field_config(panel, name)))
    return Filled(panel, tuple(named))


def field_config(panel: Panel, name: str) -> dict[str, Any]:
    """Configuration of the field called ``name``: the panel's defaults and what overrides them."""
    config = dict(panel.defaults)
    for override in panel.overrides:
        if override["matcher"] == {"id": "byName", "options": name}:
            config.update({item["id"]: item["value"] for item in override["properties"]})
    return config


def _name(legend: str, labels: Mapping[str, str], title: str) -> str:
    if legend == "__auto":
        return " ".join(labels.values()) or title
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend).strip()


def _grid(panel: Panel, found: Sequence[tuple[Target, Sequence[Series]]]) -> Grid:
    """Merge the answers on the labels that they share, then leave out, order and rename columns."""
    rows: dict[tuple[tuple[str, str], ...], dict[str, str | float]] = {}
    for target, series in found:
        column = f"Value #{target.letter}" if len(found) > 1 else "Value"
        for each in series:
            row = rows.setdefault(tuple(sorted(each.labels.items())), dict(each.labels))
            row[column] = each.last
    organize: Mapping[str, Any] = next((item["options"] for item in panel.transformations if item["id"] == "organize"), {})
    names = {name for row in rows.values() for name in row if not organize.get("excludeByName", {}).get(name)}
    order, renamed = organize.get("indexByName", {}), organize.get("renameByName", {})
    chosen = sorted(names, key=lambda name: (order.get(name, len(order)), name))
    columns = tuple((renamed.get(name, name), field_config(panel, renamed.get(name, name))) for name in chosen)
    texts = {name for row in rows.values() for name, value in row.items() if isinstance(value, str)}
    filled = [tuple(row.get(name, "" if name in texts else math.nan) for name in chosen) for row in rows.values()]
    for sort in reversed(panel.options.get("sortBy") or ()):
        index = next((index for index, (title, _) in enumerate(columns) if title == sort["displayName"]), None)
        if index is not None:
            filled = sorted(filled, key=lambda row: row[index], reverse=bool(sort.get("desc")))
    return Grid(columns, tuple(filled))
