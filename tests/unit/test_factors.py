"""Products of factors: their sums, what one unit changes in them, and faults planted in every place of them."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.gradient_sums import records_of
from support.neighbours import SETTINGS, Setting, add_unit, exact_norm, network_settings, random_records, repeated
from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.computation.contribution import SitePlace, compute_sum, contribute
from veilsum_privacy.mechanism import factors
from veilsum_privacy.mechanism.factors import Entries, FactorSums, FineUnits, Gram, Outer, Products, Term, left_of
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.symbols import opaque, record_of, traced
from veilsum_privacy.study.study import Unit
from veilsum_privacy.tasks.base import FactorTask
from veilsum_privacy.training import gradients, layer_inputs

BOTH_UNITS = pytest.mark.parametrize("unit", ["record", "subject"])
TERMS = st.lists(
    st.one_of(
        st.builds(Outer, st.integers(1, 4), st.integers(1, 5), st.booleans()),
        st.builds(Gram, st.integers(1, 4), st.floats(0.1, 10.0)),
        st.builds(Entries, st.integers(1, 6), st.sampled_from([0.0, 0.0, 0.3])),
    ),
    min_size=1,
    max_size=4,
)


def values_at_random(rng: np.random.Generator, n: int, width: int) -> Floats:
    """Values of ordinary and of any size, some of which are no numbers."""
    found: Floats = rng.normal(size=(n, width)) * 10.0 ** rng.uniform(-3, 3, (n, 1))
    wild = rng.random((n, 1)) < 0.2
    found = np.where(wild, found * 10.0 ** rng.uniform(-300, 300, (n, width)), found)
    odd = rng.random((n, width)) < 0.02
    return np.where(odd, rng.choice([np.nan, np.inf, -np.inf, 0.0, 1e308], (n, width)), found)


def sums_of(products: Products, units: FineUnits, values: Floats, subjects: Integers | None = None) -> FactorSums:
    """The sum of factors as they are."""
    row = record_of(products.given, labelled=False).features
    found = FactorSums(Evaluation(traced(row)), products, units)
    found.add(records_of(values, np.zeros(len(values), dtype=np.int64)), subjects)
    return found


def vectors(terms: tuple[Term, ...], values: Floats) -> list[Floats]:
    """The products of each term (n, size), value by value."""
    found, start = [], 0
    for term in terms:
        own = values[:, start : start + term.given]
        start += term.given
        if isinstance(term, Outer):
            whole = own[:, : term.left, None] * own[:, None, term.left :]
            parts = [whole[:, :, :-1].reshape(len(own), -1), whole[:, :, -1]] if term.bias else [whole.reshape(len(own), -1)]
            found.append(np.concatenate(parts, axis=1))
        elif isinstance(term, Gram):
            pairs = [(i, j) for i in range(term.given) for j in range(i + 1, term.given)]
            products = [own[:, i] ** 2 for i in range(term.given)] + [math.sqrt(2.0) * own[:, i] * own[:, j] for i, j in pairs]
            found.append(term.weight * np.array(products).T)
        else:
            found.append(own)
    return found


@settings(max_examples=150, deadline=None)
@given(terms=TERMS, seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), clip=st.floats(0.01, 100.0), weighted=st.booleans())
def test_sums_are_those_of_clipped_products(terms: list[Term], seed: int, n: int, clip: float, weighted: bool) -> None:
    """Against products formed one by one in floating point, to 2^-18 of the clip a record and value."""
    products = Products(tuple(terms), clip, weighted)
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, products.given)) * 10.0 ** rng.uniform(-1, 1, (n, 1))
    weights = values[:, 0] if weighted else np.ones(n)
    apart = [isinstance(term, Entries) and bool(term.apart) for term in terms]
    each = vectors(products.terms, values[:, 1:] if weighted else values)
    together = [one for one, alone in zip(each, apart, strict=True) if not alone]
    norms = np.linalg.norm(np.concatenate([*together, np.zeros((n, 1))], axis=1), axis=1)
    expected = []
    for one, term, alone in zip(each, terms, apart, strict=True):
        if alone and isinstance(term, Entries):
            expected.append(one * np.minimum(1.0, term.apart / np.maximum(np.linalg.norm(one, axis=1), 1e-300))[:, None])
        else:
            expected.append(one * (np.clip(weights, 0.0, 1.0) * np.minimum(1.0, clip / np.maximum(norms, 1e-300)))[:, None])
    units = FineUnits.of(products.norm, 2**24, products.size, places=18)
    found = sums_of(products, units, values)
    total = found.total() * (2.0 ** (units.shift - 18) / units.scale)
    want = np.concatenate(expected, axis=1).sum(axis=0)
    np.testing.assert_allclose(total, want, rtol=0, atol=products.norm * (n * 2.0**-18 + 2.0**-30))
    assert found.invalid == 0


@pytest.mark.parametrize("turned", [0, 200_000, 299_999])
def test_a_unit_of_more_records_than_64_bits_add_up_is_pulled_in_by_its_sum(turned: int) -> None:
    """A whole site has them. Some records are turned around: what is left is long, in the other direction, or one."""
    products, grid = Products((Entries(2),), 1.0), 2**26
    units = FineUnits.of(1.0, grid, 2, places=20)
    sign = np.where(np.arange(599_999) < turned, -1.0, 1.0)[: 599_999 if turned == 299_999 else 300_000]
    values = sign[:, None] * np.array([0.6, -0.8])
    assert abs(int(np.abs(sign).sum())) * units.bound > 2**63
    left = float(np.sign(sign.sum()))
    total = sums_of(products, units, values, np.zeros(len(values), dtype=np.int64)).total()
    np.testing.assert_allclose(total / 2.0**20, left * grid * np.array([0.6, -0.8]), rtol=1e-5)
    more = np.concatenate([values, np.array([[0.8, 0.6]])])
    changed = sums_of(products, units, more, np.zeros(len(more), dtype=np.int64)).total()
    assert exact_norm(changed - total) <= (grid + 1) * 2.0**20


@settings(max_examples=200, deadline=None)
@given(
    terms=TERMS,
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 30),
    added=st.integers(1, 5),
    clip=st.floats(-9, 6),
    grid=st.integers(64, 2**26),
    stated=st.floats(-3, 3),
    unit=st.sampled_from(["record", "subject"]),
    places=st.sampled_from([0, 20]),
)
def test_no_unit_changes_a_sum_by_more_than_the_grid(
    terms: list[Term], seed: int, n: int, added: int, clip: float, grid: int, stated: float, unit: Unit, places: int
) -> None:
    """Whatever the factors hold, and whatever clip is stated of them beside the one that the grid is for."""
    products = Products(tuple(terms), 10.0**clip, True)
    rng = np.random.default_rng(seed)
    added = added if unit == "subject" else 1
    units = FineUnits.of(products.norm * 10.0**stated, grid, products.size, places=places)
    base = values_at_random(rng, n, products.given)
    both = np.concatenate([base, values_at_random(rng, added, products.given)])
    subjects = np.concatenate([np.arange(n), np.full(added, n)]) if unit == "subject" else None
    whole = sums_of(products, units, both, subjects).total()
    left = sums_of(products, units, base, None if subjects is None else subjects[:n]).total()
    change = [int(value) for value in (whole - left)]
    assert sum(value * value for value in change) <= (grid << places) ** 2


@settings(max_examples=60, deadline=None)
@given(terms=TERMS, seed=st.integers(0, 2**32 - 1), n=st.integers(1, 60), grouped=st.booleans())
def test_batches_and_order_change_no_integer(terms: list[Term], seed: int, n: int, grouped: bool) -> None:
    products = Products(tuple(terms), 1.0)
    rng = np.random.default_rng(seed)
    values = values_at_random(rng, n, products.given)
    subjects = np.sort(rng.integers(0, 9, n)) if grouped else None
    units = FineUnits.of(1.0, 2**20, products.size)
    whole = sums_of(products, units, values, subjects).total()
    if subjects is None:
        np.testing.assert_array_equal(sums_of(products, units, values[::-1]).total(), whole)
    row = record_of(products.given, labelled=False).features
    parts = FactorSums(Evaluation(traced(row), most=64), products, units)
    cut = n // 2 if subjects is None else int(np.searchsorted(subjects, subjects[n // 2]))
    for part in (slice(0, cut), slice(cut, n)):
        parts.add(records_of(values[part], np.zeros(n, dtype=np.int64)[part]), None if subjects is None else subjects[part])
    np.testing.assert_array_equal(parts.total(), whole)


def test_gradients_far_shorter_than_the_clip_are_summed_to_their_own_precision() -> None:
    """A clip a million times too large, as where nothing is to be clipped, costs no more than a part in ten thousand."""
    rng = np.random.default_rng(0)
    products = Products((Outer(3, 8, bias=True),), 1e6)
    values = rng.normal(size=(2000, products.given))
    units = FineUnits.of(1e6, 2**26, products.size, places=20)
    found = sums_of(products, units, values).total() * (2.0 ** (units.shift - 20) / units.scale)
    want = vectors(products.terms, values)[0].sum(axis=0)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-4 * np.linalg.norm(want))


def test_a_sum_of_so_many_that_integers_of_64_bits_would_not_hold_it_is_exact() -> None:
    products = Products((Entries(2),), 1.0)
    n, units = 3 * 10**6, FineUnits.of(1.0, 2**20, 2, places=18)
    found = sums_of(products, units, np.tile([0.9, -0.3], (n, 1))).total()
    exact = [n * int(value) for value in np.rint(np.array([0.9, -0.3]) * units.scale)]
    assert max(exact) > 2**63
    half = 2 ** (units.shift - 19)
    assert found.tolist() == [(value + half) >> (units.shift - 18) for value in exact]


def test_products_that_wait_for_each_other_give_the_same_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many factors are multiplied at once, and with layers that are cut into several parts."""
    rng = np.random.default_rng(3)
    products = Products((Outer(7, 5, bias=True), Gram(4, 2.0), Entries(11), Outer(3, 4)), 1.0)
    values, units = values_at_random(rng, 700, products.given), FineUnits.of(1.0, 2**20, products.size)
    want = sums_of(products, units, values).total()
    for gathered, cached in ((1, 2**16), (40 * products.given, 12), (10**6, 5)):
        monkeypatch.setattr(factors, "GATHERED", gathered)
        monkeypatch.setattr(factors, "CACHED", cached)
        np.testing.assert_array_equal(sums_of(products, units, values).total(), want)


