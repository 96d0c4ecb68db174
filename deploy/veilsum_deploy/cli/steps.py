"""Progress of a long command on standard error: a bar on a terminal, a plain line for each step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def show_progress() -> Iterator[Callable[[str, float], None]]:
    """Yield a function of (what is being done, how far it is from 0 to 1)."""
    if not sys.stderr.isatty():
        last = ""

        def line(step: str, fraction: float) -> None:
            nonlocal last
            if step != last:
                print(step, file=sys.stderr, flush=True)
                last = step

        yield line
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Starting", total=1.0)
        yield lambda step, fraction: bar.update(task, description=step, completed=fraction)
