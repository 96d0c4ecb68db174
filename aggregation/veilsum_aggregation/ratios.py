"""Odds ratios, risk ratios and risk differences of noised fourfold tables, of one and of strata (Mantel and Haenszel 1959).

A table is [[a, b], [c, d]]: the exposed with and without the event, then those that they are compared with. Its cells have
independent noise of one standard deviation; where contrasts of all strata together are released as well, theirs is smaller.

A ratio is told where what it is made of lies beyond its noise, and so more often where noise made that large. The delta rule's
error is then too small towards the smaller counts that it may come from. So noise has intervals where it was added, of z
standard deviations of a cell or a sum, which end above 0 where a ratio is told; the distances from the logarithm to its values
there are added as standard errors are (Zou and Donner 2008), and those of sampling to them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Z95, Answer, Figure, NotEstimable, Test, hidden_share, normal_figure, of_both, project
from veilsum_aggregation.moments import NOISE_FLOOR
from veilsum_aggregation.tables import shares

CELLS = ("the exposed with the event", "the exposed without it", "the others with the event", "the others without it")
"""What cells are called where nobody says otherwise."""

LARGEST = math.exp(700.0)
"""Ratio that no larger one is told from."""

NO_SPREAD = 1e-15
"""A variance that is 0 up to rounding."""

ADVICE = "more records, or more epsilon"

ALL_OR_NONE = NotEstimable(
    "in every stratum all of each group, or none, have what is counted", "each stratum's own, or wider strata"
)


def _form(*pairs: tuple[int, int]) -> Floats:
    """The matrix Q of a sum of products of two different cells each, x' Q x / 2."""
    form = np.zeros((4, 4))
    for one, other in pairs:
        form[one, other] = form[other, one] = 1.0
    return form


_AD, _BC = _form((0, 3)), _form((1, 2))
_EXPOSED, _OTHERS = _form((0, 2), (0, 3)), _form((2, 0), (2, 1))  # a n_0 and c n_1
_SIZES = _form((0, 2), (0, 3), (1, 2), (1, 3))  # n_1 n_0


def odds_ratio(table: Floats, std: float, cells: Sequence[str] = CELLS) -> Answer:
    """ad / bc with Woolf's interval: the logarithm has the variance sum 1 / N (sampling) + sigma^2 sum 1 / N^2 (noise).

    Args:
        table: (2, 2).
        std: of the noise in each cell.
        cells: their names, for words.
    """
    if drowned := _empty(table.ravel(), std, cells):
        return drowned
    return _told(_by_cells(_log_odds_ratio, table, std, std**2 * float(np.sum(table**-2.0))))


def risk_ratio(table: Floats, std: float, cells: Sequence[str] = CELLS) -> Answer:
    """a n_0 / c n_1 with the interval of its logarithm (Katz et al. 1978), and with the noise. Arguments as above."""
    if drowned := _empty(table[:, 0], std, (cells[0], cells[2])) or _groups(table, std, cells):
        return drowned
    events, sizes = table[:, 0], table.sum(axis=1)
    noise = float(np.sum((1.0 / events - 1.0 / sizes) ** 2 + sizes**-2.0)) * std**2
    found = _by_cells(_log_risk_ratio, table, std, noise)
    # where all of a group have it, its risk is 1 at most, and less by what so few may hide
    alike = table[:, 1] <= NOISE_FLOOR * std
    less = [-math.log(1.0 - hidden_share(size)) * own for size, own in zip(sizes, alike, strict=True)]
    return _told(of_both(found, Figure(0.0, 0.0, found.sampling_error, -less[0], less[1])))


def _log_odds_ratio(table: Floats) -> tuple[float, float]:
    (a, b), (c, d) = table.tolist()
    return math.log(a) + math.log(d) - math.log(b) - math.log(c), 1.0 / a + 1.0 / b + 1.0 / c + 1.0 / d


def _log_risk_ratio(table: Floats) -> tuple[float, float]:
    (a, b), (c, d) = table.tolist()
    return math.log(a / (a + b)) - math.log(c / (c + d)), 1.0 / a - 1.0 / (a + b) + 1.0 / c - 1.0 / (c + d)