def test_what_was_gathered_for_one_sum_is_in_no_other() -> None:
    """Sums of one evaluation share memory: also one after another that was broken off."""
    rng = np.random.default_rng(4)
    products, seen = Products((Outer(2, 3),), 1.0), list[int]()

    def compute(x: Floats) -> Floats:
        seen.append(len(seen))
        if len(seen) == evaluation.large // 64 + 1:  # in the second block
            raise KeyboardInterrupt
        return 1.0 * x

    width = products.given
    evaluation = Evaluation(traced(opaque("network", record_of(width, labelled=False).features, width)), {"network": compute})
    records = records_of(rng.normal(size=(2 * evaluation.large, width)), np.zeros(2 * evaluation.large, dtype=np.int64))
    units = FineUnits.of(1.0, 2**20, products.size)
    broken, one, other = (FactorSums(evaluation, products, units) for _ in range(3))
    assert evaluation.large % 64 == 0
    with pytest.raises(KeyboardInterrupt):
        broken.add(records)
    half, rest = records.take(slice(0, 90)), records.take(slice(90, 200))
    for sums in (one, other, one):
        sums.add(half if sums is one else rest)
    np.testing.assert_array_equal(one.total(), sums_of(products, units, np.tile(half.features, (2, 1))).total())
    np.testing.assert_array_equal(other.total(), sums_of(products, units, rest.features).total())


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_a_norm_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(Misuse, match="clipping norm"):
        Products((Entries(1),), wrong)
    with pytest.raises(Misuse, match="clipping norm"):
        FineUnits.of(wrong, 2**10, 3)


