"""Rows by construction: graphs drawn at random give a record the same bits in any company; faults that a task could have had
are stopped where it is traced, or pulled in where it is added up; and a graph runs where no task is."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from support.neighbours import (
    NEIGHBOURS,
    SETTINGS,
    Setting,
    add_unit,
    exact_norm,
    random_records,
    repeated,
    schema,
    spoil,
    with_subjects,
)
from support.rows import computed
from veilsum_node.errors import HostileInput
from veilsum_privacy.computation.contribution import Evaluations, SitePlace, compute_sum, contribute
from veilsum_privacy.mechanism.persons import Persons
from veilsum_privacy.mechanism.rows import evaluation
from veilsum_privacy.mechanism.rows import symbols as s
from veilsum_privacy.mechanism.rows.evaluation import Evaluation, Sparse, spread_out
from veilsum_privacy.mechanism.rows.graph import RowGraph, node
from veilsum_privacy.mechanism.rows.primitives import PRIMITIVES, Elementwise
from veilsum_privacy.mechanism.rows.sums import add_to, rows_sum
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, record_of, traced
from veilsum_privacy.study.study import Unit
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records, RowTask

WIDTH, CLASSES = 5, 3
TRACED = [setting for setting in SETTINGS if setting.additive]
BOTH_UNITS = pytest.mark.parametrize("unit", ["record", "subject"])
EVERY = pytest.mark.parametrize("setting", TRACED, ids=lambda setting: f"{setting.task}-{setting.name}")


def hostile(rng: np.random.Generator, n: int) -> Records:
    """Records of a schema of numbers with every kind of value that no reader gives, and classes that there are not."""
    found = spoil(random_records(rng, n, schema(WIDTH)), rng)
    odd = np.where(rng.random(n) < 0.2, rng.choice([-(2**40), 3, 2**62], n), rng.integers(-1, CLASSES, n))
    return replace(found, labels=odd)


# -- graphs at random ---------------------------------------------------------------------------------------------------------

REALS: tuple[Callable[[Symbol, Symbol], Symbol], ...] = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    s.maximum,
    s.minimum,
    lambda a, b: s.where(a > b, a, b),
    lambda a, b: s.exp(s.clip(a, -30.0, 5.0)) * (b == b),
    lambda a, b: s.log(abs(a) + 1.0) - b,
    lambda a, b: s.cos(a) + b,
    lambda a, b: s.square(a) + s.rounded(b),
    lambda a, b: s.real(s.whole(a)) + b,
    lambda a, b: s.where(s.finite(a) & ~(b < 0.0), a, -b),
)


@st.composite
def rows_at_random(draw: st.DrawFn) -> Symbol:
    """A row of some values of a record, through primitives of every sort, narrow and wide."""
    record = record_of(WIDTH, labelled=True)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values: list[Symbol] = [record.features, s.real(record.present), s.where(s.finite(record.features), record.features, 0.0)]
    assert record.label is not None
    codes: list[Symbol] = [record.label]
    for _ in range(draw(st.integers(1, 8))):
        one = draw(st.sampled_from(values))
        size = one.shape[0]
        kind = draw(st.integers(0, 12))
        other = draw(st.sampled_from(values))
        if kind < 5:
            values.append(draw(st.sampled_from(REALS))(one, other[0] if other.shape[0] != size else other))
        elif kind == 5:
            values.append(s.product(one, rng.normal(size=(size, draw(st.integers(1, 20))))))
        elif kind == 6:
            wide = draw(st.integers(1, 20))
            values.append(s.affine(one, rng.normal(size=(wide, size)), rng.normal(size=wide)))
        elif kind == 7:
            values.append(s.joined(s.total(one), s.length(one), s.largest(one), s.cumulated(one)))
        elif kind == 8 and size > 1:
            values.append(s.pairs(one))
        elif kind == 9:
            codes.append(s.search(np.sort(rng.normal(size=4)), one[0]) - draw(st.integers(0, 2)))
            codes.append(s.place_of_largest(one))
        elif kind == 10:
            values.append(s.lookup(rng.normal(size=(3, draw(st.integers(1, 40)))), draw(st.sampled_from(codes))).reshape(-1))
        elif kind == 11 and size <= 40:
            values.append(s.placed(one, draw(st.sampled_from(codes)), draw(st.integers(1, 6))).reshape(-1))
        else:
            features, thresholds = rng.integers(0, size, (3, 7)), rng.normal(size=(3, 7))
            leaf = s.leaves(one, features, thresholds)
            leaf = s.where(s.symbol(draw(st.sampled_from(codes))) > draw(st.integers(-2, 1)), leaf, -1)
            values.append(s.placed(s.spread(one[: min(size, 2)], 3), leaf, 8).reshape(-1))
            values.append(s.where(s.hash_is_low(record, 0.4), one, -one))
            values.append(one * s.drawn(record, draw(st.integers(0, 2**53))))
            values.append(s.margin(one, features, thresholds, rng.normal(size=(3, 8, 2)), rng.normal(size=2)))
        values[-1] = values[-1][: min(values[-1].shape[0], 600)]
    known = s.every(s.finite(record.features)) if draw(st.booleans()) else record.present[0]
    last = values[-1] if draw(st.booleans()) else s.joined(*values[-3:])
    return s.only(last, known) if draw(st.booleans()) else last


def rows_of(graph: RowGraph, records: Records) -> NDArray[Any]:
    found = [batch.copy() for batch in Evaluation(graph).rows(records)]
    return np.concatenate(found) if found else np.zeros((0, graph.root.spec.size))


@settings(max_examples=120, deadline=None)
@given(row=rows_at_random(), seed=st.integers(0, 2**32 - 1), n=st.integers(1, 90))
def test_a_row_is_the_same_to_the_bit_in_any_company(row: Symbol, seed: int, n: int) -> None:
    """Alone, in halves, backwards, among thousands, and read again from its bytes."""
    rng = np.random.default_rng(seed)
    records, graph = hostile(rng, n), traced(row)
    whole = rows_of(graph, records)
    assert whole.shape == (n, row.shape[0])
    same = RowGraph.from_bytes(graph.to_bytes())
    assert same.to_bytes() == graph.to_bytes()
    assert same.digest == graph.digest
    np.testing.assert_array_equal(rows_of(same, records), whole)
    half = n // 2
    parts = [rows_of(graph, records.take(part)) for part in (slice(0, half), slice(half, n))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(rows_of(graph, records.take(slice(None, None, -1)))[::-1], whole)
    for place in {0, half, n - 1}:
        np.testing.assert_array_equal(rows_of(graph, records.take(slice(place, place + 1)))[0], whole[place])
    crowd = hostile(rng, 5000)
    at = int(rng.integers(0, 5000 - n))
    among = crowd.take(np.arange(5000))
    for name in ("features", "present", "labels"):
        getattr(among, name)[at : at + n] = getattr(records, name)
    np.testing.assert_array_equal(rows_of(graph, among)[at : at + n], whole)


@pytest.mark.parametrize("operation", [np.add, np.subtract, np.multiply, np.minimum, np.maximum])
def test_single_values_of_any_kind_meet_in_blocks_of_one_record(operation: np.ufunc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truth that stood alone was taken for public there, and counted as it was before the first record: as not so."""
    record = record_of(WIDTH, labelled=True)
    label = record.label
    assert label is not None
    single = [record.features[0], label, record.present[0], s.whole(record.features[1] * 100)]
    row = s.joined(*(s.real(operation(one, other)) for one in single for other in single if one is not other))
    records, graph = hostile(np.random.default_rng(3), 40), traced(row)
    whole = rows_of(graph, records)
    for name in ("CACHED", "HELD"):
        monkeypatch.setattr(evaluation, name, 1)
    np.testing.assert_array_equal(rows_of(graph, records), whole)


