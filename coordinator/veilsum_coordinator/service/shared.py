"""What sites share of their own metrics, as their policies grant: checked, bounded, and shown as the coordinator's metrics.

A report takes the place of the site's report before. Whatever a site sends, it has a bounded number of series: it can name no
metric, step or kind outside the list, and over the life of this process no more than :data:`MOST_LABELS` populations and as
many versions of its software.
"""

import math
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from veilsum_node.errors import HostileInput
from veilsum_node.identity.certificate import NAME_PATTERN
from veilsum_proto import federation_pb2 as pb

MOST_PARTICIPANTS = 1024
"""Participants that have series of their own."""

MOST_SAMPLES = 256
"""Samples of one report."""

MOST_LABELS = 16
"""Populations that one participant may ever name to this process, and versions of its software."""

KEPT_SECONDS = 300
"""How long a report is shown after it came: a site reports every minute."""

STEPS = ("compute", "encrypt", "upload", "answer", "consent")

_SOFTWARE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,63}")


@dataclass(frozen=True)
class _Family:
    """A shared metric: its name, what it tells, its second label, which labels and values it takes."""

    name: str
    help: str
    label: str = ""
    labels: Callable[[str], bool] = lambda text: not text
    values: Callable[[float], bool] = lambda value: value >= 0


_FAMILIES = {
    pb.SHARED_METRIC_EPSILON_SPENT: _Family(
        "veilsum_shared_epsilon_spent",
        "Epsilon spent of a population, as its site reports it.",
        "population",
        lambda text: NAME_PATTERN.fullmatch(text) is not None,
    ),
    pb.SHARED_METRIC_EPSILON_BUDGET: _Family(
        "veilsum_shared_epsilon_budget",
        "Budget of a population, as its site reports it.",
        "population",
        lambda text: NAME_PATTERN.fullmatch(text) is not None,
        lambda value: value > 0,
    ),
    pb.SHARED_METRIC_LEDGER_VERIFIED: _Family(
        "veilsum_shared_ledger_verified",
        "Whether a site's ledger verified, as the site reports it.",
        values=lambda value: value in (0.0, 1.0),
    ),
    pb.SHARED_METRIC_STEP_SECONDS: _Family(
        "veilsum_shared_step_seconds",
        "Mean time that a site's steps took, as the site reports it.",
        "step",
        lambda text: text in STEPS,
    ),
    pb.SHARED_METRIC_CERTIFICATE_EXPIRY: _Family(
        "veilsum_shared_certificate_expiry_timestamp_seconds", "When a site's certificate expires, as the site reports it."
    ),
    pb.SHARED_METRIC_SOFTWARE: _Family(
        "veilsum_shared_software_info",
        "Software of a site, as the site reports it; always 1.",
        "software",
        lambda text: _SOFTWARE.fullmatch(text) is not None,
        lambda value: value == 1.0,
    ),
}

Samples = dict[tuple[int, str], float]
"""Values by metric and label."""


def read_report(request: pb.ReportRequest) -> Samples:
    """Check a report.

    Raises:
        HostileInput: none or too many samples, an unknown metric, a label or value that the metric does not take, or one
            sample twice.
    """
    if not 0 < len(request.samples) <= MOST_SAMPLES:
        raise HostileInput(f"A report has 1 to {MOST_SAMPLES} samples.")
    found: Samples = {}
    for sample in request.samples:
        family = _FAMILIES.get(sample.metric)
        if family is None:
            raise HostileInput("A report names a metric that is not in the list.")
        if len(sample.label) > 64 or not family.labels(sample.label):
            raise HostileInput("A report's label is not allowed for its metric.")
        if not math.isfinite(sample.value) or not family.values(sample.value):
            raise HostileInput("A report's value is not allowed for its metric.")
        key = (sample.metric, sample.label)
        if key in found:
            raise HostileInput("A report holds a metric twice.")
        found[key] = sample.value
    if sum(metric == pb.SHARED_METRIC_SOFTWARE for metric, _ in found) > 1:
        raise HostileInput("A report names more than one software version.")
    return found


@dataclass
class _Site:
    samples: Samples = field(default_factory=dict)
    at: int = 0
    populations: set[str] = field(default_factory=set)
    software: set[str] = field(default_factory=set)


class SharedMetrics(Collector):
    """The last report of every site.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sites: dict[str, _Site] = {}

    def take(self, name: str, samples: Samples) -> None:
        """Keep a participant's report.

        Args:
            name: its certified name.
            samples: what :func:`read_report` returned.

        Raises:
            HostileInput: it has named more populations or versions by now than a site has, or there are too many sites.
        """
        kinds = (pb.SHARED_METRIC_EPSILON_SPENT, pb.SHARED_METRIC_EPSILON_BUDGET)
        with self._lock:
            if name not in self._sites and len(self._sites) >= MOST_PARTICIPANTS:
                raise HostileInput("More participants report than a federation has.")
            site = self._sites.get(name, _Site())
            populations = site.populations | {label for metric, label in samples if metric in kinds}
            software = site.software | {label for metric, label in samples if metric == pb.SHARED_METRIC_SOFTWARE}
            if max(len(populations), len(software)) > MOST_LABELS:
                raise HostileInput("A participant names more populations or versions than a site has.")
            self._sites[name] = _Site(samples, self._clock(), populations, software)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            now = self._clock()
            shown = [(name, site.samples) for name, site in self._sites.items() if now - site.at <= KEPT_SECONDS]
        for metric, family in _FAMILIES.items():
            found = GaugeMetricFamily(
                family.name, family.help, labels=["participant", *([family.label] if family.label else [])]
            )
            for name, samples in shown:
                for (kind, label), value in samples.items():
                    if kind == metric:
                        found.add_metric([name, *([label] if family.label else [])], value)
            yield found
