"""What estimates of epsilon are made of, each part against its definition: losses, quadrature, inversion and grids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import brentq

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.accounting import estimate
from veilsum_privacy.accounting.domination import Direction, normal_mass, power
from veilsum_privacy.accounting.estimate import (
    GRID_ERROR,
    Line,
    choose_line,
    epsilon_by_grid,
    epsilon_by_inversion,
    surely_within,
)
from veilsum_privacy.accounting.losses import LossSteps, plan_quadrature, window
from veilsum_privacy.accounting.renyi import ORDERS

DIRECTIONS: tuple[Direction, ...] = (1, -1)


def steps_of(*groups: tuple[float, float, float], unsampled: float = 0.0) -> LossSteps:
    """Steps of (rate, D / sigma, number)."""
    rate, shift, count = np.array(groups, dtype=np.float64).reshape(-1, 3).T
    return LossSteps(rate, shift, count, unsampled)


def tilted(rate: float, shift: float, direction: Direction, z: complex, x: Floats) -> tuple[Any, Floats]:
    """Exponent of the density of P times exp(z Y) at x, but for a constant, and Y."""
    loss = direction * np.log((1 - rate) + rate * np.exp(shift * x - shift**2 / 2))
    return (z + 1 if direction > 0 else z) * loss - x * x / 2, loss


def moment(rate: float, shift: float, direction: Direction, z: complex) -> complex:
    """log E[exp(z Y)] by a rule far finer and wider than any that is planned."""
    ends = (-40.0, (1 + z.real) * shift + 40) if direction > 0 else (-z.real * shift - 40, 40.0)
    x, gap = np.linspace(*ends, 60_001, retstep=True)
    exponent, _ = tilted(rate, shift, direction, z, x)
    peak = exponent.real.max()
    return complex(peak + np.log(np.exp(exponent - peak).sum() * gap / math.sqrt(2 * math.pi)))


CASES = [
    (0.01, 0.9, 5.0),
    (0.5, 3.3, 0.3),
    (0.9, 0.05, 40.0),
    (1e-6, 1.0, 12.0),
    (0.3, 0.3, 2.0),
    (0.2, 5.0, 2.0),
    (0.05, 1.5, 0.1),
]
"""Rate, D / sigma and the real part of z."""


def test_losses_are_those_of_the_mixture() -> None:
    steps = steps_of((0.3, 1.5, 4), (1.0, 0.5, 1), (1e-9, 3.0, 2), unsampled=0.25)
    x = np.array([[-3.0, 0.0, 7.0]] * 3)
    with np.errstate(all="raise"):
        found = steps.loss(x)
    for row, rate, shift in zip(found, steps.rate, steps.shift, strict=True):
        np.testing.assert_allclose(row, np.log(1 - rate + rate * np.exp(shift * x[0] - shift**2 / 2)), rtol=1e-12, atol=1e-16)
    some, whole = steps.take(np.array([2, 0])), steps.with_unsampled()
    assert [some.rate.tolist(), some.shift.tolist(), some.count.tolist()] == [[1e-9, 0.3], [3.0, 1.5], [2.0, 4.0]]
    assert [whole.rate[-1], whole.shift[-1], whole.count[-1]] == [1.0, 0.5, 1.0]
    assert [whole.rate[:-1].tolist(), whole.shift[:-1].tolist()] == [steps.rate.tolist(), steps.shift.tolist()]
    assert whole.count[:-1].tolist() == steps.count.tolist()
    assert some.unsampled == whole.unsampled == 0.0  # or it would count again


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_window_ends_where_the_integrand_is_negligible(direction: Direction) -> None:
    """Where it is below exp(-45) of its peak on 96 points within nine standard deviations; nothing outside counts."""
    for c in (0.0, 0.3, 2.0, 40.0):
        groups = [(0.01, 0.9), (0.5, 3.3), (0.9, 0.05), (1e-6, 1.0), (0.2, 5.0), (1 - 1e-9, 2.9), (0.3, 30.0), (0.999, 60.0)]
        groups = [(rate, shift) for rate, shift in groups if c * shift < 200]
        found = window(steps_of(*((rate, shift, 1) for rate, shift in groups)), direction, c)
        for (rate, shift), start, stop in zip(groups, *found, strict=True):
            first, last = (-9.0, (1 + c) * shift + 9) if direction > 0 else (-c * shift - 9, 9.0)
            with np.errstate(over="ignore"):
                fine = np.linspace(first - 6, last + 6, 4001)
                outside = (fine < start) | (fine > stop)
                fine_exponent, _ = tilted(rate, shift, direction, c, fine)
                gap = (last - first) / 95
                scan = first + gap * np.arange(96)
                exponent, _ = tilted(rate, shift, direction, c, scan)
            if shift < 20:
                assert fine_exponent[outside].max() < fine_exponent.max() - 40
            kept = range(96) if gap > 0.5 else np.flatnonzero(exponent > exponent.max() - 45)
            assert start == pytest.approx(first + gap * max(0, kept[0] - 1), abs=1e-9)
            assert stop == pytest.approx(first + gap * min(95, kept[-1] + 1), abs=1e-9)


def test_a_scan_of_half_a_standard_deviation_is_fine_enough() -> None:
    """47.5 in all, a gap of .5 exactly: the integrand, around 29.5, is found by it."""
    start, stop = window(steps_of((1.0, 29.5, 1)), 1, 0.0)
    assert start[0] > 15
    assert stop[0] == 38.5


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_quadrature_is_planned_with_the_widest_spacing(direction: Direction) -> None:
    for rate, shift, c in CASES:
        for largest in (0.0, 3.0, 50.0):
            steps = steps_of((0.5, 1.0, 1), (rate, shift, 3))
            found, (start, stop) = plan_quadrature(steps, direction, c, largest), window(steps, direction, c)
            growth, limit = (0.5, math.pi / shift) if direction > 0 else (0.5 + c * shift**2 / 8, 2 / shift)
            y = np.linspace(limit / 1e5, limit, 100_001)[1:]
            widest = float(np.max(2 * math.pi / (largest * shift + 36 / y + growth * y)))
            assert found.spacing[1] == pytest.approx(widest, rel=1e-6)
            np.testing.assert_array_equal(found.start, start)
            ends = found.start + found.spacing * (found.nodes - 1)
            assert np.all((ends >= stop - 1e-9) & (ends < stop + found.spacing))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_quadrature_finds_moments_to_thirteen_digits(direction: Direction) -> None:
    for c in sorted({c for _, _, c in CASES}):
        for largest in (0.0, 3.0, 20.0):
            groups = [(rate, shift) for rate, shift, of in CASES if of == c] + [(0.7, 1.1)]
            v = np.array([largest / 3, 2 * largest / 3, largest]) if largest else np.zeros(1)
            steps = steps_of(*((rate, shift, 1) for rate, shift in groups))
            for index, (rate, shift) in enumerate(groups):
                alone = steps.take(np.array([index]))
                found = estimate._log_moments(alone, direction, c, plan_quadrature(alone, direction, c, largest), v)
                scale = moment(rate, shift, direction, c + 0j).real
                exact = np.array([moment(rate, shift, direction, c + 1j * each) for each in v])
                np.testing.assert_allclose(np.exp(found - scale), np.exp(exact - scale), rtol=0, atol=2e-13)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_moments_of_many_steps_are_multiplied(direction: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [(0.3, 0.2 + index / 9, float(index % 4 + 1)) for index in range(9)] + [(1e-4, 4.0, 2.0), (0.9, 0.01, 7.0)]
    v = 0.4 * np.arange(5, 9)
    exact = sum(n * np.array([moment(q, shift, direction, 1.5 + 1j * each) for each in v]) for q, shift, n in groups)
    for batch in (1, 300, 1 << 14):
        monkeypatch.setattr(estimate, "_BATCH", batch)
        for chosen in (groups, groups[::-1]):
            steps = steps_of(*chosen)
            found = estimate._log_moments(steps, direction, 1.5, plan_quadrature(steps, direction, 1.5, v[-1]), v)
            np.testing.assert_allclose(found.real, exact.real, rtol=1e-11, atol=1e-11)
            np.testing.assert_allclose(np.exp(1j * (found - exact).imag), 1.0, rtol=0, atol=1e-10)
    none = steps_of()
    np.testing.assert_array_equal(
        estimate._log_moments(none, direction, 1.0, plan_quadrature(none, direction, 1.0, 9.0), v), np.zeros(4)
    )


CURVES = [
    ORDERS * 1e-9,
    ORDERS * 0.02,
    ORDERS * 3.0,
    np.minimum(1e-3 * ORDERS, np.exp(np.minimum(ORDERS - 40, 20))),
    np.maximum(0.01 * ORDERS, (ORDERS - 5) * 4.0),
]


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-12])
def test_no_line_has_a_shorter_period(curve: Floats, delta: float) -> None:
    def wrapped(c: float, period: float) -> float:
        """Log of the larger of what is added from the left and from the right, relative to what is allowed."""
        s = ORDERS - 1
        right = np.min((s * curve - (s - c) * period)[s > c])
        return float(max(-c * period, right)) - math.log(delta * 1e-4 * min(1.0, c))

    line = choose_line(curve, delta)
    assert line.c in ORDERS - 1
    assert wrapped(line.c, line.period * (1 + 1e-9)) <= 1e-9
    assert all(wrapped(float(c), line.period * (1 - 1e-9)) > 0 for c in (ORDERS - 1)[:-1])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("delta", [0.1, 1e-9])
@pytest.mark.parametrize("c", [0.1, 1.0, 17.0])
@pytest.mark.parametrize(("groups", "unsampled"), [([], 0.5), ([(0.1, 1.2, 9.0)], 0.0), ([(0.4, 0.3, 2.0)], 3.0)])
def test_chernoffs_bound_is_where_it_should_be(
    groups: list[tuple[float, float, float]], unsampled: float, c: float, delta: float, direction: Direction
) -> None:
    """E[(1 - exp(epsilon - Y))+] is at most M(c) exp(-c epsilon) max over y > 0 of (1 - exp(-y)) exp(-c y)."""
    log_m = unsampled * c * (c + 1) / 2 + sum(n * moment(q, shift, direction, c + 0j).real for q, shift, n in groups)
    y = math.log1p(1 / c)
    least = (log_m + math.log(-math.expm1(-y)) - c * y - math.log(delta)) / c
    steps, line = steps_of(*groups, unsampled=unsampled), Line(c, 1.0)
    assert surely_within(steps, direction, line, least + 1e-9 / c, delta)
    assert not surely_within(steps, direction, line, least - 1e-9 / c, delta)


@given(limit=st.floats(0, 600), part=st.floats(0, 1))
def test_the_smallest_is_rounded_up_by_a_hair(limit: float, part: float) -> None:
    true = limit * part
    found = estimate._smallest(lambda epsilon: epsilon >= true, limit)
    assert found is not None
    assert true <= found <= true + 1e-7 * max(1.0, true) * 1.001
    assert estimate._smallest(lambda epsilon: True, limit) == 0.0
    assert estimate._smallest(lambda epsilon: epsilon > limit * (1 + 2e-9) + 2e-9, limit) is None
    assert estimate._smallest(lambda epsilon: epsilon >= limit * (1 + 0.9e-9) + 0.9e-9, limit) is not None


@pytest.mark.parametrize(("ratio", "c", "spacing", "delta"), [(0.5, 3.0, 0.21, 1e-5), (0.04, 20.0, 0.9, 1e-3)])
def test_what_is_left_out_of_the_integral_is_bounded(ratio: float, c: float, spacing: float, delta: float) -> None:
    """The upper end has the largest |M| of the last chunk on what is left out; none is told while that matters."""
    told, previous = [], None
    for count in range(2, 60):
        v = spacing * np.arange(count)
        z = c + 1j * v
        log_m, last = ratio / 2 * z * (z + 1), (ratio / 2 * z * (z + 1))[count // 2 :]
        left_out = math.exp(last.real.max()) / (spacing * count) / math.pi
        terms = np.exp(log_m) / (z * (z + 1))

        def missing(epsilon: float, added: float, z: Any = z, terms: Any = terms) -> float:
            waves = (terms * np.exp(-z * epsilon)).real
            return float(spacing / math.pi * (waves.sum() - waves[0] / 2)) + added * math.exp(-c * epsilon) - delta

        ends = [_root(lambda epsilon, added=added: missing(epsilon, added)) for added in (0.0, left_out)]
        found = estimate._solve_inversion(log_m, last, c, spacing, delta, 9.0)
        told.append(found is not None)
        if found is not None:
            assert ends[1] <= found + 1e-10
            assert ends[1] == pytest.approx(found, abs=1e-7 * max(1.0, found))
            assert ends[1] - ends[0] <= 2.01e-4
        elif ends[1] is not None and ends[0] is not None:
            assert ends[1] - ends[0] >= 1.99e-4
        if found is not None and previous is not None:
            assert found <= previous + 2e-7
        previous = found
    assert not told[0]
    assert told[-1]
    assert estimate._solve_inversion(log_m, last, c, spacing, delta, 0.1) is None


def _root(function: Callable[[float], float]) -> float | None:
    values = [function(float(epsilon)) for epsilon in np.linspace(0, 9, 10)]
    return float(brentq(function, 0.0, 9.0, xtol=1e-12)) if values[0] > 0 > values[-1] else None


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_points_are_doubled_until_work_is_too_much(direction: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single rarely sampled step: M hardly falls off."""
    steps, line = steps_of((1e-3, 1.2, 1)), Line(3.0, 12.0)
    chunks: list[Floats] = []

    def spy(steps: LossSteps, direction: Direction, c: float, quadrature: Any, v: Floats) -> Any:
        chunks.append(v)
        assert len(chunks) < 20
        planned = plan_quadrature(steps, direction, c, float(v[-1]) + 2 * math.pi / 12)
        np.testing.assert_allclose(quadrature.spacing, planned.spacing)
        return real(steps, direction, c, quadrature, v)

    real = estimate._log_moments
    monkeypatch.setattr(estimate, "_log_moments", spy)
    monkeypatch.setattr(estimate, "_LARGEST_WORK", 2e5)
    assert epsilon_by_inversion(steps, direction, line, 1e-7, 9.0) is None
    np.testing.assert_allclose(np.concatenate(chunks), 2 * math.pi / 12 * np.arange(sum(map(len, chunks))))
    assert [len(chunk) for chunk in chunks[1:]] == [32 * 2**index for index in range(len(chunks) - 1)]
    work = [
        plan_quadrature(steps, direction, 3.0, 2 * math.pi / 12 * 32 * 2 ** max(0, index)).nodes.sum()
        * 32
        * 2 ** max(0, index - 1)
        for index in range(len(chunks) + 1)
    ]
    assert sum(work[:-1]) <= 2e5 < sum(work)


