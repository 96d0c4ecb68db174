"""What coordinator and participants show of a study over real gRPC, against counts by hand and an independent accountant."""

from __future__ import annotations

import math
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from support.channels import OpenChannel
from support.federation import DATASET, TestBed, make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, running_client, running_server, submit, wait_for
from support.tools import need_tool
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_node.database import Database
from veilsum_node.errors import Unavailable
from veilsum_node.telemetry.endpoint import MetricsSettings
from veilsum_node.transport.channel import open_channel
from veilsum_participant.telemetry.metrics import SiteMetrics
from veilsum_participant.telemetry.shared_metrics import samples as shared_samples
from veilsum_participant.telemetry.shared_metrics import told_seconds
from veilsum_participant.telemetry.watching import watched
from veilsum_privacy.mechanism.noise_plan import task_noise
from veilsum_privacy.study.study import Study
from veilsum_proto import SOFTWARE
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub

NAMES = ("a", "b", "c")
DECISIONS = ("approval", "decline", "expired", "policy")
DELTA = 1e-5
BUDGET = 4.0
LOOPBACK = MetricsSettings(listen="127.0.0.1:0")
SHARES = {"a": ("software", "budget", "ledger", "timings", "certificate"), "b": ("ledger",), "c": ()}


def test_a_shared_time_is_no_finer_than_a_power_of_two() -> None:
    """Times that records of thousands more would change are told alike."""
    told = {
        seconds: told_seconds(seconds) for seconds in (0.0, 1e-9, 0.1, 0.125, 0.126, 0.2, 0.2500001, 0.4, 3.0, 4.0, 1000.0)
    }
    assert list(told.values()) == [0.125, 0.125, 0.125, 0.125, 0.25, 0.25, 0.5, 0.5, 4.0, 4.0, 1024.0]