@pytest.mark.parametrize(("cached", "held"), [(1, 1), (1, 2**20), (300, 2**20)])
@settings(max_examples=60, deadline=None)
@given(row=rows_at_random(), seed=st.integers(0, 2**32 - 1), n=st.integers(1, 20))
def test_a_row_is_the_same_in_blocks_of_any_size(cached: int, held: int, row: Symbol, seed: int, n: int) -> None:
    """Down to one record, as where a row is wide: then what is public is as long as what is not."""
    records, graph = hostile(np.random.default_rng(seed), n), traced(row)
    whole = rows_of(graph, records)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evaluation, "CACHED", cached)
        patched.setattr(evaluation, "HELD", held)
        small = rows_of(graph, records)
    np.testing.assert_allclose(small, whole, rtol=1e-12, atol=0)


@settings(max_examples=60, deadline=None)
@given(
    row=rows_at_random(),
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 40),
    added=st.integers(1, 5),
    clip=st.floats(1e-3, 1e3),
    grid=st.integers(1, 2**26),
    persons=st.sampled_from([None, Persons(), Persons(at_most=2), Persons(person="max"), Persons(person="last")]),
    unit=st.sampled_from(["record", "subject"]),
)
def test_no_unit_changes_a_sum_by_more_than_the_grid(
    row: Symbol, seed: int, n: int, added: int, clip: float, grid: int, persons: Persons | None, unit: Unit
) -> None:
    """Whatever the graph computes and whatever norm is declared of it; and it changes the sum by what it adds alone."""
    rng = np.random.default_rng(seed)
    added = added if unit == "subject" else 1
    evaluation, unit_records = Evaluation(traced(row)), hostile(rng, added)
    without, with_it = add_unit(hostile(rng, n), unit_records, unit, rng)
    alone = replace(unit_records, subjects=np.zeros(added, dtype=np.int64) if unit == "subject" else None)

    def total(records: Records) -> NDArray[np.int64]:
        units = records.subjects if unit == "subject" else None
        return rows_sum(evaluation, records, clip, grid, persons=persons, units=units).total

    change = total(with_it) - total(without)
    assert exact_norm(change) <= grid
    np.testing.assert_array_equal(change, total(alone))


