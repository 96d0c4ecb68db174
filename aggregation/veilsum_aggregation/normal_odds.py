"""A logistic regression of one normal term by sums at the coefficients 0: where the Newton steps of a recalibration begin.

There every mean is 1/2, so that score and information are sums and moments of the term as it is shortened. From these follow
mean and deviation of the term by Gauss-Hermite quadrature, and from them intercept and slope by Newton's method. The
recalibration of a model that begins here is that of Cox (1958, Biometrika 45, 562).
"""

import math

import numpy as np

from veilsum_aggregation import families, newton
from veilsum_aggregation.arrays import Floats

RATES, LEAST_VARIANCE, FARTHEST, STEEPEST = (0.02, 0.98), 0.01, 5.0, (5.0, 2.0)
"""What the first point is kept within: share of the second class, variance of the term, its mean and deviation, and both
coefficients for a standardised term; where noise leaves nothing else, it is then still one to start from."""


def of_normal_odds(gram: Floats, score: Floats, length: float) -> Floats:
    """Intercept and slope (2,) that explain a score at 0 if the term is normal, with the mean and variance of its moments.

    Args:
        gram: of (1, term), (2, 2), weighted by c^2.
        score: sum c^2 (1, term) (y - 1/2), (2,).
        length: C.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights, z = weights / weights.sum(), np.column_stack([np.ones(20), nodes])
    first, second = gram[0, 1] / gram[0, 0], gram[1, 1] / gram[0, 0]
    middle, spread, variance = first, 1.0, max(second - first**2, LEAST_VARIANCE)
    for _ in range(30):  # mean and deviation without weights, such that these are those with weights
        term = middle + spread * nodes
        short = np.minimum(1.0, length / np.hypot(1.0, term))
        own = weights * short**2 / (weights @ short**2)
        middle += first - own @ term
        spread *= math.sqrt(variance / max(own @ term**2 - (own @ term) ** 2, LEAST_VARIANCE))
        middle, spread = (float(np.clip(value, -FARTHEST, FARTHEST)) for value in (middle, spread))
    number = gram[0, 0] / float(weights @ short**2)
    share = 0.5 + score[0] / gram[0, 0]
    found = np.array([families.link("logistic", float(np.clip(share, *RATES))), 0.0])
    wanted, weighted = np.array([score[0], (score[1] - middle * score[0]) / spread]) / number, z.T * weights * short**2
    for _ in range(50):
        mean, of_mean = families.mean_of("logistic", z @ found, 1.0)
        step = np.linalg.solve(weighted * of_mean @ z, wanted - weighted @ (mean - 0.5))
        found = np.clip(found + newton.limited(step, 0.5), (-STEEPEST[0], -STEEPEST[1]), STEEPEST)
    return np.array([found[0] - found[1] * middle / spread, found[1] / spread])