# Grids


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_untilted_losses_have_their_mean_and_variance(direction: Direction) -> None:
    groups = [(rate, shift) for rate, shift, _ in CASES]
    untilted = estimate._untilted(steps_of(*((rate, shift, 1) for rate, shift in groups)), direction)
    assert untilted is not None
    loss, weights = untilted
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    for (rate, shift), mine, weight in zip(groups, loss, weights, strict=True):
        x = np.linspace(-40, 40, 60_001)
        exponent, exact = tilted(rate, shift, direction, 0.0, x)
        density = np.exp(exponent) / np.exp(exponent).sum()
        for degree in (1, 2):
            assert (weight * mine**degree).sum() == pytest.approx((density * exact**degree).sum(), rel=1e-10)


def test_too_many_points_of_quadrature_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of(*((0.1, 0.5 + index / 10, 1) for index in range(4)))
    points = 4 * int(plan_quadrature(steps, 1, 0.0, 0.0).nodes.max())
    monkeypatch.setattr(estimate, "_LARGEST_GRID", points)
    assert estimate._untilted(steps, 1) is not None
    monkeypatch.setattr(estimate, "_LARGEST_GRID", points - 1)
    assert estimate._untilted(steps, 1) is None
    assert epsilon_by_grid(steps, 1, Line(3.0, 10.0), 1e-5, 1e-8, 5.0) is None


