"""The checks of one site, in order; one that fails stops none of the others.

Checks of what the site has spent: its ledger, budgets, and the cohorts of earlier sums.

A site's ledger and store as the participant's own checks see them, opened to read: for an operator who asks beforehand.

Where the participant has never started there is neither; then its configured first budgets stand in, with nothing spent.
"""

import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import grpc
from prometheus_client import CollectorRegistry
from sqlalchemy import Connection

from veilsum_node.config import did_you_mean
from veilsum_node.database import open_database
from veilsum_node.database_places import open_readonly
from veilsum_node.errors import HostileInput, Refusal, StateError, VeilsumError
from veilsum_node.identity import Credentials, Role, load_credentials
from veilsum_node.identity.certificate import certificate_end, moment
from veilsum_node.identity.files import open_to_others
from veilsum_node.identity.renewal import DAY, FEW_DAYS, expiry_warning
from veilsum_node.identity.tls import KEY_FILE, REQUEST_FILE, key_advice, load_transport, transport_folder
from veilsum_node.phrases import counted
from veilsum_node.process.check import Check, CheckOutcome, storage_checks
from veilsum_node.process.confinement import offered
from veilsum_node.storage import look_at
from veilsum_node.telemetry.endpoint import MetricsServer
from veilsum_node.telemetry.logs import printable
from veilsum_node.transport.channel import open_channel
from veilsum_node.transport.connection import explain, hello, probe_tcp, probe_tls
from veilsum_node.transport.route import unused_proxy_variables
from veilsum_participant.checks import datasets
from veilsum_participant.protocol.budgets import Books, budget_faults, promised
from veilsum_participant.protocol.cohorts import FORGOTTEN, UNWEIGHED, joining_faults, lacks_weights, remembered
from veilsum_participant.protocol.policy import column_faults, invited_faults, term_faults
from veilsum_participant.settings.config import METHODS, ParticipantConfig, Policy
from veilsum_participant.settings.directory import with_pins
from veilsum_participant.settings.encoder_files import file_digest
from veilsum_participant.settings.roles import UNCONFINED, confinement_faults
from veilsum_participant.settings.telling import former_tasks, lacking_tasks, unbounded_datasets
from veilsum_participant.site import COMPLETE, RESTORED
from veilsum_participant.telemetry.shared_metrics import SHARED
from veilsum_privacy.accounting.deltas import delta_warning
from veilsum_privacy.backup.restored import read_mark
from veilsum_privacy.dossier.figures import cost
from veilsum_privacy.ledger import Budget, Headroom, LedgerReader, Mechanism
from veilsum_privacy.ledger.sums import Sum
from veilsum_privacy.ledger.totals import Follower
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.training import device

CLOCK_WARNING, CLOCK_LIMIT = 60, 300
"""Seconds; beyond the limit new studies are refused."""


@dataclass(frozen=True)
class AskedStudy:
    """A study that nobody has submitted yet, to be held against the site's policy.

    Attributes:
        schema, min_cohort: None where they are not stated.
        participants: who is invited; empty where it is not stated.
        compile: the study as it would come: for a federation, its participants and a clock.
    """

    dataset: str
    schema: DatasetSchema | None
    participants: Sequence[str]
    min_cohort: int | None
    compile: Callable[[str, list[str], Callable[[], int]], Study]


