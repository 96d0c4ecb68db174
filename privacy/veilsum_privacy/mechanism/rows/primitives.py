"""The closed list of what a row can be computed by: each primitive's shapes, and how it is computed for a block of records.

Each maps one record's values to one record's values, and is total: where a result is not defined it is NaN of reals, which the
kernel counts as zeros, and 0 of integers. None looks at how many records there are: a block's length is a constant, and its
arrays are contiguous, so that numpy computes the same bits for a record wherever it stands and whatever stands beside it.

Kinds of values are ``real`` (float64), ``whole`` (int64, which wraps around) and ``truth`` (bool). Shapes broadcast as numpy's
do, by the axes of one record alone: a graph cannot name the axis of records.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.mechanism.clipping import row_extremes, row_totals
from veilsum_privacy.mechanism.exact import LARGEST, ExactAffine, largest_of

Kind = Literal["real", "whole", "truth"]
Shape = tuple[int, ...]
Array = NDArray[Any]
Arrays = Sequence[NDArray[Any]]
Options = Mapping[str, int | str | tuple[int, ...]]
Compute = Callable[[], object]
"""Computes a block: from the arrays, and into the one, that it was made for."""

DTYPES: Mapping[Kind, type[np.generic]] = {"real": np.float64, "whole": np.int64, "truth": np.bool_}

MOST_AXES = 6

FARTHEST = 2.0**62
"""Reals beyond it are not integers: they become 0."""


class Spec(NamedTuple):
    """What a node's values are: of which shape for one record, and of which kind."""

    shape: Shape
    kind: Kind

    @property
    def size(self) -> int:
        """Values of one record."""
        return math.prod(self.shape)


def kind_of(dtype: np.dtype[Any]) -> Kind:
    """The kind of a public array.

    Raises:
        HostileInput: it holds neither numbers nor truths.
    """
    if dtype.kind == "b":
        return "truth"
    if dtype.kind in "iu" and np.can_cast(dtype, np.int64):
        return "whole"
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return "real"
    raise HostileInput(f"A public array of type {dtype} stands in a row.")


class Primitive(ABC):
    """One of the list. A subclass says what comes of which inputs, and how it is computed.

    Attributes:
        view: whether its values are those of its input, in another shape.
        tall: whether it is the faster the more records it has at once, whatever it makes of each.
    """

    view = False
    tall = False

    @abstractmethod
    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        """What its values are.

        Raises:
            HostileInput: it does not take such inputs.
        """

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        """How a block is computed: from arrays (b, *shape), or (1, *shape) of what is public, into ``out`` (b, *shape).

        Raises:
            Misuse: its values are given to the evaluator, which computes none of them.
        """
        raise Misuse(f"{type(self).__name__} is given and not computed.")


def _wrong(what: str) -> HostileInput:
    return HostileInput(f"A row cannot be computed: {what}.")


def _want(condition: bool, what: str) -> None:
    if not condition:
        raise _wrong(what)


def _public(arrays: Arrays, what: str, *wanted: tuple[Kind, int]) -> Arrays:
    """Public arrays, of these kinds and numbers of axes."""
    found = [(kind_of(each.dtype), each.ndim) for each in arrays]
    _want(found == list(wanted), f"{what} is missing, or of another form")
    return arrays


def aligned(given: Array, axes: int) -> Array:
    """An array (b, *shape) with so many axes of a record: new ones come after the axis of records, never before it."""
    return given.reshape(given.shape[0], *(1,) * (axes - given.ndim + 1), *given.shape[1:])


def common_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape that records' values of these shapes have together.

    Raises:
        HostileInput: they have none.
    """
    longest = max(shapes, key=len)
    if all(shape == longest or not shape for shape in shapes):
        return longest
    try:
        found = np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise _wrong(f"values of shapes {list(shapes)} meet") from error
    _want(len(found) <= MOST_AXES, "it has too many axes")
    return found


# -- what is given ----------------------------------------------------------------------------------------------------------


class Public(Primitive):
    """A public array."""

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(not given and len(arrays) == 1, "a public array is missing")
        return Spec(arrays[0].shape, kind_of(arrays[0].dtype))


class GivenColumns(Primitive):
    """Some of a record's features, or which of them are present."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        columns = options.get("columns")
        _want(not given and isinstance(columns, tuple), "it names no columns")
        columns = cast(tuple[int, ...], columns)
        _want(all(isinstance(column, int) and column >= 0 for column in columns), "a column has no place")
        return Spec((len(columns),), self.kind)


