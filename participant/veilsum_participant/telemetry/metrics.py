"""Prometheus metrics of a participant: a closed list with bounded labels. docs/metrics.md says what each one tells.

Counters are kept as events come; what the site's database knows is read when somebody asks, in short transactions that only
read and not more often than every few seconds. No round waits for it. Everything stays at the site but what its policy shares
(:mod:`.shared_metrics`).
"""

import logging
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from veilsum_node.errors import RefusalCode
from veilsum_node.storage import look_at
from veilsum_node.telemetry.endpoint_settings import MetricsSettings
from veilsum_node.telemetry.exposition import page_of
from veilsum_node.telemetry.heartbeat import Heartbeat
from veilsum_node.telemetry.process_metrics import ProcessMetrics
from veilsum_node.telemetry.refresh import Refreshed
from veilsum_participant.site import AttemptOutcome, Site, SiteObserver, SiteStep, Stage
from veilsum_participant.store.pending import count_waiting
from veilsum_participant.store.studies import count_enrolled
from veilsum_participant.telemetry.elsewhere import EndpointElsewhere
from veilsum_participant.telemetry.shared_metrics import Reporter, SiteFigures
from veilsum_participant.worker.starting import WorkerStarter
from veilsum_privacy.ledger.metrics import SITE_KINDS, LedgerWatch

LOG = logging.getLogger("veilsum.participant")

OTHER = "other"
"""The label of methods that are not, or no longer, among the policy's."""

_SECONDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800)


class SiteMetrics(SiteObserver):
    """A participant's metrics in a registry of their own.

    Args:
        site: whose; it is not told to observe it, see :func:`veilsum_participant.telemetry.metrics.monitored`.

    Attributes:
        figures: what the site's database knows, some seconds old at most.
        verified: whether the ledger's last verification succeeded; None before the first.
    """

    def __init__(self, site: Site) -> None:
        registry = self.registry = CollectorRegistry()
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        self._site, self._clock, self._methods = site, site.clock, set(site.config.policy.methods)
        self._reporter: Reporter | None = None
        process = ProcessMetrics("participant", registry)
        process.watch(lambda: site.credentials)
        process.watch_storage(lambda: look_at(site.config.state))
        self._refusals, self._unreadable = process.refusals, process.decode_failures
        self._connected = gauge("veilsum_session_connected", "Whether the session with the coordinator is open.")
        self._contact = gauge(
            "veilsum_session_last_contact_timestamp_seconds", "When the coordinator last said something; 0 before."
        )
        self._elsewhere = gauge(
            "veilsum_session_held_elsewhere",
            "Whether the last session was refused because another process with this identity has one.",
        )
        self._rounds = counter("veilsum_site_rounds_total", "Attempts at rounds that ended here.", ["method", "outcome"])
        self._steps = Histogram(
            "veilsum_site_step_seconds", "How long steps of rounds took.", ["step"], buckets=_SECONDS, registry=registry
        )
        self._contributions = counter("veilsum_site_contributions_total", "Contributions uploaded.")
        self._faults = counter(
            "veilsum_site_computation_faults_total", "Rounds whose computation failed on this site's records."
        )
        self._cut = counter(
            "veilsum_site_cut_sums_total", "Rounds whose sums were cut off at what the study's max_records records can reach."
        )
        self._bytes = counter("veilsum_site_contribution_bytes_total", "Bytes of these contributions.")
        self._verified = gauge("veilsum_ledger_verified", "Whether the last verification of the ledger succeeded.")
        self._verified_at = gauge(
            "veilsum_ledger_verified_timestamp_seconds", "When the ledger was last verified, with whatever result; 0 before."
        )
        self.verified: bool | None = None
        self._opened = False
        self._verified.set(math.nan)
        self._heartbeat = Heartbeat()
        self._preset()
        watch = LedgerWatch(site.database)

        def read() -> SiteFigures:
            with site.database.reading() as connection:
                enrolled, waiting = count_enrolled(connection), count_waiting(connection)
            return SiteFigures(watch.read(), enrolled, waiting)

        self.figures = Refreshed(read, "ledger")
        registry.register(_SiteCollector(self.figures))
        gauge(
            "veilsum_directory_expiry_timestamp_seconds", "When the directory ends that the pins come from; NaN without one."
        ).set(math.nan if site.directory is None else site.directory.expires)

        unmatched = gauge(
            "veilsum_dataset_unmatched_ratio",
            "At the start, the largest share of a column's cells that match nothing in the site's schema, in whole percents.",
            ("dataset",),
        )
        withheld = gauge("veilsum_dataset_withheld", "Whether that is more than the site takes part with.", ("dataset",))
        for name in site.config.datasets:
            share = site.unmatched.get(name)
            unmatched.labels(name).set(math.nan if share is None else math.ceil(100 * share) / 100)
            withheld.labels(name).set(site.withheld(name))

    def _preset(self) -> None:
        for method in (*sorted(self._methods), OTHER):
            for outcome in AttemptOutcome:
                self._rounds.labels(method, outcome.value)
        for step in SiteStep:
            self._steps.labels(step.value)

    def alive(self) -> bool:
        """Whether the client's loop turned lately."""
        return self._heartbeat.alive()

    def not_ready(self) -> str:
        """Why the site cannot take part in a round now, in a word; empty if it can."""
        if self._site.database.write_fault:
            return "database"
        return "" if self._opened else "session"

    def means(self) -> dict[SiteStep, float]:
        """Mean time of each step that was done, in seconds."""
        found: dict[SiteStep, float] = {}
        for family in self._steps.collect():
            values = {(sample.name.rpartition("_")[2], sample.labels["step"]): sample.value for sample in family.samples}
            for step in SiteStep:
                if count := values["count", step.value]:
                    found[step] = values["sum", step.value] / count
        return found

    # -- what the site's protocol and client tell --------------------------------------------------------------------------

    def verification(self, succeeded: bool) -> None:
        self.verified = succeeded
        self._verified.set(float(succeeded))
        self._verified_at.set(self._clock())

    def took(self, step: SiteStep, seconds: float) -> None:
        self._steps.labels(step.value).observe(seconds)

    def ended(self, method: str, outcome: AttemptOutcome, count: int = 1) -> None:
        self._rounds.labels(method if method in self._methods else OTHER, outcome.value).inc(count)

    def refused(self, codes: Collection[RefusalCode]) -> None:
        for code in codes:
            self._refusals.labels(code.value).inc()

    def failed(self) -> None:
        self._faults.inc()

    def cut(self) -> None:
        self._cut.inc()

    def contributed(self, size: int) -> None:
        self._contributions.inc()
        self._bytes.inc(size)

    def unreadable(self, stage: Stage) -> None:
        self._unreadable.labels(stage.value).inc()

    def session_opened(self, send: Callable[..., None]) -> None:
        self._opened = True
        self._connected.set(1.0)
        self.heard()
        self._reporter = Reporter(self._site, self, send)

    def session_ended(self) -> None:
        self._opened = False
        self._connected.set(0.0)
        if self._reporter is not None:
            self._reporter.stop()

    def held_elsewhere(self, held: bool) -> None:
        self._elsewhere.set(float(held))

    def heard(self) -> None:
        self._contact.set(self._clock())

    def turned(self) -> None:
        self._heartbeat.beat()


