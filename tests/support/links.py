"""A bad link for tests: real IP packets to and from a network namespace that a thread loses, delays and throttles.

The kernel need not know how to: both ends are TUN devices, and this process carries the packets from one to the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.disks import need_root
from support.network import PATIENCE
from support.proxy import Proxy
from support.tools import give_up

DEVICE = "/dev/net/tun"
_SET_NAME = 0x400454CA  # TUNSETIFF
_PLAIN = 0x1001  # IFF_TUN | IFF_NO_PI
_LARGEST = 65_535
BUFFER_SECONDS = 2.0
"""How much may wait to be sent, in seconds at the link's rate; more is lost, as at a router."""


class _Direction:
    """Carries packets one way."""

    def __init__(self, link: BadLink, source: int, sink: int) -> None:
        self._link, self._source, self._sink = link, source, sink
        self._random = random.Random(source)
        self._waiting: list[tuple[float, int, bytes]] = []
        self._free, self._count = 0.0, 0
        self.thread = threading.Thread(target=self._carry, daemon=True)
        self.thread.start()

    def _carry(self) -> None:
        with contextlib.suppress(OSError):
            while not self._link.closed:
                left = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else 0.2
                if select.select([self._source], [], [], min(left, 0.2))[0]:
                    self._take(os.read(self._source, _LARGEST))
                while self._waiting and self._waiting[0][0] <= time.monotonic():
                    os.write(self._sink, heapq.heappop(self._waiting)[2])

    def _take(self, packet: bytes) -> None:
        link, now = self._link, time.monotonic()
        start = max(now, self._free)
        if link.dead or self._random.random() < link.loss or start - now > BUFFER_SECONDS:
            return
        self._free = start + (len(packet) / link.rate if link.rate else 0.0)
        self._count += 1
        heapq.heappush(self._waiting, (self._free + link.delay, self._count, packet))


class BadLink:
    """A namespace with a link to this machine; use :func:`bad_link`.

    Attributes:
        name: of the namespace.
        outside: this machine's address on the link.
        loss: share of packets that is lost, each way.
        delay: seconds, each way.
        rate: bytes a second, each way; 0 for no bound.
        dead: nothing passes, and nobody is told.
    """

    def __init__(self, loss: float, delay: float, rate: float) -> None:
        number = os.getpid() % 16_000
        self.loss, self.delay, self.rate, self.dead, self.closed = loss, delay, rate, False, False
        self.name = f"veilsum-bad-{number}"
        base = f"10.{210 + number // 8000}.{number % 8000 // 64}."
        self.outside, inside = f"{base}{number % 64 * 4 + 1}", f"{base}{number % 64 * 4 + 2}"
        near, far = f"vb{number}o", f"vb{number}i"
        _ip("netns", "add", self.name)
        self._ends = [_tun(near), _tun(far)]
        _ip("address", "add", f"{self.outside}/30", "dev", near)
        _ip("link", "set", near, "up")
        _ip("link", "set", far, "netns", self.name)
        _ip("-n", self.name, "address", "add", f"{inside}/30", "dev", far)
        _ip("-n", self.name, "link", "set", far, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")
        self._directions = [_Direction(self, *self._ends), _Direction(self, *reversed(self._ends))]
        self._relays: list[subprocess.Popen[str]] = []
        self._proxies: list[Proxy] = []

    def command(self, *words: str) -> list[str]:
        """A command line that runs beyond the link."""
        return ["ip", "netns", "exec", self.name, *words]

    def dial(self, address: str) -> str:
        """An address beyond the link from which everything comes to ``address``, host:port, over it."""
        host, port = address.rsplit(":", 1)
        proxy = Proxy((host, int(port)), self.outside)
        self._proxies.append(proxy)
        script = str(Path(__file__).with_name("link_relay.py"))
        words = self.command(sys.executable, "-I", script, self.outside, str(proxy.port))
        relay = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self._relays.append(relay)
        assert relay.stdout is not None
        port = int(relay.stdout.readline())
        return f"127.0.0.1:{port}"

    def close(self) -> None:
        """Take it away."""
        self.closed = True
        for relay in self._relays:
            relay.kill()
            relay.wait(10)
            if relay.stdout is not None:
                relay.stdout.close()
        for proxy in self._proxies:
            proxy.close()
        for direction in self._directions:  # before another opens files under the same numbers
            direction.thread.join()
        for end in self._ends:
            os.close(end)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, timeout=PATIENCE)


def _tun(name: str) -> int:
    handle = os.open(DEVICE, os.O_RDWR)
    fcntl.ioctl(handle, _SET_NAME, struct.pack("16sH", name.encode(), _PLAIN))
    return handle


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        give_up(f"network namespaces are not permitted here: ip {' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def bad_link(*, loss: float = 0.0, delay: float = 0.0, rate: float = 0.0) -> Iterator[BadLink]:
    """Make one; skips the test where that is not permitted."""
    need_root("ip", why="to make a network namespace")
    if not os.access(DEVICE, os.R_OK | os.W_OK) or shutil.which("ip") is None:
        give_up(f"needs {DEVICE} to carry packets itself")
    link = BadLink(loss, delay, rate)
    try:
        yield link
    finally:
        link.close()