def _by_cells(log: Callable[[Floats], tuple[float, float]], table: Floats, std: float, noise: float) -> Figure:
    """A logarithm with the interval of all cells' noise, each of which is moved by z standard deviations, and of sampling.

    Args:
        log: the logarithm and its sampling variance.
        noise: its variance by the delta rule.
    """
    value, sampling = log(table)
    cells = Z95 * std * np.eye(4).reshape(4, 2, 2)
    moved = np.array([[log(table - cell)[0] - value, log(table + cell)[0] - value] for cell in cells])
    below, above = (float(np.linalg.norm(ends)) for ends in (moved.min(axis=1), moved.max(axis=1)))
    noised = Figure(value, math.sqrt(noise), 0.0, value - below, value + above)
    return of_both(noised, normal_figure(0.0, 0.0, sampling))


def _told(log: Figure) -> Figure:
    """The ratio of a logarithm, with the p-value that its interval has: that knows more than the errors."""
    return replace(log, significance=math.erfc(abs(log.value) / log.towards_zero / math.sqrt(2.0))).exponential(LARGEST)


def risk_difference(table: Floats, std: float, cells: Sequence[str] = CELLS) -> Answer:
    """a / n_1 - c / n_0, its interval from those of both risks (Newcombe 1998, method 10), which hold the noise.

    It is told also where nobody, or everybody, has the event. Its p-value is that of both risks being their mean, whose
    variance is 0 only where that is: without noise, Pearson's chi-squared. Arguments as above.
    """
    if drowned := _groups(table, std, cells):
        return drowned
    risks = [shares(row, std)[0] for row in table]
    one, other = (risk if isinstance(risk, Figure) else Figure(math.nan, 0.0, 0.0, 0.0, 1.0) for risk in risks)
    value = one.value - other.value
    low = value - math.hypot(one.value - one.low, other.high - other.value)
    high = value + math.hypot(one.high - one.value, other.value - other.low)
    noise, sampling = (
        math.hypot(*(getattr(risk, part) for risk in (one, other))) for part in ("noise_error", "sampling_error")
    )
    sizes = table.sum(axis=1)
    mean = min(max(float(table[:, 0].sum() / sizes.sum()), 0.0), 1.0)
    of_noise = std**2 * ((1.0 - mean) ** 2 + mean**2) * float(np.sum(sizes**-2.0))
    null = normal_figure(value, of_noise, mean * (1.0 - mean) * float(np.sum(1.0 / sizes)))
    return Figure(value, noise, sampling, low, high, null.p_value)


class StrataNoise(NamedTuple):
    """Noise of the cells of strata: independent, but for what the contrasts of all strata together tell (:func:`consistent`).

    Attributes:
        std: in each cell as it was released.
        told: h.
        levels: R, of the exposure, two of which are in a table.
    """

    std: float
    told: float = 0.0
    levels: int = 2

    @property
    def explained(self) -> Floats:
        """What of the variance, over std^2, the contrasts take from the cells of one stratum (4, 4), and what they add to the
        covariance of two with the other sign."""
        return np.asarray(self.told * np.kron(np.eye(2) - 1.0 / self.levels, np.eye(2)), dtype=np.float64)

    def variance(self, gradient: Floats) -> float:
        """What it adds to the variance of a sum with this gradient by cells (k, 4)."""
        whole = gradient.sum(axis=0)
        return self.std**2 * float(np.sum(gradient**2) - whole @ self.explained @ whole)


def consistent(tables: Floats, contrasts: Floats, std: float, contrasts_std: float) -> tuple[Floats, StrataNoise]:
    """The least-squares estimate of strata of which the contrasts of their sum were released as well.

    With P what takes from each column of a table its mean, noise of variance s^2 in each of k strata and t^2 in the contrasts,
    what the contrasts have beyond those of the strata's sum, times h = s^2 / (k s^2 + t^2), belongs to each. Then cells of a
    stratum have the covariance s^2 (1 - h P), and those of two strata -s^2 h P.

    Args:
        tables: (k, R, C), noise of ``std`` in each cell.
        contrasts: (R, C), P of the sum of all strata, noise of ``contrasts_std``.
    """
    if not std:
        return tables, StrataNoise(0.0)
    h = std**2 / (len(tables) * std**2 + contrasts_std**2)
    beyond = contrasts - tables.sum(axis=0)
    return tables + h * (beyond - beyond.mean(axis=0)), StrataNoise(std, h, tables.shape[1])


