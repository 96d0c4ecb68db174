"""Verification names the first entry that was changed, and catches a site that signs what its rules forbid."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from support.ledgers import STUDY, check_signature, make_reservation, open_ledger, sign
from veilsum_privacy.canonical import canonical
from veilsum_privacy.database import transaction
from veilsum_privacy.errors import HostileInput, Refusal, RefusalCode
from veilsum_privacy.ledger import Ledger, verify_rows

Rows = list[dict[str, Any]]


def make_ledger() -> Ledger:
    """1 genesis, 2 budget, 3 reserve and 4 charge of round 1, 5 its release, 6 reserve and 7 free, 8 refusal, 9 reserve."""
    ledger = open_ledger(":memory:")
    first, second, third = make_reservation(1), make_reservation(2), make_reservation(3)
    with transaction(ledger._engine) as connection:
        ledger.set_budget(connection, "heart", 3.0, 1e-5, reason="r", operator="o")
        ledger.reserve(connection, first)
        ledger.charge(connection, first.context)
        ledger.release_seen(connection, first.context, bytes(32))
        ledger.reserve(connection, second)
        ledger.free(connection, second.context)
        ledger.refuse(connection, make_reservation(4), Refusal(RefusalCode.BUDGET, "too much"))
        ledger.reserve(connection, third)
    return ledger


def read(ledger: Ledger) -> Rows:
    with ledger._engine.connect() as connection:
        return [dict(row) for row in connection.execute(text("SELECT * FROM ledger ORDER BY seq")).mappings()]


@pytest.fixture
def rows() -> Rows:
    return read(make_ledger())


def resign(rows: Rows) -> Rows:
    """Chain and sign rows anew, as the site itself could; an independent reading of how an entry is hashed."""
    previous = "0" * 64
    for number, row in enumerate(rows, 1):
        row["seq"], row["previous"] = number, previous
        content = {name: value for name, value in row.items() if name not in ("hash", "signature")}
        for name in ("event", "detail"):
            content[name] = None if content[name] is None else json.loads(str(content[name]))
        previous = row["hash"] = hashlib.sha256(canonical(content)).hexdigest()
        row["signature"] = sign(bytes.fromhex(previous)).hex()
    return rows


def test_the_ledger_itself_passes(rows: Rows) -> None:
    assert verify_rows(rows, site="north", head=bytes.fromhex(rows[-1]["hash"]), verify_signature=check_signature) == 9
    hashes = [row["hash"] for row in rows]
    assert [row["hash"] for row in resign(rows)] == hashes


@pytest.mark.parametrize("number", range(1, 10))
def test_every_column_of_every_entry_is_covered(rows: Rows, number: int) -> None:
    changed = {
        "seq": 77,
        "time": 1,
        "kind": "free",
        "study": "ab" * 32,
        "round": 9,
        "attempt": 9,
        "population": "lung",
        "dataset": "x",
        "event": '{"mechanism":"none"}',
        "delta": 0.25,
        "unit": "patient",
        "cohort_size": 40,
        "colluders": 2,
        "context": "cd" * 32,
        "detail": '{"a":1}',
        "previous": "ef" * 32,
        "hash": "01" * 32,
        "signature": "23" * 32,
    }
    assert set(changed) == set(rows[0])
    for column, value in changed.items():
        if rows[number - 1][column] == value:
            continue
        tampered = [dict(row) for row in rows]
        tampered[number - 1][column] = value
        with pytest.raises(HostileInput, match=f"entry {number} fails"):
            verify_rows(tampered, site="north", verify_signature=check_signature)


def test_a_missing_entry_is_named(rows: Rows) -> None:
    for number in range(1, 9):
        with pytest.raises(HostileInput, match=f"entry {number} fails"):
            verify_rows(rows[: number - 1] + rows[number:])
    head = bytes.fromhex(rows[-1]["hash"])
    with pytest.raises(HostileInput, match="not the named head"):
        verify_rows(rows[:-1], head=head)
    with pytest.raises(HostileInput, match="empty"):
        verify_rows([])


def test_a_chain_made_anew_lacks_the_signature(rows: Rows) -> None:
    rows[1]["time"] += 1
    signatures = [row["signature"] for row in rows]
    for row, signature in zip(resign(rows), signatures, strict=True):
        row["signature"] = signature
    with pytest.raises(HostileInput, match="entry 2 fails: its signature"):
        verify_rows(rows, verify_signature=check_signature)
    assert verify_rows(rows) == 9, "without a key only the chain is proven"


def test_another_sites_ledger(rows: Rows) -> None:
    with pytest.raises(HostileInput, match="another site's"):
        verify_rows(rows, site="south")


def drop(number: int) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        del rows[number - 1]

    return change


def repeat(number: int) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        rows.append(dict(rows[number - 1]))

    return change


def put(number: int, **columns: Any) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        rows[number - 1].update(columns)

    return change


def edit_json(number: int, column: str, **values: Any) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        content = {**json.loads(rows[number - 1][column]), **values}
        rows[number - 1][column] = canonical(content).decode()

    return change


def end_second_attempt(rows: Rows) -> None:
    """Charge round 1 a second time, by an attempt reserved before the first charge."""
    attempt = make_reservation(1, 2)
    reserve = {**rows[2], **attempt.columns()}
    rows.insert(2, reserve)
    rows.append({**reserve, "kind": "charge"})


@pytest.mark.parametrize(
    ("change", "number", "fault"),
    [
        (drop(1), 1, "one genesis"),
        (repeat(1), 10, "one genesis"),
        (edit_json(1, "detail", random="00"), 1, "random bytes"),
        (drop(2), 2, "no budget"),
        (put(2, population=None), 2, "no population"),
        (put(2, delta=None), 2, "sets no budget"),
        (edit_json(2, "detail", epsilon="abc"), 2, "budget of a ledger entry is malformed"),
        (edit_json(2, "detail", epsilon=(-1.0).hex()), 2, "budget of a ledger entry is malformed"),
        (edit_json(2, "detail", epsilon=(1.2).hex()), 6, "exceeded the budget"),
        (drop(3), 3, "no reservation"),
        (repeat(3), 10, "context was reserved before"),
        (repeat(4), 10, "charged or freed before"),
        (repeat(5), 10, "released before"),
        (drop(4), 4, "never charged"),
        (put(4, cohort_size=5), 4, "not the one that was reserved"),
        (put(4, delta=0.25), 4, "not the one that was reserved"),
        (put(3, delta=0.25), 3, "delta is not the budget's"),
        (edit_json(4, "event", sensitivity=1), 4, "not the one that was reserved"),
        (put(7, kind="charge", **make_reservation(1).columns()), 7, "charged or freed before"),
        (put(6, attempt=1, round=1), 6, "attempt was reserved before"),
        (put(6, attempt=2, round=1), 6, "round was charged before"),
        (end_second_attempt, 11, "round was charged before"),
        (put(3, dataset=None), 3, "no complete release"),
        (put(3, event=None), 3, "no complete release"),
        (put(3, cohort_size=3), 3, "more honest shares"),
        (put(3, kind="gift"), 3, "malformed"),
        (put(3, round="x"), 3, "malformed"),
        (put(3, cohort_size="x"), 3, "malformed"),
        (put(3, colluders="x"), 3, "malformed"),
        (put(3, colluders=None), 3, "malformed"),
        (put(3, event="[]"), 3, "malformed"),
        (put(3, event=5), 3, "malformed"),
        (put(3, event='{"mechanism": "x"}'), 3, "canonical"),
        (put(3, detail="[]"), 3, "malformed"),
        (put(3, study="xyz"), 3, "malformed"),
        (edit_json(3, "event", variance=[0, 1]), 3, "malformed"),
        (edit_json(3, "event", variance=[16_000_000, 2]), 3, "malformed"),
        (edit_json(3, "event", share_variance=[16_000_000, 1]), 3, "malformed"),
        (edit_json(3, "event", steps=0), 3, "malformed"),
        (edit_json(3, "event", steps=-5), 3, "malformed"),
        (edit_json(3, "event", sampling_rate=(2.0).hex()), 3, "malformed"),
        (edit_json(3, "event", sampling_rate="nan"), 3, "malformed"),
        (edit_json(3, "event", sensitivity="1000"), 3, "malformed"),
        (edit_json(3, "event", extra=1), 3, "malformed"),
    ],
)
def test_what_the_site_signs_must_still_follow_the_rules(
    rows: Rows, change: Callable[[Rows], None], number: int, fault: str
) -> None:
    change(rows)
    with pytest.raises(HostileInput, match=rf"entry {number} fails.*{fault}"):
        verify_rows(resign(rows), verify_signature=check_signature)


def test_tampering_with_the_file_is_found() -> None:
    ledger = make_ledger()
    with transaction(ledger._engine) as connection:
        connection.execute(text("DROP TRIGGER ledger_no_update"))
        connection.execute(text("UPDATE ledger SET delta = 0.49 WHERE seq = 4"))
    with pytest.raises(HostileInput, match="entry 4 fails: its hash"):
        ledger.verify()
    with pytest.raises(HostileInput, match="not the named head"):
        make_ledger().verify(head=hashlib.sha256(STUDY).digest())
