"""Whole studies in one process: what is released, and what it cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support.federation import make_bed, make_request, schema_of


def _data(names: str, width: int, rows: int, seed: int = 0):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    return {name: (rng.uniform(-1, 1, (rows, width)), rng.integers(0, 2, rows)) for name in names}


def test_statistics_without_noise_equal_numpy(tmp_path: Path) -> None:
    data = _data("abcd", 3, 50)
    bed = make_bed(tmp_path, data)
    local = bed.local
    key = local.submit(bed.compile(make_request(schema_of(3), epsilon=None)), bed.analyst)
    release = local.prepare(key).sum("statistics")
    pooled = np.concatenate([features for features, _ in data.values()])
    assert release.cohort == ("a", "b", "c", "d")
    np.testing.assert_allclose(release.values["present"], [200] * 3, atol=1e-6)
    np.testing.assert_allclose(release.values["t1"], pooled.sum(0), atol=1e-3)
