"""Import much at once without looking for garbage in it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading(*, serves: bool = False) -> Iterator[None]:
    """Inside, nothing looks for garbage: imports make much that lasts and little that does not.

    In a process that ``serves`` for long, later searches leave what is there at the end alone too: they would go over all of
    it again and again.
    """
    were = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if serves:
            gc.freeze()
        if were:
            gc.enable()
