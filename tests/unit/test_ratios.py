"""Odds ratios, risk ratios and risk differences of fourfold tables: statsmodels' without noise, honest intervals with it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from statsmodels.stats.contingency_tables import StratifiedTable, Table2x2
from statsmodels.stats.proportion import confint_proportions_2indep

from veilsum_aggregation.figures import Answer, Figure, NotEstimable, Test
from veilsum_aggregation.ratios import (
    _AD,
    _BC,
    _EXPOSED,
    _SIZES,
    StrataNoise,
    _Pooled,
    consistent,
    no_association,
    odds_ratio,
    pooled_odds_ratio,
    pooled_risk_difference,
    pooled_risk_ratio,
    risk_difference,
    risk_ratio,
)
from veilsum_privacy.tasks.queries.kinds.tables import CONTRASTS

Floats = NDArray[np.float64]

TABLES = [[[74, 751], [74, 751]], [[3, 97], [11, 40]], [[1, 1], [1, 1]], [[500, 20], [300, 900]], [[2, 900], [40, 3]]]
STRATA = [
    [[[12, 40], [30, 90]], [[5, 100], [9, 33]], [[60, 10], [7, 8]]],
    [[[1, 5], [0, 9]], [[0, 3], [2, 4]], [[2, 2], [1, 7]], [[3, 0], [1, 1]], [[0, 0], [1, 6]]],
    [[[74, 751], [40, 785]]],
]
SIGMA = 4.5
"""Of counts at epsilon 1 and delta 1e-5 with one colluder of five."""


def figure(answer: Answer) -> Figure:
    assert isinstance(answer, Figure), answer
    return answer


@pytest.mark.parametrize("table", TABLES)
def test_one_table_without_noise_is_statsmodels(table: list[list[int]]) -> None:
    array, oracle = np.array(table, dtype=float), Table2x2(np.array(table))
    for found, value, ends, p in [
        (figure(odds_ratio(array, 0.0)), oracle.oddsratio, oracle.oddsratio_confint(), oracle.oddsratio_pvalue()),
        (figure(risk_ratio(array, 0.0)), oracle.riskratio, oracle.riskratio_confint(), oracle.riskratio_pvalue()),
    ]:
        assert (found.value, found.low, found.high) == pytest.approx((value, *ends), rel=1e-9)
        assert found.noise_error == 0.0
        assert found.p_value == pytest.approx(p, rel=1e-6, abs=1e-12)
    (a, b), (c, d) = table
    apart = figure(risk_difference(array, 0.0))
    expected = confint_proportions_2indep(a, a + b, c, c + d, method="newcomb")
    assert (apart.low, apart.high) == pytest.approx(expected, rel=1e-6)
    assert apart.value == pytest.approx(a / (a + b) - c / (c + d), rel=1e-9)


@pytest.mark.parametrize(
    "table", [*TABLES, [[2, 0], [0, 2]], [[0, 20], [3, 17]], [[0, 9], [0, 7]], [[5, 0], [30, 1]], [[1, 0], [0, 400]]]
)
def test_the_p_value_of_a_difference_of_risks_is_pearsons(table: list[list[int]]) -> None:
    """Also where nobody of a group, or everybody, has the event, which leaves each risk's own error at 0."""
    array = np.array(table, dtype=float)
    expected = stats.chi2_contingency(array, correction=False).pvalue if array.sum(axis=0).all() else 1.0
    assert figure(risk_difference(array, 0.0)).p_value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "strata", [[[[2, 0], [0, 2]], [[3, 0], [0, 1]]], [[[0, 10], [0, 8]], [[0, 4], [0, 9]]], [[[5, 0], [7, 0]]]]
)
def test_no_difference_in_common_is_certain_of_a_few_records(strata: list[list[list[int]]]) -> None:
    """Where no group has both ends, Sato's variance is 0, and an interval without length would say that the risks are known;
    each stratum's own, by Newcombe's, has one."""
    tables = np.array(strata, dtype=float)
    assert isinstance(pooled_risk_difference(tables, StrataNoise(0.0)), NotEstimable)
    assert all(figure(risk_difference(table, 0.0)).half_width > 0.05 for table in tables)
    assert isinstance(pooled_risk_difference(np.array([*strata, [[3, 4], [2, 5]]], dtype=float), StrataNoise(0.0)), Figure)