def samples(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Every sample that a registry shows, by its name and its labels' values in the order of their names."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found[sample.name, *(sample.labels[name] for name in sorted(sample.labels))] = sample.value
    return found


@dataclass
class Ran:
    """A study that ran, and who was watched."""

    bed: TestBed
    study: Study
    server: CoordinatorServer
    metrics: dict[str, SiteMetrics] = field(default_factory=dict)
    coordinator: dict[tuple[str, ...], float] = field(default_factory=dict)
    sites: dict[str, dict[tuple[str, ...], float]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    data = make_data(NAMES, 40, 3)
    bed = make_bed(tmp_path_factory.mktemp("federation"), data, budget=(BUDGET, DELTA))
    study = bed.compile(make_request(schema_of(3), epsilon=1.0))
    with ExitStack() as stack:
        server, address = stack.enter_context(running_server(bed, metrics=LOOPBACK))
        found = Ran(bed, study, server)
        for name, site in bed.sites.items():
            policy = site.config.policy.model_copy(update={"share_metrics": SHARES[name]})
            ready = bed.kit.coordinator.directory / f"{name}.metrics"
            settings = LOOPBACK.model_copy(update={"ready_file": ready})
            site.config = site.config.model_copy(update={"metrics": settings, "policy": policy})
            stack.enter_context(watched(site))
            assert isinstance(site.observer, SiteMetrics)
            found.metrics[name] = site.observer
            stack.enter_context(running_client(site, address))
        stub = StudiesStub(stack.enter_context(open_channel(address, bed.analyst)))
        key = submit(bed, stub, study)
        last = list(stub.Watch(pb.ShowRequest(study=key), timeout=240))[-1]
        assert last.phase == "finished", last.reason
        wait_for(lambda: not server.hub.ended[key].seats, "the end everywhere")
        wait_for(lambda: all(item.verified for item in found.metrics.values()), "the ledgers' verification")

        def current() -> bool:  # figures of the databases are some seconds old
            found.coordinator = samples(server.metrics.registry)
            found.sites = {name: samples(metrics.registry) for name, metrics in found.metrics.items()}
            seen = all(shown["veilsum_ledger_entries", "release-seen"] == 1 for shown in found.sites.values())
            return seen and found.coordinator["veilsum_mirror_entries",] == 4

        wait_for(current, "figures of the databases after the study")
        yield found


def test_the_coordinator_counts_rounds_and_their_phases(ran: Ran) -> None:
    shown = ran.coordinator
    assert {key: value for key, value in shown.items() if key[0] == "veilsum_rounds_total" and value} == {
        ("veilsum_rounds_total", "statistics", "released"): 1
    }
    for phase in ("contributing", "checking", "consenting", "opening"):
        assert shown["veilsum_round_phase_seconds_count", phase] == 1
        assert 0 < shown["veilsum_round_phase_seconds_sum", phase] < 30
    reasons = {key[1]: value for key, value in shown.items() if key[0] == "veilsum_round_attempts_total"}
    assert reasons == {"first": 1, "refused": 0, "absent": 0, "late": 0}
    assert shown["veilsum_open_round_started_timestamp_seconds",] == 0
    phases = {key[1]: value for key, value in shown.items() if key[0] == "veilsum_studies"}
    assert phases == {"enrolling": 0, "sealing": 0, "running": 0, "finished": 1, "failed": 0, "aborted": 0}


def test_the_coordinator_counts_who_contributed_what(ran: Ran) -> None:
    shown = ran.coordinator
    for name in NAMES:
        assert shown["veilsum_contributions_total", name] == 1
        assert shown["veilsum_contribution_bytes_total", name] == ran.sites[name]["veilsum_site_contribution_bytes_total",] > 0
        assert shown["veilsum_participant_connected", name] == 1
        assert shown["veilsum_participant_last_seen_timestamp_seconds", name] == ran.bed.clock()
        expiry = ran.bed.sites[name].credentials.identity.not_after
        assert shown["veilsum_participant_certificate_expiry_timestamp_seconds", name] == expiry
    assert shown["veilsum_connected_participants",] == 3


def test_the_noise_and_epsilon_are_those_of_the_study(ran: Ran) -> None:
    """The multiplier is S over D of the declared task; epsilon is what another accountant says of that multiplier."""
    (task,) = ran.study.tasks
    multiplier = math.sqrt(task_noise(ran.study, task, 3).variance) / task.grid
    assert ran.coordinator["veilsum_release_noise_multiplier", "statistics"] == pytest.approx(multiplier, rel=1e-12)
    epsilon = float(PLDAccountant().compose(GaussianDpEvent(multiplier)).get_epsilon(DELTA))
    for name in NAMES:
        released = ran.coordinator["veilsum_epsilon_released", DATASET, name]
        assert released == pytest.approx(epsilon, rel=0.02)
        own = ran.sites[name]
        assert own["veilsum_epsilon_spent", DATASET] == pytest.approx(released, rel=1e-9)
        assert own["veilsum_epsilon_spent", DATASET] == ran.bed.sites[name].ledger.spending(DATASET).spent
        assert own["veilsum_epsilon_reserved", DATASET] == own["veilsum_epsilon_spent", DATASET]
        assert own["veilsum_epsilon_budget", DATASET] == BUDGET
        assert own["veilsum_epsilon_left", DATASET] == BUDGET - own["veilsum_epsilon_reserved", DATASET]
        assert own["veilsum_budget_delta", DATASET] == DELTA
    assert ran.coordinator["veilsum_mirror_entries",] == 4  # genesis, receipts, consent, release


def test_a_site_counts_its_own_part(ran: Ran) -> None:
    for name in NAMES:
        shown = ran.sites[name]
        assert shown["veilsum_session_connected",] == 1
        assert shown["veilsum_session_last_contact_timestamp_seconds",] == ran.bed.clock()
        rounds = {key[1:]: value for key, value in shown.items() if key[0] == "veilsum_site_rounds_total" and value}
        assert rounds == {("statistics", "released"): 1}
        for step in ("compute", "encrypt", "upload", "answer", "consent"):
            assert shown["veilsum_site_step_seconds_count", step] == 1
            assert 0 < shown["veilsum_site_step_seconds_sum", step] < 30
        assert shown["veilsum_site_contributions_total",] == 1
        kinds = {key[1]: value for key, value in shown.items() if key[0] == "veilsum_ledger_entries"}
        held = {"genesis": 1, "budget": 1, "reserve": 1, "charge": 1, "release-seen": 1}
        assert {kind: value for kind, value in kinds.items() if value} == held
        assert set(kinds) == {*held, "key", "recovery", "free", "fault", "snapshot", "refusal", "checkpoint", *DECISIONS}
        assert shown["veilsum_ledger_verified",] == 1
        assert shown["veilsum_ledger_verified_timestamp_seconds",] == ran.bed.clock()
        assert shown["veilsum_enrolled_studies",] == shown["veilsum_studies_waiting",] == 0


def test_what_both_roles_show(ran: Ran) -> None:
    everyone = {"coordinator": ran.coordinator} | ran.sites
    credentials = {"coordinator": ran.server.hub.credentials} | {name: ran.bed.sites[name].credentials for name in NAMES}
    for name, shown in everyone.items():
        role = "coordinator" if name == "coordinator" else "participant"
        assert [value for key, value in shown.items() if key[:2] == ("veilsum_build_info", role)] == [1]
        own, authority = credentials[name].identity.not_after, credentials[name].authority.not_valid_after_utc.timestamp()
        assert shown["veilsum_certificate_expiry_timestamp_seconds", "own"] == own
        assert shown["veilsum_certificate_expiry_timestamp_seconds", "authority"] == authority
        assert sum(value for key, value in shown.items() if key[0] == "veilsum_refusals_total") == 0
        assert shown["veilsum_decode_failures_total", "message"] == shown["veilsum_decode_failures_total", "check"] == 0
        assert ("veilsum_database_errors_total",) in shown


def test_only_what_a_policy_grants_is_shared(ran: Ran) -> None:
    """One site shares all, one its verification, one nothing; what is shared is what the site's own endpoint shows."""

    def shared() -> dict[tuple[str, ...], float]:
        shown = samples(ran.server.metrics.registry)
        return {key: value for key, value in shown.items() if key[0].startswith("veilsum_shared_")}

    wait_for(lambda: ("veilsum_shared_ledger_verified", "b") in shared(), "the report of a session's start")
    for name, site in ran.bed.sites.items():  # the next minute's reports, now
        if report := shared_samples(site, ran.metrics[name]):
            with open_channel(site.config.coordinator, site.credentials) as channel:
                OpenChannel(channel, site.credentials).report(report)
    shown = shared()
    own = ran.sites["a"]
    steps = {
        step: own["veilsum_site_step_seconds_sum", step] / own["veilsum_site_step_seconds_count", step]
        for step in ("compute", "encrypt", "upload", "answer", "consent")
        if own["veilsum_site_step_seconds_count", step]
    }
    assert shown == {
        ("veilsum_shared_software_info", "a", SOFTWARE): 1,
        ("veilsum_shared_epsilon_spent", "a", DATASET): own["veilsum_epsilon_spent", DATASET],
        ("veilsum_shared_epsilon_budget", "a", DATASET): BUDGET,
        ("veilsum_shared_ledger_verified", "a"): 1,
        ("veilsum_shared_ledger_verified", "b"): 1,
        ("veilsum_shared_certificate_expiry_timestamp_seconds", "a"): ran.bed.sites["a"].credentials.identity.not_after,
        **{("veilsum_shared_step_seconds", "a", step): told_seconds(mean) for step, mean in steps.items()},
    }


def _get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_endpoints_serve_the_registries_and_readiness(ran: Ran) -> None:
    site = (ran.bed.kit.coordinator.directory / "a.metrics").read_text()
    for address in (ran.server.metrics_address, site):
        assert _get(address, "/healthz") == (200, "ok\n")
        assert _get(address, "/readyz") == (200, "ok\n")
        status, text = _get(address, "/metrics")
        assert status == 200
        assert "veilsum_build_info" in text
        assert "_created" not in text


def test_a_site_without_a_session_is_not_ready(tmp_path: Path) -> None:
    data = make_data("ab", 3)
    bed = make_bed(tmp_path, data)
    site = bed.sites["a"]
    site.config = site.config.model_copy(update={"metrics": LOOPBACK.model_copy(update={"ready_file": tmp_path / "address"})})
    with watched(site), running_client(site, "localhost:1"):
        address = (tmp_path / "address").read_text()
        assert _get(address, "/readyz") == (503, "session\n")
        assert _get(address, "/healthz") == (200, "ok\n")


def test_a_coordinator_whose_database_is_away_is_not_ready(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readiness follows the database, health does not; the metrics show the last figures."""

    def away(_: object) -> bool:
        raise Unavailable("The connection to the database was lost.")

    address, word = ran.server.metrics_address, "database\n"
    monkeypatch.setattr(Database, "reading", away)
    wait_for(lambda: _get(address, "/readyz") == (503, word), "the word that the database is away")
    assert _get(address, "/healthz") == (200, "ok\n")
    assert samples(ran.server.metrics.registry)["veilsum_mirror_entries",] == 4
    monkeypatch.undo()
    wait_for(lambda: _get(address, "/readyz") == (200, "ok\n"), "readiness once it is back")


def test_bytes_that_are_no_message_are_counted(ran: Ran) -> None:
    address = ran.bed.sites["a"].config.coordinator
    before = samples(ran.server.metrics.registry)["veilsum_decode_failures_total", "message"]
    with open_channel(address, ran.bed.sites["a"].credentials) as channel:
        call = channel.unary_unary("/veilsum.v1.Coordination/Hello", request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.RpcError):
            call(b"\xff\xff\xff\x07", timeout=PATIENCE)
    assert samples(ran.server.metrics.registry)["veilsum_decode_failures_total", "message"] == before + 1


def test_prometheus_itself_finds_nothing_to_say(ran: Ran) -> None:
    promtool = need_tool("promtool")
    for registry in (ran.server.metrics.registry, ran.metrics["a"].registry):
        done = subprocess.run(
            [promtool, "check", "metrics"], input=generate_latest(registry), capture_output=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
