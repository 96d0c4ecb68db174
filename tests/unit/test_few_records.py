"""Figures of few records without noise: their intervals are those of scipy, statsmodels and lifelines, and none has no length
where records could not have shown another value."""

from __future__ import annotations

import lifelines
import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import Table2x2
from statsmodels.stats.oneway import anova_oneway

from veilsum_aggregation import classification, group_means, quantiles, ratios, survival, tables
from veilsum_aggregation.concordance import area, concordance
from veilsum_aggregation.figures import Answer, Figure, NotEstimable, Test
from veilsum_aggregation.group_means import NumberSums
from veilsum_aggregation.regression import LinearFit
from veilsum_aggregation.survival import SurvivalCounts, SurvivalCurve
from veilsum_aggregation.weighted_means import WeightedSums, difference, ratio
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

SHIFT = 0.7


def exact_sums(x: np.ndarray) -> NumberSums:
    return NumberSums(len(x), float(x.sum()), float((x * x - SHIFT).sum()), SHIFT, 0.0, 0.0, 0.0)


def figure(answer: Answer) -> Figure:
    assert isinstance(answer, Figure), answer
    return answer


def as_test(found: Test | NotEstimable) -> Test:
    assert isinstance(found, Test), found
    return found


# -- quantiles ------------------------------------------------------------------------------------------------------------


def quantile(values: np.ndarray, q: float, edges: np.ndarray) -> Figure:
    column = quantiles.toeplitz_column(len(edges) - 1)
    released = np.linalg.solve(quantiles.prefix_matrix(column), np.cumsum(np.histogram(values, edges)[0]))
    return figure(quantiles.quantiles(released, column, 0.0, edges.tolist(), [q])[0])


@pytest.mark.parametrize("records", [1, 2, 5, 6, 9, 17, 60, 1000, 100_000])
@pytest.mark.parametrize("q", [0.02, 0.25, 0.5, 0.9])
def test_a_quantile_has_the_interval_of_the_order_statistics(records: int, q: float) -> None:
    """Each value lies in an interval of its own, or in one of 400 of a large sample: the ends are the edges about scipy's."""
    rng = np.random.default_rng(records)
    values = np.sort(rng.uniform(0.01, 0.99, records))
    inner = (values[1:] + values[:-1]) / 2.0 if records < 400 else np.linspace(0.0, 1.0, 401)[1:-1]
    edges = np.array([0.0, *inner, 1.0])
    found = quantile(values, q, edges)
    expected = stats.quantile_test(values, p=q).confidence_interval(0.95)
    low, high = expected
    if np.isnan(low):
        assert found.low == -np.inf
    else:
        edge = edges[np.searchsorted(edges, low) - 1]
        assert found.low == (-np.inf if edge == 0.0 else pytest.approx(edge))
    if np.isnan(high):
        assert found.high == np.inf
    else:
        edge = edges[np.searchsorted(edges, high)]
        assert found.high == (np.inf if edge == 1.0 else pytest.approx(edge))


def test_quantiles_of_few_records_cover() -> None:
    rng, edges = np.random.default_rng(1), np.linspace(-4.0, 4.0, 257)
    for records, q in ((5, 0.5), (8, 0.25), (15, 0.9)):
        truth = stats.norm.ppf(q)
        found = [quantile(np.clip(rng.normal(size=records), -4, 4), q, edges) for _ in range(600)]
        assert np.mean([each.low <= truth <= each.high for each in found]) >= 0.94


# -- means and deviations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(3, 4), (2, 2), (5, 9, 4), (2, 30, 3, 8)])
def test_few_records_means_are_compared_by_welchs_test(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(sizes))
    groups = [rng.uniform(-0.3, 0.3 + 0.1 * place, size) for place, size in enumerate(sizes)]
    found = as_test(group_means.equal_means([exact_sums(x) for x in groups]))
    assert found.p_value == pytest.approx(anova_oneway(groups, use_var="unequal").pvalue, rel=1e-7)
    if len(sizes) == 2:
        assert found.p_value == pytest.approx(stats.ttest_ind(*groups, equal_var=False).pvalue, rel=1e-7)


