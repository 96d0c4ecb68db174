"""What the Linear layers of a named model are given by records, each record by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_privacy.mechanism.exact import exact_affine
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.models.perceptrons import Perceptron

if TYPE_CHECKING:
    from torch import Tensor


BATCH = 64
"""Records that go through a network at once; public."""


class LayerInputs(NamedTuple):
    """Inputs of some records.

    Attributes:
        place: which records these are.
        inputs: by layer, (b, m): what the layer's weights are multiplied by, and last what its bias is multiplied by.
    """

    place: slice
    inputs: dict[str, Floats]


def constants(architecture: Architecture) -> dict[str, float]:
    """By Linear layer, what its bias is multiplied by."""
    if isinstance(architecture, Perceptron):
        return {layer.weight.removesuffix(".weight"): layer.constant for layer in architecture.layers()}
    return dict.fromkeys(architecture.linear_layers(), 1.0)


def layer_inputs(
    architecture: Architecture, arrays: Mapping[str, Floats], x: Floats, layers: Sequence[str]
) -> Iterator[LayerInputs]:
    """Inputs of these layers by features (n, width), in batches of 64 records at most, in order.

    Perceptrons are computed row by row exactly. Other networks run in batches of one padded size, on one thread and in the
    architecture's precision, so that a record's inputs do not depend on others (checked by :mod:`.places`). A record
    that is not finite enters as zeros.

    Raises:
        Misuse: features of another width, or a layer that the network has not, or uses more than once.
    """
    if x.ndim != 2 or x.shape[1] != architecture.width:
        raise Misuse(f"The model takes {architecture.width} features; the records have the shape {x.shape}.")
    known = constants(architecture)
    if odd := [layer for layer in layers if layer not in known]:
        raise Misuse(f"The model has no Linear layer {odd[0]!r}.", f"It has {', '.join(known)}.")
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(x).all(axis=1))
    x = np.where(finite[:, None], x, 0.0)
    if isinstance(architecture, Perceptron):
        found = _by_layers(architecture, arrays, x, layers)
    else:
        found = _by_network(architecture, arrays, x, layers)
    for place, given in found:
        inputs = {name: np.column_stack([values, np.full(len(values), known[name])]) for name, values in given.items()}
        yield LayerInputs(place, inputs)


def _by_layers(
    architecture: Perceptron, arrays: Mapping[str, Floats], x: Floats, layers: Sequence[str]
) -> Iterator[tuple[slice, dict[str, Floats]]]:
    for start in range(0, len(x), BATCH):
        place = slice(start, min(start + BATCH, len(x)))
        entering, given = np.ascontiguousarray(x[place]) * architecture.scale, dict[str, Floats]()
        for index, layer in enumerate(architecture.layers()):
            if index:
                entering = np.maximum(entering, 0.0)
            given[layer.weight.removesuffix(".weight")] = entering
            with np.errstate(over="ignore"):
                entering = exact_affine(entering, arrays[layer.weight], layer.constant * arrays[layer.bias])
        yield place, {name: given[name] for name in layers}


def _by_network(
    architecture: Architecture, arrays: Mapping[str, Floats], x: Floats, layers: Sequence[str]
) -> Iterator[tuple[slice, dict[str, Floats]]]:
    import torch

    from veilsum_privacy.training.arrays import load
    from veilsum_privacy.training.batches import array, compute_module, one_thread, padded, tensor
    from veilsum_privacy.training.places import records_at_once

    module = compute_module(architecture)
    load(module, arrays)
    seen: dict[str, list[Tensor]] = {name: [] for name in layers}
    for name in layers:
        module.get_submodule(name).register_forward_pre_hook(_noting(seen[name]))
    size = records_at_once(architecture)
    for place, rows, _ in padded(x, np.zeros(len(x), dtype=np.int64), size):
        with one_thread(), torch.inference_mode():
            module(tensor(rows, module))
        given: dict[str, Floats] = {}
        for name, noted in seen.items():
            if len(noted) != 1 or noted[0].shape != (size, arrays[f"{name}.weight"].shape[1]):
                raise Misuse(f"The layer {name!r} does not take exactly one vector of each record.", "Leave it out.")
            given[name] = array(noted[0][: place.stop - place.start])
            noted.clear()
        yield place, given


def _noting(into: list[Tensor]) -> Callable[[Any, tuple[Any, ...]], None]:
    def note(_: Any, given: tuple[Any, ...]) -> None:
        into.append(given[0])

    return note
