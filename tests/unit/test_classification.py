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
def test_without_noise_a_shares_interval_is_wilsons(whole: int, data: st.DataObject) -> None:
    part = data.draw(st.integers(0, whole))
    expected = binomtest(part, whole).proportion_ci(0.95, method="wilson")
    found = told(share(part, whole))
    assert found.low == pytest.approx(max(expected.low, 0.0), abs=1e-12)
    assert found.high == pytest.approx(min(expected.high, 1.0), abs=1e-12)
    assert found.low <= found.value <= found.high
    assert found.value == part / whole


def told(answer: Answer) -> Figure:
    assert isinstance(answer, Figure)
    return answer


def test_nothing_counted_says_nothing() -> None:
    assert isinstance(share(0, 0), NotEstimable)
    assert isinstance(c.mean_recall([share(0, 0)]), NotEstimable)
    one = c.mean_of(np.array([0.3]), 0.0, 5.0)
    assert (one.low, one.high) == (0.0, 5.0)


def test_f1_and_its_interval() -> None:
    truth, said = np.repeat([1, 1, 0, 0], [30, 7, 12, 50]), np.repeat([1, 0, 1, 0], [30, 7, 12, 50])
    found = told(c.f1(30, 19))
    assert found.value == pytest.approx(f1_score(truth, said))
    inner = binomtest(30, 49).proportion_ci(0.95, method="wilson")
    assert (found.low / (2 - found.low), found.high / (2 - found.high)) == pytest.approx(
        (inner.low, inner.high)
    )  # J = F1 / (2 - F1)


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
    rates, numbers = np.array([0.9, 0.6, 0.99]), np.array([40, 60, 30])
    found = [told(c.mean_recall(map(share, rng.binomial(numbers, rates).tolist(), numbers.tolist()))) for _ in range(500)]
    assert np.mean([each.low <= rates.mean() <= each.high for each in found]) > 0.92


def _spread(figure: Callable[[np.ndarray], Answer], counts: np.ndarray) -> tuple[float, float]:
    """The standard error by noise that a figure states at the true counts, and what many draws of noise give it."""
    rng = np.random.default_rng(3)
    values = [told(figure(counts + 4.0 * rng.normal(size=counts.shape))).value for _ in range(DRAWS)]
    return told(figure(counts)).noise_error, float(np.std(values))


COUNTS = np.array([[300.0, 60.0, 40.0], [50.0, 200.0, 30.0], [20.0, 40.0, 260.0]])
HISTOGRAM = np.array([[90.0, 70.0, 50.0, 30.0, 20.0, 10.0], [10.0, 15.0, 30.0, 50.0, 80.0, 120.0]])


def of(counts: np.ndarray, std: float = 4.0) -> c.ClassCounts:
    return c.ClassCounts.of_table(counts, (0, 1, 2), std)


def marginal(counts: np.ndarray, std: float = 4.0) -> c.ClassCounts:
    """Of two tables (6, 2), one above the other: by class, and by predicted class."""
    return c.ClassCounts((0, 1, 2), counts[:3], counts[3:], std=(std, std))


BOTH = np.vstack([of(COUNTS).by_class, of(COUNTS).by_prediction])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("figure", "counts"),
    [
        (lambda n: of(n).accuracy, COUNTS),
        (lambda n: of(n).accuracy_of_constant_guess, COUNTS),
        (lambda n: next(of(n).figures())["recall"], COUNTS),
        (lambda n: next(of(n).figures())["precision"], COUNTS),
        (lambda n: next(of(n).figures())["f1"], COUNTS),
        (lambda n: marginal(n).accuracy, BOTH),
        (lambda n: next(marginal(n).figures())["recall"], BOTH),
        (lambda n: next(marginal(n).figures())["precision"], BOTH),
        (lambda n: next(marginal(n).figures())["f1"], BOTH),
        (lambda n: area(n[0], n[1], 4.0), HISTOGRAM),
        (lambda n: c.noised_calibration(*c.folded(n), 0.5, 4.0 * math.sqrt(2.0)).error, 10.0 * HISTOGRAM),
    ],
    ids=[
        "accuracy",
        "guess",
        "recall",
        "precision",
        "f1",
        *(f"marginal {n}" for n in ("accuracy", "recall", "precision", "f1")),
        "auc",
        "calibration",
    ],
)
def test_standard_errors_are_those_of_the_noise(figure: Callable[[np.ndarray], Answer], counts: np.ndarray) -> None:
    stated, drawn = _spread(figure, counts)
    assert stated == pytest.approx(drawn, rel=0.08)


