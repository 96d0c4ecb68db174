"""What a ledger promises, on every database it can lie in: reservations, charges, budgets, refusals, receipts, recovery."""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sqlalchemy import Connection, text

from support.backends import BACKENDS, new_place
from support.fresh import LEDGER
from support.ledgers import (
    COORDINATOR,
    OTHER_STUDY,
    START,
    STUDY,
    Trial,
    credentials_of,
    make_receipt,
    make_reservation,
    open_ledger,
    open_mirror,
    set_budget,
    ticking,
)
from veilsum_node.canonical import canonical
from veilsum_node.database import open_database
from veilsum_node.errors import Damage, HostileInput, Misuse, Refusal, RefusalCode, StateError, VeilsumError
from veilsum_node.identity import Role
from veilsum_privacy.accounting.accountant import GaussianEvent
from veilsum_privacy.accounting.figures import estimated_epsilon, prv_epsilon, rdp_epsilon
from veilsum_privacy.accounting.gaussian import analytic_gaussian_epsilon
from veilsum_privacy.ledger import Budget, Kind, Ledger, LedgerReader, Mechanism, Reservation, Witness
from veilsum_privacy.ledger.totals import Follower
from veilsum_privacy.mechanism.noise_plan import plan_noise

DELTA = 1e-5


def reserve(ledger: Ledger, reservation: Reservation) -> int:
    with ledger.database.transaction() as connection:
        return ledger.reserve(connection, reservation)


def charge(ledger: Ledger, reservation: Reservation) -> int:
    with ledger.database.transaction() as connection:
        return ledger.charge(connection, reservation.context)


def free(ledger: Ledger, reservation: Reservation) -> int:
    with ledger.database.transaction() as connection:
        return ledger.free(connection, reservation.context)


def recover(ledger: Ledger, reservation: Reservation, number: int = 1) -> int | None:
    signed = make_receipt(ledger, reservation, number)
    with ledger.database.transaction() as connection:
        return ledger.recover(connection, signed, "heart")


def see(ledger: Ledger, reservation: Reservation) -> int:
    with ledger.database.transaction() as connection:
        return ledger.release_seen(connection, reservation.context, b"\1" * 32)


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_place(request.param, tmp_path, LEDGER)


@pytest.fixture
def ledger(place: str) -> Ledger:
    ledger = open_ledger(place)
    set_budget(ledger)
    return ledger


def test_a_round_from_reservation_to_release(ledger: Ledger) -> None:
    item = make_reservation()
    assert reserve(ledger, item) == 3
    assert charge(ledger, item) == 4
    assert see(ledger, item) == 5
    kinds = [entry.kind for entry in ledger.entries()]
    assert kinds == [Kind.GENESIS, Kind.BUDGET, Kind.RESERVE, Kind.CHARGE, Kind.RELEASE_SEEN]
    charged = ledger.entries(kind=Kind.CHARGE)[0]
    assert charged.reservation == item
    assert charged.mechanism == item.mechanism
    assert (charged.delta, charged.unit, charged.cohort_size, charged.colluders) == (DELTA, "record", 4, 1)
    assert ledger.entries(kind=Kind.BUDGET)[0].budget == Budget(3.0, DELTA)
    assert ledger.entries(kind=Kind.RELEASE_SEEN)[0].detail == {"digest": "01" * 32}
    assert ledger.head() == ledger.entries()[-1].hash
    assert [ledger.position(entry.hash) for entry in ledger.entries()] == [1, 2, 3, 4, 5]
    assert ledger.position(bytes(32)) is None
    verified = ledger.verify(head=ledger.head(), authority=credentials_of().authority)
    assert (verified.entries, verified.head, verified.site, verified.role) == (5, ledger.head(), "north", Role.PARTICIPANT)
    assert (ledger.site, ledger.role) == ("north", Role.PARTICIPANT)
    assert verified.keys == (credentials_of().identity.fingerprint,)
    assert verified.federation == credentials_of().federation_id


def test_the_first_entry_names_owner_key_and_authority(ledger: Ledger) -> None:
    detail = ledger.entries()[0].detail
    credentials = credentials_of()
    assert detail["site"] == "north"
    assert detail["role"] == "participant"
    assert bytes.fromhex(detail["certificate"]) == credentials.identity.certificate
    assert bytes.fromhex(detail["authority"]) == credentials.authority.public_bytes(Encoding.DER)
    assert detail["hiding"] is True


def test_the_recorded_event_says_all_that_epsilon_needs(ledger: Ledger) -> None:
    reserve(ledger, make_reservation(multiplier=8.0, rate=0.01, steps=50))
    with ledger.database.engine.connect() as connection:
        event = connection.execute(text("SELECT event FROM ledger WHERE kind = 'reserve'")).scalar_one()
    assert json.loads(event) == {
        "mechanism": "discrete-gaussian",
        "noise": "distributed",
        "sensitivity": 1000,
        "variance": [64_000_000, 1],
        "share_variance": [64_000_000, 3],
        "honest": 3,
        "sampling_rate": (0.01).hex(),
        "steps": 50,
    }


def test_spending_is_derived_from_events(ledger: Ledger) -> None:
    items = [
        make_reservation(1),
        make_reservation(2, multiplier=9.0),
        make_reservation(3, multiplier=1.5, rate=0.02, steps=20),
    ]
    set_budget(ledger, 50.0)
    for item in items:
        reserve(ledger, item)
    charge(ledger, items[0])
    charge(ledger, items[2])
    events = [item.mechanism.event for item in items]
    spending = ledger.spending("heart")
    assert spending.budget == Budget(50.0, DELTA)
    assert spending.spent == rdp_epsilon([events[0], events[2]], DELTA)
    assert spending.estimate == prv_epsilon([events[0], events[2]], DELTA)
    assert spending.reserved == rdp_epsilon(events, DELTA)
    assert spending.left == 50.0 - spending.reserved
    assert spending.releases == 2
    free(ledger, items[1])
    assert ledger.spending("heart").reserved == spending.spent


def test_alone_counts_the_sites_own_share_only(ledger: Ledger) -> None:
    """Against all others together h = 3 shares shrink to one: sigma is sqrt(3) times less, exactly."""
    item = make_reservation(multiplier=12.0)
    assert item.mechanism.event_alone == GaussianEvent(1000, item.mechanism.noise.share_variance)
    reserve(ledger, item)
    charge(ledger, item)
    spending = ledger.spending("heart")
    assert spending.alone == rdp_epsilon([item.mechanism.event_alone], DELTA)
    exact = analytic_gaussian_epsilon(3 / 144, DELTA)
    assert spending.spent < exact < spending.alone < 1.1 * exact
    local = replace(item, mechanism=replace(item.mechanism, noise=plan_noise("local", 144_000_000, 4, 1)))
    assert local.mechanism.event_alone == local.mechanism.event


