"""A federation that remembers what was broadcast and released."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_privacy.study.study import Study

Floats = NDArray[np.float64]


class Recorder:
    """Hands everything on to another federation.

    Attributes:
        inner: that one.
        steps: what was broadcast and what was released, in order.
    """

    def __init__(self, inner: Federation) -> None:
        self.inner = inner
        self.steps: list[tuple[dict[str, Floats], Release]] = []

    @property
    def study(self) -> Study:
        return self.inner.study

    @property
    def encoder(self) -> Mapping[str, Floats]:
        return self.inner.encoder

    @property
    def releases(self) -> list[Release]:
        """What was released, in order."""
        return [release for _, release in self.steps]

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        release = self.inner.sum(label, broadcast, members=members)
        self.steps.append((dict(broadcast or {}), release))
        return release

    def checkpoint(self, arrays: Mapping[str, Floats], summary: Mapping[str, Any]) -> None:
        self.inner.checkpoint(arrays, summary)