@example(losses=[(1e-6, 1000.0)], log_chance=25.0)
@example(losses=[(2e-5, 300.0), (0.5, 1e-4)], log_chance=20.0)
@example(losses=[(1.0, 5.5e5), (0.0, 4.5e5)], log_chance=20.0)  # a wider grid would do, were the errors a tenth smaller
@given(
    losses=st.lists(st.tuples(st.floats(-18, 1.0).map(math.exp), st.floats(-16, 12).map(math.exp)), min_size=1, max_size=6),
    log_chance=st.floats(5, 60),
)
def test_grids_are_as_wide_as_a_tail_bound_allows(losses: list[tuple[float, float]], log_chance: float) -> None:
    loss, weights = np.array(losses).T[:, np.newaxis]
    width = estimate._grid_width(loss, weights, log_chance)
    hoeffding = GRID_ERROR / math.sqrt(weights.sum() * log_chance / 2)
    halvings = 2 * math.log2(width / hoeffding)
    assert halvings == pytest.approx(round(halvings), abs=1e-6)

    def log_tail(width: float) -> float:
        """Log of Bernstein's bound on the chance that errors of at most this width sum to more than GRID_ERROR."""
        variance = sum(each * min(y * y, width * width / 4) for y, each in losses)
        return -(GRID_ERROR**2) / 2 / (variance + width * GRID_ERROR / 3)

    assert round(halvings) >= 0
    if round(halvings) > 0:
        assert log_tail(width) <= -log_chance * (1 - 1e-9)
    assert log_tail(width * math.sqrt(2)) >= -log_chance * (1 + 1e-9)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_grids_reach_as_far_as_both_windows(direction: Direction) -> None:
    steps, width = steps_of(*((rate, shift, 1) for rate, shift, _ in CASES)), 0.01
    lowest, highest = estimate._reach(steps, direction, 2.5, width)
    ends = np.stack([*window(steps, direction, 0.0), *window(steps, direction, 2.5)], axis=1)
    for index, (rate, shift, _) in enumerate(CASES):
        places = [tilted(rate, shift, direction, 0.0, x)[1] / width for x in ends[index]]
        assert lowest[index] == math.floor(min(places) + 1e-9)
        assert highest[index] == math.ceil(max(places) - 1e-9)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("rate", "shift"), [(0.3, 0.8), (0.01, 2.5), (1e-5, 1.1), (1.0, 0.7), (0.97, 4.0)])
