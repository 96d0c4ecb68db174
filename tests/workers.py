"""Workers of pytest-xdist, forked from one process that has imported the tests.

Each worker would import for itself all tests and what they use, 13 seconds of processor time; so only the first process does,
and what is imported lies in memory once. The controller starts that process (:func:`forked`). What execnet starts in place of
an interpreter hands its three streams over, and ends when its worker does.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path

STREAMS = (0, 1, 2)


def forked(named: list[Path], profile: str | None) -> tuple[str, Callable[[], None]]:
    """Start the process that workers are forked from.

    Args:
        named: files of tests, and folders of such.
        profile: of Hypothesis, which settings that stand in a module are made by.

    Returns:
        what stands in place of an interpreter, as a command line; and what ends the process.
    """
    folder = tempfile.TemporaryDirectory(prefix="workers-")
    place = f"{folder.name}/socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)  # before anyone connects
        listening.listen(64)
        command = [sys.executable, __file__, "serve", str(listening.fileno()), profile or "", *map(str, named)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[listening.fileno()])

    def end() -> None:
        if process.stdin is not None:
            process.stdin.close()
        process.wait()
        folder.cleanup()

    return f"'{sys.executable}' -ISE '{__file__}' join '{place}'", end


def join(place: str) -> None:
    """Have a worker take this process's streams, and wait for its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker's to decide
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        socket.send_fds(connection, [b"."], STREAMS)
        connection.recv(1)


def serve(listening: socket.socket, profile: str, named: list[Path]) -> None:
    """Import tests, then fork a worker for each connection until the standard input ends; returns in workers as well."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.redirect_stderr(io.StringIO()):  # warnings
        _import(profile, named)
    gc.freeze()
    workers = set[int]()
    while True:
        ready, _, _ = select.select([listening, STREAMS[0]], [], [])
        if listening not in ready:
            break
        connection, _ = listening.accept()
        _, streams, _, _ = socket.recv_fds(connection, 1, len(STREAMS))
        if worker := os.fork():
            workers.add(worker)
        else:
            for own, given in zip(STREAMS, streams, strict=True):
                os.dup2(given, own)
                os.close(given)
            listening.close()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _be_interpreter()
            return  # the connection ends with this process
        connection.close()
        for given in streams:
            os.close(given)
    for worker in workers:  # of which pytest-xdist has waited for, or given up
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def _be_interpreter() -> None:
    """What ``python -c`` does with execnet's line."""
    sys.argv = ["-c"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec("import sys;exec(eval(sys.stdin.readline()))", main.__dict__)  # noqa: S102


def _import(profile: str, named: list[Path]) -> None:
    """Import what pytest would; a file that cannot be is left to the workers, who report it."""
    from _pytest.config import _prepareconfig
    from _pytest.pathlib import import_path

    config = _prepareconfig(
        ["-s", "-p", "no:xdist", *([f"--hypothesis-profile={profile}"] if profile else []), *map(str, named)]
    )
    config._do_configure()
    for path in _files(named):
        before = set(sys.modules)
        try:
            import_path(path, mode="importlib", root=config.rootpath, consider_namespace_packages=False)
        except BaseException:  # noqa: BLE001  skips are no exceptions
            for name in set(sys.modules) - before:
                if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(Path(__file__).parent):
                    del sys.modules[name]
    config._ensure_unconfigure()


def _files(named: list[Path]) -> Iterator[Path]:
    for path in named:
        yield from sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


if __name__ == "__main__":
    if sys.argv[1] == "join":
        join(sys.argv[2])
    else:
        serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3], [Path(name) for name in sys.argv[4:]])
