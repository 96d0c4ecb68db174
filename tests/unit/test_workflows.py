"""Workflows and the page on releases call targets of `make` that exist, and every file that states the version agrees."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from support.pages import ROOT
from veilsum_proto import SOFTWARE

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][\w-]*):(?!=)", MAKEFILE, re.MULTILINE))


def called(text: str) -> set[str]:
    """Targets of the calls of ``make`` in a script."""
    calls = re.findall(r"\bmake((?: +(?:-C +\S+|[\w-]+(?:=[^\s;&|]*)?))+)", text)
    words = [word for call in calls for word in re.sub(r"-C +\S+", "", call).split()]
    return {word for word in words if not word.startswith("-") and "=" not in word}


def test_calls_of_make_are_understood() -> None:
    text = "make lint proto-check\nTZ=X make -C ../again wheels && make --silent demo ARGS=--json; make audit # known"
    assert called(text) == {"lint", "proto-check", "wheels", "demo", "audit"}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_exist(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    for name, job in jobs.items():
        scripts = "\n".join(step["run"] for step in job["steps"] if "run" in step)
        assert called(scripts), f"{name} calls no target"
        assert called(scripts) <= TARGETS, name


def test_what_is_checked_by_hand_is_checked_by_a_workflow() -> None:
    scripts = "\n".join(workflow.read_text(encoding="utf-8") for workflow in WORKFLOWS)
    assert {"lint", "proto-check", "test", "test-system", "demo", "docs", "wheels", "audit"} <= called(scripts)
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    (matrix,) = re.findall(r"python: (\[.*\])", scripts)
    assert yaml.safe_load(matrix)[0] == oldest


def test_the_page_on_releases_calls_targets_that_exist() -> None:
    commands = re.findall(r"^    (.*)$", (ROOT / "RELEASE.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert called("\n".join(line.partition(" #")[0] for line in commands)) <= TARGETS
    assert called("\n".join(line.partition(" #")[0] for line in commands)) >= {"test", "wheels", "audit", "docs"}


def test_every_file_that_states_the_version_states_this_one() -> None:
    """Those that RELEASE.md replaces it in: images, compose files and the chart beside the two that name the software."""
    version = SOFTWARE.removeprefix("veilsum ")
    files = ["pyproject.toml", "proto/veilsum_proto/__init__.py", "deploy/compose.yaml", "deploy/compose/hospital.yaml"]
    files += ["deploy/helm/veilsum/Chart.yaml", "deploy/images/participant.Dockerfile", "deploy/images/coordinator.Dockerfile"]
    assert [file for file in files if version not in (ROOT / file).read_text(encoding="utf-8")] == []
