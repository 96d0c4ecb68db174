"""From columns to features: each record's by itself to the last bit, by public maps only, as accurate as stated."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.neighbours import SETTINGS, schema
from veilsum_aggregation.alignment import local_map
from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.mechanism.exact import ExactAffine
from veilsum_privacy.study.encoder import Program, Projection
from veilsum_privacy.study.projections import projection_digest
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.feature_maps import map_records
from veilsum_privacy.tasks.parameters import Alignment, FeatureParameters


def exact_affine(x: Floats, matrix: Floats, offset: Floats) -> Floats:
    """Rows (n, p) by a matrix (m, p) and an offset (m,)."""
    return ExactAffine(matrix, offset)(x)


def drawn(rng: np.random.Generator, n: int, p: int, m: int, spread: float) -> tuple[Floats, Floats, Floats]:
    """Rows and a matrix whose entries differ by up to ``spread`` powers of ten."""
    x = rng.normal(size=(n, p)) * 10.0 ** rng.uniform(-spread, spread, (n, 1)) * 10.0 ** rng.uniform(-spread, spread, (n, p))
    return x, rng.normal(size=(m, p)) * 10.0 ** rng.uniform(-spread, spread, (m, p)), rng.normal(size=m)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 70), st.integers(1, 300), st.integers(1, 9), st.sampled_from([0.0, 3.0, 40.0]))
def test_a_row_is_the_same_in_any_company(seed: int, n: int, p: int, m: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    x, matrix, offset = drawn(rng, n, p, m, spread)
    together = exact_affine(x, matrix, offset)
    order = rng.permutation(n)
    np.testing.assert_array_equal(exact_affine(np.asfortranarray(x[order]), matrix, offset), together[order])
    np.testing.assert_array_equal(exact_affine(x, np.asfortranarray(matrix), offset), together)
    for row in range(0, n, 5):
        np.testing.assert_array_equal(exact_affine(x[row : row + 1], matrix, offset)[0], together[row])
        np.testing.assert_array_equal(exact_affine(x[row : row + 3], matrix, offset), together[row : row + 3])


@pytest.mark.parametrize("size", [2.0**990, 1e305, 1e307])
def test_a_huge_map_cannot_make_noise_of_roundings(size: float) -> None:
    """Where products cancel, all that is left are roundings, which a huge map lifts above the clip norm and which depend on
    the other rows. A broadcast may hold such a map: it is exact, or refused."""
    rng = np.random.default_rng(0)
    half = rng.normal(size=(40, 32))
    x, offset = np.hstack([half, half]), np.zeros(5)
    own = rng.uniform(-1, 1, size=(5, 32)) * size
    matrix = np.hstack([own, -own])
    try:
        together = exact_affine(x, matrix, offset)
    except HostileInput:
        assert size > 2.0**1000
        return
    alone = np.vstack([exact_affine(x[row : row + 1], matrix, offset) for row in range(len(x))])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, np.zeros_like(together))


def test_rows_too_large_for_slices_are_invalid_and_touch_no_other() -> None:
    rng = np.random.default_rng(1)
    x, matrix = rng.normal(size=(30, 17)), rng.normal(size=(5, 17))
    alone = exact_affine(x, matrix, np.zeros(5))
    x[3] *= 1e306
    x[7, 2], x[8, 2] = np.inf, np.nan
    found = exact_affine(x, matrix, np.zeros(5))
    bad = np.isin(np.arange(30), (3, 7, 8))
    assert np.isnan(found[bad]).all()
    np.testing.assert_array_equal(found[~bad], alone[~bad])
    for wrong in (np.inf, np.nan, 2.0**1001):
        broken = matrix.copy()
        broken[1, 1] = wrong
        with pytest.raises(HostileInput, match="not finite, or too large"):
            exact_affine(alone @ np.zeros((5, 17)), broken, np.zeros(5))
        with pytest.raises(HostileInput, match="not finite, or too large"):
            exact_affine(x, matrix, np.full(5, wrong))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 200), st.sampled_from([0.0, 2.0, 30.0]))
def test_the_error_is_below_the_stated_bound(seed: int, p: int, spread: float) -> None:
    x, matrix, offset = drawn(np.random.default_rng(seed), 3, p, 2, spread)
    found = exact_affine(x, matrix, offset)
    bits = (53 - math.ceil(math.log2(max(p, 2)))) // 2
    for i in range(3):
        for j in range(2):
            terms = [Fraction(a) * Fraction(b) for a, b in zip(x[i].tolist(), matrix[j].tolist(), strict=True)]
            exact = sum(terms) + Fraction(offset[j].item())
            scale = Fraction(np.abs(x[i]).max().item()) * Fraction(np.abs(matrix).max().item())
            # Adding the offset, and its size, are rounded as any sum.
            slack = Fraction(4, 2**53) * (abs(exact) + abs(Fraction(offset[j].item())) + scale)
            assert abs(Fraction(found[i, j].item()) - exact) <= p * scale * Fraction(1, 2 ** (2 * bits - 2)) + slack


def test_on_ordinary_features_it_is_the_product() -> None:
    x, matrix, offset = drawn(np.random.default_rng(1), 50, 256, 64, 0.0)
    np.testing.assert_allclose(exact_affine(x, matrix, offset), x @ matrix.T + offset, rtol=0, atol=1e-9)


def test_extremes_stay_what_they_are() -> None:
    offset = np.array([1.0, -2.0])
    zeros = np.zeros((3, 4))
    np.testing.assert_array_equal(exact_affine(zeros, np.ones((2, 4)), offset), np.tile(offset, (3, 1)))
    np.testing.assert_array_equal(exact_affine(np.ones((3, 4)), np.zeros((2, 4)), offset), np.tile(offset, (3, 1)))
    assert exact_affine(np.zeros((0, 4)), np.ones((2, 4)), offset).shape == (0, 2)
    tiny = np.full((1, 4), 5e-324)
    np.testing.assert_allclose(exact_affine(tiny, np.full((2, 4), 1e300), offset), [offset])
    large = exact_affine(np.full((1, 4), 1e150), np.full((2, 4), 1e150), offset)
    np.testing.assert_allclose(large, 4e300, rtol=1e-12)
    huge_row_beside = np.vstack([np.ones((1, 4)), np.full((1, 4), 1e300)])
    np.testing.assert_array_equal(
        exact_affine(huge_row_beside, np.ones((2, 4)), offset)[0], exact_affine(np.ones((1, 4)), np.ones((2, 4)), offset)[0]
    )


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 15, 16, 63, 64, 255, 1023, 4095, 4096])
def test_the_largest_sums_of_slices_are_exact(p: int) -> None:
    """All of one sign and near 1: with a bit more in each slice, the order of adding would show."""
    rng = np.random.default_rng(p)
    x, matrix, offset = 1 - 0.01 * rng.random((40, p)), 1 - 0.01 * rng.random((3, p)), np.zeros(3)
    together = exact_affine(x, matrix, offset)
    order = rng.permutation(p)
    np.testing.assert_array_equal(exact_affine(x[:, order], matrix[:, order], offset), together)
    for row in range(0, 40, 4):
        np.testing.assert_array_equal(exact_affine(x[row : row + 1], matrix, offset)[0], together[row])


@pytest.mark.parametrize(
    ("rows", "scale"),
    [(-1000, 0), (-999, 0), (0, -1000), (0, -999), (1000, -60), (999, 0), (-60, 1000), (0, 999), (-300, 500)],
)
def test_powers_of_two_change_nothing_but_the_size(rows: int, scale: int) -> None:
    rng = np.random.default_rng(3)
    x, matrix, offset = rng.uniform(0.5, 1, (5, 4)), rng.uniform(0.5, 1, (3, 4)), np.zeros(3)
    found = exact_affine(np.ldexp(x, rows), np.ldexp(matrix, scale), offset)
    np.testing.assert_array_equal(found, np.ldexp(exact_affine(x, matrix, offset), rows + scale))


def test_the_largest_values_are_still_exact() -> None:
    largest = np.array([[2.0**1000]])
    assert exact_affine(largest, np.ones((1, 1)), np.ones(1)).tolist() == [[2.0**1000]]
    assert exact_affine(np.ones((1, 1)), largest, -largest[0]).tolist() == [[0.0]]
    assert np.isnan(exact_affine(np.nextafter(largest, np.inf), np.ones((1, 1)), np.ones(1))).all()


def test_maps_of_no_columns_and_to_none() -> None:
    offset = np.array([1.0, -2.0])
    np.testing.assert_array_equal(exact_affine(np.zeros((3, 0)), np.zeros((2, 0)), offset), np.tile(offset, (3, 1)))
    assert exact_affine(np.ones((3, 4)), np.zeros((0, 4)), np.zeros(0)).shape == (3, 0)


# map_records.

BASE = next(s for s in SETTINGS if s.task == "prototypes").study("record", grid=1024, variance=0, noise="none")
D = BASE.data.width


def projecting(width: int = 3, seed: int = 0) -> tuple[Study, dict[str, Floats]]:
    rng = np.random.default_rng(seed)
    matrix, offset = rng.normal(size=(width, D)), rng.normal(size=width)
    encoder = Projection(sha256=projection_digest(matrix, offset), inputs=D, width=width)
    return BASE.model_copy(update={"encoder": encoder}), {"encoder.matrix": matrix, "encoder.offset": offset}


def parameters(**changes: Any) -> FeatureParameters:
    return FeatureParameters.model_validate({"width": 3, "clip": 1.0, "missing": "skip", **changes})


def records(n: int = 20, seed: int = 0) -> Records:
    rng = np.random.default_rng(seed)
    present = rng.random((n, D)) < 0.8
    return Records(np.where(present, rng.uniform(-1, 1, (n, D)), 0.0), present, rng.integers(0, 3, n))


def test_without_a_width_records_stay_as_they_are() -> None:
    some = records()
    assert map_records(BASE, parameters(width=None), some, {}, index=0) is some


@pytest.mark.parametrize("missing", ["skip", "centre"])
def test_a_projection_maps_what_is_there(missing: str) -> None:
    study, arrays = projecting()
    some = records()
    mapped = map_records(study, parameters(missing=missing), some, arrays, index=0)
    whole = some.present.all(axis=1) if missing == "skip" else np.ones(20, dtype=np.bool_)
    assert whole.sum() > 0
    np.testing.assert_array_equal(mapped.present, np.repeat(whole[:, None], 3, axis=1))
    expected = (some.features @ arrays["encoder.matrix"].T + arrays["encoder.offset"])[whole]
    np.testing.assert_allclose(mapped.features[whole], expected, atol=1e-12)
    assert np.abs(expected).max() > 1, "mapped features are bounded by the clip norm alone, which comes after"
    assert not mapped.features[~whole].any()
    np.testing.assert_array_equal(mapped.labels, some.labels)


def test_another_projection_than_the_studys_is_refused() -> None:
    study, arrays = projecting()
    off_by_a_bit = np.nextafter(arrays["encoder.matrix"], 9)
    for change in ({"encoder.matrix": off_by_a_bit}, {"encoder.offset": np.zeros(3)}, {"encoder.matrix": np.ones((2, D))}):
        with pytest.raises(HostileInput):
            map_records(study, parameters(), records(), {**arrays, **change}, index=0)
    with pytest.raises(HostileInput, match=r"must hold encoder\.matrix"):
        map_records(study, parameters(), records(), {}, index=0)


def test_a_program_sees_records_in_their_bounds() -> None:
    encoder = Program(format="torchscript", sha256="0" * 64, inputs=(D,), width=3)
    study = BASE.model_copy(update={"encoder": encoder})
    some = records()
    some = replace(some, features=np.where(some.present, 5 * some.features, 0.0))
    seen: list[Floats] = []

    def encode(x: Floats) -> Floats:
        seen.append(x)
        return np.hstack([x, x[:, :1]])

    mapped = map_records(study, parameters(missing="centre"), some, {}, index=0, encode=encode)
    np.testing.assert_array_equal(seen[0][:20], np.clip(some.features, -1, 1))
    np.testing.assert_array_equal(mapped.features[:, :D], seen[0][:20])
    with pytest.raises(Misuse, match="shape"):  # of zeros alone, too, so that no record is at fault
        map_records(study, parameters(), some, {}, index=0, encode=lambda x: x, note=list[Exception]().append)


def test_what_is_not_finite_is_absent() -> None:
    encoder = Program(format="torchscript", sha256="0" * 64, inputs=(D,), width=3)
    study = BASE.model_copy(update={"encoder": encoder})
    some = replace(records(), present=np.ones((20, D), dtype=np.bool_))
    some.features[3] = np.nan

    def encode(x: Floats) -> Floats:
        bad = np.zeros((len(x), 3))
        bad[5, 1] = np.inf
        return bad

    mapped = map_records(study, parameters(missing="centre"), some, {}, index=0, encode=encode)
    absent = [3, 5]
    np.testing.assert_array_equal(np.flatnonzero(~mapped.present.any(axis=1)), absent)
    assert np.isfinite(mapped.features).all()


def test_a_site_takes_its_own_row_of_the_broadcast_maps() -> None:
    study, arrays = projecting()
    rng = np.random.default_rng(2)
    maps = {"alignment.matrix": rng.normal(size=(4, 3, 3)), "alignment.offset": rng.normal(size=(4, 3))}
    aligned = parameters(missing="centre", alignment=Alignment(kind="broadcast", tau=0.4))
    plain = map_records(study, parameters(missing="centre"), records(), arrays, index=0).features
    for index in range(4):
        found = map_records(study, aligned, records(), {**arrays, **maps}, index=index).features
        np.testing.assert_allclose(
            found, plain @ maps["alignment.matrix"][index].T + maps["alignment.offset"][index], atol=1e-11
        )
    short = {name: array[:3] for name, array in maps.items()}
    with pytest.raises(HostileInput, match=r"alignment\.matrix of shape \(4, 3, 3\)"):
        map_records(study, aligned, records(), {**arrays, **short}, index=0)


def test_a_site_makes_its_own_map_from_what_it_kept() -> None:
    study, arrays = projecting()
    x = np.random.default_rng(3).normal(size=(200, 3)) + 2
    second = x.T @ x
    kept = {
        "count": np.array([200.0]),
        "sum": x.sum(axis=0),
        "squares": np.diag(second),
        "products": second[np.triu_indices(3, 1)],
    }
    std = dict.fromkeys(kept, 0.5)
    reference = {"reference.mean": np.zeros(3), "reference.covariance": np.eye(3)}
    aligned = parameters(missing="centre", alignment=Alignment(kind="barycenter", tau=0.4))
    given = {**arrays, **reference}
    found = map_records(study, aligned, records(), given, index=0, kept=kept, noise_std=std)
    plain = map_records(study, parameters(missing="centre"), records(), arrays, index=0).features
    own = local_map("barycenter", kept, std, reference, tau=0.4)
    np.testing.assert_allclose(found.features, own.apply(plain), atol=1e-11)
    with pytest.raises(Misuse, match="kept no statistic"):
        map_records(study, aligned, records(), given, index=0)
    with pytest.raises(HostileInput, match="no reference"):
        map_records(study, aligned, records(), arrays, index=0, kept=kept, noise_std=std)


def test_a_map_reads_no_record_but_its_own() -> None:
    """The features of one record are the same whatever the others hold, through projection and alignment."""
    study, arrays = projecting(seed=5)
    maps = {"alignment.matrix": np.random.default_rng(6).normal(size=(4, 3, 3)), "alignment.offset": np.ones((4, 3))}
    aligned = parameters(missing="centre", alignment=Alignment(kind="broadcast", tau=1.0))
    first, second = records(30, seed=7), records(30, seed=8)
    mixed = Records(
        np.vstack([first.features[:1], 1e6 * second.features[1:]]),
        np.vstack([first.present[:1], second.present[1:]]),
        first.labels,
    )
    found = [map_records(study, aligned, some, {**arrays, **maps}, index=2).features[0] for some in (first, mixed)]
    np.testing.assert_array_equal(*found)


def test_the_schemas_own_features_have_its_width() -> None:
    assert parameters(width=None).dimension(schema(5)) == 5
    assert parameters(width=3).dimension(schema(5)) == 3
    assert parameters(width=None, clip=9.0).largest_square(schema(5)) == 5.0
    assert parameters(width=3, clip=9.0).largest_square(schema(5)) == 81.0
