"""How well a classifier does, with closed-form 95% intervals: from counts, from scores, and from noised counts.

Figures of counts and scores without noise have the records as a sample; all arithmetic is in float64.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from veilsum_aggregation.arrays import Bools, Floats, Integers
from veilsum_aggregation.figures import (
    FLAT,
    Z95,
    Answer,
    Figure,
    NotEstimable,
    exact_mean,
    hidden_share,
    normal_figure,
    project,
)
from veilsum_aggregation.moments import within_noise
from veilsum_aggregation.tables import count, share


def f1_of_overlap(overlap: float) -> float:
    """F1 = 2 J / (1 + J), for J = TP / (TP + FP + FN)."""
    return 2.0 * overlap / (1.0 + overlap)


def f1(true_positive: float, others: float, cells: int = 1, std: float = 0.0) -> Answer:
    """F1 from TP and from ``others`` = FP + FN, a sum of so many cells of noise ``std``: the share J, its limits by
    :func:`f1_of_overlap`, its errors by dF1/dJ = 2 / (1 + J)^2."""
    overlap = share(true_positive, true_positive + others, (1, cells), std)
    if isinstance(overlap, NotEstimable):
        return overlap
    slope = 2.0 / (1.0 + overlap.value) ** 2
    value, low, high = map(f1_of_overlap, (overlap.value, overlap.low, overlap.high))
    return Figure(value, slope * overlap.noise_error, slope * overlap.sampling_error, low, high)


def mean_recall(recalls: Iterable[Answer]) -> Answer:
    """The mean of independent proportions, of those that there are: the distances to each one's limits are added as standard
    errors are (Zou and Donner 2008)."""
    rates = [recall for recall in recalls if isinstance(recall, Figure)]
    if not rates:
        return NotEstimable("there is no record of any class")
    mean, k = math.fsum(rate.value for rate in rates) / len(rates), len(rates)
    noise = math.hypot(*(rate.noise_error for rate in rates)) / k
    sampling = math.hypot(*(rate.sampling_error for rate in rates)) / k
    low = math.hypot(*(rate.value - rate.low for rate in rates)) / k
    high = math.hypot(*(rate.high - rate.value for rate in rates)) / k
    return Figure(mean, noise, sampling, mean - low, mean + high).within(0.0, 1.0)


def mean_of(values: Floats, low: float, high: float) -> Figure:
    """The mean of values (n,), one or more, that lie in [low, high]: :func:`~veilsum_aggregation.figures.exact_mean`."""
    return exact_mean(float(len(values)), float(values.mean()), float(values.var()), low, high)


def auc(scores: Floats, positive: Bools) -> float:
    """Area under the ROC curve: how often a positive record scores above a negative one, ties counting half.

    Args:
        scores: (n,) finite.
        positive: (n,), some True and some False.
    """
    above, negative = scores[positive], np.sort(scores[~positive])
    below = np.searchsorted(negative, above, "left") + np.searchsorted(negative, above, "right")
    return float(below.sum()) / (2.0 * len(above) * len(negative))


MANY = 30
"""Records of either class from which on what they show of the area's variance is taken for it, as it is."""