class SiteCheck:
    """The checks of one site.

    Args:
        clock: Unix seconds.
        schemas: by dataset; those without one are only looked for.
        study: what an analyst asks for, to hold against policy and budget as the participant would.
        show_columns: show the columns of each dataset as they stand in the data, which may be a record.
        show_texts: show texts in datasets that match nothing in their schemas.
    """

    def __init__(
        self,
        config: ParticipantConfig,
        clock: Callable[[], int],
        *,
        schemas: dict[str, DatasetSchema] | None = None,
        study: AskedStudy | None = None,
        show_columns: bool = False,
        show_texts: bool = False,
    ) -> None:
        self._config, self._clock = config, clock
        self._show, self._texts = show_columns, show_texts
        self._schemas = schemas or {}
        self._study = study
        self._credentials: Credentials | None = None
        self._shown: Credentials | None = None
        self._unreachable = False

    def run(self, *, reach: bool = True) -> list[Check]:
        """Run every check, in order; without ``reach`` those alone that open no record and no connection."""
        checks: list[tuple[str, Callable[[], Iterator[Check]]]] = [
            ("key permissions", self._key),
            ("certificate", self._certificate),
            ("key of connections", self._transport),
            ("TCP connection", self._tcp),
            ("TLS", self._tls),
            ("protocol", self._hello),
            ("ledger", lambda: ledger(self._config, self._credentials)),
            ("disk", self._storage),
            ("budgets", lambda: budgets(self._config)),
            ("directory", self._directory),
            ("policy", self._policy),
            ("cohorts", lambda: cohorts(self._config)),
            ("metrics", self._metrics),
            ("isolation", self._isolation),
            *((f"dataset {name}", partial(self._dataset, name)) for name in self._config.datasets),
            *((f"encoder {name}", partial(self._encoder, name)) for name in self._config.encoders),
        ]
        if self._config.device != device.CPU:
            checks.append(("device", self._device))
        if self._study is not None:
            checks.append(("study", self._terms))
        if not reach:
            beyond = ("TCP connection", "TLS", "protocol", "metrics", "device", "study", "dataset ", "encoder ")
            checks = [item for item in checks if not item[0].startswith(beyond)]
        found: list[Check] = []
        for name, check in checks:
            if self._unreachable and name in ("TLS", "protocol"):
                found.append(Check(name, CheckOutcome.FAILED, "not tried without a TCP connection"))
                continue
            try:
                found += check()
            except VeilsumError as error:
                self._unreachable = self._unreachable or name == "TCP connection"
                found.append(Check(name, CheckOutcome.FAILED, printable(error.message), printable(error.advice)))
        return found

    def _key(self) -> Iterator[Check]:
        path = self._config.identity / KEY_FILE
        try:
            status = path.stat()
        except OSError as error:
            yield Check(
                "key permissions", CheckOutcome.FAILED, f"{path}: {error.strerror}", key_advice(self._config.identity, error)
            )
            return
        mode = stat.S_IMODE(status.st_mode)
        if open_to_others(status):
            detail = f"{path} has mode {mode:03o}: others can read it"
            yield Check("key permissions", CheckOutcome.FAILED, detail, f"Run: chmod 600 {path}")
        else:
            yield Check("key permissions", CheckOutcome.OK, f"mode {mode:03o}")

    def _certificate(self) -> Iterator[Check]:
        now = self._clock()
        self._credentials = load_credentials(self._config.identity, now, Role.PARTICIPANT)
        identity = self._credentials.identity
        days = (identity.not_after - now) // DAY
        until = f"until {moment(identity.not_after)}, {counted(days, 'day')} left"
        detail = f"{identity.name}, fingerprint {identity.fingerprint}, {until}"
        if days < FEW_DAYS:
            yield Check(
                "certificate", CheckOutcome.WARNING, detail, "Have the authority sign the request again before it expires."
            )
        else:
            yield Check("certificate", CheckOutcome.OK, detail)
        if soon := expiry_warning("the federation's authority", certificate_end(self._credentials.authority), now):
            yield Check("authority", CheckOutcome.WARNING, soon, "Ask the authority's operator for its successor.")

    def _transport(self) -> Iterator[Check]:
        name = "key of connections"
        if self._credentials is None:
            yield Check(name, CheckOutcome.FAILED, "cannot be looked at without a valid identity", "See the certificate.")
            return
        folder = transport_folder(self._config.identity)
        if folder == self._config.identity:
            advice = "Make one with `veilsum participant transport-key`, and have the authority certify it."
            detail = "the key that signs serves connections too, so that whatever makes them holds it"
            yield Check(name, CheckOutcome.WARNING, detail, advice)
            return
        self._shown = load_transport(self._config.identity, self._clock(), self._credentials)
        found = self._shown.identity
        detail = f"of its own, fingerprint {found.fingerprint}, until {moment(found.not_after)}"
        if soon := expiry_warning("connections", found.not_after, self._clock()):
            yield Check(name, CheckOutcome.WARNING, soon, f"Have the authority sign {folder / REQUEST_FILE} again.")
        else:
            yield Check(name, CheckOutcome.OK, detail)

    def _tcp(self) -> Iterator[Check]:
        way = self._config.route
        probe_tcp(way)
        yield Check("TCP connection", CheckOutcome.OK, f"{way} answers")
        if self._config.proxy is None and (ignored := unused_proxy_variables()):
            detail = f"{', '.join(ignored)} is set but not used: the way is straight"
            yield Check("proxy", CheckOutcome.OK, detail, 'Name a proxy, or set proxy = "environment", to use one.')

    def _tls(self) -> Iterator[Check]:
        probe_tls(self._config.route, transport_folder(self._config.identity))
        yield Check("TLS", CheckOutcome.OK, "both certificates are accepted")

    def _hello(self) -> Iterator[Check]:
        if self._credentials is None:
            yield Check(
                "protocol",
                CheckOutcome.FAILED,
                "cannot be tried without a valid identity",
                "See the check of the certificate.",
            )
            return
        way = self._config.route
        with open_channel(way, self._shown or self._credentials) as channel:
            try:
                reply = hello(channel, self._credentials, self._clock())
            except grpc.RpcError as error:
                raise explain(error, way, transport_folder(self._config.identity)) from error
            skew = reply.now - self._clock()
        detail = f"version {reply.version}; coordinator {reply.coordinator} proved its name; {reply.software}"
        yield Check("protocol", CheckOutcome.OK, detail)
        if soon := expiry_warning(f"coordinator {reply.coordinator}", reply.not_after, self._clock()):
            yield Check("coordinator's certificate", CheckOutcome.WARNING, soon, "Tell the coordinator's operator.")
        status = CheckOutcome.OK if abs(skew) <= CLOCK_WARNING else CheckOutcome.WARNING
        status = CheckOutcome.FAILED if abs(skew) > CLOCK_LIMIT else status
        advice = "" if status is CheckOutcome.OK else "Let both machines take their time from a time server."
        yield Check("clock", status, f"the coordinator's clock differs by {skew:+d} s", advice)

    def _storage(self) -> Iterator[Check]:
        yield from storage_checks(look_at(self._config.state), self._clock(), "participant")

    def _directory(self) -> Iterator[Check]:
        if self._config.policy.directory is None:
            return
        if self._credentials is None:
            yield Check("directory", CheckOutcome.FAILED, "cannot be verified without a valid identity")
            return
        self._config, directory = with_pins(self._config, self._credentials, self._clock())
        assert directory is not None  # noqa: S101  the policy names one
        detail = f"version {directory.version}, confirmed, until {moment(directory.expires)}"
        if soon := expiry_warning("the federation", directory.expires, self._clock(), "directory"):
            advice = "Ask the authority's operator for a new one, and confirm it."
            yield Check("directory", CheckOutcome.WARNING, f"{detail}: {soon}", advice)
        else:
            yield Check("directory", CheckOutcome.OK, detail)

    def _isolation(self) -> Iterator[Check]:
        found, faults = offered(), confinement_faults(self._config)
        if self._config.isolation == "none":
            advice = str(faults[0]) if faults else 'Take out isolation = "none".'
            yield Check("isolation", CheckOutcome.WARNING, UNCONFINED, advice)
        elif faults and self._config.isolation == "auto":
            yield Check("isolation", CheckOutcome.WARNING, f"{UNCONFINED}. {faults[0].message}", faults[0].advice)
        elif faults:
            for error in {str(error): error for error in faults}.values():
                yield Check("isolation", CheckOutcome.FAILED, error.message, error.advice)
        elif lacking := found.lacking():
            yield Check("isolation", CheckOutcome.WARNING, f"confined, but {'; '.join(lacking)}", "A newer kernel closes it.")
        else:
            yield Check("isolation", CheckOutcome.OK, f"processes are confined, by version {found.landlock} of Landlock")

    def _policy(self) -> Iterator[Check]:
        policy = self._config.policy
        if policy.directory is None or policy.trusted:  # else the check of the directory says why there are none
            yield from self._pins(policy)
        if policy.analysts:
            yield Check("analysts", CheckOutcome.OK, ", ".join(policy.analysts))
        else:
            yield Check("analysts", CheckOutcome.WARNING, "none: every study is refused", "Name them under policy.analysts.")
        for name, detail, advice in former_tasks(policy):
            yield Check(f"task {name}", CheckOutcome.WARNING, detail, advice)
        for name, detail, advice in lacking_tasks(policy):
            yield Check(f"method {name}", CheckOutcome.WARNING, detail, advice)
        for name, detail, advice in unbounded_datasets(self._config):
            yield Check(f"exact sums of {name}", CheckOutcome.WARNING, detail, advice)
        if left_out := [name for name in METHODS if name not in policy.methods]:
            yield Check("methods", CheckOutcome.OK, f"{len(policy.methods)}; not allowed: {', '.join(left_out)}")

    def _pins(self, policy: Policy) -> Iterator[Check]:
        pinned = sorted(policy.trusted)
        own = None if self._credentials is None else self._credentials.identity
        if own is not None and policy.trusted.get(own.name, own.fingerprint) != own.fingerprint:
            advice = f"Pin {own.fingerprint}, or leave {own.name} out: a site trusts itself."
            yield Check("pinned peers", CheckOutcome.FAILED, "this site's own name is pinned to another key", advice)
        peers = [name for name in pinned if own is None or name != own.name]
        detail = f"{len(peers)}: {', '.join(peers)}" if peers else "none"
        if len(peers) + 1 < policy.min_trusted:
            advice = "Pin more peers under [policy.trusted] or by a directory, or lower min_trusted."
            yield Check("pinned peers", CheckOutcome.FAILED, f"{detail}; min_trusted is {policy.min_trusted}", advice)
        elif not peers and "distributed" in policy.noise:
            advice = "Pin peers' keys, or confirm the federation's directory, or expect to join studies with local noise only."
            yield Check("pinned peers", CheckOutcome.WARNING, f"{detail}: nobody else's noise counts", advice)
        else:
            yield Check("pinned peers", CheckOutcome.OK, detail)

    def _metrics(self) -> Iterator[Check]:
        settings, granted = self._config.metrics, self._config.policy.share_metrics
        if settings is None:
            yield Check("metrics endpoint", CheckOutcome.OK, "none")
        else:
            MetricsServer(CollectorRegistry(), settings, ready=str)  # its files and address, without listening
            how = ["TLS"] * (settings.certificate is not None) + ["a token"] * (settings.token_file is not None)
            yield Check("metrics endpoint", CheckOutcome.OK, f"{settings.listen}, {' and '.join(how) or 'loopback only'}")
        told = "; ".join(SHARED[group] for group in SHARED if group in granted)
        yield Check("shared metrics", CheckOutcome.OK, f"the coordinator is told: {told}" if told else "none: nothing is told")

    def _dataset(self, name: str) -> Iterator[Check]:
        return datasets.dataset(name, self._config.datasets[name], self._schemas.get(name), show=self._show, texts=self._texts)

    def _encoder(self, name: str) -> Iterator[Check]:
        path = self._config.encoders[name].path
        yield Check(f"encoder {name}", CheckOutcome.OK, f"{path}: SHA-256 {file_digest(path)}")

    def _device(self) -> Iterator[Check]:
        where = device.choose(self._config.device)
        yield Check("device", CheckOutcome.OK, f"networks and encoders are computed on {where}")

    def _terms(self) -> Iterator[Check]:
        """Hold a study against policy and budget by the functions that decide on enrolment."""
        request, config = self._study, self._config
        assert request is not None  # noqa: S101  run() asks for this check only with a study
        own = "this-site" if self._credentials is None else self._credentials.identity.name
        agreed = AgreedStudy(self._compile(request, own))
        study = agreed.study
        with open_books(self._config) as (connection, books):
            budget = books.budget(config.population(study.dataset), connection) if study.dataset in config.datasets else None
            faults = [*term_faults(agreed, config, own, None if budget is None else budget.delta)]
            faults += column_faults(study, config)
            if request.participants:
                faults += invited_faults(study, config.policy, own)
                faults += joining_faults(connection, agreed, config, own)
            faults += budget_faults(connection, config, books, agreed.digest, study)
        refusal = Refusal.of(faults)
        if refusal is None:
            price = "gives no guarantee" if study.privacy.epsilon is None else f"costs epsilon {cost(study.privacy.epsilon)}"
            yield Check("study", CheckOutcome.OK, f"policy and budget allow it; it {price}")
        else:
            for reason in refusal.reasons:
                yield Check("study", CheckOutcome.FAILED, f"{reason.code.value}: {reason.message}", reason.advice)
        if warning := delta_warning(study):
            yield Check("study", CheckOutcome.WARNING, warning)
        if not request.participants:
            detail = "who takes part is not stated: pins and the size of the cohort are checked when it is submitted"
            yield Check("study", CheckOutcome.OK, detail, "Name the participants in the study, to check them now.")
        if config.policy.approval == "manual":
            yield Check("study", CheckOutcome.OK, "it would wait for `veilsum participant approve`")

    def _compile(self, request: AskedStudy, own: str) -> Study:
        federation = "0" * 64 if self._credentials is None else self._credentials.federation_id
        return compile_asked(request, self._config.policy, own, federation, self._clock)


