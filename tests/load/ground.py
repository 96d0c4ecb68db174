"""A federation of one real coordinator process and many participants, many to a process, over mutual TLS on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from load.figures import Events, Sampler
from load.host import Spec
from support.federation import DATASET, Parties, make_request, schema_of
from support.network import wait_for
from support.processes import OVER, lasting_port
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.transport.channel import open_channel
from veilsum_privacy.study.study import Study
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub

RECORDS, WIDTH = 8, 4
WAITS = Waits(enrol=3600, seal=3600, contribute=3600, consent=3600, check=900, grace=30)


class Ground(Parties):
    """The parties on disk, and their processes.

    Args:
        directory: empty.
        count: how many participants.
        hosts: processes that host them.
        waits: the coordinator's.
        database: URL of its database; SQLite in its state folder by default.
        packages: a tree whose packages the coordinator runs in place of the installed ones, to compare two versions.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        hosts: int = 2,
        waits: Waits = WAITS,
        database: str | None = None,
        packages: Path | None = None,
    ) -> None:
        random = np.random.default_rng(0)
        super().__init__(
            directory,
            {
                f"site-{index:03d}": (random.uniform(-1, 1, (RECORDS, WIDTH)), random.integers(0, 2, RECORDS))
                for index in range(count)
            },
        )
        self.folder, self.waits, self._database, self._packages = directory, waits, database, packages
        self.samplers: list[Sampler] = []
        self._shares = [self.names[index::hosts] for index in range(hosts)]
        self._hosts: list[subprocess.Popen[str]] = []
        self._coordinator: subprocess.Popen[bytes] | None = None
        self._listen, self.address = f"127.0.0.1:{lasting_port()}", ""
        self._channel: grpc.Channel | None = None

    # -- the coordinator ---------------------------------------------------------------------------------------------------

    def start_coordinator(self) -> float:
        """Start it, the second time at the same address; returns how long it took to listen, in seconds."""
        place = self.kit.coordinator.directory
        ready = place / "ready"
        ready.unlink(missing_ok=True)
        waits = "\n".join(f"{key} = {value}" for key, value in self.waits.model_dump().items())
        database = "" if self._database is None else f"database = {json.dumps(self._database)}\n"
        text = f'listen = "{self._listen}"\nready_file = "ready"\n{database}\n[waits]\n{waits}\n'
        (place / "coordinator.toml").write_text(text)
        environment = dict(os.environ)
        if self._packages is not None:
            names = ("proto", "node", "privacy", "aggregation", "participant", "coordinator", "deploy")
            environment["PYTHONPATH"] = os.pathsep.join(str(self._packages / name) for name in names)
        began = time.monotonic()
        with (place / "log").open("ab") as log:
            command = [sys.executable, "-m", "veilsum_deploy.cli", "coordinator", "start", "--config"]
            self._coordinator = subprocess.Popen(
                [*command, str(place / "coordinator.toml")], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
            )
        started = self._coordinator
        wait_for(lambda: ready.exists() or started.poll() is not None, "the coordinator's address")
        assert started.poll() is None, (place / "log").read_text()[-2000:]
        self._listen = self.address = ready.read_text().strip()
        self.samplers.append(Sampler(started.pid))
        if self._channel is not None:
            self._channel.close()
        self._channel = open_channel(self.address, self.analyst)
        self.studies = StudiesStub(self._channel)
        return time.monotonic() - began

    @property
    def coordinator(self) -> subprocess.Popen[bytes]:
        """Its process."""
        assert self._coordinator is not None
        return self._coordinator

    def kill_coordinator(self) -> None:
        """End it at once (SIGKILL)."""
        self.samplers[-1].stop()
        self.coordinator.kill()
        self.coordinator.wait(30)

    # -- participants ------------------------------------------------------------------------------------------------------

    def prepare_hosts(self, roles: Mapping[str, str] | None = None, stalled: Sequence[str] = ()) -> None:
        """Start the hosts; their participants connect with :meth:`connect`."""
        given = dict(roles or {})
        budgets = {"budgets": {DATASET: {"epsilon": "unlimited", "delta": 1e-5}}}
        path = str(Path(__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        for index, share in enumerate(self._shares):
            configs = {name: self.config(name, self.address).model_dump(mode="json") | budgets for name in share}
            spec = Spec(
                configs, str(self._events(index)), {name: given[name] for name in share if name in given}, tuple(stalled)
            )
            spec.write(self.folder / f"host-{index}.json")
            with (self.folder / f"host-{index}.log").open("ab") as log:
                child = subprocess.Popen(
                    ["nice", "-n", "5", sys.executable, "-m", "load.host", str(self.folder / f"host-{index}.json")],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environment,
                )
            self._hosts.append(child)
        for child in self._hosts:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n", "a host did not start; its log says why"

    def connect(self) -> float:
        """Let all prepared participants connect at once; returns the time."""
        began = time.time()
        for child in self._hosts:
            assert child.stdin is not None
            child.stdin.write("connect\n")
            child.stdin.flush()
        return began

    def kill_hosts(self) -> None:
        """End all participants at once (SIGKILL)."""
        for child in self._hosts:
            child.kill()
            self._reap(child)
        self._hosts.clear()

    def leave(self) -> None:
        """Let the hosts write what they counted, and end."""
        for child in self._hosts:
            assert child.stdin is not None
            child.stdin.close()
            self._reap(child)
        self._hosts.clear()

    @staticmethod
    def _reap(child: subprocess.Popen[str]) -> None:
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(30)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()

    def host_cpu(self) -> float:
        """Processor seconds of all hosts so far."""
        return sum(Sampler.read(child.pid)[0] for child in self._hosts)

    def _events(self, index: int) -> Path:
        return self.folder / f"events-{index}.jsonl"

    def events(self) -> Events:
        """What all participants did so far."""
        return Events.read(self._events(index) for index in range(len(self._shares)))

    def stop(self) -> None:
        """End every process."""
        self.kill_hosts()
        if self._channel is not None:
            self._channel.close()
        if self._coordinator is not None:
            self.samplers[-1].stop()
            if self._coordinator.poll() is None:
                self._coordinator.send_signal(signal.SIGTERM)
                try:
                    self._coordinator.wait(30)
                except subprocess.TimeoutExpired:
                    self.kill_coordinator()

    # -- the analyst -------------------------------------------------------------------------------------------------------

    def connected(self) -> int:
        """How many sessions are open, as the coordinator says; -1 if it does not answer."""
        try:
            return sum(item.connected for item in self.studies.Describe(pb.DescribeRequest(), timeout=30).participants)
        except grpc.RpcError:
            return -1

    def await_sessions(self, count: int, seconds: float = 900.0) -> float:
        """Wait until so many sessions are open; returns the time."""
        end = time.monotonic() + seconds
        while (found := self.connected()) < count:
            assert time.monotonic() < end, f"{found} of {count} sessions after {seconds:.0f} s"
            time.sleep(0.1)
        return time.time()

    def study(self, name: str, min_cohort: int, without: Sequence[str] = (), **privacy: Any) -> Study:
        """A study of statistics of all participants, ``without`` these."""
        request = make_request(schema_of(WIDTH, max_records=100), min_cohort=min_cohort, **privacy)
        sites = [site for site in self.names if site not in without]
        return self.compile(request.model_copy(update={"name": name}), sites)

    def submit(self, study: Study) -> bytes:
        """Sign and submit; returns the study's digest."""
        return bytes(self.studies.Submit(pb.SubmitRequest(study=self.signed(study)), timeout=60).study)

    def status(self, key: bytes) -> pb.StudyStatus:
        """What the coordinator shows of a study; waits while it does not answer."""
        end = time.monotonic() + 120
        while True:
            try:
                return self.studies.Show(pb.ShowRequest(study=key), timeout=60)
            except grpc.RpcError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def await_phase(self, key: bytes, *phases: str, seconds: float = 3600.0) -> pb.StudyStatus:
        """Wait until the study, or its last round, is in one of the phases."""
        end = time.monotonic() + seconds
        while True:
            shown = self.status(key)
            found = {shown.phase, *(item.phase for item in shown.rounds[-1:])}
            if found & set(phases) or shown.phase in OVER:
                return shown
            assert time.monotonic() < end, f"the study is {shown.phase} {[item.phase for item in shown.rounds]}"
            time.sleep(min(1.0, len(self.names) / 100))  # what is shown costs the coordinator in proportion to the members

    def finish(self, key: bytes, seconds: float = 3600.0) -> pb.StudyStatus:
        """Wait for the study's end; it must be a good one."""
        shown = self.await_phase(key, *OVER, seconds=seconds)
        assert shown.phase == "finished", (shown.phase, shown.reason)
        return shown

    def settle(self, key: bytes, seconds: float = 300.0) -> None:
        """Wait until everyone has heard of a study's end, or the time is over."""
        shown = self.status(key)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done = {event.name for event in self.events().all if event.kind == "end" and event.study == key.hex()}
            if len(done) == len(shown.participants):
                return
            time.sleep(0.2)


@contextmanager
def ground(directory: Path, count: int, **options: Any) -> Iterator[Ground]:
    """A federation whose coordinator runs; everything is stopped at the end."""
    made = Ground(directory, count, **options)
    try:
        made.start_coordinator()
        yield made
    finally:
        made.stop()
