"""A model is trained, released and evaluated over the whole protocol, and its checkpoints are fetched on the way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, mean_squared_error, r2_score

from support.federation import DATASET, TestBed, make_bed, make_clusters, make_request, schema_of
from support.network import running_client, running_server
from support.randomness import SeededRandom
from veilsum.compile import StudyRequest
from veilsum.local.federation import results_directory
from veilsum.remote import Remote, connect
from veilsum.request import with_model
from veilsum_coordinator.parts.alignment import application
from veilsum_coordinator.parts.networks import network_head
from veilsum_coordinator.results.released_models import find_released, result_model
from veilsum_coordinator.service.runner import run_study
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_coordinator.service.status import study_status
from veilsum_node.errors import ConfigurationError, Misuse, StateError
from veilsum_participant.applying.model import load_model
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.ledger import Kind
from veilsum_privacy.results.result import Result, load_result, save_result
from veilsum_privacy.study.study import Study, study_digest
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.training.models import ModelSpec, build_architecture

WIDTH, CLASSES, SITES = 3, 3, "abcd"
SCHEMA = schema_of(WIDTH, CLASSES, 200)
MLP = {"name": "mlp", "options": {"hidden": 4}}


def training(steps: int = 5, **parameters: Any) -> StudyRequest:
    request = make_request(SCHEMA, "fedsgd", 8.0, min_cohort=3)
    return request.model_copy(update={"parameters": {"steps": steps, "centre": False, **parameters}})


def planted(results: Path, name: str = "linear", options: dict[str, Any] | None = None) -> Path:
    """A result as a study that trained left it."""
    architecture = build_architecture(ModelSpec(name=name, options=options or {}), WIDTH, CLASSES)
    rng = np.random.default_rng(3)
    head, arrays = network_head(architecture, {key: rng.normal(size=shape) for key, shape in architecture.shapes().items()})
    applied = application(SCHEMA, missing="skip", head=head, classes=SCHEMA.classes)
    save_result(results / "earlier", Result("fedsgd", {}, arrays, applied))
    return results / "earlier"


def evaluation(result: Path, epsilon: float | None, **parameters: Any) -> StudyRequest:
    request = make_request(SCHEMA, "federated-evaluation", epsilon, min_cohort=3 if epsilon else None)
    return with_model(request.model_copy(update={"parameters": {"result": str(result), **parameters}}), result)


def by_hand(bed: TestBed, result: Path) -> np.ndarray:
    """Confusion counts of all sites' records, by the released model applied to each."""
    model = load_model(result)
    counts = np.zeros((CLASSES, CLASSES), dtype=np.int64)
    for site in bed.sites.values():
        records = site.records(DATASET, SCHEMA)
        counts += confusion_matrix(records.labels, model.predict(records), labels=range(CLASSES))
    return counts


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    return make_bed(tmp_path / "bed", make_clusters(SITES, WIDTH, CLASSES, 60, 10), min_cohort=3)


@pytest.mark.parametrize(
    "model", [{}, pytest.param({"name": "mlp", "options": {"hidden": 6}}, marks=pytest.mark.system)], ids=["linear", "mlp"]
)
def test_without_noise_the_counts_are_those_of_all_records(bed: TestBed, tmp_path: Path, model: dict[str, Any]) -> None:
    results = tmp_path / "results"
    trained = planted(results, **model)
    study = bed.compile(evaluation(trained, None))
    bed.local.run(study, bed.analyst, results)
    found = load_result(results_directory(results, _digest(study)))
    np.testing.assert_allclose(found.arrays["confusion"], by_hand(bed, trained), atol=1e-3)
    assert found.application == {}


def _digest(study: Study) -> bytes:
    return study_digest(study.to_bytes())


