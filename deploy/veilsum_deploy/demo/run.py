"""The demo from first key to last ledger: start the processes, run the studies as the analyst, kill one hospital, collect.

Everything that is reported comes from where it belongs: epsilon from the hospitals' ledgers, sums from the coordinator's
journal, results from its ``Studies`` service.

What the demo hands to a third party: every hospital's dossier and export, the mirror's export, the authority's certificate.

The verification is then repeated from these files alone, as somebody would who has nothing else.

Kill one hospital's process in the middle of a study, at a moment that is certain: with its keys, before its contribution.

The process is paused right after it has its keys. If its database shows that it had begun to contribute by then, the moment
was missed: it goes on, the study ends as any other, and the next study is tried.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veilsum.compile import PrivacyRequest, StudyRequest, draft_study
from veilsum.remote import Remote, StudyInfo, connect
from veilsum.verification import Look, look_at
from veilsum_deploy.demo.directory import DELTA, DEMO_TERMS, LARGEST_EPSILON, Terms, configure_participants, furnish
from veilsum_deploy.demo.hospitals import Hospitals
from veilsum_deploy.demo.processes import POLL_SECONDS, Process, Processes, wait_for_file
from veilsum_node.database import Database, open_database
from veilsum_node.errors import HostileInput, StateError
from veilsum_node.identity import Credentials, load_credentials
from veilsum_node.identity.certificate import load_authority
from veilsum_node.identity.files import read_file, write_new
from veilsum_node.identity.kit import Kit
from veilsum_node.identity.provision import Party
from veilsum_node.identity.tls import AUTHORITY_FILE
from veilsum_node.process.new_files import new_file
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_node.transport.connection import UnreachableError
from veilsum_participant.checks.labels import study_labels
from veilsum_participant.store.attempts import AttemptState, attempts_in, find_attempt
from veilsum_participant.store.studies import StudyState, find_study
from veilsum_privacy.dossier import describe, render
from veilsum_privacy.dossier.ledgers import check, open_source, readable_entries, spending_fields
from veilsum_privacy.ledger import write_jsonl
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study

WAIT_SECONDS = 30.0
AFTER_KEYS_SECONDS = 0.02
"""Between a participant's keys being stored and the pause: time for it to say that it is ready."""

ROUND_SECONDS = 3.0
SAMPLE_BYTES = 32


@dataclass(frozen=True)
class Kill:
    """A killed process.

    Attributes:
        phase: of the round, or of the study before its first round, when the process was killed.
        sender: another hospital whose contribution had arrived by then, or "" for none.
        contribution: bytes from the middle of that contribution, as the coordinator received it.
    """

    phase: str
    sender: str
    contribution: bytes


def kill_before_contribution(
    remote: Remote, study: bytes, victim: Process, database: Database, others: Sequence[tuple[str, Database]]
) -> Kill | None:
    """Kill ``victim`` in a running study; None if it was too quick and goes on.

    Args:
        study: the digest of a study just submitted.
        database: its own.
        others: the other hospitals' names and databases.
    """
    _wait_for_keys(study, victim, database)
    time.sleep(AFTER_KEYS_SECONDS)
    victim.signal(signal.SIGSTOP)
    if _attempts(database, study):
        victim.signal(signal.SIGCONT)
        return None
    deadline = time.monotonic() + ROUND_SECONDS
    sender, contribution = "", b""
    while not contribution and time.monotonic() < deadline:
        sender, contribution = _contribution(study, others)
        time.sleep(POLL_SECONDS)
    info = remote.show(study)
    victim.kill()
    return Kill(info.rounds[-1].phase if info.rounds else info.phase, sender, contribution)


def _wait_for_keys(study: bytes, victim: Process, database: Database) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        with database.engine.connect() as connection:
            row = find_study(connection, study)
        if row is not None and row.status is not StudyState.ENROLLED:
            return
        victim.check()
        time.sleep(POLL_SECONDS / 10)
    raise StateError(f"{victim.name} got no keys for its study within {WAIT_SECONDS:g} s.", f"See {victim.log}.")


