"""The method fedsgd over the whole protocol: it is DP-SGD on all records in one place, whose noise is the sites' shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.federation import TestBed, make_bed, make_clusters, make_request, schema_of
from support.randomness import SeededRandom
from support.recording import Recorder
from veilsum_coordinator.methods.fedsgd import FedSGD, FedSGDParameters
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.service.runner import RoundLostError
from veilsum_privacy.accounting.accountant import Course, GaussianEvent, epsilon_of
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.ledger import Kind
from veilsum_privacy.mechanism.noise import discrete_gaussian, gaussian_around
from veilsum_privacy.mechanism.steps import poisson_sample
from veilsum_privacy.results.result import Result, load_result
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.training.models import build_architecture
from veilsum_privacy.training.models.perceptrons import Linear

Floats = NDArray[np.float64]
WIDTH, CLASSES, SITES = 4, 3, "abcd"


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    made = make_bed(tmp_path, make_clusters(SITES, WIDTH, CLASSES, shares=(0.7, 0.25, 0.05)), min_cohort=3)
    made.know_noise()
    return made


def compiled(bed: TestBed, *, epsilon: float | None = 2.0, cohort: int | None = None, **parameters: Any) -> Study:
    request = make_request(schema_of(WIDTH, CLASSES, 200), "fedsgd", epsilon, min_cohort=cohort)
    return bed.compile(request.model_copy(update={"parameters": {"centre": False, **parameters}}))


def run(bed: TestBed, study: Study, results: Path | None = None) -> tuple[Result, Recorder]:
    key = bed.local.submit(study, bed.analyst)
    inner = bed.local.prepare(key)
    inner._results = results
    recorder = Recorder(inner)
    federation: Federation = recorder
    return FedSGD().run(federation), recorder


def softmax_rows(x: Floats, labels: NDArray[np.int64], weight: Floats, bias: Floats, scale: float, constant: float) -> Floats:
    """Each record's gradient by weight and bias of a softmax classifier, (n, K d + K): written out, nothing of the task."""
    rows = []
    for own, label in zip(x, labels, strict=True):
        scores = weight @ (scale * own) + constant * bias
        p = np.exp(scores - scores.max())
        p /= p.sum()
        error = p - (np.arange(len(bias)) == label)
        rows.append(np.concatenate([np.outer(error, scale * own).ravel(), constant * error]))
    return np.array(rows).reshape(len(x), weight.size + bias.size)


@pytest.mark.parametrize(
    ("rate", "clip", "centred"),
    [
        pytest.param(1.0, 0.1, False, marks=pytest.mark.system),
        pytest.param(0.4, 0.5, False, marks=pytest.mark.system),
        (0.7, 0.2, True),
    ],
)
def test_encrypted_steps_are_those_of_central_dp_sgd(bed: TestBed, rate: float, clip: float, centred: bool) -> None:
    """Same samples and same noise: the released sums agree to the grid and the models step by step."""
    study = compiled(bed, steps=8, sampling_rate=rate, gradient_clip=clip, centre=centred)
    result, recorder = run(bed, study)
    task = study.task("gradient")
    unit = AgreedTask(AgreedStudy(study), task).task.unit(task)
    share = Fraction(task.variance, len(SITES) - 1)
    parameters = FedSGDParameters.model_validate(study.parameters)
    assert parameters.model is not None
    assert parameters.travel is not None
    architecture = build_architecture(parameters.model, WIDTH, CLASSES)
    assert isinstance(architecture, Linear)
    scale, constant = architecture.scale, architecture.layers()[0].constant
    sources = {name: SeededRandom(f"noise of {name}".encode()) for name in SITES}
    records = {name: site.records("records", study.data) for name, site in bed.sites.items()}
    weight, bias = np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES)
    size = weight.size + bias.size
    sigma = unit * math.sqrt(len(SITES) * (share + 16))
    learning_rate = parameters.travel / (sigma * math.sqrt(8 * size))
    centre, weights = np.zeros(WIDTH), np.ones(CLASSES)
    if centred:
        release = recorder.steps.pop(0)[1]
        centre, counts = central_mean(study, release, records, sources)
        noise = release.noise_std["count"]
        known = [max(float(count), noise) for count in counts]
        weights = np.array([min(1.0, math.sqrt((min(known) + 2.0 * noise) / count)) for count in known])
        assert weights.min() < 1.0
        assert result.summary["class_weights"] == pytest.approx(dict(zip(study.data.classes, weights, strict=True)))
    models = []
    for broadcast, release in recorder.steps:
        weight, bias = weight.astype(np.float32).astype(np.float64), bias.astype(np.float32).astype(np.float64)
        np.testing.assert_allclose(broadcast["model.head.weight"], weight, atol=1e-9)
        np.testing.assert_allclose(broadcast["model.head.bias"], bias, atol=1e-9)
        central = np.zeros(size)
        for name in SITES:
            own = records[name]
            assert own.labels is not None
            taken = poisson_sample(rate, len(own), sources[name])
            rows = softmax_rows(own.features[taken] - centre, own.labels[taken], weight, bias, scale, constant)
            norms = np.linalg.norm(rows, axis=1)
            own_weights = weights[own.labels[taken]]
            total = (rows * (own_weights * np.minimum(1.0, clip / np.maximum(norms, 1e-300)))[:, None]).sum(axis=0)
            centres = np.rint(total / unit * 2**20).astype(np.int64)
            central += gaussian_around(centres, share + 16, sources[name]) * unit
        released = np.concatenate([release.values["model.head.weight"].ravel(), release.values["model.head.bias"]])
        np.testing.assert_allclose(released / unit, central / unit, atol=1e-6)  # whole grid units, and the same ones
        step = learning_rate * released
        weight, bias = weight - step[: weight.size].reshape(weight.shape), bias - step[weight.size :]
        models.append(np.concatenate([weight.ravel(), bias]))
    mean = np.mean(models[6:], axis=0)  # the last quarter
    np.testing.assert_allclose(result.arrays["model.head.weight"].ravel(), mean[: weight.size], atol=1e-9)
    np.testing.assert_allclose(result.arrays["weights"].ravel(), scale * mean[: weight.size], atol=1e-9)
    shift = scale * mean[: weight.size].reshape(weight.shape) @ centre
    np.testing.assert_allclose(result.arrays["bias"], constant * mean[weight.size :] - shift, atol=1e-9)