def test_masses_are_those_between_edges(rate: float, shift: float, direction: Direction) -> None:
    width, places = 0.05, np.arange(-60, 140)
    with np.errstate(all="raise", under="ignore"):
        found = estimate._masses(rate, shift, direction, width, places)
    with mpmath.workdps(40):
        q, s = mpmath.mpf(rate), mpmath.mpf(shift)

        def tail(loss: float) -> tuple[mpmath.mpf, mpmath.mpf]:
            """Where a removed record's loss is at most this: chances under the noise and under the shifted noise."""
            inside = (mpmath.exp(loss) - 1 + q) / q
            if inside <= 0:
                return mpmath.mpf(0), mpmath.mpf(0)
            x = mpmath.log(inside) / s + s / 2
            return mpmath.ncdf(x), mpmath.ncdf(x - s)

        for mass, place in zip(found[::7], places[::7], strict=True):
            edges = [mpmath.mpf(direction) * (int(place) + side) * mpmath.mpf(width) for side in (-0.5, 0.5)]
            (low, low_shifted), (high, high_shifted) = map(tail, sorted(edges))
            plain, moved = high - low, high_shifted - low_shifted
            assert mass == pytest.approx(float(plain if direction < 0 else (1 - q) * plain + q * moved), rel=1e-7, abs=1e-24)


