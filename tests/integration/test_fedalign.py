"""Alignment by moments in front of training, over the whole protocol: sites keep their moments, one ledger pays for both."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.federation import TestBed, make_bed, make_request, schema_of
from support.randomness import SeededRandom
from support.recording import Recorder
from support.rows import in_statistics_part
from veilsum.local.federation import results_directory
from veilsum_aggregation.feature_moments import moments_of_sums
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.moment_alignment import LABEL
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_participant.applying.model import load_model
from veilsum_participant.cli.apply import kept_statistic
from veilsum_privacy.accounting.accountant import Course, GaussianEvent, epsilon_of
from veilsum_privacy.ledger import Kind
from veilsum_privacy.results.result import load_result
from veilsum_privacy.study.study import Study, study_digest

Floats = NDArray[np.float64]
WIDTH, CLASSES, SITES = 4, 3, "abc"
TRAINING: dict[str, dict[str, Any]] = {
    "fedsgd": {"steps": 4, "sampling_rate": 0.5},
    "fedavg": {"rounds": 2, "local_steps": 3, "sampling_rate": 0.5, "model": {"name": "mlp", "options": {"hidden": 5}}},
}
LABELS = {"fedsgd": "gradient", "fedavg": "local-training"}


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    rng = np.random.default_rng(5)
    centres = rng.uniform(-0.6, 0.6, (CLASSES, WIDTH))
    data = {}
    for index, name in enumerate(SITES):
        labels = rng.integers(0, CLASSES, 80 + 15 * index)
        x = centres[labels] + 0.2 * rng.normal(size=(len(labels), WIDTH))
        data[name] = (np.clip(rng.uniform(0.5, 1.0, WIDTH) * x + rng.uniform(-0.2, 0.2, WIDTH), -1, 1), labels)
    made = make_bed(tmp_path, data, min_cohort=2, disclosures=("joint", "per-site"))
    made.know_noise()
    return made


def compiled(bed: TestBed, method: str, epsilon: float | None, **moments: Any) -> Study:
    noise = "none" if epsilon is None else "distributed" if method == "fedsgd" else "local"
    request = make_request(schema_of(WIDTH, CLASSES, 200), method, epsilon, noise=noise)
    return bed.compile(request.model_copy(update={"parameters": {**TRAINING[method], "moments": moments}}))


def plain_federation(bed: TestBed, study: Study) -> PlainFederation:
    sites = {}
    for name, site in bed.sites.items():
        sites[name] = PlainSite(site.records("records", study.data), SeededRandom(f"noise of {name}".encode()))
    return PlainFederation(study, sites)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("method", "epsilon", "moments"),
    [
        pytest.param("fedsgd", None, {"reference": "within"}, marks=pytest.mark.system),
        pytest.param("fedavg", None, {"order": 4}, marks=pytest.mark.system),
        ("fedsgd", 30.0, {}),
        pytest.param("fedavg", 30.0, {}, marks=pytest.mark.system),
        pytest.param("fedavg", None, {"reference": "within"}, marks=pytest.mark.system),
        pytest.param("fedsgd", None, {"order": 4}, marks=pytest.mark.system),
    ],
)
def test_encrypted_rounds_are_the_plain_ones(
    bed: TestBed, method: str, epsilon: float | None, moments: dict[str, Any]
) -> None:
    """To the last grid unit, the moments and every step that is aligned by them; with noise, for the same noise."""
    study = compiled(bed, method, epsilon, **moments)
    local, both = bed.local, []
    for inner in (local.prepare(local.submit(study, bed.analyst)), plain_federation(bed, study)):
        recorder = Recorder(inner)
        both.append((get_method(method).run(recorder), recorder))
    (encrypted, seen), (expected, known) = both
    labels = [LABEL, *(["within-moments"] if "reference" in moments else [])]
    assert [release.label for release in seen.releases][: len(labels) + 1] == [*labels, LABELS[method]]
    for one, other in zip(seen.releases, known.releases, strict=True):
        assert one.cohort == tuple(SITES)
        for name, values in one.values.items():
            np.testing.assert_array_equal(values, other.values[name])
    assert set(encrypted.arrays) == set(expected.arrays)
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(encrypted.arrays[name], array)
    assert encrypted.application == expected.application


@pytest.mark.parametrize("method", [pytest.param("fedsgd", marks=pytest.mark.system), "fedavg"])
def test_one_ledger_holds_moments_and_training(bed: TestBed, method: str) -> None:
    """Each site books both in full: the moments as its own noise alone, since it keeps them, and every release of training."""
    study = compiled(bed, method, 3.0, share=0.3)
    local = bed.local
    result = get_method(method).run(local.prepare(local.submit(study, bed.analyst)))
    moments, training = study.task(LABEL), study.task(LABELS[method])
    steps = max(1, training.local_steps)
    kept = GaussianEvent(moments.grid, Fraction(moments.variance), 1.0, 1)
    course = Course(steps * training.releases, training.slack)
    step = GaussianEvent(training.grid, Fraction(training.variance), 0.5, steps, course)
    whole = GaussianEvent(training.grid, Fraction(training.variance), 0.5, steps * training.releases, course)
    assert study.privacy.epsilon == epsilon_of([kept, whole], 1e-5, "gaussian") == pytest.approx(3.0, rel=1e-3)
    assert result.summary["epsilon"] == {
        "moments": epsilon_of([kept], 1e-5, "gaussian"),
        "training": epsilon_of([whole], 1e-5, "gaussian"),
        "total": study.privacy.epsilon,
    }
    for site in bed.sites.values():
        charges = [entry.mechanism for entry in site.ledger.entries(kind=Kind.CHARGE)]
        assert [charge.event for charge in charges if charge is not None] == [kept] + [step] * training.releases
        assert charges[0] is not None
        assert charges[0].event_alone == kept  # whoever colludes
        spent, _ = site.ledger.verify().spending["records"]
        assert spent == pytest.approx(study.privacy.epsilon)


@pytest.mark.parametrize("method", ["fedsgd", pytest.param("fedavg", marks=pytest.mark.system)])
def test_each_site_keeps_its_own_moments_and_applies_the_result_by_them(bed: TestBed, method: str, tmp_path: Path) -> None:
    study = compiled(bed, method, None)
    key = study_digest(study.to_bytes())
    bed.local.run(study, bed.analyst, tmp_path / "results")
    folder = results_directory(tmp_path / "results", key)
    plain = plain_federation(bed, study)
    expected = get_method(method).run(plain)
    assert load_result(folder).application == expected.application
    model, features = load_model(folder), {}
    for name, site in bed.sites.items():
        records = site.records("records", study.data)
        kept, noise = kept_statistic(site.config, key, LABEL)
        for block, values in plain.kept_blocks(name, LABEL).items():
            np.testing.assert_array_equal(kept[block], values)
        assert set(noise.values()) == {0.0}
        chosen = records.features[in_statistics_part(records, 0.5)]
        np.testing.assert_allclose(moments_of_sums(kept, noise).mean, chosen.mean(axis=0), atol=1e-4)
        features[name] = model.features(records, name, kept, noise)
        hits = np.mean(model.predict(records, name, kept, noise) == records.labels)
        assert method == "fedavg" or hits > 0.85  # which trains for two epochs only
    spread = [np.ptp([own.mean(axis=0) for own in parts], axis=0).max() for parts in (features.values(), raw(bed, study))]
    assert spread[0] < 0.5 * spread[1]


def raw(bed: TestBed, study: Study) -> list[Floats]:
    return [site.records("records", study.data).features for site in bed.sites.values()]
