"""A coordinator and participants over real gRPC with mutual TLS on loopback, in threads of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from pydantic import SecretStr

from support.federation import TestBed
from veilsum_coordinator.protocol.settings import CoordinatorConfig, Waits
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_node.identity import Authority, Credentials, Role, SigningKey, new_key_and_csr
from veilsum_node.telemetry.endpoint import MetricsSettings
from veilsum_node.transport.channel import open_channel
from veilsum_participant.front.answering import in_process
from veilsum_participant.session.client import Client
from veilsum_participant.site import Site
from veilsum_privacy.study.study import Study
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub

PATIENCE = 240.0
"""Seconds after which a test takes something for stuck; no test passes or fails by how long anything takes."""


@contextmanager
def running_server(
    bed: TestBed,
    waits: Waits | None = None,
    database: str | None = None,
    metrics: MetricsSettings | None = None,
    state: Path | None = None,
) -> Iterator[tuple[CoordinatorServer, str]]:
    """Run a coordinator of the bed's kit on a port that the system chooses; yields server and address.

    Args:
        database: URL of its database; a file by default.
        metrics: where its metrics are served; nowhere by default.
        state: its folder; two at once need two.
    """
    config = CoordinatorConfig(
        listen="127.0.0.1:0",  # of both of localhost's addresses, one may have the port taken
        identity=bed.kit.coordinator.identity,
        state=state or bed.kit.coordinator.directory / "state",
        waits=waits or Waits(grace=1),
        database=None if database is None else SecretStr(database),
        metrics=metrics,
    )
    server = CoordinatorServer(config, clock=bed.clock)
    ready = threading.Event()
    address: list[str] = []
    stopped: list[Callable[[], None]] = []

    def serve() -> None:
        async def main() -> None:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            stopped.append(lambda: loop.call_soon_threadsafe(stop.set))

            def on_ready(where: str) -> None:
                address.append(where)
                ready.set()

            await server.run(stop, on_ready=on_ready)

        asyncio.run(main())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE), "the coordinator did not start"
    try:
        yield server, f"localhost:{address[0].rpartition(':')[2]}"
    finally:
        stopped[0]()
        thread.join(10)


@contextmanager
def running_client(site: Site, address: str) -> Iterator[Client]:
    """Run a participant against the address."""
    site.config = site.config.model_copy(update={"coordinator": address})
    client = Client(site, in_process)
    thread = threading.Thread(target=client.run, daemon=True)
    thread.start()
    try:
        yield client
    finally:
        client.stop()
        thread.join(10)


@contextmanager
def wired(
    bed: TestBed, waits: Waits | None = None, database: str | None = None
) -> Iterator[tuple[CoordinatorServer, str, StudiesStub]]:
    """Run a coordinator and every participant of the bed; yields server, address and the analyst's calls."""
    with ExitStack() as stack:
        server, address = stack.enter_context(running_server(bed, waits, database))
        for site in bed.sites.values():
            stack.enter_context(running_client(site, address))
        yield server, address, StudiesStub(stack.enter_context(open_channel(address, bed.analyst)))


def certified(bed: TestBed, name: str, role: Role, *, at: int, days: int = 1) -> Credentials:
    """Credentials with a fresh key that the bed's authority signed at some time."""
    key, csr = new_key_and_csr(name, role)
    authority = Authority.load(bed.kit.authority, lambda: at)
    pem = authority.sign(csr, role=role, name=name, days=days)
    signing_key = SigningKey.from_pem(key)
    return replace(bed.analyst, signing_key=signing_key, key_pem=key, certificate_pem=pem)


def submit(bed: TestBed, stub: StudiesStub, study: Study | bytes) -> bytes:
    """Submit a study as its analyst; returns its digest."""
    return bytes(stub.Submit(pb.SubmitRequest(study=bed.signed(study)), timeout=PATIENCE).study)


def wait_for(condition: Callable[[], bool], what: str = "the condition") -> None:
    """Poll until the condition holds.

    Raises:
        AssertionError: it does not within :data:`PATIENCE`.
    """
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true within {PATIENCE:.0f} s"
        time.sleep(0.02)
