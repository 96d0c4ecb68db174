"""Figures of noised sums against scipy, lifelines, statsmodels and closed forms; and that their intervals cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from veilsum_aggregation import correlations, group_means, quantiles, survival, tables
from veilsum_aggregation.figures import Answer, Figure, NotEstimable, Test, delta_rule, ratio_figure
from veilsum_aggregation.group_means import NumberSums
from veilsum_aggregation.survival import SurvivalCounts, SurvivalCurve

SIGMA = 4.05
"""Noise of a sum of sensitivity 1 at epsilon 1, delta 1e-5."""

SHIFT = 0.7


def sums(x: np.ndarray, rng: np.random.Generator, std: float = SIGMA * math.sqrt(2.0)) -> NumberSums:
    """Noised sums as a query of means releases them."""
    a, s = 0.9035, 1 / SHIFT
    noise = rng.normal(size=3) * [std, std / a, std / s]
    exact = len(x), float(x.sum()), float((x * x - SHIFT).sum())
    return NumberSums(*(value + float(e) for value, e in zip(exact, noise, strict=True)), SHIFT, std, std / a, std / s)


def exact_sums(x: np.ndarray) -> NumberSums:
    return NumberSums(len(x), float(x.sum()), float((x * x - SHIFT).sum()), SHIFT, 0.0, 0.0, 0.0)


def coverage(found: list[Answer], truth: float) -> float:
    told = [answer for answer in found if isinstance(answer, Figure)]
    assert len(told) > 0.9 * len(found)
    return float(np.mean([answer.low <= truth <= answer.high for answer in told]))


def figure(answer: Answer) -> Figure:
    assert isinstance(answer, Figure), answer
    return answer


# -- ratios, means, variances ---------------------------------------------------------------------------------------------


def test_a_ratio_without_noise_is_a_score_interval() -> None:
    """Of a proportion: Wilson's."""
    found = figure(tables.share_of(30, 100, 0.0, 0.0))
    wilson = stats.binomtest(30, 100).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((wilson.low, wilson.high), rel=1e-9)


def test_an_interval_is_unbounded_exactly_where_the_denominator_is_within_noise() -> None:
    assert isinstance(ratio_figure(1, 2.9, (1, 0, 1), (0, 0, 0)), NotEstimable)
    open_ended = (
        figure(ratio_figure(40, 3.5, (1, 0, 4 / 1.2), (0, 0, 0))) if False else ratio_figure(1, 3.1, (1, 0, 1), (9, 0, 9))
    )
    assert isinstance(open_ended, Figure)
    assert (open_ended.low, open_ended.high) == (-math.inf, math.inf)


def test_means_and_variances_without_noise_are_numpys() -> None:
    x = np.clip(np.random.default_rng(0).normal(0.2, 0.3, 4000), -1, 1)
    mean, variance = figure(group_means.mean(exact_sums(x))), figure(group_means.variance(exact_sums(x)))
    assert mean.value == pytest.approx(x.mean(), abs=1e-12)
    assert variance.value == pytest.approx(x.var(), abs=1e-12)
    assert mean.sampling_error == pytest.approx(stats.sem(x), rel=1e-9)
    assert (mean.noise_error, variance.noise_error) == (0.0, 0.0)
    fourth = math.sqrt(((x - x.mean()) ** 4).mean() - x.var() ** 2) / math.sqrt(len(x))
    assert variance.sampling_error == pytest.approx(fourth, rel=0.15)
    assert mean.scaled(35.0, 55.0).low == pytest.approx(mean.low * 35 + 55)


@pytest.mark.parametrize("records", [2, 3, 5, 30])
def test_a_mean_of_few_records_without_noise_has_students_interval(records: int) -> None:
    x = np.random.default_rng(records).uniform(-0.2, 0.2, records)
    found = figure(group_means.mean(exact_sums(x)))
    low, high = stats.t.interval(0.95, records - 1, loc=x.mean(), scale=stats.sem(x))
    assert (found.low, found.high) == pytest.approx((max(low, -1.0), min(high, 1.0)), rel=1e-9)
    assert found.sampling_error == pytest.approx(stats.sem(x), rel=1e-9)


