"""Passwords and tokens of a federation are planted, everything that knows them is made to fail, and they are looked for.

A coordinator on a PostgreSQL server that asks for a password, participants behind a proxy that asks for one, metrics behind a
token: real processes that log at the lowest level. The server goes away, refuses, the proxy refuses, and files and variables
are malformed around the secret.
"""

from __future__ import annotations

import base64
import os
import stat
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from support.connect_proxy import ConnectProxy
from support.federation import make_data, make_request, schema_of
from support.network import PATIENCE, wait_for
from support.planted import look_for
from support.postgres import server
from support.processes import Process, Processes
from veilsum_coordinator.protocol.settings import Waits
from veilsum_deploy import cli
from veilsum_node.errors import ConfigurationError
from veilsum_node.transport.route import plan_route
from veilsum_privacy.study.study import Study, study_digest

SECRETS = {
    "database password": b"Xq7-planted-database-pw",
    "wrong database password": b"Wr0-planted-other-word",
    "metrics token": b"Tk9-planted-metrics-token",
    "wrong metrics token": b"Tw4-planted-false-token",
    "proxy password": b"Px3-planted-proxy-word",
}
WORDS = {name: secret.decode() for name, secret in SECRETS.items()}


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Variables of the processes that are started meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def guarded_database(word: str) -> str:
    """A database whose owner needs a password, at the server whose other databases need none; its URL with a password."""
    url = server().new_database()
    name = url.partition("?")[0].rpartition("/")[2]
    server().execute(
        f"DROP ROLE IF EXISTS planted; CREATE ROLE planted LOGIN SUPERUSER PASSWORD '{WORDS['database password']}'"
    )
    rules = Path(server().url("x").partition("host=")[2]) / "data" / "pg_hba.conf"
    text = rules.read_text()
    if "planted" not in text:
        rules.write_text(f"local all planted scram-sha-256\n{text}")
        server().execute("SELECT pg_reload_conf()")
    return f"postgresql://planted:{word}@/{name}?{url.partition('?')[2]}"


