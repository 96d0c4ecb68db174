"""Exports: self-contained, verified as the ledger itself, and refused line by line where they are damaged."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from support.backends import BACKENDS, new_place
from support.fresh import LEDGER
from support.ledgers import (
    COORDINATOR,
    OTHER_STUDY,
    STUDY,
    Trial,
    credentials_of,
    make_consent,
    make_reservation,
    open_ledger,
    set_budget,
)
from veilsum_node.canonical import canonical
from veilsum_node.errors import ConfigurationError, HostileInput, Refusal, RefusalCode
from veilsum_privacy.ledger import Exported, Kind, LedgerFault, LedgerReader, read_export, write_csv, write_jsonl
from veilsum_privacy.ledger.export import MAX_LINE


@pytest.fixture(scope="module")
def trial() -> Trial:
    trial = Trial(("north", "south"))
    trial.play(1)
    trial.play(1, study=OTHER_STUDY, multiplier=9.0, rate=0.01, steps=7)
    with trial.ledgers["north"].database.transaction() as connection:
        refusal = Refusal(RefusalCode.BUDGET, "=1+1", reasons=())
        trial.ledgers["north"].refuse(connection, refusal, reservation=make_reservation(9, population="=cmd"))
    trial.ledgers["north"].checkpoint()
    return trial


def exported(reader: LedgerReader, path: Path) -> Exported:
    with path.open("w") as stream:
        write_jsonl(reader, stream)
    return read_export(path)


@pytest.mark.parametrize("name", ["north", "south", COORDINATOR])
def test_an_export_says_what_the_ledger_says(trial: Trial, tmp_path: Path, name: str) -> None:
    reader = trial.readers[name]
    copy = exported(reader, tmp_path / "x.jsonl")
    assert copy.verify(authority=credentials_of().authority, head=reader.head()) == reader.verify()
    assert (copy.site, copy.role, copy.head()) == (reader.site, reader.role, reader.head())
    assert copy.entries() == reader.entries()
    assert copy.entries(study=OTHER_STUDY) == reader.entries(study=OTHER_STUDY)
    assert copy.receipts() == reader.receipts()
    assert copy.receipts(study=STUDY, participant="south") == reader.receipts(study=STUDY, participant="south")
    assert copy.receipts(first=5) == reader.receipts(first=5)
    assert copy.receipts(entry=4) == reader.receipts(entry=4)
    assert copy.populations() == reader.populations()
    for population in copy.populations():
        assert copy.spending(population) == reader.spending(population)
    assert copy.lost_charges(STUDY) == reader.lost_charges(STUDY)
    again = tmp_path / "y.jsonl"
    with again.open("w") as stream:
        write_jsonl(copy, stream)
    assert again.read_bytes() == (tmp_path / "x.jsonl").read_bytes(), "an export of an export is the same file"


def test_the_format(trial: Trial, tmp_path: Path) -> None:
    """What docs say a third party can rely on: one canonical JSON object a line, header, entries, each with its receipts."""
    path = tmp_path / "x.jsonl"
    exported(trial.readers[COORDINATOR], path)
    lines = path.read_bytes().splitlines()
    values = [json.loads(line) for line in lines]
    assert all(canonical(value) == line for value, line in zip(values, lines, strict=True))
    authority = credentials_of().authority.public_bytes(Encoding.DER).hex()
    certificates = sorted(trial.certificates[name].hex() for name in trial.names)
    assert values[0] | {"certificates": sorted(values[0]["certificates"])} == {
        "format": "veilsum-ledger/1", "site": COORDINATOR, "role": "coordinator", "authority": authority,
        "certificates": certificates, "entries": 7, "receipts": 4,
    }  # fmt: skip
    shape = ["seq" if "seq" in value else value["position"] for value in values[1:]]
    assert shape == ["seq", "seq", 0, 1, "seq", "seq", "seq", 0, 1, "seq", "seq"]
    assert values[2]["event"]["honest"] == 1, "what is JSON inside stands as JSON"
    assert json.loads(values[3]["body"])["participant"] == "north"
    consent = make_consent("north", bytes.fromhex(values[2]["context"]))
    assert values[3]["consented"] == hashlib.sha256(consent).hexdigest()
    assert consent.hex().encode() not in path.read_bytes(), "consents themselves never leave in an export"


def test_the_table_for_spreadsheets(trial: Trial) -> None:
    stream = StringIO()
    reader = trial.readers["north"]
    assert write_csv(reader, stream) == len(reader.entries())
    rows = list(csv.DictReader(StringIO(stream.getvalue())))
    assert [row["kind"] for row in rows] == [entry.kind.value for entry in reader.entries()]
    charged = next(row for row in rows if row["kind"] == "charge" and row["study"] == OTHER_STUDY.hex())
    assert (charged["noise"], charged["variance"], charged["steps"], charged["sampling_rate"]) == (
        "distributed", "81000000", "7", "0.01",
    )  # fmt: skip
    assert charged["time"].endswith("Z")
    assert charged["delta"] == "1e-05"
    refused = next(row for row in rows if row["kind"] == "refusal")
    assert refused["population"] == "'=cmd", "no spreadsheet takes it for a formula"
    assert json.loads(refused["detail"])["message"] == "=1+1"


Damage = Callable[[list[bytes]], None]


def line(number: int, change: Callable[[bytes], bytes]) -> Damage:
    def damage(lines: list[bytes]) -> None:
        lines[number - 1] = change(lines[number - 1])

    return damage


def field(number: int, **values: object) -> Damage:
    def change(data: bytes) -> bytes:
        content = {name: value for name, value in {**json.loads(data), **values}.items() if value is not ...}
        return canonical(content) + b"\n"

    return line(number, change)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda lines: lines.clear(), "Line 1 .* cut off"),
        (lambda lines: lines.__delitem__(0), "not an export of a ledger"),
        (line(1, lambda _: b"\x80\n"), "line 1 is not canonical JSON"),
        (line(1, lambda _: b"SQLite format 3\0"), "line 1 is not canonical JSON"),
        (line(3, lambda _: b"\n"), "line 3 is not canonical JSON"),
        (line(3, lambda data: data[:-1]), "line 3 is not canonical JSON|cut off"),
        (line(3, lambda data: data.replace(b":", b": ", 1)), "line 3 is not in canonical form"),
        (line(3, lambda _: b"[1]\n"), "Line 3 of the export is not a JSON object"),
        (line(3, lambda _: b'{"a":1}\n'), "Line 3 .* neither an entry nor a receipt"),
        (line(3, lambda _: b'"' + b"a" * MAX_LINE + b'"\n'), "Line 3 .* longer than"),
        (field(3, extra=1), "Line 3 .* neither"),
        (field(3, hash=...), "Line 3 .* neither"),
        (field(3, time=[1]), "Line 3 .* malformed"),
        (field(3, time=True), "Line 3 .* malformed"),
        (field(6, position={}), "Line 6 .* malformed"),
        (field(1, format="veilsum-ledger/2"), "not an export of a ledger that this software knows"),
        (field(1, entries="7"), "Line 1 .* malformed"),
        (field(1, entries=-1), "Line 1 .* malformed"),
        (field(1, certificates=["zz"]), "Line 1 .* malformed certificate"),
        (field(1, certificates=[5]), "Line 1 .* malformed"),
        (field(1, extra=5), "Line 1 .* malformed"),
    ],
)
def test_damaged_lines_are_named(trial: Trial, tmp_path: Path, damage: Damage, fault: str) -> None:
    path = tmp_path / "x.jsonl"
    exported(trial.readers["north"], path)
    lines = path.read_bytes().splitlines(keepends=True)
    damage(lines)
    path.write_bytes(b"".join(lines))
    with pytest.raises(HostileInput, match=fault):
        read_export(path)


def test_a_copy_that_was_cut_off_is_found(trial: Trial, tmp_path: Path) -> None:
    """In the middle of a line by reading it; between lines by what the first line promises."""
    path = tmp_path / "x.jsonl"
    whole = exported(trial.readers["north"], path)
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    with pytest.raises(HostileInput, match="cut off"):
        read_export(path)
    lines = data.splitlines(keepends=True)
    entries = [number for number, text in enumerate(lines, 1) if b'"seq":' in text]
    for number in entries[1:]:
        path.write_bytes(b"".join(lines[: number - 1]))
        with pytest.raises(LedgerFault, match="promises") as caught:
            read_export(path).verify()
        assert caught.value.entry == entries.index(number) + 1
    path.write_bytes(b"".join(lines[:5]))
    with pytest.raises(LedgerFault, match=r"entry 4 fails: .*(missing|lost)"):
        read_export(path).verify()
    path.write_bytes(data)
    assert read_export(path).verify() == whole.verify()


def test_lines_in_another_order_are_found(trial: Trial, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    exported(trial.readers["north"], path)
    lines = path.read_bytes().splitlines(keepends=True)
    for one, fails in ((2, 1), (3, 2), (6, 4)):  # entries 1 and 2, entries 2 and 3, two receipts of entry 4
        changed = lines.copy()
        changed[one - 1], changed[one] = changed[one], changed[one - 1]
        path.write_bytes(b"".join(changed))
        with pytest.raises(LedgerFault) as caught:
            read_export(path).verify()
        assert caught.value.entry == fails
    path.write_bytes(b"".join([lines[0], lines[5], *lines[1:5], *lines[6:]]))
    with pytest.raises(HostileInput, match="Line 2"):  # a receipt before any entry
        read_export(path)


def test_what_is_not_there(tmp_path: Path) -> None:
    for place in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            read_export(place)


def test_a_ledger_of_the_first_entry_alone(tmp_path: Path) -> None:
    ledger = open_ledger(":memory:")
    assert exported(ledger, tmp_path / "x.jsonl").verify().entries == 1
    set_budget(ledger, None)
    assert exported(ledger, tmp_path / "y.jsonl").spending("heart").left == float("inf")
    assert exported(ledger, tmp_path / "y.jsonl").entries(kind=Kind.BUDGET)[0].budget.epsilon is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_export_written_while_the_site_goes_on_is_one_state(backend: str, tmp_path: Path) -> None:
    """A charge and its receipts between two reads of an export would make it fail."""
    trial = Trial(("north", "south"), lambda _: new_place(backend, tmp_path, LEDGER))
    trial.play(1)
    reader = LedgerReader(trial.ledgers["north"].database)
    with reader.walk() as walk:
        trial.play(2)
        first = next(walk.steps)
        trial.play(3)
        rest = list(walk.steps)
    assert [step.row["seq"] for step in (first, *rest)] == [1, 2, 3, 4, 5]
    assert exported(reader, tmp_path / "x.jsonl").verify().entries == 11