def compile_asked(request: AskedStudy, policy: Policy, own: str, federation: str, clock: Callable[[], int]) -> Study:
    """The study as it would come, for the participants that it names or as many as the policy wants."""
    names = set(request.participants)
    if not names:
        names = {own, *policy.trusted}
        wanted = max(policy.min_cohort, request.min_cohort or 2)
        names |= {f"site-{number}" for number in range(1, wanted - len(names) + 1)}
    return request.compile(federation, sorted(names), clock)


def ledger(config: ParticipantConfig, credentials: Credentials | None) -> Iterator[Check]:
    """Whether the ledger is this site's and verifies, and whether a restored one was completed."""
    if not config.state.exists():
        yield Check("ledger", CheckOutcome.WARNING, "there is none yet", "It is made when the participant starts.")
        return
    with open_readonly(config.state) as database:
        reader = LedgerReader(database)
        if credentials is not None and reader.site != credentials.identity.name:
            raise HostileInput(f"The ledger belongs to {printable(reader.site)}.", "Check identity and state file.")
        authority = None if credentials is None else credentials.authority
        count = reader.verify(authority=authority).entries
        with database.reading() as connection:
            mark = read_mark(connection)
    yield Check(
        "ledger", CheckOutcome.OK, f"{counted(count, 'entry', 'entries')}: chain, signatures, receipts and budgets hold"
    )
    if mark is not None and mark.trusted:
        detail = f"the backup of {moment(mark.made)}; by the operator's word the coordinator's mirror completes it"
        yield Check("restored", CheckOutcome.WARNING, detail, "The next session with the coordinator lifts it.")
    elif mark is not None:
        yield Check("restored", CheckOutcome.FAILED, f"{moment(mark.made)}: {RESTORED}", COMPLETE)


