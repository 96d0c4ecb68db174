"""What a round costs elsewhere and here: processor time of all processes, and bytes on the wire for a value and client.

Peers run as processes of this machine, in environments of their own below ``.tools/peers``, which the first run fetches. gRPC
alone adds vectors up in the clear. Flower takes FedAvg's mean by its former server (one process for each client, all along),
and by its SuperLink, where it starts a process for each message of a client; SecAgg+ runs there only. NVFlare takes the mean,
and the mean under CKKS, by the parts it comes with, provisioned as its own tool does it, with mutual TLS. gRPC and Flower run
without TLS. Veilsum is a step of a compiled ``fedsgd`` study with TLS, encryption, noise and ledgers, the gradients of 256
records at each site included; clients of the peers hold a vector, so they compute nothing.

Figures are by the round, from the end of the first round to that of the last; of SuperLink, whose rounds take minutes on a
busy machine, from when all clients are connected to the end of the only round, so that its clients fetch the app too.
Processor time is that of the server, its clients and all processes that they start, bytes those that a proxy before the server
carries.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import steps
from benchmarks.wire import Proxy

PINNED = {
    "flower": ("flwr==1.42.0", "numpy==2.4.6", "grpcio==1.85.3"),
    "nvflare": ("nvflare==2.9.0", "tenseal==0.3.18", "numpy==2.4.6", "grpcio==1.85.3"),
}
"""Packages by environment."""

PEERS = Path(__file__).parents[2] / ".tools" / "peers"
CLIENTS = 4
HEADS = {10_000: (99, 100), 1_000_000: (999, 1000)}
"""Features and classes of Veilsum's model by the number of its values."""

OWN = "veilsum, fedsgd"
MORE = 16
"""Sites of a further study of ours, for bytes alone: lanes and key shares get wider with sites."""

