"""RegMean against scipy's least squares on the activations themselves, and the whole merge of stations' networks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.linalg import lstsq

from support.networks import permute
from veilsum_aggregation.channel_groups import ChannelGroup, GroupMember
from veilsum_aggregation.filters import weighted_mean
from veilsum_aggregation.regmean import RIDGE, merge_stations, noise_ridge, regmean, shrink_gram
from veilsum_aggregation.shrinkage import project_psd

Floats = np.ndarray
seeds = st.integers(0, 2**32 - 1)


def stations(seed: int, e: int, m: int, out: int, n: int) -> tuple[list[Floats], list[Floats]]:
    """Layers (out, m), and inputs (n, m) whose second moments differ from station to station."""
    rng = np.random.default_rng(seed)
    inputs = [
        rng.standard_normal((n, m)) @ (np.eye(m) + 0.5 * rng.standard_normal((m, m))) + rng.standard_normal(m)
        for _ in range(e)
    ]
    return [rng.standard_normal((out, m)) for _ in range(e)], inputs


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 5), st.integers(1, 7), st.integers(1, 4), st.integers(0, 30))
def test_without_shrinkage_and_ridge_it_is_least_squares_on_the_stacked_inputs(
    seed: int, e: int, m: int, out: int, more: int
) -> None:
    weights, inputs = stations(seed, e, m, out, m + more)
    stacked, targets = np.vstack(inputs), np.vstack([x @ w.T for x, w in zip(inputs, weights, strict=True)])
    condition = np.linalg.cond(stacked)
    assume(condition < 1e3)
    fused = regmean(weights, [x.T @ x for x in inputs], alpha=1.0, ridge=0.0)
    expected = lstsq(stacked, targets)[0].T
    np.testing.assert_allclose(fused, expected, rtol=0, atol=1e-14 * (10 * condition) ** 2 * np.abs(np.array(weights)).max())


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 4), st.integers(1, 6), st.floats(0.0, 1.0), st.floats(0.01, 100.0), st.booleans())
def test_shrinkage_and_ridge_are_more_rows_of_least_squares(
    seed: int, e: int, m: int, alpha: float, ridge: float, given_average: bool
) -> None:
    """a G are sqrt(a) X's rows, (1 - a) diag(G) a row a feature, the ridge a row a feature with the average as target."""
    weights, inputs = stations(seed, e, m, 3, m + 5)
    average = np.random.default_rng(seed).standard_normal((3, m)) if given_average else np.mean(weights, axis=0)
    rows, targets = [math.sqrt(ridge) * np.eye(m)], [math.sqrt(ridge) * average.T]
    for x, w in zip(inputs, weights, strict=True):
        for part in (math.sqrt(alpha) * x, math.sqrt(1.0 - alpha) * np.diag(np.linalg.norm(x, axis=0))):
            rows.append(part)
            targets.append(part @ w.T)
    expected = lstsq(np.vstack(rows), np.vstack(targets))[0].T
    fused = regmean(weights, [x.T @ x for x in inputs], alpha, ridge, average=average if given_average else None)
    assume(np.linalg.cond(np.vstack(rows)) < 1e3)
    np.testing.assert_allclose(fused, expected, rtol=0, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 5), st.integers(1, 6), st.floats(0.0, 1.0), st.sampled_from([None, 1e-3, 1.0, 1e6]))
def test_equal_layers_stay_what_they_are(seed: int, e: int, m: int, alpha: float, ridge: float | None) -> None:
    weights, inputs = stations(seed, e, m, 3, 2)  # fewer records than inputs: singular Grams
    fused = regmean([weights[0]] * e, [x.T @ x for x in inputs], alpha, ridge)
    np.testing.assert_allclose(fused, weights[0], rtol=0, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(2, 5), st.integers(1, 6))
