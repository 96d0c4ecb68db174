"""Each party's own distribution: its wheel, and an environment with that wheel, what it declares, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from support.pages import ROOT

PARTIES = ("participant", "analyst", "coordinator")
"""Folders of the distributions."""

_OWN = re.compile(r"_?veilsum|__editable__", re.IGNORECASE)
_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def settings(path: Path) -> dict[str, Any]:
    """The table ``project`` of a ``pyproject.toml``."""
    return tomllib.loads(path.read_text())["project"]  # type: ignore[no-any-return]


def canonical(name: str) -> str:
    """A distribution's name in its one spelling."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(requirements: list[str]) -> set[str]:
    """Distributions that a list of requirements brings along, by what is installed here."""
    found: set[str] = set()
    waiting = [(Requirement(text), frozenset[str]()) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement, extras = waiting.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            continue
        key = (canonical(requirement.name), frozenset(requirement.extras))
        if key not in seen:
            seen.add(key)
            found.add(key[0])
            waiting += [(Requirement(text), key[1]) for text in distribution(key[0]).requires or ()]
    return found


@dataclass(frozen=True)
class Installed:
    """An environment that holds a party's wheel."""

    environment: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.environment / "bin" / "python"

    @property
    def veilsum(self) -> Path:
        """Its command."""
        return self.environment / "bin" / "veilsum"

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in the environment's folder."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        words = [str(word) for word in command]
        return subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=self.environment, env=clean)


def build(party: str, directory: Path) -> Path:
    """The wheel of a party, written into a directory."""
    subprocess.run([*_PIP, "wheel", "--no-deps", "--wheel-dir", directory, ROOT / party], check=True, timeout=300)
    (made,) = directory.glob(f"veilsum_{party}-*.whl")
    return made


def install(party: str, wheel: Path, directory: Path) -> Installed:
    """A new environment with the wheel, beside links to the installed files of all that the party declares."""
    environment, dependencies = directory / "environment", directory / "dependencies"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=240)
    dependencies.mkdir()
    for name in closure(settings(ROOT / party / "pyproject.toml")["dependencies"]):
        found = distribution(name)
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            assert not _OWN.match(top), (name, top)
            if not (dependencies / top).exists():
                (dependencies / top).symlink_to(found.locate_file(top))  # type: ignore[arg-type]
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    made = Installed(environment)
    command = [*_PIP, "--python", made.python, "install", "--no-index", "--no-deps", wheel]
    subprocess.run(command, check=True, timeout=240)
    return made
