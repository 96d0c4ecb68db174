"""What a confined guard has others do, or finds done: the site's command, its metrics, its log, the operator's commands."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from support.federation import make_data, make_request, schema_of
from support.forked import ForkedCommand
from support.network import PATIENCE, wait_for
from support.processes import Processes
from veilsum_coordinator.protocol.settings import Waits
from veilsum_participant.protocol.decisions import approve, waiting_studies
from veilsum_participant.session.beside import open_beside
from veilsum_participant.settings.config import load_participant_config

NAMES = "abc"


def test_command_metrics_log_and_operator_are_as_in_one_process(tmp_path: Path) -> None:
    network = Processes(
        tmp_path, make_data(NAMES, 5, 3), waits=Waits(enrol=200), budget=(None, 1e-5), max_peer_streams=16,
        isolation="processes", isolated="a", approval="manual",
    )  # fmt: skip
    own = network.directory("a")
    told = own / "told"
    script = own / "tell.sh"
    script.write_text(f"#!/bin/sh\ncat > {told}.part; echo $VEILSUM_STUDIES >> {told}.part; mv {told}.part {told}; exit 3\n")
    script.chmod(0o700)
    config = own / "participant.toml"
    metrics = '[metrics]\nlisten = "127.0.0.1:0"\nready_file = "metrics-address"\n'
    config.write_text(f'log = "site.log"\n{config.read_text()}{metrics}[hooks]\nwaiting = ["{script}"]\n')
    try:
        network.heal()
        key = network.submit(network.compile(make_request(schema_of(3), epsilon=None)))
        wait_for(told.exists, "the site's own command")
        assert told.read_text().endswith(f"{key.hex()}\n")
        assert _approved(network.directory("a"), key)
        for name in "bc":
            wait_for(lambda name=name: _agreed(network.directory(name), key), f"the approval at {name}")  # type: ignore[misc]
        assert network.await_end(key).phase == "finished"
        place = (own / "metrics-address").read_text()
        with urllib.request.urlopen(f"http://{place}/metrics", timeout=PATIENCE) as answer:
            assert "veilsum_site_contributions_total 1.0" in answer.read().decode().splitlines()
        log = (own / "site.log").read_text()
        assert "the command hooks.waiting failed: exit status 3" in log
        assert "reader: dataset records is read" in log
    finally:
        network.stop()


def _approved(directory: Path, key: bytes) -> bool:
    words = ["participant", "approve", key.hex()[:12], "--as", "A. Berg", "--config", str(directory / "participant.toml")]
    return ForkedCommand(words, directory / "approval", {}).wait(PATIENCE) == 0


def _agreed(directory: Path, key: bytes) -> bool:
    """What other sites' officers do, without an interpreter for each."""
    with open_beside(load_participant_config(directory / "participant.toml")) as site:
        waits = any(item.digest == key for item in waiting_studies(site))
        if waits:
            approve(site, key.hex(), "another officer")
    return waits
