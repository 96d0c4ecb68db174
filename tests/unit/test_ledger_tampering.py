"""Random ledgers, tampered with at random: what is edited, removed, added, moved, forked or replayed is found and named."""

# ruff: noqa: S608 - names of columns

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from support.ledgers import COORDINATOR, OTHER_STUDY, STUDY, Trial, credentials_of, make_receipt, open_ledger, set_budget
from support.tampering import Copy
from veilsum_node.errors import Refusal, RefusalCode
from veilsum_node.identity import Role
from veilsum_privacy.ledger import LedgerFault, LedgerReader, read_export, verify_ledger, write_jsonl
from veilsum_privacy.ledger.receipts import parse_receipt

SITES = ("north", "south", "east")
STEPS = ("play", "play", "play", "other study", "lost", "shown", "refused", "budget", "key", "checkpoint", "recovered")


@dataclass
class History:
    """A federation after random steps."""

    trial: Trial
    round: int = 0

    def take(self, step: str) -> None:
        self.round += 1
        trial, north = self.trial, self.trial.ledgers["north"]
        release = trial.release(self.round)
        match step:
            case "play":
                trial.play(self.round)
            case "other study":
                trial.play(self.round, study=OTHER_STUDY, multiplier=7.0)
            case "lost" | "shown":
                trial.reserve(release)
                if step == "shown":
                    trial.show(release)
                for name in SITES:
                    trial.free(name, release)
            case "refused":
                with north.database.transaction() as connection:
                    north.refuse(connection, Refusal(RefusalCode.BUDGET, "no"), reservation=release)
            case "budget":
                set_budget(north, 100.0 + self.round)
            case "key":
                own = credentials_of(secret=1 + self.round)
                trial.ledgers["north"] = open_ledger(north.database, credentials=own, clock=trial.clock)
            case "checkpoint":
                north.checkpoint()
            case "recovered":
                trial.numbers["north", STUDY] = number = trial.numbers.get(("north", STUDY), 0) + 1
                signed = make_receipt(north, release, number)
                with north.database.transaction() as connection:
                    north.recover(connection, signed, "heart")


def play(steps: list[str]) -> Trial:
    history = History(Trial(SITES))
    for step in steps:
        history.take(step)
    return history.trial


def keys(ledger: Copy) -> list[tuple[int, Any]]:
    """Whose key signs from which entry on, as the entries name them."""
    known = {identity.identity.certificate.hex(): identity for identity in map(_credentials, range(1, 40))}
    coordinator = credentials_of(COORDINATOR, role=Role.COORDINATOR)
    known[coordinator.identity.certificate.hex()] = coordinator
    return [
        (number, known[json.loads(row["detail"])["certificate"]])
        for number, row in enumerate(ledger.rows, 1)
        if row["kind"] in ("genesis", "key")
    ]


def _credentials(secret: int) -> Any:
    return credentials_of(secret=secret)


def fails_at(ledger: Copy, entry: int, **options: Any) -> LedgerFault:
    with pytest.raises(LedgerFault) as caught:
        verify_ledger(ledger, **options)
    assert caught.value.entry == entry, caught.value.message
    return caught.value


def another(draw: Callable[[Any], Any], value: Any) -> Any:
    """Another value such as a column could hold; what is drawn does not depend on values that differ from run to run."""
    choice, place = draw(st.integers(0, 4)), draw(st.integers(0, 9999))
    if isinstance(value, str) and value:
        at = place % len(value)
        flipped = value[:at] + ("0" if value[at] != "0" else "1") + value[at + 1 :]
        options: list[Any] = [flipped, flipped, value + "0", value[:-1], None]
    elif isinstance(value, str):
        options = ["0", " ", "{}", None, 0]
    else:
        options = [place, place + 0.25, str(place), None, value if value is None else -value - 1]
    found = options[choice]
    return found if found != value or type(found) is not type(value) else "another"


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(steps=st.lists(st.sampled_from(STEPS), min_size=3, max_size=9), data=st.data())
def test_whatever_is_tampered_with_is_found_and_named(steps: list[str], data: st.DataObject) -> None:
    trial = play(["play", *steps])
    others = {name: trial.others(name) for name in ("north", COORDINATOR)}
    for name in ("north", COORDINATOR):
        whole = Copy.of(trial.readers[name])
        verified = verify_ledger(whole, against=others[name])
        assert verified.entries == len(whole.rows)
        _tamper(whole, data.draw)
        _forge(whole, data.draw)
    _truncate(trial, Copy.of(trial.ledgers["north"]))


