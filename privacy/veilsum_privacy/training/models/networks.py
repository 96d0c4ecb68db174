"""Building blocks of the networks, in torch, and what no network may contain."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from veilsum_node.errors import Misuse
from veilsum_privacy.training import weights


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

    def settle(self) -> None:
        """Take the values of what is not trained, before records go through it; a network that is trained whole has none.

        Raises:
            ConfigurationError: as :func:`veilsum_privacy.training.weights.frozen`.
        """


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


class Adapter(nn.Module):
    """A layer that is not trained beside a trained product of low rank: layer(x) + scale B A x."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base_layer, self.scale = layer, scale
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base_layer(x) + self.scale * self.lora_B(self.lora_A(x))
        return found


class Adapted(Network):
    """A network of which adapters of some Linear layers and the head are trained.

    What is frozen is plain tensors of its layers and no parameter: nobody takes a gradient of it, and nothing sends it. It
    begins with the network's own values, which stand for those that :meth:`settle` takes out of a file.
    """

    def __init__(
        self, network: Network, layers: tuple[str, ...], rank: int, scale: float, sha256: str,
        frozen: Mapping[str, tuple[str, tuple[int, ...]]],
    ) -> None:  # fmt: skip
        """See the class.

        Args:
            layers: Linear layers that get an adapter, by name.
            rank, scale: of the adapters.
            sha256: of the file of the frozen values.
            frozen: what is not trained: what the file calls each of the network's arrays, and its shape.

        Raises:
            Misuse: one of the layers is no Linear layer.
        """
        super().__init__(network.features, network.head)
        self._sha256, self._frozen, self._held = sha256, dict(frozen), ""
        self._places: dict[str, tuple[nn.Module, str]] = {}
        for name in frozen:
            layer, _, own = name.rpartition(".")
            module = network.get_submodule(layer)
            self._places[name] = module, own
            module.__dict__[own] = module._parameters.pop(own).detach().clone()  # type: ignore[union-attr]
        self._made_up = {name: self._values(name) for name in frozen}
        for name in layers:
            above, _, own = name.rpartition(".")
            layer_module = network.get_submodule(name)
            if not isinstance(layer_module, nn.Linear):
                raise Misuse(f"The layer {name!r} is a {type(layer_module).__name__}, which gets no adapter.", "Leave it out.")
            setattr(network.get_submodule(above), own, Adapter(layer_module, rank, scale))

    def _values(self, name: str) -> torch.Tensor:
        module, own = self._places[name]
        found: torch.Tensor = module.__dict__[own]
        return found

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "Adapted":
        """Whatever moves the parameters to another device or type moves what is frozen too."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, (module, own) in self._places.items():
            module.__dict__[own] = fn(self._values(name))
        return self

    def settle(self) -> None:
        wanted = "" if weights.are_made_up() else self._sha256
        if wanted == self._held:
            return
        shapes = dict(self._frozen.values())
        found = weights.frozen(wanted, shapes) if wanted else {}
        for name, (module, own) in self._places.items():
            values = self._made_up[name] if not wanted else found[self._frozen[name][0]]
            module.__dict__[own] = values.to(self._values(name), copy=True)
        self._held = wanted


class LastWord(nn.Module):
    """What a transformer's block makes of the first of its words (B, words, width): (B, width), as :class:`.Block` has it."""

    def __init__(
        self, words: int, width: int, heads: int, hidden: int, activation: str = "relu", epsilon: float = 1e-5
    ) -> None:
        super().__init__()
        self.shape, self.heads = (words, width), heads
        self.bend = nn.GELU() if activation == "gelu" else relu()
        # A bias of keys adds the same to every word's fit: it would be noise alone.
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width, False), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, epsilon), nn.LayerNorm(width, epsilon)

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
        made: torch.Tensor = self.norm2(seen + self.second(self.bend(self.first(seen))))
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
    if list(found.items()) != list(shapes.items()):
        odd = sorted(name for name in {*found, *shapes} if found.get(name) != shapes.get(name))
        told = ", ".join(odd[:5]) or f"they come as {', '.join(list(found)[:5])}"  # gradients are told by their order
        raise Misuse(f"The network's parameters are not as declared: {told}.")


_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
