"""Linear regression from a noised matrix of second moments.

With z = c (1, x, y), c = min(1, C / |(1, x)|), the matrix M = sum z z' holds A = sum c^2 (1, x)(1, x)', b and y'y of a
weighted least-squares fit, which is unbiased as long as c depends on the covariates alone. The noise of M is isotropic:
standard deviation s on the diagonal and s / sqrt 2 above it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.figures import Answer, Drowned, Test, chi_squared, normal_figure

Floats = NDArray[np.float64]

WEAKEST = 1.0 / 3.0
"""The noise of A, as a share of its smallest eigenvalue, up to which intervals hold (measured: docs/results.md)."""


class Fit(ABC):
    """Estimated coefficients, the constant first, with a covariance for each of both errors where they are estimable."""

    @property
    @abstractmethod
    def coefficients(self) -> Floats:
        """(p,); where nothing is estimable, of a ridge that keeps them near 0."""

    @property
    @abstractmethod
    def covariances(self) -> tuple[Floats, Floats]:
        """Of the coefficients (p, p), by noise and by sampling."""

    @property
    @abstractmethod
    def drowned(self) -> Drowned | None:
        """Why no interval holds; None where they do."""

    @property
    def p(self) -> int:
        """Number of coefficients."""
        return len(self.coefficients)

    def combination(self, weights: Floats) -> Answer:
        """A linear combination (p,) of the coefficients."""
        if (drowned := self.drowned) is not None:
            return drowned
        noise, sampling = (float(weights @ matrix @ weights) for matrix in self.covariances)
        return normal_figure(float(weights @ self.coefficients), noise, sampling)

    def all_slopes(self) -> Test | Drowned:
        """The Wald test that every coefficient but the constant is 0."""
        if (drowned := self.drowned) is not None:
            return drowned
        noise, sampling = (matrix[1:, 1:] for matrix in self.covariances)
        return chi_squared(self.coefficients[1:], noise, sampling, self.p - 1)


def too_weak(reach: float, smallest: float, most: float) -> Drowned | None:
    """What to say of a matrix whose noise, of operator norm ``reach``, exceeds ``most`` of its smallest eigenvalue."""
    if smallest > 0.0 and reach < most * smallest:
        return None
    reason = "a combination of the terms varies too little against the noise"
    if smallest <= 0.0:
        return Drowned(reason, "fewer terms, tighter bounds, more records, or more epsilon")
    factor = reach / (most * smallest)
    return Drowned(reason, f"about {factor:.1f} times the records or the epsilon; or fewer terms, or tighter bounds")


@dataclass(frozen=True)
class LinearFit(Fit):
    """A linear fit.

    Attributes:
        moments: M (p + 1, p + 1), the outcome last.
        std: s.
    """

    moments: Floats
    std: float

    @property
    def p(self) -> int:
        return len(self.moments) - 1

    @property
    def reach(self) -> float:
        """The operator norm that the noise of A has, about s sqrt(2 p)."""
        return self.std * math.sqrt(2.0 * self.p)

    @cached_property
    def smallest(self) -> float:
        """The smallest eigenvalue of A."""
        return float(np.linalg.eigvalsh(self.moments[: self.p, : self.p])[0])

    @property
    def drowned(self) -> Drowned | None:
        return too_weak(self.reach, self.smallest, WEAKEST)

    @cached_property
    def coefficients(self) -> Floats:
        """(p,): least squares where it is estimable; else with a ridge that lifts A above its noise."""
        ridge = 0.0 if self.drowned is None else max(0.0, self.reach / WEAKEST - self.smallest)
        a, b = self.moments[: self.p, : self.p], self.moments[: self.p, self.p]
        return np.asarray(np.linalg.solve(a + ridge * np.eye(self.p), b), dtype=np.float64)

    @cached_property
    def residual_variance(self) -> float:
        """Of the outcome about the fit: one standard error of its noise above the estimate, and not below 1e-6.

        The sum of squares is v' M v with v = (beta, -1), whose noise is s |v|^2.
        """
        v = np.append(self.coefficients, -1.0)
        noise = self.std * float(v @ v)
        weight = max(float(self.moments[0, 0]), 1.0)
        return max(float(v @ self.moments @ v) + noise, 1e-6 * weight) / weight

    @cached_property
    def covariances(self) -> tuple[Floats, Floats]:
        """Of the coefficients (p, p), by noise and by sampling.

        A^-1 (s^2 / 2) ((1 + |beta|^2) I + beta beta') A^-1, and s_e^2 A^-1, which is a little more than the weights c^2 <= 1
        need.
        """
        inverse = np.linalg.inv(self.moments[: self.p, : self.p])
        beta = self.coefficients
        middle = self.std**2 / 2.0 * ((1.0 + float(beta @ beta)) * np.eye(self.p) + np.outer(beta, beta))
        return np.asarray(inverse @ middle @ inverse), np.asarray(self.residual_variance * inverse)

    def r_squared(self) -> Answer:
        """1 - RSS / TSS of the weighted fit.

        Both are linear in M: RSS = v' M v, TSS = u' M u with u = (-mean, 0, .., 1), so the noise is s times the Frobenius norm
        of the derivative. Sampling by Olkin and Finn (1995): 4 R^2 (1 - R^2)^2 / n.
        """
        if (drowned := self.drowned) is not None:
            return drowned
        v, u = np.append(self.coefficients, -1.0), np.zeros(self.p + 1)
        number = max(float(self.moments[0, 0]), 1.0)
        u[0], u[-1] = -float(self.moments[0, -1]) / number, 1.0
        rest, total = float(v @ self.moments @ v), float(u @ self.moments @ u)
        if not total > 4.0 * self.std * float(u @ u):
            return Drowned("the outcome varies too little against the noise", "more records or epsilon, or tighter bounds")
        value = 1.0 - rest / total
        slope = np.outer(u, u) * rest / total**2 - np.outer(v, v) / total
        noise = (self.std * float(np.linalg.norm(slope))) ** 2
        within = min(max(value, 0.0), 1.0)
        return normal_figure(value, noise, 4.0 * within * (1.0 - within) ** 2 / number).within(0.0, 1.0)
