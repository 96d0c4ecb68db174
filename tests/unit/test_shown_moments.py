"""Moments disclosed per site: records moved by those of a site drawn for each (FedRDN), and moments of each round."""

from __future__ import annotations

import math
from functools import reduce
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from support.recording import Recorder
from support.studies import SITES, WIDTH, compiled, complete, federation, projection, shifted_sites
from veilsum.plan import notes
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.parts.moment_alignment import (
    LABEL,
    MomentAlignment,
    MomentRounds,
    SiteSums,
    records_to_align,
    shown_reference,
)
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse
from veilsum_participant.applying.model import Model
from veilsum_privacy.mechanism.parts import drawn, hash_is_low
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.feature_maps import ALIGNMENT_OFFSET, ALIGNMENT_SCALE, SALT, map_records

SHORT: dict[str, dict[str, Any]] = {
    "fedsgd": {"steps": 1, "optimiser": {"learning_rate": 2.0}, "centre": False},
    "fedavg": {"rounds": 1, "model": {"name": "linear"}, "learning_rate": 0.5, "batch": 1000},
}
TRAINING = {"fedsgd": "gradient", "fedavg": "local-training"}
RDN = {"moved_by": "drawn", "records": 1.0}
FRESH = {"released": "each-round"}


def run(study: Study, sites: dict[str, Records], **options: Any) -> tuple[Result, Recorder]:
    running = Recorder(federation(study, sites, **options))
    return get_method(study.method).run(running), running


def sent(seen: Recorder, label: str) -> list[dict[str, Floats]]:
    """What the rounds of a task were broadcast."""
    return [arrays for arrays, release in seen.steps if release.label == label]


def parameters_of(study: Study, label: str) -> Any:
    task = study.task(label)
    return TASKS[task.task].Parameters.model_validate(dict(task.parameters))


# -- draws --------------------------------------------------------------------------------------------------------------------

ODD = [0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), -float("inf"), 5e-324, 1e300]


def by_hand(features: Floats, present: NDArray[np.bool_], label: int, salt: int) -> float:
    """The draw of one record, from the bytes that are hashed."""
    content = b"".join(np.float64(x + 0.0 if there else 0.0).tobytes() for x, there in zip(features, present, strict=True))
    content += np.packbits(present).tobytes() + label.to_bytes(8, "little", signed=True)
    digest = blake2b(content, digest_size=8, person=b"veilsum.draws.1", salt=salt.to_bytes(8, "little")).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.lists(st.sampled_from(ODD), min_size=3, max_size=3), min_size=1, max_size=9),
    seed=st.integers(0, 2**32 - 1),
    salt=st.sampled_from([0, 1, 2**53 - 1, 2**63 - 1]),
)
def test_a_draw_is_a_hash_of_one_record_whatever_it_holds(values: list[list[float]], seed: int, salt: int) -> None:
    rng, features = np.random.default_rng(seed), np.array(values)
    present, labels = rng.random(features.shape) > 0.4, rng.integers(-1, 3, len(features))
    found = drawn(features, present, labels, salt)
    expected = [by_hand(x, there, int(label), salt) for x, there, label in zip(features, present, labels, strict=True)]
    assert found.tolist() == expected
    assert ((found >= 0.0) & (found < 1.0)).all()
    alone = [drawn(features[[at]], present[[at]], labels[[at]], salt)[0] for at in range(len(features))]
    assert alone == expected
    absent = np.where(present, features, 7.0)  # what is absent does not enter
    assert drawn(absent, present, labels, salt).tolist() == expected


def test_draws_are_uniform_and_know_neither_one_another_nor_the_part_of_a_record() -> None:
    rng = np.random.default_rng(1)
    features, present, labels = rng.normal(size=(20_000, 3)), np.ones((20_000, 3), dtype=np.bool_), rng.integers(0, 2, 20_000)
    first, second = (drawn(features, present, labels, salt) for salt in (3, 4))
    low = hash_is_low(features, present, labels, 0.5)
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    table = np.histogram2d(first, second, bins=4)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-3
    assert stats.chi2_contingency(np.histogram2d(first, low, bins=(4, 2))[0]).pvalue > 1e-3


