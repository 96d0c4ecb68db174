"""The method fedpft: mixtures as numpy has them, a head as scikit-learn fits it, and sane results under noise."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from support.federation import schema_of
from support.studies import agreed, complete, demand, federation
from veilsum.compile import StudyRequest
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.methods.fedpft import MIXTURES, START, Components
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.parts.server_heads import softmax_head
from veilsum_deploy.simulation.plain import PlainFederation
from veilsum_node.errors import ConfigurationError
from veilsum_participant.applying.model import Model
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records

SITES = ("site-0", "site-1", "site-2")


def compiled(schema: DatasetSchema, epsilon: float | None = None, **parameters: object) -> Study:
    request = StudyRequest(name="s", method="fedpft", dataset="d", data=schema, parameters=parameters, privacy=demand(epsilon))
    return agreed(request, SITES)


def skewed(seed: int, n: int = 600, shift: float = 0.15) -> dict[str, Records]:
    """Three classes in four dimensions, skewed over three sites, each with a shift of its own."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(7)
    means, shifts = fixed.normal(0, 0.3, (3, 4)), fixed.normal(0, shift, (3, 4))
    found = {}
    for index, name in enumerate(SITES):
        y = rng.choice(3, n, p=np.roll([0.8, 0.15, 0.05], index))
        found[name] = complete((means[y] + shifts[index] + rng.normal(0, 0.12, (n, 4))).clip(-1.0, 1.0), y)
    return found


def accuracy(result: Result, sites: dict[str, Records], kept: PlainFederation | None = None) -> float:
    model = Model.from_result(result)
    classes = np.array([int(name[1:]) for name in model.classes])
    found = []
    for name, records in sites.items():
        own = None if kept is None else kept.kept_blocks(name, "alignment")
        found.append(np.mean(classes[model.predict(records, site=name, kept=own)] == records.labels))
    return float(np.mean(found))


def components_of(study: Study, sites: dict[str, Records], seed: int = 0) -> Components:
    release = federation(study, sites, seed).sum(MIXTURES)
    return Components.of(release, study.participants, per_site=study.task(MIXTURES).disclosure == "per-site")


def test_mixtures_without_noise_are_numpys_class_gaussians() -> None:
    sites = skewed(0)
    found = components_of(compiled(schema_of(4, 3), clip=2.0), sites).mixtures("counts")
    for c, mixture in enumerate(found):
        own = [records.features[records.labels == c] for records in sites.values()]
        assert mixture is not None
        assert mixture.variances is not None
        np.testing.assert_allclose(mixture.means, [x.mean(axis=0) for x in own], atol=1e-5)
        np.testing.assert_allclose(mixture.weights, np.array([len(x) for x in own]) / sum(map(len, own)), atol=1e-6)
        for x, variance in zip(own, mixture.variances, strict=True):
            # Large classes are hardly shrunk towards the pooled variances; small ones somewhat.
            pooled = np.average([part.var(axis=0) for part in own], axis=0, weights=[len(part) for part in own])
            low, high = np.minimum(x.var(axis=0), pooled), np.maximum(x.var(axis=0), pooled)
            assert np.all((variance > low - 1e-4) & (variance < high + 1e-4))


def test_joint_mixtures_are_the_pooled_records() -> None:
    sites = skewed(1)
    found = components_of(compiled(schema_of(4, 3), clip=2.0, disclosure="joint"), sites).mixtures("equal")
    x = np.concatenate([records.features for records in sites.values()])
    y = np.concatenate([records.labels for records in sites.values()])
    for c, mixture in enumerate(found):
        assert mixture is not None
        assert mixture.variances is not None
        np.testing.assert_allclose(mixture.means[0], x[y == c].mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(mixture.variances[0], x[y == c].var(axis=0), atol=1e-4)


def test_equal_sampling_gives_every_site_that_has_the_class_the_same_part() -> None:
    sites = skewed(0)
    lacking = sites["site-1"]
    keep = np.flatnonzero(lacking.labels != 2)
    sites["site-1"] = lacking.take(keep)
    found = components_of(compiled(schema_of(4, 3), clip=2.0), sites).mixtures("equal")
    assert [list(np.round(mixture.weights, 9)) for mixture in found if mixture is not None] == [
        [round(1 / 3, 9)] * 3,
        [round(1 / 3, 9)] * 3,
        [0.5, 0.5],
    ]


def test_the_head_is_scikit_learns_logistic_regression() -> None:
    rng = np.random.default_rng(2)
    y = rng.integers(0, 3, 400)
    x = 40.0 + 5.0 * (rng.normal(0, 1, (3, 6))[y] + rng.normal(0, 1, (400, 6)))
    head = softmax_head(x, y + 1, 0.05, ("absent", "a", "b", "c"))
    assert head.classes == ("a", "b", "c")
    scale = np.sqrt(x.var(axis=0).mean())
    z = np.column_stack([(x - x.mean(axis=0)) / scale, np.ones(400)])
    oracle = LogisticRegression(C=1 / (0.05 * 400), fit_intercept=False, tol=1e-10, max_iter=5000).fit(z, y)
    probability = np.exp(head.scores(x))
    probability /= probability.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probability, oracle.predict_proba(z), atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(1e-3, 1e3), offset=st.floats(-10, 10))