def _tamper(whole: Copy, draw: Callable[[Any], Any]) -> None:
    """What anyone can do who can write to the file."""
    length = len(whole.rows)
    numbers = st.integers(1, length)
    for _ in range(8):
        number, ledger = draw(numbers), whole.again()
        column = draw(st.sampled_from(sorted(ledger.rows[0])))
        row = ledger.rows[number - 1]
        row[column] = another(draw, row[column])
        fails_at(ledger, number)
    covered = [number for number in range(1, length + 1) if whole.kept[number - 1]]
    for _ in range(8):
        number, ledger = draw(st.sampled_from(covered)), whole.again()
        items = ledger.kept[number - 1]
        item = draw(st.sampled_from(items))
        field = draw(st.sampled_from(sorted(item)))
        item[field] = another(draw, item[field])
        if field == "consent" and whole.rows[0]["detail"].find('"role":"coordinator"') > 0:
            _consent_fails(ledger, number)
        else:
            fails_at(ledger, number)
    number, ledger = draw(st.sampled_from(covered)), whole.again()
    del ledger.kept[number - 1][draw(st.integers(0, len(SITES) - 1))]
    fails_at(ledger, number)
    number, ledger = draw(st.sampled_from(covered)), whole.again()
    other = draw(st.sampled_from(covered))
    if other != number:
        ledger.kept[number - 1] = ledger.kept[other - 1]
        fails_at(ledger, number)
    number, ledger = draw(st.integers(1, length - 1)), whole.again()
    ledger.drop(number)
    fails_at(ledger, number)
    number, source, ledger = draw(st.integers(1, length + 1)), draw(numbers), whole.again()
    ledger.insert(number, ledger.rows[source - 1], ledger.kept[source - 1])
    fails_at(ledger, number + (source == number))  # a copy before its original looks like it
    one = draw(st.integers(1, length - 1))
    ledger = whole.again()
    ledger.swap(one)
    fails_at(ledger, one)
    second = draw(st.integers(one + 1, length))
    ledger = whole.again()
    rows = ledger.rows
    rows[one - 1]["signature"], rows[second - 1]["signature"] = rows[second - 1]["signature"], rows[one - 1]["signature"]
    fails_at(ledger, one)


def _consent_fails(ledger: Copy, number: int) -> None:
    """A consent that is changed shows where the cohort's consents are covered, or if it is malformed where it is kept.

    One that a whole cohort never gave is covered by nothing: there a mirror's word stands against the site's.
    """
    context = ledger.rows[number - 1]["context"]
    covering = [row["seq"] for row in ledger.rows if row["context"] == context and row["kind"] == "consent"]
    found = None
    try:
        verify_ledger(ledger)
    except LedgerFault as fault:
        found = fault.entry
    assert found in (number, *covering) if found or covering else not covering


def _forge(whole: Copy, draw: Callable[[Any], Any]) -> None:
    """What the owner of the key can do: a chain that is whole and signed, but another than it was, or against the rules."""
    length = len(whole.rows)
    fork = whole.again()
    common = draw(st.integers(1, length - 1))
    signer = [credentials for first, credentials in keys(whole) if first <= common][-1]
    fork.cut(common)
    fork.insert(common + 1, {**whole.rows[0], "kind": "key"})
    named = {"certificate": signer.identity.certificate.hex(), "random": "0" * 64}
    fork.rows[-1]["detail"] = json.dumps(named, separators=(",", ":"))
    fork.resign(*keys(fork))
    assert [row["hash"] for row in fork.rows[:common]] == [row["hash"] for row in whole.rows[:common]]
    assert verify_ledger(fork).entries == common + 1, "alone it passes"
    assert "two versions" in fails_at(fork, common + 1, against=[whole]).message
    assert "two versions" in fails_at(whole, common + 1, against=[fork]).message
    covered = [number for number in range(1, length + 1) if whole.kept[number - 1]]
    replayed = draw(st.sampled_from(covered))
    ledger = whole.again()
    ledger.insert(length + 1, ledger.rows[replayed - 1], ledger.kept[replayed - 1])
    fails_at(ledger.resign(*keys(ledger)), length + 1)


