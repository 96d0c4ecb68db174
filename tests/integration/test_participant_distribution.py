"""The participant's own distribution: built, installed alone beside what it declares and nothing else, and put to work."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

import pytest

from support.distributions import Installed, build, install, settings
from support.federation import make_data, make_request, schema_of
from support.pages import ROOT, links
from support.processes import Process, Processes
from veilsum_coordinator.protocol.settings import Waits

sys.path.insert(0, str(ROOT))
import reached

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("participant", tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installed:
    return install("participant", wheel, tmp_path_factory.mktemp("distribution"))


def test_what_a_wheel_is_made_of_is_the_participants_alone() -> None:
    """By what the build's hook finds: no wheel is built, which asks an index for the builder."""
    stated = reached.settings("participant")
    held = set(reached.files(reached.closure(stated["roots"], stated.get("without", ()))).values())
    assert "veilsum_participant/cli/__main__.py" in held
    assert {name.partition("/")[0] for name in held} == set(PACKAGES)


@pytest.mark.system
def test_the_wheel_holds_nothing_but_the_participants_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name and ".data/" not in name}
    there = {
        str(path.relative_to(root))
        for package, root in PACKAGES.items()
        for path in (root / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names <= there
    assert {name for name in there if not name.endswith(".py")} <= names, "templates, recipes and types come along"


@pytest.mark.system  # an environment of its own is dear
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
    assert {"veilsum_participant.session.client", "veilsum_privacy.securesum.products", "veilsum_proto.federation_pb2"} <= set(
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
