"""Typical records, made of a schema and public guesses: what plans are rehearsed on. None of it comes from a record.

A guess says what is commonly known of a column, such as a published share of deaths. It serves the plan alone: it is neither
in the signed study nor does any site receive it. A column without a guess has its mean a third of half its range below the
middle of its bounds, with a standard deviation as large; the levels of a category are equally frequent. All columns go up
together a little, as they share one normal factor: before they are cut into levels, any two correlate by :data:`CORRELATION`.
The classes of a label share more of it, so that they can be told apart.
"""

import math
import zlib
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Real
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

Guess = Real | tuple[Real, Real] | tuple[Real, Real, Real] | dict[str, Real]
"""What is guessed of a column: the share of the last of two levels, or the mean of a number; mean and standard deviation;
the quartiles of a number; or the shares of some levels, of which the others have equal parts of the rest."""

POOL = 1000
"""Typical records that stand for however many are expected."""

CORRELATION, OF_CLASSES = 0.2, 0.8
"""Part of the shared factor in the variance of a column, and of a label."""

SPREAD = 1.0 / 3.0
"""Standard deviation of a number without a guess, and how far its mean lies below the middle, as shares of half its range."""

NORMAL_QUARTILE = 0.6744897501960817


def guess_levels(schema: DatasetSchema) -> dict[str, tuple[str, ...]]:
    """What can be guessed of: names of columns and of the label, with their levels; a number has none."""
    found = {column.name: () if isinstance(column, NumberColumn) else column.categories for column in schema.columns}
    return found if schema.label is None else {**found, schema.label.column: schema.classes}


def check_guesses(expected: Mapping[str, Guess], schema: DatasetSchema, source: str) -> None:
    """Insist that guesses are possible.

    Args:
        expected: guesses by column.
        source: what they stand in, for messages.

    Raises:
        ConfigurationError: a column or level that there is not, or values that no records can have; the message says which.
    """
    levels = guess_levels(schema)
    for name, guess in expected.items():
        where = f"{source}, expected.{name}"
        if name not in levels:
            raise ConfigurationError(f"{where}: the schema has no such column.", did_you_mean(name, levels))
        own = levels[name]
        try:
            if own:
                _shares(own, guess)
            else:
                column = next(column for column in schema.columns if column.name == name)
                assert isinstance(column, NumberColumn)  # noqa: S101  it has no levels
                _scaled(column, guess, np.array([0.5]))
        except ValueError as error:
            raise ConfigurationError(f"{where}: {error}", "Correct the guess, or leave it out.") from error


def typical_records(
    schema: DatasetSchema, expected: Mapping[str, Guess], number: int = POOL, *, made: bool = False
) -> Records:
    """So many records, the same for the same schema and guesses; no value is missing.

    Margins are as guessed to within half a record: values are quantiles at evenly spaced ranks.

    Args:
        expected: checked guesses.
        number: of records.
        made: whether columns are features that an encoder makes: normal about 0 in place of what bounds suggest.
    """
    features = []
    for column in schema.columns:
        ranks = _ranks(column.name, number)
        if made:
            features.append(np.clip(SPREAD * _normal_quantiles(ranks), -1.0, 1.0)[:, None])
        elif isinstance(column, NumberColumn):
            features.append(_scaled(column, expected.get(column.name), ranks)[:, None])
        else:
            features.append(np.eye(column.width)[_levels(column.categories, expected.get(column.name), ranks)])
    table = np.hstack(features)
    labels = None
    if schema.label is not None:
        labels = _levels(schema.classes, expected.get(schema.label.column), _ranks(schema.label.column, number, OF_CLASSES))
    return Records(table, np.ones(table.shape, dtype=np.bool_), labels, np.arange(number))


def _ranks(name: str, number: int, shared: float = CORRELATION) -> Floats:
    """Ranks of the records in a column, within 0 and 1; they do not depend on the other columns."""
    common = np.random.default_rng(1).standard_normal(number)
    own = np.random.default_rng((2, zlib.crc32(name.encode()))).standard_normal(number)
    z = math.sqrt(shared) * common + math.sqrt(1.0 - shared) * own
    ranks: Floats = (np.argsort(np.argsort(z)) + 0.5) / number
    return ranks


def _levels(levels: tuple[str, ...], guess: Guess | None, ranks: Floats) -> NDArray[np.int64]:
    shares = np.full(len(levels), 1.0 / len(levels)) if guess is None else _shares(levels, guess)
    ends = np.cumsum(shares)[:-1]
    return np.searchsorted(ends, ranks, side="right").astype(np.int64)


