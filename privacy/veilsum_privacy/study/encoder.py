"""What makes features of a dataset's columns, as a study names it: a released projection, a frozen program, random features.

An encoder is public and chosen without the records that it encodes. A study names it by its hash, or by the seed that it
follows from, so that every site runs the same one. This module describes encoders and runs none:
:mod:`veilsum_privacy.tasks.feature_maps` applies projections and random features, the participant loads programs.
"""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from veilsum_node.fields import Frozen, Real

MAX_WIDTH = 4096
"""Most features that an encoder may make: a site tries a study's alignments on square matrices of so many, 128 MiB each, and a
study that nobody has looked at yet must not take more of its memory."""

MAX_INPUTS = 2**20
"""Most values that an encoder may take of one record."""

_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Projection(Frozen):
    """An affine map of the scaled columns, x -> matrix x + offset, that an earlier study released; it comes with a broadcast.

    Attributes:
        sha256: :func:`~veilsum_privacy.study.projections.projection_digest` of its matrix and offset.
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
