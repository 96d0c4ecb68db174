"""Axes of a plot of epsilon over time: where times and epsilons lie, and round values to write beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from markupsafe import Markup

from veilsum_privacy.dossier.figures import moment
from veilsum_privacy.dossier.svg import INK, MUTED, RULE, line, words

_SECONDS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800, 1209600,
)  # fmt: skip
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 6000, 24000)
_LATEST = 221_845_392_000  # the year 9000: what lies beyond was not written by a clock


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
    """The smallest 1, 2, 2.5 or 5 times a power of ten that is no smaller."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))
