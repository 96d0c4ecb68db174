"""Graphs on records, in blocks of one size.

Every block has the same number of records, which follows from the graph alone; the last one is filled up with zeros. All
arrays are contiguous and are made once. So numpy's loops do the same for a record wherever it stands: its row is the same to
the last bit alone, in any company and in any order. Two sizes of block are used: a large one while a record's values are few,
a small one for the rest, so that a block stays in a cache. No value of a record, and nothing that is not finite, raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from veilsum_node.errors import Misuse
from veilsum_privacy.mechanism.exact import ExactAffine
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.rows.graph import Node, RowGraph, Step
from veilsum_privacy.mechanism.rows.primitives import (
    DTYPES,
    PRIMITIVES,
    Affine,
    Array,
    GivenColumns,
    GivenLabel,
    Opaque,
    Public,
)

T = TypeVar("T")
OpaqueMap = Callable[[NDArray[np.float64]], NDArray[np.floating]]
"""A map (n, m) to (n, size) of each record by itself, whatever others are beside it; n is always the same."""

STRAIGHT = frozenset({"add", "subtract", "multiply", "divide"})
"""Primitives whose values are one operation of IEEE 754 each, so that their array need not be contiguous."""

NARROW = 16
"""Values of a record up to which a node is computed for large blocks."""

LARGE, TALL = 4096, 8192
"""Records of a large block; of one with a primitive that wants as many as can be."""

CACHED, HELD, MAPPED = 2**16, 2**20, 2**24
"""Values of the widest array of a small block, 512 KiB, of a large one, and of what an opaque map makes of its records."""

TOGETHER = 64
"""Most records that an opaque map is given at once."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a row: of values that lie in it one after another, or at one of some places.

    Attributes:
        start: where the part begins in the row.
        values: step of (t k,) values, or all of them without a place.
        places: step of (t,) places, each below ``count``; None where there are none.
        count: places there are.
    """

    start: int
    values: int
    places: int | None = None
    count: int = 1


class Sparse(NamedTuple):
    """A block's rows without the zeros of places that a record does not have.

    Attributes:
        values: (b, compact), zeros of a record that has no such place.
        segments: where the values belong: (first compact column, start in the row, places (b, t) or None, count).
    """

    values: Array
    segments: tuple[tuple[slice, int, Array | None, int], ...]

    def taken(self, rows: slice) -> Sparse:
        """Some of the rows."""
        own = ((part, start, None if at is None else at[rows], count) for part, start, at, count in self.segments)
        return Sparse(self.values[rows], tuple(own))


class Evaluation:
    """A graph, ready for one computation at a time: it holds the arrays of its blocks."""

    def __init__(self, graph: RowGraph, maps: Mapping[str, OpaqueMap] | None = None, most: int = TALL) -> None:
        """See the class.

        Args:
            maps: those of its opaque primitives, by name.
            most: records of a large block at most, a power of two: fewer where few records are to be computed, by what is
                public.
        """
        self._most = most
        self.graph, self._maps = graph, _Maps({} if maps is None else maps)
        root = graph.root
        self.size, self.kind = root.spec.size, root.spec.kind
        self._steps = graph.steps
        self._fixed = _fixed(self._steps)
        self._mask, self._segments = _segments(graph, self._fixed)
        wanted = {segment.values for segment in self._segments}
        wanted |= {segment.places for segment in self._segments if segment.places is not None}
        wanted |= set() if self._mask is None else {self._mask}
        self._needed = _needed(self._steps, wanted)
        self._wide = self._wide_steps()
        compact = sum(self._steps[segment.values].node.spec.size for segment in self._segments)
        self.large = self._large()
        sizes = [self._steps[index].node.spec.size for index in self._wide]
        cached = min(CACHED // max(sizes, default=1), 2 * CACHED // max(compact, 1))
        if len(self._needed) > cached or any(
            array.size > CACHED for index in self._wide for array in self._steps[index].node.arrays
        ):
            # Calls of many small steps, and reading a matrix that no cache holds, cost more than what does not stay in one.
            cached = max(cached, min(HELD // max(sizes, default=1), 2 * HELD // max(compact, 1)))
        mapped = [self._steps[segment.values].node.primitive for segment in self._segments] == ["opaque"]
        whole = not self._wide and (compact <= NARROW or mapped)  # what a map gives is not copied once more
        self.small = self.large if whole else min(self.large, _power_below(cached))
        self._compact = np.zeros((self.small, compact), dtype=DTYPES[self.kind])
        self._beside: tuple[tuple[object, ...], object] | None = None
        self._build()

    @property
    def fault(self) -> Exception | None:
        """What an opaque map raised first."""
        return self._maps.fault

    @fault.setter
    def fault(self, fault: Exception | None) -> None:
        self._maps.fault = fault

    def beside(self, make: Callable[..., T], *given: object) -> T:
        """What ``make`` gives, kept beside the blocks' arrays for the next one who asks for the same: memory costs time."""
        if self._beside is None or self._beside[0] != (make, *given):
            self._beside = (make, *given), make(*given)
        return cast(T, self._beside[1])

    # -- plans ----------------------------------------------------------------------------------------------------------------

    def _wide_steps(self) -> frozenset[int]:
        """Steps of many values, and those that take them; but none that leads to a primitive that wants many records."""
        tall = {index for index in self._needed if PRIMITIVES[self._steps[index].node.primitive].tall}
        held = set(_needed(self._steps, tall))
        wide = set[int]()
        for index in self._needed:
            each, inputs = self._steps[index]
            if index not in held and index not in self._fixed and (each.spec.size > NARROW or wide.intersection(inputs)):
                wide.add(index)
        return frozenset(wide)

    def _large(self) -> int:
        narrow = [self._steps[index].node for index in self._needed if index not in self._wide]
        most = TALL if any(PRIMITIVES[each.primitive].tall for each in narrow) else LARGE
        sizes = [each.spec.size for each in narrow if each.primitive not in ("public", "opaque")]
        made = [each.spec.size for each in narrow if each.primitive == "opaque"]
        fitting = min(HELD // max(sizes, default=1), MAPPED // max(made, default=1))
        return min(self._most, most, _power_below(fitting))

    def _build(self) -> None:
        """Make every block's arrays, and what computes them."""
        large = _Stage(self.large, self._maps)
        small = large if self.small == self.large and not self._wide else _Stage(self.small, self._maps)
        crossing = self._crossing()
        uses = _last_uses(self._steps, self._needed, self._wide, crossing | self._fixed)
        self._cross: list[tuple[Array, Array]] = []
        straight = self._straight(small is large)
        for index in self._needed:
            each = self._steps[index]
            if index in self._fixed:
                large.arrays[index] = small.arrays[index] = _constant(each, large.arrays)
                continue
            stage = small if index in self._wide else large
            if stage is not large:
                self._carry(each.inputs, large, small)
            stage.add(index, each, straight.get(index))
            for done in uses.get(index, ()):
                stage.release(done)
        self._carry([index for index in sorted(crossing) if index not in small.arrays], large, small)
        self._first, self._second = large, small
        self._direct = self._one_array()

    def _straight(self, one: bool) -> dict[int, Array]:
        """Places in the block's rows where values that belong there alone are computed at once."""
        places, first = dict[int, Array](), 0
        taken = [given for index in self._needed for given in self._steps[index].inputs]
        taken += [segment.values for segment in self._segments]
        if len(self._segments) == 1:
            return {}
        for segment in self._segments:
            each, index = self._steps[segment.values].node, segment.values
            part = slice(first, first + each.spec.size)
            first = part.stop
            fits = len(each.spec.shape) == 1 and DTYPES[each.spec.kind] == self._compact.dtype
            here = index not in self._fixed and (one or index in self._wide)
            if fits and here and each.primitive in STRAIGHT and taken.count(index) == 1:
                places[index] = self._compact[:, part]
        return places

    def _carry(self, indices: Sequence[int], large: _Stage, small: _Stage) -> None:
        """Have narrow values in small blocks as well."""
        for index in indices:
            if index not in small.arrays:
                whole = large.arrays[index]
                copied = small.arrays[index] = np.zeros((self.small, *whole.shape[1:]), dtype=whole.dtype)
                self._cross.append((whole, copied))

    def _one_array(self) -> Array | None:
        """The block's rows, where they are one array that each block is computed into."""
        if len(self._segments) > 1 or self._segments[0].places is not None:
            return None
        index = self._segments[0].values
        array = self._second.arrays[index]
        if index in self._fixed or _given(_owner(self._steps, index)) or array.dtype != self._compact.dtype:
            return None
        return array.reshape(self.small, -1)

    def _crossing(self) -> frozenset[int]:
        """Narrow steps whose values a row has."""
        ends = {segment.values for segment in self._segments}
        ends |= {segment.places for segment in self._segments if segment.places is not None}
        return frozenset(ends | (set() if self._mask is None else {self._mask}))

    # -- records --------------------------------------------------------------------------------------------------------------

    def blocks(self, records: Records, counted: NDArray[np.bool_] | None = None) -> Iterator[tuple[int, Sparse]]:
        """Rows of records, block by block, in their order; each is written over by the next.

        Args:
            records: any number of them.
            counted: (n,) whose rows count; zeros for the others.

        Yields:
            how many records a block has, and their rows.

        Raises:
            Misuse: the records have other columns than the graph reads.
        """
        with np.errstate(all="ignore"):
            for start in range(0, len(records), self.large):
                stop = min(start + self.large, len(records))
                self._first.fill(records, start, stop)
                self._first.run()
                for inner in range(start, stop, self.small):
                    end = min(inner + self.small, stop)
                    place = slice(inner - start, inner - start + self.small)
                    for whole, part in self._cross:
                        np.copyto(part, whole[place])
                    if self._second is not self._first:
                        self._second.fill(records, inner, end)
                        self._second.run()
                    own = None if counted is None else counted[inner:end]
                    yield end - inner, self._row(end - inner, own)

    def _row(self, count: int, counted: NDArray[np.bool_] | None) -> Sparse:
        """The values of the block's first records, and where they belong."""
        values, found, first = (self._compact if self._direct is None else self._direct)[:count], [], 0
        arrays, seen = self._second.arrays, dict[tuple[int, int], tuple[Array, Array | None]]()
        mask = None if self._mask is None else arrays[self._mask].reshape(-1)[:count]
        if counted is not None:
            mask = counted if mask is None else counted & mask
        for segment in self._segments:
            given = arrays[segment.values]
            flat = given[:count] if given.ndim == 2 else given.reshape(len(given), -1)[:count]  # one row where it is public
            part = slice(first, first + flat.shape[1])
            target = values[:, part]
            if flat.base is not self._compact and self._direct is None:
                np.copyto(target, flat)
            places = None
            if segment.places is not None:
                if (segment.places, segment.count) not in seen:
                    own = arrays[segment.places].reshape(self.small, -1)[:count]
                    none: Array = (own < 0) | (own >= segment.count)
                    seen[segment.places, segment.count] = own, none if none.any() else None
                places, unknown = seen[segment.places, segment.count]
                if unknown is not None:
                    if places.shape[1] == 1:
                        target[unknown[:, 0]] = 0
                    else:
                        target[np.repeat(unknown, flat.shape[1] // places.shape[1], axis=1)] = 0
            found.append((part, segment.start, places, segment.count))
            first = part.stop
        if mask is not None and not mask.all():
            values[~mask] = 0
        return Sparse(values, tuple(found))

    def rows(self, records: Records, counted: NDArray[np.bool_] | None = None) -> Iterator[Array]:
        """Rows (b, size) of records, in their order, as the graph has them: what is not finite is left as it is."""
        for count, sparse in self.blocks(records, counted):
            yield spread_out(sparse, sparse.values, np.zeros((count, self.size), dtype=sparse.values.dtype))


def spread_out(sparse: Sparse, values: Array, rows: Array) -> Array:
    """Values (b, compact) in their places of zeroed rows (b, size)."""
    for part, start, places, count in sparse.segments:
        own = values[:, part]
        if places is None:
            rows[:, start : start + own.shape[1]] = own
            continue
        each = own.shape[1] // places.shape[1]
        target = rows[:, start : start + places.shape[1] * count * each].reshape(len(rows), places.shape[1], count, each)
        one, other = np.nonzero((places >= 0) & (places < count))
        target[one, other, places[one, other]] = own.reshape(len(rows), places.shape[1], each)[one, other]
    return rows


class _Maps:
    """Opaque maps by name, and what one of them raised first."""

    def __init__(self, of: Mapping[str, OpaqueMap]) -> None:
        self._of = of
        self.fault: Exception | None = None

    def into(self, name: str, given: Array, out: Array, count: int) -> None:
        """Values (n, m) of the first ``count`` records through an opaque map, into (n, size), in batches of one size.

        Where it raises, or gives something of another shape, all records of the batch go through one after another, each
        with zeros beside it; of one that fails alone nothing is a number. Where zeros alone fail after it, nothing computes
        any record, and that is raised.
        """
        size = min(TOGETHER, len(given))
        for start in range(0, count, size):
            rows = slice(start, start + size)
            try:
                out[rows] = self._made(name, given[rows].copy(), out.shape[1])
            except Exception as error:  # noqa: BLE001  whatever it is, it must not be seen
                self.fault = self.fault or error
                out[rows] = np.nan
                for row in range(start, start + size):
                    alone = np.zeros_like(given[rows])
                    alone[0] = given[row]
                    try:
                        out[row] = self._made(name, alone, out.shape[1])[0]
                    except Exception:  # noqa: BLE001  as above
                        self._made(name, np.zeros_like(alone), out.shape[1])

    def _made(self, name: str, given: Array, size: int) -> Array:
        found = self._of[name](given)
        if found.shape != (len(given), size):
            raise Misuse(f"A map gives an array of shape {found.shape} of {len(given)} records.")
        return found


@dataclass(slots=True)
class _Filled:
    """How many records a block has: what computes refers to no stage, so that arrays go with the last one who evaluates."""

    count: int = 0


class _Stage:
    """The arrays of blocks of one size, and what computes them."""

    def __init__(self, block: int, maps: _Maps) -> None:
        self.block, self._maps = block, maps
        self.arrays: dict[int, Array] = {}
        self._reads: list[tuple[str, NDArray[np.intp] | slice, Array]] = []
        self._computes: list[Callable[[], object]] = []
        self._free: dict[tuple[tuple[int, ...], Any], list[Array]] = {}
        self._owned: dict[int, Array] = {}
        self._filled = _Filled()

    def add(self, index: int, step: Step, into: Array | None = None) -> None:
        """Make the array of a step, whose inputs are there; ``into`` one that is there already."""
        rule, each = PRIMITIVES[step.node.primitive], step.node
        shape = (self.block, *each.spec.shape)
        if rule.view:
            source = self.arrays[step.inputs[0]]
            self.arrays[index] = source.reshape(source.shape[0], *each.spec.shape)
            return
        if into is not None:
            self.arrays[index] = into
            self._computes.append(rule.compute([self.arrays[one] for one in step.inputs], into, each.options, each.arrays))
            return
        out = self._array(shape, DTYPES[each.spec.kind], kept=isinstance(rule, GivenColumns | GivenLabel))
        self.arrays[index] = self._owned[index] = out
        if isinstance(rule, GivenColumns):
            columns = np.asarray(each.options["columns"], dtype=np.intp)
            whole = len(columns) > 0 and np.array_equal(columns, np.arange(columns[0], columns[0] + len(columns)))
            place = slice(int(columns[0]), int(columns[0]) + len(columns)) if whole else columns
            self._reads.append((each.primitive, place, out))
        elif isinstance(rule, GivenLabel):
            self._reads.append(("label", slice(0), out))
        elif isinstance(rule, Affine):
            self._computes.append(self._affine(rule.mapped(each.arrays), self.arrays[step.inputs[0]], out))
        elif isinstance(rule, Opaque):
            self._computes.append(self._opaque(str(each.options["name"]), self.arrays[step.inputs[0]], out))
        else:
            given = [self.arrays[one] for one in step.inputs]
            self._computes.append(rule.compute(given, out, each.options, each.arrays))

    def _opaque(self, name: str, given: Array, out: Array) -> Callable[[], object]:
        maps, filled = self._maps, self._filled
        return lambda: maps.into(name, given, out, filled.count)

    def _affine(self, mapped: ExactAffine, given: Array, out: Array) -> Callable[[], object]:
        filled = self._filled

        def compute() -> None:  # of the records that are there: it is exact whatever their number
            mapped(given[: filled.count], out[: filled.count])
            out[filled.count :] = 0.0

        return compute

    def _array(self, shape: tuple[int, ...], dtype: Any, *, kept: bool) -> Array:
        waiting = self._free.get((shape, dtype), [])
        return waiting.pop() if waiting and not kept else np.zeros(shape, dtype=dtype)

    def release(self, index: int) -> None:
        """Let later steps write over the array of one that nothing takes any more."""
        if (array := self._owned.pop(index, None)) is not None:
            self._free.setdefault((array.shape, array.dtype.type), []).append(array)

    def fill(self, records: Records, start: int, stop: int) -> None:
        """Copy what is read of some records; zeros after them."""
        count = stop - start
        for name, place, out in self._reads:
            if name == "label":
                out[:count] = -1 if records.labels is None else records.labels[start:stop]
            else:
                source = records.features if name == "features" else records.present
                needed = place.stop if isinstance(place, slice) else int(place.max(initial=-1)) + 1
                if needed > source.shape[1]:
                    raise Misuse(f"The task reads {needed} features; the records have {source.shape[1]}.")
                out[:count] = source[start:stop, place]
            if count < self._filled.count:
                out[count : self._filled.count] = 0
        self._filled.count = count

    def run(self) -> None:
        """Compute the block."""
        for compute in self._computes:
            compute()


# -- of graphs ----------------------------------------------------------------------------------------------------------------


def _fixed(steps: Sequence[Step]) -> frozenset[int]:
    """Steps that are public."""
    found = set[int]()
    for index, (each, inputs) in enumerate(steps):
        if each.primitive == "public" or (inputs and found.issuperset(inputs)):
            found.add(index)
    return frozenset(found)


def _constant(step: Step, arrays: dict[int, Array]) -> Array:
    """The value (1, *shape) of a public step."""
    each, rule = step.node, PRIMITIVES[step.node.primitive]
    if isinstance(rule, Public):
        return each.arrays[0][None]
    given = [arrays[index] for index in step.inputs]
    if rule.view:
        return given[0].reshape(1, *each.spec.shape)
    out = np.zeros((1, *each.spec.shape), dtype=DTYPES[each.spec.kind])
    with np.errstate(all="ignore"):
        rule.compute(given, out, each.options, each.arrays)()
    return out


def _owner(steps: Sequence[Step], index: int) -> Node:
    """The step whose array holds this step's values."""
    while PRIMITIVES[steps[index].node.primitive].view:
        (index,) = steps[index].inputs
    return steps[index].node


def _segments(graph: RowGraph, fixed: frozenset[int]) -> tuple[int | None, list[Segment]]:
    """The step that says which rows are not zeros, if one does; and the parts of the row."""
    steps, root, mask = graph.steps, len(graph.steps) - 1, None
    node, inputs = steps[root]
    if node.primitive == "where" and steps[inputs[0]].node.spec.size == 1 and _zero(steps[inputs[2]].node):
        body = steps[inputs[1]].node
        if body.spec == node.spec and inputs[0] not in fixed:
            mask, root = inputs[0], inputs[1]
    found, start, waiting = list[Segment](), 0, [root]
    while waiting:
        index = waiting.pop()
        node, inputs = steps[index]
        if node.primitive == "joined":
            waiting += reversed(inputs)
        elif node.primitive == "shaped" and steps[inputs[0]].node.primitive in ("placed", "shaped", "joined"):
            waiting.append(inputs[0])
        elif node.primitive == "placed" and inputs[1] not in fixed:
            found.append(Segment(start, inputs[0], inputs[1], int(node.options["count"])))  # type: ignore[arg-type]
            start += node.spec.size
        elif node.spec.size:
            found.append(Segment(start, index))
            start += node.spec.size
    return mask, found


def _zero(node: Node) -> bool:
    return node.primitive == "public" and node.arrays[0].size == 1 and not node.arrays[0].any()


def _given(node: Node) -> bool:
    return isinstance(PRIMITIVES[node.primitive], GivenColumns | GivenLabel)


def _needed(steps: Sequence[Step], ends: set[int]) -> list[int]:
    """Steps that lead to some ends, in order."""
    found, waiting = set[int](), list(ends)
    while waiting:
        index = waiting.pop()
        if index not in found:
            found.add(index)
            waiting += steps[index].inputs
    return sorted(found)


def _last_uses(
    steps: Sequence[Step], needed: Sequence[int], wide: frozenset[int], kept: frozenset[int]
) -> dict[int, list[int]]:
    """For each step, the steps of its own stage that nothing takes after it."""
    owner: dict[int, int] = {}
    last: dict[int, int] = {}
    crossing = set[int]()
    for index in needed:
        node, inputs = steps[index]
        owner[index] = owner[inputs[0]] if PRIMITIVES[node.primitive].view else index
        for given in inputs:
            last[owner[given]] = index
            if (index in wide) != (owner[given] in wide):
                crossing.add(owner[given])
        if index in kept:
            crossing.add(owner[index])
    found: dict[int, list[int]] = {}
    for index, use in last.items():
        if index not in crossing and not _given(steps[index].node):
            found.setdefault(use, []).append(index)
    return found


def _power_below(count: int) -> int:
    """The largest power of two that is not larger; at least 1."""
    return 1 << max(count, 1).bit_length() - 1