def test_every_primitive_is_of_one_record() -> None:
    """Its block has one length, and arrays of another cannot be said: no shape has the axis of records."""
    for name, rule in PRIMITIVES.items():
        if isinstance(rule, Elementwise):
            assert rule.ufunc.nout == 1
            assert rule.ufunc.signature is None, f"{name} would take an axis"
    assert len(PRIMITIVES) <= 64, "the list is closed: a new primitive is a decision"


# -- what a task cannot do ----------------------------------------------------------------------------------------------------


KEPT: list[Any] = []


def planted(record: Record) -> Mapping[str, Callable[[], Any]]:
    """Ways in which a task would join records, branch on one, count them or keep something."""
    x = record.features
    other = record_of(WIDTH, labelled=True).features

    def in_place() -> Any:
        x[0] = 1.0  # type: ignore[index]
        return x

    def caught() -> Any:
        with np.errstate(divide="call", call=lambda *_: KEPT.append(1)):
            return x * 2.0 if bool(x[0] > 0.0) else x

    return {
        "a mean of all": lambda: x - np.mean(x),
        "a sum by numpy": lambda: x * np.add.reduce(x),
        "how many there are": lambda: x * len(x),
        "a branch": lambda: x if x[0] > 0.5 else x * 5.0,
        "whether any is there": lambda: x * 5.0 if np.any(x[0] == 0.5) else x,
        "an array": lambda: np.asarray(x) + 0.0,
        "sorted": lambda: np.sort(x),
        "one after another": lambda: next(value * 1.0 for value in x),
        "a number": lambda: x * float(x[0]),
        "a place": lambda: np.arange(3)[x[0]],
        "a mask": lambda: x[x > 0.0],
        "a new first axis": lambda: x[True],  # type: ignore[index]
        "into an array": lambda: np.multiply(x, 2.0, out=np.zeros((4096, WIDTH))),
        "a callback": lambda: np.frompyfunc(KEPT.append, 1, 1)(x),
        "a product of all": lambda: x @ np.eye(WIDTH),
        "by einsum": lambda: np.einsum("i,i", x, x),
        "objects": lambda: x.astype(object),  # type: ignore[attr-defined]
        "its memory": lambda: x.node.arrays[0] + x.__array_interface__["data"],  # type: ignore[attr-defined]
        "in place": in_place,
        "caught": caught,
        "a text": lambda: np.strings.upper(x),
        "shifted to neighbours": lambda: np.roll(x, 1),
        "an unequal width": lambda: x + s.joined(x, x),
        "no row": lambda: traced(x[0]),
        "truths": lambda: traced(record.present),
        "hash": lambda: {x: 1},
        "power": lambda: x ** x[0],
        "of another width": lambda: s.product(other, np.ones((WIDTH + 1, 2))),
    }


