"""What a participant looks at each second and at each step is found by an index, however much lies behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert
from sqlalchemy.dialects import sqlite

from support.fresh import LEDGER, PARTICIPANT, fresh_database
from veilsum_participant.store import attempts, studies
from veilsum_privacy.ledger.kept_receipts import last_numbers
from veilsum_privacy.ledger.tables import receipt_table


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (studies._SIGNED_STUDIES, "participant_study_status"),
        (studies._OPEN_STUDIES, "participant_study_status"),
        (attempts._LATE, "participant_attempt_open"),
        (attempts._TALLY, "COVERING INDEX participant_attempt_label"),
        (attempts._TALLY_PRESENT, "participant_attempt_round"),
        (attempts._PAID_ATTEMPT, "participant_attempt_round"),
    ],
)
def test_what_is_over_is_not_read(query: Any, index: str) -> None:
    options = {"render_postcompile": True}
    statement = query.params(study=b"", round=0, now=0).compile(
        dialect=sqlite.dialect(paramstyle="qmark"), compile_kwargs=options
    )  # type: ignore[no-untyped-call]
    with fresh_database(":memory:", PARTICIPANT) as database, database.reading() as connection:
        driver: Any = connection.connection.driver_connection
        values = [0] * str(statement).count("?")
        (plan,) = [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()]
    assert plan.startswith("SEARCH")
    assert index in plan


NAMES = st.sampled_from(["a", "A", "a-", "a-1", "ab", "b", "B", "zürich", "zu", "\U0001f3e5", "\uffff"]) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3
)
KEPT = st.lists(st.tuples(st.integers(0, 2), NAMES, st.integers(1, 2**63 - 1)), unique=True, max_size=30)


@given(KEPT)
def test_last_numbers_are_the_highest_of_each_signer_in_the_study(kept: Sequence[tuple[int, str, int]]) -> None:
    """Whatever order names have, and whichever studies lie beside it."""
    expected: dict[int, dict[str, int]] = {0: {}, 1: {}, 2: {}}
    for study, name, number in kept:
        expected[study][name] = max(number, expected[study].get(name, 0))
    rows = [
        {"entry": entry, "position": 0, "context": f"{entry}", "participant": name, "study": bytes([study]).hex(), "round": 1,
         "attempt": 1, "number": number, "head": "", "body": "", "signature": "", "certificate": ""}
        for entry, (study, name, number) in enumerate(kept)
    ]  # fmt: skip
    with fresh_database(":memory:", LEDGER) as database, database.transaction() as connection:
        if rows:
            connection.execute(insert(receipt_table), rows)
        assert {study: last_numbers(connection, bytes([study])) for study in expected} == expected
