"""One-run audits of every release path: ours pass, planted faults of the product's own code do not, bounds are exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import islice, pairwise
from typing import Any, NamedTuple

import dp_accounting
import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, optimize, stats

from support.neighbours import NEIGHBOURS, SETTINGS, Setting
from support.randomness import SeededRandom
from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_privacy.accounting.gaussian import analytic_gaussian_epsilon
from veilsum_privacy.audit.audit import (
    Finding,
    NoCanary,
    above_t,
    audit,
    best_threshold,
    gaussian_epsilon,
    guessing_bound,
    noise_bound,
    release_bound,
    sampled_bound,
)
from veilsum_privacy.audit.canaries import MOST, as_unit, candidates, join, made_up_company
from veilsum_privacy.audit.references import GRID, MU, references
from veilsum_privacy.audit.routes import ReleaseRoute, StepRoute, SumRoute, Way
from veilsum_privacy.computation import contribution
from veilsum_privacy.computation.contribution import SitePart, SitePlace, no_records
from veilsum_privacy.computation.rehearsal import made_up_broadcast
from veilsum_privacy.mechanism import noise, steps
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol
from veilsum_privacy.securesum.agreed import SumPlan
from veilsum_privacy.study.study import NoiseKind, Unit
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.agreed import RoundPlan
from veilsum_privacy.tasks.base import DerivedTask, Records, join_batches
from veilsum_privacy.tasks.feature_means import FeatureMeans

LEVEL = 1e-6
REFERENCES = {reference.task: reference for reference in references()}


class Audited(NamedTuple):
    route: ReleaseRoute
    company: Records
    units: list[Records]


def of_reference(
    task: str,
    *,
    unit: Unit = "record",
    way: Way = "own share",
    per_site: bool = False,
    rate: float = 1.0,
    sealed: int = 0,
    most: int | None = None,
) -> Audited:
    """A reference's release, seeded, and at most so many canaries: each is computed by itself before they are chosen."""
    kind: NoiseKind = "local" if per_site else "distributed"
    agreed = REFERENCES[task].study(unit=unit, noise=kind, disclosure="per-site" if per_site else "joint", rate=rate)
    tried, arrays = made_up_broadcast(agreed.tasks[0])
    plan, place = tried.plan(3, 3), SitePlace(0, random=SeededRandom(f"{task} {unit} {way} {rate}".encode()))
    training = plan.noise.kind == "training"
    route = StepRoute(plan, arrays, place) if training else SumRoute(plan, arrays, place, way, sealed)
    rng = np.random.default_rng(1)
    made_up = [as_unit(record, unit, number) for number, record in enumerate(islice(candidates(tried.study.data, rng), most))]
    return Audited(route, made_up_company(made_up, tried.study.data, unit, rng), made_up)


def of_setting(setting: Setting, *, way: Way = "shared noise", unit: Unit = "record", unrounded: bool = False) -> Audited:
    """A setting of the sensitivity tests beside its worst record: shared noise of two honest sites of three, at mu = 2."""
    study = setting.study(unit, grid=GRID, variance=int(GRID / MU) ** 2, noise="distributed", participants=3)
    if unrounded:
        study = study.model_copy(update={"tasks": (study.tasks[0].model_copy(update={"unrounded": True}),)})
    plan = setting.plan(study)
    neighbours = NEIGHBOURS[setting.task]
    rows = {name: np.stack([row] * 3) for name, row in setting.given.items()}
    place = SitePlace(0, random=SeededRandom(f"{setting.task} {setting.name}".encode()))
    route = SumRoute(plan, {**setting.broadcast, **rows}, place, way)
    return Audited(route, no_records(study), [as_unit(neighbours.worst(setting), unit, 0)])


def run(audited: Audited, *, trials: int = 600, level: float = LEVEL) -> Finding:
    return audit(audited.route, audited.units, audited.company, SeededRandom(b"coins"), delta=1e-5, level=level, trials=trials)


