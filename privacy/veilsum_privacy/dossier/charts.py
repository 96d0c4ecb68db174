"""The dossier's plots, drawn from its plain data.

Each is drawn for a given width, so that its text has one size on a screen, on a telephone and on paper, and keeps apart what
it compares by pattern and lightness as well as by colour.

Axes of a plot of epsilon over time: where times and epsilons lie, and round values to write beside them.

The few shapes that the plots are made of, as inline SVG; every text and number is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from veilsum_node.phrases import counted
from veilsum_privacy.dossier.figures import cost, day, exact, moment, remaining

INK, MUTED, RULE = "#17212b", "#4d5966", "#d3d9df"
SPENT, ALONE, LIMIT, ALARM = "#0b4f6c", "#dfa23a", "#a3480f", "#a3161a"
"""Colours that differ in lightness too: on paper without colour they stay apart."""

_TEXT = 12

_SECONDS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800, 1209600,
)  # fmt: skip
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 6000, 24000)
_LATEST = 221_845_392_000  # the year 9000: what lies beyond was not written by a clock

WIDE = 720
NARROW = 340

MOST_BARS = 12
"""Studies that get bars of their own; the cheaper rest is told in one line."""

Plain = Mapping[str, Any]


def spending_plot(population: Plain, width: int, name: str) -> Markup:
    """Epsilon over time as steps against the budget's line; a cross where a release was refused.

    Args:
        width: in pixels.
        name: unique in the page.
    """
    curve, refusals = population["curve"], population["refusals"]
    if not curve:
        return Markup("")
    finite = [step[key] for step in curve for key in ("spent", "budget") if isinstance(step[key], float | int)]
    times = [item["time"] for item in (*curve, *refusals)]
    frame = Frame.around(times, finite, width, 270 if width >= WIDE else 240)
    shapes = [
        *grid(frame, 7 if width >= WIDE else 3),
        *_limit(curve, frame, refusals),
        *_spent(curve, frame, refusals),
        *_crosses(refusals, frame),
    ]
    says = (
        f"Epsilon spent by {population['name']} rose in {counted(len(population['releases']), 'step')} to "
        f"{cost(population['spent'])} between {day(frame.first)} and {day(frame.last)}; "
        f"the budget is now {exact(population['epsilon'])}."
    )
    return drawing(f"{name}-{width}", "Epsilon over time", says, width, frame.height, shapes)


def study_bars(population: Plain, labels: Mapping[str, str], width: int, name: str) -> Markup:
    """What each study cost alone: two bars a study, one for each guarantee, and all studies together as composed.

    Args:
        labels: how to call each study.
        width: in pixels.
        name: unique in the page.
    """
    studies = sorted(
        population["studies"], key=lambda study: (isinstance(study["epsilon"], float), _negative(study["epsilon"]))
    )
    if not studies:
        return Markup("")
    rows = [(labels[item["study"]], item["releases"], item["epsilon"], item["alone"]) for item in studies[:MOST_BARS]]
    together = ("All studies together, as they compose", len(population["releases"]), population["spent"], population["alone"])
    longest = max([1e-9, *(value for row in (*rows, together) for value in row[2:] if isinstance(value, float))])
    pattern, top = f"{name}-{width}-hatch", 0
    shapes = [hatch(pattern)]
    for row in rows:
        shapes += _bars(row, top, longest, width, f"url(#{pattern})")
        top += 56
    if len(studies) > MOST_BARS:
        most = cost(studies[MOST_BARS]["epsilon"])
        shapes.append(words(0, top + 10, f"Not drawn: {len(studies) - MOST_BARS:,} more, at most {most} each.", colour=MUTED))
        top += 20
    shapes.append(line(0, top + 3, width, top + 3, MUTED))
    shapes += _bars(together, top + 14, longest, width, f"url(#{pattern})", bold=True)
    told = [*rows, together]
    says = "; ".join(f"{label}: {cost(first)}, against all others together {cost(second)}" for label, _, first, second in told)
    return drawing(f"{name}-{width}", "Cost by study", f"{says}.", width, top + 66, shapes)


def meter(population: Plain, width: int, name: str) -> Markup:
    """How much of the budget is spent, set aside and left, as one bar; nothing without a bound."""
    bound = population["epsilon"]
    if bound is None:
        return Markup("")
    full = max(bound, population["reserved"]) if isinstance(population["reserved"], float) else bound

    def length(value: float | str) -> float:
        return (width - 2) * (1.0 if isinstance(value, str) else min(1.0, value / full))

    shapes = [
        rect(1, 1, width - 2, 16, "#fff"),
        rect(1, 1, length(population["reserved"]), 16, ALONE),
        rect(1, 1, length(population["spent"]), 16, SPENT),
        rect(1, 1, width - 2, 16, "none", edge=INK),
    ]
    if full > bound:
        x = 1 + length(bound)
        shapes += [line(x, 0, x, 18, "#fff", width=4), line(x, 0, x, 18, ALARM, width=2)]
    says = f"Of a budget of {exact(bound)}, {cost(population['spent'])} is spent and {remaining(population['left'])} is left."
    return drawing(f"{name}-{width}", "Use of the budget", says, width, 18, shapes)


def _spent(curve: Sequence[Plain], frame: Frame, refusals: Sequence[Plain]) -> list[Markup]:
    """The cost as it rose. Of the steps within one pixel the highest stands for all."""
    points: dict[int, float] = {}
    endless: float | None = None
    for step in curve:
        if isinstance(step["spent"], str):
            endless = frame.x(step["time"])
            break
        pixel = round(frame.x(step["time"]))
        points[pixel] = max(points.get(pixel, 0.0), step["spent"])
    path, level = "", 0.0
    for pixel, level in points.items():
        path += f"{f'H{pixel}V' if path else f'M{pixel} '}{frame.y(level):.1f}"
    if endless is not None:
        path = f"{path}H{endless:.1f}" if path else f"M{endless:.1f} {frame.bottom}"
        early = endless <= frame.width / 2
        x, anchor = (endless + 6, "start") if early else (endless - 6, "end")
        label = halo(x, frame.top + 4, "no bound: released without noise", ALARM, anchor=anchor)
        return [stroke(f"{path}V{frame.top - 6}", SPENT, 2.25), label]
    path += f"H{frame.right}"
    y, budget = frame.y(level), curve[-1]["budget"]
    over = frame.top + 14 <= y and (budget is None or not 0 <= y - frame.y(budget) < 18)
    return [
        area(f"{path}V{frame.bottom}H{next(iter(points))}Z", SPENT),
        stroke(path, SPENT, 2.25),
        halo(_label_end(refusals, frame), y - 6 if over else y + 15, f"spent {cost(level)}", SPENT),
    ]


def _limit(curve: Sequence[Plain], frame: Frame, refusals: Sequence[Plain]) -> list[Markup]:
    """The budget's dashed line, a piece for each budget in force."""
    changes = [step for index, step in enumerate(curve) if index == 0 or step["budget"] != curve[index - 1]["budget"]]
    path, drawn = "", False
    for index, step in enumerate(changes):
        if step["budget"] is None:
            drawn = False
            continue
        start, y = frame.x(step["time"]), frame.y(step["budget"])
        end = frame.x(changes[index + 1]["time"]) if index + 1 < len(changes) else frame.right
        path += f"{'L' if drawn else 'M'}{start:.1f} {y:.1f}H{end:.1f}"
        drawn = True
    shapes = [stroke(path, LIMIT, 1.75, dashes="7 4")] if path else []
    if drawn:
        y = frame.y(changes[-1]["budget"])
        beside = y - 6 if y > frame.top + 8 else y + 15
        shapes.append(halo(_label_end(refusals, frame), beside, f"budget {exact(changes[-1]['budget'])}", LIMIT))
    return shapes


