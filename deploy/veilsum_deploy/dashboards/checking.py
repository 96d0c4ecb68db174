"""Runs every query of every panel and says which return nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from veilsum_deploy.dashboards.filling import Window, choices
from veilsum_deploy.dashboards.prometheus import Prometheus, Series
from veilsum_deploy.dashboards.reading import Board, queries
from veilsum_node.errors import HostileInput


@dataclass(frozen=True)
class Answer:
    """What one query returned.

    Attributes:
        board, panel: titles.
        letter: of the query in its panel.
        expr: as it was sent.
        series: how many series have at least one number.
        fault: why Prometheus refused it; empty if it did not.
    """

    board: str
    panel: str
    letter: str
    expr: str
    series: int
    fault: str = ""


def check(boards: Iterable[Board], prometheus: Prometheus, window: Window) -> list[Answer]:
    """Run all queries, and those of variables; a query with a variable of one value runs for each value.

    Raises:
        StateError: Prometheus cannot be reached.
    """
    answers = []
    for board in boards:
        for choice in choices(board, prometheus, window):
            answers += [
                Answer(board.title, f"variable {variable.name}", "", variable.query, int(variable.name in choice))
                for variable in board.variables
            ]
            for panel, target in queries(board):
                expr = window.fill(target.expr, choice)
                try:
                    found = ask(prometheus, expr, window, instant=target.instant)
                    answers.append(Answer(board.title, panel.title, target.letter, expr, count(found)))
                except HostileInput as error:
                    answers.append(Answer(board.title, panel.title, target.letter, expr, 0, error.message))
    return answers


def ask(prometheus: Prometheus, expr: str, window: Window, *, instant: bool) -> list[Series]:
    """A filled-in query's series, of the window's end or over all of it."""
    if instant:
        return prometheus.instant(expr, window.end)
    return prometheus.over(expr, window.start, window.end, window.step)


def count(series: Iterable[Series]) -> int:
    """How many series have a number; NaN is none."""
    return sum(not math.isnan(each.last) for each in series)
