"""One Gaussian mechanism in place of all steps of a sampled study, certified by privacy loss distributions.

N Poisson-sampled Gaussian steps of equal rate and noise are *dominated* by a pair (mu^2, slack) if

    H(epsilon) <= slack + (1 - slack) G(epsilon)    for every epsilon >= 0, for a record removed and for one added,

H being the largest P(A) - exp(epsilon) Q(A) of all steps together and G that of a Gaussian mechanism with (D / sigma)^2 =
mu^2. The right side belongs to a mechanism that reveals the record with probability ``slack`` and else is that Gaussian one,
so by Blackwell's theorem (Dong, Roth, Su 2022, theorem 2) the steps can be made of its output without the records. That
holds however each step is chosen by earlier ones: a step is made of one draw of its own pair (Zhu, Dong, Wang 2022, theorems
10 and 11), and all N draws, which do not depend on what the steps compute, can be made at the beginning.

H is computed by privacy losses on a grid, and every error counts against the study:

- a step's mass between two places of the grid is split between them such that its likelihoods under both neighbours are kept,
  which tells more than the loss itself (Doroshenko et al. 2022), and a little more goes up than that, for rounding;
- a sum that leaves the window at its upper end is bounded by Chernoff and added to H; one that leaves at its lower end comes
  back at the upper one;
- the error of the Fourier transform is bounded and added: every coefficient passes log2 n additions and multiplications, so a
  transform is off by at most 8 u log2 n times the sum of moduli (6.7 by theorem 24.2 of Higham 2002, with twiddle factors to a
  unit), and N-th powers by N times that;
- between two places of the grid H at the lower is held against G at the upper.

Where so fine a grid would be too large, which is where few steps draw a record rarely and tell much when they do, what is
computed is a larger H, so that nothing above changes:

- a step's losses end at a position x, and the chance that any of N steps lies beyond it, at most N P(X > x), is added to H. No
  set of outcomes loses more by that: P(A) <= P(A within) + N P(X > x), and Q(A) >= Q(A within);
- the grid is as coarse as it has to be, which rounds up more.

A pair that dominates M > N steps dominates N, at the same slack: whoever has M steps has N, by throwing the others away. It is
the price where N steps themselves cannot be certified.
"""

import math
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.accounting.gaussian import gaussian_profile

Direction = Literal[1, -1]
"""1: a record is removed; -1: one is added."""

DIRECTIONS: tuple[Direction, Direction] = (1, -1)

_TAIL = 9.5  # standard deviations; a normal's mass beyond is below 1e-20
_OF_STEP = (
    0.03  # the grid's spacing, as a share of a loss's standard deviation: it adds a quarter of the square to the variance
)
_OF_SUM = 0.002
_IGNORED = 1e-3  # of slack, that sums beyond the window may have
_LARGEST_GRID = 1 << 20
_LARGEST_LOSS = 500.0  # of a step
_LARGEST_EXPONENT = 700.0  # exp of it must stay short of overflow
_COARSE_GRID = 1 << 17
_COARSER = 6  # how often the grid may be made 4 times as coarse
_MORE_STEPS = 4  # how often the number of steps may be
_UNIT = 2.0**-53
_MASS_ERROR = 4e-15  # of one step's distribution function
_LOSS_ERROR = 1e-13  # of one step's loss
_GAUSSIAN_ERROR = 1e-14  # of G
_DIGITS = 1e-9  # relative, to which mu is found


@lru_cache(maxsize=1 << 10)
def dominating_ratio(rate: float, ratio: float, steps: int, slack: float) -> float:
    """The least mu^2, to 2e-9, that is certified to dominate ``steps`` sampled steps with ``slack``.

    Never more than ``steps`` times ``ratio``, which dominates without any slack: sampling never costs more. It is that where
    nothing better can be certified: at more than about 10^6 steps, a slack below 1e-12, or noise of next to nothing.

    Args:
        rate: q in (0, 1).
        ratio: (D / sigma)^2 of a step.
        steps: N.
        slack: in (0, 1).
    """
    most = ratio * steps
    if rate * steps <= slack:
        return 0.0  # the record is in no sample but for that chance
    for doublings in range(_MORE_STEPS + 1):
        found = _certified(rate, ratio, steps << doublings, slack, most)
        if found is not None:
            return found
    return most


