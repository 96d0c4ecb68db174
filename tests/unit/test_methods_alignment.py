"""Alignment in front of methods: what a pipeline in the clear gives, sane under noise, refused where it must be."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import ot
import pytest
import sklearn.covariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from support.studies import SCHEMA, SITES, WIDTH, Floats, compiled, draft, federation, projection, run, shifted_sites
from veilsum_aggregation.gaussian import AffineMap
from veilsum_aggregation.two_way import ClassStatistics, fit_two_way, two_way_map
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.methods.fedcgs import joined
from veilsum_coordinator.parts.federation import Release
from veilsum_deploy.simulation.plain import PlainFederation
from veilsum_node.errors import ConfigurationError
from veilsum_participant.applying.model import Model
from veilsum_privacy.results.result import Result, load_result, save_result
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks.base import Records

REFERENCES, MODES = ("two-way", "barycenter"), ("one-shot", "iterated")


def alignment(reference: str = "two-way", mode: str = "one-shot", **more: Any) -> dict[str, Any]:
    return {"alignment": {"reference": reference, "mode": mode, **more}}


def site_maps(sites: Mapping[str, Records], reference: str, tau: float, shrinkage: str = "oas") -> list[AffineMap]:
    """Each site's map from its records in the clear: by POT and scikit-learn, or from plain class means and covariances."""
    if reference == "barycenter":
        shrink = {"oas": sklearn.covariance.oas, "ledoit-wolf": sklearn.covariance.ledoit_wolf}[shrinkage]
        means = np.array([own.features.mean(axis=0) for own in sites.values()])
        covariances = np.array([shrink(own.features)[0] for own in sites.values()])
        weights = np.array([len(own) for own in sites.values()], dtype=float)
        weights /= weights.sum()
        mean, covariance = ot.gaussian.bures_wasserstein_barycenter(means, covariances, weights, num_iter=500, eps=1e-13)
        found = []
        for mu, sigma in zip(means, covariances, strict=True):
            matrix, offset = ot.gaussian.bures_wasserstein_mapping(mu, mean, sigma, covariance)
            found.append(AffineMap((1 - tau) * np.eye(WIDTH) + tau * matrix.T, tau * np.ravel(offset)))
        return found
    counts, means, within, degrees = [], [], [], []
    for own in sites.values():
        member = [own.features[own.labels == c] for c in range(3)]
        counts.append([len(x) for x in member])
        means.append([x.mean(axis=0) if len(x) else np.zeros(WIDTH) for x in member])
        degrees.append(sum(len(x) - 1 for x in member if len(x)))
        within.append(sum((x - x.mean(axis=0)).T @ (x - x.mean(axis=0)) for x in member if len(x)) / degrees[-1])
    site = ClassStatistics(*(np.array(values, dtype=float) for values in (counts, means, within, degrees)))
    fitted = fit_two_way(site, rounds=10)
    return [
        two_way_map(shift, fitted.class_means.mean(axis=0), own, fitted.within, df, tau=tau)
        for shift, own, df in zip(fitted.shifts, site.within, site.degrees, strict=True)
    ]


@pytest.mark.parametrize("tau", [0.4, 1.0])
@pytest.mark.parametrize(
    ("reference", "shrinkage"), [("two-way", "auto"), ("barycenter", "oas"), ("barycenter", "ledoit-wolf")]
)
def test_maps_without_noise_are_those_of_the_records_in_the_clear(reference: str, shrinkage: str, tau: float) -> None:
    sites = shifted_sites()
    result = run("slot-align", alignment(reference, tau=tau, shrinkage=shrinkage), sites)
    for index, expected in enumerate(site_maps(sites, reference, tau, shrinkage)):
        # the grid moves a variance by some 1e-7, and the narrowest direction of a site has one of 1e-4
        np.testing.assert_allclose(result.arrays["alignment.matrix"][index], expected.matrix, atol=2e-3)
        np.testing.assert_allclose(result.arrays["alignment.offset"][index], expected.offset, atol=1e-3)
    rows = result.summary["sites"]
    assert [row["site"] for row in rows] == list(SITES)
    assert all(row["aligned"] and row["distance_after"] < row["distance_before"] for row in rows)
    assert all(row["records"] == pytest.approx(400, abs=1e-3) for row in rows)
    assert result.summary["converged"]
    if reference == "barycenter":  # W2 contracts by 1 - tau along the geodesic
        for row in rows:
            assert row["distance_after"] == pytest.approx((1 - tau) * row["distance_before"], abs=1e-6)