def auc_figure(area: float, positive: float, negative: float, sampling: float = 0.0, noise: float = 0.0) -> Figure:
    """The area with its interval by Newcombe (2006, method 5): all a with (area - a)^2 <= z^2 (r V(a) + noise), with V
    by Hanley and McNeil (1982), V(a) = a (1 - a) (1 + h (1 - a) / (2 - a) + h a / (1 + a)) / (m n), h = (m + n) / 2 - 1.

    It has no zero width where the classes are apart altogether. r makes of V(area) what the records themselves show; of few
    records it is 1 at least. Of an area that is mostly noise, V(a) is not much below V(area): few such are told, and these may
    lie far away.

    Args:
        area: in [0, 1].
        positive, negative: records.
        sampling: the variance that they show; 0 where nobody looked.
        noise: variance.
    """
    h = (positive + negative) / 2.0 - 1.0

    def variance(a: float) -> float:
        return a * (1 - a) * (1 + h * (1 - a) / (2 - a) + h * a / (1 + a)) / (positive * negative)

    own = variance(area)
    least = own * noise / (noise + max(own, sampling)) if noise > 0.0 else 0.0
    r = sampling / own if own > 0.0 and sampling > (own if min(positive, negative) < MANY else 0.0) else 1.0

    def excess(a: float) -> float:
        return (area - a) ** 2 - Z95**2 * (r * max(variance(a), least) + noise)

    near = 1e-9  # at the ends themselves V is 0
    from scipy.optimize import brentq  # a third of a process's start, where nobody asks for an interval

    low, high = 0.0, 1.0
    if area > 0.0 and excess(0.0) > 0.0:
        low = float(brentq(excess, 0.0, min(area, 1.0 - near), xtol=1e-12))
    if area < 1.0 and excess(1.0) > 0.0:
        high = float(brentq(excess, max(area, near), 1.0, xtol=1e-12))
    return Figure(area, math.sqrt(noise), math.sqrt(r * own), low, high)


class Reliability(NamedTuple):
    """Records by how sure the classifier was, in equal bins.

    Attributes:
        numbers: (B,) records.
        confidence, accuracy: (B,) mean of the records; NaN in empty bins.
        error: expected calibration error, the mean over records of |accuracy - confidence| of their bins (Guo et al. 2017);
            its interval is as if the bins' signs were known; where calibration is good, the error itself is too large by
            about what chance does in each bin.
    """

    numbers: Integers
    confidence: Floats
    accuracy: Floats
    error: Figure


def bin_of(values: Floats, bins: int, low: float) -> Integers:
    """Which of ``bins`` equal bins of [low, 1] values (n,) lie in; a bin holds its lower end, the last one both."""
    places = np.floor((values - low) / (1.0 - low) * bins)
    return np.clip(places, 0, bins - 1).astype(np.int64)


def reliability(confidence: Floats, right: Bools, bins: int, low: float) -> Reliability:
    """Calibration of predictions.

    Args:
        confidence: (n,) probability of the predicted class, in [low, 1]; n at least 1.
        right: (n,) whether it was the true class.
        bins: how many.
        low: 1 / K, below which no largest of K probabilities is.
    """
    place = bin_of(confidence, bins, low)
    numbers = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(place, confidence, bins) / numbers
        share = np.bincount(place, right.astype(np.float64), bins) / numbers
    signs = np.sign(np.where(numbers > 0, share - mean, 0.0))
    gaps = signs[place] * (right.astype(np.float64) - confidence)
    return Reliability(numbers, mean, share, mean_of(gaps, 0.0, 1.0))


