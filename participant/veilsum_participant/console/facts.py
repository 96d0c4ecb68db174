"""What the console's pages show, in plain values: each from the function that the command of the same name calls."""

import hashlib
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Select, select

from veilsum_node.canonical import canonical
from veilsum_node.config import did_you_mean
from veilsum_node.database_places import open_readonly
from veilsum_node.errors import ConfigurationError, Damage, Misuse
from veilsum_node.identity.certificate import load_authority
from veilsum_node.identity.tls import AUTHORITY_FILE
from veilsum_node.phrases import counted
from veilsum_node.telemetry.health import ask_ready
from veilsum_node.web.looking import Kept, Look, Row
from veilsum_participant.checks import SiteCheck
from veilsum_participant.checks.labels import known_study, study_labels
from veilsum_participant.cli.budget_changes import read_epsilon
from veilsum_participant.cli.entries import entry_row, read_time
from veilsum_participant.cli.places import LedgerPlace, verify_place
from veilsum_participant.protocol.budget_changes import proposals
from veilsum_participant.protocol.budgets import promised
from veilsum_participant.protocol.decisions import Waiting, most_borne
from veilsum_participant.protocol.shown import shown_text
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_participant.store.studies import STUDIES
from veilsum_privacy.dossier import StudyLabel, describe, proven, unproven
from veilsum_privacy.dossier.figures import cost, meaning, moment, of_hundred, remaining
from veilsum_privacy.dossier.ledgers import Checked, check, entry_fields, open_source, readable_entries, spending_fields
from veilsum_privacy.ledger import Kind, LedgerReader, Mechanism
from veilsum_privacy.ledger.reader import rows_of
from veilsum_privacy.ledger.rows import read_row
from veilsum_privacy.ledger.statements import declared_mechanisms
from veilsum_privacy.ledger.tables import ledger_table
from veilsum_privacy.study.study import Study

MOST_ROWS, MOST_READ = 100, 2000
"""Entries on one page of the ledger; and those that are read for it at most, whatever is searched for."""

KEPT_SECONDS = 3600
"""How long what verification found is shown of a ledger with the same head."""

Found = tuple[Checked, int]
"""What verification found, and when, unix seconds."""

MOST_STUDIES = 1000
"""The most further studies that "what if" asks about."""


@dataclass(frozen=True)
class Words:
    """A waiting study in words.

    Attributes:
        parts: headings, each with its lines as a name (which may be empty) and a text.
        sha256: of the text, which the ledger's entry of a decision holds.
        signed: the signed study, as indented JSON.
    """

    parts: list[tuple[str, list[tuple[str, str]]]]
    sha256: str
    signed: str


def in_words(item: Waiting) -> Words:
    """What ``participant show`` prints, in parts; nothing is added or left out."""
    text = shown_text(item)
    parts: list[tuple[str, list[tuple[str, str]]]] = []
    for line in text.splitlines():
        if line and not line.startswith("  "):
            parts.append((line, []))
        elif line:
            name, colon, rest = line.strip().partition(": ")
            parts[-1][1].append((name, rest) if colon and len(name) <= 24 else ("", line.strip()))
    signed = json.dumps(json.loads(item.study.to_bytes()), indent=1, ensure_ascii=False)
    return Words(parts, hashlib.sha256(text.encode()).hexdigest(), signed)


def inbox_row(item: Waiting) -> dict[str, Any]:
    """A waiting study in one line of the inbox."""
    return {
        "id": item.digest.hex(),
        "name": item.study.name,
        "state": item.state,
        "analyst": item.analyst,
        "purpose": item.study.statements.get("purpose", ""),
        "dataset": item.study.dataset,
        "epsilon": "no noise" if item.study.privacy.noise == "none" else f"epsilon {cost(item.epsilon)}",
        "since": moment(item.time),
        "until": "" if item.deadline is None else moment(item.deadline),
        "approved_by": item.approved_by,
        "needs": item.needs,
        "obstacles": () if item.obstacle is None else item.obstacle.reasons,
    }


def known_studies(config: ParticipantConfig) -> list[dict[str, str]]:
    """Studies that the site was ever enrolled in, newest first."""
    return [
        {"id": digest.hex(), "name": study.name, "analyst": analyst, "state": status, "signed": moment(study.created)}
        for digest, study, analyst, status in _enrolled(config)
    ]


def _enrolled(config: ParticipantConfig) -> list[tuple[bytes, Study, str, str]]:
    if not config.state.exists():
        return []
    columns = (STUDIES.c.digest, STUDIES.c.study, STUDIES.c.analyst, STUDIES.c.status)
    with open_readonly(config.state) as database, database.reading() as connection:
        rows = connection.execute(select(*columns)).all()
    known = ((bytes(row.digest), known_study(row.study), str(row.analyst), str(row.status)) for row in rows)
    found = [(digest, study, analyst, status) for digest, study, analyst, status in known if study is not None]
    return sorted(found, key=lambda item: -item[1].created)


