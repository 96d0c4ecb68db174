"""Metrics that a coordinator and a participant have in common."""

import math
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from veilsum_node.driver_faults import fault_count
from veilsum_node.errors import RefusalCode, VeilsumError
from veilsum_node.identity import Credentials
from veilsum_node.process.software import installed_version
from veilsum_node.storage import Storage

DECODE_STAGES = ("message", "check")


class ProcessMetrics:
    """What every process shows: its version, certificates, database errors, refusals, what could not be decoded.

    Args:
        role: coordinator or participant.
        registry: where they are registered.
    """

    def __init__(self, role: str, registry: CollectorRegistry) -> None:
        self._registry = registry
        build = Gauge("veilsum_build_info", "The software; always 1.", ["role", "version"], registry=registry)
        build.labels(role, installed_version()).set(1)
        self.refusals = Counter("veilsum_refusals_total", "Refusals, by each reason given.", ["reason"], registry=registry)
        for code in RefusalCode:
            self.refusals.labels(code.value)
        self.decode_failures = Counter(
            "veilsum_decode_failures_total", "Messages and sums that could not be read.", ["stage"], registry=registry
        )
        for stage in DECODE_STAGES:
            self.decode_failures.labels(stage)
        registry.register(_DatabaseCollector())

    def watch(self, credentials: Callable[[], Credentials], tls: Callable[[], int | None] = lambda: None) -> None:
        """Show when the certificates of the present credentials expire, and a TLS certificate beside them; once.

        Args:
            tls: last second of a TLS certificate that is not the federation's (Unix time), None where there is none.
        """
        self._registry.register(_CertificateCollector(credentials, tls))

    def watch_storage(self, look: Callable[[], Storage]) -> None:
        """Show a state's size, its disk and its last backup; once."""
        self._registry.register(_StorageCollector(look))


class _DatabaseCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "veilsum_database_errors", "Transactions that the database refused or lost.", value=fault_count()
        )


class _StorageCollector(Collector):
    def __init__(self, look: Callable[[], Storage]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        try:
            found = self._look()
        except VeilsumError:  # what could not be read is not a number: the alerts wait for one
            found = None
        values = (None, None, None) if found is None else (found.state, found.free, found.backed_up)
        texts = {
            "veilsum_state_bytes": "Size of the state's files.",
            "veilsum_state_disk_free_bytes": "What this process may still write where they lie.",
            "veilsum_backup_timestamp_seconds": "When `veilsum` last backed the state up; NaN where it never did.",
        }
        for (name, text), value in zip(texts.items(), values, strict=True):
            yield GaugeMetricFamily(name, text, value=math.nan if value is None else float(value))


class _CertificateCollector(Collector):
    def __init__(self, credentials: Callable[[], Credentials], tls: Callable[[], int | None]) -> None:
        self._credentials, self._tls = credentials, tls

    def collect(self) -> Iterator[Metric]:
        credentials = self._credentials()
        expiry = GaugeMetricFamily(
            "veilsum_certificate_expiry_timestamp_seconds", "When a certificate expires.", labels=["certificate"]
        )
        expiry.add_metric(["own"], float(credentials.identity.not_after))
        expiry.add_metric(["authority"], credentials.authority.not_valid_after_utc.timestamp())
        if (until := self._tls()) is not None:
            expiry.add_metric(["tls"], float(until))
        yield expiry