def test_one_record_tells_no_deviation_and_its_mean_may_be_anything() -> None:
    alone = exact_sums(np.array([0.3]))
    mean = figure(group_means.mean(alone))
    assert (mean.value, mean.low, mean.high) == (pytest.approx(0.3), -1.0, 1.0)
    assert isinstance(group_means.variance(alone), NotEstimable)
    same = exact_sums(np.full(3, 0.3))
    of_same, hidden = figure(group_means.mean(same)), 1.0 - 0.025 ** (1.0 / 3.0)
    assert (of_same.value - of_same.low, of_same.high - of_same.value) == pytest.approx((1.3 * hidden, 0.7 * hidden))
    assert figure(group_means.variance(same)).value == pytest.approx(0.0, abs=1e-12)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("records", [80, 120, 500, 5000])
@pytest.mark.parametrize("shape", ["normal", "skewed", "even"])
def test_intervals_of_means_and_variances_cover_near_the_noise_floor(records: int, shape: str) -> None:
    rng = np.random.default_rng(records)
    draw = {
        "normal": lambda n: np.clip(rng.normal(0.2, 0.33, n), -1, 1),
        "skewed": lambda n: np.clip(-1 + rng.lognormal(-1.8, 0.9, n), -1, 1),
        "even": lambda n: rng.uniform(-1, 1, n),
    }[shape]
    whole = draw(1_000_000)
    found = [sums(draw(records), rng) for _ in range(300)]
    # three standard errors of 300 runs below the nominal 95%, above which an interval may be too wide
    assert 0.91 <= coverage([group_means.mean(item) for item in found], float(whole.mean())) <= 1.0
    assert 0.91 <= coverage([group_means.variance(item) for item in found], float(whole.var())) <= 1.0


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.85, 0.15), (0.25, 0.25, 0.25, 0.25)])
def test_equal_means_are_rejected_as_often_as_stated(shares: tuple[float, ...]) -> None:
    rng = np.random.default_rng(1)
    rejected = []
    for _ in range(400):
        x, group = np.clip(rng.normal(0.2, 0.33, 500), -1, 1), rng.choice(len(shares), 500, p=shares)
        found = group_means.equal_means([sums(x[group == place], rng) for place in range(len(shares))])
        assert isinstance(found, Test)
        rejected.append(found.p_value < 0.05)
    assert np.mean(rejected) <= 0.085
    assert found.degrees == len(shares) - 1 - len(found.left_out)


def test_equal_means_without_noise_is_welchs_test() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.uniform(-1, 1, 4000), rng.uniform(-0.97, 1, 3000)
    found = group_means.equal_means([exact_sums(a), exact_sums(b)])
    assert isinstance(found, Test)
    assert found.p_value == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, rel=0.05)
    assert found.noise_share == 0.0
    far = group_means.equal_means([exact_sums(a), exact_sums(b + 0.5)])
    assert isinstance(far, Test)
    assert far.p_value < 1e-6


def test_groups_within_noise_leave_the_test_by_their_counts() -> None:
    rng = np.random.default_rng(3)
    small = NumberSums(10, 3, -4, SHIFT, 5.7, 6.3, 4.0)
    found = group_means.equal_means([sums(rng.uniform(-1, 1, 900), rng), small, sums(rng.uniform(-1, 1, 900), rng)])
    assert isinstance(found, Test)
    assert (found.left_out, found.degrees) == ((1,), 1)
    assert isinstance(group_means.equal_means([small, small]), NotEstimable)
    assert isinstance(group_means.mean(small), NotEstimable)


# -- tables ---------------------------------------------------------------------------------------------------------------


def test_independence_without_noise_is_pearsons_test() -> None:
    table = np.array([[30.0, 50, 20], [60, 40, 40]])
    found = tables.independence(table, 0.0)
    assert isinstance(found, Test)
    pearson = stats.chi2_contingency(table, correction=False)
    assert (found.statistic, found.degrees) == (pytest.approx(pearson.statistic, rel=1e-6), pearson.dof)
    assert found.p_value == pytest.approx(pearson.pvalue, rel=1e-6)


