"""docs/metrics.md against the registries: every metric is documented with its type and labels, and no other is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.core import Metric

from support.federation import make_bed, make_data
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.service.metrics import Metrics
from veilsum_deploy.login.issuer import LoginMetrics
from veilsum_node.config import validate
from veilsum_node.errors import RefusalCode
from veilsum_node.identity import Authority
from veilsum_node.storage import Storage
from veilsum_node.telemetry.endpoint import MetricsSettings
from veilsum_node.telemetry.refresh import Refreshed
from veilsum_participant.settings.config import ParticipantConfig, ShareGroup
from veilsum_participant.telemetry.metrics import SiteMetrics
from veilsum_participant.telemetry.shared_metrics import SHARED
from veilsum_privacy.ledger.metrics import read_mirror

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
Rows = dict[str, tuple[str, dict[str, tuple[str, ...]]]]
"""Type and labels by metric; of a label the values that stand on the page, none where it is not a fixed list."""

SPOKEN = {
    "every code of a refusal": RefusalCode,
    "every method": METHODS,
    "the policy's methods and `other`": (*METHODS, "other"),
}


def _section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def _rows(title: str) -> Rows:
    found: Rows = {}
    for line in _section(title).splitlines():
        if line.startswith("| `veilsum_"):
            name, kind, labels, _, told = _cells(line)
            assert name not in found
            assert told
            found[name.strip("`")] = kind, dict(map(_label, labels.split("; ") if ": " in labels else labels.split(", ")))
    return {name: (kind, {key: value for key, value in labels.items() if key}) for name, (kind, labels) in found.items()}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _label(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, values = text.partition(": ")
    spoken = SPOKEN.get(values)
    named = tuple(re.findall(r"`([^`]+)`", values)) if spoken is None else tuple(str(value) for value in spoken)
    return name.strip("`"), named


def _shown(families: list[Metric]) -> Rows:
    found: Rows = {}
    for family in families:
        kind = family.type
        name = f"{family.name}_total" if kind == "counter" else family.name
        labels: dict[str, set[str]] = {label: set() for label in getattr(family, "_labelnames", ())}
        for item in family.samples:
            for label, value in item.labels.items():
                if label != "le":
                    labels.setdefault(label, set()).add(value)
        assert name not in found, f"{name} is shown twice"
        assert family.documentation
        found[name] = kind, {label: tuple(sorted(values)) for label, values in labels.items()}
    return found


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    data = make_data("ab", 3)
    bed = make_bed(tmp_path_factory.mktemp("bed"), data, budget=(1.0, 1e-5))
    metrics = Metrics(bed.clock)
    metrics.watch(bed.hub, Refreshed(lambda: read_mirror(bed.hub.journal.database), "mirror"))
    metrics.process.watch_storage(lambda: Storage(1, 1, 1, 1))
    metrics.opened(bed.sites["a"].credentials.identity)
    site = SiteMetrics(bed.sites["a"])
    logins = LoginMetrics(Authority.create(tmp_path_factory.mktemp("authority") / "made", "trial", bed.clock))
    common = {name: found for name, found in _shown(list(logins.registry.collect())).items() if name != "veilsum_build_info"}
    told = _rows("The service for logins")
    assert common == {
        name: (kind, {label: tuple(sorted(values)) for label, values in labels.items()})
        for name, (kind, labels) in told.items()
    }
    return {"Coordinator": _shown(list(metrics.registry.collect())), "Participant": _shown(list(site.registry.collect()))}


@pytest.mark.parametrize("role", ["Coordinator", "Participant"])
def test_every_metric_is_documented_and_no_other(registries: dict[str, Rows], role: str) -> None:
    documented, shown = _rows("Both roles") | _rows(role), registries[role]
    assert set(documented) == set(shown)
    for name, (kind, labels) in shown.items():
        assert documented[name][0] == kind, name
        assert set(documented[name][1]) == set(labels), name
        for label, values in documented[name][1].items():
            if values and not name.startswith("veilsum_shared_"):
                assert set(values) == set(labels[label]), f"{name}: {label}"  # all there from the start, and no other


def test_the_roles_have_only_those_in_common_that_the_page_says(registries: dict[str, Rows]) -> None:
    assert set(registries["Coordinator"]) & set(registries["Participant"]) == set(_rows("Both roles"))
    assert not set(_rows("Coordinator")) & set(_rows("Participant"))


def test_a_unit_stands_in_the_name_where_there_is_one() -> None:
    for title in ("Both roles", "Coordinator", "Participant"):
        for line in _section(title).splitlines():
            if line.startswith("| `veilsum_"):
                name, _, _, unit, _ = _cells(line)
                name = name.strip("`").removesuffix("_total")
                expected = {"_timestamp_seconds": "Unix time", "_seconds": "seconds", "_bytes": "bytes"}
                assert unit == next((word for end, word in expected.items() if name.endswith(end)), ""), name


def test_the_groups_are_those_that_a_policy_can_name() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", _section("What a site shares"), re.MULTILINE)
    assert rows == list(get_args(ShareGroup)) == list(SHARED)


def test_the_examples_are_valid() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    everything = re.sub(r"^# (?=\w+ = )", "", blocks[0], flags=re.MULTILINE)
    for text in (blocks[0], everything):
        validate(tomllib.loads(text)["metrics"], MetricsSettings, source="docs/metrics.md")
    text = 'coordinator = "localhost:1"\n[datasets.records]\npath = "records.csv"\n' + blocks[1]
    assert validate(tomllib.loads(text), ParticipantConfig, source="docs/metrics.md").policy.share_metrics == (
        "software",
        "ledger",
    )
    assert set(tomllib.loads(everything)["metrics"]) == set(MetricsSettings.model_fields)