def test_with_noise_it_costs_one_release(bed: TestBed, tmp_path: Path) -> None:
    bed.know_noise()
    results = tmp_path / "results"
    trained = planted(results)
    study = bed.compile(evaluation(trained, 4.0))
    bed.local.run(study, bed.analyst, results)
    found = load_result(results_directory(results, _digest(study)))
    counts = by_hand(bed, trained)
    row = found.summary["confusion"][0]
    task = AgreedStudy(study).tasks[0]
    plan = task.plan(len(SITES), len(SITES))
    drawn = sum(plan.noise.draw(plan.encoding.size, SeededRandom(f"noise of {name}".encode())) for name in SITES)
    noise, std = task.blocks(drawn)["confusion/table"], task.block_std(np.sqrt(float(plan.noise.total_variance(len(SITES)))))
    assert np.abs(noise).max() > 1.0
    np.testing.assert_allclose(found.arrays["confusion"] - counts, noise, rtol=0, atol=1e-3)
    assert row["predicted c0"]["noise_error"] == pytest.approx(std["confusion/table"], rel=1e-6)
    for site in bed.sites.values():
        assert [entry.study for entry in site.ledger.entries(kind=Kind.CHARGE)].count(_digest(study)) == 1
    assert study_epsilon(study, 1e-5) == study.privacy.epsilon
    assert 3.99 < (study.privacy.epsilon or 0.0) <= 4.0


def test_a_coordinator_without_the_model_fails_the_study(bed: TestBed, tmp_path: Path) -> None:
    results = tmp_path / "results"
    trained = planted(results)
    study = bed.compile(evaluation(trained, 4.0))
    key = bed.local.submit(study, bed.analyst)
    with pytest.raises(StateError, match="released the model that the study names"):
        bed.local.prepare(key, tmp_path / "elsewhere")


def test_sites_refuse_another_model_than_the_studys(bed: TestBed, tmp_path: Path) -> None:
    """A coordinator that broadcasts other arrays gets nothing, and no site is charged."""
    results = tmp_path / "results"
    trained = planted(results)
    study = bed.compile(evaluation(trained, 4.0))
    key = bed.local.submit(study, bed.analyst)
    federation = bed.local.prepare(key, results)
    federation.encoder = {name: array + 1e-9 for name, array in find_released(results, study).items()}
    run_study(bed.hub, key, federation, results)
    assert bed.hub.shown.status(key).phase == "failed"
    for site in bed.sites.values():
        assert key not in [entry.study for entry in site.ledger.entries(kind=Kind.CHARGE)]


@pytest.mark.system
def test_checkpoints_are_models_and_progress_is_told(bed: TestBed, tmp_path: Path) -> None:
    results = tmp_path / "results"
    study = bed.compile(training(6, checkpoint_every=2))
    key = bed.local.submit(study, bed.analyst)
    federation = bed.local.prepare(key, results)
    federation._results = results
    inner, seen = federation.sum, []

    def watched(*arguments: Any, **named: Any) -> Any:
        release = inner(*arguments, **named)
        seen.append(study_status(bed.hub.studies[key]))
        return release

    federation.sum = watched  # type: ignore[method-assign]
    run_study(bed.hub, key, federation, results)
    assert [item.released for item in seen] == [1, 2, 3, 4, 5, 6]
    assert {item.declared for item in seen} == {6}
    for number, item in enumerate(seen, start=1):
        assert item.epsilon_spent == study_epsilon(study, 1e-5, {"gradient": number})
    assert seen[-1].epsilon_spent == study.privacy.epsilon == seen[0].epsilon
    fractions = [item.progress for item in seen]
    assert fractions == sorted(fractions)
    assert fractions[2] == pytest.approx(0.1 + 0.9 * 3 / 6)

    folder = results / key.hex() / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["round-000002", "round-000004"]
    manifest = json.loads((folder / "round-000004" / "manifest.json").read_bytes())
    assert manifest["study"]["round"] == 4
    assert manifest["study"]["epsilon"] == seen[3].epsilon_spent
    records = bed.sites["a"].records(DATASET, SCHEMA)
    early, late = load_model(folder / "round-000002"), load_model(results / key.hex())
    assert early.classes == late.classes == SCHEMA.classes
    assert not np.allclose(early.scores(records), late.scores(records))
    assert result_model(load_result(folder / "round-000002")).sha256  # a federated evaluation takes it as well


