"""The dashboards as they are written: complete, laid out, of known metrics only, and what is filled in when they are asked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from grafana.build import DASHBOARDS, DATASOURCE, TAG, texts
from grafana.check import NOT_A_NUMBER, CheckError, Prometheus, Window, any_of, check, label_values, read_boards
from support.federation import make_bed
from support.tools import need_tool
from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_participant.telemetry.metrics import SiteMetrics

ROOT = DASHBOARDS.parents[2]
UIDS = ("veilsum-rounds", "veilsum-budgets", "veilsum-participant")
OF_PROMETHEUS = {"up"}  # which Prometheus itself adds for every target
BOARDS = {board["uid"]: board for board in read_boards()}
PANELS = [
    pytest.param(panel, id=f"{uid}/{panel['title']}")
    for uid, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]
TARGETS = [(board, target) for board in BOARDS.values() for panel in board["panels"] for target in panel.get("targets", ())]
VARIABLES = {uid: [item for item in board["templating"]["list"] if item["type"] == "query"] for uid, board in BOARDS.items()}

_TEXT = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')
_LISTS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_MATCHERS = re.compile(r"\{[^}]*\}|\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)(?!\s*\(|[\w:])")
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}


def metric_names(expr: str) -> set[str]:
    """Names of the metrics that an expression asks for: all words but functions, labels, operators and texts."""
    bare = _MATCHERS.sub(" ", _TEXT.sub('""', expr))
    return {name for name in _NAME.findall(_LISTS.sub(" ", bare)) if name.lower() not in _WORDS}


def sample_names(registry: CollectorRegistry) -> dict[str, set[str]]:
    """Names of a registry's samples, with the labels that they were seen with."""
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for ending in endings.get(family.type, ("",)):
            found.setdefault(family.name + ending, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """All metrics of both roles."""
    records = np.zeros((4, 2)), np.zeros(4, dtype=np.int64)
    bed = make_bed(tmp_path_factory.mktemp("bed"), {"north": records, "east": records}, budget=(1.0, 1e-5))
    where = bed.kit.coordinator.directory
    config = CoordinatorConfig(listen="localhost:0", identity=bed.kit.coordinator.identity, state=where / "state")
    server = CoordinatorServer(config, clock=bed.clock)
    server.open()
    return {**sample_names(server.metrics.registry), **sample_names(SiteMetrics(bed.sites["north"]).registry)}


# -- the files -------------------------------------------------------------------------------------------------------------


def test_the_files_are_what_the_tables_say() -> None:
    built = texts()
    assert {path.name for path in DASHBOARDS.iterdir()} == set(built) == {f"{uid}.json" for uid in UIDS}
    for name, text in built.items():
        written = (DASHBOARDS / name).read_text(encoding="utf-8")
        assert written == text, f"{name} is stale: run python -m grafana.build"


def test_runbooks_can_be_served_elsewhere(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "grafana.build", "--out", str(tmp_path), "--runbooks", "https://wiki.example/veilsum/"]
    subprocess.run(words, check=True, capture_output=True, timeout=240)
    boards = read_boards(tmp_path)
    assert {board["uid"] for board in boards} == set(UIDS)
    for board in boards:
        (where,) = (item["query"] for item in board["templating"]["list"] if item["name"] == "runbooks")
        assert where == "https://wiki.example/veilsum"


def test_grafana_finds_datasource_folder_and_files() -> None:
    provisioning = DASHBOARDS.parent / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "veilsum.yml").read_text())["datasources"]
    assert (source["uid"], source["type"]) == (DATASOURCE, "prometheus")
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "veilsum.yml").read_text())["providers"]
    assert (provider["folder"], provider["type"]) == ("veilsum", "file")
    for uid in UIDS:
        content = BOARDS[uid]
        (chosen,) = [item["current"]["value"] for item in content["templating"]["list"] if item["type"] == "datasource"]
        assert chosen == source["uid"]
        assert {panel["datasource"]["uid"] for panel in content["panels"] if panel["type"] != "row"} == {"${datasource}"}
        assert content["tags"] == [TAG]
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    mounts = {mount["source"]: mount["target"] for mount in compose["services"]["grafana"]["volumes"]}
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in compose["services"]


