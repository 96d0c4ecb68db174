"""docs/deployment/troubleshooting.md shows every fault as it is really printed: each is made here, with real processes, the
command that an operator types is run."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.federation import DATASET, make_data, make_request, schema_of
from support.guides import missing_line
from support.network import PATIENCE
from support.processes import Processes, write_toml
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.identity import Authority, Role
from veilsum_node.identity.files import read_file
from veilsum_node.identity.kit import make_kit
from veilsum_node.identity.tls import TRANSPORT_FOLDER

PAGE = Path(__file__).parents[2] / "docs" / "deployment" / "troubleshooting.md"
SHOWN = dict(re.findall(r"<!-- fault: ([a-z ]+) -->\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
"""What the page shows of each fault."""

EPSILON = 0.5
WITHOUT_POWERS = ("--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")
"""Root is shown what others are shown: files that it may not read."""


@dataclass
class Desk:
    """An operator's own directory at site a: identity, configuration and records, beside the running federation."""

    federation: Processes
    place: Path

    def __post_init__(self) -> None:
        shutil.copytree(self.federation.directory("a") / "identity", self.place / "identity")
        shutil.copy(self.federation.directory("a") / "records.npz", self.place / "records.npz")
        self.write()

    def write(self, *, coordinator: str = "", budget: bool = True, path: str = "records.npz", **policy: object) -> None:
        """The configuration, with one thing changed."""
        agreed = {"analysts": ["*"], "noise": ["local"], "min_cohort": 2, **policy}
        tables: dict[str, dict[str, object]] = {
            "": {"coordinator": coordinator or self.federation.address},
            f"datasets.{DATASET}": {"path": path},
            **({f"budgets.{DATASET}": {"epsilon": EPSILON, "delta": 1e-5}} if budget else {}),
            "policy": agreed,
        }
        write_toml(self.config, tables)

    @property
    def config(self) -> Path:
        return self.place / "participant.toml"

    def check(self, *arguments: object, config: Path | None = None, clock: int = 0) -> str:
        """`veilsum participant check`, on a machine whose clock is so many seconds ahead; what it prints."""
        return self.run("participant", "check", "--config", config or self.config, *arguments, clock=clock)

    def run(self, *arguments: object, clock: int = 0) -> str:
        words = [str(argument) for argument in arguments]
        script = (
            f"import time; real = time.time; time.time = lambda: real() + {clock}; from veilsum_deploy.cli import main; main()"
        )
        shell = [sys.executable, "-c", script, *words]
        if os.geteuid() == 0 and (tool := shutil.which("setpriv")):
            shell = [tool, *WITHOUT_POWERS, *shell]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
        return done.stdout + done.stderr

    def certify(self, days: int, ago: int) -> None:
        """Have the authority sign this site's requests, some days ago."""
        authority = Authority.load(self.federation.kit.authority, lambda: int(time.time()) - 86_400 * ago)
        identity = self.place / "identity"
        for folder, role in ((identity, Role.PARTICIPANT), (identity / TRANSPORT_FOLDER, Role.TRANSPORT)):
            request = read_file(folder / "request.csr", "request")
            (folder / "certificate.pem").write_bytes(authority.sign(request, role=role, name="a", days=days))


def wrong_port(desk: Desk) -> str:
    desk.write(coordinator="localhost:1")
    return desk.check()


def wrong_host(desk: Desk) -> str:
    desk.write(coordinator="no-such-host.invalid:8461")
    return desk.check()


def other_name(desk: Desk) -> str:
    port = desk.federation.address.rpartition(":")[2]
    desk.write(coordinator=f"127.1:{port}")  # the same address, which the certificate does not name so
    return desk.check()


