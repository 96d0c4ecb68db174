"""A ledger as a file for others: JSON Lines that can be verified as the ledger itself, and CSV for a spreadsheet.

An export in JSON Lines holds everything: one canonical JSON object a line, first a header (format, owner, authority,
certificates, how many entries and receipts follow), then every entry, each followed by the receipts that it covers. What a
mirror's export holds of a consent is its SHA-256. CSV holds the entries without receipts and cannot be verified.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeGuard

from sqlalchemy import Column, MetaData, Table, insert
from sqlalchemy.types import NullType

from veilsum_node import spreadsheets
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.database import Database, open_database
from veilsum_node.errors import ConfigurationError, HostileInput, VeilsumError
from veilsum_privacy.ledger.entries import MECHANISMS, Entry
from veilsum_privacy.ledger.faults import LedgerFault
from veilsum_privacy.ledger.kept_receipts import certificate_fingerprint
from veilsum_privacy.ledger.reader import LedgerReader
from veilsum_privacy.ledger.rows import COLUMNS, Row, read_row, unhex
from veilsum_privacy.ledger.tables import ledger_table
from veilsum_privacy.ledger.walking import ChainStep, ChainWalk, KeptReceipt, KeptRow, LedgerSource

FORMAT = "veilsum-ledger/1"
MAX_LINE = 1 << 20
MAX_HEADER = 1 << 26
"""Longest lines that are read, in bytes."""

_HEADER = {"format", "site", "role", "authority", "certificates", "entries", "receipts"}
_KEPT = {"entry", "position", "body", "signature", "certificate", "consented"}
_JSON = ("event", "detail")


def write_jsonl(source: LedgerSource, stream: IO[str]) -> int:
    """Write everything that a ledger holds, as one state of it. Returns the number of entries.

    Raises:
        LedgerFault: a row cannot be written down; the entry is named.
        Unavailable, Damage: the database cannot be read.
    """
    lines: list[str] = []
    named: dict[str, Any] = {"site": None, "role": None, "authority": None}
    entries = receipts = 0
    with source.walk() as walk:
        for step in walk.steps:
            if step.row:
                entries += 1
                content = _plain_entry(step.row, entries)
                lines.append(canonical(content).decode())
                _look_for_owner(content, named)
            for kept in step.kept:
                receipts += 1
                lines.append(canonical(_plain_kept(kept)).decode())
        certificates = [walk.certificates[name] for name in sorted(walk.certificates)]
    header = {"format": FORMAT, **named, "certificates": certificates, "entries": entries, "receipts": receipts}
    stream.write(canonical(header).decode() + "\n")
    stream.writelines(line + "\n" for line in lines)
    return entries


def write_csv(source: LedgerSource, stream: IO[str]) -> int:
    """Write the entries as a table, times in UTC and what a release's mechanism was in columns of its own.

    Returns:
        The number of entries.

    Raises:
        HostileInput: an entry is malformed.
        Unavailable, Damage: the database cannot be read.
    """
    count = 0

    def entries(walk: ChainWalk) -> Iterator[dict[str, Any]]:
        nonlocal count
        for step in walk.steps:
            if step.row:
                count += 1
                yield _spread(read_row(step.row))

    with source.walk() as walk:
        spreadsheets.write_csv(stream, _CSV, entries(walk), end="\r\n")
    return count


def read_export(path: Path) -> "Exported":
    """Read an export in JSON Lines. Nothing in it is verified yet.

    Raises:
        ConfigurationError: the file cannot be read.
        HostileInput: a line is malformed, cut off or too long; it is named.
    """
    entries: list[ChainStep] = []
    try:
        with path.open("rb") as file:
            header = _read_header(file.readline(MAX_HEADER + 1))
            number = 1
            while line := file.readline(MAX_LINE + 1):
                number += 1
                _take(_parse(line, number, MAX_LINE), number, entries)
    except OSError as error:
        raise ConfigurationError(f"The export {path} cannot be read: {error.strerror}.", "Check the path.") from error
    return Exported(header, entries)


class Exported(LedgerReader):
    """A ledger that was read from an export: it can be read and verified like the one that it came from.

    What is verified are the lines, in their order. For other reads they lie in memory, in tables that enforce nothing.
    """

    def __init__(self, header: Mapping[str, Any], steps: Sequence[ChainStep]) -> None:
        self._header, self._read_steps = header, steps
        self._certificates = {certificate_fingerprint(der): der for der in (unhex(text) for text in header["certificates"])}
        super().__init__(_hold(steps))

    @contextmanager
    def walk(self) -> Iterator[ChainWalk]:
        """Everything, in the order of the lines."""
        yield ChainWalk(self._certificates, self._counted())

    def receipts(
        self,
        *,
        study: bytes | None = None,
        participant: str | None = None,
        context: bytes | None = None,
        entry: int | None = None,
        first: int = 1,
        connection: object = None,
    ) -> list[KeptReceipt]:
        """Receipts kept with entries from number ``first`` on that fit every filter, in order.

        Raises:
            HostileInput: what is kept is malformed.
        """
        wanted = {"study": study, "participant": participant, "context": context}
        found = [row.read(self._certificates) for step in self._read_steps for row in step.kept]
        return [
            kept
            for kept in found
            if kept.entry >= first
            and entry in (None, kept.entry)
            and all(value in (None, getattr(kept.parsed, name)) for name, value in wanted.items())
        ]

    def _counted(self) -> Iterator[ChainStep]:
        yield from self._read_steps
        entries, receipts = len(self._read_steps), sum(len(step.kept) for step in self._read_steps)
        promised = self._header["entries"], self._header["receipts"]
        if (entries, receipts) != promised:
            fault = (
                f"The export promises {promised[0]} entries and {promised[1]} receipts, but holds {entries} and {receipts}."
            )
            raise LedgerFault(fault, "Ask for a complete copy.", entry=entries + 1, site=self._header["site"])


def _plain_entry(row: Row, number: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(value, int | float | str | None):
            raise LedgerFault(f"Ledger entry {number} cannot be exported: its {name} is of the wrong type.", entry=number)
        values[name] = _opened(value) if name in _JSON else value
    return values


def _opened(text: Any) -> Any:
    """A JSON column as the object that it is; what no writer of ledgers wrote, as the text that it is."""
    try:
        value = parse_canonical(str(text).encode(), what="ledger entry")
    except HostileInput:
        return text
    return value if isinstance(value, dict) else text


def _plain_kept(kept: KeptRow) -> dict[str, Any]:
    content = {name: kept.values.get(name) for name in sorted(_KEPT)}
    consent = kept.values.get("consent")
    if consent is not None:
        try:
            content["consented"] = KeptRow.hash_consent(consent)
        except (TypeError, ValueError):
            content["consented"] = "malformed"
    return content


def _look_for_owner(content: Mapping[str, Any], named: dict[str, Any]) -> None:
    detail = content.get("detail")
    if isinstance(detail, dict) and content.get("kind") in ("genesis", "key"):
        for name in named:
            if named[name] is None:
                named[name] = detail.get(name)


def _parse(line: bytes, number: int, longest: int) -> dict[str, Any]:
    if len(line) > longest:
        raise HostileInput(f"Line {number} of the export is longer than {longest} bytes.", "It is not an export of a ledger.")
    if not line.endswith(b"\n"):
        raise HostileInput(f"Line {number} of the export is cut off.", "Ask for a complete copy.")
    value = parse_canonical(line[:-1], what=f"export's line {number}")
    if not isinstance(value, dict):
        raise HostileInput(f"Line {number} of the export is not a JSON object.")
    return value


def _read_header(line: bytes) -> dict[str, Any]:
    header = _parse(line, 1, MAX_HEADER)
    if header.get("format") != FORMAT:
        raise HostileInput(
            "The file is not an export of a ledger that this software knows.", f"Its first line must say {FORMAT}."
        )
    texts = isinstance(header.get("certificates"), list) and all(isinstance(item, str) for item in header["certificates"])
    counts = all(type(header.get(name)) is int and header[name] >= 0 for name in ("entries", "receipts"))
    if set(header) != _HEADER or not texts or not counts:
        raise HostileInput("Line 1 of the export is malformed.", "Ask for a new export.")
    try:
        for text in header["certificates"]:
            unhex(text)
    except ValueError as error:
        raise HostileInput("Line 1 of the export holds a malformed certificate.", "Ask for a new export.") from error
    return header


def _take(value: dict[str, Any], number: int, steps: list[ChainStep]) -> None:
    """Read one line after the first."""
    if set(value) == set(COLUMNS):
        for name in _JSON:
            if isinstance(value[name], dict):
                value[name] = canonical(value[name]).decode()
        value["delta"] = _float(value["delta"])
        if not all(_scalar(item) for item in value.values()):
            raise HostileInput(f"Line {number} of the export is malformed.", "Ask for a new export.")
        steps.append(ChainStep({name: value[name] for name in COLUMNS}, []))
    elif set(value) == _KEPT and steps:
        kept = steps[-1].kept
        if not all(_scalar(item) for item in value.values()) or not isinstance(kept, list):
            raise HostileInput(f"Line {number} of the export is malformed.", "Ask for a new export.")
        kept.append(KeptRow(value))
    else:
        raise HostileInput(f"Line {number} of the export is neither an entry nor a receipt.", "Ask for a new export.")


def _float(value: Any) -> Any:
    """A float as it was before it was written; anything else as it is."""
    try:
        number = float.fromhex(value)
    except (TypeError, ValueError, OverflowError):
        return value
    return number if number.hex() == value else value


def _scalar(value: Any) -> TypeGuard[int | float | str | None]:
    return value is None or isinstance(value, str | float) or (type(value) is int and abs(value) < 2**53)


def _hold(steps: Sequence[ChainStep]) -> Database:
    """Put rows into a database in memory whose columns have no type and whose tables have no rule."""
    database = open_database(":memory:")
    held = Table(ledger_table.name, MetaData(), *(Column(name, NullType) for name in COLUMNS))
    try:
        with database.transaction() as connection:
            connection.exec_driver_sql(f"CREATE TABLE {held.name} ({', '.join(COLUMNS)})")
            if steps:
                connection.execute(insert(held), [dict(step.row) for step in steps])
    except VeilsumError:
        database.close()
        raise
    return database


_CSV = (
    "seq", "time", "kind", "population", "dataset", "study", "round", "attempt", "unit", "cohort_size", "mechanism", "noise",
    "sensitivity", "variance", "honest_shares", "colluders", "sampling_rate", "steps", "delta", "detail", "context", "hash",
)  # fmt: skip


def _spread(entry: Entry) -> dict[str, Any]:
    fields = {name: getattr(entry, name, None) for name in _CSV}
    fields["time"] = datetime.fromtimestamp(min(max(entry.time, 0), 253402300799), UTC).isoformat().replace("+00:00", "Z")
    fields["kind"], fields["hash"] = entry.kind.value, entry.hash.hex()
    fields["study"] = None if entry.study is None else entry.study.hex()
    fields["context"] = None if entry.context is None else entry.context.hex()
    fields["detail"] = json.dumps(dict(entry.detail), sort_keys=True, ensure_ascii=False) if entry.detail else None
    if entry.mechanism is not None:
        noise = entry.mechanism.noise
        fields |= {
            "mechanism": MECHANISMS[noise.kind],
            "noise": noise.kind,
            "sensitivity": entry.mechanism.sensitivity,
            "variance": noise.variance,
            "honest_shares": noise.honest,
            "sampling_rate": entry.mechanism.sampling_rate,
            "steps": entry.mechanism.steps,
        }
    return fields
