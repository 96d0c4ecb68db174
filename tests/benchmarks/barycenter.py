"""Barycenters of covariances, beside POT's fixed point at equal measured residual, and against what a decomposition costs.

Two kinds of covariances: "features", of sites that share a decaying spectrum (variance of direction i about 10 / i) and differ
by a random rotation and by scales, sampled from 4000 records and shrunk (OAS); and "ill-conditioned", with unrelated
eigenvectors and eigenvalues from 1 to 1e-4. The residual is measured by code of this file for both, in the textbook's form.
CPU time of one core; only POT's own stopping rule decides how many steps it takes.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import ot
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.timing import timed
from veilsum_aggregation import gaussian, moments

Floats = NDArray[np.float64]

ACCURACY = 1e-6
"""Relative change at which POT stops; ours stops at :data:`TOLERANCE` and must leave no larger a residual."""
TOLERANCE = 1e-7


def features(sites: int, d: int, random: np.random.Generator, records: int = 4000) -> Floats:
    """Shrunk covariances (sites, d, d) of features that differ between sites in rotation and scale."""
    base = np.linalg.qr(random.standard_normal((d, d)))[0] * np.sqrt(10.0 / np.arange(1, d + 1))
    result = np.empty((sites, d, d))
    for site in range(sites):
        scales = np.exp(0.25 * random.standard_normal(d))
        rotation = np.linalg.qr(np.eye(d) + 0.3 * random.standard_normal((d, d)) / np.sqrt(d))[0]
        x = (random.standard_normal((records, d)) * scales) @ (base @ rotation).T
        result[site] = moments.shrink_oas(x.T @ x / records, records)
    return result


def ill_conditioned(sites: int, d: int, random: np.random.Generator, condition: float = 1e4) -> Floats:
    """Covariances (sites, d, d) of one spectrum, from 1 to 1 / condition, and unrelated eigenvectors."""
    values = np.logspace(0, -np.log10(condition), d)
    bases = [np.linalg.qr(random.standard_normal((d, d)))[0] for _ in range(sites)]
    made = [(basis * values) @ basis.T for basis in bases]
    return np.array([(one + one.T) / 2 for one in made])


def residual(covariances: Floats, weights: Floats, barycenter: Floats) -> float:
    """|S - sum_k w_k (S^1/2 S_k S^1/2)^1/2|_F / |S|_F."""
    root = _root(barycenter)
    total = sum(w * _root(root @ one @ root) for w, one in zip(weights, covariances, strict=True))
    return float(np.linalg.norm(barycenter - total) / np.linalg.norm(barycenter))


def _root(matrix: Floats) -> Floats:
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def compare(kind: str, covariances: Floats, repeats: int) -> dict[str, Any]:
    """One set of covariances, equal weights: this package and POT.

    Raises:
        AssertionError: this package did not converge, its residual is the larger one, or the barycenters differ.
    """
    sites, d, _ = covariances.shape
    means, weights = np.zeros((sites, d)), np.full(sites, 1.0 / sites)
    runs = [timed(lambda: gaussian.barycenter(means, covariances, weights, tolerance=TOLERANCE)) for _ in range(repeats)]
    ours = runs[0][1]
    size = float(np.linalg.norm(ours.gaussian.covariance))
    with contextlib.redirect_stdout(io.StringIO()):  # it prints where it did not converge; the residual below tells
        pot_seconds, (_, theirs, log) = timed(
            lambda: ot.gaussian.bures_wasserstein_barycenter(
                means, covariances, weights, num_iter=1000, eps=ACCURACY * size, log=True
            )
        )
    figures: dict[str, Any] = {
        "kind": kind,
        "sites": sites,
        "d": d,
        "seconds": min(seconds for seconds, _ in runs),
        "steps": ours.iterations,
        "decompositions": ours.decompositions / sites,
        "residual": residual(covariances, weights, ours.gaussian.covariance),
        "pot_seconds": pot_seconds,
        "pot_steps": log["num_iter"] + 1,
        "pot_residual": residual(covariances, weights, theirs),
    }
    figures["ratio"] = figures["pot_seconds"] / figures["seconds"]
    difference = float(np.linalg.norm(ours.gaussian.covariance - theirs)) / size
    if not ours.converged or figures["residual"] > figures["pot_residual"] or difference > 1e-4:  # POT stops short
        raise AssertionError(f"not the same barycenter at an equal residual: {figures}, difference {difference:.1e}")
    return figures


def alone(covariances: Floats) -> dict[str, Any]:
    """One set by itself, beside what its steps would cost at one eigh and four products a covariance a step."""
    sites, d, _ = covariances.shape
    seconds, result = timed(
        lambda: gaussian.barycenter(np.zeros((sites, d)), covariances, np.ones(sites), tolerance=TOLERANCE)
    )
    if not result.converged:
        raise AssertionError("not converged")
    few = covariances[:5]
    eigh = min(timed(lambda one=one: np.linalg.eigh(one))[0] for one in few)  # type: ignore[misc]
    product = min(timed(lambda one=one: one @ few[0])[0] for one in few)  # type: ignore[misc]
    limit = result.iterations * sites * (eigh + 4 * product)
    return {
        "sites": sites,
        "d": d,
        "seconds": seconds,
        "steps": result.iterations,
        "decompositions": result.decompositions / sites,
        "eigh_ms": 1e3 * eigh,
        "product_ms": 1e3 * product,
        "limit_s": limit,
        "share_of_limit": seconds / limit,
    }


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Ten of features at d = 128, 512, 768 and ill-conditioned at 128, 512; 100 alone at 512. Quick: d = 128 only."""
    random = np.random.default_rng(0)
    with threadpool_limits(1):
        sizes = (128,) if quick else (128, 512, 768)
        compared = [compare("features", features(10, d, random), repeats=3 if d < 512 else 2) for d in sizes]
        sizes = sizes[:2]
        compared += [compare("ill-conditioned", ill_conditioned(10, d, random), repeats=2) for d in sizes]
        return {"compared": compared, "alone": [alone(features(100, d, random)) for d in sizes[-1:]]}