def budget_rows(config: ParticipantConfig) -> list[dict[str, Any]]:
    """Where each population stands, and how its budget came about."""
    rows = []
    with open_source(config.state) as opened:
        changes = [entry_fields(entry) for entry in opened.entries(kind=Kind.BUDGET)]
        for name in opened.populations():
            fields = spending_fields(opened, name)
            spent = math.inf if isinstance(fields["spent"], str) else fields["spent"]
            keep = ("no.", "time", "what")
            history = [
                entry_row(item, None) | {"time": moment(item["time"])} for item in changes if item["population"] == name
            ]
            rows.append(
                {
                    "population": name,
                    "figures": [
                        ("allowed in all", "no bound" if fields["epsilon"] is None else f"{fields['epsilon']:g}"),
                        ("spent", cost(fields["spent"])),
                        ("with open releases", cost(fields["reserved"])),
                        ("left", "no bound" if fields["left"] is None else remaining(fields["left"])),
                        ("a guess is right at most", f"{_right(spent, fields['delta'])} in 100"),
                    ],
                    "epsilon": fields["epsilon"],
                    "spent": spent,
                    "delta": fields["delta"],
                    "rule": fields["adaptive"],
                    "releases": fields["releases"],
                    "history": [{key: row[key] for key in keep} for row in reversed(history)],
                }
            )
    return rows


def waiting_budgets(config: ParticipantConfig) -> list[str]:
    """What one person proposed and a second one has yet to set, in words."""
    with open_readonly(str(config.state)) as database, database.reading() as connection:
        found = proposals(connection, int(time.time()))
    said = "{0.operator} proposes epsilon {1} at delta {0.budget.delta:g} for {0.population} ({0.reason})."
    return [said.format(item, "unlimited" if item.budget.epsilon is None else f"{item.budget.epsilon:g}") for item in found]


def what_if(config: ParticipantConfig, population: str, epsilon: str, study: str, count: str) -> list[tuple[str, str]]:
    """Where a population would stand with another budget, and with more studies like one that the site knows.

    Raises:
        Misuse: a figure is none, or the population or study does not exist.
    """
    with open_source(config.state) as opened:
        known = opened.populations()
        if population not in known:
            raise Misuse(f"No population {population!r} has a budget.", did_you_mean(population, known))
        in_force = opened.budget(population)
        assert in_force is not None  # noqa: S101  it is among the populations with one
        bound = in_force.epsilon if not epsilon.strip() else read_epsilon(epsilon.strip())
        number = int(count) if count.isascii() and count.isdigit() and len(count) < 5 else -1
        if not 0 <= number <= MOST_STUDIES:
            raise Misuse("How many studies is a number of 0 to 1,000.")
        price = _price(config, study)
        with open_readonly(config.state) as database, database.reading() as connection:
            others = promised(connection, config, population)

        def after(studies: int) -> float:
            more = others + Counter({item: releases * studies for item, releases in price.items()})
            return opened.headroom(population, more).after

        stands = after(number)
        with_more = (f"with {counted(number, 'more such study', 'more such studies')}", cost(stands))
        rows = [
            ("spent and promised", cost(after(0))),
            *([with_more] if price else []),
            ("budget", "no bound" if bound is None else f"{bound:g}"),
            ("a guess about a person is right at most", f"{_right(stands, in_force.delta)} times in 100"),
        ]
        if bound is not None:
            rows.append(("the budget bears it", "yes" if stands <= bound else "no"))
            if price:
                rows.append(("such studies that it bears from now on", _most(after, bound)))
    return rows


def _most(after: Callable[[int], float], bound: float) -> str:
    if after(0) > bound:
        return "none: more is spent and promised already"
    most = most_borne(lambda studies: after(studies) <= bound, MOST_STUDIES)
    return f"{most:,}" if most < MOST_STUDIES else f"{MOST_STUDIES:,} or more"


def _price(config: ParticipantConfig, study: str) -> Counter[Mechanism]:
    if not study:
        return Counter()
    for digest, known, _, _ in _enrolled(config):
        if digest.hex() == study:
            return declared_mechanisms(known)
    raise Misuse("The site knows no such study.", "Choose one of the list.")


def ledger_page(config: ParticipantConfig, query: dict[str, str]) -> dict[str, Any]:
    """The newest entries that a search finds, and what it may ask for.

    Args:
        query: ``kind``, ``population``, ``study`` (name or first digits), ``text``, ``since``, ``until``, and ``before``, an
            entry's number.

    Raises:
        Misuse: a time is none.
    """
    asked = {name: query.get(name, "").strip() for name in ("kind", "population", "study", "text", "since", "until", "before")}
    labels = study_labels(config.state)
    with open_source(config.state) as opened, opened.database.reading() as connection:
        entries = [read_row(row) for row in rows_of(connection, _searched(asked, labels))]
        populations = opened.populations()
        head = opened.head().hex()
    rows = []
    for entry in entries:
        fields = entry_fields(entry)
        name = _study_name(fields, labels)
        if asked["study"] and not (name == asked["study"] or (fields["study"] or "").startswith(asked["study"].lower())):
            continue
        row = entry_row(fields, name) | {"time": moment(entry.time)}
        if asked["text"] and asked["text"].casefold() not in " ".join(map(str, row.values())).casefold():
            continue
        rows.append(row | {"entry": fields})
        if len(rows) > MOST_ROWS:
            break
    more = entries[-1].seq if len(entries) == MOST_READ else None
    more = rows[MOST_ROWS - 1]["no."] if len(rows) > MOST_ROWS else more
    return {
        "rows": rows[:MOST_ROWS],
        "more": more,
        "asked_for": asked,
        "kinds": [kind.value for kind in Kind],
        "populations": populations,
        "head": head,
    }


