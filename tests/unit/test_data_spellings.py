"""What a cell means: the text that it spells, else the only one of its number; whatever type a column is stored in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veilsum_node.errors import DataError
from veilsum_participant.data import load_records
from veilsum_participant.data.cells import judge_table
from veilsum_participant.data.sources import check_structure, read_table
from veilsum_participant.data.spellings import exact
from veilsum_participant.data.stream import stream_records
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, DateColumn, LabelColumn, NumberColumn

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBER = NumberColumn(name="n", low=-1000, high=1000)


def schema_of(categories: Sequence[str], *, missing: Sequence[str] = (), label: bool = False) -> DatasetSchema:
    columns: tuple[Any, ...] = (NUMBER,) if label else (NUMBER, CategoryColumn(name="c", categories=tuple(categories)))
    classes = tuple(ClassValues(name=f"c{index}", values=(text,)) for index, text in enumerate(categories))
    named = LabelColumn(column="c", classes=classes) if label else None
    return DatasetSchema(max_records=100, columns=columns, label=named, missing=tuple(missing))


def written(path: Path, cells: Any, form: str, numbers: Any = None) -> Path:
    """A file with the cells as its column c; an Arrow array keeps its type."""
    array = cells if isinstance(cells, pa.Array) else pa.array(cells)
    numbers = pa.array(np.zeros(len(array))) if numbers is None else numbers
    if form == "csv":
        path.with_suffix(".csv").write_text("n,c\n" + "".join(f'0,"{"" if cell is None else cell}"\n' for cell in cells))
    elif form == "parquet":
        parquet.write_table(pa.table({"n": numbers, "c": array}), path.with_suffix(".parquet"))
    else:
        np.savez(path.with_suffix(".npz"), n=numbers.to_numpy(), c=np.asarray(array.to_numpy(zero_copy_only=False)))
    return path.with_suffix("." + form)


def codes_of(path: Path, schema: DatasetSchema) -> list[int]:
    """The code of each record's category or class, -1 for none; streamed records are those that were read at once."""
    check_structure(path, schema, header=True)
    records, _ = load_records(path, schema)
    for batch in stream_records(path, schema, None, rows=2, header=None):
        assert batch.features.shape[1] == records.features.shape[1]
    if records.labels is not None:
        return [int(code) for code in records.labels]
    place = {column.name: place for column, place in schema.places()}["c"]
    indicators = records.features[:, place]
    return [int(row.argmax()) if row.any() else -1 for row in indicators]


@pytest.mark.parametrize("label", [False, True])
@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("categories", "cells", "expected"),
    [
        (["042", "0042"], ["042", "0042", "42", "00042"], [0, 1, -1, -1]),  # HIV, and a kind of Shigella
        (["0042", "250"], ["042", "250", "250.0"], [-1, 1, 1]),
        (["0117", "117"], ["0117", "117", "117.00"], [0, 1, 1]),
        (["9007199254740993", "9007199254740992"], ["9007199254740992", "9007199254740993", "9007199254740993.0"], [1, 0, 0]),
        (["1", "1.0"], ["1", "1.0", "1.00", "+1"], [0, 1, -1, -1]),  # two texts of one number: a third spelling tells neither
        (["1", "2"], ["1.0", " 2 ", "+1", "1e+0", "01", "１"], [0, 1, 0, 0, -1, -1]),
        (
            ["10", "100000"],
            ["1E1", "1e1", "1E+1", "1.0E1", "10E-0", "1e+05", "1e5"],
            [-1, -1, 0, 0, 0, 1, -1],
        ),  # a ward, or ten
        (["1E1", "10"], ["1E1", "10", "10.0", "1e1"], [0, 1, 1, -1]),
        (["0", "-1"], ["-0", "0.0", "-1.0", "1"], [0, 0, 1, -1]),
        (["yes", "no"], ["yes", "YES", "no", "true"], [0, -1, 1, -1]),
        (["1e+400", "inf"], ["1e+400", "inf", "1e+401", "10e+399"], [0, 1, -1, 0]),
    ],
)
def test_a_text_comes_before_its_number(
    tmp_path: Path, categories: list[str], cells: list[str], expected: list[int], form: str, label: bool
) -> None:
    schema = schema_of(categories, label=label)
    assert codes_of(written(tmp_path / "records", cells, form), schema) == expected


