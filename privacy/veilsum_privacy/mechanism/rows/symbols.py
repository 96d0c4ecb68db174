"""Symbols: what a task is given in place of a record's values, so that its code says what is computed and computes nothing.

A symbol of shape (p,) stands for p values of one record; it has no axis of records. Operators, the ufuncs of numpy's that
are among the primitives, ``np.where`` and ``np.clip`` make new symbols, and so do the functions here. All else that could look
at a value, or count records, raises :class:`TypeError`: there is nothing to look at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.moment_maps import MomentMap
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.graph import Node, RowGraph, node
from veilsum_privacy.mechanism.rows.primitives import DTYPES, PRIMITIVES, Elementwise, Kind

Value = Any
"""A symbol, or a public number or array; in formulas that are also computed of arrays, an array with one value a record."""

Key = int | slice | None | EllipsisType | NDArray[np.intp]

_UFUNCS: Mapping[np.ufunc, str] = {
    **{rule.ufunc: name for name, rule in PRIMITIVES.items() if isinstance(rule, Elementwise)},
    np.bitwise_and: "logical_and",
    np.bitwise_or: "logical_or",
    np.invert: "logical_not",
}


class Symbol:
    """Values of one record that nobody knows here."""

    __slots__ = ("node",)

    def __init__(self, made: Node) -> None:
        self.node = made

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record's values."""
        return self.node.spec.shape

    @property
    def kind(self) -> Kind:
        """What the values are."""
        return self.node.spec.kind

    def reshape(self, *shape: int) -> Symbol:
        """The same values in another shape, of which one length may be -1."""
        size = self.node.spec.size
        known = math.prod(length for length in shape if length >= 0)
        return Symbol(node("shaped", [self.node], shape=tuple(size // max(known, 1) if n < 0 else n for n in shape)))

    def __getitem__(self, key: Key | tuple[Key, ...]) -> Symbol:
        """Values at public places of their axes, as numpy has them; ``None`` makes an axis."""
        keys = key if isinstance(key, tuple) else (key,)
        if not all(map(_public_place, keys)):
            raise TypeError("Values of a record are taken by public places.")
        places = np.arange(self.node.spec.size).reshape(self.shape)[key]
        shape = np.shape(places)
        flat = np.ravel(places)
        if len(flat) == self.node.spec.size and np.array_equal(flat, np.arange(len(flat))):
            return self.reshape(*shape)
        return Symbol(node("taken", [self.node], [flat])).reshape(*shape)

    def __add__(self, other: Value) -> Symbol:
        return _of("add", self, other)

    def __radd__(self, other: Value) -> Symbol:
        return _of("add", other, self)

    def __sub__(self, other: Value) -> Symbol:
        return _of("subtract", self, other)

    def __rsub__(self, other: Value) -> Symbol:
        return _of("subtract", other, self)

    def __mul__(self, other: Value) -> Symbol:
        return _of("multiply", self, other)

    def __rmul__(self, other: Value) -> Symbol:
        return _of("multiply", other, self)

    def __truediv__(self, other: Value) -> Symbol:
        return _of("divide", self, other)

    def __rtruediv__(self, other: Value) -> Symbol:
        return _of("divide", other, self)

    def __lt__(self, other: Value) -> Symbol:
        return _of("less", self, other)

    def __le__(self, other: Value) -> Symbol:
        return _of("less_equal", self, other)

    def __gt__(self, other: Value) -> Symbol:
        return _of("greater", self, other)

    def __ge__(self, other: Value) -> Symbol:
        return _of("greater_equal", self, other)

    def __eq__(self, other: object) -> Symbol:  # type: ignore[override]  # as of arrays
        return _of("equal", self, other)

    def __ne__(self, other: object) -> Symbol:  # type: ignore[override]  # as of arrays
        return _of("not_equal", self, other)

    def __and__(self, other: Value) -> Symbol:
        return _of("logical_and", self, other)

    def __rand__(self, other: Value) -> Symbol:
        return _of("logical_and", other, self)

    def __or__(self, other: Value) -> Symbol:
        return _of("logical_or", self, other)

    def __ror__(self, other: Value) -> Symbol:
        return _of("logical_or", other, self)

    def __rshift__(self, bits: int) -> Symbol:
        return _of("right_shift", self, bits)

    def __neg__(self) -> Symbol:
        return _of("negative", self)

    def __abs__(self) -> Symbol:
        return _of("absolute", self)

    def __invert__(self) -> Symbol:
        return _of("logical_not", self)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Value, **settings: Any) -> Symbol:
        if method != "__call__" or settings or ufunc not in _UFUNCS:
            raise TypeError(f"A row cannot be computed by {ufunc.__name__}, {method}, {', '.join(settings) or 'as it is'}.")
        return _of(_UFUNCS[ufunc], *inputs)

    def __array_function__(
        self, function: Callable[..., Any], types: object, given: Sequence[Value], named: Mapping[str, Value]
    ) -> Symbol:
        if function is np.where and len(given) == 3 and not named:
            return where(*given)
        if function is np.clip and len(given) == 3 and not named:
            return clip(*given)
        raise TypeError(f"A row cannot be computed by numpy's {getattr(function, '__name__', 'function')}.")

    def _unknown(self, *_: object) -> NoReturn:
        raise TypeError("A symbol has no value: a task says what is computed, and computes nothing.")

    __bool__ = __len__ = __iter__ = __contains__ = __float__ = __int__ = __index__ = __complex__ = _unknown
    __array__ = __setitem__ = __round__ = _unknown
    __hash__ = None  # type: ignore[assignment]


class Record(NamedTuple):
    """What a task is given of a record.

    Attributes:
        features: (width,) in [-1, 1] by the schema's bounds, but for what no reader should let through; 0 where absent.
        present: (width,) which of them are there.
        label: () the class, -1 where there is none; None where the schema has no label.
    """

    features: Symbol
    present: Symbol
    label: Symbol | None


def record_of(width: int, *, labelled: bool) -> Record:
    """A record of so many features."""
    columns = tuple(range(width))
    label = Symbol(node("label")) if labelled else None
    return Record(Symbol(node("features", columns=columns)), Symbol(node("present", columns=columns)), label)


def traced(row: Symbol) -> RowGraph:
    """The graph that computes a row.

    Raises:
        HostileInput: it is not a row of real or whole numbers.
    """
    if not isinstance(row, Symbol) or len(row.shape) != 1 or row.kind == "truth":
        raise HostileInput("A task gives no row of numbers.")
    return RowGraph(row.node)


def symbol(value: Value) -> Symbol:
    """A symbol as it is; of a public number or array the symbol that has its values in every record."""
    if isinstance(value, Symbol):
        return value
    if isinstance(value, list | tuple) and any(isinstance(each, Symbol) for each in value):
        return stacked(value)
    return Symbol(node("public", [], [np.asarray(value)]))


def _of(primitive: str, *inputs: Value, arrays: Sequence[Any] = (), **options: int | str | tuple[int, ...]) -> Symbol:
    return Symbol(node(primitive, [symbol(each).node for each in inputs], arrays, **options))


def _public_place(key: object) -> bool:
    if isinstance(key, np.ndarray):
        return bool(key.dtype.kind in "iu")
    return key is None or (isinstance(key, int | np.integer | slice | EllipsisType) and not isinstance(key, bool))


# -- functions of symbols -----------------------------------------------------------------------------------------------------


def where(condition: Value, one: Value, other: Value) -> Symbol:
    """``one`` where the condition holds, else ``other``."""
    return _of("where", condition, one, other)


def clip(value: Value, low: Value, high: Value) -> Symbol:
    """A value cut to public or other bounds."""
    return _of("minimum", _of("maximum", value, low), high)


def maximum(value: Value, other: Value) -> Symbol:
    """The larger one."""
    return _of("maximum", value, other)


def minimum(value: Value, other: Value) -> Symbol:
    """The smaller one."""
    return _of("minimum", value, other)


def exp(value: Value) -> Symbol:
    """e to the power of reals."""
    return _of("exp", value)


def cos(value: Value) -> Symbol:
    """cos(x), value by value."""
    return _of("cos", value)


def log(value: Value) -> Symbol:
    """The natural logarithm of reals."""
    return _of("log", value)


def square(value: Value) -> Symbol:
    """Each value times itself."""
    return _of("square", value)


def rounded(value: Value) -> Symbol:
    """Reals to the nearest integer, halves to even ones; still reals."""
    return _of("rint", value)


def finite(value: Value) -> Symbol:
    """Whether reals are finite."""
    return _of("isfinite", value)


def real(value: Value) -> Symbol:
    """Numbers or truths as reals."""
    return _of("real", value)


def whole(value: Value) -> Symbol:
    """Truths as 0 and 1; reals as integers, cut off towards zero, and 0 where they are not finite or beyond 2^62."""
    return _of("whole", value)


def joined(*parts: Value) -> Symbol:
    """Values one after another; parts of any shape lie flat, row-major."""
    flat = [symbol(part).reshape(-1) for part in parts]
    return _of("joined", *flat)


def stacked(parts: Sequence[Value]) -> Symbol:
    """Values of one shape beside each other on a new last axis."""
    shapes = {symbol(part).shape for part in parts}
    if len(shapes) != 1:
        raise TypeError(f"Values of shapes {sorted(shapes)} are stacked.")
    (shape,) = shapes
    if not shape:
        return joined(*parts)
    whole_row = joined(*parts).reshape(len(parts), -1)
    places = np.arange(len(parts) * math.prod(shape)).reshape(len(parts), -1).T.ravel()
    return Symbol(node("taken", [whole_row.node], [places])).reshape(*shape, len(parts))


def total(value: Value) -> Symbol:
    """The sum along the last axis."""
    return _of("total", value)


def length(value: Value) -> Symbol:
    """The L2 norm along the last axis."""
    return _of("sqrt", total(square(value)))


def scaled_down(row: Value, norm: float) -> Symbol:
    """Values (m,) with an L2 norm of ``norm`` at most, however long they are."""
    peak = largest(absolute(row))
    one = row / where(peak > 0.0, peak, 1.0)  # so that no square overflows
    size = length(one)
    scaled: Symbol = one * where(peak * size > norm, norm / where(size > 0.0, size, 1.0), peak)
    return scaled


def absolute(value: Value) -> Symbol:
    """The absolute value."""
    return _of("absolute", value)


def cumulated(value: Value) -> Symbol:
    """Sums along the last axis, up to each place."""
    return _of("cumulated", value)


def largest(value: Value) -> Symbol:
    """The largest along the last axis."""
    return _of("largest", value)


def place_of_largest(value: Value) -> Symbol:
    """Where along the last axis the largest stands, the first of equals."""
    return _of("place_of_largest", value)


def place_of_smallest(value: Value) -> Symbol:
    """Where along the last axis the smallest stands, the first of equals."""
    return _of("place_of_smallest", value)


def every(value: Value) -> Symbol:
    """Whether all along the last axis hold."""
    return _of("every", value)


def some(value: Value) -> Symbol:
    """Whether any along the last axis holds."""
    return _of("some", value)


def lookup(table: NDArray[Any], code: Value) -> Value:
    """Rows of a public table (k, ...) at codes; zeros where the table has none; of an array of codes as of a symbol."""
    if isinstance(code, Symbol):
        return _of("lookup", code, arrays=[table])
    places, known = np.asarray(code), (np.asarray(code) >= 0) & (np.asarray(code) < len(table))
    found = np.zeros((*places.shape, *table.shape[1:]), dtype=table.dtype)
    found[known] = table[places[known]]
    return found


def search(edges: NDArray[Any], value: Value, side: Literal["left", "right"] = "left") -> Value:
    """How many ascending public edges lie below a value, or with ``right`` not above it; of an array as of a symbol."""
    if isinstance(value, Symbol):
        return _of("searched", value, arrays=[np.asarray(edges, dtype=np.float64)], side=side)
    return np.searchsorted(edges, value, side=side).astype(np.int64)


def placed(values: Value, place: Value, count: int) -> Symbol:
    """Values (*t, *s) at a place (*t) among so many: (*t, count, *s), zeros elsewhere, and everywhere without such a place."""
    one, at = symbol(values), symbol(place)
    if at.node.primitive == "public" and not at.shape and int(at.node.arrays[0]) == 0 and count == 1:
        return one.reshape(1, *one.shape)
    return _of("placed", one, at, count=count)


def spread(value: Value, *axes: int) -> Symbol:
    """The same values for each place of new first axes."""
    one = symbol(value)
    every_place: NDArray[Any] = np.ones((*axes, *(1,) * len(one.shape)), dtype=np.bool_)
    return where(every_place, one, np.zeros((), dtype=DTYPES[one.kind]))


def product(row: Value, matrix: NDArray[Any]) -> Symbol:
    """Values (m,) times a public matrix (m, k), added up one value after another."""
    return _of("product", row, arrays=[np.asarray(matrix, dtype=np.float64)])


def affine(row: Value, matrix: NDArray[Any], offset: NDArray[Any]) -> Symbol:
    """A public matrix (k, m) times values (m,), and a public offset (k,)."""
    return _of("affine", row, arrays=[np.asarray(each, dtype=np.float64) for each in (matrix, offset)])


def pairs(row: Value) -> Symbol:
    """x_i x_j for i < j, row by row."""
    return _of("pairs", row)


def leaves(row: Value, features: NDArray[Any], thresholds: NDArray[Any]) -> Symbol:
    """The leaf of each of K trees, whose inner nodes (K, 2^D - 1) have these features and thresholds: (K,)."""
    return _of("leaves", row, arrays=[np.asarray(features, dtype=np.int64), np.asarray(thresholds, dtype=np.float64)])


def margin(row: Value, features: NDArray[Any], thresholds: NDArray[Any], leaf: NDArray[Any], base: NDArray[Any]) -> Symbol:
    """A base (C,) and the leaves (K, 2^D, C) of these trees, added up one tree after another in single precision: (C,)."""
    reals = [np.asarray(each, dtype=np.float64) for each in (thresholds, leaf, base)]
    return _of("margin", row, arrays=[np.asarray(features, dtype=np.int64), *reals])


def hash_is_low(record: Record, share: float) -> Symbol:
    """Whether the hash of a record's content is among the lowest ``share`` of all hashes."""
    return _of("hash_is_low", *_content(record), arrays=[np.array([share])])


def drawn(record: Record, salt: int) -> Symbol:
    """What is drawn for a record under a public salt, in [0, 1): a hash of its content."""
    return _of("drawn", *_content(record), arrays=[np.array([salt], dtype=np.int64)])


def _content(record: Record) -> tuple[Value, Value, Value]:
    return record.features, record.present, -1 if record.label is None else record.label


def by_moments(row: Value, own: MomentMap) -> Symbol:
    """Values, each mapped by the moments of its column."""
    cubics = [array for cubic in (own.own, own.reference) for array in (cubic.b, cubic.c, cubic.d, cubic.monotone)]
    arrays = [own.centre, own.deviation, own.target, own.spread, own.order, *cubics, np.array([own.tau])]
    return _of("moments", row, arrays=arrays)


def opaque(name: str, row: Value, size: int) -> Symbol:
    """So many values that a map of the kernel's own makes of a row, which is not a graph (:data:`.evaluation.OpaqueMap`)."""
    return _of("opaque", row, name=name, size=size)


def only(row: Value, known: Value) -> Symbol:
    """A row where a condition of the record holds, else zeros."""
    return where(known, row, np.zeros((), dtype=np.int64 if symbol(row).kind == "whole" else np.float64))