def test_the_control_takes_the_plain_mean_of_the_sites_covariances() -> None:
    sites, tau = shifted_sites(), 0.4
    result = run("slot-align", alignment("barycenter", tau=tau, covariance="mean"), sites)
    own = [(x.features.mean(axis=0), sklearn.covariance.oas(x.features)[0]) for x in sites.values()]
    mean, covariance = (np.average(each, axis=0, weights=[len(x) for x in sites.values()]) for each in zip(*own, strict=True))
    np.testing.assert_allclose(result.arrays["reference.covariance"], covariance, atol=1e-4)
    for index, (mu, sigma) in enumerate(own):
        matrix, _ = ot.gaussian.bures_wasserstein_mapping(mu, mean, sigma, covariance)
        expected = (1 - tau) * np.eye(WIDTH) + tau * matrix.T
        np.testing.assert_allclose(result.arrays["alignment.matrix"][index], expected, atol=2e-3)


@pytest.mark.parametrize("reference", REFERENCES)
def test_iterated_is_one_shot_within_the_grid(reference: str) -> None:
    sites = shifted_sites()
    shot = run("slot-align", alignment(reference), sites)
    study = compiled("slot-align", alignment(reference, "iterated"))
    assert all(task.disclosure == "joint" for task in study.tasks)
    own = federation(study, sites)
    steps = get_method("slot-align").run(own)
    names = set(steps.arrays)
    assert names <= set(shot.arrays)
    assert "alignment.matrix" not in names
    for name in names:
        np.testing.assert_allclose(steps.arrays[name], shot.arrays[name], atol=1e-6)
    here, there = Model.from_result(shot), Model.from_result(steps)
    for name, records in sites.items():
        kept = own.kept_blocks(name, "alignment")
        np.testing.assert_allclose(there.features(records, site=name, kept=kept), here.features(records, site=name), atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reference", REFERENCES)
def test_fedcgs_after_an_alignment_is_lda_on_mapped_records(reference: str, mode: str) -> None:
    sites = shifted_sites()
    study = compiled("fedcgs", alignment(reference, mode))
    own = federation(study, sites)
    result = get_method("fedcgs").run(own)
    assert sum(task.source is None for task in study.tasks) == 1  # one release is all
    maps = site_maps(sites, reference, 0.4)
    x = np.vstack([mapped.apply(part.features) for mapped, part in zip(maps, sites.values(), strict=True)])
    y = np.concatenate([part.labels for part in sites.values()])
    expected = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=None).fit(x, y)
    scores = np.vstack(
        [
            Model.from_result(result).scores(
                part, site=name, kept=own.kept_blocks(name, "alignment") if mode == "iterated" else None
            )
            for name, part in sites.items()
        ]
    )
    reference_scores = expected.decision_function(x)
    difference = scores - scores.mean(axis=1, keepdims=True) - reference_scores + reference_scores.mean(axis=1, keepdims=True)
    # OAS shrinks a little; scikit-learn's does not here
    assert np.abs(difference).max() < 0.1 * np.abs(reference_scores).max()
    assert np.mean(scores.argmax(axis=1) == expected.predict(x)) > 0.995
    assert np.mean(scores.argmax(axis=1) == y) > 0.95
    assert result.summary["classes"][0]["count"]["value"] == pytest.approx(np.sum(y == 0), abs=1e-3)


def test_an_alignment_raises_accuracy_where_sites_are_shifted() -> None:
    sites = shifted_sites(seed=3, apart=0.1, shift=0.2)

    def accuracy(result: Result) -> float:
        model = Model.from_result(result)
        return float(np.mean([np.mean(model.predict(part, site=name) == part.labels) for name, part in sites.items()]))

    for method, own in (("fedcgs", {}), ("o-fedavg", {})):
        plain, aligned = accuracy(run(method, own, sites)), accuracy(run(method, {**own, **alignment()}, sites))
        assert aligned > plain + 0.03


