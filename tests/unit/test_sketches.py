"""Projections of gradients: against matrices that are written out, unbiased, and clipped after they are projected."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from support.gradient_sums import clipped_gradient_sum, factor_sum, records_of, used_of
from support.neighbours import Setting, exact_norm, schema
from support.rows import of_values
from support.studies import SITES, Watched, compiled, complete, shifted_sites
from veilsum.costs import study_cost
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.methods.fedsgd import FedSGDParameters
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.mechanism.factors import Entries, Outer, Products, Term
from veilsum_privacy.mechanism.rows.symbols import only, record_of, where
from veilsum_privacy.securesum.context import encode_broadcast
from veilsum_privacy.study.study import Unit
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.followed import followed_model
from veilsum_privacy.tasks.gradient import Gradient
from veilsum_privacy.training.arrays import MODEL, to_broadcast
from veilsum_privacy.training.gradients import ModelGradient
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.sketches import DRAW, GradientProjection, Shapes, Sketch, Sketches

RATIO = 3.5
SHAPES: Mapping[str, tuple[int, ...]] = {
    "wide.weight": (4, 17),
    "wide.bias": (4,),
    "tall.weight": (23, 3),
    "tall.bias": (23,),
    "plain.weight": (5, 12),
    "filter.weight": (3, 2, 3, 3),
    "filter.bias": (3,),
    "narrow.weight": (11, 2, 1),
    "norm.weight": (9,),
    "small.weight": (2, 1),
}
TERMS: tuple[Term, ...] = (
    Outer(4, 18, bias=True), Outer(23, 4, bias=True), Outer(5, 12), Entries(54), Entries(3), Entries(22), Entries(9),
    Outer(2, 1),
)  # fmt: skip
"""Layers whose inputs or outputs are more, without a bias too; filters that are formed in full; and what is too short."""


def sketches_of(shapes: Shapes = SHAPES, ratio: float = RATIO) -> Sketches:
    return Sketches(shapes, GradientProjection(ratio=ratio))


def drawn(sketches: Sketches, step: int, seed: int = 5) -> Sketch:
    return sketches.sketch(sketches.broadcast(seed, step))


def size_of(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


def expanded(sketches: Sketches, sketch: Sketch, y: Floats, part: int = 7, shapes: Shapes = SHAPES) -> Floats:
    """S'y (d,) of y (k,), read in short parts."""
    ends = np.cumsum([math.prod(shape) for shape in sketches.shapes().values()])
    parts = dict(zip(sketches.shapes(), np.split(y, ends[:-1]), strict=True))
    read = sketch.expanded(lambda name, places: parts[name][places])
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return np.concatenate(
        [read(name, slice(start, min(start + part, size))) for name, size in sizes.items() for start in range(0, size, part)]
    )


def matrix(sketches: Sketches, sketch: Sketch, shapes: Shapes = SHAPES) -> Floats:
    """S (k, d), by what each unit vector is expanded to."""
    return np.array([expanded(sketches, sketch, unit, 50, shapes) for unit in np.eye(size_of(sketches.shapes()))])


def formed(terms: tuple[Term, ...], factors: Floats) -> Floats:
    """Vectors (n, d) of factors (n, given), multiplied in floating point."""
    found, start = [], 0
    for term in terms:
        own = factors[:, start : start + term.given]
        start += term.given
        if not isinstance(term, Outer):
            found.append(own)
            continue
        made = own[:, : term.left, None] * own[:, None, term.left :]
        flat = made.reshape(len(own), -1)
        found += [made[:, :, :-1].reshape(len(own), -1), made[:, :, -1]] if term.bias else [flat]
    return np.concatenate(found, axis=1)


def projected(sketches: Sketches, sketch: Sketch, factors: Floats) -> Floats:
    """S g (n, k) of records with these factors of g, as the kernel computes the factors of S g."""
    return formed(sketches.terms(TERMS), of_values(lambda row: sketch.factors(TERMS, row), factors))


def given(n: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(n, sum(term.given for term in TERMS)))


# -- the projection -----------------------------------------------------------------------------------------------------------


def test_the_longer_side_of_each_matrix_becomes_shorter_by_the_ratio() -> None:
    kept = {
        "wide.weight": (4, 5),
        "tall.weight": (7, 3),
        "tall.bias": (7,),
        "plain.weight": (5, 4),
        "filter.weight": (3, 6),
        "narrow.weight": (4, 2, 1),
        "small.weight": (1, 1),
    }
    sketches = sketches_of()
    assert sketches.shapes() == {**SHAPES, **kept}
    assert sum(term.size for term in sketches.terms(TERMS)) == size_of(sketches.shapes())