@pytest.mark.parametrize("centre", [True, pytest.param(False, marks=pytest.mark.system)])
def test_the_last_checkpoint_of_the_last_step_is_the_model(bed: TestBed, tmp_path: Path, centre: bool) -> None:
    """What the study's features are centred by is in a checkpoint's model as in the result's."""
    study = bed.compile(training(4, checkpoint_every=3, average=0.0, centre=centre))
    key = bed.local.submit(study, bed.analyst)
    federation = bed.local.prepare(key)
    federation._results = tmp_path
    kept: list[dict[str, np.ndarray]] = []
    inner = federation.sum

    def watched(label: str, broadcast: Any = None, **named: Any) -> Any:
        kept.append(dict(broadcast or {}))
        return inner(label, broadcast, **named)

    federation.sum = watched  # type: ignore[method-assign]
    run_study(bed.hub, key, federation, tmp_path)
    (directory,) = (tmp_path / key.hex() / "checkpoints").iterdir()
    last, saved = kept[-1], load_result(directory).arrays  # what the fourth step was given, and what was kept before it
    assert ("features.centre" in last) == centre
    weight, bias = (saved[name] for name in ("model.head.weight", "model.head.bias"))
    for array, name in ((weight, "model.head.weight"), (bias, "model.head.bias")):
        assert (array.dtype, last[name].dtype) == (np.float64, np.float32)
        np.testing.assert_array_equal(array.astype(np.float32), last[name])  # sites get it in single precision, to the bit

    records = bed.sites["b"].records(DATASET, SCHEMA)
    x = records.features - last.get("features.centre", np.zeros(WIDTH))
    options = study.parameters["model"]["options"]
    scale, constant = (float.fromhex(options[name]) for name in ("scale", "bias"))
    # Both sides are of the same arrays in double precision: their scores, of some hundred, differ by 1e-12 at most.
    np.testing.assert_allclose(
        load_model(directory).scores(records), scale * x @ weight.T + constant * bias, rtol=0, atol=1e-9
    )


@dataclass
class Standing:
    """A coordinator and sites over gRPC."""

    bed: TestBed
    server: CoordinatorServer
    remote: Remote
    results: Path

    def finish(self, study: Study) -> bytes:
        key = self.remote.submit(study, self.bed.analyst)
        *_, last = self.remote.watch(key)
        assert last.phase == "finished", (last.reason, last.refusals)
        return key


@pytest.fixture
def standing(bed: TestBed) -> Iterator[Standing]:
    with ExitStack() as stack:
        server, address = stack.enter_context(running_server(bed))
        for site in bed.sites.values():
            stack.enter_context(running_client(site, address))
        remote = stack.enter_context(connect(address, bed.analyst, bed.kit.analyst.identity, bed.clock()))
        yield Standing(bed, server, remote, bed.kit.coordinator.directory / "state" / "results")


def test_train_fetch_and_evaluate_over_the_wire(standing: Standing, tmp_path: Path) -> None:
    remote, bed = standing.remote, standing.bed
    key = standing.finish(bed.compile(training(6, checkpoint_every=1)))
    info = remote.show(key)
    assert (info.released, info.declared, info.checkpoints) == (6, 6, (3, 4, 5))
    assert info.epsilon_spent == info.epsilon
    model = remote.fetch(key, tmp_path / "model")
    assert model.application["classes"] == list(SCHEMA.classes)
    newest, number = remote.fetch_checkpoint(key, tmp_path / "newest")
    assert number == 5
    assert newest.summary == {"step": 5, "steps": 6}
    _, number = remote.fetch_checkpoint(key, tmp_path / "third", 3)
    assert number == 3
    kept = results_directory(standing.results, key) / "checkpoints" / "round-000003"
    for name in ("manifest.json", "arrays.safetensors"):
        sent = hashlib.sha256((tmp_path / "third" / name).read_bytes()).digest()
        assert sent == hashlib.sha256((kept / name).read_bytes()).digest()
    with pytest.raises(StateError, match="kept no checkpoint") as caught:
        remote.fetch_checkpoint(key, tmp_path / "none", 2)
    assert "3, 4, 5" in caught.value.advice
    with pytest.raises(StateError, match="holds a result already"):
        remote.fetch_checkpoint(key, tmp_path / "third")
    assert load_model(tmp_path / "newest").predict(bed.sites["a"].records(DATASET, SCHEMA)).max() > 0

    evaluated = standing.finish(bed.compile(evaluation(tmp_path / "newest", None)))
    found = remote.fetch(evaluated, tmp_path / "figures")
    np.testing.assert_allclose(found.arrays["confusion"], by_hand(bed, tmp_path / "newest"), atol=1e-3)


