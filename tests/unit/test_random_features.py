"""Random Fourier features: scikit-learn's RBFSampler with the same draws, RidgeClassifier on them, and what is refused."""

from __future__ import annotations

import hashlib
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import kstest
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.metrics.pairwise import rbf_kernel

from support.randomness import SeededRandom
from support.studies import SCHEMA, SITES, WIDTH, complete, federation, shifted_sites
from veilsum.compile import PrivacyRequest, StudyRequest, draft_study
from veilsum_aggregation.heads import indicator_ridge
from veilsum_coordinator.methods import get_method
from veilsum_node.errors import ConfigurationError
from veilsum_participant.applying.model import Model
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import RandomFeatures
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.feature_maps import waves

DRAWN = {"kind": "random-features", "width": 40}


def compiled(encoder: object = None, epsilon: float | None = None, method: str = "fedcgs", **parameters: object) -> Study:
    request = StudyRequest(
        name="waves",
        method=method,
        dataset="clinic",
        data=SCHEMA,
        encoder=DRAWN if encoder is None else encoder,
        parameters=parameters,
        privacy=PrivacyRequest(noise="none") if epsilon is None else PrivacyRequest(epsilon=epsilon, min_cohort=2),
    )
    draft = draft_study(
        request, federation_id="0" * 64, coordinator="hub", participants=SITES, clock=lambda: 1, random=SeededRandom(1)
    )
    return parse_study(draft.compile().to_bytes())


def run(study: Study, records: dict[str, Records] | None = None) -> Result:
    return get_method(study.method).run(federation(study, shifted_sites() if records is None else records, 3))


def drawn(study: Study) -> RandomFeatures:
    assert isinstance(study.encoder, RandomFeatures)
    return study.encoder


def sampler(encoder: RandomFeatures) -> RBFSampler:
    """scikit-learn's, with these draws."""
    matrix, offset = waves(encoder)
    made = RBFSampler(gamma=float(encoder.gamma or 0.0), n_components=encoder.width)
    made.fit(np.zeros((1, encoder.size)))
    made.random_weights_, made.random_offset_ = matrix.T, offset
    return made


# -- what is drawn ------------------------------------------------------------------------------------------------------------


def test_draws_are_of_the_kernels_distribution_and_of_the_stated_stream() -> None:
    encoder = RandomFeatures(width=300, gamma=0.7, inputs=50, seed=5)
    matrix, offset = waves(encoder)
    assert kstest(matrix.ravel() / math.sqrt(1.4), "norm").pvalue > 1e-3
    assert kstest(offset / (2 * math.pi), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(matrix[:-1].ravel(), matrix[1:].ravel())[0, 1]) < 0.04
    # The first number, by the words of the document alone.
    stream = hashlib.shake_256(b"veilsum/1/random-features" + struct.pack("<3Q", 300, 50, 5)).digest(8 * 30_300)
    first, second = (((struct.unpack_from("<Q", stream, 8 * at)[0] >> 11) + 0.5) / 2**53 for at in (0, 15_000))
    assert matrix[0, 0] == pytest.approx(math.sqrt(1.4) * math.sqrt(-2 * math.log(first)) * math.cos(2 * math.pi * second))
    last = ((struct.unpack_from("<Q", stream, 8 * 30_299)[0] >> 11) + 0.5) / 2**53
    assert offset[-1] == pytest.approx(2 * math.pi * last)
    other, _ = waves(RandomFeatures(width=300, gamma=0.7, inputs=50, seed=6))
    assert not np.any(other == matrix)


@given(st.integers(0, 2**31 - 1), st.floats(0.01, 3.0), st.integers(1, 6))
def test_inner_products_approach_the_kernel_and_norms_are_bounded(seed: int, gamma: float, inputs: int) -> None:
    encoder = RandomFeatures(width=4096, gamma=gamma, inputs=inputs, seed=seed)
    x = np.random.default_rng(seed).uniform(-1, 1, (12, inputs))
    features = sampler(encoder).transform(x)
    # Each product is a mean of 4,096 independent terms within 2, whose deviation is 1.3 at most.
    assert np.abs(features @ features.T - rbf_kernel(x, gamma=gamma)).max() < 6 * 1.3 / 64
    assert np.all(np.linalg.norm(features, axis=1) <= math.sqrt(2) + 1e-12)


