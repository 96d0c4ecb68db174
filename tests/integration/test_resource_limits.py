"""One caller's misbehaviour on real connections: bombs, slow streams, many connections. Others' study ends all the same."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from fuzzing.driver import resident

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, running_client, running_server, wait_for
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.service import guard
from veilsum_coordinator.service import server as server_module
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_node.identity import Credentials
from veilsum_node.telemetry import log_floods
from veilsum_node.telemetry.log_writing import LogSettings
from veilsum_node.transport import dialling
from veilsum_node.transport.channel import open_channel
from veilsum_node.transport.route import Proxy, Route
from veilsum_proto import PROTOCOL_VERSIONS
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import CoordinationStub, StudiesStub

CONNECTIONS = 24
SECONDS = 3.0


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestBed, CoordinatorServer, str]]:
    """A coordinator that waits for nobody long and takes few connections."""
    data = make_data("abcd", 4)
    bed = make_bed(tmp_path_factory.mktemp("hurried"), data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "MOST_CONNECTIONS", CONNECTIONS)
        patch.setattr(server_module, "HANDSHAKE_SECONDS", 3.0)
        patch.setattr(server_module, "IDLE_SECONDS", 2.0)
        patch.setattr(guard, "CALL_SECONDS", SECONDS)
        with running_server(bed) as (server, address):
            yield bed, server, address


def insist(call: Callable[[], Any]) -> Any:
    """A call's answer; made again where the connection had no call for so long that the server closed it just then."""
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise


def finish_a_study(bed: TestBed, server: CoordinatorServer, address: str, names: str) -> None:
    """Submit a study of some participants and wait for its result."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(running_client(bed.sites[name], address))
        study = a_study(bed, names)
        analyst = StudiesStub(stack.enter_context(open_channel(address, bed.analyst)))
        signed = bed.signed(study)
        key = insist(lambda: analyst.Submit(pb.SubmitRequest(study=signed), timeout=PATIENCE, wait_for_ready=True)).study
        machine = server.hub.studies[key].machine
        wait_for(lambda: machine.phase is StudyPhase.FINISHED, "the study's result")


def a_study(bed: TestBed, names: str) -> bytes:
    """A study without noise of the sites of these names."""
    return bed.compile(make_request(schema_of(2), epsilon=None), names).to_bytes()


def test_a_compressed_message_is_not_inflated_beyond_the_limit(hurried: tuple[TestBed, CoordinatorServer, str]) -> None:
    """8 MiB of zeros are 8 KiB when compressed; the limit of a message holds for what comes out."""
    bed, _, address = hurried
    credentials = bed.sites["a"].credentials
    tls = grpc.ssl_channel_credentials(credentials.authority_pem, credentials.key_pem, credentials.certificate_pem)
    bomb = bytes(8 << 20)
    with grpc.secure_channel(address, tls) as channel:
        call = channel.unary_unary("/veilsum.v1.Coordination/Hello", request_serializer=lambda data: data)
        with pytest.raises(grpc.RpcError) as raised:
            insist(lambda: call(bomb, timeout=PATIENCE, compression=grpc.Compression.Gzip))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_stream_that_dribbles_is_cut_off_and_holds_nobody_up(hurried: tuple[TestBed, CoordinatorServer, str]) -> None:
    bed, server, address = hurried
    ended = threading.Event()
    with open_channel(address, bed.sites["d"].credentials) as channel:
        stub = CoordinationStub(channel)
        silent = [stub.Seal.future(_waiting(ended)) for _ in range(8)]
        uploads = [stub.Upload.future(_waiting(ended)) for _ in range(8)]
        finish_a_study(bed, server, address, "abc")
        codes = {call.code() for call in (*silent, *uploads)}
        ended.set()
    idle = {grpc.StatusCode.UNAVAILABLE}  # the server closed the connection before the call came over it
    assert codes - idle == {grpc.StatusCode.DEADLINE_EXCEEDED}


def _waiting(ended: threading.Event) -> Iterator[pb.SealedBoxes]:
    ended.wait(PATIENCE)
    yield from ()


def test_connections_without_a_handshake_are_bounded_and_closed(hurried: tuple[TestBed, CoordinatorServer, str]) -> None:
    bed, server, address = hurried
    host, _, port = address.rpartition(":")
    before = resident()
    held = [socket.create_connection((host, int(port)), timeout=PATIENCE) for _ in range(10 * CONNECTIONS)]
    try:
        finish_a_study(bed, server, address, "abc")
        for connection in held:  # by the server: either there was no room for it, or it took too long
            assert _closed(connection)
    finally:
        for connection in held:
            connection.close()
    assert resident() - before < 64 << 20


def test_one_participants_idle_connections_do_not_keep_the_others_out(
    hurried: tuple[TestBed, CoordinatorServer, str],
) -> None:
    """A certificate opens as many connections as there are places; those without a call are closed, and others come in."""
    bed, server, address = hurried
    credentials = bed.sites["d"].credentials
    tls = grpc.ssl_channel_credentials(credentials.authority_pem, credentials.key_pem, credentials.certificate_pem)
    with ExitStack() as stack:
        failed = []
        for _ in range(3 * CONNECTIONS):  # there are two addresses, IPv4 and IPv6, with so many places each
            channel = stack.enter_context(grpc.secure_channel(address, tls, [("grpc.use_local_subchannel_pool", 1)]))
            try:
                CoordinationStub(channel).Hello(pb.HelloRequest(versions=PROTOCOL_VERSIONS, challenge=bytes(32)), timeout=0.5)
            except grpc.RpcError as error:
                failed.append(error.code())
        assert failed  # there was no room any more
        finish_a_study(bed, server, address, "abc")


def crowd(stack: ExitStack, address: str, credentials: Credentials, count: int) -> None:
    """Connections of one certificate that made one call each, and no other."""
    tls = grpc.ssl_channel_credentials(credentials.authority_pem, credentials.key_pem, credentials.certificate_pem)
    for _ in range(count):
        channel = stack.enter_context(grpc.secure_channel(address, tls, [("grpc.use_local_subchannel_pool", 1)]))
        with suppress(grpc.RpcError):
            CoordinationStub(channel).Hello(pb.HelloRequest(versions=PROTOCOL_VERSIONS, challenge=bytes(32)), timeout=0.5)


def test_everything_at_once_stops_nobody_elses_study(hurried: tuple[TestBed, CoordinatorServer, str]) -> None:
    bed, server, address = hurried
    over, ended = threading.Event(), threading.Event()
    credentials = bed.sites["d"].credentials
    tls = grpc.ssl_channel_credentials(credentials.authority_pem, credentials.key_pem, credentials.certificate_pem)

    def again(method: str, request: bytes, compression: grpc.Compression | None = None) -> None:
        with grpc.secure_channel(address, tls, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(f"/veilsum.v1.Coordination/{method}", request_serializer=lambda data: data)
            while not over.is_set():
                with suppress(grpc.RpcError):
                    call(request, timeout=5, compression=compression)
                over.wait(0.02)  # the study waits for these calls' processor time, too

    wrongs = (
        ("Hello", b"\xff" * 64, None),
        ("Enrol", bytes(1 << 20), None),
        ("Refuse", b"", None),
        ("Consent", b"\x0a\x20", None),
    )
    threads = [threading.Thread(target=again, args=wrong) for wrong in wrongs]
    threads.append(threading.Thread(target=again, args=("Hello", bytes(16 << 20), grpc.Compression.Gzip)))
    with ExitStack() as stack:
        slow = CoordinationStub(stack.enter_context(open_channel(address, credentials)))
        dribbling = [call.future(_waiting(ended)) for call in (slow.Seal, slow.Upload) for _ in range(6)]
        crowd(stack, address, credentials, CONNECTIONS)
        for thread in threads:
            thread.start()
        try:
            finish_a_study(bed, server, address, "abc")
        finally:
            over.set()
            for thread in threads:
                thread.join(PATIENCE)
            ended.set()
        assert grpc.StatusCode.OK not in {call.code() for call in dribbling}


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[Path]:
    """The log as a coordinator's process writes it."""
    root, own = logging.getLogger(), logging.getLogger("veilsum")
    kept = root.handlers[:], root.level, own.level, logging.raiseExceptions
    log_floods.start_bounded_logging(LogSettings(file=tmp_path / "log"))
    yield tmp_path / "log"
    root.handlers[:], logging.raiseExceptions = kept[0], kept[3]
    root.setLevel(kept[1])
    own.setLevel(kept[2])


