"""Each party's own distribution: what it declares and holds; and a study in which every party has nothing but its own."""

from __future__ import annotations

import ast
import json
import re
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from support.distributions import PARTIES, Installed, build, canonical, closure, install, settings
from support.federation import make_data, schema_of
from support.pages import ROOT
from support.processes import Process, Processes
from veilsum_coordinator.protocol.settings import Waits

NEVER = {
    "participant": {"psycopg", "pot"},
    "analyst": {"torch", "opacus", "pot", "tenseal", "psycopg", "alembic", "jinja2"},
    "coordinator": {"opacus"},
}
"""What a party's closure never holds."""

LAZILY = {
    "participant": {"sklearn"},
    "analyst": {"sklearn", "IPython", "jax", "tenseal", "adbc_driver_manager", "adbc_driver_postgresql", "pydicom",
                "nibabel", "PIL", "sentencepiece", "jinja2", "markupsafe"},
    "coordinator": {"opacus"},
}  # fmt: skip
"""What some module of a party's wheel imports in a function that the party has no need to call, or does without."""

EVERY_MODULE = """
import importlib, json, sys
failed = {}
for name in sys.argv[2].split(","):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        failed[name] = error.name
absent = [name for name in sys.argv[1].split(",") if name in sys.modules]
print(json.dumps({"failed": failed, "loaded": absent}))
"""

STUDY = """
import json, sys, veilsum
from veilsum_node.errors import ConfigurationError
with veilsum.connect(coordinator=sys.argv[1], identity=sys.argv[2]) as federation:
    study = federation.dataset("records", json.loads(sys.argv[3])).mean("x0", noise="none")
    verdict = study.plan().verdict
    result = study.run(sys.argv[4])
    rows, found = result.rows(), result.verify()
try:
    veilsum.simulate({"a": {"x0": [1]}, "b": {"x0": [2]}}, json.loads(sys.argv[3]))
except ConfigurationError as error:
    refused = error.message
loaded = sorted({"torch", "opacus", "ot", "tenseal"} & set(sys.modules))
told = {"verdict": verdict, "rows": rows, "releases": len(found.releases), "loaded": loaded, "refused": refused}
print(json.dumps(told, default=str))
"""


