"""The grid of a study's sums: how finely records are counted, from public values alone.

Fine enough that truncation to it is lost in the noise, coarse enough that a cohort's sum fits a lane of the encoding.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from veilsum_node.errors import ConfigurationError
from veilsum_privacy.accounting.gaussian import SMOOTHING
from veilsum_privacy.mechanism.noise import CENTRE_BITS, LARGEST_CENTRE
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy

LANE_BITS = 47
"""Bits that a lane of the encoding offers to the sum of a whole cohort, sign included."""

LARGEST_GRID = 2**26
LARGEST_STD = 2**31
"""A study's variance is at most 2^62."""

ROUNDING = 0.01
"""Share of the noise's standard deviation that truncation to the grid may add up to, per value, over all records."""

SMALLEST_SHARE = 8
"""Standard deviation in grid units that one participant's noise share keeps at least; below 4 noise is refused."""

INTEGER_SHARE = 32
"""What it keeps, where that fits, of vectors of integers, whose grid can be coarse: smoothing takes 0.2% of the noise then."""

UNROUNDED_SHARE = 40
"""What it keeps, where that fits, of a vector that is not rounded: the 16 that its variance grows by are 1% of it then."""

_INTEGER_SHARES = (INTEGER_SHARE, SMALLEST_SHARE)

NOISE_TAILS = 12
"""Standard deviations of each participant's noise that a lane has room for."""


class NoGridError(ConfigurationError):
    """No grid fits the records, the participants and the noise."""


@dataclass(frozen=True)
class GridPlan:
    """A grid and what truncation to it can cost.

    Attributes:
        grid: c, grid units that a task's clip norm becomes.
        variance: S^2 in grid units squared; 0 without noise.
        rounding: largest error of a value of the sum through truncation, as a share of S; without noise, of the clip norm.
    """

    grid: int
    variance: int
    rounding: float


def plan_grid(
    *,
    max_records: int,
    participants: int,
    multiplier: float | None,
    honest: int = 1,
    values: int = 0,
    norm: int = 0,
    unrounded: bool = False,
) -> GridPlan:
    """Choose the grid of a sum of per-record vectors: a power of two, or a multiple of the norm of vectors of integers.

    Each record is truncated towards zero, by less than one unit a value, so a value of the sum is off by less than
    n M units for n participants of at most M records. With noise S = z c the smallest c with n M <= 0.01 z c is taken, and
    at least what leaves a noise share of z c / sqrt(h) 8 units; but never more than a lane holds,
    2 n (M c + 12 z c) < 2^47, nor 2^26, nor S above 2^31. Where the 1% asks for more than fits, what fits is taken and
    ``rounding`` says what it costs. Without noise the finest grid that fits is taken. A site's own vector of d values is
    rounded, which takes sqrt(d) units of c: there c is at least 100 sqrt(d), so that noise grows by 1% at most. One that is
    not rounded takes 2^-20 sqrt(d): there c is the smallest that leaves a noise share 40 units, for the narrowest lanes.

    S^2 is (z c)^2 and what the rule ``gaussian`` takes off (:mod:`veilsum_privacy.accounting.gaussian`).

    Args:
        max_records: M.
        participants: n.
        multiplier: z, the noise's standard deviation over the sensitivity; None means without noise.
        honest: h, the shares that S is divided among.
        values: d of a vector that is rounded; 0 for vectors that are truncated.
        norm: of vectors of integers, which are neither truncated nor rounded: the grid is its smallest multiple that leaves a
            noise share 32 units, where that fits. 0 of all others.
        unrounded: whether a site draws around its own vector as it is; of vectors with noise.

    Raises:
        NoGridError: no grid fits.
    """
    z = multiplier or 0.0
    lane = 2 ** (LANE_BITS - 1) / (participants * (max_records + NOISE_TAILS * z))
    finest = min(int(2.0 ** (math.ceil(math.log2(lane)) - 1)), LARGEST_GRID)
    if z:
        finest = min(finest, int(2.0 ** math.floor(math.log2(LARGEST_STD / z))))
    if not finest or (z and z * finest / math.sqrt(honest) < SMALLEST_SHARE):
        raise _no_grid(max_records, participants)
    if norm:
        multiples = [math.ceil(share * math.sqrt(honest) / (z * norm)) if z else 1 for share in _INTEGER_SHARES]
        grid = next((norm * multiple for multiple in multiples if norm * multiple <= finest), 0)
        if not grid:
            raise NoGridError(
                f"The integers of {max_records} records at each of {participants} participants do not fit a sum.",
                "Lower the schema's max_records, or ask fewer queries.",
            )
        return GridPlan(grid, _variance(z, grid), 0.0)
    worst = participants * max_records
    if unrounded and z:
        slack = math.sqrt(values) * 2.0**-CENTRE_BITS / ROUNDING
        least = math.ceil(max(UNROUNDED_SHARE * math.sqrt(honest) / z, slack))
        grid = min(least, finest, LARGEST_CENTRE // max_records)
        if z * grid / math.sqrt(honest) >= SMALLEST_SHARE:
            return GridPlan(grid, _variance(z, grid), 0.0)
        raise _no_grid(max_records, participants)
    if not z:
        return GridPlan(finest, 0, worst / finest)
    needed = max(worst / (ROUNDING * z), SMALLEST_SHARE * math.sqrt(honest) / z, math.sqrt(values) / ROUNDING, 1.0)
    grid = min(2 ** math.ceil(math.log2(needed)), finest)
    return GridPlan(grid, _variance(z, grid), worst / (z * grid))


def _variance(multiplier: float, grid: int) -> int:
    return math.ceil((Fraction(multiplier) * grid) ** 2) + SMOOTHING if multiplier else 0


def _no_grid(max_records: int, participants: int) -> NoGridError:
    return NoGridError(
        f"No grid fits {max_records} records at each of {participants} participants with this noise.",
        "Lower the schema's max_records, or ask for a smaller epsilon.",
    )


def derived_grid(participants: int) -> int:
    """The grid of a task that reads no record: the finest power of two whose sum of ``participants`` vectors fits a lane,
    2^40 at most. Its values are rounded, not truncated, and have no noise to be lost in."""
    return int(min(2 ** (LANE_BITS - 2 - math.ceil(math.log2(max(participants, 2)))), 2**40))


def training_resolution(participants: int, *, private: bool) -> int:
    """Units of the largest value of a vector that was trained: with noise in it 2^20, which two lanes of a slot hold for up to
    four participants, without noise as fine as :func:`derived_grid`."""
    return min(2**20, derived_grid(participants)) if private else derived_grid(participants)


def rounding_share(study: Study) -> float:
    """What truncation to the grid adds at most to a value of a compiled study's sums, as a share of the noise S.

    Without noise: as a share of the clip norm. Of the task where it is largest; 0 of vectors that are integers or not rounded.
    """
    worst = len(study.participants) * study.data.max_records
    private = study.privacy.noise != "none"
    tasks = [agreed.declaration for agreed in AgreedStudy(study).tasks if not agreed.task.integer_norm()]
    priced = [declared for declared in tasks if not private or (declared.variance and not declared.unrounded)]
    return max((worst / (math.sqrt(task.variance) if task.variance else task.grid) for task in priced), default=0.0)