def test_a_missing_text_comes_before_a_category_of_its_number(tmp_path: Path) -> None:
    schema = schema_of(["9", "1"], missing=["9.0", "-7", "042"])
    found, counts = load_records(
        written(tmp_path / "records", ["9", "9.0", "9.00", "-7.0", "042", "42", "nan"], "csv"), schema
    )
    place = {column.name: place for column, place in schema.places()}["c"]
    assert found.features[:, place].argmax(axis=1)[:1].tolist() == [0]
    assert found.present[:, place].any(axis=1).tolist() == [True, False, True, False, False, False, False]
    assert (counts["c"].missing, counts["c"].unmatched) == (4, 1)


def test_spaces_around_a_missing_text_are_none_of_it(tmp_path: Path) -> None:
    """As around a cell: of a category it was found, of a number and a date it counted as a fault."""
    columns = (
        NUMBER,
        DateColumn(name="d", low=0, high=9, origin="1970-01-01"),
        CategoryColumn(name="c", categories=("a", "b")),
    )
    schema = DatasetSchema(columns=columns, missing=(" k.A. ",), max_records=10)
    (tmp_path / "t.csv").write_text("n,d,c\nk.A., k.A.,k.A. \n")
    _, counts = load_records(tmp_path / "t.csv", schema)
    assert [(cells.missing, cells.unmatched) for cells in counts.values()] == [(1, 0)] * 3


INTEGERS = [pa.int8(), pa.int64(), pa.uint16(), pa.float32(), pa.float64(), pa.float16(), pa.decimal128(5, 2)]


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_numbers_stand_for_the_only_text_of_theirs(tmp_path: Path, kind: Any) -> None:
    whole = pa.array([Decimal(1), Decimal(2), Decimal(3), None]) if pa.types.is_decimal(kind) else pa.array([1, 2, 3, None])
    cells = whole.cast(kind) if kind != pa.float16() else pa.array(np.array([1, 2, 3, np.nan], np.float16))
    for label in (False, True):
        path = written(tmp_path / "records", cells, "parquet")
        assert codes_of(path, schema_of(["01", "2.0"], label=label)) == [0, 1, -1, -1]
        with pytest.raises(DataError, match=r"in which '1' and '01' are the same. Store texts"):
            check_structure(path, schema_of(["1", "01", "2"], label=label))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(7, 2)], ids=str)
@pytest.mark.parametrize("form", ["parquet", "npz"])
def test_decimals_are_what_they_say(tmp_path: Path, kind: Any, form: str) -> None:
    """Every hundredth to 2.55 is a category of its own, its number is that hundredth, and a missing code is missing."""
    if form == "npz" and pa.types.is_decimal(kind):
        pytest.skip("numpy has no decimals")
    texts = [f"{hundredths / 100:.2f}" for hundredths in range(256)]
    numbers = [*map(float, texts), 9.99]
    exactly = {pa.float16(): lambda: pa.array(np.array(numbers, np.float16))}
    if pa.types.is_decimal(kind):
        exactly[kind] = lambda: pa.array([*map(Decimal, texts), Decimal("9.99")]).cast(kind)
    cells = exactly.get(kind, lambda: pa.array(numbers, kind))()
    path, schema = written(tmp_path / "records", cells, form, numbers=cells), schema_of(texts, missing=["9.990"])
    assert codes_of(path, schema) == [*range(256), -1]
    records, counts = load_records(path, schema)
    assert (counts["n"].missing, counts["c"].missing, counts["c"].unmatched) == (1, 1, 0)
    np.testing.assert_allclose(records.features[:256, 0], np.array(numbers[:256]) / 1000, atol=1e-15)


@pytest.mark.parametrize("form", ["parquet", "npz"])
@pytest.mark.parametrize(
    "spelled",
    [
        ("true", "false"),
        ("True", "False"),
        ("TRUE", "FALSE"),
        ("yes", "no"),
        ("Y", "N"),
        ("1", "0"),
        ("1.0", "0.0"),
        ("t", "f"),
    ],
)
def test_booleans_match_the_usual_spellings(tmp_path: Path, spelled: tuple[str, str], form: str) -> None:
    path = written(tmp_path / "records", pa.array([True, False, True]), form)
    for label in (False, True):
        assert codes_of(path, schema_of([*spelled, "unknown"], label=label)) == [0, 1, 0]
    with pytest.raises(DataError, match="are the same"):
        check_structure(path, schema_of([*spelled, "on"]))


