"""One caller's misbehaviour on real connections: bombs, slow streams, many connections. Others' study ends all the same."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
from fuzzing.driver import resident

from support.federation import TestBed, make_bed, make_request, schema_of
from support.network import running_client, running_server, wait_for
from veilsum_coordinator import server as server_module
from veilsum_coordinator.members import StudyPhase
from veilsum_coordinator.methods.compile import compile_study
from veilsum_coordinator.server import CoordinatorServer
from veilsum_coordinator.service import guard
from veilsum_participant import route
from veilsum_participant.channel import open_channel
from veilsum_privacy.identity import Label
from veilsum_privacy.randomness import SYSTEM_RANDOM
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.federation_pb2_grpc import CoordinationStub, StudiesStub

CONNECTIONS = 24
SECONDS = 3.0


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestBed, CoordinatorServer, str]]:
    """A coordinator that waits for nobody long and takes few connections."""
    rng = np.random.default_rng(1)
    data = {name: (rng.uniform(-1, 1, (4, 2)), rng.integers(0, 2, 4)) for name in "abcd"}
    bed = make_bed(tmp_path_factory.mktemp("hurried"), data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "MOST_CONNECTIONS", CONNECTIONS)
        patch.setattr(server_module, "HANDSHAKE_SECONDS", 1.0)
        patch.setattr(guard.Intake.__init__, "__defaults__", (SECONDS,))
        with running_server(bed) as (server, address):
            yield bed, server, address


def finish_a_study(bed: TestBed, server: CoordinatorServer, address: str, names: str) -> None:
    """Submit a study of some participants and wait for its result."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(running_client(bed.sites[name], address))
        study = a_study(bed, names)
        analyst = StudiesStub(stack.enter_context(open_channel(address, bed.analyst)))
        signature = bed.analyst.signing_key.sign(Label.STUDY, study)
        signed = pb.StudyObject(study=study, signature=signature, certificate=bed.analyst.identity.certificate)
        key = analyst.Submit(pb.SubmitRequest(study=signed), timeout=10, wait_for_ready=True).study
        machine = server.hub.studies[key].machine
        wait_for(lambda: machine.phase is StudyPhase.FINISHED, 30, "the study's result")


def a_study(bed: TestBed, names: str) -> bytes:
    """A study without noise of the sites of these names."""
    request = make_request(schema_of(2), epsilon=None)
    return compile_study(
        request,
        federation_id=bed.kit.federation_id,
        coordinator="coordinator",
        participants=list(names),
        clock=bed.clock,
        random=SYSTEM_RANDOM,
    ).to_bytes()


def test_a_compressed_message_is_not_inflated_beyond_the_limit(hurried: tuple[TestBed, CoordinatorServer, str]) -> None:
    """64 MiB of zeros are 64 KiB when compressed; the limit of a message holds for what comes out."""
    bed, _, address = hurried
    credentials = bed.sites["a"].credentials
    tls = grpc.ssl_channel_credentials(credentials.authority_pem, credentials.key_pem, credentials.certificate_pem)
    bomb = bytes(64 << 20)
    with grpc.secure_channel(address, tls) as channel:
        call = channel.unary_unary("/veilsum.v1.Coordination/Hello", request_serializer=lambda data: data)
        with pytest.raises(grpc.RpcError) as raised:
            call(bomb, timeout=20, compression=grpc.Compression.Gzip)
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
    assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED}


def _waiting(ended: threading.Event) -> Iterator[pb.SealedBox]:
    ended.wait(60)
    yield from ()


def test_connections_without_a_handshake_are_bounded_and_closed(hurried: tuple[TestBed, CoordinatorServer, str]) -> None:
    bed, server, address = hurried
    host, _, port = address.rpartition(":")
    before = resident()
    held = [socket.create_connection((host, int(port)), timeout=20) for _ in range(10 * CONNECTIONS)]
    try:
        finish_a_study(bed, server, address, "abc")
        for connection in held:  # by the server: either there was no room for it, or it took too long
            assert _closed(connection)
    finally:
        for connection in held:
            connection.close()
    assert resident() - before < 64 << 20


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
                list(stub.Fetch(pb.FetchRequest(kind=pb.OBJECT_KIND_MIRRORED, study=bytes(32)), timeout=10))
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
                thread.join(20)
    assert set(made) <= {grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_a_proxy_that_answers_a_byte_at_a_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "ANSWER_SECONDS", 0.5)
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
        with pytest.raises(route.UnreachableError, match="broke off"):
            route.Proxy(f"127.0.0.1:{listener.getsockname()[1]}").connect("coordinator.example:8461")
        ended.set()
        thread.join(10)