def test_every_call_can_be_repeated(ledger: Ledger) -> None:
    item, other = make_reservation(1), make_reservation(2)
    assert reserve(ledger, item) == reserve(ledger, item)
    assert charge(ledger, item) == charge(ledger, item)
    assert reserve(ledger, item) < charge(ledger, item)
    assert see(ledger, item) == see(ledger, item)
    reserve(ledger, other)
    assert free(ledger, other) == free(ledger, other)
    assert len(ledger.entries()) == 7
    assert ledger.spending("heart").releases == 1


def test_a_freeing_says_why_if_somebody_told(ledger: Ledger) -> None:
    for number, reason in ((1, "the round ended"), (2, "")):
        reserve(ledger, make_reservation(number))
        with ledger.database.transaction() as connection:
            ledger.free(connection, make_reservation(number).context, reason=reason)
    assert [entry.detail for entry in ledger.entries(kind=Kind.FREE)] == [{"reason": "the round ended"}, {}]


def test_illegal_transitions(ledger: Ledger) -> None:
    charged, freed, new = make_reservation(1), make_reservation(2), make_reservation(3)
    reserve(ledger, charged)
    reserve(ledger, freed)
    charge(ledger, charged)
    free(ledger, freed)
    before = ledger.head()
    for call, item in [
        (charge, new),
        (free, new),
        (see, new),
        (free, charged),
        (charge, freed),
        (see, freed),
        (reserve, freed),
    ]:
        with pytest.raises(StateError):
            call(ledger, item)
    assert ledger.head() == before


def test_what_a_release_was_computed_from_is_recorded_once(ledger: Ledger) -> None:
    read, charged, freed, new = (make_reservation(number, multiplier=20.0) for number in range(1, 5))
    for item in (read, charged, freed):
        reserve(ledger, item)
    digest = bytes(range(32))

    def snapshot(item: Reservation, data: bytes) -> int:
        with ledger.database.transaction() as connection:
            return ledger.snapshot(connection, item.context, data)

    number = snapshot(read, digest)
    assert snapshot(read, bytes(32)) == number
    (entry,) = ledger.entries(kind=Kind.SNAPSHOT)
    assert (entry.seq, entry.reservation, entry.detail) == (number, read, {"digest": digest.hex()})
    assert ledger.spending("heart").reserved == rdp_epsilon([read.mechanism.event] * 3, DELTA), "it stays open"
    charge(ledger, charged)
    free(ledger, freed)
    before = ledger.head()
    with pytest.raises(Misuse, match="32 bytes"):
        snapshot(charged, b"short")
    for item, message in [(charged, "not computed any more"), (freed, "not computed any more"), (new, "Nothing is reserved")]:
        with pytest.raises(StateError, match=message):
            snapshot(item, digest)
    assert ledger.head() == before
    charge(ledger, read)
    assert ledger.verify().entries == len(ledger.entries())


def test_a_round_is_charged_once_whatever_the_attempt(ledger: Ledger) -> None:
    first, second, third = (make_reservation(1, attempt) for attempt in (1, 2, 3))
    reserve(ledger, first)
    reserve(ledger, second)
    charge(ledger, first)
    with pytest.raises(StateError, match="charged under another context"):
        charge(ledger, second)
    with pytest.raises(StateError, match="charged before"):
        reserve(ledger, third)
    reserve(ledger, make_reservation(1, study=OTHER_STUDY))
    free(ledger, second)
    assert ledger.spending("heart").releases == 1


def test_one_context_one_release_and_one_attempt_one_context(ledger: Ledger) -> None:
    item = make_reservation()
    reserve(ledger, item)
    with pytest.raises(StateError, match="for another release"):
        reserve(ledger, replace(item, dataset="other"))
    with pytest.raises(StateError, match="under another context"):
        reserve(ledger, make_reservation(salt=b"a second cohort"))


def test_the_budget_holds_and_open_reservations_count(ledger: Ledger) -> None:
    item = make_reservation(1, multiplier=2.0)
    single = rdp_epsilon([item.mechanism.event], DELTA)
    double = rdp_epsilon([item.mechanism.event] * 2, DELTA)
    set_budget(ledger, (single + double) / 2)
    reserve(ledger, item)
    second = make_reservation(2, multiplier=2.0)
    with pytest.raises(Refusal) as caught:
        reserve(ledger, second)
    assert caught.value.code is RefusalCode.BUDGET
    free(ledger, item)
    reserve(ledger, second)
    charge(ledger, second)
    with pytest.raises(Refusal):
        reserve(ledger, make_reservation(3, multiplier=2.0, study=OTHER_STUDY))
    assert ledger.verify().entries == 7


def test_a_budget_met_exactly_is_enough(ledger: Ledger) -> None:
    items = [make_reservation(number, multiplier=3.0 + number) for number in range(1, 6)]
    set_budget(ledger, rdp_epsilon([item.mechanism.event for item in items], DELTA))
    for item in reversed(items):
        reserve(ledger, item)
        charge(ledger, item)
    assert ledger.spending("heart").left == 0


def test_headroom_says_what_would_stand_and_changes_nothing(ledger: Ledger) -> None:
    item, more = make_reservation(1), make_reservation(2, multiplier=9.0).mechanism
    reserve(ledger, item)
    before = ledger.head()
    headroom = ledger.headroom("heart", {more: 3})
    event = item.mechanism.event
    assert headroom.budget == Budget(3.0, DELTA)
    assert headroom.reserved == rdp_epsilon([event], DELTA)
    assert headroom.after == rdp_epsilon([event, *[more.event] * 3], DELTA)
    assert headroom.admits
    assert not ledger.headroom("heart", {more: 300}).admits
    assert ledger.headroom("heart", {}).after == headroom.reserved
    assert ledger.headroom("heart", {make_reservation(kind="none").mechanism: 1}).after == math.inf
    with pytest.raises(Refusal, match="no budget"):
        ledger.headroom("lung", {more: 1})
    with ledger.database.transaction() as connection:
        ledger.reserve(connection, make_reservation(2))
        assert ledger.headroom("heart", {}, connection).reserved == rdp_epsilon([event] * 2, DELTA)
        ledger.free(connection, make_reservation(2).context)
    assert ledger.headroom("heart", {}).reserved == headroom.reserved
    assert ledger.position(before) == 3


