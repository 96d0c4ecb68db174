"""The last block of a transformer: torch's own layer, words that are not there, RegMean of its layers, and training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from support.federation import schema_of
from support.studies import Watched, compiled, complete
from veilsum_aggregation.moments import symmetric
from veilsum_coordinator.methods import get_method
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_participant.applying.model import Model
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.grams import DIAGONAL, PRODUCTS
from veilsum_privacy.training import predict
from veilsum_privacy.training.arrays import MODEL
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_privacy.training.models.base import Architecture

WORDS, ACROSS, HEADS, HIDDEN, CLASSES = 6, 8, 2, 12, 3
SPEC = ModelSpec(name="block", inputs=(WORDS, ACROSS), options={"heads": HEADS, "hidden": HIDDEN})
SITES = ("a", "b", "c", "d")
STATIONS = {"one": ["a", "b"], "two": ["c", "d"]}
FUSED = ("query", "out", "first", "second")


def block() -> Architecture:
    return build_architecture(SPEC, WORDS * ACROSS, CLASSES)


def values(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: value + 0.2 * rng.standard_normal(value.shape) for name, value in block().initial(seed).items()}


def torchs(arrays: dict[str, np.ndarray], activation: str = "relu", epsilon: float = 1e-5) -> nn.TransformerEncoderLayer:
    """torch's layer with these values."""
    layer = nn.TransformerEncoderLayer(ACROSS, HEADS, HIDDEN, 0.0, activation, epsilon, batch_first=True).double().eval()
    told = {name.removeprefix("features."): torch.from_numpy(value) for name, value in arrays.items()}
    told["key.bias"] = torch.full((ACROSS,), 0.7)  # which no output depends on
    with torch.no_grad():
        for kind in ("weight", "bias"):
            getattr(layer.self_attn, f"in_proj_{kind}").copy_(
                torch.cat([told[f"{name}.{kind}"] for name in ("query", "key", "value")])
            )
            for own, ours in (
                (layer.self_attn.out_proj, "out"), (layer.linear1, "first"), (layer.linear2, "second"),
                (layer.norm1, "norm1"), (layer.norm2, "norm2"),
            ):  # fmt: skip
                getattr(own, kind).copy_(told[f"{ours}.{kind}"])
    return layer


def some_words(rng: np.random.Generator, n: int) -> np.ndarray:
    """Hidden states of texts of one word or more; what is behind the last one is zeros."""
    x = rng.standard_normal((n, WORDS, ACROSS))
    lengths = rng.integers(1, WORDS + 1, n)
    return np.where(np.arange(WORDS)[None, :, None] < lengths[:, None, None], x, 0.0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_it_is_torchs_layer_at_the_first_word(seed: int) -> None:
    arrays, x = values(seed % 7), some_words(np.random.default_rng(seed), 9)
    with torch.no_grad():
        gone = torch.from_numpy((x == 0.0).all(axis=2))
        expected = torchs(arrays)(torch.from_numpy(x), src_key_padding_mask=gone)[:, 0].numpy()
    found = predict.representations(block(), arrays, x.reshape(len(x), -1))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    scores = predict.scores(block(), arrays, x.reshape(len(x), -1))
    np.testing.assert_allclose(scores, expected @ arrays["head.weight"].T + arrays["head.bias"], atol=1e-9)


def test_it_is_torchs_layer_with_another_bend_and_norm() -> None:
    """As BERT has them; large enough an epsilon to show."""
    options = {**SPEC.options, "activation": "gelu", "epsilon": 0.05}
    other = build_architecture(SPEC.model_copy(update={"options": options}), WORDS * ACROSS, CLASSES)
    arrays, x = values(1), some_words(np.random.default_rng(4), 9)
    with torch.no_grad():
        gone = torch.from_numpy((x == 0.0).all(axis=2))
        expected = torchs(arrays, "gelu", 0.05)(torch.from_numpy(x), src_key_padding_mask=gone)[:, 0].numpy()
    found = predict.representations(other, arrays, x.reshape(len(x), -1))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert np.abs(found - predict.representations(block(), arrays, x.reshape(len(x), -1))).max() > 0.01


def test_words_that_are_not_there_change_nothing_and_no_words_are_no_fault() -> None:
    arrays, x = values(), some_words(np.random.default_rng(3), 5)
    x[:, 3:] = 0.0
    shorter = build_architecture(SPEC.model_copy(update={"inputs": (3, ACROSS)}), 3 * ACROSS, CLASSES)
    np.testing.assert_allclose(
        predict.scores(block(), arrays, x.reshape(5, -1)), predict.scores(shorter, arrays, x[:, :3].reshape(5, -1)), atol=1e-12
    )
    assert np.isfinite(predict.scores(block(), arrays, np.zeros((2, WORDS * ACROSS)))).all()


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (SPEC.model_copy(update={"inputs": None}), "words, width"),
        (SPEC.model_copy(update={"inputs": (2, 4, 6)}), "words, width"),
        (SPEC.model_copy(update={"options": {"heads": 3}}), "heads"),
        (SPEC.model_copy(update={"options": {"heads": 0}}), "invalid options"),
        (SPEC.model_copy(update={"inputs": (WORDS + 1, ACROSS)}), "56 values"),
    ],
)
def test_what_is_no_block(spec: ModelSpec, match: str) -> None:
    with pytest.raises(HostileInput, match=match) as caught:
        build_architecture(spec, WORDS * ACROSS, CLASSES)
    assert caught.value.message


