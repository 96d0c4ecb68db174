"""Vectors that are not rounded: draws around real centres, their sums against the Gaussian mechanism, and what studies say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from support.gradient_sums import task_vector
from support.randomness import SeededRandom
from support.studies import compiled, complete, shifted_sites
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.audit.references import references
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.computation.rehearsal import made_up_broadcast
from veilsum_privacy.mechanism import noise
from veilsum_privacy.mechanism.noise import CENTRE_BITS, ROUNDING_VARIANCE, gaussian_around
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records

ALPHA = 1e-6  # per test; seeds are fixed
ONE = 1 << CENTRE_BITS
DIGITS = 320

STEPS: dict[str, Any] = {"steps": 20, "gradient_clip": 0.5, "centre": False}


# -- the mathematics, with masses of 320 digits -----------------------------------------------------------------------------


def masses(centre: Fraction, variance: Fraction, reach: int) -> dict[int, mpmath.mpf]:
    """Probabilities of the discrete Gaussian around a real centre; beyond ``reach`` they are below 1e-300."""
    z, v = (mpmath.mpf(part.numerator) / part.denominator for part in (centre, variance))
    weights = {y: mpmath.exp(-((y - z) ** 2) / (2 * v)) for y in range(-reach, reach + 1)}
    whole = mpmath.fsum(weights.values())
    return {y: weight / whole for y, weight in weights.items()}


def summed(shares: Sequence[dict[int, mpmath.mpf]], values: Sequence[int]) -> dict[int, mpmath.mpf]:
    """Probabilities of some values of the sum, by convolution."""
    total = shares[0]
    for share in shares[1:-1]:
        found: dict[int, mpmath.mpf] = {}
        for a, p in total.items():
            for b, q in share.items():
                found[a + b] = found.get(a + b, mpmath.mpf(0)) + p * q
        total = found
    last = shares[-1]
    return {y: mpmath.fsum(p * last.get(y - a, mpmath.mpf(0)) for a, p in total.items()) for y in values}


def density(y: int, centre: Fraction | mpmath.mpf, variance: Fraction | int) -> mpmath.mpf:
    """Of the continuous Gaussian, at an integer."""
    z, v = (
        mpmath.mpf(part.numerator) / part.denominator if isinstance(part, Fraction) else part for part in (centre, variance)
    )
    return mpmath.exp(-((y - z) ** 2) / (2 * v)) / mpmath.sqrt(2 * mpmath.pi * v)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("share", [Fraction(16), Fraction(70, 3)])
@pytest.mark.parametrize(
    "centres",
    [
        (Fraction(0), Fraction(0)),
        (Fraction(1, 2), Fraction(1, 3)),
        (Fraction(-7, 5), Fraction(ONE - 1, ONE)),
        (Fraction(1, 4), Fraction(1, 2), Fraction(-1, 3)),
    ],
)
def test_a_sum_of_shares_is_the_gaussian_around_the_real_sum(centres: tuple[Fraction, ...], share: Fraction) -> None:
    """By convolution of exact masses, tails included: the error is below 4 m 1e-136, as proven."""
    with mpmath.workdps(DIGITS):
        spread = share + ROUNDING_VARIANCE
        reach = 30 * math.isqrt(math.ceil(spread)) + 30
        values = (-90, -31, -6, -1, 0, 1, 2, 17, 64)
        found = summed([masses(centre, spread, reach) for centre in centres], values)
        for y in values:
            expected = density(y, sum(centres, Fraction(0)), len(centres) * spread)
            assert abs(found[y] / expected - 1) < 4 * len(centres) * mpmath.mpf(10) ** -136


def test_shares_that_are_too_narrow_would_show() -> None:
    """The same computation at a variance of 1 a share, where the sum's fractions can be told."""
    with mpmath.workdps(50):
        found = summed([masses(Fraction(1, 2), Fraction(1), 60)] * 2, (0,))
        assert abs(found[0] / density(0, Fraction(1), Fraction(2)) - 1) > mpmath.mpf(10) ** -5


