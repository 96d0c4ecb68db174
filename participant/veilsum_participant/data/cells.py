"""Judge the cells of one column against the schema, a whole column at a time.

Numbers compare by value ("1.0" is "1"), categories and classes as :mod:`.spellings` says, everything else as trimmed text.
Nothing here raises because of what a cell holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Bools
from veilsum_participant.data.spellings import Spellings, exact, known_texts
from veilsum_privacy.study.schema import CategoryColumn, CodeColumn, DatasetSchema, DateColumn, LabelColumn, NumberColumn

_CLOCK = r"(([01][0-9]|2[0-3])(:?[0-5][0-9](:?([0-5][0-9]|60))?)?|24(:?00){0,2})"
_OFFSET = r"[+-]([01][0-9]|2[0-3])(:?[0-5][0-9]){0,2}"
_TIME = rf"{_CLOCK}([.,][0-9]+)?( ?(Z|UTC|GMT|[AP]M|{_OFFSET}))?(\[[A-Z0-9_/+-]+\])?"
_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DATE = rf"(?i)^{_YEAR}-[0-9]{{2}}-[0-9]{{2}}([T ]{_TIME})?$"
"""A day of the years 1 to 9999, and a time of it perhaps, up to 24:00, its end; of two days, or one before Christ, the first
ten letters are none."""
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True)
class JudgedColumn:
    """The cells of a column of a schema, or of its classes; the masks (n,) are disjoint.

    Attributes:
        name: of the column.
        column: of the schema; None for the classes.
        source: the name of the column in its source.
        values: (n,) float64 of numbers, and of dates the days since their origin, NaN where missing or invalid; or (n,) int64
            of categories and classes, -1 where missing or invalid.
        missing, invalid, outside: which cells have no value, one that means nothing, and a number beyond the bounds.
    """

    name: str
    column: NumberColumn | CategoryColumn | None
    source: str
    values: NDArray[Any]
    missing: Bools
    invalid: Bools
    outside: Bools


def judge_table(columns: Mapping[str, Any], schema: DatasetSchema) -> Iterator[JudgedColumn]:
    """Judge every column of a schema in its order, then that of its classes, among all that were read."""
    missing = [text.strip() for text in schema.missing]
    for column in schema.columns:
        if isinstance(column, NumberColumn):
            if isinstance(column, DateColumn):
                values, absent, invalid = _dates(columns, column, missing)
            else:
                values, absent, invalid = _numbers(columns[column.name], missing)
            values = np.where(absent | invalid, np.nan, values)
            with np.errstate(invalid="ignore"):
                outside = (values < column.low) | (values > column.high)
            yield JudgedColumn(column.name, column, column.name, values, absent, invalid & ~absent, outside)
        else:
            yield judge_texts(column, columns[column.source], missing)
    if schema.label is not None:
        yield judge_texts(schema.label, columns[schema.label.column], missing)


def _numbers(array: Any, texts: list[str]) -> tuple[NDArray[np.float64], Bools, Bools]:
    """The number in each cell, which cells have none, and which one that is none or infinite."""
    if pa.types.is_floating(array.type):
        values = np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.float64)  # null is NaN
        absent = np.isnan(values)
        invalid = np.isinf(values)
    else:
        gone = pc.or_(pc.is_null(array), pc.is_in(array, value_set=pa.array([*texts, ""], array.type)))
        gone = pc.or_(gone, pc.fill_null(pc.equal(pc.utf8_lower(array), "nan"), False))
        given = pc.if_else(gone, pa.scalar(None, array.type), array)
        try:
            parsed = pc.cast(given, pa.float64())
        except pa.ArrowInvalid:
            number = pc.fill_null(pc.match_substring_regex(given, _NUMBER), False)
            parsed = pc.cast(pc.if_else(number, given, pa.scalar(None, array.type)), pa.float64())
        values = np.asarray(parsed.to_numpy(zero_copy_only=False), dtype=np.float64)
        absent = _mask(gone)
        invalid = ~np.isfinite(values) & ~absent
    for key in _coded(tuple(texts)):
        absent = absent | (values == key)
    return values, absent, invalid


@lru_cache(maxsize=64)
def _coded(texts: tuple[str, ...]) -> tuple[float, ...]:
    """Those of a schema's texts for missing that are numbers."""
    return tuple(float(text) for text in texts if exact(text, padded=True) is not None)