def pooled_odds_ratio(tables: Floats, noise: StrataNoise) -> Answer:
    """The odds ratio that strata have in common: sum ad / n over sum bc / n.

    The sampling variance of its logarithm is that of Robins, Breslow and Greenland (1986); noise by the delta method, and what
    it adds to products over n on average is taken off. Cells may be empty, strata small.

    Args:
        tables: (k, 2, 2), one a stratum.
        noise: in their cells.
    """
    kept = _strata(tables, noise.std)
    if isinstance(kept, NotEstimable):
        return kept
    top, bottom = _Pooled(_AD, kept, noise), _Pooled(_BC, kept, noise)
    if drowned := _too_small(top, bottom, noise):
        return drowned
    counts = np.stack([project(table) for table in kept.reshape(-1, 2, 2)]).reshape(-1, 4)
    n = counts.sum(axis=1)
    p, q = (counts[:, 0] + counts[:, 3]) / n, (counts[:, 1] + counts[:, 2]) / n
    r, s = counts[:, 0] * counts[:, 3] / n, counts[:, 1] * counts[:, 2] / n
    sampling = (
        p @ r / (2.0 * top.value**2) + (p @ s + q @ r) / (2.0 * top.value * bottom.value) + q @ s / (2.0 * bottom.value**2)
    )
    return _ratio(top, bottom, noise, float(sampling))


def pooled_risk_ratio(tables: Floats, noise: StrataNoise) -> Answer:
    """The risk ratio that strata have in common, with the variance of Greenland and Robins (1985). Arguments as above."""
    kept = _strata(tables, noise.std)
    if isinstance(kept, NotEstimable):
        return kept
    top, bottom = _Pooled(_EXPOSED, kept, noise), _Pooled(_OTHERS, kept, noise)
    if drowned := _too_small(top, bottom, noise):
        return drowned
    a, b, c, d = kept.T
    n, exposed, others = kept.sum(axis=1), a + b, c + d
    sampling = float(np.sum(((a + c) * exposed * others - a * c * n) / n**2)) / (top.value * bottom.value)
    if noise.std == 0.0 and sampling <= NO_SPREAD:
        return ALL_OR_NONE
    return _ratio(top, bottom, noise, max(sampling, 0.0))


def pooled_risk_difference(tables: Floats, noise: StrataNoise) -> Answer:
    """The risk difference that strata have in common, with the variance of Sato (1989), which holds for few large strata and
    for many small ones. It is 0, and tells no interval, where of each group everybody has the event or nobody.

    Arguments as above.
    """
    kept = _strata(tables, noise.std)
    if isinstance(kept, NotEstimable):
        return kept
    top, other, bottom = _Pooled(_AD, kept, noise), _Pooled(_BC, kept, noise), _Pooled(_SIZES, kept, noise)
    if bottom.value <= 0.0 or bottom.value < NOISE_FLOOR * math.sqrt(noise.variance(bottom.gradient)):
        beyond = " in numbers beyond the noise" if noise.std else ""
        return NotEstimable(f"no stratum has both groups{beyond}", ADVICE)
    value = (top.value - other.value) / bottom.value
    a, b, c, d = kept.T
    n, exposed, others = kept.sum(axis=1), a + b, c + d
    first = np.sum((exposed**2 * c - others**2 * a + exposed * others * (others - exposed) / 2.0) / n**2)
    second = np.sum((a * d + c * b) / (2.0 * n))
    sampling = max(float(value * first + second), 0.0) / bottom.value**2
    gradient = top.gradient - other.gradient - value * bottom.gradient
    of_noise = noise.variance(gradient) / bottom.value**2
    if sampling + of_noise <= NO_SPREAD:
        return ALL_OR_NONE
    found = normal_figure(value, of_noise, sampling)
    return replace(found.within(-1.0, 1.0), significance=found.p_value)


def no_association(tables: Floats, noise: StrataNoise) -> Test | NotEstimable:
    """The test that exposure and event are independent in every stratum (Cochran 1954, Mantel and Haenszel 1959), without
    correction for continuity. Arguments as above."""
    from scipy.special import chdtrc

    kept = _strata(tables, noise.std)
    if isinstance(kept, NotEstimable):
        return kept
    top, other = (_Pooled(form, kept, noise) for form in (_AD, _BC))
    a, b, c, d = kept.T
    n = kept.sum(axis=1)
    sampling = float(np.sum((a + b) * (c + d) * (a + c) * (b + d) / (n**2 * np.maximum(n - 1.0, 1.0))))
    of_noise = noise.variance(top.gradient - other.gradient)
    variance = max(sampling, 0.0) + of_noise
    if variance <= 0.0:
        return NotEstimable("in every stratum all have one exposure, or all or none the event", ADVICE)
    statistic = (top.value - other.value) ** 2 / variance
    return Test(statistic, 1, float(chdtrc(1, statistic)), of_noise / variance, tuple(_left_out(tables, noise.std)))


