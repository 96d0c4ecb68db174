"""What may follow what: an entry that breaks a rule is refused by it, whoever numbered, chained and signed it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from support.ledgers import GRID, OTHER_STUDY, STUDY, make_reservation
from veilsum_node.errors import HostileInput
from veilsum_privacy.accounting.accountant import PRV_ERROR, Course, epsilon_of
from veilsum_privacy.accounting.figures import estimated_epsilon, rdp_epsilon
from veilsum_privacy.ledger import Kind, Mechanism, Reservation
from veilsum_privacy.ledger.entries import Entry
from veilsum_privacy.ledger.mirror_rules import MirrorRules
from veilsum_privacy.ledger.rules import SiteRules
from veilsum_privacy.mechanism.noise_plan import NoisePlan

DELTA = 1e-5
BUDGET = {"epsilon": (50.0).hex(), "reason": "r", "operator": "o"}
NOTHING = dict.fromkeys(each.name for each in fields(Entry))


def digest(seq: int) -> bytes:
    return hashlib.sha256(b"%d" % seq).digest()


class Book:
    """Entries that rules are asked about one after the other; one that they refuse was never there."""

    def __init__(self, rules: SiteRules | MirrorRules | None = None) -> None:
        self.rules = rules or SiteRules()
        self.length = 0
        self.write(Kind.GENESIS)

    def write(
        self, kind: Kind, release: Reservation | None = None, detail: Mapping[str, Any] | None = None, **columns: Any
    ) -> None:
        seq = self.length + 1
        known = {} if release is None else {each.name: getattr(release, each.name) for each in fields(Reservation)}
        if release is not None:
            known |= {"colluders": release.mechanism.noise.colluders, "delta": DELTA}
        entry = {**NOTHING, **known, "detail": detail or {}, **columns}
        self.rules.check(Entry(**{**entry, "seq": seq, "kind": kind, "hash": digest(seq)}))
        self.length = seq

    def budget(self, population: str = "heart", delta: float = DELTA, **changes: Any) -> None:
        self.write(Kind.BUDGET, None, BUDGET | changes, population=population, delta=delta)

    def checkpoint(self, upto: Any, populations: Any, head: bytes | None = None) -> None:
        head = digest(int(upto)) if head is None else head
        self.write(Kind.CHECKPOINT, None, {"upto": upto, "head": head.hex(), "populations": populations})


@pytest.fixture
def book() -> Book:
    book = Book()
    book.budget()
    return book


def refuses(fault: str) -> Any:
    return pytest.raises(HostileInput, match=fault)


# -- releases


def test_a_context_that_was_recovered_is_not_reserved_for_another_round(book: Book) -> None:
    book.write(Kind.RECOVERY, make_reservation(1))
    with refuses("its context was charged before"):
        book.write(Kind.RESERVE, replace(make_reservation(2), context=make_reservation(1).context))


def test_a_recovery_pays_what_was_freed_and_nothing_twice(book: Book) -> None:
    first, second, third = (make_reservation(number, multiplier=20.0) for number in (1, 2, 3))
    for release in (first, second):
        book.write(Kind.RESERVE, release)
    book.write(Kind.FREE, first)
    book.write(Kind.CHARGE, second)
    for release in (first, third):
        book.write(Kind.RECOVERY, release)
    for release in (first, second, third):
        with refuses("its release was charged before"):
            book.write(Kind.RECOVERY, release)
    assert book.rules.populations["heart"].charged.counts.total() == 3


def test_a_reservation_needs_a_budget_and_its_delta(book: Book) -> None:
    with refuses("its population had no budget"):
        book.write(Kind.RESERVE, make_reservation(population="lung"))
    with refuses("its delta is not the budget's"):
        book.write(Kind.RESERVE, make_reservation(), delta=DELTA / 2)
    book.write(Kind.RESERVE, make_reservation())


def test_what_was_freed_is_not_released(book: Book) -> None:
    book.write(Kind.RESERVE, make_reservation())
    book.write(Kind.FREE, make_reservation())
    with refuses("it releases what was never charged"):
        book.write(Kind.RELEASE_SEEN, make_reservation())


LOCAL, OTHER = make_reservation(1, kind="local"), make_reservation(1, kind="local", study=OTHER_STUDY)
KEPT = replace(make_reservation(2), mechanism=Mechanism(GRID, NoisePlan("kept", 0, 1, 1)))


@pytest.mark.parametrize(
    ("before", "paid"),
    [
        ([], False),
        ([(Kind.RESERVE, LOCAL)], False),
        ([(Kind.RESERVE, LOCAL), (Kind.FREE, LOCAL)], False),
        ([(Kind.RESERVE, make_reservation()), (Kind.CHARGE, make_reservation())], False),
        ([(Kind.RECOVERY, OTHER)], False),
        ([(Kind.RESERVE, LOCAL), (Kind.CHARGE, LOCAL)], True),
        ([(Kind.RECOVERY, LOCAL)], True),
    ],
)
def test_post_processing_is_free_where_a_statistic_was_paid_for(
    book: Book, before: list[tuple[Kind, Reservation]], paid: bool
) -> None:
    """In the same study, with noise of the site's own alone: noise that others hold parts of is not in what it kept."""
    for kind, release in before:
        book.write(kind, release)
    if not paid:
        with refuses("post-processing of a statistic that the site never paid for"):
            book.write(Kind.RESERVE, KEPT)
        return
    book.write(Kind.RESERVE, KEPT)
    book.write(Kind.CHARGE, KEPT)


