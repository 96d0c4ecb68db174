"""What makes features of a dataset's columns, as a study names it: a released projection, or a frozen program at every site.

An encoder is public and chosen without the records that it encodes. A study names it by its hash, so that every site runs the
same one. This module describes encoders and runs none: :mod:`veilsum_privacy.tasks.feature_maps` applies projections, the
participant loads programs.
"""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from veilsum_node.fields import Frozen

MAX_WIDTH = 4096
"""Most features that an encoder may make."""

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


Encoder = Annotated[Projection | Program, Field(discriminator="kind")]
"""Either of them, told apart by ``kind``."""