def test_limits_and_symmetries(seed: int, e: int, m: int) -> None:
    weights, inputs = stations(seed, e, m, 2, m + 10)
    grams = [x.T @ x for x in inputs]
    mean = np.mean(weights, axis=0)
    np.testing.assert_allclose(regmean(weights, grams, ridge=1e14), mean, atol=1e-8)
    np.testing.assert_allclose(regmean(weights, [np.zeros((m, m))] * e), mean, atol=1e-12)
    np.testing.assert_allclose(regmean(weights, [np.eye(m)] * e, ridge=3.0), mean, atol=1e-12)
    heavy = [gram * (1e9 if i == 0 else 1.0) for i, gram in enumerate(grams)]
    np.testing.assert_allclose(regmean(weights, heavy), weights[0], atol=1e-3)
    fused = regmean(weights, grams, ridge=0.1)
    np.testing.assert_allclose(regmean(weights[::-1], grams[::-1], ridge=0.1), fused, atol=1e-9)
    np.testing.assert_allclose(regmean(weights, [4.0 * gram for gram in grams], ridge=0.4), fused, atol=1e-9)
    order = np.random.default_rng(seed).permutation(m)
    turned = regmean([w[:, order] for w in weights], [gram[np.ix_(order, order)] for gram in grams], ridge=0.1)
    np.testing.assert_allclose(turned, fused[:, order], atol=1e-9)


def test_it_is_nearer_to_the_stations_on_their_inputs_than_the_average() -> None:
    weights, inputs = stations(1, 3, 6, 4, 50)
    fused, mean = regmean(weights, [x.T @ x for x in inputs]), np.mean(weights, axis=0)
    apart = [sum(np.sum((x @ (w - one).T) ** 2) for x, w in zip(inputs, weights, strict=True)) for one in (fused, mean)]
    assert apart[0] < 0.8 * apart[1]


def test_shrinkage_keeps_the_diagonal() -> None:
    gram = np.array([[4.0, 2.0], [2.0, 9.0]])
    np.testing.assert_array_equal(shrink_gram(gram, 0.75), [[4.0, 1.5], [1.5, 9.0]])
    np.testing.assert_array_equal(shrink_gram(gram, 1.0), gram)
    np.testing.assert_array_equal(shrink_gram(gram, 0.0), np.diag([4.0, 9.0]))


def noise(rng: np.random.Generator, m: int, std: float) -> Floats:
    """Symmetric noise: ``std`` on the diagonal, over sqrt 2 beside it."""
    upper = np.triu(rng.standard_normal((m, m)), 1) * std / math.sqrt(2.0)
    return upper + upper.T + np.diag(std * rng.standard_normal(m))


@pytest.mark.parametrize("e", [1, 5])
def test_the_noise_ridge_is_the_spectral_size_of_the_noise(e: int) -> None:
    rng = np.random.default_rng(0)
    sigma, clip, m = 2.0, 1.5, 300
    total = sum(noise(rng, m, sigma * clip**2) for _ in range(e))
    assert 0.93 < np.linalg.norm(total, 2) / noise_ridge(sigma, clip, m, e) < 1.05
    assert noise_ridge(0.0, clip, m, e) == 0.0
    for wrong in ((-1.0, 1.0, 1, 1), (1.0, -1.0, 1, 1), (1.0, 1.0, -1, 1), (float("nan"), 1.0, 1, 1)):
        with pytest.raises(ValueError, match="negative"):
            noise_ridge(*wrong)


def test_what_does_not_fit_is_refused() -> None:
    weights, inputs = stations(0, 2, 3, 2, 9)
    grams = [x.T @ x for x in inputs]
    for arguments, reason in (
        (([], []), "do not fit"),
        ((weights, grams[:1]), "do not fit"),
        ((weights, [grams[0], np.eye(4)]), "do not fit"),
        (([weights[0], weights[1][:1]], grams), "do not fit"),
        ((weights, [grams[0], grams[1] * np.nan]), "finite"),
        (([weights[0], weights[1] * np.inf], grams), "finite"),
        ((weights, grams, 1.5), "alpha"),
        ((weights, grams, float("nan")), "alpha"),
        ((weights, grams, 0.75, -1.0), "ridge"),
        ((weights, grams, 0.75, math.inf), "ridge"),
        ((weights, [np.zeros((3, 3))] * 2, 0.75, 0.0), "raise the ridge"),
        ((weights, [-gram for gram in grams], 0.75, 0.1), "project"),
    ):
        with pytest.raises(ValueError, match=reason):
            regmean(*arguments)
    with pytest.raises(ValueError, match="average"):
        regmean(weights, grams, average=np.zeros((2, 4)))