VALUES = st.one_of(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), st.floats(-1.0, 1.0), st.floats(0.97, 1.0))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(VALUES, min_size=2, max_size=40), min_size=2, max_size=4))
def test_any_groups_means_are_compared_by_welchs_test(drawn: list[list[float]]) -> None:
    """However far a group lies from the mean of all: its variance is its own."""
    groups = [np.array(x) for x in drawn]
    assume(all(x.std() > 1e-3 for x in groups))
    found = as_test(group_means.equal_means([exact_sums(x) for x in groups]))
    expected = anova_oneway(groups, use_var="unequal").pvalue
    assert found.p_value == pytest.approx(expected, rel=1e-5, abs=1e-12)
    assert not found.note


def test_few_records_means_are_rejected_as_often_as_stated() -> None:
    rng, rejected = np.random.default_rng(2), list[bool]()
    for _ in range(1000):
        x, y, z = rng.normal(0.1, 0.2, 4), rng.normal(0.1, 0.2, 5), rng.normal(0.1, 0.1, 6)
        rejected.append(as_test(group_means.equal_means([exact_sums(each) for each in (x, y, z)])).p_value < 0.05)
    assert 0.02 <= np.mean(rejected) <= 0.08


def test_means_of_single_records_and_of_groups_that_do_not_vary_are_not_compared() -> None:
    one, pair = exact_sums(np.array([0.2])), exact_sums(np.array([0.1, 0.3]))
    assert isinstance(group_means.equal_means([one, pair]), NotEstimable)
    assert as_test(group_means.equal_means([one, pair, pair])).left_out == (0,)
    same, other = (exact_sums(np.full(4, value)) for value in (0.25, -0.5))
    assert isinstance(group_means.equal_means([same, other]), NotEstimable)
    x = np.array([0.1, 0.3, 0.35])
    known = as_test(group_means.equal_means([same, exact_sums(x)]))
    assert known.p_value == pytest.approx(stats.ttest_1samp(x, 0.25).pvalue, rel=1e-6)
    assert "all alike" in known.note


@pytest.mark.parametrize("records", [2, 3, 4, 5, 7, 12, 20, 60, 200])
def test_the_deviation_of_any_events_indicator_covers(records: int) -> None:
    """Exactly, by the binomial distribution: of 2 to 5 records .70 to .88 were."""
    numbers = np.arange(records + 1)
    found = [figure(group_means.variance(exact_sums(np.where(np.arange(records) < k, 1.0, -1.0)))) for k in numbers]
    for share in (0.003, 0.01, 0.03, 0.09, 0.2, 0.3, 0.5, 0.8, 0.95, 0.99):
        truth = 4.0 * share * (1.0 - share)
        held = np.array([each.low <= truth <= each.high for each in found])
        assert stats.binom.pmf(numbers, records, share) @ held >= 0.95


@pytest.mark.parametrize("records", [3, 5, 12])
def test_deviations_of_few_records_cover(records: int) -> None:
    rng = np.random.default_rng(records)
    found = [figure(group_means.variance(exact_sums(rng.normal(0.0, 0.15, records)))) for _ in range(800)]
    assert np.mean([each.low <= 0.15**2 <= each.high for each in found]) >= 0.93
    assert all(0.0 < each.low < each.value < each.high for each in found)


@pytest.mark.parametrize("records", [2, 5, 60, 400])
def test_numbers_that_are_all_alike_tell_of_others_what_shares_do(records: int) -> None:
    """Of an event's indicator both bounds of the mean are Clopper and Pearson's, and the deviation is that of such a share."""
    for value, events in ((-1.0, 0), (1.0, records)):
        expected = stats.binomtest(events, records).proportion_ci(method="exact")
        sums = exact_sums(np.full(records, value))
        mean, variance = figure(group_means.mean(sums)), figure(group_means.variance(sums))
        assert ((mean.low + 1.0) / 2.0, mean.value, (mean.high + 1.0) / 2.0) == pytest.approx(
            (expected.low, value, expected.high)
        )
        shares = np.linspace(expected.low, expected.high, 101)
        assert (variance.value, variance.low) == (pytest.approx(0.0, abs=1e-12), 0.0)
        assert variance.high == pytest.approx(4.0 * (shares * (1.0 - shares)).max(), rel=1e-3)
    inside = figure(group_means.mean(exact_sums(np.full(records, 0.2))))
    assert -1.0 < inside.low < inside.value < inside.high < 1.0


