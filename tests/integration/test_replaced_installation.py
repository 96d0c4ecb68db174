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


class CopiedSite(Processes):
    """A federation one of whose sites has an installation of its own."""

    def __init__(self, directory: Path, isolation: str) -> None:
        self.copy = directory / "installed"
        shutil.copytree(Path(veilsum_participant.__file__).parent, self.copy / "veilsum_participant")
        settings = {"waits": WAITS, "budget": (None, 1e-5), "max_peer_streams": 16}
        super().__init__(directory, make_data(NAMES, 5, 3), **settings, isolation=isolation, isolated="c")  # type: ignore[arg-type]

    def launch(self, role: str, directory: Path) -> Process:
        if directory != self.directory("c"):
            return super().launch(role, directory)
        return Process(command(role, directory / f"{role}.toml"), directory / "log", {"PYTHONPATH": str(self.copy)})

    @property
    def log(self) -> str:
        return (self.directory("c") / "log").read_text()

    def replace(self) -> None:
        """As an installer does: other files in the place of these."""
        for path in self.copy.rglob("*.py"):
            text = path.read_text()
            path.unlink()
            path.write_text(text)


@pytest.mark.parametrize("isolation", ["none", "processes"])
def test_a_participant_takes_nothing_of_another_version(tmp_path: Path, isolation: str) -> None:
    if isolation == "processes" and (reason := unconfinable()):
        pytest.skip(reason)
    network = CopiedSite(tmp_path, isolation)
    try:
        network.heal()
        network.replace()
        key = network.submit(network.compile(make_request(schema_of(3), epsilon=None)))
        wait_for(lambda: TOLD in network.log, "what the site says")
        assert "enrolled in study" not in network.log
        assert network.participants["c"].stop() == 0
        network.start("c")
        status = network.await_end(key)
        assert status.phase == "finished", status.reason
        assert network.releases(key)[0].cohort == tuple(NAMES)
        assert network.log.count(TOLD) == 1
    finally:
        network.stop()
