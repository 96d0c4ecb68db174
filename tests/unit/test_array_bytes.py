"""Arrays in pieces are the bytes that the safetensors library writes, and no copies."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load, save

from veilsum_privacy.securesum.array_bytes import array_pieces

TYPES = ["u8", "i8", "f8", "f4", "u4", "i4", "f2", "u2", "i2", "i1", "u1", "?"]
NAMES = ["model.head.weight", "a", "A", "a.b", "é", 'quoted "name"', "back\\slash", "tab\tname", "\x01", ""]


@pytest.mark.parametrize("seed", range(20))
def test_the_library_writes_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = {}
    for name in rng.permutation(NAMES)[: rng.integers(0, len(NAMES) + 1)]:
        shape = tuple(rng.integers(0, 4, rng.integers(0, 4)))
        arrays[str(name)] = rng.integers(0, 2, shape).astype(rng.choice(TYPES))
    whole = b"".join(array_pieces(arrays))
    assert whole == save(arrays)
    for name, array in load(whole).items():
        np.testing.assert_array_equal(array, arrays[name])


def test_an_array_is_not_copied_unless_it_must_be() -> None:
    array = np.arange(6.0).reshape(2, 3)
    (_, view) = array_pieces({"x": array})
    assert np.shares_memory(np.frombuffer(view), array)
    assert b"".join(array_pieces({"x": array.T})) == save({"x": np.ascontiguousarray(array.T)})


def test_an_array_of_another_type_is_refused() -> None:
    for array in (np.zeros(2, dtype=complex), np.zeros(2, dtype=">f8"), np.array(["a"])):
        with pytest.raises(TypeError, match="no place"):
            array_pieces({"x": array})
