"""Projections of gradients before they are clipped and summed: a count sketch of each array, by draws that are public.

An array of a gradient is a matrix (k, m). The longer of its two sides, of n places, becomes b = ceil(n / ratio): its places
are dealt out at random to b buckets, to each as many or one fewer, and what falls into a bucket is added up with random signs
(Charikar, Chen and Farach-Colton 2002, Finding frequent items in data streams). Arrays of one axis are short and stay as they
are, but for the bias of a layer whose outputs are dealt out, which goes with them.

A layer's gradient by one record is a product of two factors, and its sketch is the product of one of them as it is and of the
other one's buckets. So a record's sketch costs less than its gradient, and whoever multiplies, clips and adds factors
(:mod:`veilsum_privacy.mechanism.factors`) clips what was projected: the bound of a record does not rest on anything here.

A sum of sketches is expanded by the transpose, S'y, in which each value is one of the sum's or its negative: it comes out
alike to the bit on every machine. Over draws the mean of S'S is the identity, so an expanded sum is unbiased; the mean of
|S'S g|^2 is at most ceil(n / b) |g|^2, and what that is above |g|^2 is the variance that a projection adds. Independent noise
of variance s^2 in each value of a sum becomes noise whose squared norm is s^2 times the gradient's number of values on
average, as without a projection: a learning rate that follows the noise stays what it is.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.mechanism.factors import Entries, Outer, Term
from veilsum_privacy.mechanism.rows.symbols import Symbol, joined, total

Shapes = Mapping[str, tuple[int, ...]]

Read = Callable[[str, slice], Floats]
"""Gives some values of an array by its name, as they lie flat."""

DRAW = "projection.draw"
"""Name of the broadcast array (2,) by which a round's sketch is drawn: the study's seed, and the number of the step from 1."""


class GradientProjection(Frozen):
    """How gradients are projected before they are summed.

    Attributes:
        ratio: about how many values of a gradient there are for each one that is summed.
    """

    ratio: Real = Field(gt=1, le=10_000)


class _Side(NamedTuple):
    """The side of an array that is dealt out: which axis of which array, from 0; how many places to how many buckets."""

    array: int
    axis: int
    places: int
    buckets: int


class Sketches:
    """What the gradients of a model become before they are summed, as far as no draw tells it.

    Args:
        shapes: of the model's arrays, by name, in the order of their gradients' terms.
        projection: None for gradients as they are.
    """

    def __init__(self, shapes: Shapes, projection: GradientProjection | None) -> None:
        self._shapes, self._sides = dict(shapes), dict[str, _Side]()
        if projection is None:
            return
        for number, (name, shape) in enumerate(shapes.items()):
            layer = self._sides.get(f"{name.removesuffix('.bias')}.weight")
            if len(shape) > 1:
                sides = shape[0], math.prod(shape[1:])
                axis = int(sides[1] >= sides[0])
                buckets = math.ceil(sides[axis] / projection.ratio)
                if buckets < sides[axis]:
                    self._sides[name] = _Side(number, axis, sides[axis], buckets)
            elif layer is not None and layer.axis == 0 and shape == (layer.places,):
                self._sides[name] = layer

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays that are summed, by the model's names."""
        return {name: self._kept(name) for name in self._shapes}

    def _kept(self, name: str) -> tuple[int, ...]:
        shape, side = self._shapes[name], self._sides.get(name)
        if side is None:
            return shape
        return (shape[0], side.buckets) if side.axis else (side.buckets, *shape[1:])

    def terms(self, terms: Sequence[Term]) -> tuple[Term, ...]:
        """What is made of the factors that :meth:`Sketch.factors` gives, for a gradient of these terms."""
        return tuple(self._term(term, name) for term, name in self._named(terms))

    def _term(self, term: Term, name: str) -> Term:
        side = self._sides.get(name)
        if side is None:
            return term
        if isinstance(term, Outer):
            return replace(term, right=side.buckets + term.bias) if side.axis else replace(term, left=side.buckets)
        return Entries(math.prod(self._kept(name)))

    def _named(self, terms: Sequence[Term]) -> Iterator[tuple[Term, str]]:
        """Each term with the name of its array; the bias of a layer has no term of its own."""
        names = iter(self._shapes)
        for term in terms:
            yield term, next(names)
            if isinstance(term, Outer) and term.bias:
                next(names)

    def broadcast(self, seed: int, step: int) -> dict[str, Floats]:
        """What a round broadcasts of its sketch; nothing where gradients stay as they are."""
        return {DRAW: np.array([seed, step], dtype=np.float64)} if self._sides else {}

    def sketch(self, broadcast: Mapping[str, Floats]) -> "Sketch":
        """The sketch of a round.

        Raises:
            HostileInput: the broadcast does not tell it.
        """
        if not self._sides:
            return Sketch(self, {})
        told = broadcast.get(DRAW)
        if told is None or told.shape != (2,):
            raise HostileInput(f"The broadcast must hold {DRAW}, a seed and a step.")
        if not ((told >= 0.0) & (told < 2.0**53) & (told == np.rint(told))).all():
            raise HostileInput(f"The broadcast's {DRAW} are not a seed and a step.")
        deals = {side: _Deal.of(int(told[0]), int(told[1]), side) for side in set(self._sides.values())}
        return Sketch(self, {name: deals[side] for name, side in self._sides.items()})