def budgets(config: ParticipantConfig) -> Iterator[Check]:
    """What the budget of each population still bears."""
    populations = sorted({config.population(name) for name in config.datasets})
    for name in sorted(set(config.budgets) - set(populations)):
        advice = did_you_mean(name, populations)
        yield Check(f"budget {name}", CheckOutcome.WARNING, "no dataset is of this population", advice)
    with open_books(config) as (connection, books):
        for name in populations:
            yield _budget(config, connection, books, name)


def _budget(config: ParticipantConfig, connection: Connection, books: Books, name: str) -> Check:
    label, budget = f"budget {name}", books.budget(name, connection)
    if budget is None:
        advice = f"Add [budgets.{name}], or use `veilsum ledger budget set {name}`."
        return Check(label, CheckOutcome.FAILED, "none: every study is refused", advice)
    room = books.headroom(name, promised(connection, config, name), connection)
    held = f"{cost(room.reserved)} spent and set aside, {cost(room.after)} if enrolled studies use all that they may"
    if budget.epsilon is None:
        return Check(label, CheckOutcome.WARNING, f"unlimited; {held}", "No limit is enforced.")
    detail = f"epsilon {budget.epsilon:g} at delta {budget.delta:g}: {held}"
    if cost(room.after) == cost(budget.epsilon) or room.after > budget.epsilon:  # a rest that no figure shows is none
        return Check(label, CheckOutcome.WARNING, detail, "Nothing is left: every study is refused.")
    if budget.delta > config.policy.max_delta:
        advice = f"It should be well below 1 / the number of records: `veilsum ledger budget set {name} --delta 1e-5`."
        return Check(
            label, CheckOutcome.WARNING, f"{detail}; delta is above policy.max_delta, {config.policy.max_delta:g}", advice
        )
    return Check(label, CheckOutcome.OK, detail)


