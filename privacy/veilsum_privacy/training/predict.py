"""Scores and representations of records under a named model, each record by itself."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.mechanism.clipping import row_norms
from veilsum_privacy.mechanism.trees import margin_of
from veilsum_privacy.training import closed_form
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.models.discriminants import CENTRE, Discriminant
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.models.trees import BASE, FEATURES, LEAVES, THRESHOLDS, Trees

if TYPE_CHECKING:
    from veilsum_privacy.training.models.networks import Network


def clipped_about(rows: Floats, centre: Floats, clip: float) -> Floats:
    """Rows (b, d) less ``centre`` (d,), scaled down to an L2 norm of ``clip``; each by itself, as :func:`.row_norms` is."""
    moved = rows - centre
    clipped: Floats = moved * (clip / np.maximum(row_norms(moved), clip))[:, None]
    return clipped


def scores(architecture: Architecture, arrays: Mapping[str, Floats], x: Floats) -> Floats:
    """Scores (n, K) of features (n, width); a record that is not finite gets NaN.

    Perceptrons, discriminants and trees are computed row by row exactly. Other networks run in batches of one padded size, on
    one thread and in the architecture's precision, so that scores do not depend on other records; checked by :mod:`.places`.

    Raises:
        Misuse: features of another width.
    """
    return _through(architecture, arrays, x, representation=False)


def representations(architecture: Architecture, arrays: Mapping[str, Floats], x: Floats) -> Floats:
    """What the head is given, (n, H); otherwise as :func:`scores`."""
    return _through(architecture, arrays, x, representation=True)


def representer(architecture: Architecture, arrays: Mapping[str, Floats]) -> Callable[[Floats], Floats]:
    """:func:`representations` of finite features, whose network is made once."""
    if isinstance(architecture, Trees | Discriminant | Perceptron):
        return lambda x: representations(architecture, arrays, x)
    return network_map(architecture, arrays, representation=True)


def _through(architecture: Architecture, arrays: Mapping[str, Floats], x: Floats, *, representation: bool) -> Floats:
    if x.ndim != 2 or x.shape[1] != architecture.width:
        raise Misuse(f"The model takes {architecture.width} features; the records have the shape {x.shape}.")
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(x).all(axis=1))
    x = np.where(finite[:, None], x, 0.0)
    if isinstance(architecture, Trees):
        margin = tree_margin(arrays, x)
        found = margin if margin.ndim > 1 else margin[:, None]
        if architecture.classes == 2:
            found = np.column_stack([np.zeros(len(x)), margin])
    elif isinstance(architecture, Discriminant):
        x = clipped_about(x, arrays[CENTRE], architecture.options.clip)
        found = x if representation else closed_form.scores(architecture.linear, arrays, x)
    elif isinstance(architecture, Perceptron):
        found = (closed_form.representations if representation else closed_form.scores)(architecture, arrays, x)
    else:
        found = network_map(architecture, arrays, representation=representation)(x)
    found[~finite] = np.nan
    return found


def network_map(
    architecture: Architecture, arrays: Mapping[str, Floats], *, representation: bool = False
) -> Callable[[Floats], Floats]:
    """What a network makes of finite features (n, width): scores (n, K), or representations (n, H). It is made when used."""
    made: list[Network] = []

    def compute(x: Floats) -> Floats:
        import torch

        from veilsum_privacy.training.arrays import put
        from veilsum_privacy.training.batches import array, compute_module, one_thread, padded, tensor
        from veilsum_privacy.training.places import records_at_once

        if not made:
            made.append(compute_module(architecture))
            put(made[0], arrays)
        module = made[0]
        module.settle()
        width = architecture.shapes()["head.weight"][1] if representation else architecture.classes
        found = np.zeros((len(x), width))
        with one_thread(), torch.inference_mode():
            for place, rows, _ in padded(x, np.zeros(len(x), dtype=np.int64), records_at_once(architecture)):
                given = tensor(rows, module)
                outputs = module.features(given) if representation else module(given)
                found[place] = array(outputs[: place.stop - place.start])
        return found

    return compute


def tree_margin(arrays: Mapping[str, Floats], x: Floats) -> Floats:
    """The base plus each tree's leaf, tree by tree in float32, for records (n, d): (n,), or (n, C) where leaves have a value a
    class. Trees without a leaf other than 0 are passed over.

    Raises:
        HostileInput: a feature that there is not, a threshold that is not finite, or a leaf beyond float32.
    """
    named = _named(arrays[FEATURES], arrays[THRESHOLDS], x.shape[1])
    with np.errstate(over="ignore"):
        values, base = arrays[LEAVES].astype(np.float32), arrays[BASE].astype(np.float32)
    if not (np.isfinite(values).all() and np.isfinite(base).all()):
        raise HostileInput("A leaf of the trees does not fit a float32.")
    total = margin_of(x, named, arrays[THRESHOLDS], values.reshape(*values.shape[:2], -1), base)
    return total if values.ndim > 2 else total[:, 0]


def _named(features: Floats, thresholds: Floats, width: int) -> Integers:
    named: Integers = np.rint(features).astype(np.int64)
    if (named != features).any() or (named < 0).any() or (named >= width).any() or not np.isfinite(thresholds).all():
        raise HostileInput(f"The trees split features that the records, which have {width}, do not have.")
    return named