def test_with_noise_a_difference_of_risks_is_rejected_as_often_as_stated() -> None:
    rng, risk, rejected = np.random.default_rng(21), 0.1, list[bool]()
    for _ in range(2000):
        events = rng.binomial(200, risk, 2)
        noised = np.column_stack([events, 200 - events]) + rng.normal(size=(2, 2)) * SIGMA
        found = risk_difference(noised, SIGMA)
        rejected += [found.p_value < 0.05] if isinstance(found, Figure) else []
    assert len(rejected) == 2000
    assert 0.03 <= np.mean(rejected) <= 0.065


@pytest.mark.parametrize("strata", STRATA)
def test_strata_without_noise_are_statsmodels(strata: list[list[list[int]]]) -> None:
    array, oracle = np.array(strata, dtype=float), StratifiedTable([np.array(table) for table in strata if np.sum(table)])
    odds, risk = figure(pooled_odds_ratio(array, StrataNoise(0.0))), figure(pooled_risk_ratio(array, StrataNoise(0.0)))
    assert (odds.value, odds.low, odds.high) == pytest.approx((oracle.oddsratio_pooled, *oracle.oddsratio_pooled_confint()))
    assert risk.value == pytest.approx(oracle.riskratio_pooled)
    test, expected = no_association(array, StrataNoise(0.0)), oracle.test_null_odds(correction=False)
    assert isinstance(test, Test)
    assert (test.statistic, test.p_value) == pytest.approx((expected.statistic, expected.pvalue))


def test_one_stratum_is_its_table() -> None:
    """The variances of Robins, Breslow and Greenland and of Greenland and Robins are Woolf's and Katz's there; Sato's is the
    average of the binomial variance with itself."""
    for table in (np.array(item, dtype=float) for item in TABLES):
        for pooled, one in ((pooled_odds_ratio, odds_ratio), (pooled_risk_ratio, risk_ratio)):
            for std in (0.0, 1e-3):
                whole, part = figure(pooled(table[np.newaxis], StrataNoise(std))), figure(one(table, std))
                assert (whole.value, whole.low, whole.high) == pytest.approx((part.value, part.low, part.high), rel=1e-5)
                assert whole.noise_error == pytest.approx(part.noise_error, rel=1e-4)
        (a, b), (c, d) = table
        apart = figure(pooled_risk_difference(table[np.newaxis], StrataNoise(0.0)))
        assert apart.value == pytest.approx(a / (a + b) - c / (c + d))
        assert apart.sampling_error**2 == pytest.approx(a * b / (a + b) ** 3 + c * d / (c + d) ** 3, rel=1e-9)


def test_the_variance_of_a_pooled_risk_difference_is_satos() -> None:
    """Sato 1989, by hand for two strata."""
    strata = np.array([[[12, 40], [30, 90]], [[5, 100], [9, 33]]], dtype=float)
    top = sum((a * (c + d) - c * (a + b)) / (a + b + c + d) for (a, b), (c, d) in strata)
    bottom = sum((a + b) * (c + d) / (a + b + c + d) for (a, b), (c, d) in strata)
    p = sum(
        ((a + b) ** 2 * c - (c + d) ** 2 * a + (a + b) * (c + d) * (c + d - a - b) / 2) / (a + b + c + d) ** 2
        for (a, b), (c, d) in strata
    )
    q = sum((a * d + c * b) / (2 * (a + b + c + d)) for (a, b), (c, d) in strata)
    found = figure(pooled_risk_difference(strata, StrataNoise(0.0)))
    assert found.value == pytest.approx(top / bottom)
    assert found.sampling_error**2 == pytest.approx((top / bottom * p + q) / bottom**2)


COUNTS = st.lists(st.integers(0, 40), min_size=4, max_size=4).map(lambda cells: np.array(cells, dtype=float).reshape(2, 2))


@settings(max_examples=300, deadline=None)
@given(COUNTS, st.sampled_from([0.0, 0.3]))
def test_a_risk_ratio_is_significant_where_its_interval_has_no_1(table: Floats, std: float) -> None:
    """Also where all of a group have the event, which of three exposed is no surprise."""
    found = risk_ratio(table, std)
    assume(isinstance(found, Figure))
    nearest = min(abs(math.log(figure(found).low)), abs(math.log(figure(found).high)))
    assume(nearest > 1e-6)
    assert (figure(found).p_value < 0.05) == (not figure(found).low <= 1.0 <= figure(found).high)


