"""Products of a record's factors, clipped, made whole and added exactly: how long vectors enter a sum.

A graph (:mod:`.rows`) gives a record's factors in place of its vector: of a layer's gradient the derivatives by its outputs
and what the layer was given, of a Gram matrix the vector that is multiplied by itself. Public terms say what is made of them.
The vectors themselves, which are as long as a model, are never formed where records are the units: norms and sums follow from
the factors ("ghost clipping").

Sensitivity. A record's factors are a function of that record and of public arrays, to the last bit (:mod:`.rows.evaluation`).
They are scaled such that the norm of all its products together is at most C, and rounded to integers, each term's in such
units that its products are in fine units of the sum, 2^shift to a grid unit. The norm of the integers is checked, and they are
pulled in where it is above the bound B: whatever a task says of its factors or its bound. Products of these integers, and
their sums over so many records as 2^53 allows, are exact in floating point in any order; whole sums are kept in integers.
So adding or removing a record changes the exact sum by at most B in norm, and a subject with all its records, whose vectors
are added and pulled in once more, as well. The sum is rounded once, to 2^-places of a grid unit, which moves each of its d
values by half of that: sums come to differ by at most B / 2^shift + sqrt(d) / 2^places <= grid (:func:`left_of`).

What is not finite contributes zeros. Nothing here raises because of what a record holds.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse
from veilsum_privacy.mechanism.clipping import MAX_GRID, UnitSums
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.rows.evaluation import CACHED, Evaluation, spread_out

Mask = NDArray[np.bool_]

FINE_BITS = 43
"""Bits of the bound in fine units; more only where a sum is rounded to finer places than that leaves."""

FACTOR_BITS = 26
"""Bits of the norm of what a layer was given: the derivatives by its outputs get the others, and :data:`FINER_BITS` more."""

FINER_BITS = 18
"""Binary places of derivatives in integers of their own, so that gradients far shorter than C lose nothing."""

LARGEST = 2.0**500
"""Beyond it a factor is taken for not finite: a product with what underflowed would no longer be small."""

MARGIN = 2.0**-20
"""How far norms are kept below the bound, as a share of it: those of up to 2^26 values are computed to 2^-26."""

GATHERED = 2**21
"""Values of factors that are kept until they are multiplied, 16 MiB: few large products cost half of many small ones."""

_ROOT_BITS = 40
_ROOT = math.isqrt(2 << 2 * _ROOT_BITS)
"""The square root of 2, cut off below."""


# -- what a sum is made of ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outer:
    """Factors (k,) and (m,) to their products, row by row: (k, m); a layer's gradient.

    Attributes:
        left, right: k and m.
        bias: whether what is made of the last of the m is a bias's, which comes after all weights: (k, m - 1), (k,).
    """

    left: int
    right: int
    bias: bool = False

    @property
    def given(self) -> int:
        """Values of a record that it takes."""
        return self.left + self.right

    @property
    def size(self) -> int:
        """Values of the sum that it makes."""
        return self.left * self.right


@dataclass(frozen=True)
class Gram:
    """Values v (m,) to a v_i^2, and after these sqrt 2 a v_i v_j for i < j, row by row; together of norm a |v|^2.

    Attributes:
        given: m.
        weight: a.
    """

    given: int
    weight: float

    @property
    def size(self) -> int:
        """Values of the sum that it makes."""
        return self.given * (self.given + 1) // 2


@dataclass(frozen=True)
class Entries:
    """Values as they are.

    Attributes:
        apart: a norm that they are clipped to by themselves; 0 where they are clipped together with the other terms.
    """

    given: int
    apart: float = 0.0

    @property
    def size(self) -> int:
        """Values of the sum that it makes."""
        return self.given


Term = Outer | Gram | Entries


@dataclass(frozen=True)
class Products:
    """What is made of a record's factors, which stand one after another.

    Attributes:
        terms: in the order of the sum's values.
        clip: C, to which the norm of all terms together is scaled down, but for those apart.
        weighted: whether a weight stands before the factors, by which the clipped products are multiplied, but for those
            apart; it is cut to [0, 1].
    """

    terms: tuple[Term, ...]
    clip: float
    weighted: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise Misuse("The clipping norm must be positive and finite.")

    @property
    def norm(self) -> float:
        """What the norm of a record's products is at most: of C, and of the norms of those apart."""
        return math.hypot(self.clip, *(term.apart for term in self.terms if isinstance(term, Entries)))

    @property
    def given(self) -> int:
        """Values of a record that all terms take."""
        return sum(term.given for term in self.terms) + self.weighted

    @property
    def size(self) -> int:
        """Values of the sum."""
        return sum(term.size for term in self.terms)