COMPARED = (
    ("veilsum, s", "seconds", "{:.2f}"),
    ("  steps", "steps", "{}"),
    ("  decompositions a covariance", "decompositions", "{:.1f}"),
    ("  residual", "residual", "{:.1e}"),
    ("POT, s", "pot_seconds", "{:.2f}"),
    ("  steps", "pot_steps", "{}"),
    ("  residual", "pot_residual", "{:.1e}"),
    ("POT / veilsum", "ratio", "{:.1f}"),
)
ALONE = (
    ("veilsum, s", "seconds", "{:.1f}"),
    ("  steps", "steps", "{}"),
    ("  decompositions a covariance", "decompositions", "{:.1f}"),
    ("one eigh, ms", "eigh_ms", "{:.1f}"),
    ("one product, ms", "product_ms", "{:.1f}"),
    ("steps x K x (eigh + 4 products), s", "limit_s", "{:.1f}"),
    ("  share of it taken", "share_of_limit", "{:.2f}"),
)


def table(result: dict[str, Any]) -> str:
    """Both parts as Markdown tables."""
    heads = [f"{one['sites']} {one['kind']}, d = {one['d']}" for one in result["compared"]]
    lines = _table(heads, result["compared"], COMPARED)
    heads = [f"{one['sites']} features alone, d = {one['d']}" for one in result["alone"]]
    return lines + "\n\n" + _table(heads, result["alone"], ALONE)


def _table(heads: Sequence[str], columns: Sequence[dict[str, Any]], rows: Sequence[tuple[str, str, str]]) -> str:
    lines = [["CPU time of one core", *heads], ["---", *("---:" for _ in heads)]]
    lines += [[name, *(form.format(column[key]) for column in columns)] for name, key, form in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("| " + " | ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)) + " |" for line in lines)
