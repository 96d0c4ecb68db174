"""Whole studies in one process: what is released, and what it cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.federation import make_bed, make_data, make_request, schema_of
from veilsum_privacy.tasks import build_task


def test_statistics_without_noise_equal_numpy(tmp_path: Path) -> None:
    data = make_data("abcd", 50, 3)
    bed = make_bed(tmp_path, data)
    local = bed.local
    key = local.submit(bed.compile(make_request(schema_of(3), epsilon=None)), bed.analyst)
    release = local.prepare(key).sum("statistics")
    pooled = np.concatenate([features for features, _ in data.values()])
    assert release.cohort == ("a", "b", "c", "d")
    assert release.values["overview.numbers/records"] == [200]
    assert not release.values["overview.numbers/absent"].any()
    np.testing.assert_allclose(release.values["overview.numbers/sum"], [pooled.sum(0)], atol=0.1)  # each rounded to a scale


@pytest.mark.parametrize("epsilon", [999.0, None])
def test_mean_and_covariance_at_a_huge_epsilon_equal_pooled_numpy(tmp_path: Path, epsilon: float | None) -> None:
    """What is left is what the plan says: truncation of each record to the grid, and noise far below one record."""
    data = make_data("abcd", 120, 5)
    bed = make_bed(tmp_path, data)
    bed.know_noise()
    local = bed.local
    request = make_request(schema_of(5, max_records=120), method="fedcgs", epsilon=epsilon)
    study = bed.compile(request)
    declaration = study.tasks[0]
    release = local.prepare(local.submit(study, bed.analyst)).sum(declaration.label)
    task = build_task(declaration.task, declaration.parameters, study.data)
    unit = task.clip() / declaration.grid

    clip = float.fromhex(declaration.parameters["clip"])
    x = np.concatenate([features for features, _ in data.values()])
    y = np.concatenate([labels for _, labels in data.values()])
    x = x * np.minimum(1.0, clip / np.linalg.norm(x, axis=1))[:, None]
    n, upper = len(x), np.triu_indices(5, 1)
    truth = {
        "counts": np.bincount(y, minlength=2).astype(float),
        "sums": np.array([x[y == label].sum(axis=0) for label in (0, 1)]),
        "squares": (x**2).sum(axis=0),
        "products": (x.T @ x)[upper],
    }
    for block in task.layout().blocks:
        grid = n * unit / block.weight  # each record is truncated by less than one unit
        np.testing.assert_allclose(
            release.values[block.name], truth[block.name], rtol=0, atol=grid + 4 * release.noise_std[block.name]
        )
        assert release.noise_std[block.name] < 0.2
    mean = release.values["sums"].sum(axis=0) / release.values["counts"].sum()
    covariance = np.diag(release.values["squares"] / n)
    covariance[upper] = release.values["products"] / n
    covariance = covariance + np.triu(covariance, 1).T - np.outer(mean, mean)
    np.testing.assert_allclose(mean, x.mean(axis=0), atol=2e-3)
    np.testing.assert_allclose(covariance, np.cov(x.T, bias=True), atol=5e-3)
    if epsilon is None:
        np.testing.assert_allclose(mean, x.mean(axis=0), atol=2 * unit)
        np.testing.assert_allclose(covariance, np.cov(x.T, bias=True), atol=10 * unit / task.layout().blocks[-1].weight)


def test_a_released_round_keeps_nothing_that_was_sent(tmp_path: Path) -> None:
    """The coordinator's memory is one payload, whatever the number of rounds."""
    data = make_data("abc", width=3)
    bed = make_bed(tmp_path, data)
    local = bed.local
    key = local.submit(bed.compile(make_request(schema_of(3), epsilon=None)), bed.analyst)
    release = local.prepare(key).sum("statistics", {"unused": np.zeros(4)})
    (current,) = bed.hub.studies[key].machine.rounds
    assert (current.sum, current.fixed, current.accumulator._total) == (None, None, None)
    assert current.answers == current.consents == current.agreed == current.accumulator.uploads == {}
    assert current.broadcast == ()
    assert current.bytes_received == 3 * current.plan.encoding.payload_bytes
    assert release.cohort == ("a", "b", "c")
