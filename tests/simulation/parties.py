"""The parties as processes that can die: each with a disk that outlives it, and a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.disks import Disk
from support.randomness import SeededRandom
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_coordinator.storage.outage import Outage
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.identity import Credentials
from veilsum_node.randomness import RandomSource
from veilsum_participant.data.local import LocalDatasets
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_participant.site import Site
from veilsum_privacy.ledger import Ledger
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_proto import federation_pb2 as pb


class Time:
    """The true time, whole seconds, moved by the history."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


@dataclass
class Skewed:
    """A party's clock."""

    true: Time
    skew: int = 0

    def __call__(self) -> int:
        return self.true.now + self.skew


@dataclass
class Process:
    """A participant: what it has on disk, and the process that runs on it, if one does.

    Attributes:
        serial: of its session as the coordinator counts, None while it believes to have none.
        inbox: directives read and not answered yet.
        heard: every directive that it ever read, to hear it again.
        missed: directives to contribute that it did not come to answer.
        answered: payloads and refusals that it sent or tried to send.
        fetched: the objects that it got, by kind, study and round.
        cut: whether nothing passes between it and the coordinator.
        born: how often it was started.
        caught_up: whether the present process has read the coordinator's mirror.
        restored: whether it runs on a backup, at some time put in the place of its disk.
        backup: an image of its disk, and when it was made.
    """

    config: ParticipantConfig
    credentials: Credentials
    disk: Disk
    clock: Skewed
    seed: bytes
    core: ParticipantCore | None = None
    serial: int | None = None
    inbox: list[pb.Directive] = field(default_factory=list)
    heard: list[pb.Directive] = field(default_factory=list)
    missed: list[pb.Directive] = field(default_factory=list)
    answered: int = 0
    fetched: dict[tuple[int, bytes, int], bytes] = field(default_factory=dict)
    cut: bool = False
    busy: bool = False
    born: int = 0
    caught_up: bool = False
    restored: bool = False
    backup: tuple[bytes, int] | None = None

    @property
    def name(self) -> str:
        """The certified name."""
        return self.credentials.identity.name

    def start(self) -> None:
        """Start the process; it has no session yet."""
        self.disk.revive()
        self.born += 1
        source = self.seed + self.born.to_bytes(4, "big")
        random: RandomSource = SeededRandom(source + b"keys")
        ledger = Ledger(self.disk.database, credentials=self.credentials, clock=self.clock, random=random)
        noise: RandomSource = SeededRandom(source + b"noise")
        site = Site(
            self.config, self.credentials, self.disk.database, ledger, self.clock, random, noise, reading=LocalDatasets
        )
        self.core, self.serial, self.inbox, self.caught_up = ParticipantCore(site), None, [], False

    def die(self) -> None:
        """The process is gone; its disk stays."""
        self.disk.kill()
        self.core, self.serial, self.inbox = None, None, []


class Waiting(Outage):
    """A database that is away is waited for in the history's time."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__()
        self._coordinator = coordinator

    def attempt(self, work: Callable[[], Any], *, waiting: bool = False) -> Any:
        """Do it once."""
        return work()

    def wait(self, work: Callable[[], Any], seconds: float | None = None) -> Any:
        """Do it until it is done."""
        while True:
            try:
                return work()
            except DatabaseAwayError:
                if self._coordinator.pause is None:
                    raise
                self._coordinator.pause()


@dataclass
class Coordinator:
    """The coordinator: its disk, and its hub while the process runs; ``pause``: how the method that runs now waits."""

    credentials: Credentials
    disk: Disk
    clock: Skewed
    waits: Waits
    hub: Hub | None = None
    born: int = 0
    pause: Callable[[], None] | None = None

    def start(self) -> Hub:
        """Start the process: everything is rebuilt from the journal."""
        self.disk.revive()
        self.born += 1
        random: RandomSource = SeededRandom(b"coordinator" + self.born.to_bytes(4, "big"))
        mirror = Mirror(self.disk.database, credentials=self.credentials, clock=self.clock, random=random)
        journal = SqlJournal(self.disk.database, mirror, Waiting(self))
        self.hub = Hub(self.credentials, journal, waits=self.waits, clock=self.clock)
        return self.hub

    def die(self) -> None:
        """The process is gone; its disk stays."""
        self.disk.kill()
        self.hub = None