@pytest.mark.parametrize("std", [0.0, 4.0])
def test_a_table_and_its_margins_tell_the_same(std: float) -> None:
    one, other = of(COUNTS, std), marginal(BOTH, std)
    assert told(one.accuracy).value == told(other.accuracy).value
    for row, same in zip(one.figures(), other.figures(), strict=True):
        for name, found in row.items():
            assert told(found).value == told(same[name]).value
            assert told(found).sampling_error == pytest.approx(told(same[name]).sampling_error)


def test_a_class_that_the_model_does_not_know_is_never_right() -> None:
    known, unknown = c.ClassCounts.of_table(COUNTS[:2, :1], (0, None), 4.0).figures()
    assert told(known["recall"]).value == 1.0
    assert (told(unknown["recall"]).value, told(unknown["f1"]).value) == (0.0, 0.0)
    assert told(unknown["recall"]).high > 0.0
    assert isinstance(unknown["precision"], NotEstimable)
    assert told(c.ClassCounts.of_table(COUNTS[:2, :1], (0, None)).accuracy).value == pytest.approx(300 / 350)


def test_without_noise_figures_are_exact() -> None:
    recall = told(next(of(COUNTS, 0.0).figures())["recall"])
    assert (recall.value, recall.noise_error) == (0.75, 0.0)
    values = np.arange(6.0)
    scores = np.concatenate([np.repeat(values, row.astype(int)) for row in HISTOGRAM])
    label = np.repeat([False, True], HISTOGRAM.sum(axis=1).astype(int))
    assert told(area(HISTOGRAM[0], HISTOGRAM[1], 0.0)).value == pytest.approx(roc_auc_score(label, scores))
    # Every record at the middle of its bin, both ways of reading.
    wrong, right = c.folded(HISTOGRAM)
    middles = 0.5 + 0.5 * (np.arange(3) + 0.5) / 3
    confidence = np.concatenate([np.repeat(middles, part.astype(int)) for part in (wrong, right)])
    flags = np.repeat([False, True], [int(wrong.sum()), int(right.sum())])
    found = c.noised_calibration(wrong, right, 0.5, 0.0)
    assert told(found.error).value == pytest.approx(c.reliability(confidence, flags, 3, 0.5).error.value)
    assert found.by_noise == 0.0


def test_the_calibration_errors_interval_covers_what_many_records_have() -> None:
    """Sampling alone: bins of fixed gaps, all of one sign, so that the error is not a folded one."""
    rng, share = np.random.default_rng(5), np.array([0.5, 0.62, 0.8])
    middles = 0.5 + 0.5 * (np.arange(3) + 0.5) / 3
    truth = float(np.mean(np.abs(middles - share)))
    hits = 0
    for _ in range(2000):
        numbers = rng.multinomial(3000, [1 / 3] * 3)
        right = rng.binomial(numbers, share)
        found = told(c.noised_calibration((numbers - right).astype(float), right.astype(float), 0.5, 0.0).error)
        hits += found.low <= truth <= found.high
    assert 0.93 < hits / 2000 < 0.97


def test_what_the_noise_makes_of_perfect_calibration_is_said() -> None:
    right = np.array([100.0, 150.0, 200.0])
    middles = 0.5 + 0.5 * (np.arange(3) + 0.5) / 3
    wrong = right * (1 - middles) / middles
    rng = np.random.default_rng(4)
    drawn = [
        c.noised_calibration(wrong + 5 * rng.normal(size=3), right + 5 * rng.normal(size=3), 0.5, 5.0) for _ in range(DRAWS)
    ]
    mean = np.mean([told(item.error).value for item in drawn])
    assert c.noised_calibration(wrong, right, 0.5, 5.0).by_noise == pytest.approx(mean, rel=0.05)


def test_counts_within_their_noise_tell_nothing() -> None:
    assert isinstance(share(5.0, 8.0, (1, 2), 10.0), NotEstimable)
    assert isinstance(c.f1(5.0, 3.0, 2, 10.0), NotEstimable)
    assert isinstance(area(np.ones(4), np.ones(4), 10.0), NotEstimable)
    assert isinstance(c.noised_calibration(np.ones(3), np.ones(3), 0.5, 10.0).error, NotEstimable)


def test_values_beyond_what_can_be_are_clamped() -> None:
    found = told(share(110.0, 100.0, (1, 2), 1.0))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low < 1.0


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
        found = (
            share(float(wrong.sum()), float(counts.sum()), (3, 3), std),
            c.f1(float(counts[0]), float(counts[1:4].sum() - counts[2]), 2, std),
            c.noised_calibration(wrong, right, 0.5, std).error,
        )
        covered += [told(each).low <= truth <= told(each).high for each, truth in zip(found, truths, strict=True)]
    assert np.all(covered / 2000 > 0.93)
    assert np.all(covered / 2000 < 0.975)
