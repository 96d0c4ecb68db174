"""Queries of the method "statistics": their language, their questions' norms, and the sensitivity of several together."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.neighbours import check_rows_stand_alone
from support.plain_sums import site_sum
from support.rows import cells_of, computed, question_rows
from support.rows import rows_of as task_rows_of
from support.studies import complete
from veilsum_coordinator.parts.query_requests import EdgeRange, QueryRequest, expand, weigh
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.mechanism.persons import join_records
from veilsum_privacy.mechanism.rows import symbols
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, joined
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.queries.arithmetic import evaluate_sum, parse_sum
from veilsum_privacy.tasks.queries.cells import LevelCells, ScaledNumbers
from veilsum_privacy.tasks.queries.conditions import parse_condition
from veilsum_privacy.tasks.queries.kinds import KINDS, build_question, build_questions
from veilsum_privacy.tasks.queries.kinds.regression import LinearRegression
from veilsum_privacy.tasks.queries.language import Columns, DerivedColumn, Query, interval_names
from veilsum_privacy.tasks.queries.sensitivity import balance, find_incidence
from veilsum_privacy.tasks.tables import Tables, TablesParameters

SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=90, unit="years"),
        NumberColumn(name="stay", low=0, high=120, unit="days"),
        CategoryColumn(name="sex", categories=("f", "m")),
        CategoryColumn(name="dx", categories=("I21", "I50", "J18"), impute="J18"),
        CategoryColumn(name="status", categories=("alive", "relapse", "died")),
    ),
    label=LabelColumn(column="icu", classes=(ClassValues(name="no", values=("0",)), ClassValues(name="yes", values=("1",)))),
    max_records=5000,
)
GROUP = DerivedColumn(name="age_group", of="age", edges=(40.0, 65.0))
DIFFERENCE = DerivedColumn(name="later", number="age / 2 + stay - 10", low=0, high=100)
ODDS = DerivedColumn(name="odds", number="age / 10 - 5.5", low=-2, high=2.5)
COLUMNS = Columns(SCHEMA, [GROUP, DIFFERENCE, ODDS])


def records_of(rows: list[tuple[float | None, float | None, int, int, int, int]]) -> Records:
    """Records of age, stay, sex, dx, status, icu; None and -1 stand for missing values."""
    features, present = np.zeros((len(rows), SCHEMA.width)), np.zeros((len(rows), SCHEMA.width), dtype=np.bool_)
    for place, (age, stay, *codes) in enumerate(rows):
        for column, (value, low, high) in enumerate([(age, 20.0, 90.0), (stay, 0.0, 120.0)]):
            if value is not None:
                features[place, column], present[place, column] = (value - low) / (high / 2 - low / 2) - 1.0, True
        start = 2
        for code, width in zip(codes[:3], (2, 3, 3), strict=True):
            if code >= 0:
                features[place, start + code], present[place, start : start + width] = 1.0, True
            start += width
    return Records(features, present, np.array([row[5] for row in rows], dtype=np.int64))


def every_record() -> Records:
    """All combinations of values at, beside and between what the queries of these tests compare with."""
    ages = [None, 20.0, 30.0, 40.0, 50.0, 64.9, 65.0, 80.0, 90.0]
    stays = [None, 0.0, 3.0, 7.0, 60.0, 120.0]
    return records_of(list(product(ages, stays, (-1, 0, 1), (0, 1, 2), (-1, 0, 1, 2), (-1, 0, 1))))


def rows_of(queries: list[Query], records: Records) -> np.ndarray:
    return np.hstack([question_rows(question, COLUMNS, records) for question in build_questions(queries, COLUMNS)])


def test_columns_side_by_side_are_the_columns() -> None:
    """Those of the schema are read as a block, a derived one by itself, in the order that is asked for; also one twice."""
    numbers = [name for name in COLUMNS.domains if not COLUMNS.level_names(name)]
    features, present = (np.array(each) for each in zip(*[(row, row == row) for row in np.eye(SCHEMA.width)], strict=True))
    odd = Records(features, present, np.zeros(len(features), dtype=np.int64))
    odd.features[0, 0], odd.features[1, 1], odd.features[2, 0] = np.nan, 5.0, -np.inf
    assert len(set(numbers) - {"age", "stay"}) >= 1
    for records in (every_record(), odd):
        single = cells_of(COLUMNS, records, COLUMNS.domains)
        for names in (["age", "stay"], ["stay", *numbers, "age"], [numbers[-1]], ["stay", numbers[-1], "age"]):

            def said(record: Record, names: list[str] = names) -> Symbol:
                found = COLUMNS.cells(record).numbers(names)
                return joined(found.x, found.present)

            expected = np.column_stack(
                [*(single[name].x for name in names), *(single[name].present for name in names)]  # type: ignore[union-attr]
            )
            np.testing.assert_array_equal(computed(said, records), expected)
        mixed = ["sex", "age", "dx", "stay", numbers[-1]]
        told = computed(lambda record, mixed=mixed: COLUMNS.cells(record).present(mixed), records)
        np.testing.assert_array_equal(told, np.column_stack([single[name].present for name in mixed]))


# -- conditions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("age >= 65", [True, False, False, True]),
        ("age > 65", [False, False, False, True]),
        ("age = 65", [True, False, False, False]),
        ("age != 65", [False, True, False, True]),
        ("not (age >= 65)", [False, True, False, False]),
        ("not (age != 65)", [True, False, False, False]),
        ("not (not (age >= 65))", [True, False, False, True]),
        ("not (age >= 65) or sex = 'f'", [True, True, True, False]),
        ("not (age >= 65 and sex = 'm')", [True, True, True, False]),
        ("age is missing", [False, False, True, False]),
        ("age is not missing and sex = 'm'", [False, True, False, False]),
        ("sex in ('f')", [True, False, True, False]),
        ("sex not in ('f')", [False, True, False, False]),
        ("sex != 'f'", [False, True, False, False]),
        ("age in (65, 30)", [True, True, False, False]),
        ("age_group = '65 to 90' or icu = 'yes'", [True, True, False, True]),
        ("not (icu = 'yes') and (age < 40 or dx in ('I21', \"I50\"))", [True, False, False, True]),
        ("later >= 25", [False, False, False, True]),
        ("AGE_GROUP = '20 to 40'".lower(), [False, True, False, False]),
    ],
)
def test_a_condition_holds_where_it_says(text: str, expected: list[bool]) -> None:
    records = records_of(
        [(65.0, 0.0, 0, 0, 0, 0), (30.0, 3.0, 1, 1, 1, 1), (None, 3.0, 0, 2, 2, -1), (80.0, 7.0, -1, 1, 0, 0)]
    )
    condition = parse_condition(text, COLUMNS.domains)
    said = computed(lambda record: condition.holds(COLUMNS.cells(record)), records)
    assert said.tolist() == condition.holds(cells_of(COLUMNS, records, COLUMNS.domains)).tolist() == expected


TOGETHER = list(product([None, 20.0, 50.0, 65.0, 90.0], [None, 3.0, 60.0], (-1, 0, 1), (0, 2), (-1, 1), (-1, 0, 1)))
COMPARISONS = st.sampled_from(
    ["age >= 65", "age != 65", "age in (20, 65)", "age not in (50)", "age is missing", "age is not missing", "stay < 7",
     "sex = 'f'", "sex <> 'f'", "sex not in ('f')", "sex is missing", "dx != 'I21'", "status = 'relapse'", "icu = 'yes'",
     "age_group = '40 to 65'", "age_group is missing"]
)  # fmt: skip
NESTED = st.recursive(
    COMPARISONS,
    lambda inner: (
        inner.map(lambda one: f"not ({one})")
        | st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})")
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def in_sqlite() -> Iterator[sqlite3.Connection]:
    """The records of TOGETHER as a table."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("create table r (age, stay, sex, dx, status, icu, age_group)")
        for age, stay, *codes in TOGETHER:
            levels = (("f", "m"), ("I21", "I50", "J18"), ("alive", "relapse", "died"), ("no", "yes"))
            names = [own[code] if code >= 0 else None for own, code in zip(levels, codes, strict=True)]
            group = None if age is None else "20 to 40" if age < 40 else "40 to 65" if age < 65 else "65 to 90"
            database.execute("insert into r values (?, ?, ?, ?, ?, ?, ?)", (age, stay, *names, group))
        yield database


