"""The console keeps no record within its reach: it does not start where its user may read one, and a test tries to."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support import confinement
from support.commands import veilsum
from support.consoles import ask
from support.federation import make_request, schema_of
from support.hostile import Adversary, make_adversary
from support.network import PATIENCE, wait_for
from support.processes import VEILSUM, write_participant
from support.tools import need_tool
from veilsum_node.errors import StateError
from veilsum_node.web.people import Links, PersonRole, person
from veilsum_participant.console.run import check_reach
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_privacy.ledger import Kind

PR_CAPBSET_DROP = 24
NOBODY = 65534
UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "veilsum-console.service"


def unprivileged() -> None:
    """In a child before it becomes a program: root is an ordinary user from here on, whom files of others are closed to."""
    library = ctypes.CDLL(None)
    for capability in range(64):
        if library.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break


def child(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """An interpreter without privileges."""
    drop: Callable[[], None] | None = unprivileged if os.geteuid() == 0 else None
    group = [NOBODY] if os.geteuid() == 0 else None  # that of the participant's state
    return subprocess.Popen([sys.executable, *arguments], preexec_fn=drop, extra_groups=group, text=True, **options)  # noqa: PLW1509


def close_to_others(path: Path) -> None:
    """Take a file away from this process's user, once that has no privileges."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o600)
    else:
        path.chmod(0)


def share(state: Path) -> None:
    """Give the participant's state to another user, and its group, as docs/console.md does."""
    state.parent.chmod(0o2770)
    if os.geteuid() == 0:
        os.chown(state.parent, NOBODY, NOBODY)
        for path in state.parent.glob(f"{state.name}*"):
            os.chown(path, NOBODY, NOBODY)
            path.chmod(0o660)


@pytest.fixture
def attack(tmp_path: Path) -> Adversary:
    adversary = make_adversary(tmp_path, budget=(3.0, 1e-5), approval="manual")
    adversary.use(adversary.bed.compile(make_request(schema_of(2), min_cohort=2)))
    ask(adversary)
    write_participant(adversary.bed, "a", "localhost:1", (3.0, 1e-5))
    return adversary


@contextmanager
def console(directory: Path) -> Iterator[str]:
    log = directory / "console-log"
    command = [*VEILSUM, "participant", "console", "--config", str(directory / "participant.toml"), "--listen", "127.0.0.1:0"]
    with log.open("w") as output, child(*command, stdout=output, stderr=output) as process:
        try:
            said = re.compile(r"^The console is at (\S+)$", re.MULTILINE)
            wait_for(lambda: said.search(log.read_text()) is not None or process.poll() is not None, "the console's address")
            found = said.search(log.read_text())
            assert found is not None, log.read_text()
            yield found[1]
        finally:
            process.terminate()
            assert process.wait(240) == 0, log.read_text()


def test_the_consoles_user_cannot_open_a_record_and_decides_all_the_same(attack: Adversary) -> None:
    directory = attack.bed.directory("a")
    records = directory / "records.npz"
    close_to_others(records)
    share(directory / "participant.db")
    tried = child("-c", "import sys; open(sys.argv[1], 'rb').read()", str(records), stderr=subprocess.PIPE)
    assert "PermissionError" in tried.communicate(timeout=240)[1]
    with console(directory) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
        links = Links(directory / "participant.console-links", attack.bed.clock)
        client.post("/enter", data={"token": links.add(person("Olga Maier", [PersonRole.OFFICER]))})
        page = client.get(f"/study/{attack.key.hex()}").text
        form = dict(re.findall(r'name="(csrf|shown)" value="([^"]+)"', page))
        answer = client.post(f"/study/{attack.key.hex()}", data={**form, "decision": "approve", "reason": "covered"})
        assert answer.status_code == 303, answer.text
        for path in ("/", "/budgets", "/ledger", "/dossier", "/dossier/page", "/health"):
            assert client.get(path).status_code == 200, path
    (entry,) = attack.bed.sites["a"].ledger.entries(kind=Kind.APPROVAL)
    assert entry.detail["operator"] == "Olga Maier"


def test_it_does_not_start_where_its_user_may(attack: Adversary, capsys: pytest.CaptureFixture[str]) -> None:
    path = attack.bed.directory("a") / "participant.toml"
    status, _, said = veilsum(capsys, "participant", "console", "--config", path)
    assert status == 2
    assert "records.npz" in said.replace("\n", "")
    assert "--records-in-reach" in said


