"""What the Linear layers of a named model are given by records, each record by itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.mechanism.rows.symbols import Symbol, affine, joined, maximum, opaque
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.models.perceptrons import Perceptron

if TYPE_CHECKING:
    from torch import Tensor

    from veilsum_privacy.training.models.networks import Network


INPUTS = "inputs"
"""Name of the opaque map of networks."""


def constants(architecture: Architecture) -> dict[str, float]:
    """The constants that each Linear layer's bias is multiplied by."""
    if isinstance(architecture, Perceptron):
        return {layer.weight.removesuffix(".weight"): layer.constant for layer in architecture.layers()}
    return dict.fromkeys(architecture.linear_layers(), 1.0)


def traced_inputs(
    architecture: Architecture, arrays: Mapping[str, Floats], x: Symbol, layers: Sequence[str]
) -> tuple[Symbol, ...]:
    """What the weights of each of these layers are multiplied by, and last its bias, for finite features (width,).

    Raises:
        Misuse: a layer that the network has not.
    """
    known = constants(architecture)
    if odd := [layer for layer in layers if layer not in known]:
        raise Misuse(f"The model has no Linear layer {odd[0]!r}.", f"It has {', '.join(known)}.")
    if isinstance(architecture, Perceptron):
        given = _of_perceptron(architecture, arrays, x)
    else:
        sizes = [architecture.shapes()[f"{layer}.weight"][1] for layer in layers]
        ends = np.cumsum([0, *sizes]).tolist()
        whole = opaque(INPUTS, x, ends[-1])
        given = {name: whole[first:last] for name, first, last in zip(layers, ends, ends[1:], strict=False)}
    return tuple(joined(given[name], known[name]) for name in layers)


def _of_perceptron(architecture: Perceptron, arrays: Mapping[str, Floats], x: Symbol) -> dict[str, Symbol]:
    entering, given = x * architecture.scale, dict[str, Symbol]()
    for index, layer in enumerate(architecture.layers()):
        if index:
            entering = maximum(entering, 0.0)
        given[layer.weight.removesuffix(".weight")] = entering
        entering = affine(entering, arrays[layer.weight], layer.constant * arrays[layer.bias])
    return given


def opaque_inputs(architecture: Architecture, arrays: Mapping[str, Floats], layers: Sequence[str]) -> dict[str, OpaqueMap]:
    """The opaque maps of what layers are given; none of perceptrons.

    Networks run in batches of one size, on one thread and in the architecture's precision, so that a record's inputs do not
    depend on others (checked by :mod:`.places`). A layer that does not take exactly one vector of each record fails.
    """
    if isinstance(architecture, Perceptron):
        return {}
    made: list[Network] = []
    seen: dict[str, list[Tensor]] = {name: [] for name in layers}

    def compute(x: Floats) -> Floats:
        import torch

        from veilsum_privacy.training.arrays import put
        from veilsum_privacy.training.batches import array, compute_module, one_thread, padded, tensor
        from veilsum_privacy.training.places import records_at_once

        if not made:
            made.append(compute_module(architecture))
            put(made[0], arrays)
            for name in layers:
                made[0].get_submodule(name).register_forward_pre_hook(_noting(seen[name]))
        made[0].settle()
        size, found = records_at_once(architecture), []
        for place, rows, _ in padded(x, np.zeros(len(x), dtype=np.int64), size):
            for noted in seen.values():
                noted.clear()
            with one_thread(), torch.inference_mode():
                made[0](tensor(rows, made[0]))
            for name, noted in seen.items():
                if len(noted) != 1 or noted[0].shape != (size, arrays[f"{name}.weight"].shape[1]):
                    raise Misuse(f"The layer {name!r} does not take exactly one vector of each record.", "Leave it out.")
            found.append(np.concatenate([array(noted[0]) for noted in seen.values()], axis=1)[: place.stop - place.start])
        return np.concatenate(found)

    return {INPUTS: compute}


def _noting(into: "list[Tensor]") -> Callable[[Any, tuple[Any, ...]], None]:
    def note(_: Any, given: tuple[Any, ...]) -> None:
        into.append(given[0])

    return note
