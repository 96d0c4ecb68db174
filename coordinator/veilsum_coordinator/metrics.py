"""Prometheus metrics of a coordinator: a closed list with bounded labels. Serving them is the server's."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

REASONS = ("unauthenticated", "role", "version", "malformed", "out-of-order", "busy", "not-stored", "state", "internal")


class Metrics:
    """The coordinator's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rejected = Counter(
            "veilsum_rejected_messages_total", "Messages that ended in a typed error.", ["reason"], registry=self.registry
        )
        for reason in REASONS:
            self.rejected.labels(reason)
        self.connected = Gauge("veilsum_connected_participants", "Participants with an open session.", registry=self.registry)
        self.received = Counter("veilsum_contribution_bytes_total", "Bytes of ciphertexts received.", registry=self.registry)
        self.rounds = Counter("veilsum_rounds_total", "Rounds that ended.", ["outcome"], registry=self.registry)
        for outcome in ("released", "failed"):
            self.rounds.labels(outcome)
