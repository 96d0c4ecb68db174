"""The operators' and analysts' commands against a coordinator and participants that the commands started themselves."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.commands import veilsum
from support.forked import ForkedCommand
from support.network import PATIENCE, wait_for
from support.randomness import RARE_DEVIATIONS
from veilsum.remote import connect
from veilsum_node.identity import Authority, Role, load_credentials
from veilsum_node.identity.files import read_file
from veilsum_node.identity.kit import Kit, make_kit
from veilsum_node.identity.provision import install, prepare
from veilsum_node.transport.connection import UnreachableError, probe_tcp, probe_tls
from veilsum_privacy.results.result import load_result

NAMES = ("a", "b", "c")
ROWS = 800
EPSILON = 0.5
MARK = "0.123456789"
"""A cell's value that must not appear outside the data."""

SCHEMA = """
max_records = 1000
columns = [
    { kind = "number", name = "x0", low = -1.0, high = 1.0 },
    { kind = "number", name = "x1", low = -1.0, high = 1.0 },
]
"""


def now() -> int:
    return int(time.time())


def command(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "veilsum_deploy.cli", *(str(argument) for argument in arguments)], text=True, **options
    )


@dataclass
class Running:
    """A federation of processes, each started by its command."""

    directory: Path
    kit: Kit
    children: dict[str, subprocess.Popen[str] | ForkedCommand] = field(default_factory=dict)
    address: str = ""

    @property
    def coordinator_config(self) -> Path:
        return self.kit.coordinator.directory / "coordinator.toml"

    def config(self, name: str) -> Path:
        return self.kit.directory / "participants" / name / "participant.toml"

    def start_coordinator(self) -> None:
        ready = self.kit.coordinator.directory / "ready"
        ready.unlink(missing_ok=True)
        self.children["coordinator"] = command("coordinator", "start", "--config", self.coordinator_config)
        wait_for(ready.exists, "the coordinator's address")
        self.address = ready.read_text()

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        child = self.children.pop(name)
        child.send_signal(number)
        return child.wait(PATIENCE)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("cli")
    kit = make_kit(directory / "kit", NAMES, clock=now)
    running = Running(directory, kit)
    running.coordinator_config.write_text(
        'listen = "localhost:0"\nready_file = "ready"\nlog = "log"\n[waits]\ngrace = 5\nenrol = 60\n'
    )
    pins = {party.name: load_credentials(party.identity, now()).identity.fingerprint for party in kit.participants}
    random = np.random.default_rng(0)
    try:
        running.start_coordinator()
        # A restart of the coordinator must find the same port again.
        text = running.coordinator_config.read_text().replace("localhost:0", running.address)
        running.coordinator_config.write_text(text)
        for party in kit.participants:
            cells = random.uniform(-1, 1, (ROWS, 2))
            lines = ["x0,x1", f"{MARK},0", *(f"{x},{y}" for x, y in cells[1:])]
            (party.directory / "records.csv").write_text("\n".join(lines) + "\n")
            trusted = "\n".join(f'{name} = "{pin}"' for name, pin in pins.items() if name != party.name)
            running.config(party.name).write_text(
                f'coordinator = "{running.address}"\nlog = "log"\n[datasets.records]\npath = "records.csv"\n'
                'columns = ["x0", "x1"]\n'
                "[budgets.records]\nepsilon = 4.0\ndelta = 1e-5\n"
                f'[policy]\nanalysts = ["analyst"]\n[policy.trusted]\n{trusted}\n'
            )
            start = ("participant", "start", "--config", running.config(party.name))
            if party.name == NAMES[0]:
                running.children[party.name] = command(*start)
            else:  # as the first was started, in a tenth of the time
                running.children[party.name] = ForkedCommand([*map(str, start)], directory / f"{party.name}.output", {})
        (directory / "schema.toml").write_text(SCHEMA)
        write_study(directory / "study.toml")
        # A participant says "open" when it was greeted, which is just before the coordinator counts it as connected.
        opened = [f"{name} opened its session" for name in NAMES]
        wait_for(lambda: all(line in log_of(running, "coordinator") for line in opened), "the participants' sessions")
        yield running
        end_cleanly(running)  # not a test: tests of this file that another worker takes over would find no process
    finally:
        for child in running.children.values():
            child.kill()
            child.wait(PATIENCE)


