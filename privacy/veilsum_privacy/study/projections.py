"""A projection's digest, by which studies name it."""

import numpy as np
from numpy.typing import NDArray

from veilsum_node.canonical import digest
from veilsum_node.errors import HostileInput
from veilsum_privacy.study.encoder import MAX_INPUTS, MAX_WIDTH, Projection

_Floats = NDArray[np.float64]


def projection_digest(matrix: _Floats, offset: _Floats) -> str:
    """SHA-256 of a projection, 64 hexadecimal digits; two projections with one digest agree in every bit.

    :func:`veilsum_node.canonical.digest` with the label ``veilsum/1/projection`` over three parts: width and inputs as 8
    bytes each, the matrix row by row, and the offset. All numbers are little-endian, reals IEEE 754 doubles.

    Args:
        matrix: (width, inputs) float64.
        offset: (width,) float64.

    Raises:
        HostileInput: not float64, another shape, too large, or a value that is not finite.
    """
    if matrix.dtype != np.float64 or offset.dtype != np.float64 or matrix.ndim != 2 or offset.shape != matrix.shape[:1]:
        raise HostileInput("A projection is a float64 matrix (width, inputs) with a float64 offset (width,).")
    width, inputs = matrix.shape
    if not (1 <= width <= MAX_WIDTH and 1 <= inputs <= MAX_INPUTS):
        raise HostileInput(f"A projection makes 1 to {MAX_WIDTH} features of 1 to {MAX_INPUTS} values.")
    if not (np.isfinite(matrix).all() and np.isfinite(offset).all()):
        raise HostileInput("A projection holds a value that is not finite.")
    parts = (np.array([width, inputs], dtype="<u8"), matrix.astype("<f8"), offset.astype("<f8"))
    return digest("veilsum/1/projection", *(part.tobytes() for part in parts)).hex()


def check_projection(declared: Projection, matrix: _Floats, offset: _Floats) -> None:
    """Insist that a projection is the declared one, to the last bit.

    Raises:
        HostileInput: its shape or its hash differs, or :func:`projection_digest` refuses it.
    """
    if matrix.shape != (declared.width, declared.inputs) or projection_digest(matrix, offset) != declared.sha256:
        raise HostileInput(
            "The projection is not the one that the study names.",
            "Take matrix and offset of the result that it was made from.",
        )