def test_populations_have_their_own_budgets(ledger: Ledger) -> None:
    with pytest.raises(Refusal, match="no budget"):
        reserve(ledger, make_reservation(population="lung"))
    set_budget(ledger, 100.0, "lung")
    reserve(ledger, make_reservation(population="lung"))
    assert ledger.spending("heart").reserved == 0
    assert ledger.populations() == ["heart", "lung"]
    assert ledger.budget("brain") is None
    with pytest.raises(StateError, match="no budget"):
        ledger.spending("brain")


def test_a_lowered_budget_stops_what_is_open_and_says_that_it_is_below(ledger: Ledger) -> None:
    item = make_reservation()
    reserve(ledger, item)
    set_budget(ledger, 0.5)
    with pytest.raises(Refusal):
        charge(ledger, item)
    free(ledger, item)
    set_budget(ledger, 3.0)
    reserve(ledger, make_reservation(1, 2))
    charge(ledger, make_reservation(1, 2))
    set_budget(ledger, 0.5)
    with pytest.raises(Refusal):
        reserve(ledger, make_reservation(2))
    said = [entry.detail.get("below_spent", False) for entry in ledger.entries(kind=Kind.BUDGET)]
    assert said == [False, False, False, True]
    assert ledger.spending("heart").left == 0
    assert ledger.verify().entries == len(ledger.entries())


def test_strict_budgets_are_dearer_and_hold(ledger: Ledger) -> None:
    item = make_reservation(multiplier=4.0)
    with ledger.database.transaction() as connection:
        ledger.set_budget(connection, "heart", 1.02, DELTA, reason="r", operator="o", adaptive="strict")
    assert ledger.budget("heart") == Budget(1.02, DELTA, "strict")
    assert ledger.entries(kind=Kind.BUDGET)[-1].budget.adaptive == "strict"
    assert rdp_epsilon([item.mechanism.event], DELTA) < 1.02
    with pytest.raises(Refusal):  # by all orders it would fit
        reserve(ledger, item)
    set_budget(ledger, 1.02)
    reserve(ledger, item)
    with pytest.raises(Misuse, match="gaussian, standard, strict"), ledger.database.transaction() as connection:
        ledger.set_budget(connection, "heart", 1.0, DELTA, reason="r", operator="o", adaptive="loose")  # type: ignore[arg-type]
    assert ledger.verify().entries == 5


def test_a_release_without_noise_needs_a_budget_without_bound(ledger: Ledger) -> None:
    exact = make_reservation(kind="none")
    assert exact.mechanism.event is None
    with pytest.raises(Refusal):
        reserve(ledger, exact)
    set_budget(ledger, None)
    reserve(ledger, exact)
    charge(ledger, exact)
    spending = ledger.spending("heart")
    assert (spending.spent, spending.reserved, spending.left, spending.estimate) == (math.inf, math.inf, math.inf, None)
    assert spending.alone == math.inf
    set_budget(ledger, 1000.0)
    with pytest.raises(Refusal):
        reserve(ledger, make_reservation(2))
    assert ledger.verify().spending == {"heart": (math.inf, None)}


def test_a_refusal_is_recorded_with_its_figures(ledger: Ledger) -> None:
    set_budget(ledger, 0.5)
    item = make_reservation()
    with pytest.raises(Refusal) as caught:
        reserve(ledger, item)
    assert not ledger.entries(kind=Kind.RESERVE)
    with ledger.database.transaction() as connection:
        ledger.refuse(connection, caught.value, reservation=item)
    entry = ledger.entries(kind=Kind.REFUSAL)[0]
    assert entry.reservation == item
    assert entry.detail["code"] == "budget-exceeded"
    figures = {name: float.fromhex(value) for name, value in entry.detail["figures"].items()}
    assert figures == {"budget": 0.5, "reserved": 0.0, "after": rdp_epsilon([item.mechanism.event], DELTA)}
    assert set(entry.detail) == {"code", "message", "figures"}, "one reason, and one release that the columns describe"
    assert ledger.spending("heart").reserved == 0
    with ledger.database.transaction() as connection:
        ledger.refuse(connection, caught.value, reservation=make_reservation(2, population="nowhere"))
    assert "figures" not in ledger.entries(kind=Kind.REFUSAL)[1].detail
    assert ledger.verify().entries == 5


def test_what_was_refused_may_be_asked_for_again(ledger: Ledger) -> None:
    """A refusal bears the attempt's numbers and context, but reserves neither."""
    item = make_reservation()
    with ledger.database.transaction() as connection:
        ledger.refuse(connection, Refusal(RefusalCode.BUDGET, "not enough left"), reservation=item)
    assert reserve(ledger, item) == 4
    assert charge(ledger, item) == 5
    assert ledger.verify().entries == 5


def test_a_refused_study_is_recorded_with_its_whole_cost(ledger: Ledger) -> None:
    """At enrolment: the study, what it declared, what would have stood after it, and every reason."""
    dear, cheap = make_reservation(multiplier=1.0).mechanism, make_reservation(multiplier=30.0).mechanism
    reasons = [Refusal(RefusalCode.BUDGET, "too dear", "raise it"), Refusal(RefusalCode.METHOD, "unknown")]
    with ledger.database.transaction() as connection:
        ledger.refuse(
            connection, Refusal(RefusalCode.METHOD, "two things", reasons=reasons), population="heart", study=STUDY,
            dataset="heart-2024", cost=[dear, cheap, dear],
        )  # fmt: skip
        ledger.refuse(connection, Refusal(RefusalCode.ANALYST, "nobody"), study=OTHER_STUDY)
    entry, bare = ledger.entries(kind=Kind.REFUSAL)
    assert (entry.study, entry.dataset, entry.population, entry.delta) == (STUDY, "heart-2024", "heart", DELTA)
    after = float.fromhex(entry.detail["figures"]["after"])
    assert after == rdp_epsilon([dear.event, cheap.event, dear.event], DELTA)
    assert entry.detail["reasons"] == [
        {"code": "budget-exceeded", "message": "too dear", "advice": "raise it"},
        {"code": "method-not-allowed", "message": "unknown", "advice": ""},
    ]
    assert [count for _, _, count in entry.detail["cost"]] == [2, 1]
    assert entry.detail["cost"][0][0] == json.loads(json.dumps(dear.to_json(), default=float.hex)) | {
        "sampling_rate": (1.0).hex()
    }
    assert (bare.study, bare.population) == (OTHER_STUDY, None)
    assert bare.detail == {"code": "analyst-not-allowed", "message": "nobody"}
    assert ledger.entries(study=STUDY) == [entry]
    assert ledger.verify().entries == 4


