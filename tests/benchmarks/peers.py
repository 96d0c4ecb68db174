"""What a round costs elsewhere and here: processor time of all processes, and bytes on the wire for a value and client.

Peers run as processes of this machine in an environment of their own, ``.tools/peers``, which the first run fetches: gRPC
alone, which adds up in the clear without TLS, and Flower's FedAvg, without TLS too. A figure is that of a round of so many
values less that of one of ten, so starts do not count; bytes are counted by a proxy before the server. Veilsum is a compiled
``fedsgd`` study with TLS and noise, a figure that of a step (:mod:`benchmarks.steps`), gradients of 256 records at each site
included.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import steps

PINNED = ("flwr==1.42.0", "numpy==2.4.6", "grpcio==1.85.3")
PEERS = Path(__file__).parents[2] / ".tools" / "peers"
CLIENTS = 4
HEADS = {10_000: (99, 100), 1_000_000: (999, 1000)}
SECONDS = 300.0


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Figures of every system by the number of values; a peer that does not run here tells why instead."""
    found: dict[str, Any] = {}
    python = _environment()
    for values in list(HEADS)[:1] if quick else HEADS:
        below = found[f"{values:,} values, {CLIENTS} clients"] = {}
        for kind in ("grpc", "flower"):
            try:
                small, whole = _round(python, kind, 10), _round(python, kind, values)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                below[kind] = str(error)
                continue
            below[kind] = {
                "cpu_s": whole[0] - small[0],
                "bytes a value and client": (whole[1] - small[1]) / values / CLIENTS,
            }
        own = steps.run(2, head=HEADS[values], members=CLIENTS)
        below["veilsum, a step of fedsgd"] = {
            "cpu_s": own["cpu_s"],
            "bytes a value and client": (own["sent_bytes"] + own["fetched_bytes"]) / values / CLIENTS,
            "coordinator's peak, MiB": own["coordinator_peak_bytes"] / 2**20,
        }
    return found


def _environment() -> Path:
    """The peers' interpreter, with the pinned versions."""
    python, installed = PEERS / "bin" / "python", PEERS / "installed.txt"
    if not installed.exists() or installed.read_text() != "\n".join(PINNED):
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PINNED], check=True)
        installed.write_text("\n".join(PINNED))
    return python


def _round(python: Path, kind: str, values: int) -> tuple[float, int]:
    """CPU seconds of all processes of a round, and bytes both ways.

    Raises:
        RuntimeError: a process failed.
    """
    port = _free_port()
    proxy = _Proxy(port)
    program = str(Path(__file__).with_name("peer_process.py"))
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}

    def start(role: str, at: int) -> subprocess.Popen[str]:
        command = [str(python), program, kind, role, f"127.0.0.1:{at}", str(values), str(CLIENTS)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    before = os.times()
    processes = [start("server", port)]
    _wait_for_port(port, processes[0])
    processes += [start("client", proxy.port) for _ in range(CLIENTS)]
    try:
        told = [process.communicate(timeout=SECONDS)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        proxy.close()
    for process, text in zip(processes, told, strict=True):
        if process.returncode:
            raise RuntimeError(f"does not run here: {text.strip().splitlines()[-1:]}")
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return spent, proxy.carried


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return


class _Proxy:
    """Carries bytes between clients and a server, and counts them."""

    def __init__(self, target: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.carried = int(self._listener.getsockname()[1]), 0
        self._target, self._lock = target, threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while piece := one.recv(1 << 16):
                other.sendall(piece)
                with self._lock:
                    self.carried += len(piece)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass
