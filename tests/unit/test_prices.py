"""What a study costs by what it declares, and by what of it was released."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest

from support.neighbours import SETTINGS
from veilsum_node.errors import Misuse
from veilsum_privacy.accounting.accountant import GaussianEvent
from veilsum_privacy.accounting.deltas import delta_warning
from veilsum_privacy.accounting.figures import rdp_epsilon
from veilsum_privacy.accounting.prices import declared_event, study_epsilon
from veilsum_privacy.study.study import NoiseKind, Study

DELTA = 1e-5
BASE = SETTINGS[0].study("record", grid=1000, variance=10**6)
GRID = BASE.tasks[0].grid


def study(*tasks: Mapping[str, Any], noise: NoiseKind = "local") -> Study:
    """A study of tasks that differ from one in these."""
    declared = tuple(BASE.tasks[0].model_copy(update={"label": f"t{index}", **task}) for index, task in enumerate(tasks))
    return BASE.model_copy(update={"tasks": declared, "privacy": BASE.privacy.model_copy(update={"noise": noise})})


def event(variance: int, rate: float = 1.0, steps: int = 1) -> GaussianEvent:
    return GaussianEvent(GRID, Fraction(variance), rate, steps)


@pytest.mark.parametrize(
    ("delta", "records", "most", "warned"),
    [
        (0.3, 300, 100_000, True),
        (0.3, None, 300, True),
        (1 / 300, 300, 100_000, False),
        (math.nextafter(1 / 300, 1), 300, 100_000, True),
        (1e-5, None, 100_000, False),
        (1.1e-5, None, 100_000, True),
        (1e-5, 1_000_000, 100_000, True),
        (1e-5, None, 100_001, True),
        (0.49, 2, 2, False),
    ],
)
def test_a_delta_above_one_in_n_is_warned_of(delta: float, records: int | None, most: int, warned: bool) -> None:
    """n is what is expected of a site, else the schema's bound; the advice itself is not warned of again."""
    changed = {"privacy": BASE.privacy.model_copy(update={"delta": delta, "noise": "local"})}
    asked = BASE.model_copy(update={**changed, "data": BASE.data.model_copy(update={"max_records": most})})
    text = delta_warning(asked, records)
    assert bool(text) == warned
    n = records or most
    if warned:
        assert f"Delta {delta:g} is above 1 / {n:,}" in text
        assert ("max_records" in text) == (records is None)
        advised = float(text.split("delta = ")[1].split(" ")[0])
        assert 0 < advised <= 1e-5
        assert advised <= 0.1 / n
    exact = asked.model_copy(update={"privacy": asked.privacy.model_copy(update={"noise": "none"})})
    assert delta_warning(exact, records) == ""


def test_a_declaration_is_one_event_of_all_its_steps() -> None:
    task = study({"variance": 10**7, "releases": 5, "sampling_rate": 0.25, "local_steps": 3}).tasks[0]
    assert declared_event(task) == event(10**7, 0.25, 15)
    assert declared_event(task, 2) == event(10**7, 0.25, 6)
    assert declared_event(task.model_copy(update={"local_steps": 0})) == event(10**7, 0.25, 5)
    for nothing in (declared_event, lambda each: declared_event(each, 1)):
        with pytest.raises(Misuse):
            nothing(task.model_copy(update={"variance": 0}))


def test_tasks_add_up_as_far_as_they_were_released() -> None:
    both = study({"variance": 10**6, "releases": 2}, {"variance": 10**7, "releases": 4})
    first, second = event(10**6), event(10**7)
    assert study_epsilon(both, DELTA) == rdp_epsilon({first: 2, second: 4}, DELTA)
    assert study_epsilon(both, 1e-9) == rdp_epsilon({first: 2, second: 4}, 1e-9)
    assert study_epsilon(both, DELTA, {"t0": 1, "t1": 3}) == rdp_epsilon({first: 1, second: 3}, DELTA)
    assert study_epsilon(both, DELTA, {"t1": 1, "other": 9}) == rdp_epsilon([second], DELTA)
    assert study_epsilon(both, DELTA, {"t0": 0}) == 0.0
    assert study_epsilon(both, DELTA, {}) == 0.0


def test_what_is_computed_from_what_was_paid_for_is_free() -> None:
    derived = {"variance": 0, "source": "t0"}
    costly = {"variance": 10**6, "releases": 1}
    assert study_epsilon(study(costly, derived), DELTA) == rdp_epsilon([event(10**6)], DELTA)
    assert study_epsilon(study(costly, derived), DELTA, {"t1": 1}) == 0.0
    assert study_epsilon(study({**costly, "source": "t9"}), DELTA) == rdp_epsilon([event(10**6)], DELTA), (
        "it has its own noise"
    )


def test_without_noise_there_is_no_epsilon() -> None:
    plain = study({"variance": 0}, {"variance": 0, "source": "t0"}, noise="none")
    assert study_epsilon(plain, DELTA) == math.inf
    assert study_epsilon(plain, DELTA, {"t0": 1}) == math.inf
    assert study_epsilon(plain, DELTA, {"t1": 1}) == math.inf
    assert study_epsilon(plain, DELTA, {}) == 0.0
    assert study_epsilon(study({"variance": 10**6}, {"variance": 0}), DELTA) == math.inf