def _attempts(database: Database, study: bytes) -> int:
    with database.engine.connect() as connection:
        return len(attempts_in(connection, tuple(AttemptState), study))


def _contribution(study: bytes, others: Sequence[tuple[str, Database]]) -> tuple[str, bytes]:
    """Some bytes of the first payload found in another hospital's database: exactly what it uploads."""
    for name, database in others:
        with database.engine.connect() as connection:
            for attempt in attempts_in(connection, (AttemptState.PAYLOAD,), study):
                row = find_attempt(connection, study, attempt.attempt)
                payload = (row.payload or b"") if row is not None else b""
                if payload:
                    middle = len(payload) // 2
                    return name, payload[middle : middle + SAMPLE_BYTES]
    return "", b""


FOLDER = "dossiers"
MIRROR = "coordinator.jsonl"

START_SECONDS = 60.0
SETTLE_SECONDS = 10.0
KILL_TRIES = 3
EPSILONS = (1.0, LARGEST_EPSILON)
"""At which the classifier is trained."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Finished:
    """A finished study."""

    study: Study
    info: StudyInfo
    result: Result
    proof: Look

    @property
    def key(self) -> bytes:
        """The study's digest."""
        return bytes.fromhex(self.info.study)


@dataclass
class Trial:
    """What the demo did.

    Attributes:
        statistics: the first study.
        trained: classifiers by the epsilon that was asked for.
        bytes_sent: bytes of contributions that the coordinator received from each hospital.
        victim, kill, survived: the killed hospital, how, and the study that went on; None with too few hospitals.
        dossiers: by hospital, where its dossier and export lie, and what its head is.
    """

    kit: Kit
    hospitals: Hospitals
    statistics: Finished
    trained: dict[float, Finished]
    bytes_sent: dict[str, int] = field(default_factory=dict)
    victim: str = ""
    kill: Kill | None = None
    survived: Finished | None = None
    dossiers: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def finished(self) -> list[Finished]:
        """All finished studies in order."""
        return [self.statistics, *self.trained.values(), *([self.survived] if self.survived else [])]


def run_trial(
    directory: Path, hospitals: Hospitals, progress: Progress, clock: Callable[[], int], terms: Terms = DEMO_TERMS
) -> Trial:
    """Run the demo in a claimed directory; no process of it is left when this returns or raises.

    Args:
        terms: what every hospital agrees to.

    Raises:
        StateError: a process or a study failed.
    """
    with running(directory, hospitals, progress, clock, terms) as (analyst, sites):
        trial = _run_studies(analyst, sites, progress)
    progress("Writing dossiers", 0.98)
    trial.dossiers = write_dossiers(trial.kit, clock)
    return trial


@contextmanager
def running(
    directory: Path, hospitals: Hospitals, progress: Progress, clock: Callable[[], int], terms: Terms = DEMO_TERMS
) -> "Iterator[tuple[Analyst, dict[str, Process]]]":
    """A coordinator and all hospitals as processes, connected, and the analyst; they end with the context.

    Args:
        terms: what every hospital agrees to.

    Raises:
        StateError: a process failed.
    """
    progress("Making keys and configurations", 0.0)
    kit = furnish(directory, hospitals, clock)
    min_cohort = max(2, min(3, len(kit.participants) - 1))
    with Processes() as processes:
        progress("Starting the coordinator", 0.05)
        where = kit.coordinator.directory
        coordinator = processes.start(
            "coordinator", ["coordinator", "start", "--config", str(where / "coordinator.toml")], where / "coordinator.log"
        )
        address = wait_for_file(where / "address", coordinator, START_SECONDS)
        configure_participants(kit, hospitals, address, min_cohort, clock, terms)
        progress(f"Starting {len(kit.participants)} hospitals", 0.15)
        sites = {
            party.name: processes.start(
                party.name,
                ["participant", "start", "--config", str(party.directory / "participant.toml")],
                party.directory / "participant.log",
            )
            for party in kit.participants
        }
        credentials = load_credentials(kit.analyst.identity, clock())
        try:
            with connect(address, credentials, kit.analyst.identity, clock()) as remote:
                _wait_until_connected(remote, processes, set(sites))
                yield Analyst(kit, hospitals, remote, credentials, min_cohort, processes, clock, address), sites
        except UnreachableError:
            coordinator.check()  # if it died, say so instead
            raise