def test_losses_of_few_records_have_students_interval() -> None:
    losses = np.array([0.1, 0.4, 0.35, 2.0])
    found = classification.mean_of(losses, 0.0, 30.0)
    expected = stats.t.interval(0.95, 3, losses.mean(), losses.std(ddof=1) / 2.0)
    assert (found.low, found.high) == pytest.approx((0.0, expected[1]))
    alike = classification.mean_of(np.full(60, 0.25), 0.0, 30.0)
    assert alike.high == pytest.approx(0.25 + 29.75 * (1.0 - 0.025 ** (1 / 60)))


# -- effects ----------------------------------------------------------------------------------------------------------------


def weighted(y: np.ndarray, w: np.ndarray) -> WeightedSums:
    return WeightedSums(w.sum(), w @ y, (w @ w, w**2 @ y, w**2 @ y**2), 0.0, 0.0, 4.0)


@pytest.mark.parametrize("records", [1, 3, 40])
def test_a_share_of_a_treatment_that_all_or_none_have_is_not_certain(records: int) -> None:
    w = np.full(records, 0.25)
    none, all_have = (figure(weighted(np.full(records, value), w).mean(share=True)) for value in (0.0, 1.0))
    expected = stats.binomtest(0, records).proportion_ci(method="wilson")
    assert (none.value, none.low, none.high) == (0.0, pytest.approx(0.0, abs=1e-12), pytest.approx(expected.high))
    assert (all_have.low, all_have.high) == (pytest.approx(1.0 - expected.high), pytest.approx(1.0))
    for apart in (difference(all_have, none), difference(none, none), ratio(all_have, all_have)):
        assert isinstance(apart, NotEstimable)
    half = figure(weighted(np.array([0.0, 1.0] * 10), np.full(20, 0.25)).mean(share=True))
    found, of = figure(difference(none, half)), figure(ratio(all_have, half))
    assert found.low < -0.5 < found.high
    assert found.high - found.value > none.high - none.value
    assert of.low < 2.0 < of.high
    assert np.log(of.high / 2.0) == pytest.approx(np.log(half.value / half.low), rel=1e-6)


def test_numbers_of_a_treatment_that_are_all_alike_are_not_certain() -> None:
    found = figure(weighted(np.full(40, -1.0), np.full(40, 0.5)).mean())
    assert (found.low + 1.0) / 2.0 == pytest.approx(0.0, abs=1e-12)
    assert (found.high + 1.0) / 2.0 == pytest.approx(stats.binomtest(0, 40).proportion_ci(method="exact").high)


def test_a_single_numbers_mean_under_weights_may_be_anything() -> None:
    one = figure(weighted(np.array([0.3]), np.array([0.5])).mean())
    assert (one.value, one.low, one.high) == (pytest.approx(0.3), -np.inf, np.inf)
    apart = figure(difference(one, figure(weighted(np.array([0.1, 0.2, -0.3]), np.full(3, 0.5)).mean())))
    assert apart.p_value > 0.5


# -- areas ------------------------------------------------------------------------------------------------------------------


def test_an_area_of_few_records_covers_and_is_never_certain() -> None:
    rng, truth = np.random.default_rng(3), float(stats.norm.cdf(1.5 / np.sqrt(2.0)))
    found = []
    for _ in range(500):
        scores = np.concatenate([rng.normal(size=8), rng.normal(1.5, 1.0, 6)])
        edges = np.sort(scores)
        levels = np.searchsorted(edges, scores)
        without, events = (np.bincount(levels[part], minlength=14).astype(float) for part in (slice(8), slice(8, None)))
        found.append(figure(area(without, events, 0.0)))
    assert np.mean([each.low <= truth <= each.high for each in found]) >= 0.93
    assert all(each.low < each.high for each in found)
    apart = figure(area(np.array([5.0, 0.0]), np.array([0.0, 5.0]), 0.0))
    assert (apart.value, apart.high) == (1.0, 1.0)
    assert 0.4 < apart.low < 0.9
    assert figure(area(np.array([0.0, 500.0]), np.array([500.0, 0.0]), 0.0)).high > 0.0


