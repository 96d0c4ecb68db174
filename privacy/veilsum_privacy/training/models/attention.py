"""The last block of a transformer, for the word that a text is told by: attention to all words, then two Linear layers.

What lies below is frozen and makes the records' features, an encoder's hidden states. Of the last block only one word's output
is read, so its Linear layers but those of keys and values take one vector of a record: RegMean fuses them as any others.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from veilsum_aggregation.channel_groups import ChannelGroup, GroupMember
from veilsum_node.errors import Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.models.base import Architecture, Shapes

if TYPE_CHECKING:
    from veilsum_privacy.training.models.networks import Network


class BlockOptions(Frozen):
    """Options of :class:`Block`.

    Attributes:
        heads: of the attention; they divide the width of a word.
        hidden: units of the first of both Linear layers.
        activation: between these.
        epsilon: what both norms add to a variance.
    """

    heads: int = Field(default=2, ge=1, le=64)
    hidden: int = Field(default=64, ge=1, le=8192)
    # studies signed before do not state these
    activation: Literal["relu", "gelu"] = Field(default="relu", exclude_if=lambda stated: stated == "relu")
    epsilon: Real = Field(default=1e-5, ge=1e-12, le=0.1, exclude_if=lambda stated: stated == 1e-5)


class Block(Architecture):
    """torch's TransformerEncoderLayer without dropout, norms last, of the first word's output; then a Linear layer.

    Inputs are (words, width), the words' hidden states. A word of zeros is not there: nothing attends to it. Keys have no
    bias, for it would change nothing.
    """

    name = "block"
    Options: ClassVar[type[Frozen]] = BlockOptions
    options: BlockOptions

    def __init__(self, options: Frozen, inputs: tuple[int, ...] | None, width: int, classes: int) -> None:
        super().__init__(options, inputs, width, classes)
        if inputs is None or len(inputs) != 2:
            raise Misuse("The model 'block' takes words.", "State inputs = [words, width] of the hidden states.")
        self.words, self.across = inputs
        if self.across % self.options.heads:
            raise Misuse(f"A word of {self.across} values is not divided by {self.options.heads} heads.", "State other heads.")

    def shapes(self) -> Shapes:
        d, hidden = self.across, self.options.hidden
        layers = {"query": (d, d), "key": (d, d), "value": (d, d), "out": (d, d), "first": (hidden, d), "second": (d, hidden)}
        found: Shapes = {}
        for name, shape in layers.items():
            found[f"features.{name}.weight"] = shape
            if name != "key":
                found[f"features.{name}.bias"] = shape[:1]
        for name in ("norm1", "norm2"):
            found |= {f"features.{name}.weight": (d,), f"features.{name}.bias": (d,)}
        return {**found, "head.weight": (self.classes, d), "head.bias": (self.classes,)}

    def network(self) -> "Network":
        from torch import nn

        from veilsum_privacy.training.models.networks import LastWord, Network

        o = self.options
        features = LastWord(self.words, self.across, o.heads, o.hidden, o.activation, o.epsilon)
        return Network(features, nn.Linear(self.across, self.classes))

    def channels(self) -> tuple[ChannelGroup, ...]:
        made = GroupMember("features.first.weight", 0), GroupMember("features.first.bias", 0)
        return (ChannelGroup("hidden", self.options.hidden, made, (GroupMember("features.second.weight", 1),)),)

    def linear_layers(self) -> tuple[str, ...]:
        return "features.query", "features.out", "features.first", "features.second", "head"
