"""What makes features of a dataset's columns, as a study names it: a released projection, or a frozen program at every site.

An encoder is public and chosen without the records that it encodes. A study names it by its hash, so that every site runs the
same one. This module describes encoders and runs none: :mod:`veilsum_privacy.tasks.feature_maps` applies projections, the
participant loads programs.
"""

import math
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints, model_validator

from veilsum_node.canonical import digest
from veilsum_node.errors import HostileInput
from veilsum_node.fields import Frozen

MAX_WIDTH = 4096
"""Most features that an encoder may make."""

MAX_INPUTS = 2**20
"""Most values that an encoder may take of one record."""

_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Floats = NDArray[np.float64]


class Projection(Frozen):
    """An affine map of the scaled columns, x -> matrix x + offset, that an earlier study released; it comes with a broadcast.

    Attributes:
        sha256: :func:`projection_digest` of its matrix and offset.
        inputs: features of the schema that it takes, in the schema's order.
        width: features that it makes.
    """

    kind: Literal["projection"] = "projection"
    sha256: _Sha256
    inputs: int = Field(ge=1, le=MAX_INPUTS)
    width: int = Field(ge=1, le=MAX_WIDTH)

    @property
    def size(self) -> int:
        """Values that it takes of one record."""
        return self.inputs


class Program(Frozen):
    """A frozen network in a local file at every site.

    Attributes:
        format: ``torchscript`` (torch.jit.save), or ``exported`` (torch.export.save).
        sha256: of the file's bytes, 64 hexadecimal digits.
        inputs: shape of one record's input; the scaled columns fill it in their order, the last axis fastest. The file takes
            float32 (1, *inputs) and gives float32 or float64 (1, width).
        width: features that it makes.
    """

    kind: Literal["program"] = "program"
    format: Literal["torchscript", "exported"]
    sha256: _Sha256
    inputs: tuple[Annotated[int, Field(ge=1, le=MAX_INPUTS)], ...] = Field(min_length=1, max_length=4)
    width: int = Field(ge=1, le=MAX_WIDTH)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.size > MAX_INPUTS:
            raise ValueError(f"inputs: their product must be at most {MAX_INPUTS}")
        return self

    @property
    def size(self) -> int:
        """Values that it takes of one record."""
        return math.prod(self.inputs)


Encoder = Annotated[Projection | Program, Field(discriminator="kind")]
"""Either of them, told apart by ``kind``."""


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
