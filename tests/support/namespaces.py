"""A network namespace for a test: one link to this machine, no route beyond, nothing else in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""


@dataclass(frozen=True)
class Namespace:
    """One that exists.

    Attributes:
        name: for ``ip netns exec``.
        outside: this machine's address on the link, IPv4.
        inside: the namespace's own.
    """

    name: str
    outside: str
    inside: str

    def command(self, *words: str) -> list[str]:
        """A command line that runs in it."""
        return ["ip", "netns", "exec", self.name, *words]


def listening(pid: int) -> list[str]:
    """Local addresses, as the kernel writes them, on which anything listens in a process's network namespace; UDP as well."""
    tcp = [place for place, state in _sockets(pid, "tcp", "tcp6") if state == LISTEN]
    return tcp + [place for place, _ in _sockets(pid, "udp", "udp6")]


def own_ports(pid: int) -> list[int]:
    """Local ports of its TCP connections."""
    return sorted({int(place.rsplit(":", 1)[1], 16) for place, state in _sockets(pid, "tcp", "tcp6") if state != LISTEN})


def _sockets(pid: int, *kinds: str) -> list[tuple[str, str]]:
    found = []
    for kind in kinds:
        with open(f"/proc/{pid}/net/{kind}") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        found += [(row[1], row[3]) for row in rows]
    return found


@contextmanager
def namespace() -> Iterator[Namespace]:
    """Make one, and take it away again; skips the test where that is not permitted."""
    if shutil.which("ip") is None:
        pytest.skip("needs the ip command (iproute2) to make a network namespace")
    if os.geteuid() != 0:
        pytest.skip("needs root to make a network namespace")
    number = os.getpid() % 16000
    made = Namespace(f"veilsum-{number}", f"10.{200 + number // 8000}.{number % 8000 // 64}.{number % 64 * 4 + 1}", "")
    made = Namespace(made.name, made.outside, made.outside.rsplit(".", 1)[0] + f".{int(made.outside.rsplit('.', 1)[1]) + 1}")
    link, peer = f"vs{number}o", f"vs{number}i"
    inside = made.command("ip")
    steps = [
        ["ip", "netns", "add", made.name],
        ["ip", "link", "add", link, "type", "veth", "peer", "name", peer, "netns", made.name],
        ["ip", "address", "add", f"{made.outside}/30", "dev", link],
        ["ip", "link", "set", link, "up"],
        [*inside, "address", "add", f"{made.inside}/30", "dev", peer],
        [*inside, "link", "set", peer, "up"],
        [*inside, "link", "set", "lo", "up"],
    ]
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, timeout=20)
            if done.returncode:
                pytest.skip(f"network namespaces are not permitted here: {' '.join(step)}: {done.stderr.strip()}")
        yield made
    finally:
        subprocess.run(["ip", "link", "del", link], capture_output=True, timeout=20)
        subprocess.run(["ip", "netns", "del", made.name], capture_output=True, timeout=20)