def test_what_is_projected_and_what_is_expanded_are_transposes() -> None:
    """<S x, y> = <x, S'y>, for factors of x and any y."""
    sketches, rng = sketches_of(), np.random.default_rng(3)
    sketch, factors = drawn(sketches, 1), given(6)
    y = rng.normal(size=(4, size_of(sketches.shapes())))
    found = projected(sketches, sketch, factors) @ y.T
    transposed = np.array([expanded(sketches, sketch, one, part) for one, part in zip(y, (1, 7, 50, 10**6), strict=True)])
    np.testing.assert_allclose(found, formed(TERMS, factors) @ transposed.T, rtol=0, atol=1e-11)
    np.testing.assert_allclose(transposed, y @ matrix(sketches, sketch), rtol=0, atol=0)


def test_each_value_falls_into_one_bucket_and_buckets_are_as_full_as_one_another() -> None:
    sketches = sketches_of()
    s = matrix(sketches, drawn(sketches, 1))
    assert set(np.unique(s)) == {-1.0, 0.0, 1.0}
    np.testing.assert_array_equal(np.abs(s).sum(axis=0), 1.0)
    np.testing.assert_array_equal(
        np.sort(np.abs(s[:20]).sum(axis=1)), np.repeat([3.0, 4.0], [12, 8])
    )  # 17 places to 5 buckets


def dealt(seed: int, step: int, array: int, places: int, buckets: int) -> list[tuple[int, float]]:
    """Bucket and sign of each place, word by word, as the module says it: another machine has to come to the same."""
    stated = b"".join(number.to_bytes(8, "little") for number in (seed, step, array, places, buckets))
    stream = hashlib.shake_256(b"veilsum/1/gradient-projection" + stated).digest(8 * places)
    words = [int.from_bytes(stream[8 * place : 8 * place + 8], "little") for place in range(places)]
    order = sorted(range(places), key=lambda place: words[place] >> 1)
    return [(order.index(place) % buckets, -1.0 if words[place] & 1 else 1.0) for place in range(places)]


def spread_out(y: Floats, deal: list[tuple[int, float]], axis: int) -> Floats:
    """A sketch with the places of its buckets in their place along an axis."""
    return np.stack([sign * np.take(y, bucket, axis) for bucket, sign in deal], axis)


def test_a_deal_is_the_stated_one() -> None:
    sketches = sketches_of({"head.weight": (2, 7), "head.bias": (2,)}, 3.0)
    held = {"head.weight": np.arange(1.0, 7.0), "head.bias": np.array([7.0, 8.0])}
    read = drawn(sketches, 4, seed=9).expanded(lambda name, part: held[name][part])
    expected = spread_out(held["head.weight"].reshape(2, 3), dealt(9, 4, 0, 7, 3), 1)
    np.testing.assert_array_equal(read("head.weight", slice(0, 14)).reshape(2, 7), expected)
    np.testing.assert_array_equal(read("head.bias", slice(0, 2)), [7.0, 8.0])


def test_a_sum_that_is_expanded_is_unbiased_over_draws() -> None:
    """The mean over draws of <u, S'S g> is <u, g> within five standard errors: its mean square is at most |u|^2 load |g|^2, by
    |S'S g|^2 <= load |S g|^2 and E |S g|^2 = |g|^2. The mean of |S g|^2 is |g|^2, and its variance at most 2 |g|^4: of signs
    that are independent, sum over pairs in a bucket of 2 <g_i, g_j>^2, for rows or columns g_i of an array."""
    sketches, draws, rng = sketches_of(), 4000, np.random.default_rng(2)
    g = rng.normal(size=size_of(SHAPES))
    u = rng.normal(size=(3, len(g)))
    load = max(math.ceil(17 / 5), math.ceil(23 / 7), math.ceil(18 / 6), math.ceil(12 / 4), math.ceil(11 / 4), 2)
    assert load == 4
    found, second = np.zeros((draws, 3)), np.zeros(draws)
    size = size_of(sketches.shapes())
    names, kept = list(SHAPES), sketches.shapes()
    ends = np.cumsum([math.prod(SHAPES[name]) for name in names])[:-1]
    for draw in range(draws):
        sketch = drawn(sketches, draw + 1)
        moved = np.zeros(len(g))
        start = 0
        read = sketch.expanded(lambda name, part: np.arange(math.prod(kept[name]), dtype=np.float64)[part] + 1.0)
        for name, own in zip(names, np.split(g, ends), strict=True):
            told = read(name, slice(0, len(own)))  # signs, and buckets counted from 1
            bucket, signs = np.abs(told).astype(int) - 1, np.sign(told)
            sums = np.bincount(bucket, signs * own, minlength=math.prod(kept[name]))
            moved[start : start + len(own)] = signs * sums[bucket]
            start += len(own)
            second[draw] += sums @ sums
        found[draw] = u @ moved
    assert size == 4 * 5 + 4 + 7 * 3 + 7 + 5 * 4 + 3 * 6 + 3 + 4 * 2 + 9 + 1
    errors = 5.0 * np.sqrt(load * (g @ g) * (u**2).sum(axis=1) / draws)
    assert (errors < 0.5 * np.linalg.norm(u, axis=1) * np.linalg.norm(g)).all()
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - u @ g), errors)
    assert abs(second.mean() - g @ g) <= 5.0 * math.sqrt(2.0 * (g @ g) ** 2 / draws)