def test_only_a_checkpoints_own_files_are_sent(standing: Standing) -> None:
    key = standing.finish(standing.bed.compile(training(2, checkpoint_every=1)))
    assert standing.remote.show(key).checkpoints == (1,)
    for file in ("../../manifest.json", "../round-000001/manifest.json", "other.txt", ""):
        with pytest.raises(Misuse, match="no result file of that name"):
            standing.remote._file(key, file, 1)
    with pytest.raises(Misuse, match="no such checkpoint"):
        standing.remote._file(key, "manifest.json", 7)


def test_a_study_of_the_models_alignment_is_not_evaluated(tmp_path: Path) -> None:
    """Sites of another federation have no map: what a result aligns for each site is measured there."""
    maps = {"kind": "maps", "sites": ["a"], "matrix": "m", "offset": "o"}
    applied = application(SCHEMA, head={"kind": "linear", "weights": "w", "bias": "b"}, classes=SCHEMA.classes)
    arrays = {"w": np.zeros((3, 3)), "b": np.zeros(3), "m": np.zeros((1, 3, 3)), "o": np.zeros((1, 3))}
    save_result(tmp_path / "aligned", Result("fedcgs", {}, arrays, {**applied, "alignment": maps}))
    with pytest.raises(ConfigurationError, match="aligns features at each site"):
        evaluation(tmp_path / "aligned", 1.0)


@pytest.mark.system
@pytest.mark.parametrize("method", [pytest.param("gbdt", marks=pytest.mark.system), "fedsgd"])
def test_a_model_of_a_number_is_trained_and_evaluated_over_the_protocol(bed: TestBed, tmp_path: Path, method: str) -> None:
    """Trees' and a perceptron's R squared and error for the last column: scikit-learn's, nearly without noise."""
    bed.know_noise()
    results, number = tmp_path / "results", {"column": f"x{WIDTH - 1}", "loss": "squared"}
    asked = {"gbdt": {"rounds": 3, "trees": 4, "depth": 2}, "fedsgd": {"steps": 6, "model": MLP}}[method]
    request = make_request(SCHEMA, method, 400.0, min_cohort=3)
    trains = bed.compile(request.model_copy(update={"parameters": {"outcome": number, **asked}}))
    bed.local.run(trains, bed.analyst, results)
    directory = results_directory(results, _digest(trains))
    model = load_model(directory)

    study = bed.compile(evaluation(directory, 400.0))
    bed.local.run(study, bed.analyst, results)
    found = load_result(results_directory(results, _digest(study)))
    records = [site.records(DATASET, SCHEMA) for site in bed.sites.values()]
    truth = np.concatenate([own.features[:, -1] for own in records])
    kept = [Records(own.features[:, :-1], own.present[:, :-1], None) for own in records]
    said = np.concatenate([model.estimates(own) for own in kept])
    told = {row["measure"]: row["value"] for row in found.summary["measures"]}
    assert told["R squared"]["value"] == pytest.approx(r2_score(truth, said), abs=0.02)
    wanted = mean_squared_error(truth, said) ** 0.5
    assert told["root mean squared error"]["value"] == pytest.approx(wanted, rel=0.02)
    assert told["R squared"]["low"] < told["R squared"]["value"] < told["R squared"]["high"]
    for site in bed.sites.values():
        assert [entry.study for entry in site.ledger.entries(kind=Kind.CHARGE)].count(_digest(study)) == 1