@pytest.mark.parametrize("centre", [Fraction(0), Fraction(1, 2), Fraction(5, 7)])
def test_a_draw_is_a_rounding_of_the_continuous_mechanism(centre: Fraction) -> None:
    """A value of variance 16 around a draw of N(z, W), against one of variance W + 16 around z.

    By the trapezoidal rule, which is exact to 1e-40 for such integrands at this step.
    """
    w, step = 25, 7
    with mpmath.workdps(60):
        z = mpmath.mpf(centre.numerator) / centre.denominator
        whole = [mpmath.fsum(mpmath.exp(-((mpmath.mpf(i) / step - k) ** 2) / 32) for k in range(-70, 71)) for i in range(step)]
        drawn = masses(centre, Fraction(w + ROUNDING_VARIANCE), 200)
        for y in (-13, 0, 4):
            found = mpmath.mpf(0)
            for i in range(-90 * step, 90 * step):
                x = mpmath.mpf(i) / step
                found += density(0, z - x, w) * mpmath.exp(-((x - y) ** 2) / 32) / whole[i % step] / step
            assert abs(found / drawn[y] - 1) < mpmath.mpf(10) ** -30


@pytest.mark.sampled(2)
@pytest.mark.parametrize("apart", [Fraction(1, 2), Fraction(7, 3), Fraction(5)])
def test_the_cost_is_the_real_sensitivitys(apart: Fraction) -> None:
    """Renyi divergences of sums of three shares, a real number apart: never above those of the Gaussian that is booked."""
    share, shares = Fraction(1600, 3), 3
    variance = shares * (share + ROUNDING_VARIANCE)
    with mpmath.workdps(100):
        reach = 40 * math.isqrt(math.ceil(variance)) + 400
        one, other = masses(Fraction(1, 3), variance, reach), masses(Fraction(1, 3) + apart, variance, reach)
        d = mpmath.mpf(apart.numerator) / apart.denominator
        for order in (1.5, 2.0, 16.0, 64.0):
            moment = mpmath.fsum(one[y] ** order * other[y] ** (1 - order) for y in one)
            found = mpmath.log(moment) / (order - 1)
            assert abs(found / (order * d**2 / (2 * mpmath.mpf(variance.numerator) / variance.denominator)) - 1) < 1e-40
            assert found < order * d**2 / (2 * shares * mpmath.mpf(share.numerator) / share.denominator)


