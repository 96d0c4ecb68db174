"""Reports of shared metrics at the coordinator: what it takes, and that nobody gets more series than a site has."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from support import reports
from support.reports import BUDGET, EXPIRY, HOSTILE, SOFTWARE, SPENT, STEP, VERIFIED, sample
from veilsum_coordinator.service.metrics import Metrics
from veilsum_coordinator.service.shared import KEPT_SECONDS, MOST_LABELS, MOST_PARTICIPANTS, STEPS, SharedMetrics, read_report
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity
from veilsum_participant.site import SiteStep
from veilsum_proto import federation_pb2 as pb

HONEST = [
    sample(SPENT, "records", 0.5),
    sample(BUDGET, "records", 4.0),
    sample(VERIFIED, value=0.0),
    sample(STEP, "compute", 0.25),
    sample(EXPIRY, value=1.9e9),
    sample(SOFTWARE, "veilsum 0.2.0"),
]


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shared(clock: Clock) -> SharedMetrics:
    return SharedMetrics(clock)


def shown(shared: SharedMetrics) -> dict[tuple[str, ...], float]:
    return {
        (item.name.removeprefix("veilsum_shared_"), *item.labels.values()): item.value
        for family in shared.collect()
        for item in family.samples
    }


def take(shared: SharedMetrics, name: str, *found: pb.SharedSample) -> None:
    shared.take(name, read_report(pb.ReportRequest(samples=found)))


def test_a_report_is_shown_as_it_came(shared: SharedMetrics) -> None:
    take(shared, "a", *HONEST)
    assert shown(shared) == {
        ("epsilon_spent", "a", "records"): 0.5,
        ("epsilon_budget", "a", "records"): 4.0,
        ("ledger_verified", "a"): 0.0,
        ("step_seconds", "a", "compute"): 0.25,
        ("certificate_expiry_timestamp_seconds", "a"): 1.9e9,
        ("software_info", "a", "veilsum 0.2.0"): 1.0,
    }


def test_the_next_report_takes_its_place_and_an_old_one_goes(shared: SharedMetrics, clock: Clock) -> None:
    take(shared, "a", *HONEST)
    take(shared, "b", sample(VERIFIED))
    take(shared, "a", sample(SPENT, "records", 0.75))
    assert shown(shared) == {("epsilon_spent", "a", "records"): 0.75, ("ledger_verified", "b"): 1.0}
    clock.now += KEPT_SECONDS
    take(shared, "b", sample(VERIFIED))
    assert len(shown(shared)) == 2
    clock.now += 1
    assert shown(shared) == {("ledger_verified", "b"): 1.0}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_reports_change_nothing(shared: SharedMetrics, fault: str) -> None:
    take(shared, "a", *HONEST)
    before = shown(shared)
    for name in ("a", "b"):
        with pytest.raises(HostileInput):
            take(shared, name, *HOSTILE[fault])
    assert shown(shared) == before


def test_no_site_has_more_populations_or_versions_than_its_share(shared: SharedMetrics) -> None:
    """Not in one report, and not in many of them."""
    accepted = 0
    for number in range(100):
        try:
            take(shared, "a", sample(SPENT, f"p{number}"), sample(SOFTWARE, f"veilsum {number % 2}"))
            accepted += 1
        except HostileInput:
            continue
    assert accepted == MOST_LABELS
    for number in range(100):
        try:
            take(shared, "b", sample(SOFTWARE, f"veilsum {number}"))
            accepted += 1
        except HostileInput:
            continue
    assert accepted == 2 * MOST_LABELS
    take(shared, "a", sample(BUDGET, "p3"))  # a name that it has had
    assert ("epsilon_budget", "a", "p3") in shown(shared)


def test_no_more_sites_report_than_a_federation_has(shared: SharedMetrics) -> None:
    for number in range(MOST_PARTICIPANTS):
        take(shared, f"site-{number}", sample(VERIFIED))
    with pytest.raises(HostileInput, match="More participants"):
        take(shared, "one-more", sample(VERIFIED))
    take(shared, "site-7", sample(VERIFIED, value=0.0))
    assert len(shown(shared)) == MOST_PARTICIPANTS


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-1, 8),
            st.sampled_from(["", "records", "compute", "veilsum 1", 'x"} 1', "A", "a\nb"]) | st.text(max_size=80),
            st.floats(),
        ),
        max_size=20,
    )
)
def test_whatever_is_taken_is_well_formed(found: list[tuple[int, str, float]]) -> None:
    """Any report ends in a typed error, or in samples that all are finite and of known names, and in text that parses back."""
    shared = SharedMetrics(Clock())
    try:
        take(shared, "a", *(sample(metric, label, value) for metric, label, value in found))
    except HostileInput:
        assert shown(shared) == {}
        return
    values = shown(shared)
    assert len(values) == len(found) > 0
    assert all(math.isfinite(value) and value >= 0 for value in values.values())
    for name, _, *labels in values:
        assert not any(character in label for label in labels for character in '"\\\n{}')
        assert name != "step_seconds" or labels[0] in STEPS
    registry = CollectorRegistry()
    registry.register(shared)
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert len(lines) == len(values)


def test_both_roles_know_the_same_steps() -> None:
    assert tuple(step.value for step in SiteStep) == STEPS


def _identity(name: str) -> Identity:
    return cast(Identity, SimpleNamespace(name=name, not_after=1))


def test_names_beyond_a_federation_have_no_series() -> None:
    """Sessions, uploads and contributions of more participants than a federation can have make no further series."""
    metrics = Metrics(Clock())
    for number in range(MOST_PARTICIPANTS + 50):
        name = f"site-{number}"
        metrics.opened(_identity(name))
        metrics.received(name, 10)
        metrics.contributed(name)
    for counter in (metrics.contributions, metrics.bytes):
        (family,) = counter.collect()
        assert len(family.samples) == MOST_PARTICIPANTS
    assert len(metrics._expiries) == MOST_PARTICIPANTS
    hub: Any = SimpleNamespace(
        sessions={
            f"site-{number}": SimpleNamespace(name=f"site-{number}", connected=True, last_seen=1)
            for number in range(MOST_PARTICIPANTS + 50)
        },
        studies={},
        ended={},
        credentials=SimpleNamespace(
            identity=_identity("coordinator"), authority=SimpleNamespace(not_valid_after_utc=datetime.now(UTC))
        ),
    )
    mirror: Any = SimpleNamespace(
        get=lambda: SimpleNamespace(
            entries=3, epsilon={(f"site-{site}", f"set-{number}"): 1.0 for site in range(1100) for number in range(20)}
        )
    )
    metrics.watch(hub, mirror)
    counts: dict[str, int] = {}
    for family in metrics.registry.collect():
        for item in family.samples:
            if "participant" in item.labels:
                counts[item.name] = counts.get(item.name, 0) + 1
    assert max(counts.values()) == 16 * MOST_PARTICIPANTS
    assert {name for name, count in counts.items() if count > MOST_PARTICIPANTS} == {"veilsum_epsilon_released"}


def test_the_hostile_reports_are_all_different() -> None:
    assert len({tuple(item.SerializeToString() for item in found) for found in reports.HOSTILE.values()}) == len(HOSTILE)