@pytest.mark.parametrize("paid", [Kind.CHARGE, Kind.RECOVERY])
def test_a_round_is_charged_once_whatever_its_attempts_are_called(book: Book, paid: Kind) -> None:
    """Rounds and attempts that have the same numbers are no more each other's than those that have not."""
    first, second, third = (make_reservation(7, attempt, multiplier=40.0) for attempt in (3, 4, 7))
    book.write(Kind.RESERVE, first)
    book.write(Kind.RESERVE, second)
    book.write(paid, first)
    with refuses("its round was charged before"):
        book.write(Kind.CHARGE, second)
    with refuses("its round was charged before"):
        book.write(Kind.RESERVE, third)
    book.write(Kind.FREE, second)
    for other in (make_reservation(3, 3, multiplier=40.0), make_reservation(7, 3, study=OTHER_STUDY, multiplier=40.0)):
        book.write(Kind.RESERVE, other)
        book.write(Kind.CHARGE, other)


def test_a_computation_fails_once_and_while_it_is_reserved(book: Book) -> None:
    cause = {"cause": "ValueError"}
    first, second, third = (make_reservation(number, multiplier=20.0) for number in (1, 2, 3))
    with refuses("it names no reservation"):
        book.write(Kind.FAULT, first, cause)
    for release in (first, second, third):
        book.write(Kind.RESERVE, release)
    for detail in ({}, {"cause": 5}):
        with refuses("it names no cause"):
            book.write(Kind.FAULT, first, detail)
    with refuses("not the one that was reserved"):
        book.write(Kind.FAULT, replace(first, dataset="x"), cause)
    book.write(Kind.FAULT, first, cause)
    with refuses("its computation failed before"):
        book.write(Kind.FAULT, first, cause)
    book.write(Kind.CHARGE, first)
    book.write(Kind.CHARGE, second)
    book.write(Kind.FREE, third)
    for release in (second, third):
        with refuses("its reservation was charged or freed before"):
            book.write(Kind.FAULT, release, cause)


def test_what_a_release_was_computed_from_is_recorded_once_and_while_it_is_reserved(book: Book) -> None:
    digest = {"digest": "ab" * 32}
    first, second, third = (make_reservation(number, multiplier=20.0) for number in (1, 2, 3))
    with refuses("it names no reservation"):
        book.write(Kind.SNAPSHOT, first, digest)
    for release in (first, second, third):
        book.write(Kind.RESERVE, release)
    for detail in ({}, {"digest": 5}, {"digest": "ab" * 31}):
        with refuses("it holds no digest"):
            book.write(Kind.SNAPSHOT, first, detail)
    with refuses("not the one that was reserved"):
        book.write(Kind.SNAPSHOT, replace(first, dataset="x"), digest)
    book.write(Kind.SNAPSHOT, first, digest)
    with refuses("was recorded before"):
        book.write(Kind.SNAPSHOT, first, digest)
    book.write(Kind.FAULT, first, {"cause": "ValueError"})
    book.write(Kind.CHARGE, first)
    book.write(Kind.CHARGE, second)
    book.write(Kind.FREE, third)
    for release in (second, third):
        with refuses("its reservation was charged or freed before"):
            book.write(Kind.SNAPSHOT, release, digest)