def _truncate(trial: Trial, whole: Copy) -> None:
    """Cut off anywhere: named by a head, and by others as far as what they hold reaches.

    What others must find out is told here from the receipts and the whole ledger, apart from how they do it.
    """
    length, head = len(whole.rows), bytes.fromhex(whole.rows[-1]["hash"])
    number_of = {row["hash"]: row["seq"] for row in whole.rows}
    shown = [parse_receipt(kept.receipt.body) for kept in trial.mirror.receipts(participant="north")]
    consented = {item.context for item, kept in zip(shown, trial.mirror.mirrored("north"), strict=True) if kept.consent}
    recovered = {entry.context for entry in trial.ledgers["north"].entries() if entry.kind == "recovery"}
    paid_at = {row["context"]: row["seq"] for row in whole.rows if row["kind"] in ("charge", "recovery")}
    mirror = trial.readers[COORDINATOR]
    for cut in range(1, length):
        ledger = whole.again()
        ledger.cut(cut)
        fails_at(ledger, cut + 1, head=head)
        heads = [number_of[item.head.hex()] for item in shown if item.context not in recovered]
        unpaid = [context for context in consented if paid_at[context.hex()] > cut]
        if any(number > cut for number in heads):
            first = next(index for index, number in enumerate(heads) if number > cut)
            fault = fails_at(ledger, max(heads[:first], default=0) + 1, against=[mirror])
            assert fault.site == "north"
            assert (fault.entry or 0) <= cut + 1, "never later than where it was cut"
        elif unpaid:
            with pytest.raises(LedgerFault, match="has not charged"):
                verify_ledger(ledger, against=[mirror])
        else:
            assert verify_ledger(ledger, against=[mirror]).entries == cut


@pytest.mark.parametrize("name", ["north", pytest.param(COORDINATOR, marks=pytest.mark.system)])
def test_a_database_and_its_export_get_the_same_verdict(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """Every column of an entry, in every other kind, and every column of a kept receipt, edited in the database itself."""
    steps = ["play", "shown", "refused", "key", "checkpoint", "recovered", "budget", "lost"]
    database = play(steps).readers[name].database
    directory = tmp_path_factory.mktemp("exports")
    with database.transaction() as connection:
        for trigger in connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all():
            connection.execute(text(f"DROP TRIGGER {trigger}"))
        kinds = dict(connection.execute(text("SELECT kind, min(seq) FROM ledger GROUP BY kind")).all())
    reader = LedgerReader(database)
    whole = reader.verify()
    edits = [
        ("ledger", column, f"seq = {number}")
        for offset, number in enumerate(kinds.values())
        for column in _columns(database, "ledger")[offset % 2 :: 2]
    ]
    edits += [("ledger_receipt", column, "entry = 4 OR entry = 2") for column in _columns(database, "ledger_receipt")]
    verdicts = set()
    for number, (table, column, where) in enumerate(edits):
        with database.transaction() as connection:
            before = connection.execute(text(f"SELECT {column}, rowid FROM {table} WHERE {where} LIMIT 1")).first()
            if before is None:
                continue
            change = "777" if isinstance(before[0], int) else "coalesce(" + column + ", '') || '0'"
            connection.execute(text(f"UPDATE {table} SET {column} = {change} WHERE rowid = {before[1]}"))
        with pytest.raises(LedgerFault) as caught:
            reader.verify()
        path = directory / f"{number}.jsonl"
        with path.open("w") as stream:
            write_jsonl(reader, stream)
        repeated = table == "ledger_receipt" and column not in _EXPORTED
        if repeated:  # the export leaves out what a database repeats of a receipt
            assert read_export(path).verify() == whole
        else:
            with pytest.raises(LedgerFault) as again:
                read_export(path).verify()
            assert (again.value.entry, again.value.site) == (caught.value.entry, caught.value.site)
        verdicts.add(caught.value.entry)
        with database.transaction() as connection:
            rowid = 777 if column == "seq" else before[1]
            connection.execute(text(f"UPDATE {table} SET {column} = :value WHERE rowid = {rowid}"), {"value": before[0]})
    assert reader.verify() == whole
    assert verdicts >= set(kinds.values())


_EXPORTED = {"entry", "position", "body", "signature", "certificate", "consent"}


def _columns(database: Any, table: str) -> list[str]:
    with database.transaction() as connection:
        return [row.name for row in connection.execute(text(f"PRAGMA table_info({table})"))]
