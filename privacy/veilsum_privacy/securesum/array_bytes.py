"""Named arrays as the bytes of a safetensors file, in pieces of which the arrays are their own: nothing is copied.

The library has no such call. What it writes is what this module gives, byte for byte, and it reads all of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_node.fields import LARGEST

_TYPES = {
    "uint64": "U64", "int64": "I64", "float64": "F64", "float32": "F32", "uint32": "U32", "int32": "I32",
    "float16": "F16", "uint16": "U16", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""The format's names of types, in the order in which the library writes their arrays."""

_ALIGNMENT = 8


def array_pieces(arrays: Mapping[str, NDArray[Any]]) -> list[bytes | memoryview]:
    """The bytes of a safetensors file: its header, then a view of every array.

    The views show what the arrays hold when they are read. An array that is not contiguous is copied.

    Raises:
        TypeError: an array of another type than integers of 8 to 64 bits, floating point of 16 to 64 bits, or bool.
    """
    whole = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    kinds = list(_TYPES)
    if odd := [array.dtype.name for array in whole.values() if array.dtype.name not in kinds or not array.dtype.isnative]:
        raise TypeError(f"an array of {odd[0]} has no place in a safetensors file")
    header, at = {}, 0
    names = sorted(whole, key=lambda name: (kinds.index(whole[name].dtype.name), name))
    for name in names:
        array = whole[name]
        places = [at, at := at + array.nbytes]
        header[name] = {"dtype": _TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": places}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    views = (whole[name].reshape(-1).view(np.uint8) for name in names)
    return [len(text).to_bytes(8, "little") + text, *(view.data for view in views if len(view))]


def single(array: NDArray[Any]) -> NDArray[np.float32]:
    """An array in single precision, contiguous; what is beyond its range is infinite, which every site refuses."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def in_range(array: NDArray[np.float64]) -> bool:
    """Whether an array's values are finite and no larger than any that a task takes."""
    return bool(np.abs(array).max(initial=0.0) <= LARGEST)
