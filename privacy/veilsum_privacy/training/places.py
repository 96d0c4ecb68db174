"""How many records may go through a network at once so that what comes of each depends on nothing but itself.

Products of some sizes are added up in another order at the end of a batch on some machines. Gradients are checked for it
where they are made (:mod:`.per_record`); here scores, representations and inputs of Linear layers are, once for each
architecture, on public random records and values. Where those of a record differ by a bit between two places, or two
companies, records go through one by one.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from veilsum_privacy.training.batches import array, compute_module, computed_as, one_thread, tensor
from veilsum_privacy.training.models.base import Architecture

if TYPE_CHECKING:
    from torch import Tensor, nn

BATCH = 64
"""Records that go through a network at once where they may; public."""

_found: dict[tuple[object, ...], int] = {}
"""What :func:`records_at_once` found for each device and architecture."""


def records_at_once(architecture: Architecture) -> int:
    """:data:`BATCH`, or 1 for a network whose outputs depend on a record's place or company on this machine."""
    key = computed_as(architecture)
    if key not in _found:
        _found[key] = BATCH if _independent(architecture) else 1
    return _found[key]


def _independent(architecture: Architecture) -> bool:
    import torch

    rng, module = np.random.default_rng(0), compute_module(architecture)
    with torch.no_grad():
        for parameter in module.parameters():  # a head of zeros would hide what is looked for
            size = max(1, parameter[0].numel()) if parameter.dim() > 1 else 1
            parameter.copy_(torch.from_numpy(np.asarray(rng.standard_normal(tuple(parameter.shape)) / math.sqrt(size))))
    x = rng.standard_normal((BATCH, architecture.width))
    order, strange = rng.permutation(BATCH), rng.random(BATCH) < 0.5
    others = x[order].copy()
    others[strange] = 10.0 * rng.standard_normal((int(strange.sum()), architecture.width))
    before, after = (_outputs(module, architecture.linear_layers(), rows) for rows in (x, others))
    return all(
        one.shape[:1] != (BATCH,) or np.array_equal(one[order][~strange], other[~strange], equal_nan=True)
        for one, other in zip(before, after, strict=True)
    )


def _outputs(module: "nn.Module", layers: tuple[str, ...], x: NDArray[np.float64]) -> list[NDArray[Any]]:
    """Scores, and what each of the layers is given, of records (B, width)."""
    import torch

    noted: list[Tensor] = []
    hooks = [
        module.get_submodule(name).register_forward_pre_hook(lambda _, given: noted.append(given[0].detach().clone()))
        for name in (*layers, "head")
    ]
    try:
        with one_thread(), torch.inference_mode():
            scores = module(tensor(x, module))
    finally:
        for hook in hooks:
            hook.remove()
    return [array(values) for values in (scores, *noted)]
