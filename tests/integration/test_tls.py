"""The transport: TLS 1.3 only, certificates on both sides, names that match, health and reflection for those let in.

The other side of every handshake here is Python's own ssl module or the openssl command, not gRPC.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from support.federation import TestBed, make_bed, make_data
from support.network import PATIENCE, running_server
from veilsum_node.identity import Credentials, Role, load_credentials
from veilsum_node.identity.provision import Party
from veilsum_node.identity.tls import load_transport
from veilsum_node.transport.channel import open_channel
from veilsum_node.transport.connection import hello
from veilsum_proto import PROTOCOL_VERSIONS, SERVICES
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import CoordinationStub, StudiesStub


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    data = make_data("ab", 1, 1)
    return make_bed(tmp_path_factory.mktemp("federation"), data)


@pytest.fixture(scope="module")
def port(bed: TestBed) -> Iterator[int]:
    with running_server(bed) as (_, address):
        yield int(address.rsplit(":", 1)[1])


def _files(party: Party) -> tuple[Path, Path, Path]:
    return tuple(party.identity / f"{name}.pem" for name in ("certificate", "key", "authority"))  # type: ignore[return-value]


def _client_context(party: Party | None, authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    if party is not None:
        certificate, key, _ = _files(party)
        context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    return context


def _shake(context: ssl.SSLContext, port: int) -> tuple[str | None, str | None]:
    """Handshake and read what the server says first; in TLS 1.3 only that shows whether the certificate was taken."""
    raw = socket.create_connection(("localhost", port), timeout=PATIENCE)
    with raw, context.wrap_socket(raw, server_hostname="localhost") as tls:
        tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        if not tls.recv(9):
            raise ConnectionResetError("closed without a word")
        return tls.version(), tls.selected_alpn_protocol()


def test_tls_1_3_is_spoken(bed: TestBed, port: int) -> None:
    party = bed.kit.participants[0]
    assert _shake(_client_context(party, _files(party)[2]), port) == ("TLSv1.3", "h2")


def _first_directive(port: int, credentials: Credentials) -> int:
    """Greet the coordinator, open a session and return the kind of its first directive."""
    with open_channel(f"localhost:{port}", credentials) as channel:
        hello(channel, credentials, int(time.time()))
        session = CoordinationStub(channel).Work(pb.WorkRequest(version=max(PROTOCOL_VERSIONS), session_nonce=os.urandom(16)))
        return int(next(session).kind)


def test_a_participants_connections_show_a_key_that_signs_nothing(bed: TestBed, port: int) -> None:
    party = bed.kit.participants[0]
    own = load_credentials(party.identity, int(time.time()))
    shown = load_transport(party.identity, int(time.time()), own)
    assert shown.identity.role is Role.TRANSPORT
    assert shown.signing_key.fingerprint != own.signing_key.fingerprint
    assert _first_directive(port, shown) == pb.DIRECTIVE_KIND_PING
    with open_channel(f"localhost:{port}", shown) as channel, pytest.raises(grpc.RpcError) as caught:
        StudiesStub(channel).List(pb.ListRequest(), timeout=PATIENCE)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]


def test_a_participant_that_was_certified_with_one_key_goes_on_with_it(bed: TestBed, port: int, tmp_path: Path) -> None:
    """As of 0.2, before connections had a key of their own."""
    party = bed.kit.participants[1]
    shutil.copytree(party.identity, tmp_path / "identity", ignore=shutil.ignore_patterns("transport"))
    own = load_credentials(tmp_path / "identity", int(time.time()))
    shown = load_transport(tmp_path / "identity", int(time.time()), own)
    assert shown is own
    assert _first_directive(port, shown) == pb.DIRECTIVE_KIND_PING


def test_a_tls_1_2_client_is_refused(bed: TestBed, port: int) -> None:
    party = bed.kit.participants[0]
    context = _client_context(party, _files(party)[2])
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        _shake(context, port)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
@pytest.mark.parametrize(("version", "taken"), [("-tls1_2", False), ("-tls1_3", True)])
def test_openssl_agrees(bed: TestBed, port: int, version: str, taken: bool) -> None:
    certificate, key, authority = _files(bed.kit.participants[0])
    command = ["openssl", "s_client", "-connect", f"localhost:{port}", version, "-alpn", "h2", "-verify_return_error"]
    command += ["-cert", str(certificate), "-key", str(key), "-CAfile", str(authority), "-servername", "localhost"]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=PATIENCE)
    assert (b"Verify return code: 0 (ok)" in done.stdout and b"TLSv1.3" in done.stdout) == taken
    assert (done.returncode == 0) == taken


def test_a_client_without_a_certificate_is_refused(bed: TestBed, port: int) -> None:
    authority = _files(bed.kit.participants[0])[2]
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        _shake(_client_context(None, authority), port)
    with grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(authority.read_bytes())) as channel:
        _check_unavailable(channel)


def test_a_plain_connection_is_refused(port: int) -> None:
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        _check_unavailable(channel)


def _check_unavailable(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        CoordinationStub(channel).Hello(pb.HelloRequest(versions=PROTOCOL_VERSIONS), timeout=PATIENCE)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


class Listener:
    """A TLS server of Python's ssl module that records how each handshake went."""

    def __init__(self, party: Party, version: ssl.TLSVersion, host: str) -> None:
        certificate, key, authority = _files(party)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate, key)
        self.context.load_verify_locations(authority)
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.context.minimum_version = self.context.maximum_version = version
        self.context.set_alpn_protocols(["h2"])
        self.done: list[str | None] = []
        self.faults: list[str] = []
        self.seen = threading.Event()
        self.socket = socket.create_server((host, 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                raw, _ = self.socket.accept()
            except OSError:
                return
            try:
                raw.settimeout(PATIENCE)
                with self.context.wrap_socket(raw, server_side=True) as tls:
                    if tls.recv(1):  # the client sends its preface only if it took the server's certificate
                        self.done.append(tls.version())
                    else:
                        self.faults.append("closed")
            except OSError as error:
                self.faults.append(str(error))
            self.seen.set()


@contextmanager
def _listening(party: Party, version: ssl.TLSVersion, host: str = "127.0.0.1") -> Iterator[Listener]:
    listener = Listener(party, version, host)
    try:
        yield listener
    finally:
        listener.socket.close()


def _dial(listener: Listener, who: Credentials, host: str) -> None:
    with open_channel(f"{host}:{listener.socket.getsockname()[1]}", who) as channel:
        _check_unavailable(channel)
    assert listener.seen.wait(PATIENCE)


def test_a_participant_takes_a_tls_1_3_server_of_the_federation(bed: TestBed) -> None:
    """The same listener as below with another version, so that a refusal there is for the version."""
    with _listening(bed.kit.coordinator, ssl.TLSVersion.TLSv1_3) as listener:
        _dial(listener, bed.sites["a"].credentials, "127.0.0.1")
        assert listener.done
        assert set(listener.done) == {"TLSv1.3"}


def test_a_participant_refuses_a_server_that_speaks_tls_1_2_only(bed: TestBed) -> None:
    with _listening(bed.kit.coordinator, ssl.TLSVersion.TLSv1_2) as listener:
        _dial(listener, bed.sites["a"].credentials, "127.0.0.1")
        assert listener.faults
        assert not listener.done


def test_a_participant_refuses_a_server_that_is_no_coordinator(bed: TestBed) -> None:
    """A participant's certificate is of the federation, but names no host and is for no server."""
    with _listening(bed.kit.participants[1], ssl.TLSVersion.TLSv1_3) as listener:
        _dial(listener, bed.sites["a"].credentials, "127.0.0.1")
        assert not listener.done


def test_a_participant_refuses_a_coordinator_under_another_host_name(bed: TestBed) -> None:
    with _listening(bed.kit.coordinator, ssl.TLSVersion.TLSv1_3, "127.0.0.2") as listener:
        _dial(listener, bed.sites["a"].credentials, "127.0.0.2")
        assert not listener.done


def test_a_participant_refuses_another_federations_coordinator(bed: TestBed, tmp_path: Path) -> None:
    data = make_data("ab", 1, 1)
    other = make_bed(tmp_path, data)
    with _listening(other.kit.coordinator, ssl.TLSVersion.TLSv1_3) as listener:
        _dial(listener, bed.sites["a"].credentials, "127.0.0.1")
        assert not listener.done


def test_health_and_reflection_answer_an_operator(bed: TestBed, port: int) -> None:
    operator = load_credentials(bed.kit.operator.identity, bed.clock())
    with open_channel(f"localhost:{port}", operator) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", *SERVICES):
            reply = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as raised:
            health.Check(health_pb2.HealthCheckRequest(service="nothing"), timeout=PATIENCE)
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        reflected = ProtoReflectionDescriptorDatabase(channel)
        assert {*SERVICES, "grpc.health.v1.Health"} <= set(reflected.get_services())
        file = reflected.FindFileContainingSymbol(SERVICES[0])
        methods = {method.name for service in file.service for method in service.method}
        assert {"Hello", "Work", "Upload", "Consent", "Submit", "Watch"} <= methods
