"""The method fedavg over the whole protocol: sums are those without encryption, and what is booked is what was done."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.federation import TestBed, make_bed, make_clusters, make_request, schema_of
from support.hostile import Adversary, encoded
from support.randomness import SeededRandom
from support.recording import Recorder
from veilsum_coordinator.methods.fedavg import FedAvg
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_participant.store.attempts import PAID, attempts_in
from veilsum_participant.store.kept import paid_state
from veilsum_privacy.accounting.accountant import Course, GaussianEvent, epsilon_of
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.ledger import Kind
from veilsum_privacy.securesum.context import decode_broadcast
from veilsum_privacy.study.study import Study

Floats = NDArray[np.float64]
WIDTH, CLASSES, SITES = 4, 3, "abc"


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    made = make_bed(tmp_path, make_clusters(SITES, WIDTH, CLASSES), min_cohort=2, disclosures=("joint", "per-site"))
    made.know_noise()
    return made


def compiled(bed: TestBed, epsilon: float | None, **parameters: Any) -> Study:
    noise = "none" if epsilon is None else "local"
    request = make_request(schema_of(WIDTH, CLASSES, 200), "fedavg", epsilon, noise=noise)
    model = {"name": "mlp", "options": {"hidden": 5}}
    return bed.compile(request.model_copy(update={"parameters": {"model": model, **parameters}}))


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("epsilon", "objective"),
    [
        pytest.param(None, "none", marks=pytest.mark.system),
        (None, "scaffold"),
        (None, "moon"),
        (20.0, "none"),
        (20.0, "dyn"),
        (20.0, "proto"),
    ],
)
def test_encrypted_rounds_are_the_plain_ones(bed: TestBed, epsilon: float | None, objective: str) -> None:
    """To the last grid unit, over rounds whose training depends on what each site kept of the round before."""
    study = compiled(bed, epsilon, rounds=3, objective={"name": objective}, local_steps=2, sampling_rate=0.5)
    plain = PlainFederation(
        study,
        {
            name: PlainSite(site.records("records", study.data), SeededRandom(f"noise of {name}".encode()))
            for name, site in bed.sites.items()
        },
    )
    local = bed.local
    both = []
    for inner in (local.prepare(local.submit(study, bed.analyst)), plain):
        recorder = Recorder(inner)
        both.append((FedAvg().run(recorder), recorder))
    (encrypted, seen), (expected, known) = both
    for one, other in zip(seen.releases, known.releases, strict=True):
        assert set(one.values) == set(other.values)
        for name, values in one.values.items():
            np.testing.assert_array_equal(values, other.values[name])
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(encrypted.arrays[name], array)
    assert seen.releases[0].cohort == tuple(SITES)


def test_what_is_booked_is_what_was_done(bed: TestBed) -> None:
    study = compiled(bed, 4.0, rounds=3, local_steps=4, sampling_rate=0.25)
    (task,) = study.tasks
    local = bed.local
    FedAvg().run(local.prepare(local.submit(study, bed.analyst)))
    course = Course(12, task.slack)
    event = GaussianEvent(task.grid, Fraction(task.variance), 0.25, 12, course)
    assert study.privacy.epsilon == epsilon_of([event], 1e-5, "gaussian")
    for site in bed.sites.values():
        charges = site.ledger.entries(kind=Kind.CHARGE)
        assert len(charges) == 3
        for entry in charges:
            assert entry.mechanism is not None
            assert entry.mechanism.event == GaussianEvent(task.grid, Fraction(task.variance), 0.25, 4, course)
            assert entry.mechanism.event_alone == entry.mechanism.event  # a site's own noise, whoever colludes
        spent, _ = site.ledger.verify().spending["records"]
        assert spent == pytest.approx(study_epsilon(study, 1e-5))


def test_what_an_attempt_trained_counts_only_once_it_is_paid_for(bed: TestBed) -> None:
    """A coordinator that gives an attempt up before consent does not move a site's state."""
    study = compiled(bed, 20.0, rounds=3, objective={"name": "dyn"}, local_steps=2)
    attack = Adversary(bed, study)
    attack.set_up()
    site, (task,) = bed.sites["a"], study.tasks
    model = {"features.hidden.weight": (5, 4), "features.hidden.bias": (5,), "head.weight": (3, 5), "head.bias": (3,)}
    arrays: dict[str, Floats] = {f"model.{name}": np.full(shape, 0.1) for name, shape in model.items()}
    sent = encoded(study, task.label, {**arrays, "training.seeds": np.zeros((3, 2))})

    def paid() -> bytes | None:
        with site.database.transaction() as connection:
            return paid_state(connection, attack.key, task.label)

    for attempt in (1, 2):
        assignment = attack.assignment(SITES, number=1, attempt=attempt, broadcast=sent, label=task.label)
        for name in SITES:
            attack.assign(name, assignment, sent)
        assert paid() is None
    attack.consents(number=1, attempt=2)
    first = paid()
    assert first is not None
    assert set(decode_broadcast(first)) == {"gradient"}
    with site.database.transaction() as connection:
        assert attempts_in(connection, PAID, attack.key)[0].attempt == 2
    again = attack.assignment(SITES, number=2, attempt=3, broadcast=sent, label=task.label)
    assert attack.assign("a", again, sent).call == "upload"
    assert paid() == first
