"""What every history of a process begins with: identities, data, signed studies, and images of the parties' databases.

A study with noise whose cohort may shrink; one without noise that allows one cohort only; two at once on the same sites; two
that are rivals, because the sites' budget bears one release in all. Each has an image of before it was submitted, and one of
when its keys were exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from simulation.disks import Disk
from simulation.parties import Coordinator, Process, Skewed, Time
from support.federation import DATASET, Parties, make_request, schema_of
from support.randomness import SeededRandom
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.identity import load_credentials
from veilsum_participant.session.client import open_ledger
from veilsum_participant.store.tables import create_tables
from veilsum_privacy.backup.restore import write_mark
from veilsum_privacy.ledger import Ledger
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study, study_digest
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_proto import federation_pb2 as pb

NAMES = ("a", "b", "c")
BEGINNING = 1_900_000_000
MOST_ROUNDS = 2
WAITS = Waits(enrol=3600, seal=600, contribute=3600, consent=600, check=600, grace=30)

Kind = Literal["noised", "strict", "both", "rivals"]
KINDS: tuple[Kind, ...] = ("noised", "strict", "both", "rivals")


class Rounds:
    """The method of the histories: one declared release after the other."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def run(self, federation: Federation) -> Result:
        """Sum, and give the size of each cohort."""
        cohorts = [len(federation.sum("statistics").cohort) for _ in range(self._rounds)]
        return Result("statistics", {"cohorts": cohorts})


@dataclass(frozen=True)
class Signed:
    """A study, signed."""

    kind: Kind
    study: Study
    key: bytes
    submitted: pb.StudyObject
    analyst: str


@dataclass(frozen=True)
class Keyed:
    """What the parties' databases hold when a study's keys are exchanged.

    Attributes:
        images: of the participants'.
        journal: of the coordinator's.
    """

    images: dict[str, bytes]
    journal: bytes


class Ground:
    """Made once in a process.

    Args:
        directory: for keys, data and results.

    Attributes:
        rounds: how many the method of the present history asks for.
    """

    def __init__(self, directory: Path) -> None:
        time = Time(BEGINNING - 90_000)  # clocks that are slow must not find the certificates not valid yet
        self.results, self.rounds = directory / "results", 1
        self._copy = directory / "copy.db"
        rng = np.random.default_rng(1)
        data = {name: (rng.uniform(-1, 1, size=(4, 1)), np.arange(4) % 2) for name in NAMES}
        self._parties = Parties(directory, data, clock=time, noise=("distributed", "none"))
        self.disks = {name: Disk() for name in (*NAMES, "coordinator")}
        self._configs = {name: self._parties.config(name) for name in NAMES}
        self._credentials = {name: load_credentials(config.identity, BEGINNING) for name, config in self._configs.items()}
        self.empty: dict[str, bytes] = {}
        for name, credentials in self._credentials.items():
            database = self.disks[name].database
            ledger = open_ledger(database, credentials, time)
            create_tables(database)
            with database.transaction() as connection:
                ledger.set_budget(connection, DATASET, None, 1e-5, reason="simulation", operator="simulation")
            self.empty[name] = self.disks[name].image()
        self._coordinator = load_credentials(self._parties.kit.coordinator.identity, BEGINNING)
        self._prepare_journal(time)
        self.authority = self._coordinator.authority
        noised = self._sign("noised", MOST_ROUNDS, 7)
        self.studies: dict[Kind, tuple[Signed, ...]] = {
            "noised": (noised,),
            "strict": (self._sign("strict", MOST_ROUNDS, 7),),
            "both": (noised, self._sign("noised", MOST_ROUNDS, 8)),
            "rivals": (self._sign("noised", 1, 9), self._sign("noised", 1, 10)),
        }
        self.keyed: dict[Kind, Keyed] = {}
        self.tight: dict[str, bytes] = {}
        self.budget = 0.0
        self._tighten(time, self.studies["rivals"][0].study)

    def method(self, _: str) -> Rounds:
        """In the place of :func:`veilsum_coordinator.methods.get_method`."""
        return Rounds(self.rounds)

    def participants(self, time: Time, seed: int) -> dict[str, Process]:
        """The participants, not started, on whatever their disks hold."""
        return {
            name: Process(
                self._configs[name], self._credentials[name], self.disks[name], Skewed(time), f"{seed} {name}".encode()
            )
            for name in NAMES
        }

    def coordinator(self, time: Time) -> Coordinator:
        """The coordinator, not started."""
        return Coordinator(self._coordinator, self.disks["coordinator"], Skewed(time), WAITS)

    def _prepare_journal(self, time: Time) -> None:
        from veilsum_coordinator.storage.journal import SqlJournal

        database = self.disks["coordinator"].database
        mirror = Mirror(database, credentials=self._coordinator, clock=time, random=SeededRandom(0))
        SqlJournal(database, mirror)
        self.empty["coordinator"] = self.disks["coordinator"].image()

    def marked(self, image: bytes, made: int) -> bytes:
        """An image as it is put back from a backup: with the mark of a restored site."""
        self._copy.write_bytes(image)
        write_mark(self._copy, made, bytes(32))
        return self._copy.read_bytes()

    def _tighten(self, time: Time, study: Study) -> None:
        """Images of sites whose budget bears one release of ``study``, whatever its cohort, and never two."""
        plans = [AgreedStudy(study).task("statistics").plan(len(NAMES), cohort) for cohort in range(2, len(NAMES) + 1)]
        mechanisms = [Mechanism.of(plan.declaration, plan.noise) for plan in plans]
        for name in NAMES:
            database = self.disks[name].database
            ledger = open_ledger(database, self._credentials[name], time)
            one, two = ([ledger.headroom(DATASET, {item: count}).after for item in mechanisms] for count in (1, 2))
            assert max(one) < min(two)
            self.budget = (max(one) + min(two)) / 2
            self.lower(self.disks[name], ledger)
            self.tight[name] = self.disks[name].image()

    def lower(self, disk: Disk, ledger: Ledger) -> None:
        """Let a site's budget bear one release of the rivals only."""
        with disk.database.transaction() as connection:
            ledger.set_budget(connection, DATASET, self.budget, 1e-5, reason="simulation", operator="simulation")

    def _sign(self, kind: Kind, releases: int, seed: int) -> Signed:
        request = make_request(schema_of(1, max_records=8), epsilon=None if kind == "strict" else 20.0, min_cohort=2)
        study = self._parties.compile(request, clock=Time(BEGINNING), random=SeededRandom(seed))
        tasks = tuple(task.model_copy(update={"releases": releases}) for task in study.tasks)
        privacy = study.privacy
        if kind == "noised":
            privacy = privacy.model_copy(update={"epsilon": 500.0, "cohort_difference": "allowed"})
        study = study.model_copy(update={"tasks": tasks, "privacy": privacy})
        key = study_digest(study.to_bytes())
        return Signed(kind, study, key, self._parties.signed(study), self._parties.analyst.identity.name)
