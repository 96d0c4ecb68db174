"""Processes forked from a server that has loaded the code once: a start takes a tenth of the time of an interpreter's own.

A fork runs what an interpreter would, from its arguments on. What a test shows of the start itself, of arguments that the
system lists, or of what an environment does to imports needs an interpreter, as in test_cli_processes.py.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import TimeoutExpired

import support.unsynced  # noqa: F401  in each fork as well, which imports this module

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(  # installed modules: the server does not know the tests' path
    [
        "veilsum_deploy.coordinator.coordinator",
        "veilsum_coordinator.service.server",
        "veilsum_participant.cli.participant",
        "veilsum_participant.front.answering",
        "veilsum_participant.session.client",
        "veilsum_node.identity.provision",
        "veilsum.local.federation",
        "veilsum.compile",
        "veilsum_node.migration",
        "pandas",  # what Arrow's first conversion loads where it is installed
    ]
)


def _run(arguments: Sequence[str], log: Path, place: str, umask: int, environment: Mapping[str, str]) -> None:
    """What ``python -m veilsum_deploy.cli`` does, with output and errors into a file."""
    with log.open("ab") as output, open(os.devnull, "rb") as nothing:
        for own, other in ((0, nothing), (1, output), (2, output)):
            os.dup2(other.fileno(), own)
    os.chdir(place)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["veilsum", *arguments]
    from veilsum_deploy import cli  # with the environment that it is to see

    try:
        cli.main()
    finally:
        atexit._run_exitfuncs()  # a fork ends without them, an interpreter does not


class ForkedCommand:
    """A command of ``veilsum`` in a process of its own; the part of :class:`subprocess.Popen` that tests use.

    Args:
        arguments: of the command.
        log: the file that takes its output and its errors.
        environment: variables that are set for it, beside those of this process.
    """

    args = ("veilsum",)

    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        os.umask(umask := os.umask(0))
        given = (arguments, log, os.getcwd(), umask, {**os.environ, **environment})
        self._process = FORKS.Process(target=_run, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.terminate, self.kill = self._process.terminate, self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired(self.args, timeout)
        return self._process.exitcode
