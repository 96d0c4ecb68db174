"""Linear models and perceptrons with one hidden layer: "linear" and "mlp"."""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.channel_groups import ChannelGroup, GroupMember
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.models.base import Architecture, Shapes

if TYPE_CHECKING:
    from veilsum_privacy.training.models.networks import Network


class Layer(NamedTuple):
    """z = weight a + constant * bias for an input a; ReLU between layers."""

    weight: str
    bias: str
    constant: float


class Perceptron(Architecture):
    """Fully connected layers with ReLU between them, on features that are multiplied by ``scale`` first."""

    @property
    @abstractmethod
    def scale(self) -> float:
        """What features are multiplied by before the first layer."""

    @abstractmethod
    def layers(self) -> tuple[Layer, ...]:
        """The layers from input to output."""


class LinearOptions(Frozen):
    """Options of :class:`Linear`.

    Attributes:
        scale: of the features. With features in [-1, 1]^d, 1 / sqrt(d) keeps a record's norm at 1.
        bias: the constant that biases are multiplied by: how large the bias is in a record's gradient.
    """

    scale: Real = Field(default=1.0, gt=0, le=1e6)
    bias: Real = Field(default=1.0, ge=0, le=1e6)


class Linear(Perceptron):
    """Scores W (scale x) + bias b. It begins at zero: its losses are convex."""

    name = "linear"
    Options: ClassVar[type[Frozen]] = LinearOptions
    options: LinearOptions

    @property
    def scale(self) -> float:
        return self.options.scale

    def layers(self) -> tuple[Layer, ...]:
        return (Layer("head.weight", "head.bias", self.options.bias),)

    def shapes(self) -> Shapes:
        return {"head.weight": (self.classes, self.width), "head.bias": (self.classes,)}

    def initial(self, seed: int) -> dict[str, Floats]:
        return {name: np.zeros(shape) for name, shape in self.shapes().items()}

    def network(self) -> "Network":
        from veilsum_privacy.training.models import networks

        features = networks.named(scale=networks.Scale(self.width, self.options.scale))
        return networks.Network(features, networks.linear(self.width, self.classes, self.options.bias))


class MlpOptions(Frozen):
    """Options of :class:`Mlp`.

    Attributes:
        hidden: units of the hidden layer.
        scale: of the features.
    """

    hidden: int = Field(default=128, ge=1, le=65536)
    scale: Real = Field(default=1.0, gt=0, le=1e6)


class Mlp(Perceptron):
    """Scores of one hidden layer with ReLU on scale x."""

    name = "mlp"
    Options: ClassVar[type[Frozen]] = MlpOptions
    options: MlpOptions

    @property
    def scale(self) -> float:
        return self.options.scale

    def layers(self) -> tuple[Layer, ...]:
        return Layer("features.hidden.weight", "features.hidden.bias", 1.0), Layer("head.weight", "head.bias", 1.0)

    def shapes(self) -> Shapes:
        hidden = self.options.hidden
        return {
            "features.hidden.weight": (hidden, self.width),
            "features.hidden.bias": (hidden,),
            "head.weight": (self.classes, hidden),
            "head.bias": (self.classes,),
        }

    def network(self) -> "Network":
        from veilsum_privacy.training.models import networks

        features = networks.named(
            scale=networks.Scale(self.width, self.options.scale),
            hidden=networks.linear(self.width, self.options.hidden),
            relu=networks.relu(),
        )
        return networks.Network(features, networks.linear(self.options.hidden, self.classes))

    def channels(self) -> tuple[ChannelGroup, ...]:
        produced = GroupMember("features.hidden.weight", 0), GroupMember("features.hidden.bias", 0)
        return (ChannelGroup("hidden", self.options.hidden, produced, (GroupMember("head.weight", 1),)),)

    def linear_layers(self) -> tuple[str, ...]:
        return "features.hidden", "head"
