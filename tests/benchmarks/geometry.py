"""Class geometry of GGEUR: 100 classes at 512 dimensions, from summed moments to generated samples. CPU time of one core."""

from __future__ import annotations

from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.timing import timed

CLASSES = 100
DIMENSION = 512
RECORDS = 64
COPIES = 20
CENTRES = 5


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Moments to covariances, geometries and samples, each beside numpy's own way. Quick: 10 classes at 128 dimensions.

    Raises:
        AssertionError: a geometry does not give its covariance back, or samples spread otherwise than numpy's.
    """
    from veilsum_aggregation import geometry as ggeur

    classes, d = (10, 128) if quick else (CLASSES, DIMENSION)
    random = np.random.default_rng(0)
    spread = random.standard_normal((d, d)) / np.sqrt(np.arange(1, d + 1))
    x = [random.standard_normal((RECORDS, d)) @ spread.T + random.standard_normal(d) for _ in range(classes)]
    counts = np.full(classes, float(RECORDS))
    sums = np.array([one.sum(axis=0) for one in x])
    seconds = np.array([one.T @ one for one in x])
    with threadpool_limits(1):
        moments_s, (means, covariances) = timed(lambda: ggeur.class_covariances(counts, sums, seconds), 2)
        geometry_s, geometry = timed(lambda: ggeur.class_geometry(counts, means, covariances), 1)
        eigh_s, _ = timed(lambda: [np.linalg.eigh(one) for one in covariances], 1)
        labels = np.repeat(np.arange(classes), CENTRES)
        centres = means[labels]
        generate_s, (samples, _) = timed(
            lambda: ggeur.generate(geometry, centres, labels, COPIES, "std", np.random.default_rng(1)), 2
        )
        few = min(10, classes)
        numpy_s, theirs = timed(
            lambda: [
                np.random.default_rng(1).multivariate_normal(m, c, CENTRES * COPIES, method="eigh")
                for m, c in zip(means[:few], covariances[:few], strict=True)
            ],
            1,
        )
    again = np.einsum("ij,j,kj->ik", geometry.vectors[0], geometry.values[0], geometry.vectors[0], optimize=True)
    np.testing.assert_allclose(again, covariances[0], atol=1e-10 * float(np.abs(covariances[0]).max()))
    ours = samples[: few * CENTRES * COPIES] - np.repeat(means[:few], CENTRES * COPIES, axis=0)
    np.testing.assert_allclose(
        ours.std(), (np.concatenate(theirs) - np.repeat(means[:few], CENTRES * COPIES, axis=0)).std(), rtol=0.1
    )
    number = len(samples)
    return {
        "classes": classes,
        "d": d,
        "moments_s": moments_s,
        "geometry_s": geometry_s,
        "eigh_s": eigh_s,
        "geometry_over_eigh": geometry_s / eigh_s,
        "samples": number,
        "generate_s": generate_s,
        "sample_us": 1e6 * generate_s / number,
        "numpy_s": numpy_s * classes / few,
        "ratio": numpy_s * classes / few / (geometry_s + generate_s),
    }


ROWS = (
    ("covariances from sums, s", "moments_s", "{:.3f}"),
    ("geometries, s", "geometry_s", "{:.3f}"),
    ("  numpy's eigh of each alone, s", "eigh_s", "{:.3f}"),
    ("  veilsum / eigh", "geometry_over_eigh", "{:.2f}"),
    ("samples", "samples", "{:,}"),
    ("generate them, s", "generate_s", "{:.3f}"),
    ("  microseconds a sample", "sample_us", "{:.0f}"),
    ("numpy multivariate_normal, s", "numpy_s", "{:.3f}"),
    ("  numpy / veilsum geometry and samples", "ratio", "{:.1f}"),
)


def table(result: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [["CPU time of one core", f"{result['classes']} classes, d = {result['d']}"], ["---", "---:"]]
    lines += [[name, form.format(result[key])] for name, key, form in ROWS]
    widths = [max(len(line[column]) for line in lines) for column in range(2)]
    return "\n".join("| " + " | ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)) + " |" for line in lines)
