"""Linear classification heads: linear discriminants from released moments, and averages of heads. No training, no records."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers


@dataclass(frozen=True)
class LinearHead:
    """Scores ``x @ weights.T + bias``; the class with the largest score is predicted.

    Attributes:
        weights: (K, d).
        bias: (K,).
        classes: K names.
        centre: (d,), taken off the features first.
        clip: L2 norm that features are then scaled down to, as those were that the head was made of; None for neither.
    """

    weights: Floats
    bias: Floats
    classes: tuple[str, ...]
    centre: Floats | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.weights.ndim != 2 or self.bias.shape != (len(self.weights),) or len(self.classes) != len(self.weights):
            raise ValueError(
                f"weights {self.weights.shape}, bias {self.bias.shape} and {len(self.classes)} classes do not fit"
            )
        if (self.centre is None) != (self.clip is None) or (
            self.centre is not None and self.centre.shape != self.weights.shape[1:]
        ):
            raise ValueError("a head has a centre of its features and a clip, or neither")

    def scores(self, features: Floats) -> Floats:
        """Scores (n, K) of features (n, d)."""
        x = features
        if self.centre is not None and self.clip is not None:
            x = x - self.centre
            x = x * (self.clip / np.maximum(np.linalg.norm(x, axis=1), self.clip))[:, None]
        result: Floats = x @ self.weights.T + self.bias
        return result

    def predict(self, features: Floats) -> Integers:
        """Index of the predicted class (n,) for features (n, d)."""
        best: Integers = np.argmax(self.scores(features), axis=1).astype(np.int64)
        return best


def lda_head(means: Floats, covariance: Floats, priors: Floats, classes: tuple[str, ...]) -> LinearHead:
    """Linear discriminant analysis with a common within-class covariance (Hastie et al., Elements, equation 4.10).

    w_c = S^-1 mu_c and b_c = -mu_c . w_c / 2 + log pi_c, by Cholesky.

    Args:
        means: (K, d) class means.
        covariance: (d, d) positive definite within-class covariance S.
        priors: (K,) positive class probabilities pi; they are normalised.
        classes: K names.

    Raises:
        ValueError: the covariance is not positive definite, or a prior is not positive.
    """
    from scipy.linalg import cho_factor, cho_solve  # a fifth of what a coordinator takes to start

    if not np.all(priors > 0):
        raise ValueError("priors must be positive")
    try:
        weights: Floats = cho_solve(cho_factor(covariance, lower=True), means.T).T
    except np.linalg.LinAlgError as error:
        raise ValueError("the covariance is not positive definite") from error
    bias = -0.5 * np.einsum("kd,kd->k", means, weights) + np.log(priors / priors.sum())
    return LinearHead(weights, bias, classes)


def indicator_ridge(counts: Floats, sums: Floats, second: Floats, ridge: float, classes: tuple[str, ...]) -> LinearHead:
    """Ridge regression of the classes' indicators (Hastie et al., Elements, section 4.2); no ridge holds its intercept.

    With A = sum (x - m)(x - m)^T, projected on the positive semidefinite matrices, and B = sum (e_y - p) x^T for the mean m
    and the classes' shares p: W = B (A + r I)^-1 and b = p - W m. The largest score is scikit-learn's RidgeClassifier's.

    Args:
        counts: (K,), not negative, positive in sum.
        sums: (K, d) of the features by class.
        second: (d, d) second moments of all records.
        ridge: r, positive, against a sum over records.
        classes: K names.
    """
    number, total = float(counts.sum()), sums.sum(axis=0)
    lengths, axes = np.linalg.eigh(second - np.outer(total, total) / number)
    cross = sums - np.outer(counts / number, total)
    weights: Floats = cross @ axes / (np.maximum(lengths, 0.0) + ridge) @ axes.T
    return LinearHead(weights, counts / number - weights @ total / number, classes)


@dataclass(frozen=True)
class NoiseInWeights:
    """What noise of the class sums alone would put into the weights of a discriminant.

    Attributes:
        share: of the weights' squared norm, expected if all classes had one mean; at most 1.
        explains: whether it explains all of it: the squared norm is within two standard deviations of what noise alone gives.
    """

    share: float
    explains: bool


def noise_in_weights(counts: Floats, sums: Floats, covariance: Floats, sums_std: float) -> NoiseInWeights:
    """How much of the weights of :func:`lda_head` noise of the class sums explains, the covariance S taken as it is.

    The norm of weights w is that of their scores within a class, |S^1/2 w|. With class means m_c of noise
    t_c = sums_std / n_c a coordinate, and m their mean weighted by 1 / t_c^2, the statistic
    Q = sum_c (m_c - m)^T S^-1 (m_c - m) / t_c^2 has for classes of one mean expectation (K - 1) tr S^-1 and variance
    2 (K - 1) tr S^-2 (a quadratic form of normal variables). A direction in which S is far too small fills Q with noise.

    Args:
        counts: (K,) positive released counts.
        sums: (K, d) released sums.
        covariance: (d, d) positive definite.
        sums_std: noise of one entry of the sums; 0 gives a share of 0.
    """
    if len(counts) < 2 or not sums_std > 0.0:
        return NoiseInWeights(0.0, False)
    precision = (counts / sums_std) ** 2
    means = sums / counts[:, None]
    apart = means - precision @ means / precision.sum()
    inverse = np.linalg.inv(covariance)
    found = float(np.einsum("k,kd,de,ke->", precision, apart, inverse, apart))
    freedom = len(counts) - 1.0
    expected, spread = freedom * float(np.trace(inverse)), np.sqrt(2.0 * freedom * float(np.sum(inverse**2)))
    return NoiseInWeights(min(1.0, expected / found) if found > 0.0 else 1.0, bool(found <= expected + 2.0 * spread))


def average_heads(heads: Sequence[LinearHead]) -> LinearHead:
    """One-shot average of local heads (O-FedAvg), class by class, over the heads that vote on the class.

    Every head has one vote on each class that it names. A softmax head trained over all classes says of one that its site
    lacks only that it did not occur, and that is a vote too: on digits of four domains, leaving such votes out, or weighing
    heads by their counts, did worse than equal votes, and equal votes need no count.

    Scores of a softmax head are told up to one linear function common to all classes. All heads must be of one gauge, as
    those of :func:`veilsum_aggregation.softmax.fit_softmax` are: rows and biases sum to 0 over the head's classes.

    Args:
        heads: S heads on the same features; each names its classes, in any order.

    Returns:
        A head of K classes, in the order in which the heads first name them.

    Raises:
        ValueError: no heads, or other numbers of features.
    """
    if not heads or len({head.weights.shape[1] for head in heads}) != 1:
        raise ValueError("heads on the same features are averaged, at least one")
    classes = tuple(dict.fromkeys(name for head in heads for name in head.classes))
    shape = (len(heads), len(classes))
    place = {name: index for index, name in enumerate(classes)}
    votes, stacked = np.zeros(shape), np.zeros((*shape, heads[0].weights.shape[1] + 1))
    for s, head in enumerate(heads):
        columns = [place[name] for name in head.classes]
        votes[s, columns] = 1.0
        stacked[s, columns] = np.column_stack([head.weights, head.bias])
    mean: Floats = np.einsum("sk,skd->kd", votes / votes.sum(axis=0), stacked)
    return LinearHead(mean[:, :-1], mean[:, -1], classes)
