"""Prometheus metrics of a coordinator: a closed list with bounded labels. docs/metrics.md says what each one tells.

Counters are kept as events come; what the hub and the mirror know is read when somebody asks. Reading takes neither the hub's
lock nor the database's, so that no round waits for it.
"""

import math
import time
from collections import Counter as Counting
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.observer import AttemptReason, StudyObserver
from veilsum_coordinator.protocol.rounds import Round, RoundPhase
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.shared import MOST_PARTICIPANTS, SharedMetrics
from veilsum_node.errors import RefusalCode
from veilsum_node.identity import Identity
from veilsum_node.telemetry.process_metrics import ProcessMetrics
from veilsum_node.telemetry.refresh import Refreshed
from veilsum_privacy.ledger.metrics import MirrorFigures
from veilsum_privacy.study.study import Study

REASONS = (
    "unauthenticated", "role", "version", "malformed", "out-of-order", "busy", "held", "not-stored", "state", "internal",
)  # fmt: skip

PHASES = (RoundPhase.CONTRIBUTING, RoundPhase.CHECKING, RoundPhase.CONSENTING, RoundPhase.OPENING)
"""Phases of a round that takes time."""

MOST_DATASETS = 16
"""Datasets of one participant whose released epsilon is shown."""

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Metrics(StudyObserver):
    """The coordinator's metrics in a registry of their own.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        registry = self.registry = CollectorRegistry()
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        self.process = ProcessMetrics("coordinator", registry)
        self.refusals, self.decode_failures = self.process.refusals, self.process.decode_failures
        self.rejected = counter("veilsum_rejected_messages_total", "Messages that ended in a typed error.", ["reason"])
        self.rounds = counter("veilsum_rounds_total", "Rounds that ended.", ["method", "outcome"])
        self.phases = Histogram(
            "veilsum_round_phase_seconds",
            "How long rounds stay in a phase, over all attempts.",
            ["phase"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.attempts = counter("veilsum_round_attempts_total", "Attempts at rounds, by the reason they began.", ["reason"])
        self.contributions = counter("veilsum_contributions_total", "Complete contributions received.", ["participant"])
        self.bytes = counter("veilsum_contribution_bytes_total", "Bytes of contributions received.", ["participant"])
        self.twins = counter(
            "veilsum_sessions_held_total",
            "Sessions refused because another process with the same identity had one.",
            ["participant"],
        )
        self.noise = gauge(
            "veilsum_release_noise_multiplier",
            "Noise standard deviation over sensitivity of the method's last release.",
            ["method"],
        )
        self.shared = SharedMetrics(clock)
        registry.register(self.shared)
        self._names: set[str] = set()
        self._expiries: dict[str, int] = {}
        self._since: dict[int, tuple[RoundPhase, float]] = {}
        self._preset()

    def _preset(self) -> None:
        for reason in REASONS:
            self.rejected.labels(reason)
        for method in METHODS:
            self.noise.labels(method)
            for outcome in (RoundPhase.RELEASED, RoundPhase.FAILED):
                self.rounds.labels(method, outcome.value)
        for phase in PHASES:
            self.phases.labels(phase.value)
        for why in AttemptReason:
            self.attempts.labels(why.value)

    def watch(self, hub: Hub, mirror: Refreshed[MirrorFigures], tls: Callable[[], int | None] = lambda: None) -> None:
        """Show what a hub and its mirror know, the certificates of the hub's credentials, and the end of a TLS one; once."""
        self.process.watch(lambda: hub.credentials, tls)
        self.registry.register(_HubCollector(hub, self._clock, self._expiries))
        self.registry.register(_MirrorCollector(mirror))

    def opened(self, identity: Identity) -> None:
        """A participant with this certificate opens its session."""
        if self._admits(identity.name):
            self._expiries[identity.name] = identity.not_after

    def held(self, name: str) -> None:
        """A session was refused because the participant has one already."""
        if self._admits(name):
            self.twins.labels(name).inc()

    def _admits(self, name: str) -> bool:
        """Whether a participant has series of its own: names come from verified certificates only, and are bounded."""
        if name not in self._names:
            if len(self._names) >= MOST_PARTICIPANTS:
                return False
            self._names.add(name)
            self.contributions.labels(name)
            self.bytes.labels(name)
            self.twins.labels(name)
        return True

    # -- what machines tell, under the hub's lock --------------------------------------------------------------------------

    def moved(self, study: Study, current: Round) -> None:
        now = time.perf_counter()
        former = self._since.pop(id(current), None)
        if former is not None:
            self.phases.labels(former[0].value).observe(now - former[1])
        if current.phase in PHASES:
            self._since[id(current)] = current.phase, now
        elif study.method in METHODS:
            self.rounds.labels(study.method, current.phase.value).inc()
            if current.phase is RoundPhase.RELEASED:
                multiplier = math.sqrt(current.plan.noise.variance) / current.plan.declaration.grid
                self.noise.labels(study.method).set(multiplier)

    def attempted(self, reason: AttemptReason) -> None:
        self.attempts.labels(reason.value).inc()

    def refused(self, codes: Collection[RefusalCode]) -> None:
        for code in codes:
            self.refusals.labels(code.value).inc()

    def received(self, name: str, size: int) -> None:
        if self._admits(name):
            self.bytes.labels(name).inc(size)

    def contributed(self, name: str) -> None:
        if self._admits(name):
            self.contributions.labels(name).inc()

    def unopened(self) -> None:
        self.decode_failures.labels("check").inc()


