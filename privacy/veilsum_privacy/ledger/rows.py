"""Entries as rows of the table: what of a row is hashed, its hash, and the typed entry that it holds.

The columns never change, for every one of them is hashed: what is new about a kind goes into ``detail``.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import HostileInput
from veilsum_privacy.ledger.entries import Entry, Mechanism, read_kind

Row = Mapping[str, Any]
"""One row by column name."""

NO_HASH = "0" * 64
"""The previous hash of the first entry."""

COLUMNS: Mapping[str, type] = {
    "seq": int, "time": int, "kind": str, "study": str, "round": int, "attempt": int, "population": str, "dataset": str,
    "event": str, "delta": float, "unit": str, "cohort_size": int, "colluders": int, "context": str, "detail": str,
    "previous": str, "hash": str, "signature": str,
}  # fmt: skip
"""Every column and the type of its values, where it has one."""

RANDOM = "random"
"""The part of every entry's detail by which its hash hides what else it says: bytes that nobody can guess."""

RANDOM_BYTES = 32

HIDING = "hiding"
"""Stands in the detail of a first entry whose ledger has such bytes in all others: those of versions up to 0.2 have not."""

REQUIRED = frozenset({"seq", "time", "kind", "detail", "previous", "hash", "signature"})

_APART = ("hash", "signature")


def facts(row: Row) -> dict[str, Any]:
    """What is hashed of a row: every column but hash and signature, JSON columns as what they say."""
    values = {name: value for name, value in row.items() if name not in _APART}
    if values["event"] is not None:
        values["event"] = _parse_event(str(values["event"]))
    if values["detail"] is not None:
        values["detail"] = parse_canonical(str(values["detail"]).encode(), what="ledger entry")
    return values


def hash_row(row: Row) -> str:
    """SHA-256 over the canonical JSON of a row's facts, in hexadecimal."""
    return hash_facts(facts(row))


def hash_facts(values: Mapping[str, Any]) -> str:
    """The same of facts that were parsed already."""
    return hashlib.sha256(canonical(values)).hexdigest()


def check_types(row: Row) -> None:
    """Check that every value has its column's type: a database file can hold anything, and some of it hashes alike.

    Raises:
        HostileInput: a column is missing, unknown, or holds a value of another type.
    """
    if row.keys() != COLUMNS.keys():
        raise HostileInput("A ledger entry does not have exactly the columns of a ledger.")
    for name, value in row.items():
        if type(value) is not COLUMNS[name] and (value is not None or name in REQUIRED):
            raise HostileInput(f"A ledger entry is malformed: its {name} is of the wrong type.")


def read_row(row: Row, values: Mapping[str, Any] | None = None) -> Entry:
    """Turn a row into an entry.

    Args:
        row: the row.
        values: its :func:`facts`, if they are known.

    Raises:
        HostileInput: a column holds what no writer of this ledger writes.
    """
    check_types(row)
    try:
        fields = dict(facts(row) if values is None else values)
        if not isinstance(fields["detail"], dict):
            raise HostileInput("The detail of a ledger entry is malformed.")
        detail = dict(fields["detail"])
        random = unhex(detail.pop(RANDOM)) if RANDOM in detail else None
        if random is not None and len(random) != RANDOM_BYTES:
            raise HostileInput(f"A ledger entry's random bytes are not {RANDOM_BYTES}.")
        fields |= {"detail": detail, "random": random}
        del fields["event"]
        for name in ("study", "context"):
            fields[name] = None if fields[name] is None else unhex(fields[name])
        fields["kind"], fields["previous"] = read_kind(fields["kind"]), unhex(fields["previous"])
        return Entry(
            **fields,
            mechanism=None if row["event"] is None else read_mechanism(row["event"], row["colluders"]),
            hash=unhex(row["hash"]),
            signature=unhex(row["signature"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HostileInput("A ledger entry is malformed.") from error


@lru_cache(maxsize=4096)
def _parse_event(text: str) -> Any:
    """An event as its JSON; cached as in :func:`read_mechanism`, so nobody may change it."""
    return parse_canonical(text.encode(), what="ledger entry")


@lru_cache(maxsize=4096)
def read_mechanism(event: str, colluders: int) -> Mechanism:
    """The mechanism of a row's columns; cached, because a population's releases repeat few mechanisms.

    Raises:
        HostileInput: no writer of this ledger writes it.
    """
    return Mechanism.from_json(parse_canonical(event.encode(), what="ledger entry"), colluders)


def unhex(text: str) -> bytes:
    """Bytes of the one way to write them: lower-case hexadecimal without spaces.

    Raises:
        ValueError: it is written in another way.
    """
    data = bytes.fromhex(text)
    if data.hex() != text:
        raise ValueError("not lower-case hexadecimal")
    return data
