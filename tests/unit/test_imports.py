"""Nothing looks for garbage while much is imported, and afterwards everything is as before; who serves keeps freed memory."""

from __future__ import annotations

import ctypes
import gc
import resource
import subprocess
import sys
from contextlib import suppress

import pytest

from veilsum_node.process.memory import loading


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_off_inside_and_then_as_before(before: bool) -> None:
    was, frozen = gc.isenabled(), gc.get_freeze_count()
    (gc.enable if before else gc.disable)()
    try:
        with suppress(ImportError), loading():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is before
        assert gc.get_freeze_count() == frozen
    finally:
        (gc.enable if was else gc.disable)()


def test_a_process_that_serves_never_looks_at_what_it_loaded() -> None:
    frozen = gc.get_freeze_count()
    with loading(serves=True):
        kept = [[] for _ in range(1000)]
    assert gc.get_freeze_count() >= frozen + len(kept)  # and so it stays: tests' workers leave alone what they loaded, too


FREED = """
import resource, threading
from veilsum_node.process.memory import loading
with loading(serves={serves}):
    pass

def fill():
    for _ in range(60):
        block = bytearray(4 << 20)
        del block

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

fill()
begun = faults()
fill()
thread = threading.Thread(target=fill)
thread.start()
thread.join()
print(faults() - begun)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="the C library is not glibc")
def test_freed_memory_is_used_again_by_every_thread() -> None:
    """Blocks of 4 MiB one after another take the same pages in every thread; otherwise a thread takes some of its own."""
    pages, found = (4 << 20) // resource.getpagesize(), []
    for serves in (True, False):
        done = subprocess.run([sys.executable, "-c", FREED.format(serves=serves)], capture_output=True, text=True, check=True)
        found.append(int(done.stdout))
    assert found[0] < pages / 2 < pages <= found[1]