def test_a_refusal_holds_so_many_words_and_figures_without_bound(ledger: Ledger) -> None:
    long, exact = "x" * 2001, make_reservation(kind="none")
    reasons = [Refusal(RefusalCode.BUDGET, long, long), Refusal(RefusalCode.METHOD, "")]
    with ledger.database.transaction() as connection:
        ledger.refuse(connection, Refusal(RefusalCode.BUDGET, long, reasons=reasons), reservation=exact)
    (entry,) = ledger.entries(kind=Kind.REFUSAL)
    assert entry.detail["message"] == "x" * 2000
    assert entry.detail["reasons"][0] == {"code": "budget-exceeded", "message": "x" * 2000, "advice": "x" * 2000}
    assert entry.detail["figures"] == {"budget": (3.0).hex(), "reserved": (0.0).hex(), "after": None}
    assert ledger.verify().entries == 3


def test_a_refusal_of_hundreds_of_tasks_is_a_short_entry(ledger: Ledger) -> None:
    """An analyst words a study of 256 tasks: each may be refused for reasons of its own, and each has its own price."""
    codes = list(RefusalCode)
    reasons = [Refusal(codes[0], f"{k} " + "x" * 3000, "y" * 3000) for k in range(300)]
    reasons += [Refusal(code, f"of {code}") for code in codes[1:20]]
    dear = [make_reservation(multiplier=1.0 + k / 100).mechanism for k in range(256)]
    with ledger.database.transaction() as connection:
        ledger.refuse(
            connection, Refusal(codes[0], "z" * 10**6, reasons=reasons), population="heart", study=STUDY, cost=[*dear, *dear]
        )
    (entry,) = ledger.entries(kind=Kind.REFUSAL)
    assert len(canonical(entry.detail)) < 25_000
    told, more = entry.detail["reasons"], entry.detail["more_reasons"]
    assert [item["message"][:3] for item in told] == [f"{k} x"[:3] for k in range(16)]
    assert more == [[codes[0].value, 300 - 16], *([code.value, 1] for code in codes[1:20])], "every code is named"
    assert entry.detail["more_cost"] == 2 * (256 - 16)
    after = float.fromhex(entry.detail["figures"]["after"])
    assert after == rdp_epsilon([item.event for item in [*dear, *dear]], DELTA), "the figures are of all"
    assert ledger.verify().entries == 3


def test_a_failed_transaction_leaves_nothing(ledger: Ledger) -> None:
    item = make_reservation()
    reserve(ledger, item)
    before = ledger.head()

    def fail() -> None:
        with ledger.database.transaction() as connection:
            ledger.charge(connection, item.context)
            assert ledger.head(connection) != before
            assert ledger.spending("heart", connection).releases == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert ledger.head() == before
    assert ledger.spending("heart").releases == 0


def test_the_gate_forgets_what_was_rolled_back(ledger: Ledger) -> None:
    """Totals seen inside a transaction that fails are taken back, however many entries it had, budgets included."""
    for number in (1, 2):
        reserve(ledger, make_reservation(number, multiplier=50))
    for entries in (1, 3, 300):  # 300 is more than can be taken back one by one
        for _ in range(2):
            with contextlib.suppress(KeyboardInterrupt), ledger.database.transaction() as connection:
                ledger.charge(connection, make_reservation(1, multiplier=50).context)
                ledger.free(connection, make_reservation(2, multiplier=50).context)
                ledger.set_budget(connection, "heart", 1e9, DELTA, reason="r", operator="o")
                for number in range(entries):
                    ledger.reserve(connection, make_reservation(10 + number, multiplier=50))
                assert ledger.headroom("heart", {}, connection).budget.epsilon == 1e9
                raise KeyboardInterrupt
            event = make_reservation(multiplier=50).mechanism.event
            assert ledger.headroom("heart", {}).reserved == rdp_epsilon([event] * 2, DELTA)
            assert ledger.budget("heart") == Budget(3.0, DELTA)
            assert ledger.spending("heart").releases == 0
    assert reserve(ledger, make_reservation(3, multiplier=50)) == 5
    assert LedgerReader(ledger.database).spending("heart") == ledger.spending("heart")


