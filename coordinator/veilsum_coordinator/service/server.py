"""The coordinator's process: gRPC over mutual TLS, health and reflection, the supervisor, a clean stop.

What the coordinator shows and signs with, renewed from its files while it serves.

A new TLS handshake takes what is current; open connections stay as they are, so no round is lost. The federation's identity
signs greetings, countersignatures and the mirror; the TLS certificate is the same one unless ``[tls]`` names another.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import signal
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_coordinator.service.coordination import Coordination
from veilsum_coordinator.service.guard import Guard, Intake
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.metrics import Metrics
from veilsum_coordinator.service.runner import Supervisor
from veilsum_coordinator.service.studies import Studies
from veilsum_coordinator.storage.fence import Fence
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_coordinator.storage.outage import Outage
from veilsum_node.database import open_database
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.errors import StateError, Unavailable, VeilsumError
from veilsum_node.identity import Role, load_credentials
from veilsum_node.identity.certificate import certificate_end, moment
from veilsum_node.identity.renewal import ExpiryLog, Renewal, renewed_credentials
from veilsum_node.identity.server_pair import ServerPair, load_server_pair
from veilsum_node.identity.tls import Credentials
from veilsum_node.listening import cannot_listen, check_free
from veilsum_node.overrides import set_variables
from veilsum_node.process.hardening import allow_files
from veilsum_node.process.steady_clock import RETURN_SECONDS, SteadyClock, now
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_node.storage import look_at
from veilsum_node.telemetry.endpoint import Heartbeat, MetricsServer, write_address
from veilsum_node.telemetry.logs import about
from veilsum_node.telemetry.refresh import Refreshed
from veilsum_node.transport.tls13 import require_tls13
from veilsum_privacy.ledger.metrics import read_mirror
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_proto import MAX_MESSAGE_BYTES, PACKAGE, SERVICES
from veilsum_proto.services import add_CoordinationServicer_to_server, add_StudiesServicer_to_server

POLL_SECONDS = 1.0

LOG = logging.getLogger("veilsum.coordinator")

CALLS_SECONDS = 3.0
"""How long open calls may take when the process is told to stop; uploads go on with a later attempt."""

WRITES_SECONDS = 10.0
"""How long running transactions may take then. With the rest it stays below the 30 s that Kubernetes gives."""


MOST_CONNECTIONS = 2048
"""Connections at once, over all peers; further ones are closed as they come. As many open files are asked for."""

HANDSHAKE_SECONDS = 20.0
"""How long who connects may take to show a certificate."""

IDLE_SECONDS = 60.0
"""How long a connection without an open call is kept: a participant always has one, and a peer's calls are bounded, so that
nobody can hold every connection with a certificate. Who calls again dials again by itself."""


def server_options(config: CoordinatorConfig) -> list[tuple[str, int]]:
    """Limits of the gRPC server."""
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_concurrent_streams", config.max_peer_streams),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 30_000),  # a minute by default; a slow uplink that is full may take some seconds
        ("grpc.keepalive_permit_without_calls", 1),  # else a client that is between two calls is cut off for its pings
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.so_reuseport", 0),
        ("grpc.max_connection_idle_ms", int(IDLE_SECONDS * 1000)),
        ("grpc.max_allowed_incoming_connections", allow_files(MOST_CONNECTIONS)),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
    ]


class CoordinatorServer:
    """A coordinator: :meth:`run` serves until it is told to stop.

    Attributes:
        metrics_address: where the metrics are served; empty before and without.
    """

    def __init__(self, config: CoordinatorConfig, *, clock: Callable[[], int] = now) -> None:
        self._config, self._clock = config, clock
        self.metrics, self.metrics_address = Metrics(clock), ""
        self.metrics.process.watch_storage(lambda: look_at(config.state / "coordinator.db", config.state / "results"))
        self._heartbeat, self._serving = Heartbeat(), False
        self._endpoint: MetricsServer | None = None
        if config.metrics is not None:
            self._endpoint = MetricsServer(
                self.metrics.registry, config.metrics, ready=self._not_ready, alive=self._heartbeat.alive
            )
        self._credentials = load_credentials(config.identity, clock(), Role.COORDINATOR)
        if config.tls is not None:  # what is wrong with it is better known before the database is waited for
            load_server_pair(config.tls.certificate, config.tls.key, clock())
        self._outage = Outage(config.waits.database)
        party = f"coordinator {self._credentials.identity.name}"
        self._fence = Fence(config.database_place, party, clock)
        self._hub: Hub | None = None
        self._closed = False

    @property
    def hub(self) -> Hub:
        """The coordinator's state.

        Raises:
            StateError: its database is not open yet.
        """
        if self._hub is None:
            raise StateError("The coordinator has not opened its database yet.", "Wait until it is ready.")
        return self._hub

    def open(self) -> None:
        """Take the database for this process alone and load what it holds; waits for a server that is away.

        Raises:
            HeldError: another coordinator runs on it.
            Unavailable: the server did not answer in time.
            StateError, Damage: the database is not in order.
        """
        try:
            self._outage.wait(self._open)
        except DatabaseAwayError as error:
            self._fence.release()
            raise Unavailable(
                f"The database did not answer within {self._config.waits.database} s: {error.message}",
                "Check that it runs, its URL and its password, then start the coordinator again.",
            ) from error
        except BaseException:
            self._fence.release()
            raise

    def _open(self) -> None:
        """Open it, or leave it as if this had not been tried: the next try begins anew."""
        config, clock = self._config, self._clock
        config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fence.hold(self._outage.stopping)
        database = open_database(config.database_place)
        try:
            self._fence.claim(database)
            mirror = Mirror(database, credentials=self._credentials, clock=clock, random=SYSTEM_RANDOM)
            journal = SqlJournal(database, mirror, self._outage)
            steady = SteadyClock(clock, LOG, rest=RETURN_SECONDS).keep() if clock is now else clock  # a test moves its own
            hub = Hub(self._credentials, journal, waits=config.waits, clock=clock, observer=self.metrics, steady=steady)
            self._certificates = Certificates(config, hub, clock)
            self._fence.listen(lambda: setattr(hub, "stopping", True))  # so that no study is failed for it
        except BaseException:
            database.close()
            raise
        self._database = Refreshed(database.answers, "database", seconds=1.0)
        self.metrics.watch(hub, Refreshed(lambda: read_mirror(database), "mirror"), lambda: self._certificates.tls_end)
        self._hub = hub
        self._fence.watch()

    def _not_ready(self) -> str:
        """Why nobody should be sent here now, in a word."""
        if self._hub is None:
            return "database" if self._outage.away else "starting"
        if not self._serving:
            return "stopping" if self._hub.stopping else "starting"
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
                LOG.error("internal error while checking for renewed certificates", exc_info=error)
            await asyncio.sleep(POLL_SECONDS)

    async def run(self, stop: asyncio.Event, *, on_ready: Callable[[str], None] | None = None) -> None:
        """Serve until ``stop`` is set.

        Raises:
            ConfigurationError: the address cannot be listened on, the ready file not be written.
            HeldError: another coordinator runs on the database.
            FencedError: another coordinator has taken the database over.
            Unavailable: the database did not answer in time.
            StateError, Damage: it is not in order.
        """
        if self._endpoint is not None:
            self.metrics_address = self._endpoint.start()
            LOG.info("metrics are served on %s", self.metrics_address)
        beating = asyncio.create_task(self._beat())
        try:
            if await self._opened(stop):
                loop = asyncio.get_running_loop()
                self._fence.listen(lambda: None if loop.is_closed() else loop.call_soon_threadsafe(stop.set))
                await self._serve(stop, on_ready)
        finally:
            beating.cancel()
            if self._endpoint is not None:
                self._endpoint.stop()
            if self._hub is not None:
                self._close(0.0)  # in order that is done by now; a start that failed has left it open
        if self._fence.lost:
            raise self._fence.error()

    async def _opened(self, stop: asyncio.Event) -> bool:
        """Open the database in a thread; False where the process was told to stop before that was done."""
        opening = asyncio.create_task(asyncio.to_thread(self.open))
        told = asyncio.create_task(stop.wait())
        await asyncio.wait({opening, told}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not opening.done():
            LOG.info("stopping before the database was open", extra=about("stopping"))
            self._outage.stop()
            with contextlib.suppress(StateError, Unavailable):
                await opening
            self._fence.release()
            return False
        await opening
        return True

    async def _serve(self, stop: asyncio.Event, on_ready: Callable[[str], None] | None) -> None:
        config, credentials = self._config, self.hub.credentials
        guard = Guard(credentials, self._clock, self.metrics)
        intake = Intake(guard, PACKAGE, config.max_peer_streams)
        server = grpc.aio.server(interceptors=[intake], options=server_options(config))
        results = config.state / "results"
        sessions = Coordination(self.hub, guard, self._clock)
        add_CoordinationServicer_to_server(sessions, server)
        studies = Studies(self.hub, guard, results, self._clock)
        add_StudiesServicer_to_server(studies, server)
        health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        reflection.enable_server_reflection((*SERVICES, reflection.SERVICE_NAME, "grpc.health.v1.Health"), server)
        require_tls13()
        who = "The coordinator cannot listen"
        check_free(who, config.listen)
        try:
            port = server.add_secure_port(config.listen, self._certificates.server_credentials())
        except RuntimeError as error:  # taken since
            raise cannot_listen(who, config.listen, OSError(errno.EADDRINUSE, "taken")) from error
        await server.start()
        supervisor = Supervisor(self.hub, results, self._clock, config.retention)
        renewing = asyncio.create_task(self._renew())
        try:
            for service in ("", *SERVICES):
                await health.set(service, health_pb2.HealthCheckResponse.SERVING)
            supervisor.start()
            address = f"{config.listen.rsplit(':', 1)[0]}:{port}"
            LOG.info("coordinator %s listens on %s", credentials.identity.name, address, extra=about("started"))
            if config.ready_file is not None:
                write_address(config.ready_file, address, "ready_file")
            self._serving = True
            if on_ready is not None:
                on_ready(address)
            await stop.wait()
        finally:
            self._serving = False
            renewing.cancel()
            await self._stop(server, health, (sessions, studies), supervisor)

    async def _stop(
        self, server: grpc.aio.Server, health: HealthServicer, services: tuple[Coordination, Studies], supervisor: Supervisor
    ) -> None:
        """Take no more calls, end the sessions, let what is being written become durable; within some seconds."""
        LOG.info("stopping: sessions are closed, running studies continue at the next start", extra=about("stopping"))
        self.hub.stopping = True
        self.hub.journal.outage.stop()
        await health.enter_graceful_shutdown()
        for service in services:
            service.close()
        await server.stop(grace=CALLS_SECONDS)
        await asyncio.to_thread(supervisor.stop)
        await asyncio.to_thread(self._close, WRITES_SECONDS)
        LOG.info("stopped", extra=about("stopped"))

    def _close(self, seconds: float) -> None:
        """Let what is being written end, then let another coordinator begin; does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        if not self.hub.journal.close(seconds):
            LOG.error("the database did not answer; the last writes may be lost", extra=about("stopped"))
        self._fence.release()


