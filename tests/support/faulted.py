"""Processes whose disks, clocks and networks can go wrong, and what they say of it in their logs and on their endpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from support.clocks import SetClock
from support.disks import Disk, Namespace, mount_namespace, python
from support.federation import Data
from support.links import BadLink
from support.network import wait_for
from support.processes import Process, Processes, command
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.database import open_database
from veilsum_node.telemetry.endpoint import MetricsSettings
from veilsum_node.telemetry.health import ask_ready

COORDINATOR = "coordinator"


class FaultedProcesses(Processes):
    """A federation with a small disk of its own under some parties' states, and an endpoint for everybody's health.

    Attributes:
        disks: by party.
        clocks: by party, where they have been given.
        environment: variables for processes that are started from here on, by party.
        prefix: a command line to start a party's process under, by party.
    """

    def __init__(
        self, directory: Path, data: Data, *, namespace: Namespace | None, on_disks: Sequence[str], waits: Waits, **policy: Any
    ) -> None:
        super().__init__(directory, data, waits=waits, budget=(None, 1e-5), max_peer_streams=16, **policy)
        self.disks: dict[str, Disk] = {}
        self.environment: dict[str, dict[str, str]] = {}
        self.prefix: dict[str, list[str]] = {}
        self.clocks: dict[str, SetClock] = {}
        for name in (*self.names, COORDINATOR):
            role, home = self._home(name)
            config = home / f"{role}.toml"
            text = config.read_text()
            if name in on_disks:
                assert namespace is not None
                place = home / "state"
                place.mkdir(mode=0o700)
                self.disks[name] = Disk(namespace, home / "disk.img", place)
                if role == "participant":
                    text = f'state = "state/participant.db"\n{text}'
            if role == "participant":  # the coordinator has them anyway
                text += '\n[metrics]\nlisten = "127.0.0.1:0"\nready_file = "metrics-address"\n'
            config.write_text(text)

    def move(self, name: str, link: BadLink) -> None:
        """Let a participant dial its proxy from beyond a link; before it is started."""
        config = self.directory(name) / "participant.toml"
        own = self.proxies[name].address
        config.write_text(config.read_text().replace(own, link.dial(own)))
        self.prefix[name] = link.command()

    def give_clocks(self, offset: int) -> None:
        """Let every process that is started from here on have a clock of its own, so many seconds ahead."""
        for name in (*self.names, COORDINATOR):
            self.clocks[name] = SetClock(self._home(name)[1] / "clock", offset)
            self.environment[name] = self.clocks[name].environment

    def _home(self, name: str) -> tuple[str, Path]:
        coordinator = name == COORDINATOR
        return ("coordinator" if coordinator else "participant"), (
            self.kit.coordinator.directory if coordinator else self.directory(name)
        )

    def launch(self, role: str, directory: Path) -> Process:
        """Start a process, in the namespace of the disks and with its variables; forked where it has neither."""
        name = directory.name if role == "participant" else COORDINATOR
        (directory / "metrics-address").unlink(missing_ok=True)
        if self.disks and name not in self.disks and name not in self.prefix and not self.environment.get(name):
            return super().launch(role, directory)
        words = python(*command(role, directory / f"{role}.toml"))
        if name in self.prefix:
            words = [*self.prefix[name], *words]
        return Process(["-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])", *words], directory / "log",
                       self.environment.get(name))  # fmt: skip

    def fill(self, name: str, leave: int = 0) -> None:
        """Fill a party's disk up to so many bytes. Its write-ahead log is emptied first: it keeps room that it once took."""
        place = self._journal if name == COORDINATOR else self._state(name)
        database = open_database(place)
        database.scrub()
        database.close()
        self.disks[name].fill(leave)

    def health(self, name: str) -> str:
        """Why a party is not ready, in its own word; empty if it is ready."""
        _, home = self._home(name)
        try:
            return ask_ready(MetricsSettings(listen="127.0.0.1:0", ready_file=home / "metrics-address")).reason
        except Exception as error:  # noqa: BLE001 - it has not written its address yet
            return str(error)

    def await_health(self, name: str, word: str) -> None:
        """Wait until a party says so."""
        wait_for(lambda: self.health(name) == word, f"the health {word!r} of {name}")

    def log(self, name: str) -> str:
        """What a party has logged."""
        path = self._home(name)[1] / "log"
        return path.read_text() if path.exists() else ""

    def await_log(self, name: str, text: str, start: int = 0) -> str:
        """Wait until a party has logged something after so many characters; returns that line."""
        wait_for(lambda: text in self.log(name)[start:], f"{text!r} in the log of {name}")
        return next(line for line in self.log(name)[start:].splitlines() if text in line)

    def attempt_states(self, key: bytes) -> dict[str, str]:
        """State of each participant's last attempt."""
        found = {name: self.attempts(name, key) for name in self.names}
        return {name: str(rows[-1]["state"]) if rows else "" for name, rows in found.items()}

    @property
    def _journal(self) -> Path:
        if COORDINATOR in self.disks:
            return self.disks[COORDINATOR].root / "coordinator.db"
        return super()._journal

    def _state(self, name: str) -> Path:
        return self.disks[name].root / "participant.db" if name in self.disks else super()._state(name)


@contextmanager
def faulted_processes(
    directory: Path,
    data: Data,
    *,
    waits: Waits,
    on_disks: Sequence[str] = (),
    clocks: int | None = None,
    idle: str = "",
    beyond: Mapping[str, BadLink] | None = None,
    **policy: Any,
) -> Iterator[FaultedProcesses]:
    """Run a coordinator and participants. All are stopped at the end.

    Args:
        on_disks: who has a disk of its own.
        clocks: everybody has a clock of its own, so many seconds ahead at first.
        idle: a participant that is set up but never started.
        beyond: who lies beyond which link.
    """
    with ExitStack() as stack:
        namespace = stack.enter_context(mount_namespace()) if on_disks else None
        processes = FaultedProcesses(directory, data, namespace=namespace, on_disks=on_disks, waits=waits, **policy)
        for name, link in (beyond or {}).items():
            processes.move(name, link)
        if idle:
            processes.names.remove(idle)
        if clocks is not None:
            processes.give_clocks(clocks)
        stack.callback(processes.stop)
        processes.heal()
        yield processes
