"""Another version is installed beneath a participant that runs: it takes nothing of it, says so, goes on once restarted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import veilsum_participant
from support.federation import make_data, make_request, schema_of
from support.network import wait_for
from support.processes import Process, Processes, command
from support.victims import unconfinable
from veilsum_coordinator.protocol.settings import Waits

NAMES = "abc"
WAITS = Waits(enrol=200, seal=100, contribute=100, consent=100, check=100, grace=60)
TOLD = "Another version was installed while the participant runs."


COPIED = {"b": "none", "c": "processes"}
"""Sites with an installation of their own, in one process and in several."""


class CopiedSites(Processes):
    """A federation two of whose sites have an installation of their own."""

    def __init__(self, directory: Path) -> None:
        for name in COPIED:
            shutil.copytree(Path(veilsum_participant.__file__).parent, directory / f"installed {name}" / "veilsum_participant")
        settings = {"waits": WAITS, "budget": (None, 1e-5), "max_peer_streams": 16, "isolation": "processes"}
        isolated = [name for name, isolation in COPIED.items() if isolation == "processes"]
        super().__init__(directory, make_data(NAMES, 5, 3), **settings, isolated=isolated)  # type: ignore[arg-type]
        self.copies = {self.directory(name): directory / f"installed {name}" for name in COPIED}

    def launch(self, role: str, directory: Path) -> Process:
        if (copy := self.copies.get(directory)) is None:
            return super().launch(role, directory)
        return Process(command(role, directory / f"{role}.toml"), directory / "log", {"PYTHONPATH": str(copy)})

    def log(self, name: str) -> str:
        return (self.directory(name) / "log").read_text()

    def replace(self) -> None:
        """As an installer does: other files in the place of these."""
        for path in [path for copy in self.copies.values() for path in copy.rglob("*.py")]:
            text = path.read_text()
            path.unlink()
            path.write_text(text)


def test_a_participant_takes_nothing_of_another_version(tmp_path: Path) -> None:
    if reason := unconfinable():
        pytest.skip(reason)
    network = CopiedSites(tmp_path)
    try:
        network.heal()
        network.replace()
        key = network.submit(network.compile(make_request(schema_of(3), epsilon=None)))
        for name in COPIED:
            wait_for(lambda own=name: TOLD in network.log(own), "what the site says")  # type: ignore[misc]
            assert "enrolled in study" not in network.log(name)
            assert network.participants[name].stop() == 0
        network.start(*COPIED)
        status = network.await_end(key)
        assert status.phase == "finished", status.reason
        assert network.releases(key)[0].cohort == tuple(NAMES)
        assert [network.log(name).count(TOLD) for name in COPIED] == [1, 1]
    finally:
        network.stop()
