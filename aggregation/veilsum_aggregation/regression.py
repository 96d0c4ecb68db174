"""Linear regression from a noised matrix of second moments.

With z = c (1, x, y), c = min(1, C / |(1, x)|), the matrix M = sum z z' holds A = sum c^2 (1, x)(1, x)', b and y'y of a
weighted least-squares fit, which is unbiased as long as c depends on the covariates alone. The noise of M is isotropic:
standard deviation s on the diagonal and s / sqrt 2 above it.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import (
    FLAT,
    NO_VARIANCE,
    Answer,
    NotEstimable,
    Test,
    by_f,
    by_student,
    chi_squared,
    normal_figure,
    student_figure,
)
from veilsum_aggregation.moments import NOISE_FLOOR

WEAKEST = 1.0 / 3.0
"""The noise of A, as a share of its smallest eigenvalue, up to which intervals hold (measured: docs/results.md)."""


LEAST_VARIANCE, ROUNDED = 1e-6, 1e-12
"""The least residual variance of an outcome in [-1, 1] that is told with noise, and without: a column may lie in a thousandth
of its bounds."""


NO_REST = NotEstimable("the records do not vary about the fit", "the model's errors, or more records")
"""Of errors by what the fit leaves of the outcomes, where that is nothing."""


class Fit(ABC):
    """Estimated coefficients, the constant first, with a covariance for each of both errors where they are estimable.

    Attributes:
        names: of the coefficients, for reasons; empty where nobody reads them.
        numbers: which of them are of numbers, not of levels that a record has or has not.
    """

    names: tuple[str, ...] = ()
    numbers: frozenset[str] = frozenset()

    @property
    def untold(self) -> Floats:
        """(p, m), orthonormal: combinations that the records do not tell (:func:`told_directions`)."""
        return np.zeros((self.p, 0))

    @property
    @abstractmethod
    def coefficients(self) -> Floats:
        """(p,); where nothing is estimable, of a ridge that keeps them near 0."""

    @property
    @abstractmethod
    def covariances(self) -> tuple[Floats, Floats]:
        """Covariances of the coefficients (p, p), by noise and by sampling."""

    @property
    @abstractmethod
    def drowned(self) -> NotEstimable | None:
        """Why no interval holds; None where they do."""

    @property
    def p(self) -> int:
        """Number of coefficients."""
        return len(self.coefficients)

    def combination(self, weights: Floats) -> Answer:
        """A linear combination (p,) of the coefficients; one that the records do not tell is not estimable."""
        if (drowned := self.drowned or self.hidden(weights)) is not None:
            return drowned
        noise, sampling = (float(weights @ matrix @ weights) for matrix in self.covariances)
        return self.figure(weights, noise, sampling)

    def figure(self, weights: Floats, noise: float, sampling: float) -> Answer:
        """A combination (p,) that is told, of errors with these variances."""
        return normal_figure(float(weights @ self.coefficients), noise, sampling)

    def all_slopes(self) -> Test | NotEstimable:
        """The Wald test that every coefficient but the constant is 0."""
        drowned = self.drowned
        return self.wald(*self.covariances) if drowned is None else drowned

    def wald(self, noise: Floats, sampling: Floats) -> Test | NotEstimable:
        """The same of a fit that is told, by these covariances of the coefficients (p, p)."""
        told = self._told_slopes()
        noise, sampling = (told.T @ matrix[1:, 1:] @ told for matrix in (noise, sampling))
        return chi_squared(told.T @ self.coefficients[1:], noise, sampling, told.shape[1]) if told.size else NO_VARIANCE

    @property
    def untested(self) -> Floats:
        """Combinations (p, m) that no test is of."""
        return self.untold

    def _told_slopes(self) -> Floats:
        """Combinations of coefficients but the constant that are tested (p - 1, q)."""
        if not self.untested.size:
            return np.eye(self.p - 1)
        _, lengths, directions = np.linalg.svd(self.untested[1:].T)
        return np.asarray(directions[np.count_nonzero(lengths > NEARLY) :].T, dtype=np.float64)

    def hidden(self, weights: Floats) -> NotEstimable | None:
        """Why a combination (p,) is not told; None where it is."""
        if not self.untold.size:
            return None
        inside = self.untold.T @ weights
        if float(np.linalg.norm(inside)) <= NEARLY * float(np.linalg.norm(weights)):
            return None
        terms = self.named(self.untold @ inside)
        if terms in self.numbers:
            return NotEstimable(f"{terms} varies too little against the noise", "leave it out, or tighter bounds")
        if terms in self.names:
            return NotEstimable(
                f"no record has {terms}, or too few against the noise", "leave it out, or more records or epsilon"
            )
        return NotEstimable(f"the records do not tell {terms or 'some terms'} apart", "fewer terms")

    def named(self, direction: Floats) -> str:
        """The terms that a direction (p,) is mainly of."""
        size = np.abs(direction)
        return ", ".join(name for name, own in zip(self.names, size, strict=False) if own > 0.2 * float(size.max()))


NEARLY = 1e-6
"""A part of a combination that is not told is none below this share."""


FEW = 0.05
"""Share of the records that a level has at most, with 97.5%, if it is left out: it then hardly moves other terms."""


def told_directions(gram: Floats, std: float, grain: float = 0.0) -> tuple[Floats, Floats]:
    """What the records tell of the terms (1, x), and what they do not: orthonormal (p, k) and (p, p - k).

    With noise, a term whose sum of squares is within its noise is not told: a level that nobody has, or next to nobody.
    Of more than :data:`FEW` of the records that is not said. Without noise, neither is a combination that does not vary: of a
    constant column, of collinear terms, of a first level that nobody has.

    Args:
        gram: sum (1, x)(1, x)', of which the first entry is the number of records.
        std: of the noise on its diagonal.
        grain: what rounding changes an entry by at most, for each record.
    """
    p, sizes = len(gram), np.diag(gram)
    few = np.maximum(FEW * float(sizes[0]) - 2.0 * std, 0.0)
    used = [0, *(place for place in range(1, p) if sizes[place] > min(NOISE_FLOOR * std, few))]
    unit = np.eye(p)
    told, untold = unit[:, used], np.delete(unit, used, axis=1)
    if std > 0.0:
        return told, untold
    values, vectors = np.linalg.eigh(gram[np.ix_(used, used)])
    flat = values <= max(FLAT * float(values[-1]), grain * float(sizes[0]), 0.0)
    if not flat.any():
        return told, untold
    return told @ vectors[:, ~flat], np.hstack([untold, told @ vectors[:, flat]])


@dataclass(frozen=True)
class UntoldFit(Fit):
    """A fit of which nothing can be told, as its first sums show.

    Attributes:
        why: none can be.
        number: of coefficients.
    """

    why: NotEstimable
    number: int

    @property
    def drowned(self) -> NotEstimable:
        return self.why

    @property
    def coefficients(self) -> Floats:
        return np.zeros(self.number)

    @property
    def covariances(self) -> tuple[Floats, Floats]:
        return np.zeros((self.p, self.p)), np.zeros((self.p, self.p))


def too_weak(reach: float, smallest: float, most: float, terms: str = "") -> NotEstimable | None:
    """What to say of a matrix whose noise, of operator norm ``reach``, exceeds ``most`` of its smallest eigenvalue.

    Args:
        terms: of that eigenvalue's vector.
    """
    if smallest > 0.0 and reach < most * smallest:
        return None
    reason = f"a combination of {terms or 'the terms'} varies too little against the noise"
    if smallest <= 0.0:
        return NotEstimable(reason, "fewer terms, tighter bounds, more records, or more epsilon")
    factor = reach / (most * smallest)
    return NotEstimable(reason, f"about {factor:.1f} times the records or the epsilon; or fewer terms, or tighter bounds")


@dataclass(frozen=True)
class LinearFit(Fit):
    """A linear fit.

    Attributes:
        moments: M (p + 1, p + 1), the outcome last.
        std: s.
        names, numbers: as of :class:`Fit`.
        grain: what rounding changes an entry of M by at most, for each record.
    """

    moments: Floats
    std: float
    names: tuple[str, ...] = ()
    grain: float = 0.0
    numbers: frozenset[str] = frozenset()

    @property
    def p(self) -> int:
        return len(self.moments) - 1

    @cached_property
    def _directions(self) -> tuple[Floats, Floats]:
        return told_directions(self.moments[: self.p, : self.p], self.std, self.grain)

    @property
    def untold(self) -> Floats:
        return self._directions[1]

    @property
    def reach(self) -> float:
        """The operator norm that the noise of A has, about s sqrt(2 p)."""
        return self.std * math.sqrt(2.0 * self._directions[0].shape[1])

    @cached_property
    def _inner(self) -> Floats:
        """A as far as it is told, (k, k)."""
        told = self._directions[0]
        return np.asarray(told.T @ self.moments[: self.p, : self.p] @ told, dtype=np.float64)

    @cached_property
    def _spectrum(self) -> tuple[Floats, Floats]:
        values, vectors = np.linalg.eigh(self._inner)
        return values, vectors

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue of A."""
        return float(self._spectrum[0][0])

    @property
    def drowned(self) -> NotEstimable | None:
        told = self._directions[0]
        if told.shape[1] == 0:
            return NotEstimable("no record has all the terms and the outcome")
        if float(self.moments[0, 0]) < told.shape[1] + 0.5:  # weights are 1 at most
            return NotEstimable("there are not more records than terms", "fewer terms, or more records")
        if self.std == 0.0 and not self._total > max(ROUNDED, 4.0 * self.grain) * float(self.moments[0, 0]):
            return NotEstimable("the outcome does not vary")
        return too_weak(self.reach, self.smallest, WEAKEST, self.named(told @ self._spectrum[1][:, 0]))

    @property
    def _about_mean(self) -> Floats:
        """u = (-mean, 0, .., 1): u' M u is the sum of squares about the mean."""
        u = np.zeros(self.p + 1)
        u[0], u[-1] = -float(self.moments[0, -1]) / max(float(self.moments[0, 0]), 1.0), 1.0
        return u

    @property
    def _total(self) -> float:
        """Sum of squares of the outcome about its mean."""
        return float(self._about_mean @ self.moments @ self._about_mean)

    @cached_property
    def coefficients(self) -> Floats:
        """(p,): least squares where it is estimable; else with a ridge that lifts A above its noise."""
        told = self._directions[0]
        ridge = 0.0 if self.drowned is None else max(0.0, self.reach / WEAKEST - self.smallest) if told.size else 0.0
        b = told.T @ self.moments[: self.p, self.p]
        return np.asarray(told @ np.linalg.solve(self._inner + ridge * np.eye(len(self._inner)), b), dtype=np.float64)

    @cached_property
    def inverse(self) -> Floats:
        """A^-1 (p, p), of what is told."""
        told = self._directions[0]
        return np.asarray(told @ np.linalg.inv(self._inner) @ told.T, dtype=np.float64)

    @cached_property
    def residual_variance(self) -> float:
        """Variance of the outcome about the fit: one standard error of its noise above the estimate, and at least
        :data:`LEAST_VARIANCE` with noise. Without, at least what rounding may hide.

        The sum of squares is v' M v with v = (beta, -1), whose noise is s |v|^2, and whose rounding at most sum |v|^2 grains.
        """
        v = np.append(self.coefficients, -1.0)
        noise = self.std * float(v @ v)
        weight = max(float(self.moments[0, 0]), 1.0)
        hidden = max(self.grain * float(np.abs(v).sum()) ** 2, ROUNDED)
        least = LEAST_VARIANCE if self.std > 0.0 else min(hidden, LEAST_VARIANCE)
        return max(float(v @ self.moments @ v) + noise, least * weight) / self.freedom

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the residuals."""
        return max(max(float(self.moments[0, 0]), 1.0) - float(self._directions[0].shape[1]), 1.0)

    def figure(self, weights: Floats, noise: float, sampling: float) -> Answer:
        """With Student's interval, as far as the error is of sampling."""
        errors = math.sqrt(max(noise, 0.0)), math.sqrt(max(sampling, 0.0))
        return by_student(student_figure(float(weights @ self.coefficients), *errors, self.freedom))

    def wald(self, noise: Floats, sampling: Floats) -> Test | NotEstimable:
        """By F, of the degrees of freedom that the variance has of which a part is known (Satterthwaite 1946)."""
        found = super().wald(noise, sampling)
        return (
            found if isinstance(found, NotEstimable) else by_f(found, self.freedom / max(1.0 - found.noise_share, 1e-3) ** 2)
        )

    @cached_property
    def covariances(self) -> tuple[Floats, Floats]:
        """Covariances of the coefficients (p, p), by noise and by sampling.

        A^-1 (s^2 / 2) ((1 + |beta|^2) I + beta beta') A^-1, and s_e^2 A^-1, which is a little more than the weights c^2 <= 1
        need.
        """
        inverse, beta = self.inverse, self.coefficients
        middle = self.std**2 / 2.0 * ((1.0 + float(beta @ beta)) * np.eye(self.p) + np.outer(beta, beta))
        return np.asarray(inverse @ middle @ inverse), np.asarray(self.residual_variance * inverse)

    def r_squared(self) -> Answer:
        """1 - RSS / TSS of the weighted fit.

        Both are linear in M: RSS = v' M v, TSS = u' M u, so the noise is s times the Frobenius norm
        of the derivative. Sampling by Olkin and Finn (1995): 4 R^2 (1 - R^2)^2 / n.
        """
        if (drowned := self.drowned) is not None:
            return drowned
        v, u = np.append(self.coefficients, -1.0), self._about_mean
        number = max(float(self.moments[0, 0]), 1.0)
        rest, total = float(v @ self.moments @ v), self._total
        if not total > max(4.0 * self.std * float(u @ u), max(FLAT, self.grain) * number):
            return NotEstimable(
                "the outcome varies too little against the noise", "more records or epsilon, or tighter bounds"
            )
        value = 1.0 - rest / total
        slope = np.outer(u, u) * rest / total**2 - np.outer(v, v) / total
        noise = (self.std * float(np.linalg.norm(slope))) ** 2
        within = min(max(value, 0.0), 1.0)
        return normal_figure(value, noise, 4.0 * within * (1.0 - within) ** 2 / number).within(0.0, 1.0)
