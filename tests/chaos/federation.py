"""A federation of real processes that are killed and, as a service manager would, started again after a while.

Nothing here waits but :meth:`Federation.heal` and :meth:`Federation.stop`: :meth:`Federation.mind` is called again and again,
and starts what is due.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from chaos.leftovers import files, shared_memory
from chaos.plans import COORDINATOR, FederationPlan, Strike, Way
from chaos.reading import Row, glimpse, rows
from support.federation import Data, Parties
from support.network import wait_for
from support.processes import Process, command, lasting_port, write_participant, write_toml
from support.proxy import Proxy
from veilsum_node.transport.channel import open_channel
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub

DELTA = 1e-5
WIDTH, CLASSES, ROWS = 3, 2, 24
STOP_SECONDS = 60.0
"""As in the units of deploy/systemd."""
ASKED = (0, -signal.SIGTERM, -signal.SIGKILL)
"""Exit statuses of a process that was asked to end: before it has begun it knows no other way than to die of the signal."""


@dataclass
class Party:
    """A party and its process.

    Attributes:
        due: when it is started again, by :func:`time.monotonic`; None while it runs.
        started: when it was last started.
        starts: how often.
        asked: since when it is asked to end, if it is.
        faults: how it ended otherwise than it should.
    """

    name: str
    role: str
    directory: Path
    process: Process | None = None
    due: float | None = 0.0
    started: float = 0.0
    starts: int = 0
    asked: float | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.directory / "log"


class Federation(Parties):
    """Coordinator, sites and an analyst below one folder; everything that the processes may write is in there.

    Args:
        folder: an empty one.
        database: URL of the coordinator's; a file by default.

    Attributes:
        before: files that lay there before the first process began.
        done: strikes as they were carried out: seconds since the federation was made, and what.
        memory: paths of shared memory that a process had open.
    """

    def __init__(self, folder: Path, plan: FederationPlan, database: str | None = None) -> None:
        self.folder, self.plan, self.origin = folder, plan, time.monotonic()
        self.done: list[tuple[float, str]] = []
        self.memory: set[str] = set()
        rng = np.random.default_rng(random.Random(f"data {plan.seed}").getrandbits(64))
        self.data: Data = {name: (rng.uniform(-1, 1, (ROWS, WIDTH)), rng.integers(0, CLASSES, ROWS)) for name in plan.names}
        super().__init__(folder, self.data, disclosures=("joint", "per-site"))
        for name in ("tmp", "home"):
            (folder / name).mkdir(mode=0o700)
        self.environment = {"TMPDIR": str(folder / "tmp"), "HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        self.environment |= {"XDG_CACHE_HOME": str(folder / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
        self.port = lasting_port()
        assert self.port, "no port is free"
        self.proxies = {name: Proxy(("127.0.0.1", self.port)) for name in plan.names}
        self.parties = {COORDINATOR: Party(COORDINATOR, COORDINATOR, self.kit.coordinator.directory)}
        for party in self.kit.participants:
            self.parties[party.name] = Party(party.name, "participant", party.directory)
        self.journal: Path | str = database or self.kit.coordinator.directory / "state" / "coordinator.db"
        self._channel: tuple[int, grpc.Channel] | None = None
        self._configure(database)
        self.before = files(folder)

    def _configure(self, database: str | None) -> None:
        plan = self.plan
        top = {"listen": f"127.0.0.1:{self.port}", "ready_file": "ready"} | ({"database": database} if database else {})
        place = self.parties[COORDINATOR].directory / "coordinator.toml"
        write_toml(place, {"": top, "waits": plan.waits.model_dump()})
        place.chmod(0o600)
        for name in self.names:
            write_participant(self, name, self.proxies[name].address, (plan.budget, DELTA))

    # -- processes ---------------------------------------------------------------------------------------------------------

    def mind(self) -> None:
        """Start what is due; note what ended by itself."""
        now = time.monotonic()
        for party in self.parties.values():
            process = party.process
            if process is not None and party.asked is not None and now - party.asked > STOP_SECONDS:
                party.faults.append(f"{party.name} did not end within {STOP_SECONDS:.0f} s of SIGTERM")
                party.asked = now
                process.kill()
            if process is not None and not process.alive:
                status, party.process = process.status, None
                if party.asked is None or status not in ASKED:
                    told = "by itself" if party.asked is None else "when asked to"
                    party.faults.append(
                        f"{party.name} ended {told}, {now - party.started:.1f} s after it started: status {status}"
                    )
                    party.due = now + 1.0
                party.asked = None
            if party.process is None and party.due is not None and party.due <= now:
                config = party.directory / f"{party.role}.toml"
                party.process = Process(command(party.role, config), party.log, self.environment)
                party.started, party.due = now, None
                party.starts += 1

    def strike(self, strike: Strike) -> None:
        """Let it strike."""
        now = time.monotonic()
        self.memory |= shared_memory(self.pids())
        for name, down in zip(strike.victims, strike.down, strict=True):
            party = self.parties[name]
            if strike.way == "cut":
                self.proxies[name].limit(0, cut=True)
            elif party.process is not None:
                self._end(party, strike.way)
                party.due = now + down
            elif party.due is not None:  # it lies down already, and does so longer
                party.due = max(party.due, now + down)
        self.done.append((now - self.origin, str(strike)))

    @staticmethod
    def _end(party: Party, way: Way) -> None:
        assert party.process is not None
        if way == "stop":
            party.asked = party.asked or time.monotonic()
            party.process.terminate()
        else:
            party.process.kill()
            party.process, party.asked = None, None

    def pids(self) -> list[int]:
        """Of the processes that run."""
        return [party.process.pid for party in self.parties.values() if party.process is not None and party.process.alive]

    def running(self, name: str) -> bool:
        """Whether a party's process runs."""
        process = self.parties[name].process
        return process is not None and process.alive

    def heal(self) -> None:
        """Bring everything back and wait for every site's session."""
        for proxy in self.proxies.values():
            proxy.release()
        for party in self.parties.values():
            if party.process is None:
                party.due = 0.0

        def whole() -> bool:
            self.mind()
            return self.connected() == set(self.plan.names)

        wait_for(whole, "every participant's session")

    def stop(self) -> dict[str, int]:
        """End every process as an operator would; their exit statuses by name."""
        self.memory |= shared_memory(self.pids())
        running = {name: party.process for name, party in self.parties.items() if party.process is not None}
        for process in running.values():
            process.terminate()
        end = time.monotonic() + STOP_SECONDS
        while any(process.alive for process in running.values()) and time.monotonic() < end:
            time.sleep(0.05)
        self.close()
        return {name: process.status or 0 for name, process in running.items()}

    def close(self) -> None:
        """End whatever is left, without a word."""
        for party in self.parties.values():
            if party.process is not None:
                party.process.kill()
        for proxy in self.proxies.values():
            proxy.close()
        if self._channel is not None:
            self._channel[1].close()
            self._channel = None

    # -- the analyst -------------------------------------------------------------------------------------------------------

    @property
    def studies(self) -> StudiesStub:
        """The analyst's calls, over a connection of this life of the coordinator."""
        life = self.parties[COORDINATOR].starts
        if self._channel is None or self._channel[0] != life:
            if self._channel is not None:
                self._channel[1].close()
            self._channel = (life, open_channel(f"127.0.0.1:{self.port}", self.analyst))
        return StudiesStub(self._channel[1])

    def connected(self) -> set[str]:
        """Names of sites with an open session; nobody while the coordinator does not answer."""
        try:
            reply = self.studies.Describe(pb.DescribeRequest(), timeout=5)
        except grpc.RpcError:
            return set()
        return {item.name for item in reply.participants if item.connected}

    # -- what lies on disk -------------------------------------------------------------------------------------------------

    def state(self, name: str) -> Path:
        """A site's state file."""
        return self.parties[name].directory / "participant.db"

    def at_site(self, name: str, query: str, *arguments: Any) -> list[Row]:
        """Rows of a site's state file."""
        return rows(self.state(name), query, *arguments)

    def at_coordinator(self, query: str, *arguments: Any) -> list[Row]:
        """Rows of the coordinator's database."""
        return rows(self.journal, query, *arguments)

    def over_at(self, name: str, key: bytes) -> bool:
        """Whether a site's part in a study is over, or never began."""
        if not self.state(name).exists():
            return True
        found = glimpse(self.state(name), "SELECT status FROM participant_study WHERE digest = ?", key)
        return not found or found[0]["status"] in ("ended", "left")

    def results(self, key: bytes) -> Path:
        """Where a study's result lies."""
        return self.kit.coordinator.directory / "state" / "results" / key.hex()


def verification_arguments(federation: Federation, exports: Mapping[str, Path], name: str) -> list[str]:
    """Arguments of ``veilsum ledger verify`` for a site's export, against everyone else's."""
    authority = federation.parties[COORDINATOR].directory / "identity" / "authority.pem"
    others = [str(part) for other, path in exports.items() if other != name for part in ("--against", path)]
    return ["ledger", "verify", str(exports[name]), "--authority", str(authority), *others]