def left_of(grid: int, size: int, places: int = 0, largest: int = 0) -> float:
    """What rounding leaves of a grid: how many grid units two sums of so many values may differ by before they are rounded.

    Args:
        grid: c, which they may differ by afterwards.
        size: d; each value is moved by half of 2^-places.
        places: binary places of a grid unit that are kept.
        largest: of the sum, where places are kept: 2^-50 of it is left for two operations in floating point.

    Raises:
        Misuse: less than half of the grid.
    """
    moved = 2.0**-places + (2.0**-50 * largest if places else 0.0)
    left = grid - moved * math.sqrt(size)
    if left < grid / 2 or not 1 <= grid <= MAX_GRID:
        raise Misuse(f"The grid is too coarse for a sum of {size} values.")
    return left


@dataclass(frozen=True)
class FineUnits:
    """The units in which a sum is exact.

    Attributes:
        shift: a grid unit has 2^shift of them.
        scale: how many of them one is, in the vector's own unit.
        bound: B, the norm that no unit of privacy exceeds, in these units.
        places: binary places of a grid unit that the sum is rounded to.
    """

    shift: int
    scale: float
    bound: int
    places: int

    @staticmethod
    def of(clip: float, grid: int, size: int, *, places: int = 0, largest: int = 0) -> FineUnits:
        """Units of a sum of so many values in which ``clip`` becomes what rounding leaves of the grid; see :func:`left_of`."""
        if not (math.isfinite(clip) and clip > 0):
            raise Misuse("The clipping norm must be positive and finite.")
        shift = max(places, FINE_BITS - grid.bit_length())
        fine = math.ldexp(left_of(grid, size, places, largest), shift)
        return FineUnits(shift, fine / clip, math.floor(fine), places)

    @property
    def together(self) -> int:
        """Records whose integers add up exactly in floating point."""
        return 2**52 // self.bound  # half of what fits, for what rounding adds to each


# -- sums ---------------------------------------------------------------------------------------------------------------------