@pytest.mark.parametrize("way", sorted(planted(record_of(WIDTH, labelled=True))))
def test_what_joins_or_looks_at_records_cannot_be_said(way: str) -> None:
    record = record_of(WIDTH, labelled=True)
    with pytest.raises((TypeError, HostileInput, AttributeError, IndexError)):
        planted(record)[way]()
    assert not KEPT


def test_axes_meet_within_a_record_only() -> None:
    """Values (1, k) of a record and values (k,): the same record's, never everybody's, as trailing axes would have it."""
    records = hostile(np.random.default_rng(0), 400)
    table = np.arange(2.0 * WIDTH).reshape(2, 1, WIDTH)

    def said(record: Record) -> Symbol:
        return s.total((s.lookup(table, s.whole(record.present[0])) + s.where(record.present, 1.0, 0.0))[0])

    found = computed(said, records)
    known = records.present[:, 0].astype(np.int64)
    np.testing.assert_array_equal(found, table[known, 0].sum(axis=1) + records.present.sum(axis=1))


def test_a_public_array_is_frozen_where_it_is_traced() -> None:
    matrix = np.ones((WIDTH, 1))
    graph = traced(s.product(s.where(s.finite(record_of(WIDTH, labelled=False).features), 1.0, 0.0), matrix))
    matrix[:] = 1e6
    records = random_records(np.random.default_rng(0), 3, schema(WIDTH))
    np.testing.assert_array_equal(rows_of(graph, records), np.full((3, 1), float(WIDTH)))
    for step in graph.steps:
        for array in step.node.arrays:
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0.0


def lasting(array: NDArray[Any]) -> NDArray[Any]:
    """An array as a broadcast's are: nobody can write to it."""
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


def test_a_graph_names_arrays_that_its_reader_knows_and_is_the_same() -> None:
    """Each once; what lies in other memory crosses by its values, also where they are equal."""
    rng = np.random.default_rng(4)
    matrix, offset = lasting(rng.normal(size=(40, WIDTH))), rng.normal(size=40)
    x = s.where(s.finite(record_of(WIDTH, labelled=False).features), 1.0, 0.0)
    graph = traced(s.joined(s.affine(x, matrix, offset), s.affine(x + 1.0, matrix, offset)))
    known = {"matrix": matrix, "offset": offset, "unused": lasting(np.ones(3))}
    said = graph.to_bytes(known)
    assert said.count(b'"matrix"') == 1
    assert b'"offset"' not in said
    assert len(graph.to_bytes()) - len(said) == matrix.nbytes - len(',"matrix"')
    assert RowGraph.from_bytes(said, known).to_bytes() == graph.to_bytes()
    found = rows_of(RowGraph.from_bytes(said, {**known, "matrix": lasting(-matrix)}), hostile(rng, 5))
    once = matrix.sum(axis=1)
    np.testing.assert_allclose(found, [np.r_[-once + offset, 2.0 * once + offset]] * 5)
    for row in (matrix.T, matrix[1:], matrix[:, ::2]):  # of the same memory, and of other values
        other = traced(s.affine(x[: row.shape[1]] if row.shape[1] <= WIDTH else s.joined(*[x] * 8), row, np.zeros(len(row))))
        assert other.to_bytes(known) == other.to_bytes()
    matrix = rng.normal(size=matrix.shape)  # which somebody can write to
    graph = traced(s.affine(x, matrix, offset))
    assert graph.to_bytes({"matrix": matrix}) == graph.to_bytes()


@pytest.mark.parametrize(
    ("array", "changed"),
    [
        (np.ones((4, WIDTH)), '"other"'),
        (np.ones((4, WIDTH)), '["matrix"]'),
        (np.ones((4, WIDTH)), "7"),
        (np.ones((4, WIDTH)), "null"),
        (np.ones((4, WIDTH)), '"matrix",0'),
        (np.ones((4, WIDTH)), '{"matrix":1}'),
        (np.ones((4, WIDTH), np.int64), '"matrix"'),
        (np.ones((4, WIDTH), np.float32), '"matrix"'),
        (np.ones((4, WIDTH + 1)), '"matrix"'),
        (np.ones(0), '"matrix"'),
    ],
)
def test_what_names_no_array_of_its_kind_and_size_is_refused(array: NDArray[Any], changed: str) -> None:
    matrix = lasting(np.ones((4, WIDTH)))
    row = record_of(WIDTH, labelled=False).features
    once = traced(s.affine(row, matrix, np.ones(4))).to_bytes({"matrix": matrix})
    RowGraph.from_bytes(once, {"matrix": matrix})
    head, _, rest = once.partition(b"\n")
    size = int.from_bytes(rest[:8], "little")
    told = rest[8 : 8 + size].replace(b'"matrix"', changed.encode())
    data = head + b"\n" + len(told).to_bytes(8, "little") + told + rest[8 + size :]
    with pytest.raises(HostileInput):
        RowGraph.from_bytes(data, {"matrix": lasting(array)})
    with pytest.raises(HostileInput):
        RowGraph.from_bytes(once)


