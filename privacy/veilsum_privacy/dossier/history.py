"""Who asked a site for what, on whose word it took part or refused, under which policy: from its ledger, by study."""

import json
from collections.abc import Mapping, Sequence

from veilsum_node.errors import HostileInput
from veilsum_privacy.dossier.model import DossierDecision, PolicyStep, StudyAccount, StudyLabel
from veilsum_privacy.ledger import Entry, Kind
from veilsum_privacy.ledger.statements import change_policy

_DECIDED = (Kind.APPROVAL, Kind.DECLINE, Kind.EXPIRED)
_CHARGES = (Kind.CHARGE, Kind.RECOVERY)


def policy_steps(entries: Sequence[Entry]) -> tuple[PolicyStep, ...]:
    """Every recorded change of the policy, oldest first."""
    found = []
    for entry in entries:
        changes = entry.detail.get("changes")
        if entry.kind is Kind.POLICY and isinstance(changes, Mapping):
            pairs = {
                str(key): (pair[0], pair[1]) for key, pair in changes.items() if isinstance(pair, list) and len(pair) == 2
            }
            found.append(PolicyStep(entry.seq, entry.time, pairs))
    return tuple(found)


def study_accounts(entries: Sequence[Entry], labels: Mapping[str, StudyLabel]) -> tuple[StudyAccount, ...]:
    """Every study of the ledger, in the order of their first entries.

    Args:
        labels: what the site's own files say of studies, by digest.
    """
    grouped: dict[str, list[Entry]] = {}
    approval: dict[str, str | None] = {}
    policy: dict[str, str] = {}
    for entry in entries:
        if entry.kind is Kind.POLICY:
            try:
                change_policy(policy, entry)
            except HostileInput:  # of a ledger that does not verify
                policy = {}
        if entry.study is not None:
            digest = entry.study.hex()
            approval.setdefault(digest, _value(policy.get("policy.approval")))
            grouped.setdefault(digest, []).append(entry)
    return tuple(_account(digest, found, labels.get(digest), approval[digest]) for digest, found in grouped.items())


def _account(digest: str, entries: Sequence[Entry], label: StudyLabel | None, approval: str | None) -> StudyAccount:
    named = next((entry.detail for entry in entries if "analyst" in entry.detail and entry.kind is not Kind.CHARGE), {})

    def told(key: str, known: str | None) -> str:
        return known or str(named.get(key, ""))

    return StudyAccount(
        study=digest,
        name=told("name", None if label is None else label.name),
        analyst=told("analyst", None if label is None else label.analyst),
        method=told("method", None if label is None else label.method),
        columns=str(named.get("columns", "")),
        purpose=told("purpose", None if label is None else label.stated.get("purpose")),
        stated={} if label is None else label.stated,
        asks={} if label is None else label.asks,
        decisions=tuple(_decided(entry) for entry in entries if entry.kind in _DECIDED),
        approval=approval,
        releases=sum(entry.kind in _CHARGES for entry in entries),
        refusals=sum(entry.kind is Kind.REFUSAL for entry in entries),
        first=entries[0].time,
    )


def _decided(entry: Entry) -> DossierDecision:
    detail = entry.detail
    reason = detail.get("why") if entry.kind is Kind.EXPIRED else detail.get("reason")
    return DossierDecision(
        entry.seq,
        entry.time,
        entry.kind.value,
        str(detail.get("operator", "")),
        str(reason or ""),
        str(detail.get("shown", "")),
    )


def _value(text: str | None) -> str | None:
    """A value of the policy, which the ledger holds as JSON."""
    if text is None:
        return None
    try:
        return str(json.loads(text))
    except ValueError:
        return text