@given(NESTED)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_what_is_missing_is_neither_true_nor_false_as_in_sql(in_sqlite: sqlite3.Connection, text: str) -> None:
    """In a condition, in an event that is explained, and in a number that is derived."""
    asked = text.replace("is not missing", "is not null").replace("is missing", "is null")
    sql = [value for (value,) in in_sqlite.execute(f"select {asked} from r order by rowid")]  # noqa: S608  of COMPARISONS
    records, condition = records_of(TOGETHER), parse_condition(text, COLUMNS.domains)
    columns = Columns(SCHEMA, [GROUP, DerivedColumn(name="number", number=f"2 * ({text})", low=0, high=2)])
    question = build_question(Query(name="q", kind="linear", over=("later",), outcome=text), COLUMNS)
    assert isinstance(question, LinearRegression)

    def said(record: Record) -> Symbol:
        cells, number = COLUMNS.cells(record), columns.cells(record)["number"]
        assert isinstance(number, ScaledNumbers)
        return joined(
            condition.holds(cells), question.told(cells), number.present, symbols.where(number.present, number.x + 1.0, 0.0)
        )

    expected = [[value == 1, value is not None, value is not None, 2 * (value == 1)] for value in sql]
    np.testing.assert_array_equal(computed(said, records), np.array(expected, dtype=float))
    assert condition.holds(cells_of(COLUMNS, records, COLUMNS.domains)).tolist() == [value == 1 for value in sql]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age > 100", "'age > 100' holds for none, since 'age' lies from 20 to 90"),
        ("age > 10", "'age > 10' holds for every value, since 'age' lies from 20 to 90"),
        ("age > 90", "'age > 90' holds for none, since 'age' lies from 20 to 90"),
        ("age <= 90", "'age <= 90' holds for every value, since 'age' lies from 20 to 90"),
        ("age in (30, 100)", "'age = 100' holds for none, since 'age' lies from 20 to 90"),
        ("age != 19.5", "'age != 19.5' holds for every value, since 'age' lies from 20 to 90"),
        ("sex in ('f', 'm')", "every category of 'sex' is among those that it names"),
        ("age >= 90", ""), ("age < 20.001", ""), ("age = 20", ""), ("age is missing", ""), ("sex = 'f'", ""),
        ("age_group != '20 to 40'", ""),
    ],
)  # fmt: skip
def test_a_comparison_that_the_bounds_decide_is_named(text: str, said: str) -> None:
    found = [leaf.settled(COLUMNS.domains[leaf.column]) for leaf in parse_condition(text, COLUMNS.domains).leaves()]
    assert [each for each in found if each] == ([said] if said else [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ager >= 65", "no column 'ager'"),
        ("age >= '65'", "a number, as 'age' has"),
        ("sex >= 'm'", "categories, which have no order"),
        ("sex = 'x'", "'x' is not a category of 'sex'"),
        ("age >= 65 and", "at its end a column"),
        ("(age >= 65", "'\\)'"),
        ("age >= 65 sex = 'm'", "and, or, or the end"),
        ("age ? 3", "belongs to no condition"),
        ("__import__('os').system('true')", "belongs to no condition"),
        ("age is 3", "missing"),
        ("(" * 50 + "age > 3" + ")" * 50, "nested more than"),
        ("age > 3 " * 400, "characters"),
        ("age > 1e999", "a finite number"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(HostileInput, match=says):
        parse_condition(text, COLUMNS.domains)


@given(st.text(max_size=60))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        parse_condition(text, COLUMNS.domains)
    except HostileInput:
        return


@pytest.mark.parametrize(("low", "high"), [(20.0, 90.0), (0.1, 0.7), (-3.0, 1e6), (1e-3, 1e-2)])
def test_a_constant_equals_the_value_that_it_states(low: float, high: float) -> None:
    """Reading a file scales a value as the parser scales a constant, to the last bit."""
    from veilsum_participant.data.encode import scale

    column = NumberColumn(name="x", low=low, high=high)
    values = np.linspace(low, high, 1001)
    domain = Columns(DatasetSchema(columns=(column,))).domains["x"]
    assert scale(values, column).tolist() == [domain.scale(float(value)) for value in values]


def test_derived_numbers_are_sums_of_products() -> None:
    records = records_of([(65.0, 3.0, 0, 0, 0, 0), (None, 3.0, 0, 0, 0, 0), (20.0, 0.0, 0, 0, 0, 0)])
    cells = cells_of(COLUMNS, records, ["later"])["later"]
    assert isinstance(cells, ScaledNumbers)
    assert cells.present.tolist() == [True, False, True]
    domain = COLUMNS.domains["later"]
    assert [domain.value(float(x)) for x in cells.x[[0, 2]]] == pytest.approx([65 / 2 + 3 - 10, 0.0])
    scored = Columns(
        SCHEMA, [DerivedColumn(name="s", number="-2 + 3 * (sex = 'm' and (age > 60)) * (stay < 5)", low=-5, high=5)]
    )
    records = records_of([(65.0, 3.0, 1, 0, 0, 0), (65.0, 9.0, 1, 0, 0, 0), (None, 3.0, 1, 0, 0, 0), (65.0, 3.0, -1, 0, 0, 0)])
    found = cells_of(scored, records, ["s"])["s"]
    assert isinstance(found, ScaledNumbers)
    assert found.present.tolist() == [True, True, False, False]
    assert [scored.number("s", "").value(float(x)) for x in found.x[:2]] == pytest.approx([1.0, -2.0])
    curved = [("log(age) * 2", 2 * np.log(65)), ("-above(age, 50) + above(age, -3) / 2", -15 + 34), ("Above(age, 70)", 0.0)]
    for text, value in curved:
        columns = Columns(SCHEMA, [DerivedColumn(name="s", number=text, low=-50, high=50)])
        found = cells_of(columns, records, ["s"])["s"]
        assert isinstance(found, ScaledNumbers)
        assert found.present.tolist() == [True, True, False, True]
        assert columns.number("s", "").value(float(found.x[0])) == pytest.approx(value)
    for text in (
        "log(stay)",
        "log(age",
        "log()",
        "above(age)",
        "above(age, stay)",
        "above(sex, 1)",
        "exp(age)",
        "log(age, 2)",
    ):
        with pytest.raises(HostileInput):
            parse_sum(text, COLUMNS.domains)
    for text in ("age / stay", "sex + 1", "age +", "1 / 0", "f(age)"):
        with pytest.raises(HostileInput):
            parse_sum(text, COLUMNS.domains)


# -- questions --------------------------------------------------------------------------------------------------------------

QUERIES = [
    Query(name="all", kind="count"),
    Query(name="table", kind="count", over=("sex",), by=("age_group", "icu"), missing="level"),
    Query(name="ages", kind="histogram", over=("age",), edges=(30.0, 50.0, 70.0)),
    Query(name="stays", kind="quantiles", over=("stay",), by=("sex",), edges=(1.0, 3.0, 7.0, 14.0, 30.0, 60.0), at=(0.5,)),
    Query(name="mean", kind="mean", over=("age",), by=("sex",)),
    Query(name="means", kind="mean", over=("age", "stay"), by=("dx",)),
    Query(name="test", kind="independence", over=("sex", "dx")),
    Query(name="both", kind="correlation", over=("age", "stay", "later"), scale=40),
    Query(name="line", kind="linear", outcome="stay", over=("age", "sex", "later", "dx"), scale=40),
    Query(name="pairs", kind="synthetic", over=("age", "sex", "dx", "icu"), missing="level", scale=500),
    Query(name="gaps", kind="missing", over=("age", "sex"), by=("dx",)),
    Query(
        name="curve",
        kind="survival",
        over=("stay",),
        by=("sex",),
        edges=(0.0, 7.0, 30.0, 60.0),
        event="status",
        censored=("alive",),
    ),
    Query(name="effect", kind="effect", over=("odds",), by=("sex",), outcome="stay"),
    Query(name="event", kind="effect", over=("odds",), by=("icu",), outcome="status = 'died'"),
    Query(name="rank", kind="discrimination", over=("later",), by=("sex",), outcome="status = 'died'"),
    Query(
        name="rank-time",
        kind="discrimination",
        over=("age_group",),
        outcome="stay",
        edges=(0.0, 7.0, 30.0, 60.0),
        event="status",
        censored=("alive",),
    ),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
@pytest.mark.parametrize("scale", [8, 37, 200])
def test_the_largest_norm_of_a_row_is_exactly_the_stated_one(query: Query, scale: int) -> None:
    question = build_question(query.model_copy(update={"scale": scale}), COLUMNS)
    dense = [(age, stay, 0, 0, 1, 0) for age in np.linspace(20, 90, 401) for stay in (0.0, 60.0, 120.0)]
    records = [every_record(), records_of(dense)]
    rows = np.vstack([question_rows(question, COLUMNS, part) for part in records])
    assert rows.shape[1] == question.size == sum(block.size for block in question.blocks())
    largest = int((rows**2).sum(axis=1).max())
    assert largest <= question.norm()
    assert largest >= question.norm() * (0.85 if query.kind in ("mean", "correlation", "synthetic", "linear") else 1)


def test_a_table_counts_records() -> None:
    records = every_record()
    question = build_question(QUERIES[1].model_copy(update={"scale": 1}), COLUMNS)
    rows = rows_of([QUERIES[1].model_copy(update={"scale": 1})], records)
    table = rows.sum(axis=0).reshape(question.blocks()[0].shape)
    assert table.shape == (4, 3, 3)  # each with its missing level
    assert table.sum() == len(records)
    ages = np.where(records.present[:, 0], records.features[:, 0] * 35 + 55, np.nan)
    women = records.features[:, 2] == 1
    assert table[2, 1, 0] == int(((ages >= 65) & (records.labels == 1) & women).sum())
    assert table[3, :, :].sum() == int(np.isnan(ages).sum())


def test_means_come_back_from_their_sums() -> None:
    records = every_record()
    rows = rows_of([QUERIES[5].model_copy(update={"scale": 200})], records)
    question = build_question(QUERIES[5].model_copy(update={"scale": 200}), COLUMNS)
    total, blocks, start = rows.sum(axis=0), {}, 0
    for block in question.blocks():
        blocks[block.name.split("/")[1]] = total[start : start + block.size].reshape(block.shape) / block.weight
        start += block.size
    ages, present = records.features[:, 0], records.present[:, 0]
    group = records.features[:, 4] == 1
    number = blocks["records"][0] - blocks["absent"][0, 0]
    assert number == int((group & present).sum())
    assert blocks["sum"][0, 0] / number == pytest.approx(ages[group & present].mean(), abs=0.005)
    assert blocks["square"][0, 0] / number + 0.7 == pytest.approx((ages[group & present] ** 2).mean(), abs=0.005)


# -- several together -------------------------------------------------------------------------------------------------------

CONDITIONS = st.sampled_from(
    ["", "age >= 65", "age < 40", "age >= 40 and age < 65", "sex = 'f'", "not (sex = 'f')", "stay > 7", "stay <= 3 or age > 8",
     "dx in ('I21', 'I50')", "dx = 'J18'", "age is missing", "age_group = '40 to 65'", "icu = 'yes' and stay > 7"]
)  # fmt: skip


@given(st.text(alphabet="agesty log(above)+-*/,.'=<0159 ", max_size=40))
def test_any_text_is_a_sum_or_refused(text: str) -> None:
    with contextlib.suppress(HostileInput):
        terms = parse_sum(text, COLUMNS.domains)
        assert terms
        records = records_of([(20.0, 0.0, 0, 0, 0, 0), (90.0, 120.0, 1, 2, 2, 1), (None, None, -1, 0, -1, -1)])

        def said(record: Record) -> Symbol:
            cells = COLUMNS.cells(record)
            value = evaluate_sum(terms, cells, COLUMNS.domains)
            return joined(value.x, value.present)

        assert not np.isnan(computed(said, records)).any()


@given(
    st.lists(
        st.tuples(st.sampled_from(["count", "gaps", "quantiles"]), CONDITIONS, st.integers(1, 50)), min_size=1, max_size=7
    )
)
@settings(max_examples=60)
def test_the_sensitivity_is_that_of_the_worst_record(asked: list[tuple[str, str, int]]) -> None:
    queries = []
    for place, (kind, where, scale) in enumerate(asked):
        common = {"name": f"q{place}", "where": where, "scale": scale}
        if kind == "count":
            queries.append(Query(kind="count", **common))
        elif kind == "gaps":
            queries.append(Query(kind="count", over=("status",), missing="level", **common))
        else:
            queries.append(
                Query(kind="histogram", over=("dx",), **common) if False else Query(kind="count", over=("dx",), **common)
            )
    questions = build_questions(queries, COLUMNS)
    incidence = find_incidence(questions, COLUMNS)
    largest = int((rows_of(queries, every_record()) ** 2).sum(axis=1).max())
    assert incidence.exact
    assert incidence.largest_integer([question.norm() for question in questions]) == largest


MIDDLE = (50.0, 5.0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("conditions", "record"),
    [
        (["sex is missing", "sex is missing or sex = 'm'", "sex = 'f'"], (50.0, 5.0, -1, 0, 0, 0)),
        (["icu is missing", "icu is missing or icu != 'yes'", "icu is missing or icu != 'no'"], (50.0, 5.0, 0, 0, 0, -1)),
        (["age is missing", "age is missing or not (age >= 65)", "age is missing or not (age < 65)"], (None, 5.0, 0, 0, 0, 0)),
        (
            ["age_group is missing", "age is missing", "age is missing or not (age_group = '20 to 40')"],
            (None, 5.0, 0, 0, 0, 0),
        ),
        (["age > 40", "age < 65"], MIDDLE),
        (["age > 49.9", "age < 50.1", "not (age <= 49.9)"], MIDDLE),
        (["age > 20", "age < 20.1"], (20.05, 5.0, 0, 0, 0, 0)),
        (["age > 89.9", "age < 90"], (89.95, 5.0, 0, 0, 0, 0)),
        (["age_group = '40 to 65'", "age != 40", "age < 65"], MIDDLE),
        (["age_group = '40 to 65'", "age < 65", "age > 40", "stay > 3", "stay < 7"], MIDDLE),
        (["age_group = '40 to 65'", "age < 50"], (45.0, 5.0, 0, 0, 0, 0)),
        (["age > 65", "sex is missing"], (80.0, 5.0, -1, 0, 0, 0)),
        (["age < 40", "sex is missing"], (30.0, 5.0, -1, 0, 0, 0)),
        (["age <= 20", "age >= 20"], (20.0, 5.0, 0, 0, 0, 0)),
        (["sex is missing", "age is missing", "stay > 3", "stay < 7", "icu is missing"], (None, 5.0, -1, 0, 0, -1)),
    ],
)
def test_conditions_meet_at_what_is_missing_and_between_constants(conditions: list[str], record: Any) -> None:
    """Each set holds together for one value, or in one open interval, that no other set of values makes up for."""
    holding = [where for where in conditions if where != "sex = 'f'"]
    queries = [Query(name=f"q{place}", kind="count", where=where, scale=3 + place) for place, where in enumerate(conditions)]
    questions = build_questions(queries, COLUMNS)
    norms = [question.norm() for question in questions]
    worst = int((rows_of(queries, records_of([record])) ** 2).sum())
    assert worst == sum(norms[: len(holding)])
    assert find_incidence(questions, COLUMNS).largest_integer(norms) == worst


@given(st.lists(CONDITIONS, min_size=2, max_size=6, unique=True))
@settings(max_examples=30)
def test_the_bound_beyond_the_limit_is_never_below(conditions: list[str]) -> None:
    queries = [Query(name=f"q{place}", kind="count", where=where, scale=3 + place) for place, where in enumerate(conditions)]
    questions = build_questions(queries, COLUMNS)
    norms = [question.norm() for question in questions]
    exact = find_incidence(questions, COLUMNS).largest_integer(norms)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("veilsum_privacy.tasks.queries.sensitivity.MAX_ATOMS", 0)
        bound = find_incidence(questions, COLUMNS)
    assert bound.largest_integer(norms) >= exact
    assert bound.exact == all(not where for where in conditions)


def test_disjoint_queries_share_nothing() -> None:
    wheres = ["age < 40", "age >= 40 and age < 65", "age >= 65", "age is missing"]
    questions = build_questions([Query(name=f"q{i}", kind="count", where=where) for i, where in enumerate(wheres)], COLUMNS)
    incidence = find_incidence(questions, COLUMNS)
    assert incidence.patterns.sum(axis=1).tolist() == [1, 1, 1, 1]
    assert balance(incidence, [1.0] * 4, [1.0] * 4) == pytest.approx(np.ones(4), rel=1e-3)


def test_weights_are_those_of_a_solver() -> None:
    """Against sequential quadratic programming."""
    from scipy.optimize import minimize

    wheres = ["", "age < 40", "age >= 65", "sex = 'f'", "stay > 7 and age < 40"]
    questions = build_questions([Query(name=f"q{i}", kind="count", where=where) for i, where in enumerate(wheres)], COLUMNS)
    incidence = find_incidence(questions, COLUMNS)
    norms, costs = np.array([1.0, 2.0, 1.0, 3.0, 1.0]), np.array([1.0, 5.0, 2.0, 8.0, 1.0])
    x = balance(incidence, norms, costs)
    matrix = incidence.patterns * norms
    found = minimize(
        lambda y: float((costs / y).sum()), np.full(5, 0.05), bounds=[(1e-6, None)] * 5,
        constraints={"type": "ineq", "fun": lambda y: 1.0 - matrix @ y}, method="SLSQP", options={"maxiter": 500},
    )  # fmt: skip
    assert (matrix @ x).max() <= 1.0 + 1e-12
    assert float((costs / x).sum()) == pytest.approx(float(found.fun), rel=2e-3)


# -- the task ---------------------------------------------------------------------------------------------------------------


def test_the_task_adds_up_integers_exactly_and_bounds_every_row() -> None:
    parameters = weigh(QUERIES, [GROUP, DIFFERENCE, ODDS], COLUMNS, largest=20_000)
    task = Tables(parameters, SCHEMA)
    records = every_record()
    rows = np.vstack(list(task_rows(task, records, {})))
    assert rows.dtype == np.int64
    assert int((rows**2).sum(axis=1).max()) <= parameters.sensitivity**2
    for factor in (1, 3):
        found = site_sum(task_rows(task, records, {}), task.layout().size, task.clip(), factor * parameters.sensitivity, 2**40)
        assert (found.total == factor * rows.sum(axis=0)).all()
        assert found.clipped == 0
    small = Tables(parameters.model_copy(update={"sensitivity": parameters.sensitivity // 2}), SCHEMA)
    small_rows = task_rows_of(small, {})
    for record in range(0, len(records), 97):
        alone = records.take(slice(record, record + 1))
        found = site_sum(iter([small_rows(alone)]), task.layout().size, small.clip(), parameters.sensitivity // 2, 2**40)
        assert (found.total**2).sum() <= (parameters.sensitivity // 2) ** 2


def test_a_row_depends_on_its_own_record_alone() -> None:
    task = Tables(weigh(QUERIES, [GROUP, DIFFERENCE, ODDS], COLUMNS, largest=20_000), SCHEMA)
    records = every_record().take(slice(0, None, 13))
    check_rows_stand_alone(task, records, {})


def test_scales_lose_little_and_keep_lanes_narrow() -> None:
    parameters = weigh(
        [query for query in QUERIES if query.kind not in ("synthetic", "effect")],
        [GROUP, DIFFERENCE, ODDS],
        COLUMNS,
        largest=4 * 2000,
    )
    assert 2 * 8_000 * parameters.sensitivity < 2**24
    questions = build_questions(parameters.queries, COLUMNS)
    incidence = find_incidence(questions, COLUMNS)
    costs = [question.figures() for question in questions]
    unit = [question.norm() / question.query.scale**2 for question in questions]
    ideal = float((np.array(costs) / balance(incidence, unit, costs)).sum())
    reached = (
        sum(cost / query.scale**2 for cost, query in zip(costs, parameters.queries, strict=True)) * parameters.sensitivity**2
    )
    assert reached <= 1.03 * ideal


# -- what analysts write ----------------------------------------------------------------------------------------------------


def test_what_is_left_out_is_filled_in() -> None:
    asked = [
        QueryRequest(kind="count"),
        QueryRequest(kind="count", over="sex"),  # type: ignore[arg-type]
        QueryRequest(kind="quantiles", over="stay", edges=EdgeRange(start=0.25, to=120, steps=8, scale="log")),  # type: ignore[arg-type, call-arg]
        QueryRequest(kind="table-one", name="one", by="sex", at=(0.5,)),  # type: ignore[arg-type]
    ]
    found = expand(asked, COLUMNS)
    assert [query.name for query in found[:3]] == ["count", "count-2", "quantiles"]
    assert (found[2].at, len(found[2].edges)) == ((0.25, 0.5, 0.75), 9)
    assert {query.part_of for query in found[3:]} == {"one"}
    assert found[3].over == ("age", "stay", "later", "odds")
    assert [query.kind for query in found[4:]].count("quantiles") == 4


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"kind": "count", "over": "ages"}, "no column 'ages'"),
        ({"kind": "count", "over": "age"}, "is a number; groups need categories"),
        ({"kind": "mean", "over": "sex"}, "has categories; a numeric column is needed"),
        ({"kind": "mean"}, "names no column"),
        ({"kind": "histogram", "over": "age", "edges": [50.0, 40.0]}, "edges must ascend"),
        ({"kind": "histogram", "over": "age", "edges": [5.0, 40.0]}, "edges reach from 5 to 40"),
        ({"kind": "count", "where": " "}, "`where` is empty"),
        ({"kind": "count", "where": "age > 95"}, "no record can meet"),
        ({"kind": "count", "where": "sex = 'f' and sex = 'm'"}, "no record can meet"),
        ({"kind": "count", "edges": [1.0]}, "has no 'edges'"),
        ({"kind": "survival", "over": "stay"}, "states `event`, `censored` and `edges`"),
        (
            {"kind": "survival", "over": "stay", "event": "status", "censored": "gone", "edges": [0.0, 60.0]},
            "`censored` must name",
        ),
        ({"kind": "logrank", "over": "stay", "event": "status", "censored": "alive", "edges": [0.0, 60.0]}, "names no groups"),
        ({"kind": "compare", "over": "age"}, "names no groups"),
        ({"kind": "independence", "over": ["sex"]}, "two columns"),
        ({"kind": "correlation", "over": ["age"]}, "two numeric columns"),
        ({"kind": "linear", "over": ["age"]}, "`outcome` names nothing"),
        ({"kind": "effect", "over": ["odds"], "by": "sex"}, "`outcome` names nothing"),
        ({"kind": "effect", "over": ["odds"], "by": "dx", "outcome": "stay"}, "a category of two levels"),
        ({"kind": "effect", "over": ["odds"], "outcome": "stay"}, "a category of two levels"),
        ({"kind": "effect", "over": ["sex"], "by": "icu", "outcome": "stay"}, "has categories; a numeric column"),
        ({"kind": "effect", "over": ["odds"], "by": "sex", "outcome": "dx"}, "neither a number nor a condition"),
        ({"kind": "discrimination", "over": ["age"]}, "nothing that the score should rank"),
        ({"kind": "discrimination", "over": ["age", "stay"], "outcome": "sex = 'f'"}, "is over one column"),
        ({"kind": "discrimination", "over": ["age"], "outcome": "sex"}, "a comparison is expected"),
        ({"kind": "discrimination", "over": ["age"], "outcome": "stay", "event": "status"}, "a time to an event states"),
        ({"kind": "linear", "outcome": "sex", "over": ["age"]}, "neither a number nor a condition"),
        ({"kind": "linear", "outcome": "stay"}, "names the terms"),
        ({"kind": "linear", "outcome": "stay", "over": ["stay", "age"]}, "names the terms"),
        ({"kind": "linear", "outcome": "stay", "over": ["age"], "by": "sex"}, "not given by group"),
        ({"kind": "linear", "outcome": "stay", "over": ["ages"]}, "the schema has no column 'ages'"),
        ({"kind": "mean", "outcome": "stay", "over": ["age"]}, "has no 'outcome'"),
        ({"kind": "missing", "over": ["dx"]}, "imputes 'dx'"),
        ({"kind": "count", "by": ["sex", "sex"]}, "stands twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_query_is_refused_with_what_is_wrong(request_: dict[str, object], says: str) -> None:
    with pytest.raises((ConfigurationError, HostileInput), match=says):
        weigh(expand([QueryRequest.model_validate(request_)], COLUMNS), [], COLUMNS, largest=1000)


def test_a_thousand_queries_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="1000 queries; at most 512"):
        expand([QueryRequest(kind="count") for _ in range(1000)], COLUMNS)
    with pytest.raises(ConfigurationError, match="Two queries are named 'a'"):
        expand([QueryRequest(kind="count", name="a")] * 2, COLUMNS)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"name": "age", "of": "stay", "edges": (3.0,)}, "already has a column 'age'"),
        ({"name": "x", "of": "sex", "edges": (3.0,)}, "has categories"),
        ({"name": "x", "of": "age", "edges": (30.0, 20.5)}, "must ascend"),
        ({"name": "x", "number": "age / stay", "low": 0.0, "high": 1.0}, "a number is expected"),
        ({"name": "x", "number": "2 * (sex = 'f'", "low": 0.0, "high": 1.0}, "character 5 is not closed"),
        ({"name": "x", "number": "1 / (sex = 'f')", "low": 0.0, "high": 1.0}, "a number is expected"),
        ({"name": "x", "number": "(sex = 'x')", "low": 0.0, "high": 1.0}, "sex"),
    ],
)
def test_a_bad_derived_column_is_refused(table: dict[str, object], says: str) -> None:
    with pytest.raises(HostileInput, match=says):
        Columns(SCHEMA, [DerivedColumn.model_validate(table)])


def test_the_norm_of_a_sum_of_rows_is_an_integer_bound() -> None:
    """The declared sensitivity is the root of the largest squared norm, rounded up."""
    parameters = TablesParameters(
        queries=(Query(name="a", kind="count", scale=7), Query(name="b", kind="count", scale=5)), sensitivity=9
    )
    found = weigh(parameters.queries, [], COLUMNS, largest=10**9)
    squared = sum(query.scale**2 for query in found.queries)
    assert (found.sensitivity - 1) ** 2 < squared <= found.sensitivity**2
    assert math.isqrt(squared) <= found.sensitivity
    assert isinstance(cells_of(COLUMNS, every_record(), ["sex"])["sex"], LevelCells)


@pytest.mark.parametrize(
    "query",
    [
        Query(name="q", kind="count", by=("wide",) * 1, over=("other", "third")),
        Query(name="q", kind="synthetic", over=("wide", "other")),
        Query(name="q", kind="histogram", over=("x",), by=("wide", "other"), edges=tuple(float(i) for i in range(1, 1000))),
    ],
    ids=lambda query: query.kind,
)
def test_a_hostile_analysts_query_takes_no_memory(query: Query) -> None:
    levels = tuple(f"c{i}" for i in range(256))
    names = ("wide", "other", "third")
    columns = [CategoryColumn(name=name, categories=levels) for name in names]
    wide = Columns(DatasetSchema(columns=(*columns, NumberColumn(name="x", low=0, high=1000))))
    with pytest.raises(HostileInput, match=r"values; at most|too many combinations"):
        build_question(query, wide)


def test_numbers_that_overflow_are_missing() -> None:
    schema = DatasetSchema(columns=(NumberColumn(name="x", low=-1e100, high=1e100),))
    huge = DerivedColumn(name="y", number="x * x * x * x - x * x * x * x", low=0, high=1)
    records = complete(np.array([[1.0], [0.0]]))
    cells = cells_of(Columns(schema, [huge]), records, ["y"])["y"]
    assert isinstance(cells, ScaledNumbers)
    assert cells.present.tolist() == [False, True]


# -- persons ----------------------------------------------------------------------------------------------------------------

PERSONS = np.array([0, 0, 0, 1, 2, 2])
STAYS = records_of(
    [
        (30.0, 3.0, 0, 0, 0, 0),
        (50.0, None, 1, 1, 2, 1),
        (40.0, 6.0, -1, 0, 1, 0),
        (70.0, 7.0, 1, 2, 0, 1),
        (None, 1.0, 0, 0, 0, -1),
        (20.0, 2.0, 0, 1, 0, 0),
    ]
)


@pytest.mark.parametrize(
    ("how", "ages", "stays", "sexes", "ends", "icu"),
    [
        ("first", [30, 70, None], [3, 7, 1], [0, 1, 0], [0, 0, 0], [0, 1, -1]),
        ("last", [40, 70, 20], [6, 7, 2], [-1, 1, 0], [1, 0, 0], [0, 1, 0]),
        ("max", [50, 70, 20], [6, 7, 2], [1, 1, 0], [2, 0, 0], [1, 1, 0]),
        ("mean", [40, 70, 20], [4.5, 7, 1.5], [0, 1, 0], [0, 0, 0], [0, 1, 0]),
    ],
)
def test_a_persons_records_become_one(how: Any, ages: Any, stays: Any, sexes: Any, ends: Any, icu: Any) -> None:
    records = Records(STAYS.features, STAYS.present, STAYS.labels, PERSONS)
    as_one = join_records(records, how, [slice(2, 4), slice(4, 7), slice(7, 10)]).take(np.array([0, 3, 4]))
    cells = cells_of(COLUMNS, as_one, COLUMNS.domains)
    for name, expected, low, high in (("age", ages, 20, 90), ("stay", stays, 0, 120)):
        found = cells[name]
        assert isinstance(found, ScaledNumbers)
        values = [low + (x + 1) / 2 * (high - low) if there else None for x, there in zip(found.x, found.present, strict=True)]
        assert [None if value is None else round(value, 6) for value in values] == expected
    for name, expected in (("sex", sexes), ("status", ends), ("icu", icu)):
        found = cells[name]
        assert isinstance(found, LevelCells)
        assert found.codes.tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from((-1, 0, 1, 2, 2**40))), min_size=1, max_size=30))
