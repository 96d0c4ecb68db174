"""An analyst's own studies on real processes over mutual TLS: the packaged kind of data, and the four heart hospitals."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
HEART = ROOT / ".." / "shared" / "data" / "heart_disease"
EVALUATIONS = ROOT / "tests" / "evaluations" / "heart"
SCHEMA = ROOT / "deploy" / "veilsum_deploy" / "demo_data" / "heart_disease.toml"


def demo(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "veilsum_deploy.cli", "demo", "--directory", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def write_sites(directory: Path) -> Path:
    """Three sites with shifted features and two classes."""
    rng = np.random.default_rng(5)
    directory.mkdir()
    for site in range(3):
        y = rng.integers(0, 2, 150)
        x = np.clip(rng.normal(0, 0.2, (150, 3)) + 0.4 * y[:, None] - 0.2 + 0.2 * site, -1, 1)
        rows = [",".join([*(f"{value:.12f}" for value in row), str(label)]) for row, label in zip(x, y, strict=True)]
        (directory / f"site{site}.csv").write_text("\n".join(["x0,x1,x2,y", *rows]) + "\n")
    columns = "".join(f'[[columns]]\nkind = "number"\nname = "x{index}"\nlow = -1\nhigh = 1\n\n' for index in range(3))
    classes = '[label]\ncolumn = "y"\nclasses = [{ name = "a", values = ["0"] }, { name = "b", values = ["1"] }]\n\n'
    (directory / "schema.toml").write_text(f"max_records = 200\n\n{classes}{columns}")
    return directory


def write_study(path: Path, method: str, **tables: dict[str, Any]) -> Path:
    lines = [f'name = "{path.stem}"', f'method = "{method}"', 'dataset = "anything"']
    for table, values in tables.items():
        lines += [f"[{table.replace('__', '.')}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def assert_nothing_clear(directory: Path) -> None:
    """No line of a site's records, and no cell of it that is long enough to tell, lies at the coordinator."""
    cells = set()
    for file in (directory / "participants").glob("*/data/*"):
        text = file.read_bytes() if file.suffix != ".parquet" else b""
        cells |= {cell for line in text.splitlines()[1:] for cell in line.split(b",") if len(cell) >= 10}
    held = b"".join(path.read_bytes() for path in (directory / "coordinator").rglob("*") if path.is_file())
    assert len(held) > 10_000
    assert not [cell for cell in cells if cell in held]


@pytest.mark.system  # test_cli_processes.py runs a study of real processes by default
def test_own_studies_on_real_processes(tmp_path: Path) -> None:
    data = write_sites(tmp_path / "sites")
    studies = [
        write_study(tmp_path / "joint.toml", "fedcgs", privacy={"epsilon": 4.0}),
        write_study(
            tmp_path / "one.toml",
            "fedcgs",
            parameters__alignment={"reference": "slopes", "mode": "one-shot"},
            privacy={"epsilon": 4.0},
        ),
        write_study(
            tmp_path / "own.toml",
            "fedcgs",
            parameters__alignment={"reference": "slopes", "mode": "iterated"},
            privacy={"epsilon": 4.0},
        ),
        write_study(tmp_path / "heads.toml", "o-fedavg", privacy={"epsilon": 4.0}),
    ]
    arguments = [part for study in studies for part in ("--study", str(study))]
    done = demo(tmp_path / "demo", "--data", str(data), *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    by_name = {row["study"]: row for row in found["studies"]}
    assert {name: row.get("fault") for name, row in by_name.items()} == dict.fromkeys(by_name)
    assert [by_name[name]["disclosure"] for name in ("joint", "one", "own")] == [["joint"], ["per-site"], ["joint"]]
    assert by_name["own"]["rounds"] > 3
    for row in by_name.values():
        assert row["epsilon"] == pytest.approx(4.0, rel=0.02)
        assert 0.5 < row["accuracy"] <= 1.0
        assert set(row["by_site"]) == {"site0", "site1", "site2"}
    for ledger in found["epsilon"].values():
        assert 4.0 < ledger["spent"] < 16.0
        assert ledger["releases"] == sum(row["rounds"] for row in by_name.values())
    rounds = [release for release in found["releases"] if release["study"] == "own"]
    assert all(all(std == 0 for std in release["noise_std"].values()) for release in rounds[1:])
    assert all(all(std > 0 for std in release["noise_std"].values()) for release in rounds[:1])
    assert_nothing_clear(tmp_path / "demo")
    shown = demo(tmp_path / "other", "--study", str(studies[0]))
    assert shown.returncode == 2
    assert "--data" in shown.stderr
    without = write_study(tmp_path / "bare.toml", "fedcgs", privacy={"noise": "none"})
    refused = demo(tmp_path / "other", "--data", str(data), "--study", str(without))
    assert refused.returncode != 0
    assert "veilsum simulate" in refused.stderr


@pytest.mark.system
@pytest.mark.skipif(not HEART.is_dir(), reason="the four hospitals' files are not in ../shared/data/heart_disease")
def test_heart_disease_over_real_processes(tmp_path: Path) -> None:
    """Every one-shot method on four real hospitals: results, budgets by their own ledgers, and nothing in the clear."""
    studies = [part for path in sorted(EVALUATIONS.glob("*.toml")) for part in ("--study", str(path))]
    done = demo(tmp_path / "demo", "--data", str(HEART), "--schema", str(SCHEMA), *studies, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["studies"]) == len(studies) // 2
    assert {row["method"] for row in found["studies"]} >= {"slot-align", "fedcgs", "o-fedavg", "fedpft", "ggeur"}
    assert not [row for row in found["studies"] if "fault" in row]
    scores = {row["study"]: row["accuracy"] for row in found["studies"] if row["accuracy"] is not None}
    assert len(scores) >= 6
    assert min(scores.values()) > 0.55  # noise makes runs differ; guessing the larger class gives 0.55
    for ledger in found["epsilon"].values():
        assert 3.0 < ledger["spent"] < math.inf
        assert ledger["entries"] > 3 * ledger["releases"]
    assert_nothing_clear(tmp_path / "demo")


@pytest.mark.system
def test_a_site_that_is_killed_in_training_comes_back_into_it(tmp_path: Path) -> None:
    """Training goes on without it and ends with it; what it was not part of costs it nothing."""
    data = write_sites(tmp_path / "sites")
    study = write_study(tmp_path / "train.toml", "fedsgd", parameters={"steps": 30}, privacy={"epsilon": 4.0, "min_cohort": 2})
    done = demo(tmp_path / "demo", "--data", str(data), "--study", str(study), "--interrupt", "site2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (row,) = found["studies"]
    assert "fault" not in row
    away = row["interruption"]
    assert away["hospital"] == "site2"
    assert away["of"] == 31 == row["rounds"]
    assert 9 <= away["killed_after"] <= away["back_after"]
    assert away["part_of"] < away["of"]
    spent = {name: (item["releases"], item["spent"]) for name, item in found["epsilon"].items()}
    assert spent["site0"] == spent["site1"]
    assert spent["site0"][0] == 31
    # One charge more is possible: of a round that it consented to and was killed before its answer arrived.
    assert away["part_of"] <= spent["site2"][0] <= away["part_of"] + 1
    assert spent["site2"][1] < spent["site0"][1]
    refused = demo(tmp_path / "other", "--data", str(data), "--study", str(study), "--interrupt", "site9")
    assert refused.returncode == 2
    assert "site9" in refused.stderr