@pytest.mark.parametrize("kind", [Kind.RECEIPTS, Kind.CONSENT])
def test_what_only_a_mirror_holds(book: Book, kind: Kind) -> None:
    with refuses("only a coordinator's mirror has entries of this kind"):
        book.write(kind, make_reservation())


# -- refusals


def test_a_refusal_says_what_and_why(book: Book) -> None:
    right = {"code": "budget-exceeded", "message": "no", "figures": {"budget": (1.0).hex(), "after": None}}
    book.write(Kind.REFUSAL, None, right)
    book.write(Kind.REFUSAL, None, {"code": "method-not-allowed", "message": ""})
    for change in ({"code": 5}, {"message": None}, {"figures": {"budget": "inf"}}, {"figures": {"budget": "nan"}}):
        with refuses("the refusal is malformed"):
            book.write(Kind.REFUSAL, None, right | change)


# -- checkpoints


def stated(*multipliers: float, delta: float = DELTA) -> dict[str, Any]:
    events = [make_reservation(multiplier=each).mechanism.event for each in multipliers]
    estimate = estimated_epsilon(events, delta)
    return {
        "spent": rdp_epsilon(events, delta).hex(),
        "estimate": None if estimate is None else estimate.hex(),
        "releases": len(events),
    }


def test_a_checkpoint_may_name_any_entry_before_it() -> None:
    """Its figures are those of that entry: what came since, budgets included, is not in them."""
    book = Book()
    book.checkpoint(1, {})
    book.budget()
    book.checkpoint(3, {"heart": stated()})
    book.budget(delta=DELTA / 10)
    book.write(Kind.RESERVE, make_reservation(), delta=DELTA / 10)
    book.write(Kind.CHARGE, make_reservation(), delta=DELTA / 10)
    charged = book.length
    book.budget()
    book.budget("lung")
    book.checkpoint(3, {"heart": stated()})
    book.checkpoint(charged - 1, {"heart": stated(delta=DELTA / 10)})
    book.checkpoint(charged, {"heart": stated(4.0, delta=DELTA / 10)})
    book.checkpoint(book.length, {"heart": stated(4.0), "lung": stated()})
    for upto, populations in [
        (charged, {"heart": stated(4.0)}),
        (charged - 1, {"heart": stated(4.0, delta=DELTA / 10)}),
        (charged + 1, {"heart": stated(4.0, delta=DELTA / 10)}),
    ]:
        with refuses("its figures for heart do not follow"):
            book.checkpoint(upto, populations)
    for upto, populations in [(charged, {"heart": stated(4.0), "lung": stated()}), (book.length, {"heart": stated(4.0)})]:
        with refuses("it does not name every population"):
            book.checkpoint(upto, populations)


def test_a_checkpoint_names_an_entry_before_it(book: Book) -> None:
    right = {"heart": stated()}
    for upto, head in [(0, digest(book.length)), (-1, digest(1)), (book.length + 1, None), (2, digest(1))]:
        with refuses("it names an entry that this ledger does not hold"):
            book.checkpoint(upto, right, head)
    for upto, populations in [(True, {}), ("2", right), (2.0, right), (2, ["heart"]), (2, None)]:
        with refuses("its figures are malformed"):
            book.checkpoint(upto, populations)
    for wrong in (None, 5, {}, stated() | {"spent": 5}, stated() | {"estimate": "x"}):
        with refuses("its figures are malformed"):
            book.checkpoint(2, {"heart": wrong})
    book.checkpoint(2, right)


