"""Fills in what a dashboard's queries leave open, as Grafana does: variables, the step, the windows of rates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from veilsum_deploy.dashboards.prometheus import Prometheus
from veilsum_deploy.dashboards.reading import Board, label_values

PIXELS = 400
"""Points that a curve has at most: about a panel's width."""

_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800)
_SPECIAL = re.compile(r"[.*+?^${}()|\[\]]")


@dataclass(frozen=True)
class Window:
    """The time that a dashboard shows.

    Attributes:
        start, end: Unix seconds.
        scrape: seconds between two scrapes; no step is shorter.
    """

    start: float
    end: float
    scrape: float

    @property
    def step(self) -> float:
        """Seconds between two points of a curve."""
        least = max(self.scrape, (self.end - self.start) / PIXELS)
        return float(next((step for step in _STEPS if step >= least), _STEPS[-1]))

    @property
    def rate_interval(self) -> float:
        """Seconds that a rate looks back: never fewer than four scrapes, and one scrape more than a step."""
        return max(self.step + self.scrape, 4 * self.scrape)

    def fill(self, expr: str, values: Mapping[str, str]) -> str:
        """An expression with variables and windows filled in."""
        known = {
            **values,
            "__rate_interval": f"{self.rate_interval:.0f}s",
            "__interval": f"{self.step:.0f}s",
            "__range": f"{max(1, round(self.end - self.start))}s",
        }
        return re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda found: known.get(found[1] or found[2], found[0]), expr)


def choices(board: Board, prometheus: Prometheus, window: Window) -> list[dict[str, str]]:
    """Values for a dashboard's variables: all of each, and one choice for each value where only one can be chosen.

    A variable without values is left out, so that queries which need it find nothing.
    """
    found: list[dict[str, str]] = [{}]
    for variable in board.variables:
        more = []
        for choice in found:
            selector, label = label_values(window.fill(variable.query, choice))
            values = prometheus.label_values(selector, label, window.start, window.end)
            if not values:
                more.append(choice)
            elif variable.all:
                more.append({**choice, variable.name: _either(values)})
            else:
                more.extend({**choice, variable.name: value.replace("\\", 2 * "\\")} for value in values)
        found = more
    return found


def _either(values: list[str]) -> str:
    """A regular expression for any of the values, within a PromQL string: escaped for the one and for the other."""
    escaped = [_SPECIAL.sub(r"\\\\\g<0>", value.replace("\\", 4 * "\\")) for value in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"
