"""Arrays kept in parts, in a file or in memory, are what was written; where no file has room, they are in memory."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest

from veilsum_privacy.training import long_arrays
from veilsum_privacy.training.long_arrays import LongArrays, cut

SHAPES = {"a": (3, 4), "empty": (0,), "b": (5,), "c": ()}


def no_room(*_: Any, **__: Any) -> Any:
    raise OSError(28, "No space left on device")


@pytest.fixture(params=["memory", "file", "no room for a file"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(long_arrays, "PIECE", 4)
    monkeypatch.setattr(long_arrays, "LONG", 10**6 if request.param == "memory" else 1)
    if request.param == "no room for a file":
        monkeypatch.setattr(tempfile, "TemporaryFile", no_room)
    return str(request.param)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_read_is_what_was_written(place: str, dtype: type) -> None:
    rng = np.random.default_rng(0)
    first, moved = ({name: rng.normal(size=shape) for name, shape in SHAPES.items()} for _ in range(2))
    kept = LongArrays.of(first, dtype)
    assert (kept._file is not None) == (place == "file")
    for name, shape in SHAPES.items():
        parts = list(cut(int(np.prod(shape))))
        for part in parts[::-1]:
            before = kept.read(name, part)
            assert before.dtype == np.float64
            np.testing.assert_array_equal(before, first[name].astype(dtype).reshape(-1)[part])
            before += 1.0  # is the caller's
            kept.write(name, part, moved[name].reshape(-1)[part])
    for name, array in kept.arrays().items():
        assert (array.dtype, array.shape) == (dtype, SHAPES[name])
        np.testing.assert_array_equal(array, moved[name].astype(dtype))


def test_a_value_to_begin_with(place: str) -> None:
    assert all((array == 0.25).all() for array in LongArrays(SHAPES, 0.25).arrays().values())
    assert LongArrays({}).arrays() == {}


def test_what_is_too_large_for_the_type_is_infinite(place: str) -> None:
    kept = LongArrays({"a": (2,)}, dtype=np.float32)
    kept.write("a", slice(0, 2), np.array([1e300, -1e300]))
    assert kept.read("a", slice(0, 2)).tolist() == [np.inf, -np.inf]
