"""Random intercepts of sites from per-site moments: ``python -m evaluations.mixed``.

    y = intercept + x b + u + e,   u ~ N(0, tau^2) of each site,   e ~ N(0, sigma^2) of each record.

Counts, sums and second moments of (x, y) of each site are all that the model needs, and what ``slot-align`` with ``reference =
"barycenter"`` releases per site in one shot. Here such studies run, with their noise, and what they release is fitted. Tables
say how often 95% intervals hold the slopes, the intercept and tau.

Slopes are those within sites, whose variance has the noise's share in it. Site effects are r = mean of y - mean of x b, of
variance tau^2 + v with v = sigma^2 / n and the noise's share. tau has the interval of the Q profile (Viechtbauer 2007):
sum_k (r_k - mean)^2 / (t^2 + v_k) is chi squared of K - 1 degrees at t = tau. The intercept is the mean of r weighted by
1 / (t^2 + v), t of Paule and Mandel (1982), with the variance of Hartung and Knapp (2001) and Student's quantiles of K - 1
degrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, t

from evaluations.studies import SiteSums, complete_records, study_of
from evaluations.tables import print_table, run_options
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.alignment import LABEL
from veilsum_coordinator.parts.iteration import site_blocks
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

SLOPES = np.array([0.3, -0.2, 0.1])
INTERCEPT, SIGMA = 0.05, 0.25
NAMES = ("age", "dose", "severity", "outcome")
CLIP = 1.6
"""Beyond nearly every record's norm: slopes of shortened records are other slopes."""

TOLD = 8.0
"""Standard deviations of the noise that the least eigenvalue of the within-site products must exceed, or nothing is told."""


@dataclass(frozen=True)
class Fit:
    """Estimates with 95% intervals as (low, high): ``slopes`` (p, 2), ``intercept`` and ``tau`` (2,), and their middles."""

    estimates: Floats
    slopes: Floats
    intercept: Floats
    tau: Floats
    variance_between: float


def fit(blocks: list[dict[str, Floats]], noise: Mapping[str, float]) -> Fit | None:
    """The model of the last feature on all others, from blocks of the task "gaussian-moments" of each site, in [-1, 1].

    Returns:
        None where the noise leaves nothing to tell.
    """
    counts = np.array([float(own["count"][0]) for own in blocks])
    count_std, sum_std, square_std, product_std = (noise.get(key, 0.0) for key in ("count", "sum", "squares", "products"))
    if (counts <= TOLD * count_std).any() or len(blocks) < 2:
        return None
    means = np.array([own["sum"] for own in blocks]) / counts[:, None]
    d = means.shape[1]
    p, sites = d - 1, len(counts)
    upper = np.triu_indices(d, 1)
    within = np.zeros((d, d))
    for own, mean, number in zip(blocks, means, counts, strict=True):
        second = np.diag(own["squares"])
        second[upper] = own["products"]
        second.T[upper] = own["products"]
        # Noise of the sum makes its outer product too large by its variance.
        within += second - number * np.outer(mean, mean) + sum_std**2 / number * np.eye(d)
    x, xy, degrees = within[:p, :p], within[:p, p], counts.sum() - sites - p
    if np.linalg.eigvalsh(x)[0] <= TOLD * product_std * math.sqrt(sites) or degrees < 1:
        return None
    b = np.linalg.solve(x, xy)
    g = np.append(-b, 1.0)  # the residual is g . (x, y)
    residual = max(float(g @ within @ g) / degrees, 1e-12)
    score = residual * x + _score_noise(means, g, count_std, sum_std, square_std, product_std)
    inverse = np.linalg.inv(x)
    covariance = inverse @ score @ inverse
    half = t.ppf(0.975, degrees) * np.sqrt(np.diag(covariance))
    effects = means @ g
    own = residual / counts + (sum_std**2 * (g @ g) + count_std**2 * effects**2) / counts**2

    def profile(squared: float) -> float:
        weights = 1.0 / (squared + own)
        return float(weights @ (effects - weights @ effects / weights.sum()) ** 2)

    low, high, middle = (_where(profile, value) for value in (*chi2.ppf((0.975, 0.025), sites - 1), sites - 1.0))
    weights = 1.0 / (middle + own)
    shares = weights / weights.sum()
    intercept = float(shares @ effects)
    centre = shares @ means[:, :p]
    spread = float(shares @ (effects - intercept) ** 2) / (sites - 1) + float(centre @ covariance @ centre)
    reach = float(t.ppf(0.975, sites - 1)) * math.sqrt(spread)
    return Fit(
        np.append(b, intercept),
        np.column_stack([b - half, b + half]),
        np.array([intercept - reach, intercept + reach]),
        np.sqrt([low, high]),
        middle,
    )


