"""Federations for tests: real identities, real stores and ledgers, in one process or over gRPC."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.fresh import COORDINATOR, LEDGER, PARTICIPANT, fresh_database
from support.kits import fresh_kit
from support.randomness import SeededRandom
from veilsum.compile import PrivacyRequest, StudyRequest, draft_study
from veilsum.local.federation import LocalFederation
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_node.identity import Credentials, Label, load_credentials
from veilsum_node.identity.kit import Kit
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_participant.data.local import LocalDatasets
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.session.client import open_ledger
from veilsum_participant.settings.config import ParticipantConfig, Policy
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.site import Site
from veilsum_privacy.computation.contribution import Graphs
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_proto import federation_pb2 as pb

DATASET = "records"

Data = Mapping[str, tuple[NDArray[np.float64], NDArray[np.int64]]]
"""Features and labels of each site, in the layout of :func:`schema_of`."""


class Clock:
    """A clock that a test moves; starts at the present so that certificates are valid."""

    def __init__(self) -> None:
        self.now = int(time.time())

    def __call__(self) -> int:
        return self.now


class RealClock(Clock):
    """The system's clock, for tests whose deadlines shall pass."""

    def __call__(self) -> int:
        return int(time.time())


def schema_of(width: int, classes: int = 2, max_records: int = 1000) -> DatasetSchema:
    """Numeric columns x0.. in [-1, 1] and a label of ``classes`` classes."""
    columns = tuple(NumberColumn(name=f"x{index}", low=-1.0, high=1.0) for index in range(width))
    values = tuple(ClassValues(name=f"c{index}", values=(str(index),)) for index in range(classes))
    return DatasetSchema(columns=columns, label=LabelColumn(column="y", classes=values), max_records=max_records)


