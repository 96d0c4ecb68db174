"""The gradient of a named model by one record, as the kernel takes it: factors of it, in a graph or by an opaque map.

Perceptrons are graphs, under cross-entropy and losses of outcomes; other models, and losses of networks, are opaque maps that
go through Opacus. Nothing here clips, adds up, draws noise or samples records. torch and Opacus are imported where a network
is used: they take seconds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.mechanism.factors import Term
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.mechanism.rows.symbols import Symbol, joined, opaque, real
from veilsum_privacy.training.arrays import load
from veilsum_privacy.training.batches import compute_module, computed_as
from veilsum_privacy.training.losses import OutcomeLoss
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.objectives.base import RecordLoss
from veilsum_privacy.training.traced import NETWORK, cross_entropy_by_scores, gradient_terms, traced_gradient

if TYPE_CHECKING:
    from torch import Tensor, nn

    from veilsum_privacy.training.models.networks import Network
    from veilsum_privacy.training.per_record import LossOf, PerRecordGradients


_KEPT = 4  # engines kept by each thread


class ModelGradient:
    """The gradient of a loss of a model, as factors of one record.

    A network's engine is made, and tried on public random inputs, where its terms are asked for; it serves one thread.
    """

    def __init__(
        self, architecture: Architecture, *, outcome: OutcomeLoss | None = None, loss: RecordLoss | None = None
    ) -> None:
        """See the class.

        Args:
            outcome: the loss of a perceptron of outcomes; None for classes.
            loss: of classes by a network; None for cross-entropy.
        """
        self._architecture, self._outcome, self._loss = architecture, outcome, loss
        self._own: PerRecordGradients | None = None

    @property
    def graph(self) -> Perceptron | None:
        """The model whose gradient is a graph; None where it is an opaque map."""
        return self._architecture if isinstance(self._architecture, Perceptron) and self._loss is None else None

    @property
    def terms(self) -> tuple[Term, ...]:
        """What the factors are."""
        if self.graph is not None:
            return gradient_terms(self.graph)
        return self._engine.terms(self._loss_of, (self._architecture.width,))

    def row(self, arrays: Mapping[str, Floats], x: Symbol, target: Symbol) -> Symbol:
        """Factors of a record of finite features (width,) with a label () of a class, or the outcome (t,) of its loss."""
        if self.graph is None:
            return opaque(NETWORK, joined(x, real(target)), sum(term.given for term in self.terms))
        outcome = self._outcome
        if outcome is not None:
            return traced_gradient(self.graph, arrays, x, lambda z: outcome.gradient(z, target))
        return traced_gradient(self.graph, arrays, x, lambda z: cross_entropy_by_scores(z, target))

    def maps(self, arrays: Mapping[str, Floats]) -> dict[str, OpaqueMap]:
        """The opaque maps of the row; none where it is a graph."""
        if self.graph is not None:
            return {}

        def factors(given: Floats) -> NDArray[np.floating]:
            load(self._engine.module, arrays)
            return self._engine.factors(self._loss_of, given[:, :-1], given[:, -1].astype("int64"))

        return {NETWORK: factors}

    @property
    def _engine(self) -> PerRecordGradients:
        if self._loss is None:
            return engine(self._architecture)
        if self._own is None:
            from veilsum_privacy.training.per_record import PerRecordGradients

            self._own = PerRecordGradients(compute_module(self._architecture))
        return self._own

    @property
    def _loss_of(self) -> LossOf:
        loss, module = self._loss or cross_entropy, cast("Network", self._engine.module)
        return lambda features, names: loss(module, features, names)


def cross_entropy(module: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each record, (B,)."""
    from torch.nn import functional

    return functional.cross_entropy(module(x), labels, reduction="none")


def engine(architecture: Architecture) -> PerRecordGradients:
    """This thread's engine for cross-entropy of this architecture; made and checked once, then kept with the last few."""
    from veilsum_privacy.training.per_record import PerRecordGradients

    kept: OrderedDict[object, PerRecordGradients] = _LOCAL.__dict__.setdefault("engines", OrderedDict())
    key = computed_as(architecture)
    found = kept.pop(key, None)
    if found is None:
        found = PerRecordGradients(compute_module(architecture))
    kept[key] = found
    if len(kept) > _KEPT:
        kept.popitem(last=False)
    return found


_LOCAL = threading.local()