# A small network: features from a matrix of "filters", ReLU, each channel flattened to two places, hidden layer, head.

GROUPS = (
    ChannelGroup(
        "filters", 5, (GroupMember("conv.weight", 0), GroupMember("conv.bias", 0)), (GroupMember("hidden.weight", 1, 2),)
    ),
    ChannelGroup(
        "hidden", 6, (GroupMember("hidden.weight", 0), GroupMember("hidden.bias", 0)), (GroupMember("head.weight", 1),)
    ),
)
LAYERS = ("hidden", "head")


def network(seed: int) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    shapes = {"conv.weight": (5, 4), "conv.bias": (5,), "hidden.weight": (6, 10), "hidden.bias": (6,), "head.weight": (3, 6)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def activations(arrays: dict[str, Floats], x: Floats) -> dict[str, Floats]:
    """Inputs of the linear layers with an appended one, and the scores, for images (n, 2, 4) of two patches."""
    maps = np.maximum(np.einsum("npi,ci->ncp", x, arrays["conv.weight"]) + arrays["conv.bias"][:, None], 0.0)
    flat = maps.reshape(len(x), -1)
    hidden = np.maximum(flat @ arrays["hidden.weight"].T + arrays["hidden.bias"], 0.0)
    ones = np.ones((len(x), 1))
    return {"hidden": np.hstack([flat, ones]), "head": np.hstack([hidden, ones]), "scores": hidden @ arrays["head.weight"].T}


def grams_of(arrays: dict[str, Floats], x: Floats) -> dict[str, Floats]:
    return {layer: own.T @ own for layer, own in activations(arrays, x).items() if layer in LAYERS}


def images(seed: int, n: int = 40) -> Floats:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 2, 4)) * rng.uniform(0.3, 2.0, 4)


def renumbered(arrays: dict[str, Floats], seed: int) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    return permute(arrays, GROUPS, {group.name: rng.permutation(group.size) for group in GROUPS})


def test_stations_that_differ_by_their_order_alone_merge_to_one_of_them() -> None:
    models = [network(0), renumbered(network(0), 1), renumbered(network(0), 2)]
    grams = [grams_of(model, images(i)) for i, model in enumerate(models)]
    merged = merge_stations(models, grams, [1, 2, 3], GROUPS, LAYERS, filters=True, regmean=True)
    for name, array in models[0].items():
        np.testing.assert_allclose(merged.arrays[name], array, rtol=0, atol=1e-10)
    displaced = sum(int(np.sum(order != np.arange(len(order)))) for own in merged.permutations for order in own.values())
    assert merged.permutations[0] == {}
    assert merged.moved == pytest.approx(displaced / 22)
    assert merged.moved > 0.4
    blurred = merge_stations(models, grams, [1, 2, 3], GROUPS, LAYERS, filters=False, regmean=True)
    assert np.abs(blurred.arrays["hidden.weight"] - models[0]["hidden.weight"]).max() > 0.1
    assert (blurred.moved, blurred.permutations) == (0.0, ({}, {}, {}))


