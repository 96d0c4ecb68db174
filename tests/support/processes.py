"""A federation of real processes over mutual TLS on loopback, each participant behind a proxy that can stall or cut it.

Processes are started, paused and killed by their own id. What they did is read from outside: over the analyst's calls, and
from the files that they leave.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
from numpy.typing import NDArray
from sqlalchemy import delete, select

from support.federation import DATASET, Data, Parties
from support.forked import ForkedCommand
from support.network import PATIENCE, wait_for
from support.proxy import Proxy
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.storage.records import RELEASES, SUMS
from veilsum_node.database import open_database
from veilsum_node.database_places import open_readonly
from veilsum_node.identity import load_credentials
from veilsum_node.transport.channel import open_channel
from veilsum_participant.store.attempts import ATTEMPTS
from veilsum_participant.store.populations import COHORTS
from veilsum_participant.store.studies import STUDIES
from veilsum_privacy.ledger.entries import Entry, Kind
from veilsum_privacy.ledger.reader import LedgerReader
from veilsum_privacy.study.study import Study
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub

OVER = ("finished", "failed", "aborted")
VEILSUM = ("-m", "veilsum_deploy.cli")


def gone(pid: int) -> bool:
    """Whether a process has ended, be it waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Process:
    """One child process, its output in a file.

    Args:
        command: of the interpreter: a script or module and its arguments.
        log: the file.
        environment: variables that are set for it, beside those of this process.
        forked: whether a command of ``veilsum`` is run by a fork, without an interpreter of its own.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, forked: bool = False
    ) -> None:
        self.log = log
        self._child: subprocess.Popen[bytes] | ForkedCommand
        if forked:
            assert tuple(command[:2]) == VEILSUM
            self._child = ForkedCommand(command[2:], log, environment or {})
            return
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                [sys.executable, *command],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._child.poll()

    def terminate(self) -> None:
        """Ask it to end as an operator would; returns at once."""
        if self.alive:
            self._child.terminate()

    def pause(self) -> None:
        """Stop the process and those that it started where they are; their connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process, and those that it started, go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Send it to the process first, which then starts no other, and to all that it started."""
        process = psutil.Process(self._child.pid)
        process.send_signal(number)
        for started in process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                started.send_signal(number)

    def kill(self) -> None:
        """End the process at once (SIGKILL) and reap it; what it started and was paused with it finds itself alone."""
        started = psutil.Process(self._child.pid).children(recursive=True) if self.alive else []
        self._child.kill()
        self._child.wait(PATIENCE)
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def stop(self) -> int:
        """End the process as an operator would; returns its exit status."""
        if self.alive:
            self.resume()
            self._child.terminate()
            try:
                return self._child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        assert self._child.returncode is not None
        return self._child.returncode


@dataclass(frozen=True)
class ReleaseRow:
    """A release as the coordinator journalled it: values in grid units."""

    round: int
    attempt: int
    cohort: tuple[str, ...]
    values: NDArray[np.int64]


class Processes(Parties):
    """A coordinator and participants; use :func:`running_processes`.

    Their processes are forked unless each shall have an interpreter of its own.
    """

    def __init__(
        self,
        directory: Path,
        data: Data,
        *,
        waits: Waits,
        budget: tuple[float | None, float],
        max_peer_streams: int,
        forked: bool = True,
        isolation: str = "none",
        isolated: Collection[str] | None = None,
        **policy: Any,
    ) -> None:
        super().__init__(directory, data, **policy)
        self.forked = forked
        self.waits = waits
        self.proxies = {name: Proxy(("127.0.0.1", 1)) for name in self.names}
        self.participants: dict[str, Process] = {}
        self.coordinator: Process | None = None
        self.address = ""
        self._counted = 0
        self._channel: grpc.Channel | None = None
        self._max_peer_streams = max_peer_streams
        self._write_coordinator(max_peer_streams)
        for name in self.names:
            of_it = isolation if isolated is None or name in isolated else "none"
            write_participant(self, name, self.proxies[name].address, budget, of_it)

    # -- processes ---------------------------------------------------------------------------------------------------------

    def _write_coordinator(self, max_peer_streams: int) -> None:
        top = {"listen": "127.0.0.1:0", "ready_file": "ready", "max_peer_streams": max_peer_streams}
        metrics = {"listen": "127.0.0.1:0", "ready_file": "metrics-address"}
        tables = {"": top, "waits": self.waits.model_dump(), "metrics": metrics}
        write_toml(self.kit.coordinator.directory / "coordinator.toml", tables)

    def restart_coordinator(self, waits: Waits) -> None:
        """Start the coordinator anew with other waits; participants are connected when this returns."""
        self._coordinator.kill()
        self.waits = waits
        self._write_coordinator(self._max_peer_streams)
        self.heal()

    def start_coordinator(self) -> None:
        """Start the coordinator and point every proxy at it."""
        directory = self.kit.coordinator.directory
        ready, metrics = directory / "ready", directory / "metrics-address"
        for address in (ready, metrics):
            address.unlink(missing_ok=True)
        self.coordinator = self.launch("coordinator", directory)
        wait_for(lambda: (ready.exists() and metrics.exists()) or not self._coordinator.alive, "the coordinator's address")
        assert self._coordinator.alive, self._coordinator.log.read_text()
        self.address = ready.read_text().strip()
        host, port = self.address.rsplit(":", 1)
        for proxy in self.proxies.values():
            proxy.target = (host, int(port))
        if self._channel is not None:
            self._channel.close()
        self._channel = open_channel(self.address, self.analyst)
        self.studies = StudiesStub(self._channel)

    @property
    def _coordinator(self) -> Process:
        assert self.coordinator is not None
        return self.coordinator

    def start(self, *names: str) -> None:
        """Start participants."""
        for name in names:
            self.participants[name] = self.launch("participant", self.directory(name))

    def launch(self, role: str, directory: Path) -> Process:
        """Start one process; what runs it in another way overrides this."""
        return Process(command(role, directory / f"{role}.toml"), directory / "log", forked=self.forked)

    def heal(self) -> None:
        """Bring everything back: no limits, every process running and connected."""
        for proxy in self.proxies.values():
            proxy.release()
        if self.coordinator is None or not self.coordinator.alive:
            self.start_coordinator()
        for name in self.names:
            process = self.participants.get(name)
            if process is None or not process.alive:
                self.start(name)
            else:
                process.resume()
        wait_for(lambda: self.connected() == set(self.names), "every participant's session")

    def stop(self) -> None:
        """Stop every process, then every proxy; leaves no child behind."""
        started = [*self.participants.values(), *((self.coordinator,) if self.coordinator else ())]
        for process in started:
            process.stop()
        assert not any(process.alive for process in started), "a process outlived the test"
        for proxy in self.proxies.values():
            proxy.close()
        if self._channel is not None:
            self._channel.close()

    def connected(self) -> set[str]:
        """Names of participants with an open session."""
        reply = self.studies.Describe(pb.DescribeRequest(), timeout=PATIENCE)
        return {item.name for item in reply.participants if item.connected}

    # -- studies -----------------------------------------------------------------------------------------------------------

    def submit(self, study: Study) -> bytes:
        """Sign and submit a study; returns its digest."""
        self._counted = self._contributions()
        return bytes(self.studies.Submit(pb.SubmitRequest(study=self.signed(study)), timeout=PATIENCE).study)

    def status(self, key: bytes) -> pb.StudyStatus:
        """What the coordinator shows of a study."""
        return self.studies.Show(pb.ShowRequest(study=key), timeout=PATIENCE)

    def await_status(self, key: bytes, condition: Callable[[pb.StudyStatus], bool], what: str) -> pb.StudyStatus:
        """Poll a study's status until the condition holds."""
        seen: list[pb.StudyStatus] = []

        def holds() -> bool:
            seen[:] = [self.status(key)]
            return condition(seen[0])

        wait_for(holds, what)
        return seen[0]

    def await_round(self, key: bytes, phase: str) -> pb.StudyStatus:
        """Wait until the study's last round is in a phase."""
        return self.await_status(key, lambda shown: bool(shown.rounds) and shown.rounds[-1].phase == phase, f"phase {phase}")

    def await_end(self, key: bytes) -> pb.StudyStatus:
        """Wait until the study is over."""
        return self.await_status(key, lambda shown: shown.phase in OVER, "the study's end")

    def await_contributions(self, count: int) -> None:
        """Wait until so many contributions are in, receipts included, since the last study was submitted."""
        wait_for(lambda: self._contributions() - self._counted >= count, f"{count} contributions")

    def _contributions(self) -> int:
        directory = self.kit.coordinator.directory
        request = urllib.request.Request(f"http://{(directory / 'metrics-address').read_text().strip()}/metrics")
        if (token := directory / "token").exists():
            request.add_header("Authorization", f"Bearer {token.read_text().strip()}")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 - of this machine
            lines = answer.read().decode().splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("veilsum_contributions_total{"))

    # -- what they leave on disk -------------------------------------------------------------------------------------------

    def releases(self, key: bytes) -> list[ReleaseRow]:
        """Releases of a study in the coordinator's journal."""
        query = select(RELEASES).where(RELEASES.c.study == key).order_by(RELEASES.c.round)
        rows = self._query(self._journal, query)
        return [
            ReleaseRow(row["round"], row["attempt"], tuple(json.loads(row["cohort"])), np.frombuffer(row["values"], "<i8"))
            for row in rows
        ]

    def kept_sums(self, key: bytes) -> int:
        """How many complete sums of a study the coordinator holds beside those that it released."""
        released = {release.round for release in self.releases(key)}
        rows = self._query(self._journal, select(SUMS.c.round, SUMS.c.size).where(SUMS.c.study == key))
        return sum(row["size"] is not None and row["round"] not in released for row in rows)

    def forget_cohorts(self) -> None:
        """Let every site stand as one whose population released nothing yet: an exact sum allows no other cohort near it."""
        for name in self.names:
            with open_database(self._state(name)) as database, database.transaction() as connection:
                connection.execute(delete(COHORTS))

    def attempts(self, name: str, key: bytes) -> list[dict[str, Any]]:
        """A participant's attempts of a study, as stored."""
        return self._query(self._state(name), select(ATTEMPTS).where(ATTEMPTS.c.study == key))

    def study_row(self, name: str, key: bytes) -> dict[str, Any] | None:
        """A participant's row of a study."""
        rows = self._query(self._state(name), select(STUDIES).where(STUDIES.c.digest == key))
        return rows[0] if rows else None

    def entries(self, name: str, key: bytes) -> list[Entry]:
        """A participant's ledger entries of a study, after verifying the whole ledger."""
        credentials = load_credentials(self.directory(name) / "identity", int(time.time()))
        with open_readonly(self._state(name)) as database:
            reader = LedgerReader(database)
            reader.verify(authority=credentials.authority)
            return reader.entries(study=key)

    def audit(self, key: bytes, charged: str, released: str = "") -> None:
        """Check what must hold everywhere once a study is over, whatever happened in it.

        Ledgers verify; exactly the named participants were charged, once; exactly the named saw the release; no reservation
        is open; no payload, seed or key of the study is left.
        """
        self.heal()
        for name in self.names:
            self.await_over(name, key)
            entries = self.entries(name, key)
            assert count(entries, Kind.CHARGE) == (name in charged), name
            assert count(entries, Kind.RELEASE_SEEN) == (name in released), name
            assert not open_contexts(entries), name
            for attempt in self.attempts(name, key):
                assert attempt["state"] in ("tombstone", "consented", "released"), name
                assert attempt["payload"] is attempt["words"] is attempt["shown"] is None, (name, attempt["state"])
            row = self.study_row(name, key) or {}
            assert not any(row.get(secret) for secret in ("box_key", "shares", "seeds")), name

    def await_over(self, name: str, key: bytes) -> None:
        """Wait until the study is over at a participant."""

        def over() -> bool:
            row = self.study_row(name, key)
            return row is None or row["status"] in ("ended", "left")

        wait_for(over, f"the end of the study at {name}")

    @property
    def _journal(self) -> Path:
        return self.kit.coordinator.directory / "state" / "coordinator.db"

    def _state(self, name: str) -> Path:
        return self.directory(name) / "participant.db"

    def _query(self, path: Path, query: Any) -> list[dict[str, Any]]:
        with open_readonly(path) as database, database.reading() as connection:  # no lock: who is paused may hold one
            return [dict(row) for row in connection.execute(query).mappings()]


