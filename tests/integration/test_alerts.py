"""From a participant that is killed to a notification: real processes, a real Prometheus and Alertmanager, shipped rules."""

from __future__ import annotations

import http.client
import ipaddress
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from support.network import PATIENCE, wait_for
from support.processes import Processes
from support.tools import need_tool
from support.watching import DEPLOY, Watched, seconds, watching
from veilsum_coordinator.protocol.settings import Waits

SITES = ("north", "south", "west")
RATIO, LEFT = "site_population:veilsum_budget_used:ratio", "site_certificate:veilsum_certificate_left:seconds"
REMOTE = "south"
"""The site whose endpoint is reached as one on another host: by TLS, with a token."""


def write_pair(directory: Path) -> None:
    """A self-signed certificate for this machine's loopback address, its key, and a token."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "metrics")])
    start = datetime.now(UTC) - timedelta(hours=1)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(start).not_valid_after(start + timedelta(days=2))
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = builder.add_extension(host, critical=False).sign(key, hashes.SHA256())
    (directory / "metrics.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for file, content in (("metrics.key", private), ("metrics.token", b"0123456789abcdef" * 2)):
        (directory / file).touch(mode=0o600)
        (directory / file).write_bytes(content)


def serve_metrics(config: Path, *, remote: bool = False) -> None:
    """Add ``[metrics]`` to a configuration."""
    text = '\n[metrics]\nlisten = "127.0.0.1:0"\nready_file = "metrics.address"\n'
    if remote:
        write_pair(config.parent)
        text += 'certificate = "metrics.pem"\nkey = "metrics.key"\ntoken_file = "metrics.token"\n'
    config.write_text(config.read_text() + text)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Processes]:
    need_tool("prometheus")
    need_tool("alertmanager")
    rng = np.random.default_rng(5)
    data = {name: (rng.normal(size=(40, 2)), rng.integers(0, 2, 40)) for name in SITES}
    processes = Processes(tmp_path / "federation", data, waits=Waits(grace=1), budget=(None, 1e-5), max_peer_streams=16)
    for name in SITES:
        serve_metrics(processes.directory(name) / "participant.toml", remote=name == REMOTE)
    try:
        processes.heal()
        yield processes
    finally:
        processes.stop()


def scrapes(network: Processes) -> list[dict[str, Any]]:
    """The shipped jobs, the example for other hosts among them, with this federation's addresses."""
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    start = text.index("  # - job_name:")
    text = text[:start] + text[start:].replace("  # ", "  ")
    jobs: list[dict[str, Any]] = yaml.safe_load(text)["scrape_configs"]
    address = {name: (network.directory(name) / "metrics.address").read_text() for name in SITES}
    coordinator, near, remote = jobs
    coordinator["static_configs"][0]["targets"] = [(network.kit.coordinator.directory / "metrics-address").read_text()]
    near["static_configs"] = [{"targets": [address[name]], "labels": {"site": name}} for name in SITES if name != REMOTE]
    remote["static_configs"][0]["targets"] = [address[REMOTE]]
    assert remote["static_configs"][0]["labels"]["site"] == REMOTE
    remote["authorization"]["credentials_file"] = str(network.directory(REMOTE) / "metrics.token")
    remote["tls_config"]["ca_file"] = str(network.directory(REMOTE) / "metrics.pem")
    return jobs


@pytest.mark.system  # test_alert_rules.py runs the rules by default
def test_a_killed_participant_is_told(network: Processes, tmp_path: Path) -> None:
    with watching(tmp_path / "watching", scrapes(network)) as watched:
        follow(network, watched)
    refuse_others(network)


