"""A federation in memory for tests: clips, truncates and sums like sites do, with numpy's noise in place of secure sums."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from veilsum_coordinator.parts.federation import Release
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records


class MemoryFederation:
    """Sums over sites' records with the noise of a full cohort, drawn from a seeded generator."""

    def __init__(self, study: Study, sites: Mapping[str, Records], seed: int = 0) -> None:
        self._study = study
        self._sites = dict(sites)
        self._random = np.random.default_rng(seed)
        self.rounds = 0

    @property
    def study(self) -> Study:
        return self._study

    @property
    def encoder(self) -> Mapping[str, NDArray[np.float64]]:
        return {}

    def sum(
        self,
        label: str,
        broadcast: Mapping[str, NDArray[np.float64]] | None = None,
        *,
        members: Collection[str] | None = None,
    ) -> Release:
        """All sites, whoever may be in it."""
        declared = self._study.task(label)
        task = build_task(declared.task, declared.parameters, self._study.data)
        layout, unit = task.layout(), task.clip() / declared.grid
        total = np.zeros(layout.size)
        for records in self._sites.values():
            for batch in task.vectors(records, broadcast or {}):
                norm = np.linalg.norm(batch, axis=1, keepdims=True)
                clipped = batch * (task.clip() / np.maximum(norm, task.clip()))
                total += np.trunc(clipped / unit).sum(axis=0)
        n, privacy = len(self._sites), self._study.privacy
        honest = max(1, n - privacy.assumed_colluders) if privacy.noise == "distributed" else 1
        std = math.sqrt(declared.variance * n / honest) * unit
        self.rounds += 1
        values = layout.split(total * unit + std * self._random.standard_normal(layout.size))
        return Release(label, self.rounds, values, layout.noise_std(std), tuple(sorted(self._sites)), b"\0" * 32)


def split_records(records: Records, sites: int, seed: int = 0) -> dict[str, Records]:
    """Deal records to sites at random."""
    parts = np.array_split(np.random.default_rng(seed).permutation(len(records)), sites)
    return {
        f"site-{index}": Records(
            records.features[part], records.present[part], None if records.labels is None else records.labels[part]
        )
        for index, part in enumerate(parts)
    }
