"""A study as it goes on: a progress bar on a terminal, lines elsewhere, objects for programs.

A study of many rounds changes often. What is shown then is how many of its releases are done, what they have cost so far and
how long the others may take, and in a pipe no more than a line every few seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from veilsum_node.errors import StateError
from veilsum_node.process.console import print_json, print_line
from veilsum_privacy.dossier.figures import cost

if TYPE_CHECKING:
    from veilsum.remote import StudyInfo

FEW = 10
"""Releases of a study up to which every step of a round is told in a pipe."""

LINE_SECONDS, JSON_SECONDS = 10.0, 1.0
"""Least time between two lines, or two objects, of a study with more releases."""

Clock = Callable[[], float]


def follow(states: Iterable[StudyInfo], *, as_json: bool, clock: Clock = time.monotonic) -> StudyInfo:
    """Show states as they come and return the last one.

    Args:
        states: of one study, as they come.
        as_json: an object a line.
        clock: seconds.
    """
    if as_json:
        return _follow_json(states, clock)
    return _follow_bar(states, clock) if sys.stdout.isatty() else _follow_lines(states, clock)


class Pace:
    """How long a running study may still take, by how far it came since it was first seen running."""

    LEAST_SECONDS, LEAST_PROGRESS = 3.0, 0.02

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start: tuple[float, float] | None = None

    def left(self, info: StudyInfo) -> str:
        """``about 3 min left``; empty where nothing can be told yet."""
        if info.phase != "running" or not info.released:  # the first round waits for everyone to come
            self._start = None
            return ""
        now = self._clock()
        if self._start is None:
            self._start = (now, info.progress)
        began, progress = self._start
        if now - began < self.LEAST_SECONDS or info.progress < progress + self.LEAST_PROGRESS:
            return ""
        seconds = (1.0 - info.progress) * (now - began) / (info.progress - progress)
        return f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """A time for people: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 99.5:
        return f"{max(seconds, 1.0):.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 99.5 * 60.0 else f"{seconds / 3600.0:.1f} h"


class _Throttle:
    """Lets a state through if its study has few releases, something out of the ordinary happened, or enough time went by."""

    def __init__(self, clock: Clock, every: float) -> None:
        self._clock, self._every = clock, every
        self._next = 0.0
        self._shown: tuple[object, ...] | None = None

    def passes(self, info: StudyInfo) -> bool:
        now, attempts = self._clock(), info.rounds[-1].attempts if info.rounds else 1
        told = (info.phase, len(info.enrolled), len(info.refusals), attempts > 1)
        if info.declared > FEW and told == self._shown and now < self._next:
            return False
        self._next, self._shown = now + self._every, told
        return True


def _follow_json(states: Iterable[StudyInfo], clock: Clock) -> StudyInfo:
    last, throttle = None, _Throttle(clock, JSON_SECONDS)
    for last in states:
        if throttle.passes(last):
            print_json(last.to_json(), compact=True)
    return _require(last)


def _follow_lines(states: Iterable[StudyInfo], clock: Clock) -> StudyInfo:
    last, throttle, pace = None, _Throttle(clock, LINE_SECONDS), Pace(clock)
    shown = ""
    for last in states:
        line, left = words(last), pace.left(last)
        if line == shown or not throttle.passes(last):
            continue
        print_line(f"{last.progress:4.0%} {line}" + (f", {left}" if left and last.declared > FEW else ""))
        sys.stdout.flush()
        shown = line
    return _require(last)


def _follow_bar(states: Iterable[StudyInfo], clock: Clock) -> StudyInfo:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )
    last, pace = None, Pace(clock)
    with Progress(*columns, console=Console()) as progress:
        bar = progress.add_task("connecting", total=1.0, left="")
        for last in states:
            progress.update(bar, completed=last.progress, description=words(last, short=True), left=pace.left(last))
    return _require(last)


def words(info: StudyInfo, *, short: bool = False) -> str:
    """What happens now, in a few words; ``short`` leaves out the phase of one round among many."""
    text = info.phase
    if info.phase == "enrolling":
        text += f" {len(info.enrolled)}/{len(info.participants)}"
    elif info.phase == "running" and info.rounds:
        current = info.rounds[-1]
        text += f" {current.label}" if short and info.declared > FEW else f" round {current.round} ({current.label})"
        text += "" if short and info.declared > FEW else f": {current.phase}"
        if current.attempts > 1:
            text += f", attempt {current.attempts}"
    if info.declared > 1 and info.phase not in ("enrolling", "sealing"):
        text += f", {info.released} of {info.declared}"
        text += "" if short else " releases"
        if info.epsilon is not None and info.epsilon_spent is not None:
            text += f", epsilon {cost(info.epsilon_spent)} of {cost(info.epsilon)}"
    if info.refusals:
        text += f", {len(info.refusals)} refused"
    return text


def _require(info: StudyInfo | None) -> StudyInfo:
    if info is None:
        raise StateError("The coordinator ended the watch without a reason.", "Try `veilsum study show`.")
    return info
