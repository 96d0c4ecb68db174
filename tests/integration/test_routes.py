"""Ways to a coordinator over real gRPC: through HTTP proxies, and to a TLS certificate of another authority."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from support.channels import OpenChannel
from support.connect_proxy import ConnectProxy
from support.federation import TestBed, make_bed, make_data
from support.hospital import HospitalAuthority
from support.network import PATIENCE, running_client, running_server, wait_for
from support.proxy import Proxy as Tunnel
from veilsum_coordinator.protocol.settings import CoordinatorConfig, TlsConfig
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_node.errors import HostileInput
from veilsum_node.identity.certificate import certificate_end
from veilsum_node.transport.channel import open_channel
from veilsum_node.transport.connection import explain, hello, probe_tcp, probe_tls
from veilsum_node.transport.dialling import UnreachableError, as_route, connect
from veilsum_node.transport.route import Proxy, Route
from veilsum_participant.boundary.front import ObjectKind
from veilsum_participant.session.channel import UndeliveredError
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import CoordinationStub


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    data = make_data("ab", 1, 1)
    return make_bed(tmp_path_factory.mktemp("federation"), data)


@pytest.fixture(scope="module")
def address(bed: TestBed) -> Iterator[str]:
    with running_server(bed) as (_, where):
        yield where


@pytest.fixture(scope="module")
def hospital() -> HospitalAuthority:
    return HospitalAuthority()


@pytest.fixture
def identity(bed: TestBed) -> Path:
    return bed.kit.participants[0].identity


def greets(way: Route | str, bed: TestBed) -> str:
    """The name that the coordinator proves at the end of a way, from the first participant."""
    credentials = bed.sites["a"].credentials
    with open_channel(way, credentials) as channel:
        try:
            return hello(channel, credentials, bed.clock()).coordinator
        except grpc.RpcError as error:
            raise explain(error, way, bed.kit.participants[0].identity) from error


# -- proxies ---------------------------------------------------------------------------------------------------------------


def test_every_call_goes_through_the_proxy(bed: TestBed, address: str, identity: Path) -> None:
    with ConnectProxy(credentials=("us er", "p:w@d%")) as proxy:
        way = Route(address, Proxy(proxy.address, "us er", "p:w@d%"))
        assert greets(way, bed) == "coordinator"
        probe_tcp(way)
        probe_tls(way, identity)
        assert proxy.requests == [(address, 200)] * 3


@pytest.mark.parametrize("name", ["no_proxy", "no_grpc_proxy", "NO_PROXY"])
def test_no_variable_leads_around_the_proxy(bed: TestBed, address: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "*,localhost")
    with ConnectProxy() as proxy:
        assert greets(Route(address, Proxy(proxy.address)), bed) == "coordinator"
        assert proxy.requests == [(address, 200)]


def test_no_variable_leads_to_a_proxy(bed: TestBed, address: str, identity: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ConnectProxy() as proxy:
        for name in ("https_proxy", "http_proxy", "grpc_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{proxy.address}")
        monkeypatch.setenv("GRPC_ADDRESS_HTTP_PROXY", proxy.address)
        monkeypatch.setenv("GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES", "127.0.0.0/8,::1/128")
        assert greets(address, bed) == "coordinator"
        probe_tls(address, identity)
        assert proxy.requests == []


def test_a_proxy_that_fails_is_not_gone_around(bed: TestBed, address: str) -> None:
    with socket.socket() as held:  # bound and not listening: nobody else can take the port meanwhile
        held.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=f"Nothing listens on {gone}"):
            greets(Route(address, Proxy(gone)), bed)


@pytest.mark.parametrize(
    ("user", "allowed", "message"),
    [
        ("", True, r"asks for a user and a password \(407\)"),
        ("other", True, r"rejects the user and password \(407\)"),
        ("hospital", False, r"does not allow localhost:\d+ \(403\)"),
    ],
)
def test_a_proxys_refusal_is_explained(bed: TestBed, address: str, user: str, allowed: bool, message: str) -> None:
    targets = {address: address} if allowed else {}
    with ConnectProxy(credentials=("hospital", "secret"), targets=targets) as proxy:
        way = Route(address, Proxy(proxy.address, user, "secret" if user else ""))
        with pytest.raises(UnreachableError, match=message) as raised:
            greets(way, bed)
        assert "secret" not in str(raised.value)
        with pytest.raises(UnreachableError, match=message):
            probe_tcp(way)


def test_a_coordinator_that_the_proxy_cannot_reach(bed: TestBed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gone = f"localhost:{taken.getsockname()[1]}"
    with ConnectProxy() as proxy, pytest.raises(UnreachableError, match=rf"cannot reach {gone} \(502\)"):
        greets(Route(gone, Proxy(proxy.address)), bed)


def test_a_session_comes_back_when_the_proxy_cuts_it(bed: TestBed, tmp_path: Path) -> None:
    site = bed.sites["b"]
    with running_server(bed, state=tmp_path) as (server, where), ConnectProxy() as proxy:
        site.config = site.config.model_copy(update={"proxy": proxy.address})
        try:
            with running_client(site, where):
                wait_for(lambda: any(item.connected for item in server.hub.sessions.values()), "the session")
                first = server.hub.sessions["b"].serial
                proxy.cut()
                wait_for(lambda: server.hub.sessions["b"].serial > first, "the next session")
            assert {status for _, status in proxy.requests} == {200}
        finally:
            site.config = site.config.model_copy(update={"proxy": None})


# -- a TLS certificate of another authority --------------------------------------------------------------------------------


@contextmanager
def serving(bed: TestBed, tls: TlsConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CoordinatorServer, str]]:
    made = CoordinatorConfig.__init__

    def init(self: CoordinatorConfig, **values: object) -> None:
        made(self, **{**values, "tls": tls, "state": tls.certificate.parent / "state"})

    monkeypatch.setattr(CoordinatorConfig, "__init__", init)
    with running_server(bed) as running:
        monkeypatch.undo()
        yield running


def test_a_hospitals_certificate_needs_its_root_and_the_federations_proof(
    bed: TestBed, hospital: HospitalAuthority, identity: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = hospital.issue(tmp_path)
    with serving(bed, TlsConfig(certificate=certificate, key=key), monkeypatch) as (server, where):
        way = Route(where, roots=hospital.pem)
        assert greets(way, bed) == "coordinator"
        shown = server.metrics.registry.get_sample_value(
            "veilsum_certificate_expiry_timestamp_seconds", {"certificate": "tls"}
        )
        assert shown == certificate_end(x509.load_pem_x509_certificate(certificate.read_bytes()))
        probe_tls(way, identity)
        with ConnectProxy() as proxy:
            assert greets(Route(where, Proxy(proxy.address), hospital.pem), bed) == "coordinator"
            assert proxy.requests == [(where, 200)] * 2  # the pin, then the channel
        with pytest.raises(UnreachableError, match=r"not of this federation.*ca_bundle"):
            greets(where, bed)
        with pytest.raises(UnreachableError, match="neither of this federation nor of the CA bundle"):
            greets(Route(where, roots=HospitalAuthority().pem), bed)
        # client certificates are the federation's all the same
        stranger = make_bed(tmp_path / "other", make_data("ab", 1, 1))
        with pytest.raises(UnreachableError, match="refused this party's certificate"):
            probe_tls(way, stranger.kit.participants[0].identity)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_is_refused_with_an_rsa_certificate_too(
    bed: TestBed, hospital: HospitalAuthority, identity: Path, tmp_path: Path, version: ssl.TLSVersion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    certificate, key = hospital.issue(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=hospital.pem.decode())
    context.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    with serving(bed, TlsConfig(certificate=certificate, key=key), monkeypatch) as (_, where):
        raw = socket.create_connection(("localhost", int(where.rsplit(":", 1)[1])), 30)
        try:
            with context.wrap_socket(raw, server_hostname="localhost") as tls:
                spoken = tls.version()
        except (ssl.SSLError, ConnectionResetError):
            spoken = None
    assert spoken == ("TLSv1.3" if version is ssl.TLSVersion.TLSv1_3 else None)


def test_a_hospitals_certificate_is_renewed_and_a_wrong_pair_is_not_taken(
    bed: TestBed,
    hospital: HospitalAuthority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    certificate, key = hospital.issue(tmp_path)
    with serving(bed, TlsConfig(certificate=certificate, key=key), monkeypatch) as (_, where):
        way = Route(where, roots=hospital.pem)
        first = shown_at(way, hospital)
        other = hospital.issue(tmp_path / "new")
        os.replace(other[0], certificate)  # half of a change: certificate without its key
        wait_for(lambda: "does not belong to" in caplog.text, "the refusal of half a pair")
        assert shown_at(way, hospital) == first
        os.replace(other[1], key)
        wait_for(lambda: shown_at(way, hospital) != first, "the renewed certificate")
        assert greets(way, bed) == "coordinator"


def shown_at(way: Route, hospital: HospitalAuthority) -> bytes:
    """The certificate that a new handshake is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=hospital.pem.decode())
    with connect(way) as raw, context.wrap_socket(raw, server_hostname="localhost") as tls:
        return tls.getpeercert(binary_form=True) or b""


