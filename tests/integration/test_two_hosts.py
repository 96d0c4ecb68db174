"""Two hosts with one identity, as real processes over mutual TLS: one has the session; no copy releases what another paid."""

from __future__ import annotations

import shutil
import urllib.request
from pathlib import Path

import pytest

from support import commands
from support.federation import DATASET, make_data, make_request, schema_of
from support.network import PATIENCE, wait_for
from support.processes import Process, Processes, command, running_processes
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.database_places import open_readonly
from veilsum_privacy.ledger import Kind, LedgerReader

WAITS = Waits(enrol=60, seal=60, contribute=60, consent=60, check=60, grace=20)


def spent(directory: Path) -> tuple[int, float]:
    """How many releases a host's ledger charges, and their epsilon, once it was verified."""
    with open_readonly(directory / "participant.db") as database:
        ledger = LedgerReader(database)
        ledger.verify()
        with database.reading() as connection:
            found = ledger.spending(DATASET, connection=connection)
            entries = ledger.entries(connection=connection)
        charged = [entry for entry in entries if entry.kind in (Kind.CHARGE, Kind.RECOVERY)]
        assert len(charged) == found.releases == len({entry.context for entry in charged})
        return found.releases, found.spent


def study(network: Processes) -> str:
    key = network.submit(network.compile(make_request(schema_of(2), epsilon=0.5)))
    return network.await_end(key).phase


def held(network: Processes) -> float:
    """How many sessions of site a the coordinator refused."""
    place = (network.kit.coordinator.directory / "metrics-address").read_text().strip()
    with urllib.request.urlopen(f"http://{place}/metrics", timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith('veilsum_sessions_held_total{participant="a"'))


@pytest.mark.system
def test_the_second_host_waits_and_then_pays_for_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_processes(tmp_path, make_data("abc"), waits=WAITS, budget=(10.0, 1e-5)) as network:
        first, second = network.directory("a"), tmp_path / "second"
        network.participants["a"].stop()
        shutil.copytree(first, second)  # as a machine is cloned
        network.heal()
        serves = second / "log"
        serves.write_text("")
        clone = Process(command("participant", second / "participant.toml"), serves, forked=network.forked)
        try:
            wait_for(lambda: "identity of a has a session" in serves.read_text(), "the second host's refusal")
            assert held(network) >= 1
            assert study(network) == "finished"  # nobody takes the session from the first
            wait_for(lambda: spent(first)[0] == 1, "the charge")
            assert spent(second)[0] == 0
            assert clone.alive

            network.participants["a"].kill()
            wait_for(lambda: spent(second)[0] == 1, "the second host, which pays what the first released")
            assert spent(second) == spent(first)
            assert "with a ledger that is not this one" in serves.read_text()
            assert study(network) == "failed"  # until somebody says which host is the site
            assert spent(second)[0] == 1
            config = second / "participant.toml"
            status, out, err = commands.veilsum(
                capsys, "ledger", "recover", "--config", config, "--trust-coordinator", "--reason", "moved", "--operator", "IT"
            )
            assert status == 0, out + err
        finally:
            clone.stop()
        clone = Process(command("participant", config), serves, forked=network.forked)
        try:
            wait_for(lambda: network.connected() == set(network.names), "the second host's session")
            assert study(network) == "finished"
            wait_for(lambda: spent(second)[0] == 2, "the second host's own charge")
            network.start("a")
            log = network.participants["a"].log
            wait_for(lambda: "identity of a has a session" in log.read_text(), "the first host's refusal")
            clone.stop()
            wait_for(lambda: spent(first)[0] == 2, "the first host, which pays what the second released")
            assert study(network) == "failed"
        finally:
            clone.stop()


@pytest.mark.system
def test_a_host_that_starts_again_has_its_session_again(tmp_path: Path) -> None:
    """A process that was killed is not a second host."""
    with running_processes(tmp_path, make_data("abc"), waits=WAITS, budget=(10.0, 1e-5)) as network:
        for _ in range(2):
            network.participants["a"].kill()
            network.heal()
        assert study(network) == "finished"
