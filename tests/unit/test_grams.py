"""The task "grams": sums of products of layer inputs against torch and numpy, clipping, rows by themselves, sensitivity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.gradient_sums import records_of, task_vector
from support.neighbours import join, schema
from support.studies import complete
from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.symbols import joined, record_of, traced
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.grams import DIAGONAL, PRODUCTS, Grams
from veilsum_privacy.training.arrays import load, to_broadcast
from veilsum_privacy.training.layer_inputs import opaque_inputs, traced_inputs
from veilsum_privacy.training.models import ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.predict import representations

MLP = resolve_model(ModelSpec(name="mlp", options={"hidden": 5, "scale": 0.5}))
LENET = resolve_model(ModelSpec(name="lenet5", inputs=(1, 12, 12), options={"conv1": 2, "conv2": 3, "fc1": 7, "fc2": 6}))
MODELS = {"mlp": (MLP, 3), "lenet5": (LENET, 144)}


def built(name: str) -> tuple[Architecture, dict[str, Floats]]:
    spec, width = MODELS[name]
    architecture = build_architecture(spec, width, 3)
    return architecture, architecture.initial(3)


def task(name: str = "mlp", **changes: Any) -> Grams:
    spec, width = MODELS[name]
    architecture, _ = built(name)
    common = {"clip": 20.0, "missing": "skip", "gram_clip": 1.0, "layers": list(architecture.linear_layers())}
    found = build_task("grams", {**common, "model": spec.model_dump(mode="json"), **changes}, schema(width))
    assert isinstance(found, Grams)
    return found


def drawn(n: int, width: int = 3, seed: int = 0) -> Records:
    rng = np.random.default_rng(seed)
    return complete(rng.uniform(-1, 1, (n, width)), rng.integers(0, 3, n))


def by_subject(records: Records, subjects: np.ndarray) -> Records:
    return Records(records.features, records.present, records.labels, subjects.astype(np.int64))


def matrices(found: Grams, vector: Floats) -> dict[str, Floats]:
    """Grams (m, m) by layer, read out of a vector place by place."""
    blocks = found.layout().split(vector)
    grams = {}
    for layer, size in found.sizes.items():
        gram = np.diag(blocks[DIAGONAL + layer])
        products = iter(blocks[PRODUCTS + layer])
        for row in range(size):
            for column in range(row + 1, size):
                gram[row, column] = gram[column, row] = next(products)
        grams[layer] = gram
    return grams


def by_torch(name: str, x: Floats) -> dict[str, Floats]:
    """What each layer is given, with a one, by a network in float64 that is run layer by layer."""
    architecture, arrays = built(name)
    module = architecture.module()
    load(module, arrays)
    seen: dict[str, Floats] = {}
    value = torch.tensor(x)
    with torch.no_grad():
        for part, layer in [*((f"features.{k}", m) for k, m in module.features.named_children()), ("head", module.head)]:
            if part in architecture.linear_layers():
                seen[part] = np.column_stack([value.numpy(), np.ones(len(x))])
            value = layer(value)
    return seen


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "tolerance"), [("mlp", 1e-7), ("lenet5", 1e-5)])
@pytest.mark.parametrize("clip", [0.7, 1.5, 50.0])
def test_grams_are_sums_of_products_of_clipped_inputs(name: str, tolerance: float, clip: float) -> None:
    records = drawn(150, MODELS[name][1])
    found = task(name, gram_clip=clip)
    grams = matrices(found, task_vector(found, records, to_broadcast(built(name)[1])))
    for layer, u in by_torch(name, records.features).items():
        v = u * np.minimum(1.0, clip / np.linalg.norm(u, axis=1))[:, None]
        np.testing.assert_allclose(grams[layer], v.T @ v, atol=tolerance * len(records) * clip**2)


def inputs_of(architecture: Architecture, arrays: dict[str, Floats], x: Floats, layers: Sequence[str]) -> dict[str, Floats]:
    """What layers are given by records of these features, by the graph that the task has."""
    given = traced_inputs(architecture, arrays, record_of(x.shape[1], labelled=False).features, layers)
    evaluation = Evaluation(traced(joined(*given)), opaque_inputs(architecture, arrays, layers))
    rows = np.concatenate([batch.copy() for batch in evaluation.rows(records_of(x, np.zeros(len(x), dtype=np.int64)))])
    ends = np.cumsum([values.shape[0] for values in given])
    return dict(zip(layers, np.split(rows, ends[:-1], axis=1), strict=True))


def test_the_constant_of_a_bias_is_the_last_input() -> None:
    spec = ModelSpec(name="linear", options={"scale": 0.5, "bias": 0.3})
    architecture = build_architecture(spec, 3, 3)
    found = inputs_of(architecture, architecture.initial(0), drawn(4).features, ["head"])
    np.testing.assert_array_equal(found["head"], np.column_stack([0.5 * drawn(4).features, np.full(4, 0.3)]))


@pytest.mark.parametrize("name", list(MODELS))
def test_inputs_of_a_record_do_not_depend_on_its_company(name: str) -> None:
    architecture, arrays = built(name)
    x = drawn(130, MODELS[name][1]).features
    layers = architecture.linear_layers()
    whole = inputs_of(architecture, arrays, x, layers)
    for row in (0, 63, 64, 129):
        alone = inputs_of(architecture, arrays, x[row : row + 1], layers)
        for layer in layers:
            np.testing.assert_array_equal(alone[layer][0], whole[layer][row])
    np.testing.assert_array_equal(whole["head"][:, :-1], representations(architecture, arrays, x))


def test_records_that_do_not_count_add_nothing() -> None:
    found, broadcast = task(gram_clip=0.9), to_broadcast(built("mlp")[1])
    records = drawn(6)
    features, present = records.features.copy(), records.present.copy()
    features[1, 0], features[2, 1], present[3, 2] = np.nan, np.inf, False
    spoilt = Records(features, present, np.array([-1, 0, 0, 0, 1, 2]))
    whole = task_vector(found, records.take(np.array([0, 2, 4, 5])), broadcast)
    at_a_bound = records.take(np.array([2]))
    at_a_bound.features[0] = [records.features[2, 0], 1.0, records.features[2, 2]]
    rest = task_vector(found, records.take(np.array([0, 4, 5])), broadcast) + task_vector(found, at_a_bound, broadcast)
    np.testing.assert_allclose(task_vector(found, spoilt, broadcast), rest, rtol=0, atol=1e-9)
    assert not np.allclose(whole, rest)
    assert not task_vector(found, records.take(np.zeros(0, dtype=np.intp)), broadcast).any()
    centred = task_vector(task(gram_clip=0.9, missing="centre"), spoilt, broadcast)
    assert np.linalg.norm(centred) > np.linalg.norm(rest)


def test_a_network_that_overflows_adds_nothing() -> None:
    found = task(layers=["head"], gram_clip=3.0)
    arrays = {name: 1e308 * np.ones_like(array) for name, array in built("mlp")[1].items()}
    with pytest.raises(HostileInput):
        task_vector(found, drawn(3), to_broadcast(arrays))
    arrays = {name: 1e200 * np.ones_like(array) for name, array in built("mlp")[1].items()}
    vector = task_vector(found, drawn(50), to_broadcast(arrays))
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) <= 50 * found.clip()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 80), st.floats(0.05, 30.0), st.integers(1, 5), st.sampled_from(["mlp", "lenet5"]))
def test_a_unit_moves_the_sum_within_the_bound(seed: int, n: int, clip: float, added: int, name: str) -> None:
    width = MODELS[name][1]
    found, broadcast = task(name, gram_clip=clip), to_broadcast(built(name)[1])
    rng = np.random.default_rng(seed)
    both = drawn(n + added, width, seed)
    one = both.take(np.delete(np.arange(n + added), rng.integers(0, n + added)))
    assert np.linalg.norm(task_vector(found, both, broadcast) - task_vector(found, one, broadcast)) <= found.clip()
    subjects = np.concatenate([np.arange(n), np.full(added, n)])
    with_it = by_subject(both, subjects)
    moved = task_vector(found, with_it, broadcast) - task_vector(found, with_it.take(np.arange(n)), broadcast)
    assert np.linalg.norm(moved) <= found.clip()


@pytest.mark.parametrize("name", list(MODELS))
def test_the_bound_is_reached(name: str) -> None:
    """At a clip of 1 the constant alone makes every record too long."""
    found, broadcast = task(name), to_broadcast(built(name)[1])
    company, extra = drawn(100, MODELS[name][1]), drawn(1, MODELS[name][1], seed=7)
    moved = task_vector(found, join(company, extra), broadcast) - task_vector(found, company, broadcast)
    assert 0.999 * found.clip() <= np.linalg.norm(moved) <= found.clip()


def test_a_subject_counts_as_one_record_at_most_and_order_is_of_no_account() -> None:
    found, broadcast = task(gram_clip=1.0), to_broadcast(built("mlp")[1])
    records = drawn(40)
    alone, whole = by_subject(records, np.arange(40)), task_vector(found, records, broadcast)
    np.testing.assert_allclose(task_vector(found, alone, broadcast), whole, rtol=0, atol=1e-3)
    thrice = by_subject(records.take(np.repeat(np.arange(40), 3)), np.repeat(np.arange(40), 3))
    np.testing.assert_allclose(
        task_vector(found, thrice, broadcast), task_vector(found, records, broadcast), rtol=0, atol=1e-3
    )
    order = np.random.default_rng(0).permutation(40)
    turned = task_vector(found, records.take(order), broadcast)
    np.testing.assert_allclose(turned, task_vector(found, records, broadcast), rtol=0, atol=1e-9)


def test_products_have_sqrt_2_times_the_weight_and_layers_by_size() -> None:
    found = task("lenet5")
    weights = {block.name: block.weight for block in found.layout().blocks}
    sizes = {layer: size * (size + 1) / 2 for layer, size in found.sizes.items()}
    first = next(iter(found.sizes))
    for layer, size in sizes.items():
        assert weights[PRODUCTS + layer] == pytest.approx(np.sqrt(2.0) * weights[DIAGONAL + layer])
        assert weights[DIAGONAL + layer] / weights[DIAGONAL + first] == pytest.approx((size / sizes[first]) ** 0.25)


def test_layers_must_be_the_models_and_small_enough() -> None:
    with pytest.raises(HostileInput, match="no Linear layer 'fc9'"):
        task(layers=["fc9"])
    with pytest.raises(HostileInput, match="named twice"):
        task(layers=["head", "head"])
    wide = resolve_model(ModelSpec(name="mlp", options={"hidden": 4096}))
    with pytest.raises(HostileInput, match="more than 1048576"):
        task(model=wide.model_dump(mode="json"), layers=["features.hidden", "head"])
    task(model=wide.model_dump(mode="json"), layers=["features.hidden"])
    with pytest.raises(HostileInput, match="leaves options open"):
        task(model={"name": "mlp", "inputs": None, "options": {}})
    architecture, arrays = built("mlp")
    with pytest.raises(Misuse, match="no Linear layer"):
        inputs_of(architecture, arrays, np.zeros((2, 3)), ["other"])


def test_a_broadcast_without_the_model_is_refused() -> None:
    with pytest.raises(HostileInput, match=r"model\.features\.hidden\.weight"):
        task_vector(task(), drawn(3), {})