def cohorts(config: ParticipantConfig) -> Iterator[Check]:
    """The cohorts that studies of each population are held to."""
    with open_books(config) as (connection, _):
        for name in sorted({config.population(dataset) for dataset in config.datasets}):
            earlier = remembered(connection, config, name)
            known = {tuple(item.members) for item in earlier if item.members is not None}
            if any(item.members is None for item in earlier):
                detail = "who was in a sum that this restored site took part in is not known: no such study is accepted"
                yield Check(f"cohorts {name}", CheckOutcome.WARNING, detail, FORGOTTEN)
            elif known:
                detail = "; ".join(", ".join(names) for names in sorted(known, key=lambda names: (len(names), names)))
                said = f"studies without noise or of one cohort only are held to: {printable(detail)}"
                yield Check(f"cohorts {name}", CheckOutcome.OK, said)
            if any(map(lacks_weights, earlier)):
                detail = "by which weights members were in a sum is not known since a backup was restored: no training, nor"
                detail += " gradients, without noise or of one cohort only"
                yield Check(f"cohorts {name}", CheckOutcome.WARNING, detail, UNWEIGHED)


@contextmanager
def open_books(config: ParticipantConfig) -> Iterator[tuple[Connection, Books]]:
    """A connection to the site's store, and its ledger.

    Raises:
        StateError, Unavailable, Damage: the file cannot be read.
    """
    fresh = not config.state.exists()
    with open_database(":memory:") if fresh else open_readonly(config.state) as database, database.reading() as connection:
        yield connection, _FirstBudgets(config) if fresh else _ReadBooks(database)