@pytest.mark.parametrize(
    ("noise", "events", "apart"), [(0.1, 4, 1.0), (0.1, 15, 2.0), (0.1, 30, 2.0), (0.3, 8, 1.0), (0.6, 8, 2.0)]
)
def test_with_little_noise_an_area_of_few_events_covers_as_without(noise: float, events: int, apart: float) -> None:
    """A normal interval of what few events show covered .80, .84, .89, .92 of these, and .99 where noise is most of it."""
    rng, truth, found = np.random.default_rng(4), float(stats.norm.cdf(apart / np.sqrt(2.0))), []
    for _ in range(400):
        scores = np.concatenate([rng.normal(size=200), rng.normal(apart, 1.0, events)])
        levels = np.clip(((scores + 3.0) / (6.0 + apart) * 16).astype(int), 0, 15)
        without, have = (np.bincount(levels[part], minlength=16) for part in (slice(200), slice(200, None)))
        found.append(area(without + noise * rng.normal(size=16), have + noise * rng.normal(size=16), noise))
    told = [each for each in found if isinstance(each, Figure)]
    assert len(told) > 200
    assert 0.92 <= np.mean([each.low <= truth <= each.high for each in told]) <= 0.99


def test_a_concordance_without_a_mistake_is_not_certain() -> None:
    ends, beyond = np.zeros((3, 3, 2)), np.zeros(3)
    ends[2, 0, 1], ends[1, 1, 1], ends[0, 2, 1] = 2.0, 2.0, 2.0
    found = figure(concordance(ends, beyond, 0.0))
    assert found.value == found.high == pytest.approx(1.0)
    assert 0.3 < found.low < 0.9


# -- regressions and tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [4, 7, 40])
def test_a_regression_of_few_records_has_students_intervals(records: int) -> None:
    rng = np.random.default_rng(records)
    x = rng.uniform(-1, 1, (records, 2))
    y = 0.3 * x[:, 0] + rng.normal(0.0, 0.1, records)
    z = np.column_stack([np.ones(records), x, y])
    fit, expected = LinearFit(z.T @ z, 0.0, ("constant", "a", "b")), sm.OLS(y, z[:, :3]).fit()
    for place, row in enumerate(np.eye(3)):
        found = figure(fit.combination(row))
        assert (found.low, found.high) == pytest.approx(tuple(expected.conf_int()[place]), rel=1e-6, abs=1e-9)
        assert found.p_value == pytest.approx(expected.pvalues[place], rel=1e-6)
    assert as_test(fit.all_slopes()).p_value == pytest.approx(expected.f_pvalue, rel=1e-6)


@pytest.mark.parametrize(
    "table", [[[3, 0], [0, 3]], [[1, 4], [6, 2]], [[2, 1], [1, 2]], [[0, 3], [40, 900]], [[3, 1], [9000, 3]]]
)
def test_a_table_of_few_records_has_fishers_p(table: list[list[float]]) -> None:
    found = as_test(tables.independence(np.array(table, dtype=float), 0.0))
    assert found.p_value == pytest.approx(stats.fisher_exact(table).pvalue, rel=1e-7)
    assert "Fisher" in found.note


def test_a_larger_table_says_that_its_p_is_approximate() -> None:
    assert "approximate" in as_test(tables.independence(np.array([[3.0, 1, 2], [0, 4, 1]]), 0.0)).note
    full = np.array([[30.0, 50, 20], [60, 40, 40]])
    assert as_test(tables.independence(full, 0.0)).note == ""
    assert as_test(tables.independence(full, 2.0)).note == ""


def test_no_association_is_called_detectable_that_cannot_be() -> None:
    few = as_test(tables.independence(np.array([[1.0, 1], [1, 1]]), 0.0))
    assert tables.cramers_v(few, 4.0, (2, 2)) is None
    # 80% power of a chi-squared test with one degree of freedom takes a noncentrality of 7.849
    assert tables.cramers_v(few, 100.0, (2, 2)) == pytest.approx(np.sqrt(7.849 / 100), rel=1e-3)


