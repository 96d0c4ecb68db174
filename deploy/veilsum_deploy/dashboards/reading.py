"""The written dashboards as values: panels, queries and variables, read from the JSON that Grafana reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veilsum_node.errors import ConfigurationError

FOLDER = Path(__file__).parents[2] / "grafana" / "dashboards"
"""Where the dashboards lie in a checkout."""

UIDS = ("veilsum-rounds", "veilsum-budgets", "veilsum-participant")
"""Of the dashboards, in the order in which they are read."""

_TEXT = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')
_LISTS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_MATCHERS = re.compile(r"\{[^}]*\}|\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)(?!\s*\(|[\w:])")
_WORDS = {
    "and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right", "inf", "nan",
    "sum", "min", "max", "avg", "count", "group", "stddev", "stdvar", "topk", "bottomk", "quantile", "count_values",
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One query of a panel, as Grafana would send it after filling in its variables.

    Attributes:
        expr: PromQL with variables.
        legend: how a series is called; ``__auto`` for its labels.
        instant: asked for one moment, not for the time shown.
    """

    letter: str
    expr: str
    legend: str
    instant: bool


@dataclass(frozen=True)
class Panel:
    """A panel, or a row's title.

    Attributes:
        place: x, y, width and height in the grid of 24 columns.
        options, defaults, overrides, transformations: as Grafana names them.
    """

    title: str
    kind: str
    place: tuple[int, int, int, int]
    targets: tuple[Target, ...]
    description: str = ""
    links: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[Mapping[str, Any], ...] = ()
    transformations: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Variable:
    """A variable whose values are a label's; see :func:`label_values`.

    Attributes:
        all: whether all its values are chosen at first, else one of them.
    """

    name: str
    query: str
    all: bool


@dataclass(frozen=True)
class Board:
    """A dashboard."""

    uid: str
    title: str
    since: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...]


def read_boards(folder: Path = FOLDER) -> list[Board]:
    """Read all dashboards.

    Raises:
        ConfigurationError: one is missing or is no dashboard.
    """
    return [_read(folder / f"{uid}.json") for uid in UIDS]


def _read(path: Path) -> Board:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        variables = [item for item in content["templating"]["list"] if item["type"] == "query"]
        return Board(
            content["uid"],
            content["title"],
            content["time"]["from"],
            tuple(_panel(item) for item in content["panels"]),
            tuple(Variable(item["name"], item["query"]["query"], bool(item["includeAll"])) for item in variables),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        advice = "Run python -m veilsum_deploy.dashboards write in a checkout."
        raise ConfigurationError(f"{path} is no dashboard of veilsum ({type(error).__name__}).", advice) from error


def _panel(item: Mapping[str, Any]) -> Panel:
    grid, config = item["gridPos"], item.get("fieldConfig", {})
    return Panel(
        item["title"],
        item["type"],
        (grid["x"], grid["y"], grid["w"], grid["h"]),
        tuple(Target(each["refId"], each["expr"], each["legendFormat"], each["instant"]) for each in item.get("targets", ())),
        item.get("description", ""),
        tuple(link["url"] for link in item.get("links", ())),
        item.get("options", {}),
        config.get("defaults", {}),
        tuple(config.get("overrides", ())),
        tuple(item.get("transformations", ())),
    )


def queries(board: Board) -> Iterator[tuple[Panel, Target]]:
    """Every query of every panel."""
    for panel in board.panels:
        for target in panel.targets:
            yield panel, target


def metric_names(expr: str) -> set[str]:
    """Names of the metrics that an expression asks for: all words but functions, labels, operators and texts."""
    bare = _MATCHERS.sub(" ", _TEXT.sub('""', expr))
    return {name for name in _NAME.findall(_LISTS.sub(" ", bare)) if name.lower() not in _WORDS}


def label_values(query: str) -> tuple[str, str]:
    """Selector and label of a variable's query ``label_values(selector, label)``.

    Raises:
        ConfigurationError: it has another form.
    """
    found = re.fullmatch(r"label_values\((.+), *(\w+)\)", query)
    if found is None:
        raise ConfigurationError(f"The variable's query {query} is not label_values(selector, label).")
    return found[1], found[2]