def test_grams_follow_the_filters() -> None:
    """With FOT, RegMean of renumbered stations equals RegMean of the stations in the reference's order, layer by layer."""
    first = network(0)
    rng = np.random.default_rng(9)
    near = [{name: array + 0.02 * rng.standard_normal(array.shape) for name, array in first.items()} for _ in range(2)]
    x = [images(i) for i in range(3)]
    apart = [first, *(renumbered(model, i) for i, model in enumerate(near, 5))]
    merged = merge_stations(
        apart,
        [grams_of(m, own) for m, own in zip(apart, x, strict=True)],
        [3, 1, 1],
        GROUPS,
        LAYERS,
        filters=True,
        regmean=True,
    )
    together = [first, *near]
    average = weighted_mean(together, [3, 1, 1])
    np.testing.assert_allclose(merged.arrays["conv.weight"], average["conv.weight"], rtol=0, atol=1e-14)
    inner = [activations(model, own) for model, own in zip(together, x, strict=True)]
    grams = [own["hidden"].T @ own["hidden"] for own in inner]
    rows = [np.column_stack([model["hidden.weight"], model["hidden.bias"]]) for model in (*together, average)]
    ridge = RIDGE * sum(float(np.trace(gram)) for gram in grams) / 11
    fused = regmean(rows[:3], grams, 0.75, ridge, average=rows[3])
    np.testing.assert_allclose(merged.arrays["hidden.weight"], fused[:, :-1], rtol=0, atol=1e-9)
    np.testing.assert_allclose(merged.arrays["hidden.bias"], fused[:, -1], rtol=0, atol=1e-9)
    assert merged.ridges["hidden"] == pytest.approx(ridge)
    grams = [own["head"][:, :-1].T @ own["head"][:, :-1] for own in inner]  # the head has no bias
    ridge = RIDGE * sum(float(np.trace(gram)) for gram in grams) / 6
    fused = regmean([model["head.weight"] for model in together], grams, 0.75, ridge, average=average["head.weight"])
    np.testing.assert_allclose(merged.arrays["head.weight"], fused, rtol=0, atol=1e-9)
    assert np.abs(fused - average["head.weight"]).max() > 1e-4


def test_from_a_shared_start_fot_is_the_average_to_the_last_bit() -> None:
    start = network(3)
    rng = np.random.default_rng(3)
    models = [{name: array + 0.02 * rng.standard_normal(array.shape) for name, array in start.items()} for _ in range(4)]
    average = weighted_mean(models, [4, 3, 2, 1])
    for filters in (True, False):
        merged = merge_stations(models, None, [4, 3, 2, 1], GROUPS, LAYERS, filters=filters, regmean=False)
        assert merged.moved == 0.0
        assert merged.ridges == {}
        assert all(np.array_equal(merged.arrays[name], average[name]) for name in average)


def test_noised_grams_fall_back_to_the_average() -> None:
    models = [network(i) for i in range(3)]
    rng = np.random.default_rng(0)
    average = weighted_mean(models, [1, 1, 1])
    clear = [grams_of(model, images(i)) for i, model in enumerate(models)]
    found = {}
    for std in (0.0, 1.0, 1e4, 1e9):
        stds = {layer: [std, std, 2.0 * std] for layer in LAYERS}
        noised = [
            {name: gram + noise(rng, len(gram), stds[name][i]) for name, gram in own.items()} for i, own in enumerate(clear)
        ]
        merged = merge_stations(models, noised, [1, 1, 1], GROUPS, LAYERS, filters=False, regmean=True, noise_std=stds)
        found[std] = merged.arrays["hidden.weight"]
        if std:
            for layer, m in (("hidden", 11), ("head", 7)):
                assert merged.ridges[layer] >= math.sqrt(6.0) * std * math.sqrt(2.0 * m) * (1.0 - 1e-12)
    exact = merge_stations(models, clear, [1, 1, 1], GROUPS, LAYERS, filters=False, regmean=True).arrays["hidden.weight"]
    np.testing.assert_array_equal(found[0.0], exact)
    assert 0.0 < np.linalg.norm(found[1.0] - exact) < 0.5 * np.linalg.norm(exact - average["hidden.weight"])
    spread = np.max([np.linalg.norm(model["hidden.weight"] - average["hidden.weight"]) for model in models])
    for std in (1e4, 1e9):  # all noise: within the stations' own distance of their average
        assert np.linalg.norm(found[std] - average["hidden.weight"]) < spread