def test_a_persons_class_is_the_one_that_most_records_have(rows: list[tuple[int, int]]) -> None:
    """Of those with one, of several as frequent the first; whatever numbers classes have, and in the time of one sort."""
    whose, labels = np.array(sorted(rows, key=lambda row: row[0]), dtype=np.int64).T
    features = np.zeros((len(rows), 1))
    as_one = join_records(Records(features, features == 0.0, labels, whose), "mean", ())
    assert as_one.labels is not None
    for person in np.unique(whose):
        own = np.flatnonzero(whose == person)
        known = Counter(label for label in labels[own].tolist() if label >= 0)
        assert as_one.labels[own[0]] == (min(known, key=lambda label: (-known[label], label)) if known else -1)
        np.testing.assert_array_equal(as_one.labels[own[1:]], labels[own[1:]])


@pytest.mark.parametrize(
    ("persons", "counted", "norm"), [({"person": "last"}, 3, 256), ({"at_most": 2}, 5, 512), ({}, 6, 256)]
)
def test_a_person_changes_a_sum_by_what_is_declared(persons: dict[str, Any], counted: int, norm: int) -> None:
    query = Query(name="all", kind="count", scale=256)
    task = Tables(TablesParameters(queries=(query,), sensitivity=256, **persons), SCHEMA)
    records = Records(STAYS.features, STAYS.present, STAYS.labels, PERSONS)
    assert task.integer_norm() == norm
    rows = np.vstack(list(task_rows(task, records, {})))
    assert (len(rows), rows.sum()) == (6, counted * 256)
    total = site_sum(task_rows(task, records, {}), 1, task.clip(), norm, 2**40, PERSONS).total
    assert total[0] == (counted * 256 if persons else 3 * 256)  # otherwise a person with many records is scaled down to one


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.floats(-1e9, 1e9), st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=6), st.sampled_from([4, 6]))
def test_every_interval_has_a_name_of_its_own(low: float, widths: list[float], digits: int) -> None:
    """Two levels of one name could not be told apart, in a condition or a table; a cost of 1,234,567 and one more, say."""
    edges = np.cumsum([low, *widths])
    names = interval_names(edges.tolist(), digits)
    assert len(set(names)) == len(widths) == len(names)
    for name, one, other in zip(names, edges[:-1], edges[1:], strict=True):
        assert [float(end) for end in name.split(" to ")] == pytest.approx([one, other], rel=10.0 ** (1 - digits))


