"""How often the intervals of noised statistics cover, and true hypotheses are rejected: ``python -m evaluations.statistics``.

Sums are made as queries release them, each with the noise of a release that it has to itself at epsilon 1 and delta 1e-5:
4.05 times its sensitivity. Truths are of a million draws, or closed forms.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from lifelines.datasets import load_gbsg2
from numpy.typing import NDArray

from evaluations.tables import print_table, run_options
from veilsum_aggregation import correlations, group_means, quantiles, survival, tables
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.concordance import area, concordance
from veilsum_aggregation.figures import Answer, Figure, NotEstimable, Test
from veilsum_aggregation.group_means import NumberSums
from veilsum_aggregation.regression import LinearFit
from veilsum_aggregation.survival import SurvivalCounts, SurvivalCurve
from veilsum_privacy.tasks.queries.language import FINE_STEPS

SIGMA = 4.05
SHIFT = 0.7
LINEAR, SQUARE = math.sqrt(1.0 - ((1.0 - SHIFT) / SHIFT) ** 2), 1.0 / SHIFT
SIZES = (120, 500, 5000, 50_000)


def shapes(rng: np.random.Generator) -> dict[str, Callable[[int], Floats]]:
    """Numbers in [-1, 1] as clinics have them."""
    return {
        "normal": lambda n: np.clip(rng.normal(0.2, 0.33, n), -1, 1),
        "skewed": lambda n: np.clip(-1 + rng.lognormal(-1.8, 0.9, n), -1, 1),
        "even": lambda n: rng.uniform(-1, 1, n),
    }


def noised(x: Floats, rng: np.random.Generator) -> NumberSums:
    """The sums of a mean's query."""
    std = SIGMA * math.sqrt(2.0)
    stds = std, std / LINEAR, std / SQUARE
    count, total, square = np.array([len(x), x.sum(), (x * x - SHIFT).sum()]) + rng.normal(size=3) * stds
    return NumberSums(float(count), float(total), float(square), SHIFT, *stds)


def line(what: str, n: int, answers: Sequence[Answer], truth: float, runs: int) -> str:
    """One row of the table: coverage where a figure was told, and how often."""
    told = [answer for answer in answers if isinstance(answer, Figure)]
    if len(told) < runs // 4:
        return f"| {what} | {n} | not estimable | {len(told) / runs:.0%} |"
    covered = float(np.mean([figure.low <= truth <= figure.high for figure in told]))
    return f"| {what} | {n} | {covered:.3f} | {len(told) / runs:.0%} |"


def rejection(what: str, n: int, found: Sequence[Test | NotEstimable]) -> str:
    """One row: how often a true hypothesis is rejected at 5%."""
    told = [test for test in found if isinstance(test, Test)]
    rate = f"{np.mean([test.p_value < 0.05 for test in told]):.3f}" if told else "not estimable"
    return f"| {what} | {n} | {rate} | {len(told) / len(found):.0%} |"


