"""Random intercepts from per-site moments: statsmodels' mixed model without noise, and intervals that hold with it."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
from statsmodels.regression.mixed_linear_model import MixedLM

from evaluations.mixed import INTERCEPT, SLOPES, Fit, drawn, fit
from veilsum_privacy.tasks.base import Records

UPPER = np.triu_indices(4, 1)


def blocks_of(sites: list[Records]) -> list[dict[str, np.ndarray]]:
    found = []
    for own in sites:
        second = own.features.T @ own.features
        known = {"count": np.array([float(len(own))]), "sum": own.features.sum(axis=0), "squares": np.diag(second).copy()}
        found.append({**known, "products": second[UPPER]})
    return found


def fitted(sites: list[Records], **noise: float) -> Fit:
    found = fit(blocks_of(sites), noise)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_without_noise_it_is_statsmodels_mixed_model(seed: int) -> None:
    """Slopes within sites use a little less than all there is: they differ by a small part of a standard error."""
    sites = drawn(8, 400, 0.2, np.random.default_rng(seed))
    rows = [pandas.DataFrame(own.features, columns=["a", "b", "c", "y"]).assign(site=k) for k, own in enumerate(sites)]
    table = pandas.concat(rows)
    oracle = MixedLM.from_formula("y ~ a + b + c", table, groups="site").fit(reml=True)
    found = fitted(sites)
    error = oracle.bse_fe.to_numpy()
    np.testing.assert_allclose(found.estimates[:3], oracle.fe_params.to_numpy()[1:], atol=0.15 * error[1:].max())
    assert found.estimates[3] == pytest.approx(oracle.fe_params["Intercept"], abs=0.05 * error[0])
    assert found.variance_between == pytest.approx(float(oracle.cov_re.iloc[0, 0]), rel=0.05)
    half = (found.slopes[:, 1] - found.slopes[:, 0]) / 2.0
    np.testing.assert_allclose(half / 1.96, error[1:], rtol=0.03)


def test_noise_that_drowns_the_records_tells_nothing_and_equal_sites_have_no_variance() -> None:
    sites = drawn(4, 200, 0.1, np.random.default_rng(4))
    assert fit(blocks_of(sites), {"count": 100.0, "sum": 50.0, "squares": 50.0, "products": 35.0}) is None
    assert fit(blocks_of(sites), {"products": 30.0}) is None
    assert fit(blocks_of(sites[:1]), {}) is None
    same = fitted(sites[:1] * 4)
    assert (same.variance_between, same.tau[0]) == (0.0, 0.0)


def test_intervals_allow_for_the_noise_that_is_there() -> None:
    """Planted noise of a known size on every block: slopes are covered as often as said, not if the noise is left unsaid."""
    rng, std = np.random.default_rng(8), {"count": 6.0, "sum": 6.0, "squares": 6.0, "products": 4.0}
    hits: dict[bool, list[bool]] = {True: [], False: []}
    held = []
    for _ in range(60):
        blocks = blocks_of(drawn(6, 800, 0.1, rng))
        noised = [
            {name: value + std[name] * rng.standard_normal(value.shape) for name, value in own.items()} for own in blocks
        ]
        for told in hits:
            found = fit(noised, std if told else {})
            assert found is not None
            hits[told] += ((found.slopes[:, 0] <= SLOPES) & (found.slopes[:, 1] >= SLOPES)).tolist()
        held.append(bool(found.intercept[0] <= INTERCEPT <= found.intercept[1]))
    assert np.mean(hits[True]) > 0.9  # of 180, 60 independent studies
    assert np.mean(hits[False]) < np.mean(hits[True]) - 0.1
    assert np.mean(held) > 0.85