class _Pooled:
    """sum over strata of q / n, q a sum of products of cells, and its gradient by cells (k, 4).

    Noise of covariance S in a stratum's cells adds tr(Q S) / 2 n - x' Q S 1 / n^2 + q 1' S 1 / n^3 to q / n on average, to
    second order.
    """

    def __init__(self, form: Floats, kept: Floats, noise: StrataNoise) -> None:
        n, linear = kept.sum(axis=1), kept @ form
        q = np.einsum("ki,ki->k", linear, kept) / 2.0
        covariance = noise.std**2 * (np.eye(4) - noise.explained)
        whole = covariance.sum(axis=0)
        added = float(np.sum(form * covariance)) / 2.0 / n - linear @ whole / n**2 + q * whole.sum() / n**3
        self.value = float(np.sum(q / n - added))
        self.gradient = linear / n[:, np.newaxis] - (q / n**2)[:, np.newaxis]


def _ratio(top: _Pooled, bottom: _Pooled, noise: StrataNoise, sampling: float) -> Figure:
    gradients = top.gradient / top.value, bottom.gradient / bottom.value
    (one, other), both = map(noise.variance, gradients), noise.variance(gradients[0] - gradients[1])
    ends = [(-math.log1p(-end), math.log1p(end)) for end in (Z95 * math.sqrt(one), Z95 * math.sqrt(other))]
    shared = (one + other - both) / math.sqrt(one * other) if noise.std else 0.0
    below, above = (
        math.sqrt(max(own**2 + its**2 - shared * own * its, 0.0)) for own, its in zip(ends[0], ends[1][::-1], strict=True)
    )
    value = math.log(top.value / bottom.value)
    noised = Figure(value, math.sqrt(both), 0.0, value - below, value + above)
    return _told(of_both(noised, normal_figure(0.0, 0.0, sampling)))


def _too_small(top: _Pooled, bottom: _Pooled, noise: StrataNoise) -> NotEstimable | None:
    for part, who in ((top, "the exposed"), (bottom, "those that they are compared with")):
        if part.value <= 0.0 or part.value < NOISE_FLOOR * math.sqrt(noise.variance(part.gradient)):
            reason = f"over all strata, too few of {who} have what is counted"
            return NotEstimable(f"{reason} beyond the noise" if noise.std else f"{reason}: the sum is 0", ADVICE)
    return None


def _strata(tables: Floats, std: float) -> Floats | NotEstimable:
    """Strata with records beyond the noise, (k, 4)."""
    left_out = _left_out(tables, std)
    kept = np.delete(tables.reshape(-1, 4), left_out, axis=0)
    return kept if len(kept) else NotEstimable("the number of records of every stratum is within its noise", ADVICE)


def _left_out(tables: Floats, std: float) -> list[int]:
    totals = tables.reshape(-1, 4).sum(axis=1)
    return [place for place, n in enumerate(totals.tolist()) if n <= 0.0 or n < NOISE_FLOOR * 2.0 * std]


def _empty(counts: Floats, std: float, names: Sequence[str]) -> NotEstimable | None:
    """Why a ratio has no value: a cell is empty, or could be."""
    for count, name in zip(counts.tolist(), names, strict=True):
        if count <= 0.0 and std == 0.0:
            return NotEstimable(
                f"there is no record of {name}", "The risk difference has an interval all the same; or wider groups."
            )
        if count < NOISE_FLOOR * std or count <= 0.0:
            return NotEstimable(f"the number of records of {name} is within its noise", ADVICE)
    return None


def _groups(table: Floats, std: float, cells: Sequence[str]) -> NotEstimable | None:
    for row, (one, other) in zip(table, (cells[:2], cells[2:]), strict=True):
        total = float(row.sum())
        if total <= 0.0 or total < NOISE_FLOOR * std * math.sqrt(2.0):
            found = "there is no record of" if std == 0.0 else "within its noise is the number of records of"
            return NotEstimable(f"{found} {one}, or {other}", ADVICE)
    return None


RATIOS: Mapping[str, Callable[[Floats, float, Sequence[str]], Answer]] = {
    "odds ratio": odds_ratio,
    "risk ratio": risk_ratio,
    "risk difference": risk_difference,
}
POOLED_RATIOS: Mapping[str, Callable[[Floats, StrataNoise], Answer]] = {
    "odds ratio": pooled_odds_ratio,
    "risk ratio": pooled_risk_ratio,
    "risk difference": pooled_risk_difference,
}
