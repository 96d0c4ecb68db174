"""How a person's records count, held against the rule told record by record: every value, what is absent, and what is left."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilsum_privacy.mechanism.persons import Persons, Reduction, join_records
from veilsum_privacy.mechanism.records import Records

NUMBERS, LEVELS = 2, 3
PLACE = slice(NUMBERS, NUMBERS + LEVELS)
ODD = (-1.0, 1.0, 0.0, -0.0, 0.25, -0.5, 5e-324, 1e300, -7.0, math.nan, math.inf, -math.inf)

Row = tuple[list[tuple[float, bool]], int, int]
"""Two numbers, each with whether it is there; the place of a level, -1 for none; and a class, -1 for none."""

SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed: int) -> tuple[list[Row], list[int]]:
    """Rows, and whose they are, never descending."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 13))
    numbers, there = rng.choice(ODD, (count, NUMBERS)), rng.random((count, NUMBERS)) < 0.7
    rows = [
        (
            list(zip(numbers[at].tolist(), there[at].tolist(), strict=True)),
            int(rng.integers(-1, LEVELS)),
            int(rng.integers(-1, 3)),
        )
        for at in range(count)
    ]
    return rows, np.sort(rng.integers(0, 1 + count // 2, count)).tolist()


def records_of(rows: list[Row], whose: list[int]) -> Records:
    features = np.zeros((len(rows), NUMBERS + LEVELS))
    present = np.zeros(features.shape, dtype=np.bool_)
    for at, (numbers, level, _) in enumerate(rows):
        for place, (value, there) in enumerate(numbers):
            features[at, place], present[at, place] = value, there
        if level >= 0:
            features[at, NUMBERS + level], present[at, PLACE] = 1.0, True
    labels = np.array([label for *_, label in rows], dtype=np.int64)
    return Records(features, present, labels, np.array(whose, dtype=np.int64))


def joined(own: list[Row], how: Reduction) -> tuple[list[float | None], int]:
    """What stands for these records: each feature, None where it is absent, and the class."""
    levels = [level for _, level, _ in own if level >= 0]
    values: list[float | None] = []
    for place in range(NUMBERS):
        held = [value for numbers, *_ in own for value, there in [numbers[place]] if there and math.isfinite(value)]
        cut = [min(1.0, max(-1.0, value)) for value in held]
        values.append(None if not cut else max(cut) if how == "max" else sum(cut) / len(cut))
    shares = [levels.count(level) / max(1, len(levels)) for level in range(LEVELS)]
    if how == "max":
        shares = [float(level == max(levels, default=-1)) for level in range(LEVELS)]
    classes = Counter(label for *_, label in own if label >= 0)
    most = min(classes, key=lambda label: (-classes[label], label), default=-1)
    return [*values, *(shares if levels else [None] * LEVELS)], max(label for *_, label in own) if how == "max" else most


@pytest.mark.parametrize("how", get_args(Reduction))
@given(seed=SEEDS)
def test_the_first_record_stands_for_a_person_and_the_others_are_left(how: Reduction, seed: int) -> None:
    rows, whose = drawn(seed)
    before = records_of(rows, whose)
    found = join_records(before, how, [PLACE])
    expected = records_of(rows, whose)
    assert expected.labels is not None
    for person in set(whose):
        first, own = whose.index(person), [row for row, other in zip(rows, whose, strict=True) if other == person]
        if how in ("first", "last"):
            chosen = first if how == "first" else first + len(own) - 1
            expected.features[first], expected.present[first] = before.features[chosen], before.present[chosen]
            expected.labels[first] = own[0 if how == "first" else -1][2]
            continue
        values, expected.labels[first] = joined(own, how)
        expected.features[first] = [0.0 if value is None else value for value in values]
        expected.present[first] = [value is not None for value in values]
    np.testing.assert_allclose(found.features, expected.features, rtol=1e-14, atol=0)
    np.testing.assert_array_equal(found.present, expected.present)
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert found.subjects is not None
    assert found.subjects.tolist() == whose


@given(SEEDS, st.integers(0, 3), st.booleans(), st.booleans())
def test_so_many_records_of_each_person_count_if_their_values_do(seed: int, at_most: int, valued: bool, told: bool) -> None:
    """Without persons there is nobody whose records could be too many."""
    rows, whose = drawn(seed)
    records = records_of(rows, whose)
    records = records if told else Records(records.features, records.present, records.labels, None)
    _, counted = Persons(at_most=at_most, valued=valued).counted(records)
    expected = []
    for at, (numbers, *_) in enumerate(rows):
        early = not (told and at_most) or at - whose.index(whose[at]) < at_most
        expected.append(early and (not valued or all(math.isfinite(value) for value, _ in numbers)))
    assert counted.dtype == np.bool_
    assert counted.tolist() == expected


@pytest.mark.parametrize("how", get_args(Reduction))
@given(seed=SEEDS, valued=st.booleans())
def test_one_record_of_each_person_counts_where_they_become_one(how: Reduction, seed: int, valued: bool) -> None:
    rows, whose = drawn(seed)
    before = records_of(rows, whose)
    found, counted = Persons(person=how, categories=(PLACE,), valued=valued).counted(before)
    kept = [not valued or bool(np.isfinite(row).all()) for row in before.features]
    assert counted.tolist() == [kept[at] and at == whose.index(person) for at, person in enumerate(whose)]
    same: Any = join_records(before, how, [PLACE])
    np.testing.assert_array_equal(found.features, same.features)