def _certified(rate: float, ratio: float, steps: int, slack: float, most: float) -> float | None:
    """The least mu^2 up to ``most`` that is certified; None if there is none."""
    values, epsilons = [], []
    for direction in DIRECTIONS:
        found = bounded_profile(rate, ratio, steps, direction, _IGNORED * slack)
        if found is None or found[1][-1] > slack:  # further up it is below the last
            return None
        spacing, profile = found
        values.append(profile)
        epsilons.append(spacing * np.arange(1, len(profile) + 1) + steps * _LOSS_ERROR)

    def exceeding(mu: float, h: Floats, epsilon: Floats) -> NDArray[np.bool_]:
        return h > slack + (1 - slack) * (gaussian_profile(mu, epsilon) - _GAUSSIAN_ERROR)

    low, high = 0.0, math.sqrt(most)
    h, epsilon = np.concatenate(values), np.concatenate(epsilons)
    h, epsilon = h[h > slack], epsilon[h > slack]
    if not len(h):
        return 0.0
    if exceeding(high, h, epsilon).any():
        return None
    while high - low > _DIGITS * high:
        middle = (low + high) / 2
        exceeds = exceeding(middle, h, epsilon)
        if exceeds.any():
            low, h, epsilon = middle, h[exceeds], epsilon[exceeds]  # the others are within any larger mu's
        else:
            high = middle
    return high * high


def bounded_profile(
    rate: float, ratio: float, steps: int, direction: Direction, ignored: float
) -> tuple[float, Floats] | None:
    """H as of :func:`composed_profile` and the spacing of its places: the finest grid's, or that of the finest that is not too
    large for losses without their upper tail. None if there is none."""
    spacing = grid_spacing(rate, ratio, steps)
    profile = composed_profile(rate, ratio, steps, direction, spacing, ignored)
    if profile is not None:
        return spacing, profile
    end = _end(rate, ratio, ignored / steps)
    spacing = max(spacing, _loss(rate, ratio, end) / _COARSE_GRID)
    for _ in range(_COARSER):
        profile = composed_profile(rate, ratio, steps, direction, spacing, ignored, end)
        if profile is not None:
            return spacing, profile + ignored
        spacing *= 4
    return None


def composed_profile(
    rate: float, ratio: float, steps: int, direction: Direction, spacing: float, ignored: float, end: float | None = None
) -> Floats | None:
    """H of ``steps`` steps at multiples of ``spacing`` from 0 on, never too small: (n,). None if the grid would be too large.

    Args:
        direction: 1: a record is removed, -1: one is added.
        ignored: chance of sums beyond the window; it is added to H.
        end: position beyond which steps are left out; the chance of them is not added to H. None: where there is none.
    """
    end = _TAIL + math.sqrt(ratio) if end is None else end
    largest = _loss(rate, ratio, end)
    if largest > _LARGEST_LOSS or largest > spacing * _LARGEST_GRID:
        return None
    first, masses = step_masses(rate, ratio, direction, spacing, end)
    bottom, top = _window(first, masses, steps, spacing, ignored)
    size = 1 << max(1, math.ceil(math.log2(top - bottom + 2)))
    if size > _LARGEST_GRID:
        return None
    sums, error = convolved(masses, steps, size)
    places = np.arange(size + bottom)  # of losses from 0 on
    sums, losses = sums[(places - first * steps) % size], places * spacing
    above = np.cumsum(sums[::-1])[::-1]
    other = np.cumsum((sums * np.exp(-losses))[::-1])[::-1]
    # What is taken off may be too little, so the exponent ends where it would overflow. The last term: what sums are off by.
    h: Floats = above - np.exp(np.minimum(losses, _LARGEST_EXPONENT)) * other + 2 * size * _UNIT * above
    return h + (error + 2 * ignored + steps * _MASS_ERROR)


def convolved(masses: Floats, steps: int, size: int) -> tuple[Floats, float]:
    """The ``steps``-fold convolution of masses on a circle of ``size`` places, and a bound on the sum of its errors."""
    wrapped = np.bincount(np.arange(len(masses)) % size, weights=masses, minlength=size)
    spectrum = np.fft.rfft(wrapped)
    sums: Floats = np.maximum(np.fft.irfft(power(spectrum, steps), size), 0.0)
    # |x + d|^N - |x|^N <= N (|x| + |d|)^(N - 1) |d|, and squaring to the N-th power rounds by 3 u N. What that makes of the
    # sums is at most the root of the sum of squares over all frequencies (Cauchy and Schwarz, Parseval).
    transform = 8 * _UNIT * math.log2(size)
    modulus = np.minimum(np.abs(spectrum) + transform, 1.0)
    error = steps * (transform + 3 * _UNIT) * math.sqrt(2 * float(np.sum(modulus ** (2 * steps - 2))))
    return sums, error + transform * math.sqrt(2 * float(np.sum(modulus ** (2 * steps))))


