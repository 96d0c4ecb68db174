"""What a model is before it is trained: its arrays by name, its network, and which of its channels may be renumbered.

An architecture is public and holds no trained value: arrays travel apart from it. Everything that a coordinator or a plan
needs (shapes, symmetries, first values) comes without torch, which is imported where a network is built.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.channel_groups import ChannelGroup
from veilsum_node.errors import Misuse
from veilsum_node.fields import Frozen, Name

if TYPE_CHECKING:
    from veilsum_privacy.training.models.networks import Network

Shapes = dict[str, tuple[int, ...]]

MAX_VALUES = 2**26
"""Most values that a model's arrays may hold together: 512 MiB."""


class ModelSpec(Frozen):
    """A model as a study names it.

    Attributes:
        name: of a registered architecture.
        inputs: (channels, height, width) of images, whose values are the features in this order, the last axis fastest; None
            for models that take the features as they are.
        options: the architecture's own. A signed study holds all of them (:func:`.resolve_model`).
    """

    name: Name
    inputs: tuple[Annotated[int, Field(ge=1, le=4096)], ...] | None = Field(default=None, min_length=1, max_length=4)
    options: dict[str, Any] = Field(default_factory=dict)


class Image(NamedTuple):
    """Shape of an image."""

    channels: int
    height: int
    width: int


class Architecture(ABC):
    """A kind of network for records of ``width`` features and ``classes`` classes, or so many scores of another outcome.

    Every network has two parts, and scores are ``head(features(x))``: ``features`` turns x (B, width) or (B, *inputs) into
    (B, H), ``head`` turns that into scores (B, K).

    Subclasses set ``name`` and ``Options``, an immutable model whose defaults are the architecture's. One that comes with a
    site's own package is announced as an entry point of the group ``veilsum.models`` under its name.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Frozen]]
    precision: ClassVar[Literal["float32", "float64"]] = "float64"
    """What the network is computed in. Clipping and sums are float64 either way. Convolutions in float64 take 2 to 9 times as
    long."""
    weights: str = ""
    """SHA-256 of the file of what is frozen of it (:mod:`veilsum_privacy.training.weights`); none of a model trained whole."""

    def __init__(self, options: Frozen, inputs: tuple[int, ...] | None, width: int, classes: int) -> None:
        """Build the architecture.

        Raises:
            Misuse: options, inputs, width and classes do not fit together.
        """
        if width < 1 or classes < 1:
            raise Misuse(f"A model takes 1 feature or more and gives 1 score or more, not {width} and {classes}.")
        if inputs is not None and math.prod(inputs) != width:
            raise Misuse(
                f"Inputs of shape {inputs} hold {math.prod(inputs)} values; the records have {width} features.",
                "State channels, height and width of an image whose pixels are the features.",
            )
        self.options = options
        self.inputs = inputs
        self.width = width
        self.classes = classes

    @abstractmethod
    def shapes(self) -> Shapes:
        """Arrays by name in their fixed order, which is the order of a flat vector; the names of the network's parameters."""

    @abstractmethod
    def network(self) -> Network:
        """A new network. The values of its parameters do not matter."""

    def module(self) -> Network:
        """A new network in float64 and in training mode, holding ``initial(0)``.

        Raises:
            Misuse: it has a layer that per-record gradients do not exist for, or other parameters than :meth:`shapes` says.
        """
        from veilsum_privacy.training.arrays import put
        from veilsum_privacy.training.models.networks import check

        module = self.network().double().train()
        check(module, self.shapes())
        put(module, self.initial(0))
        return module

    def initial(self, seed: int) -> dict[str, Floats]:
        """Values to begin training with: weights normal with variance 2 / inputs, of the head 1 / inputs; norms 1, biases 0.

        Args:
            seed: public; one seed gives the same values on every machine with the same numpy.
        """
        rng = np.random.default_rng((seed, 0x6D6F64656C))
        values: dict[str, Floats] = {}
        for name, shape in self.shapes().items():
            if len(shape) < 2:
                values[name] = np.full(shape, 1.0 if name.endswith(".weight") else 0.0)
            else:
                gain = 1.0 if name.startswith("head.") else 2.0
                values[name] = rng.standard_normal(shape)
                values[name] *= math.sqrt(gain / math.prod(shape[1:]))
        return values

    def channels(self) -> tuple[ChannelGroup, ...]:
        """Hidden channels that may be renumbered without changing what the network computes, from input to output.

        Those of convolutions, of residual streams and of hidden Linear layers alike; the first member of ``produced`` is the
        array whose rows tell the channels apart. Empty where none are known.
        """
        return ()

    def linear_layers(self) -> tuple[str, ...]:
        """Names of the Linear layers from input to output; each has ``.weight`` (out, in) and ``.bias`` (out,)."""
        return ("head",)

    def frozen(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The arrays of its network that are not trained, by name: what the file of :attr:`weights` calls each, its shape."""
        return {}

    def check_weights(self) -> None:
        """Insist that what is frozen of it is at hand in this process, whole.

        Raises:
            ConfigurationError: as :func:`veilsum_privacy.training.weights.frozen`.
        """
        from veilsum_privacy.training import weights

        if self.weights:
            weights.frozen(self.weights, dict(self.frozen().values()))

    @property
    def size(self) -> int:
        """Values of all arrays together: P."""
        return sum(math.prod(shape) for shape in self.shapes().values())


class ReleasedArchitecture(Architecture):
    """A model that a method releases whole, and that no gradient trains: it has no network and begins with zeros.

    Subclasses set ``method``, the one that releases it.
    """

    method: ClassVar[str]

    def initial(self, seed: int) -> dict[str, Floats]:
        """Zeros, whatever the seed."""
        return {name: np.zeros(shape) for name, shape in self.shapes().items()}

    def network(self) -> Network:
        raise Misuse(f"The model {self.name!r} is not trained by gradients.", f"Use the method {self.method} for it.")


def image(inputs: tuple[int, ...] | None, name: str) -> Image:
    """The inputs as an image.

    Raises:
        Misuse: they are none.
    """
    if inputs is None or len(inputs) != 3:
        raise Misuse(f"The model {name!r} takes images.", "Set inputs = [channels, height, width].")
    return Image(*inputs)


def scaled_channels(channels: int, width: float, groups: int, name: str) -> int:
    """Channels of a layer that is ``width`` times as wide as published, in groups of two or more each.

    Raises:
        Misuse: the groups do not divide it, or one channel would be normalised by itself.
    """
    scaled = max(1, round(channels * width))
    if scaled % groups or scaled < 2 * groups:
        raise Misuse(
            f"The model {name!r} at width {width} has a layer of {scaled} channels, not {groups} groups of two or more.",
            "Choose another width, or fewer groups.",
        )
    return scaled