@pytest.mark.parametrize("multiplier", [20.0, 0.5])
def test_a_checkpoints_figures_may_differ_in_their_last_digits(book: Book, multiplier: float) -> None:
    """By a millionth of epsilon, or of 1 where it is smaller; by what two runs of the accountant behind the estimate may."""
    book.write(Kind.RECOVERY, make_reservation(multiplier=multiplier))
    right = stated(multiplier)
    spent, estimate = float.fromhex(right["spent"]), float.fromhex(right["estimate"])
    assert (spent < 0.5) == (multiplier == 20.0)
    assert (spent > 10) == (multiplier == 0.5)
    for sign in (1, -1):
        for share, passes in ((0.9, True), (1.1, False)):
            shifted = {"spent": (spent + sign * share * 1e-6 * max(1.0, spent)).hex()}
            also = {"estimate": (estimate + sign * share * 2 * PRV_ERROR).hex()}
            for change in (shifted, also):
                if passes:
                    book.checkpoint(book.length, {"heart": right | change})
                else:
                    with refuses("its figures for heart do not follow"):
                        book.checkpoint(book.length, {"heart": right | change})


def test_a_checkpoint_may_state_what_earlier_versions_charged_for_a_course(book: Book) -> None:
    """Where they could not certify it: as if no step were sampled. Nothing beyond that, and nothing below today's price."""
    item = make_reservation(rate=1e-4, multiplier=1.0, population="lung")
    item = replace(item, mechanism=replace(item.mechanism, course=Course(10, 5e-8)))
    book.budget("lung", epsilon=(50.0).hex(), adaptive="gaussian")
    book.write(Kind.RECOVERY, item, delta=DELTA)
    assert item.mechanism.event is not None
    event = replace(item.mechanism.event, steps=10)
    estimate = estimated_epsilon([event], DELTA, "gaussian")
    assert estimate is not None
    earlier = epsilon_of([replace(event, course=None)], DELTA, "gaussian")
    today = epsilon_of([event], DELTA, "gaussian")
    assert today < 0.01 < 15 < earlier
    for spent, passes in [(today, True), (earlier, True), (2.0, True), (today - 2e-6, False), (earlier + 3e-5, False)]:
        figures = {"spent": spent.hex(), "estimate": estimate.hex(), "releases": 1}
        if passes:
            book.checkpoint(book.length, {"heart": stated(), "lung": figures})
        else:
            with refuses("its figures for lung do not follow"):
                book.checkpoint(book.length, {"heart": stated(), "lung": figures})
    for spent in (None, "nan", "inf"):
        with refuses("its figures for lung do not follow"):
            figures = {"spent": spent, "estimate": estimate.hex(), "releases": 1}
            book.checkpoint(book.length, {"heart": stated(), "lung": figures})


def test_a_checkpoint_states_no_epsilon_where_there_is_none(book: Book) -> None:
    book.budget("lung", epsilon=None)
    book.write(Kind.RECOVERY, make_reservation(kind="none", population="lung"))
    nothing = {"spent": None, "estimate": None, "releases": 1}
    book.checkpoint(book.length, {"heart": stated(), "lung": nothing})
    for change in ({"spent": (1.0).hex()}, {"estimate": (1.0).hex()}, {"spent": "inf"}):
        with refuses("its figures for lung do not follow"):
            book.checkpoint(book.length, {"heart": stated(), "lung": nothing | change})
    with refuses("its figures for heart do not follow"):
        book.checkpoint(book.length, {"heart": stated() | {"spent": None}, "lung": nothing})


# -- mirrors