class GivenLabel(Primitive):
    """A record's class; -1 where it has none."""

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(not given, "a label is given something")
        return Spec((), "whole")


# -- value by value ---------------------------------------------------------------------------------------------------------


class Elementwise(Primitive):
    """A ufunc of numpy's, by identity."""

    def __init__(self, ufunc: np.ufunc, result: Kind | Literal["widest"], taken: Sequence[Kind]) -> None:
        self.ufunc, self.result, self.taken = ufunc, result, frozenset(taken)

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) == self.ufunc.nin, f"{self.ufunc.__name__} takes {self.ufunc.nin} inputs")
        kinds = {each.kind for each in given}
        _want(kinds <= self.taken, f"{self.ufunc.__name__} of values of kind {', '.join(sorted(kinds))}")
        result = self.result
        if result == "widest":
            result = "real" if "real" in kinds else "whole"
        return Spec(common_shape([each.shape for each in given]), result)

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        ufunc, parts = self.ufunc, [aligned(each, out.ndim - 1) for each in given]
        parts = [each.reshape(()) if each.size == 1 and len(given) > 1 else each for each in parts]
        if self.result == "widest":  # of truths alone numpy would make truths
            dtype = out.dtype
            if len(parts) == 1:
                (one,) = parts
                return lambda: ufunc(one, out=out, dtype=dtype)
            one, other = parts
            return lambda: ufunc(one, other, out=out, dtype=dtype)
        if len(parts) == 1:
            (one,) = parts
            return lambda: ufunc(one, out=out)
        one, other = parts
        return lambda: ufunc(one, other, out=out)


class Choice(Primitive):
    """One value where a condition holds, another where it does not."""

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) == 3 and given[0].kind == "truth", "a choice needs a condition and two values")
        kinds = {each.kind for each in given[1:]}
        kind: Kind = "real" if "real" in kinds else "whole" if "whole" in kinds else "truth"
        return Spec(common_shape([each.shape for each in given]), kind)

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        condition, one, other = (aligned(each, out.ndim - 1) for each in given)

        def choose() -> None:
            np.copyto(out, other)
            np.copyto(out, one, where=condition)

        return choose


class Converted(Primitive):
    """The same numbers as reals; or as integers, cut off towards zero: 0 where they are not finite or beyond 2^62."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) == 1, "one value is converted at a time")
        return Spec(given[0].shape, self.kind)

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        (one,) = given
        if one.dtype != np.float64 or self.kind == "real":
            return lambda: np.copyto(out, one)

        def cut_off() -> None:
            np.copyto(out, np.where(np.abs(one) <= FARTHEST, one, 0.0), casting="unsafe")

        return cut_off


# -- within a record --------------------------------------------------------------------------------------------------------


class Reduced(Primitive):
    """The last axis of a record's values in one."""

    def __init__(self, reduce: np.ufunc | Callable[..., object], taken: Sequence[Kind], result: Kind | None = None) -> None:
        self.reduce, self.taken, self.result = reduce, frozenset(taken), result

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) == 1 and given[0].kind in self.taken, "values of the wrong kind are reduced")
        _want(len(given[0].shape) > 0 and given[0].shape[-1] > 0, "there is no axis to reduce")
        return Spec(given[0].shape[:-1], self.result or given[0].kind)

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        (one,), reduce = given, self.reduce
        rows, flat = one.reshape(-1, one.shape[-1]), out.reshape(-1)
        if reduce is np.add and one.dtype == np.float64:
            return lambda: row_totals(rows, flat)
        if isinstance(reduce, np.ufunc) and reduce is not np.add:
            return lambda: row_extremes(reduce, rows, flat)
        if isinstance(reduce, np.ufunc):
            return lambda: reduce.reduce(one, axis=-1, out=out)
        return lambda: reduce(one, axis=-1, out=out)


class Cumulated(Primitive):
    """Sums along the last axis of a record's values, one value after another."""

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) == 1 and given[0].kind != "truth" and len(given[0].shape) > 0, "nothing can be cumulated")
        return given[0]

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        (one,) = given
        return lambda: np.add.accumulate(one, axis=-1, out=out)


