"""The participant's own distribution: built, installed alone beside what it declares and nothing else, and put to work."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from support.federation import make_data, make_request, schema_of
from support.pages import links
from support.processes import Process, Processes
from veilsum_coordinator.protocol.settings import Waits

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "veilsum_proto": ROOT / "proto",
    "veilsum_node": ROOT / "node",
    "veilsum_privacy": ROOT / "privacy",
    "veilsum_aggregation": ROOT / "aggregation",
    "veilsum_participant": ROOT / "participant",
}
OTHERS = ("veilsum_coordinator", "veilsum", "veilsum_deploy")
OWN = re.compile(r"_?veilsum|__editable__", re.IGNORECASE)

EVERY_MODULE = """
import importlib, importlib.util, json, pkgutil, sys
names = []
for package in sys.argv[1].split(","):
    found = importlib.import_module(package)
    names += [package, *(item.name for item in pkgutil.walk_packages(found.__path__, package + "."))]
names = [name for name in names if not name.endswith(("__main__", ".env"))]
names = [name for name in names if not name.startswith(("veilsum_node.web", "veilsum_participant.console"))]  # an extra's
for name in names:
    importlib.import_module(name)
places = {sys.modules[package].__file__ for package in sys.argv[1].split(",")}
reached = [other for other in sys.argv[2].split(",") if other in sys.modules or importlib.util.find_spec(other)]
print(json.dumps({"names": names, "reached": reached, "places": sorted(places)}))
"""


def settings(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())["project"]  # type: ignore[no-any-return]


def canonical(name: str) -> str:
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


def link_dependencies(target: Path) -> None:
    """Links to the installed files of all that the participant's distribution declares, and of nothing else."""
    target.mkdir()
    for name in closure(settings(ROOT / "participant" / "pyproject.toml")["dependencies"]):
        found = distribution(name)
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            assert not OWN.match(top), (name, top)
            if not (target / top).exists():
                (target / top).symlink_to(found.locate_file(top))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Installed:
    """An environment that holds the wheel."""

    environment: Path

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def veilsum(self) -> Path:
        return self.environment / "bin" / "veilsum"

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        words = [str(word) for word in command]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=self.environment, env=clean)


PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheels = tmp_path_factory.mktemp("wheels")
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT / "participant"], check=True, timeout=120)
    (made,) = wheels.iterdir()
    return made


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installed:
    directory = tmp_path_factory.mktemp("distribution")
    environment = directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=60)
    link_dependencies(directory / "dependencies")
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{directory / 'dependencies'}\n")
    made = Installed(environment)
    install = [*PIP, "--python", made.python, "install", "--no-index", "--no-deps", wheel]
    subprocess.run(install, check=True, timeout=60)
    return made


