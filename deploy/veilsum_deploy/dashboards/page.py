"""A dashboard's panels as one HTML page, in the layout of its grid and in a dark look like Grafana's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from veilsum_deploy.dashboards.charts import (
    LETTER,
    Box,
    bands,
    bars,
    colour_of,
    curves,
    dials,
    numbers,
    series_colour,
)
from veilsum_deploy.dashboards.filling import Window
from veilsum_deploy.dashboards.frames import Filled, Named
from veilsum_deploy.dashboards.reading import Board
from veilsum_deploy.dashboards.units import shown, write

WIDTH = 1600
"""Of a page, in pixels."""

_MARGIN, _CELL, _GAP, _HEAD, _TITLE, _INSIDE = 16, 30, 8, 64, 32, 10
_LEGEND_LINE, _MOST_LINES, _ROW = 20, 3, 26

_STYLE = """
body { margin: 0; background: #111217; color: #ccccdc; font: 12px Inter, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }
main { position: relative; }
h1 { position: absolute; left: 16px; top: 14px; margin: 0; font-size: 20px; font-weight: 500; }
p { position: absolute; right: 16px; top: 20px; margin: 0; color: #9a9ba6; }
section { position: absolute; background: #181b1f; border: 1px solid #25272d; border-radius: 3px; overflow: hidden; }
section.row { background: none; border: none; font-size: 15px; font-weight: 500; line-height: 30px; }
h2 { margin: 0; padding: 8px 10px 0; font-size: 14px; font-weight: 500; height: 24px; white-space: nowrap; overflow: hidden;
     text-overflow: ellipsis; box-sizing: border-box; }
.body { position: absolute; left: 10px; right: 10px; top: 32px; bottom: 8px; overflow: hidden; }
svg { display: block; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; max-height: 60px; overflow: hidden; }
.legend span { height: 20px; line-height: 20px; margin-right: 16px; white-space: nowrap; }
.legend i { display: inline-block; width: 12px; height: 4px; border-radius: 2px; margin-right: 6px; vertical-align: middle; }
.legend b { font-weight: 400; color: #9a9ba6; margin-left: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: #6e9fff; height: 26px; padding: 0 8px; border-bottom: 1px solid #2c2e35; }
td { height: 25px; padding: 0 8px; border-bottom: 1px solid #25272d; white-space: nowrap; }
.number { text-align: right; }
"""


def height_of(board: Board) -> int:
    """Of a dashboard's page, in pixels."""
    return _top(max(y + tall for _, y, _, tall in (panel.place for panel in board.panels))) + _MARGIN


def render(board: Board, filled: Sequence[Filled], window: Window, subtitle: str) -> str:
    """The page of a dashboard whose panels have their data.

    Args:
        subtitle: what is shown, such as the site.
    """
    start, end = (datetime.fromtimestamp(at, UTC) for at in (window.start, window.end))
    sections = Markup("").join(_section(each, window) for each in filled)
    return Markup(
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{style}</style></head>'
        '<body><main style="width:{width}px;height:{height}px"><h1>{title}{subtitle}</h1>'
        "<p>{start:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} UTC</p>{sections}</main></body></html>\n"
    ).format(
        title=board.title,
        style=Markup(_STYLE),  # noqa: S704  a constant
        width=WIDTH,
        height=height_of(board),
        subtitle=f": {subtitle}" if subtitle else "",
        start=start,
        end=end,
        sections=sections,
    )


def _top(row: int) -> int:
    return _HEAD + row * (_CELL + _GAP)


def _section(filled: Filled, window: Window) -> Markup:
    x, y, wide, tall = filled.panel.place
    column = (WIDTH - 2 * _MARGIN + _GAP) / 24
    left, width, height = _MARGIN + x * column, wide * column - _GAP, tall * (_CELL + _GAP) - _GAP
    place = f"left:{left:.0f}px;top:{_top(y)}px;width:{width - 2:.0f}px;height:{height - 2}px"
    if filled.panel.kind == "row":
        return Markup('<section class="row" style="{}">{}</section>').format(place, filled.panel.title)
    box = Box(width - 2 - 2 * _INSIDE, height - 2 - _TITLE - 8)
    return Markup('<section style="{}"><h2>{}</h2><div class="body">{}</div></section>').format(
        place, filled.panel.title, _body(filled, box, window)
    )


def _body(filled: Filled, box: Box, window: Window) -> Markup:
    kind, series, defaults = filled.panel.kind, filled.series, dict(filled.panel.defaults)
    if kind == "table":
        return _table(filled, box)
    if not series:
        return Markup("<span>No data</span>")
    drawn: Mapping[str, Callable[[], Markup]] = {
        "stat": lambda: numbers(series, box),
        "gauge": lambda: dials(series, box),
        "bargauge": lambda: bars(series, box, defaults),
        "state-timeline": lambda: _with_legend(_states(series), box, lambda room: bands(series, room, window)),
        "timeseries": lambda: _with_legend(_names(series), box, lambda room: curves(series, room, window, defaults)),
    }
    return drawn[kind]()


def _names(series: Sequence[Named]) -> list[tuple[str, str, str]]:
    return [
        (series_colour(index, each), each.name, write(each.series.last, str(each.config.get("unit", "none"))))
        for index, each in enumerate(series)
    ]


def _states(series: Sequence[Named]) -> list[tuple[str, str, str]]:
    seen = {value for each in series for _, value in each.series.points if value == value}
    config: Mapping[str, Any] = series[0].config
    return [(colour_of(colour), words, "") for words, colour in (shown(value, config) for value in sorted(seen))]


def _with_legend(entries: Sequence[tuple[str, str, str]], box: Box, draw: Callable[[Box], Markup]) -> Markup:
    """A drawing, and below it its legend: colour, name and last value of each."""
    lines, used = 1, 0.0
    for _, name, value in entries:
        wide = 18 + (len(name) + len(value) + 1) * LETTER + 22
        if used and used + wide > box.width:
            lines, used = lines + 1, 0.0
        used += wide
    room = Box(box.width, box.height - min(lines, _MOST_LINES) * _LEGEND_LINE - 2)
    items = Markup("").join(
        Markup('<span><i style="background:{}"></i>{}<b>{}</b></span>').format(colour, name, value)
        for colour, name, value in entries
    )
    return draw(room) + Markup('<div class="legend">{}</div>').format(items)


def _table(filled: Filled, box: Box) -> Markup:
    grid = filled.grid
    numeric = [any(isinstance(row[index], float) for row in grid.rows) for index in range(len(grid.columns))]
    head = Markup("").join(
        Markup('<th class="{}">{}</th>').format("number" if right else "", title)
        for (title, _), right in zip(grid.columns, numeric, strict=True)
    )
    rows = []
    for row in grid.rows[: int(box.height // _ROW) - 1]:
        cells = []
        for value, (_, config) in zip(row, grid.columns, strict=True):
            words, colour = shown(value, config) if isinstance(value, float) else (value, "")
            tinted = f"color:{colour_of(colour)}" if colour and "custom.cellOptions" in config else ""
            kind = "number" if isinstance(value, float) else ""
            cells.append(Markup('<td class="{}" style="{}">{}</td>').format(kind, tinted, words))
        rows.append(Markup("<tr>{}</tr>").format(Markup("").join(cells)))
    return Markup("<table><tr>{}</tr>{}</table>").format(head, Markup("").join(rows))