def stated(party: str) -> dict[str, Any]:
    """What the build's hook is told of a party."""
    whole = tomllib.loads((ROOT / party / "pyproject.toml").read_text())
    return whole["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]  # type: ignore[no-any-return]


def held(wheel: Path) -> dict[str, str]:
    """Names of the modules in a wheel, and their source."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py") and ".data/" not in name:
                parts = name.removesuffix(".py").removesuffix("/__init__").split("/")
                found[".".join(parts)] = archive.read(name).decode()
    return found


class _Running(ast.NodeTransformer):
    """Drops what only type checkers read."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        return node.orelse if ast.unparse(node.test).endswith("TYPE_CHECKING") else self.generic_visit(node)


def imports(source: str) -> set[str]:
    """What a module imports when it runs, early or late."""
    found = set()
    for node in ast.walk(_Running().visit(ast.parse(source))):
        if isinstance(node, ast.Import):
            found |= {item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return found


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {party: build(party, tmp_path_factory.mktemp(party)) for party in PARTIES}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> dict[str, Installed]:
    return {party: install(party, wheels[party], tmp_path_factory.mktemp(f"only-{party}")) for party in PARTIES}


@pytest.mark.parametrize("party", PARTIES)
def test_it_asks_for_the_platforms_versions_and_never_for_what_others_need(party: str) -> None:
    own, whole = settings(ROOT / party / "pyproject.toml"), settings(ROOT / "pyproject.toml")
    platform = {canonical(item.name): str(item.specifier) for item in map(Requirement, whole["dependencies"])}
    for item in map(Requirement, own["dependencies"]):
        assert str(item.specifier) == platform[canonical(item.name)], item
    extras = own["optional-dependencies"]
    left_out = {f"{name}>={version.partition('>=')[2]}" for name, version in platform.items()} - set(own["dependencies"])
    for name, wanted in extras.items():
        assert wanted == whole["optional-dependencies"].get(name, wanted), name
        assert name in whole["optional-dependencies"] or set(wanted) <= left_out, name
    assert not closure(own["dependencies"]) & NEVER[party]


@pytest.mark.system
@pytest.mark.parametrize("party", PARTIES)
def test_its_wheel_imports_what_it_holds_and_declares(
    party: str, wheels: dict[str, Path], installed: dict[str, Installed]
) -> None:
    """Every module that another one names is there, but for those that its hook leaves out; each loads, or lacks an extra."""
    modules, own = held(wheels[party]), settings(ROOT / party / "pyproject.toml")
    without = tuple(stated(party).get("without", ["-"]))
    used = {name: imports(source) for name, source in modules.items()}
    absent = {other for names in used.values() for other in names if other.startswith("veilsum") and other not in modules}
    assert [name for name in absent if not name.startswith(without)] == []
    providers = {name: {canonical(item) for item in found} for name, found in packages_distributions().items()}
    declared = {canonical(Requirement(text).name) for text in own["dependencies"]}
    extras = {canonical(Requirement(text).name) for texts in own["optional-dependencies"].values() for text in texts}
    outside = {name.partition(".")[0] for names in used.values() for name in names if not name.startswith("veilsum")}
    undeclared = {name for name in outside & set(providers) if not providers[name] & (declared | extras)}
    assert undeclared <= LAZILY[party]
    importable = ",".join(name for name in modules if not name.rpartition(".")[2][0].isdigit() and "__main__" not in name)
    done = installed[party].run(installed[party].python, "-c", EVERY_MODULE, ",".join(NEVER[party]), importable)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["loaded"] == []
    assert {name: lacks for name, lacks in found["failed"].items() if not providers.get(lacks, set()) & extras} == {}


class Apart(Processes):
    """A federation in which coordinator and participants have their own distributions."""

    environments: dict[str, Installed]

    def launch(self, role: str, directory: Path) -> Process:
        command = [self.environments[role].veilsum, role, "start", "--config", directory / f"{role}.toml"]
        program = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
        return Process(["-c", program, *map(str, command)], directory / "log")


@pytest.mark.system
def test_a_study_of_parties_that_have_their_own_distributions(installed: dict[str, Installed], tmp_path: Path) -> None:
    data = make_data("abc", 30)
    Apart.environments = installed
    federation = Apart(tmp_path, data, waits=Waits(), budget=(None, 1e-5), max_peer_streams=16)
    analyst = installed["analyst"]
    try:
        federation.heal()
        schema = json.dumps(schema_of(2).model_dump(mode="json", exclude_none=True))
        where = (federation.address, federation.kit.analyst.identity)
        done = analyst.run(analyst.python, "-c", STUDY, *where, schema, tmp_path / "result")
        assert done.returncode == 0, done.stderr
        told = analyst.run(
            analyst.veilsum, "study", "verify", tmp_path / "result", "--authority", where[1] / "authority.pem", "--json"
        )
        assert told.returncode == 0, told.stderr
    finally:
        federation.stop()
    found = json.loads(done.stdout)
    assert found["loaded"] == []
    assert found["releases"] == 1
    assert "no participants to simulate" in found["refused"]
    values = [value for features, _ in data.values() for value in features[:, 0]]
    (row,) = found["rows"]
    assert row["mean"]["value"] == pytest.approx(sum(values) / len(values), abs=1e-3)


@pytest.mark.system
@pytest.mark.parametrize(
    ("party", "nouns"),
    [
        ("participant", ["participant", "ledger", "schema"]),
        ("analyst", ["analyst", "login", "study"]),
        ("coordinator", ["federation", "coordinator"]),
    ],
)
def test_its_command_has_its_own_nouns(installed: dict[str, Installed], party: str, nouns: list[str]) -> None:
    shown = installed[party].run(installed[party].veilsum, "--help")
    assert shown.returncode == 0, shown.stderr
    assert re.findall(r"^│ ([a-z]\S*)", shown.stdout, re.MULTILINE) == nouns
    version = installed[party].run(installed[party].veilsum, "--version").stdout.split()
    assert version == ["veilsum", settings(ROOT / "pyproject.toml")["version"]]