def central_mean(
    study: Study, release: Release, records: Mapping[str, Records], sources: Mapping[str, SeededRandom]
) -> tuple[Floats, Floats]:
    """The mean of all records' features and their number by class with the sites' noise, and that the release is it."""
    task = study.task("means")
    unit = AgreedTask(AgreedStudy(study), task).task.unit(task)
    total = np.zeros(CLASSES + WIDTH)
    for name in SITES:
        x = records[name].features
        x = x * np.minimum(1.0, 0.7 * math.sqrt(WIDTH) / np.linalg.norm(x, axis=1))[:, None]
        total += np.append(0.3 * np.bincount(records[name].labels, minlength=CLASSES), x.sum(axis=0) / math.sqrt(WIDTH))
        total += discrete_gaussian(Fraction(task.variance, len(SITES) - 1), CLASSES + WIDTH, sources[name]) * unit
    found = np.append(0.3 * release.values["count"], release.values["sum"] / math.sqrt(WIDTH))
    assert np.abs(found - total).max() <= unit * sum(len(own) for own in records.values())
    counts = release.values["count"]
    mean: Floats = np.clip(release.values["sum"] / counts.sum(), -1, 1)
    return mean, counts


def test_all_steps_are_one_event_that_is_known_beforehand(bed: TestBed) -> None:
    study = compiled(bed, steps=5, sampling_rate=0.25)
    task = study.task("gradient")
    event = GaussianEvent(task.grid, Fraction(task.variance), 0.25, 5, Course(5, task.slack))
    assert study.privacy.epsilon == epsilon_of([event], 1e-5, "gaussian")
    assert 1.99 < study.privacy.epsilon <= 2.0
    run(bed, study)
    for site in bed.sites.values():
        charges = site.ledger.entries(kind=Kind.CHARGE)
        assert len(charges) == 5
        assert {(entry.mechanism.sampling_rate, entry.mechanism.steps) for entry in charges if entry.mechanism} == {(0.25, 1)}
        verified = site.ledger.verify()
        spent, _ = verified.spending["records"]
        assert spent == pytest.approx(study_epsilon(study, 1e-5))


def test_no_more_steps_than_declared(bed: TestBed) -> None:
    study = compiled(bed, steps=2)
    _, recorder = run(bed, study)
    with pytest.raises(RoundLostError):
        recorder.inner.sum("gradient", recorder.steps[-1][0])


@pytest.mark.system
def test_without_noise_the_sum_is_divided_by_how_many_records_there_are(bed: TestBed) -> None:
    study = compiled(bed, epsilon=None, steps=3)
    _, recorder = run(bed, study)
    total = sum(len(site.records("records", study.data)) for site in bed.sites.values())
    assert recorder.steps[0][1].values["count"][0] == pytest.approx(total, abs=1e-3)


@pytest.mark.system
def test_checkpoints_say_what_was_spent_so_far(bed: TestBed, tmp_path: Path) -> None:
    study = compiled(bed, steps=6, checkpoint_every=1)
    key_results = tmp_path / "results"
    run(bed, study, key_results)
    (directory,) = key_results.iterdir()
    kept = sorted(path.name for path in (directory / "checkpoints").iterdir())
    assert kept == ["round-000003", "round-000004", "round-000005"]
    found = load_result(directory / "checkpoints" / "round-000004")
    assert found.arrays["model.head.weight"].shape == (CLASSES, WIDTH)
    manifest = (directory / "checkpoints" / "round-000004" / "manifest.json").read_text()
    assert f'"epsilon": {study_epsilon(study, 1e-5, {"gradient": 4})!r}' in manifest


def test_a_site_that_is_away_for_some_steps_costs_them_only(bed: TestBed) -> None:
    """A cohort without it goes on; when it is back it takes part again, and pays for its own steps."""
    study = compiled(bed, steps=4, cohort=3, followed=False)  # the model stands still
    key = bed.local.submit(study, bed.analyst)
    local = bed.local
    federation = local.prepare(key)
    model = {"model.head.weight": np.zeros((CLASSES, WIDTH)), "model.head.bias": np.zeros(CLASSES)}
    whole = federation.sum("gradient", model)
    without = federation.sum("gradient", model, members=set("abc"))
    again = federation.sum("gradient", model)
    assert (whole.cohort, without.cohort, again.cohort) == (tuple("abcd"), tuple("abc"), tuple("abcd"))
    # What the three honest shares of a whole cohort reach, two of a smaller one reach as well: S, each by sqrt(n / h); each
    # share has a variance of 16 more, for its vector is not rounded.
    variance = study.task("gradient").variance
    assert whole.noise_std["model.head.bias"] / without.noise_std["model.head.bias"] == pytest.approx(
        math.sqrt(4 * (variance / 3 + 16) / (3 * (variance / 2 + 16))), rel=1e-9
    )
    local.settle()
    assert [len(bed.sites[name].ledger.entries(kind=Kind.CHARGE)) for name in "abcd"] == [3, 3, 3, 2]
