"""Every entry holds random bytes, so that a head tells nothing of what it stands for; ledgers of earlier versions go on."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from sqlalchemy import text

from support.ledgers import (
    COORDINATOR,
    START,
    Trial,
    credentials_of,
    make_consent,
    make_key,
    make_reservation,
    open_ledger,
    open_mirror,
    set_budget,
    ticking,
)
from support.tampering import Copy
from veilsum_node.database import Database, open_database
from veilsum_node.errors import StateError
from veilsum_node.identity import Credentials, Role, SigningKey, verify_certificate
from veilsum_node.identity.certificate import load_certificate
from veilsum_privacy.ledger import Kind, Ledger, LedgerFault, LedgerReader, migrations, read_export, verify_ledger, write_jsonl

SITES = ("north", "south", "east")
DATA = Path(__file__).parents[1] / "data" / "ledgers"
"""Written by the code of 0.1.0 (commit b38ea62a) and 0.2.0 (0080f6a4): a release, an attempt given up (by 0.2 with a fault), a
refusal, a checkpoint, a second budget, another release, an open reservation; and the coordinator's mirror of them."""

OLD = {
    "0.1": (14, "5fc29d68eac7b572aeb14e64805edc7734c554f252c0db969eadfa594f4c1c0e"),
    "0.2": (15, "043f728c6f042c64e5e03216a39e1d2642533059144a4e6cd8978f327c7fe68f"),
}
"""Entries and head of the site's."""

OLD_MIRROR = {
    "0.1": "9bb5f7372c881bbe773dfff18553ebc91151ab3b3ca39fc6f1a7711dc9d95b86",
    "0.2": "66980988743d80011ef1636336dae80b04e4dfd04551b8aeae0195a9c779da71",
}


@pytest.fixture
def trial() -> Trial:
    trial = Trial(SITES)
    trial.play(1)
    lost = trial.release(2)
    trial.reserve(lost)
    trial.free("north", lost)
    trial.ledgers["north"].checkpoint()
    return trial


def alone() -> Ledger:
    """A site's ledger whose entries name no head of it, so that it can be written anew."""
    ledger = open_ledger(":memory:")
    set_budget(ledger, 50.0)
    for number in (1, 2):
        release = make_reservation(number)
        with ledger.database.transaction() as connection:
            ledger.reserve(connection, release)
            (ledger.charge if number == 1 else ledger.free)(connection, release.context)
    return ledger


def bare(ledger: Copy, *numbers: int, hiding: bool = False) -> Copy:
    """Entries without their random bytes, as older software wrote them; chained and signed anew by their owner."""
    for number in {1, *numbers}:
        detail = json.loads(ledger.rows[number - 1]["detail"])
        for name in ["random"] * (number in numbers) + ["hiding"] * (number == 1 and not hiding):
            del detail[name]
        ledger.rows[number - 1]["detail"] = json.dumps(detail, sort_keys=True, separators=(",", ":"))
    owner = json.loads(ledger.rows[0]["detail"])
    return ledger.resign((1, credentials_of(owner["site"], role=Role(owner["role"]))))


def test_every_entry_of_every_ledger_has_random_bytes_of_its_own(trial: Trial) -> None:
    drawn = [entry.random for reader in trial.readers.values() for entry in reader.entries()]
    assert all(data is not None and len(data) == 32 for data in drawn)
    assert len(set(drawn)) == len(drawn)
    for reader in trial.readers.values():
        assert reader.verify().bare == 0
        assert not any("random" in entry.detail for entry in reader.entries())


def test_random_bytes_are_of_the_chain_and_exports_keep_them(trial: Trial, tmp_path: Path) -> None:
    place = tmp_path / "north.jsonl"
    with place.open("w") as stream:
        write_jsonl(trial.readers["north"], stream)
    export = read_export(place)
    assert [entry.random for entry in export.entries()] == [entry.random for entry in trial.readers["north"].entries()]
    assert export.verify() == trial.readers["north"].verify()
    for number in range(1, len(export.entries()) + 1):
        changed = Copy.of(export)
        changed.detail(number, random="0" * 64)
        with pytest.raises(LedgerFault, match="hash is not that of its content") as caught:
            verify_ledger(changed)
        assert caught.value.entry == number


@pytest.mark.parametrize("name", ["north", COORDINATOR])
def test_an_entry_without_them_is_found(trial: Trial, name: str) -> None:
    """A ledger that was begun with them has them throughout."""
    whole = Copy.of(trial.readers[name])
    length = len(whole.rows)
    for number in range(2, length + 1):
        for numbers in ([number], range(number, length + 1)):
            with pytest.raises(LedgerFault, match="lacks the random bytes") as caught:
                verify_ledger(bare(whole.again(), *numbers, hiding=True))
            assert caught.value.entry == number


@pytest.mark.parametrize("mirror", [False, True])
def test_a_ledger_that_was_begun_without_them_goes_on_with_them(trial: Trial, mirror: bool) -> None:
    """From the first entry that has them on."""
    whole = Copy.of(trial.mirror if mirror else alone())
    length = len(whole.rows)
    for upto in range(1, length + 1):
        old = bare(whole.again(), *range(2, upto + 1))
        assert verify_ledger(old).bare == upto - 1
        for number in range(upto + 2, length + 1):
            with pytest.raises(LedgerFault, match="lacks the random bytes") as caught:
                verify_ledger(bare(whole.again(), *range(2, upto + 1), number))
            assert caught.value.entry == number


