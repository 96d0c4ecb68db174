"""Per-record gradients of any network and any loss, by Opacus.

Opacus gives a gradient for every record where autograd gives their sum. It does so in hooks on the layers, with a formula for
each common kind of layer and ``vmap`` for others. Two modes:

- ``hooks``: every record's gradient is formed.
- ``ghost``: for a Linear layer that a record goes through once, only the factors of its gradient are kept, which give norm and
  sum as well. Other layers as in ``hooks``.

Opacus' own ghost clipping runs a second backward pass on weighted losses instead. That adds up inside of the layers, in their
precision, where no bound on rounding can be stated, and one gradient that is not finite spoils the whole batch; so it is not
used. Neither are its clipping and its noise.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.grad_sample import GradSampleModule
from torch import nn

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse
from veilsum_privacy.mechanism.factors import Entries, Outer
from veilsum_privacy.training.batches import array, one_thread, padded, physical_batch, precision, tensor

Mode = Literal["ghost", "hooks"]
LossOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Features (B, width) and labels (B,) int64 to losses (B,), each of its own record alone."""


class Rows(NamedTuple):
    """Gradients by one array: ``values`` (b, size), float32 or float64."""

    name: str
    values: NDArray[np.floating]

    def total(self) -> dict[str, Floats]:
        """The sum over the records, by array."""
        return {self.name: self.values.sum(axis=0, dtype=np.float64)}


class Factors(NamedTuple):
    """Gradients of a Linear layer: delta a^T by ``weight``, and delta by ``bias`` where it has one.

    Attributes:
        delta: (b, outputs), gradient by the layer's outputs.
        entering: (b, inputs), what the layer was given.
    """

    weight: str
    bias: str | None
    delta: Floats
    entering: Floats

    def total(self) -> dict[str, Floats]:
        """The sum over the records, by array."""
        found = {self.weight: (self.delta.T @ self.entering).ravel()}
        if self.bias is not None:
            found[self.bias] = self.delta.sum(axis=0)
        return found

    def each(self) -> dict[str, Floats]:
        """Every record's gradient (b, size), by array."""
        found = {self.weight: (self.delta[:, :, None] * self.entering[:, None, :]).reshape(len(self.delta), -1)}
        if self.bias is not None:
            found[self.bias] = self.delta
        return found


Part = Rows | Factors

ROUNDING = 1e3
"""Units of rounding of the largest gradient up to which one by another parameter may be rounding alone."""


