"""Many sites trained side by side come to what each comes to by itself, up to rounding; and what a site never imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.special import log_softmax

from support.randomness import RARE_DEVIATIONS, SeededRandom
from support.studies import SCHEMA, compiled, shifted_sites
from veilsum_deploy.simulation import trainer
from veilsum_deploy.simulation.engines import SerialEngine
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_deploy.simulation.stacks import Batches, PerceptronStack
from veilsum_deploy.simulation.trainer import SiteTraining, site_training
from veilsum_deploy.simulation.walk import JoinedRecords, NoisedSteps, filled_up, sampled
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.mechanism.noise import NoisePlan, task_noise
from veilsum_privacy.mechanism.steps import Steps
from veilsum_privacy.mechanism.weights import WEIGHTS
from veilsum_privacy.securesum.agreed import AgreedStudy
from veilsum_privacy.study.schema import NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.local_training import SEEDS, LocalTraining
from veilsum_privacy.training.gradients import clipped_gradient_sum
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_privacy.training.models.perceptrons import Perceptron

Floats = NDArray[np.float64]

SITES = tuple("abcdefgh")
LABEL = "local-training"
MLP = {"name": "mlp", "options": {"hidden": 5}}
PRIVATE = {"epsilon": 6.0, "cohort_difference": "allowed", "min_cohort": 2}
PLAIN: dict[str, dict[str, Any]] = {
    "linear": {"model": {"name": "linear", "options": {"scale": 0.5, "bias": 0.3}}, "epochs": 3, "batch": 7},
    "perceptron": {"model": MLP, "epochs": 2, "batch": 16, "momentum": 0.8, "decay": 0.01},
    "prox": {"model": MLP, "epochs": 3, "batch": 10, "objective": {"name": "prox", "options": {"mu": 0.7}}},
    "by records": {"model": MLP, "epochs": 2, "batch": 100, "weighting": "records"},
    "normalised": {"model": MLP, "epochs": 2, "batch": 5, "momentum": 0.5, "normalised": True},
    "short": {"model": MLP, "epochs": 4, "batch": 8, "learning_rate": 2.0, "norm": 0.05},
}
NOISED: dict[str, dict[str, Any]] = {
    "perceptron": {"model": MLP, "local_steps": 4},
    "sampled": {"model": {"name": "linear"}, "local_steps": 3, "sampling_rate": 0.3, "momentum": 0.5},
    "prox": {"model": MLP, "local_steps": 3, "learning_rate": 0.4, "objective": {"name": "prox", "options": {"mu": 0.5}}},
}


def uneven(seed: int = 0) -> dict[str, Records]:
    """Sites of 0 to 70 records, some without a label, a value or a finite feature."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, own in shifted_sites(70, seed, SITES).items():
        number = {"c": 0, "d": 1, "e": 16}.get(name, int(rng.integers(2, 71)))
        assert own.labels is not None
        labels, features, present = own.labels[:number].copy(), own.features[:number].copy(), own.present[:number].copy()
        if number > 5:
            labels[1], present[2, 0], features[3, 1] = -1, False, np.nan
        found[name] = Records(features, present, labels)
    return found


def broadcast_of(study: Study, seed: int = 0) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    task = AgreedStudy(study).task(LABEL).task
    blocks = [block for block in task.layout().blocks if block.name.startswith("model.")]
    seeds = rng.integers(0, 2**50, (study.sites, 2)).astype(np.float64)
    return {**{block.name: rng.normal(0.0, 0.4, block.shape) for block in blocks}, SEEDS: seeds}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sites were trained side by side, call by call; stacks of two sites at most."""
    calls: list[int] = []
    plain = SiteTraining.vectors

    def vectors(self: SiteTraining, *args: Any) -> Floats:
        calls.append(len(args[1]) - 1)
        return plain(self, *args)

    monkeypatch.setattr(SiteTraining, "vectors", vectors)
    monkeypatch.setattr(trainer, "LARGEST_STACK", 110)
    return calls


def total(study: Study, broadcast: Mapping[str, Floats], *, members: Sequence[str] | None = None, **options: Any) -> Any:
    sites = {name: PlainSite(own) for name, own in uneven().items()}
    federation = PlainFederation(study, sites, **options)
    federation.sum(LABEL, broadcast, members=members)
    return federation.sums[0]


def close(study: Study, one: Any, other: Any) -> None:
    """The same in the vector's largest value, but for 1e-12 of it at each site, and the rounding of each."""
    atol = len(SITES) * (1.0 + 1e-12 * study.task(LABEL).resolution)
    np.testing.assert_allclose(one, other, rtol=0, atol=atol)
    assert np.abs(other).max() > 1000 * atol  # there is something to compare