@dataclass(frozen=True)
class ClassCounts:
    """Noised counts of records by class and by predicted class.

    Attributes:
        columns: by class, its place among the predicted ones; None of one that is never predicted.
        by_class, by_prediction: wrongly and rightly predicted records of each class (K, 2), and of each predicted one (M, 2).
        cells: how many cells of a table a class's two numbers were added from, and a predicted one's.
        std: of the noise of a cell of either.
    """

    columns: Sequence[int | None]
    by_class: Floats
    by_prediction: Floats
    cells: tuple[int, int] = (2, 2)
    std: tuple[float, float] = (0.0, 0.0)

    @staticmethod
    def of_table(counts: Floats, columns: Sequence[int | None], std: float = 0.0) -> "ClassCounts":
        """Those of a table (K, M) of true and predicted classes."""
        own, said = np.zeros(counts.shape[0]), np.zeros(counts.shape[1])
        for row, column in enumerate(columns):
            if column is not None:
                own[row] = said[column] = float(counts[row, column])
        by_class = np.stack([counts.sum(axis=1) - own, own], axis=1)
        by_prediction = np.stack([counts.sum(axis=0) - said, said], axis=1)
        return ClassCounts(columns, by_class, by_prediction, counts.shape[::-1], (std, std))

    @property
    def records(self) -> Figure:
        return count(float(self.by_class.sum()), self.std[0] * math.sqrt(self._all))

    @property
    def accuracy(self) -> Answer:
        """The share that is predicted rightly."""
        known = [row for row, column in enumerate(self.columns) if column is not None]
        right, cells = float(self.by_class[known, 1].sum()), (len(known), self._all - len(known))
        return share(right, float(self.by_class.sum()), cells, self.std[0])

    @property
    def accuracy_of_constant_guess(self) -> Answer:
        """The share of the class that most records have: where it is close to the accuracy, that says little."""
        numbers, cells = self.by_class.sum(axis=1), (self.cells[0], self._all - self.cells[0])
        return share(float(numbers.max()), float(numbers.sum()), cells, self.std[0])

    @property
    def _all(self) -> int:
        return len(self.by_class) * self.cells[0]

    def figures(self) -> Iterator[dict[str, Answer]]:
        """Records, recall, precision and F1 of each class, by name; one that is never predicted has no precision."""
        (cells, others), (std, other_std) = self.cells, self.std
        for (missed, hit), column in zip(self.by_class.tolist(), self.columns, strict=True):
            found: dict[str, Answer] = {"records": count(missed + hit, std * math.sqrt(cells))}
            if column is None:
                found["recall"] = share(0.0, missed + hit, (0, cells), std)
                found["precision"] = NotEstimable("the model does not know the class")
                found["f1"] = f1(0.0, missed + hit, cells, std)
            else:
                wrong, right = self.by_prediction[column].tolist()
                found["recall"] = share(hit, missed + hit, (1, cells - 1), std)
                found["precision"] = share(right, wrong + right, (1, others - 1), other_std)
                found["f1"] = f1(hit, missed + wrong, cells + others - 2, max(std, other_std))
            yield found


class NoisedCalibration(NamedTuple):
    """Expected calibration error from noised counts.

    Attributes:
        error: of it, with every record at the middle of its bin.
        by_noise: what the noise alone would give on average if calibration were perfect; an error near it tells nothing.
    """

    error: Answer
    by_noise: float


def noised_calibration(wrong: Floats, right: Floats, low: float, std: float) -> NoisedCalibration:
    """Expected calibration error from counts (B,) of wrong and right predictions by confidence, in equal bins of [low, 1].

    With middles c and gaps g = (1 - c) right - c wrong it is E = sum |g| / N. Delta method, for the noise and for the sampling
    of the cells: its slopes are (sign g (1 - c) - E) / N and (-sign g c - E) / N. A gap of noise of standard deviation s has
    the mean size s sqrt(2 / pi). The interval is as if the signs were known; where calibration is good, the error itself is
    too large by about what noise and chance do in each bin.
    """
    bins = len(wrong)
    middles = low + (1.0 - low) * (np.arange(bins) + 0.5) / bins
    counts = np.concatenate([right, wrong])
    whole = float(counts.sum())
    if within_noise(whole, std * math.sqrt(2 * bins)):
        return NoisedCalibration(
            NotEstimable("the released count is within its noise", "more records, or more epsilon"), math.inf
        )
    gaps = (1.0 - middles) * right - middles * wrong
    error = float(np.abs(gaps).sum()) / whole
    signs = np.sign(gaps)
    slopes = np.concatenate([signs * (1.0 - middles) - error, -signs * middles - error]) / whole
    floor = math.sqrt(2.0 / math.pi) * std * float(np.hypot(1.0 - middles, middles).sum()) / whole
    sampling = float(slopes**2 @ project(counts))
    told = normal_figure(error, std**2 * float(slopes @ slopes), sampling)
    if std == 0.0 and sampling <= FLAT / whole:  # all alike: another may be predicted otherwise
        told = told.widened(hidden_share(whole))
    return NoisedCalibration(told.within(0.0, 1.0), floor)


def folded(histogram: Floats) -> tuple[Floats, Floats]:
    """Counts (B / 2,) of wrong and right predictions by confidence, from counts (2, B) of two classes by the probability of
    the second, in an even number of equal bins of [0, 1]. Each is the sum of two cells: its noise is sqrt(2) times theirs."""
    half = histogram.shape[1] // 2
    upper, lower = histogram[:, half:], histogram[:, :half][:, ::-1]
    return upper[0] + lower[1], upper[1] + lower[0]