@settings(max_examples=300, deadline=None)
@given(st.lists(COUNTS, min_size=1, max_size=3), st.sampled_from([0.0, 0.3, 4.5]), st.sampled_from([0.0, 0.1]))
def test_a_ratio_is_significant_where_its_interval_has_no_1(strata: list[Floats], std: float, told: float) -> None:
    for found in (
        odds_ratio(strata[0], std),
        pooled_odds_ratio(np.stack(strata), StrataNoise(std, told)),
        pooled_risk_ratio(np.stack(strata), StrataNoise(std, told)),
    ):
        if isinstance(found, Figure) and min(abs(math.log(found.low)), abs(math.log(found.high))) > 1e-6:
            assert found.low < found.value < found.high
            assert (found.p_value < 0.05) == (not found.low <= 1.0 <= found.high)


def test_ratios_of_large_counts_have_the_errors_of_the_delta_rule() -> None:
    """By hand: sums of 1 / N, and sigma^2 of 1 / N^2; of the risk ratio with the noise of the groups' sizes."""
    table = np.array([[9e4, 3e5], [4e4, 5e5]])
    (a, b), (c, d) = table
    one, other, std = a + b, c + d, 300.0
    noise = sum((1 / x - 1 / n) ** 2 + n**-2 for x, n in ((a, one), (c, other)))
    for found, variance in (
        (figure(odds_ratio(table, std)), np.sum(1 / table) + std**2 * np.sum(table**-2.0)),
        (figure(risk_ratio(table, std)), 1 / a - 1 / one + 1 / c - 1 / other + std**2 * noise),
    ):
        assert math.log(found.high / found.low) == pytest.approx(2 * 1.959964 * math.sqrt(variance), rel=1e-3)


@pytest.mark.parametrize(("exposed", "others"), [((200, 0.04), (800, 0.06)), ((100, 0.06), (900, 0.03))])
def test_where_few_are_told_noise_made_the_numerator_large_and_the_interval_knows(
    exposed: tuple[int, float], others: tuple[int, float]
) -> None:
    """With the delta rule alone .69 to .70, and .42 to .43, of those told are covered."""
    rng, covered = np.random.default_rng(exposed[0]), list[tuple[bool, ...]]()
    truths = exposed[1] / others[1], exposed[1] * (1 - others[1]) / others[1] / (1 - exposed[1])
    for _ in range(4000):
        a, c = rng.binomial(*exposed), rng.binomial(*others)
        table = np.array([[a, exposed[0] - a], [c, others[0] - c]]) + rng.normal(0.0, SIGMA, (2, 2))
        found = risk_ratio(table, SIGMA), odds_ratio(table, SIGMA)
        if not any(isinstance(each, NotEstimable) for each in found):
            covered.append(
                tuple(figure(each).low <= truth <= figure(each).high for each, truth in zip(found, truths, strict=True))
            )
    assert 0.05 < len(covered) / 4000 < 0.2
    assert np.mean(covered, axis=0).min() > (0.78 if exposed[1] < others[1] else 0.54)


@settings(max_examples=300, deadline=None)
@given(st.lists(COUNTS, min_size=1, max_size=4), st.sampled_from([0.0, 1.5, 4.5]))
def test_a_difference_of_risks_lies_between_all_and_none(strata: list[Floats], std: float) -> None:
    for found in (pooled_risk_difference(np.stack(strata), StrataNoise(std)), risk_difference(strata[0], std)):
        if isinstance(found, Figure):
            assert -1.0 <= found.low <= found.value <= found.high <= 1.0


@pytest.mark.parametrize("place", range(4))
def test_an_empty_cell_has_no_ratio_and_says_which(place: int) -> None:
    table = np.array([[9.0, 30.0], [12.0, 31.0]])
    table.flat[place] = 0.0
    names = ["one", "two", "three", "four"]
    found = odds_ratio(table, 0.0, names)
    assert isinstance(found, NotEstimable)
    assert found.reason == f"there is no record of {names[place]}"
    assert isinstance(risk_ratio(table, 0.0, names), NotEstimable if place in (0, 2) else Figure)
    (a, b), (c, d) = table
    apart = figure(risk_difference(table, 0.0))
    assert (apart.low, apart.high) == pytest.approx(
        confint_proportions_2indep(a, a + b, c, c + d, method="newcomb"), rel=1e-6, abs=1e-9
    )
    table.flat[place] = 2.9 * SIGMA
    found = odds_ratio(table * 1.0, SIGMA, names)
    assert isinstance(found, NotEstimable)
    assert "within its noise" in found.reason


