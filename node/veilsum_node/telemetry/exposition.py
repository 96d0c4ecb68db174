"""A registry as a page that Prometheus reads."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder

Page = Callable[[bool], bytes]
"""Gives the metrics: in OpenMetrics if that is wanted, else in the older text format."""

# The library's own negotiation fails on some headers and repeats a caller's version in its answer: it hears these two alone.
OPENMETRICS = "application/openmetrics-text"
_ENCODERS = {wanted: choose_encoder(f"{OPENMETRICS};version=1.0.0" if wanted else "text/plain") for wanted in (False, True)}

KINDS = {wanted: kind for wanted, (_, kind) in _ENCODERS.items()}
"""Content types of a page, by whether it is in OpenMetrics."""

disable_created_metrics()  # type: ignore[no-untyped-call]  # the list of metrics is closed: no *_created beside every counter


def page_of(registry: CollectorRegistry) -> Page:
    """What collects a registry."""
    return lambda wanted: _ENCODERS[wanted][0](registry)