def test_each_step_and_seed_draws_anew_and_one_draws_alike() -> None:
    sketches = sketches_of()
    one, same, later, other = (
        matrix(sketches, drawn(made, step, seed))
        for made, step, seed in ((sketches, 1, 5), (sketches_of(), 1, 5), (sketches, 2, 5), (sketches, 1, 6))
    )
    np.testing.assert_array_equal(one, same)
    assert (one != later).any()
    assert (one != other).any()


def test_without_a_projection_everything_stays_what_it_is() -> None:
    sketches = Sketches(SHAPES, None)
    sketch, row = sketches.sketch({}), record_of(3, labelled=False).features
    assert sketches.shapes() == SHAPES
    assert sketches.terms(TERMS) == TERMS
    assert sketches.broadcast(5, 1) == {}
    assert sketch.factors((Entries(3),), row) is row
    values = np.arange(4.0)
    assert sketch.expanded(lambda name, part: values)("wide.bias", slice(0, 4)) is values


@pytest.mark.parametrize("ratio", [1.0, 0.5, -2.0, math.nan, math.inf, 1e5])
def test_a_ratio_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(ValidationError, match="ratio"):
        GradientProjection(ratio=ratio)


@pytest.mark.parametrize(
    "told",
    [None, np.zeros(3), np.zeros((2, 1)), *(np.array([0.0, odd]) for odd in (-1.0, 0.5, math.nan, math.inf, 2.0**53))],
    ids=str,
)
def test_a_draw_that_is_none_is_refused(told: Floats | None) -> None:
    with pytest.raises(HostileInput, match=DRAW):
        sketches_of().sketch({} if told is None else {DRAW: told})


# -- sums ---------------------------------------------------------------------------------------------------------------------


def network(name: str) -> tuple[Architecture, int]:
    spec, width = {
        "linear": (ModelSpec(name="linear", options={"scale": 0.5, "bias": 0.3}), 19),
        "mlp": (ModelSpec(name="mlp", options={"hidden": 11}), 6),
        "lenet5": (ModelSpec(name="lenet5", inputs=(1, 12, 12), options={"conv1": 2, "conv2": 2, "fc1": 5, "fc2": 4}), 144),
    }[name]
    return build_architecture(resolve_model(spec), width, 3), width


@pytest.mark.parametrize("name", ["linear", "mlp", "lenet5"])
def test_sums_are_of_gradients_that_were_projected_and_then_clipped(name: str) -> None:
    """Each record's gradient by itself, which the kernel sums without a projection, times the matrix, and clipped."""
    architecture, width = network(name)
    rng = np.random.default_rng(4)
    arrays = {key: value + 0.1 * rng.standard_normal(value.shape) for key, value in architecture.initial(0).items()}
    x, labels = rng.normal(size=(12, width)), rng.integers(0, 3, 12)
    whole = np.array([clipped_gradient_sum(architecture, arrays, x[[i]], labels[[i]], 1e4).total for i in range(12)])
    sketches = sketches_of(architecture.shapes())
    sketch = drawn(sketches, 3)
    made = whole @ matrix(sketches, sketch, architecture.shapes()).T
    norms = np.linalg.norm(made, axis=1)
    clip = float(np.median(norms))
    expected = (made * np.minimum(1.0, clip / norms)[:, None]).sum(axis=0)
    record, gradient = record_of(width, labelled=True), ModelGradient(architecture)
    assert record.label is not None
    used = used_of(record.features, record.label, 3)
    row = gradient.row(arrays, where(used, record.features, 0.0), only(record.label, used))
    products = Products(sketches.terms(gradient.terms), clip)
    terms, maps = gradient.terms, gradient.maps(arrays)
    found = factor_sum(only(sketch.factors(terms, row), used), maps, products, records_of(x, labels), None)
    assert found.clipped == int((norms > clip).sum()) > 0
    np.testing.assert_allclose(found.total, expected, rtol=0, atol=2e-5 * clip)