# Every release path passes.


def test_every_task_that_reads_records_has_a_reference() -> None:
    assert set(REFERENCES) == {name for name, task in TASKS.items() if not issubclass(task, DerivedTask)}
    assert set(NEIGHBOURS) == set(REFERENCES) - {"local-training"}


@pytest.mark.sampled(23)  # test_tasks.py has the worst record of every setting
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.task}-{setting.name}")
def test_the_worst_record_of_every_task_is_seen_at_what_is_booked(setting: Setting) -> None:
    found = run(of_setting(setting))
    assert not found.flagged
    assert found.lower > 0.75 * MU
    assert found.limit <= MU
    assert 0.94 <= found.longest <= 1 + 1e-9
    assert abs(found.noise - 1) < 0.15


@pytest.mark.sampled(41)
@pytest.mark.parametrize("task", sorted(REFERENCES))
@pytest.mark.parametrize("unit", ["record", "subject"])
def test_references_pass_and_find_canaries(task: str, unit: Unit) -> None:
    found = run(of_reference(task, unit=unit, most=100), trials=200)
    assert not found.flagged
    assert found.booked == pytest.approx(MU, rel=1e-3)
    assert found.longest > 0.7
    assert found.sees_noise > 0.75


@pytest.mark.system
@pytest.mark.parametrize("task", [pytest.param("gradient", marks=pytest.mark.system), "local-training"])
def test_sampled_releases_pass(task: str) -> None:
    found = run(of_reference(task, rate=0.5), trials=4000)
    assert not found.flagged
    assert found.sees_shift is None
    assert found.lower_epsilon > 0.8 * found.booked_epsilon
    assert found.booked_epsilon < 0.95 * gaussian_epsilon(found.booked, 1.0, 1e-5)


def test_per_site_sums_with_noise_in_the_own_block_pass() -> None:
    audited = of_reference("class-moments", per_site=True)
    assert audited.route.plan.declaration.own_noise
    assert audited.route.plan.task.per_site
    found = run(audited)
    assert not found.flagged
    assert found.values == audited.route.plan.encoding.size // 3


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "setting", [setting for setting in SETTINGS if setting.task in ("gradient", "grams")], ids=lambda setting: setting.name
)
def test_unrounded_vectors_pass_as_rounded_ones_do(setting: Setting) -> None:
    audited = of_setting(setting, unrounded=True)
    assert audited.route.plan.declaration.unrounded
    assert not run(audited).flagged


@pytest.mark.system
def test_a_thousand_canaries_in_one_encrypted_release() -> None:
    """The case that the audit is named after, all of it through masks, encryption and opening."""
    audited = of_reference("tables", way="shared noise", sealed=1)
    found = run(audited._replace(company=no_records(audited.route.plan.task.study)), trials=1)
    assert found.releases == 1
    assert 900 < found.canaries <= MOST
    assert not found.flagged
    assert found.booked == pytest.approx(MU / math.sqrt(2), rel=1e-3)
    assert found.lower > 0.85 * found.booked
    assert 0 < found.general_epsilon < found.lower_epsilon


# Planted faults: each in the product's own code, found by the audit, and by nothing before it.


def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every site draws noise of half the standard deviation."""
    drawn, around = noise.discrete_gaussian, noise.gaussian_around

    def less(variance: Fraction, size: int, source: Any) -> Any:
        return drawn(variance / 4, size, source)

    monkeypatch.setattr("veilsum_privacy.mechanism.noise.discrete_gaussian", less)
    monkeypatch.setattr(steps, "discrete_gaussian", less)

    def less_around(centres: Any, variance: Fraction, source: Any) -> Any:
        return around(centres, variance / 4, source)

    monkeypatch.setattr("veilsum_privacy.securesum.agreed.gaussian_around", less_around)


def doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the site adds to a sum is added twice, noise apart; the sum before noise that the audit measures hides it."""
    plain = RoundPlan.noised

    def twice(self: RoundPlan, total: Any, index: int, source: Any) -> Any:
        return plain(self, 2 * total, index, source)

    monkeypatch.setattr(SumPlan, "noised", twice)


def counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are read twice."""
    plain = contribution.contribute

    def twice(plan: RoundPlan, load: Callable[[], Records], broadcast: Mapping[str, Floats], place: SitePlace) -> SitePart:
        def reread() -> Records:
            records = load()
            return records.take(np.repeat(np.arange(len(records)), 2))

        return plain(plan, reread, broadcast, place)

    monkeypatch.setattr("veilsum_privacy.audit.routes.contribute", twice)


def unclipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither features nor vectors are scaled down to their norms."""

    def onto_grid(vectors: Any, clip: float, grid: int) -> Any:
        rows = np.trunc(np.asarray(vectors, dtype=np.float64) / clip * grid).astype(np.int64)
        none = np.zeros(len(rows), dtype=np.bool_)
        return rows, none, none

    monkeypatch.setattr("veilsum_privacy.mechanism.rows.sums.truncate_to_grid", onto_grid)

    def as_they_are(parameters: Any, record: Record, used: Any) -> Symbol:
        return record.features

    monkeypatch.setattr("veilsum_privacy.tasks.feature_means.clipped", as_they_are)


RELEASES: Mapping[str, Callable[[], Audited]] = {
    "record sums": lambda: of_reference("feature-means"),
    "shared noise": lambda: of_reference("feature-means", way="shared noise"),
    "encrypted": lambda: of_reference("tables", way="shared noise", sealed=1, most=300),
    "subjects": lambda: of_reference("gaussian-moments", unit="subject"),
    "unrounded": lambda: of_reference("gradient"),
    "sampled": lambda: of_reference("gradient", rate=0.5),
    "per site": lambda: of_reference("feature-means", per_site=True),
    "steps": lambda: of_reference("local-training"),
    "sampled steps": lambda: of_reference("local-training", rate=0.5),
}


