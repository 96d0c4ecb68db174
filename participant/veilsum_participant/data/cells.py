"""Judge the cells of one column against the schema, a whole column at a time.

Numbers compare by value ("1.0" is "1"), categories and classes as :mod:`.spellings` says, everything else as trimmed text.
Nothing here raises because of what a cell holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Bools
from veilsum_participant.data.spellings import Spellings, exact
from veilsum_privacy.study.schema import CategoryColumn, CodeColumn, DatasetSchema, DateColumn, LabelColumn, NumberColumn

_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True)
class NumberCells:
    """Cells of a numeric column: ``values`` (n,) float64, NaN where missing or invalid, and disjoint masks (n,)."""

    values: NDArray[np.float64]
    missing: Bools
    invalid: Bools
    outside: Bools


@dataclass(frozen=True)
class CodeCells:
    """Cells of a categorical column or label: ``codes`` (n,) int64, -1 where missing or invalid, and disjoint masks (n,)."""

    codes: NDArray[np.int64]
    missing: Bools
    invalid: Bools


@dataclass(frozen=True)
class JudgedColumn:
    """The cells of a column of a schema, or of its classes, by disjoint masks (n,).

    Attributes:
        name: of the column.
        column: of the schema; None for the classes.
        source: the name of the column in its source.
        other: of codes, which are in none of the groups named.
    """

    name: str
    column: NumberColumn | CategoryColumn | None
    source: str
    missing: Bools
    invalid: Bools
    outside: Bools
    other: Bools | None = None


def judge_table(columns: Mapping[str, Any], schema: DatasetSchema) -> Iterator[JudgedColumn]:
    """Judge every column of a schema, and that of its classes, among all that were read."""
    for column in schema.columns:
        if isinstance(column, NumberColumn):
            numbers = judge_column(columns, column, schema.missing)
            yield JudgedColumn(column.name, column, column.name, numbers.missing, numbers.invalid, numbers.outside)
        else:
            codes = judge_categories(columns[column.source], column, schema.missing)
            other = codes.codes == column.other_place if isinstance(column, CodeColumn) and column.other is not None else None
            none = np.zeros_like(codes.invalid)
            yield JudgedColumn(column.name, column, column.source, codes.missing, codes.invalid, none, other)
    if schema.label is not None:
        codes = judge_labels(columns[schema.label.column], schema.label, schema.missing)
        name = schema.label.column
        yield JudgedColumn(name, None, name, codes.missing, codes.invalid, np.zeros_like(codes.invalid))


def judge_numbers(array: Any, column: NumberColumn, missing: Iterable[str]) -> NumberCells:
    """Parse and judge a numeric column; a cell that is infinite is invalid."""
    texts = list(missing)
    if pa.types.is_floating(array.type):
        values = _values(array)
        absent = np.isnan(values)
        invalid = np.zeros_like(absent)
    else:
        gone = pc.or_(pc.is_null(array), pc.is_in(array, value_set=pa.array([*texts, ""], array.type)))
        gone = pc.or_(gone, pc.fill_null(pc.equal(pc.utf8_lower(array), "nan"), False))
        given = pc.if_else(gone, pa.scalar(None, array.type), array)
        try:
            parsed = pc.cast(given, pa.float64())
        except pa.ArrowInvalid:
            number = pc.fill_null(pc.match_substring_regex(given, _NUMBER), False)
            parsed = pc.cast(pc.if_else(number, given, pa.scalar(None, array.type)), pa.float64())
        values = _values(parsed)
        absent = _mask(gone)
        invalid = np.isnan(values) & ~absent
    invalid = invalid | np.isinf(values)
    for key in _numbers(tuple(texts)):
        absent = absent | (values == key)
    values = np.where(absent | invalid, np.nan, values)
    with np.errstate(invalid="ignore"):
        outside = (values < column.low) | (values > column.high)
    return NumberCells(values, absent, invalid, outside)


@lru_cache(maxsize=64)
def _numbers(texts: tuple[str, ...]) -> tuple[float, ...]:
    """Those of a schema's texts for missing that are numbers."""
    return tuple(float(text) for text in texts if exact(text.strip(), padded=True) is not None)


