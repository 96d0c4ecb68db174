"""What a site refuses, keeps, charges and forgets in a round, rule by rule: each where no other rule would refuse as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete

from support.federation import make_bed, make_data, make_request, schema_of
from support.hostile import LABEL, NAMES, Adversary, Said, altered, context_of, encoded, make_adversary
from support.shown import keep_receipt_of
from veilsum_node.errors import HostileInput, Misuse, RefusalCode
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_participant.datasets import Datasets
from veilsum_participant.local_studies import LocalStudies
from veilsum_participant.protocol import contributions, payloads
from veilsum_participant.protocol.contributions import Contributions
from veilsum_participant.protocol.payloads import Payload
from veilsum_participant.site import AttemptOutcome, Site, SiteObserver, Stage
from veilsum_participant.store.attempts import ATTEMPTS, AttemptState, add_attempt, change_attempt
from veilsum_participant.store.kept import STATES, find_kept
from veilsum_participant.store.mirrors import keep_mirror_entry, mirror_entry
from veilsum_participant.store.populations import COHORTS
from veilsum_participant.store.studies import STUDIES, StudyState, change_study
from veilsum_privacy.computation import tried as remembered
from veilsum_privacy.computation.contribution import Graphs, SitePart, SitePlace
from veilsum_privacy.computation.weights import WEIGHTS
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.kept_receipts import last_numbers
from veilsum_privacy.securesum.check_words import CheckAnswer
from veilsum_privacy.securesum.context import decode_broadcast
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.local_training import SEEDS, LocalTraining
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_proto import federation_pb2 as pb


@pytest.fixture
def fresh(tmp_path: Path) -> Adversary:
    """Without the last look at all ledgers: for a test that changes a store behind its site's back."""
    adversary = make_adversary(tmp_path)
    adversary.set_up()
    return adversary


@pytest.fixture
def attack(fresh: Adversary) -> Iterator[Adversary]:
    yield fresh
    fresh.check_ledgers()


def state_of(attack: Adversary, attempt: int = 1, name: str = "a") -> str:
    row = attack.attempt_row(name, attempt)
    assert row is not None
    return row.state.value


def restrict(attack: Adversary, name: str = "a", **changes: Any) -> None:
    site = attack.bed.sites[name]
    site.config = site.config.model_copy(update={"policy": site.config.policy.model_copy(update=changes)})


def set_budget(site: Site, epsilon: float | None) -> None:
    with site.database.transaction() as connection:
        site.ledger.set_budget(connection, "records", epsilon, 1e-5, reason="test", operator="test", adaptive="gaussian")


class Heard(SiteObserver):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, AttemptOutcome, int]] = []
        self.failures = 0
        self.stages: list[Stage] = []

    def ended(self, method: str, outcome: AttemptOutcome, count: int = 1) -> None:
        if outcome is not AttemptOutcome.REFUSED:
            self.ends.append((method, outcome, count))

    def failed(self) -> None:
        self.failures += 1

    def unreadable(self, stage: Stage) -> None:
        self.stages.append(stage)


# -- before anything is computed -------------------------------------------------------------------------------------------