DEAR = ("steps", "sampled steps")
CASES = [pytest.param(name, marks=[pytest.mark.system] if name in DEAR else []) for name in RELEASES]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("release", CASES)
def test_halved_noise_is_found(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the same releases pass with all of their noise is above."""
    halved(monkeypatch)
    found = run(RELEASES[release]())
    assert found.flagged
    assert found.limit > found.booked
    assert found.noise == pytest.approx(0.5, abs=0.1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", [name for name in RELEASES if "steps" not in name and name != "sampled"])
def test_a_sum_added_twice_is_found_from_the_release_alone(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    doubled(monkeypatch)
    found = run(RELEASES[release](), trials=1000)
    assert found.longest <= 1 + 1e-9, "nothing before the noise shows it"
    assert found.flagged
    assert found.limit > found.booked


@pytest.mark.sampled(7)
@pytest.mark.parametrize("release", [case for case in CASES if case.values != ("subjects",)])
def test_records_counted_twice_are_found(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted_twice(monkeypatch)
    found = run(RELEASES[release](), trials=1000)
    assert found.flagged
    assert found.longest == pytest.approx(2, rel=0.05)


def test_a_subject_whose_records_are_read_twice_is_still_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    counted_twice(monkeypatch)
    assert not run(RELEASES["subjects"]()).flagged


def test_a_clip_that_is_not_applied_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of norm 2 under a clip of 1, in a task that clips them and whose vectors are clipped again."""
    assert not run(RELEASES["record sums"]()).flagged
    unclipped(monkeypatch)
    found = run(RELEASES["record sums"](), trials=1000)
    assert found.flagged
    assert found.longest > 1.4
    assert any("sensitivity" in fault for fault in found.faults)
    assert any("mu" in fault for fault in found.faults)


# Faults across units: below every task, where the kernel would have to go wrong, for none of them can be said in a task.


class Planted(NamedTuple):
    """A fault of the site's code: what it makes of the sum, given how a part of the records would be summed without it."""

    task: str
    unit: Unit
    total: Callable[[RoundPlan, Records, Callable[[Records], Any]], Any]
    words: str


def of_unit(records: Records) -> list[NDArray[np.bool_]]:
    """Which records each unit has; the audit tells units apart by their subjects."""
    assert records.subjects is not None
    return [records.subjects == subject for subject in np.unique(records.subjects)]


def too_long(plan: RoundPlan, records: Records, total: Callable[[Records], Any]) -> Any:
    return 5 * total(records)


def less_the_mean(plan: RoundPlan, records: Records, total: Callable[[Records], Any]) -> Any:
    """Every unit's part less the mean of all, shortened to the grid afterwards as a kernel would."""
    parts = np.array([total(records.take(own)) for own in of_unit(records)], dtype=np.float64)
    if not len(parts):
        return total(records)
    apart, most = parts - parts.mean(axis=0), np.float64(plan.declaration.grid)
    if plan.declaration.unrounded:
        most *= 2.0**noise.CENTRE_BITS
    lengths = np.linalg.norm(apart, axis=1, keepdims=True)
    return np.rint(apart * np.minimum(1.0, most / np.maximum(lengths, 1.0))).sum(axis=0).astype(np.int64)


def who_is_there(plan: RoundPlan, records: Records, total: Callable[[Records], Any]) -> Any:
    """The parts of all units change their sign where one unit is there that has every feature at its lower bound."""
    there = bool((records.features == -1.0).all(axis=1).any())
    return -total(records) if there else total(records)


def no_longer_of_a_person(plan: RoundPlan, records: Records, total: Callable[[Records], Any]) -> Any:
    """What R1 was: where one unit fails, every record of everybody counts as a unit of its own."""
    if not (records.features == -1.0).all(axis=1).any():
        return total(records)
    return sum(total(records.take(np.array([place]))) for place in range(len(records)))


def kept_between_units(plan: RoundPlan, records: Records, total: Callable[[Records], Any]) -> Any:
    """Each unit is added once more for each that came before it, as by a buffer that is not emptied."""
    found, sums = total(records.take(np.zeros(0, dtype=np.intp))), 0
    for own in of_unit(records):
        sums = sums + total(records.take(own))
        found = found + sums
    return found


PLANTED: Mapping[str, Planted] = {
    "gradient five times too long": Planted("gradient", "record", too_long, "times the sensitivity that is booked"),
    "grams five times too long": Planted("grams", "subject", too_long, "times the sensitivity that is booked"),
    "a sum less the mean of its records": Planted("gaussian-moments", "record", less_the_mean, "not additive"),
    "a sum that tells who is there": Planted("feature-means", "record", who_is_there, "not additive"),
    "persons that fall apart where one fails": Planted("power-moments", "subject", no_longer_of_a_person, "not additive"),
    "state that is kept between persons": Planted("class-moments", "subject", kept_between_units, "not additive"),
}


def plant(monkeypatch: pytest.MonkeyPatch, fault: Planted) -> None:
    plain = contribution.compute_sum

    def faulty(plan: RoundPlan, batches: Any, *more: Any) -> SitePart:
        records = join_batches([batches] if isinstance(batches, Records) else list(batches))
        found = plain(plan, records, *more)
        return found._replace(total=fault.total(plan, records, lambda part: plain(plan, part, *more).total))

    monkeypatch.setattr(contribution, "compute_sum", faulty)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_on_both_bases_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = PLANTED[name]
    audited = of_reference(fault.task, unit=fault.unit, most=10)
    honest = run(audited, trials=20)
    assert not honest.flagged
    assert honest.company == len(np.unique(audited.company.subjects)) >= 4  # type: ignore[arg-type]
    assert honest.interaction is not None
    assert honest.interaction <= 1e-6
    plant(monkeypatch, fault)
    found = run(audited._replace(route=of_reference(fault.task, unit=fault.unit, most=1).route), trials=20)
    assert found.flagged
    assert any(fault.words in said for said in found.faults), found.faults


def test_alone_a_fault_across_units_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why there is company: without anybody else nothing depends on who else is there."""
    plant(monkeypatch, PLANTED["a sum that tells who is there"])
    audited = of_reference("feature-means", most=24)
    assert not run(audited._replace(company=no_records(audited.route.plan.task.study)), trials=40).flagged
    assert run(audited, trials=40).flagged


def test_what_a_unit_of_the_company_takes_away_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit that no candidate is like, and that everybody's part hangs on, is found by taking it out."""
    audited = of_reference("feature-means", most=8)
    odd = audited.company.features[3].copy()

    def hangs(plan: RoundPlan, records: Records, total: Callable[[Records], Any]) -> Any:
        there = bool((records.features == odd).all(axis=1).any()) and len(records) > 4
        return 3 * total(records) if there else total(records)

    units = [unit for unit in audited.units if not (unit.features == odd).all(axis=1).any()]
    plant(monkeypatch, Planted("feature-means", "record", hangs, ""))
    found = run(audited._replace(units=units), trials=40)
    assert found.longest > 1
    assert any("not additive" in said for said in found.faults)


def test_a_row_that_a_task_makes_a_thousand_times_too_long_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    real = FeatureMeans.row
    monkeypatch.setattr(FeatureMeans, "row", lambda self, record, broadcast: real(self, record, broadcast) * 1000.0)
    found = run(of_reference("feature-means", most=24), trials=100)
    assert not found.flagged
    assert found.longest <= 1 + 1e-9


def test_no_more_units_stand_together_than_a_site_may_have() -> None:
    """Else the sum would be cut off at what the schema's records reach, and would not be additive, without any fault."""
    reference = REFERENCES["tables"]
    few = replace(reference, schema=reference.schema.model_copy(update={"max_records": 50}))
    for unit in ("record", "subject"):
        tried, arrays = made_up_broadcast(few.study(unit=unit, noise="local").tasks[0])  # type: ignore[arg-type]
        route = SumRoute(tried.plan(3, 3), arrays, SitePlace(0, random=SeededRandom(unit.encode())))
        rng = np.random.default_rng(1)
        drawn = islice(candidates(tried.study.data, rng), 100)
        made_up = [as_unit(record, unit, at) for at, record in enumerate(drawn)]  # type: ignore[arg-type]
        company = made_up_company(made_up, tried.study.data, unit, rng)  # type: ignore[arg-type]
        found = run(Audited(route, company, made_up), trials=200)
        assert not found.flagged
        assert len(company) + found.canaries * len(made_up[0]) <= 50


def test_a_missing_share_of_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two honest sites adds none: half the variance."""
    release = RELEASES["shared noise"]
    whole = run(release(), trials=1000)
    assert not whole.flagged
    monkeypatch.setattr(SumRoute, "_empty", lambda self, index: np.zeros(self.plan.encoding.size, dtype=np.int64))
    found = run(release(), trials=1000)
    assert found.flagged
    assert found.noise == pytest.approx(math.sqrt(0.5), abs=0.05)


@pytest.mark.system
def test_a_step_that_always_samples_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Booked at q = 1/2; the noise is as declared, so only the scores tell."""
    audited = of_reference("local-training", rate=0.5)
    monkeypatch.setattr(steps, "poisson_sample", lambda rate, count, source, subjects=None: np.ones(count, dtype=np.bool_))
    found = run(audited, trials=4000)
    assert found.noise == pytest.approx(1, abs=0.05)
    assert found.flagged


def test_an_encrypted_sum_that_opens_to_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilsum_privacy.audit.routes.unmask_values", lambda *given: np.zeros(1000, dtype=np.int64))
    with pytest.raises(Misuse, match="did not open"):
        run(RELEASES["encrypted"]())


def test_a_value_outside_the_own_block_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SumPlan, "noised", lambda self, total, index, source: total + 1)
    with pytest.raises(Misuse, match="where it has no noise"):
        run(RELEASES["per site"]())