def test_names_of_intervals_that_were_told_apart_stay() -> None:
    assert interval_names((18.0, 40.0, 65.5, 90.0)) == ("18 to 40", "40 to 65.5", "65.5 to 90")
    assert interval_names((0.0, 1e6, 1234567.0)) == ("0 to 1e+06", "1e+06 to 1.23457e+06")
    assert interval_names((1.23456, 12345.6), 4) == ("1.235 to 12350",)
    assert interval_names((1234567.0, 1234568.0)) == ("1234567 to 1234568",)


@pytest.mark.parametrize("name", ["cohort", "queries", "one.numbers"])
def test_no_query_takes_the_place_of_something_else_in_a_result(name: str) -> None:
    """Of how many members there were, of what was asked, or of a part of a table one."""
    schema = DatasetSchema(columns=(NumberColumn(name="age", low=0, high=100),))
    asked = [QueryRequest(kind="table-one", name="one"), QueryRequest(kind="mean", name=name, over=("age",))]
    with pytest.raises(ConfigurationError, match=f"named '{name}'"):
        expand(asked, Columns(schema))


@pytest.mark.parametrize(
    ("low", "high"), [(1e12 - 1.0, 1e12 + 1.0), (1.0, 1.0 + 1e-9), (-1e-12, 1e-12), (999_999_999_999.0, 1e12)]
)
def test_intervals_that_nobody_stated_are_there_of_every_column(low: float, high: float) -> None:
    """To 12 digits those of a number far from 0 were one edge."""
    schema = DatasetSchema(columns=(NumberColumn(name="x", low=low, high=high),), max_records=100)
    columns = Columns(schema)
    for kind, number in (("quantiles", 256), ("histogram", 32)):
        stated = KINDS[kind].defaults(Query(name="q", kind=kind, over=("x",)), columns)
        asked = KINDS[kind](Query(name="q", kind=kind, over=("x",), **stated), columns)
        edges = np.array([low, *stated["edges"], high])
        assert np.diff(edges).min() > 0.0
        np.testing.assert_allclose(np.diff(edges), (high - low) / number, rtol=0.2)
        assert asked.size == number
    scores = KINDS["discrimination"](Query(name="q", kind="discrimination", over=("x",), outcome=f"x > {low!r}"), columns)
    assert scores.size == 32
    ends = EdgeRange.model_validate({"from": low, "to": high, "steps": 4}).edges()
    assert (ends[0], ends[-1], len(ends)) == (low, high, 5)


def test_times_are_no_shares_at_which_survival_is_told() -> None:
    with pytest.raises(
        ValueError, match=r"share of records between 0 and 1, as 0\.5 of the median, and not 2; survival is told"
    ):
        QueryRequest.model_validate({"kind": "survival", "over": ["time"], "at": [2.0]})
    with pytest.raises(ValueError, match="share of records"):
        QueryRequest.model_validate({"kind": "quantiles", "over": ["time"], "at": [1.0]})
