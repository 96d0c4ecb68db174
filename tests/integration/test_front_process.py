"""A site in processes: what is killed of it starts anew; who takes over its front is a malicious coordinator at most."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, running_server, wait_for
from support.processes import VEILSUM, Process, Processes, command, count, gone, running_processes
from support.restless_front import ASKED, TOLD
from support.starting import ProcessStarter
from veilsum.remote import connect
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.errors import HostileInput
from veilsum_participant.boundary import front as says
from veilsum_participant.boundary.calls import BrokenError, CallFailedError, Peer
from veilsum_participant.boundary.direct import Direct
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.boundary.framing import Caller, FramedSocket, pair
from veilsum_participant.boundary.serving import serve
from veilsum_participant.front.answering import Front, in_process, told
from veilsum_participant.session import client as client_module
from veilsum_participant.session.channel import PAUSE_SECONDS, SiteChannel, UndeliveredError
from veilsum_participant.settings.telling import dialling
from veilsum_privacy.ledger.entries import Kind

NAMES = "abc"
WAITS = Waits(enrol=200, seal=100, contribute=100, consent=100, check=100, grace=60)
WIDTH = 600
MODULES = {
    "veilsum_participant.front": "front",
    "veilsum_participant.worker.reader_main": "reader",
    "veilsum_participant.worker.compiler_main": "compiler",
}
BEFORE_UPLOAD = 20_000
"""Bytes: everything before an upload, and not the upload."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    data = make_data(NAMES, 5, WIDTH)
    with running_processes(
        tmp_path_factory.mktemp("federation"), data, waits=WAITS, isolation="processes", isolated="c"
    ) as processes:
        yield processes


def children(pid: int) -> dict[str, int]:
    """Processes that a launcher started, by what they are: ``front``, ``guard``, ``reader``, ``compiler``."""
    found: dict[str, int] = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if part := MODULES.get(words[3].decode() if words[1:3] == [b"-P", b"-m"] else ""):
                found[part] = int(child)
            elif words != [b""]:  # it has not ended
                found.setdefault("guard", int(child))  # a later one is none of the others yet
    return found


def _begin(network: Processes) -> bytes:
    network.heal()
    network.forget_cohorts()
    network.proxies["c"].limit(BEFORE_UPLOAD)
    key = network.submit(network.compile(make_request(schema_of(WIDTH), epsilon=None)))
    wait_for(network.proxies["c"].stalled.is_set, "c at its limit")
    return key


@pytest.mark.system  # test_hostile_processes.py meets a real reader, test_rounds_apart.py what it leaves
def test_a_reader_is_gone_once_it_read(network: Processes) -> None:
    key = _begin(network)
    launcher = network.participants["c"].pid
    wait_for(lambda: "dataset records is read" in (network.directory("c") / "log").read_text(), "c's records")
    wait_for(lambda: "reader" not in children(launcher), "the reader's end")
    _finished(network, key)


def _finished(network: Processes, key: bytes) -> None:
    network.proxies["c"].release()
    status = network.await_end(key)
    assert status.phase == "finished", status.reason
    assert network.releases(key)[0].cohort == tuple(NAMES)
    network.audit(key, charged=NAMES, released=NAMES)
    assert [count(network.entries(name, key), Kind.CHARGE) for name in NAMES] == [1, 1, 1]


@pytest.mark.system  # a killed guard is dearer to a site, and stays
def test_a_front_that_is_killed_in_an_upload_is_replaced_and_nothing_is_charged_twice(network: Processes) -> None:
    key = _begin(network)
    launcher = network.participants["c"].pid
    before = children(launcher)
    os.kill(before["front"], signal.SIGKILL)
    wait_for(lambda: children(launcher).get("front", before["front"]) != before["front"], "another front")
    assert children(launcher)["guard"] == before["guard"]
    _finished(network, key)
    assert "the front is replaced" in (network.directory("c") / "log").read_text()


def test_a_guard_that_is_killed_takes_its_site_with_it_and_goes_on_where_it_was(network: Processes) -> None:
    key = _begin(network)
    process = network.participants["c"]
    parts = children(process.pid)
    os.kill(parts["guard"], signal.SIGKILL)
    wait_for(lambda: not process.alive, "the launcher's end")
    assert process.status == -signal.SIGKILL
    wait_for(lambda: gone(parts["front"]), "the front's end")
    network.start("c")
    _finished(network, key)


def test_a_launcher_that_is_killed_leaves_nobody_behind(network: Processes) -> None:
    key = _begin(network)
    process = network.participants["c"]
    parts = children(process.pid)
    process.kill()
    wait_for(lambda: all(map(gone, parts.values())), "everybody's end")
    network.start("c")  # it gets the state's lock
    _finished(network, key)