def test_joined_moments_are_those_of_the_mapped_records() -> None:
    rng = np.random.default_rng(5)
    sites, maps = shifted_sites(50), [AffineMap(rng.normal(size=(WIDTH, WIDTH)), rng.normal(size=WIDTH)) for _ in SITES]
    upper = np.triu_indices(WIDTH, 1)

    def blocks(x: Floats, y: Floats) -> dict[str, Floats]:
        member = (y[:, None] == np.arange(3)).astype(float)
        second = x.T @ x
        return {"counts": member.sum(0), "sums": member.T @ x, "squares": np.diag(second), "products": second[upper]}

    each = [blocks(part.features, part.labels) for part in sites.values()]
    noise = {"counts": 1.0, "sums": 2.0, "squares": 3.0, "products": 4.0}
    release = Release("m", 1, {name: np.stack([own[name] for own in each]) for name in noise}, noise, SITES, b"")
    found = joined(release, maps)
    mapped = np.vstack([own.apply(part.features) for own, part in zip(maps, sites.values(), strict=True)])
    expected = blocks(mapped, np.concatenate([part.labels for part in sites.values()]))
    for name, values in expected.items():
        np.testing.assert_allclose(found.values[name], values, rtol=1e-10, atol=1e-9)
    gains = [np.trace(own.matrix @ own.matrix.T) / WIDTH for own in maps]
    assert found.noise_std["counts"] == pytest.approx(2.0)
    assert found.noise_std["sums"] == pytest.approx(2.0 * np.sqrt(np.sum(gains)))
    assert found.noise_std["products"] == pytest.approx(4.0 * np.sqrt(np.sum(np.square(gains))))
    # noise through one map, measured: the root mean square over the entries is what is stated
    draws = rng.normal(size=(4000, WIDTH)) @ maps[0].matrix.T
    assert np.sqrt(np.mean(draws**2)) == pytest.approx(np.sqrt(gains[0]), rel=0.03)
    assert joined(release).noise_std["squares"] == pytest.approx(6.0)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("method", ["slot-align", "fedcgs", "o-fedavg"])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
def test_noise_of_any_size_gives_a_finite_result(
    method: str, reference: str, mode: str, epsilon: float, tmp_path: Any
) -> None:
    study = compiled(method, alignment(reference, mode), epsilon=epsilon)
    assert study.privacy.epsilon is not None
    assert 0.99 * epsilon < study.privacy.epsilon <= epsilon
    assert study.privacy.cohort_difference == ("strict" if mode == "iterated" else "allowed")
    for seed in range(4):
        own = federation(study, shifted_sites(30 if epsilon < 1 else 400), seed)
        result = get_method(method).run(own)
        json.dumps(result.summary, allow_nan=False)
        for array in result.arrays.values():
            assert np.isfinite(array).all()
        for name in ("reference.within", "reference.covariance"):
            if name in result.arrays:
                assert np.linalg.eigvalsh(result.arrays[name])[0] >= -1e-12
        if result.application:
            save_result(tmp_path / str(seed), result)
            model = Model.from_result(load_result(tmp_path / str(seed)))
            kept = own.kept_blocks("a", "alignment") if mode == "iterated" else None
            assert np.isfinite(model.features(shifted_sites()["a"], site="a", kept=kept)).all()
        else:
            assert result.summary["not_estimable"]
            assert epsilon < 1


class Lacking(PlainFederation):
    """A federation whose per-site release lacks one site."""

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        release = super().sum(label, broadcast, members=members)
        rows = [row for row, name in enumerate(release.cohort) if name != "b"]
        values = {name: array[rows] for name, array in release.values.items()}
        return replace(release, values=values, cohort=tuple(release.cohort[row] for row in rows))


@pytest.mark.parametrize("reference", REFERENCES)
def test_an_absent_site_and_one_without_records_keep_their_features(reference: str) -> None:
    sites = shifted_sites()
    empty = Records(np.zeros((0, WIDTH)), np.zeros((0, WIDTH), dtype=bool), np.zeros(0, dtype=np.int64))
    study = compiled("slot-align", alignment(reference))
    own = federation(study, {**sites, "d": empty})
    own.__class__ = Lacking
    result = get_method("slot-align").run(own)
    matrix, offset = result.arrays["alignment.matrix"], result.arrays["alignment.offset"]
    assert matrix.shape == (4, WIDTH, WIDTH)
    for index, untouched in enumerate([False, True, False, True]):
        assert np.array_equal(matrix[index], np.eye(WIDTH)) is untouched
        assert bool(np.any(offset[index])) is not untouched
    rows = {row["site"]: row["aligned"] for row in result.summary["sites"]}
    assert rows == {"a": True, "c": True, "d": False, "b": False}
    expected = site_maps({name: sites[name] for name in ("a", "c")}, reference, 0.4)
    np.testing.assert_allclose(matrix[2], expected[1].matrix, atol=2e-4)