@pytest.mark.parametrize("records", [200, 5000])
def test_independence_is_rejected_as_often_as_stated(records: int) -> None:
    rng = np.random.default_rng(records)
    rejected = []
    for _ in range(400):
        table = np.zeros((3, 4))
        np.add.at(table, (rng.choice(3, records, p=[0.5, 0.3, 0.2]), rng.choice(4, records, p=[0.4, 0.3, 0.2, 0.1])), 1)
        found = tables.independence(table + rng.normal(size=table.shape) * SIGMA, SIGMA)
        if isinstance(found, Test):
            rejected.append(found.p_value < 0.05)
    assert len(rejected) > 350
    assert np.mean(rejected) <= 0.085
    assert 0.0 < tables.cramers_v(found, records, (3, 4)) <= 1.0  # type: ignore[arg-type]


def test_shares_cover_and_projections_keep_the_sum() -> None:
    rng = np.random.default_rng(4)
    found = [tables.shares(rng.multinomial(500, [0.3, 0.5, 0.2]) + rng.normal(size=3) * SIGMA, SIGMA)[0] for _ in range(400)]
    assert coverage(found, 0.3) >= 0.92
    table = rng.normal(3.0, 5.0, (20, 5))
    shown = tables.project(table)
    assert shown.min() >= 0.0
    assert shown.sum() == pytest.approx(table.sum())
    nearest = min(float(((shown - table) ** 2).sum()), 1e9)
    cut = np.maximum(table, 0.0)
    assert nearest <= float(((cut * table.sum() / cut.sum() - table) ** 2).sum())


def test_counts_are_as_they_are_and_average_to_what_there_is() -> None:
    rng = np.random.default_rng(3)
    found = [tables.count(float(noise), 4.0) for noise in rng.normal(0.0, 4.0, 4000)]
    assert abs(np.mean([figure.value for figure in found])) < 6.2 * 4.0 / math.sqrt(4000)  # chance below 1e-9
    assert all(figure.high - figure.low == pytest.approx(2 * 1.959964 * 4.0) for figure in found)


def test_the_delta_rule_is_the_multinomial_one() -> None:
    counts = np.array([30.0, 50.0, 20.0])
    value, noise, sampling = delta_rule(lambda table: float(table[0] / table.sum()), counts, 2.0)
    assert value == 0.3
    assert sampling == pytest.approx(0.3 * 0.7 / 100, rel=1e-6)
    assert noise == pytest.approx(4.0 * (0.7**2 + 2 * 0.3**2) / 100**2, rel=1e-6)


# -- quantiles ------------------------------------------------------------------------------------------------------------