def means(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Means and variances."""
    for name, draw in shapes(rng).items():
        whole = draw(1_000_000)
        for n in (80, *SIZES):
            found = [noised(draw(n), rng) for _ in range(runs)]
            yield line(f"mean, {name}", n, [group_means.mean(item) for item in found], float(whole.mean()), runs)
            yield line(f"variance, {name}", n, [group_means.variance(item) for item in found], float(whole.var()), runs)


def quantile_rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Medians and ninth deciles of the intervals that there are by default."""
    edges, column = np.linspace(-1, 1, FINE_STEPS + 1), quantiles.toeplitz_column(FINE_STEPS, 64)
    places = np.subtract.outer(np.arange(FINE_STEPS), np.arange(FINE_STEPS))
    matrix = np.where(places >= 0, column[np.maximum(places, 0)], 0)
    std = SIGMA * math.sqrt(float((column**2).sum()))
    for name, draw in list(shapes(rng).items())[:2]:
        whole = draw(1_000_000)
        for n in SIZES[1:]:
            for q in (0.5, 0.9):
                found = []
                for _ in range(runs):
                    sums = matrix @ np.histogram(draw(n), edges)[0] + rng.normal(size=FINE_STEPS) * std
                    found += quantiles.quantiles(sums, column, std, edges.tolist(), [q])
                yield line(f"quantile {q:g}, {name}", n, found, float(np.quantile(whole, q)), runs)


def table_rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Shares and correlations."""
    for n in SIZES:
        drawn = [rng.multinomial(n, [0.3, 0.5, 0.2]) + rng.normal(size=3) * SIGMA for _ in range(runs)]
        yield line("share", n, [tables.shares(table, SIGMA)[0] for table in drawn], 0.3, runs)
    root = np.linalg.cholesky(np.full((4, 4), 0.3) + 0.7 * np.eye(4))
    std = SIGMA * 5.0
    for n in SIZES[1:]:
        answers = []
        for _ in range(runs):
            z = np.hstack([np.ones((n, 1)), np.clip(0.3 * rng.normal(size=(n, 4)) @ root.T, -1, 1)])
            noise = np.triu(rng.normal(size=(5, 5)) * std / math.sqrt(2.0), 1)
            released = z.T @ z + noise + noise.T + np.diag(rng.normal(size=5) * std)
            answers.append(correlations.correlation(released, 0, 1, std, std / math.sqrt(2.0)))
        yield line("correlation", n, answers, 0.3, runs)


def cohort(n: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """Times to two competing causes, censored between 1 and 12 years."""
    death, end = rng.exponential(5.0, n), rng.uniform(1, 12, n)
    return np.minimum(death, end), np.where(death <= end, 1 + (rng.random(n) < 0.3), 0).astype(np.int64)


def counts(times: Floats, causes: NDArray[np.int64], edges: Floats, rng: np.random.Generator) -> SurvivalCounts:
    """The counts of a survival query."""
    ends = np.zeros((len(edges) - 1, 3))
    inside = times <= edges[-1]
    place = np.clip(np.searchsorted(edges, times, side="left") - 1, 0, None)
    np.add.at(ends, (place[inside], causes[inside]), 1)
    beyond = float((~inside).sum() + rng.normal() * SIGMA)
    return SurvivalCounts(ends + rng.normal(size=ends.shape) * SIGMA, beyond, SIGMA, tuple(edges.tolist()))


def survival_rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Curve, median, restricted mean and cumulative incidence; the log-rank test where both groups are alike."""
    for n, bins in ((500, 6), (5000, 12), (50_000, 30)):
        edges = np.linspace(0, 6, bins + 1)
        names = "survival at 3 years", "median survival", "restricted mean", "cumulative incidence at 3 years"
        found: dict[str, list[Answer]] = {name: [] for name in names}
        tests: list[Test | NotEstimable] = []
        for _ in range(runs):
            times, causes = cohort(n, rng)
            one = counts(times, causes, edges, rng)
            curve = survival.survival_curve(one)
            if isinstance(curve, SurvivalCurve):
                if len(curve.survival) >= bins // 2:
                    found["survival at 3 years"].append(curve.survival[bins // 2 - 1])
                    found[names[3]].append(survival.cumulative_incidence(one, 1)[bins // 2 - 1])
                found["median survival"].append(survival.survival_quantile(curve, 0.0, 0.5))
            found["restricted mean"].append(survival.restricted_mean(one))
            group = rng.integers(0, 2, n)
            tests.append(survival.log_rank([counts(times[group == k], causes[group == k], edges, rng) for k in (0, 1)]))
        truths = (math.exp(-0.6), 5 * math.log(2), 5 * (1 - math.exp(-1.2)), 0.7 * (1 - math.exp(-0.6)))
        for (name, answers), truth in zip(found.items(), truths, strict=True):
            yield line(name, n, answers, truth, runs)
        yield rejection("log-rank, rejected", n, tests)


def error_rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """How far figures lie from those of the same records without noise: Kaplan-Meier curves, and medians."""
    trial = load_gbsg2()[["time", "cens"]].to_numpy(dtype=np.float64)
    edges = np.linspace(0, 1825, 16)
    for n in SIZES[2:]:
        apart = []
        for _ in range(runs):
            times, died = rng.choice(trial, n).T
            curve = survival.survival_curve(counts(times, died.astype(np.int64), edges, rng))
            if isinstance(curve, SurvivalCurve):
                exact = kaplan_meier(times, died > 0, np.array(curve.times))
                apart.append(
                    float(np.mean([abs(each.value - known) for each, known in zip(curve.survival, exact, strict=True)]))
                )
        yield f"| distance from Kaplan-Meier, 15 intervals | {n} | {np.mean(apart):.4f} | {len(apart) / runs:.0%} |"
    bounds, column = np.linspace(-1, 1, FINE_STEPS + 1), quantiles.toeplitz_column(FINE_STEPS, 64)
    matrix = np.linalg.solve(quantiles.prefix_matrix(column), np.tril(np.ones((FINE_STEPS, FINE_STEPS))))
    std = SIGMA * math.sqrt(float((column**2).sum()))
    for n in SIZES[1:]:
        errors = []
        for _ in range(runs):
            x = shapes(rng)["normal"](n)
            sums = matrix @ np.histogram(x, bounds)[0] + rng.normal(size=FINE_STEPS) * std
            (median,) = quantiles.quantiles(sums, column, std, bounds.tolist(), [0.5])
            if isinstance(median, Figure):
                errors.append((median.value - 0.2, float(np.median(x)) - 0.2))
        ratio = math.sqrt(np.mean(np.square(errors), axis=0)[0] / np.mean(np.square(errors), axis=0)[1])
        yield f"| error of a median, against that without noise | {n} | {ratio:.2f} | {len(errors) / runs:.0%} |"


def kaplan_meier(times: Floats, died: NDArray[np.bool_], at: Floats) -> Floats:
    """The product-limit estimate at some times."""
    order = np.argsort(times)
    at_risk = len(times) - np.arange(len(times))
    steps = np.append(1.0, np.cumprod(1.0 - died[order] / at_risk))
    return np.asarray(steps[np.searchsorted(times[order], at, side="right")], dtype=np.float64)


def rank_rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """How well a score of 16 levels ranks an event of one record in five, and a time in 10 intervals."""

    def drawn(n: int) -> tuple[Floats, Floats]:
        risk = rng.normal(size=n)
        level = np.clip(((risk + 2.5) * 3.2).astype(np.int64), 0, 15)
        died, left = rng.exponential(size=n) * 5 / np.exp(0.7 * risk), rng.uniform(1, 12, n)
        interval = np.minimum(np.minimum(died, left) / 0.6, 10.0).astype(np.int64)
        times, events = np.zeros((16, 11, 2)), np.zeros((16, 2))
        np.add.at(times, (level, interval, ((died <= left) & (interval < 10)).astype(np.int64)), 1)
        np.add.at(events, (level, (rng.random(n) < 1 / (1 + np.exp(1.6 - risk))).astype(np.int64)), 1)
        return times, events

    def told(times: Floats, events: Floats, std: float) -> tuple[Answer, Answer]:
        times, events = times + rng.normal(size=times.shape) * std, events + rng.normal(size=events.shape) * std
        return area(events[:, 0], events[:, 1], std), concordance(times[:, :10], times[:, 10, 0], std)

    whole = np.sum([np.concatenate([part.ravel() for part in drawn(250_000)]) for _ in range(8)], axis=0)
    truths = told(whole[: 16 * 22].reshape(16, 11, 2), whole[16 * 22 :].reshape(16, 2), 0.0)
    for n in SIZES[1:]:
        found = list(zip(*(told(*drawn(n), SIGMA) for _ in range(runs)), strict=True))
        for name, answers, truth in zip(("area under the ROC curve", "concordance"), found, truths, strict=True):
            if isinstance(truth, Figure):
                yield line(name, n, answers, truth.value, runs)


SLOPES = np.array([0.0, 0.05, 0.25, 0.15, -0.1, 0.25])
"""Slopes of a constant and five numbers."""


def fitted(n: int, sigma: float, rng: np.random.Generator) -> LinearFit:
    """A regression's moments: five correlated numbers that spread over their bounds, residuals of 0.21."""
    common = rng.normal(size=(n, 1))
    x = np.column_stack([np.ones(n), np.clip(0.2 * common + 0.3 * rng.normal(size=(n, 5)), -1, 1)])
    z = np.column_stack([x, np.clip(x @ SLOPES + 0.21 * rng.normal(size=n), -1, 1)])
    longest = 1.0 + 5.0 / 3.0
    z *= np.minimum(1.0, math.sqrt(longest) / np.linalg.norm(x, axis=1))[:, None]
    std = sigma * (longest + 1.0)
    above = np.triu(rng.normal(size=(7, 7)) * std / math.sqrt(2.0), 1)
    return LinearFit(z.T @ z + above + above.T + np.diag(rng.normal(size=7) * std), std)


def regression_rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Coverage of all coefficients, and the root mean squared error of slopes, at epsilon 1 and 3."""
    for sigma, epsilon in ((SIGMA, 1), (1.5, 3)):
        for n in SIZES[1:]:
            fits = [fitted(n, sigma, rng) for _ in range(runs)]
            answers = [(fit.combination(np.eye(6)[place]), SLOPES[place]) for fit in fits for place in range(6)]
            told = [(answer, truth) for answer, truth in answers if isinstance(answer, Figure)]
            covered = f"{np.mean([answer.low <= truth <= answer.high for answer, truth in told]):.3f}" if told else "–"
            yield f"| linear, epsilon {epsilon} | {n} | {covered} | {len(told) / len(answers):.0%} |"
            error = math.sqrt(np.mean([(fit.coefficients - SLOPES)[1:] ** 2 for fit in fits]))
            yield f"| linear, epsilon {epsilon}, error of a slope | {n} | {error:.4f} | |"


def test_rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Tests of true hypotheses."""
    draw = shapes(rng)["normal"]
    for shares in ((0.5, 0.5), (0.85, 0.15), (0.25,) * 4):
        for n in SIZES[1:]:
            found = []
            for _ in range(runs):
                x, group = draw(n), rng.choice(len(shares), n, p=shares)
                found.append(group_means.equal_means([noised(x[group == k], rng) for k in range(len(shares))]))
            yield rejection(f"equal means, {':'.join(f'{share * 100:g}' for share in shares)}, rejected", n, found)
    for n in (200, *SIZES[1:]):
        several = []
        for _ in range(runs):
            table = np.zeros((3, 4))
            np.add.at(table, (rng.choice(3, n, p=[0.5, 0.3, 0.2]), rng.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])), 1)
            several.append(tables.independence(table + rng.normal(size=table.shape) * SIGMA, SIGMA))
        yield rejection("independence 3 x 4, rejected", n, several)


def main() -> None:
    """Print the tables."""
    options = run_options("statistics", __doc__, 400).parse_args()
    parts = (means, quantile_rows, table_rows, survival_rows, rank_rows, error_rows, regression_rows, test_rows)
    rows = (row for part in parts for row in part(options.runs, np.random.default_rng(options.seed)))
    print_table(["figure", "records", "covered, or rejected", "told"], rows)


if __name__ == "__main__":
    main()