def _run_studies(analyst: "Analyst", sites: dict[str, Process], progress: Progress) -> Trial:
    progress("Federated statistics, epsilon 1", 0.4)
    statistics = analyst.run("statistics", "statistics", 1.0)
    trained = {}
    for index, epsilon in enumerate(EPSILONS):
        progress(f"Training a classifier, epsilon {epsilon:g}", 0.5 + 0.12 * index)
        trained[epsilon] = analyst.run(f"classifier-epsilon-{epsilon:g}", "fedcgs", epsilon)
    trial = Trial(analyst.kit, analyst.hospitals, statistics, trained)
    if len(sites) > analyst.min_cohort:
        trial.victim = list(sites)[-1]
        progress(f"A study in which {trial.victim} is killed", 0.75)
        _drop_out(trial, analyst, sites)
    progress("Reading ledgers", 0.95)
    trial.bytes_sent = analyst.bytes_sent()
    wait_for_ledgers(trial.kit, trial.finished)
    return trial


@dataclass(frozen=True)
class Analyst:
    """Compiles, submits and awaits studies of the hospitals' data."""

    kit: Kit
    hospitals: Hospitals
    remote: Remote
    credentials: Credentials
    min_cohort: int
    processes: Processes
    clock: Callable[[], int]
    address: str

    def compile(self, name: str, method: str, epsilon: float) -> Study:
        some = next(iter(self.hospitals.sites.values()))
        privacy = PrivacyRequest(epsilon=epsilon, delta=DELTA, assumed_colluders=1, min_cohort=self.min_cohort)
        return self.compile_request(
            StudyRequest(name=name, method=method, dataset=some.name, data=some.schema, privacy=privacy)
        )

    def compile_request(self, request: StudyRequest) -> Study:
        """The study that the request asks of all hospitals.

        Raises:
            ConfigurationError: it cannot be compiled.
        """
        return draft_study(
            request,
            federation_id=self.kit.federation_id,
            coordinator=self.kit.coordinator.name,
            participants=[party.name for party in self.kit.participants],
            clock=self.clock,
            random=SYSTEM_RANDOM,
        ).compile()

    def bytes_sent(self) -> dict[str, int]:
        """Bytes of contributions from each hospital, which the coordinator tells its operator alone."""
        operator = self.kit.operator.identity
        with connect(self.address, load_credentials(operator, self.clock()), operator, self.clock()) as remote:
            return remote.describe().received

    def submit(self, study: Study) -> bytes:
        return self.remote.submit(study, self.credentials)

    def finish(
        self,
        study: Study,
        key: bytes,
        killed: Callable[[Process], bool] = lambda _: False,
        observe: Callable[[StudyInfo], None] = lambda _: None,
    ) -> Finished:
        """Wait for a study's end and fetch its result.

        Args:
            key: its digest.
            killed: whether a process was killed on purpose; any other that ends is an error.
            observe: told of every change of the study's state.
        """
        for info in self.remote.watch(key):
            observe(info)
            for process in list(self.processes.started):
                if not killed(process):
                    process.check()
        info = self.remote.show(key)
        if info.phase != "finished":
            raise StateError(f"The study {study.name} {info.phase}: {info.reason}.", f"See {self.kit.coordinator.directory}.")
        directory = self.kit.directory / "results" / study.name
        result = self.remote.fetch(key, directory)
        proof = look_at(directory, self.credentials.authority, key)
        if proof.verified is None:
            raise StateError(f"The result of {study.name} is not proven. {proof.fault or proof.missing}")
        return Finished(study, info, result, proof)

    def run(self, name: str, method: str, epsilon: float) -> Finished:
        study = self.compile(name, method, epsilon)
        return self.finish(study, self.submit(study))


