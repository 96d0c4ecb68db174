"""What a process keeps of memory: not looked through again while much is imported, kept while it works, given back after."""

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading(*, serves: bool = False) -> Iterator[None]:
    """Inside, nothing looks for garbage: imports make much that lasts and little that does not.

    In a process that ``serves`` for long, later searches leave what is there at the end alone too: they would go over all of
    it again and again. Memory that it frees is kept for what comes next: a page that the kernel clears takes several passes.
    """
    were, libc = gc.isenabled(), ctypes.CDLL(None)
    if serves and hasattr(libc, "mallopt"):  # glibc's M_ARENA_MAX, so that all threads use it, M_MMAP_ and M_TRIM_THRESHOLD
        _ = libc.mallopt(-8, 1), libc.mallopt(-3, 1 << 25), libc.mallopt(-1, 1 << 27)
    gc.disable()
    try:
        yield
    finally:
        if serves:
            gc.freeze()
        if were:
            gc.enable()


def give_back_memory() -> None:
    """Have the C library give the kernel what was freed, which it would keep for what comes next; where it is glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