@pytest.mark.parametrize("name", PLAIN)
def test_without_noise_the_sum_is_that_of_sites_one_by_one(name: str, trained: list[int]) -> None:
    study = compiled("fedavg", {"rounds": 1, **PLAIN[name]}, sites=SITES)
    broadcast = broadcast_of(study)
    together = total(study, broadcast)
    assert trained == [len(SITES)]
    close(study, together, total(study, broadcast, rounded=False))
    close(study, total(study, broadcast, members=("b", "c", "g")), total(study, broadcast, members="bcg", batched=False))
    assert trained == [len(SITES), 3]


class Three(SerialEngine):
    workers = 3


@pytest.mark.parametrize("name", ["linear", "perceptron", "by records"])
def test_without_noise_it_is_the_same_to_the_bit_however_sites_are_cut(name: str, trained: list[int]) -> None:
    study = compiled("fedavg", {"rounds": 1, **PLAIN[name]}, sites=SITES)
    broadcast = broadcast_of(study)
    np.testing.assert_array_equal(total(study, broadcast), total(study, broadcast, engine=Three()))
    assert sorted(trained) == [2, 3, 3, 8]


def test_public_weights_are_those_of_the_cohort(trained: list[int]) -> None:
    table = {"mode": "coordinated", "size": 3}
    study = compiled("fedavg", {"rounds": 1, **PLAIN["prox"], "participation": table}, sites=SITES)
    broadcast = {**broadcast_of(study), WEIGHTS: np.arange(1.0, 9.0)}
    for members in (None, ("b", "d", "e")):
        together = total(study, broadcast, members=members)
        close(study, together, total(study, broadcast, members=members, rounded=False))
    assert len(trained) == 2


def test_a_model_that_diverges_changes_nothing(trained: list[int]) -> None:
    study = compiled(
        "fedavg", {"rounds": 1, "model": MLP, "epochs": 40, "batch": 4, "decay": 1e5, "learning_rate": 1e5}, sites=SITES
    )
    broadcast = broadcast_of(study)
    found = total(study, broadcast)
    assert trained
    np.testing.assert_array_equal(found, total(study, broadcast, rounded=False))
    assert not found[:-1].any()
    assert found[-1] > 0


def one_by_one(study: Study, task: LocalTraining, records: Records, broadcast: Mapping[str, Floats], source: Any) -> Floats:
    declaration = study.task(LABEL)
    plan, bound = task_noise(study, declaration, len(SITES)), declaration.grid * study.data.max_records
    rate, grid = declaration.sampling_rate, declaration.grid
    steps = Steps(declaration.local_steps, rate, plan, grid, task.step_clip(), bound, source)
    return task.train(records, broadcast, {}, steps).vector


