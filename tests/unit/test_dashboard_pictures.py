"""What is drawn of Prometheus' answers: tables joined, numbers in words, curves with gaps, labels that cannot break a page."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from veilsum_deploy.dashboards import charts
from veilsum_deploy.dashboards.browser import find_browser, photograph
from veilsum_deploy.dashboards.checking import check
from veilsum_deploy.dashboards.drawing import draw
from veilsum_deploy.dashboards.filling import Window
from veilsum_deploy.dashboards.frames import Grid, Named, fetch
from veilsum_deploy.dashboards.page import render
from veilsum_deploy.dashboards.prometheus import Prometheus, Series
from veilsum_deploy.dashboards.reading import Board, Panel, Target, Variable, read_boards
from veilsum_deploy.dashboards.units import mapped, shown, write
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, StateError

WINDOW = Window(1000.0, 1100.0, 1.0)
BOX = charts.Box(400, 200)
WORDS = [{"type": "value", "options": {"0": {"text": "off", "color": "red"}, "1": {"text": "on", "color": "green"}}}]
STEPS = {"steps": [{"value": None, "color": "green"}, {"value": 0.8, "color": "orange"}, {"value": 0.95, "color": "red"}]}


class Answers(Prometheus):
    """A Prometheus with given answers, by expression; others have no series."""

    def __init__(self, answers: Mapping[str, list[Series]], labels: Mapping[str, list[str]] | None = None) -> None:
        super().__init__("http://localhost")
        self.answers, self.labels = answers, labels or {}

    def instant(self, expr: str, at: float) -> list[Series]:
        return self.answers.get(expr, [])

    def over(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        return self.answers.get(expr, [])

    def label_values(self, selector: str, label: str, start: float, end: float) -> list[str]:
        return self.labels.get(label, [])


def series(value: float, **labels: str) -> Series:
    return Series(labels, ((1100.0, value),))


def named(name: str, *points: tuple[float, float], **config: Any) -> Named:
    return Named(name, Series({}, points), config)


def panel(kind: str, *exprs: str, legend: str = "{{site}}", **more: Any) -> Panel:
    targets = tuple(Target(chr(65 + index), expr, legend, True) for index, expr in enumerate(exprs))
    return Panel("a panel", kind, (0, 0, 12, 8), targets, **more)


def parsed(drawing: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawing)  # noqa: S314  this process made it


# -- numbers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "words"),
    [
        (0.0, "none", None, "0"),
        (1405.0, "none", None, "1405"),
        (2.1667, "none", None, "2.17"),
        (2.1667, "none", 3, "2.167"),
        (0.0123, "none", None, "0.012"),
        (-0.0001, "none", 2, "0.00"),
        (0.0453, "s", None, "45.3 ms"),
        (0.0, "s", None, "0 s"),
        (59.0, "s", 0, "59 s"),
        (150.0, "s", None, "2.5 min"),
        (7200.0, "s", 0, "2 hours"),
        (3 * 86400.0, "s", None, "3 days"),
        (0.8449, "percentunit", 1, "84.5%"),
        (1.0, "percentunit", None, "100%"),
        (14_900_000.0, "decbytes", 1, "14.9 MB"),
        (103_000.0, "Bps", None, "103 kB/s"),
        (12.0, "Bps", None, "12 B/s"),
        (365.2, "suffix: days", 0, "365 days"),
        (1e-5, "sci", None, "1e-05"),
        (math.nan, "s", 1, "-"),
        (math.inf, "none", 3, "∞"),
        (-math.inf, "percentunit", None, "-∞"),
    ],
)
def test_numbers_in_words(value: float, unit: str, decimals: int | None, words: str) -> None:
    assert write(value, unit, decimals) == words


@given(st.floats(-1e300, 1e300), st.sampled_from(["none", "s", "percentunit", "decbytes", "Bps"]))
def test_every_number_has_words_without_an_exponent(value: float, unit: str) -> None:
    assert re.fullmatch(r"-?[\d.]+( ?[a-zA-Zµ%/]+)?", write(value, unit))


def test_mappings_and_thresholds() -> None:
    assert shown(1.0, {"mappings": WORDS}) == ("on", "green")
    assert mapped(0.5, {"mappings": WORDS}) is None
    config = {"thresholds": STEPS, "unit": "percentunit", "decimals": 0}
    assert [shown(value, config) for value in (0.79, 0.8, 0.95, math.inf)] == [
        ("79%", "green"),
        ("80%", "orange"),
        ("95%", "red"),
        ("∞", "red"),
    ]
    assert shown(math.nan, config) == ("-", "")


# -- data ------------------------------------------------------------------------------------------------------------------


def test_a_table_joins_answers_on_their_labels() -> None:
    organize = {
        "excludeByName": {"Time": True, "job": True},
        "indexByName": {"site": 0, "Value #B": 1, "Value #A": 2},
        "renameByName": {"site": "Site", "Value #A": "Spent", "Value #B": "Budget"},
    }
    override = {"matcher": {"id": "byName", "options": "Spent"}, "properties": [{"id": "unit", "value": "percentunit"}]}
    table = panel(
        "table",
        "a",
        "b",
        transformations=({"id": "merge", "options": {}}, {"id": "organize", "options": organize}),
        overrides=(override,),
        options={"sortBy": [{"displayName": "Spent", "desc": True}]},
        defaults={"unit": "none"},
    )
    found = Answers({"a": [series(0.1, site="x"), series(0.2, site="y")], "b": [series(3.0, site="x"), series(4.0, site="y")]})
    assert fetch(table, {}, found, WINDOW).grid == Grid(
        (("Site", {"unit": "none"}), ("Budget", {"unit": "none"}), ("Spent", {"unit": "percentunit"})),
        (("y", 4.0, 0.2), ("x", 3.0, 0.1)),
    )
    partly = Answers({"a": [series(0.1, site="x")], "b": [series(3.0, site="z")]})
    rows = {row[0]: row[1:] for row in fetch(table, {}, partly, WINDOW).grid.rows}
    assert math.isnan(float(rows["x"][0]))
    assert math.isnan(float(rows["z"][1]))
    page = render(Board("u", "t", "now-1h", (table,), ()), [fetch(table, {}, partly, WINDOW)], WINDOW, "")
    assert "10%" in page
    assert page.count(">-</td>") == 2


def test_series_are_named_by_their_legend() -> None:
    found = Answers({"a": [series(1.0, site="x", population="p")]})
    both = fetch(panel("stat", "a", legend="{{site}} of {{population}} {{absent}}"), {}, found, WINDOW)
    assert [each.name for each in both.series] == ["x of p"]
    assert [each.name for each in fetch(panel("stat", "a", legend="__auto"), {}, found, WINDOW).series] == ["x p"]
    assert [
        each.name for each in fetch(panel("stat", "b", legend="__auto"), {}, Answers({"b": [series(1.0)]}), WINDOW).series
    ] == ["a panel"]


def test_the_check_names_what_returns_nothing() -> None:
    board = Board(
        "u",
        "Board",
        "now-1h",
        (panel("stat", "full"), panel("stat", "empty"), panel("stat", "nan"), panel("stat", "wrong"), panel("row")),
        (Variable("site", "label_values(m, site)", False), Variable("none", "label_values(m, none)", True)),
    )

    class Refusing(Answers):
        def instant(self, expr: str, at: float) -> list[Series]:
            if expr == "wrong":
                raise HostileInput("Prometheus refuses wrong (parse error).")
            return super().instant(expr, at)

    found = check([board], Refusing({"full": [series(0.0)], "nan": [series(math.nan)]}, {"site": ["x", "y"]}), WINDOW)
    empty = [(answer.panel, answer.expr, answer.fault) for answer in found if not answer.series]
    once = [
        ("variable none", "label_values(m, none)", ""),
        ("a panel", "empty", ""),
        ("a panel", "nan", ""),
        ("a panel", "wrong", "Prometheus refuses wrong (parse error)."),
    ]
    assert empty == once * 2  # for each of the sites
    assert len(found) == 12


# -- drawings --------------------------------------------------------------------------------------------------------------


def paths(drawing: str, attribute: str = "stroke") -> list[str]:
    """Shapes of the curves: paths that are drawn in a colour of the palette."""
    root = parsed(drawing)
    return [item.attrib["d"] for item in root.iter("path") if item.attrib[attribute] in charts.PALETTE]


def test_a_curve_lies_where_its_values_are() -> None:
    drawing = charts.curves([named("x", (1000, 0), (1050, 2), (1100, 4))], BOX, Window(1000, 1100, 50), {"unit": "none"})
    (line,) = paths(drawing)
    places = [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", line)]
    assert places[1][0] == pytest.approx((places[0][0] + places[2][0]) / 2, abs=0.1)
    assert places[1][1] == pytest.approx((places[0][1] + places[2][1]) / 2, abs=0.1)
    assert places[0][1] == pytest.approx(BOX.height - 24)  # 0 lies on the axis
    assert re.findall(r'text-anchor="end"[^>]*>([^<]*)<', drawing) == ["0", "2", "4", "6"]  # 4 is not squeezed to the edge


def test_a_curve_breaks_where_there_is_no_number_or_no_scrape() -> None:
    pairs = [(1000, 1.0), (1001, 1.0), (1003, 1.0), (1004, 1.0), (1010, 1.0), (1012, 2.0), (1013, 2.0)]
    points = sorted([*pairs, (1002, math.nan), (1011, math.inf)])
    lines = paths(charts.curves([named("x", *points)], BOX, WINDOW, {}))
    assert [line.count("L") + 1 for line in lines] == [2, 2, 2]  # the single point at 1010 is a dot


def test_stacked_curves_add_up() -> None:
    stacked = {"custom": {"stacking": {"mode": "normal"}, "fillOpacity": 30}}
    window = Window(1000, 1100, 100)
    one, other = named("a", (1000, 1.0), (1100, 1.0)), named("b", (1000, 3.0), (1100, 3.0))
    zero = named("c", (1000, 0.0), (1100, 0.0))
    heights = [
        BOX.height - 24 - float(re.split(r"[ L]", line)[1])
        for line in paths(charts.curves([one, other, zero], BOX, window, stacked))
    ]
    assert len(heights) == 2  # what adds nothing is not drawn
    assert max(heights) == pytest.approx(4 * min(heights), abs=0.5)


def test_bands_show_when_a_value_changed() -> None:
    points = [(1000.0 + second, float(second < 40)) for second in range(80)]
    root = parsed(charts.bands([named("x", *points, mappings=WORDS)], BOX, WINDOW))
    bars = [(item.attrib["fill"], float(item.attrib["width"])) for item in root.iter("rect")]
    assert [colour for colour, _ in bars] == [charts.COLOURS["green"], charts.COLOURS["red"]]
    assert bars[0][1] == pytest.approx(bars[1][1], rel=0.05)


def test_a_dial_is_filled_as_far_as_its_value() -> None:
    config = {"max": 1, "unit": "percentunit", "thresholds": STEPS, "decimals": 0}
    drawing = charts.dials([named("x", (1100, 0.9), **config), named("full", (1100, 3.0), **config)], BOX)
    assert ">90%<" in drawing
    assert ">300%<" in drawing
    values = [item.attrib for item in parsed(drawing).iter("path") if item.attrib["stroke-width"] == "16"]
    assert [item["stroke"] for item in values[1::2]] == [charts.COLOURS["orange"], charts.COLOURS["red"]]
    assert values[3]["d"] == values[2]["d"]  # no further than its end


@given(
    st.lists(
        st.tuples(st.text(max_size=12), st.lists(st.floats(), min_size=1, max_size=6)),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["none", "s", "percentunit", "Bps"]),
)
def test_any_labels_and_values_make_a_well_formed_drawing(found: list[tuple[str, list[float]]], unit: str) -> None:
    config = {"unit": unit, "thresholds": STEPS, "mappings": WORDS}
    given_series = [
        named(re.sub(r"[^\x20-\uD7FF]", "", name), *((1000.0 + index, value) for index, value in enumerate(values)), **config)
        for name, values in found
    ]
    custom = {"stacking": {"mode": "normal"}, "thresholdsStyle": {"mode": "dashed"}}
    for drawing in (
        charts.curves(given_series, BOX, WINDOW, config),
        charts.curves(given_series, BOX, WINDOW, {**config, "custom": custom}),
        charts.bands(given_series, BOX, WINDOW),
        charts.dials(given_series, BOX),
        charts.bars(given_series, BOX, config),
        charts.numbers(given_series, BOX),
    ):
        assert "nan" not in re.sub(r">[^<]*<", "><", drawing)
        assert "inf" not in re.sub(r">[^<]*<", "><", drawing)
        parsed(drawing)


def test_labels_cannot_write_into_the_page() -> None:
    name = "<script>alert(1)</script>"
    for kind in ("stat", "gauge", "bargauge", "timeseries", "state-timeline", "table"):
        drawn = panel(kind, "a", "b", defaults={"mappings": WORDS})
        found = Answers({"a": [series(1.0, site=name)], "b": [series(1.0, site=name)]})
        page = render(Board("u", name, "now-1h", (drawn,), ()), [fetch(drawn, {}, found, WINDOW)], WINDOW, name)
        assert "<script>" not in page
        assert "&lt;script&gt;" in page


def test_dashboards_without_data_say_so(tmp_path: Path) -> None:
    files = draw(read_boards(), Answers({}), WINDOW, tmp_path, {}, None)
    assert [path.name for path in files] == ["rounds.html", "budgets.html", "participant.html"]
    assert files[0].read_text().count("No data") > 15


def test_one_site_is_chosen(tmp_path: Path) -> None:
    known = Answers({}, {"site": ["east", "north"], "instance": ["i"]})
    for chosen, title in (({}, "One participant: east"), ({"site": "north"}, "One participant: north")):
        pages = draw(read_boards(), known, WINDOW, tmp_path, chosen, None)
        assert title in pages[2].read_text()
    with pytest.raises(Misuse, match="no site 'nowhere'") as caught:
        draw(read_boards(), known, WINDOW, tmp_path, {"site": "nowhere"}, None)
    assert "east, north" in caught.value.advice


def test_a_picture_has_the_colours_of_its_page(tmp_path: Path) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip("no browser that runs without a screen is installed")
    page = tmp_path / "page.html"
    stripes = "".join(f'<div style="height:10px;background:{colour}"></div>' for colour in charts.PALETTE)
    page.write_text(f'<body style="margin:0;background:#181b1f">{stripes}</body>')
    with Image.open(photograph(browser, page, tmp_path / "page.png", 300, 150)) as picture:
        assert picture.size == (300, 150)
        found = [picture.convert("RGB").getpixel((100, 10 * index + 5)) for index in range(len(charts.PALETTE))]
    assert ["#{:02x}{:02x}{:02x}".format(*colour) for colour in found] == list(charts.PALETTE)
    with Image.open(photograph(browser, page, tmp_path / "cut.png", 300)) as picture:
        assert picture.size == (300, 10 * len(charts.PALETTE) + 24)  # as far as there is something


# -- Prometheus' API -------------------------------------------------------------------------------------------------------


@contextmanager
def serving(status: int, body: bytes) -> Iterator[tuple[str, list[str]]]:
    """A server that gives every GET the same answer; yields its URL and the paths that were asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def test_answers_become_series() -> None:
    metric = {"__name__": "a", "site": "x"}
    body = {"status": "success", "data": {"resultType": "vector", "result": [{"metric": metric, "value": [5, "+Inf"]}]}}
    with serving(200, json.dumps(body).encode()) as (url, asked):
        assert Prometheus(url + "/").instant('a{b="c d"}', 5) == [Series({"site": "x"}, ((5.0, math.inf),))]
    assert asked == ["/api/v1/query?query=a%7Bb%3D%22c+d%22%7D&time=5.000"]
    body = {
        "status": "success",
        "data": {"resultType": "matrix", "result": [{"metric": {}, "values": [[5, "1"], [6, "NaN"]]}]},
    }
    with serving(200, json.dumps(body).encode()) as (url, _):
        (found,) = Prometheus(url).over("a", 5, 6, 1)
    assert found.last == 1.0
    assert math.isnan(found.points[1][1])
    with serving(200, b'{"status": "success", "data": {"resultType": "scalar", "result": [5, "2"]}}') as (url, _):
        assert Prometheus(url).instant("2", 5) == [Series({}, ((5.0, 2.0),))]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, b'{"status": "error", "errorType": "bad_data", "error": "parse error"}', "bad_data: parse error"),
        (200, b"<html>", "answers otherwise"),
        (404, b"not found", "answers otherwise"),
        (200, b"[]", "answers otherwise"),
    ],
)
def test_a_refusal_says_why(status: int, body: bytes, words: str) -> None:
    with serving(status, body) as (url, _), pytest.raises(HostileInput, match=words):
        Prometheus(url).instant("a", 5)


def test_a_prometheus_that_is_not_there() -> None:
    with serving(200, b"") as (url, _):
        assert Prometheus(url).ready()
    assert not Prometheus(url).ready()
    with pytest.raises(StateError, match="does not answer"):
        Prometheus(url).instant("a", 5)
    for address in ("localhost:9090", "file:///etc/passwd", ""):
        with pytest.raises(ConfigurationError, match="no URL"):
            Prometheus(address)