def test_where_nothing_can_be_aligned_iterated_releases_no_heads() -> None:
    few = shifted_sites(3)
    for reference in REFERENCES:
        own = federation(compiled("o-fedavg", alignment(reference, "iterated"), epsilon=0.05), few)
        result = get_method("o-fedavg").run(own)
        assert "no alignment" in result.summary["not_estimable"]
        assert not result.arrays
        shot = run("slot-align", alignment(reference), few, epsilon=0.05)
        assert shot.summary["not_estimable"]
        assert not any(row["aligned"] for row in shot.summary["sites"])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reference", [*REFERENCES, "slopes"])
def test_sites_with_hardly_a_record_end_a_study_without_noise_in_a_result(reference: str, mode: str) -> None:
    """One record a site leaves no degrees of freedom; a few leave a singular spread, whose roundings whitening magnifies."""
    for n, seed in [(1, 0), (1, 1), (2, 2), (3, 4), (3, 5), (3, 14), (3, 22), (4, 6)]:
        sites = shifted_sites(n, seed)
        sites["a"] = Records(np.zeros((0, WIDTH)), np.zeros((0, WIDTH), dtype=bool), np.zeros(0, dtype=np.int64))
        for method in ("slot-align", "fedcgs"):
            result = run(method, alignment(reference, mode), sites)
            json.dumps(result.summary, allow_nan=False)
            assert all(np.isfinite(array).all() for array in result.arrays.values())


def test_a_feature_that_does_not_vary_is_left_alone() -> None:
    sites = shifted_sites()
    for own in sites.values():
        own.features[:, 2] = -1.0  # at its bound, as the border of an image is
    for reference in REFERENCES:
        shot = run("slot-align", alignment(reference, shrinkage="auto"), sites)
        steps_study = compiled("slot-align", alignment(reference, "iterated"))
        own_federation = federation(steps_study, sites)
        steps = Model.from_result(get_method("slot-align").run(own_federation))
        for name, part in sites.items():
            expected = Model.from_result(shot).features(part, site=name)
            found = steps.features(part, site=name, kept=own_federation.kept_blocks(name, "alignment"))
            np.testing.assert_allclose(found, expected, atol=1e-3)
            np.testing.assert_allclose(found[:, 2], -1.0, atol=1e-2)


def test_a_projection_is_applied_first_and_repeated_in_the_result() -> None:
    rng = np.random.default_rng(7)
    named, arrays = projection(rng.normal(size=(3, WIDTH)), rng.normal(size=3))
    sites = shifted_sites()
    mapped = {
        name: Records(part.features @ arrays["encoder.matrix"].T + arrays["encoder.offset"], part.present[:, :3], part.labels)
        for name, part in sites.items()
    }
    for mode in MODES:
        study = compiled("fedcgs", alignment("two-way", mode), encoder=named)
        own = federation(study, sites, encoder=arrays)
        result = get_method("fedcgs").run(own)
        np.testing.assert_array_equal(result.arrays["encoder.matrix"], arrays["encoder.matrix"])
        model = Model.from_result(result)
        hits = [
            np.mean(
                model.predict(part, site=name, kept=own.kept_blocks(name, "alignment") if mode == "iterated" else None)
                == part.labels
            )
            for name, part in sites.items()
        ]
        x = np.vstack([part.features for part in mapped.values()])
        y = np.concatenate([part.labels for part in mapped.values()])
        assert np.mean(hits) >= LinearDiscriminantAnalysis().fit(x, y).score(x, y) - 0.01
    with pytest.raises(ConfigurationError, match="takes none"):
        compiled("pca", encoder=named)


