"""The dashboards as they are written: complete, laid out, of known metrics only, and what is filled in when they are asked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from support.federation import make_bed
from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_deploy.dashboards import builders, writing
from veilsum_deploy.dashboards.filling import Window, choices
from veilsum_deploy.dashboards.prometheus import Prometheus
from veilsum_deploy.dashboards.reading import (
    FOLDER,
    UIDS,
    Board,
    Variable,
    label_values,
    metric_names,
    queries,
    read_boards,
)
from veilsum_node.errors import ConfigurationError
from veilsum_participant.telemetry.metrics import SiteMetrics

ROOT = FOLDER.parents[2]
OF_PROMETHEUS = {"up"}  # which Prometheus itself adds for every target
BOARDS = {board.uid: board for board in read_boards()}


def every_panel() -> list[Any]:
    return [pytest.param(panel, id=f"{uid}/{panel.title}") for uid, board in BOARDS.items() for panel in board.panels]


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


def test_the_files_are_what_the_code_writes() -> None:
    texts = writing.texts()
    assert {path.name for path in FOLDER.iterdir()} == set(texts) == {f"{uid}.json" for uid in UIDS}
    for name, text in texts.items():
        written = (FOLDER / name).read_text(encoding="utf-8")
        assert written == text, f"{name} is stale: run python -m veilsum_deploy.dashboards write"


def test_runbooks_can_be_served_elsewhere(tmp_path: Path) -> None:
    for path in writing.write(tmp_path, "https://wiki.example/veilsum"):
        constants = [item for item in json.loads(path.read_text())["templating"]["list"] if item["name"] == "runbooks"]
        assert [item["query"] for item in constants] == ["https://wiki.example/veilsum"]
    assert [board.uid for board in read_boards(tmp_path)] == list(UIDS)


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    writing.write(tmp_path)
    damaged = tmp_path / "veilsum-budgets.json"
    damaged.write_text("{}")
    with pytest.raises(ConfigurationError, match=r"veilsum-budgets\.json is no dashboard"):
        read_boards(tmp_path)
    with pytest.raises(ConfigurationError, match=r"veilsum-rounds\.json"):
        read_boards(tmp_path / "nowhere")


def test_grafana_finds_datasource_folder_and_files() -> None:
    provisioning = FOLDER.parent / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "veilsum.yml").read_text())["datasources"]
    assert (source["uid"], source["type"]) == (builders.DATASOURCE, "prometheus")
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "veilsum.yml").read_text())["providers"]
    assert (provider["folder"], provider["type"]) == ("veilsum", "file")
    for uid in UIDS:
        content = json.loads((FOLDER / f"{uid}.json").read_text())
        assert content["uid"] == uid
        (chosen,) = [item["current"]["value"] for item in content["templating"]["list"] if item["type"] == "datasource"]
        assert chosen == source["uid"]
        assert {panel["datasource"]["uid"] for panel in content["panels"] if panel["type"] != "row"} == {"${datasource}"}
        assert content["tags"] == [builders.TAG]
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    mounts = {mount["source"]: mount["target"] for mount in compose["services"]["grafana"]["volumes"]}
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in compose["services"]


def test_the_files_are_dashboards_to_the_sdks_own_types() -> None:
    plugins.register_default_plugins()
    for uid in UIDS:
        content = json.loads((FOLDER / f"{uid}.json").read_text())
        again = json.loads(json.dumps(Dashboard.from_json(content), cls=JSONEncoder))
        assert again == content


def test_the_page_names_every_row_and_shows_every_dashboard() -> None:
    page = (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
    for board in BOARDS.values():
        _, found, part = page.partition(f"\n## {board.title}\n")
        assert found, board.title
        part = part.partition("\n## ")[0]
        rows = {panel.title for panel in board.panels if panel.kind == "row"}
        assert set(re.findall(r"\*\*([^*]+?)\.?\*\*", part)) == rows
    pictures = set(re.findall(r"\((pictures/[a-z]+\.png)\)", page))
    assert len(pictures) == 4
    for name in pictures:
        assert 10_000 < (ROOT / "docs" / name).stat().st_size < 300_000


# -- panels ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", every_panel())
def test_every_panel_says_what_it_shows_in_which_unit(panel: Any) -> None:
    if panel.kind == "row":
        assert not panel.targets
        return
    assert panel.targets
    assert len(panel.description) > 20
    assert panel.description.endswith(".")
    assert len({target.letter for target in panel.targets}) == len(panel.targets)
    if panel.kind == "table":
        columns = next(item["options"]["renameByName"] for item in panel.transformations if item["id"] == "organize")
        values = {title for field, title in columns.items() if field.startswith("Value")}
        units = {
            item["matcher"]["options"] for item in panel.overrides if any(one["id"] == "unit" for one in item["properties"])
        }
        assert values == units
        assert len(values) == len(panel.targets)
        assert all(sort["displayName"] in columns.values() for sort in panel.options["sortBy"])
    elif panel.kind == "state-timeline":
        assert panel.defaults["mappings"]
    else:
        assert panel.defaults["unit"]
    if panel.kind in ("stat", "gauge", "bargauge"):
        steps = panel.defaults["thresholds"]["steps"]
        assert steps[0]["value"] is None
        assert [step["value"] for step in steps[1:]] == sorted(step["value"] for step in steps[1:])
    instant = panel.kind in ("stat", "gauge", "bargauge", "table")
    assert {target.instant for target in panel.targets} == {instant}


@pytest.mark.parametrize("uid", UIDS)
def test_panels_lie_in_the_grid_and_on_no_other(uid: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    content = json.loads((FOLDER / f"{uid}.json").read_text())
    assert len({panel["id"] for panel in content["panels"]}) == len(content["panels"])
    bottom = 0
    for panel in BOARDS[uid].panels:
        x, y, wide, tall = panel.place
        assert x >= 0
        assert x + wide <= 24
        if panel.kind == "row":
            assert (x, wide, tall) == (0, 24, 1)
            assert y >= bottom
        for cell in ((column, row) for column in range(x, x + wide) for row in range(y, y + tall)):
            assert cell not in taken, f"{panel.title} lies on {taken[cell]}"
            taken[cell] = panel.title
        bottom = max(bottom, y + tall)
    assert len(taken) == 24 * bottom, "a row of panels leaves a hole"


def test_links_lead_to_runbooks() -> None:
    links = {link for board in BOARDS.values() for panel in board.panels for link in panel.links}
    assert len(links) >= 8
    for link in links:
        name = re.fullmatch(r"\$\{runbooks\}/([a-z0-9-]+\.md)", link)
        assert name, link
        assert (ROOT / "docs" / "runbooks" / name[1]).is_file(), name[1]


def test_budgets_warn_where_their_alerts_do() -> None:
    dials = [panel for board in BOARDS.values() for panel in board.panels if panel.kind == "gauge"]
    assert len(dials) == 3
    for panel in dials:
        assert [step["value"] for step in panel.defaults["thresholds"]["steps"]] == [None, 0.8, 0.95]
        assert panel.defaults["max"] == 1


# -- queries ---------------------------------------------------------------------------------------------------------------


def test_queries_ask_only_for_metrics_that_exist(metrics: dict[str, set[str]]) -> None:
    for board in BOARDS.values():
        for panel, target in queries(board):
            names = metric_names(target.expr)
            assert names, target.expr
            assert names <= set(metrics) | OF_PROMETHEUS, f"{board.uid}/{panel.title}"
        for variable in board.variables:
            assert metric_names(label_values(variable.query)[0]) <= set(metrics)


def test_both_roles_metrics_are_shown(metrics: dict[str, set[str]]) -> None:
    asked = {name for board in BOARDS.values() for _, target in queries(board) for name in metric_names(target.expr)}
    shown_otherwise = {"veilsum_shared_step_seconds"}
    missing = {name for name in metrics if not name.endswith(("_sum", "_count"))} - asked - shown_otherwise
    assert not missing, "metrics that no panel shows"


def test_legends_and_groups_use_labels_that_the_metrics_have(metrics: dict[str, set[str]]) -> None:
    known = {"site", "instance", "job", "participant", "dataset", "population", "software", "step", "le"}
    known |= {label for labels in metrics.values() for label in labels}
    for board in BOARDS.values():
        for _, target in queries(board):
            used = set(re.findall(r"\{\{(\w+)\}\}", target.legend))
            used |= {word for group in re.findall(r"\bby \(([^)]*)\)", target.expr) for word in re.split(r",\s*", group)}
            used |= set(re.findall(r'(\w+)=~?"', target.expr))
            assert used <= known, target.expr
            variables = set(re.findall(r"\$\{?(\w+)\}?", target.expr))
            assert variables <= {variable.name for variable in board.variables} | {"__range", "__rate_interval"}


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
    with pytest.raises(ConfigurationError, match="label_values"):
        label_values("query_result(a)")


# -- filling in ------------------------------------------------------------------------------------------------------------


class Labels(Prometheus):
    """A Prometheus that knows labels' values only."""

    def __init__(self, known: dict[str, list[str]]) -> None:
        super().__init__("http://localhost")
        self.known, self.asked = known, list[str]()

    def label_values(self, selector: str, label: str, start: float, end: float) -> list[str]:
        self.asked.append(selector)
        return self.known.get(label, [])


