"""Two-world audits of every release path: ours pass, and each known way to add too little noise is flagged.

Worlds differ by one record, or by one subject with all its records, at one site; the adversary knows everything else: the
other sites' sums, and the noise of those who collude. The broken mechanisms stand here alone, never in the product.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from support.audit import COUNT, LEVEL, audit, mu_lower_bound, upper_limits
from support.neighbours import NEIGHBOURS, SETTINGS, Setting, add_unit, repeated, with_subjects
from support.plain_sums import site_sum
from support.randomness import SeededRandom
from support.studies import complete
from veilsum_aggregation.arrays import Floats
from veilsum_node.randomness import RandomSource
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.study.study import NoiseKind, Study, Unit
from veilsum_privacy.tasks import TASKS, build_task
from veilsum_privacy.tasks.agreed import RoundPlan
from veilsum_privacy.tasks.base import DerivedTask, Records, TrainingTask

MU = 2.0
"""What one release is booked at; near it an audit needs the fewest releases to see noise that is too small by a factor."""

GRID = 2**16
Integers = NDArray[np.int64]
Worlds = tuple[Records, Records]
Releases = Callable[[int, int], Integers]


@dataclass(frozen=True)
class Path:
    """One way to release a sum, booked at :data:`MU` against the adversary: the colluders, or all other sites together."""

    setting: Setting
    unit: Unit = "record"
    kind: NoiseKind = "distributed"
    cohort: int = 3
    colluders: int = 1
    against: Literal["colluders", "all others"] = "colluders"

    @property
    def known(self) -> int:
        """How many of the cohort's shares the adversary knows; local noise counts on nobody else's."""
        return self.colluders if self.kind == "distributed" and self.against == "colluders" else self.cohort - 1

    @cached_property
    def study(self) -> Study:
        shares = self.cohort - self.colluders if self.kind == "distributed" else 1
        variance = int(GRID / MU) ** 2 * shares // (self.cohort - self.known)
        return self.setting.study(
            self.unit, grid=GRID, variance=variance, noise=self.kind, participants=self.cohort, colluders=self.colluders
        )

    @cached_property
    def plan(self) -> RoundPlan:
        return self.setting.plan(self.study)

    @property
    def booked(self) -> float:
        """mu of the event that the ledger books."""
        mechanism = Mechanism(self.plan.declaration.grid, self.plan.noise)
        event = mechanism.event if self.against == "colluders" else mechanism.event_alone
        assert event is not None
        return math.sqrt(event.ratio)

    def total(self, records: Records) -> Integers:
        """A site's sum before noise."""
        return self.setting.total(self.study, records)

    def other_sites(self) -> list[Integers]:
        """Sums of the rest of the cohort, known to the adversary."""
        every = NEIGHBOURS[self.setting.task]
        sites = [np.random.default_rng(100 + site) for site in range(self.cohort - 1)]
        return [self.total(with_subjects(every.random(self.setting, rng, 9), rng)) for rng in sites]

    def __str__(self) -> str:
        return f"{self.setting.task}-{self.setting.name}-{self.unit}-{self.kind}-{self.known} of {self.cohort} known"


def worst_worlds(path: Path, *, base: int = 12, seed: int = 0) -> Worlds:
    """Random records without and with the task's worst record, or with a subject that has it three times."""
    rng = np.random.default_rng(seed)
    neighbours = NEIGHBOURS[path.setting.task]
    added = repeated(neighbours.worst(path.setting), 3 if path.unit == "subject" else 1)
    return add_unit(neighbours.company(path.setting, rng, base), added, path.unit, rng)


def random_worlds(path: Path, seed: int) -> Worlds:
    rng = np.random.default_rng(seed)
    neighbours = NEIGHBOURS[path.setting.task]
    added = neighbours.random(path.setting, rng, int(rng.integers(1, 6)) if path.unit == "subject" else 1)
    return add_unit(neighbours.random(path.setting, rng, int(rng.integers(0, 30))), added, path.unit, rng)


