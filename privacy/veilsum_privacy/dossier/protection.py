"""The dossier's annexes for data protection: a draft of an impact assessment (GDPR, Article 35(7)), and of the record of
processing (Article 30(1)), taken from ledger, policy, studies and audits.

What the site's own records show is stated with its figures; what only people know is a gap, and says so. Nothing is judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from veilsum_node.phrases import counted
from veilsum_privacy.dossier.annex import Figures, answers, audit_answers, documents

ANNEXES = ("nist", "dpia", "art30")
"""Annexes that a dossier may have, in their order."""

TITLES: Mapping[str, str] = {
    "nist": "NIST SP 800-226",
    "dpia": "draft of a data protection impact assessment",
    "art30": "draft of the record of processing activities",
}

MOST_STUDIES = 50
"""Studies that are described one by one, the latest."""


@dataclass(frozen=True)
class ProtectionItem:
    """One question, with what the site's records answer.

    Attributes:
        answer: paragraphs; may be empty.
        gap: what a person has to add; empty if nothing.
    """

    part: str
    topic: str
    answer: tuple[str, ...]
    gap: str = ""


@dataclass(frozen=True)
class RetentionRow:
    """A row of the table of retention.

    Attributes:
        what: is kept, and where.
        until: when it goes by itself.
        erased: how it is erased before.
    """

    what: str
    until: str
    erased: str


def retention_table(settings: Figures | None) -> tuple[RetentionRow, ...]:
    """What a site keeps, by its configuration (``studies``, ``kept_vectors``, ``log_days``, each in days or None)."""
    known = settings is not None
    days = {name: None if settings is None else settings.get(name) for name in ("studies", "kept_vectors", "log_days")}

    def until(name: str, otherwise: str, since: str = " after the study has expired") -> str:
        if not known:
            return "as the site’s configuration says, which was not at hand"
        kept = days[name]
        return otherwise if kept is None else f"{counted(kept, 'day')}{since}"

    vectors = "kept_vectors" if days["kept_vectors"] is not None else "studies"
    text = documents().get_template("retention.md.j2").render(until=until, vectors=vectors)
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|"))
    return tuple(RetentionRow(*row) for row in rows)


def impact_assessment(dossier: Figures) -> tuple[ProtectionItem, ...]:
    """A draft by Article 35(7): description, necessity, risks, measures, and what remains; then the roles."""
    return _items("dpia", dossier)


def processing_record(dossier: Figures) -> tuple[ProtectionItem, ...]:
    """A draft by Article 30(1), letters (a) to (g)."""
    return _items("art30", dossier)


def _items(document: str, dossier: Figures) -> tuple[ProtectionItem, ...]:
    accounts = dossier.get("accounts", [])
    asked: dict[str, list[str]] = {}
    for account in accounts:
        asked.setdefault(account["purpose"] or "", []).append(_name(account))
    words = [word for account in accounts for word in account["decisions"]]
    values = {
        "document": document,
        "most": MOST_STUDIES,
        "accounts": accounts,
        "released": [{**account, "name": _name(account)} for account in accounts if account["releases"]],
        "asked": list(asked.items()),
        "columns": sorted({name for account in accounts for name in (account["columns"] or "").split(", ") if name}),
        "analysts": sorted({account["analyst"] for account in accounts if account["analyst"] and account["releases"]}),
        "legal_bases": sorted({text for account in accounts if (text := account["stated"].get("legal_basis"))}),
        "refused": sum(account["refusals"] for account in accounts),
        "alone": any(study.get("per_site") for study in dossier["studies"].values()),
        "measured": audit_answers(dossier) if document == "dpia" else (),
        "said": {kind: sum(word["kind"] == kind for word in words) for kind in ("approval", "decline", "expired")},
        "people": sorted({word["operator"] for word in words if word["operator"] and word["kind"] != "expired"}),
    }
    found = answers("protection.md.j2", dossier, values)
    return tuple(ProtectionItem(each.part, each.head[0], each.answer, each.gap) for each in found)


def _name(account: Figures) -> str:
    """A study's name, or the beginning of its digest."""
    return str(account["name"] or account["study"][:12])