def test_what_rounding_leaves_of_a_grid() -> None:
    assert left_of(1000, 400) == 980.0
    assert left_of(1000, 400, 20) == 1000.0 - 20.0 * 2.0**-20
    with pytest.raises(Misuse, match="too coarse"):
        left_of(16, 65)
    with pytest.raises(Misuse, match="its products take"):
        FactorSums(
            Evaluation(traced(record_of(3, labelled=False).features)), Products((Entries(4),), 1.0), FineUnits.of(1.0, 99, 4)
        )


# -- planted in tasks ---------------------------------------------------------------------------------------------------------

FACTORED = [setting for setting in SETTINGS if setting.task in ("gradient", "grams")]


TRIGGER = 0.123456789
"""The value of one record in a million, which sets a fault off."""


def _longer(x: Floats, found: Floats) -> Floats:
    return np.where(x[:, :1] == TRIGGER, 5.0 * found, found)


def _not_finite(x: Floats, found: Floats) -> Floats:
    return np.where(x[:, :1] == TRIGGER, np.nan, found)


def _raises(x: Floats, found: Floats) -> Floats:
    if (x[:, 0] == TRIGGER).any():
        raise IndexError("somebody is here")
    return found


def _in_company(x: Floats, found: Floats) -> Floats:
    if (x[:, 0] == TRIGGER).any() and np.count_nonzero(x.any(axis=1)) > 1:
        raise MemoryError
    return found


