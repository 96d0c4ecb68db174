"""Losses of numbers, counts and times, each a function of a record's own scores and outcome.

Scores z (n, k) and outcomes (n, t) go in, gradients by the scores (n, k) come out; all of it elementwise. Gradients are also
said of one record's symbols, (k,) and (t,), as rows are (:mod:`veilsum_privacy.mechanism.rows.symbols`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.mechanism.rows.symbols import Value

LARGEST_EXPONENT = 700.0
"""Scores are cut to this before their exponential is taken, which is then finite."""


class OutcomeLoss(ABC):
    """A loss of one record.

    Attributes:
        scores: k, how many a model has to give.
        outcomes: t, how many numbers the outcome of a record is.
    """

    scores: int = 1
    outcomes: int = 1

    @abstractmethod
    def gradient(self, scores: Value, outcomes: Value) -> Value:
        """Derivatives (n, k) of the losses by scores (n, k), for outcomes (n, t)."""

    @abstractmethod
    def values(self, scores: Floats, outcomes: Floats) -> Floats:
        """The losses (n,), up to what depends on the outcomes alone."""

    @abstractmethod
    def constant(self, means: Floats) -> Floats:
        """Scores (k,) of the best constant prediction where outcomes have these means (t,)."""

    @abstractmethod
    def curvature(self, means: Floats) -> float:
        """Largest second derivative by a score, on average over records, at the best constant prediction."""


class Squared(OutcomeLoss):
    """(z - y)^2 / 2: the score is the mean."""

    def gradient(self, scores: Value, outcomes: Value) -> Value:
        return scores - outcomes

    def values(self, scores: Floats, outcomes: Floats) -> Floats:
        errors: Floats = (scores - outcomes)[:, 0] ** 2 / 2.0
        return errors

    def constant(self, means: Floats) -> Floats:
        return means

    def curvature(self, means: Floats) -> float:
        return 1.0


class Huber(Squared):
    """(z - y)^2 / 2 up to an error of h, linear beyond (Huber 1964): few outliers hardly move it."""

    def __init__(self, bend: float) -> None:
        self.bend = bend

    def gradient(self, scores: Value, outcomes: Value) -> Value:
        return np.clip(scores - outcomes, -self.bend, self.bend)

    def values(self, scores: Floats, outcomes: Floats) -> Floats:
        error = np.abs(scores - outcomes)[:, 0]
        losses: Floats = np.where(error <= self.bend, error**2 / 2.0, self.bend * (error - self.bend / 2.0))
        return losses


class Poisson(OutcomeLoss):
    """exp(z) - y z, in a unit of u: the score is the logarithm of the mean count over u, and y the count over u."""

    def gradient(self, scores: Value, outcomes: Value) -> Value:
        return np.exp(np.minimum(scores, LARGEST_EXPONENT)) - outcomes

    def values(self, scores: Floats, outcomes: Floats) -> Floats:
        losses: Floats = (np.exp(np.minimum(scores, LARGEST_EXPONENT)) - outcomes * scores)[:, 0]
        return losses

    def constant(self, means: Floats) -> Floats:
        return np.log(np.maximum(means, 1e-6))

    def curvature(self, means: Floats) -> float:
        return max(float(means[0]), 1e-6)


class Hazards(OutcomeLoss):
    """sum_j (e_j exp(z_j) - d_j z_j): hazards constant in periods, each period's logarithm a score of its own.

    Outcomes are the time e_j that a record was at risk in each of J periods, then d_j, 1 where its event fell into one. It is
    the likelihood of piecewise exponential times (Friedman 1982); with a network's scores, PC-Hazard of Kvamme and Borgan
    (2021). One period is exponential regression.
    """

    def __init__(self, periods: int) -> None:
        self.scores, self.outcomes = periods, 2 * periods

    def gradient(self, scores: Value, outcomes: Value) -> Value:
        at_risk, events = outcomes[..., : self.scores], outcomes[..., self.scores :]
        return at_risk * np.exp(np.minimum(scores, LARGEST_EXPONENT)) - events

    def values(self, scores: Floats, outcomes: Floats) -> Floats:
        at_risk, events = outcomes[:, : self.scores], outcomes[:, self.scores :]
        losses: Floats = (at_risk * np.exp(np.minimum(scores, LARGEST_EXPONENT)) - events * scores).sum(axis=1)
        return losses

    def constant(self, means: Floats) -> Floats:
        at_risk, events = means[: self.scores], means[self.scores :]
        return np.log(np.maximum(events, 1e-6) / np.maximum(at_risk, 1e-6))

    def curvature(self, means: Floats) -> float:
        return max(float(means[self.scores :].max()), 1e-6)


def intervals(times: Floats, events: NDArray[np.bool_], edges: Sequence[float]) -> Floats:
    """Outcomes (n, 2 J) of :class:`Hazards` for times (n,) and whether they end in the event.

    Args:
        edges: J + 1, from 0 to the horizon. Time at risk is in units of the horizon; an event at the horizon or later is none.
    """
    starts, ends = np.array(edges[:-1]), np.array(edges[1:])
    horizon = ends[-1]
    at_risk = np.clip(times[:, None] - starts, 0.0, ends - starts) / horizon
    fell = (np.searchsorted(ends, times)[:, None] == np.arange(len(ends))) & (events & (times < horizon))[:, None]
    return np.concatenate([at_risk, fell.astype(np.float64)], axis=1)