def test_prefix_sums_decode_exactly() -> None:
    column = quantiles.toeplitz_column(64, 40)
    counts = np.random.default_rng(5).integers(0, 50, 64).astype(np.float64)
    places = np.subtract.outer(np.arange(64), np.arange(64))
    encoded = np.where(places >= 0, column[np.maximum(places, 0)], 0) @ counts
    np.testing.assert_allclose(quantiles.prefix_matrix(column) @ encoded, np.cumsum(counts), atol=1e-6)
    # design, section 3: 2.23 times the noise of a count at 64 intervals, where flat counts have 5.7 times
    weights = quantiles.prefix_matrix(quantiles.toeplitz_column(64, 4096)) * np.linalg.norm(
        quantiles.toeplitz_column(64, 4096)
    )
    assert math.sqrt(float((weights**2).sum(axis=1).mean())) == pytest.approx(2.23, abs=0.02)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("q", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("records", [500, 5000])
def test_quantiles_cover(q: float, records: int) -> None:
    rng = np.random.default_rng(records)
    edges, column = np.linspace(-1, 1, 65), quantiles.toeplitz_column(64, 64)
    std = SIGMA * math.sqrt(float((column**2).sum()))
    places = np.subtract.outer(np.arange(64), np.arange(64))
    matrix = np.where(places >= 0, column[np.maximum(places, 0)], 0)
    found, plain = [], []
    for _ in range(200):
        x = np.clip(rng.normal(0.1, 0.3, records), -1, 1)
        noised = matrix @ np.histogram(x, edges)[0] + rng.normal(size=64) * std
        found.append(quantiles.quantiles(noised, column, std, edges.tolist(), [q])[0])
        plain.append(np.quantile(x, q))
    truth = stats.norm(0.1, 0.3).ppf(q)
    assert coverage(found, truth) >= 0.93
    errors = [answer.value - truth for answer in found if isinstance(answer, Figure)]
    assert float(np.std(errors)) <= 2.0 * float(np.std(plain)) + 0.005
    open_ended = figure(
        quantiles.quantiles(np.array([5.0, 100.0]), quantiles.toeplitz_column(2, 1), 2.0, [0, 1, 2], [0.01])[0]
    )
    assert open_ended.low == -math.inf


def test_noise_far_from_a_quantile_leaves_its_interval_short() -> None:
    """Of a skewed column, a fifth of it 0: by sums as they are a far edge whose noise reaches back to the quantile counts, and
    the median interval of the upper quartile is 5.2 long; by sums that never fall it is shorter, and covers."""
    rng, bins = np.random.default_rng(8), 256
    edges, column = np.linspace(0, 60, bins + 1), quantiles.toeplitz_column(bins, 115)
    lower = sum(np.diag(np.full(bins - k, column[k]), -k) for k in range(bins))
    std = 4.335 * math.sqrt(float(column @ column))  # of four sites at epsilon 1
    truth, found = 5.0 * math.log(0.8 / 0.25), list[Figure]()
    for _ in range(400):
        x = np.where(rng.random(300) < 0.2, 0.0, rng.exponential(5.0, 300)).clip(0, 60)
        sums = lower @ np.histogram(x, edges)[0] + std * rng.normal(size=bins)
        found += [each for each in quantiles.quantiles(sums, column, std, edges.tolist(), [0.75]) if isinstance(each, Figure)]
    assert len(found) == 400
    covered = np.mean([each.low <= truth <= each.high for each in found])
    assert covered >= 0.93
    assert np.median([min(each.high, 60.0) - max(each.low, 0.0) for each in found]) < 4.95


def test_isotonic_is_the_nearest_rising_sequence() -> None:
    from scipy.optimize import isotonic_regression

    values = np.random.default_rng(6).normal(size=50) + np.linspace(0, 2, 50)
    np.testing.assert_allclose(quantiles.isotonic(values), isotonic_regression(values).x, atol=1e-12)


# -- correlations ---------------------------------------------------------------------------------------------------------


def test_correlations_equal_numpys_and_cover() -> None:
    rng = np.random.default_rng(7)
    root = np.linalg.cholesky(np.full((3, 3), 0.4) + 0.6 * np.eye(3))

    def moments(n: int) -> np.ndarray:
        z = np.hstack([np.ones((n, 1)), np.clip(0.3 * rng.normal(size=(n, 3)) @ root.T, -1, 1)])
        return z.T @ z

    exact = moments(4000)
    plain = exact[1:, 1:] / 4000 - np.outer(exact[0, 1:], exact[0, 1:]) / 4000**2
    value = plain[0, 2] / math.sqrt(plain[0, 0] * plain[2, 2])
    assert figure(correlations.correlation(exact, 0, 2, 0.0, 0.0)).value == pytest.approx(value, rel=1e-12)
    std, found = SIGMA * 4.0, []
    for _ in range(200):
        noise = np.triu(rng.normal(size=(4, 4)) * std / math.sqrt(2.0), 1)
        noised = moments(5000) + noise + noise.T + np.diag(rng.normal(size=4) * std)
        found.append(correlations.correlation(noised, 0, 1, std, std / math.sqrt(2.0)))
    assert coverage(found, 0.4) >= 0.91


@pytest.mark.parametrize("records", [2, 3, 4, 5, 60])
@pytest.mark.parametrize("slope", [1.0, -1.0, 0.3, 0.0])
def test_a_correlation_without_noise_is_scipys(records: int, slope: float) -> None:
    """Also of columns of which one is a multiple of the other, and of few records."""
    rng = np.random.default_rng(records)
    x = rng.uniform(-0.5, 0.5, records)
    y = slope * x + (0.0 if abs(slope) == 1.0 else 0.2) * rng.uniform(-1.0, 1.0, records)
    z = np.column_stack([np.ones(records), x, y])
    found = figure(correlations.correlation(z.T @ z, 0, 1, 0.0, 0.0))
    expected = stats.pearsonr(x, y)
    low, high = expected.confidence_interval(0.95) if records > 3 else (-1.0, 1.0)
    assert found.value == pytest.approx(expected.statistic, abs=1e-9)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=4, max_size=4))