def test_booleans_that_a_schema_does_not_name_are_told_of(tmp_path: Path) -> None:
    _, counts = load_records(written(tmp_path / "records", pa.array([True, None]), "parquet"), schema_of(["sick", "well"]))
    assert (counts["c"].unmatched, counts["c"].missing) == (1, 1)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_are_refused_by_name(tmp_path: Path, unit: str) -> None:
    """Parquet itself knows them as integers, in a unit that only Arrow's note tells."""
    path = written(tmp_path / "records", ["1"], "parquet", numbers=pa.array([dt.timedelta(days=3)], pa.duration(unit)))
    with pytest.raises(DataError, match=rf"column 'n' holds duration\[{unit}\]. Store numbers or texts"):
        check_structure(path, schema_of(["1", "2"]))


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "America/New_York", "+05:30"])
def test_a_times_day_is_that_of_its_own_zone(tmp_path: Path, zone: str | None) -> None:
    moments = [dt.datetime(2024, 2, 29, 23, 30, tzinfo=dt.UTC), dt.datetime(2024, 3, 1, 4, 30, tzinfo=dt.UTC), None]
    plain = [None if moment is None else moment.replace(tzinfo=None) for moment in moments]
    kind = pa.timestamp("us", zone)
    column = pa.array(plain, pa.timestamp("us")) if zone is None else pa.array(moments, kind)
    path = tmp_path / "records.parquet"
    parquet.write_table(pa.table({"day": column}), path)
    schema = DatasetSchema(max_records=9, columns=(DateColumn(name="day", origin="2024-02-28", low=-5, high=5),))
    days = [None if day is None else (dt.datetime.fromisoformat(str(day)[:19]).date() - dt.date(2024, 2, 28)).days
            for day in column.to_pylist()]  # fmt: skip
    records, _ = load_records(path, schema)
    streamed = np.concatenate([batch.features[:, 0] for batch in stream_records(path, schema, None, rows=1, header=None)])
    np.testing.assert_allclose(records.features[:2, 0] * 5, days[:2], atol=1e-9)
    np.testing.assert_array_equal(streamed, records.features[:, 0])
    assert records.present[:, 0].tolist() == [True, True, False]


def fraction(text: str) -> Fraction | None:
    """What Python reads, of texts that are plain numbers."""
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