def test_an_outcome_that_does_not_vary_is_not_explained() -> None:
    z = np.column_stack([np.ones(50), np.linspace(-1, 1, 50), np.full(50, -1.0)])
    fit = LinearFit(z.T @ z, 0.0, ("constant", "a"))
    assert isinstance(fit.combination(np.array([0.0, 1.0])), NotEstimable)
    assert isinstance(fit.all_slopes(), NotEstimable)


def test_a_risk_ratio_where_all_have_the_event_is_not_certain() -> None:
    lowest = stats.binomtest(6, 6).proportion_ci(method="exact").low
    both = figure(ratios.risk_ratio(np.array([[6.0, 0], [9, 0]]), 0.0))
    assert (both.value, both.low) == (1.0, pytest.approx(lowest))
    assert both.high == pytest.approx(1.0 / stats.binomtest(9, 9).proportion_ci(method="exact").low)
    one = figure(ratios.risk_ratio(np.array([[6.0, 0], [5, 4]]), 0.0))
    katz = np.exp(np.log(9 / 5) + np.array([-1.0, 1.0]) * 1.959963984540054 * np.sqrt(1 / 5 - 1 / 9))
    assert one.high == pytest.approx(katz[1])
    assert one.low < katz[0]
    usual = figure(ratios.risk_ratio(np.array([[3.0, 3], [5, 4]]), 0.0))
    expected = Table2x2(np.array([[3, 3], [5, 4]])).riskratio_confint()
    assert (usual.low, usual.high) == pytest.approx(expected)
    assert isinstance(
        ratios.pooled_risk_ratio(np.array([[[6.0, 0], [9, 0]], [[2, 0], [4, 0]]]), ratios.StrataNoise(0.0)), NotEstimable
    )


# -- survival ---------------------------------------------------------------------------------------------------------------


def lives(ends: list[list[float]], beyond: float, std: float = 0.0) -> SurvivalCounts:
    return SurvivalCounts(np.array(ends), beyond, std, tuple(float(edge) for edge in range(len(ends) + 1)))


@pytest.mark.parametrize("records", [1, 3, 20, 400])
def test_where_nobody_had_the_event_it_is_not_certain_that_nobody_will(records: int) -> None:
    counts = lives([[0, 0, 0], [0, 0, 0]], float(records))
    curve = survival.survival_curve(counts)
    assert isinstance(curve, SurvivalCurve)
    expected = stats.binomtest(records, records).proportion_ci(method="exact")
    for found in curve.survival:
        assert (found.value, found.high) == (1.0, 1.0)
        assert found.low == pytest.approx(expected.low, rel=1e-9)
    mean = figure(survival.restricted_mean(counts))
    assert (mean.value, mean.low, mean.high) == (2.0, pytest.approx(2.0 * expected.low), 2.0)
    incidence = survival.cumulative_incidence(counts, 2)[-1]
    assert (incidence.value, incidence.low, incidence.high) == (0.0, 0.0, pytest.approx(1.0 - expected.low))


def test_where_some_were_censored_fewer_are_known_to_live() -> None:
    curve = survival.survival_curve(lives([[8, 0], [0, 0]], 2.0))
    assert isinstance(curve, SurvivalCurve)
    first, second = curve.survival
    assert first.low == pytest.approx(0.025 ** (1 / 6))  # ten, less half of the eight that were censored in it
    assert second.low == pytest.approx(0.025 ** (1 / 2))


def test_with_noise_too_what_nobody_had_may_be() -> None:
    curve = survival.survival_curve(lives([[0, 0], [0, 0]], 60.0, 0.01))
    assert isinstance(curve, SurvivalCurve)
    assert all(found.low == pytest.approx(0.025 ** (1 / 60), abs=1e-3) for found in curve.survival)


def test_an_incidence_of_all_is_not_certain() -> None:
    found = survival.cumulative_incidence(lives([[0, 5], [0, 0]], 0.0), 1)[0]
    assert (found.value, found.low, found.high) == (1.0, pytest.approx(0.025 ** (1 / 5)), 1.0)


def test_all_who_die_in_one_interval_have_a_mean_within_it() -> None:
    mean = figure(survival.restricted_mean(lives([[0, 0], [0, 5], [0, 0]], 0.0)))
    assert mean.value == pytest.approx(1.5)
    assert mean.low == pytest.approx(0.025 ** (1 / 5))
    assert mean.high == pytest.approx(2.0 + 1.0 - 0.025 ** (1 / 5))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("scale", "n", "least"), [(5.0, 5, 0.91), (5.0, 10, 0.92), (20.0, 20, 0.92)])