def test_nothing_is_said_of_a_release_that_no_canary_moves() -> None:
    audited = of_reference("feature-means")
    with pytest.raises(NoCanary):
        run(audited._replace(units=[no_records(audited.route.plan.task.study)]))


# The instrument, against closed forms and other libraries.


@pytest.mark.system
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("t", "freedom", "shift"), [(10.0, 998, 4.24), (9.0, 20_000, 3.0), (5.3, 1998, 0.5), (30.0, 20, 10.0), (5.0, 8, 1.0)]
)
def test_noncentral_t_is_mpmaths_integral(t: float, freedom: int, shift: float) -> None:
    with mpmath.workdps(40):
        n = mpmath.mpf(freedom)
        scale = 2 * (n / 2) ** (n / 2) / mpmath.gamma(n / 2)
        width = 1 / mpmath.sqrt(2 * n)
        grid = [max(mpmath.mpf(0), 1 + k * width) for k in (-12, -6, -3, 0, 3, 6, 14)]
        points = sorted(set(grid))
        exact = mpmath.quad(lambda s: mpmath.ncdf(shift - t * s) * scale * s ** (n - 1) * mpmath.exp(-n * s * s / 2), points)
    assert above_t(t, freedom, shift) == pytest.approx(float(exact), rel=1e-6, abs=1e-14)


