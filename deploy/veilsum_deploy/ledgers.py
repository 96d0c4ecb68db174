"""A site's ledger file for the commands that read it: opened beside a running participant, never created by reading.

Spending comes out as plain values. An epsilon that is infinite is the text "infinite", a bound that does not exist is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, inspect
from sqlalchemy.exc import DBAPIError

from veilsum_privacy.database import open_database
from veilsum_privacy.errors import HostileInput, StateError
from veilsum_privacy.identity import Label, verify
from veilsum_privacy.identity.certificate import common_name, load_certificate, p256_key
from veilsum_privacy.identity.files import read_file
from veilsum_privacy.ledger import Entry, LedgerReader, SignatureCheck
from veilsum_privacy.ledger.tables import ledger_table

INFINITE = "infinite"


@contextmanager
def existing_ledger(path: Path, *, site: str | None = None) -> Iterator[LedgerReader]:
    """Open the ledger in an existing file.

    Raises:
        StateError: there is no such file, it holds no ledger, or it cannot be read.
    """
    if not path.is_file():
        raise StateError(f"There is no ledger {path}.", "It is made when the participant starts for the first time.")
    engine: Engine = open_database(path)
    try:
        if not inspect(engine).has_table(ledger_table.name):
            raise StateError(f"{path} holds no ledger.", "Name the participant's state file.")
        yield LedgerReader(engine, site=site)
    except DBAPIError as error:
        raise StateError(f"The ledger {path} cannot be read: {error.orig}.", "Check the file.") from error
    finally:
        engine.dispose()


def site_key(certificate: Path) -> tuple[str, SignatureCheck]:
    """The name in a site's certificate and the check of its signatures on ledger entries.

    The certificate may have expired: entries that it signed stay signed. Whether it is the site's, the caller knows.

    Raises:
        ConfigurationError: the file cannot be read.
        HostileInput: it is no certificate of a site.
    """
    loaded = load_certificate(read_file(certificate, "certificate"))
    key = p256_key(loaded.public_key(), "certificate")

    def check(data: bytes, signature: bytes) -> bool:
        try:
            verify(key, Label.LEDGER, data, signature)
        except HostileInput:
            return False
        return True

    return common_name(loaded.subject, "certificate"), check


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
        "spent": _epsilon(spending.spent),
        "estimate": spending.estimate,
        "reserved": _epsilon(spending.reserved),
        "left": None if math.isinf(spending.left) else spending.left,
        "releases": spending.releases,
    }


def epsilon_text(value: float | str | None) -> str:
    """An epsilon for people, rounded up: a cost is never shown smaller than it is."""
    if value is None or isinstance(value, str):
        return value or "unlimited"
    return f"{math.ceil(value * 1e4 - 1e-6) / 1e4:g}"


def spending_row(fields: dict[str, Any]) -> dict[str, Any]:
    """What :func:`spending_fields` returns, for people."""
    shown = {name: epsilon_text(fields[name]) for name in ("epsilon", "spent", "reserved")}
    shown["left"] = "unlimited" if fields["left"] is None else f"{math.floor(fields['left'] * 1e4 + 1e-6) / 1e4:g}"
    shown["estimate"] = "" if fields["estimate"] is None else epsilon_text(fields["estimate"])
    return fields | shown


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


def _epsilon(value: float) -> float | str:
    return INFINITE if math.isinf(value) else value
