"""From an estimated covariance to one that can be inverted: projection on the cone, and shrinkage for each kind of error.

Which one fits: :func:`shrink_oas` or :func:`shrink_ledoit_wolf` where only sampling errs, :func:`shrink_noised` or
:func:`shrink_ridge` where noise does too. Ledoit-Wolf needs fourth moments, which no noised release holds: its callers refuse
it under noise. Nothing here reads a record.
"""

import math

import numpy as np

from veilsum_aggregation.arrays import Floats


def project_psd(matrix: Floats, floor: float = 0.0) -> Floats:
    """The symmetric matrix with eigenvalues of at least ``floor`` that is nearest to ``matrix`` in Frobenius norm."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    projected: Floats = (vectors * np.maximum(values, floor)) @ vectors.T
    return (projected + projected.T) / 2.0


def shrink_oas(matrix: Floats, number: float) -> Floats:
    """Oracle approximating shrinkage of a covariance towards its mean variance (Chen et al. 2010, equation 23).

    For covariances without noise: intensity min(1, (a + u^2) / ((n + 1) (a - u^2 / d))) with a the mean of the squared
    entries and u the mean variance, as scikit-learn has it.
    """
    d = len(matrix)
    mean_variance = float(np.trace(matrix)) / d
    alpha = float(np.mean(matrix**2))
    denominator = (number + 1.0) * (alpha - mean_variance**2 / d)
    intensity = 1.0 if denominator <= 0 else min(1.0, (alpha + mean_variance**2) / denominator)
    shrunk: Floats = (1.0 - intensity) * matrix + intensity * mean_variance * np.eye(d)
    return shrunk


def centred_fourth(number: float, total: Floats, second: Floats, cubic: Floats, quartic: float) -> float:
    """sum |x - m|^4 about the mean m = total / number, from raw sums: what Ledoit-Wolf needs beside second moments.

    Expanded from (|x|^2 - 2 m.x + |m|^2)^2. It cancels where |m| is far above the spread: centre features first.

    Args:
        number: records n.
        total: (d,) sum of x.
        second: (d, d) sum of x x^T.
        cubic: (d,) sum of |x|^2 x.
        quartic: sum of |x|^4.
    """
    m = total / number
    m2 = float(m @ m)
    linear = 4.0 * float(m @ cubic)
    return float(quartic + 4.0 * (m @ second @ m) - linear + 2.0 * m2 * np.trace(second) - 3.0 * number * m2 * m2)


def shrink_ledoit_wolf(matrix: Floats, number: float, fourth: float) -> Floats:
    """Shrink a covariance towards its mean variance u by Ledoit and Wolf (2004), as scikit-learn has it.

    Intensity min(b, a) / a with a = |S - u I|_F^2 / d and b = (fourth / n - |S|_F^2) / (d n).

    Args:
        matrix: (d, d) population covariance S (divided by n) about the sample mean.
        number: records n; at least 1.
        fourth: sum of |x - m|^4 over the records, the one sum beyond second moments that it needs; without noise.

    Raises:
        ValueError: ``number`` is below 1, or ``fourth`` is below n times the square of the trace, which no records can give.
    """
    if not number >= 1.0:
        raise ValueError(f"a covariance of {number} records cannot be shrunk")
    d = len(matrix)
    trace, square = float(np.trace(matrix)), float(np.sum(matrix**2))
    if fourth < number * trace**2 * (1.0 - 1e-6):  # by Cauchy-Schwarz; the slack is for rounding
        raise ValueError("the fourth moment does not fit the covariance")
    u = trace / d
    delta = (square - d * u**2) / d
    beta = min(max((fourth / number - square) / (d * number), 0.0), delta)
    intensity = beta / delta if beta > 0.0 else 0.0
    shrunk: Floats = (1.0 - intensity) * matrix + intensity * u * np.eye(d)
    return shrunk


def noise_ridge(noise_std: float, d: int, number: float) -> float:
    """What noise of ``noise_std`` on each entry of a sum of second moments can add to a direction: s sqrt(2 d) / n."""
    if not number > 0.0:
        raise ValueError(f"a covariance of {number} records has no ridge")
    return noise_std * math.sqrt(2.0 * d) / number


def shrink_ridge(matrix: Floats, ridge: float) -> Floats:
    """S + ridge I, of S (d, d) projected on the cone: definite where ``ridge`` is positive. See :func:`noise_ridge`.

    Raises:
        ValueError: ``ridge`` is negative.
    """
    if not ridge >= 0.0:
        raise ValueError("a ridge must not be negative")
    shrunk: Floats = project_psd(matrix) + ridge * np.eye(len(matrix))
    return shrunk


def shrink_noised(matrix: Floats, number: float, square_std: float, product_std: float) -> Floats:
    """Shrink a covariance whose second moments carry noise, variances and covariances each by their own reliability.

    Linear shrinkage in the manner of Ledoit and Wolf (2004), intensity = expected squared error / observed squared distance
    from the target: variances towards their mean u with error d (q^2 + 2 u^2 / n), covariances towards 0 with error
    d (d - 1) (p^2 + u^2 / n), where q = square_std / n and p = product_std / n are the noise of one entry and the second terms
    are sampling errors near the target. Then eigenvalues are raised to what the noise left in can fake, but never above u: the
    edge 2 p sqrt(d) of its spectrum (Wigner) times what remains of the covariances, or the noise q of a variance times what
    remains of the variances. Without the latter, where all covariances are taken for noise, a variance that noise took below
    zero would come out as nearly nothing, and an inverse would consist of that one direction.

    A mean variance u within its own noise q / sqrt(d) tells nothing: the result is q I. The result is positive definite.

    Args:
        matrix: (d, d) symmetric, possibly indefinite.
        number: effective number of records n.
        square_std, product_std: noise of the sums of x_i^2 and of x_i x_j.
    """
    d = len(matrix)
    variances = np.diag(matrix)
    u = float(np.mean(variances))
    q, p = square_std / number, product_std / number
    if not u > q / math.sqrt(d):  # the noise ate the variances: all that is left is that they are about alike
        return float(max(q, np.finfo(np.float64).tiny ** 0.5)) * np.eye(d)
    off = matrix - np.diag(variances)
    alike = _intensity(d * (q**2 + 2.0 * u**2 / number), float(np.sum((variances - u) ** 2)))
    apart = _intensity(d * (d - 1) * (p**2 + u**2 / number), float(np.sum(off**2)))
    shrunk = np.diag((1.0 - alike) * variances + alike * u) + (1.0 - apart) * off
    faked = max(2.0 * math.sqrt(d) * (1.0 - apart) * p, (1.0 - alike) * q)
    return project_psd(shrunk, floor=min(u, max(faked, 1e-4 * u)))


def _intensity(error: float, distance: float) -> float:
    return 1.0 if error >= distance else error / distance