def _shares(levels: tuple[str, ...], guess: Guess) -> Floats:
    """The share of each level.

    Raises:
        ValueError: the guess is not one of levels.
    """
    if isinstance(guess, tuple):
        raise ValueError("it has levels: state a share, or a table with the share of each level")
    if not isinstance(guess, dict):
        if len(levels) != 2:
            raise ValueError(f"one share is for two levels; state a table with the share of each of {', '.join(levels[:10])}")
        guess = {levels[1]: guess}
    for level, share in guess.items():
        if level not in levels:
            raise ValueError(f"no level is called {level!r}. {did_you_mean(level, levels)}")
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"the share of {level!r} is {share:g}; it must lie within 0 and 1")
    total = math.fsum(guess.values())
    if total > 1.0 + 1e-9 or (len(guess) == len(levels) and total < 1.0 - 1e-9):
        raise ValueError(f"the shares add up to {total:g}")
    rest = max(1.0 - total, 0.0) / max(len(levels) - len(guess), 1)
    return np.array([guess.get(level, rest) for level in levels])


def _scaled(column: NumberColumn, guess: Guess | None, ranks: Floats) -> Floats:
    """A number's values at these ranks, from -1 to 1 between its bounds: of a beta distribution with a mean and standard
    deviation, or of the normal or shifted log-normal distribution with three quartiles.

    Raises:
        ValueError: no such distribution lies within the bounds.
    """
    low, half = float(column.low), column.high / 2.0 - column.low / 2.0
    bounds = f"{column.low:g} and {column.high:g}"
    if isinstance(guess, dict):
        raise ValueError("it is a number: state [mean, standard deviation], or [lower quartile, median, upper quartile]")
    given: tuple[Real, ...] = guess if isinstance(guess, tuple) else () if guess is None else (guess,)
    places = [(value / 2.0 - low / 2.0) / half for value in given]  # from 0 to 1
    if len(given) == 3:
        lower, median, upper = places
        if not 0.0 <= lower < median < upper <= 1.0:
            raise ValueError(f"quartiles must rise within {bounds}")
        bend, z = math.log((upper - median) / (median - lower)) / NORMAL_QUARTILE, _normal_quantiles(ranks)
        straight = abs(bend) < 1e-9
        steep = (upper - median) / (NORMAL_QUARTILE if straight else math.expm1(bend * NORMAL_QUARTILE))
        moved: Floats = np.clip(median + steep * (z if straight else np.expm1(bend * z)), 0.0, 1.0)
        return 2.0 * moved - 1.0
    mean = places[0] if given else (1.0 - SPREAD) / 2.0
    if not 0.0 < mean < 1.0:
        raise ValueError(f"the mean must lie between {bounds}")
    most = math.sqrt(mean * (1.0 - mean))
    deviation = given[1] / half / 2.0 if len(given) == 2 else min(SPREAD / 2.0, most / 2.0)
    if not 1e-9 < deviation < most:
        largest = f"{2.0 * half * most:.4g}"
        raise ValueError(f"between {bounds} a number of mean {given[0]:g} has a standard deviation below {largest}")
    return np.clip(2.0 * beta_quantiles(mean, deviation, ranks) - 1.0, -1.0, 1.0)


def _normal_quantiles(ranks: Floats) -> Floats:
    normal = NormalDist()
    return np.array([normal.inv_cdf(rank) for rank in ranks])


def beta_quantiles(mean: float, deviation: float, ranks: Floats) -> Floats:
    """Quantiles of a beta distribution, to within 1e-5; scipy has them exactly, and takes a fifth of a second to import.

    The density of t = log(x / (1 - x)) is proportional to exp(a t) / (1 + exp(t))^(a + b), which has one mode and falls
    exponentially, whatever a and b. It is summed by the trapezoidal rule, and beyond 60, where x is 0 or 1, in closed form.

    Args:
        mean: between 0 and 1.
        deviation: standard deviation, above 0 and below that of mean 0 or 1 alone.
        ranks: within 0 and 1.
    """
    size = mean * (1.0 - mean) / deviation**2 - 1.0
    if size > 1e10:
        return np.clip(mean + deviation * _normal_quantiles(ranks), 0.0, 1.0)
    a, b = mean * size, (1.0 - mean) * size
    mode = math.log(mean / (1.0 - mean))

    def fall(t: Floats) -> Floats:
        """Logarithm of the density, less that of the mode."""
        fallen: Floats = a * (t - mode) - size * (np.logaddexp(0.0, t) - np.logaddexp(0.0, mode))
        return fallen

    low = high = math.sqrt(size / (a * b))  # of a normal distribution the standard deviation
    while fall(np.array(mode - low)) > -40.0 and mode - low > -60.0:
        low *= 1.5
    while fall(np.array(mode + high)) > -40.0 and mode + high < 60.0:
        high *= 1.5
    t, step = np.linspace(mode - low, mode + high, 20_001, retstep=True)
    density = np.exp(fall(t))
    below = density[0] / a + np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1]) * step / 2.0])
    found = np.interp(ranks * (below[-1] + density[-1] / b), below, t)
    quantiles: Floats = np.exp(-np.logaddexp(0.0, -found))
    return quantiles