@pytest.mark.parametrize(
    ("method", "parameters", "privacy", "message"),
    [
        ("slot-align", alignment("barycenter", shrinkage="ledoit-wolf"), {"epsilon": 1.0}, "fourth moments"),
        ("fedcgs", alignment("barycenter", shrinkage="ledoit-wolf"), {}, "pooled over the classes"),
        ("slot-align", alignment("two-way", shrinkage="ledoit-wolf"), {}, "pooled over the classes"),
        ("slot-align", alignment("barycenter", "iterated", shrinkage="ledoit-wolf"), {}, "one-shot"),
        ("slot-align", alignment("barycenter", "iterated", shrinkage="oas"), {}, "one-shot"),
        ("slot-align", alignment("barycenter", shrinkage="oas"), {"epsilon": 1.0}, "this study has noise"),
        ("slot-align", alignment("barycenter", shrinkage="ridge"), {}, "has none"),
        ("slot-align", alignment("best"), {}, "reference"),
        ("slot-align", alignment("two-way", covariance="mean"), {}, "control beside the barycenter"),
        ("slot-align", alignment("barycenter", "iterated", covariance="mean"), {}, "control beside the barycenter"),
        ("slot-align", alignment(tau=1.5), {}, "tau"),
        ("o-fedavg", alignment(share=1.0), {}, "share"),
        ("fedcgs", {**alignment(), "disclosure": "per-site"}, {}, "fedcgs without alignment"),
    ],
)
def test_combinations_that_cannot_be_are_refused(
    method: str, parameters: dict[str, Any], privacy: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        compiled(method, parameters, **privacy)


def test_a_study_that_was_signed_with_the_barycenters_former_name_gives_the_same_result() -> None:
    sites, study = shifted_sites(), compiled("slot-align", alignment("barycenter"))
    signed = study.to_bytes().replace(b'"barycenter"', b'"paper"')
    former = parse_study(signed)
    assert former.to_bytes() == signed != study.to_bytes()
    found, expected = (get_method("slot-align").run(federation(one, sites)) for one in (former, study))
    assert found.summary == expected.summary
    assert found.summary["reference"] == "barycenter"
    for name, values in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], values)
    assert compiled("slot-align", alignment("paper")).parameters == study.parameters


def test_without_a_label_only_the_barycenter_can_be_had() -> None:
    bare = SCHEMA.model_copy(update={"label": None})
    with pytest.raises(ConfigurationError, match="needs a label"):
        compiled("slot-align", alignment(), schema=bare)
    assert compiled("slot-align", alignment("barycenter"), schema=bare).tasks[0].task == "gaussian-moments"
    for method in ("fedcgs", "o-fedavg"):
        with pytest.raises(ConfigurationError, match="needs a label"):
            compiled(method, schema=bare)


def test_shares_split_the_budget() -> None:
    def multipliers(study: Study) -> list[float]:
        return [task.variance**0.5 / task.grid for task in study.tasks if task.variance]

    study = compiled("fedpft", alignment(share=0.2), epsilon=1.0)
    first, second = multipliers(study)
    assert (first / second) ** 2 == pytest.approx(4.0, rel=1e-3)
    assert draft("fedcgs", alignment(), epsilon=1.0).releases == 1
    assert draft("o-fedavg", alignment(), epsilon=1.0).releases == 1
    # with the alignment's one release fedcgs has the noise that it would have alone
    (alone,) = multipliers(compiled("fedcgs", {"centre": False}, epsilon=1.0))
    (aligned,) = multipliers(compiled("fedcgs", alignment(), epsilon=1.0))
    assert aligned == pytest.approx(alone, rel=1e-6)


def test_fedcgs_per_site_without_an_alignment_adds_the_sites_up() -> None:
    sites = shifted_sites()
    joint, apart = run("fedcgs", {}, sites), run("fedcgs", {"disclosure": "per-site"}, sites)
    np.testing.assert_allclose(apart.arrays["weights"], joint.arrays["weights"], rtol=1e-6)
    np.testing.assert_allclose(apart.arrays["bias"], joint.arrays["bias"], rtol=1e-6, atol=1e-6)
    study = compiled("fedcgs", {"disclosure": "per-site"}, epsilon=3.0)
    assert study.tasks[0].disclosure == "per-site"
    noised = get_method("fedcgs").run(federation(study, sites))
    assert noised.summary["classes"][0]["count"]["noise_error"] > 0
    assert np.isfinite(noised.arrays["weights"]).all()