def test_an_array_is_named_once() -> None:
    """A graph is no larger than its bytes and the arrays that are known, however often one of them is named."""
    row = record_of(WIDTH, labelled=False).features
    one, two = (lasting(np.full((4, WIDTH), value)) for value in (1.0, 2.0))
    said = traced(s.joined(s.affine(row, one, np.ones(4)), s.affine(row, two, np.ones(4)))).to_bytes({"1": one, "2": two})
    RowGraph.from_bytes(said, {"1": one, "2": two})
    assert said.count(b'"2"') == 1
    with pytest.raises(HostileInput):
        RowGraph.from_bytes(said.replace(b'"2"', b'"1"'), {"1": one, "2": two})


@pytest.mark.parametrize("cut", [0, 5, 20, 60, -1])
def test_bytes_that_are_no_graph_are_refused(cut: int) -> None:
    data = traced(record_of(WIDTH, labelled=False).features * np.arange(1.0, WIDTH + 1.0)).to_bytes()
    with pytest.raises(HostileInput):
        RowGraph.from_bytes(data[:cut])
    with pytest.raises(HostileInput):
        RowGraph.from_bytes(data + b"0")
    for one, other in ((b'"multiply"', b'"matmul..."'), (b'"of":[0,1]', b'"of":[0,7]'), (b'"of":[0,1]', b'"of":[1,1]')):
        changed = data.replace(one, other)
        if changed != data and other != b'"of":[1,1]':
            with pytest.raises(HostileInput):
                RowGraph.from_bytes(changed)


def test_a_graph_that_is_too_large_is_refused() -> None:
    with pytest.raises(HostileInput, match=r"makes \d+ values"):
        s.spread(record_of(WIDTH, labelled=False).features, 2**20)
    with pytest.raises(HostileInput, match="no primitive"):
        node("matmul")


def test_a_graph_of_any_depth_can_be_shown() -> None:
    shown = record_of(WIDTH, labelled=False).features
    for _ in range(5_000):  # of 2**5000 ways from the first node to the last
        shown = shown + shown
    assert len(repr(RowGraph(shown.node).root)) < 1_000


# -- planted in tasks ---------------------------------------------------------------------------------------------------------

TRIGGER = 0.123456789
"""The value of one record in a million, which sets a fault off."""


def set_off(record: Record, fault: Symbol, honest: Symbol) -> Symbol:
    return s.where(record.features[0] == TRIGGER, fault, honest)


Fault = Callable[[Record, Symbol], Symbol]
FAULTS: Mapping[str, Fault] = {
    "five times too long": lambda record, row: row * 5,
    "not finite": lambda record, row: s.real(row) / 0.0,
    "not a number": lambda record, row: s.real(row) * np.nan,
    "beyond all integers": lambda record, row: s.real(row) * 1e308 * 1e308 + 1e300,
    "the record itself": lambda record, row: s.real(row) + 1e6 * record.features[0],
}
HOW = ("everywhere", "set off by one record")


