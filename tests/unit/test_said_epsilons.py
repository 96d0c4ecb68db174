"""Epsilons in messages: what was spent is never said to be less than it is, and what was left never to be more."""

from __future__ import annotations

import math
import re
from collections import Counter
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.federation import DATASET, make_request, schema_of
from support.fresh import PARTICIPANT, fresh_database
from support.ledgers import make_reservation, open_ledger, set_budget
from support.studies import agreed
from veilsum.api import plans
from veilsum.cli import planned
from veilsum.papers import Names
from veilsum_node.errors import Refusal
from veilsum_node.phrases import rounded
from veilsum_participant.protocol.budgets import budget_faults
from veilsum_participant.protocol.policy import study_faults
from veilsum_participant.settings.config import ParticipantConfig, Policy
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.dossier.figures import cost, remaining
from veilsum_privacy.ledger import Budget, Headroom
from veilsum_privacy.ledger.statements import declared_mechanisms
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy

EPSILONS = st.floats(min_value=1e-9, max_value=1e6) | st.sampled_from(
    [0.1, 0.3 + 1e-16, 0.6354, 1.0 - 1e-12, 1.0005, 3.0000004]
)
SHORT = st.sampled_from([1e-12, 1e-9, 4e-7, 4e-4, 0.3])
"""By how much of it a bound falls short of a cost: most vanish where either is rounded to nearest."""

STUDY: Study = agreed(make_request(schema_of(2)), "abc", now=1_800_000_000)
NUMBER = r"epsilon ([\d.e-]+)"


def said(pattern: str, text: str) -> list[Decimal]:
    """The numbers that a message says."""
    (found,) = re.finditer(pattern, text)
    return [Decimal(number.rstrip(".")) for number in found.groups()]


@given(EPSILONS)
def test_a_cost_is_rounded_up_and_what_is_left_down_by_little(value: float) -> None:
    exact = Decimal(repr(value))
    for up in (rounded(value), rounded(value, ROUND_CEILING), cost(value)):
        assert exact <= Decimal(up) <= exact + max(exact / 10, Decimal("0.001"))
    for down in (rounded(value, ROUND_FLOOR), remaining(value)):
        assert exact - max(exact / 10, Decimal("0.001")) <= Decimal(down) <= exact
    assert rounded(math.inf) == "infinite"
    assert rounded(0.0) == "0"


@given(EPSILONS)
def test_an_epsilon_that_would_do_does(value: float) -> None:
    """What a plan says to ask for reaches what it is asked for."""
    above, below = (SimpleNamespace(epsilon=value * factor) for factor in (2.0, 0.5))
    texts = [plans._wanted(SimpleNamespace(error_epsilon=value))]  # type: ignore[arg-type]
    texts += [planned._wanted(SimpleNamespace(error=0.1, error_epsilon=value, cost=own)) for own in (above, below)]  # type: ignore[arg-type]
    for text in texts:
        assert said(NUMBER, text)[0] >= Decimal(repr(value))


@given(EPSILONS)
def test_a_papers_note_states_no_smaller_epsilon(value: float) -> None:
    study = SimpleNamespace(privacy=SimpleNamespace(epsilon=value, delta=1e-5), data=None, parameters={})
    assert said(r"ε = ([\d.e-]+),", f"{Names(study).noise} ")[0] >= Decimal(repr(value))  # type: ignore[arg-type]


@given(SHORT)
@example(1e-12)
def test_a_policys_refusal_says_a_cost_above_its_bound(short: float) -> None:
    exact = study_epsilon(STUDY, STUDY.privacy.delta)
    dataset = DatasetConfig(path="records.csv", columns=("x0", "x1", "y"), most_records=1000)
    policy = Policy(analysts=("ana",), trusted={"b": "1" * 64, "c": "2" * 64}, max_epsilon=exact * (1.0 - short))
    config = ParticipantConfig(coordinator="localhost:1", datasets={DATASET: dataset}, policy=policy)
    (fault,) = study_faults(AgreedStudy(STUDY), "ana", config, "a", None)
    costs, most = said(rf"{NUMBER}; policy.max_epsilon is ([\d.e-]+)", fault.message)
    assert costs >= Decimal(repr(exact))
    assert costs > most


@pytest.mark.parametrize("short", [1e-12, 1e-9, 4e-7, 4e-4, 0.3])
@pytest.mark.parametrize("multiplier", [1.0, 4.0, 37.0])
def test_a_budgets_refusals_say_a_cost_above_it(multiplier: float, short: float) -> None:
    """Of the gate that a release passes, and of a study as a whole; what was spent before is not said to be less either."""
    ledger, reservation = open_ledger(":memory:"), make_reservation(multiplier=multiplier)
    set_budget(ledger, None)
    exact = ledger.headroom("heart", Counter({reservation.mechanism: 1})).after
    set_budget(ledger, exact * (1.0 - short))
    with ledger.database.transaction() as connection, pytest.raises(Refusal) as refused:
        ledger.reserve(connection, reservation)
    after, budget = said(rf"{NUMBER} of ([\d.e-]+) at", refused.value.message)
    assert after >= Decimal(repr(exact))
    assert after > budget

    class Books:
        def budget(self, *_: Any) -> Budget:
            return Budget(exact * (1.0 - short), 1e-5, "strict")

        def headroom(self, *_: Any) -> Headroom:
            return Headroom(self.budget(), exact * (1.0 - short), exact)

    dataset = DatasetConfig(path="records.csv", columns=("x0",), most_records=1000)
    config = ParticipantConfig(coordinator="localhost:1", datasets={DATASET: dataset})
    books: Any = Books()
    assert declared_mechanisms(STUDY)
    with fresh_database(":memory:", PARTICIPANT) as database, database.transaction() as connection:
        (fault,) = budget_faults(connection, config, books, bytes(32), STUDY)
    spent, of, after = said(rf"spent {NUMBER} of ([\d.e-]+) at .* bring it to ([\d.e-]+)", fault.message)
    assert spent >= Decimal(repr(exact * (1.0 - short)))
    assert (after >= Decimal(repr(exact)), after > of) == (True, True)