def serve(config: CoordinatorConfig) -> None:
    """Run a coordinator until SIGINT or SIGTERM."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def heard(*_: object) -> None:
            if not stop.is_set():
                loop.call_soon_threadsafe(stop.set)

        for number in (signal.SIGINT, signal.SIGTERM):  # not by the loop, which gives its handlers up before the process ends
            signal.signal(number, heard)
        # what was imported and loaded until here stays: a full collection need not look at it every time
        await CoordinatorServer(config).run(stop, on_ready=lambda _: gc.freeze())

    if given := set_variables():
        LOG.info("the environment sets %s", ", ".join(given))
    asyncio.run(main())


class Certificates:
    """The coordinator's certificates.

    Args:
        config: names the files.
        hub: holds the credentials that sign.
        clock: Unix seconds.

    Raises:
        ConfigurationError: the files of ``[tls]`` are not in order.
    """

    def __init__(self, config: CoordinatorConfig, hub: Hub, clock: Callable[[], int]) -> None:
        self._hub = hub
        self._pair: ServerPair | None = None
        self._pairs: Renewal[ServerPair] | None = None
        if (tls := config.tls) is not None:
            self._pair = load_server_pair(tls.certificate, tls.key, clock())
            self._pairs = Renewal(
                (tls.certificate, tls.key), lambda: load_server_pair(tls.certificate, tls.key, clock()), "certificate of [tls]"
            )
        self._credentials = renewed_credentials(config.identity, lambda: hub.credentials, clock)
        self._waiting: Credentials | None = None
        self._expiry = ExpiryLog(clock)
        self._current = self._served = self._configuration()

    @property
    def tls_end(self) -> int | None:
        """Last second of the certificate of ``[tls]`` that is in use (Unix time); None without one."""
        return None if self._pair is None else self._pair.not_after

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials that follow :meth:`poll`; every client must show a certificate of the federation."""
        fetch: Any = self._fetch  # None means "no change"; the stubs know only the other case
        return grpc.dynamic_ssl_server_credentials(self._current, fetch, require_client_authentication=True)

    def poll(self) -> None:
        """Take what was renewed, log what was refused and what ends soon. Reads files and may write the database."""
        if (found := self._credentials.poll()) is not None:
            self._waiting = found
        if self._waiting is not None:
            self._take(self._waiting)
        if self._pairs is not None and (pair := self._pairs.poll()) is not None and pair != self._pair:
            self._pair, self._current = pair, self._configuration(pair)
            LOG.info(
                "TLS certificate of %s loaded, valid until %s", pair.name, moment(pair.not_after), extra=about("certificate")
            )
        used = self._hub.credentials
        self._expiry.check(f"coordinator {used.identity.name}, its own,", used.identity.not_after)
        self._expiry.check("the federation's authority", certificate_end(used.authority))
        if self._pair is not None:
            self._expiry.check(f"{self._pair.name} for TLS", self._pair.not_after)

    def _take(self, found: Credentials) -> None:
        used = self._hub.credentials
        if (found.certificate_pem, found.key_pem) != (used.certificate_pem, used.key_pem):
            try:
                self._hub.renew(found)
            except VeilsumError as error:  # the database is away: the former stays in use until it is back
                LOG.warning("the renewed certificate is not in use yet: %s", error, extra=about("certificate"))
                return
            self._current = self._configuration()
            new_key = found.signing_key.fingerprint != used.signing_key.fingerprint
            what = f"with the new key {found.signing_key.fingerprint[:16]}" if new_key else "with the same key"
            until = moment(found.identity.not_after)
            LOG.info("renewed certificate %s in use, valid until %s", what, until, extra=about("certificate"))
        self._waiting = None

    def _configuration(self, pair: ServerPair | None = None) -> grpc.ServerCertificateConfiguration:
        used, pair = self._hub.credentials, pair or self._pair
        shown = (used.key_pem, used.certificate_pem) if pair is None else (pair.key_pem, pair.chain_pem)
        return grpc.ssl_server_certificate_configuration([shown], used.authority_pem)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake; None for no change."""
        current = self._current
        if current is self._served:
            return None
        self._served = current
        return current
