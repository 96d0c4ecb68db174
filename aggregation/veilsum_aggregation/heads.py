"""Linear classification heads computed from released moments: linear discriminant analysis. No training, no records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LinearHead:
    """Scores ``x @ weights.T + bias``; the class with the largest score is predicted.

    Attributes:
        weights: (K, d).
        bias: (K,).
        classes: K names.
    """

    weights: Floats
    bias: Floats
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.weights.ndim != 2 or self.bias.shape != (len(self.weights),) or len(self.classes) != len(self.weights):
            raise ValueError(
                f"weights {self.weights.shape}, bias {self.bias.shape} and {len(self.classes)} classes do not fit"
            )

    def scores(self, features: Floats) -> Floats:
        """Scores (n, K) of features (n, d)."""
        result: Floats = features @ self.weights.T + self.bias
        return result

    def predict(self, features: Floats) -> NDArray[np.int64]:
        """Index of the predicted class (n,) for features (n, d)."""
        best: NDArray[np.int64] = np.argmax(self.scores(features), axis=1).astype(np.int64)
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
    if not np.all(priors > 0):
        raise ValueError("priors must be positive")
    try:
        weights: Floats = scipy.linalg.cho_solve(scipy.linalg.cho_factor(covariance, lower=True), means.T).T
    except scipy.linalg.LinAlgError as error:
        raise ValueError("the covariance is not positive definite") from error
    bias = -0.5 * np.einsum("kd,kd->k", means, weights) + np.log(priors / priors.sum())
    return LinearHead(weights, bias, classes)
