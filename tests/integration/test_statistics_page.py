"""docs/statistics.md, followed to the letter on its public data: files, commands, and tables that say what the page says."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.randomness import RARE_DEVIATIONS
from veilsum_coordinator.parts.query_requests import QueryRequest
from veilsum_deploy.cli import main
from veilsum_privacy.results.result import load_result
from veilsum_privacy.tasks.queries.kinds import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


def follow(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the page's files and run its commands in a directory."""
    from lifelines.datasets import load_gbsg2

    text = PAGE.read_text()
    load_gbsg2().to_csv(directory / "gbsg2.csv", index=False)
    for name, body in re.findall(r"^```toml file=(\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        (directory / name).write_text(body)
    monkeypatch.chdir(directory)
    for line in "".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).splitlines():
        program, *words = line.split()
        assert program == "veilsum"
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code in (0, None), line


def near(figure: dict[str, Any], truth: float, deviations: float) -> bool:
    """Whether the truth lies within so many standard errors of a figure; where there is none, noise may have taken it."""
    if "not_estimable" in figure or figure["low"] is None or figure["high"] is None:
        return deviations >= RARE_DEVIATIONS
    middle, error = (figure["low"] + figure["high"]) / 2.0, (figure["high"] - figure["low"]) / 2.0 / 1.96
    return bool(abs(middle - truth) <= deviations * error)


@pytest.mark.system
@pytest.mark.usefixtures("known_randomness", "few_rehearsals")
def test_the_page_leads_to_tables_and_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(tmp_path, monkeypatch)
    summary = load_result(tmp_path / "trial" / "run-1").summary
    check(summary, 3.0)
    with (tmp_path / "paper" / "relapse-free.csv").open() as file:
        assert {"horTh", "figure", "time", "value", "value_low", "at_risk"} <= set(csv.DictReader(file).fieldnames or ())
    assert b"<svg" in (tmp_path / "paper" / "relapse-free.svg").read_bytes()
    page = (tmp_path / "paper" / "result.html").read_text()
    assert "Table 1. Characteristics by horTh" in page
    assert {"table-one.tex", "relapse-free.tex"} <= {file.name for file in (tmp_path / "paper").iterdir()}
    assert not (tmp_path / "paper" / "table-one.age.tex").exists()
    assert r"\toprule" in (tmp_path / "paper" / "tumour-size.tex").read_text()
    hazards = load_result(tmp_path / "hazards" / "run-1").summary["coefficients"]
    assert [(row["term"], row["per"]) for row in hazards] == [("horTh yes", ""), ("age", "10 years"), ("tsize", "10 mm")]
    assert all(
        near(row["log"], truth, 3.0) for row, truth in zip(hazards, (-0.378, 0.010, 0.153), strict=True)
    )  # of lifelines
    assert b"<svg" in (tmp_path / "paper-hazards" / "coefficients.svg").read_bytes()


def check(summary: dict[str, Any], deviations: float) -> None:
    """Hold a result against the data's own table one and Kaplan-Meier curve."""
    ages = {row["horTh"]: row["mean"] for row in summary["table-one.numbers"]}
    assert near(ages["no"], 51.0, deviations)
    assert near(ages["yes"], 56.5, deviations)
    curve = {(row["horTh"], row["time"]): row["value"] for row in summary["relapse-free"] if row["figure"] == "survival"}
    assert ("no", 365.0) in curve
    for place, truth in {("no", 365.0): 0.89, ("no", 730.0): 0.72, ("yes", 365.0): 0.95, ("yes", 730.0): 0.83}.items():
        assert place not in curve or near(
            curve[place], truth, deviations
        )  # Kaplan-Meier of lifelines; noise may end a curve early
    assert summary["relapse-free tests"][0]["test"] == "log-rank"
    assert all(near(row["value"], truth, deviations) for row, truth in zip(summary["tumour-size"], (20, 25, 35), strict=True))


@pytest.mark.system  # test_cli_processes.py runs a study of real processes by default
def test_the_study_on_three_real_hospitals(tmp_path: Path) -> None:
    """The page's study at epsilon 1: one release of real processes over mutual TLS, and a result that proves itself."""
    from lifelines.datasets import load_gbsg2

    sites = tmp_path / "sites"
    sites.mkdir()
    page = PAGE.read_text().replace("max_records = 200", "max_records = 300")
    for name, body in re.findall(r"^```toml file=(\S+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        (sites / name if name == "schema.toml" else tmp_path / name).write_text(body)
    rows = load_gbsg2()
    for place in range(3):
        rows.iloc[place::3].to_csv(sites / f"hospital-{place}.csv", index=False)
    study = (tmp_path / "study.toml").read_text().replace('schema = "schema.toml"\n', "")
    (tmp_path / "study.toml").write_text(re.sub(r"epsilon = .*", "epsilon = 1", study))
    command = [sys.executable, "-m", "veilsum_deploy.cli"]
    demo = [*command, "demo", "--directory", "demo", "--data", "sites", "--study", "study.toml", "--json"]
    done = subprocess.run(demo, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["studies"]
    assert (row.get("fault"), row["rounds"], row["epsilon"]) == (None, 1, pytest.approx(1.0, rel=1e-3))
    (result,) = (tmp_path / "demo" / "results").iterdir()
    check(load_result(result).summary, RARE_DEVIATIONS)
    authority = next((tmp_path / "demo").rglob("authority.pem"))
    verify = [*command, "study", "verify", str(result), "--authority", str(authority), "--json"]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert json.loads(done.stdout)["valid"] is True, done.stderr


def test_the_page_names_every_kind_and_key() -> None:
    text = PAGE.read_text()
    kinds = set(re.findall(r"^\| `([a-z-]+)` \| .* \| .* \| .*\|$", text, re.MULTILINE))
    assert kinds == {*KINDS, "table-one"}
    keys = {
        name
        for line in re.findall(r"^\| (`[a-z]+`(?:, `[a-z]+`)?) \| [^|]*\|$", text, re.MULTILINE)
        for name in re.findall("[a-z]+", line)
    }
    assert keys == set(QueryRequest.model_fields)
