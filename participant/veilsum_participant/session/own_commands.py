"""A site's own command as a child of this process, which a guard has none of."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")


class OwnChild:
    """A command that is this process's child."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def wait(self, seconds: float) -> int:
        return self._process.wait(seconds)

    def kill(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def begin_here(command: Sequence[str], variables: Mapping[str, str], given: bytes) -> OwnChild:
    """Start a command as a child of this process; without a shell, and with few variables of the environment."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    with tempfile.TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        return OwnChild(
            subprocess.Popen(  # noqa: S603  the operator's own command, from the configuration
                command,
                stdin=file,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**kept, **variables},
                start_new_session=True,  # so that what it starts ends with it
            )
        )
