"""What `veilsum participant check` tests: identity, connection, clock, ledger, budgets, policy, data. Nothing is changed.

Every check runs, whatever failed before. Reports name places in files, never a cell's value, and are for the site's operator.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import grpc

from veilsum_deploy.connection import explain, hello, probe_tcp, probe_tls
from veilsum_deploy.ledgers import existing_ledger, site_key, spending_fields, spending_row
from veilsum_deploy.logs import printable
from veilsum_participant.channel import open_channel
from veilsum_participant.config import ParticipantConfig
from veilsum_participant.data import check_dataset
from veilsum_privacy.config import did_you_mean
from veilsum_privacy.errors import VeilsumError
from veilsum_privacy.identity import Credentials, Role, load_credentials
from veilsum_privacy.identity.tls import CERTIFICATE_FILE, KEY_FILE
from veilsum_privacy.schema import DatasetSchema

FEW_DAYS = 30
"""Days before its expiry from which a certificate is worth a warning."""

CLOCK_WARNING, CLOCK_LIMIT = 60, 300
"""Seconds; beyond the limit new studies are refused."""

LISTED = 10
"""Violations that a report shows one by one."""

DAY = 86_400


class Outcome(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Check:
    """One check: what was found, and for a warning or failure what to do."""

    check: str
    status: Outcome
    detail: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class StudyTerms:
    """What is known of a study before it is compiled, to hold against the policy."""

    method: str
    dataset: str
    noise: str
    epsilon: float | None


class SiteCheck:
    """The checks of one site.

    Args:
        config: the site's.
        clock: Unix seconds.
        schemas: by dataset; those without one are only looked for.
        study: the terms of a study that the site wants to join.
    """

    def __init__(
        self,
        config: ParticipantConfig,
        clock: Callable[[], int],
        *,
        schemas: dict[str, DatasetSchema] | None = None,
        study: StudyTerms | None = None,
    ) -> None:
        self._config, self._clock = config, clock
        self._schemas = schemas or {}
        self._study = study
        self._credentials: Credentials | None = None

    def run(self) -> list[Check]:
        """Run every check, in order."""
        checks: list[tuple[str, Callable[[], Iterator[Check]]]] = [
            ("key permissions", self._key),
            ("certificate", self._certificate),
            ("TCP connection", self._tcp),
            ("TLS", self._tls),
            ("protocol", self._hello),
            ("ledger", self._ledger),
            ("budgets", self._budgets),
            ("policy", self._policy),
            *((f"dataset {name}", lambda name=name: self._dataset(name)) for name in self._config.datasets),
        ]
        if self._study is not None:
            checks.append(("study", self._terms))
        found: list[Check] = []
        for name, check in checks:
            try:
                found += check()
            except VeilsumError as error:
                found.append(Check(name, Outcome.FAILED, printable(error.message), printable(error.advice)))
        return found

    def _key(self) -> Iterator[Check]:
        path = self._config.identity / KEY_FILE
        try:
            mode = path.stat().st_mode
        except OSError as error:
            yield Check("key permissions", Outcome.FAILED, f"{path}: {error.strerror}", "Run `veilsum participant init`.")
            return
        if mode & 0o077:
            detail = f"{path} has mode {stat.S_IMODE(mode):03o}: others can read it"
            yield Check("key permissions", Outcome.FAILED, detail, f"Run: chmod 600 {path}")
        else:
            yield Check("key permissions", Outcome.OK, f"mode {stat.S_IMODE(mode):03o}")

    def _certificate(self) -> Iterator[Check]:
        now = self._clock()
        self._credentials = load_credentials(self._config.identity, now, Role.PARTICIPANT)
        identity = self._credentials.identity
        days = (identity.not_after - now) // DAY
        detail = f"{identity.name}, fingerprint {identity.fingerprint}, {days} days left"
        if days < FEW_DAYS:
            yield Check("certificate", Outcome.WARNING, detail, "Let the authority sign the request again before it expires.")
        else:
            yield Check("certificate", Outcome.OK, detail)

    def _tcp(self) -> Iterator[Check]:
        probe_tcp(self._config.coordinator)
        yield Check("TCP connection", Outcome.OK, f"{self._config.coordinator} answers")

    def _tls(self) -> Iterator[Check]:
        probe_tls(self._config.coordinator, self._config.identity)
        yield Check("TLS", Outcome.OK, "both certificates are accepted")

    def _hello(self) -> Iterator[Check]:
        if self._credentials is None:
            yield Check(
                "protocol", Outcome.FAILED, "cannot be tried without a valid identity", "See the check of the certificate."
            )
            return
        address = self._config.coordinator
        with open_channel(address, self._credentials) as channel:
            try:
                reply = hello(channel, self._credentials, self._clock())
            except grpc.RpcError as error:
                raise explain(error, address, self._config.identity) from error
            skew = reply.now - self._clock()
        detail = f"version {reply.version}; coordinator {reply.coordinator} proved its name; {reply.software}"
        yield Check("protocol", Outcome.OK, detail)
        status = Outcome.OK if abs(skew) <= CLOCK_WARNING else Outcome.WARNING
        status = Outcome.FAILED if abs(skew) > CLOCK_LIMIT else status
        advice = "" if status is Outcome.OK else "Let both machines take their time from a time server."
        yield Check("clock", status, f"the coordinator's clock differs by {skew:+d} s", advice)

    def _ledger(self) -> Iterator[Check]:
        if not self._config.state.exists():
            yield Check("ledger", Outcome.WARNING, "there is none yet", "It is made when the participant starts.")
            return
        site, signature = site_key(self._config.identity / CERTIFICATE_FILE)
        with existing_ledger(self._config.state, site=site) as ledger:
            count = ledger.verify(signature)
        yield Check("ledger", Outcome.OK, f"{count} entries: chain, signatures and budgets hold")

    def _budgets(self) -> Iterator[Check]:
        config = self._config
        populations = sorted({config.population(name) for name in config.datasets})
        for name in sorted(set(config.budgets) - set(populations)):
            advice = did_you_mean(name, populations)
            yield Check(f"budget {name}", Outcome.WARNING, "no dataset is of this population", advice)
        known: dict[str, dict[str, Any]] = {}
        if config.state.exists():
            with existing_ledger(config.state) as ledger:
                held = ledger.populations()
                known = {name: spending_fields(ledger, name) for name in held if name in populations}
        for name in populations:
            if name in known:
                yield _spending(name, known[name])
            elif name in config.budgets:
                budget = config.budgets[name]
                detail = f"epsilon {budget.epsilon}, delta {budget.delta:g}; nothing spent, set at the first start"
                yield Check(f"budget {name}", Outcome.OK, detail)
            else:
                advice = f"Add [budgets.{name}], or use `veilsum ledger budget set {name}`."
                yield Check(f"budget {name}", Outcome.FAILED, "there is none: every study is refused", advice)

    def _policy(self) -> Iterator[Check]:
        policy = self._config.policy
        pinned = sorted(policy.trusted)
        own = None if self._credentials is None else self._credentials.identity
        if own is not None and policy.trusted.get(own.name, own.fingerprint) != own.fingerprint:
            advice = f"Pin {own.fingerprint}, or leave {own.name} out: a site trusts itself."
            yield Check("pinned peers", Outcome.FAILED, "this site's own name is pinned to another key", advice)
        peers = [name for name in pinned if own is None or name != own.name]
        detail = f"{len(peers)}: {', '.join(peers)}" if peers else "none"
        if len(peers) + 1 < policy.min_trusted:
            advice = "Pin more peers under [policy.trusted], or lower min_trusted."
            yield Check("pinned peers", Outcome.FAILED, f"{detail}; min_trusted is {policy.min_trusted}", advice)
        elif not peers and "distributed" in policy.noise:
            advice = "Pin peers' key fingerprints, or expect to join studies with local noise only."
            yield Check("pinned peers", Outcome.WARNING, f"{detail}: nobody else's noise counts", advice)
        else:
            yield Check("pinned peers", Outcome.OK, detail)
        if policy.analysts:
            yield Check("analysts", Outcome.OK, ", ".join(policy.analysts))
        else:
            yield Check("analysts", Outcome.WARNING, "none: every study is refused", "Name them under policy.analysts.")

    def _dataset(self, name: str) -> Iterator[Check]:
        path, label = self._config.datasets[name].path, f"dataset {name}"
        schema = self._schemas.get(name)
        if schema is None:
            if path.is_file():
                yield Check(label, Outcome.OK, f"{path} is there; give a schema to check what it holds")
            else:
                yield Check(label, Outcome.FAILED, f"{path} is not there", "Check the path in participant.toml.")
            return
        report = check_dataset(path, schema, shown=LISTED)
        counts = [
            f"{kind.value} in {'whole rows' if column is None else repr(column)}: {count}"
            for column, kinds in report.totals.items()
            for kind, count in kinds.items()
        ]
        detail = "; ".join([f"{report.records} records", *counts])
        if report.ok:
            yield Check(label, Outcome.OK, detail)
        else:
            advice = "Violations are clamped or left out, as the schema says. Correct the file, or agree on another schema."
            yield Check(label, Outcome.WARNING, detail, advice)
        for violation in report.violations:
            status = Outcome.OK if report.ok else Outcome.WARNING
            yield Check(label, status, str(violation))

    def _terms(self) -> Iterator[Check]:
        terms, policy = self._study, self._config.policy
        assert terms is not None  # noqa: S101  run() asks for this check only with a study
        faults = []
        if terms.method not in policy.methods:
            faults.append(f"method {terms.method} is not among policy.methods")
        if terms.dataset not in self._config.datasets:
            faults.append(f"dataset {terms.dataset} is not offered")
        if terms.noise not in policy.noise:
            faults.append(f"noise {terms.noise} is not among policy.noise")
        if terms.epsilon is not None and terms.epsilon > policy.max_epsilon:
            faults.append(f"epsilon {terms.epsilon:g} is above policy.max_epsilon {policy.max_epsilon:g}")
        if faults:
            yield Check("study", Outcome.FAILED, "; ".join(faults), "The site would refuse it; policy or study must change.")
        else:
            yield Check("study", Outcome.OK, "method, dataset, noise and epsilon agree with the policy")
            yield from self._affordable(self._config.population(terms.dataset), terms.epsilon)

    def _affordable(self, population: str, epsilon: float | None) -> Iterator[Check]:
        """Whether the study fits what is left, as if epsilons added up; the gate composes them, which comes to less."""
        if self._config.state.exists():
            with existing_ledger(self._config.state) as ledger:
                budget = ledger.budget(population)
                left = None if budget is None or budget.epsilon is None else ledger.spending(population).left
        else:  # the ledger will begin with what is configured
            first = self._config.budgets.get(population)
            left = None if first is None or first.epsilon == "unlimited" else first.epsilon
        if left is not None and (epsilon is None or epsilon > left):
            wanted = "no guarantee" if epsilon is None else f"epsilon {epsilon:g}"
            advice = "It is refused if its cost, composed with what was spent, exceeds the budget."
            yield Check("study", Outcome.WARNING, f"it asks for {wanted}; {left:.4g} of {population}'s budget is left", advice)


def _spending(name: str, fields: dict[str, Any]) -> Check:
    shown = spending_row(fields)
    if fields["epsilon"] is None:
        return Check(f"budget {name}", Outcome.WARNING, f"unlimited; spent {shown['spent']}", "No guarantee is demanded.")
    detail = (
        f"epsilon {shown['epsilon']} at delta {fields['delta']:g}: spent {shown['spent']},"
        f" left {shown['left']}, {fields['releases']} releases"
    )
    if fields["left"] == 0:
        return Check(f"budget {name}", Outcome.WARNING, detail, "Nothing is left: every study is refused.")
    return Check(f"budget {name}", Outcome.OK, detail)
