"""Studies of four sites that exist nowhere, as most evaluations compile them, and what they are run on in this process."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from veilsum.compile import PrivacyRequest, StudyRequest, draft_study
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_deploy.datasets import take_records
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records, RowTask

SITES = ("a", "b", "c", "d")


def study_of(
    method: str, schema: DatasetSchema, records: int, epsilon: float | None, sites: Sequence[str] = SITES, **asked: Any
) -> Study:
    """The study of a method on ``records`` at all sites together; without noise where ``epsilon`` is None.

    Args:
        **asked: further keys of the request, as ``parameters``.
    """
    content = {"name": "evaluation", "method": method, "dataset": "evaluation", "data": schema, **asked}
    content["expected_records"] = records // len(sites)
    content["privacy"] = PrivacyRequest(noise="none") if epsilon is None else PrivacyRequest(epsilon=epsilon)
    return compile_for_sites(StudyRequest.model_validate(content), sites)


def complete_records(features: Floats, labels: NDArray[np.int64] | None = None) -> Records:
    """Records of features (n, width) without a missing value."""
    return Records(features, np.ones(features.shape, dtype=np.bool_), labels)


def compile_for_sites(request: StudyRequest, sites: Sequence[str] = SITES) -> Study:
    """The study of these sites; nobody signs it."""
    return draft_study(
        request, federation_id="0" * 64, coordinator="hub", participants=list(sites), clock=lambda: 0, random=SYSTEM_RANDOM
    ).compile()


def run_on_sites(study: Study, records: Records, seed: int) -> Result:
    """The result of a study without encryption, on records dealt to :data:`SITES` (:func:`dealt_sites`)."""
    return METHODS[study.method].run(PlainFederation(study, dealt_sites(records, seed)))


def dealt_sites(records: Records, seed: int) -> dict[str, PlainSite]:
    """Records dealt to :data:`SITES` at random, in numbers that differ by one at most."""
    dealt = np.random.default_rng((seed, 1)).permutation(len(records)) % len(SITES)
    return {name: PlainSite(take_records(records, np.flatnonzero(dealt == k))) for k, name in enumerate(SITES)}


class Sums(Federation):
    """A federation of one site's worth of records, with the noise of four."""

    def __init__(self, study: Study, records: Records, rng: np.random.Generator) -> None:
        super().__init__(study)
        self._records, self._rng, self._rounds = [records], rng, 0
        self._sites: Sequence[str] = SITES

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        agreed = AgreedStudy(self.study).task(label)
        task, layout = cast(RowTask[Any], agreed.task), agreed.task.layout()
        parts = np.zeros((len(self._records), layout.size))
        for place, records in enumerate(self._records):
            for batch in task_rows(task, records, broadcast or {}):
                parts[place] += batch.sum(axis=0, dtype=np.float64)
        totals = parts if agreed.per_site else parts.sum(axis=0, keepdims=True)
        std = math.sqrt(agreed.released_variance(len(self._sites)))
        noised = [layout.split(total + std * agreed.unit * self._rng.standard_normal(layout.size)) for total in totals]
        values = {name: np.stack([each[name] for each in noised]) for name in noised[0]} if agreed.per_site else noised[0]
        self._rounds += 1
        return Release(label, self._rounds, values, agreed.block_std(std), tuple(self._sites), bytes(32))


class SiteSums(Sums):
    """A federation of the study's sites, each with records of its own."""

    def __init__(self, study: Study, records: Sequence[Records], rng: np.random.Generator) -> None:
        super().__init__(study, records[0], rng)
        self._records, self._sites = list(records), study.participants