class Taken(Primitive):
    """Some of a record's values, by their public places among all of them: (m,)."""

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) == 1, "nothing is taken of")
        (places,) = _public(arrays, "places", ("whole", 1))
        _want(bool(((places >= 0) & (places < given[0].size)).all()), "a value is taken that there is not")
        return Spec(places.shape, given[0].kind)

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        rows, (places,) = given[0].reshape(len(given[0]), -1), arrays
        first = int(places[0]) if len(places) else 0
        if np.array_equal(places, np.arange(first, first + len(places))):
            part = rows[:, first : first + len(places)]
            return lambda: np.copyto(out, part)
        return lambda: np.take(rows, places, axis=1, out=out, mode="clip")


class Shaped(Primitive):
    """The same values in another shape."""

    view = True

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        shape = options.get("shape")
        _want(len(given) == 1 and isinstance(shape, tuple) and len(shape) <= MOST_AXES, "values have no such shape")
        shape = cast(Shape, shape)
        _want(all(length >= 0 for length in shape) and math.prod(shape) == given[0].size, "values have no such shape")
        return Spec(shape, given[0].kind)


class Joined(Primitive):
    """Values (m,) one after another."""

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) > 0 and all(len(each.shape) == 1 for each in given), "only rows are joined")
        kinds = {each.kind for each in given}
        kind: Kind = "real" if "real" in kinds else "whole" if "whole" in kinds else "truth"
        return Spec((sum(each.shape[0] for each in given),), kind)

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        ends = np.cumsum([each.shape[1] for each in given]).tolist()
        parts = [(out[:, end - each.shape[1] : end], each) for each, end in zip(given, ends, strict=True)]
        parts = [(place, each) for place, each in parts if place.shape[1]]

        def join() -> None:
            for place, each in parts:
                np.copyto(place, each)

        return join


# -- by public tables -------------------------------------------------------------------------------------------------------


class Lookup(Primitive):
    """Rows of a public table (k, *s) at codes (*t): (*t, *s); zeros where the table has none."""

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) == 1 and given[0].kind == "whole", "a table is read by codes")
        _want(len(arrays) == 1 and arrays[0].ndim > 0, "a table is missing")
        shape = (*given[0].shape, *arrays[0].shape[1:])
        _want(len(shape) <= MOST_AXES, "it has too many axes")
        return Spec(shape, kind_of(arrays[0].dtype))

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        (rows,) = arrays
        table = np.concatenate([rows, np.zeros((1, *rows.shape[1:]), dtype=rows.dtype)])
        codes = given[0].view(np.uint64)  # in which -1 is large
        places = np.empty(given[0].shape, dtype=np.int64)
        last, unsigned = np.uint64(len(rows)), places.view(np.uint64)

        def look_up() -> None:
            np.minimum(codes, last, out=unsigned)
            np.take(table, places, axis=0, out=out, mode="clip")

        return look_up


class Searched(Primitive):
    """Between which ascending public edges (k,) values lie: how many are below, or with ``side`` ``right`` not above."""

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) == 1 and given[0].kind == "real" and options.get("side") in ("left", "right"), "nothing is searched")
        _public(arrays, "edges", ("real", 1))
        return Spec(given[0].shape, "whole")

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        (one,), (edges,), side = given, arrays, cast(Literal["left", "right"], options["side"])
        return lambda: np.copyto(out, np.searchsorted(edges, one, side=side))


class Placed(Primitive):
    """Values (*t, *s) at places (*t) among so many: (*t, count, *s), zeros elsewhere, and everywhere without such a place."""

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        count = options.get("count")
        _want(len(given) == 2 and given[1].kind == "whole" and isinstance(count, int) and count > 0, "values have no place")
        values, places = given
        _want(values.shape[: len(places.shape)] == places.shape, "each place needs values of its own")
        shape = (*places.shape, cast(int, count), *values.shape[len(places.shape) :])
        _want(len(shape) <= MOST_AXES, "it has too many axes")
        return Spec(shape, values.kind)

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        places, count = given[1], cast(int, options["count"])
        values = np.broadcast_to(given[0], (len(out), *given[0].shape[1:]))
        places = np.broadcast_to(places, (len(out), *places.shape[1:]))
        whole = out.reshape(places.size, count, -1)

        def place() -> None:
            whole.fill(0)
            where = places.reshape(-1)
            known = np.flatnonzero((where >= 0) & (where < count))
            each = values.reshape(where.size, -1)
            whole[known, where[known]] = each[known]

        return place