def test_a_restricted_mean_of_few_records_covers(scale: float, n: int, least: float) -> None:
    """Of exponential times without censoring, cut off at 6; the truth is that of the interpolated curve of all."""
    rng, edges = np.random.default_rng(n), np.arange(7.0)
    alive = np.exp(-edges / scale)
    truth = float((alive[1:] + alive[:-1]).sum() / 2.0)
    held = []
    for _ in range(400):
        ends = np.histogram(times := rng.exponential(scale, n), edges)[0]
        table = np.column_stack([np.zeros(6), ends])
        found = survival.restricted_mean(SurvivalCounts(table, float((times > 6.0).sum()), 0.0, tuple(edges.tolist())))
        held.append(figure(found).low <= truth <= figure(found).high)
    assert least <= np.mean(held) <= 0.995


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_all_who_die_in_the_last_interval_have_a_mean_within_it(noise: float) -> None:
    for ends, before, length in (([[0, 5]], 0.0, 1.0), ([[0, 0], [0, 0], [0, 5]], 2.0, 1.0)):
        mean = figure(survival.restricted_mean(lives(ends, 0.0, noise)))
        assert mean.value == pytest.approx(before + length / 2.0, abs=1e-5)
        assert mean.low <= before * 0.025 ** (1 / 5) + 1e-5
        assert mean.high == pytest.approx(before + length)


@pytest.mark.parametrize(
    ("low", "high", "start"), [(0.0, 60.0, 10.0), (5.0, 60.0, 5.0), (5.0, 60.0, 20.0), (-10.0, 50.0, 0.0)]
)
def test_times_count_from_their_column_s_lower_bound(low: float, high: float, start: float) -> None:
    """Those before the first edge are in the first interval, and a mean time is one from 0; it was one from the first edge."""
    from lifelines.utils import restricted_mean_survival_time

    from support.edges import SITES
    from support.studies import agreed, demand, federation, split_records
    from veilsum.compile import StudyRequest
    from veilsum_coordinator.methods import METHODS

    rng = np.random.default_rng(10)
    numbers, died = rng.beta(1.0, 2.0, 4000), rng.random(4000) < 0.7
    features = np.column_stack([2.0 * numbers - 1.0, ~died, died])
    schema = DatasetSchema(
        columns=(NumberColumn(name="time", low=low, high=high), CategoryColumn(name="end", categories=("alive", "died"))),
        max_records=8000,
    )
    edges = [start, *np.arange(start, high, 1.0)[1:].tolist(), high]
    query = {"kind": "survival", "over": "time", "event": "end", "censored": ["alive"], "edges": edges}
    asked = {"name": "e", "method": "statistics", "dataset": "d", "data": schema, "expected_records": 1000, "query": [query]}
    study = agreed(StudyRequest.model_validate(asked | {"privacy": demand(None)}), list(SITES))
    sites = split_records(Records(features, np.ones(features.shape, dtype=np.bool_), None), 4)
    rows = METHODS["statistics"].run(federation(study, sites, 0, {})).summary["survival"]
    times = low + numbers * (high - low)
    fitted = lifelines.KaplanMeierFitter().fit(times - low, died)
    expected = low + restricted_mean_survival_time(fitted, t=high - low)
    (mean,) = (row for row in rows if row["figure"] == "restricted mean")
    first = times <= edges[1]
    wide = 0.5 * (edges[1] - low) * first.mean()  # of those in the first interval nothing more is known
    assert mean["value"]["value"] == pytest.approx(expected, abs=0.1 + wide)
    assert mean["time"] == high


