"""Queries are total: whatever a record holds, it adds a row within the norm, and others' rows stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.neighbours import random_records, schema, spoil
from support.rows import cells_of, computed, question_of_rows, question_rows
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import lookup
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.features import CLASS_WEIGHTS, class_weights
from veilsum_privacy.tasks.queries.kinds import KINDS, build_question
from veilsum_privacy.tasks.queries.language import Columns, DerivedColumn, Query

DATA = schema(3, categories=(2, 3))
DERIVED = [
    DerivedColumn(name="odds", number="4 * n0 - 2", low=-2, high=2),
    DerivedColumn(name="cut", of="n1", edges=(0.3, 0.7)),
]
COLUMNS = Columns(DATA, DERIVED)
BEYOND = (-(2**40), -2, 2, 3, 2**31, 2**62)

ASKED: dict[str, dict[str, Any]] = {
    "count": {"over": ("k1", "y"), "by": ("k0",)},
    "histogram": {"over": ("n0",), "edges": (0.2, 0.6), "by": ("y",)},
    "independence": {"over": ("k0", "y"), "by": ("cut",), "pooled": True},
    "quantiles": {"over": ("n0",), "edges": (0.2, 0.6), "by": ("y", "cut")},
    "mean": {"over": ("n0", "n1"), "by": ("y",)},
    "compare": {"over": ("n0",), "by": ("cut",)},
    "correlation": {"over": ("n0", "odds")},
    "missing": {"over": ("n0", "k0", "y"), "by": ("cut",)},
    "survival": {"over": ("n0",), "edges": (0.0, 0.5, 0.8), "event": "y", "censored": ("c0",), "by": ("k1",)},
    "logrank": {"over": ("n0",), "edges": (0.0, 0.5, 0.8), "event": "k1", "censored": ("a",), "by": ("y",)},
    "synthetic": {"over": ("n0", "k0", "y", "cut")},
    "linear": {"over": ("n0", "k1", "y"), "outcome": "k0 = 'a'"},
    "discrimination": {"over": ("cut",), "outcome": "y = 'c1'", "by": ("k0",)},
    "effect": {"over": ("odds",), "by": ("k0",), "outcome": "n1"},
}
"""A query of every kind, the label in most of them."""


def question_of(kind: str, **more: Any) -> Any:
    query = Query.model_validate({"name": "q", "kind": kind, "missing": "level", "scale": 10, **ASKED[kind], **more})
    return build_question(query, COLUMNS)


def rows(question: Any, records: Records) -> np.ndarray:
    return question_rows(question, COLUMNS, records)


def test_every_kind_is_asked() -> None:
    assert set(ASKED) == set(KINDS)


@pytest.mark.sampled(11)
@pytest.mark.parametrize("missing", ["drop", "level"])
@pytest.mark.parametrize("where", ["", "n0 > 0.5", "not (n2 > 0.5)", "k0 is missing or y = 'c2'"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_value_makes_a_query_fail_or_its_row_too_long(kind: str, where: str, missing: str) -> None:
    """Of missing, poisoned and complete records, with classes that there are not; in company as alone."""
    question = question_of(kind, where=where, missing=missing)
    rng = np.random.default_rng(5)
    records = spoil(random_records(rng, 200, DATA), rng)
    assert records.labels is not None
    records.labels[::3] = np.resize(BEYOND, len(records.labels[::3]))
    with np.errstate(all="ignore"):
        together = rows(question, records)
        assert int((together.astype(object) ** 2).sum(axis=1).max()) <= question.norm()
        alone = question_of_rows(question, COLUMNS, records)  # another evaluation than that of all
        for place in range(0, 200, 9):
            np.testing.assert_array_equal(alone(records.take(slice(place, place + 1)))[0], together[place])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_class_that_there_is_not_is_a_missing_one(kind: str) -> None:
    question = question_of(kind)
    records = random_records(np.random.default_rng(6), 60, DATA, complete=True)
    found = []
    for label in (-1, *BEYOND[1:4], 2**62, -(2**40)):
        labels = np.full(60, label) if label < 0 or label > 2 else np.full(60, 3)
        found.append(rows(question, Records(records.features, records.present, labels)))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("missing", ["drop", "level"])
@pytest.mark.parametrize("where", ["", "n0 > 0.5", "k0 is missing"])
def test_a_record_without_its_treatment_adds_nothing_to_an_effect(where: str, missing: str) -> None:
    """Whether it meets the condition or not; the records beside it add what they do without it."""
    question = question_of("effect", where=where, missing=missing)
    records = random_records(np.random.default_rng(7), 40, DATA, complete=True)
    before = rows(question, records)
    treatment = slice(3, 5)
    records.features[::2, treatment], records.present[::2, treatment] = 0.0, False
    after = rows(question, records)
    assert not after[::2].any()
    np.testing.assert_array_equal(after[1::2], before[1::2])
    assert before.any() == (where != "k0 is missing")
    assert [axis.levels for axis in question.groups] == [("a", "b")]


@given(st.lists(st.integers(-(2**62), 2**62) | st.integers(-3, 6)), st.integers(0, 4), st.sampled_from([(), (2,)]))
@settings(max_examples=200, deadline=None)
def test_a_lookup_out_of_range_is_zero(places: list[int], rows: int, shape: tuple[int, ...]) -> None:
    table = np.arange(1, rows * (shape[0] if shape else 1) + 1).reshape(rows, *shape)
    codes = np.array(places, dtype=np.int64)
    records = Records(np.zeros((len(codes), 1)), np.ones((len(codes), 1), dtype=np.bool_), codes)
    traced = computed(lambda record: lookup(table, record.label), records)
    found = lookup(table, codes)
    np.testing.assert_array_equal(traced, found)
    assert found.shape == (len(places), *shape)
    for place, row in zip(places, found, strict=True):
        np.testing.assert_array_equal(row, table[place] if 0 <= place < rows else np.zeros(shape))


def test_a_class_that_there_is_not_weighs_nothing() -> None:
    table = class_weights({CLASS_WEIGHTS: np.array([0.5, 1.0])}, 2)
    weights = lookup(table, np.array([0, 1, -1, 2, 2**62, -(2**62)]))
    np.testing.assert_array_equal(weights, [0.5, 1.0, 0, 0, 0, 0])


# -- derived numbers ----------------------------------------------------------------------------------------------------------

WIDE = DatasetSchema(
    columns=(
        NumberColumn(name="a", low=-5, high=-1),
        NumberColumn(name="big", low=1e99, high=1e100),
        NumberColumn(name="both", low=-1e100, high=1e100),
        NumberColumn(name="c", low=0, high=1),
    ),
    max_records=10,
)


def derive(*numbers: str, low: float = -1.0, high: float = 1.0) -> Columns:
    derived = [DerivedColumn(name=f"d{place}", number=text, low=low, high=high) for place, text in enumerate(numbers)]
    return Columns(WIDE, derived)


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        (["big * big * big * big"], "d0"),
        (["big * big * big * big - big * big * big * big"], "d0"),
        (["c", "c * 2 - big * big * big * 1e50"], "d1"),
        (["(c > 0.5) * big * big * big * big"], "d0"),
        (["0 * big * big * big * big + c", "c"], None),
        (["big * big * 1e-50", "d0 * c"], None),
    ],
)
def test_a_number_that_is_undefined_for_everybody_is_no_study(numbers: list[str], named: str | None) -> None:
    """It would make "is missing" a condition of the analyst's choice that no honest one has."""
    if named is None:
        derive(*numbers, low=-1e100, high=1e100)
        return
    with pytest.raises(HostileInput, match=rf"\[derive.{named}\]: the number is infinite or undefined") as found:
        derive(*numbers)
    assert "divide by constants" in found.value.advice


@pytest.mark.parametrize("text", ["1e300 * c * 1e300", "c / 1e-300 / 1e-300", "1e200 * c * 1e200 - 1e400"])
def test_constants_beyond_all_numbers_are_no_study(text: str) -> None:
    with pytest.raises(HostileInput, match=r"multiply to more than any number|cannot stand there"):
        derive(text)


@pytest.mark.parametrize(
    "text", ["both * both * both * both", "c / 1e-300", "log(big)", "above(a, 7)", "a - a", "(c > 2) * 1.0", "0 * a"]
)
def test_a_number_that_is_undefined_or_beyond_its_bounds_for_some_stays_one(text: str) -> None:
    columns = derive(text)
    features = np.tile(np.linspace(-1.0, 1.0, 201)[:, None], (1, 4))
    cells: Any = cells_of(columns, Records(features, np.ones(features.shape, dtype=np.bool_), None), ["d0"])["d0"]
    assert cells.present.any()
    assert np.isfinite(cells.x).all()
    assert (np.abs(cells.x) <= 1.0).all()
