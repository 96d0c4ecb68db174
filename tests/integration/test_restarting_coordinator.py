"""A coordinator that is killed in the middle of a handshake or a call: what is said of it, and that analysts' calls go on."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.network import running_server
from support.processes import lasting_port
from veilsum.remote import connect
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_node.errors import Misuse
from veilsum_node.transport.connection import probe_tls
from veilsum_node.transport.dialling import BrokenOffError, UnreachableError


class Line:
    """Passes connections on to a coordinator, or breaks so many of them off as a killed process does."""

    def __init__(self, target: int = 0) -> None:
        self._target, self._left, self._after, self._reset = target, 0, 1, False
        self._pairs: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"localhost:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, connections: int, *, after: int = 1, reset: bool = False) -> None:
        """Break off what is open, and the next ``connections`` once so many bytes came; by RST where ``reset``."""
        self._left, self._after, self._reset = connections, after, reset
        while self._pairs:
            with contextlib.suppress(OSError):
                self._pairs.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut(0)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                if self._left:
                    self._left -= 1
                    if self._after:
                        near.recv(self._after)
                    if self._reset:
                        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                self._pairs += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    return make_bed(tmp_path_factory.mktemp("federation"), make_data("abc", 5, 1))


@pytest.fixture
def line(bed: TestBed) -> Iterator[tuple[Line, CoordinatorServer]]:
    with running_server(bed) as (server, address):
        made = Line(int(address.rpartition(":")[2]))
        try:
            yield made, server
        finally:
            made.close()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("after", [0, 1, 400], ids=["at once", "in the greeting", "after it"])
def test_a_connection_that_is_broken_off_is_not_another_protocol(bed: TestBed, after: int, reset: bool) -> None:
    line = Line()
    try:
        line.cut(1000, after=after, reset=reset)
        with pytest.raises(BrokenOffError, match="broke off") as caught:
            probe_tls(line.address, bed.kit.analyst.identity)
    finally:
        line.close()
    assert "try again" in caught.value.advice.lower()
    assert "TLS 1.3" not in str(caught.value)


def test_an_address_where_nothing_is_is_not_waited_for(bed: TestBed) -> None:
    port, party = lasting_port(), bed.kit.analyst
    with (
        pytest.raises(UnreachableError, match="Nothing listens"),
        connect(f"localhost:{port}", bed.analyst, party.identity, bed.clock()),
    ):
        pass


def test_a_study_is_submitted_through_a_restart(
    bed: TestBed, line: tuple[Line, CoordinatorServer], caplog: pytest.LogCaptureFixture
) -> None:
    broken, _ = line
    party = bed.kit.analyst
    caplog.set_level(logging.WARNING, "veilsum.remote")
    broken.cut(3)  # gRPC's own tries, and the handshake that explains them
    with connect(broken.address, bed.analyst, party.identity, bed.clock()) as remote:
        told = len(caplog.records)
        assert told
        study = bed.compile(make_request(schema_of(1)))
        broken.cut(3)
        key = remote.submit(study, bed.analyst)
        assert len(caplog.records) > told
        assert [item.study for item in remote.list()] == [key.hex()]
        with pytest.raises(Misuse, match="submitted before"):  # a second one of its own is still refused
            remote.submit(study, bed.analyst)


def test_a_study_whose_answer_was_lost_is_submitted_once(bed: TestBed, line: tuple[Line, CoordinatorServer]) -> None:
    broken, server = line
    study = bed.compile(make_request(schema_of(1)))
    with connect(broken.address, bed.analyst, bed.kit.analyst.identity, bed.clock()) as remote:
        key = server.hub.submit("analyst", bed.signed(study))  # what an earlier try did
        broken.cut(3)
        assert remote.submit(study, bed.analyst) == key
