"""What the operator's pages show, in plain values."""

import hashlib
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import LargeBinary, Text, func, inspect, select

from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_coordinator.results.retirement import PROOFS, HeldStudy, due_studies, held_studies
from veilsum_coordinator.storage.long_values import METADATA
from veilsum_node.database_places import open_readonly
from veilsum_node.errors import ConfigurationError, Misuse, VeilsumError
from veilsum_node.identity.authority import requested
from veilsum_node.identity.certificate import moment
from veilsum_node.identity.files import read_file
from veilsum_node.identity.record import Issued, IssuedRecord
from veilsum_node.identity.renewal import DAY, FEW_DAYS
from veilsum_node.phrases import counted
from veilsum_node.telemetry.health import ask_metrics
from veilsum_node.web.looking import Look
from veilsum_node.web.settings import ConsoleSettings

EXPIRY = "veilsum_participant_certificate_expiry_timestamp_seconds"
REJECTED = "veilsum_rejected_messages_total"
DUPLICATES = "veilsum_sessions_held_total"
"""Sessions that were refused because another process with the same identity had one; of coordinators that count them."""

MOST_LOGINS = 100
MOST_DAYS = 36_500


class RunningCoordinator(Protocol):
    """The running coordinator, as :class:`veilsum.remote.Remote` asks it."""

    def describe(self) -> Any: ...
    def list(self) -> Sequence[Any]: ...
    def find(self, prefix: str) -> bytes: ...
    def show(self, study: bytes) -> Any: ...
    def abort(self, study: bytes) -> Any: ...


@dataclass(frozen=True)
class Sources:
    """Where everything comes from.

    Attributes:
        path: of ``coordinator.toml``.
        settings: the console's own.
        connect: opens the interface of the running coordinator as its operator.
        checks: what `coordinator check` looks at, by name.
    """

    path: Path
    settings: ConsoleSettings
    connect: Callable[[], AbstractContextManager[RunningCoordinator]]
    checks: Callable[[], Sequence[tuple[str, Look]]]


Samples = Mapping[str, Mapping[tuple[str, ...], float]]
"""Values of metrics, by name and labels' values in their order."""


def metrics(config: CoordinatorConfig) -> Samples:
    """What the coordinator's own endpoint shows; nothing where it has none or does not answer."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    try:
        text = ask_metrics(config.metrics)
    except ConfigurationError:
        return found
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def record(settings: ConsoleSettings) -> list[Issued]:
    """Certificates that the authority signed, where its record is at hand."""
    return [] if settings.record is None else IssuedRecord(settings.record).look()


def member_rows(info: Any, samples: Samples, issued: Sequence[Issued], now: int) -> list[dict[str, Any]]:
    """Members with their sessions, the ends of their certificates, and what of them is there twice.

    Args:
        info: a coordinator's description of itself.
    """
    issued = [entry for entry in issued if entry.role != "transport"]  # of a party's connections, beside its own
    latest = {entry.name: entry for entry in issued}
    keys = Counter(
        name for name, _ in {(item.name, item.fingerprint) for item in issued if item.expires >= now and not item.subject}
    )
    rows = []
    for name in sorted({*info.known, *(entry.name for entry in issued if entry.role == "participant")}):
        until = int(samples.get(EXPIRY, {}).get((name,), 0)) or (latest[name].expires if name in latest else 0)
        twice = int(samples.get(DUPLICATES, {}).get((name,), 0))
        said = [f"{twice} times two processes" if twice else "", f"{keys[name]} valid keys" if keys[name] > 1 else ""]
        rows.append(
            {
                "name": name,
                "state": "connected" if name in info.connected else "away",
                "seen": moment(info.seen[name]) if info.seen.get(name) else "",
                "received": size(info.received.get(name, 0)),
                "certificate": moment(until) if until else "",
                "ends": bool(until) and (until - now) // DAY < FEW_DAYS,
                "duplicates": ", ".join(filter(None, said)),
            }
        )
    return rows


def study_row(study: Any) -> dict[str, Any]:
    """A study in one line: what of it moves, and who is silent."""
    current = study.rounds[-1] if study.rounds else None
    return {
        "id": study.study,
        "name": study.name,
        "analyst": study.analyst,
        "method": study.method,
        "phase": study.phase,
        "reason": study.reason,
        "submitted": moment(study.submitted),
        "round": "" if current is None else f"{current.round} of {study.declared}: {current.phase}",
        "silent": study.silent,
        "bytes": size(study.bytes_received),
        "seconds": f"{study.seconds:,.0f}" if study.released else "–",
        "progress": study.progress,
        "over": study.over,
    }


def round_rows(study: Any) -> list[dict[str, Any]]:
    """A study's rounds, newest first."""
    return [
        {
            "round": item.round,
            "what": item.label,
            "phase": item.phase,
            "attempts": item.attempts,
            "sites": ", ".join(item.cohort),
            "received": size(item.bytes_received),
            "seconds": f"{item.seconds:,.0f}" if item.phase == "released" else "–",
        }
        for item in reversed(study.rounds)
    ]


