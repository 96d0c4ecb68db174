"""A federation that an earlier version set up and ran a study in goes on with this version, in place.

Its configuration, keys, states and results are those that the version's own commands wrote: a coordinator, three sites and an
analyst, each in a folder of its own. Nothing of it is changed but the port, and what docs/upgrading.md says to change. Where
this machine confines anything the sites are an ordinary user's.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from support import commands
from support.network import wait_for
from support.processes import VEILSUM, Process, command, lasting_ports
from support.victims import OrdinaryProcess, as_ordinary_user, folder, give, interpreter, unconfinable
from veilsum.verification import verify_result
from veilsum_node.database_places import open_readonly
from veilsum_node.identity import load_authority_certificate
from veilsum_privacy.ledger import Kind, LedgerReader
from veilsum_privacy.results.result import load_result

FEDERATIONS = Path(__file__).parents[1] / "data" / "upgrades"
"""Written by the commands of 0.1.0 (commit b38ea62a) and 0.2.0 (0080f6a4). Certificates end in November 2036; their keys are
in the archives, and of no use but here."""

PARTS = {"veilsum_participant.session", "veilsum_participant.front"}
SITES = ("north", "south", "west")
UPGRADES = [("0.1", "auto"), ("0.2", "auto"), ("0.2", "none"), ("0.2", "processes")]
"""Versions, and what is said of isolation: nothing, so that the machine decides, or one of both forms at all sites."""

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
        self.confined = not unconfinable()
        (port,) = lasting_ports(1)
        for path in directory.glob("*/*.toml"):
            path.write_text(re.sub(r"localhost:\d+", f"localhost:{port}", path.read_text()))
        for name in SITES if self.confined else ():
            for path in (directory / name, *(directory / name).rglob("*")):
                give(path)
        self.first = directory / "ada" / "first"
        self.authority = load_authority_certificate((directory / "authority" / "certificate.pem").read_bytes())
        self.processes: dict[str, Process] = {}

    def config(self, name: str) -> Path:
        return self.directory / name / "participant.toml"

    def start_coordinator(self) -> None:
        hub = self.directory / "hub"
        (hub / "log").touch()
        self._keep("hub", Process(command("coordinator", hub / "coordinator.toml"), hub / "log", forked=True))
        wait_for(lambda: "listens on" in (hub / "log").read_text(), "the coordinator")

    def start(self, name: str) -> None:
        line, log = command("participant", self.config(name)), self.directory / name / "log"
        if not self.confined:
            return self._keep(name, Process(line, log, forked=True))
        program, environment = interpreter()
        return self._keep(name, OrdinaryProcess([program, "-P", *line], log, environment))

    def _keep(self, name: str, process: Process) -> None:
        self._running.callback(process.stop)
        self.processes[name] = process

    def wait_for_sessions(self, count: int) -> None:
        log = self.processes["hub"].log
        wait_for(lambda: all(log.read_text().count(f"{name} opened its session") >= count for name in SITES), "sessions")

    def run(self, name: str, *arguments: str) -> tuple[int, str]:
        """Run a command at a site, as whoever runs the site; its exit status and what it says."""
        program, environment = interpreter() if self.confined else (sys.executable, dict(os.environ))
        line = [program, "-P", *VEILSUM, *arguments, "--config", str(self.config(name))]
        user = as_ordinary_user() if self.confined else {}
        done = subprocess.run(line, capture_output=True, text=True, check=False, cwd="/", env=environment, **user)
        return done.returncode, done.stdout or done.stderr

    def check(self, name: str) -> tuple[int, dict[str, dict[str, str]]]:
        """Status of `participant check` at a site, and what it found."""
        status, told = self.run(name, "participant", "check", "--json")
        checks = {item["check"]: item for item in json.loads(told)["checks"]}
        assert status == any(item["status"] == "failed" for item in checks.values()), told
        return status, checks

    def processes_of(self, name: str) -> set[str]:
        """Modules of what a site's process started, its own for the fork that is the guard."""
        lines = [child.cmdline() for child in psutil.Process(self.processes[name].pid).children()]
        return {part for line in lines for part in line[3:4]} & PARTS  # what is only just forked or has ended may have none

    def kinds(self, name: str) -> list[Kind]:
        """Kinds of the entries of a site's ledger, once it was verified."""
        with open_readonly(self.directory / name / "participant.db") as database:
            reader = LedgerReader(database)
            reader.verify(authority=self.authority)
            return [entry.kind for entry in reader.entries()]

    def rows(self, name: str) -> list[bytes]:
        with open_readonly(self.directory / name / "participant.db") as database:
            return [entry.hash for entry in LedgerReader(database).entries()]

    def spent(self, name: str) -> float:
        """Epsilon of all that a site was charged."""
        with open_readonly(self.directory / name / "participant.db") as database:
            return LedgerReader(database).spending("records").spent

    def set_budget(self, name: str, epsilon: float) -> None:
        words = f"--epsilon {epsilon} --delta 1e-5 --reason upgraded --operator olga".split()
        status, told = self.run(name, "ledger", "budget", "set", "records", *words)
        assert status == 0, told

    def give_key(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        """The step of docs/upgrading.md: a key for connections, at a site that has stopped."""
        status, told = self.run(name, "participant", "transport-key")
        assert status == 0, told
        request, authority = self.directory / name / "identity" / "transport" / "request.csr", self.directory / "authority"
        words = f"--role transport --name {name} --authority".split()
        status, out, err = commands.veilsum(capsys, "federation", "sign", request, *words, authority)
        assert status == 0, out + err


@pytest.fixture(params=UPGRADES, ids=" ".join)
def upgrade(request: pytest.FixtureRequest) -> tuple[str, str]:
    version, isolation = request.param
    if isolation == "processes" and (reason := unconfinable()):
        pytest.skip(reason)
    return version, isolation


@pytest.fixture
def federation(upgrade: tuple[str, str]) -> Iterator[Federation]:
    with folder() as place, ExitStack() as running:
        place.chmod(0o755)
        yield Federation(upgrade[0], place, running)


def submit(federation: Federation, capsys: pytest.CaptureFixture[str], method: str, out: str) -> tuple[int, str]:
    ada = federation.directory / "ada"
    (ada / "after.toml").write_text(AFTER.format(method=method))
    status, told, err = commands.veilsum(capsys, "study", "submit", "after.toml", "--results", out)
    return status, told + err


@pytest.mark.system  # test_upgrading.py brings up the states that it has by default
def test_a_federation_goes_on_with_this_version(
    federation: Federation, upgrade: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledgers grow and are otherwise the same, and what was spent stays spent; the studies before and after verify; what
    its lists leave out is told."""
    version, isolation = upgrade
    ada = federation.directory / "ada"
    monkeypatch.chdir(ada)
    before = {name: federation.rows(name) for name in SITES}
    charged = {name: federation.kinds(name).count(Kind.CHARGE) for name in SITES}
    spent = {name: federation.spent(name) for name in SITES}
    assert min(charged.values()) > 1
    assert min(spent.values()) > 0.9
    status, checks = federation.check("north")
    assert (status, checks["dataset records"]["status"]) == (1, "failed")  # since 0.2 a site states its columns
    columns = '[datasets.records]\ncolumns = ["age", "pressure", "disease"]\n'
    said = "" if isolation == "auto" else f'isolation = "{isolation}"\n'
    for name in SITES:
        path = federation.config(name)
        path.write_text(said + path.read_text().replace("[datasets.records]\n", columns))
    federation.start_coordinator()
    for name in SITES:
        if isolation == "processes":  # elsewhere later, or never
            federation.give_key(name, capsys)
        federation.start(name)
    federation.wait_for_sessions(1)
    confined = isolation == "processes" or (isolation == "auto" and federation.confined)
    for name in SITES:
        assert federation.processes_of(name) == (PARTS if confined else set())
        assert federation.spent(name) == spent[name]
    status, checks = federation.check("north")
    assert status == 0, [item for item in checks.values() if item["status"] == "failed"]
    assert (checks["isolation"]["status"] == "ok") == confined
    assert (checks["key of connections"]["status"] == "ok") == (isolation == "processes")
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

    # a budget that would bear the study, had nothing been spent of it
    federation.set_budget("west", spent["west"] + 0.02)
    status, text = submit(federation, capsys, "fedsgd", "none")
    assert (status, "budget-exceeded" in text) == (1, True), text
    federation.set_budget("west", 20.0)

    # the study after, by what the old lists allow
    status, text = submit(federation, capsys, "fedsgd", "second")
    assert status == 0, text
    assert verify_result(ada / "second", federation.authority).comparison.exact

    # the plainest one, once the lists are out, as docs/upgrading.md says
    status, text = submit(federation, capsys, "statistics", "third")
    assert (status, "task-not-declared" in text) == (1, True)
    for name in SITES:
        federation.processes[name].stop()
        path = federation.config(name)
        path.write_text(re.sub(r"^(methods|tasks) = \[[^\]]*\]\n", "", path.read_text(), flags=re.MULTILINE))
        if isolation == "auto":
            federation.give_key(name, capsys)
        federation.start(name)
    federation.wait_for_sessions(2)
    for name in SITES:
        assert federation.processes_of(name) == (PARTS if confined else set())
    status, checks = federation.check("south")
    assert status == 0, [item for item in checks.values() if item["status"] == "failed"]
    assert (checks["key of connections"]["status"] == "ok") == (isolation != "none")
    status, text = submit(federation, capsys, "statistics", "fourth")
    assert status == 0, text
    assert verify_result(ada / "fourth", federation.authority).comparison.exact

    for name in SITES:
        assert federation.rows(name)[: len(before[name])] == before[name]
        wait_for(lambda name=name: federation.kinds(name).count(Kind.CHARGE) > charged[name] + 1, name)  # type: ignore[misc]
        assert federation.spent(name) > spent[name] + 0.1