NUMERALS = st.from_regex(r"[+-]?[0-9]{0,20}\.?[0-9]{0,20}([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@settings(max_examples=300, deadline=None)
@given(one=NUMERALS, other=NUMERALS, same=st.booleans())
def test_an_exact_number_is_pythons(one: str, other: str, same: bool) -> None:
    if same and fraction(one) is not None:
        other = f"{one}e0" if "e" not in one.lower() else one.upper()
    found, wanted = [exact(text, padded=True) for text in (one, other)], [fraction(text) for text in (one, other)]
    assert [item is None for item in found] == [item is None for item in wanted]
    if None not in found:
        assert (found[0] == found[1]) == (wanted[0] == wanted[1])


@SLOW
@given(cells=st.lists(st.text(max_size=6), max_size=5), data=st.data())
def test_no_cell_changes_what_another_means(tmp_path: Path, cells: list[str], data: Any) -> None:
    categories = data.draw(st.lists(st.text(min_size=1, max_size=4), min_size=2, max_size=4, unique_by=str.strip))

    def meant(texts: list[str]) -> list[int]:
        return codes_of(written(tmp_path / "records", pa.array(texts, pa.string()), "parquet"), schema_of(categories))

    together = meant([*cells, *categories])
    assert together[: len(cells)] == [meant([cell])[0] for cell in cells]
    assert together[len(cells) :] == [*range(len(categories))]


def test_a_column_may_be_a_category_and_tell_persons_apart(tmp_path: Path) -> None:
    """In one file, in parts and in batches; its numbers are texts of the schema there."""
    schema = schema_of(["1", "2", "3"])
    cells = pa.array([3, 1, 1, 2], pa.int64())
    parts = tmp_path / "parts"
    parts.mkdir()
    for name, part in (("a", cells[:2]), ("b", cells[2:])):
        written(parts / name, part, "parquet")
    for path in (written(tmp_path / "records", cells, "parquet"), parts):
        check_structure(path, schema, subject="c")
        read, _ = load_records(path, schema, "c")
        streamed = np.concatenate([batch.features for batch in stream_records(path, schema, "c", rows=1, persons=2)])
        place = {column.name: place for column, place in schema.places()}["c"]
        assert sorted(read.features[:, place].argmax(axis=1).tolist()) == [0, 0, 1, 2]
        assert sorted(streamed[:, place].argmax(axis=1).tolist()) == [0, 0, 1, 2]


LETTERS = [
    "\u00e9",
    "e\u0301",
    "e",
    "\u0301",
    "\u212b",
    "\u00c5",
    "A\u030a",
    "\u1e69",
    "s\u0323\u0307",
    "\uac00",
    "\u1100\u1161",
    "\ufb01",
    "K",
]


@SLOW
@given(
    categories=st.lists(
        st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3).map("".join), min_size=2, max_size=4, unique=True
    ),
    cells=st.lists(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3).map("".join), min_size=1, max_size=6),
    label=st.booleans(),
)
def test_a_letter_and_its_accent_are_one_character_or_two(
    tmp_path: Path, categories: list[str], cells: list[str], *, label: bool
) -> None:
    """As Unicode has it: texts of one canonical form are one; of a schema that tells them apart, each by itself."""
    cells = [*cells, *(normalize("NFD", text) for text in categories), *(normalize("NFC", text) for text in categories)]
    parquet.write_table(pa.table({"n": np.zeros(len(cells)), "c": cells}), tmp_path / "t.parquet")
    own = dict(reversed([(normalize("NFD", text), code) for code, text in enumerate(categories)]))
    composed = {text: code for code, text in enumerate(categories) if text == normalize("NFC", text)}
    want = [
        categories.index(cell)
        if cell in categories
        else composed.get(normalize("NFC", cell), own.get(normalize("NFD", cell), -1))
        for cell in cells
    ]
    assert codes_of(tmp_path / "t.parquet", schema_of(categories, label=label)) == want


TIMES = st.tuples(*(st.one_of(st.sampled_from((0, 23, 24, 25, 59, 60, 61)), st.integers(0, 99)) for _ in range(3)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    year=st.sampled_from((0, 1, 9, 1900, 2024, 9999)),
    time=TIMES,
    form=st.sampled_from(("T{}:{}:{}", " {}{}{}", "T{}:{}", "T{}")),
    offset=st.one_of(st.none(), st.tuples(st.integers(0, 99), st.integers(0, 99))),
)
def test_a_text_is_a_day_if_its_time_is_one(
    tmp_path: Path, year: int, time: tuple[int, int, int], form: str, offset: tuple[int, int] | None
) -> None:
    """The day is the one that is written, 24:00 its end; a time that no clock shows, or the year 0, is no date at all."""
    hour, minute, second = (part if place < form.count("{}") else 0 for place, part in enumerate(time))
    told = f"{year:04d}-02-03" + form.format(*(f"{part:02d}" for part in time))
    told += "" if offset is None else "+{:02d}:{:02d}".format(*offset)
    clock = (hour < 24 and minute < 60 and second < 61) or (hour, minute, second) == (24, 0, 0)
    real = clock and year > 0 and (offset is None or (offset[0] < 24 and offset[1] < 60))
    schema = DatasetSchema(columns=(DateColumn(name="x", low=-1e7, high=1e7, origin="1970-01-01"),))
    (tmp_path / "t.csv").write_text(f"x\n{told}\n")
    (judged,) = judge_table(read_table(tmp_path / "t.csv", schema).columns, schema)
    assert bool(judged.invalid[0]) == (not real)
    assert not real or judged.values[0] == (dt.date(year, 2, 3) - dt.date(1970, 1, 1)).days
