"""How records go through a network: in batches of one public size, on one thread, so that none depends on the others.

A network's layers add up in an order that depends on the shape of a batch, and on the number of threads. With one shape and
one thread a record's result is the same whatever records share its batch; :mod:`.per_record` checks that where gradients are
taken. Rows that pad the last batch are zeros, and dropped. torch is imported where a network is used: sites that train
perceptrons never need it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_privacy.training import device

if TYPE_CHECKING:
    import torch
    from torch import nn

    from veilsum_privacy.training.models.base import Architecture
    from veilsum_privacy.training.models.networks import Network


LARGEST_BATCH = 64
_VALUES = 2**24  # of gradients by record that are held at once: 64 MiB in float32


def physical_batch(values: int) -> int:
    """Records that go through a network at once, where each of them holds so many values; public.

    A power of two: products of other sizes end in rows that some machines add up in another order.
    """
    return int(2 ** math.floor(math.log2(max(1, min(LARGEST_BATCH, _VALUES // max(values, 1))))))


def padded(x: Floats, labels: Integers, size: int) -> Iterator[tuple[slice, Floats, Integers]]:
    """Batches of exactly ``size`` records: their place in ``x``, features and labels, with zeros at the end of the last."""
    for start in range(0, len(x), size):
        place = slice(start, min(start + size, len(x)))
        missing = size - (place.stop - start)
        rows, names = x[place], labels[place]
        if missing:
            rows = np.concatenate([rows, np.zeros((missing, *x.shape[1:]))])
            names = np.concatenate([names, np.zeros(missing, dtype=np.int64)])
        yield place, rows, names


def computed_as(architecture: Architecture) -> tuple[object, ...]:
    """What decides how a network is computed here: the device and the architecture; what is found of one is kept by this."""
    options = architecture.options.model_dump_json()
    return device.chosen(), type(architecture), options, architecture.inputs, architecture.width, architecture.classes


def compute_module(architecture: Architecture) -> Network:
    """A new network in the precision that the architecture is computed in, on the device that was chosen."""
    import torch

    kind = torch.float32 if architecture.precision == "float32" else torch.float64
    return architecture.module().to(device=device.chosen(), dtype=kind)


def tensor(values: NDArray[Any], module: nn.Module, kind: torch.dtype | None = None) -> torch.Tensor:
    """A copy of an array where a network is, in the network's precision unless ``kind`` says otherwise."""
    import torch

    parameter = next(module.parameters())
    return torch.tensor(values, dtype=parameter.dtype if kind is None else kind, device=parameter.device)


def array(values: torch.Tensor) -> Floats:
    """A tensor's values in float64, wherever they were computed."""
    found: Floats = values.detach().cpu().double().numpy()
    return found


def precision(module: nn.Module) -> torch.dtype:
    """The type of a network's parameters."""
    return next(module.parameters()).dtype


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch work on one thread inside, and on as many as before afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