def offered(pid: int) -> int:
    """How far a process is offered to the kernel where memory runs out."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_memory_that_runs_out_ends_what_is_started_anew_before_guard_and_launcher(network: Processes) -> None:
    network.heal()
    launcher = network.participants["c"].pid
    parts = children(launcher)
    assert offered(parts["front"]) == 1000 > offered(parts["guard"]) == offered(launcher)


@pytest.mark.parametrize("role", ["reader", "maps", "compiler"])
def test_a_worker_goes_first_before_it_was_asked_anything(role: str) -> None:
    worker = ProcessStarter().start(role)
    try:
        wait_for(lambda: offered(worker.process.pid) == 1000, "its offer")
    finally:
        worker.end()


def _alone() -> list[str]:
    """Words before a command that make it the first process of a container, as far as processes go; skips without them."""
    words = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-current-user"])]
    words += ["--pid", "--mount-proc", "--fork", "--kill-child"]
    try:
        done = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(str(error))
    if done.returncode:
        pytest.skip(done.stderr)
    return words


class _Contained(Process):
    """A process that is the first one of its namespace."""

    def __init__(self, line: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._child = subprocess.Popen(line, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    @property
    def first(self) -> int:
        (found,) = psutil.Process(self.pid).children()
        return int(found.pid)


def test_a_site_that_is_a_containers_first_process(network: Processes) -> None:
    """Its parts know their parent, whose number is that of orphans' elsewhere; what is left to it is taken away."""
    alone = _alone()
    network.heal()
    network.participants["c"].kill()
    place = network.directory("c")
    line = [*alone, sys.executable, *command("participant", place / "participant.toml")]
    network.participants["c"] = contained = _Contained(line, place / "log")
    _finished(network, _begin(network))
    wait_for(lambda: "reader" not in children(contained.first), "the reader's end")
    parts = psutil.Process(contained.first).children(recursive=True)
    assert [part.pid for part in parts if part.status() == psutil.STATUS_ZOMBIE] == []
    os.kill(contained.first, signal.SIGTERM)
    wait_for(lambda: not contained.alive, "the end")
    assert contained.status == 0
    network.heal()


def test_an_edited_ledger_is_found_by_a_process_that_ends_again(network: Processes) -> None:
    """The guard, which holds the keys, is told; and nobody is left."""
    network.heal()
    log, state = network.directory("c") / "log", network.directory("c") / "participant.db"
    wait_for(lambda: "ledger verified: " in log.read_text(), "the verification of the start")
    network.participants["c"].stop()
    with sqlite3.connect(state) as database:
        ((trigger,),) = database.execute("SELECT sql FROM sqlite_master WHERE name = 'ledger_no_update'").fetchall()
        database.execute("DROP TRIGGER ledger_no_update")
        database.execute("UPDATE ledger SET time = time + 1 WHERE seq = 2")
    network.start("c")
    wait_for(lambda: "the ledger does not verify: Ledger entry 2 fails" in log.read_text(), "the fault")
    launcher = psutil.Process(network.participants["c"].pid)
    wait_for(lambda: {part.pid for part in launcher.children()} == set(children(launcher.pid).values()), "its end")
    network.participants["c"].stop()
    with sqlite3.connect(state) as database:
        database.execute("UPDATE ledger SET time = time - 1 WHERE seq = 2")
        database.execute(trigger)
    network.heal()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_site_in_processes_stops_as_one(network: Processes, number: signal.Signals) -> None:
    """Also where all of them are signalled, as a terminal and systemd do: the front waits for the guard."""
    network.heal()
    process = network.participants["c"]
    parts = children(process.pid)
    assert {"front", "guard"} <= set(parts) <= {"front", "guard", "reader", "compiler"}
    for pid in (*parts.values(), process.pid):
        os.kill(pid, number)
    wait_for(lambda: not process.alive, "the end")
    assert process.status == 0
    assert all(map(gone, parts.values()))
    assert "stopped" in (network.directory("c") / "log").read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("", "loop"),
        ("c", "end"),
        *(pytest.param(name, moment, marks=pytest.mark.system) for name in ("", "a") for moment in ("exit", "end")),
        pytest.param("c", "exit", marks=pytest.mark.system),
    ],
)
def test_who_is_told_to_stop_once_more_while_it_ends_has_stopped(
    network: Processes, monkeypatch: pytest.MonkeyPatch, name: str, moment: str
) -> None:
    """A coordinator, a site in one process, and the guard of one in several, whose launcher hands on a signal that the guard
    had already: an interpreter that ends has given up its handlers."""
    network.heal()
    role, module = ("participant", "veilsum_participant.session") if name else ("coordinator", VEILSUM[1])
    directory = network.directory(name) if name else network.kit.coordinator.directory
    config = str(directory / f"{role}.toml")
    arguments = ["-P", "-m", "support.signalled", moment, module, *([config] if name else [role, "start", "--config", config])]
    monkeypatch.setattr(
        network,
        "launch",
        lambda *_: Process(arguments, directory / "log", {"PYTHONPATH": str(Path(__file__).parents[1])}),
    )
    before = network.participants[name] if name else network.coordinator
    assert before is not None
    before.stop()
    if name:
        network.start(name)
    else:
        network.start_coordinator()
    process = network.participants[name] if name else network.coordinator
    assert process is not None
    network.heal()
    process.terminate()
    wait_for(lambda: not process.alive, "the end")
    assert process.status == 0
    assert "stopped" in (directory / "log").read_text().splitlines()[-1]


