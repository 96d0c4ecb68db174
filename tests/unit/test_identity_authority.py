"""The authority: what it makes, what it signs, and what it refuses to sign."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from support.certificates import DAY, NOW, now, subject
from veilsum_node.errors import ConfigurationError, Damage, HostileInput, Misuse, StateError, VeilsumError
from veilsum_node.identity import (
    Authority,
    Issued,
    IssuedRecord,
    Role,
    SigningKey,
    load_authority_certificate,
    new_key_and_csr,
    record,
    verify_certificate,
)
from veilsum_node.identity.requests import login_request

HOSTS = ("hub.example", "192.0.2.1", "::1")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", "trial", now)


def request(key: object, name: str = "north", algorithm: hashes.HashAlgorithm | None = None) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject(name))
    return builder.sign(key, algorithm or hashes.SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]


@pytest.mark.parametrize("role", list(Role))
def test_what_it_signs_verifies_in_its_role(authority: Authority, role: Role) -> None:
    if role is Role.TRANSPORT:
        authority.sign(new_key_and_csr("north", Role.PARTICIPANT)[1], role=Role.PARTICIPANT, name="north")
    key, csr = new_key_and_csr("north", role)
    pem = authority.sign(csr, role=role, name="north", hosts=HOSTS if role is Role.COORDINATOR else (), days=30)

    identity = verify_certificate(pem, authority.certificate, NOW, role)

    assert (identity.name, identity.role) == ("north", role)
    assert identity.fingerprint == SigningKey.from_pem(key).fingerprint
    assert identity.not_after == NOW + 30 * DAY
    assert identity.not_before <= NOW


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command on this machine")
@pytest.mark.parametrize(
    ("role", "purposes"), [(Role.PARTICIPANT, {"sslclient"}), (Role.COORDINATOR, {"sslclient", "sslserver"})]
)
def test_openssl_accepts_the_chain_for_the_role_only(
    authority: Authority, tmp_path: Path, role: Role, purposes: set[str]
) -> None:
    _, csr = new_key_and_csr("north", role)
    (tmp_path / "leaf.pem").write_bytes(
        authority.sign(csr, role=role, name="north", hosts=HOSTS if role is Role.COORDINATOR else ())
    )
    (tmp_path / "ca.pem").write_bytes(authority.certificate_pem)

    def verifies(*options: str) -> bool:
        command = ["openssl", "verify", "-x509_strict", "-attime", str(NOW), "-CAfile", str(tmp_path / "ca.pem"), *options]
        return subprocess.run([*command, str(tmp_path / "leaf.pem")], capture_output=True).returncode == 0

    assert {purpose for purpose in ("sslclient", "sslserver") if verifies("-purpose", purpose)} == purposes
    if role is Role.COORDINATOR:
        assert verifies("-verify_hostname", "hub.example")
        assert verifies("-verify_ip", "192.0.2.1")
        assert not verifies("-verify_hostname", "evil.example")


def test_the_authority_certificate_is_one_for_ten_years(authority: Authority) -> None:
    loaded = load_authority_certificate(authority.certificate_pem)
    seconds = loaded.not_valid_after_utc.timestamp() - NOW
    assert 3650 * DAY <= seconds <= 3660 * DAY
    assert authority.federation_name == "trial"
    assert len(authority.federation_id) == 64


def test_the_private_key_is_the_owners_alone(authority: Authority) -> None:
    assert stat.S_IMODE((authority.directory / "key.pem").stat().st_mode) == 0o600


def test_it_loads_again_and_goes_on(authority: Authority) -> None:
    _, csr = new_key_and_csr("north", Role.PARTICIPANT)
    again = Authority.load(authority.directory, now)
    pem = again.sign(csr, role=Role.PARTICIPANT, name="north")
    verify_certificate(pem, authority.certificate, NOW, Role.PARTICIPANT)
    assert again.federation_id == authority.federation_id


def test_a_second_authority_in_one_directory_is_refused(authority: Authority) -> None:
    before = (authority.directory / "key.pem").read_bytes()
    with pytest.raises(StateError, match="already exists"):
        Authority.create(authority.directory, "other", now)
    assert (authority.directory / "key.pem").read_bytes() == before


def test_a_passphrase_locks_the_key(tmp_path: Path) -> None:
    Authority.create(tmp_path, "trial", now, passphrase=b"correct horse")
    assert b"ENCRYPTED" in (tmp_path / "key.pem").read_bytes()
    Authority.load(tmp_path, now, passphrase=b"correct horse")
    for wrong in (None, b"battery"):
        with pytest.raises(ConfigurationError, match="cannot be opened"):
            Authority.load(tmp_path, now, passphrase=wrong)


def test_an_empty_passphrase_is_none_at_all_and_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="passphrase is empty"):
        Authority.create(tmp_path / "new", "trial", now, passphrase=b"")
    assert not (tmp_path / "new").exists()


def test_a_key_that_others_can_read_is_refused(authority: Authority) -> None:
    (authority.directory / "key.pem").chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Authority.load(authority.directory, now)


def test_a_key_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", "trial", now)
    shutil.copy(other.directory / "certificate.pem", authority.directory / "certificate.pem")
    with pytest.raises(ConfigurationError, match="do not match"):
        Authority.load(authority.directory, now)


def tampered() -> bytes:
    csr = x509.load_pem_x509_csr(new_key_and_csr("north", Role.PARTICIPANT)[1])
    der = csr.public_bytes(Encoding.DER)
    position = der.index(b"north")
    changed = der[:position] + b"forth" + der[position + 5 :]
    return x509.load_der_x509_csr(changed).public_bytes(Encoding.PEM)


REQUESTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "RSA": (lambda: request(rsa.generate_private_key(65537, 2048)), "P-256"),
    "P-384": (lambda: request(ec.generate_private_key(ec.SECP384R1())), "P-256"),
    "another name": (lambda: new_key_and_csr("south", Role.PARTICIPANT)[1], "asks for the name"),
    "another role": (lambda: new_key_and_csr("north", Role.ANALYST)[1], "different role"),
    "a name that is none": (lambda: request(ec.generate_private_key(ec.SECP256R1()), "North"), "common name"),
    "tampered": (tampered, "signature is invalid"),
    "empty": (lambda: b"", "empty"),
    "no PEM": (lambda: b"request", "not a certificate signing request"),
    "huge": (lambda: b"x" * 100_000, "too large"),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_wrong_request_is_refused_and_leaves_no_record(authority: Authority, kind: str) -> None:
    make, message = REQUESTS[kind]
    name = "forth" if kind == "tampered" else "north"
    with pytest.raises(HostileInput, match=message):
        authority.sign(make(), role=Role.PARTICIPANT, name=name)
    assert authority.issued() == []


def test_a_request_of_other_tools_needs_no_role(authority: Authority) -> None:
    authority.sign(request(ec.generate_private_key(ec.SECP256R1())), role=Role.ANALYST, name="north")


@pytest.mark.parametrize(
    ("role", "hosts", "days", "message"),
    [
        (Role.PARTICIPANT, ("localhost",), 10, "accepts no connections"),
        (Role.COORDINATOR, (), 10, "needs a host"),
        (Role.COORDINATOR, ("https://hub.example",), 10, "neither"),
        (Role.COORDINATOR, ("hub.example:443",), 10, "neither"),
        (Role.COORDINATOR, ("*.example",), 10, "neither"),
        (Role.COORDINATOR, ("",), 10, "neither"),
        (Role.COORDINATOR, ("a" * 64 + ".example",), 10, "neither"),
        (Role.PARTICIPANT, (), 0, "valid for 0 days"),
        (Role.PARTICIPANT, (), 3654, "valid for 3654 days"),
    ],
)
def test_wrong_hosts_and_days_are_refused(
    authority: Authority, role: Role, hosts: tuple[str, ...], days: int, message: str
) -> None:
    _, csr = new_key_and_csr("north", role)
    with pytest.raises(Misuse, match=message):
        authority.sign(csr, role=role, name="north", hosts=hosts, days=days)


def test_no_certificate_outlives_the_authority(authority: Authority) -> None:
    late = Authority.load(authority.directory, lambda: NOW + 3600 * DAY)
    _, csr = new_key_and_csr("north", Role.PARTICIPANT)
    with pytest.raises(Misuse, match="outlive"):
        late.sign(csr, role=Role.PARTICIPANT, name="north", days=60)


@pytest.mark.parametrize("name", ["", "North", "a b", "-a", "a/b", "a" * 65, "ä", "a\n"])
def test_a_name_that_is_none_is_refused_everywhere(authority: Authority, tmp_path: Path, name: str) -> None:
    with pytest.raises(Misuse, match="not valid"):
        new_key_and_csr(name, Role.PARTICIPANT)
    with pytest.raises(Misuse, match="not valid"):
        Authority.create(tmp_path / "new", name, now)
    with pytest.raises(Misuse, match="not valid"):
        authority.sign(new_key_and_csr("north", Role.PARTICIPANT)[1], role=Role.PARTICIPANT, name=name)


def test_a_name_goes_to_another_key_or_role_only_when_told(authority: Authority) -> None:
    key, first = new_key_and_csr("north", Role.PARTICIPANT)
    _, second = new_key_and_csr("north", Role.PARTICIPANT)
    authority.sign(first, role=Role.PARTICIPANT, name="north")
    authority.sign(first, role=Role.PARTICIPANT, name="north")  # renewal
    with pytest.raises(StateError, match="another key or role"):
        authority.sign(second, role=Role.PARTICIPANT, name="north")
    authority.sign(second, role=Role.PARTICIPANT, name="north", replace=True)
    with pytest.raises(StateError, match="another key or role"):
        authority.sign(first, role=Role.PARTICIPANT, name="north")

    loaded = SigningKey.from_pem(key)
    entries = authority.issued()
    assert [entry.name for entry in entries] == ["north"] * 3
    assert [entry.fingerprint == loaded.fingerprint for entry in entries] == [True, True, False]
    assert len({entry.serial for entry in entries}) == 3


def test_the_role_of_a_name_changes_only_when_told(authority: Authority) -> None:
    csr = request(ec.generate_private_key(ec.SECP256R1()))
    authority.sign(csr, role=Role.PARTICIPANT, name="north")
    with pytest.raises(StateError, match="another key or role"):
        authority.sign(csr, role=Role.ANALYST, name="north")


def test_one_key_never_bears_two_names(authority: Authority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    authority.sign(request(key, "north"), role=Role.PARTICIPANT, name="north")
    with pytest.raises(StateError, match="certified for 'north' already"):
        authority.sign(request(key, "south"), role=Role.PARTICIPANT, name="south", replace=True)


def test_the_record_says_what_the_certificate_says(authority: Authority) -> None:
    _, csr = new_key_and_csr("north", Role.PARTICIPANT)
    pem = authority.sign(csr, role=Role.PARTICIPANT, name="north")
    (entry,) = IssuedRecord(authority.directory).entries()
    identity = verify_certificate(pem, authority.certificate, NOW, None)
    assert entry.certificate == pem.decode()
    assert (entry.name, entry.role, entry.fingerprint) == (identity.name, identity.role, identity.fingerprint)
    assert (entry.issued, entry.expires) == (NOW, identity.not_after)
    assert int(entry.serial, 16) == x509.load_pem_x509_certificate(pem).serial_number


def test_operators_in_a_hurry_give_a_name_away_once(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    check = record._check_free

    def check_slowly(*arguments: Any, **options: Any) -> None:
        check(*arguments, **options)
        time.sleep(0.05)  # between check and write: without a lock, all would get here

    monkeypatch.setattr(record, "_check_free", check_slowly)
    requests = [new_key_and_csr("north", Role.PARTICIPANT)[1] for _ in range(4)]
    start = threading.Barrier(len(requests))

    def sign(csr: bytes) -> bool:
        own = Authority.load(authority.directory, now)
        start.wait()
        try:
            own.sign(csr, role=Role.PARTICIPANT, name="north")
        except StateError:
            return False
        return True

    with ThreadPoolExecutor(len(requests)) as pool:
        assert sum(pool.map(sign, requests)) == 1
    assert len(authority.issued()) == 1


def login(authority: Authority, name: str, subject: str) -> Issued:
    _, csr = login_request(Role.ANALYST)
    return authority.sign_login(csr, name=name, subject=subject, seconds=3600)


def test_a_name_is_released_for_one_login_or_for_anybody(tmp_path: Path) -> None:
    time_of_day = [NOW]
    authority = Authority.create(tmp_path / "authority", "trial", lambda: time_of_day[0])
    names = IssuedRecord(authority.directory)
    login(authority, "dr-jones", "https://old 1")
    with pytest.raises(StateError, match="two would bear one name"):
        names.release("dr-jones", time_of_day[0])
    with pytest.raises(Misuse, match="never signed for"):
        names.release("dr-jonas", time_of_day[0])
    time_of_day[0] += 3601
    with pytest.raises(StateError, match="belongs to somebody else"):
        login(authority, "dr-jones", "https://new 1")
    moved = names.release("dr-jones", time_of_day[0], "https://new 1")
    for other in ("https://new 2", "https://old 1"):
        with pytest.raises(StateError, match="belongs to somebody else"):
            login(authority, "dr-jones", other)
    _, csr = new_key_and_csr("dr-jones", Role.ANALYST)
    with pytest.raises(StateError, match="another key or role"):
        authority.sign(csr, role=Role.ANALYST, name="dr-jones")
    login(authority, "dr-jones", "https://new 1")
    login(authority, "dr-jones", "https://new 1")
    time_of_day[0] += 3601
    free = names.release("dr-jones", time_of_day[0])
    authority.sign(csr, role=Role.ANALYST, name="dr-jones")
    with pytest.raises(StateError, match="belongs to somebody else"):
        login(authority, "dr-jones", "https://new 1")
    assert [(item.subject, item.to) for item in (moved, free)] == [("https://old 1", "https://new 1"), ("https://new 1", "")]
    assert [entry for entry in names.history() if not isinstance(entry, Issued)] == [moved, free]
    assert len(authority.issued()) == 4


def test_a_login_reads_what_was_added_since_the_last(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Authority.load(authority.directory, now)
    read: list[str] = []
    real = json.loads

    def loads(line: bytes) -> Any:
        read.append(real(line)["name"])
        return real(line)

    login(authority, "a", "x 1")
    monkeypatch.setattr(record.json, "loads", loads)
    login(authority, "b", "x 2")
    assert read == ["a"]
    login(other, "c", "x 3")
    login(authority, "d", "x 4")
    assert read == ["a", "a", "b", "b", "c"]
    with pytest.raises(StateError, match="belongs to somebody else"):
        login(authority, "c", "x 9")
    path = authority.directory / "issued" / "index.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))  # a backup is put back
    login(authority, "c", "x 9")
    assert [entry.name for entry in authority.issued()] == ["a", "c"]


def test_a_line_that_a_crash_cut_off_is_dropped(authority: Authority) -> None:
    _, csr = new_key_and_csr("north", Role.PARTICIPANT)
    authority.sign(csr, role=Role.PARTICIPANT, name="north")
    path = authority.directory / "issued" / "index.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"name": "so')

    assert [entry.name for entry in authority.issued()] == ["north"]
    _, other = new_key_and_csr("south", Role.PARTICIPANT)
    authority.sign(other, role=Role.PARTICIPANT, name="south")
    assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == ["north", "south"]


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b"nonsense\n", b'{"role": "king"}\n'])
def test_a_damaged_or_missing_record_stops_the_authority(authority: Authority, line: bytes) -> None:
    path = authority.directory / "issued" / "index.jsonl"
    path.write_bytes(line)
    _, csr = new_key_and_csr("north", Role.PARTICIPANT)
    with pytest.raises(Damage, match="damaged"):
        authority.sign(csr, role=Role.PARTICIPANT, name="north")
    path.unlink()
    with pytest.raises(StateError, match="cannot be used"):
        authority.sign(csr, role=Role.PARTICIPANT, name="north")


def test_no_error_names_the_key(authority: Authority) -> None:
    key, _ = new_key_and_csr("north", Role.PARTICIPANT)
    with pytest.raises(VeilsumError) as caught:
        authority.sign(key, role=Role.PARTICIPANT, name="north")
    assert "PRIVATE" not in str(caught.value)