def test_normal_masses_keep_their_digits_in_both_tails() -> None:
    x = np.array([-np.inf, -12.0, -11.9, -0.1, 0.0, 0.3, 11.0, 11.2, np.inf])
    with mpmath.workdps(40):
        edges = [mpmath.ncdf(each) for each in x]
        exact = [float(high - low) for low, high in itertools.pairwise(edges)]
    np.testing.assert_allclose(normal_mass(x[:-1], x[1:]), exact, rtol=1e-12)


def test_powers_are_products() -> None:
    base = np.array([2 + 0j, 1j, -1.0])
    for exponent in range(1, 20):
        np.testing.assert_array_equal(power(base, exponent), np.prod([base] * exponent, axis=0))


@given(
    masses=st.lists(st.floats(1e-6, 1), min_size=3, max_size=30),
    first=st.floats(0, 0.1),
    delta=st.floats(-12, -1).map(math.exp),
)
def test_delta_is_met_between_places(masses: list[float], first: float, delta: float) -> None:
    losses, chances = first + 0.1 * np.arange(len(masses)), np.array(masses) / sum(masses)

    def left(epsilon: float) -> float:
        return float(np.sum(chances * np.maximum(0, 1 - np.exp(epsilon - losses)))) - delta

    found = estimate._solve(chances, losses, delta, 9.0)
    if left(losses[0]) <= 0:  # between 0 and the first place, which are less than a width apart
        assert found == 0.0
        return
    epsilon = float(brentq(left, 0.0, losses[-1]))
    assert found == pytest.approx(epsilon, abs=1e-9)
    above = losses[losses >= epsilon].min()
    assert estimate._solve(chances, losses, delta, above - GRID_ERROR + 1e-9) == found
    assert estimate._solve(chances, losses, delta, above - GRID_ERROR - 1e-9) is None