def test_a_mirror_shows_then_hears_consent_then_releases() -> None:
    first, other = make_reservation(1), make_reservation(2)
    book = Book(MirrorRules())
    book.write(Kind.KEY)
    with refuses("the ledger must begin with its one genesis entry"):
        book.write(Kind.GENESIS)
    for kind in (Kind.CONSENT, Kind.RELEASE_SEEN):
        with refuses("never (shown|consented to)"):
            book.write(kind, first)
    with refuses("it describes no complete release"):
        book.write(Kind.RECEIPTS, first, context=None)
    book.write(Kind.RECEIPTS, first)
    for kind, fault in [(Kind.RECEIPTS, "were shown before"), (Kind.RELEASE_SEEN, "never consented to")]:
        with refuses(fault):
            book.write(kind, first)
    for change in ({"dataset": "x"}, {"round": 9}, {"unit": "subject"}, {"study": OTHER_STUDY}, {"cohort_size": 5}):
        with refuses("not the one whose receipts were shown"):
            book.write(Kind.CONSENT, first, **change)
    book.write(Kind.CONSENT, first)
    book.write(Kind.RECEIPTS, other)
    for kind in (Kind.RECEIPTS, Kind.CONSENT):
        with refuses("before"):
            book.write(kind, first)
    with refuses("not the one whose receipts were shown"):
        book.write(Kind.RELEASE_SEEN, first, attempt=2)
    book.write(Kind.RELEASE_SEEN, first)
    with refuses("was released before"):
        book.write(Kind.RELEASE_SEEN, first)
    assert book.rules.populations == {}


@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.GENESIS, Kind.KEY, Kind.RECEIPTS, Kind.CONSENT, Kind.RELEASE_SEEN}))
def test_what_only_a_site_holds(kind: Kind) -> None:
    book = Book(MirrorRules())
    with refuses("only a site's own ledger has entries of this kind"):
        book.write(kind, make_reservation(study=STUDY))


DECIDED = {"name": "s", "analyst": "ana", "method": "statistics", "operator": "Olga", "reason": "why", "shown": "0" * 64}


def test_a_decision_says_who_decided_on_what_and_why(book: Book) -> None:
    book.write(Kind.APPROVAL, None, DECIDED, study=bytes(32))
    book.write(Kind.APPROVAL, None, DECIDED | {"reason": ""}, study=bytes(32))
    book.write(Kind.DECLINE, None, DECIDED, study=bytes(32))
    for kind in (Kind.APPROVAL, Kind.DECLINE):
        for change in ({"operator": ""}, {"operator": 5}, {"operator": None}, {"reason": None}):
            with refuses("it does not say who decided"):
                book.write(kind, None, DECIDED | change, study=bytes(32))
        with refuses("it does not say who decided"):
            book.write(kind, None, DECIDED)
        for shown in (None, "", "0" * 62, 5):
            with refuses("it does not say what was shown"):
                book.write(kind, None, DECIDED | {"shown": shown}, study=bytes(32))
    with refuses("it does not say who decided"):
        book.write(Kind.DECLINE, None, DECIDED | {"reason": ""}, study=bytes(32))


def test_what_expired_is_named(book: Book) -> None:
    book.write(Kind.EXPIRED, None, {"since": 5}, study=bytes(32))
    for detail, columns in (({"since": 5}, {}), ({}, {"study": bytes(32)}), ({"since": True}, {"study": bytes(32)})):
        with refuses("it does not say what expired"):
            book.write(Kind.EXPIRED, None, detail, **columns)


def test_a_policy_changes_from_what_it_was(book: Book) -> None:
    book.write(Kind.POLICY, None, {"changes": {"a": [None, "1"], "b": [None, "2"]}})
    book.write(Kind.POLICY, None, {"changes": {"a": ["1", "3"], "b": ["2", None]}})
    for changes in (
        {"a": ["1", "4"]},
        {"b": ["2", "3"]},
        {"a": ["3", "3"]},
        {"c": [None, None]},
        {"a": ["3"]},
        {"a": ["3", 4]},
        {"a": "3"},
    ):
        with refuses("it changes the policy from what it was not"):
            book.write(Kind.POLICY, None, {"changes": changes})
    for changes in (None, {}, [], 5):
        with refuses("it says no change"):
            book.write(Kind.POLICY, None, {"changes": changes})
    book.write(Kind.POLICY, None, {"changes": {"a": ["3", None], "b": [None, "3"]}})


def test_a_mirror_holds_no_decisions() -> None:
    for kind in (Kind.APPROVAL, Kind.DECLINE, Kind.EXPIRED, Kind.POLICY):
        with refuses("only a site's own ledger"):
            Book(MirrorRules()).write(kind, None, DECIDED, study=bytes(32))