@pytest.mark.parametrize("mu", [1.0, *(pytest.param(mu, marks=pytest.mark.system) for mu in (0.05, 0.27, 5.0))])
def test_epsilon_of_a_release_is_the_closed_form_and_the_integral(mu: float) -> None:
    assert gaussian_epsilon(mu, 1.0, 1e-5) == pytest.approx(analytic_gaussian_epsilon(mu**2, 1e-5), rel=1e-9)
    epsilon, rate = gaussian_epsilon(mu, 0.1, 1e-5), 0.1

    def excess(x: float) -> float:
        mixed = (1 - rate) * stats.norm.pdf(x) + rate * stats.norm.pdf(x, mu)
        return float(max(0.0, mixed - math.exp(epsilon) * stats.norm.pdf(x)))

    ends = np.linspace(-3, mu + 10, 200)
    told = sum(integrate.quad(excess, low, high, epsabs=1e-14)[0] for low, high in pairwise(ends))
    assert told == pytest.approx(1e-5, rel=1e-4)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(1 / mu))
    both = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon(1e-5)
    assert epsilon <= both + 1e-3, "adding alone costs no more than both directions together"


@pytest.mark.system
def test_the_release_bound_holds_exactly_as_often_as_stated() -> None:
    rng = np.random.default_rng(5)
    for mu in (0.3, 2.0):
        over = 0
        for _ in range(200):
            inside, outside = rng.standard_normal(40) + mu, rng.standard_normal(50)
            over += release_bound(3 * inside, 3 * outside, 0.1) > mu  # of any unit
        assert stats.binomtest(over, 200, 0.1).pvalue > 1e-6


@pytest.mark.system
def test_unequal_canaries_only_lower_the_bound() -> None:
    rng = np.random.default_rng(6)
    over = 0
    for _ in range(200):
        shifts = rng.uniform(0, 1, 50)
        over += release_bound(rng.standard_normal(50) + shifts, rng.standard_normal(50), 0.1) > 1.0
    assert over < 4


def test_the_noise_bound_holds_exactly_as_often_as_stated() -> None:
    rng = np.random.default_rng(7)
    over = sum(noise_bound(float((rng.standard_normal(60) ** 2).sum()), 60, 0.1) > 1 for _ in range(4000))
    assert stats.binomtest(over, 4000, 0.1).pvalue > 1e-6


