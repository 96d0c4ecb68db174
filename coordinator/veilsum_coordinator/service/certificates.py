"""What the coordinator shows and signs with, renewed from its files while it serves.

A new TLS handshake takes what is current; open connections stay as they are, so no round is lost. The federation's identity
signs greetings, countersignatures and the mirror; the TLS certificate is the same one unless ``[tls]`` names another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import grpc

from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_coordinator.service.hub import Hub
from veilsum_node.errors import VeilsumError
from veilsum_node.identity.certificate import certificate_end, moment
from veilsum_node.identity.renewal import ExpiryLog, Renewal, renewed_credentials
from veilsum_node.identity.tls import Credentials, ServerPair, load_server_pair
from veilsum_node.telemetry.logs import about

LOG = logging.getLogger("veilsum.coordinator")

POLL_SECONDS = 1.0


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