# -- what is declared ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("moments", [RDN, FRESH])
def test_moments_are_disclosed_per_site_with_the_noise_of_one(method: str, moments: dict[str, Any]) -> None:
    noised = {"epsilon": 3.0, "delta": 1e-5, "noise": "local"}
    asked = {**SHORT[method], **({"rounds": 4} if method == "fedavg" else {"steps": 4}), "moments": moments}
    if method == "fedsgd" and moments is FRESH:
        with pytest.raises(ConfigurationError, match="each round of fedavg"):
            compiled(method, asked, **noised)
        return
    study = compiled(method, asked, **noised, expected=500)
    released, training = study.task(LABEL), study.task(TRAINING[method])
    assert (released.disclosure, released.own_noise, released.keep, training.source) == ("per-site", True, False, None)
    assert released.releases == (4 if moments is FRESH else 1)
    assert "per site: power-moments" in " ".join(notes(study, 500))
    once = compiled(method, {**asked, "moments": {}}, **noised, expected=500)
    # For as large a part of the budget a site's block is as noisy as what a site keeps; one of four releases has a fourth.
    ratio = released.variance / released.grid**2 / (once.task(LABEL).variance / once.task(LABEL).grid ** 2)
    assert ratio == pytest.approx(released.releases, rel=0.02)
    needed = records_to_align(study)
    assert needed is not None
    assert needed > (1 if moments is RDN else (records_to_align(once) or 0))


def test_what_cannot_be_is_refused() -> None:
    for moments in ({**RDN, "order": 4}, {**FRESH, "order": 4}):
        with pytest.raises(ConfigurationError, match="four moments are aligned by what a site keeps"):
            compiled("fedavg", {**SHORT["fedavg"], "moments": moments})


def test_studies_signed_before_say_what_they_said() -> None:
    stated = MomentAlignment().model_dump(mode="json")
    assert not {"moved_by", "released"} & set(stated)
    study = compiled("fedavg", {**SHORT["fedavg"], "moments": {}})
    assert "drawn" not in str(dict(study.task("local-training").parameters))
    assert "resplit" not in str(dict(study.task("local-training").parameters))


# -- records moved by a drawn site's moments ----------------------------------------------------------------------------------


def moved_by_hand(sites: dict[str, Records], salt: int, adjust: str) -> dict[str, Records]:
    """Each record from the mean and deviation of the site that its hash draws to those of all records."""
    every, names, found = np.concatenate([own.features for own in sites.values()]), list(sites), {}
    means, deviations = ([f(sites[name].features, axis=0) for name in names] for f in (np.mean, np.std))
    for name, own in sites.items():
        assert own.labels is not None
        rows = []
        for x, there, label in zip(own.features, own.present, own.labels, strict=True):
            site = int(by_hand(x, there, int(label), salt) * len(names))
            z = (x - means[site]) / deviations[site]
            ratio = 1.0 if adjust == "mean" else np.clip(every.std(axis=0) / deviations[site], 0.2, 5)
            scale = ratio * deviations[site]
            rows.append(np.clip((means[site] if adjust == "variance" else every.mean(axis=0)) + scale * z, -1.0, 1.0))
        found[name] = complete(np.array(rows), own.labels)
    return found


