"""What a party's process does for itself before it reads a key: no core files, no other process of its user looks into it.

A core file would hold keys, seeds, consents and records. The limit of its size is set to zero, the hard one too. As the
process is not dumpable either, a handler that the kernel feeds (systemd-coredump) gets nothing, and only root may attach a
debugger or read its memory. What root does, and memory that is swapped out, is outside.
"""

import contextlib
import ctypes
import logging
import os
import resource
import signal
import sys

LOG = logging.getLogger("veilsum.process")

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_SPARE_FILES = 256


def harden() -> None:
    """Forbid core files of this process and its children, and looks into its memory; a failure is logged, and no obstacle."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except (OSError, ValueError, AttributeError) as error:
        LOG.warning("core dumps cannot be disabled: %s", error)


def end_with_parent(*, parent: int | None = None, only: bool = False) -> None:
    """Let the kernel end this process (SIGKILL) as soon as its parent is gone, however that ends; Linux only.

    One that was orphaned before it came to this finds its line to its guard closed.

    Args:
        parent: its parent's number, where it knows; in a container that is 1, as whoever adopts orphans elsewhere.
        only: whether what a terminal and a supervisor send to all of a service's processes is not for this one.

    Raises:
        SystemExit: it is gone already.
    """
    parent = os.getppid() if parent is None else parent
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if only else ():
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def go_first() -> None:
    """Let the kernel end this process before its guard where memory runs out; Linux only.

    What is decoded or received fills memory lawfully, and without a bound; a child that ends is started anew. A failure is no
    obstacle: a machine that hides /proc leaves the choice to its kernel.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def allow_files(wanted: int) -> int:
    """Raise the limit of open files towards its hard limit, up to ``wanted`` and some to spare.

    Returns:
        How many connections fit under it, at most ``wanted``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted + _SPARE_FILES if hard == resource.RLIM_INFINITY else min(wanted + _SPARE_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        except (OSError, ValueError) as error:
            LOG.warning("the limit of open files cannot be raised from %d: %s", soft, error)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - _SPARE_FILES))
