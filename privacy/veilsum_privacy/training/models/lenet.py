"""LeNet-5 for small images: two convolutions, two hidden layers. ReLU and largest-value pooling, as is usual today."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from veilsum_aggregation.channel_groups import ChannelGroup, GroupMember
from veilsum_node.errors import Misuse
from veilsum_node.fields import Frozen
from veilsum_privacy.training.models.base import Architecture, Shapes, image

if TYPE_CHECKING:
    from veilsum_privacy.training.models.networks import Network


class LeNet5Options(Frozen):
    """Options of :class:`LeNet5`: channels of the convolutions, units of the hidden layers; LeCun's by default."""

    conv1: int = Field(default=6, ge=1, le=1024)
    conv2: int = Field(default=16, ge=1, le=1024)
    fc1: int = Field(default=120, ge=1, le=8192)
    fc2: int = Field(default=84, ge=1, le=8192)


class LeNet5(Architecture):
    """Convolution by 5 x 5 that keeps the size, halving, convolution by 5 x 5, halving, then three Linear layers.

    28 x 28 pixels become maps of 5 x 5, 16 x 16 pixels maps of 2 x 2.
    """

    name = "lenet5"
    precision = "float32"
    Options: ClassVar[type[Frozen]] = LeNet5Options
    options: LeNet5Options

    def __init__(self, options: Frozen, inputs: tuple[int, ...] | None, width: int, classes: int) -> None:
        super().__init__(options, inputs, width, classes)
        self._image = image(inputs, self.name)
        self._sides = (self._image.height // 2 - 4) // 2, (self._image.width // 2 - 4) // 2
        if min(self._sides) < 1:
            raise Misuse("The model 'lenet5' takes images of 12 x 12 pixels or more.")

    @property
    def _places(self) -> int:
        return self._sides[0] * self._sides[1]

    def shapes(self) -> Shapes:
        o = self.options
        return {
            "features.conv1.weight": (o.conv1, self._image.channels, 5, 5),
            "features.conv1.bias": (o.conv1,),
            "features.conv2.weight": (o.conv2, o.conv1, 5, 5),
            "features.conv2.bias": (o.conv2,),
            "features.fc1.weight": (o.fc1, o.conv2 * self._places),
            "features.fc1.bias": (o.fc1,),
            "features.fc2.weight": (o.fc2, o.fc1),
            "features.fc2.bias": (o.fc2,),
            "head.weight": (self.classes, o.fc2),
            "head.bias": (self.classes,),
        }

    def network(self) -> "Network":
        from torch import nn

        from veilsum_privacy.training.models.networks import Network, Reshape, named, relu

        o = self.options
        features = named(
            image=Reshape(*self._image),
            conv1=nn.Conv2d(self._image.channels, o.conv1, 5, padding=2),
            relu1=relu(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(o.conv1, o.conv2, 5),
            relu2=relu(),
            pool2=nn.MaxPool2d(2),
            flat=nn.Flatten(),
            fc1=nn.Linear(o.conv2 * self._places, o.fc1),
            relu3=relu(),
            fc2=nn.Linear(o.fc1, o.fc2),
            relu4=relu(),
        )
        return Network(features, nn.Linear(o.fc2, self.classes))

    def channels(self) -> tuple[ChannelGroup, ...]:
        o = self.options
        sizes = {"conv1": o.conv1, "conv2": o.conv2, "fc1": o.fc1, "fc2": o.fc2}
        after = {
            "conv1": GroupMember("features.conv2.weight", 1),
            "conv2": GroupMember("features.fc1.weight", 1, self._places),
            "fc1": GroupMember("features.fc2.weight", 1),
            "fc2": GroupMember("head.weight", 1),
        }
        return tuple(
            ChannelGroup(
                name,
                size,
                (GroupMember(f"features.{name}.weight", 0), GroupMember(f"features.{name}.bias", 0)),
                (after[name],),
            )
            for name, size in sizes.items()
        )

    def linear_layers(self) -> tuple[str, ...]:
        return "features.fc1", "features.fc2", "head"