def test_the_wheel_holds_the_participants_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name and ".data/" not in name]
    there = {
        str(path.relative_to(root))
        for package, root in PACKAGES.items()
        for path in (root / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert set(names) == there


def test_its_messages_name_the_pages_that_it_brought(installed: Installed, tmp_path: Path) -> None:
    """What is named is there, and links from there to other pages lead somewhere."""
    made = installed.run(installed.veilsum, "participant", "init", tmp_path / "north", "--name", "north")
    assert made.returncode == 0, made.stderr
    config, schema = tmp_path / "north" / "participant.toml", tmp_path / "schema.toml"
    groups = '[{ name = "a", codes = ["diabetes mellitus"] }, { name = "b", codes = ["I10"] }]'
    schema.write_text(f'max_records = 10\n[[columns]]\nkind = "codes"\nname = "dx"\ngroups = {groups}\n')
    done = installed.run(
        installed.veilsum, "participant", "check", "--config", config, "--schema", schema, "--dataset", "records"
    )
    assert done.returncode == 2, done.stderr
    (named,) = re.findall(r"\S+/docs/files\.md", done.stderr)
    page = Path(named)
    assert page.is_relative_to(installed.environment)
    assert page.read_bytes() == (ROOT / "docs" / "files.md").read_bytes()
    targets = [target.partition("#")[0] for target in links(page.read_text())]
    assert [target for target in targets if target.endswith(".md") and not (page.parent / target).exists()] == []


@pytest.mark.system  # import contracts say the same of the source by default
def test_every_module_is_imported_from_the_wheel_and_none_of_a_coordinators(installed: Installed) -> None:
    done = installed.run(installed.python, "-c", EVERY_MODULE, ",".join(PACKAGES), ",".join(OTHERS))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["reached"] == []
    assert all(Path(place).is_relative_to(installed.environment) for place in found["places"])
    assert {"veilsum_participant.session.client", "veilsum_privacy.securesum.bfv", "veilsum_proto.federation_pb2"} <= set(
        found["names"]
    )


@pytest.mark.system
def test_its_command_has_a_sites_nouns_only(installed: Installed, tmp_path: Path) -> None:
    shown = installed.run(installed.veilsum, "--help")
    assert shown.returncode == 0, shown.stderr
    assert re.findall(r"^│ ([a-z]\S*)", shown.stdout, re.MULTILINE) == ["participant", "ledger", "schema"]
    version = installed.run(installed.veilsum, "--version").stdout.split()
    assert version == ["veilsum", settings(ROOT / "pyproject.toml")["version"]]
    made = installed.run(installed.veilsum, "participant", "init", tmp_path / "north", "--name", "north", "--json")
    assert made.returncode == 0, made.stderr
    assert Path(json.loads(made.stdout)["configuration"]).is_file()
    refused = installed.run(installed.veilsum, "coordinator", "start")
    assert refused.returncode == 2


class FromTheWheel(Processes):
    """A federation whose participants are those of the installed wheel."""

    environment: Installed

    def start(self, *names: str) -> None:
        for name in names:
            directory = self.directory(name)
            command = [self.environment.veilsum, "participant", "start", "--config", directory / "participant.toml"]
            program = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
            self.participants[name] = Process(["-c", program, *map(str, command)], directory / "log")


@pytest.mark.system
def test_a_study_with_participants_of_the_wheel(installed: Installed, tmp_path: Path) -> None:
    data = make_data("abc", 30)
    FromTheWheel.environment = installed
    federation = FromTheWheel(tmp_path, data, waits=Waits(), budget=(None, 1e-5), max_peer_streams=16)
    try:
        federation.heal()
        key = federation.submit(federation.compile(make_request(schema_of(2), epsilon=None)))
        assert federation.await_end(key).phase == "finished"
        federation.audit(key, charged="abc", released="abc")
    finally:
        federation.stop()


def test_it_declares_what_its_packages_import_as_the_platform_does() -> None:
    imported = set()
    for package, root in PACKAGES.items():
        for path in (root / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level:
                    names = [str(node.module)]
                imported |= {name.partition(".")[0] for name in names}
    assert not imported & {*OTHERS, "veilsum_deploy"}
    outside = {name for name in imported if name not in sys.stdlib_module_names and not name.startswith("veilsum_")}
    by_module = packages_distributions()
    own, whole = settings(ROOT / "participant" / "pyproject.toml"), settings(ROOT / "pyproject.toml")
    declared = [Requirement(text) for text in own["dependencies"]]
    stated = {canonical(item.name) for item in declared}
    providers = {name: list(map(canonical, by_module[name])) for name in outside}  # `google` is of several distributions
    needed = {next((one for one in found if one in stated), found[0]) for found in providers.values()}
    extras = own["optional-dependencies"]
    assert extras == {name: whole["optional-dependencies"][name] for name in extras}
    optional = {canonical(Requirement(text).name) for extra in extras.values() for text in extra}
    assert {canonical(item.name) for item in declared} == needed - optional
    assert optional <= needed
    platform = {canonical(item.name): item for item in map(Requirement, whole["dependencies"])}
    assert {item.name: str(item.specifier) for item in declared} == {
        item.name: str(platform[canonical(item.name)].specifier) for item in declared
    }
