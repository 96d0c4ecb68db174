"""The coordinator's process: gRPC over mutual TLS, health and reflection, the supervisor, a clean stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from veilsum_coordinator.certificates import POLL_SECONDS, Certificates
from veilsum_coordinator.hub import Hub
from veilsum_coordinator.journal import SqlJournal
from veilsum_coordinator.metrics import Metrics
from veilsum_coordinator.outage import Outage
from veilsum_coordinator.runner import Supervisor
from veilsum_coordinator.service.coordination import Coordination
from veilsum_coordinator.service.guard import Guard, Intake
from veilsum_coordinator.service.studies import Studies
from veilsum_coordinator.settings import CoordinatorConfig
from veilsum_privacy.database import answers, open_database
from veilsum_privacy.errors import ConfigurationError
from veilsum_privacy.identity import Role, load_credentials
from veilsum_privacy.ledger.metrics import read_mirror
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.overrides import set_variables
from veilsum_privacy.randomness import SYSTEM_RANDOM
from veilsum_privacy.runtime.hardening import allow_files
from veilsum_privacy.runtime.logs import about
from veilsum_privacy.runtime.monitoring import Heartbeat, MetricsServer
from veilsum_privacy.runtime.refreshing import Refreshed
from veilsum_proto import MAX_MESSAGE_BYTES, PACKAGE, SERVICES
from veilsum_proto.federation_pb2_grpc import add_CoordinationServicer_to_server, add_StudiesServicer_to_server
from veilsum_proto.transport import require_tls13

LOG = logging.getLogger("veilsum.coordinator")

CALLS_SECONDS = 3.0
"""How long open calls may take when the process is told to stop; uploads go on with a later attempt."""

WRITES_SECONDS = 10.0
"""How long running transactions may take then. With the rest it stays below the 30 s that Kubernetes gives."""


MOST_CONNECTIONS = 2048
"""Connections at once, over all peers; further ones are closed as they come. As many open files are asked for."""

HANDSHAKE_SECONDS = 20.0
"""How long who connects may take to show a certificate."""


def now() -> int:
    """Unix seconds."""
    return int(time.time())


def server_options(config: CoordinatorConfig) -> list[tuple[str, int]]:
    """Limits of the gRPC server."""
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_concurrent_streams", config.max_peer_streams),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", allow_files(MOST_CONNECTIONS)),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
    ]


class CoordinatorServer:
    """A coordinator: :meth:`run` serves until it is told to stop.

    Attributes:
        hub: its state, with the credentials that are in use.
        metrics_address: where the metrics are served; empty before and without.
    """

    def __init__(self, config: CoordinatorConfig, *, clock: Callable[[], int] = now) -> None:
        self._config, self._clock = config, clock
        self.metrics, self.metrics_address = Metrics(clock), ""
        self._heartbeat, self._serving = Heartbeat(), False
        self._endpoint: MetricsServer | None = None
        if config.metrics is not None:
            self._endpoint = MetricsServer(
                self.metrics.registry, config.metrics, ready=self._not_ready, alive=self._heartbeat.alive
            )
        credentials = load_credentials(config.identity, clock(), Role.COORDINATOR)
        config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        engine = open_database(config.database_place)
        mirror = Mirror(engine, credentials=credentials, clock=clock, random=SYSTEM_RANDOM)
        journal = SqlJournal(engine, mirror, Outage(config.waits.database))
        self.hub = Hub(credentials, journal, waits=config.waits, clock=clock, observer=self.metrics)
        self._database = Refreshed(lambda: answers(engine), "database", seconds=1.0)
        self._certificates = Certificates(config, self.hub, clock)
        self.metrics.watch(self.hub, Refreshed(lambda: read_mirror(engine), "mirror"), lambda: self._certificates.tls_end)

    def _not_ready(self) -> str:
        """Why nobody should be sent here now, in a word."""
        if not self._serving:
            return "stopping" if self.hub.stopping else "starting"
        self._database.get()
        return "database" if self._database.failed else ""

    async def _beat(self) -> None:
        while True:
            self._heartbeat.beat()
            await asyncio.sleep(1.0)

    async def _renew(self) -> None:
        """Look for renewed certificates; a thread of the loop's pool writes the mirror where a new key must be named."""
        while True:
            try:
                await asyncio.to_thread(self._certificates.poll)
            except Exception as error:  # the former certificates stay in use
                LOG.error("internal error while looking for certificates", exc_info=error)
            await asyncio.sleep(POLL_SECONDS)

    async def run(self, stop: asyncio.Event, *, on_ready: Callable[[str], None] | None = None) -> None:
        """Serve until ``stop`` is set.

        Raises:
            ConfigurationError: the address cannot be listened on.
        """
        config, credentials = self._config, self.hub.credentials
        guard = Guard(credentials, self._clock, self.metrics)
        intake = Intake(guard, PACKAGE, config.max_peer_streams)
        server = grpc.aio.server(interceptors=[intake], options=server_options(config))
        results = config.state / "results"
        sessions = Coordination(self.hub, guard, self._clock)
        add_CoordinationServicer_to_server(sessions, server)
        add_StudiesServicer_to_server(Studies(self.hub, guard, results, self._clock), server)
        health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        reflection.enable_server_reflection((*SERVICES, reflection.SERVICE_NAME, "grpc.health.v1.Health"), server)
        require_tls13()
        try:
            port = server.add_secure_port(config.listen, self._certificates.server_credentials())
        except RuntimeError as error:
            raise ConfigurationError(
                f"The coordinator cannot listen on {config.listen}.", "Choose a free port, or 0 to let the system choose."
            ) from error
        if self._endpoint is not None:
            self.metrics_address = self._endpoint.start()
            LOG.info("metrics are served on %s", self.metrics_address)
        await server.start()
        for service in ("", *SERVICES):
            await health.set(service, health_pb2.HealthCheckResponse.SERVING)
        supervisor = Supervisor(self.hub, results, self._clock)
        supervisor.start()
        address = f"{config.listen.rsplit(':', 1)[0]}:{port}"
        LOG.info("coordinator %s listens on %s", credentials.identity.name, address, extra=about("started"))
        if config.ready_file is not None:
            partial = config.ready_file.with_suffix(".partial")
            partial.write_text(address)
            os.replace(partial, config.ready_file)
        self._serving, beating = True, asyncio.create_task(self._beat())
        renewing = asyncio.create_task(self._renew())
        if on_ready is not None:
            on_ready(address)
        try:
            await stop.wait()
        finally:
            self._serving = False
            beating.cancel()
            renewing.cancel()
            await self._stop(server, health, sessions, supervisor)

    async def _stop(
        self, server: grpc.aio.Server, health: HealthServicer, sessions: Coordination, supervisor: Supervisor
    ) -> None:
        """Take no more calls, end the sessions, let what is being written become durable; within some seconds."""
        LOG.info("stopping: sessions end, running studies go on with the next start", extra=about("stopping"))
        self.hub.stopping = True
        self.hub.journal.outage.stop()
        await health.enter_graceful_shutdown()
        sessions.close()
        await server.stop(grace=CALLS_SECONDS)
        await asyncio.to_thread(supervisor.stop)
        if not await asyncio.to_thread(self.hub.journal.close, WRITES_SECONDS):
            LOG.error("the database did not answer; what was being written is not known to be stored", extra=about("stopped"))
        if self._endpoint is not None:
            self._endpoint.stop()
        LOG.info("stopped", extra=about("stopped"))


def serve(config: CoordinatorConfig) -> None:
    """Run a coordinator until SIGINT or SIGTERM."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await CoordinatorServer(config).run(stop)

    if given := set_variables():
        LOG.info("the environment sets %s", ", ".join(given))
    asyncio.run(main())
