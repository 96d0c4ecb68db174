"""Noise is drawn anew for every payload: over sites, attempts, rounds and studies, for every kind of task.

Each site's own vector is opened out of its payload. The sites hold no records, so that it is noise alone. Noise that came
twice would be taken off by whoever sees both sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.hostile import NAMES, Adversary, altered, encoded
from support.opening import own_vector
from support.randomness import RARE, RARE_DEVIATIONS
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import TrainingTask
from veilsum_privacy.tasks.gradient import Gradient
from veilsum_privacy.tasks.local_training import SEEDS, LocalTraining
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_proto import federation_pb2 as pb

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A study, of whose first task the rounds are.

    Attributes:
        changes: of the compiled study; see :func:`support.hostile.altered`.
        width: number of features, from which follows how many values of noise there are.
    """

    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    noise: str = "distributed"
    epsilon: float = 4.0
    width: int = 60

    def study(self, bed: TestBed) -> Study:
        request = make_request(
            schema_of(self.width, max_records=40), self.method, self.epsilon, noise=self.noise, min_cohort=2
        )
        compiled = bed.compile(request.model_copy(update={"parameters": dict(self.parameters)}))
        return altered(compiled, **{"privacy__epsilon": 900.0, "task__releases": 3, **self.changes})


def sent(study: Study) -> bytes:
    """What the rounds of the study's first task start from."""
    label, task = study.tasks[0].label, AgreedStudy(study).tasks[0].task
    if isinstance(task, LocalTraining):
        seeds = {SEEDS: np.zeros((study.sites, 2))}
        return encoded(study, label, {**to_broadcast(task.architecture.initial(0)), **seeds})
    if isinstance(task, Gradient):
        model = build_architecture(ModelSpec.model_validate(study.tasks[0].parameters["model"]), study.width, 2)
        return encoded(study, label, to_broadcast(model.initial(0)))
    return b""


SAMPLED = {"followed": False, "steps": 3, "sampling_rate": 0.5, "gradient_clip": 0.5, "centre": False}
TRAINED = {"model": {"name": "linear"}, "rounds": 3, "local_steps": 2, "sampling_rate": 0.5}

CASES = {
    "records": Case("statistics", width=300),
    "records, local": Case("statistics", noise="local", width=300),
    "per site, of old": Case("fedcgs", {"centre": False}, changes={"task__disclosure": "per-site"}),
    "per site": Case("fedcgs", {"centre": False, "disclosure": "per-site"}),
    "site": Case("fedsgd", {"steps": 3, "gradient_clip": 0.5, "centre": False, "followed": False}, width=300),
    "sampled": Case("fedsgd", SAMPLED, width=300),
    "training": Case("fedavg", TRAINED, noise="local", epsilon=100.0),
}


def noises(attack: Adversary, number: int, attempt: int) -> list[Floats]:
    """All pieces of noise of an attempt, each drawn by itself: one a site, or one a site and block that it adds noise to."""
    task, broadcast = attack.study.tasks[0], sent(attack.study)
    assignment = attack.assignment(number=number, attempt=attempt, broadcast=broadcast, label=task.label)
    found = []
    for name in NAMES:
        assert attack.assign(name, assignment, broadcast).call == "upload"
        own = own_vector(attack, name, attempt).astype(np.float64)
        if isinstance(AgreedTask(AgreedStudy(attack.study), task).task, TrainingTask):
            own = own[:-1]  # the last value counts the site
        if task.disclosure == "joint":
            found.append(own)
            continue
        blocks, place = own.reshape(attack.study.sites, -1), attack.study.participants.index(name)
        if task.own_noise:
            assert not np.delete(blocks, place, axis=0).any(), "another site's block"
        found += [blocks[place]] if task.own_noise else list(blocks)
    return found


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_no_payload_bears_the_noise_of_another(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    bed = make_bed(tmp_path, make_data(rows=0, width=case.width), min_cohort=2, disclosures=("joint", "per-site"))
    attack = Adversary(bed, case.study(bed))
    attack.set_up()
    found = noises(attack, 1, 1)  # given up at the next assignment
    found += noises(attack, 1, 2)
    attack.consents(1, 2)
    for member in NAMES:
        attack.tell(member, pb.DIRECTIVE_KIND_RELEASED, 1, 2)
    found += noises(attack, 2, 3)
    plan = attack.plan(3)
    attack.use(case.study(bed))
    attack.set_up()
    found += noises(attack, 1, 1)
    attack.check_ledgers()

    vectors = np.array(found)
    pieces, size = vectors.shape
    assert pieces == 4 * len(NAMES) * (len(NAMES) if name == "per site, of old" else 1)
    assert size > 2 * case.width
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    alike = np.abs(unit @ unit.T - np.eye(pieces))
    # What independent noise gives; of up to 2,016 pairs one is beyond 8 standard deviations with a chance below 3e-12.
    assert alike.max() < 8 / np.sqrt(size)
    if plan.noise.drawn:
        spread = (vectors**2).sum(axis=1) / float(plan.noise.share_variance)
        assert stats.chi2(size).cdf(spread).min() > RARE / pieces
        assert stats.chi2(size).sf(spread).min() > RARE / pieces
        assert abs(spread.mean() / size - 1) < RARE_DEVIATIONS * np.sqrt(2 / vectors.size) < 0.1
