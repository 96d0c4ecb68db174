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

from veilsum_coordinator.hub import Hub
from veilsum_coordinator.journal import SqlJournal
from veilsum_coordinator.metrics import Metrics
from veilsum_coordinator.runner import Supervisor
from veilsum_coordinator.service.coordination import Coordination
from veilsum_coordinator.service.guard import Guard, Intake
from veilsum_coordinator.service.studies import Studies
from veilsum_coordinator.settings import CoordinatorConfig
from veilsum_privacy.database import open_database
from veilsum_privacy.errors import ConfigurationError
from veilsum_privacy.identity import Role, load_credentials
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.randomness import SYSTEM_RANDOM
from veilsum_proto import MAX_MESSAGE_BYTES, PACKAGE, SERVICES
from veilsum_proto.federation_pb2_grpc import add_CoordinationServicer_to_server, add_StudiesServicer_to_server
from veilsum_proto.transport import require_tls13

LOG = logging.getLogger("veilsum.coordinator")


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
    ]


class CoordinatorServer:
    """A coordinator: :meth:`run` serves until it is told to stop."""

    def __init__(self, config: CoordinatorConfig, *, clock: Callable[[], int] = now) -> None:
        self._config, self._clock = config, clock
        self.metrics = Metrics()
        self.credentials = load_credentials(config.identity, clock(), Role.COORDINATOR)
        config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        engine = open_database(config.database_place)
        mirror = Mirror(engine, credentials=self.credentials, clock=clock, random=SYSTEM_RANDOM)
        self.hub = Hub(self.credentials, SqlJournal(engine, mirror), waits=config.waits, clock=clock)

    async def run(self, stop: asyncio.Event, *, on_ready: Callable[[str], None] | None = None) -> None:
        """Serve until ``stop`` is set.

        Raises:
            ConfigurationError: the address cannot be listened on.
        """
        config, credentials = self._config, self.credentials
        guard = Guard(credentials, self._clock, self.metrics)
        intake = Intake(guard, PACKAGE, config.max_peer_streams)
        server = grpc.aio.server(interceptors=[intake], options=server_options(config))
        results = config.state / "results"
        add_CoordinationServicer_to_server(Coordination(self.hub, guard, self._clock), server)
        add_StudiesServicer_to_server(Studies(self.hub, guard, results, self._clock), server)
        health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        reflection.enable_server_reflection((*SERVICES, reflection.SERVICE_NAME, "grpc.health.v1.Health"), server)
        require_tls13()
        tls = grpc.ssl_server_credentials(
            [(credentials.key_pem, credentials.certificate_pem)], credentials.authority_pem, require_client_auth=True
        )
        try:
            port = server.add_secure_port(config.listen, tls)
        except RuntimeError as error:
            raise ConfigurationError(
                f"The coordinator cannot listen on {config.listen}.", "Choose a free port, or 0 to let the system choose."
            ) from error
        await server.start()
        for service in ("", *SERVICES):
            await health.set(service, health_pb2.HealthCheckResponse.SERVING)
        supervisor = Supervisor(self.hub, results, self._clock, self.metrics)
        supervisor.start()
        address = f"{config.listen.rsplit(':', 1)[0]}:{port}"
        LOG.info("coordinator %s listens on %s", credentials.identity.name, address)
        if config.ready_file is not None:
            partial = config.ready_file.with_suffix(".partial")
            partial.write_text(address)
            os.replace(partial, config.ready_file)
        if on_ready is not None:
            on_ready(address)
        try:
            await stop.wait()
        finally:
            await health.enter_graceful_shutdown()
            supervisor.stop()
            await server.stop(grace=1.0)


def serve(config: CoordinatorConfig) -> None:
    """Run a coordinator until SIGINT or SIGTERM."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await CoordinatorServer(config).run(stop)

    asyncio.run(main())