def test_the_sampled_bound_holds_and_comes_near() -> None:
    rng = np.random.default_rng(8)
    mu, rate, n = 1.5, 0.4, 5000
    threshold = best_threshold(mu, rate, n, n, 0.05)
    bounds = []
    for _ in range(300):
        taken = rng.random(n) < rate
        bounds.append(sampled_bound(rng.standard_normal(n) + mu * taken, rng.standard_normal(n), rate, threshold, 0.05))
    assert sum(bound > mu for bound in bounds) <= 300 * 0.05 + 4 * math.sqrt(300 * 0.05)
    assert float(np.median(bounds)) > 0.75 * mu


@pytest.mark.system
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("epsilon", "share"), [(1.0, 0.28), (3.0, 0.86), (8.0, 1.0)])
def test_a_thousand_canaries_see_noise_a_fifth_too_low_in_so_many_runs(epsilon: float, share: float) -> None:
    """The release alone, at 95%: as often as the noncentral t says, which is what was planned with."""
    mu, low, n = optimize.brentq(lambda mu: gaussian_epsilon(mu, 1.0, 1e-5) - epsilon, 0.01, 10), 0.8, 500
    scale = math.sqrt(2 / n)
    least = optimize.brentq(lambda t: above_t(t, 2 * n - 2, mu / scale) - 0.05, 0, 1e3)
    exact = above_t(least, 2 * n - 2, mu / low / scale)
    assert exact == pytest.approx(share, abs=0.02)
    rng = np.random.default_rng(9)
    over = sum(release_bound(low * rng.standard_normal(n) + mu, low * rng.standard_normal(n), 0.05) > mu for _ in range(150))
    assert stats.binomtest(over, 150, exact).pvalue > 1e-6


def test_guessing_is_theorem_5_2() -> None:
    """Without delta it is the binomial; with it, the p-value is the paper's own sum, written out here again."""
    bound = guessing_bound(100, 80, 1000, 0.0, 0.05)
    assert stats.binom.sf(79, 100, 1 / (1 + math.exp(-bound))) == pytest.approx(0.05, rel=1e-6)
    delta, m, r, v = 1e-4, 1000, 100, 80
    bound = guessing_bound(r, v, m, delta, 0.05)
    q = 1 / (1 + math.exp(-bound))
    best = total = 0.0
    for i in range(1, v + 1):
        total += float(stats.binom.pmf(v - i, r, q))
        best = max(best, total / i)
    assert stats.binom.sf(v - 1, r, q) + 2 * m * delta * best == pytest.approx(0.05, rel=1e-6)
    assert guessing_bound(100, 50, 1000, 1e-5, 0.05) == 0.0


@pytest.mark.system
def test_guessing_holds_of_randomised_response() -> None:
    rng, epsilon = np.random.default_rng(10), 1.0
    truth = 1 / (1 + math.exp(-epsilon))
    over = sum(guessing_bound(400, int(rng.binomial(400, truth)), 400, 0.0, 0.05) > epsilon for _ in range(100))
    assert stats.binomtest(over, 100, 0.05, alternative="greater").pvalue > 1e-6


def test_canaries_stand_at_right_angles() -> None:
    audited = of_reference("class-moments")
    start = audited.route.before(audited.company)
    vectors = np.array([audited.route.before(join([audited.company, unit])) - start for unit in audited.units[:40]])
    gram = vectors @ vectors.T
    np.testing.assert_array_equal(gram - np.diag(np.diag(gram)), 0)


@pytest.mark.system
def test_what_a_correct_release_is_flagged_with_is_the_level() -> None:
    """At a level that can be counted, on the statistic as the audit composes it: never more often than stated."""
    audited = of_reference("feature-means")
    flagged = 0
    for seed in range(30):
        random = SeededRandom(b"%d" % seed)
        audited.route._place = replace(audited.route._place, random=random)
        flagged += audit(audited.route, audited.units[:4], audited.company, random, delta=1e-5, level=0.3, trials=40).flagged
    assert stats.binomtest(flagged, 30, 0.3, alternative="greater").pvalue > 1e-6
