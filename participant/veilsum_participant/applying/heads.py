"""Classifiers as results say them: affine layers by their arrays, or a network by its architecture's name."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.models import GROUP, MODELS, RELEASED, Architecture, ModelSpec, build_architecture
from veilsum_privacy.training.predict import clipped_about, scores

Array = Annotated[str, Field(min_length=1, max_length=256)]
"""The name of an array in the bundle."""


class LinearArrays(Frozen):
    """Scores x @ weights.T + bias: ``weights`` (K, m), ``bias`` (K,).

    x are the features, or with ``centre`` (m,) the features less it, scaled down to an L2 norm of ``clip``.
    """

    kind: Literal["linear"]
    weights: Array
    bias: Array
    centre: Array | None = None
    clip: Real | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.centre is None) != (self.clip is None):
            raise ValueError("a centre and a clip go together")
        return self


class MlpHead(Frozen):
    """Affine layers with a rectifier between them; each a weight (out, in) and a bias (out,)."""

    kind: Literal["mlp"]
    layers: tuple[tuple[Array, Array], ...] = Field(min_length=1, max_length=64)
    activation: Literal["relu"]


class NetworkHead(Frozen):
    """A model by its architecture's name; its arrays are those of the bundle whose names begin with ``prefix``."""

    kind: Literal["network"]
    model: ModelSpec
    prefix: Array

    def architecture(self, width: int, classes: int) -> Architecture:
        """The named architecture.

        Raises:
            Misuse: it comes with a package that is not installed here.
            HostileInput: its options do not fit.
        """
        name = self.model.name
        if name not in MODELS and name not in RELEASED and not entry_points(group=GROUP, name=name):
            raise Misuse(
                f"This result is of the model {name!r}, which is not installed here.",
                f"Install the package that announces it as an entry point of the group {GROUP!r}.",
            )
        return build_architecture(self.model, width, classes, trained=False)


ReleasedHead = LinearArrays | MlpHead | NetworkHead


class PersonalHead(Frozen):
    """A released head and a part of one site's own: scale z + x @ weights.T + bias, z the released scores of features x."""

    kind: Literal["personal"]
    released: Annotated[ReleasedHead, Field(discriminator="kind")]
    scale: Real
    weights: Array
    bias: Array


Head = ReleasedHead | PersonalHead

PERSONAL = "personal."
"""What the names of a site's own arrays begin with."""


def head_scores(head: Head, arrays: Mapping[str, Floats], x: Floats, classes: int) -> Floats:
    """Scores (n, K) of features (n, m); NaN in rows that are.

    Raises:
        Misuse: the head's architecture is not installed here.
    """
    if isinstance(head, PersonalHead):
        released = head_scores(head.released, arrays, x, classes)
        moved: Floats = head.scale * released + x @ arrays[head.weights].T + arrays[head.bias]
        return moved
    if isinstance(head, NetworkHead):
        own = {name.removeprefix(head.prefix): array for name, array in arrays.items() if name.startswith(head.prefix)}
        return scores(head.architecture(x.shape[1], classes), own, x)
    if isinstance(head, MlpHead):
        for index, (weight, bias) in enumerate(head.layers):
            x = np.maximum(x, 0.0) if index else x
            x = x @ arrays[weight].T + arrays[bias]
        return x
    if head.centre is not None and head.clip is not None:
        x = clipped_about(x, arrays[head.centre], head.clip)
    result: Floats = x @ arrays[head.weights].T + arrays[head.bias]
    return result