def _drop_out(trial: Trial, analyst: Analyst, sites: dict[str, Process]) -> None:
    with ExitStack() as stack:
        databases: dict[str, Database] = {}
        for party in trial.kit.participants:
            databases[party.name] = stack.enter_context(open_database(party.directory / "participant.db"))
        victim = sites[trial.victim]
        others = [(name, database) for name, database in databases.items() if name != trial.victim]
        for number in range(1, KILL_TRIES + 1):
            study = analyst.compile(f"dropout-{number}", "fedcgs", EPSILONS[0])
            key = analyst.submit(study)
            trial.kill = kill_before_contribution(analyst.remote, key, victim, databases[trial.victim], others)
            finished = analyst.finish(study, key, killed=lambda process: process is victim and trial.kill is not None)
            if trial.kill:
                trial.survived = finished
                return
    raise StateError(f"{trial.victim} contributed sooner than it could be stopped, {KILL_TRIES} times.", "Run the demo again.")


def _wait_until_connected(remote: Remote, processes: Processes, names: set[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not names <= set(remote.describe().connected):
        for process in processes.started:
            process.check()
        if time.monotonic() > deadline:
            raise StateError(f"Not every hospital is connected after {START_SECONDS:g} s.", "See the hospitals' logs.")
        time.sleep(POLL_SECONDS)


def wait_for_ledgers(kit: Kit, finished: Sequence[Finished]) -> None:
    """Wait until every cohort's members have noted every release: the last message of a round is on its way to them."""
    deadline = time.monotonic() + SETTLE_SECONDS
    for party in kit.participants:
        with open_source(party.directory / "participant.db") as ledger:
            for done in finished:
                while ledger.lost_charges(done.key) and time.monotonic() < deadline:
                    time.sleep(POLL_SECONDS)


def spending(kit: Kit, hospitals: Hospitals) -> dict[str, dict[str, Any]]:
    """What each hospital's own ledger says, verified entry by entry.

    Raises:
        HostileInput: a ledger does not verify.
    """
    found = {}
    for party in kit.participants:
        with open_source(party.directory / "participant.db") as ledger:
            verified = ledger.verify(authority=load_authority(party.identity / AUTHORITY_FILE))
            fields = spending_fields(ledger, hospitals.sites[party.name].name)
        found[party.name] = {**fields, "entries": verified.entries}
    return found


def write_dossiers(kit: Kit, clock: Callable[[], int]) -> dict[str, dict[str, Any]]:
    """Write everything into a new folder, verify it there, and say for each hospital where its files lie.

    Raises:
        HostileInput: a ledger does not verify.
        StateError: a file cannot be written.
    """
    folder = kit.directory / FOLDER
    folder.mkdir()
    coordinator = kit.coordinator
    write_new(folder / AUTHORITY_FILE, read_file(coordinator.identity / AUTHORITY_FILE, "authority's certificate"))
    with open_source(coordinator.directory / "state" / "coordinator.db") as mirror, new_file(folder / MIRROR) as file:
        write_jsonl(mirror, file)
    return {party.name: _write_dossier(party, folder, clock()) for party in kit.participants}


def _write_dossier(party: Party, folder: Path, now: int) -> dict[str, Any]:
    state = party.directory / "participant.db"
    page, twin, export = (folder / f"{party.name}.{ending}" for ending in ("html", "json", "jsonl"))
    with open_source(state) as ledger, new_file(export) as file:
        write_jsonl(ledger, file)
    with open_source(export) as ledger:
        checked = check(ledger, authority=load_authority(folder / AUTHORITY_FILE), against=[folder / MIRROR])
        if checked.verification is None:
            raise checked.fault or HostileInput(f"The ledger of {party.name} does not verify.")
        proof = checked.proof(ledger, now)
        entries = readable_entries(ledger, proof.entries)
    dossier = describe(entries, proof, site=party.name, made=now, studies=study_labels(state))
    with new_file(twin) as file:
        json.dump(dossier, file, ensure_ascii=False, allow_nan=False, indent=1)
    with new_file(page) as file:
        file.write(render(dossier))
    return {
        "dossier": str(page),
        "twin": str(twin),
        "export": str(export),
        "head": proof.head,
        "entries": proof.entries,
        "receipts": proof.receipts,
    }
