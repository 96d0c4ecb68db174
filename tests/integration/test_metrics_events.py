"""What is counted when rounds do not go as they should: refusals, retries, late and absent members, sums that do not open."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from support.federation import DATASET, TestBed, make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, wait_for
from veilsum.local.federation import LocalFederation
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_coordinator.protocol.settings import CoordinatorConfig, Waits
from veilsum_coordinator.service.fetching import Fetching
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.metrics import Metrics
from veilsum_coordinator.service.runner import HubFederation, RoundLostError
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_node.database import after_commit, open_database
from veilsum_node.errors import ConfigurationError, Damage, HostileInput, Refusal, RefusalCode, Unavailable
from veilsum_node.identity.certificate import load_certificate
from veilsum_node.telemetry.endpoint import MetricsSettings
from veilsum_node.telemetry.refresh import Refreshed
from veilsum_participant.boundary.verifying import LedgerSaid
from veilsum_participant.protocol.contributions import Contributions
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.protocol.openings import Openings
from veilsum_participant.telemetry.metrics import SiteMetrics
from veilsum_participant.telemetry.watching import Verifier
from veilsum_participant.telemetry.watching import watched as watching
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.metrics import LedgerWatch, read_mirror
from veilsum_privacy.securesum.context import Assignment
from veilsum_proto import federation_pb2 as pb

NAMES = ("a", "b", "c")


@dataclass
class Watched:
    """A federation in this process, everyone of it watched, with a study whose keys are exchanged."""

    bed: TestBed
    hub: Hub
    local: LocalFederation
    metrics: Metrics
    sites: dict[str, SiteMetrics]
    key: bytes
    label: str

    def sum(self, wait: Callable[[], Any] | None = None) -> Any:
        return HubFederation(self.hub, self.key, wait or self.local.step, self.bed.clock).sum(self.label)

    def of(self, name: str, who: str = "", **labels: str) -> float:
        registry = (self.sites[who] if who else self.metrics).registry
        found = registry.get_sample_value(f"veilsum_{name}", labels)
        assert found is not None, name
        return found

    def outcomes(self, who: str) -> dict[str, float]:
        return {
            outcome: self.of("site_rounds_total", who, method="statistics", outcome=outcome)
            for outcome in ("released", "given-up", "refused")
        }

    def attempts(self) -> dict[str, float]:
        return {reason: self.of("round_attempts_total", reason=reason) for reason in ("first", "refused", "absent", "late")}

    def rounds(self) -> tuple[float, float]:
        released, failed = (
            self.of("rounds_total", method="statistics", outcome=outcome) for outcome in ("released", "failed")
        )
        return released, failed


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    data = make_data(NAMES)
    bed = make_bed(tmp_path, data, budget=(4.0, 1e-5), min_cohort=2)
    waits = Waits(contribute=100, grace=10)
    metrics = Metrics(bed.clock)
    hub = Hub(bed.hub.credentials, bed.hub.journal, waits=waits, clock=bed.clock, observer=metrics)
    metrics.watch(hub, Refreshed(lambda: read_mirror(hub.journal.database), "mirror", seconds=0.0))
    sites = {}
    for name, site in bed.sites.items():
        sites[name] = site.observer = SiteMetrics(site)
    local = LocalFederation(hub, {name: ParticipantCore(site) for name, site in bed.sites.items()}, bed.clock)
    study = bed.compile(make_request(schema_of(2), min_cohort=2))
    key = local.submit(study, bed.analyst)
    local.prepare(key)
    return Watched(bed, hub, local, metrics, sites, key, study.tasks[0].label)


def _refusing(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, name: str, refusal: Refusal) -> None:
    """Let one site refuse in a method of its protocol."""
    honest = getattr(kind, method)

    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        if self._site.name == name:
            raise refusal
        return honest(self, *arguments, **more)

    monkeypatch.setattr(kind, method, call)


def test_a_refused_attempt(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """One site refuses for two reasons: both roles count both, the others give up, and the next attempt is released."""
    refusal = Refusal.of(
        [Refusal(RefusalCode.BUDGET, "No."), Refusal(RefusalCode.NOISE, "No."), Refusal(RefusalCode.NOISE, "!")]
    )
    assert refusal is not None
    _refusing(monkeypatch, Contributions, "on_assignment", "c", refusal)
    assert watched.sum().cohort == ("a", "b")
    watched.local.settle()
    assert watched.attempts() == {"first": 1, "refused": 1, "absent": 0, "late": 0}
    assert watched.rounds() == (1, 0)
    for who in ("", "c"):
        for code in RefusalCode:
            expected = code in (RefusalCode.BUDGET, RefusalCode.NOISE)
            assert watched.of("refusals_total", who, reason=code.value) == expected
    for who in ("a", "b"):
        assert watched.outcomes(who) == {"released": 1, "given-up": 1, "refused": 0}
        assert watched.of("refusals_total", who, reason="budget-exceeded") == 0
        assert watched.of("site_step_seconds_count", who, step="encrypt") == 2
        assert watched.of("contributions_total", participant=who) == 2
        assert watched.of("site_contributions_total", who) == 2
        assert watched.of("contribution_bytes_total", participant=who) == watched.of("site_contribution_bytes_total", who)
    assert watched.outcomes("c") == {"released": 0, "given-up": 0, "refused": 1}
    assert watched.of("round_phase_seconds_count", phase="contributing") == 1  # over both attempts
    assert watched.metrics.registry.get_sample_value("veilsum_contributions_total", {"participant": "c"}) is None


def test_a_refused_consent_loses_the_round(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    _refusing(monkeypatch, Openings, "on_answers", "b", Refusal(RefusalCode.CHECK, "No."))
    with pytest.raises(RoundLostError):
        watched.sum()
    watched.local.settle()
    assert watched.rounds() == (0, 1)
    assert watched.of("studies", phase="failed") == 1
    assert watched.of("open_round_started_timestamp_seconds") == 0
    assert watched.outcomes("b") == {"released": 0, "given-up": 1, "refused": 1}
    assert watched.outcomes("a") == {"released": 0, "given-up": 0, "refused": 0}  # it paid, and saw no release
    for phase, count in {"contributing": 1, "checking": 1, "consenting": 1, "opening": 0}.items():
        assert watched.of("round_phase_seconds_count", phase=phase) == count


def test_a_late_member(watched: Watched) -> None:
    """A member that says nothing until the deadline costs an attempt; the open round is shown with its beginning meanwhile."""
    core, began = watched.local.cores.pop("c"), watched.bed.clock()
    seen = []

    def wait() -> None:
        watched.local.step()
        current = watched.hub.studies[watched.key].machine.round
        if current is not None and current.attempts == 1:
            seen.append(watched.of("open_round_started_timestamp_seconds"))
            watched.bed.clock.now += 60

    assert watched.sum(wait).cohort == ("a", "b")
    assert set(seen) == {began}
    assert watched.attempts() == {"first": 1, "refused": 0, "absent": 0, "late": 1}
    assert watched.of("open_round_started_timestamp_seconds") == 0
    assert core.site.name == "c"


def test_an_absent_member(watched: Watched) -> None:
    watched.local.cores.pop("c")
    sessions = watched.hub.sessions
    left: list[int] = []

    def wait() -> None:
        if not left:
            watched.hub.disconnect("c", sessions["c"].serial)
            left.append(watched.bed.clock())
        watched.bed.clock.now += 10
        watched.local.step()

    assert watched.sum(wait).cohort == ("a", "b")
    assert watched.attempts() == {"first": 1, "refused": 0, "absent": 1, "late": 0}
    assert watched.of("participant_connected", participant="c") == 0
    assert watched.of("participant_last_seen_timestamp_seconds", participant="c") == left[0]
    assert watched.of("participant_last_seen_timestamp_seconds", participant="a") == watched.bed.clock()
    assert watched.of("connected_participants") == 2


def test_a_sum_that_does_not_hold_is_refused_before_anybody_pays(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """One member finds what it is shown wrong: the others go on without it."""
    fixed = Fetching.pieces

    def wrong(self: Fetching, name: str, kind: Any, *rest: Any) -> Any:
        found = fixed(self, name, kind, *rest)
        if name != "c" or kind != pb.OBJECT_KIND_FIXED:
            return found
        shown = pb.FixedObject.FromString(b"".join(found))
        shown.fixed.signature = bytes(70)
        return [shown.SerializeToString()]

    monkeypatch.setattr(Fetching, "pieces", wrong)
    assert watched.sum().cohort == ("a", "b")
    assert [watched.of("decode_failures_total", who, stage="check") for who in NAMES] == [0, 0, 1]
    assert (
        watched.of("refusals_total", "c", reason="check-invalid") == watched.of("refusals_total", reason="check-invalid") == 1
    )
    assert watched.attempts() == {"first": 1, "refused": 1, "absent": 0, "late": 0}
    assert watched.of("round_phase_seconds_count", phase="checking") == 2


@pytest.mark.parametrize("step", ["open_words", "verify_check_words", "unmask_values"])
def test_a_sum_that_does_not_open(watched: Watched, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def wrong(*_: Any) -> Any:
        raise HostileInput("A value is out of bounds.")

    monkeypatch.setattr(f"veilsum_coordinator.protocol.rounds.{step}", wrong)
    with pytest.raises(RoundLostError):
        watched.sum()
    assert watched.of("decode_failures_total", stage="check") == 1
    assert watched.rounds() == (0, 1)
    assert watched.of("release_noise_multiplier", method="statistics") == 0


def test_a_study_that_is_aborted_in_its_round(watched: Watched) -> None:
    def wait() -> None:
        watched.local.step()
        if watched.hub.studies[watched.key].machine.rounds[-1].phase is RoundPhase.CONSENTING:
            watched.hub.abort(watched.key, "the test wants it")

    with pytest.raises(RoundLostError):
        watched.sum(wait)
    watched.local.settle()
    assert watched.rounds() == (0, 1)
    assert watched.of("studies", phase="aborted") == 1
    assert not watched.metrics._since  # nothing is kept of rounds that ended


def test_an_objects_bytes_that_are_none_are_counted(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched.hub.objects, "fetch", lambda *_: b"\xff\xff\xff\x07")
    study = watched.bed.compile(make_request(schema_of(2), min_cohort=2))
    watched.local.submit(study, watched.bed.analyst)
    watched.local.step()
    for who in NAMES:
        assert watched.of("decode_failures_total", who, stage="message") == 1
        assert watched.of("refusals_total", who, reason="internal-error") == 1
    assert watched.of("refusals_total", reason="internal-error") == 3


def test_open_and_freed_reservations_are_told_apart(watched: Watched) -> None:
    """Between upload and consent a release is reserved and not spent; a budget that is changed shows at the next reading."""
    site = watched.bed.sites["a"]
    watch = LedgerWatch(site.database)
    seen = []

    def wait() -> None:
        watched.local.step()
        found = watch.read()
        seen.append((found.populations[DATASET].spent, found.populations[DATASET].reserved, found.entries[Kind.RESERVE]))

    watched.sum(wait)
    spent = site.ledger.spending(DATASET).spent
    assert (0.0, spent, 1) in seen
    assert seen[-1] == (spent, spent, 1)
    with site.database.transaction() as connection:
        site.ledger.set_budget(connection, DATASET, None, 1e-6, reason="test", operator="test", adaptive="gaussian")
        site.ledger.set_budget(connection, "others", 1.0, 1e-5, reason="test", operator="test", adaptive="gaussian")
    found = watch.read()
    assert found.populations[DATASET].budget.epsilon is None
    assert found.populations[DATASET].left == float("inf")
    assert found.populations[DATASET].spent == site.ledger.spending(DATASET).spent > spent
    assert found.populations["others"].left == 1.0
    assert found.entries[Kind.BUDGET] == 3


def test_a_watch_follows_a_ledger_that_was_replaced(watched: Watched, tmp_path: Path) -> None:
    watched.sum()
    watch = LedgerWatch(watched.bed.sites["a"].database)
    before = watch.read()
    watch._database = watched.bed.sites["b"].database  # as where a backup is put in its place
    assert watch.read().entries == before.entries == LedgerWatch(watched.bed.sites["b"].database).read().entries
    other = open_database(tmp_path / "empty.db")
    watch._database = other
    with pytest.raises(Damage):
        watch.read()


def test_a_ledger_that_was_tampered_with_is_shown_and_logged(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    site, metrics = watched.bed.sites["a"], watched.sites["a"]
    watched.sum()
    assert str(metrics.registry.get_sample_value("veilsum_ledger_verified")) == "nan"
    assert metrics.registry.get_sample_value("veilsum_ledger_verified_timestamp_seconds") == 0
    with caplog.at_level(logging.INFO):
        verifier = Verifier(site)
        wait_for(lambda: metrics.verified is True, "the verification of the start")
        with site.database.transaction() as connection:
            connection.execute(text("DROP TRIGGER IF EXISTS ledger_no_update"))
            connection.execute(text("UPDATE ledger SET cohort_size = 2 WHERE kind = 'charge'"))
        watched.bed.clock.now += 5
        verifier.verify()
    verifier.stop()
    assert metrics.registry.get_sample_value("veilsum_ledger_verified") == 0
    assert metrics.registry.get_sample_value("veilsum_ledger_verified_timestamp_seconds") == watched.bed.clock()
    assert "does not verify: Ledger entry 4 fails" in caplog.text
    with pytest.raises(Refusal, match="Ledger entry 4 fails") as refused:
        Contributions(site).on_assignment(bytes(32), Assignment(1, 1, "sums", (), bytes(32), 1), b"")
    assert refused.value.code is RefusalCode.LEDGER
    with pytest.raises(RoundLostError, match="1 participants are left"):
        watched.sum()


def test_nothing_is_released_before_the_verification_of_the_start(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart opens no window in which a ledger at fault serves."""
    site, go, answers = watched.bed.sites["a"], threading.Event(), []

    def verify(self: Verifier) -> None:
        assert go.wait(PATIENCE)
        site.ledger_fault = "Ledger entry 4 fails"

    def contribute() -> None:
        with pytest.raises(Refusal) as refused:
            Contributions(site).on_assignment(bytes(32), Assignment(1, 1, "sums", (), bytes(32), 1), b"")
        answers.append(refused.value.code)

    monkeypatch.setattr(Verifier, "verify", verify)
    verifier, contributing = Verifier(site), threading.Thread(target=contribute, daemon=True)
    contributing.start()
    contributing.join(0.3)
    assert contributing.is_alive()
    go.set()
    contributing.join(PATIENCE)
    verifier.stop()
    assert answers == [RefusalCode.LEDGER]