def test_a_noised_gram_is_projected_first() -> None:
    models = [{"head.weight": np.ones((1, 2))}, {"head.weight": np.array([[3.0, 5.0]])}]
    grams = [{"head": np.diag([5.0, -4.0, 1.0])}, {"head": np.diag([2.0, 3.0, 1.0])}]
    merged = merge_stations(models, grams, [1, 1], (), ("head",), filters=True, regmean=True, noise_std={"head": [0.1, 0.1]})
    ridge = 0.1 * math.sqrt(2.0 * 3 * 2)
    expected = [(5 * 1 + 2 * 3 + ridge * 2) / (7 + ridge), (0 * 1 + 3 * 5 + ridge * 3) / (3 + ridge)]
    np.testing.assert_allclose(merged.arrays["head.weight"], [expected], rtol=1e-12)
    assert merged.ridges == {"head": pytest.approx(ridge)}
    np.testing.assert_allclose(project_psd(grams[0]["head"]), np.diag([5.0, 0.0, 1.0]), atol=1e-12)
    with pytest.raises(ValueError, match="project"):
        merge_stations(models, grams[:1] * 2, [1, 1], (), ("head",), filters=True, regmean=True)


def test_a_merge_that_does_not_fit_is_refused() -> None:
    models = [network(0), network(1)]
    grams = [grams_of(model, images(0)) for model in models]
    cases: list[tuple[object, dict[str, object], str]] = [
        (None, {}, "needs a Gram"),
        (grams[:1], {}, "needs a Gram"),
        ([grams[0], {"head": grams[1]["head"]}], {}, "needs a Gram"),
        ([grams[0], {**grams[1], "hidden": grams[1]["hidden"][:-1, :-1]}], {}, r"must be \(11, 11\)"),
        (grams, {"noise_std": {"head": [1.0]}}, "one standard deviation"),
        (grams, {"noise_std": {"head": [1.0, -1.0]}}, "one standard deviation"),
        ([grams[0], {**grams[1], "head": np.full((7, 7), np.nan)}], {"noise_std": {"head": [1.0, 1.0]}}, "finite"),
        ([grams[0], {**grams[1], "head": np.full((7, 7), np.nan)}], {}, "finite"),
    ]
    for given_grams, more, reason in cases:
        with pytest.raises(ValueError, match=reason):
            merge_stations(models, given_grams, [1, 1], GROUPS, LAYERS, filters=False, regmean=True, **more)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a linear layer"):
        merge_stations(models, [{"tail": np.eye(2)}] * 2, [1, 1], GROUPS, ("tail",), filters=False, regmean=True)
    with pytest.raises(ValueError, match="cannot be averaged"):
        merge_stations([], [], [], GROUPS, LAYERS, filters=True, regmean=True)


def test_a_ridge_that_is_stated_draws_to_the_mean() -> None:
    """A large one gives the mean; between none and that it is the one of the formula, a share of the mean diagonal."""
    rng = np.random.default_rng(8)
    models = [{"head.weight": rng.normal(size=(2, 3))} for _ in range(2)]
    halves = [rng.normal(size=(40, 3)) for _ in range(2)]
    grams = [{"head": np.pad(x.T @ x, (0, 1))} for x in halves]
    mean = (models[0]["head.weight"] + models[1]["head.weight"]) / 2

    def merged(ridge: float) -> np.ndarray:
        found = merge_stations(models, grams, [1, 1], (), ("head",), filters=False, regmean=True, alpha=1.0, ridge=ridge)
        return found.arrays["head.weight"]

    np.testing.assert_allclose(merged(1e6), mean, atol=1e-5)
    own = [gram["head"][:3, :3] for gram in grams]
    r = 0.5 * sum(np.trace(gram) for gram in own) / 3
    right = sum(model["head.weight"] @ gram for model, gram in zip(models, own, strict=True)) + r * mean
    np.testing.assert_allclose(merged(0.5), right @ np.linalg.inv(sum(own) + r * np.eye(3)), atol=1e-10)
