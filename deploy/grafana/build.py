"""Writes the dashboards' JSON, as Grafana 11.6 and later is provisioned with it, from the tables in ``panels``.

A panel's table says its kind (``stat``, ``gauge``, ``bars``, ``lines``, ``states`` or ``table``), title, description,
query, and where it differs from others of its kind: unit, decimals, how it is ``rounded`` to these (``up`` as costs
are, ``down`` as what is left is), size in the grid of 24 columns, ``steps`` (colours from these values on), ``words``
(text and colour of exact values), runbooks. Panels are laid out row by row in their order.
"""

import argparse
import json
import string
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PANELS, DASHBOARDS = HERE / "panels", HERE / "dashboards"
BOARDS = ("rounds", "budgets", "participant")
DATASOURCE = "veilsum-prometheus"
"""Uid of the provisioned datasource, which the variable ``datasource`` starts with."""

TAG = "veilsum"
RUNBOOKS = "https://intranet.example/veilsum/runbooks"
"""Where docs/runbooks is served unless it is said otherwise when the dashboards are written."""

Table = Mapping[str, Any]
Json = dict[str, Any]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_LINK = {"asDropdown": False, "includeVars": False, "keepTime": False, "tags": [], "targetBlank": False}
_VARIABLE = {"allowCustomValue": True, "auto": False, "auto_count": 30, "auto_min": "10s", "skipUrlSync": False}
_LAST = {"reduceOptions": {"calcs": ["lastNotNull"]}}
_LEGEND = {"displayMode": "list", "placement": "bottom"}