def _searched(asked: Mapping[str, str], labels: Mapping[bytes, StudyLabel]) -> Select[Any]:
    """Entries that a search may mean, newest first, as many as a page reads."""
    column, now, before, study = ledger_table.c, int(time.time()), asked["before"], asked["study"]
    query = select(ledger_table).order_by(column.seq.desc()).limit(MOST_READ)
    if asked["kind"] in set(Kind):
        query = query.where(column.kind == asked["kind"])
    if asked["population"]:
        query = query.where(column.population == asked["population"])
    if asked["since"]:
        query = query.where(column.time >= read_time(asked["since"], now))
    if asked["until"]:
        query = query.where(column.time < read_time(asked["until"], now, end=True))
    if before.isdecimal():
        query = query.where(column.seq < int(before[:18]))
    if study:
        named = column.study.in_([digest.hex() for digest, label in labels.items() if label.name == study])
        told = column.detail.contains(canonical(study).decode(), autoescape=True)
        query = query.where(named | told | column.study.startswith(study.lower(), autoescape=True))
    return query


def _study_name(fields: dict[str, Any], labels: dict[bytes, StudyLabel]) -> str | None:
    """A study's name from the site's own file or, of one that is not kept, from the entry of a decision."""
    if fields["study"] is None:
        return None
    label = labels.get(bytes.fromhex(fields["study"]))
    return label.name if label is not None else str(fields["detail"].get("name") or fields["study"][:12])


def verified(config: ParticipantConfig, export: str | None = None) -> dict[str, Any]:
    """What verification says, also against what another site holds.

    Args:
        export: another site's, in JSON Lines.

    Raises:
        HostileInput: it is none.
    """
    place = LedgerPlace(str(config.state), config.identity / AUTHORITY_FILE)
    with tempfile.TemporaryDirectory() as folder, open_source(config.state) as opened:
        against = []
        if export is not None:
            against = [str(Path(folder) / "the export.jsonl")]
            Path(against[0]).write_text(export, encoding="utf-8", newline="")
        checked = verify_place(opened, place, None, None, against)
        proof = checked.proof(opened, int(time.time()))
    return {
        "proof": proof,
        "site": checked.site,
        "proves": proven(proof, checked.site, mirror=False),
        "open": unproven(proof, mirror=False),
        "advice": "" if checked.fault is None else checked.fault.advice,
    }


def verification_of(config: ParticipantConfig, opened: LedgerReader, now: int, kept: Kept[Found]) -> Found:
    """What verification finds, and when it found it, unix seconds: what it found last while the ledger has that head, an hour
    at most; a ledger that does not verify is verified each time."""
    authority, head = config.identity / AUTHORITY_FILE, b""
    with suppress(ValueError, Damage):  # of a head that is none verification says more
        head = opened.head()
    about = config.state, authority.read_bytes(), head
    found = kept.of(about, lambda: (check(opened, authority=load_authority(authority)), now), KEPT_SECONDS)
    if found[0].verification is None:
        kept.forget()
    return found


def dossier(config: ParticipantConfig, contact: str, verifications: Kept[Found]) -> dict[str, Any]:
    """The dossier in plain values, as ``veilsum ledger report`` makes it, but for when the ledger was verified."""
    now = int(time.time())
    with open_source(config.state) as opened:
        checked, when = verification_of(config, opened, now, verifications)
        proof = checked.proof(opened, when)
        entries = readable_entries(opened, proof.entries)
    return describe(
        entries,
        proof,
        site=checked.site,
        made=now,
        studies=study_labels(config.state, words=True),
        contact=contact,
        policy=config.policy.model_dump(mode="json"),
    )


def health(config: ParticipantConfig) -> list[tuple[str, Look]]:
    """What can be known of the participant without asking for a record: its session, and every check of the site itself."""

    def site() -> list[Row]:
        return [item.row() for item in SiteCheck(config, lambda: int(time.time())).run(reach=False)]

    return [("session", lambda: [_session(config)]), ("the site's checks", site)]


def _right(epsilon: float, delta: float) -> str:
    """How often in a hundred a guess about a person is right at most: as a tossed coin is where nothing was released."""
    return of_hundred(meaning(epsilon, delta).guess) if epsilon else "50"


def _session(config: ParticipantConfig) -> Row:
    try:
        found = ask_ready(config.metrics)
    except ConfigurationError as error:
        return {"state": "warning", "of": "session", "found": "not known", "what to do": f"{error.message} {error.advice}"}
    if found.ready:
        return {"state": "ok", "of": "session", "found": "open", "what to do": ""}
    return {"state": "failed", "of": "session", "found": found.reason, "what to do": "See the participant's log."}
