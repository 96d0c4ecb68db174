"""The dossier as one HTML page, made from its JSON twin alone: no script, nothing from elsewhere, every value escaped.

Rows of the page: equal releases of a study, and equal refusals, stand in one row with their count; the twin lists each.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from veilsum_privacy.dossier import charts
from veilsum_privacy.dossier.annex import documents
from veilsum_privacy.dossier.figures import INFINITE
from veilsum_privacy.dossier.protection import TITLES

if TYPE_CHECKING:
    from jinja2 import Template

MOST_ROWS = 400
"""Rows of one table; the earliest beyond it stand in the twin only, and the page says so."""

_EQUAL = (
    "study", "dataset", "unit", "delta", "adaptive", "mechanism", "noise", "sensitivity", "variance", "sampling_rate", "steps",
    "cohort", "honest", "colluders",
)  # fmt: skip

_TEMPLATE = "dossier.html.j2"

CODES: Mapping[str, str] = {
    "budget-exceeded": "More than the budget allows",
    "epsilon-too-large": "A larger epsilon than the site allows one study",
    "study-invalid": "The study is malformed",
    "study-expired": "The study had expired",
    "study-replayed": "The study was seen before",
    "study-signature": "The study's signature is wrong",
    "analyst-not-allowed": "The analyst may not ask here",
    "purpose-not-stated": "The study does not state what the site requires, such as its purpose",
    "method-not-allowed": "The method is not accepted here",
    "dataset-not-offered": "The dataset is not offered here",
    "schema-not-accepted": "The data's description does not fit",
    "disclosure-not-allowed": "The kind of disclosure is not accepted here",
    "noise-not-accepted": "The kind of noise is not accepted here",
    "precision-not-accepted": "The precision is not accepted here",
    "cohort-too-small": "Too few sites took part",
    "cohort-not-trusted": "Too few of the sites that took part are trusted",
    "cohort-changed": "The sites that took part had changed",
    "masks-not-accepted": "Masks shared by neighbours only were not accepted, or held too few sites together",
    "unit-not-accepted": "The unit of privacy is not accepted here",
    "too-many-attempts": "Too many attempts at one sum",
    "approval-declined": "The site's operator declined",
    "asked-too-often": "An analyst asked too often in a day whether a budget allows a study",
    "too-many-lost-charges": "Too many releases were paid for and never seen",
    "receipt-invalid": "A receipt was wrong",
    "broadcast-not-followed": "The model did not follow from the sums that were released",
    "weights-not-accepted": "The weights of the sites are not accepted here",
    "roster-invalid": "The list of the sites that take part was wrong",
    "keys-invalid": "The keys of the study were wrong",
    "task-not-declared": "The sum was not announced, or the site does not compute it",
    "round-replayed": "The sum was asked for again",
    "context-mismatch": "Not everyone was asked for the same sum",
    "check-invalid": "The sum did not fit what the sites had sent",
    "study-closed": "The study had ended",
    "ledger-not-verified": "The site's ledger did not verify",
    "internal-error": "The site's software failed",
}
"""What a refusal's code means; a code that is not here is shown as it is."""


def render(dossier: Mapping[str, Any]) -> str:
    """The page for a dossier in plain data, from :func:`~veilsum_privacy.dossier.content.describe` or its JSON."""
    populations = [_population(item, index, dossier) for index, item in enumerate(dossier["populations"])]
    return _template().render(
        dossier=dossier,
        proof=dossier["proof"],
        populations=populations,
        refusals=_refusals(dossier["refusals"], dossier),
        shown_alone=any(study.get("per_site") for study in dossier["studies"].values()),
        releases=sum(len(item["releases"]) for item in dossier["populations"]),
        most_rows=MOST_ROWS,
        policy=dossier.get("policy"),
        accounts=dossier.get("accounts", [])[-MOST_ROWS:],
        policy_changes=dossier.get("policy_changes", []),
        audits=dossier.get("audits", []),
        annex=_levels(dossier.get("annex", [])),
        protection={name: (TITLES[name], _levels(dossier[name], "part")) for name in ("dpia", "art30") if name in dossier},
        retention=dossier.get("retention", []),
    )


def _levels(items: Sequence[Mapping[str, Any]], key: str = "level") -> dict[str, list[Mapping[str, Any]]]:
    """An annex's items by level, or by another key, in order."""
    levels: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        levels.setdefault(item[key], []).append(item)
    return levels


