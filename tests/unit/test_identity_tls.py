"""Credentials: a whole identity directory loads and serves mutual TLS; each way it can be wrong is named."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.certificates import DAY, NOW, now
from veilsum_node.errors import ConfigurationError, StateError, VeilsumError
from veilsum_node.identity import Authority, Role, load_credentials
from veilsum_node.identity.kit import Kit, make_kit
from veilsum_node.identity.provision import prepare


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return make_kit(tmp_path / "kit", ["north", "south"], clock=now)


def test_a_whole_directory_loads(kit: Kit) -> None:
    party = kit.participants[0]
    credentials = load_credentials(party.identity, NOW, Role.PARTICIPANT)
    assert credentials.identity.name == "north"
    assert credentials.signing_key.fingerprint == credentials.identity.fingerprint
    assert credentials.federation_id == kit.federation_id
    assert credentials.key_pem == (party.identity / "key.pem").read_bytes()
    assert "PRIVATE" not in repr(credentials)


@pytest.mark.parametrize("name", ["key.pem", "certificate.pem", "authority.pem"])
@pytest.mark.parametrize("damage", ["missing", "empty", "nonsense", "directory", "huge"])
def test_a_file_that_is_wrong_is_named(kit: Kit, name: str, damage: str) -> None:
    directory = kit.participants[0].identity
    path = directory / name
    path.unlink()
    if damage == "directory":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes({"empty": b"", "nonsense": b"nonsense", "huge": bytes(100_000)}[damage])
        path.chmod(0o600)
    with pytest.raises(ConfigurationError) as caught:
        load_credentials(directory, NOW)
    assert str(path) in caught.value.message
    assert caught.value.advice


CREATES = re.compile(r"\binit\b|identity first|authority first|move the file away|new one with|openssl rand", re.IGNORECASE)


def refused(path: Path, party: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> VeilsumError:
    """What loading an identity, or an authority, says of its damaged key."""
    whole = path.read_bytes()
    path.unlink()
    match damage:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path, 0o600)
        case "unreadable" | "disk":
            path.write_bytes(whole)
            path.chmod(0o600)
            fault = errno.EACCES if damage == "unreadable" else errno.EIO
            real = open

            def opened(name: Path, *arguments: Any, **named: Any) -> Any:
                if Path(name) == path:
                    raise OSError(fault, os.strerror(fault), str(path))  # root's own test may read every mode
                return real(name, *arguments, **named)

            monkeypatch.setattr("veilsum_node.identity.files.open", opened, raising=False)
        case "missing":
            pass
        case _:
            path.write_bytes({"empty": b"", "cut": whole[:90], "huge": bytes(100_000), "other": b"nonsense"}[damage])
            path.chmod(0o600)
    with pytest.raises(ConfigurationError) as caught:
        Authority.load(party, now) if party.name == "authority" else load_credentials(party, NOW)
    return caught.value


@pytest.mark.sampled(5)
@pytest.mark.parametrize("whose", ["party", "authority"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "other", "huge", "folder", "pipe", "unreadable", "disk"])
def test_no_advice_loses_a_key(kit: Kit, monkeypatch: pytest.MonkeyPatch, whose: str, damage: str) -> None:
    party = kit.participants[0].identity if whose == "party" else kit.authority
    said = refused(party / "key.pem", party, monkeypatch, damage)
    assert str(party) in said.message
    assert said.advice
    assert not CREATES.search(said.advice), said.advice
    if damage == "missing":
        assert "backup" in said.advice
    elif damage == "unreadable":
        assert "namei -l" in said.advice
    elif damage != "huge":
        assert re.search("[Kk]eep|Name a file", said.advice)


def test_who_never_had_a_key_is_told_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_credentials(tmp_path / "identity", NOW)
    assert "participant init" in caught.value.advice


def test_a_key_that_lies_there_is_not_to_be_moved_away(kit: Kit) -> None:
    for make in (
        lambda: prepare(kit.participants[0].directory, "north", Role.PARTICIPANT),
        lambda: Authority.create(kit.authority, "trial", now),
    ):
        with pytest.raises(StateError) as caught:
            make()
        assert "key.pem already exists" in caught.value.message
        assert "keep it" in caught.value.advice
        assert not CREATES.search(caught.value.advice)


@pytest.mark.parametrize(
    ("damage", "message"),
    [("empty", "is empty"), ("huge", "is larger than 65,536 bytes"), ("pipe", "not a regular"), ("device", "not a regular")],
)
def test_no_file_is_waited_for_or_read_without_end(kit: Kit, damage: str, message: str) -> None:
    path = kit.participants[0].identity / "certificate.pem"
    path.unlink()
    if damage == "pipe":
        os.mkfifo(path)
    elif damage == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"" if damage == "empty" else bytes(100_000))
    with pytest.raises(ConfigurationError, match=message):
        load_credentials(path.parent, NOW)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_can_read_or_write_is_refused(kit: Kit, mode: int) -> None:
    path = kit.participants[0].identity / "key.pem"
    path.chmod(mode)
    with pytest.raises(ConfigurationError) as caught:
        load_credentials(path.parent, NOW)
    assert caught.value.advice == f"Run: chmod 600 {path}"


def test_a_certificate_for_another_key_is_refused(kit: Kit) -> None:
    north, south = kit.participants
    shutil.copy(south.identity / "certificate.pem", north.identity / "certificate.pem")
    with pytest.raises(ConfigurationError, match="does not belong to"):
        load_credentials(north.identity, NOW)


def test_a_foreign_authority_is_refused(kit: Kit, tmp_path: Path) -> None:
    other = make_kit(tmp_path / "other", ["north", "south"], clock=now)
    shutil.copy(other.participants[0].identity / "authority.pem", kit.participants[0].identity / "authority.pem")
    with pytest.raises(ConfigurationError):
        load_credentials(kit.participants[0].identity, NOW)


@pytest.mark.parametrize(("at", "message"), [(NOW - DAY, "not valid yet"), (NOW + 366 * DAY, "expired")])
def test_time_counts(kit: Kit, at: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_credentials(kit.participants[0].identity, at)


def test_the_role_counts(kit: Kit) -> None:
    with pytest.raises(ConfigurationError, match="not of a coordinator"):
        load_credentials(kit.participants[0].identity, NOW, Role.COORDINATOR)


def contexts(kit: Kit, client: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context, identity in ((server, kit.coordinator.identity), (dialling, client)):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
        context.load_verify_locations(identity / "authority.pem")
    server.verify_mode = ssl.CERT_REQUIRED
    return server, dialling


def exchange(server: ssl.SSLContext, client: ssl.SSLContext, hostname: str) -> bytes:
    """One byte over real TLS; raises what the client sees."""
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(far, server_side=True) as connection:
                connection.sendall(b"!")
        except (ssl.SSLError, OSError):
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(near, server_hostname=hostname) as connection:
            return connection.recv(1)
    finally:
        near.close()
        thread.join()


def test_the_files_serve_mutual_tls_by_host_name(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "kit", ["north", "south"], clock=lambda: int(time.time()))
    server, client = contexts(kit, kit.participants[0].identity)
    assert exchange(server, client, "localhost") == b"!"
    assert exchange(server, client, "127.0.0.1") == b"!"
    with pytest.raises(ssl.SSLCertVerificationError):
        exchange(server, client, "evil.example")


def test_a_participant_cannot_pose_as_the_server(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "kit", ["north", "south"], clock=lambda: int(time.time()))
    _, client = contexts(kit, kit.participants[0].identity)
    posing = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity = kit.participants[1].identity
    posing.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
    client.check_hostname = False  # even then
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        exchange(posing, client, "localhost")


def test_a_foreign_client_is_turned_away(tmp_path: Path) -> None:
    clock = lambda: int(time.time())  # noqa: E731
    kit = make_kit(tmp_path / "kit", ["north", "south"], clock=clock)
    other = make_kit(tmp_path / "other", ["north", "south"], clock=clock)
    server, client = contexts(kit, other.participants[0].identity)
    client.load_verify_locations(kit.authority / "certificate.pem")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        assert exchange(server, client, "localhost") == b"!"


def test_every_fault_is_a_typed_error(kit: Kit) -> None:
    with pytest.raises(VeilsumError):
        load_credentials(kit.directory / "nowhere", NOW)