SECONDS = 1800.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Figures of every system by the number of values; a peer that does not run here tells why instead."""
    sizes = list(HEADS)[:1] if quick else list(HEADS)
    found: dict[str, Any] = {"sizes": sizes, "load": os.getloadavg()[0], "systems": {}}
    for name, (environment, rounds, start) in SYSTEMS.items():
        python = _environment(environment)
        found["systems"][name] = [_try(python, rounds, start, values) for values in sizes]
        print(name, found["systems"][name], file=sys.stderr, flush=True)
    found["systems"][OWN] = [_own(values, CLIENTS) for values in sizes]
    found["more"] = _own(sizes[-1], MORE)["bytes"]
    found["load"] = max(found["load"], os.getloadavg()[0])
    return found


def table(found: dict[str, Any]) -> str:
    """All systems in one Markdown table."""
    head = [f"{values:,} values, processor s | bytes" for values in found["sizes"]]
    lines = [f"| a round of {CLIENTS} clients | {' | '.join(head)} |", "| --- |" + " ---: | ---: |" * len(head)]
    for name, figures in found["systems"].items():
        cells = [item if isinstance(item, str) else f"{item['cpu_s']:.2f} | {item['bytes']:.1f}" for item in figures]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    pins = "; ".join(", ".join(names) for names in PINNED.values())
    lines += ["", f"{OWN} with {MORE} sites, {found['sizes'][-1]:,} values: {found['more']:.1f} bytes"]
    return "\n".join([*lines, "", f"load average {found['load']:.1f} on {os.cpu_count()} processors; {pins}"])


def _own(values: int, sites: int) -> dict[str, float]:
    own = steps.run(3, head=HEADS[values], members=sites, wire=True)
    return {"cpu_s": own["cpu_s"], "bytes": own["wire_bytes"] / values / sites}


def _try(python: Path, rounds: int, start: Callable[[_Stage], None], values: int) -> dict[str, float] | str:
    try:
        with tempfile.TemporaryDirectory(prefix="veilsum-peers-") as place:
            stage = _Stage(python, Path(place), values, rounds)
            try:
                start(stage)
                ends = stage.follow()
            finally:
                stage.stop()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return f"did not run: {error}"
    (before, carried), *_, (after, whole) = ends
    return {"cpu_s": (after - before) / (rounds - 1), "bytes": (whole - carried) / (rounds - 1) / values / CLIENTS}


def _environment(name: str) -> Path:
    """The interpreter of an environment, with the pinned versions."""
    place, pinned = PEERS / name, PINNED[name]
    python, installed = place / "bin" / "python", place / "installed.txt"
    if not installed.exists() or installed.read_text() != "\n".join(pinned):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *pinned], check=True)
        installed.write_text("\n".join(pinned))
    return python


class _Stage:
    """Where the processes of one peer run.

    Attributes:
        python: their interpreter.
        place: a folder of their own.
        values: values of a vector.
        rounds: how many.
        port: where the server is to listen; ``through`` is where clients connect.
    """

    def __init__(self, python: Path, place: Path, values: int, rounds: int) -> None:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # whom a process leaves behind becomes a child of this one, and counts
        self.python, self.place, self.values, self.rounds = python, place, values, rounds
        self.port = free_port()
        self._proxy = Proxy(self.port)
        self.through = self._proxy.port
        self._spent = _reaped()
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []
        marks = place / "marks"
        os.mkfifo(marks)
        self._marks = os.open(marks, os.O_RDWR)
        self.environment = {
            **os.environ,
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "PEER_MARKS": str(marks),
            "HOME": str(place),
            "FLWR_HOME": str(place),
            "FLWR_TELEMETRY_ENABLED": "0",
        }
        self.environment.pop("PYTHONPATH", None)

    def start(self, *command: object, program: str = "python", wait: bool = False) -> None:
        """Start a program of the environment, to its end where ``wait`` is set.

        Raises:
            RuntimeError: what was waited for failed.
        """
        log = self.place / f"{len(self._processes)}.log"
        with log.open("wb") as output:
            child = subprocess.Popen(
                [str(self.python.parent / program), *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                cwd=self.place,
            )
        self._processes.append((child, log))
        if wait and child.wait(SECONDS):
            raise RuntimeError(_last(log))

    def await_server(self) -> None:
        """Wait until the server, which was started last, listens."""
        child, log = self._processes[-1]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if child.poll() is not None:
                raise RuntimeError(_last(log))
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            time.sleep(0.1)
        raise RuntimeError("the server does not listen")

    def follow(self) -> list[tuple[float, int]]:
        """Processor seconds of all processes and bytes carried, at the end of every round.

        Raises:
            RuntimeError: a process failed, a mean was wrong, or a round did not end.
        """
        ends: list[tuple[float, int]] = []
        quiet = time.monotonic() + SECONDS
        while len(ends) < self.rounds:
            if select.select([self._marks], [], [], 1.0)[0]:
                told = os.read(self._marks, 4096).decode().splitlines()
                if failed := [line for line in told if line != "round"]:
                    raise RuntimeError(failed[0])
                ends += [(_running() + _reaped() - self._spent, self._proxy.carried)] * len(told)
                quiet = time.monotonic() + SECONDS
                continue
            for child, log in self._processes:
                if child.poll():
                    raise RuntimeError(_last(log))
            if time.monotonic() > quiet:
                raise RuntimeError(f"round {len(ends) + 1} does not end: {[_last(log) for _, log in self._processes]}")
        return ends

    def stop(self) -> None:
        """End every process that this one or its children started, and reap it."""
        self._proxy.close()
        os.close(self._marks)
        end = time.monotonic() + 60
        while (left := _descendants()) and time.monotonic() < end:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.05)


def free_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _last(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])


def _reaped() -> float:
    """Processor seconds of children that ended and were waited for."""
    found = os.times()
    return found.children_user + found.children_system


def _stat(process: str) -> list[str]:
    """Fields of ``/proc/PID/stat`` from the third on (proc(5)); none if the process is gone."""
    try:
        return Path("/proc", process, "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _descendants() -> dict[int, float]:
    """Processor seconds of everything that this process or its children started and that is not reaped, by number.

    Seconds of those that a process waited for are among its own.
    """
    tick = os.sysconf("SC_CLK_TCK")
    rows = {int(name): row for name in os.listdir("/proc") if name.isdigit() and (row := _stat(name))}
    found: dict[int, float] = {}
    fresh = {os.getpid()}
    while fresh:
        fresh = {number for number, row in rows.items() if int(row[1]) in fresh}
        found |= {number: sum(map(int, rows[number][11:15])) / tick for number in fresh}
    return found


def _running() -> float:
    return sum(_descendants().values())


def _pairs(kind: str) -> Callable[[_Stage], None]:
    """A server and clients that are each one process of :mod:`benchmarks.peer_process`."""

    def start(stage: _Stage) -> None:
        program = Path(__file__).with_name("peer_process.py")

        def one(role: str, port: int) -> None:
            stage.start(program, kind, role, f"127.0.0.1:{port}", stage.values, CLIENTS, stage.rounds)

        one("server", stage.port)
        stage.await_server()
        for _ in range(CLIENTS):
            one("client", stage.through)

    return start


def _flower(kind: str) -> Callable[[_Stage], None]:
    """Flower's SuperLink, SuperNodes, and a run of the app in ``flower_app``."""

    def start(stage: _Stage) -> None:
        app = stage.place / "app"
        shutil.copytree(Path(__file__).with_name("flower_app"), app)
        link = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{stage.port}"\ninsecure = true\n'
        (stage.place / "config.toml").write_text(link)
        options = ("--insecure", "--port", stage.port, "--disable-runtime-dependency-installation")
        stage.start(*options, program="flower-superlink")
        stage.await_server()
        for _ in range(CLIENTS):
            node = ("--insecure", "--superlink", f"127.0.0.1:{stage.through}", "--port", free_port())
            stage.start(*node, program="flower-supernode")
        config = f"kind='{kind}' values={stage.values} clients={CLIENTS} rounds={stage.rounds - 1}"
        stage.start("run", app, "here", "-c", config, program="flwr", wait=True)

    return start