def open_contexts(entries: Sequence[Entry]) -> set[bytes]:
    """Contexts that are reserved and neither charged nor freed."""
    ended = {entry.reservation.context for entry in entries if entry.kind in (Kind.CHARGE, Kind.FREE)}
    return {entry.reservation.context for entry in entries if entry.kind is Kind.RESERVE} - ended


def count(entries: Sequence[Entry], kind: Kind) -> int:
    """How many entries are of a kind."""
    return sum(entry.kind is kind for entry in entries)


@contextmanager
def running_processes(
    directory: Path,
    data: Data,
    *,
    waits: Waits,
    budget: tuple[float | None, float] = (None, 1e-5),
    max_peer_streams: int = 16,
    isolation: str = "none",
    isolated: Collection[str] | None = None,
    **policy: Any,
) -> Iterator[Processes]:
    """Run a coordinator and participants as processes of their own, or those that are isolated as several; all are stopped."""
    given: dict[str, Any] = {"max_peer_streams": max_peer_streams, "isolation": isolation, "isolated": isolated}
    processes = Processes(directory, data, waits=waits, budget=budget, **given, **policy)
    try:
        processes.heal()
        yield processes
    finally:
        processes.stop()


def command(role: str, config: Path) -> list[str]:
    """Arguments of the interpreter that start a party."""
    return [*VEILSUM, role, "start", "--config", str(config)]