def test_what_is_open_is_filled_in_and_too_much_is_refused() -> None:
    assert drawn(compiled()).model_dump() == RandomFeatures(width=40, gamma=1 / WIDTH, inputs=WIDTH).model_dump()
    stated = drawn(compiled({**DRAWN, "gamma": 2.5, "seed": 9}))
    assert (stated.gamma, stated.seed) == (2.5, 9)
    for wrong, match in (
        ({"kind": "random-features"}, "width"),
        ({**DRAWN, "gamma": 0.0}, "gamma"),
        ({**DRAWN, "gamma": math.nan}, "gamma"),
        ({**DRAWN, "seed": -1}, "seed"),
        ({**DRAWN, "sha256": "0" * 64}, "sha256"),
        ({**DRAWN, "width": 4097}, "width"),
    ):
        with pytest.raises(ValidationError, match=match):
            compiled(wrong)
    with pytest.raises(ConfigurationError, match="takes 7 features"):
        compiled({**DRAWN, "inputs": WIDTH + 1})
    with pytest.raises(ValidationError, match="inputs"):
        RandomFeatures(width=4096, gamma=1.0, inputs=1025)
    for left in (DRAWN, {**DRAWN, "inputs": WIDTH}, {**DRAWN, "gamma": 1.0}):
        with pytest.raises(ValidationError, match="the encoder takes 0 features"):
            Study.model_validate(compiled().model_dump(mode="json") | {"encoder": left})


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"ridge": 1.0}, "of the head of that name"),
        ({"head": "ridge", "covariance": "total"}, "neither priors nor a covariance"),
        ({"head": "ridge", "priors": "equal"}, "neither priors nor a covariance"),
        ({"head": "ridge", "generation": {}}, "generation has none"),
        ({"head": "ridge", "ridge": 0.0}, "ridge"),
    ],
)
def test_what_a_ridge_does_not_go_with(parameters: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        compiled(**parameters)


def test_columns_are_not_described_by_features_that_are_drawn() -> None:
    with pytest.raises(ConfigurationError, match="describes the columns"):
        compiled(epsilon=3.0, describe=True)
    assert compiled(epsilon=3.0).parameters["centre"] is True
    assert [task.task for task in compiled(epsilon=3.0).tasks] == ["feature-means", "class-moments"]


# -- ridge and other heads on them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [None, 0.5, 20.0])
def test_a_ridge_without_noise_is_scikit_learns(ridge: float | None) -> None:
    """Labels missing or unknown, values absent or not numbers: such records count for nobody."""
    sites = shifted_sites()
    rng = np.random.default_rng(0)
    spoilt = sites["a"]
    features, present = spoilt.features.copy(), spoilt.present.copy()
    features[:20, 2], present[20:40, 1] = np.inf, False
    features[40:60] = np.nan
    labels = spoilt.labels.copy()
    labels[60:80] = -1
    used = {**sites, "a": complete(spoilt.features, spoilt.labels).take(slice(80, None))}
    sites["a"] = Records(features, present, labels, None)
    asked = {"head": "ridge"} if ridge is None else {"head": "ridge", "ridge": ridge}
    study = compiled(**asked)
    result = run(study, sites)
    x = sampler(drawn(study)).transform(np.concatenate([own.features for own in used.values()]))
    y = np.concatenate([own.labels for own in used.values()])
    oracle = RidgeClassifier(alpha=ridge or 1.0).fit(x, y)
    # Sums are of rows rounded to the grid, which a small ridge magnifies.
    np.testing.assert_allclose(2 * result.arrays["weights"], oracle.coef_, atol=1e-3 * np.abs(oracle.coef_).max())
    np.testing.assert_allclose(2 * result.arrays["bias"] - 1, oracle.intercept_, atol=2e-3)
    test = rng.uniform(-1, 1, (300, WIDTH))
    model = Model.from_result(result)
    assert np.mean(model.predict(complete(test)) == oracle.predict(sampler(drawn(study)).transform(test))) > 0.99


def test_the_formula_is_ridge_regression_of_indicators() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(1.0, 2.0, (60, 5)), rng.integers(0, 3, 60)
    x[:, 4] = 2 * x[:, 3]  # singular but for the ridge
    sums, counts = np.stack([x[y == c].sum(axis=0) for c in range(3)]), np.bincount(y, minlength=3).astype(float)
    found = indicator_ridge(counts, sums, x.T @ x, 0.3, ("a", "b", "c"))
    oracle = Ridge(alpha=0.3).fit(x, np.eye(3)[y])
    np.testing.assert_allclose(found.weights, oracle.coef_, atol=1e-10)
    np.testing.assert_allclose(found.bias, oracle.intercept_, atol=1e-10)


@pytest.mark.parametrize("method", ["fedcgs", "o-fedavg", "fedpft", "fedsgd", "fedavg", "ggeur", "hfedatm"])
def test_methods_of_features_take_them_with_noise(method: str) -> None:
    """Far apart classes, at an epsilon at which every one of them learns."""
    sites = shifted_sites(600, apart=0.6)
    parameters: dict[str, object] = {} if method != "hfedatm" else {"stations": {"one": ["a", "b"], "two": ["c", "d"]}}
    if method in ("fedavg", "hfedatm"):
        parameters |= {"model": {"name": "linear"}}
    study = compiled(epsilon=100.0, method=method, **parameters)
    model = Model.from_result(run(study, sites))
    y = np.concatenate([own.labels for own in sites.values()])
    found = np.concatenate([model.predict(own) for own in sites.values()])
    assert np.mean(found == y) > np.bincount(y).max() / len(y) + 0.15
    x = np.concatenate([own.features for own in sites.values()])
    np.testing.assert_allclose(model.features(complete(x)), sampler(drawn(study)).transform(x), atol=1e-12)


def test_a_ring_needs_them() -> None:
    """A class inside another: no plane tells them apart; random features do, with noise as well."""
    rng = np.random.default_rng(2)

    def ring(n: int) -> Records:
        x = rng.uniform(-1, 1, (n, WIDTH))
        return complete(x, np.where(np.hypot(x[:, 0], x[:, 1]) < 0.75, 0, 1))

    sites, held = {name: ring(800) for name in SITES}, ring(2000)
    encoder = {**DRAWN, "gamma": 0.5, "width": 60}
    found = [
        float(np.mean(Model.from_result(run(compiled(encoder, epsilon, head="ridge"), sites)).predict(held) == held.labels))
        for epsilon in (None, 20.0)
    ]
    x, y = (np.concatenate([getattr(own, name) for own in sites.values()]) for name in ("features", "labels"))
    plane = float(np.mean(RidgeClassifier().fit(x, y).predict(held.features) == held.labels))
    assert plane < 0.65
    assert found[0] > plane + 0.2
    assert found[1] > plane + 0.1
