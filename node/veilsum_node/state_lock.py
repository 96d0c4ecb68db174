"""One process at a time on a state: an operating system's lock on a file beside the database.

The lock is the kernel's (flock). It ends with the process, however that ends, so nothing is ever left to clear away; the file
itself stays and says who held it last. It is a lock between processes of one machine, or of several on a file system that
knows locks; whoever must be surer checks in the database besides, as a coordinator does.
"""

import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from veilsum_node.errors import ConfigurationError, StateError
from veilsum_node.telemetry.logs import about

HANDOVER_SECONDS = 40.0
"""How long a process waits at its start for one that holds its state: longer than any takes to stop."""

POLL_SECONDS = 0.1

_MOST_BYTES = 512


class HeldError(StateError):
    """Another process works on the same state."""


def process_name(party: str) -> str:
    """What tells a process from all others, for a person: ``coordinator hub, process 17 on ward4``."""
    return f"{party}, process {os.getpid()} on {socket.gethostname()}"


def wait_to_hold(
    take: Callable[[], str], what: str, advice: str, log: logging.Logger, stopping: threading.Event | None = None
) -> None:
    """Take a lock, waiting up to :data:`HANDOVER_SECONDS` for a process that is about to stop.

    Args:
        take: takes it; returns who holds it instead, empty if it was taken.
        what: is held, for messages.
        advice: what to do about a holder that stays.
        stopping: ends the wait.

    Raises:
        HeldError: it is still held; the message says by whom.
    """
    stopping, told = stopping or threading.Event(), ""
    end = time.monotonic() + HANDOVER_SECONDS
    while holder := take():
        if time.monotonic() >= end or stopping.is_set():
            raise HeldError(f"Another process is using {what}: {holder}.", advice)
        if not told:
            told = holder
            log.warning("waiting up to %.0f s for %s, which holds %s", HANDOVER_SECONDS, holder, what, extra=about("database"))
        stopping.wait(POLL_SECONDS)


class StateLock:
    """The lock beside one database file: ``NAME.lock``, mode 0600.

    Args:
        party: who wants it, as in ``coordinator hub``.
    """

    def __init__(self, state: Path, party: str) -> None:
        state = state.resolve()  # one file has one lock, by whatever links it is reached
        self.path, self._party = state.with_name(f"{state.name}.lock"), party
        self._descriptor: int | None = None

    def take(self) -> str:
        """Take it, if nobody holds it; returns who does, empty if it was taken, now or before.

        Raises:
            ConfigurationError: the file cannot be opened.
        """
        if self._descriptor is not None:
            return ""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"The lock {self.path} cannot be opened: {error.strerror}.", "Check the directory and its owner."
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_there(descriptor):  # somebody removed or replaced the file in between
                os.close(descriptor)
                return self.take()
        except BlockingIOError:
            holder = os.pread(descriptor, _MOST_BYTES, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            return holder or "a process that left no name"
        except OSError as error:
            os.close(descriptor)
            raise ConfigurationError(
                f"The lock {self.path} cannot be taken: {error.strerror}.",
                "Put the state on a file system that supports locks.",
            ) from error
        self._descriptor = descriptor
        self._sign(descriptor)
        return ""

    def hold(self, advice: str, log: logging.Logger, stopping: threading.Event | None = None) -> None:
        """Take it, waiting for a process that is about to stop.

        Raises:
            HeldError: another process keeps it.
            ConfigurationError: the file cannot be locked.
        """
        wait_to_hold(self.take, str(self.path.with_suffix("")), advice, log, stopping)

    def release(self) -> None:
        """Let go of it; does nothing without it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _is_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _sign(self, descriptor: int) -> None:
        """Write who holds it; on a full disk the lock holds all the same, unsigned."""
        since = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{process_name(self._party)}, since {since}\n".encode()[:_MOST_BYTES], 0)
        except OSError:
            pass