@pytest.mark.parametrize("method", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("adjust", ["both", "mean", "variance"])
def test_training_is_on_records_moved_by_hand(method: str, adjust: str) -> None:
    sites = shifted_sites(80)
    moments = {**RDN, "adjust": adjust}
    result, seen = run(compiled(method, {**SHORT[method], "moments": moments}), sites)
    salt = int(sent(seen, TRAINING[method])[0][SALT][1])
    plain, _ = run(compiled(method, SHORT[method]), moved_by_hand(sites, salt, adjust))
    np.testing.assert_allclose(result.arrays["weights"], plain.arrays["weights"], atol=2e-5)
    own, _ = run(compiled(method, {**SHORT[method], "moments": {"records": 1.0, "adjust": adjust}}), sites)
    assert np.abs(own.arrays["weights"] - plain.arrays["weights"]).max() > 1e-4


@pytest.mark.parametrize("method", ["fedsgd", "fedavg"])
def test_each_round_draws_anew_and_uses_the_same_moments(method: str) -> None:
    longer = {"steps": 3} if method == "fedsgd" else {"rounds": 3}
    _, seen = run(compiled(method, {**SHORT[method], **longer, "moments": RDN}), shifted_sites(60))
    rounds = sent(seen, TRAINING[method])
    assert len({tuple(each[SALT]) for each in rounds}) == 3
    for each in rounds:
        np.testing.assert_array_equal(each[ALIGNMENT_SCALE], rounds[0][ALIGNMENT_SCALE])
    assert len(sent(seen, LABEL)) == 1


@pytest.mark.parametrize("channels", [None, 2])
@pytest.mark.parametrize("encoded", [False, True])
def test_a_result_is_applied_by_the_map_of_the_records_own_site(channels: int | None, encoded: bool) -> None:
    rng = np.random.default_rng(4)
    named, arrays = projection(rng.normal(size=(4, WIDTH)), rng.normal(size=4)) if encoded else (None, {})
    moments = {**RDN, "channels": channels, **({"bound": 4.0} if encoded else {})}
    study = compiled("fedavg", {**SHORT["fedavg"], "moments": moments}, encoder=named)
    sites = shifted_sites(100)
    result, _ = run(study, sites, encoder=arrays)
    model, parameters = Model.from_result(result), parameters_of(study, "local-training")
    use = parameters.alignment.moments.model_copy(update={"drawn": False})
    asked = parameters.model_copy(update={"alignment": parameters.alignment.model_copy(update={"moments": use})})
    for index, (name, own) in enumerate(sites.items()):
        expected = map_records(study, asked, own, {**arrays, **result.arrays}, index=index)
        np.testing.assert_array_equal(model.features(own, name), expected.features)
        # A site's own records, as those of a new site, have the map that its release has, but for the grid.
        new = model.at_new_site(own).features(own)
        np.testing.assert_allclose(new, expected.features, atol=1e-3)
    with pytest.raises(Misuse, match="aligns the features of each site"):
        model.features(sites["a"])
    again = Model.from_result(Result(result.method, result.summary, result.arrays, dict(result.application)))
    np.testing.assert_array_equal(again.features(sites["b"], "b"), model.features(sites["b"], "b"))


def test_who_is_in_no_release_is_drawn_for_as_another_and_noise_leaves_a_site_as_it_is() -> None:
    """The result has no map for it: with another's, its features would be moved by moments that are not its own."""
    b = SiteSums({"count": np.array([50.0]), "t1": np.array([10.0]), "t2": np.array([-30.0])})
    d = SiteSums({"count": np.array([4.0]), "t1": np.array([1.0]), "t2": np.array([-2.0])})
    parameters = MomentAlignment(moved_by="drawn", bound=1.0, per="feature")
    noise = dict.fromkeys(b.values, 2.0)
    found = shown_reference({"d": d, "b": b}, noise, parameters, SITES)
    scale, offset = found.broadcast[ALIGNMENT_SCALE], found.broadcast[ALIGNMENT_OFFSET]
    assert found.cohort == ("b", "d")
    assert found.application["sites"] == list(SITES)
    assert (scale[3], offset[3]) == (1.0, 0.0)  # four records are within the noise
    assert scale[1] != 1.0
    np.testing.assert_array_equal(scale[[0, 2]], scale[[1, 1]])
    assert (found.arrays[ALIGNMENT_SCALE][[0, 2]] == 1.0).all()
    assert (found.arrays[ALIGNMENT_OFFSET][[0, 2]] == 0.0).all()
    np.testing.assert_array_equal(found.arrays[ALIGNMENT_SCALE][[1, 3]], scale[[1, 3]])
    hopeless = shown_reference({"d": d, "b": b}, dict.fromkeys(noise, 1e3), parameters, SITES)
    assert (hopeless.broadcast[ALIGNMENT_SCALE] == 1.0).all()
    assert "nothing is aligned" in hopeless.summary["not_estimable"]


class Away:
    """A federation in which somebody is away in some releases of moments."""

    def __init__(self, inner: Any, away: dict[int, str]) -> None:
        self.study, self._inner, self._away, self.asked = inner.study, inner, away, list[Any]()

    def sum(self, label: str, broadcast: Any = None, *, members: Any = None) -> Release:
        self.asked.append(members)
        absent = self._away.get(len(self.asked))
        present = [name for name in SITES if name != absent] if members is None else members
        found: Release = self._inner.sum(label, broadcast, members=present)
        return found


def test_a_site_that_is_away_for_a_round_keeps_its_moments_and_comes_back() -> None:
    """Each site's sums are its own, with the noise of as many releases as it was in."""
    study = compiled("fedavg", {**SHORT["fedavg"], "rounds": 3, "moments": {**FRESH, "records": 1.0}})
    records = shifted_sites(80)
    parameters = MomentAlignment.model_validate(study.parameters["moments"])
    away = Away(federation(study, records), {1: "c", 2: "a"})
    rounds = MomentRounds(away, parameters)  # type: ignore[arg-type]
    seen = [rounds.now]
    for number in (2, 3):
        rounds.broadcast(number)
        seen.append(rounds.now)
    assert [each.cohort for each in seen] == [("a", "b", "d"), tuple(SITES), tuple(SITES)]
    assert away.asked == [None] * 3
    whole = MomentRounds(federation(study, records), parameters).now  # without noise all releases of a site are alike
    for name in (ALIGNMENT_SCALE, ALIGNMENT_OFFSET):
        np.testing.assert_allclose(seen[2].broadcast[name], whole.broadcast[name], atol=1e-6)
        assert np.abs(seen[0].broadcast[name] - whole.broadcast[name]).max() > 1e-3


def test_sums_of_more_releases_have_less_noise() -> None:
    """Their mean is numpy's, and an error that of one release over the root of their number."""
    draws = np.random.default_rng(3).normal(size=(5, 1))
    given = [{"count": np.array([400.0]), "t1": np.array([20.0]), "t2": -330.0 + 40.0 * draw} for draw in draws]
    sums = reduce(SiteSums.with_further, given[1:], SiteSums(given[0]))
    mean = {name: np.mean([values[name] for values in given], axis=0) for name in given[0]}
    for name, values in sums.values.items():
        np.testing.assert_allclose(values, mean[name], rtol=1e-12)
    parameters = MomentAlignment(moved_by="drawn", bound=1.0, per="feature")
    found, once = (
        shown_reference({"a": each}, dict.fromkeys(mean, 4.0), parameters, ("a",)).moments for each in (sums, SiteSums(mean))
    )
    np.testing.assert_allclose(found.errors[:2], once.errors[:2] / math.sqrt(5), rtol=1e-9)


@pytest.mark.parametrize(
    "hostile",
    [
        {SALT: None},
        {SALT: np.array([1.0])},
        {SALT: np.array([0.0, np.nan])},
        {SALT: np.array([0.0, -1.0])},
        {SALT: np.array([0.0, 2.0**53])},
        {ALIGNMENT_SCALE: None},
        {ALIGNMENT_SCALE: np.ones((4, WIDTH + 1))},
        {ALIGNMENT_SCALE: np.ones((3, WIDTH))},
        {ALIGNMENT_OFFSET: np.full((4, WIDTH), np.inf)},
    ],
)
def test_a_broadcast_that_does_not_fit_is_refused_before_a_record_is_read(hostile: dict[str, Any]) -> None:
    study = compiled("fedavg", {**SHORT["fedavg"], "moments": RDN})
    given = {SALT: np.zeros(2), ALIGNMENT_SCALE: np.ones((4, WIDTH)), ALIGNMENT_OFFSET: np.zeros((4, WIDTH))}
    own, asked = shifted_sites(20)["a"], parameters_of(study, "local-training")
    np.testing.assert_array_equal(map_records(study, asked, own, given, index=0).features, own.features)
    broken = {name: array for name, array in {**given, **hostile}.items() if array is not None}
    none = Records(own.features[:0], own.present[:0], own.labels[:0] if own.labels is not None else None)
    with pytest.raises(HostileInput):
        map_records(study, asked, none, broken, index=0)


# -- moments of each round ----------------------------------------------------------------------------------------------------


def test_on_all_records_without_noise_each_round_is_once() -> None:
    """The same records give the same moments in every round, so that the whole training is the same."""
    sites, asked = shifted_sites(80), {**SHORT["fedavg"], "rounds": 3}
    often, seen = run(compiled("fedavg", {**asked, "moments": {**FRESH, "records": 1.0}}), sites)
    once, _ = run(compiled("fedavg", {**asked, "moments": {"records": 1.0}}), sites)
    assert len(sent(seen, LABEL)) == 3
    np.testing.assert_allclose(often.arrays["weights"], once.arrays["weights"], atol=2e-4)
    assert often.summary["moments"]["records"] == pytest.approx(4 * 80)


def test_each_round_splits_anew_and_no_record_is_in_both_parts() -> None:
    study = compiled("fedavg", {**SHORT["fedavg"], "rounds": 3, "moments": FRESH})
    sites = shifted_sites(80)
    _, seen = run(study, sites)
    statistics, training = parameters_of(study, LABEL), parameters_of(study, "local-training")
    own, used = sites["b"], []
    for first, second in zip(sent(seen, LABEL), sent(seen, "local-training"), strict=True):
        np.testing.assert_array_equal(first[SALT], second[SALT])
        bare = training.model_copy(update={"alignment": None})
        parts = [map_records(study, part, own, first, index=1) for part in (statistics, bare)]
        rows = [{tuple(row) for row in part.features} for part in parts]
        assert not rows[0] & rows[1]
        assert rows[0] | rows[1] == {tuple(row) for row in own.features}
        assert 20 < len(rows[0]) < 60
        used.append(rows[1])
    assert used[0] != used[1] != used[2]
    assert len(used[0] | used[1] | used[2]) > 55  # a fixed half would be 40


def test_sums_so_far_have_less_noise_than_the_last_one() -> None:
    """Of twelve rounds' releases together a feature is told that no single one can tell."""
    noised = {"epsilon": 1.0, "delta": 1e-5, "noise": "local"}
    asked = {**SHORT["fedavg"], "rounds": 12, "local_steps": 1, "moments": {**FRESH, "records": 1.0, "share": 0.3}}
    del asked["batch"]
    study = compiled("fedavg", asked, **noised)
    result, seen = run(study, shifted_sites(500))
    told = [int((each[ALIGNMENT_SCALE] != 1.0).sum()) for each in sent(seen, "local-training")]
    assert told[0] < told[-1]
    assert result.summary["epsilon"]["total"] == study.privacy.epsilon == pytest.approx(1.0, rel=1e-3)
    assert result.summary["epsilon"]["moments"] < 0.75
    assert result.summary["moments"]["released"] == "each-round"