def test_a_front_has_no_file_of_the_sites_open_and_no_variable_of_its_settings(network: Processes) -> None:
    network.heal()
    parts = children(network.participants["c"].pid)
    own = Path("/proc") / str(parts["front"])
    assert "CapEff:\t0000000000000000" in (own / "status").read_text() or os.getuid() == 0
    status = dict(line.split(":\t", 1) for line in (own / "status").read_text().splitlines() if ":\t" in line)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_a_front_that_says_nothing_at_once_is_asked_now_and_then(network: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as fast as it answers, which would take the guard's processor."""
    network.heal()
    directory = network.directory("c")
    arguments = ["-P", "-m", "support.restless_front", str(directory / "participant.toml")]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1])}
    network.participants["c"].stop()
    before = len((directory / "log").read_text())
    with monkeypatch.context() as other:
        other.setattr(network, "launch", lambda *_: Process(arguments, directory / "log", environment))
        network.start("c")
    wait_for(lambda: TOLD in (directory / "log").read_text()[before:], "what the front tells")
    seconds = float((directory / "log").read_text()[before:].partition(TOLD)[2].split()[0])
    assert seconds >= (ASKED - 1) * PAUSE_SECONDS
    network.participants["c"].stop()
    network.start("c")


# -- a front that was taken over, in this process: what it may say -----------------------------------------------------------


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    return make_bed(tmp_path, make_data("abc", 5, 3))


class Hijacked:
    """A front in whose place somebody else answers some requests."""

    def __init__(self, **instead: Callable[[Any], Message]) -> None:
        self._front, self.instead = Front(), dict(instead)
        self.asked: list[Inquiry[Any]] = []
        self.said: list[Message] = []

    def answer(self, request: Inquiry[Any]) -> Message:
        self.asked.append(request)
        other = self.instead.get(type(request).__name__)
        self.said.append(self._front.answer(request) if other is None else other(request))
        return self.said[-1]


def _channel(bed: TestBed, hijacked: Hijacked, address: str) -> SiteChannel:
    site = bed.sites["a"]
    site.config = site.config.model_copy(update={"coordinator": address})
    channel = SiteChannel(Direct(hijacked.answer, told), site.credentials, site.clock)
    channel.dial(dialling(site.config.route))
    return channel


def test_a_front_cannot_show_a_greeting_again(bed: TestBed) -> None:
    """The challenge is the guard's own and another each time."""
    hijacked = Hijacked()
    with running_server(bed) as (_, address):
        channel = _channel(bed, hijacked, address)
        channel.hello()
        former = hijacked.said[-1]
        hijacked.instead["Hello"] = lambda _: former
        with pytest.raises(HostileInput):
            channel.greet_again()
        hellos = [item.challenge for item in hijacked.asked if isinstance(item, says.Hello)]
        assert len(set(hellos)) == len(hellos) == 2
        channel.hang()


