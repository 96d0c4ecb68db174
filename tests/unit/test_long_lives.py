"""What a participant looks at each second and at each step is found by an index, however much lies behind it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.dialects import sqlite

from support.fresh import PARTICIPANT, fresh_database
from veilsum_participant.store import attempts, studies


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
