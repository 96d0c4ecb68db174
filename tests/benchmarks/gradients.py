"""Sums of clipped per-record gradients against plain gradients of the same batch, per model. CPU time of one core.

Plain is one forward and backward pass of the mean loss over the whole batch, in the model's own precision. Opacus' ghost is
its own clipped sum by two passes, without noise, whose rounding has no stated bound.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.timing import fastest

BATCH = 256
MODELS: dict[str, tuple[str, tuple[int, ...] | None, dict[str, Any], int, int]] = {
    "linear 512-100": ("linear", None, {}, 512, 100),
    "mlp 512-128-100": ("mlp", None, {}, 512, 100),
    "lenet5 28x28": ("lenet5", (1, 28, 28), {}, 784, 10),
    "vgg11 16x16, width 1/4": ("vgg11", (3, 16, 16), {"width": 0.25, "groups": 4, "hidden": 128}, 768, 10),
    "resnet18 16x16, width 1/4": ("resnet18", (3, 16, 16), {"width": 0.25, "groups": 4}, 768, 10),
}
_QUICK = ("linear 512-100", "lenet5 28x28")


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Ratios for each model, and the first five lines of a profile of its sum. Quick: the smallest models."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            return {name: _measure(*declared) for name, declared in MODELS.items() if not quick or name in _QUICK}
    finally:
        torch.set_num_threads(before)


def _measure(name: str, inputs: tuple[int, ...] | None, options: dict[str, Any], width: int, classes: int) -> dict[str, Any]:
    import torch

    from support.gradient_sums import clipped_gradient_sum, engine_sum
    from veilsum_privacy.training.arrays import load
    from veilsum_privacy.training.batches import compute_module, precision
    from veilsum_privacy.training.gradients import cross_entropy, engine
    from veilsum_privacy.training.models import ModelSpec, build_architecture
    from veilsum_privacy.training.models.perceptrons import Perceptron
    from veilsum_privacy.training.per_record import PerRecordGradients

    architecture = build_architecture(ModelSpec(name=name, inputs=inputs, options=options), width, classes)
    arrays = architecture.initial(1)
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((BATCH, width)), rng.integers(classes, size=BATCH)
    module = compute_module(architecture)
    load(module, arrays)
    features, names = torch.tensor(x, dtype=precision(module)), torch.tensor(labels)

    def plain() -> None:
        module.zero_grad()
        cross_entropy(module, features, names).mean().backward()  # type: ignore[no-untyped-call]

    def by_mode(mode: Any) -> float:
        own = compute_module(architecture)
        load(own, arrays)
        made = PerRecordGradients(own, mode)
        found = fastest(lambda: engine_sum(made, lambda a, b: cross_entropy(own, a, b), x, labels, 1.0))
        made.close()
        return found

    plain_s = fastest(plain)
    sum_s = fastest(lambda: clipped_gradient_sum(architecture, arrays, x, labels, 1.0))
    perceptron = isinstance(architecture, Perceptron)
    return {
        "values": architecture.size,
        "engine": "closed form" if perceptron else engine(architecture).mode,
        "physical batch": BATCH if perceptron else engine(architecture).physical,
        "plain_ms": 1e3 * plain_s,
        "sum_ms": 1e3 * sum_s,
        "sum_over_plain": sum_s / plain_s,
        "ghost_over_plain": by_mode("ghost") / plain_s,
        "hooks_over_plain": by_mode("hooks") / plain_s,
        "opacus_ghost_over_plain": _opacus_ghost(compute_module(architecture), features, names) / plain_s,
        "profile": _profile(lambda: clipped_gradient_sum(architecture, arrays, x, labels, 1.0)),
    }


def _opacus_ghost(module: Any, features: Any, names: Any) -> float:
    """Seconds of Opacus' ghost clipping: one pass for norms, one with weighted losses."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from torch import nn

    wrapped = GradSampleModuleFastGradientClipping(module, loss_reduction="sum", max_grad_norm=1.0)
    features = features.clone().requires_grad_()  # its hooks ask for it

    def work() -> None:
        for rows, labels in zip(features.split(64), names.split(64), strict=True):
            losses = nn.functional.cross_entropy(wrapped(rows), labels, reduction="none")
            losses.sum().backward(retain_graph=True)
            weights = wrapped.get_clipping_coef().detach()
            for parameter in wrapped.parameters():
                parameter.grad = None
            wrapped.disable_hooks()
            (weights * losses).sum().backward()
            wrapped.enable_hooks()

    return fastest(work)


def _profile(work: Callable[[], Any], lines: int = 5) -> list[str]:
    """The functions that take the most time of their own: calls, seconds, name."""
    profile = cProfile.Profile()
    profile.enable()
    work()
    profile.disable()
    stats = cast(dict[tuple[str, int, str], tuple[int, int, float, float, Any]], pstats.Stats(profile).stats)  # type: ignore[attr-defined]
    first = sorted(stats.items(), key=lambda item: -item[1][2])[:lines]
    return [f"{calls:>6} {seconds:.4f} s {name}" for (_, _, name), (_, calls, seconds, *_) in first]


ROWS = (
    ("values", "values", "{:,}"),
    ("engine", "engine", "{}"),
    ("records at once", "physical batch", "{}"),
    ("plain gradient, ms", "plain_ms", "{:.1f}"),
    ("clipped sum, ms", "sum_ms", "{:.1f}"),
    ("clipped sum / plain", "sum_over_plain", "{:.1f}"),
    ("  mode ghost / plain", "ghost_over_plain", "{:.1f}"),
    ("  mode hooks / plain", "hooks_over_plain", "{:.1f}"),
    ("  Opacus' ghost / plain", "opacus_ghost_over_plain", "{:.1f}"),
)


def table(results: dict[str, dict[str, Any]]) -> str:
    """The figures as a Markdown table, and the profiles."""
    lines = [[f"{BATCH} records, CPU time of one core", *results], ["---", *["---:"] * len(results)]]
    lines += [[name, *(form.format(result[key]) for result in results.values())] for name, key, form in ROWS]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = ["| " + " | ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)) + " |" for line in lines]
    for name, result in results.items():
        text += ["", f"{name}, calls and time of their own:", *(f"  {line}" for line in result["profile"])]
    return "\n".join(text)