@pytest.mark.parametrize("value", ["", "0" * 62, "0" * 66, "G" * 64, "A" * 64, 7, None, [], True])
def test_random_bytes_are_32(trial: Trial, value: Any) -> None:
    ledger = Copy.of(trial.ledgers["north"])
    content = {**json.loads(ledger.rows[1]["detail"]), "random": value}
    ledger.rows[1]["detail"] = json.dumps(content, sort_keys=True, separators=(",", ":"))
    with pytest.raises(LedgerFault) as caught:
        verify_ledger(ledger.resign((1, credentials_of())))
    assert caught.value.entry == 2


# -- ledgers of earlier versions --------------------------------------------------------------------------------------------


def unpacked(name: str, directory: Path) -> Path:
    place = directory / name.removesuffix(".gz")
    place.write_bytes(gzip.decompress((DATA / name).read_bytes()))
    return place


def old_credentials(reader: LedgerReader, name: str) -> Credentials:
    """Those that an old file names; only the key follows from the name."""
    detail = reader.entries()[0].detail
    authority = load_certificate(bytes.fromhex(detail["authority"]))
    key = SigningKey(make_key(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") + 1))
    identity = verify_certificate(bytes.fromhex(detail["certificate"]), authority, START, Role(detail["role"]))
    assert identity.fingerprint == key.fingerprint
    return Credentials(identity, key, authority, b"", b"", authority.public_bytes(Encoding.PEM))


@pytest.mark.parametrize("version", OLD)
def test_an_old_ledger_goes_on_where_it_is(tmp_path: Path, version: str) -> None:
    entries, head = OLD[version]
    path = unpacked(f"north-{version}.sqlite3.gz", tmp_path)
    database = open_database(path)
    before = LedgerReader(database)
    credentials = old_credentials(before, "north")
    content = before.entries()
    proven = before.verify(authority=credentials.authority)
    assert (proven.entries, proven.head.hex(), proven.bare) == (entries, head, entries - 1)
    spent = before.spending("heart")
    ledger = open_ledger(database, credentials=credentials, clock=ticking(START + 10_000))
    assert ledger.head().hex() == head, "opening it adds nothing"
    assert ledger.entries() == content
    assert ledger.spending("heart") == spent
    (waiting,) = [item for item in content if item.kind is Kind.RESERVE and item.round == 4]
    with database.transaction() as connection:
        ledger.charge(connection, waiting.reservation.context)
    set_budget(ledger, 10.0)
    after = ledger.verify(authority=credentials.authority)
    assert (after.entries, after.bare) == (entries + 2, entries - 1)
    assert [entry.random is None for entry in ledger.entries()] == [False, *[True] * (entries - 1), False, False]
    assert ledger.spending("heart").releases == spent.releases + 1
    _refused_by_older_software(database, lambda: LedgerReader(database))


@pytest.mark.parametrize("version", OLD)
def test_an_old_mirror_goes_on_where_it_is(tmp_path: Path, version: str) -> None:
    database = open_database(unpacked(f"mirror-{version}.sqlite3.gz", tmp_path))
    reader = LedgerReader(database)
    credentials = old_credentials(reader, COORDINATOR)
    proven = reader.verify(authority=credentials.authority)
    assert (proven.head.hex(), proven.bare, proven.receipts) == (OLD_MIRROR[version], 7, 9)
    mirror = open_mirror(database, credentials=credentials, clock=ticking(START + 10_000))
    (waiting,) = [
        entry for entry in reader.entries(kind=Kind.RECEIPTS) if not reader.entries(kind=Kind.CONSENT, context=entry.context)
    ]
    for name in SITES:
        with database.transaction() as connection:
            mirror.consented(
                connection, bytes(waiting.context or b""), name, make_consent(name, bytes(waiting.context or b""))
            )
    after = mirror.verify(authority=credentials.authority)
    assert (after.entries, after.bare) == (9, 7)


@pytest.mark.parametrize("version", OLD)
def test_old_exports_verify_against_each_other(tmp_path: Path, version: str) -> None:
    entries, head = OLD[version]
    north, mirror = (read_export(unpacked(f"{name}-{version}.jsonl.gz", tmp_path)) for name in ("north", "mirror"))
    found = north.verify(head=bytes.fromhex(head), against=[mirror])
    assert (found.entries, found.bare) == (entries, entries - 1)
    assert mirror.verify(head=bytes.fromhex(OLD_MIRROR[version]), against=[north]).bare == 7


@pytest.mark.parametrize("version", OLD)
def test_an_old_ledger_is_held_to_its_new_entries(tmp_path: Path, version: str) -> None:
    """Once upgraded, what older software would append is found: it was the wrong program, or its entries hide nothing."""
    database = open_database(unpacked(f"north-{version}.sqlite3.gz", tmp_path))
    credentials = old_credentials(LedgerReader(database), "north")
    ledger = open_ledger(database, credentials=credentials, clock=ticking(START + 10_000))
    set_budget(ledger, 10.0)
    set_budget(ledger, 11.0)
    copy = Copy.of(ledger)
    assert verify_ledger(copy).bare == OLD[version][0] - 1
    copy.detail(len(copy.rows), random=None)
    with pytest.raises(LedgerFault, match="lacks the random bytes") as caught:
        verify_ledger(copy.resign((1, credentials)))
    assert caught.value.entry == OLD[version][0] + 2


def _refused_by_older_software(database: Database, opening: Callable[[], object]) -> None:
    """It knows the tables up to 0002, and takes a higher number for a newer version's."""
    with database.transaction() as connection:
        assert connection.execute(text("SELECT version_num FROM ledger_version")).scalar_one() > "0002"
    known, migrations.HEAD = migrations.HEAD, "0002"
    try:
        with pytest.raises(StateError, match="newer version"):
            opening()
    finally:
        migrations.HEAD = known