def test_nothing_is_reserved_for_what_is_refused(attack: Adversary, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger at fault, a deadline that is over, a cohort whose noise cannot be drawn, an assignment that is none."""
    site = attack.bed.sites["a"]
    site.ledger_fault = "entry 4 fails"
    assert attack.assign("a", attack.assignment()).refused is RefusalCode.LEDGER
    site.ledger_fault = ""
    for late in (0, 1):
        assignment = attack.assignment(deadline=attack.bed.clock.now - late)
        assert attack.assign("a", assignment).refused is RefusalCode.ROUND

    def planned(*_: object) -> None:
        raise Misuse("A share is too small to be drawn.")

    with monkeypatch.context() as patched:
        patched.setattr(AgreedTask, "plan", planned)
        assert attack.assign("a", attack.assignment()).refused is RefusalCode.NOISE
    assert attack.kinds("a") == {"genesis": 1, "budget": 1}
    assert attack.attempt_row("a") is None


def test_no_round_before_the_keys(tmp_path: Path) -> None:
    """Neither before there is a roster nor after it."""
    attack = make_adversary(tmp_path)
    enrolments = attack.enrolments()
    assert attack.assign("a", attack.assignment()).refused is RefusalCode.KEYS
    attack.boxes(enrolments)
    assert attack.assign("a", attack.assignment()).refused is RefusalCode.KEYS
    assert attack.kinds("a")["reserve"] == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("named", "hours", "left"), [(600, 1, 600), (7200, 1, 3600), (10**8, 2, 7200), (10**8, 720, 1000)])
def test_how_long_a_reservation_lasts(fresh: Adversary, named: int, hours: int, left: int) -> None:
    """As long as the assignment, the study and the site's own policy all say, by the time that passes."""
    attack, clock = fresh, fresh.bed.clock
    attack.use(altered(attack.study, expires=clock.now + (1000 if hours == 720 else 86_400), created=clock.now))
    attack.set_up()
    restrict(attack, attempt_hours=hours)
    attack.bed.sites["a"].elapsed = lambda: 5_000
    assert attack.assign("a", attack.assignment(deadline=clock.now + named)).call == "upload"
    row = attack.attempt_row("a")
    assert row is not None
    assert row.deadline == 5_000 + left


def test_an_attempt_is_asked_for_again_until_its_time_has_passed(attack: Adversary) -> None:
    """A clock that is set forward takes no time away; one site's time passes, another's does not."""
    for site in attack.bed.sites.values():
        site.elapsed = lambda: 1_000
    assignment = attack.assignment()
    first = attack.assign("a", assignment).values[1]
    assert (first.round, first.attempt) == (1, 1)
    attack.bed.clock.now += 3_600
    again = attack.assign("a", assignment)
    assert again.values[1] == first
    attack.bed.sites["a"].elapsed = lambda: 4_599
    assert attack.assign("a", assignment).call == "upload"
    attack.bed.sites["a"].elapsed = lambda: 4_600
    assert attack.assign("a", assignment).refused is RefusalCode.ROUND


def test_a_refused_round_gives_the_one_before_it_up(attack: Adversary) -> None:
    """That is over for the coordinator: its reservation would stand in the way until its deadline."""
    assert attack.assign("a", attack.assignment()).call == "upload"
    set_budget(attack.bed.sites["a"], 0.001)
    assert attack.assign("a", attack.assignment(attempt=2)).refused is RefusalCode.BUDGET
    assert (state_of(attack), attack.kinds("a")["free"], attack.kinds("a")["refusal"]) == ("tombstone", 1, 1)
    assert attack.attempt_row("a", 2) is None


def test_only_the_attempt_that_is_named_is_given_up(attack: Adversary) -> None:
    heard = attack.bed.sites["a"].observer = Heard()
    attack.assign("a", attack.assignment(attempt=3))
    for attempt in (1, 2, 4):
        assert attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 1, attempt).call == "confirm"
    assert (state_of(attack, 3), attack.kinds("a")["free"], heard.ends) == ("payload", 0, [])
    for _ in range(2):
        assert attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 1, 3).call == "confirm"
    assert (state_of(attack, 3), attack.kinds("a")["free"]) == ("tombstone", 1)
    assert heard.ends == [("statistics", AttemptOutcome.GIVEN_UP, 1)]


# -- a task is tried without records first ---------------------------------------------------------------------------------