KINDS: Mapping[str, tuple[str, tuple[int, int], Json, Json]] = {
    "stat": (
        "stat",
        (3, 4),
        {},
        {
            **_LAST, "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto",
            "percentChangeColorMode": "standard", "showPercentChange": False, "textMode": "value", "wideLayout": True,
        },
    ),
    "gauge": (
        "gauge",
        (12, 7),
        {"min": 0},
        {
            **_LAST, "minVizHeight": 75, "minVizWidth": 75, "orientation": "auto", "showThresholdLabels": False,
            "showThresholdMarkers": True, "sizing": "auto",
        },
    ),
    "bars": (
        "bargauge",
        (8, 8),
        {"min": 0},
        {
            **_LAST, "displayMode": "basic", "legend": {**_LEGEND, "calcs": [], "showLegend": False}, "maxVizHeight": 300,
            "minVizHeight": 16, "minVizWidth": 8, "namePlacement": "auto", "orientation": "horizontal", "showUnfilled": True,
            "sizing": "auto", "valueMode": "color",
        },
    ),
    "lines": (
        "timeseries",
        (8, 8),
        {"min": 0, "custom": {"fillOpacity": 8, "lineWidth": 1.5, "showPoints": "never"}},
        {
            "legend": {**_LEGEND, "calcs": ["lastNotNull"], "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    ),
    "states": (
        "state-timeline",
        (12, 8),
        {"custom": {"fillOpacity": 75, "lineWidth": 0}},
        {
            "alignValue": "left", "legend": {**_LEGEND, "calcs": [], "showLegend": True}, "mergeValues": True, "perPage": 20,
            "rowHeight": 0.8, "showValue": "never", "tooltip": {"mode": "single", "sort": "asc"},
        },
    ),
    "table": (
        "table",
        (24, 8),
        {"custom": {"align": "auto", "inspect": False}},
        {
            "cellHeight": "sm", "footer": {"countRows": False, "reducer": [], "show": False}, "frameIndex": 0,
            "showHeader": True, "showTypeIcons": False,
        },
    ),
}  # fmt: skip
"""For each kind of panel: Grafana's name, width and height, and the field defaults and options that all of them have."""


class _Expression(string.Template):
    """A query in which ``%name`` stands for a term; ``$`` is Grafana's."""

    delimiter = "%"


class Builder:
    """Builds one dashboard.

    Args:
        terms: parts of queries that dashboards share, by name.
        runbooks: URL that the alerts' runbooks lie under.
    """

    def __init__(self, board: Table, terms: Mapping[str, str], runbooks: str) -> None:
        self._board, self._runbooks = board, runbooks
        self._terms = {**terms, **board["terms"]}

    def build(self) -> Json:
        """The dashboard as Grafana reads it."""
        board = self._board
        others = {"icon": "external link", "title": TAG, "tooltip": "The other dashboards of veilsum", "type": "dashboards"}
        return {
            "annotations": {},
            "description": board["description"],
            "editable": True,
            "fiscalYearStartMonth": 0,
            "graphTooltip": 1,
            "links": [{**_LINK, **others, "keepTime": True, "tags": [TAG]}],
            "panels": self._placed(),
            "refresh": board["refresh"],
            "schemaVersion": 41,
            "tags": [TAG],
            "templating": {"list": self._variables()},
            "time": {"from": board["since"], "to": "now"},
            "timezone": "browser",
            "title": board["title"],
            "uid": board["uid"],
        }

    def _fill(self, expr: str) -> str:
        while "%" in expr:
            expr = _Expression(expr).substitute(self._terms)
        return expr

    def _query(self, table: Table) -> str:
        """A panel's query, rounded before Grafana rounds it to nearest, where its table says so."""
        expr = self._fill(table["query"])
        if "rounded" not in table:
            return expr
        function, scale = {"up": "ceil", "down": "floor"}[table["rounded"]], 10 ** table["decimals"]
        return f"{function}({scale} * ({expr})) / {scale}" if scale > 1 else f"{function}({expr})"

    def _variables(self) -> list[Json]:
        one = {**_VARIABLE, "includeAll": False, "multi": False}
        source = {
            "name": "datasource",
            "label": "Datasource",
            "description": "The Prometheus that scrapes veilsum.",
            "type": "datasource",
            "query": "prometheus",
            "current": {"selected": True, "text": DATASOURCE, "value": DATASOURCE},
        }
        where = {
            "name": "runbooks",
            "label": "Runbooks",
            "description": "Where docs/runbooks is served: panels link to its pages.",
            "type": "constant",
            "query": self._runbooks,
            "hide": 2,
        }
        return [{**one, **source}, *map(self._variable, self._board["variables"]), {**one, **where}]

    def _variable(self, table: Table) -> Json:
        """A variable whose values Prometheus knows; with ``many`` several may be chosen, at first all."""
        many = table.get("many", True)
        query = self._fill(table["query"])
        return {
            **_VARIABLE,
            **{key: table[key] for key in ("name", "label", "description")},
            "type": "query",
            "datasource": _SOURCE,
            "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
            "hide": 0,
            "includeAll": many,
            "multi": many,
            "refresh": 2,
            "sort": 1,
            **({"current": {"selected": True, "text": ["All"], "value": ["$__all"]}} if many else {}),
        }

    def _placed(self) -> list[Json]:
        made: list[Json] = []
        top = 0
        for row in self._board["rows"]:
            place = {"x": 0, "y": top, "w": 24, "h": 1}
            made.append({"type": "row", "title": row["title"], "collapsed": False, "panels": [], "gridPos": place})
            top, left, tall = top + 1, 0, 0
            for table in row["panels"]:
                width, height = table.get("size", KINDS[table["kind"]][1])
                if left + width > 24:
                    top, left, tall = top + tall, 0, 0
                made.append({**self._panel(table), "gridPos": {"x": left, "y": top, "w": width, "h": height}})
                left, tall = left + width, max(tall, height)
            top += tall
        return [{**panel, "id": number} for number, panel in enumerate(made, 1)]

    def _panel(self, table: Table) -> Json:
        kind, _, defaults, options = KINDS[table["kind"]]
        columns = [column for column in table.get("columns", ()) if "query" in column]
        several: list[Table] = [{**table, "query": expr, "legend": legend} for expr, legend in table.get("queries", ())]
        queries = columns or several or [table]
        made = {
            "type": kind,
            "title": table["title"],
            "description": table["description"],
            "datasource": _SOURCE,
            "links": [_runbook(name) for name in table.get("runbooks", ())],
            "repeatDirection": "h",
            "transparent": False,
            "targets": [self._target(kind, "ABCDEFGHIJ"[index], query) for index, query in enumerate(queries)],
        }
        if kind == "table":
            sort = {"displayName": table["sort"], **({"desc": True} if table.get("descending") else {"desc": False})}
            return {**made, **_columns(table["columns"], defaults), "options": {**options, "sortBy": [sort]}}
        if kind == "stat" and len(queries) > 1:
            options = {**options, "textMode": "value_and_name"}
        return {**made, "fieldConfig": _fields(kind, table, defaults), "options": options}

    def _target(self, kind: str, letter: str, table: Table) -> Json:
        instant = kind not in ("timeseries", "state-timeline")
        return {
            "refId": letter,
            "expr": self._query(table),
            "legendFormat": table.get("legend", "__auto"),
            "format": "table" if kind == "table" else "time_series",
            "instant": instant,
            "range": not instant,
            "editorMode": "code",
            "datasource": _SOURCE,
        }


def _runbook(name: str) -> Json:
    title = f"Runbook: {name.replace('-', ' ')}"
    made = {"icon": "doc", "targetBlank": True, "title": title, "tooltip": title, "type": "link"}
    return {**_LINK, **made, "url": f"${{runbooks}}/{name}.md"}


def _steps(text: str) -> Json:
    """Thresholds of ``green, 0.8 orange``: a colour, and others from these values on."""
    steps: list[Json] = []
    for part in text.split(", "):
        value, _, colour = part.rpartition(" ")
        steps.append({"color": colour, "value": json.loads(value or "null")})
    return {"mode": "absolute", "steps": steps}


def _words(words: Mapping[str, Sequence[str]]) -> list[Json]:
    options = {
        value: {"text": text, "color": colour, "index": index} for index, (value, (text, colour)) in enumerate(words.items())
    }
    return [{"type": "value", "options": options}]


def _fields(kind: str, table: Table, defaults: Json) -> Json:
    """Field configuration of a panel that is not a table."""
    made = {**defaults, **{key: table[key] for key in ("decimals", "max") if key in table}}
    overrides: list[Json] = []
    if kind == "timeseries":
        made["color"] = {"mode": "palette-classic"}
        custom = dict(defaults["custom"])
        if table.get("stacked"):
            custom.update(fillOpacity=30, stacking={"group": "A", "mode": "normal"})
        if "steps" in table:
            made["thresholds"] = _steps(table["steps"])
            custom["thresholdsStyle"] = {"mode": "dashed"}
        made["custom"] = custom
        for name, colour in table.get("colours", {}).items():
            fixed = {"id": "color", "value": {"fixedColor": colour, "mode": "fixed"}}
            overrides.append({"matcher": {"id": "byName", "options": name}, "properties": [fixed]})
    else:
        made["color"] = {"mode": "thresholds"}
        made["thresholds"] = _steps(table.get("steps", {"stat": "green", "bargauge": "blue"}.get(kind, "text")))
        if "words" in table:
            made["mappings"] = _words(table["words"])
    if kind != "state-timeline":
        made["unit"] = table.get("unit", "none")
    return {"defaults": made, "overrides": overrides}


def _columns(columns: Sequence[Table], defaults: Json) -> Json:
    """Field configuration and transformations of a table: its rows are joined on the labels that the queries share."""
    several = sum("query" in column for column in columns) > 1
    letters = iter("ABCDEFGHIJ")
    names = [column.get("label") or (f"Value #{next(letters)}" if several else "Value") for column in columns]
    overrides = []
    for column in columns:
        properties = [{"id": key, "value": column[key]} for key in ("unit", "decimals") if key in column]
        if "words" in column:
            properties.append({"id": "mappings", "value": _words(column["words"])})
        if "steps" in column:
            properties.append({"id": "thresholds", "value": _steps(column["steps"])})
        if "words" in column or "steps" in column:
            properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
        if properties:
            overrides.append({"matcher": {"id": "byName", "options": column["title"]}, "properties": properties})
    hidden = {name: True for name, column in zip(names, columns, strict=True) if column.get("hidden")}
    organize = {
        "excludeByName": {"Time": True, **hidden},
        "indexByName": {name: index for index, name in enumerate(names)},
        "renameByName": {name: column["title"] for name, column in zip(names, columns, strict=True)},
    }
    return {
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}],
    }


def texts(runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Text of every dashboard's file, by the file's name."""
    terms = _read("terms")
    made = [Builder(_read(name), terms, runbooks).build() for name in BOARDS]
    return {f"{board['uid']}.json": json.dumps(board, indent=2, sort_keys=True) + "\n" for board in made}


def _read(name: str) -> Table:
    return tomllib.loads((PANELS / f"{name}.toml").read_text(encoding="utf-8"))


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(prog="python -m grafana.build", description="Write the dashboards' JSON files.")
    parser.add_argument("--out", type=Path, default=DASHBOARDS, help="where the files go (default: %(default)s)")
    parser.add_argument("--runbooks", default=RUNBOOKS, help="URL that docs/runbooks is served under (default: %(default)s)")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name, text in texts(given.runbooks.rstrip("/")).items():
        (given.out / name).write_text(text, encoding="utf-8")
        print(given.out / name)


if __name__ == "__main__":
    main()