def test_the_head_does_not_depend_on_the_features_unit(scale: float, offset: float) -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 120)
    x = rng.normal(0, 1, (3, 4))[y] + rng.normal(0, 1, (120, 4))
    one, other = softmax_head(x, y, 0.1, "abc"), softmax_head(scale * (x + offset), y, 0.1, "abc")
    np.testing.assert_allclose(other.scores(scale * (x + offset)), one.scores(x), atol=1e-3)


def test_features_that_do_not_vary_have_a_head() -> None:
    head = softmax_head(np.full((6, 2), 0.5), np.array([0, 0, 0, 0, 1, 1]), 0.1, "ab")
    assert head.scores(np.full((1, 2), 0.5))[0, 0] > head.scores(np.full((1, 2), 0.5))[0, 1]


def test_several_components_tell_what_one_cannot() -> None:
    """Two classes in opposite corners: with one Gaussian each their means and variances are the same."""
    sites = {}
    for index, name in enumerate(SITES):
        rng = np.random.default_rng(index)
        a, b = rng.choice([-1.0, 1.0], (2, 900))
        x = np.column_stack([a, b]) * 0.5 + rng.normal(0, 0.1, (900, 2))
        sites[name] = complete(x, (a * b > 0).astype(int))
    study = compiled(schema_of(2, 2), clip=2.0, components=4, rounds=4)
    assert [task.releases for task in study.tasks] == [1, 4]
    broken = federation(study, sites)
    start = Components.of(broken.sum(START), SITES, per_site=True)
    centres = start.first_centres(4, 0)
    for _ in range(4):
        found = Components.of(broken.sum(MIXTURES, {"mixture.centres": centres}), SITES, per_site=True)
        centres = found.moved_centres(centres)
    for c, mixture in enumerate(found.mixtures("equal")):
        assert mixture is not None
        corners = np.array([[-0.5, 0.5], [0.5, -0.5]]) if c == 0 else np.array([[-0.5, -0.5], [0.5, 0.5]])
        near = np.linalg.norm(mixture.means[:, None] - corners, axis=2).min(axis=1)
        # Nearly all of a class lies in components at one of its corners, none between them.
        assert mixture.weights[near < 0.15].sum() > 0.85
        one = start.mixtures("counts")[c]
        assert one is not None
        np.testing.assert_allclose(one.means, 0.0, atol=0.06)
    assert METHODS["fedpft"].run(federation(study, sites)).arrays["weights"].shape == (2, 2)


@pytest.mark.parametrize("disclosure", ["joint", "per-site"])
def test_several_components_stay_finite_when_most_are_empty(disclosure: str) -> None:
    study = compiled(schema_of(4, 3), components=8, disclosure=disclosure)
    few = {name: records.take(slice(9)) for name, records in skewed(0).items()}
    result = METHODS["fedpft"].run(federation(study, few))
    assert np.isfinite(result.arrays["weights"]).all()


def test_alignment_takes_shifts_out_and_both_modes_agree() -> None:
    train, test = skewed(0, shift=0.3), skewed(1, shift=0.3)
    schema = schema_of(4, 3)
    none = accuracy(METHODS["fedpft"].run(federation(compiled(schema, clip=2.0), train)), test)
    once = METHODS["fedpft"].run(federation(compiled(schema, clip=2.0, alignment={"reference": "two-way"}), train))
    study = compiled(schema, clip=2.0, alignment={"reference": "two-way", "mode": "iterated"})
    again = federation(study, train)
    iterated = METHODS["fedpft"].run(again)
    assert accuracy(once, test) > none + 0.03
    assert accuracy(iterated, test, again) == pytest.approx(accuracy(once, test), abs=0.01)
    np.testing.assert_allclose(iterated.arrays["weights"], once.arrays["weights"], rtol=1e-2, atol=1e-2)
    assert once.application["alignment"]["sites"] == list(SITES)
    assert once.summary["alignment"]["reference"] == "two-way"


