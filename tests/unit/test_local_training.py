"""The task "local-training": what a round reports, what a noised step may change, and that nothing else leaves the site."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.local_trainings import D, K, drawn, given_arrays, parameters, training
from support.neighbours import add_unit, exact_norm, repeated, schema, spoil, with_subjects
from support.randomness import SeededRandom
from support.studies import complete
from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.computation.contribution import Evaluations
from veilsum_privacy.mechanism.answering import answered
from veilsum_privacy.mechanism.factors import left_of
from veilsum_privacy.mechanism.noise import discrete_gaussian
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.mechanism.requests import Request
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.steps import Steps
from veilsum_privacy.study.study import Unit
from veilsum_privacy.tasks import build_task, plain_training
from veilsum_privacy.tasks import generation as made
from veilsum_privacy.tasks.base import Records, Trained, Training
from veilsum_privacy.tasks.generation import DIRECTIONS, PROTOTYPES, USE
from veilsum_privacy.tasks.local_training import SEEDS, LocalTraining, effective_steps
from veilsum_privacy.training import closed_form
from veilsum_privacy.training.arrays import load, unflatten
from veilsum_privacy.training.epochs import mean_gradient
from veilsum_privacy.training.mlp import Descent, train
from veilsum_privacy.training.objectives import OBJECTIVES
from veilsum_privacy.training.objectives.base import LocalObjective
from veilsum_privacy.training.per_record import PerRecordGradients


class Seen(Steps):
    """Steps that remember the sums they were given, before noise."""

    def __init__(
        self, task: LocalTraining, seed: int = 0, rate: float = 1.0, std: float = 4000.0, number: int | None = None
    ) -> None:
        plan = NoisePlan("training", int(std**2), 1, 1)
        count = task.noised_sums() if number is None else number
        super().__init__(count, rate, plan, 1000, task.step_clip(), 2**50, SeededRandom(seed))
        self.integers: list[Integers] = []

    def noised(self, total: Integers) -> Floats:
        self.integers.append(total.copy())
        return super().noised(total)

    @property
    def sums(self) -> list[Floats]:
        """The sums in their own units."""
        return [total * (self.clip / left_of(self.grid, total.size)) for total in self.integers]


def trained(
    task: LocalTraining,
    records: Records,
    broadcast: Mapping[str, Floats],
    state: Mapping[str, Floats],
    steps: Steps | None = None,
) -> Trained:
    """One round, with the noised steps that are given, or without noise."""
    if steps is None:
        return task.train_plainly(replace(records, subjects=None), broadcast, state, pytest.fail)
    training: Any = task.train(broadcast, state, steps.course)
    return answered(training, steps, lambda: records, len(records), unit="record" if records.subjects is None else "subject")[
        0
    ]


def run(task: LocalTraining, records: Records, steps: Steps | None = None, **more: Any) -> dict[str, Floats]:
    broadcast = {**given_arrays(task), **more.pop("broadcast", {})}
    return task.layout().split(trained(task, records, broadcast, more.get("state", {}), steps).vector)


# Without noise.


@pytest.mark.parametrize("hidden", [0, 4])
def test_an_update_is_what_training_changed(hidden: int) -> None:
    records, task = drawn(8, 40), training(hidden=hidden)
    broadcast = given_arrays(task)
    got = run(task, records)
    names = [name for name in got if name.startswith("model.")]
    model = [broadcast[name] for name in names]
    assert records.labels is not None
    trained = train(model, records.features, records.labels, Descent(2, 16, 0.1), np.random.default_rng(5))
    for name, before, after in zip(names, model, trained, strict=True):
        np.testing.assert_allclose(got[name], after - before, atol=1e-12)
    assert got["weight"] == pytest.approx(1)
    weighed = run(training(hidden=hidden, weighting="records"), records)
    assert weighed["weight"] == pytest.approx(40 / 64)
    np.testing.assert_allclose(weighed["model.head.weight"], 40 / 64 * got["model.head.weight"], rtol=1e-12)


def test_an_update_is_no_longer_than_its_norm_and_what_is_not_finite_is_none() -> None:
    records = drawn(9, 40)
    for norm in (1e-3, 0.1):
        task = training(norm=norm)
        got = run(task, records)
        size = np.sqrt(sum((values**2).sum() for name, values in got.items() if name.startswith("model.")))
        assert size == pytest.approx(norm, rel=1e-9)
        assert size <= norm
        assert task.clip() == norm
    diverging = training(learning_rate=1e6, epochs=50)
    found = run(diverging, records)
    assert not any(values.any() for name, values in found.items() if name.startswith("model."))
    nobody = run(diverging, records.take(np.zeros(0, dtype=np.intp)))
    for name, values in found.items():
        np.testing.assert_array_equal(nobody[name], values)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_effective_steps_add_up_what_each_gradient_counts(momentum: float, steps: int) -> None:
    """With momentum the t-th of T gradients stands in T - t + 1 speeds, each time less by the factor m."""
    counts = [sum(momentum**power for power in range(steps - place)) for place in range(steps)]
    assert effective_steps(steps, momentum) == pytest.approx((1 - momentum) * sum(counts))


def test_normalised_updates_are_divided_by_the_steps_taken() -> None:
    records = drawn(8, 40)
    plain, normalised = run(training(momentum=0.9), records), run(training(momentum=0.9, normalised=True), records)
    taken = effective_steps(2 * 3, 0.9)
    assert normalised["steps"] == pytest.approx(taken)
    np.testing.assert_allclose(normalised["model.head.weight"] * taken, plain["model.head.weight"], rtol=1e-12)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_value_stays_within_what_is_carried(name: str) -> None:
    task = training(name, norm=0.01, learning_rate=5.0)
    arrays = given_arrays(task)
    if name == "iir":
        arrays["iir.known"] = np.ones(1)
    state = {"previous": np.ones(task.objective.size), "control": np.ones(task.objective.size)}
    found = trained(task, drawn(3, 60), arrays, state)
    assert found.vector.shape == (task.layout().size,)
    assert np.isfinite(found.vector).all()
    assert np.abs(found.vector).max() <= task.clip()


# With noise.


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - {"iir"}))
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_exactly_the_declared_steps_are_taken(name: str, rate: float) -> None:
    task = training(name, momentum=0.5, decay=0.01)
    steps = Seen(task, rate=rate)
    run(task, drawn(1, 40), steps)
    assert steps.taken == steps.number == task.noised_sums() == 3 + (name == "proto")
    assert all(len(total) <= task.step_size() for total in steps.sums)
    nobody = Seen(task)
    run(task, drawn(1, 1).take(np.zeros(0, dtype=np.intp)), nobody)
    assert nobody.taken == nobody.number  # an empty site takes and pays its steps as any other
    assert not any(total.any() for total in nobody.sums)
    with pytest.raises(Misuse, match="noised steps"):
        run(task, drawn(1, 4), Seen(task, number=task.noised_sums() + 1))


def test_noised_steps_are_sgd_on_what_was_noised() -> None:
    """The update, recomputed from the released noise and the clipped sums alone, over the public number of records."""
    task, records = training("prox", {"mu": 0.3}, momentum=0.6, decay=0.02, hidden=0), drawn(2, 30)
    steps, said = Seen(task, rate=0.5), []
    plain = Steps.noised
    steps.noised = lambda total: said.append(plain(steps, total)) or said[-1]  # type: ignore[method-assign,func-returns-value]
    got = run(task, records, steps)
    start = np.concatenate([given_arrays(task)[f"model.head.{part}"].ravel() for part in ("weight", "bias")])
    theta, speed = start, np.zeros_like(start)
    for noised in said:
        speed = 0.6 * speed + noised / (0.5 * 50) + 0.3 * (theta - start) + 0.02 * theta
        theta = theta - 0.1 * speed
    update = np.concatenate([got[f"model.head.{part}"].ravel() for part in ("weight", "bias")])
    np.testing.assert_allclose(update, theta - start, rtol=1e-9, atol=1e-12)
    assert len(said) == 3


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    name=st.sampled_from(["none", "prox", "scaffold", "proto", "ntd"]),
    unit=st.sampled_from(["record", "subject"]),
    hidden=st.sampled_from([0, 4]),
    weights=st.sampled_from([(), (1.0, 0.3, 0.05)]),
)
def test_one_unit_never_changes_a_step_by_more_than_is_booked(
    seed: int, name: str, unit: Unit, hidden: int, weights: tuple[float, ...]
) -> None:
    """The first step, whose model is the same in both worlds; the sum of prototypes too, where the models are the same."""
    hidden = 4 if name == "proto" else hidden
    task = training(name, hidden=hidden, local_steps=1, learning_rate=1e-12, class_weights=weights)
    rng = np.random.default_rng(seed)
    base = spoil(drawn(seed, 12), rng)
    added = drawn(seed + 1, 1 if unit == "record" else 5)
    added = replace(added, features=added.features * 10.0 ** rng.uniform(-1, 6))
    if unit == "subject":
        added = with_subjects(added, rng)
        added = replace(added, subjects=np.zeros(len(added), dtype=np.int64))
    sums = []
    for world in add_unit(base, added, unit, rng):
        steps = Seen(task, std=1e-3 * 4000.0 * 100)
        steps.source = SeededRandom(seed)
        run(task, world, steps)
        sums.append(steps.integers)
    for without, with_it in zip(*sums, strict=True):
        assert exact_norm(with_it - without) <= steps.grid


@pytest.mark.parametrize("name", ["none", "proto"])
def test_the_bound_is_reached(name: str) -> None:
    task = training(name, local_steps=1, learning_rate=1e-12)
    record = complete(np.array([[50.0, -30.0]]), np.array([1]))
    both = []
    for times in (0, 1):
        steps = Seen(task)
        run(task, repeated(record, times), steps)
        both.append(steps.sums)
    for without, with_it in zip(*both, strict=True):
        assert np.linalg.norm(with_it - without) > 0.95 * task.step_clip()


@pytest.mark.parametrize("name", ["none", "ntd"])
def test_a_class_of_a_smaller_weight_adds_less_after_clipping(name: str) -> None:
    task = training(name, local_steps=1, learning_rate=1e-12, class_weights=(1.0, 0.25, 0.5))
    for label, weight in enumerate((1.0, 0.25, 0.5)):
        record = Records(np.array([[50.0, -30.0]]), np.ones((1, D), dtype=np.bool_), np.array([label]))
        plain = training(name, local_steps=1, learning_rate=1e-12)
        steps, alike = Seen(task), Seen(plain)
        run(task, record, steps)
        run(plain, record, alike)
        assert np.abs(steps.integers[0] - weight * alike.integers[0]).max() <= 1.0


def test_without_noise_class_weights_weigh_losses() -> None:
    """Against torch's weighted cross-entropy, whose mean is over the weights and not over the records."""
    rng, weights = np.random.default_rng(3), np.array([1.0, 0.25, 0.5])
    x, labels = rng.normal(size=(30, D)), rng.integers(0, K, 30)
    for hidden in (0, 4):
        task = training(hidden=hidden, class_weights=tuple(weights))
        architecture = task.architecture
        theta = rng.normal(size=architecture.size)
        found = mean_gradient(architecture, LocalObjective(), task.parameters.class_weights)(theta, x, labels)
        network = architecture.module()
        load(network, unflatten(theta, architecture.shapes()))
        loss = torch.nn.functional.cross_entropy(
            network(torch.tensor(x)), torch.tensor(labels), weight=torch.tensor(weights), reduction="sum"
        )
        loss.div(30).backward()
        expected = np.concatenate([own.grad.numpy().ravel() for own in network.parameters()])
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_subjects_are_sampled_and_clipped_as_one() -> None:
    records = repeated(complete(np.array([[50.0, -30.0]]), np.array([1])), 40)
    one = replace(records, subjects=np.zeros(40, dtype=np.int64))
    task = training(local_steps=20, learning_rate=1e-12)
    steps = Seen(task, rate=0.5)
    run(task, one, steps)
    sizes = np.array([np.linalg.norm(total) for total in steps.sums])
    np.testing.assert_allclose(np.sort(np.unique(np.round(sizes, 6))), [0.0, 0.5], atol=1e-3)  # all of it, or nothing
    assert 2 < (sizes > 0).sum() < 18


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - {"iir"}))
def test_everything_but_noised_sums_is_the_same_in_two_worlds(name: str) -> None:
    """Vector and state depend on the records through the noised sums alone: where these are equal, so is all else."""
    task = training(name, momentum=0.3, weighting="equal", normalised=True)
    fixed = [np.random.default_rng(step).normal(size=task.step_size()) for step in range(task.noised_sums())]

    class Fixed(Seen):
        def noised(self, total: Integers) -> Floats:
            super().noised(total)
            return fixed[self.taken - 1][: total.size]

    found = []
    for records in (drawn(1, 40), drawn(2, 7), drawn(1, 1).take(np.zeros(0, dtype=np.intp))):
        state = {"previous": np.full(task.objective.size, 0.1), "control": np.full(task.objective.size, 0.2)}
        found.append(trained(task, records, given_arrays(task), state, Fixed(task, rate=0.7)))
    for other in found[1:]:
        np.testing.assert_array_equal(other.vector, found[0].vector)
        assert set(other.state) == set(found[0].state)
        for key, values in found[0].state.items():
            np.testing.assert_array_equal(other.state[key], values)


