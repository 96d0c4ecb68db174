"""The dossier's annexes for data protection: a draft of an impact assessment (GDPR, Article 35(7)), and of the record of
processing (Article 30(1)), taken from ledger, policy, studies and audits.

What the site's own records show is stated with its figures; what only people know is a gap, and says so. Nothing is judged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from veilsum_node.phrases import counted, listed
from veilsum_privacy.dossier import figures
from veilsum_privacy.dossier.annex import Figures, audit_answers, verified_words

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
    return (
        RetentionRow("Records, in the site’s own files", "as the site decides; this software keeps no copy", "there"),
        RetentionRow("Keys, seeds and encrypted payloads of a study", "its end", "`veilsum participant leave ID`"),
        RetentionRow(
            "Signed studies that are over, with their analysts’ words",
            until("studies", "not by itself"),
            "with `retention.studies`",
        ),
        RetentionRow("Noised vectors that alignments kept", until(vectors, "not by itself"), "with `retention.kept_vectors`"),
        RetentionRow(
            "The ledger: releases, refusals, decisions with names and reasons; no record",
            "the site leaves the federation",
            "with the state file as a whole: each entry proves those before it",
        ),
        RetentionRow(
            "Logs: names of studies and parties, times",
            until("log_days", "as the system that takes them decides", ""),
            "with `log.days`",
        ),
        RetentionRow("Backups of the state", "as the site decides", "there"),
        RetentionRow(
            "At the coordinator: released sums, results, signed studies, receipts",
            "as its operator decides (retention.studies there)",
            "`veilsum coordinator delete STUDY`, which leaves the receipts",
        ),
    )


def impact_assessment(dossier: Figures) -> tuple[ProtectionItem, ...]:
    """A draft by Article 35(7): description, necessity, risks, measures, and what remains; then the roles."""
    return (
        *_description(dossier),
        *_necessity(dossier),
        *_risks(dossier),
        *_measures(dossier),
        *_residual(dossier),
        *_roles(dossier),
    )


def processing_record(dossier: Figures) -> tuple[ProtectionItem, ...]:
    """A draft by Article 30(1), letters (a) to (g)."""
    item = partial(ProtectionItem, "Record of processing (Article 30(1))")
    contact = dossier.get("contact") or ""
    return (
        item(
            "(a) Controller, joint controllers, representative, data protection officer",
            (f"Contact of this dossier: {contact}.",) if contact else (),
            "Names and contact details. This software knows the site by its certified name only.",
        ),
        item(
            "(b) Purposes",
            _purposes(dossier),
            "The purpose of taking part in the federation as such, and what studies did not state.",
        ),
        item(
            "(c) Categories of data subjects and of personal data",
            _categories(dossier),
            "Who the people are, and which special categories (Article 9) the columns hold.",
        ),
        item("(d) Recipients", _recipients(dossier), "Persons or bodies behind these names, and who gets the results."),
        item(
            "(e) Transfers to third countries",
            ("Sums leave the site encrypted, with the noise that studies state. Where they go is not known here.",),
            "Where the coordinator and the analysts are, and the safeguards if that is outside the EEA.",
        ),
        item(
            "(f) Time limits for erasure",
            ("The table of retention below, from this site’s configuration.",),
            "Limits for the records themselves, and for backups.",
        ),
        item(
            "(g) Technical and organisational measures",
            _technical(dossier),
            "Organisational measures: training, access to the machine, contracts.",
        ),
    )


def _accounts(dossier: Figures) -> Sequence[Figures]:
    found: Sequence[Figures] = dossier.get("accounts", [])
    return found


def _description(dossier: Figures) -> tuple[ProtectionItem, ...]:
    item = partial(ProtectionItem, "Systematic description (Article 35(7)(a))")
    accounts = _accounts(dossier)
    released = [account for account in accounts if account["releases"]]
    lines = [_account_line(account) for account in released[-MOST_STUDIES:]]
    left = [f"{len(released) - MOST_STUDIES} earlier studies stand in the JSON twin."] if len(released) > MOST_STUDIES else []
    return (
        item(
            "The processing",
            (
                "Records of this site are read where they lie. Of each study that policy and budget admit, the site’s own"
                " software clips every record’s contribution to a public bound, adds the contributions up, adds noise, and"
                " sends the encrypted sum. Several sites’ sums are opened together, never this site’s alone unless a study"
                " says so.",
                f"{counted(len(accounts), 'study', 'studies')} asked; {len(released)} of them led to releases.",
            ),
            "Scope and context: since when, which clinics, which persons, and whether they expect it.",
        ),
        item("Studies that led to releases", (*left, *lines) or ("None so far.",)),
        item("Data", _categories(dossier), "Categories of persons, and special categories of data (Article 9)."),
        item("Recipients", _recipients(dossier)),
    )


def _necessity(dossier: Figures) -> tuple[ProtectionItem, ...]:
    item = partial(ProtectionItem, "Necessity and proportionality (Article 35(7)(b))")
    policy = dossier.get("policy")
    demanded = (
        []
        if policy is None
        else [
            f"The site demands of every study that it states {listed(policy['require'])}."
            if policy.get("require")
            else "The site demands no statement of a purpose (policy.require is empty)."
        ]
    )
    refused = sum(account["refusals"] for account in _accounts(dossier))
    return (
        item(
            "Purposes, as the analysts signed them",
            _purposes(dossier),
            "Whether each purpose is legitimate and specific enough.",
        ),
        item("Legal bases, as stated", _stated(dossier, "legal_basis"), "The legal basis of this site, by Articles 6 and 9."),
        item(
            "Why less would not do",
            (
                "Sums leave, and no record. Columns, bounds and the number of releases are fixed in the signed text before"
                " anything is read, and no other can be asked for.",
                f"{counted(refused, 'request was', 'requests were')} refused by policy or budget.",
                *demanded,
            ),
            "Why these columns and persons are needed, and why no smaller study answers the question.",
        ),
        item(
            "Limits that the site set", tuple(_budget_line(item) for item in dossier["populations"]) or ("No budget was set.",)
        ),
    )


def _risks(dossier: Figures) -> tuple[ProtectionItem, ...]:
    item = partial(ProtectionItem, "Risks to the persons (Article 35(7)(c))")
    exact = sum(row["mechanism"] == "none" for item in dossier["populations"] for row in item["releases"])
    unnoised = (
        (f"{counted(exact, 'release was', 'releases were')} made without noise: nothing bounds what these tell.",)
        if exact
        else ()
    )
    alone = any(study.get("per_site") for study in dossier["studies"].values())
    shown = ("Some studies showed figures of this site by itself.",) if alone else ()
    return (
        item(
            "What somebody can conclude who sees every release, and knows everything else",
            (*(_inference(population) for population in dossier["populations"] if population["releases"]), *unnoised, *shown)
            or ("Nothing was released.",),
            "How likely that is, and how severe for these persons: stigma, insurance, employment.",
        ),
        item(
            "If all other participants worked together with the coordinator",
            tuple(
                f"{population['name']}: epsilon {figures.cost(population['alone'])}."
                for population in dossier["populations"]
                if population["releases"]
            )
            or ("Nothing was released.",),
        ),
        item("Measured", audit_answers(dossier)),
        item(
            "What the guarantee does not cover",
            ("Part 5 lists it: several records of a person, persons at several sites, timing, the site’s own machine.",),
            "Which of these matter here.",
        ),
    )


def _measures(dossier: Figures) -> tuple[ProtectionItem, ...]:
    item = partial(ProtectionItem, "Measures (Article 35(7)(d))")
    return (
        item("Technical", _technical(dossier)),
        item("Human decisions", _decisions(dossier), "Who decides at the site, and how they are trained."),
        item("Erasure", ("The table of retention below.",), "How a person who withdraws or asks for erasure is answered."),
    )


def _residual(dossier: Figures) -> tuple[ProtectionItem, ...]:
    item = partial(ProtectionItem, "Residual risk")
    after = []
    for population in dossier["populations"]:
        end = population["after_all"]
        if end is None:
            after.append(f"{population['name']}: no bound is set, so that nothing says where it ends.")
        else:
            guess = figures.of_hundred(end["guess"])
            after.append(f"{population['name']}: once the budget is used up, the best guess is right {guess} times in 100.")
    return (
        item(
            "At the end of the budgets that are set",
            (*after, "50 in 100 is a coin’s toss, without the releases."),
            "Whether that is acceptable; whether the supervisory authority is consulted (Article 36).",
        ),
        item(
            "Opinion",
            (),
            "Of the data protection officer (Article 35(2)), of the persons or who speaks for them (35(9)); date, signature.",
        ),
    )


def _roles(dossier: Figures) -> tuple[ProtectionItem, ...]:
    item = partial(ProtectionItem, "Roles")
    return (
        item(
            "This site",
            (f"{dossier['site']} decides on each study, by its policy, its budget and its people, over its own records.",),
        ),
        item(
            "Others",
            _recipients(dossier),
            "Who is controller, joint controller (Article 26) or processor (Article 28), and by which contract.",
        ),
    )


def _account_line(account: Figures) -> str:
    name, method = account["name"] or account["study"][:12], account["method"]
    who = f", by {account['analyst']}" if account["analyst"] else ""
    what = f", {method}" if method else ""
    columns = f"; columns: {account['columns']}" if account["columns"] else ""
    why = f"; purpose: {account['purpose']}" if account["purpose"] else "; no purpose stated"
    return f"{name}{who}{what}: {counted(account['releases'], 'release')}{columns}{why}."


def _purposes(dossier: Figures) -> tuple[str, ...]:
    found: dict[str, list[str]] = {}
    for account in _accounts(dossier):
        found.setdefault(account["purpose"] or "", []).append(account["name"] or account["study"][:12])
    lines = [f"“{purpose}” ({listed(names[:10])})." for purpose, names in found.items() if purpose]
    if silent := found.get(""):
        lines.append(f"{counted(len(silent), 'study states', 'studies state')} none.")
    return tuple(lines) or ("Nobody asked for anything so far.",)


def _stated(dossier: Figures, name: str) -> tuple[str, ...]:
    found = sorted({account["stated"][name] for account in _accounts(dossier) if account["stated"].get(name)})
    return tuple(f"“{text}”." for text in found) or ("None was stated.",)


def _categories(dossier: Figures) -> tuple[str, ...]:
    columns = sorted({name for account in _accounts(dossier) for name in (account["columns"] or "").split(", ") if name})
    units = {"record": "one record", "subject": "all records of one person", "site": "all records of this site"}
    lines = [
        f"Population {item['name']}: datasets {listed(list(item['datasets'])) or 'none'};"
        f" protected unit: {listed([units.get(unit, unit) for unit in item['units']], 'or') or 'none yet'}."
        for item in dossier["populations"]
    ]
    return (*lines, *([f"Columns that studies asked for: {', '.join(columns)}."] if columns else []))


def _recipients(dossier: Figures) -> tuple[str, ...]:
    analysts = sorted({account["analyst"] for account in _accounts(dossier) if account["analyst"] and account["releases"]})
    named = f"Analysts who got results: {', '.join(analysts)}." if analysts else "No analyst got results so far."
    return (
        named,
        "The federation’s coordinator: opened sums and results, as every site that takes part in opening them; no record, and "
        "no sum of this site alone unless a study says so.",
    )


def _budget_line(population: Figures) -> str:
    if population["delta"] is None:
        return f"{population['name']}: none."
    last = population["budgets"][-1] if population["budgets"] else None
    why = f" Set by {last['operator']}: {last['reason']}." if last else ""
    bound = "unlimited" if population["epsilon"] is None else f"epsilon {figures.exact(population['epsilon'])}"
    spent = figures.cost(population["spent"])
    return f"{population['name']}: {bound} at delta {figures.small(population['delta'])}, of which {spent} is spent.{why}"


def _inference(population: Figures) -> str:
    guess = figures.of_hundred(population["meaning"]["guess"])
    return (
        f"{population['name']}: whether one {listed(list(population['units']), 'or')} is among them is guessed right at most "
        f"{guess} times in 100, before: 50; epsilon {figures.cost(population['spent'])}."
    )


def _technical(dossier: Figures) -> tuple[str, ...]:
    return (
        "Differential privacy: clipped contributions, discrete Gaussian noise, a budget reserved before anything leaves.",
        "Secure aggregation: sums are encrypted and masked: the coordinator sees only what several sites opened together.",
        "TLS 1.3 with certificates on both sides; the key never leaves the site.",
        f"A ledger of every release, refusal and decision, chained and signed. {verified_words(dossier)}",
    )


def _decisions(dossier: Figures) -> tuple[str, ...]:
    words = [word for account in _accounts(dossier) for word in account["decisions"]]
    counts = {kind: sum(word["kind"] == kind for word in words) for kind in ("approval", "decline", "expired")}
    people = sorted({word["operator"] for word in words if word["operator"] and word["kind"] != "expired"})
    policy = dossier.get("policy")
    how = (
        []
        if policy is None
        else [
            "Every study waits for a person’s word (policy.approval)."
            if policy["approval"] == "manual"
            else "Studies within policy and budget are admitted without asking anybody (policy.approval)."
        ]
    )
    if policy is not None and policy.get("four_eyes_above") is not None:
        how.append(f"Above epsilon {figures.exact(policy['four_eyes_above'])} two people decide.")
    said = f"{counted(counts['approval'], 'approval')}, {counted(counts['decline'], 'decline')},"
    said += f" {counts['expired']} without an answer"
    return (*how, f"{said}{f', by {listed(people)}' if people else ''}.")