def test_the_gate_reads_only_what_is_new(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the ledger: a decision takes in the entries since the last one, and takes back what was rolled back."""
    taken: list[int] = []
    take = Follower._take

    def note(self: Follower, row: Any) -> None:
        taken.append(row.seq)
        take(self, row)

    monkeypatch.setattr(Follower, "_take", note)
    with ledger.database.transaction() as connection:
        for number in range(1, 61):
            ledger.reserve(connection, make_reservation(number, multiplier=90))
    taken.clear()
    reserve(ledger, make_reservation(61, multiplier=90))
    assert taken == [62], "the last entry before it"
    reserve(ledger, make_reservation(62, multiplier=90))
    assert taken == [62, 63]
    ledger.headroom("heart", {})
    taken.clear()
    with contextlib.suppress(KeyboardInterrupt), ledger.database.transaction() as connection:
        for number in (1, 2, 3):
            ledger.free(connection, make_reservation(number, multiplier=90).context)
        ledger.headroom("heart", {}, connection)
        raise KeyboardInterrupt
    assert taken == [65, 66, 67]
    reserve(ledger, make_reservation(63, multiplier=90))
    assert taken == [65, 66, 67], "undone, not read anew"
    assert ledger.headroom("heart", {}).reserved == LedgerReader(ledger.database).headroom("heart", {}).reserved


def test_lost_charges(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        reserve(ledger, make_reservation(number, multiplier=20))
        charge(ledger, make_reservation(number, multiplier=20))
    assert ledger.lost_charges(STUDY) == 3
    see(ledger, make_reservation(2, multiplier=20))
    assert ledger.lost_charges(STUDY) == 2
    assert ledger.lost_charges(OTHER_STUDY) == 0


def test_filters(ledger: Ledger) -> None:
    one, other = make_reservation(1, multiplier=9), make_reservation(1, multiplier=9, study=OTHER_STUDY)
    for item in (one, other):
        reserve(ledger, item)
        charge(ledger, item)
    assert [entry.seq for entry in ledger.entries(study=OTHER_STUDY)] == [5, 6]
    assert [entry.seq for entry in ledger.entries(context=one.context, kind=Kind.CHARGE)] == [4]
    assert [entry.seq for entry in ledger.entries(population="heart", first=4)] == [4, 5, 6]
    assert [entry.seq for entry in ledger.entries(dataset="heart-2024")] == [3, 4, 5, 6]
    assert ledger.entries(dataset="heart-2025") == []
    times = [entry.time for entry in ledger.entries()]
    assert times == sorted(times)
    assert [entry.seq for entry in ledger.entries(since=times[2], until=times[4])] == [3, 4]


_COPY = (
    "SELECT {seq}, time, {kind}, study, round, attempt, population, dataset, event, delta, unit, "
    "cohort_size, colluders, context, detail, 'p', 'h', signature FROM ledger WHERE seq = 4"
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("statement", [
    "UPDATE ledger SET delta = 0.4 WHERE seq = 2",
    "DELETE FROM ledger WHERE seq = 3",
    "INSERT INTO ledger (seq, time, kind, detail, previous, hash, signature) VALUES (9, 0, 'charge', '{}', 'a', 'b', 'c')",
    "INSERT INTO ledger " + _COPY.format(seq=5, kind="kind"),
    "INSERT INTO ledger " + _COPY.format(seq=5, kind="'recovery'") + " UNION ALL "
    + _COPY.format(seq=6, kind="'recovery'").replace("'p', 'h'", "'q', 'i'"),
    "sqlite:INSERT OR REPLACE INTO ledger SELECT * FROM ledger WHERE seq = 3",
    "sqlite:INSERT OR REPLACE INTO ledger " + _COPY.format(seq=5, kind="kind"),
    "postgresql:TRUNCATE ledger",
])  # fmt: skip
def test_the_table_is_append_only(ledger: Ledger, statement: str) -> None:
    dialect, colon, rest = statement.partition(":")
    if colon and dialect in ("sqlite", "postgresql"):
        if dialect != ledger.database.engine.dialect.name:
            return  # the other database has no such statement
        statement = rest
    reserve(ledger, make_reservation())
    charge(ledger, make_reservation())
    before = [entry.hash for entry in ledger.entries()]
    with pytest.raises(Damage, match=r"append-only|UNIQUE|unique"), ledger.database.transaction() as connection:
        connection.execute(text(statement))
    assert [entry.hash for entry in ledger.entries()] == before


def test_the_database_itself_charges_a_round_once(ledger: Ledger) -> None:
    for attempt in (1, 2):
        reserve(ledger, make_reservation(1, attempt))
    charge(ledger, make_reservation(1, 1))
    with pytest.raises(Damage, match=r"UNIQUE|unique"), ledger.database.transaction() as connection:
        connection.execute(text("INSERT INTO ledger " + _COPY.format(seq=6, kind="'charge'")))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "damage",
    [
        "event = 'x' WHERE seq = 3",
        "event = NULL WHERE seq = 3",
        "colluders = NULL WHERE seq = 3",
        "population = NULL WHERE seq = 3",
        "context = NULL WHERE seq = 3",
        "kind = 'gift' WHERE seq = 3",
        "kind = 'free' WHERE seq = 3",
        "delta = NULL WHERE seq = 2",
        "detail = '{}' WHERE seq = 2",
        "detail = 'x' WHERE seq = 2",
        "event = 'x', colluders = 7 WHERE seq = 4",
    ],
)
def test_a_damaged_row_stops_the_gate_with_a_typed_error(ledger: Ledger, damage: str) -> None:
    """What can no longer be counted is not passed over: nothing is reserved on a guess."""
    reserve(ledger, make_reservation(1))
    reserve(ledger, make_reservation(2))
    database = ledger.database
    with database.transaction() as connection:
        drop = (
            "DROP TRIGGER ledger_no_update"
            if database.engine.dialect.name == "sqlite"
            else "DROP TRIGGER ledger_no_change ON ledger"
        )
        connection.execute(text(drop))
        connection.execute(text(f"UPDATE ledger SET {damage}"))  # noqa: S608 - fixed text
    again = open_ledger(database)
    if "gift" in damage:
        with pytest.raises(HostileInput, match="written by a newer version"):
            charge(again, make_reservation(1))
    with pytest.raises(VeilsumError):
        again.verify()
    with pytest.raises(VeilsumError):
        reserve(again, make_reservation(3))


def test_opening_again(place: str) -> None:
    ledger = open_ledger(place)
    set_budget(ledger)
    head = ledger.head()
    database = ledger.database
    assert open_ledger(database).head() == head, "the same key again writes nothing"
    assert LedgerReader(database).verify().entries == 2
    with pytest.raises(StateError, match="belongs to north, not to south"):
        open_ledger(database, "south")
    with pytest.raises(StateError, match="participant's, not a coordinator's"):
        open_mirror(database, credentials=credentials_of("north", role=Role.COORDINATOR))
    with pytest.raises(StateError, match="another federation"):
        open_ledger(database, credentials=credentials_of(of="elsewhere"))
    assert ledger.head() == head
    with database.transaction() as connection:
        if database.engine.dialect.name == "sqlite":
            connection.execute(text("DROP TRIGGER ledger_no_update"))
        else:
            connection.execute(text("DROP TRIGGER ledger_no_change ON ledger"))
        connection.execute(text("UPDATE ledger SET time = 0 WHERE seq = 1"))
    with pytest.raises(Damage, match="first entry is damaged"):
        open_ledger(database)


def test_two_ledgers_begin_differently(tmp_path: Path) -> None:
    ledgers = [open_ledger(tmp_path / f"{name}.db", name) for name in ("north", "south")]
    assert ledgers[0].entries()[0].hash != ledgers[1].entries()[0].hash


def test_a_new_key_is_named_before_it_signs(ledger: Ledger) -> None:
    reserve(ledger, make_reservation(1))
    renewed = replace(credentials_of(), identity=credentials_of(days=1000).identity)
    assert renewed.identity.certificate != credentials_of().identity.certificate
    open_ledger(ledger.database, credentials=renewed)
    assert not ledger.entries(kind=Kind.KEY), "a renewed certificate of the same key is not a new key"
    second = credentials_of(secret=2)
    again = open_ledger(ledger.database, credentials=second)
    charge(again, make_reservation(1))
    open_ledger(ledger.database, credentials=second)
    open_ledger(ledger.database, credentials=credentials_of())
    verified = ledger.verify()
    named = [credentials_of().identity.fingerprint, second.identity.fingerprint]
    assert verified.keys == (*named, named[0])
    assert [entry.seq for entry in ledger.entries(kind=Kind.KEY)] == [4, 6]


def test_a_key_that_is_renewed_in_use_signs_from_there_on(ledger: Ledger) -> None:
    def run(write: Callable[[Connection], object]) -> None:
        with ledger.database.transaction() as connection:
            write(connection)

    first, second = credentials_of(), credentials_of(secret=2)
    ledger.renew(second, run)
    assert reserve(ledger, make_reservation(1)) == 4
    assert ledger.verify().keys == (first.identity.fingerprint, second.identity.fingerprint)
    with pytest.raises(Misuse, match="another party"):
        ledger.renew(credentials_of("south"), run)


def test_who_has_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="Only a participant"):
        open_ledger(":memory:", credentials=credentials_of("x", role=Role.COORDINATOR))
    with pytest.raises(HostileInput, match="expired"):
        open_ledger(":memory:", credentials=credentials_of(days=1), clock=ticking(START + 10**6))
    empty = open_database(tmp_path / "empty.db")
    with pytest.raises(StateError, match="holds no ledger"):
        LedgerReader(empty)


@pytest.mark.parametrize(
    "change",
    [
        {"study": b"short"},
        {"context": b""},
        {"round": -1},
        {"sensitivity": 0},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.5},
        {"steps": 0},
        {"cohort_size": 3},  # three honest shares of a cohort of three, with one colluder
        {"noise": plan_noise("none", 0, 4, 1), "sensitivity": -1},
    ],
)
def test_reservations_that_cannot_be_priced_cannot_be_made(change: dict) -> None:
    release = make_reservation()
    costs = {name: value for name, value in change.items() if name in {each.name for each in fields(Mechanism)}}
    own = {name: value for name, value in change.items() if name not in costs}
    with pytest.raises(Misuse):
        replace(release, mechanism=replace(release.mechanism, **costs), **own)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, DELTA), (-1.0, DELTA), (math.nan, DELTA), (math.inf, DELTA), (1.0, 0.0), (1.0, 0.5)],
)
def test_budgets_out_of_range(ledger: Ledger, epsilon: float, delta: float) -> None:
    with pytest.raises(Misuse), ledger.database.transaction() as connection:
        ledger.set_budget(connection, "heart", epsilon, delta, reason="r", operator="o")


@pytest.mark.parametrize("missing", ["population", "reason", "operator"])
def test_a_budget_needs_a_population_a_reason_and_an_operator(ledger: Ledger, missing: str) -> None:
    words = {"population": "heart", "reason": "r", "operator": "o", missing: ""}
    with pytest.raises(Misuse, match="needs a population"), ledger.database.transaction() as connection:
        ledger.set_budget(connection, epsilon=1.0, delta=DELTA, **words)


def test_a_checkpoint_states_where_populations_stood(ledger: Ledger) -> None:
    set_budget(ledger, None, "lung")
    set_budget(ledger, 9.0, "skin")
    for item in (make_reservation(1), make_reservation(2, population="lung", kind="none")):
        reserve(ledger, item)
        charge(ledger, item)
    reserve(ledger, make_reservation(3, multiplier=30))
    head = ledger.head()
    with ledger.database.transaction() as connection:
        inside = ledger.checkpoint(connection)
    charge(ledger, make_reservation(3, multiplier=30))
    after = ledger.checkpoint()
    first, second = ledger.entries(kind=Kind.CHECKPOINT)
    assert (first.seq, second.seq) == (inside, after)
    assert (first.detail["upto"], bytes.fromhex(first.detail["head"])) == (inside - 1, head)
    spending = ledger.spending("heart")
    events = [make_reservation(multiplier=multiplier).mechanism.event for multiplier in (4.0, 30.0)]
    stated = second.detail["populations"]["heart"]
    assert float.fromhex(stated["spent"]) == spending.spent == rdp_epsilon(events, DELTA)
    assert float.fromhex(stated["estimate"]) == estimated_epsilon(events, DELTA)
    assert (stated["releases"], first.detail["populations"]["heart"]["releases"]) == (2, 1)
    assert second.detail["populations"]["lung"] == {"spent": None, "estimate": None, "releases": 1}
    assert float.fromhex(second.detail["populations"]["skin"]["spent"]) == 0.0
    assert ledger.verify().entries == after


def test_a_checkpoint_states_what_is_still_true(ledger: Ledger) -> None:
    """Its figures are computed apart: entries may have come since, but the one that it names must still be there."""
    reserve(ledger, make_reservation(1))
    charge(ledger, make_reservation(1))
    with ledger._reading(None) as reader:
        figures = ledger._figures(reader)
    reserve(ledger, make_reservation(2, multiplier=40))
    charge(ledger, make_reservation(2, multiplier=40))
    with ledger.database.transaction() as connection:
        assert ledger._append_checkpoint(connection, figures) == 7
    assert ledger.entries(kind=Kind.CHECKPOINT)[0].detail["populations"]["heart"]["releases"] == 1
    assert ledger.verify().entries == 7
    with contextlib.suppress(KeyboardInterrupt), ledger.database.transaction() as connection:
        ledger.reserve(connection, make_reservation(3, multiplier=40))
        figures = ledger._figures(connection)
        raise KeyboardInterrupt
    with (
        pytest.raises(StateError, match="changed while its checkpoint was computed"),
        ledger.database.transaction() as connection,
    ):
        ledger._append_checkpoint(connection, figures)
    assert ledger.checkpoint() == 8


# -- receipts


@pytest.fixture(params=BACKENDS)
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Trial:
    return Trial(("north", "south", "east"), lambda _: new_place(request.param, tmp_path, LEDGER))


def test_a_charge_keeps_the_whole_cohorts_word(trial: Trial) -> None:
    shown = trial.play(1)
    ledger = trial.ledgers["south"]
    charged = ledger.entries(kind=Kind.CHARGE)[0]
    kept = ledger.receipts()
    assert [item.receipt for item in kept] == list(shown.receipts)
    assert [item.parsed.participant for item in kept] == ["north", "south", "east"]
    assert {item.entry for item in kept} == {charged.seq}
    assert [item.position for item in kept] == [0, 1, 2]
    assert [item.certificate for item in kept] == [trial.certificates[name] for name in trial.names]
    assert {item.consent for item in kept} == {None}
    assert charged.detail["countersigned"] == [shown.countersigned.body.hex(), shown.countersigned.signature.hex()]
    trial.play(2, study=OTHER_STUDY)
    assert [item.parsed.participant for item in ledger.receipts(study=OTHER_STUDY)] == ["north", "south", "east"]
    assert [item.entry for item in ledger.receipts(participant="east")] == [4, 7]
    assert [item.entry for item in ledger.receipts(context=shown.release.context)] == [4] * 3
    assert [item.entry for item in ledger.receipts(entry=7)] == [7] * 3
    assert [item.entry for item in ledger.receipts(first=5)] == [7] * 3
    verified = ledger.verify(against=trial.others("south"))
    assert (verified.entries, verified.receipts) == (8, 6)
    assert trial.charge("south", shown) == 4, "charging again keeps nothing twice"
    assert len(ledger.receipts()) == 6


def test_a_charge_bears_the_time_at_which_its_certificates_held(trial: Trial) -> None:
    release = trial.release(1)
    trial.reserve(release)
    shown = trial.show(release)
    before = trial.clock()
    number = trial.charge("north", shown)
    (charged,) = trial.ledgers["north"].entries(kind=Kind.CHARGE)
    assert (charged.seq, charged.time) == (number, before + 1), "the clock is read once"


def test_what_does_not_fit_is_not_kept_and_not_charged(trial: Trial) -> None:
    """Every part of a witness is wrong once; the reservation stays open and the budget as it was."""
    trial.play(1)
    release, other = trial.release(2), trial.release(3)
    trial.reserve(release)
    trial.reserve(other)
    shown, second = trial.show(release), trial.show(other)
    good = trial.witness(shown)
    north = trial.ledgers["north"]
    foreign = credentials_of("south", of="elsewhere").identity.certificate
    swapped = (shown.receipts[1], shown.receipts[0], shown.receipts[2])
    forged = replace(shown.receipts[1], signature=shown.receipts[2].signature)
    old = make_receipt(trial.ledgers["south"], release, 1)
    other_dataset = make_receipt(trial.ledgers["south"], release, 9, dataset="other")
    witnesses = {
        "not exactly one": replace(good, receipts=shown.receipts[:2]),
        "countersigned different receipts": replace(good, receipts=swapped),
        "not signed by that member": replace(good, receipts=(shown.receipts[0], forged, shown.receipts[2])),
        "different release": replace(good, receipts=(shown.receipts[0], other_dataset, shown.receipts[2])),
        "number 1": replace(good, receipts=(shown.receipts[0], old, shown.receipts[2])),
        "another context": replace(good, receipts=(shown.receipts[0], second.receipts[1], shown.receipts[2])),
        "not for the release": trial.witness(second),
        "for another study or context": replace(good, countersigned=second.countersigned),
        "under veilsum/1/countersign": replace(
            good, countersigned=replace(shown.countersigned, signature=second.countersigned.signature)
        ),
        "no certificate of south": _drop(good, "south"),
        "certificate of south does not hold": replace(good, certificates={**good.certificates, "south": foreign}),
        "no certificate of the coordinator": _drop(good, COORDINATOR),
        "That of a participant": replace(good, certificates={**good.certificates, COORDINATOR: good.certificates["east"]}),
    }
    before = north.head()
    for fault, witness in witnesses.items():
        with pytest.raises(HostileInput, match=f"(?i){fault}"), north.database.transaction() as connection:
            north.charge(connection, release.context, witness)
    assert north.head() == before
    assert len(north.receipts()) == 3
    trial.charge("north", shown)
    assert north.verify(against=trial.others("north")).receipts == 6


def _drop(witness: Witness, name: str) -> Witness:
    left = {other: certificate for other, certificate in witness.certificates.items() if other != name}
    return replace(witness, certificates=left)


def test_an_own_receipt_from_another_chain_is_not_kept(trial: Trial) -> None:
    release = trial.release(1)
    trial.reserve(release)
    receipts = [make_receipt(trial.ledgers[name], release, 1) for name in trial.names]
    receipts[0] = make_receipt(trial.ledgers["north"], release, 1, head=trial.ledgers["south"].head())
    with trial.mirror.database.transaction() as connection:
        word = trial.mirror.show(connection, receipts, trial.certificates)
    north = trial.ledgers["north"]
    with (
        pytest.raises(HostileInput, match="does not name an entry of this ledger"),
        north.database.transaction() as connection,
    ):
        north.charge(connection, release.context, Witness(tuple(receipts), word, trial.certificates))


def test_kept_receipts_are_append_only(trial: Trial) -> None:
    trial.play(1)
    for ledger in (trial.ledgers["north"], trial.mirror):
        for statement in (
            "UPDATE ledger_receipt SET number = 9",
            "UPDATE ledger_receipt SET consent = 'aa', signature = 'bb'",
            "DELETE FROM ledger_receipt",
            "UPDATE ledger_certificate SET certificate = 'aa'",
            "DELETE FROM ledger_certificate",
        ):
            with pytest.raises(Damage, match="append-only"), ledger.database.transaction() as connection:
                connection.execute(text(statement))
    with pytest.raises(Damage, match="append-only"), trial.mirror.database.transaction() as connection:
        connection.execute(text("UPDATE ledger_receipt SET consent = 'aa'"))  # set once already


# -- recovery


def test_recovery_charges_what_own_receipts_show_once(ledger: Ledger) -> None:
    """Known and open, known and freed, unknown; the budget does not stand in the way, and repeating changes nothing."""
    open_, freed, unknown = (make_reservation(number, multiplier=2.0) for number in (1, 2, 3))
    set_budget(ledger, 4.0)
    reserve(ledger, open_)
    receipts = [make_receipt(ledger, item, number) for number, item in enumerate((open_, freed, unknown), 1)]
    free_again = make_reservation(2, multiplier=2.0)
    set_budget(ledger, 9.0)
    reserve(ledger, free_again)
    free(ledger, free_again)
    set_budget(ledger, 4.0)
    numbers = []
    for signed in receipts * 2:
        with ledger.database.transaction() as connection:
            numbers.append(ledger.recover(connection, signed, "heart"))
    assert numbers == [9, 10, 11, None, None, None]
    spending = ledger.spending("heart")
    assert spending.releases == 3
    assert spending.spent == spending.reserved == rdp_epsilon([open_.mechanism.event] * 3, DELTA) > 4.0
    assert ledger.lost_charges(STUDY) == 3
    assert [entry.reservation for entry in ledger.entries(kind=Kind.RECOVERY)] == [open_, freed, unknown]
    assert charge(ledger, open_) == 9, "a charge that was recovered is not paid again"
    for call, item in ((free, open_), (reserve, make_reservation(1, 2)), (free, unknown)):
        with pytest.raises(StateError):
            call(ledger, item)
    for item in (open_, freed, unknown):
        with pytest.raises(StateError, match="charged from its receipt"):
            reserve(ledger, item)
    with pytest.raises(Refusal):
        reserve(ledger, make_reservation(4, multiplier=2.0))
    assert see(ledger, unknown) == 12
    with ledger.database.transaction() as connection:
        assert ledger.release_seen(connection, open_.context) == 13
    assert [entry.detail for entry in ledger.entries(kind=Kind.RELEASE_SEEN)] == [{"digest": "01" * 32}, {}]
    assert ledger.verify().receipts == 3
    assert ledger.lost_charges(STUDY) == 1


def test_recovery_of_a_population_without_a_budget(ledger: Ledger) -> None:
    item = make_reservation(population="old-name")
    signed = make_receipt(ledger, item, 1)
    with ledger.database.transaction() as connection:
        entry = ledger.recover(connection, signed, "old-name")
    assert ledger.entries(kind=Kind.RECOVERY)[0].delta is None
    set_budget(ledger, 5.0, "old-name")
    assert ledger.spending("old-name").spent == rdp_epsilon([item.mechanism.event], DELTA)
    assert ledger.verify().entries == (entry or 0) + 1


def test_recovery_takes_only_the_sites_own_word(ledger: Ledger) -> None:
    item = make_reservation()
    signed = make_receipt(ledger, item, 1)
    other = make_receipt(open_ledger(":memory:", "south"), item, 1)
    claimed = make_receipt(ledger, item, 1, participant="south")
    for wrong in (other, claimed, replace(signed, signature=other.signature), replace(signed, body=other.body)):
        with pytest.raises(HostileInput), ledger.database.transaction() as connection:
            ledger.recover(connection, wrong, "heart")
    theirs = credentials_of("south").identity.certificate
    with pytest.raises(HostileInput, match="not signed by this site"), ledger.database.transaction() as connection:
        ledger.recover(connection, other, "heart", certificate=theirs)
    reserve(ledger, item)
    changed = make_receipt(ledger, item, 1, dataset="x")
    with pytest.raises(HostileInput, match="different release"), ledger.database.transaction() as connection:
        ledger.recover(connection, changed, "heart")
    assert len(ledger.entries()) == 3


def test_recovery_of_what_an_earlier_key_signed(ledger: Ledger) -> None:
    """Keys that the ledger names, expired certificates included; others need their certificate shown."""
    first, second, third = (make_reservation(number) for number in (1, 2, 3))
    old = make_receipt(ledger, first, 1)
    lost = open_ledger(":memory:", credentials=credentials_of(secret=5, days=30))
    lost_receipt = make_receipt(lost, second, 2)
    again = open_ledger(ledger.database, credentials=credentials_of(secret=2), clock=ticking(START + 86_400 * 60))
    rewound = make_receipt(again, third, 3, head=bytes(32))
    with ledger.database.transaction() as connection:
        assert again.recover(connection, old, "heart") == 4
        with pytest.raises(HostileInput, match="not signed by this site"):
            again.recover(connection, lost_receipt, "heart")
        certificate = credentials_of(secret=5, days=30).identity.certificate
        assert again.recover(connection, lost_receipt, "heart", certificate=certificate) == 5
        assert again.recover(connection, rewound, "heart") == 6
    assert again.verify().receipts == 3


class Lifecycle(RuleBasedStateMachine):
    """Random calls against a model that holds sets: the ledger agrees, and its own verification passes at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = open_ledger(":memory:")
        self.budget: float = 3.0
        set_budget(self.ledger, self.budget)
        self.state: dict[tuple[int, int], str] = {}

    def _epsilon(self, *extra: Reservation) -> float:
        paid = [make_reservation(*key) for key, state in self.state.items() if state != "free"]
        return rdp_epsilon([item.mechanism.event for item in (*paid, *extra)], DELTA)

    def _outcome(self, call: object, item: Reservation) -> str:
        try:
            call(self.ledger, item)  # type: ignore[operator]
        except (Refusal, StateError) as error:
            return type(error).__name__
        return "done"

    def _round_is_paid(self, key: tuple[int, int]) -> bool:
        return any(other[0] == key[0] and state in ("charge", "recovery") for other, state in self.state.items())

    keys = st.tuples(st.integers(1, 4), st.integers(1, 2))

    @rule(key=keys)
    def reserve(self, key: tuple[int, int]) -> None:
        item = make_reservation(*key)
        state = self.state.get(key)
        if state in ("reserve", "charge"):
            expected = "done"
        elif state is not None or self._round_is_paid(key):
            expected = "StateError"
        else:
            expected = "done" if self._epsilon(item) <= self.budget else "Refusal"
        if state == "recovery":
            expected = "StateError"
        assert self._outcome(reserve, item) == expected
        if expected == "done" and state is None:
            self.state[key] = "reserve"

    @rule(key=keys)
    def charge(self, key: tuple[int, int]) -> None:
        state = self.state.get(key)
        expected = "done" if state in ("charge", "recovery") else "StateError"
        if state == "reserve" and not self._round_is_paid(key):
            expected = "done" if self._epsilon() <= self.budget else "Refusal"
        assert self._outcome(charge, make_reservation(*key)) == expected
        if expected == "done" and state == "reserve":
            self.state[key] = "charge"

    @rule(key=keys)
    def free(self, key: tuple[int, int]) -> None:
        expected = "done" if self.state.get(key) in ("reserve", "free") else "StateError"
        assert self._outcome(free, make_reservation(*key)) == expected
        if expected == "done":
            self.state[key] = "free"

    @rule(key=keys)
    def recover(self, key: tuple[int, int]) -> None:
        item = make_reservation(*key)
        signed = make_receipt(self.ledger, item, 10 * key[0] + key[1])
        with self.ledger.database.transaction() as connection:
            entry = self.ledger.recover(connection, signed, "heart")
        assert (entry is None) == (self.state.get(key) in ("charge", "recovery"))
        if entry is not None:
            self.state[key] = "recovery"

    @rule(key=keys, epsilon=st.sampled_from([0.9, 1.6, 3.0]))
    def fail(self, key: tuple[int, int], epsilon: float) -> None:
        """A transaction that does several things and is undone."""
        with contextlib.suppress(KeyboardInterrupt), self.ledger.database.transaction() as connection:
            self.ledger.set_budget(connection, "heart", epsilon, DELTA, reason="r", operator="o")
            signed = make_receipt(self.ledger, make_reservation(*key), 99, head=self.ledger.head(connection))
            self.ledger.recover(connection, signed, "heart")
            self.ledger.headroom("heart", {}, connection)
            raise KeyboardInterrupt

    @rule(epsilon=st.sampled_from([0.9, 1.6, 3.0]))
    def change_budget(self, epsilon: float) -> None:
        self.budget = epsilon
        set_budget(self.ledger, epsilon)

    @rule()
    def change_key(self) -> None:
        fingerprint = self.ledger._chain.credentials.identity.fingerprint
        secret = 2 if fingerprint == credentials_of().identity.fingerprint else 1
        self.ledger = open_ledger(self.ledger.database, credentials=credentials_of(secret=secret))

    @rule()
    def checkpoint(self) -> None:
        self.ledger.checkpoint()

    @invariant()
    def the_books_agree(self) -> None:
        spending = self.ledger.spending("heart")
        counts = Counter(self.state.values())
        assert spending.releases == counts["charge"] + counts["recovery"]
        assert spending.reserved == self._epsilon()
        assert LedgerReader(self.ledger.database).spending("heart") == spending
        assert self.ledger.verify().entries == len(self.ledger.entries())

    def teardown(self) -> None:
        self.ledger.database.close()


Lifecycle.TestCase.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
TestLifecycle = Lifecycle.TestCase
