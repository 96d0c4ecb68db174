"""A federation that an earlier version set up and ran a study in goes on with this version, in place.

Its configuration, keys, states and results are those that the version's own commands wrote: a coordinator, three sites and an
analyst, each in a folder of its own. Nothing of it is changed but the port, and what docs/upgrading.md says to change.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from support import commands
from support.network import wait_for
from support.processes import Process, command, lasting_ports
from veilsum.verification import verify_result
from veilsum_node.database_places import open_readonly
from veilsum_node.identity import load_authority_certificate
from veilsum_node.process.confinement import offered
from veilsum_privacy.ledger import Kind, LedgerReader
from veilsum_privacy.results.result import load_result

FEDERATIONS = Path(__file__).parents[1] / "data" / "upgrades"
"""Written by the commands of 0.1.0 (commit b38ea62a) and 0.2.0 (0080f6a4). Certificates end in November 2036; their keys are
in the archives, and of no use but here."""

PARTS = {"veilsum_participant.session", "veilsum_participant.front"}
SITES = ("north", "south", "west")
VERSIONS = ("0.1", "0.2")
AFTER = """name = "after"
method = "{method}"
dataset = "records"
schema = "schema.toml"
expected_records = 60
participants = ["north", "south", "west"]

[privacy]
epsilon = 0.5
delta = 1e-5
min_cohort = 3
"""


class Federation:
    """One that an earlier version left, on free ports."""

    def __init__(self, version: str, directory: Path, running: ExitStack) -> None:
        with tarfile.open(fileobj=io.BytesIO((FEDERATIONS / f"federation-{version}.tar.gz").read_bytes())) as archive:
            archive.extractall(directory, filter="data")
        self.directory, self._running = directory, running
        (port,) = lasting_ports(1)
        for path in directory.glob("*/*.toml"):
            path.write_text(re.sub(r"localhost:\d+", f"localhost:{port}", path.read_text()))
        self.first = directory / "ada" / "first"
        self.authority = load_authority_certificate((directory / "authority" / "certificate.pem").read_bytes())
        self.processes: dict[str, Process] = {}

    def start(self, role: str, name: str) -> Process:
        folder = self.directory / name
        (folder / "log").touch()
        one = role == "coordinator" or 'isolation = "none"' in (folder / f"{role}.toml").read_text()
        process = Process(command(role, folder / f"{role}.toml"), folder / "log", forked=one)
        self._running.callback(process.stop)
        self.processes[name] = process
        return process

    def start_all(self) -> None:
        hub = self.start("coordinator", "hub")
        wait_for(lambda: "listens on" in hub.log.read_text(), "the coordinator")
        for name in SITES:
            self.start("participant", name)
        self.wait_for_sessions(1)

    def wait_for_sessions(self, count: int) -> None:
        log = self.processes["hub"].log
        wait_for(lambda: all(log.read_text().count(f"{name} opened its session") >= count for name in SITES), "sessions")

    def processes_of(self, name: str) -> set[str]:
        """Modules of what a site's process started, its own for the fork that is the guard."""
        lines = [child.cmdline() for child in psutil.Process(self.processes[name].pid).children()]
        return {line[3] for line in lines} & PARTS

    def kinds(self, name: str) -> list[Kind]:
        """Kinds of the entries of a site's ledger, once it was verified."""
        with open_readonly(self.directory / name / "participant.db") as database:
            reader = LedgerReader(database)
            reader.verify(authority=self.authority)
            return [entry.kind for entry in reader.entries()]

    def rows(self, name: str) -> list[bytes]:
        with open_readonly(self.directory / name / "participant.db") as database:
            return [entry.hash for entry in LedgerReader(database).entries()]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def federation(version: str, tmp_path: Path) -> Iterator[Federation]:
    with ExitStack() as running:
        yield Federation(version, tmp_path, running)


def submit(federation: Federation, capsys: pytest.CaptureFixture[str], method: str, out: str) -> tuple[int, str]:
    ada = federation.directory / "ada"
    (ada / "after.toml").write_text(AFTER.format(method=method))
    status, told, err = commands.veilsum(capsys, "study", "submit", "after.toml", "--results", out)
    return status, told + err


