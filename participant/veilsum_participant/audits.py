"""A site's audit of its own releases: which ones, by its policy or a study that it knows. None of its records is read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from sqlalchemy import inspect, select

from veilsum_node.config import did_you_mean
from veilsum_node.database import open_readonly
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.identity import Credentials
from veilsum_node.process.software import installed_version
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_participant.config import ParticipantConfig
from veilsum_participant.data.encoders import find_encoder
from veilsum_participant.store.pending import PENDING
from veilsum_participant.store.studies import STUDIES
from veilsum_privacy.audit.audit import TRIALS
from veilsum_privacy.audit.references import references
from veilsum_privacy.audit.report import AuditReport, AuditRow, run_references, run_study
from veilsum_privacy.securesum.agreed import AgreedStudy
from veilsum_privacy.study.encoder import Encoder, Program
from veilsum_privacy.study.study import parse_study
from veilsum_privacy.tasks.feature_maps import Encode

_PREFIX = 4


@dataclass(frozen=True)
class SiteAudit:
    """How a site's releases are audited.

    Attributes:
        config: the site's.
        credentials: whose key signs the report.
        made: now, Unix seconds.
        tasks: only these, of a study their labels; all that read records if empty.
        trials: coins for each release, at least.
        random: where coins, noise and keys come from.
        tell: told the name of each task before it is audited.
    """

    config: ParticipantConfig
    credentials: Credentials
    made: int
    tasks: Collection[str] = ()
    trials: int = TRIALS
    random: RandomSource = SYSTEM_RANDOM
    tell: Callable[[str], None] = lambda _: None

    def of_policy(self) -> AuditReport:
        """Audit a release of every kind that the site's policy allows.

        Raises:
            Misuse: nothing of what is asked is allowed, or reads records and has noise.
        """
        policy = self.config.policy
        kinds = [kind for kind in references() if kind.task in policy.tasks]
        for name in self.tasks:
            if name not in {kind.task for kind in kinds}:
                message = f"No task {name!r} that reads records is among policy.tasks."
                raise Misuse(message, did_you_mean(name, [kind.task for kind in kinds]))
        kinds = [kind for kind in kinds if not self.tasks or kind.task in self.tasks]
        noises = [kind for kind in policy.noise if kind != "none"]
        if not kinds or not noises:
            raise Misuse("The policy allows no release of records with noise: there is nothing to audit.")
        rows = run_references(
            kinds,
            self.random,
            noises=noises,
            units=policy.units,
            disclosures=policy.disclosures,
            trials=self.trials,
            tell=self.tell,
        )
        free = tuple(sorted(set(policy.tasks) - {kind.task for kind in references()})) if not self.tasks else ()
        return self._report(None, "", rows, free)

    def of_study(self, agreed: AgreedStudy) -> AuditReport:
        """Audit every release of a study that names this site.

        Raises:
            Misuse: the study does not name the site, has no noise, or no such task.
        """
        study, name, config = agreed.study, self.credentials.identity.name, self.config
        if name not in study.participants:
            raise Misuse(f"The study {study.name!r} does not name this site, {name}.")
        for label in self.tasks:
            if label not in (labels := [task.label for task in study.tasks]):
                raise Misuse(f"The study has no task with the label {label!r}.", did_you_mean(label, labels))

        def encoder(named: Encoder | None) -> Encode | None:
            return find_encoder(config.encoders, named) if isinstance(named, Program) else None

        place = study.participants.index(name)
        rows, free = run_study(agreed, place, self.random, encoder, labels=self.tasks, trials=self.trials, tell=self.tell)
        return self._report(agreed.digest.hex(), study.name, rows, free)

    def _report(self, study: str | None, name: str, rows: tuple[AuditRow, ...], free: tuple[str, ...]) -> AuditReport:
        return AuditReport(self.credentials.identity.name, self.made, installed_version(), study, name, rows, free)


def known_study(config: ParticipantConfig, prefix: str) -> AgreedStudy:
    """A study in the site's own store, by the first digits of its ID: one that it is or was enrolled in, or that waits.

    Raises:
        Misuse: none, or several; or this version cannot read it.
    """
    advice = "`veilsum participant studies` lists waiting ones, `veilsum ledger show` those that were charged."
    if len(prefix) < _PREFIX:
        raise Misuse(f"{prefix!r} is too short for a study's ID.", f"Give at least {_PREFIX} digits of it.")
    found: dict[bytes, bytes] = {}
    if config.state.exists():
        with open_readonly(config.state) as database, database.reading() as connection:
            for table in (STUDIES, PENDING):
                if inspect(connection).has_table(table.name):
                    rows = connection.execute(select(table.c.digest, table.c.study))
                    found |= {row.digest: row.study for row in rows if row.digest.hex().startswith(prefix.lower())}
    if len(found) != 1:
        what = "no study" if not found else f"{len(found)} studies"
        raise Misuse(f"This site knows {what} whose ID begins with {prefix!r}.", advice)
    (data,) = found.values()
    try:
        return AgreedStudy(parse_study(data))
    except HostileInput as error:
        raise Misuse(f"The study cannot be read by this version: {error.message}") from error