def test_a_correlation_of_two_events_has_the_error_of_their_table(counts: list[int]) -> None:
    """By the delta rule, and at least that of normal numbers."""
    table = np.array(counts, dtype=float).reshape(2, 2)

    def phi(cells: np.ndarray) -> float:
        (a, b), (c, d) = cells
        return float((a * d - b * c) / math.sqrt((a + b) * (c + d) * (a + c) * (b + d)))

    x, y = (np.repeat(values, counts) for values in ([-1.0, -1.0, 1.0, 1.0], [-1.0, 1.0, -1.0, 1.0]))
    z = np.column_stack([np.ones(len(x)), x, y])
    found = figure(correlations.correlation(z.T @ z, 0, 1, 0.0, 0.0))
    value, _, sampling = delta_rule(phi, table, 0.0)
    assert found.value == pytest.approx(value, abs=1e-9)
    if 1.0 - value**2 > 4.0 / len(x):
        assert found.sampling_error == pytest.approx(max(math.sqrt(sampling), (1.0 - value**2) / math.sqrt(len(x))), rel=1e-3)


@pytest.mark.parametrize("correlated", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("shape", ["stays", "exponential", "events", "normal"])
def test_correlations_of_skewed_numbers_cover(shape: str, correlated: float) -> None:
    """Of two log-normal stays .72 to .83 were covered at any number of records, of events .56 to .79."""
    rng, found = np.random.default_rng(15), list[Answer]()
    made = {
        "stays": lambda z: -1.0 + np.exp(0.9 * z - 1.8),
        "exponential": lambda z: -1.0 - 0.25 * stats.norm.logsf(z),
        "events": lambda z: np.where(z > 1.34, 1.0, -1.0),
        "normal": lambda z: 0.3 * z,
    }[shape]

    def drawn(n: int) -> np.ndarray:
        z = rng.normal(size=(n, 2))
        z[:, 1] = correlated * z[:, 0] + math.sqrt(1.0 - correlated**2) * z[:, 1]
        return np.clip(made(z), -1.0, 1.0)

    truth = float(np.corrcoef(drawn(1_000_000).T)[0, 1])
    for _ in range(400):
        z = np.column_stack([np.ones(1500), drawn(1500)])
        found.append(correlations.correlation(z.T @ z, 0, 1, 0.0, 0.0))
    assert 0.915 <= coverage(found, truth) <= 0.97 + 0.03 * (shape != "normal")


@pytest.mark.parametrize("truth", [1.0, 0.98])
def test_with_noise_intervals_of_columns_that_are_nearly_one_cover(truth: float) -> None:
    rng, std, found = np.random.default_rng(12), 4.0, list[Answer]()
    for _ in range(400):
        x, other = rng.normal(size=(2, 4000)) * 0.3
        z = np.column_stack([np.ones(4000), x, truth * x + math.sqrt(1.0 - truth**2) * other])
        noise = np.triu(rng.normal(size=(3, 3)) * std / math.sqrt(2.0), 1)
        noised = z.T @ z + noise + noise.T + np.diag(rng.normal(size=3) * std)
        found.append(correlations.correlation(noised, 0, 1, std, std / math.sqrt(2.0)))
    assert coverage(found, truth) >= 0.93
    assert np.median([figure(answer).half_width for answer in found]) < 0.05


@pytest.mark.parametrize(("truth", "middle"), [(0.0, 0.8), (0.5, -0.8), (0.0, 0.5), (0.9, 0.8)])
def test_with_noise_correlations_of_columns_far_from_their_middle_cover(truth: float, middle: float) -> None:
    """As of stays within wide bounds: .74 of the first were covered, since the noise of counts and sums was left out."""
    rng, std, found = np.random.default_rng(13), 4.0, list[Answer]()
    for _ in range(400):
        x, other = rng.normal(size=(2, 2000)) * 0.14
        z = np.column_stack([np.ones(2000), middle + x, middle + truth * x + math.sqrt(1.0 - truth**2) * other])
        noise = np.triu(rng.normal(size=(3, 3)) * std / math.sqrt(2.0), 1)
        noised = z.T @ z + noise + noise.T + np.diag(rng.normal(size=3) * std)
        found.append(correlations.correlation(noised, 0, 1, std, std / math.sqrt(2.0)))
    assert 0.925 <= coverage(found, truth) <= 0.995


# -- survival -------------------------------------------------------------------------------------------------------------


def survival_counts(
    times: np.ndarray, causes: np.ndarray, edges: np.ndarray, rng: np.random.Generator | None = None, kinds: int = 2
) -> SurvivalCounts:
    """Counts of one group, noised if a generator is given."""
    ends = np.zeros((len(edges) - 1, kinds))
    place, inside = np.clip(np.searchsorted(edges, times, side="left") - 1, 0, None), times <= edges[-1]
    np.add.at(ends, (place[inside], causes[inside]), 1)
    std = SIGMA if rng is not None else 0.0
    beyond = float((~inside).sum())
    if rng is not None:
        ends, beyond = ends + rng.normal(size=ends.shape) * std, beyond + float(rng.normal()) * std
    return SurvivalCounts(ends, beyond, std, tuple(edges.tolist()))


def draw_times(rng: np.random.Generator, n: int, rate: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    death, end = rng.exponential(1 / rate, n), rng.uniform(1, 12, n)
    return np.minimum(death, end), np.where(death <= end, 1 + (rng.random(n) < 0.3), 0)


def test_a_survival_curve_without_noise_is_lifelines() -> None:
    lifelines = pytest.importorskip("lifelines")
    rng = np.random.default_rng(8)
    edges = np.linspace(0, 6, 61)
    times, causes = draw_times(rng, 5000)
    curve = survival.survival_curve(survival_counts(times, causes, edges, kinds=3))
    assert isinstance(curve, SurvivalCurve)
    fitted = lifelines.KaplanMeierFitter().fit(times, causes > 0)
    expected = fitted.survival_function_at_times(curve.times).to_numpy()
    np.testing.assert_allclose([item.value for item in curve.survival], expected, atol=2e-3)
    band = fitted.confidence_interval_
    low = np.interp(3.0, band.index, band.iloc[:, 0])
    assert curve.survival[29].low == pytest.approx(low, abs=5e-3)
    median = survival.survival_quantile(curve, 0.0, 0.5)
    assert figure(median).value == pytest.approx(fitted.median_survival_time_, abs=0.1)
    restricted = figure(survival.restricted_mean(survival_counts(times, causes, edges, kinds=3)))
    assert restricted.value == pytest.approx(lifelines.utils.restricted_mean_survival_time(fitted, t=6.0), abs=5e-3)
    incidence = survival.cumulative_incidence(survival_counts(times, causes, edges, kinds=3), 2)
    johansen = lifelines.AalenJohansenFitter(calculate_variance=False).fit(times, causes, event_of_interest=2)
    assert incidence[29].value == pytest.approx(float(johansen.predict(3.0)), abs=5e-3)


def test_log_rank_without_noise_is_lifelines() -> None:
    statistics = pytest.importorskip("lifelines.statistics")
    rng = np.random.default_rng(9)
    edges = np.linspace(0, 6, 301)
    groups = [draw_times(rng, 600, rate) for rate in (0.2, 0.25, 0.2)]
    found = survival.log_rank([survival_counts(times, (causes > 0).astype(int), edges) for times, causes in groups])
    assert isinstance(found, Test)
    times, causes = (np.concatenate(parts) for parts in zip(*groups, strict=True))
    inside = np.where(times <= 6.0, causes > 0, False)
    expected = statistics.multivariate_logrank_test(np.minimum(times, 6.0), np.repeat([0, 1, 2], 600), inside)
    assert found.statistic == pytest.approx(expected.test_statistic, rel=0.05)
    assert found.degrees == 2


def test_without_noise_a_group_that_has_died_out_ends_no_comparison_of_the_others() -> None:
    """All of the first group have their event in the first interval; the other two differ later. Times are at the ends of
    intervals, and nobody is censored before the horizon, so that intervals hide nothing."""
    statistics = pytest.importorskip("lifelines.statistics")
    rng = np.random.default_rng(13)
    edges = np.arange(0.0, 9.0)
    times = [np.ones(30), rng.integers(2, 9, 80).astype(float), np.minimum(rng.integers(4, 13, 80), 9).astype(float)]
    groups = [survival_counts(own, np.ones(len(own), dtype=int), edges) for own in times]
    found = survival.log_rank(groups)
    assert isinstance(found, Test)
    every = np.concatenate(times)
    expected = statistics.multivariate_logrank_test(every.clip(max=8.0), np.repeat([0, 1, 2], [30, 80, 80]), every <= 8.0)
    assert found.statistic == pytest.approx(expected.test_statistic, rel=1e-6)
    assert found.degrees == 2
    nobody = survival_counts(np.zeros(0), np.zeros(0, dtype=int), edges)
    with_nobody = survival.log_rank([groups[1], nobody, groups[2]])
    pair = survival.log_rank(groups[1:])
    assert isinstance(with_nobody, Test)
    assert isinstance(pair, Test)
    assert (with_nobody.statistic, with_nobody.degrees) == pytest.approx((pair.statistic, 1), rel=1e-9)
    assert isinstance(survival.log_rank([nobody, groups[1]]), NotEstimable)


@pytest.mark.system
@pytest.mark.parametrize(("records", "bins"), [(500, 6), pytest.param(5000, 12, marks=pytest.mark.system)])
def test_survival_figures_cover_and_log_rank_keeps_its_level(records: int, bins: int) -> None:
    rng = np.random.default_rng(records)
    edges = np.linspace(0, 6, bins + 1)
    found: dict[str, list[Answer]] = {"survival": [], "median": [], "mean": [], "incidence": []}
    rejected = []
    for _ in range(120):
        times, causes = draw_times(rng, records)
        counts = survival_counts(times, causes, edges, rng, kinds=3)
        curve = survival.survival_curve(counts)
        assert isinstance(curve, SurvivalCurve)
        found["survival"].append(curve.survival[bins // 2 - 1])
        found["median"].append(survival.survival_quantile(curve, 0.0, 0.5))
        found["mean"].append(survival.restricted_mean(counts))
        found["incidence"].append(survival.cumulative_incidence(counts, 1)[bins // 2 - 1])
        group = rng.integers(0, 2, records)
        parts = [survival_counts(times[group == k], (causes[group == k] > 0).astype(int), edges, rng) for k in (0, 1)]
        test = survival.log_rank(parts)
        if isinstance(test, Test):
            rejected.append(test.p_value < 0.05)
    truth = {"survival": math.exp(-0.6), "median": 5 * math.log(2), "mean": 5 * (1 - math.exp(-1.2))}
    truth["incidence"] = 0.7 * (1 - math.exp(-0.6))
    for name, answers in found.items():
        told = [answer for answer in answers if isinstance(answer, Figure)]
        if len(told) > 60:
            assert np.mean([answer.low <= truth[name] <= answer.high for answer in told]) >= 0.89, name
    assert len(rejected) > 60
    assert np.mean(rejected) <= 0.1


def test_a_curve_ends_where_the_number_at_risk_is_within_noise() -> None:
    rng = np.random.default_rng(10)
    times, causes = draw_times(rng, 300)
    curve = survival.survival_curve(survival_counts(times, causes, np.linspace(0, 6, 31), rng, kinds=3))
    assert isinstance(curve, SurvivalCurve)
    assert curve.truncated
    few = SurvivalCounts(np.full((4, 2), 1.0), 2.0, SIGMA, (0.0, 1.0, 2.0, 3.0, 4.0))
    assert isinstance(survival.survival_curve(few), NotEstimable)
    assert isinstance(survival.restricted_mean(few), NotEstimable)
    assert isinstance(survival.log_rank([few, few]), NotEstimable)