class Middlebox:
    """Ends TLS with a certificate that its clients' CA bundle trusts, as an inspecting proxy does; keeps what it reads."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._context.set_alpn_protocols(["h2"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.read = b""
        self.ended = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            try:
                raw.settimeout(2)
                with self._context.wrap_socket(raw, server_side=True) as tls:
                    while data := tls.recv(4096):
                        self.read += data
            except OSError:
                pass
            self.ended += 1

    def close(self) -> None:
        self._listener.close()


def test_a_channel_cannot_be_moved_to_a_middlebox_when_it_reconnects(
    bed: TestBed, hospital: HospitalAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one whose certificate the CA bundle trusts: the channel is pinned to the server that the greeting proved."""
    certificate, key = hospital.issue(tmp_path)
    box = Middlebox(*hospital.issue(tmp_path / "box"))
    credentials = bed.sites["a"].credentials
    with serving(bed, TlsConfig(certificate=certificate, key=key), monkeypatch) as (_, where):
        tunnel = Tunnel(("localhost", int(where.rsplit(":", 1)[1])))
        way = Route(f"localhost:{tunnel.port}", roots=hospital.pem)
        with open_channel(way, credentials) as raw:
            channel = OpenChannel(raw, credentials, bed.clock)
            channel.hello()
            tunnel.target = ("127.0.0.1", box.port)
            tunnel.limit(0, cut=True)
            with pytest.raises(UndeliveredError):  # the connection is cut, and the next one is the middlebox's
                channel.fetch(ObjectKind.MIRRORED, bytes(32))

            def refused_by_the_middlebox() -> bool:
                """A call may still meet the connection that was cut; only a call makes a channel connect again."""
                with pytest.raises(grpc.RpcError) as raised:
                    CoordinationStub(raw).Ready(pb.ReadyRequest(study=bytes(32)), timeout=PATIENCE, wait_for_ready=False)
                assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
                return box.ended > 0

            wait_for(refused_by_the_middlebox, "an attempt at the middlebox")
        assert box.read == b""
        tunnel.close()
    box.close()


def test_a_middlebox_from_the_start_cannot_answer_the_greeting(
    bed: TestBed, hospital: HospitalAuthority, tmp_path: Path
) -> None:
    """It hears the greeting, in which nothing is secret, and then nothing: it has no certificate of the federation."""
    box = Middlebox(*hospital.issue(tmp_path))
    way = Route(f"localhost:{box.port}", roots=hospital.pem)
    with pytest.raises((UnreachableError, HostileInput)):
        greets(way, bed)
    box.close()
    assert as_route(way) is way