EVERY: list[Callable[[Floats, float], object]] = [
    odds_ratio,
    risk_ratio,
    risk_difference,
    lambda table, std: pooled_odds_ratio(np.stack([table, table * 0.0]), StrataNoise(std)),
    lambda table, std: pooled_risk_ratio(np.stack([table, table[::-1]]), StrataNoise(std)),
    lambda table, std: pooled_risk_difference(np.stack([table, table[::-1]]), StrataNoise(std)),
    lambda table, std: no_association(np.stack([table, table[::-1]]), StrataNoise(std)),
]


@pytest.mark.parametrize("std", [0.0, 4.5])
def test_no_table_is_too_odd(std: float) -> None:
    """Empty, lopsided, negative by noise: a figure with finite numbers in order, or words."""
    values = (0.0, 1.0, 14.0, 1e6) if std == 0.0 else (-30.0, -1.0, 0.0, 14.0, 1e6)
    with np.errstate(all="raise", under="ignore"):
        for cells in np.stack(np.meshgrid(*[values] * 4), -1).reshape(-1, 2, 2):
            for function in EVERY:
                found = function(cells, std)
                if isinstance(found, NotEstimable):
                    assert found.reason
                elif isinstance(found, Test):
                    assert 0.0 <= found.p_value <= 1.0
                else:
                    assert isinstance(found, Figure)
                    assert -math.inf < found.low <= found.value <= found.high < math.inf
                    assert 0.0 <= found.p_value <= 1.0


RUNS = 2000
NEAR = 6.2 * math.sqrt(0.95 * 0.05 / RUNS)
"""A share of runs that is right in .95 of them is off by more less than once in 1e9 times."""


@pytest.mark.system
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("risk", "odds"), [(0.09, 1.0), (0.09, 2.0), (0.3, 0.5)])
def test_intervals_cover_what_noise_and_sampling_do_together(risk: float, odds: float) -> None:
    """1,650 records in two groups at epsilon 1: told in every run, hardly wider than without noise, coverage .93 to .97."""
    rng = np.random.default_rng(int(1000 * risk + odds))
    exposed = risk * odds / (1 - risk + risk * odds)
    truths = {odds_ratio: odds, risk_ratio: exposed / risk, risk_difference: exposed - risk}
    hits, widths = dict.fromkeys(truths, 0), {each: list[float]() for each in truths}
    for _ in range(RUNS):
        events = rng.binomial(825, [exposed, risk])
        exact = np.stack([events, 825 - events], axis=1).astype(float)
        noised = exact + rng.normal(0.0, SIGMA, (2, 2))
        for each, truth in truths.items():
            found, plain = figure(each(noised, SIGMA)), figure(each(exact, 0.0))
            hits[each] += found.low <= truth <= found.high
            by = np.log if each is not risk_difference else float
            widths[each].append((by(found.high) - by(found.low)) / (by(plain.high) - by(plain.low)))
    for each in truths:
        assert 0.95 - NEAR < hits[each] / RUNS < 0.96 + NEAR
        assert np.median(widths[each]) < 1.15


@pytest.mark.parametrize("strata", [1, 2, 5])
@pytest.mark.parametrize("levels", [2, 3, 5])
def test_strata_and_contrasts_of_their_sum_are_the_least_squares_estimate(strata: int, levels: int) -> None:
    """Against the normal equations of all released values, and the noise of any two levels against its covariance."""
    rng, std, contrasts_std = np.random.default_rng(strata), 3.0, 4.0
    tables, contrasts = rng.normal(100, 20, (strata, levels, 2)), rng.normal(0.0, 20, (levels, 2))
    found, noise = consistent(tables, contrasts, std, contrasts_std)
    contrast = np.kron(np.eye(levels) - 1.0 / levels, np.eye(2))
    design = np.vstack([np.eye(strata * levels * 2) / std, np.tile(contrast, strata) / contrasts_std])
    seen = np.concatenate([tables.ravel() / std, contrasts.ravel() / contrasts_std])
    assert found.ravel() == pytest.approx(np.linalg.lstsq(design, seen, rcond=None)[0])
    places = np.array([k * levels * 2 + cell for k in range(strata) for cell in (2, 3, 0, 1)])  # the second level, the first
    covariance = np.linalg.inv(design.T @ design)[np.ix_(places, places)]
    gradient = rng.normal(size=(strata, 4))
    assert noise.variance(gradient) == pytest.approx(gradient.ravel() @ covariance @ gradient.ravel())
    same, none = consistent(tables, contrasts, 0.0, 0.0)
    assert np.array_equal(same, tables)
    assert none.variance(gradient) == 0.0


