"""The drawn panels as inline SVG in a dark look: curves, bands of states, dials and bars; every text is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from markupsafe import Markup

from veilsum_deploy.dashboards.filling import Window
from veilsum_deploy.dashboards.frames import Named
from veilsum_deploy.dashboards.units import shown, write

INK, MUTED, RULE, TRACK = "#ccccdc", "#9a9ba6", "#2c2e35", "#26282e"
COLOURS = {
    "green": "#73bf69", "yellow": "#fade2a", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2", "text": INK,
}  # fmt: skip
PALETTE = ("#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#5195ce", "#ba43a9", "#9b86d1", "#bfe1a3", "#cca300")

Point: TypeAlias = tuple[float, float]

LETTER = 6.6
"""Width of a letter of the page's small text, in pixels, at most on average."""

_TINY, _HUGE = 1e-100, 1e100  # no axis goes beyond
_ROUND = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


@dataclass(frozen=True)
class Box:
    """Room for a drawing, in pixels."""

    width: float
    height: float


def svg(box: Box, shapes: Sequence[Markup]) -> Markup:
    """A drawing."""
    head = Markup('<svg width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}">').format(box.width, box.height)
    return head + Markup("").join(shapes) + Markup("</svg>")


def text(
    x: float, y: float, words: str, *, anchor: str = "start", colour: str = MUTED, size: float = 12, weight: int = 400
) -> Markup:
    """A line of text whose baseline is at ``y``."""
    return Markup(
        '<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}" font-size="{:.0f}" font-weight="{}">{}</text>'
    ).format(x, y, anchor, colour, size, weight, words)


def rect(x: float, y: float, width: float, height: float, fill: str, opacity: float = 1) -> Markup:
    """A filled rectangle."""
    return Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}" fill-opacity="{:g}"/>').format(
        x, y, max(width, 0), max(height, 0), fill, opacity
    )


def path(
    shape: str, *, stroke: str = "none", fill: str = "none", width: float = 1.5, opacity: float = 1, dash: str = ""
) -> Markup:
    """A path that is drawn, filled or both."""
    return Markup(
        '<path d="{}" stroke="{}" fill="{}" stroke-width="{:g}" fill-opacity="{:g}" stroke-linejoin="round"'
        ' stroke-dasharray="{}"/>'
    ).format(shape, stroke, fill, width, opacity, dash or "none")


def colour_of(name: str, default: str = INK) -> str:
    """A colour that Grafana knows by name."""
    return COLOURS.get(name, name or default)


def series_colour(index: int, named: Named) -> str:
    """A curve's colour: its own, or the next of the palette."""
    fixed = (named.config.get("color") or {}).get("fixedColor")
    return colour_of(str(fixed)) if fixed else PALETTE[index % len(PALETTE)]


# -- curves ----------------------------------------------------------------------------------------------------------------


def curves(series: Sequence[Named], box: Box, window: Window, defaults: dict[str, Any]) -> Markup:
    """Curves over time with both axes."""
    custom = defaults.get("custom") or {}
    stacked = (custom.get("stacking") or {}).get("mode") == "normal"
    tops = _stack(series) if stacked else [list(each.series.points) for each in series]
    floors = [{}, *(dict(points) for points in tops)] if stacked else [{} for _ in series]
    finite = [value for points in tops for _, value in points if math.isfinite(value)]
    unit = str(defaults.get("unit", "none"))
    step, most = _axis(max(finite, default=0.0), unit)
    labels = [write(index * step, unit) for index in range(round(most / step) + 1)]
    left = max(len(label) for label in labels) * LETTER + 12
    plot = _Plot(left, 8, box.width - 10, box.height - 24, window, most)
    shapes = list(_axes(plot, labels, step))
    shapes += _limits(plot, defaults, custom)
    fill = float(custom.get("fillOpacity", 0)) / 100
    for index in reversed(range(len(series))):
        shapes += _curve(plot, tops[index], floors[index], series_colour(index, series[index]), fill, window.step)
    return svg(box, shapes)


@dataclass(frozen=True)
class _Plot:
    left: float
    top: float
    right: float
    bottom: float
    window: Window
    most: float

    def x(self, time: float) -> float:
        share = (time - self.window.start) / max(self.window.end - self.window.start, 1e-9)
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - max(-0.02, min(value / self.most, 1.02)) * (self.bottom - self.top)


def _stack(series: Sequence[Named]) -> list[list[Point]]:
    total: dict[float, float] = {}
    stacked = []
    for each in series:
        points = []
        for at, value in each.series.points:
            total[at] = total.get(at, 0.0) + (value if math.isfinite(value) else 0.0)
            points.append((at, total[at]))
        stacked.append(points)
    return stacked