def test_a_flood_of_rejected_calls_is_counted_in_the_log(
    hurried: tuple[TestBed, CoordinatorServer, str], log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, server, address = hurried
    monkeypatch.setattr(log_floods, "SECONDS", 3.0)
    rejected = server.metrics.rejected.labels("version")
    before = rejected._value.get()
    for name, calls in (("d", 150), ("a", 1)):
        with open_channel(address, bed.sites[name].credentials) as channel:
            hello = partial(CoordinationStub(channel).Hello, pb.HelloRequest(versions=[99]), timeout=PATIENCE)
            for _ in range(calls):
                with pytest.raises(grpc.RpcError):
                    insist(hello)
    assert rejected._value.get() - before == 151
    wait_for(lambda: "left out" in log_file.read_text(), "the count")
    lines = log_file.read_text().splitlines()
    of_d, of_a = (sum("rejected (version)" in line and line.endswith(f"(from {name})") for line in lines) for name in "da")
    assert of_a == 1
    assert log_floods.LINES <= of_d < 150
    counted = sum(int(line.split()[2]) for line in lines if "more rejected calls of d" in line)
    assert of_d + counted <= 150


def _closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(4096):  # a server speaks first in HTTP/2 only after the handshake
            pass
    except ConnectionError:
        pass
    return True


def test_a_caller_that_fetches_in_a_loop_holds_nobody_up(hurried: tuple[TestBed, CoordinatorServer, str]) -> None:
    bed, server, address = hurried
    over = threading.Event()
    made: list[object] = []

    def fetch(stub: CoordinationStub) -> None:
        while not over.is_set():
            try:
                list(stub.Fetch(pb.FetchRequest(kind=pb.OBJECT_KIND_MIRRORED, study=bytes(32)), timeout=PATIENCE))
            except grpc.RpcError as error:
                made.append(error.code())

    with open_channel(address, bed.sites["d"].credentials) as channel:
        threads = [threading.Thread(target=fetch, args=(CoordinationStub(channel),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            finish_a_study(bed, server, address, "abc")
        finally:
            over.set()
            for thread in threads:
                thread.join(PATIENCE)
    assert set(made) <= {grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_a_proxy_that_answers_a_byte_at_a_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "ANSWER_SECONDS", 0.5)
    ended = threading.Event()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            for byte in b"HTTP/1.1 200 OK\r\nX: " + bytes(1000):
                if ended.wait(0.05):
                    return
                try:
                    connection.send(bytes([byte]))
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(dialling.UnreachableError, match="closed the connection"):
            dialling.connect(Route("coordinator.example:8461", Proxy(f"127.0.0.1:{listener.getsockname()[1]}")))
        ended.set()
        thread.join(PATIENCE)
