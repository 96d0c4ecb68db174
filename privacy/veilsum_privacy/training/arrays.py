"""A model's arrays: by name, in a broadcast, as one flat vector, and in a network."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse

if TYPE_CHECKING:
    from torch import nn

Value = TypeVar("Value")

MODEL = "model."
"""Names of a model's arrays in broadcasts, layouts and results begin with it."""


def to_broadcast(arrays: Mapping[str, Value]) -> dict[str, Value]:
    """The arrays, or their shapes, under the names that they have in a broadcast."""
    return {MODEL + name: array for name, array in arrays.items()}


def from_broadcast(broadcast: Mapping[str, Floats], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    """The model's arrays out of a broadcast, in the order of ``shapes``; other arrays of the broadcast are left alone.

    Raises:
        HostileInput: an array is missing, has another shape, or is not finite.
    """
    found: dict[str, Floats] = {}
    for name, shape in shapes.items():
        array = broadcast.get(MODEL + name)
        if array is None or array.shape != tuple(shape):
            raise HostileInput(f"The broadcast must hold {MODEL}{name} of shape {tuple(shape)}.")
        if not np.isfinite(array).all():
            raise HostileInput(f"The broadcast's {MODEL}{name} is not finite.")
        found[name] = np.asarray(array, dtype=np.float64)
    return found


def flatten(arrays: Mapping[str, Floats], shapes: Mapping[str, tuple[int, ...]]) -> Floats:
    """The arrays one after the other in the order of ``shapes``, each row by row, as (P,).

    Raises:
        Misuse: an array is missing or has another shape.
    """
    for name, shape in shapes.items():
        if name not in arrays or arrays[name].shape != tuple(shape):
            raise Misuse(f"The model's array {name!r} must have the shape {tuple(shape)}.")
    parts = [np.asarray(arrays[name], dtype=np.float64).ravel() for name in shapes]
    return np.concatenate(parts) if parts else np.zeros(0)


def unflatten(vector: Floats, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    """The inverse of :func:`flatten`; views of ``vector``.

    Raises:
        Misuse: a vector of another length.
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    if vector.shape != (sum(sizes),):
        raise Misuse(f"A model of {sum(sizes)} values does not fit a vector of shape {vector.shape}.")
    parts = np.split(vector, np.cumsum(sizes)[:-1]) if sizes else []
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def load(module: "nn.Module", arrays: Mapping[str, Floats]) -> None:
    """Copy arrays into a network's parameters, and have it take what of it is not trained.

    Raises:
        Misuse: an array is missing or has another shape.
        ConfigurationError: as :meth:`.models.networks.Network.settle`.
    """
    from veilsum_privacy.training.models.networks import Network

    put(module, arrays)
    if isinstance(module, Network):
        module.settle()


def put(module: "nn.Module", arrays: Mapping[str, Floats]) -> None:
    """:func:`load` of the parameters alone."""
    import torch

    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name not in arrays or arrays[name].shape != tuple(parameter.shape):
                raise Misuse(f"The network's parameter {name!r} needs an array of shape {tuple(parameter.shape)}.")
            parameter.copy_(torch.from_numpy(np.array(arrays[name])))  # a copy: a broadcast may be read-only
