"""Clipping and truncation: the sensitivity is the grid, exactly, whatever the records hold."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from support.plain_sums import site_sum
from veilsum_node.errors import Misuse
from veilsum_privacy.mechanism.clipping import (
    MAX_BOUND,
    MAX_GRID,
    MAX_VALUES,
    SiteSum,
    row_norms,
    truncate_to_grid,
)

any_rows = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.floats(width=64))
clips = st.floats(1e-300, 1e300)
grids = st.integers(1, 2**26)


def squared_norms(rows: np.ndarray) -> list[int]:
    return [sum(int(value) ** 2 for value in row) for row in rows]


@settings(max_examples=300, deadline=None)
@given(vectors=any_rows, clip=clips, grid=grids)
def test_no_row_leaves_the_ball(vectors: np.ndarray, clip: float, grid: int) -> None:
    rows = truncate_to_grid(vectors, clip, grid)[0]
    assert rows.shape == vectors.shape
    assert max(squared_norms(rows)) <= grid**2
    finite = np.isfinite(vectors).all(axis=1)
    assert not rows[~finite].any()
    assert (np.sign(rows[finite]) * np.sign(vectors[finite]) >= 0).all(), "truncation must not turn a sign"


@settings(max_examples=200, deadline=None)
@given(
    direction=arrays(np.float64, st.integers(1, 12), elements=st.floats(-1, 1, width=32)),
    scale=st.floats(1.0, 1e6),
    clip=st.floats(1e-6, 1e6),
)
def test_the_worst_record_reaches_the_sensitivity(direction: np.ndarray, scale: float, clip: float) -> None:
    norm = float(np.linalg.norm(direction))
    if norm < 1e-3:
        direction, norm = np.ones(3), math.sqrt(3)
    grid = 2**20
    rows = truncate_to_grid((direction / norm * clip * scale * (1 + 1e-12))[None, :], clip, grid)[0]
    assert 0.999 * grid <= math.sqrt(squared_norms(rows)[0]) <= grid


@settings(max_examples=150, deadline=None)
@given(vectors=any_rows, record=st.integers(0, 7), clip=clips, grid=grids)
def test_neighbouring_sums_differ_by_at_most_the_grid(vectors: np.ndarray, record: int, clip: float, grid: int) -> None:
    size = vectors.shape[1]
    without = np.delete(vectors, min(record, len(vectors) - 1), axis=0)
    for bound in (2**62, grid, 1):
        both = [site_sum(iter([rows]), size, clip, grid, bound).total for rows in (vectors, without)]
        assert squared_norms([both[0] - both[1]])[0] <= grid**2


def test_values_inside_the_ball_are_truncated_toward_zero() -> None:
    rows = truncate_to_grid(np.array([[0.6, -0.6, 0.0], [0.2499, -0.2501, 0.5]]), 2.0, 8)[0]
    np.testing.assert_array_equal(rows, [[2, -2, 0], [0, -1, 2]])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(0, 40))
def test_sums_equal_exact_arithmetic_however_batched(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(rows, 5)) * rng.choice([0.1, 1.0, 10.0], size=(rows, 1))
    vectors[rng.random(rows) < 0.1, 2] = np.nan
    whole = site_sum(iter([vectors]), 5, 1.5, 2**17, 2**40)
    cut = int(rng.integers(0, rows + 1))
    parts = site_sum(iter([vectors[:cut], vectors[cut:]]), 5, 1.5, 2**17, 2**40)
    expected = [sum(int(value) for value in column) for column in truncate_to_grid(vectors, 1.5, 2**17)[0].T]
    assert whole.total.tolist() == parts.total.tolist() == expected
    invalid = int(np.isnan(vectors).any(axis=1).sum())
    norms = np.linalg.norm(vectors, axis=1)
    assert (whole.clipped, whole.invalid) == (parts.clipped, parts.invalid) == (int((norms > 1.5).sum()), invalid)


def test_overflow_and_clamping() -> None:
    huge = np.full((3, 2), 1.7e308)
    total, clipped, invalid = site_sum(iter([huge, -huge[:1]]), 2, 1.0, 2**26, 2**27)
    assert (clipped, invalid) == (4, 0)
    expected = 2 * int(truncate_to_grid(huge[:1], 1.0, 2**26)[0][0, 0])
    assert total.tolist() == [expected, expected]
    assert site_sum(iter([huge]), 2, 1.0, 2**26, 1000).total.tolist() == [1000, 1000]
    assert site_sum(iter([-huge]), 2, 1.0, 2**26, 1000).total.tolist() == [-1000, -1000]


def test_no_records_sum_to_zero() -> None:
    result = site_sum(iter([]), 4, 1.0, 8, 8)
    assert isinstance(result, SiteSum)
    assert result.total.tolist() == [0, 0, 0, 0]
    assert site_sum(iter([np.zeros((0, 4))]), 4, 1.0, 8, 8).total.dtype == np.int64
    assert site_sum(iter([np.zeros((2, 0))]), 0, 1.0, 8, 8).total.shape == (0,)


def test_rows_that_round_above_the_bound_are_pulled_in() -> None:
    # The norm sqrt(2^52 + 1) rounds to 2^26: in floating point the row seems to lie inside the ball.
    grid = 2**26
    rows = truncate_to_grid(np.array([[2.0**26, 1.0], [-1.0, -(2.0**26)], [2.0**26, 0.0]]), 2.0**26, grid)[0]
    assert max(squared_norms(rows)) <= grid**2
    np.testing.assert_allclose(rows, [[grid, 1], [-1, -grid], [grid, 0]], rtol=0, atol=1)
    assert rows[2].tolist() == [grid, 0], "a row on the sphere stays there"


def test_a_row_that_rounds_above_the_bound_once_more_is_pulled_in_again() -> None:
    row, grid = [43_078_048, -41_026_711], 59_488_732
    assert squared_norms([row])[0] == grid**2 + 1
    found = truncate_to_grid(np.array([row], dtype=np.float64), float(grid), grid)[0]
    assert squared_norms(found)[0] <= grid**2
    np.testing.assert_allclose(found, [row], rtol=0, atol=1)


def test_no_record_makes_a_warning() -> None:
    rows = np.array([[0.0, -0.0], [1e308, -1e308], [5e-324, 0.0], [np.nan, 1.0], [np.inf, -np.inf], [1e-200, 1e-300]])
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        for clip in (1e-300, 1.0, 1e300):
            found = truncate_to_grid(rows, clip, 2**26)[0]
            assert not found[[0, 3, 4]].any()


def test_rows_of_another_precision_are_worked_on_in_doubles() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    for clip in (0.7, 3.0):
        expected = truncate_to_grid(rows.astype(np.float64), clip, 2**26)[0]
        np.testing.assert_array_equal(truncate_to_grid(rows, clip, 2**26)[0], expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 3)])
@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_what_is_no_matrix_is_refused(shape: tuple[int, ...], kind: type) -> None:
    with pytest.raises(Misuse, match="matrix"):
        truncate_to_grid(np.ones(shape, dtype=kind), 1.0, 8)


@pytest.mark.parametrize(
    ("clip", "grid"),
    [
        (0.0, 8),
        (-1.0, 8),
        (math.nan, 8),
        (math.inf, 8),
        (1.0, 0),
        (1.0, 2**27),
    ],
)
def test_bad_parameters_are_refused(clip: float, grid: int) -> None:
    with pytest.raises(Misuse):
        truncate_to_grid(np.zeros((1, 2)), clip, grid)


@pytest.mark.parametrize("shape", [(2, 3), (2,), (1, 2, 2)])
def test_batches_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(Misuse):
        site_sum(iter([np.zeros(shape)]), 2, 1.0, 8, 8)


@pytest.mark.parametrize("d", [1, 2, 3, 5, 16, 129, 1025, 8193, 20_000])
def test_a_norm_is_the_same_in_any_company(d: int) -> None:
    """Adding a record must not move another one's norm, not even in its last bit: truncation could magnify that to a unit."""
    rows = np.random.default_rng(d).normal(size=(9, d))
    alone = [row_norms(row[None])[0] for row in rows]
    for together in (rows, np.asfortranarray(rows), np.repeat(rows, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(row_norms(together), alone)
    np.testing.assert_allclose(alone, [math.sqrt(math.fsum(row * row)) for row in rows], rtol=1e-14)


# By subject.


def cut(vectors: np.ndarray, cuts: list[int]) -> Iterator[np.ndarray]:
    """The rows in batches that end at ``cuts``; a cut may stand twice, and then gives an empty batch."""
    return iter(np.split(vectors, sorted(min(cut, len(vectors)) for cut in cuts)))


def bounded_sums(vectors: np.ndarray, subjects: np.ndarray, clip: float, grid: int) -> dict[int, tuple[list[int], bool]]:
    """By subject the exact sum of its truncated rows, cut to the grid in exact arithmetic, and whether it was cut."""
    sums: dict[int, list[int]] = {}
    for subject, row in zip(subjects.tolist(), truncate_to_grid(vectors, clip, grid)[0].tolist(), strict=True):
        sums[subject] = [a + b for a, b in zip(sums.get(subject, [0] * len(row)), row, strict=True)]
    result = {}
    for subject, total in sums.items():
        square = sum(value**2 for value in total)
        if square > grid**2:  # trunc(value grid / norm), by integer square roots
            shorter = [math.isqrt(value**2 * grid**2 // square) * (1 if value > 0 else -1) for value in total]
            result[subject] = shorter, True
        else:
            result[subject] = total, False
    return result


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    records=st.integers(0, 40),
    people=st.integers(1, 12),
    grid=grids,
    cuts=st.lists(st.integers(0, 40), max_size=5),
)
def test_sums_by_subject_equal_exact_arithmetic(seed: int, records: int, people: int, grid: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(records, 3)) * rng.choice([0.01, 0.3, 5.0], size=(records, 1))
    vectors[rng.random(records) < 0.1, 1] = rng.choice([np.nan, np.inf])
    subjects = np.sort(rng.integers(-3, people, records))
    got = site_sum(cut(vectors, cuts), 3, 1.5, grid, 2**62, subjects)
    expected = bounded_sums(vectors, subjects, 1.5, grid)
    scaled = sum(was_cut for _, was_cut in expected.values())
    for index in range(3):
        # A scaled value may be a unit lower where its quotient is an integer, or where the row was pulled in.
        difference = int(got.total[index]) - sum(vector[index] for vector, _ in expected.values())
        assert abs(difference) <= scaled
    one_by_one = site_sum(cut(vectors, cuts), 3, 1.5, grid, 2**62)
    assert got.clipped == one_by_one.clipped + scaled
    assert got.invalid == one_by_one.invalid


@settings(max_examples=200, deadline=None)
@given(
    vectors=any_rows,
    group=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    subject=st.integers(0, 3),
    clip=clips,
    grid=grids,
    cuts=st.lists(st.integers(0, 8), max_size=4),
)
def test_one_subject_changes_a_sum_by_at_most_the_grid(
    vectors: np.ndarray, group: list[int], subject: int, clip: float, grid: int, cuts: list[int]
) -> None:
    size = vectors.shape[1]
    subjects = np.sort(np.array(group[: len(vectors)], dtype=np.int64))
    others = subjects != subject
    turned = vectors.copy()  # another order within each subject
    for each in set(group):
        rows = np.flatnonzero(subjects == each)
        turned[rows] = vectors[rows[::-1]]
    for bound in (2**62, grid, 1):
        whole = site_sum(cut(vectors, cuts), size, clip, grid, bound, subjects).total
        without = site_sum(cut(vectors[others], cuts[::-1]), size, clip, grid, bound, subjects[others]).total
        assert squared_norms([whole - without])[0] <= grid**2
        np.testing.assert_array_equal(site_sum(cut(turned, []), size, clip, grid, bound, subjects).total, whole)


@settings(max_examples=100, deadline=None)
@given(vectors=any_rows, clip=clips, grid=grids, cuts=st.lists(st.integers(0, 8), max_size=4))
def test_a_subject_of_one_record_is_that_record(vectors: np.ndarray, clip: float, grid: int, cuts: list[int]) -> None:
    size = vectors.shape[1]
    by_record = site_sum(iter([vectors]), size, clip, grid, 2**62)
    by_subject = site_sum(cut(vectors, cuts), size, clip, grid, 2**62, np.arange(len(vectors)))
    np.testing.assert_array_equal(by_subject.total, by_record.total)
    assert by_subject[1:] == by_record[1:]


def test_a_subject_reaches_the_sensitivity_and_stays_below_however_many_records() -> None:
    grid = 2**26
    row = np.array([3.0, 4.0, 12.0]) / 13
    for records in (1, 2, 5000):
        got = site_sum(iter([np.tile(row, (records, 1))]), 3, 1.0, grid, 2**62, np.zeros(records, dtype=np.int64))
        assert 0.999 * grid**2 <= squared_norms([got.total])[0] <= grid**2
        np.testing.assert_allclose(got.total / grid, row, atol=4 / grid)


def test_an_invalid_record_does_not_void_its_subject() -> None:
    rows = np.array([[0.25, 0.0], [np.nan, 0.0], [0.25, 0.0], [np.inf, 1.0], [0.5, 0.5]])
    got = site_sum(cut(rows, [1, 2, 3]), 2, 1.0, 8, 100, np.array([4, 4, 4, 4, 9]))
    assert got.total.tolist() == [2 + 2 + 4, 4]
    assert (got.clipped, got.invalid) == (0, 2)


def test_records_of_a_subject_may_cancel() -> None:
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    got = site_sum(cut(rows, [1]), 2, 1.0, 8, 100, np.zeros(3, dtype=np.int64))
    assert got.total.tolist() == [0, 8]
    assert got.clipped == 0


def test_no_records_of_no_subjects() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert site_sum(iter([]), 2, 1.0, 8, 8, none).total.tolist() == [0, 0]
    assert site_sum(iter([np.zeros((0, 2)), np.zeros((0, 2))]), 2, 1.0, 8, 8, none).total.tolist() == [0, 0]


@pytest.mark.parametrize("subjects", [[1, 0, 0], [0, 1, 0], [0, 0], [0, 0, 0, 0], [[0, 0, 0]]])
def test_subjects_that_do_not_fit_the_records_are_refused(subjects: list[int]) -> None:
    for cuts in ([], [1], [1, 2]):
        with pytest.raises(Misuse):
            site_sum(cut(np.zeros((3, 2)), cuts), 2, 1.0, 8, 8, np.array(subjects))


any_integers = arrays(
    np.int64,
    array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6),
    elements=st.integers(-6, 6) | st.integers(-(2**26), 2**26) | st.sampled_from([-(2**63), 2**63 - 1, -(2**32), 2**32]),
)


@settings(max_examples=300, deadline=None)
@given(vectors=any_integers, clip=st.integers(1, 12) | st.sampled_from([2**13, 2**26]), factor=st.integers(1, 2**13))
def test_rows_of_integers_are_multiplied_unless_too_long(vectors: NDArray[np.int64], clip: int, factor: int) -> None:
    grid = clip * min(factor, 2**26 // clip)
    rows, clipped, invalid = truncate_to_grid(vectors, float(clip), grid)
    long = [square > clip**2 for square in squared_norms(vectors)]
    assert rows.dtype == np.int64
    assert clipped.tolist() == long
    assert invalid.tolist() == [False] * len(vectors)
    assert invalid.dtype == np.bool_
    for row, vector, cut in zip(rows.tolist(), vectors.tolist(), long, strict=True):
        if cut:
            scale = grid / math.sqrt(sum(value**2 for value in vector))
            assert all(abs(got - value * scale) <= 1.5 for got, value in zip(row, vector, strict=True))
            assert sum(value**2 for value in row) <= grid**2
        else:
            assert row == [value * (grid // clip) for value in vector]


@pytest.mark.parametrize(("clip", "factor", "value"), [(49, 1, 1), (10, 9, 7), (43, 1, 23)])
def test_integers_are_not_divided(clip: int, factor: int, value: int) -> None:
    assert int(value / clip * (clip * factor)) < value * factor, "or the numbers show nothing"
    assert truncate_to_grid(np.array([[value]]), float(clip), clip * factor)[0].tolist() == [[value * factor]]


@pytest.mark.parametrize(
    ("bound", "row"),
    [
        (5, [3, -4]),
        (2**26, [2**26]),
        (2**26, [2**25] * 4),
        (2**26, [-(2**20)] * 4096),
        (59_488_735, [59_488_735]),
    ],
)
def test_one_unit_more_is_too_long(bound: int, row: list[int]) -> None:
    assert squared_norms([row])[0] == bound**2
    for more in (0, 1, -1):
        for whole in ([more, *row], [*row, more]):
            found, clipped, _ = truncate_to_grid(np.array([whole]), float(bound), bound)
            assert clipped.tolist() == [more != 0]
            assert found.tolist() == [whole] if more == 0 else squared_norms(found)[0] <= bound**2


def test_squares_of_many_integers_do_not_wrap_around() -> None:
    rows, clipped, _ = truncate_to_grid(np.full((1, 4096), 2**26, dtype=np.int64), float(2**26), 2**26)
    assert clipped.all()
    assert squared_norms(rows)[0] <= 2**52


def test_rows_of_integers_are_truncated_where_the_bound_does_not_divide_the_grid() -> None:
    rows = truncate_to_grid(np.array([[1, 2], [3, 4]]), 3.0, 16)[0]
    np.testing.assert_array_equal(rows, [[5, 10], [9, 12]])
    np.testing.assert_array_equal(truncate_to_grid(np.array([[1, -1]]), 1.5, 16)[0], [[10, -10]])
    np.testing.assert_array_equal(truncate_to_grid(np.array([[3, 4]]), 10.0, 8)[0], [[2, 3]])


def test_the_largest_sum_is_the_largest_bound() -> None:
    assert MAX_VALUES * MAX_GRID == MAX_BOUND


@pytest.mark.parametrize("clip", [0.5, 2.5, 10 / 64])
def test_rows_of_integers_meet_a_bound_that_divides_the_grid_and_is_no_integer(clip: float) -> None:
    rows = np.array([[0, 0], [2, 0], [-2, 1], [9, -9]])
    found = truncate_to_grid(rows, clip, 65530)
    want = truncate_to_grid(rows.astype(np.float64), clip, 65530)
    for one, other in zip(found, want, strict=True):
        np.testing.assert_array_equal(one, other)
