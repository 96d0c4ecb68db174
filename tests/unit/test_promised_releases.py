"""What studies declared, used and may still ask for, and which refusals a ledger takes up: counts at their boundaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection

from support.federation import DATASET, make_request, schema_of
from support.fresh import LEDGER, PARTICIPANT, fresh_database
from support.hostile import altered
from support.ledgers import any_receipt, open_ledger, ticking
from support.studies import agreed
from veilsum_node.errors import Refusal, RefusalCode
from veilsum_participant.protocol.budgets import (
    budget_faults,
    promised,
    record_refused_release,
    record_refused_study,
    releases_used,
    remaining,
)
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.site import Site
from veilsum_participant.store.attempts import AttemptState, add_attempt, tally
from veilsum_participant.store.pending import PendingState, add_pending
from veilsum_participant.store.studies import StudyState, add_study
from veilsum_privacy.ledger import Budget, Headroom, Kind, Mechanism, Reservation
from veilsum_privacy.ledger.statements import RequestedStudy, declared_mechanisms
from veilsum_privacy.mechanism.noise_plan import NoisePlan, task_noise
from veilsum_privacy.study.study import Study, study_digest

KEY = bytes(32)
OPEN, GIVEN_UP, SEEN = AttemptState.PAYLOAD, AttemptState.TOMBSTONE, AttemptState.RELEASED


@cache
def compiled() -> Study:
    return agreed(make_request(schema_of(2)), "abc")


def study_of(*tasks: tuple[str, int, int], **changes: Any) -> Study:
    """A study of tasks given as (label, releases, further variance)."""
    (task,) = (task.model_dump(mode="json") for task in compiled().tasks)
    made = [{**task, "label": name, "releases": many, "variance": task["variance"] + more} for name, many, more in tasks]
    return altered(compiled(), tasks=made, **changes)


def mechanism_of(study: Study, label: str) -> Mechanism:
    task = study.task(label)
    return Mechanism.of(task, task_noise(study, task, study.sites))


TWO = (("one", 2, 0), ("other", 3, 5))


@pytest.fixture
def connection() -> Any:
    with fresh_database(":memory:", LEDGER, PARTICIPANT) as database, database.transaction() as opened:
        yield opened


NUMBERS = count(1)


def add(connection: Connection, state: AttemptState, label: str, times: int = 1, receipt: bytes | None = None) -> None:
    for number in [next(NUMBERS) for _ in range(times)]:
        add_attempt(
            connection,
            study=KEY,
            attempt=number,
            round=number,
            state=state,
            context=number.to_bytes(32),
            assignment=b"",
            deadline=0,
            label=label,
            receipt=receipt,
        )


def recovered(connection: Connection, study: Study, label: str, times: int = 1) -> None:
    """Charges that are known from receipts only."""
    signed = replace(any_receipt(KEY, "a"), mechanism=mechanism_of(study, label))
    add(connection, AttemptState.RECOVERED, "", times, signed.to_bytes())


def _record(connection: Connection, site: Site, study: Study, refusal: Refusal, *, by_operator: bool = False) -> None:
    """A refusal of a study that an analyst asked for."""
    population = site.config.population(study.dataset) if study.dataset in site.config.datasets else None
    asked = RequestedStudy(KEY, study.name, study.method, study.dataset, "analyst", population)
    record_refused_study(connection, site, asked, study, refusal, by_operator=by_operator)


# -- what is declared, and left of it --------------------------------------------------------------------------------------


def test_releases_of_one_price_are_declared_together() -> None:
    study = study_of(("one", 2, 0), ("two", 3, 0), ("other", 4, 5))
    assert declared_mechanisms(study) == {mechanism_of(study, "one"): 5, mechanism_of(study, "other"): 4}


def test_what_is_open_or_paid_is_used_and_what_was_given_up_is_not(connection: Connection) -> None:
    study = study_of(*TWO)
    one, other = mechanism_of(study, "one"), mechanism_of(study, "other")
    assert remaining(connection, KEY, study) == Counter({one: 2, other: 3})
    add(connection, GIVEN_UP, "one", 3)
    add(connection, OPEN, "one")
    add(connection, SEEN, "other")
    recovered(connection, study, "other")
    assert remaining(connection, KEY, study) == Counter({one: 1, other: 1})
    assert remaining(connection, KEY, study, paid_only=True) == Counter({one: 2, other: 1})
    add(connection, AttemptState.CONSENTED, "one", 2)
    assert remaining(connection, KEY, study) == Counter({other: 1})  # more than declared is not owed to others


def test_a_task_is_used_up_by_its_own_releases(connection: Connection) -> None:
    """One of the same price, beside it, is not."""
    study = study_of(("one", 2, 0), ("twin", 2, 0))

    def used(label: str) -> bool:
        return releases_used(connection, KEY, study, label, tally(connection, KEY, 0))

    for spent, state in ((False, OPEN), (False, SEEN), (True, SEEN)):
        add(connection, state, "one")
        assert (used("one"), used("twin")) == (spent, False)


def test_releases_that_bear_no_label_count_for_all_of_their_price(connection: Connection) -> None:
    study = study_of(("one", 2, 0), ("twin", 2, 0), ("other", 9, 5))

    def used() -> list[bool]:
        counted = tally(connection, KEY, 0)
        return [releases_used(connection, KEY, study, label, counted) for label in ("one", "twin", "other")]

    recovered(connection, study, "one", 2)
    add(connection, SEEN, "twin")
    assert used() == [False, False, False]
    recovered(connection, study, "one")
    assert used() == [True, True, False]


def test_a_recovered_release_of_another_kind_of_noise_is_of_another_price(connection: Connection) -> None:
    """Its share of the noise depends on the cohort, which may have been smaller; the kind does not."""
    study = study_of(("one", 1, 0))
    own = mechanism_of(study, "one")
    assert own.noise.kind == "distributed"
    smaller = replace(own, noise=replace(own.noise, honest=1))
    alone = replace(own, noise=NoisePlan("local", own.noise.variance, 1, own.noise.colluders))
    for mechanism, spent in ((alone, False), (smaller, True)):
        signed = replace(any_receipt(KEY, "a"), mechanism=mechanism)
        add(connection, AttemptState.RECOVERED, "", receipt=signed.to_bytes())
        assert releases_used(connection, KEY, study, "one", tally(connection, KEY, 0)) is spent


# -- what other studies may ask for ----------------------------------------------------------------------------------------


def config_of(**populations: str | None) -> ParticipantConfig:
    datasets = {name: DatasetConfig(path=Path("x.csv"), population=of) for name, of in populations.items()}
    return ParticipantConfig(coordinator="localhost:1", datasets=datasets)


def enrol(connection: Connection, study: Study, status: StudyState = StudyState.READY) -> bytes:
    data = study.to_bytes()
    key = study_digest(data)
    add_study(connection, digest=key, status=status, study=data, analyst="ana", enrolment=b"[]")
    return key


def wait(connection: Connection, study: Study, state: PendingState) -> bytes:
    data = study.to_bytes()
    key = study_digest(data)
    values = {"signature": b"", "certificate": b"", "coordinator": "coordinator", "analyst": "ana", "time": 1}
    add_pending(connection, digest=key, study=data, state=state, **values)
    return key


def test_enrolled_and_approved_studies_of_the_population_are_promised(connection: Connection) -> None:
    """Not those that are over, wait, were declined, are of other people, or of a dataset that is not offered any more."""
    config = config_of(records=None, copy=DATASET, others=None)
    nonces = (f"{number:032x}" for number in count(1))
    first = enrol(connection, study_of(("one", 2, 0), nonce=next(nonces)))
    enrol(connection, study_of(("one", 4, 0), nonce=next(nonces), dataset="copy"))
    enrol(connection, study_of(("one", 8, 0), nonce=next(nonces)), StudyState.ENDED)
    enrol(connection, study_of(("one", 16, 0), nonce=next(nonces), dataset="others"))
    enrol(connection, study_of(("one", 32, 0), nonce=next(nonces), dataset="gone"))
    approved = wait(connection, study_of(("one", 64, 0), nonce=next(nonces)), PendingState.APPROVED)
    for state in (PendingState.WAITING, PendingState.DECLINED, PendingState.REFUSED):
        wait(connection, study_of(("one", 128, 0), nonce=next(nonces)), state)
    wait(connection, study_of(("one", 256, 0), nonce=next(nonces), dataset="others"), PendingState.APPROVED)
    mechanism = mechanism_of(study_of(*TWO), "one")

    def total(population: str, but: bytes = b"") -> int:
        found = promised(connection, config, population, but)
        assert set(found) <= {mechanism}
        return found.total()

    assert total(DATASET) == 2 + 4 + 64
    assert total(DATASET, first) == 4 + 64
    assert total(DATASET, approved) == 2 + 4
    assert total("others") == 16 + 256


@pytest.mark.parametrize("dropped", [(), ("participant_pending",), ("participant_pending", "participant_study")])
def test_a_file_of_an_older_layout_promises_what_it_knows_of(connection: Connection, dropped: Sequence[str]) -> None:
    enrol(connection, study_of(("one", 2, 0)))
    for table in dropped:
        connection.exec_driver_sql(f"DROP TABLE {table}")
    assert promised(connection, config_of(records=None), DATASET).total() == (0 if len(dropped) == 2 else 2)


# -- whether the budget bears a study --------------------------------------------------------------------------------------


@dataclass
class Asked:
    """Books that bear so many releases, and note what they are asked."""

    bears: int
    budget_of: dict[str, Budget] = field(default_factory=lambda: {DATASET: Budget(1.0, 1e-5)})
    about: list[tuple[str, Counter[Mechanism]]] = field(default_factory=list)

    def budget(self, population: str, connection: Connection | None = None) -> Budget | None:
        assert connection is not None
        return self.budget_of.get(population)

    def headroom(self, population: str, mechanisms: Any, connection: Connection | None = None) -> Headroom:
        assert connection is not None
        self.about.append((population, Counter(mechanisms)))
        return Headroom(self.budget_of[population], 0.5, 1.0 if Counter(mechanisms).total() <= self.bears else 1.5)


@pytest.mark.parametrize("others", [0, 4])
@pytest.mark.parametrize("short", [0, 1])
def test_a_study_is_held_against_what_others_may_ask_beside_it(connection: Connection, others: int, short: int) -> None:
    study, books = study_of(*TWO), Asked(5 + others - short)
    if others:
        enrol(connection, study_of(("one", others, 0), nonce="1" * 32))
    key = enrol(connection, study)  # what it may ask for itself is not counted twice
    found = list(budget_faults(connection, config_of(records=None), books, key, study))
    ((population, asked),) = books.about
    assert (population, asked) == (DATASET, declared_mechanisms(study) + Counter({mechanism_of(study, "one"): others}))
    assert [fault.code for fault in found] == [RefusalCode.BUDGET] * short
    for fault in found:
        assert ("other studies here may still ask for" in fault.message) == bool(others)
        assert "the study's 5 releases" in fault.message


def test_a_population_without_a_budget_bears_nothing(connection: Connection) -> None:
    books, config = Asked(0), config_of(records="people", other=DATASET)
    (fault,) = budget_faults(connection, config, books, KEY, study_of(*TWO))
    assert (fault.code, "people" in fault.advice, books.about) == (RefusalCode.BUDGET, True, [])


def test_of_a_dataset_that_is_not_offered_the_budget_says_nothing(connection: Connection) -> None:
    books: Any = None
    assert list(budget_faults(connection, config_of(other=None), books, KEY, study_of(*TWO))) == []


def test_of_noise_that_cannot_be_drawn_the_budget_says_nothing(connection: Connection) -> None:
    study = altered(compiled(), task__grid=1, task__variance=20, privacy__epsilon=1e4)
    assert list(budget_faults(connection, config_of(records=None), Asked(0), KEY, study)) == []


# -- refusals on record ----------------------------------------------------------------------------------------------------


@dataclass
class Noted:
    """A ledger of refusals: like the real one it finds entries by what is given, and only those of the same transaction or
    before it if it is asked within the transaction."""

    kept: list[Any] = field(default_factory=list)
    refusals: list[dict[str, Any]] = field(default_factory=list)

    def add(self, time: int, kind: Kind = Kind.REFUSAL, **values: Any) -> None:
        self.kept.append(
            SimpleNamespace(**{"study": None, "context": None, "detail": {}, **values, "time": time, "kind": kind})
        )

    def entries(
        self, *, connection: Connection, since: int | None = None, until: int | None = None, **equal: Any
    ) -> list[Any]:
        assert connection is not None
        found = [entry for entry in self.kept if since is None or entry.time >= since]
        found = [entry for entry in found if until is None or entry.time < until]
        return [entry for entry in found if all(getattr(entry, name) == value for name, value in equal.items())]

    def refuse(self, connection: Connection, refusal: Refusal, **values: Any) -> int:
        self.refusals.append({"refusal": refusal, **values})
        return 1


NOW = 1_800_000_000
REFUSAL = Refusal(RefusalCode.METHOD, "not this method")
DAY = 86_400


@pytest.fixture
def site() -> Any:
    return SimpleNamespace(ledger=Noted(), config=config_of(records="people"), clock=lambda: NOW)


def test_a_refused_study_is_recorded_with_all_that_it_would_have_cost(connection: Connection, site: Any) -> None:
    study = study_of(*TWO)
    _record(connection, site, study, REFUSAL)
    steps = {replace(mechanism_of(study, "one"), steps=2), replace(mechanism_of(study, "other"), steps=3)}
    (noted,) = site.ledger.refusals
    assert set(noted.pop("cost")) == steps
    asked = noted.pop("asked")
    assert (asked.study, asked.name, asked.population) == (KEY, study.name, "people")
    assert noted == {"refusal": REFUSAL, "population": "people", "study": KEY, "dataset": DATASET}


def test_steps_of_all_releases_are_recorded(connection: Connection, site: Any) -> None:
    study = study_of(("one", 3, 0))
    (task,) = study.tasks
    study = study.model_copy(update={"tasks": (task.model_copy(update={"local_steps": 4}),)})
    _record(connection, site, study, REFUSAL)
    (noted,) = site.ledger.refusals
    assert [mechanism.steps for mechanism in noted["cost"]] == [12]


def test_a_refused_study_of_unknown_people_or_cost_is_recorded_all_the_same(connection: Connection, site: Any) -> None:
    _record(connection, site, study_of(*TWO, dataset="gone"), REFUSAL)
    undrawn = altered(compiled(), task__grid=1, task__variance=20, privacy__epsilon=1e4)
    _record(connection, site, undrawn, REFUSAL)
    first, second = site.ledger.refusals
    assert (first["population"], first["dataset"], len(first["cost"])) == (None, "gone", 2)
    assert (second["population"], second["cost"]) == ("people", [])


@pytest.mark.parametrize("by_operator", [True, False])
@pytest.mark.parametrize(
    ("earlier", "again"),
    [
        ({"study": KEY, "detail": {"message": REFUSAL.message}}, False),
        ({"study": KEY, "detail": {"message": "other words"}}, True),
        ({"study": KEY, "detail": {"message": REFUSAL.message}, "context": bytes(32)}, True),  # of one of its rounds
        ({"study": b"1" * 32, "detail": {"message": REFUSAL.message}}, True),
    ],
)
def test_the_same_words_of_a_study_stand_once(
    connection: Connection, site: Any, earlier: dict[str, Any], again: bool, by_operator: bool
) -> None:
    site.ledger.add(NOW, study=KEY, detail={"message": "something else before"})
    site.ledger.add(NOW, **earlier)
    _record(connection, site, study_of(*TWO), REFUSAL, by_operator=by_operator)
    assert len(site.ledger.refusals) == again


def test_more_words_than_an_entry_holds_stand_once_too(connection: Connection) -> None:
    """A study of many tasks is refused for many reasons; the coordinator asks as often as it likes."""
    site: Any = SimpleNamespace(ledger=open_ledger(":memory:"), config=config_of(records="people"), clock=ticking())
    for ending in ("", "", " and so on", ""):
        refusal = Refusal(RefusalCode.METHOD, "not this one, " * 500 + ending)
        with site.ledger.database.transaction() as own:
            _record(own, site, study_of(*TWO), refusal)
    assert len(site.ledger.entries(kind=Kind.REFUSAL)) == 1


def reservation() -> Reservation:
    study = study_of(*TWO)
    return Reservation(
        study=KEY, round=1, attempt=1, population="people", dataset=DATASET, mechanism=mechanism_of(study, "one"),
        unit="record", cohort_size=3, context=b"c" * 32,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("earlier", "again"),
    [({"context": b"c" * 32}, False), ({"context": b"d" * 32}, True), ({"context": b"c" * 32, "kind": Kind.RESERVE}, True)],
)
def test_a_refused_release_stands_once(connection: Connection, site: Any, earlier: dict[str, Any], again: bool) -> None:
    site.ledger.add(NOW, **earlier)
    record_refused_release(connection, site, reservation(), REFUSAL)
    assert site.ledger.refusals == [{"refusal": REFUSAL, "reservation": reservation()}] * again


@pytest.mark.parametrize(("today", "taken"), [(255, True), (256, False), (257, False)])
def test_a_day_has_room_for_so_many_refusals(connection: Connection, site: Any, today: int, taken: bool) -> None:
    """What is a day old, and what is not a refusal, does not count; an operator's word is always taken up."""
    for number in range(today):
        site.ledger.add(NOW - (DAY - 1 if number % 2 else 0), context=bytes([number % 2]) * 32)
    for _ in range(9):
        site.ledger.add(NOW - DAY)
        site.ledger.add(NOW, Kind.RESERVE)
    _record(connection, site, study_of(*TWO), REFUSAL)
    record_refused_release(connection, site, reservation(), REFUSAL)
    assert len(site.ledger.refusals) == 2 * taken
    _record(connection, site, study_of(*TWO), REFUSAL, by_operator=True)
    assert len(site.ledger.refusals) == 2 * taken + 1