def _crosses(refusals: Sequence[Plain], frame: Frame) -> list[Markup]:
    """Where the cost would have come to, had the refused release been allowed; beyond the frame at its upper edge."""
    return [stroke(f"M{x - 4} {y - 4}l8 8m0 -8l-8 8", ALARM, 2.25) for x, y in sorted(_places(refusals, frame))]


def _label_end(refusals: Sequence[Plain], frame: Frame) -> int:
    """Where a line's label ends: at the right edge, or clear of a cross that stands there."""
    return min([frame.right - 2, *(x - 8 for x, _ in _places(refusals, frame) if x > frame.right - 10)])


def _places(refusals: Sequence[Plain], frame: Frame) -> set[tuple[int, int]]:
    return {
        (round(frame.x(item["time"])), round(frame.top if isinstance(item["after"], str) else frame.y(item["after"])))
        for item in refusals
        if item["after"] is not None
    }


def _bars(
    row: tuple[str, int, Any, Any], top: int, longest: float, width: int, second: str, *, bold: bool = False
) -> list[Markup]:
    label, releases, *costs = row
    room = width - 76
    shapes = [words(0, top + 12, f"{_clipped(label, width // 8)} · {counted(releases, 'release')}", bold=bold)]
    for place, (value, fill) in enumerate(zip(costs, (SPENT, second), strict=True)):
        endless = isinstance(value, str)
        length = room if endless else max(1.5, room * value / longest)
        y = top + 18 + 15 * place
        shapes.append(rect(0.5, y, length, 12, fill, edge=INK))
        shapes.append(words(length + 6, y + 10.5, "no bound" if endless else cost(value)))
    return shapes


