"""What every history of a process begins with: identities, data, signed studies, and images of the parties' databases.

Two studies: one with noise whose cohort may shrink, and one without noise that allows one cohort only. Each has an image of
before it was submitted, and one of when its keys were exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from simulation.parties import Coordinator, Disk, Process, Skewed, Time
from support.federation import DATASET, make_request, schema_of, write_records
from support.randomness import SeededRandom
from veilsum_coordinator.federation import Federation
from veilsum_coordinator.methods.compile import compile_study
from veilsum_coordinator.settings import Waits
from veilsum_participant.client import open_ledger
from veilsum_participant.config import DatasetConfig, ParticipantConfig, Policy
from veilsum_participant.store import create_tables
from veilsum_privacy.database import transaction
from veilsum_privacy.identity import Credentials, Label, load_credentials
from veilsum_privacy.identity.provision import make_kit
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.results import Result
from veilsum_privacy.study import Study, study_digest
from veilsum_proto import federation_pb2 as pb

NAMES = ("a", "b", "c")
BEGINNING = 1_900_000_000
MOST_ROUNDS = 2
WAITS = Waits(enrol=3600, seal=600, contribute=3600, consent=600, decrypt=600, grace=30)

Kind = Literal["noised", "strict"]
KINDS: tuple[Kind, ...] = ("noised", "strict")


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
        kit = make_kit(directory, list(NAMES), clock=time)
        pins = {party.name: load_credentials(party.identity, BEGINNING).identity.fingerprint for party in kit.participants}
        noise = ("distributed", "none")
        policy = Policy(analysts=("*",), trusted=pins, min_cohort=2, noise=noise, max_epsilon=1000.0)
        rng = np.random.default_rng(1)
        self.disks = {name: Disk() for name in (*NAMES, "coordinator")}
        self._configs: dict[str, ParticipantConfig] = {}
        self._credentials: dict[str, Credentials] = {}
        self.empty: dict[str, bytes] = {}
        for party in kit.participants:
            path = party.directory / "records.npz"
            write_records(path, rng.uniform(-1, 1, size=(4, 1)), np.arange(4) % 2)
            self._configs[party.name] = ParticipantConfig(
                coordinator="localhost:1",
                identity=party.identity,
                state=party.directory / "participant.db",
                datasets={DATASET: DatasetConfig(path=path)},
                policy=policy,
            )
            credentials = self._credentials[party.name] = load_credentials(party.identity, BEGINNING)
            engine = self.disks[party.name].engine
            ledger = open_ledger(engine, credentials, time)
            create_tables(engine)
            with transaction(engine) as connection:
                ledger.set_budget(connection, DATASET, None, 1e-5, reason="simulation", operator="simulation")
            self.empty[party.name] = self.disks[party.name].image()
        self._coordinator = load_credentials(kit.coordinator.identity, BEGINNING)
        self._prepare_journal(time)
        self.authority = self._coordinator.authority
        analyst = load_credentials(kit.analyst.identity, BEGINNING)
        self.studies = {kind: self._sign(kind, kit.federation_id, analyst) for kind in KINDS}
        self.keyed: dict[Kind, Keyed] = {}

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
        from veilsum_coordinator.journal import SqlJournal

        engine = self.disks["coordinator"].engine
        mirror = Mirror(engine, credentials=self._coordinator, clock=time, random=SeededRandom(0))
        SqlJournal(engine, mirror)
        self.empty["coordinator"] = self.disks["coordinator"].image()

    def _sign(self, kind: Kind, federation: str, analyst: Credentials) -> Signed:
        request = make_request(schema_of(1, max_records=8), epsilon=None if kind == "strict" else 20.0, min_cohort=2)
        study = compile_study(
            request,
            federation_id=federation,
            coordinator=self._coordinator.identity.name,
            participants=list(NAMES),
            clock=Time(BEGINNING),
            random=SeededRandom(7),
        )
        tasks = tuple(task.model_copy(update={"releases": MOST_ROUNDS}) for task in study.tasks)
        privacy = study.privacy
        if kind == "noised":
            privacy = privacy.model_copy(update={"epsilon": 500.0, "cohort_difference": "allowed"})
        study = study.model_copy(update={"tasks": tasks, "privacy": privacy})
        data = study.to_bytes()
        submitted = pb.StudyObject(
            study=data,
            signature=analyst.signing_key.sign(Label.STUDY, data),
            certificate=analyst.identity.certificate,
        )
        return Signed(kind, study, study_digest(data), submitted, analyst.identity.name)
