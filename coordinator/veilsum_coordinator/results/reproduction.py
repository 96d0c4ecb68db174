"""The same numbers in every process of a coordinator, whatever number of processors it finds.

A restarted coordinator runs a method again and holds what it would broadcast against the journal, to the bit. Libraries of
linear algebra split sums over threads, and another number of threads gives other last bits, from about a hundred rows on. So
a coordinator computes on one thread: a study must go on after its container was moved to a machine with more processors.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def compute_on_one_thread() -> None:
    """Bound linear algebra to one thread, for the life of this process; call it before such a library is loaded.

    What is loaded already is bound as well. An operator's own values of the variables do not count: two processes that differ
    in them would differ in their results.
    """
    os.environ.update(dict.fromkeys(VARIABLES, "1"))
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    threadpool_limits(limits=1)


@contextmanager
def one_thread() -> Iterator[None]:
    """The same for a while, where somebody else repeats what a coordinator computed."""
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