def no_tls(desk: Desk) -> str:
    """Something else than a coordinator listens there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        desk.write(coordinator=f"localhost:{listener.getsockname()[1]}")
        return desk.check()


def expired(desk: Desk) -> str:
    desk.certify(days=5, ago=10)
    return desk.check()


def expires_soon(desk: Desk) -> str:
    desk.certify(days=5, ago=3)
    return desk.check()


def clock_behind(desk: Desk) -> str:
    return desk.check(clock=-400 * 86_400)


def clock_ahead(desk: Desk) -> str:
    return desk.check(clock=600)


def other_federation(desk: Desk) -> str:
    kit = make_kit(desk.place / "other", ["a", "b"], clock=desk.federation.clock)
    shutil.rmtree(desk.place / "identity")
    shutil.copytree(kit.participants[0].identity, desk.place / "identity")
    return desk.check()


def key_of_all(desk: Desk) -> str:
    (desk.place / "identity" / "key.pem").chmod(0o644)
    return desk.check()


def records_of_nobody(desk: Desk) -> str:
    (desk.place / "records.npz").chmod(0)
    return desk.check("--schema", schema_file(desk), "--dataset", DATASET)


def folder(desk: Desk) -> str:
    (desk.place / "records").mkdir()
    desk.write(path="records")
    return desk.check()


def no_budget(desk: Desk) -> str:
    desk.write(budget=False)
    return desk.check()


def schema_file(desk: Desk) -> Path:
    path = desk.place / "schema.toml"
    columns = "\n".join(f'[[columns]]\nkind = "number"\nname = "x{index}"\nlow = -1.0\nhigh = 1.0' for index in range(2))
    path.write_text(f"max_records = 1000\n{columns}\n")
    return path


def study_file(desk: Desk) -> Path:
    path = desk.place / "study.toml"
    schema_file(desk)
    names = ", ".join(f'"{name}"' for name in desk.federation.names)
    path.write_text(
        f'name = "next"\nmethod = "statistics"\ndataset = "{DATASET}"\nschema = "schema.toml"\nparticipants = [{names}]\n'
        f'[privacy]\nnoise = "local"\nepsilon = {EPSILON}\n'
    )
    return path


def full_budget(desk: Desk) -> str:
    """At the running site itself, after a study that spent all."""
    return desk.check("--study", study_file(desk), config=desk.federation.directory("a") / "participant.toml")


def not_confirmed(desk: Desk) -> str:
    desk.run("federation", "directory", desk.federation.kit.authority, "--out", desk.place / "directory.json")
    desk.write(directory="directory.json")
    return desk.check()


def second_process(desk: Desk) -> str:
    return desk.run("participant", "start", "--config", desk.federation.directory("a") / "participant.toml")


FAULTS: dict[str, Callable[[Desk], str]] = {
    "wrong port": wrong_port,
    "wrong host": wrong_host,
    "other name": other_name,
    "no tls": no_tls,
    "expired": expired,
    "expires soon": expires_soon,
    "clock behind": clock_behind,
    "clock ahead": clock_ahead,
    "other federation": other_federation,
    "key of all": key_of_all,
    "records of nobody": records_of_nobody,
    "folder": folder,
    "no budget": no_budget,
    "full budget": full_budget,
    "not confirmed": not_confirmed,
    "second process": second_process,
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    place = tmp_path_factory.mktemp("troubleshooting") / "kit"
    made = Processes(place, make_data("abc"), waits=Waits(), budget=(EPSILON, 1e-5), max_peer_streams=16)
    try:
        made.heal()
        key = made.submit(made.compile(make_request(schema_of(2), epsilon=EPSILON, noise="local")))
        assert made.await_end(key).phase == "finished"
        yield made
    finally:
        made.stop()


@pytest.mark.system  # test_site_check.py makes such faults in one process by default
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_printed_as_the_page_shows(fault: str, federation: Processes, tmp_path: Path) -> None:
    printed = FAULTS[fault](Desk(federation, tmp_path / "desk"))
    missing = missing_line(tuple(SHOWN[fault].splitlines()), printed)
    assert missing is None, f"{missing}\nis not in\n{printed}"


def test_the_page_shows_every_fault_and_no_other() -> None:
    assert set(SHOWN) == set(FAULTS)
    assert all(text.strip() for text in SHOWN.values())


@pytest.mark.system
def test_nothing_of_it_is_printed_where_nothing_is_wrong(federation: Processes, tmp_path: Path) -> None:
    """The oracle of the test above: what the page shows of a fault is not what any check prints."""
    desk = Desk(federation, tmp_path / "desk")
    printed = desk.check("--schema", schema_file(desk), "--dataset", DATASET)
    assert "failed" not in printed
    for fault, text in SHOWN.items():
        assert missing_line(tuple(text.splitlines()), printed) is not None, fault
