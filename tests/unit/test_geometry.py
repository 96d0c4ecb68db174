"""Class geometries against numpy's pooled covariances, and generated samples against the covariance they must have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilsum_aggregation.geometry import (
    ClassGeometry,
    class_covariances,
    class_geometry,
    directions,
    generate,
)

RNG = np.random.default_rng(31)


def sites(seed: int, s: int, k: int, d: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Records, classes and sites; some classes are missing at some sites."""
    rng = np.random.default_rng(seed)
    y, site = rng.integers(0, k, n), rng.integers(0, s, n)
    y = np.where(site == 0, y // 2, y)
    shape = np.eye(d) + 0.5 * rng.standard_normal((d, d))
    return rng.standard_normal((n, d)) @ shape + rng.standard_normal((k, d))[y] + rng.standard_normal((s, d))[site], y, site


def summed(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    parts = [x[y == c] for c in range(k)]
    counts = np.array([len(part) for part in parts], dtype=np.float64)
    return counts, np.array([part.sum(axis=0) for part in parts]), np.array([part.T @ part for part in parts])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 4), st.integers(1, 9), st.integers(1, 120))
def test_covariances_from_sums_equal_numpys(seed: int, s: int, k: int, d: int, n: int) -> None:
    x, y, _ = sites(seed, s, k, d, n)
    counts, sums, seconds = summed(x, y, k)
    means, covariances = class_covariances(counts, sums, seconds)
    for c in range(k):
        part = x[y == c]
        expected = np.cov(part.T, bias=True).reshape(d, d) if len(part) else np.zeros((d, d))
        centre = part.mean(axis=0) if len(part) else np.zeros(d)
        size = 1e-10 * (np.linalg.norm(expected) + centre @ centre)
        assert np.linalg.norm(covariances[c] - expected) <= size
        np.testing.assert_allclose(means[c], centre, atol=1e-11)


def test_geometry_decomposes_and_floors() -> None:
    x, y, _ = sites(1, 3, 3, 6, 400)
    counts, sums, seconds = summed(x, y, 3)
    means, covariances = class_covariances(counts, sums, seconds)
    geometry = class_geometry(counts, means, covariances)
    np.testing.assert_allclose(geometry.covariances(), covariances, atol=1e-12)
    assert np.all(np.diff(geometry.values) <= 0)
    np.testing.assert_allclose(
        geometry.vectors.transpose(0, 2, 1) @ geometry.vectors, np.tile(np.eye(6), (3, 1, 1)), atol=1e-12
    )
    noised = covariances - 2 * np.linalg.eigvalsh(covariances)[:, :1, None] * np.eye(6)
    raised = class_geometry(np.array([-3.0, 1.0, 1.0]), means, noised)
    assert np.all(raised.values >= 0)
    assert np.all(raised.values[:, -1] == 0)
    assert raised.counts[0] == 0
    singular = class_geometry(np.ones(1), np.zeros((1, 3)), np.ones((1, 3, 3)))
    np.testing.assert_allclose(singular.values, [[3, 0, 0]], atol=1e-14)


def geometry_of(d: int, k: int) -> ClassGeometry:
    roots = RNG.standard_normal((k, d, d)) * 0.6
    return class_geometry(np.ones(k), np.zeros((k, d)), roots @ roots.transpose(0, 2, 1))


@pytest.mark.parametrize("scale", ["std", "eigenvalue"])
def test_generated_samples_have_the_covariance_of_their_scale(scale: str) -> None:
    d, k, copies = 5, 3, 40_000
    geometry = geometry_of(d, k)
    centres, classes = RNG.standard_normal((2, d)), np.array([2, 0])
    samples, labels = generate(geometry, centres, classes, copies, scale, np.random.default_rng(8))
    assert samples.shape == (2 * copies, d)
    np.testing.assert_array_equal(labels, np.repeat(classes, copies))
    power = 1.0 if scale == "std" else 2.0
    for index, c in enumerate(classes):
        mine = samples[index * copies : (index + 1) * copies]
        expected = (geometry.vectors[c] * geometry.values[c] ** power) @ geometry.vectors[c].T
        spread = np.sqrt(np.diag(expected))
        # The variance of an entry of a normal sample's covariance is (S_ii S_jj + S_ij^2) / n.
        errors = np.sqrt((np.outer(spread, spread) ** 2 + expected**2) / copies)
        assert np.all(np.abs(np.cov(mine.T) - expected) < 5 * errors)
        assert np.all(np.abs(mine.mean(axis=0) - centres[index]) < 5 * spread / np.sqrt(copies))


@pytest.mark.parametrize("scale", ["std", "eigenvalue"])
def test_directions_are_what_generate_uses(scale: str) -> None:
    geometry = geometry_of(4, 2)
    centres, classes = RNG.standard_normal((6, 4)), np.array([0, 1, 1, 0, 1, 0])
    samples, labels = generate(geometry, centres, classes, 3, scale, np.random.default_rng(9))
    normal = np.random.default_rng(9).standard_normal((18, 4))
    deviation = np.einsum("nij,nj->ni", directions(geometry, scale)[labels], normal)
    np.testing.assert_allclose(samples, np.repeat(centres, 3, axis=0) + deviation, atol=1e-12)


def test_samples_around_records_have_both_covariances() -> None:
    d, n = 3, 60_000
    geometry = geometry_of(d, 1)
    records = RNG.standard_normal((n, d)) * [1, 2, 0.5]
    samples, _ = generate(geometry, records, np.zeros(n, dtype=np.int64), 1, "std", np.random.default_rng(3))
    expected = np.diag([1, 4, 0.25]) + geometry.covariances()[0]
    spread = np.sqrt(np.diag(expected))
    assert np.all(np.abs(np.cov(samples.T) - expected) < 5 * np.sqrt(2.0 / n) * np.outer(spread, spread))


def test_generation_of_nothing_and_refusals() -> None:
    geometry, rng = geometry_of(2, 2), np.random.default_rng(1)
    samples, labels = generate(geometry, np.zeros((0, 2)), np.zeros(0, dtype=np.int64), 5, "std", rng)
    assert samples.shape == (0, 2)
    assert labels.shape == (0,)
    assert generate(geometry, np.zeros((3, 2)), np.zeros(3, dtype=np.int64), 0, "std", rng)[0].shape == (0, 2)
    for classes in (np.array([2]), np.array([-1])):
        with pytest.raises(ValueError, match="class"):
            generate(geometry, np.zeros((1, 2)), classes, 1, "std", rng)
    with pytest.raises(ValueError, match="copies"):
        generate(geometry, np.zeros((1, 2)), np.array([0]), -1, "std", rng)
    with pytest.raises(ValueError, match="scale"):
        generate(geometry, np.zeros((1, 2)), np.array([0]), 1, "variance", rng)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="do not fit"):
        ClassGeometry(np.ones(2), np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 3, 2)))
    with pytest.raises(ValueError, match="do not fit"):
        class_covariances(np.ones(2), np.zeros((2, 3)), np.zeros((2, 3, 2)))