def _marked(unit: Unit) -> tuple[Records, NDArray[np.bool_]]:
    """Records of which one can be told from all others, and which ones are not of its unit."""
    records = drawn(3, 40)
    records.features[17] = 0.123456789
    whose = np.arange(40) if unit == "record" else np.arange(40) // 4
    return replace(records, subjects=whose.astype(np.int64) if unit == "subject" else None), whose != whose[17]


@pytest.mark.parametrize("how", ["raises", "is not finite"])
@pytest.mark.parametrize("unit", ["record", "subject"])
@pytest.mark.parametrize("name", ["proto", "ntd"])
def test_a_record_that_a_network_fails_on_leaves_the_others_to_the_bit(
    name: str, unit: Unit, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With noise: the sums of all other records, from the same draws."""
    task = training(name, learning_rate=1e-12)
    records, _ = _marked(unit)
    steps, want = Seen(task), Seen(task)
    used = np.arange(40) != 17
    trained(task, replace(records, labels=np.where(used, records.labels, -1)), given_arrays(task), {}, want)

    def wrap(owner: Any, attribute: str, place: int) -> None:
        real = getattr(owner, attribute)

        def failing(*args: Any, **named: Any) -> Any:
            theirs = (args[place][:, :D] == 0.123456789).all(axis=1)
            if how == "raises" and theirs.any():
                raise IndexError("index 3 is out of bounds")
            found = real(*args, **named)
            if how != "raises":
                found[theirs] = np.nan
            return found

        monkeypatch.setattr(owner, attribute, failing)

    wrap(PerRecordGradients, "factors", 2)
    if how == "raises":  # a representation that is not finite counts as zeros, in a row that counts
        wrap(closed_form, "representations", 2)
    _, counts = answered(task.train(given_arrays(task), {}, steps.course), steps, lambda: records, 40, unit=unit)
    number = len(want.integers) if how == "raises" else task.parameters.local_steps
    for found, wanted in zip(steps.integers[:number], want.integers[:number], strict=True):
        np.testing.assert_array_equal(found, wanted)
    if how == "raises":
        assert isinstance(counts.fault, IndexError)
    else:
        assert counts.invalid >= 3


def test_training_asks_before_a_record_is_read_and_is_sent_sums_alone() -> None:
    """What it is called with, and sent, is public or noised; its requests hold graphs and maps."""
    task, read = training("ntd"), list[int]()
    steps = Seen(task)
    asked = task.train({**given_arrays(task), SEEDS: np.array([0.5, 0.0])}, {}, steps.course)

    def load() -> Records:
        read.append(1)
        return drawn(1, 9)

    with pytest.raises(HostileInput, match="seeds"):
        answered(asked, steps, load, 9, unit="record")
    assert not read
    assert not steps.taken
    assert set(inspect.signature(task.train).parameters) == {"broadcast", "state", "course"}


def test_what_is_asked_first_is_traced_once_of_the_same_arrays_and_anew_of_any_others() -> None:
    task = training(hidden=0)
    given, course = given_arrays(task), Seen(task).course

    def first(broadcast: Mapping[str, Floats], state: Mapping[str, Floats] | None = None) -> Request:
        return next(task.train(broadcast, state or {}, course))

    kept = first(given)
    assert first({name: array.copy() for name, array in given.items()}).graph is kept.graph
    for name in sorted(set(given) - {SEEDS}):
        for value in (np.nextafter(given[name].flat[0], np.inf), -0.0):
            changed = given[name].copy()
            changed.flat[0] = value
            found = first({**given, name: changed})
            assert found.graph is not first(given).graph
            fresh = training(hidden=0)
            alone = next(fresh.train({**given, name: changed}, {}, course))
            assert found.graph.to_bytes() == alone.graph.to_bytes()
    assert first(given, {"other": np.zeros(1)}).graph is not first(given).graph
    for step in first(given).graph.steps:
        for array in step.node.arrays:
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True  # what is kept is the same for whoever comes later


@pytest.mark.parametrize("objective", ["none", "ntd"])
def test_rounds_with_a_kept_graph_are_rounds_without_to_the_bit(objective: str) -> None:
    kept, found = Evaluations(), []
    for evaluate in (Evaluation, kept.requested, kept.requested):
        task = training(objective)
        for _ in range(2):
            steps = Seen(task, seed=3)
            course = task.train(given_arrays(task), {}, steps.course)
            found.append(answered(course, steps, lambda: drawn(1, 50), 50, unit="record", evaluate=evaluate)[0].vector)
    for vector in found[1:]:
        np.testing.assert_array_equal(vector, found[0])


@pytest.mark.parametrize("longer", [1, 5])
def test_training_that_asks_too_often_is_refused(longer: int) -> None:
    task = training(hidden=0)
    steps = Seen(task)
    with pytest.raises(Misuse, match="more noised steps"):
        answered(_again(task, steps, longer), steps, lambda: drawn(1, 9), 9, unit="record")
    assert steps.taken == steps.number


def _again(task: LocalTraining, steps: Steps, longer: int) -> Training:
    for _ in range(1 + longer):
        found = yield from task.train(given_arrays(task), {}, steps.course)
    return found


def test_huge_noise_hides_the_records() -> None:
    """Two worlds that differ in all records, at noise a thousand times their sum: updates are alike in distribution."""
    task = training(local_steps=1, hidden=0, norm=1e9)
    std = 1000.0 * 40 * 1000.0
    far = [drawn(1, 40), repeated(complete(np.array([[50.0, -30.0]]), np.array([1])), 40)]
    means = []
    for world, records in enumerate(far):
        updates = [run(task, records, Seen(task, 100 * world + seed, std=std))["model.head.weight"] for seed in range(60)]
        means.append(np.mean(updates, axis=0))
    scale = 0.1 * 0.5 * std / 1000.0 / 50  # of one update
    assert 0.0 < np.abs(means[0] - means[1]).max() < 5 * scale * np.sqrt(2 / 60)
    one = run(task, far[0], Seen(task, 0, std=std))["model.head.weight"]
    assert 0.2 * scale < one.std() < 3 * scale


def test_noise_has_the_stated_size() -> None:
    task = training(local_steps=1, hidden=0, norm=1e9)
    nobody = drawn(0, 1).take(np.zeros(0, dtype=np.intp))
    values = np.concatenate([run(task, nobody, Seen(task, seed))["model.head.weight"].ravel() for seed in range(200)])
    expected = 0.1 / 50 * task.step_clip() * 4000.0 / (1000 - np.sqrt(9))
    assert values.std() == pytest.approx(expected, rel=0.1)
    assert discrete_gaussian(NoisePlan("training", 4000**2, 1, 1).share_variance, 10, SeededRandom(1)).std() > 0


def test_a_rate_that_follows_the_noise_moves_values_as_stated() -> None:
    task = training(local_steps=1, hidden=0, norm=1e9, noise_step=0.02, learning_rate=7.0)
    nobody = drawn(0, 1).take(np.zeros(0, dtype=np.intp))
    for rate in (1.0, 0.2):
        updates = [run(task, nobody, Seen(task, seed, rate=rate))["model.head.weight"].ravel() for seed in range(200)]
        assert np.concatenate(updates).std() == pytest.approx(0.02, rel=0.1)


def test_a_step_that_diverges_is_taken_and_paid() -> None:
    task = training(learning_rate=1e6, local_steps=40, momentum=0.9, decay=1e6)
    steps = Seen(task)
    got = run(task, drawn(1, 30), steps)
    assert steps.taken == 40
    assert all(np.isfinite(values).all() for values in got.values())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"weighting": "records"}, "number of records"),
        ({"generation": {"fill": 50}}, "the fewer its class has"),
        ({"generation": {"copies": 5}}, "samples around its records"),
        ({"objective": "iir"}, "whole batch"),
    ],
)
def test_what_only_studies_without_noise_may_ask(changes: dict[str, Any], match: str) -> None:
    reason = training(changes.pop("objective", "none"), **changes).only_without_noise()
    assert reason is not None
    assert match in reason
    assert training().only_without_noise() is None
    assert training(generation={"prototypes": 5}).only_without_noise() is None


def test_what_no_site_builds() -> None:
    values = parameters()
    with pytest.raises(HostileInput, match="two classes"):
        build_task("local-training", values, schema(2, label=False))
    open_model = {**values, "model": {"name": "mlp", "inputs": None, "options": {"hidden": 4}}}
    with pytest.raises(HostileInput, match="leaves options open"):
        build_task("local-training", open_model, schema(2))
    with pytest.raises(HostileInput, match="No model"):
        build_task("local-training", {**values, "model": {"name": "mlq", "inputs": None, "options": {}}}, schema(2))
    open_objective = {**values, "objective": {"name": "prox", "options": {}}}
    with pytest.raises(HostileInput, match="leaves options open"):
        build_task("local-training", open_objective, schema(2))


# Generation.


def generated(monkeypatch: pytest.MonkeyPatch, records: Records, broadcast: dict[str, Floats], **generation: Any) -> Any:
    """The samples and labels that a site trains on."""
    seen: list[Any] = []
    plain = plain_training.descend

    def spy(start: Floats, x: Floats, labels: np.ndarray, *rest: Any) -> Any:
        seen.append((x, labels))
        return plain(start, x[:0], labels[:0], *rest)

    monkeypatch.setattr(plain_training, "descend", spy)
    run(training(generation=generation), records, broadcast=broadcast)
    return seen[-1]


def directions(seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(3, 2, 2))


def test_filling_gives_each_class_that_is_there_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn(10, 90)
    assert found.labels is not None
    records = found.take(np.flatnonzero((found.labels < 1) | (np.arange(90) < 9) & (found.labels == 1)))
    assert records.labels is not None
    few = int((records.labels == 1).sum())
    repeats, labels = generated(monkeypatch, records, {DIRECTIONS: np.zeros((3, 2, 2))}, fill=20)
    many = int((records.labels == 0).sum())
    assert 0 < few < 20 < many
    np.testing.assert_array_equal(np.bincount(labels, minlength=3), [many, 20, 0])
    times = [(repeats == row).all(axis=1).sum() for row in records.features[records.labels == 1]]
    assert max(times) - min(times) <= 1, "every record is repeated about as often"
    assert sum(times) == 20


def test_copies_spread_as_the_directions_say(monkeypatch: pytest.MonkeyPatch) -> None:
    records = drawn(11, 1).take(np.array([0]))
    assert records.labels is not None
    x, labels = generated(monkeypatch, records, {DIRECTIONS: directions()}, copies=10_000)
    assert len(x) == 10_001
    assert set(labels) == set(records.labels)
    a = directions()[records.labels[0]]
    np.testing.assert_allclose(np.cov(x[1:].T), a @ a.T, atol=6 * np.trace(a @ a.T) / 100)
    np.testing.assert_allclose(x[1:].mean(axis=0), records.features[0], atol=6 * np.sqrt(np.trace(a @ a.T)) / 100)


def test_prototypes_are_surrounded_where_the_site_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    prototypes = np.random.default_rng(1).normal(size=(2, 3, 2))
    use = np.array([[1.0, 0, 0], [1, 1, 0]])
    broadcast = {DIRECTIONS: np.zeros((3, 2, 2)), PROTOTYPES: prototypes, USE: use}
    nobody = drawn(0, 1).take(np.zeros(0, dtype=np.intp))
    x, labels = generated(monkeypatch, nobody, broadcast, prototypes=5)
    np.testing.assert_array_equal(np.bincount(labels, minlength=3), [10, 5, 0])
    np.testing.assert_array_equal(x, np.repeat([prototypes[0, 0], prototypes[1, 0], prototypes[1, 1]], 5, axis=0))
    for missing in (DIRECTIONS, PROTOTYPES, USE):
        less = {name: array for name, array in broadcast.items() if name != missing}
        with pytest.raises(HostileInput, match=missing.replace(".", r"\.")):
            generated(monkeypatch, nobody, less, prototypes=5)


def test_no_site_generates_without_bound() -> None:
    """By what is public: running out of memory would tell of records."""
    limit = made.MOST_GENERATED // 2
    for excess in ({"copies": 10_000}, {"fill": 100_000, "prototypes": 100_000}):
        large = schema(2).model_copy(update={"max_records": limit // 10_000 + 1})
        wide = large.model_copy(update={"max_records": 1})
        values = {**parameters(), "generation": excess, "width": 2 if "copies" in excess else 4096}
        with pytest.raises(HostileInput, match="would generate more"):
            build_task("local-training", values, large)
        build_task("local-training", {**values, "width": 2}, wide)
    task = training(generation={"prototypes": 100_000})
    sets = limit // (3 * 100_000) + 1
    for prototypes in (np.zeros((sets, 3, 2)), np.array(1.0)):
        broadcast = {DIRECTIONS: np.zeros((3, 2, 2)), PROTOTYPES: prototypes, USE: np.zeros((sets, 3))}
        with pytest.raises(HostileInput, match=r"geometry\.prototypes"):
            run(task, drawn(0, 3), broadcast=broadcast)


def test_generation_follows_its_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    records, arrays = drawn(12, 5), {DIRECTIONS: directions()}
    first, again, other = (
        generated(monkeypatch, records, {**arrays, SEEDS: np.array(seeds)}, copies=3)[0]
        for seeds in ([5.0, 6.0], [8.0, 6.0], [5.0, 7.0])
    )
    np.testing.assert_array_equal(first, again)
    assert (first[5:] != other[5:]).all()


@pytest.mark.parametrize("seeds", [np.array([0.5, 1]), np.array([-1.0, 1]), np.array([1.0]), np.array([np.nan, 1])])
def test_seeds_are_whole_numbers(seeds: Floats) -> None:
    task = training()
    with pytest.raises(HostileInput, match="seeds"):
        run(task, drawn(0, 3), broadcast={SEEDS: seeds})


TRAINS = """
import sys
import numpy as np
from support.studies import compiled, shifted_sites
from veilsum_privacy.tasks.agreed import AgreedStudy
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


@pytest.mark.system
def test_sites_that_train_perceptrons_import_neither_torch_nor_opacus(pytestconfig: pytest.Config) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINS], cwd=pytestconfig.rootpath / "tests", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