def board_of(*variables: Variable) -> Board:
    return Board("uid", "title", "now-1h", (), variables)


def test_all_values_or_each_of_them() -> None:
    prometheus = Labels({"site": ["a.b", "c"], "population": ["p"]})
    window = Window(0, 60, 1)
    chosen = Variable("site", "label_values(m, site)", True)
    then = Variable("population", 'label_values(m{site=~"$site"}, population)', True)
    assert choices(board_of(chosen, then), prometheus, window) == [{"site": r"(a\\.b|c)", "population": "p"}]
    assert prometheus.asked[1] == r'm{site=~"(a\\.b|c)"}'
    each = Variable("site", "label_values(m, site)", False)
    assert choices(board_of(each), prometheus, window) == [{"site": "a.b"}, {"site": "c"}]
    assert choices(board_of(Variable("x", "label_values(m, x)", True)), prometheus, window) == [{}]


@given(
    st.text(alphabet=st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1).filter(lambda text: '"' not in text)
)
def test_a_value_is_matched_as_it_is(value: str) -> None:
    """Within a PromQL string ``\\\\`` is one backslash; what is left is a regular expression for the two values only."""
    other = value + "x"
    (choice,) = choices(board_of(Variable("v", "label_values(m, v)", True)), Labels({"v": [value, other]}), Window(0, 60, 1))
    pattern = choice["v"].replace("\\\\", "\\")
    assert re.fullmatch(pattern, value)
    assert re.fullmatch(pattern, other)
    assert not re.fullmatch(pattern, value + "y")


def test_windows_of_rates() -> None:
    hours = Window(0, 6 * 3600, 15)
    assert (hours.step, hours.rate_interval) == (60, 75)  # 21600 s at 400 points are 54 s; one scrape more than a step
    minutes = Window(0, 300, 15)
    assert (minutes.step, minutes.rate_interval) == (15, 60)  # four scrapes
    assert hours.fill("rate(a[$__rate_interval]) + b[${__range}] + $c + $__interval", {"c": "7"}) == (
        "rate(a[75s]) + b[21600s] + 7 + 60s"
    )
    assert hours.fill("$unknown", {}) == "$unknown"


@given(st.floats(1, 1e9), st.floats(0.5, 300))
def test_a_curve_has_no_more_points_than_pixels(span: float, scrape: float) -> None:
    window = Window(0, span, scrape)
    assert window.step >= scrape or window.step == 604800
    assert span / window.step <= 400 or window.step == 604800
    assert window.rate_interval >= 4 * scrape
