"""What a method sees of a federation: the study, and sums of declared tasks. Nothing else.

Over gRPC and in one process the behaviour is the same; methods, tasks and the mathematics cannot tell which they run on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from veilsum_privacy.study.study import Study


@dataclass(frozen=True)
class Release:
    """One opened sum.

    Attributes:
        label: of the declared task.
        round: number of the round that yielded it.
        values: the sum's blocks in their own units, by name. Where a task is disclosed per site, each has a leading axis: one
            row a member, in the cohort's order.
        noise_std: by block, the standard deviation of the noise of a value in the sum, in the block's units.
        cohort: ids of the participants whose vectors are in the sum.
        digest: of the release as journalled (:func:`veilsum_privacy.results.proof_files.release_digest`).
    """

    label: str
    round: int
    values: dict[str, NDArray[np.float64]]
    noise_std: dict[str, float]
    cohort: tuple[str, ...]
    digest: bytes


class Federation(Protocol):
    """Runs rounds of one study."""

    @property
    def study(self) -> Study:
        """The study that everyone agreed to."""
        ...

    @property
    def encoder(self) -> Mapping[str, NDArray[np.float64]]:
        """Arrays of the study's projection, which every sum broadcasts and a result repeats; empty without one."""
        ...

    def sum(
        self,
        label: str,
        broadcast: Mapping[str, NDArray[np.float64]] | None = None,
        *,
        members: Collection[str] | None = None,
    ) -> Release:
        """Run one round of the declared task ``label`` and return its sum.

        Args:
            label: a task of the study.
            broadcast: arrays that every participant's task receives, derived from earlier releases only.
            members: who may be in the cohort; None for all participants.

        Raises:
            VeilsumError: the round could not be completed; what it cost is in the ledgers.
        """
        ...

    def checkpoint(self, arrays: Mapping[str, NDArray[np.float64]], summary: Mapping[str, Any]) -> None:
        """Keep a model as it stands, with the epsilon that the rounds so far cost; a simulation may pass it over."""
        ...
