"""What methods make of sums that no tidy site has: none or one record, equal ones, one class, more features than records,
columns without spread or alike, features of any unit, far from 0, and noise that leaves counts and variances below 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from veilsum_aggregation import alignment
from veilsum_aggregation.arrays import Floats, Integers
from veilsum_aggregation.feature_moments import FeatureMoments, moments_of_sums
from veilsum_aggregation.geometry import class_covariances, class_geometry
from veilsum_aggregation.moment_alignment import moment_map
from veilsum_aggregation.regmean import regmean, shrink_gram


@dataclass(frozen=True)
class Site:
    """Records (n, d) of classes (n,) among k, in a unit, and the standard deviation of noise in their sums."""

    x: Floats
    y: Integers
    k: int
    unit: float
    noise: float
    rng: np.random.Generator

    def blocks(self) -> tuple[dict[str, Floats], dict[str, float]]:
        """Class moments with their noise."""
        second = self.x.T @ self.x
        exact = {
            "counts": np.bincount(self.y, minlength=self.k).astype(float),
            "sums": np.array([self.x[self.y == c].sum(axis=0) for c in range(self.k)]),
            "squares": np.diag(second).copy(),
            "products": second[np.triu_indices(len(second), 1)],
        }
        stds = {"counts": self.noise, "sums": self.noise * self.unit} | dict.fromkeys(
            ("squares", "products"), self.noise * self.unit**2
        )
        noised = {name: block + stds[name] * self.rng.standard_normal(block.shape) for name, block in exact.items()}
        return (noised, stds) if self.noise else (exact, {})


@st.composite
def sites(draw: st.DrawFn) -> Site:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d, k = draw(st.sampled_from([0, 1, 2, 3, 10, 60])), draw(st.integers(1, 7)), draw(st.integers(1, 4))
    x, y = rng.standard_normal((n, d)), rng.integers(0, k, n)
    shape = draw(st.sampled_from(["plain", "equal", "empty column", "equal columns", "far", "one class"]))
    if shape == "equal":
        x[:] = x[:1]
    if shape == "empty column":
        x[:, 0] = 0.0
    if shape == "equal columns":
        x[:, -1] = x[:, 0]
    if shape == "far":
        x += 1e4
    if shape == "one class":
        y[:] = 0
    unit = draw(st.sampled_from([1e-12, 1e-6, 1.0, 1e6, 1e12]))
    return Site(x * unit, y, k, unit, draw(st.sampled_from([0.0, 0.0, 0.05, 1.0, 30.0])), rng)


@given(sites())
def test_class_geometries_are_those_of_the_records_or_finite(site: Site) -> None:
    d = site.x.shape[1]
    counts = np.bincount(site.y, minlength=site.k).astype(float)
    sums = np.array([site.x[site.y == c].sum(axis=0) for c in range(site.k)])
    seconds = np.array([site.x[site.y == c].T @ site.x[site.y == c] for c in range(site.k)]).reshape(site.k, d, d)
    noised = seconds + site.noise * site.unit**2 * site.rng.standard_normal(seconds.shape)
    found = class_geometry(counts, *class_covariances(counts, sums, noised))
    assert np.isfinite(found.values).all()
    assert (found.values >= 0.0).all()
    assert (np.diff(found.values, axis=1) <= 0.0).all()
    np.testing.assert_allclose(
        found.vectors @ found.vectors.transpose(0, 2, 1), np.broadcast_to(np.eye(d), (site.k, d, d)), atol=1e-10
    )
    if site.noise:
        return
    largest = float(np.abs(site.x).max(initial=0.0)) ** 2 or 1.0
    for c, own in enumerate(found.covariances()):
        records = site.x[site.y == c]
        expected = np.cov(records.T, bias=True).reshape(d, d) if len(records) else np.zeros((d, d))
        np.testing.assert_allclose(own, expected, atol=1e-12 * largest)


@settings(max_examples=150)
@given(sites(), st.sampled_from(["barycenter", "two-way", "slopes"]))
def test_a_sites_map_is_finite_and_throws_no_record_away(site: Site, kind: alignment.Kind) -> None:
    """A map to the barycenter is symmetric and monotone besides."""
    blocks, stds = site.blocks()
    scale = {
        alignment.MEAN: site.unit,
        alignment.CLASS_MEANS: site.unit,
        alignment.COVARIANCE: site.unit**2,
        alignment.WITHIN: site.unit**2,
    }
    made = alignment.example_reference(kind, site.x.shape[1], site.k)
    mapped = alignment.local_map(kind, blocks, stds, {name: array * scale.get(name, 1.0) for name, array in made.items()})
    assert np.isfinite(mapped.matrix).all()
    assert np.isfinite(mapped.offset).all()
    if kind == "barycenter":
        size = float(np.abs(mapped.matrix).max())
        np.testing.assert_allclose(mapped.matrix, mapped.matrix.T, atol=1e-6 * size)
        assert np.linalg.eigvalsh((mapped.matrix + mapped.matrix.T) / 2.0)[0] >= -1e-6 * size
    if not site.noise and len(site.x):
        assert np.abs(mapped.apply(site.x)).max() <= 1e3 * max(float(np.abs(site.x).max()), site.unit)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 7), st.integers(1, 3), st.sampled_from([1e-12, 1.0, 1e12]))
def test_regmean_is_no_further_than_the_average_whatever_the_inputs(seed: int, e: int, m: int, out: int, unit: float) -> None:
    """On shrunk Grams of none to 30 records, of columns without values or alike, and layers of any unit."""
    rng = np.random.default_rng(seed)
    layers = [rng.standard_normal((out, m)) * 10.0 ** rng.choice([-12, 0, 12]) for _ in range(e)]
    inputs = [rng.standard_normal((rng.choice([0, 1, 5, 30]), m)) * unit for _ in range(e)]
    for x in inputs:
        x[:, 0] = rng.choice([0.0, 1.0]) * x[:, -1]
    grams = [x.T @ x for x in inputs]

    def distance(layer: Floats) -> float:
        return sum(
            float(np.trace((layer - own) @ shrink_gram(g, 0.75) @ (layer - own).T))
            for own, g in zip(layers, grams, strict=True)
        )

    found, average = regmean(layers, grams), np.mean(layers, axis=0)
    assert np.isfinite(found).all()
    assert distance(found) <= distance(average) * (1.0 + 1e-9)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 2, 3, 60]),
    st.sampled_from([1e-12, 1e-6, 1e-3, 1.0, 1e3]),
    st.sampled_from([0.0, 0.1, 10.0]),
)
def test_a_map_of_moments_keeps_the_order_of_values(seed: int, n: int, spread: float, noise: float) -> None:
    """Of features that hardly vary, that are at their bounds, and of moments that noise made impossible."""
    rng = np.random.default_rng(seed)

    def told(x: Floats, std: float) -> FeatureMoments:
        angles = np.arccos(np.clip(x, -1.0, 1.0))
        sums = {f"t{k}": np.cos(k * angles).sum(axis=0) + std * rng.standard_normal(x.shape[1]) for k in (1, 2, 3, 4)}
        return moments_of_sums(
            {"count": np.array([float(len(x))]), **sums}, dict.fromkeys(("count", *sums), std) if std else {}
        )

    own = told(np.tanh(rng.standard_normal((n, 3)) * spread + rng.uniform(-1, 1, 3)), noise)
    assert (own.variance >= 0.0).all()
    for order in (2, 4):
        mapped = moment_map(own, told(np.tanh(rng.standard_normal((200, 3))), 0.0), order=order)  # type: ignore[arg-type]
        moved = mapped(np.sort(rng.uniform(-1.0, 1.0, (200, 3)), axis=0))
        assert np.isfinite(moved).all()
        assert (np.diff(moved, axis=0) >= -1e-9).all()
