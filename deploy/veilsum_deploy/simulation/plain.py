"""A federation without encryption, for fast simulation: the same tasks, clipping, grid, clamp and noise shares, added up.

Every site takes part in every round. There are no keys, masks, ledgers or policies, and so no protection: all records are in
this process anyway. The released integers are those of the protocol, for the same noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilsum_coordinator.federation import Release
from veilsum_coordinator.journal import release_digest
from veilsum_coordinator.runner import RoundLostError, read_release
from veilsum_privacy.computing import Place, compute_sum, kept_blocks, kept_part
from veilsum_privacy.errors import Misuse
from veilsum_privacy.features import Encode
from veilsum_privacy.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_privacy.securesum.context import decode_broadcast, encode_broadcast, plan_round
from veilsum_privacy.study import Study, study_digest
from veilsum_privacy.tasks.base import Records


@dataclass(frozen=True)
class PlainSite:
    """A simulated site.

    Attributes:
        records: as the schema gives them, or encoded already where the study's encoder is a program and ``encode`` is None.
        noise_random: where its noise comes from.
        encode: the study's program.
    """

    records: Records
    noise_random: RandomSource = SYSTEM_RANDOM
    encode: Encode | None = None


class PlainFederation:
    """Implements :class:`~veilsum_coordinator.federation.Federation` by plain addition.

    Args:
        study: the compiled study.
        sites: by name, exactly the study's participants.
        encoder: arrays of the study's projection, which every round broadcasts.

    Attributes:
        sums: the released integers so far, in grid units, in order.
    """

    def __init__(
        self, study: Study, sites: Mapping[str, PlainSite], encoder: Mapping[str, NDArray[np.float64]] | None = None
    ) -> None:
        if set(sites) != set(study.participants):
            raise Misuse("The simulated sites are not the study's participants.")
        self.sums: list[NDArray[np.int64]] = []
        self._study, self._sites = study, sites
        self._key = study_digest(study.to_bytes())
        self._released: Counter[str] = Counter()
        self._encoder = dict(encoder or {})
        self._kept: dict[str, dict[str, NDArray[np.int64]]] = {name: {} for name in sites}

    @property
    def study(self) -> Study:
        """The study that is simulated."""
        return self._study

    @property
    def encoder(self) -> Mapping[str, NDArray[np.float64]]:
        """Arrays of the study's projection; empty without one."""
        return self._encoder

    def kept_blocks(self, site: str, label: str) -> dict[str, NDArray[np.float64]]:
        """Blocks of the noised statistic that a site kept of a task, in their own units.

        Raises:
            KeyError: it kept none.
        """
        return kept_blocks(self._study, label, self._kept[site][label])[0]

    def sum(self, label: str, broadcast: Mapping[str, NDArray[np.float64]] | None = None) -> Release:
        """Run one round of a declared task.

        Raises:
            HostileInput: the study declares no such task.
            RoundLostError: its releases are used up.
        """
        study, cohort = self._study, self._study.participants
        plan = plan_round(study, label, len(cohort), len(cohort))
        if self._released[label] >= plan.declaration.releases:
            raise RoundLostError(f"The releases of {label} are used up.")
        arrays = decode_broadcast(encode_broadcast({**self._encoder, **(broadcast or {})}))
        total = np.zeros(plan.encoding.size, dtype=np.int64)
        for index, name in enumerate(cohort):
            site, kept = self._sites[name], self._kept[name]
            noised = compute_sum(study, plan, site.records, arrays, Place(index, kept, site.encode)).total
            noised = noised + plan.noise.draw(plan.encoding.size, site.noise_random)
            if plan.declaration.keep:
                kept[label] = kept_part(study, plan.declaration, noised, index)
            total += noised
        self._released[label] += 1
        self.sums.append(total)
        number = len(self.sums)
        digest = release_digest(self._key, number, number, total.astype("<i8").tobytes())
        return read_release(study, plan, total, number, cohort, digest)