def write_records(path: Path, features: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
    """Write an npz file for :func:`schema_of`."""
    np.savez(path, X=features, y=labels.astype(str))


def make_data(names: Iterable[str] = "abcd", rows: int = 20, width: int = 2) -> Data:
    """Records of each site, of two classes."""
    rng = np.random.default_rng(0)
    return {name: (rng.uniform(-1, 1, (rows, width)), rng.integers(0, 2, rows)) for name in names}


WIDE_COLUMNS, WIDE_CATEGORIES = 48, 256


def wide_schema() -> DatasetSchema:
    """A schema of few columns whose statistics fill ciphertexts of more than 20 kB, in lanes of any width."""
    numbers, values = schema_of(3), tuple(str(value) for value in range(WIDE_CATEGORIES))
    columns = tuple(CategoryColumn(name=f"k{index}", categories=values) for index in range(WIDE_COLUMNS))
    return DatasetSchema(columns=(*numbers.columns, *columns), label=numbers.label, max_records=1000)


def make_wide_data(names: Iterable[str]) -> Data:
    """Records of each site for :func:`wide_schema`."""
    rng = np.random.default_rng(1)
    return {
        name: (np.hstack([features, rng.integers(0, WIDE_CATEGORIES, (len(features), WIDE_COLUMNS))]), labels)
        for name, (features, labels) in make_data(names, width=3).items()
    }


def make_clusters(
    names: Iterable[str], width: int, classes: int, rows: int = 40, step: int = 15, shares: Sequence[float] | None = None
) -> Data:
    """Records of each site around a centre for each class; every site has ``step`` more than the one before.

    Classes are equally frequent, or have these shares.
    """
    rng = np.random.default_rng(5)
    centres = rng.uniform(-0.6, 0.6, (classes, width))
    data = {}
    for index, name in enumerate(names):
        labels = rng.choice(classes, rows + step * index, p=shares)
        data[name] = (np.clip(centres[labels] + 0.3 * rng.normal(size=(len(labels), width)), -1, 1), labels)
    return data


def make_request(
    schema: DatasetSchema, method: str = "statistics", epsilon: float | None = 1.0, **privacy: Any
) -> StudyRequest:
    """A study request on the test dataset; ``epsilon=None`` is without noise; fedcgs makes one release."""
    demand: dict[str, Any] = {"epsilon": epsilon, "noise": "distributed" if epsilon else "none", **privacy}
    return StudyRequest(
        name="test-study", method=method, dataset=DATASET, data=schema, privacy=PrivacyRequest(**demand), schema=None,
        parameters={"centre": False} if method == "fedcgs" else {},
    )  # fmt: skip


def unix_time() -> int:
    """The system's clock."""
    return int(time.time())


class Parties:
    """What every federation of tests begins with: identities, records, and what sites allow. Nothing runs here.

    Args:
        directory: an empty one.
        data: of the sites.
        clock: of everyone.
        policy: fields of the sites' that differ from: all analysts and kinds of noise, cohorts of two, no bound on epsilon.

    Attributes:
        kit: identities.
        names: of the sites; studies are of these.
        analyst: who signs studies.
        credentials: of the sites, as they were made.
        policy: of every site; it pins all of them.
        sizes: how many records each site states that it may hold.
    """

    def __init__(self, directory: Path, data: Data, *, clock: Callable[[], int] = unix_time, **policy: Any) -> None:
        self.kit: Kit = fresh_kit(directory, sorted(data), clock)
        self.clock, self.names = clock, sorted(data)
        self.sizes = {name: max(1, len(features)) for name, (features, _) in data.items()}
        self.analyst: Credentials = load_credentials(self.kit.analyst.identity, clock())
        self.credentials = {party.name: load_credentials(party.identity, clock()) for party in self.kit.participants}
        pins = {name: found.identity.fingerprint for name, found in self.credentials.items()}
        values: dict[str, Any] = {
            "analysts": ("*",),
            "trusted": pins,
            "min_cohort": 2,
            "noise": ("distributed", "local", "none"),
            "max_epsilon": 1000.0,
        }
        self.policy = Policy(**(values | policy))
        for name in self.names:
            write_records(self.directory(name) / "records.npz", *data[name])

    def directory(self, name: str) -> Path:
        """A site's directory."""
        return self.kit.directory / "participants" / name

    def config(self, name: str, coordinator: str = "localhost:1") -> ParticipantConfig:
        """A site's settings."""
        place = self.directory(name)
        return ParticipantConfig(
            coordinator=coordinator,
            identity=place / "identity",
            state=place / "participant.db",
            datasets={DATASET: DatasetConfig(path=place / "records.npz", most_records=self.sizes[name])},
            policy=self.policy,
        )

    def compile(self, request: StudyRequest, sites: Sequence[str] = (), **setting: Any) -> Study:
        """Compile a study, by default for all sites, now and with a nonce of the system's."""
        given: dict[str, Any] = {
            "federation_id": self.kit.federation_id,
            "coordinator": self.kit.coordinator.name,
            "participants": list(sites or self.names),
            "clock": self.clock,
            "random": SYSTEM_RANDOM,
        }
        return draft_study(request, **(given | setting)).compile()

    def signed(self, study: Study | bytes, by: Credentials | None = None, label: Label = Label.STUDY) -> pb.StudyObject:
        """A study as the analyst signs it, or another party."""
        data, signer = study if isinstance(study, bytes) else study.to_bytes(), by or self.analyst
        signature = signer.signing_key.sign(label, data)
        return pb.StudyObject(study=data, signature=signature, certificate=signer.identity.certificate)


class TestBed(Parties):
    """A federation whose parties all live in this process; use :func:`make_bed`.

    Attributes:
        hub: the coordinator's state.
        sites: by name.
    """

    __test__ = False

    clock: Clock
    hub: Hub
    sites: dict[str, Site]

    def know_noise(self) -> None:
        """Let each site's noise follow from its name; nothing else does."""
        for name, site in self.sites.items():
            site.noise_random = SeededRandom(f"noise of {name}".encode())

    @property
    def local(self) -> LocalFederation:
        """The parties as a federation in this process."""
        return LocalFederation(self.hub, {name: ParticipantCore(site) for name, site in self.sites.items()}, self.clock)


def make_bed(
    directory: Path,
    data: Data,
    *,
    budget: tuple[float | None, float] = (None, 1e-5),
    random: Callable[[str], RandomSource] = lambda _: SYSTEM_RANDOM,
    waits: Waits | None = None,
    clock: Clock | None = None,
    **policy: Any,
) -> TestBed:
    """Make identities, sites with data and ledgers, and a hub; by default with a clock that stands still."""
    clock = clock or Clock()
    bed = TestBed(directory, data, clock=clock, **policy)
    bed.sites = {
        name: open_test_site(bed.config(name), clock, random(name), budget, bed.credentials[name]) for name in bed.names
    }
    graphs = Graphs()  # follow from what is public: what one site traced, the others need not trace again
    for site in bed.sites.values():
        site.studies.tried.graphs = site.studies.graphs = graphs
    credentials = load_credentials(bed.kit.coordinator.identity, clock())
    database = fresh_database(bed.kit.coordinator.directory / "coordinator.db", LEDGER, COORDINATOR)
    mirror = Mirror(database, credentials=credentials, clock=clock, random=SYSTEM_RANDOM)
    bed.hub = Hub(credentials, SqlJournal(database, mirror), waits=waits or Waits(), clock=clock)
    return bed


def open_test_site(
    config: ParticipantConfig,
    clock: Clock,
    random: RandomSource,
    budget: tuple[float | None, float] | None = None,
    credentials: Credentials | None = None,
) -> Site:
    """Open a site as its process would, with a test's clock and randomness, and credentials if they were read already."""
    credentials = credentials or load_credentials(config.identity, clock())
    database = fresh_database(config.state, LEDGER, PARTICIPANT)
    ledger = open_ledger(database, credentials, clock)
    if budget is not None and ledger.budget(DATASET) is None:
        with database.transaction() as connection:
            epsilon, delta = budget
            ledger.set_budget(connection, DATASET, epsilon, delta, reason="test", operator="test", adaptive="gaussian")
    return Site(config, credentials, database, ledger, clock, random, reading=LocalDatasets)