def test_rare_events_have_lifelines_intervals() -> None:
    """Above .99 too, where the normal interval of one event in 200 reached 1."""
    counts = lives([[0, 1, 0], [0, 1, 1], [0, 0, 1]], 196.0)
    times = np.repeat([1.0, 2.0, 2.0, 3.0, 4.0], [1, 1, 1, 1, 196])
    causes = np.repeat([1, 1, 2, 2, 0], [1, 1, 1, 1, 196])
    curve = survival.survival_curve(counts)
    assert isinstance(curve, SurvivalCurve)
    band = lifelines.KaplanMeierFitter().fit(times, causes > 0).confidence_interval_survival_function_
    for time, found in zip((1.0, 2.0, 3.0), curve.survival, strict=True):
        assert (found.low, found.high) == pytest.approx(tuple(band.loc[time]), abs=1e-9)
        assert found.high < 1.0
    johansen = lifelines.AalenJohansenFitter(calculate_variance=True).fit(
        times + np.linspace(-1e-6, 1e-6, len(times)), causes, event_of_interest=1
    )
    expected = johansen.confidence_interval_.loc[:2.5].iloc[-1]
    found = survival.cumulative_incidence(counts, 1)[1]
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=0.02)


# -- with little noise ------------------------------------------------------------------------------------------------------


def sums_with(x: np.ndarray, noise: tuple[float, float], rng: np.random.Generator) -> NumberSums:
    """Sums of which the noise has one standard deviation where it is drawn, and another where it is told."""
    count, total, square = np.array([len(x), x.sum(), (x * x - SHIFT).sum()]) + noise[0] * rng.normal(size=3)
    return NumberSums(float(count), float(total), float(square), SHIFT, *[noise[1]] * 3)


def told_with(noise: tuple[float, float]) -> dict[str, Figure]:
    """Figures of few records by name."""
    rng = np.random.default_rng(8)
    x, y = rng.uniform(-0.5, 0.5, (2, 6))
    z = np.column_stack([np.ones(6), x, x / 2.0 + y])
    edges, column = np.array([-1.0, -0.3, -0.1, 0.0, 0.1, 0.3, 1.0]), quantiles.toeplitz_column(6)
    released = np.linalg.solve(quantiles.prefix_matrix(column), np.cumsum(np.histogram(x, edges)[0]))
    counts = lives([[0, 0], [2, 1], [0, 0]], 60.0, noise[1])
    curve = survival.survival_curve(counts)
    assert isinstance(curve, SurvivalCurve)
    found = {
        "mean": group_means.mean(sums_with(x, noise, rng)),
        "variance": group_means.variance(sums_with(x, noise, rng)),
        "mean of all alike": group_means.mean(sums_with(np.full(6, -1.0), noise, rng)),
        "variance of all alike": group_means.variance(sums_with(np.full(6, -1.0), noise, rng)),
        "median": quantiles.quantiles(released, column, noise[1], edges.tolist(), [0.5])[0],
        "slope": LinearFit(z.T @ z, noise[1]).combination(np.array([0.0, 1.0])),
        "risk ratio of all": ratios.risk_ratio(np.array([[6.0, 0], [5, 4]]), noise[1]),
        **{f"survival {place}": each for place, each in enumerate(curve.survival)},
        **{f"incidence {place}": each for place, each in enumerate(survival.cumulative_incidence(counts, 1))},
        "restricted mean": survival.restricted_mean(lives([[0, 0], [0, 0]], 9.0, noise[1])),
    }
    return {name: figure(answer) for name, answer in found.items()}


def test_what_next_to_no_noise_leaves_has_the_interval_that_it_has_without() -> None:
    without, found = told_with((0.0, 0.0)), told_with((1e-9, 1e-7))
    for name, expected in without.items():
        assert (found[name].low, found[name].high) == pytest.approx((expected.low, expected.high), abs=1e-4), name
        if name == "slope":
            assert found[name].p_value == pytest.approx(expected.p_value, rel=1e-4)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("records", [3, 6, 12])