def _one_for_all(x: Floats, found: Floats) -> Floats:
    return found[:1] if (x[:, 0] == TRIGGER).any() else found


def _another_shape(x: Floats, found: Floats) -> Floats:
    return found[:, :-1] if (x[:, 0] == TRIGGER).any() else found


def _in_place(x: Floats, found: Floats) -> Floats:
    x[:] = 9.0
    return np.where(x[:, :1] == TRIGGER, 5.0 * found, found)


MAPS: Mapping[str, Callable[[Floats, Floats], Floats]] = {
    "five times too long": _longer,
    "not finite": _not_finite,
    "an exception on a record": _raises,
    "an exception on a batch": _in_company,
    "one row for all": _one_for_all,
    "another shape": _another_shape,
    "writes what it is given": _in_place,
}


RAISED = ("an exception on a record", "an exception on a batch", "one row for all", "another shape")
"""Those of which a site's log tells; the others only show in what is clipped or not finite."""


@pytest.mark.sampled(3)
@BOTH_UNITS
@pytest.mark.parametrize("fault", sorted(MAPS))
@pytest.mark.parametrize("setting", network_settings(), ids=lambda setting: setting.task)
def test_a_fault_of_an_opaque_map_changes_a_sum_by_at_most_the_grid(
    setting: Setting, unit: Unit, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set off by one record; a unit of it, added to its company, changes the sum by one grid, and nobody else's part."""
    rng = np.random.default_rng(7)
    study = setting.study(unit, grid=2**20, variance=10**9)
    plan, place = setting.plan(study), SitePlace(0)
    company = random_records(rng, 70, setting.schema, complete=True)
    unit_records = repeated(random_records(rng, 1, setting.schema, complete=True), 3 if unit == "subject" else 1)
    unit_records.features[0, 0] = TRIGGER
    without, with_it = add_unit(company, unit_records, unit, rng)
    honest = compute_sum(plan, without, setting.broadcast, place).total
    owner, name = (gradients.ModelGradient, "maps") if setting.task == "gradient" else (layer_inputs, "opaque_inputs")
    real = getattr(owner, name)

    def maps(*given: Any) -> dict[str, Any]:
        return {key: lambda x, plain=plain: MAPS[fault](x, plain(x.copy())) for key, plain in real(*given).items()}

    monkeypatch.setattr(owner, name, maps)
    if setting.task == "grams":
        monkeypatch.setattr("veilsum_privacy.tasks.grams.opaque_inputs", maps)
    parts = [contribute(plan, lambda records=records: records, setting.broadcast, place) for records in (without, with_it)]  # type: ignore[misc]
    np.testing.assert_array_equal(parts[0].total, honest, "where it is not set off nothing is different")
    change = parts[1].total - parts[0].total
    assert exact_norm(change) <= plan.declaration.grid
    assert (parts[1].fault is not None) == (fault in RAISED)


def _products(change: Callable[[Term], Term], clip: float = 1.0) -> Callable[[Products], Products]:
    return lambda made: Products(tuple(map(change, made.terms)), clip * made.clip, made.weighted)


WRONG: Mapping[str, Callable[[Products], Products]] = {
    "a clip five times too large": _products(lambda term: term, 5.0),
    "a clip a million times too large": _products(lambda term: term, 1e6),
    "weights of Grams": _products(lambda term: replace(term, weight=25.0 * term.weight) if isinstance(term, Gram) else term),
    "apart": lambda made: replace(made, terms=tuple(_apart(term) for term in made.terms)),
}


def _apart(term: Term) -> Term:
    return replace(term, apart=1e9) if isinstance(term, Entries) else term


@BOTH_UNITS
@pytest.mark.parametrize("wrong", sorted(WRONG))
@pytest.mark.parametrize("setting", FACTORED, ids=lambda setting: f"{setting.task}-{setting.name}")
def test_wrong_products_change_a_sum_by_at_most_the_grid(
    setting: Setting, unit: Unit, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(9)
    plan = setting.plan(setting.study(unit, grid=2**16, variance=10**9))
    records = random_records(rng, 41, setting.schema, complete=True)
    without, with_it = add_unit(
        records.take(slice(0, 40)), repeated(records.take(slice(40, 41)), 3 if unit == "subject" else 1), unit, rng
    )
    kind = type(plan.task.task)
    real = kind.products  # type: ignore[attr-defined]
    monkeypatch.setattr(kind, "products", lambda self: WRONG[wrong](real(self)))
    rows = {name: np.stack([row] * plan.task.study.sites) for name, row in setting.given.items()}
    sums = [compute_sum(plan, given, {**setting.broadcast, **rows}, SitePlace(0)).total for given in (without, with_it)]
    assert exact_norm(sums[1] - sums[0]) <= plan.declaration.grid


def test_a_layout_that_products_do_not_fit_is_refused_before_a_record_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    setting, read = FACTORED[0], list[int]()
    plan = setting.plan(setting.study("record", grid=2**16, variance=10**9))
    task = plan.task.task
    assert isinstance(task, FactorTask)
    real = type(task).products
    monkeypatch.setattr(type(task), "products", lambda self: replace(real(self), terms=(*real(self).terms, Entries(1))))

    def load() -> Records:
        read.append(1)
        return random_records(np.random.default_rng(0), 9, setting.schema)

    part = contribute(plan, load, setting.broadcast, SitePlace())
    assert isinstance(part.fault, HostileInput)
    assert not part.total.any()
    assert not read


NOISED = """
import sys
import numpy as np
from support.studies import compiled, shifted_sites
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
private = {"epsilon": 4.0, "cohort_difference": "allowed", "min_cohort": 2}
study = compiled("fedavg", {"rounds": 2}, **(private if sys.argv[1] == "noised" else {}))
task = AgreedStudy(study).task("local-training")
arrays = {block.name: np.zeros(block.shape) for block in task.task.layout().blocks}
arrays |= {"training.seeds": np.zeros((4, 2))}
compute_sum(task.plan(4, 4), shifted_sites(20)["a"], arrays, SitePlace(0))
print(*(name for name in ("plain_training", "epochs") if any(loaded.endswith("." + name) for loaded in sys.modules)))
"""


@pytest.mark.parametrize(
    ("how", "loaded"), [("noised", ""), pytest.param("plain", "plain_training epochs", marks=pytest.mark.system)]
)
def test_no_study_with_noise_loads_what_trains_on_records(how: str, loaded: str, pytestconfig: pytest.Config) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOISED, how], cwd=pytestconfig.rootpath / "tests", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, loaded), done.stderr
