"""The Dockerfiles: linted, alike where they should be, sparing in what they take in; their build steps run natively."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from local.services import read_compose

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "deploy" / "images"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROLES = ("coordinator", "participant")
PROGRAMS = Path(sys.executable).parent
"""Of the environment that runs the tests; linters are among its development tools."""


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile."""

    word: str
    text: str


def stages(role: str) -> list[list[Instruction]]:
    """The stages of a Dockerfile, each from its FROM."""
    text = (IMAGES / f"{role}.Dockerfile").read_text()
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    found: list[list[Instruction]] = []
    for line in filter(None, joined.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append(Instruction(word, rest))
    return found


def texts(stage: list[Instruction], word: str) -> list[str]:
    return [item.text for item in stage if item.word == word]


@pytest.mark.parametrize("role", ROLES)
def test_hadolint_finds_nothing(role: str) -> None:
    command = [PROGRAMS / "hadolint", "--config", IMAGES / "hadolint.yaml", IMAGES / f"{role}.Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text((IMAGES / "participant.Dockerfile").read_text().replace("USER 10001:10001", "USER root"))
    command = [PROGRAMS / "hadolint", "--config", IMAGES / "hadolint.yaml", path]
    assert "DL3002" in subprocess.run(command, capture_output=True, text=True, timeout=240).stdout


@pytest.mark.parametrize("role", ROLES)
def test_what_runs_is_unprivileged_and_needs_no_shell(role: str) -> None:
    build, final = stages(role)
    assert texts(final, "USER") == ["10001:10001"]
    assert not texts(final, "RUN")
    assert texts(final, "VOLUME") == ["/var/lib/veilsum"]
    entry, command = json.loads(*texts(final, "ENTRYPOINT")), json.loads(*texts(final, "CMD"))
    (check,) = texts(final, "HEALTHCHECK")
    healthy = json.loads(check.partition("CMD ")[2])
    config = f"/etc/veilsum/{role}.toml"
    assert [*entry, *command] == ["veilsum", role, "start", "--config", config]
    assert healthy == ["veilsum", role, "health", "--config", config]
    services = read_compose(ROOT / "deploy" / "compose.yaml", {})["services"]
    service = services["north" if role == "participant" else role]
    assert service["command"] == command
    assert service["healthcheck"]["test"] == ["CMD", *healthy]
    assert texts(build, "ENV")
    assert f"VERSION={PROJECT['version']}" in texts(final, "ARG")


def test_the_images_are_built_alike() -> None:
    """But that the platform's serves logins as well."""
    one, other = ([texts(stage, "RUN") for stage in stages(role)] for role in ROLES)
    assert sum("[login]" in step for stage in one for step in stage) == 1
    one = [[step.replace('"$(echo /wheels/*.whl)[login]"', "/wheels/*.whl") for step in stage] for stage in one]
    assert [[step.replace("./participant", ".") for step in stage] for stage in other] == one


def test_the_bill_is_written_by_the_program_that_is_tested_here() -> None:
    for role in ROLES:
        assert any(f"cyclonedx-bom=={version('cyclonedx-bom')}" in step for step in texts(stages(role)[0], "RUN")), role


@pytest.mark.parametrize("role", ROLES)
def test_the_builder_is_handed_what_is_copied_and_nothing_else(role: str) -> None:
    copied = {name for text in texts(stages(role)[0], "COPY") for name in text.split()[:-1]}
    rules = [
        line for line in (IMAGES / f"{role}.Dockerfile.dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    assert rules[0] == "*"
    assert {line[1:] for line in rules if line.startswith("!")} == copied
    assert [line for line in rules[1:] if not line.startswith("!")] == ["**/__pycache__"]
    assert all((ROOT / name).exists() for name in copied)
    if role == "participant":
        assert not any(fnmatch.fnmatch(name, pattern) for name in copied for pattern in ("*coordinator*", "*deploy*"))


def native(role: str, scratch: Path) -> Iterator[str]:
    """The build stage's RUN steps with the image's directories in ``scratch``; the bill's own program is ours."""
    places = {"/wheels": scratch / "wheels", "/opt/veilsum": scratch / "opt", "/state": scratch / "state"}
    for step in texts(stages(role)[0], "RUN"):
        if " /opt/sbom" in step or "cyclonedx-bom==" in step:
            continue  # an environment for the program that writes the bill: it is a development tool of ours
        line = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", step.replace("/opt/sbom/bin/", f"{PROGRAMS}/"))
        for place, here in places.items():
            line = re.sub(rf"(?<![\w.]){place}(?![\w-])", str(here), line)
        yield line


@pytest.mark.system
def test_the_build_steps_run_here_and_yield_an_environment_with_a_bill_of_materials(tmp_path: Path) -> None:
    # Dependencies are left out (PIP_NO_DEPS): the same steps with all of them take minutes.
    without = {"PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    steps = list(native("participant", tmp_path))
    assert len(steps) == len(texts(stages("participant")[0], "RUN")) - 2
    for step in steps:
        environment = {**os.environ, **(without if " install " in step else {})}
        done = subprocess.run(["sh", "-c", step], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, f"{step}\n{done.stderr}"
    bill = json.loads((tmp_path / "opt" / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "veilsum-participant"
    found = {item["name"]: item for item in (*bill.get("components", ()), bill["metadata"]["component"])}
    assert set(found) == {"veilsum-participant"}
    assert (tmp_path / "opt" / "bin" / "veilsum").stat().st_mode & 0o111
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    installed = {path.name for path in (tmp_path / "opt").glob("lib/python*/site-packages/*")}
    packages = {"veilsum_proto", "veilsum_node", "veilsum_privacy", "veilsum_aggregation", "veilsum_participant"}
    assert installed == packages | {f"veilsum_participant-{PROJECT['version']}.dist-info"}


def test_the_bill_lists_every_package_of_an_environment(tmp_path: Path) -> None:
    (step,) = (text for text in texts(stages("coordinator")[0], "RUN") if "cyclonedx-py" in text)
    words = shlex.split(step.replace("/opt/sbom/bin/", f"{PROGRAMS}/"))
    words[-1], words[words.index("--output-file") + 1] = sys.executable, str(tmp_path / "bill.json")
    words[words.index("--pyproject") + 1] = str(ROOT / "pyproject.toml")
    # The step as it stands validates the bill against CycloneDX's schema, which takes ten seconds for this many packages.
    done = subprocess.run([*words, "--no-validate"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    bill = json.loads((tmp_path / "bill.json").read_text())
    versions = {item["name"].lower(): item.get("version") for item in bill["components"]}
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format=json"], capture_output=True, text=True, timeout=240
    )
    there = {item["name"].lower(): item["version"] for item in json.loads(listed.stdout)}
    del there["veilsum"]  # what the bill is of
    assert {name: versions.get(name) for name in there} == there
    assert all("purl" in item for item in bill["components"] if item["name"].lower() == "numpy")