def releases(
    path: Path,
    worlds: Worlds,
    source: RandomSource,
    *,
    noise: NoisePlan | None = None,
    total: Callable[[Records], Integers] | None = None,
    dropped: int = 0,
) -> Releases:
    """A cohort's opened sums, less the contributions that the adversary knows, in full.

    Args:
        noise: in place of the path's own plan.
        total: in place of the audited site's own sum.
        dropped: how many sites leave without their noise being made up for.
    """
    noise = noise or path.plan.noise
    sums = [(total or path.total)(world) for world in worlds]
    others = path.other_sites()[dropped:]

    def release(world: int, count: int) -> Integers:
        opened = np.zeros((count, len(sums[0])), dtype=np.int64)
        known = np.zeros_like(opened)
        for site, values in enumerate([sums[world], *others]):
            contribution = values + noise.draw(opened.size, source).reshape(opened.shape)
            opened += contribution
            if site > len(others) - path.known:
                known += contribution
        return opened - known

    return release


def scaled(path: Path, factor: float) -> NoisePlan:
    """The path's noise with ``factor`` of its variance."""
    return replace(path.plan.noise, variance=int(path.plan.noise.variance * factor))


WAYS: tuple[tuple[NoiseKind, int, int, Literal["colluders", "all others"]], ...] = (
    ("distributed", 3, 1, "colluders"),
    ("distributed", 4, 2, "colluders"),
    ("distributed", 3, 1, "all others"),
    ("local", 2, 1, "colluders"),
)
FIRST = {(name, every.settings()[0].name) for name, every in NEIGHBOURS.items()}
# A task's first setting is released in every way and by either unit; its others, which differ in the bound, in one.
PATHS = [
    Path(setting, unit, *way)
    for setting in SETTINGS
    for unit in ("record", "subject")
    for way in WAYS
    if (setting.task, setting.name) in FIRST or (unit == "record" and way == WAYS[0])
]
JOINT = [path for path in PATHS if (path.kind, path.cohort, path.against) == ("distributed", 3, "colluders")]
MAIN = [path for path in JOINT if (path.setting.task, path.setting.name) in FIRST]
SUMS = [path for path in MAIN if path.setting.additive]
EVEN, SQUARES = (next(s for s in SETTINGS if (s.task, s.name) == ("class-moments", name)) for name in ("even", "squares"))


def test_every_registered_task_is_audited() -> None:
    read = {name for name, task in TASKS.items() if not issubclass(task, DerivedTask | TrainingTask)}
    assert set(NEIGHBOURS) == read, "a registered task that reads records needs an entry in tests/support/neighbours.py"
    assert {setting.task for setting in SETTINGS} == read


# Audited here are the ways of release; every setting's sensitivity is shown by test_tasks.py, and by one-run audits.
@pytest.mark.sampled(13)
@pytest.mark.parametrize("path", PATHS, ids=str)
def test_ours_passes_at_its_worst(path: Path) -> None:
    found = audit(releases(path, worst_worlds(path), SeededRandom(1)), path.booked)
    assert path.booked == pytest.approx(MU * path.plan.declaration.grid / GRID, rel=1e-4)  # some tables' grid is a little less
    assert not found.flagged
    assert found.lower > 0.75 * MU, "the audit must come near what was booked, or it shows nothing"


@pytest.mark.sampled(11)
@pytest.mark.parametrize("path", MAIN, ids=str)
def test_ours_passes_on_any_neighbours(path: Path) -> None:
    for seed in (1, 2):
        assert not audit(releases(path, random_worlds(path, seed), SeededRandom(seed)), path.booked).flagged


@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    "factor",
    [pytest.param(0.25, id="half the deviation", marks=pytest.mark.system), pytest.param(0.5, id="half the variance")],
)
@pytest.mark.parametrize("path", JOINT, ids=str)
def test_too_little_noise_is_flagged(path: Path, factor: float) -> None:
    release = releases(path, worst_worlds(path), SeededRandom(2), noise=scaled(path, factor))
    assert audit(release, path.booked).flagged