@pytest.mark.system
def test_it_serves_on_its_socket_under_its_unit(attack: Adversary) -> None:
    """What the unit's system calls and mounts leave is enough to log in, decide and print the dossier, through the socket."""
    need_tool("systemd-analyze")
    directory = attack.bed.directory("a")
    (directory / "console.toml").write_text(
        f'listen = "unix:{directory}/console.sock"\nurl = "https://veilsum.hospital.example"\n'
    )
    command = [confinement.__file__, str(UNIT), str(directory), "--", sys.executable, *VEILSUM, "participant", "console"]
    log, socket = directory / "console-log", directory / "console.sock"
    options = ["--config", str(directory / "participant.toml"), "--records-in-reach"]
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, *command, *options], stdout=output, stderr=output, cwd=directory)
    try:
        wait_for(lambda: "The console is at" in log.read_text() or process.poll() is not None, "the console")
        assert process.poll() is None, log.read_text()
        links = Links(directory / "participant.console-links", attack.bed.clock)
        token = links.add(person("Olga Maier", [PersonRole.OFFICER]))
        transport = httpx.HTTPTransport(uds=str(socket))
        with httpx.Client(base_url="http://veilsum.hospital.example", transport=transport, timeout=PATIENCE) as client:
            answer = client.post("/enter", data={"token": token}, headers={"Origin": "https://veilsum.hospital.example"})
            assert answer.status_code == 303, log.read_text()
            session = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}  # which a client without TLS would not send
            page = client.get(f"/study/{attack.key.hex()}", headers=session).text
            form = dict(re.findall(r'name="(csrf|shown)" value="([^"]+)"', page))
            sent = {**form, "decision": "approve", "reason": "covered"}
            assert client.post(f"/study/{attack.key.hex()}", data=sent, headers=session).status_code == 303, log.read_text()
            assert client.get("/dossier/page", headers=session).status_code == 200, log.read_text()
    finally:
        process.terminate()
        assert process.wait(240) == 0, log.read_text()
    assert len(attack.bed.sites["a"].ledger.entries(kind=Kind.APPROVAL)) == 1


PLACES: dict[str, tuple[dict[str, Any], bool]] = {
    "a file": ({"path": "records.csv", "columns": ["x"]}, True),
    "a folder": ({"path": "parts"}, True),
    "a pattern": ({"path": "parts/*.parquet"}, True),
    "a key to a bucket": ({"s3": {"url": "s3://bucket/records.parquet", "key_file": "key"}}, True),
    "a bucket": ({"s3": {"url": "s3://bucket/records.parquet", "ca_file": "ca.pem"}}, False),
    "a file with a password": ({"source": "sql", "dsn_file": "dsn", "query": "SELECT 1", "joined": False}, True),
    "a password": ({"source": "sql", "dsn": "postgresql://a:b@host/name", "query": "SELECT 1", "joined": False}, True),
    "a password beside": ({"source": "sql", "dsn": "postgresql://h/n?password=b", "query": "SELECT 1", "joined": False}, True),
    "no password": ({"source": "sql", "dsn": "postgresql://a@host/name", "query_file": "q.sql", "joined": False}, False),
    "tables": ({"source": "sql", "files": {"t": "t.csv"}, "query": "SELECT 1", "columns": ["x"], "joined": False}, True),
    "images": ({"path": "gone.csv", "columns": ["file"], "images": {"folder": "parts", "shape": [1, 2, 2]}}, True),
    "a file that is not there": ({"path": "gone.csv", "columns": ["x"]}, False),
}


@pytest.mark.parametrize("case", PLACES)
@pytest.mark.parametrize("may", [True, False])
def test_every_way_to_records_is_looked_at(case: str, may: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, leads = PLACES[case]
    (tmp_path / "parts").mkdir()
    for name in ("records.csv", "parts/one.parquet", "key", "dsn", "q.sql", "ca.pem", "t.csv"):
        (tmp_path / name).write_text("x\n")
    monkeypatch.chdir(tmp_path)
    config = ParticipantConfig(coordinator="localhost:1", datasets={"records": dataset})  # type: ignore[dict-item]
    if not may:
        monkeypatch.setattr(os, "access", lambda *_: False)
    reached = leads and (may or case.startswith("a password"))  # which the configuration itself holds
    if reached:
        with pytest.raises(StateError, match="records"):
            check_reach(config)
    else:
        check_reach(config)