def _score_noise(means: Floats, g: Floats, count: float, sums: float, squares: float, products: float) -> Floats:
    """Covariance (p, p) of the noise in the first p entries of (within g): of second moments, and of sums to first order."""
    p, size = len(g) - 1, float(g @ g)
    head = g[:p]
    found = len(means) * (products**2 * np.outer(head, head) + np.diag((squares**2 - 2 * products**2) * head**2))
    found += len(means) * products**2 * size * np.eye(p)
    for mean in means:
        along, m = float(mean @ g), mean[:p]
        found += sums**2 * (along**2 * np.eye(p) + along * (np.outer(head, m) + np.outer(m, head)) + size * np.outer(m, m))
        found += count**2 * along**2 * np.outer(m, m)
    return np.asarray(found)


def _where(profile: Callable[[float], float], value: float) -> float:
    """Where a falling function is ``value``; 0 where it begins below."""
    if profile(0.0) <= value:
        return 0.0
    high = 1e-4
    while profile(high) > value:
        high *= 4.0
    return float(brentq(lambda squared: profile(squared) - value, 0.0, high))


def drawn(sites: int, n: int, tau: float, rng: np.random.Generator) -> list[Records]:
    """Sites of about n records each, from half to one and a half times as many, whose x differ as well."""
    found = []
    for _ in range(sites):
        number = int(n * rng.uniform(0.5, 1.5))
        x = np.clip(rng.normal(rng.normal(0, 0.1, 3), 0.4, (number, 3)), -1, 1)
        y = INTERCEPT + x @ SLOPES + rng.normal(0, tau) + rng.normal(0, SIGMA, number)
        found.append(complete_records(np.column_stack([x, np.clip(y, -1, 1)])))
    return found


def rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Lines of a table."""
    schema = DatasetSchema(columns=tuple(NumberColumn(name=name, low=-1, high=1) for name in NAMES), max_records=50_000)
    asked = {"alignment": {"reference": "barycenter", "mode": "one-shot"}, "clip": CLIP}
    for sites in (4, 8, 16):
        names = [f"site-{place:02d}" for place in range(sites)]
        for n in (500, 2000):
            for epsilon in (3.0, 8.0):
                for tau in (0.05, 0.15):
                    study = study_of("slot-align", schema, n * sites, epsilon, names, parameters=asked)
                    fits = []
                    for _ in range(runs):
                        release = SiteSums(study, drawn(sites, n, tau, rng), rng).sum(LABEL)
                        fits.append(fit(site_blocks(release), release.noise_std))
                    yield _line(
                        f"{sites} | {n:,} | {epsilon:g} | {tau:g}", [one for one in fits if one is not None], tau, runs
                    )


def _line(head: str, fits: list[Fit], tau: float, runs: int) -> str:
    if not fits:
        return f"| {head} | 0% | – | – | – | – | – |"

    def covers(intervals: Floats, truth: Floats | float) -> float:
        return float(np.mean((intervals[..., 0] <= truth) & (truth <= intervals[..., 1])))

    slopes, intercepts = np.array([one.slopes for one in fits]), np.array([one.intercept for one in fits])
    taus = np.array([one.tau for one in fits])
    told = [covers(slopes, SLOPES), covers(intercepts, INTERCEPT), covers(taus, tau)]
    half = [float(np.median(each[..., 1] - each[..., 0])) / 2.0 for each in (slopes, intercepts)]
    cells = " | ".join(f"{value:.3f}" for value in (*told, *half))
    return f"| {head} | {len(fits) / runs:.0%} | {cells} |"


if __name__ == "__main__":
    options = run_options("mixed", __doc__, 200).parse_args()
    heads = (
        "sites",
        "records a site",
        "epsilon",
        "tau",
        "told",
        "slopes",
        "intercept",
        "tau covered",
        "half: slope",
        "intercept",
    )
    print_table(heads, rows(options.runs, np.random.default_rng(options.seed)), texts=0)
