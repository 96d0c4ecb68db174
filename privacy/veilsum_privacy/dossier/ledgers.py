"""Ledgers for the commands that read them: a party's state file, beside the running party, or an export.

Reading creates and changes nothing. Spending comes out as plain values: an epsilon that is infinite is the text "infinite", a
bound that does not exist is None.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from veilsum_node.database_places import open_readonly
from veilsum_node.errors import HostileInput, StateError
from veilsum_node.identity import Role
from veilsum_node.identity.files import read_file
from veilsum_node.phrases import unreadable
from veilsum_privacy.audit.signed import MOST_BYTES, SignedAudit, read_report
from veilsum_privacy.dossier import Proof
from veilsum_privacy.dossier.figures import plain
from veilsum_privacy.ledger import Entry, Kind, LedgerFault, LedgerReader, Verification, read_export, verify_ledger
from veilsum_privacy.ledger.export import FORMAT, MAX_HEADER
from veilsum_privacy.ledger.rows import read_row

_SQLITE = b"SQLite format 3\0"
_WHOLE = "Something changed it on the way: ask for another copy, as an attachment or in an archive."


@contextmanager
def open_source(place: str | Path) -> Iterator[LedgerReader]:
    """Open a ledger to read: a state file, an export in JSON Lines, or a mirror's database by its URL.

    Raises:
        StateError: the file does not exist, or holds no ledger.
        Unavailable, Damage: it cannot be read.
        LedgerFault: it is an export that was cut off or changed, so that it cannot be read; the message names file and line.
        HostileInput: it is not an export at all.
    """
    text = str(place)
    if "://" not in text:
        path = Path(text)
        _require_ledger(path)
        if not is_database(path):
            try:
                export = read_export(path)
            except HostileInput as error:
                header = _beginning(path, MAX_HEADER).partition(b"\n")[0]  # with all certificates, so it can be long
                kind = LedgerFault if FORMAT.encode() in header else HostileInput
                raise kind(f"{path}: {error.message}", error.advice or _WHOLE) from error
            yield export
            return
    with open_readonly(text) as database:
        yield LedgerReader(database)


@dataclass(frozen=True)
class Checked:
    """What verification found: a result, or the fault that it names.

    Attributes:
        site: whose ledger it says it is.
        mirror: whether it is a coordinator's.
        authority, head_given, against: what was given to check by.
    """

    site: str
    mirror: bool
    verification: Verification | None
    fault: LedgerFault | None
    authority: bool
    head_given: bool
    against: tuple[str, ...]

    def proof(self, source: LedgerReader, when: int) -> Proof:
        """The same in plain values; if verification failed, with what can be read."""
        found, fault = self.verification, self.fault
        if found is None:
            entries = readable_entries(source)
            count, head = len(entries), entries[-1].hash.hex() if entries else ""
        else:
            count, head = found.entries, found.head.hex()
        return Proof(
            valid=found is not None,
            fault=None if fault is None else fault.message,
            fault_entry=None if fault is None else fault.entry,
            entries=count,
            receipts=0 if found is None else found.receipts,
            keys=0 if found is None else len(found.keys),
            head=head,
            federation=None if found is None else found.federation,
            authority=self.authority,
            head_given=self.head_given,
            against=self.against,
            when=when,
        )


def check(
    source: LedgerReader,
    *,
    authority: x509.Certificate | None = None,
    head: bytes | None = None,
    against: Sequence[str | Path] = (),
) -> Checked:
    """Verify a ledger, if wanted against others.

    Raises:
        StateError, Unavailable, Damage: a file is missing or cannot be read.
        HostileInput: a file to compare with is neither a state file nor a whole export.
    """
    with ExitStack() as stack:
        others = [stack.enter_context(open_source(place)) for place in against]
        names = tuple(Path(place).name for place in against)
        given = authority is not None, head is not None, names
        try:
            found = verify_ledger(source, authority=authority, head=head, against=others)
        except LedgerFault as fault:
            site, mirror = _owner(source)
            return Checked(site, mirror, None, fault, *given)
        return Checked(found.site, found.role is Role.COORDINATOR, found, None, *given)


def read_audit(path: Path, ledger: Checked) -> SignedAudit:
    """A report of an audit that the ledger's site made, signed by a key that the ledger knows.

    Raises:
        ConfigurationError: the file cannot be read.
        HostileInput: it is not such a report, or of another site or key, or the ledger does not verify.
    """
    signed = read_report(read_file(path, "report of an audit", most=MOST_BYTES))
    if signed.body["site"] != ledger.site:
        raise HostileInput(f"{path} is an audit of {signed.body['site']}; the ledger is of {ledger.site}.")
    if ledger.verification is None:
        raise HostileInput(
            "The ledger does not verify, so whose key signed the audit cannot be told.", "Make the dossier without --audit."
        )
    if signed.fingerprint not in ledger.verification.keys:
        raise HostileInput(
            f"{path} is signed by a key that this ledger does not name.", "Audit again with the site's own key."
        )
    return signed


def readable_entries(source: LedgerReader, most: int | None = None) -> list[Entry]:
    """Entries in order, as far as they can be read: at most so many, and none from the first malformed one on."""
    entries: list[Entry] = []
    try:
        with source.walk() as walk:
            for step in walk.steps:
                if not step.row or len(entries) == most:
                    break
                entry = read_row(step.row)
                if entry.kind is Kind.BUDGET:
                    _ = entry.budget  # raises if it sets none
                entries.append(entry)
    except HostileInput:
        pass
    return entries


def spending_fields(ledger: LedgerReader, population: str) -> dict[str, Any]:
    """Where a population stands, as plain values.

    Raises:
        StateError: it has no budget.
    """
    spending = ledger.spending(population)
    return {
        "population": population,
        "epsilon": spending.budget.epsilon,
        "delta": spending.budget.delta,
        "adaptive": spending.budget.adaptive,
        "spent": plain(spending.spent),
        "estimate": spending.estimate,
        "alone": plain(spending.alone),
        "reserved": plain(spending.reserved),
        "left": None if math.isinf(spending.left) else spending.left,
        "releases": spending.releases,
    }


def entry_fields(entry: Entry) -> dict[str, Any]:
    """An entry as plain values."""
    mechanism = entry.mechanism
    return {
        "seq": entry.seq,
        "time": entry.time,
        "kind": entry.kind.value,
        "study": None if entry.study is None else entry.study.hex(),
        "round": entry.round,
        "attempt": entry.attempt,
        "population": entry.population,
        "dataset": entry.dataset,
        "mechanism": None if mechanism is None else mechanism.to_json(),
        "delta": entry.delta,
        "unit": entry.unit,
        "cohort_size": entry.cohort_size,
        "colluders": entry.colluders,
        "detail": dict(entry.detail),
        "hash": entry.hash.hex(),
    }


def _owner(source: LedgerReader) -> tuple[str, bool]:
    """The owner that a ledger which does not verify names, and whether it says that it is a mirror."""
    try:
        return source.site, source.role is Role.COORDINATOR
    except HostileInput:
        return "an unknown site", False


def _require_ledger(path: Path) -> None:
    """Refuse a file that is not a ledger at all, before anything reads it as one.

    Raises:
        StateError: it is missing, a directory, empty, or of another kind.
    """
    if path.is_dir():
        advice = "Name the state file or export in it, or its configuration with --config."
        raise StateError(f"{path} is a folder, not a file.", advice)
    if not path.exists():
        if "@" in str(path) and ":" in str(path):  # it may hold a password
            raise StateError("The ledger's URL is malformed.", "Use a path or a URL such as postgresql://host/name.")
        advice = "Check the path. Participants and coordinators make their ledgers when they start for the first time."
        raise StateError(f"The ledger {path} does not exist.", advice)
    start = _beginning(path, 4096)
    if start.startswith((_SQLITE, b"{")):
        return
    if start.startswith(b"seq,"):
        raise StateError(f"{path} is a ledger exported for spreadsheets.", "Name the state file, or an export in JSON Lines.")
    kind = "neither a state file nor an export of a ledger" if start else "empty, and no ledger"
    raise StateError(f"{path} is {kind}.", "Name one of these; a configuration goes with --config.")


def is_database(path: Path) -> bool:
    """Whether a file begins as a database does."""
    return _beginning(path, len(_SQLITE)) == _SQLITE


def _beginning(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise StateError(f"{path} {unreadable(error)}.", "Check its permissions.") from error