def end_cleanly(running: Running) -> None:
    """End every process; its exit status is 0, and its log has no error and no cell's value."""
    signals = dict(zip((*NAMES, "coordinator"), (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGINT), strict=True))
    for name, number in signals.items():
        assert running.stop(name, number) == 0, name
        lines = log_of(running, name).splitlines()
        assert lines
        for line in lines:
            assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [A-Z]+ \S", line)
            assert MARK not in line
            assert "Traceback" not in line
            assert " ERROR " not in line, line


def log_of(running: Running, name: str) -> str:
    place = running.coordinator_config if name == "coordinator" else running.config(name)
    log = place.with_name("log")
    return log.read_text() if log.exists() else ""


def write_study(path: Path, name: str = "trial", **changes: object) -> Path:
    values = {"name": name, "method": "statistics", "dataset": "records", "schema": "schema.toml"} | changes
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path.write_text("\n".join(lines) + f'\n[privacy]\nnoise = "distributed"\nepsilon = {EPSILON}\n')
    return path


@pytest.fixture
def analyst(running: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    monkeypatch.setenv("VEILSUM_COORDINATOR", running.address)
    monkeypatch.setenv("VEILSUM_IDENTITY", str(running.kit.analyst.identity))
    return running


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_study_from_file_to_result(analyst: Running, capsys: pytest.CaptureFixture[str]) -> None:
    out = analyst.directory / "result"
    study = analyst.directory / "study.toml"
    code, text, err = veilsum(capsys, "study", "submit", study, "--results", out, "--json")
    assert code == 0, (text, err)
    asked, *states, result = objects(text)
    assert asked["cost"]["participants"] == list(NAMES)
    assert asked["cost"]["epsilon"] == pytest.approx(EPSILON, rel=1e-3)
    assert states[-1]["phase"] == "finished"
    fetched = load_result(out)
    assert result["summary"] == fetched.summary
    # what was announced is what the coordinator states of the release, and what it received
    noise = asked["cost"]["tasks"][0]["noise_std"]["records/table"]
    assert fetched.summary["records"][0]["count"]["noise_error"] == pytest.approx(noise)
    assert abs(fetched.summary["records"][0]["count"]["value"] - 3 * ROWS) < RARE_DEVIATIONS * noise < 0.05 * 3 * ROWS
    received = states[-1]["rounds"][0]["bytes_received"]
    assert 0.8 * 3 * asked["cost"]["upload_bytes"] < received <= 3 * asked["cost"]["upload_bytes"]

    digest = asked["study"]
    code, text, _ = veilsum(capsys, "study", "show", digest[:4].upper(), "--json")
    assert (code, json.loads(text)["study"]) == (0, digest)
    code, text, _ = veilsum(capsys, "study", "list")
    assert (code, digest[:12] in text) == (0, True)
    code, text, _ = veilsum(capsys, "study", "watch", digest)
    assert (code, "finished" in text) == (0, True)
    assert veilsum(capsys, "study", "result", digest, "--out", out)[0] == 2  # never over another result
    code, text, _ = veilsum(capsys, "study", "result", digest, "--out", analyst.directory / "again")
    assert (code, "95% interval" in text, "Verified: every number" in text) == (0, True, True)
    verified_and_changed(analyst, digest, result["proof"], out, capsys)

    # beside the running participant
    for name in NAMES:
        code, text, _ = veilsum(capsys, "ledger", "show", "--config", analyst.config(name), "--study", digest[:8], "--json")
        body = json.loads(text)
        assert body["spending"][0]["spent"] == pytest.approx(asked["cost"]["epsilon"])
        wait_for(lambda name=name: kinds(analyst, name, digest, capsys)[-1] == "release-seen")  # type: ignore[misc]
        assert kinds(analyst, name, digest, capsys) == ["reserve", "charge", "release-seen"]
        assert veilsum(capsys, "ledger", "verify", "--config", analyst.config(name))[0] == 0


def verified_and_changed(
    analyst: Running, digest: str, told: dict[str, Any], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fetched result verifies with the authority's certificate alone; one that the coordinator changes does not."""
    files = [path for path in (out / "proof").iterdir() if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    assert told == {"verified": True, "rounded": False, "releases": 1, "bytes": size}
    authority = analyst.kit.analyst.identity / "authority.pem"
    code, text, _ = veilsum(capsys, "study", "verify", out, "--authority", authority, "--json")
    found = json.loads(text)
    assert (code, found["valid"], found["exact"], found["study"]) == (0, True, True, digest)
    assert list(found["roster"]) == list(NAMES)
    assert found["proves"]
    assert found["leaves_open"]
    code, text, _ = veilsum(capsys, "study", "verify", out)
    assert (code, "This cannot prove" in text) == (0, True)

    kept = analyst.kit.coordinator.directory / "state" / "results" / digest / "manifest.json"
    right = kept.read_text()
    count = load_result(out).summary["records"][0]["count"]["value"]
    places = ("changed", "unproven", "taken")
    changed, unproven, taken = (analyst.directory / name for name in places)
    try:
        kept.write_text(right.replace(repr(count), repr(count + 1), 1))
        code, text, _ = veilsum(capsys, "study", "result", digest, "--out", changed)
        assert (code, "NOT VERIFIED" in text, "summary.records[0].count.value" in text) == (1, True, True)
        code, text, _ = veilsum(capsys, "study", "verify", changed, "--json")
        found = json.loads(text)
        assert (code, found["valid"], found["where"]) == (1, False, "manifest.json")
        assert found["fault"] == f"summary.records[0].count.value is {count + 1!r}, but the releases give {count!r}."
        bare = json.loads(right)
        del bare["releases"]
        kept.write_text(json.dumps(bare))
        code, text, _ = veilsum(capsys, "study", "result", digest, "--out", unproven, "--json")
        assert (code, json.loads(text)["proof"]["verified"]) == (1, False)
        code, text, _ = veilsum(capsys, "study", "result", digest, "--out", taken, "--no-proof", "--json")
        assert (code, "proof" in json.loads(text)) == (0, False)
        assert not (taken / "proof").exists()
    finally:
        kept.write_text(right)
    assert veilsum(capsys, "study", "verify", analyst.directory / "nowhere")[0] == 2
    assert veilsum(capsys, "study", "verify", out, "--tolerance", "0.1")[0] == 2
    assert veilsum(capsys, "study", "verify", out, "--authority", out / "manifest.json")[0] == 2


def kinds(running: Running, name: str, digest: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    _, text, _ = veilsum(capsys, "ledger", "show", "--config", running.config(name), "--study", digest, "--json")
    return [entry["kind"] for entry in json.loads(text)["entries"]]


def test_plan_submits_nothing(analyst: Running, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads(veilsum(capsys, "study", "list", "--json")[1])
    code, text, _ = veilsum(capsys, "study", "plan", analyst.directory / "study.toml")
    assert (code, "epsilon 0.5 at delta 1e-05" in text) == (0, True)
    assert json.loads(veilsum(capsys, "study", "list", "--json")[1]) == before


def test_a_study_that_sites_refuse_is_status_1_with_their_codes(analyst: Running, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(analyst.directory / "other.toml", "other", dataset="nobody-has-it")
    code, text, _ = veilsum(capsys, "study", "submit", study, "--wait")
    assert code == 1
    assert "failed" in text
    assert "dataset-not-offered" in text
    digest = text.split("Submitted ")[1].split()[0]
    code, _, _ = veilsum(capsys, "study", "result", digest, "--out", analyst.directory / "nothing")
    assert code == 1
    assert not (analyst.directory / "nothing").exists()


def test_names_of_studies_and_participants_are_checked(analyst: Running, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("abc", "xyzw", "00" * 33):
        code, _, err = veilsum(capsys, "study", "show", name)
        assert (code, "hexadecimal" in err) == (2, True)
    assert veilsum(capsys, "study", "show", "f" * 20)[0] == 2
    assert veilsum(capsys, "study", "show", "f" * 64)[0] == 2
    study = write_study(analyst.directory / "named.toml", "named", participants=["a", "d"])
    code, _, err = veilsum(capsys, "study", "submit", study)
    assert (code, "'d'" in err) == (2, True)


def test_an_operator_sees_and_stops_but_does_not_submit(
    analyst: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    analyst.children["c"].send_signal(signal.SIGSTOP)  # the study waits for c
    try:
        study = write_study(analyst.directory / "long.toml", "long")
        digest = objects(veilsum(capsys, "study", "submit", study, "--json")[1])[0]["study"]
        monkeypatch.setenv("VEILSUM_IDENTITY", str(analyst.kit.operator.identity))
        code, text, _ = veilsum(capsys, "study", "list", "--json")
        assert (code, digest in [item["study"] for item in json.loads(text)]) == (0, True)
        code, text, _ = veilsum(capsys, "study", "abort", digest[:16])
        assert (code, "aborted by operator" in text) == (0, True)
        assert veilsum(capsys, "study", "watch", digest)[0] == 1
        code, _, err = veilsum(capsys, "study", "submit", study)
        assert (code, "analyst" in err) == (2, True)
    finally:
        analyst.children["c"].send_signal(signal.SIGCONT)


def test_a_healthy_site_passes_every_check(analyst: Running, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("participant", "check", "--config", analyst.config("a"), "--study", analyst.directory / "study.toml")
    code, text, _ = veilsum(capsys, *arguments, "--json")
    body = json.loads(text)
    assert (code, body["ok"]) == (0, True), body
    found = {item["check"]: item["status"] for item in body["checks"]}
    expected = ("key permissions", "certificate", "TCP connection", "TLS", "protocol", "clock", "ledger", "budget records")
    for name in (*expected, "pinned peers", "analysts", "dataset records", "study"):
        assert found[name] == "ok", body


def test_every_check_runs_though_most_fail(analyst: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site"
    shutil.copytree(analyst.kit.participants[0].identity, site / "identity")
    (site / "identity" / "key.pem").chmod(0o644)
    (site / "records.csv").write_text(f"x0,x1\n0.5,{MARK}\n77.25,oops\n")
    (site / "participant.toml").write_text(
        'coordinator = "localhost:1"\n[datasets.records]\npath = "records.csv"\n[datasets.gone]\npath = "gone.csv"\n'
        "[policy]\nmin_trusted = 3\n"
    )
    arguments = ("participant", "check", "--config", site / "participant.toml", "--dataset", "records")
    code, text, _ = veilsum(capsys, *arguments, "--schema", analyst.directory / "schema.toml", "--json")
    assert code == 1
    checks = json.loads(text)["checks"]
    failed = {item["check"] for item in checks if item["status"] == "failed"}
    expected = ("key permissions", "certificate", "TCP connection", "TLS", "protocol", "budget records", "pinned peers")
    assert failed >= {*expected, "dataset gone"}
    details = [item["detail"] for item in checks if item["check"] == "dataset records"]
    assert any("column 'x0': out of bounds: 1 (row 2 (line 3))" in detail for detail in details)
    assert any("column 'x1': not a number: 1" in detail for detail in details)
    for value in (MARK, "77.25", "oops"):
        assert value not in text
    assert not (site / "participant.db").exists()  # nothing is made by looking


def test_a_connection_that_fails_says_why(
    analyst: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = veilsum(capsys, "study", "list", "--coordinator", "localhost:1")
    assert (code, "Nothing listens" in err) == (2, True)
    assert veilsum(capsys, "study", "list", "--coordinator", "no-such-host.invalid:1")[0] == 2

    other = make_kit(tmp_path / "other", ["a", "b"], clock=now)
    code, _, err = veilsum(capsys, "study", "list", "--identity", other.analyst.identity, "--json")
    assert (code, json.loads(err)["error"]) == (2, "UnreachableError")
    assert "not of this federation" in err

    mixed = tmp_path / "mixed"  # trusts the right authority, is certified by another
    shutil.copytree(other.analyst.identity, mixed)
    shutil.copy(analyst.kit.analyst.identity / "authority.pem", mixed)
    with pytest.raises(UnreachableError, match="refused this party's certificate"):
        probe_tls(analyst.address, mixed)
    with pytest.raises(UnreachableError, match="not certified for that host"):
        probe_tls_as(analyst, tmp_path, "localhost.localdomain", monkeypatch)


def test_another_protocol_version_is_a_typed_error(
    analyst: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilsum_node.transport.channel.PROTOCOL_VERSIONS", (99,))
    code, _, err = veilsum(capsys, "study", "list")
    assert (code, "No common protocol version" in err) == (2, True)


def probe_tls_as(running: Running, directory: Path, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe the coordinator under a host's name that leads there but is not in its certificate."""
    port = int(running.address.rsplit(":", 1)[1])
    dial = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda place, *rest: dial(("localhost", place[1]), *rest))
    probe_tls(f"{host}:{port}", running.kit.analyst.identity)


def test_an_expired_coordinator_is_told_from_a_foreign_one(tmp_path: Path) -> None:
    old = Authority.create(tmp_path / "authority", "trial", lambda: now() - 10 * 86_400)
    party, client = (prepare(tmp_path / role.value, role.value, role) for role in (Role.COORDINATOR, Role.ANALYST))
    for item, days in ((party, 5), (client, 365)):
        hosts = ["localhost"] if item is party else []
        csr = read_file(item.request, "request")
        certificate = old.sign(csr, role=item.role, name=item.name, hosts=hosts, days=days)
        install(item.identity, certificate, old.certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(party.identity / "certificate.pem", party.identity / "key.pem")
    with socket.create_server(("localhost", 0)) as listener:

        def serve() -> None:
            raw, _ = listener.accept()
            with raw, pytest.raises(ssl.SSLError):
                context.wrap_socket(raw, server_side=True)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UnreachableError, match="has expired"):
            probe_tls(f"localhost:{listener.getsockname()[1]}", client.identity)
        thread.join(PATIENCE)


def test_what_is_not_tls_is_named(tmp_path: Path, analyst: Running) -> None:
    with socket.create_server(("localhost", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                raw, _ = listener.accept()
                with raw:
                    raw.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"localhost:{listener.getsockname()[1]}"
        probe_tcp(address)
        with pytest.raises(UnreachableError, match=r"TLS 1\.3"):
            probe_tls(address, analyst.kit.analyst.identity)
        thread.join(PATIENCE)


def test_starting_without_a_configuration_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for role in ("coordinator", "participant"):
        code, _, err = veilsum(capsys, role, "start", "--config", tmp_path / "none.toml")
        assert (code, "does not exist" in err) == (2, True)


@pytest.mark.system  # sessions outlive it by default in test_killed_coordinator.py
def test_a_watch_outlives_the_coordinators_restart(analyst: Running, capsys: pytest.CaptureFixture[str]) -> None:
    identity = analyst.kit.analyst.identity
    analyst.children["c"].send_signal(signal.SIGSTOP)  # the study waits for c
    try:
        study = write_study(analyst.directory / "waits.toml", "waits")
        digest = objects(veilsum(capsys, "study", "submit", study, "--json")[1])[0]["study"]
        with connect(analyst.address, load_credentials(identity, now()), identity, now()) as remote:
            states = remote.watch(bytes.fromhex(digest))
            assert not next(states).over
            assert analyst.stop("coordinator") == 0
            analyst.start_coordinator()
            analyst.children["c"].send_signal(signal.SIGCONT)
            last = list(states)[-1]
        assert last.study == digest
        assert last.over
    finally:
        analyst.children["c"].send_signal(signal.SIGCONT)
