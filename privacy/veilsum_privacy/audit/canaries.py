"""Canaries: made-up records of one unit of privacy each, whose vectors are as long as a release allows, and orthogonal.

They are looked for among records of every class, with all features at their bounds or one of them, so it takes no knowledge of
the task. Nothing here reads a record of the site.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema
from veilsum_privacy.study.study import Unit
from veilsum_privacy.tasks.base import Records

MOST = 1000
"""Canaries of one release."""

COMPANY = 40
"""Units beside which canaries are tried."""

_CANDIDATES = 400  # or one of each class, or of each combination of categories
_COMBINATIONS = 1024
_MEMORY = 2**24  # values of all canaries' vectors together
_LEAST = 0.9  # of the longest vector: shorter canaries show less than they cost
_RIGHT_ANGLE = 1e-9
_OF_A_SUBJECT = 3
_FIRST = 2**40  # numbers of canaries as subjects: above those of any base


def candidates(schema: DatasetSchema, rng: np.random.Generator) -> Iterator[Records]:
    """Records of a schema, one at a time, at most so many."""
    patterns = np.array(list(_patterns(schema, rng)))
    classes = max(1, len(schema.classes))
    for index in range(min(max(_CANDIDATES, classes, _combinations(schema)), len(patterns) * classes)):
        # every class with the first pattern before any with the second
        pattern, label = patterns[index // classes], index % classes
        known = np.ones((1, len(pattern)), dtype=np.bool_)
        yield Records(pattern[None], known, np.array([label]) if schema.label is not None else None)


def as_unit(record: Records, unit: Unit, number: int) -> Records:
    """One unit of privacy: the record, or a subject, or site, that has it several times."""
    times = 1 if unit == "record" else _OF_A_SUBJECT
    return replace(record.take(np.zeros(times, dtype=np.intp)), subjects=np.full(times, _FIRST + number, dtype=np.int64))


def made_up_company(units: Sequence[Records], schema: DatasetSchema, unit: Unit, rng: np.random.Generator) -> Records:
    """Units to try canaries beside: at most forty, of records drawn from these; a subject has several, of different kinds.

    Their subjects ascend, below those of canaries, and are given whatever the unit of privacy is. Together they are no more
    than half of the records that the schema allows a site; none where it allows too few.
    """
    times = _OF_A_SUBJECT if unit == "subject" else 1
    number, records = min(COMPANY, schema.max_records // (2 * times)), join(units)
    number = 0 if unit == "site" else number  # nobody at a site is beside the whole site
    drawn = records.take(rng.integers(len(records), size=number * times))
    return replace(drawn, subjects=np.repeat(np.arange(number, dtype=np.int64), times))


def join(parts: Sequence[Records]) -> Records:
    """The records of all parts, by subject."""
    first = parts[0]
    labels = None if first.labels is None else np.concatenate([part.labels for part in parts if part.labels is not None])
    subjects = np.concatenate([part.subjects for part in parts if part.subjects is not None])
    features, present = (np.concatenate([getattr(part, name) for part in parts]) for name in ("features", "present"))
    return Records(features, present, labels, subjects).take(np.argsort(subjects, kind="stable"))


def choose(
    units: Sequence[Records], norms: Floats, vector: Callable[[int], Floats], most: int = MOST
) -> tuple[list[Records], Floats]:
    """Choose the units with the longest vectors, each at right angles to all chosen before.

    Args:
        norms: (n,) of their vectors.
        vector: what a unit changes, (size,), by its place.
        most: how many to choose at most.

    Returns:
        the units, and their vectors (k, size) in the vectors' own unit; none where no unit moves the release.
    """
    order = [int(index) for index in np.argsort(-norms, kind="stable") if norms[index] > _LEAST * norms.max() and norms[index]]
    chosen: list[Records] = []
    vectors = np.zeros((0, 0))
    for index in order:
        found = vector(index)
        if not chosen:
            vectors = np.zeros((max(1, min(most, len(order), _MEMORY // len(found))), len(found)))
        before = vectors[: len(chosen)]
        if np.abs(before @ found).max(initial=0.0) <= _RIGHT_ANGLE * norms.max() ** 2:
            vectors[len(chosen)] = found
            chosen.append(units[index])
        if len(chosen) == len(vectors):
            break
    return chosen, vectors[: len(chosen)].copy()


def _patterns(schema: DatasetSchema, rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """Features of records: all at bounds, at random, one number at a bound, or one category after the other."""
    categories = [(at.start, column.width) for column, at in schema.places() if isinstance(column, CategoryColumn)]
    numbers = [at.start for column, at in schema.places() if not isinstance(column, CategoryColumn)]

    def pattern(values: NDArray[np.float64] | float, level: Callable[[int], int]) -> NDArray[np.float64]:
        features = np.zeros(schema.width)
        features[numbers] = values
        for start, count in categories:
            features[start + level(count)] = 1.0
        return features

    def first(_: int) -> int:
        return 0

    def drawn(count: int) -> int:
        return int(rng.integers(count))

    signs = np.where(np.arange(len(numbers)) % 2, -1.0, 1.0)
    for values in (np.ones(len(numbers)), -np.ones(len(numbers)), signs, -signs, np.zeros(len(numbers))):
        yield pattern(values, first)
    if _combinations(schema):
        for levels in product(*(range(count) for _, count in categories)):
            left = iter(levels)
            yield pattern(signs, lambda _, left=left: next(left))  # type: ignore[misc]
    else:
        for level in range(1, max((count for _, count in categories), default=1)):
            yield pattern(signs, lambda count, level=level: min(level, count - 1))  # type: ignore[misc]
    for place in range(len(numbers)):
        yield pattern(np.where(np.arange(len(numbers)) == place, 1.0, 0.0), first)
    for _ in range(64):
        yield pattern(rng.choice([-1.0, 1.0], len(numbers)), drawn)
        yield pattern(rng.uniform(-1.0, 1.0, len(numbers)), drawn)


def _combinations(schema: DatasetSchema) -> int:
    """How many combinations of categories there are; 0 where they are too many to try."""
    counts = [column.width for column in schema.columns if isinstance(column, CategoryColumn)]
    number = math.prod(counts)
    return number if counts and number <= _COMBINATIONS else 0
