"""Services as processes: started, watched and ended without leaving any; and what is provisioned for a trial."""

from __future__ import annotations

import os
import signal
import ssl
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cryptography import x509

from local.deployment import samples
from local.processes import Command, LocalProcesses, StoppedError, run
from support.network import wait_for
from veilsum_deploy.provision import DAYS, DONE, OTHERS, EndpointAuthority, provision
from veilsum_node.errors import Misuse, StateError
from veilsum_node.identity import Role, load_credentials

NOW = 1_800_000_000
SITES = ("north", "east", "south", "west")


def program(text: str, **options: object) -> Command:
    return Command((sys.executable, "-c", text), {"PATH": os.defpath}, **options)  # type: ignore[arg-type]


SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(600)"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER
TIDY = "import signal, sys\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(0))\n" + SLEEPER


def command_line(pid: int) -> list[str]:
    """Of a process that there may be no more, or another by its number."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return []


def up(log: Path) -> None:
    wait_for(lambda: "up" in log.read_text(), "the program")


# -- processes -------------------------------------------------------------------------------------------------------------


def test_leaving_stops_all_by_their_own_signals_the_last_first(tmp_path: Path) -> None:
    logs = [tmp_path / name for name in "abc"]
    with LocalProcesses() as processes:
        first = processes.start("plain", program(SLEEPER), logs[0], 30)
        second = processes.start("tidy", program(TIDY, ending=signal.SIGINT), logs[1], 30)
        third = processes.start("deaf", program(DEAF), logs[2], 0.2)
        for log in logs:
            up(log)
        processes.check()
        pids = [first.pid, second.pid, third.pid]
        assert [os.getpgid(pid) for pid in pids] == pids
        started = [psutil.Process(pid) for pid in pids]  # which are known by more than a number that may be another's soon
    assert processes.statuses == {"deaf": -signal.SIGKILL, "tidy": 0, "plain": 0}
    assert not any(each.is_running() for each in started)


def test_one_that_ends_by_itself_is_named_with_its_last_words(tmp_path: Path) -> None:
    with LocalProcesses() as processes:
        process = processes.start("brief", program("import sys; print('no such key'); sys.exit(3)"), tmp_path / "log", 5)
        wait_for(lambda: process.status is not None, "its end")
        with pytest.raises(StateError, match=r"(?s)brief exited unexpectedly \(status 3\).*no such key"):
            processes.check()
    assert processes.statuses == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_us_stops_all(tmp_path: Path, number: signal.Signals) -> None:
    former = signal.getsignal(number)
    log, started = tmp_path / "log", []

    def interrupted() -> None:
        with LocalProcesses() as processes:
            started.append(psutil.Process(processes.start("plain", program(SLEEPER), log, 30).pid))
            up(log)
            os.kill(os.getpid(), number)
            time.sleep(30)

    with pytest.raises(StoppedError, match=number.name):
        interrupted()
    assert [each.is_running() for each in started] == [False]
    assert signal.getsignal(number) == former


def test_if_we_are_killed_the_kernel_ends_them(tmp_path: Path) -> None:
    text = (
        "import sys, time\nfrom pathlib import Path\n"
        "from local.processes import Command, LocalProcesses\n"
        f"processes = LocalProcesses().__enter__()\n"
        f"command = Command((sys.executable, '-c', {SLEEPER!r}))\n"
        f"print(processes.start('plain', command, Path({str(tmp_path / 'log')!r}), 5).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", text], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    up(tmp_path / "log")
    parent.kill()
    parent.wait()
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child's end")


def test_a_task_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run(program("import sys; sys.exit(4)"), log, 60) == 4
    with pytest.raises(StateError, match="longer than"):
        run(program("import os\nprint(os.getpid(), flush=True)\n" + DEAF), log, 3)
    pids = [int(line) for line in log.read_text().splitlines() if line.isdecimal()]
    assert not any(DEAF in line for pid in pids for line in command_line(pid))


def test_a_task_reads_what_it_is_given_and_gets_the_stated_environment_only(tmp_path: Path) -> None:
    given, log = tmp_path / "input", tmp_path / "log"
    given.write_text("said")
    text = "import os, sys; print(sys.stdin.read(), sorted(key for key in os.environ if key != 'LC_CTYPE'))"
    assert run(program(text, input=given), log, 60) == 0
    assert log.read_text() == "said ['PATH']\n"


def test_a_prometheus_that_is_away_has_no_samples() -> None:
    assert samples("127.0.0.1:1", "up", "job") == {}


# -- provisioning ----------------------------------------------------------------------------------------------------------


def clock() -> int:
    return NOW


def test_each_party_gets_its_own_files_once(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in (*OTHERS, *SITES)}
    (tmp_path / "north").mkdir()
    (tmp_path / "north" / "left-over").write_text("of an attempt that was cut off")
    assert provision(places, ["localhost"], None, clock)
    assert not (tmp_path / "north" / "left-over").exists()
    roles = {"coordinator": Role.COORDINATOR, "analyst": Role.ANALYST, **dict.fromkeys(SITES, Role.PARTICIPANT)}
    for name, role in roles.items():
        credentials = load_credentials(places[name] / "identity", NOW, role)
        assert credentials.identity.name == name
        assert stat.S_IMODE(places[name].stat().st_mode) == 0o700
    keys = [path for name in places for path in places[name].rglob("key.pem") if name != "authority"]
    # the analyst has no endpoint, and sites have a key for their connections
    assert len({path.read_bytes() for path in keys}) == len(keys) == 2 * len(roles) - 1 + len(SITES)
    for path in (*keys, *tmp_path.rglob("token"), *tmp_path.rglob("pgpass")):
        mine = path.parent != places["prometheus"]
        assert (stat.S_IMODE(path.stat().st_mode) & 0o077 == 0) == mine, path
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert not provision(places, ["localhost"], None, clock)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (places["authority"] / DONE).unlink()  # as if it had been cut off just before its end
    assert provision(places, ["localhost"], None, clock)
    assert all((path.read_bytes() != data) for path, data in before.items() if path.name in ("key.pem", "token", "password"))


def test_a_directory_that_is_missing_or_too_many_is_named(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in (*OTHERS, *SITES)}
    with pytest.raises(Misuse, match="west"):
        provision({name: path for name, path in places.items() if name != "west"}, ["localhost"], None, clock)
    with pytest.raises(Misuse, match="abroad"):
        provision({**places, "abroad": tmp_path / "abroad"}, ["localhost"], None, clock)
    assert not list(tmp_path.iterdir())


def test_an_endpoints_certificate_is_for_its_names_and_under_its_authority(tmp_path: Path) -> None:
    authority = EndpointAuthority(NOW)
    key, pem = authority.issue(("north", "localhost", "127.0.0.1"))
    certificate = x509.load_pem_x509_certificate(pem)
    own = x509.load_pem_x509_certificate(authority.certificate_pem)
    certificate.verify_directly_issued_by(own)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["north", "localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == DAYS
    (tmp_path / "key").write_bytes(key)
    (tmp_path / "certificate").write_bytes(pem)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "certificate", tmp_path / "key")