class PerRecordGradients:
    """Factors of a network's per-record gradients.

    The network is computed in the precision of its parameters, on one thread, in batches of one fixed size. Loading other
    values into the network's parameters is allowed at any time, replacing parameters is not.

    One engine serves one thread at a time. The first call checks the engine and the loss on public random inputs: see
    :meth:`check`.
    """

    def __init__(self, module: nn.Module, mode: Mode | None = None, physical: int | None = None) -> None:
        """Attach to a network.

        Args:
            module: in training mode; as :func:`.models.networks.check` demands.
            mode: None for :func:`choose_mode`.
            physical: records that go through the network at once, public; None for a size that fits a fixed memory.
        """
        self.module = module
        self.mode: Mode = choose_mode(module) if mode is None else mode
        self.physical = physical_batch(formed_values(module, self.mode)) if physical is None else physical
        if self.physical < 1:
            raise Misuse("A physical batch holds one record or more.")
        self.shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._hooks: _Hooks | None = _Hooks(module, self.mode)
        self._checked = False
        self._terms: tuple[Outer | Entries, ...] = ()

    def close(self) -> None:
        """Detach from the network."""
        if self._hooks is not None:
            self._hooks.cleanup()
            self._hooks = None

    def terms(self, loss_of: LossOf, width: tuple[int, ...]) -> tuple[Outer | Entries, ...]:
        """What the factors of a record's gradient are, in the order of the network's parameters; tried first: :meth:`check`.

        Args:
            loss_of: calls ``self.module``; a record's loss must not look at other records.
            width: shape of one record.

        Raises:
            Misuse: as :meth:`check`.
        """
        if not self._checked:
            self.check(loss_of, width)
        return self._terms

    def factors(self, loss_of: LossOf, x: Floats, labels: Integers) -> NDArray[np.floating]:
        """Factors (n, given) of the gradients of records (n, ...) with labels (n,), as the terms have them; as precise as the
        network, since they are long.

        Raises:
            Misuse: the loss has another shape than (B,), or its gradient is made of other factors than when it was tried.
        """
        self.terms(loss_of, x.shape[1:])
        kind = np.float32 if precision(self.module) == torch.float32 else np.float64
        found = np.empty((len(x), sum(term.given for term in self._terms)), dtype=kind)
        for place, rows, names in padded(x, labels, self.physical):
            arrays, terms = self._in_order(self._parts(loss_of, rows, names))
            if terms != self._terms:
                raise Misuse("The gradients are made of other factors than when the network was tried.")
            start, mine = 0, found[place]
            for one, width in arrays:
                mine[:, start : start + width] = 0.0 if one is None else one if isinstance(one, float) else one[: len(mine)]
                start += width
        return found

    def _in_order(
        self, parts: list[Part]
    ) -> tuple[list[tuple[NDArray[np.floating] | float | None, int]], tuple[Outer | Entries, ...]]:
        """The parts one after another, each with its values a record, and what they are; None of a parameter without one."""
        named = {part.weight if isinstance(part, Factors) else part.name: part for part in parts}
        biases = {part.bias: part.weight for part in parts if isinstance(part, Factors) and part.bias is not None}
        arrays: list[tuple[NDArray[np.floating] | float | None, int]] = []
        terms: list[Outer | Entries] = []
        before = ""
        for name, shape in self.shapes.items():
            part = named.get(name)
            if name in biases:
                if biases[name] != before:
                    raise Misuse(f"The bias {name!r} does not come after its weight.")
            elif isinstance(part, Factors):
                arrays += [(each, each.shape[1]) for each in (part.delta, part.entering)]
                arrays += [(1.0, 1)] * (part.bias is not None)
                right = part.entering.shape[1] + (part.bias is not None)
                terms.append(Outer(part.delta.shape[1], right, bias=part.bias is not None))
            else:
                size = math.prod(shape)
                arrays.append((None if part is None else part.values, size))
                terms.append(Entries(size))
            before = name
        return arrays, tuple(terms)

    def check(self, loss_of: LossOf, width: tuple[int, ...]) -> None:
        """Try engine and loss on random inputs and random values of the network; no record is looked at.

        The values that a broadcast brought could hide what is looked for: with a head of zeros no gradient reaches the layers
        before it, and beyond all numbers everything is equally NaN. They are put back afterwards.

        A record's gradient must be the same, to the last bit, at every place of a batch and with any company. Where it is not,
        because this machine's products depend on the place, records go through the network one at a time from now on. And the
        gradients must add up to what autograd gives for the sum of losses.

        Args:
            width: shape of one record.

        Raises:
            Misuse: a gradient depends on other records by more than rounding or is rounding alone, or part of it escapes the
                layers.
        """
        rng = np.random.default_rng(0)
        parameters = list(self.module.parameters())
        before = [parameter.detach().clone() for parameter in parameters]
        try:
            with torch.no_grad():
                for parameter in parameters:
                    size = max(1, parameter[0].numel()) if parameter.dim() > 1 else 1
                    values = rng.standard_normal(tuple(parameter.shape)) / math.sqrt(size)
                    parameter.copy_(torch.from_numpy(np.asarray(values)))
            self._try(loss_of, width, rng)
        finally:
            with torch.no_grad():
                for parameter, values_before in zip(parameters, before, strict=True):
                    parameter.copy_(values_before)
        self._checked = True

    def _try(self, loss_of: LossOf, width: tuple[int, ...], rng: np.random.Generator) -> None:
        """:meth:`check` with the network's present values."""
        x = rng.standard_normal((self.physical, *width))
        labels = rng.integers(2, size=self.physical)
        parts = self._parts(loss_of, x, labels)
        _, self._terms = self._in_order(parts)
        self._compare_sum(loss_of, x, labels, parts)
        order = rng.permutation(self.physical)
        others = x[order].copy()
        strange = rng.random(self.physical) < 0.5
        others[strange] = 10.0 * rng.standard_normal((int(strange.sum()), *width))
        moved = self._parts(loss_of, others, labels[order])
        same, scale = True, max((_largest(part) for part in parts), default=0.0)
        for before, after in zip(parts, moved, strict=True):
            for one, other in zip(_arrays(before), _arrays(after), strict=True):
                mine, its = one[order][~strange], other[~strange]
                same &= np.array_equal(mine, its, equal_nan=True)
                if not np.allclose(mine, its, rtol=1e-2, atol=1e-3 * float(np.abs(mine).max(initial=0.0)), equal_nan=True):
                    name = before.weight if isinstance(before, Factors) else before.name
                    if _largest(before) <= ROUNDING * np.finfo(one.dtype).eps * scale:
                        raise Misuse(
                            f"The gradient by {name!r} is rounding alone: the loss does not depend on it.",
                            "Leave it out of the network. A bias of attention's keys is such: nn.Linear(..., bias=False).",
                        )
                    raise Misuse(
                        f"A record's gradient by {name!r} depends on the other records of its batch.",
                        "Use layers and losses that treat each record by itself: GroupNorm in place of batch norms.",
                    )
        if not same:
            self.physical = 1

    def _compare_sum(self, loss_of: LossOf, x: Floats, labels: Integers, parts: list[Part]) -> None:
        """Insist that per-record gradients add up to autograd's."""
        found = {name: values for part in parts for name, values in part.total().items()}
        with one_thread(), self._attached().paused():
            given, names = self._tensors(x, labels)
            parameters = dict(self.module.named_parameters())
            total = loss_of(given, names).sum()
            expected = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
        tolerance = 1e-2 if precision(self.module) == torch.float32 else 1e-6
        for name, gradient in zip(parameters, expected, strict=True):
            truth = np.zeros(1) if gradient is None else array(gradient).ravel()
            mine = found.get(name, np.zeros(1))
            scale = max(float(np.abs(truth).max()), 1e-3)
            if not np.allclose(mine, truth, rtol=0.0, atol=tolerance * scale * len(x), equal_nan=True):
                raise Misuse(
                    f"The gradient by {name!r} does not come from the network's layers alone.",
                    "A loss may use parameters only by calling the network; penalties on parameters are added after clipping.",
                )

    def _tensors(self, x: Floats, labels: Integers) -> tuple[torch.Tensor, torch.Tensor]:
        return tensor(x, self.module).requires_grad_(), tensor(labels, self.module, torch.int64)

    def _parts(self, loss_of: LossOf, x: Floats, labels: Integers) -> list[Part]:
        """Gradients of one physical batch."""
        hooks = self._attached()
        try:
            with one_thread():
                given, names = self._tensors(x, labels)
                losses = loss_of(given, names)
                if losses.shape != (len(x),):
                    raise Misuse(
                        f"The loss has the shape {tuple(losses.shape)} for {len(x)} records.",
                        "A loss must give one number for each record: shape (B,), neither (B, 1) nor a mean.",
                    )
                if losses.requires_grad:
                    torch.autograd.grad(losses.sum(), given, allow_unused=True)  # of inputs only: no sums by parameter
            return list(hooks.collect(self._names))
        finally:
            hooks.clear()

    def _attached(self) -> "_Hooks":
        if self._hooks is None:
            raise Misuse("This engine was closed.")
        return self._hooks