def children() -> dict[int, bytes]:
    """Arguments of this process's children."""
    found = {}
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and int((path / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found[int(path.name)] = (path / "cmdline").read_bytes()
        except OSError:
            continue
    return found


def scrape(address: str, token: str) -> tuple[int, bytes]:
    """Status and page of an endpoint's metrics."""
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 - http
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read() + str(error.headers).encode()


def submit_somehow(processes: Processes, study: Study) -> None:
    """Submit a study until the coordinator knows it."""
    for _ in range(20):
        try:
            processes.submit(study)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:  # it was taken before
                return
        else:
            return


def logged(process: Process, words: str) -> None:
    wait_for(lambda: words in process.log.read_text(), f"{words!r} in {process.log}")


def run(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """A command's exit status and output, in this process."""
    os.umask(0)
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    os.umask(0)
    return int(ended.value.code or 0), "".join(capfd.readouterr())


def check_modes(folder: Path, given: set[Path]) -> None:
    """What commands made, under a umask that forbids nothing: what holds a secret is its owner's, and the rest only read."""
    made = {path for path in folder.rglob("*") if path not in given and path.name != "log"}
    names = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made}
    assert names == {
        "backup.tar": 0o600,
        "dossier.html": 0o600,
        "export.jsonl": 0o600,
        "metrics-address": 0o644,
        "ready": 0o644,
        "state": 0o700,
        "participant.db": 0o600,
        "participant.db.backup.json": 0o600,
        "participant.db.lock": 0o600,
    } | {name: 0o600 for name in names if name.startswith("participant.db-")}


def test_no_password_or_token_shows_whatever_goes_wrong(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_data("abc", 9)
    waits = Waits(grace=5, contribute=20, database=60)
    root, said = tmp_path / "federation", []
    processes = Processes(root, data, waits=waits, budget=(1.0, 1e-5), max_peer_streams=16, forked=False)  # command lines
    home = processes.kit.coordinator.directory
    right = guarded_database(WORDS["database password"])
    wrong = right.replace(WORDS["database password"], WORDS["wrong database password"])
    for directory in (home, *map(processes.directory, processes.names)):
        for file, secret in (("token", "metrics token"), ("password", "proxy password")):
            (directory / file).touch(0o600)
            (directory / file).write_text(WORDS[secret] + "\n")
    metrics = {"LISTEN": "127.0.0.1:0", "READY_FILE": "metrics-address", "TOKEN_FILE": "token"}
    everywhere = {f"VEILSUM__METRICS__{name}": value for name, value in metrics.items()} | {"VEILSUM__LOG__LEVEL": "debug"}
    config = home / "coordinator.toml"
    given = set(tmp_path.rglob("*")) | {home / "failed-log"}
    (home / "failed-log").touch()
    former = os.umask(0)  # the least careful that commands can be started with
    try:
        with environment(VEILSUM__DATABASE=wrong, **everywhere):  # refused: a start that fails
            failed = Process(
                ["-m", "veilsum_deploy.cli", "coordinator", "start", "--config", str(config)], home / "failed-log", forked=True
            )
            wait_for(lambda: not failed.alive or "password" in failed.log.read_text(), "a refusal")
            assert "authentication" in failed.log.read_text()
            failed.stop()
        with environment(VEILSUM__DATABASE=right, **everywhere):
            processes.start_coordinator()
            said.append(run(["coordinator", "config", "--config", str(config), "--json"], capfd))
            said.append(run(["ledger", "show", "--config", str(config)], capfd))
        assert "(hidden)" in said[0][1]
        with ConnectProxy(credentials=("site", "another")) as tunnel, environment(**everywhere):
            for name in processes.names:
                path = processes.directory(name) / "participant.toml"
                way = f'proxy = "{tunnel.address}"\nproxy_user = "site"\nproxy_password_file = "password"\n'
                path.write_text(way + path.read_text())
                processes.forked = name != "a"
                processes.start(name)
            logged(processes.participants["a"], "rejects the user and password (407)")
            tunnel._wanted = "Basic " + _basic("site", WORDS["proxy password"])
            processes.heal()
            cut = tunnel.tunnels
            arguments = children()
            assert sum(b"start" in given for given in arguments.values()) == 2
            look_for(SECRETS, b"\n".join(arguments.values()), "a command line")

            key = processes.submit(processes.compile(make_request(schema_of(2), epsilon=None)))
            processes.await_end(key)
            assert cut == 3
            server().halt(immediate=True)
            dear = processes.compile(make_request(schema_of(2), epsilon=900.0))
            asking = threading.Thread(target=submit_somehow, args=(processes, dear))
            asking.start()  # waits for the database, which is away
            logged(processes.coordinator, "database unreachable")  # type: ignore[arg-type]
            server().resume()
            logged(processes.coordinator, "the database is reachable again")  # type: ignore[arg-type]
            asking.join()
            assert processes.await_end(study_digest(dear.to_bytes())).phase == "failed"
            for directory in (home, processes.directory("a")):
                address = (directory / "metrics-address").read_text()
                refused, page = scrape(address, WORDS["wrong metrics token"])
                taken, shown = scrape(address, WORDS["metrics token"])
                assert (refused, taken) == (401, 200)
                said.append((refused, (page + shown).decode()))
            site = str(processes.directory("a") / "participant.toml")
            for arguments_of in (
                ["participant", "config", "--config", site],
                ["participant", "check", "--config", site],
                ["ledger", "export", "--config", site, "--out", str(tmp_path / "export.jsonl")],
                ["ledger", "report", "--config", site, "--out", str(tmp_path / "dossier.html")],
                ["participant", "backup", str(tmp_path / "backup.tar"), "--config", site, "--with-identity"],
            ):
                status, text = run(arguments_of, capfd)
                assert status == 0 or arguments_of[1] == "check", text
                said.append((status, text))
    finally:
        os.umask(former)
        processes.stop()
    check_modes(tmp_path, given)

    for file in ("export.jsonl", "dossier.html"):
        look_for(SECRETS, (tmp_path / file).read_bytes(), file)
    with tarfile.open(tmp_path / "backup.tar") as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None
            look_for(SECRETS, member.name.encode() + content.read(), f"{member.name} of a backup")
    look_for(SECRETS, repr(said).encode(), "what commands and endpoints say")
    look_for(SECRETS, "".join(text for _, text in said).encode(), "what commands and endpoints say")
    left = [path for path in root.rglob("*") if path.is_file() and path.name not in ("token", "password")]
    assert sum(path.name == "log" for path in left) == 4
    for path in left:
        look_for(SECRETS, path.read_bytes(), str(path))
    logs = b"".join(path.read_bytes() for path in left if path.name == "log")
    assert logs.count(b"VEILSUM__LOG__LEVEL") == 4
    assert logs.count(b"VEILSUM__DATABASE") == 1  # the name of a variable that is set is told


def _basic(user: str, word: str) -> str:
    return base64.b64encode(f"{user}:{word}".encode()).decode()


WORD = WORDS["database password"]
MALFORMED = {
    "coordinator": [
        f'database = "postgresql://planted:{WORD}@[::1/name"',
        f'database = "postgresql://planted:{WORD}@host:port/name"',
        f'database = "mysql://planted:{WORD}@host/name"',
        f'database = "//planted:{WORD}@host/name"',
        f'database = ["{WORD}"]',
        f'database = {{ url = "{WORD}" }}',
        f'databse = "{WORD}"',
        f'database = "{WORD}',
        f"database = {WORD}",
        f'listen = "planted:{WORD}@host"',
        f'[metrics]\ntoken = "{WORD}"',
        f'[waits]\ngrace = "{WORD}"',
        f'[log]\nlevel = "{WORD}"',
    ],
    "participant": [
        f'proxy = "planted:{WORD}@proxy:3128"',
        f'proxy = "http://planted:{WORD}@proxy:3128"',
        f'proxy = "proxy:3128"\nproxy_user = "planted:{WORD}"\nproxy_password_file = "none"',
        f'proxy = "proxy:3128"\nproxy_user = "planted"\nproxy_password = "{WORD}"',
        f'proxy = ["{WORD}"]',
        f'coordinator = "planted:{WORD}@host"',
        f'[budgets.x]\nepsilon = "{WORD}"',
        f'[policy]\nanalysts = "{WORD}"',
    ],
}


def commands(role: str, path: Path) -> list[list[str]]:
    """What reads a configuration, and opens the database that it names."""
    return [[role, "config", "--config", str(path), "--json"], ["ledger", "show", "--config", str(path)]]


@pytest.mark.parametrize("role", MALFORMED)
def test_a_secret_in_a_malformed_configuration_is_not_repeated(
    role: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEILSUM_DEBUG", "1")  # the whole trace of what is not a typed error
    path = tmp_path / f"{role}.toml"
    base = 'coordinator = "host:1"\n' if role == "participant" else ""
    for text in MALFORMED[role]:
        path.write_text((base if not text.startswith("coordinator") else "") + text)
        ends = [run(command, capfd) for command in commands(role, path)]
        assert 2 in [status for status, _ in ends], text
        assert {status for status, _ in ends} <= {0, 2}, ends
        look_for({"planted": WORD.encode()}, repr(ends).encode(), f"what is said of {text}")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VEILSUM__DATABASE", f"postgresql://planted:{WORD}@[::1/name"),
        ("VEILSUM_DATABASE", f"mysql://planted:{WORD}@host/name"),
        ("VEILSUM__DATABSE", WORD),
        ("VEILSUM_WAITS__X", WORD),
        ("veilsum__database", WORD),
        ("VEILSUM__WAITS__GRACE", WORD),
        ("VEILSUM__LOG__LEVEL", f'["{WORD}"'),
        ("VEILSUM__METRICS__LISTEN", f"planted:{WORD}@host"),
    ],
)
def test_a_secret_in_a_malformed_variable_is_not_repeated(
    variable: str, value: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEILSUM_DEBUG", "1")
    monkeypatch.setenv(variable, value)
    path = tmp_path / "coordinator.toml"
    path.write_text("")
    ends = [run(command, capfd) for command in commands("coordinator", path)]
    assert 2 in [status for status, _ in ends], ends
    look_for({"planted": WORD.encode()}, repr(ends).encode(), f"what is said of {variable}")


@pytest.mark.parametrize("form", ["http://planted:{}@proxy:port", "https://planted:{}@proxy:1", "http://planted:{}@[::1"])
def test_a_proxy_of_the_environment_is_not_repeated(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", form.format(WORD))
    with pytest.raises(ConfigurationError, match="names no HTTP proxy") as raised:
        plan_route("coordinator.example:8461", proxy="environment")
    chain = f"{raised.value} {raised.value!r} {raised.value.advice} {raised.value.__cause__!r}"
    look_for({"planted": WORD.encode()}, chain.encode(), "the error")