def _negative(value: float | str) -> float:
    return 0.0 if isinstance(value, str) else -value


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass(frozen=True)
class Frame:
    """Where a plot's times and epsilons lie, in pixels."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    first: int
    last: int
    most: float

    @staticmethod
    def around(times: Iterable[int], epsilons: Iterable[float], width: int, height: int) -> Frame:
        """A frame that holds all of them, epsilons from 0."""
        known = [min(max(time, 0), _LATEST) for time in times]
        most = 1.12 * (max(epsilons, default=0.0) or 1.0)
        return Frame(width, height, 40, width - 8, 18, height - 42, min(known), max(known), most)

    def x(self, time: int) -> float:
        """Where a time lies."""
        share = (min(max(time, self.first), self.last) - self.first) / max(1, self.last - self.first)
        return self.left + share * (self.right - self.left)

    def y(self, epsilon: float) -> float:
        """Where an epsilon lies; at the upper edge if it lies beyond."""
        return self.bottom - min(1.0, epsilon / self.most) * (self.bottom - self.top)


def grid(frame: Frame, most_ticks: int) -> list[Markup]:
    """Lines and words of both axes."""
    shapes = [words(0, 10, "epsilon", colour=MUTED)]
    step = _round_up(frame.most / 4)
    for index in range(int(frame.most / step) + 1):
        y = frame.y(index * step)
        shapes.append(line(frame.left, y, frame.right, y, RULE if index else INK))
        shapes.append(words(frame.left - 6, y + 4, f"{index * step:g}", anchor="end", colour=MUTED))
    for time, label in ticks(frame.first, frame.last, most_ticks):
        x = frame.x(time)
        anchor = "start" if x < frame.left + 24 else "end" if x > frame.right - 24 else "middle"
        shapes.append(line(x, frame.bottom, x, frame.bottom + 5, INK))
        shapes.append(words(x, frame.bottom + 19, label, anchor=anchor, colour=MUTED))
    between = f"{moment(frame.first)} to {moment(frame.last)} UTC"
    shapes.append(words(frame.right, frame.height - 6, between, anchor="end", colour=MUTED))
    return shapes


def ticks(first: int, last: int, most: int) -> list[tuple[int, str]]:
    """At most so many round times between two (one more for months), in UTC, with words for them."""
    span = max(1, last - first)
    step = next((seconds for seconds in _SECONDS if span / seconds <= most), None)
    if step is not None:
        form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%-d %b"
        times = range(first + -first % step, last + 1, step)
        return [(time, datetime.fromtimestamp(time, UTC).strftime(form)) for time in times]
    months = next((count for count in _MONTHS if span / 86400 / 30.4 / count <= most), _MONTHS[-1])
    found = []
    date = datetime.fromtimestamp(first, UTC).replace(day=1, hour=0, minute=0, second=0)
    while (time := int(date.timestamp())) <= last:
        if time >= first and (date.year * 12 + date.month - 1) % months == 0:
            found.append((time, date.strftime("%b %Y" if months < 12 else "%Y")))
        date = (date + timedelta(days=32)).replace(day=1)
    return found


def _round_up(step: float) -> float:
    """The smallest 1, 2, 2.5 or 5 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


def drawing(name: str, title: str, says: str, width: int, height: float, shapes: Sequence[Markup]) -> Markup:
    """A picture that says in words what it shows.

    Args:
        name: unique in the page.
        width, height: in pixels, at which its text has the size of the page's.
        shapes: from back to front.
    """
    head = Markup(
        '<svg viewBox="0 0 {0} {1:g}" width="{0}" height="{1:g}" role="img" aria-labelledby="{2}-title {2}-desc"'
        ' font-size="{3}"><title id="{2}-title">{4}</title><desc id="{2}-desc">{5}</desc>'
    ).format(width, height, name, _TEXT, title, says)
    return head + Markup("").join(shapes) + Markup("</svg>")


def rect(x: float, y: float, width: float, height: float, fill: str, *, edge: str = "none") -> Markup:
    """A filled rectangle."""
    return Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}" stroke="{}" stroke-width="0.75"/>'
    ).format(x, y, width, height, fill, edge)


def line(x: float, y: float, to_x: float, to_y: float, colour: str, *, width: float = 1) -> Markup:
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" stroke-width="{:g}"/>').format(
        x, y, to_x, to_y, colour, width
    )


def stroke(path: str, colour: str, width: float, *, dashes: str = "none") -> Markup:
    """A path that is drawn, not filled."""
    return Markup(
        '<path d="{}" fill="none" stroke="{}" stroke-width="{:g}" stroke-linejoin="round" stroke-dasharray="{}"/>'
    ).format(path, colour, width, dashes)


def area(path: str, colour: str) -> Markup:
    """A path that is filled, faintly."""
    return Markup('<path d="{}" fill="{}" fill-opacity="0.1"/>').format(path, colour)


def hatch(name: str) -> Markup:
    """Defines the pattern ``url(#name)``: stripes, for what is told apart by more than colour."""
    return Markup(
        '<defs><pattern id="{}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="{}"/><rect width="2" height="6" fill="{}"/></pattern></defs>'
    ).format(name, ALONE, INK)


def words(x: float, y: float, text: str, *, anchor: str = "start", colour: str = INK, bold: bool = False) -> Markup:
    """A line of text."""
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}"{}>{}</text>').format(
        x, y, anchor, colour, Markup(' font-weight="600"') if bold else "", text
    )


def halo(x: float, y: float, text: str, colour: str, *, anchor: str = "end") -> Markup:
    """Words over a drawing, kept readable by a white edge."""
    return Markup(
        '<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}" font-weight="600" stroke="#fff" stroke-width="4"'
        ' stroke-linejoin="round" paint-order="stroke">{}</text>'
    ).format(x, y, anchor, colour, text)
