"""The method gbdt over the whole protocol: its encrypted releases are the sums of all records in one place, with the sites'
noise; its trees are those of these releases; and the released model is evaluated on the sites' records."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, recall_score, roc_auc_score

from support.federation import DATASET, TestBed, make_bed, make_request, schema_of
from support.randomness import SeededRandom
from support.recording import Recorder
from veilsum.local.federation import results_directory
from veilsum.request import with_model
from veilsum_coordinator.methods.gbdt import GBDT
from veilsum_coordinator.parts.federation import Federation
from veilsum_participant.applying.model import load_model
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.ledger import Kind
from veilsum_privacy.mechanism.noise import discrete_gaussian
from veilsum_privacy.results.result import Result, load_result
from veilsum_privacy.study.study import Study, study_digest
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import Records

Floats = NDArray[np.float64]
WIDTH, SITES, DEPTH, TREES, ROUNDS = 4, "abcd", 2, 3, 3
NUMBER = 1
"""In place of how many classes there are: the last column is predicted."""
PARAMETERS = {"rounds": ROUNDS, "trees": TREES, "depth": DEPTH}


@pytest.fixture
def classes() -> int:
    return 2


@pytest.fixture
def bed(tmp_path: Path, classes: int) -> TestBed:
    rng = np.random.default_rng(5)
    data = {}
    for index, name in enumerate(SITES):
        x = rng.uniform(-1.0, 1.0, (60 + 15 * index, WIDTH))
        scores = 2.0 * np.column_stack([np.sign(x[:, 0] * x[:, 1]), *x[:, 2 : classes + 1].T])
        data[name] = x, np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
    made = make_bed(tmp_path / "bed", data, min_cohort=3)
    for name, site in made.sites.items():
        site.noise_random = SeededRandom(f"noise of {name}".encode())
    return made


def compiled(bed: TestBed, classes: int, epsilon: float | None, **parameters: Any) -> Study:
    request = make_request(schema_of(WIDTH, max(2, classes), 200), "gbdt", epsilon)
    if classes == NUMBER:
        parameters["outcome"] = {"column": f"x{WIDTH - 1}", "loss": "squared"}
    return bed.compile(request.model_copy(update={"parameters": {**PARAMETERS, **parameters}}))


def all_records(bed: TestBed, classes: int) -> dict[str, Records]:
    return {name: site.records(DATASET, schema_of(WIDTH, max(2, classes), 200)) for name, site in bed.sites.items()}


def walk(row: Floats, features: Floats, thresholds: Floats) -> int:
    """The leaf of one record in one tree, written out."""
    node = 0
    while node < len(features):
        node = 2 * node + (2 if row[int(features[node])] >= thresholds[node] else 1)
    return node - len(features)


def sums_of(records: Records, broadcast: dict[str, Floats], classes: int) -> tuple[Floats, Floats]:
    """Gradients and Hessians of one site's records by leaf of the last trees, (B, 2^D) or (B, 2^D, C): written out."""
    features, thresholds, leaves, base = (broadcast["model." + n] for n in ("features", "thresholds", "leaves", "base"))
    each = () if classes <= 2 else (classes,)
    gradients, hessians = np.zeros((TREES, 2**DEPTH, *each)), np.zeros((TREES, 2**DEPTH, *each))
    assert records.labels is not None
    for row, label in zip(records.features, records.labels, strict=True):
        margin = base + np.sum([leaves[k][walk(row, features[k], thresholds[k])] for k in range(len(features))], axis=0)
        p: Any
        if classes == NUMBER:
            p, error = 0.5, np.clip(margin[0] - row[-1], -1.0, 1.0)
        elif classes == 2:
            p = float(scipy.special.expit(margin[0]))
            error = p - label
        else:
            p = scipy.special.softmax(margin)
            error = p - np.eye(classes)[label]
        for tree in range(TREES):
            leaf = walk(row, features[tree - TREES], thresholds[tree - TREES])
            gradients[tree, leaf] += error
            hessians[tree, leaf] += 1.0 if classes == NUMBER else p * (1.0 - p)
    return gradients, hessians


@pytest.mark.parametrize(
    "classes", [pytest.param(2, marks=pytest.mark.system), 3, pytest.param(NUMBER, marks=pytest.mark.system)]
)
def test_encrypted_releases_are_sums_of_all_records_and_the_noise_of_the_sites(bed: TestBed, classes: int) -> None:
    study = compiled(bed, classes, 8.0)
    key = bed.local.submit(study, bed.analyst)
    recorder = Recorder(bed.local.prepare(key))
    federation: Federation = recorder
    result = GBDT().run(federation)
    (task,) = study.tasks
    agreed = AgreedTask(AgreedStudy(study), task).task
    unit, records = agreed.unit(task), all_records(bed, classes)
    weights = {block.name: block.weight for block in agreed.layout().blocks}
    sources = {name: SeededRandom(f"noise of {name}".encode()) for name in SITES}
    number = sum(len(own) for own in records.values())
    for broadcast, release in recorder.steps:
        total = np.zeros(agreed.layout().size)
        for name in SITES:
            gradients, hessians = sums_of(records[name], broadcast, classes)
            total += np.concatenate([weights["gradients"] * gradients.ravel(), weights["hessians"] * hessians.ravel()])
            total += discrete_gaussian(Fraction(task.variance, len(SITES) - 1), len(total), sources[name]) * unit
        released = np.concatenate([weights[name] * release.values[name].ravel() for name in ("gradients", "hessians")])
        # Each record is truncated by less than a unit; leaves are added up in float32.
        assert np.abs(released - total).max() <= number * (unit + 1e-6)
    assert len(recorder.steps) == ROUNDS
    _leaves_follow_from_the_releases(recorder, result, classes)
    for site in bed.sites.values():
        assert len(site.ledger.entries(kind=Kind.CHARGE)) == ROUNDS
        spent, _ = site.ledger.verify().spending[DATASET]
        assert spent == pytest.approx(study_epsilon(study, 1e-5))
    assert 7.99 < study_epsilon(study, 1e-5) <= 8.0


