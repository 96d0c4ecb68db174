"""How the ``participant`` commands show studies that wait for the operator's word."""

from __future__ import annotations

from typing import Any

from veilsum_node.process.console import moment
from veilsum_participant.protocol.approval import Waiting
from veilsum_privacy.accounting.prices import delta_warning
from veilsum_privacy.dossier.figures import cost, plain


def waiting_fields(item: Waiting) -> dict[str, Any]:
    """A waiting study, with what it costs here, as plain values."""
    study, privacy = item.study, item.study.privacy
    reasons = () if item.obstacle is None else item.obstacle.reasons
    return {
        "id": item.digest.hex(),
        "state": item.state,
        "since": item.time,
        "expires": study.expires,
        "name": study.name,
        "analyst": item.analyst,
        "method": study.method,
        "disclosures": {task.label: task.disclosure for task in study.tasks},
        "dataset": study.dataset,
        "unit": privacy.unit,
        "epsilon": _plain(item.epsilon),
        "spent_before": _plain(item.before),
        "spent_after": _plain(item.after),
        "noise": privacy.noise,
        "assumed_colluders": privacy.assumed_colluders,
        "participants": list(study.participants),
        "min_cohort": privacy.min_cohort,
        "warnings": [warning] if (warning := delta_warning(study)) else [],
        "obstacles": [{"code": item.code.value, "message": item.message, "advice": item.advice} for item in reasons],
    }


def waiting_row(fields: dict[str, Any]) -> dict[str, Any]:
    """What :func:`waiting_fields` returns, for people."""
    before, after = fields["spent_before"], fields["spent_after"]
    least, most = fields["min_cohort"], len(fields["participants"])
    row = {
        "id": fields["id"][:12],
        "state": fields["state"],
        "until": moment(fields["expires"]),
        "study": f"{fields['name']} by {fields['analyst']}",
        "method": fields["method"] + ("\nper site" if "per-site" in fields["disclosures"].values() else ""),
        "dataset": fields["dataset"],
        "unit": fields["unit"],
        "epsilon": cost(fields["epsilon"]),
        "spent": "no budget" if before is None else f"{cost(before)} -> {cost(after)}",
        "noise": fields["noise"],
        "cohort": str(most) if least == most else f"{least} to {most}",
    }
    for warning in fields["warnings"]:
        row["study"] += f"\n{warning}"
    for item in fields["obstacles"]:
        row["study"] += f"\n{item['code']}: {item['message']}"
    return row


def _plain(epsilon: float | None) -> float | str | None:
    return None if epsilon is None else plain(epsilon)