UNITS: tuple[Unit, ...] = ("record", "subject")


@pytest.mark.parametrize("unit", UNITS)
def test_a_record_whose_gradient_falls_into_one_bucket_changes_a_sum_by_at_most_the_grid(unit: Unit) -> None:
    """Of features with the signs of a bucket's places: S g is as much longer than g as it can be, and is clipped as it is."""
    width, grid = 24, 2**20
    parameters = {
        "clip": 100.0, "missing": "centre", "gradient_clip": 0.05, "projection": {"ratio": 12.0},
        "model": {"name": "linear", "inputs": None, "options": {"scale": 1.0, "bias": 1e-3}},
    }  # fmt: skip
    architecture = build_architecture(ModelSpec.model_validate(parameters["model"]), width, 3)
    sketches = Sketches(architecture.shapes(), GradientProjection(ratio=12.0))
    draw = sketches.broadcast(0, 7)
    broadcast = {**to_broadcast(architecture.initial(0)), **draw}
    task = Setting("aligned", "gradient", schema(width), parameters, broadcast)
    plan = task.plan(task.study(unit, grid=grid, variance=10**9))
    read = sketches.sketch(draw).expanded(lambda name, part: np.tile([1.0, 0.0], 3)[part])
    aligned = read("head.weight", slice(0, width))  # the first class's row: signs in the first bucket, 0 in the other
    assert np.abs(aligned).sum() == 12.0
    own = complete(0.1 * aligned[None], np.array([0]))
    rng = np.random.default_rng(1)
    company = complete(rng.uniform(-1, 1, (40, width)), rng.integers(0, 3, 40))
    features = np.concatenate([company.features, own.features])
    assert company.labels is not None
    labels = np.append(company.labels, 0)
    subjects: NDArray[np.int64] | None = np.arange(41) if unit == "subject" else None

    def total_of(count: int) -> NDArray[np.int64]:
        records = complete(features[:count], labels[:count], None if subjects is None else subjects[:count])
        return compute_sum(plan, records, broadcast, SitePlace(0)).total

    change = exact_norm(total_of(41) - total_of(40))
    gradient = np.linalg.norm(np.outer([1 - 1 / 3, -1 / 3, -1 / 3], own.features))
    assert gradient > 0.05
    assert 0.999 * grid <= change <= grid


def test_an_outcome_is_not_projected_and_no_task_but_this_one_is() -> None:
    parameters = {
        "clip": 2.0, "missing": "centre", "gradient_clip": 0.5, "projection": {"ratio": 2.0},
        "model": {"name": "linear", "inputs": None, "options": {"scale": 1.0, "bias": 1.0}},
    }  # fmt: skip
    with pytest.raises((Misuse, HostileInput), match="by classes only"):
        build_task("gradient", {**parameters, "outcome": {"column": "n2", "loss": "squared"}}, schema(3))
    with pytest.raises(HostileInput, match="projection"):
        build_task("feature-means", {"clip": 2.0, "missing": "centre", "projection": {"ratio": 2.0}}, schema(3))


# -- studies ------------------------------------------------------------------------------------------------------------------

PRIVATE = {"epsilon": 8.0, "cohort_difference": "allowed", "min_cohort": 2}
HIDDEN = {"name": "mlp", "options": {"hidden": 9}}