class RowProduct(Primitive):
    """Values (m,) times a public matrix (m, k): (k,), added up one value after another."""

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) == 1 and given[0].kind == "real" and len(given[0].shape) == 1, "no row is multiplied")
        (matrix,) = _public(arrays, "a matrix", ("real", 2))
        _want(len(matrix) == given[0].shape[0], "a row and a matrix do not fit")
        return Spec((matrix.shape[1],), "real")

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        (one,), (matrix,) = given, arrays  # records along the last axis: long loops, the same products and sums
        columns, found = np.empty((len(matrix), len(out))), np.empty((matrix.shape[1], len(out)))
        spare, factors = np.empty_like(found), [(columns[place], row[:, None].copy()) for place, row in enumerate(matrix)]

        def multiply() -> None:
            np.copyto(columns, one.T)
            found.fill(0.0)
            for column, row in factors:
                np.multiply(column, row, out=spare)
                np.add(found, spare, out=found)
            np.copyto(out, found.T)

        return multiply


class Affine(Primitive):
    """:func:`~veilsum_privacy.mechanism.exact.ExactAffine` of values (m,), by a public matrix (k, m) and an offset (k,)."""

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) == 1 and given[0].kind == "real" and len(given[0].shape) == 1, "no row is mapped")
        matrix, offset = _public(arrays, "a map", ("real", 2), ("real", 1))
        _want(matrix.shape == (len(offset), given[0].shape[0]), "a row and a matrix do not fit")
        _want(
            all(largest_of(each) <= LARGEST for each in (matrix, offset)),
            "a map holds a value that is not finite, or too large",
        )
        return Spec(offset.shape, "real")

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        (one,), mapped = given, self.mapped(arrays)
        return lambda: mapped(one, out)

    def mapped(self, arrays: Arrays) -> ExactAffine:
        """The map, of rows (n, m) into (n, k)."""
        return ExactAffine(*arrays)


