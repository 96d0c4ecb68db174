"""What the noise does to released moments, in a scientist's words: of a schema's own columns, or of features that were made.

Widths are of the noise alone, from public values (:mod:`veilsum_coordinator.parts.expectations`). Where a width depends on
the data, columns are taken to lie as schemas mostly have it, and features that an encoder made to use a root mean square norm
evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from veilsum_aggregation import moments
from veilsum_aggregation.figures import Figure, bounded_mean
from veilsum_coordinator.parts.expectations import OFFSET, SPREAD, Z95, Expectation, released_noise
from veilsum_coordinator.parts.moment_plans import default_clip
from veilsum_privacy.study.encoder import Projection
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study

DIRECTIONS = "covariances as a whole"
"""Name of the part that says whether covariances as matrices, not entry by entry, can be told from noise."""


@dataclass(frozen=True)
class Noised:
    """Released moments to say something of.

    Attributes:
        study: compiled.
        clip: norm that features are clipped to.
        std: of the noise, by block.
        records: that stand behind them.
        where: "" for all sites together, " at a site" for those of one.
        copies: how many there are of each, one for each site of the latter.
    """

    study: Study
    clip: float
    std: Mapping[str, float]
    records: float
    where: str = ""
    copies: int = 1

    @classmethod
    def together(cls, study: Study, label: str, clip: float, cohort: int, records: int) -> Noised:
        """Moments of all sites; where they are released per site, the sum of these, with the noise of each."""
        rows = cohort if study.task(label).disclosure == "per-site" else 1
        std = {name: value * math.sqrt(rows) for name, value in released_noise(study, label, cohort).items()}
        return cls(study, clip, std, records)

    @classmethod
    def of_site(cls, study: Study, label: str, clip: float, cohort: int, records: int) -> Noised:
        """Moments of one site, released per site or kept there: the sum of kept ones holds the noise of each member."""
        task = study.task(label)
        parts = cohort if task.keep and not task.own_noise else 1
        std = {name: value / math.sqrt(parts) for name, value in released_noise(study, label, cohort).items()}
        return cls(study, clip, std, records / cohort, " at a site", cohort)

    @property
    def width(self) -> int:
        """Number of features."""
        return self.study.width

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.study.data.classes)

    @property
    def norm(self) -> float:
        """Expected root mean square norm of a record's features after clipping."""
        if self.study.encoder is None:
            return min(self.clip, default_clip(self.study.data))
        return min(self.clip, 1.0) if isinstance(self.study.encoder, Projection) else self.clip

    @property
    def spread(self) -> float:
        """Expected root mean square standard deviation of a feature about its class's mean, after clipping."""
        if self.study.encoder is None:
            kinds = _features(self.study.data, left_by_clipping(self.study.data, self.clip)).values()
            return math.sqrt(sum(kind.number * kind.spread**2 for kind in kinds) / self.width)
        return self.norm / math.sqrt(self.width)


def class_expectations(noised: Noised, *, main: bool = True) -> Iterator[Expectation]:
    """Class counts, class means, within-class variances and covariances; the class means are the main ones if any are."""
    study, std, records, k = noised.study, noised.std, noised.records, noised.classes
    label = study.data.label.column if study.data.label else ""
    counts, basis = f"count of each class of {label}{noised.where}", f"{k} equal classes"
    yield Expectation("class counts", counts, records / k, Z95 * std["counts"], basis=basis, number=k * noised.copies)
    if study.encoder is None:
        shrink = left_by_clipping(study.data, noised.clip)
        yield from _expected_means(noised, shrink, main)
        yield from _expected_covariances(noised, shrink)
        return
    d, size = noised.width, noised.spread
    basis = "a record's norm spread evenly"
    width = Z95 * math.hypot(std["sums"], size * std["counts"]) * k / records
    what, number = f"class mean of each feature{noised.where}", k * d * noised.copies
    yield Expectation("class means", what, size, width, basis=basis, number=number, main=main)

    def entry(name: str, covariance: float, *, diagonal: bool) -> float:
        error = moments.within_covariance_error(
            records, k, std.get(name, 0.0), std["sums"], std["counts"], (size, size), covariance, diagonal=diagonal
        )
        return Z95 * error

    found = entry("squares", size**2, diagonal=True)
    what = f"variance of each feature{noised.where}"
    yield Expectation("variances", what, size**2, found, basis=basis, number=d * noised.copies)
    if d > 1:
        pairs = d * (d - 1) // 2 * noised.copies
        what = f"covariance of two features{noised.where}"
        found = entry("products", 0.0, diagonal=False)
        yield Expectation("covariances", what, size**2, found, basis="fully correlated", number=pairs)


def mean_expectations(noised: Noised, *, main: bool = True) -> Iterator[Expectation]:
    """Count and means of all records, whatever their class."""
    std, d = noised.std, noised.width
    count = f"number of records{noised.where}"
    yield Expectation("counts", count, noised.records, Z95 * std["count"], basis="all records", number=noised.copies)
    size = noised.spread
    width = Z95 * math.hypot(std["sum"], size * std["count"]) / noised.records
    what = f"mean of each feature{noised.where}, in scaled units"
    basis = "the spread of a feature"
    yield Expectation("means", what, size, width, basis=basis, number=d * noised.copies, main=main)


