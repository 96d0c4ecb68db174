"""Hostile code inside each kind of process reaches nothing but what that kind is for, as an ordinary user, on this kernel."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.federation import make_data, make_request, schema_of
from support.intruder import ATTEMPTS
from support.network import PATIENCE, wait_for
from support.processes import Process, Processes
from support.taken_over import PREY, TOLD
from support.victims import (
    OrdinaryProcess,
    Running,
    as_ordinary_user,
    folder,
    give,
    interpreter,
    intrude,
    unconfinable,
    victim,
)
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.process.confinement import offered
from veilsum_participant.boundary.framing import pair
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_participant.settings.roles import torch_worker


@pytest.fixture(autouse=True)
def confinable() -> None:
    if reason := unconfinable():
        pytest.skip(reason)


NEEDS_MORE = {
    "look_into_the_parent", "send_a_signal_to_the_parent",  # whom root's tests run as
    "open_a_socket_of_the_kernels_ciphers", "open_a_virtual_socket", "dial_multipath_tcp",  # what a kernel may lack
    "enter_a_namespace", "load_a_program_into_the_kernel", "count_events", "handle_faults_of_pages", "make_a_ring",
    "make_a_namespace", "type_into_the_terminal", "trace", "take_a_descriptor", "read_memory_of_another",
    "write_memory_of_another", "read_memory_by_proc", "use_a_handle_of_a_file", "mark_a_file", "keep_a_key",
    "open_a_queue_of_messages", "compare_descriptors", "leave_a_file_in_shared_memory",
}  # fmt: skip
"""Attempts that fail on some machines without any confinement of ours."""

OF_PORTS = {"dial_tcp"}


@pytest.fixture
def place() -> Iterator[Path]:
    with folder() as made:
        yield made


@pytest.fixture
def prey(place: Path) -> Iterator[Running]:
    with victim(place) as found:
        yield found


def _owned(place: Path) -> dict[str, Any]:
    """A file and a folder of the intruder's own."""
    (place / "own.csv").write_bytes(b"a,b\n1,2\n")
    (place / "state").mkdir()
    give(place / "own.csv")
    give(place / "state")
    return {"reads": [str(place / "own.csv")], "writes": [str(place / "state")]}


def test_without_confinement_the_same_code_reaches_nearly_everything(prey: Running) -> None:
    """Else what follows would show nothing."""
    found = intrude(prey, None)
    assert {name: why for name, why in found["failed"].items() if name not in NEEDS_MORE} == {}
    assert found["executed"]


@pytest.mark.parametrize("kind", ["reads a file", "writes its state", "has nothing"])
def test_a_process_without_a_network_reaches_what_is_its_own(kind: str, place: Path, prey: Running) -> None:
    own = _owned(place)
    work = {"reads a file": {"reads": own["reads"]}, "writes its state": own, "has nothing": {}}[kind]
    bounds: dict[str, Any] = {"read": work.get("reads", []), "write": work.get("writes", [])}
    found = intrude(prey, bounds, **work)
    assert found["made"] == []
    assert not found["executed"]
    assert found["work"] == {**found["work"], "threads": True, "memory": True, "itself": True, "clock": True}
    assert found["work"]["read"] == [8 for _ in work.get("reads", ())]


def test_one_that_alters_its_files_may_and_no_more(place: Path, prey: Running) -> None:
    """The guard writes its state with the modes that it chooses, and so can change those of any file of its user."""
    work = _owned(place)
    found = intrude(prey, {"read": work["reads"], "write": work["writes"], "alters": True}, **work)
    altering = {"open_a_file_to_others", "give_a_file_away", "date_a_file_back", "mark_a_file", "truncate_a_file"}
    assert set(found["made"]) <= altering - ({"truncate_a_file"} if offered().landlock >= 3 else set())


def test_one_with_a_network_dials_its_port_and_no_other(place: Path, prey: Running) -> None:
    with socket.create_server(("127.0.0.1", 0)) as served:
        port = served.getsockname()[1]
        found = intrude(prey, {"network": True, "dial": [port]}, dials=[port])
    limited = offered().landlock >= 4
    assert set(found["made"]) <= (set() if limited else OF_PORTS)
    assert not found["executed"]
    assert found["work"]["threads"]


