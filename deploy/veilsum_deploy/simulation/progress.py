"""How far a simulated study is: rounds done of all that it declares, and the epsilon that the releases so far cost."""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.dossier.figures import cost
from veilsum_privacy.study.study import Study

Progress = Callable[[str, float], None]
"""Told what is being done and how far it is, 0 to 1."""

BAR_SECONDS, LINE_SECONDS = 0.2, 10.0
"""Least time between two reports of rounds: to a bar on a terminal, and in plain lines elsewhere."""

SHARE = 20.0
"""Reports take no more than one part in so many of a run's time."""


class RoundProgress:
    """Counts a study's releases and tells of them, not too often.

    Args:
        study: whose rounds are counted.
        what: what runs, in words, before the rounds.
        span: from where to where the whole study moves what ``progress`` is told.
        every: least seconds between two reports; None for what suits standard error.
        clock: seconds.
    """

    def __init__(
        self,
        study: Study,
        progress: Progress,
        what: str = "",
        span: tuple[float, float] = (0.0, 1.0),
        *,
        every: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study, self._progress, self._what, self._span, self._clock = study, progress, what, span, clock
        self._every = every if every is not None else BAR_SECONDS if sys.stderr.isatty() else LINE_SECONDS
        self._released: Counter[str] = Counter()
        self._all = sum(task.releases for task in study.tasks)
        self._next = clock() + self._every

    def __call__(self, label: str) -> None:
        """Count a release of a task."""
        self._released[label] += 1
        now = self._clock()
        if now < self._next:
            return
        start, end = self._span
        self._progress(self.words(), start + (end - start) * min(1.0, self._released.total() / self._all))
        # Where the account itself takes long, it is asked for less often.
        self._next = now + max(self._every, SHARE * (self._clock() - now))

    def words(self) -> str:
        """Rounds and epsilon so far, in words."""
        text = f"round {self._released.total()} of {self._all}"
        if self._study.privacy.noise != "none":
            spent = study_epsilon(self._study, self._study.privacy.delta, self._released)
            text += f", epsilon {cost(spent)} so far" if math.isfinite(spent) else ""
        return f"{self._what}: {text}" if self._what else text[0].upper() + text[1:]


class WatchedFederation(Federation):
    """A federation whose releases are told of."""

    def __init__(self, federation: Federation, watch: Callable[[str], None]) -> None:
        super().__init__(federation.study, federation.encoder)
        self._federation, self._watch = federation, watch

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        """Run one round; see :class:`~veilsum_coordinator.parts.federation.Federation`."""
        release = self._federation.sum(label, broadcast, members=members)
        self._watch(label)
        return release

    def checkpoint(self, arrays: Mapping[str, Floats], summary: Mapping[str, Any]) -> None:
        """Keep a model as it stands."""
        self._federation.checkpoint(arrays, summary)