def _population(population: Mapping[str, Any], index: int, dossier: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of a population: its fields, plots, and rows in place of long lists."""
    accounts = {item["study"]: item for item in dossier.get("accounts", [])}
    labels = {item["study"]: _study(item["study"], dossier) for item in population["studies"]}
    releases, refusals = release_rows(population["releases"]), _refusals(population["refusals"], dossier)
    widths = {"wide": charts.WIDE, "narrow": charts.NARROW}
    return {
        **population,
        "id": f"population-{index + 1}",
        "release_rows": [
            {
                **row,
                "label": _study(row["study"], dossier),
                "per_site": list(dossier["studies"].get(row["study"], {}).get("per_site", ())),
                "whose": _whose(row["study"], accounts),
            }
            for row in releases[-MOST_ROWS:]
        ],
        "sampled": any(release["sampling_rate"] < 1 for release in population["releases"]),
        "bounded": any(step["budget"] is not None for step in population["curve"]),
        "hidden_rows": max(0, len(releases) - MOST_ROWS),
        "refusal_rows": refusals,
        "plots": {
            kind: {
                "spending": charts.spending_plot(population, width, f"spending-{index}"),
                "studies": charts.study_bars(population, labels, width, f"studies-{index}"),
                "meter": charts.meter(population, width, f"meter-{index}"),
            }
            for kind, width in widths.items()
        },
    }


def _refusals(refusals: Any, dossier: Mapping[str, Any]) -> list[dict[str, Any]]:
    accounts = {item["study"]: item for item in dossier.get("accounts", [])}
    rows = refusal_rows(refusals)
    return [{**row, "label": _study(row["study"], dossier), "whose": _whose(row["study"], accounts)} for row in rows]


def _whose(study: str | None, accounts: Mapping[str, Mapping[str, Any]]) -> str:
    """Who asked, by which method, and who decided on it; empty where nothing is known."""
    account = accounts.get(study or "")
    if account is None:
        return ""
    asked = f"asked by {account['analyst']}, {account['method']}" if account["analyst"] else ""
    said = {"approval": "approved by", "decline": "declined by"}
    decided = [f"{said[item['kind']]} {item['operator']}" for item in account["decisions"] if item["kind"] in said]
    return "; ".join(filter(None, [asked, *decided]))


def _study(digest: str | None, dossier: Mapping[str, Any]) -> str:
    """A study's name where the site knows it, else the beginning of its digest."""
    if not digest:
        return ""
    known = dossier["studies"].get(digest) or next(
        (item for item in dossier.get("accounts", []) if item["study"] == digest and item["name"]), None
    )
    return str(known["name"]) if known else f"study {digest[:12]}"


@cache
def _template() -> "Template":
    page = documents().overlay(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page.filters = {**page.filters, "reason": lambda code: CODES.get(code, code)}
    return page.get_template(_TEMPLATE)


def release_rows(releases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Releases of one study that differ in nothing but their number and time, as one row in the place of the last.

    A row has the release's fields and ``count``, ``from``, ``to`` (times), ``rounds``, ``unseen`` and ``recovered`` (counts);
    ``total`` is that after the last of them.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for release in releases:
        key = tuple(release[name] for name in _EQUAL)
        row = rows.pop(key, None) or {"count": 0, "from": release["time"], "unseen": 0, "recovered": 0, "rounds": []}
        row |= {name: value for name, value in release.items() if name != "recovered"}
        row["count"] += 1
        row["to"] = release["time"]
        row["unseen"] += not release["seen"]
        row["recovered"] += release["recovered"]
        row["rounds"].append(release["round"])
        rows[key] = row
    for row in rows.values():
        row["rounds"] = _ranges(row["rounds"])
    return list(rows.values())


def refusal_rows(refusals: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Refusals of one study for the same reasons as one row: the last of them, with ``count``, ``from`` and ``to``.

    Its ``after`` is the largest that was asked for.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for refusal in refusals:
        reasons = tuple(str(reason.get("code", "")) for reason in refusal["reasons"])
        key = (refusal["study"], refusal["population"], refusal["dataset"], refusal["code"], reasons, refusal["budget"])
        row = rows.pop(key, None)
        rows[key] = {
            **refusal,
            "count": 1 + (row["count"] if row else 0),
            "from": row["from"] if row else refusal["time"],
            "to": refusal["time"],
            "after": max((row or refusal)["after"], refusal["after"], key=_size),
        }
    return list(rows.values())


def _size(value: float | str | None) -> float:
    return -math.inf if value is None else math.inf if value == INFINITE else float(value)


def _ranges(numbers: Sequence[int | None]) -> str:
    """``1–3, 5``: whole numbers as ranges, at most four of them."""
    found: list[list[int]] = []
    for number in sorted({number for number in numbers if number is not None}):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    texts = [f"{first}" if first == last else f"{first}–{last}" for first, last in found]
    return ", ".join(texts if len(texts) <= 4 else [*texts[:3], f"… {texts[-1]}"])