def test_no_descriptor_is_inherited_but_those_that_are_handed_over(place: Path, prey: Running) -> None:
    given, other = socket.socketpair()
    with given, other:
        os.set_inheritable(given.fileno(), True)
        found = intrude(prey, {}, keep=[given.fileno()], descriptors=[given.fileno()])
    assert "use_an_inherited_descriptor" in found["failed"]
    assert found["work"]["memory"]


def test_an_inherited_descriptor_is_there_unless_it_is_closed(prey: Running) -> None:
    assert "use_an_inherited_descriptor" in intrude(prey, None)["made"]


ORPHANED = """
import ctypes, os, socket, sys, threading, time
from support.intruder import call
from veilsum_node.process.confinement import Bounds, confine
from veilsum_node.process.hardening import end_with_parent
line = socket.socket(fileno=int(sys.argv[1]))
if os.fork():
    time.sleep(600)
end_with_parent(parent=os.getppid())
if sys.argv[2] == "confined":
    confine(Bounds(forks=sys.argv[3] == "a nursery"), keep=[line.fileno()])
def stay():
    line.send(os.getpid().to_bytes(8, "little"))
    time.sleep(600)
libc = ctypes.CDLL(None)
said = libc.prctl(1, 0, 0, 0, 0), libc.prctl(1, 18, 0, 0, 0)
for number in (117, 119) if os.uname().machine == "x86_64" else (147, 149):
    libc.syscall(number, 65533, 65533, 65533)  # other rights, by which it would be forgotten
threading.Thread(target=stay).start()
time.sleep(.2)
call(60, 93, 0)  # its first thread alone, which asked the kernel for it
"""


@pytest.mark.parametrize(("kind", "means"), [("confined", "a reader"), ("confined", "a nursery"), ("free", "")])
def test_a_process_that_is_taken_over_ends_with_its_parent(kind: str, means: str) -> None:
    """Whatever it does not to: without confinement the same code stays."""
    program, environment = interpreter()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = [program, "-P", "-c", ORPHANED, str(theirs.fileno()), kind, means]
        started = subprocess.Popen(line, pass_fds=[theirs.fileno()], cwd="/", env=environment, **as_ordinary_user())
        theirs.close()
        ours.settimeout(PATIENCE)
        orphan = int.from_bytes(ours.recv(8), "little")
        wait_for(lambda: "Z" in Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2], "its first thread's end")
        started.kill()
        started.wait()
        if kind == "free":
            ours.settimeout(1)
            with pytest.raises(TimeoutError):
                ours.recv(1)
            os.kill(orphan, signal.SIGKILL)
        assert ours.recv(1) == b""  # the last that held the other end is gone


class Invaded(Processes):
    """A federation of which one site runs divided, as an ordinary user, with front and reader taken over."""

    victim, roles = "a", ("front", "reader")

    def __init__(self, directory: Path) -> None:
        self.prey = directory / "prey"
        self.prey.mkdir(mode=0o755)
        directory.chmod(0o755)
        waits = Waits(enrol=200, seal=200, contribute=200, consent=200, check=200, grace=9)
        data = make_data("abc", 60, 3)
        settings = {"waits": waits, "budget": (None, 1e-5), "max_peer_streams": 16}
        super().__init__(directory, data, **settings)
        own = self.directory(self.victim)
        (own / "data").mkdir()
        (own / "records.npz").rename(own / "data" / "records.npz")
        (own / "state").mkdir()
        config = own / "participant.toml"
        text = config.read_text().replace('"records.npz"', '"data/records.npz"')
        text = text.replace('isolation = "none"', 'isolation = "processes"')
        config.write_text(f'state = "state/participant.db"\n{text}')
        for path in (own, *own.rglob("*")):
            give(path)
            path.chmod(0o700 if path.is_dir() else 0o600)
        for path in own.parents:
            if path.is_relative_to(directory):
                path.chmod(0o755)

    def _state(self, name: str) -> Path:
        return super()._state(name) if name != self.victim else self.directory(name) / "state" / "participant.db"

    def launch(self, role: str, directory: Path) -> Process:
        if directory != self.directory(self.victim):
            return super().launch(role, directory)
        program, environment = interpreter()
        path = f"{environment['PYTHONPATH']}{os.pathsep}{self.prey}"
        arguments = ["-P", "-m", "support.taken_over", ",".join(self.roles), str(directory / f"{role}.toml")]
        return OrdinaryProcess([program, *arguments], directory.parent / "a.log", {**environment, "PYTHONPATH": path})

    @property
    def log(self) -> str:
        return (self.directory(self.victim).parent / "a.log").read_text()

    def others(self) -> dict[str, int]:
        """Numbers of the site's processes: the launcher, the guard, and the one of the role."""
        launcher = self.participants[self.victim].pid
        children = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                line = (place / "cmdline").read_text()
            except (OSError, IndexError):
                continue
            if parent == launcher:
                found = re.search(r"support\.hostile_(\w+)|veilsum_participant\.([\w.]+)", line)
                children["guard" if "taken_over" in line else found.group(0) if found else line] = int(place.name)
        return {"launcher": launcher, **children}

    def let_loose(self, decoys: Running) -> None:
        """Have each process that was taken over come after the guard and the site's files, once it runs."""
        guard = self.others()["guard"]
        maps = Path(f"/proc/{guard}/maps").read_text() if os.geteuid() == 0 else "0-0 rw"
        heap = int(maps.partition("-")[0], 16)
        own = self.directory(self.victim)
        names = (
            "identity/key.pem",
            "identity/transport/key.pem",
            "state/participant.db",
            "participant.toml",
            "data/records.npz",
        )
        files = [str(own / name) for name in names] + [str(own), str(own / "state"), str(own / "identity")]
        secret = bytes(16).hex()
        fields = {**decoys.fields, "process": guard, "address": heap, "secret": secret, "inherited": 99, "site_files": files}
        (self.prey / "new").write_text(json.dumps(fields))
        (self.prey / "new").chmod(0o644)
        (self.prey / "new").rename(self.prey / PREY)

    def made(self) -> dict[str, list[str]]:
        """What each succeeded in."""
        made = {}
        for role in self.roles:
            line = f"{role}: {TOLD}"
            wait_for(lambda line=line: line in self.log, f"what the {role} says")  # type: ignore[misc]
            told = json.loads(self.log.partition(line)[2].splitlines()[0])
            assert told["tried"] == len(ATTEMPTS)
            made[role] = told["made"]
        return made


