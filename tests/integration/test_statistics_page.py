"""docs/statistics.md, followed to the letter on its public data: files, commands, and tables that say what the page says."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from veilsum_coordinator.parts.query_requests import QueryRequest
from veilsum_deploy.cli import main
from veilsum_privacy.results.result import load_result
from veilsum_privacy.tasks.queries.encodings import ENCODINGS

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


def follow(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the page's files and run its commands in a directory."""
    from lifelines.datasets import load_gbsg2

    text = PAGE.read_text()
    load_gbsg2().to_csv(directory / "gbsg2.csv", index=False)
    for name, body in re.findall(r"^```toml file=(\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        (directory / name).write_text(body)
    monkeypatch.chdir(directory)
    (commands,) = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for line in commands.splitlines():
        program, *words = line.split()
        assert program == "veilsum"
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code in (0, None), line


def test_the_page_leads_to_tables_and_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(tmp_path, monkeypatch)
    summary = load_result(tmp_path / "trial" / "run-1").summary
    ages = {row["horTh"]: row["mean"] for row in summary["table-one.numbers"]}
    assert all(figure["low"] < truth < figure["high"] for figure, truth in ((ages["no"], 51.0), (ages["yes"], 56.5)))
    curve = {(row["horTh"], row["time"]): row["value"] for row in summary["relapse-free"] if row["figure"] == "survival"}
    for group, time, truth in (("no", 730.0, 0.72), ("yes", 730.0, 0.83)):  # Kaplan-Meier of lifelines
        assert curve[group, time]["low"] < truth < curve[group, time]["high"]
    assert summary["relapse-free tests"][0]["test"] == "log-rank"
    sizes = [row["value"] for row in summary["tumour-size"]]
    assert all(figure["low"] <= truth <= figure["high"] for figure, truth in zip(sizes, (20, 25, 35), strict=True))
    with (tmp_path / "paper" / "relapse-free.csv").open() as file:
        assert {"horTh", "figure", "time", "value", "value_low", "at_risk"} <= set(csv.DictReader(file).fieldnames or ())
    assert b"<svg" in (tmp_path / "paper" / "relapse-free.svg").read_bytes()
    assert (tmp_path / "paper" / "result.html").read_text().count("<table>") == len(summary) - 1
    assert r"\toprule" in (tmp_path / "paper" / "tumour-size.tex").read_text()


def test_the_page_names_every_kind_and_key() -> None:
    text = PAGE.read_text()
    kinds = set(re.findall(r"^\| `([a-z-]+)` \| .* \| .* \| .*\|$", text, re.MULTILINE))
    assert kinds == {*ENCODINGS, "table-one"}
    keys = {
        name
        for line in re.findall(r"^\| (`[a-z]+`(?:, `[a-z]+`)?) \| [^|]*\|$", text, re.MULTILINE)
        for name in re.findall("[a-z]+", line)
    }
    assert keys == set(QueryRequest.model_fields)