def follow(network: Processes, watched: Watched) -> None:
    """Nothing is told of a healthy federation; a site's end is, and its return."""
    everyone = {"veilsum-coordinator": 1.0, **dict.fromkeys(SITES, 1.0)}
    wait_for(lambda: watched.query("up") == everyone, "every endpoint scraped")
    wait_for(lambda: watched.query("veilsum_participant_connected") == dict.fromkeys(SITES, 1.0), "three sessions scraped")
    assert watched.query('veilsum_session_connected{job="veilsum-participant"}') == dict.fromkeys(SITES, 1.0)
    # Recorded once for each site and certificate, though the coordinator and the site both tell of it.
    wait_for(lambda: watched.query(RATIO) == dict.fromkeys(SITES, 0.0), "no share of an unlimited budget")
    wait_for(lambda: watched.query(f'count({LEFT}{{certificate="own"}})') == {"": 4.0}, "everyone's certificate")
    certificates = watched.query(f'{LEFT}{{certificate="own"}}')
    assert set(certificates) == set(everyone)
    assert all(364 < left / 86_400 < 366 for left in certificates.values())
    time.sleep(4)  # every waiting time of an alert on sessions and targets goes by
    wait_for(lambda: watched.query("ALERTS") == {}, "the end of whatever was pending at the start")
    assert watched.alerts() == []

    network.participants[REMOTE].kill()
    found: dict[str, Any] = {}

    def gone() -> bool:
        found.update({alert["labels"]["alertname"]: alert for alert in watched.alerts()})
        suppressed = found.get("VeilsumTargetDown", {}).get("status", {}).get("state") == "suppressed"
        return "VeilsumParticipantGone" in found and suppressed

    wait_for(gone, "the alert at Alertmanager")
    alert = found["VeilsumParticipantGone"]
    assert alert["status"]["state"] == "active"
    assert alert["labels"].items() >= {"site": REMOTE, "severity": "warning", "federation": "my-federation"}.items()
    assert alert["receivers"] == [{"name": "working-hours"}]
    assert alert["annotations"]["runbook_url"] == "docs/runbooks/participant-gone.md"
    assert found["VeilsumTargetDown"]["status"]["inhibitedBy"] == [alert["fingerprint"]]
    assert set(found) == {"VeilsumParticipantGone", "VeilsumTargetDown"}
    told = f"working-hours: firing warning VeilsumParticipantGone: {REMOTE} and the coordinator have no session"
    wait_for(lambda: told in watched.log("webhook"), "the notification")

    config = network.directory(REMOTE) / "participant.toml"  # back at the address that is scraped
    address = (network.directory(REMOTE) / "metrics.address").read_text()
    config.write_text(config.read_text().replace("127.0.0.1:0", address))
    network.heal()
    wait_for(lambda: told.replace("firing", "resolved") in watched.log("webhook"), "the end of the alert")
    wait_for(lambda: not any(a["labels"].get("site") for a in watched.alerts()), "no alert left")
    assert watched.query("up") == everyone


def refuse_others(network: Processes) -> None:
    """The metrics that Prometheus read with a token are closed to who has none."""
    address = (network.directory(REMOTE) / "metrics.address").read_text()
    context = ssl.create_default_context(cafile=str(network.directory(REMOTE) / "metrics.pem"))
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 401
    connection.close()


INHIBITED = [
    (
        {"alertname": "VeilsumTargetDown", "job": "veilsum-coordinator", "severity": "critical", "instance": "c"},
        {"alertname": "VeilsumParticipantGone", "severity": "warning", "instance": "n", "site": "a"},
        {"alertname": "VeilsumBudget80", "severity": "info", "instance": "n", "site": "a"},
    ),
    (
        {
            "alertname": "VeilsumTargetDown",
            "job": "veilsum-participant",
            "severity": "warning",
            "instance": "b",
            "site": "b",
        },
        {"alertname": "VeilsumRefusals", "job": "veilsum-participant", "severity": "info", "instance": "b", "site": "b"},
        {"alertname": "VeilsumRefusals", "job": "veilsum-participant", "severity": "info", "instance": "x", "site": "x"},
    ),
    (
        {"alertname": "VeilsumBudget95", "severity": "warning", "site": "d", "population": "p"},
        {"alertname": "VeilsumBudget80", "severity": "info", "site": "d", "population": "p"},
        {"alertname": "VeilsumBudget80", "severity": "info", "site": "d", "population": "q"},
    ),
    (
        {"alertname": "VeilsumLedgerVerificationFailed", "severity": "critical", "site": "e"},
        {"alertname": "VeilsumLedgerVerificationStale", "severity": "warning", "site": "e"},
        {"alertname": "VeilsumLedgerVerificationStale", "severity": "warning", "site": "f"},
    ),
    (
        {"alertname": "VeilsumCertificateExpiring", "severity": "critical", "site": "g", "certificate": "own"},
        {"alertname": "VeilsumCertificateExpiring", "severity": "warning", "site": "g", "certificate": "own"},
        {"alertname": "VeilsumCertificateExpiring", "severity": "warning", "site": "g", "certificate": "authority"},
    ),
    (
        {"alertname": "VeilsumDirectoryExpiring", "severity": "critical", "site": "h"},
        {"alertname": "VeilsumDirectoryExpiring", "severity": "warning", "site": "h"},
        {"alertname": "VeilsumDirectoryExpiring", "severity": "warning", "site": "i"},
    ),
]
"""An alert, one that it silences, and one that it does not."""


def test_inhibition(tmp_path: Path) -> None:
    sent = [
        [labels | {"federation": f"f{index}"} for labels in case]  # the cases have nothing to do with each other
        for index, case in enumerate(INHIBITED)
    ]
    with watching(tmp_path, []) as watched:
        for case in sent:
            watched.send(*case)

        def states() -> list[list[str]]:
            shown = {frozenset(alert["labels"].items()): alert["status"]["state"] for alert in watched.alerts()}
            return [[shown.get(frozenset(labels.items()), "absent") for labels in case] for case in sent]

        wait_for(lambda: states() == [["active", "suppressed", "active"]] * len(sent), f"inhibition, not {states()}")


def test_spans() -> None:
    assert [seconds(span) for span in ("30s", "5m", "1h", "7d", "1h30m")] == [30, 300, 3600, 604_800, 5400]
