"""Peak memory of a coordinator that trains a large model: its own process, over gRPC, with four participants.

The study is ``fedsgd`` on a perceptron whose first layer holds nearly all values. Sites have few records: what is measured is
the coordinator. Its peak is noted in every part of a round (:mod:`benchmarks.step_process`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.step_process import IDLE
from benchmarks.steps import records_of, run_study
from support.federation import Parties, make_request, schema_of

FEATURES, CLASSES, SITES, RECORDS = 150, 2, 4, 8
HIDDEN, QUICK = 65_355, 6_535
"""Units of the hidden layer, for 9,999,317 and 999,857 values."""

STEPS = 3
SECONDS = 900.0


def measure(*, quick: bool = False) -> dict[str, Any]:
    """MiB at the peak and before the study, the growth, and the peak in every part of a round."""
    hidden = QUICK if quick else HIDDEN
    parameters = {
        "model": {"name": "mlp", "options": {"hidden": hidden}},
        "optimiser": {"momentum": 0.9},
        "steps": STEPS,
        "average": 1.0,  # all that a step may have to remember: momentum and the mean of all models
        "centre": False,
    }
    request = make_request(schema_of(FEATURES, CLASSES), "fedsgd", epsilon=3.0).model_copy(update={"parameters": parameters})
    with tempfile.TemporaryDirectory() as directory:
        parties = Parties(Path(directory), records_of(FEATURES, CLASSES, SITES, RECORDS))
        options = {"plain": False, "profile": False, "memory": True}
        (coordinator, *_), _ = run_study(parties, request, options, SECONDS)
    parts: dict[str, int] = {}
    for part, peak, _ in coordinator["memory"]:
        parts[part] = max(parts.get(part, 0), peak)
    idle = parts.pop(IDLE)
    figures = {
        "peak, MiB": _mib(coordinator["peak"]),
        "before the study, MiB": _mib(idle),
        "growth, MiB": _mib(coordinator["peak"] - idle),
        "peak by part, MiB": {part: _mib(peak) for part, peak in parts.items()},
    }
    return {f"{hidden * (FEATURES + 1 + CLASSES) + CLASSES} values": figures}


def _mib(size: int) -> int:
    return round(size / 2**20)
