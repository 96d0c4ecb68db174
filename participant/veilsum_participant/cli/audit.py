"""What `veilsum participant audit` does: audit, write the signed report, print a table."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from veilsum_node.errors import Misuse
from veilsum_node.identity import Credentials, Role, load_credentials
from veilsum_node.process.console import print_json, print_line, print_rows
from veilsum_participant.audits import SiteAudit, known_study
from veilsum_participant.checks import compile_asked
from veilsum_participant.directory import with_pins
from veilsum_participant.new_files import new_file, require_new
from veilsum_privacy.audit.report import AuditReport, AuditRow
from veilsum_privacy.audit.signed import sign_report
from veilsum_privacy.dossier.figures import cost, remaining
from veilsum_privacy.securesum.agreed import AgreedStudy

if TYPE_CHECKING:
    from veilsum_participant.cli.additions import Additions
    from veilsum_participant.config import ParticipantConfig


def audit_site(
    config: ParticipantConfig,
    study: str | None,
    tasks: Sequence[str],
    out: Path,
    additions: Additions | None,
    *,
    trials: int,
    force: bool,
    as_json: bool,
) -> AuditReport:
    """Audit what is asked for, and say what was found.

    Raises:
        Misuse: there is no such study or task, or the report cannot be written.
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
    config: ParticipantConfig, study: str, credentials: Credentials, now: int, additions: Additions | None
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
        "coins": f"{found.canaries:,} x {found.releases:,}",
        "epsilon booked": cost(found.booked_epsilon),
        "at least": remaining(found.lower_epsilon),
        "noise": f"{found.noise:.3f}",
        "sees": sees,
        "result": _result(row),
    }


def _result(row: AuditRow) -> str:
    return "FAULT" if row.flagged else "not measured" if row.finding is None else "no fault"
