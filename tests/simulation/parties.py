"""The parties as processes that can die: a database in memory that outlives them, a clock of their own, and points of death.

A process dies at a point: before a statement that writes, before or after a commit, before or after a message. Death is an
exception that no code of the product catches; what a dead process still tries to write or send raises it again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event

from support.randomness import SeededRandom
from veilsum_coordinator.hub import Hub
from veilsum_coordinator.journal import SqlJournal
from veilsum_coordinator.settings import Waits
from veilsum_participant.config import ParticipantConfig
from veilsum_participant.core import ParticipantCore
from veilsum_participant.site import Site
from veilsum_privacy import database
from veilsum_privacy.identity import Credentials
from veilsum_privacy.ledger import Ledger
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.randomness import RandomSource
from veilsum_proto import federation_pb2 as pb


class Died(BaseException):
    """A process met its death."""


class Disk:
    """A party's database in memory: what is committed outlives the process. Counts points, and kills at one of them."""

    def __init__(self) -> None:
        self.passed, self._fatal = 0, 0
        self.dead = False
        self.engine: Engine = database.open_database(":memory:")
        with self.engine.connect() as connection:
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, sqlite3.Connection)
            self.raw: sqlite3.Connection = raw
        event.listen(self.engine, "before_execute", self._statement)
        event.listen(self.engine, "commit", lambda _: self.point())
        DISKS[id(self.engine)] = self

    def load(self, image: bytes) -> None:
        """Begin with what a template holds."""
        self.raw.deserialize(image)
        self.revive()

    def image(self) -> bytes:
        """All that is committed."""
        return bytes(self.raw.serialize())

    def revive(self) -> None:
        """A new process opens it."""
        self.dead, self._fatal = False, 0

    def doom(self, points: int) -> None:
        """The process dies at its ``points``-th point from here on."""
        self._fatal = self.passed + points

    def spare(self) -> None:
        """It does not die after all."""
        self._fatal = 0

    def kill(self) -> None:
        """It is dead now."""
        self.dead = True

    def point(self) -> None:
        """One point.

        Raises:
            Died: the process is dead, or dies here.
        """
        self.passed += 1
        if self.passed == self._fatal:
            self.dead = True
        if self.dead:
            raise Died

    def rows(self, query: str, *values: Any) -> list[Any]:
        """What is committed, read beside the product's code."""
        return list(self.raw.execute(query, values))

    def _statement(self, _connection: Any, statement: Any, *_: Any) -> None:
        # before the driver is asked: an exception from inside it would let SQLAlchemy close the connection
        if getattr(statement, "is_dml", False):
            self.point()


DISKS: dict[int, Disk] = {}
"""By the engine's id, which lives as long as the process."""

_TRANSACTION = database.transaction


@contextmanager
def mortal_transaction(engine: Engine) -> Iterator[Any]:
    """In the place of :func:`veilsum_privacy.database.transaction`: after the commit there is a point as well."""
    with _TRANSACTION(engine) as connection:
        yield connection
    if (disk := DISKS.get(id(engine))) is not None:
        disk.point()


def no_migration(*_: object) -> None:
    """In the place of :func:`veilsum_privacy.database.migrate`: every image has the present layout."""


def no_scrub(_: object) -> None:
    """In the place of :func:`veilsum_privacy.database.scrub`: a database in memory has no log beside it."""


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
        fetched: the objects that it got, by kind and round.
        cut: whether nothing passes between it and the coordinator.
        born: how often it was started.
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
    fetched: dict[tuple[int, int], bytes] = field(default_factory=dict)
    cut: bool = False
    busy: bool = False
    born: int = 0

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
        ledger = Ledger(self.disk.engine, credentials=self.credentials, clock=self.clock, random=random)
        noise: RandomSource = SeededRandom(source + b"noise")
        site = Site(self.config, self.credentials, self.disk.engine, ledger, self.clock, random, noise)
        self.core, self.serial, self.inbox = ParticipantCore(site), None, []

    def die(self) -> None:
        """The process is gone; its disk stays."""
        self.disk.kill()
        self.core, self.serial, self.inbox = None, None, []


@dataclass
class Coordinator:
    """The coordinator: its disk, and its hub while the process runs."""

    credentials: Credentials
    disk: Disk
    clock: Skewed
    waits: Waits
    hub: Hub | None = None
    born: int = 0

    def start(self) -> Hub:
        """Start the process: everything is rebuilt from the journal."""
        self.disk.revive()
        self.born += 1
        random: RandomSource = SeededRandom(b"coordinator" + self.born.to_bytes(4, "big"))
        mirror = Mirror(self.disk.engine, credentials=self.credentials, clock=self.clock, random=random)
        journal = SqlJournal(self.disk.engine, mirror)
        self.hub = Hub(self.credentials, journal, waits=self.waits, clock=self.clock)
        return self.hub

    def die(self) -> None:
        """The process is gone; its disk stays."""
        self.disk.kill()
        self.hub = None