def _axis(most: float, unit: str) -> tuple[float, float]:
    """Distance of the axis' marks and its end: four or five round steps that hold the largest value."""
    most = min(max(most, _TINY), _HUGE) if most > 0 else 1.0
    if unit == "percentunit" and 0.5 < most <= 1:
        return 0.25, 1.0
    rough = most * 1.05 / 4
    if unit == "s" and 1 < rough <= 3600:
        step = float(next((step for step in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600) if step >= rough), rough))
    else:
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return step, math.ceil(most * 1.02 / step) * step


def _axes(plot: _Plot, labels: Sequence[str], step: float) -> Iterator[Markup]:
    for index, label in enumerate(labels):
        y = plot.y(index * step)
        yield path(f"M{plot.left:.1f} {y:.1f}H{plot.right:.1f}", stroke=RULE, width=1)
        yield text(plot.left - 6, y + 4, label, anchor="end")
    for time, label in marks(plot.window, plot.right - plot.left):
        x = plot.x(time)
        if plot.left + 12 <= x <= plot.right - 20:
            yield path(f"M{x:.1f} {plot.top:.1f}V{plot.bottom:.1f}", stroke=RULE, width=1)
            yield text(x, plot.bottom + 17, label, anchor="middle")


def marks(window: Window, width: float) -> list[tuple[float, str]]:
    """Round times in a window, far enough apart for their words, in UTC."""
    span = window.end - window.start
    step = next((step for step in _ROUND if span / step <= width / 90), _ROUND[-1])
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%m/%d"
    first = math.ceil(window.start / step) * step
    times = range(first, math.floor(window.end) + 1, step)
    return [(float(time), datetime.fromtimestamp(time, UTC).strftime(form)) for time in times]


def _limits(plot: _Plot, defaults: dict[str, Any], custom: dict[str, Any]) -> list[Markup]:
    """Dashed lines at thresholds that lie within the plot."""
    if (custom.get("thresholdsStyle") or {}).get("mode") != "dashed":
        return []
    steps = (defaults.get("thresholds") or {}).get("steps") or ()
    return [
        path(f"M{plot.left:.1f} {plot.y(step['value']):.1f}H{plot.right:.1f}", stroke=colour_of(step["color"]), dash="8 6")
        for step in steps
        if step.get("value") is not None and step["value"] <= plot.most
    ]


def _curve(
    plot: _Plot, points: Sequence[Point], floor: Mapping[float, float], colour: str, fill: float, step: float
) -> list[Markup]:
    """A curve, filled down to the one below it; what adds nothing to a stack is not drawn."""
    shapes = []
    shown_points = [(at, value) for at, value in points if not floor or value > floor.get(at, 0.0)]
    for run in _runs(shown_points, 1.5 * step):
        places = [(plot.x(at), plot.y(value)) for at, value in run]
        if len(places) == 1:
            shapes.append(rect(places[0][0] - 1.5, places[0][1] - 1.5, 3, 3, colour))
            continue
        line = _line(places)
        base = [(plot.x(at), plot.y(floor.get(at, 0.0))) for at, _ in reversed(run)]
        shapes.append(path(f"{line}L{_line(base)[1:]}Z", fill=colour, opacity=fill, width=0))
        shapes.append(path(line, stroke=colour))
    return shapes