def test_a_draw_for_each_release_is_audited_alike() -> None:
    """The audits above draw the noise of many releases at once; a participant draws for one at a time."""
    path = Path(SETTINGS[0])

    def one_by_one(noise: NoisePlan) -> Releases:
        release = releases(path, worst_worlds(path), SeededRandom(3), noise=noise)
        return lambda world, count: np.concatenate([release(world, 1) for _ in range(count)])

    assert not audit(one_by_one(path.plan.noise), path.booked, count=700).flagged
    assert audit(one_by_one(scaled(path, 0.25)), path.booked, count=700).flagged


def unclipped(path: Path, records: Records, *, site_clips: bool) -> Integers:
    """A sum of the task's vectors whose features nobody scaled down to the declared norm."""
    task = build_task("class-moments", path.setting.parameters, path.setting.schema)
    careless = build_task("class-moments", {**path.setting.parameters, "clip": 1e6}, path.setting.schema)
    rows = task_rows(careless, records, {})
    if site_clips:
        return site_sum(rows, task.layout().size, task.clip(), GRID, 2**62).total
    finite = [np.nan_to_num(batch, nan=0.0) for batch in rows]
    return np.trunc(np.concatenate(finite) / task.clip() * GRID).astype(np.int64).sum(axis=0)


def test_a_dropped_clip_is_flagged_and_one_clip_suffices() -> None:
    path = Path(EVEN)
    full = complete(np.ones((1, 4)), np.array([0]))
    worlds = add_unit(repeated(full, 5), full, "record", np.random.default_rng(0))
    for site_clips in (False, True):
        release = releases(path, worlds, SeededRandom(4), total=lambda r: unclipped(path, r, site_clips=site_clips))  # noqa: B023
        assert audit(release, path.booked).flagged is not site_clips


@pytest.mark.sampled(5)
@pytest.mark.parametrize("path", SUMS, ids=str)
def test_a_mean_over_a_private_count_is_flagged(path: Path) -> None:
    """The site releases its mean times a public number of records, noised as if that were a sum."""
    worlds = worst_worlds(path, base=3)

    def mean(records: Records) -> Integers:
        return path.total(records) * 24 // len(records)

    assert audit(releases(path, worlds, SeededRandom(5), total=mean), path.booked).flagged


@pytest.mark.parametrize("reused", [False, True])
def test_noise_reused_in_a_second_release_is_flagged(reused: bool) -> None:
    """Two tasks on the same data, each noised as booked; the difference of two sums with one noise has none."""
    first, second = Path(EVEN), Path(SQUARES)
    worlds = worst_worlds(first)
    source = SeededRandom(6)

    def release(world: int, count: int) -> Integers:
        sums = first.total(worlds[world]), second.total(worlds[world])
        noise = [
            sum(path.plan.noise.draw(count * len(sums[0]), source) for _ in range(2)).reshape(count, -1)  # two honest shares
            for path in (first, second)
        ]
        return np.hstack([sums[0] + noise[0], sums[1] + noise[0 if reused else 1]])

    assert audit(release, math.hypot(first.booked, second.booked)).flagged is reused


