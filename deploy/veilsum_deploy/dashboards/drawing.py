"""Draws dashboards from what Prometheus answers: a page each, and a picture of it where there is a browser.

The pictures show the queries' answers in the layout of the dashboard. They are not made by Grafana, which draws more finely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from veilsum_deploy.dashboards.browser import photograph
from veilsum_deploy.dashboards.filling import Window, choices
from veilsum_deploy.dashboards.frames import fetch
from veilsum_deploy.dashboards.page import WIDTH, height_of, render
from veilsum_deploy.dashboards.prometheus import Prometheus
from veilsum_deploy.dashboards.reading import Board
from veilsum_node.errors import Misuse


def draw(
    boards: Sequence[Board],
    prometheus: Prometheus,
    window: Window,
    folder: Path,
    chosen: Mapping[str, str],
    browser: str | None,
) -> list[Path]:
    """Draw every dashboard; returns the files.

    Args:
        folder: gets an HTML page for each dashboard, and a PNG file of it if there is a browser.
        chosen: values of variables that take one value; the first is drawn where none is chosen.
        browser: see :func:`~veilsum_deploy.dashboards.browser.find_browser`.

    Raises:
        Misuse: a chosen value is none that Prometheus knows.
        HostileInput, StateError: Prometheus refuses a query, or does not answer; the browser fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for board in boards:
        single = [variable.name for variable in board.variables if not variable.all]
        asked = {name: value for name, value in chosen.items() if name in single}
        choice = _choose(choices(board, prometheus, window), asked)
        filled = [fetch(panel, choice, prometheus, window) for panel in board.panels]
        page = folder / f"{board.uid.removeprefix('veilsum-')}.html"
        page.write_text(
            render(board, filled, window, ", ".join(choice[name] for name in single if name in choice)), encoding="utf-8"
        )
        files.append(page)
        if browser is not None:
            files.append(photograph(browser, page, page.with_suffix(".png"), WIDTH, height_of(board)))
    return files


def _choose(found: Sequence[Mapping[str, str]], chosen: Mapping[str, str]) -> Mapping[str, str]:
    for choice in found:
        if all(choice.get(name) == value for name, value in chosen.items()):
            return choice
    known = ", ".join(sorted({choice[name] for choice in found for name in chosen if name in choice}))
    raise Misuse(f"There is no {', '.join(f'{name} {value!r}' for name, value in chosen.items())}.", f"There are: {known}.")