def step_masses(
    rate: float, ratio: float, direction: Direction, spacing: float, end: float | None = None
) -> tuple[int, Floats]:
    """One step's losses on the grid, rounded up: the first place, and the chances of it and those that follow.

    ``end`` is the position beyond which a removed record's step may be left out; None: where the chance is below 1e-20.
    """
    shift = math.sqrt(ratio)
    ends = sorted(direction * _loss(rate, ratio, x) for x in (-_TAIL, _TAIL + shift if end is None else end))
    first, last = math.floor(ends[0] / spacing), math.ceil(ends[1] / spacing)
    losses = spacing * np.arange(first, last + 1)
    removed = direction * losses  # as losses of a removed record, which rise with x
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.log1p(np.expm1(removed) / rate)
        x = np.where(removed > math.log1p(-rate), (log_ratio + ratio / 2) / shift, -np.inf)
        left, right = (x[:-1], x[1:]) if direction > 0 else (x[1:], x[:-1])
        plain, moved = normal_mass(left, right), normal_mass(left - shift, right - shift)
        mixed = (1 - rate) * plain + rate * moved
        p, q = (mixed, plain) if direction > 0 else (plain, mixed)
        up = (1 - np.exp(losses[:-1]) * q / p) / -math.expm1(-spacing)
    # Differences of neighbouring tails lose digits in proportion to 1 / spacing, and what is left of them here once more.
    up = up + 4e-15 * shift / spacing**2 + 2e-13 / spacing
    up = np.where(up < 1.0, np.maximum(up, 0.0), 1.0)  # and where q or p is 0
    masses = np.zeros(len(losses))
    masses[:-1] += p * (1 - up)
    masses[1:] += p * up
    below = np.full(1, -np.inf)
    if direction > 0:
        masses[0] += (1 - rate) * normal_mass(below, x[:1])[0] + rate * normal_mass(below, x[:1] - shift)[0]
    else:
        masses[0] += normal_mass(x[:1], -below)[0]
    return first, masses


def _loss(rate: float, ratio: float, x: float) -> float:
    """log((1 - q) + q w) at x standard deviations of the noise."""
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + math.sqrt(ratio) * x - ratio / 2))


def _end(rate: float, ratio: float, chance: float) -> float:
    """A position beyond which a step lies with at most ``chance``, under either neighbour."""
    shift = math.sqrt(ratio)
    low, high = 0.0, _TAIL + shift
    while high - low > 1e-3:
        middle = (low + high) / 2
        beyond = normal_mass(np.array([middle, middle - shift]), np.full(2, np.inf))
        low, high = (low, middle) if (1 - rate) * beyond[0] + rate * beyond[1] <= chance / 2 else (middle, high)
    return high


def grid_spacing(rate: float, ratio: float, steps: int) -> float:
    """A grid that is fine beside a step's loss, which it widens, and beside their sum, which is told by one place less."""
    shift = math.sqrt(ratio)
    x = np.linspace(-_TAIL, _TAIL, 4001)
    loss = np.logaddexp(math.log1p(-rate), math.log(rate) + shift * x - ratio / 2)
    weights = np.exp(-x * x / 2)
    weights /= weights.sum()
    return math.sqrt(float(weights @ (loss - weights @ loss) ** 2)) * min(_OF_STEP, _OF_SUM * math.sqrt(steps))


def _window(first: int, masses: Floats, steps: int, spacing: float, ignored: float) -> tuple[int, int]:
    """Places that sums leave with a chance of at most ``ignored`` at either end, by Chernoff's bound; 0 is within."""
    from scipy.optimize import minimize_scalar

    losses = spacing * np.arange(first, first + len(masses))
    mean = float(masses @ losses)
    std = math.sqrt(max(steps * float(masses @ (losses - mean) ** 2), spacing**2))

    def end(sign: int, log_t: float) -> float:  # any t gives a bound
        exponent = sign * math.exp(log_t) / std * losses
        peak = float(exponent.max())
        log_moment = steps * (peak + math.log(float(masses @ np.exp(exponent - peak))))
        return (log_moment - math.log(ignored)) * std / math.exp(log_t)

    top, bottom = (
        float(minimize_scalar(lambda log_t, sign=sign: end(sign, log_t), bounds=(-5, 5), options={"xatol": 0.1}).fun)
        for sign in (1, -1)
    )
    return min(math.floor(-bottom / spacing), -1), max(math.ceil(top / spacing), 1)


def normal_mass(left: Floats, right: Floats) -> Floats:
    """A standard normal's mass between points, without cancellation in either tail."""
    from scipy.special import ndtr  # a seventh of a participant's start, which sampled releases alone need

    masses: Floats = np.where(left > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left))
    return masses


def power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """``base`` to a positive whole power by squaring."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return result