def test_processes_that_are_taken_over_reach_nothing_of_the_site_and_a_study_ends_as_ever() -> None:
    """The reader reads its dataset, which it is for, and no more."""
    with folder() as place, folder() as elsewhere, victim(elsewhere) as decoys:
        processes = Invaded(place)
        try:
            processes.heal()
            processes.let_loose(decoys)
            key = processes.submit(processes.compile(make_request(schema_of(3), epsilon=1.0)))
            records = processes.directory(processes.victim) / "data" / "records.npz"
            assert processes.made() == {"front": [], "reader": [f"read {records}"]}
            for name, number in processes.others().items():
                status = Path(f"/proc/{number}/status").read_text()
                assert ("Seccomp:\t2" in status) == ("NoNewPrivs:\t1" in status) == (name != "launcher"), name
            ended = processes.await_end(key)
            assert ended.phase == "finished", f"{ended}\n{processes.log}"
            assert len(processes.releases(key)) == 1
        finally:
            processes.stop()


def test_a_process_of_networks_that_is_taken_over_reaches_its_encoders_and_nothing_else(place: Path, prey: Running) -> None:
    encoder = place / "encoders" / "e.pt"
    encoder.parent.mkdir()
    encoder.write_bytes(b"an encoder")
    victims = place / "victim"
    fields = {"identity": victims, "state": victims / "held", "datasets": {"records": {"path": victims / "forgotten"}}}
    config = ParticipantConfig.model_validate({"coordinator": "localhost:1", "encoders": {"e": {"path": encoder}}, **fields})
    files = [str(path) for path in (encoder, encoder.parent, victims / "held", victims)]
    program, environment = interpreter()
    ours, theirs = pair()
    with ours, theirs, folder() as apart:
        (apart / PREY).write_text(json.dumps({**prey.fields, "secret": "", "inherited": 99, "site_files": files}))
        (apart / PREY).chmod(0o644)
        started = subprocess.Popen(
            [program, "-P", "-m", "support.hostile_maps", str(theirs.fileno()), torch_worker(config).to_text()],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**environment, "PYTHONPATH": f"{environment['PYTHONPATH']}{os.pathsep}{apart}"},
            **as_ordinary_user(),
        )
        try:
            assert started.stderr is not None
            said = next(line for line in started.stderr if TOLD in line or not line)
            assert json.loads(said.partition(TOLD)[2])["made"] == [f"read {encoder}"]
            assert started.poll() is None
        finally:
            started.kill()
            started.communicate()
