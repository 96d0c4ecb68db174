"""The reference with site slopes in front of methods: over secure sums as in one place, as a model, and under noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.studies import SCHEMA, SITES, WIDTH, compiled, federation, run, shifted_sites
from veilsum_aggregation.alignment import local_map
from veilsum_aggregation.two_way import ClassStatistics, fit_two_way, two_way_map
from veilsum_coordinator.methods import get_method
from veilsum_node.errors import ConfigurationError, HostileInput, VeilsumError
from veilsum_participant.applying.model import Model
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks import build_task


def alignment(mode: str = "one-shot", **more: Any) -> dict[str, Any]:
    return {"alignment": {"mode": mode, "reference": "slopes", **more}}


@pytest.mark.parametrize("mode", ["one-shot", "iterated"])
@pytest.mark.parametrize("method", ["slot-align", "fedcgs", "o-fedavg", "fedpft"])
def test_two_way_is_the_default_without_noise_and_nothing_is_under_noise(method: str, mode: str) -> None:
    study = compiled(method, {"alignment": {"mode": mode}})
    assert study.parameters["alignment"]["reference"] == "two-way"
    assert study.parameters["alignment"]["rounds"] == 10
    with pytest.raises(ConfigurationError, match="must state its reference") as caught:
        compiled(method, {"alignment": {"mode": mode}}, epsilon=3.0)
    assert 'reference = "two-way"' in caught.value.advice
    for reference in ("barycenter", "two-way", "slopes"):
        stated = compiled(method, {"alignment": {"mode": mode, "reference": reference}}, epsilon=3.0)
        assert stated.parameters["alignment"]["reference"] == reference


@pytest.mark.parametrize("method", ["slot-align", "fedcgs", "o-fedavg", "fedpft"])
def test_the_reference_that_the_release_chose_is_refused_by_name(method: str) -> None:
    """In a new study, and in one that an earlier version signed: nothing is released for it."""
    with pytest.raises(ConfigurationError, match=r"removed after version 0\.2") as caught:
        compiled(method, {"alignment": {"reference": "auto"}})
    assert 'State reference = "two-way"' in caught.value.advice
    study = compiled(method, {"alignment": {"reference": "slopes"}})
    parameters = {**study.parameters, "alignment": {**study.parameters["alignment"], "reference": "auto"}}
    signed = study.model_copy(update={"parameters": parameters})
    own = federation(signed, shifted_sites())
    with pytest.raises(VeilsumError, match=r"removed after version 0\.2") as told:
        get_method(method).run(own)
    assert "Verify results" in told.value.advice
    with pytest.raises(KeyError):
        own.kept_blocks(SITES[0], "alignment")


def test_maps_are_those_of_the_records_in_the_clear() -> None:
    sites = shifted_sites()
    counts, means, within, degrees = [], [], [], []
    for own in sites.values():
        assert own.labels is not None
        member = [own.features[own.labels == c] for c in range(3)]
        counts.append([len(x) for x in member])
        means.append([x.mean(axis=0) if len(x) else np.zeros(WIDTH) for x in member])
        degrees.append(sum(len(x) - 1 for x in member if len(x)))
        scatter = np.sum([(x - x.mean(axis=0)).T @ (x - x.mean(axis=0)) for x in member if len(x)], axis=0)
        within.append(scatter / degrees[-1])
    site = ClassStatistics(np.array(counts, dtype=float), np.array(means), np.array(within), np.array(degrees, dtype=float))
    fit = fit_two_way(site, slopes=True)
    assert fit.slopes is not None
    result = run("slot-align", alignment(), sites)
    assert np.abs(fit.slopes).max() > 0.01
    for k in range(len(SITES)):
        expected = two_way_map(fit.shifts[k], fit.centre, within[k], fit.within, degrees[k], slope=fit.slopes[k])
        np.testing.assert_allclose(result.arrays["alignment.matrix"][k], expected.matrix, atol=2e-3)
        np.testing.assert_allclose(result.arrays["alignment.offset"][k], expected.offset, atol=1e-3)
    assert result.summary["variance_of_slopes"] == pytest.approx(fit.slope_variance, rel=1e-3)
    assert result.summary["variance_of_shifts"] == pytest.approx(fit.shift_variance, rel=1e-3)
    plain = run("slot-align", alignment(reference="two-way"), sites)
    assert "variance_of_slopes" not in plain.summary
    assert np.abs(plain.arrays["alignment.matrix"] - result.arrays["alignment.matrix"]).max() > 0.01


def test_iterated_over_sums_is_one_shot_within_the_grid() -> None:
    sites = shifted_sites()
    shot, study = run("slot-align", alignment(), sites), compiled("slot-align", alignment("iterated"))
    assert all(task.disclosure == "joint" for task in study.tasks)
    assert sum(task.source is None for task in study.tasks) == 1  # one release is all that is paid for
    own = federation(study, sites)
    steps = get_method("slot-align").run(own)
    assert steps.arrays["reference.scalars"].shape == (3,)
    for name in ("reference.class_means", "reference.within", "reference.scalars"):
        np.testing.assert_allclose(steps.arrays[name], shot.arrays[name], rtol=1e-6, atol=1e-6)
    assert steps.application is not None
    assert steps.application["alignment"]["kind"] == "slopes"
    here, there = Model.from_result(shot), Model.from_result(steps)
    for index, (name, records) in enumerate(sites.items()):
        kept = own.kept_blocks(name, "alignment")
        np.testing.assert_allclose(there.features(records, site=name, kept=kept), here.features(records, site=name), atol=1e-6)
        found = local_map("slopes", kept, {}, {key: steps.arrays[key] for key in steps.arrays if key.startswith("reference.")})
        np.testing.assert_allclose(found.matrix, shot.arrays["alignment.matrix"][index], atol=1e-6)


@pytest.mark.parametrize("method", ["fedcgs", "o-fedavg", "fedpft"])
def test_both_modes_agree_in_front_of_a_method(method: str) -> None:
    sites = shifted_sites(shift=0.25)
    once = run(method, alignment(), sites)
    own = federation(compiled(method, alignment("iterated")), sites)
    again = get_method(method).run(own)
    here, there = Model.from_result(once), Model.from_result(again)
    agreed, right = [], []
    for name, records in sites.items():
        assert records.labels is not None
        predicted = here.predict(records, site=name)
        agreed.append(np.mean(predicted == there.predict(records, site=name, kept=own.kept_blocks(name, "alignment"))))
        right.append(np.mean(predicted == records.labels))
    assert min(agreed) > 0.98
    assert np.mean(right) > 0.8


@pytest.mark.parametrize("mode", ["one-shot", "iterated"])
@pytest.mark.parametrize("epsilon", [0.1, 3.0])
def test_under_noise_maps_are_finite_and_do_not_blow_up(mode: str, epsilon: float) -> None:
    sites = shifted_sites()
    study = compiled("slot-align", alignment(mode), epsilon=epsilon, delta=1e-5)
    own = federation(study, sites)
    result = get_method("slot-align").run(own)
    if not result.arrays:  # every site within its noise
        assert epsilon == 0.1
        return
    model = Model.from_result(result)
    for name, records in sites.items():
        kept = None if mode == "one-shot" else own.kept_blocks(name, "alignment")
        assert np.isfinite(model.features(records, site=name, kept=kept)).all()


def test_a_reference_of_the_other_kind_is_refused_by_a_site() -> None:
    schema: DatasetSchema = SCHEMA
    task = build_task("two-way-step", {"width": WIDTH, "bound": 50.0, "step": "effects"}, schema)
    kept = federation(compiled("slot-align", alignment("iterated")), shifted_sites())
    get_method("slot-align").run(kept)
    blocks = kept.kept_blocks(SITES[0], "alignment")
    good = {"reference.within": np.eye(WIDTH), "reference.class_means": np.zeros((3, WIDTH))}
    for scalars in (np.array([1.0, 1.0, -0.1]), np.array([1.0, 1.0, np.inf]), np.ones(4), np.ones(1), np.ones((3, 1))):
        with pytest.raises(HostileInput, match="reference"):
            task.vector(blocks, {}, {**good, "reference.scalars": scalars})  # type: ignore[attr-defined]
    for scalars in (np.ones(2), np.ones(3), np.array([1.0, 1.0, 0.0])):
        vector = task.vector(blocks, {}, {**good, "reference.scalars": scalars})  # type: ignore[attr-defined]
        assert vector.shape == (task.layout().size,)
        assert np.isfinite(vector).all()
