"""A study of 25 and one of 50 participants at one real coordinator over gRPC, as ratios: how time and memory grow.

The same as ``python -m load growth`` in small; every figure but the growth exponents depends on the machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from load.figures import exponent
from load.scenarios import Course, growth

SIZES = (25, 50)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Figures of both sizes, and the exponents of the larger over the smaller; ``quick``: of 10 and 20 participants."""
    sizes = (10, 20) if quick else SIZES
    with tempfile.TemporaryDirectory(prefix="veilsum-load-") as place:
        courses = growth(Path(place), sizes)
    found: dict[str, Any] = {f"{size} participants": _figures(course) for size, course in courses.items()}
    smaller, larger = (courses[size] for size in sizes)
    found["exponents"] = {
        "coordinator's CPU": exponent({smaller.count: smaller.cpu, larger.count: larger.cpu}),
        "participants' CPU": exponent({smaller.count: smaller.hosts, larger.count: larger.hosts}),
        "coordinator's memory, MiB a participant": (larger.peak - smaller.peak) / (larger.count - smaller.count),
    }
    return found


def _figures(course: Course) -> dict[str, float]:
    slowest = max((phase for phase, _ in course.phases), key=lambda phase: phase.slowest)
    return {
        "all sessions open, s": course.opening,
        "study, s": course.seconds,
        "coordinator's CPU, s": course.cpu,
        "coordinator's peak, MiB": course.peak,
        "participants' CPU, s": course.hosts,
        f"last one asked after the first ({slowest.kind}), s": slowest.slowest,
    }
