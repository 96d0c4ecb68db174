"""What `veilsum participant audit` does: audit, write the signed report, print a table.

A site's audit of its own releases: which ones, by its policy or a study that it knows. None of its records is read.
"""

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from sqlalchemy import inspect, select

from veilsum_node.config import did_you_mean
from veilsum_node.database_places import open_readonly
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.identity import Credentials, Role, load_credentials
from veilsum_node.process.console import print_json, print_line, print_rows
from veilsum_node.process.new_files import new_file, require_new
from veilsum_node.process.software import installed_version
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_participant.checks import compile_asked
from veilsum_participant.data.encoders import find_encoder
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_participant.settings.directory import with_pins
from veilsum_participant.store.pending import PENDING
from veilsum_participant.store.studies import STUDIES
from veilsum_privacy.audit.audit import TRIALS
from veilsum_privacy.audit.references import references
from veilsum_privacy.audit.report import AuditReport, AuditRow, run_references, run_study
from veilsum_privacy.audit.signed import sign_report
from veilsum_privacy.dossier.figures import cost, remaining
from veilsum_privacy.study.encoder import Encoder, Program
from veilsum_privacy.study.study import parse_study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.feature_maps import Encode

if TYPE_CHECKING:
    from veilsum_participant.cli.additions import Additions


_PREFIX = 4


def audit_site(
    config: ParticipantConfig,
    study: str | None,
    tasks: Sequence[str],
    out: Path,
    additions: "Additions | None",
    *,
    trials: int,
    force: bool,
    as_json: bool,
) -> AuditReport:
    """Audit what is asked for, and say what was found.

    Raises:
        Misuse: the study or task does not exist, or the report cannot be written.
    """
    require_new(out, force=force)
    now = int(time.time())
    credentials = load_credentials(config.identity, now, Role.PARTICIPANT)

    def tell(label: str) -> None:
        if not as_json:
            typer.echo(f"{label} ...", err=True)

    audit = SiteAudit(config, credentials, now, tasks=tasks, trials=trials, tell=tell)
    report = audit.of_policy() if study is None else audit.of_study(_study(config, study, credentials, now, additions))
    signed = sign_report(report.to_json(), credentials.signing_key, credentials.certificate_pem)
    with new_file(out, force=force) as file:
        json.dump(signed, file, ensure_ascii=False, allow_nan=False, indent=1)
    if as_json:
        print_json({"out": str(out), **signed})
        return report
    what = "what the policy allows" if report.study is None else f"the study {report.name}, {report.study[:12]}"
    print_rows([_shown(row) for row in report.rows], title=f"Audit of {what}", as_json=False, empty="Nothing was audited.")
    for row in report.rows:
        for fault in [*(row.finding.faults if row.finding else ()), *([row.why] if row.failed else [])]:
            print_line(f"FAULT in {row.label}: {fault}.")
    if report.unaudited:
        print_line(f"Post-processing of what was released, with nothing to audit: {', '.join(report.unaudited)}.")
    print_line(f"The signed report is {out}." if not report.flagged else f"FAULTS WERE FOUND. The signed report is {out}.")
    return report


def _study(
    config: ParticipantConfig, study: str, credentials: Credentials, now: int, additions: "Additions | None"
) -> AgreedStudy:
    if not Path(study).is_file():
        return known_study(config, study)
    if additions is None:
        raise Misuse("This installation cannot read a study.toml.", "Name a study that this site knows by its ID.")
    policy, own = with_pins(config, credentials, now)[0].policy, credentials.identity.name  # whose noise would count
    return AgreedStudy(compile_asked(additions.load_study(Path(study)), policy, own, credentials.federation_id, lambda: now))


def _shown(row: AuditRow) -> dict[str, Any]:
    found, what = row.finding, row.label if row.label == row.task else f"{row.label}\n{row.task}"
    how = [row.noise, row.unit] + ["per site"] * (row.disclosure == "per-site")
    how += [f"sampled at {row.sampling_rate:g}"] * (row.sampling_rate < 1) + ["unrounded"] * row.unrounded
    told: dict[str, Any] = {"release": what, "how": ", ".join(how)}
    if found is None:
        return {
            **told,
            "coins": "",
            "epsilon booked": "",
            "at least": "",
            "noise": "",
            "sees": row.why,
            "result": _result(row),
        }
    sees = f"noise below {found.sees_noise:.2f}"
    if found.sees_shift is not None:
        sees += f",\nshifts above {found.sees_shift:.2f}"
    return {
        **told,
        "coins": f"{found.canaries:,} x {found.releases:,}" + f",\nhalf beside {found.company}" * (found.company > 0),
        "epsilon booked": cost(found.booked_epsilon),
        "at least": remaining(found.lower_epsilon),
        "noise": f"{found.noise:.3f}",
        "sees": sees,
        "result": _result(row),
    }


def _result(row: AuditRow) -> str:
    return "FAULT" if row.flagged else "not measured" if row.finding is None else "no fault"


@dataclass(frozen=True)
class SiteAudit:
    """How a site's releases are audited.

    Attributes:
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