def test_coordinator_and_members_take_the_steps_that_are_written_out() -> None:
    """Of sums in grid units a member comes to the bits that the coordinator broadcasts; both are steps by stated deals."""
    steps, asked = 4, {"ratio": 2.5}
    study = compiled(
        "fedsgd", {"model": HIDDEN, "steps": steps, "centre": False, "seed": 11, "projection": asked, "decay": 0.01}, **PRIVATE
    )
    task = AgreedStudy(study).task("gradient")
    assert isinstance(task.task, Gradient)
    watched = Watched(study, shifted_sites(40))
    result = get_method("fedsgd").run(watched)
    kept = {"features.hidden.weight": (4, 6), "features.hidden.bias": (4,), "head.weight": (3, 4), "head.bias": (3,)}
    assert [block.shape for block in task.task.layout().blocks] == list(kept.values())
    assert (result.summary["values"], result.summary["projected"]) == (93, 24 + 4 + 12 + 3)
    member = followed_model(AgreedStudy(study), b"")
    assert member is not None
    member.begin_with(encode_broadcast(watched.broadcasts[0], task.single))
    travel = FedSGDParameters.model_validate(study.parameters).travel
    assert travel is not None
    for step, (sent, release) in enumerate(zip(watched.broadcasts, watched.releases, strict=True), 1):
        np.testing.assert_array_equal(sent[DRAW], [11, step])
        vector = np.concatenate([release.values[MODEL + name].ravel() for name in kept])
        whole = np.rint(vector / task.unit).astype(np.int64)
        np.testing.assert_array_equal(task.in_units(whole), vector)
        member.take("gradient", whole, len(SITES))
        deals = {0: dealt(11, step, 0, 9, 4), 2: dealt(11, step, 2, 9, 4)}
        expected = {}
        for name, deal, axis in zip(kept, (deals[0], deals[0], deals[2], None), (0, 0, 1, 0), strict=True):
            y = release.values[MODEL + name]
            expected[name] = y if deal is None else spread_out(y, deal, axis)
        if step == steps:
            break
        after = watched.broadcasts[step]
        noise = release.noise_std["model.head.bias"]
        for name, gradient in expected.items():
            before = sent[MODEL + name].astype(np.float64)
            moved = before - travel / math.sqrt(steps * 93) * (gradient / noise + 0.01 * before)
            np.testing.assert_allclose(after[MODEL + name], moved, rtol=2e-7, atol=2e-7)
        assert b"".join(member.broadcast("gradient")) == encode_broadcast(after, task.single)


def test_another_draw_is_no_broadcast_that_follows() -> None:
    study = compiled("fedsgd", {"model": HIDDEN, "steps": 2, "centre": False, "projection": {"ratio": 2.5}}, **PRIVATE)
    task = AgreedStudy(study).task("gradient")
    member = followed_model(AgreedStudy(study), b"")
    assert member is not None
    sent = task.task.example_broadcast(len(SITES))
    for other in (None, np.array([0.0, 2.0]), np.array([1.0, 1.0]), np.array([0.0, 1.0 + 1e-9])):
        changed = {name: array for name, array in sent.items() if name != DRAW} | ({} if other is None else {DRAW: other})
        with pytest.raises(HostileInput):
            member.begin_with(encode_broadcast(changed, task.single))
    member.begin_with(encode_broadcast(sent, task.single))


def test_a_plan_states_what_a_projection_sums_and_sends() -> None:
    whole, projected = (
        study_cost(compiled("fedsgd", {"model": {"name": "mlp", "options": {"hidden": 600}}, **more}, **PRIVATE))
        for more in ({}, {"projection": {"ratio": 20.0}})
    )
    one, other = whole.tasks[-1], projected.tasks[-1]
    assert (one.values, other.values) == (600 * 7 + 3 * 601, 30 * 7 + 3 * 31)
    assert other.upload < one.upload / 2
    assert set(one.noise) == set(other.noise)
    assert other.noise["model.head.bias"] == pytest.approx(one.noise["model.head.bias"], rel=0.01)  # by what rounding leaves
    assert whole.epsilon == pytest.approx(projected.epsilon)


@pytest.mark.parametrize(
    ("method", "parameters", "told"),
    [
        ("fedsgd", {"projection": {"ratio": 1.0}}, "projection.ratio.*greater than 1"),
        ("fedsgd", {"projection": {}}, "projection.ratio"),
        ("fedsgd", {"projection": {"ratio": 2.0, "values": 500}}, "projection.values"),
        (
            "fedsgd",
            {"projection": {"ratio": 2.0}, "outcome": {"column": "x0", "loss": "squared"}},
            "outcome has no projection",
        ),
        ("fedavg", {"projection": {"ratio": 2.0}}, "projection"),
    ],
)
def test_what_cannot_be_projected_is_refused_when_it_is_asked_for(method: str, parameters: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        compiled(method, parameters)


def test_studies_that_project_nothing_say_nothing_of_it() -> None:
    study = compiled("fedsgd", {}, **PRIVATE)
    assert b"projection" not in study.to_bytes()
