"""Channels of a network that may be renumbered together: what an architecture states, and :mod:`.filters` uses."""

from typing import NamedTuple


class GroupMember(NamedTuple):
    """An axis of an array that channels lie along.

    Attributes:
        array: name.
        axis: of that array.
        repeat: consecutive places of the axis that one channel owns; height times width behind a flattened feature map.
    """

    array: str
    axis: int
    repeat: int = 1


class ChannelGroup(NamedTuple):
    """Channels that can only be renumbered together: one layer's, or those of all layers that add to one residual stream.

    Attributes:
        name: unique among a network's groups.
        size: number of channels.
        produced: output axes: of convolutions' weights, biases, and weights and biases of norms.
        consumed: input axes of the layers that read the channels.
        blocks: groups of a GroupNorm, of ``size / blocks`` consecutive channels each, that must be mapped onto groups; 1 where
            every permutation is a symmetry.
    """

    name: str
    size: int
    produced: tuple[GroupMember, ...]
    consumed: tuple[GroupMember, ...]
    blocks: int = 1
