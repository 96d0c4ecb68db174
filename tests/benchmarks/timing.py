"""Seconds of processor time: what every benchmark compares."""

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def timed(work: Callable[[], Result], repeats: int = 1) -> tuple[float, Result]:
    """CPU seconds of the fastest of several runs, which other load on the machine disturbs least, and the last result."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        seconds.append(time.process_time() - start)
    return min(seconds), result


def took(work: Callable[[], object]) -> float:
    """CPU seconds of one run."""
    return timed(work)[0]


def fastest(work: Callable[[], object], repeats: int = 3) -> float:
    """CPU seconds of the fastest of several runs, after one that is not counted."""
    work()
    return timed(work, repeats)[0]