# -- in studies ---------------------------------------------------------------------------------------------------------------


def sites(n: int = 80) -> dict[str, Records]:
    """Texts whose class is the word that the first one asks for; some without a usable value."""
    found = {}
    fixed = np.random.default_rng(7).uniform(-1, 1, (CLASSES, ACROSS))
    for place, name in enumerate(SITES):
        rng = np.random.default_rng(place)
        y = rng.integers(CLASSES, size=n)
        x = 0.3 * some_words(rng, n).clip(-2, 2)
        x[:, 1] = fixed[y] + 0.1 * rng.standard_normal((n, ACROSS))
        features = x.clip(-1, 1).reshape(n, -1)
        features[:3] = np.nan
        found[name] = Records(features, np.isfinite(features) | (np.arange(n) < 3)[:, None], y, None)
    return found


def study(method: str, epsilon: float | None = None, **parameters: object):  # type: ignore[no-untyped-def]
    privacy = {"noise": "none", "min_cohort": 2} if epsilon is None else {"epsilon": epsilon, "min_cohort": 2}
    return compiled(
        method, {"model": SPEC.model_dump(mode="json"), **parameters}, schema=schema_of(WORDS * ACROSS, CLASSES), sites=SITES,
        **privacy,
    )  # fmt: skip


def test_regmean_fuses_its_layers_by_their_inputs() -> None:
    """One merge of stations that began apart: Grams by torch's hooks, RegMean's formula by a solve, the rest averaged."""
    data, layers = sites(), [*(f"features.{name}" for name in FUSED), "head"]
    merge = {"filters": False, "alpha": 1.0}
    told = study("hfedatm", stations=STATIONS, start="independent", rounds=1, merge=merge, gram_clip=30.0, batch=16)
    assert told.parameters["layers"] == layers
    watched = Watched(told, data, 0)
    result = get_method("hfedatm").run(watched)
    models = [
        {name.removeprefix(MODEL): value for name, value in sent.items() if name.startswith(MODEL)}
        for sent in watched.broadcasts[2:]
    ]
    whole = [np.concatenate([data[name].features[3:] for name in own]) for own in STATIONS.values()]
    for name in layers:
        grams = []
        for model, x, release in zip(models, whole, watched.releases[2:], strict=True):
            seen = by_hook(model, name, x)
            seen = np.column_stack([seen, np.ones(len(seen))])
            grams.append(seen.T @ seen)
            released = symmetric(release.values[DIAGONAL + name], release.values[PRODUCTS + name])
            np.testing.assert_allclose(released, grams[-1], atol=2e-2, rtol=1e-3)
        weights = [np.column_stack([model[f"{name}.weight"], model[f"{name}.bias"]]) for model in models]
        right = sum(gram @ own.T for gram, own in zip(grams, weights, strict=True))
        ridge, mean = result.summary["merges"][0]["ridges"][name], np.mean(weights, axis=0)
        fused = np.linalg.solve(sum(grams) + ridge * np.eye(len(grams[0])), right + ridge * mean.T).T
        found = np.column_stack([result.arrays[f"model.{name}.{kind}"] for kind in ("weight", "bias")])
        assert np.abs(found - mean).max() > 0.02
        np.testing.assert_allclose(found, fused, atol=2e-3)
    for name in ("key", "value", "norm1"):
        mean = np.mean([model[f"features.{name}.weight"] for model in models], axis=0)
        np.testing.assert_allclose(result.arrays[f"model.features.{name}.weight"], mean, atol=1e-9)


def by_hook(arrays: dict[str, np.ndarray], layer: str, x: np.ndarray) -> np.ndarray:
    """The inputs of a layer, in torch's own encoder layer or of the head."""
    found: list[np.ndarray] = []
    own = torchs(arrays)
    words = torch.from_numpy(x.reshape(-1, WORDS, ACROSS).clip(-1, 1))
    gone = (words == 0.0).all(dim=2)
    named = {"features.out": own.self_attn.out_proj, "features.first": own.linear1, "features.second": own.linear2}
    if layer == "features.query":
        return words[:, 0].numpy()
    own.train()  # not the fast path, which calls no hooks
    with torch.no_grad():
        if layer == "features.out":  # torch multiplies by it without calling it: what it is given solves for it
            attended = own.self_attn(words, words, words, key_padding_mask=gone)[0][:, 0].numpy()
            return np.linalg.solve(arrays["features.out.weight"], (attended - arrays["features.out.bias"]).T).T
        if layer in named:
            named[layer].register_forward_pre_hook(lambda _, given: found.append(given[0][:, 0].numpy()))
        last = own(words, src_key_padding_mask=gone)[:, 0].numpy()
    return found[0] if layer in named else last


def test_keys_take_all_words_and_are_not_fused() -> None:
    with pytest.raises(ConfigurationError, match=r"no Linear layer 'features\.key'"):
        study("hfedatm", stations=STATIONS, layers=["features.key"])


@pytest.mark.parametrize("epsilon", [None, 30.0])
def test_gradients_train_it_with_noise_and_without(epsilon: float | None) -> None:
    data = sites(400)
    told = study("fedsgd", epsilon, steps=12, optimiser={"name": "adam", "learning_rate": 0.05})
    model = Model.from_result(get_method("fedsgd").run(Watched(told, data, 0)))
    held = sites(480)
    new = [complete(own.features[400:], own.labels[400:]) for own in held.values()]
    assert np.mean([np.mean(model.predict(own) == own.labels) for own in new]) > 0.7