def check(
    federation: Federation, capsys: pytest.CaptureFixture[str], name: str = "north"
) -> tuple[int, dict[str, dict[str, str]]]:
    """Status of `participant check` at a site, and what it found."""
    config = federation.directory / name / "participant.toml"
    status, out, err = commands.veilsum(capsys, "participant", "check", "--config", config, "--json")
    return status, {item["check"]: item for item in json.loads(out or err)["checks"]}


def give_key(federation: Federation, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """The step of docs/upgrading.md: a key for connections, at a site that has stopped."""
    folder = federation.directory / name
    authority = federation.directory / "authority"
    request = folder / "identity" / "transport" / "request.csr"
    for line in (
        ["participant", "transport-key", "--config", folder / "participant.toml"],
        ["federation", "sign", request, *f"--role transport --name {name} --authority".split(), authority],
    ):
        status, out, err = commands.veilsum(capsys, *line)
        assert status == 0, out + err


@pytest.mark.system  # test_upgrading.py brings up the states that it has by default
def test_a_federation_goes_on_with_this_version(
    federation: Federation, version: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledgers grow and are otherwise the same; the studies before and after verify; what its lists leave out is told."""
    ada = federation.directory / "ada"
    monkeypatch.chdir(ada)
    before = {name: federation.rows(name) for name in SITES}
    charged = {name: federation.kinds(name).count(Kind.CHARGE) for name in SITES}
    assert min(charged.values()) > 1
    status, checks = check(federation, capsys)
    assert (status, checks["dataset records"]["status"]) == (1, "failed")  # since 0.2 a site states its columns
    for name in SITES:
        path = federation.directory / name / "participant.toml"
        columns = '[datasets.records]\ncolumns = ["age", "pressure", "disease"]\n'
        stays = "" if name == "north" else 'isolation = "none"\n'
        path.write_text(stays + path.read_text().replace("[datasets.records]\n", columns))
    federation.start_all()
    status, checks = check(federation, capsys)
    assert status == 0, checks
    confined = checks["isolation"]["status"] == "ok"
    assert confined == (not offered().lacking())  # of themselves: nothing in their configuration says so
    for name in SITES:
        assert federation.processes_of(name) == (PARTS if confined and name == "north" else set())
    told = checks["method statistics"]["detail"] + checks["method statistics"]["advice"]
    assert "tables" in told  # a list that the version wrote does without what came since

    # the study before
    key = json.loads((federation.first / "manifest.json").read_text())["study"]["digest"]
    proof = "--no-proof" if version == "0.1" else "--proof"
    status, out, err = commands.veilsum(capsys, "study", "result", key, "--out", "again", proof)
    assert status == 0, out + err
    for name in ("manifest.json", "arrays.safetensors"):
        assert (ada / "again" / name).read_bytes() == (federation.first / name).read_bytes()
    if version == "0.1":  # kept no proofs: what it says of itself is whole
        assert load_result(ada / "again").method == "fedsgd"
    else:
        assert verify_result(ada / "again", federation.authority).comparison.exact

    # the study after, by what the old lists allow
    status, text = submit(federation, capsys, "fedsgd", "second")
    assert status == 0, text
    assert verify_result(ada / "second", federation.authority).comparison.exact

    # the plainest one, once the lists are out, as docs/upgrading.md says
    status, text = submit(federation, capsys, "statistics", "third")
    assert (status, "task-not-declared" in text) == (1, True)
    for name in SITES:
        federation.processes[name].stop()
        path = federation.directory / name / "participant.toml"
        path.write_text(re.sub(r"^(methods|tasks) = \[[^\]]*\]\n", "", path.read_text(), flags=re.MULTILINE))
        if name == "south":
            give_key(federation, capsys, name)
            path.write_text(path.read_text().removeprefix('isolation = "none"\n'))
        federation.start("participant", name)
    federation.wait_for_sessions(2)
    assert federation.processes_of("south") == (PARTS if confined else set())
    status, checks = check(federation, capsys, "south")
    assert status == 0, checks
    assert checks["key of connections"]["status"] == "ok"
    status, text = submit(federation, capsys, "statistics", "fourth")
    assert status == 0, text
    assert verify_result(ada / "fourth", federation.authority).comparison.exact

    for name in SITES:
        assert federation.rows(name)[: len(before[name])] == before[name]
        wait_for(lambda name=name: federation.kinds(name).count(Kind.CHARGE) > charged[name] + 1, name)  # type: ignore[misc]