class _Hooks(GradSampleModule):  # type: ignore[misc]  # Opacus has no types
    """Opacus' hooks, which leave the factors of a Linear layer's gradients as they are in mode ``ghost``."""

    def __init__(self, module: nn.Module, mode: Mode) -> None:
        super().__init__(module, loss_reduction="sum", strict=True)
        self._ghost = mode == "ghost"
        self._own: tuple[list[Any], list[nn.Module]] = list(module.parameters()), list(module.modules())
        self._factors: dict[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def capture_backprops_hook(
        self, module: nn.Module, _forward_input: Any, forward_output: Any, loss_reduction: str, batch_first: bool
    ) -> None:
        if not (self.hooks_enabled and self._ghost and type(module) is nn.Linear and forward_output[0].dim() == 2):
            super().capture_backprops_hook(module, _forward_input, forward_output, loss_reduction, batch_first)
            return
        activations, delta = self.rearrange_grad_samples(
            module=module, backprops=forward_output[0].detach(), loss_reduction=loss_reduction, batch_first=batch_first
        )
        self._factors.setdefault(module, []).append((activations[0], delta))

    def collect(self, names: dict[int, str]) -> Iterator[Part]:
        """The gradients of the last pass; none for layers that it did not reach."""
        for layer, pairs in self._factors.items():
            weight, bias = names[id(layer.weight)], None if layer.bias is None else names[id(layer.bias)]
            made = [Factors(weight, bias, array(delta), array(entering)) for entering, delta in pairs]
            if len(made) == 1:
                yield made[0]
                continue
            for name in made[0].each():  # the layer was used more than once: its gradient has no two factors
                yield Rows(name, sum((one.each()[name] for one in made[1:]), start=made[0].each()[name]))
        for parameter in self._own[0]:
            if (gradient := parameter.grad_sample) is not None:
                yield Rows(names[id(parameter)], gradient.detach().reshape(len(gradient), -1).cpu().numpy())

    def clear(self) -> None:
        """Forget the last pass, whole or not."""
        self._factors.clear()
        parameters, layers = self._own
        for parameter in parameters:
            parameter.grad_sample = None
            parameter._forward_counter = 0
            if hasattr(parameter, "_current_grad_sample"):
                del parameter._current_grad_sample
        for layer in layers:
            for left in ("activations", "max_batch_len"):
                if hasattr(layer, left):
                    delattr(layer, left)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hooks do nothing inside."""
        self.disable_hooks()
        try:
            yield
        finally:
            self.enable_hooks()


def choose_mode(module: nn.Module) -> Mode:
    """``ghost`` if the network has a Linear layer, else ``hooks``.

    Factors of m inputs and k outputs replace m k values a record, so they never cost more, and most where such layers hold
    most of the values: a head 512-100 is ten times faster with them, LeNet-5 one and a half times, ResNet-18 hardly. A
    convolution is not kept as factors: they would be as many as its places, and a norm taken from them loses digits where
    places cancel.
    """
    return "ghost" if any(type(layer) is nn.Linear for layer in module.modules()) else "hooks"


def formed_values(module: nn.Module, mode: Mode) -> int:
    """Values of a record's gradient that are formed in this mode."""
    formed = 0
    for layer in module.modules():
        if not (mode == "ghost" and type(layer) is nn.Linear):
            formed += sum(parameter.numel() for parameter in layer.parameters(recurse=False))
    return formed


def _largest(part: Part) -> float:
    return math.prod(float(np.abs(one).max(initial=0.0)) for one in _arrays(part))


def _arrays(part: Part) -> tuple[NDArray[np.floating], ...]:
    return (part.values,) if isinstance(part, Rows) else (part.delta, part.entering)