class _HubCollector(Collector):
    """Sessions, studies and open rounds: copies of the hub's tables, taken without its lock."""

    def __init__(self, hub: Hub, clock: Callable[[], int], expiries: dict[str, int]) -> None:
        self._hub, self._clock, self._expiries = hub, clock, expiries

    def collect(self) -> Iterator[Metric]:
        sessions = list(islice(self._hub.sessions.copy().values(), MOST_PARTICIPANTS))
        connected = GaugeMetricFamily(
            "veilsum_participant_connected", "Whether a participant's session is open.", labels=["participant"]
        )
        seen = GaugeMetricFamily(
            "veilsum_participant_last_seen_timestamp_seconds",
            "When a participant's session was last open.",
            labels=["participant"],
        )
        for session in sessions:
            connected.add_metric([session.name], float(session.connected))
            seen.add_metric([session.name], float(self._clock() if session.connected else session.last_seen))
        yield connected
        yield seen
        yield GaugeMetricFamily(
            "veilsum_connected_participants",
            "Participants with an open session.",
            value=sum(session.connected for session in sessions),
        )
        expiry = GaugeMetricFamily(
            "veilsum_participant_certificate_expiry_timestamp_seconds",
            "When the certificate of a participant's last session expires.",
            labels=["participant"],
        )
        for name, until in self._expiries.copy().items():
            expiry.add_metric([name], float(until))
        yield expiry
        yield from self._studies()

    def _studies(self) -> Iterator[Metric]:
        machines = [entry.machine for entry in self._hub.studies.copy().values()]
        ended = self._hub.ended.copy().values()
        count = Counting([*(machine.phase for machine in machines), *(study.phase for study in ended)])
        phases = GaugeMetricFamily("veilsum_studies", "Studies by phase.", labels=["phase"])
        for phase in StudyPhase:
            phases.add_metric([phase.value], float(count[phase]))
        yield phases
        rounds = [machine.round for machine in machines if not machine.phase.over]
        yield GaugeMetricFamily(
            "veilsum_open_round_started_timestamp_seconds",
            "When the oldest open round began; 0 where none is open.",
            value=min((current.started for current in rounds if current is not None), default=0),
        )


class _MirrorCollector(Collector):
    """What the mirror has seen released."""

    def __init__(self, mirror: Refreshed[MirrorFigures]) -> None:
        self._mirror = mirror

    def collect(self) -> Iterator[Metric]:
        epsilon = GaugeMetricFamily(
            "veilsum_epsilon_released",
            "Epsilon at delta 1e-5 of this coordinator's releases, by its mirror.",
            labels=["participant", "dataset"],
        )
        entries = GaugeMetricFamily("veilsum_mirror_entries", "Entries of the mirror.")
        if (figures := self._mirror.get()) is not None:
            shown: dict[str, int] = {}
            for (name, dataset), value in sorted(figures.epsilon.items()):
                shown[name] = shown.get(name, 0) + 1
                if len(shown) <= MOST_PARTICIPANTS and shown[name] <= MOST_DATASETS:
                    epsilon.add_metric([name, dataset], value)
            entries.add_metric([], figures.entries)
        yield epsilon
        yield entries