class Pairs(Primitive):
    """x_i x_j for i < j of values x (d,), row by row: (d (d - 1) / 2,)."""

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) == 1 and given[0].kind == "real" and len(given[0].shape) == 1, "no row has pairs")
        d = given[0].shape[0]
        return Spec((d * (d - 1) // 2,), "real")

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        rows, start, parts = given[0], 0, []
        d = rows.shape[1]
        for index in range(d - 1):
            stop = start + d - 1 - index
            parts.append((rows[:, index : index + 1], rows[:, index + 1 :], out[:, start:stop]))
            start = stop

        def multiply() -> None:
            for one, others, place in parts:
                np.multiply(one, others, out=place)

        return multiply


class Leaves(Primitive):
    """The leaf of each of K trees in which values (d,) end, from the left: (K,).

    Public arrays: the feature (K, 2^D - 1) of each inner node, level by level, and its threshold.
    """

    tall = True

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        features, _ = _trees(given, arrays)
        return Spec((len(features),), "whole")

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        from veilsum_privacy.mechanism.trees import walked

        (one,), (features, thresholds) = given, arrays
        return lambda: np.copyto(out, walked(one, features, thresholds))


class Margin(Primitive):
    """A base (C,) plus the leaf (C,) of each of K trees in which values (d,) end, one after another in single precision: (C,).

    Public arrays: those of :class:`Leaves`, the leaves (K, 2^D, C), and the base.
    """

    tall = True

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        features, _ = _trees(given, arrays[:2])
        leaves, base = _public(arrays[2:], "leaves", ("real", 3), ("real", 1))
        _want(leaves.shape == (len(features), features.shape[1] + 1, len(base)), "leaves and trees do not fit")
        with np.errstate(over="ignore"):
            fits = all(np.isfinite(each.astype(np.float32)).all() for each in (leaves, base))
        _want(fits, "a leaf of the trees does not fit a float32")
        return Spec(base.shape, "real")

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        from veilsum_privacy.mechanism.trees import margin_of

        (one,), (features, thresholds) = given, arrays[:2]
        leaves, base = (each.astype(np.float32) for each in arrays[2:])
        return lambda: np.copyto(out, margin_of(one, features, thresholds, leaves, base))


def _trees(given: Sequence[Spec], arrays: Arrays) -> tuple[Array, Array]:
    _want(len(given) == 1 and given[0].kind == "real" and len(given[0].shape) == 1, "no row walks through trees")
    features, thresholds = _public(arrays, "trees", ("whole", 2), ("real", 2))
    nodes = features.shape[1]
    _want(thresholds.shape == features.shape and nodes > 0 and (nodes + 1) & nodes == 0, "a tree is not complete")
    _want(bool(np.isfinite(thresholds).all()), "a threshold of the trees is not finite")
    fits = bool(((features >= 0) & (features < given[0].shape[0])).all())
    _want(fits, f"the trees split features that the records, which have {given[0].shape[0]}, do not have")
    return features, thresholds


class HashIsLow(Primitive):
    """:func:`~veilsum_privacy.mechanism.parts.hash_is_low` of features (d,), which are present (d,), and a label ().

    The public array (1,) is the share.
    """

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _hashed(given)
        (share,) = _public(arrays, "a share", ("real", 1))
        _want(share.shape == (1,) and 0.0 <= float(share[0]) <= 1.0, "a share is none")
        return Spec((), "truth")

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        from veilsum_privacy.mechanism.parts import hash_is_low

        features, present, label = given
        share = float(arrays[0][0])
        return lambda: np.copyto(out, hash_is_low(features, present, label, share))


class Drawn(Primitive):
    """:func:`~veilsum_privacy.mechanism.parts.drawn` of features (d,), which are present (d,), and a label (): in [0, 1).

    The public array (1,) is the salt.
    """

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _hashed(given)
        (salt,) = _public(arrays, "a salt", ("whole", 1))
        _want(salt.shape == (1,) and int(salt[0]) >= 0, "a salt is none")
        return Spec((), "real")

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        from veilsum_privacy.mechanism.parts import drawn

        features, present, label = given
        salt = int(arrays[0][0])
        return lambda: np.copyto(out, drawn(features, present, label, salt))


def _hashed(given: Sequence[Spec]) -> None:
    _want(len(given) == 3 and [each.kind for each in given] == ["real", "truth", "whole"], "nothing is hashed")
    _want(len(given[0].shape) == 1 and given[0].shape == given[1].shape and not given[2].shape, "nothing is hashed")


class Moments(Primitive):
    """:class:`~veilsum_aggregation.moment_maps.MomentMap` of values (n,), each by itself.

    Public arrays: centre, deviation, target and spread (m,), the orders (m,), of each of its two cubics b, c, d and whether
    it rises (m,), and tau (1,).
    """

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        _want(len(given) == 1 and given[0].kind == "real" and len(given[0].shape) == 1, "no row is mapped")
        cubic: tuple[tuple[Kind, int], ...] = (("real", 1), ("real", 1), ("real", 1), ("truth", 1))
        moved: tuple[tuple[Kind, int], ...] = (("real", 1), ("real", 1), ("real", 1), ("real", 1), ("whole", 1))
        _public(arrays, "a map by moments", *moved, *cubic, *cubic, ("real", 1))
        m = len(arrays[0])
        _want(all(each.shape == (m,) for each in arrays[:-1]) and arrays[-1].shape == (1,), "a map by moments does not fit")
        _want(m > 0 and given[0].shape[0] % m == 0, f"the map is for {m} columns")
        return given[0]

    def compute(self, given: Sequence[Array], out: Array, options: Options, arrays: Arrays) -> Compute:
        from veilsum_aggregation.moment_maps import Cubics, MomentMap  # of studies that align by moments

        (one,), (centre, deviation, target, spread, order) = given, arrays[:5]
        own, reference = Cubics(*arrays[5:9]), Cubics(*arrays[9:13])
        mapped = MomentMap(centre, deviation, target, spread, order, own, reference, float(arrays[13][0]))
        return lambda: np.copyto(out, mapped(one))


OPAQUE_MAPS = frozenset({"encoder", "inputs", "network", "rows"})
"""Names of the maps that are not graphs, all in torch: a program that encodes records, inputs of a network's layers, its
scores or gradients, rows of losses. They are all that is believed of what computes rows; another one is a decision."""


class Opaque(Primitive):
    """So many values that a named map makes of values (m,), a record by itself: programs and networks, which are not graphs.

    The evaluator is given the maps; a record that one raises on, alone, has NaN.
    """

    tall = True

    def spec(self, given: Sequence[Spec], options: Options, arrays: Arrays) -> Spec:
        size = options.get("size")
        _want(len(given) == 1 and given[0].kind == "real" and len(given[0].shape) == 1, "no row is mapped")
        _want(isinstance(size, int) and size > 0, "a map has no size")
        _want(options.get("name") in OPAQUE_MAPS, "a map has no name that is known")
        return Spec((cast(int, size),), "real")


_NUMBERS: tuple[Kind, ...] = ("real", "whole", "truth")
_WHOLE: tuple[Kind, ...] = ("whole",)
_TRUTH: tuple[Kind, ...] = ("truth",)
_SIGNED: tuple[Kind, ...] = ("real", "whole")

PRIMITIVES: Mapping[str, Primitive] = {
    "public": Public(),
    "features": GivenColumns("real"),
    "present": GivenColumns("truth"),
    "label": GivenLabel(),
    "add": Elementwise(np.add, "widest", _NUMBERS),
    "subtract": Elementwise(np.subtract, "widest", _NUMBERS),
    "multiply": Elementwise(np.multiply, "widest", _NUMBERS),
    "minimum": Elementwise(np.minimum, "widest", _NUMBERS),
    "maximum": Elementwise(np.maximum, "widest", _NUMBERS),
    "negative": Elementwise(np.negative, "widest", _SIGNED),
    "absolute": Elementwise(np.absolute, "widest", _SIGNED),
    "divide": Elementwise(np.divide, "real", _NUMBERS),
    "square": Elementwise(np.square, "widest", _SIGNED),
    "sqrt": Elementwise(np.sqrt, "real", ("real",)),
    "exp": Elementwise(np.exp, "real", ("real",)),
    "log": Elementwise(np.log, "real", ("real",)),
    "cos": Elementwise(np.cos, "real", ("real",)),
    "rint": Elementwise(np.rint, "real", ("real",)),
    "less": Elementwise(np.less, "truth", _NUMBERS),
    "less_equal": Elementwise(np.less_equal, "truth", _NUMBERS),
    "greater": Elementwise(np.greater, "truth", _NUMBERS),
    "greater_equal": Elementwise(np.greater_equal, "truth", _NUMBERS),
    "equal": Elementwise(np.equal, "truth", _NUMBERS),
    "not_equal": Elementwise(np.not_equal, "truth", _NUMBERS),
    "isfinite": Elementwise(np.isfinite, "truth", ("real",)),
    "logical_and": Elementwise(np.logical_and, "truth", _TRUTH),
    "logical_or": Elementwise(np.logical_or, "truth", _TRUTH),
    "logical_not": Elementwise(np.logical_not, "truth", _TRUTH),
    "right_shift": Elementwise(np.right_shift, "whole", _WHOLE),
    "where": Choice(),
    "real": Converted("real"),
    "whole": Converted("whole"),
    "total": Reduced(np.add, _SIGNED),
    "largest": Reduced(np.maximum, _SIGNED),
    "every": Reduced(np.logical_and, _TRUTH),
    "some": Reduced(np.logical_or, _TRUTH),
    "place_of_largest": Reduced(np.argmax, _SIGNED, "whole"),
    "place_of_smallest": Reduced(np.argmin, _SIGNED, "whole"),
    "cumulated": Cumulated(),
    "taken": Taken(),
    "shaped": Shaped(),
    "joined": Joined(),
    "lookup": Lookup(),
    "searched": Searched(),
    "placed": Placed(),
    "product": RowProduct(),
    "affine": Affine(),
    "pairs": Pairs(),
    "leaves": Leaves(),
    "margin": Margin(),
    "hash_is_low": HashIsLow(),
    "drawn": Drawn(),
    "moments": Moments(),
    "opaque": Opaque(),
}
"""All that there is."""
