"""A process that has secrets, for :mod:`support.intruder` to come after, and the ordinary user that both run as."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from support.intruder import ATTEMPTS
from support.processes import Process
from veilsum_node.process.confinement import offered

NOBODY = 65534


def as_ordinary_user() -> dict[str, Any]:
    """Arguments of ``subprocess`` that make a child nobody's where the tests run as root, and leave it ours elsewhere."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


@cache
def interpreter() -> tuple[str, dict[str, str]]:
    """An interpreter that the ordinary user may run, and the environment in which it finds what this one imports.

    One that lies in root's home is root's alone; then the system's of the same version serves, if there is one.

    Raises:
        LookupError: no such interpreter; says why.
    """
    tests = Path(__file__).parents[1]
    root = str(tests.parent)  # and not whatever else this process may import from, such as the folder that it was started in
    modules = [path for path in sys.path if path.startswith(f"{root}/") or "site-packages" in path]
    own = {**os.environ, "PYTHONPATH": str(tests)}
    other = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *(path for path in modules if path != str(tests))])}
    why = ""
    version = "python{}.{}".format(*sys.version_info)
    for program, environment in ((sys.executable, own), (f"/usr/bin/{version}", other), (f"/usr/local/bin/{version}", other)):
        command = [program, "-P", "-c", "import veilsum_node.process.confinement, support.intruder"]
        try:
            found = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, **as_ordinary_user())
        except OSError as error:
            why = str(error)
            continue
        if found.returncode == 0:
            return program, environment
        why = found.stderr[-200:]
    raise LookupError(f"no interpreter that an ordinary user may run: {why}")


class OrdinaryProcess(Process):
    """A process of the ordinary user's.

    Args:
        line: the program and its arguments.
        log: the file that takes its output and its errors.
        environment: all of its variables.
    """

    def __init__(self, line: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                line, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, cwd="/", **as_ordinary_user()
            )


def unconfinable() -> str:
    """Why nothing can be confined here; empty where it can."""
    try:
        interpreter()
    except LookupError as error:
        return str(error)
    return "; ".join(offered().lacking()) if not offered().enough else ""


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder of the ordinary user's."""
    made = Path(tempfile.mkdtemp(prefix="veilsum-confined-"))
    try:
        give(made)
        yield made
    finally:
        shutil.rmtree(made)


def give(path: Path) -> Path:
    """Let the ordinary user own a path."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    return path


@dataclass(frozen=True)
class Running:
    """A victim that runs.

    Attributes:
        fields: of :class:`support.intruder.Victim`.
        process: itself.
    """

    fields: Mapping[str, Any]
    process: subprocess.Popen[str]


@contextmanager
def victim(place: Path) -> Iterator[Running]:
    """A process of the ordinary user's with a secret in memory, files, an open descriptor and listening sockets."""
    program, environment = interpreter()
    command = [program, "-P", "-m", "support.victims", str(place)]
    started = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd="/", **as_ordinary_user()
    )
    try:
        assert started.stdout is not None
        yield Running(json.loads(started.stdout.readline()), started)
        assert started.poll() is None, "the victim did not survive"
    finally:
        started.kill()
        started.communicate()


def intrude(
    found: Running, bounds: Mapping[str, Any] | None, *, keep: Sequence[int] = (), descriptors: Sequence[int] = (), **work: Any
) -> dict[str, Any]:
    """Run the intruder under bounds, or under none, and return what it prints and whether it could become a program."""
    place = Path(found.fields["files"]) / "forgotten"
    program, environment = interpreter()
    inherited = os.open(place, os.O_RDONLY)
    try:
        asked = {"bounds": bounds, "victim": {**found.fields, "inherited": inherited}, "keep": [*keep], **work}
        done = subprocess.run(
            [program, "-P", "-m", "support.intruder"],
            input=json.dumps(asked) + "\n",
            capture_output=True,
            text=True,
            pass_fds=(inherited, *descriptors),
            cwd="/",
            env=environment,
            start_new_session=True,
            timeout=240,
            **as_ordinary_user(),
        )
    finally:
        os.close(inherited)
    assert done.stdout, done.stderr
    first, *more = done.stdout.splitlines()
    return {**json.loads(first), "executed": more == ["executed"], "inherited": inherited}


def main() -> None:
    place = Path(sys.argv[1])
    files = place / "victim"
    files.mkdir()
    secret = b"a secret that stays"
    for name in (*ATTEMPTS, "held", "forgotten"):
        (files / name).write_bytes(secret)
    kept = ctypes.create_string_buffer(secret, len(secret))
    held = os.open(files / "held", os.O_RDONLY)
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    path, name = str(place / "victim.sock"), f"veilsum-{os.getpid()}"
    sockets = [listening]
    for kind, address in (
        (socket.SOCK_STREAM, path),
        (socket.SOCK_STREAM, "\0" + name),
        (socket.SOCK_DGRAM, "\0" + name + "-datagrams"),
    ):
        sockets.append(socket.socket(socket.AF_UNIX, kind))
        sockets[-1].bind(address)
        if kind == socket.SOCK_STREAM:
            sockets[-1].listen(64)
    fields = {
        "process": os.getpid(),
        "address": ctypes.addressof(kept),
        "secret": secret.decode(),
        "files": str(files),
        "descriptor": held,
        "port": listening.getsockname()[1],
        "unix": path,
        "abstract": name,
    }
    print(json.dumps(fields), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