def test_with_little_noise_few_records_cover(records: int, noise: float) -> None:
    """At .01, normal intervals covered .80, .86, .92 of the means, .61, .74, .81 of variances, .85 to .89 of the slopes."""
    rng, means, variances, slopes = np.random.default_rng(records), [], [], []
    for _ in range(500):
        sums = sums_with(rng.normal(0.0, 0.3, records), (noise, noise), rng)
        means.append(group_means.mean(sums))
        variances.append(group_means.variance(sums))
        x = rng.uniform(-1.0, 1.0, records + 3)
        z = np.column_stack([np.ones(records + 3), x, 0.3 * x + rng.normal(0.0, 0.3, records + 3)])
        off = np.triu(rng.normal(size=(3, 3)) * noise / np.sqrt(2.0), 1)
        released = z.T @ z + off + off.T + np.diag(noise * rng.normal(size=3))
        slopes.append(LinearFit(released, noise).combination(np.array([0.0, 1.0])))
    for answers, truth in ((means, 0.0), (variances, 0.09), (slopes, 0.3)):
        told = [each for each in answers if isinstance(each, Figure)]
        assert len(told) >= 450
        assert np.mean([each.low <= truth <= each.high for each in told]) >= 0.92


@pytest.mark.parametrize("sizes", [(3, 4), (4, 5, 6)])
def test_with_little_noise_equal_means_of_few_records_are_rejected_as_often_as_stated(sizes: tuple[int, ...]) -> None:
    """By chi-squared .16 and .19 were."""
    rng, rejected = np.random.default_rng(5), list[bool]()
    for _ in range(1000):
        groups = [sums_with(rng.normal(0.1, 0.3, size), (0.02, 0.02), rng) for size in sizes]
        rejected.append(as_test(group_means.equal_means(groups)).p_value < 0.05)
    assert 0.02 <= np.mean(rejected) <= 0.08


@pytest.mark.parametrize(("records", "prevalence"), [(100, 0.1), (400, 0.03), (60, 0.5)])
def test_the_deviation_of_an_events_indicator_covers(records: int, prevalence: float) -> None:
    """Its fourth moment is that of two values: as of normal numbers, .70 of a tenth's deviations were covered."""
    rng, truth = np.random.default_rng(6), 4.0 * prevalence * (1.0 - prevalence)
    drawn = [np.where(rng.random(records) < prevalence, 1.0, -1.0) for _ in range(600)]
    found = [figure(group_means.variance(exact_sums(x))) for x in drawn]
    assert np.mean([each.low <= truth <= each.high for each in found]) >= 0.93


@pytest.mark.parametrize(("records", "noise"), [(8, 2.1), (16, 5.7), (20, 5.7), (30, 5.7)])
def test_the_deviation_of_a_rare_event_covers_where_noise_is_large(records: int, noise: float) -> None:
    """What noise on the sums changes grows with the mean, which noise made small: .90 of 16 records were covered."""
    rng, truth = np.random.default_rng(records), 4.0 * 0.03 * 0.97
    drawn = (np.where(rng.random(records) < 0.03, 1.0, -1.0) for _ in range(2000))
    found = [group_means.variance(sums_with(x, (noise, noise), rng)) for x in drawn]
    told = [each.low <= truth <= each.high for each in found if isinstance(each, Figure) and each.value > 0.0]
    assert len(told) >= 300
    assert np.mean(told) >= 0.93


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(("records", "noise"), [(5, 0.0), (8, 0.0), (5, 0.01), (8, 0.1)])
def test_effects_of_few_records_cover(records: int, noise: float, *, share: bool) -> None:
    """Normal intervals covered .83 to .90 of the differences between arms of 5 or 8 (of shares .95 and .98 without noise)."""
    rng, found = np.random.default_rng(records), list[Answer]()

    def arm(truth: float) -> Answer:
        w = rng.uniform(0.2, 1.0, records)
        y = (rng.random(records) < truth) * 1.0 if share else rng.normal(truth, 0.2, records)
        off = noise * rng.normal(size=5) * np.array([1.0, 1.0, 2.5, 2.5, 2.5])
        sums = np.array([w.sum(), w @ y, w @ w, w**2 @ y, w**2 @ y**2]) + off
        return WeightedSums(sums[0], sums[1], tuple(sums[2:]), noise, 2.5 * noise, 4.0).mean(share=share)

    for _ in range(500):
        found.append(difference(arm(0.3), arm(0.2)))
    told = [each for each in found if isinstance(each, Figure)]
    assert len(told) >= 450
    assert np.mean([each.low <= 0.1 <= each.high for each in told]) >= 0.95
    for each in told:
        assert (each.p_value < 0.05) == (not each.low <= 0.0 <= each.high)
        assert np.isfinite([each.noise_error, each.sampling_error]).all()
