"""ResNet-18 with GroupNorm for small images: a convolution, four stages of two residual blocks, averaged maps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pydantic import Field

from veilsum_aggregation.channel_groups import ChannelGroup, GroupMember
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.models.base import Architecture, Shapes, image, scaled_channels

if TYPE_CHECKING:
    from torch import nn

    from veilsum_privacy.training.models.networks import Network

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels of a stage, and the stride of its first block."""

_BLOCKS = 2


class ResNet18Options(Frozen):
    """Options of :class:`ResNet18`.

    Attributes:
        width: times the published channels.
        groups: of every GroupNorm.
    """

    width: Real = Field(default=1.0, gt=0, le=8)
    groups: int = Field(default=16, ge=1, le=1024)


class _Block(NamedTuple):
    """A residual block: its name, its stage from 0, channels in and out, stride."""

    name: str
    stage: int
    inputs: int
    outputs: int
    stride: int

    @property
    def straight(self) -> bool:
        """True where the shortcut is the identity."""
        return self.stride == 1 and self.inputs == self.outputs


class ResNet18(Architecture):
    """A convolution by 3 x 3 and eight residual blocks, halved three times, whose last maps are averaged."""

    name = "resnet18"
    precision = "float32"
    Options: ClassVar[type[Frozen]] = ResNet18Options
    options: ResNet18Options

    def __init__(self, options: Frozen, inputs: tuple[int, ...] | None, width: int, classes: int) -> None:
        super().__init__(options, inputs, width, classes)
        self._image = image(inputs, self.name)
        o = self.options
        self._channels = tuple(scaled_channels(channels, o.width, o.groups, self.name) for channels, _ in _STAGES)

    def _blocks(self) -> Iterator[_Block]:
        before = self._channels[0]
        for stage, (channels, (_, stride)) in enumerate(zip(self._channels, _STAGES, strict=True)):
            for number in range(_BLOCKS):
                yield _Block(f"stage{stage + 1}.{number}", stage, before, channels, 1 if number else stride)
                before = channels

    def shapes(self) -> Shapes:
        shapes: Shapes = {"features.stem.weight": (self._channels[0], self._image.channels, 3, 3)}

        def norm(name: str, channels: int) -> None:
            shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (channels,)

        norm("features.stem_norm", self._channels[0])
        for block in self._blocks():
            name, outputs = f"features.{block.name}", block.outputs
            shapes[f"{name}.conv1.weight"] = (outputs, block.inputs, 3, 3)
            norm(f"{name}.norm1", outputs)
            shapes[f"{name}.conv2.weight"] = (outputs, outputs, 3, 3)
            norm(f"{name}.norm2", outputs)
            if not block.straight:
                shapes[f"{name}.shortcut.weight"] = (outputs, block.inputs, 1, 1)
                norm(f"{name}.shortcut_norm", outputs)
        shapes["head.weight"] = (self.classes, self._channels[-1])
        shapes["head.bias"] = (self.classes,)
        return shapes

    def network(self) -> Network:
        from torch import nn

        from veilsum_privacy.training.models.networks import Network, Reshape, Residual, conv3, named, relu

        groups = self.options.groups
        layers: dict[str, nn.Module] = {
            "image": Reshape(*self._image),
            "stem": conv3(self._image.channels, self._channels[0]),
            "stem_norm": nn.GroupNorm(groups, self._channels[0]),
            "relu": relu(),
        }
        blocks = list(self._blocks())
        for stage in range(len(_STAGES)):
            made = [Residual(b.inputs, b.outputs, b.stride, groups) for b in blocks if b.stage == stage]
            layers[f"stage{stage + 1}"] = nn.Sequential(*made)
        layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten()}
        return Network(named(**layers), nn.Linear(self._channels[-1], self.classes))

    def channels(self) -> tuple[ChannelGroup, ...]:
        """One group for the stream of each stage, which all of its blocks add to, and one inside of each block."""
        groups: list[ChannelGroup] = []
        blocks = list(self._blocks())
        for stage, channels in enumerate(self._channels):
            produced = [] if stage else _normed("features.stem", "features.stem_norm")
            consumed: list[GroupMember] = []
            inside: list[ChannelGroup] = []
            for block in (b for b in blocks if b.stage == stage):
                name = f"features.{block.name}"
                if not block.straight:
                    produced += _normed(f"{name}.shortcut", f"{name}.shortcut_norm")
                else:
                    consumed.append(GroupMember(f"{name}.conv1.weight", 1))
                produced += _normed(f"{name}.conv2", f"{name}.norm2")
                inner = tuple(_normed(f"{name}.conv1", f"{name}.norm1"))
                read = (GroupMember(f"{name}.conv2.weight", 1),)
                inside.append(ChannelGroup(f"{block.name}.inner", channels, inner, read, self.options.groups))
            next_stage = f"features.stage{stage + 2}.0"
            if stage + 1 < len(_STAGES):
                consumed += [GroupMember(f"{next_stage}.conv1.weight", 1), GroupMember(f"{next_stage}.shortcut.weight", 1)]
            else:
                consumed.append(GroupMember("head.weight", 1))
            groups.append(ChannelGroup(f"stream{stage + 1}", channels, tuple(produced), tuple(consumed), self.options.groups))
            groups += inside
        return tuple(groups)


def _normed(conv: str, norm: str) -> list[GroupMember]:
    """The output axes of a convolution and its norm."""
    return [GroupMember(f"{conv}.weight", 0), GroupMember(f"{norm}.weight", 0), GroupMember(f"{norm}.bias", 0)]