@pytest.mark.parametrize("levels", [2, 3])
def test_what_noise_adds_to_products_is_taken_off(levels: int) -> None:
    """The mean over draws of noise with the covariance that :func:`consistent` leaves, of which a fourth order is small."""
    tables = np.array([[[6.0, 50.0], [9.0, 70.0]], [[12.0, 33.0], [4.0, 28.0]]])
    rng, noise = np.random.default_rng(levels), StrataNoise(2.0, 0.2, levels)
    root = np.linalg.cholesky(4.0 * (np.eye(8) - np.kron(np.ones((2, 2)), noise.explained)))
    drawn = tables.reshape(1, 8) + rng.normal(size=(5000, 8)) @ root.T
    for form in (_AD, _BC, _SIZES, _EXPOSED):
        found = np.array([_Pooled(form, cells.reshape(2, 4), noise).value for cells in drawn])
        exact = _Pooled(form, tables.reshape(2, 4), StrataNoise(0.0)).value
        assert abs(found.mean() - exact) < 6.0 * found.std() / math.sqrt(5000)


@pytest.mark.system
@pytest.mark.parametrize(
    "pooled", [pytest.param(False, marks=pytest.mark.system), True], ids=["strata alone", "and contrasts of their sum"]
)
@pytest.mark.parametrize("odds", [1.0, pytest.param(2.5, marks=pytest.mark.system)])
def test_pooled_intervals_cover_where_strata_confound(odds: float, pooled: bool) -> None:
    """Six strata with risks of 5 to 50% and unequal groups; of risks only what they have in common has a truth: at odds 1.

    With the contrasts of all strata released too, for a quarter of the budget, they are hardly wider than without noise.
    """
    rng = np.random.default_rng(int(odds * 10) + pooled)
    risks, ones, others = np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5]), np.array([60, 90, 130, 180, 220, 150]), np.full(6, 140)
    exposed = risks * odds / (1 - risks + risks * odds)
    truths = {pooled_odds_ratio: odds}
    if odds == 1.0:
        truths |= {pooled_risk_ratio: 1.0, pooled_risk_difference: 0.0}
    std = SIGMA * math.sqrt(1.0 + CONTRASTS * pooled)
    hits, logs, widths, significant = dict.fromkeys(truths, 0), list[float](), list[float](), 0
    for _ in range(RUNS):
        a, c = rng.binomial(ones, exposed), rng.binomial(others, risks)
        exact = np.stack([np.stack([a, ones - a], 1), np.stack([c, others - c], 1)], 1).astype(float)
        released: tuple[Floats, StrataNoise] = exact + rng.normal(0.0, std, (6, 2, 2)), StrataNoise(std)
        if pooled:
            own, whole = std / math.sqrt(2.0 * CONTRASTS), exact.sum(axis=0)
            released = consistent(released[0], whole - whole.mean(axis=0) + rng.normal(0.0, own, (2, 2)), std, own)
        for each, truth in truths.items():
            found = figure(each(*released))
            hits[each] += found.low <= truth <= found.high
        told, plain = figure(pooled_odds_ratio(*released)), figure(pooled_odds_ratio(exact, StrataNoise(0.0)))
        logs.append(math.log(told.value))
        widths.append(math.log(told.high / told.low) / math.log(plain.high / plain.low))
        test = no_association(*released)
        assert isinstance(test, Test)
        significant += test.p_value < 0.05
    for each in truths:
        assert 0.95 - NEAR < hits[each] / RUNS < 0.96 + NEAR
    assert not pooled or np.median(widths) < 1.15
    assert abs(np.mean(logs) - math.log(odds)) < 0.1 * np.std(logs)
    if odds == 1.0:
        assert stats.binom.cdf(significant, RUNS, 0.07) < 1 - 1e-9
        assert significant / RUNS > 0.03