def storage(config: CoordinatorConfig, known: Sequence[HeldStudy]) -> dict[str, Any]:
    """What studies occupy, in the journal and as results; the largest first."""
    journal, folder = Counter[str](), config.state / "results"
    with open_readonly(config.database_place) as database, database.reading() as connection:
        there = set(inspect(connection).get_table_names())
        for table in METADATA.sorted_tables:
            key = table.c.get("study", table.c.get("digest"))
            if table.name not in there or key is None:
                continue
            values = [column for column in table.c if isinstance(column.type, LargeBinary | Text) and column is not key]
            sizes: Any = sum(func.coalesce(func.sum(func.length(column)), 0) for column in values)
            for digest, total in connection.execute(select(key, sizes).group_by(key)):
                journal[bytes(digest).hex()] += int(total)
    studies = {item.digest.hex(): item for item in known}
    results = {
        place.name: sum(item.stat().st_size for item in place.rglob("*") if item.is_file())
        for place in (folder.iterdir() if folder.is_dir() else ())
    }
    rows = [
        {
            "id": digest,
            "held": studies.get(digest),
            "submitted": moment(studies[digest].submitted) if digest in studies else "",
            "expires": moment(studies[digest].expires) if digest in studies else "",
            "journal": size(journal[digest]),
            "results": size(results.get(digest, 0)),
        }
        for digest in sorted({*journal, *results}, key=lambda key: -(journal[key] + results.get(key, 0)))
    ]
    return {"rows": rows, "journal": size(journal.total()), "results": size(sum(results.values()))}


def held(config: CoordinatorConfig) -> list[HeldStudy]:
    """All studies that the coordinator holds, oldest first."""
    with open_readonly(config.database_place) as database:
        return held_studies(database, config.state / "results")


@dataclass(frozen=True)
class Due:
    """Studies that expired so many days ago or earlier.

    Attributes:
        words: what somebody types who wants all of them deleted.
        digest: of the list, which a form brings back.
    """

    days: int
    studies: Sequence[HeldStudy]

    @property
    def words(self) -> str:
        return f"delete {counted(len(self.studies), 'study', 'studies')}"

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"".join(item.digest for item in self.studies)).hexdigest()

    @property
    def size(self) -> str:
        return size(sum(item.size for item in self.studies))


def due(studies: Sequence[HeldStudy], days: str) -> Due:
    """Which of some studies are over and expired a number of days ago or earlier.

    Raises:
        Misuse: the text is not a number of days.
    """
    if not (days.isascii() and days.isdigit() and len(days) < 7 and int(days) <= MOST_DAYS):
        raise Misuse(f"Days are a whole number of 0 to {MOST_DAYS:,}.", "Give days since studies expired, such as 90.")
    return Due(int(days), due_studies(studies, now(), int(days)))


def places(config: CoordinatorConfig, settings: ConsoleSettings) -> dict[str, Path]:
    """Folders for what is kept: ``archive`` for copies of studies, ``proofs`` of deleted ones."""
    return {"archive": settings.archive or config.state / "archive", "proofs": config.state / PROOFS}


def request_rows(settings: ConsoleSettings, issued: Sequence[Issued]) -> list[dict[str, Any]]:
    """Requests to sign in the folder, with the fingerprint that the party reads out, and what to run."""
    if settings.requests is None or not settings.requests.is_dir():
        return []
    known, rows = {entry.fingerprint for entry in issued}, []
    for path in sorted(settings.requests.rglob("*.csr")):
        row = {"file": str(path), "name": "", "role": "", "fingerprint": "", "state": "refused", "run": ""}
        try:
            name, role, fingerprint = requested(read_file(path, "request"))
        except VeilsumError as error:
            rows.append(row | {"run": error.message})
            continue
        state = "signed" if fingerprint in known else "waiting"
        words = ("veilsum", "federation", "sign", str(path), "--role", role or "ROLE", "--name", name)
        command = shlex.join(words)  # somebody pastes it into a shell, and the request says what it likes
        rows.append(row | {"name": name, "role": role, "fingerprint": fingerprint, "state": state, "run": command})
    return rows


def login_rows(issued: Sequence[Issued]) -> list[dict[str, str]]:
    """Log-ins by an identity provider, newest first."""
    found = [entry for entry in issued if entry.subject]
    return [
        {
            "time": moment(item.issued),
            "name": item.name,
            "role": item.role.value,
            "until": moment(item.expires),
            "who": item.subject,
        }
        for item in reversed(found[-MOST_LOGINS:])
    ]


def refusal_rows(studies: Sequence[Any], samples: Samples) -> dict[str, Any]:
    """What sites refused, by study, and what the coordinator rejected."""
    sites = [
        {"study": study.name, "site": item.participant, "round": item.round or "the study", "code": item.code}
        for study in reversed(studies)
        for item in study.refusals
    ]
    rejected = [
        {"reason": key[0], "messages": f"{value:,.0f}"} for key, value in sorted(samples.get(REJECTED, {}).items()) if value
    ]
    return {"sites": sites, "rejected": rejected}


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def now() -> int:
    """Unix seconds."""
    return int(time.time())