def test_another_coordinators_proof_is_taken_over_at_no_time(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that stands between two coordinators: what a thread says meanwhile is said to the one that the session is of."""
    from veilsum_participant.session import channel as module

    seen: list[tuple[str, bytes]] = []
    with running_server(bed) as (_, address):
        channel = _channel(bed, Hijacked(), address)
        channel.hello()
        proven = channel.coordinator, channel.coordinator_certificate
        real = module.verify_greeting

        def another(*given: Any, **named: Any) -> Any:
            return replace(real(*given, **named), name="another")

        class Watched(module.SiteChannel):
            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, value)
                if name == "coordinator":
                    seen.append((value, getattr(self, "coordinator_certificate", b"")))

        monkeypatch.setattr(module, "verify_greeting", another)
        channel.__class__ = Watched
        with pytest.raises(HostileInput, match="now is another"):
            channel.greet_again()
        assert seen == []
        assert (channel.coordinator, channel.coordinator_certificate) == proven
        channel.hang()


def test_a_front_cannot_give_a_session_another_certificate_or_name(bed: TestBed) -> None:
    """Of a coordinator whose key it lacks, of another role whose key it has, or by a name in words."""
    hijacked = Hijacked()
    own = bed.sites["a"].credentials
    with running_server(bed) as (_, address):
        channel = _channel(bed, hijacked, address)
        channel.hello()
        honest = hijacked.said[-1]
        assert isinstance(honest, says.HelloReply)
        for certificate, signature in (
            (own.identity.certificate, honest.signature),
            (bed.sites["b"].credentials.identity.certificate, honest.signature),
            (honest.certificate, b""),
            (honest.certificate, own.signing_key.sign(says_label(), bytes(32))),
        ):
            forged = says.HelloReply(
                version=honest.version, now=honest.now, coordinator="x", certificate=certificate, signature=signature
            )
            hijacked.instead["Hello"] = lambda _, forged=forged: forged
            with pytest.raises(HostileInput):
                channel.hello()
        del hijacked.instead["Hello"]
        channel.hello()
        assert channel.coordinator == bed.hub.credentials.identity.name
        channel.hang()


def says_label() -> Any:
    from veilsum_node.identity import Label

    return Label.HELLO


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (says.Came(directive=b"\xff"), HostileInput),
        (says.Came(directive=b"\x12\x42" + bytes(66)), HostileInput),
        (says.Acknowledged(), UndeliveredError),
        (CallFailedError(says.Failed(status=16, details="words\x1b[2J")), UndeliveredError),
        (CallFailedError(says.Failed()), UndeliveredError),
        (BrokenError("gone"), UndeliveredError),
        (ArithmeticError(), UndeliveredError),
    ],
)
def test_what_a_front_says_of_directives_is_one_or_ends_the_session(bed: TestBed, answer: Any, error: type[Exception]) -> None:
    def said(_: object) -> Message:
        if isinstance(answer, Exception):
            raise answer
        return answer

    hijacked = Hijacked(Dial=lambda _: says.Acknowledged(), Work=lambda _: says.Acknowledged(), Next=said)
    channel = _channel(bed, hijacked, "localhost:1")
    with pytest.raises(error) as raised:
        next(channel.directives(bytes(16)))
    assert str(raised.value).isprintable()


def test_a_front_that_holds_on_to_a_call_for_ever_is_given_up_and_the_site_goes_on(
    bed: TestBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the session, keeps a worker's call, and would keep the study's next session waiting for it."""
    monkeypatch.setattr(client_module, "HANG_SECONDS", 0.0)
    monkeypatch.setattr(client_module, "TICK_SECONDS", 0.05)
    asked, never = threading.Event(), threading.Event()

    def holds(_: Any) -> Message:
        asked.set()
        never.wait(PATIENCE)
        return says.Acknowledged()

    def over(request: Any) -> Message:
        return says.Came(over=1) if asked.is_set() else hijacked._front.answer(request)

    hijacked = Hijacked(Enrol=holds, Next=over)
    ours, theirs = pair()
    arguments = (FramedSocket(theirs), says.REQUESTS, hijacked.answer, told)
    serving = threading.Thread(target=serve, args=arguments, kwargs={"at_once": (says.Hang,)}, daemon=True)
    serving.start()
    taken_over = Caller(FramedSocket(ours), says.Failed)
    fronts: list[Peer] = [taken_over]
    site = bed.sites["a"]
    with running_server(bed) as (server, address):
        site.config = site.config.model_copy(update={"coordinator": address})
        client = client_module.Client(site, lambda: fronts.pop() if fronts else in_process())
        running = threading.Thread(target=client.run, daemon=True)
        running.start()
        wait_for(lambda: "a" in server.hub.sessions and server.hub.sessions["a"].connected, "the session")
        with connect(address, bed.analyst, bed.kit.analyst.identity, bed.clock()) as remote:
            key = remote.submit(bed.compile(make_request(schema_of(3), epsilon=None)), bed.analyst)
        wait_for(lambda: server.hub.studies[key].machine.seats["a"].enrolment is not None, "the enrolment by another front")
        assert taken_over.broken
        never.set()
        client.stop()
        running.join(PATIENCE)
        serving.join(PATIENCE)


def test_a_front_is_given_no_key_but_that_of_connections_and_no_record(bed: TestBed) -> None:
    """What goes to it when a session is dialled: PEM and addresses, nothing of the state."""
    hijacked = Hijacked(Dial=lambda _: says.Acknowledged())
    _channel(bed, hijacked, "localhost:1")
    (dialled,) = hijacked.asked
    assert isinstance(dialled, says.Dial)
    own = bed.sites["a"].credentials
    assert (dialled.key, dialled.certificate) == (own.key_pem, own.certificate_pem)