@pytest.mark.parametrize("shared", [False, True])
def test_noise_shared_by_two_sites_is_flagged(shared: bool) -> None:
    """Two sites that draw from one seed add the same noise: a colluder subtracts its own share twice."""
    path = Path(SETTINGS[0], cohort=2)
    sums = [path.total(world) for world in worst_worlds(path)]
    (other,) = path.other_sites()
    sources = [SeededRandom(7), SeededRandom(7 if shared else 8)]

    def release(world: int, count: int) -> Integers:
        shares = [path.plan.noise.draw(count * len(other), source).reshape(count, -1) for source in sources]
        return np.hstack([sums[world] + other + shares[0] + shares[1], shares[1]])

    assert audit(release, path.booked).flagged is shared


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    "path", [pytest.param(path, id=str(path), marks=pytest.mark.system if path.unit == "subject" else []) for path in MAIN]
)
def test_the_missing_noise_of_a_dropped_site_is_flagged(path: Path) -> None:
    """Three shares were planned to be honest; after a dropout the two that are left must be planned anew, not opened."""
    path = replace(path, cohort=4)
    assert path.plan.noise.honest == 3
    worlds = worst_worlds(path)
    deficit = releases(path, worlds, SeededRandom(9), dropped=1)
    assert audit(deficit, path.booked, count=3 * COUNT).flagged
    anew = path.setting.plan(path.study, cohort=3).noise
    assert anew.honest == 2
    assert not audit(releases(path, worlds, SeededRandom(9), noise=anew, dropped=1), path.booked).flagged


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", [path for path in SUMS if path.unit == "subject"], ids=str)
def test_a_subject_whose_records_are_clipped_one_by_one_only_is_flagged(path: Path) -> None:
    one_by_one = replace(path, unit="record").total
    assert audit(releases(path, worst_worlds(path), SeededRandom(10), total=one_by_one), path.booked).flagged


# The instrument itself, against closed forms.


def gaussians(mu: float, rng: np.random.Generator, d: int = 1) -> Callable[[int, int], Floats]:
    """The mechanism that is exactly mu-GDP, turned so that no single coordinate shows it."""
    shift = np.full(d, mu / math.sqrt(d))
    return lambda world, count: rng.standard_normal((count, d)) + world * shift


@pytest.mark.system
@pytest.mark.parametrize("level", [0.3, 0.02])
def test_a_mechanism_at_its_mu_is_flagged_no_more_often_than_stated(level: float) -> None:
    rng = np.random.default_rng(11)
    flagged = sum(audit(gaussians(1.5, rng, 3), 1.5, count=300, level=level).flagged for _ in range(150))
    assert stats.binomtest(flagged, 150, level, alternative="greater").pvalue > 1e-6


@pytest.mark.parametrize("d", [1, 40])
def test_the_bound_comes_near_the_truth(d: int) -> None:
    rng = np.random.default_rng(12)
    for mu in (0.5, 1.0, 2.0, 3.0):
        assert mu - 0.6 < audit(gaussians(mu, rng, d), mu).lower <= mu


def test_a_difference_in_spread_alone_is_seen() -> None:
    rng = np.random.default_rng(13)
    for widths in ((1.0, 1.5), (1.5, 1.0)):
        found = audit(lambda world, count, w=widths: w[world] * rng.standard_normal((count, 30)), 1.0)
        assert found.flagged


def test_equal_worlds_are_never_told_apart() -> None:
    rng = np.random.default_rng(14)
    assert audit(gaussians(0.0, rng, 5), 0.01).lower <= 0
    assert not audit(lambda world, count: np.zeros((count, 3)), 0.01).flagged


def test_worlds_that_differ_for_certain_reach_the_largest_bound() -> None:
    found = audit(lambda world, count: np.full((count, 2), world), 4.0)
    assert found.flagged
    assert found.lower == pytest.approx(mu_lower_bound(0, 0, COUNT))


@pytest.mark.parametrize(("errors", "count"), [(0, 10), (3, 10), (10, 10), (500, 3000), (0, 3000)])
def test_limits_are_clopper_and_pearsons(errors: int, count: int) -> None:
    exact = stats.binomtest(errors, count, alternative="less").proportion_ci(1 - LEVEL, method="exact").high
    assert upper_limits(np.array([errors]), count, LEVEL)[0] == pytest.approx(exact, rel=1e-9)


def test_the_bound_is_the_one_of_the_limits() -> None:
    high = stats.binomtest(30, 1000, alternative="less").proportion_ci(0.99, method="exact").high
    assert mu_lower_bound(30, 30, 1000, level=0.02) == pytest.approx(-2 * stats.norm.ppf(high), rel=1e-9)
    assert mu_lower_bound(500, 1000, 1000) == -math.inf