@pytest.mark.parametrize("name", NOISED)
def test_noised_steps_are_those_of_each_site(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same numbers for samples and noise; how many a site draws must not depend on the others."""
    monkeypatch.setattr(trainer, "LARGEST_STACK", 200)
    study = compiled("fedavg", {"rounds": 2, **NOISED[name]}, sites=SITES, **PRIVATE)
    broadcast, sites, declaration = broadcast_of(study), uneven(), study.task(LABEL)
    agreed = AgreedStudy(study).task(LABEL)
    task, many = agreed.task, site_training(agreed)
    assert many is not None
    assert isinstance(task, LocalTraining)
    offsets = np.cumsum([0, *(len(sites[name]) for name in SITES)])
    whole = Records(
        *(np.concatenate([getattr(sites[name], part) for name in SITES]) for part in ("features", "present", "labels"))
    )
    plan = task_noise(study, declaration, len(SITES))
    sources = [SeededRandom(name.encode()) for name in SITES]
    found = many.vectors(whole, offsets, broadcast, range(len(SITES)), plan, sources)
    for place, name_of in enumerate(SITES):
        own = {**broadcast, SEEDS: broadcast[SEEDS][place]}
        expected = one_by_one(study, task, sites[name_of], own, SeededRandom(name_of.encode()))
        assert np.abs(expected[:-1]).max() > 1e-4  # noise moves a site without records too
        np.testing.assert_allclose(found[place], expected, rtol=0, atol=1e-9 * task.clip())


def test_noise_from_one_call_is_each_sites_own() -> None:
    variance, size = 400, 900
    plan = NoisePlan("training", variance, 1, 1)
    steps = NoisedSteps(
        3,
        0.25,
        plan,
        2**12,
        2.0,
        2**20,
    )
    found = steps.noised(np.zeros((40, size)), [SYSTEM_RANDOM] * 40) * ((2**12 - np.sqrt(size)) / 2.0)
    np.testing.assert_allclose(found, np.rint(found), atol=1e-9)
    assert abs((found**2).mean() / variance - 1) < RARE_DEVIATIONS * np.sqrt(2 / found.size) < 0.05
    correlation = np.corrcoef(found)[np.triu_indices(40, 1)] * np.sqrt(size)
    assert np.abs(correlation).max() < 7.5  # of 780, each beyond it with a chance of 6e-14
    counts = np.array([0, 150_000, 100_000])
    taken = sampled(0.25, counts, [SYSTEM_RANDOM] * 3)
    for part in np.split(taken, np.cumsum(counts)[:-1])[1:]:
        assert abs(part.mean() - 0.25) < RARE_DEVIATIONS * np.sqrt(0.25 * 0.75 / len(part)) < 0.05 * 0.25
    with pytest.raises(Misuse, match="too coarse"):
        steps.noised(np.zeros((1, 2**23)), [SYSTEM_RANDOM])


@pytest.mark.usefixtures("known_randomness")
def test_rounds_with_noise_have_the_noise_of_sites_one_by_one(trained: list[int]) -> None:
    """Sites without records report noise alone: twice the same distribution."""
    large = {"model": {"name": "mlp", "options": {"hidden": 100}}}
    study = compiled("fedavg", {"rounds": 100, **NOISED["perceptron"], **large}, sites=SITES, **PRIVATE)
    empty = Records(np.zeros((0, 6)), np.zeros((0, 6), dtype=bool), np.zeros(0, dtype=np.int64))
    broadcast = {name: np.zeros_like(array) for name, array in broadcast_of(study).items()}
    values = []
    for rounded in (True, False):
        federation = PlainFederation(study, {name: PlainSite(empty) for name in SITES}, rounded=rounded)
        for _ in range(10):
            federation.sum(LABEL, broadcast)
        values.append(np.concatenate([found[:-1] for found in federation.sums]).astype(float))
    assert trained == [len(SITES)] * 10
    assert stats.ks_2samp(*values).pvalue > 1e-6
    together, apart = (np.mean(found**2) for found in values)
    assert abs(together / apart - 1) < 4 * np.sqrt(4 / len(values[0])) < 0.09


def test_sites_that_train_draw_their_own_samples_of_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the framework samples for other tasks would be sampled a second time in every step."""
    seen: list[int] = []
    plain = SiteTraining.vectors

    def vectors(self: SiteTraining, records: Records, *args: Any) -> Floats:
        seen.append(len(records))
        return plain(self, records, *args)

    monkeypatch.setattr(SiteTraining, "vectors", vectors)
    study = compiled("fedavg", {"rounds": 2, **NOISED["sampled"]}, sites=SITES, **PRIVATE)
    assert study.task(LABEL).sampling_rate == 0.3
    total(study, broadcast_of(study))
    assert seen == [sum(len(own) for own in uneven().values())]


def test_a_seeded_source_keeps_sites_one_by_one(trained: list[int]) -> None:
    study = compiled("fedavg", {"rounds": 2, **NOISED["perceptron"]}, sites=SITES, **PRIVATE)
    sites = {name: PlainSite(own, SeededRandom(name.encode())) for name, own in uneven().items()}
    PlainFederation(study, sites).sum(LABEL, broadcast_of(study))
    assert not trained


@pytest.mark.parametrize(
    "parameters",
    [
        {"model": {"name": "lenet5", "inputs": [1, 28, 28]}},
        {"model": {"name": "mlp", "options": {"hidden": 2**12}}},
        {"objective": {"name": "scaffold"}},
        {"objective": {"name": "moon"}},
    ],
)
def test_all_else_trains_site_by_site(parameters: dict[str, Any]) -> None:
    columns = 28 * 28 if "inputs" in parameters.get("model", {}) else 6
    names = tuple(NumberColumn(name=f"x{index}", low=-1, high=1) for index in range(columns))
    study = compiled("fedavg", {"rounds": 1, **parameters}, schema=SCHEMA.model_copy(update={"columns": names}), sites=SITES)
    assert site_training(AgreedStudy(study).task(LABEL)) is None


def test_a_broadcast_without_whole_seeds_is_refused() -> None:
    study = compiled("fedavg", {"rounds": 1, **PLAIN["linear"]}, sites=SITES)
    broadcast = broadcast_of(study)
    for wrong in (np.full((8, 2), 0.5), np.full((8, 2), -1.0), np.zeros((7, 2)), np.full((8, 2), 2.0**53)):
        with pytest.raises(HostileInput, match="seeds"):
            total(study, {**broadcast, SEEDS: wrong})


def stack_of(name: str, rng: np.random.Generator) -> tuple[Perceptron, Floats, Batches]:
    options = {"hidden": 4, "scale": 0.7} if name == "mlp" else {"scale": 0.7, "bias": 0.3}
    architecture = build_architecture(ModelSpec(name=name, options=options), 3, 4)
    assert isinstance(architecture, Perceptron)
    present = np.arange(6) < np.array([6, 1, 4])[:, None]
    x = np.where(present[:, :, None], rng.normal(size=(3, 6, 3)), 0.0)
    labels = np.where(present, rng.integers(4, size=(3, 6)), 0)
    return architecture, rng.normal(size=(3, architecture.size)), Batches(x, labels, present)


def loss_of(name: str, model: Floats, x: Floats, labels: Any) -> float:
    """Mean cross-entropy, written out for these models."""
    x = 0.7 * x
    if name == "mlp":
        w, b, head, bias = np.split(model, [12, 16, 32])
        z = np.maximum(x @ w.reshape(4, 3).T + b, 0.0) @ head.reshape(4, 4).T + bias
    else:
        z = x @ model[:12].reshape(4, 3).T + 0.3 * model[12:]
    return float(-log_softmax(z, axis=1)[np.arange(len(x)), labels].mean())


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_mean_gradients_are_differences_of_the_loss(name: str) -> None:
    architecture, models, batches = stack_of(name, np.random.default_rng(3))
    found = PerceptronStack(architecture).mean_gradients(models, batches)
    for model, x, labels, present, gradient in zip(models, *batches, found, strict=True):

        def loss(at: Floats, own: Floats = x[present], names: Any = labels[present]) -> float:
            return loss_of(name, at, own, names)

        np.testing.assert_allclose(gradient, differences(loss, model), atol=1e-7)


def differences(loss: Callable[[Floats], float], at: Floats) -> Floats:
    steps = 1e-6 * np.eye(len(at))
    return np.array([(loss(at + step) - loss(at - step)) / 2e-6 for step in steps])


@pytest.mark.parametrize("name", ["linear", "mlp"])
@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e3])
def test_clipped_sums_are_those_of_a_site(name: str, clip: float) -> None:
    architecture, models, batches = stack_of(name, np.random.default_rng(4))
    models[2, 0] = 1e200  # overflows in the squares of a norm: such records add zero, at this site alone
    with np.errstate(over="ignore", invalid="ignore"):
        found = PerceptronStack(architecture).clipped_sums(models, batches, clip)
    place = 0
    for site in (0, 1):
        arrays, place = {}, 0
        for key, shape in architecture.shapes().items():
            arrays[key] = models[site, place : place + int(np.prod(shape))].reshape(shape)
            place += int(np.prod(shape))
        own = batches.present[site]
        expected = clipped_gradient_sum(architecture, arrays, batches.x[site, own], batches.labels[site, own], clip)
        np.testing.assert_allclose(found[site], expected.total, rtol=0, atol=1e-12 * clip * own.sum())
    assert np.isfinite(found).all()
    assert np.linalg.norm(found, axis=1).max() <= clip * 6.001


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(0, 3000), min_size=1, max_size=8))
def test_batches_are_filled_up_by_a_sites_own_number(counts: list[int]) -> None:
    own = np.array(counts)
    found = filled_up(own)
    assert (found >= own).all()
    assert (found <= np.maximum(1.25 * own, own + 7)).all()
    np.testing.assert_array_equal(found, [int(filled_up(np.array([count]))[0]) for count in counts])