def _dates(columns: Mapping[str, Any], column: DateColumn, texts: list[str]) -> tuple[NDArray[np.float64], Bools, Bools]:
    """:func:`_numbers` of a column of dates, whose origin may be another column."""
    days, absent, invalid = _days(columns[column.name], texts)
    if column.origin_day is not None:
        return days - column.origin_day, absent, invalid
    origin, none, wrong = _days(columns[column.origin], texts)
    return days - origin, absent | none, invalid | wrong


def _days(array: Any, missing: list[str]) -> tuple[NDArray[np.float64], Bools, Bools]:
    """Days from 1970-01-01 to the date of each cell, and which are missing, and which do not hold a date."""
    texts = pc.cast(array, pa.large_string())
    shaped = pc.fill_null(pc.match_substring_regex(texts, _DATE), False)
    given = pc.if_else(shaped, pc.utf8_slice_codeunits(texts, 0, 10), pa.scalar(None, pa.large_string()))
    named = pa.array([*missing, ""], pa.large_string())
    gone = pc.or_(pc.is_null(texts), pc.or_(pc.is_in(texts, value_set=named), pc.is_in(given, value_set=named)))
    moments = pc.strptime(given, format="%Y-%m-%d", unit="s", error_is_null=True)
    same = pc.fill_null(pc.equal(pc.strftime(moments, format="%Y-%m-%d"), pc.cast(given, pa.string())), False)
    valid, absent = _mask(same), _mask(gone)
    seconds = np.asarray(pc.fill_null(pc.cast(moments, pa.int64()), 0).to_numpy(zero_copy_only=False), dtype=np.float64)
    return np.where(valid, seconds / 86400.0, np.nan), absent, ~valid & ~absent


def judge_texts(column: CategoryColumn | LabelColumn, array: Any, missing: Sequence[str]) -> JudgedColumn:
    """Find each cell's category, its code's group, or its class: each distinct text is looked up once."""
    means = _grouped(column, missing) if isinstance(column, CodeColumn) else _meaning(known_texts(column), missing)
    encoded = array.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    found = [*map(means, distinct), (-1, True)]
    indices = encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False).astype(np.int64)
    codes = np.array([code for code, _ in found], dtype=np.int64)[indices]
    absent = np.array([gone for _, gone in found], dtype=np.bool_)[indices]
    judged = codes, absent, (codes < 0) & ~absent, np.zeros_like(absent)
    if isinstance(column, LabelColumn):
        return JudgedColumn(column.column, None, column.column, *judged)
    return JudgedColumn(column.name, column, column.source, *judged)


def _grouped(column: CodeColumn, missing: Sequence[str]) -> Callable[[str], tuple[int, bool]]:
    """What gives a code's group and whether it is missing: a text for missing is never a code."""
    gone = {"", *missing}

    def means(text: str) -> tuple[int, bool]:
        absent = text in gone or text.casefold() == "nan"
        return -1 if absent else column.place(text), absent

    return means


def _meaning(known: Sequence[tuple[str, int]], missing: Sequence[str]) -> Callable[[str], tuple[int, bool]]:
    """What gives a text's code and whether it is missing, which one that is named as category or class never is."""
    named, gone = Spellings.of(known), Spellings.of([("", 0), *((text, 0) for text in missing)])

    def means(text: str) -> tuple[int, bool]:
        code = -1 if text in gone.texts and text not in named.texts else named.find(text)
        return code, code < 0 and (text.casefold() == "nan" or gone.find(text) >= 0)

    return means


def _mask(array: Any) -> Bools:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)