def test_the_page_names_every_row_of_every_dashboard() -> None:
    page = (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
    for board in BOARDS.values():
        _, found, part = page.partition(f"\n## {board['title']}\n")
        assert found, board["title"]
        part = part.partition("\n## ")[0]
        rows = {panel["title"] for panel in board["panels"] if panel["type"] == "row"}
        assert set(re.findall(r"\*\*([^*]+?)\.?\*\*", part)) == rows


# -- panels ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_says_what_it_shows_in_which_unit(panel: Mapping[str, Any]) -> None:
    assert len(panel["description"]) > 20
    assert panel["description"].endswith(".")
    targets, defaults = panel["targets"], panel["fieldConfig"]["defaults"]
    assert [target["refId"] for target in targets] == list("ABCDEFGHIJ"[: len(targets)])
    if panel["type"] == "table":
        (columns,) = (item["options"]["renameByName"] for item in panel["transformations"] if item["id"] == "organize")
        values = {title for field, title in columns.items() if field.startswith("Value")}
        overrides = panel["fieldConfig"]["overrides"]
        units = {item["matcher"]["options"] for item in overrides if any(one["id"] == "unit" for one in item["properties"])}
        assert values == units
        assert len(values) == len(targets)
        assert all(sort["displayName"] in columns.values() for sort in panel["options"]["sortBy"])
    elif panel["type"] == "state-timeline":
        assert defaults["mappings"]
    else:
        assert defaults["unit"]
    if panel["type"] in ("stat", "gauge", "bargauge"):
        first, *others = (step["value"] for step in defaults["thresholds"]["steps"])
        assert first is None
        assert others == sorted(others)
    instant = panel["type"] in ("stat", "gauge", "bargauge", "table")
    assert {target["instant"] for target in targets} == {instant}


def _shown_values() -> list[Any]:
    """Every query with the unit and decimals that its values are shown in."""
    found = []
    for place in PANELS:
        (panel,) = place.values
        fields = panel["fieldConfig"]
        own = {
            item["matcher"]["options"]: {one["id"]: one.get("value") for one in item["properties"]}
            for item in fields["overrides"]
        }
        organized = [item["options"]["renameByName"] for item in panel.get("transformations", ()) if item["id"] == "organize"]
        titles = organized[0] if organized else {}
        for target in panel["targets"]:
            shown = own.get(titles.get(f"Value #{target['refId']}", titles.get("Value")), fields["defaults"])
            found.append(pytest.param(target["expr"], shown, id=f"{place.id}/{target['refId']}"))
    return found


ROUNDED = re.compile(r"(ceil|floor)\((?:(\d+) \* \((.*)\)\) / (\d+)|(.*)\))", re.DOTALL)


@pytest.mark.parametrize(("expr", "shown"), _shown_values())
def test_a_cost_is_shown_rounded_up_and_what_is_left_rounded_down(expr: str, shown: Mapping[str, Any]) -> None:
    """Grafana rounds to nearest: what it is given has the decimals already. Shares and numbers of budgets are neither."""
    spent = bool(metric_names(expr) & {"veilsum_epsilon_spent", "veilsum_epsilon_reserved", "veilsum_epsilon_released"})
    days = shown.get("unit") == "suffix: d"
    left = days or (metric_names(expr) == {"veilsum_epsilon_left"} and "count(" not in expr)
    if not left and (not spent or shown.get("unit") == "percentunit" or "count(" in expr):
        return
    found = ROUNDED.fullmatch(expr)
    assert found is not None
    function, scale, _, again, _ = found.groups()
    assert function == ("floor" if left else "ceil")
    assert (scale or "1", again or "1") == (str(10 ** shown["decimals"]),) * 2
    assert shown["decimals"] == (0 if days else 3)


@pytest.mark.parametrize("uid", UIDS)
def test_panels_lie_in_the_grid_and_on_no_other(uid: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    panels = BOARDS[uid]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]
    bottom = max(y for _, y in taken) + 1
    assert set(taken) == {(x, y) for x in range(24) for y in range(bottom)}, "a row of panels leaves a hole"


def test_links_lead_to_runbooks() -> None:
    links = {link["url"] for board in BOARDS.values() for panel in board["panels"] for link in panel.get("links", ())}
    assert len(links) >= 8
    for link in links:
        name = re.fullmatch(r"\$\{runbooks\}/([a-z0-9-]+\.md)", link)
        assert name, link
        assert (ROOT / "docs" / "runbooks" / name[1]).is_file(), name[1]


def test_budgets_warn_where_their_alerts_do() -> None:
    dials = [panel for board in BOARDS.values() for panel in board["panels"] if panel["type"] == "gauge"]
    assert len(dials) == 3
    for panel in dials:
        defaults = panel["fieldConfig"]["defaults"]
        assert [step["value"] for step in defaults["thresholds"]["steps"]] == [None, 0.8, 0.95]
        assert defaults["max"] == 1


# -- queries ---------------------------------------------------------------------------------------------------------------


def test_queries_ask_only_for_metrics_that_exist(metrics: dict[str, set[str]]) -> None:
    for board, target in TARGETS:
        names = metric_names(target["expr"])
        assert names, target["expr"]
        assert names <= set(metrics) | OF_PROMETHEUS, f"{board['uid']}: {target['expr']}"
    for variables in VARIABLES.values():
        for variable in variables:
            assert metric_names(label_values(variable["query"]["query"])[0]) <= set(metrics)


def test_every_query_is_promql(tmp_path: Path) -> None:
    promtool, window = need_tool("promtool"), Window(0, 3600, 15)
    rules = [{"record": f"query:{n}", "expr": window.fill(target["expr"], {})} for n, (_, target) in enumerate(TARGETS)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    words = [promtool, "check", "rules", "--lint=none", tmp_path / "rules.yml"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert f"{len(TARGETS)} rules found" in done.stdout


def test_both_roles_metrics_are_shown(metrics: dict[str, set[str]]) -> None:
    asked = {name for _, target in TARGETS for name in metric_names(target["expr"])}
    shown_otherwise = {"veilsum_shared_step_seconds"}
    missing = {name for name in metrics if not name.endswith(("_sum", "_count"))} - asked - shown_otherwise
    assert not missing, "metrics that no panel shows"


def test_legends_and_groups_use_labels_that_the_metrics_have(metrics: dict[str, set[str]]) -> None:
    known = {"site", "instance", "job", "participant", "dataset", "population", "software", "step", "le"}
    known |= {label for labels in metrics.values() for label in labels}
    for board, target in TARGETS:
        expr = target["expr"]
        used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        used |= {word for group in re.findall(r"\bby \(([^)]*)\)", expr) for word in re.split(r",\s*", group)}
        used |= set(re.findall(r'(\w+)=~?"', expr))
        assert used <= known, expr
        variables = set(re.findall(r"\$\{?(\w+)\}?", expr))
        assert variables <= {item["name"] for item in VARIABLES[board["uid"]]} | {"__range", "__rate_interval"}


@pytest.mark.parametrize(
    ("expr", "names"),
    [
        ("up", {"up"}),
        ('sum by (le, phase) (rate(a_bucket{x="b_total"}[5m]))', {"a_bucket"}),
        ("histogram_quantile(0.95, a) / on (site) group_left (job) b{c='d{e}'} or vector(0)", {"a", "b"}),
        ("(time() - a) * (a > bool 0) unless b offset 5m", {"a", "b"}),
        ("max(a:b:rate5m) + 1e-9 + Inf", {"a:b:rate5m"}),
        ("clamp_max(a[7d:1h], 1e6) ", {"a"}),
    ],
)
def test_metric_names_of_an_expression(expr: str, names: set[str]) -> None:
    assert metric_names(expr) == names


def test_a_variable_of_another_form_is_refused() -> None:
    assert label_values('label_values(a{b="c, d"}, site)') == ('a{b="c, d"}', "site")
    with pytest.raises(CheckError, match="label_values"):
        label_values("query_result(a)")


# -- filling in ------------------------------------------------------------------------------------------------------------


class Canned(Prometheus):
    """A Prometheus that knows labels' values, and one number for every query."""

    def __init__(self, known: dict[str, list[str]]) -> None:
        super().__init__("http://localhost")
        self.known, self.asked = known, list[str]()

    def get(self, path: str, asked: Mapping[str, str]) -> Any:
        if path.startswith("label/"):
            self.asked.append(asked["match[]"])
            return self.known.get(path.split("/")[1], [])
        self.asked.append(asked["query"])
        if "bad" in asked["query"]:
            raise ValueError("bad_data: parse error")
        return {"result": [{"metric": {}, "value": [0, "NaN" if "empty" in asked["query"] else "1"]}]}


def board_of(*expressions: str, **queries: tuple[str, bool]) -> dict[str, Any]:
    variables = [
        {"type": "query", "name": name, "query": {"query": query}, "includeAll": every}
        for name, (query, every) in queries.items()
    ]
    targets = [{"expr": expr, "instant": True} for expr in expressions]
    return {"title": "board", "panels": [{"title": "panel", "targets": targets}], "templating": {"list": variables}}


def test_all_values_or_each_of_them() -> None:
    prometheus = Canned({"site": ["a.b", "c"], "population": ["p"]})
    chosen, then = ("label_values(m, site)", True), ('label_values(m{site=~"$site"}, population)', True)
    answers = check([board_of('m{s="$site$population"}', site=chosen, population=then)], prometheus, Window(0, 60, 1))
    assert prometheus.asked == ["m", r'm{site=~"(a\\.b|c)"}', r'm{s="(a\\.b|c)p"}']
    assert all(answer.series == 1 for answer in answers)
    prometheus.asked.clear()
    check([board_of("$site", site=("label_values(m, site)", False))], prometheus, Window(0, 60, 1))
    assert prometheus.asked == ["m", "a.b", "c"]
    answers = check([board_of(x=("label_values(m, x)", True))], prometheus, Window(0, 60, 1))
    assert [(answer.panel, answer.series) for answer in answers] == [("variable x", 0)]


def test_what_is_empty_or_refused_is_told() -> None:
    by_design = f"empty {NOT_A_NUMBER[0]}"
    answers = check([board_of("m", "empty", "bad", by_design)], Canned({}), Window(0, 60, 1))
    assert [(answer.expr, answer.series, answer.fault) for answer in answers] == [
        ("m", 1, ""),
        ("empty", 0, ""),
        ("bad", 0, "bad_data: parse error"),
        (by_design, 1, ""),
    ]


def test_a_prometheus_that_is_not_there_is_a_message() -> None:
    words = [sys.executable, "-m", "grafana.check", "--prometheus", "http://127.0.0.1:1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr


@given(
    st.text(alphabet=st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1).filter(lambda text: '"' not in text)
)
def test_a_value_is_matched_as_it_is(value: str) -> None:
    """Within a PromQL string ``\\\\`` is one backslash; what is left is a regular expression for the two values only."""
    other = value + "x"
    pattern = any_of([value, other]).replace("\\\\", "\\")
    assert re.fullmatch(pattern, value)
    assert re.fullmatch(pattern, other)
    assert not re.fullmatch(pattern, value + "y")


def test_windows_of_rates() -> None:
    hours = Window(0, 6 * 3600, 15)
    assert hours.step == 54
    assert Window(0, 300, 15).fill("$__rate_interval", {}) == "60s"  # four scrapes
    assert hours.fill("rate(a[$__rate_interval]) + b[${__range}] + $c", {"c": "7"}) == "rate(a[69s]) + b[21600s] + 7"
    assert hours.fill("$unknown", {}) == "$unknown"