def write_participant(
    parties: Parties, name: str, coordinator: str, budget: tuple[float | None, float], isolation: str = "none"
) -> None:
    """Write a site's ``participant.toml``; its budget is epsilon, None for no bound, and delta."""
    agreed = parties.policy.model_dump(mode="json", exclude_none=True)
    tables = {
        "": {"coordinator": coordinator, "isolation": isolation},
        f"datasets.{DATASET}": {"path": "records.npz", "most_records": parties.sizes[name]},
        f"budgets.{DATASET}": {"epsilon": "unlimited" if budget[0] is None else budget[0], "delta": budget[1]},
        "policy": {key: value for key, value in agreed.items() if key != "trusted"},
        "policy.trusted": agreed["trusted"],
    }
    write_toml(parties.directory(name) / "participant.toml", tables)


def write_toml(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write tables of plain values; that of the empty name stands at the top."""
    lines = []
    for table, values in tables.items():
        lines += [f"[{table}]"] if table else []
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path.write_text("\n".join(lines) + "\n")


def lasting_port() -> int:
    """A free port that nobody takes while its server is down; see :func:`lasting_ports`."""
    return lasting_ports(1)[0]


def lasting_ports(count: int) -> list[int]:
    """Different free ports, below those that the system hands out to whoever asks for any, as long as there are such."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    below = np.random.default_rng().permutation(np.arange(10_000, min(lowest, 32_768)))
    found: list[int] = []
    with ExitStack() as held:
        for port in itertools.chain(below.tolist(), itertools.repeat(0)):
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(probe.getsockname()[1])
    return found