class _ReadBooks(LedgerReader):
    """A ledger opened to read, asked like the site's own."""

    def headroom(self, population: str, mechanisms: Mapping[Mechanism, int], connection: Connection | None = None) -> Headroom:
        with self._reading(connection) as reader:
            standing = Follower().standing(reader, population)
        if standing.budget is None:
            raise StateError(f"The population {population} has no budget.", "Set one first.")
        budget = standing.budget
        return Headroom(budget, standing.held.epsilon(budget), standing.held.epsilon(budget, mechanisms))


class _FirstBudgets:
    """What the ledger will begin with: the configured budgets, and nothing spent."""

    def __init__(self, config: ParticipantConfig) -> None:
        self._config = config

    def budget(self, population: str, connection: Connection | None = None) -> Budget | None:
        configured = self._config.budgets.get(population)
        if configured is None:
            return None
        return Budget(None if configured.epsilon == "unlimited" else configured.epsilon, configured.delta, "gaussian")

    def headroom(self, population: str, mechanisms: Mapping[Mechanism, int], connection: Connection | None = None) -> Headroom:
        budget = self.budget(population)
        if budget is None:
            raise StateError(f"The population {population} has no budget.", "Set one first.")
        return Headroom(budget, 0.0, Sum().epsilon(budget, mechanisms))