def test_rows_that_fill_up_are_no_records() -> None:
    sites = JoinedRecords(np.array([[1.0], [2.0], [0.0]]), np.array([1, 2, 0]), np.array([0, 0, 2]))
    np.testing.assert_array_equal(sites.counts, [0, 2])
    batches = sites.batches(np.array([[-1, -1], [1, -1]]))
    np.testing.assert_array_equal(batches.x[:, :, 0], [[0.0, 0.0], [2.0, 0.0]])
    np.testing.assert_array_equal(batches.labels, [[0, 0], [2, 0]])
    np.testing.assert_array_equal(batches.present, [[False, False], [True, False]])


TRAINS = """
import sys
import numpy as np
from support.studies import compiled, shifted_sites
from veilsum_privacy.securesum.agreed import AgreedStudy
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
private = {"epsilon": 4.0, "cohort_difference": "allowed", "min_cohort": 2}
for method, label, parameters in (("fedsgd", "gradient", {"steps": 2}), ("fedavg", "local-training", {"rounds": 2})):
    for privacy in (private, {}):
        study = compiled(method, parameters, **privacy)
        task = AgreedStudy(study).task(label)
        plan, blocks = task.plan(4, 4), task.task.layout().blocks
        arrays = {block.name: np.zeros(block.shape) for block in blocks}
        arrays |= {"training.seeds": np.zeros((4, 2)), "features.centre": np.zeros(6), "class.weights": np.ones(3)}
        compute_sum(plan, shifted_sites(20)["a"], arrays, SitePlace(0))
print(*(name for name in ("torch", "opacus") if name in sys.modules))
"""


def test_sites_that_train_perceptrons_import_neither_torch_nor_opacus(pytestconfig: pytest.Config) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINS], cwd=pytestconfig.rootpath / "tests", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