def _leaves_follow_from_the_releases(recorder: Recorder, result: Result, classes: int) -> None:
    """Newton steps with a ridge of 1 and the noise's deviation, of a number six of it: post-processing alone."""
    for place, (_, release) in enumerate(recorder.steps):
        gradient, std, shorter = release.values["gradients"], release.noise_std["gradients"], 1.0
        ridge = 6.0 if classes == NUMBER else 1.0
        if classes == NUMBER and place == 0:
            hessian = release.values["hessians"]
            base = -gradient.sum() / hessian.sum()
            assert result.arrays["model.base"] == pytest.approx(base, rel=1e-6)
            gradient, std = gradient + base * hessian, math.hypot(std, base * release.noise_std["hessians"])
        if classes > 2:
            gradient, shorter = gradient - gradient.mean(axis=2, keepdims=True), 1.0 - 1.0 / classes
            std *= math.sqrt(shorter)
        step = -shorter * gradient / (np.maximum(release.values["hessians"], 0.0) + 1.0 + ridge * std)
        own = slice(place * TREES, (place + 1) * TREES)
        np.testing.assert_allclose(result.arrays["model.leaves"][own], np.clip(step, -4, 4) / TREES, rtol=1e-6, atol=1e-9)


@pytest.mark.system
@pytest.mark.parametrize("classes", [pytest.param(2, marks=pytest.mark.system), 3])
def test_a_released_model_is_evaluated_on_the_sites_records(bed: TestBed, tmp_path: Path, classes: int) -> None:
    """Trained with noise and evaluated without: the figures are scikit-learn's of the released model on all records."""
    results = tmp_path / "results"
    study = compiled(bed, classes, 50.0, rounds=5)
    bed.local.run(study, bed.analyst, results)
    trained = results_directory(results, study_digest(study.to_bytes()))
    request = make_request(schema_of(WIDTH, classes, 200), "federated-evaluation", None)
    request = request.model_copy(update={"parameters": {"result": str(trained), "bins": 40}})
    evaluated = bed.compile(with_model(request, trained))
    bed.local.run(evaluated, bed.analyst, results)
    found = load_result(results_directory(results, study_digest(evaluated.to_bytes())))
    model = load_model(trained)
    records = all_records(bed, classes)
    y = np.concatenate([own.labels for own in records.values() if own.labels is not None])
    p = scipy.special.softmax(np.concatenate([model.scores(own) for own in records.values()]), axis=1)
    said = p.argmax(axis=1)
    summary = found.summary
    assert summary["model"] == "trees"
    assert summary["accuracy"]["value"] == pytest.approx(accuracy_score(y, said), abs=1e-4)
    assert summary["accuracy"]["value"] > 1.25 / classes  # it learned something
    np.testing.assert_allclose(found.arrays["confusion"], confusion_matrix(y, said), atol=1e-3)
    recalls = [row["recall"]["value"] for row in summary["classes"]]
    np.testing.assert_allclose(recalls, recall_score(y, said, average=None), atol=1e-4)
    most = 3.0 * math.log(classes)
    losses = np.minimum(most, -np.log(p[np.arange(len(y)), y]))
    assert losses.max() < most  # none is cut
    assert summary["log_loss"]["value"] == pytest.approx(log_loss(y, p), abs=1e-4)
    if classes == 2:
        binned = np.minimum(np.floor(p[:, 1] * 40), 39)
        assert summary["auc"]["value"] == pytest.approx(roc_auc_score(y, binned), abs=1e-3)
    low = 0.5 if classes == 2 else 1.0 / classes
    bins = 20 if classes == 2 else 40  # of two classes the scores' histogram is folded at 1/2
    top, right = p.max(axis=1), said == y
    place = np.minimum(((top - low) / (1.0 - low) * bins).astype(int), bins - 1)
    middle = low + (place + 0.5) * (1.0 - low) / bins
    gaps = [abs((right - middle)[place == b].sum()) for b in range(bins)]
    assert summary["calibration_error"]["value"] == pytest.approx(sum(gaps) / len(y), abs=1e-3)
    assert summary["cohort"] == 4
