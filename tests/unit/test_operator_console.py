"""What the operator's pages say of requests, certificates, log-ins and storage, from real requests, records and journals."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from support.federation import make_bed, make_data, make_request, schema_of
from veilsum.remote import CoordinatorInfo
from veilsum_coordinator.console import facts
from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_node.errors import Damage, StateError
from veilsum_node.identity import Authority, IssuedRecord, Role, new_key_and_csr
from veilsum_node.identity.record import Issued
from veilsum_node.web.settings import ConsoleSettings

NOW = 1_800_000_000


def issued(name: str, fingerprint: str = "f", **changes: Any) -> Issued:
    made = Issued(name, Role.PARTICIPANT, fingerprint, "1", NOW - 100, NOW + 90 * 86_400, "")
    return replace(made, **changes)


def test_members_by_session_record_and_metrics() -> None:
    info = CoordinatorInfo("coordinator", ("a",), ("a", "b"), {"a": 1500, "b": 0}, {"a": NOW - 50, "b": 0})
    samples = {facts.EXPIRY: {("a",): NOW + 86_400.0}, facts.DUPLICATES: {("b",): 2.0, ("a",): 0.0}}
    record = [issued("b", "one"), issued("b", "two"), issued("c", expires=NOW - 1), issued("c", "new")]
    record += [issued("analyst", role=Role.ANALYST), issued("c", "new", subject="a log-in")]
    a, b, c = facts.member_rows(info, samples, record, NOW)
    assert (a["name"], a["state"], a["received"], a["ends"], a["duplicates"]) == ("a", "connected", "1.5 kB", True, "")
    assert (b["name"], b["state"], b["seen"], b["ends"]) == ("b", "away", "", False)
    assert b["duplicates"] == "2 times two processes, 2 valid keys"
    assert (c["name"], c["duplicates"]) == ("c", "")


def test_log_ins_are_those_with_a_subject_newest_first() -> None:
    record = [issued("a"), issued("ada", subject="https://idp 1", issued=NOW), issued("bob", subject="https://idp 2")]
    assert [(row["name"], row["who"]) for row in facts.login_rows(record)] == [
        ("bob", "https://idp 2"),
        ("ada", "https://idp 1"),
    ]


def hostile_request(name: str, role: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role)]
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names)).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("role", ["participant", "a; touch {}", "$(touch {})", "`touch {}`", "a' ; touch {} '", "a\ntouch {}"])
def test_the_command_to_sign_can_be_pasted_into_a_shell(role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request states whatever role it likes, and lies under whatever path."""
    monkeypatch.chdir(tmp_path)
    role = role.format("trace")
    folder = tmp_path / "requests; exit"
    folder.mkdir()
    (folder / "one.csr").write_bytes(hostile_request("north", role))
    (row,) = facts.request_rows(ConsoleSettings(requests=folder), [])
    shown = subprocess.run(["sh", "-c", row["run"].replace("veilsum", "printf '%s\\n'", 1)], capture_output=True, check=True)
    assert shown.returncode == 0
    assert not (tmp_path / "trace").exists()
    words = shlex.split(row["run"])
    assert words[:4] == ["veilsum", "federation", "sign", str(folder / "one.csr")]
    assert words[4:] == ["--role", role, "--name", "north"]


def test_requests_with_their_fingerprints(tmp_path: Path) -> None:
    """The fingerprint is the one that `federation sign` certifies."""
    authority = Authority.create(tmp_path / "authority", "trial", lambda: NOW)
    folder = tmp_path / "requests"
    folder.mkdir()
    for name in ("north", "south"):
        (folder / f"{name}.csr").write_bytes(new_key_and_csr(name, Role.PARTICIPANT)[1])
    (folder / "junk.csr").write_text("junk")
    authority.sign((folder / "south.csr").read_bytes(), role=Role.PARTICIPANT, name="south")
    record = IssuedRecord(tmp_path / "authority").look()
    junk, north, south = facts.request_rows(ConsoleSettings(requests=folder), record)
    assert (junk["state"], north["state"], south["state"]) == ("refused", "waiting", "signed")
    assert south["fingerprint"] == record[0].fingerprint
    assert (north["name"], north["role"]) == ("north", "participant")
    assert facts.request_rows(ConsoleSettings(), record) == []


def test_a_record_is_read_without_a_lock_and_without_a_change(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority", "trial", lambda: NOW)
    authority.sign(new_key_and_csr("north", Role.PARTICIPANT)[1], role=Role.PARTICIPANT, name="north")
    path = tmp_path / "authority" / "issued" / "index.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"name": "cut')  # a crash, or a line that is being written
    path.chmod(0o400)
    assert [entry.name for entry in IssuedRecord(tmp_path / "authority").look()] == ["north"]
    assert path.read_bytes() == whole + b'{"name": "cut'
    path.chmod(0o600)
    path.write_bytes(b"junk\n")
    with pytest.raises(Damage):
        IssuedRecord(tmp_path / "authority").look()
    with pytest.raises(StateError):
        IssuedRecord(tmp_path).look()


def test_storage_is_what_the_journal_and_the_results_hold(tmp_path: Path) -> None:
    """Against the bytes of every value that SQLite has of the study, counted here."""
    import sqlite3

    bed = make_bed(tmp_path, make_data("ab"))
    study = bed.compile(make_request(schema_of(2), epsilon=None))
    key = bed.hub.submit("analyst", bed.signed(study))
    results = bed.kit.coordinator.directory / "results" / key.hex()
    results.mkdir(parents=True)
    (results / "manifest.json").write_bytes(b"x" * 1234)
    database = bed.kit.coordinator.directory / "coordinator.db"
    config = CoordinatorConfig(state=bed.kit.coordinator.directory)
    assert str(config.state / "coordinator.db") == str(database)
    total = 0
    with sqlite3.connect(database) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            where = "digest" if table == "coordinator_study" else "study"
            if where not in columns or not table.startswith("coordinator_"):
                continue
            for row in connection.execute(f'SELECT * FROM {table} WHERE "{where}" = ?', (key,)):  # noqa: S608
                named = dict(zip(columns, row, strict=True))
                texts = [value for name, value in named.items() if name not in (where, "analyst", "phase", "label", "name")]
                total += sum(len(value) for value in texts if isinstance(value, str | bytes))
    found = facts.storage(config, facts.held(config))
    (row,) = found["rows"]
    assert (row["id"], row["held"].phase, row["results"]) == (key.hex(), "enrolling", "1.2 kB")
    assert row["journal"] == facts.size(total)
    assert total > len(study.to_bytes())


SIZES = [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (25_040, "25.0 kB"), (10**9, "1.0 GB"), (10**15, "1000.0 TB")]


@pytest.mark.parametrize(("count", "text"), SIZES)
def test_sizes_for_people(count: int, text: str) -> None:
    assert facts.size(count) == text