class _SiteCollector(Collector):
    """What the site's database knows."""

    def __init__(self, figures: Refreshed[SiteFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        figures = self._figures.get()
        families = [
            GaugeMetricFamily(f"veilsum_{name}", text, labels=["population"])
            for name, text in (
                ("epsilon_spent", "Epsilon of all charged releases, by the budget's rule and delta."),
                ("epsilon_reserved", "Epsilon of charged and open releases together."),
                ("epsilon_budget", "The budget's epsilon; infinite where it is unlimited."),
                ("epsilon_left", "The budget's epsilon less what is charged and open."),
                ("budget_delta", "The budget's delta."),
            )
        ]
        entries = GaugeMetricFamily("veilsum_ledger_entries", "Entries of the ledger.", labels=["kind"])
        waiting = GaugeMetricFamily("veilsum_studies_waiting", "Studies that wait for the operator's word.")
        enrolled = GaugeMetricFamily("veilsum_enrolled_studies", "Studies that the site is enrolled in.")
        if figures is not None:
            for name, found in figures.ledger.populations.items():
                bound = math.inf if found.budget.epsilon is None else found.budget.epsilon
                values = (found.spent, found.reserved, bound, found.left, found.budget.delta)
                for family, value in zip(families, values, strict=True):
                    family.add_metric([name], value)
            for kind in SITE_KINDS:
                entries.add_metric([kind.value], float(figures.ledger.entries[kind]))
            waiting.add_metric([], float(figures.waiting))
            enrolled.add_metric([], float(figures.enrolled))
        yield from (*families, entries, waiting, enrolled)


@contextmanager
def monitored(site: Site, starter: WorkerStarter | None = None, address: str = "") -> Iterator[SiteMetrics]:
    """Count what a site does, and serve its metrics where it is configured; arguments and errors as of
    :func:`~veilsum_participant.telemetry.watching.watched`."""
    metrics = SiteMetrics(site)
    settings = site.config.metrics
    with ExitStack() as stack:
        if settings is not None:
            stack.callback(_served(metrics, settings, starter, address))
        site.observer = metrics
        yield metrics


def _served(
    metrics: SiteMetrics, settings: MetricsSettings, starter: WorkerStarter | None, address: str
) -> Callable[[], None]:
    """Serve metrics; what ends that."""
    if starter is not None:
        page = page_of(metrics.registry)
        endpoint = EndpointElsewhere(starter, page, ready=metrics.not_ready, alive=metrics.alive)
        LOG.info("metrics are served on %s", address)
        return endpoint.stop
    from veilsum_node.telemetry.endpoint import MetricsServer  # HTTP and TLS, which a participant's guard does without

    server = MetricsServer(metrics.registry, settings, ready=metrics.not_ready, alive=metrics.alive)
    LOG.info("metrics are served on %s", server.start())
    return server.stop