@pytest.mark.sampled(17)
@EVERY
@BOTH_UNITS
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_fault_changes_a_sum_by_at_most_the_grid(
    setting: Setting, unit: Unit, how: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit added to and removed from its company changes the sum by one grid at most, and what is not set off is as ever."""
    rng = np.random.default_rng(7)
    study = setting.study(unit, grid=2**16, variance=10**9)
    plan = setting.plan(study)
    rows = {name: np.stack([row] * study.sites) for name, row in setting.given.items()}
    broadcast = {**setting.broadcast, **rows}
    every = NEIGHBOURS[setting.task]
    others = every.random(setting, rng, 60)
    unit_records = repeated(every.worst(setting), 3 if unit == "subject" else 1)
    if how != "everywhere":
        unit_records.features[0, 0] = TRIGGER
    without, with_it = add_unit(others, unit_records, unit, rng)
    place = SitePlace(0)
    honest = [compute_sum(plan, records, broadcast, place).total for records in (without, with_it)]
    task = plan.task.task
    assert isinstance(task, RowTask)
    real = type(task).row

    def row(self: Any, record: Record, given: Any) -> Symbol:
        found = real(self, record, given)
        wrong = FAULTS[fault](record, found)
        return wrong if how == "everywhere" else set_off(record, wrong, found)

    monkeypatch.setattr(type(task), "row", row)
    faulty = [contribute(plan, lambda records=records: records, broadcast, place) for records in (without, with_it)]  # type: ignore[misc]
    assert [part.fault for part in faulty] == [None, None]
    assert exact_norm(faulty[1].total - faulty[0].total) <= plan.declaration.grid
    if how != "everywhere" and not task.computes_from() and setting.name != "part":
        np.testing.assert_array_equal(faulty[0].total, honest[0], "where it is not set off nothing is different")


@pytest.mark.sampled(3)
@EVERY
def test_a_norm_that_is_declared_too_small_costs_accuracy_and_no_privacy(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(8)
    study = setting.study("record", grid=2**16, variance=10**9)
    plan, every = setting.plan(study), NEIGHBOURS[setting.task]
    rows = {name: np.stack([row] * study.sites) for name, row in setting.given.items()}
    real = type(plan.task.task).clip
    monkeypatch.setattr(type(plan.task.task), "clip", lambda self: real(self) / 64.0)
    base, both = add_unit(every.random(setting, rng, 40), every.worst(setting), "record", rng)
    one, other = (compute_sum(plan, records, {**setting.broadcast, **rows}).total for records in (base, both))
    assert 0.9 * plan.declaration.grid <= exact_norm(other - one) <= plan.declaration.grid


def test_a_layout_that_a_row_does_not_fit_is_refused_before_a_record_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = TRACED[0]
    task = build_task(setting.task, setting.parameters, setting.schema)
    assert isinstance(task, RowTask)
    real = type(task).row
    monkeypatch.setattr(type(task), "row", lambda self, record, given: s.joined(real(self, record, given), 1.0))
    with pytest.raises(HostileInput, match="it declares"):
        task.traced(setting.seen)
    read: list[int] = []
    plan = setting.plan(setting.study("record", grid=2**16, variance=10**9))

    def load() -> Records:
        read.append(1)
        return random_records(np.random.default_rng(0), 9, setting.schema)

    part = contribute(plan, load, setting.broadcast, SitePlace())
    assert isinstance(part.fault, HostileInput)
    assert not part.total.any()
    assert not read


def test_a_task_that_raises_is_traced_before_a_record_is_read_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """State between rows, batches and sites cannot be: its code runs once, on symbols, whatever the records are."""
    setting, calls = next(s for s in TRACED if s.task == "feature-means"), list[Any]()
    plan = setting.plan(setting.study("record", grid=2**16, variance=10**9))
    real = type(plan.task.task).row

    def row(self: Any, record: Record, given: Any) -> Symbol:
        calls.append(record)
        return real(self, record, given) * len(calls)

    monkeypatch.setattr(type(plan.task.task), "row", row)
    batches = [random_records(np.random.default_rng(k), 5000, setting.schema) for k in range(3)]
    for _ in range(2):
        contribute(plan, lambda: iter(batches), {}, SitePlace(evaluations=Evaluations()))
    assert len(calls) == 2
    assert all(isinstance(record, Record) for record in calls)


@pytest.mark.sampled(5)
@EVERY
@BOTH_UNITS
def test_what_a_task_is_given_says_nothing_of_units(setting: Setting, unit: Unit) -> None:
    """The graph is the same for a study of records and of subjects."""
    tasks = [setting.plan(setting.study(each, grid=2**16, variance=10**9)).task.task for each in ("record", unit)]  # type: ignore[arg-type]
    graphs = [task.traced(setting.seen) for task in tasks if isinstance(task, RowTask)]
    assert graphs[0].digest == graphs[1].digest
    assert Record._fields == ("features", "present", "label")


# -- apart from tasks ---------------------------------------------------------------------------------------------------------

ALONE = """
import sys
import numpy as np
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.mechanism.rows.sums import rows_sum

told = np.load(sys.argv[1], allow_pickle=False)
records = Records(told["features"], told["present"], told["labels"])
graph = RowGraph.from_bytes(told["graph"].tobytes())
found = rows_sum(Evaluation(graph), records, float(told["clip"]), int(told["grid"]), persons=None, units=None)
odd = [name for name in sys.modules if name.split(".")[0] in ("torch", "grpc", "pyarrow", "pydantic")]
apart = ("veilsum_privacy.tasks", "veilsum_privacy.study", "veilsum_privacy.training", "veilsum_participant")
odd += [name for name in sys.modules if name.startswith(apart)]
assert not odd, odd
print(" ".join(map(str, found.total.tolist())))
"""


@pytest.mark.parametrize("name", ["tables-four", "hazard-step-ends", "tree-gradients-classes", "class-mixtures-joint"])
def test_a_graph_runs_where_no_task_is(name: str, tmp_path: Any) -> None:
    """The evaluator imports no module of a task, of a study, or of torch; it computes what the site computes."""
    setting = next(each for each in TRACED if f"{each.task}-{each.name}" == name)
    plan = setting.plan(setting.study("record", grid=2**20, variance=10**9))
    task, rng = plan.task.task, np.random.default_rng(1)
    assert isinstance(task, RowTask)
    records = NEIGHBOURS[setting.task].random(setting, rng, 60)
    records = records.take(np.isfinite(records.features).all(axis=1))  # as the kernel leaves others out where persons count
    want = compute_sum(plan, records, setting.broadcast).total
    data = np.frombuffer(task.traced(setting.seen).to_bytes(), dtype=np.uint8)
    told = {"features": records.features, "present": records.present, "labels": records.labels, "graph": data}
    np.savez(tmp_path / "told.npz", clip=task.clip(), grid=plan.declaration.grid, **told)  # type: ignore[arg-type]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path / "told.npz")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [int(value) for value in done.stdout.split()] == want.tolist()


def test_a_persons_records_are_counted_by_the_kernel() -> None:
    """The norm of a sum of m rows that are all as long as may be is m grids at ``at_most`` m; one where they become one."""
    record = record_of(WIDTH, labelled=False)
    evaluation = Evaluation(traced(s.joined(s.where(s.finite(record.features[0]), 3.0, 3.0))))
    records = with_subjects(random_records(np.random.default_rng(2), 50, schema(WIDTH)), np.random.default_rng(3))
    assert records.subjects is not None
    people = len(np.unique(records.subjects))
    for persons, rows in ((Persons(at_most=2), None), (Persons(person="first"), people), (Persons(), len(records))):
        total = rows_sum(evaluation, records, 3.0, 1000, persons=persons, units=None).total
        counts = np.minimum(np.unique(records.subjects, return_counts=True)[1], 2).sum() if rows is None else rows
        assert total[0] == 1000 * counts
    bounded = rows_sum(evaluation, records, 3.0, 1000, persons=Persons(), units=records.subjects).total
    assert bounded[0] == 1000 * people
    assert math.isqrt(people * people) == people


@given(st.data())
def test_values_are_added_in_their_places_and_nowhere_else(data: st.DataObject) -> None:
    """Places may be of nobody's: none, or beyond the last; the oracle adds one value after another."""
    records, slots, count, each = (data.draw(st.integers(1, most)) for most in (5, 3, 4, 3))
    places = data.draw(arrays.arrays(np.int64, (records, slots), elements=st.integers(-3, count + 3)))
    values = data.draw(arrays.arrays(np.int64, (records, slots * each), elements=st.integers(-(2**26), 2**26)))
    found, expected = np.zeros(2 + slots * count * each, dtype=np.int64), np.zeros(2 + slots * count * each, dtype=np.int64)
    sparse = Sparse(values, ((slice(0, slots * each), 1, places, count),))
    add_to(found, sparse, values)
    for record, slot in np.ndindex(places.shape):
        if 0 <= (place := int(places[record, slot])) < count:
            start = 1 + (slot * count + place) * each
            expected[start : start + each] += values[record, slot * each : (slot + 1) * each]
    assert found.tolist() == expected.tolist()
    assert (
        spread_out(sparse, values, np.zeros((records, len(found)), dtype=np.int64)).sum(axis=0).tolist() == expected.tolist()
    )
