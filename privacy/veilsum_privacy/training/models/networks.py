"""Building blocks of the networks, in torch, and what no network may contain."""

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from veilsum_node.errors import Misuse


class Network(nn.Module):
    """Scores (B, K) as ``head(features(x))``: ``features`` gives (B, H)."""

    features: nn.Module
    head: nn.Module

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.features(x))
        return scores


class Scale(nn.Module):
    """Features (B, width), multiplied by a constant."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.width, self.scale = width, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, self.width) * self.scale


class Reshape(nn.Module):
    """(B, ...) to (B, *shape)."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(len(x), *self.shape)


class ScaledBias(nn.Linear):
    """A Linear layer whose bias is multiplied by a constant."""

    def __init__(self, inputs: int, outputs: int, constant: float) -> None:
        super().__init__(inputs, outputs)
        self.constant = constant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.constant * self.bias)


class Residual(nn.Module):
    """Two normalised convolutions beside a shortcut, added and rectified (a basic block of a residual network)."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = conv3(inputs, outputs, stride)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = conv3(outputs, outputs)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.straight = stride == 1 and inputs == outputs
        if not self.straight:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut_norm = nn.GroupNorm(groups, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norm1(self.conv1(x)))
        beside = x if self.straight else self.shortcut_norm(self.shortcut(x))
        return torch.relu(self.norm2(self.conv2(inner)) + beside)


class LastWord(nn.Module):
    """What a transformer's block makes of the first of its words (B, words, width): (B, width), as :class:`.Block` has it."""

    def __init__(self, words: int, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.shape, self.heads = (words, width), heads
        # A bias of keys adds the same to every word's fit: it would be noise alone.
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width, False), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = x.reshape(len(x), *self.shape)
        parts = self.shape[1] // self.heads
        query = self.query(words[:, 0]).reshape(len(x), self.heads, 1, parts)
        key, value = (layer(words).reshape(len(x), -1, self.heads, parts).transpose(1, 2) for layer in (self.key, self.value))
        there = (words != 0.0).any(dim=2)
        fit = (query * key).sum(dim=3) / parts**0.5
        share = torch.softmax(fit.masked_fill(~there[:, None], NOWHERE), dim=2)
        told = (share[..., None] * value).sum(dim=2).reshape(len(x), -1)
        seen = self.norm1(words[:, 0] + self.out(told))
        made: torch.Tensor = self.norm2(seen + self.second(torch.relu(self.first(seen))))
        return made


NOWHERE = -1e30
"""Fit of a word that is not there; finite, so that a record without words has numbers."""


def conv3(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    """A convolution by 3 x 3 that keeps the size, without a bias: a norm follows."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def linear(inputs: int, outputs: int, constant: float = 1.0) -> nn.Module:
    """A Linear layer whose bias is multiplied by ``constant``."""
    return nn.Linear(inputs, outputs) if constant == 1.0 else ScaledBias(inputs, outputs, constant)


def relu() -> nn.Module:
    """A rectifier that leaves its input as it is; per-record gradients need that."""
    return nn.ReLU(inplace=False)


def named(**layers: nn.Module) -> nn.Sequential:
    """Layers in turn, each under its name."""
    return nn.Sequential(OrderedDict(layers))


def check(module: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Insist on a network in which every record has a gradient of its own, with parameters as declared.

    Raises:
        Misuse: batch norms, running statistics or other buffers, dropout, a parameter used twice, frozen parameters, no
            children ``features`` and ``head``, or other names or shapes.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _NormBase) and (layer.track_running_stats or not isinstance(layer, _INSTANCE_NORMS)):
            raise Misuse(
                f"The layer {name!r} is a {type(layer).__name__}: it normalises by other records, or keeps sums over them.",
                "Use GroupNorm, which normalises each record by itself.",
            )
        if isinstance(layer, _DropoutNd):
            raise Misuse(f"The layer {name!r} drops values at random, from torch's own generator.", "Leave dropout out.")
    if buffers := [name for name, _ in module.named_buffers()]:
        raise Misuse(
            f"The network has buffers: {', '.join(buffers[:5])}. They would be neither clipped, noised nor sent.",
            "Use GroupNorm in place of norms with running statistics; make constants plain numbers.",
        )
    parameters = dict(module.named_parameters(remove_duplicate=False))
    if len({id(parameter) for parameter in parameters.values()}) != len(parameters):
        raise Misuse("The network uses one parameter under two names.", "Give each layer parameters of its own.")
    if frozen := [name for name, parameter in parameters.items() if not parameter.requires_grad]:
        raise Misuse(f"The network has frozen parameters: {', '.join(frozen[:5])}.", "Put frozen layers into the encoder.")
    if not isinstance(module, Network):
        raise Misuse("A model's network must be a Network of features and head.")
    found = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    if found != dict(shapes):
        odd = sorted(name for name in {*found, *shapes} if found.get(name) != shapes.get(name))
        raise Misuse(f"The network's parameters are not as declared: {', '.join(odd[:5])}.")


_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