def test_what_another_process_finds_counts_as_what_this_one_finds(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    site, metrics = watched.bed.sites["a"], watched.sites["a"]
    said = [LedgerSaid(entries=4), LedgerSaid(fault="Ledger entry 4 fails\x1b[2J")]

    def verify(authority: bytes) -> LedgerSaid:
        assert load_certificate(authority) == site.credentials.authority
        if not said:
            raise Unavailable("What verifies the ledger ended.")
        return said.pop(0)

    verifier = Verifier(site, verify)
    wait_for(lambda: metrics.verified is True, "the verification of the start")
    verifier.verify()
    assert metrics.verified is False
    verifier.verify()  # nothing is known then but what was known before
    verifier.stop()
    assert "cannot be verified: What verifies the ledger ended" in caplog.text
    with pytest.raises(Refusal, match="Ledger entry 4 fails\ufffd") as refused:
        Contributions(site).on_assignment(bytes(32), Assignment(1, 1, "sums", (), bytes(32), 1), b"")
    assert refused.value.code is RefusalCode.LEDGER


def test_a_ledger_that_cannot_be_read_keeps_the_last_result(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    site, metrics = watched.bed.sites["a"], watched.sites["a"]
    metrics.verification(True)
    site.config = site.config.model_copy(update={"state": site.config.state.with_name("gone.db")})
    watched.bed.clock.now += 5
    Verifier(site).stop()
    wait_for(lambda: "cannot be verified" in caplog.text, "the word in the log")
    assert metrics.verified is True
    assert metrics.registry.get_sample_value("veilsum_ledger_verified_timestamp_seconds") == watched.bed.clock() - 5


def test_mirror_figures_count_what_was_consented_to(watched: Watched) -> None:
    watched.sum()
    figures = read_mirror(watched.hub.journal.database)
    assert figures.entries == 4
    spent = {name: watched.bed.sites[name].ledger.spending(DATASET).spent for name in NAMES}
    assert figures.epsilon == {(name, DATASET): pytest.approx(spent[name]) for name in NAMES}
    assert watched.of("epsilon_released", participant="b", dataset=DATASET) == pytest.approx(spent["b"])


def test_what_follows_a_commit_does_not_follow_an_undone_transaction(watched: Watched) -> None:
    database, done = watched.bed.sites["a"].database, list[int]()
    with database.transaction() as connection:
        after_commit(connection, lambda: done.append(1))
        assert not done
    assert done == [1]

    def undone() -> None:
        with database.transaction() as connection:
            after_commit(connection, lambda: done.append(2))
            raise Refusal(RefusalCode.BUDGET, "No.")

    with pytest.raises(Refusal):
        undone()
    with database.transaction() as connection:  # the same connection of the pool
        assert connection.execute(text("SELECT 1")).scalar() == 1
    assert done == [1]


def test_an_open_endpoint_without_a_token_starts_nothing(watched: Watched, tmp_path: Path) -> None:
    """Neither role: the coordinator makes no state, and the site is not watched."""
    bed, settings = watched.bed, MetricsSettings(listen="0.0.0.0:0")
    with pytest.raises(ConfigurationError, match="not a loopback address"):
        CoordinatorServer(
            CoordinatorConfig(identity=bed.kit.coordinator.identity, state=tmp_path / "fresh", metrics=settings),
            clock=bed.clock,
        )
    assert not (tmp_path / "fresh").exists()
    site = bed.sites["a"]
    site.config = site.config.model_copy(update={"metrics": settings})
    before = site.observer
    with pytest.raises(ConfigurationError, match="not a loopback address"), watching(site):
        pass
    assert site.observer is before