def _flare(kind: str) -> Callable[[_Stage], None]:
    """NVFlare as its ``provision`` sets it up, and a job by :mod:`benchmarks.peer_flare`."""

    def start(stage: _Stage) -> None:
        program = Path(__file__).with_name("peer_flare.py")
        places = (stage.place, stage.port, stage.through)
        stage.start(program, "prepare", *places, kind, stage.values, CLIENTS, stage.rounds, wait=True)
        stage.start("provision", "-p", "project.yml", "-w", "workspace", program="nvflare", wait=True)
        kits = stage.place / "workspace" / "peer" / "prod_00"
        given = ("--set", "secure_train=true", "org=peer", "config_folder=config")

        def one(role: str, name: str, *more: str) -> None:
            module = f"nvflare.private.fed.app.{role}.{role}_train"
            (kits / name / "transfer").mkdir(exist_ok=True)
            stage.start("-u", "-m", module, "-m", kits / name, "-s", f"fed_{role}.json", *given, *more)

        one("server", "localhost")
        stage.await_server()
        for number in range(CLIENTS):
            one("client", f"site-{number}", f"uid=site-{number}")
        stage.start(program, "submit", kits / "admin@peer.org", stage.place / "job", wait=True)

    return start


SYSTEMS: dict[str, tuple[str, int, Callable[[_Stage], None]]] = {
    "gRPC alone": ("flower", 6, _pairs("grpc")),
    "Flower FedAvg, former server": ("flower", 6, _pairs("flower")),
    "Flower FedAvg, SuperLink": ("flower", 1 + 1, _flower("fedavg")),
    "Flower SecAgg+, SuperLink": ("flower", 1 + 1, _flower("secagg")),
    "NVFlare FedAvg": ("nvflare", 4, _flare("fedavg")),
    "NVFlare FedAvg with CKKS": ("nvflare", 3, _flare("ckks")),
}
"""Environment, marks (one before what is counted, then one a round) and start of every peer by its name."""
