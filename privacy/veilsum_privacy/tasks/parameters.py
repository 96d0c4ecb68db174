"""Parameters that tasks have in common: the width of features, their clip and alignment, and the part of the records."""

from typing import Literal, Self

from pydantic import Field, model_validator

from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.schema import DatasetSchema


class MomentUse(Frozen):
    """How features are aligned by their moments, one by one (:mod:`veilsum_aggregation.moment_alignment`).

    Attributes:
        order: 2, mean and variance, or 4, skewness and kurtosis as well where that can be.
        adjust: which of mean and variance are changed; ``both`` with order 4.
        channels: features are so many channels, each with equally many features side by side that share their moments; None
            for moments of each feature.
        bound: moments are of features divided by it; 1 for the schema's own.
        drawn: of maps in the broadcast, whether each record goes through that of a site drawn for it in place of its own.
    """

    order: Literal[2, 4]
    adjust: Literal["mean", "variance", "both"]
    channels: int | None = Field(default=None, ge=1, le=4096)
    bound: Real = Field(default=1.0, gt=0, le=1e6)
    drawn: bool = Field(default=False, exclude_if=lambda drawn: not drawn)

    @model_validator(mode="after")
    def _four_adjust_both(self) -> Self:
        if self.order == 4 and self.adjust != "both":
            raise ValueError("four moments adjust mean and variance both")
        return self


class Alignment(Frozen):
    """How a site's features are aligned before a task clips them.

    Attributes:
        kind: ``broadcast``: the site's own affine map stands in the broadcast. Others: the site makes its
            map from its kept noised statistic and the broadcast reference (:mod:`veilsum_aggregation.alignment`).
        tau: strength in [0, 1] of a map that the site makes; 0 leaves the features as they are.
        moments: of a map of each feature by itself: of the kind ``moments``, and of ``broadcast`` where a scale and an offset
            of each are broadcast in place of a matrix; None for all others.
    """

    kind: Literal["broadcast", "barycenter", "two-way", "slopes", "moments"]
    tau: Real = Field(ge=0, le=1)
    moments: MomentUse | None = None

    @model_validator(mode="after")
    def _moments_of_their_kind(self) -> Self:
        if (self.kind == "moments") != (self.moments is not None) and self.kind != "broadcast":
            raise ValueError("moments are stated exactly if features are aligned by them")
        if self.moments is not None and self.moments.drawn and self.kind != "broadcast":
            raise ValueError("a site's map is drawn from a broadcast that holds those of all")
        if self.moments is not None and self.moments.order == 4 and self.kind == "broadcast":
            raise ValueError("a broadcast holds maps by mean and variance")
        return self

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the tasks whose kept statistic a site's own map can be made from; none where the map is broadcast."""
        if self.kind == "broadcast":
            return ()
        if self.kind == "moments":
            return ("power-moments",)
        return ("gaussian-moments", "class-moments") if self.kind == "barycenter" else ("class-moments",)


class WidthParameters(Frozen):
    """Parameters of every task that computes on features, or from a statistic of features.

    Attributes:
        width: None for the schema's own features, in [-1, 1]^d. A number for features of so many dimensions that an encoder
            or an alignment made.
    """

    width: int | None = Field(default=None, ge=1, le=4096)

    def dimension(self, schema: DatasetSchema) -> int:
        """Number of features."""
        return schema.width if self.width is None else self.width


class FeatureParameters(WidthParameters):
    """Parameters of every task that computes on features; all public and independent of the data.

    Attributes:
        width: features that an encoder or an alignment made are bounded by ``clip`` alone.
        alignment: None for none; needs a ``width``, unless it is by moments, which leaves features in their box.
        clip: L2 norm C that a record's features are scaled down to if they exceed it.
        missing: ``skip`` leaves a record with an absent feature out; ``centre`` takes an absent feature as 0, the middle of
            its bounds.
    """

    alignment: Alignment | None = None
    clip: Real = Field(gt=0, le=1e6)
    missing: Literal["skip", "centre"]

    @property
    def boxed(self) -> bool:
        """Whether features lie in [-1, 1]^d when they are clipped."""
        return self.width is None

    def largest_square(self, schema: DatasetSchema) -> float:
        """R^2, the largest squared norm of a record's features after clipping: min(C^2, d) in the box, else C^2."""
        return min(self.clip**2, float(schema.width)) if self.boxed else self.clip**2


Part = Literal["all", "statistics", "training"]


class PartParameters(FeatureParameters):
    """Parameters of a task that may work on a part of the records only; all public and independent of the data.

    Attributes:
        part: ``statistics`` are the records that :func:`veilsum_privacy.mechanism.parts.hash_is_low` picks, ``training``
            the others, ``all`` both.
        part_share: share of the records, in expectation, that are for statistics; of no meaning with ``all``.
        resplit: whether the parts are others in each round, by the salt in its broadcast.
    """

    part: Part = "all"
    part_share: Real = Field(default=0.5, gt=0, lt=1)
    resplit: bool = Field(default=False, exclude_if=lambda resplit: not resplit)
