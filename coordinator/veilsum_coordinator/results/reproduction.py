"""The same numbers in every process that computes what a coordinator computes, whatever processors it finds.

A restarted coordinator runs a method again and holds what it would broadcast against the journal, to the bit, and whoever
verifies a result computes it again. Libraries of linear algebra split sums over threads, and another number of threads gives
other last bits, from about a hundred rows on. They also choose their loops by the kind of processor, and so do NumPy's
exponential and logarithm. So a coordinator computes on one thread, with loops that every x86-64 processor since 2013 has: a
study goes on after its container was moved to another machine, and a result is verified on one.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_COMMON = {
    "OPENBLAS_CORETYPE": "Haswell",
    # By the names of NumPy before 2.4 and since; each version passes over those that it does not know.
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL X86_V4 AVX512_ICL AVX512_SPR",
}
_chosen = False


def choose_common_loops() -> None:
    """Have NumPy and SciPy compute by loops that processors with AVX2 have in common; call it before they are loaded.

    The choice holds for the life of this process, and for processes that it starts. An operator's own values of the variables
    do not count: two processes that differ in them would differ in their results. Where a processor has no AVX2, or is of
    another architecture, nothing is chosen.
    """
    global _chosen
    if "numpy" not in sys.modules and _has_avx2():
        os.environ.update(_COMMON)
        _chosen = True


def may_differ_from_coordinators() -> bool:
    """Whether a process that called :func:`choose_common_loops` in time might compute other last bits than this one."""
    return not _chosen and _has_avx2()


def _has_avx2() -> bool:
    try:
        words = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return {"avx2", "fma"} <= set(words)


def compute_reproducibly() -> None:
    """Compute on one thread and by common loops, for the life of this process; call it before such a library is loaded.

    What is loaded already is bound to one thread as well. An operator's own values of the variables do not count.
    """
    choose_common_loops()
    os.environ.update(dict.fromkeys(VARIABLES, "1"))
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    threadpool_limits(limits=1)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for a while, where somebody else repeats what a coordinator computed."""
    from threadpoolctl import threadpool_limits

    with set_to_one(VARIABLES), threadpool_limits(limits=1):  # the variables are for what is loaded meanwhile
        yield


@contextmanager
def set_to_one(variables: Sequence[str]) -> Iterator[None]:
    """Give environment variables the value 1 for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(dict.fromkeys(variables, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