def test_what_was_tried_is_tried_again_on_little_and_no_more_than_so_much_is_remembered(
    attack: Adversary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator chooses names and shapes: each set of them is tried whole once, and they fill no memory. Values that it
    chooses are tried each time."""
    tried: list[list[str]] = []

    def rehearsed(_: object, arrays: dict[str, object], *, again: Records | None, graphs: Graphs, **more: object) -> None:
        if again is None:
            tried.append(sorted(arrays))
        else:
            repeated.append(again)

    repeated: list[Records] = []
    monkeypatch.setattr(remembered, "rehearse", rehearsed)
    monkeypatch.setattr(remembered, "MOST_TRIED", 2)
    own = attack.bed.sites["a"]
    own.studies = fresh = LocalStudies()
    task = fresh.agreed(attack.spied("a").agreed.study.to_bytes()).task("statistics")
    seen = []
    for name in "aabbaab":
        fresh.rehearse(task, {name: np.zeros(2)})
        seen.append(len(fresh.tried))
    assert tried == [["a"], ["b"]]
    assert len(repeated) == 5
    assert len({id(records) for records in repeated}) == 1, "they are made once"
    fresh.rehearse(task, {"a": np.zeros(3)})
    assert tried[2:] == [["a"]]
    for name in "cdefg":
        fresh.rehearse(task, {name: np.zeros(2)})
        seen.append(len(fresh.tried))
    assert max(seen) == 2
    assert seen[:3] == [1, 1, 2]
    assert [name for (name,) in tried[3:]] == list("cdefg")


def test_no_more_than_a_thousand_are_remembered() -> None:
    assert remembered.MOST_TRIED == 1024


def test_a_task_without_arrays_is_tried_once_by_each_process(attack: Adversary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enrolment tried what its rounds would try; a process that did not enrol the study tries it itself."""
    tried: list[str] = []
    monkeypatch.setattr(remembered, "rehearse", lambda task, _, **__: tried.append(task.label))
    assert attack.assign("a", attack.assignment()).call == "upload"
    assert tried == []
    attack.bed.sites["b"].studies = LocalStudies()
    assert attack.assign("b", attack.assignment()).call == "upload"
    assert tried == ["statistics"]


def test_a_task_that_fails_without_records_is_refused(attack: Adversary, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise HostileInput("it fails on no record")

    attack.bed.sites["a"].studies = LocalStudies()  # as in a process that did not enrol the study
    with monkeypatch.context() as patched:
        patched.setattr(remembered, "rehearse", failing)
        assert attack.assign("a", attack.assignment()).refused is RefusalCode.CONTEXT
    assert attack.kinds("a")["reserve"] == 0
    assert attack.assign("a", attack.assignment()).call == "upload"


# -- what the records are tells nothing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [True, False])
def test_a_computation_that_fails_is_in_the_sites_own_log_alone(
    attack: Adversary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    site, heard = attack.bed.sites["a"], Heard()
    site.observer = heard
    if fails:
        monkeypatch.setattr(Datasets, "read", lambda *_, **__: {}["no such column"])
    assert attack.assign("a", attack.assignment()).call == "upload"
    assert [item.exc_info[0] for item in caplog.records if item.levelname == "ERROR" and item.exc_info] == [KeyError] * fails
    assert heard.failures == fails
    assert attack.kinds("a") == {"genesis": 1, "budget": 1, "reserve": 1}


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("trained", [True, False])
def test_what_was_trained_before_outlives_a_failure_that_trains_nothing(
    attack: Adversary, monkeypatch: pytest.MonkeyPatch, fails: bool, trained: bool
) -> None:
    before, new = {"gradient": np.ones(2)}, {"gradient": np.full(2, 7.0)}
    fault = ValueError("so") if fails else None
    part = SitePart(np.arange(3), state=new if trained else {}, fault=fault)
    monkeypatch.setattr(contributions, "contribute", lambda *_: part)
    monkeypatch.setattr(contributions, "kept_weights", lambda *_: {"factors": np.zeros(1)})
    checked: Any = SimpleNamespace(plan=SimpleNamespace(task=None), assignment=attack.assignment())
    ready = contributions._Ready({}, SitePlace(state=before), None)
    opened = attack.spied("a")
    computed = Contributions(attack.bed.sites["a"])._compute(opened, checked, ready)
    expected: Mapping[str, Any] = new if trained else before if fails else {}
    assert {name: array.tolist() for name, array in decode_broadcast(computed.state).items()} == {
        "factors": [0.0],
        **{name: array.tolist() for name, array in expected.items()},
    }
    assert (computed.values.tolist(), computed.noised) == ([0, 1, 2], False)


def test_nothing_is_kept_of_a_task_that_is_not_to_be_kept(attack: Adversary) -> None:
    attack.assign("a", attack.assignment())
    with attack.bed.sites["a"].database.reading() as connection:
        assert find_kept(connection, attack.key, "statistics") is None
        assert not connection.execute(STATES.select()).all()


def test_what_a_round_was_trained_with_counts_once_it_is_paid_for(tmp_path: Path) -> None:
    """A study of one cohort: the weights of its members stay those of the first paid round, whatever was only tried."""
    bed = make_bed(tmp_path, make_data(NAMES), min_cohort=2, disclosures=("joint", "per-site"))
    request = make_request(schema_of(2), "fedavg", None, min_cohort=2)
    table = {"mode": "natural", "subsets": [{"sites": list(NAMES), "probability": 1.0}]}
    parameters = {"rounds": 3, "model": {"name": "linear"}, "participation": table}
    attack = Adversary(bed, bed.compile(request.model_copy(update={"parameters": parameters})))
    attack.set_up()
    (task,) = attack.study.tasks
    model = AgreedStudy(attack.study).task(task.label).task
    assert isinstance(model, LocalTraining)
    arrays = {**to_broadcast(model.architecture.initial(0)), SEEDS: np.zeros((4, 2))}

    def sent(*weights: float) -> bytes:
        return encoded(attack.study, task.label, {**arrays, WEIGHTS: np.array(weights)})

    def ask(number: int, attempt: int, broadcast: bytes, cohort: str = "abcd") -> Said:
        assignment = attack.assignment(cohort, number, attempt, broadcast, label=task.label)
        for name in cohort:
            said = attack.assign(name, assignment, broadcast)
        return said

    assert ask(1, 1, sent(4.0, 1.0, 0.0, 0.0)).refused is RefusalCode.DISCLOSURE
    assert attack.kinds("d")["reserve"] == 0
    assert ask(1, 2, sent(2.0, 1.0, 1.0, 9.0), "abc").call == "upload"  # of a cohort, whose part of the weights it is
    assert ask(1, 3, sent(1.0, 1.0, 0.5, 0.5)).call == "upload"
    assert ask(1, 4, sent(1.0, 1.0, 1.0, 1.0)).call == "upload"
    attack.consents(1, 4)
    assert ask(2, 5, sent(1.0, 1.0, 0.5, 0.5)).refused is RefusalCode.COHORT_CHANGED
    assert attack.kinds("d")["reserve"] == 2
    assert ask(2, 6, sent(3.0, 3.0, 3.0, 3.0)).call == "upload"
    attack.check_ledgers()


# -- while it is computed --------------------------------------------------------------------------------------------------


class Meanwhile(RandomSource):
    """Randomness while whose first bytes are drawn something else happens."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens = [happens]

    def bytes(self, count: int) -> bytes:
        if self._happens:
            self._happens.pop()()
        return SYSTEM_RANDOM.bytes(count)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["given up", "late", "left", "study lost", "attempt lost"])
def test_what_is_over_when_it_is_computed_leaves_no_payload(fresh: Adversary, what: str) -> None:
    attack, site = fresh, fresh.bed.sites["a"]

    def happens() -> None:
        if what == "late":
            attack.bed.clock.now += 3_600
            return
        with site.database.transaction() as connection:
            match what:
                case "given up":
                    contributions.give_up_open(connection, site, attack.key)
                case "left":
                    change_study(connection, attack.key, status=StudyState.LEFT)
                case "study lost":
                    connection.execute(delete(STUDIES))
                case "attempt lost":
                    connection.execute(delete(ATTEMPTS))

    site.noise_random = Meanwhile(happens)
    assert attack.assign("a", attack.assignment()).refused is RefusalCode.ROUND
    if (row := attack.attempt_row("a")) is not None:
        assert row.state == ("tombstone" if what == "given up" else "reserved")
        assert (row.payload, row.words, row.consent, row.receipt) == (None, None, None, None)


@pytest.mark.parametrize(
    ("kind", "hidden"),
    [
        (Payload, {"pieces"}),
        (contributions._Ready, {"arrays", "place", "kept"}),
        (payloads.Computed, {"values", "noised", "state", "digest"}),
        (payloads.Drawn, {"values", "words", "payload", "consent"}),
    ],
)
def test_what_a_log_could_show_of_a_round_is_no_number_of_it(kind: type, hidden: set[str]) -> None:
    assert {item.name for item in fields(kind) if not item.repr} == hidden


# -- consent ---------------------------------------------------------------------------------------------------------------


def answered(attack: Adversary, names: Iterable[str] = NAMES, attempt: int = 1) -> list[CheckAnswer]:
    """An honest attempt of the first round up to all answers."""
    attack.collect(names, 1, attempt)
    return attack.answers(1, attempt)


def test_a_consent_is_asked_for_again(attack: Adversary) -> None:
    answers = answered(attack)
    first = attack.ask_consent("a", answers)
    assert len(first.values[3]) == 32
    assert attack.ask_consent("a", answers).values == first.values
    attack.bed.clock.now += 7_200
    assert attack.ask_consent("a", answers).values == first.values
    assert attack.charges("a") == 1


def test_consent_until_the_deadline(attack: Adversary) -> None:
    answers = answered(attack)
    attack.bed.clock.now += 3_599
    assert attack.ask_consent("a", answers).call == "consent"
    attack.bed.clock.now += 1
    assert attack.ask_consent("b", answers).refused is RefusalCode.ROUND
    assert (state_of(attack, name="b"), attack.kinds("b")["free"], attack.charges("b")) == ("tombstone", 1, 0)


def test_a_round_that_a_restored_site_paid_for_is_not_paid_for_again(fresh: Adversary) -> None:
    """The mirror showed a receipt of the round after the site, which had forgotten it, had uploaded another attempt."""
    attack, site = fresh, fresh.bed.sites["a"]
    answers = answered(attack, attempt=2)
    with site.database.transaction() as connection:
        paid = {"state": AttemptState.RECOVERED, "context": bytes(32), "assignment": b"", "deadline": 0, "label": ""}
        add_attempt(connection, study=attack.key, attempt=1, round=1, **paid)
    assert attack.ask_consent("a", answers, 1, 2).refused is RefusalCode.ROUND
    assert attack.charges("a") == 0


@pytest.mark.parametrize(("seen", "answer"), [(0, "consent"), (1, "refuse"), (2, "refuse")])
def test_a_peers_receipts_have_rising_numbers(fresh: Adversary, seen: int, answer: str) -> None:
    """By what the ledger keeps of its earlier receipts; a site that has answered asks it again when it pays."""
    attack = fresh
    answers = answered(attack)
    database = attack.bed.sites["a"].database
    with database.transaction() as connection:
        keep_receipt_of(connection, attack.key, "b", seen)
    assert attack.ask_check("a", attack.receipts()).call == ("refuse" if answer == "refuse" else "answer")
    said = attack.ask_consent("a", answers)
    assert said.call == answer
    if answer == "refuse":
        assert (said.refused, attack.charges("a")) == (RefusalCode.RECEIPT, 0)
        return
    with database.transaction() as connection:
        assert last_numbers(connection, attack.key) == dict.fromkeys(NAMES, 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("settled", "entry", "after"), [(4, 5, 4), (5, 5, 4), (9, 5, 4), (0, 5, 0), (5, 1, 0)])
def test_a_mirror_that_begins_anew_is_read_anew(attack: Adversary, settled: int, entry: int, after: int) -> None:
    receipts = attack.collect()
    database = attack.bed.sites["a"].database
    with database.transaction() as connection:
        keep_mirror_entry(connection, "coordinator", settled)
    words = {name: attack.countersign(receipts, entry=entry) for name in NAMES}
    said = [attack.ask_check(name, receipts, countersigned=word) for name, word in words.items()]
    assert attack.ask_consent("a", [CheckAnswer(*item.values[3:]) for item in said]).call == "consent"
    with database.transaction() as connection:
        assert mirror_entry(connection, "coordinator") == after


def test_a_cohort_that_another_sum_forbids_since_the_upload(fresh: Adversary) -> None:
    """Only sums of a study that promises one cohort are remembered, and held to what is remembered."""
    attack, site = fresh, fresh.bed.sites["a"]
    assert attack.ask_consent("a", answered(attack)).call == "consent"
    with site.database.reading() as connection:
        assert not connection.execute(COHORTS.select()).all()
    attack.use(altered(attack.study, privacy__cohort_difference="strict", nonce="0" * 32))
    attack.set_up()
    answers = answered(attack)
    with site.database.transaction() as connection:
        values = {"context": bytes(32), "study": bytes(32), "dataset": "records", "population": "records", "members": None}
        connection.execute(COHORTS.insert().values(values))
    assert attack.ask_consent("a", answers).refused is RefusalCode.COHORT_CHANGED
    assert attack.ask_consent("b", answers).call == "consent"
    with attack.bed.sites["b"].database.reading() as connection:
        (row,) = connection.execute(COHORTS.select()).mappings()
    assert (row["study"], row["context"]) == (attack.key, context_of(attack.payloads["b", 1].receipt))


def test_a_budget_lowered_before_consent_is_on_record_for_that_attempt(attack: Adversary) -> None:
    attack.assign("a", attack.assignment())
    answers = answered(attack, attempt=2)
    set_budget(attack.bed.sites["a"], 0.001)
    assert attack.ask_consent("a", answers, 1, 2).refused is RefusalCode.BUDGET
    (entry,) = attack.bed.sites["a"].ledger.entries(kind=Kind.REFUSAL)
    assert (entry.attempt, entry.context) == (2, attack.context(2))
    assert state_of(attack, 2) == "payload"
    restrict(attack, methods=())
    set_budget(attack.bed.sites["a"], None)
    assert attack.ask_consent("a", answers, 1, 2).refused is RefusalCode.METHOD
    assert attack.kinds("a")["refusal"] == 1


# -- opening and release ---------------------------------------------------------------------------------------------------


def test_a_sum_of_a_part_of_the_roster_opens(attack: Adversary) -> None:
    attack.collect(("a", "b", "d"))
    heard = attack.bed.sites["b"].observer = Heard()
    answers = attack.answers()
    consents = [attack.ask_consent(name, answers).values[3] for name in ("a", "b", "d")]
    assert len(attack.open(answers, consents)) == attack.plan().encoding.size
    for names in (("a", "b"), ("a",)):
        with pytest.raises(HostileInput, match=r"do not count|larger than keys"):
            attack.open(answers, consents, total=attack.total(names=names))
    assert attack.ask_check("b", attack.receipts(), bytes(32)).refused is RefusalCode.CHECK
    assert heard.stages == [], "it could be read"


def test_a_release_is_seen_once_and_its_payload_erased(attack: Adversary) -> None:
    """What is open is not released by the coordinator's word, nor what is not known."""
    heard = attack.bed.sites["a"].observer = Heard()
    attack.collect()
    for attempt in (1, 7):
        assert attack.tell("a", pb.DIRECTIVE_KIND_RELEASED, 1, attempt).call == "confirm"
    assert (state_of(attack), attack.kinds("a")["release-seen"], heard.ends) == ("payload", 0, [])
    attack.consents()
    for _ in range(2):
        assert attack.tell("a", pb.DIRECTIVE_KIND_RELEASED, 1, 1).call == "confirm"
    row = attack.attempt_row("a")
    assert row is not None
    assert (row.state, row.payload, row.words, row.shown) == ("released", None, None, None)
    assert row.consent is not None
    assert attack.kinds("a")["release-seen"] == 1
    assert heard.ends == [("statistics", AttemptOutcome.RELEASED, 1)]
    assert attack.ask_check("a", attack.receipts()).refused is RefusalCode.ROUND
    assert attack.ask_consent("a", []).refused is RefusalCode.ROUND


def test_a_recovered_charge_is_released_and_stays_recovered(fresh: Adversary) -> None:
    """What is known of it is its receipt: that it bears no label is told by its state."""
    attack = fresh
    attack.collect()
    attack.consents()
    with attack.bed.sites["a"].database.transaction() as connection:
        change_attempt(connection, attack.key, 1, state=AttemptState.RECOVERED)
    assert attack.tell("a", pb.DIRECTIVE_KIND_RELEASED, 1, 1).call == "confirm"
    assert (state_of(attack), attack.kinds("a")["release-seen"]) == ("recovered", 1)


def test_a_sum_is_opened_by_the_plan_of_its_cohort(tmp_path: Path) -> None:
    """Two of six have narrower lanes than all six, and narrower key shares."""
    names = ("a", "b", "c", "d", "e", "f")
    bed = make_bed(tmp_path, make_data(names, 3, 90), min_cohort=2)
    study = bed.compile(make_request(schema_of(90, max_records=20), "fedcgs", 5.0, min_cohort=2))
    attack = Adversary(bed, altered(study, task__label=LABEL))
    attack.set_up()
    plan = AgreedStudy(attack.study).task(LABEL).plan
    two, six = plan(6, 2).encoding, plan(6, 6).encoding
    assert two.width < six.width
    assert two.piece_bytes(0) < six.piece_bytes(0)
    attack.collect(("a", "b"))
    assert attack.finish().shape == (plan(6, 2).encoding.size,)
