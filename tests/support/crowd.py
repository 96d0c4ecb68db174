"""Thousands of raw connections to a real coordinator, and what they cost it and an honest study. By hand:

    PYTHONPATH=tests python -m support.crowd --connections 10000 --kind silent

Kinds: ``silent`` connects and says nothing; ``half`` begins a handshake and hangs in it; ``open`` ends the handshake with a
participant's certificate and then says nothing; ``greeted`` also opens HTTP/2, answers nothing and calls nothing.
"""

from __future__ import annotations

import argparse
import resource
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import veilsum_node.transport.tls13  # noqa: F401 - chooses TLS 1.3, before anything imports gRPC

# isort: split

from support.federation import make_data, make_request, schema_of
from support.processes import Processes, running_processes
from veilsum_coordinator.protocol.settings import Waits

KINDS = ("silent", "half", "open", "greeted")
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings


def connect(address: str, kind: str, credentials: ssl.SSLContext) -> socket.socket | None:
    """One connection of a kind; None where there was no room for it."""
    host, _, port = address.rpartition(":")
    raw = socket.create_connection((host, int(port)), timeout=20)
    try:
        if kind == "half":
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            hello = credentials.wrap_bio(incoming, outgoing, server_hostname=host)
            try:
                hello.do_handshake()
            except ssl.SSLWantReadError:
                raw.sendall(outgoing.read()[:100])
        elif kind in ("open", "greeted"):
            raw.settimeout(2)
            raw = credentials.wrap_socket(raw, server_hostname=host)
            if kind == "greeted":
                raw.sendall(HTTP2_PREFACE)
    except OSError:
        raw.close()
        return None
    return raw


def _figures(pid: int) -> dict[str, int]:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    size = {name: int(lines[name].split()[0]) // 1024 for name in ("VmRSS", "VmHWM")}
    return {**size, "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir()))}


def _study(processes: Processes) -> float:
    began = time.monotonic()
    key = processes.submit(processes.compile(make_request(schema_of(2), epsilon=None)))
    assert processes.await_end(key).phase == "finished"
    return time.monotonic() - began


def measure(connections: int, kind: str) -> Iterator[str]:
    """Lines of what was found."""
    data = make_data("abcd", 9)
    with tempfile.TemporaryDirectory() as folder, running_processes(Path(folder) / "f", data, waits=Waits()) as processes:
        pid = processes._coordinator._child.pid
        yield f"undisturbed: a study in {_study(processes):.1f} s, {_figures(pid)}"
        identity = processes.directory("d") / "identity"
        context = ssl.create_default_context(cafile=str(identity / "authority.pem"))
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])  # or gRPC ends the connection
        context.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
        began, held = time.monotonic(), []
        for _ in range(connections):
            try:
                held.append(connect(processes.address, kind, context))
            except OSError:
                held.append(None)
        there = [item for item in held if item is not None]
        yield f"{len(there)} of {connections} connections in {time.monotonic() - began:.1f} s, {_figures(pid)}"
        yield f"a study of the sessions that were open: {_study(processes):.1f} s, {_figures(pid)}"
        began = time.monotonic()
        processes.participants["a"].kill()
        processes.heal()
        yield f"a site that was killed is back after {time.monotonic() - began:.1f} s, its start included"
        wait = max(0.0, began + 95 - time.monotonic())
        time.sleep(wait)
        yield f"95 s later: {_figures(pid)}"
        for item in there:
            item.close()
        time.sleep(3)
        yield f"all closed: a study in {_study(processes):.1f} s, {_figures(pid)}"
        log = (processes.kit.coordinator.directory / "log").read_text()
        yield f"lines in the coordinator's log: {log.count(chr(10))}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--kind", choices=KINDS, default="silent")
    chosen = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for line in measure(chosen.connections, chosen.kind):
        print(line, flush=True)


if __name__ == "__main__":
    main()