def judge_column(columns: Mapping[str, Any], column: NumberColumn, missing: Iterable[str]) -> NumberCells:
    """:func:`judge_numbers` of a column among all that were read; a date as its days since the origin."""
    array = columns[column.name]
    if not isinstance(column, DateColumn):
        return judge_numbers(array, column, missing)
    texts = list(missing)
    days, absent, invalid = _days(array, texts)
    if column.origin_day is not None:
        days = days - column.origin_day
    else:
        origin, none, wrong = _days(columns[column.origin], texts)
        days, absent, invalid = days - origin, absent | none, invalid | wrong
    values = np.where(absent | invalid, np.nan, days)
    with np.errstate(invalid="ignore"):
        outside = (values < column.low) | (values > column.high)
    return NumberCells(values, absent, invalid & ~absent, outside)


def _days(array: Any, missing: list[str]) -> tuple[NDArray[np.float64], Bools, Bools]:
    """Days from 1970-01-01 to the date of each cell, and which are missing, and which are no date."""
    texts = pc.cast(array, pa.large_string())
    gone = pc.or_(
        pc.is_null(texts), pc.fill_null(pc.is_in(texts, value_set=pa.array([*missing, ""], pa.large_string())), True)
    )
    day = pc.utf8_slice_codeunits(texts, 0, 10)
    shaped = pc.fill_null(pc.match_substring_regex(texts, _DATE), False)
    given = pc.if_else(shaped, day, pa.scalar(None, pa.large_string()))
    moments = pc.strptime(given, format="%Y-%m-%d", unit="s", error_is_null=True)
    same = pc.fill_null(pc.equal(pc.strftime(moments, format="%Y-%m-%d"), pc.cast(given, pa.string())), False)
    valid, absent = _mask(same), _mask(gone)
    seconds = np.asarray(pc.fill_null(pc.cast(moments, pa.int64()), 0).to_numpy(zero_copy_only=False), dtype=np.float64)
    return np.where(valid, seconds / 86400.0, np.nan), absent, ~valid & ~absent


def judge_categories(array: Any, column: CategoryColumn, missing: Iterable[str]) -> CodeCells:
    """Find each cell's category."""
    if isinstance(column, CodeColumn):
        return _groups(array, column, missing)
    return _codes(array, [(text, code) for code, text in enumerate(column.categories)], missing)


def judge_labels(array: Any, label: LabelColumn, missing: Iterable[str]) -> CodeCells:
    """Find each cell's class."""
    return _codes(array, [(text, code) for code, item in enumerate(label.classes) for text in item.values], missing)


def _codes(array: Any, known: Iterable[tuple[str, int]], missing: Iterable[str]) -> CodeCells:
    """Look up each distinct text once; one that the schema names as category or class is never missing."""
    named, gone = Spellings.of(known), Spellings.of([("", 0), *((text, 0) for text in missing)])
    encoded = array.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    codes = np.full(len(distinct) + 1, -1, dtype=np.int64)
    absent = np.zeros(len(distinct) + 1, dtype=np.bool_)
    absent[-1] = True
    for index, text in enumerate(distinct):
        codes[index] = -1 if text in gone.texts and text not in named.texts else named.find(text)
        absent[index] = codes[index] < 0 and (text.casefold() == "nan" or gone.find(text) >= 0)
    indices = encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False).astype(np.int64)
    code, lacking = codes[indices], absent[indices]
    return CodeCells(code, lacking, (code < 0) & ~lacking)


def _groups(array: Any, column: CodeColumn, missing: Iterable[str]) -> CodeCells:
    """Look up each distinct code once; a text for missing is never a code."""
    gone = {"", *(text.strip() for text in missing)}
    encoded = array.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    absent = [text in gone or text.casefold() == "nan" for text in distinct] + [True]
    places = [-1 if none else column.place(text) for text, none in zip([*distinct, ""], absent, strict=True)]
    indices = encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False).astype(np.int64)
    code, lacking = np.array(places, dtype=np.int64)[indices], np.array(absent, dtype=np.bool_)[indices]
    return CodeCells(code, lacking, (code < 0) & ~lacking)


def _values(array: Any) -> NDArray[np.float64]:
    filled = pc.fill_null(array, math.nan) if array.null_count else array
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.float64)


def _mask(array: Any) -> Bools:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)