@pytest.mark.parametrize("mode", ["single-domain", "multi-domain"])
def test_generation_in_place_of_mixtures(mode: str) -> None:
    train, test = skewed(0), skewed(1)
    study = compiled(schema_of(4, 3), clip=2.0, generation={"mode": mode})
    assert [task.label for task in study.tasks] == ["geometry", "prototypes"][: 1 + (mode == "multi-domain")]
    result = METHODS["fedpft"].run(federation(study, train))
    assert accuracy(result, test) > 0.8
    assert result.summary["samples"] == (3 * 2000 if mode == "single-domain" else 9 * 500)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"disclosure": "joint"},
        {"components": 2, "rounds": 2},
        {"alignment": {"reference": "slopes"}},
        {"generation": {"mode": "multi-domain"}},
    ],
)
def test_a_noised_study_keeps_its_epsilon_and_gives_a_sane_head(parameters: dict[str, Any]) -> None:
    study = compiled(schema_of(4, 3), 5.0, **parameters)
    assert study.privacy.epsilon is not None
    assert 4.9 < study.privacy.epsilon <= 5.0
    found = []
    for seed in range(3):
        result = METHODS["fedpft"].run(federation(study, skewed(seed), seed))
        json.dumps(result.summary, allow_nan=False)
        found.append(accuracy(result, skewed(seed + 50)))
    assert np.mean(found) > 0.7


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"components": 2},
        {"alignment": {"reference": "slopes", "mode": "iterated"}},
        {"alignment": {"reference": "slopes"}},
        {"generation": {}},
    ],
)
def test_noise_that_swallows_everything_is_said(parameters: dict[str, Any]) -> None:
    study = compiled(schema_of(4, 3), 0.02, **parameters)
    few = {name: records.take(slice(2)) for name, records in skewed(0).items()}
    said = 0
    for seed in range(4):
        result = METHODS["fedpft"].run(federation(study, few, seed))
        json.dumps(result.summary, allow_nan=False)
        said += "not_estimable" in result.summary
        assert all(np.isfinite(array).all() for array in result.arrays.values())
    assert said


def test_a_class_that_nobody_has_is_left_out() -> None:
    result = METHODS["fedpft"].run(federation(compiled(schema_of(4, 5), clip=2.0), skewed(0)))
    assert result.application["classes"] == ["c0", "c1", "c2"]
    assert [row["in_head"] for row in result.summary["classes"]] == [True, True, True, False, False]


def test_a_site_that_is_not_in_the_release_gets_zeros() -> None:
    values = {"counts": np.full((2, 3, 1), 5.0), "sums": np.ones((2, 3, 1, 4)), "squares": np.ones((2, 3, 1, 4))}
    release = Release(MIXTURES, 1, values, dict.fromkeys(values, 0.0), ("site-0", "site-2"), b"")
    found = Components.of(release, SITES, per_site=True)
    assert found.counts[:, 0, 0].tolist() == [5.0, 0.0, 5.0]
    assert found.first_centres(2, 0).shape == (3, 3, 2, 4)
    assert np.isfinite(found.first_centres(2, 0)).all()


def test_what_is_refused() -> None:
    schema = schema_of(4, 3)
    with pytest.raises(ConfigurationError, match="not of several components"):
        compiled(schema, components=2, generation={})
    with pytest.raises(ConfigurationError, match="ledoit-wolf"):
        compiled(schema, 1.0, alignment={"shrinkage": "ledoit-wolf", "reference": "barycenter"})
    with pytest.raises(ConfigurationError, match="needs a label"):
        compiled(schema.model_copy(update={"label": None}))
    with pytest.raises(ConfigurationError, match="samples"):
        compiled(schema, samples="2000 / n")


def test_budget_is_split_as_asked() -> None:
    study = compiled(schema_of(4, 3), 2.0, alignment={"reference": "slopes", "share": 0.2})
    one, two = (task.variance / task.grid**2 for task in study.tasks)
    assert one / two == pytest.approx(4.0, rel=1e-3)  # variance is inverse to the share
