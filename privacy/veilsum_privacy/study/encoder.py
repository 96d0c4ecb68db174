"""What makes features of a dataset's columns, as a study names it: a released projection, a frozen program, random features.

An encoder is public and chosen without the records that it encodes. A study names it by its hash, or by the seed that it
follows from, so that every site runs the same one. This module describes encoders and runs none:
:mod:`veilsum_privacy.tasks.feature_maps` applies projections and random features, the participant loads programs.
"""

import math
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints, model_validator

from veilsum_node.canonical import digest
from veilsum_node.errors import HostileInput
from veilsum_node.fields import Frozen, Real

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


class RandomFeatures(Frozen):
    """Random Fourier features of the scaled columns (Rahimi and Recht 2007): sqrt(2 / width) cos(W x + b).

    Their inner products are on average exp(-gamma |x - x'|^2), squared norms 1 and 2 at most. W and b follow from a seed.

    Attributes:
        width: features that it makes.
        gamma: of the kernel, for columns scaled to [-1, 1]; None in a request, for 1 / inputs.
        seed: of W and b (:func:`veilsum_privacy.tasks.feature_maps.waves`); it protects nothing.
        inputs: features of the schema that it takes, in the schema's order; None in a request.
    """

    kind: Literal["random-features"] = "random-features"
    width: int = Field(ge=1, le=MAX_WIDTH)
    gamma: Real | None = Field(default=None, gt=0, le=1e6)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    inputs: int | None = Field(default=None, ge=1, le=1024)

    @property
    def size(self) -> int:
        """Values that it takes of one record; 0 while anything is open, which no study is signed with."""
        return 0 if self.inputs is None or self.gamma is None else self.inputs


Encoder = Annotated[Projection | Program | RandomFeatures, Field(discriminator="kind")]
"""One of them, told apart by ``kind``."""


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