class FactorSums:
    """The sum of records' products, batch after batch.

    Attributes:
        clipped: records, and sums of a subject's records, that were scaled down; stays at the site.
        invalid: records that were not finite and contributed zeros; stays at the site.
    """

    def __init__(self, evaluation: Evaluation, products: Products, units: FineUnits) -> None:
        """See the class.

        Args:
            evaluation: of the graph that gives a record's factors.
            products: what is made of them.

        Raises:
            Misuse: the graph gives another number of values than the products take.
        """
        if evaluation.size != products.given or evaluation.kind != "real":
            raise Misuse(f"A record has {evaluation.size} factors; its products take {products.given}.")
        self._evaluation, self._products, self._units = evaluation, products, units
        # What the norm of a subject's sum may be; no single record of a norm of C is pulled in by it.
        self._subject = math.floor(min(products.norm * units.scale * (1.0 + 4.0 * MARGIN), units.bound))
        self._doubled, place = list[slice](), 0  # products of a Gram matrix that stand for two
        for term in products.terms:
            if isinstance(term, Gram):
                self._doubled.append(slice(place + term.given, place + term.size))
            place += term.size
        self._low = np.zeros(products.size, dtype=np.int64)
        self._finer = np.zeros(products.size, dtype=np.int32)  # below 2^FINER_BITS
        self._high: Integers | None = None  # what does not fit
        self._held = 0
        most = max(1, min(units.together, GATHERED // max(1, products.given)))
        self._gathered = evaluation.beside(_Gathered, products.terms, most)
        self.clipped = self.invalid = 0

    def add(self, records: Records, subjects: Integers | None = None) -> None:
        """Add whole units of privacy.

        Args:
            records: as they were sampled.
            subjects: (n,) whose record each one is, never descending; None where each is a unit of its own.
        """
        size, bound, gathered = self._products.size, self._units.bound, self._gathered
        gathered.count = 0
        groups = None if subjects is None else UnitSums(subjects, size, self._pulled)
        for whole in self._integers(records, gathered.most if groups is None else max(1, CACHED // size)):
            if groups is not None:
                self._take(groups.complete(whole.each().astype(np.int64)).sum(axis=0), (whole.count + 1) * bound)
                continue
            if gathered.count + whole.count > gathered.most:
                self._settle()
            gathered.add(whole)
        self._settle()
        if groups is not None:
            self._take(groups.last()[0], bound)
            self.clipped += groups.clipped

    @property
    def fault(self) -> Exception | None:
        """What an opaque map raised first; stays at the site."""
        return self._evaluation.fault

    def total(self) -> Integers:
        """The sum (size,) in 2^-places of a grid unit, rounded; values beyond 2^61 grid units are cut off."""
        kept, places = self._units.shift - self._units.places, self._units.places
        half, found = 1 << kept >> 1, np.empty_like(self._low)
        if self._high is not None or self._held >= 2**61 or self._doubled:
            self._carry()
        for part in _parts(len(found)):
            np.add(self._low[part], half, out=found[part])
            found[part] >>= kept
            if self._high is not None:
                found[part] += np.clip(self._high[part], -(2 ** (61 - places)), 2 ** (61 - places)) << places
        if self._high is not None:
            for index in itertools.chain.from_iterable(range(each.start, each.stop) for each in self._doubled):
                exact = ((int(self._high[index]) << self._units.shift) + int(self._low[index])) * _ROOT
                found[index] = max(min((exact + (1 << kept + _ROOT_BITS - 1)) >> kept + _ROOT_BITS, 2**62), -(2**62))
        return found

    def _settle(self) -> None:
        """Take over the sums of what was gathered: as many records as floating point holds exactly."""
        gathered = self._gathered
        if not gathered.count:
            return
        self._hold(2 * gathered.count * self._units.bound)
        for place, values, finer in gathered.sums():
            low = self._low[place].reshape(values.shape)
            if finer is not None:
                rest = finer.astype(np.int64)
                own = self._finer[place].reshape(values.shape)
                rest += own
                np.bitwise_and(rest, (1 << FINER_BITS) - 1, out=own, casting="unsafe")
                rest >>= FINER_BITS
                low += rest
            low += values.astype(np.int64)
        gathered.count = 0

    def _take(self, values: Integers, most: int) -> None:
        """Add integers, each of an absolute value of at most ``most``."""
        self._hold(most)
        self._low += values

    def _hold(self, most: int) -> None:
        """Have room for integers of an absolute value of at most ``most``."""
        if self._held + most >= 2**62:
            self._carry()
        self._held += most

    def _carry(self) -> None:
        if self._high is None:
            self._high = np.zeros_like(self._low)
        for part in _parts(len(self._low)):
            low = self._low[part]
            carried = low >> self._units.shift
            self._high[part] += carried
            low -= carried << self._units.shift
        self._held = 1 << self._units.shift

    def _pulled(self, rows: Integers) -> Mask:
        """Pull in subjects' sums (n, size), whatever integers they hold; which ones were."""
        reals, importance = rows.astype(np.float64), np.ones(rows.shape[1])
        for doubled in self._doubled:
            importance[doubled] = 2.0
        long, factor = _beyond(np.einsum("ij,ij,j->i", reals, reals, importance), self._subject)
        if long.any():
            rows[long] = np.trunc(reals[long] * factor[long, None]).astype(np.int64)
        return long

    def _integers(self, records: Records, most: int) -> Iterator[_Whole]:
        """The factors of records as integers, in parts of so many at most."""
        width = self._products.given
        most = min(most, max(1, 2 * CACHED // width))
        for count, sparse in self._evaluation.blocks(records):
            values = sparse.values
            if any(places is not None for _, _, places, _ in sparse.segments):
                values = spread_out(sparse, values, np.zeros((count, width)))
            for start in range(0, count, most):
                with np.errstate(all="ignore"):
                    whole, clipped, invalid = _whole(self._products, values[start : start + most], self._units)
                self.clipped += clipped
                self.invalid += invalid
                yield whole


def _parts(size: int) -> Iterator[slice]:
    """Parts of a long array that stay in a cache."""
    return (slice(start, start + CACHED) for start in range(0, size, CACHED))


class _Whole:
    """Some records' factors as integers, each of a float64, whose products have a norm of at most the bound."""

    def __init__(self, terms: Sequence[Term], parts: list[tuple[Floats, ...]], count: int) -> None:
        self.count, self.parts, self._terms = count, parts, terms

    def each(self) -> Floats:
        """Every record's products (count, size), rounded to units; each a function of the record alone."""
        found: list[Floats] = []
        for term, part in zip(self._terms, self.parts, strict=True):
            if isinstance(term, Outer):
                left, right, rest = part
                product = np.rint((left + rest * 2.0**-FINER_BITS)[:, :, None] * right[:, None, :])
                weights = product[:, :, :-1] if term.bias else product
                found += [weights.reshape(self.count, -1)] + ([product[:, :, -1]] if term.bias else [])
            elif isinstance(term, Gram):
                one, other = np.triu_indices(term.given, 1)
                found += [part[0] ** 2, part[0][:, one] * part[0][:, other]]
            else:
                found.append(part[0])
        return np.concatenate(found, axis=1)


class _Gathered:
    """Records' factors as integers, kept until so many of them are multiplied at once; values as they are, added up.

    Attributes:
        most: records that are kept.
        count: records that are there.
    """

    def __init__(self, terms: Sequence[Term], most: int) -> None:
        self.most, self.count, self._terms = most, 0, terms
        self._kept: list[tuple[Floats, ...]] = []
        for term in terms:
            if isinstance(term, Outer):
                widths = (term.left, term.right, term.left)
                self._kept.append(tuple(np.empty((most, width)) for width in widths))  # memory is taken as it is filled
            else:
                self._kept.append((np.empty((most, term.given)) if isinstance(term, Gram) else np.zeros(term.size),))

    def add(self, whole: _Whole) -> None:
        """Keep records' factors; there is room for them."""
        rows = slice(self.count, self.count + whole.count)
        for term, kept, part in zip(self._terms, self._kept, whole.parts, strict=True):
            if not isinstance(term, Entries):
                for into, one in zip(kept, part, strict=True):
                    into[rows] = one
            elif self.count:
                kept[0][:] += part[0][0] if whole.count == 1 else part[0].sum(axis=0)
            else:
                np.add.reduce(part[0], axis=0, out=kept[0])
        self.count = rows.stop

    def sums(self) -> Iterator[tuple[slice, Floats, Floats | None]]:
        """Sums over the records, part after part, each written over by the next: where they are in the sum, their values, and
        what is finer, in 2^-:data:`FINER_BITS` of a unit; all exact."""
        start = 0
        for term, kept in zip(self._terms, self._kept, strict=True):
            if isinstance(term, Outer):
                yield from self._outer(term, start, *(one[: self.count] for one in kept))
            elif isinstance(term, Gram):
                rows = kept[0][: self.count]
                product = rows.T @ rows
                upper = ~np.tri(term.given, dtype=np.bool_)
                yield slice(start, start + term.given), np.diag(product), None
                yield slice(start + term.given, start + term.size), product[upper], None
            else:
                for part in _parts(term.size):
                    values = kept[0][part]
                    yield slice(start + part.start, start + part.start + len(values)), values, None
            start += term.size

    def _outer(
        self, term: Outer, start: int, left: Floats, right: Floats, rest: Floats
    ) -> Iterator[tuple[slice, Floats, Floats | None]]:
        """A layer's sums, for some of its outputs at a time: they are taken over while they are in a cache."""
        width = term.right - term.bias
        bias = start + term.left * width
        step = max(1, min(term.left, CACHED // term.right))
        product, finer = np.empty((step, term.right)), np.empty((step, term.right))
        for first in range(0, term.left, step):
            some = slice(first, min(first + step, term.left))
            count = some.stop - first
            np.matmul(left[:, some].T, right, out=product[:count])
            np.matmul(rest[:, some].T, right, out=finer[:count])
            yield slice(start + first * width, start + some.stop * width), product[:count, :width], finer[:count, :width]
            if term.bias:
                yield slice(bias + first, bias + some.stop), product[:count, width], finer[:count, width]


def _whole(products: Products, values: Floats, units: FineUnits) -> tuple[_Whole, int, int]:
    """Factors (b, given) as integers; how many records were clipped, and how many are not finite."""
    count, start, weights = len(values), 0, None
    if products.weighted:
        weights, start = np.fmin(np.fmax(values[:, 0], 0.0), 1.0), 1  # NaN becomes 0
    squares, longest = np.zeros(count), np.zeros(count)
    drawn: list[_Scaled] = []
    for term in products.terms:
        own = _scaled(term, values[:, start : start + term.given])
        start += term.given
        drawn.append(own)
        longest += own.norms  # so that one that is not finite shows, also where it is apart
        if not (isinstance(term, Entries) and term.apart):
            squares += own.norms**2
    norms = np.sqrt(squares)
    valid = np.isfinite(norms) & np.isfinite(longest)
    clip = min(products.clip, units.bound * (1.0 - 2.0 * MARGIN) / units.scale)
    clipped = valid & (norms > clip)
    factors = np.where(clipped, clip / np.where(clipped, norms, 1.0), 1.0)
    parts: list[tuple[Floats, ...]] = []
    squares = np.zeros(count)
    for term, own in zip(products.terms, drawn, strict=True):
        factor = factors if weights is None else factors * weights
        if isinstance(term, Entries) and term.apart:
            factor = np.minimum(1.0, term.apart / np.maximum(own.norms, term.apart))
        part, square = own.rounded(factor * units.scale)
        parts.append(part)
        squares += square
    long, pull = _beyond(squares, units.bound)
    if long.any() or not valid.all():
        pull = np.where(valid, pull, 0.0)
        odd = np.flatnonzero(long | ~valid)
        for own, part in zip(drawn, parts, strict=True):
            own.pull(part, odd, pull[odd])
    return _Whole(products.terms, parts, count), int((clipped | (long & valid)).sum()), int((~valid).sum())


def _beyond(squares: Floats, bound: int) -> tuple[Mask, Floats]:
    """Which squared norms may be above the bound's; and what their vectors are multiplied by then."""
    long: Mask = np.logical_not(squares <= float(bound) ** 2 * (1.0 - MARGIN))
    if not long.any():
        return long, np.ones(len(squares))
    with np.errstate(all="ignore"):
        factor = np.where(long, bound * (1.0 - MARGIN) / np.sqrt(np.where(long, squares, 1.0)), 1.0)
    return long, np.where(np.isfinite(factor), factor, 0.0)


def _scaled(term: Term, values: Floats) -> _Scaled:
    if isinstance(term, Outer):
        return _ScaledOuter(values[:, : term.left], values[:, term.left :])
    return _ScaledGram(values, term.weight) if isinstance(term, Gram) else _ScaledEntries(values)


class _Scaled(ABC):
    """Some records' values of a term.

    Attributes:
        norms: (b,) of their products; not finite where a value is not.
    """

    norms: Floats

    @abstractmethod
    def rounded(self, factors: Floats) -> tuple[tuple[Floats, ...], Floats]:
        """Integers whose products are the term's, times ``factors`` (b,); and the squares of the products' norms."""

    def pull(self, part: tuple[Floats, ...], odd: NDArray[np.intp], pull: Floats) -> None:
        """Multiply the products of some records by ``pull`` (o,) at most; 0 makes them zeros, whatever they were."""
        _pull(part[0], odd, pull)


class _ScaledEntries(_Scaled):
    def __init__(self, values: Floats) -> None:
        self._values = values
        self.norms = np.sqrt(_squares(values))

    def rounded(self, factors: Floats) -> tuple[tuple[Floats, ...], Floats]:
        whole = self._values * factors[:, None]
        np.rint(whole, out=whole)
        return (whole,), _squares(whole)


class _ScaledOuter(_Scaled):
    """What a layer was given becomes integers of its own units first; the derivatives by outputs take all other factors."""

    def __init__(self, left: Floats, right: Floats) -> None:
        exponents, _ = _exponents(right)
        self._right = right * np.ldexp(1.0, FACTOR_BITS - exponents)[:, None]
        np.rint(self._right, out=self._right)
        self._squares = _squares(self._right)
        left_exponents, relative = _exponents(left)
        self._left = left * np.ldexp(1.0, -left_exponents)[:, None]
        self._unit = np.ldexp(1.0, left_exponents + exponents - FACTOR_BITS)
        self.norms = np.sqrt(relative) * np.sqrt(self._squares) * self._unit

    def rounded(self, factors: Floats) -> tuple[tuple[Floats, ...], Floats]:
        real = np.multiply(self._left, (factors * self._unit)[:, None], out=self._left)
        whole, squares = np.rint(real), _squares(real) * self._squares
        real -= whole
        real *= 2.0**FINER_BITS
        return (whole, self._right, np.rint(real, out=real)), squares

    def pull(self, part: tuple[Floats, ...], odd: NDArray[np.intp], pull: Floats) -> None:
        whole, right, rest = part
        real = whole[odd] + rest[odd] * 2.0**-FINER_BITS
        real = np.where(pull[:, None] > 0.0, real, 0.0) * pull[:, None]
        whole[odd] = np.trunc(real)
        rest[odd] = np.trunc((real - whole[odd]) * 2.0**FINER_BITS)
        right[odd[pull == 0.0]] = 0.0


class _ScaledGram(_Scaled):
    def __init__(self, values: Floats, weight: float) -> None:
        exponents, relative = _exponents(values)
        self._values = values * np.ldexp(1.0, -exponents)[:, None]
        self._unit, self._weight = np.ldexp(1.0, exponents), weight
        self.norms = relative * self._unit**2 * weight

    def rounded(self, factors: Floats) -> tuple[tuple[Floats, ...], Floats]:
        whole = self._values * (np.sqrt(factors * self._weight) * self._unit)[:, None]
        np.rint(whole, out=whole)
        return (whole,), _squares(whole) ** 2

    def pull(self, part: tuple[Floats, ...], odd: NDArray[np.intp], pull: Floats) -> None:
        _pull(part[0], odd, np.sqrt(pull))


def _pull(whole: Floats, odd: NDArray[np.intp], pull: Floats) -> None:
    """Integers of some records times ``pull``, cut off, so that none becomes longer than that."""
    kept = np.where(pull[:, None] > 0.0, whole[odd], 0.0)
    whole[odd] = np.trunc(kept * pull[:, None])


def _squares(rows: Floats) -> Floats:
    """Squared norm of each row."""
    found: Floats = np.einsum("ij,ij->i", rows, rows)
    return found


def _exponents(rows: Floats) -> tuple[NDArray[np.int64], Floats]:
    """For each row an e such that the row is shorter than 2^e, and the squared norm of the row times 2^-e.

    A row that is not finite, or has values beyond :data:`LARGEST`, is given an e by which no norm is finite.
    """
    squares = _squares(rows)
    exponents = np.frexp(squares)[1].astype(np.int64) + 1 >> 1
    found = squares * np.ldexp(1.0, -2 * exponents)
    odd = np.flatnonzero(~((squares >= 2.0**-900) & (squares <= 2.0**900) | (squares == 0.0)))
    if len(odd):
        peak = np.abs(rows[odd]).max(axis=1, initial=0.0)
        first = np.where(peak <= LARGEST, np.frexp(peak)[1].astype(np.int64), 2000)
        squares = _squares(rows[odd] * np.ldexp(1.0, -first)[:, None])
        second = np.frexp(squares)[1].astype(np.int64) + 1 >> 1
        exponents[odd] = first + second
        found[odd] = np.where(first < 2000, squares * np.ldexp(1.0, -2 * second), np.nan)
    return exponents, found
