"""Asks a Prometheus every query of every dashboard and names those that return nothing.

What a dashboard leaves open is filled in as Grafana does it: variables, the step, the windows of rates.
"""

import argparse
import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grafana.build import DASHBOARDS

SECONDS = 10.0
POINTS = 400
"""Points that a curve has at most: about a panel's width."""

NOT_A_NUMBER = (
    "veilsum_backup_timestamp_seconds",
    "veilsum_directory_expiry_timestamp_seconds",
    "veilsum_dataset_unmatched_ratio",
)
"""Metrics that are NaN at a party which has no use for what they measure; other curves of NaN are taken for no data."""

_SPECIAL = re.compile(r"[.*+?^${}()|\[\]]")


class CheckError(Exception):
    """Prometheus cannot be asked, or a dashboard cannot be read."""


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
        return max(self.scrape, (self.end - self.start) / POINTS)

    def fill(self, expr: str, values: Mapping[str, str]) -> str:
        """An expression with variables and windows filled in; a rate looks back over four scrapes at least."""
        known = {
            **values,
            "__rate_interval": f"{max(self.step + self.scrape, 4 * self.scrape):.0f}s",
            "__range": f"{max(1, round(self.end - self.start))}s",
        }
        return re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda found: known.get(found[1] or found[2], found[0]), expr)


@dataclass(frozen=True)
class PanelAnswer:
    """What one query returned.

    Attributes:
        board, panel: titles.
        expr: as it was sent.
        series: how many series have at least one number, or may be without.
        fault: why Prometheus refused it; empty if it did not.
    """

    board: str
    panel: str
    expr: str
    series: int
    fault: str = ""


class Prometheus:
    """Asks one Prometheus.

    Args:
        url: for example http://localhost:9090.

    Raises:
        CheckError: it is not an http or https URL.
    """

    def __init__(self, url: str) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise CheckError(f"{url!r} is not a URL. Give Prometheus' address, for example http://localhost:9090.")
        self.url = url.rstrip("/")

    def get(self, path: str, asked: Mapping[str, str]) -> Any:
        """The data of an answer.

        Raises:
            ValueError: Prometheus refuses what was asked.
            CheckError: it cannot be reached, or what answers is not Prometheus.
        """
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as reply:  # noqa: S310  checked in __init__
                body = reply.read()
        except urllib.error.HTTPError as error:
            body = error.read()
        except OSError as error:
            raise CheckError(f"Prometheus at {self.url} does not answer ({error}).") from error
        try:
            content = json.loads(body)
            fault = "" if content["status"] == "success" else f"{content['errorType']}: {content['error']}"
        except (ValueError, KeyError, TypeError) as error:
            raise CheckError(f"What answers at {self.url} is not Prometheus.") from error
        if fault:
            raise ValueError(fault)
        return content["data"]


def check(boards: list[dict[str, Any]], prometheus: Prometheus, window: Window) -> list[PanelAnswer]:
    """Ask all queries, and those of variables; with a variable of one value, a query is asked for each of its values.

    Raises:
        CheckError: Prometheus cannot be reached.
    """
    answers = []
    for board in boards:
        for choice in _choices(board, prometheus, window):
            for variable in _variables(board):
                found = int(variable["name"] in choice)
                answers.append(PanelAnswer(board["title"], f"variable {variable['name']}", variable["query"]["query"], found))
            for panel in board["panels"]:
                for target in panel.get("targets", ()):
                    expr = window.fill(target["expr"], choice)
                    answers.append(_ask(prometheus, board["title"], panel["title"], expr, window, target["instant"]))
    return answers


def _ask(prometheus: Prometheus, board: str, panel: str, expr: str, window: Window, instant: bool) -> PanelAnswer:
    start, end = f"{window.start:.3f}", f"{window.end:.3f}"
    try:
        if instant:
            data = prometheus.get("query", {"query": expr, "time": end})
        else:
            data = prometheus.get("query_range", {"query": expr, "start": start, "end": end, "step": f"{window.step:g}"})
    except ValueError as error:
        return PanelAnswer(board, panel, expr, 0, str(error))
    series = [item.get("values") or [item["value"]] for item in data["result"]]
    ignored = None if any(metric in expr for metric in NOT_A_NUMBER) else "NaN"
    return PanelAnswer(board, panel, expr, sum(any(value != ignored for _, value in points) for points in series))


def _variables(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [item for item in board["templating"]["list"] if item["type"] == "query"]


def _choices(board: Mapping[str, Any], prometheus: Prometheus, window: Window) -> list[dict[str, str]]:
    """Values for a dashboard's variables: all of each, and one choice for each value where only one can be chosen.

    A variable without values is left out, so that queries which need it find nothing.
    """
    found: list[dict[str, str]] = [{}]
    for variable in _variables(board):
        more = []
        for choice in found:
            selector, label = label_values(window.fill(variable["query"]["query"], choice))
            asked = {"match[]": selector, "start": f"{window.start:.3f}", "end": f"{window.end:.3f}"}
            values = prometheus.get(f"label/{label}/values", asked)
            if not values:
                more.append(choice)
            elif variable["includeAll"]:
                more.append({**choice, variable["name"]: any_of(values)})
            else:
                more.extend({**choice, variable["name"]: value.replace("\\", 2 * "\\")} for value in values)
        found = more
    return found


def label_values(query: str) -> tuple[str, str]:
    """Selector and label of a variable's query ``label_values(selector, label)``.

    Raises:
        CheckError: it has another form.
    """
    found = re.fullmatch(r"label_values\((.+), *(\w+)\)", query)
    if found is None:
        raise CheckError(f"The variable's query {query} is not label_values(selector, label).")
    return found[1], found[2]


def any_of(values: list[str]) -> str:
    """A regular expression for any of the values, within a PromQL string: escaped for the one and for the other."""
    escaped = [_SPECIAL.sub(r"\\\\\g<0>", value.replace("\\", 4 * "\\")) for value in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def read_boards(folder: Path = DASHBOARDS) -> list[dict[str, Any]]:
    """The written dashboards.

    Raises:
        CheckError: there is none, or a file is not a dashboard.
    """
    boards = []
    for path in sorted(folder.glob("*.json")):
        board = json.loads(path.read_bytes())
        if not {"title", "panels", "templating"} <= set(board):
            raise CheckError(f"{path} is not a dashboard.")
        boards.append(board)
    if not boards:
        raise CheckError(f"There are no dashboards in {folder}.")
    return boards


def main() -> None:
    """Check; status 1 if a query returns nothing, 2 if it could not be asked."""
    parser = argparse.ArgumentParser(prog="python -m grafana.check", description=__doc__)
    parser.add_argument("--prometheus", required=True, metavar="URL", help="for example http://localhost:9090")
    parser.add_argument("--minutes", type=int, default=15, help="how far back from now (default: %(default)s)")
    parser.add_argument("--scrape", type=float, default=15.0, help="seconds between two scrapes (default: %(default)s)")
    parser.add_argument("--dashboards", type=Path, default=DASHBOARDS, help="the written files (default: %(default)s)")
    given = parser.parse_args()
    end = time.time()
    try:
        window = Window(end - 60 * given.minutes, end, given.scrape)
        answers = check(read_boards(given.dashboards), Prometheus(given.prometheus), window)
    except CheckError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    empty = [answer for answer in answers if not answer.series]
    for answer in empty:
        print(f"{answer.board} / {answer.panel}: {answer.fault or 'no data'}: {answer.expr}")
    print(f"{len(answers)} queries, {len(empty)} without data")
    sys.exit(1 if empty else 0)


if __name__ == "__main__":
    main()