class _Deal(NamedTuple):
    """Places of a side, dealt out.

    Attributes:
        axis: which side of the matrix it is.
        bucket, signs: (n,) of each place, the bucket that it falls into, and 1 or -1.
        members: (b, load) places of each bucket; n where there is none.
    """

    axis: int
    bucket: Integers
    signs: Floats
    members: Integers

    @staticmethod
    def of(seed: int, step: int, side: _Side) -> "_Deal":
        """The deal of a step.

        SHAKE-256 of the label, seed, step, array, places and buckets, the numbers as 8 bytes, gives a word of 64 bits to each
        place, little-endian. Its lowest bit is the sign, 1 for -1. By the others places are sorted, and dealt out in turn.
        """
        stated = np.array([seed, step, side.array, side.places, side.buckets], dtype="<u8").tobytes()
        stream = hashlib.shake_256(b"veilsum/1/gradient-projection" + stated).digest(8 * side.places)
        words: NDArray[np.uint64] = np.frombuffer(stream, dtype="<u8")
        order = np.argsort(words >> np.uint64(1), kind="stable")
        members = np.full(-(-side.places // side.buckets) * side.buckets, side.places, dtype=np.int64)
        members[: side.places] = order
        bucket = np.empty(side.places, dtype=np.int64)
        bucket[order] = np.arange(side.places) % side.buckets
        signs = np.where(words & np.uint64(1), -1.0, 1.0)
        return _Deal(side.axis, bucket, signs, np.ascontiguousarray(members.reshape(-1, side.buckets).T))

    def sums(self, values: Symbol) -> Symbol:
        """The values of a matrix, or of the dealt side alone, flat, to those of its sketch, flat."""
        size, places = values.shape[0], len(self.bucket)
        flat = np.arange(size).reshape(-1, places) if self.axis else np.arange(size).reshape(places, -1).T
        taken = np.append(flat, np.full((len(flat), 1), size), axis=1)[:, self.members]  # (other side, b, load)
        signs = np.append(self.signs, 0.0)[self.members]
        if not self.axis:
            taken, signs = taken.swapaxes(0, 1), signs[:, None, :]
        return total(joined(values, 0.0)[taken] * signs).reshape(-1)


class Sketch:
    """The projection S of a round; :meth:`Sketches.sketch` draws it."""

    def __init__(self, sketches: Sketches, deals: Mapping[str, _Deal]) -> None:
        self._sketches, self._deals = sketches, deals

    def factors(self, terms: Sequence[Term], row: Symbol) -> Symbol:
        """The factors of S g, as :meth:`Sketches.terms` has them.

        Args:
            terms: of the gradient g of a record.
            row: its factors (given,).
        """
        if not self._deals:
            return row
        found, start = list[Symbol](), 0
        for term, name in self._sketches._named(terms):
            own, deal = row[start : start + term.given], self._deals.get(name)
            start += term.given
            if deal is None:
                found.append(own)
            elif not isinstance(term, Outer):
                found.append(deal.sums(own))
            elif deal.axis:
                places = term.left + len(deal.bucket)
                found += [own[: term.left], deal.sums(own[term.left : places])]
                found += [own[places:]] if term.bias else []
            else:
                found += [deal.sums(own[: term.left]), own[term.left :]]
        return joined(*found)

    def expanded(self, read: Read) -> Read:
        """Reads S'y, an array of the model's shape.

        Args:
            read: reads y, an array of the shape that is summed.
        """
        held: dict[str, Floats] = {}
        shapes, kept = self._sketches._shapes, self._sketches.shapes()

        def expand(name: str, part: slice) -> Floats:
            deal = self._deals.get(name)
            if deal is None:
                return read(name, part)
            if name not in held:
                held.clear()  # arrays come one after another, and each may be long
                held[name] = read(name, slice(0, math.prod(kept[name])))
            columns = math.prod(shapes[name][1:])
            row, column = np.divmod(np.arange(part.start, part.stop), columns)
            if deal.axis:
                places, signs = row * kept[name][1] + deal.bucket[column], deal.signs[column]
            else:
                places, signs = deal.bucket[row] * columns + column, deal.signs[row]
            found: Floats = held[name][places] * signs
            return found

        return expand
