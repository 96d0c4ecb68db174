"""Figures of classifiers: scikit-learn and scipy as oracles, and noise drawn many times against the standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve
from sklearn.metrics import f1_score, roc_auc_score

from veilsum_aggregation import classification as c
from veilsum_aggregation.concordance import area
from veilsum_aggregation.figures import Answer, Figure, NotEstimable
from veilsum_aggregation.tables import share

DRAWS = 4000


@given(whole=st.integers(1, 3000), data=st.data())
def test_wilson_is_that_of_scipy(whole: int, data: st.DataObject) -> None:
    part = data.draw(st.integers(0, whole))
    expected = binomtest(part, whole).proportion_ci(0.95, method="wilson")
    found = share(part, whole)
    assert isinstance(found, Figure)
    assert found.low == pytest.approx(max(expected.low, 0.0), abs=1e-12)
    assert found.high == pytest.approx(min(expected.high, 1.0), abs=1e-12)
    assert found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high
    assert found.value == part / whole


def test_nothing_counted_says_nothing() -> None:
    assert isinstance(share(0, 0), NotEstimable)
    assert isinstance(c.mean_recall(np.zeros(2), np.zeros(2)), NotEstimable)
    one = c.mean_of(np.array([0.3]), 0.0, 5.0)
    assert (one.low, one.high) == (0.0, 5.0)


def test_f1_and_its_interval() -> None:
    truth, said = np.repeat([1, 1, 0, 0], [30, 7, 12, 50]), np.repeat([1, 0, 1, 0], [30, 7, 12, 50])
    assert c.f1_of_overlap(30 / 49) == pytest.approx(f1_score(truth, said))
    found = c.f1(30, 19)
    assert isinstance(found, Figure)
    low, high = found.low, found.high
    inner = binomtest(30, 49).proportion_ci(0.95, method="wilson")
    assert (low / (2 - low), high / (2 - high)) == pytest.approx((inner.low, inner.high))  # J = F1 / (2 - F1)


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_the_area_is_that_of_scikit_learn(seed: int, positive: int, negative: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=positive + negative)
    scores = np.round(scores) if ties else scores
    label = np.arange(positive + negative) < positive
    assert c.auc(scores, label) == pytest.approx(roc_auc_score(label, scores), abs=1e-12)


@given(st.floats(0, 1), st.integers(1, 5000), st.integers(1, 5000))
def test_the_areas_interval_solves_its_equation(found_area: float, positive: int, negative: int) -> None:
    found = c.auc_figure(found_area, positive, negative)
    low, high = found.low, found.high
    assert 0 <= low <= found_area <= high <= 1
    h = (positive + negative) / 2 - 1
    for end in (low, high):
        if 1e-6 < end < 1 - 1e-6 and abs(end - found_area) > 1e-6:
            variance = end * (1 - end) * (1 + h * (1 - end) / (2 - end) + h * end / (1 + end)) / (positive * negative)
            assert abs(end - found_area) == pytest.approx(1.959963984540054 * math.sqrt(variance), rel=1e-4)


def test_the_areas_interval_covers_and_has_width_where_classes_are_apart() -> None:
    rng = np.random.default_rng(0)
    truth = 0.5 * (1 + math.erf(1.0 / 2.0))  # two normals of variance 1 whose means are 1 apart
    hits = 0
    for _ in range(400):
        scores = np.concatenate([rng.normal(1.0, 1.0, 40), rng.normal(0.0, 1.0, 60)])
        found = c.auc_figure(c.auc(scores, np.arange(100) < 40), 40, 60)
        hits += found.low <= truth <= found.high
    assert 0.91 <= hits / 400 <= 0.99
    none, whole = c.auc_figure(0.0, 20, 20), c.auc_figure(1.0, 20, 20)
    assert whole.low < 0.95
    assert (none.low, none.high) == pytest.approx((1 - whole.high, 1 - whole.low))


def test_calibration_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    confidence = rng.uniform(0.25, 1.0, 5000)
    right = rng.random(5000) < confidence**1.5
    found = c.reliability(confidence, right, 10, 0.25)
    share, mean = calibration_curve(right, (confidence - 0.25) / 0.75, n_bins=10)
    np.testing.assert_allclose(found.accuracy, share)
    np.testing.assert_allclose(found.confidence, 0.25 + 0.75 * mean)
    assert found.numbers.sum() == 5000
    expected = float(np.sum(found.numbers / 5000 * np.abs(found.accuracy - found.confidence)))
    assert found.error.value == pytest.approx(expected)
    assert found.error.low < expected < found.error.high
    # Records of one bin that are right as often as was said: no error at all.
    perfect = c.reliability(np.array([0.75] * 4), np.array([True, True, True, False]), 10, 0.5)
    assert perfect.error.value == 0.0


def test_bins_hold_their_lower_ends_and_the_last_one_both() -> None:
    np.testing.assert_array_equal(c.bin_of(np.array([0.0, 0.25, 0.2499, 0.75, 1.0]), 4, 0.0), [0, 1, 0, 3, 3])
    np.testing.assert_array_equal(c.bin_of(np.array([0.5, 0.625, 1.0]), 4, 0.5), [0, 1, 3])


def test_the_mean_recalls_interval_covers() -> None:
    rng = np.random.default_rng(2)
    rates, numbers = np.array([0.9, 0.6, 0.99]), np.array([40.0, 60.0, 30.0])
    found = [c.mean_recall(rng.binomial(numbers.astype(int), rates).astype(float), numbers) for _ in range(500)]
    assert np.mean([each.low <= rates.mean() <= each.high for each in found if isinstance(each, Figure)]) > 0.92


def _spread(figure: Callable[[np.ndarray], Answer], counts: np.ndarray, std: float) -> tuple[float, float]:
    """The standard error that a figure states at the true counts, and what many draws of noise give it."""
    rng = np.random.default_rng(3)
    drawn = [figure(counts + std * rng.normal(size=counts.shape)) for _ in range(DRAWS)]
    values = [item.value for item in drawn if isinstance(item, Figure)]
    assert len(values) == DRAWS
    at = figure(counts)
    assert isinstance(at, Figure)
    return at.noise_error, float(np.std(values))


COUNTS = np.array([[300.0, 60.0, 40.0], [50.0, 200.0, 30.0], [20.0, 40.0, 260.0]])
HISTOGRAM = np.array([[90.0, 70.0, 50.0, 30.0, 20.0, 10.0], [10.0, 15.0, 30.0, 50.0, 80.0, 120.0]])


@pytest.mark.parametrize(
    ("figure", "counts"),
    [
        (lambda n: share(np.trace(n), n.sum(), (3, 6), 4.0), COUNTS),
        (lambda n: share(n[0, 0], n[0].sum(), (1, 2), 4.0), COUNTS),
        (lambda n: c.f1(n[0, 0], n[0, 1:].sum() + n[1:, 0].sum(), 4, 4.0), COUNTS),
        (lambda n: area(n[0], n[1], 4.0), HISTOGRAM),
        (lambda n: c.noised_calibration(*c.folded(n), 0.5, 4.0 * math.sqrt(2.0)).error, 10.0 * HISTOGRAM),
    ],
    ids=["accuracy", "recall", "f1", "auc", "calibration"],
)
def test_standard_errors_are_those_of_the_noise(figure: Callable[[np.ndarray], Answer], counts: np.ndarray) -> None:
    stated, drawn = _spread(figure, counts, 4.0)
    assert stated == pytest.approx(drawn, rel=0.08)


def test_without_noise_figures_are_exact() -> None:
    recall, score = share(300.0, 400.0, (1, 2)), c.f1(300.0, 170.0, 4)
    assert isinstance(recall, Figure)
    assert isinstance(score, Figure)
    assert (recall.value, recall.noise_error) == (0.75, 0.0)
    assert (score.value, score.noise_error) == (pytest.approx(600 / 770), 0.0)
    values = np.arange(6.0)
    scores = np.concatenate([np.repeat(values, row.astype(int)) for row in HISTOGRAM])
    label = np.repeat([False, True], HISTOGRAM.sum(axis=1).astype(int))
    ranked = area(*HISTOGRAM, 0.0)
    assert isinstance(ranked, Figure)
    assert ranked.value == pytest.approx(roc_auc_score(label, scores))
    # Every record at the middle of its bin, both ways of reading.
    wrong, right = c.folded(HISTOGRAM)
    middles = 0.5 + 0.5 * (np.arange(3) + 0.5) / 3
    confidence = np.concatenate([np.repeat(middles, part.astype(int)) for part in (wrong, right)])
    flags = np.repeat([False, True], [int(wrong.sum()), int(right.sum())])
    found = c.noised_calibration(wrong, right, 0.5, 0.0)
    assert isinstance(found.error, Figure)
    assert found.error.value == pytest.approx(c.reliability(confidence, flags, 3, 0.5).error.value)
    assert found.by_noise == 0.0


def test_what_the_noise_makes_of_perfect_calibration_is_said() -> None:
    right = np.array([100.0, 150.0, 200.0])
    middles = 0.5 + 0.5 * (np.arange(3) + 0.5) / 3
    wrong = right * (1 - middles) / middles
    rng = np.random.default_rng(4)
    drawn = [
        c.noised_calibration(wrong + 5 * rng.normal(size=3), right + 5 * rng.normal(size=3), 0.5, 5.0) for _ in range(DRAWS)
    ]
    mean = np.mean([item.error.value for item in drawn if isinstance(item.error, Figure)])
    assert c.noised_calibration(wrong, right, 0.5, 5.0).by_noise == pytest.approx(mean, rel=0.05)


def test_counts_within_their_noise_tell_nothing() -> None:
    assert isinstance(share(5.0, 8.0, (1, 2), 10.0), NotEstimable)
    assert isinstance(c.f1(5.0, 3.0, 2, 10.0), NotEstimable)
    assert isinstance(area(np.ones(4), np.ones(4), 10.0), NotEstimable)
    assert isinstance(c.noised_calibration(np.ones(3), np.ones(3), 0.5, 10.0).error, NotEstimable)


def test_values_beyond_what_can_be_are_clamped() -> None:
    found = share(110.0, 100.0, (1, 2), 1.0)
    assert isinstance(found, Figure)
    assert (found.value, found.high) == (1.0, 1.0)


def test_intervals_have_sample_and_noise_in_them() -> None:
    """Of a share, of F1 and of the calibration error: samples of 400 records, and noise on every cell."""
    rng, share_of = np.random.default_rng(6), np.array([[0.3, 0.08, 0.02], [0.1, 0.4, 0.1]])
    cells, std, half = share_of.ravel(), 6.0, (share_of[0] + share_of[1])
    middles = 0.5 + 0.5 * (np.arange(3) + 0.5) / 3
    truths = [0.4, 2 * 0.3 / (2 * 0.3 + 0.08 + 0.1), float(np.abs(share_of[1] - middles * half).sum())]
    covered = np.zeros(3)
    for _ in range(2000):
        counts = rng.multinomial(400, cells) + std * rng.normal(size=6)
        wrong, right = counts[:3], counts[3:]
        told = (
            share(float(wrong.sum()), float(counts.sum()), (3, 3), std),
            c.f1(float(counts[0]), float(counts[1:4].sum() - counts[2]), 2, std),
            c.noised_calibration(wrong, right, 0.5, std).error,
        )
        covered += [
            isinstance(each, Figure) and each.low <= truth <= each.high for each, truth in zip(told, truths, strict=True)
        ]
    assert np.all(covered / 2000 > 0.93)
    assert np.all(covered / 2000 < 0.975)
