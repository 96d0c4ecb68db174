"""VGG-11 with GroupNorm for small images: eight convolutions, two hidden layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from veilsum_aggregation.channel_groups import ChannelGroup, GroupMember
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.models.base import Architecture, Shapes, image, scaled_channels

if TYPE_CHECKING:
    from torch import nn

    from veilsum_privacy.training.models.networks import Network

_PLAN = ((64, True), (128, True), (256, False), (256, True), (512, False), (512, True), (512, False), (512, True))
"""Channels of each convolution by 3 x 3, and whether the maps are halved after it (configuration A of VGG)."""


class Vgg11Options(Frozen):
    """Options of :class:`Vgg11`.

    Attributes:
        width: times the published channels.
        groups: of every GroupNorm.
        hidden: units of each of the two hidden layers.
    """

    width: Real = Field(default=1.0, gt=0, le=8)
    groups: int = Field(default=16, ge=1, le=1024)
    hidden: int = Field(default=512, ge=1, le=8192)


class Vgg11(Architecture):
    """Eight convolutions, each with GroupNorm and ReLU, halved five times; then three Linear layers.

    Maps that are one pixel high or wide already are not halved again, so that small images fit.
    """

    name = "vgg11"
    precision = "float32"
    Options: ClassVar[type[Frozen]] = Vgg11Options
    options: Vgg11Options

    def __init__(self, options: Frozen, inputs: tuple[int, ...] | None, width: int, classes: int) -> None:
        super().__init__(options, inputs, width, classes)
        self._image = image(inputs, self.name)
        o = self.options
        self._channels = tuple(scaled_channels(channels, o.width, o.groups, self.name) for channels, _ in _PLAN)
        sides = self._image.height, self._image.width
        self._halved: tuple[bool, ...] = ()
        for _, halve in _PLAN:
            halved = halve and min(sides) > 1
            sides = (sides[0] // 2, sides[1] // 2) if halved else sides
            self._halved += (halved,)
        self._places = sides[0] * sides[1]

    def shapes(self) -> Shapes:
        shapes: Shapes = {}
        before = self._image.channels
        for number, channels in enumerate(self._channels, 1):
            shapes[f"features.conv{number}.weight"] = (channels, before, 3, 3)
            shapes[f"features.norm{number}.weight"] = (channels,)
            shapes[f"features.norm{number}.bias"] = (channels,)
            before = channels
        hidden = self.options.hidden
        rows = {
            "features.fc1": (hidden, before * self._places),
            "features.fc2": (hidden, hidden),
            "head": (self.classes, hidden),
        }
        for name, (outputs, inputs) in rows.items():
            shapes[f"{name}.weight"] = (outputs, inputs)
            shapes[f"{name}.bias"] = (outputs,)
        return shapes

    def network(self) -> Network:
        from torch import nn

        from veilsum_privacy.training.models.networks import Network, Reshape, conv3, named, relu

        o = self.options
        layers: dict[str, nn.Module] = {"image": Reshape(*self._image)}
        before = self._image.channels
        for number, (channels, halve) in enumerate(zip(self._channels, self._halved, strict=True), 1):
            layers |= {f"conv{number}": conv3(before, channels), f"norm{number}": nn.GroupNorm(o.groups, channels)}
            layers[f"relu{number}"] = relu()
            if halve:
                layers[f"pool{number}"] = nn.MaxPool2d(2)
            before = channels
        layers |= {"flat": nn.Flatten(), "fc1": nn.Linear(before * self._places, o.hidden), "relu_fc1": relu()}
        layers |= {"fc2": nn.Linear(o.hidden, o.hidden), "relu_fc2": relu()}
        return Network(named(**layers), nn.Linear(o.hidden, self.classes))

    def channels(self) -> tuple[ChannelGroup, ...]:
        groups = []
        last = len(self._channels)
        for number, channels in enumerate(self._channels, 1):
            norm = f"features.norm{number}"
            produced = (
                GroupMember(f"features.conv{number}.weight", 0),
                GroupMember(f"{norm}.weight", 0),
                GroupMember(f"{norm}.bias", 0),
            )
            after = GroupMember(f"features.conv{number + 1}.weight", 1) if number < last else None
            consumed = (after or GroupMember("features.fc1.weight", 1, self._places),)
            groups.append(ChannelGroup(f"conv{number}", channels, produced, consumed, self.options.groups))
        for name, after in (("fc1", GroupMember("features.fc2.weight", 1)), ("fc2", GroupMember("head.weight", 1))):
            produced_fc = GroupMember(f"features.{name}.weight", 0), GroupMember(f"features.{name}.bias", 0)
            groups.append(ChannelGroup(name, self.options.hidden, produced_fc, (after,)))
        return tuple(groups)

    def linear_layers(self) -> tuple[str, ...]:
        return "features.fc1", "features.fc2", "head"