def _line(places: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _runs(points: Sequence[Point], gap: float) -> Iterator[list[Point]]:
    """Pieces of a curve between gaps: values that are no numbers, and times that are missing."""
    run: list[Point] = []
    for at, value in points:
        if not math.isfinite(value) or (run and at - run[-1][0] > gap):
            if run:
                yield run
            run = []
        if math.isfinite(value):
            run.append((at, value))
    if run:
        yield run


# -- states ----------------------------------------------------------------------------------------------------------------


def bands(series: Sequence[Named], box: Box, window: Window) -> Markup:
    """A band for each series, coloured by its value."""
    left = max((len(each.name) for each in series), default=0) * LETTER + 14
    plot = _Plot(left, 4, box.width - 10, box.height - 24, window, 1.0)
    tall = min(48.0, (plot.bottom - plot.top) / max(1, len(series)))
    shapes = []
    for row, each in enumerate(series):
        top = plot.top + row * tall
        shapes.append(text(left - 8, top + tall / 2 + 4, each.name, anchor="end", colour=INK))
        for start, end, value in _spans(each.series.points, window.step):
            colour = colour_of(shown(value, each.config)[1], TRACK)
            x = plot.x(max(start, window.start))
            width = plot.x(min(end, window.end)) - x
            shapes.append(rect(x, top + 0.1 * tall, width, 0.8 * tall, colour, 0.75))
    for time, label in marks(window, plot.right - plot.left):
        if plot.left + 12 <= plot.x(time) <= plot.right - 20:
            shapes.append(text(plot.x(time), plot.bottom + 17, label, anchor="middle"))
    return svg(box, shapes)


def _spans(points: Sequence[Point], step: float) -> Iterator[tuple[float, float, float]]:
    """Start, end and value of the stretches in which a value stays."""
    start = last = value = math.nan
    for at, found in points:
        if math.isnan(found):
            continue
        if found != value or at - last > 1.5 * step:
            if not math.isnan(value):
                yield start, last + step if at - last > 1.5 * step else at, value
            start, value = at, found
        last = at
    if not math.isnan(value):
        yield start, last + step, value


# -- dials, bars and numbers -----------------------------------------------------------------------------------------------


def dials(series: Sequence[Named], box: Box) -> Markup:
    """A dial for each series, in as many columns as make them largest."""
    count = max(1, len(series))
    columns = max(range(1, count + 1), key=lambda wide: min(box.width / wide, 1.35 * box.height / math.ceil(count / wide)))
    wide, tall = box.width / columns, box.height / math.ceil(count / columns)
    shapes: list[Markup] = []
    for index, each in enumerate(series):
        x, y = wide * (index % columns + 0.5), tall * (index // columns)
        shapes += _dial(each, x, y, min(wide * 0.9, (tall - 26) * 1.25) / 2)
    return svg(box, shapes)


def _dial(named: Named, x: float, top: float, radius: float) -> list[Markup]:
    value, most = named.series.last, float(named.config.get("max") or 1)
    words, colour = shown(value, named.config)
    y = top + radius + 4
    shapes = [path(_arc(x, y, radius - 12, 0, 1), stroke=TRACK, width=16)]
    if value > 0:
        shapes.append(path(_arc(x, y, radius - 12, 0, min(1.0, value / most)), stroke=colour_of(colour), width=16))
    steps = (named.config.get("thresholds") or {}).get("steps") or ()
    for step, after in zip(steps, [*steps[1:], {"value": most}], strict=False):
        start, end = (step.get("value") or 0) / most, min(1.0, after["value"] / most)
        shapes.append(path(_arc(x, y, radius - 1, start, end), stroke=colour_of(step["color"]), width=3))
    size = min(34.0, radius * 0.42)
    shapes.append(text(x, y + size / 3, words, anchor="middle", colour=colour_of(colour), size=size, weight=500))
    shapes.append(text(x, y + 0.58 * radius + 16, named.name, anchor="middle", colour=INK))
    return shapes


def _arc(x: float, y: float, radius: float, start: float, end: float) -> str:
    """A piece of a dial of 240 degrees, open at the bottom; shares of it from 0 to 1."""

    def place(share: float) -> Point:
        angle = math.radians(210 - 240 * share)
        return x + radius * math.cos(angle), y - radius * math.sin(angle)

    (from_x, from_y), (to_x, to_y) = place(start), place(end)
    large = int(240 * (end - start) > 180)
    return f"M{from_x:.1f} {from_y:.1f}A{radius:.1f} {radius:.1f} 0 {large} 1 {to_x:.1f} {to_y:.1f}"


def bars(series: Sequence[Named], box: Box, defaults: dict[str, Any]) -> Markup:
    """A horizontal bar for each series, its name before and its value behind it."""
    finite = [each.series.last for each in series if math.isfinite(each.series.last)]
    most = float(defaults.get("max") or max([*finite, 1e-9]))
    words = [shown(each.series.last, each.config) for each in series]
    left = max((len(each.name) for each in series), default=0) * LETTER + 12
    right = box.width - max((len(value) for value, _ in words), default=0) * (LETTER + 1.6) - 16
    tall = min(36.0, box.height / max(1, len(series)))
    size = 14 if tall >= 22 else 12
    shapes = []
    for row, (each, (value, colour)) in enumerate(zip(series, words, strict=True)):
        top, thick = row * tall, max(4.0, tall - 6)
        share = 1.0 if math.isinf(each.series.last) else max(0.0, min(1.0, each.series.last / most))
        if math.isnan(share):
            share = 0.0
        hue = colour_of(colour, COLOURS["blue"])
        shapes.append(text(left - 8, top + thick / 2 + 4, each.name, anchor="end", colour=INK))
        shapes.append(rect(left, top, right - left, thick, TRACK))
        shapes.append(rect(left, top, (right - left) * share, thick, hue, 0.75))
        shapes.append(text(box.width - 4, top + thick / 2 + 5, value, anchor="end", colour=hue, size=size, weight=500))
    return svg(box, shapes)


def numbers(series: Sequence[Named], box: Box) -> Markup:
    """Large numbers, one below the other where there are several."""
    tall = box.height / max(1, len(series))
    shapes = []
    for row, each in enumerate(series):
        words, colour = shown(each.series.last, each.config)
        named = len(series) > 1
        size = min(40.0, tall * (0.4 if named else 0.62), 1.55 * box.width / max(4, len(words)))
        middle = row * tall + tall / 2
        if named:
            shapes.append(text(box.width / 2, middle - size * 0.45, each.name, anchor="middle", colour=INK, size=13))
            middle += size * 0.4
        shapes.append(
            text(box.width / 2, middle + size * 0.34, words, anchor="middle", colour=colour_of(colour), size=size, weight=500)
        )
    return svg(box, shapes)