def direction_expectations(noised: Noised, *, within: int | None = None, main: bool = False) -> Iterator[Expectation]:
    """The covariance as a matrix: the variance that noise shows along the worst direction, against the mean variance.

    The largest eigenvalue of a symmetric matrix of noise of std s is about 2 s sqrt(d): where that exceeds the variances of
    the features themselves, eigenvectors, maps and inverses of the matrix are the noise's.

    Args:
        noised: with blocks ``squares`` and, of more than one feature, ``products``.
        within: number of directions that are taken to hold all variance; by default all.
        main: whether the method is run for it.
    """
    d = noised.width
    if d < 2:
        return
    edge = 2.0 * math.sqrt(d) * max(noised.std["products"], noised.std["squares"] / math.sqrt(2.0)) / noised.records
    size = noised.spread**2 * d / (d if within is None else within)
    basis = "the mean variance" if within is None else f"all variance in {within} directions"
    what = f"variance along a direction{noised.where}, at the worst of {d}"
    yield Expectation(DIRECTIONS, what, size, edge, basis=basis, number=d * noised.copies, main=main)


class _Features(NamedTuple):
    """Features of one kind: how many, and their expected mean and standard deviation (root mean squares over columns)."""

    number: int
    mean: float
    spread: float


def _expected_means(noised: Noised, shrink: float, main: bool) -> Iterator[Expectation]:
    """Class means, in each column's unit."""
    schema, std, k = noised.study.data, noised.std, noised.classes
    records = noised.records / k
    for column in schema.columns:
        if isinstance(column, NumberColumn):
            name, number, centre, half = column.name, 1, OFFSET, (column.high - column.low) / 2.0
            size, unit, basis = half, column.unit, f"half of {column.low:g} to {column.high:g}"
        else:
            name, number, half = f"each {column.name}", column.width, 1.0
            size = centre = 1.0 / number
            unit, basis = "", f"{number} equal categories"
        mean = bounded_mean(centre * shrink * records, records, std["sums"], std["counts"], -1.0, 1.0)
        width = Z95 * mean.noise_error * half if isinstance(mean, Figure) else math.inf
        what, copies = f"class mean of {name}{noised.where}", k * number * noised.copies
        yield Expectation("class means", what, size * shrink, width, unit, basis, copies, main=main)


def _expected_covariances(noised: Noised, shrink: float) -> Iterator[Expectation]:
    """Within-class variances, and covariances measured against the largest that the variances allow, in scaled units."""
    schema, std, where = noised.study.data, noised.std, noised.where

    def width(second_std: float, one: _Features, other: _Features, covariance: float, *, diagonal: bool = False) -> float:
        means = (one.mean, other.mean)
        return Z95 * moments.within_covariance_error(
            noised.records, noised.classes, second_std, std["sums"], std["counts"], means, covariance, diagonal=diagonal
        )

    kinds = _features(schema, shrink)
    for kind, it in kinds.items():
        found, basis = width(std["squares"], it, it, it.spread**2, diagonal=True), "as the schema suggests"
        what, number = f"variance of {kind}s{where}", it.number * noised.copies
        yield Expectation("variances", what, it.spread**2, found, basis=basis, number=number)
        if it.number > 1:
            found, pairs = width(std["products"], it, it, 0.0), it.number * (it.number - 1) // 2 * noised.copies
            what = f"covariance of {kind}s{where}"
            yield Expectation("covariances", what, it.spread**2, found, basis="fully correlated", number=pairs)
    if len(kinds) == 2:
        one, other = kinds.values()
        found, size = width(std["products"], one, other, 0.0), one.spread * other.spread
        what, pairs = f"covariance of numbers with indicators{where}", one.number * other.number * noised.copies
        yield Expectation("covariances", what, size, found, basis="fully correlated", number=pairs)


def _features(schema: DatasetSchema, shrink: float) -> dict[str, _Features]:
    """The expected features of each kind, after clipping."""
    found: dict[str, list[_Features]] = {}
    for column in schema.columns:
        if isinstance(column, NumberColumn):
            found.setdefault("number", []).append(_Features(1, OFFSET * shrink, SPREAD * shrink))
        else:
            p = 1.0 / column.width
            found.setdefault("indicator", []).append(_Features(column.width, p * shrink, math.sqrt(p * (1.0 - p)) * shrink))
    kinds = {}
    for kind, features in found.items():
        d = sum(item.number for item in features)
        mean = math.sqrt(sum(item.number * item.mean**2 for item in features) / d)
        kinds[kind] = _Features(d, mean, math.sqrt(sum(item.number * item.spread**2 for item in features) / d))
    return kinds


def left_by_clipping(schema: DatasetSchema, clip: float) -> float:
    """What clipping leaves of a record of the expected norm, as a share of it."""
    numbers = sum(isinstance(column, NumberColumn) for column in schema.columns)
    return min(1.0, clip / math.sqrt(numbers * (OFFSET**2 + SPREAD**2) + (len(schema.columns) - numbers)))