def test_where_masses_are_lost_delta_is_met() -> None:
    losses = np.array([0.0, 300.0, 600.0, 800.0])
    with np.errstate(all="raise", under="ignore"):
        assert estimate._solve(np.array([0.0, 0.5, 0.0, 0.0]), losses, 0.25, 9e9) == pytest.approx(300 + math.log(0.5))
        assert estimate._solve(np.array([0.0, 0.0, 0.0, -1.0]), losses, 1e-3, 9e9) == 0.0
    last = next(each for each in np.arange(1.0, 99.0) if math.exp(each) * math.exp(-each) < 1)
    assert estimate._solve(np.array([0.0, 1.0]), np.array([0.0, last]), 1e-300, 9e9) is None  # the last place exceeds it


@pytest.mark.sampled(3)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("groups", "unsampled", "c"),
    [([(0.2, 0.9, 3.0), (0.01, 1.3, 2.0)], 0.0, 6.0), ([(1e-3, 1.5, 5.0)], 0.3, 3.0), ([(0.5, 1.2, 1.0)], 0.0, 4.0)],
)
def test_masses_of_all_steps_are_convolved(
    groups: list[tuple[float, float, float]], unsampled: float, c: float, direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, line, guarantee = steps_of(*groups, unsampled=unsampled), Line(c, 11.0), 7.0
    chances: list[float] = []
    handed: list[Any] = []
    real = estimate._grid_width

    def width_of(loss: Floats, weights: Floats, log_chance: float) -> float:
        chances.append(log_chance)
        assert weights.sum() == pytest.approx(sum(n for _, _, n in groups) + (unsampled > 0))
        return real(loss, weights, log_chance) * 4.0

    monkeypatch.setattr(estimate, "_grid_width", width_of)
    monkeypatch.setattr(estimate, "_solve", lambda *arguments: handed.append(arguments) or 1.25)
    assert epsilon_by_grid(steps, direction, line, 1e-5, 1e-9, guarantee) == 1.25
    [(masses, losses, delta, limit)] = handed
    assert chances == [pytest.approx(math.log(12e9))]
    assert (delta, limit) == (1e-5, guarantee)
    width = losses[1] - losses[0]
    assert 0 <= losses[0] < width
    np.testing.assert_allclose(np.diff(losses), width)
    assert 18.0 <= len(losses) * width < 36.0
    every = [*groups, *([(1.0, math.sqrt(unsampled), 1.0)] if unsampled else [])]
    composed, mean, lowest = np.ones(1), 0.0, 0
    for rate, shift, count in every:
        ends = [tilted(rate, shift, direction, 0.0, np.float64(x))[1] for x in (-c * shift - 12, (1 + c) * shift + 12)]
        places = np.arange(math.floor(min(ends) / width), math.ceil(max(ends) / width) + 1)
        own = estimate._masses(rate, shift, direction, width, places)
        x = np.linspace(-40, 40, 60_001)
        exponent, loss = tilted(rate, shift, direction, 0.0, x)
        density = np.exp(exponent) / np.exp(exponent).sum()
        for _ in range(int(count)):
            composed, lowest = np.convolve(composed, own), lowest + int(places[0])
            mean += float((density * loss).sum()) - width * float(own @ places)
    exact = (np.arange(len(composed)) + lowest) * width + mean  # the mean is what it was before rounding
    first = int(np.argmin(np.abs(exact - losses[0])))
    assert exact[first] == pytest.approx(losses[0], abs=1e-9)
    tilt = composed * np.exp(c * exact)
    wrapped = np.bincount((np.arange(len(composed)) - first) % len(losses), weights=tilt, minlength=len(losses))
    np.testing.assert_allclose(masses * np.exp(c * losses) / tilt.sum(), wrapped / tilt.sum(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_grids_of_too_many_points_are_left_alone(direction: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, line = steps_of((0.2, 0.9, 3.0), (0.01, 1.3, 2.0)), Line(6.0, 11.0)
    handed: list[Any] = []
    monkeypatch.setattr(estimate, "_solve", lambda *arguments: handed.append(arguments) or 1.25)
    assert epsilon_by_grid(steps, direction, line, 1e-5, 1e-9, 7.0) == 1.25
    losses = handed[0][1]
    lowest, highest = estimate._reach(steps, direction, 6.0, losses[1] - losses[0])
    points = 2 * len(losses) + int(np.sum(highest - lowest))
    monkeypatch.setattr(estimate, "_LARGEST_GRID", points)
    assert epsilon_by_grid(steps, direction, line, 1e-5, 1e-9, 7.0) == 1.25
    monkeypatch.setattr(estimate, "_LARGEST_GRID", points - 1)
    assert epsilon_by_grid(steps, direction, line, 1e-5, 1e-9, 7.0) is None
