"""Gaussian mixtures from released moments of hard-assigned components, and samples of them to train a head on (FedPFT).

Everything here is post-processing of released sums. Samples of a mixture descend from no record in
particular. Expectation maximisation is not used: responsibilities of all records would have to be summed in every round;
components are the records nearest to broadcast centres, which costs one release, or one for each update of the centres.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_aggregation.moments import within_noise
from veilsum_aggregation.polar import factor

_FLOOR = 1e-4
"""A variance is at least this share of the mean variance of its class."""


@dataclass(frozen=True)
class Mixture:
    """A mixture of G Gaussians, diagonal or full.

    Attributes:
        weights: (G,) not negative, summing to 1.
        means: (G, d).
        variances: (G, d) not negative, of a diagonal mixture.
        covariances: (G, d, d) positive semidefinite, of a full one. Exactly one of the two is given.
    """

    weights: Floats
    means: Floats
    variances: Floats | None = None
    covariances: Floats | None = None

    def __post_init__(self) -> None:
        g, d = self.means.shape
        if (self.variances is None) == (self.covariances is None):
            raise ValueError("a mixture has either variances or covariances")
        if self.variances is not None and (self.variances.shape != (g, d) or np.any(self.variances < 0.0)):
            raise ValueError(f"variances of {g} components in {d} dimensions must fit and not be negative")
        if self.covariances is not None and self.covariances.shape != (g, d, d):
            raise ValueError(f"covariances {self.covariances.shape} of {g} components in {d} dimensions do not fit")
        if self.weights.shape != (g,) or np.any(self.weights < 0.0) or not abs(float(self.weights.sum()) - 1.0) < 1e-9:
            raise ValueError(f"{g} weights must not be negative and must sum to 1")


def mixture_from_moments(
    counts: Floats, sums: Floats, squares: Floats, *, counts_std: float = 0.0, sums_std: float = 0.0, squares_std: float = 0.0
) -> Mixture | None:
    """The diagonal mixture of one class, from moments of its components.

    Variances are squares / n - mean^2, plus (sums_std / n)^2, by which noise makes the squared mean too large. Each
    component's variances are shrunk towards the class's pooled ones t by expected squared error / observed squared distance,
    in the manner of Ledoit and Wolf (2004), with error q^2 + 2 t^2 / n an entry (q = squares_std / n; the second term is the
    sampling error of a normal variance); the pooled ones are shrunk towards their mean in the same way, for noise alone.
    Components whose count is within its noise are left out. Where all are, they are taken together as one.

    Args:
        counts: (G,) records.
        sums, squares: (G, d) sums of x and of x^2, elementwise.
        counts_std, sums_std, squares_std: noise of one entry of each.

    Returns:
        None where even all components together are within the noise.
    """
    g, d = sums.shape
    if counts.shape != (g,) or squares.shape != (g, d):
        raise ValueError(f"counts {counts.shape}, sums {sums.shape} and squares {squares.shape} do not fit")
    usable = np.array([not within_noise(float(n), counts_std) for n in counts])
    if not usable.any():
        root = g**0.5
        if within_noise(float(counts.sum()), counts_std * root):
            return None
        counts, sums, squares = counts.sum(keepdims=True), sums.sum(axis=0)[None], squares.sum(axis=0)[None]
        sums_std, squares_std, usable = sums_std * root, squares_std * root, np.array([True])
    n = counts[usable]
    means: Floats = sums[usable] / n[:, None]
    raw = squares[usable] / n[:, None] - means**2 + (sums_std / n[:, None]) ** 2
    total = float(n.sum())
    pooled = n @ raw / total
    q = squares_std * len(n) ** 0.5 / total
    u = float(pooled.mean())
    if not u > 0.0:  # the noise ate the variances, or there are none
        u = max(q, np.finfo(np.float64).tiny ** 0.5)
        return Mixture(n / total, means, np.full_like(means, u))
    alike = _intensity(d * q**2, np.sum((pooled - u) ** 2))
    target = np.maximum((1.0 - alike) * pooled + alike * u, _least(u, (1.0 - alike) * q))
    errors = np.sum((squares_std / n[:, None]) ** 2 + 2.0 * target**2 / n[:, None], axis=1)
    share = _intensity(errors, np.sum((raw - target) ** 2, axis=1))[:, None]
    least = _least(u, (1.0 - share) * (squares_std / n[:, None]))
    return Mixture(n / total, means, np.maximum((1.0 - share) * raw + share * target, least))


def sample(mixtures: Sequence[Mixture | None], numbers: Sequence[int], rng: np.random.Generator) -> tuple[Floats, Integers]:
    """Draw ``numbers[c]`` points of each class's mixture, class by class.

    Args:
        mixtures: K mixtures in the same dimension; None for a class of which nothing is known.
        numbers: K numbers of points; 0 where the mixture is None.
        rng: source of components and normal numbers.

    Returns:
        (points (n, d), labels (n,)).

    Raises:
        ValueError: nothing to sample from, numbers that do not fit or are negative, or points wanted of an unknown class.
    """
    known = [mixture for mixture in mixtures if mixture is not None]
    if len(numbers) != len(mixtures) or not known or min(numbers) < 0 or len({m.means.shape[1] for m in known}) != 1:
        raise ValueError("mixtures of one dimension and as many numbers, not negative, are sampled")
    points, labels = [], []
    for index, (mixture, number) in enumerate(zip(mixtures, numbers, strict=True)):
        if mixture is None:
            if number:
                raise ValueError(f"class {index} has no mixture to sample from")
            continue
        component = rng.choice(len(mixture.weights), size=number, p=mixture.weights)
        normal = rng.standard_normal((number, mixture.means.shape[1]))
        if mixture.variances is not None:
            deviation = normal * np.sqrt(mixture.variances)[component]
        elif mixture.covariances is not None:
            factors = factor(mixture.covariances)
            deviation = np.empty_like(normal)
            for g, root in enumerate(factors):
                deviation[component == g] = normal[component == g] @ root.T
        points.append(mixture.means[component] + deviation)
        labels.append(np.full(number, index, dtype=np.int64))
    return np.concatenate(points), np.concatenate(labels)


def _least(u: float, noise: Floats | float) -> Floats:
    """What a variance is raised to: what the noise left in it can fake, at least a trace of the mean variance u, at most u."""
    result: Floats = np.clip(np.asarray(noise, dtype=np.float64), _FLOOR * u, u)
    return result


def _intensity(error: Floats | float, distance: Floats) -> Floats:
    """error / distance, at most 1; 1 where the distance is 0."""
    error, distance = np.asarray(error, dtype=np.float64), np.asarray(distance, dtype=np.float64)
    result: Floats = np.where(error >= distance, 1.0, error / np.where(distance > 0.0, distance, 1.0))
    return result
