"""The evaluation of FedAlign: what sites are dealt, and how its table pairs results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluations import fedalign

OPTIONS = ["--records", "60", "--sites", "4", "--tests", "40"]


def images(count: int, seed: int) -> tuple[Any, Any]:
    """Grey squares whose brightness in one corner tells the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    found = np.full((count, 28, 28), 128, dtype=np.uint8)
    found[:, :14, :14] = (20 * labels + 30)[:, None, None]
    return found, labels.astype(np.uint8)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (x, y), (tx, ty) = images(400, 0), images(80, 1)
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist.npz", X_train=x, y_train=y, X_test=tx, y_test=ty)
    return tmp_path


@pytest.mark.parametrize("skew", fedalign.SKEWS)
def test_beta_is_a_variance(data: Path, skew: str) -> None:
    chosen = fedalign.parsed(["--data", str(data), "--out", "x", "--skew", skew, *OPTIONS])
    with np.load(data / "mnist" / "mnist.npz") as arrays:
        sites = fedalign.deal(dict(arrays), chosen, seed=3, beta=0.01, pool=1)
    assert sum(map(len, sites.records.values())) == 240
    grey = [(own.features.reshape(-1, 28, 28)[:, 14:] + 1.0) / 2.0 for own in sites.skewed.values()]
    clean = (sites.clean.features.reshape(-1, 28, 28)[:, 14:] + 1.0) / 2.0
    np.testing.assert_allclose(clean, 128 / 255)
    if skew == "graded":
        np.testing.assert_allclose([own.var() for own in grey], [0.0025, 0.005, 0.0075, 0.01], rtol=0.05)
    if skew == "noise":
        np.testing.assert_allclose([own.var() for own in grey], [0.01] * 4, rtol=0.05)
    if skew == "gain":
        assert np.ptp([own.mean() for own in grey]) > 0.1
    else:
        np.testing.assert_allclose([own.mean() for own in grey], [128 / 255] * 4, atol=0.01)


@pytest.mark.system
def test_results_are_kept_and_not_computed_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["--data", str(data), "--out", str(tmp_path / "out"), "--parts", "private", "--betas", "0.01", "--seeds", "1"]
    asked += [*OPTIONS, "--steps", "5", "--epsilons", "20", "inf"]
    fedalign.main(asked)
    file = tmp_path / "out" / "rows.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 2 * len(fedalign.PRIVATE)
    for row in rows:
        aligned, private = row["arm"] not in ("fedsgd", "fedavg"), row["epsilon"] == "20.0"
        assert (row["columns"] is not None) == aligned
        assert (row["epsilons"] or {"total": None})["total"] == (
            pytest.approx(20.0, rel=1e-3) if aligned and private else None
        )
        assert row["sites_told"] == (4 if aligned and not private else row["sites_told"])
    monkeypatch.setattr(fedalign, "run", lambda *_: pytest.fail("computed again"))
    fedalign.main(asked)
    assert len(file.read_text().splitlines()) == len(rows)


def test_gains_are_paired_by_seed() -> None:
    def row(arm: str, seed: int, clean: float, part: str = "main") -> dict[str, Any]:
        common = {"part": part, "model": "mlp", "skew": "noise", "beta": 0.05, "epsilon": "inf"}
        return {**common, "arm": arm, "seed": seed, "clean": clean, "local": clean - 1.0}

    rows = [row("FedAvg, S_k", 0, 90.0), row("FedAvg, S_k", 1, 94.0), row("FedAvg, all records", 0, 96.0)]
    rows += [row("FedAlign, mean and variance", 0, 91.0), row("FedAlign, mean and variance", 1, 95.2)]
    rows += [row("FedAlign, moments of all, training on all", 0, 95.0), row("FedAlign, mean only", 1, 93.0, "ablation")]
    lines = {cells[5]: cells for cells in (line.strip("| ").split(" | ") for line in fedalign.table(rows).splitlines()[2:])}
    assert lines["FedAlign, mean and variance"][6] == f"93.10 ± {4.2 / 2:.2f}"
    assert lines["FedAlign, mean and variance"][8] == f"+1.10 ± {0.2 / 2:.2f}"
    assert lines["FedAlign, moments of all, training on all"][8] == "-1.00"
    assert lines["FedAlign, mean only"][8] == "-1.00"
    assert math.isclose(float(lines["FedAlign, mean only"][7]), 92.0)