def test_how_many_proposals_are_rejected_is_the_same_for_all_centres() -> None:
    """The chance of a proposal is in proportion to the sum of all weights around its centre."""
    with mpmath.workdps(150):
        whole = [
            mpmath.fsum(mpmath.exp(-((y - mpmath.mpf(f) / ONE) ** 2) / 32) for y in range(-160, 162))
            for f in (0, 1, ONE // 3, ONE // 2, ONE - 1)
        ]
        assert max(whole) / min(whole) - 1 < 4 * mpmath.mpf(10) ** -136


# -- the sampler ------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(7)
@pytest.mark.parametrize("fraction", [0, 1, ONE // 3, ONE // 2, ONE - 1])
@pytest.mark.parametrize("variance", [Fraction(16), Fraction(71, 3)])
@pytest.mark.parametrize("whole", [0, -1, 2**30 - 1, -(2**30)])
def test_draws_have_the_exact_masses(fraction: int, variance: Fraction, whole: int) -> None:
    size = 100_000
    centres = np.full(size, whole * ONE + fraction, dtype=np.int64)
    drawn = gaussian_around(centres, variance, SeededRandom(f"{fraction} {variance} {whole}".encode())) - whole
    near = math.ceil(3.2 * math.sqrt(variance))
    values = np.arange(-near, near + 2)
    expected = np.exp(-((values - fraction / ONE) ** 2) / (2 * float(variance))) / math.sqrt(2 * math.pi * variance)

    def p_value(masses: np.ndarray) -> float:
        counts = np.array([(drawn == value).sum() for value in values])
        return float(
            stats.chisquare(np.append(counts, size - counts.sum()), size * np.append(masses, 1 - masses.sum())).pvalue
        )

    assert p_value(expected) > ALPHA
    moved = np.exp(-((values - fraction / ONE - 0.15) ** 2) / (2 * float(variance))) / math.sqrt(2 * math.pi * variance)
    assert p_value(moved) < ALPHA, "the test must see a centre that is off by a seventh of a unit"


@pytest.mark.parametrize("variance", [Fraction(10**6, 7), Fraction(2**40), Fraction(2**62)])
def test_large_variances_are_normal_around_their_centres(variance: Fraction) -> None:
    centres = np.random.default_rng(3).integers(-(2**49), 2**49, 200_000)
    drawn = gaussian_around(centres, variance, SeededRandom(b"large"))
    off = (drawn.astype(np.longdouble) - centres / np.longdouble(ONE)).astype(float) / math.sqrt(variance)
    assert stats.kstest(off, "norm").pvalue > ALPHA
    assert stats.pearsonr(off[:-1], off[1:]).pvalue > ALPHA
    assert ALPHA < stats.chi2.cdf(float((off**2).sum()), len(off)) < 1 - ALPHA


@pytest.mark.parametrize("variance", [Fraction(16), Fraction(50, 3), Fraction(2**62, 3)])
def test_the_exact_path_decides_as_the_vectorised_one(variance: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    centres = np.random.default_rng(6).integers(-(2**40), 2**40, 700)
    law = noise._law(variance)
    monkeypatch.setattr(noise, "_law", lambda _: replace(law, sure=0))
    fast = gaussian_around(centres, variance, SeededRandom(6))
    monkeypatch.setattr(noise, "_law", lambda _: replace(law, sure=0, width=2**32))
    accept, asked = noise.Sampler._exact_accept, []
    monkeypatch.setattr(noise.Sampler, "_exact_accept", lambda self, bits, x: asked.append(bits) or accept(self, bits, x))
    np.testing.assert_array_equal(gaussian_around(centres, variance, SeededRandom(6)), fast)
    assert len(asked) >= 700


@settings(max_examples=150, deadline=None)
@given(
    variance=st.fractions(Fraction(16), Fraction(2**62), max_denominator=1024),
    share=st.fractions(0, 1, max_denominator=2**60),
    fraction=st.integers(0, ONE),
    block=st.fractions(0, 1),
)
@example(Fraction(16), Fraction(1), ONE, Fraction(1))
@example(Fraction(2**62), Fraction(1), ONE, Fraction(1))
def test_the_enclosure_holds_between_integers_too(variance: Fraction, share: Fraction, fraction: int, block: Fraction) -> None:
    sampler = noise.Sampler(variance, SYSTEM_RANDOM, CENTRE_BITS)
    law = sampler._law
    low, j = min(int(share * 2**law.r), 2**law.r - 1), int(block * (len(law.edges) - 1))
    floor = int(sampler._enclose(np.array([(low << CENTRE_BITS) + fraction]), np.array([j]))[0])
    a, g = (j << law.r) + low, Fraction(fraction, ONE)
    x = ((a + g) ** 2 - (j << law.r) ** 2) / (2 * variance)
    with mpmath.workdps(40):
        true = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * 2**31
        assert floor - law.width <= true <= floor + 7


@pytest.mark.parametrize("variance", [Fraction(16), Fraction(40), Fraction(2**20)])
def test_the_randomness_used_tells_nothing_of_the_centres(variance: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    proposals: list[int] = []
    propose = noise.Sampler._propose
    monkeypatch.setattr(
        noise.Sampler, "_propose", lambda self, count, fraction: proposals.append(count) or propose(self, count, fraction)
    )
    used = []
    for fraction in (0, 1, ONE // 2):
        proposals.clear()
        gaussian_around(np.full(200_000, fraction), variance, SYSTEM_RANDOM)
        used.append(sum(proposals))
    p = 200_000 / used[0]  # geometric counts of mean 1 / p, variance (1 - p) / p^2 each
    assert max(used) - min(used) < 7 * math.sqrt(2 * 200_000 * (1 - p)) / p < 0.01 * used[0]  # of three, each with 3e-12


def test_variances_beyond_the_proof_are_refused() -> None:
    for variance in (Fraction(15), Fraction(2**62 + 1)):
        with pytest.raises(Misuse, match="between 16"):
            gaussian_around(np.zeros(1, dtype=np.int64), variance, SYSTEM_RANDOM)


# -- studies ----------------------------------------------------------------------------------------------------------------


def of_old(study: Study) -> Study:
    """The study as it would be if vectors were rounded."""
    tasks = tuple(task.model_copy(update={"unrounded": False}) for task in study.tasks)
    return study.model_copy(update={"tasks": tasks})


def test_compiled_steps_are_narrow_and_cost_their_clip_norm() -> None:
    study = compiled("fedsgd", STEPS, epsilon=3.0)
    task, (declared,) = AgreedStudy(study).tasks[0], study.tasks
    assert declared.unrounded
    assert task.unit == pytest.approx(task.task.clip() / declared.grid, rel=1e-4), "no root of the number of values"
    assert task.unit > task.task.clip() / declared.grid
    share = task.noise(4).share_variance
    assert share >= 40**2
    assert math.sqrt(declared.variance) / declared.grid == pytest.approx(
        math.sqrt(AgreedStudy(compiled("fedsgd", STEPS, epsilon=3.0)).tasks[0].declaration.variance) / declared.grid
    )
    plan = task.plan(4, 4)
    assert plan.spread == share + 16
    assert task.released_variance(4) == 4 * (share + 16)
    assert plan.encoding.lanes >= 2
    assert plan.encoding.reach >= 4 * 800 * declared.grid + 12 * math.sqrt(4 * share)


def test_old_studies_keep_their_bytes_and_their_rounding() -> None:
    study = compiled("fedsgd", STEPS, epsilon=3.0)
    assert parse_study(study.to_bytes()).tasks[0].unrounded
    old = study.model_copy(
        update={"tasks": tuple(t.model_copy(update={"grid": 2**20, "variance": 2**44}) for t in of_old(study).tasks)}
    )
    assert b"unrounded" not in old.to_bytes()
    task = AgreedStudy(old).tasks[0]
    assert task.unit == task.task.clip() / (2**20 - math.sqrt(task.size))
    assert task.released_variance(4) == 4 * Fraction(2**44, 3)
    with pytest.raises(HostileInput, match="leave something to defaults"):
        parse_study(study.to_bytes().replace(b'"unrounded":true', b'"unrounded":false'))


@pytest.mark.parametrize(
    ("method", "parameters", "privacy"),
    [("fedcgs", {}, {"epsilon": 3.0}), ("fedavg", {}, {"epsilon": 8.0}), ("fedsgd", STEPS, {"noise": "none"})],
)
def test_only_a_sites_vector_with_noise_may_stay_unrounded(
    method: str, parameters: dict[str, Any], privacy: dict[str, Any]
) -> None:
    study = compiled(method, parameters, **privacy)
    assert not any(task.unrounded for task in study.tasks)
    tasks = tuple(task.model_copy(update={"unrounded": True}) for task in study.tasks)
    with pytest.raises(HostileInput, match="needs a task with one noised vector per site"):
        AgreedStudy(study.model_copy(update={"tasks": tasks})).task(tasks[-1].label)


def test_what_reaches_beyond_the_centres_is_refused() -> None:
    study = compiled("fedsgd", STEPS, epsilon=3.0)
    tasks = (study.tasks[0].model_copy(update={"grid": 2**21, "variance": 2**50}),)  # times 800 records
    with pytest.raises(HostileInput, match="beyond 2\\^30"):
        AgreedStudy(study.model_copy(update={"tasks": tasks})).task(tasks[0].label)


def releases(study: Study, sites: dict[str, Records], *, batched: bool, number: int = 400) -> np.ndarray:
    federation = PlainFederation(study, {name: PlainSite(own) for name, own in sites.items()}, batched=batched)
    shapes = {"model.head.weight": (3, 6), "model.head.bias": (3,)}
    broadcast = {name: np.zeros(shape) for name, shape in shapes.items()}
    found = [federation.sum("gradient", broadcast) for _ in range(number)]
    return np.array([np.concatenate([one.values[name].ravel() for name in shapes]) for one in found])


@pytest.mark.parametrize("seed", range(5))
def test_one_record_moves_the_centres_by_the_whole_grid_at_most(seed: int) -> None:
    """In exact integers, and by nearly all of it where the gradient is longer than its bound."""
    study = compiled("fedsgd", STEPS, epsilon=3.0)
    plan, rng = AgreedStudy(study).tasks[0].plan(4, 4), np.random.default_rng(seed)
    broadcast = {"model.head.weight": 50 * rng.normal(size=(3, 6)), "model.head.bias": np.zeros(3)}
    own = replace(shifted_sites(60, seed)["a"], labels=rng.integers(0, 3, 60))  # most are far from what the model says
    steps = []
    for index in range(20):
        without = own.take(np.arange(len(own)) != index)
        apart = compute_sum(plan, own, broadcast).total - compute_sum(plan, without, broadcast).total
        steps.append(math.isqrt(sum(int(value) ** 2 for value in apart)))
    bound = study.tasks[0].grid * ONE
    assert max(steps) <= bound
    assert max(steps) > 0.999 * bound


@pytest.mark.usefixtures("known_randomness")
@pytest.mark.parametrize("batched", [True, False])
def test_releases_are_the_real_sum_and_the_noise(batched: bool) -> None:
    """On a grid of a few units a clip norm nothing of a sum is lost; site by site, and drawn for all sites at once."""
    study = compiled("fedsgd", {**STEPS, "steps": 400}, epsilon=20.0)
    sites = shifted_sites(30)
    task = AgreedStudy(study).tasks[0]
    broadcast = {name: np.zeros(shape) for name, shape in {"model.head.weight": (3, 6), "model.head.bias": (3,)}.items()}
    alone = [replace(own, subjects=None) for own in sites.values()]
    real = np.sum([task_vector(task.task, own, broadcast) for own in alone], axis=0)
    assert np.abs(real / task.unit - np.rint(real / task.unit)).max() > 0.2
    found, std = releases(study, sites, batched=batched), math.sqrt(task.released_variance(4)) * task.unit
    off = (found - real) / std
    assert stats.kstest(off.ravel(), "norm").pvalue > ALPHA
    assert np.abs(off.mean(axis=0)).max() < 4.5 / math.sqrt(len(off))
    assert abs((off**2).mean() - 1) < 4 * math.sqrt(2 / off.size) < 0.07


def test_noise_of_its_own_block_stays_there() -> None:
    (reference,) = (each for each in references() if each.task == "gradient")
    tried, arrays = made_up_broadcast(reference.study(unit="record", noise="local", disclosure="per-site").tasks[0])
    declared = tried.declaration
    assert declared.unrounded
    assert declared.own_noise
    plan, rng = tried.plan(3, 3), np.random.default_rng(0)
    own = complete(rng.uniform(-1.0, 1.0, (60, tried.study.data.width)), rng.integers(0, 3, 60))
    part = compute_sum(plan, own, arrays, SitePlace(1))
    assert part.total.any()
    assert tried.released_variance(3) == declared.variance + 16
    source = SeededRandom(b"its own block")
    noised = np.array([plan.noised(part.total, 1, source).reshape(3, -1) for _ in range(1000)])
    assert not np.delete(noised, 1, axis=1).any()
    off = (noised[:, 1] - part.total.reshape(3, -1)[1] / ONE).ravel() / math.sqrt(plan.spread)
    assert stats.kstest(off, "norm").pvalue > ALPHA
    assert abs((off**2).mean() - 1) < 4 * math.sqrt(2 / off.size) < 0.05
